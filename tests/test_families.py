"""Distributions of counts, of positive numbers and of transformed targets, against integrals and SciPy."""

import pickle

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, logit
from scipy.stats import gamma, lognorm, nbinom, norm, poisson
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)

from skdgp import PredictiveDistribution, SOLVEGPRegressor
from skdgp.distributions import CountDistribution, GammaDistribution, TransformedDistribution
from skdgp.tables.transforms import fitted_transform

#: Logarithm of the rate, its variance, and dispersions, of easy and of narrow integrands.
CASES = [(0.5, 0.4, 0.0), (3.5, 0.02, 0.0), (2.0, 0.3, 0.2), (6.0, 0.2, 0.0), (5.0, 0.1, 1e-3)]


def make(family, level, variance, dispersion, n_rows=3):
    """A mixture of two components."""
    rng = np.random.default_rng(0)
    m = level + 0.3 * rng.normal(size=(2, n_rows))
    v = variance * rng.uniform(0.5, 1.0, (2, n_rows))
    return family(m, v, np.full((2, n_rows), dispersion), [0.3, 0.7])


def integrated(dist, given_rate, row, bend=None):
    """Σ_s ω_s ∫ given_rate(exp(m_s + √v_s z)) N(z | 0, 1) dz by SciPy; ``bend`` is the rate that it bends at."""
    total = 0.0
    for m, v, w in zip(dist.means[:, row], dist.variances[:, row], dist.weights, strict=True):
        points = None if bend is None else [np.clip((np.log(bend) - m) / np.sqrt(v), -8, 8)]
        value = quad(
            lambda z, m=m, v=v: given_rate(np.exp(m + np.sqrt(v) * z)) * norm.pdf(z), -9, 9, points=points, limit=300
        )
        total += w * value[0]
    return total


def mass(dispersion):
    """The probability of counts given the rate, by SciPy."""
    if not dispersion:
        return poisson.pmf
    return lambda k, rate: nbinom.pmf(k, 1 / dispersion, 1 / (1 + dispersion * rate))


class TestCounts:
    @pytest.mark.parametrize("case", CASES)
    def test_probabilities_are_integrals(self, case):
        dist = make(CountDistribution, *case)
        y = dist.ppf(0.7)
        expected = [integrated(dist, lambda rate, k=k: mass(case[2])(k, rate), i, k + 0.5) for i, k in enumerate(y)]
        np.testing.assert_allclose(dist.pmf(y), expected, rtol=2e-5)
        np.testing.assert_array_equal(dist.logpmf(y), dist.logpdf(y))

    @pytest.mark.slow
    @pytest.mark.parametrize("case", CASES[:3])
    def test_all_else_follows_from_probabilities(self, case):
        dist = make(CountDistribution, *case)
        k = np.arange(600)[:, None]
        p = dist.pmf(k)
        F, y = p.cumsum(0), dist.rvs(random_state=0)
        np.testing.assert_allclose(F[-1], 1.0, atol=1e-9)
        np.testing.assert_allclose(dist.cdf(k), F, atol=1e-9)
        np.testing.assert_allclose(dist.mean, (k * p).sum(0), rtol=1e-6)
        np.testing.assert_allclose(dist.var, ((k - dist.mean) ** 2 * p).sum(0), rtol=1e-5)
        np.testing.assert_allclose(dist.crps(y), ((F - (k >= y)) ** 2).sum(0), rtol=1e-6)
        for q in (0.0, 0.05, 0.5, 0.9):
            np.testing.assert_array_equal(dist.ppf(q), (F < q).sum(0))  # the smallest count with as much

    @pytest.mark.slow
    def test_many_counts_are_scored_by_some_of_them(self):
        dist = make(CountDistribution, 9.0, 0.2, 0.0, n_rows=1)
        draws = dist.rvs(200_000, random_state=0)[:, 0]
        y = np.array([draws[0]])
        pairs = np.abs(draws - y).mean() - 0.5 * np.abs(draws - np.roll(draws, 1)).mean()
        np.testing.assert_allclose(dist.crps(y), pairs, rtol=0.01)

    def test_no_other_numbers_are_counts(self):
        dist = make(CountDistribution, *CASES[0])
        np.testing.assert_array_equal(dist.pmf([-1.0, 0.5, 1.5]), 0.0)
        np.testing.assert_array_equal(dist.cdf([-1.0, -0.5, -3.0]), 0.0)
        np.testing.assert_array_equal(dist.cdf([2.7, 0.2, 1.9]), dist.cdf([2.0, 0.0, 1.0]))
        assert np.isposinf(dist.ppf(1.0)).all()

    @pytest.mark.slow
    @pytest.mark.parametrize("case", CASES)
    def test_draws_have_its_moments(self, case):
        dist = make(CountDistribution, *case)
        draws = dist.rvs(100_000, random_state=0)
        assert (draws == np.floor(draws)).all() and (draws >= 0).all()
        np.testing.assert_allclose(draws.mean(0), dist.mean, rtol=0.02)
        np.testing.assert_allclose(draws.var(0), dist.var, rtol=0.05)

    def test_transforms_of_its_own_draws_are_uniform(self):
        dist = make(CountDistribution, *CASES[0], n_rows=4000)
        pit = dist.pit(dist.rvs(random_state=0))
        np.testing.assert_allclose(np.histogram(pit, bins=5, range=(0, 1))[0] / len(pit), 0.2, atol=0.025)
        np.testing.assert_array_equal(dist.pit(np.ones(4000)), dist.pit(np.ones(4000)))


