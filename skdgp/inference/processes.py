"""Processes that train one model together, each with its share of the rows of every minibatch.

All of them hold the model and the data, shuffle rows in the same way, and take the same steps. In each step they
exchange only one vector, the sum of their gradients. If a process fails, it sends numbers that are not finite. So the
others do not wait for it, and all of them fail in the same way.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..gp.propagation import Share


class Processes:
    """A single process, which has all rows. It is the base class of several processes."""

    rank, size = 0, 1

    def share(self, n_rows: int) -> Share:
        """The share of ``n_rows`` rows that this process has. Shares differ by one row at most."""
        return Share(self.rank * n_rows // self.size, (self.rank + 1) * n_rows // self.size, n_rows)

    def check_shares(self, n_rows: int, batch_size: int) -> None:
        """ValueError if there are more processes than a minibatch has rows."""
        smallest = n_rows // -(-n_rows // batch_size)
        if smallest < self.size:
            raise ValueError(
                f"Minibatches of {smallest} rows cannot be shared by {self.size} processes: raise batch_size, or "
                "start fewer processes."
            )

    def add_up(self, numbers: Tensor) -> None:
        """Replace the numbers by their sum over processes, which is the same in all of them."""

    @contextmanager
    def adding_up(self, numbers: Tensor) -> Iterator[None]:
        """Replace numbers that the body computes by their sum over processes.

        If a matrix has no factor in one of several processes, the sum is NaN in all of them. So none of them waits.
        """
        try:
            yield
        except np.linalg.LinAlgError:
            if self.size == 1:
                raise
            numbers.fill_(math.nan)
        self.add_up(numbers)

    def take_first(self, numbers: Tensor) -> None:
        """Replace the numbers by those of the first process."""
        if self.rank:
            numbers.zero_()
        self.add_up(numbers)

    def gather(self, number: int) -> list[int]:
        """The numbers of all processes; the list is the same in all of them."""
        numbers = torch.zeros(self.size, dtype=torch.int64, device="cpu")
        numbers[self.rank] = number
        self.add_up(numbers)
        return numbers.tolist()


class ProcessGroup(Processes):
    """The processes of torch's default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def add_up(self, numbers: Tensor) -> None:
        """See :meth:`Processes.add_up`. Processes send each other numbers only, and nothing that could run code."""
        there = numbers.cuda() if dist.get_backend() == "nccl" else numbers
        dist.all_reduce(there)
        if there is not numbers:
            numbers.copy_(there)


ALONE = Processes()

_current: ContextVar[Processes] = ContextVar("processes", default=ALONE)


def current() -> Processes:
    """The processes that share training in this context."""
    return _current.get()


@contextmanager
def shared_among(processes: Processes) -> Iterator[None]:
    """Share training among these processes inside the body."""
    token = _current.set(processes)
    try:
        yield
    finally:
        _current.reset(token)


def agree(order: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, Sequence[int]]:
    """Order of rows and seeds of the first process; ValueError if processes have different numbers of rows."""
    processes = current()
    numbers = processes.gather(len(order))
    if len(set(numbers)) > 1:
        raise ValueError(
            f"The processes learn from different numbers of rows, {numbers}: give every process the same data, of "
            "which each then takes its share."
        )
    first = torch.from_numpy(np.concatenate([order, np.asarray(seeds, dtype=np.int64)]))
    processes.take_first(first)
    return first[: len(order)].numpy(), first[len(order) :].tolist()
