"""The linear model that every fit is compared with."""

import warnings

import numpy as np
import pytest
import torch
from helpers import Line, ensemble_of
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from skdgp import AVDGPClassifier, AVDGPRegressor
from skdgp.estimators import _warnings
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference.batches import Batch
from skdgp.inference.ensemble import Ensemble
from skdgp.inference.linear import MOST_FEATURES, linear_score
from skdgp.inference.plan import HeldOut
from skdgp.inference.predictor import Predictor


def make_data(n_rows=120):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3))
    return X, X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=n_rows)


def test_score_is_that_of_rows_left_out_one_by_one():
    X, y = make_data(30)
    left = y - cross_val_predict(LinearRegression(), X, y, cv=LeaveOneOut())
    expected = -0.5 * (np.log(2 * np.pi * np.mean(left**2)) + 1)
    assert linear_score(Batch.of(X, y, dtype=np.float64)) == pytest.approx(expected, abs=1e-3)


def test_rows_of_weight_two_are_rows_that_come_twice_but_left_out_together():
    X, y = make_data(30)
    weight = np.arange(30) % 2 + 1.0
    found = linear_score(Batch.of(X, np.column_stack([y, y]), weight, dtype=np.float64))
    left = np.empty(30)
    for row in range(30):
        others = np.arange(30) != row
        model = LinearRegression().fit(X[others], y[others], weight[others])
        left[row] = y[row] - model.predict(X[row, None])[0]
    variance = np.average(left**2, weights=weight)
    assert found == pytest.approx(-(np.log(2 * np.pi * variance) + 1), abs=1e-3)


def test_columns_that_depend_on_one_another_are_no_trouble_and_many_are_not_looked_at():
    X, y = make_data()
    assert np.isfinite(linear_score(Batch.of(np.column_stack([X, X]), y)))
    assert linear_score(Batch(torch.zeros(5, MOST_FEATURES + 1), torch.zeros(5, 1), torch.ones(5))) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_fits_that_fail_say_so():
    X, y = make_data()
    poor = {"max_iter": 1, "n_estimators": 1, "random_state": 0}
    with pytest.warns(
        ConvergenceWarning, match=r"A linear model predicts held-out rows better: .*by least squares"
    ) as seen:
        AVDGPRegressor(base=None, **poor).fit(X, y)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AVDGPRegressor(**poor).fit(X, y)  # its base is better
        AVDGPRegressor(base=None, early_stopping=False, **poor).fit(X, y)  # no rows can judge
        AVDGPRegressor(base=None, **poor).fit(X[:50], y[:50])  # nor can a few
        AVDGPClassifier(**poor).fit(X, y > 0)


def test_rows_of_the_user_count_once_however_many_models_they_judge():
    X, y = make_data()
    model = AVDGPRegressor(base=None, max_iter=1, n_estimators=3, n_neighbors=0, random_state=0)
    assert ensemble_of(model.fit(X, y, X_val=X[:20], y_val=y[:20])).held_out.n_rows == 20
    assert ensemble_of(model.fit(X, y)).held_out.n_rows == 3 * 12


def test_four_digits_are_enough():
    X, _ = make_data()
    for y in (np.ones(120), X @ [1.0, -2.0, 0.5]):
        assert 7.5 < linear_score(Batch.of(X, y, dtype=np.float64)) < 8.0


@pytest.mark.filterwarnings("error")
def test_a_gap_that_chance_explains_is_no_failure():
    rows = Batch.of(*make_data(), dtype=np.float64)
    likelihood = Gaussian(1)
    likelihood.learn_units(rows.y.numpy(), normalize=True)
    ensemble = Ensemble(Predictor([Line()]), "minibatches")
    ensemble.models[0].likelihood = likelihood
    score = linear_score(rows) - 0.2
    ensemble.held_out = HeldOut(score, 12)
    _warnings.warn_of_failure(ensemble, rows, np.arange(120))
    ensemble.held_out = HeldOut(score, 1000)
    with pytest.raises(ConvergenceWarning):
        _warnings.warn_of_failure(ensemble, rows, np.arange(120))
