"""Corrects likelihoods by rows that a model has not learnt from.

With amortised inducing variables, the residuals of training rows become smaller than those of new rows. The noise
variance is learnt from these residuals, and becomes too small as well. One number that is estimated from held-out rows
corrects this. Means do not change.
"""

from collections.abc import Sequence

import torch
from scipy.optimize import minimize_scalar

from ..gp.deep_gp import DeepGP, Marginals
from .batches import Batch
from .objectives import log_mixture
from .threads import threads_for
from .twins import counting_once

#: Largest number of held-out rows of a model, which is more than enough for one number.
MAX_ROWS = 5000

#: Number of rows that the previous noise counts as, if one chunk after another corrects it.
PRIOR_ROWS = 20

#: The same for the noise of the first chunk. No new row has judged it, but few held-out rows must not make it vanish.
FIRST_PRIOR_ROWS = 1

#: Smallest and largest number that is added to logarithms: factors from e⁻⁴ to e⁵.
_SHIFTS = (-4.0, 5.0)


def recalibrate(models: Sequence[DeepGP], held_out: Sequence[Batch], batch_size: int, n_earlier: float = 0.0) -> float:
    """Calibrate likelihoods in place, by the number that makes held-out rows most likely.

    The number is added to the logarithms that likelihoods offer for calibration (see :meth:`.Likelihood.calibrated`).
    For Gaussian noise this is the logarithm of the variance's excess over its floor. It is one number for all models,
    since each model holds out few rows, but together they hold out many.

    Parameters
    ----------
    models : sequence of DeepGP
    held_out : sequence of Batch
        For each model, rows that it has not learnt from.
    batch_size : int
        Number of rows to predict at a time.
    n_earlier : float, default=0.0
        Number of rows that the previous values count as, for each model.

    Returns
    -------
    float
        The number; 0 if the likelihoods have nothing to calibrate.
    """
    logarithms = [logarithm for model in models for logarithm in model.likelihood.calibrated()]
    if not logarithms:
        return 0.0
    learnt = [logarithm.clone() for logarithm in logarithms]
    rows_of = [rows.spread(MAX_ROWS) for rows in held_out]
    total = sum(rows.weight.sum() for rows in rows_of)
    factor = sum(counting_once(rows).sum() for rows in rows_of) / total if total else 1.0  # copies prove nothing
    rows_of = [rows.weighing(factor) for rows in rows_of]
    # Marginals do not depend on the likelihood, and are computed once.
    marginals = [marginals_of(model, rows, batch_size) for model, rows in zip(models, rows_of, strict=True)]

    @torch.no_grad()
    def apply(shift: float) -> None:
        for logarithm, value in zip(logarithms, learnt, strict=True):
            logarithm.copy_(value + shift)

    @torch.no_grad()
    def loss(shift: float) -> float:
        apply(shift)
        scores = [
            (rows.weight * log_mixture(values, model.likelihood, rows.y)).sum()
            for model, values, rows in zip(models, marginals, rows_of, strict=True)
        ]
        return n_earlier * len(models) * shift**2 / 4 - float(sum(scores))  # log N(0 | 0, σ²) has a curvature of -1/2

    best = minimize_scalar(loss, bounds=_SHIFTS, method="bounded", options={"xatol": 0.01})
    apply(best.x)
    return best.x


@torch.no_grad()
def marginals_of(model: DeepGP, rows: Batch, batch_size: int) -> Marginals:
    """Marginals of all rows, computed in batches."""
    model = model.frozen()
    with threads_for(model.products(batch_size)):
        parts = [model(rows.X[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    mean, variance = (torch.cat(column, dim=1) for column in zip(*((p.mean, p.variance) for p in parts), strict=True))
    return parts[0]._replace(mean=mean, variance=variance)
