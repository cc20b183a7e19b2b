"""The evidence of the rows of a fit for other hyperparameters, beside scikit-learn's."""

import pickle
from copy import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, RationalQuadratic, WhiteKernel
from sklearn.linear_model import Ridge

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.estimators._fitted import keep, learnt
from skdgp.gp.kernels import StationaryKernel
from skdgp.inference.predictor import Predictor
from skdgp.kernels import Convolutional

N_ROWS = 40

#: Kernel objects with learnt, fixed and bounded hyperparameters.
KERNELS = {
    "one": ConstantKernel(1.5) * RBF(1.2) + WhiteKernel(0.1),
    "each": ConstantKernel(1.0) * Matern([1.0, 2.0], nu=2.5) + WhiteKernel(0.1),
    "fixed": ConstantKernel(1.0, "fixed") * RBF([1.0, 1.5]) + WhiteKernel(0.1),
    "known noise": ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1, "fixed"),
    "narrow": ConstantKernel(1.0, (0.9, 1.1)) * RBF(1.0, (0.9, 1.1)) + WhiteKernel(0.1, (0.09, 0.11)),
    "sum": 0.5 * RationalQuadratic(1.0, 0.7) + 0.3 * DotProduct(1.0) + WhiteKernel(0.1),
}


def table(scale=1.0, n_outputs=1, n_rows=N_ROWS, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 5.0, (n_rows, 2))
    y = 7 + 3 * np.sin(2 * X[:, [0]]) + X[:, [1]] * np.arange(1, n_outputs + 1)
    y = scale * (y + 0.5 * rng.normal(size=y.shape))
    return X, y if n_outputs > 1 else y[:, 0]


def all_rows(kernel="matern52", n_rows=N_ROWS, **options):
    """A sparse GP with an inducing point at every row, hardly trained."""
    options = {"max_iter": 3, "n_neighbors": 0, "base": None, "random_state": 0} | options
    return SOLVEGPRegressor(n_rows, 0, kernel=kernel, **options)


def exact(kernel, X, y, theta, **options):
    """scikit-learn's, of targets in their own units."""
    model = GaussianProcessRegressor(kernel, normalize_y=True, optimizer=None, **{"alpha": 0.0} | options).fit(X, y)
    return model.log_marginal_likelihood(theta) - len(X) * np.log(y.std(axis=0)).sum()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_scikit_learns_with_a_point_at_every_row(name, scale):
    X, y = table(scale)
    model = all_rows(KERNELS[name]).fit(X, y)
    for shift in (0.0, 0.3, -0.5, np.random.default_rng(1).normal(scale=0.5, size=len(KERNELS[name].theta))):
        theta = KERNELS[name].theta + shift  # "narrow" is far outside of its bounds then
        expected = exact(KERNELS[name], X, y, theta)
        assert model.log_marginal_likelihood(theta, X, y) == pytest.approx(expected, abs=0.02)
        assert model.log_marginal_likelihood(theta, X, y) < expected + 1e-4


@pytest.mark.parametrize("share", [1e2, 1e4, 1e6])
def test_jitter_lowers_it_by_no_more_than_its_page_says(share):
    X, y = table()
    theta = KERNELS["one"].theta + np.array([np.log(share), 0.0, 0.0])
    expected, most = exact(KERNELS["one"], X, y, theta), len(X) * 1.5 * share / 0.1 * 1e-6 / 2
    lower = expected - all_rows(KERNELS["one"]).fit(X, y).log_marginal_likelihood(theta, X, y)
    assert 0.2 * most < lower < most


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("columns", ["alike", "apart"])
@pytest.mark.parametrize("ard", [True, False])
def test_kernels_by_name_have_the_theta_of_their_object(columns, ard, n_outputs):
    X, y = table(n_outputs=n_outputs)
    X = X * ([1.0, 1e3] if columns == "apart" else [1.0, 1.0])
    model = all_rows(ard=ard).fit(X, y)
    noise = np.mean(model.noise_variance_ / y.var(axis=0))
    theta = model.kernel_.theta + np.linspace(-0.3, 0.4, len(model.kernel_.theta))
    if n_outputs == 1:
        expected = exact(model.kernel_ + WhiteKernel(noise), X, y, np.append(theta, np.log(noise)))
        assert model.log_marginal_likelihood(theta, X, y) == pytest.approx(expected, abs=0.02)
    learnt = model.log_marginal_likelihood(model.kernel_.theta, X, y)
    assert learnt == pytest.approx(model.lower_bound_, abs=1e-3)


def test_all_outputs_count():
    X, y = table(n_outputs=2)
    kernel = KERNELS["each"]
    model = all_rows(kernel).fit(X, y)
    assert model.log_marginal_likelihood(kernel.theta, X, y) == pytest.approx(
        exact(kernel, X, y, kernel.theta), abs=0.04
    )


