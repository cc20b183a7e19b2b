"""Blocks of rows: tuples of rows of X, rows of y, and their weights or None.

X, y and weights are arrays, or columns of pandas or Polars.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from ..estimators._shell import Shell
from ..estimators._training import learn
from ..tables.frames import is_pandas, rows_at

Block = tuple[Any, Any, Any]


def used(X, weight) -> np.ndarray:
    """Numbers of the rows of positive weight."""
    return np.arange(len(X)) if weight is None else np.flatnonzero(np.asarray(weight) > 0)


def rows_of(block: Block, picked: np.ndarray) -> Block:
    """The rows with these numbers."""
    X, y, weight = (None if table is None else rows_at(table, picked) for table in block)
    return X, y, weight


def together(blocks: Sequence[Block]) -> Block:
    """Join several blocks to one."""
    X, y, weight = (_concatenated(tables) for tables in zip(*blocks, strict=True))
    return X, y, weight


def teach(model, block: Block, of_all: dict[str, Any], *, new: bool) -> None:
    """Let a model learn from a chunk of rows, which judge it first if they are ``new`` to it.

    ``of_all`` has the arguments of ``partial_fit`` that depend on all rows.
    """
    X, y, weight = block
    if new:
        model.partial_fit(X, y, sample_weight=weight, **of_all)
    else:
        learn(model, X, y, weight, **of_all, new=False)


def of_all_rows(model, n_rows: int | None, labels: Sequence | None) -> dict[str, Any]:
    """The arguments of ``partial_fit`` that depend on all rows."""
    of_all: dict[str, Any] = {"total_size": n_rows}
    if is_classifier(model):
        of_all["classes"] = np.asarray(labels)
    return of_all


def check_estimator(caller: str, estimator) -> None:
    """TypeError if the estimator is not of this package."""
    if not isinstance(estimator, Shell):
        raise TypeError(
            f"{caller} fits estimators of skdgp, got {type(estimator).__name__}: of a pipeline give the last step, and "
            "transform the table before."
        )


def check_numbers(numbers: dict[str, Any]) -> None:
    """ValueError if a number that has a name is not an integer of at least 1."""
    for name, value in numbers.items():
        if not (isinstance(value, Integral) and value >= 1):
            raise ValueError(f"{name}={value!r} must be an integer of at least 1.")


def _concatenated(tables: Sequence):
    if tables[0] is None or len(tables) == 1:
        return tables[0]
    if hasattr(tables[0], "iloc"):
        return _concatenated_by_pandas(tables)
    if isinstance(tables[0], np.ndarray):
        return np.concatenate(tables)
    import polars

    if isinstance(tables[0], polars.Series):
        return _concatenated([column.to_frame() for column in tables]).to_series()
    # Columns may be empty in one block, or have whole numbers. But numbers shall not become text without a word.
    columns = zip(*(table.dtypes for table in tables), strict=True)
    mixed = any(polars.String in dtypes and any(dtype.is_numeric() for dtype in dtypes) for dtypes in columns)
    return polars.concat(tables, how="vertical" if mixed else "vertical_relaxed")


def _concatenated_by_pandas(tables: Sequence):
    """Frames or columns of pandas as one. Categories stay categories, although blocks may differ in their levels."""
    import pandas
    from pandas.api.types import union_categoricals

    whole = pandas.concat(tables)
    if not is_pandas(whole):
        return whole
    for j in range(whole.shape[1]):
        dtypes = [table.dtypes.iloc[j] for table in tables]
        if not all(isinstance(dtype, pandas.CategoricalDtype) for dtype in dtypes):
            continue
        if len({dtype.categories.dtype for dtype in dtypes}) == 1:
            values = union_categoricals([table.iloc[:, j] for table in tables], ignore_order=True)
            whole.isetitem(j, values)
    return whole
