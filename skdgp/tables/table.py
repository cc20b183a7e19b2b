"""What a fit learns of the user's table, and rows as models see them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..gp.units import Units
from .columns import Columns
from .encoding import Encoding, without_empty
from .frames import as_array_or_frame
from .rows import Rows, check_query, check_rows
from .targets import Labels, Numbers
from .trend import Trend

#: Limit of standardised inputs. Larger ones would be no farther from the data in effect, but their squares overflow.
FARTHEST = 1e15


class Encoded(NamedTuple):
    """Rows to learn from: as the user gave them, and as models see them."""

    given: Rows
    X: np.ndarray  # (n, width), standardised
    y: np.ndarray  # (n, P), in the units of the user, or of transformed targets
    labels: np.ndarray  # targets of all rows whose weight the user has not set to zero

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class Table:
    """What a fit has learnt of a table. It does not change any more.

    Parameters
    ----------
    columns : Columns or None
        Which columns are categories or dates, and what is known of them; None if all are numbers.
    encoding : Encoding
        How columns become those of a model.
    units : Units
        Units in which the model's columns are standardised.
    targets : Numbers or Labels
        What the targets are.
    names : ndarray of str or None
        Names of the features, if they have any.
    trends : tuple of Trend, default=()
        Regressors whose predictions are further columns of the models.
    """

    columns: Columns | None
    encoding: Encoding
    units: Units
    targets: Numbers | Labels
    names: np.ndarray | None = None
    trends: tuple[Trend, ...] = ()

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.encoding.n_levels)

    @property
    def is_categorical(self) -> np.ndarray | None:
        """Mask of the features that are categories; None if none is."""
        return None if self.columns is None or not self.columns.is_categorical.any() else self.columns.is_categorical

    @cached_property
    def may_lack(self) -> dict[int, int]:
        """The categories that some rows of ``fit`` lacked, and for each the number of the level that stands for it."""
        levels = enumerate([] if self.columns is None else self.columns.levels)
        return {j: known.index(None) for j, known in levels if known is not None and None in known}

    def lacking(self, X: np.ndarray) -> np.ndarray:
        """Which of these categories are missing (n, J) in checked rows: one or zero."""
        may_lack = self.may_lack
        return (X[:, list(may_lack)] == list(may_lack.values())).astype(np.float64)

    @property
    def date_features(self) -> dict | None:
        """For each column of dates or durations, by name, what the models see of it; None if there is none."""
        parts = {
            self.name(j): ["days", *dates.parts] for j, dates in enumerate(self.encoding.calendars) if dates is not None
        }
        return parts or None

    @property
    def group_names(self) -> list:
        """Names of the features, and then of parts of dates, such as "when_week"; empty if features have no names."""
        if self.names is None:
            return []
        return [*self.names, *(f"{self.names[j]}_{part}" for j, part in self.encoding.parts)]

    def name(self, feature: int):
        """The name of a feature, or its number if features have no names."""
        return feature if self.names is None else str(self.names[feature])

    # Rows to learn from.

    def read(
        self,
        estimator,
        X,
        y,
        sample_weight=None,
        *,
        class_weight=None,
        known: Mapping[str, Any] | None = None,
        learnt: bool = False,
    ) -> Encoded:
        """Rows to learn from, checked and encoded; ``known`` is what the user knows of them, by name.

        With ``learnt`` models learn from them in ``fit``, so that numbers that stand for levels of a category are
        computed from other rows only.
        """
        rows = check_rows(estimator, self.columns, self.targets, X, y, sample_weight, known=known)
        return self._weighted(rows, rows.y, class_weight, "X", learnt=learnt)

    def read_held_out(
        self, estimator, X_val, y_val, labels: np.ndarray, class_weight, known: Mapping[str, Any] | None
    ) -> Encoded | None:
        """Rows that the user holds out; None if there are none. The labels of the training rows decide weights."""
        if (X_val is None) != (y_val is None):
            missing, got = ("X_val", "y_val") if X_val is None else ("y_val", "X_val")
            raise ValueError(f"{got} was given without {missing}: give both or neither.")
        of_rows = {f"{name}_val": value for name, value in (known or {}).items() if value is not None}
        if X_val is None:
            if of_rows:
                raise ValueError(f"{min(of_rows)} was given without X_val: give the rows that it is about, too.")
            return None
        rows = check_rows(estimator, self.columns, self.targets, X_val, y_val, known=of_rows)
        rows = replace(rows, known={name.removesuffix("_val"): values for name, values in rows.known.items()})
        return self._weighted(rows, labels, class_weight, "X_val")

    def _weighted(self, rows: Rows, labels: np.ndarray, class_weight, name: str, *, learnt: bool = False) -> Encoded:
        rows = rows.weighted(self.targets.weights(rows.y, labels, class_weight), name)
        return self.encoded(rows, self.targets.encode(rows.y), labels, learnt=learnt)

    def encoded(self, rows: Rows, y: np.ndarray, labels: np.ndarray, *, learnt: bool) -> Encoded:
        """Checked rows as models see them; ``y`` are their encoded targets."""
        rows, of_others = replace(rows, X=without_empty(rows.X, self.encoding.empty)), None
        if learnt and any(values is not None for values in self.encoding.values):
            of_others = self.encoding.of_others(rows.X, self.targets.amounts(y), rows.weight)
        return Encoded(rows, self._standardised(self.encoding.encode(rows.X, of_others)), y, labels)

    def _standardised(self, columns: np.ndarray) -> np.ndarray:
        """The model's columns of rows to learn from, standardised. If one overflows, a ValueError names its feature."""
        inside = self.units.standardise(columns)
        column = self.units.first_overflow(inside)
        if column is not None:
            raise ValueError(
                f"Column {self._name_of(column)!r} of X overflows or underflows when it is standardised: its values "
                f"reach {np.abs(columns[:, column]).max():.1e}. Rescale the column, for instance to its logarithm."
            )
        return inside.clip(-FARTHEST, FARTHEST)  # as rows to predict: later rows may be farther away than those of fit

    def check_reach(self, X: np.ndarray) -> None:
        """ValueError if rows (n, width), encoded but not standardised, reach beyond what models see."""
        beyond = np.flatnonzero((np.abs(X) >= FARTHEST).any(axis=0))
        if len(beyond):
            raise ValueError(
                f"Column {self._name_of(beyond[0])!r} of X reaches {FARTHEST:.0e}, beyond which models see no "
                "difference: set normalize_X=True, or rescale the column."
            )

    def _name_of(self, column: int):
        """The name of the feature that a model's column belongs to."""
        return self.name(column if self.encoding.groups is None else self.encoding.groups[column])

    # Rows to predict.

    def query(self, estimator, X) -> np.ndarray:
        """Rows to predict, checked, in the user's units."""
        X = without_empty(check_query(estimator, self.columns, X), self.encoding.empty)
        return self.encoding.without_new_levels(X)

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """Checked rows as models see them."""
        return self.clipped(self.encoding.encode(X))

    def clipped(self, columns: np.ndarray) -> np.ndarray:
        """The model's columns of rows to predict, standardised. Rows that are too far away come nearer."""
        return self.with_trends(self.units.standardise(columns).clip(-FARTHEST, FARTHEST))

    def with_trends(self, X: np.ndarray) -> np.ndarray:
        """Standardised columns (n, width) of rows that trends have not learnt from, with the trends behind them."""
        if not self.trends:
            return X
        columns = self.as_given(X)
        trends = [trend.units.standardise(trend(columns)).astype(X.dtype) for trend in self.trends]
        return np.hstack([X, *trends])

    def as_given(self, X: np.ndarray) -> np.ndarray:
        """Standardised columns (n, width) in the user's units, in float64."""
        return X.astype(np.float64) * np.asarray(self.units.scale) + np.asarray(self.units.shift)

    # Values in the user's units.

    def flattened(self, values: np.ndarray) -> np.ndarray:
        """Values (n, P, ...), without the axis of outputs if targets had none."""
        return values[:, 0] if self.targets.flat else values

    def by_feature(self, slopes: np.ndarray, X: np.ndarray, axis: int = -1) -> np.ndarray:
        """Slopes along features in the user's units, from slopes along the model's columns.

        They are NaN for categories and for missing cells of X, since there is nothing to vary. Along dates they are
        slopes per day, while the time of the year, the weekday and the time of the day stay.
        """
        slopes = np.moveaxis(np.take(slopes, self.encoding.first, axis=axis), axis, -1)  # (n, ..., n_features)
        nothing = np.isnan(X) | (np.asarray(self.encoding.n_levels) > 0)  # (n, n_features)
        nothing = nothing.reshape(len(X), *(slopes.ndim - 2) * [1], -1)
        return np.moveaxis(np.where(nothing, np.nan, slopes / self.feature_units.scale), -1, axis)

    @property
    def feature_units(self) -> Units:
        """Units of each feature: those of the first of its columns."""
        return self.units.at(self.encoding.first)

    @property
    def group_units(self) -> Units:
        """Units of each feature, and then of each part of dates."""
        return self.units.at(self.encoding.first_of_groups)


