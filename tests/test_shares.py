"""Shares: beta distributions against SciPy, targets of zero and one, and what estimators make of them."""

import numpy as np
import pytest
import torch
from helpers import REGRESSORS, any_options, name_of, normal
from scipy import stats
from scipy.special import digamma, expit, logit
from sklearn.model_selection import GridSearchCV

from skdgp import AVDGPRegressor, SOLVEGPRegressor
from skdgp.gp.shares import CLOSEST, Beta
from skdgp.metrics import crps_scorer

SHALLOW = {"n_inducing": 10, "n_orthogonal": 0, "random_state": 0}


def shares(n_rows=200, size=15.0, seed=0):
    """Rows, shares around a smooth function of them, and their means."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    mean = expit(2 * np.sin(2 * X[:, 0]) - 1)
    return X, rng.beta(size * mean, size * (1 - mean)), mean


@torch.no_grad()
def ready(dispersion):
    """A likelihood in double precision with this dispersion and another constant than zero."""
    likelihood = Beta(1).double()
    likelihood.log_dispersion.fill_(np.log(dispersion))
    likelihood.shift.fill_(-0.7)
    return likelihood


class TestMathematics:
    @torch.no_grad()
    @pytest.mark.parametrize("dispersion", [1e-5, 0.05, 2.0])
    def test_density_is_that_of_scipy(self, dispersion):
        likelihood, f = ready(dispersion), np.linspace(-4, 4, 9)
        y, size = expit(f + 0.3), 1 / likelihood.dispersion.item()
        expected = stats.beta.logpdf(y, size * expit(f), size * expit(-f))
        found = likelihood.log_prob(*(torch.from_numpy(column)[None, :, None] for column in (y, f)))
        np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-6)
        single = likelihood.float().log_prob(*(torch.from_numpy(column)[None, :, None].float() for column in (y, f)))
        np.testing.assert_allclose(single[0, :, 0], expected, rtol=1e-3, atol=1e-3)
        frozen = likelihood.distribution(torch.from_numpy(f)[None, :, None])
        np.testing.assert_allclose(frozen.mean()[0, :, 0], expit(f), rtol=1e-6)

    @torch.no_grad()
    @pytest.mark.parametrize("dispersion", [0.01, 0.5])
    def test_derivatives_are_differences(self, dispersion):
        likelihood, step = ready(dispersion), 1e-4
        y, f = torch.tensor([[0.1], [0.5], [0.98]]).double(), normal(1, 3, 1)

        def value(f):
            return likelihood._log_prob(y, f)

        slope, curvature = likelihood.derivatives(y, f)
        torch.testing.assert_close(slope, (value(f + step) - value(f - step)) / (2 * step), rtol=1e-6, atol=1e-6)
        draws = likelihood.distribution(likelihood._shifted(f)).rvs((100_000, *f.shape), random_state=0)
        slopes, _ = likelihood.derivatives(torch.from_numpy(draws)[:, 0], f)  # their variance is the information
        torch.testing.assert_close(curvature[0], slopes.var(0), rtol=0.02, atol=0)

    @torch.no_grad()
    def test_regressands_have_the_slope_of_functions_and_even_noise(self):
        likelihood, step = ready(0.01), 1e-5
        f = torch.tensor([[-step], [step]]).double()
        found = likelihood.regressands((f - 0.7).sigmoid())
        np.testing.assert_allclose(found, f, rtol=1e-4)
        for mean in (0.1, 0.5, 0.9):
            draws = stats.beta.rvs(100 * mean, 100 * (1 - mean), size=(20_000, 1), random_state=0)
            likelihood.start_dispersion(likelihood.regressands(torch.from_numpy(draws)).var().item())
            assert likelihood.dispersion.item() == pytest.approx(0.01, rel=0.1)
        for noise, dispersion in ((1e-9, 1e-4), (1e9, 1.0)):  # within limits
            likelihood.start_dispersion(noise)
            assert likelihood.dispersion.item() == pytest.approx(dispersion, rel=0.02)

    def test_the_constant_is_the_most_likely_one(self):
        """There the mean of logit y is ψ(a) − ψ(b), weighted by rows."""
        _, y, _ = shares()
        likelihood, weight = Beta(1).double(), torch.rand(len(y), generator=torch.Generator().manual_seed(0)).double()
        likelihood.initialise(torch.from_numpy(y)[:, None], weight)
        a, b = (shape.item() for shape in likelihood._shapes(likelihood.shift[None, None]))
        expected = np.average(logit(y), weights=weight)
        assert digamma(a) - digamma(b) == pytest.approx(expected, abs=0.01)


class TestZerosAndOnes:
    @pytest.mark.parametrize(
        ("y", "margin"), [([0.0, 0.3, 0.9, 1.0], 0.05), ([0.5, 0.4, 0.0, 0.6], 0.125), ([0.0, 1e-9, 0.5], CLOSEST)]
    )
    def test_count_as_nearer_than_all_others(self, y, margin):
        likelihood, y = Beta(1), np.array(y)[:, None]
        likelihood.learn_units(y, normalize=True)
        encoded = likelihood.encode(y)
        np.testing.assert_allclose(encoded[y == 0], margin)
        np.testing.assert_allclose(encoded[y == 1], 1 - margin)
        inside = (y > CLOSEST) & (y < 1)
        np.testing.assert_array_equal(encoded[inside], y[inside])

    def test_weights_are_copies(self):
        y = np.array([[0.0], [0.5]])
        once, twice = Beta(1), Beta(1)
        once.learn_units(y, np.array([3.0, 2.0]), normalize=True)
        twice.learn_units(np.repeat(y, [3, 2], axis=0), normalize=True)
        assert once.margin == twice.margin == pytest.approx((0.1,))

    @pytest.mark.slow
    def test_fit_and_predictions(self):
        X, y, mean = shares()
        y = np.clip(1.3 * y - 0.15, 0, 1)
        assert (y == 0).any() and (y == 1).any()
        model = SOLVEGPRegressor(likelihood="beta", **SHALLOW).fit(X, y)
        lower, upper = model.predict_interval(X, 0.9).T
        assert lower.min() >= 0 and upper.max() <= 1
        assert np.corrcoef(model.predict(X), mean)[0, 1] > 0.95
        assert np.isfinite(model.predict_dist(X[:20]).crps(y[:20])).all()
        model.fit(X[y > 0], y[y > 0], X_val=X, y_val=y)  # held-out rows may have zeros that others lack

    @pytest.mark.parametrize("wrong", [-0.1, 45.0])
    def test_numbers_outside_are_refused(self, wrong):
        X, y, _ = shares(30)
        outside = y.copy()
        outside[3] = wrong
        message = rf"likelihood='beta' is for shares between 0 and 1, but y holds \[{wrong}\] in row 3: divide percen"
        model = AVDGPRegressor((), max_iter=2, n_estimators=1, likelihood="beta")
        for data in ({"y": outside}, {"y": y, "X_val": X, "y_val": outside}):
            with pytest.raises(ValueError, match=message):
                model.fit(X, **data)
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y).partial_fit(X, outside)


class TestEstimators:
    @pytest.mark.slow
    @pytest.mark.parametrize("n_estimators", [1, 3])
    def test_noise_and_intervals_are_the_true_ones(self, n_estimators):
        X, y, mean = shares(600)
        model = SOLVEGPRegressor(likelihood="beta", n_estimators=n_estimators, random_state=0).fit(X[:300], y[:300])
        lower, upper = model.predict_interval(X[300:], 0.9).T
        assert 0.85 < np.mean((lower <= y[300:]) & (y[300:] <= upper)) < 0.95
        best = stats.beta.logpdf(y[300:], 15 * mean[300:], 15 * (1 - mean[300:])).mean()
        assert best - 0.1 < model.predict_dist(X[300:]).logpdf(y[300:]).mean() < best + 0.02
        assert model.score(X[300:], mean[300:]) > 0.97

    @any_options
    @pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
    def test_search_and_scores(self, tiny):
        X, y, _ = shares(60)
        search = GridSearchCV(tiny(), {"likelihood": ["beta", "gaussian"]}, scoring=crps_scorer, cv=2).fit(X, y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()

    @pytest.mark.parametrize("options", [{"target_transform": "log"}, {"trend": "auto"}])
    def test_what_is_about_function_values_is_refused(self, options):
        X, y, _ = shares(30)
        with pytest.raises(ValueError, match="does not go with likelihood='beta', since"):
            SOLVEGPRegressor(likelihood="beta", **options).fit(X, y)
