"""The user's units, and the standardised ones in which models compute."""

from typing import Self

import numpy as np

#: Smallest deviation whose square keeps its precision in float64.
SMALLEST = float(np.sqrt(np.finfo(np.float64).tiny / np.finfo(np.float64).eps))  # 1e-146


class Units:
    """An affine map of columns: a model sees (value − shift) / scale.

    Parameters
    ----------
    shift, scale : array-like of shape (n_columns,)
        In the user's units. Scales are positive.
    """

    def __init__(self, shift, scale):
        self.shift, self.scale = (tuple(float(number) for number in column) for column in (shift, scale))

    @classmethod
    def of(cls, columns: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool = True) -> Self:
        """Units in which the columns (n, n_columns) have mean 0 and variance 1, or the user's own.

        The scale is infinite if squares of deviations overflow, or are too small for a number; see
        :meth:`first_overflow`.

        ``weight`` (n,) says how often each row counts; once by default.
        """
        n_rows, n_columns = columns.shape
        if not normalize:
            return cls(np.zeros(n_columns), np.ones(n_columns))
        weight = np.ones((n_rows, 1)) if weight is None else weight.astype(np.float64)[:, None]
        total = weight.sum()
        with np.errstate(over="ignore", invalid="ignore"):
            mean = (weight * columns).sum(axis=0) / total
            centred = columns - mean
            # The second term is zero except for rounding errors, which it corrects (Chan, Golub and LeVeque, 1983).
            squares = (weight * centred**2).sum(axis=0) - (weight * centred).sum(axis=0) ** 2 / total
            variance = squares / total
        scale = np.sqrt(variance)
        # Constant columns are not divided by anything. Rounding errors may make them seem to vary: 1e30 may differ from
        # its own mean by 1e14. Such a column is divided by its size.
        eps, size = np.finfo(np.float64).eps, np.abs(mean)
        with np.errstate(over="ignore", invalid="ignore"):
            constant = np.isfinite(variance) & (variance <= n_rows * eps * variance + (n_rows * size * eps) ** 2)
        scale = np.where(constant, 1.0, scale)
        largest = np.abs(centred).max(axis=0, initial=0.0)
        scale = np.where((largest > n_rows * size * eps) & (largest < SMALLEST), np.inf, scale)
        rounding = 10 * np.finfo(np.result_type(columns, np.float32)).eps * size
        return cls(mean, np.where(scale < rounding, size, scale))

    def at(self, columns: np.ndarray) -> Self:
        """Units of some of the columns, by their numbers."""
        return type(self)(*(np.asarray(numbers)[columns] for numbers in (self.shift, self.scale)))

    def standardise(self, columns: np.ndarray) -> np.ndarray:
        """Values (n, n_columns) as the model sees them, of the same type."""
        standardised = columns.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            standardised -= np.asarray(self.shift, dtype=columns.dtype)
            standardised /= np.asarray(self.scale, dtype=columns.dtype)
        return standardised

    def first_overflow(self, standardised: np.ndarray) -> int | None:
        """Number of the first column that has no finite variance, or values that are not finite any more."""
        finite = np.isfinite(standardised).all(axis=0) & np.isfinite(self.scale)
        return None if finite.all() else int(np.flatnonzero(~finite)[0])
