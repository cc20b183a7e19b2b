"""Gaussian algebra for many small problems at once: one per row and output, rows last in memory.

An amortised layer factorises B·D matrices of a handful of inducing points in every step. LAPACK takes
them one by one; here the matrix dimensions come first and the rows last, so that every elementary step
of an elimination is one vector operation on all of them.

Shapes: matrices (M, M, D, B), cross-correlations (M, S, D, B), vectors (M, D, B). Correlations come
packed, (M(M−1)/2 + M·S, D, B): each pair of inducing variables once, then every inducing variable with
every point; see :func:`packing`. The formulas are those of :mod:`skdgp.gp.conditionals`, for a prior of
unit variance; the tests hold the two to each other.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .conditionals import VARIANCE_FLOOR
from .linalg import JITTER, inverse_cholesky

#: Above this size LAPACK, matrix by matrix, is faster than the elimination (measured on two cores).
_MAX_ELIMINATION = 24


class Packing(NamedTuple):
    """Flat indices into the M·(M + S) correlations of inducing variables with those and the points."""

    packed: Tensor  # (M(M−1)/2 + M·S,): the packed ones
    mirrored: Tensor  # (M(M−1)/2,): the same pairs the other way round
    unpacked: Tensor  # (M·(M + S),): where each is among the packed; anywhere for the diagonal


@lru_cache(maxsize=64)
def packing(n_inducing: int, n_points: int, device: torch.device) -> Packing:
    """How correlations are packed: nothing is kept twice, nor the diagonal of ones."""
    place = torch.arange(n_inducing * (n_inducing + n_points)).reshape(n_inducing, -1)
    rows, columns = torch.tril_indices(n_inducing, n_inducing, -1)
    packed = torch.cat([place[rows, columns], place[:, n_inducing:].flatten()])
    unpacked = torch.zeros_like(place)
    unpacked.view(-1)[packed] = torch.arange(len(packed))
    unpacked[columns, rows] = unpacked[rows, columns]
    return Packing(packed.to(device), place[columns, rows].to(device), unpacked.flatten().to(device))


def _unpack(correlations: Tensor, n_inducing: int, diagonal: float) -> Tensor:
    """[K, k] of shape (M, M + S, D, B), in memory of its own."""
    n_points = (len(correlations) - n_inducing * (n_inducing - 1) // 2) // n_inducing
    index = packing(n_inducing, n_points, correlations.device).unpacked
    T = correlations.index_select(0, index).unflatten(0, (n_inducing, -1))
    T.diagonal(dim1=0, dim2=1).fill_(diagonal)
    return T


def _eliminate(T: Tensor) -> Tensor:
    """[W, W k], where W = L⁻¹ and K = L Lᵀ, from T = [K, k] by elimination without pivoting, in place.

    Step j makes row j final and clears column j of K below it. Columns up to j then belong to W and
    later ones still to K, so one array holds both. A pivot that is not positive leaves NaN or infinity
    on the diagonal.
    """
    n_inducing = len(T)
    for j, row in enumerate(T.unbind()):
        pivot = row[j]
        inverse_pivot = pivot.rsqrt()
        pivot.fill_(1.0)
        row.mul_(inverse_pivot)
        if j + 1 < n_inducing:
            factors = row[j + 1 : n_inducing]  # L_ij for the rows i > j below
            below = T[j + 1 :]
            below[:, j].zero_()
            below.addcmul_(factors[:, None], row, value=-1.0)
            factors.zero_()
    return T


def _factorise(T: Tensor, jitter: float) -> Tensor:
    """[W, W k] from T = [K, k] by LAPACK, matrix by matrix, with as much jitter as it takes."""
    n_inducing = len(T)
    T = T.permute(2, 3, 0, 1)  # (D, B, M, M + S)
    W = inverse_cholesky(T[..., :n_inducing].contiguous(), jitter)
    return torch.cat([W, W @ T[..., n_inducing:]], dim=-1).permute(2, 3, 0, 1).contiguous()


class _Whiten(torch.autograd.Function):
    """W = L⁻¹ and A = W k, where K = L Lᵀ, from the packed correlations in K and k.

    With dW = −Φ(W dK Wᵀ) W (see :func:`skdgp.gp.linalg.inverse_cholesky`) and dA = dW k + W dk:
    k̄ = WᵀĀ and K̄ = −Wᵀ Φ(W̄Wᵀ + ĀAᵀ) W. A pair is two numbers of K and has the gradients of both.
    Every product below runs over the lower triangles alone.
    """

    @staticmethod
    def forward(ctx, correlations: Tensor, n_inducing: int, jitter: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        solved = None
        if n_inducing <= _MAX_ELIMINATION:
            solved = _eliminate(_unpack(correlations, n_inducing, 1.0 + jitter))
        if solved is None or not solved.diagonal(dim1=0, dim2=1).isfinite().all():
            solved = _factorise(_unpack(correlations, n_inducing, 1.0), jitter)
        W, A = solved[:, :n_inducing], solved[:, n_inducing:]
        ctx.save_for_backward(W, A)
        return W, A

    @staticmethod
    @once_differentiable
    def backward(ctx, W_bar: Tensor | None, A_bar: Tensor | None) -> tuple[Tensor, None, None]:
        W, A = ctx.saved_tensors
        n_inducing, n_points = A.shape[:2]
        last = n_inducing - 1
        bar = A.new_empty(n_inducing, n_inducing + n_points, *A.shape[2:])
        K_bar, k_bar = bar[:, :n_inducing], bar[:, n_inducing:]
        # Only lower triangles of ``inner`` and ``right`` are ever read.
        inner = torch.zeros_like(W) if A_bar is None else torch.empty_like(W)  # Φ(W̄Wᵀ + ĀAᵀ)
        if A_bar is None:
            k_bar.zero_()
        else:
            for i in range(n_inducing):
                torch.sum(A_bar[i] * A[: i + 1], dim=1, out=inner[i, : i + 1])
            torch.mul(W[last, :, None], A_bar[last], out=k_bar)
            for i in range(last):
                k_bar[: i + 1].addcmul_(W[i, : i + 1, None], A_bar[i])
        if W_bar is not None:
            for j in range(n_inducing):
                inner[j:, j] += (W_bar[j:, : j + 1] * W[j, : j + 1]).sum(1)
        inner.diagonal(dim1=0, dim2=1).mul_(0.5)
        right = inner[:, 0, None] * W[0].neg()  # −Φ W
        for j in range(1, n_inducing):
            right[j:, : j + 1].addcmul_(inner[j:, j, None], W[j, : j + 1], value=-1.0)
        torch.mul(W[last, :, None], right[last], out=K_bar)  # −WᵀΦ W
        for i in range(last):
            K_bar[: i + 1, : i + 1].addcmul_(W[i, : i + 1, None], right[i, : i + 1])
        packed, mirrored, _ = packing(n_inducing, n_points, bar.device)
        gradient = bar.flatten(0, 1).index_select(0, packed)
        gradient[: len(mirrored)] += bar.flatten(0, 1).index_select(0, mirrored)
        return gradient, None, None


class _DiagonalPosterior(torch.autograd.Function):
    """Marginals and KL divergence of a diagonal posterior of whitened inducing variables.

    With sums over inducing variables i: m = σ Σ μ_i A_i, v = σ² (1 + Σ (c_i² − 1) A_i²) and
    KL = ½ Σ (c_i² + μ_i² − 1 − log c_i²), where c are posterior deviations and σ that of the prior.
    """

    @staticmethod
    def forward(ctx, A: Tensor, mean: Tensor, scale: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        change = scale.square().sub_(1.0)  # (M, D, B)
        m = (A * mean[:, None]).sum(0).mul_(deviation)
        unit = (A.square() * change[:, None]).sum(0).add_(1.0).clamp_(min=VARIANCE_FLOOR)  # v/σ²
        v = unit * deviation.square()
        kl = (change + mean.square()).sub_(scale.log(), alpha=2.0).sum(0).mul_(0.5)
        ctx.save_for_backward(A, mean, scale, deviation, change, m, v)
        return m, v, kl

    @staticmethod
    @once_differentiable
    def backward(ctx, m_bar: Tensor, v_bar: Tensor, kl_bar: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        A, mean, scale, deviation, change, m, v = ctx.saved_tensors
        deviation_bar = (m_bar * m).add_(v_bar * v, alpha=2.0).sum_to_size(deviation.shape).div(deviation)
        u_bar = m_bar * deviation  # (S, D, B)
        d_bar = v_bar * deviation.square().mul(2.0)
        scaled = A * d_bar
        A_bar = (mean[:, None] * u_bar).addcmul_(scaled, change[:, None])
        mean_bar = (A * u_bar).sum(1).addcmul_(mean, kl_bar)
        scale_bar = (A * scaled).sum(1).mul_(scale).addcmul_(scale - scale.reciprocal(), kl_bar)
        return A_bar.sum_to_size(A.shape), mean_bar, scale_bar, deviation_bar


def whiten(correlations: Tensor, n_inducing: int, jitter: float = JITTER) -> tuple[Tensor, Tensor]:
    """Inverse Cholesky factors of inducing variables' correlations, and whitened cross-correlations.

    Parameters
    ----------
    correlations : Tensor of shape (M(M−1)/2 + M·S, D, B)
        Packed correlations in K, of inducing variables, and in k, of them and S function values.
    n_inducing : int
        M.
    jitter : float, default=JITTER
        Added to the unit diagonals of K.

    Returns
    -------
    W : Tensor of shape (M, M, D, B)
    A : Tensor of shape (M, S, D, B)
        ``W`` times k.
    """
    return _Whiten.apply(correlations, n_inducing, jitter)


def posterior(
    W: Tensor, A: Tensor, mean: Tensor, scale: Tensor, deviation: Tensor, *, whiten: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals of function values and the KL divergence of inducing variables.

    Parameters
    ----------
    W, A : Tensors
        Of :func:`whiten`; M·D·B or, with a kernel that outputs share, M·1·B.
    mean, scale : Tensors of shapes (M, D, B) and (M, D, B) or (M, M, D, B)
        Gaussian over v (``whiten``) or u of a prior of zero mean and unit variance.
    deviation : Tensor of shape (D, 1) or (1, 1)
        σ, of the prior. Without ``whiten`` it scales the marginals alone.

    Returns
    -------
    mean, variance : Tensors of shape (S, D, B)
        See :func:`skdgp.gp.conditionals.conditional`.
    kl : Tensor of shape (D, B)
        See :func:`skdgp.gp.conditionals.kl_divergence`.
    """
    if whiten and scale.dim() == 3:
        return _DiagonalPosterior.apply(A, mean, scale, deviation)
    V = A if whiten else _transposed_product(W, A)
    root = scale[:, None] * V if scale.dim() == 3 else _transposed_product(scale, V)
    variance = (root.square().sum(0) - A.square().sum(0) + 1.0).clamp(min=VARIANCE_FLOOR)
    kl = _kl_divergence(mean, scale, None if whiten else W)
    return (mean[:, None] * V).sum(0) * deviation, variance * deviation.square(), kl


def _kl_divergence(mean: Tensor, scale: Tensor, W: Tensor | None) -> Tensor:
    """KL divergences (D, B); see :func:`skdgp.gp.conditionals.kl_divergence`."""
    dense = scale.dim() == 4
    diagonal = scale.diagonal(dim1=0, dim2=1).movedim(-1, 0) if dense else scale  # (M, D, B)
    log_determinants = -2.0 * diagonal.log().sum(0)
    if W is not None:
        mean = (W * mean).sum(1)
        scale = (W[:, :, None] * scale).sum(1) if dense else W * scale
        log_determinants = log_determinants - 2.0 * W.diagonal(dim1=0, dim2=1).log().sum(-1)  # + log|K|
    trace = scale.square().flatten(0, -3).sum(0)
    return 0.5 * (trace + mean.square().sum(0) - len(mean) + log_determinants)


def _transposed_product(P: Tensor, V: Tensor) -> Tensor:
    """PᵀV for P (M, M, D, B) and V (M, S, D, B)."""
    return (P[:, :, None] * V[:, None]).sum(0)
