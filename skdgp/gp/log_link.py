"""Likelihoods of counts and positive numbers, whose mean is the exponential of a function.

A target has the mean μ = exp(f + c). c is the logarithm of the mean of all targets, so that f starts at zero. The noise
is that of a Poisson, negative binomial or gamma distribution.

The *exposure* e of a count says how long it was taken, or over how large an area. If it is known, μ = e exp(f + c)/ē,
where ē is the mean exposure of all rows. Then exp(f + c)/ē is the rate, the mean count per unit of exposure. Encoded
targets have one more column, log e/ē.
"""

import math
from collections.abc import Mapping
from copy import copy
from typing import ClassVar, Self

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
from ..distributions.families import GAMMA, NEGATIVE_BINOMIAL, POISSON, Family, log_average
from .devices import constant
from .dispersion import Dispersed
from .likelihoods import Regression, first_row
from .special import mean_softplus

#: Initial dispersion.
INITIAL_DISPERSION = 0.2

#: Smallest dispersion.
LEAST_DISPERSION = 1e-6

#: Smallest dispersion that the noise of the targets' logarithms may set.
LEAST_START = 1e-3

#: How far the logarithm of a mean may be beyond those of the targets: predictions are within a factor of a million of
#: them.
BEYOND = math.log(1e6)

#: Largest variance of this logarithm: that of a factor exp(±10), which says that nothing is known.
MOST_VARIANCE = 100.0

#: Largest target, and the inverse of the smallest positive one.
LARGEST = 1e30

#: Number of nodes of log predictive densities. Predictions have more.
N_TRAINING_NODES = 24

#: Number of steps that place them. Predictions take more.
N_TRAINING_STEPS = 8


