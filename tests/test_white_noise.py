"""A WhiteKernel in a kernel object: where the noise starts, between which bounds it stays, and what it has learnt."""

import pickle

import numpy as np
import pytest
from helpers import REGRESSORS, name_of, predictor_of
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skdgp import DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor

LEVEL = 0.03

FIXED = ConstantKernel(1.5, "fixed") * RBF([1.2, 1.7], "fixed") + WhiteKernel(LEVEL, "fixed")
FREE = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)


def table(n_rows=60, scale=1.0, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 5.0, (n_rows, 2))
    y = 7 + 3 * np.sin(2 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=n_rows)
    return X, scale * y


def exact(kernel, X, y, **options):
    """scikit-learn's, with all noise in its WhiteKernel."""
    return GaussianProcessRegressor(kernel, alpha=0.0, normalize_y=True, random_state=0, **options).fit(X, y)


def all_rows(kernel, n_rows=60):
    """A sparse GP with all rows as inducing points, which is the exact one but for the jitter of its layer."""
    return SOLVEGPRegressor(n_rows, 0, kernel=kernel, normalize_X=False, n_neighbors=0, random_state=0)


def short(kernel, estimator=SOLVEGPRegressor, **options):
    return estimator(kernel=kernel, max_iter=3, n_neighbors=0, random_state=0, **options)


def level_of(model):
    """Noise level of the WhiteKernel that a fit has learnt."""
    kernels = model.kernel_ if isinstance(model.kernel_, list) else [model.kernel_]
    return kernels[-1].k2.noise_level


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_fixed_noise_is_scikit_learns(scale):
    X, y = table(scale=scale)
    rows, _ = table(20, seed=1)
    model, peer = all_rows(FIXED).fit(X, y), exact(FIXED, X, y, optimizer=None)
    mean, std = peer.predict(rows, return_std=True)
    found, deviation = model.predict(rows, return_std=True)
    np.testing.assert_allclose(found, mean, atol=1e-3 * scale)
    np.testing.assert_allclose(deviation, std, rtol=1e-3)
    np.testing.assert_allclose(model.noise_variance_, LEVEL * y.var(), rtol=1e-6)
    assert model.kernel_ == FIXED


def test_noise_is_learnt_as_scikit_learns():
    X, y = table()
    model, peer = all_rows(FREE).fit(X, y), exact(FREE, X, y)
    np.testing.assert_allclose(model.kernel_.theta, peer.kernel_.theta, atol=0.02)
    np.testing.assert_allclose(model.noise_variance_, level_of(model) * y.var(), rtol=1e-5)
    evidence = peer.log_marginal_likelihood_value_ - len(y) * np.log(y.std())
    assert evidence - 0.1 < model.lower_bound_ < evidence + 0.1


@pytest.mark.parametrize("estimator", REGRESSORS, ids=name_of)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_all_families_keep_fixed_noise(estimator, scale):
    X, y = table(scale=scale)
    model = short(FIXED, estimator, n_estimators=2).fit(X, y)
    np.testing.assert_allclose(model.noise_variance_, LEVEL * y.var(), rtol=1e-6)
    assert all(not member.likelihood.log_excess.requires_grad for member in predictor_of(model).models)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", REGRESSORS, ids=name_of)
@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_all_families_keep_bounds(estimator, noise):
    X, y = table(noise=noise)
    model = short(RBF(1.0) + WhiteKernel(0.1, (0.09, 0.11)), estimator).fit(X, y)
    assert 0.09 <= level_of(model) <= 0.11


@pytest.mark.filterwarnings("ignore:k1__k2__length_scale:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("noise", "bounds"), [(0.3, (0.05, 0.2)), (3.0, (1e-5, 1e-2))])
def test_a_bound_that_holds_the_noise_back_is_named(noise, bounds):
    X, y = table(noise=noise)
    start = 0.9 * bounds[1]
    with pytest.warns(ConvergenceWarning, match="noise_level of the kernel has ended at its bound of"):
        all_rows(ConstantKernel(1.0) * RBF(1.0, (0.3, 1e3)) + WhiteKernel(start, bounds)).fit(X, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_noise_may_start_at_its_bounds():
    X, y = table()
    for level in (0.01, 1.0):
        model = all_rows(ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(level, (0.01, 1.0))).fit(X, y)
        assert 0.01 <= level_of(model) < 0.05


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_noise_belongs_to_the_last_layer():
    X, y = table()
    model = short(FREE, DSDGPRegressor, hidden_dims=(2,)).fit(X, y)
    hidden, last = model.kernel_
    assert "WhiteKernel" not in str(hidden) and "WhiteKernel" in str(last)
    listed = short([FREE.k1, FREE], DSDGPRegressor, hidden_dims=(2,)).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), listed.predict(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_was_stored_goes_on():
    X, y = table()
    model = short(FREE, warm_start=True).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert again.kernel_ == model.kernel_ and clone(model).kernel == FREE
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert level_of(again.fit(X, y)) != level_of(model)
    chunks = short(FIXED).partial_fit(X, y).partial_fit(X + 0.1, y)
    np.testing.assert_allclose(chunks.noise_variance_, LEVEL * y.var(), rtol=1e-6)


def test_several_targets_start_from_the_same_level():
    X, y = table()
    both = np.column_stack([y, 1e3 * y[::-1]])
    model = short(FIXED).fit(X, both)
    np.testing.assert_allclose(model.noise_variance_, LEVEL * both.var(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF() * WhiteKernel(), "kernel has a WhiteKernel inside a product or another kernel, but it can only be"),
        (WhiteKernel(), r"kernel=WhiteKernel\(noise_level=1\) has 1 WhiteKernel and 0 other terms: add one"),
        (RBF() + WhiteKernel() + WhiteKernel(), "kernel=.* has 2 WhiteKernel and 1 other terms: add one WhiteKernel"),
        (RBF() + WhiteKernel(0.0), r"kernel has WhiteKernel\(noise_level=0\) with noise_level_bounds=.*: give a pos"),
        (RBF() + WhiteKernel(0.1, (1.0, 0.1)), "of which the first is smaller, or"),
        (RBF() + WhiteKernel(0.1, (0.0, 0.1)), "give a positive number, and positive bounds"),
    ],
)
def test_noise_that_means_nothing(kernel, message):
    X, y = table(10)
    with pytest.raises(ValueError, match=message):
        short(kernel).fit(X, y)


@pytest.mark.parametrize("likelihood", ["student_t", "heteroskedastic", "gamma"])
def test_only_noise_of_one_variance_has_a_level(likelihood):
    X, y = table(10)
    with pytest.raises(ValueError, match=r"has a WhiteKernel, but the likelihood is .*set likelihood='gaussian'"):
        short(FREE, likelihood=likelihood).fit(X, y)


def test_noise_that_does_not_go_with_others():
    X, y = table(10)
    with pytest.raises(ValueError, match="kernel has a WhiteKernel, and noise_variance was given: the noise of rows"):
        short(FREE).fit(X, y, noise_variance=0.1)
    with pytest.raises(ValueError, match=r"kernel has a WhiteKernel, but the likelihood is Bernoulli, .* out.$"):
        DSDGPClassifier(kernel=FREE).fit(X, y > np.median(y))
    layers = [FREE, Matern(1.0)]
    with pytest.raises(ValueError, match="kernel has a WhiteKernel for layer 1 of 2, but it is the noise of the targ"):
        DSDGPRegressor(kernel=layers, hidden_dims=(2,)).fit(X, y)