def plain_sums(m, v, counts):
    """Poisson probabilities of counts, averaged over a fine grid of log rates."""
    z = np.linspace(-12, 12, 4001)
    share = norm.pdf(z) / norm.pdf(z).sum()
    return share @ poisson.pmf(counts, np.exp(m + np.sqrt(v) * z)[:, None])


class TestUncertainRates:
    @pytest.mark.parametrize(("m", "v", "y", "score"), [(0.0, 4.0, 1.0, 0.882168), (3.0, 4.0, 20.0, 16.652032)])
    def test_scores_are_plain_sums(self, m, v, y, score):
        assert CountDistribution([[m]], [[v]], [[0.0]], [1.0]).crps([y])[0] == pytest.approx(score, rel=1e-5)

    @pytest.mark.parametrize(("m", "v"), [(1.0, 2.0), (1.0, 4.0), (-2.0, 9.0)])
    def test_probabilities_far_out(self, m, v):
        dist, counts = CountDistribution([[m]], [[v]], [[0.0]], [1.0]), np.arange(400)
        p = plain_sums(m, v, counts)
        some = [0, 3, 60, 399]
        np.testing.assert_allclose(dist.logpmf([[k] for k in some])[:, 0], np.log(p[some]), atol=1e-5)
        np.testing.assert_allclose(dist.cdf([[k] for k in some])[:, 0], p.cumsum()[some], rtol=1e-5)

    @pytest.mark.parametrize("d", [0.2, 3.0])
    @pytest.mark.parametrize("v", [25.0, 100.0])
    def test_probabilities_of_rates_that_are_hardly_known(self, v, d):
        z = np.linspace(-12, 12, 20_001)
        share, y = norm.pdf(z) / norm.pdf(z).sum(), np.array([0.0, 1.0, 10.0, 1e3])
        expected = share @ mass(d)(y, np.exp(1.0 + np.sqrt(v) * z)[:, None])
        found = CountDistribution([[1.0]], [[v]], [[d]], [1.0]).logpmf(y[:, None])[:, 0]
        np.testing.assert_allclose(found, np.log(expected), atol=2e-7 if v < 100 else 5e-5)

    def test_a_quantile_far_out(self):
        assert CountDistribution([[1.0]], [[4.0]], [[0.0]], [1.0]).ppf(0.99)[0] == 286

    def test_a_row_does_not_depend_on_other_rows(self):
        alone = CountDistribution([[1.0]], [[2.0]], [[0.0]], [1.0])
        beside = CountDistribution([[1.0, 5.0]], [[2.0, 2.0]], [[0.0, 0.0]], [1.0])
        for method in ("logpmf", "cdf", "crps"):
            assert getattr(alone, method)([60.0])[0] == pytest.approx(
                getattr(beside, method)([60.0, 9.0])[0], rel=1e-12
            )

    @pytest.mark.parametrize("m", [31.0, 77.0])
    def test_extreme_rates_end(self, m):
        dist = CountDistribution([[m]], [[0.5]], [[0.1]], [1.0])
        median = dist.ppf(0.5)
        assert dist.cdf(median)[0] == pytest.approx(0.5, abs=1e-6)
        assert dist.crps(median)[0] / np.exp(m) == pytest.approx(0.18732, rel=1e-3)  # whatever the scale is
        assert np.isfinite(dist.logpmf(median)).all() and np.isfinite(dist.rvs(9, random_state=0)).all()

    def test_score_is_the_plain_sum_where_counts_are_many_and_the_rate_is_known(self):
        m, v, d, y = 4.17, 0.0011, 0.0206, 75.0
        k = np.arange(400.0)
        same = CountDistribution(*(np.full((1, 400), each) for each in (m, v, d)), [1.0])
        plain = ((same.cdf(k) - (k >= y)) ** 2).sum()
        assert CountDistribution([[m]], [[v]], [[d]], [1.0]).crps([y])[0] == pytest.approx(plain, rel=1e-7)

    @pytest.mark.parametrize("family", [CountDistribution, GammaDistribution])
    @pytest.mark.parametrize(("m", "v"), [(348.5, 1.0), (-348.5, 1.0), (0.0, 340.0)])
    def test_every_number_is_finite(self, family, m, v):
        dist = family([[m]], [[v]], [[0.1]], [1.0])
        y = dist.ppf([[0.01], [0.5], [0.999]])
        for numbers in (dist.mean, dist.std, y, dist.cdf(y), dist.crps(y), dist.logpdf(y), dist.rvs(9, random_state=0)):
            assert np.isfinite(numbers).all()

    @pytest.mark.parametrize("m", [20.0, 31.0, 77.0])
    def test_large_counts_are_log_normal(self, m):
        dist = CountDistribution([[m]], [[4.0]], [[0.0]], [1.0])
        y = np.floor(np.exp(m))
        np.testing.assert_allclose(dist.crps(y) / np.exp(m), 0.826089, rtol=1e-4)
        np.testing.assert_allclose(dist.logpmf(y), lognorm.logpdf(y, 2.0, scale=np.exp(m)), rtol=1e-5)


