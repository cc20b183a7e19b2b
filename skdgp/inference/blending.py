"""How much of a blend is the deep GP: chosen by rows that neither it nor its base has learnt from."""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import Bounds, minimize
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..gp.blend import Blend, near_data, nearness
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import SumKernel
from ..gp.likelihoods import AdditiveNoise
from .batches import Batch

#: Weights of the deep GP that are started from in turn, since the density may have several peaks.
STARTS = (0.02, 0.5, 0.98)

#: What the base's variance may be multiplied by: no less than one, since far from all rows it is the prior's.
FACTORS = (1.0, 50.0)

#: The prior of the factor's logarithm, N(0, 0.5²): a few rows cannot tell variance of the function from noise.
FACTOR_SPREAD = 0.5

#: Where logarithms of the noise may be.
LOGARITHMS = (-28.0, 5.0)

#: What the learnt noise is multiplied by, at least, to start from.
SMALLEST_RATIO = 1e-12

#: Share of the held-out rows that count as lying at the edge of the data, or beyond.
EDGE = 0.01


class Judged(NamedTuple):
    """Rows, and moments (n, P) of their function values, of a member and of the base, neither of which knows them."""

    rows: Batch
    mean: Tensor
    variance: Tensor
    base_mean: Tensor
    base_variance: Tensor


def blend(base: DeepGP, likelihood: AdditiveNoise, judged: Sequence[Judged]) -> tuple[Blend, float]:
    """The blend that makes held-out rows likeliest.

    What is chosen is the weight of the deep GP, a factor of the base's variance, and the noise. All members have the
    same. Function values count as Gaussian here, whatever mixture they have.

    Parameters
    ----------
    base : DeepGP
        Of one layer. Its variance is changed, in place.
    likelihood : AdditiveNoise
        Of a member.
    judged : sequence of Judged
        For each member.

    Returns
    -------
    blend : Blend
    score : float
        Mean log density of the rows, in the members' units.
    """
    density = _Density(base, likelihood, judged)
    best = min((density.maximise(weight) for weight in STARTS), key=lambda found: found.fun)
    weight, log_factor, *_ = density.take(best.x)
    _multiply_variance(base, math.exp(log_factor))
    edges = {"edge": density.edge, "spread": math.exp(log_factor) * density.spread}
    found = Blend(base, density.likelihood.requires_grad_(False), weight=float(weight), **edges)
    return found, -float(best.fun)


class _Density:
    """The mean log density of held-out rows, as a function of a vector: weight, log factor, and logarithms of noise.

    The factor's prior is a part of it.
    """

    def __init__(self, base: DeepGP, likelihood: AdditiveNoise, judged: Sequence[Judged]):
        self.likelihood = deepcopy(likelihood).double().requires_grad_(True)
        self.likelihood.refine()
        self.noise = self.likelihood.calibrated()
        self.learnt = parameters_to_vector(self.noise).detach().cpu().numpy()
        self.y = torch.cat([each.rows.y for each in judged]).double()
        weight = torch.cat([each.rows.weight for each in judged]).double()
        self.total_weight = weight.sum()  # a row of weight 2 is that row twice
        self.row_weight = weight / self.total_weight
        self.h, self.v, self.g, self.s = (torch.cat(column) for column in list(zip(*judged, strict=True))[1:])
        correlation = nearness(base, torch.cat([each.rows.X for each in judged]))
        self.edge = float(correlation.quantile(EDGE))
        self.spread = float(self.s.mean(-1).quantile(1 - EDGE))
        self.near = near_data(correlation, self.s, self.edge, self.spread)

    def moments(self, weight: Tensor | float, factor: Tensor | float) -> tuple[Tensor, Tensor]:
        """Means and variances (n, P) of the blend's function values."""
        t = weight * self.near
        return t * self.h + (1 - t) * self.g, t.square() * self.v + (1 - t).square() * factor * self.s

    def take(self, vector: np.ndarray) -> np.ndarray:
        """Let the likelihood have its part of the vector, which is returned."""
        vector_to_parameters(torch.as_tensor(vector[2:], device=self.y.device), self.noise)
        return vector

    def negative(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Its negative, and the slopes of that."""
        self.take(vector)
        free = torch.tensor(vector[:2], device=self.y.device, requires_grad=True)
        mean, variance = self.moments(free[0], free[1].exp())
        density = self.likelihood.log_predictive(self.y, mean[None], variance[None])[0]
        value = 0.5 * (free[1] / FACTOR_SPREAD).square() / self.total_weight - (self.row_weight * density).sum()
        slopes = torch.autograd.grad(value, [free, *self.noise])
        return value.item(), parameters_to_vector(slopes).cpu().numpy()

    def maximise(self, weight: float):
        """Scipy's result, from a weight and the noise that goes with it."""
        self.take(np.concatenate([[weight, 0.0], self.learnt]))
        squares = (self.y - self.moments(weight, 1.0)[0]).square()
        found = (self.row_weight[:, None] * squares).sum(0).cpu().numpy() * np.square(self.likelihood.units.scale)
        ratio = np.maximum(found / self.likelihood.noise_variance(), SMALLEST_RATIO)  # targets may be constant
        noise = self.learnt.reshape(-1, len(found)) + np.log(ratio)
        start = np.concatenate([[weight, 0.0], noise.ravel().clip(*LOGARITHMS)])
        limits = np.array([(0.0, 1.0), np.log(FACTORS), *(LOGARITHMS for _ in self.learnt)])
        return minimize(self.negative, start, jac=True, method="L-BFGS-B", bounds=Bounds(*limits.T))


def _multiply_variance(base: DeepGP, factor: float) -> None:
    """Scale the kernel, but not means: the posterior speaks of whitened inducing variables."""
    layer = cast(GlobalLayer, base.layers[0])
    with torch.no_grad():
        for part in cast(SumKernel, layer.kernel).parts:
            cast(Tensor, part.log_variance).add_(math.log(factor))
        layer.q.mean.div_(math.sqrt(factor))
