"""Dates and durations as numbers, and the parts of a date that repeat.

A date becomes the days since the first date of ``fit``. Parts that repeat become further columns of the model: the time
of the year and the time of the day as sine and cosine, and the weekday as one indicator for each. Each part has a
lengthscale of its own. Clocks are those of the column's own time zone.
"""

import math
import re
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from .cells import is_missing

#: Text that counts as a date: year, month and day, and perhaps a time and a difference from UTC.
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?")

#: Length in days of what repeats.
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}

#: Number of the model's columns of each part.
WIDTHS = {"year": 2, "week": 7, "day": 2}

#: Less than a millisecond in days, by which rounding may move a time.
ROUNDING = 1e-9

#: The day 0 of all dates, as it is counted from the year 1.
EPOCH = date(1970, 1, 1).toordinal()


class Calendar(NamedTuple):
    """What a fit has learnt of a column of dates or durations.

    Parameters
    ----------
    kind : "date", "duration"
    origin : float
        Days from 1970 to the first date of ``fit``; 0 for durations.
    parts : tuple of str
        Those of :data:`PERIODS` that become columns of the model.
    zone : str, default=None
        The time zone of the column's dtype; None if it has none.
    """

    kind: str
    origin: float
    parts: tuple[str, ...]
    zone: str | None = None

    @classmethod
    def of(cls, kind: str, days: np.ndarray, zone: str | None = None) -> "Calendar":
        """Learn it from days (n,) since 1970, or from durations in days; NaN where one is missing."""
        known = np.unique(days[~np.isnan(days)])
        if kind == "duration" or not len(known):
            return cls(kind, 0.0, (), zone)
        span, step = known[-1] - known[0], np.diff(known).min(initial=np.inf)
        return cls(kind, float(known[0]), tuple(part for part in PERIODS if _repeats(known, part, span, step)), zone)

    def to_plain(self) -> list:
        """The calendar as a list of plain values."""
        return [self.kind, self.origin, list(self.parts), self.zone]

    @classmethod
    def from_plain(cls, plain: list) -> "Calendar":
        """The inverse of :meth:`to_plain`; files from before time zones have three values."""
        return cls(plain[0], plain[1], tuple(plain[2]), *plain[3:])

    @property
    def width(self) -> int:
        """Number of columns of all parts."""
        return sum(WIDTHS[part] for part in self.parts)

    def columns(self, elapsed: np.ndarray) -> np.ndarray:
        """Columns (n, width) of the parts, from days (n,) since the first date."""
        days = elapsed.astype(np.float64) + self.origin
        return np.hstack([np.empty((len(days), 0)), *(_columns(days, part) for part in self.parts)])

    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale (width,) with which the columns of each part together have variance one over a period."""
        widths = [WIDTHS[part] for part in self.parts]
        shift = [1 / 7 if part == "week" else 0.0 for part in self.parts]
        scale = [math.sqrt(6 / 7) if part == "week" else 1.0 for part in self.parts]
        return np.repeat(shift, widths), np.repeat(scale, widths)


def to_calendar(plain: list | None) -> Calendar | None:
    """A calendar, from its plain list of values; None if there is none."""
    return None if plain is None else Calendar.from_plain(plain)


def _repeats(known: np.ndarray, part: str, span: float, step: float) -> bool:
    """Whether different dates lie within one period, and at different places in it, and the dates span a period."""
    period = PERIODS[part]
    return bool(step < period - ROUNDING and span >= period - ROUNDING and np.ptp(_columns(known, part), axis=0).any())


def _columns(days: np.ndarray, part: str) -> np.ndarray:
    """Columns of a part of dates, in days since 1970: an indicator of each weekday, or sine and cosine of a period."""
    if part == "week":
        weekday = (np.floor(days + ROUNDING) + 3) % 7  # 0 is Monday; the day 0 was a Thursday
        return (weekday[:, None] == np.arange(7)).astype(np.float64)
    place = days / PERIODS[part]
    angle = 2 * np.pi * (place - np.floor(place + ROUNDING))
    return np.round(np.stack([np.sin(angle), np.cos(angle)], axis=1), 9)


def days_of(values: Any) -> tuple[str, np.ndarray] | None:
    """The kind of a column of dates or durations, and its days (n,); None if it holds anything else as well.

    Dates count from 1970, by the clock of the column's time zone. Missing ones are NaN.
    """
    dtype = str(values.dtype).lower()
    if dtype.startswith("period"):
        values = values.dt.to_timestamp()
    elif getattr(values.dtype, "tz", None) is not None:
        values = values.dt.tz_localize(None)
    elif getattr(values.dtype, "time_zone", None) is not None:  # of Polars
        values = values.dt.replace_time_zone(None)
    array = np.asarray(values)
    if array.dtype.kind in "mM":
        return ("date" if array.dtype.kind == "M" else "duration"), _in_days(array)
    if array.dtype.kind not in "OUT":
        return None
    days, kinds = np.full(len(array), np.nan), set[str]()
    for row, value in enumerate(array.tolist()):
        if is_missing(value):
            continue
        of_value = _day_of(value)
        if of_value is None or len(kinds | {of_value[0]}) > 1:
            return None
        kinds.add(of_value[0])
        days[row] = of_value[1]
    return (kinds.pop(), days) if kinds else None


def zone_of(values: Any) -> str | None:
    """The time zone of the dtype of a column of pandas, Polars or Arrow; None if it has none."""
    dtype = getattr(values, "dtype", None)
    dtype = getattr(dtype, "pyarrow_dtype", dtype)
    zone = getattr(dtype, "tz", None) or getattr(dtype, "time_zone", None)
    if zone is None:
        return None
    zone = re.sub(r"^UTC(?=[+-])", "", str(zone))  # a difference from UTC, as pandas writes it, and as Arrow does
    return "UTC" if zone in ("+00:00", "Etc/UTC") else zone


def _in_days(array: np.ndarray) -> np.ndarray:
    """Numbers of days; those of dates count from 1970."""
    durations = array - np.datetime64(0, "D") if array.dtype.kind == "M" else array
    return durations / np.timedelta64(1, "D")


def _day_of(value: Any) -> tuple[str, float] | None:
    """The kind of a value, and its days; None if it is neither a date nor a duration."""
    if type(value).__name__ == "Period":
        value = value.to_timestamp()
    if isinstance(value, str) and ISO.fullmatch(value.strip()):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:  # such as the 30th of February
            return None
    if isinstance(value, datetime):
        return "date", (value.replace(tzinfo=None) - datetime(1970, 1, 1)) / timedelta(days=1)
    if isinstance(value, date):
        return "date", float(value.toordinal() - EPOCH)
    if isinstance(value, timedelta):
        return "duration", value / timedelta(days=1)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return ("date" if isinstance(value, np.datetime64) else "duration"), float(_in_days(np.asarray(value)))
    return None
