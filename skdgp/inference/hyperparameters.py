"""Kernels and noises that a few rows leave possible, drawn from their posterior.

The most likely kernel predicts as if it was known. With thirty rows of six features it is not: its intervals then hold
half of what they promise. So predictions are averages over draws θ from p(θ | y) ∝ p(y | θ) p(θ), where θ are the
logarithms of lengthscales, variances and noise. Draws come from *importance sampling*. Proposals are Student t around
the mode, with the curvature there (Laplace's approximation), some of them twice as wide. The weights are

    w_k ∝ p(y | θ_k) p(θ_k) / q(θ_k),        q the mixture of both widths,

cut off where single ones are far above the mean (Ionides, 2008). Proposals are spread evenly, so that few of them do,
and so that nothing is random.

With ten hyperparameters or more the posterior may be so unlike its approximation that a single proposal has nearly all
of the weight. Then weights are *tempered*: raised to a power below one, so that several proposals count (Koblents and
Míguez, "A Population Monte Carlo Scheme with Transformed Weights", Statistics and Computing 2015). Proposals that are
too unlikely for draws from the posterior have no weight.
"""

import math
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from ..gp.kernels import Kernel, ScaledKernel, StationaryKernel, SumKernel, gamma_quantiles
from ..gp.likelihoods import Gaussian
from ..gp.special import LOG_2PI
from ..gp.waves import Streams, spread
from .evidence import Observations, telling
from .threads import threads_for

#: Number of proposals.
PROPOSALS = 256

#: Widths of proposals, relative to Laplace's approximation. Two of them covered more than one, or an adaptive width.
WIDTHS = (1.0, 2.0)

#: Degrees of freedom of proposals. Flat directions need heavy tails.
FREEDOM = 5.0

#: Largest deviation of a proposal in any direction: about that of the prior, where rows say nothing.
WIDEST = 2.0

#: Deviation of the prior of the logarithms of variances and of the noise's excess. It is Gaussian around the most
#: likely values, and only keeps draws from going anywhere where rows say nothing.
DEVIATION = 3.0

#: The same for the variance of the smooth function. A few rows often make a function of no variance most likely, and
#: they see a part of what a function does. So the centre is at least so many times the variance of the targets.
SMOOTH_DEVIATION, LARGER = 2.0, math.e**2

#: The noise's excess of a table about which nothing is known, as a share of the variance of the targets, and the number
#: of rows that this knowledge counts for. A few rows often make no noise most likely, if they happen to lie on a line.
USUAL_NOISE, USUAL_ROWS = 0.05, 10

#: Step of the differences of gradients that give the curvature.
STEP = 1e-2

#: The search for the mode starts from the most likely values, rounded to so many digits. Where they end depends on
#: rounding errors, and draws shall not.
DIGITS = 1

#: Largest number of its steps.
MODE_STEPS = 10

#: Smallest effective number of proposals, (Σ w)²/Σ w², with which weights stay as they are.
FEWEST_EFFECTIVE = 1.5

#: The number that tempered weights have, or half that of the plausible proposals.
TEMPERED_EFFECTIVE = 20.0

#: Where a Gaussian of d dimensions has its draws, the logarithm of its density is lower than at its mode by d/2 on
#: average, with the deviation √(d/2). A proposal is plausible up to so many of these deviations below this average.
PLAUSIBLE_DEVIATIONS = 3.0

#: Fewer plausible proposals than these say nothing of what is possible.
FEWEST_PLAUSIBLE = 5

#: Weights are not tempered if the noise is below this share of the targets' variance. Many rows of an exact function
#: tell it well, and a draw that tempering makes possible would be far worse than the most likely kernel.
LEAST_NOISE = 1e-6

#: How often the interval is halved in which the power is.
BISECTIONS = 30

#: Smallest variance of targets. They may all be zero.
TINY = 1e-10

#: Number of entries of the covariances that are computed at a time: 32 MiB.
AT_A_TIME = 2**22


