"""Distributions of targets which a monotone transformation turns into mixtures of Gaussians."""

from functools import cached_property

import numpy as np

from ._gaussian import PredictiveDistribution
from ._mixture import Mixture, fixed, integrated_score

#: Number of nodes of Gauss-Hermite quadrature for the moments of each component.
N_NODES = 32

#: Probability beyond either end of a score's integral.
TAIL = 1e-10

#: Step of the differences that estimate slopes, as a share of the target's size.
STEP = 1e-5


class Logarithm:
    """The natural logarithm as a transformer."""

    def transform(self, y):
        """Logarithms."""
        return np.log(y)

    def inverse_transform(self, z):
        """Exponentials."""
        return np.exp(z)


class TransformedDistribution(Mixture):
    """Predictive distributions of targets y = g(z), where g is monotone and z is a mixture of Gaussians.

    ``predict_dist`` of regressors with ``target_transform`` returns it. So does ``predict_dist(X, latent=True)`` of
    regressors for counts and positive targets. Density, quantiles and draws follow from those of z by the change of
    variables. Mean and variance are those of y itself, and not g of the mean of z. The methods are those of
    :class:`~skdgp.PredictiveDistribution`.

    Parameters
    ----------
    dist : PredictiveDistribution
        Distribution of z.
    transform : "log" or transformer
        A fitted transformer with ``transform`` from y (n, P) to z, and with ``inverse_transform``. It is strictly
        monotone in each column.
    output : int or array-like of shape (P,), default=None
        Numbers of the transformer's columns that ``dist`` belongs to. None stands for all columns. It is needed if
        ``dist`` has some of them.

    Attributes
    ----------
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Means, variances and standard deviations of y.

    Raises
    ------
    TypeError
        If ``dist`` is not a mixture of Gaussians, or if ``transform`` is no such transformer.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.distributions import TransformedDistribution
    >>> dist = TransformedDistribution(PredictiveDistribution.gaussian([0.0, 1.0], [0.5, 0.5]), "log")
    >>> dist.mean.round(4), dist.ppf(0.5).round(4)  # a log-normal distribution
    (array([1.1331, 3.0802]), array([1.    , 2.7183]))
    >>> dist.pdf([-1.0, 3.0]).round(4)
    array([0.    , 0.2608])
    """

    ARRAYS = ("means", "variances")

    def __init__(self, dist, transform, output=None):
        if not isinstance(dist, PredictiveDistribution):
            raise TypeError(
                f"TransformedDistribution takes a mixture of Gaussians, got {type(dist).__name__}: leave out one of "
                "the two transformations, or choose a likelihood with Gaussian predictions."
            )
        if transform != "log" and not hasattr(transform, "inverse_transform"):
            raise TypeError(
                f'transform={transform!r} is neither "log" nor a fitted transformer with inverse_transform: take '
                "scikit-learn's FunctionTransformer for a function and its inverse."
            )
        self.dist, self.output = dist, output
        self.transform = Logarithm() if isinstance(transform, str) and transform == "log" else transform
        self.means, self.variances, self.weights = dist.means, dist.variances, dist.weights

    def __getitem__(self, index):
        output = self.output
        if isinstance(index, tuple) and len(index) > 1:
            output = np.atleast_1d(self._all if output is None else output)[index[1]]
        return TransformedDistribution(self.dist[index], self.transform, output)

    def _like(self, arrays, weights):
        means, variances = arrays
        return TransformedDistribution(PredictiveDistribution(means, variances, weights), self.transform, self.output)

    @property
    def _common(self) -> tuple:  # type: ignore[override]
        return self.transform, self.output

    @cached_property
    def mean(self):
        """Means of y, by quadrature."""
        return fixed(self._expected(lambda y: y))

    @cached_property
    def var(self):
        """Variances of y, by quadrature."""
        return fixed(self._expected(lambda y: (y - self.mean) ** 2))

    def logpdf(self, y):
        """See :meth:`.Mixture.logpdf`: ``log p(z) + log |dz/dy|``."""
        y = self._broadcast(y)
        z = self._forward(y)
        inside = np.isfinite(z)
        with np.errstate(divide="ignore"):
            found = self.dist.logpdf(np.where(inside, z, 0.0)) + np.log(self._slope(y))
        return np.where(inside, found, np.where(np.isnan(y), np.nan, -np.inf))

    def cdf(self, y):
        """See :meth:`.Mixture.cdf`."""
        y = self._broadcast(y)
        z = self._forward(y)
        inside = ~np.isnan(z)
        p = self.dist.cdf(np.where(inside, z, 0.0))
        return np.where(inside, np.where(self._rising, p, 1 - p), np.where(np.isnan(y), np.nan, 0.0))

    def ppf(self, q):
        """See :meth:`.Mixture.ppf`."""
        q = np.asarray(q, dtype=np.float64)
        return self._backward(self.dist.ppf(np.where(self._rising, q, 1 - q)))

    def _draw(self, components, rng):
        return self._backward(self.dist._draw(components, rng))

    def crps(self, y):
        """See :meth:`.Mixture.crps`: the integral over z, to six digits."""
        y = self._broadcast(y)
        low, high = (self.dist.ppf(q) + np.zeros(y.shape) for q in (TAIL, 1 - TAIL))
        z = self._forward(y)
        first, last = self._backward(low), self._backward(high)
        beyond = np.maximum(np.minimum(first, last) - y, 0) + np.maximum(y - np.maximum(first, last), 0)
        z = np.clip(np.where(np.isnan(z), np.where(self._rising, -np.inf, np.inf), z), low, high)
        return beyond + integrated_score(self.dist.cdf, z, low, high, lambda u: 1 / self._slope(self._backward(u)))

    @cached_property
    def _rising(self) -> np.ndarray:
        """Whether g increases: (), or (P,) for several outputs. Rows at a limit or a pole of g do not tell."""
        centre, spread = self.dist.mean, self.dist.std
        above, below = self._backward(centre + spread), self._backward(centre - spread)
        return (above > below).sum(axis=0) >= (above < below).sum(axis=0)

    def _expected(self, function):
        nodes, shares = np.polynomial.hermite_e.hermegauss(N_NODES)
        deviation, total = np.sqrt(self.variances), np.zeros(self.shape)
        for node, share in zip(nodes, shares / shares.sum(), strict=True):
            total += share * np.tensordot(self.weights, function(self._backward(self.means + node * deviation)), axes=1)
        return total

    def _slope(self, y):
        """|dz/dy|, from differences."""
        if isinstance(self.transform, Logarithm):
            with np.errstate(divide="ignore"):
                return np.where(y > 0, 1 / np.maximum(y, 0.0), 0.0)
        step = STEP * np.maximum(np.abs(y), STEP)
        return np.abs(self._forward(y + step) - self._forward(y - step)) / (2 * step)

    def _forward(self, y):
        """z of targets (..., n) or (..., n, P); NaN for targets that have none."""
        return self._columns(self.transform.transform, y, self._middle)

    @cached_property
    def _middle(self):
        """The row of targets whose z are all zero."""
        plain = isinstance(self.transform, Logarithm) or self.output is None
        return 0.0 if plain else np.asarray(self.transform.inverse_transform(np.zeros((1, len(self._all)))))

    def _backward(self, z):
        """Targets of z: the inverse of :meth:`_forward`."""
        return self._columns(self.transform.inverse_transform, z)

    def _columns(self, function, values, others=0.0):
        """``function`` of values (..., n) or (..., n, P). If some outputs lack, ``others`` fill the rest of the row."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if isinstance(self.transform, Logarithm):
                return function(values)
            columns = np.atleast_1d(self._all if self.output is None else self.output)
            rows = values.reshape(-1, len(columns))
            table = np.zeros((len(rows), len(self._all))) + others
            table[:, columns] = rows
            return np.asarray(function(table))[:, columns].reshape(values.shape)

    @property
    def _all(self) -> np.ndarray:
        """Numbers of the transformer's columns."""
        n_outputs = self.shape[1] if len(self.shape) == 2 else 1
        return np.arange(getattr(self.transform, "n_features_in_", n_outputs))
