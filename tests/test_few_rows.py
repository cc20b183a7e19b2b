"""Fits of so few rows that nothing can judge them: what predicts, and what users are told."""

import warnings

import numpy as np
import pytest
import torch
from helpers import predictor_of, table_of

from skdgp import AVDGPClassifier, AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor

DEEP = [
    AVDGPRegressor((2,), 4, n_estimators=2, n_samples=2, max_iter=2, random_state=0),
    DSDGPRegressor((2,), 4, n_estimators=2, max_iter=2, random_state=0),
    SOLVEGPRegressor(method="svi", covariance="diag", early_stopping=True, n_estimators=2, max_iter=2, random_state=0),
]

every_deep = pytest.mark.parametrize("model", DEEP, ids=lambda model: type(model).__name__)


def make_rows(n_rows, n_outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n_rows, 2))
    y = np.stack([np.sin(5 * X[:, 0]) + X[:, 1], 40 * X[:, 0]], axis=1)[:, :n_outputs]
    return X, (y + 0.1 * rng.normal(size=y.shape)).squeeze(1) if n_outputs == 1 else y


@every_deep
@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "heteroskedastic"])
def test_the_base_predicts_alone_if_nothing_judges_members(model, n_outputs, likelihood):
    X, y = make_rows(12, n_outputs)
    model = type(model)(**model.get_params() | {"likelihood": likelihood})
    with pytest.warns(UserWarning, match="No rows have judged .+ got 12. So predictions are those of the base alone"):
        model.fit(X, y)
    assert model.base_weight_ == 1.0
    predictor, new = predictor_of(model), table_of(model).prepared(make_rows(30, seed=1)[0])
    with torch.no_grad():
        base = predictor.blend.of_base(torch.as_tensor(new)).moments()
        for found in predictor.joint(torch.as_tensor(new), joint=False):
            assert found.isfinite().all()
        members = [marginals.moments() for marginals in predictor.marginals(torch.as_tensor(new).to(predictor.dtype))]
    mean = torch.stack([mean for mean, _ in members]).mean(0)
    torch.testing.assert_close(mean.double(), base[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [AVDGPRegressor, DSDGPRegressor])
def test_noise_does_not_vanish(estimator):
    """Sixty rows of a smooth function with noise of variance 0.09, of which a dozen are held out."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(60, 2))
        y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=60)
        weight = rng.integers(1, 4, 60)
        for options in ({}, {"sample_weight": weight}):
            model = estimator((2,), 4, n_estimators=2, max_iter=60, random_state=seed).fit(X, y, **options)
            assert 0.025 < model.noise_variance_ < 0.25


@every_deep
def test_members_alone_are_not_corrected(model):
    model = type(model)(**model.get_params() | {"base": None})
    with pytest.warns(UserWarning, match="No rows have judged .+ got 12. So their predictions may be far too certain"):
        model.fit(*make_rows(12))
    assert predictor_of(model).blend is None


@pytest.mark.parametrize("n_rows", [5, 12])
def test_bases_that_do_not_average_need_ten_rows(n_rows):
    X, y = make_rows(n_rows)
    alone = n_rows >= 10
    text = "those of the base alone" if alone else "their predictions may be far too certain"
    options = {"n_estimators": 1, "max_iter": 1, "random_state": 0}
    for model, targets in (
        (DSDGPRegressor((), 3, likelihood="poisson", **options), np.round(np.exp(y))),
        (DSDGPClassifier((), 3, **options), y > np.median(y)),
        (AVDGPClassifier((2,), 3, **options), np.arange(n_rows) % 3),
    ):
        with pytest.warns(UserWarning, match=text):
            model.fit(X, targets)
        assert (predictor_of(model).blend is not None) == alone
        assert np.isfinite(model.predict(X).astype(float)).all()


def test_fits_that_are_judged_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X, y = make_rows(20)
        DSDGPRegressor((), 3, n_estimators=1, max_iter=1).fit(X, y)
        DSDGPRegressor((), 3, n_estimators=1, max_iter=1).fit(X[:12], y[:12], X_val=X[12:], y_val=y[12:])
        DSDGPRegressor((), 3, n_estimators=1, max_iter=1, early_stopping=False).fit(X[:12], y[:12])
        SOLVEGPRegressor(max_iter=2).fit(X[:5], y[:5])


@pytest.mark.parametrize("n_rows", [1, 2, 4])
def test_every_fit_of_hardly_any_rows_warns(n_rows):
    X, y = make_rows(n_rows)
    model = SOLVEGPRegressor(max_iter=2, random_state=0)
    with pytest.warns(UserWarning, match=f"Fewer than 5 rows tell hardly anything .+ got {n_rows}"):
        model.fit(X, y)
    with pytest.warns(UserWarning, match=f"No rows have judged the members, .+ got {n_rows}"):
        deep = DSDGPRegressor((), 1, n_estimators=1, max_iter=1).fit(X, y)
    for fitted in (model, deep):
        assert np.isfinite(fitted.predict(make_rows(9)[0], return_std=True)).all()


@pytest.mark.slow
def test_intervals_of_fifteen_rows_hold_most_values():
    inside = []
    for seed in range(6):
        X, y = make_rows(15, seed=seed)
        new, truth = make_rows(300, seed=100 + seed)
        with pytest.warns(UserWarning, match="No rows have judged the members"):
            model = DSDGPRegressor((2,), 4, n_estimators=1, max_iter=2, random_state=0).fit(X, y)
        low, high = model.predict_interval(new).T
        inside.append(np.mean((low <= truth) & (truth <= high)))
    assert np.mean(inside) > 0.78


def test_noise_that_varies_around_an_exact_function():
    """Members do not start from a noise of nearly nothing, with which they could not learn."""
    X, y = make_rows(60)
    y = np.sin(5 * X[:, 0]) + X[:, 1]
    model = AVDGPRegressor((2,), 4, n_estimators=1, max_iter=2, likelihood="heteroskedastic", random_state=0)
    model.fit(X, y)
    assert predictor_of(model).models[0].likelihood.log_level.exp().item() >= 0.99e-3
    assert abs(model.predict(X) - y).mean() < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_an_exact_function_are_met(seed):
    """Neighbours add nothing if they gain next to nothing: their residuals are those of rows that were left out."""
    rng = np.random.default_rng(seed)
    x, z = (15 * rng.random((15, 2)) - [5, 0]).T
    y = (z - 5.1 / (4 * np.pi**2) * x**2 + 5 / np.pi * x - 6) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10
    mean, std = SOLVEGPRegressor(random_state=0).fit(np.c_[x, z], y).predict(np.c_[x, z], return_std=True)
    assert abs((y - mean) / std).max() < 4
