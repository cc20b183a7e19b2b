"""Columns of the user's table: which of them are categories, and which numbers stand for their levels."""

from collections import Counter
from datetime import date, time, timedelta
from numbers import Complex, Number, Real
from typing import Any

import numpy as np
from scipy.sparse import issparse

#: How the names of dtypes of text and of categories begin, in pandas, Polars and Arrow.
TEXT_OR_CATEGORY = ("categor", "enum", "str", "large_string", "dictionary")

#: How the names of dtypes of dates and durations begin, in NumPy, pandas, Polars and Arrow.
DATE_DTYPES = ("date", "time", "duration", "period")

#: Types of dates and durations that a column of objects may hold. Pandas' are among them, except Period.
DATES = (date, time, timedelta, np.datetime64, np.timedelta64)


class Columns:
    """Which columns of a table are categories, and their levels.

    Parameters
    ----------
    is_categorical : ndarray of shape (n_features,)
        Mask of the columns that are categories.
    levels : list of (list or None)
        For each column that is a category its levels, the most frequent first. Among the levels, None stands for a
        missing value. Other columns have None.
    """

    def __init__(self, is_categorical: np.ndarray, levels: list[list | None]):
        self.is_categorical, self.levels = np.asarray(is_categorical, dtype=bool), levels

    @classmethod
    def of(cls, X, categorical_features, weight=None) -> "Columns | None":
        """Columns of a table to learn from. None if no column is a category, or if ``X`` is not a table.

        Rows whose ``weight`` is zero do not count. Weights are not checked yet.
        """
        mask = categorical_mask(X, categorical_features)
        if mask is None or not mask.any():
            return None
        used = _positive(weight, len(X))
        levels = [_levels(column(X, j), used) if chosen else None for j, chosen in enumerate(mask.tolist())]
        return cls(mask, levels)

    @property
    def n_levels(self) -> list[int]:
        """For each column the number of its levels; 0 if it is not a category."""
        return [0 if levels is None else len(levels) for levels in self.levels]

    def coded(self, X):
        """The table with numbers for levels: places in ``levels``, and the number after the last for other levels."""
        codes = {j: self._codes(column(X, j), j) for j in np.flatnonzero(self.is_categorical).tolist()}
        if hasattr(X, "isetitem"):  # pandas
            X = X.copy(deep=False)
            for j, each in codes.items():
                X.isetitem(j, each)
            return X
        if hasattr(X, "with_columns"):  # Polars
            return X.with_columns([type(X[:, j])(X.columns[j], each) for j, each in codes.items()])
        X = np.array(X, dtype=object)
        for j in range(X.shape[1]):
            X[:, j] = codes[j] if j in codes else _plain(X[:, j])
        return X

    def _codes(self, values, j: int) -> np.ndarray:
        """Numbers of the levels of a column (n,)."""
        levels = self.levels[j]
        assert levels is not None
        number, other = {level: float(i) for i, level in enumerate(levels)}, float(len(levels))
        return np.array([number.get(value, other) for value in _plain(values)], dtype=np.float64)

    def to_plain(self) -> list:
        """The columns as lists."""
        return [self.is_categorical.tolist(), self.levels]

    @classmethod
    def from_plain(cls, state: list) -> "Columns":
        """The inverse of :meth:`to_plain`."""
        return cls(*state)


def categorical_mask(X, categorical_features) -> np.ndarray | None:
    """Mask of the columns that are categories; None if nothing says which columns are.

    Raises
    ------
    ValueError
        If ``categorical_features`` does not fit the table.
    """
    if categorical_features is None or issparse(X):
        return None
    by_dtype = isinstance(categorical_features, str)  # "from_dtype"
    shape = getattr(X, "shape", None) if is_frame(X) or by_dtype else np.shape(X)
    if shape is None or len(shape) != 2 or (by_dtype and not is_frame(X)):
        return None
    if by_dtype:
        return np.array([_is_category(column(X, j)) for j in range(shape[1])], dtype=bool)
    return _given_mask(X, shape[1], np.asarray(categorical_features))


def _given_mask(X, n_features: int, given: np.ndarray) -> np.ndarray:
    """The mask of the columns that the user gave as a mask, as numbers or as names."""
    mask: np.ndarray = np.zeros(n_features, dtype=bool)
    if given.size == 0:
        return mask
    if given.dtype.kind == "b":
        if given.shape != (n_features,):
            raise ValueError(
                f"categorical_features is a mask of shape {given.shape}, but X has {n_features} columns: give a value "
                "for each."
            )
        return given
    names = [str(name) for name in getattr(X, "columns", [])] if is_frame(X) else []
    for each in given.ravel().tolist():
        if isinstance(each, int) and 0 <= each < n_features:
            mask[each] = True
        elif isinstance(each, str) and each in names:
            mask[names.index(each)] = True
        else:
            known = f"its names are {names}" if names else "it has no names"
            raise ValueError(
                f"categorical_features has {each!r}, which is no column of X: give numbers from 0 to {n_features - 1} "
                f"or names, of which {known}; or a mask."
            )
    return mask


