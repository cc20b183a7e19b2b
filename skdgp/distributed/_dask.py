"""Trains estimators on the workers of a Dask cluster, where the rows are.

There are two ways. In the first, one worker learns from chunks, one after another; no worker then needs more memory
than some partitions. In the second, several workers share every minibatch; each of them needs the whole table. In both
cases the client only receives counts of rows, labels, and the fitted estimator.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from sklearn.base import clone, is_classifier
from sklearn.utils import check_random_state

from ..inference.processes import ALONE, shared_among
from ..methods.inducing import INITIAL_ROWS
from ..streaming._blocks import check_estimator, check_numbers, of_all_rows, teach, together
from ._meeting import Place, Wanted, check_wanted, meeting_place, met, stopped_on_error
from ._partitions import Partition, draw, mixed, not_drawn, partitions, survey
from ._processes import check_available

#: Seconds to wait for the error of the process that failed first, after others have reported that they lost it.
EXPLAINING_SECONDS = 10


def fit_dask(estimator, X, y, sample_weight=None, *, method="partial_fit", n_passes=1, n_workers=None, client=None):
    """Fit an estimator on the workers of a Dask cluster. The rows of the table stay on the cluster.

    The result is an ordinary fitted estimator, which predicts without Dask and can be pickled.

    Parameters
    ----------
    estimator : estimator of this package
        The estimator to fit. It does not change, since a clone of it is fitted.
    X : dask.dataframe.DataFrame or dask.array.Array of shape (n_samples, n_features)
        Features. Lengths of partitions may be unknown and may differ, and partitions may be empty.
    y : dask.dataframe.Series, or DataFrame, or dask.array.Array of shape (n_samples,) or (n_samples, n_outputs)
        Targets or labels, with the same partitions as ``X``.
    sample_weight : dask.dataframe.Series or dask.array.Array of shape (n_samples,), default=None
        Weights of rows, with the same partitions as ``X``.
    method : {"partial_fit", "fit"}, default="partial_fit"
        How the estimator learns. With "partial_fit" one worker learns from chunks of rows, while the others read the
        next chunk. No worker holds more than some partitions, so that the table may be of any size. With "fit" every
        worker loads the whole table, and works on its share of every minibatch. The result is that of
        ``estimator.fit`` with all rows, up to rounding.
    n_passes : int, default=1
        With "partial_fit", how often all partitions come. ``partial_fit`` itself passes several times over each chunk,
        and rows that come again are no longer new to the model that they judge. With "fit" the estimator's
        ``max_iter`` decides the number of passes.
    n_workers : int, default=None
        With "fit", the number of workers that train together. None is all workers that have joined the cluster when
        ``fit_dask`` is called, or one if there is none yet.
    client : distributed.Client, default=None
        Client of the cluster. None is the current one.

    Returns
    -------
    object
        The fitted estimator, in this process.

    Raises
    ------
    ImportError
        If dask or distributed is missing.
    TypeError, ValueError
        If the estimator does not belong to this package, if a table is not a Dask collection, or if parameters or data
        are not valid. Errors of ``fit`` or ``partial_fit`` on a worker are raised here, too.
    ConnectionError
        If several workers train together, and cannot reach the first of them by the address that Dask knows.
    RuntimeError
        If several workers train together, and one of them is lost or does not begin.

    Notes
    -----
    "partial_fit" first reads the table to count its rows and find its labels. Then it draws a random sample of 10 000
    rows, which is the first chunk. It is the first pass over a table that has no more rows. The other chunks are
    partitions in random order, in the first pass without the rows of the sample. Partitions of less than 20 000 rows
    are joined to larger chunks. Each pass computes the partitions again. ``X.persist()`` before the call keeps them in
    the memory of the cluster, if there is room.

    The result depends on ``random_state`` and on the partitions, but not on the workers. If the only worker that trains
    is lost, another worker starts again from the beginning. Ctrl-C stops the workers after a chunk or an epoch.

    Warnings of a fit appear in the workers' logs.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.distributed import fit_dask
    >>> X, y = (
    ...     da.from_array(each, chunks=50)
    ...     for each in make_waves(200, random_state=0)
    ... )
    >>> with Client(
    ...     processes=False,
    ...     n_workers=1,
    ...     threads_per_worker=1,
    ...     dashboard_address=":0",
    ... ) as client:
    ...     model = fit_dask(
    ...         DSDGPRegressor((), n_inducing=10, random_state=0), X, y, n_passes=2
    ...     )
    >>> model.n_iter_  # the rows fit into one chunk, and come twice
    2
    """
    get_client = _import_dask()
    check_estimator("fit_dask", estimator)
    _check_choices(method, n_passes, n_workers)
    client = get_client() if client is None else client
    blocks = partitions(X, y, sample_weight)
    if method == "fit":
        return _fit(client, clone(estimator), blocks, n_workers)
    return _stream(client, clone(estimator), blocks, n_passes, check_random_state(estimator.random_state))


def _import_dask():
    """The function that finds the client. Without Dask, the ImportError says what to install."""
    try:
        import dask.array  # noqa: F401
        from distributed import get_client
    except ImportError as error:
        raise ImportError(
            "fit_dask needs dask and distributed, and one of them cannot be imported: install both with "
            'pip install "skdgp[dask]".'
        ) from error
    return get_client


def _check_choices(method, n_passes, n_workers) -> None:
    """ValueError if the arguments do not go together."""
    if method not in ("fit", "partial_fit"):
        raise ValueError(f'method={method!r} is not known: give "partial_fit" or "fit".')
    check_numbers({"n_passes": n_passes, "n_workers": 1 if n_workers is None else n_workers})
    if method == "partial_fit" and n_workers is not None:
        raise ValueError(
            f'n_workers={n_workers} goes with method="fit": leave it out, since one worker learns from chunks.'
        )


# Chunk by chunk.


class _Course(NamedTuple):
    """The chunks that a model learns from, one after another.

    ``sample`` are random rows, which are the first chunk, and ``others`` the rows of each partition that are not among
    them. ``new`` are the groups of partitions whose other rows come next. ``again`` are the groups of later passes,
    in which all rows of the partitions come, in ``blocks``.
    """

    sample: list[Partition]
    others: list[Partition]
    blocks: list[Partition]
    new: list[list[int]]
    again: list[list[int]]

    def chunks(self) -> Iterator[list[Partition]]:
        """The partitions of each chunk."""
        yield self.sample
        for blocks, groups in ((self.others, self.new), (self.blocks, self.again)):
            for group in groups:
                yield [blocks[number] for number in group]


def _stream(client, model, blocks: list[Partition], n_passes: int, random_state: np.random.RandomState):
    """One worker learns from a random sample of all rows, and then from the partitions in random order."""
    from dask import delayed
    from distributed.protocol.pickle import dumps

    surveys = client.gather(client.compute([delayed(survey)(*block, is_classifier(model)) for block in blocks]))
    n_rows = np.array([result.n_rows for result in surveys])
    labels = np.unique(np.concatenate([result.labels for result in surveys])) if is_classifier(model) else None
    rng = np.random.default_rng(random_state.randint(np.iinfo(np.int32).max))
    course = _Course(blocks, [], blocks, [], [])  # without rows the estimator itself raises an error
    if n_rows.any():
        course = _course(blocks, n_rows, n_passes, rng)
    of_all = of_all_rows(model, int(n_rows.sum()), labels)
    with stopped_on_error(client) as job:
        return client.submit(_learn, model, dumps(course), of_all, job, pure=False).result()


def _course(blocks: list[Partition], n_rows: np.ndarray, n_passes: int, rng: np.random.Generator) -> _Course:
    """A course whose sample has as many rows as initial values are computed from, or all if there are fewer."""
    from dask import delayed

    drawn = n_rows
    if n_rows.sum() > INITIAL_ROWS:
        drawn = np.minimum(rng.multinomial(INITIAL_ROWS, n_rows / n_rows.sum()), n_rows)
    seeds = rng.integers(2**31, size=len(blocks))
    chosen = [(*block, int(n), int(seed)) for block, n, seed in zip(blocks, drawn, seeds, strict=True)]
    sample = [delayed(draw)(*chosen[i]) for i in np.flatnonzero(drawn)]
    others, left = [delayed(not_drawn)(*arguments) for arguments in chosen], n_rows - drawn
    new = mixed(left, rng) if left.any() else []
    again = [group for _ in range(n_passes - 1) for group in mixed(n_rows, rng)]
    return _Course(sample, others, blocks, new, again)


def _learn(model, pickled: bytes, of_all: dict[str, Any], job: str):
    """The task of the worker that trains; other tasks read the next chunk meanwhile.

    ``of_all`` has the arguments of ``partial_fit`` that depend on all rows.
    """
    from dask import delayed
    from distributed import worker_client

    model = clone(model)  # the task may run again, on another worker
    with worker_client() as client:
        course = pickle.loads(pickled)
        chunks = (delayed(together)(chunk) for chunk in course.chunks())
        for number, chunk in enumerate(_ahead(client, chunks)):
            check_wanted(job)
            teach(model, chunk, of_all, new=number <= len(course.new))
    return model


def _ahead(client, chunks: Iterable) -> Iterator[Partition]:
    """Yield one chunk after another. The next one is computed while one is in use."""
    coming = None
    for chunk in chunks:
        now, coming = coming, client.compute(chunk)
        if now is not None:
            yield now.result()
    if coming is not None:
        yield coming.result()


# All rows at once.


def _fit(client, model, blocks: list[Partition], n_workers: int | None):
    """Several workers train together: each has the whole table, and a share of every minibatch."""
    from dask import delayed

    workers = sorted(client.nthreads())
    if n_workers is not None and n_workers > len(workers):
        raise ValueError(f"n_workers={n_workers} is more than the cluster has, {len(workers)}: give at most so many.")
    rows, size = client.compute(delayed(together)(blocks)), n_workers or max(1, len(workers))
    with stopped_on_error(client) as job:
        if size == 1:
            return client.submit(_fit_alone, model, rows, job, pure=False).result()
        check_available()
        with meeting_place(client, job, workers[0]) as place:
            tasks = [
                client.submit(_fit_share, model, rows, job, place, rank, size, workers=[workers[rank]], pure=False)
                for rank in range(size)
            ]
            try:
                return _result(tasks)
            finally:
                client.cancel(tasks)


def _fit_alone(model, rows: Partition, job: str):
    """The task of a worker that trains alone."""
    X, y, weight = rows
    with shared_among(Wanted(ALONE, job)):
        return model.fit(X, y, sample_weight=weight)


def _fit_share(model, rows: Partition, job: str, place: Place, rank: int, size: int):
    """The task of each worker that trains together with others. The first one returns the model."""
    X, y, weight = rows
    with met(job, place, rank, size) as processes, shared_among(Wanted(processes, job)):
        model.fit(X, y, sample_weight=weight)
    return model if rank == 0 else None


def _result(tasks: Sequence):
    """The model of the first process. If processes fail, raise the error of one that did not fail due to another."""
    from distributed import wait

    waiting, lost = list(tasks), None
    while waiting:
        try:
            done, waiting = wait(waiting, EXPLAINING_SECONDS if lost else None, "FIRST_COMPLETED")
        except TimeoutError:
            break
        for task in done:
            error = task.exception()
            if error is not None and not _is_a_loss(error):
                task.result()
            lost = lost or error
    if isinstance(lost, ConnectionError):
        raise lost
    if lost:
        raise RuntimeError(
            f"One of the {len(tasks)} workers that train the model together was lost, or could not be reached: see its "
            "log, for memory above all, and call fit_dask again."
        ) from lost
    return tasks[0].result()


def _is_a_loss(error: Exception) -> bool:
    """Whether an error says that another process is out of reach. Gloo's errors have no type of their own."""
    return isinstance(error, dist.DistError | ConnectionError) or "gloo" in str(error)
