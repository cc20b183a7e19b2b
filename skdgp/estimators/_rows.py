"""Tables as users have them, checked and brought into the units in which models compute."""

from dataclasses import dataclass

import numpy as np
from sklearn.utils.validation import check_consistent_length, validate_data

from .._sklearn import check_sample_weight
from ..gp.units import Units

#: Standardised inputs beyond this are as far from all others as any, but their squares may overflow.
FARTHEST = 1e15

FLOATS = (np.float64, np.float32)


@dataclass(frozen=True)
class Table:
    """Rows of positive weight, in the user's units."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.X)

    def where(self, used: np.ndarray) -> "Table":
        """Some of the rows."""
        return Table(self.X[used], self.y[used], self.weight[used])


def check_table(estimator, X, y, sample_weight=None, *, fresh: bool) -> Table:
    """Rows that a model can learn from; ``fresh`` ones say how many features there are, and what they are called."""
    X, y = _validated(estimator, X, y, reset=fresh, **estimator._check_options)
    check_consistent_length(X, y)
    weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return Table(X, y, weight).where(weight > 0)


def check_held_out(estimator, X_val, y_val) -> Table | None:
    """Rows that the user holds out, if any."""
    if (X_val is None) != (y_val is None):
        missing, got = ("X_val", "y_val") if X_val is None else ("y_val", "X_val")
        raise ValueError(f"{got} was given without {missing}: give both or neither.")
    return None if X_val is None else check_table(estimator, X_val, y_val, fresh=False)


def check_query(estimator, X) -> np.ndarray:
    """Rows to predict."""
    return _validated(estimator, X, reset=False, dtype=FLOATS)


def _validated(estimator, X, *y, **options):
    """scikit-learn's checks, whose errors do not say which column they are about."""
    try:
        return validate_data(estimator, X, *y, **options)
    except (ValueError, TypeError) as error:
        for name, column in _columns_by_name(X):
            if column.dtype.kind in "mM":
                raise ValueError(
                    f"Column {name!r} of X holds dates or durations, {column.dtype}: turn them into numbers, such as "
                    "days since a date, before."
                ) from error
            text = _first_text(column)
            if text is not None:
                raise ValueError(
                    f"Column {name!r} of X holds text, such as {text!r}: turn it into numbers before, for instance by "
                    "sklearn.preprocessing.OneHotEncoder or OrdinalEncoder in a pipeline."
                ) from error
        raise


def _columns_by_name(X):
    """Names or numbers, and values, of the columns of a table of any kind; none where it is no table."""
    names = getattr(X, "columns", None)
    try:
        if names is not None:
            return [(name, np.asarray(X[name])) for name in names]
        array = np.asarray(X)
        return list(enumerate(array.T)) if array.ndim == 2 else []
    except (ValueError, TypeError):
        return []


def _first_text(column: np.ndarray) -> str | None:
    """The first value that is text and no number."""
    for value in column if column.dtype.kind in "OUST" else ():
        if isinstance(value, str):
            try:
                float(value)
            except ValueError:
                return str(value)
    return None


def standardised(X: np.ndarray, units: Units, names) -> np.ndarray:
    """Features as the model sees them; ValueError that names the one that overflows."""
    inside = units.standardise(X)
    column = units.first_overflow(inside)
    if column is not None:
        name = column if names is None else names[column]
        raise ValueError(
            f"Column {name!r} of X overflows when it is standardised: its values reach "
            f"{np.abs(X[:, column]).max():.1e}. Rescale the column, for instance to its logarithm."
        )
    return inside
