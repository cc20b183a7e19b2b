"""Chooses the weight of the deep GP in a blend, by rows that neither the deep GP nor its base has learnt from."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..gp.blend import Blend, like_deep, near_data, nearness
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import SumKernel
from ..gp.likelihoods import Gaussian, Likelihood, cost_of_surprise
from ..gp.means import ConstantMean
from .base import Base
from .batches import Batch
from .twins import counting_once

#: Weights of the deep GP from which the search starts, one after another, since the density may have several peaks.
STARTS = (0.02, 0.5, 0.98)

#: How many nats the members must gain over the base, for a weight of one. A handful of rows decides nothing by itself,
#: and the base is better known far from them.
DOUBT = 2.0

#: Limits of the logarithms of the noise, or of a temperature's square.
LOGARITHMS = (-28.0, 5.0)

#: Smallest factor of the learnt noise with which the search starts.
SMALLEST_RATIO = 1e-12

#: Share of the held-out rows that count as lying at the edge of the data or beyond.
EDGE = 0.01


#: Errors of members by the end of training, as a share of those after its first part. It tells roughly what members can
#: still gain.
LATER = 0.85

#: Members whose errors are larger than those of the base by more than this factor do not catch up.
FARTHEST_BEHIND = 3.0

#: Rounding errors of sums of weights.
ROUNDING = 1e-9


class Prior(NamedTuple):
    """Prior of a logarithm: a Gaussian's mean and deviation, and two limits."""

    mean: float
    deviation: float
    low: float
    high: float

    def cost(self, value: Tensor) -> Tensor:
        """Negative logarithm of the density without constants, summed."""
        return 0.5 * ((value - self.mean) / self.deviation).square().sum()


#: Prior of the logarithm of the factor that multiplies the base's variance. A few rows cannot tell the variance of the
#: function from noise, so that a prior is needed. The factor is at least one, since far from all rows the variance
#: would otherwise fall below that of the base's prior. If many rows judge, it may fall to that of the targets.
FACTOR = Prior(0.0, 0.5, 0.0, math.log(50.0))

#: With fewer rows that judge, the factor is at least one. Intervals of thirty rows would hold 75 % in place of 87 %.
FEWEST_TO_SHRINK = 200

#: Prior of the same logarithm for a base whose variance was chosen before: it says nothing else.
CHOSEN = Prior(0.0, math.inf, 0.0, 0.0)

#: Prior of the same logarithm, less that of the temperature's square, if the base's numbers stand for classes. This is
#: what makes the base certain: the factor's root then multiplies means, too. Kernel and noise have learnt from the rows
#: that judge, so that few of them look more certain than new rows are.
CLASS_FACTOR = Prior(1.0, 1.8, -10.0, 16.0)

#: Prior of the logarithm of the temperature's square. Without it, few rows would make members certain.
TEMPERATURE = Prior(0.0, 3.0, *LOGARITHMS)


#: Kinds of bases for which noises, or temperatures, have priors of another form.
HAVE_PRIORS = ("classes", "censored", "means")


class OutOfSample(NamedTuple):
    """Rows that neither a member nor the base has learnt from, with the moments (n, P) that both predict for them.

    The base's variance is that within its alternatives plus that between their means. If there is a base of the noise,
    its moments stand beside those of the base.
    """

    rows: Batch
    mean: Tensor
    variance: Tensor
    base_mean: Tensor
    base_within: Tensor
    base_between: Tensor


class Gain(NamedTuple):
    """What members add to the mean log density of held-out rows, in nats: now, and if training goes on, roughly.

    ``n_rows`` is the number of these rows, in which copies of a row count once.
    """

    now: float
    later: float
    n_rows: float

    def at_most(self, now: float, later: float) -> bool:
        """Whether both are at most so much."""
        return self.now <= now and self.later <= later

    @property
    def of_all_rows(self) -> float:
        """The larger of them for all rows together."""
        return self.n_rows * max(self.now, self.later)