class TestGamma:
    @pytest.mark.slow
    @pytest.mark.parametrize(("variance", "dispersion"), [(0.2, 0.3), (0.05, 2.0), (0.5, 1e-2), (0.0, 0.5)])
    def test_against_integrals(self, variance, dispersion):
        dist = make(GammaDistribution, 1.0, variance, dispersion)
        a = 1 / dispersion
        y, q = dist.rvs(random_state=0), dist.ppf([[0.05], [0.5], [0.99]])
        np.testing.assert_allclose(dist.cdf(q), [[0.05] * 3, [0.5] * 3, [0.99] * 3], atol=1e-9)
        if variance:
            expected = [
                integrated(dist, lambda rate, t=t: gamma.pdf(t, a, scale=rate / a), i, t) for i, t in enumerate(y)
            ]
            np.testing.assert_allclose(dist.pdf(y), expected, rtol=1e-5)
        below = [quad(lambda t, i=i: dist.cdf([t] * 3)[i] ** 2, 0, y[i], limit=200)[0] for i in range(3)]
        last = dist.ppf(1 - 1e-9)
        above = [quad(lambda t, i=i: (1 - dist.cdf([t] * 3)[i]) ** 2, y[i], last[i], limit=200)[0] for i in range(3)]
        np.testing.assert_allclose(dist.crps(y), np.add(below, above), rtol=2e-5)
        draws = dist.rvs(200_000, random_state=1)
        np.testing.assert_allclose(draws.mean(0), dist.mean, rtol=0.02)
        np.testing.assert_allclose(draws.var(0), dist.var, rtol=0.08)

    def test_nothing_lies_below_zero(self):
        dist = make(GammaDistribution, 1.0, 0.2, 0.3)
        np.testing.assert_array_equal(dist.pdf([-1.0, 0.0, -2.0]), 0.0)
        np.testing.assert_array_equal(dist.cdf([-1.0, 0.0, -2.0]), 0.0)
        np.testing.assert_array_equal(dist.ppf(0.0), 0.0)
        np.testing.assert_allclose(dist.crps([-1.0] * 3), dist.crps([0.0] * 3) + 1.0, rtol=1e-6)


