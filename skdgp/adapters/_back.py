"""Inverses of target transformations as PyTorch modules, with moments of targets."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler
from torch import Tensor, nn

from ..distributions import Logarithm, Logit
from ..distributions._transformed import MOMENT_REACH, MOMENT_STEP
from ..tables.transforms import Bounded

#: Powers that count as zero, as scikit-learn has it.
NO_POWER = float(np.spacing(1.0))

#: From numbers (..., P) to numbers of the same shape.
Inverse = Callable[[Tensor], Tensor]


class Back(nn.Module):
    """Makes means and variances of targets from those of Gaussians, all (..., P)."""

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of targets."""
        raise NotImplementedError


class Exponential(Back):
    """Targets whose logarithms are Gaussian, by the moments of the log-normal distribution."""

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """E y = exp(m + v/2), and Var y = exp(2m + v)(exp v − 1), in which only what is large overflows.

        1 − exp(−v) is computed by a hyperbolic tangent, since ONNX has no expm1, and small variances would vanish.
        """
        half = (0.5 * variance).tanh()
        return (mean + 0.5 * variance).exp(), (2 * (mean + variance) + (2 * half / (1 + half)).log()).exp()


class ByNodes(Back):
    """Targets of any inverse, by the nodes with which :class:`.TransformedDistribution` computes moments.

    Parameters
    ----------
    inverses : sequence of callables
        Steps of the inverse, in the order in which they are taken.
    """

    nodes: Tensor
    shares: Tensor

    def __init__(self, inverses: Sequence[Inverse]):
        super().__init__()
        self.inverses = inverses
        nodes = torch.arange(-MOMENT_REACH, MOMENT_REACH + MOMENT_STEP, MOMENT_STEP, dtype=torch.float64)
        self.register_buffer("nodes", nodes)
        self.register_buffer("shares", (-0.5 * nodes.square()).softmax(0))

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over nodes (..., P, nodes)."""
        y = mean[..., None] + self.nodes * variance.sqrt()[..., None]
        y = y.movedim(-1, 0)
        for inverse in self.inverses:
            y = inverse(y)
        y = y.movedim(0, -1)
        expected = y @ self.shares
        return expected, (y - expected[..., None]).square() @ self.shares


def back_of(transformer) -> Back | None:
    """The module for a fitted transformer of targets; None if there is no formula for it."""
    if isinstance(transformer, Logarithm):
        return Exponential()
    inverses = _inverses(transformer)
    return None if inverses is None else ByNodes(inverses)


def _inverses(transformer) -> list[Inverse] | None:
    """Steps of the inverse; None if there is no formula for one of them."""
    if isinstance(transformer, Bounded):
        inner = _inverses(transformer.transformer)
        low, high = (torch.as_tensor(np.asarray(limit)) for limit in (transformer.low, transformer.high))
        return None if inner is None else [lambda z: torch.minimum(torch.maximum(z, low.to(z)), high.to(z)), *inner]
    if isinstance(transformer, Pipeline):
        steps = [_inverses(step) for _, step in reversed(transformer.steps)]
        return None if any(step is None for step in steps) else [one for step in steps for one in step or ()]
    if isinstance(transformer, Logarithm):
        return [torch.exp]
    if isinstance(transformer, Logit):
        margin = transformer.margin
        return [lambda z: ((1 + 2 * margin) * z.sigmoid() - margin).clamp(0.0, 1.0)]
    if isinstance(transformer, StandardScaler):
        return [_affine(transformer)]
    if isinstance(transformer, PowerTransformer):
        powers = transformer.lambdas_.tolist()
        inverse = _yeo_johnson if transformer.method == "yeo-johnson" else _box_cox
        standard = [_affine(transformer._scaler)] if transformer.standardize else []
        return [*standard, lambda z: torch.stack([inverse(z[..., p], power) for p, power in enumerate(powers)], dim=-1)]
    return None


def _affine(scaler: StandardScaler) -> Inverse:
    """The inverse of a scaler."""
    scale = torch.as_tensor(1.0 if scaler.scale_ is None else scaler.scale_)
    shift = torch.as_tensor(scaler.mean_ if scaler.with_mean else 0.0)
    return lambda z: z * scale.to(z) + shift.to(z)


def _yeo_johnson(z: Tensor, power: float) -> Tensor:
    """The inverse of the transformation of Yeo and Johnson (2000)."""
    up, down = z.clamp(min=0.0), -z.clamp(max=0.0)
    above = up.expm1() if abs(power) < NO_POWER else _root(up, power) - 1
    below = down.expm1() if abs(2 - power) < NO_POWER else _root(down, 2 - power) - 1
    return torch.where(z >= 0, above, -below)


def _box_cox(z: Tensor, power: float) -> Tensor:
    """The inverse of the transformation of Box and Cox (1964)."""
    return z.exp() if abs(power) < NO_POWER else _root(z, power)


def _root(z: Tensor, power: float) -> Tensor:
    """(power · z + 1)^(1/power). The power is a tensor, since ONNX would round a number of Python to float32."""
    of_z = torch.tensor(power, dtype=torch.float64).to(z)
    return (of_z * z + 1).pow(1 / of_z)
