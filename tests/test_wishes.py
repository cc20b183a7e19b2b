"""Every value that a user gives has an effect, or a warning says why it has none."""

import warnings
from dataclasses import fields
from itertools import combinations, product

import numpy as np
import pytest
from sklearn.base import ClassifierMixin, clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.estimators import _wishes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 2))
Y = np.exp(np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=24))

#: Small models, that are the same for all options of a family.
SMALL = {
    AVDGPRegressor: {"hidden_dims": (2,), "n_inducing": 2, "network_width": 4, "n_estimators": 1},
    DSDGPRegressor: {"hidden_dims": (2,), "n_inducing": 3, "n_estimators": 1},
    SOLVEGPRegressor: {"n_inducing": 3, "n_orthogonal": 2},
    AVDGPClassifier: {"hidden_dims": (2,), "n_inducing": 2, "network_width": 4, "n_estimators": 1},
    DSDGPClassifier: {"hidden_dims": (2,), "n_inducing": 3, "n_estimators": 1},
    SOLVEGPClassifier: {"n_inducing": 3, "n_orthogonal": 2},
}


def make(cls, **options):
    return cls(**({"max_iter": 3, "random_state": 0} | SMALL[cls] | options))


def chunks(model):
    return model.partial_fit(X, Y)


def counts_in_chunks(model):
    return model.partial_fit(X, np.arange(len(X)) % 3)


def held_out(model):
    return model.fit(X[:20], Y[:20], X_val=X[20:], y_val=Y[20:])


def few_rows(model):
    return model.fit(X[:19], Y[:19])


def several_targets(model):
    return model.fit(X, np.column_stack([Y, Y[::-1]]))


def one_column(model):
    return model.fit(X[:, :1], Y)


def all_rows(model):
    return model.fit(X, Y)


SHALLOW = {"hidden_dims": ()}
#: For each line of the table what brings it about: an estimator, its parameters, the one without effect and its value,
#: and how the model learns.
CASES = [
    (DSDGPRegressor, SHALLOW, "layer_posterior", "joint", all_rows, "about hidden layers"),
    (DSDGPRegressor, {"hidden_dims": (1,)}, "share_kernel", False, all_rows, "a single output"),
    (DSDGPRegressor, {"hidden_dims": (1,)}, "ard", False, one_column, "a single input"),
    (AVDGPRegressor, {"kernel": RBF(1.0)}, "ard", True, all_rows, "lengthscales of their own"),
    (DSDGPRegressor, {}, "n_importance", 2, all_rows, "since it counts draws"),
    (DSDGPRegressor, {}, "orthogonal_covariance", "prior", all_rows, "no second set"),
    (SOLVEGPRegressor, {"n_orthogonal": 0}, "orthogonal_inducing", "derivatives", all_rows, "no second set"),
    (AVDGPRegressor, {"device": "cpu"}, "cuda_graphs", True, all_rows, "on the CPU"),
    (SOLVEGPRegressor, {}, "batch_size", 8, all_rows, "in a collapsed fit"),
    (SOLVEGPRegressor, {}, "learning_rate", 0.1, all_rows, "in a collapsed fit"),
    (SOLVEGPRegressor, {"method": "collapsed", "early_stopping": True}, "tol", 1.0, all_rows, "in a collapsed fit"),
    (SOLVEGPRegressor, {"likelihood": "poisson"}, "validation_fraction", 0.3, counts_in_chunks, "in partial_fit"),
    (DSDGPRegressor, {}, "n_neighbors", 5, chunks, "in partial_fit"),
    (DSDGPRegressor, {}, "base", "gp", chunks, "in partial_fit"),
    (SOLVEGPRegressor, {}, "early_stopping", True, chunks, "in partial_fit"),
    (DSDGPRegressor, {}, "early_stopping", False, held_out, "which choose the best epoch"),
    (DSDGPRegressor, {}, "validation_fraction", 0.3, held_out, "which are held out instead"),
    (SOLVEGPRegressor, {"method": "svi"}, "early_stopping", True, few_rows, "with so few rows"),
    (DSDGPRegressor, {}, "n_iter_no_change", 1, few_rows, "with so few rows"),
    (DSDGPRegressor, {"early_stopping": False}, "validation_fraction", 0.3, all_rows, "no rows are held out"),
    (SOLVEGPRegressor, {"method": "svi"}, "tol", 1.0, all_rows, "no rows choose the best epoch"),
    (AVDGPRegressor, {"kernel": RBF(1.0)}, "base", "gp", all_rows, "kernel objects, which describe"),
    (DSDGPRegressor, {"latent_dims": 1}, "base", "gp", all_rows, "predictions may have several modes"),
    (DSDGPRegressor, {"latent_dims": 1}, "n_neighbors", 5, all_rows, "predictions may have several modes"),
    (SOLVEGPRegressor, {"n_latent_outputs": 1}, "n_neighbors", 5, all_rows, "outputs are correlated"),
    (SOLVEGPRegressor, {"likelihood": "gamma"}, "base", "gp", several_targets, "and these targets"),
    (DSDGPRegressor, {"likelihood": "student_t"}, "n_neighbors", 5, all_rows, "its noise is not the same"),
    (AVDGPRegressor, {"early_stopping": False}, "n_neighbors", 5, all_rows, "no rows judge the predictions"),
    (SOLVEGPRegressor, {"covariance": "diag"}, "base", "gp", all_rows, "no rows judge the predictions"),
    (AVDGPRegressor, {}, "base", "gp", few_rows, "with so few rows, of which none judge"),
    (DSDGPRegressor, {"validation_fraction": 0.02}, "n_neighbors", 5, all_rows, "with a single held-out row"),
]