class TestTransformed:
    def test_logarithm_makes_log_normal_distributions(self):
        m, s = np.array([0.0, 1.0]), np.array([0.5, 0.2])
        dist, exact = TransformedDistribution(PredictiveDistribution.gaussian(m, s), "log"), lognorm(s, scale=np.exp(m))
        y = np.array([0.7, 3.0])
        for ours, theirs in (
            (dist.mean, exact.mean()),
            (dist.std, exact.std()),
            (dist.logpdf(y), exact.logpdf(y)),
            (dist.cdf(y), exact.cdf(y)),
            (dist.ppf(0.3), exact.ppf(0.3)),
            (dist.interval(0.8)[1], exact.ppf(0.9)),
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-8)
        np.testing.assert_array_equal(dist.pdf([-1.0, 0.0]), 0.0)
        np.testing.assert_array_equal(dist.cdf([-1.0, 0.0]), 0.0)
        np.testing.assert_allclose(dist.crps([-1.0, -1.0]), dist.crps([0.0, 0.0]) + 1.0, rtol=1e-6)

    def test_scores_are_integrals(self):
        rng = np.random.default_rng(0)
        base = PredictiveDistribution(rng.normal(size=(2, 3)), rng.uniform(0.1, 0.4, (2, 3)), [0.4, 0.6])
        dist = TransformedDistribution(base, "log")
        y, last = dist.rvs(random_state=1), dist.ppf(1 - 1e-10)
        for i in range(3):
            below = quad(lambda t, i=i: dist.cdf([t] * 3)[i] ** 2, 0, y[i], limit=200)[0]
            above = quad(lambda t, i=i: (1 - dist.cdf([t] * 3)[i]) ** 2, y[i], last[i], limit=200)[0]
            np.testing.assert_allclose(dist.crps(y)[i], below + above, rtol=1e-6)

    def test_any_monotone_transformer_of_several_outputs(self):
        rng = np.random.default_rng(0)
        y = (3 + rng.normal(size=(300, 2))) ** [2, 3]
        transformer = PowerTransformer().fit(y)
        base = PredictiveDistribution(rng.normal(size=(3, 5, 2)), rng.uniform(0.1, 0.4, (3, 5, 2)), [0.2, 0.3, 0.5])
        dist = TransformedDistribution(base, transformer)
        np.testing.assert_allclose(dist.cdf(dist.ppf(0.3)), 0.3, atol=1e-8)
        for p in (0, 1):  # an output by itself knows its column
            one, t = dist[:, p], y[:5, p]
            np.testing.assert_allclose(one.mean, dist.mean[:, p])
            np.testing.assert_allclose(one.cdf(t), dist.cdf(y[:5])[:, p])
            step = 1e-5
            slope = (one.cdf(t + step) - one.cdf(t - step)) / (2 * step)
            np.testing.assert_allclose(one.pdf(t), slope, rtol=1e-4)
        draws = dist.rvs(100_000, random_state=0)
        np.testing.assert_allclose(draws.mean(0), dist.mean, rtol=0.02)
        np.testing.assert_allclose(dist.std**2, dist.var)

    def test_falling_functions(self):
        inverse = FunctionTransformer(np.negative, np.negative).fit(np.ones((3, 1)))
        base = PredictiveDistribution.gaussian([1.0, 2.0], [0.5, 1.0])
        dist = TransformedDistribution(base, inverse)
        mirrored = PredictiveDistribution.gaussian([-1.0, -2.0], [0.5, 1.0])
        y = np.array([-0.3, -2.5])
        for method in ("logpdf", "cdf", "crps"):
            np.testing.assert_allclose(getattr(dist, method)(y), getattr(mirrored, method)(y), rtol=1e-6)
        np.testing.assert_allclose(dist.ppf(0.2), mirrored.ppf(0.2))

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    @pytest.mark.parametrize("lost", [lambda z: z > 7.0, lambda z: z < -7.0, lambda z: abs(z) > 7.0])
    def test_a_tail_without_targets_does_not_count(self, sign, lost):
        """Its probability is negligible. The farthest target that there is stands for its targets."""

        def inverse(z):
            return np.where(lost(z), np.nan, sign * z)

        signed = FunctionTransformer(lambda y: sign * y, inverse).fit(np.ones((3, 1)))
        dist = TransformedDistribution(PredictiveDistribution.gaussian(np.zeros(3), np.ones(3)), signed)
        y = np.array([-0.3, 2.5, 0.0])
        expected = y * (2 * norm.cdf(y) - 1) + 2 * norm.pdf(y) - 1 / np.sqrt(np.pi)  # of N(0, 1), whatever the sign is
        np.testing.assert_allclose(dist.crps(y), expected, rtol=1e-5)

    def test_outputs_may_rise_and_fall(self):
        signs = FunctionTransformer(lambda y: y * [1.0, -1.0], lambda z: z * [1.0, -1.0]).fit(np.ones((3, 2)))
        means, deviations = np.array([[1.0, 2.0], [0.0, -1.0]]), np.full((2, 2), 0.5)
        dist = TransformedDistribution(PredictiveDistribution.gaussian(means, deviations), signs)
        direct = PredictiveDistribution.gaussian(means * [1.0, -1.0], deviations)
        y = np.array([[0.7, -2.2], [0.3, 1.4]])
        for method in ("logpdf", "cdf", "crps"):
            np.testing.assert_allclose(getattr(dist, method)(y), getattr(direct, method)(y), rtol=1e-6)
        np.testing.assert_allclose(dist.ppf(0.2), direct.ppf(0.2))
        swapped = dist[:, [1, 0]]
        np.testing.assert_allclose(swapped.ppf(0.2), direct.ppf(0.2)[:, [1, 0]])
        np.testing.assert_allclose(swapped[:, 1].cdf(y[:, 0]), direct.cdf(y)[:, 0])

    def test_a_row_at_a_limit_leaves_others_alone(self):
        most_one = FunctionTransformer(lambda y: y, lambda z: np.minimum(z, 1.0)).fit(np.ones((3, 1)))
        dist = TransformedDistribution(PredictiveDistribution.gaussian([0.0, 9.0, -1.0], [0.1, 0.1, 0.1]), most_one)
        np.testing.assert_allclose(dist.ppf(0.9)[[0, 2]], [0.128155, -0.871845], rtol=1e-5)
        np.testing.assert_allclose(dist.cdf([0.1, 1.0, -0.9])[[0, 2]], 0.841345, rtol=1e-5)

    def test_not_of_other_families(self):
        with pytest.raises(
            TypeError, match="takes a mixture of Gaussians, got GammaDistribution: leave out one of the"
        ):
            TransformedDistribution(make(GammaDistribution, 1.0, 0.2, 0.3), "log")

    def test_not_by_what_is_no_transformer(self):
        with pytest.raises(TypeError, match="transform='sqrt' is neither \"log\" nor a fitted transformer"):
            TransformedDistribution(PredictiveDistribution.gaussian([0.0], [1.0]), "sqrt")

    def test_mixtures_keep_the_transformer(self):
        """Fits to the same rows have equal transformers. Others cannot be mixed."""
        tables = [np.random.default_rng(seed).gamma(2.0, size=(50, 1)) for seed in (0, 0, 1)]
        one, same, other = (
            TransformedDistribution(PredictiveDistribution.gaussian([0.0], [1.0]), StandardScaler().fit(table))
            for table in tables
        )
        mixed = PredictiveDistribution.mixture([one, same])
        np.testing.assert_allclose(mixed.ppf(0.3), one.ppf(0.3))
        np.testing.assert_allclose(PredictiveDistribution.concatenate([one, same]).mean, [one.mean[0], one.mean[0]])
        unknown = [FunctionTransformer(lambda y: y, lambda z: z).fit(np.ones((3, 1))) for _ in range(2)]
        lambdas = [TransformedDistribution(one.dist, transformer) for transformer in unknown]
        for parts in ([one, other], lambdas):
            with pytest.raises(ValueError, match="transformed in different ways cannot be joined"):
                PredictiveDistribution.mixture(parts)
        assert len(PredictiveDistribution.concatenate([lambdas[0][:1], lambdas[0]])) == 2
        with pytest.raises(
            TypeError, match=r"different kinds .* got PredictiveDistribution and TransformedDistribution"
        ):
            PredictiveDistribution.mixture([one, one.dist])

    def test_points_that_do_not_fit(self):
        dist = TransformedDistribution(PredictiveDistribution.gaussian(np.zeros(3), np.ones(3)), "log")
        for method in (dist.logpdf, dist.cdf, dist.crps):
            with pytest.raises(ValueError, match=r"shape \(4,\) do not broadcast"):
                method(np.ones(4))


