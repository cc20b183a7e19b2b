"""Predictive distributions against independent implementations and numerical integration."""

import pickle
import re

import numpy as np
import pytest
from helpers import make_mixtures
from scipy.integrate import quad
from scipy.stats import kstest, norm

from skdgp import PredictiveDistribution
from skdgp.distributions import _mixture

LEVELS = np.array([1e-6, 0.05, 0.3, 0.5, 0.9, 0.999])[:, None]


def weighted(dist, function, y):
    """Σ_s ω_s function(y, m_s, √v_s)."""
    return np.tensordot(dist.weights, function(y, dist.means, np.sqrt(dist.variances)), axes=1)


class TestMoments:
    def test_equal_those_of_many_draws(self):
        _, dist = make_mixtures(4, 3, 2)
        draws = dist.rvs(200_000, random_state=0)
        assert draws.shape == (200_000, 3, 2) and dist.mean.shape == dist.std.shape == dist.shape == (3, 2)
        np.testing.assert_allclose(draws.mean(0), dist.mean, atol=0.02)
        np.testing.assert_allclose(draws.std(0), dist.std, rtol=0.02)
        np.testing.assert_allclose(dist.std**2, dist.var, rtol=1e-14)

    def test_keep_their_digits_far_from_zero(self):
        _, near = make_mixtures(3, 5)
        far = PredictiveDistribution(near.means + 1e8, near.variances, near.weights)
        np.testing.assert_allclose(far.var, near.var, rtol=1e-6)


class TestDensity:
    def test_is_the_weighted_sum_of_densities(self):
        y, dist = make_mixtures(4, 20)
        expected = weighted(dist, norm.pdf, y)
        np.testing.assert_allclose(dist.pdf(y), expected, rtol=1e-12)
        np.testing.assert_allclose(dist.logpdf(y), np.log(expected), rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(dist.log_score(y), -dist.logpdf(y))

    def test_logarithm_does_not_underflow(self):
        dist = PredictiveDistribution(np.zeros((2, 1)), np.ones((2, 1)), [0.3, 0.7])
        np.testing.assert_allclose(dist.logpdf([1e3]), norm.logpdf(1e3), rtol=1e-12)


class TestQuantiles:
    def test_cdf_is_the_weighted_sum_of_cdfs(self):
        y, dist = make_mixtures(4, 20, 2)
        np.testing.assert_allclose(dist.cdf(y), weighted(dist, norm.cdf, y), rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e6, 10.0), (0.0, 1e-6), (0.0, 1e30)])
    def test_invert_the_cdf(self, shift, scale):
        _, dist = make_mixtures(5, 200, shift=shift, scale=scale)
        x = dist.ppf(LEVELS)
        assert x.shape == (6, 200)
        np.testing.assert_allclose(dist.cdf(x), np.broadcast_to(LEVELS, x.shape), atol=1e-9)
        np.testing.assert_allclose(dist.ppf(dist.cdf(x)), x, rtol=1e-9, atol=1e-6 * scale)

    def test_of_one_gaussian_are_exact(self):
        _, dist = make_mixtures(1, 10)
        expected = norm.ppf(LEVELS, dist.means[0], np.sqrt(dist.variances[0]))
        np.testing.assert_allclose(dist.ppf(LEVELS), expected, rtol=1e-12)

    @pytest.mark.parametrize("width", [1e-3, 1e-6])
    def test_between_spikes(self, width):
        """Newton's method alone would leap from one spike to the other and back."""
        dist = PredictiveDistribution([[0.0], [1.0], [7.0]], np.full((3, 1), width**2), [0.2, 0.5, 0.3])
        levels = np.array([0.1, 0.4, 0.69, 0.75, 0.9])[:, None]
        np.testing.assert_allclose(dist.cdf(dist.ppf(levels)), levels, atol=1e-6)
        assert 0 < dist.ppf(0.2)[0] < 1 < dist.ppf(0.7)[0] < 7

    def test_of_very_different_widths(self):
        rng = np.random.default_rng(0)
        shape = (32, 3000)
        dist = PredictiveDistribution(
            rng.normal(size=shape) * rng.uniform(0.1, 3, shape[1]),
            rng.uniform(0.01, 2, shape) ** 2,
            np.full(32, 1 / 32),
        )
        x = dist.ppf(LEVELS)
        np.testing.assert_allclose(dist.cdf(x), np.broadcast_to(LEVELS, x.shape), atol=1e-9)

    def test_at_the_ends_are_infinite(self):
        _, dist = make_mixtures(3, 2)
        np.testing.assert_array_equal(dist.ppf(0.0), [-np.inf] * 2)
        np.testing.assert_array_equal(dist.ppf(1.0), [np.inf] * 2)

    def test_interval_is_central(self):
        _, dist = make_mixtures(4, 30)
        lower, upper = dist.interval(0.8)
        np.testing.assert_allclose(dist.cdf(lower), 0.1, atol=1e-9)
        np.testing.assert_allclose(dist.cdf(upper), 0.9, atol=1e-9)


