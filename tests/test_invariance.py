"""What must not change predictions: the units of targets and features, and the other rows of a call."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import (
    RBF,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
)

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.kernels import Convolutional, Select

LONE = {"base": None, "n_neighbors": 0}
SMALL = {"max_iter": 2, "n_estimators": 1, "random_state": 0}
SPARSE = {"n_inducing": 8, "n_orthogonal": 4} | SMALL
DEEP = {"hidden_dims": (2,), "n_inducing": 6, "n_samples": 4} | SMALL


def make_rows(n_rows=60, n_features=2):
    """Rows, and positive targets that differ from zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features))
    return X, np.exp(np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=n_rows))


def answers(model, X, y, *, joint=True):
    """What public methods say of rows, with the power of the units of ``y``. With ``joint`` rows may share numbers."""
    dist, interval = model.predict_dist(X), model.predict_interval(X)
    mean, std = model.predict(X, return_std=True)
    draws = model.sample_functions(3, random_state=0)
    found = {
        "mean": (mean, 1),
        "std": (std, 1),
        "latent std": (model.predict(X, return_std=True, latent=True)[1], 1),
        "quantiles": (model.predict_quantiles(X, [0.1, 0.7]), 1),
        "interval": (interval, 1),
        "dist mean": (dist.mean, 1),
        "dist var": (dist.var, 2),
        "pdf": (dist.pdf(y), -1),
        "cdf": (dist.cdf(y), 0),
        "crps": (dist.crps(y), 1),
        "functions": (draws(X), 1),
        "latent samples": (model.sample_y(X, 2, random_state=0, latent=True), 1),
    }
    if joint:
        found["samples"] = (model.sample_y(X, 2, random_state=0), 1)
        found["covariance"] = (model.predict(X, return_cov=True)[1], 2)
        found["latent covariance"] = (model.predict(X, return_cov=True, latent=True)[1], 2)
    return found


def slopes(model, X):
    """Gradients by all public methods, (n, ..., n_features)."""
    gradient, std = model.predict_gradient(X, return_std=True)
    draws = model.sample_functions(3, random_state=0).gradient(X)
    return {"gradient": gradient, "std of gradient": std, "gradients of functions": np.moveaxis(draws, 1, -1)}


UNITS = {
    "one member": SOLVEGPRegressor(**SPARSE | LONE),
    "three members": SOLVEGPRegressor(**SPARSE | LONE | {"n_estimators": 3, "early_stopping": True}),
    "base": SOLVEGPRegressor(**SPARSE | {"n_estimators": 3, "n_neighbors": 0}),
    "neighbours": SOLVEGPRegressor(**SPARSE | {"base": None, "n_neighbors": 5}),
    "mixed": DSDGPRegressor((), 8, n_latent_outputs=1, **SMALL | {"n_estimators": 3}),
    "student t": SOLVEGPRegressor(**SPARSE | LONE | {"likelihood": "student_t", "n_estimators": 3}),
    "heteroskedastic": SOLVEGPRegressor(**SPARSE | LONE | {"likelihood": "heteroskedastic"}),
    "gamma": SOLVEGPRegressor(**SPARSE | LONE | {"likelihood": "gamma"}),
    "deep": DSDGPRegressor(**DEEP | {"n_estimators": 3}),
    "amortised": AVDGPRegressor(**DEEP),
    "latent": DSDGPRegressor((), 8, latent_dims=1, **SMALL),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNITS)
def test_answers_are_in_the_units_of_the_user(name):
    """Powers of two are multiplied without rounding, so that training is the same."""
    X, y = make_rows()
    units, rows, tolerance = np.array([2.0**-12, 2.0**9]), X[:4], 1e-3 if name == "gamma" else 1e-6
    model = UNITS[name].fit(X, y)
    values, gradients = answers(model, rows, y[:4]), slopes(model, rows)
    for scale in (2.0**-20, 2.0**20):
        model.fit(X * units, scale * y)
        found = answers(model, rows * units, scale * y[:4])
        found = {what: value / scale**power for what, (value, power) in found.items()}
        found |= {what: value * units / scale for what, value in slopes(model, rows * units).items()}
        for what, value in ({what: value for what, (value, _) in values.items()} | gradients).items():
            atol = tolerance * np.abs(value).max()
            np.testing.assert_allclose(found[what], value, rtol=tolerance, atol=atol, err_msg=what)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one member", "three members", "mixed", "student t"])
def test_deviation_of_the_gradient_is_the_spread_of_functions(name, monkeypatch):
    """Closed forms, with targets of a scale of their own."""
    X, y = make_rows()
    model = UNITS[name].fit(X, 1000.0 * y)
    monkeypatch.setattr("skdgp.estimators._regression.GRADIENT_DRAWS", None)  # none are drawn
    gradient, std = model.predict_gradient(X[:4], return_std=True)
    draws = model.sample_functions(300, random_state=0).gradient(X[:4])
    np.testing.assert_allclose(draws.std(-1), std, rtol=0.15)
    np.testing.assert_allclose(draws.mean(-1), gradient, atol=0.2 * std.max())