class TestWhatAllShare:
    @pytest.fixture(params=["counts", "gamma", "log"])
    def dist(self, request):
        if request.param == "log":
            rng = np.random.default_rng(0)
            base = PredictiveDistribution(rng.normal(size=(2, 6)), rng.uniform(0.1, 0.4, (2, 6)), [0.4, 0.6])
            return TransformedDistribution(base, "log")
        return make(CountDistribution if request.param == "counts" else GammaDistribution, 1.0, 0.2, 0.3, n_rows=6)

    def test_rows_together_and_apart(self, dist):
        y = dist.rvs(random_state=0)
        assert y.shape == (6,) and dist.rvs(4, random_state=0).shape == (4, 6) and len(dist) == 6
        again = dist.concatenate([dist[:2], dist[2:]])
        twice = dist.mixture([dist, dist])
        for other in (again, twice, pickle.loads(pickle.dumps(dist))):
            np.testing.assert_allclose(other.cdf(y), dist.cdf(y), rtol=1e-6)
            np.testing.assert_allclose(other.mean, dist.mean)
        np.testing.assert_allclose(dist[3].cdf(y[3]), dist.cdf(y)[3], rtol=1e-5)
        assert type(dist).__name__ in repr(dist)

    def test_nothing_is_known_of_what_was_not_observed(self, dist):
        y = np.where(np.arange(6) == 2, np.nan, np.round(dist.mean))
        for method in ("logpdf", "pdf", "cdf", "crps"):
            assert np.array_equal(np.isnan(getattr(dist, method)(y)), np.isnan(y))
        assert (dist.crps(np.inf) == np.inf).all()

    def test_a_row_draws_the_same_whatever_rows_follow(self, dist):
        np.testing.assert_allclose(dist[:3].rvs(2, random_state=0), dist.rvs(2, random_state=0)[:, :3])


