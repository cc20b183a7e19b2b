"""The trainer for most: minibatches, a learning-rate schedule, early stopping, recovery."""

import math

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .batches import Batch, shuffled
from .graphs import CapturedTrainee
from .memory import let_the_allocator_keep_pages
from .objectives import log_mixture
from .processes import Processes, current
from .settings import History, OnEpoch, Settings, go_on
from .steps import Trainee

#: Share of the steps in which the learning rate climbs to its peak, and the share of the peak it
#: climbs from: one cycle (Smith & Topin, 2019), down to nothing along a cosine.
WARM_UP = 0.25
WARM_UP_FROM = 0.04

#: Held-out rows that epochs are compared by. More would cost large data sets as much as training does.
SCORED_ROWS = 2000

#: How often training may go back to its last good epoch at half the learning rate.
MAX_RETRIES = 10


def one_cycle(progress: float) -> float:
    """Learning rate, as a share of its peak, when ``progress`` in [0, 1] of the steps are done."""
    if progress < WARM_UP:
        return WARM_UP_FROM + (1 - WARM_UP_FROM) * 0.5 * (1 - math.cos(math.pi * progress / WARM_UP))
    return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))


def train(
    model: DeepGP,
    data: Batch,
    held_out: Batch | None,
    settings: Settings,
    generator: torch.Generator,
    on_epoch: OnEpoch = go_on,
) -> History:
    """Maximise the objective over the parameters of ``model``, in place; see :class:`~.settings.Trainer`.

    The epochs' scores are of at most ``SCORED_ROWS`` held-out rows. An epoch that fails is repeated at half the
    learning rate, up to ``MAX_RETRIES`` times in all. A user who interrupts it gets the parameters of the best epoch
    so far, or of the last whole one without held-out rows.
    """
    let_the_allocator_keep_pages()
    processes = current()
    _check_shares(len(data), settings.batch_size, processes)
    data, mean_weight = data.relative()
    kl_weight = settings.kl_weight(len(data), mean_weight)
    if settings.cuda_graphs and generator.device.type == "cuda" and processes.size == 1:
        trainee: Trainee = CapturedTrainee(model, settings, generator, kl_weight=kl_weight)
    else:
        trainee = Trainee(model, settings, generator, processes, kl_weight=kl_weight)
    try:
        return _train(trainee, data, held_out, settings, on_epoch)
    finally:
        trainee.release()


def _train(
    trainee: Trainee,
    data: Batch,
    held_out: Batch | None,
    settings: Settings,
    on_epoch: OnEpoch,
) -> History:
    """The loop over epochs."""
    scored = None if held_out is None else held_out.spread(SCORED_ROWS)
    history = History()
    best = _Best(trainee)
    peak, retries = settings.learning_rate, 0
    while len(history.loss) < settings.max_iter:
        before = trainee.parameters(), trainee.moments()
        try:
            loss = _run_epoch(trainee, data, settings, len(history.loss), peak)
            score = None if scored is None else mean_log_density(trainee, scored, settings.batch_size)
        except (np.linalg.LinAlgError, FloatingPointError):
            if retries == MAX_RETRIES:
                raise
            trainee.restore(*before)
            peak, retries = peak / 2, retries + 1
            continue
        except KeyboardInterrupt:
            if not history.loss:
                raise
            trainee.restore(*before)
            history.interrupted = True
            break
        history.loss.append(loss)
        history.best_epoch = len(history.loss)
        if score is not None:
            history.score.append(score)
            best.update(score, len(history.loss))
        if trainee.processes.agree(on_epoch(history) or _stalled(history.score, settings)):
            break
    if held_out is not None:
        history.best_epoch = best.restore()
    return history


def _check_shares(n_rows: int, batch_size: int, processes: Processes) -> None:
    """ValueError if there are more processes than a minibatch has rows."""
    smallest = n_rows // -(-n_rows // batch_size)
    if smallest < processes.size:
        raise ValueError(
            f"Minibatches of {smallest} rows cannot be shared by {processes.size} processes: raise batch_size, or "
            "start fewer processes."
        )


class _Best:
    """The parameters of the epoch with the best held-out score."""

    def __init__(self, trainee: Trainee):
        self.trainee = trainee
        self.score, self.epoch, self.parameters = -math.inf, 0, trainee.parameters()

    def update(self, score: float, epoch: int) -> None:
        if score > self.score:
            self.score, self.epoch, self.parameters = score, epoch, self.trainee.parameters()

    def restore(self) -> int:
        self.trainee.restore(self.parameters)
        return self.epoch


def _run_epoch(trainee: Trainee, data: Batch, settings: Settings, epoch: int, peak: float) -> float:
    """One pass over the rows in random order; the mean loss."""
    n_steps = -(-len(data) // settings.batch_size)
    total: float | Tensor = 0.0
    for i, batch in enumerate(shuffled(data, settings.batch_size, trainee.generator)):
        rate = peak * one_cycle((epoch + i / n_steps) / settings.max_iter)
        total += len(batch) * trainee.step(batch, rate)
    trainee.check()
    return float(total) / len(data)


@torch.no_grad()
def mean_log_density(trainee: Trainee, data: Batch, batch_size: int) -> float:
    """Weighted mean log predictive density of rows, with the noise that predictions use."""
    processes, likelihood = trainee.processes, trainee.model.likelihood
    total = data.y.new_zeros(())
    share = processes.share(len(data))
    try:
        model = trainee.model.frozen()
        for start in range(share.start, share.stop, batch_size):
            batch = data.rows(slice(start, min(start + batch_size, share.stop)))
            total += (batch.weight * log_mixture(model(batch.X), likelihood, batch.y)).sum()
    except np.linalg.LinAlgError:
        if processes.size == 1:
            raise
        total.fill_(math.nan)
    processes.add_up(total)
    mean = total.item() / data.weight.sum().item()
    if not math.isfinite(mean):
        raise FloatingPointError(
            f"The held-out log density became {mean}. The likely cause is a diverged optimisation: lower "
            "learning_rate, or set dtype='float64'."
        )
    return mean


def _stalled(scores: list[float], settings: Settings) -> bool:
    """Whether the last ``n_iter_no_change`` scores brought no improvement of more than ``tol``."""
    patience = settings.n_iter_no_change
    return len(scores) > patience and max(scores[-patience:]) <= max(scores[:-patience]) + settings.tol
