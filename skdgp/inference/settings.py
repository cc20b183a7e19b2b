"""What all trainers are given, and what they report.

A trainer is a function, or an object that is called, with the signature of :class:`Trainer`. There are three:
minibatches (:func:`skdgp.inference.minibatches.train`), all rows with posteriors in closed form
(:func:`skdgp.inference.collapsed.train`), and chunk by chunk (:class:`skdgp.inference.streaming.Stream`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ..gp.deep_gp import DeepGP
from .batches import Batch
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
    parameters the model has in the end, ``interrupted`` whether the user ended it.
    """

    loss: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    best_epoch: int = 0
    interrupted: bool = False


#: Called with the history after every epoch; training ends when it returns True.
OnEpoch = Callable[[History], bool]


def go_on(history: History) -> bool:
    """Never end training."""
    return False


class Trainer(Protocol):
    """Changes a model in place, so that it explains the rows."""

    def __call__(
        self,
        model: DeepGP,
        data: Batch,
        held_out: Batch | None,
        settings: Settings,
        generator: torch.Generator,
        on_epoch: OnEpoch = go_on,
    ) -> History:
        """Train.

        Parameters
        ----------
        model : DeepGP
        data, held_out : Batch
            Rows to learn from, and rows to choose the best epoch by; None uses the last epoch.
        settings : Settings
        generator : torch.Generator
            Shuffles rows and draws samples.
        on_epoch : callable, default=never stops
            Called with the history after every epoch; training ends when it returns True.

        Returns
        -------
        History

        Raises
        ------
        numpy.linalg.LinAlgError, FloatingPointError
            If the numbers stay beyond floating point whatever is tried.
        KeyboardInterrupt
            If the user interrupts before there is something to keep.
        """
