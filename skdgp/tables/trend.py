"""Trends: regressors whose predictions a model starts from, as columns of a table.

A model of y = m(x) + r(x) + noise needs the trend m(x) at its training rows as it is at new rows. A flexible regressor
meets the rows that it has learnt from, so that it would leave the model nothing to learn. Therefore the rows are
divided into folds. The trend of a training row comes from the copy of the regressor that has not seen its fold
(Breiman, "Stacked regressions", 1996). The trend of a new row is the mean over all copies.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

from ..gp.units import Units
from ..inference.twins import folds

#: Number of folds.
N_FOLDS = 10


class Trend:
    """A regressor, fitted to all folds but one in turn.

    Parameters
    ----------
    regressors : sequence of sequence of regressor
        For each output the fitted copies.
    units : Units
        Units in which the trends of all training rows have mean 0 and variance 1.
    """

    def __init__(self, regressors: Sequence[Sequence[Any]], units: Units):
        self.regressors, self.units = regressors, units

    @classmethod
    def learn(
        cls, regressor, columns: np.ndarray, y: np.ndarray, weight: np.ndarray, fold: np.ndarray
    ) -> tuple[Self, np.ndarray]:
        """The trend, and its values (n, P) at the training rows, each by a copy that has not seen the row.

        Parameters
        ----------
        regressor : regressor
            It is cloned.
        columns : ndarray of shape (n, width)
            The model's columns, in the user's units.
        y : ndarray of shape (n, P)
            Targets, NaN where one is missing.
        weight : ndarray of shape (n,)
            How often each row counts.
        fold : ndarray of shape (n,)
            Number of the fold of each row.
        """
        even = bool((weight == weight[0]).all())
        if not even and not has_fit_parameter(regressor, "sample_weight"):
            raise ValueError(
                f"trend={regressor!r} takes no sample_weight, but rows have different weights: choose a regressor "
                "whose fit takes it, or leave the weights out."
            )
        _check_known(y, fold)
        values, copies = np.empty(y.shape), list[list[Any]]()
        for p, target in enumerate(y.T):
            copies.append([])
            for number in np.unique(fold).tolist():
                learnt = (fold != number) & ~np.isnan(target)
                options = {} if even else {"sample_weight": weight[learnt]}
                copies[p].append(clone(regressor).fit(columns[learnt], target[learnt], **options))
                distinct, row = np.unique(columns[fold == number], axis=0, return_inverse=True)  # twins have one trend
                values[fold == number, p] = _predicted(copies[p][-1], distinct)[row.reshape(-1)]
        return cls(copies, Units.of(values, weight)), values

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """The trend (n, P) of new rows."""
        if not len(columns):
            return np.empty((0, len(self.regressors)))
        means = [np.mean([_predicted(copy, columns) for copy in copies], axis=0) for copies in self.regressors]
        return np.stack(means, axis=1)


def folds_of(order: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Number of the fold of each row (n,). Rows of a group share a fold; groups come in the order of the rows.

    ValueError if there is only one group, since then no row can be left out.
    """
    n_groups = len(np.unique(group))
    if n_groups < 2:
        got = "1 sample" if len(order) == 1 else f"{len(order)} copies of 1 sample"
        raise ValueError(f"A trend needs at least 2 different rows, got {got}: give more, or set trend=None.")
    return folds(order, group, min(N_FOLDS, n_groups))


def _check_known(y: np.ndarray, fold: np.ndarray) -> None:
    """ValueError if an output (n, P) has values in one fold (n,) alone, since its trend there learns from others."""
    for p, known in enumerate(~np.isnan(y.T)):
        if len(np.unique(fold[known])) < 2:
            raise ValueError(
                f"Column {p} of y has values in {known.sum()} of {len(y)} rows, all in one of the folds of a trend, "
                "which learns from the other folds: give more values, leave the column out, or set trend=None."
            )


def _predicted(regressor, columns: np.ndarray) -> np.ndarray:
    """Predictions (n,) of a regressor; ValueError if they are not finite numbers."""
    values = np.asarray(regressor.predict(columns), dtype=np.float64).reshape(len(columns), -1)
    if values.shape[1] != 1 or not np.isfinite(values).all():
        what = f"{values.shape[1]} numbers for a row" if values.shape[1] != 1 else "numbers that are not finite"
        raise ValueError(f"trend={regressor!r} predicts {what}: choose a regressor that predicts one finite number.")
    return values[:, 0]