def test_gamma_without_uncertainty_of_the_mean():
    dist, exact = GammaDistribution([[np.log(2.0)]], [[0.0]], [[0.25]], [1.0]), gamma(4.0, scale=0.5)
    q = np.array([[1e-10], [0.3], [1 - 1e-10]])
    np.testing.assert_allclose(dist.ppf(q), exact.ppf(q), rtol=1e-6)
    left, right = (quad(lambda t, n=n: (exact.cdf(t) - n) ** 2, *ends)[0] for n, ends in ((0, (0, 2)), (1, (2, 40))))
    assert dist.crps(2.0)[0] == pytest.approx(left + right, rel=1e-5)


def paired_score(m, v, w, y):
    """Σ_s ω_s E|y − t_s| − ½ Σ_st ω_s ω_t E|t_s − t_t| of one mixture of Gaussians, by dense NumPy."""

    def folded(mean, deviation):
        return 2 * deviation * norm.pdf(mean / deviation) + mean * (1 - 2 * norm.cdf(-mean / deviation))

    pairs = folded(m[:, None] - m, np.sqrt(v[:, None] + v))
    return w @ folded(y - m, np.sqrt(v)) - 0.5 * w @ pairs @ w


@pytest.mark.parametrize("kind", ["narrow", "very narrow", "wide", "heavy tails", "both", "one", "far from zero"])
@pytest.mark.parametrize("equal", [True, False])
def test_mixtures_of_many_gaussians_are_scored_exactly(kind, equal):
    rng = np.random.default_rng(0)
    m = np.linspace(0.0, 1.0, 320)
    s = {
        "narrow": np.full(320, 0.01),
        "very narrow": np.full(320, 0.001),
        "wide": rng.uniform(1.0, 3.0, 320),
        "heavy tails": 10.0 ** rng.uniform(-1, 2, 320),  # as a Student t distribution's
        "both": np.where(np.arange(320) % 2, 1e-4, 2.0),
        "one": np.where(np.arange(320) == 77, 1e-3, 2.0),
        "far from zero": np.full(320, 0.2),
    }[kind]
    m = m + 1e6 * (kind == "far from zero")
    w = np.full(320, 1 / 320) if equal else rng.dirichlet(np.full(320, 0.3))
    dist = PredictiveDistribution(m[:, None], s[:, None] ** 2, w)
    y = np.array([m[0], m[119], m.mean() + 0.0003, m.mean() - 40.0])
    expected = [paired_score(m, s**2, w, observed) for observed in y]
    np.testing.assert_allclose(dist.crps(y[:, None])[:, 0], expected, rtol=1e-7)


def test_scores_of_rows_together_and_apart():
    """Rows with narrow components and rows without are computed in different ways."""
    rng = np.random.default_rng(0)
    s = 10.0 ** rng.uniform([-3, -1, -1, 0], [-2, 0, 1, 0.5], (320, 4))
    m, y = rng.normal(size=(320, 4)), rng.normal(size=4)
    dist = PredictiveDistribution(m, s**2, np.full(320, 1 / 320))
    expected = [paired_score(m[:, i], s[:, i] ** 2, dist.weights, y[i]) for i in range(4)]
    np.testing.assert_allclose(dist.crps(y), expected, rtol=1e-8)
    np.testing.assert_allclose([dist[i].crps(y[i])[0] for i in range(4)], expected, rtol=1e-8)


def plain_score(dist, y):
    """2 ∫ pinball loss of the quantiles, by many midpoints."""
    q = (np.arange(4000)[:, None] + 0.5) / 4000
    t = dist.ppf(q)
    return 2 * ((q - (y < t)) * (y - t)).mean(axis=0)


@pytest.mark.parametrize("scale", [1e-6, 0.01, 0.1, 1.0, 1e6])
@pytest.mark.parametrize(
    "transformer",
    [PowerTransformer(), PowerTransformer("box-cox"), QuantileTransformer(n_quantiles=50), MinMaxScaler()],
)
def test_scores_under_transforms_at_every_scale(transformer, scale):
    rng = np.random.default_rng(0)
    y = scale * np.exp(np.sin(rng.uniform(-4, 4, 200)) + 0.3 * rng.normal(size=200))
    bounded = fitted_transform(transformer, y[:, None])
    centre = np.median(bounded.transform(y[:, None]))
    dist = TransformedDistribution(PredictiveDistribution.gaussian(np.full(3, centre), np.full(3, 0.2)), bounded)
    observed = np.array([y.min(), np.median(y), 2 * y.max()])  # the last is beyond many images
    np.testing.assert_allclose(dist.crps(observed), plain_score(dist, observed), rtol=2e-3)
    np.testing.assert_allclose(dist[:1].crps(observed[:1]), dist.crps(observed)[:1], rtol=1e-12)


