"""Two models that predict as one: a deep GP near the data, and a GP of one layer elsewhere.

    f(x) = t(x) h(x) + (1 − t(x)) g(x),        t(x) = w min(1, r(x)/r₀) min(1, v₀/v(x))²

h is the deep GP and g its *base*, a sparse GP with a posterior in closed form. The two are independent. So their means,
variances and covariances add up with these weights, and a function drawn from f consists of one drawn from h and one
drawn from g.

r(x) is the largest correlation of x with an inducing point of g, by the smooth part of g's kernel. Inducing points are
rows, so that r(x) tells how near the data are. v(x) is the variance of g(x). r₀ and v₀ are their values at the edge of
the data. Far from all rows r is near zero, or v is large. There f is g, whose deviation grows to that of its prior. w,
a number between 0 and 1, is the weight of h near the data.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from .deep_gp import DeepGP, Marginals
from .kernels import SumKernel
from .layers import with_parts
from .likelihoods import Likelihood
from .mixtures import Response
from .waves import Streams

#: If the correlation at the edge of the data is smaller than this, the base cannot tell where the data are.
LEAST_EDGE = 0.02


class Blend(nn.Module):
    """The base that members of an ensemble are blended with, and the weights; see the module's docstring.

    Parameters
    ----------
    base : DeepGP
        A model of one layer. Its outputs share a kernel, which is a sum whose first kernel is stationary.
    likelihood : Likelihood
        Likelihood of the blend. Its targets have the same units as those of the members.
    weight : float, or Tensor of shape (1,) or (D,)
        w, one for all function values of the deep GP or one for each.
    edge : float
        r₀.
    spread : float
        v₀, the mean over outputs.
    noise : DeepGP, default=None
        The base of function values that ``base`` does not have: of the logarithms of variances, if noise varies.
    """

    weight: Tensor
    edge: Tensor
    spread: Tensor
    noise: DeepGP | None

    def __init__(
        self,
        base: DeepGP,
        likelihood: Likelihood,
        *,
        weight: float | Tensor,
        edge: float,
        spread: float,
        noise: DeepGP | None = None,
    ):
        super().__init__()
        self.base, self.likelihood = base, likelihood
        self.add_module("noise", noise)
        self.register_buffer("weight", torch.as_tensor(weight, dtype=torch.float64, device="cpu").reshape(-1).clone())
        for name, value in {"edge": edge, "spread": spread}.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64, device="cpu"))

    def frozen(self, *, turned: bool = False) -> "Blend":
        """A copy that is faster in many calls; see :meth:`.Layer.frozen`."""
        parts = {"base": self.base, "noise": self.noise}
        return with_parts(self, **{name: part.frozen(turned=turned) for name, part in parts.items() if part is not None})

    def of_base(self, X: Tensor) -> Marginals:
        """Marginals of g at rows X (B, Q), of all function values that a base knows."""
        base = self.base(X)
        if self.noise is None:
            return base
        noise = self.noise(X)
        return base._replace(
            mean=torch.cat([base.mean, noise.mean], dim=-1), variance=torch.cat([base.variance, noise.variance], dim=-1)
        )

    def share(self, X: Tensor, base: Marginals) -> Tensor:
        """Weights t (B, 1 or D) of the deep GP at rows X (B, Q), from the base's marginals there."""
        own = base.variance[0, :, : self.likelihood.n_targets]  # without the base of the noise
        near = near_data(nearness(self.base, X), own, self.edge, self.spread)
        return self.weight.reshape(-1).to(near) * near  # a single number in files of earlier versions

    def joined(self, t: Tensor, deep: Marginals, base: Marginals) -> Marginals:
        """Marginals of f from those of h, a mixture of Gaussians, and those of g, one Gaussian; t is (B, 1 or D)."""
        t = t.to(deep.mean)
        g_mean, g_variance = (like_deep(g.to(deep.mean), deep.mean) for g in (base.mean, base.variance))
        mean = t * deep.mean + (1 - t) * g_mean
        return deep._replace(mean=mean, variance=t.square() * deep.variance + (1 - t).square() * g_variance)

    def draw(self, deep: DeepGP, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], Tensor]:
        """Functions of f, one for each stream; see :meth:`.DeepGP.draw`."""
        parts = [self.base.draw(streams)]
        h = deep.draw(streams, of_rows=of_rows)
        if self.noise is not None:
            parts.append(self.noise.draw(streams))

        def function(X: Tensor) -> Tensor:
            t, values = self.share(X, self.of_base(X)).to(X), h(X)
            g = torch.cat([part(X) for part in parts], dim=-1)
            return t * values + (1 - t) * like_deep(g, values)

        return function

    def covariance(self, deep: DeepGP, X: Tensor, streams: Streams, response: Response | None = None) -> Tensor:
        """Joint covariances of f; see :meth:`.DeepGP.covariance`."""
        base = self.of_base(X)
        t = self.share(X, base).to(X).mT[..., None]  # (1 or D, B, 1)
        parts = [self.base] if self.noise is None else [self.base, self.noise]
        g = torch.cat([part.covariance(X, streams) for part in parts])  # (P or D, B, B)

        def joined(h: Tensor) -> Tensor:
            padded = like_deep(g.movedim(0, -1), h.movedim(0, -1)).movedim(-1, 0)
            return t * t.mT * h + (1 - t) * (1 - t).mT * padded

        if response is None:
            return joined(deep.covariance(X, streams))

        def of_both(mean: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            g_mean = like_deep(base.mean[0], mean.mT).mT  # (D, B)
            return response(t[..., 0] * mean + (1 - t[..., 0]) * g_mean, joined(h))

        return deep.covariance(X, streams, of_both)


def nearness(base: DeepGP, X: Tensor) -> Tensor:
    """Largest correlations r (B, 1) of rows X (B, Q) with an inducing point of the base."""
    [Z] = base.inducing_points()
    smooth = cast(SumKernel, base.layers[0].kernel).kernels[0]
    return smooth.relative_covariance(Z, X.to(Z)).flatten(0, -2).amax(0)[:, None]


def near_data(correlation: Tensor, variance: Tensor, edge: Tensor | float, spread: Tensor | float) -> Tensor:
    """t/w, (B, 1), from r (B, 1) and v (B, P). r counts only if r₀ is at least ``LEAST_EDGE``."""
    certainty = (spread / variance.mean(-1, keepdim=True)).clamp(max=1.0).square()
    edge = edge.to(correlation) if isinstance(edge, Tensor) else correlation.new_full((), edge)
    return certainty * torch.where(edge >= LEAST_EDGE, (correlation / edge.clamp(min=LEAST_EDGE)).clamp(max=1.0), 1.0)


def like_deep(base: Tensor, deep: Tensor) -> Tensor:
    """Numbers (..., P) of the base, with zeros appended for function values (..., D) that only the deep GP has."""
    return nn.functional.pad(base, (0, deep.shape[-1] - base.shape[-1]))
