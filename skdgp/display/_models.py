"""Helpers that look into estimators and predictions for the displays."""

from numbers import Integral

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from ..metrics import unwrap
from ._axes import import_pyplot


def one_output(dist, y, output):
    """Distributions (n,), and observations (n,) or None, of one output; ValueError unless it is clear which one."""
    n_outputs = dist.shape[1] if len(dist.shape) == 2 else 1
    if output is None and n_outputs > 1:
        raise ValueError(
            f"One output is drawn, but dist of shape {dist.shape} has {n_outputs}: choose one, as output=0."
        )
    output = 0 if output is None else output
    if not 0 <= output < n_outputs:
        raise ValueError(f"output={output} is none of the {n_outputs} outputs: give 0 to {n_outputs - 1}, or None.")
    if y is not None:
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if y.shape not in ((len(dist),), (len(dist), n_outputs)):
            raise ValueError(
                f"y of shape {y.shape} does not match predictions of shape {dist.shape}: give as many rows."
            )
        y = y[:, output] if y.ndim == 2 else y
    if len(dist.shape) == 2:
        dist = dist[:, output]
    return dist, y


def find_feature(feature, names, n_features):
    """Number and name of a column, from its number or its name; ``names`` may be None."""
    names = None if names is None else list(names)
    if isinstance(feature, Integral):
        if not 0 <= feature < n_features:
            raise ValueError(f"feature {feature} is none of the {n_features} columns: give 0 to {n_features - 1}.")
        return int(feature), f"X[:, {feature}]" if names is None else names[feature]
    if names is None:
        raise ValueError(f"feature {feature!r} is a name, but columns have none: give a number or a DataFrame.")
    if feature not in names:
        raise ValueError(f"feature {feature!r} is none of the columns {names}: give one of them, or its number.")
    return names.index(feature), feature


def unwrap_deep_gp(estimator, display):
    """The fitted estimator of this package inside pipelines and searches, and the pipelines of the steps before it."""
    import_pyplot(f"{display.__name__}.from_estimator")
    model, before = unwrap(estimator)
    check_is_fitted(model)
    if not hasattr(model, "predict_layers"):
        raise TypeError(
            f"{display.__name__} draws estimators of skdgp, or pipelines and searches that end in one, got "
            f"{type(model).__name__}."
        )
    return model, before
