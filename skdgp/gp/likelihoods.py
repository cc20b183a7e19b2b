"""Likelihoods p(y | f) of targets, given the function values of the last layer.

A likelihood has everything that depends on it, so that no other part of the package needs to know which one it is. It
checks and scales targets, and sets initial values. It has the expectations that training maximises, and the parameters
that held-out rows correct. From the distribution of function values it computes that of observations, in the user's
units.
"""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..distributions import Mixture, PredictiveDistribution
from .devices import constant
from .special import LOG_2PI
from .units import Units

#: Deviation of the logarithm of the noise variance from that of the base, and degrees of freedom of its distribution.
#: All rows tell the noise of the base, and a few held-out ones often look as if there were none. But where members
#: explain what the base takes for noise, the variance is smaller by any factor, so that the tails are heavy.
NOISE_DEVIATION, NOISE_FREEDOM = 0.3, 2.0

#: Initial excess of the noise variance over its floor, in units of the targets' variance.
INITIAL_EXCESS = 0.05

#: Smallest noise variance in the same units.
NOISE_FLOOR = 1e-6

#: The same for models that were not trained in float32 and predict in float64.
LEAST_NOISE = 1e-12

#: The same if the noise is given.
LEAST_GIVEN = 1e-10

#: Logarithm of the excess of noise that is given, and not learnt, over its floor: there is none.
NO_EXCESS = math.log(1e-30)

#: Most that missing cells add to the noise of a row, over that of complete rows. Each row has a say in σ², however
#: little it tells of the function: variances over cells that are far too large would make σ² far too small. Where they
#: are right, the limit makes σ² too large. So a row of which they would add a larger ρ counts only MOST_ADDED/ρ times.
MOST_ADDED = 10.0

#: Noise that starts at a bound, where it could not move, starts at this share of the bound away from it instead.
NEAREST_BOUND = 1e-3


