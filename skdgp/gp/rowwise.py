"""Gaussian algebra for many small problems at once: one per row and output, rows last in memory.

An amortised layer factorises B·D matrices of a handful of inducing points in every step. LAPACK takes
them one by one; here the matrix dimensions come first and the rows last, so that every elementary step
of an elimination is one vector operation on all of them.

Shapes: matrices (M, M, D, B), cross-correlations (M, S, D, B), vectors (M, D, B). The formulas are
those of :mod:`skdgp.gp.conditionals`, for a prior of unit variance; the tests hold the two to each other.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .conditionals import VARIANCE_FLOOR
from .linalg import JITTER, inverse_cholesky

#: Above this size LAPACK, matrix by matrix, is faster than the elimination (measured on two cores).
_MAX_ELIMINATION = 24


def _eliminate(K: Tensor, jitter: float) -> Tensor:
    """W = L⁻¹, where K + jitter·I = L Lᵀ, by elimination without pivoting.

    Step j makes row j of W final and clears column j of K below it. Columns up to j then belong to W
    and later ones still to K, so one array holds both. A pivot that is not positive leaves NaN or
    infinity on the diagonal.
    """
    T = K.clone()
    T.diagonal(dim1=0, dim2=1).add_(jitter)
    for j, row in enumerate(T.unbind()):
        pivot = row[j]
        inverse_pivot = pivot.rsqrt()
        pivot.fill_(1.0)
        row.mul_(inverse_pivot)
        factors = row[j + 1 :]  # L_ij for the rows i > j below
        below = T[j + 1 :]
        below[:, j].zero_()
        below.addcmul_(factors[:, None], row, value=-1.0)
        factors.zero_()
    return T


def _inverse_root(K: Tensor, jitter: float) -> Tensor:
    """Inverse lower Cholesky factors of (M, M, D, B) matrices, by whichever method is faster."""
    if len(K) <= _MAX_ELIMINATION:
        W = _eliminate(K, jitter)
        if W.diagonal(dim1=0, dim2=1).isfinite().all():
            return W
    W = inverse_cholesky(K.permute(2, 3, 0, 1).contiguous(), jitter)  # grows the jitter, or explains
    return W.permute(2, 3, 0, 1).contiguous()


class _Whiten(torch.autograd.Function):
    """W = L⁻¹ and A = W k, where K = L Lᵀ.

    With dW = −Φ(W dK Wᵀ) W (see :func:`skdgp.gp.linalg.inverse_cholesky`) and dA = dW k + W dk:
    k̄ = WᵀĀ and K̄ = −Wᵀ Φ(W̄Wᵀ + ĀAᵀ) W. It need not be symmetrised: whatever made K made it
    symmetric. Every product below runs over the lower triangles alone.
    """

    @staticmethod
    def forward(ctx, K: Tensor, k: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        W = _inverse_root(K, jitter)
        A = torch.zeros_like(k)
        for j in range(len(W)):
            A[j:].addcmul_(W[j:, j, None], k[j])
        ctx.save_for_backward(W, A)
        return W, A

    @staticmethod
    @once_differentiable
    def backward(ctx, W_bar: Tensor | None, A_bar: Tensor | None) -> tuple[Tensor, Tensor | None, None]:
        W, A = ctx.saved_tensors
        last = len(W) - 1
        # Only lower triangles of ``inner`` and ``right`` are ever read.
        inner = torch.zeros_like(W) if A_bar is None else torch.empty_like(W)  # Φ(W̄Wᵀ + ĀAᵀ)
        k_bar = None
        if A_bar is not None:
            for i in range(last + 1):
                torch.sum(A_bar[i] * A[: i + 1], dim=1, out=inner[i, : i + 1])
            k_bar = W[last, :, None] * A_bar[last]
            for i in range(last):
                k_bar[: i + 1].addcmul_(W[i, : i + 1, None], A_bar[i])
        if W_bar is not None:
            for j in range(last + 1):
                inner[j:, j] += (W_bar[j:, : j + 1] * W[j, : j + 1]).sum(1)
        inner.diagonal(dim1=0, dim2=1).mul_(0.5)
        right = inner[:, 0, None] * W[0].neg()  # −Φ W
        for j in range(1, last + 1):
            right[j:, : j + 1].addcmul_(inner[j:, j, None], W[j, : j + 1], value=-1.0)
        K_bar = W[last, :, None] * right[last]  # −WᵀΦ W
        for i in range(last):
            K_bar[: i + 1, : i + 1].addcmul_(W[i, : i + 1, None], right[i, : i + 1])
        return K_bar, k_bar, None


class _DiagonalMarginals(torch.autograd.Function):
    """m = Σ_i μ_i A_i and d = Σ_i c_i A_i², i over inducing variables.

    Ā_i = μ_i m̄ + 2 c_i A_i d̄, μ̄_i = Σ_s A_i m̄ and c̄_i = Σ_s A_i² d̄.
    """

    @staticmethod
    def forward(ctx, A: Tensor, mean: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(A, mean, change)
        return (A * mean[:, None]).sum(0), A.square().mul(change[:, None]).sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, m_bar: Tensor, d_bar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        A, mean, change = ctx.saved_tensors
        scaled = A * d_bar
        mean_bar = (A * m_bar).sum(1)
        change_bar = (A * scaled).sum(1)
        A_bar = (mean[:, None] * m_bar).addcmul_(scaled, change[:, None], value=2.0)
        return A_bar.sum_to_size(A.shape), mean_bar, change_bar


def whiten(K: Tensor, k: Tensor, jitter: float = JITTER) -> tuple[Tensor, Tensor]:
    """Inverse Cholesky factors of ``K`` and the whitened ``k``.

    Parameters
    ----------
    K : Tensor of shape (M, M, D, B)
        Correlations of inducing variables.
    k : Tensor of shape (M, S, D, B)
        Correlations of inducing variables and S function values.
    jitter : float, default=JITTER
        Added to the unit diagonals of ``K``.

    Returns
    -------
    W : Tensor of shape (M, M, D, B)
    A : Tensor of shape (M, S, D, B)
        ``W`` times ``k``.
    """
    return _Whiten.apply(K, k, jitter)


def conditional(W: Tensor, A: Tensor, mean: Tensor, scale: Tensor, *, whiten: bool) -> tuple[Tensor, Tensor]:
    """Marginal means and variances (S, D, B); see :func:`skdgp.gp.conditionals.conditional`."""
    if whiten and scale.dim() == 3:
        posterior_mean, change = _DiagonalMarginals.apply(A, mean, scale.square() - 1.0)
    else:
        V = A if whiten else _transposed_product(W, A)
        root = scale[:, None] * V if scale.dim() == 3 else _transposed_product(scale, V)
        posterior_mean = (mean[:, None] * V).sum(0)
        change = root.square().sum(0) - A.square().sum(0)
    return posterior_mean, (change + 1.0).clamp(min=VARIANCE_FLOOR)


def kl_divergence(mean: Tensor, scale: Tensor, W: Tensor | None = None) -> Tensor:
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
