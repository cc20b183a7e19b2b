"""One model trained by several processes, on one machine or many, on CPUs or GPUs.

A script that is started once per process, by ``torchrun``, fits inside :func:`data_parallel`::

    # train.py
    from skdgp import DSDGPRegressor
    from skdgp.distributed import data_parallel

    X, y = load()  # every process loads the same rows
    with data_parallel() as rank:
        model = DSDGPRegressor(batch_size=8000).fit(X, y)
    if rank == 0:
        joblib.dump(model, "model.joblib")

    $ torchrun --nproc-per-node 2 train.py

Every minibatch is divided among the processes, their gradients are added up, and all take the same step: in the
end every process has the same fitted model, the one that a single process would have made of the same minibatches,
up to rounding. Large minibatches gain most, since each process computes its share of one while what is sent, one
number for each parameter, stays as it is.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ..inference.processes import ProcessGroup, shared_among


@contextmanager
def data_parallel(backend: str | None = None) -> Iterator[int]:
    """Let ``fit`` share its work with the other processes that torchrun has started.

    All processes fit the same estimator to the same rows. What ``random_state=None`` draws is what the first
    process draws. Without torchrun there is one process, and nothing changes. ``fit`` by minibatches is shared;
    ``partial_fit``, ``method="collapsed"`` and predictions are not, every process does them for itself.

    Parameters
    ----------
    backend : str, default=None
        Of torch.distributed; "nccl" where there is CUDA and "gloo" elsewhere. With "nccl" the process uses the GPU
        whose number is its local rank, which ``device="auto"`` and ``device="cuda"`` then stand for.

    Yields
    ------
    int
        Rank of this process. 0 is the one that should print and save.

    Raises
    ------
    RuntimeError
        If torch.distributed is missing from this build of torch, or a process group exists already.

    Notes
    -----
    If one process cannot compute a step, all of them undo it and go on at a lower learning rate. If one dies,
    torchrun ends the others.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.distributed import data_parallel
    >>> X, y = load_diabetes(return_X_y=True)
    >>> with data_parallel() as rank:
    ...     model = SOLVEGPRegressor(method="svi", max_iter=2).fit(X, y)
    >>> rank
    0
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield 0
        return
    check_available()
    if dist.is_initialized():
        raise RuntimeError(
            "data_parallel starts a process group, but there is one already: leave init_process_group to it, and do "
            "not nest it."
        )
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with process_group(backend) as processes, shared_among(processes):
        yield processes.rank


def check_available() -> None:
    """RuntimeError where torch cannot do it."""
    if not dist.is_available():
        raise RuntimeError(
            "This build of torch has no torch.distributed, which several processes need to train one model: install "
            "another, or let one process do it."
        )


@contextmanager
def process_group(backend: str, **meeting: Any) -> Iterator[ProcessGroup]:
    """The processes that meet, for torch.distributed's default group."""
    try:
        dist.init_process_group(backend, **meeting)
    except BaseException:
        _count_anew()
        raise
    try:
        yield ProcessGroup()
    finally:
        dist.destroy_process_group()


def _count_anew() -> None:
    """Let this process meet others again after it has failed to.

    torch names groups by their number, and counts one that failed until another has been left. Processes that have
    different names for their group wait for each other in vain.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
