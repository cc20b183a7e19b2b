"""Every value that a user gives has an effect, or a warning says why it has none."""

import inspect
import re
import warnings
from dataclasses import fields
from functools import cache
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from sklearn.base import ClassifierMixin, clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer
from sklearn.utils._param_validation import make_constraint

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.estimators import _refusals, _wishes
from skdgp.estimators._parameters import method_of
from skdgp.kernels import Convolutional
from skdgp.methods.options import REMOVED

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
    with pytest.warns(UserWarning, match="No rows have judged the members"):
        return model.fit(X[:19], Y[:19])


def several_targets(model):
    return model.fit(X, np.column_stack([Y, Y[::-1]]))


def one_column(model):
    return model.fit(X[:, :1], Y)


def all_rows(model):
    return model.fit(X, Y)


def intervals(model):
    bounds = np.rec.fromarrays([Y, Y + (np.arange(len(Y)) % 3 == 0)], names="lower, upper")
    return model.fit(X, bounds)


def given_noise(model):
    return model.fit(X, Y, noise_variance=0.1)


SHALLOW = {"hidden_dims": ()}
#: For each line of the table what brings it about: an estimator, its parameters, the one without effect and its value,
#: and how the model learns.
CASES = [
    (DSDGPRegressor, SHALLOW, "layer_posterior", "joint", all_rows, "about hidden layers"),
    (DSDGPRegressor, {"hidden_dims": (1,)}, "ard", False, one_column, "a single input"),
    (AVDGPRegressor, {"kernel": RBF(1.0)}, "ard", True, all_rows, "lengthscales of their own"),
    (DSDGPRegressor, {}, "n_importance", 2, all_rows, "since it counts draws"),
    (DSDGPRegressor, {}, "covariance", "odvgp", all_rows, 'beyond that of "full"'),
    (AVDGPRegressor, {"device": "cpu"}, "cuda_graphs", True, all_rows, "on the CPU"),
    (SOLVEGPRegressor, {"n_orthogonal": 0}, "inducing", "points+derivatives", all_rows, "since there is no second set"),
    (SOLVEGPRegressor, {}, "batch_size", 8, all_rows, "in a collapsed fit"),
    (SOLVEGPRegressor, {}, "learning_rate", 0.1, all_rows, "in a collapsed fit"),
    (
        SOLVEGPRegressor,
        {"method": "collapsed", "early_stopping": True},
        "n_iter_no_change",
        2,
        all_rows,
        "in a collapsed fit",
    ),
    (SOLVEGPRegressor, {"likelihood": "poisson"}, "validation_fraction", 0.3, counts_in_chunks, "in partial_fit"),
    (DSDGPRegressor, {}, "n_neighbors", 5, chunks, "in partial_fit"),
    (AVDGPRegressor, {}, "max_time", 1.0, chunks, "no limit of time and no CUDA graphs"),
    (SOLVEGPRegressor, {"likelihood": "poisson"}, "base", "gp", counts_in_chunks, "in partial_fit with likelihood="),
    (SOLVEGPRegressor, {}, "early_stopping", True, chunks, "in partial_fit"),
    (DSDGPRegressor, {}, "early_stopping", False, held_out, "which choose the best epoch"),
    (DSDGPRegressor, {}, "validation_fraction", 0.3, held_out, "which are held out instead"),
    (DSDGPRegressor, {}, "n_iter_no_change", 1, few_rows, "with so few rows"),
    (DSDGPRegressor, {"early_stopping": False}, "validation_fraction", 0.3, all_rows, "no rows are held out"),
    (SOLVEGPRegressor, {"method": "svi"}, "n_iter_no_change", 2, all_rows, "no rows choose the best epoch"),
    (AVDGPRegressor, {"kernel": RBF(1.0)}, "base", "gp", all_rows, "kernel objects, which describe"),
    (DSDGPRegressor, {"latent_dims": 1}, "base", "gp", all_rows, "predictions may have several modes"),
    (DSDGPRegressor, {"latent_dims": 1}, "n_neighbors", 5, all_rows, "predictions may have several modes"),
    (SOLVEGPRegressor, {"n_latent_outputs": 1}, "n_neighbors", 5, all_rows, "outputs are correlated"),
    (SOLVEGPRegressor, {"likelihood": "gamma"}, "base", "gp", several_targets, "and these targets"),
    (SOLVEGPRegressor, {}, "n_neighbors", 5, given_noise, "with a noise_variance, which leaves neighbours no noise"),
    (SOLVEGPRegressor, {}, "n_neighbors", 5, intervals, "with intervals among the targets, which have no residuals"),
    (DSDGPRegressor, {"likelihood": "student_t"}, "n_neighbors", 5, all_rows, "its noise is not the same"),
    (AVDGPRegressor, {"early_stopping": False}, "n_neighbors", 5, all_rows, "no rows judge the predictions"),
    (SOLVEGPRegressor, {"covariance": "diag"}, "base", "gp", all_rows, "no rows judge the predictions"),
    (AVDGPRegressor, {}, "n_neighbors", 5, few_rows, "with so few rows, of which none judge"),
    (DSDGPRegressor, {"validation_fraction": 0.02}, "n_neighbors", 5, all_rows, "with a single held-out row"),
]


