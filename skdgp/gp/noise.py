"""Likelihoods whose noise is not one Gaussian: it has heavy tails, or a variance that depends on the row."""

import math
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from ..distributions import PredictiveDistribution
from .devices import constant
from .likelihoods import INITIAL_EXCESS, NOISE_FLOOR, AdditiveNoise, Gaussian, Standardised, noise_floor
from .special import LOG_2PI
from .units import Units

#: Initial degrees of freedom.
INITIAL_FREEDOM = 5.0

#: Their lower limit, above which the variance is finite.
LEAST_FREEDOM = 2.0

#: Deviation of the prior of the logarithm of the degrees of freedom beyond this limit.
FREEDOM_DEVIATION = 1.0

#: Number of Gaussians whose mixture stands for a Student t distribution.
N_PRECISIONS = 48

#: Steps between the logarithms of their precisions, in widths of these.
PRECISION_STEP = 1.0

#: The largest precisions are left out. Their probability is less than exp(−LEFT_OUT/2).
LEFT_OUT = 36.0

#: Number of Gaussians whose mixture stands for noise of an uncertain variance.
N_VARIANCES = 40

#: Range of their places, in deviations of the logarithm of the variance. Targets far out need large variances most.
VARIANCE_REACH = (-6.0, 8.0)

#: The noise's variance at a row is at most this many times the variance of the targets.
MOST_NOISE = 1e6

#: Number of nodes for the expectation of a Student t log density.
N_SCALES = 32

#: How far below the logarithm of the largest scale they begin.
BELOW = 8.0

#: Where they end: exp(−exp u) is negligible from there on.
ABOVE = 3.3

#: The interquartile range of a Gaussian of deviation one.
_QUARTILES = 1.3489795


