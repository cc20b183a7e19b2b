"""A number for each level of a category with hundreds of levels: the mean target of the level.

The mean target of the level's rows is drawn towards the mean target of all rows, the more so the fewer rows the level
has (Micci-Barreca, "A Preprocessing Scheme for High-Cardinality Categorical Attributes in Classification and Prediction
Problems", SIGKDD Explorations 2001). The number of a training row is computed from other rows only. Otherwise the row's
own target would be part of its features.

If nearly every row has a level of its own, as ids are, there are no other rows. Then all levels have the same number.
"""

import numpy as np

#: Number of parts into which the rows are divided. Each part gets its numbers from the other parts.
FOLDS = 5

#: Smallest share of the targets' variance that is assumed to lie between levels.
LEAST_BETWEEN = 1e-3

#: A category is one of ids if it has at least so many levels for each row.
LEVELS_OF_IDS = 0.95


def are_ids(n_levels: int, n_rows: int) -> bool:
    """Whether nearly every row has a level of its own."""
    return n_levels >= LEVELS_OF_IDS * n_rows


def level_means(codes: np.ndarray, n_levels: int, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Numbers (n_levels + 1,) of all levels, and last the number for levels that ``fit`` has not seen.

    Parameters
    ----------
    codes : ndarray of int of shape (n,)
        Levels of the rows; ``n_levels`` stands for any other level.
    n_levels : int
    y : ndarray of shape (n, P)
        Targets; NaN where one is missing.
    weight : ndarray of shape (n,)
        How often each row counts.
    """
    if are_ids(n_levels, len(codes)):
        return np.zeros(n_levels + 1)
    return _shrunken(codes, n_levels, *_one_target(codes, n_levels, y, weight))


def means_of_others(codes: np.ndarray, n_levels: int, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Number of each row's level (n,), computed from other rows; arguments as of :func:`level_means`."""
    if are_ids(n_levels, len(codes)):
        return np.zeros(len(codes))
    target, weight = _one_target(codes, n_levels, y, weight)
    fold = np.random.default_rng(0).permutation(len(codes)) % FOLDS
    means: np.ndarray = np.empty(len(codes))
    for number in range(FOLDS):
        inside = fold == number
        means[inside] = _shrunken(codes[~inside], n_levels, target[~inside], weight[~inside])[codes[inside]]
    return means


def _one_target(codes: np.ndarray, n_levels: int, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One target (n,) with its weights. Of several targets it is the direction in which levels differ most."""
    known = ~np.isnan(y)
    mean = weight @ np.where(known, y, 0.0) / np.maximum(weight @ known, np.finfo(float).tiny)
    centred = np.where(known, y - mean, 0.0)
    if y.shape[1] > 1:
        count = np.bincount(codes, weight, minlength=n_levels + 1)
        sums = np.stack([np.bincount(codes, weight * column, minlength=n_levels + 1) for column in centred.T], axis=1)
        _, _, directions = np.linalg.svd(sums / np.sqrt(np.maximum(count, np.finfo(float).tiny))[:, None])
        centred = centred @ directions[:1].T
    return centred[:, 0], weight * known.any(axis=1)


def _shrunken(codes: np.ndarray, n_levels: int, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Means of levels with the weight n/(n + k), and the mean of all rows; k = variance within over between levels."""
    total = weight.sum()
    if not total:
        return np.zeros(n_levels + 1)
    mean = (weight @ y) / total
    count, sums, squares = (
        np.bincount(codes, weight * power, minlength=n_levels + 1) for power in (1.0, y - mean, (y - mean) ** 2)
    )
    seen = count > 0
    spare = total - seen.sum()  # degrees of freedom
    within = (squares[seen] - sums[seen] ** 2 / count[seen]).sum() / spare if spare > 0 else np.inf
    variance = squares.sum() / total
    k = within / max(variance - within, LEAST_BETWEEN * variance) if variance > 0 else 1.0
    return mean + np.divide(sums, count + k, out=np.zeros(n_levels + 1), where=count + k > 0)
