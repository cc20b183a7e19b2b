"""Small data and small models that many tests share."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; torch and what tests start would take all, each
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

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

#: A budget that shows behaviour, not quality.
TINY = {
    "hidden_dims": (2,),
    "n_inducing": 3,
    "n_samples": 4,
    "n_estimators": 1,
    "max_iter": 3,
    "batch_size": 16,
    "learning_rate": 0.05,
    "random_state": 0,
}


@pytest.fixture(scope="session")
def wave():
    """Rows of a smooth function of three features, with noise of standard deviation 0.1."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(120, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(120)
    return X, y


class Tiny:
    """Makes cheap estimators of one class.

    Parameters
    ----------
    estimator : type
    own : dict
        Parameters of the budget that only this family has.
    propagations : list of dict
        Parameters that choose how uncertainty travels between layers; the second one samples.
    length_scales : callable
        From the number of outputs to shapes of ``length_scales_`` for two members and three features.
    """

    def __init__(self, estimator, own, propagations, length_scales):
        self.estimator = estimator
        self.own = own
        self.propagations = propagations
        self.sampling = propagations[1]
        self.length_scales = length_scales

    def __call__(self, **parameters):
        known = self.estimator().get_params()
        budget = {name: value for name, value in TINY.items() if name in known}
        return self.estimator(**(budget | self.own | parameters))

    def with_budget(self, **parameters):
        """The same with other parameters in its budget."""
        return Tiny(self.estimator, self.own | parameters, self.propagations, self.length_scales)


AVDGP = {
    "own": {"network_width": 8},
    "propagations": [{"rule": "ar1"}, {"rule": "ar2"}, {"rule": "ar2p"}],
    "length_scales": lambda n_outputs: [(2, 2, 1), (2, n_outputs, 1)],
}
DSDGP = {
    "own": {"n_inducing": "auto", "n_iter_no_change": 40},
    "propagations": [{"propagation": "quadrature"}, {"propagation": "monte_carlo"}],
    "length_scales": lambda n_outputs: [(2, 1, 3), (2, 1, 2)],
}

SOLVEGP = {
    "own": {"n_inducing": "auto", "early_stopping": True, "n_iter_no_change": 40},
    "propagations": [{}, {}],
    "length_scales": lambda n_outputs: [(2, 1, 3)],
}

DEEP_REGRESSORS = [Tiny(AVDGPRegressor, **AVDGP), Tiny(DSDGPRegressor, **DSDGP)]
DEEP_CLASSIFIERS = [Tiny(AVDGPClassifier, **AVDGP), Tiny(DSDGPClassifier, **DSDGP)]
REGRESSORS = [*DEEP_REGRESSORS, Tiny(SOLVEGPRegressor, **SOLVEGP)]
CLASSIFIERS = [*DEEP_CLASSIFIERS, Tiny(SOLVEGPClassifier, **SOLVEGP)]


def name_of(tiny):
    return tiny.estimator.__name__


@pytest.fixture(params=REGRESSORS, ids=name_of)
def tiny(request):
    """Makes cheap regressors of one family after the other."""
    return request.param


@pytest.fixture(params=DEEP_REGRESSORS, ids=name_of)
def deep(request):
    """The same of families that have hidden layers."""
    return request.param
