"""Targets of which some are only known to lie in an interval, as users give them.

They are recognised by names alone, since two plain columns are two outputs:

* columns, or fields of a structured array, with the names "lower" and "upper" in any case;
* a structured array of a boolean field and a field of numbers, as scikit-survival takes it. True says that the event
  was at this time, and False that it had not happened until then.
"""

import numpy as np
from sklearn.utils import check_array

from .frames import as_array_or_frame, is_frame

#: Names of the two bounds.
NAMES = ("lower", "upper")


def bounds_of(y) -> np.ndarray | None:
    """Lower and upper bounds (n, 2) in float64, equal for exact targets; None if ``y`` is nothing of this kind.

    ValueError if it cannot be told what ``y`` is, or if a row has impossible bounds.
    """
    y = as_array_or_frame(y)
    names = _names(y)
    if names is None:
        return None
    by_name = {name.lower(): name for name in names}
    if set(by_name) >= set(NAMES):
        if len(names) > 2:
            raise ValueError(
                f"y has columns named lower and upper among {names}: pass these two alone as the bounds of one target, "
                "or all of them without names, y.to_numpy(), as several targets."
            )
        return _checked(np.column_stack([_numbers(y, by_name[name]) for name in NAMES]))
    kinds = [np.asarray(y[name]).dtype.kind for name in names]
    event = kinds.index("b") if kinds.count("b") == 1 and len(names) == 2 else None
    if is_frame(y):
        if event is not None and kinds[1 - event] in "iuf":
            raise ValueError(
                f"y has a column of booleans and one of numbers, {names}: pass y.to_records(index=False) if these are "
                "events and their times, or y.to_numpy(dtype=float) if they are two targets."
            )
        return None
    if event is None or kinds[1 - event] not in "iuf":
        raise ValueError(
            f"y is a structured array with the fields {names}: it needs lower and upper bounds under these names, or a "
            "field of booleans for events and a field of numbers for their times."
        )
    time = _numbers(y, names[1 - event])
    return _checked(np.column_stack([time, np.where(np.asarray(y[names[event]]), time, np.inf)]))


def are_intervals(y) -> bool:
    """Whether some of the targets are not exact."""
    bounds = bounds_of(y)
    return bounds is not None and bool((bounds[:, 0] < bounds[:, 1]).any())


def exact_bounds(y) -> np.ndarray:
    """Exact targets (n,) or (n, 1) as bounds (n, 2); ValueError if there are several columns."""
    y = np.asarray(as_array_or_frame(y))
    if y.ndim == 2 and y.shape[1] > 1:
        raise ValueError(
            f"y has {y.shape[1]} columns without names, but the model has learnt from bounds of one target: name them "
            "lower and upper, or pass one column of exact targets."
        )
    column = check_array(y.reshape(-1, 1), dtype=np.float64, input_name="y")
    return np.hstack([column, column])


def _names(y) -> list[str] | None:
    """Names of the fields or columns of targets, if they have any."""
    if is_frame(y):
        return list(y.columns) if all(isinstance(name, str) for name in y.columns) else None
    names = getattr(getattr(y, "dtype", None), "names", None)
    return None if names is None else list(names)


def _numbers(y, name: str) -> np.ndarray:
    """A column of numbers (n,); ValueError if it holds something else."""
    column = np.asarray(y[name])
    if column.dtype.kind not in "iufO" or column.ndim != 1:
        raise ValueError(f"Column {name!r} of y holds {column.dtype}, and bounds and times are numbers: make it such.")
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Column {name!r} of y holds {error}, and bounds and times are numbers: make it such.") from (
            error
        )


def _checked(bounds: np.ndarray) -> np.ndarray:
    """The bounds; a ValueError names the first row in which they are impossible, or say nothing."""
    low, high = bounds.T
    for wrong, what, cure in (
        (np.isnan(bounds).any(axis=1), "NaN", "write -inf or inf for a side that is open"),
        (low > high, "a lower bound above the upper one", "exchange them, or pass y.to_numpy() for two targets"),
        ((low == high) & np.isinf(low), "an infinite value", "leave out the row"),
        (np.isneginf(low) & np.isposinf(high), "no bound at all", "leave out the row"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(f"y has {what} in row {row}, {bounds[row].tolist()}: {cure}.")
    return bounds
