"""How much predictions change with each feature."""

import numpy as np
from sklearn.base import is_classifier

from ..inference.threads import threads_for
from ..tables.typical import typical_rows
from ._fitted import learnt

#: Largest number of rows to predict, for all features together.
MOST_ROWS = 2**14

#: Largest number of them that are predicted at a time, unless those of a single feature are more.
ROWS_AT_A_TIME = 2**13

#: Largest and smallest number of rows whose features are replaced, one by one.
ROWS = (512, 32)


@threads_for()
def feature_importances(estimator) -> np.ndarray:
    """Importances (n_features,), which sum to one, or are all zero if predictions never change.

    The total Sobol index of feature i is E[(f(a_i) − f(a))²] / 2 Var f, where a_i is the row a with feature i of an
    independent row (Jansen, "Analysis of variance designs for model output", Computer Physics Communications 117,
    1999). Here f is the mean prediction. Indices are divided by their sum. Those of several outputs are averaged, and
    probabilities of classes count together.
    """
    table, n_features = learnt(estimator).table, learnt(estimator).table.n_features
    most, least = ROWS
    n_rows = int(np.clip(MOST_ROWS // (n_features + 1), least, most))
    rng = np.random.default_rng(0)  # the same numbers in every call, so that an estimator has one answer
    a, b = (typical_rows(table.encoding, n_rows, rng) for _ in range(2))
    middle, totals = estimator._means(a), []
    size = np.ptp(middle) or 1.0  # otherwise squares of very small or large targets would underflow or overflow
    for features in np.array_split(np.arange(n_features), -(-n_features * n_rows // ROWS_AT_A_TIME)):
        changed = np.repeat(a[None], len(features), axis=0)  # (features, n_rows, n_features)
        changed[np.arange(len(features)), :, features] = b[:, features].T
        change = estimator._means(changed.reshape(-1, n_features)).reshape(len(features), *middle.shape) - middle
        totals.append(np.square(change / size).mean(axis=1))
    return _shares(np.concatenate(totals), together=is_classifier(estimator))


def _shares(totals: np.ndarray, *, together: bool) -> np.ndarray:
    """Shares (n_features,) of the features in totals (n_features, P), which are added up or averaged over P."""
    if together:
        totals = totals.sum(axis=1, keepdims=True)
    sums = totals.sum(axis=0)
    totals = totals[:, sums > 0] / sums[sums > 0]
    return totals.mean(axis=1) if totals.size else np.zeros(len(totals))
