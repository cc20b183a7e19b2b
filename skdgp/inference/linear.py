"""The score of a linear model, which every other model should exceed."""

import math

import torch
from torch import Tensor

from .batches import Batch

#: Largest number of features of a linear model, whose cost grows with their cube.
MOST_FEATURES = 1000

#: Added to the diagonal of the features' second moments, since columns may be linearly dependent.
RIDGE = 1e-6

#: Smallest variance of its residuals. Even if targets are linear, a model with four correct digits has not failed.
LEAST_VARIANCE = 1e-8


def linear_score(rows: Batch) -> float | None:
    """Mean log density of rows by least squares with Gaussian noise; None if there are too many features.

    Each row is left out for its own density: its residual is then e/(1 − h), where e is its residual in the fit and h
    its leverage.
    """
    if rows.X.shape[1] > MOST_FEATURES:
        return None
    rows, _ = rows.to(rows.X.device, torch.float64).relative()
    X = torch.cat([torch.ones_like(rows.X[:, :1]), rows.X], dim=1) * rows.weight.sqrt()[:, None]
    y = rows.y * rows.weight.sqrt()[:, None]
    moments = X.mT @ X + RIDGE * len(rows) * torch.eye(X.shape[1], dtype=X.dtype, device=X.device)
    slopes = torch.linalg.solve(moments, X.mT @ y)
    leverage: Tensor = (X * torch.linalg.solve(moments, X.mT).mT).sum(1, keepdim=True)
    left = (y - X @ slopes) / (1.0 - leverage.clamp(max=1.0 - 1e-6))
    variance = left.square().mean(0).clamp(min=LEAST_VARIANCE)  # y contains the weights already
    return float(-0.5 * (variance.log() + math.log(2 * math.pi) + 1.0).sum())
