"""What a linear model would say of rows: the least that anything else has to do better than."""

import math

import torch
from torch import Tensor

from .batches import Batch

#: Most features of a linear model, whose cost grows with their cube.
MOST_FEATURES = 1000

#: Added to the diagonal of features' second moments: columns may depend on one another.
RIDGE = 1e-6

#: Least variance of its residuals: a model that knows four digits of the targets has not failed, however linear.
LEAST_VARIANCE = 1e-8


def linear_score(rows: Batch) -> float | None:
    """Mean log density of rows by least squares with Gaussian noise, each of them left out; None for many features.

    What is left of a target is e/(1 − h), where e is its residual and h its leverage.
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
    variance = left.square().mean(0).clamp(min=LEAST_VARIANCE)  # weights are in y already
    return float(-0.5 * (variance.log() + math.log(2 * math.pi) + 1.0).sum())
