"""Transforms targets before a model sees them, and predictions back."""

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from ..distributions import Logarithm, Logit
from ..gp.units import Units

#: How far predictions may lie beyond the targets of ``fit``, in multiples of the range of these targets.
BEYOND = 10.0

#: How often the distance to the last target that has a finite transform is halved.
HALVINGS = 60

#: Number of places between targets and a limit at which a transform has to be monotone.
N_PLACES = 33

#: Rounding errors of an inverse, as a share of the distance to the limit, and of a transform, as a share of its steps.
SAME = 1e-6

#: Targets have come back if they differ by at most this share of the column's mean absolute deviation.
LEAST_LOST = 1e-3

#: This share of the rows need not come back: ``QuantileTransformer`` does without the largest and smallest numbers.
MAY_BE_LOST = 0.05

#: Shares at a smaller distance from 0 or 1 count as if they had this one.
CLOSEST = 1e-12

#: Step of central differences in deviations, about the cube root of the precision of float64, where they err least.
STEP = 1e-5


class Bounded:
    """A fitted transformer whose inverse stays within limits around the targets that it was fitted to.

    Without limits, the inverse of a negative power has a pole: targets would become infinite at values z to which the
    model's Gaussian may well give some probability.

    Parameters
    ----------
    transformer : transformer
    y : ndarray of shape (n, P)
    """

    def __init__(self, transformer, y: np.ndarray):
        self.transformer, self.n_features_in_ = transformer, y.shape[1]
        low, high = np.nanmin(y, axis=0), np.nanmax(y, axis=0)  # some targets may be missing
        self.reach = BEYOND * (high - low)
        z = [[self._there(end, column, end[column]) for column in range(len(end))] for end in (low, high)]
        self.directions = np.sign(np.subtract(z[1], z[0]))
        below, above = self._limit(low, low - self.reach), self._limit(high, high + self.reach)
        self.low, self.high = np.minimum(below, above), np.maximum(below, above)

    def transform(self, y):
        """As the transformer does."""
        return self.transformer.transform(y)

    def inverse_transform(self, z):
        """As the transformer does, but at most ten ranges of the targets beyond the targets."""
        return self.transformer.inverse_transform(np.clip(z, self.low, self.high))

    def _limit(self, inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """Transformed targets z (P,) of ``outside`` (P,), or of the last number before it that comes back from its z.

        Squares and reciprocals of positive targets are monotone, but not beyond zero.
        """
        z = np.empty(len(outside))
        for column in range(len(outside)):
            near, far = inside[column], outside[column]
            if not self._is_monotone(inside, column, far):
                for _ in range(HALVINGS):
                    middle = 0.5 * (near + far)
                    near, far = (middle, far) if self._comes_back(inside, column, middle) else (near, middle)
                far = near
            z[column] = self._there(inside, column, far)
        return z

    def _is_monotone(self, row: np.ndarray, column: int, far: float) -> bool:
        """Whether z is finite up to a target, and monotone as it is among the targets of ``fit``."""
        rows = np.repeat(row[None], N_PLACES, axis=0)
        rows[:, column] = np.linspace(row[column], far, N_PLACES)
        try:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                steps = np.diff(np.asarray(self.transformer.transform(rows), dtype=np.float64)[:, column])
        except ValueError:  # the transformer refuses such a target
            return False
        direction = self.directions[column] * np.sign(far - row[column])
        return bool(np.isfinite(steps).all() and (direction * steps >= -SAME * np.abs(steps).max()).all())

    def _comes_back(self, row: np.ndarray, column: int, target: float) -> bool:
        """Whether z of a target is finite, on the right side of that of a row, and the inverse finds the target."""
        z = self._there(row, column, target)
        direction = self.directions[column] * np.sign(target - row[column])
        if not (np.isfinite(z) and direction * (z - self._there(row, column, row[column])) >= 0):
            return False
        there = row.copy()
        there[column] = target
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            again = np.asarray(self.transformer.inverse_transform(self.transformer.transform(there[None])))[0, column]
        return bool(abs(again - target) <= SAME * self.reach[column])

    def _there(self, row: np.ndarray, column: int, target: float) -> float:
        """The transform z of a target in this column of a row; NaN if it has none."""
        row = row.copy()
        row[column] = target
        try:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                return float(np.asarray(self.transformer.transform(row[None]))[0, column])
        except ValueError:  # the transformer refuses such a target
            return np.nan


def fitted_transform(target_transform, y: np.ndarray, *, gaussian: bool = True):
    """The transformer, fitted to targets (n, P); None if there is no transformer.

    If the noise is not ``gaussian``, the exponential has limits, too. With heavier tails than a Gaussian's its mean
    would be infinite. ValueError if predictions, which are in the units of the targets, would have no finite variance.
    """
    if target_transform is None or is_undecided(target_transform):
        return None
    filled = np.where(np.isnan(y), np.nanmean(y, axis=0), y)
    if not np.isfinite(Units.of(filled).scale).all():
        raise ValueError(
            f"The variance of y overflows or underflows: its values reach {np.abs(filled).max():.1e}. target_transform "
            "does not help, since predictions are in the units of y: choose another unit."
        )
    if not isinstance(target_transform, str):
        transformer = clone(target_transform).fit(y)
        if fault := _fault_of(transformer, y.astype(np.float64)):
            raise ValueError(
                f"target_transform={target_transform!r} {fault}: give a transformer that is strictly monotone in each "
                "column of y, and whose inverse_transform brings targets back, or transform y before."
            )
        return Bounded(transformer, y)
    if target_transform == "logit":
        return Logit(margin_of(filled))
    if target_transform == "yeo-johnson":  # of standardised targets, so that units do not matter
        return Bounded(make_pipeline(StandardScaler(), PowerTransformer()).fit(y), y)
    return Logarithm() if gaussian else Bounded(Logarithm(), y)


def _fault_of(transformer, y: np.ndarray) -> str | None:
    """What a fitted transformer does that none may do with targets (n, P); None if there is nothing.

    Targets without a finite transform do not count.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = transformer.transform(y)
        if issparse(z) or np.shape(z) != y.shape:
            return f"makes values of shape {np.shape(z)} of targets of shape {y.shape}"
        z = np.asarray(z, dtype=np.float64)
        among_others = np.asarray(transformer.transform(_shifted(y)), dtype=np.float64)
        again = np.asarray(transformer.inverse_transform(z), dtype=np.float64)
    columns = zip(y.T, z.T, _shifted(z).T, among_others.T, again.T, strict=True)
    return next((fault for column in columns if (fault := _fault_of_column(*column))), None)


def _fault_of_column(y, z, shifted, among_others, again) -> str | None:
    """The same of a column of targets (n,); ``among_others`` are transforms ``shifted`` into rows of other targets."""
    known = np.flatnonzero(np.isfinite(z))
    if not len(known):
        return None
    reach = np.ptp(z[known])
    if (np.abs(among_others - shifted) > SAME * reach).any():
        return "mixes the columns of y"
    y, z, again = y[known], z[known], again[known]
    steps = np.diff(z[np.argsort(y, kind="stable")])
    if (np.sign(steps.sum()) * steps < -SAME * reach).any():
        return "is not monotone among the targets"
    lost = ~(np.abs(again - y) <= LEAST_LOST * np.abs(y - np.median(y)).mean() + SAME * np.abs(y))
    if lost.mean() > MAY_BE_LOST:
        first = int(np.argmax(lost))
        return f"makes {again[first]:g} of the target {y[first]:g} in row {known[first]}, there and back"
    return None


def _shifted(values: np.ndarray) -> np.ndarray:
    """The same numbers (n, P) in other rows: those of each column farther down than those of the column before."""
    return np.stack([np.roll(values[:, column], column) for column in range(values.shape[1])], axis=1)


def is_undecided(target_transform) -> bool:
    """Whether rows are to decide how targets are transformed."""
    return isinstance(target_transform, str) and target_transform == "auto"


def margin_of(y: np.ndarray) -> float:
    """How far the logit's poles are from 0 and 1: half as far as the nearest other share, and at most 1/2n."""
    distance = np.minimum(y, 1 - y)
    return 0.5 * max(float(distance.min(where=distance > 0, initial=1 / len(y))), CLOSEST)


def transformed(transformer, y: np.ndarray) -> np.ndarray:
    """Targets (n, P) as the model sees them. If a row has no finite transform, a ValueError names it."""
    if transformer is None:
        return y
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.asarray(transformer.transform(y), dtype=y.dtype)
    wrong = (~np.isfinite(z) & ~np.isnan(y)).any(axis=1)  # missing targets stay missing
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"target_transform makes {z[row].tolist()} of {y[row].tolist()}, which y holds in row {row}: every target "
            "needs a finite transform. A logarithm needs positive targets, and a logit targets between 0 and 1."
        )
    return z


