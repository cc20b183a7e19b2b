"""Columns of the user's table: which of them are categories or dates, and which numbers stand for their values."""

import warnings
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
from scipy.sparse import issparse

from ..inference.callers import users_level
from .cells import first_text, is_decimal_comma, is_missing, is_na
from .dates import Calendar, days_of, to_calendar, zone_of
from .frames import column, is_frame, replaced

#: How the names of dtypes of text and of categories begin, in pandas, Polars and Arrow.
TEXT_OR_CATEGORY = ("categor", "enum", "str", "large_string", "dictionary")

#: How the names of dtypes of dates and durations begin, in NumPy, pandas, Polars and Arrow.
DATE_DTYPES = ("date", "time", "duration", "period")


class Columns:
    """Which columns of a table are categories or dates, and what a fit has learnt of these.

    Parameters
    ----------
    is_categorical : ndarray of shape (n_features,)
        Mask of the columns that are categories.
    levels : list of (list or None)
        For each column that is a category its levels, the most frequent first. Among the levels, None stands for a
        missing value. Other columns have None.
    calendars : list of (Calendar or None), default=None
        What is known of each column of dates or durations. Other columns have None.
    """

    def __init__(self, is_categorical: np.ndarray, levels: list[list | None], calendars: Sequence | None = None):
        self.is_categorical, self.levels = np.asarray(is_categorical, dtype=bool), levels
        self.calendars: list[Calendar | None] = list(calendars or len(levels) * [None])

    @classmethod
    def of(cls, X, categorical_features, weight=None) -> "Columns | None":
        """Columns of a table to learn from. None if all columns are numbers, or if ``X`` is not a table.

        Rows whose ``weight`` is zero do not count. Weights are not checked yet.
        """
        mask = categorical_mask(X, categorical_features)
        if mask is None and is_frame(X):
            mask = np.zeros(X.shape[1], dtype=bool)
        if mask is None:
            return None
        used = _positive(weight, len(X))
        given = categorical_features is not None and not isinstance(categorical_features, str)
        calendars = _calendars(X, given & mask, used) if is_frame(X) else len(mask) * [None]
        mask = mask & [calendar is None for calendar in calendars]
        if not mask.any() and all(calendar is None for calendar in calendars):
            return None
        levels = [_levels(column(X, j), used) if chosen else None for j, chosen in enumerate(mask.tolist())]
        if not given:
            _warn_of_decimal_commas(X, levels)
        return cls(mask, levels, calendars)

    @property
    def n_levels(self) -> list[int]:
        """For each column the number of its levels; 0 if it is not a category."""
        return [0 if levels is None else len(levels) for levels in self.levels]

    def is_number(self, j: int) -> bool:
        """Whether a column is neither a category nor of dates or durations."""
        return not self.is_categorical[j] and self.calendars[j] is None

    def coded(self, X):
        """The table with numbers for levels: places in ``levels``, and the number after the last for other levels.

        Dates become days since the first date of ``fit``, and durations become days.
        """
        codes = {j: self._codes(column(X, j), j) for j in np.flatnonzero(self.is_categorical).tolist()}
        for j, calendar in enumerate(self.calendars):
            if calendar is not None:
                codes[j] = _elapsed(X, j, calendar)
        if is_frame(X):
            return replaced(X, codes)
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
        calendars = [None if calendar is None else calendar.to_plain() for calendar in self.calendars]
        return [self.is_categorical.tolist(), self.levels, calendars]

    @classmethod
    def from_plain(cls, state: list) -> "Columns":
        """The inverse of :meth:`to_plain`; files from before dates have two entries."""
        is_categorical, levels, calendars = [*state, None][:3]
        return cls(is_categorical, levels, None if calendars is None else list(map(to_calendar, calendars)))


def _calendars(X, given: np.ndarray, used: list[bool]) -> list[Calendar | None]:
    """What rows in use say of each column of dates or durations of a frame, except those ``given`` as categories."""
    calendars = list[Calendar | None]()
    for j in range(X.shape[1]):
        values = column(X, j)
        dtype = str(values.dtype).lower()
        candidate = dtype.startswith((*DATE_DTYPES, "object", "str", "large_string")) and not given[j]
        days = days_of(values) if candidate else None
        calendars.append(None if days is None else Calendar.of(days[0], days[1][used], zone_of(values)))
        text = None if days is None else first_text(np.asarray(values))
        if text is not None:
            name = X.columns[j]
            warnings.warn(
                f"Column {name!r} of X is text that reads as dates, such as {text!r}, and is taken for dates: turn it "
                f"into dates by pandas.to_datetime, or set categorical_features=[{name!r}] to make it a category.",
                UserWarning,
                stacklevel=users_level(),
            )
    return calendars


