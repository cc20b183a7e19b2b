"""Rows of a source in random order, as far as bounded memory allows."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from ..methods.inducing import INITIAL_ROWS
from ..tables.targets import check_labels
from ._blocks import Block, rows_of, together, used
from ._layout import Layout, check_targets
from ._sources import Source


class Survey(NamedTuple):
    """What a pass over the targets finds.

    ``n_read`` is the number of rows, ``n_rows`` that of rows of positive weight, and ``labels`` are the sorted labels
    if asked for. ``sample`` has the sorted numbers of random rows of positive weight.
    """

    n_read: int
    n_rows: int
    labels: np.ndarray | None
    sample: np.ndarray


def survey(source: Source, layout: Layout, rng: np.random.Generator, *, labelled: bool) -> Survey:
    """Read targets and weights of all rows. Targets that nothing can be learnt from raise an error."""
    n_read = n_rows = 0
    labels: list[np.ndarray] = []
    keys, numbers = np.empty(0), np.empty(0, dtype=np.int64)  # the rows with the smallest keys are the sample
    for chunk in source.read(None if layout.columns is None else layout.labels):
        y, weight = layout.targets(chunk)
        check_targets(y, weight, n_read)
        mine = used(y, weight)
        keys, numbers = np.concatenate([keys, rng.random(len(mine))]), np.concatenate([numbers, n_read + mine])
        if len(keys) > INITIAL_ROWS:
            least = np.argpartition(keys, INITIAL_ROWS)[:INITIAL_ROWS]
            keys, numbers = keys[least], numbers[least]
        n_read, n_rows = n_read + len(y), n_rows + len(mine)
        if labelled and len(mine):
            check_classification_targets(np.asarray(y))
            labels = [np.unique(check_labels(np.concatenate([*labels, np.asarray(y)[mine]])))]
    return Survey(n_read, n_rows, labels[0] if labels else None, np.sort(numbers))


def sample(source: Source, layout: Layout, known: Survey) -> Block:
    """The rows of the sample, which a pass over the table picks."""
    blocks, start = [], 0
    for chunk in source.read(layout.columns):
        block = layout.split(chunk)
        mine = _among(known.sample, start, len(block[1]))
        if len(mine):
            blocks.append(rows_of(block, mine - start))
        start += len(block[1])
    _check_length(known, start)
    return together(blocks)


def mixed(
    source: Source,
    layout: Layout,
    known: Survey,
    rng: np.random.Generator,
    chunk_size: int,
    buffer_size: int,
    *,
    without_sample: bool,
) -> Iterator[Block]:
    """Chunks of the rows of positive weight, with or without those of the sample."""
    n_readers = source.n_readers if known.n_read > buffer_size else 1
    bounds = np.linspace(0, known.n_read, n_readers + 1).astype(int).tolist()
    readers = [_part(source, layout, known, begin, end) for begin, end in pairwise(bounds)]
    left_out = known.sample if without_sample else known.sample[:0]

    def blocks() -> Iterator[Block]:
        for start, block in _in_turns(readers, rng):
            mine = _among(left_out, start, len(block[1])) - start
            kept = np.setdiff1d(used(block[1], block[2]), mine)
            if len(kept):
                yield rows_of(block, kept)

    yield from buffered(blocks(), rng, chunk_size, buffer_size)


def buffered(blocks: Iterable[Block], rng: np.random.Generator, chunk_size: int, buffer_size: int) -> Iterator[Block]:
    """Chunks that are drawn from a buffer of rows. The last ones have about ``chunk_size`` rows, too."""
    held: list[Block] = []
    n_held = 0
    for block in blocks:
        held.append(block)
        n_held += len(block[1])
        while n_held >= buffer_size + chunk_size:
            whole, order = together(held), rng.permutation(n_held)
            yield rows_of(whole, order[:chunk_size])
            held, n_held = [rows_of(whole, order[chunk_size:])], n_held - chunk_size
    if n_held:
        whole = together(held)
        for part in np.array_split(rng.permutation(n_held), max(1, round(n_held / chunk_size))):
            yield rows_of(whole, part)


def head(blocks: Iterator[Block], n_rows: int) -> Block | None:
    """The first rows of an iterator, which has ended if they are fewer than ``n_rows``. None if there are none."""
    held, n_held = [], 0
    for block in blocks:
        held.append(block)
        n_held += len(block[1])
        if n_held >= n_rows:
            break
    return together(held) if n_held else None


def _part(source: Source, layout: Layout, known: Survey, begin: int, end: int) -> Iterator[tuple[int, Block]]:
    """The rows of a part of the table, with the number of the first of each block."""
    start = begin
    chunks = source.read(layout.columns, begin) if begin < end else iter(())
    for chunk in chunks:
        block = layout.split(chunk)
        n_rows = min(len(block[1]), end - start)
        yield start, block if n_rows == len(block[1]) else rows_of(block, np.arange(n_rows))
        start += n_rows
        if start == end:
            return
    if start < end:
        _check_length(known, start)


def _in_turns(readers: Sequence[Iterator], rng: np.random.Generator) -> Iterator:
    """One block of each reader, in random order, and then again, until all have ended."""
    active = list(readers)
    while active:
        for reader in [active[number] for number in rng.permutation(len(active))]:
            block = next(reader, None)
            if block is None:
                active.remove(reader)
            else:
                yield block


def _among(numbers: np.ndarray, start: int, n_rows: int) -> np.ndarray:
    """Those of the sorted numbers that belong to ``n_rows`` rows from ``start`` on."""
    first, end = np.searchsorted(numbers, [start, start + n_rows])
    return numbers[first:end]


def _check_length(known: Survey, n_read: int) -> None:
    """ValueError if a later pass finds another number of rows."""
    if n_read != known.n_read:
        raise ValueError(
            f"The source had {known.n_read} rows in a first pass, and has {n_read} in a later one: let it yield the "
            "same rows each time. If it can be read only once, pass iter(source)."
        )