def test_given_noise_is_alpha():
    X, y = table()
    noise = np.random.default_rng(2).uniform(0.1, 1.0, len(X))
    kernel = ConstantKernel(1.0) * RBF([1.0, 2.0])
    model = all_rows(kernel).fit(X, y, noise_variance=noise)
    theta = kernel.theta + np.array([0.2, -0.2, 0.1])
    expected = exact(kernel, X, y, theta, alpha=noise / y.var())
    assert model.log_marginal_likelihood(theta, X, y, noise_variance=noise) == pytest.approx(expected, abs=0.02)
    with pytest.raises(ValueError, match="noise_variance is missing"):
        model.log_marginal_likelihood(theta, X, y)


def test_a_weight_of_two_is_a_row_twice():
    X, y = table()
    kernel, weight = KERNELS["each"], 1.0 + np.arange(len(X)) % 2
    model = all_rows(kernel).fit(X, y, sample_weight=weight)
    twice = np.repeat(np.arange(len(X)), weight.astype(int))
    theta = kernel.theta + 0.2
    expected = model.log_marginal_likelihood(theta, X[twice], y[twice])
    assert model.log_marginal_likelihood(theta, X, y, weight) == pytest.approx(expected, rel=1e-9)
    assert model.log_marginal_likelihood(X=X, y=y, sample_weight=weight) == pytest.approx(model.lower_bound_, rel=1e-6)


def test_the_learnt_hyperparameters_are_the_most_likely_ones():
    X, y = table()
    kernel = KERNELS["one"]
    model = all_rows(kernel, max_iter=100).fit(X, y)
    best = minimize(
        lambda theta: -model.log_marginal_likelihood(theta, X, y), model.kernel_.theta, method="Nelder-Mead"
    )
    np.testing.assert_allclose(best.x, model.kernel_.theta, atol=0.05)
    assert model.log_marginal_likelihood() == model.lower_bound_ == pytest.approx(-best.fun, abs=0.01)


@pytest.mark.parametrize("covariance", ["full", "diag", "full_unwhitened", "odvgp"])
def test_fewer_points_bound_it_and_the_posterior_that_was_learnt_is_no_better(covariance):
    X, y = table()
    options = {"covariance": covariance, "method": "svi", "max_iter": 20, "base": None, "random_state": 0}
    model = SOLVEGPRegressor(6, 4, n_neighbors=0, **options).fit(X, y)
    noise = model.noise_variance_ / y.var()
    evidence = exact(model.kernel_ + WhiteKernel(noise), X, y, np.append(model.kernel_.theta, np.log(noise)))
    assert model.lower_bound_ <= model.log_marginal_likelihood(X=X, y=y) < evidence + 1e-4


def test_it_is_the_mean_over_members():
    X, y = table()
    model = SOLVEGPRegressor(6, 0, method="svi", n_estimators=3, max_iter=2, n_neighbors=0, base=None, random_state=0)
    theta, values = model.fit(X, y).kernel_.theta + 0.1, []
    of_fit = learnt(model)
    for member in of_fit.predictor.models:
        alone = replace(of_fit, ensemble=replace(of_fit.ensemble, predictor=Predictor([member])))
        values.append(keep(copy(model), alone.attributes()).log_marginal_likelihood(theta, X, y))
    assert np.ptp(values) > 0.01
    assert model.log_marginal_likelihood(theta, X, y) == pytest.approx(np.mean(values), rel=1e-9)


def test_any_table_has_it():
    X, y = table()
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(c=np.where(y > y.mean(), "high", "low"))
    frame.loc[3, "a"] = np.nan
    for options in (
        {},
        {"target_transform": "log"},
        {"likelihood": "lognormal"},
        {"inducing": "eigen", "kernel": "rbf"},
    ):
        model = SOLVEGPRegressor(n_orthogonal=0, n_neighbors=0, max_iter=3, random_state=0, **options).fit(frame, y)
        here = model.log_marginal_likelihood(model.kernel_.theta, frame, y)
        assert here == pytest.approx(model.log_marginal_likelihood(X=frame, y=y), abs=1e-3)
        assert here > model.log_marginal_likelihood(model.kernel_.theta - 3.0, frame, y)
        assert pickle.loads(pickle.dumps(model)).log_marginal_likelihood(X=frame, y=y) == pytest.approx(here, abs=1e-3)


@pytest.mark.parametrize("inducing", ["points", "fourier"])
def test_one_column_may_have_fourier_features(inducing):
    X, y = table()
    n_points = {"points": N_ROWS, "fourier": 80}[inducing]
    model = SOLVEGPRegressor(n_points, 0, inducing=inducing, kernel="matern32", n_neighbors=0, random_state=0)
    model.fit(X[:, :1], y)
    noise, theta = model.noise_variance_ / y.var(), model.kernel_.theta + np.array([0.3, 0.2])
    expected = exact(model.kernel_ + WhiteKernel(noise), X[:, :1], y, np.append(theta, np.log(noise)))
    assert model.log_marginal_likelihood(theta, X[:, :1], y) == pytest.approx(expected, abs=0.2)