class TestCrps:
    def test_equals_the_integral_of_the_squared_cdf(self):
        y, dist = make_mixtures(5, 8)
        variances = np.sqrt(dist.variances)

        def integral(row):
            def cdf(t):
                return dist.weights @ norm.cdf(t, dist.means[:, row], variances[:, row])

            below, _ = quad(lambda t: cdf(t) ** 2, -np.inf, y[row], epsabs=1e-11)
            above, _ = quad(lambda t: (1 - cdf(t)) ** 2, y[row], np.inf, epsabs=1e-11)
            return below + above

        np.testing.assert_allclose(dist.crps(y), [integral(row) for row in range(len(y))], atol=1e-8)

    @pytest.mark.parametrize("n_components", [1, 3])
    def test_of_equal_components_is_that_of_one_gaussian(self, n_components):
        y, one = make_mixtures(1, 50, shift=100.0, scale=20.0)
        mean, std = one.mean, one.std
        z = (y - mean) / std
        expected = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
        repeated = [np.repeat(values, n_components, axis=0) for values in (one.means, one.variances)]
        dist = PredictiveDistribution(*repeated, np.full(n_components, 1 / n_components))
        np.testing.assert_allclose(dist.crps(y), expected, rtol=1e-10)


class TestPoints:
    @pytest.mark.parametrize("method", ["pdf", "logpdf", "cdf", "crps", "log_score"])
    def test_broadcast_against_rows_and_outputs(self, method):
        _, dist = make_mixtures(3, 5, 2)
        columns = [PredictiveDistribution(dist.means[..., p], dist.variances[..., p], dist.weights) for p in range(2)]
        grid = np.linspace(-1, 1, 4)
        expected = np.stack([getattr(column, method)(grid[:, None]) for column in columns], axis=-1)
        np.testing.assert_allclose(getattr(dist, method)(grid[:, None, None]), expected, rtol=1e-13)
        np.testing.assert_allclose(getattr(dist, method)(0.3)[:, 1], getattr(columns[1], method)(0.3), rtol=1e-13)

    @pytest.mark.parametrize("method", ["cdf", "crps", "logpdf", "ppf"])
    def test_chunks_do_not_matter(self, method, monkeypatch):
        y, dist = make_mixtures(6, 31)
        points = dist.cdf(y) if method == "ppf" else y
        whole = getattr(dist, method)(points)
        monkeypatch.setattr(_mixture, "CHUNK_NUMBERS", 24)
        np.testing.assert_allclose(getattr(dist, method)(points), whole, rtol=1e-12)

    def test_no_rows_give_no_values(self):
        y, dist = make_mixtures(2, 0)
        for values in (dist.mean, dist.std, dist.pdf(y), dist.cdf(y), dist.ppf(0.5), dist.crps(y), dist.rvs()):
            assert values.shape == (0,)


class TestDraws:
    def test_follow_the_cdf(self):
        _, dist = make_mixtures(4, 3)
        draws = dist.rvs(20_000, random_state=1)
        for row in range(3):
            assert kstest(draws[:, row], lambda t, row=row: dist[[row]].cdf(t[:, None])[:, 0]).pvalue > 1e-3

    def test_pick_one_component_for_all_rows(self):
        dist = PredictiveDistribution([[0.0] * 9, [100.0] * 9], np.ones((2, 9)), [0.5, 0.5])
        high = dist.rvs(50, random_state=0) > 50
        assert (high.all(1) | ~high.any(1)).all() and 0 < high.mean() < 1

    def test_shapes_and_seeds(self):
        _, dist = make_mixtures(2, 4, 3)
        assert dist.rvs().shape == (4, 3) and dist.rvs(1).shape == (1, 4, 3)
        assert np.array_equal(dist.rvs(5, random_state=3), dist.rvs(5, random_state=3))
        assert not np.array_equal(dist.rvs(5, random_state=3), dist.rvs(5, random_state=4))


