"""Functions drawn from a stationary prior, as sums of waves (random Fourier features; Rahimi and Recht, 2007).

A stationary kernel k(x − x') is the characteristic function of its spectral density. With F frequencies ω from that
density, and a and b standard normal,

    g(x) = F^(−1/2) Σ_f a_f cos(ω_f·x) + b_f sin(ω_f·x)

has zero mean, unit variance everywhere, and the covariance F⁻¹ Σ_f cos(ω_f·(x − x')). Every draw has frequencies of its
own. Over draws, mean and covariance are therefore exactly those of the prior, however few the waves are. One draw,
given its frequencies, is a Gaussian process whose correlations have errors of about F^(−1/2). Frequencies that are
spread evenly make these errors smaller.

A posterior without noise needs more. Near the data all that is left of the prior are waves of high frequencies. Of
these a Matérn kernel has few, so that one draw has none and another has several: values would lie tens of deviations
from their mean now and then. So half of the frequencies are drawn mostly from the tail (:func:`more_of_the_tail`), and
each wave has a weight w, the ratio of the density that frequencies should have and the density that they have:

    g(x) = F^(−1/2) Σ_f √w_f (a_f cos(ω_f·x) + b_f sin(ω_f·x))

Over draws, mean and covariance are still exact.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

#: Number of cosines whose sum is a function, for each kernel. There are as many frequencies, or half as many if outputs
#: share a kernel.
N_WAVES = 512

#: Share of the frequencies that come mostly from the tail. With one half, no weight is larger than two.
TAIL_SHARE = 0.5

#: Power of uniform numbers that makes frequencies come mostly from the tail.
TAIL_POWER = 6.0

#: Number of inputs whose waves are computed at a time, so that they stay in the processor's cache.
INPUTS_AT_A_TIME = 240

#: Uniform numbers keep this distance from 0 and 1, where a quantile may be infinite.
_EDGE = 1e-12

#: Functions of S draws: from inputs (S, N, Q), or (1, N, Q) if all draws have the same, to values (S, N, D).
Functions = Callable[[Tensor], Tensor]


class UndrawnError(ValueError):
    """Functions cannot be drawn from a kernel or a layer."""


class Streams:
    """A stream of random numbers for each of S draws, so that a draw does not depend on the others.

    Numbers are drawn on the CPU, in float64, so that a seed means the same everywhere.

    Parameters
    ----------
    seeds : sequence of int
        One for each draw.
    device : torch.device, default="cpu"
        Where the numbers are wanted.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu"):
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        self.device = device

    def __len__(self) -> int:
        return len(self.generators)

    def only(self, index: Sequence[int]) -> "Streams":
        """Some of the streams. Numbers that they draw are no longer drawn by these."""
        some = Streams([], self.device)
        some.generators = [self.generators[place] for place in index]
        return some

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers (S, *shape)."""
        return self._stack(torch.randn, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between 0 and 1, (S, *shape)."""
        return self._stack(torch.rand, shape)

    def choice(self, probability: Tensor) -> Tensor:
        """For each draw a random number from 0 on, with these probabilities, (S,)."""
        steps = probability.double().cumsum(0)
        return torch.searchsorted(steps, self.uniform() * steps[-1], right=True).clamp_(max=len(probability) - 1)

    def _stack(self, draw, shape) -> Tensor:
        numbers = [draw(shape, generator=generator, dtype=torch.float64, device="cpu") for generator in self.generators]
        return torch.stack(numbers).to(self.device)


def weighed_rows(X: Tensor, w: Tensor) -> Tensor:
    """Sums Σ_q x_q w_q (S, D, N) of rows X (S or 1, D or 1, N, Q) with weights w (S, D, Q).

    A row gets the same digits among any number of others, which matrix products do not promise. Functions are computed
    one after another, since all of them together would take much memory.
    """
    sets = X.expand(len(w), -1, -1, -1)
    return torch.stack([(rows * w_s[:, None]).sum(-1) for rows, w_s in zip(sets, w, strict=True)])


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
def _even_points(n_points: int, n_dims: int) -> Tensor:
    """The first points of Sobol's sequence, which cover the cube [0, 1]^n_dims evenly."""
    return SobolEngine(n_dims).draw(n_points, dtype=torch.float64)