class StudentT(AdditiveNoise):
    """Likelihood y = f + σ ε, where ε has a Student t distribution with ν degrees of freedom: there may be outliers.

    This is a Gaussian whose precision is random, ε | λ ~ N(0, 1/λ), λ ~ Gamma(ν/2, ν/2). So predictions are mixtures of
    Gaussians. Each output has a σ of its own, and all outputs share ν. The middle half of the targets determines their
    units, so that outliers do not change these.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    stackable = True
    base_kind = "tails"
    kriged = False
    floor: Tensor

    def __init__(self, n_outputs: int):
        super().__init__(n_outputs)
        excess = torch.full((n_outputs,), math.log(INITIAL_EXCESS), device="cpu", dtype=torch.float32)
        self.log_excess = nn.Parameter(excess)
        freedom = math.log(INITIAL_FREEDOM - LEAST_FREEDOM)
        self.log_freedom = nn.Parameter(torch.full((1,), freedom, device="cpu", dtype=torch.float32))
        self.register_buffer("floor", torch.full((n_outputs,), NOISE_FLOOR, device="cpu", dtype=torch.float32))

    @property
    def degrees_of_freedom(self) -> Tensor:
        """ν, (1,)."""
        return LEAST_FREEDOM + self.log_freedom.exp()

    @property
    def scale(self) -> Tensor:
        """σ² (P,), of encoded targets."""
        return self.floor + self.log_excess.exp()

    def numbers_per_row(self, n_samples: int) -> int:
        """See :meth:`.Likelihood.numbers_per_row`."""
        return n_samples * self.n_outputs * N_PRECISIONS

    def units_of(self, y: np.ndarray, weight: np.ndarray | None, *, normalize: bool) -> Units:
        """Shift by the median, and scale by the deviation of a Gaussian with the same interquartile range.

        A column whose quartiles are too close to each other is standardised by its mean and deviation.
        """
        plain = Units.of(y, weight, normalize=normalize)
        if not normalize:
            return plain
        low, middle, high = (_quantile(y, weight, q) for q in (0.25, 0.5, 0.75))
        scale = (high - low) / _QUARTILES
        narrow = scale < np.finfo(np.float32).eps * np.abs(middle) + 1e-3 * np.asarray(plain.scale)
        return Units(np.where(narrow, plain.shift, middle), np.where(narrow, plain.scale, scale))

    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set the floor of σ², which is larger if targets look rounded; see :func:`.noise_floor`."""
        self.floor.copy_(noise_floor(y, weight))

    def calibrated(self) -> list[nn.Parameter]:
        """The logarithm of the excess of σ² over its floor."""
        return [self.log_excess]

    def tails(self) -> list[nn.Parameter]:
        """The logarithm of ν − 2. Training ends early where a base is enough, and has then hardly learnt it."""
        return [self.log_freedom]

    def cost_of_noise(self) -> Tensor:
        """See :meth:`.Likelihood.cost_of_noise`: log(ν − 2) is Gaussian around its initial value."""
        unusual = self.log_freedom - math.log(INITIAL_FREEDOM - LEAST_FREEDOM)
        return 0.5 * (unusual / FREEDOM_DEVIATION).square().sum()

    def noise(self) -> tuple[Tensor, Tensor]:
        """The mixture, by the trapezoidal rule in u = log λ, whose density is proportional to exp(ν/2 (u − exp u)).

        Given a target, λ has a gamma distribution, too, and log λ a width of about √(2/ν), however far out the target
        is. So steps need not be shorter than this, and the nodes reach far down. Farther below, weights and variances
        are geometric series. The first Gaussian stands for their sums.
        """
        freedom, excess = self.degrees_of_freedom, self.log_freedom.exp()
        with torch.no_grad():
            reach = LEFT_OUT / freedom + (2 * LEFT_OUT / freedom).sqrt()
            step = PRECISION_STEP * (2 / (freedom + 6)).sqrt()
            number = torch.arange(N_PRECISIONS - 1, -1, -1, dtype=freedom.dtype, device=freedom.device)
            u = reach.log1p()[..., None] - step[..., None] * number  # (..., 1, K)
        log_weight = (0.5 * freedom[..., None] * (u - u.expm1()))[..., 0, :]
        one_less, one_less_variance = (-(-0.5 * step * rate).expm1() for rate in (freedom, excess))
        log_weight = torch.cat([log_weight[..., :1] - one_less.log(), log_weight[..., 1:]], dim=-1).log_softmax(-1)
        variance = (-u).exp().mT  # (..., K, 1)
        first = variance[..., :1, :] * (one_less / one_less_variance)[..., None]
        return log_weight, torch.cat([first, variance[..., 1:, :]], dim=-2) * self.scale[..., None, :]

    def noise_variance(self) -> np.ndarray:
        """σ² ν/(ν − 2), (P,), in the square of the user's units."""
        ratio = self.degrees_of_freedom.double() / self.log_freedom.double().exp()
        return (ratio * self.scale).detach().cpu().numpy() * np.square(self.units.scale)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`.Likelihood.expected_log_prob`; with E log(1 + (y − f)²/νσ²) by :func:`_mean_log1p_square`."""
        freedom, scale = (values[..., None, None, :] for values in (self.degrees_of_freedom, self.scale))
        tail = _mean_log1p_square((y.unsqueeze(-3) - mean).square() / (freedom * scale), variance / (freedom * scale))
        half = 0.5 * freedom.double()  # float32 would lose the difference of large numbers
        level = (torch.lgamma(half + 0.5) - torch.lgamma(half)).to(freedom)
        level = level - 0.5 * (math.pi * freedom * scale).log()
        return (level - 0.5 * (freedom + 1) * tail).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p log Σ_k w_k N(y | m, v + σ²/λ_k)."""
        log_weight, noise = self.noise()
        total = variance[..., None] + noise.mT[..., None, None, :, :]  # (..., S, B, P, K)
        log_density = -0.5 * ((y.unsqueeze(-3) - mean).square()[..., None] / total + total.log() + LOG_2PI)
        return torch.logsumexp(log_density + log_weight[..., None, None, None, :], dim=-1).sum(-1)


def _mean_log1p_square(square: Tensor, variance: Tensor) -> Tensor:
    """E log(1 + x²) for x ~ N(√square, variance), with an error of at most 1e-3 for variances up to 1e6.

    By Frullani's integral log(1 + x²) = ∫₀^∞ exp(−t) (1 − exp(−t x²)) dt/t, and E exp(−t x²) has a closed form. As a
    function of u = log t the integrand rises where t is about 1/x², and falls where t is about 1. Both steps have a
    width of about one, however large the variance is, so that nodes with equal steps are precise. Below them the
    integrand is t E x².
    """
    with torch.no_grad():
        low = -(1 + square + 2 * variance).log() - BELOW
        step = (ABOVE - low) / N_SCALES
        place = torch.arange(N_SCALES, dtype=square.dtype, device=square.device) + 0.5
        t = (low[..., None] + step[..., None] * place).exp()
    wide = 1 + 2 * t * variance[..., None]
    integrand = -torch.expm1(-0.5 * wide.log() - t * square[..., None] / wide)
    return ((-t).exp() * integrand).sum(-1) * step + low.exp() * (square + variance)


