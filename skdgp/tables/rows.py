"""Rows of the user's tables, and the checks that they pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import check_consistent_length, validate_data

from .._sklearn import check_sample_weight
from .cells import first_collection, first_text, is_decimal_comma, kind_of_dates
from .columns import Columns, date_columns
from .frames import as_array_or_frame, is_frame, without_na
from .known import Known, check_known
from .targets import OF_FEATURES, Labels, Numbers, refuse_complex

#: Limits of the precision in which models are trained.
SINGLE = np.finfo(np.float32)


@dataclass(frozen=True)
class Rows:
    """Rows of positive weight, in the user's units. Numbers stand for categories, and missing cells are NaN.

    ``number`` are their numbers among the ``n_given`` rows that the user gave. ``known`` is what else is known of them.
    """

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    number: np.ndarray
    n_given: int
    known: Known = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.X)

    def where(self, used: np.ndarray) -> "Rows":
        """Some of the rows."""
        known = {name: values[used] for name, values in self.known.items()}
        return Rows(self.X[used], self.y[used], self.weight[used], self.number[used], self.n_given, known)

    def weighted(self, factor: np.ndarray | float, name: str) -> "Rows":
        """Rows with other weights, without those whose weight is zero; ``name`` is that of their features."""
        rows = replace(self, weight=self.weight * factor)
        rows = rows.where(rows.weight > 0)  # a class without weight counts as absent, as a row without weight does
        if not len(rows):
            raise ValueError(f"{name} has no row with a target and a positive weight: pass other rows, or none.")
        with np.errstate(over="ignore"):
            largest, total = rows.weight.max(), rows.weight.sum()
        if largest < SINGLE.tiny or total > SINGLE.max:
            raise ValueError(
                f"Weights of the rows of {name} are at most {largest:.1e} and add up to {total:.1e}, which float32 "
                "cannot hold: pass sample_weight=weight / weight.max(), or a smaller class_weight."
            )
        return rows


def check_rows(
    estimator,
    columns: Columns | None,
    targets: Numbers | Labels,
    X,
    y,
    sample_weight=None,
    *,
    known: Mapping[str, Any] | None = None,
    reset: bool = False,
) -> Rows:
    """Rows that a model can learn from.

    The estimator gives scikit-learn's errors their names. With ``reset`` it gets the number and the names of the
    features, and otherwise it has them. ``known`` is what the user knows of the rows, by name.
    """
    X, y, sample_weight = map(as_array_or_frame, (X, targets.checkable(y), sample_weight))
    if issparse(y):
        raise ValueError("y is a sparse matrix, and the targets of all rows are needed: pass y.toarray().")
    kind = np.asarray(sample_weight).dtype
    if kind.kind in "mMc":  # NumPy would make numbers of dates
        raise ValueError(f"sample_weight holds {kind}, and a weight is a number that is not negative: pass numbers.")
    X, y = _validated(estimator, columns, X, y, targets=targets, reset=reset)
    check_consistent_length(X, y)
    weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    checked = check_known(known or {}, len(X))
    return Rows(X, y, weight, np.arange(len(X)), len(X), checked).where(weight > 0)


def check_query(estimator, columns: Columns | None, X) -> np.ndarray:
    """Rows to predict, in the user's units."""
    return _validated(estimator, columns, as_array_or_frame(X))


def _validated(estimator, columns: Columns | None, X, *y, targets: Numbers | Labels | None = None, reset: bool = False):
    """scikit-learn's checks, with errors that name the column that they are about."""
    X, y = without_na(X), tuple(map(without_na, y))
    for number, dtype in date_columns(X).items():  # NumPy would make numbers of some, such as microseconds
        if columns is None or columns.is_number(number):
            _refuse_column(X.columns[number] if is_frame(X) else number, dtype)
    if columns is not None:  # names and numbers of columns; their errors say enough
        validate_data(estimator, X, reset=reset, skip_check_array=True)
    options = OF_FEATURES if targets is None else targets.check_options
    try:
        if columns is None:
            return validate_data(estimator, X, *y, reset=reset, **options)
        return _checked(columns.coded(X), *y, **options)
    except (ValueError, TypeError, OverflowError) as error:
        _explain(error, X, columns)
        if targets is not None:
            targets.explain(error, *y)
        raise


def _explain(error: Exception, X, columns: Columns | None) -> None:
    """Raise an error that names the column that scikit-learn's is about, if a column of ``X`` explains it."""
    if isinstance(X, str) or not (hasattr(X, "__array__") or issparse(X) or isinstance(X, Sequence)):
        raise TypeError(
            f"X is of type {type(X).__name__}, which is no table: pass an array or a data frame with a row for each "
            "sample."
        ) from error
    if isinstance(error, OverflowError):
        raise ValueError(
            "X or y holds a whole number of more than 308 digits, which float64 cannot hold: pass its logarithm, for "
            "instance."
        ) from error
    for number, (name, column) in enumerate(_columns_by_name(X)):
        if columns is not None and not columns.is_number(number):
            continue
        dates = kind_of_dates(column)
        if dates is not None:
            _refuse_column(name, dates, error)
        text = first_text(column)
        if text is not None:
            if is_decimal_comma(text):
                raise ValueError(
                    f"Column {name!r} of X holds numbers with a decimal comma, such as {text!r}: read the file by "
                    'pandas.read_csv(..., decimal=","), or replace commas by points before.'
                ) from error
            raise ValueError(
                f"Column {name!r} of X holds text, such as {text!r}, but is not taken for a category: name it in "
                'categorical_features, or fit a data frame with categorical_features="from_dtype".'
            ) from error
        refuse_complex(f"column {name!r} of X", column, error)
        other = first_collection(column)
        if other is not None:
            raise TypeError(
                f"Column {name!r} of X holds {other!r}, but a cell of this argument must be a string or a number: make "
                "columns of what is in it, before."
            ) from error


def _refuse_column(name, dates, error: Exception | None = None) -> None:
    raise ValueError(
        f"Column {name!r} of X holds dates or durations, {dates}: turn them into numbers, such as days since a date, "
        "before."
    ) from error


def _checked(X, *y, validate_separately=None, **options):
    """The same checks, of a table in which numbers stand for categories."""
    if not y:
        return check_array(X, **options)
    if validate_separately is None:
        return check_X_y(X, *y, **options)
    of_features, of_targets = validate_separately
    return check_array(X, **of_features), check_array(*y, **of_targets)


def _columns_by_name(X):
    """Names or numbers, and values, of the columns of any kind of table; an empty list if ``X`` is not a table."""
    names = getattr(X, "columns", None)
    try:
        if names is not None:
            return [(name, np.asarray(X[name])) for name in names]
        array = np.asarray(X)
        return list(enumerate(array.T)) if array.ndim == 2 else []
    except (ValueError, TypeError):
        return []
