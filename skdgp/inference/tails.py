"""A second Gaussian for noise of which a few targets have far more than the others.

A single Gaussian is a compromise then: too wide for most rows, and far too narrow for the few. The noise becomes

    (1 − π) N(0, σ²) + π N(0, κσ²),    κ ≥ 1, π ≤ ½

(Tukey, 1960; see :class:`..gp.noise.Contaminated`). All three numbers are those that make rows most likely which the
model has not learnt from. One Gaussian is the case κ = 1, so that the likelihood ratio tells whether a second one is
needed.
"""

import math
from copy import deepcopy
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..gp.likelihoods import AdditiveNoise
from ..gp.noise import Contaminated
from ..gp.special import LOG_2PI
from .lbfgs import going_back

#: Nats that a second Gaussian must gain in all, beyond what its parameters gain by chance.
LEAST_GAIN = 2.0

#: Shares of the rows with wide noise from which searches start.
SHARES = (0.3, 0.1, 0.02)

#: Limits of log odds π/(1 − π), of log κ, and of the logarithm of σ² over the variance of the single Gaussian.
LIMITS = ((-12.0, 0.0), (0.0, 30.0), (-20.0, 1.0))

#: Rows with wide noise, and rows without, that are counted beforehand.
PSEUDO_COUNT = 0.5

#: Deviation and degrees of freedom of the prior of the logarithm of σ² over the variance of the single Gaussian, as for
#: the noise of a blend. Without it, rows that happen to be predicted well would make σ² small.
DEVIATION, FREEDOM = 0.3, 2.0


class Errors(NamedTuple):
    """Errors (n, P) of predictions, variances (n, P) of the function values there, and weights (n,) of the rows."""

    error: Tensor
    variance: Tensor
    weight: Tensor

    def in_units(self, ratio: Tensor | float) -> Self:
        """The same if the noise of rows is ``ratio`` (n, 1) times that of others: as errors of one noise."""
        return self._replace(error=self.error / ratio**0.5, variance=self.variance / ratio)


class Tails(NamedTuple):
    """Noise of two Gaussians: the share of the wide one, and both variances (P,).

    ``log_density`` is the sum over rows that new rows can expect (Akaike, 1974), and ``gain`` is what it has more than
    that of a single Gaussian. ``n_rows`` is the sum of weights.
    """

    share: float
    narrow: Tensor
    wide: Tensor
    log_density: float
    gain: float
    n_rows: float

    @property
    def heavy(self) -> bool:
        """Whether the rows ask for a second Gaussian."""
        return self.gain > LEAST_GAIN


def best_tails(errors: Errors, noise: Tensor) -> Tails:
    """The two Gaussians that make errors most likely, beside a single one of variance ``noise`` (P,)."""
    noise = noise.detach().to(errors.error)
    n_outputs, weight = len(noise), errors.weight.to(errors.error)

    def parts(vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        odds, log_width, log_ratio = vector.split([1, n_outputs, n_outputs])
        narrow = noise * log_ratio.exp()
        return odds, narrow, narrow * log_width.exp()

    def log_density(vector: Tensor) -> Tensor:
        odds, narrow, wide = parts(vector)
        return (weight * log_mixture(errors, odds, narrow, wide)).sum()

    def negative(vector: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(vector, dtype=noise.dtype, device=noise.device, requires_grad=True)
        odds, ratio = free[:1], free[1 + n_outputs :]
        counted = PSEUDO_COUNT * (logsigmoid(odds) + logsigmoid(-odds)).sum()
        surprise = 0.5 * (FREEDOM + 1) * torch.log1p((ratio / DEVIATION).square() / FREEDOM).sum()
        value = surprise - counted - log_density(free)
        return value.item(), torch.autograd.grad(value, free)[0].cpu().numpy()

    bounds = [LIMITS[0], *(n_outputs * [LIMITS[1]]), *(n_outputs * [LIMITS[2]])]
    starts = (np.clip(_start(errors, noise, share), *np.transpose(bounds)) for share in SHARES)
    best = min(
        (minimize(going_back(negative), start, jac=True, method="L-BFGS-B", bounds=bounds) for start in starts),
        key=lambda optimum: optimum.fun,
    )
    vector = noise.new_tensor(best.x)
    with torch.no_grad():
        odds, narrow, wide = parts(vector)
        single = (weight[:, None] * gaussian(errors, noise)).sum().item()
        expected = log_density(vector).item() - len(vector)
    return Tails(odds.sigmoid().item(), narrow, wide, expected, expected - single, weight.sum().item())


def log_mixture(errors: Errors, odds: Tensor, narrow: Tensor, wide: Tensor) -> Tensor:
    """Log densities (n,) of errors for log odds (1,) of wide noise and both variances (P,)."""
    both = gaussian(errors, narrow) + logsigmoid(-odds), gaussian(errors, wide) + logsigmoid(odds)
    return torch.logaddexp(*both).sum(-1)


def gaussian(errors: Errors, noise: Tensor) -> Tensor:
    """Log densities (n, P) of errors for noise that is a single Gaussian of variance (P,)."""
    total = errors.variance + noise
    return -0.5 * (errors.error.square() / total + total.log() + LOG_2PI)


def noise_of(likelihood: AdditiveNoise) -> Tensor:
    """Variances (P,) of the noise of most encoded targets: of two Gaussians, the narrow one's."""
    narrow = likelihood.narrow if isinstance(likelihood, Contaminated) else likelihood
    return torch.from_numpy(narrow.noise_variance() / np.square(narrow.units.scale))


def with_tails(likelihood: AdditiveNoise, share: float, narrow: Tensor, wide: Tensor) -> Contaminated:
    """A likelihood with another variance (P,) of its noise, and with wide noise of this share and variance (P,)."""
    likelihood = deepcopy(likelihood.narrow if isinstance(likelihood, Contaminated) else likelihood)
    likelihood.refine()
    ratio = (narrow / noise_of(likelihood).to(narrow)).log()
    for logarithm in likelihood.calibrated():
        logarithm.data.add_(ratio.to(logarithm))
    return Contaminated(likelihood, share, wide)


def _start(errors: Errors, noise: Tensor, share: float) -> np.ndarray:
    """A vector to search from: the given share of the rows, those of the largest errors, has the wide noise."""
    square = errors.error.square()
    edge = square.quantile(1.0 - share, dim=0)
    tiny = torch.finfo(square.dtype).tiny
    far, near = ((square * rows).sum(0) / rows.sum(0).clamp(min=1) for rows in (square > edge, square <= edge))
    narrow = torch.maximum(near - errors.variance.mean(0), 0.1 * near).clamp(min=tiny)
    width = (far / narrow).clamp(min=1.0)
    logarithms = [width.log(), (narrow / noise).log()]
    return np.concatenate([[math.log(share / (1.0 - share))], *(part.cpu().numpy() for part in logarithms)])
