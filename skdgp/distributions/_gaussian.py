"""The predictive distribution: a mixture of Gaussians for each row and output."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from scipy.special import log_ndtr, ndtri

from ._mixture import Mixture, by_draw

#: The search for a quantile takes its last step when it is this close to the quantile, in standard deviations.
QUANTILE_TOLERANCE = 1e-5

#: Largest distance of nodes of the CRPS near the mean of a component, in its deviations. The error is then about 1e-10
#: of the result.
NODE_DISTANCE = 0.7

#: How near to the mean that is, in deviations.
NODE_WIDTH = 3.0

#: Deviations beyond which nothing is left.
NODE_REACH = 7.5

#: Steps of Newton's method, after which every other step halves the bracket.
MAX_NEWTON = 6

#: Steps that close any bracket.
MAX_SEARCH = 400


@dataclass(frozen=True, eq=False, repr=False)
class PredictiveDistribution(Mixture):
    """Predictive distributions of rows: one Gaussian mixture for each row (and output).

    ``predict_dist`` of the regressors returns it. You can also make one by hand from the predictions of any other
    model, such as means and standard deviations (see :meth:`gaussian`), to use the same methods and scores. All rows
    share the weights of the components. All methods work row by row, and points broadcast against rows as in NumPy.
    Points of shape ``(n,)`` are one point for each row. Points of shape ``(k, 1)`` are the same k points for all rows,
    with results of shape ``(k, n)``.

    Parameters
    ----------
    means, variances : array-like of shape (S, n) or (S, n, P)
        Means and variances of S components for n rows (and P outputs), in the user's units and their square. Variances
        are positive.
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
    ValueError
        If shapes do not match, or if the numbers are not moments and weights of mixtures.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> dist = PredictiveDistribution(
    ...     [[0.0, 10.0], [2.0, 10.0]], [[1.0, 4.0], [1.0, 4.0]], [0.5, 0.5]
    ... )
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

    ARRAYS: ClassVar = ("means", "variances")

    def __post_init__(self):
        self._check()
        m, v = self.means, self.variances
        if not (np.isfinite(m).all() and np.isfinite(v).all() and (v > 0).all()):
            raise ValueError("Means must be finite, and variances positive and finite: some are not.")

    @classmethod
    def gaussian(cls, mean, std):
        """Distributions that are a single Gaussian for each row (and output).

        Parameters
        ----------
        mean, std : array-like of shape (n,) or (n, P)
            Means and standard deviations, as scikit-learn's ``predict(X, return_std=True)`` returns them. Deviations
            are positive.

        Returns
        -------
        PredictiveDistribution
            Of shape ``(n,)`` or ``(n, P)``.

        Raises
        ------
        ValueError
            If shapes do not match, or if the numbers are not means and deviations of Gaussians.

        Examples
        --------
        >>> from skdgp import PredictiveDistribution
        >>> PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 2.0])
        PredictiveDistribution(shape=(2,), 1 components)
        """
        std = np.asarray(std, dtype=np.float64)[None]
        return cls(np.asarray(mean)[None], std * np.abs(std), np.ones(1))  # a negative deviation must not pass

    @property
    def component_means(self) -> np.ndarray:
        """``means``."""
        return self.means

    @property
    def component_variances(self) -> np.ndarray:
        """``variances``."""
        return self.variances

    def _log_density(self, y, m, v):
        with np.errstate(over="ignore", invalid="ignore"):
            return self._log_mixed(-0.5 * ((y - m) ** 2 / v + np.log(2 * np.pi * v)))

    def _cdf(self, y, m, v):
        return self.weights @ _ndtr((y - m) / np.sqrt(v))

    def logsf(self, y):
        """See :meth:`.Mixture.logsf`: log Σ_s ω_s Φ((m_s − y)/√v_s)."""
        return self._at(y, lambda y, m, v: self._log_mixed(log_ndtr((m - y) / np.sqrt(v))))

    def logcdf(self, y):
        """See :meth:`.Mixture.logcdf`: log Σ_s ω_s Φ((y − m_s)/√v_s)."""
        return self._at(y, lambda y, m, v: self._log_mixed(log_ndtr((y - m) / np.sqrt(v))))

    def _quantile(self, q, m, v):
        return _quantile(q, m, v, self.weights)

    def _crps(self, y, m, v):
        return self.weights @ _mean_absolute(y - m, v) - _half_distance(m, v, self.weights)

    def _draw(self, components, rng):
        noise = by_draw(rng.standard_normal, len(components), self.shape)
        return self.means[components] + np.sqrt(self.variances[components]) * noise


def _ndtr(z: np.ndarray) -> np.ndarray:
    """Φ(z), overwriting ``z``. PyTorch's erfc is faster than SciPy's, and has all digits of lower tails."""
    z *= -math.sqrt(0.5)
    torch.from_numpy(z).erfc_()
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