@pytest.mark.parametrize("likelihood", ["student_t", "heteroskedastic"])
def test_the_exponential_of_heavy_tails_has_a_mean(likelihood):
    """Without limits it would be infinite: those are ten times the range of the targets."""
    X = np.random.default_rng(0).uniform(-2, 2, (40, 1))
    y = np.exp(np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(1).standard_t(2.5, 40))
    model = SOLVEGPRegressor(6, 0, likelihood=likelihood, target_transform="log", max_iter=5, random_state=0).fit(X, y)
    dist = model.predict_dist(X[:4])
    most = y.max() + 10 * np.ptp(y)
    assert (dist.ppf(1 - 1e-15) < (1 + 1e-9) * most).all()
    assert (dist.mean < y.max()).all() and (dist.std < most).all()


def uncertain(transformer, scale):
    """Uncertain predictions under a transformer, 40 000 of their quantiles, and observations."""
    rng = np.random.default_rng(0)
    y = scale * np.exp(np.sin(2 * rng.uniform(-3, 3, 120)) + 0.1 * rng.normal(size=120))
    bounded = fitted_transform(transformer, y[:, None])
    m, s = np.array([-0.5, 0.0, 1.5]), np.array([0.3, 1.0, 2.0])
    q = (np.arange(40_000)[:, None] + 0.5) / 40_000
    t = bounded.inverse_transform((m + s * norm.ppf(q)).reshape(-1, 1)).reshape(-1, 3)
    return TransformedDistribution(PredictiveDistribution.gaussian(m, s), bounded), q, t, y[:3]


KINKED = [PowerTransformer(), QuantileTransformer(n_quantiles=50, output_distribution="normal")]


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("transformer", KINKED)
def test_scores_of_uncertain_predictions_under_transforms(transformer, scale):
    """The inverse has kinks, and is steep near a limit that uncertain predictions reach."""
    dist, q, t, y = uncertain(transformer, scale)
    np.testing.assert_allclose(dist.crps(y), 2 * ((q - (y < t)) * (y - t)).mean(axis=0), rtol=2e-5)


@pytest.mark.parametrize("scale", [0.1, 1.0])
@pytest.mark.parametrize("transformer", KINKED)
def test_moments_of_uncertain_predictions_under_transforms(transformer, scale):
    dist, _, t, _ = uncertain(transformer, scale)
    np.testing.assert_allclose(dist.mean, t.mean(axis=0), rtol=3e-3)
    np.testing.assert_allclose(dist.std, t.std(axis=0), rtol=1.5e-2)


def test_an_improbable_pole_says_nothing():
    """The inverse of this power is NaN far beyond the targets."""
    y = np.exp(np.random.default_rng(0).normal(size=(200, 1)))
    dist = TransformedDistribution(PredictiveDistribution.gaussian([-1.0], [0.05]), PowerTransformer().fit(y))
    np.testing.assert_allclose(dist.crps([0.5]), plain_score(dist, [0.5]), rtol=2e-3)
    assert np.isfinite([dist.mean, dist.std, dist.logpdf([0.5])]).all() and dist.cdf([1e9]) == 1.0


