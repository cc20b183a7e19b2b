"""Hyperparameters of kernel objects: they reach the evidence of scikit-learn, and a fit says if they do not move."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import generator
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ExpSineSquared

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference import restarts
from skdgp.inference.batches import Batch
from skdgp.kernels import Select
from skdgp.methods import SOLVEGP
from skdgp.methods.kernels import layer_kernel


def make_data(n_rows=150, period=40.0):
    """A noisy wave, with targets of mean 0 and variance 1."""
    rng = np.random.RandomState(0)
    X = np.sort(rng.uniform(0, 7.5 * period, (n_rows, 1)), axis=0)
    y = np.sin(2 * np.pi * X[:, 0] / period) + 0.1 * rng.randn(n_rows)
    return X, (y - y.mean()) / y.std()


def make_rows():
    X, y = make_data(10)
    return Batch(torch.tensor(X), torch.tensor(y)[:, None], torch.ones(10).double())


@pytest.fixture
def problems(monkeypatch):
    """The benchmark that compares the evidence with that of scikit-learn."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module("kernels")


def periodic(period):
    return 1.0 * ExpSineSquared(1.0, period, periodicity_bounds=(10, 100))


@pytest.mark.parametrize(
    "name",
    [
        "season",
        "season with bounds",
        "rational quadratic with bounds",
        "trend, year and week",
        "line and changing season",
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # some bounds are where the optimum is
def test_a_fit_reaches_the_evidence_of_scikit_learn(problems, name):
    X, y, kernel = problems.make_problem(name, seed=0)
    learnt, noise = problems.fit_ours(kernel, X, y, seed=0)
    expected = problems.evidence(*problems.fit_peer(kernel, X, y, seed=0), X, y)
    assert problems.evidence(learnt, noise, X, y) > expected - 0.5
    fixed = [(each.name, learnt.get_params()[each.name]) for each in kernel.hyperparameters if each.fixed]
    assert all(value == kernel.get_params()[name] for name, value in fixed)
    low, high = learnt.bounds.T
    assert (low - 1e-6 <= learnt.theta).all()
    assert (learnt.theta <= high + 1e-6).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_further_searches_find_a_better_period(problems):
    """From 38 the first search ends at twice the period."""
    X, y = make_data()
    one, more = (
        SOLVEGPRegressor(kernel=periodic(38.0), n_restarts_optimizer=n, random_state=0).fit(X, y) for n in (0, 8)
    )
    first, best = (problems.evidence(each.kernel_, float(each.noise_variance_), X, y) for each in (one, more))
    assert best > first + 1.0
    assert more.kernel_.k2.periodicity == pytest.approx(40.0, abs=0.5)
    again = SOLVEGPRegressor(kernel=periodic(38.0), n_restarts_optimizer=8, random_state=0).fit(X, y)
    assert again.kernel_ == more.kernel_


@pytest.mark.parametrize(
    ("failing", "best"), [((), 1), ((1,), 3), ((0,), 1), ((1, 3), 0), ((0, 1, 2), 3), ((1, 2, 3), 0), ((0, 1, 3), 2)]
)
def test_searches_that_fail_leave_the_others(monkeypatch, failing, best):
    """The best of the others counts, whichever failed."""
    starts = []

    def search(kernel, noise, *args):
        starts.append(kernel.state_dict())
        if len(starts) - 1 in failing:
            raise np.linalg.LinAlgError("no factor")
        noise.log_excess.fill_(len(starts) - 1)
        return [2.0, 4.0, 1.0, 3.0][len(starts) - 1]

    monkeypatch.setattr(restarts, "most_likely", search)
    kernel, noise = layer_kernel(SOLVEGP(kernel=periodic(38.0)), 0, 1, 1, 1), Gaussian(1)
    with torch.no_grad():
        restarts.start_from_evidence(kernel, noise, make_rows(), 3, generator())
    assert len(starts) == 4 and noise.log_excess.item() == best
    expected = {name: value.to(torch.float32) for name, value in starts[best].items()}
    torch.testing.assert_close(dict(kernel.state_dict()), expected)
    assert not all(torch.equal(value, starts[best - 1][name]) for name, value in starts[best].items())


def test_searches_that_all_fail(monkeypatch):
    def search(*args):
        raise np.linalg.LinAlgError("no factor")

    monkeypatch.setattr(restarts, "most_likely", search)
    kernel = layer_kernel(SOLVEGP(kernel=periodic(38.0)), 0, 1, 1, 1)
    with pytest.raises(np.linalg.LinAlgError, match="no factor"):
        restarts.start_from_evidence(kernel, Gaussian(1), make_rows(), 2, generator())


@pytest.mark.parametrize("options", [{}, {"kernel": RBF(), "likelihood": "student_t"}])
def test_searches_need_bounds_and_gaussian_noise(options):
    X, y = make_data(30)
    with pytest.raises(ValueError, match="n_restarts_optimizer=3 needs a kernel object and Gaussian noise"):
        SOLVEGPRegressor(n_restarts_optimizer=3, max_iter=1, **options).fit(X, y)


@pytest.mark.parametrize("bounds", [(0.1, np.inf), (0.0, 1.0)])
def test_bounds_that_are_none(bounds):
    X, y = make_data(30)
    with pytest.raises(ValueError, match=r"kernel has RBF with length_scale_bounds=.* give positive and finite bounds"):
        SOLVEGPRegressor(kernel=RBF(1.0, bounds)).fit(X, y)


def test_warns_of_bounds():
    X, y = make_data(40)
    with pytest.warns(ConvergenceWarning, match="length_scale of the kernel has ended at its bound of 1: widen"):
        SOLVEGPRegressor(kernel=RBF(0.5, (0.1, 1.0))).fit(X, y)


def test_warns_if_nothing_is_learnt():
    """A learning rate that is too small moves nothing."""
    X, y = make_data(40)
    model = DSDGPRegressor((1,), kernel=[RBF(20.0), "rbf"], learning_rate=1e-12, max_iter=1, n_estimators=1)
    with pytest.warns(ConvergenceWarning, match=r"The kernel RBF\(length_scale=20\) has kept its initial"):
        model.fit(X, y)


@pytest.mark.parametrize("Regressor", [AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor])
@pytest.mark.parametrize("kernel", [ExpSineSquared(), RBF() + 2.0 * Select(ExpSineSquared(), [0, 1]) ** 2])
def test_a_periodic_kernel_has_one_input(Regressor, kernel):
    X = np.random.RandomState(0).randn(20, 2)
    with pytest.raises(ValueError, match="kernel has ExpSineSquared of 2 inputs, which is no covariance: with Select"):
        Regressor(kernel=kernel).fit(X, X[:, 0])


def test_training_that_fails_because_of_the_units():
    X, y = make_data(40)
    with pytest.raises(ValueError, match=r"targets have a root mean square of 1e\+30, and the variances of kernels"):
        DSDGPRegressor(n_estimators=1, normalize_y=False, base=None, max_iter=2).fit(X, 1e30 * y)
