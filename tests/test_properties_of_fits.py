"""What fits must learn from tables that are easy for people and hard for matrices, for all families."""

import warnings

import numpy as np
import pytest

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)

pytestmark = pytest.mark.slow  # each learns from hundreds of rows

REGRESSORS = [AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor]
CLASSIFIERS = [AVDGPClassifier, DSDGPClassifier, SOLVEGPClassifier]

#: A short fit of few points, which must not do harm.
SHORT = {"n_inducing": 8, "max_iter": 10, "n_estimators": 1, "batch_size": 100, "random_state": 0}


def measurements(seed, n_people=40):
    """Repeated measurements without noise: ages are equal to the last digit or differ, and four columns are useless."""
    rng = np.random.default_rng(seed)
    age, sex = rng.uniform(20, 80, n_people), rng.integers(0, 2, n_people)
    a, b, c = rng.normal(size=n_people), rng.normal(size=n_people), rng.uniform(0, 6, n_people)
    who, t = rng.integers(0, n_people, 700), rng.uniform(0, 6, 700)
    X = np.column_stack([age[who], sex[who], t, rng.normal(size=(700, 4))])
    return X, a[who] + b[who] * t / 6 + 0.3 * np.sin(t + c[who])


@pytest.mark.parametrize("estimator", REGRESSORS)
def test_people_who_were_measured_repeatedly_are_known(estimator):
    X, y = measurements(1)
    model = estimator(base="gp", early_stopping=True, **SHORT)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*early_stopping", UserWarning)
        model.fit(X[:500], y[:500])
    assert np.std(model.predict(X[500:]) - y[500:]) < 0.15 * y.std()


@pytest.mark.parametrize("n_rare", [1, 2])
@pytest.mark.parametrize("estimator", CLASSIFIERS)
def test_rare_classes_keep_their_share_where_features_say_nothing(estimator, n_rare):
    """Of 400 rows 4 are of each rare class."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 3)), np.zeros(400, dtype=int)
    y[: 4 * n_rare] = np.repeat(1 + np.arange(n_rare), 4)
    order = rng.permutation(400)
    model = estimator(**SHORT).fit(X[order], y[order])
    share = model.predict_proba(rng.normal(size=(200, 3))).mean(0)[1:]
    assert (share > 0.004).all() and (share < 0.025).all()