class TestObject:
    def test_rows_can_be_taken_and_put_together(self):
        y, dist = make_mixtures(3, 10)
        assert (
            len(dist) == 10 and dist[2:5].shape == (3,) and dist[4].shape == (1,) and dist[y > 0].shape == (sum(y > 0),)
        )
        whole = PredictiveDistribution.concatenate([dist[:4], dist[4:]])
        assert np.array_equal(whole.means, dist.means) and np.array_equal(whole.ppf(0.3), dist.ppf(0.3))

    def test_outputs_can_be_taken(self):
        y, dist = make_mixtures(3, 6, 2)
        assert dist[:, 1].shape == (6,) and dist[1:4, 0].shape == (3,) and dist[2].shape == (1, 2)
        np.testing.assert_allclose(dist[:, 1].crps(y[:, 1]), dist.crps(y)[:, 1], rtol=1e-12)

    def test_is_frozen(self):
        mean, variance = np.zeros((1, 2)), np.ones((1, 2))
        dist = PredictiveDistribution(mean, variance, [1.0])
        with pytest.raises(AttributeError):
            dist.means = mean
        with pytest.raises(ValueError, match="read-only"):
            dist.means[0] = 1.0
        mean[0] = 0.0  # the user's own array stays as it was

    def test_pickles_and_shows_itself(self):
        y, dist = make_mixtures(3, 4)
        again = pickle.loads(pickle.dumps(dist))
        np.testing.assert_array_equal(again.cdf(y), dist.cdf(y))
        assert repr(dist) == "PredictiveDistribution(shape=(4,), 3 components)"

    def test_of_gaussians(self):
        dist = PredictiveDistribution.gaussian([1.0, 2.0], [3, 4])
        np.testing.assert_array_equal(dist.mean, [1.0, 2.0])
        np.testing.assert_array_equal(dist.std, [3.0, 4.0])

    def test_far_out_and_without_observation(self):
        dist = PredictiveDistribution.gaussian([0.0], [1.0])
        assert dist.logpdf(1e160) == dist.logpdf(np.inf) == -np.inf and dist.crps(-np.inf) == np.inf
        for method in ("logpdf", "pdf", "cdf", "crps"):
            assert np.isnan(getattr(dist, method)([[np.nan]])).all()

    def test_moments_cannot_be_changed(self):
        dist = PredictiveDistribution.gaussian([0.0], [1.0])
        for moment in (dist.mean, dist.var):
            with pytest.raises(ValueError, match="read-only"):
                moment[0] = 5.0


class TestErrors:
    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ((np.zeros(3), np.ones(3), [1.0]), r"means and variances of shape \(S, n\).*got \(3,\), \(3,\) and \(1,\)"),
            ((np.zeros((1, 3)), np.ones((1, 2)), [1.0]), r"got \(1, 3\), \(1, 2\) and \(1,\)"),
            ((np.zeros((1, 3)), np.zeros((1, 3)), [1.0]), "variances positive and finite: some are not"),
            ((np.full((1, 3), np.nan), np.ones((1, 3)), [1.0]), "Means must be finite"),
            ((np.zeros((2, 3)), np.ones((2, 3)), [0.5, 0.6]), "add up to one, got .* which add up to 1.1"),
            ((np.zeros((2, 3)), np.ones((2, 3)), [1.5, -0.5]), "weights must be non-negative"),
        ],
    )
    def test_of_what_is_no_mixture(self, parts, message):
        with pytest.raises(ValueError, match=message):
            PredictiveDistribution(*parts)

    def test_of_parts_with_other_weights(self):
        one = PredictiveDistribution(np.zeros((2, 3)), np.ones((2, 3)), [0.5, 0.5])
        other = PredictiveDistribution(np.zeros((2, 3)), np.ones((2, 3)), [0.4, 0.6])
        with pytest.raises(ValueError, match="Means must be finite, and variances positive"):
            PredictiveDistribution.gaussian([0.0], [-1.0])
        for parts in ([one, other], [one, PredictiveDistribution.gaussian(np.zeros(3), np.ones(3))]):
            with pytest.raises(ValueError, match="can be joined only if their weights are the same"):
                PredictiveDistribution.concatenate(parts)

    @pytest.mark.parametrize("weights", [[1.0], [0.2, 0.3, 0.5], [[0.5, 0.5]]])
    def test_of_weights_that_are_not_one_for_each(self, weights):
        parts = 2 * [PredictiveDistribution.gaussian(np.zeros(3), np.ones(3))]
        shape = re.escape(str(np.shape(weights)))
        with pytest.raises(ValueError, match=f"2 distributions need as many weights, got weights of shape {shape}"):
            PredictiveDistribution.mixture(parts, weights)

    @pytest.mark.parametrize("confidence_level", [0.0, 1.0, 90, [0.5, 0.9]])
    def test_of_what_is_no_probability(self, confidence_level):
        _, dist = make_mixtures(2, 3)
        with pytest.raises(ValueError, match="confidence_level must lie between 0 and 1"):
            dist.interval(confidence_level)
        with pytest.raises(ValueError, match="must lie between 0 and 1: they are probabilities"):
            dist.ppf([0.1, 0.5, np.nan])

    def test_of_points_that_do_not_fit(self):
        _, dist = make_mixtures(2, 3)
        with pytest.raises(ValueError, match=r"shape \(4,\) do not broadcast to the distribution's shape \(3,\)"):
            dist.cdf(np.zeros(4))
        with pytest.raises(ValueError, match="number of draws must be at least 1, got 0"):
            dist.rvs(0)
