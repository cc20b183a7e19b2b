"""Which columns of a chunk are features, targets and weights, and whether all chunks have them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length

from ..tables.cells import is_missing
from ..tables.frames import as_array_or_frame, is_frame
from ._blocks import Block


class Layout:
    """Divides chunks into features, targets and weights. The first chunk says which columns there are.

    Parameters
    ----------
    target : str or list of str or None
        Name of the column of targets, or names of several. None says that chunks are tuples.
    weight : str or None
        Name of the column of weights, if there is one.
    features : list of str or None
        Names of the features. None stands for all other columns.
    names : sequence of str or None
        Names of all columns, if they are known before the first chunk.
    """

    def __init__(self, target, weight, features, names: Sequence | None = None):
        self.target, self.weight = target, weight
        several = isinstance(target, list | tuple)
        self.labels = [*(target if several else [target]), *([] if weight is None else [weight])]
        self.features = None if features is None else list(features)
        self._all_named = features is not None or names is not None
        self._first: Any = None  # names of the columns of the first chunk, or the shape of its rows
        if target is None and (weight is not None or features is not None):
            raise ValueError(
                "sample_weight and features are names of columns, and go with target: give target, the name of the "
                "column of targets."
            )
        if self.features == []:
            raise ValueError("features=[] names no column: name some, or leave it out to take all other columns.")
        both = [name for name in self.features or [] if name in self.labels]
        if both:
            raise ValueError(f"features contains {both[0]!r}, which is a target or the weight: leave it out.")
        if names is not None and target is not None:
            self._learn(list(names))

    @property
    def columns(self) -> list | None:
        """All columns that are read; None if they are not known yet."""
        return None if self.features is None or self.target is None else [*self.features, *self.labels]

    def targets(self, chunk) -> tuple[Any, Any]:
        """Targets and weights of a chunk."""
        if isinstance(chunk, tuple):
            return self._of_tuple(chunk)[1:]
        frame = self._checked(chunk, of_features=False)
        return self._column(frame, self.target), self._column(frame, self.weight)

    def split(self, chunk) -> Block:
        """Features, targets and weights of a chunk."""
        if isinstance(chunk, tuple):
            return self._of_tuple(chunk)
        frame = self._checked(chunk)
        return frame[self.features], self._column(frame, self.target), self._column(frame, self.weight)

    def _column(self, frame, name):
        return None if name is None else frame[list(name) if isinstance(name, tuple) else name]

    def _checked(self, chunk, *, of_features: bool = True):
        """A chunk as a frame, with the columns that all chunks have."""
        frame = as_array_or_frame(chunk)
        if not is_frame(frame):
            raise TypeError(
                f"A chunk must be a data frame, or a tuple (X, y) or (X, y, sample_weight), got "
                f"{type(chunk).__name__}: let the source yield one of these."
            )
        if self.target is None:
            raise ValueError(
                "target=None goes with chunks that are tuples (X, y): give the name of the column of targets."
            )
        names = list(frame.columns)
        if self._first is None:
            self._learn(names)
        wanted = [*(self.features or [] if of_features else []), *self.labels]
        self._refuse_others([name for name in wanted if name not in names], "lacks")
        if not self._all_named:
            self._refuse_others([name for name in names if name not in self._first], "also has")
        return frame

    def _learn(self, names: list) -> None:
        """Take the names of all columns."""
        missing = [name for name in [*self.labels, *(self.features or [])] if name not in names]
        if missing:
            raise ValueError(f"The source has no column {missing[0]!r}: its columns are {names}.")
        self._first = names
        if self.features is None:
            self.features = [name for name in names if name not in self.labels]

    def _refuse_others(self, names: list, verb: str) -> None:
        if names:
            raise ValueError(
                f"A later chunk {verb} the columns {names}: let all chunks have the columns of the first one, or name "
                "columns that all have by features=."
            )

    def _of_tuple(self, chunk: tuple) -> Block:
        """Features, targets and weights of a tuple."""
        if self.target is not None:
            raise ValueError(
                f"target={self.target!r} is the name of a column, but chunks are tuples: leave target out, or let the "
                "source yield frames."
            )
        if len(chunk) not in (2, 3):
            raise ValueError(
                f"A chunk that is a tuple must be (X, y) or (X, y, sample_weight), got {len(chunk)} parts."
            )
        X, y, weight = (_table(part) for part in (*chunk, None)[:3])
        check_consistent_length(X, y, weight)
        form = list(X.columns) if is_frame(X) else np.shape(X)[1:]
        form = form, weight is None
        self._first = form if self._first is None else self._first
        if form[0] != self._first[0]:
            raise ValueError(
                f"The features of a later chunk differ: it has the columns or the shape {form[0]}, and the first one "
                f"{self._first[0]}. Let all chunks have the same columns."
            )
        if form != self._first:
            raise ValueError(
                f"A later chunk has {'no weights' if weight is None else 'weights'}, and the first one has "
                f"{'some' if weight is None else 'none'}: let all chunks have weights, or none."
            )
        return X, y, weight


def check_targets(y, weight, start: int) -> None:
    """ValueError if targets are missing or infinite, or weights are; ``start`` is the number of the first row."""
    if getattr(y, "ndim", 2) == 1 or len(np.shape(y)) == 1:  # rows may lack some of several targets
        number = _first_not_finite(np.asarray(y))
        if number is not None:
            raise ValueError(
                f"The target of row {start + number} is missing or infinite: leave out such rows of the source, for "
                "instance by a filter of its Dataset or LazyFrame."
            )
    if weight is not None:
        weights = np.asarray(weight, dtype=np.float64)
        wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(wrong):
            raise ValueError(
                f"The weight of row {start + wrong[0]} is {weights[wrong[0]]}: weights must be finite and not negative."
            )


def _first_not_finite(values: np.ndarray) -> int | None:
    """Number of the first missing or infinite value."""
    if values.dtype.kind in "biu":
        return None
    if values.dtype.kind == "f":
        wrong = ~np.isfinite(values)
    else:
        wrong = np.array([is_missing(value) for value in values.tolist()], dtype=bool)
    return int(np.argmax(wrong)) if wrong.any() else None


def _table(part):
    """A part of a tuple as a frame or an array."""
    if part is None:
        return None
    part = as_array_or_frame(part)
    return part if is_frame(part) or hasattr(part, "iloc") else np.asarray(part)
