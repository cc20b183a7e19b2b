"""Rows as tensors, and the minibatches that they are divided into."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

#: Rows that are brought into random order, and to the device, at a time: memory stays bounded, and a minibatch
#: is a view.
GATHERED_ROWS = 2**17


@dataclass(frozen=True)
class Batch:
    """Rows on a device: inputs (B, Q), encoded targets (B, P) and the weights of their likelihood terms (B,)."""

    X: Tensor
    y: Tensor
    weight: Tensor

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None, dtype=np.float32) -> Self:
        """Rows in main memory, from arrays (n, Q), (n,) or (n, P), and (n,); weights are one by default."""
        weight = np.ones(len(X)) if weight is None else weight
        columns = X, y if y.ndim == 2 else y[:, None], weight
        return cls(*(torch.as_tensor(column.astype(dtype)) for column in columns))

    def __len__(self) -> int:
        return len(self.X)

    def rows(self, index: Tensor | slice) -> "Batch":
        """The rows at ``index``."""
        return Batch(self.X[index], self.y[index], self.weight[index])

    def relative(self) -> tuple["Batch", float]:
        """The same rows with weights whose mean is one, and what the mean was."""
        mean = self.weight.double().mean().item()
        return Batch(self.X, self.y, self.weight / mean), mean

    def spread(self, n_rows: int) -> "Batch":
        """At most ``n_rows`` of the rows, evenly spread over all."""
        if len(self) <= n_rows:
            return self
        return self.rows(torch.arange(n_rows, device=self.X.device) * len(self) // n_rows)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Batch":
        """The same rows elsewhere."""
        return self._columns(lambda column: column.to(device, dtype, non_blocking=column.is_pinned()))

    def near(self, device: torch.device) -> "Batch":
        """The same rows on the device, or where it has no room for them in main memory: training then fetches them."""
        try:
            return self.to(device, self.X.dtype)
        except torch.OutOfMemoryError:
            return self

    def pinned(self) -> "Batch":
        """The same rows where a GPU can fetch them from by itself."""
        return self._columns(Tensor.pin_memory)

    def _columns(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(function(self.X), function(self.y), function(self.weight))


def shuffled(data: Batch, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """All rows in random order, on the generator's device, in minibatches of equal size.

    A remnant of a few rows would be a noisy step of full length.
    """
    n_steps = -(-len(data) // batch_size)
    order = torch.randperm(len(data), generator=generator, device=generator.device).to(data.X.device)
    device, away = generator.device, data.X.device != generator.device
    n_together = max(1, GATHERED_ROWS // batch_size)
    ends = [i * len(data) // n_steps for i in range(n_steps + 1)]
    for first in range(0, n_steps, n_together):
        steps = ends[first : first + n_together + 1]
        rows = data.rows(order[steps[0] : steps[-1]])
        if away:
            rows = rows.pinned().to(device, rows.X.dtype)
        for start, stop in pairwise(steps):
            yield rows.rows(slice(start - steps[0], stop - steps[0]))
