"""Likelihoods of counts and positive numbers, whose mean is the exponential of a function.

A target has the mean μ = exp(f + c). c is the logarithm of the mean of all targets, so that f starts at zero. The noise
is that of a Poisson, negative binomial or gamma distribution.
"""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..distributions import (
    CountDistribution,
    GammaDistribution,
    Mixture,
    PredictiveDistribution,
    TransformedDistribution,
)
from .likelihoods import Regression
from .special import N_NODES, gauss_hermite

#: Initial dispersion, and smallest dispersion.
INITIAL_DISPERSION, LEAST_DISPERSION = 0.2, 1e-6

#: Smallest dispersion that the noise of the targets' logarithms may set.
LEAST_START = 1e-3

#: How far the logarithm of a mean may be beyond those of the targets: predictions are within a factor of a million of
#: them. Its variance is limited, too, to that of a factor exp(±10), which says that nothing is known.
BEYOND, MOST_VARIANCE = math.log(1e6), 100.0

#: Number of steps of Newton's method towards the most likely function value given its target, and the longest step.
NEWTON_STEPS, LONGEST = 12, 2.0


class LogLink(Regression):
    """Likelihood with E y = exp(f + c); see the module's docstring.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    shift: tuple[float, ...]

    def __init__(self, n_outputs: int):
        super().__init__(n_outputs)
        self.limits = (n_outputs * (-math.inf,), n_outputs * (math.inf,))  # of the logarithms of means

    @property
    def has_base(self) -> bool:
        """Whether there is one target. With several, each would need weights of its own."""
        return self.n_outputs == 1

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Set c to the logarithm of the targets' mean; to 0 if they are all zero, or without ``normalize``."""
        y = self.checked(y).astype(np.float64)
        mean = np.average(y, axis=0, weights=weight)
        self.shift = tuple(np.log(np.where(mean > 0, mean, 1.0)).tolist()) if normalize else y.shape[1] * (0.0,)
        with np.errstate(divide="ignore"):
            logs = np.log(y.min(axis=0, where=y > 0, initial=np.inf)), np.log(y.max(axis=0))
        known = np.where(np.isfinite(logs), logs, 0.0)  # of an output whose counts are all zero
        self.limits = (tuple((known[0] - BEYOND).tolist()), tuple((known[1] + BEYOND).tolist()))

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Targets as they are."""
        return self.checked(y)

    def regressands(self, y: Tensor) -> Tensor:
        """Logarithms of y + ½, minus c."""
        return (y + 0.5).log() - y.new_tensor(self.shift)

    def response(self, f: Tensor) -> Tensor:
        """Means of targets."""
        return self._bounded(self._log_mean(f)).exp()

    def mean_response(self, mean: Tensor, variance: Tensor, log_weight: Tensor) -> Tensor:
        """See :meth:`.Regression.mean_response`."""
        m, v = self._moments(mean.double(), variance.double())  # the exponential may overflow in float32
        return (log_weight.double().exp()[..., None] * (m + 0.5 * v).exp()).sum(0)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p log ∫ p(y | f) N(f | m, v) df, by Gauss-Hermite quadrature around the largest value of the integrand."""
        m, v, y = self._log_mean(mean), variance.clamp(min=1e-12), y.unsqueeze(-3)
        with torch.no_grad():
            eta = (m / v + y * (y + 0.5).log()) / (1 / v + y)
            for _ in range(NEWTON_STEPS):
                slope, curvature = self.derivatives(y, eta)
                step = (slope - (eta - m) / v) / (curvature + 1 / v)
                eta = eta + step.clamp(-LONGEST, LONGEST)
            _, curvature = self.derivatives(y, eta)
            s = (curvature + 1 / v).rsqrt()
            nodes, weights = gauss_hermite(N_NODES, mean)
            there = eta[..., None] + s[..., None] * nodes  # (..., S, B, P, K)
            log_weight = weights.log() + 0.5 * nodes.square() + s.log()[..., None]
        prior = -0.5 * ((there - m[..., None]).square() / v[..., None] + v.log()[..., None])
        return torch.logsumexp(self.log_prob(y[..., None], there) + prior + log_weight, dim=-1).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> Mixture:
        """See :meth:`.Regression.predictive`; with ``latent`` it is the distribution of the mean."""
        m, v = (each.cpu().numpy() for each in self._moments(mean.double(), variance.double()))
        weight = log_weight[:, 0].double().softmax(0).cpu().numpy()
        if latent:
            return TransformedDistribution(PredictiveDistribution(m, np.maximum(v, 1e-12), weight), "log")
        return self.family(m, v, np.broadcast_to(self.dispersion_of(), m.shape), weight)

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`.Regression.draw`."""
        m = np.clip(f + np.asarray(self.shift), *np.asarray(self.limits))[None]
        return self.family(m, np.zeros_like(m), np.broadcast_to(self.dispersion_of(), m.shape), [1.0]).rvs(None, rng)

    def joint(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`.Regression.joint`: log-normal, with means M = exp(m + ½ v) and covariances M Mᵀ (exp(K) − 1)."""
        variance = covariance.diagonal(dim1=-2, dim2=-1)  # (..., P, B)
        m, v = (each.mT for each in self._moments(mean.mT, variance.mT))
        less = (v / variance.clamp(min=torch.finfo(v.dtype).tiny)).clamp(max=1.0).sqrt()  # 1 but for limited variances
        M = (m + 0.5 * v).exp()
        K = covariance * less[..., :, None] * less[..., None, :]
        return M, M[..., :, None] * M[..., None, :] * K.expm1()

    # What each family defines.

    #: Class of predicted distributions.
    family: ClassVar

    def dispersion_of(self) -> np.ndarray:
        """Dispersions (P,), as in :mod:`skdgp.distributions`."""
        raise NotImplementedError

    def start_dispersion(self, noise: float) -> None:
        """Set the dispersion from the noise variance of the targets' logarithms."""

    def log_prob(self, y: Tensor, log_mean: Tensor) -> Tensor:
        """log p(y | μ), elementwise; the dimension of outputs is the last but one."""
        raise NotImplementedError

    def derivatives(self, y: Tensor, log_mean: Tensor) -> tuple[Tensor, Tensor]:
        """First derivative of log p(y | μ) by log μ, and minus the second one; outputs are the last dimension."""
        raise NotImplementedError

    def _log_mean(self, f: Tensor) -> Tensor:
        return f + f.new_tensor(self.shift)

    def _bounded(self, log_mean: Tensor) -> Tensor:
        return log_mean.clamp(*(log_mean.new_tensor(limit) for limit in self.limits))

    def _moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the logarithms of means, which are limited where the targets say nothing.

        Without limits a function that goes on rising beyond the rows would give infinite means there.
        """
        return self._bounded(self._log_mean(mean)), variance.clamp(max=MOST_VARIANCE)


class _Dispersed(LogLink):
    """Likelihood with a dispersion d of targets, which is learnt."""

    def __init__(self, n_outputs: int):
        super().__init__(n_outputs)
        start = torch.full((n_outputs,), math.log(INITIAL_DISPERSION), device="cpu", dtype=torch.float32)
        self.log_dispersion = nn.Parameter(start)

    @property
    def dispersion(self) -> Tensor:
        """Dispersions d, (P,)."""
        return LEAST_DISPERSION + self.log_dispersion.exp()

    def calibrated(self) -> list[nn.Parameter]:
        """The parameter log d."""
        return [self.log_dispersion]

    def dispersion_of(self) -> np.ndarray:
        """Dispersions d, (P,)."""
        return self.dispersion.detach().double().cpu().numpy()

    @torch.no_grad()
    def start_dispersion(self, noise: float) -> None:
        """See :meth:`LogLink.start_dispersion`."""
        self.log_dispersion.fill_(math.log(max(noise, LEAST_START)))


class _Counts(LogLink):
    """Likelihood of counts 0, 1, 2, ..."""

    family = CountDistribution

    def checked(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P); ValueError that names a row with anything but non-negative integers."""
        y = super().checked(y)
        row = _first((y < 0) | (y != np.floor(y)))
        if row is not None:
            raise ValueError(
                f"Counts are non-negative integers, but y holds {y[row].tolist()} in row {row}: choose another "
                "likelihood, such as 'gamma' for positive numbers, or correct the row."
            )
        return y