class Contaminated(AdditiveNoise):
    """Likelihood in which noise is that of another one, or, with a small probability, Gaussian with a larger variance.

    Its calibrated parameters are those of the other likelihood, and so are encoded targets and weights of rows.
    (Tukey, "A survey of sampling from contaminated distributions", 1960.)

    Parameters
    ----------
    narrow : AdditiveNoise
        The other likelihood.
    share : float
        Probability of the larger variance.
    wide : Tensor of shape (P,)
        The larger variance, of encoded targets.
    """

    share: Tensor
    wide: Tensor

    def __init__(self, narrow: AdditiveNoise, share: float, wide: Tensor):
        super().__init__(narrow.n_outputs)
        self.narrow, self.units, self.plain_ratio = narrow, narrow.units, narrow.plain_ratio
        self.register_buffer("share", wide.new_tensor([share]))
        self.register_buffer("wide", wide.clone())

    @property
    def rows_differ(self) -> bool:
        """That of the other likelihood."""
        return self.narrow.rows_differ

    def regressands(self, y: Tensor) -> Tensor:
        """Those of the other likelihood."""
        return self.narrow.regressands(y)

    def precise_weights(self, y: Tensor, weight: Tensor) -> Tensor:
        """Those of the other likelihood."""
        return self.narrow.precise_weights(y, weight)

    def calibrated(self) -> list[nn.Parameter]:
        """Those of the other likelihood."""
        return self.narrow.calibrated()

    def numbers_per_row(self, n_samples: int) -> int:
        """See :meth:`.Likelihood.numbers_per_row`."""
        return 2 * self.narrow.numbers_per_row(n_samples)

    def noise_beside(self, known: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """That of the other likelihood."""
        return self.narrow.noise_beside(known)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`.AdditiveNoise.log_predictive`, for rows of which some have more noise since cells are missing."""
        if not self.rows_differ:
            return super().log_predictive(y, mean, variance)
        log_weight, noise = self.noise()
        ratio = cast(Gaussian, self.narrow).ratio_of_rows(y)
        total = variance + noise[:, None, None] * ratio  # (K, S, B, P)
        log_density = -0.5 * ((self.regressands(y) - mean).square() / total + total.log() + LOG_2PI)
        return torch.logsumexp(log_density + log_weight[:, None, None, None], dim=0).sum(-1)

    def noise(self) -> tuple[Tensor, Tensor]:
        """The mixture of both; see :meth:`.AdditiveNoise.noise`."""
        log_weight, variance = self.narrow.noise()
        share = self.share.to(log_weight)
        log_weights = torch.cat([log_weight.log_softmax(0) + torch.log1p(-share), share.log()])
        return log_weights, torch.cat([variance, self.wide.to(variance)[None]])


def _quantile(y: np.ndarray, weight: np.ndarray | None, q: float) -> np.ndarray:
    """Quantiles (P,) of weighted columns (N, P)."""
    weight = np.ones(len(y)) if weight is None else weight
    order = np.argsort(y, axis=0)
    share = np.cumsum(weight[order], axis=0) / weight.sum()
    place = (share < q - 1e-9).sum(axis=0).clip(max=len(y) - 1)
    return np.take_along_axis(y, np.take_along_axis(order, place[None], axis=0), axis=0)[0].astype(np.float64)


class Heteroskedastic(Standardised):
    """Likelihood y = f + exp(½ (g + b)) ε, in which the logarithm of the noise variance is a function of the row, too.

    Function values are first f of each target, then g of each target. b is learnt. Expectations have a closed form
    (tutorial, Sec. 4.1).

    Parameters
    ----------
    n_targets : int
        P, number of targets.
    """

    stackable = True

    alike = False
    base_kind = "varying"
    floor: Tensor

    def __init__(self, n_targets: int):
        super().__init__(2 * n_targets)
        level = math.log(INITIAL_EXCESS) - 0.5  # exp g has a mean of exp(½) at first
        self.log_level = nn.Parameter(torch.full((n_targets,), level, device="cpu", dtype=torch.float32))
        self.most = n_targets * (math.inf,)  # largest logarithms of the noise's variance
        self.register_buffer("floor", torch.full((n_targets,), NOISE_FLOOR, device="cpu", dtype=torch.float32))

    @property
    def n_targets(self) -> int:
        """P, number of targets."""
        return self.n_outputs // 2

    def numbers_per_row(self, n_samples: int) -> int:
        """See :meth:`.Likelihood.numbers_per_row`."""
        return n_samples * self.n_targets * N_VARIANCES

    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set the limits of the noise. The floor is larger if targets look rounded; see :func:`.noise_floor`.

        Without an upper limit, functions that go on rising beyond the rows would give infinite variances there.
        """
        self.floor.copy_(noise_floor(y, weight))
        variance = (weight[:, None] * (y - y.mean(0)).square()).sum(0) / weight.sum()
        self.most = tuple((MOST_NOISE * torch.maximum(variance, self.floor)).log().tolist())

    def calibrated(self) -> list[nn.Parameter]:
        """The parameter b."""
        return [self.log_level]

    @torch.no_grad()
    def fix_level(self, level: Tensor) -> None:
        """See :meth:`.Likelihood.fix_level`. A g that is zero then means the same for all members and for the base."""
        self.log_level.copy_(level)
        self.log_level.requires_grad_(False)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """−½ Σ_p [log 2π + m₂ + exp(−m₂ + ½ v₂) ((y − m₁)² + v₁)], m₂ with b (tutorial, Sec. 4.1).

        The floor of the noise is left out here, since there would be no closed form with it.
        """
        m1, m2, v1, v2 = self._parts(mean, variance)
        squares = (y.unsqueeze(-3) - m1).square() + v1
        return -0.5 * (LOG_2PI + m2 + (0.5 * v2 - m2).exp() * squares).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p log ∫ N(y | m₁, v₁ + exp g) N(g | m₂, v₂) dg, by the nodes of :func:`_variance_nodes`."""
        m1, m2, v1, v2 = self._parts(mean, variance)
        nodes, log_weights = _variance_nodes(mean)
        total = v1[..., None] + self._noise(m2[..., None] + v2.sqrt()[..., None] * nodes)  # (..., S, B, P, K)
        log_density = -0.5 * ((y.unsqueeze(-3) - m1).square()[..., None] / total + total.log() + LOG_2PI)
        return torch.logsumexp(log_density + log_weights, dim=-1).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> PredictiveDistribution:
        """See :meth:`.Likelihood.predictive`; ``N_VARIANCES`` values stand for the variance of the noise."""
        m1, m2, v1, v2 = self._parts(mean.double(), variance.double())
        scale, shift = np.asarray(self.units.scale), np.asarray(self.units.shift)
        log_share = log_weight[:, 0].double().log_softmax(0)
        if latent:
            total = v1[None]
        else:
            nodes, log_weights = _variance_nodes(m1)
            noise = self._noise(m2[..., None] + v2.sqrt()[..., None] * nodes).movedim(-1, 0)  # (K, S, B, P)
            total, log_share = v1 + noise, (log_weights[:, None] + log_share).flatten()
        means = m1.expand(total.shape).flatten(0, 1).cpu().numpy()
        variances = total.flatten(0, 1).cpu().numpy()
        return PredictiveDistribution(means * scale + shift, variances * scale**2, log_share.exp().cpu().numpy())

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`.Likelihood.draw`."""
        f, g = np.split(f, 2, axis=-1)
        level, floor = (numbers.detach().double().cpu().numpy() for numbers in (self.log_level, self.floor))
        deviation = np.sqrt(np.exp(np.minimum(g + level, self.most)) + floor)
        standard = f + deviation * rng.standard_normal(f.shape)
        return standard * np.asarray(self.units.scale) + np.asarray(self.units.shift)

    def _parts(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means of f and of log variances, and variances of both."""
        m1, g = mean.split(self.n_targets, dim=-1)
        v1, v2 = variance.split(self.n_targets, dim=-1)
        return m1, g + self.log_level[..., None, None, :].to(g), v1, v2

    def _noise(self, log_variance: Tensor) -> Tensor:
        """Noise variances (..., P, K) within their limits."""
        log_variance = torch.minimum(log_variance, constant(self.most, log_variance)[:, None])
        return log_variance.exp() + self.floor[..., None, None, :, None].to(log_variance)


def _variance_nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and log weights (K,) of the trapezoidal rule for N(0, 1), which reach farther above than below.

    Their weights fall as the density does. Those of Gauss-Hermite quadrature are too far apart for targets far out.
    """
    nodes = torch.linspace(*VARIANCE_REACH, N_VARIANCES, dtype=like.dtype, device=like.device)
    return nodes, (-0.5 * nodes.square()).log_softmax(0)
