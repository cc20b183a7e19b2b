"""Base of all predictive distributions: one mixture for each row and output, with densities, quantiles and scores.

A family of components defines

=================================== ===================================================================
``ARRAYS``                          names of its arrays of numbers, of shape (S, n) or (S, n, P)
``component_means``, ``_variances`` moments of every component, of the same shape
``_log_density(y, *numbers)``       log densities, or log probabilities, of mixtures (N,) at points (N,)
``_cdf(y, *numbers)``               probabilities of values of at most y
``_quantile(q, *numbers)``          quantiles
``_crps(y, *numbers)``              continuous ranked probability scores
``_draw(components, rng)``          draws (k, n) or (k, n, P) from components (k,)
=================================== ===================================================================

where ``numbers`` are the arrays' entries for a chunk of rows and outputs, of shape (S, N).
"""

import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import joblib
import numpy as np
from scipy.optimize.elementwise import find_root
from sklearn.utils import check_random_state

#: Largest number of entries of an intermediate array, which then stays in the processor's cache.
CHUNK_NUMBERS = 2**16


class Mixture:
    """One mixture for each row and output. All rows share the components' weights; see the module's docstring.

    Attributes
    ----------
    weights : ndarray of shape (S,)
        Weights of the components. They are not negative, and add up to one.
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Means, variances and standard deviations of the mixtures, in the user's units. ``mean`` and ``var`` are
        read-only.
    """

    ARRAYS: ClassVar[tuple[str, ...]]

    #: Whether targets are counts or grades; see :class:`Discrete`.
    discrete: ClassVar[bool] = False

    weights: np.ndarray

    def _check(self) -> None:
        """Turn the arrays into read-only arrays of float64; ValueError if shapes or weights are wrong."""
        for name in (*self.ARRAYS, "weights"):
            column = np.asarray(getattr(self, name), dtype=np.float64, order="C")
            object.__setattr__(self, name, column.view())
            getattr(self, name).flags.writeable = False
        shapes = [array.shape for array in self._arrays]
        if len(shapes[0]) not in (2, 3) or len(set(shapes)) > 1 or self.weights.shape != shapes[0][:1]:
            raise ValueError(
                f"{' and '.join(self.ARRAYS)} of shape (S, n) or (S, n, P) and weights of shape (S,) make mixtures, "
                f"got {', '.join(map(str, shapes))} and {self.weights.shape}."
            )
        if not ((self.weights >= 0).all() and abs(self.weights.sum() - 1) < 1e-6):
            raise ValueError(
                f"weights must be non-negative and add up to one, got {self.weights}, which add up to "
                f"{self.weights.sum():.6g}."
            )

    @property
    def _arrays(self) -> list[np.ndarray]:
        return [getattr(self, name) for name in self.ARRAYS]

    @property
    def component_means(self) -> np.ndarray:
        """Means of the components, of shape (S, n) or (S, n, P)."""
        raise NotImplementedError

    @property
    def component_variances(self) -> np.ndarray:
        """Variances of the components, of the same shape."""
        raise NotImplementedError

    #: Defined by each family; see the module's docstring.
    _log_density: Callable[..., np.ndarray]
    _cdf: Callable[..., np.ndarray]
    _quantile: Callable[..., np.ndarray]
    _crps: Callable[..., np.ndarray]

    def pit(self, y, random_state=None):
        """Probability integral transform of observations, which is uniform if predictions are calibrated.

        It is :meth:`cdf` at the observations. For counts and grades it is a random value between F(y − 1) and F(y),
        because only this is uniform for calibrated predictions.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Observations, in the user's units.
        random_state : int, RandomState instance or None, default=None
            Source of the random values for counts and grades. With None they are the same in every call.

        Returns
        -------
        ndarray of the broadcast shape
            Transforms, between 0 and 1.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.
        """
        above = self.cdf(y)
        if not self.discrete:
            return above
        rng = np.random.RandomState(0) if random_state is None else check_random_state(random_state)
        below = self.cdf(np.asarray(y) - 1)
        return below + rng.random_sample(above.shape) * (above - below)

    def _draw(self, components: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        raise NotImplementedError

    @staticmethod
    def concatenate(parts):
        """Join distributions of different rows, which have the same weights, into one.

        Parameters
        ----------
        parts : sequence of PredictiveDistribution
            One or more distributions of one kind, whose shapes differ only in n.

        Returns
        -------
        PredictiveDistribution
            The distribution of all rows, of the same kind.

        Raises
        ------
        TypeError
            If the parts are of different kinds.
        ValueError
            If the weights of their components differ, or their ``target_transform``.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> first = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> second = PredictiveDistribution.gaussian([5.0], [1.0])
        >>> PredictiveDistribution.concatenate([first, second]).mean
        array([0., 1., 5.])
        """
        parts, weights = _of_one_kind(parts), parts[0].weights
        if not all(part.weights.shape == weights.shape and np.allclose(part.weights, weights) for part in parts):
            raise ValueError("Distributions of different rows can be joined only if their weights are the same.")
        columns = zip(*(part._arrays for part in parts), strict=True)
        return parts[0]._like((np.concatenate(column, axis=1) for column in columns), weights)

    @staticmethod
    def mixture(parts, weights=None):
        """Mix several distributions of the same rows into one.

        Parameters
        ----------
        parts : sequence of PredictiveDistribution
            One or more distributions of one kind and of the same shape.
        weights : array-like of shape (n_parts,), default=None
            Weights of the distributions, which are not negative and add up to one. With None they are equal.

        Returns
        -------
        PredictiveDistribution
            The mixture, of the same kind. It has the components of all distributions.

        Raises
        ------
        TypeError
            If the parts are of different kinds.
        ValueError
            If their shapes differ, or their ``target_transform``, or if there is not a weight for each.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> first = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> second = PredictiveDistribution.gaussian([4.0, 1.0], [1.0, 2.0])
        >>> PredictiveDistribution.mixture([first, second]).mean
        array([2., 1.])
        """
        parts = _of_one_kind(parts)
        weights = np.full(len(parts), 1 / len(parts)) if weights is None else np.asarray(weights, dtype=np.float64)
        if weights.shape != (len(parts),):
            raise ValueError(f"{len(parts)} distributions need as many weights, got weights of shape {weights.shape}.")
        columns = zip(*(part._arrays for part in parts), strict=True)
        own = [weight * part.weights for weight, part in zip(weights, parts, strict=True)]
        return parts[0]._like((np.concatenate(column) for column in columns), np.concatenate(own))

    def _like(self, arrays: Iterable[np.ndarray], weights: np.ndarray) -> Self:
        """A distribution of the same kind, with other numbers."""
        return cast(Any, type(self))(*arrays, weights)

    @property
    def _kind(self) -> str:
        """What kind of distribution it is. Different kinds cannot be joined."""
        return type(self).__name__

    #: What distributions must have in common to be joined, besides their kind.
    _common: tuple = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n,)`` or ``(n, P)``."""
        return self._arrays[0].shape[1:]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index) -> Self:
        """Distributions of some rows, chosen by a number, slice, mask or array; ``dist[:, p]`` is output p alone."""
        rows, *outputs = index if isinstance(index, tuple) else (index,)
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            rows = [rows]
        chosen = (slice(None), rows, *outputs)
        return self._like((array[chosen] for array in self._arrays), self.weights)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, {len(self.weights)} components)"

    @cached_property
    def mean(self) -> np.ndarray:
        """Means of the mixtures, of shape (n,) or (n, P), in the user's units."""
        return fixed(np.tensordot(self.weights, self.component_means, axes=1))

    @cached_property
    def var(self) -> np.ndarray:
        """Variances of the mixtures: the variance of the components' means, plus the mean of their variances."""
        # Means are centred first: E m² − (E m)² would lose all digits if the mean is large.
        spread = np.tensordot(self.weights, (self.component_means - self.mean) ** 2, axes=1)
        return fixed(spread + np.tensordot(self.weights, self.component_variances, axes=1))

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of the mixtures, of the same shape, in the user's units."""
        return np.sqrt(self.var)

    def logpdf(self, y):
        """Logarithm of the density at ``y``. It does not underflow far from the mixture.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Points in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Logarithms of densities, in nats.

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
        return self._at(y, self._log_density)

    def pdf(self, y):
        """Density at ``y``; see :meth:`logpdf`.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Points in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Densities, in the inverse of the user's units.

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
        """Probability of a value of at most ``y``: the cumulative distribution function.

        For Gaussian components it is Σ_s ω_s Φ((y − m_s)/√v_s). At observations it is their probability integral
        transform (PIT), which is uniform if predictions are calibrated [1]_.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Points in the user's units.

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
        return self._at(y, self._cdf)

    def sf(self, y):
        """Probability of a value above ``y``: the survival function, 1 − :meth:`cdf`. It is precise in the upper tail.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Points in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Probabilities.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        >>> dist.sf([[0.0], [1.0]]).round(4)  # two points for each row
        array([[0.5   , 0.6915],
               [0.1587, 0.5   ]])
        """
        return np.exp(self.logsf(y))

    def logsf(self, y):
        """Logarithm of the survival function; see :meth:`sf`. For Gaussian components it does not underflow.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Points in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Logarithms of probabilities.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> PredictiveDistribution.gaussian([0.0], [1.0]).logsf([20.0]).round(4)
        array([-203.9172])
        """
        with np.errstate(divide="ignore"):
            return np.log1p(-self.cdf(y))

    def logcdf(self, y):
        """Logarithm of :meth:`cdf`. For Gaussian components it does not underflow.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Points in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Logarithms of probabilities.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> PredictiveDistribution.gaussian([0.0], [1.0]).logcdf([-20.0]).round(4)
        array([-203.9172])
        """
        with np.errstate(divide="ignore"):
            return np.log(self.cdf(y))

    def hazard(self, y):
        """Hazard at ``y``: the density over the probability of a greater value, ``pdf(y) / sf(y)``.

        It is the rate of events at a time among those that have had none until then. For counts k it is the probability
        of k among values of at least k.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Points in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Hazards, in the inverse of the user's units; NaN where no greater value is possible.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0]).hazard(
        ...     [0.0, 1.0]
        ... ).round(4)
        array([0.7979, 0.3989])
        """
        y = np.asarray(y, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            return np.exp(self.logpdf(y) - self.logsf(y - 1 if self.discrete else y))

    def ppf(self, q):
        """Quantiles, the inverse of :meth:`cdf`.

        They are quantiles of the mixture itself, and not of a Gaussian with its mean and variance. The quantile q of
        counts is the smallest count k for which the probability of at most k is at least q.

        Parameters
        ----------
        q : array-like, broadcastable to (..., n) or (..., n, P)
            Probabilities in [0, 1].

        Returns
        -------
        ndarray of the broadcast shape
            Quantiles in the user's units; infinite at 0 and 1.

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
        return self._at(q, self._quantile)

    def interval(self, confidence_level=0.9):
        """Central interval of each row.

        Parameters
        ----------
        confidence_level : float, default=0.9
            Probability c of the interval, between 0 and 1. The ends are the quantiles (1 − c)/2 and (1 + c)/2.

        Returns
        -------
        lower, upper : ndarray of shape (n,) or (n, P)
            Ends of the intervals, in the user's units.

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
        """Draw random values.

        Each draw picks one component for all rows, and then draws a value of this component for each row independently.

        Parameters
        ----------
        size : int, default=None
            Number of draws. None is one draw, without an axis for it.
        random_state : int, RandomState instance or None, default=None
            Source of randomness.

        Returns
        -------
        ndarray of shape (n,) or (n, P), or (size, n) or (size, n, P)
            Values in the user's units.

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
        draws = self._draw(self.draw_components(1 if size is None else size, rng), rng)
        return draws[0] if size is None else draws

    def crps(self, y):
        """Continuous ranked probability score, ∫ (F(t) − 1{t ≥ y})² dt; lower is better.

        For Gaussian components it is computed in closed form, Σ_s ω_s A(y − m_s, v_s) − ½ Σ_st ω_s ω_t
        A(m_s − m_t, v_s + v_t), where ``A(μ, v) = 2 √v φ(μ/√v) + μ (2 Φ(μ/√v) − 1)`` is the mean of ``|N(μ, v)|`` [1]_.
        Where there are many components and none is narrow, the second sum is computed as ∫ F(t) (1 − F(t)) dt, to nine
        digits. For other distributions the score itself is an integral, or a sum, that is computed numerically.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Observations, in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Scores in the user's units.

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
        y = self._broadcast(y)
        far = np.isinf(y)
        return np.where(far, np.inf, self._at(np.where(far, 0.0, y), self._crps))

    def log_score(self, y):
        """Negative log predictive density, −log p(y); lower is better. See :meth:`logpdf`.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Observations, in the user's units.

        Returns
        -------
        ndarray of the broadcast shape
            Scores in nats.

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
        """Values of ``function(points (N,), *numbers)``, computed one chunk after another; NaN for NaN."""
        given = self._broadcast(points)
        unknown = np.isnan(given)
        points = np.where(unknown, 0.0, given)
        values = np.empty(points.shape)
        flat = math.prod(points.shape[: points.ndim - len(self.shape)]), math.prod(self.shape)
        flat_points, flat_values = points.reshape(flat), values.reshape(flat)
        for columns, numbers in self._chunks():
            at_once = max(1, CHUNK_NUMBERS // numbers[0].size)  # few rows have many points
            for start in range(0, len(flat_points), at_once):
                some = flat_points[start : start + at_once, columns]
                repeated = [np.tile(column, len(some)) for column in numbers]
                flat_values[start : start + at_once, columns] = function(some.ravel(), *repeated).reshape(some.shape)
        values[unknown] = np.nan
        return values

    def _broadcast(self, points) -> np.ndarray:
        """Points in the shape to which they and the rows broadcast; ValueError if they do not broadcast."""
        points = np.asarray(points, dtype=np.float64)
        try:
            return np.broadcast_to(points, np.broadcast_shapes(points.shape, self.shape))
        except ValueError as error:
            raise ValueError(
                f"Points of shape {points.shape} do not broadcast to the distribution's shape {self.shape}: give one "
                "point for each row (and output), or for instance a column of shape (k, 1) of points for all rows."
            ) from error

    def _chunks(self) -> Iterator[tuple[slice, list[np.ndarray]]]:
        """Chunks of rows and outputs, with their numbers (S, N)."""
        n_components = len(self.weights)
        flat = [array.reshape(n_components, -1) for array in self._arrays]
        n_chunk = max(1, CHUNK_NUMBERS // n_components)
        for start in range(0, flat[0].shape[1], n_chunk):
            columns = slice(start, start + n_chunk)
            yield columns, [array[:, columns] for array in flat]

    def _crossings(self, q, ends, *numbers, of_place: Callable = np.asarray, **tolerances: float) -> np.ndarray:
        """Places (N,) between two ends where the distribution functions reach ``q``; NaN where they do not cross it.

        The value at a place is ``of_place(place)``.
        """

        def excess(place, row):
            rows = row.astype(int)
            return self._cdf(of_place(place), *(column[:, rows] for column in numbers)) - q[rows]

        return find_root(excess, ends, args=(np.arange(float(len(q))),), tolerances=tolerances).x

    def _log_mixed(self, parts: np.ndarray) -> np.ndarray:
        """log Σ_s ω_s exp(parts_s) (N,), from the logarithms of what the components (S, N) have."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            weighted = parts + np.log(self.weights)[:, None]
            largest = weighted.max(axis=0)
            largest = np.where(np.isfinite(largest), largest, 0.0)
            return largest + np.log(np.exp(weighted - largest).sum(axis=0))

    def draw_components(self, size: int, rng: np.random.RandomState) -> np.ndarray:
        """Pick a component for each of ``size`` draws.

        Parameters
        ----------
        size : int
            Number of draws k.
        rng : numpy.random.RandomState
            Source of randomness.

        Returns
        -------
        ndarray of int of shape (k,)
            Numbers of the components.

        Raises
        ------
        ValueError
            If ``size`` is less than 1.
        """
        if size < 1:
            raise ValueError(f"The number of draws must be at least 1, got {size!r}.")
        return rng.choice(len(self.weights), size=size, p=self.weights / self.weights.sum())


class Discrete(Mixture):
    """What distributions of counts and of grades have besides: probabilities under SciPy's names."""

    discrete = True

    def pmf(self, y):
        """Probability of ``y``. It is the same as :meth:`pdf`, with SciPy's name for discrete distributions.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Counts or grades.

        Returns
        -------
        ndarray of the broadcast shape
            Probabilities.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.
        """
        return self.pdf(y)

    def logpmf(self, y):
        """Logarithm of :meth:`pmf`; the same as :meth:`logpdf`.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Counts or grades.

        Returns
        -------
        ndarray of the broadcast shape
            Logarithms of probabilities, in nats.

        Raises
        ------
        ValueError
            If points and rows do not broadcast.
        """
        return self.logpdf(y)


def by_draw(draw: Callable[..., np.ndarray], n_draws: int, shape: tuple[int, ...], *trailing: int) -> np.ndarray:
    """Random numbers (n_draws, *shape, *trailing) of ``draw(size)``, whose rows come first.

    So the draws of a row do not depend on how many rows come after it.
    """
    n_rows, *outputs = shape
    return np.moveaxis(draw((n_rows, n_draws, *outputs, *trailing)), 1, 0)


def _of_one_kind(parts) -> list:
    """Distributions that can be joined; TypeError or ValueError if they cannot."""
    first, *others = parts
    names = sorted({part._kind for part in parts})
    if len(names) > 1:
        raise TypeError(
            f"Distributions of different kinds cannot be joined, got {' and '.join(names)}: take predictions of models "
            "with the same likelihood and the same kind of target_transform."
        )
    for part in others:
        if not all(map(_same, part._common, first._common)):
            raise ValueError(
                "Distributions of targets that were transformed in different ways cannot be joined: a target_transform "
                'such as a PowerTransformer learns from the rows of a fit. Take target_transform="log", or none.'
            )
    return [first, *others]


def _same(one, other) -> bool:
    try:
        return one is other or joblib.hash(one) == joblib.hash(other)
    except (pickle.PicklingError, AttributeError):  # a lambda, for instance
        return False


def fixed(array: np.ndarray) -> np.ndarray:
    """The array, which nobody can change any more: a distribution returns it again and again."""
    array.flags.writeable = False
    return array


def central_levels(confidence_level: float) -> tuple[float, float]:
    """Probabilities below the two ends of a central interval; ValueError unless the level is between 0 and 1."""
    if np.ndim(confidence_level) or not 0 < confidence_level < 1:
        raise ValueError(f"confidence_level must lie between 0 and 1, got {confidence_level!r}: 0.9 means 90 %.")
    return (1 - confidence_level) / 2, (1 + confidence_level) / 2
