"""Parameters of estimators: the decorator that makes a class with parameters an estimator, and their values."""

from copy import deepcopy
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, dataclass_transform

import numpy as np

from ..gp.censored import Censored
from ..methods.options import check_removed, options_of

#: Parameters that models which go on from earlier rows may not follow. A warning says so if their values have changed.
UNFOLLOWED = (
    "n_estimators",
    "device",
    "dtype",
    "n_restarts_optimizer",
    "early_stopping",
    "validation_fraction",
    "n_iter_no_change",
    "n_neighbors",
    "cuda_graphs",
    "max_time",
)


@dataclass_transform(kw_only_default=True)
def estimator(cls):
    """Make a class with declared parameters an estimator: ``__init__`` stores them, and scikit-learn checks them."""
    cls = dataclass(eq=False, repr=False, kw_only=True)(cls)  # kw_only leaves inherited parameters as they are
    cls.__init__ = _naming_removed(cls.__init__)
    cls._parameter_constraints = {name: option.values for name, option in options_of(cls).items()}
    return cls


def _naming_removed(init):
    """``__init__`` of an estimator, with errors for removed parameters. Its signature stays as it is."""

    @wraps(init)
    def __init__(self, *args, **params):
        check_removed(params, type(self), TypeError)
        init(self, *args, **params)

    return __init__


def method_of(estimator, *, censored: bool = False) -> Any:
    """The method of an estimator, with the estimator's parameters.

    If some targets are intervals (``censored``), the likelihood is that of intervals.
    """
    kind = estimator._method_class
    values = {field.name: getattr(estimator, field.name) for field in fields(kind)}
    if censored and "likelihood" in values:
        values["likelihood"] = Censored
    return kind(**values)


def structure_of(estimator) -> dict[str, Any]:
    """The parameters that shape the model, and those that it may not follow later, by name, as they are now."""
    names = [name for name, option in options_of(estimator).items() if option.shapes or name in UNFOLLOWED]
    return {name: _as_it_is(getattr(estimator, name)) for name in names}


def check_structure(now: dict[str, Any], before: dict[str, Any]) -> None:
    """ValueError if a parameter that shapes the model has changed since the model was built."""
    for name, value in now.items():
        if name not in UNFOLLOWED and not same(value, before[name]):
            raise ValueError(
                f"warm_start=True, partial_fit and update go on with a model that was built with {name}="
                f"{before[name]!r}, but {name} is now {value!r}: set it back, or start anew with fit and "
                "warm_start=False."
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
