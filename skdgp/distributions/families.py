"""Densities of counts and positive numbers given the logarithm f of their mean, and averages over f ~ N(m, v).

Both predictive distributions and the likelihoods that models learn with take them from here. All functions are
elementwise, and have gradients. Densities are relative to that of the most likely f, so that large terms do not cancel.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: An integrand counts as zero where its logarithm is this much below the maximum.
AVERAGE_DROP = 36.0

#: Number of steps towards the largest value of an integrand.
MODE_STEPS = 16

#: Stands for a count of zero where nodes are placed.
NO_COUNT = 0.5

#: Stands for it in the probability of zero, which is a limit.
NEARLY_ZERO = 1e-30

#: From this number on Stirling's series has an error of less than 1e-15.
_LARGE = 64.0

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Family:
    """A distribution of y with the mean exp(f) and the dispersion d.

    Parameters
    ----------
    log_density : callable
        log p(y | f) of (y, f, d).
    derivatives : callable
        Its first derivative by f, and minus the second one. The third is at most as large as the second.
    falls : callable
        Distances below and above f at which log p has fallen by q times its curvature at f, besides what its slope at f
        explains. They may be larger, but not smaller.
    """

    log_density: Callable[[Tensor, Tensor, Tensor], Tensor]
    derivatives: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    falls: Callable[[Tensor], tuple[Tensor, Tensor]]


def log_average(
    family: Family, y: Tensor, m: Tensor, v: Tensor, d: Tensor, n_nodes: int, n_steps: int = MODE_STEPS
) -> Tensor:
    """log ∫ p(y | f) N(f | m, v) df; see :func:`log_integral`.

    The error is about 1e-10 with 64 nodes if v is at most 4, and 1e-6 with 32.
    """
    with torch.no_grad():
        peak, curvature = integrand_peak(family, y, m, v, d, n_steps)
        falls = family.falls(AVERAGE_DROP / curvature)

    def log_density(offset: Tensor) -> Tensor:
        return family.log_density(y[..., None], m[..., None] + offset, d[..., None])

    return log_integral(log_density, v, peak, falls, n_nodes)


def integrand_peak(
    family: Family, y: Tensor, m: Tensor, v: Tensor, d: Tensor, n_steps: int = MODE_STEPS
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Where p(y | f) N(f | m, v) is largest, as f − m, with its width there; and the curvature of log p there."""
    middle = _mode(family, y, m, v, d, n_steps)
    curvature = family.derivatives(y, m + middle, d)[1]
    return (middle, (curvature + 1 / v).rsqrt()), curvature


def log_integral(
    log_density: Callable[[Tensor], Tensor],
    v: Tensor,
    peak: tuple[Tensor, Tensor],
    falls: tuple[Tensor, ...],
    n_nodes: int,
) -> Tensor:
    """log ∫ exp(log_density(x)) N(x | 0, v) dx, by nodes that are placed where the integrand is.

    They are at equal steps of t where x = mode + width sinh t. Near the mode they are as close to each other as the
    integrand's width there demands, and farther away their distances grow. So they resolve tails that are much wider on
    one side than on the other. (Double exponential formulas: Takahasi and Mori, 1974.)

    Parameters
    ----------
    log_density : callable
        A function of nodes (..., K).
    v : Tensor of shape (...)
        Variances.
    peak : tuple of Tensors (...)
        The integrand's mode and its width there.
    falls : tuple of Tensors (...)
        Distances below and above the mode from which on the density does not matter. It may matter everywhere, too.
    n_nodes : int
        K.
    """
    middle, width = peak
    with torch.no_grad():
        reach = (2 * AVERAGE_DROP * v).sqrt()
        below, above = (torch.minimum(reach, far) for far in falls)
        start, end = -(below / width).asinh(), (above / width).asinh()
        step = (end - start) / n_nodes
        place = torch.arange(n_nodes, dtype=v.dtype, device=v.device) + 0.5
        t = start[..., None] + step[..., None] * place  # (..., K)
        offset = middle[..., None] + width[..., None] * t.sinh()  # f − m, whose digits do not depend on m
        log_weight, square = t.cosh().log(), offset.square()
    log_prior = torch.addcmul(log_weight, square, (-0.5 / v)[..., None])
    return torch.logsumexp(log_density(offset) + log_prior, dim=-1) + (step * width).log() - 0.5 * (v.log() + _LOG_2PI)


