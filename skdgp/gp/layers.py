"""Layers of a deep GP.

A layer is a function of its parameters and inputs, and leaves nothing behind:

    layer(x, anchor) -> mean, variance, kl

============ ===================== ==============================================================
``x``        (S, B, Q)             inputs, S samples or quadrature points for each of B rows
``anchor``   (B, Q) or (S, B, Q)   what a row's inducing variables are computed from, if they are
``mean``     (S, B, D)             marginal means of the D outputs
``variance`` (S, B, D)             marginal variances
``kl``       (B,) or ()            what inducing variables, a row's or global, cost, summed over outputs
============ ===================== ==============================================================
"""

import math

import torch
from torch import Tensor, nn

from . import rowwise
from .conditionals import kl_divergence, whitened_conditional
from .kernels import StationaryKernel
from .linalg import JITTER, cholesky, whiten
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


class GlobalLayer(Layer):
    """GP layer whose inducing variables are parameters, the same for every row (DS-DGP, Sec. 2.1 and 3).

    Parameters
    ----------
    kernel : StationaryKernel
        One covariance per output, or one that all outputs share.
    mean : Module
        Mean function, from (..., Q) to (..., D).
    Z : Tensor of shape (M, Q)
        Initial inducing points, which all outputs share.
    v : Tensor of shape (D, M)
        Initial posterior means, whitened.
    covariance : {"diag", "full"}
        Of the inducing variables' posterior.
    whiten : bool
        Whether the posterior is of v or of u = m(Z) + L v.
    scale : float, default=1.0
        Initial posterior deviations, in units of the prior's: 1 is the prior, and a small number an
        all but deterministic layer.
    noise : float, default=None
        Initial variance of white noise that the layer adds, learnt per output; None is no noise.
    jitter : float, default=JITTER
        Added to the unit diagonal of the inducing points' correlations.
    """

    def __init__(
        self,
        kernel: StationaryKernel,
        mean: nn.Module,
        Z: Tensor,
        v: Tensor,
        *,
        covariance: str,
        whiten: bool,
        scale: float = 1.0,
        noise: float | None = None,
        jitter: float = JITTER,
    ):
        super().__init__()
        self.kernel = kernel
        self.mean = mean
        self.whiten = whiten
        self.jitter = jitter
        n_outputs, n_inducing = v.shape
        root = torch.eye(n_inducing, dtype=Z.dtype)
        with torch.no_grad():
            if not whiten:
                root = cholesky(kernel(Z, Z), jitter)  # (D or 1, M, M)
                v = mean(Z).mT + (root @ v[..., None])[..., 0]
            root = scale * root.expand(n_outputs, -1, -1)
            full = covariance == "full"
            diagonal = root.diagonal(dim1=-2, dim2=-1) if full else root.square().sum(-1).sqrt()
        self.Z = nn.Parameter(Z.clone())
        self.q_mean = nn.Parameter(v.clone())  # (D, M)
        # The logarithm lets deviations grow from next to nothing at the pace of any other parameter.
        self.q_log_diagonal = nn.Parameter(diagonal.log())  # (D, M)
        self.q_below = nn.Parameter(root.tril(-1)) if full else None  # (D, M, M)
        self.log_noise = None if noise is None else nn.Parameter(Z.new_full((n_outputs,), math.log(noise)))

    @property
    def q_scale(self) -> Tensor:
        """Square root of the posterior covariance: its diagonal (D, M), or lower triangular (D, M, M)."""
        diagonal = self.q_log_diagonal.exp()
        return diagonal if self.q_below is None else self.q_below.tril(-1) + torch.diag_embed(diagonal)

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of whitened cross-correlations, and of their products with the posterior's root."""
        n_outputs, n_inducing = self.q_mean.shape
        shared = self.q_below is None and len(self.kernel.log_variance) == 1
        return n_samples * n_inducing * (1 if shared else n_outputs)

    def forward(self, x: Tensor, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Marginals of function values; rows do not matter to what the inducing variables cost."""
        deviation = self.kernel.variance.sqrt()[:, None]  # (D or 1, 1)
        mean, scale = self.q_mean, self.q_scale
        if not self.whiten:
            # Dividing u and its prior by σ changes neither the KL nor the conditional.
            mean = (mean - self.mean(self.Z).mT) / deviation
            scale = scale / (deviation if scale.dim() == 2 else deviation[..., None])
        # Factorised in float64, whatever the layer's precision; that is exact where inducing points crowd.
        Z = self.Z.double()
        K, k = self.kernel.correlation(Z, Z), self.kernel.correlation(self.Z, x.flatten(0, -2))
        if len(k) == 1:
            K, k = K[0], k[0]
        W, A = whiten(K, k, self.jitter)  # ([D,] M, M), ([D,] M, N), N = S·B
        f_mean, f_variance = whitened_conditional(W, A, mean, scale, whiten=self.whiten)  # (D, N)
        variance = f_variance * deviation.square()
        if self.log_noise is not None:
            variance = variance + self.log_noise.exp()[:, None]
        kl = kl_divergence(mean, scale, None if self.whiten else W).sum()
        shape = (*x.shape[:-1], -1)  # (S, B, D)
        return (f_mean * deviation).mT.reshape(shape) + self.mean(x), variance.mT.reshape(shape), kl
