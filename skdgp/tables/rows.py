"""Checks the user's tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import is_classifier
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import check_consistent_length, validate_data

from .._sklearn import check_sample_weight
from .columns import (
    Columns,
    date_columns,
    first_collection,
    first_complex,
    first_text,
    is_frame,
    is_missing,
    kind_of_dates,
    without_na,
)

#: Types of tensors that are computed with as float32.
HALVES = (torch.float16, torch.bfloat16)

FLOATS = (np.float64, np.float32)


#: Limits of the precision in which models are trained.
SINGLE = np.finfo(np.float32)


@dataclass(frozen=True)
class Rows:
    """Rows of positive weight, in the user's units. Numbers stand for categories, and missing cells are NaN."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.X)

    def where(self, used: np.ndarray) -> "Rows":
        """Some of the rows."""
        return Rows(self.X[used], self.y[used], self.weight[used])

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


def check_rows(estimator, columns: Columns | None, X, y, sample_weight=None, *, reset: bool = False, **options) -> Rows:
    """Rows that a model can learn from.

    The estimator gives scikit-learn's errors their names. With ``reset`` it gets the number and the names of the
    features, and otherwise it has them. ``options`` are those of scikit-learn's checks.
    """
    X, y, sample_weight = map(as_known, (X, y, sample_weight))
    if issparse(y):
        raise ValueError("y is a sparse matrix, and the targets of all rows are needed: pass y.toarray().")
    kind = np.asarray(sample_weight).dtype
    if kind.kind in "mMc":  # NumPy would make numbers of dates
        raise ValueError(f"sample_weight holds {kind}, and a weight is a number that is not negative: pass numbers.")
    X, y = _validated(estimator, columns, X, y, reset=reset, **options)
    check_consistent_length(X, y)
    weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return Rows(X, y, weight).where(weight > 0)


def check_query(estimator, columns: Columns | None, X) -> np.ndarray:
    """Rows to predict, in the user's units."""
    return _validated(estimator, columns, X, reset=False, dtype=FLOATS)


def as_known(X):
    """Tensors of torch as arrays, tables of Arrow as frames of pandas, and other tables as they are."""
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        return (X.float() if X.dtype in HALVES else X).numpy()
    X = X.to_pandas() if hasattr(X, "to_pandas") and hasattr(X, "column_names") else X
    X = X.collect() if type(X).__name__ == "LazyFrame" else X  # of Polars
    names = list(X.columns) if is_frame(X) else []
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"Two columns have the name {twice!r}: give each column a name of its own.")
    return X


def check_labels(y, name: str = "y"):
    """Labels as they are, or as numbers where a list or an array of objects holds numbers.

    An error says if labels are missing, if they are no labels, or if they cannot be sorted since they are of several
    kinds.
    """
    labels = np.asarray(y, dtype=object if isinstance(y, list | tuple) else None)  # or NumPy would make text of numbers
    if labels.dtype.kind != "O" or not labels.ndim:
        return y
    values = labels.ravel().tolist()
    for row, label in enumerate(values):
        if is_missing(label):
            raise ValueError(f"{name} holds {label!r} in row {row}, which is no label: leave out rows without one.")
        if not isinstance(label, str | bytes | complex | np.generic | int | float):
            raise ValueError(f"{name} holds {label!r}, which is neither text nor a number: make text of all labels.")
    try:
        np.unique(labels)
    except TypeError as error:
        kinds = " and ".join(sorted({type(label).__name__ for label in values}))
        raise ValueError(
            f"{name} holds labels of several types, {kinds}, which cannot be sorted: make text of all, for instance."
        ) from error
    numbers = np.array(values).reshape(labels.shape)
    return y if numbers.dtype.kind in "OUS" else numbers


def _validated(estimator, columns: Columns | None, X, *y, **options):
    """scikit-learn's checks, with errors that name the column that they are about."""
    X, y = without_na(as_known(X)), tuple(map(without_na, y))
    for number, dtype in date_columns(X).items():  # NumPy would make numbers of some, such as microseconds
        if columns is None or not columns.is_categorical[number]:
            _refuse_column(X.columns[number] if is_frame(X) else number, dtype)
    if columns is not None:  # names and numbers of columns; their errors say enough
        validate_data(estimator, X, reset=options.pop("reset"), skip_check_array=True)
    try:
        if columns is None:
            return validate_data(estimator, X, *y, **_with_missing(options))
        return _checked(columns.coded(X), *y, **_with_missing(options))
    except (ValueError, TypeError, OverflowError) as error:
        _explain(error, X, columns)
        if y and not is_classifier(estimator):
            refuse_others(y[0], error)
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
        if columns is not None and columns.is_categorical[number]:
            continue
        dates = kind_of_dates(column)
        if dates is not None:
            _refuse_column(name, dates, error)
        text = first_text(column)
        if text is not None:
            raise ValueError(
                f"Column {name!r} of X holds text, such as {text!r}, but is not taken for a category: name it in "
                'categorical_features, or fit a data frame with categorical_features="from_dtype".'
            ) from error
        _refuse_complex(f"column {name!r} of X", column, error)
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


def _refuse_complex(what: str, values: np.ndarray, error: Exception | None) -> None:
    value = first_complex(values)
    if value is not None:
        raise ValueError(
            f"Complex data not supported, but {what} holds {value!r}: pass the real and the imaginary part as two "
            "columns."
        ) from error


def refuse_others(y, error: Exception | None = None) -> None:
    """Raise an error if there are dates, complex numbers or text among targets that must be numbers."""
    values = np.asarray(y)
    dates = kind_of_dates(values)
    if dates is not None:
        raise ValueError(
            f"y holds dates or durations, {dates}: turn them into numbers, such as days, before."
        ) from error
    _refuse_complex("y", values, error)
    text = first_text(values.ravel())
    if text is not None:
        raise ValueError(
            f"y holds text, such as {text!r}, and a regressor predicts numbers: take a classifier, or make numbers of "
            "the text."
        ) from error


def _with_missing(options: dict) -> dict:
    """Options of scikit-learn's checks that let cells of X be missing."""
    if "validate_separately" not in options:
        return options | {"ensure_all_finite": "allow-nan"}
    of_features, of_targets = options["validate_separately"]
    return options | {"validate_separately": (of_features | {"ensure_all_finite": "allow-nan"}, of_targets)}


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
