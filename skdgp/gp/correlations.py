"""Correlations of a stationary kernel between two sets of points, with gradients written by hand.

The kernel is a *profile* k(a) of a = c‖x − x'‖/ℓ with a rate c of its own. Gradients need only h(a) = −k'(a)/a, since
dk = −h d(a²)/2. The function of a profile is called with b = −a, since most of them start with exp(−a), and it may
overwrite b.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd import Function
from .devices import at_a_time

#: Larger squared distances, in lengthscales, are replaced by this one, at which all correlations are zero.
FARTHEST_SQUARED = 1e12

#: The same distance.
FARTHEST = FARTHEST_SQUARED**0.5

#: Largest ‖x‖² of the first set, in lengthscales, for which products in float32 are precise enough: the error of k is
#: then some 5e-5.
CANCELS_SQUARED = 300.0

#: The same for products in float64, with an error of some 4e-12.
CANCELS_SQUARED_DOUBLE = 1e4

#: Number of differences that a processor computes at a time, so that they stay in its cache: 256 KiB.
AT_A_TIME = 2**15

#: If no more than one in so many pairs of points is near, sums over pairs leave out the others.
FEW_PAIRS = 20


class Profile(NamedTuple):
    """Correlation as a function of a. Constant factors are separate, so that they multiply smaller tensors."""

    evaluate: Callable[[Tensor], tuple[Tensor, Tensor | None]]  # −a -> k(a), h(a)/slope or None where that is k
    rate: float  # c
    slope: float = 1.0
    smooth: bool = True  # whether a small error in a² is as small in k
    nu: float = math.inf  # ν: of Matérn's kernels, whose spectral density is Student's t of 2ν degrees of freedom


def correlation(X1: Tensor, X2: Tensor, profile: Profile) -> Tensor:
    """k(a) for a = ‖x_i − x'_j‖, between X1 (..., N1, Q) and X2 (..., N2, Q) in units of ℓ/c: (..., N1, N2)."""
    return _precise_correlation(X1, X2, profile, largest_square(X1))


def centred_correlation(X1: Tensor, X2: Tensor, rate: Tensor, profile: Profile) -> Tensor:
    """Correlations (..., D, N1, N2) between X1 (..., N1, Q) and X2 (..., N2, Q), for rates 1/ℓ (D, 1 or Q)."""
    scale = (profile.rate * rate)[..., None, :]  # c/ℓ, (D, 1, 1 or Q)
    centre = X1.detach().mean(-2, keepdim=True)  # rounding errors are smaller near the origin
    A = (X1 - centre).unsqueeze(-3) * scale
    largest = largest_square(A)
    if cancels_in_float64(A, largest):  # perhaps since a far point has moved the centre away from the others
        return _precise_correlation(X1.unsqueeze(-3) * scale, X2.unsqueeze(-3) * scale, profile, largest)
    return _precise_correlation(A, (X2 - centre).unsqueeze(-3) * scale, profile, largest)


def _precise_correlation(X1: Tensor, X2: Tensor, profile: Profile, largest: float) -> Tensor:
    """The correlation, computed in a way that is precise enough if the largest ‖x‖² of X1 is ``largest``."""
    exact = X1.dtype == torch.float32 and largest > CANCELS_SQUARED
    far = cancels_in_float64(X1, largest)
    return _Correlation.apply(X1, X2, profile, exact, far or not profile.smooth, far)[0]


def cancels_in_float64(X1: Tensor, largest: float) -> bool:
    """Whether points are float64, and too many lengthscales from the origin for products in this precision.

    Points in float32 have larger errors of their own.
    """
    return X1.dtype == torch.float64 and largest > CANCELS_SQUARED_DOUBLE


def largest_square(X: Tensor) -> float:
    """Largest ‖x‖² of points (..., N, Q), which says how much of small distances products would lose to cancellation.

    The first of two sets of points decides. A point of the second set that is much farther from the origin is far from
    the first set, too, and then the distance has no large relative error. So the rows that are compared with inducing
    points do not decide how their neighbours in a batch are computed.

    The values of the points are read on the CPU, outside of vmap and similar transforms, and of exports. In training on
    a GPU reading them would mean waiting for it. Without them the answer is that products in float64 are needed, and
    enough.
    """
    hidden = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
    if hidden or (X.is_cuda and torch.is_grad_enabled()):
        return CANCELS_SQUARED_DOUBLE
    return X.detach().square().sum(-1).max().item() if X.numel() else 0.0


def distances(X1: Tensor, X2: Tensor) -> Tensor:
    """‖x_i − x'_j‖ (..., N1, N2) by differences: exactly zero for equal points, and of any pair to the last digits."""
    return torch.cdist(X1, X2, compute_mode="donot_use_mm_for_euclid_dist")


