"""Arguments and results that all trainers share.

A trainer is a function with the signature of :class:`Trainer`. There are three. The first uses minibatches
(:func:`skdgp.inference.minibatches.train`). The second uses minibatches, and computes posteriors in closed form every
few epochs (:func:`skdgp.inference.solved.train`). The third uses all rows at once, with posteriors that are always in
closed form (:func:`skdgp.inference.collapsed.train`). :class:`skdgp.inference.streaming.Stream` learns from chunks that
come one after another.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import NamedTuple, Protocol

import torch

from ..gp.deep_gp import DeepGP
from .batches import Batch, Part
from .objectives import Objective


@dataclass(frozen=True)
class Settings:
    """Settings of training; the estimators' parameters of the same names explain them.

    ``n_rows`` is the number of rows N that decides the weight β/N of the penalty. With None it is the number of rows
    that the trainer gets, which does not include held-out rows. ``until`` is when training has to end, on the monotonic
    clock: what is scheduled then ends by that time. The first ``trial`` epochs are a training of their own, with a
    whole cycle of the learning rate, after which it may turn out that more would gain nothing. ``n_passes`` is the
    number of passes of a stream over each chunk.
    """

    objective: Objective
    beta: float
    max_iter: int
    batch_size: int
    learning_rate: float
    n_iter_no_change: int = 1000
    cuda_graphs: bool | str = "auto"
    n_rows: int | None = None
    until: float = math.inf
    trial: int = 0
    n_passes: int = 1

    def out_of_time(self) -> bool:
        """Whether training has to end."""
        return time.monotonic() >= self.until

    def kl_weight(self, n_rows: int, mean_weight: float) -> float:
        """β/N, where N is the sum of weights of ``n_rows`` rows with this mean weight."""
        return self.beta / ((self.n_rows or n_rows) * mean_weight)


@dataclass
class History:
    """The course of training, epoch by epoch.

    ``loss`` is the mean negative objective of an epoch's minibatches. ``score`` is the mean log predictive density of
    some held-out rows after the epoch, and empty without such rows. ``best_epoch`` is the epoch, counted from 1, whose
    parameters the model keeps. ``interrupted`` says whether the user ended the training. ``bound`` is the evidence
    lower bound of all rows at the end, if training knows it.
    """

    loss: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    best_epoch: int = 0
    interrupted: bool = False
    bound: float | None = None

    def add(self, loss: float, score: float | None = None) -> bool:
        """Record an epoch; return whether it is the best so far. Without scores this is always the last epoch."""
        best = score is None or score > max(self.score, default=-math.inf)
        self.loss.append(loss)
        if score is not None:
            self.score.append(score)
        if best:
            self.best_epoch = len(self.loss)
        return best

    def stalled(self, settings: Settings) -> bool:
        """Whether the last ``n_iter_no_change`` scores brought no improvement; those after the trial are apart."""
        patience = settings.n_iter_no_change
        scores = self.score[settings.trial :] or self.score
        before, last = scores[:-patience], scores[-patience:]
        return bool(before) and max(last) <= max(before)


class Member(NamedTuple):
    """A member of an ensemble in training: its model, and the rows that it learns from.

    ``held_out`` are rows that choose the best epoch; without them the last epoch is taken. ``generator`` shuffles rows
    and draws samples. ``n_distinct`` is the number N of rows that the penalty is weighed against, if it is not the sum
    of their weights: twins count once (see :mod:`.twins`).
    """

    model: DeepGP
    rows: Part
    generator: torch.Generator
    held_out: Part | None = None
    n_distinct: int | None = None

    def at_once(self, n_rows: int | None = None) -> Batch:
        """All rows that it learns from, or about ``n_rows`` of them, on the device of training; those with weights."""
        rows = (self.rows if n_rows is None else self.rows.spread(n_rows)).rows()
        if not rows.weight.all():  # outliers have none
            rows = rows.rows(rows.weight > 0)
        return rows.to(self.generator.device, rows.X.dtype)


#: Called with all histories after every epoch; training ends when it returns True.
OnEpoch = Callable[[Sequence[History]], bool]


def go_on(histories: Sequence[History]) -> bool:
    """Never end training."""
    return False


class Trainer(Protocol):
    """Changes models in place, so that they explain their rows."""

    def __call__(self, members: Sequence[Member], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
        """Train.

        Parameters
        ----------
        members : sequence of Member
            Models that differ in their seeds, and in the rows of the table that they learn from.
        settings : Settings
            Settings of the training.
        on_epoch : callable, default=never stops
            Called with all histories after every epoch; training ends when it returns True.

        Returns
        -------
        list of History
            One for each member. If training ended early, those of members without a result have no epochs.

        Raises
        ------
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers still become infinite or NaN after all retries.
        KeyboardInterrupt
            If the user interrupts before there is a result to keep.
        """


class OneByOne:
    """A trainer that trains one member after the other.

    Parameters
    ----------
    train : callable
        Trains a single member, and calls its third argument with the history after every epoch.
    """

    def __init__(self, train: Callable[[Member, Settings, Callable[[History], bool]], History]):
        self.train = train
        update_wrapper(self, train)

    def __call__(self, members: Sequence[Member], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
        """See :class:`Trainer`."""
        histories = [History() for _ in members]
        for number, member in enumerate(members):
            ended = False

            def after_epoch(history: History, number: int = number) -> bool:
                nonlocal ended
                histories[number] = history
                ended = on_epoch(histories)
                return ended

            try:
                histories[number] = self.train(member, settings, after_epoch)
            except KeyboardInterrupt:
                if not number:
                    raise
                histories[number] = History()  # its training has no result yet, whatever its epochs were
                histories[number - 1].interrupted = True
                break
            if ended or histories[number].interrupted:
                break
        return histories
