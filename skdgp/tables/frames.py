"""Tables of any library: arrays, frames of pandas and Polars, tensors of torch, and tables of Arrow."""

from typing import Any

import numpy as np
import torch

from .cells import is_na

#: Types of tensors that are computed with as float32.
HALVES = (torch.float16, torch.bfloat16)


def as_array_or_frame(X):
    """Tensors of torch as arrays, tables of Arrow as frames of pandas, and other tables as they are."""
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        return (X.float() if X.dtype in HALVES else X).numpy()
    X = X.to_pandas() if hasattr(X, "to_pandas") and hasattr(X, "column_names") else X
    X = X.collect() if type(X).__name__ == "LazyFrame" else X  # of Polars
    names = list(X.columns) if is_frame(X) else []
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"Two columns have the name {twice!r}: give each column a name of its own.")
    return X


def is_pandas(X) -> bool:
    """Whether it is a data frame of pandas."""
    return hasattr(X, "isetitem")


def is_polars(X) -> bool:
    """Whether it is a data frame of Polars. A lazy one, which has no rows yet, has no shape."""
    return hasattr(X, "with_columns") and hasattr(X, "shape")


def is_frame(X) -> bool:
    """Whether it is a data frame of pandas or Polars."""
    return is_pandas(X) or is_polars(X)


def column(X, j: int):
    """A column of a table, by its number."""
    if hasattr(X, "iloc"):
        return X.iloc[:, j]
    return X[:, j] if hasattr(X, "shape") else np.asarray(X, dtype=object)[:, j]


def rows_at(X, index):
    """Some of the rows of a table or of a column, by their numbers, which may repeat."""
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


def replaced(X, columns: dict[int, Any]):
    """A frame with other columns in some places."""
    if is_polars(X):
        return X.with_columns([type(X[:, j])(X.columns[j], values) for j, values in columns.items()])
    X = X.copy(deep=False)
    for j, values in columns.items():
        X.isetitem(j, values)
    return X


def without_na(X):
    """The table with NaN in masked cells, and in place of pandas' NA, which NumPy cannot turn into a number."""
    if np.ma.is_masked(X) and X.dtype.kind in "biuf":
        return np.ma.filled(X if X.dtype.kind == "f" else X.astype(np.float64), np.nan)
    if isinstance(X, np.ndarray) and X.dtype == object:
        return np.where(np.vectorize(is_na, otypes=[bool])(X), np.nan, X) if X.size else X
    if not is_pandas(X):  # other frames have no NA
        return X
    objects = {j: X.iloc[:, j].to_numpy() for j, dtype in enumerate(X.dtypes) if str(dtype) == "object"}
    return replaced(X, {j: without_na(values) for j, values in objects.items() if any(map(is_na, values))})
