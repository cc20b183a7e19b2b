"""Distributions of counts and of positive numbers whose rate is the exponential of a mixture of Gaussians.

    y | f ~ family(rate exp(f), dispersion d),        f ~ Σ_s ω_s N(m_s, v_s)

A component is the family averaged over one Gaussian. This average has no closed form, and is computed by the
trapezoidal rule. As a function of f the family has a width of about √(1/rate + d). The distance of two nodes is about
the width of the product of family and Gaussian. Where that would take very many nodes, the family is made a little
wider instead, by the distance of two nodes.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize.elementwise import find_root
from scipy.special import betainc, gammainc, gammaincc, gammaincinv, gammaln, ndtri, pdtr, pdtrik, xlogy

from ._mixture import Mixture, integrated_score

#: How far the nodes reach, in deviations of the Gaussian, and their smallest and largest number.
REACH, FEWEST_NODES, MOST_NODES = 6.0, 11, 257

#: Distance of the nodes, in widths of the integrand; the error is exp(−2π²/STEP²).
STEP = 1.1

#: Dispersion below this counts as none.
LEAST_DISPERSION = 1e-7

#: Probability beyond either end of the sum or integral of the CRPS, and the largest number of counts in the sum. If
#: there are more, each count of a subset also stands for the counts up to the next.
TAIL, MOST_COUNTS = 1e-10, 4096

#: Distance of the ends of a search for log y at which it stops.
SLACK = 1e-13

#: Largest number of entries of an array with which scores are computed.
SCORE_NUMBERS = 2**22


@dataclass(frozen=True, eq=False, repr=False)
class _LogLink(Mixture):
    """Base class of the families. Their documentation describes the arrays."""

    ARRAYS: ClassVar = ("means", "variances", "dispersions")

    #: Smallest dispersion of the family.
    least: ClassVar[float] = 0.0

    means: np.ndarray
    variances: np.ndarray
    dispersions: np.ndarray
    weights: np.ndarray

    def __post_init__(self):
        self._check()
        m, v, d = self._arrays
        if not (all(np.isfinite(each).all() for each in (m, v, d)) and (v >= 0).all() and (d >= self.least).all()):
            raise ValueError(
                "Means must be finite, variances finite and not negative, and dispersions finite and not less than "
                f"{self.least}: some are not."
            )

    @property
    def component_means(self) -> np.ndarray:
        """E exp(f) of each component."""
        return np.exp(self.means + 0.5 * self.variances)

    @property
    def component_variances(self) -> np.ndarray:
        """Variances of the components: the mean of the family's variance, plus the variance of the rate."""
        mean = self.component_means
        return self._simplest(mean) + mean**2 * (np.expm1(self.variances) + self.dispersions * np.exp(self.variances))

    def _simplest(self, rate):
        """Variance of the family without dispersion."""
        raise NotImplementedError

    def _expanded(self, m, v, d):
        """Members of the family at all nodes: logarithms of rates and dispersions (K·S, N), and weights (K·S,)."""
        narrow = 1 / (self._simplest(np.exp(m)) / np.exp(2 * m) + d)  # one over the family's squared width in f
        ratio = v * narrow
        most = ((MOST_NODES - 1) * STEP / (2 * REACH)) ** 2 - 1  # largest ratio that the nodes resolve
        wider = np.maximum(0.0, (ratio - most) / (narrow * (1 + most)))
        step = STEP / math.sqrt(1 + min(most, float(ratio.max(initial=0.0))))
        half = max(FEWEST_NODES // 2, math.ceil(REACH / step))
        z = np.arange(-half, half + 1) * (REACH / half)
        share = np.exp(-0.5 * z**2)
        log_rate = m + np.sqrt(v - wider) * z[:, None, None] + 0.5 * wider  # (K, S, N)
        dispersion = np.broadcast_to((1 + d) * np.exp(wider) - 1, log_rate.shape)
        weight = (share / share.sum())[:, None] * self.weights
        return log_rate.reshape(-1, m.shape[1]), dispersion.reshape(-1, m.shape[1]), weight.ravel()

    def _log_density(self, y, *numbers):
        log_rate, dispersion, weight = self._expanded(*numbers)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            parts = self._family_log_density(y, log_rate, dispersion) + np.log(weight)[:, None]
            largest = parts.max(axis=0)
            found = largest + np.log(np.exp(parts - largest).sum(axis=0))
        return np.where(largest > -np.inf, found, -np.inf)

    def _cdf(self, y, *numbers):
        log_rate, dispersion, weight = self._expanded(*numbers)
        return np.clip(weight @ self._family_cdf(y, log_rate, dispersion), 0.0, 1.0)

    def _draw(self, components, rng):
        # Rows are drawn first, so that the draws of a row do not depend on how many rows come after it.
        uniform = rng.random_sample((len(self), len(components), *self.shape[1:], 3))
        first, second, third = (np.moveaxis(uniform[..., i], 1, 0) for i in range(3))
        m, v, d = (each[components] for each in self._arrays)
        return self._family_draw(np.exp(m + np.sqrt(v) * ndtri(first)), d, second, third)

    def _family_log_density(self, y, log_rate, dispersion):
        raise NotImplementedError

    def _family_cdf(self, y, log_rate, dispersion):
        raise NotImplementedError

    def _family_draw(self, rate, dispersion, first, second):
        raise NotImplementedError


class CountDistribution(_LogLink):
    """Predictive distributions of counts: Poisson or negative binomial distributions whose rate is uncertain.

    ``predict_dist`` of regressors with ``likelihood="poisson"`` or ``"negative_binomial"`` returns it. Given its rate,
    a count has a Poisson distribution if the dispersion d is zero. Otherwise it has a negative binomial distribution
    with the variance rate + d rate². The methods are those of :class:`~skdgp.PredictiveDistribution`; ``pdf`` and
    ``logpdf`` are probabilities of counts and their logarithms, and quantiles are counts.

    Parameters
    ----------
    means, variances : array-like of shape (S, n) or (S, n, P)
        Means and variances of S Gaussians for n rows (and P outputs). Their mixture is the distribution of the
        logarithm of the rate. Variances may be zero.
    dispersions : array-like of shape (S, n) or (S, n, P)
        Dispersion d of each component. Zero is a Poisson distribution.
    weights : array-like of shape (S,)
        Weights of the components. They are not negative, and add up to one.

    Attributes
    ----------
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Means, variances and standard deviations of the targets.

    Raises
    ------
    ValueError
        If shapes do not match, or if the numbers are not moments and weights of mixtures.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp.distributions import CountDistribution
    >>> dist = CountDistribution(np.log([[2.0, 50.0]]), [[0.0, 0.0]], [[0.0, 0.1]], [1.0])
    >>> dist.mean.round(3), dist.var.round(3)
    (array([ 2., 50.]), array([  2., 300.]))
    >>> dist.pmf([2, 50]).round(4)
    array([0.2707, 0.0228])
    >>> dist.interval(0.9)
    (array([ 0., 25.]), array([ 5., 81.]))
    """

    discrete: ClassVar = True

    def pmf(self, y):
        """Probability of the count ``y``. It is the same as :meth:`pdf`, with SciPy's name for counts.

        Parameters
        ----------
        y : array-like, broadcastable to (..., n) or (..., n, P)
            Counts.

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
            Counts.

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

    def _simplest(self, rate):
        return rate

    def _family_log_density(self, y, log_rate, dispersion):
        rate, spread = np.exp(log_rate), dispersion > LEAST_DISPERSION
        found = y * log_rate - rate - gammaln(y + 1)
        if spread.any():
            r = 1 / np.maximum(dispersion, LEAST_DISPERSION)
            ways = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
            found = np.where(spread, ways - (r + y) * np.log1p(rate / r) + xlogy(y, rate / r), found)
        return np.where((y >= 0) & (y == np.floor(y)), found, -np.inf)

    def _family_cdf(self, y, log_rate, dispersion):
        k, rate = np.maximum(np.floor(y), 0.0), np.exp(log_rate)
        found = gammaincc(k + 1, rate)
        if (dispersion > LEAST_DISPERSION).any():
            r = 1 / np.maximum(dispersion, LEAST_DISPERSION)
            found = np.where(dispersion > LEAST_DISPERSION, betainc(r, k + 1, 1 / (1 + rate / r)), found)
        return np.where(y >= 0, found, 0.0)

    def _family_draw(self, rate, dispersion, first, second):
        r = 1 / np.maximum(dispersion, LEAST_DISPERSION)
        rate = np.where(dispersion > LEAST_DISPERSION, rate * gammaincinv(r, first) / r, rate)
        with np.errstate(invalid="ignore"):
            k = np.ceil(np.nan_to_num(pdtrik(second, rate)))
        less = np.maximum(k - 1, 0)
        return np.where(pdtr(less, rate) >= second, less, k)

    def _quantile(self, q, *numbers):
        """The smallest counts k with F(k) ≥ q, by bisection over integers."""
        log_rate, dispersion, weight = self._expanded(*numbers)
        rate = np.exp(log_rate)

        def cdf(k):
            return weight @ self._family_cdf(k, log_rate, dispersion)

        mean = weight @ rate
        low = np.full_like(q, -1.0)
        high = np.ceil(mean + 4 * np.sqrt(weight @ (rate + dispersion * rate**2 + (rate - mean) ** 2)) + 8)
        certain = q >= 1.0
        target = np.where(certain, 0.5, q)
        while (short := cdf(high) < target).any():
            low, high = np.where(short, high, low), np.where(short, 2 * high, high)
        while ((high - low) > 1).any():
            middle = np.floor(0.5 * (low + high))
            enough = cdf(middle) >= target
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(certain, np.inf, high)

    def _crps(self, y, *numbers):
        """Σ_k (F(k) − 1{k ≥ y})². If there are many counts, each of a subset stands for those up to the next."""
        log_rate, dispersion, weight = self._expanded(*numbers)
        low, high = (self._quantile(np.full_like(y, q), *numbers) for q in (TAIL, 1 - TAIL))
        low, high = np.minimum(low, np.floor(y)), np.maximum(high, np.ceil(y)) + 1
        found = np.empty_like(y)
        for column, (first, last, observed) in enumerate(zip(low, high, y, strict=True)):
            n_counts = int(last - first) + 1
            k = np.unique(np.linspace(first, last, min(n_counts, MOST_COUNTS)).round())
            each = log_rate[:, column, None], dispersion[:, column, None]
            parts = np.array_split(k, -(-len(k) * len(weight) // SCORE_NUMBERS))
            if n_counts <= MOST_COUNTS:  # probabilities take less time than their sums F
                F = np.cumsum(
                    np.concatenate([weight @ np.exp(self._family_log_density(part, *each)) for part in parts])
                )
            else:
                F = np.concatenate([weight @ self._family_cdf(part, *each) for part in parts])
            found[column] = np.diff(k, append=last + 1) @ (F - (k >= observed)) ** 2
        return found


class GammaDistribution(_LogLink):
    """Predictive distributions of positive targets: gamma distributions whose mean is uncertain.

    ``predict_dist`` of regressors with ``likelihood="gamma"`` returns it. Given its mean μ, a target has a gamma
    distribution with the variance d μ², which means with the shape 1/d. The methods are those of
    :class:`~skdgp.PredictiveDistribution`.

    Parameters
    ----------
    means, variances : array-like of shape (S, n) or (S, n, P)
        Means and variances of S Gaussians for n rows (and P outputs). Their mixture is the distribution of the
        logarithm of μ. Variances may be zero.
    dispersions : array-like of shape (S, n) or (S, n, P)
        Dispersion d of each component, which is positive.
    weights : array-like of shape (S,)
        Weights of the components. They are not negative, and add up to one.

    Attributes
    ----------
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Means, variances and standard deviations of the targets.

    Raises
    ------
    ValueError
        If shapes do not match, or if the numbers are not moments and weights of mixtures.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp.distributions import GammaDistribution
    >>> dist = GammaDistribution(np.log([[2.0, 50.0]]), [[0.0, 0.1]], [[0.25, 0.25]], [1.0])
    >>> dist.mean.round(3), dist.std.round(3)
    (array([ 2.   , 52.564]), array([ 1.   , 32.465]))
    >>> lower, upper = dist.interval(0.9)
    >>> lower.round(3), upper.round(3)
    (array([ 0.683, 15.061]), array([  3.877, 114.476]))
    """

    least = LEAST_DISPERSION

    def _simplest(self, rate):
        return 0.0 * rate

    def _family_log_density(self, y, log_rate, dispersion):
        a = 1 / dispersion
        z = np.log(np.maximum(y, 0.0)) - log_rate  # logarithm of y over its mean
        return np.where(y > 0, a * np.log(a) - gammaln(a) + a * (z - np.exp(z)) - np.log(np.maximum(y, 0.0)), -np.inf)

    def _family_cdf(self, y, log_rate, dispersion):
        return gammainc(1 / dispersion, np.maximum(y, 0.0) / dispersion * np.exp(-log_rate))

    def _family_draw(self, rate, dispersion, first, second):
        return rate * gammaincinv(1 / dispersion, first) * dispersion

    def _quantile(self, q, *numbers):
        """Quantiles by a search for log y between the quantiles of the components."""
        log_rate, dispersion, weight = self._expanded(*numbers)
        inside = np.flatnonzero((q > 0) & (q < 1))
        found = np.where(q >= 1, np.inf, 0.0)
        if not len(inside):
            return found
        own = np.log(gammaincinv(1 / dispersion[:, inside], q[inside]) * dispersion[:, inside]) + log_rate[:, inside]

        def excess(log_y, column):
            there = column.astype(int)
            return weight @ self._family_cdf(np.exp(log_y), log_rate[:, there], dispersion[:, there]) - q[there]

        ends = own.min(axis=0) - SLACK, own.max(axis=0) + SLACK
        root = find_root(excess, ends, args=(inside.astype(float),), tolerances={"xatol": SLACK})
        # If the quantiles of all components are the same, rounding errors decide the signs at both ends.
        found[inside] = np.exp(np.where(np.isnan(root.x), 0.5 * (ends[0] + ends[1]), root.x))
        return found

    def _crps(self, y, *numbers):
        low, high = (self._quantile(np.full_like(y, q), *numbers) for q in (TAIL, 1 - TAIL))
        place = np.clip(y, low, np.maximum(high, y))
        within = integrated_score(
            lambda u: self._cdf(np.exp(u), *numbers), np.log(place), np.log(low), np.log(np.maximum(high, y)), np.exp
        )
        return within + np.maximum(low - y, 0.0)
