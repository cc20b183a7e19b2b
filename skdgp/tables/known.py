"""What is known of each row besides its features, its target and its weight.

``exposure`` says how long, or over how large an area, a count was taken. ``noise_variance`` is the variance of the
noise in a target, in the square of its units.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .cells import kind_of_dates
from .frames import as_array_or_frame, without_na

#: What is known of rows, as arrays (n, 1) by name.
Known = Mapping[str, np.ndarray]

#: What may be zero.
MAY_BE_ZERO = ("noise_variance", "noise_variance_val")


def check_known(values: Mapping[str, Any], n_rows: int) -> dict[str, np.ndarray]:
    """The same as arrays (n_rows, 1) of float64, without what is None.

    A single number is the same for all rows. ValueError names a row whose number is impossible.
    """
    return {name: _checked(name, value, n_rows) for name, value in values.items() if value is not None}


def _checked(name: str, value, n_rows: int) -> np.ndarray:
    """Numbers (n_rows, 1), which are positive or, if they may be, zero."""
    given = np.asarray(as_array_or_frame(value))
    try:
        if given.dtype.kind in "mMc" or kind_of_dates(given) is not None:  # NumPy would make numbers of them
            raise TypeError
        numbers = without_na(given).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} holds something else than numbers, {given.dtype}: pass a number for each row."
        ) from error
    numbers = np.full(n_rows, numbers) if numbers.ndim == 0 else numbers
    if numbers.shape not in ((n_rows,), (n_rows, 1)):
        raise ValueError(f"{name} has the shape {numbers.shape}, but X has {n_rows} rows: pass a number for each row.")
    numbers = numbers.reshape(n_rows, 1)
    positive = numbers >= 0 if name in MAY_BE_ZERO else numbers > 0
    for row in np.flatnonzero(~(np.isfinite(numbers) & positive)):
        allowed = "zero or positive, and finite" if name in MAY_BE_ZERO else "positive and finite"
        raise ValueError(
            f"{name} must be {allowed}, but is {numbers[row, 0]} in row {row}: correct the row, or leave it out."
        )
    return numbers