def is_frame(X) -> bool:
    """Whether it is a data frame of pandas or Polars."""
    return hasattr(X, "columns") and (hasattr(X, "isetitem") or hasattr(X, "with_columns")) and hasattr(X, "shape")


def column(X, j: int):
    """A column of a table, by its number."""
    if hasattr(X, "iloc"):
        return X.iloc[:, j]
    return X[:, j] if hasattr(X, "shape") else np.asarray(X, dtype=object)[:, j]


def first_text(values: np.ndarray) -> str | bytes | None:
    """The first value that is text or bytes and cannot be read as a number."""
    for value in values if values.dtype.kind in "OUST" else ():
        if isinstance(value, str | bytes):
            try:
                float(value)
            except ValueError:
                return value.item() if isinstance(value, np.generic) else value
    return None


def first_complex(values: np.ndarray) -> Any:
    """The first complex number; None if there is none."""
    objects = values.ravel().tolist() if values.dtype.kind in "cO" else ()
    return next((each for each in objects if isinstance(each, Complex) and not isinstance(each, Real)), None)


def date_columns(X) -> dict:
    """Dtypes of the columns of dates or durations, by number; those of objects are not among them."""
    if isinstance(X, np.ndarray):
        return {0: X.dtype} if X.dtype.kind in "mM" else {}
    dtypes = enumerate(X.dtypes) if is_frame(X) else ()
    return {number: dtype for number, dtype in dtypes if str(dtype).lower().startswith(DATE_DTYPES)}


def kind_of_dates(values: np.ndarray) -> str | None:
    """What dates or durations in an array are, such as "datetime64[s]" or "Timestamp"; None if it has none."""
    if values.dtype.kind in "mM":
        return str(values.dtype)
    objects = values.ravel().tolist() if values.dtype.kind == "O" else ()
    return next((type(each).__name__ for each in objects if _is_date(each)), None)


def _is_date(value: Any) -> bool:
    # Pandas' NaT is a date, too. But it only says that something is missing, and differs from itself.
    return (isinstance(value, DATES) or type(value).__name__ == "Period") and value == value


def first_collection(values: np.ndarray) -> Any:
    """The first value that is neither a number nor text, such as a list or an interval; None if there is none."""
    objects = (
        list(values) if values.dtype.kind == "O" or values.ndim > 1 else ()
    )  # a struct of Polars has two dimensions
    return next((each for each in objects if not (isinstance(each, str | bytes | Number) or is_missing(each))), None)


def without_na(X):
    """The table with NaN in masked cells, and in place of pandas' NA, which NumPy cannot turn into a number."""
    if np.ma.is_masked(X) and X.dtype.kind in "biuf":
        return np.ma.filled(X if X.dtype.kind == "f" else X.astype(np.float64), np.nan)
    if isinstance(X, np.ndarray) and X.dtype == object:
        return np.where(np.vectorize(_is_na, otypes=[bool])(X), np.nan, X) if X.size else X
    if not hasattr(X, "isetitem"):  # only pandas' frames can have NA
        return X
    found = X
    for j, dtype in enumerate(X.dtypes):
        values = X.iloc[:, j].to_numpy() if str(dtype) == "object" else np.empty(0)
        if any(map(_is_na, values.tolist())):
            found = X.copy(deep=False) if found is X else found
            found.isetitem(j, without_na(values))
    return found


def _is_na(value: Any) -> bool:
    return type(value).__name__ == "NAType"


def is_missing(value: Any) -> bool:
    """Whether it is None, NaN, or pandas' NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(np.isscalar(value) and value != value)


def _is_category(values: Any) -> bool:
    """Whether a column of a frame holds text or categories."""
    dtype = str(values.dtype).lower()
    if dtype.startswith("struct"):
        return False
    return dtype.startswith(TEXT_OR_CATEGORY) or (dtype == "object" and first_text(np.asarray(values)) is not None)


def _positive(weight, n_rows: int) -> list[bool]:
    """For each row whether its weight is positive. Weights that are none of rows exclude no row."""
    numbers = np.asarray(weight)
    of_rows = numbers.shape == (n_rows,) and numbers.dtype.kind in "biuf"
    return (numbers > 0).tolist() if of_rows else n_rows * [True]


def _levels(values, used: list[bool]) -> list:
    """Levels of the rows in use, the most frequent first; equally frequent ones in their own order."""
    count = Counter(value for value, counts in zip(_plain(values), used, strict=True) if counts)
    return sorted(count, key=lambda level: (-count[level], type(level).__name__, str(level)))


def _plain(values) -> list:
    """Values as Python's own objects, which can be looked up; None for those that are missing."""
    found = np.asarray(values)
    if found.dtype.kind in "biu" or (found.dtype.kind == "f" and not np.isnan(found).any()):
        return found.tolist()
    # All missing values differ from themselves, except pandas' NA, whose comparisons are neither true nor false.
    return [None if _is_na(each) or each != each else each for each in found.tolist()]