def _mode(family: Family, y: Tensor, m: Tensor, v: Tensor, d: Tensor, n_steps: int) -> Tensor:
    """Where p(y | f) N(f | m, v) is largest, as f − m, by damped Newton's method.

    Since the third derivative is at most as large as the second, the curvature grows by a factor of at most exp(δ)
    within a distance of δ. So a step of log(1 + δ) instead of δ never goes too far.
    """
    target = torch.where(y > 0, y, NO_COUNT).log()
    curvature = family.derivatives(y, target, d)[1]
    offset = curvature * (target - m) / (curvature + 1 / v)
    for _ in range(n_steps):
        slope, curvature = family.derivatives(y, m + offset, d)
        step = (slope - offset / v) / (curvature + 1 / v)
        offset = offset + step.sign() * step.abs().log1p()
    return offset


def stirling_error(x: Tensor) -> Tensor:
    """log Γ(x) − [(x − ½) log x − x + ½ log 2π] for x > 0, which is about 1/12x, in float64 without cancellation."""
    x = x.double()
    inverse = x.square().reciprocal()
    series = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse / 1680))) / x
    exact = torch.lgamma(x) - ((x - 0.5) * x.log() - x + 0.5 * _LOG_2PI)
    return torch.where(x > _LARGE, series, exact)


def _log_peak(n: Tensor) -> Tensor:
    """Logarithm of the Poisson probability of n > 0 if the mean is n, too."""
    return (-0.5 * (_LOG_2PI + n.double().log()) - stirling_error(n)).to(n)


def _poisson(y: Tensor, f: Tensor, d: Tensor) -> Tensor:
    n = torch.where(y > 0, y, 1.0)
    c = f - n.log()
    return torch.where(y > 0, _log_peak(n) - n * (c.expm1() - c), -f.exp())


def _poisson_derivatives(y: Tensor, f: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    rate = f.exp()
    return y - rate, rate


def _poisson_falls(q: Tensor) -> tuple[Tensor, Tensor]:
    # exp(−x) − 1 + x = q, and exp(x) − 1 − x = q
    below = (2 * q).sqrt() + q
    return below, below.log1p()


def _negative_binomial(y: Tensor, f: Tensor, d: Tensor) -> Tensor:
    n, r = y.clamp(min=NEARLY_ZERO), 1 / d
    c, log_odds, large = f - n.log(), (d * n).log(), d * n > 1
    # (r + y) log((1 + dμ)/(1 + dy)) − y c, in two forms: each cancels less where the other cancels more
    sign = torch.where(large, -1.0, 1.0).to(f)
    less = (r + n) * _log_mix(sign * c, sign * log_odds) + torch.where(large, r, -n) * c
    change = stirling_error(n.double() + 1 / d.double()) - stirling_error(1 / d.double())
    peak = _log_peak(n) - 0.5 * (d * n).log1p() + change.to(n)
    return torch.where(y > 0, peak, 0.0) - less


def _log_mix(x: Tensor, log_odds: Tensor) -> Tensor:
    """log(1 − p + p exp(x)) for p/(1 − p) = exp(log_odds), without overflow, and without cancellation near x = 0."""
    near = (torch.sigmoid(log_odds) * x.clamp(max=1.0).expm1()).log1p()
    far = nn.functional.softplus(x + log_odds) - nn.functional.softplus(log_odds)
    return torch.where(x > 1, far, near)


def _negative_binomial_derivatives(y: Tensor, f: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    share, total = torch.sigmoid(f + d.log()), y + 1 / d
    return y - total * share, total * share * (1 - share)


def _both_falls(q: Tensor) -> tuple[Tensor, Tensor]:
    below, _ = _poisson_falls(q)
    return below, below


def _gamma(y: Tensor, f: Tensor, d: Tensor) -> Tensor:
    a, z = 1 / d, y.log() - f  # z is the logarithm of y over its mean
    peak = 0.5 * (a.log() - _LOG_2PI) - stirling_error(1 / d.double()).to(d) - y.log()
    return peak - a * (z.expm1() - z)


def _gamma_derivatives(y: Tensor, f: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    ratio = (y.log() - f).exp()
    return (ratio - 1) / d, ratio / d


def _gamma_falls(q: Tensor) -> tuple[Tensor, Tensor]:
    below, above = _poisson_falls(q)
    return above, below  # as a function of −f it is like a Poisson distribution


#: Counts of variance μ, which have no dispersion; counts of variance μ + d μ²; positive numbers of variance d μ².
POISSON = Family(_poisson, _poisson_derivatives, _poisson_falls)
NEGATIVE_BINOMIAL = Family(_negative_binomial, _negative_binomial_derivatives, _both_falls)
GAMMA = Family(_gamma, _gamma_derivatives, _gamma_falls)