class LogLink(Regression):
    """Likelihood with E y = exp(f + c); see the module's docstring.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    base_kind = "means"
    positive = True
    shift: tuple[float, ...]

    #: ē: the exposure that counts as one; None if exposures are not known.
    usual_exposure: float | None = None

    #: Exposures (n, 1) of the rows to predict.
    exposure: np.ndarray | float = 1.0

    def __init__(self, n_outputs: int):
        super().__init__(n_outputs)
        self.limits = (n_outputs * (-math.inf,), n_outputs * (math.inf,))  # of the logarithms of means

    @property
    def has_base(self) -> bool:
        """Whether there is one target. With several, each would need weights of its own."""
        return self.n_outputs == 1

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Set c to the logarithm of the targets' mean; to 0 if they are all zero, or without ``normalize``.

        ValueError if targets are too large or too small for single precision.
        """
        y = self.checked(y).astype(np.float64)
        sizes = y[y > 0]
        if len(sizes) and not (1 / LARGEST <= sizes.min() and sizes.max() <= LARGEST):
            raise ValueError(
                f"Targets of this likelihood must lie between {1 / LARGEST:.0e} and {LARGEST:.0e}, since models learn "
                f"in single precision. y holds numbers from {sizes.min():.1e} to {sizes.max():.1e}: choose "
                "another unit."
            )
        mean = np.average(y, axis=0, weights=weight)
        self.shift = tuple(np.log(np.where(mean > 0, mean, 1.0)).tolist()) if normalize else y.shape[1] * (0.0,)
        with np.errstate(divide="ignore"):
            logs = np.log(y.min(axis=0, where=y > 0, initial=np.inf)), np.log(y.max(axis=0))
        known = np.where(np.isfinite(logs), logs, 0.0)  # of an output whose counts are all zero
        self.limits = (tuple((known[0] - BEYOND).tolist()), tuple((known[1] + BEYOND).tolist()))

    def learn_known(self, known: Mapping[str, np.ndarray], weight: np.ndarray, *, normalize: bool) -> None:
        """Learn ē, which is one without ``normalize``; see :meth:`.Likelihood.learn_known`."""
        super().learn_known(known, weight, normalize=normalize)
        if "exposure" not in known:
            return
        exposure = known["exposure"][:, 0]
        self.usual_exposure = float(np.average(exposure, weights=weight)) if normalize else 1.0
        lowest, highest = (math.log(end / self.usual_exposure) for end in (exposure.min(), exposure.max()))
        # These limits are those of means at the exposure ē.
        self.limits = tuple(low - highest for low in self.limits[0]), tuple(high - lowest for high in self.limits[1])

    def encode_known(self, known: Mapping[str, np.ndarray]) -> np.ndarray:
        """Logarithms of e/ē."""
        return np.log(known["exposure"] / self.usual_exposure)

    def at(self, known: Mapping[str, np.ndarray]) -> Self:
        """See :meth:`.Likelihood.at`. The exposure is one if it is not known."""
        if "exposure" not in known:
            return self
        there = copy(self)
        there.exposure = known["exposure"]
        return there

    def sizes(self, known: Mapping[str, np.ndarray]) -> np.ndarray:
        """The exposures; see :meth:`.Likelihood.sizes`."""
        return known.get("exposure", np.ones((1, 1)))

    def regressands(self, y: Tensor) -> Tensor:
        """Logarithms of y + ½ minus c, and minus log((e/ē + ½/m)/(1 + ½/m)) with m = exp c if exposures e are known.

        Up to a constant this is the logarithm of the rate's mean given a gamma prior of half a count. So a row that was
        observed for a short time does not seem to have a large rate because of the ½.
        """
        y, log_exposure = self._parts(y)
        logarithms = (y + 0.5).log() - constant(self.shift, y)
        if self.usual_exposure is None:
            return logarithms
        half = 0.5 * (-constant(self.shift, y)).exp()
        return logarithms - (log_exposure.exp() + half).log() + half.log1p()

    def _parts(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Targets (..., P), and log e/ē (..., 1), or zero if exposures are not known."""
        return y[..., : self.n_targets], y[..., self.n_targets :].sum(-1, keepdim=True)

    def _log_exposure(self, like: Tensor) -> Tensor:
        """log e/ē (n, 1) or () of the rows to predict; zero if exposures are not known."""
        return like.new_tensor(0.0 if self.usual_exposure is None else np.log(self.exposure / self.usual_exposure))

    def response(self, f: Tensor) -> Tensor:
        """Means of targets."""
        return (self._bounded(self._log_mean(f)) + self._log_exposure(f)).exp()

    def mean_response(self, mean: Tensor, variance: Tensor, log_weight: Tensor) -> Tensor:
        """See :meth:`.Likelihood.mean_response`."""
        m, v = self._moments(mean.double(), variance.double())  # the exponential may overflow in float32
        return (log_weight.double().exp()[..., None] * (m + 0.5 * v).exp()).sum(0)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p log ∫ p(y | f) N(f | m, v) df, as in predictions but with fewer nodes."""
        y, log_exposure = self._parts(y.unsqueeze(-3))
        m, v = self._log_mean(mean) + log_exposure, variance.clamp(min=1e-12)
        return log_average(self.conditional, y, m, v, self.spread(m), N_TRAINING_NODES, N_TRAINING_STEPS).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> Mixture:
        """See :meth:`.Likelihood.predictive`; with ``latent`` it is the distribution of the mean."""
        m, v = (values.cpu().numpy() for values in self._moments(mean.double(), variance.double()))
        weight = log_weight[:, 0].double().softmax(0).cpu().numpy()
        if latent:
            return TransformedDistribution(PredictiveDistribution(m, np.maximum(v, 1e-12), weight), "log")
        return self.family(m, v, np.broadcast_to(self.dispersion_of(), m.shape), weight)

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`.Likelihood.draw`."""
        m = np.clip(f + np.asarray(self.shift), *np.asarray(self.limits))[None]
        if self.usual_exposure is not None:
            m = m + np.log(self.exposure / self.usual_exposure)
        return self.family(m, np.zeros_like(m), np.broadcast_to(self.dispersion_of(), m.shape), [1.0]).rvs(None, rng)

    def joint(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`.Likelihood.joint`: log-normal, with means M = exp(m + ½ v) and covariances M Mᵀ (exp(K) − 1)."""
        variance = covariance.diagonal(dim1=-2, dim2=-1)  # (..., P, B)
        m, v = (values.mT for values in self._moments(mean.mT, variance.mT))
        less = (v / variance.clamp(min=torch.finfo(v.dtype).tiny)).clamp(max=1.0).sqrt()  # 1 but for limited variances
        M = (m + 0.5 * v).exp()
        K = covariance * less[..., :, None] * less[..., None, :]
        return M, M[..., :, None] * M[..., None, :] * K.expm1()

    # What each family defines.

    #: Class of predicted distributions, and the distribution of targets given f.
    family: ClassVar
    conditional: ClassVar[Family]

    def spread(self, like: Tensor) -> Tensor:
        """Dispersions d (..., 1, 1, P), which broadcast with function values ``like``."""
        raise NotImplementedError

    @torch.no_grad()
    def dispersion_of(self) -> np.ndarray:
        """Dispersions d (P,), as in :mod:`skdgp.distributions`."""
        return self.spread(torch.zeros(0, dtype=torch.float64, device="cpu")).double().cpu().numpy().reshape(-1)

    def start_dispersion(self, noise: float) -> None:
        """See :meth:`.Likelihood.start_dispersion`."""

    def derivatives(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`.Likelihood.derivatives`; outputs are the last dimension."""
        y, log_exposure = self._parts(y)
        return self.conditional.derivatives(y, self._log_mean(f) + log_exposure, self.spread(f))

    def _log_mean(self, f: Tensor) -> Tensor:
        return f + constant(self.shift, f)

    def _bounded(self, log_mean: Tensor) -> Tensor:
        return log_mean.clamp(*(constant(limit, log_mean) for limit in self.limits))

    def _moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the logarithms of means, which are limited where the targets say nothing.

        Without limits a function that goes on rising beyond the rows would give infinite means there.
        """
        log_mean = self._bounded(self._log_mean(mean)) + self._log_exposure(mean)
        return log_mean, variance.clamp(max=MOST_VARIANCE)


class _Dispersed(Dispersed, LogLink):
    """Likelihood with a dispersion d of targets, which is learnt."""

    def __init__(self, n_outputs: int):
        super().__init__(n_outputs)
        start = torch.full((n_outputs,), math.log(INITIAL_DISPERSION), device="cpu", dtype=torch.float32)
        self.log_dispersion = nn.Parameter(start)

    @property
    def dispersion(self) -> Tensor:
        """Dispersions d, (P,)."""
        return LEAST_DISPERSION + self.log_dispersion.exp()

    def spread(self, like: Tensor) -> Tensor:
        """See :meth:`LogLink.spread`."""
        return self.dispersion[..., None, None, :]

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
        row = first_row((y < 0) | (y != np.floor(y)))
        if row is not None:
            raise ValueError(
                f"Counts are non-negative integers, but y holds {y[row].tolist()} in row {row}: choose another "
                "likelihood, such as 'gamma' for positive numbers, or correct the row."
            )
        return y


class Poisson(_Counts):
    """Likelihood y ~ Poisson(μ)."""

    stackable = True
    takes = ("exposure",)
    conditional = POISSON

    def spread(self, like: Tensor) -> Tensor:
        """Zeros: there is no dispersion."""
        return like.new_zeros(1, 1, self.n_outputs)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p y m − exp(m + ½ v) − log y!."""
        exact, log_exposure = self._parts(y.double().unsqueeze(-3))  # large terms cancel
        m, v = self._log_mean(mean.double()) + log_exposure, variance.double()
        return (exact * m - (m + 0.5 * v).exp() - torch.lgamma(exact + 1)).sum(-1).to(mean)


class NegativeBinomial(_Dispersed, _Counts):
    """Likelihood y ~ Poisson(μ γ), γ ~ Gamma(1/d, 1/d): counts with a variance of μ + d μ², larger than Poisson's μ.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    stackable = True
    takes = ("exposure",)
    conditional = NEGATIVE_BINOMIAL

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p log Γ(y + r) − log Γ(r) − log y! + y l − (y + r) E log(1 + exp l), r = 1/d, l = log d + m + √v z."""
        y, log_exposure = self._parts(y.double().unsqueeze(-3))  # large terms cancel
        v, d = variance.double(), self.spread(mean).double()
        place, r = self._log_mean(mean.double()) + log_exposure + d.log(), 1 / d
        level = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        return (level + y * place - (y + r) * mean_softplus(place, v)).sum(-1).to(mean)


class Gamma(_Dispersed):
    """Likelihood y ~ Gamma(1/d, 1/(d μ)): positive and skewed, with a standard deviation of √d times the mean.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    stackable = True

    family = GammaDistribution
    conditional = GAMMA

    def checked(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P); ValueError that names a row with numbers that are not positive."""
        y = super().checked(y)
        row = first_row(y <= 0)
        if row is not None:
            raise ValueError(
                f"likelihood='gamma' is for positive targets, but y holds {y[row].tolist()} in row {row}: choose "
                "another likelihood, or add what is missing to all rows."
            )
        return y

    def regressands(self, y: Tensor) -> Tensor:
        """Logarithms of y, minus c."""
        return y.log() - constant(self.shift, y)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p a log a − log Γ(a) + (a − 1) log y − a (m + y exp(−m + ½ v)), a = 1/d."""
        m, y, a = self._log_mean(mean), y.unsqueeze(-3), 1 / self.dispersion[..., None, None, :]
        change = m - y.log()
        return (_gamma_level(y, a) - a * (change + (0.5 * variance - change).expm1())).sum(-1)


def _gamma_level(y: Tensor, a: Tensor) -> Tensor:
    """The gamma log density if y is the mean. Terms as large as a cancel, and so are computed in float64."""
    b = a.double()
    return (b * b.log() - torch.lgamma(b) - b).to(a) - y.log()
