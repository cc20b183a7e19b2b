"""The usual trainer: minibatches, a schedule of the learning rate, early stopping, and recovery from failures."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from .batches import Batch, Part, shuffled, side_by_side
from .graphs import CapturedTrainee
from .memory import let_the_allocator_keep_pages
from .objectives import log_mixture
from .processes import Processes, current
from .settings import History, Learner, OnEpoch, Settings, go_on
from .stacks import can_be_stacked
from .steps import Trainee
from .threads import threads_for

#: Share of the steps in which the learning rate climbs to its peak, and the share of the peak that it climbs from. Then
#: it falls to zero along a cosine: the one-cycle schedule (Smith & Topin, 2019).
WARM_UP = 0.25
WARM_UP_FROM = 0.04

#: Largest number of held-out rows that compare epochs. On large tables, more would take as long as training.
SCORED_ROWS = 2000

#: Largest number of entries of a tensor of a minibatch, for all models of a stack together: 64 MiB in float32.
STACKED_NUMBERS = 2**24

#: Largest number of entries of a tensor of a batch of held-out rows.
SCORED_NUMBERS = 2**20

#: How often training of a model may go back to its last good epoch at half the learning rate.
MAX_RETRIES = 10


def one_cycle(progress: float) -> float:
    """Learning rate, as a share of its peak, after the share ``progress`` in [0, 1] of all steps."""
    if progress < WARM_UP:
        return WARM_UP_FROM + (1 - WARM_UP_FROM) * 0.5 * (1 - math.cos(math.pi * progress / WARM_UP))
    return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))


def train(learners: Sequence[Learner], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
    """Maximise the objective over the parameters of models, in place; see :class:`~.settings.Trainer`.

    Models of one shape are trained as one model (:mod:`.stacks`), and others side by side. Each model has its own rows,
    random numbers, best epoch and failures. Up to rounding, it becomes what it would have become alone.

    At most ``SCORED_ROWS`` held-out rows decide the score of an epoch. If an epoch fails, it is repeated with half the
    learning rate for the models that made it fail, up to ``MAX_RETRIES`` times for each. If the user interrupts
    training, models keep the parameters of the best epoch so far; without held-out rows, those of the last whole epoch.
    """
    let_the_allocator_keep_pages()
    histories = [History() for _ in learners]
    crews = [_Crew(*group, settings) for group in _groups(learners, histories, settings)]
    try:
        with threads_for(max(crew.products() for crew in crews)):
            _train(crews, settings, lambda: on_epoch(histories))
    finally:
        for crew in crews:
            crew.release()
    return histories


def _groups(
    learners: Sequence[Learner], histories: Sequence[History], settings: Settings
) -> Iterator[tuple[Sequence[Learner], Sequence[History]]]:
    """Groups of models that are trained as one."""
    models, n_rows, size = [each.model for each in learners], len(learners[0].rows), 1
    if len(learners) > 1 and can_be_stacked(models) and all(len(each.rows) == n_rows for each in learners):
        numbers = models[0].numbers_per_row() * min(settings.batch_size, n_rows)
        size = max(1, STACKED_NUMBERS // numbers)
    for start in range(0, len(learners), size):
        some = slice(start, start + size)
        yield learners[some], histories[some]


def _train(crews: "Sequence[_Crew]", settings: Settings, on_epoch: Callable[[], bool]) -> None:
    """The loop over epochs."""
    for epoch in range(settings.max_iter):
        n_done = epoch
        try:
            for crew in crews:
                crew.run_epoch(epoch)
            n_done = epoch + 1
            for crew in crews:
                crew.dismiss_stalled()
            crews = [crew for crew in crews if crew.members]
            ended = on_epoch()
        except KeyboardInterrupt:
            if not n_done:
                raise
            for crew in crews:
                crew.interrupt()
            return
        if current().gather(ended or not crews)[0]:
            return


@dataclass
class _Member:
    """One of the models, with the state of its training."""

    learner: Learner
    history: History
    mean_weight: float
    peak: float  # of its learning rate
    retries: int = 0
    best_score: float = -math.inf


class _Crew:
    """Models that are trained together. A model that has stalled leaves, with the parameters of its best epoch."""

    def __init__(self, learners: Sequence[Learner], histories: Sequence[History], settings: Settings):
        self.settings, processes = settings, current()
        models, parts, generators, _ = zip(*learners, strict=True)
        _check_shares(len(parts[0]), settings.batch_size, processes)
        self.members = [
            _Member(learner, history, learner.rows.mean_weight(), settings.learning_rate)
            for learner, history in zip(learners, histories, strict=True)
        ]
        captured = settings.cuda_graphs and generators[0].device.type == "cuda" and processes.size == 1
        kl_weight = [settings.kl_weight(len(each.learner.rows), each.mean_weight) for each in self.members]
        kind = CapturedTrainee if captured else Trainee
        self.trainee = kind(models, settings, generators, processes, kl_weight=kl_weight)
        self.best = self.trainee.parameters()
        self.scored = self._rows_to_score()

    def _rows_to_score(self) -> Batch | None:
        parts = [each.learner.held_out for each in self.members]
        if parts[0] is None:
            return None
        rows = side_by_side([cast(Part, part).spread(SCORED_ROWS) for part in parts])
        vector = self.trainee.flat.vector
        return rows.to(vector.device, vector.dtype)

    def products(self) -> int:
        """Multiplications of the largest operation of a step, roughly."""
        learner, settings = self.members[0].learner, self.settings
        n_rows = min(settings.batch_size, len(learner.rows))
        return len(self.members) * learner.model.products(n_rows, mixture=not settings.objective.linear)

    def run_epoch(self, epoch: int) -> None:
        """One pass over the rows in random order, repeated until it does not fail, and its record."""
        before = self.state()
        while True:
            try:
                losses = self._pass(epoch)
                scores = None if self.scored is None else mean_log_density(self.trainee, self.scored, self._together())
                break
            except (np.linalg.LinAlgError, FloatingPointError):
                failed = self.trainee.failed or [*range(len(self.members))]
                if any(self.members[number].retries == MAX_RETRIES for number in failed):
                    raise
                self.restore(before, failed)
                self._slow_down(failed)
            except KeyboardInterrupt:
                self.restore(before)
                raise
        for each, loss in zip(self.members, losses, strict=True):
            each.history.loss.append(loss)
            each.history.best_epoch = len(each.history.loss)
        if scores is not None:
            self._compare(scores)

    def _pass(self, epoch: int) -> list[float]:
        """One pass over the rows; the mean loss of every model."""
        trainee, settings, parts = self.trainee, self.settings, [each.learner.rows for each in self.members]
        n_steps, peak = -(-len(parts[0]) // settings.batch_size), max(each.peak for each in self.members)
        factor = trainee.flat.vector.new_tensor([1 / each.mean_weight for each in self.members])
        factor = factor[:, None] if len(parts) > 1 else factor
        total: float | Tensor = 0.0
        for i, batch in enumerate(shuffled(parts, settings.batch_size, trainee.generators)):
            rate = peak * one_cycle((epoch + i / n_steps) / settings.max_iter)
            total = total + len(batch) * trainee.step(batch.weighing(factor), rate).double()
        trainee.check()
        return (cast(Tensor, total) / len(parts[0])).tolist()

    def _together(self) -> int:
        """Number of held-out rows in a batch."""
        numbers = self.trainee.models[0].numbers_per_row() * len(self.members)
        return max(self.settings.batch_size, SCORED_NUMBERS // numbers)

    def _compare(self, scores: Sequence[float]) -> None:
        """Keep the parameters of models that are better than in all epochs before."""
        better = []
        for number, (each, score) in enumerate(zip(self.members, scores, strict=True)):
            each.history.score.append(score)
            if score > each.best_score:
                each.best_score = score
                better.append(number)
            each.history.best_epoch = 1 + int(np.argmax(each.history.score))
        self.best = torch.where(self.trainee.of(better), self.trainee.flat.vector, self.best)

    def state(self) -> tuple:
        """All that an epoch changes, except histories, for :meth:`restore`."""
        generators = [each.get_state() for each in self.trainee.generators]
        return self.trainee.parameters(), self.trainee.moments(), generators

    def restore(self, state: tuple, failed: Sequence[int] = ()) -> None:
        """Undo an epoch. The models that failed repeat it with other minibatches."""
        parameters, moments, generators = state
        self.trainee.restore(parameters, moments)
        for number, (generator, then) in enumerate(zip(self.trainee.generators, generators, strict=True)):
            if number not in failed:
                generator.set_state(then)

    def _slow_down(self, failed: Sequence[int]) -> None:
        """Halve the learning rate of models that have failed."""
        for number in failed:
            each = self.members[number]
            each.peak, each.retries = each.peak / 2, each.retries + 1
        self.trainee.failed = []
        self.trainee.pace_by([each.peak for each in self.members])

    def interrupt(self) -> None:
        """The user has ended training."""
        for each in self.members:
            each.history.interrupted = True

    def dismiss_stalled(self) -> None:
        """Remove models whose scores no longer improve."""
        kept = [i for i, each in enumerate(self.members) if not _stalled(each.history.score, self.settings)]
        if len(kept) < len(self.members):
            if not kept:
                self.members = []
                return
            mask = self.trainee.of(kept)
            self.trainee.restore(torch.where(mask, self.trainee.flat.vector, self.best))
            self.members, self.best = [self.members[i] for i in kept], self.best[mask]
            self.trainee = self.trainee.only(kept)
            self.trainee.pace_by([each.peak for each in self.members])
            self.scored = self._rows_to_score()

    def release(self) -> None:
        """End the training, with the best parameters of each model."""
        if self.scored is not None:
            self.trainee.restore(self.best)
        self.trainee.release()


def _check_shares(n_rows: int, batch_size: int, processes: Processes) -> None:
    """ValueError if there are more processes than a minibatch has rows."""
    smallest = n_rows // -(-n_rows // batch_size)
    if smallest < processes.size:
        raise ValueError(
            f"Minibatches of {smallest} rows cannot be shared by {processes.size} processes: raise batch_size, or "
            "start fewer processes."
        )


@torch.no_grad()
def mean_log_density(trainee: Trainee, data: Batch, batch_size: int) -> list[float]:
    """Weighted mean log predictive density of rows for every model, with the noise that predictions use."""
    processes, likelihood = trainee.processes, trainee.model.likelihood
    total = data.y.new_zeros(data.y.shape[:-2])
    share = processes.share(len(data))
    try:
        with trainee.blaming(data):
            model = trainee.model.frozen()
            for start in range(share.start, share.stop, batch_size):
                batch = data.rows(slice(start, min(start + batch_size, share.stop)))
                total += (batch.weight * log_mixture(model(batch.X), likelihood, batch.y)).sum(-1)
    except np.linalg.LinAlgError:
        if processes.size == 1:
            raise
        total.fill_(math.nan)
    processes.add_up(total)
    means = (total / data.weight.sum(-1)).reshape(-1).tolist()
    trainee.failed = [number for number, mean in enumerate(means) if not math.isfinite(mean)]
    for number in trainee.failed:
        raise FloatingPointError(
            f"The held-out log density became {means[number]}. The likely cause is a diverged optimisation: lower "
            "learning_rate, or set dtype='float64'."
        )
    return means


def _stalled(scores: list[float], settings: Settings) -> bool:
    """Whether the last ``n_iter_no_change`` scores brought no improvement."""
    patience = settings.n_iter_no_change
    return len(scores) > patience and max(scores[-patience:]) <= max(scores[:-patience])
