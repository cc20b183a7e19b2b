"""Features as models see them: only numbers, none of which is missing.

A category becomes one column for each level, which is 1 in the rows of this level and 0 in others. One more column is
for levels that ``fit`` has not seen. All these columns share a lengthscale. So the order of the levels does not matter,
and a new level is as far from the known levels as these are from each other. A category of more levels than
:data:`MOST_LEVELS` becomes a single number instead; see :mod:`skdgp.tables.levels`. In rows to predict, the number of a
level that ``fit`` has not seen is a missing cell: the level may be as far from the mean of all levels as others are.

A date becomes days, and columns for its parts behind those of all features; see :mod:`skdgp.tables.dates`.

A missing cell becomes the mean of its possible values, given the other cells of its row. If a column had missing cells
in ``fit``, a second column has the standard deviation of these possible values, and shares the lengthscale of the
first. The kernel then depends on the 2-Wasserstein distance of two Gaussians, (m − m')² + (s − s')². So a model learns
from rows with missing cells, and can tell them from complete rows. Predictions average over draws of the missing cells.
They are therefore less certain where the function changes with what is not known.
"""

import math
from collections.abc import Mapping
from typing import Self

import numpy as np
from scipy.special import ndtri

from ..gp.units import Units
from ..inference.state import to_units
from .dates import WIDTHS, Calendar, to_calendar
from .levels import level_means, means_of_others
from .missing import CellsGivenOthers

#: Largest number of levels of a category that has a column for each level.
MOST_LEVELS = 128

#: Number of levels of a category, the most frequent ones, that help to fill in missing cells.
TELLING_LEVELS = 10

#: Number of draws of the missing cells of a row in predictions.
N_DRAWS = 16


