"""Targets that are transformed before a model sees them."""

import numpy as np
from sklearn.base import clone

from ..distributions import Logarithm


def fitted_transform(target_transform, y: np.ndarray):
    """A transformer fitted to targets (n, P); None if there is none."""
    if target_transform is None:
        return None
    return Logarithm() if isinstance(target_transform, str) else clone(target_transform).fit(y)


def transformed(transformer, y: np.ndarray) -> np.ndarray:
    """Targets (n, P) as the model sees them; ValueError that names the row that has no transform."""
    if transformer is None:
        return y
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.asarray(transformer.transform(y), dtype=y.dtype)
    wrong = ~np.isfinite(z).all(axis=1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"target_transform makes {z[row].tolist()} of {y[row].tolist()}, which y holds in row {row}: every target "
            "needs a finite transform. A logarithm needs positive targets."
        )
    return z


def back(transformer, z: np.ndarray) -> np.ndarray:
    """Targets (n, P, ...) of what the model says, of the same shape."""
    if transformer is None:
        return z
    rows = np.moveaxis(z, 1, -1)
    return np.moveaxis(
        np.asarray(transformer.inverse_transform(rows.reshape(-1, z.shape[1]))).reshape(rows.shape), -1, 1
    )


def back_slopes(transformer, z: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Derivatives of :func:`back`, of the same shape."""
    return (back(transformer, z + step) - back(transformer, z - step)) / (2 * step)
