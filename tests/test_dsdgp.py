"""What is DSDGPRegressor's and DSDGPClassifier's own."""

import warnings

import numpy as np
import pytest
import torch
from helpers import DSDGP, Tiny, any_options, generator, normal, own_kernels
from sklearn.preprocessing import StandardScaler

from skdgp import DSDGPClassifier, DSDGPRegressor, methods
from skdgp.gp.conditionals import kl_divergence
from skdgp.gp.likelihoods import Gaussian

tiny = Tiny(DSDGPRegressor, **DSDGP)


@any_options
@pytest.mark.parametrize("propagation", ["monte_carlo", "quadrature"])
@pytest.mark.parametrize("objective", ["elbo", "predictive"])
@pytest.mark.parametrize("hidden_dims", [(), (2,), [3, 2], "auto"])
def test_every_propagation_objective_and_depth(wave, propagation, objective, hidden_dims):
    X, y = wave
    model = tiny(propagation=propagation, objective=objective, hidden_dims=hidden_dims).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert np.isfinite(mean).all() and (std > 0).all()


@pytest.mark.parametrize("covariance", ["diag", "full", "diag_unwhitened", "full_unwhitened"])
@pytest.mark.parametrize("mean", ["zero", "linear", "identity"])
def test_every_layer(wave, covariance, mean):
    X, y = wave
    model = tiny(covariance=covariance, mean=mean, ard=False).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert model.length_scales_[0].shape == (1, 1, 1)


def test_outputs_may_have_kernels_of_their_own():
    model = own_kernels(methods.DSDGP((2,), 4, ard=False)).build(normal(20, 3).float(), Gaussian(1), generator())
    assert [len(layer.kernel.lengthscale) for layer in model.layers] == [2, 1]


@pytest.mark.parametrize("covariance", ["diag", "full", "odvgp"])
def test_orthogonal_inducing_points_in_every_layer(wave, covariance):
    X, y = wave
    model = tiny(n_inducing=10, n_orthogonal=7, covariance=covariance)
    assert np.isfinite(model.fit(X, y).predict(X, return_std=True)).all()
    assert [len(layer.O) for layer in model.module_[0].layers] == [7, 7]
    both = [np.concatenate([layer.Z, layer.O]) for layer in model.module_[0].layers]
    assert all(len(np.unique(points, axis=0)) == 17 for points in both)
    with pytest.warns(UserWarning, match=r"n_inducing=5 \+ n_orthogonal=7 is more than the 8 distinct rows of X"):
        few = tiny(n_inducing=5, n_orthogonal=7).fit(X[:8], y[:8])
    assert len(few.module_[0].layers[0].O) == 3 and np.isfinite(few.predict(X)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"inducing": "fourier", "n_inducing": 40, "ard": True},
        {"inducing": "fourier", "n_inducing": "auto", "ard": True},
        {"inducing": "eigen", "kernel": "rbf", "n_inducing": 40},
    ],
)
def test_features_that_are_at_no_points_leave_all_rows_to_the_second_set(wave, options):
    X, y = wave
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of more points than rows, which there are not
        model = tiny(n_orthogonal=7, **options).fit(X[:30], y[:30])
        tiny(**options).fit(X[:30], y[:30])
    assert [len(layer.O) for layer in model.module_[0].layers] == [7, 7]
    assert all(len(layer.inducing) > 30 for layer in model.module_[0].layers)


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [1, 2, 5])
def test_learns_at_every_depth(wave, n_layers):
    """Members alone, since a base would learn what they do not."""
    X, y = wave
    options = {"n_estimators": 1, "max_iter": 150, "base": None, "n_neighbors": 0, "random_state": 0}
    model = DSDGPRegressor((3,) * (n_layers - 1), **options).fit(X[:100], y[:100])
    mean, std = model.predict(X[100:], return_std=True)
    assert model.score(X[100:], y[100:]) > 0.8
    assert 0.5 < np.mean(np.abs(y[100:] - mean) < 1.96 * std)


