"""Functions of the normal distribution that torch lacks or computes imprecisely, and nodes for quadrature."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .autograd import Elementwise
from .linalg import being_recorded

#: Nodes of Gauss-Hermite quadrature for expectations that have no closed form.
N_NODES = 20

LOG_2PI = math.log(2 * math.pi)

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


class _LogNdtr(Elementwise):
    """log Φ(x) and its derivative φ/Φ, both from one t = erfcx(|x|/√2) = 2 exp(x²/2) Φ(−|x|).

    For x < 0: log Φ = −x²/2 + log(t/2) and φ/Φ = √(2/π)/t, without anything that underflows.
    For x ≥ 0: log Φ = log(1 − q) and φ/Φ = φ/(1 − q), where q = exp(−x²/2) t/2.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.special.erfcx(x.abs() * _SQRT_HALF)
        exponent = -0.5 * x.square()
        density = exponent.exp()  # φ √(2π)
        q = 0.5 * density * t
        left = x < 0
        ratio = torch.where(left, _SQRT_2_OVER_PI / t, 0.5 * _SQRT_2_OVER_PI * density / (1.0 - q))
        return torch.where(left, exponent + torch.log(0.5 * t), torch.log1p(-q)), ratio


def log_ndtr(x: Tensor) -> Tensor:
    """Logarithm of the standard normal distribution function, elementwise.

    Value and gradient are accurate and finite wherever x² is finite. ``torch.special.log_ndtr`` loses its
    gradient for very negative x in float32.
    """
    return _LogNdtr.apply(x)[0]


#: Intervals at most so wide, and whose middle times width is at most twice this number, count as narrow.
_NARROW = 1.0

#: Nodes of Gauss-Legendre quadrature over narrow intervals, where they are precise to twelve digits.
_NARROW_NODES = 8

#: A finite number that stands for infinity as a limit of :func:`log_ndtr_between`.
FAR_AWAY = 1e8


