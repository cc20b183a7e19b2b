"""Noise set by rows that a model has not learnt from.

Amortised inducing variables let the residuals of training rows shrink below what new rows will show,
and the noise variance, learnt from those residuals, with them. One number estimated on held-out rows
mends that without touching the means.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from scipy.optimize import minimize_scalar

from ..gp.deep_gp import DeepGP, Marginals
from ..gp.likelihoods import Gaussian
from .objectives import log_mixture
from .steps import Batch

#: Held-out rows of a model that are more than enough for one number.
MAX_ROWS = 5000

#: Factors that the noise variance may change by.
_LOG_FACTORS = (-4.0, 5.0)


def recalibrate_noise(models: Sequence[DeepGP], held_out: Sequence[Batch], batch_size: int) -> float:
    """Multiply the noise of all models by the factor that makes their held-out rows likeliest, in place.

    One factor for all: each model judges few rows, together they judge many.

    Parameters
    ----------
    models : sequence of DeepGP
        With Gaussian likelihoods.
    held_out : sequence of Batch
        For each model, rows that it has not learnt from.
    batch_size : int

    Returns
    -------
    float
        The factor.
    """
    noises = [cast(Gaussian, model.likelihood).log_excess for model in models]
    learnt = [noise.clone() for noise in noises]
    judges = [rows.spread(MAX_ROWS) for rows in held_out]
    # Marginals do not depend on the noise: computed once.
    marginals = [_marginals(model, rows, batch_size) for model, rows in zip(models, judges, strict=True)]

    @torch.no_grad()
    def apply(log_factor: float) -> None:
        for noise, value in zip(noises, learnt, strict=True):
            noise.copy_(value + log_factor)

    @torch.no_grad()
    def loss(log_factor: float) -> float:
        apply(log_factor)
        scores = [
            (rows.weight * log_mixture(values, model.likelihood, rows.y)).sum() / rows.weight.mean()
            for model, values, rows in zip(models, marginals, judges, strict=True)
        ]
        return -float(sum(scores))

    found = minimize_scalar(loss, bounds=_LOG_FACTORS, method="bounded", options={"xatol": 0.01})
    apply(found.x)
    return math.exp(found.x)


@torch.no_grad()
def _marginals(model: DeepGP, rows: Batch, batch_size: int) -> Marginals:
    """Marginals of all rows, taken in batches."""
    model = model.frozen()
    parts = [model(rows.X[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    mean, variance = (torch.cat(column, dim=1) for column in zip(*((p.mean, p.variance) for p in parts), strict=True))
    return parts[0]._replace(mean=mean, variance=variance)
