"""Scores of predictive distributions that are mixtures of Gaussians, as plain NumPy functions.

All of them take a mixture per row: ``mean`` and ``variance`` of shape (S, n), one column for each of n
rows, and ``weight`` of shape (S,), non-negative, summing to one and shared by all rows. Variances are
of observations, noise included, and positive. A single Gaussian is the case S = 1.
"""

import numpy as np
from scipy.special import erf, logsumexp, ndtr, ndtri

#: Numbers that an intermediate array may hold; small enough to stay in the processor's cache.
_CHUNK_NUMBERS = 2**16

#: Width at which bisection of a quantile stops, as a share of the mixture's standard deviation.
_QUANTILE_TOLERANCE = 1e-9


def gaussian_mixture_nlpd(y, mean, variance, weight):
    """Negative log predictive density of every row.

    −log Σ_s ω_s N(y | m_s, v_s), without underflow far from the mixture.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Observations.
    mean, variance : ndarray of shape (S, n)
        Means m and variances v of the components.
    weight : ndarray of shape (S,)
        Weights ω.

    Returns
    -------
    ndarray of shape (n,)
        In nats; lower is better.

    References
    ----------
    .. [1] Good, I. J., "Rational Decisions", Journal of the Royal Statistical Society B, 1952.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp.metrics import gaussian_mixture_nlpd
    >>> mean, variance, weight = np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]), np.array([0.5, 0.5])
    >>> gaussian_mixture_nlpd(np.array([1.0]), mean, variance, weight).round(4)
    array([1.4189])
    """
    log_density = -0.5 * ((y - mean) ** 2 / variance + np.log(2 * np.pi * variance))  # (S, n)
    return -logsumexp(log_density, axis=0, b=weight[:, None])


def gaussian_mixture_crps(y, mean, variance, weight):
    """Continuous ranked probability score of every row, in closed form.

    ∫ (F(t) − 1{t ≥ y})² dt = Σ_s ω_s A(y − m_s, v_s) − ½ Σ_st ω_s ω_t A(m_s − m_t, v_s + v_t), where
    A(μ, v) = 2 √v φ(μ/√v) + μ (2 Φ(μ/√v) − 1) is the mean of |N(μ, v)| [1]_. The time grows as S² n,
    the memory as S n.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Observations.
    mean, variance : ndarray of shape (S, n)
        Means m and variances v of the components.
    weight : ndarray of shape (S,)
        Weights ω.

    Returns
    -------
    ndarray of shape (n,)
        In units of ``y``; lower is better.

    References
    ----------
    .. [1] Grimit, E. P., Gneiting, T., Berrocal, V. J. and Johnson, N. A., "The Continuous Ranked Probability
       Score for Circular Variables and its Application to Mesoscale Forecast Ensemble Verification",
       Quarterly Journal of the Royal Meteorological Society, 2006.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp.metrics import gaussian_mixture_crps
    >>> mean, variance, weight = np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]), np.array([0.5, 0.5])
    >>> gaussian_mixture_crps(np.array([1.0]), mean, variance, weight).round(4)
    array([0.3594])
    """
    score = np.empty(len(y))
    n_chunk = max(1, _CHUNK_NUMBERS // len(weight))
    for start in range(0, len(y), n_chunk):
        rows = slice(start, start + n_chunk)
        m, v = mean[:, rows], variance[:, rows]
        score[rows] = weight @ _mean_absolute(y[rows] - m, v) - 0.5 * weight**2 @ _mean_absolute(0.0, 2 * v)
        for s in range(len(weight) - 1):  # every pair once, hence without the ½
            later = slice(s + 1, None)
            score[rows] -= weight[s] * (weight[later] @ _mean_absolute(m[s] - m[later], v[s] + v[later]))
    return score


def gaussian_mixture_cdf(y, mean, variance, weight):
    """Cumulative distribution function of every row's mixture.

    F(y) = Σ_s ω_s Φ((y − m_s)/√v_s). At observations it is their probability integral transform, uniform
    where the predictions are calibrated [1]_.

    Parameters
    ----------
    y : ndarray of shape (n,)
        One point for each row.
    mean, variance : ndarray of shape (S, n)
        Means m and variances v of the components.
    weight : ndarray of shape (S,)
        Weights ω.

    Returns
    -------
    ndarray of shape (n,)
        Probabilities.

    References
    ----------
    .. [1] Dawid, A. P., "Statistical Theory: The Prequential Approach", Journal of the Royal Statistical
       Society A, 1984.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp.metrics import gaussian_mixture_cdf
    >>> mean, variance, weight = np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]), np.array([0.5, 0.5])
    >>> gaussian_mixture_cdf(np.array([2.0]), mean, variance, weight).round(4)
    array([0.7386])
    """
    return weight @ ndtr((y - mean) / np.sqrt(variance))


def gaussian_mixture_interval(mean, variance, weight, confidence_level=0.9):
    """Central interval of every row's mixture.

    Its ends are the quantiles F⁻¹((1 − c)/2) and F⁻¹((1 + c)/2) of :func:`gaussian_mixture_cdf`, found
    by bisection between the smallest and the largest quantile of a component, to 1e-9 of the mixture's
    standard deviation.

    Parameters
    ----------
    mean, variance : ndarray of shape (S, n)
        Means m and variances v of the components.
    weight : ndarray of shape (S,)
        Weights ω.
    confidence_level : float, default=0.9
        Probability c of the interval, between 0 and 1.

    Returns
    -------
    ndarray of shape (n, 2)
        Lower and upper ends, in units of ``mean``.

    Raises
    ------
    ValueError
        If ``confidence_level`` is not between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp.metrics import gaussian_mixture_interval
    >>> mean, variance, weight = np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]), np.array([0.5, 0.5])
    >>> gaussian_mixture_interval(mean, variance, weight, confidence_level=0.9).round(4)
    array([[-1.2845,  3.2845]])
    """
    if not 0 < confidence_level < 1:
        raise ValueError(f"confidence_level must lie between 0 and 1, got {confidence_level!r}: 0.9 means 90 %.")
    levels = (1 - confidence_level) / 2, (1 + confidence_level) / 2
    return np.stack([_quantile(level, mean, variance, weight) for level in levels], axis=1)


def _mean_absolute(mean, variance):
    """A(μ, v) = E|N(μ, v)|."""
    deviation = np.sqrt(variance)
    z = mean / deviation
    return np.sqrt(2 / np.pi) * deviation * np.exp(-0.5 * z**2) + mean * erf(z / np.sqrt(2))


def _quantile(level, mean, variance, weight):
    """F⁻¹(level) of every row's mixture, of shape (n,)."""
    ends = mean + ndtri(level) * np.sqrt(variance)  # no component's CDF crosses ``level`` outside these
    lower, upper = ends.min(axis=0), ends.max(axis=0)
    centre = weight @ mean
    spread = np.sqrt(weight @ (variance + (mean - centre) ** 2))
    halvings = np.ceil(np.log2(np.max((upper - lower) / (_QUANTILE_TOLERANCE * spread), initial=1.0)))
    for _ in range(int(halvings)):
        middle = 0.5 * (lower + upper)
        below = gaussian_mixture_cdf(middle, mean, variance, weight) < level
        lower, upper = np.where(below, middle, lower), np.where(below, upper, middle)
    return 0.5 * (lower + upper)