@pytest.mark.parametrize(("cls", "options", "name", "value", "learn", "reason"), CASES)
def test_what_has_no_effect_is_said(cls, options, name, value, learn, reason):
    model = make(cls, **options, **{name: value})
    with pytest.warns(UserWarning, match="has no effect") as found:
        learn(model)
    texts = [str(each.message) for each in found if str(each.message).startswith(f"{name}={value!r} has no effect")]
    assert len(texts) == 1 and reason in texts[0] and texts[0].endswith("leave it out.")
    assert found[-1].filename == __file__  # the user's line


def test_every_line_of_the_table_has_a_case():
    assert all(any(case[-1] in line.reason for case in CASES) for line in _wishes.IDLE)


#: What asks for something else than the default, or than ``SMALL``.
OPTIONS = (
    {"rule": "ar1"},
    {"propagation": "quadrature"},
    {"layer_posterior": "chain"},
    {"objective": "predictive"},
    {"inducing": "derivatives"},
    {"orthogonal_inducing": "derivatives"},
    {"orthogonal_covariance": "prior"},
    {"kernel": RBF(1.0)},
    {"ard": False},
    {"ard": True},
    {"share_kernel": False},
    {"mean": "linear"},
    {"covariance": "diag"},
    {"covariance": "full"},
    {"whiten": False},
    {"inducing_map": "mlp"},
    {"network_depth": 1},
    {"n_samples": 3},
    {"latent_dims": 1},
    {"n_importance": 2},
    {"n_latent_outputs": 1},
    {"likelihood": "student_t"},
    {"likelihood": "gamma"},
    {"target_transform": "log"},
    {"base": "gp"},
    {"n_neighbors": 3},
    {"n_orthogonal": 1},
    {"hidden_dims": ()},
    {"beta": 0.5},
    {"class_weight": {0: 2.0}},
    {"batch_size": 8},
    {"learning_rate": 0.01},
    {"early_stopping": False},
    {"early_stopping": True},
    {"validation_fraction": 0.3},
    {"tol": 100.0, "n_iter_no_change": 1},
    {"normalize_X": False},
    {"normalize_y": False},
)


#: What describes hidden layers, and is silent where there are none.
OF_HIDDEN_LAYERS = {"rule", "propagation", "n_samples", "mean"}


def options_of(cls):
    """Those that a class has, and that are not its defaults."""
    defaults = {each.name: each.default for each in fields(cls)}
    return [each for each in OPTIONS if all(name in defaults and defaults[name] != each[name] for name in each)]


def result_of(cls, options):
    """What a fit comes to, as bytes, and the parameters that it warns of; None if the parameters do not go together."""
    y = (Y > 1).astype(int) if issubclass(cls, ClassifierMixin) else Y
    alone = {} if issubclass(cls, ClassifierMixin) else {"n_neighbors": 0}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            model = make(cls, **({"base": None} | alone | options)).fit(X, y)
        except ValueError:
            return None
        dist = model.predict_proba(X) if issubclass(cls, ClassifierMixin) else model.predict(X, return_std=True)
    texts = [str(each.message) for each in found]
    idle = {text.partition("=")[0] for text in texts if "has no effect" in text}
    return (np.asarray(dist).tobytes(), model.loss_curve_.tobytes(), model.lower_bound_), idle


@pytest.mark.slow
@pytest.mark.parametrize("cls", SMALL)
def test_no_pair_of_options_drops_one_of_them(cls):
    options = options_of(cls)
    alone = [result_of(cls, each) for each in options]
    plain, _ = result_of(cls, {})
    dropped = [
        each for each, (found, idle) in zip(options, alone, strict=True) if found == plain and not idle & set(each)
    ]
    for (one, (of_one, _)), (other, (of_other, _)) in combinations(zip(options, alone, strict=True), 2):
        names = set(one) | set(other)
        if (
            set(one) & set(other)
            or ("hidden_dims" in names and names & OF_HIDDEN_LAYERS)
            or (both := result_of(cls, one | other)) is None
        ):
            continue
        found, idle = both
        dropped += [(one, other)] * (found == of_one and not idle & set(other))
        dropped += [(other, one)] * (found == of_other and not idle & set(one))
    assert not dropped, "\n".join(map(str, dropped))


@pytest.mark.slow
def test_defaults_and_what_asks_for_nothing_are_silent():
    for cls, options in product(SMALL, ({}, {"base": None}, {"early_stopping": False})):
        _, idle = result_of(cls, options)
        assert not idle
    make(SOLVEGPRegressor, base=None, n_neighbors=0, kernel=RBF(1.0), dtype="float64", method="collapsed").fit(X, Y)
    make(DSDGPRegressor, likelihood="student_t", n_neighbors=0, early_stopping=False).partial_fit(X, Y)


@pytest.mark.slow
def test_copies_and_searches_warn_as_the_original_does():
    search = GridSearchCV(make(SOLVEGPRegressor), {"learning_rate": [0.06, 0.1]}, cv=2)  # 0.06 is the default
    with pytest.warns(UserWarning) as found:
        search.fit(X, Y)
    assert {str(each.message).partition(" ")[0] for each in found} == {"learning_rate=0.1"} and len(found) == 2
    assert clone(make(DSDGPRegressor, base="gp")).base == "gp"


def test_later_chunks_do_not_warn_again():
    model = make(SOLVEGPRegressor, tol=1.0)
    with pytest.warns(UserWarning, match=r"^tol=1\.0 has no effect in partial_fit, which has no epochs, .*: use fit"):
        model.partial_fit(X, Y)
    model.partial_fit(X, Y)
