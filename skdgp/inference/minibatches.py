"""The usual trainer: epochs of minibatches, a schedule of the learning rate, and early stopping.

A step itself is in :mod:`.steps`.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from .graphs import RecordedStepper, can_be_recorded
from .memory import let_the_allocator_keep_pages
from .processes import current
from .retries import repeated
from .scoring import mean_log_density, n_together, rows_to_score
from .settings import History, Member, OnEpoch, Settings, go_on
from .stacks import can_be_stacked
from .steps import Stepper
from .threads import threads_for
from .twins import merged

#: Share of the steps in which the learning rate climbs to its peak. Then it falls to zero along a cosine: the one-cycle
#: schedule (Smith & Topin, 2019).
WARM_UP = 0.25

#: The share of the peak that the learning rate climbs from.
WARM_UP_FROM = 0.04

#: Largest number of entries of a tensor of a minibatch, for all members of a stack together: 64 MiB in float32.
STACKED_NUMBERS = 2**24


def one_cycle(progress: float) -> float:
    """Learning rate, as a share of its peak, after the share ``progress`` in [0, 1] of all steps."""
    if progress < WARM_UP:
        return WARM_UP_FROM + (1 - WARM_UP_FROM) * 0.5 * (1 - math.cos(math.pi * progress / WARM_UP))
    return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))


def schedule(progress: float, trial: float) -> float:
    """The same after a share of all steps of which a ``trial``, and then all others, have a cycle of their own."""
    if progress < trial:
        return one_cycle(progress / trial)
    return one_cycle((progress - trial) / (1 - trial))


def train(members: Sequence[Member], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
    """Maximise the objective over the parameters of models, in place; see :class:`~.settings.Trainer`.

    Members of one shape are trained as one model (:mod:`.stacks`), and others side by side. Each member has its own
    rows, random numbers, best epoch and failures. Up to rounding, it becomes what it would have become alone.

    At most ``SCORED_ROWS`` held-out rows decide the score of an epoch. If an epoch fails, it is repeated with half the
    learning rate for the members that made it fail (:mod:`.retries`). If the user interrupts training, members keep the
    parameters of the best epoch so far; without held-out rows, those of the last whole epoch.
    """
    let_the_allocator_keep_pages()
    members = [_counted(member) for member in members]
    histories = [History() for _ in members]
    groups = [_Group(members[some], histories[some], settings) for some in _stacks(members, settings)]
    try:
        with threads_for(max(group.products() for group in groups)):
            _train(groups, settings, lambda: on_epoch(histories))
    finally:
        for group in groups:
            group.release()
    return histories


def _counted(member: Member) -> Member:
    """The member with its number of distinct rows, if it learns how large the noise is.

    A row of weight 2 counts twice beside other rows. If it also counted twice beside the penalty, members could follow
    each target more closely, as if its copy had proved that there is no noise.
    """
    if not member.model.likelihood.calibrated():
        return member
    return member._replace(n_distinct=len(merged(member.rows.rows())))


def _stacks(members: Sequence[Member], settings: Settings) -> Iterator[slice]:
    """Which members are trained as one model."""
    models, n_rows, size = [member.model for member in members], len(members[0].rows), 1
    if len(members) > 1 and can_be_stacked(models) and all(len(member.rows) == n_rows for member in members):
        numbers = models[0].numbers_per_row() * min(settings.batch_size, n_rows)
        size = max(1, STACKED_NUMBERS // numbers)
    for start in range(0, len(members), size):
        yield slice(start, start + size)


def _train(groups: "Sequence[_Group]", settings: Settings, on_epoch: Callable[[], bool]) -> None:
    """The loop over epochs."""
    for epoch in range(settings.max_iter):
        n_done = epoch
        try:
            for group in groups:
                group.run_epoch(epoch)
            n_done = epoch + 1
            for group in groups:
                group.dismiss_stalled()
            groups = [group for group in groups if group.histories]
            ended = on_epoch()
        except KeyboardInterrupt:
            if not n_done:
                raise
            for group in groups:
                group.interrupt()
            return
        if current().gather(ended or not groups)[0]:
            return


class _Group:
    """Members that are trained as one model. One that has stalled leaves, with the parameters of its best epoch."""

    def __init__(self, members: Sequence[Member], histories: Sequence[History], settings: Settings):
        self.settings, self.histories, processes = settings, histories, current()
        processes.check_shares(len(members[0].rows), settings.batch_size)
        on_gpu = members[0].generator.device.type == "cuda"
        wanted = can_be_recorded(members[0].model) if settings.cuda_graphs == "auto" else settings.cuda_graphs
        recorded = wanted and on_gpu and processes.size == 1
        self.stepper = (RecordedStepper if recorded else Stepper)(members, settings, processes)
        self.best = self.stepper.flat.vector.clone()
        self.start, self.alone = time.monotonic(), processes.size == 1
        self._hold_out()

    def _hold_out(self) -> None:
        """Let rows that the members hold out score their epochs."""
        rows, vector = rows_to_score(self.stepper.members), self.stepper.flat.vector
        self.scored = None if rows is None else rows.to(vector.device, vector.dtype)

    def products(self) -> int:
        """Multiplications of the largest operation of a step, roughly."""
        member, settings = self.stepper.members[0], self.settings
        n_rows = min(settings.batch_size, len(member.rows))
        return len(self.stepper) * member.model.products(n_rows, mixture=not settings.objective.linear)

    def run_epoch(self, epoch: int) -> None:
        """One pass over the rows, repeated until it does not fail, and its record."""
        losses, scores = repeated(self.stepper, lambda: self._epoch(epoch))
        courses = enumerate(zip(self.histories, losses, scores, strict=True))
        better = [number for number, (history, loss, score) in courses if history.add(loss, score)]
        if self.scored is not None:
            self.best = torch.where(self.stepper.of(better), self.stepper.flat.vector, self.best)

    def _epoch(self, epoch: int) -> tuple[list[float], Sequence[float | None]]:
        """Mean losses of the members, and their scores if there are rows to score by."""
        settings, stepper = self.settings, self.stepper

        def rate(step: int) -> float:
            progress = self._progress(epoch + step / stepper.n_steps)
            return settings.learning_rate * schedule(progress, settings.trial / settings.max_iter)

        losses = stepper.epoch(rate, over=lambda: self.alone and settings.out_of_time())
        if self.scored is None:
            return losses, [None] * len(stepper)
        return losses, mean_log_density(stepper, self.scored, n_together(stepper))

    def _progress(self, n_epochs: float) -> float:
        """Share of the schedule that is over after so many epochs, or after so much of the time."""
        settings, share = self.settings, n_epochs / self.settings.max_iter
        if (
            settings.until == math.inf or not self.alone
        ):  # processes have clocks of their own, and must take equal steps
            return share
        spent, allowed = time.monotonic() - self.start, settings.until - self.start
        return 1.0 if spent >= allowed else max(share, spent / allowed)

    def dismiss_stalled(self) -> None:
        """Let members leave whose scores no longer improve."""
        staying = [number for number, history in enumerate(self.histories) if not history.stalled(self.settings)]
        if len(staying) == len(self.histories):
            return
        self.histories = [self.histories[number] for number in staying]
        if staying:
            chosen, vector = self.stepper.of(staying), self.stepper.flat.vector
            vector.copy_(torch.where(chosen, vector, self.best))
            self.best, self.stepper = self.best[chosen], self.stepper.only(staying)
            self._hold_out()

    def interrupt(self) -> None:
        """The user has ended training."""
        for history in self.histories:
            history.interrupted = True

    def release(self) -> None:
        """End the training, with the best parameters of each member."""
        if self.scored is not None:
            self.stepper.flat.vector.copy_(self.best)
        self.stepper.release()