def spread(streams: Streams, n_sets: int, n_points: int, n_dims: int) -> Tensor:
    """Random points (S, n_sets, n_points, n_dims) that cover the cube [0, 1]^n_dims more evenly than chance would.

    Even points, all moved by the same random vector and wrapped around (Cranley and Patterson, 1976). Each of them is
    uniform in the cube, so that a mean over them has the expectation of a mean over independent points.
    """
    if n_dims > SobolEngine.MAXDIM:
        return streams.uniform(n_sets, n_points, n_dims).clamp_(_EDGE, 1 - _EDGE)
    points = _even_points(n_points, n_dims).to(streams.device) + streams.uniform(n_sets, 1, n_dims)
    return points.remainder_(1.0).clamp_(_EDGE, 1 - _EDGE)


def more_of_the_tail(points: Tensor) -> tuple[Tensor, Tensor]:
    """Points of which some are moved towards a first coordinate u of zero, and weights that make up for it.

    Matérn kernels have high frequencies there. The share s of the points is moved from u to uᵖ. So u has the density
    1 − s + s/p u^(1/p − 1), and weights are its reciprocals.

    Parameters
    ----------
    points : Tensor of shape (S, K, F, dims)
        Uniform in the cube.

    Returns
    -------
    points : Tensor of shape (S, K, F, dims)
    weight : Tensor of shape (S, K, F)
        At most 1/(1 − s).
    """
    u = points[..., 0].clone()
    u[..., : int(TAIL_SHARE * u.shape[-1])].pow_(TAIL_POWER).clamp_(min=_EDGE)
    density = 1 - TAIL_SHARE + TAIL_SHARE / TAIL_POWER * u.pow(1 / TAIL_POWER - 1)
    return torch.cat([u[..., None], points[..., 1:]], dim=-1), density.reciprocal()


def waves(streams: Streams, frequencies: Tensor, n_outputs: int, weight: Tensor | None = None) -> Functions:
    """Functions drawn from stationary priors of unit variance.

    Parameters
    ----------
    streams : Streams
        S of them.
    frequencies : Tensor of shape (S, K, F, Q)
        From the spectral densities of K kernels.
    n_outputs : int
        D, number of functions in a draw, which are independent. With K = 1 all have the same kernel; otherwise D is K.
    weight : Tensor of shape (S, K, F), default=ones
        Weights of the frequencies, if they do not have the spectral density.

    Returns
    -------
    callable
        From (S or 1, N, Q) to (S, N, D).
    """
    _, n_kernels, n_frequencies, _ = frequencies.shape
    weight = torch.ones_like(frequencies[..., 0]) if weight is None else weight
    if n_outputs == n_kernels:
        # a cos t + b sin t is one cosine, with a random phase and the amplitude √(a² + b²).
        phase = 2 * math.pi * streams.uniform(n_kernels, n_frequencies, 1)
        amplitude = (-2.0 * streams.uniform(n_kernels, 1, n_frequencies).clamp_(min=1e-300).log()).sqrt()
        wave_weight = weight[:, :, None]
    else:  # cosines and sines for all outputs, each output with amplitudes of its own
        phase = frequencies.new_tensor([0.0, -0.5 * math.pi]).repeat_interleave(n_frequencies)
        phase = phase[:, None].expand(len(streams), 1, -1, -1)
        frequencies = torch.cat([frequencies, frequencies], dim=-2)
        amplitude = streams.normal(n_kernels, n_outputs, 2 * n_frequencies)
        wave_weight = weight.repeat(1, 1, 2)[:, :, None]
    draws = list(zip(frequencies, phase, amplitude * (wave_weight / n_frequencies).sqrt(), strict=True))

    def values(x: Tensor) -> Tensor:
        inputs = x.mT.expand(len(draws), -1, -1)  # (S, Q, N)
        return torch.stack([_sum_of_waves(*draw, x_s) for draw, x_s in zip(draws, inputs, strict=True)]).mT

    return values


def _sum_of_waves(frequencies: Tensor, phase: Tensor, amplitude: Tensor, x: Tensor) -> Tensor:
    """Values (D, N) of one draw at inputs (Q, N).

    Rows come last. The result for a row in a matrix product then does not depend on its place among the rows.
    """
    parts = []
    for inputs in x.split(INPUTS_AT_A_TIME, dim=-1):
        angle = torch.baddbmm(phase, frequencies, inputs.expand(len(frequencies), -1, -1))  # (K, F, n)
        wave = angle.cos() if torch.is_grad_enabled() else angle.cos_()
        parts.append((amplitude @ wave).flatten(0, 1))
    return torch.cat(parts, dim=-1)
