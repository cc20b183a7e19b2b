"""Two models that predict as one: a deep GP near the data, and a GP of one layer elsewhere.

    f(x) = m(x) + c(x) [t(x) (h(x) − E h(x)) + (1 − t(x)) (g(x) − E g(x))],        m = t E h + (1 − t) E g

h is the deep GP and g its *base*, a sparse GP with a posterior in closed form. A function drawn from f consists of one
drawn from h and one drawn from g. These are drawn independently. But both have learnt from the same rows, and where one
errs the other is likely to err in the same direction. So the deviation of f shall be the average of both deviations,

    √Var f = t √v_h + (1 − t) √v_g,        c² = 1 + 2 t (1 − t) √(v_h v_g) / (t² v_h + (1 − t)² v_g),

with the variances v_h and v_g of both. Without c the blend of two equal models would claim to know half as much error.

    t(x) = w min(1, r(x)/r₀) min(1, v₀/v_g(x))²

r(x) is the largest correlation of x with an inducing point of g, by the smooth part of g's kernel. Inducing points are
rows, so that r(x) tells how near the data are. r₀ and v₀ are the values of r and v_g at the edge of the data. Far from
all rows r is near zero, or v_g is large. There f is g, whose deviation grows to that of its prior. w, a number between
0 and 1, is the weight of h near the data.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from .alternatives import alternative
from .deep_gp import DeepGP, Marginals
from .kernels import SumKernel
from .layers import with_parts
from .likelihoods import Likelihood
from .mixtures import Response
from .waves import Streams

#: If the correlation at the edge of the data is smaller than this, the base cannot tell where the data are.
LEAST_EDGE = 0.02

#: All alternatives of a base.
ALL = slice(None)


class Blend(nn.Module):
    """The base that members of an ensemble are blended with, and the weights; see the module's docstring.

    The base may consist of *alternatives*, GPs of which each counts the same. Then g is one of them, and it is not
    known which. A member is blended with a part of them, so that there are not too many components in all.

    Parameters
    ----------
    base : DeepGP
        A model of one layer, or several side by side (:mod:`.alternatives`). Kernels are sums whose first kernel is
        stationary.
    likelihood : Likelihood
        Likelihood of the blend. Its targets have the same units as those of the members.
    weight : float, or Tensor of shape (1,) or (D,)
        w, one for all function values of the deep GP or one for each.
    edge : float
        r₀.
    spread : float
        v₀, the mean over outputs.
    n_alternatives : int, default=1
        Number of alternatives in the base.
    noise : DeepGP, default=None
        If noise varies, the base of the logarithms of its variances. It has no alternatives.
    scale : float, default=1.0
        What the numbers that stand for classes have been multiplied by.
    """

    weight: Tensor
    edge: Tensor
    spread: Tensor

    n_alternatives: int = 1  # files of earlier versions do not say

    #: Number of inducing points of the base that tell where the data are; 0 for all. Points that were added after
    #: training do not count, if members know nothing of the rows there.
    n_near: int = 0

    #: Whether the base does not learn from targets that are far out.
    robust: bool = False

    #: What numbers that stand for classes have been multiplied by. The base's noise is that of the original numbers.
    scale: float = 1.0

    #: Alternatives that functions have been drawn from, by number. Only a frozen blend keeps them.
    _for_draws: dict[int, DeepGP] | None = None

    def __init__(
        self,
        base: DeepGP,
        likelihood: Likelihood,
        *,
        weight: float | Tensor,
        edge: float,
        spread: float,
        n_alternatives: int = 1,
        noise: DeepGP | None = None,
        scale: float = 1.0,
    ):
        super().__init__()
        self.scale = scale
        self.base, self.likelihood, self.n_alternatives = base, likelihood, n_alternatives
        self.add_module("noise", noise)
        self.register_buffer("weight", torch.as_tensor(weight, dtype=torch.float64, device="cpu").reshape(-1).clone())
        for name, value in {"edge": edge, "spread": spread}.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64, device="cpu"))

    def frozen(self, *, turned: bool = False) -> "Blend":
        """A copy that is faster in many calls; see :meth:`.Layer.frozen`."""
        names = ("base", "noise")[: len(self.bases)]
        parts = {name: part.frozen(turned=turned) for name, part in zip(names, self.bases, strict=True)}
        frozen = with_parts(self, **parts)
        frozen._for_draws = {}
        return frozen

    @property
    def bases(self) -> list[DeepGP]:
        """The base, and that of the noise if there is one."""
        noise = cast(DeepGP | None, self._modules.get("noise"))  # files of earlier versions do not have it
        return [self.base] if noise is None else [self.base, noise]

    def of_base(self, X: Tensor) -> Marginals:
        """Marginals of g at rows X (B, Q), with a component for each alternative."""
        base, *noises = (part(X) for part in self.bases)
        if self.n_alternatives > 1:
            mean, variance = (
                column[0].unflatten(-1, (self.n_alternatives, -1)).transpose(0, 1)
                for column in (base.mean, base.variance)
            )
            log_weight = mean.new_full((self.n_alternatives, 1), -math.log(self.n_alternatives))
            base = base._replace(mean=mean, variance=variance, log_weight=log_weight)
        for noise in noises:  # the same in all alternatives
            mean, variance = (
                torch.cat([of_base, of_noise.expand(len(of_base), -1, -1)], dim=-1)
                for of_base, of_noise in ((base.mean, noise.mean), (base.variance, noise.variance))
            )
            base = base._replace(mean=mean, variance=variance)
        return base

    def share(self, X: Tensor, base: Marginals) -> Tensor:
        """Weights t (B, 1 or D) of the deep GP at rows X (B, Q), from the base's marginals there."""
        variance = base.moments()[1]
        if len(self.bases) > 1:
            variance = variance[:, : self.likelihood.n_targets]  # without that of the noise's logarithm
        near = near_data(nearness(self.base, X, self.n_near), variance, self.edge, self.spread)
        return self.weight.reshape(-1).to(near) * near  # a single number in files of earlier versions

    def joined(self, t: Tensor, deep: Marginals, base: Marginals, part: slice = ALL) -> Marginals:
        """Marginals of f from those of h and g; t is (B, 1 or D).

        With S components of h and A of the part of g there are S·A components.
        """
        t, n_parts = t.to(deep.mean), len(base.mean[part])
        both = _Both.of(t, deep, base)
        g_mean, g_variance = (like_deep(g[part].to(deep.mean), deep.mean) for g in (base.mean, base.variance))
        mean = both.value(deep.mean[:, None], g_mean)  # (S, A, B, D)
        variance = both.c.square() * (t.square() * deep.variance[:, None] + (1 - t).square() * g_variance)
        log_weight = deep.log_weight.repeat_interleave(n_parts, 0) - math.log(n_parts)
        return deep._replace(mean=mean.flatten(0, 1), variance=variance.flatten(0, 1), log_weight=log_weight)

    def without_members(self, base: Marginals, part: slice, dtype: torch.dtype) -> Marginals:
        """What :meth:`joined` returns for t = 0, whatever the deep GP is; in the precision of members."""
        missing = self.likelihood.n_outputs - base.mean.shape[-1]  # function values that only members have
        mean, variance = (nn.functional.pad(g[part].to(dtype), (0, missing)) for g in (base.mean, base.variance))
        return base._replace(
            mean=mean, variance=variance, log_weight=mean.new_full((len(mean), 1), -math.log(len(mean)))
        )

    def draw(
        self, deep: DeepGP, streams: Streams, part: slice = ALL, *, of_rows: bool = False
    ) -> Callable[[Tensor], Tensor]:
        """Functions of f, one for each stream; see :meth:`.DeepGP.draw`."""
        g, h = self._draw_of_base(streams, part), deep.draw(streams, of_rows=of_rows)
        noises = [noise.draw(streams) for noise in self.bases[1:]]

        def function(X: Tensor) -> Tensor:
            base, values = self.of_base(X), h(X)
            both = _Both.of(self.share(X, base).to(X), deep(X), base)
            of_bases = torch.cat([g(X), *(noise(X) for noise in noises)], dim=-1)
            return both.value(values, like_deep(of_bases, values))

        return function

    def _draw_of_base(self, streams: Streams, part: slice) -> Callable[[Tensor], Tensor]:
        """Functions of g, each of an alternative that is drawn at random."""
        numbers = range(self.n_alternatives)[part]
        if len(numbers) == 1:
            return alternative(self.base, numbers[0], self.n_alternatives).draw(streams)
        chosen = streams.choice(torch.ones(len(numbers), dtype=torch.float64, device=streams.device))
        draws = []
        for place in chosen.unique().tolist():
            index = (chosen == place).nonzero()[:, 0]
            draws.append((index, self._alternative(numbers[place]).draw(streams.only(index.tolist()))))
        order = torch.cat([index for index, _ in draws]).argsort()
        return lambda X: torch.cat([draw(X) for _, draw in draws])[order]

    def _alternative(self, number: int) -> DeepGP:
        """A frozen alternative of the base. To make it takes as long as to draw some dozen functions."""
        kept = {} if self._for_draws is None else self._for_draws
        if number not in kept:
            kept[number] = alternative(self.base, number, self.n_alternatives).frozen()
        return kept[number]

    def covariance(
        self, deep: DeepGP, X: Tensor, streams: Streams, response: Response | None = None, part: slice = ALL
    ) -> Tensor:
        """Joint covariances of f, by the law of total covariance over alternatives; see :meth:`.DeepGP.covariance`."""
        base, marginals, numbers = self.of_base(X), deep(X), range(self.n_alternatives)[part]
        share = self.share(X, base).to(X)
        both = _Both.of(share, marginals, base)
        of_deep = deep.covariance(X, streams) if response is None else None  # the same for all alternatives
        of_noise = [noise.covariance(X, streams) for noise in self.bases[1:]]  # (P, B, B)
        means, within = [], X.new_zeros(())
        for number in numbers:
            of_mean = alternative(self.base, number, self.n_alternatives).covariance(X, streams)
            g = torch.cat([of_mean, *of_noise])  # (P or D, B, B)
            if of_deep is not None:
                covariance = both.covariance(of_deep, g)
            else:
                covariance = deep.covariance(X, streams, both.response(cast(Response, response), base.mean[number], g))
            within = within + covariance / len(numbers)
            means.append(self.joined(share, marginals, base, slice(number, number + 1)).of(response).moments()[0].mT)
        centred = torch.stack(means) - torch.stack(means).mean(0)  # (A, P, B)
        return within + torch.einsum("api,apj->pij", centred, centred) / len(numbers)


