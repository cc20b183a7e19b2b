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
from .linalg import JITTER, being_recorded, inverse_cholesky

#: Above this size LAPACK, matrix by matrix, is faster than the elimination (measured on two cores).
_MAX_ELIMINATION = 24


class Packing(NamedTuple):
    """Where packed correlations are in larger arrays: flat indices of their first two dimensions."""

    square: Tensor  # of [K, k], (M, M + S): pairs at (i, j) with i > j, then k
    mirrored: Tensor  # the same pairs at (j, i)
    tableau: Tensor  # of [K, k, I], (M, M + S + M): pairs at (j, i), then k


@lru_cache(maxsize=64)
def packing(n_inducing: int, n_points: int, device: torch.device) -> Packing:
    """How correlations are packed: nothing is kept twice, nor the diagonal of ones."""
    lower, upper = torch.tril_indices(n_inducing, n_inducing, -1)
    square = torch.arange(n_inducing * (n_inducing + n_points)).reshape(n_inducing, -1)
    tableau = torch.arange(n_inducing * (2 * n_inducing + n_points)).reshape(n_inducing, -1)
    cross = slice(n_inducing, n_inducing + n_points)
    return Packing(
        torch.cat([square[lower, upper], square[:, cross].flatten()]).to(device),
        square[upper, lower].to(device),
        torch.cat([tableau[upper, lower], tableau[:, cross].flatten()]).to(device),
    )


