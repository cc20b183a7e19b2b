"""Counts with exposures: how long, or over how large an area, each of them was taken."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from helpers import REGRESSORS, name_of, normal
from scipy.stats import nbinom, poisson
from sklearn.base import clone
from sklearn.metrics import mean_poisson_deviance, r2_score
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.methods.likelihoods import LIKELIHOODS
from skdgp.metrics import log_density_scorer, predictive_distribution

COUNTS = ("poisson", "negative_binomial")

every_regressor = pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
every_count = pytest.mark.parametrize("name", COUNTS)


def claims(n_rows=60, seed=0, shortest=0.02):
    """Rows, counts, exposures and rates. The rate depends on the features alone."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    rate = np.exp(1.0 + np.sin(2 * X[:, 0]))
    exposure = rng.uniform(shortest, 1.0, n_rows)
    return X, rng.poisson(rate * exposure).astype(float), exposure, rate


def ready(name, n_targets=1):
    """A likelihood in double precision that knows units and exposures, with encoded rows and their mean counts."""
    _, y, exposure, _ = claims(40)
    y = np.stack([y + p for p in range(n_targets)], axis=1)
    likelihood, known = LIKELIHOODS[name](n_targets), {"exposure": exposure[:, None]}
    likelihood.learn_units(y, normalize=True)
    likelihood.learn_known(known, np.ones(40), normalize=True)
    return likelihood.double(), torch.as_tensor(likelihood.encode_rows(y, known)), exposure


def log_density(name, likelihood, y, mean):
    """log p(y | f) by SciPy, of counts with these means."""
    if name == "poisson":
        return poisson.logpmf(y, mean)
    d = likelihood.dispersion.detach().numpy()
    return nbinom.logpmf(y, 1 / d, 1 / (1 + d * mean))


@every_count
class TestLikelihood:
    @pytest.mark.slow
    def test_means_are_rates_times_exposures(self, name):
        likelihood, encoded, exposure = ready(name, 2)
        assert encoded.shape == (40, 3)
        f = 0.5 * normal(1, 40, 2)
        mean = exposure[:, None] / exposure.mean() * np.exp(f[0].numpy() + np.asarray(likelihood.shift))
        expected = log_density(name, likelihood, encoded[:, :2].numpy(), mean).sum(-1)
        nothing = torch.full_like(f, 1e-14)
        for ours in (likelihood.expected_log_prob, likelihood.log_predictive):
            np.testing.assert_allclose(ours(encoded, f, nothing)[0].detach(), expected, rtol=1e-5, atol=1e-6)
        there = likelihood.at({"exposure": exposure[:, None]})
        np.testing.assert_allclose(there.response(f)[0], mean, rtol=1e-12)
        log_weight = torch.zeros(1, 1).double()
        np.testing.assert_allclose(there.mean_response(f, nothing, log_weight), mean, rtol=1e-9)
        np.testing.assert_allclose(there.predictive(f, nothing, log_weight, latent=True).mean, mean, rtol=1e-9)
        draws = np.mean([there.draw(f[0].numpy(), np.random.RandomState(seed)) for seed in range(1000)], axis=0)
        np.testing.assert_allclose(draws.mean(0), mean.mean(0), rtol=0.02)
        np.testing.assert_allclose(
            likelihood.response(f)[0], mean / exposure[:, None], rtol=1e-12
        )  # the rate by default

    @pytest.mark.slow
    def test_derivatives_are_differences(self, name):
        likelihood, encoded, _ = ready(name)
        f = (0.5 * normal(1, 40, 1)).requires_grad_()
        nothing = torch.full_like(f, 1e-14)
        slope, curvature = likelihood.derivatives(encoded[None], f)
        (expected,) = torch.autograd.grad(likelihood.expected_log_prob(encoded, f, nothing).sum(), f)
        torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)
        step = 1e-5
        below, above = (likelihood.derivatives(encoded[None], f + sign * step)[0] for sign in (-1, 1))
        torch.testing.assert_close(curvature, (below - above) / (2 * step), rtol=1e-4, atol=1e-6)

    def test_gradients(self, name):
        likelihood, encoded, _ = ready(name)
        mean, variance = normal(2, 5, 1).requires_grad_(), (0.1 + normal(2, 5, 1, seed=1).square()).requires_grad_()
        for function in (likelihood.expected_log_prob, likelihood.log_predictive):
            torch.autograd.gradcheck(lambda m, v, f=function: f(encoded[:5], m, v), (mean, variance), atol=1e-4)


