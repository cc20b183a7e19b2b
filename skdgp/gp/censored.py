"""Gaussian noise if some targets are only known to lie in an interval: survival times, limits of detection.

An encoded target has two columns, its lower and its upper bound. Equal bounds are an exact target, and infinite ones
are open sides. The likelihood of an exact target is its density, and that of an interval its probability (Tobin,
"Estimation of Relationships for Limited Dependent Variables", 1958).
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .devices import constant
from .likelihoods import NOISE_FLOOR, Gaussian, first_row, noise_floor
from .special import FAR_AWAY, LOG_2PI, N_NODES, gauss_hermite, log_ndtr_between

#: Smallest variance of function values in quadrature.
LEAST_VARIANCE = 1e-12

#: Deviation of the prior of the noise's logarithm around that which all rows have told the base.
LEVEL_DEVIATION = 0.2

#: Intervals narrower than this, in deviations of the target without the row, count as their middle in
#: :meth:`Censored.stand_ins`.
NARROWEST = 1e-5

#: Bounds that exclude a function value by more deviations than this count as exact there. The error is below 1e-3.
FARTHEST = 50.0

#: Smallest weight of a number that stands for an interval, so that nothing is divided by zero.
LEAST_WEIGHT = 1e-6


class Censored(Gaussian):
    """Likelihood y = f + Gaussian noise, in which some targets are only known to lie in an interval.

    With the bounds l and u of a target, p(l ≤ y ≤ u | f) = Φ((u − f)/σ) − Φ((l − f)/σ). There is one target.

    Parameters
    ----------
    n_outputs : int, default=1
        Number of targets; only one is possible.
    """

    stackable = True
    conjugate = kriged = False
    base_kind = "censored"
    mixes = False
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, n_outputs: int = 1):
        super().__init__(1)
        self.level: tuple[float, ...] = ()  # the noise's logarithm, if the base has told it

    def checked(self, y: np.ndarray) -> np.ndarray:
        """Bounds (N, 2)."""
        return y

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Choose units that standardise the middles of the bounds (N, 2); see :func:`middles`."""
        self.units = Gaussian.units_of(self, middles(y), weight, normalize=normalize)
        reach = self.units.standardise(np.where(np.isfinite(y), y, self.units.shift[0]))
        row = first_row(~np.isfinite(reach) | ~np.isfinite(self.units.scale))
        if row is not None:
            raise ValueError(
                f"y overflows or underflows when it is standardised: row {row} has the bounds {y[row].tolist()}. "
                "Rescale y, for instance to its logarithm."
            )

    @torch.no_grad()
    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set the floor of the noise, from the targets that are exact."""
        exact = y[:, 0] == y[:, 1]
        floor = noise_floor(y[exact, :1], weight[exact]) if exact.any() else y.new_full((1,), NOISE_FLOOR)
        self.floor.copy_(floor)

    @torch.no_grad()
    def fix_level(self, level: Tensor) -> None:
        """See :meth:`.Likelihood.fix_level`. All rows have told it, and a few held-out ones can change it a little."""
        self.level = tuple(level.tolist())
        self.log_excess.copy_((level.exp().to(self.floor) - self.floor).clamp(min=NOISE_FLOOR).log())

    def cost_of_noise(self) -> float | Tensor:
        """See :meth:`.Likelihood.cost_of_noise`."""
        if not self.level:
            return 0.0
        return 0.5 * ((self.variance.log() - constant(self.level, self.variance)) / LEVEL_DEVIATION).square().sum()

    def regressands(self, y: Tensor) -> Tensor:
        """Middles of the bounds; see :func:`middles`."""
        low, high = y[..., :1], y[..., 1:]
        low, high = torch.where(low.isinf(), high, low), torch.where(high.isinf(), low, high)
        return 0.5 * low + 0.5 * high

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`.Likelihood.expected_log_prob`; by Gauss-Hermite quadrature for intervals."""
        y, noise = y.unsqueeze(-3), self.variance[..., None, None, :]
        exact, point = _exact(y)
        density = -0.5 * (((point - mean).square() + variance) / noise + noise.log() + LOG_2PI)
        z, weights = gauss_hermite(N_NODES, mean)
        f = mean + variance.clamp(min=LEAST_VARIANCE).sqrt() * z.reshape(-1, *mean.dim() * [1])
        probability = torch.tensordot(weights, log_probability(y, f, noise.sqrt()), dims=1)
        return torch.where(exact, density, probability).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log N(y | m, v + σ²) of exact targets, and log(Φ((u − m)/s) − Φ((l − m)/s)) with s² = v + σ² of others."""
        y, total = y.unsqueeze(-3), variance + self.variance[..., None, None, :]
        exact, point = _exact(y)
        density = -0.5 * ((point - mean).square() / total + total.log() + LOG_2PI)
        return torch.where(exact, density, log_probability(y, mean, total.sqrt())).sum(-1)

    def stand_ins(self, y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers (n, 1) that stand for targets (n, 2) in least squares, and weights, for noise of this variance (1,).

        The function values have these means and variances (n, 1) without the row. With s² = v + σ² and the mean t and
        the variance w of a target in its interval, log p(l ≤ y ≤ u) has the derivatives α = (t − m)/s² and −β, with
        β = (1 − w/s²)/s². So function values have the same moments after a number m + α/β with noise of variance
        1/β − v (Minka, "A family of algorithms for approximate Bayesian inference", 2001, eq. 3.27). The weight is σ²
        over this. Exact targets stand for themselves, with weight 1.
        """
        total = variance + noise
        deviation = total.sqrt()
        low, high = ((bound - mean) / deviation for bound in (y[:, :1], y[:, 1:]))
        log_p = log_probability(y, mean, deviation)
        of_low, of_high = (
            torch.where(z.isinf(), 0.0, (-0.5 * (z.square() + LOG_2PI) - log_p).clamp(max=80.0).exp())
            for z in (low, high)
        )
        step = of_low - of_high  # (t − m)/s
        ends = (torch.where(z.isinf(), 0.0, z) * of_z for z, of_z in ((low, of_low), (high, of_high)))
        start, end = ends
        share = (step.square() + end - start).clamp(LEAST_WEIGHT, 1.0)  # β s²
        number = mean + deviation * step / share
        weight = share * noise / (variance * (1.0 - share) + noise)
        near = torch.where(low > 0, y[:, :1], y[:, 1:])
        outside = (low > FARTHEST) | (high < -FARTHEST)
        plain = (high - low < NARROWEST) | outside
        number = torch.where(plain, torch.where(outside, near, self.regressands(y)), number)
        return number, torch.where(plain, torch.ones_like(weight), weight)