def blend(
    base: Base,
    likelihood: Likelihood,
    held_out: Sequence[OutOfSample],
    class_rows: tuple[Tensor, Tensor] | None = None,
    noise: DeepGP | None = None,
    *,
    judged: bool = True,
    earlier: Blend | None = None,
    all_rows: Callable[[], OutOfSample] | None = None,
) -> tuple[Blend, float]:
    """The blend that makes held-out rows most likely.

    It chooses the weight of the deep GP, a factor of the base's variance, and the noise, or for classes the
    temperature. They are the same for all members. Here function values count as Gaussian, even if they are mixtures.

    Parameters
    ----------
    base : Base
        The base. Its variance changes in place. For classes its means change, too.
    likelihood : Likelihood
        Likelihood of a member.
    held_out : sequence of OutOfSample
        Held-out rows of each member.
    class_rows : tuple of Tensors (N, 1) and (N,), default=those of the held-out rows
        Targets and weights of rows that tell the share of each class. Only a likelihood of classes needs them.
    noise : DeepGP, default=None
        If noise varies, the base of the logarithms of its variances. It does not change.
    judged : bool, default=True
        Whether members may have weight.
    earlier : Blend, default=None
        A blend with this base, whose factor of the variance remains, with the place of the data's edge.
    all_rows : callable, default=None
        Returns predictions of the base for more rows, each as if it had not learnt from the row. They judge it instead
        of the held-out rows if members have no weight. Otherwise they tell how usual the noise of held-out rows is.

    Returns
    -------
    blend : Blend
        The blend.
    score : float
        Mean log density or probability of the rows that have judged, in the members' units.
    """
    density = _density(base, likelihood, held_out, class_rows)
    whole = None if all_rows is None else _density(base, likelihood, [all_rows()], class_rows)
    if whole is not None and density.knows_no_noise:
        density.expect(whole)
    if earlier is not None:
        density.factor = CHOSEN
    vector = (density.best() if judged else density.without_members()).x
    if whole is not None:
        if density.take(vector)[0].any():
            vector = density.as_for_all(vector, whole)
        else:
            density, vector = whole, whole.without_members().x
    score = density.score(vector)
    weight, log_factor = density.take(vector)
    if log_factor:  # what is known of an unchanged base still holds
        density.multiply(base.model, log_factor)
    edges = {"edge": density.edge, "spread": density.spread_at(log_factor), "scale": density.scale_at(log_factor)}
    if earlier is not None:
        edges = {name: float(getattr(earlier, name)) for name in edges}
    likelihood, weights = density.likelihood.requires_grad_(False), density.by_value(torch.from_numpy(weight))
    best_blend = Blend(base.model, likelihood, weight=weights, **edges, n_alternatives=base.n_alternatives, noise=noise)
    return best_blend.to(density.y.device), score


def gain_of_members(
    base: Base,
    likelihood: Likelihood,
    held_out: Sequence[OutOfSample],
    class_rows: tuple[Tensor, Tensor] | None = None,
    all_rows: Callable[[], OutOfSample] | None = None,
) -> Gain:
    """What members add to the mean log density that held-out rows have by the base alone; see :func:`blend`.

    Neither the base nor the likelihood changes.
    """
    density = _density(base, likelihood, held_out, class_rows)
    if all_rows is not None and density.knows_no_noise:
        density.expect(_density(base, likelihood, [all_rows()], class_rows))
    together, alone = density.best(), density.without_members()
    later = density.gain_of_smaller_errors(LATER) if likelihood.additive else 0.0
    return Gain(density.score(together.x) - density.score(alone.x), later, density.total_weight.item())


def _density(
    base: Base, likelihood: Likelihood, held_out: Sequence[OutOfSample], class_rows: tuple[Tensor, Tensor] | None
) -> "_Density":
    """What a blend of such a likelihood maximises."""
    if likelihood.base_kind == "classes":
        return _Probability(base, likelihood, held_out, class_rows)
    density = _Density(base, likelihood, held_out)
    if density.total_weight >= FEWEST_TO_SHRINK:
        density.factor = FACTOR._replace(low=density.lowest_factor(base.model))
    return density