def learn(
    estimator,
    targets: Numbers | Labels,
    X,
    y,
    sample_weight=None,
    *,
    normalize: bool,
    categorical_features=None,
    class_weight=None,
    classes=None,
    known: Mapping[str, Any] | None = None,
) -> tuple[Table, Encoded]:
    """Learn from a table, and encode it.

    Parameters
    ----------
    estimator : object
        An estimator with parameters only. It gets the number and the names of the features.
    targets : Numbers or Labels
        Says which kind the targets are of, and has learnt nothing yet.
    X, y, sample_weight
        The table.
    normalize : bool
        Whether the model's columns are standardised.
    categorical_features, class_weight
        Parameters of these names.
    classes : array-like, default=None
        Labels of all chunks together, if the table is one chunk of them.
    known : dict, default=None
        What the user knows of the rows, by name.
    """
    X, sample_weight = as_array_or_frame(X), as_array_or_frame(sample_weight)  # once, since a table of Arrow is copied
    columns, targets = Columns.of(X, categorical_features, sample_weight), targets.meeting(y)
    rows = check_rows(estimator, columns, targets, X, y, sample_weight, known=known, reset=True)
    labels = rows.y
    targets = targets.learn(labels if classes is None else np.asarray(classes))
    rows = rows.weighted(targets.weights(labels, labels, class_weight), "X")
    numbers = targets.encode(rows.y)
    n_levels = rows.X.shape[1] * [0] if columns is None else columns.n_levels
    calendars = None if columns is None else columns.calendars
    encoding, units = Encoding.learn(
        rows.X, targets.amounts(numbers), rows.weight, n_levels, normalize=normalize, calendars=calendars
    )
    table = Table(columns, encoding, units, targets, getattr(estimator, "feature_names_in_", None))
    encoded = table.encoded(rows, numbers, labels, learnt=True)
    if not normalize:
        table.check_reach(encoded.X)
    return table, encoded
