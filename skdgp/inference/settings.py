"""What all trainers are given, and what they report.

A trainer is a function with the signature of :class:`Trainer`. There are three: minibatches
(:func:`skdgp.inference.minibatches.train`), minibatches between posteriors in closed form
(:func:`skdgp.inference.solved.train`), and all rows with posteriors in closed form
(:func:`skdgp.inference.collapsed.train`). Chunks that come one after the other have
:class:`skdgp.inference.streaming.Stream`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import NamedTuple, Protocol

import torch

from ..gp.deep_gp import DeepGP
from .batches import Part
from .objectives import Objective


@dataclass(frozen=True)
class Settings:
    """What training needs to know besides model and data; see the estimators' parameters for the meanings.

    ``n_rows`` is the number of rows that the penalty is weighed against; None is as many as the trainer is given, of
    which there are fewer than the user's where some are held out.
    """

    objective: Objective
    beta: float
    max_iter: int
    batch_size: int
    learning_rate: float
    n_iter_no_change: int = 1000
    tol: float = 0.0
    cuda_graphs: bool = False
    n_rows: int | None = None

    def kl_weight(self, n_rows: int, mean_weight: float) -> float:
        """β/N, N the sum of weights; a trainer is given ``n_rows`` of that mean weight."""
        return self.beta / ((self.n_rows or n_rows) * mean_weight)


@dataclass
class History:
    """What training did, epoch by epoch.

    ``loss`` is the mean negative objective of an epoch's minibatches, ``score`` the mean log predictive
    density of some held-out rows after it (empty without such rows), ``best_epoch`` the epoch, counted from 1, whose
    parameters the model has in the end, ``interrupted`` whether the user ended it. ``bound`` is the evidence lower
    bound of all rows in the end, where training knows it.
    """

    loss: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    best_epoch: int = 0
    interrupted: bool = False
    bound: float | None = None


class Learner(NamedTuple):
    """A model to train, and the rows to do it with.

    ``held_out`` are rows to choose the best epoch by; without them it is the last. ``generator`` shuffles rows and
    draws samples.
    """

    model: DeepGP
    rows: Part
    generator: torch.Generator
    held_out: Part | None = None


#: Called with all histories after every epoch; training ends when it returns True.
OnEpoch = Callable[[Sequence[History]], bool]


def go_on(histories: Sequence[History]) -> bool:
    """Never end training."""
    return False


class Trainer(Protocol):
    """Changes models in place, so that they explain their rows."""

    def __call__(self, learners: Sequence[Learner], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
        """Train.

        Parameters
        ----------
        learners : sequence of Learner
            Models that differ in their seeds, and in which rows of a table they learn from.
        settings : Settings
        on_epoch : callable, default=never stops
            Called with all histories after every epoch; training ends when it returns True.

        Returns
        -------
        list of History
            One for each learner. Where training ended early, those that have not begun have no epochs.

        Raises
        ------
        numpy.linalg.LinAlgError, FloatingPointError
            If the numbers stay beyond floating point whatever is tried.
        KeyboardInterrupt
            If the user interrupts before there is something to keep.
        """


def one_by_one(train: Callable[[Learner, Settings, Callable[[History], bool]], History]) -> Trainer:
    """The trainer that trains one learner after the other.

    Parameters
    ----------
    train : callable
        Trains a single one, and calls its third argument with the history after every epoch.
    """

    @wraps(train)
    def trainer(learners: Sequence[Learner], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
        histories = [History() for _ in learners]
        for number, learner in enumerate(learners):
            ended = False

            def after_epoch(history: History, number: int = number) -> bool:
                nonlocal ended
                histories[number] = history
                ended = on_epoch(histories)
                return ended

            try:
                histories[number] = train(learner, settings, after_epoch)
            except KeyboardInterrupt:
                if not number:
                    raise
                histories[number - 1].interrupted = True
                break
            if ended or histories[number].interrupted:
                break
        return histories

    return trainer
