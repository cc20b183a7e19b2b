"""Layers of a deep GP.

A layer is a function of its parameters and inputs, and leaves nothing behind:

    layer(x, anchor) -> mean, variance, kl

============ ===================== ==============================================================
``x``        (S, B, Q)             inputs, S samples or quadrature points for each of B rows
``anchor``   (B, Q) or (S, B, Q)   what a row's inducing variables are computed from, if they are
``mean``     (S, B, D)             marginal means of the D outputs
``variance`` (S, B, D)             marginal variances
``kl``       (B,) or ()            what the row's inducing variables cost, summed over outputs
============ ===================== ==============================================================
"""

from torch import Tensor, nn

from . import rowwise
from .kernels import StationaryKernel
from .networks import InferenceNetwork


class Layer(nn.Module):
    """A GP layer; see the module's docstring."""

    kernel: StationaryKernel

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the largest tensor that the layer makes, for each row."""
        raise NotImplementedError


class AmortisedLayer(Layer):
    """GP layer whose inducing variables are a learnt function of every row (AVDGP, Sec. 3.1 and 4.1).

    Parameters
    ----------
    kernel : StationaryKernel
        One covariance per output, or one that all outputs share.
    mean : Module
        Mean function, from (..., Q) to (..., D).
    inference : InferenceNetwork
        Maps an anchor (B, Q) to Z (B, M, Q), mean (M, D, B) and scale (M, D, B) or (M, M, D, B);
        see :mod:`skdgp.gp.networks`.
    whiten : bool
        Whether the inference network speaks of v or of u = m(Z) + L v.
    """

    def __init__(self, kernel: StationaryKernel, mean: nn.Module, inference: InferenceNetwork, *, whiten: bool):
        super().__init__()
        self.kernel = kernel
        self.mean = mean
        self.inference = inference
        self.whiten = whiten

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the correlations of inducing variables with each other and with the samples."""
        n_inducing, n_outputs = self.inference.shape
        return n_inducing * n_outputs * (n_inducing + n_samples)

    def forward(self, x: Tensor, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Marginals of the row's function values, and what its inducing variables cost."""
        if anchor.dim() == 3:  # AR1: every sample is a row with inducing variables of its own
            n_samples = anchor.shape[0]
            mean, variance, kl = self(x.flatten(0, 1)[None], anchor.flatten(0, 1))
            mean, variance = mean[0].unflatten(0, (n_samples, -1)), variance[0].unflatten(0, (n_samples, -1))
            return mean, variance, kl.unflatten(0, (n_samples, -1)).mean(0)  # Eq. 4.8

        Z, q_mean, q_scale = self.inference(anchor)  # (B, M, Q), (M, D, B), (M, D, B) or (M, M, D, B)
        deviation = self.kernel.variance.sqrt()[:, None]  # (D, 1)
        if not self.whiten:
            # Dividing u and its prior by σ changes neither the KL nor the conditional.
            q_mean = (q_mean - self.mean(Z).permute(1, 2, 0)) / deviation
            q_scale = q_scale / deviation
        correlations = self.kernel.packed_correlation(Z, x.transpose(0, 1))
        W, A = rowwise.whiten(correlations, n_inducing=Z.shape[1])  # (M, M, D, B), (M, S, D, B)
        mean, variance, kl = rowwise.posterior(W, A, q_mean, q_scale, deviation, whiten=self.whiten)  # (S, D, B)
        return mean.transpose(1, 2) + self.mean(x), variance.transpose(1, 2), kl.sum(0)