def test_a_sum_over_columns_by_name_has_it():
    X, y = table()
    model = SOLVEGPRegressor(80, 0, inducing="fourier", kernel="matern32", n_neighbors=0, max_iter=5, random_state=0)
    model.fit(X, y)
    here = model.log_marginal_likelihood(model.kernel_.theta, X, y)
    assert here == pytest.approx(model.log_marginal_likelihood(X=X, y=y), abs=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_of_patches_stay():
    images = np.random.default_rng(0).uniform(size=(30, 16))
    y = images @ np.arange(16.0)
    kernel = Convolutional((4, 4), (2, 2)) + 0.1 * RBF(3.0)
    model = SOLVEGPRegressor(20, 0, kernel=kernel, n_neighbors=0, max_iter=10, random_state=0).fit(images, y)
    here = model.log_marginal_likelihood(model.kernel_.theta, images, y)
    assert here == pytest.approx(model.log_marginal_likelihood(X=images, y=y), abs=1e-3)


def test_numbers_that_cannot_be_computed_are_minus_infinity():
    X, y = table()
    model = all_rows(KERNELS["one"]).fit(X, y)
    for theta in ([800.0, 0.0, 0.0], [0.0, 0.0, 800.0], [800.0, 800.0, 800.0]):
        assert model.log_marginal_likelihood(theta, X, y) == -np.inf
    assert model.log_marginal_likelihood([0.0, 0.0, -800.0], X, y) < -1e20


def test_what_it_refuses():
    X, y = table()
    model = all_rows(KERNELS["each"]).fit(X, y)
    with pytest.raises(NotFittedError):
        SOLVEGPRegressor().log_marginal_likelihood()
    for theta, options in ((model.kernel_.theta, {}), (None, {"X": X}), (None, {"y": y}), (None, {"sample_weight": y})):
        with pytest.raises(ValueError, match="needs the rows of fit"):
            model.log_marginal_likelihood(theta, **options)
    for theta in ([0.0], np.zeros((1, 4)), [0.0, np.nan, 0.0, 0.0], 0.0):
        with pytest.raises(ValueError, match=r"must be 4 finite numbers.*k1__k1__constant_value"):
            model.log_marginal_likelihood(theta, X, y)
    with pytest.raises(ValueError, match="needs the rows of fit"):
        model.update(X[:5], y[:5]).log_marginal_likelihood()
    assert np.isfinite(model.log_marginal_likelihood(model.kernel_.theta, X, y))


def own_kernel(n_inputs, n_outputs, ard):
    """A kernel that is known by its covariances alone."""
    return Own("rbf", n_inputs, n_outputs, ard=ard)


class Own(StationaryKernel):
    def relative_diagonal(self, X):
        return super().relative_diagonal(X)


def test_kernels_without_an_object_have_no_theta():
    X, y = table()
    model = all_rows(own_kernel).fit(X, y)
    with pytest.raises(ValueError, match="theta has no meaning"):
        model.log_marginal_likelihood([0.0, 0.0], X, y)
    assert model.log_marginal_likelihood(X=X, y=y) == pytest.approx(model.lower_bound_, abs=1e-3)


@pytest.mark.parametrize("options", [{"likelihood": "student_t"}, {"n_latent_outputs": 1}, {"trend": Ridge()}], ids=min)
def test_models_without_a_closed_form_have_the_bound_of_the_fit_alone(options):
    X, y = table(n_outputs=2 if "n_latent_outputs" in options else 1)
    model = SOLVEGPRegressor(8, 0, max_iter=2, n_neighbors=0, random_state=0, **options).fit(X, y)
    assert model.log_marginal_likelihood() == model.lower_bound_
    with pytest.raises(ValueError, match=f"got .*{min(options)}=.*read lower_bound_"):
        model.log_marginal_likelihood(X=X, y=y)


def test_bounds_have_none():
    X, y = table()
    bounds = pd.DataFrame({"lower": y, "upper": y + 1.0})
    model = SOLVEGPRegressor(8, 0, max_iter=2, n_neighbors=0, random_state=0).fit(X, bounds)
    with pytest.raises(ValueError, match="targets that are exact"):
        model.log_marginal_likelihood(X=X, y=bounds)


def test_deep_models_and_classifiers_have_no_such_method():
    assert not any(
        hasattr(each(), "log_marginal_likelihood") for each in (AVDGPRegressor, DSDGPRegressor, SOLVEGPClassifier)
    )
