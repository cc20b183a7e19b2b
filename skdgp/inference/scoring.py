"""Scores of epochs: how well members in training predict rows that they hold out."""

import math
from collections.abc import Sequence

import torch

from ..gp.devices import at_a_time
from .batches import Batch, side_by_side
from .objectives import log_mixture
from .settings import Member
from .steps import Failure, Stepper

#: Largest number of held-out rows that compare epochs. On large tables, more would take as long as training.
SCORED_ROWS = 2000

#: Largest number of entries of a tensor of a batch of held-out rows, on a processor.
SCORED_NUMBERS = 2**20


def rows_to_score(members: Sequence[Member]) -> Batch | None:
    """Held-out rows of all members side by side; None if members hold none out."""
    parts = [member.held_out for member in members if member.held_out is not None]
    n_rows = min([SCORED_ROWS, *map(len, parts)])  # some members may have fewer rows that judge them
    return side_by_side([part.spread(n_rows) for part in parts]) if parts else None


def n_together(stepper: Stepper) -> int:
    """Number of rows in a batch."""
    numbers = stepper.members[0].model.numbers_per_row() * len(stepper)
    return max(stepper.settings.batch_size, at_a_time(SCORED_NUMBERS, stepper.flat.vector.device) // numbers)


@torch.no_grad()
def mean_log_density(stepper: Stepper, data: Batch, batch_size: int) -> list[float]:
    """Weighted mean log predictive density of rows for every member, with the noise that predictions use."""
    processes, likelihood = stepper.processes, stepper.model.likelihood
    total, share = data.y.new_zeros(data.y.shape[:-2]), processes.share(len(data))
    with stepper.blaming(data), processes.adding_up(total):
        model = stepper.model.frozen()
        for start in range(share.start, share.stop, batch_size):
            batch = data.rows(slice(start, min(start + batch_size, share.stop)))
            total += (batch.weight * log_mixture(model(batch.X), likelihood, batch.y)).sum(-1)
    means = (total / data.weight.sum(-1)).reshape(-1).tolist()
    failed = [number for number, mean in enumerate(means) if not math.isfinite(mean)]
    for number in failed:
        raise Failure(
            f"The held-out log density became {means[number]}. The likely cause is a diverged optimisation: lower "
            "learning_rate, or set dtype='float64'.",
            failed,
        )
    return means