def middles(bounds: np.ndarray) -> np.ndarray:
    """A number (N, 1) for each row of bounds (N, 2): their middle, or the bound that is finite."""
    low, high = bounds[:, :1], bounds[:, 1:]
    low, high = np.where(np.isinf(low), high, low), np.where(np.isinf(high), low, high)
    return 0.5 * low + 0.5 * high


def log_probability(y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """log P(l ≤ t ≤ u) for t ~ N(mean, deviation²) and bounds (..., 2) in y; finite for equal bounds, where it is void.

    Infinite bounds are replaced before anything is computed of them, since their gradients would be NaN.
    """
    low, high = y[..., :1], y[..., 1:]
    void, below, above = low == high, low.isinf(), high.isinf()
    a, b = ((torch.where(bound.isinf(), 0.0, bound) - mean) / deviation for bound in (low, high))
    a, b = torch.where(below, -FAR_AWAY, a), torch.where(above, FAR_AWAY, b)
    return log_ndtr_between(torch.where(void, -1.0, a), torch.where(void, 1.0, b))


def _exact(y: Tensor) -> tuple[Tensor, Tensor]:
    """Which targets are exact, and what they are; zero for others."""
    low, high = y[..., :1], y[..., 1:]
    exact = low == high
    return exact, torch.where(exact, low, 0.0)


class LogNormal(Gaussian):
    """Likelihood log y = f + Gaussian noise of positive targets: that of Gaussian noise, with logarithms as targets.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    stackable = True
    positive = True
    mixes = False  # the mean of a target would be that of its wide noise
    transform = "log"
    takes: ClassVar[tuple[str, ...]] = ()  # noise would be that of logarithms
