"""Scores of Gaussian mixtures against independent implementations and numerical integration."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from skdgp import metrics


def make_mixtures(n_components, n_rows, seed=0, shift=0.0, scale=1.0):
    """Observations and mixtures with components of different widths, weights among them zero."""
    rng = np.random.default_rng(seed)
    mean = shift + scale * rng.normal(size=(n_components, n_rows))
    variance = scale**2 * rng.uniform(0.05, 2.0, size=(n_components, n_rows))
    weight = rng.dirichlet(np.ones(n_components))
    if n_components > 2:
        weight[1] = 0.0
        weight /= weight.sum()
    y = shift + 1.5 * scale * rng.normal(size=n_rows)
    return y, mean, variance, weight


def test_nlpd_is_minus_log_of_the_weighted_densities():
    y, mean, variance, weight = make_mixtures(4, 20)
    expected = -np.log(weight @ norm.pdf(y, mean, np.sqrt(variance)))
    np.testing.assert_allclose(metrics.gaussian_mixture_nlpd(y, mean, variance, weight), expected, rtol=1e-12)


def test_nlpd_does_not_underflow():
    found = metrics.gaussian_mixture_nlpd(np.array([1e3]), np.zeros((2, 1)), np.ones((2, 1)), np.array([0.3, 0.7]))
    np.testing.assert_allclose(found, -norm.logpdf(1e3), rtol=1e-12)


def test_cdf_is_the_weighted_sum_of_cdfs():
    y, mean, variance, weight = make_mixtures(4, 20)
    expected = weight @ norm.cdf(y, mean, np.sqrt(variance))
    np.testing.assert_allclose(metrics.gaussian_mixture_cdf(y, mean, variance, weight), expected, rtol=1e-12)


def test_crps_equals_the_integral_of_the_squared_cdf():
    y, mean, variance, weight = make_mixtures(5, 8)

    def integral(row):
        def cdf(t):
            return weight @ norm.cdf(t, mean[:, row], np.sqrt(variance[:, row]))

        below, _ = quad(lambda t: cdf(t) ** 2, -np.inf, y[row], epsabs=1e-11)
        above, _ = quad(lambda t: (1 - cdf(t)) ** 2, y[row], np.inf, epsabs=1e-11)
        return below + above

    expected = [integral(row) for row in range(len(y))]
    np.testing.assert_allclose(metrics.gaussian_mixture_crps(y, mean, variance, weight), expected, atol=1e-8)


@pytest.mark.parametrize("n_components", [1, 3])
def test_crps_of_equal_components_is_that_of_one_gaussian(n_components):
    y, mean, variance, _ = make_mixtures(1, 50, shift=100.0, scale=20.0)
    sd = np.sqrt(variance[0])
    z = (y - mean[0]) / sd
    expected = sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    repeated = [np.repeat(values, n_components, axis=0) for values in (mean, variance)]
    weight = np.full(n_components, 1 / n_components)
    np.testing.assert_allclose(metrics.gaussian_mixture_crps(y, *repeated, weight), expected, rtol=1e-10)


def test_crps_does_not_depend_on_the_chunks(monkeypatch):
    mixtures = make_mixtures(6, 31)
    whole = metrics.gaussian_mixture_crps(*mixtures)
    monkeypatch.setattr(metrics, "_CHUNK_NUMBERS", 24)
    np.testing.assert_allclose(metrics.gaussian_mixture_crps(*mixtures), whole, rtol=1e-12)


@pytest.mark.parametrize("confidence_level", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e6, 10.0), (0.0, 1e-6)])
def test_interval_inverts_the_cdf(confidence_level, shift, scale):
    _, mean, variance, weight = make_mixtures(5, 20, shift=shift, scale=scale)
    interval = metrics.gaussian_mixture_interval(mean, variance, weight, confidence_level)
    assert interval.shape == (20, 2)
    for ends, level in zip(interval.T, (0.5 - confidence_level / 2, 0.5 + confidence_level / 2), strict=True):
        found = metrics.gaussian_mixture_cdf(ends, mean, variance, weight)
        np.testing.assert_allclose(found, level, atol=1e-8)


def test_interval_of_one_gaussian_is_exact():
    _, mean, variance, weight = make_mixtures(1, 10)
    expected = np.stack(norm.interval(0.9, mean[0], np.sqrt(variance[0])), axis=1)
    np.testing.assert_allclose(metrics.gaussian_mixture_interval(mean, variance, weight), expected, rtol=1e-12)


@pytest.mark.parametrize("confidence_level", [0.0, 1.0, 90])
def test_interval_rejects_what_is_no_probability(confidence_level):
    _, mean, variance, weight = make_mixtures(2, 3)
    with pytest.raises(ValueError, match="confidence_level must lie between 0 and 1"):
        metrics.gaussian_mixture_interval(mean, variance, weight, confidence_level)


def test_no_rows_give_no_scores():
    y, mean, variance, weight = make_mixtures(2, 0)
    for score in (metrics.gaussian_mixture_nlpd, metrics.gaussian_mixture_crps, metrics.gaussian_mixture_cdf):
        assert score(y, mean, variance, weight).shape == (0,)
    assert metrics.gaussian_mixture_interval(mean, variance, weight).shape == (0, 2)
