"""A kernel of second-order interactions: its functions are sums of functions of two quantities each.

    k(x, x') = σ² / (G(G−1)/2) Σ_{g<h} κ_g κ_h,        κ_g = profile(‖x_g − x'_g‖ / ℓ_g)

A quantity g is an input, or a group of inputs that stand for a single feature (Duvenaud, Nickisch and Rasmussen,
NeurIPS 2011, of order two). Rows need not be near each other to be alike: it is enough if two quantities are. So a
function of many features that is such a sum is learnt from far fewer rows than by a kernel of all distances together.

The sum over pairs takes no more than the G numbers κ_g: with s = Σ κ_g and q = Σ κ_g² it is (s² − q)/2.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd import Function
from .correlations import (
    AT_A_TIME,
    FARTHEST,
    Profile,
    cancels_in_float64,
    correlation,
    distances,
    largest_square,
    summed_differences,
)
from .devices import at_a_time, constant
from .kernels import PRIOR_SHIFT, PROFILES, StationaryKernel, gamma_quantiles

#: Quantities of more inputs than this have distances from matrix products, unless these are too coarse. The levels of a
#: category are such inputs.
WIDE = 4

#: Such inputs are no larger than this number of lengthscales, so that their squares are finite.
LARGEST = 1e8

#: Indices of a block of covariances: of the sets, the first rows and the second rows.
Block = tuple[slice, slice, slice]


class InteractionKernel(StationaryKernel):
    """The mean of the products of two stationary kernels over all pairs of quantities; see the module's docstring.

    Parameters and attributes are those of :class:`.StationaryKernel` with a lengthscale for each quantity.

    Parameters
    ----------
    profile : {"rbf", "matern12", "matern32", "matern52"}
        Name of the profile.
    n_inputs : int
        Q, dimension of x.
    ard : True or sequence of int, default=True
        Groups of inputs, of which each has a lengthscale. There must be two of them or more.
    variance : float, default=1.0
        Initial σ².
    """

    def __init__(self, profile: str, n_inputs: int, *, ard=True, variance: float = 1.0):
        super().__init__(profile, n_inputs, ard=ard, lengthscale=1.0, variance=variance)

    def log_prior_of_each(self) -> Tensor:
        """Log density (D,) of the prior log ℓ − ½ ~ Cauchy(0, 1), which is that of kernels of one quantity."""
        return -(self.log_lengthscale - PRIOR_SHIFT).square().log1p().sum(-1)

    def relative_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Correlations (..., D, N1, N2)."""
        profile = PROFILES[self.profile]
        scale = (profile.rate * self.inverse_square.sqrt()).unsqueeze(-2)  # (D, 1, Q)
        U1, U2 = X1.unsqueeze(-3) * scale, X2.unsqueeze(-3) * scale
        if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():  # blocks are no use to them
            return _mean_of_products(self._at_once(U1, U2, profile))
        return _MeanOfProducts.apply(U1, U2, profile, self._quantities(U1), X1 is X2)

    def _at_once(self, U1: Tensor, U2: Tensor, profile: Profile) -> Tensor:
        """All κ (..., G, N1, N2) of rows in units of ℓ/c."""
        if self.groups is None:
            return correlation(U1.mT[..., None], U2.mT[..., None], profile)
        columns = [[c for c, group in enumerate(self.groups) if group == g] for g in range(self.n_quantities)]
        return torch.stack([correlation(U1[..., c], U2[..., c], profile) for c in columns], dim=-3)

    def _quantities(self, like: Tensor) -> "_Quantities":
        """The inputs of each quantity, for rows (..., N, Q) in units of ℓ/c."""
        if self.groups is None:
            return _Quantities(self.n_quantities)
        columns = [[c for c, group in enumerate(self.groups) if group == g] for g in range(self.n_quantities)]
        some = [inputs for inputs in columns if len(inputs) <= WIDE]
        single = all(len(inputs) == 1 for inputs in some)
        numbers = [number for number, inputs in enumerate(some) for _ in inputs]
        return _Quantities(
            self.n_quantities,
            constant([c for inputs in some for c in inputs], like, torch.long),
            None if single else constant(numbers, like, torch.long),
            [constant(inputs, like, torch.long) for inputs in columns if len(inputs) > WIDE],
            [cancels_in_float64(like, largest_square(like[..., c])) for c in columns if len(c) > WIDE],
        )

    def dims(self, n_inputs: int) -> int:
        """One for each input, one for the pair, and one for each of its two mixtures of Gaussians."""
        return n_inputs + 3

    def frequencies(self, points: Tensor) -> Tensor:
        """Frequencies (..., D, F, Q) from the spectral density, given uniform ``points`` (..., D, F, Q + 3).

        The second of the points chooses two quantities, in one of the two orders. Each of them has a precision of its
        own, if the profile is a mixture of Gaussians. All others have the frequency zero.
        """
        groups, number = _numbers(self, points), self.n_quantities
        pair = (points[..., 1] * number * (number - 1)).long().clamp(max=number * (number - 1) - 1)
        first, other = pair // (number - 1), pair % (number - 1)
        second = other + (other >= first)
        root = torch.zeros_like(points[..., 3:])
        nu = PROFILES[self.profile].nu
        for chosen, point in ((first, points[..., 0]), (second, points[..., 2])):
            precision = gamma_quantiles(nu, point) if math.isfinite(nu) else torch.ones_like(point)
            root += torch.where(groups == chosen[..., None], precision.rsqrt()[..., None], 0.0)
        return torch.special.ndtri(points[..., 3:]) * root / self.lengthscale[:, None]

    def gradient_variance(self, n_inputs: int) -> Tensor | None:
        """Those of a stationary kernel over G/2, since a quantity is in G − 1 of G(G − 1)/2 pairs."""
        variance = super().gradient_variance(n_inputs)
        return None if variance is None else variance * (2 / self.n_quantities)