class Likelihood(nn.Module):
    """Link between the function values of the last layer and the targets; see the module's docstring.

    Parameters
    ----------
    n_outputs : int
        P, function values per row.
    """

    # What other parts of the package ask, instead of which likelihood it is.

    #: Whether all its function values have the same meaning, so that they may share a kernel.
    alike: ClassVar[bool] = True

    #: Which base suits it: one of "numbers", "grades", "tails", "means", "varying", "censored" and
    #: "classes"; see :func:`.learn_foundation`.
    base_kind: ClassVar[str] = "numbers"

    #: Whether the nearest rows may correct predictions. That needs noise which is the same everywhere, and no outliers.
    kriged: bool = False

    #: Whether models see standardised targets, in ``units``.
    standardised: ClassVar[bool] = False

    #: Whether rows decide if some targets have far more noise than others.
    mixes: bool = False

    #: Whether targets are a function value plus noise that is the same everywhere, with a ``noise_variance``.
    additive: ClassVar[bool] = False

    #: Whether the best posterior of a model of one layer has a closed form.
    conjugate: ClassVar[bool] = False

    #: Whether all targets are positive, or at least none is negative. Then they need no ``target_transform``.
    positive: ClassVar[bool] = False

    #: The ``target_transform`` that belongs to it, if it is about transformed targets.
    transform: ClassVar[str | None] = None

    #: Variance of the noise of a row to predict, over that of the rows in least squares; see :meth:`precise_weights`.
    plain_ratio: float = 1.0

    #: Whether observations without noise are linear in function values.
    linear: ClassVar[bool] = False

    #: What may be known of a row besides its target, by the names of the arguments of ``fit``.
    takes: ClassVar[tuple[str, ...]] = ()

    #: What of it is known of the rows of this model.
    known: tuple[str, ...] = ()

    #: Whether all noise is given, so that nothing of it is learnt; and whether it differs from row to row then.
    fixed: bool = False
    noise_differs: bool = False

    #: Units of targets: those that the user has chosen, unless a likelihood learns others.
    units: Units = Units([0.0], [1.0])

    def __init__(self, n_outputs: int):
        super().__init__()
        self.n_outputs = n_outputs

    @property
    def n_targets(self) -> int:
        """P, number of targets."""
        return self.n_outputs

    @property
    def rows_differ(self) -> bool:
        """Whether rows differ in the variance of their noise, and encoded targets say by how much."""
        return False

    @property
    def has_base(self) -> bool:
        """Whether a base can be fitted for it by least squares; see :meth:`regressands`."""
        return True

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the largest tensor that prediction makes, for each row."""
        return n_samples * self.n_outputs

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Decide how targets are scaled, from ``y`` (N, P) with weights (N,).

        ValueError if the likelihood does not allow these targets.
        """

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P) as the model sees them."""
        return y

    # What is known of rows. Encoded targets (N, W) contain it: its columns come after those of the P targets. So it is
    # wherever targets are, and only the likelihood knows of it.

    def learn_known(self, known: Mapping[str, np.ndarray], weight: np.ndarray, *, normalize: bool) -> None:
        """Learn what is known of rows with weights (N,), as arrays (N, K) by name, after :meth:`learn_units`."""
        self.known = tuple(sorted(known))

    def encode_known(self, known: Mapping[str, np.ndarray]) -> np.ndarray:
        """What is known of rows as columns (N, W - P)."""
        raise NotImplementedError

    def encode_rows(self, y: np.ndarray, known: Mapping[str, np.ndarray]) -> np.ndarray:
        """Targets (N, P) as the model sees them, with what is known of their rows (N, W)."""
        return np.hstack([self.encode(y), self.encode_known(known)]) if known else self.encode(y)

    def at(self, known: Mapping[str, np.ndarray]) -> Self:
        """The likelihood as it predicts some rows of which this is known; it shares its parameters with this one."""
        return self

    def sizes(self, known: Mapping[str, np.ndarray]) -> np.ndarray:
        """Factors (n, 1) by which what is known of rows multiplies observations without noise."""
        return np.ones((1, 1))

    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set initial values from encoded targets (N, P) with weights (N,)."""

    def regressands(self, y: Tensor) -> Tensor:
        """Targets of least squares (N, D), one for each of the first function values, from encoded targets (N, P)."""
        return y

    def precise_weights(self, y: Tensor, weight: Tensor) -> Tensor:
        """Weights (N,) of rows in least squares, of which the noise is the same everywhere; see :meth:`regressands`."""
        return weight

    def log_precise(self, y: Tensor, weight: Tensor) -> float:
        """What log p(y | f), summed over rows, has beside the sum with these weights and the same noise everywhere."""
        return 0.0

    def calibrated(self) -> list[nn.Parameter]:
        """Logarithms to which held-out rows add a single number, which all members of an ensemble share."""
        return []

    def refine(self) -> None:
        """Remove limits that only float32 needs, for models that were not trained in steps."""

    def for_blend(self) -> "Likelihood":
        """The likelihood of a blend with a base, which held-out rows calibrate. This one may change in place."""
        self.refine()
        return self

    def log_jacobian(self, y: Tensor, weight: Tensor) -> float:
        """Log density of targets in the user's units minus that of encoded ones y (N, P), summed with weights."""
        return 0.0

    def noise_variance(self) -> np.ndarray:
        """Variances of the noise (P,), in the square of the user's units, if it is ``additive``."""
        raise NotImplementedError

    def response(self, f: Tensor) -> Tensor:
        """Function values (S, B, P) for the user, (S, B, K): in the units of targets, or as probabilities."""
        raise NotImplementedError

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f) over f ~ N(mean, variance), summed over outputs.

        Parameters
        ----------
        y : Tensor of shape (B, P)
            Encoded targets.
        mean, variance : Tensors of shape (S, B, P)

        Returns
        -------
        Tensor of shape (S, B)
        """
        raise NotImplementedError

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y | f) N(f | mean, variance) df, (S, B), summed over outputs."""
        raise NotImplementedError

    # Only for numbers.

    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> Mixture:
        """Distribution of observations, or with ``latent`` that of observations without noise, in the user's units.

        Parameters
        ----------
        mean, variance : Tensors of shape (S, B, n_outputs)
        log_weight : Tensor of shape (S, 1)
            Log weights of the S Gaussians.

        Returns
        -------
        Mixture
            Distribution of shape (B, P).
        """
        raise NotImplementedError

    def mean_response(self, mean: Tensor, variance: Tensor, log_weight: Tensor) -> Tensor:
        """Means (B, P) of observations in the user's units; arguments as in :meth:`predictive`."""
        raise NotImplementedError

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """Random observations (B, P) in the user's units, given function values (B, n_outputs)."""
        raise NotImplementedError

    def joint(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Means (..., P, B) and covariances (..., P, B, B) of B rows' observations without noise, in the user's units.

        Parameters
        ----------
        mean : Tensor of shape (..., n_outputs, B)
            Means of function values, which are jointly Gaussian.
        covariance : Tensor of shape (..., n_outputs, B, B)
            Covariances of function values.
        """
        raise NotImplementedError

    def fix_level(self, level: Tensor) -> None:
        """Set the mean (P,) of the logarithms of variances, and do not learn it, if the base is one of "varying".

        If it is one of "censored", start from this logarithm, and stay near it when held-out rows calibrate.
        """
        raise NotImplementedError

    def tails(self) -> list[nn.Parameter]:
        """Logarithms that say how heavy the noise's tails are. The rows that judge a blend choose them, too."""
        return []

    def cost_of_noise(self) -> float | Tensor:
        """Negative log prior of the parameters that held-out rows calibrate. Most have none, so that it is zero."""
        return 0.0

    def start_dispersion(self, noise: float) -> None:
        """Set the dispersion from the noise variance of regressands, if the base is one of "means"."""
        raise NotImplementedError

    def derivatives(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """First derivative of log p(y | f) by f, and minus the second one, if the base is one of "means"."""
        raise NotImplementedError

    def loadings(self, n_functions: int) -> Tensor:
        """Initial weights (P, n_functions) of functions that outputs share, if they may do so."""
        raise NotImplementedError


def cost_of_surprise(surprise: Tensor) -> Tensor:
    """Negative log prior () of logarithms of noises, less the expected ones; without constants."""
    squares = (surprise / NOISE_DEVIATION).square()
    return 0.5 * (NOISE_FREEDOM + 1) * torch.log1p(squares / NOISE_FREEDOM).sum()


class Regression(Likelihood):
    """Likelihood of numbers, ``n_targets`` of them for each row."""

    def checked(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P); ValueError if the likelihood does not allow them."""
        if y.shape[1] != self.n_targets:
            raise ValueError(f"y has {y.shape[1]} outputs, but the model was given {self.n_targets}: match them.")
        return y

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Choose units that standardise targets, if it is ``standardised``; ValueError if these overflow."""
        if not self.standardised:
            return
        self.units = self.units_of(y, weight, normalize=normalize)
        if self.units.first_overflow(self.units.standardise(y)) is not None:
            raise ValueError(
                f"y overflows or underflows when it is standardised: its values reach {np.abs(y).max():.1e}. "
                "Rescale y, for instance to its logarithm."
            )

    def units_of(self, y: np.ndarray, weight: np.ndarray | None, *, normalize: bool) -> Units:
        """Units for targets ``y``; see :meth:`learn_units`."""
        return Units.of(y, weight, normalize=normalize)

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Targets in ``units``; ValueError if the likelihood does not allow them."""
        return self.units.standardise(self.checked(y))

    def in_units(self, values: Tensor) -> Tensor:
        """Encoded values (..., P) in the user's units."""
        return values * constant(self.units.scale, values) + constant(self.units.shift, values)

    def log_jacobian(self, y: Tensor, weight: Tensor) -> float:
        """See :meth:`Likelihood.log_jacobian`."""
        return -float(weight.sum()) * float(np.log(self.units.scale).sum())


class Standardised(Regression):
    """Likelihood of standardised numbers. Without noise they are the first function values, in the user's units."""

    linear = standardised = True

    def response(self, f: Tensor) -> Tensor:
        """The function values of targets, in the user's units."""
        return self.in_units(f[..., : self.n_targets])

    def mean_response(self, mean: Tensor, variance: Tensor, log_weight: Tensor) -> Tensor:
        """See :meth:`Likelihood.mean_response`."""
        return self.response((log_weight.exp()[..., None] * mean).sum(0))

    def joint(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Likelihood.joint`."""
        own, scale = covariance[..., : self.n_targets, :, :], constant(self.units.scale, covariance)
        return self.response(mean.mT).mT, own * scale.square()[:, None, None]


class AdditiveNoise(Standardised):
    """Likelihood y = f + noise, with noise that is Gaussian or a mixture of K Gaussians of zero mean.

    Targets are standardised. A new kind of noise defines the mixture, :meth:`noise`, and its expected log density.
    Everything else follows from these.
    """

    kriged = additive = True

    #: What gaps add to the noise of a row, over the noise of complete rows: the first P numbers times the variances of
    #: function values over missing numbers, and one number for each category that the row lacks. Empty if all rows have
    #: the same noise.
    per_gap: tuple[float, ...] = ()

    #: Noise (P,) of complete rows that these numbers are over, of encoded targets. Models that explain more of complete
    #: rows leave less noise there, but not where a category is missing.
    noise_of_complete: tuple[float, ...] = ()

    #: Variances (n, P) that the targets of the rows to predict have beside this noise; None if they have none.
    beside: np.ndarray | None = None

    def noise(self) -> tuple[Tensor, Tensor]:
        """Log weights (K,) and variances (K, P) of the mixture, independent between outputs."""
        raise NotImplementedError

    def learn_gaps(self, per_gap: Sequence[float], noise: Sequence[float]) -> None:
        """Learn what gaps add, over the noise (P,) of complete rows; see :attr:`per_gap`."""
        self.per_gap, self.noise_of_complete = tuple(map(float, per_gap)), tuple(map(float, noise))

    def noise_beside(self, known: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Variances (n, P) of encoded targets that rows have beside the noise, by the categories that they lack."""
        of_categories = np.asarray(self.per_gap[self.n_outputs :])
        if "lacking" not in known or not of_categories.any():
            return None
        return (known["lacking"] @ of_categories)[:, None] * np.asarray(self.noise_of_complete)

    def at(self, known: Mapping[str, np.ndarray]) -> Self:
        """See :meth:`.Likelihood.at`."""
        beside = self.noise_beside(known)
        if beside is None:
            return self
        there = copy(self)
        there.beside = beside
        return there

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`Likelihood.draw`."""
        log_weight, variance = (column.detach().double().cpu().numpy() for column in self.noise())
        deviation = np.sqrt(variance) * np.asarray(self.units.scale)  # (K, P)
        share = np.exp(log_weight)
        component = rng.choice(len(share), size=f.shape, p=share / share.sum())
        noise = deviation[component, np.arange(f.shape[-1])] * rng.standard_normal(f.shape)
        if self.beside is not None:
            noise += np.sqrt(self.beside) * np.asarray(self.units.scale) * rng.standard_normal(f.shape)
        return f * np.asarray(self.units.scale) + np.asarray(self.units.shift) + noise

    def noise_variance(self) -> np.ndarray:
        """See :meth:`Likelihood.noise_variance`."""
        log_weight, variance = self.noise()
        return (log_weight.exp() @ variance).detach().cpu().numpy() * np.square(self.units.scale)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p log Σ_k w_k N(y | m, v + σ_k²)."""
        log_weight, noise = self.noise()
        total = variance + noise[:, None, None]  # (K, S, B, P)
        log_density = -0.5 * ((y - mean).square() / total + total.log() + LOG_2PI)
        return torch.logsumexp(log_density + log_weight[:, None, None, None], dim=0).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> PredictiveDistribution:
        """See :meth:`Likelihood.predictive`; there are K·S components."""
        log_share, noise = (mean.new_zeros(1), mean.new_zeros(1, 1)) if latent else self.noise()
        if self.beside is not None and not latent:
            variance = variance + variance.new_tensor(self.beside)
        shape = (len(noise), *mean.shape)
        means = mean.expand(shape).flatten(0, 1).double().cpu().numpy()  # (K·S, B, P)
        variances = (variance + noise[:, None, None]).flatten(0, 1).double().cpu().numpy()
        weights = (log_share[:, None] + log_weight[:, 0]).flatten().double().softmax(0).cpu().numpy()
        scale, shift = np.asarray(self.units.scale), np.asarray(self.units.shift)
        return PredictiveDistribution(means * scale + shift, variances * scale**2, weights)


class Gaussian(AdditiveNoise):
    """Likelihood y = f + Gaussian noise, of one variance per output and independent between outputs.

    If the variance s² of the noise of each row is given, it is all noise there is. Encoded targets then have one more
    column, s² in the square of the first target's units. Where the noise of all rows must be the same, it is the mean
    σ² of all s². Rows of noise s² and weight w stand for rows of noise σ² and weight w σ²/s² there.

    If cells of some rows are missing, their targets vary more than others do. Encoded targets then have one more
    column, the ratios s²/σ²; see :mod:`..inference.gaps`. Only σ² is learnt. Ratios are such that Σ w σ²/s² = Σ w.
    Rows to predict that lack a category have the noise of such rows, and all others that of complete rows.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    excess : float, default=INITIAL_EXCESS
        Initial excess of the noise variance over its floor.
    floor : float or sequence of P floats, default=NOISE_FLOOR
        Smallest noise variance.
    """

    stackable = True
    conjugate = True
    takes: ClassVar[tuple[str, ...]] = ("noise_variance",)

    floor: Tensor

    #: Largest noise variance of encoded targets; only users set one.
    ceiling: float = math.inf

    #: Whether the user has said where the noise starts, and between which bounds it stays.
    bounded: bool = False

    #: Mean of given variances, in the square of the user's units.
    given_noise: float = 0.0

    #: Smallest variance that is not larger because it is given.
    least: float = NOISE_FLOOR

    #: Variances (n, 1) of the noise of the rows to predict, in the square of the user's units, if they are known.
    row_noise: np.ndarray | None = None

    def __init__(self, n_outputs: int, *, excess: float = INITIAL_EXCESS, floor: float | Sequence[float] = NOISE_FLOOR):
        super().__init__(n_outputs)
        self.log_excess = nn.Parameter(torch.full((n_outputs,), math.log(excess), device="cpu", dtype=torch.float32))
        lowest = torch.as_tensor(floor, dtype=torch.float32, device="cpu")
        self.register_buffer("floor", lowest.expand(n_outputs).clone())

    @property
    def variance(self) -> Tensor:
        """Noise variances, of shape (P,), of encoded targets."""
        excess = self.log_excess.exp()
        if self.ceiling < math.inf:  # the excess itself where it is small, and never more than what is left
            excess = excess / (1.0 + excess / (self.ceiling - self.floor))
        return self.floor + excess

    def start_at(self, variance: float, bounds: tuple[float, float] | None) -> None:
        """Let the noise of encoded targets start at a variance, and stay between bounds; None fixes it."""
        self.bounded = True
        if bounds is None:
            self.kriged = False
            return self.fix(self.floor.new_tensor(variance))
        low, self.ceiling = bounds
        excess, most = max(variance - low, NEAREST_BOUND * low), self.ceiling - low
        excess = min(excess, (1.0 - NEAREST_BOUND) * most)
        self.floor.fill_(low)
        self.log_excess.data.fill_(math.log(excess / (1.0 - excess / most)))

    def noise(self) -> tuple[Tensor, Tensor]:
        """A mixture of one Gaussian; see :meth:`AdditiveNoise.noise`."""
        variance = self.variance * self.plain_ratio
        return variance.new_zeros(1), variance[None]

    def learn_known(self, known: Mapping[str, np.ndarray], weight: np.ndarray, *, normalize: bool) -> None:
        """Learn the mean of the given variances; see :meth:`.Likelihood.learn_known`."""
        super().learn_known(known, weight, normalize=normalize)
        if "noise_variance" in known:
            noise = known["noise_variance"][:, 0]
            self.given_noise, self.noise_differs = float(np.average(noise, weights=weight)), bool(np.ptp(noise) > 0)
            self.fixed, self.kriged = True, False

    def encode_known(self, known: Mapping[str, np.ndarray]) -> np.ndarray:
        """Variances in the square of the first target's units."""
        return known["noise_variance"] / self.units.scale[0] ** 2

    @property
    def mixes(self) -> bool:  # type: ignore[override]
        """True, unless the user has said how much noise there is."""
        return not self.fixed and not self.bounded

    @property
    def fixed_by_row(self) -> bool:
        """Whether encoded targets have the variances of their rows' noise."""
        return "noise_variance" in self.known

    @property
    def rows_differ(self) -> bool:
        """See :attr:`.Likelihood.rows_differ`."""
        return self.fixed_by_row or bool(self.per_gap)

    def learn_ratios(self, per_gap: Sequence[float], noise: Sequence[float], gaps: Tensor, weight: Tensor) -> None:
        """Let rows differ in their noise by their gaps (N, P + J), by numbers over the ``noise`` (P,) of complete rows.

        Gaps are variances of function values over missing numbers, and for each of J categories whether it is missing.
        """
        self.learn_gaps(per_gap, noise)
        ratio, share = noise_with_gaps(gaps, self.per_gap)
        weight = weight.double() * share
        self.plain_ratio = float((weight / ratio).sum() / weight.sum())

    def with_ratios(self, y: Tensor, gaps: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Encoded targets (N, P) with a column of the ratios, and weights; gaps are as in :meth:`learn_ratios`."""
        ratio, share = noise_with_gaps(gaps, self.per_gap)
        return torch.cat([y, (self.plain_ratio * ratio)[:, None].to(y)], dim=1), weight * share.to(weight)

    def fix(self, variance: Tensor) -> None:
        """Let the noise have given variances (P,), or one for all outputs, of encoded targets, and not learn it."""
        self.fixed = True
        self.floor.copy_(variance)
        self.log_excess.requires_grad_(False).fill_(NO_EXCESS)

    def at(self, known: Mapping[str, np.ndarray]) -> Self:
        """See :meth:`.Likelihood.at`. The noise is σ² if it is not known."""
        if "noise_variance" not in known:
            return super().at(known)
        there = copy(self)
        there.row_noise = known["noise_variance"]
        return there

    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> PredictiveDistribution:
        """See :meth:`.Likelihood.predictive`."""
        if latent or self.row_noise is None:
            return super().predictive(mean, variance, log_weight, latent=latent)
        noise = variance.new_tensor(self.row_noise / np.square(self.units.scale))  # (B, P)
        return super().predictive(mean, variance + noise, log_weight, latent=True)

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`.Likelihood.draw`."""
        if self.row_noise is None:
            return super().draw(f, rng)
        noise = np.sqrt(self.row_noise) * rng.standard_normal(f.shape)
        return f * np.asarray(self.units.scale) + np.asarray(self.units.shift) + noise

    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set the floor of the noise, which is larger if targets look rounded; see :func:`noise_floor`.

        Noise that is given is set to its mean, and noise that the user has bounded stays as it is.
        """
        if self.bounded:
            return
        if self.fixed:
            self._fix_mean()
        else:
            self.floor.copy_(noise_floor(self.regressands(y), weight))

    def refine(self) -> None:
        """Lower the floor, even if targets look rounded, since held-out rows have shown how small the noise is."""
        if self.bounded:
            return
        if self.fixed:
            self.least = LEAST_GIVEN
            self._fix_mean()
        else:
            self.floor.fill_(LEAST_NOISE)

    def calibrated(self) -> list[nn.Parameter]:
        """The logarithm of the noise's excess over its floor, unless the noise is given."""
        return [] if self.fixed else [self.log_excess]

    def regressands(self, y: Tensor) -> Tensor:
        """The targets."""
        return y[..., : self.n_targets] if self.rows_differ else y

    def precise_weights(self, y: Tensor, weight: Tensor) -> Tensor:
        """Weights times σ²/s²."""
        if not self.rows_differ:
            return weight
        if not self.fixed_by_row:
            return weight / y[..., self.n_targets]
        return weight * (self.variance[..., :1] / self._noise_of_rows(y)[..., 0])

    def log_precise(self, y: Tensor, weight: Tensor) -> float:
        """−½ Σ_i w_i Σ_p [log 2πs_i² − (σ²/s_i²) log 2πσ²]."""
        if not self.rows_differ:
            return 0.0
        own, mean = self._noise_of_rows(y).double(), self.variance.double()
        precise = self.precise_weights(y, weight).double()
        constant = (weight.double()[:, None] * (own.log() + LOG_2PI)).sum()
        return -0.5 * float(constant - (precise[:, None] * (mean.log() + LOG_2PI)).sum())

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """−½ Σ_p [((y − m)² + v)/σ² + log 2πσ²]."""
        target, noise = self.regressands(y).unsqueeze(-3), self._noise_of_rows(y).unsqueeze(-3)
        return -0.5 * (((target - mean).square() + variance) / noise + noise.log() + LOG_2PI).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log Π_p N(y | m, v + σ²)."""
        target, total = self.regressands(y).unsqueeze(-3), variance + self._noise_of_rows(y).unsqueeze(-3)
        return -0.5 * ((target - mean).square() / total + total.log() + LOG_2PI).sum(-1)

    def _fix_mean(self) -> None:
        """Fix the noise at the mean of the given variances."""
        self.fix(self._at_least(self.floor.new_tensor([self.given_noise / self.units.scale[0] ** 2])))

    def _at_least(self, noise: Tensor) -> Tensor:
        """Variances (..., P) of all outputs, none too small, from those (..., 1) in the first target's units."""
        ratios = [(self.units.scale[0] / scale) ** 2 for scale in self.units.scale]
        enough = noise.clamp(min=self.least / min(ratios))
        return torch.cat([enough * ratio for ratio in ratios], dim=-1)

    def ratio_of_rows(self, y: Tensor) -> Tensor | float:
        """Noise of rows with encoded targets over that of rows to predict, (..., B, 1), or 1 if it is the same."""
        return y[..., self.n_targets :] / self.plain_ratio if self.per_gap else 1.0

    def _noise_of_rows(self, y: Tensor) -> Tensor:
        """Variances (..., B, P) of the noise of rows with encoded targets, or (..., 1, P) if all have the same."""
        if not self.rows_differ:
            return self.variance[..., None, :]
        if not self.fixed_by_row:
            return self.variance[..., None, :] * y[..., self.n_targets :]
        return self._at_least(y[..., self.n_targets :])


def noise_with_gaps(gaps: Tensor, per_gap: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Noise of rows (N,) over that of complete rows, and how often each counts; see :meth:`Gaussian.learn_ratios`."""
    gaps = gaps.double()
    added = gaps @ gaps.new_tensor(per_gap)
    return 1.0 + added.clamp(max=MOST_ADDED), (MOST_ADDED / added).clamp(max=1.0)


def first_row(wrong: np.ndarray) -> int | None:
    """Number of the first row with a True in ``wrong`` (N, P); None if there is none."""
    rows = np.flatnonzero(wrong.any(axis=1))
    return int(rows[0]) if len(rows) else None


def rounding_variance(y: np.ndarray, n_rows: float | None = None) -> float:
    """Variance that rounding has added to targets, or 0 where they do not look rounded.

    ``n_rows`` is the number of rows that they stand for, since a row of weight 2 counts twice; ``len(y)`` by default.

    If most targets repeat each other, they lie on a grid. A density narrower than the grid would only describe the
    rounding, and the predictive objective would learn a spike at each point of the grid.
    """
    values = np.unique(y)
    if len(values) < 2 or len(values) > (len(y) if n_rows is None else n_rows) / 2:
        return 0.0
    return float(np.diff(values).min() ** 2 / 12)


def noise_floor(y: Tensor, weight: Tensor) -> Tensor:
    """Smallest noise variances (P,) for targets (N, P) with weights (N,); larger if targets look rounded."""
    n_rows = weight.sum().item()
    return y.new_tensor([max(NOISE_FLOOR, rounding_variance(column, n_rows)) for column in y.T.numpy()])
