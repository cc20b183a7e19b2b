"""Rows as tensors, and their division into minibatches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ..gp.likelihoods import Likelihood

#: Number of rows that are brought into random order, and to the device, at a time. So memory stays bounded, and a
#: minibatch is a view of them.
GATHERED_ROWS = 2**17


@dataclass(frozen=True)
class Batch:
    """Rows on a device: inputs (B, Q), encoded targets (B, P) and the weights of their likelihood terms (B,).

    Tensors of a stack of models (:mod:`.stacks`) have a dimension of members before B.
    """

    X: Tensor
    y: Tensor
    weight: Tensor

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None, dtype=np.float32) -> Self:
        """Rows in main memory, from arrays (n, Q), (n,) or (n, P), and (n,); weights are one by default."""
        weight = np.ones(len(X)) if weight is None else weight
        columns = X, y if y.ndim == 2 else y[:, None], weight
        return cls(*(torch.from_numpy(column.astype(dtype)) for column in columns))

    def __len__(self) -> int:
        return self.X.shape[-2]

    def rows(self, index: Tensor | slice) -> "Batch":
        """The rows at ``index``; an index (E, n) gives each of E members rows of its own."""
        if isinstance(index, slice):
            return Batch(self.X[..., index, :], self.y[..., index, :], self.weight[..., index])
        return Batch(self.X[index], self.y[index], self.weight[index])

    def joined(self, other: "Batch") -> "Batch":
        """These rows and others, on the device of these."""
        other = other.to(self.X.device, self.X.dtype)
        return Batch(*(torch.cat(columns) for columns in zip(vars(self).values(), vars(other).values(), strict=True)))

    def relative(self) -> tuple["Batch", float]:
        """The same rows with weights whose mean is one, and the mean of the old weights."""
        mean = self.weight.double().mean().item()
        return self.weighing(1 / mean), mean

    def weighing(self, factor: float | Tensor) -> "Batch":
        """The same rows with weights times a factor."""
        return Batch(self.X, self.y, self.weight * factor)

    def spread(self, n_rows: int) -> "Batch":
        """At most ``n_rows`` of the rows, evenly spread over all."""
        if len(self) <= n_rows:
            return self
        return self.rows(torch.arange(n_rows, device=self.X.device) * len(self) // n_rows)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Batch":
        """The same rows on another device, or in another precision."""
        return self._columns(lambda column: column.to(device, dtype, non_blocking=column.is_pinned()))

    def near(self, device: torch.device) -> "Batch":
        """The same rows on the device. If it has no room for them they stay, and training fetches them in parts."""
        try:
            return self.to(device, self.X.dtype)
        except torch.OutOfMemoryError:
            return self

    def pinned(self) -> "Batch":
        """The same rows in pinned memory, from which a GPU can fetch them by itself."""
        return self._columns(Tensor.pin_memory)

    def _columns(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(function(self.X), function(self.y), function(self.weight))


@dataclass(frozen=True)
class Part:
    """Some rows of a table, or all of them."""

    data: Batch
    index: Tensor | None = None  # (n,)

    def __len__(self) -> int:
        return len(self.data) if self.index is None else len(self.index)

    def rows(self) -> Batch:
        """The rows themselves."""
        return self.data if self.index is None else self.data.rows(self.index)

    def at(self, index: Tensor) -> Tensor:
        """Numbers in the table of some of these rows."""
        return index if self.index is None else self.index[index]

    def places(self, index: Tensor) -> Tensor:
        """Where rows of these numbers stand in it; zero for rows that are not in it."""
        if self.index is None:
            return index
        place = torch.zeros(len(self.data), dtype=self.index.dtype, device=self.index.device)
        place[self.index] = torch.arange(len(self.index), device=self.index.device)
        return place[index]

    def with_targets(self, rows: Batch) -> "Part":
        """The same part of a copy of the table, which has these targets and weights there."""
        y, weight = self.data.y.double().clone(), self.data.weight.double().clone()
        there = slice(None) if self.index is None else self.index
        y[there], weight[there] = rows.y.to(y), rows.weight.to(weight)
        return Part(Batch(self.data.X, y, weight), self.index)

    def mean_weight(self) -> float:
        """Mean of the rows' weights."""
        weight = self.data.weight if self.index is None else self.data.weight[self.index]
        return weight.mean(dtype=torch.float64).item()

    def spread(self, n_rows: int) -> "Part":
        """At most ``n_rows`` of the rows, evenly spread over all."""
        if len(self) <= n_rows:
            return self
        return Part(self.data, self.at(torch.arange(n_rows, device=self.data.X.device) * len(self) // n_rows))


def in_least_squares(likelihood: Likelihood, rows: Batch) -> Batch:
    """Rows as closed forms see them, in which the noise is the same everywhere but for the weights."""
    return Batch(rows.X, likelihood.regressands(rows.y), likelihood.precise_weights(rows.y, rows.weight))


def as_of_complete(likelihood: Likelihood, rows: Batch) -> Batch:
    """The same with the noise of rows to predict, in which no cell is missing: others weigh less."""
    return in_least_squares(likelihood, rows).weighing(likelihood.plain_ratio)


def side_by_side(parts: Sequence[Part]) -> Batch:
    """The rows of a part, or those (E, n, ...) of several parts of one table, which have the same length."""
    if len(parts) == 1:
        return parts[0].rows()
    everything = torch.arange(len(parts[0]), device=parts[0].data.X.device)
    return parts[0].data.rows(torch.stack([part.at(everything) for part in parts]))


def shuffled(parts: Sequence[Part], batch_size: int, generators: Sequence[torch.Generator]) -> Iterator[Batch]:
    """All rows in random order, on the generators' device, in minibatches of equal size.

    Sizes are equal because a last minibatch of a few rows would make a noisy step of full length. Several parts must
    have the same length, and belong to one table. Each part is shuffled by its own generator, and each minibatch has
    rows of all parts side by side.
    """
    n_rows, data, device = len(parts[0]), parts[0].data, generators[0].device
    n_steps, away = -(-n_rows // batch_size), data.X.device.type != device.type
    orders = [torch.randperm(n_rows, generator=generator, device=device).to(data.X.device) for generator in generators]
    mixed = [part.at(order) for part, order in zip(parts, orders, strict=True)]
    n_together = max(1, GATHERED_ROWS // (batch_size * len(parts)))
    ends = [i * n_rows // n_steps for i in range(n_steps + 1)]
    for first in range(0, n_steps, n_together):
        steps = ends[first : first + n_together + 1]
        rows = side_by_side([Part(data, index[steps[0] : steps[-1]]) for index in mixed])
        if away:
            rows = rows.pinned().to(device, rows.X.dtype)
        for start, stop in pairwise(steps):
            yield rows.rows(slice(start - steps[0], stop - steps[0]))