class _Quantities(NamedTuple):
    """The inputs of each of G quantities. Those of few inputs come first, and then the wide ones."""

    number: int  # G
    narrow: Tensor | None = None  # inputs of quantities that are not wide; None for all inputs
    groups: Tensor | None = None  # the quantity of each of these inputs; None if each has one of its own
    wide: Sequence[Tensor] = ()  # inputs of each wide quantity
    far: Sequence[bool] = ()  # whether products are too coarse for it

    @property
    def n_narrow(self) -> int:
        """Number of quantities that are not wide."""
        return self.number - len(self.wide)

    def by_input(self, U: Tensor) -> Tensor:
        """Rows (L, N, Q) input by input, (L, Q, N), without those of wide quantities.

        Differences have the same layout then. In that of rows sums over quantities, or over rows, are slow.
        """
        return (U if self.narrow is None else U[..., self.narrow]).mT.contiguous()

    def of_wide(self, U1: Tensor, U2: Tensor) -> list[Tensor]:
        """Distances (L, N1, N2) of all rows by each wide quantity."""
        return [
            distances(U1[..., inputs], U2[..., inputs]) if far else _distances(U1[..., inputs], U2[..., inputs])
            for inputs, far in zip(self.wide, self.far, strict=True)
        ]

    def distances(self, difference: Tensor, of_wide: Sequence[Tensor]) -> Tensor:
        """Distances (l, G, n1, n2) of some rows, which are no larger than what makes correlations zero."""
        if self.groups is None:
            narrow = difference.abs()
        else:
            squares = difference.new_zeros(len(difference), self.n_narrow, *difference.shape[2:])
            narrow = squares.index_add_(1, self.groups, difference.square()).sqrt_()
        together = torch.cat([narrow, *(part[:, None] for part in of_wide)], dim=1) if of_wide else narrow
        return together.clamp_(max=FARTHEST)


def _distances(u1: Tensor, u2: Tensor) -> Tensor:
    """Distances (l, n1, n2) of rows (l, n1, q) and (l, n2, q) by products in float64."""
    dtype, (u1, u2) = u1.dtype, (u.double().clamp(-LARGEST, LARGEST) for u in (u1, u2))
    squares = u1.square().sum(-1)[..., None] + u2.square().sum(-1)[..., None, :]
    return squares.baddbmm_(u1, u2.mT, alpha=-2.0).clamp_(min=0.0).sqrt_().to(dtype)


