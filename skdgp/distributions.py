"""The predictive distribution: a mixture of Gaussians for every row, and for every output of it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.utils import check_random_state

#: Numbers that an intermediate array may hold; small enough to stay in the processor's cache.
CHUNK_NUMBERS = 2**16

#: Where the search for a quantile stops: at this distance from it in standard deviations, one step before the last.
QUANTILE_TOLERANCE = 1e-5

#: Steps of Newton's method before every other one halves the bracket, and steps that shrink any bracket to nothing.
MAX_NEWTON, MAX_SEARCH = 6, 400


@dataclass(frozen=True, eq=False)
class PredictiveDistribution:
    """Gaussian mixtures, one for every row (and output), whose components' weights all rows share.

    Made by ``predict_dist`` of the regressors; made by hand, it gives the predictions of any other model,
    such as a mean and a standard deviation (see :meth:`gaussian`), the same methods and scores.
    All methods work row by row, and points broadcast against rows as in NumPy: of shape ``(n,)`` they are one
    point for each row, of shape ``(k, 1)`` the same k points for all rows, with results of shape ``(k, n)``.

    Parameters
    ----------
    means, variances : array-like of shape (S, n) or (S, n, P)
        Moments of S components for n rows (and P outputs), in the user's units and their square. Variances are
        positive.
    weights : array-like of shape (S,)
        Non-negative, summing to one.

    Attributes
    ----------
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Moments of the mixtures, in the same units.

    Raises
    ------
    ValueError
        If shapes do not match, or if these are not moments and weights of a mixture.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> dist = PredictiveDistribution([[0.0, 10.0], [2.0, 10.0]], [[1.0, 4.0], [1.0, 4.0]], [0.5, 0.5])
    >>> dist.mean, dist.std.round(4)
    (array([ 1., 10.]), array([1.4142, 2.    ]))
    >>> dist.cdf([2.0, 10.0]).round(4)
    array([0.7386, 0.5   ])
    >>> lower, upper = dist.interval(0.9)
    >>> lower.round(4), upper.round(4)
    (array([-1.2845,  6.7103]), array([ 3.2845, 13.2897]))
    >>> dist.crps([1.0, 10.0]).round(4)
    array([0.3594, 0.4674])
    """

    means: np.ndarray
    variances: np.ndarray
    weights: np.ndarray

    def __post_init__(self):
        for name in ("means", "variances", "weights"):
            column = np.array(getattr(self, name), dtype=np.float64, order="C", copy=None)
            object.__setattr__(self, name, column.view())
            getattr(self, name).flags.writeable = False
        m, v, w = self.means, self.variances, self.weights
        if m.ndim not in (2, 3) or v.shape != m.shape or w.shape != m.shape[:1]:
            raise ValueError(
                f"means and variances of shape (S, n) or (S, n, P) and weights of shape (S,) make mixtures, got "
                f"{m.shape}, {v.shape} and {w.shape}."
            )
        if not (np.isfinite(m).all() and np.isfinite(v).all() and (v > 0).all()):
            raise ValueError("Means must be finite, and variances positive and finite: some are not.")
        if not ((w >= 0).all() and abs(w.sum() - 1) < 1e-6):
            raise ValueError(f"weights must be non-negative and add up to one, got {w}, which add up to {w.sum():.6g}.")

    @classmethod
    def gaussian(cls, mean, std):
        """One Gaussian per row.

        Parameters
        ----------
        mean, std : array-like of shape (n,) or (n, P)
            Such as scikit-learn's ``predict(X, return_std=True)`` returns them. Deviations are positive.

        Returns
        -------
        PredictiveDistribution
            Of shape ``(n,)`` or ``(n, P)``.

        Raises
        ------
        ValueError
            If shapes do not match, or if these are no moments.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        PredictiveDistribution(shape=(2,), 1 components)
        """
        return cls(np.asarray(mean)[None], np.asarray(std, dtype=np.float64)[None] ** 2, np.ones(1))

    @classmethod
    def concatenate(cls, parts):
        """Rows of several distributions with the same weights, one after the other.

        Parameters
        ----------
        parts : sequence of PredictiveDistribution
            At least one, of shapes that differ in n alone.

        Returns
        -------
        PredictiveDistribution
            Of all rows.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> first = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> second = PredictiveDistribution.gaussian([5.0], [1.0])
        >>> PredictiveDistribution.concatenate([first, second]).mean
        array([0., 1., 5.])
        """
        means = np.concatenate([part.means for part in parts], axis=1)
        variances = np.concatenate([part.variances for part in parts], axis=1)
        return cls(means, variances, parts[0].weights)

    @classmethod
    def mixture(cls, parts):
        """Several distributions of the same rows as one, in which each counts the same.

        Parameters
        ----------
        parts : sequence of PredictiveDistribution
            At least one, of the same shape.

        Returns
        -------
        PredictiveDistribution
            With the components of all.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> first = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> second = PredictiveDistribution.gaussian([4.0, 1.0], [1.0, 2.0])
        >>> PredictiveDistribution.mixture([first, second]).mean
        array([2., 1.])
        """
        means = np.concatenate([part.means for part in parts])
        variances = np.concatenate([part.variances for part in parts])
        return cls(means, variances, np.concatenate([part.weights for part in parts]) / len(parts))

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n,)`` or ``(n, P)``."""
        return self.means.shape[1:]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index) -> "PredictiveDistribution":
        """The distributions of some rows, by a number, slice, mask or array; ``dist[:, p]`` are those of an output."""
        rows, *outputs = index if isinstance(index, tuple) else (index,)
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            rows = [rows]
        chosen = (slice(None), rows, *outputs)
        return PredictiveDistribution(self.means[chosen], self.variances[chosen], self.weights)

    def __repr__(self) -> str:
        return f"PredictiveDistribution(shape={self.shape}, {len(self.weights)} components)"

    @cached_property
    def mean(self) -> np.ndarray:
        """Means of the mixtures, of shape (n,) or (n, P), in the user's units."""
        return np.tensordot(self.weights, self.means, axes=1)

    @cached_property
    def var(self) -> np.ndarray:
        """Variances of the mixtures, of the same shape: of the components' means, plus the mean of their own."""
        # Centred, as E m² − (E m)² would lose every digit to a large mean.
        spread = np.tensordot(self.weights, (self.means - self.mean) ** 2, axes=1)
        return spread + np.tensordot(self.weights, self.variances, axes=1)

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of the mixtures, of the same shape, in the user's units."""
        return np.sqrt(self.var)

    def logpdf(self, y):
        """Logarithm of the density at ``y``, without underflow far from the mixture.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            In the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            In nats.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.logpdf([0.0, 1.0]).round(4)
        array([-0.9189, -1.6121])
        """
        with np.errstate(divide="ignore"):
            log_weight = np.log(self.weights)[:, None]

        def log_density(y, m, v):
            parts = -0.5 * ((y - m) ** 2 / v + np.log(2 * np.pi * v)) + log_weight  # (S, N)
            largest = parts.max(axis=0)
            return largest + np.log(np.exp(parts - largest).sum(axis=0))

        return self._at(y, log_density)

    def pdf(self, y):
        """Density at ``y``; see :meth:`logpdf`.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            In the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            In inverse units.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.pdf([0.0, 1.0]).round(4)
        array([0.3989, 0.1995])
        """
        return np.exp(self.logpdf(y))

    def cdf(self, y):
        """Probability of at most ``y``.

        F(y) = Σ_s ω_s Φ((y − m_s)/√v_s). At observations it is their probability integral transform (PIT), uniform
        where predictions are calibrated [1]_.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            In the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Probabilities.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        References
        ----------
        .. [1] Dawid, A. P., "Statistical Theory: The Prequential Approach", Journal of the Royal Statistical
           Society A, 1984.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.cdf([[0.0], [1.0]]).round(4)  # two points for each row
        array([[0.5   , 0.3085],
               [0.8413, 0.5   ]])
        """
        return self._at(y, lambda y, m, v: self.weights @ _ndtr((y - m) / np.sqrt(v)))

    def ppf(self, q):
        """Quantiles, the inverse of :meth:`cdf`.

        They are those of the mixture itself, found by Newton's method on Φ⁻¹(F(y)), which is a straight line
        where the mixture is one Gaussian, and by bisection where that would leave the quantile's bracket.

        Parameters
        ----------
        q : array-like, broadcastable to (..., n) or (..., n, P)
            Probabilities in [0, 1].

        Returns
        -------
        ndarray of the broadcast shape
            In the user's units; infinite at 0 and 1.

        Raises
        ------
        ValueError
            If ``q`` is not between 0 and 1, or does not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.ppf([[0.5], [0.9]]).round(4)  # median and 90 % quantile of each row
        array([[0.    , 1.    ],
               [1.2816, 3.5631]])
        """
        q = np.asarray(q, dtype=np.float64)
        if not ((q >= 0) & (q <= 1)).all():  # NaN too
            raise ValueError(f"q={q} must lie between 0 and 1: they are probabilities, 0.5 is the median.")
        return self._at(q, lambda q, m, v: _quantile(q, m, v, self.weights))

    def interval(self, confidence_level=0.9):
        """Central interval.

        Parameters
        ----------
        confidence_level : float, default=0.9
            Its probability c, between 0 and 1; the ends are the quantiles (1 − c)/2 and (1 + c)/2.

        Returns
        -------
        lower, upper : ndarray of shape (n,) or (n, P)
            In the user's units.

        Raises
        ------
        ValueError
            If ``confidence_level`` is not between 0 and 1.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> lower, upper = dist.interval(0.9)
        >>> lower.round(4), upper.round(4)
        (array([-1.6449, -2.2897]), array([1.6449, 4.2897]))
        """
        lower, upper = central_levels(confidence_level)
        return self.ppf(lower), self.ppf(upper)

    def rvs(self, size=None, random_state=None):
        """Random draws.

        A draw picks one component for all rows, and then draws every row's own Gaussian uncertainty independently.

        Parameters
        ----------
        size : int, default=None
            Number of draws; None is one, without an axis for it.
        random_state : int, RandomState instance or None, default=None
            Source of randomness.

        Returns
        -------
        ndarray of shape (n,) or (n, P), or (size, n) or (size, n, P)
            In the user's units.

        Raises
        ------
        ValueError
            If ``size`` is less than 1.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.rvs(random_state=0).shape, dist.rvs(5, random_state=0).shape
        ((2,), (5, 2))
        """
        rng = check_random_state(random_state)
        draws = self.draw(self.draw_components(1 if size is None else size, rng), rng)
        return draws[0] if size is None else draws

    def crps(self, y):
        """Continuous ranked probability score, in closed form; lower is better.

        ∫ (F(t) − 1{t ≥ y})² dt = Σ_s ω_s A(y − m_s, v_s) − ½ Σ_st ω_s ω_t A(m_s − m_t, v_s + v_t), where
        ``A(μ, v) = 2 √v φ(μ/√v) + μ (2 Φ(μ/√v) − 1)`` is the mean of ``|N(μ, v)|`` [1]_. The time grows as S², the
        memory as S.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Observations, in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            In the user's units.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        References
        ----------
        .. [1] Grimit, E. P., Gneiting, T., Berrocal, V. J. and Johnson, N. A., "The Continuous Ranked Probability
           Score for Circular Variables and its Application to Mesoscale Forecast Ensemble Verification",
           Quarterly Journal of the Royal Meteorological Society, 2006.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.crps([0.0, 3.0]).round(4)
        array([0.2337, 1.2049])
        """
        w = self.weights

        def score(y, m, v):
            total = w @ _mean_absolute(y - m, v) - 0.5 * w**2 @ _mean_absolute(np.zeros_like(m), 2 * v)
            for s in range(len(w) - 1):  # every pair once, hence without the ½
                later = slice(s + 1, None)
                total -= w[s] * (w[later] @ _mean_absolute(m[s] - m[later], v[s] + v[later]))
            return total

        return self._at(y, score)

    def log_score(self, y):
        """Negative log predictive density, −log p(y); lower is better. See :meth:`logpdf`.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Observations, in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            In nats.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.log_score([0.0, 3.0]).round(4)
        array([0.9189, 2.1121])
        """
        return -self.logpdf(y)

    def _at(self, points, function: Callable) -> np.ndarray:
        """Values of ``function(points (N,), means (S, N), variances (S, N))``, one chunk of rows after the other."""
        points = np.asarray(points, dtype=np.float64)
        try:
            points = np.broadcast_to(points, np.broadcast_shapes(points.shape, self.shape))
        except ValueError as error:
            raise ValueError(
                f"Points of shape {points.shape} do not broadcast to the distribution's shape {self.shape}: give one "
                "point for each row (and output), or for instance a column of shape (k, 1) of points for all rows."
            ) from error
        values = np.empty(points.shape)
        flat = math.prod(points.shape[: points.ndim - len(self.shape)]), math.prod(self.shape)
        flat_points, flat_values = points.reshape(flat), values.reshape(flat)
        for columns, m, v in self._chunks():
            for one, out in zip(flat_points, flat_values, strict=True):
                out[columns] = function(one[columns], m, v)
        return values

    def _chunks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Means and variances (S, N) of a chunk of rows and outputs, side by side."""
        n_components = len(self.weights)
        means, variances = self.means.reshape(n_components, -1), self.variances.reshape(n_components, -1)
        n_chunk = max(1, CHUNK_NUMBERS // n_components)
        for start in range(0, means.shape[1], n_chunk):
            columns = slice(start, start + n_chunk)
            yield columns, means[:, columns], variances[:, columns]

    def draw_components(self, size: int, rng: np.random.RandomState) -> np.ndarray:
        """Which component each of ``size`` draws picks.

        Parameters
        ----------
        size : int
            Number of draws k.
        rng : numpy.random.RandomState
            Source of randomness.

        Returns
        -------
        ndarray of int of shape (k,)
            Numbers of components.

        Raises
        ------
        ValueError
            If ``size`` is less than 1.
        """
        if size < 1:
            raise ValueError(f"The number of draws must be at least 1, got {size!r}.")
        return rng.choice(len(self.weights), size=size, p=self.weights / self.weights.sum())

    def draw(self, components: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """Draws from the components picked for them.

        Parameters
        ----------
        components : ndarray of int of shape (k,)
            As of :meth:`draw_components`.
        rng : numpy.random.RandomState
            Source of randomness.

        Returns
        -------
        ndarray of shape (k, n) or (k, n, P)
            In the user's units.
        """
        # Rows first: the numbers that a row gets do not depend on how many rows come after it.
        noise = np.moveaxis(rng.standard_normal((len(self), len(components), *self.shape[1:])), 1, 0)
        return self.means[components] + np.sqrt(self.variances[components]) * noise


def central_levels(confidence_level: float) -> tuple[float, float]:
    """Probabilities of the ends of a central interval; ValueError where there is none."""
    if not 0 < confidence_level < 1:
        raise ValueError(f"confidence_level must lie between 0 and 1, got {confidence_level!r}: 0.9 means 90 %.")
    return (1 - confidence_level) / 2, (1 + confidence_level) / 2


def _ndtr(z: np.ndarray) -> np.ndarray:
    """Φ(z), overwriting ``z``. PyTorch's erf is several times faster than SciPy's."""
    z *= math.sqrt(0.5)
    torch.from_numpy(z).erf_()
    z += 1.0
    z *= 0.5
    return z


def _mean_absolute(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """A(μ, v) = E|N(μ, v)|, overwriting the mean."""
    deviation = np.sqrt(variance)
    z = mean / deviation
    density = np.square(z)
    density *= -0.5
    torch.from_numpy(density).exp_()
    density *= deviation
    density *= math.sqrt(2 / math.pi)
    z *= math.sqrt(0.5)
    torch.from_numpy(z).erf_()
    z *= mean
    density += z
    return density


def _quantile(q: np.ndarray, m: np.ndarray, v: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Quantiles (N,) of mixtures (S, N)."""
    rate = 1 / np.sqrt(v)
    z = ndtri(q)
    centre = weights @ m
    with np.errstate(invalid="ignore"):
        ends = m + z / rate  # no component's CDF crosses q outside these
    lower, upper = ends.min(axis=0), ends.max(axis=0)
    x = np.clip(centre + z * np.sqrt(weights @ (v + (m - centre) ** 2)), lower, upper)
    found, rows = x.copy(), np.arange(len(x))  # rows that are still searched for
    for turn in range(MAX_SEARCH):
        going = np.nextafter(lower, np.inf) < upper  # false where the bracket is closed, or infinite
        if going.mean() < 0.7:  # copies cost about as much as a step
            found[rows] = x
            if not going.any():
                break
            m, rate = m[:, going], rate[:, going]
            x, lower, upper, q, z, rows = (column[going] for column in (x, lower, upper, q, z, rows))
        # Newton's method can go back and forth forever; halving the bracket now and then ends that.
        halve = turn >= MAX_NEWTON and turn % 2 == 0
        F, p = _cdf_and_density(x, m, rate, weights)
        x, lower, upper = _newton_step(x, F, p, (lower, upper), q, z, sharpest=rate.max(axis=0), halve=halve)
    found[rows] = x
    return found