def summed_differences(C: Tensor, X1: Tensor, X2: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j C_ij (x_i − x'_j) and Σ_i C_ij (x'_j − x_i) by differences, in the shapes of X1 and X2, for C (..., N1, N2).

    Products would take a fraction of the time. But the largest C belong to the nearest points, and in a difference of
    two products they leave rounding errors of the size eps ‖C‖ ‖x‖. Points that are far apart have C = 0, so that few
    pairs are left in most cases.
    """
    if FEW_PAIRS * torch.count_nonzero(C).item() > C.numel():
        return _all_differences(C, X1, X2)
    *lead, i, j = pairs = C.nonzero(as_tuple=True)
    whole1, whole2 = (X.expand(*C.shape[:-2], *X.shape[-2:]) for X in (X1, X2))
    rows1, rows2 = (*lead, i), (*lead, j)
    parts = C[pairs][:, None] * (whole1[rows1] - whole2[rows2])
    first = X1.new_zeros(whole1.shape).index_put_(rows1, parts, accumulate=True)
    second = X2.new_zeros(whole2.shape).index_put_(rows2, -parts, accumulate=True)
    return first.sum_to_size(X1.shape), second.sum_to_size(X2.shape)


def _all_differences(C: Tensor, X1: Tensor, X2: Tensor) -> tuple[Tensor, Tensor]:
    """The same if most C are not zero: input by input, for so few rows at a time that they stay in the cache."""
    first, second = (X.new_zeros(*C.shape[:-2], *X.shape[-2:]) for X in (X1, X2))
    step = max(1, at_a_time(AT_A_TIME, C.device) // C.shape[-1])
    for start in range(0, C.shape[-2], step):
        rows = slice(start, start + step)
        for column in range(X1.shape[-1]):
            part = (X1[..., rows, None, column] - X2[..., None, :, column]).mul_(C[..., rows, :])
            first[..., rows, column] = part.sum(-1)
            second[..., column] -= part.sum(-2)
    return first.sum_to_size(X1.shape), second.sum_to_size(X2.shape)


class _Correlation(Function):
    """The correlation k, with h and augmented points for the gradient.

    With augmented points u = (−2x, ‖x‖², 1) and u' = (x', 1, ‖x'‖²) all a² are one product, u·u'. As
    dk = −h d(a²)/2, C = −k̄ h makes x̄_i = Σ_j C_ij (x_i − x'_j) and x̄'_j = Σ_i C_ij (x'_j − x_i): sums that are
    products of C and the same augmented points.

    The products have rounding errors of the size eps ‖x‖², which are large if points are many lengthscales from the
    origin. With ``exact`` the products, and nothing else, are computed in float64. With ``differences`` distances are
    those of differences of points, which have no such errors, and so is the gradient if points are ``far``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        X1: Tensor, X2: Tensor, profile: Profile, exact: bool, differences: bool, far: bool
    ) -> tuple[Tensor | None, ...]:
        dtype, given = X1.dtype, (X1, X2)
        if exact:
            X1, X2 = X1.double(), X2.double()
        ones1, ones2 = torch.ones_like(X1[..., :1]), torch.ones_like(X2[..., :1])
        U1 = torch.cat([-2.0 * X1, X1.square().sum(-1, keepdim=True), ones1], dim=-1)
        U2 = torch.cat([X2, ones2, X2.square().sum(-1, keepdim=True)], dim=-1)
        if differences:
            a = distances(*given)
        else:
            a = (U1 @ U2.mT).to(dtype).clamp_(0.0, FARTHEST_SQUARED).sqrt_()
        k, h = profile.evaluate(a.neg_())
        return k, h, U1, U2

    @staticmethod
    def setup_context(ctx, inputs, output):
        k, h, U1, U2 = output
        ctx.mark_non_differentiable(U1, U2, *([] if h is None else [h]))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(U1, U2, k if h is None else h)
        ctx.slope, ctx.far = inputs[2].slope, inputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, k_bar: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        if k_bar is None:
            return (None,) * 6
        U1, U2, h = ctx.saved_tensors
        C = (k_bar * h).to(U1.dtype)  # without −slope
        n_inputs = U1.shape[-1] - 2
        if ctx.far:
            X1_bar, X2_bar = summed_differences(C, -0.5 * U1[..., :n_inputs], U2[..., :n_inputs])
            return X1_bar.mul_(-ctx.slope), X2_bar.mul_(-ctx.slope), *(None,) * 4
        P1, P2 = C @ U2[..., : n_inputs + 1], C.mT @ U1  # Σ_j C (x', 1) and Σ_i C (−2x, ‖x‖², 1)
        X1_bar = torch.addcmul(P1[..., :n_inputs], U1[..., :n_inputs], P1[..., n_inputs:], value=0.5)
        X2_bar = torch.addcmul(0.5 * P2[..., :n_inputs], U2[..., :n_inputs], P2[..., -1:])
        return X1_bar.mul_(ctx.slope).to(h.dtype), X2_bar.mul_(-ctx.slope).to(h.dtype), *(None,) * 4
