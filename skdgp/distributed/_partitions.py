"""Partitions of a Dask table: which rows they have, and how to make chunks of them.

A partition is a tuple of rows of X, rows of y, and their weights or None. For the code that plans, these are Delayed
objects. For the functions that run on workers, they are tables.
"""

from typing import NamedTuple

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.multiclass import check_classification_targets

from ..streaming._blocks import Block, rows_of, used

#: Partitions are joined to chunks of at least this many rows. Rows of several partitions then mix, and there are enough
#: of them to estimate the noise.
CHUNK_ROWS = 20_000

Partition = Block


class Survey(NamedTuple):
    """Number of rows of positive weight, and the sorted labels if asked for."""

    n_rows: int
    labels: np.ndarray | None


def partitions(X, y, sample_weight) -> list[Partition]:
    """The partitions of Dask collections as Delayed objects."""
    tables = {"X": X, "y": y, "sample_weight": sample_weight}
    blocks = {name: _blocks(name, table) for name, table in tables.items()}
    numbers = {name: len(of_table) for name, of_table in blocks.items() if of_table is not None}
    if len(set(numbers.values())) > 1:
        raise ValueError(
            f"The numbers of partitions differ, {numbers}: take X, y and sample_weight from one DataFrame, or "
            "repartition them, or rechunk arrays, so that each partition has the same rows in all."
        )
    return list(zip(*(of_table or numbers["X"] * [None] for of_table in blocks.values()), strict=True))


def _blocks(name: str, table) -> list | None:
    """One Delayed object for each partition, with all columns; None if there is no table."""
    import dask.array
    from dask import is_dask_collection

    if table is None and name == "sample_weight":
        return None
    if not (is_dask_collection(table) and hasattr(table, "npartitions") and hasattr(table, "ndim")):
        raise TypeError(
            f"{name} must be a Dask array, DataFrame or Series, got {type(table).__name__}: make one by "
            "dask.array.from_array or dask.dataframe.from_pandas, or call the estimator's own fit."
        )
    if not isinstance(table, dask.array.Array):
        return list(table.to_delayed())
    if table.ndim == 2:
        table = table.rechunk({1: -1})
    return list(table.to_delayed().ravel())


def survey(X, y, weight, labelled: bool) -> Survey:
    """Count the rows of a partition and find its labels, before training."""
    check_consistent_length(X, y, weight)
    numbers = used(X, weight)
    if not labelled:
        return Survey(len(numbers), None)
    if len(X):
        check_classification_targets(y)
    return Survey(len(numbers), np.unique(np.asarray(y)[numbers]))


def draw(X, y, weight, n_rows: int, seed: int) -> Partition:
    """Random rows of a partition, among those of positive weight."""
    return rows_of((X, y, weight), _drawn(X, weight, n_rows, seed))


def not_drawn(X, y, weight, n_rows: int, seed: int) -> Partition:
    """The rows of positive weight that :func:`draw` leaves."""
    return rows_of((X, y, weight), np.setdiff1d(used(X, weight), _drawn(X, weight, n_rows, seed)))


def mixed(n_rows: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
    """Groups of partitions in random order, with ``CHUNK_ROWS`` rows or a little more each; empty ones are left out."""
    groups: list[list[int]] = [[]]
    for number in rng.permutation(np.flatnonzero(n_rows)).tolist():
        if n_rows[groups[-1]].sum() >= CHUNK_ROWS:
            groups.append([])
        groups[-1].append(number)
    if len(groups) > 1 and n_rows[groups[-1]].sum() < CHUNK_ROWS:
        remnant = groups.pop()
        groups[-1] += remnant
    return groups


def _drawn(X, weight, n_rows: int, seed: int) -> np.ndarray:
    """Numbers of random rows of positive weight, the same in each call."""
    return np.random.default_rng(seed).choice(used(X, weight), n_rows, replace=False)