def test_a_row_is_as_informative_as_its_parts():
    """Poisson counts of two periods tell as much of the rate as their sum over both periods."""
    likelihood = LIKELIHOODS["poisson"](1)
    exposure, y = np.array([[0.3], [0.7], [1.0]]), np.array([[1.0], [4.0], [5.0]])
    likelihood.learn_units(y, normalize=True)
    likelihood.learn_known({"exposure": exposure}, np.ones(3), normalize=True)
    encoded = torch.as_tensor(likelihood.encode_rows(y, {"exposure": exposure}))
    slope, curvature = (v[0, :, 0] for v in likelihood.derivatives(encoded[None], torch.full((1, 3, 1), 0.4).double()))
    torch.testing.assert_close(slope[:2].sum(), slope[2])
    torch.testing.assert_close(curvature[:2].sum(), curvature[2])


def test_regressands_of_short_rows_do_not_seem_large():
    likelihood = LIKELIHOODS["poisson"](1)
    exposure, y = np.array([[0.01], [1.0], [1.99]]), np.array([[0.0], [1.0], [2.0]])
    likelihood.learn_units(y, normalize=True)
    likelihood.learn_known({"exposure": exposure}, np.ones(3), normalize=True)
    numbers = likelihood.regressands(torch.as_tensor(likelihood.encode_rows(y, {"exposure": exposure})))[:, 0]
    expected = np.log((y + 0.5) / (exposure + 0.5))[:, 0]  # the mean count is one
    np.testing.assert_allclose(numbers - numbers[1], expected - expected[1], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("base", [None, "auto"])
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_predictions_follow_the_unit_of_exposure(base, unit):
    """Hours or years: rates have other numbers, and nothing else changes. Equal exposures change nothing at all."""
    X, y, exposure, _ = claims()
    make = SOLVEGPRegressor(6, 0, likelihood="poisson", base=base, max_iter=3, random_state=0)
    years, others = clone(make).fit(X, y, exposure=exposure), clone(make).fit(X, y, exposure=unit * exposure)
    np.testing.assert_allclose(others.predict(X), years.predict(X) / unit, rtol=1e-4)
    np.testing.assert_allclose(others.predict(X, exposure=unit), years.predict(X, exposure=1.0), rtol=1e-4)
    plain, equal = clone(make).fit(X, y), clone(make).fit(X, y, exposure=unit)
    np.testing.assert_allclose(equal.predict(X, exposure=unit), plain.predict(X), rtol=1e-4)
    assert equal.lower_bound_ == pytest.approx(plain.lower_bound_, rel=1e-4)


@every_regressor
@every_count
def test_every_prediction_takes_exposures(tiny, name):
    X, y, exposure, _ = claims(40)
    model = tiny(likelihood=name).fit(X, y, exposure=exposure)
    rate, mean = model.predict(X), model.predict(X, exposure=exposure)
    np.testing.assert_allclose(mean / exposure, rate, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X, exposure=2.0), 2 * rate, rtol=1e-6)
    dist, latent = (model.predict_dist(X, latent=latent, exposure=exposure) for latent in (False, True))
    np.testing.assert_allclose(dist.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(latent.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(latent.ppf(0.3), exposure * model.predict_quantiles(X, 0.3, True), rtol=1e-6)
    np.testing.assert_array_equal(model.predict_quantiles(X, 0.9, exposure=exposure), dist.ppf(0.9))
    np.testing.assert_array_equal(model.predict_interval(X, exposure=exposure), np.stack(dist.interval(0.9), axis=1))
    _, std = model.predict(X, return_std=True, exposure=exposure)
    np.testing.assert_allclose(std, dist.std, rtol=1e-12)
    assert model.score(X, y, exposure=exposure) == pytest.approx(r2_score(y, mean))
    assert (model.predict_dist(X, exposure=1e-9).cdf(0) > 0.999).all()  # within no time nothing happens
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X, exposure=exposure), mean)
    one = model.predict(X[7:8], exposure=exposure[7:8])
    np.testing.assert_allclose(one, mean[7:8], rtol=1e-5)  # whatever the other rows are


@pytest.mark.slow
@pytest.mark.parametrize("latent", [False, True])
def test_draws_and_covariances_have_the_same_moments(latent):
    X, y, exposure, _ = claims(40)
    model = SOLVEGPRegressor(6, 0, likelihood="poisson", max_iter=3, random_state=0).fit(X, y, exposure=exposure)
    options, rows = {"latent": latent, "exposure": 3 * exposure[:4]}, X[:4]
    mean, covariance = model.predict(rows, return_cov=True, **options)
    draws = model.sample_y(rows, 4000, random_state=0, **options)
    np.testing.assert_allclose(draws.mean(1), mean, rtol=0.06)
    np.testing.assert_allclose(covariance.diagonal(), model.predict_dist(rows, **options).var, rtol=1e-9)
    size = np.sqrt(covariance.diagonal())
    np.testing.assert_allclose(np.cov(draws) / size / size[:, None], covariance / size / size[:, None], atol=0.12)


