"""What must hold for every distribution and every noise, whatever its numbers are.

Hypothesis finds the numbers. What is expected are plain sums over fine grids, in which nothing depends on other rows.
"""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import betainc, gammainc, gammaincc, logsumexp, ndtr
from sklearn.preprocessing import PowerTransformer, QuantileTransformer

from skdgp.distributions import (
    CountDistribution,
    FamilyDistribution,
    GammaDistribution,
    GradeDistribution,
    PredictiveDistribution,
    TransformedDistribution,
)
from skdgp.gp.noise import Heteroskedastic, StudentT
from skdgp.gp.units import Units

N_ROWS = 3

LEVELS = np.array([0.001, 0.05, 0.3, 0.5, 0.8, 0.99, 0.9999])[:, None]

#: Counts up to this one are summed one by one. Larger ones of a Poisson distribution count as their rate.
MOST_COUNTS = 600


def examples(number):
    """Hypothesis looks at the same numbers in every run."""
    return settings(
        derandomize=True,
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )


# Distributions


def weights(rng, n_components):
    return rng.dirichlet(np.ones(n_components))


@st.composite
def gaussians(draw, n_components=(1, 3, 24, 320)):
    """Mixtures in any units; components are as wide as the distance between them, or much narrower."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    shape = draw(st.sampled_from(n_components)), N_ROWS
    scale, narrow = 10.0 ** draw(st.integers(-6, 6)), 10.0 ** draw(st.floats(-2.5, 0.5))
    means = scale * (draw(st.sampled_from([0.0, 100.0])) + rng.uniform(-1, 1, shape))
    return PredictiveDistribution(means, (scale * narrow * rng.uniform(0.5, 2, shape)) ** 2, weights(rng, len(means)))


@st.composite
def rates(draw):
    """Means and variances of the logarithms of rates, and weights: rows differ much."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    shape = draw(st.sampled_from([1, 1, 3])), N_ROWS
    variance = draw(st.one_of(st.sampled_from([0.0, 1e-4, 0.03]), st.floats(0.3, 4), st.floats(2, 4)))
    means = draw(st.floats(-2, 4)) + rng.uniform(-0.5, 0.5, shape) + [0.0, 1.0, -2.0]
    return np.minimum(means, 4.0), variance * rng.uniform(0.8, 1, shape) * [1.0, 0.01, 0.5], weights(rng, shape[0])


@st.composite
def counts(draw, dispersions=(0.0, 0.0, 0.05, 0.5)):
    """Poisson and negative binomial distributions."""
    means, variances, weight = draw(rates())
    return CountDistribution(means, variances, np.full_like(means, draw(st.sampled_from(dispersions))), weight)


@st.composite
def gammas(draw):
    """Gamma distributions."""
    means, variances, weight = draw(rates())
    return GammaDistribution(means, variances, np.full_like(means, draw(st.sampled_from([0.05, 0.5, 2.0]))), weight)