class _Both(NamedTuple):
    """What puts the values of h and g together at some rows; see the module's docstring."""

    t: Tensor  # (B, 1 or D)
    c: Tensor  # (B, D)
    deep_mean: Tensor  # (B, D)
    base_mean: Tensor

    @classmethod
    def of(cls, t: Tensor, deep: Marginals, base: Marginals) -> "_Both":
        """The same from marginals of both."""
        (h, v_deep), moments = deep.moments(), base.moments()
        g, v_base = (like_deep(values.to(h), h) for values in moments)
        return cls(t, inflation(t, v_deep, v_base), h, g)

    def value(self, h: Tensor, g: Tensor) -> Tensor:
        """f (..., B, D) from the values of h and g."""
        t = self.t
        mean = t * self.deep_mean + (1 - t) * self.base_mean
        return mean + self.c * (t * (h - self.deep_mean) + (1 - t) * (g - self.base_mean))

    def covariance(self, of_deep: Tensor, of_base: Tensor) -> Tensor:
        """Joint covariances (D, B, B) of f from those of h and g."""
        t, c = self.t.mT[..., None], self.c.mT[..., None]  # (1 or D, B, 1), (D, B, 1)
        padded = like_deep(of_base.movedim(0, -1), of_deep.movedim(0, -1)).movedim(-1, 0)
        return c * c.mT * (t * t.mT * of_deep + (1 - t) * (1 - t).mT * padded)

    def response(self, response: Response, base_mean: Tensor, of_base: Tensor) -> Response:
        """The response to f as one to h, if g has the means (B, P) and the joint covariances (P, B, B)."""

        def of_deep(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
            g = like_deep(base_mean, mean.mT)
            return response(self.value(mean.mT, g).mT, self.covariance(covariance, of_base))

        return of_deep


def nearness(base: DeepGP, X: Tensor, n_points: int = 0) -> Tensor:
    """Largest correlations r (B, 1) of rows X (B, Q) with an inducing point of the base; mean over its kernels.

    With ``n_points`` only so many of the points count, the first of all.
    """
    [Z] = base.inducing_points()
    Z = Z[: n_points or len(Z)]
    smooth = cast(SumKernel, base.layers[0].kernel).kernels[0]
    return smooth.relative_covariance(Z, X.to(Z)).amax(-2).mean(-2)[:, None]


def near_data(correlation: Tensor, variance: Tensor, edge: Tensor | float, spread: Tensor | float) -> Tensor:
    """t/w, (B, 1), from r (B, 1) and v (B, P). r counts only if r₀ is at least ``LEAST_EDGE``."""
    certainty = (spread / variance.mean(-1, keepdim=True)).clamp(max=1.0).square()
    edge = edge.to(correlation) if isinstance(edge, Tensor) else correlation.new_full((), edge)
    return certainty * torch.where(edge >= LEAST_EDGE, (correlation / edge.clamp(min=LEAST_EDGE)).clamp(max=1.0), 1.0)


def like_deep(base: Tensor, deep: Tensor) -> Tensor:
    """Numbers (..., P) of the base, with zeros appended for function values (..., D) that only the deep GP has."""
    return nn.functional.pad(base, (0, deep.shape[-1] - base.shape[-1]))


def inflation(t: Tensor, v_deep: Tensor, v_base: Tensor) -> Tensor:
    """c (B, D), from t (B, 1 or D) and the variances (B, D) of h and g; see the module's docstring."""
    alone = t.square() * v_deep + (1 - t).square() * v_base
    return (1 + 2 * t * (1 - t) * (v_deep * v_base).sqrt() / alone.clamp(min=torch.finfo(alone.dtype).tiny)).sqrt()