class _MeanOfProducts(Function):
    """The correlations (..., N1, N2) of rows in units of ℓ/c, U1 (..., N1, Q) and U2 (..., N2, Q).

    With dκ = −h d(a²)/2 the derivative by the difference d of an input of quantity g is −2 (s − κ_g) h_g d / (G(G−1)).
    Blocks are computed twice, for the value and for the gradient, since keeping all κ_g would take G times the memory.
    """

    @staticmethod
    def forward(ctx, U1: Tensor, U2: Tensor, profile: Profile, quantities: _Quantities, same: bool) -> Tensor:
        lead = np.broadcast_shapes(U1.shape[:-2], U2.shape[:-2])  # torch's imports SymPy
        ctx.profile, ctx.quantities, ctx.same = profile, quantities, same
        ctx.lead, ctx.shapes = lead, (U1.shape, U2.shape)
        U1, U2 = (U.expand(*lead, *U.shape[-2:]).flatten(0, -3) for U in (U1, U2))
        of_wide = quantities.of_wide(U1, U2)
        ctx.save_for_backward(U1, U2, *of_wide)
        V1, V2 = quantities.by_input(U1), quantities.by_input(U2)
        K = U1.new_empty(len(U1), U1.shape[-2], U2.shape[-2])
        for block in _blocks(K, quantities, U1.shape[-1], same):
            which, rows, columns = block
            difference = V1[which, :, rows, None] - V2[which, :, None, columns]  # (l, Q, n1, n2)
            distances = quantities.distances(difference, [part[which, rows, columns] for part in of_wide])
            kappa, _ = profile.evaluate(distances.neg_())
            K[which, rows, columns] = part = _mean_of_products(kappa)
            if same:
                K[which, columns, rows] = part.mT
        return K.reshape(*lead, *K.shape[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx, bar: Tensor) -> tuple[Tensor | None, ...]:
        U1, U2, *of_wide = ctx.saved_tensors
        bar, bars = bar.reshape(len(U1), U1.shape[1], U2.shape[1]), [torch.zeros_like(U1), torch.zeros_like(U2)]
        quantities = ctx.quantities
        V1, V2 = quantities.by_input(U1), quantities.by_input(U2)
        narrow = slice(None) if quantities.narrow is None else quantities.narrow
        factor = 2.0 * ctx.profile.slope / (quantities.number * (quantities.number - 1))
        inner_of_wide = [torch.zeros_like(bar) for _ in quantities.wide]
        for block in _blocks(bar, quantities, U1.shape[-1], ctx.same):
            which, rows, columns = block
            difference = V1[which, :, rows, None] - V2[which, :, None, columns]  # (l, Q, n1, n2)
            distances = quantities.distances(difference, [part[which, rows, columns] for part in of_wide])
            kappa, h = ctx.profile.evaluate(distances.neg_())
            h = kappa if h is None else h
            outer = factor * _summed_bar(bar, block) if ctx.same else factor * bar[which, rows, columns]
            inner = (kappa.sum(1, keepdim=True) - kappa).mul_(h).mul_(outer[:, None])
            for number, whole in enumerate(inner_of_wide, quantities.n_narrow):
                whole[which, rows, columns] = inner[:, number]
            inner = inner[:, : quantities.n_narrow]
            slope = difference.mul_(inner if quantities.groups is None else inner[:, quantities.groups])
            bars[0][which, rows][..., narrow] -= slope.sum(-1).mT
            bars[1][which, columns][..., narrow] += slope.sum(-2).mT
        for inputs, far, inner in zip(quantities.wide, quantities.far, inner_of_wide, strict=True):
            u1, u2 = U1[..., inputs], U2[..., inputs]
            if far:
                first, second = summed_differences(inner, u1, u2)
                bars[0][..., inputs], bars[1][..., inputs] = -first, -second
                continue
            bars[0][..., inputs] = inner @ u2 - u1 * inner.sum(-1)[..., None]
            bars[1][..., inputs] = inner.mT @ u1 - u2 * inner.sum(-2)[..., None]
        bars = [part.reshape(*ctx.lead, *part.shape[1:]) for part in bars]
        return *(part.sum_to_size(shape) for part, shape in zip(bars, ctx.shapes, strict=True)), *(None,) * 3


def _numbers(kernel: StationaryKernel, like: Tensor) -> Tensor:
    """The number (Q,) of each input's quantity."""
    return constant(range(kernel.n_inputs) if kernel.groups is None else kernel.groups, like, torch.long)


def _mean_of_products(kappa: Tensor) -> Tensor:
    """Means (..., N1, N2) over all pairs of the products of two of the correlations (..., G, N1, N2)."""
    number = kappa.shape[-3]
    return (kappa.sum(-3).square() - kappa.square().sum(-3)) / (number * (number - 1))


def _blocks(K: Tensor, quantities: _Quantities, n_inputs: int, same: bool) -> Iterator[Block]:
    """Blocks of covariances K (L, N1, N2) that cover all of them, or if rows are the ``same``, one half of them."""
    n_sets, n_rows, n_columns = K.shape
    n_inputs = n_inputs if quantities.narrow is None else max(len(quantities.narrow), quantities.number)
    size, most = n_rows * n_columns * n_inputs, at_a_time(AT_A_TIME, K.device)
    if size <= most:
        step = most // max(1, size)
        for first in range(0, n_sets, step):
            yield slice(first, first + step), slice(0, n_rows), slice(0, n_columns)
        return
    for number in range(n_sets):
        first = 0
        while first < n_rows:
            width = n_columns if not same else first + max(1, most // (n_inputs * max(1, first)) // 2)
            step = max(1, most // (n_inputs * min(width, n_columns)))
            last = min(first + step, n_rows)
            yield slice(number, number + 1), slice(first, last), slice(0, last if same else n_columns)
            first = last


def _summed_bar(bar: Tensor, block: Block) -> Tensor:
    """Gradients by a covariance and by its mirror image together. A block may have both, and then each has one half."""
    which, rows, columns = block
    both = bar[which, rows, columns] + bar[which, columns, rows].mT
    both[..., rows] *= 0.5
    return both