def logarithms_of_bounds(bounds: np.ndarray) -> np.ndarray:
    """Logarithms of bounds (n, 2) of positive targets, of which a lower bound of zero or less is none.

    A ValueError names a row that no positive target can have, or whose bounds say nothing about one.
    """
    with np.errstate(divide="ignore"):
        z = np.log(np.maximum(bounds, 0.0))
    for wrong, what in (
        (np.isneginf(z[:, 1]), "allow for no positive number"),
        (np.isneginf(z[:, 0]) & np.isposinf(z[:, 1]), "exclude no positive number"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"Logarithms need positive targets, but bounds in row {row} of y, {bounds[row].tolist()}, {what}: "
                "correct or leave out the row, or set another likelihood or target_transform."
            )
    return z


def back(transformer, z: np.ndarray) -> np.ndarray:
    """Targets (n, P, ...), from values of the same shape as the model sees them."""
    if transformer is None:
        return z
    rows = np.moveaxis(z, 1, -1)
    targets = np.asarray(transformer.inverse_transform(rows.reshape(-1, z.shape[1])))
    return np.moveaxis(targets.reshape(rows.shape), -1, 1)


def back_slopes(transformer, z: np.ndarray, size: np.ndarray | float = 1.0) -> np.ndarray:
    """Derivatives of :func:`back`, of the same shape. ``size`` are deviations of z, which broadcast to it."""
    step = STEP * size
    return (back(transformer, z + step) - back(transformer, z - step)) / (2 * step)