@pytest.mark.parametrize(("cls", "options", "name", "value", "learn", "reason"), CASES)
def test_what_has_no_effect_is_said(cls, options, name, value, learn, reason):
    model = make(cls, **options, **{name: value})
    with pytest.warns(UserWarning, match="has no effect") as found:
        learn(model)
    texts = [str(each.message) for each in found if str(each.message).startswith(f"{name}={value!r} has no effect")]
    assert len(texts) == 1 and reason in texts[0] and texts[0].endswith(("leave it out.", 'set covariance="full".'))
    assert found[-1].filename == __file__  # the user's line


def test_every_line_of_the_table_has_a_case():
    assert all(any(case[-1] in line.reason for case in CASES) for line in _wishes.IDLE)


#: For each refusal an estimator, its parameters, how it learns, and the message.
IMAGE, SUM = Convolutional((1, 2), (1, 1)), Convolutional((1, 2), (1, 1)) + RBF(1.0)
REFUSED = [
    (DSDGPRegressor, {"layer_posterior": "joint", "propagation": "quadrature"}, "needs propagation='monte_carlo'"),
    (DSDGPRegressor, {"layer_posterior": "chain", "n_orthogonal": 2}, "needs n_orthogonal=0, got 2"),
    (DSDGPRegressor, {"layer_posterior": "chain", "n_importance": 2}, "needs n_importance=1, got 2"),
    (DSDGPRegressor, {"layer_posterior": "chain", "n_latent_outputs": 1}, "needs n_latent_outputs=None, got 1"),
    (
        DSDGPRegressor,
        {"layer_posterior": "joint", "covariance": "full_unwhitened"},
        "needs covariance='diag' or 'full', got",
    ),
    (DSDGPRegressor, {"layer_posterior": "locations", "inducing": "eigen"}, "needs inducing='points', got 'eigen'"),
    (DSDGPRegressor, {"layer_posterior": "locations", "n_inducing": (3, 4)}, "needs the same inducing points"),
    (
        DSDGPRegressor,
        {"layer_posterior": "locations", "kernel": [IMAGE, "rbf"]},
        "'locations' takes inducing points for",
    ),
    (DSDGPRegressor, {"covariance": "diag_unwhitened", "inducing": "eigen"}, "needs inducing='points', got 'eigen'"),
    (SOLVEGPRegressor, {"covariance": "full_unwhitened", "inducing": "points+eigen"}, "got 'points+eigen'"),
    (
        SOLVEGPRegressor,
        {"covariance": "full_unwhitened", "kernel": IMAGE},
        "'full_unwhitened' takes inducing points for",
    ),
    (AVDGPRegressor, {"kernel": [IMAGE, "rbf"]}, "whose inducing points are patches, but those of AVDGP are"),
    (
        SOLVEGPRegressor,
        {"kernel": SUM},
        "n_orthogonal=2 does not go with a Convolutional in a sum, which has a single",
    ),
    (
        DSDGPRegressor,
        {"kernel": [IMAGE, "rbf"], "latent_dims": 1},
        "latent_dims=1 does not go with a Convolutional in the first layer, since latent variables are no pixels",
    ),
    (DSDGPRegressor, {"hidden_dims": (), "kernel": SUM, "latent_dims": 2}, "latent_dims=2 does not go with a Convol"),
    (SOLVEGPRegressor, {"n_latent_outputs": 1, "likelihood": "gamma"}, "needs likelihood='gaussian', got 'gamma'"),
    (AVDGPRegressor, {"target_transform": "log", "likelihood": "gamma"}, "does not go with likelihood='gamma', since"),
    (
        DSDGPRegressor,
        {"target_transform": "log", "likelihood": "lognormal"},
        "does not go with likelihood='lognormal', which takes logarithms",
    ),
    (
        SOLVEGPRegressor,
        {"trend": "auto", "likelihood": "poisson"},
        "does not go with likelihood='poisson', since a trend",
    ),
    (AVDGPRegressor, {"trend": "auto", "warm_start": True}, "a fit cannot go on with warm_start=True"),
    (SOLVEGPRegressor, {"n_restarts_optimizer": 2}, "n_restarts_optimizer=2 needs a kernel object and Gaussian noise"),
    (SOLVEGPRegressor, {"method": "collapsed", "covariance": "odvgp"}, "needs covariance='full', got 'odvgp'"),
    (SOLVEGPRegressor, {"method": "collapsed", "objective": "predictive"}, "needs objective='auto' or 'elbo', got"),
    (
        SOLVEGPRegressor,
        {"method": "collapsed", "likelihood": "student_t"},
        "needs likelihood='gaussian' or 'lognormal', got 'student_t'",
    ),
    (SOLVEGPRegressor, {"method": "collapsed", "n_latent_outputs": 1}, "needs n_latent_outputs=None, got 1"),
    (SOLVEGPRegressor, {"method": "collapsed", "beta": 0.5}, "needs beta='auto' or 1.0, got 0.5"),
]