@st.composite
def transformed(draw, kinds=("log", "power", "quantiles", "ties")):
    """Targets of which a function is Gaussian, in any units."""
    kind, scale = draw(st.sampled_from(kinds)), 10.0 ** draw(st.integers(-6, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    shape, spread = (draw(st.sampled_from([1, 8])), N_ROWS), draw(st.sampled_from([0.02, 0.3]))
    shift = np.log(scale) if kind == "log" else 0.0
    size = 0.3 if kind == "power" else 1.0  # far out the inverse may have no value
    means, variances = size * rng.uniform(-1, 1, shape), (size * spread * rng.uniform(0.5, 1, shape)) ** 2
    dist = PredictiveDistribution(shift + means, variances, weights(rng, shape[0]))
    if kind == "log":
        return TransformedDistribution(dist, "log")
    y = np.exp(rng.normal(size=(80, 1)))
    y = scale * (y.round(1) if kind == "ties" else y)
    transformer = (
        PowerTransformer() if kind == "power" else QuantileTransformer(n_quantiles=40, output_distribution="normal")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TransformedDistribution(dist, transformer.fit(y))


continuous = st.one_of(gaussians((1, 3, 24)), gammas(), transformed(["log", "power"]))
anything = st.one_of(gaussians(), counts(), gammas(), transformed())


def said(dist):
    """Everything that a distribution says of each row."""
    points = dist.ppf(0.7)
    found = {"quantiles": dist.ppf(LEVELS), "cdf": dist.cdf(points), "crps": dist.crps(points)}
    if not isinstance(dist, TransformedDistribution):
        found["density"] = dist.logpdf(np.stack([points, dist.ppf(0.999)]))
    return found | {"mean": dist.mean, "deviation": dist.std}


@pytest.mark.slow
@examples(25)
@given(dist=anything)
def test_a_row_is_alike_alone_and_beside_others(dist):
    together = said(dist)
    for row in (0, 2):
        for name, values in said(dist[row : row + 1]).items():
            np.testing.assert_allclose(values, together[name][..., row : row + 1], rtol=1e-7, atol=1e-300, err_msg=name)


@pytest.mark.slow
@examples(25)
@given(dist=anything)
def test_quantiles_invert_the_distribution_function(dist):
    quantiles = dist.ppf(LEVELS)
    assert np.isfinite(quantiles).all() and (np.diff(quantiles, axis=0) >= 0).all()
    step = 1e-6 * dist.std if isinstance(dist, PredictiveDistribution) else 1e-6 * np.abs(quantiles)
    below = quantiles - (1.0 if dist.discrete else step)
    assert (dist.cdf(quantiles + (0.0 if dist.discrete else step)) >= LEVELS - 1e-9).all()
    assert (dist.cdf(below) <= LEVELS + 1e-9).all()


@pytest.mark.slow
@examples(25)
@given(dist=continuous)
def test_density_is_the_slope_of_the_distribution_function(dist):
    x = dist.ppf(LEVELS)
    density = dist.pdf(x)
    step = np.minimum(1e-4 * np.minimum(LEVELS, 1 - LEVELS) / density, 1e-5 * dist.std)  # between modes, too
    np.testing.assert_allclose((dist.cdf(x + step) - dist.cdf(x - step)) / (2 * step), density, rtol=1e-3)


@pytest.mark.slow
@examples(10)
@given(dist=st.one_of(gaussians(), counts(), gammas(), transformed(["log", "power", "quantiles"])))
def test_draws_are_spread_as_the_distribution_says(dist):
    n_draws = 1000
    ranks = (np.arange(n_draws) + 0.5)[:, None] / n_draws
    transform = np.sort(dist.pit(dist.rvs(n_draws, random_state=0), random_state=0), axis=0)
    assert np.abs(transform - ranks).max() < 2.5 / np.sqrt(n_draws)  # Kolmogorov: 1 in 130 000


# Plain sums: Gaussians


@examples(15)
@given(dist=gaussians())
def test_scores_of_gaussians_are_sums_over_pairs(dist):
    def absolute(mean, variance):
        z = mean / np.sqrt(variance)
        return np.sqrt(variance) * (2 * stats.norm.pdf(z) + z * (2 * ndtr(z) - 1))

    m, v, w = dist.means, dist.variances, dist.weights
    for q in (0.5, 0.999):
        y = dist.ppf(q)
        pairs = absolute(m[:, None] - m, v[:, None] + v)
        expected = w @ absolute(y - m, v) - 0.5 * np.einsum("s,t,stn->n", w, w, pairs)
        np.testing.assert_allclose(dist.crps(y), expected, rtol=1e-7)
    mean = w @ m
    np.testing.assert_allclose(dist.mean, mean, rtol=1e-12, atol=1e-9 * dist.std.max())
    np.testing.assert_allclose(dist.var, w @ (v + (m - mean) ** 2), rtol=1e-7)


# Plain sums: counts and positive targets


def over_rate(function, m, v, n_nodes=6001, reach=9.0):
    """Mean of ``function(log rate (K,))`` (K, ...) over N(m, v), by the trapezoidal rule."""
    z = np.linspace(-reach, reach, n_nodes)
    weight = np.exp(-0.5 * z**2)
    return weight / weight.sum() @ function(m + np.sqrt(v) * z)


def mixed(dist, function):
    """Sum over the components of the first row of ``function(m, v, d)``, with their weights."""
    parts = [function(*(each[s, 0] for each in dist._arrays)) for s in range(len(dist.weights))]
    return np.tensordot(dist.weights, parts, axes=1)


def count_cdf(dist, k):
    """Probabilities of at most k."""

    def of_component(m, v, d):
        level, sharp = k + 1.0, (d == 0) & (k > MOST_COUNTS) & (v > 0.01)

        def given_rate(f):
            rate = np.exp(f)[:, None]
            return gammaincc(level, rate) if d == 0 else betainc(1 / d, level, 1 / (1 + d * rate))

        if sharp.any():
            few = over_rate(given_rate, m, v, 801) if not sharp.all() else 0.0
            return np.where(sharp, ndtr((np.log(k + 0.5) - m) / np.sqrt(max(v, 0.01))), few)
        return over_rate(given_rate, m, v, 401)

    return mixed(dist, of_component)


@pytest.mark.slow
@examples(20)
@given(dist=counts())
def test_probabilities_of_counts_are_integrals_over_the_rate(dist):
    k = np.unique(np.concatenate([np.arange(4), dist[:1].ppf(LEVELS)[:, 0]]))

    def of_component(m, v, d):
        def given_rate(f):
            rate = np.exp(f)[:, None]
            return stats.poisson.pmf(k, rate) if d == 0 else stats.nbinom.pmf(k, 1 / d, 1 / (1 + d * rate))

        return over_rate(given_rate, m, v)

    few = k < 4000  # others are narrower than the steps of the sum
    np.testing.assert_allclose(dist.logpmf(k[:, None])[few, 0], np.log(mixed(dist, of_component))[few], atol=1e-5)
    np.testing.assert_allclose(dist.cdf(k[:, None])[:, 0], count_cdf(dist, k), atol=2e-4)


@pytest.mark.slow
@examples(40)
@given(dist=counts())
def test_scores_of_counts_are_sums(dist):
    y = float(dist.ppf(0.8)[0])
    top = float(dist.ppf(1 - 1e-7)[0])
    few = np.arange(min(top, MOST_COUNTS) + 1)
    expected = np.square(count_cdf(dist, few) - (few >= y)).sum()
    for low, high, above in ((few[-1] + 0.5, y - 0.5, 0.0), (max(few[-1], y - 1) + 0.5, top, 1.0)):
        if high > low:
            u = np.linspace(np.log(low), np.log(high), 1500)
            k = np.exp(u)
            expected += np.trapezoid(np.square(count_cdf(dist, k) - above) * k, u)
    np.testing.assert_allclose(dist.crps(np.full(N_ROWS, y))[0], expected, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("variance", [0.0, 1e-6, 0.02, 0.4, 1.5])
@pytest.mark.parametrize("dispersion", [0.0, 0.3, 1.0])
def test_scores_of_few_counts_are_precise(variance, dispersion):
    """Whatever the sums of the rows beside them, and for components of all widths."""
    means = np.array([[-3.0, -1.0, 0.0, 1.0, 2.0], [-3.5, 0.0, -0.5, 1.0, 1.0]]) - 1.5 * variance
    variances = variance * np.array([[1.0, 0.5, 0.3, 1.0, 0.7], [0.1, 1.0, 0.0, 2.0, 1e-3]])
    dist = CountDistribution(means, variances, np.full((2, 5), dispersion), [0.3, 0.7])
    y = np.array([0.0, 3.0, 2.0, 0.0, 30.0])
    k = np.arange(700)

    def of_component(m, v, d):
        def given_rate(f):
            rate = np.exp(f)[:, None]
            return gammaincc(k + 1.0, rate) if d == 0 else betainc(1 / d, k + 1.0, 1 / (1 + d * rate))

        return over_rate(given_rate, m, v, 801)

    for row in range(5):
        F = mixed(dist[row : row + 1], of_component)
        expected = np.square(F - (k >= y[row])).sum()
        np.testing.assert_allclose(dist.crps(y)[row], expected, rtol=1e-6, atol=1e-7, err_msg=str(row))


@pytest.mark.slow
@examples(12)
@given(dist=gammas())
def test_scores_of_positive_targets_are_integrals(dist):
    def cdf(y):
        return mixed(dist, lambda m, v, d: over_rate(lambda f: gammainc(1 / d, y / d * np.exp(-f)[:, None]), m, v, 401))

    y = float(dist.ppf(0.8)[0])
    expected = 0.0
    for low, high, above in ((dist.ppf(1e-7)[0], y, 0.0), (y, dist.ppf(1 - 1e-7)[0], 1.0)):
        u = np.linspace(np.log(low), np.log(high), 800)
        expected += np.trapezoid(np.square(cdf(np.exp(u)) - above) * np.exp(u), u)
    np.testing.assert_allclose(dist.crps(np.full(N_ROWS, y))[0], expected, rtol=1e-3)


@examples(20)
@given(dist=st.one_of(counts(), gammas()))
def test_moments_of_rates_are_those_of_log_normal_ones(dist):
    """The mean of y is that of the rate. Its variance is that of the rate, plus the mean of the variances given it."""

    def moments(m, v, d):
        z = np.linspace(-12, 12, 4001)
        rate, weight = np.exp(m + np.sqrt(v) * z), stats.norm.pdf(z) * (z[1] - z[0])
        return np.array([weight @ rate, weight @ (rate**2 * (1 + d) + (rate if dist.discrete else 0.0))])

    mean, square = mixed(dist, moments)
    np.testing.assert_allclose(dist.mean[0], mean, rtol=1e-7)
    np.testing.assert_allclose(dist.var[0], square - mean**2, rtol=1e-6)


# Plain sums: transformed targets


@pytest.mark.slow
@examples(30)
@given(dist=transformed())
def test_transformed_targets_are_those_of_many_quantiles(dist):
    z = np.linspace(dist.means[:, 0].min() - 4, dist.means[:, 0].max() + 4, 40_001)
    weight = dist.weights @ stats.norm.pdf(z, dist.means[:, :1], np.sqrt(dist.variances[:, :1])) * (z[1] - z[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where z has no target
        g = dist.transform.inverse_transform(z[:, None])[:, 0]
    known, p = np.isfinite(g), np.cumsum(weight) - 0.5 * weight
    z, weight, g, p = z[known], weight[known], g[known], p[known]
    mean = weight @ g
    np.testing.assert_allclose(dist.mean[0], mean, rtol=1e-4)
    np.testing.assert_allclose(dist.std[0], np.sqrt(weight @ (g - mean) ** 2), rtol=5e-3)
    for level in (0.2, 0.9):
        y = dist.ppf(level)
        expected = 2 * weight @ (((y[0] <= g) - p) * (g - y[0]))  # an integral over the loss of each quantile
        np.testing.assert_allclose(dist.crps(y)[0], expected, rtol=5e-3)


@examples(15)
@given(dist=transformed(["quantiles", "ties"]), beyond=st.floats(1e-3, 1e3))
def test_what_no_target_can_be_has_no_probability(dist, beyond):
    low, high = dist._image
    size = beyond * (high - low)
    np.testing.assert_array_equal(dist.cdf(np.full(N_ROWS, low - size)), 0.0)
    np.testing.assert_array_equal(dist.cdf(np.full(N_ROWS, high + size)), 1.0)


# Noise


def of_one_row(*numbers):
    """Tensors (1, 1, P) of one row, of one sample each."""
    return (torch.tensor(np.atleast_1d(number), dtype=torch.float64).reshape(1, 1, -1) for number in numbers)


@examples(20)
@given(
    freedom=st.one_of(st.floats(2.01, 2.5), st.floats(2.01, 60)),
    log_scale=st.floats(-8, 2),
    ratio=st.sampled_from([1e-3, 1.0, 100.0, 1e4]),
    level=st.sampled_from([0.5, 0.8, 0.999, 1 - 1e-7]),
)
def test_heavy_tails_are_those_of_student(freedom, log_scale, ratio, level):
    noise = StudentT(1).double()
    noise.units = Units((0.0,), (1.0,))
    with torch.no_grad():
        noise.log_freedom.fill_(np.log(freedom - 2))
        noise.log_excess.fill_(log_scale)
        noise.floor.zero_()
        sigma = np.exp(0.5 * log_scale)
        given_f = stats.t(freedom, scale=sigma)
        far = given_f.ppf(level)
        mean, variance, y = of_one_row(0.3, ratio * sigma**2, 0.3 + far)
        total = sigma**2 * freedom / (freedom - 2)
        np.testing.assert_allclose(noise.noise_variance(), total, rtol=1e-6)
        exact = noise.predictive(mean, 1e-12 * variance, torch.zeros(1, 1, dtype=torch.float64), latent=False)
        np.testing.assert_allclose(exact.var.ravel(), total, rtol=1e-6)
        np.testing.assert_allclose(exact.cdf(y[0].numpy()).ravel(), level, atol=2e-4)
        z = np.linspace(-9, 9, 20_001)
        weight, given_z = stats.norm.pdf(z) * (z[1] - z[0]), given_f.logpdf(far - np.sqrt(ratio) * sigma * z)
        expected = noise.expected_log_prob(y[0], mean, variance).item()
        np.testing.assert_allclose(expected, weight @ given_z, atol=2e-3 * freedom)
        log_density = noise.log_predictive(y[0], mean, variance).item()
        np.testing.assert_allclose(log_density, np.log(weight @ np.exp(given_z)), atol=5e-3)


@examples(20)
@given(
    level=st.floats(-6, 1),
    v2=st.sampled_from([0.01, 0.5, 2.0, 4.0]),
    v1=st.sampled_from([1e-4, 1.0]),
    place=st.sampled_from([0.0, 2.0, 8.0]),
)
def test_noise_of_uncertain_variance_is_an_integral(level, v2, v1, place):
    noise = Heteroskedastic(1).double()
    noise.units = Units((0.0,), (1.0,))
    with torch.no_grad():
        noise.log_level.zero_()
        noise.floor.zero_()
        sigma = np.exp(0.5 * level)
        mean, variance = of_one_row([0.0, level], [v1 * sigma**2, v2])
        (y,) = of_one_row(place * sigma)
        z = np.linspace(-9, 12, 20_001)
        weight, noise_variance = stats.norm.pdf(z) * (z[1] - z[0]), np.exp(level + np.sqrt(v2) * z)
        density = stats.norm.pdf(place * sigma, scale=np.sqrt(v1 * sigma**2 + noise_variance))
        log_density = noise.log_predictive(y[0], mean, variance).item()
        np.testing.assert_allclose(log_density, np.log(weight @ density), atol=5e-3)
        dist = noise.predictive(mean, variance, torch.zeros(1, 1, dtype=torch.float64), latent=False)
        np.testing.assert_allclose(dist.logpdf(y[0].numpy()).item(), np.log(weight @ density), atol=5e-3)
        np.testing.assert_allclose(dist.var.item(), v1 * sigma**2 + np.exp(level + 0.5 * v2), rtol=5e-3)


@pytest.mark.parametrize("kind", [CountDistribution, GammaDistribution])
@pytest.mark.parametrize("log_rate", [-300.0, 300.0])
def test_rates_beyond_all_data_end_in_numbers(kind, log_rate):
    dist = kind([[log_rate]], [[2.0]], [[0.3]], [1.0])
    for values in (dist.ppf(LEVELS), dist.cdf(dist.ppf(0.5)), dist.crps(dist.ppf(0.5)), dist.rvs(3, random_state=0)):
        assert np.isfinite(values).all()


@pytest.mark.parametrize("dispersion", [0.0, 0.3])
@pytest.mark.parametrize("variance", [1e-16, 0.3])
@pytest.mark.parametrize("level", [30.0, 100.0])
def test_improbable_counts_and_sizes_have_tails(level, variance, dispersion):
    f = 1.0 + np.sqrt(variance) * np.linspace(-30, 30, 20_001)
    log_weight = -0.5 * (f - 1.0) ** 2 / variance
    log_weight -= logsumexp(log_weight)
    given = stats.nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(f))) if dispersion else stats.poisson(np.exp(f))
    numbers = [np.array([[0.0, 1.0]]), np.full((1, 2), variance)]  # the first row has nearly no such values
    counts = CountDistribution(*numbers, np.full((1, 2), dispersion), [1.0])
    expected = logsumexp(given.logsf(level) + log_weight)
    assert counts.logsf(level)[1] == pytest.approx(expected, rel=1e-8)
    assert counts.hazard(level)[1] == pytest.approx(np.exp(counts.logpdf(level)[1] - counts.logsf(level - 1)[1]))
    assert np.isfinite(counts.hazard(level)).all()
    sizes = GammaDistribution(*numbers, np.full((1, 2), dispersion + 0.2), [1.0])
    given = stats.gamma(1 / (dispersion + 0.2), scale=np.exp(f) * (dispersion + 0.2))
    assert sizes.logsf(level)[1] == pytest.approx(logsumexp(given.logsf(level) + log_weight), rel=1e-8)
    np.testing.assert_allclose(sizes.sf([0.5, 2.0]), 1 - sizes.cdf([0.5, 2.0]), rtol=1e-9)


def test_improbable_shares_and_grades_have_tails():
    shares = FamilyDistribution(stats.beta, {"a": [[2.0]], "b": [[30.0]]}, [1.0])
    assert shares.sf(0.9)[0] == pytest.approx(stats.beta.sf(0.9, 2, 30))
    assert shares.hazard(0.95)[0] == pytest.approx(stats.beta.pdf(0.95, 2, 30) / stats.beta.sf(0.95, 2, 30))
    mirrored = FamilyDistribution(stats.beta, {"a": [[30.0]], "b": [[2.0]]}, [1.0])
    assert mirrored.logcdf(0.1)[0] == pytest.approx(shares.logsf(0.9)[0])
    grades = GradeDistribution([1, 2, 3], [[[1 - 1e-20, 1e-20, 1e-30]]], [1.0])
    assert grades.sf(1)[0] == pytest.approx(1e-20)
    assert grades.hazard(3)[0] == pytest.approx(1.0)
