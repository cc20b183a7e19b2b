"""Layers of a deep GP that has learnt nothing: functions have the prior alone."""

import torch
from torch import Tensor, nn

from .kernels import Kernel
from .layers import Layer, LayerDraw
from .means import Mean
from .waves import N_WAVES, Streams


class PriorLayer(Layer):
    """A layer without inducing variables: f(x) = m(x) + g(x), where g has the prior of zero mean.

    Parameters
    ----------
    kernel : Kernel
        One covariance per output, or one that all outputs share.
    mean : Mean
        Mean function, from (..., Q) to (..., D).
    n_inputs, n_outputs : int
        Q and D.
    """

    def __init__(self, kernel: Kernel, mean: Mean, n_inputs: int, n_outputs: int):
        super().__init__()
        self.kernel, self.mean = kernel, mean
        self.n_inputs, self.n_outputs = n_inputs, n_outputs
        # A model has the device and the precision of its first parameter, and kernels may have none.
        self.origin = nn.Parameter(torch.zeros((), device="cpu", dtype=torch.float32), requires_grad=False)

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Means m(x) and variances k(x, x), (S, B, D), and a KL divergence () of zero."""
        variance = self.kernel.diagonal(x.flatten(-3, -2)).mT.expand(-1, self.n_outputs)  # (S·B, D)
        zeros = torch.zeros_like(variance).unflatten(0, x.shape[-3:-1])  # (S, B, D)
        return self.mean.added_to(zeros, x), variance.reshape(zeros.shape), x.new_zeros(())

    def numbers_per_row(self, n_samples: int) -> int:
        """Number of function values."""
        return n_samples * self.n_outputs

    def numbers_per_draw(self) -> int:
        """Number of waves whose sum is a function."""
        return self.kernel.n_outputs * N_WAVES

    def draw(self, streams: Streams) -> LayerDraw:
        """See :meth:`.Layer.draw`."""
        prior = self.kernel.draw(streams, self.n_inputs, self.n_outputs)
        return lambda x, anchor: self.mean.added_to(prior(x) * self.kernel.deviation, x)
