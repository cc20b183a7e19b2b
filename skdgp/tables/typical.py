"""Rows like those of ``fit``, made from what a fit keeps of each feature, since it keeps no rows."""

import numpy as np
from scipy.special import betaincinv, ndtri

from .encoding import TELLING_LEVELS, Encoding
from .missing import RIDGE


def typical_rows(encoding: Encoding, n_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Complete rows (n_rows, n_features) as checks return them, whose features do not depend on each other.

    Numbers have a beta distribution with the mean and the variance of their cells, between the smallest and the largest
    one. This is exact for uniform numbers, and for zeros and ones. Categories have their levels as often as in ``fit``.
    Of levels after the first ``TELLING_LEVELS``, and of categories that have become numbers, no frequencies are kept:
    such levels are equally frequent.
    """
    rows, cells, n_levels = np.empty((n_rows, len(encoding.n_levels))), encoding.cells, encoding.n_levels
    numbers = np.flatnonzero(encoding.is_number).tolist()
    next_indicator = len(numbers)
    for j, n in enumerate(n_levels):
        quantiles = (rng.permutation(n_rows) + 0.5) / n_rows
        if n == 0:
            k = numbers.index(j)
            moments = cells.mean[k], max(cells.covariance[k, k] - RIDGE, 0.0)
            values = _numbers_at(quantiles, *moments, cells.low[k], cells.high[k])
            rows[:, j] = values * encoding.units.scale[j] + encoding.units.shift[j]
            continue
        frequency: np.ndarray = np.full(n, 1.0 / n)
        if encoding.is_number[j]:
            rows[:, j] = _levels_at(frequency, quantiles)
            continue
        known = min(n, TELLING_LEVELS)
        frequency[:known] = cells.mean[next_indicator : next_indicator + known].clip(0.0)
        if n > known:
            frequency[known:] = max(1.0 - frequency[:known].sum(), 0.0) / (n - known)
        rows[:, j] = _levels_at(frequency, quantiles)
        next_indicator += known
    return rows


def _numbers_at(quantiles: np.ndarray, mean: float, variance: float, low: float, high: float) -> np.ndarray:
    """Quantiles of numbers of which moments and limits are known. Without limits they are Gaussian."""
    if not np.isfinite(high - low):
        return mean + np.sqrt(variance) * ndtri(quantiles)
    width = high - low
    if not (variance > 0 and low < mean < high):
        return np.full(len(quantiles), mean)
    # A beta distribution with the mean m has the variance m (1 − m) / (α + β + 1), and α = m (α + β).
    m = (mean - low) / width
    total = max(m * (1 - m) * width**2 / variance - 1, 1e-3)  # nearly zero if there are but two values
    return low + width * betaincinv(m * total, (1 - m) * total, quantiles)


def _levels_at(frequency: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Numbers of the levels at quantiles between 0 and 1, if each level is so frequent."""
    steps = np.cumsum(frequency) / frequency.sum()
    return np.searchsorted(steps, quantiles).clip(0, len(frequency) - 1)
