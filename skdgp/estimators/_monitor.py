"""What is told while a fit runs: a line of text to the user, and tasks to scikit-learn's callbacks."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from torch import nn

from ..gp.deep_gp import DeepGP
from ..inference.training import History
from ._callbacks import FitTasks
from ._progress import ProgressLine


class Monitor:
    """Follows the members of an ensemble through their training.

    Parameters
    ----------
    estimator : BaseEnsemble
        Which is being fitted.
    n_members, max_iter : int
        Members, and epochs of each at most.
    hooks : dict
        What callbacks may ask for: ``X``, ``y`` and ``metadata``.
    dtype : torch.dtype
        Precision of finished members.

    Attributes
    ----------
    members : list of DeepGP
        Those whose training is over.
    histories : list of History
        Of these, and of the one in training once it has an epoch.
    """

    def __init__(self, estimator, n_members: int, max_iter: int, hooks: dict, dtype: torch.dtype):
        self.members: list[DeepGP] = []
        self.histories: list[History] = []
        self._finish: Callable[[DeepGP], DeepGP] = lambda model: model.to(dtype).requires_grad_(False)
        self._line = ProgressLine(type(estimator).__name__, n_members, max_iter, silent=not estimator.verbose)
        self._tasks = FitTasks(estimator, n_members, max_iter, hooks, self._attributes)

    def begin(self, model: DeepGP) -> None:
        """A member's training begins."""
        self._model = model
        self._tasks.begin_member()

    def epoch(self, history: History) -> bool:
        """One of its epochs ends; whether it was told to be the last."""
        self.histories[len(self.members) :] = [history]
        self._line.epoch(history)
        return self._tasks.end_epoch()

    def end(self, history: History) -> bool:
        """Its training ends; whether no other member is to follow."""
        self.histories[len(self.members) :] = [history]
        self.members.append(self._finish(self._model))
        self._line.next_member()
        return self._tasks.end_member() or history.interrupted

    def close(self) -> None:
        """The fit ends."""
        self._tasks.close()
        self._line.close()

    def _attributes(self) -> dict | None:
        """What makes a fitted copy of the estimator as it is now, or None before the first epoch."""
        if not self.histories:
            return None
        training = [self._finish(deepcopy(self._model))] if len(self.histories) > len(self.members) else []
        return {"module_": nn.ModuleList([*self.members, *training])} | curves(self.histories)


def curves(histories: list[History]) -> dict:
    """Public attributes that say what training did."""
    return {
        "n_iter_": max(len(history.loss) for history in histories),
        "loss_curve_": _mean_curve([history.loss for history in histories]),
        "validation_scores_": _mean_curve([history.score for history in histories]),
        "best_iter_": [history.best_epoch for history in histories],
    }


def _mean_curve(lines: list[list[float]]) -> np.ndarray:
    """Mean of curves of different lengths, at every point over those that reach it."""
    length = max(map(len, lines))
    padded = np.full((len(lines), length), np.nan)
    for row, line in zip(padded, lines, strict=True):
        row[: len(line)] = line
    return np.nanmean(padded, axis=0)
