"""Likelihoods corrected by rows that a model has not learnt from.

Amortised inducing variables let the residuals of training rows shrink below what new rows will show,
and the noise variance, learnt from those residuals, with them. One number estimated on held-out rows
mends that without touching the means.
"""

from collections.abc import Sequence

import torch
from scipy.optimize import minimize_scalar

from ..gp.deep_gp import DeepGP, Marginals
from .batches import Batch
from .objectives import log_mixture
from .threads import threads_for

#: Held-out rows of a model that are more than enough for one number.
MAX_ROWS = 5000

#: Rows that the noise of before counts as, where one chunk after the other corrects it.
PRIOR_ROWS = 20

#: Numbers that may be added to logarithms: factors from e⁻⁴ to e⁵.
_SHIFTS = (-4.0, 5.0)


def recalibrate(models: Sequence[DeepGP], held_out: Sequence[Batch], batch_size: int, n_earlier: float = 0.0) -> float:
    """Add to what likelihoods have to calibrate the number that makes held-out rows likeliest, in place.

    One number for all: each model judges few rows, together they judge many. What is calibrated are logarithms (see
    :meth:`.Likelihood.calibrated`); of Gaussian noise, that of the variance's excess over its floor.

    Parameters
    ----------
    models : sequence of DeepGP
    held_out : sequence of Batch
        For each model, rows that it has not learnt from.
    batch_size : int
    n_earlier : float, default=0.0
        Rows that the values before count as, for each model.

    Returns
    -------
    float
        The number; 0 for likelihoods with nothing to calibrate.
    """
    logarithms = [each for model in models for each in model.likelihood.calibrated()]
    if not logarithms:
        return 0.0
    learnt = [each.clone() for each in logarithms]
    rows_of = [rows.spread(MAX_ROWS) for rows in held_out]
    # Marginals do not depend on the likelihood: computed once.
    marginals = [marginals_of(model, rows, batch_size) for model, rows in zip(models, rows_of, strict=True)]

    @torch.no_grad()
    def apply(shift: float) -> None:
        for each, value in zip(logarithms, learnt, strict=True):
            each.copy_(value + shift)

    @torch.no_grad()
    def loss(shift: float) -> float:
        apply(shift)
        scores = [
            (rows.weight * log_mixture(values, model.likelihood, rows.y)).sum()
            for model, values, rows in zip(models, marginals, rows_of, strict=True)
        ]
        return n_earlier * len(models) * shift**2 / 4 - float(sum(scores))  # log N(0 | 0, σ²) has a curvature of -1/2

    found = minimize_scalar(loss, bounds=_SHIFTS, method="bounded", options={"xatol": 0.01})
    apply(found.x)
    return found.x


@torch.no_grad()
def marginals_of(model: DeepGP, rows: Batch, batch_size: int) -> Marginals:
    """Marginals of all rows, taken in batches."""
    model = model.frozen()
    with threads_for(model.products(batch_size)):
        parts = [model(rows.X[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    mean, variance = (torch.cat(column, dim=1) for column in zip(*((p.mean, p.variance) for p in parts), strict=True))
    return parts[0]._replace(mean=mean, variance=variance)
