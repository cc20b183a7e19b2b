"""What is AVDGPRegressor's own."""

import numpy as np
import pytest
from helpers import AVDGP, Tiny, any_options

from skdgp import AVDGPRegressor

tiny = Tiny(AVDGPRegressor, **AVDGP)


@any_options
@pytest.mark.parametrize("rule", ["ar1", "ar2", "ar2p"])
@pytest.mark.parametrize("objective", ["elbo", "predictive"])
@pytest.mark.parametrize("hidden_dims", [(), (2,), [3, 2]])
def test_every_rule_objective_and_depth(wave, rule, objective, hidden_dims):
    X, y = wave
    mean, std = tiny(rule=rule, objective=objective, hidden_dims=hidden_dims).fit(X, y).predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert np.isfinite(mean).all() and (std > 0).all()


@pytest.mark.parametrize("covariance", ["diag", "full", "diag_unwhitened", "full_unwhitened"])
@pytest.mark.parametrize("inducing_map", ["affine", "mlp"])
@pytest.mark.parametrize("mean", ["zero", "linear", "identity"])
def test_every_layer(wave, covariance, inducing_map, mean):
    X, y = wave
    model = tiny(covariance=covariance, inducing_map=inducing_map, mean=mean, ard=True)
    assert np.isfinite(model.fit(X, y).predict(X)).all()


@pytest.mark.slow
def test_learns(wave):
    """Members alone, since a base would learn what they do not."""
    X, y = wave
    model = AVDGPRegressor(n_estimators=2, max_iter=120, base=None, n_neighbors=0, random_state=0)
    model.fit(X[:100], y[:100])
    mean, std = model.predict(X[100:], return_std=True)
    assert model.score(X[100:], y[100:]) > 0.8
    assert 0.5 < np.mean(np.abs(y[100:] - mean) < 1.96 * std)


@pytest.mark.slow
def test_single_parameters_can_be_searched_alone(wave):
    X, y = wave
    values = {
        "rule": "ar1",
        "objective": "predictive",
        "kernel": "matern12",
        "ard": True,
        "mean": "identity",
        "covariance": "full_unwhitened",
        "inducing_map": "mlp",
        "hidden_dims": (),
        "n_inducing": 2,
        "n_samples": 1,
        "network_width": None,
        "early_stopping": False,
    }
    for name, value in values.items():
        model = AVDGPRegressor(max_iter=1, n_estimators=1, base=None, n_neighbors=0, random_state=0)
        assert np.isfinite(model.set_params(**{name: value}).fit(X, y).predict(X)).all(), name


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hidden_dims": "auto"}, "'hidden_dims' parameter"),
        ({"beta": "auto"}, "'beta' parameter"),
        ({"rule": "ar3"}, "'rule' parameter"),
        ({"network_width": 0}, "'network_width' parameter"),
    ],
)
def test_bad_parameters(wave, parameters, message):
    X, y = wave
    with pytest.raises(ValueError, match=message):
        tiny(**parameters).fit(X, y)