def _cdf_and_density(x, m, rate, weights):
    """F(x) and p(x) of mixtures with components of means ``m`` and deviations 1/``rate``."""
    u = (x - m) * rate
    density = np.square(u)
    density *= -0.5
    torch.from_numpy(density).exp_()
    density *= rate
    return weights @ _ndtr(u), weights @ density * (1 / math.sqrt(2 * math.pi))


def _newton_step(x, F, p, bracket, q, z, *, sharpest, halve):
    """The next guess, and its bracket; where the guess is good enough the bracket closes."""
    lower, upper = bracket
    below = F < q
    lower, upper = np.where(below, x, lower), np.where(below, upper, x)
    reached = ndtri(F)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        step = (z - reached) * np.exp(-0.5 * reached**2) / (math.sqrt(2 * math.pi) * p)  # d Φ⁻¹(F) = p/φ(Φ⁻¹(F)) dx
        proposed = x + step
        # The next guess has the square of this one's error, in deviations of the sharpest component.
        done = (np.abs(z - reached) < QUANTILE_TOLERANCE) & (np.abs(step) * sharpest < QUANTILE_TOLERANCE)
    inside = (proposed >= lower) & (proposed <= upper) & (not halve)
    proposed = np.where(inside | done, np.clip(proposed, lower, upper), 0.5 * (lower + upper))
    return proposed, np.where(done, proposed, lower), np.where(done, proposed, upper)
