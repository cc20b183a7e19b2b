"""scikit-learn's own checks, for every rule and objective."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from helpers import any_options
from sklearn.preprocessing import PowerTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.tables.targets import Numbers

#: Enough training for the checks that ask for a good score, and no more.
BUDGET = {"n_samples": 2, "n_estimators": 1, "max_iter": 12, "batch_size": 32, "learning_rate": 0.05}

#: What every estimator would compute beside its own method, and take longer for. Some have it, too.
ALONE = {"base": None, "n_neighbors": 0}

#: Amortised models are small as well.
AMORTISED = BUDGET | {"n_inducing": 2, "network_width": 16}

#: Shallow models draw no samples.
SHALLOW = {name: value for name, value in BUDGET.items() if name != "n_samples"}

#: The same for classes. The default of ``beta`` would outweigh a few hundred labels, which say less than numbers.
AMORTISED_CLASSIFIER = AMORTISED | {"beta": 1.0}

#: With these a fit to weighted rows is one to repeated rows, up to the rounding of sums that add in another order.
EXACT = {"early_stopping": False, "dtype": "float64"}


class Counts(Numbers):
    """Counts that are made of any numbers."""

    def encode(self, y):
        return np.rint(np.abs(super().encode(y)))


class CountRegressor(SOLVEGPRegressor):
    """Takes any targets for counts, since the checks know no others."""

    def _kind_of_targets(self):
        return Counts(self.target_transform)


#: One of each method.
FIRST = [
    AVDGPClassifier((2,), **AMORTISED_CLASSIFIER, **EXACT),
    DSDGPRegressor((2,), **BUDGET, **ALONE),
    SOLVEGPClassifier(**SHALLOW, **EXACT),
]

#: The other three classes.
SECOND = [
    AVDGPRegressor((2,), **AMORTISED, **ALONE),
    DSDGPClassifier((2,), base=None, **BUDGET),
    SOLVEGPRegressor(max_iter=20, **ALONE),
]

#: What else changes how a fit goes. What only changes what a layer computes is fitted by other tests.
OTHERS = [
    SOLVEGPRegressor(max_iter=20),
    DSDGPRegressor((2,), **BUDGET),
    AVDGPRegressor((2,), rule="ar1", mean="identity", **AMORTISED, **ALONE),
    AVDGPRegressor((2,), objective="predictive", beta=1.0, **AMORTISED, **EXACT, **ALONE),
    AVDGPRegressor((), inducing_map="mlp", covariance="full", **AMORTISED, **EXACT, **ALONE),
    AVDGPClassifier((2,), rule="ar1", base=None, **AMORTISED_CLASSIFIER),
    DSDGPRegressor((), **BUDGET, **EXACT),
    DSDGPRegressor((2,), propagation="quadrature", objective="predictive", **BUDGET, **ALONE),
    DSDGPRegressor((2,), latent_dims=1, n_importance=2, **BUDGET),
    SOLVEGPRegressor(method="svi", **SHALLOW, **EXACT, **ALONE),  # with a base, rows are held out
    AVDGPRegressor((2,), likelihood="student_t", base=None, **AMORTISED),
    DSDGPRegressor((), likelihood="heteroskedastic", **BUDGET, **ALONE),
    SOLVEGPRegressor(likelihood="gamma", base=None, **SHALLOW, **EXACT),
    SOLVEGPRegressor(target_transform=PowerTransformer(), max_iter=20, **ALONE),
    DSDGPRegressor((2,), inducing="derivatives", **BUDGET, **ALONE),
    SOLVEGPRegressor(n_latent_outputs=1, **SHALLOW, **EXACT),
    CountRegressor(likelihood="negative_binomial", base=None, **SHALLOW, **EXACT),
    CountRegressor(likelihood="poisson", **SHALLOW),
]

#: Checks of what a fit comes to, and of what it leaves in the estimator. All others are of tables and of the face, with
#: which every class deals before it looks at these options.
OF_FITS = {
    "check_regressors_train",
    "check_classifiers_train",
    "check_regressor_multioutput",
    "check_regressors_int",
    "check_sample_weight_equivalence_on_dense_data",
    "check_estimators_overwrite_params",
    "check_estimators_partial_fit_n_features",
    "check_estimators_pickle",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_fit2d_1sample",
    "check_fit2d_1feature",
    "check_fit_idempotent",
    "check_dict_unchanged",
    "check_non_transformer_estimators_n_iter",
}


def samples_of_rows(estimator):
    """Whether a layer's inputs are random, drawn for each row."""
    rule = getattr(estimator, "rule", getattr(estimator, "propagation", None))
    return rule in ("ar1", "ar2", "monte_carlo") and len(estimator.hidden_dims) > 0


#: Why a row of weight 2 is not that row twice, where it is not.
REASONS = {
    "rows are held out, and a row is held out as a whole": (
        lambda estimator: (
            estimator.early_stopping
            or (getattr(estimator, "likelihood", "gaussian") != "gaussian" and estimator.base is not None)
        )
    ),
    "a transformer knows nothing of weights": (
        lambda estimator: getattr(estimator, "target_transform", None) is not None
    ),
    "random samples are drawn for rows, and a row has its own whatever it weighs": samples_of_rows,
    "initial values of hidden layers are computed from rows, whatever these weigh": (
        lambda estimator: (
            len(getattr(estimator, "hidden_dims", ())) > 0 and isinstance(estimator, DSDGPClassifier | DSDGPRegressor)
        )
    ),
}


def expected_failures(estimator):
    """The check of weights, with the reason, where there is one."""
    reasons = [reason for reason, holds in REASONS.items() if holds(estimator)]
    found = {"check_sample_weight_equivalence_on_dense_data": reasons[0]} if reasons else {}
    if getattr(estimator, "likelihood", None) == "gamma":
        found["check_regressor_multioutput"] = "its targets are negative, although tags say that they must not be"
    return found


@parametrize_with_checks(FIRST, expected_failed_checks=expected_failures)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@any_options
def test_scikit_learn_checks(estimator, check):
    if check.func.__name__ == "check_class_weight_classifiers":  # it asks for 1000 passes, which this cuts short
        estimator.set_params(early_stopping=True, n_iter_no_change=5)
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(SECOND, expected_failed_checks=expected_failures)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@any_options
def test_scikit_learn_checks_of_the_other_classes(estimator, check):
    test_scikit_learn_checks(estimator, check)


def parametrize_with_checks_of_fits(estimators):
    """Parametrise a test by those of ``OF_FITS``, of several variants the last, which asks for most."""
    every = parametrize_with_checks(estimators, expected_failed_checks=expected_failures)
    names, pairs = every.args
    kept = {}
    for pair in pairs:
        estimator, check = getattr(pair, "values", pair)  # the values of one that is expected to fail
        if check.func.__name__ in OF_FITS:
            kept[id(estimator), check.func] = pair
    assert {check.__name__ for _, check in kept} == OF_FITS
    return pytest.mark.parametrize(names, list(kept.values()), **every.kwargs)


@pytest.mark.slow
@parametrize_with_checks_of_fits(OTHERS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@any_options
def test_scikit_learn_checks_with_other_options(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_array_api_check_with_dispatch():
    """The check that scikit-learn skips unless SciPy was imported with this variable set."""
    code = """
        from sklearn.utils.estimator_checks import estimator_checks_generator
        from test_sklearn_checks import FIRST
        for first in FIRST[:2]:
            for estimator, check in estimator_checks_generator(first):
                if "array_api" in str(check):
                    check(estimator)
                    print(type(estimator).__name__)
    """
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["AVDGPClassifier", "DSDGPRegressor"]
