"""The values that "auto" stands for, given the number of rows, and the plan of training."""

from typing import NamedTuple

import numpy as np
import torch

from ..inference import minibatches
from ..inference.objectives import OBJECTIVES
from ..inference.plan import Plan
from ..inference.settings import Settings
from .inducing import COVARIANCES

#: From so many rows on, fits pass over them less often.
MANY_ROWS = 20_000

#: The number of passes then falls as this power of the number of rows, so that fits to ten times as many rows take two
#: and a half times as long.
FALL = 0.6

#: Smallest number of passes.
FEWEST_PASSES = 2

#: Largest number of passes over a chunk of a stream.
MOST_PASSES = 10

#: Smaller chunks have the minibatches of a chunk of this size, since earlier rows are replayed with them.
SMALL_CHUNK = 400


class Budget(NamedTuple):
    """Sizes of an ensemble and of its training that suit a method.

    The members together see about ``member_rows`` rows: small tables gain most from averaging and cost least. A
    minibatch is a share of the rows within bounds. It has ``large_batch`` rows if the table has ``large_rows`` or more,
    since larger minibatches take less time per row. Small tables need more epochs for the same number of steps.
    """

    steps: tuple[int, int]  # with fewer rows than ``large_rows``, and with more
    epochs: tuple[int, int]
    member_rows: int
    max_members: int
    batch_sizes: tuple[int, int]
    large_batch: int
    large_rows: int = 4000

    def n_estimators(self, n_rows: int) -> int:
        """Number of members of the ensemble."""
        return int(np.clip(self.member_rows // n_rows, 1, self.max_members))

    def batch_size(self, n_rows: int) -> int:
        """Number of rows in a minibatch."""
        return self.large_batch if n_rows >= self.large_rows else int(np.clip(n_rows // 4, *self.batch_sizes))

    def max_iter(self, n_rows: int, batch_size: int, *, by_chunks: bool) -> int:
        """Number of passes over the data; or, ``by_chunks``, the largest one over a chunk of so many rows in all."""
        steps, (fewest, most) = self.steps[n_rows >= self.large_rows], self.epochs
        if not by_chunks and n_rows > MANY_ROWS:
            fewest = max(FEWEST_PASSES, round(fewest * (MANY_ROWS / n_rows) ** FALL))
        return int(np.clip(steps * batch_size / n_rows, fewest, most))


def in_double(method) -> bool:
    """Whether a model trains and predicts in float64, whatever the precision of the table is.

    Without whitening the covariance of the inducing variables is inverted, which makes rounding errors larger.
    """
    return method.dtype == "float64" or (method.dtype == "auto" and not COVARIANCES[method.covariance].whitened)


def n_members(method, budget: Budget, n_rows: int | None) -> int:
    """Number of members of the ensemble; "auto" is one if the number of rows is not known."""
    if method.n_estimators != "auto":
        return method.n_estimators
    return 1 if n_rows is None else budget.n_estimators(n_rows)


def plan_minibatches(
    method, budget: Budget, n_rows: int, n_chunk: int | None = None, beta: float | None = None
) -> Plan:
    """The plan for ``n_rows`` rows, which may come in chunks. It replaces every "auto" except that of ``beta``."""
    batch_size = method.batch_size
    if batch_size == "auto":
        batch_size = budget.batch_size(n_rows if n_chunk is None else max(n_chunk, SMALL_CHUNK))
    batch_size = min(batch_size, n_rows)
    max_iter = budget.max_iter(n_rows, batch_size, by_chunks=n_chunk is not None)
    max_iter = max_iter if method.max_iter == "auto" else method.max_iter
    settings = Settings(
        objective=OBJECTIVES["elbo" if method.objective == "auto" else method.objective],
        beta=method.beta if beta is None else beta,
        max_iter=max_iter,
        batch_size=batch_size,
        learning_rate=method.learning_rate,
        n_iter_no_change=method.n_iter_no_change,
        cuda_graphs=method.cuda_graphs,
        n_rows=None if n_chunk is None else n_rows,
        n_passes=min(MOST_PASSES, max_iter, budget.max_iter(n_rows, batch_size, by_chunks=False)),
    )
    return Plan(minibatches.train, settings, torch.float64 if in_double(method) else torch.float32, "svi")
