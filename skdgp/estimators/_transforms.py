"""Which transformation of targets ``target_transform="auto"`` stands for.

Each candidate transforms a sample of the rows. A sparse GP in closed form learns them (:mod:`..inference.base`), and
predicts each row from all others. What counts is the log density of targets in the user's units, so that it contains
the derivative of the transformation.
"""

from typing import cast

import numpy as np
import torch
from scipy.stats import norm

from ..gp.likelihoods import Gaussian
from ..gp.units import Units
from ..inference.base import fit_base
from ..inference.batches import Batch
from ..inference.collapsed import left_out
from ..inference.processes import current
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
    best, most = 0, LEAST_GAIN
    plain = _log_densities(None, X, y, weight)
    positive = np.nanmin(rows.y) > 0
    for number, name in enumerate(CANDIDATES, start=1):
        if plain is None or (name == "log" and not positive):
            continue
        densities = _log_densities(name, X, y, weight)
        if densities is None:
            continue
        difference = densities - plain
        gain = float(np.average(difference, weights=weight))
        if gain > max(most, LEAST_ERRORS * float(difference.std()) / np.sqrt(len(sample))):
            best, most = number, gain
    choice = torch.tensor([best])
    current().take_first(choice)  # rounding errors of processes may differ
    return (None, *CANDIDATES)[int(choice)]


def _log_densities(name: str | None, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray | None:
    """Log densities (n,) of targets (n, P) in their own units, each row left out; None if there are none."""
    try:
        transformer = fitted_transform(name, y)
        z = transformed(transformer, y)
    except ValueError:  # numbers that cannot be transformed
        return None
    slopes = np.ones_like(y) if transformer is None else np.abs(back_slopes(transformer, z))
    total = np.zeros(len(y))
    for column in range(y.shape[1]):
        known = ~np.isnan(y[:, column])
        values = z[known][:, [column]]
        units = Units.of(values, weight[known])
        if not (known.sum() >= FEWEST_ROWS and np.isfinite(units.scale).all() and np.ptp(values) > 0):
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
