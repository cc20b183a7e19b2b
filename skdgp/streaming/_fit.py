"""Fits an estimator to a table that does not fit into memory."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import check_random_state

from ..estimators._progress import RowsLine
from ..methods.inducing import INITIAL_ROWS
from ._blocks import Block, check_estimator, check_numbers, of_all_rows, rows_of, teach, used
from ._layout import Layout, check_targets
from ._mixing import buffered, head, mixed, sample, survey
from ._sources import Source, source_of


def fit_chunks(
    estimator,
    source,
    target=None,
    sample_weight=None,
    *,
    features=None,
    n_passes=1,
    chunk_size=20_000,
    buffer_size=100_000,
    classes=None,
    total_size=None,
):
    """Fit an estimator to a table that does not fit into memory: a file, a query, or chunks of rows.

    The table is read piece by piece. The estimator learns by ``partial_fit`` from chunks of its rows in random order,
    so that the file may be sorted.

    Parameters
    ----------
    estimator : estimator of this package
        The estimator to fit. It does not change, since a clone of it is fitted. With ``verbose=1`` it prints the
        progress, and how many rows it learns from in a second.
    source : path, pyarrow.dataset.Dataset, polars.LazyFrame, iterable, callable or iterator
        Where the rows are:

        * The path of a Parquet file, of a folder of Parquet files, or of a CSV file, which may be compressed. The
          names of folders such as ``year=2024`` become columns.
        * A dataset of Arrow.
        * A lazy query of Polars, or another object with the method ``collect_batches``.
        * Chunks: an iterable that yields the same chunks in each loop over it, such as a list, or a function that
          returns an iterator of them. A chunk is a data frame of pandas, Polars or Arrow, or a tuple ``(X, y)`` or
          ``(X, y, sample_weight)``.
        * An iterator of chunks, which can be read only once.
    target : str or list of str, default=None
        Name of the column of targets or labels, or names of several columns of targets. None if chunks are tuples.
    sample_weight : str, default=None
        Name of the column of weights. None gives all rows the same weight, unless chunks are tuples with weights.
    features : list of str, default=None
        Names of the columns of features. None stands for all columns but the target and the weight.
    n_passes : int, default=1
        How often all rows come. ``partial_fit`` itself passes several times over each chunk, and rows that come again
        are no longer new to the model that they judge.
    chunk_size : int, default=20000
        Number of rows from which the estimator learns at once.
    buffer_size : int, default=100000
        Number of rows in memory, from which each chunk is drawn at random. A larger buffer mixes rows better.
    classes : array-like of shape (n_classes,), default=None
        All labels, for classifiers. None finds them by a pass over the labels, which an iterator does not allow.
    total_size : int, default=None
        Number of rows of an iterator, if you know it. The rows of other sources are counted.

    Returns
    -------
    object
        The fitted estimator.

    Raises
    ------
    ImportError
        If a package is missing that the source needs: pandas and pyarrow for Parquet files and datasets of Arrow,
        pandas for CSV files.
    FileNotFoundError
        If there is nothing at the path.
    TypeError, ValueError
        If the estimator does not belong to this package; if the source is of another type, has no rows, lacks a
        column, or yields other columns or another number of rows later; if targets are missing; or if parameters or
        data are not valid. Errors of ``partial_fit`` are raised, too.

    Notes
    -----
    A first pass reads the columns of the target and the weight. It counts rows, finds the labels of a classifier, and
    draws 10 000 random rows. A second pass picks these rows. They are the first chunk, which decides how features are
    scaled, which levels categories have, and where inducing points start. Then come all other rows, in chunks that are
    drawn from the buffer. Later passes also have the rows of the first chunk.

    Of files, datasets and queries with more rows than the buffer, several readers fill the buffer, at most ten. Each of
    them reads its own part of the table. So every chunk has rows from all over the table. Chunks that you pass yourself
    are read one after another, so that rows mix only within the buffer. **From an iterator** even the first chunk can
    only be a sample of the first ``buffer_size`` rows. If the rows are sorted, the model then does not know the scale
    of later rows, and has to follow them. So mix the rows before, or pass another kind of source.

    Rows of weight zero are left out. The result depends on ``random_state``, and on the order of the rows.

    Examples
    --------
    >>> import os, tempfile
    >>> import pandas as pd
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.streaming import fit_chunks
    >>> X, y = make_waves(200, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "waves.csv")
    ...     pd.DataFrame({"position": X[:, 0], "height": y}).to_csv(
    ...         path, index=False
    ...     )
    ...     model = fit_chunks(
    ...         DSDGPRegressor((), n_inducing=10, random_state=0),
    ...         path,
    ...         target="height",
    ...     )
    >>> model.feature_names_in_.tolist()
    ['position']
    """
    check_estimator("fit_chunks", estimator)
    check_numbers({"n_passes": n_passes, "chunk_size": chunk_size, "buffer_size": buffer_size})
    source = source_of(source)
    layout = Layout(target, sample_weight, features, getattr(source, "names", None))
    model = clone(estimator)
    rng = np.random.default_rng(check_random_state(estimator.random_state).randint(np.iinfo(np.int32).max))
    sizes = int(chunk_size), int(buffer_size)
    if isinstance(source, Source):
        if total_size is not None:
            raise ValueError(
                f"total_size={total_size} goes with an iterator: leave it out, since the rows of other sources are "
                "counted."
            )
        return _fit(model, source, layout, rng, n_passes, classes, sizes)
    _check_iterator(model, n_passes, classes)
    return _fit_once(model, source, layout, rng, classes, total_size, sizes)


def _check_iterator(model, n_passes: int, classes) -> None:
    """ValueError if something cannot be had from an iterator."""
    if n_passes > 1:
        raise ValueError(
            f"n_passes={n_passes} needs a source that can be read again, and an iterator can be read once: pass a "
            "function that returns a new iterator."
        )
    if is_classifier(model) and classes is None:
        raise ValueError(
            "The labels of an iterator are not known before it ends: give classes=, all labels that it has, or pass a "
            "function that returns a new iterator."
        )


def _fit(model, source: Source, layout: Layout, rng, n_passes: int, classes, sizes: tuple[int, int]):
    """Fit a model to a source that can be read several times."""
    known = survey(source, layout, rng, labelled=is_classifier(model) and classes is None)
    if not known.n_rows:
        raise ValueError("The source has no rows of positive weight: check its path, its filter and its weights.")
    of_all = of_all_rows(model, known.n_rows, known.labels if classes is None else classes)
    line = RowsLine(type(model).__name__, n_passes * known.n_rows, silent=not model.verbose)
    _learn(model, sample(source, layout, known), of_all, line)
    for number in range(n_passes):
        new = number == 0
        if new and known.n_rows == len(known.sample):
            continue  # the sample is all rows
        for chunk in mixed(source, layout, known, rng, *sizes, without_sample=new):
            _learn(model, chunk, of_all, line, new=new)
    line.close()
    return model


def _fit_once(model, chunks: Iterator, layout: Layout, rng, classes, total_size, sizes: tuple[int, int]):
    """Fit a model to an iterator of chunks."""
    chunk_size, buffer_size = sizes
    blocks = _blocks(chunks, layout)
    known = head(blocks, buffer_size)
    if known is None:
        raise ValueError("The iterator has no rows of positive weight, or had been read before: make it anew.")
    n_rows = len(known[1])
    if n_rows < buffer_size:  # these are all
        total_size = n_rows
    of_all = of_all_rows(model, total_size, classes)
    line = RowsLine(type(model).__name__, total_size, silent=not model.verbose)
    order = rng.permutation(n_rows)
    _learn(model, rows_of(known, order[:INITIAL_ROWS]), of_all, line)
    if n_rows > INITIAL_ROWS:
        others = [rows_of(known, order[INITIAL_ROWS:])]
        for chunk in buffered(chain(others, blocks), rng, chunk_size, buffer_size):
            _learn(model, chunk, of_all, line)
    line.close()
    return model


def _blocks(chunks: Iterator, layout: Layout) -> Iterator[Block]:
    """The rows of positive weight of an iterator's chunks."""
    start = 0
    for chunk in chunks:
        block = layout.split(chunk)
        check_targets(block[1], block[2], start)
        start += len(block[1])
        mine = used(block[1], block[2])
        if len(mine):
            yield rows_of(block, mine)


def _learn(model, chunk: Block, of_all: dict[str, Any], line: RowsLine, *, new: bool = True) -> None:
    """Let the model learn from one more chunk, and say so."""
    teach(model, chunk, of_all, new=new)
    line.chunk(len(chunk[1]), float(model.loss_curve_[-1]))