@pytest.mark.parametrize("output", ["uniform", "normal"])
def test_nothing_lies_outside_the_image(output):
    y = np.round(np.random.default_rng(0).normal(size=(100, 1)), 1)
    transformer = QuantileTransformer(n_quantiles=50, output_distribution=output).fit(y)
    dist = TransformedDistribution(PredictiveDistribution.gaussian([0.5, -2.0], [0.4, 1.0]), transformer)
    low, high = y.min(), y.max()
    np.testing.assert_array_equal(dist.cdf([[low - 1], [high], [high + 1]]), [[0, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(dist.logpdf([[low - 1e-6], [high + 1]]), -np.inf)
    np.testing.assert_allclose(dist.crps([low - 3, high + 3]), plain_score(dist, [low - 3, high + 3]), rtol=2e-3)
    np.testing.assert_allclose(dist.ppf([[0.0], [1.0]]), [[low, low], [high, high]])


@pytest.mark.parametrize("output", ["uniform", "normal"])
@pytest.mark.parametrize("falling", [False, True])
def test_values_of_tied_targets_have_probabilities(output, falling):
    """The distribution function at such a value is the share of draws up to it, its own ones included."""
    y = np.round(np.random.default_rng(0).normal(size=(200, 1)))
    sign = -1.0 if falling else 1.0
    ranks = QuantileTransformer(n_quantiles=50, output_distribution=output).fit(sign * y)
    transformer = FunctionTransformer(
        lambda y: ranks.transform(sign * y), lambda z: sign * ranks.inverse_transform(z)
    ).fit(y)
    dist = TransformedDistribution(PredictiveDistribution.gaussian([0.4], [0.5]), transformer)
    draws, values = dist.rvs(50_000, random_state=0)[:, 0], np.array([-1.0, -0.5, 0.0, 0.3, 1.0])
    share = (draws <= values[:, None]).mean(axis=1)
    np.testing.assert_allclose(dist.cdf(values[:, None])[:, 0], share, atol=0.01)
    q = np.linspace(0.05, 0.95, 19)[:, None]
    assert (dist.cdf(dist.ppf(q)) >= q - 1e-9).all()


def test_an_inverse_that_saturates_has_a_score():
    transformer = FunctionTransformer(logit, expit).fit(np.full((3, 1), 0.5))
    dist = TransformedDistribution(PredictiveDistribution.gaussian([0.0, 40.0, -800.0], [1.0, 5.0, 1.0]), transformer)
    np.testing.assert_allclose(dist.crps([0.5, 0.0, 1.0]), plain_score(dist, [0.5, 0.0, 1.0]), rtol=1e-3)


def test_values_beyond_a_pole_have_no_mean():
    transformer = FunctionTransformer(lambda y: 1 - 1 / y, lambda z: np.where(z < 1, 1 / (1 - z), np.nan))
    transformer.fit(np.ones((3, 1)))
    likely, hardly = (
        TransformedDistribution(PredictiveDistribution.gaussian([0.0], [s]), transformer) for s in (1, 0.1)
    )
    for call in (lambda: likely.mean, lambda: likely.crps([1.0]), lambda: likely.ppf(0.99)):
        with pytest.raises(ValueError, match="inverse of the transformation is not finite where z has a probability"):
            call()
    np.testing.assert_allclose(hardly.mean, hardly.ppf((np.arange(2000)[:, None] + 0.5) / 2000).mean(), rtol=1e-4)


@pytest.mark.parametrize("family", [CountDistribution, GammaDistribution])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (([[np.nan]], [[1.0]], [[0.1]], [1.0]), "must be finite"),
        (([[0.0]], [[-1.0]], [[0.1]], [1.0]), "must be finite"),
        (([[0.0]], [[1.0]], [[-0.1]], [1.0]), "must be finite"),
        (([[0.0]], [[1.0]], [[0.1]], [0.5]), "add up to one"),
        (([[0.0]], [[1.0]], [[0.1, 0.2]], [1.0]), "make mixtures"),
        (([[800.0]], [[0.1]], [[0.1]], [1.0]), r"Some of them stand for numbers near exp\(±800\), whose squares"),
        (([[0.0]], [[400.0]], [[0.1]], [1.0]), "whose squares overflow or underflow"),
    ],
)
def test_impossible_parts_are_refused(family, parts, message):
    with pytest.raises(ValueError, match=message):
        family(*parts)


def test_scores_of_positive_targets_have_their_unit():
    """Where all targets are tiny, a target of zero is below all of them, too."""
    y = np.array([0.0, 0.5, 3.0])
    numbers = np.full((1, 3), 0.4), np.full((1, 3), 0.3), [1.0]
    plain, tiny = (GammaDistribution(np.full((1, 3), shift), *numbers) for shift in (0.0, -100.0))
    np.testing.assert_allclose(tiny.crps(y * np.exp(-100.0)) * np.exp(100.0), plain.crps(y), rtol=1e-9)


def test_rates_of_zero_do_not_need_many_nodes():
    """A row of hopelessly small rates beside others leaves their scores as they are."""
    means, variances = np.array([[-300.0, 1.0, -20.0]]), np.array([[4.0, 0.5, 3.0]])
    dist = CountDistribution(means, variances, np.zeros((1, 3)), [1.0])
    scores = dist.crps([2.0, 2.0, 0.0])
    assert scores[0] == pytest.approx(2.0, rel=1e-12) and 0 <= scores[2] < 1e-6
    np.testing.assert_allclose(scores[1:2], dist[1:2].crps([2.0]), rtol=1e-12)


@pytest.mark.parametrize("rate", [3.0, 90.0, 400.0, 3000.0])
def test_scores_of_poisson_counts_are_sums(rate):
    """Few counts and many, and targets beyond all of them, each a step farther from all counts than the last."""
    dist = CountDistribution(np.log([[rate] * 3]), np.zeros((1, 3)), np.zeros((1, 3)), [1.0])
    k, y = np.arange(10 * rate + 100), np.round([0.8 * rate, rate, 1.1 * rate])
    expected = [np.square(poisson.cdf(k, rate) - (k >= target)).sum() for target in y]
    np.testing.assert_allclose(dist.crps(y), expected, rtol=1e-6)
    below, above = dist.crps([0.0, -1.0, -3.0]), dist.crps(np.array([0.0, 1.0, 3.0]) + 20 * rate + 1000)
    np.testing.assert_allclose(below - below[0], [0.0, 1.0, 3.0], atol=1e-6)
    np.testing.assert_allclose(above - above[0], [0.0, 1.0, 3.0], atol=1e-6)
