"""Fixtures that many tests share."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; torch and what tests start would take all, each
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
import pytest
from helpers import DEEP_REGRESSORS, REGRESSORS, name_of


@pytest.fixture(scope="session")
def wave():
    """Rows of a smooth function of three features, with noise of standard deviation 0.1."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(120, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(120)
    return X, y


@pytest.fixture(params=REGRESSORS, ids=name_of)
def tiny(request):
    """Makes cheap regressors of one family after the other."""
    return request.param


@pytest.fixture(params=DEEP_REGRESSORS, ids=name_of)
def deep(request):
    """The same of families that have hidden layers."""
    return request.param
