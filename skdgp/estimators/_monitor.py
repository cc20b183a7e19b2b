"""What is told while a fit runs: a line of text to the user, and tasks to scikit-learn's callbacks."""

from typing import Self

import numpy as np

from ..inference.ensemble import Ensemble
from ..inference.settings import History
from ._callbacks import FitTasks
from ._progress import ProgressLine


class Monitor:
    """Watches the training of an ensemble (see :class:`.Watcher`), as a context that ends with it.

    Parameters
    ----------
    estimator : BaseEstimator
        Which is being fitted.
    n_epochs : int
        Epochs at most.
    hooks : dict
        What callbacks may ask for: ``X``, ``y`` and ``metadata``.
    """

    def __init__(self, estimator, n_epochs: int, hooks: dict):
        self._line = ProgressLine(type(estimator).__name__, n_epochs, silent=not estimator.verbose)
        self._tasks = FitTasks(estimator, n_epochs, hooks, self._attributes)
        self._ensemble: Ensemble | None = None  # once it has an epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self._tasks.close()
            self._line.close()

    def epoch(self, ensemble: Ensemble) -> bool:
        """An epoch of some models ends; whether it was told to be the last."""
        self._ensemble = ensemble
        self._line.epoch(ensemble.histories)
        return self._tasks.end_epoch()

    def _attributes(self) -> dict | None:
        """What makes a fitted copy of the estimator as it is now, or None before the first epoch."""
        if self._ensemble is None:
            return None
        ensemble = self._ensemble.so_far()
        return {"_ensemble": ensemble} | curves(ensemble.histories)


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