def _half_distance(m: np.ndarray, v: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """½ E|t − t'| (N,) of two independent draws t and t' from mixtures (S, N).

    It is a sum over all pairs of components, and also ∫ F(1 − F) dt. The sum is exact, but its time grows with S².
    The integral needs few nodes unless components are narrow. So rows take the integral where it is faster: a node and
    a component cost about as much as a pair.
    """
    grid = _Grid.of(m, v)
    smooth = 2 * grid.n_nodes < len(weights)
    distances = np.empty(m.shape[1])
    order = np.flatnonzero(smooth)[np.argsort(-grid.n_nodes[smooth], kind="stable")]  # rows that go on come first
    distances[order] = _integrated_half_distance(m[:, order], v[:, order], weights, grid.of_rows(order))
    distances[~smooth] = _paired_half_distance(m[:, ~smooth], v[:, ~smooth], weights)
    return distances


class _Grid(NamedTuple):
    """Nodes t = centre + scale sinh u of each row, with equal steps of u; all of shape (N,)."""

    centre: np.ndarray
    scale: np.ndarray
    start: np.ndarray
    step: np.ndarray
    n_nodes: np.ndarray

    @classmethod
    def of(cls, m: np.ndarray, v: np.ndarray) -> Self:
        """Nodes for mixtures (S, N), dense where narrow components are."""
        deviation, scale = np.sqrt(v), np.sqrt(v.min(axis=0))
        precision = (scale / deviation) ** 2
        centre = (precision * m).sum(axis=0) / precision.sum(axis=0)
        distance = np.abs(m - centre) + NODE_WIDTH * deviation
        step = NODE_DISTANCE * (deviation / np.hypot(scale, distance)).min(axis=0)  # dt = scale cosh u du
        start, end = (
            np.arcsinh((t - centre) / scale)
            for t in ((m - NODE_REACH * deviation).min(axis=0), (m + NODE_REACH * deviation).max(axis=0))
        )
        n_nodes = np.ceil((end - start) / step)
        return cls(centre, scale, start, (end - start) / n_nodes, n_nodes)

    def of_rows(self, rows: np.ndarray | slice) -> Self:
        """Nodes of some rows."""
        return type(self)(*(column[rows] for column in self))

    def node(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Places t of one node of each row, and its weights in integrals over t."""
        u = self.start + (number + 0.5) * self.step
        return self.centre + self.scale * np.sinh(u), self.step * self.scale * np.cosh(u)


def _integrated_half_distance(m: np.ndarray, v: np.ndarray, weights: np.ndarray, grid: _Grid) -> np.ndarray:
    """∫ F(1 − F) dt by the trapezoidal rule in u, which is very exact for functions that vanish at both ends.

    Rows are sorted by their number of nodes, and the largest comes first.
    """
    total, rate = np.zeros(m.shape[1]), 1 / np.sqrt(v)
    for number in range(int(grid.n_nodes.max(initial=0.0))):
        going = slice(np.count_nonzero(grid.n_nodes > number))
        t, weight = grid.of_rows(going).node(number)
        F = weights @ _ndtr((t - m[:, going]) * rate[:, going])
        total[going] += weight * F * (1 - F)
    return total


def _paired_half_distance(m, v, weights):
    """½ Σ_st ω_s ω_t A(m_s − m_t, v_s + v_t)."""
    total = 0.5 * weights**2 @ _mean_absolute(np.zeros_like(m), 2 * v)
    for s in range(len(weights) - 1):  # every pair once, hence without the ½
        later = slice(s + 1, None)
        total += weights[s] * (weights[later] @ _mean_absolute(m[s] - m[later], v[s] + v[later]))
    return total


def _quantile(q: np.ndarray, m: np.ndarray, v: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Quantiles (N,) of mixtures (S, N)."""
    rate = 1 / np.sqrt(v)
    z = ndtri(q)
    centre = weights @ m
    with np.errstate(invalid="ignore"):
        ends = m + z / rate  # no component's CDF crosses q outside of them
    lower, upper = ends.min(axis=0), ends.max(axis=0)
    x = np.clip(centre + z * np.sqrt(weights @ (v + (m - centre) ** 2)), lower, upper)
    quantiles, rows = x.copy(), np.arange(len(x))  # rows whose quantile is not known yet
    for turn in range(MAX_SEARCH):
        going = np.nextafter(lower, np.inf) < upper  # false if the bracket is closed or infinite
        if going.mean() < 0.7:  # copies cost about as much as a step
            quantiles[rows] = x
            if not going.any():
                break
            m, rate = m[:, going], rate[:, going]
            x, lower, upper, q, z, rows = (column[going] for column in (x, lower, upper, q, z, rows))
        # Newton's method can go back and forth forever. Halving the bracket now and then prevents that.
        halve = turn >= MAX_NEWTON and turn % 2 == 0
        F, p = _cdf_and_density(x, m, rate, weights)
        x, lower, upper = _newton_step(x, F, p, (lower, upper), q, z, sharpest=rate.max(axis=0), halve=halve)
    quantiles[rows] = x
    return quantiles


def _cdf_and_density(x, m, rate, weights):
    """F(x) and p(x) of mixtures with components of means ``m`` and deviations 1/``rate``."""
    u = (x - m) * rate
    density = np.square(u)
    density *= -0.5
    torch.from_numpy(density).exp_()
    density *= rate
    return weights @ _ndtr(u), weights @ density * (1 / math.sqrt(2 * math.pi))


def _newton_step(x, F, p, bracket, q, z, *, sharpest, halve):
    """The next guess and its bracket. If the guess is good enough, the bracket closes."""
    lower, upper = bracket
    below = F < q
    lower, upper = np.where(below, x, lower), np.where(below, upper, x)
    reached = ndtri(F)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        step = (z - reached) * np.exp(-0.5 * reached**2) / (math.sqrt(2 * math.pi) * p)  # d Φ⁻¹(F) = p/φ(Φ⁻¹(F)) dx
        proposed = x + step
        # The error of the next guess is the square of this one, in deviations of the sharpest component.
        done = (np.abs(z - reached) < QUANTILE_TOLERANCE) & (np.abs(step) * sharpest < QUANTILE_TOLERANCE)
    inside = (proposed >= lower) & (proposed <= upper) & (not halve)
    proposed = np.where(inside | done, np.clip(proposed, lower, upper), 0.5 * (lower + upper))
    return proposed, np.where(done, proposed, lower), np.where(done, proposed, upper)
