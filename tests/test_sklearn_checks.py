"""scikit-learn's own checks, for every rule and objective."""

import os
import subprocess
import sys
import textwrap

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)

#: Enough training for the checks that ask for a good score, and no more.
BUDGET = {"n_samples": 2, "n_estimators": 1, "max_iter": 12, "batch_size": 32, "learning_rate": 0.05}

#: Amortised models are small as well.
AMORTISED = BUDGET | {"n_inducing": 2, "network_width": 16}

#: Shallow models draw no samples.
SHALLOW = {name: value for name, value in BUDGET.items() if name != "n_samples"}

#: The same for classes. The default of ``beta`` would outweigh a few hundred labels, which say less than numbers.
AMORTISED_CLASSIFIER = AMORTISED | {"beta": 1.0}

ESTIMATORS = [
    AVDGPRegressor((2,), **AMORTISED),
    AVDGPRegressor((2,), rule="ar1", **AMORTISED),
    AVDGPRegressor((2,), rule="ar2", **AMORTISED),
    AVDGPRegressor((2,), objective="predictive", beta=1.0, **AMORTISED),
    AVDGPRegressor((), inducing_map="mlp", covariance="full", **AMORTISED),
    AVDGPClassifier((2,), **AMORTISED_CLASSIFIER),
    AVDGPClassifier((2,), rule="ar1", **AMORTISED_CLASSIFIER),
    AVDGPClassifier((2,), objective="predictive", **AMORTISED_CLASSIFIER),
    DSDGPRegressor((2,), **BUDGET),
    DSDGPRegressor((), **BUDGET),
    DSDGPRegressor((2,), propagation="quadrature", objective="predictive", **BUDGET),
    DSDGPClassifier((2,), **BUDGET),
    DSDGPClassifier((2,), propagation="quadrature", **BUDGET),
    SOLVEGPRegressor(max_iter=20),
    SOLVEGPRegressor(method="svi", **SHALLOW),
    SOLVEGPClassifier(**SHALLOW),
]

#: Weights scale the terms of a row, but minibatches, held-out rows and initial values depend on the
#: number of rows; only in the limit of full batches would repeated rows and weights agree.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "minibatches and held-out rows depend on the number of rows",
}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_array_api_check_with_dispatch():
    """The check that scikit-learn skips unless SciPy was imported with this variable set."""
    code = """
        from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
        from test_sklearn_checks import ESTIMATORS, EXPECTED_FAILURES
        results = check_estimator(ESTIMATORS[0], expected_failed_checks=EXPECTED_FAILURES, on_skip=None)
        skipped = [result["check_name"] for result in results if result["status"] == "skipped"]
        assert not skipped, skipped
        print(len(results), "checks")
        for estimator, check in estimator_checks_generator(ESTIMATORS[-1]):
            if "array_api" in str(check):
                check(estimator)
                print("and of a classifier")
    """
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "checks" in done.stdout and "and of a classifier" in done.stdout
