"""Threads for the size of the work, and everything as before afterwards."""

import threading

import joblib
import numpy as np
import pytest
import torch
from helpers import FAMILIES, every_family, generator, targets
from sklearn.base import clone
from threadpoolctl import threadpool_info

from skdgp import SOLVEGPRegressor
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference import collapsed, steps, threads
from skdgp.inference.threads import PER_THREAD, threads_for, worth
from skdgp.methods import AVDGP, DSDGP, SOLVEGP

#: What the user allows in these tests.
ALLOWED = 3


@pytest.fixture(autouse=True)
def allowed():
    """A number that is not what calls choose, on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(ALLOWED)
    yield
    torch.set_num_threads(before)


def in_new_thread(function):
    """What a function returns in a thread that has not used torch before."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def of_libraries():
    """Threads of every library but torch's own, which its users set by torch."""
    return {each["filepath"]: each["num_threads"] for each in threadpool_info() if "torch" not in each["filepath"]}


def test_small_work_has_one_thread_and_everything_is_restored():
    before = of_libraries()
    with threads_for():
        assert torch.get_num_threads() == 1
        assert set(of_libraries().values()) == {1}
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == ALLOWED
    assert of_libraries() == before


def test_everything_is_restored_after_an_error():
    before = of_libraries()
    with pytest.raises(ZeroDivisionError), threads_for(), threads_for(2 * PER_THREAD):
        assert torch.get_num_threads() == 2
        raise ZeroDivisionError
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == ALLOWED
    assert of_libraries() == before
    with threads_for(2 * PER_THREAD):  # chooses anew
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("share", "n_threads"), [(0, 1), (0.5, 1), (1.9, 1), (2, 2), (2.9, 2), (3, ALLOWED), (1e6, ALLOWED)]
)
def test_large_work_has_no_more_threads_than_the_user_allows(share, n_threads):
    with threads_for(share * PER_THREAD):
        assert torch.get_num_threads() == n_threads
    torch.set_num_threads(1)
    with threads_for(share * PER_THREAD):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1


def test_calls_inside_of_calls_choose_for_themselves():
    with threads_for():
        with threads_for(2 * PER_THREAD):
            with threads_for():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
            assert in_new_thread(torch.get_num_threads) == ALLOWED
        assert torch.get_num_threads() == 1


def test_calls_in_several_threads_do_not_disturb_one_another():
    before, numbers, inside = of_libraries(), [], threading.Barrier(3)

    def call():
        with threads_for():
            inside.wait()  # all are in
            numbers.append(torch.get_num_threads())
            inside.wait()  # and leave
        numbers.append(torch.get_num_threads())

    others = [threading.Thread(target=call) for _ in range(2)]
    for each in others:
        each.start()
    inside.wait()
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == ALLOWED
    inside.wait()
    for each in others:
        each.join()
    assert sorted(numbers) == [1, 1, ALLOWED, ALLOWED]
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == ALLOWED
    assert of_libraries() == before


def test_blas_comes_back_with_the_last_of_overlapping_calls():
    blas = lambda: [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]  # noqa: E731
    before, begun, end = blas(), threading.Event(), threading.Event()

    def call():
        with threads_for():
            begun.set()
            end.wait()

    other = threading.Thread(target=call)
    with threads_for():
        other.start()
        begun.wait()
    assert set(blas()) == {1}  # the first has ended, the second has not
    end.set()
    other.join()
    assert blas() == before


def standard_normal(n_rows, n_features=8):
    return torch.randn(n_rows, n_features, generator=generator())


STEPS = [
    (AVDGP(n_samples=32), 200, 1),
    (AVDGP(n_samples=32), 500, 2),
    (DSDGP(n_inducing=128), 250, 1),
    (DSDGP(n_inducing=256), 100, 1),
    (DSDGP(n_inducing=256), 500, 4),
    (DSDGP(n_inducing=128, propagation="quadrature", n_samples=32), 250, 16),
    (SOLVEGP(n_inducing=64, n_orthogonal=64), 250, 1),
    (SOLVEGP(n_inducing=128, n_orthogonal=128), 250, 2),
    (SOLVEGP(n_inducing=256, n_orthogonal=256), 16, 5),
]


@pytest.mark.parametrize(("method", "batch_size", "n_threads"), STEPS)
def test_steps_have_the_threads_of_the_table(method, batch_size, n_threads):
    """Those of :mod:`skdgp.inference.threads`, and some beside them."""
    points = {AVDGP: lambda: 10, DSDGP: lambda: method.n_inducing, SOLVEGP: lambda: sum(method.n_points().values())}
    rows = standard_normal(points[type(method)]())  # as many as there are points: nothing is clustered
    model = method.build(rows, Gaussian(1), generator())
    assert worth(model.products(batch_size, mixture=False)) == n_threads


X = np.random.default_rng(0).uniform(-2, 2, size=(40, 3))
Y = np.sin(2 * X[:, 0])


@every_family
def test_small_fits_and_predictions_have_one_thread(tiny, monkeypatch):
    seen, step = [], steps.Stepper.step

    def spy(*arguments):
        seen.append(torch.get_num_threads())
        return step(*arguments)

    monkeypatch.setattr(steps.Stepper, "step", spy)
    model = tiny().fit(X, targets(tiny, Y)).partial_fit(X, targets(tiny, Y))
    model.module_[0].register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    n_before = len(seen)
    methods = {"predict", "predict_dist", "predict_quantiles", "predict_interval", "predict_proba", "predict_log_proba"}
    for name in methods & set(dir(model)):
        getattr(model, name)(*([X, 0.5] if name in ("predict_quantiles", "predict_interval") else [X]))
    assert len(seen) > n_before and set(seen) == {1}
    draws = model.sample_functions()
    for function in (model.predict_layers, draws, draws.gradient, getattr(model, "predict_gradient", draws)):
        function(X)
    assert torch.get_num_threads() == ALLOWED


@pytest.mark.slow
def test_collapsed_fits_have_threads_for_their_rows(monkeypatch):
    seen, bound = [], collapsed.collapsed

    def spy(*arguments):
        seen.append(torch.get_num_threads())
        return bound(*arguments)

    monkeypatch.setattr(collapsed, "collapsed", spy)
    model = SOLVEGPRegressor(5, 5, max_iter=1, random_state=0).fit(X, Y)
    assert set(seen) == {1}
    monkeypatch.setattr(threads, "PER_THREAD", 1000)
    model.fit(X, Y)
    assert set(seen) == {1, ALLOWED} and torch.get_num_threads() == ALLOWED


def test_fits_in_several_threads_are_those_that_they_are_alone():
    models = [FAMILIES[i](random_state=seed) for i in (0, 1) for seed in (0, 1)]
    alone = [clone(model).fit(X, Y).predict(X) for model in models]
    together = joblib.Parallel(2, backend="threading")(joblib.delayed(model.fit)(X, Y) for model in models)
    for model, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(model.predict(X), expected)
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == ALLOWED


def test_failed_fits_and_predictions_leave_threads_as_they_were():
    model = FAMILIES[0]().fit(X, Y)
    for call in (lambda: model.fit(X[:, :2], Y[1:]), lambda: model.predict(X[:, :2])):
        with pytest.raises(ValueError):
            call()
        assert torch.get_num_threads() == ALLOWED
    with threads_for():
        assert torch.get_num_threads() == 1
