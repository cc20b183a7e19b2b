"""Importances of features are shares of total Sobol indices, of any estimator and table."""

import pickle
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from helpers import CLASSIFIERS, REGRESSORS, name_of, table_of
from scipy.stats import norm, sobol_indices
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.pipeline import make_pipeline

from skdgp import SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.tables.typical import typical_rows

pytestmark = pytest.mark.filterwarnings("ignore:Column 'constant' of X has the same value:UserWarning")

STORED = Path(__file__).parent / "stored"
QUICK = {"n_neighbors": 0, "max_iter": 20, "random_state": 0}


@pytest.fixture(scope="module")
def normal_rows():
    """Rows of a function with an interaction, of three normal features."""
    rng = np.random.default_rng(0)
    X = rng.normal([5, 0, -2], [2, 1, 0.5], (200, 3))
    return X, X[:, 0] + 1.5 * X[:, 0] * X[:, 1] + 0.01 * rng.normal(size=200)


@pytest.fixture(scope="module")
def frame():
    """A frame with a useful and a useless category, truth values, gaps, and a column that is constant."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.gamma(4, 1, 150), "age": rng.uniform(0, 9, 150)})
    X["city"] = rng.choice(["Rome", "Oslo", "Lima"], 150, p=[0.6, 0.3, 0.1])
    X["colour"] = rng.choice(list("abcdefghijklmnop"), 150)
    X["garden"] = rng.random(150) < 0.5
    X["constant"] = 3.0
    y = X["size"] + X["city"].map({"Rome": 0, "Oslo": 3, "Lima": -2}) + X["garden"] + 0.1 * rng.normal(size=150)
    X.loc[::7, "age"] = np.nan
    return X, y.to_numpy()


@pytest.mark.slow
def test_importances_are_shares_of_total_indices_by_scipy(normal_rows):
    X, y = normal_rows
    model = SOLVEGPRegressor(60, 0, kernel="rbf", **QUICK).fit(X, y)
    known = [norm(*moments) for moments in zip(X.mean(axis=0), X.std(axis=0), strict=True)]
    expected = sobol_indices(func=lambda x: model.predict(x.T), n=1024, dists=known, rng=0).total_order
    np.testing.assert_allclose(model.feature_importances_, expected / expected.sum(), atol=0.03)


@pytest.mark.parametrize("kind", [*REGRESSORS, *CLASSIFIERS], ids=name_of)
def test_importances_of_every_estimator(kind, wave):
    X, y = wave
    y = y if kind in REGRESSORS else np.digitize(y, [-0.5, 0.5])
    model = kind(n_estimators=2)
    assert not hasattr(model, "feature_importances_")
    with pytest.raises(NotFittedError):
        model.feature_importances_  # noqa: B018
    importances = model.fit(X, y).feature_importances_
    assert importances.shape == (3,) and importances.min() >= 0
    np.testing.assert_allclose(importances.sum(), 1)
    for same in (model, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(same.feature_importances_, importances)
    assert not hasattr(clone(model), "feature_importances_")
    model.partial_fit(X[::2], y[::2])
    np.testing.assert_allclose(model.feature_importances_.sum(), 1)


@pytest.mark.slow
def test_useless_features_of_friedman_have_none_and_the_others_are_in_order():
    X, y = make_friedman1(300, n_features=10, noise=1.0, random_state=0)
    regressor, classifier = SOLVEGPRegressor(**QUICK), SOLVEGPClassifier(n_orthogonal=0, max_iter=40, random_state=0)
    for model, targets in ((regressor, y), (classifier, y > 14)):
        importances = model.fit(X, targets).feature_importances_
        assert importances[5:].sum() < 0.02
        assert importances[[0, 1, 3]].min() > 1.5 * importances[[2, 4]].max()
    expected = np.array([0.273, 0.272, 0.093, 0.350, 0.087])  # total indices of the function, by Monte Carlo
    np.testing.assert_allclose(regressor.feature_importances_[:5], expected / expected.sum(), atol=0.05)


@pytest.mark.slow
def test_importances_of_frames(frame):
    X, y = frame
    model = SOLVEGPRegressor(40, 0, **QUICK).fit(X, y)
    importances = dict(zip(X, model.feature_importances_, strict=True))
    np.testing.assert_allclose(importances["constant"], 0, atol=1e-12)
    assert max(importances["age"], importances["colour"]) < 0.03 < importances["garden"]
    assert importances["garden"] < min(importances["city"], importances["size"])
    plain = SOLVEGPRegressor(40, 0, normalize_X=False, **QUICK).fit(X, y)
    np.testing.assert_allclose(plain.feature_importances_, list(importances.values()), atol=0.1)


@pytest.mark.slow
def test_importances_of_categories_with_many_levels():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"place": [f"p{number}" for number in rng.integers(150, size=900)], "size": rng.normal(size=900)})
    y = X["size"] + 0.05 * X["place"].str[1:].astype(int)
    model = SOLVEGPRegressor(40, 0, **QUICK).fit(X, y)
    assert model.feature_importances_[0] > 0.7


@pytest.mark.slow
def test_importances_do_not_depend_on_units(wave):
    X, y = wave
    expected = REGRESSORS[2]().fit(X, y).feature_importances_
    for scale in (1e-6, 1e6):
        model = REGRESSORS[2]().fit(X * scale, y * scale)
        np.testing.assert_allclose(model.feature_importances_, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_importances_of_outputs_are_averaged_and_constants_have_none(wave):
    X, y = wave
    one, other = (REGRESSORS[2]().fit(X, targets).feature_importances_ for targets in (y, X[:, 2]))
    both = REGRESSORS[2]().fit(X, np.column_stack([y, 1000 * X[:, 2]]))
    assert both.feature_importances_.argmax() in (one.argmax(), other.argmax())
    np.testing.assert_allclose(both.feature_importances_.sum(), 1)
    constant = REGRESSORS[2]().fit(X, np.full(len(X), 7.0)).feature_importances_
    assert constant.shape == (3,) and (np.isclose(constant.sum(), 1) or not constant.any())


@pytest.mark.slow
def test_importances_with_trends_and_transformed_targets(wave):
    X, y = wave
    for parameters in ({"trend": HistGradientBoostingRegressor(max_iter=20)}, {"target_transform": "log"}):
        model = REGRESSORS[2](max_iter=20, **parameters).fit(X, np.exp(y))
        assert model.feature_importances_.argmin() == 2


@pytest.mark.parametrize("name", ["regressor", "classifier"])
def test_importances_of_files_of_earlier_versions(name):
    """They keep no distribution of features: features count as normal."""
    stored = joblib.load(STORED / f"{name}.joblib")
    importances = stored["model"].feature_importances_
    assert importances.shape == stored["X"].shape[1:] and importances.min() > 0
    np.testing.assert_allclose(importances.sum(), 1)


@pytest.mark.slow
def test_typical_rows_have_the_moments_of_their_features(frame):
    X, y = frame
    model = SOLVEGPRegressor(5, 0, **QUICK).fit(X, y)
    rows = typical_rows(table_of(model).encoding, 2000, np.random.default_rng(0))
    assert rows.shape == (2000, 6) and np.isfinite(rows).all()
    for j, name in enumerate(X):
        if name in ("city", "colour"):
            frequency = np.bincount(rows[:, j].astype(int)) / 2000
            expected = X[name].value_counts(normalize=True).to_numpy()
            np.testing.assert_allclose(frequency[:10], expected[:10], atol=0.002)
            np.testing.assert_allclose(frequency.sum(), 1)
            continue
        known = X[name].astype(float)
        np.testing.assert_allclose(rows[:, j].mean(), known.mean(), atol=0.15 * known.std() + 1e-9)
        np.testing.assert_allclose(rows[:, j].std(), known.std(), rtol=0.2)
        assert known.min() - 1e-6 <= rows[:, j].min() and rows[:, j].max() <= known.max() + 1e-6


@pytest.mark.slow
def test_scikit_learn_selects_features_by_importances(frame):
    X, y = make_friedman1(120, n_features=7, random_state=0)
    model = SOLVEGPRegressor(40, 0, base=None, **QUICK)
    assert RFE(model, n_features_to_select=5).fit(X, y).support_.tolist() == 5 * [True] + 2 * [False]
    X, y = frame
    select = SelectFromModel(model, threshold=0.03).set_output(transform="pandas")
    pipeline = make_pipeline(select, clone(model)).fit(X, y)
    assert pipeline[-1].feature_names_in_.tolist() == ["size", "city", "garden"]
    assert pipeline[-1].is_categorical_.tolist() == [False, True, False]
    assert pipeline.score(X, y) > 0.9
