"""Processes on the workers of a Dask cluster: they find each other, and stop when their client stops."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from uuid import uuid4

import torch.distributed as dist
from torch import Tensor

from ..inference.processes import Processes
from ._processes import process_group

#: Seconds that the processes wait until the last of them begins.
MEETING_SECONDS = 600

#: torch.distributed allows one process group in a process.
_in_group = threading.Lock()

#: Stores of jobs whose first process will be this one, until that job begins.
_stores: dict[str, "dist.TCPStore"] = {}


def open_store(job: str, host: str) -> int:
    """Open a store at which the processes of a job find each other; return its port."""
    _stores[job] = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return _stores[job].port


@contextmanager
def met(job: str, place: tuple[str, int], rank: int, size: int) -> Iterator[Processes]:
    """The processes that train together, once all of them are there. The first process has the store."""
    store = dist.TCPStore(*place, is_master=False) if rank else _stores.pop(job)
    if not _in_group.acquire(blocking=False):
        raise RuntimeError(
            "This process trains another model together with others already: wait until it is done, and have workers "
            "that are processes of their own, as those of LocalCluster(processes=True)."
        )
    try:
        _wait_for_all(store, size, job)
        with process_group("gloo", store=store, rank=rank, world_size=size) as processes:
            yield processes
    finally:
        _in_group.release()


def _wait_for_all(store: "dist.TCPStore", size: int, job: str) -> None:
    """Wait until ``size`` processes have called this. Waiting by torch itself could not be interrupted."""
    deadline, n_present = time.monotonic() + MEETING_SECONDS, store.add("present", 1)
    while n_present < size and time.monotonic() < deadline and is_wanted(job):
        time.sleep(0.1)
        n_present = store.add("present", 0)
    # The first process here decides for all. A process that went on without another would wait for it forever.
    if store.compare_set("outcome", "", "all met" if n_present == size else "one left") != b"all met":
        check_wanted(job)
        raise RuntimeError(
            f"The {size} workers that are to train together did not all begin within {MEETING_SECONDS} seconds: wait "
            "for other tasks of theirs to end, or give a smaller n_workers."
        )


class Wanted(Processes):
    """Processes that end their training after an epoch once the client waits no longer."""

    def __init__(self, processes: Processes, job: str):
        self.rank, self.size = processes.rank, processes.size
        self.processes, self.job = processes, job

    def add_up(self, numbers: Tensor) -> None:
        """See :meth:`Processes.add_up`."""
        self.processes.add_up(numbers)

    def gather(self, number: int) -> list[int]:
        """See :meth:`Processes.gather`. Processes call it after every epoch."""
        check_wanted(self.job)
        return self.processes.gather(number)


@contextmanager
def stopped_on_error(client) -> Iterator[str]:
    """Name of a job. If the body fails, its tasks are told to stop, since Dask does not end running tasks."""
    from distributed import Event

    job = f"skdgp-{uuid4().hex}"
    try:
        yield job
    except BaseException:
        with suppress(Exception):  # the cluster may be gone
            Event(job, client).set()
        raise


def is_wanted(job: str) -> bool:
    """Whether the client still waits for the job."""
    from distributed import Event

    return not Event(job).is_set()


def check_wanted(job: str) -> None:
    """CancelledError if the client no longer waits for the job."""
    if not is_wanted(job):
        raise CancelledError
