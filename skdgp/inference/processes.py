"""The processes that train one model together, each with its share of the rows of every minibatch.

All of them hold the model and the data, shuffle alike and take equal steps: what they exchange is one vector a
step, the sum of their gradients. A process that fails says so by numbers that are not finite, lest the others wait
for it, and then all of them fail alike.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist
from torch import Tensor

from ..gp.propagation import Share

Value = TypeVar("Value")


class Processes:
    """A single process, which has all rows."""

    rank, size = 0, 1

    def share(self, n_rows: int) -> Share:
        """The share of ``n_rows`` that this process has; shares differ by one row at most."""
        return Share(self.rank * n_rows // self.size, (self.rank + 1) * n_rows // self.size, n_rows)

    def add_up(self, numbers: Tensor) -> None:
        """Replace the numbers by their sum over processes, the same everywhere."""

    def gather(self, value: Value) -> list[Value]:
        """What each process says, the same everywhere."""
        return [value]

    def agree(self, value: Value) -> Value:
        """What the first process says."""
        return self.gather(value)[0]


class ProcessGroup(Processes):
    """The processes of torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def add_up(self, numbers: Tensor) -> None:
        """See :meth:`Processes.add_up`."""
        dist.all_reduce(numbers)

    def gather(self, value: Value) -> list[Value]:
        """See :meth:`Processes.gather`."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


ALONE = Processes()

_current: ContextVar[Processes] = ContextVar("processes", default=ALONE)


def current() -> Processes:
    """Processes that training is shared among here."""
    return _current.get()


@contextmanager
def shared_among(processes: Processes) -> Iterator[None]:
    """Share training among these processes, inside the body."""
    token = _current.set(processes)
    try:
        yield
    finally:
        _current.reset(token)


def agree(order: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, Sequence[int]]:
    """Order of rows and seeds of the first of the processes that train together, if they have the same rows."""
    numbers = current().gather(len(order))
    if len(set(numbers)) > 1:
        raise ValueError(
            f"The processes learn from different numbers of rows, {numbers}: give every process the same data, of "
            "which each then takes its share."
        )
    return current().agree((order, seeds))
