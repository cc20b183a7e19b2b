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

#: Larger squared distances, in lengthscales, are replaced by this one, at which all correlations are zero.
FARTHEST_SQUARED = 1e12

#: Largest ‖x‖², in lengthscales, for which products in float32 are precise enough: the error of k is then some 5e-5.
CANCELS_SQUARED = 300.0


class Profile(NamedTuple):
    """Correlation as a function of a. Constant factors are separate, so that they multiply smaller tensors."""

    evaluate: Callable[[Tensor], tuple[Tensor, Tensor | None]]  # −a -> k(a), h(a)/slope or None where that is k
    rate: float  # c
    slope: float = 1.0
    smooth: bool = True  # whether a small error in a² is as small in k
    nu: float = math.inf  # ν: of Matérn's kernels, whose spectral density is Student's t of 2ν degrees of freedom


def correlation(X1: Tensor, X2: Tensor, profile: Profile) -> Tensor:
    """k(a) for a = ‖x_i − x'_j‖, between X1 (..., N1, Q) and X2 (..., N2, Q) in units of ℓ/c: (..., N1, N2)."""
    return _Correlation.apply(X1, X2, profile, X1.dtype == torch.float32 and _cancels(X1, X2))[0]


def centred_correlation(X1: Tensor, X2: Tensor, rate: Tensor, profile: Profile) -> Tensor:
    """Correlations (..., D, N1, N2) between X1 (..., N1, Q) and X2 (..., N2, Q), for rates 1/ℓ (D, 1 or Q)."""
    scale = (profile.rate * rate)[..., None, :]  # c/ℓ, (D, 1, 1 or Q)
    centre = X1.detach().mean(-2, keepdim=True)  # rounding errors are smaller near the origin
    return correlation((X1 - centre).unsqueeze(-3) * scale, (X2 - centre).unsqueeze(-3) * scale, profile)


def _cancels(X1: Tensor, X2: Tensor) -> bool:
    """Whether products of these points in float32 would lose too much of small distances to cancellation.

    The values of the points decide on the CPU, outside of vmap and similar transforms. On a GPU reading them would mean
    waiting for it, and the answer is True.
    """
    if X1.is_cuda or torch._C._are_functorch_transforms_active():
        return True
    return any(X.numel() and X.detach().square().sum(-1).max().item() > CANCELS_SQUARED for X in (X1, X2))


class _Correlation(Function):
    """The correlation k, with h and augmented points for the gradient.

    With augmented points u = (−2x, ‖x‖², 1) and u' = (x', 1, ‖x'‖²) all a² are one product, u·u'. As
    dk = −h d(a²)/2, C = −k̄ h makes x̄_i = Σ_j C_ij (x_i − x'_j) and x̄'_j = Σ_i C_ij (x'_j − x_i): sums that are
    products of C and the same augmented points.

    The products have rounding errors of the size eps ‖x‖², which are large if points are many lengthscales from the
    origin. With ``exact`` the products, and nothing else, are computed in float64.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(X1: Tensor, X2: Tensor, profile: Profile, exact: bool) -> tuple[Tensor | None, ...]:
        dtype, given = X1.dtype, (X1, X2)
        if exact:
            X1, X2 = X1.double(), X2.double()
        ones1, ones2 = torch.ones_like(X1[..., :1]), torch.ones_like(X2[..., :1])
        U1 = torch.cat([-2.0 * X1, X1.square().sum(-1, keepdim=True), ones1], dim=-1)
        U2 = torch.cat([X2, ones2, X2.square().sum(-1, keepdim=True)], dim=-1)
        if profile.smooth:
            a = (U1 @ U2.mT).to(dtype).clamp_(0.0, FARTHEST_SQUARED).sqrt_()
        else:
            a = torch.cdist(*given, compute_mode="donot_use_mm_for_euclid_dist")
        k, h = profile.evaluate(a.neg_())
        return k, h, U1, U2

    @staticmethod
    def setup_context(ctx, inputs, output):
        k, *others = output
        h, U1, U2 = others
        ctx.mark_non_differentiable(*(each for each in others if each is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(U1, U2, k if h is None else h)
        ctx.slope = inputs[2].slope

    @staticmethod
    @once_differentiable
    def backward(ctx, k_bar: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        if k_bar is None:
            return None, None, None, None
        U1, U2, h = ctx.saved_tensors
        C = (k_bar * h).to(U1.dtype)  # without −slope
        n_inputs = U1.shape[-1] - 2
        P1, P2 = C @ U2[..., : n_inputs + 1], C.mT @ U1  # Σ_j C (x', 1) and Σ_i C (−2x, ‖x‖², 1)
        X1_bar = torch.addcmul(P1[..., :n_inputs], U1[..., :n_inputs], P1[..., n_inputs:], value=0.5)
        X2_bar = torch.addcmul(0.5 * P2[..., :n_inputs], U2[..., :n_inputs], P2[..., -1:])
        return X1_bar.mul_(ctx.slope).to(h.dtype), X2_bar.mul_(-ctx.slope).to(h.dtype), None, None
