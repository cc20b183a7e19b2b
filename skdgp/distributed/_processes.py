"""One model trained by several processes, on one machine or many, on CPUs or GPUs.

``torchrun`` starts a script once for each process, and the script fits inside :func:`data_parallel`::

    # train.py
    import joblib
    from skdgp import DSDGPRegressor
    from skdgp.distributed import data_parallel

    X, y = load()  # every process loads the same rows
    with data_parallel() as rank:
        model = DSDGPRegressor(batch_size=8000).fit(X, y)
    if rank == 0:
        joblib.dump(model, "model.joblib")

The command ``torchrun --nproc-per-node 2 train.py`` starts two processes.

Every minibatch is divided among the processes. They add up their gradients, and all take the same step. So in the end
every process has the same fitted model. Up to rounding it is the model that a single process would have learnt from the
same minibatches. Each step sends one number for each parameter, whatever the size of the minibatch. Therefore large
minibatches gain most.
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
    """Share the work of ``fit`` with the other processes that torchrun has started.

    All processes must fit the same estimator to the same rows. With ``random_state=None`` all take the random numbers
    of the first process. Without torchrun there is only one process, and nothing changes. Only ``fit`` by minibatches
    is shared. Each process does ``partial_fit``, ``method="collapsed"`` and predictions by itself.

    Parameters
    ----------
    backend : str, default=None
        Backend of torch.distributed. None is "nccl" if CUDA is available, and "gloo" otherwise. With "nccl" each
        process uses the GPU whose number is its local rank; ``device="auto"`` and ``device="cuda"`` then mean this GPU.

    Yields
    ------
    int
        Rank of this process. The process of rank 0 should print and save.

    Raises
    ------
    RuntimeError
        If this build of torch has no torch.distributed, or if a process group exists already.

    Notes
    -----
    If one process cannot compute a step, all processes undo the epoch, and repeat it at half the learning rate. If one
    process dies, torchrun ends the others.

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
    """RuntimeError if torch has no torch.distributed."""
    if not dist.is_available():
        raise RuntimeError(
            "This build of torch has no torch.distributed, which several processes need to train one model: install "
            "another, or let one process do it."
        )


@contextmanager
def process_group(backend: str, **meeting: Any) -> Iterator[ProcessGroup]:
    """The processes that meet, as the default group of torch.distributed."""
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
    """Let this process meet others again after a meeting that failed.

    torch names groups by their number. It counts a group that failed until another group has been left. Processes whose
    groups have different names would wait for each other forever.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