BESIDE = {
    "sparse": SOLVEGPRegressor(**SPARSE),
    "sparse alone": SOLVEGPRegressor(**SPARSE | LONE | {"n_estimators": 3, "early_stopping": True}),
    "neighbours": SOLVEGPRegressor(**SPARSE | {"n_neighbors": 5}),
    "amortised": AVDGPRegressor(**DEEP),
    "amortised alone": AVDGPRegressor(**DEEP | LONE | {"n_estimators": 3}),
    "amortised ar1": AVDGPRegressor(**DEEP | LONE | {"rule": "ar1"}),
    "deep": DSDGPRegressor(**DEEP),
    "quadrature": DSDGPRegressor(**DEEP | LONE | {"propagation": "quadrature"}),
    "single": DSDGPRegressor(**DEEP | LONE | {"dtype": "float32", "kernel": "rbf"}),
    "chain": DSDGPRegressor(**DEEP | {"layer_posterior": "chain"}),
    "mixed": DSDGPRegressor((), 8, n_latent_outputs=1, **SMALL),
    **{
        f"kernel {kernel}": SOLVEGPRegressor(**SPARSE | LONE | {"kernel": kernel})
        for kernel in (
            "rbf",
            "matern12",
            "matern32",
            1.0 * RationalQuadratic(alpha=0.3),
            RBF() + DotProduct(),
            RBF() * DotProduct(),
            Matern(nu=1.5) ** 2,
            Select(ExpSineSquared(), [0]) + Select(RBF(), [1]),
        )
    },
    **{
        f"inducing {kind}": SOLVEGPRegressor(
            **SPARSE | LONE | {"kernel": kernel, "inducing": kind, "n_orthogonal": 0, "n_inducing": 14}
        )
        for kind, kernel in (
            ("derivatives", "matern52"),
            ("eigen", "rbf"),
            ("fourier", Select(Matern(nu=1.5), [0]) + Select(Matern(nu=2.5), [1])),
        )
    },
}


def assert_joint(covariance, std):
    """Symmetric, without negative eigenvalues beyond rounding, and with these deviations."""
    assert np.array_equal(covariance, covariance.T)
    np.testing.assert_allclose(covariance.diagonal(), std**2, rtol=1e-5)
    assert np.linalg.eigvalsh(covariance / std[:, None] / std).min() > -1e-9


@pytest.mark.parametrize("name", BESIDE)
def test_far_rows_do_not_change_near_ones(name):
    X, y = make_rows()
    model, near, targets = BESIDE[name].fit(X, y), X[:4], y[:4]
    expected, gradients = answers(model, near, targets, joint=False), model.predict_gradient(near)
    covariance = model.predict(near, return_cov=True, latent=True)[1]
    for far in (1e3, 1e8, 1e30):
        rows = np.vstack([[[far, far]], near, [[far + 0.5, far], [-far, 0.0]]])
        found = answers(model, rows, np.concatenate([[1.0], targets, [1.0, 1.0]]), joint=False)
        for what, (values, _) in expected.items():
            np.testing.assert_allclose(found[what][0][1:5], values, rtol=1e-6, atol=1e-8, err_msg=f"{what}, {far}")
        np.testing.assert_allclose(model.predict_gradient(rows)[1:5], gradients, rtol=1e-6, atol=1e-8)
        joint, std = model.predict(rows, return_cov=True, latent=True)[1], found["latent std"][0]
        assert_joint(joint, std)
        spread = np.sqrt(np.outer(covariance.diagonal(), covariance.diagonal()))
        rounding = 1e-6 if name == "single" else 1e-8  # variances of rows are those of predictions, in float32
        assert (np.abs(joint[1:5, 1:5] - covariance) < rounding * spread).all(), far


def test_far_images_do_not_change_near_ones():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 9))
    kernel = Convolutional((3, 3), (2, 2))
    model = SOLVEGPRegressor(**SPARSE | LONE | {"kernel": kernel, "n_orthogonal": 0}).fit(X, X[:, 4])
    expected = model.predict(X[:4], return_cov=True, latent=True)[1]
    for far in (1e3, 1e8, 1e30):
        found, std = (
            model.predict(np.vstack([np.full((1, 9), far), X[:4]]), latent=True, **{kind: True})[1]
            for kind in ("return_cov", "return_std")
        )
        assert_joint(found, std)
        np.testing.assert_allclose(found[1:, 1:], expected, rtol=0, atol=1e-8 * expected.max())


@pytest.mark.slow
@pytest.mark.parametrize("hidden_dims", [(), (2,)])
@pytest.mark.parametrize("options", [{}, {"propagation": "quadrature"}, {"n_estimators": 3}], ids=str)
def test_covariances_with_latent_variables(hidden_dims, options):
    X, y = make_rows()
    model = DSDGPRegressor(hidden_dims, 8, latent_dims=1, **SMALL | {"max_iter": 20} | options).fit(X, y)
    rows = X[:12]
    covariance, std = (model.predict(rows, latent=True, **{kind: True})[1] for kind in ("return_cov", "return_std"))
    assert_joint(covariance, std)
    draws = model.sample_y(rows, 2000, random_state=0) if hidden_dims == () else None
    if draws is not None:  # the function of hidden layers has moments of its own
        spread = np.outer(np.sqrt(whole := model.predict(rows, return_std=True)[1]) ** 2, whole)
        joint = model.predict(rows, return_cov=True)[1]
        assert (np.abs(np.cov(draws) - joint) / spread).max() < 0.15
