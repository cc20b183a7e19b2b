"""Which transformation of targets ``target_transform="auto"`` stands for.

Each candidate transforms a sample of the rows. A sparse GP in closed form learns them (:mod:`..inference.base`), and
predicts each row from all others. What counts is the log density of targets in the user's units, so that it contains
the derivative of the transformation.
"""

import warnings
from typing import cast

import numpy as np
import torch
from scipy.stats import norm

from ..gp.likelihoods import Gaussian
from ..gp.units import Units
from ..inference.base import fit_base
from ..inference.batches import Batch
from ..inference.callers import users_level
from ..inference.collapsed import left_out
from ..inference.processes import current
from ..inference.twins import distinct
from ..tables import Encoded
from ..tables.transforms import back_slopes, fitted_transform, transformed

#: Candidates. The first one needs positive targets.
CANDIDATES = ("log", "yeo-johnson")

#: With fewer rows nothing is transformed.
FEWEST_ROWS = 20

#: Largest number of rows of the sample.
ROWS = 400

#: A transformation must gain this many nats per row, and this many standard errors of the gain.
LEAST_GAIN, LEAST_ERRORS = 0.01, 2.0


def best_transform(rows: Encoded) -> str | None:
    """The candidate that makes left-out rows clearly more likely than no transformation does; None if none does.

    Parameters
    ----------
    rows : Encoded
        Rows of a table whose targets are not transformed.
    """
    if len(rows) < FEWEST_ROWS:
        return None
    sample = np.random.RandomState(0).permutation(len(rows))[:ROWS]
    X, y = np.nan_to_num(rows.X[sample].astype(np.float64)), rows.y[sample].astype(np.float64)
    weight = rows.given.weight[sample]
    if not all(_can_decide(column) for column in y.T):
        return None
    candidates = [name for name in CANDIDATES if name != "log" or np.nanmin(rows.y) > 0]
    densities = {name: _log_densities(name, X, y, weight) for name in (None, *candidates)}
    if untried := [name for name, values in densities.items() if values is None]:
        warnings.warn(
            f"target_transform='auto' has not compared {untried} with the others, since densities of y could not be "
            "computed: the likely cause is targets or features with values far from all others. Remove these, or set "
            "target_transform to what you want.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
    first, total = (numbers.numpy() for numbers in distinct(Batch.of(X, y, weight, np.float64)))  # copies prove nothing
    densities = {name: None if values is None else values[first] for name, values in densities.items()}
    choice = torch.tensor([(None, *CANDIDATES).index(_best(densities, total))])
    current().take_first(choice)  # rounding errors of processes may differ
    return (None, *CANDIDATES)[int(choice)]


def _can_decide(column: np.ndarray) -> bool:
    """Whether targets (n,) of one output can say how they are distributed: they differ, and enough of them are known.

    Fewer of them could not, and there is nothing to transform if all are the same.
    """
    known = column[~np.isnan(column)]
    return len(known) >= FEWEST_ROWS and np.ptp(known) > 0


def _best(densities: dict[str | None, np.ndarray | None], weight: np.ndarray) -> str | None:
    """The candidate with the largest gain over none that is large enough; None if there is no such candidate."""
    best, most, plain = None, LEAST_GAIN, densities[None]
    for name, values in densities.items():
        if name is None or values is None or plain is None:
            continue
        difference = values - plain
        gain = float(np.average(difference, weights=weight))
        if gain > max(most, LEAST_ERRORS * float(difference.std()) / np.sqrt(len(weight))):
            best, most = name, gain
    return best


def _log_densities(name: str | None, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray | None:
    """Log densities (n,) of targets (n, P) in their own units, each row left out; None if they cannot be computed."""
    try:
        transformer = fitted_transform(name, y)
        z = transformed(transformer, y)
        with warnings.catch_warnings():  # of scikit-learn, if the inverse is not defined near a target
            warnings.simplefilter("ignore")
            slopes = np.ones_like(y) if transformer is None else np.abs(back_slopes(transformer, z))
    except ValueError:  # numbers that cannot be transformed, or not back
        return None
    total = np.zeros(len(y))
    for column in range(y.shape[1]):
        known = ~np.isnan(y[:, column])
        values = z[known][:, [column]]
        units = Units.of(values, weight[known])
        if not (np.isfinite(units.scale).all() and np.ptp(values) > 0):
            return None
        part = Batch.of(X[known], units.standardise(values), weight[known], np.float64)
        try:
            model = fit_base(part)
            mean, variance = left_out(model, part, part)
        except np.linalg.LinAlgError:
            return None
        deviation = (variance + cast(Gaussian, model.likelihood).variance).sqrt()
        with np.errstate(divide="ignore"):
            jacobian = np.log(slopes[known, column]) + np.log(units.scale[0])
        total[known] += norm.logpdf(part.y[:, 0], mean[:, 0], deviation[:, 0]) - jacobian
    return total if np.isfinite(total).all() else None