def _warn_of_decimal_commas(X, levels: list[list | None]) -> None:
    """Warn of columns of a frame that count as categories only because their numbers have a decimal comma."""
    for j, of_column in enumerate(levels):
        known = [level for level in of_column or () if level is not None]
        if known and all(map(is_decimal_comma, known)):
            name = X.columns[j]
            warnings.warn(
                f"Column {name!r} of X is text of numbers with a decimal comma, such as {known[0]!r}, and is taken for "
                'a category: read the file by pandas.read_csv(..., decimal=","), or name the column in '
                "categorical_features.",
                UserWarning,
                stacklevel=users_level(),
            )


def _elapsed(X, j: int, calendar: Calendar) -> np.ndarray:
    """Days (n,) of a column that held dates or durations in ``fit``."""
    values = column(X, j)
    days = days_of(values) if hasattr(values, "dtype") else None
    if days is None and all(map(is_missing, np.asarray(values, dtype=object).tolist())):
        return np.full(len(values), np.nan)
    if days is None or days[0] != calendar.kind:
        name, dtype = X.columns[j] if is_frame(X) else j, getattr(values, "dtype", "object")
        raise ValueError(
            f"Column {name!r} of X held {calendar.kind}s in fit, and now has dtype {dtype} with values that "
            f"are no {calendar.kind}s: pass a data frame in which all of them are, or are missing."
        )
    zone = zone_of(values)
    if None not in (zone, calendar.zone) and zone != calendar.zone:  # hours and weekdays would be those of other clocks
        name = X.columns[j]
        raise ValueError(
            f"Column {name!r} of X had the time zone {calendar.zone} in fit, and now has {zone}, whose clocks are "
            f"others: turn it into {calendar.zone}, such as by X[{name!r}].dt.tz_convert({calendar.zone!r})."
        )
    return days[1] - calendar.origin


def categorical_mask(X, categorical_features) -> np.ndarray | None:
    """Mask of the columns that are categories; None if nothing says which columns are.

    Raises
    ------
    ValueError
        If ``categorical_features`` does not fit the table.
    """
    if categorical_features is None or issparse(X):
        return None
    if isinstance(categorical_features, str):  # "from_dtype"
        return np.array([_is_category(column(X, j)) for j in range(X.shape[1])], dtype=bool) if is_frame(X) else None
    shape = np.shape(X)
    return _given_mask(X, shape[1], np.asarray(categorical_features)) if len(shape) == 2 else None


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
    names = [str(name) for name in X.columns] if is_frame(X) else []
    for chosen in given.ravel().tolist():
        if isinstance(chosen, int) and 0 <= chosen < n_features:
            mask[chosen] = True
        elif chosen in names:
            mask[names.index(chosen)] = True
        else:
            choice = f"its names are {names}" if names else "it has no names"
            raise ValueError(
                f"categorical_features has {chosen!r}, which is no column of X: give numbers from 0 to "
                f"{n_features - 1} or names, of which {choice}; or a mask."
            )
    return mask


def date_columns(X) -> dict:
    """Dtypes of the columns of dates or durations, by number; those of objects are not among them."""
    if isinstance(X, np.ndarray):
        return {0: X.dtype} if X.dtype.kind in "mM" else {}
    dtypes = enumerate(X.dtypes) if is_frame(X) else ()
    return {number: dtype for number, dtype in dtypes if str(dtype).lower().startswith(DATE_DTYPES)}


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
    count = Counter(value for value, is_used in zip(_plain(values), used, strict=True) if is_used)
    return sorted(count, key=lambda level: (-count[level], type(level).__name__, str(level)))


def _plain(values) -> list:
    """Values as Python's own objects, which can be looked up; None for those that are missing.

    The same level is the same object in another precision: 0.1 in float32, and a day in nanoseconds or as a date.
    """
    array = np.asarray(values)
    if array.dtype.kind == "f" and array.dtype.itemsize < 8:
        array = array.astype(str).astype(np.float64)  # the nearest float64 would be 0.10000000149
    elif array.dtype.kind in "mM":
        array = array.astype(f"{array.dtype.kind}8[us]")  # nanoseconds would become whole numbers
    if array.dtype.kind in "biu" or (array.dtype.kind == "f" and not np.isnan(array).any()):
        return array.tolist()
    return [_plain_value(value) for value in array.tolist()]


def _plain_value(value: Any) -> Any:
    # All missing values differ from themselves, except pandas' NA, whose comparisons are neither true nor false.
    if is_na(value) or value != value:
        return None
    return datetime(*value.timetuple()[:3]) if type(value) is date else value