class Encoding:
    """How the columns of a table become those of a model.

    Parameters
    ----------
    n_levels : sequence of int
        For each feature the number of its levels; 0 if it is not a category.
    values : sequence of (ndarray of shape (n_levels + 1,) or None)
        For each category that becomes a single number, the numbers of its levels, and last that of any other level.
        None for other features.
    uncertain : sequence of bool
        For each feature whether it has a column of deviations.
    units : Units
        Units in which features are standardised.
    cells : CellsGivenOthers
        Distribution of the cells of a row: standardised numbers, and after them indicators of levels.
    calendars : sequence of (Calendar or None), default=None
        For each feature what is known of its dates; None for other features.
    empty : sequence of bool, default=None
        For each feature whether no row had a value in ``fit``. Models see zeros in place of its values.

    Attributes
    ----------
    groups : tuple of int or None
        The number of the lengthscale that each of the model's columns has: first those of the features, in their order,
        and then those of parts of dates. None if each feature has one column.
    first : ndarray of shape (n_features,)
        The first column of each feature.
    parts : list of (int, str)
        Features and parts of dates that have columns behind those of all features.
    """

    def __init__(self, n_levels, values, uncertain, units: Units, cells: CellsGivenOthers, calendars=None, empty=None):
        self.n_levels, self.uncertain = list(map(int, n_levels)), list(map(bool, uncertain))
        self.values = [None if numbers is None else np.asarray(numbers, dtype=np.float64) for numbers in values]
        self.units, self.cells = units, cells
        self.is_number = _is_number(self.n_levels)
        self.calendars: list[Calendar | None] = list(calendars or len(self.n_levels) * [None])
        self.empty: list[bool] = list(map(bool, empty or len(self.n_levels) * [False]))
        self.parts = [(j, part) for j, dates in enumerate(self.calendars) if dates is not None for part in dates.parts]
        widths = np.where(self.is_number, 1 + np.asarray(self.uncertain), np.asarray(self.n_levels) + 1)
        widths = np.array([*widths, *(WIDTHS[part] for _, part in self.parts)])
        self.first, self.width = np.cumsum([0, *widths])[: len(self.n_levels)], int(widths.sum())
        plain = self.width == len(self.n_levels)
        self.groups = None if plain else tuple(np.repeat(np.arange(len(widths)), widths).tolist())
        self.first_of_groups = np.cumsum([0, *widths])[:-1]  # of features and of parts of dates

    @classmethod
    def learn(
        cls, X: np.ndarray, y: np.ndarray, weight: np.ndarray, n_levels: list[int], *, normalize: bool, calendars=None
    ) -> tuple[Self, Units]:
        """The encoding of rows, and the units of the model's columns.

        Parameters
        ----------
        X : ndarray of shape (n, n_features)
            Numbers; for categories, the places of their levels in ``Columns.levels``.
        y : ndarray of shape (n, P)
            Targets, or indicators of classes; NaN where one is missing.
        weight : ndarray of shape (n,)
            How often each row counts.
        n_levels : list of int
            For each feature the number of its levels; 0 if it is not a category.
        normalize : bool
            Whether the model's columns are standardised.
        calendars : list of (Calendar or None), default=None
            For each feature what is known of its dates.
        """
        values = [
            level_means(X[:, j].astype(int), n, y, weight) if n > MOST_LEVELS else None for j, n in enumerate(n_levels)
        ]
        empty, is_number = np.isnan(X).all(axis=0).tolist(), _is_number(n_levels)
        # models learn from numbers of other rows, so that units and missing cells have to be like these
        X = _numbers_for_levels(without_empty(X, empty), values, _numbers_of_others(X, y, weight, n_levels))
        missing = np.isnan(X)
        units = _units_of_known(X, weight, missing)
        cells = CellsGivenOthers.of(_cells(X, n_levels, is_number, units), weight)
        encoding = cls(n_levels, values, missing.any(axis=0), units, cells, calendars, empty)
        return encoding, encoding._input_units(X, weight, normalize=normalize)

    @classmethod
    def of_complete(cls, units: Units) -> Self:
        """The encoding of features that are all numbers, of which none was missing in ``fit``."""
        n_features = len(units.shift)
        zero, far = np.zeros(n_features), np.full(n_features, np.inf)
        cells = CellsGivenOthers(zero, np.eye(n_features), -far, far)
        return cls(n_features * [0], n_features * [None], n_features * [False], units, cells)

    def of_others(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> dict[int, np.ndarray]:
        """Numbers (n,) that stand for the levels of training rows, by feature, where they depend on the targets."""
        return _numbers_of_others(X, y, weight, self.n_levels)

    def encode(self, X: np.ndarray, of_others: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
        """The model's columns (n, width) of rows (n, n_features), in the user's units and of the same dtype."""
        X = _numbers_for_levels(X, self.values, of_others)
        deviation = None
        if has_missing(X):
            X, deviation = self._filled(X)
        return self._columns_of(X, deviation)

    def without_new_levels(self, X: np.ndarray) -> np.ndarray:
        """Rows to predict, in which new levels of categories that become a single number are missing cells."""
        many = [j for j, numbers in enumerate(self.values) if numbers is not None and np.ptp(numbers) > 0]
        if many:
            X = X.copy()
            X[:, many] = np.where(X[:, many] == np.take(self.n_levels, many), np.nan, X[:, many])
        return X

    def encode_draws(self, X: np.ndarray, n_draws: int = N_DRAWS) -> np.ndarray:
        """The model's columns (n_draws, n, width) of rows with missing cells, which are drawn so often."""
        X, numbers = _numbers_for_levels(X, self.values), np.flatnonzero(self.is_number)
        cells, units = _cells(X, self.n_levels, self.is_number, self.units), self.units.at(numbers)
        missing, encoded = np.isnan(X[:, numbers]), []
        for drawn in self.cells.draw(cells, _normal_numbers(n_draws, len(self.cells.mean))):
            complete = X.copy()
            complete[:, numbers] = np.where(
                missing, drawn[:, : len(numbers)] * units.scale + units.shift, X[:, numbers]
            )
            encoded.append(self._columns_of(complete, None))
        return np.stack(encoded)

    def _columns_of(self, X: np.ndarray, deviation: np.ndarray | None) -> np.ndarray:
        """The model's columns of complete rows; ``deviation`` (n, n_features) says how uncertain each cell is."""
        if self.groups is None:
            return X
        encoded = np.zeros((len(X), self.width), dtype=X.dtype)
        for j, start in enumerate(self.first.tolist()):
            if not self.is_number[j]:
                encoded[np.arange(len(X)), start + X[:, j].astype(int)] = 1
                continue
            encoded[:, start] = X[:, j]
            if self.uncertain[j] and deviation is not None:
                encoded[:, start + 1] = deviation[:, j]
        start = self.width - sum(WIDTHS[part] for _, part in self.parts)
        for j, dates in enumerate(self.calendars):
            if dates is not None:
                encoded[:, start : start + dates.width] = dates.columns(X[:, j])
                start += dates.width
        return encoded

    def _filled(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows whose missing cells are filled in, and the deviations (n, n_features) of the cells."""
        filled, deviation, numbers = X.copy(), np.zeros_like(X), np.flatnonzero(self.is_number)
        rows, units = np.flatnonzero(np.isnan(X).any(axis=1)), self.units.at(numbers)
        mean, spread = self.cells.fill(_cells(X[rows], self.n_levels, self.is_number, self.units))
        cells = np.ix_(rows, numbers)
        filled[cells] = np.where(np.isnan(X[cells]), mean[:, : len(numbers)] * units.scale + units.shift, X[cells])
        deviation[cells] = spread[:, : len(numbers)] * units.scale  # 0 for known cells
        return filled, deviation

    def _input_units(self, X: np.ndarray, weight: np.ndarray, *, normalize: bool) -> Units:
        """Units in which the model's columns are standardised. The columns of a category together have variance one."""
        shift, scale = np.zeros(self.width), np.ones(self.width)
        if not normalize:
            return Units(shift, scale)
        for j, start in enumerate(self.first.tolist()):
            if self.is_number[j]:
                shift[start], scale[start : start + 1 + self.uncertain[j]] = self.units.shift[j], self.units.scale[j]
                continue
            columns = slice(start, start + self.n_levels[j] + 1)
            count = np.bincount(X[:, j].astype(int), weight, minlength=self.n_levels[j] + 1)
            shift[columns] = frequency = count / count.sum()
            scale[columns] = math.sqrt((frequency * (1 - frequency)).sum()) or 1.0
        dates = [calendar.units() for calendar in self.calendars if calendar is not None]
        n_columns = sum(WIDTHS[part] for _, part in self.parts)
        if n_columns:
            shift[-n_columns:], scale[-n_columns:] = (np.concatenate(numbers) for numbers in zip(*dates, strict=True))
        return Units(shift, scale)

    def to_plain(self) -> list:
        """The encoding as lists of numbers."""
        units = [list(self.units.shift), list(self.units.scale)]
        values = [None if numbers is None else numbers.tolist() for numbers in self.values]
        calendars = [None if dates is None else dates.to_plain() for dates in self.calendars]
        return [self.n_levels, values, self.uncertain, units, self.cells.to_plain(), calendars, self.empty]

    @classmethod
    def from_plain(cls, state: list) -> Self:
        """The inverse of :meth:`to_plain`; files from before dates and empty columns have fewer entries."""
        n_levels, values, uncertain, units, cells, calendars, empty = [*state, None, None][:7]
        calendars = None if calendars is None else list(map(to_calendar, calendars))
        return cls(n_levels, values, uncertain, to_units(units), CellsGivenOthers.from_plain(cells), calendars, empty)


def has_missing(X: np.ndarray) -> bool:
    """Whether a cell may be missing. The sum shows it without taking memory."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(X.sum()))


def without_empty(X: np.ndarray, empty: list[bool]) -> np.ndarray:
    """Rows with zeros in the columns that were empty in ``fit``: a model can tell nothing from their values."""
    return np.where(empty, X.dtype.type(0), X) if any(empty) else X


def _normal_numbers(n_draws: int, n_columns: int) -> np.ndarray:
    """Standard normal numbers (n_draws, n_columns): each column has the same quantiles in an order of its own."""
    rng = np.random.default_rng(0)
    quantiles = ndtri((np.arange(n_draws) + 0.5) / n_draws)
    quantiles /= quantiles.std()
    return np.stack([rng.permutation(quantiles) for _ in range(n_columns)], axis=1)


def _is_number(n_levels: list[int]) -> np.ndarray:
    """Mask of the features that are numbers, or categories that become a single number."""
    return (np.asarray(n_levels) == 0) | (np.asarray(n_levels) > MOST_LEVELS)


def _numbers_of_others(X: np.ndarray, y: np.ndarray, weight: np.ndarray, n_levels: list[int]) -> dict[int, np.ndarray]:
    """Numbers (n,) of the levels of each category that has too many of them, from other rows."""
    return {j: means_of_others(X[:, j].astype(int), n, y, weight) for j, n in enumerate(n_levels) if n > MOST_LEVELS}


def _numbers_for_levels(X: np.ndarray, values: list, of_others: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
    """Rows in which numbers replace the levels that have no columns of their own."""
    if all(numbers is None for numbers in values):
        return X
    X = X.copy()
    for j, numbers in enumerate(values):
        if numbers is not None:
            known = ~np.isnan(X[:, j])
            X[known, j] = numbers[X[known, j].astype(int)] if of_others is None else of_others[j][known]
    return X


def _cells(X: np.ndarray, n_levels: list[int], is_number: np.ndarray, units: Units) -> np.ndarray:
    """Standardised numbers of rows, and indicators of the most frequent levels."""
    numbers = units.standardise(X.astype(np.float64))[:, is_number]
    categories = np.flatnonzero(~is_number).tolist()
    indicators = [X[:, [j]] == np.arange(min(n_levels[j], TELLING_LEVELS)) for j in categories]
    cells = np.hstack([numbers, *indicators])
    return np.nan_to_num(cells, nan=np.nan, posinf=0.0, neginf=0.0)  # what overflows raises an error later


def _units_of_known(X: np.ndarray, weight: np.ndarray, missing: np.ndarray) -> Units:
    """Units in which the known cells of each column have mean 0 and variance 1."""
    if not missing.any():
        return Units.of(X, weight)
    shift, scale = list[float](), list[float]()
    for column, gaps in zip(X.T, missing.T, strict=True):
        units = Units.of(column[~gaps, None], weight[~gaps]) if not gaps.all() else Units([0.0], [1.0])
        shift += units.shift
        scale += units.scale
    return Units(shift, scale)
