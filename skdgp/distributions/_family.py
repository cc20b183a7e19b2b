"""Predictive distributions whose components are of one family of SciPy."""

from functools import partial
from itertools import pairwise
from typing import Self

import numpy as np
from scipy.stats import rv_continuous

from ._mixture import Mixture, by_draw

#: Number of nodes in each part of a score's integral.
SCORE_NODES = 12

#: Where these parts end, in deviations from the mean.
PARTS = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)

#: Probability that components have beyond the first and the last part.
LEAST = 1e-8

#: Relative error of quantiles: that of numbers, since much of a beta distribution may lie within 1e-12 of one.
QUANTILE_ERROR = 1e-15


class FamilyDistribution(Mixture):
    """Predictive distributions that are mixtures of continuous distributions of one family of :mod:`scipy.stats`.

    ``predict_dist`` of regressors returns it for ``likelihood="beta"``, and for likelihoods of your own that derive
    from ``Pointwise``. The methods are those of :class:`~skdgp.PredictiveDistribution`.

    Parameters
    ----------
    family : scipy.stats.rv_continuous
        The family, such as ``scipy.stats.beta``.
    parameters : dict of str to array-like of shape (S, n) or (S, n, P)
        Parameters of S components for n rows (and P outputs), by SciPy's names. ``loc`` and ``scale`` may be among
        them.
    weights : array-like of shape (S,)
        Weights of the components. They are not negative, and add up to one.

    Attributes
    ----------
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Means, variances and standard deviations of the mixtures.

    Raises
    ------
    TypeError
        If the family is no continuous one.
    ValueError
        If shapes do not match, or if the family does not allow the parameters.

    Examples
    --------
    >>> from scipy.stats import beta
    >>> from skdgp.distributions import FamilyDistribution
    >>> dist = FamilyDistribution(
    ...     beta, {"a": [[2.0], [8.0]], "b": [[6.0], [2.0]]}, [0.5, 0.5]
    ... )
    >>> dist.mean, dist.ppf(0.5).round(3)
    (array([0.525]), array([0.547]))
    """

    def __init__(self, family, parameters, weights):
        if not isinstance(family, rv_continuous):
            raise TypeError(
                f"FamilyDistribution takes a continuous family of scipy.stats, got {type(family).__name__}: counts "
                "have a likelihood and a distribution of their own, CountDistribution."
            )
        self.family, self.weights = family, weights
        vars(self).update(parameters, ARRAYS=tuple(parameters))
        self._check()
        if np.isnan(family.support(**parameters)).any():
            raise ValueError(
                f"The family {family.name!r} does not allow some of the parameters {', '.join(parameters)}: scales, "
                "for instance, must be positive."
            )

    @classmethod
    def of(cls, frozen, weights, shape, shift=0.0, scale=1.0) -> Self:
        """Mixtures of frozen distributions, moved and stretched.

        Parameters
        ----------
        frozen : frozen distribution of SciPy
            Its parameters broadcast to one number for each component and each mixture.
        weights : array-like of shape (n_components,)
            Weights of the components.
        shape : tuple of int
            Shape of the mixtures.
        shift : float or array-like, default=0.0
            Added to values, after they were multiplied by ``scale``.
        scale : float or array-like, default=1.0
            Factor of values.

        Returns
        -------
        FamilyDistribution
            The mixtures.
        """
        names = [*(frozen.dist.shapes or "").replace(" ", "").split(","), "loc", "scale"]
        given = {"loc": 0.0, "scale": 1.0} | dict(zip(filter(None, names), frozen.args, strict=False)) | frozen.kwds
        whole = {name: np.broadcast_to(value, (len(weights), *shape)) for name, value in given.items()}
        return cls(frozen.dist, whole | {"loc": whole["loc"] * scale + shift, "scale": whole["scale"] * scale}, weights)

    def _named(self, numbers) -> dict:
        return dict(zip(self.ARRAYS, numbers, strict=True))

    def _like(self, arrays, weights):
        return type(self)(self.family, self._named(arrays), weights)

    @property
    def _kind(self) -> str:
        return f"{super()._kind} of {self.family.name}"

    @property
    def component_means(self) -> np.ndarray:
        """See :attr:`.Mixture.component_means`."""
        return self.family.mean(**self._named(self._arrays))

    @property
    def component_variances(self) -> np.ndarray:
        """See :attr:`.Mixture.component_variances`."""
        return self.family.var(**self._named(self._arrays))

    def _log_density(self, y, *numbers):
        return self._log_of(self.family.logpdf, y, *numbers)

    def logsf(self, y):
        """See :meth:`.Mixture.logsf`. It has all digits that SciPy has of the family."""
        return self._at(y, partial(self._log_of, self.family.logsf))

    def logcdf(self, y):
        """See :meth:`.Mixture.logcdf`. It has all digits that SciPy has of the family."""
        return self._at(y, partial(self._log_of, self.family.logcdf))

    def _log_of(self, function, y, *numbers):
        """Logarithm of the mixture of what a function of the family has the logarithms of."""
        return self._log_mixed(function(y, **self._named(numbers)))

    def _cdf(self, y, *numbers):
        return np.clip(self.weights @ self.family.cdf(y, **self._named(numbers)), 0.0, 1.0)

    def _quantile(self, q, *numbers):
        """Quantiles, which lie between those of the components."""
        ends = self.family.ppf(q, **self._named(numbers))
        low, high = ends.min(axis=0), ends.max(axis=0)
        open_ = np.flatnonzero(low < high)
        ends, of_open = (low[open_], high[open_]), (column[:, open_] for column in numbers)
        places = self._crossings(q[open_], ends, *of_open, xrtol=QUANTILE_ERROR)
        # Rounding may hide the change of sign between two ends that are very close.
        low[open_] = np.where(np.isnan(places), low[open_], places)
        return low

    def _crps(self, y, *numbers):
        """∫ (F(t) − 1{t ≥ y})² dt, over parts that end at y, or some deviations from the mean."""
        named, (x, weight) = self._named(numbers), np.polynomial.legendre.leggauss(SCORE_NODES)
        low, high = self.family.ppf(LEAST, **named).min(axis=0), self.family.isf(LEAST, **named).max(axis=0)
        component_means = self.family.mean(**named)
        mean = self.weights @ component_means
        std = np.sqrt(self.weights @ (self.family.var(**named) + (component_means - mean) ** 2))
        ends = np.sort(np.clip([low, *(mean + end * std for end in PARTS), high, y], low, high), axis=0)
        total = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
        for start, end in pairwise(ends):
            for place, share in zip(0.5 * (x + 1), 0.5 * weight, strict=True):
                F = self._cdf(start + place * (end - start), *numbers)
                total += share * (end - start) * (F - (start >= y)) ** 2
        return total

    def _draw(self, components, rng):
        uniform = by_draw(rng.random_sample, len(components), self.shape)
        return self.family.ppf(uniform, **self._named(column[components] for column in self._arrays))