def test_cells_may_be_missing_and_outputs_share_exposures():
    X, y, exposure, _ = claims(60)
    X[::5, 1] = np.nan
    both = np.stack([y, 2 * y], axis=1)
    model = SOLVEGPRegressor(5, 0, likelihood="poisson", max_iter=3, random_state=0).fit(X, both, exposure=exposure)
    np.testing.assert_allclose(
        model.predict(X, exposure=exposure), exposure[:, None] * model.predict(X, exposure=np.ones(60)), rtol=1e-6
    )
    assert model.sample_y(X, 3, random_state=0, exposure=exposure).shape == (60, 2, 3)


@every_regressor
def test_chunks_held_out_rows_and_weights(tiny):
    X, y, exposure, _ = claims(60)
    stream = tiny.of_chunks(likelihood="poisson")
    for rows in (slice(0, 30), slice(30, 60)):
        stream.partial_fit(X[rows], y[rows], exposure=exposure[rows])
    np.testing.assert_allclose(stream.predict(X, exposure=exposure), exposure * stream.predict(X), rtol=1e-6)
    again = pickle.loads(pickle.dumps(stream)).partial_fit(X, y, exposure=exposure)
    assert np.isfinite(again.predict(X)).all()
    weight = np.arange(60) % 3
    model = tiny(likelihood="poisson", base="auto")
    model.fit(X, y, weight, X[:20], y[:20], exposure=pd.Series(exposure), exposure_val=exposure[:20])
    short = tiny(likelihood="poisson", base="auto")
    short.fit(X[weight > 0], y[weight > 0], weight[weight > 0], X[:20], y[:20], exposure[weight > 0], exposure[:20])
    np.testing.assert_allclose(model.predict(X), short.predict(X), rtol=1e-5)


@pytest.mark.slow
def test_pipelines_and_searches_pass_exposures_on():
    X, y, exposure, _ = claims(60)
    with sklearn.config_context(enable_metadata_routing=True):
        model = SOLVEGPRegressor(5, 0, likelihood="poisson", max_iter=2, random_state=0)
        model.set_fit_request(exposure=True).set_score_request(exposure=True).set_predict_request(exposure=True)
        search = GridSearchCV(make_pipeline(StandardScaler(), model), {"solvegpregressor__n_inducing": [4, 5]}, cv=2)
        search.fit(X, y, exposure=exposure)
        best = search.best_estimator_
        np.testing.assert_allclose(best.predict(X, exposure=exposure), exposure * best.predict(X), rtol=1e-6)
        scores = cross_validate(model, X, y, params={"exposure": exposure}, cv=2)["test_score"]
    halves = [slice(30, 60), slice(0, 30)]
    expected = [
        clone(model).fit(X[fit], y[fit], exposure=exposure[fit]).score(X[test], y[test], exposure=exposure[test])
        for fit, test in (halves, halves[::-1])
    ]
    np.testing.assert_allclose(scores, expected)
    pipeline = make_pipeline(StandardScaler(), clone(model)).fit(X, y, solvegpregressor__exposure=exposure)
    dist = predictive_distribution(pipeline, X, exposure=exposure)
    np.testing.assert_allclose(dist.mean, pipeline.predict(X, exposure=exposure))
    assert log_density_scorer(pipeline, X, y, exposure=exposure) == pytest.approx(dist.logpdf(y).mean())


def test_what_goes_on_learning_needs_the_same():
    X, y, exposure, _ = claims(40)
    options = {"likelihood": "poisson", "max_iter": 2, "random_state": 0}
    model = SOLVEGPRegressor(4, 0, warm_start=True, **options).fit(X, y, exposure=exposure)
    model.fit(X, y, exposure=exposure)
    with pytest.raises(ValueError, match="exposure is missing, but exposure is known of the earlier rows: pass both"):
        model.fit(X, y)
    with pytest.raises(ValueError, match="No part of the model can learn from new rows without training"):
        model.update(X, y)
    stream = SOLVEGPRegressor(4, 0, **options).partial_fit(X, y)
    with pytest.raises(ValueError, match="exposure was given, but exposure is not known of the earlier rows: pass"):
        stream.partial_fit(X, y, exposure=exposure)
    new = SOLVEGPRegressor(4, 0, **options)
    with pytest.raises(ValueError, match="exposure_val is missing, but exposure is known of the rows to learn from"):
        new.fit(X, y, X_val=X, y_val=y, exposure=exposure)
    with pytest.raises(ValueError, match="exposure_val was given, but exposure is not known of the rows to learn from"):
        new.fit(X, y, X_val=X, y_val=y, exposure_val=exposure)
    with pytest.raises(ValueError, match="exposure_val was given without X_val: give the rows that it is about, too"):
        new.fit(X, y, exposure=exposure, exposure_val=exposure)
    assert not hasattr(new, "_learnt")