def log_ndtr_between(low: Tensor, high: Tensor) -> Tensor:
    """log(Φ(high) − Φ(low)) for finite low < high, elementwise; ±``FAR_AWAY`` stand for infinite limits.

    The interval and its mirror image have the same probability, so that the interval can be brought to the left side.
    There it is Φ(high) (1 − exp(log Φ(low) − log Φ(high))). In narrow intervals this difference would lose digits. With
    the middle c and the width w, the probability is φ(c) ∫ exp(−c t − t²/2) dt from −w/2 to w/2, of which
    quadrature loses none.
    """
    right = low + high > 0
    a, b = torch.where(right, -high, low), torch.where(right, -low, high)
    width, middle = (b - a).clamp(min=torch.finfo(low.dtype).eps), 0.5 * (a + b)
    narrow = (width < _NARROW) & (-middle * width < 2 * _NARROW)
    b_wide, a_wide = torch.where(narrow, 1.0, b), torch.where(narrow, -1.0, a)  # finite gradients where not chosen
    log_b = log_ndtr(b_wide)
    wide = log_b + torch.log1p(-(log_ndtr(a_wide) - log_b).exp())
    c, w = torch.where(narrow, middle, 0.0), torch.where(narrow, width, 1.0)
    places, weights = _gauss_legendre(_NARROW_NODES, low.dtype, low.device)
    t = 0.5 * w[..., None] * places
    integral = (-t * (c[..., None] + 0.5 * t)).exp() @ weights  # over w/2
    return torch.where(narrow, -0.5 * (c.square() + LOG_2PI) + (0.5 * w).log() + integral.log(), wide)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _gauss_legendre(n_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return torch.as_tensor(nodes, dtype=dtype, device=device), torch.as_tensor(weights, dtype=dtype, device=device)


def gauss_hermite(n_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of E f(x) ≈ Σ_k w_k f(x_k) for x ~ N(0, 1), each (n_nodes,), typed as ``like``."""
    return _gauss_hermite(n_nodes, like.dtype, like.device)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
def _gauss_hermite(n_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return (
        torch.as_tensor(nodes, dtype=dtype, device=device),
        torch.as_tensor(weights / weights.sum(), dtype=dtype, device=device),
    )


#: Largest distance between nodes of :func:`graded`, in units of asinh.
_STEP = 0.12

#: Largest number of nodes of :func:`graded`. From −3 on they reach 2e7. If the upper limit is farther away, the nodes
#: are farther apart: 0.15 for a limit of 2e9.
MOST_NODES = 160


def graded(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights, (..., n_nodes), of ∫ f(d) dd between limits (...), at equal steps of t where d = sinh(t).

    The nodes are √(1 + d²) steps apart. So they resolve changes of f over a width of one near zero, and elsewhere over
    a width like the distance from zero, over many powers of ten. f must be nearly zero at both limits. Then the error
    falls exponentially with the number of nodes, as it does for double exponential formulas.

    Each pair of limits uses as many nodes as it would use alone. Further nodes, which other pairs need, have no weight.
    """
    start, end = low.asinh()[..., None], high.asinh()[..., None]
    numbers = ((end - start) / _STEP).ceil().clamp(min=1, max=MOST_NODES)
    # If a limit is NaN, min takes the first of the two.
    n_nodes = MOST_NODES if being_recorded(low) else int(min(MOST_NODES, numbers.max().item()))
    place = torch.arange(n_nodes, dtype=low.dtype, device=low.device)
    step = (end - start) / numbers
    t = torch.minimum(start + step * (place + 0.5), end)
    return t.sinh(), t.cosh() * step * (place < numbers)


#: Number of Gaussians whose mixture stands for a logistic distribution. The error is about 1e-12 then.
_N_DEVIATIONS = 24

#: Smallest and largest logarithm of their deviations. Others have weights that are nearly zero.
_DEVIATIONS = (-1.3, 2.2)

#: Terms of Kolmogorov's series, of which so many matter for the smallest deviation.
_KOLMOGOROV_TERMS = 40


class _MeanSoftplus(Elementwise):
    """E log(1 + exp x) and its derivatives by the mean and the variance of x; see :func:`mean_softplus`.

    The mean of the positive part of a Gaussian N(μ, s²) is s φ(μ/s) + μ Φ(μ/s). Its derivatives by μ and s² are Φ(μ/s)
    and φ(μ/s)/2s.
    """

    @staticmethod
    def forward(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        square, weight = _logistic_mixture(mean.device)
        rate = (variance[..., None] + square).rsqrt()  # (..., K)
        z = mean[..., None] * rate
        density = (-0.5 * (z.square() + LOG_2PI)).exp()
        by_mean = torch.special.ndtr(z) @ weight
        by_variance = 0.5 * (density * rate) @ weight
        return (density / rate) @ weight + mean * by_mean, by_mean, by_variance


def mean_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """E log(1 + exp x) for x ~ N(mean, variance) in float64, with an error of about 1e-12 whatever the variance is.

    log(1 + exp x) is E max(x + e, 0) for e with a logistic distribution. e is a Gaussian whose deviation is twice a
    random number with Kolmogorov's distribution (Andrews and Mallows, "Scale Mixtures of Normal Distributions", 1974).
    So x + e is a mixture of Gaussians, too, and the positive part of a Gaussian has a mean in closed form.
    """
    return _MeanSoftplus.apply(*torch.broadcast_tensors(mean, variance))[0]


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
def _logistic_mixture(device: torch.device) -> tuple[Tensor, Tensor]:
    """Variances and weights of Gaussians, by the trapezoidal rule for the logarithm of their deviations."""
    deviation = np.exp(np.linspace(*_DEVIATIONS, _N_DEVIATIONS))
    k = np.arange(1, _KOLMOGOROV_TERMS)[:, None]
    # Kolmogorov's density at deviation/2, times the deviation
    weight = ((-1.0) ** (k + 1) * k**2 * np.exp(-0.5 * (k * deviation) ** 2)).sum(axis=0) * deviation**2
    return torch.as_tensor(deviation**2, device=device), torch.as_tensor(weight / weight.sum(), device=device)
