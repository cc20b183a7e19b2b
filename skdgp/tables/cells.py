"""What cells of a table hold that is no number: text, dates, complex numbers, collections, or nothing."""

import re
from datetime import date, time, timedelta
from numbers import Complex, Number, Real
from typing import Any

import numpy as np

#: Types of dates and durations that a column of objects may hold. Pandas' are among them, except Period.
DATES = (date, time, timedelta, np.datetime64, np.timedelta64)


def first_text(values: np.ndarray) -> str | bytes | None:
    """The first value that is text or bytes and cannot be read as a number."""
    for value in values if values.dtype.kind in "OUST" else ():
        if isinstance(value, str | bytes):
            try:
                float(value)
            except ValueError:
                return value.item() if isinstance(value, np.generic) else value
    return None


def is_decimal_comma(text: str | bytes) -> bool:
    """Whether text is a number with a decimal comma, such as "3,5"."""
    return isinstance(text, str) and re.fullmatch(r"\s*[+-]?\d+,\d+\s*", text) is not None


def first_complex(values: np.ndarray) -> Any:
    """The first complex number; None if there is none."""
    objects = values.ravel().tolist() if values.dtype.kind in "cO" else ()
    return next((value for value in objects if isinstance(value, Complex) and not isinstance(value, Real)), None)


def kind_of_dates(values: np.ndarray) -> str | None:
    """What dates or durations in an array are, such as "datetime64[s]" or "Timestamp"; None if it has none."""
    if values.dtype.kind in "mM":
        return str(values.dtype)
    objects = values.ravel().tolist() if values.dtype.kind == "O" else ()
    return next((type(value).__name__ for value in objects if _is_date(value)), None)


def _is_date(value: Any) -> bool:
    # Pandas' NaT is a date, too. But it only says that something is missing, and differs from itself.
    return (isinstance(value, DATES) or type(value).__name__ == "Period") and value == value


def first_collection(values: np.ndarray) -> Any:
    """The first value that is neither a number nor text, such as a list or an interval; None if there is none."""
    # A struct of Polars has two dimensions.
    objects = list(values) if values.dtype.kind == "O" or values.ndim > 1 else ()
    return next((cell for cell in objects if not (isinstance(cell, str | bytes | Number) or is_missing(cell))), None)


def is_missing(value: Any) -> bool:
    """Whether it is None, NaN, or pandas' NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(np.isscalar(value) and value != value)


def is_na(value: Any) -> bool:
    """Whether it is pandas' NA, whose comparisons are neither true nor false."""
    return type(value).__name__ == "NAType"