def _eliminate(correlations: Tensor, n_inducing: int, jitter: float) -> Tensor:
    """[A, W] of shape (M, S + M, D, B), where W = L⁻¹, K = L Lᵀ and A = W k, by elimination without pivoting.

    Step j divides row j of [K, k, I] by the root of its pivot, which makes it a row of [Lᵀ, A, W], and takes
    its multiples from the rows below. Only numbers between the pivot and the j-th column of I change: what is
    left of that is done with, and below the diagonal of K nothing is ever read. A pivot that is not positive
    leaves NaN or infinity on the diagonal of W.
    """
    n_points = (len(correlations) - n_inducing * (n_inducing - 1) // 2) // n_inducing
    width = n_inducing + n_points
    T = correlations.new_zeros(n_inducing, width + n_inducing, *correlations.shape[1:])
    T.flatten(0, 1).index_copy_(0, packing(n_inducing, n_points, T.device).tableau, correlations)
    T.diagonal(dim1=0, dim2=1).fill_(1.0 + jitter)
    T.diagonal(width, dim1=0, dim2=1).fill_(1.0)
    for j in range(n_inducing):
        row = T[j, j : width + j + 1]
        row.mul_(row[0].rsqrt())
        if j + 1 < n_inducing:
            L_j = row[1 : n_inducing - j, None]  # column j of L, below the pivot
            T[j + 1 :, j + 1 : width + j + 1].addcmul_(L_j, row[1:], value=-1.0)
    return T[:, n_inducing:]


def _factorise(correlations: Tensor, n_inducing: int, jitter: float) -> Tensor:
    """The same by LAPACK, matrix by matrix, with as much jitter as it takes."""
    n_pairs = n_inducing * (n_inducing - 1) // 2
    rows, columns = torch.tril_indices(n_inducing, n_inducing, -1, device=correlations.device)
    pairs = correlations[:n_pairs].permute(1, 2, 0)  # (D, B, M(M−1)/2)
    K = torch.eye(n_inducing, dtype=pairs.dtype, device=pairs.device).repeat(*pairs.shape[:2], 1, 1)
    K[..., rows, columns] = pairs
    K[..., columns, rows] = pairs
    W = inverse_cholesky(K, jitter)
    k = correlations[n_pairs:].unflatten(0, (n_inducing, -1)).permute(2, 3, 0, 1)
    return torch.cat([W @ k, W], dim=-1).permute(2, 3, 0, 1).contiguous()


def _whiten(correlations: Tensor, n_inducing: int, jitter: float) -> Tensor:
    """[A, W] by the method that suits."""
    if n_inducing <= _MAX_ELIMINATION:
        solved = _eliminate(correlations, n_inducing, jitter)
        if being_recorded(solved) or solved[:, -n_inducing:].diagonal(dim1=0, dim2=1).isfinite().all():
            return solved
    return _factorise(correlations, n_inducing, jitter)


def _lower_transposed_product(W: Tensor, Y: Tensor) -> Tensor:
    """WᵀY for lower triangular W (M, M, D, B) and Y (M, ·, D, B)."""
    product = W[-1, :, None] * Y[-1]
    for i in range(len(W) - 1):
        product[: i + 1].addcmul_(W[i, : i + 1, None], Y[i])
    return product


def _pack_gradient(bar: Tensor) -> Tensor:
    """Gradient of packed correlations from that of [K, k]: a pair is two numbers of K."""
    n_inducing = len(bar)
    square, mirrored, _ = packing(n_inducing, bar.shape[1] - n_inducing, bar.device)
    bar = bar.flatten(0, 1)
    gradient = bar.index_select(0, square)
    gradient[: len(mirrored)] += bar.index_select(0, mirrored)
    return gradient


class _Whiten(torch.autograd.Function):
    """W = L⁻¹ and A = W k, where K = L Lᵀ, from the packed correlations in K and k.

    With dW = −Φ(W dK Wᵀ) W (see :func:`skdgp.gp.linalg.inverse_cholesky`) and dA = dW k + W dk:
    k̄ = WᵀĀ and K̄ = −Wᵀ Φ(W̄Wᵀ + ĀAᵀ) W. Every product below runs over the lower triangles alone.
    """

    @staticmethod
    def forward(ctx, correlations: Tensor, n_inducing: int, jitter: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        solved = _whiten(correlations, n_inducing, jitter)
        A, W = solved[:, :-n_inducing], solved[:, -n_inducing:]
        ctx.save_for_backward(W, A)
        return W, A

    @staticmethod
    @once_differentiable
    def backward(ctx, W_bar: Tensor | None, A_bar: Tensor | None) -> tuple[Tensor, None, None]:
        W, A = ctx.saved_tensors
        n_inducing, n_points = A.shape[:2]
        # Only the lower triangle of Φ is ever read.
        Phi = torch.zeros_like(W) if A_bar is None else torch.empty_like(W)
        right = W.new_zeros(n_inducing, n_inducing + n_points, *W.shape[2:])  # [−Φ W, Ā]
        if A_bar is not None:
            right[:, n_inducing:] = A_bar
            for i in range(n_inducing):
                torch.sum(A_bar[i] * A[: i + 1], dim=1, out=Phi[i, : i + 1])
        if W_bar is not None:
            for j in range(n_inducing):
                Phi[j:, j] += (W_bar[j:, : j + 1] * W[j, : j + 1]).sum(1)
        Phi.diagonal(dim1=0, dim2=1).mul_(0.5)
        for j in range(n_inducing):
            right[j:, : j + 1].addcmul_(Phi[j:, j, None], W[j, : j + 1], value=-1.0)
        return _pack_gradient(_lower_transposed_product(W, right)), None, None


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


class _PlainDiagonalPosterior(torch.autograd.Function):
    """The same of inducing variables u themselves, from the packed correlations, without a gradient of L.

    With P = K⁻¹ and V = P k: m = σ Σ μ_i V_i, v = σ² (1 − Σ A_i² + Σ c_i² V_i²), where Σ A_i² = kᵀP k loses
    nothing to cancellation, and KL = ½ (Σ c_i² P_ii + μᵀPμ − M + log|K| − Σ log c_i²).

    As dP = −P dK P, V and P have all that gradients need. With m̄ and v̄ those of m/σ and v/σ², sums over
    points s, N = Σ v̄ V Vᵀ, q = Σ m̄ V, C = diag(c), E = P C² − I and F = 2N + ½ k̄l P:

        k̄ = Pμ m̄ + 2 E V v̄
        K̄ = −N − E F − Pμ (q + ½ k̄l Pμ)ᵀ
        μ̄ = q + k̄l Pμ
        c̄ = 2 c diag(N) + k̄l (c diag(P) − 1/c)
    """

    @staticmethod
    def forward(
        ctx, correlations: Tensor, mean: Tensor, scale: Tensor, deviation: Tensor, jitter: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_inducing = len(mean)
        solved = _whiten(correlations, n_inducing, jitter)
        A, W = solved[:, :-n_inducing], solved[:, -n_inducing:]
        VP = _lower_transposed_product(W, solved)
        V, P = VP[:, :-n_inducing], VP[:, -n_inducing:]
        square = scale.square()  # (M, D, B)
        m = (V * mean[:, None]).sum(0).mul_(deviation)  # (S, D, B)
        unit = (V.square() * square[:, None]).sum(0).sub_(A.square().sum(0)).add_(1.0).clamp_(min=VARIANCE_FLOOR)
        v = unit * deviation.square()
        P_mean = (P * mean).sum(1)  # Pμ
        diagonal, determinant = P.diagonal(dim1=0, dim2=1).movedim(-1, 0), W.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        logs = (scale * determinant).log_()
        kl = (square * diagonal).addcmul_(mean, P_mean).sub_(logs, alpha=2.0).sum(0).sub_(n_inducing).mul_(0.5)
        ctx.save_for_backward(VP, P_mean, scale, deviation, m, v)
        return m, v, kl

    @staticmethod
    @once_differentiable
    def backward(ctx, m_bar: Tensor, v_bar: Tensor, kl_bar: Tensor) -> tuple[Tensor | None, ...]:
        VP, P_mean, scale, deviation, m, v = ctx.saved_tensors
        n_inducing = len(VP)
        V, P = VP[:, :-n_inducing], VP[:, -n_inducing:]
        deviation_bar = (m_bar * m).add_(v_bar * v, alpha=2.0).sum_to_size(deviation.shape).div(deviation)
        u_bar = m_bar * deviation  # (S, D, B)
        w_bar = v_bar * deviation.square()
        scaled = V * w_bar
        N = torch.stack([(scaled * V[i]).sum(1) for i in range(n_inducing)])  # (M, M, D, B)
        q = (V * u_bar).sum(1)
        half = 0.5 * kl_bar

        E = P * scale.square()
        E.diagonal(dim1=0, dim2=1).sub_(1.0)
        FV = torch.cat([torch.addcmul(2.0 * N, P, half), 2.0 * scaled], dim=1)
        bar = E[:, 0, None] * FV[0]
        for j in range(1, n_inducing):
            bar.addcmul_(E[:, j, None], FV[j])
        bar[:, n_inducing:].addcmul_(P_mean[:, None], u_bar)
        K_bar = bar[:, :n_inducing]
        K_bar.add_(N).addcmul_(P_mean[:, None], torch.addcmul(q, P_mean, half)).neg_()

        diagonal = P.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        change = (scale * diagonal).sub_(scale.reciprocal())
        scale_bar = (N.diagonal(dim1=0, dim2=1).movedim(-1, 0) * scale).mul_(2.0).addcmul_(change, kl_bar)
        shape = (len(bar), bar.shape[1], *VP.shape[2:])
        return _pack_gradient(bar.sum_to_size(shape)), q.addcmul_(P_mean, kl_bar), scale_bar, deviation_bar, None


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


def conditional(
    correlations: Tensor,
    mean: Tensor,
    scale: Tensor,
    deviation: Tensor,
    *,
    whiten: bool,
    jitter: float = JITTER,
) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals of function values and the KL divergence of inducing variables.

    Parameters
    ----------
    correlations : Tensor of shape (M(M−1)/2 + M·S, D, B) or, where outputs share a kernel, (·, 1, B)
        Packed, of M inducing variables and S function values.
    mean, scale : Tensors of shapes (M, D, B) and (M, D, B) or (M, M, D, B)
        Gaussian over v (``whiten``) or u of a prior of zero mean and unit variance.
    deviation : Tensor of shape (D, 1) or (1, 1)
        σ, of the prior. Without ``whiten`` it scales the marginals alone.
    jitter : float, default=JITTER
        Added to the unit diagonals of K.

    Returns
    -------
    mean, variance : Tensors of shape (S, D, B)
        See :func:`skdgp.gp.conditionals.conditional`.
    kl : Tensor of shape (D, B)
        See :func:`skdgp.gp.conditionals.kl_divergence`.
    """
    diagonal = scale.dim() == 3
    if diagonal and not whiten:
        return _PlainDiagonalPosterior.apply(correlations, mean, scale, deviation, jitter)
    W, A = _Whiten.apply(correlations, len(mean), jitter)
    if diagonal:
        return _DiagonalPosterior.apply(A, mean, scale, deviation)
    return posterior(W, A, mean, scale, deviation, whiten=whiten)


def posterior(
    W: Tensor, A: Tensor, mean: Tensor, scale: Tensor, deviation: Tensor, *, whiten: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same from what :func:`whiten` returns, as the formulas are written; of any covariance."""
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
