"""Distributions of grades, of which there are a few."""

from typing import Self

import numpy as np

from ._mixture import Discrete, by_draw

#: Rounding errors of sums of probabilities.
ROUNDING = 1e-12


class GradeDistribution(Discrete):
    """Predictive distributions of grades: a few whole numbers, each with a probability.

    ``predict_dist`` of regressors with ``likelihood="ordinal"`` returns it. The methods are those of
    :class:`~skdgp.PredictiveDistribution`; ``pdf`` and ``logpdf`` are probabilities of grades and their logarithms, and
    quantiles are grades.

    Parameters
    ----------
    grades : array-like of shape (K,)
        The grades: whole numbers in ascending order. Other numbers have the probability zero.
    component_probabilities : array-like of shape (S, n, K) or (S, n, P, K)
        Probabilities of the grades in S components, for n rows (and P outputs).
    weights : array-like of shape (S,)
        Weights of the components. They are not negative, and add up to one.

    Attributes
    ----------
    probabilities : ndarray of shape (n, K) or (n, P, K)
        Probability of each grade.
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Means, variances and standard deviations of the grades.

    Raises
    ------
    ValueError
        If grades are not ascending whole numbers, if shapes do not match, or if probabilities are negative or do not
        add up to one.

    Examples
    --------
    >>> from skdgp.distributions import GradeDistribution
    >>> dist = GradeDistribution(
    ...     [1, 2, 3], [[[0.2, 0.5, 0.3], [0.0, 0.1, 0.9]]], [1.0]
    ... )
    >>> dist.mean.round(3), dist.pmf([2, 2])
    (array([2.1, 2.9]), array([0.5, 0.1]))
    >>> dist.ppf(0.5), dist.cdf([2, 2]).round(3)
    (array([2., 3.]), array([0.7, 0.1]))
    """

    ARRAYS = ("component_probabilities",)

    def __init__(self, grades, component_probabilities, weights):
        self.grades, self.component_probabilities, self.weights = grades, component_probabilities, weights
        for name in ("grades", "component_probabilities", "weights"):
            column = np.array(getattr(self, name), dtype=np.float64)
            column.flags.writeable = False
            setattr(self, name, column)
        grades, p = self.grades, self.component_probabilities
        if grades.ndim != 1 or not len(grades) or (grades != np.floor(grades)).any() or (np.diff(grades) <= 0).any():
            raise ValueError(f"grades must be whole numbers in ascending order, got {grades.tolist()}.")
        if p.ndim not in (3, 4) or (len(p), p.shape[-1]) != (len(self.weights), len(grades)):
            raise ValueError(
                "Probabilities of shape (S, n, K) or (S, n, P, K), weights of shape (S,) and K grades make mixtures, "
                f"got {p.shape}, {self.weights.shape} and {len(grades)} grades."
            )
        for shares in (p, self.weights):
            if not (shares.min(initial=0.0) >= 0 and (np.abs(shares.sum(axis=-1) - 1) < 1e-6).all()):  # NaN, too
                raise ValueError("Probabilities of grades, and weights, must be non-negative and add up to one.")

    @property
    def _arrays(self) -> list[np.ndarray]:
        return list(np.moveaxis(self.component_probabilities, -1, 0))

    def _like(self, arrays, weights) -> Self:
        return type(self)(self.grades, np.stack(list(arrays), axis=-1), weights)

    @property
    def _common(self) -> tuple:  # type: ignore[override]
        return (self.grades.tolist(),)

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of each grade, of shape (n, K) or (n, P, K)."""
        return np.tensordot(self.weights, self.component_probabilities, axes=1)

    @property
    def component_means(self) -> np.ndarray:
        """See :attr:`.Mixture.component_means`."""
        return self.component_probabilities @ self.grades

    @property
    def component_variances(self) -> np.ndarray:
        """See :attr:`.Mixture.component_variances`."""
        apart = self.grades - self.component_means[..., None]
        return (self.component_probabilities * apart**2).sum(axis=-1)

    def _mixed(self, numbers) -> np.ndarray:
        """Probabilities (K, N) of grades, from those of the components, K arrays (S, N)."""
        return np.tensordot(np.stack(numbers), self.weights, axes=(1, 0))

    def _log_density(self, y, *numbers):
        same = self.grades[:, None] == y
        with np.errstate(divide="ignore"):
            return np.log((same * self._mixed(numbers)).sum(axis=0))

    def _cdf(self, y, *numbers):
        below = self.grades[:, None] <= y
        total = (below * self._mixed(numbers)).sum(axis=0)
        return np.where(below[-1], 1.0, np.minimum(total, 1.0))

    def logsf(self, y):
        """See :meth:`.Mixture.logsf`: a sum over the grades above, however improbable they are."""
        return self._at(y, self._log_sf)

    def _log_sf(self, y, *numbers):
        above = self.grades[:, None] > y
        with np.errstate(divide="ignore"):
            return np.log(np.minimum((above * self._mixed(numbers)).sum(axis=0), 1.0))

    def _quantile(self, q, *numbers):
        """The smallest grades k with F(k) ≥ q."""
        p = self._mixed(numbers)
        below = np.cumsum(p, axis=0) < q - ROUNDING
        last = len(p) - 1 - (p[::-1] > 0).argmax(axis=0)  # the highest possible grade
        return self.grades[np.minimum(below.sum(axis=0), last)]

    def _crps(self, y, *numbers):
        """∫ (F(t) − 1{t ≥ y})² dt, where F is constant between two grades."""
        F = np.cumsum(self._mixed(numbers), axis=0)[:-1]
        low, high = self.grades[:-1, None], self.grades[1:, None]
        split = np.clip(y, low, high)
        beyond = np.maximum(self.grades[0] - y, 0.0) + np.maximum(y - self.grades[-1], 0.0)
        return ((split - low) * F**2 + (high - split) * (1 - F) ** 2).sum(axis=0) + beyond

    def _draw(self, components, rng):
        uniform = by_draw(rng.random_sample, len(components), self.shape)
        below = np.cumsum(self.component_probabilities[components], axis=-1)[..., :-1] <= uniform[..., None]
        return self.grades[below.sum(axis=-1)]