class HyperparameterPosterior:
    """The posterior of a kernel and its noise, given some observations.

    Parameters
    ----------
    kernel : SumKernel
        The most likely kernel, of one output: a sum of a stationary and of other scaled kernels.
    likelihood : Gaussian
        The most likely noise.
    observed : Observations
        Rows of float64.
    """

    def __init__(self, kernel: SumKernel, likelihood: Gaussian, observed: Observations):
        self.kernel, self.likelihood, self.observed, rows = kernel, likelihood, observed, observed.rows
        self.trial = deepcopy(kernel)  # a copy for each density would take as long as the density of few rows
        self.places = _places(self.trial)
        parts = [part.detach().flatten() for part in _parameters(kernel, likelihood)]
        self.sizes = [len(part) for part in parts]
        self.start = torch.round(torch.cat(parts), decimals=DIGITS)
        free = [
            torch.full_like(part, name != "log_lengthscale")
            for part, (_, name) in zip(parts, _places(kernel), strict=False)
        ]
        free += [torch.ones_like(part) for part in parts[len(free) :]]  # of the noise
        self.free = torch.cat(free).bool()  # (d,), what is no lengthscale
        self.n_noises = 0 if likelihood.fixed else self.sizes[-1]
        self.centre = self.start[self.free]
        self.size = ((rows.weight @ rows.y.square()).mean() / rows.weight.sum()).clamp(min=TINY)
        size = self.size.log()
        self.centre[0] = torch.maximum(self.centre[0], size + math.log(LARGER))
        known = observed.number / (observed.number + USUAL_ROWS)
        noise = self.centre[len(self.centre) - self.n_noises :]
        noise.copy_(known * noise + (1 - known) * (size + math.log(USUAL_NOISE)))
        self.deviation = torch.full_like(self.centre, DEVIATION)
        self.deviation[0] = SMOOTH_DEVIATION

    def log_density(self, theta: Tensor) -> Tensor:
        """log p(y | θ) p(θ) (S,) up to a constant, for logarithms θ (S, d); −∞ where it cannot be computed."""
        kernel, likelihood = self._at(theta)
        noise = likelihood.variance.expand(len(theta), -1)  # (S, P or 1)
        if self.n_noises:
            noise = likelihood.floor + torch.exp(theta[:, -self.n_noises :])
        noise, (rows, within, number, _) = telling(noise, self.observed)
        n_rows, n_outputs = rows.y.shape
        K = kernel.covariance(rows.X, rows.X)  # (S, n, n)
        shared = noise.shape[1] == 1
        K = K[:, None] + torch.diag_embed(noise[..., None] / rows.weight)  # (S, P or 1, n, n)
        L, failed = torch.linalg.cholesky_ex(K)
        columns = rows.y[None, None] if shared else rows.y.mT[None, ..., None]  # (1, 1, n, P) or (1, P, n, 1)
        solved = torch.linalg.solve_triangular(L, columns.expand(*L.shape[:2], -1, -1), upper=False)
        log_determinant = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (S, P or 1)
        copies = n_outputs if shared else 1
        density = -0.5 * (solved.square().sum((-3, -2, -1)) + copies * log_determinant.sum(-1))
        apart = number - n_rows
        density = density - 0.5 * ((within / noise).sum(-1) + apart * copies * (LOG_2PI + noise.log()).sum(-1))
        free = (theta[:, self.free] - self.centre) / self.deviation
        of_lengths = [part.log_prior_of_each() for part in kernel.kernels if isinstance(part, StationaryKernel)]
        prior = torch.stack(of_lengths).sum(0) - 0.5 * free.square().sum(-1)
        total = density + prior
        return torch.where((failed > 0).any(-1) | ~total.isfinite(), -math.inf, total)

    @torch.no_grad()
    def draws(self, number: int) -> list[tuple[SumKernel, Gaussian]]:
        """Kernels and noises, each of which counts the same.

        They are all the most likely ones if hardly any proposal has a density that counts, and weights cannot be
        tempered. This happens with many rows of an exact function, where rounding errors decide how likely a kernel is.
        """
        theta, log_q, mode = self._proposals()
        log_p = self._by_parts(theta)
        weight = _weights(log_p - log_q)
        if _effective_number(weight) > FEWEST_EFFECTIVE:  # not if there is no density at all
            weight = weight.clamp(max=weight.mean() * math.sqrt(len(weight)))
        else:
            theta, weight = self._tempered(theta, log_p, log_q, mode)
        if not len(theta):
            return [(deepcopy(self.kernel), deepcopy(self.likelihood)) for _ in range(number)]
        steps = weight.cumsum(0) / weight.sum()
        at = (torch.arange(number, dtype=steps.dtype, device=steps.device) + 0.5) / number
        chosen = theta[torch.searchsorted(steps, at).clamp(max=len(theta) - 1)]
        return [self._one(vector) for vector in chosen]

    def _tempered(self, theta: Tensor, log_p: Tensor, log_q: Tensor, mode: Tensor) -> tuple[Tensor, Tensor]:
        """The plausible ones (T, d) of some proposals, and their tempered weights (T,); none if these tell nothing."""
        half = 0.5 * len(mode)
        least = self._by_parts(mode[None]) - half - PLAUSIBLE_DEVIATIONS * math.sqrt(half)
        plausible = log_p > least
        number = int(plausible.sum())
        if number < FEWEST_PLAUSIBLE or self.likelihood.variance.min() < LEAST_NOISE * self.size:
            return theta[:0], log_p[:0]
        return theta[plausible], _levelled((log_p - log_q)[plausible], min(TEMPERED_EFFECTIVE, 0.5 * number))

    def _proposals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Proposals (S, d), evenly spread, the logarithms (S,) of their density up to a constant, and the mode (d,)."""
        mode = self._mode(self._laplace(self.start))
        root, n_dims = self._laplace(mode), len(mode)
        points = spread(Streams([0], mode.device), 1, PROPOSALS, n_dims + 1)[0, 0].to(mode)
        normal = torch.special.ndtri(points[:, 1:])
        gamma = gamma_quantiles(0.5 * FREEDOM, points[:, 0])
        widths = mode.new_tensor(WIDTHS)
        width = widths[torch.arange(PROPOSALS, device=mode.device) % len(WIDTHS)]
        standard = normal * (width / gamma.sqrt())[:, None]
        squares = standard.square().sum(-1, keepdim=True)  # (S, 1)
        log_t = -0.5 * (FREEDOM + n_dims) * (squares / (FREEDOM * widths.square())).log1p() - n_dims * widths.log()
        return mode + standard @ root.mT, log_t.logsumexp(-1), mode

    def _mode(self, root: Tensor) -> Tensor:
        """The mode (d,), by steps of Newton's method with the curvature at the start, whose inverse has this root."""
        theta, density = self.start, self._by_parts(self.start[None])
        for _ in range(MODE_STEPS):
            slope = self._by_parts(theta[None], slopes=True)[0].nan_to_num()
            later = theta + root @ (root.mT @ slope).clamp(-1.0, 1.0)  # at most a deviation in any direction
            denser = self._by_parts(later[None])
            if not denser > density:
                break
            theta, density = later, denser
        return theta

    def _laplace(self, theta: Tensor) -> Tensor:
        """A root (d, d) of the covariance that Laplace's approximation has at a place (d,)."""
        values, directions = torch.linalg.eigh(self._curvature(theta))
        return directions * values.clamp(min=WIDEST**-2).rsqrt()

    def _curvature(self, theta: Tensor) -> Tensor:
        """Minus the matrix (d, d) of second derivatives at a place (d,), by central differences of gradients."""
        steps = STEP * torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        slopes = self._by_parts(torch.cat([theta + steps, theta - steps]), slopes=True)
        forward, backward = slopes.chunk(2)
        curvature = (backward - forward) / (2 * STEP)
        curvature = 0.5 * (curvature + curvature.mT)
        known = curvature.isfinite().all(-1)
        return torch.where(known[:, None] & known, curvature, torch.zeros_like(curvature))

    def _by_parts(self, theta: Tensor, *, slopes: bool = False) -> Tensor:
        """Log densities (S,), or their gradients (S, d), of some vectors at a time."""
        size = len(self.observed.rows) ** 2 * max(1, self.n_noises)
        parts = []
        with threads_for(len(theta) * len(self.observed.rows) ** 3 / 3):
            for some in theta.split(max(1, AT_A_TIME // size)):
                if not slopes:
                    parts.append(self.log_density(some))
                    continue
                with torch.enable_grad():
                    free = some.detach().requires_grad_()
                    parts.append(torch.autograd.grad(self.log_density(free).sum(), free)[0])
        return torch.cat(parts)

    def _at(self, theta: Tensor) -> tuple[SumKernel, Gaussian]:
        """A kernel whose outputs have the parameters of θ (S, d); the likelihood keeps its own."""
        _set_outputs(self.trial, len(theta))
        for (module, name), value in zip(self.places, theta.split(self.sizes, dim=-1), strict=False):
            module._parameters.pop(name, None)
            setattr(module, name, value if name == "log_lengthscale" else value[:, 0])
        return self.trial, self.likelihood

    def _one(self, vector: Tensor) -> tuple[SumKernel, Gaussian]:
        """Kernel and noise with these logarithms (d,)."""
        kernel, likelihood = deepcopy(self.kernel), deepcopy(self.likelihood)
        for parameter, value in zip(_parameters(kernel, likelihood), vector.split(self.sizes), strict=True):
            parameter.copy_(value.reshape(parameter.shape))
        return kernel, likelihood


def _weights(log_weight: Tensor) -> Tensor:
    """Weights (S,), of which the largest is 1; NaN if all logarithms are −∞."""
    return (log_weight - log_weight.max()).exp()


def _effective_number(weight: Tensor) -> float:
    """How many proposals of equal weight would tell as much: (Σ w)²/Σ w²."""
    return (weight.sum().square() / weight.square().sum()).item()


def _levelled(log_weight: Tensor, effective: float) -> Tensor:
    """Weights (S,) to the largest power of at most 1 with which so many of them are effective."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):  # the effective number falls as the power rises, from S
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _effective_number(_weights(middle * log_weight)) >= effective else (low, middle)
    return _weights(low * log_weight)


def _places(kernel: SumKernel) -> list[tuple[nn.Module, str]]:
    """Modules and names of a kernel's parameters."""
    return [(part, name) for part in kernel.kernels for name, _ in part.named_parameters(recurse=False)]


def _parameters(kernel: SumKernel, likelihood: Gaussian) -> list[nn.Parameter]:
    """What is uncertain: noise that is given is not."""
    noise = [] if likelihood.fixed else [likelihood.log_excess]
    return [*(getattr(module, name) for module, name in _places(kernel)), *noise]


def _set_outputs(kernel: Kernel, number: int) -> None:
    """Let a kernel have this number of outputs."""
    for part in (kernel, *(cast(ScaledKernel, part) for part in cast(SumKernel, kernel).kernels)):
        part.n_outputs = number
