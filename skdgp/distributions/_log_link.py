"""Distributions of counts and of positive numbers whose rate is the exponential of a mixture of Gaussians.

    y | f ~ family(rate exp(f), dispersion d),        f ~ Σ_s ω_s N(m_s, v_s)

A component is the family averaged over one Gaussian, an integral over f. The module ``families`` has the density. For
the distribution function there are two forms. Given f it is P(L > f), where L has the density y p(y | f), and y is the
next count if y is one. So P(L > f) is

    ∫ P(L > f) N(f | m, v) df = ∫ Φ((l − m)/√v) p_L(l) dl.

The narrower of the two densities is integrated, so that the other factor is smooth between its nodes. Nodes of a row
depend on nothing but the row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from scipy.special import betainc, gammainc, gammaincc, gammaincinv, log_ndtr, ndtr, ndtri, pdtr, pdtrik

from ._log_rates import DROP, EVEN_NODES, LARGEST_EVEN, even_nodes, nodes_around, panels
from ._mixture import Discrete, Mixture, by_draw
from .families import GAMMA, NEGATIVE_BINOMIAL, POISSON, integrand_peak, log_average, log_integral

#: Number of nodes for densities.
N_NODES = 64

#: Number of nodes that are computed together, so that they stay in the cache.
BLOCK_NODES = 2**17

#: From this probability of smaller values on, that of larger ones is computed by itself.
UPPER_TAIL = 0.9

#: Smallest variance of the logarithm of a rate in integrals.
LEAST_VARIANCE = 1e-14

#: If the squared width of the family is less than this, floating point does not resolve it, and L is a single value.
SHARP = 1e-16

#: Dispersion below this counts as none.
LEAST_DISPERSION = 1e-7

#: How far the logarithm of a rate reaches, in deviations, for quantiles.
REACH = 9.0

#: Counts up to this one are summed one by one in scores.
FIRST_COUNTS = 64

#: If no more counts than these matter, all of them are.
ALL_COUNTS = 512

#: Variance of a rate's logarithm, as a share of the family's squared width, for which few nodes are enough.
NARROW = EVEN_NODES[0][1]

#: Rows of which no more counts than these matter have their scores together.
LEAST_COUNTS = 16

#: Largest number of probabilities that are computed at once for scores.
SCORE_NUMBERS = 2**20

#: Number of rows whose scores' integrals are computed at once, times the number of components.
SCORE_ROWS = 64

#: How far nodes reach that rows share, in deviations of a component.
SHARED_REACH = 7.0

#: How far the logarithm of a rate reaches for scores, in deviations. They are integrals of squares.
SCORE_REACH = 6.0

#: How much the logarithm of a probability may be below its largest value in scores.
SCORE_DROP = 18.0

#: Number of parts of each half of a component in a score's integral.
N_PARTS = 5

#: Steps of the search for the quantile of counts.
QUANTILE_STEPS = 120

#: Its relative error for counts so large that it matters.
QUANTILE_ERROR = 1e-12

#: From this rate on, a count is its rate plus Gaussian noise as far as its draws are concerned.
LARGE_RATE = 1e9

#: Distance of the ends of a search for log y at which it stops.
SLACK = 1e-13

#: Largest logarithm of a typical value, whose square must be a number.
LARGEST_LOGARITHM = 350.0

#: Stands for the rate zero where its logarithm is needed.
LEAST_RATE = 1e-18

#: Largest logarithm of a number.
_FARTHEST = 700.0

#: Stands for nodes of the family alone.
_SINGLE = -1

_LOG_2PI = math.log(2 * math.pi)


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
        if not (all(np.isfinite(column).all() for column in (m, v, d)) and (v >= 0).all() and (d >= self.least).all()):
            raise ValueError(
                "Means must be finite, variances finite and not negative, and dispersions finite and not less than "
                f"{self.least}: some are not."
            )
        largest = (np.abs(m) + v + 0.5 * np.log1p(d)).max(initial=0.0)
        if largest > LARGEST_LOGARITHM:
            raise ValueError(
                "Means and variances are those of logarithms. Some of them stand for numbers near "
                f"exp(±{largest:.3g}), whose squares overflow or underflow: choose a unit in which these exponents are "
                f"below {LARGEST_LOGARITHM:.0f}."
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

    def _log_density(self, y, m, v, d):
        possible = self._possible(y) & np.isfinite(y)
        v, y = np.maximum(v, LEAST_VARIANCE), np.broadcast_to(np.where(possible, y, 1.0), m.shape)
        parts = self._per_family(_log_averages, y, m, v, d)
        with np.errstate(divide="ignore"):
            sharp = (self._squared_width(y, d) < SHARP) & (v > SHARP)
            parts = np.where(sharp, _log_normal_density(y, m, v), parts)
        return np.where(possible, self._log_mixed(parts), -np.inf)

    def _family_log_density(self, y, log_rate, dispersion):
        """log p(y | f) for f = ``log_rate``."""
        return self._per_family(lambda family, *columns: family.log_density(*columns), y, log_rate, dispersion)

    def _per_family(self, function, *columns):
        """``function(family, *columns)`` of tensors, where the last column has the dispersions."""
        columns = np.broadcast_arrays(*columns)
        values = np.empty(columns[0].shape)
        for family, these in self._families(columns[-1]):
            if these.any():
                values[these] = function(family, *(torch.from_numpy(column[these]) for column in columns)).numpy()
        return values

    def _families(self, dispersion):
        """Families, and for which dispersions they are meant."""
        raise NotImplementedError

    def _cdf(self, y, *numbers):
        return np.where(y >= 0, self._smooth_cdf(np.maximum(np.floor(y) if self.discrete else y, 0.0), *numbers), 0.0)

    def logsf(self, y):
        """See :meth:`.Mixture.logsf`. It has the digits of small probabilities, too."""
        return self._at(y, self._log_sf)

    def _log_sf(self, y, m, v, d):
        """Logarithm of the probability of values above y. Where it is small it is an integral of its own."""
        possible = y >= 0
        y = np.maximum(np.floor(y) if self.discrete else y, 0.0)
        level = np.broadcast_to(y + 1.0 if self.discrete else y, m.shape)
        below = self._component_cdfs(y, m, v, d)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            parts, small = np.log1p(-np.minimum(below, 1.0)), (below > UPPER_TAIL) & np.isfinite(level)
            v = np.maximum(v, LEAST_VARIANCE)
            tails = self._per_family(
                lambda family, *columns: _by_blocks(partial(self._log_tails, family), *columns),
                *(column[small] for column in (level, m, v, d)),
            )
            sharp = log_ndtr((m - np.log(level)) / np.sqrt(v))[small]
            parts[small] = np.where((self._squared_width(level, d) < SHARP)[small], sharp, tails)
        return np.where(possible, np.minimum(self._log_mixed(parts), 0.0), 0.0)

    def _log_tails(self, family, level, m, v, d):
        """log ∫ P(L ≤ f) N(f | m, v) df where it is small, by nodes that suit the density at the same value."""
        peak, _ = integrand_peak(family, level, m, v, d)

        def log_probability(offset):
            columns = np.broadcast_arrays(level[:, None], m[:, None] + offset, d[:, None])
            return torch.from_numpy(np.log(self._family_sf(*columns)))

        return log_integral(log_probability, v, peak, 2 * (torch.full_like(v, math.inf),), N_NODES)

    def _smooth_cdf(self, y, *numbers):
        """The distribution function at y ≥ 0, and for counts its smooth continuation between them."""
        return np.clip(self.weights @ self._component_cdfs(y, *numbers), 0.0, 1.0)

    def _component_cdfs(self, y, m, v, d):
        """That of each component (S, N)."""
        parts = np.empty(m.shape)
        level = np.broadcast_to(y + 1.0 if self.discrete else y, m.shape)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
            narrow = self._reach(level, d) < np.sqrt(2 * DROP * v)
            n_nodes = _even_number(v, 1 / self._squared_width(level, d))
            n_nodes = np.where((n_nodes == 0) & narrow, _SINGLE, n_nodes)
            forms = {_SINGLE: self._over_family, 0: self._over_rate}
            for number in np.unique(n_nodes):
                these = n_nodes == number
                form = forms.get(number, partial(self._evenly, number))
                parts[these] = form(level[these], m[these], v[these], d[these])
        return parts

    def _reach(self, level, d):
        """How far L is from its mode at most: near the mode it is like a Gaussian, and farther like an exponential."""
        width = self._squared_width(level, d)
        return np.sqrt(2 * DROP * width) + DROP * width

    def _evenly(self, n_nodes, level, m, v, d):
        """∫ P(L > f) N(f | m, v) df by equally spaced nodes."""
        z, weight = even_nodes(n_nodes)
        return (weight * self._family_cdf(level, m + np.sqrt(v) * z, d)).sum(axis=0)

    def _over_family(self, level, m, v, d):
        """∫ Φ((l − m)/√v) p_L(l) dl."""

        def log_value(f):
            return self._family_log_density(level, f, d) + np.log(level)

        f, share = nodes_around(log_value, np.log(level)[None], self._reach(level, d)[None], m[None])
        below = (share * np.exp(log_value(f)) * ndtr((f - m) / np.sqrt(v)))[:, 0].sum(axis=0)
        sharp = self._squared_width(level, d) < SHARP
        return np.where(sharp, ndtr((np.log(level) - m) / np.sqrt(v)), below)

    def _over_rate(self, level, m, v, d):
        """∫ P(L > f) N(f | m, v) df."""
        s = np.sqrt(np.maximum(v, LEAST_VARIANCE))

        def log_value(f):
            return -0.5 * ((f - m) / s) ** 2

        bend = np.log(np.maximum(level, LEAST_RATE))
        f, share = nodes_around(log_value, m[None], REACH * s[None], bend[None])
        weight = share * np.exp(log_value(f))  # normalised, since rounding changes all by the same if v is tiny
        below = (weight * self._family_cdf(level, f, d))[:, 0].sum(axis=0) / weight[:, 0].sum(axis=0)
        return np.where(level > 0, below, 0.0)

    def _ends(self, m, v, d, reach=REACH, drop=DROP):
        """Logarithms of values between which a component has its mass."""
        s, width = np.sqrt(v), np.sqrt(self._squared_width(np.exp(np.clip(m, -500.0, 500.0)), d))
        return m - reach * (s + width), m + (reach + s) * s + np.log1p(reach * np.sqrt(d) + 2 * drop * d)

    def _parts(self, first, last, m, v, d):
        """Ends of the parts of a score's integral over log y, for the components (S,) of one row.

        Everywhere the parts are as short as the shortest of the components that have mass there.
        """
        low, high = self._ends(m, v, d, SCORE_REACH, SCORE_DROP)
        starts, stops = np.concatenate([low, m]), np.concatenate([m, high])
        ends = np.unique(np.concatenate([np.clip(np.concatenate([low, stops]), first, last), [first, last]]))
        middle = 0.5 * (ends[1:] + ends[:-1])[:, None]
        density = np.where((starts < middle) & (middle < stops), N_PARTS / np.maximum(stops - starts, SLACK), 0.0)
        width = np.diff(ends)
        count = np.cumsum(np.concatenate([[0.0], np.maximum(density.max(axis=1), 1 / width.sum()) * width]))
        return np.interp(np.linspace(0, count[-1], math.ceil(count[-1]) + 1), count, ends)

    def _sides(self, ends, *numbers):
        """Points of ∫ (F(t) − 1{t ≥ y})² dt for the components (S,) of one row: below ``y``, and above it.

        Each has a line of places, of weights, and of what is subtracted from F. ``ends`` are logarithms: of both ends
        of the integral, with that of ``y`` between them.
        """
        for first, last, subtracted in zip(ends, ends[1:], (0.0, 1.0), strict=False):
            if last > first:
                u, weight = panels(self._parts(first, last, *numbers))
                places = np.exp(u)
                yield np.stack([places, weight * places, np.full(len(u), subtracted)])

    def _sums_of_squares(self, points_of: Callable, *numbers):
        """Σ weight (F(place) − subtracted)² over the points of each row; see :meth:`_sides`."""
        n_rows, sums, at_once = numbers[0].shape[1], [], max(1, SCORE_ROWS // len(self.weights))
        for start in range(0, n_rows, at_once):
            points = [points_of(row) for row in range(start, min(start + at_once, n_rows))]
            rows = np.repeat(np.arange(len(points)), [part.shape[1] for part in points])
            places, weights, subtracted = np.concatenate(points, axis=1)
            F = self._smooth_cdf(places, *(column[:, start + rows] for column in numbers))
            sums.append(np.bincount(rows, weights * (F - subtracted) ** 2, minlength=len(points)))
        return np.concatenate(sums) if sums else np.empty(0)

    def _draw(self, components, rng):
        first, second, third = np.moveaxis(by_draw(rng.random_sample, len(components), self.shape, 3), -1, 0)
        m, v, d = (column[components] for column in self._arrays)
        return self._family_draw(np.exp(m + np.sqrt(v) * ndtri(first)), d, second, third)

    def _possible(self, y):
        """Whether the family allows such values."""
        raise NotImplementedError

    def _squared_width(self, y, dispersion):
        """Squared width of p(y | f) as a function of f."""
        raise NotImplementedError

    def _family_cdf(self, level, log_rate, dispersion):
        """P(L > f) for f = ``log_rate``, where ``level`` is y, or the next count."""
        raise NotImplementedError

    def _family_sf(self, level, log_rate, dispersion):
        """P(L ≤ f), with all digits if it is small."""
        raise NotImplementedError

    def _family_draw(self, rate, dispersion, first, second):
        raise NotImplementedError


class CountDistribution(Discrete, _LogLink):
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
    >>> dist = CountDistribution(
    ...     np.log([[2.0, 50.0]]), [[0.0, 0.0]], [[0.0, 0.1]], [1.0]
    ... )
    >>> dist.mean.round(3), dist.var.round(3)
    (array([ 2., 50.]), array([  2., 300.]))
    >>> dist.pmf([2, 50]).round(4)
    array([0.2707, 0.0228])
    >>> dist.interval(0.9)
    (array([ 0., 25.]), array([ 5., 81.]))
    """

    def _simplest(self, rate):
        return rate

    def _possible(self, y):
        return (y >= 0) & (y == np.floor(y))

    def _squared_width(self, y, dispersion):
        return 1 / y + dispersion

    def _families(self, dispersion):
        spread = dispersion > LEAST_DISPERSION
        return (POISSON, ~spread), (NEGATIVE_BINOMIAL, spread)

    def _family_cdf(self, level, log_rate, dispersion):
        rate, spread = np.exp(log_rate), dispersion > LEAST_DISPERSION
        below = gammaincc(level, rate)
        if spread.any():
            d = np.where(spread, dispersion, 1.0)
            below = np.where(spread, betainc(1 / d, level, 1 / (1 + d * rate)), below)
            # Of large counts the Poisson part is negligible, and the incomplete beta function fails.
            below = np.where(spread & (d * level > LARGE_RATE), gammainc(1 / d, level / d / rate), below)
        return below

    def _family_sf(self, level, log_rate, dispersion):
        rate, spread = np.exp(log_rate), dispersion > LEAST_DISPERSION
        above = gammainc(level, rate)
        if spread.any():
            d = np.where(spread, dispersion, 1.0)
            above = np.where(spread, betainc(level, 1 / d, d * rate / (1 + d * rate)), above)
            above = np.where(spread & (d * level > LARGE_RATE), gammaincc(1 / d, level / d / rate), above)
        return above

    def _family_draw(self, rate, dispersion, first, second):
        r = 1 / np.maximum(dispersion, LEAST_DISPERSION)
        rate = np.where(dispersion > LEAST_DISPERSION, rate * gammaincinv(r, first) / r, rate)
        with np.errstate(invalid="ignore"):
            k = np.ceil(np.nan_to_num(pdtrik(second, np.minimum(rate, LARGE_RATE))))
        less = np.maximum(k - 1, 0)
        k = np.where(pdtr(less, np.minimum(rate, LARGE_RATE)) >= second, less, k)
        return np.where(rate > LARGE_RATE, np.round(rate + np.sqrt(rate) * ndtri(second)), k)

    def _quantile(self, q, *numbers):
        """The smallest counts k with F(k) ≥ q, by bisection over integers."""
        certain = q >= 1.0
        target = np.where(certain, 0.5, q)
        top = self._ends(*numbers)[1].max(axis=0)
        low, high = np.full_like(q, -1.0), np.ceil(np.exp(top) + REACH * np.exp(0.5 * top) + 2 * DROP)
        for _ in range(QUANTILE_STEPS):
            open_ = (high - low) > np.maximum(1.0, QUANTILE_ERROR * high)
            if not open_.any():
                break
            middle = np.where(high > 4 * (low + 2), np.sqrt(low + 2) * np.sqrt(high), 0.5 * (low + high))
            middle = np.where(open_, np.floor(middle), high)
            enough = (self._cdf(middle, *numbers) >= target) | ~open_
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(certain, np.inf, high)

    def _crps(self, y, *numbers):
        """Σ_k (F(k) − 1{k ≥ y})². Beyond the first counts, an integral over log k replaces the sum."""
        scores, first, tops = np.empty(len(y)), np.ceil(y), self._tops(*numbers)
        many = tops > ALL_COUNTS
        scores[many] = self._long_scores(y[many], tops[many], *(column[:, many] for column in numbers))
        size = LEAST_COUNTS
        while size <= ALL_COUNTS:
            together = np.flatnonzero((tops <= size) & ((tops > size // 2) | (size == LEAST_COUNTS)))
            k, n_rows = np.arange(size), SCORE_NUMBERS // size
            for rows in (together[start : start + n_rows] for start in range(0, len(together), n_rows)):
                F = np.cumsum(self._probabilities(size, *(column[:, rows] for column in numbers)), axis=1)
                beyond = np.maximum(first[rows] - size, 0.0) + np.maximum(-first[rows], 0.0)  # where F is 1 or 0
                scores[rows] = ((F - (k >= first[rows, None])) ** 2).sum(axis=1) + beyond
            size *= 2
        return scores

    def _tops(self, m, v, d):
        """Numbers of counts (N,) that matter in scores."""
        most = np.exp(np.minimum(self._ends(m, v, d, SCORE_REACH, SCORE_DROP)[1].max(axis=0), _FARTHEST))
        return np.ceil(most + SCORE_DROP / 3 + np.sqrt(SCORE_DROP**2 / 9 + 2 * SCORE_DROP * most))  # Bernstein

    def _probabilities(self, size, m, v, d):
        """Probabilities (N, size) of the first counts, of which no others matter.

        A component has few nodes of its own if its variance is small. The others share their nodes with all rows.
        """
        curvature, k = 1 / self._squared_width(float(size), d), np.arange(float(size))
        probabilities, narrow = np.zeros((m.shape[1], size)), (v * curvature <= NARROW) & (v <= LARGEST_EVEN)
        z, share = even_nodes(EVEN_NODES[0][0])
        components, rows = np.nonzero(narrow)
        n_pairs = max(1, SCORE_NUMBERS // (size * len(z)))
        for start in range(0, len(rows), n_pairs):
            pair = components[start : start + n_pairs], rows[start : start + n_pairs]
            log_rate = m[pair] + np.sqrt(v[pair]) * z  # (K, pairs)
            given = np.exp(self._family_log_density(k, log_rate[..., None], d[pair][:, None]))
            mean = np.einsum("k,kpc->pc", share[:, 0], given)
            np.add.at(probabilities, pair[1], self.weights[pair[0]][:, None] * mean)
        for dispersion in np.unique(d[~narrow]):
            self._add_shared(probabilities, ~narrow & (d == dispersion), m, v, dispersion)
        return probabilities

    def _add_shared(self, probabilities, these, m, v, dispersion):
        """Add those of ``these`` components (S, N), of one dispersion, by the trapezoidal rule.

        The integrand is a product of two bells. The variance of the Gaussian is more than a share ``NARROW`` of the
        family's squared width, or than 1. A step is at most 0.9 widths of the product. And the family continues far
        enough into the complex plane for steps of 0.4.
        """
        size, s = probabilities.shape[1], np.sqrt(v)
        curvature = 1 / self._squared_width(float(size), np.asarray(dispersion))
        step = min(0.4, 0.9 / math.sqrt(1 / LARGEST_EVEN + curvature * (1 + 1 / NARROW)))
        m = np.maximum(m, math.log(LEAST_RATE) - SHARED_REACH * s)  # lower rates are zero, too
        ends = (m - SHARED_REACH * s)[these].min(), (m + SHARED_REACH * s)[these].max()
        f = step * np.arange(math.floor(ends[0] / step), math.ceil(ends[1] / step) + 1)
        given = np.exp(self._family_log_density(np.arange(float(size)), f[:, None], np.full((1, 1), dispersion)))
        n_rows = max(1, SCORE_NUMBERS // len(f))
        for component, weight in enumerate(self.weights):
            some = np.flatnonzero(these[component])
            for rows in (some[start : start + n_rows] for start in range(0, len(some), n_rows)):
                z = (f - m[component, rows, None]) / s[component, rows, None]
                share = np.where(np.abs(z) <= SHARED_REACH, np.exp(-0.5 * z**2), 0.0)  # the same in any company
                probabilities[rows] += weight * (share / share.sum(axis=1, keepdims=True)) @ given

    def _long_scores(self, y, tops, *numbers):
        """Euler and Maclaurin: Σ g(k) from a to b − 1 is ∫ g from a − ½ to b − ½, less 1/24 of the change of g'."""
        y, k = np.ceil(y), np.arange(float(FIRST_COUNTS))

        def points_of(row):
            ends = FIRST_COUNTS - 0.5, min(max(y[row], FIRST_COUNTS), tops[row]) - 0.5, tops[row] - 0.5
            first = np.stack([k, np.ones(FIRST_COUNTS), k >= y[row]])
            own = [column[:, row] for column in numbers]
            return np.concatenate([first, *self._sides(np.log(ends), *own)], axis=1)

        scores = self._sums_of_squares(points_of, *numbers)
        inside = np.flatnonzero((y > FIRST_COUNTS) & (y < tops))
        scores[inside] -= np.exp(self._log_density(y[inside], *(column[:, inside] for column in numbers))) / 12
        return scores + np.maximum(-y, 0.0) + np.maximum(y - tops, 0.0)


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
    >>> dist = GammaDistribution(
    ...     np.log([[2.0, 50.0]]), [[0.0, 0.1]], [[0.25, 0.25]], [1.0]
    ... )
    >>> dist.mean.round(3), dist.std.round(3)
    (array([ 2.   , 52.564]), array([ 1.   , 32.465]))
    >>> lower, upper = dist.interval(0.9)
    >>> lower.round(3), upper.round(3)
    (array([ 0.683, 15.061]), array([  3.877, 114.476]))
    """

    least = LEAST_DISPERSION

    def _simplest(self, rate):
        return 0.0 * rate

    def _possible(self, y):
        return y > 0

    def _squared_width(self, y, dispersion):
        return dispersion + 0.0 * y

    def _families(self, dispersion):
        return ((GAMMA, dispersion > 0),)

    def _family_cdf(self, level, log_rate, dispersion):
        return gammainc(1 / dispersion, level / dispersion * np.exp(-log_rate))

    def _family_sf(self, level, log_rate, dispersion):
        return gammaincc(1 / dispersion, level / dispersion * np.exp(-log_rate))

    def _family_draw(self, rate, dispersion, first, second):
        return rate * gammaincinv(1 / dispersion, first) * dispersion

    def _quantile(self, q, *numbers):
        """Quantiles by a search for log y."""
        inside = np.flatnonzero((q > 0) & (q < 1))
        quantiles = np.where(q >= 1, np.inf, 0.0)
        if not len(inside):
            return quantiles
        q, (m, v, d) = q[inside], (column[:, inside] for column in numbers)
        with np.errstate(divide="ignore"):
            own = m + np.sqrt(v) * ndtri(q)
            family = np.log(gammaincinv(1 / d, q) * d)
        ends = self._ends(m, v, d)
        low = np.minimum(ends[0], np.maximum(own + family, -_FARTHEST)).min(axis=0) - SLACK
        high = np.minimum(np.maximum(ends[1], own + np.abs(family)), _FARTHEST).max(axis=0) + SLACK
        log_y = self._crossings(q, (low, high), m, v, d, of_place=np.exp, xatol=SLACK)
        # Beyond the limits the distribution function is 0 or 1 to all digits.
        quantiles[inside] = np.exp(np.where(np.isnan(log_y), np.where(q < 0.5, low, high), log_y))
        return quantiles

    def _crps(self, y, *numbers):
        """∫ (F(t) − 1{t ≥ y})² dt by an integral over log t."""
        m, v, d = numbers
        low, high = self._ends(m, v, d, SCORE_REACH, SCORE_DROP)
        low, high = low.min(axis=0), high.max(axis=0)
        jump = np.where(y > 0, np.clip(np.log(np.where(y > 0, y, 1.0)), low, high), low)

        def points_of(row):
            own = (column[:, row] for column in numbers)
            return np.concatenate([*self._sides((low[row], jump[row], high[row]), *own)], axis=1)

        beyond = np.maximum(np.exp(low) - y, 0.0) + np.maximum(y - np.exp(high), 0.0)  # where F is 0 or 1
        return self._sums_of_squares(points_of, *numbers) + beyond


def _log_averages(family, *columns):
    """:func:`.log_average` of columns (N,)."""
    return _by_blocks(partial(log_average, family, n_nodes=N_NODES), *columns)


def _by_blocks(function, *columns):
    """Values of a function with ``N_NODES`` nodes for each entry of columns (N,), one block after another."""
    blocks = zip(*(column.split(BLOCK_NODES // N_NODES) for column in columns), strict=True)
    return torch.cat([function(*block) for block in blocks])


def _log_normal_density(y, m, v):
    """Of exp(f), to which the family adds nothing where it is sharp."""
    target = np.log(np.where(y > 0, y, LEAST_RATE))
    return -0.5 * ((target - m) ** 2 / v + _LOG_2PI + np.log(v)) - target


def _even_number(v: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """How many equally spaced nodes suffice for variances and a family's curvature; 0 if too many.

    The families have tails that are not Gaussian. So large variances need other nodes.
    """
    allowed = [(v <= LARGEST_EVEN) & (v * curvature <= most) for _, most in EVEN_NODES]
    return np.select(allowed, [number for number, _ in EVEN_NODES], 0)
