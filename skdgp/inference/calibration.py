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

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Gaussian
from .training import Batch, mean_log_density

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

    def apply(log_factor: float) -> None:
        with torch.no_grad():
            for noise, value in zip(noises, learnt, strict=True):
                noise.copy_(value + log_factor)

    def loss(log_factor: float) -> float:
        apply(log_factor)
        scores = [
            len(rows) * mean_log_density(model, rows, batch_size) for model, rows in zip(models, held_out, strict=True)
        ]
        return -sum(scores)

    found = minimize_scalar(loss, bounds=_LOG_FACTORS, method="bounded", options={"xatol": 0.01})
    apply(found.x)
    return math.exp(found.x)
