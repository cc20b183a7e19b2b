"""Allowed values of parameters, by name, and the decorator that makes a class with parameters an estimator."""

from copy import deepcopy
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, dataclass_transform

import numpy as np

from .._sklearn import HasMethods, Interval, StrOptions
from ..gp.coupled import COUPLED
from ..gp.kernels import PROFILES
from ..gp.likelihoods import Regression
from ..gp.networks import INFERENCE_NETWORKS
from ..inference.objectives import OBJECTIVES
from ..methods.inducing import FEATURES
from ..methods.likelihoods import LIKELIHOODS

POSITIVE = Interval(Integral, 1, None, closed="left")
NON_NEGATIVE = Interval(Integral, 0, None, closed="left")
AUTO = StrOptions({"auto"})

#: Allowed values, for scikit-learn's checks. If a value passes these but does not suit the data, ``fit`` says so.
RULES = {
    "hidden_dims": ["array-like", tuple, Integral],
    "n_inducing": [POSITIVE, AUTO, "array-like", tuple],
    "n_orthogonal": [NON_NEGATIVE],
    "inducing": [StrOptions(set(FEATURES))],
    "orthogonal_inducing": [StrOptions(set(FEATURES))],
    "rule": [StrOptions({"ar1", "ar2", "ar2p"})],
    "propagation": [StrOptions({"monte_carlo", "quadrature"})],
    "layer_posterior": [StrOptions({"factorised", *COUPLED})],
    "method": [StrOptions({"auto", "svi", "collapsed"})],
    "objective": [StrOptions(set(OBJECTIVES))],
    "n_restarts_optimizer": [NON_NEGATIVE],
    "kernel": [StrOptions(set(PROFILES)), callable, list, tuple],
    "ard": ["boolean"],
    "likelihood": [StrOptions(set(LIKELIHOODS)), Regression, callable],
    "target_transform": [StrOptions({"log"}), HasMethods(["fit", "transform", "inverse_transform"]), None],
    "base": [StrOptions({"auto", "gp"}), None],
    "n_neighbors": [Interval(Integral, 0, 1000, closed="both"), AUTO],
    "share_kernel": ["boolean"],
    "mean": [StrOptions({"zero", "linear", "identity"})],
    "covariance": [StrOptions({"diag", "full"})],
    "orthogonal_covariance": [StrOptions({"free", "prior"})],
    "whiten": ["boolean"],
    "inducing_map": [StrOptions(set(INFERENCE_NETWORKS))],
    "network_width": [POSITIVE, None],
    "network_depth": [POSITIVE],
    "n_samples": [POSITIVE],
    "latent_dims": [NON_NEGATIVE],
    "n_importance": [POSITIVE],
    "n_latent_outputs": [POSITIVE, None],
    "n_estimators": [POSITIVE, AUTO],
    "beta": [Interval(Real, 0, None, closed="left")],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "max_iter": [POSITIVE, AUTO],
    "batch_size": [POSITIVE, AUTO],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "n_iter_no_change": [POSITIVE],
    "tol": [Interval(Real, 0, None, closed="left")],
    "categorical_features": [StrOptions({"from_dtype"}), "array-like", None],
    "normalize_X": ["boolean"],
    "normalize_y": ["boolean"],
    "device": [str],
    "dtype": [StrOptions({"auto", "float32", "float64"})],
    "cuda_graphs": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


@dataclass_transform(kw_only_default=True)
def estimator(**rules):
    """Make a class with annotated parameters an estimator: ``__init__`` stores them, and scikit-learn checks them.

    Parameters
    ----------
    **rules
        Allowed values of parameters where they differ from ``RULES``.
    """

    def decorate(cls):
        cls = dataclass(eq=False, repr=False, kw_only=True)(cls)  # kw_only leaves inherited parameters as they are
        cls._parameter_constraints = {each.name: rules.get(each.name, RULES[each.name]) for each in fields(cls)}
        return cls

    return decorate


def method_of(estimator) -> Any:
    """The method of an estimator, with the estimator's parameters."""
    kind = estimator._method_class
    return kind(**{each.name: getattr(estimator, each.name) for each in fields(kind)})


def structure_of(estimator) -> dict[str, Any]:
    """The parameters that shape the model, by name, as they are now."""
    shaping = [each.name for each in fields(estimator) if each.metadata.get("shaping")]
    return {name: _as_it_is(getattr(estimator, name)) for name in shaping}


def check_structure(now: dict[str, Any], before: dict[str, Any]) -> None:
    """ValueError if a parameter that shapes the model has changed since the model was built."""
    for name, value in now.items():
        if not same(value, before[name]):
            raise ValueError(
                f"warm_start=True and partial_fit go on with a model that was built with {name}={before[name]!r}, but "
                f"{name} is now {value!r}: set it back, or start anew with fit and warm_start=False."
            )


def _as_it_is(value):
    """The value, or a copy of it if it is of a kind that users change in place."""
    if isinstance(value, list | tuple):
        return type(value)(map(_as_it_is, value))
    has_parameters = hasattr(value, "get_params") and not isinstance(value, type)
    return deepcopy(value) if has_parameters or isinstance(value, np.ndarray) else value


def same(value, other) -> bool:
    """Whether two values of a parameter mean the same."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        return type(value) is type(other) and same(value.get_params(deep=False), other.get_params(deep=False))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[name], other[name]) for name in value)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return np.array_equal(value, other)
