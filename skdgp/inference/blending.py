"""How much of a blend is the deep GP: chosen by rows that neither it nor its base has learnt from."""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..gp.blend import Blend, like_deep, near_data, nearness
from ..gp.classes import Classification, Tempered
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import SumKernel
from ..gp.likelihoods import AdditiveNoise, Gaussian, Likelihood
from ..gp.means import ConstantMean
from .batches import Batch

#: Weights of the deep GP that are started from in turn, since the density may have several peaks.
STARTS = (0.02, 0.5, 0.98)

#: Where logarithms of the noise, or of a temperature's square, may be.
LOGARITHMS = (-28.0, 5.0)

#: What the learnt noise is multiplied by, at least, to start from.
SMALLEST_RATIO = 1e-12

#: Share of the held-out rows that count as lying at the edge of the data, or beyond.
EDGE = 0.01


class Prior(NamedTuple):
    """Of a logarithm: a Gaussian's mean and deviation, between two ends."""

    mean: float
    deviation: float
    low: float
    high: float

    def cost(self, value: Tensor) -> Tensor:
        """Negative logarithm of the density, but for a constant, summed."""
        return 0.5 * ((value - self.mean) / self.deviation).square().sum()


#: Of the logarithm of what the base's variance is multiplied by. A few rows cannot tell variance of the function from
#: noise; and no less than one, since far from all rows the variance is the prior's.
FACTOR = Prior(0.0, 0.5, 0.0, math.log(50.0))

#: Of the same where the base's numbers stand for classes, and means are multiplied by the root; and of the logarithm of
#: the temperature's square. Few rows would make classes certain.
CLASS_FACTOR, TEMPERATURE = Prior(2.0, 3.0, -10.0, 16.0), Prior(0.0, 3.0, *LOGARITHMS)


class Judged(NamedTuple):
    """Rows, and moments (n, P) of their function values, of a member and of the base, neither of which knows them."""

    rows: Batch
    mean: Tensor
    variance: Tensor
    base_mean: Tensor
    base_variance: Tensor


def blend(base: DeepGP, likelihood: Likelihood, judged: Sequence[Judged]) -> tuple[Blend, float]:
    """The blend that makes held-out rows likeliest.

    What is chosen is the weight of the deep GP, a factor of the base's variance, and the noise, or for classes the
    temperature. All members have the same. Function values count as Gaussian here, whatever mixture they have.

    Parameters
    ----------
    base : DeepGP
        Of one layer. Its variance is changed, in place; and with it what it says of classes.
    likelihood : Likelihood
        Of a member.
    judged : sequence of Judged
        For each member.

    Returns
    -------
    blend : Blend
    score : float
        Mean log density or probability of the rows, in the members' units.
    """
    kind = _Probability if isinstance(likelihood, Classification) else _Density
    density = kind(base, likelihood, judged)
    best = min((density.maximise(weight) for weight in STARTS), key=lambda found: found.fun)
    weight, log_factor = density.take(best.x)
    density.multiply(base, log_factor)
    edges = {"edge": density.edge, "spread": math.exp(log_factor) * density.spread}
    found = Blend(
        base, density.likelihood.requires_grad_(False), weight=density.by_value(torch.from_numpy(weight)), **edges
    )
    return found, -float(best.fun)


