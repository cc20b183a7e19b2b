"""Stationary kernels, one covariance per output of a layer.

A kernel is a variance times a correlation, a *profile* k(a) of a = c‖x − x'‖/ℓ with the profile's own
rate c. Its gradients need nothing but h(a) = −k'(a)/a, for dk = −h d(a²)/2. Profiles are given b = −a,
as most of them start with exp(−a), and may overwrite it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .rowwise import packing


class Profile(NamedTuple):
    """Correlation as a function of a, with the constants kept out of the loop over numbers."""

    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]]  # −a -> k(a), h(a) / slope
    rate: float  # c
    slope: float = 1.0
    smooth: bool = True  # whether a small error in a² is as small in k


def rbf(b: Tensor) -> tuple[Tensor, Tensor]:
    """k = exp(−a²/2), h = k."""
    k = b.square_().mul_(-0.5).exp_()
    return k, k


def matern12(b: Tensor) -> tuple[Tensor, Tensor]:
    """k = exp(−a), h = k/a. Not differentiable at a = 0, where the subgradient 0 is taken."""
    k = b.exp()
    return k, torch.where(b < 0, -k / b, 0.0)


def matern32(b: Tensor) -> tuple[Tensor, Tensor]:
    """k = (1 + a) exp(−a), h = exp(−a)."""
    e = b.exp()
    return torch.addcmul(e, e, b, value=-1.0), e


def matern52(b: Tensor) -> tuple[Tensor, Tensor]:
    """k = (1 + a + a²/3) exp(−a), 3h = (1 + a) exp(−a)."""
    e = b.exp()
    linear = torch.addcmul(e, e, b, value=-1.0)
    return torch.addcmul(linear, e, b.square_(), value=1 / 3), linear


#: Squared distances, in lengthscales, that every other is as good as: all correlations are zero by then.
FARTHEST_SQUARED = 1e12

PROFILES = {
    "rbf": Profile(rbf, 1.0),
    "matern12": Profile(matern12, 1.0, smooth=False),
    "matern32": Profile(matern32, math.sqrt(3.0)),
    "matern52": Profile(matern52, math.sqrt(5.0), 1 / 3),
}


class _Correlation(torch.autograd.Function):
    """k(a) for a = ‖x_i − x'_j‖, between X1 (..., N1, Q) and X2 (..., N2, Q) in units of ℓ/c.

    With augmented points u = (−2x, ‖x‖², 1) and u' = (x', 1, ‖x'‖²) all a² are one product, u·u'. As
    dk = −h d(a²)/2, C = −k̄ h makes x̄_i = Σ_j C_ij (x_i − x'_j) and x̄'_j = Σ_i C_ij (x'_j − x_i): sums that are
    products of C and the same augmented points.
    """

    @staticmethod
    def forward(ctx, X1: Tensor, X2: Tensor, profile: Profile) -> Tensor:
        ones1, ones2 = torch.ones_like(X1[..., :1]), torch.ones_like(X2[..., :1])
        U1 = torch.cat([-2.0 * X1, X1.square().sum(-1, keepdim=True), ones1], dim=-1)
        U2 = torch.cat([X2, ones2, X2.square().sum(-1, keepdim=True)], dim=-1)
        if profile.smooth:
            # What is left of cancellation is 1e-7 of ‖x‖² in float32: too little to see in k.
            a = (U1 @ U2.mT).clamp_(0.0, FARTHEST_SQUARED).sqrt_()
        else:
            a = torch.cdist(X1, X2, compute_mode="donot_use_mm_for_euclid_dist")
        k, h = profile.evaluate(a.neg_())
        ctx.save_for_backward(U1, U2, h)
        ctx.slope = profile.slope
        return k

    @staticmethod
    @once_differentiable
    def backward(ctx, k_bar: Tensor) -> tuple[Tensor, Tensor, None]:
        U1, U2, h = ctx.saved_tensors
        C = k_bar * h  # without −slope
        n_inputs = U1.shape[-1] - 2
        P1, P2 = C @ U2[..., : n_inputs + 1], C.mT @ U1  # Σ_j C (x', 1) and Σ_i C (−2x, ‖x‖², 1)
        X1_bar = torch.addcmul(P1[..., :n_inputs], U1[..., :n_inputs], P1[..., n_inputs:], value=0.5)
        X2_bar = torch.addcmul(0.5 * P2[..., :n_inputs], U2[..., :n_inputs], P2[..., -1:])
        return X1_bar.mul_(ctx.slope), X2_bar.mul_(-ctx.slope), None


class _PackedSquaredDistance(torch.autograd.Function):
    """r² between points Z (B, ..., M, Q) of each row, and from them to x (B, ..., S, Q), packed.

    x̄_i = 2 Σ_j g_ij (x_i − x'_j) and x̄'_j = 2 Σ_i g_ij (x'_j − x_i) are matrix products. Rows go last,
    before the outputs multiply what has to be moved.
    """

    @staticmethod
    def forward(ctx, Z: Tensor, x: Tensor) -> Tensor:
        points = torch.cat([Z, x], dim=-2)
        ctx.save_for_backward(Z, points)
        # Differences, not ‖a‖² + ‖b‖² − 2ab: exact zeros on the diagonal, no cancellation in float32.
        r2 = torch.cdist(Z, points, compute_mode="donot_use_mm_for_euclid_dist").flatten(-2)  # (B, ..., M·(M + S))
        index = packing(Z.shape[-2], x.shape[-2], Z.device).square
        return r2.permute(*range(r2.dim() - 1, -1, -1)).index_select(0, index).square_()  # (packed, ..., B)

    @staticmethod
    @once_differentiable
    def backward(ctx, r2_bar: Tensor) -> tuple[Tensor, Tensor]:
        Z, points = ctx.saved_tensors
        n_inducing, n_columns = Z.shape[-2], points.shape[-2]
        index = packing(n_inducing, n_columns - n_inducing, Z.device).square
        C = r2_bar.new_zeros(n_inducing * n_columns, *r2_bar.shape[1:]).index_copy_(0, index, r2_bar.mul(2.0))
        C = C.permute(*range(C.dim() - 1, -1, -1)).contiguous().unflatten(-1, (n_inducing, n_columns))
        Z_bar = torch.addcmul(-(C @ points), Z, C.sum(-1, keepdim=True))
        points_bar = torch.addcmul(-(C.mT @ Z), points, C.sum(-2)[..., None])
        return Z_bar.add_(points_bar[..., :n_inducing, :]), points_bar[..., n_inducing:, :]


class _PackedCorrelation(torch.autograd.Function):
    """k(a) for a² = c² r² s, where r² (..., 1, N1, N2) and s = 1/ℓ² (D, 1, 1) broadcast.

    With G = −k̄ c² h/2 the gradients are Σ_d G s for r² and Σ G r² for s.
    """

    @staticmethod
    def forward(ctx, r2: Tensor, s: Tensor, profile: Profile) -> Tensor:
        k, h = profile.evaluate(r2.sqrt() * (-profile.rate * s.sqrt()))
        ctx.save_for_backward(r2, s, h)
        ctx.factor = -0.5 * profile.slope * profile.rate**2
        return k

    @staticmethod
    @once_differentiable
    def backward(ctx, k_bar: Tensor) -> tuple[Tensor, Tensor | None, None]:
        r2, s, h = ctx.saved_tensors
        G = k_bar * h
        s_bar = (G * r2).sum_to_size(s.shape).mul_(ctx.factor) if ctx.needs_input_grad[1] else None
        return (G.mul_(s)).sum_to_size(r2.shape).mul_(ctx.factor), s_bar, None


class StationaryKernel(nn.Module):
    """k_d(x, x') = σ_d² profile(‖(x − x') / ℓ_d‖) for the outputs d of a layer.

    Parameters
    ----------
    profile : {"rbf", "matern12", "matern32", "matern52"}
        Name of the profile.
    n_inputs : int
        Q, dimension of x.
    n_outputs : int, default=1
        D, number of covariances. 1 is one covariance shared by all outputs of a layer.
    ard : bool, default=False
        Whether every input dimension has its own lengthscale.
    lengthscale : float, default=None
        Initial lengthscale; √Q by default, the scale of the distances of standardised inputs.
    variance : float, default=1.0
        Initial σ².

    Attributes
    ----------
    log_lengthscale : Parameter of shape (D, Q) if ``ard`` else (D, 1)
    log_variance : Parameter of shape (D,)
        Logarithms, so that no value of a parameter is invalid.
    """

    def __init__(
        self,
        profile: str,
        n_inputs: int,
        n_outputs: int = 1,
        *,
        ard: bool = False,
        lengthscale: float | None = None,
        variance: float = 1.0,
    ):
        super().__init__()
        self.profile = profile
        lengthscale = math.sqrt(n_inputs) if lengthscale is None else lengthscale
        self.log_lengthscale = nn.Parameter(torch.full((n_outputs, n_inputs if ard else 1), math.log(lengthscale)))
        self.log_variance = nn.Parameter(torch.full((n_outputs,), math.log(variance)))

    @property
    def lengthscale(self) -> Tensor:
        """Lengthscales ℓ, of shape (D, Q) or (D, 1)."""
        return self.log_lengthscale.exp()

    @property
    def variance(self) -> Tensor:
        """Variances σ², of shape (D,): the diagonal k_d(x, x)."""
        return self.log_variance.exp()

    @property
    def deviation(self) -> Tensor:
        """Standard deviations σ, of shape (D,)."""
        return (0.5 * self.log_variance).exp()

    def forward(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Covariances between two sets of points.

        Parameters
        ----------
        X1 : Tensor of shape (..., N1, Q)
        X2 : Tensor of shape (..., N2, Q)

        Returns
        -------
        Tensor of shape (..., D, N1, N2)
        """
        return self.correlation(X1, X2) * self.variance[:, None, None]

    def correlation(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Covariances divided by the variance σ_d²; shapes as in :meth:`forward`."""
        profile = PROFILES[self.profile]
        scale = (profile.rate * self._rates().sqrt())[:, None]  # (D, 1, 1 or Q)
        centre = X1.detach().mean(-2, keepdim=True)  # near the origin less is rounded and less cancels
        return _Correlation.apply((X1 - centre).unsqueeze(-3) * scale, (X2 - centre).unsqueeze(-3) * scale, profile)

    def packed_correlation(self, Z: Tensor, x: Tensor) -> Tensor:
        """Correlations within each row's points and with others, as :mod:`skdgp.gp.rowwise` has them.

        Parameters
        ----------
        Z : Tensor of shape (B, M, Q)
        x : Tensor of shape (B, S, Q)

        Returns
        -------
        Tensor of shape (M(M−1)/2 + M·S, D, B)
        """
        s = self._rates()
        if s.shape[1] > 1:
            scale = s.sqrt()[:, None, :]
            Z, x, s = Z[:, None] * scale, x[:, None] * scale, s.new_ones(len(s), 1)  # (B, D, ·, Q)
        r2 = _PackedSquaredDistance.apply(Z, x)  # (packed, [D,] B)
        return _PackedCorrelation.apply(r2 if r2.dim() == 3 else r2[:, None], s, PROFILES[self.profile])

    def _rates(self) -> Tensor:
        """s = 1/ℓ², of shape (D, 1 or Q)."""
        return torch.exp(-2.0 * self.log_lengthscale)
