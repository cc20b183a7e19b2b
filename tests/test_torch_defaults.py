"""Tensors have the device and the precision of the estimator, whatever torch's defaults are.

What forgets its device would break on a GPU. Here it breaks without one: tensors on the device "meta" have no values,
and nothing can be computed from them and others. What forgets its precision is off in half precision.
"""

import pickle
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from helpers import REGRESSORS, TINY, any_options, every_family, known, name_of, targets

from skdgp.gp import rowwise, special, waves
from skdgp.gp.classes import Bernoulli, RobustMax
from skdgp.gp.kernels import PROFILES
from skdgp.gp.likelihoods import Gaussian
from skdgp.methods import AVDGP, DSDGP, SOLVEGP

X = np.random.default_rng(0).uniform(-2, 2, size=(40, 3))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


@contextmanager
def defaults(device=None, dtype=torch.float32):
    """Other defaults of torch's, and no tensors that were made under the usual ones."""
    for packed in (rowwise.packing, special._gauss_hermite, waves._even_points):
        packed.cache_clear()
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


other_defaults = pytest.mark.parametrize("other", [{"device": "meta"}, {"dtype": torch.float16}], ids=["meta", "half"])


class Watch:
    """A callback that asks for a fitted copy after every task."""

    def __init__(self):
        self.scores = []

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context, *, X, y, fitted_estimator):
        self.scores.append(fitted_estimator.score(X, y))


def extras(tiny):
    """What predicts beside the members."""
    return {"base": "gp"} | ({"n_neighbors": 5} if tiny in REGRESSORS else {})


def learnt(tiny):
    """Numbers that fits make, and scores while they train."""
    y, fitted = targets(tiny, Y), tiny(device="cpu", n_estimators=2, max_iter=1, warm_start=True, **extras(tiny))
    callback = Watch()
    if hasattr(fitted, "set_callbacks"):
        fitted.set_callbacks(callback)
    fitted.fit(X, y, X_val=X[:9], y_val=y[:9])
    yield from (fitted.lower_bound_, callback.scores, fitted.predict(X))
    yield fitted.fit(X, y).predict(X)  # goes on
    stream = tiny.of_chunks(device="cpu").partial_fit(X, y, **known(tiny)).partial_fit(X, y)
    yield from (stream.predict(X), pickle.loads(pickle.dumps(stream)).predict(X))


def predicted(tiny, fitted):
    """Numbers that a fitted estimator makes."""
    draws = fitted.sample_functions(3, random_state=0)
    yield from (draws(X), draws.gradient(X[:4]), *(each for layer in fitted.predict_layers(X) for each in layer))
    if tiny not in REGRESSORS:
        yield fitted.predict_proba(X)
        return
    yield from (*fitted.predict(X, return_std=True), fitted.predict(X, return_cov=True)[1])
    yield fitted.predict_gradient(X[:4])
    dist = fitted.predict_dist(X)
    yield from (dist.crps(Y), dist.ppf(0.1), dist.rvs(random_state=0), fitted.predict_interval(X))
    yield fitted.sample_y(X, 2, random_state=0)


@cache
def usual(tiny):
    """A fitted estimator, and all numbers that fits and predictions make with torch's usual defaults."""
    fitted = tiny(**extras(tiny)).fit(X, targets(tiny, Y))
    return fitted, [*learnt(tiny), *predicted(tiny, fitted)]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@every_family
@other_defaults
def test_estimators_do_not_depend_on_them(tiny, other):
    fitted, expected = usual(tiny)
    with defaults(**other):
        assert_same([*learnt(tiny), *predicted(tiny, fitted)], expected)


@pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
@other_defaults
def test_priors_do_not_depend_on_them(tiny, other):
    expected = tiny().sample_y(X, 2, random_state=0)
    with defaults(**other):
        assert_same([tiny().sample_y(X, 2, random_state=0)], [expected])
    with torch.inference_mode():
        assert_same([tiny().sample_y(X, 2, random_state=0)], [expected])


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_estimators_do_not_depend_on_the_mode_of_gradients(tiny, mode):
    fitted, expected = usual(tiny)
    draws = fitted.sample_functions(3, random_state=0)
    with mode():
        draws(X)
        assert_same([*learnt(tiny), *predicted(tiny, fitted)], expected)
    np.testing.assert_array_equal(draws.gradient(X[:4]), fitted.sample_functions(3, random_state=0).gradient(X[:4]))


@any_options
def test_collapsed_fit_does_not_depend_on_them():
    tiny = next(each for each in REGRESSORS if name_of(each) == "SOLVEGPRegressor")
    model = tiny(early_stopping=False, method="collapsed", device="cpu")
    expected = model.fit(X, Y).predict(X)
    with defaults(device="meta"):
        assert_same([model.fit(X, Y).predict(X)], [expected])


SMALL = {name: TINY[name] for name in ("hidden_dims", "n_samples")} | {"n_inducing": 5}
STRUCTURES = [
    *((AVDGP, SMALL | {"rule": rule}) for rule in ("ar1", "ar2", "ar2p")),
    *((AVDGP, SMALL | {"kernel": kernel, "ard": True}) for kernel in PROFILES),
    *((AVDGP, SMALL | {"covariance": covariance}) for covariance in ("full", "full_unwhitened")),
    (AVDGP, SMALL | {"inducing_map": "mlp", "mean": "linear"}),
    (DSDGP, SMALL | {"mean": "zero"}),
    (DSDGP, SMALL | {"propagation": "quadrature", "objective": "predictive"}),
    *((DSDGP, SMALL | {"covariance": each, "n_orthogonal": 4}) for each in ("full", "full_unwhitened")),
    *((SOLVEGP, {"n_inducing": 5, "n_orthogonal": n}) for n in (0, 6)),
]


@pytest.mark.parametrize("likelihood", [lambda: Gaussian(1), Bernoulli, lambda: RobustMax(3)])
@pytest.mark.parametrize(("method", "parameters"), STRUCTURES)
def test_models_do_not_depend_on_them(method, parameters, likelihood):
    rows, y = (torch.from_numpy(each.astype(np.float32)) for each in (X, Y[:, None]))
    y = y if likelihood().n_outputs == 1 else (y > 0).float()

    def value():
        generator = torch.Generator().manual_seed(0)
        model = method(**parameters).build(rows, likelihood(), generator)
        assert {(each.device.type, each.dtype) for each in model.state_dict().values()} == {("cpu", torch.float32)}
        marginals = model(rows, generator)
        bound = model.likelihood.expected_log_prob(y, marginals.mean, marginals.variance).sum() - marginals.kl.sum()
        bound.backward()
        return bound.item()

    expected = value()
    with defaults(device="meta"):
        assert value() == expected