@pytest.mark.slow
@any_options
def test_single_parameters_can_be_searched_alone(wave):
    X, y = wave
    values = {
        "propagation": "quadrature",
        "objective": "predictive",
        "kernel": "matern12",
        "ard": False,
        "mean": "zero",
        "covariance": "full_unwhitened",
        "hidden_dims": (),
        "n_inducing": 2,
        "n_orthogonal": 5,
        "n_samples": 1,
        "early_stopping": False,
    }
    for name, value in values.items():
        model = DSDGPRegressor(max_iter=1, n_estimators=1, base=None, n_neighbors=0, random_state=0)
        assert np.isfinite(model.set_params(**{name: value}).fit(X, y).predict(X)).all(), name


def test_inducing_points_start_as_clusters_of_what_reaches_a_layer(wave):
    """Identity means show every layer the data; zero means a function drawn from the prior."""
    X, y = wave
    for mean in ("identity", "zero"):
        model = tiny(hidden_dims=(3, 3), n_inducing=10, mean=mean, max_iter=1, learning_rate=1e-12, dtype="float64")
        model.fit(X, y)
        inputs = torch.as_tensor(StandardScaler().fit_transform(X))
        for layer, points in zip(model.module_[0].layers, model.inducing_points_, strict=True):
            assert points.shape == (1, 10, 3)
            spread = inputs.amax(0) - inputs.amin(0)
            assert (np.ptp(points[0], axis=0) > 0.3 * spread.numpy()).all()
            distance = torch.cdist(torch.as_tensor(points[0]), inputs).amin(1)
            assert (distance < 0.5 * spread.norm()).all()
            inputs = layer(inputs[None], inputs)[0][0]


def test_hidden_layers_start_all_but_deterministic(wave):
    X, y = wave
    model = tiny(max_iter=1, learning_rate=1e-12, beta=1.0).fit(X, y)
    hidden, last = model.module_[0].layers
    assert (hidden.q.root**2 / 1e-5 - 1).abs().max() < 1e-4
    assert (hidden.log_white_noise.exp() / 1e-5 - 1).abs().max() < 1e-4
    assert last.log_white_noise is None
    assert kl_divergence(last.q.mean, last.q.root).sum() < 1e-6


@pytest.mark.parametrize("n_rows", [1, 2, 5, 19])
def test_more_inducing_points_than_rows(wave, n_rows):
    X, y = wave
    with pytest.warns(UserWarning, match=rf"n_inducing=30 is more than the {n_rows} distinct rows of X .* are used"):
        model = tiny(n_inducing=30).fit(X[:n_rows], y[:n_rows])
    assert model.inducing_points_[0].shape == (1, n_rows, 3)
    assert np.isfinite(model.predict(X, return_std=True)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "No rows have judged the members")
        tiny(n_inducing="auto").fit(X[:n_rows], y[:n_rows])


def test_members_have_equally_many_inducing_points(wave):
    X, y = wave
    X = np.concatenate([X[:12], np.repeat(X[:2], 20, axis=0)])
    with pytest.warns(UserWarning, match="12 distinct rows"):
        model = tiny(n_inducing=30, n_estimators=3).fit(X, y[: len(X)])
    assert [points.shape for points in model.inducing_points_] == [(3, 12, 3), (3, 12, 2)]


@pytest.mark.slow
def test_classes(wave):
    X, y = wave
    for labels in (np.where(y > 0, "yes", "no"), np.digitize(y, [-0.5, 0.5])):
        model = DSDGPClassifier(n_inducing=20, n_estimators=1, max_iter=100, random_state=0).fit(X[:100], labels[:100])
        assert model.score(X[100:], labels[100:]) > 0.7
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"propagation": "ar2"}, "'propagation' parameter"),
        ({"hidden_dims": "wide"}, "'hidden_dims' parameter"),
        ({"n_orthogonal": "auto"}, "'n_orthogonal' parameter"),
        ({"ard": 2}, "'ard' parameter"),
        ({"n_inducing": np.array(5)}, "n_inducing=array\\(5\\) must have a number for each layer"),
    ],
)
def test_bad_parameters(wave, parameters, message):
    X, y = wave
    with pytest.raises(ValueError, match=message):
        tiny(**parameters).fit(X, y)
