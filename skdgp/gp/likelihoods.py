"""Likelihoods p(y | f): what a layer's last function values say about the targets."""

import math

import torch
from torch import Tensor, nn

_LOG_2PI = math.log(2 * math.pi)


class Likelihood(nn.Module):
    """Link between the function values of the last layer and the targets."""

    n_outputs: int  # P, function values per row

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f) over f ~ N(mean, variance), summed over outputs.

        Parameters
        ----------
        y : Tensor of shape (B, P)
        mean, variance : Tensors of shape (S, B, P)

        Returns
        -------
        Tensor of shape (S, B)
        """
        raise NotImplementedError

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y | f) N(f | mean, variance) df, summed over outputs; shapes as above."""
        raise NotImplementedError


class Gaussian(Likelihood):
    """y = f + noise of one variance per output, independent between outputs.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    variance : float, default=0.01
        Initial noise variance.
    floor : float or Tensor of shape (P,), default=1e-6
        What the noise variance never falls below.
    """

    floor: Tensor

    def __init__(self, n_outputs: int, *, variance: float = 0.01, floor: float | Tensor = 1e-6):
        super().__init__()
        self.n_outputs = n_outputs
        self.log_excess = nn.Parameter(torch.full((n_outputs,), math.log(variance)))
        self.register_buffer("floor", torch.as_tensor(floor, dtype=self.log_excess.dtype).expand(n_outputs).clone())

    @property
    def variance(self) -> Tensor:
        """Noise variances, of shape (P,)."""
        return self.floor + self.log_excess.exp()

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """−½ Σ_p [((y − m)² + v)/σ² + log 2πσ²]."""
        noise = self.variance
        return -0.5 * (((y - mean).square() + variance) / noise + noise.log() + _LOG_2PI).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log Π_p N(y | m, v + σ²)."""
        total = variance + self.variance
        return -0.5 * ((y - mean).square() / total + total.log() + _LOG_2PI).sum(-1)
