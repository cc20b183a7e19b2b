"""Features between the user's units and those of the models."""

from collections.abc import Callable, Mapping

import numpy as np

from ..gp.units import Units
from ._rows import FARTHEST, standardised


def prepared(estimator) -> Callable[[np.ndarray], np.ndarray]:
    """A function that brings rows to predict into the units of the models."""
    return lambda X: inputs(estimator, X).clip(-FARTHEST, FARTHEST)


def inputs(estimator, X: np.ndarray, of_others: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
    """Rows (n, n_features) as models see them: encoded and standardised."""
    return standardise(estimator, estimator._encoding.encode(X, of_others))


def standardise(estimator, columns: np.ndarray) -> np.ndarray:
    """The model's columns, standardised."""
    names, groups = getattr(estimator, "feature_names_in_", None), estimator._encoding.groups
    if groups is not None:
        names = groups if names is None else [names[group] for group in groups]
    return standardised(columns, estimator._input_units, names)


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
