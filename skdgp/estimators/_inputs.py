"""Features between the user's units and those of the models."""

from collections.abc import Callable, Mapping

import numpy as np

from ..gp.units import Units

#: Limit of standardised inputs. Larger ones would be no farther from the data in effect, but their squares overflow.
FARTHEST = 1e15


def prepared(estimator) -> Callable[[np.ndarray], np.ndarray]:
    """A function that brings rows to predict into the units of the models."""
    return lambda X: clipped(estimator, estimator._encoding.encode(X))


def clipped(estimator, columns: np.ndarray) -> np.ndarray:
    """The model's columns of rows to predict, standardised. Rows that are too far away come nearer."""
    return estimator._input_units.standardise(columns).clip(-FARTHEST, FARTHEST)


def inputs(estimator, X: np.ndarray, of_others: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
    """Rows (n, n_features) as models see them: encoded and standardised."""
    return standardise(estimator, estimator._encoding.encode(X, of_others))


def standardise(estimator, columns: np.ndarray) -> np.ndarray:
    """The model's columns, standardised. If one overflows, a ValueError names its feature."""
    units, groups = estimator._input_units, estimator._encoding.groups
    inside = units.standardise(columns)
    column = units.first_overflow(inside)
    if column is not None:
        feature = column if groups is None else groups[column]
        names = getattr(estimator, "feature_names_in_", None)
        name = feature if names is None else names[feature]
        raise ValueError(
            f"Column {name!r} of X overflows or underflows when it is standardised: its values reach "
            f"{np.abs(columns[:, column]).max():.1e}. Rescale the column, for instance to its logarithm."
        )
    return inside


def by_feature(estimator, slopes: np.ndarray, X: np.ndarray, axis: int = -1) -> np.ndarray:
    """Slopes along features in the user's units, from slopes along the model's columns.

    They are NaN for categories and for missing cells of X, since there is nothing to vary.
    """
    encoding = estimator._encoding
    found = np.take(slopes, encoding.first, axis=axis)
    nothing = np.isnan(X) | (np.asarray(encoding.n_levels) > 0)  # (n, n_features)
    shape = [1] * slopes.ndim
    shape[0], shape[axis] = X.shape
    scale_shape = [1] * slopes.ndim
    scale_shape[axis] = -1
    scale = np.reshape(feature_units(estimator).scale, scale_shape)
    return np.where(nothing.reshape(shape), np.nan, found / scale)


def feature_units(estimator) -> Units:
    """Units of each feature: those of the first of its columns."""
    units, first = estimator._input_units, estimator._encoding.first
    return Units(*(np.asarray(each)[first] for each in (units.shift, units.scale)))