@pytest.mark.parametrize(("cls", "options", "message"), REFUSED)
def test_what_does_not_go_together_is_refused_before_the_table_is_read(cls, options, message):
    for learn in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=re.escape(message)) as found:
            getattr(make(cls, **options), learn)("no table", None)
        assert str(found.value).endswith(".") and "{" not in str(found.value)


def test_chunks_are_refused_by_a_collapsed_fit():
    with pytest.raises(ValueError, match="method='collapsed' needs all rows at once, got a chunk of them: set method="):
        chunks(make(SOLVEGPRegressor, method="collapsed"))


def test_every_refusal_has_a_case():
    messages = []
    of_chunks = [(SOLVEGPRegressor, options, None) for options in ({"method": "collapsed"}, {"trend": "auto"})]
    cases = [(case, False) for case in (*REFUSED, *of_chunks)] + [(case, True) for case in REFUSED_WITH_INTERVALS]
    for (cls, options, _), censored in cases:
        model = make(cls, **options)
        with pytest.raises(ValueError) as found:
            _refusals.check(_wishes.Wishes(model, method_of(model), by_chunks=not censored, censored=censored))
        messages.append(str(found.value))
    for line in _refusals.REFUSED:
        reason = re.sub(r"\\{.*?\\}", ".*", re.escape(line.reason))
        assert any(re.fullmatch(f"{line.name}=.* {reason}: {re.escape(line.cure)}\\.", each) for each in messages), line


#: Targets that are intervals, and what does not go with them.
INTERVALS = pd.DataFrame({"lower": Y, "upper": np.where(np.arange(len(Y)) % 2, Y, np.inf)})
REFUSED_WITH_INTERVALS = [
    (AVDGPRegressor, {"likelihood": "student_t"}, "are for Gaussian noise"),
    (DSDGPRegressor, {"target_transform": PowerTransformer()}, "of which only logarithms are taken"),
    (AVDGPRegressor, {"trend": "auto"}, "of which a trend would need exact values"),
    (SOLVEGPRegressor, {"n_latent_outputs": 1}, "which are of a single output"),
    (DSDGPRegressor, {"latent_dims": 1}, "from which it would have to be inferred"),
    (SOLVEGPRegressor, {"n_restarts_optimizer": 1, "kernel": RBF(1.0)}, "since there is no exact evidence"),
    (SOLVEGPRegressor, {"method": "collapsed"}, "since there is no closed form"),
]


@pytest.mark.parametrize(("cls", "options", "message"), REFUSED_WITH_INTERVALS)
def test_what_does_not_go_with_intervals_is_refused(cls, options, message):
    for learn in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=f"does not go with intervals among the targets, .*{message}"):
            getattr(make(cls, **options), learn)(X, INTERVALS)


OLD = {
    "whiten": 'write covariance="diag_unwhitened" or "full_unwhitened" for whiten=False',
    "orthogonal_covariance": 'write covariance="odvgp"',
    "orthogonal_inducing": 'inducing="points+derivatives"',
    "network_depth": "network_width a number for each hidden layer",
    "share_kernel": "the outputs of a layer of DSDGP share a kernel",
    "tol": "every better score on held-out rows counts",
}


@pytest.mark.parametrize("name", REMOVED)
def test_removed_parameters_say_what_to_do(name):
    message = f"^{name} is no parameter of DSDGPRegressor any more: leave it out, .*{re.escape(OLD[name])}"
    with pytest.raises(TypeError, match=message):
        DSDGPRegressor(**{name: 1})
    with pytest.raises(ValueError, match=message):
        make_pipeline(DSDGPRegressor()).set_params(**{f"dsdgpregressor__{name}": 1})
    assert all(name not in inspect.signature(cls).parameters and name not in cls().get_params() for cls in SMALL)


#: What asks for something else than the default, or than ``SMALL``.
OPTIONS = (
    {"rule": "ar1"},
    {"propagation": "quadrature"},
    {"layer_posterior": "chain"},
    {"objective": "predictive"},
    {"inducing": "derivatives"},
    {"inducing": "points+derivatives"},
    {"covariance": "odvgp"},
    {"kernel": RBF(1.0)},
    {"ard": False},
    {"ard": True},
    {"mean": "linear"},
    {"covariance": "diag"},
    {"covariance": "full"},
    {"covariance": "diag_unwhitened"},
    {"covariance": "full_unwhitened"},
    {"inducing_map": "mlp"},
    {"network_width": (4,)},
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
    {"normalize_X": False},
    {"normalize_y": False},
)


