"""Processes on the workers of a Dask cluster: they find each other, and stop when their client stops."""

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from traceback import clear_frames
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import torch.distributed as dist
from torch import Tensor

from ..inference.processes import Processes
from ._processes import process_group

#: Seconds that the processes wait until the last of them begins.
MEETING_SECONDS = 600

#: Seconds to try to reach the first process.
CONNECTING_SECONDS = 30

#: torch.distributed allows one process group in a process.
_in_group = threading.Lock()

#: Stores of jobs whose first process will be this one, until that job begins.
_stores: dict[str, "dist.TCPStore"] = {}


class Place(NamedTuple):
    """The store of a job, at which its processes find each other. They know its secret from Dask."""

    host: str
    port: int
    secret: str


@contextmanager
def meeting_place(client, job: str, worker: str) -> Iterator[Place]:
    """The place where the processes of a job meet. It is on the worker that will be the first of them."""
    try:
        yield client.run(open_store, job, urlsplit(worker).hostname, workers=[worker])[worker]
    finally:
        with suppress(Exception):  # the worker may be gone, and its store with it
            if worker in client.nthreads():
                client.run(close_store, job, workers=[worker])


def open_store(job: str, host: str) -> Place:
    """Open the store of a job, which listens on this address only; ConnectionError if it is not this machine's."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        raise ConnectionError(
            f"The first worker cannot listen on {host}, the address that Dask knows it by: {error}. Start it with an "
            "address of its own machine, for instance by the option --host of dask worker."
        ) from error
    port = listener.getsockname()[1]
    # Without a socket torch listens on all addresses. With libuv some of its versions do not take one.
    given = {"master_listen_fd": listener.detach(), "use_libuv": False}
    _stores[job] = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, **given)
    return Place(host, port, secrets.token_hex(16))


def close_store(job: str) -> None:
    """Close the store of a job whose first process has not begun."""
    _stores.pop(job, None)


@contextmanager
def met(job: str, place: Place, rank: int, size: int) -> Iterator[Processes]:
    """The processes that train together, once all of them are there. The first process has the store."""
    if not _in_group.acquire(blocking=False):
        raise RuntimeError(
            "This process trains another model together with others already: wait until it is done, and have workers "
            "that are processes of their own, as those of LocalCluster(processes=True)."
        )
    try:
        with process_group("gloo", store=_agreed(job, place, rank, size), rank=rank, world_size=size) as processes:
            yield processes
    except BaseException as error:
        clear_frames(error.__traceback__)  # else they would keep the store open for as long as the error is kept
        raise
    finally:
        _in_group.release()


def _agreed(job: str, place: Place, rank: int, size: int) -> "dist.Store":
    """The store of a job, once all its processes are there."""
    store = _joined(job, place, rank)
    _wait_for_all(store, size, job)
    return store


def _joined(job: str, place: Place, rank: int) -> "dist.Store":
    """The store of a job for one of its processes. The secret is a part of every name that they use there."""
    if rank == 0:
        if job not in _stores:  # the client has closed it
            raise CancelledError
        return dist.PrefixStore(place.secret, _stores.pop(job))
    try:
        socket.create_connection((place.host, place.port), CONNECTING_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"A worker cannot reach the first worker at {place.host}, port {place.port}: {error}. Let firewalls pass "
            "connections between workers, or start them with other addresses, by the option --host of dask worker."
        ) from error
    return dist.PrefixStore(place.secret, dist.TCPStore(place.host, place.port, is_master=False))


def _wait_for_all(store: "dist.Store", size: int, job: str) -> None:
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
