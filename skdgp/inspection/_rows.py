"""Features of any kind of table, by number or name, and rows with other values in some of their cells."""

from numbers import Integral

import numpy as np

from ..tables.cells import is_missing
from ..tables.frames import as_array_or_frame, column, is_frame, is_pandas, replaced


def as_table(X):
    """Arrays and data frames as they are, and other tables, such as lists, as arrays."""
    X = as_array_or_frame(X)
    if hasattr(X, "shape"):
        return X
    rows = np.array(X, dtype=object)
    try:
        return rows.astype(np.float64)
    except (TypeError, ValueError):  # text
        return rows


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


def names_of(X):
    """Names of the columns; None if they have none."""
    return getattr(X, "columns", None)


def cells_at(X, j: int, index):
    """Cells of a column in some of the rows, with the dtype of the column."""
    values = column(X, j)
    return values.iloc[index].array if is_pandas(X) else values[index]


def with_column(X, j: int, values):
    """A copy of the table with other values in a column."""
    if is_frame(X):
        return replaced(X, {j: values})
    X = X.astype(np.result_type(X, np.asarray(values))) if X.dtype != object else X.copy()
    X[:, j] = values
    return X


def plain_column(X, j: int) -> list:
    """Cells of a column as Python's own objects; None for those that are missing."""
    return [None if is_missing(value) else value for value in np.asarray(column(X, j)).tolist()]