class _Density:
    """The mean log density of held-out rows, as a function of a vector: weight, log factor, and logarithms of noise.

    What is maximised includes the priors.
    """

    factor = FACTOR

    def __init__(self, base: Base, likelihood: Likelihood, held_out: Sequence[OutOfSample]):
        self.likelihood = deepcopy(likelihood).for_blend().double().requires_grad_(True)
        self.noise = self.likelihood.calibrated() + self.likelihood.tails()
        self.n_tails = sum(part.numel() for part in self.likelihood.tails())
        self.learnt = np.concatenate([part.detach().cpu().numpy().ravel() for part in self.noise] or [np.zeros(0)])
        rows = reduce(Batch.joined, (predicted.rows for predicted in held_out))
        self.y, weight = rows.y.double(), counting_once(rows).double()
        self.total_weight = weight.sum()  # copies of a row are no more evidence than the row
        self.row_weight = weight / self.total_weight
        self.h, self.v, g, s, between = (torch.cat(column) for column in list(zip(*held_out, strict=True))[1:])
        correlation = nearness(base.model, rows.X)
        self.expected = _log_noise(base, likelihood)
        if likelihood.base_kind == "varying":  # members start from the level of the base, which all rows tell
            self.expected = self.y.new_tensor(self.learnt)
        self.n_weights = 1 if likelihood.alike else 2  # one for each kind of function: some likelihoods have two
        self.edge = _quantile(correlation[:, 0], self.row_weight, EDGE)
        n_outputs = len(cast(GlobalLayer, base.model.layers[0]).q.mean) // base.n_alternatives
        self.within, self.apart = (values[:, :n_outputs].mean(-1) for values in (s, between))  # (n,)
        self.spread = self.spread_at(0.0)
        self.near = near_data(correlation, (s + between)[:, :n_outputs], self.edge, self.spread)
        self.g, self.s, self.between = (like_deep(values, self.h) for values in (g, s, between))
        self.multiplied = (torch.arange(self.h.shape[1], device=self.h.device) < n_outputs).to(
            self.h
        )  # that of the noise stays

    @torch.no_grad()
    def lowest_factor(self, base: DeepGP) -> float:
        """Logarithm of the smallest factor; see :data:`FACTOR`."""
        y, weight = self.numbers(), self.row_weight[:, None]
        of_targets = (weight * (y - (weight * y).sum(0)).square()).sum(0).mean()
        of_prior = base.layers[0].kernel.diagonal(base.inducing_points()[0]).mean()
        return min(0.0, math.log(max(of_targets.item(), 1e-300) / of_prior.item()))

    def gain_of_smaller_errors(self, share: float) -> float:
        """What members would add to the mean log density, roughly, if their errors fell to a share of what they are.

        Two predictions have errors of deviations 1 and r, with the correlation ρ. The best weighted mean has an error
        of variance r²(1 − ρ²)/(1 + r² − 2ρr), if ρr < 1; otherwise the first prediction is best alone (Bates and
        Granger, 1969). Half the logarithm of this variance is gained. Members do not overtake the base. An output of
        which they are far behind counts nothing, and a correlation below zero is due to chance.
        """
        y, weight = self.numbers(), self.row_weight[:, None]
        deep, base = y - self.h[:, : y.shape[1]], y - self.g[:, : y.shape[1]]
        of_deep, of_base, both = ((weight * product).sum(0) for product in (deep.square(), base.square(), deep * base))
        tiny = torch.finfo(self.y.dtype).tiny
        rho = (both * (of_deep * of_base).clamp(min=tiny).rsqrt()).clamp(min=0.0)
        ratio = (of_deep / of_base.clamp(min=tiny)).sqrt()
        r = (share * ratio).clamp(1.0, FARTHEST_BEHIND)
        saved = (1 - rho * r).clamp(min=0.0).square() / (1 + r.square() - 2 * rho * r).clamp(min=ROUNDING)
        return -0.5 * torch.log1p(-torch.where(ratio < FARTHEST_BEHIND, saved, 0.0)).sum().item()

    @property
    def knows_no_noise(self) -> bool:
        """Whether some noise is learnt, and neither the base nor the likelihood tells how large it may be."""
        return bool(self.noise) and self.expected is None and self.likelihood.base_kind not in HAVE_PRIORS

    def expect(self, whole: "_Density") -> None:
        """Expect the noise that the base alone has on all rows."""
        self.expected = self.y.new_tensor(whole.without_members().x[self.n_weights + 1 :])

    def by_value(self, weight: Tensor) -> Tensor:
        """Weights of all function values, (1,) or (D,), from those of each kind of function."""
        return weight if self.n_weights == 1 else weight.repeat_interleave(self.h.shape[1] // self.n_weights)

    def moments(self, weight: Tensor, log_factor: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances (n, D) of the blend's function values."""
        t, factor = self.by_value(weight) * self.near, (log_factor * self.multiplied).exp()
        base = factor * self.s + self.between
        mean = t * self.h + (1 - t) * self.scaled(self.g, log_factor)
        return mean, (t * self.v.sqrt() + (1 - t) * base.sqrt()).square()  # as if both erred in the same way

    def spread_at(self, log_factor: float) -> float:
        """v₀: the variance of the base at the edge of the data."""
        return _quantile(math.exp(log_factor) * self.within + self.apart, self.row_weight, 1 - EDGE)

    def take(self, vector: np.ndarray) -> tuple[np.ndarray, float]:
        """Give the likelihood its part of the vector; return the other parts, which are weights and log factor."""
        weight, log_factor, noise = np.split(vector, [self.n_weights, self.n_weights + 1])
        vector_to_parameters(torch.as_tensor(noise, device=self.y.device), self.noise)
        return weight, float(log_factor[0])

    def negative(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """The negative log density, and its slopes."""
        self.take(vector)
        free = torch.tensor(vector[: self.n_weights + 1], device=self.y.device, requires_grad=True)
        cost = self.cost_of_factor(free[-1]) + self.cost_of_noise() + DOUBT * free[:-1].mean()
        value = cost / self.total_weight - self.mean_of_rows(free[:-1], free[-1])
        slopes = torch.autograd.grad(value, [free, *self.noise])
        return value.item(), parameters_to_vector(slopes).cpu().numpy()

    @torch.no_grad()
    def score(self, vector: np.ndarray) -> float:
        """The mean log density without the priors."""
        weight, log_factor = (self.y.new_tensor(part) for part in self.take(vector))
        return self.mean_of_rows(weight, log_factor).item()

    def mean_of_rows(self, weight: Tensor, log_factor: Tensor) -> Tensor:
        """Mean log density (), with the present noise."""
        mean, variance = self.moments(weight, log_factor)
        return (self.row_weight * self.likelihood.log_predictive(self.y, mean[None], variance[None])[0]).sum()

    def best(self) -> OptimizeResult:
        """The vector that maximises it."""
        return min((self.maximise(weight) for weight in STARTS), key=lambda optimum: optimum.fun)

    def without_members(self) -> OptimizeResult:
        """The same for members without weight."""
        return self.maximise(0.0, most=0.0)

    def as_for_all(self, vector: np.ndarray, whole: "_Density") -> np.ndarray:
        """The vector with the noise that all rows would have, of which only the base is known; see :func:`blend`.

        A few held-out rows may happen to be easy, for members and base alike. The base alone has the noise b on them,
        and B on the ``whole`` table. So the noise on them is multiplied by (B/b)^c. This is a control variate: since
        logarithms of two mean squares have the correlation ρ², where ρ is that of the errors, c = ρ² is best. If the
        blend is the base, it has its noise. Noise does not grow beyond B: b may be next to nothing where the variance
        of the function explains all errors.
        """
        if not self.likelihood.additive or self.likelihood.fixed or self.n_tails:  # a target far out decides on squares
            return vector
        base, of_base = (density.noise_at(density.without_members().x)[0] for density in (whole, self))
        own, left = self.noise_at(vector)
        [*_, alone] = self.noise_at(np.concatenate([np.zeros(self.n_weights), vector[self.n_weights :]]))
        products = [(self.row_weight[:, None] * pair).sum(0) for pair in (left * alone, left.square(), alone.square())]
        tiny = torch.finfo(self.y.dtype).tiny
        c = (products[0].clamp(min=0.0).square() / (products[1] * products[2]).clamp(min=tiny)).cpu().numpy()
        n_free = self.n_weights + 1
        change = np.minimum(c * np.log(base / of_base), np.log(np.maximum(base / own, 1.0)))
        noise = vector[n_free:].reshape(-1, len(c)) + change
        return np.concatenate([vector[:n_free], noise.ravel().clip(*LOGARITHMS)])

    @torch.no_grad()
    def noise_at(self, vector: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Noise variances (P,) of the vector, and errors (n, P) of its means, of equal weight where noise differs."""
        mean, _ = self.moments(*(self.y.new_tensor(part) for part in self.take(vector)))
        precise = self.likelihood.precise_weights(self.y, torch.ones_like(self.row_weight))
        left = self.likelihood.regressands(self.y) - mean
        return self.likelihood.noise_variance(), precise.sqrt()[:, None] * left

    def maximise(self, weight: float, most: float = 1.0) -> OptimizeResult:
        """Maximise it from a weight, which is at most ``most``, and from the noise that goes with it."""
        weights = self.n_weights * [weight]
        start = np.concatenate([[*weights, self.factor.mean], self.noise_for(weight).clip(*LOGARITHMS)])
        limits = [
            *(self.n_weights * [(0.0, most)]),
            (self.factor.low, self.factor.high),
            *(LOGARITHMS for _ in self.learnt),
        ]
        return minimize(self.negative, start, jac=True, method="L-BFGS-B", bounds=limits)

    # Methods that a base for classes overrides.

    def numbers(self) -> Tensor:
        """Numbers (n, P) that the first function values are compared with."""
        return self.likelihood.regressands(self.y)

    def scaled(self, mean: Tensor, log_factor: Tensor | float) -> Tensor:
        """Means of the base, or some of them, after its variance has been multiplied: they do not change."""
        return mean

    def scale_at(self, log_factor: float) -> float:
        """What the base's numbers are multiplied by if its variance is."""
        return 1.0

    def cost_of_factor(self, log_factor: Tensor) -> Tensor:
        """Negative log prior of the factor."""
        return self.factor.cost(log_factor)

    def cost_of_noise(self) -> float | Tensor:
        """Negative log prior of the noise: Student's t around the logarithm of the base's, if that is known."""
        cost = self.likelihood.cost_of_noise()
        if self.expected is None:
            return cost
        return cost + cost_of_surprise(self.logarithms() - self.expected)

    def logarithms(self) -> Tensor:
        """Logarithms of the noise."""
        if isinstance(self.likelihood, Gaussian):
            return self.likelihood.variance.log()
        return torch.cat([part.flatten() for part in self.noise])

    def noise_for(self, weight: float) -> np.ndarray:
        """Logarithms of the noise for a weight: from residuals of the means if noise is the same everywhere."""
        if not self.likelihood.additive or self.likelihood.fixed:
            return self.learnt
        self.take(np.concatenate([[weight, 0.0], self.learnt]))
        likelihood = self.likelihood
        mean, _ = self.moments(*self.y.new_tensor([[weight], [0.0]]))
        weight_of_rows = likelihood.precise_weights(self.y, self.row_weight)[:, None]
        left = (weight_of_rows * (likelihood.regressands(self.y) - mean).square()).sum(0).cpu().numpy()
        noise = likelihood.noise_variance() / likelihood.plain_ratio
        ratio = left * np.square(likelihood.units.scale) / noise  # targets may be constant
        level, tails = np.split(self.learnt, [len(self.learnt) - self.n_tails])
        level = level.reshape(-1, len(left)) + np.log(np.maximum(ratio, SMALLEST_RATIO))
        return np.concatenate([level.ravel(), tails])

    @torch.no_grad()
    def multiply(self, base: DeepGP, log_factor: float) -> None:
        """Multiply kernel and noise of the base in place. Its posterior is that of whitened inducing variables."""
        layer = cast(GlobalLayer, base.layers[0])
        likelihood = cast(Gaussian, base.likelihood)
        likelihood.floor.mul_(math.exp(log_factor))
        likelihood.log_excess.add_(log_factor)
        for part in cast(SumKernel, layer.kernel).kernels:
            cast(Tensor, part.log_variance).add_(log_factor)
        layer.q.mean.mul_(math.exp(-0.5 * log_factor))


def _log_noise(base: Base, likelihood: Likelihood) -> Tensor | None:
    """Logarithms (P,) of the base's mean noise variances; None unless noise is Gaussian and learnt.

    The mean is that over alternatives: a new target varies by the expectation of a variance that is uncertain.
    """
    if type(likelihood) is not Gaussian or likelihood.fixed:
        return None
    noise = cast(Gaussian, base.model.likelihood).variance.detach().double()
    return noise.unflatten(-1, (base.n_alternatives, -1)).mean(0).log()


class _Probability(_Density):
    """The same for classes: the square of the temperature takes the place of the noise.

    It is the mean log probability that rows would have if their classes had the shares π_c of all rows:

        Σ_c π_c L_c,    L_c = mean of log p_n(c) over the held-out rows n of class c, or log p̄_c if there is none,

    where p̄_c is the mean of p_n(c) over all held-out rows. A few held-out rows often lack a rare class. Without the
    last term they would be most likely if the class was impossible. With it, probabilities that do not depend on the
    row are best at p̄_c = π_c.
    """

    factor = CLASS_FACTOR

    def __init__(
        self,
        base: Base,
        likelihood: Likelihood,
        held_out: Sequence[OutOfSample],
        class_rows: tuple[Tensor, Tensor] | None = None,
    ):
        super().__init__(base, likelihood, held_out)
        n_classes = max(2, likelihood.n_outputs)
        there = _shares(self.y, self.row_weight, n_classes)
        share = there if class_rows is None else _shares(*class_rows, n_classes).to(there)
        numbers = self.y[:, 0].long()
        self.row_weight = self.row_weight * (share[numbers] / there[numbers])
        missing = ((there == 0) & (share > 0)).nonzero()[:, 0].tolist()
        self.absent = [(number, share[number]) for number in missing]
        self.log_even = self.y.new_tensor(-math.log(len(self.y)))

    def numbers(self) -> Tensor:
        """The numbers of the classes."""
        return self.y

    def mean_of_rows(self, weight: Tensor, log_factor: Tensor) -> Tensor:
        """Mean log probability () of rows whose classes have the shares of all rows."""
        total = super().mean_of_rows(weight, log_factor)
        if not self.absent:
            return total
        mean, variance = (column[None] for column in self.moments(weight, log_factor))
        for number, share in self.absent:
            log_p = self.likelihood.log_predictive(torch.full_like(self.y, number), mean, variance)[0]  # (n,)
            total = total + share * (log_p + self.log_even).logsumexp(0)
        return total

    def scale_at(self, log_factor: float) -> float:
        """The root of the factor."""
        return math.exp(0.5 * log_factor)

    def scaled(self, mean: Tensor, log_factor: Tensor | float) -> Tensor:
        """Means, which are multiplied as deviations are."""
        return mean * math.e ** (0.5 * log_factor)

    def cost_of_factor(self, log_factor: Tensor) -> Tensor:
        """Negative log prior of the factor beside the temperature, which alone decides if members have no weight."""
        return self.factor.cost(log_factor - self.noise[0])

    def cost_of_noise(self) -> float | Tensor:
        """Negative log prior of the temperature."""
        return TEMPERATURE.cost(self.noise[0])

    def noise_for(self, weight: float) -> np.ndarray:
        """The logarithm of a temperature of one."""
        return np.zeros(1)

    @torch.no_grad()
    def multiply(self, base: DeepGP, log_factor: float) -> None:
        """Multiply the base's kernel, and its means as well."""
        layer = cast(GlobalLayer, base.layers[0])
        for part in cast(SumKernel, layer.kernel).kernels:
            cast(Tensor, part.log_variance).add_(log_factor)
        constant = cast(ConstantMean, layer.mean).constant
        constant.copy_(self.scaled(constant, log_factor))


def _quantile(values: Tensor, weight: Tensor, share: float) -> float:
    """The smallest of some values (n,) that so large a share of the weight (n,) does not exceed.

    Without interpolation a row of weight 2 is that row twice.
    """
    ordered, order = values.sort()
    total = weight[order].cumsum(0) / weight.sum()
    return ordered[int((total < share - ROUNDING).sum())].item()


def _shares(y: Tensor, weight: Tensor, n_classes: int) -> Tensor:
    """Shares (K,) of the classes in the weight of all rows, whose classes are y (n, 1)."""
    total = torch.zeros(n_classes, dtype=torch.float64, device=y.device)
    return total.index_add(0, y[:, 0].long(), weight.double() / weight.double().sum())
