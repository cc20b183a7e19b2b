"""The distribution of missing cells, given the other cells of their row.

The model is one Gaussian distribution of all columns together. The EM algorithm learns it from incomplete rows
(Dempster, Laird and Rubin, JRSS B 1977; Little and Rubin, "Statistical Analysis with Missing Data", Sec. 11.2). Given
the known cells of a row, its missing cells then have a Gaussian distribution, too.
"""

from collections.abc import Iterator

import numpy as np

#: Largest number of rows to learn from. More would hardly change the covariance of ``MOST_COLUMNS`` columns.
ROWS = 5000

#: Largest number of EM rounds.
ROUNDS = 30

#: The EM rounds end when no covariance of standardised columns changes by more than this.
TOLERANCE = 1e-3

#: Added to variances of one. Without it the covariance is singular if other columns determine a column exactly.
RIDGE = 1e-3

#: With more columns than this, columns are taken to be independent: a larger covariance would cost more than it is
#: worth.
MOST_COLUMNS = 200

#: Largest number of matrix entries that are computed at a time for rows with missing cells.
NUMBERS = 2**21


class CellsGivenOthers:
    """A Gaussian distribution of the cells of a row.

    Parameters
    ----------
    mean : array-like of shape (Q,)
    covariance : array-like of shape (Q, Q)
    low, high : array-like of shape (Q,)
        Limits of the means of missing cells. Without them, columns with heavy tails can lead far beyond the data.
    """

    def __init__(self, mean, covariance, low, high):
        numbers = (mean, covariance, low, high)
        self.mean, self.covariance, self.low, self.high = (np.asarray(array, dtype=np.float64) for array in numbers)

    @classmethod
    def of(cls, rows: np.ndarray, weight: np.ndarray) -> "CellsGivenOthers":
        """Learn it from standardised rows (n, Q), which may have missing cells, with weights (n,)."""
        sample = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), ROWS)).astype(int))
        rows, weight = rows[sample].astype(np.float64), weight[sample] / weight[sample].sum()
        n_columns, known = rows.shape[1], ~np.isnan(rows)
        counts = np.maximum(weight @ known, np.finfo(float).tiny)
        mean = weight @ np.where(known, rows, 0.0) / counts
        variance = weight @ np.where(known, rows - mean, 0.0) ** 2 / counts
        low, high = np.fmin.reduce(rows, initial=0.0), np.fmax.reduce(rows, initial=0.0)  # of known cells
        cells = cls(mean, np.diag(variance + RIDGE), low, high)
        if n_columns <= MOST_COLUMNS:
            for _ in range(1 if known.all() else ROUNDS):
                before = cells.covariance
                cells._maximise(rows, weight)
                if np.abs(cells.covariance - before).max() < TOLERANCE:
                    break
        return cells

    def _maximise(self, rows: np.ndarray, weight: np.ndarray) -> None:
        """One round of the EM algorithm: moments of the rows, in expectation over their missing cells."""
        n_columns, filled = len(self.mean), rows.copy()
        spread = np.zeros(n_columns * n_columns)
        for index, columns, means, covariances in self._missing(rows):
            filled[index[:, None], columns] = means
            places = columns[:, :, None] * n_columns + columns[:, None, :]
            added = covariances * weight[index, None, None]
            spread += np.bincount(places.ravel(), added.ravel(), minlength=len(spread))
        self.mean = weight @ filled
        centred = filled - self.mean
        self.covariance = (weight[:, None] * centred).T @ centred + spread.reshape(n_columns, n_columns)
        self.covariance[np.diag_indices(n_columns)] += RIDGE

    def fill(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows (n, Q) whose missing cells have their means, and deviations (n, Q), which are 0 for known cells."""
        filled, deviation = rows.astype(np.float64), np.zeros(rows.shape)
        for index, columns, means, covariances in self._missing(rows):
            filled[index[:, None], columns] = means
            deviation[index[:, None], columns] = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
        return filled, deviation

    def draw(self, rows: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Rows (K, n, Q) whose missing cells are drawn K times, from standard normal numbers (K, Q)."""
        drawn = np.repeat(rows[None].astype(np.float64), len(normal), axis=0)
        for index, columns, means, covariances in self._missing(rows):
            around = np.linalg.cholesky(covariances)[None] @ normal[:, columns][..., None]  # (K, n, k, 1)
            values = np.clip(means + around[..., 0], self.low[columns], self.high[columns])
            drawn[:, index[:, None], columns] = values
        return drawn

    def _missing(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Groups of rows with k missing cells each: row numbers (n,), columns (n, k), moments (n, k) and (n, k, k).

        With the precision P = S⁻¹ of all columns, the missing cells have the covariance P_mm⁻¹ and the mean
        μ_m − P_mm⁻¹ P_mo (x_o − μ_o). So the matrices to invert are only as large as the number of missing cells.
        """
        missing = np.isnan(rows)
        counts = missing.sum(axis=1)
        if not counts.any():
            return
        precision = np.linalg.inv(self.covariance)
        for n_missing in np.unique(counts[counts > 0]).tolist():
            every = np.flatnonzero(counts == n_missing)
            size = max(1, NUMBERS // max(n_missing**2, rows.shape[1]))
            for index in np.split(every, range(size, len(every), size)):
                columns = np.nonzero(missing[index])[1].reshape(-1, n_missing)
                centred = np.where(missing[index], 0.0, rows[index] - self.mean)  # (n, Q)
                covariances = np.linalg.inv(precision[columns[:, :, None], columns[:, None, :]])  # (n, k, k)
                pull = np.take_along_axis(centred @ precision, columns, axis=1)  # P_mo (x_o − μ_o), (n, k)
                means = self.mean[columns] - (covariances @ pull[:, :, None])[:, :, 0]
                yield index, columns, np.clip(means, self.low[columns], self.high[columns]), covariances

    def to_plain(self) -> list:
        """The distribution as lists of numbers."""
        return [array.tolist() for array in (self.mean, self.covariance, self.low, self.high)]

    @classmethod
    def from_plain(cls, state: list) -> "CellsGivenOthers":
        """The inverse of :meth:`to_plain`."""
        return cls(*state)