@pytest.mark.parametrize("likelihood", ["gaussian", "gamma", "student_t", "heteroskedastic"])
def test_only_counts_have_exposures(likelihood):
    X, y, exposure, _ = claims(40)
    model = SOLVEGPRegressor(4, 0, likelihood=likelihood, max_iter=1, random_state=0)
    with pytest.raises(ValueError, match=f"exposure goes with counts, .*, got likelihood='{likelihood}': leave it out"):
        model.fit(X, y + 1, exposure=exposure)
    with pytest.raises(ValueError, match=f"exposure goes with counts, .*, got likelihood='{likelihood}': leave it out"):
        model.fit(X, y + 1).predict(X, exposure=exposure)


@pytest.mark.parametrize(
    ("exposure", "message"),
    [
        (np.ones(39), "exposure has the shape (39,), but X has 40 rows: pass a number for each row."),
        (np.ones((40, 2)), "exposure has the shape (40, 2), but X has 40 rows: pass a number for each row."),
        (np.r_[1.0, 0.0, np.ones(38)], "exposure must be positive and finite, but is 0.0 in row 1: correct the row"),
        (np.r_[np.ones(39), np.nan], "exposure must be positive and finite, but is nan in row 39: correct the row"),
        (-1.0, "exposure must be positive and finite, but is -1.0 in row 0: correct the row, or leave it out."),
        (np.full(40, np.inf), "exposure must be positive and finite, but is inf in row 0"),
        (40 * ["long"], "exposure holds something else than numbers, <U4: pass a number for each row."),
        (np.full(40, np.timedelta64(3, "D")), "exposure holds something else than numbers, timedelta64[D]: pass"),
        (pd.Series([pd.NA] + 39 * [1], dtype="Int64"), "exposure must be positive and finite, but is nan in row 0"),
    ],
)
def test_impossible_exposures_are_named(exposure, message):
    X, y, usual, _ = claims(40)
    model = SOLVEGPRegressor(4, 0, likelihood="poisson", max_iter=1, random_state=0)
    with pytest.raises(ValueError, match=re.escape(message)):
        model.fit(X, y, exposure=exposure)
    model.fit(X, y, exposure=usual)
    with pytest.raises(ValueError, match=re.escape(message)):
        model.predict(X, exposure=exposure)


def test_predictions_of_a_model_without_exposures_take_none():
    X, y, exposure, _ = claims(40)
    model = SOLVEGPRegressor(4, 0, likelihood="poisson", max_iter=1, random_state=0).fit(X, y)
    for predict in (model.predict, model.predict_dist, model.predict_interval, model.sample_y):
        with pytest.raises(
            ValueError, match="exposure was given, but the model has been fitted without it: pass it to"
        ):
            predict(X, exposure=exposure)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SOLVEGPRegressor, AVDGPRegressor, DSDGPRegressor])
def test_rates_of_short_periods_are_not_too_large(kind):
    """A third of the rows was observed for a fiftieth of a year, where the rate is no other."""
    X, _, exposure, rate = claims(400, seed=1)
    rng = np.random.default_rng(2)
    exposure[::3] = 0.02
    y = rng.poisson(rate * exposure)
    model = kind(likelihood="poisson", random_state=0).fit(X, y, exposure=exposure)
    new, counts, times, rates = claims(1000, seed=3)
    predicted = model.predict(new)
    assert predicted.mean() == pytest.approx(rates.mean(), rel=0.1)
    assert np.sqrt(np.mean(np.log(predicted / rates) ** 2)) < 0.3
    lower, upper = model.predict_interval(new, exposure=times).T
    assert ((lower <= counts) & (counts <= upper)).mean() > 0.88
    flat = mean_poisson_deviance(counts, times * counts.sum() / times.sum())
    assert mean_poisson_deviance(counts, model.predict(new, exposure=times)) < 0.8 * flat
