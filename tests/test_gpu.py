"""Fits, predictions, streams, draws and files of models on a GPU. They need one, and are left out where there is none.

The oracle is the same model on the CPU: a stored model opens there, and has to predict what it predicted on the GPU.
"""

import gc
import pickle

import numpy as np
import pytest
import torch
from configurations import OPTIONS, combinations
from helpers import CLASSIFIERS, FAMILIES, REGRESSORS, every_family, known, name_of, needs_gpu, targets
from sklearn.gaussian_process.kernels import RBF
from sklearn.preprocessing import QuantileTransformer

import skdgp
from skdgp import DSDGPRegressor, SOLVEGPRegressor

pytestmark = needs_gpu

every_regressor = pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
every_classifier = pytest.mark.parametrize("tiny", CLASSIFIERS, ids=name_of)

#: All that a default fit has: members with hidden layers, a base, and neighbours or rows of their own.
WHOLE = {"base": "gp", "n_neighbors": "auto"}


@pytest.fixture(scope="module")
def table():
    """Three hundred rows of a smooth function with noise."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(300, 3))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(300)


def on_gpu(model):
    """Whether everything that the model predicts with is there."""
    assert model.device_.type == "cuda"
    return model


def agree(ours, theirs, tolerance=1e-4):
    """Whether numbers of both devices differ by rounding alone."""
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale)


def whole(tiny):
    return {name: value for name, value in WHOLE.items() if name in tiny.estimator().get_params()}


@pytest.mark.parametrize("n_estimators", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_regressor
def test_regressors_predict_as_on_the_cpu(tiny, dtype, n_estimators, table):
    X, y = table
    model = on_gpu(tiny(n_estimators=n_estimators, device="cuda", **whole(tiny)).fit(X.astype(dtype), y))
    there = pickle.loads(pickle.dumps(model))
    assert there.device_.type == "cpu"
    new = np.concatenate([X[:50] + 0.01, X[:5] + 100]).astype(dtype)
    for latent in (False, True):
        for ours, theirs in zip(
            model.predict(new, return_std=True, latent=latent),
            there.predict(new, return_std=True, latent=latent),
            strict=True,
        ):
            agree(ours, theirs)
    agree(model.predict_quantiles(new, [0.05, 0.5]), there.predict_quantiles(new, [0.05, 0.5]))
    agree(model.predict_gradient(new), there.predict_gradient(new))
    agree(model.predict(new, return_cov=True)[1], there.predict(new, return_cov=True)[1])
    agree(model.predict(new[:1]), there.predict(new[:1]))
    assert np.isfinite(model.sample_y(new, 3, random_state=0)).all()
    assert model.score(X.astype(dtype), y) == pytest.approx(there.score(X.astype(dtype), y), abs=1e-3)


@every_classifier
def test_classifiers_predict_as_on_the_cpu(tiny, table):
    X, y = table
    for labels in (y > 0, np.digitize(y, [-0.5, 0.5])):
        model = on_gpu(tiny(device="cuda", **whole(tiny)).fit(X, labels))
        there = pickle.loads(pickle.dumps(model))
        agree(model.predict_proba(X), there.predict_proba(X))
        assert np.isfinite(model.predict_log_proba(X)).all()


@every_regressor
def test_functions_are_drawn(tiny, table):
    X, y = table
    model = on_gpu(tiny(device="cuda", **whole(tiny)).fit(X, y))
    draws = model.sample_functions(300, random_state=0)
    values = draws(X[:20])
    mean, deviation = model.predict(X[:20], return_std=True, latent=True)
    assert np.abs(values.mean(-1) - mean).max() < 0.5 * np.maximum(deviation, 0.1 * np.abs(y).max()).max()
    stored = pickle.loads(pickle.dumps(draws))
    agree(values, stored(X[:20]))
    assert np.isfinite(draws.gradient(X[:20])).all()


@every_family
def test_chunks_are_learnt(tiny, table):
    X, y = table
    model = tiny.of_chunks(device="cuda", max_iter=2)
    for rows in np.split(np.arange(len(X)), 3):
        model.partial_fit(X[rows], targets(tiny, y)[rows], **known(tiny))
    there = pickle.loads(pickle.dumps(on_gpu(model)))
    predict = "predict" if tiny in REGRESSORS else "predict_proba"
    agree(getattr(model, predict)(X), getattr(there, predict)(X))
    there.partial_fit(X[:50], targets(tiny, y)[:50])  # a stored stream goes on, on the GPU again
    assert np.isfinite(getattr(there, predict)(X)).all()


@pytest.mark.parametrize("n_estimators", [1, 3])
@every_family
def test_recorded_fits_are_those_without_recording(tiny, n_estimators, table):
    X, y = table
    options = {"method": "svi"} if tiny.estimator is SOLVEGPRegressor else {}
    # Rounding errors differ, and large steps would make much of them.
    options |= {"device": "cuda", "n_estimators": n_estimators, "max_iter": 4, "learning_rate": 0.005}
    plain, recorded = (tiny(cuda_graphs=flag, **options).fit(X, targets(tiny, y)) for flag in (False, True))
    predict = "predict" if tiny in REGRESSORS else "predict_proba"
    agree(getattr(recorded, predict)(X), getattr(plain, predict)(X), 5e-3)
    losses = [model.loss_curve_ for model in (recorded, plain)]
    np.testing.assert_allclose(*losses, rtol=5e-3, atol=5e-3)


def numbers(model, X):
    """Expected values or probabilities of a few rows."""
    return (model.predict_proba if hasattr(model, "predict_proba") else model.predict)(X[:20])


@pytest.mark.parametrize(
    ("estimator", "number"),
    [(estimator, number) for estimator in OPTIONS for number in range(len(combinations(estimator)))],
)
def test_any_options_can_be_recorded_and_predict_as_on_the_cpu(estimator, number):
    case = combinations(estimator)[number]
    small = {"device": "cuda", "max_iter": 3, "learning_rate": 0.003}
    plain, recorded = (case.fitted(cuda_graphs=flag, **small) for flag in (False, True))
    # Adam moves a parameter by as much as any other if its gradient is nothing but rounding errors.
    agree(numbers(recorded, case.X), numbers(plain, case.X), 0.05)
    agree(numbers(recorded, case.X), numbers(pickle.loads(pickle.dumps(recorded)), case.X), 1e-3)


@pytest.mark.parametrize(
    "parameters",
    [
        {"likelihood": "student_t"},
        {"likelihood": "heteroskedastic"},
        {"likelihood": "poisson"},
        {"likelihood": "negative_binomial"},
        {"likelihood": "gamma"},
        {"kernel": RBF() + RBF(0.1), "base": None},
        {"target_transform": QuantileTransformer(n_quantiles=100, output_distribution="normal")},
        {"covariance": "full_unwhitened"},
        {"dtype": "float64"},
        {"ard": False, "kernel": "rbf"},
        {"kernel": "matern12"},
    ],
    ids=str,
)
@every_regressor
def test_options_predict_as_on_the_cpu(tiny, parameters, table):
    X, y = table
    if parameters.get("likelihood") in ("poisson", "negative_binomial", "gamma"):
        y = np.round(np.exp(y)) + 1
    if parameters.get("covariance") and tiny.estimator is SOLVEGPRegressor:
        pytest.skip("has no such covariance")
    model = on_gpu(tiny(device="cuda", **(whole(tiny) | parameters)).fit(X, y))
    there = pickle.loads(pickle.dumps(model))
    agree(model.predict(X), there.predict(X), 1e-3)
    agree(model.predict_dist(X[:20]).logpdf(y[:20]), there.predict_dist(X[:20]).logpdf(y[:20]), 1e-3)


@pytest.mark.parametrize(
    "parameters",
    [
        {"method": "collapsed"},
        {"method": "collapsed", "n_orthogonal": 8},
        {"method": "svi", "n_orthogonal": 8},
        {"inducing": "fourier"},
    ],
    ids=str,
)
def test_sparse_gps_predict_as_on_the_cpu(parameters, table):
    X, y = table
    X = X[:, :1] if parameters.get("inducing") == "fourier" else X
    model = on_gpu(SOLVEGPRegressor(16, max_iter=5, device="cuda", random_state=0, **parameters).fit(X, y))
    agree(model.predict(X), pickle.loads(pickle.dumps(model)).predict(X))
    if parameters.get("method") == "collapsed":
        left_out = model.leave_one_out()
        agree(left_out.mean, pickle.loads(pickle.dumps(model)).leave_one_out().mean)


def test_several_bothweights_and_gaps(table):
    X, y = table
    both, weight = np.column_stack([y, np.roll(y, 3)]), np.linspace(0, 2, len(y))
    X = X.copy()
    X[::7, 1] = np.nan
    for name in ("AVDGPRegressor", "DSDGPRegressor", "SOLVEGPRegressor"):
        model = getattr(skdgp, name)(max_iter=3, device="cuda", random_state=0)
        on_gpu(model.fit(X, both, sample_weight=weight))
        agree(model.predict(X), pickle.loads(pickle.dumps(model)).predict(X), 1e-3)


def test_latent_variables(table):
    X, y = table
    model = on_gpu(DSDGPRegressor(latent_dims=1, max_iter=3, device="cuda", random_state=0).fit(X, y))
    agree(model.predict(X), pickle.loads(pickle.dumps(model)).predict(X), 1e-2)


@every_family
def test_the_same_seed_gives_the_same_model(tiny, table):
    X, y = table
    first, second = (tiny(device="cuda", n_estimators=2).fit(X, targets(tiny, y)) for _ in range(2))
    agree(first.predict(X), second.predict(X), 1e-6)


@pytest.mark.parametrize("tiny", FAMILIES, ids=name_of)
def test_default_fits_are_as_good_as_on_the_cpu(tiny, table):
    """Fits of both devices draw other random numbers, so their scores are close and not the same."""
    X, y = table
    labels = y if tiny in REGRESSORS else y > 0
    train, test = np.arange(200), np.arange(200, 300)
    scores = [
        tiny.estimator(device=device, random_state=0, max_iter=60)
        .fit(X[train], labels[train])
        .score(X[test], labels[test])
        for device in ("cuda", "cpu")
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.06)


@every_regressor
def test_interactions_and_neighbours_predict_as_on_the_cpu(tiny):
    """Of two thousand rows the base knows pairs of features, and neighbours have a lengthscale for each."""
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(2000, 4))
    y = np.sin(12 * X[:, 0] * X[:, 1]) + 3 * X[:, 2] * X[:, 3] + 0.1 * rng.standard_normal(2000)
    model = on_gpu(tiny.estimator(device="cuda", random_state=0, max_iter=5, n_inducing=50).fit(X, y))
    there = pickle.loads(pickle.dumps(model))
    for ours, theirs in zip(model.predict(X, return_std=True), there.predict(X, return_std=True), strict=True):
        agree(ours, theirs, 1e-3)
    agree(model.update(X[:10], y[:10]).predict(X), there.update(X[:10], y[:10]).predict(X), 1e-3)


@every_regressor
def test_the_prior_can_be_drawn(tiny, table):
    X, _ = table
    draws = tiny(device="cuda").sample_y(X[:20], 500, random_state=0)
    assert draws.shape == (20, 500) and np.isfinite(draws).all() and draws.std() > 0.1


def test_memory_is_given_back(table):
    X, y = table
    for _ in range(2):
        SOLVEGPRegressor(16, max_iter=2, device="cuda", random_state=0).fit(X, y).predict(X)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        SOLVEGPRegressor(16, max_iter=2, device="cuda", random_state=0).fit(X, y).predict(X)
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 2**20
