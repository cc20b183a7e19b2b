"""Small data and small models that many tests share."""

import numpy as np
import pytest

#: A budget that shows behaviour, not quality.
TINY = {
    "hidden_dims": (2,),
    "n_inducing": 3,
    "n_samples": 4,
    "network_width": 8,
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