class Poisson(_Counts):
    """Likelihood y ~ Poisson(μ)."""

    stackable = True

    def dispersion_of(self) -> np.ndarray:
        """Zeros (P,): there is no dispersion."""
        return np.zeros(self.n_outputs)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p y m − exp(m + ½ v) − log y!."""
        m, v, exact = self._log_mean(mean.double()), variance.double(), y.double().unsqueeze(-3)  # large terms cancel
        return (exact * m - (m + 0.5 * v).exp() - torch.lgamma(exact + 1)).sum(-1).to(mean)

    def log_prob(self, y: Tensor, log_mean: Tensor) -> Tensor:
        """See :meth:`LogLink.log_prob`."""
        return y * log_mean - log_mean.exp() - torch.lgamma(y + 1)

    def derivatives(self, y: Tensor, log_mean: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LogLink.derivatives`."""
        mu = log_mean.exp()
        return y - mu, mu


class NegativeBinomial(_Dispersed, _Counts):
    """Likelihood y ~ Poisson(μ γ), γ ~ Gamma(1/d, 1/d): counts with a variance of μ + d μ², larger than Poisson's μ.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    stackable = True

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`.Likelihood.expected_log_prob`. One term needs Gauss-Hermite quadrature."""
        m, y, d = self._log_mean(mean), y.unsqueeze(-3), self.dispersion[..., None, None, :]
        nodes, weights = gauss_hermite(N_NODES, mean)
        place = (m + d.log())[..., None] + variance.sqrt()[..., None] * nodes
        bend = (nn.functional.softplus(place) * weights).sum(-1)
        return (_level(y, d) + y * (m + d.log()) - (y + 1 / d) * bend).sum(-1)

    def log_prob(self, y: Tensor, log_mean: Tensor) -> Tensor:
        """See :meth:`LogLink.log_prob`."""
        d = self.dispersion[..., None, None, :, None]
        place = log_mean + d.log()
        return _level(y, d) + y * place - (y + 1 / d) * nn.functional.softplus(place)

    def derivatives(self, y: Tensor, log_mean: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LogLink.derivatives`."""
        d = self.dispersion[..., None, None, :]
        share = torch.sigmoid(log_mean + d.log())
        return y - (y + 1 / d) * share, (y + 1 / d) * share * (1 - share)


class Gamma(_Dispersed):
    """Likelihood y ~ Gamma(1/d, 1/(d μ)): positive and skewed, with a standard deviation of √d times the mean.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    stackable = True

    family = GammaDistribution

    def checked(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P); ValueError that names a row with numbers that are not positive."""
        y = super().checked(y)
        row = _first(y <= 0)
        if row is not None:
            raise ValueError(
                f"likelihood='gamma' is for positive targets, but y holds {y[row].tolist()} in row {row}: choose "
                "another likelihood, or add what is missing to all rows."
            )
        return y

    def regressands(self, y: Tensor) -> Tensor:
        """Logarithms of y, minus c."""
        return y.log() - y.new_tensor(self.shift)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p a log a − log Γ(a) + (a − 1) log y − a (m + y exp(−m + ½ v)), a = 1/d."""
        m, y, a = self._log_mean(mean), y.unsqueeze(-3), 1 / self.dispersion[..., None, None, :]
        change = m - y.log()
        return (_gamma_level(y, a) - a * (change + (0.5 * variance - change).expm1())).sum(-1)

    def log_prob(self, y: Tensor, log_mean: Tensor) -> Tensor:
        """See :meth:`LogLink.log_prob`."""
        a = 1 / self.dispersion[..., None, None, :, None]
        change = log_mean - y.log()
        return _gamma_level(y, a) - a * (change + (-change).expm1())

    def derivatives(self, y: Tensor, log_mean: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LogLink.derivatives`."""
        a = 1 / self.dispersion[..., None, None, :]
        ratio = y * (-log_mean).exp()
        return a * (ratio - 1), a * ratio


def _first(wrong: np.ndarray) -> int | None:
    """Number of the first row with a True in ``wrong`` (N, P); None if there is none."""
    rows = np.flatnonzero(wrong.any(axis=1))
    return int(rows[0]) if len(rows) else None


def _level(y: Tensor, d: Tensor) -> Tensor:
    """Terms of the negative binomial log probability that do not depend on the mean.

    They are computed in float64. In float32 the difference of the first two has an error of one if d is 1e-6.
    """
    exact, r = y.double(), 1 / d.double()
    return (torch.lgamma(exact + r) - torch.lgamma(r) - torch.lgamma(exact + 1)).to(d)


def _gamma_level(y: Tensor, a: Tensor) -> Tensor:
    """The gamma log density if y is the mean. Terms as large as a cancel, and so are computed in float64."""
    b = a.double()
    return (b * b.log() - torch.lgamma(b) - b).to(a) - y.log()