#: What describes hidden layers, and is silent where there are none.
OF_HIDDEN_LAYERS = {"rule", "propagation", "n_samples", "mean"}


@cache
def options_of(cls):
    """Those that a class has, and that are not its defaults."""
    defaults = {each.name: each.default for each in fields(cls)}
    return [
        each
        for each in OPTIONS
        if all(name in defaults and defaults[name] != each[name] and is_allowed(cls, name, each[name]) for name in each)
    ]


def is_allowed(cls, name, value):
    """Whether a parameter of a class takes such a value."""
    return any(make_constraint(each).is_satisfied_by(value) for each in cls._parameter_constraints[name])


def class_of_pair(one, other):
    """The class that tries a pair of options: those that have both take turns."""
    classes = [cls for cls in SMALL if one in options_of(cls) and other in options_of(cls)]
    return classes[(OPTIONS.index(one) + OPTIONS.index(other)) % len(classes)]


def result_of(cls, options):
    """What a fit comes to, as bytes, and the parameters that it warns of; None if the parameters do not go together."""
    y = (Y > 1).astype(int) if issubclass(cls, ClassifierMixin) else Y
    alone = {} if issubclass(cls, ClassifierMixin) else {"n_neighbors": 0}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            model = make(cls, **({"base": None, "max_iter": 1} | alone | options)).fit(X, y)
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
            or class_of_pair(one, other) is not cls
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
    model = make(SOLVEGPRegressor, n_iter_no_change=2)
    with pytest.warns(
        UserWarning, match=r"^n_iter_no_change=2 has no effect in partial_fit, which has no epochs, .*: use fit"
    ):
        model.partial_fit(X, Y)
    model.partial_fit(X, Y)


CHANGES = {
    "n_estimators": 3,
    "device": "meta",
    "dtype": "float64",
    "early_stopping": None,
    "validation_fraction": 0.3,
    "n_iter_no_change": 2,
    "n_neighbors": 3,
    "cuda_graphs": True,
    "max_time": 9.0,
}


@pytest.mark.parametrize("begin", ["fit", "partial_fit"])
@pytest.mark.parametrize("cls", SMALL)
def test_what_later_chunks_do_not_follow_is_said(cls, begin):
    names = {each.name: each.default for each in fields(cls)}
    changes = {name: not names[name] if value is None else value for name, value in CHANGES.items() if name in names}
    y = (Y > 1).astype(int) if issubclass(cls, ClassifierMixin) else Y
    known = {"classes": [0, 1]} if begin == "partial_fit" and issubclass(cls, ClassifierMixin) else {}
    model = getattr(make(cls, base=None, dtype="float32"), begin)(X, y, **known)
    before = {name: getattr(model, name) for name in changes}
    with pytest.warns(UserWarning, match="has no effect") as found:
        model.set_params(**changes).partial_fit(X, y)
    expected = {
        f"{name}={value!r} has no effect in partial_fit, which goes on with a model that has learnt with "
        f"{before[name]!r}: set it back, or start anew with fit and warm_start=False."
        for name, value in changes.items()
    }
    assert {str(each.message) for each in found} == expected and found[-1].filename == __file__
    model.partial_fit(X, y)  # it has been said
    model.set_params(**before).partial_fit(X, y)


@pytest.mark.parametrize("cls", SMALL)
def test_what_later_chunks_follow_has_an_effect(cls):
    y = (Y > 1).astype(int) if issubclass(cls, ClassifierMixin) else Y
    known = {"classes": [0, 1]} if issubclass(cls, ClassifierMixin) else {}

    def result(**later):
        model = make(cls, base=None).partial_fit(X, y, **known).set_params(**later).partial_fit(X, y)
        return model.loss_curve_[-1]

    plain = result()
    for name, value in {
        "objective": "predictive",
        "beta": 0.5,
        "max_iter": 1,
        "batch_size": 5,
        "learning_rate": 0.5,
        "class_weight": {0: 3.0},
    }.items():
        if name in {each.name for each in fields(cls)}:
            assert result(**{name: value}) != plain, name


def test_a_fit_that_goes_on_does_not_start_anew():
    model = make(SOLVEGPRegressor, kernel=RBF(1.0), warm_start=True, n_estimators=1).fit(X, Y)
    with pytest.warns(UserWarning, match="n_restarts_optimizer=2 has no effect in a fit with warm_start=True, which"):
        model.set_params(n_restarts_optimizer=2).fit(X, Y)
    assert len(model.set_params(n_estimators=2).fit(X, Y)._learnt.predictor.models) == 2