class _Density:
    """The mean log density of held-out rows, as a function of a vector: weight, log factor, and logarithms of noise.

    Priors are a part of it.
    """

    factor = FACTOR

    def __init__(self, base: DeepGP, likelihood: Likelihood, judged: Sequence[Judged]):
        self.likelihood = self.to_calibrate(deepcopy(likelihood)).double().requires_grad_(True)
        self.noise = self.likelihood.calibrated()
        self.learnt = np.concatenate([each.detach().cpu().numpy().ravel() for each in self.noise] or [np.zeros(0)])
        self.y = torch.cat([each.rows.y for each in judged]).double()
        weight = torch.cat([each.rows.weight for each in judged]).double()
        self.total_weight = weight.sum()  # a row of weight 2 is that row twice
        self.row_weight = weight / self.total_weight
        self.h, self.v, g, s = (torch.cat(column) for column in list(zip(*judged, strict=True))[1:])
        correlation = nearness(base, torch.cat([each.rows.X for each in judged]))
        self.n_weights = 1 if likelihood.alike else 2  # of functions that mean the same
        self.edge = float(correlation.quantile(EDGE))
        self.spread = float(s.mean(-1).quantile(1 - EDGE))
        self.near = near_data(correlation, s, self.edge, self.spread)
        self.g, self.s = (like_deep(each, self.h) for each in (g, s))

    def by_value(self, weight: Tensor) -> Tensor:
        """Weights of every function value, (1,) or (D,), from those of functions that mean the same."""
        return weight if self.n_weights == 1 else weight.repeat_interleave(self.h.shape[1] // self.n_weights)

    def moments(self, weight: Tensor, log_factor: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances (n, D) of the blend's function values."""
        t = self.by_value(weight) * self.near
        mean = t * self.h + (1 - t) * self.scaled(self.g, log_factor)
        return mean, t.square() * self.v + (1 - t).square() * log_factor.exp() * self.s

    def take(self, vector: np.ndarray) -> tuple[np.ndarray, float]:
        """Let the likelihood have its part of the vector, of which weights and the log factor are returned."""
        weight, log_factor, noise = np.split(vector, [self.n_weights, self.n_weights + 1])
        vector_to_parameters(torch.as_tensor(noise, device=self.y.device), self.noise)
        return weight, float(log_factor[0])

    def negative(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Its negative, and the slopes of that."""
        self.take(vector)
        free = torch.tensor(vector[: self.n_weights + 1], device=self.y.device, requires_grad=True)
        mean, variance = self.moments(free[:-1], free[-1])
        density = self.likelihood.log_predictive(self.y, mean[None], variance[None])[0]
        cost = self.factor.cost(free[-1]) + self.cost_of_noise()
        value = cost / self.total_weight - (self.row_weight * density).sum()
        slopes = torch.autograd.grad(value, [free, *self.noise])
        return value.item(), parameters_to_vector(slopes).cpu().numpy()

    def maximise(self, weight: float) -> OptimizeResult:
        """From a weight, and what goes with it."""
        weights = self.n_weights * [weight]
        start = np.concatenate([[*weights, self.factor.mean], self.noise_for(weight).clip(*LOGARITHMS)])
        limits = [
            *(self.n_weights * [(0.0, 1.0)]),
            (self.factor.low, self.factor.high),
            *(LOGARITHMS for _ in self.learnt),
        ]
        return minimize(self.negative, start, jac=True, method="L-BFGS-B", bounds=limits)

    # What a base for classes does otherwise.

    def to_calibrate(self, likelihood: Likelihood) -> Likelihood:
        """The blend's likelihood, from a copy of a member's."""
        likelihood.refine()
        return likelihood

    def scaled(self, mean: Tensor, log_factor: Tensor | float) -> Tensor:
        """Means of the base, or a part of them, if its variance is multiplied: they stay."""
        return mean

    def cost_of_noise(self) -> float | Tensor:
        """Negative log prior of the noise: there is none."""
        return 0.0

    def noise_for(self, weight: float) -> np.ndarray:
        """Logarithms of the noise that goes with a weight: what means leave, if noise is the same everywhere."""
        if not isinstance(self.likelihood, AdditiveNoise):
            return self.learnt
        self.take(np.concatenate([[weight, 0.0], self.learnt]))
        likelihood = self.likelihood
        mean, _ = self.moments(*self.y.new_tensor([[weight], [0.0]]))
        left = (self.row_weight[:, None] * (self.y - mean).square()).sum(0).cpu().numpy()
        ratio = left * np.square(likelihood.units.scale) / likelihood.noise_variance()  # targets may be constant
        return (self.learnt.reshape(-1, len(left)) + np.log(np.maximum(ratio, SMALLEST_RATIO))).ravel()

    @torch.no_grad()
    def multiply(self, base: DeepGP, log_factor: float) -> None:
        """Multiply kernel and noise of the base, in place. Its posterior speaks of whitened inducing variables."""
        layer = cast(GlobalLayer, base.layers[0])
        likelihood = cast(Gaussian, base.likelihood)
        likelihood.floor.mul_(math.exp(log_factor))
        likelihood.log_excess.add_(log_factor)
        for part in cast(SumKernel, layer.kernel).parts:
            cast(Tensor, part.log_variance).add_(log_factor)
        layer.q.mean.mul_(math.exp(-0.5 * log_factor))


class _Probability(_Density):
    """The same of classes: the noise is the square of the temperature."""

    factor = CLASS_FACTOR

    def to_calibrate(self, likelihood: Likelihood) -> Likelihood:
        """With a temperature."""
        return Tempered(cast(Classification, likelihood))

    def scaled(self, mean: Tensor, log_factor: Tensor | float) -> Tensor:
        """Multiplied as deviations are."""
        return mean * math.e ** (0.5 * log_factor)

    def cost_of_noise(self) -> float | Tensor:
        """Of the temperature."""
        return TEMPERATURE.cost(self.noise[0])

    def noise_for(self, weight: float) -> np.ndarray:
        """A temperature of one."""
        return np.zeros(1)

    @torch.no_grad()
    def multiply(self, base: DeepGP, log_factor: float) -> None:
        """Multiply means as well."""
        layer = cast(GlobalLayer, base.layers[0])
        for part in cast(SumKernel, layer.kernel).parts:
            cast(Tensor, part.log_variance).add_(log_factor)
        constant = cast(ConstantMean, layer.mean).constant
        constant.copy_(self.scaled(constant, log_factor))
