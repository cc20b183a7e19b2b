"""Reports while a fit runs: a line of text for the user, and tasks for scikit-learn's callbacks."""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from ..inference.clock import Clock
from ..inference.ensemble import Ensemble
from ..inference.settings import History
from ._callbacks import FitTasks
from ._progress import ProgressLine


class Monitor:
    """Watches the training of an ensemble (see :class:`.Watcher`). It is a context manager that lasts as long.

    Parameters
    ----------
    estimator : BaseEstimator
        The estimator that is being fitted.
    n_epochs : int
        Largest number of epochs.
    hooks : dict
        What callbacks may ask for: ``X``, ``y`` and ``metadata``.
    attributes : callable
        Attributes of an estimator that has learnt an ensemble.
    """

    def __init__(self, estimator, n_epochs: int, hooks: dict, attributes: Callable[[Ensemble], dict]):
        self._line = ProgressLine(type(estimator).__name__, n_epochs, silent=not estimator.verbose)
        self._tasks = FitTasks(estimator, n_epochs, hooks, self._attributes_so_far)
        self._attributes = attributes
        self._so_far: Callable[[], Ensemble] | None = None  # set after the first epoch
        self._seconds: dict[str, float] = {}
        self._outliers = set[int]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self._tasks.close()
            self._line.close(self._seconds, len(self._outliers))

    def epoch(self, histories: Sequence[History], so_far: Callable[[], Ensemble]) -> bool:
        """Report that some models have ended an epoch. Return whether a callback wants the training to end."""
        self._so_far = so_far
        self._line.epoch(histories)
        return self._tasks.end_epoch()

    def end(self, ensemble: Ensemble) -> None:
        """Take notice that training has ended."""
        self._so_far, self._seconds = lambda: ensemble, ensemble.clock.seconds
        self._outliers |= set(ensemble.outliers.tolist())

    def _attributes_so_far(self) -> dict | None:
        """Attributes that a fitted copy of the estimator would have now, or None before the first epoch."""
        return None if self._so_far is None else self._attributes(self._so_far())


def curves(histories: list[History]) -> dict:
    """Public attributes that record the course of the training."""
    return {
        "n_iter_": max(len(history.loss) for history in histories),
        "loss_curve_": _mean_curve([history.loss for history in histories]),
        "validation_scores_": _mean_curve([history.score for history in histories]),
        "best_iter_": [history.best_epoch for history in histories],
    }


def times(clock: Clock) -> dict[str, float]:
    """Seconds that each part of a fit took, and the whole fit."""
    return clock.seconds | {"total": clock.total}


def _mean_curve(lines: list[list[float]]) -> np.ndarray:
    """Mean of curves of different lengths; at each point, over the curves that are long enough."""
    length = max(map(len, lines))
    padded = np.full((len(lines), length), np.nan)
    for row, line in zip(padded, lines, strict=True):
        row[: len(line)] = line
    return np.nanmean(padded, axis=0)
