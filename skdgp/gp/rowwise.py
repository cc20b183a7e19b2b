"""Covariances and Gaussian algebra for many small problems at once: one per row and output, rows last in memory.

An amortised layer factorises B·D matrices of a handful of inducing points in every step. LAPACK takes
them one by one; here the matrix dimensions come first and the rows last, so that every elementary step
of an elimination is one vector operation on all of them.

Shapes: matrices (M, M, D, B), cross-correlations (M, S, D, B), vectors (M, D, B). Correlations come
packed, (M(M−1)/2 + M·S, D, B): each pair of inducing variables once, then every inducing variable with
every point; see :func:`packing`. The formulas are those of :mod:`skdgp.gp.conditionals`, for a prior of
unit variance, and tests compare the two. If models are stacked, a dimension of members lies between D and B. In
tensors with rows first it comes right after the rows.

All this is for the correlations of one stationary kernel. :func:`plain_conditional` takes any kernel, by autograd.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import conditionals
from .autograd import Function
from .conditionals import VARIANCE_FLOOR
from .correlations import Profile
from .kernels import PROFILES, Kernel, StationaryKernel
from .linalg import JITTER, being_recorded, inverse_cholesky

#: Above this number of inducing points :func:`plain_conditional` takes over. With 500 rows and layers of 16, 4 and 1
#: outputs the elimination takes 0.45 times as long with 32 points, and 0.65 times with 48. Then the advantage shrinks.
MAX_ELIMINATION = 48


class Packing(NamedTuple):
    """Positions of packed correlations in larger arrays: flat indices of their first two dimensions."""

    square: Tensor  # of [K, k], (M, M + S): pairs at (i, j) with i > j, then k
    mirrored: Tensor  # the same pairs at (j, i)
    tableau: Tensor  # of [K, k, I], (M, M + S + M): pairs at (j, i), then k


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
def packing(n_inducing: int, n_points: int, device: torch.device) -> Packing:
    """Positions of packed correlations, in which each pair is stored once, and the diagonal of ones is not stored."""
    lower, upper = torch.tril_indices(n_inducing, n_inducing, -1, device=device)
    square = torch.arange(n_inducing * (n_inducing + n_points), device=device).reshape(n_inducing, -1)
    tableau = torch.arange(n_inducing * (2 * n_inducing + n_points), device=device).reshape(n_inducing, -1)
    cross = slice(n_inducing, n_inducing + n_points)
    return Packing(
        torch.cat([square[lower, upper], square[:, cross].flatten()]),
        square[upper, lower],
        torch.cat([tableau[upper, lower], tableau[:, cross].flatten()]),
    )


def packed_correlation(kernel: StationaryKernel, Z: Tensor, x: Tensor) -> Tensor:
    """Correlations within each row's points and with others.

    Parameters
    ----------
    kernel : StationaryKernel
    Z : Tensor of shape (B, M, Q)
    x : Tensor of shape (B, S, Q)

    Returns
    -------
    Tensor of shape (M(M−1)/2 + M·S, D, B)
        See :func:`packing`.
    """
    s = kernel.inverse_square
    if s.shape[-1] > 1:
        rate = s.sqrt()[..., None, :]
        Z, x = Z.unsqueeze(-3) * rate, x.unsqueeze(-3) * rate  # (B, D, ·, Q)
        r2, s = _PackedSquaredDistance.apply(Z, x)[0], s.new_ones(1)
    else:
        r2, s = _PackedSquaredDistance.apply(Z, x)[0].unsqueeze(1), s.movedim(-2, 0)  # (packed, 1, B), (D, 1)
    return _PackedCorrelation.apply(r2, s, PROFILES[kernel.profile])[0]


class _PackedSquaredDistance(Function):
    """r² between points Z (B, ..., M, Q) of each row, and from them to x (B, ..., S, Q), packed.

    x̄_i = 2 Σ_j g_ij (x_i − x'_j) and x̄'_j = 2 Σ_i g_ij (x'_j − x_i) are matrix products. Rows go last at
    this stage, since there is more to move once each output has numbers of its own.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(Z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        points = torch.cat([Z, x], dim=-2)
        # Differences, not ‖a‖² + ‖b‖² − 2ab: exact zeros on the diagonal, no cancellation in float32.
        r2 = torch.cdist(Z, points, compute_mode="donot_use_mm_for_euclid_dist").flatten(-2)  # (B, ..., M·(M + S))
        index = packing(Z.shape[-2], x.shape[-2], Z.device).square
        return r2.permute(*range(r2.dim() - 1, -1, -1)).index_select(0, index).square_(), points  # (packed, ..., B)

    @staticmethod
    def setup_context(ctx, inputs, output):
        points = output[1]
        ctx.mark_non_differentiable(points)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], points)

    @staticmethod
    @once_differentiable
    def backward(ctx, r2_bar: Tensor | None, _) -> tuple[Tensor | None, ...]:
        if r2_bar is None:
            return None, None
        Z, points = ctx.saved_tensors
        n_inducing, n_columns = Z.shape[-2], points.shape[-2]
        index = packing(n_inducing, n_columns - n_inducing, Z.device).square
        C = r2_bar.new_zeros(n_inducing * n_columns, *r2_bar.shape[1:]).index_copy_(0, index, r2_bar.mul(2.0))
        C = C.permute(*range(C.dim() - 1, -1, -1)).contiguous().unflatten(-1, (n_inducing, n_columns))
        Z_bar = torch.addcmul(-(C @ points), Z, C.sum(-1, keepdim=True))
        points_bar = torch.addcmul(-(C.mT @ Z), points, C.sum(-2)[..., None])
        return Z_bar.add_(points_bar[..., :n_inducing, :]), points_bar[..., n_inducing:, :]


class _PackedCorrelation(Function):
    """k(a) for a² = c² r² s, where r² and s = 1/ℓ² broadcast.

    With G = −k̄ c² h/2 the gradients are Σ_d G s for r² and Σ G r² for s.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(r2: Tensor, s: Tensor, profile: Profile) -> tuple[Tensor, Tensor | None]:
        return profile.evaluate(r2.sqrt() * (-profile.rate * s.sqrt()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        (r2, s, profile), (k, h) = inputs, output
        if h is not None:
            ctx.mark_non_differentiable(h)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(r2, s, k if h is None else h)
        ctx.factor = -0.5 * profile.slope * profile.rate**2

    @staticmethod
    @once_differentiable
    def backward(ctx, k_bar: Tensor | None, _) -> tuple[Tensor | None, ...]:
        if k_bar is None:
            return None, None, None
        r2, s, h = ctx.saved_tensors
        G = k_bar * h
        s_bar = (G * r2).sum_to_size(s.shape).mul_(ctx.factor) if ctx.needs_input_grad[1] else None
        return (G.mul_(s)).sum_to_size(r2.shape).mul_(ctx.factor), s_bar, None


def _eliminate(correlations: Tensor, n_inducing: int, jitter: float) -> Tensor:
    """[A, W] of shape (M, S + M, D, B), where W = L⁻¹, K = L Lᵀ and A = W k, by elimination without pivoting.

    Step j divides row j of [K, k, I] by the root of its pivot, which makes it a row of [Lᵀ, A, W], and
    subtracts its multiples from the rows below. Only numbers between the pivot and the j-th column of I change. Columns
    left of the pivot are finished, and nothing below the diagonal of K is ever read. A pivot that is not positive
    leaves NaN or infinity on the diagonal of W.
    """
    n_points = (len(correlations) - n_inducing * (n_inducing - 1) // 2) // n_inducing
    width = n_inducing + n_points
    T = correlations.new_empty(n_inducing, width + n_inducing, *correlations.shape[1:])
    T[:, width:].zero_()
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
    """The same by LAPACK, matrix by matrix, with as much jitter as a matrix needs."""
    n_pairs = n_inducing * (n_inducing - 1) // 2
    rows, columns = torch.tril_indices(n_inducing, n_inducing, -1, device=correlations.device)
    pairs = correlations[:n_pairs].movedim(0, -1)  # (D, B, M(M−1)/2)
    K = torch.eye(n_inducing, dtype=pairs.dtype, device=pairs.device).repeat(*pairs.shape[:-1], 1, 1)
    K[..., rows, columns] = pairs
    K[..., columns, rows] = pairs
    W = inverse_cholesky(K, jitter)
    k = correlations[n_pairs:].unflatten(0, (n_inducing, -1)).movedim((0, 1), (-2, -1))
    return torch.cat([W @ k, W], dim=-1).movedim((-2, -1), (0, 1)).contiguous()


def _factor(correlations: Tensor, n_inducing: int, jitter: float) -> Tensor:
    """[A, W] by elimination; by LAPACK if matrices are large or the elimination fails."""
    if n_inducing <= MAX_ELIMINATION:
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
    """Gradient of packed correlations from that of [K, k], where each pair has two entries in K."""
    n_inducing = len(bar)
    square, mirrored, _ = packing(n_inducing, bar.shape[1] - n_inducing, bar.device)
    bar = bar.flatten(0, 1)
    gradient = bar.index_select(0, square)
    gradient[: len(mirrored)] += bar.index_select(0, mirrored)
    return gradient


class _WhitenRows(Function):
    """W = L⁻¹ and A = W k, where K = L Lᵀ, from the packed correlations in K and k.

    With dW = −Φ(W dK Wᵀ) W (derived in ``skdgp.gp.linalg._WhitenSets``) and dA = dW k + W dk:
    k̄ = WᵀĀ and K̄ = −Wᵀ Φ(W̄Wᵀ + ĀAᵀ) W. Every product below runs over the lower triangles alone.
    """

    @staticmethod
    def forward(correlations: Tensor, n_inducing: int, jitter: float) -> tuple[Tensor, Tensor]:
        solved = _factor(correlations, n_inducing, jitter)
        return solved[:, -n_inducing:], solved[:, :-n_inducing]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

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


def _or_zeros(bars: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of the first outputs, with zeros for outputs on which nothing depends."""
    return [torch.zeros_like(output) if bar is None else bar for bar, output in zip(bars, like, strict=False)]


class _DiagonalPosterior(Function):
    """Marginals and KL divergence of a diagonal posterior of whitened inducing variables.

    With sums over inducing variables i: m = σ Σ μ_i A_i, v = σ² (1 + Σ (c_i² − 1) A_i²) and
    KL = ½ Σ (c_i² + μ_i² − 1 − log c_i²), where c are posterior deviations and σ that of the prior.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, mean: Tensor, root: Tensor, deviation: Tensor) -> tuple[Tensor, ...]:
        change = root.square().sub_(1.0)  # (M, D, B)
        m = (A * mean[:, None]).sum(0).mul_(deviation)
        unit = (A.square() * change[:, None]).sum(0).add_(1.0).clamp_(min=VARIANCE_FLOOR)  # v/σ²
        v = unit * deviation.square()
        kl = (change + mean.square()).sub_(root.log(), alpha=2.0).sum(0).mul_(0.5)
        return m, v, kl, change

    @staticmethod
    def setup_context(ctx, inputs, output):
        m, v, _, change = output
        ctx.mark_non_differentiable(change)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, change, m, v)

    @staticmethod
    @once_differentiable
    def backward(ctx, *bars: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        A, mean, root, deviation, change, m, v = ctx.saved_tensors
        m_bar, v_bar, kl_bar = _or_zeros(bars, (m, v, mean[0]))
        deviation_bar = (m_bar * m).add_(v_bar * v, alpha=2.0).sum_to_size(deviation.shape).div(deviation)
        u_bar = m_bar * deviation  # (S, D, B)
        d_bar = v_bar * deviation.square().mul(2.0)
        scaled = A * d_bar
        A_bar = (mean[:, None] * u_bar).addcmul_(scaled, change[:, None])
        mean_bar = (A * u_bar).sum(1).addcmul_(mean, kl_bar)
        root_bar = (A * scaled).sum(1).mul_(root).addcmul_(root - root.reciprocal(), kl_bar)
        return A_bar.sum_to_size(A.shape), mean_bar, root_bar, deviation_bar


class _PlainDiagonalPosterior(Function):
    """The same for inducing variables u themselves, from the packed correlations, without a gradient of L.

    With P = K⁻¹ and V = P k: m = σ Σ μ_i V_i, v = σ² (1 − Σ A_i² + Σ c_i² V_i²), where Σ A_i² = kᵀP k has no
    cancellation errors, and KL = ½ (Σ c_i² P_ii + μᵀPμ − M + log|K| − Σ log c_i²).

    Since dP = −P dK P, gradients need only V and P. With the gradients m̄ and v̄ of m/σ and v/σ², sums over
    points s, N = Σ v̄ V Vᵀ, q = Σ m̄ V, C = diag(c), E = P C² − I and F = 2N + ½ k̄l P:

        k̄ = Pμ m̄ + 2 E V v̄
        K̄ = −N − E F − Pμ (q + ½ k̄l Pμ)ᵀ
        μ̄ = q + k̄l Pμ
        c̄ = 2 c diag(N) + k̄l (c diag(P) − 1/c)
    """

    @staticmethod
    def forward(
        correlations: Tensor, mean: Tensor, root: Tensor, deviation: Tensor, jitter: float
    ) -> tuple[Tensor, ...]:
        n_inducing = len(mean)
        solved = _factor(correlations, n_inducing, jitter)
        A, W = solved[:, :-n_inducing], solved[:, -n_inducing:]
        VP = _lower_transposed_product(W, solved)
        V, P = VP[:, :-n_inducing], VP[:, -n_inducing:]
        square = root.square()  # (M, D, B)
        m = (V * mean[:, None]).sum(0).mul_(deviation)  # (S, D, B)
        unit = (V.square() * square[:, None]).sum(0).sub_(A.square().sum(0)).add_(1.0).clamp_(min=VARIANCE_FLOOR)
        v = unit * deviation.square()
        P_mean = (P * mean).sum(1)  # Pμ
        diagonal, determinant = P.diagonal(dim1=0, dim2=1).movedim(-1, 0), W.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        logs = (root * determinant).log_()
        kl = (square * diagonal).addcmul_(mean, P_mean).sub_(logs, alpha=2.0).sum(0).sub_(n_inducing).mul_(0.5)
        return m, v, kl, VP, P_mean

    @staticmethod
    def setup_context(ctx, inputs, output):
        m, v, _, VP, P_mean = output
        ctx.mark_non_differentiable(VP, P_mean)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(VP, P_mean, *inputs[2:4], m, v)

    @staticmethod
    @once_differentiable
    def backward(ctx, *bars: Tensor | None) -> tuple[Tensor | None, ...]:
        VP, P_mean, root, deviation, m, v = ctx.saved_tensors
        m_bar, v_bar, kl_bar = _or_zeros(bars, (m, v, P_mean[0]))
        n_inducing = len(VP)
        V, P = VP[:, :-n_inducing], VP[:, -n_inducing:]
        deviation_bar = (m_bar * m).add_(v_bar * v, alpha=2.0).sum_to_size(deviation.shape).div(deviation)
        u_bar = m_bar * deviation  # (S, D, B)
        w_bar = v_bar * deviation.square()
        scaled = V * w_bar
        N = torch.stack([(scaled * V[i]).sum(1) for i in range(n_inducing)])  # (M, M, D, B)
        q = (V * u_bar).sum(1)
        half = 0.5 * kl_bar

        E = P * root.square()
        E.diagonal(dim1=0, dim2=1).sub_(1.0)
        FV = torch.cat([torch.addcmul(2.0 * N, P, half), 2.0 * scaled], dim=1)
        bar = E[:, 0, None] * FV[0]
        for j in range(1, n_inducing):
            bar.addcmul_(E[:, j, None], FV[j])
        bar[:, n_inducing:].addcmul_(P_mean[:, None], u_bar)
        K_bar = bar[:, :n_inducing]
        K_bar.add_(N).addcmul_(P_mean[:, None], torch.addcmul(q, P_mean, half)).neg_()

        diagonal = P.diagonal(dim1=0, dim2=1).movedim(-1, 0)
        change = (root * diagonal).sub_(root.reciprocal())
        root_bar = (N.diagonal(dim1=0, dim2=1).movedim(-1, 0) * root).mul_(2.0).addcmul_(change, kl_bar)
        shape = (len(bar), bar.shape[1], *VP.shape[2:])
        return _pack_gradient(bar.sum_to_size(shape)), q.addcmul_(P_mean, kl_bar), root_bar, deviation_bar, None


def whiten_rows(correlations: Tensor, n_inducing: int, jitter: float = JITTER) -> tuple[Tensor, Tensor]:
    """Inverse Cholesky factors of inducing variables' correlations, and whitened cross-correlations.

    Parameters
    ----------
    correlations : Tensor of shape (M(M−1)/2 + M·S, D, B)
        Packed correlations: K between inducing variables, and k between these and S function values.
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
    return _WhitenRows.apply(correlations, n_inducing, jitter)


def conditional(
    correlations: Tensor, mean: Tensor, root: Tensor, deviation: Tensor, *, whiten: bool, jitter: float = JITTER
) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals of function values and the KL divergence of inducing variables.

    Parameters
    ----------
    correlations : Tensor of shape (M(M−1)/2 + M·S, D, B) or, where outputs share a kernel, (·, 1, B)
        Packed, of M inducing variables and S function values.
    mean, root : Tensors of shapes (M, D, B) and (M, D, B) or (M, M, D, B)
        Gaussian over v (with ``whiten``) or over u, whose prior has zero mean and unit variance.
    deviation : Tensor of shape (D, 1) or (1, 1)
        σ, of the prior. Without ``whiten`` it scales only the marginals, not ``mean`` and ``root``.
    jitter : float, default=JITTER
        Added to the unit diagonals of K.

    Returns
    -------
    mean, variance : Tensors of shape (S, D, B)
        See :func:`skdgp.gp.conditionals.conditional`.
    kl : Tensor of shape (D, B)
        See :func:`skdgp.gp.conditionals.kl_divergence`.
    """
    diagonal = root.dim() == mean.dim()
    if diagonal and not whiten:
        return _PlainDiagonalPosterior.apply(correlations, mean, root, deviation, jitter)[:3]
    W, A = whiten_rows(correlations, len(mean), jitter)
    if diagonal:
        return _DiagonalPosterior.apply(A, mean, root, deviation)[:3]
    return posterior(W, A, mean, root, deviation, whiten=whiten)


def posterior(
    W: Tensor, A: Tensor, mean: Tensor, root: Tensor, deviation: Tensor, *, whiten: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same from what :func:`whiten_rows` returns, for any covariance, directly by the formulas."""
    V = A if whiten else _transposed_product(W, A)
    product = root[:, None] * V if root.dim() == mean.dim() else _transposed_product(root, V)
    variance = (product.square().sum(0) - A.square().sum(0) + 1.0).clamp(min=VARIANCE_FLOOR)
    kl = _kl_divergence(mean, root, None if whiten else W)
    return (mean[:, None] * V).sum(0) * deviation, variance * deviation.square(), kl


def _kl_divergence(mean: Tensor, root: Tensor, W: Tensor | None) -> Tensor:
    """KL divergences (D, B); see :func:`skdgp.gp.conditionals.kl_divergence`."""
    dense = root.dim() > mean.dim()
    diagonal = root.diagonal(dim1=0, dim2=1).movedim(-1, 0) if dense else root  # (M, D, B)
    log_determinants = -2.0 * diagonal.log().sum(0)
    if W is not None:
        mean = (W * mean).sum(1)
        root = (W[:, :, None] * root).sum(1) if dense else W * root
        log_determinants = log_determinants - 2.0 * W.diagonal(dim1=0, dim2=1).log().sum(-1)  # + log|K|
    trace = root.square().flatten(0, root.dim() - mean.dim()).sum(0)  # mean is (M, D, B), whatever root has become
    return 0.5 * (trace + mean.square().sum(0) - len(mean) + log_determinants)


def _transposed_product(P: Tensor, V: Tensor) -> Tensor:
    """PᵀV for P (M, M, D, B) and V (M, S, D, B)."""
    return (P[:, :, None] * V[:, None]).sum(0)


def plain_conditional(
    kernel: Kernel, Z: Tensor, x: Tensor, mean: Tensor, root: Tensor, *, whiten: bool, jitter: float = JITTER
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as :func:`conditional` for any kernel, by autograd.

    Parameters
    ----------
    kernel : Kernel
    Z : Tensor of shape (B, M, Q)
    x : Tensor of shape (B, S, Q)
    mean, root, whiten, jitter
        See :func:`conditional`. Jitter is relative to the mean of the diagonal of K, and a constant in gradients.

    Returns
    -------
    mean, variance : Tensors of shape (S, D, B)
    kl : Tensor of shape (D, B)
    """
    dense = root.dim() > mean.dim()
    mean, root = _reversed(mean), _reversed(root)  # (B, ..., D, M), (B, ..., D, M) or (B, ..., D, M, M)
    root = root.mT if dense else root
    W = inverse_cholesky(kernel.relative_covariance(Z, Z), jitter)  # (B, ..., D, M, M)
    kzx, kxx = kernel.relative_covariance(Z, x), kernel.relative_diagonal(x)  # (B, ..., D, M, S), (B, ..., D, S)
    f_mean, variance = conditionals.conditional(W, kzx, mean, root, kxx=kxx, whiten=whiten)
    kl = conditionals.kl_divergence(mean, root, None if whiten else W)
    deviation = kernel.deviation[..., None]  # (..., D, 1)
    return _reversed(f_mean * deviation), _reversed(variance * deviation.square()), _reversed(kl)


def _reversed(values: Tensor) -> Tensor:
    """The dimensions in reverse order."""
    return values.permute(*range(values.dim() - 1, -1, -1))
