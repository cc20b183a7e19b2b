"""Cholesky factors of covariances, with jitter if needed and an error that explains a failure.

Shapes are batched: ``...`` stands for any leading dimensions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd import Function

#: Added to the diagonal before factorising, relative to the diagonal's mean. Large enough for eight
#: nearly coincident points in float32, small enough not to be seen beside any realistic noise.
JITTER = 1e-6

#: For matrices with noise on their diagonals. If the noise is too small and the factorisation fails, they get jitter.
NO_JITTER = 0.0

#: On a CPU LAPACK takes matrices one by one, which is slow for many small ones. From so many matrices on, inverses of
#: Cholesky factors come from products of blocks.
MANY = 16

#: Largest number of rows of such matrices. With more rows LAPACK is as fast.
LARGEST = 256

#: Number of rows of the blocks that go to LAPACK. Products of smaller ones take longer than LAPACK does.
BLOCK = 16

#: How often the jitter of a failing matrix is multiplied by ten before we give up (1e-6 to 1e-1).
_MAX_GROWTHS = 5


def being_recorded(x: Tensor) -> bool:
    """Whether operations are being recorded in a CUDA graph, so that their results cannot be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def shared(K: Tensor) -> Tensor:
    """Matrices (D, M, N) of D outputs as they are, or the single one of (1, M, N), which all outputs share, as (M, N).

    ``squeeze`` would do the same here, but in ONNX it is an error if there are several matrices.
    """
    return K.squeeze(-3) if K.shape[-3] == 1 else K


def cholesky(K: Tensor, jitter: float = JITTER) -> Tensor:
    """Lower Cholesky factor of ``K`` plus jitter, of shape (..., M, M).

    The jitter is relative to the mean of each matrix's own diagonal, so that scaling ``K`` scales the
    factor. Only matrices that fail get ten times more, so that the factor of a matrix never depends
    on its neighbours in the batch.

    Parameters
    ----------
    K : Tensor of shape (..., M, M)
        Symmetric positive semi-definite matrices.
    jitter : float, default=JITTER
        Multiple of the mean diagonal that is added to the diagonal.

    Returns
    -------
    Tensor of shape (..., M, M)
        Lower triangular factors.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not finite, or stays indefinite with 1e5 times the jitter. If the jitter is smaller than the
        machine precision, 1e5 times the latter is tried.
    """
    diagonal_mean = K.diagonal(dim1=-2, dim2=-1).mean(-1)
    added = jitter * diagonal_mean
    # Jitter of zero could not grow by a factor of ten, and so it grows from this.
    floor = torch.finfo(K.dtype).eps * diagonal_mean
    for growth in range(_MAX_GROWTHS + 1):
        lifted = K.clone()
        lifted.diagonal(dim1=-2, dim2=-1).add_(added[..., None])
        L, info = torch.linalg.cholesky_ex(lifted)
        if being_recorded(L):
            return L  # a failed factor is not finite, and neither is the objective then
        # A matrix with infinity may be factorised without failure, but the diagonal is not finite then.
        failed = (info > 0) | ~L.diagonal(dim1=-2, dim2=-1).sum(-1).isfinite()
        if not failed.any():
            return L
        if not (diagonal_mean > 0).all() or not K.isfinite().all():
            raise np.linalg.LinAlgError(
                "A covariance matrix contains NaN or infinity, or a diagonal that is not positive. The likely cause "
                "is a diverged optimisation: lower learning_rate, or have features and targets standardised."
            )
        if growth < _MAX_GROWTHS:
            added = torch.where(failed, 10 * torch.maximum(added, floor), added)
    raise np.linalg.LinAlgError(
        f"A {K.shape[-1]} x {K.shape[-1]} covariance matrix is not positive definite, even with "
        f"{(added / diagonal_mean).max().item():.0e} of its diagonal added as jitter. The likely cause is inducing "
        "points that coincide or lengthscales far beyond their spread: use fewer inducing points, lower "
        "learning_rate, or set dtype='float64'."
    )


class Factor(NamedTuple):
    """Cholesky factor L of a covariance, by blocks: one for each set of variables."""

    W: list[Tensor]  # inverses of its diagonal blocks
    below: list[list[Tensor]]  # the blocks left of the diagonal, row by row

    def solve(self, k: Tensor) -> list[Tensor]:
        """The blocks of L⁻¹ k, for k of shape (..., M, N)."""
        A: list[Tensor] = []
        for W, row, rest in zip(self.W, self.below, k.split([W.shape[-1] for W in self.W], -2), strict=True):
            for L, above in zip(row, A, strict=True):
                rest = rest - L @ above
            A.append(W @ rest)
        return A

    def apply(self, fn: Callable[[Tensor], Tensor]) -> "Factor":
        """The factor with ``fn`` applied to all blocks."""
        return Factor([fn(block) for block in self.W], [[fn(block) for block in row] for row in self.below])


def factorise(K: Tensor, jitter: float, sizes: Sequence[int], dtype: torch.dtype) -> Factor:
    """The factor of K, computed in the precision of K and given in ``dtype``; see :func:`whiten_sets`."""
    if len(sizes) == 1 and not K.is_cuda and BLOCK < sizes[0] <= LARGEST and K[..., 0, 0].numel() >= MANY:
        lifted = K.clone()
        lifted.diagonal(dim1=-2, dim2=-1).add_(jitter * K.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True))
        inverse = _inverse_by_blocks(lifted)
        if inverse.diagonal(dim1=-2, dim2=-1).sum().isfinite():  # otherwise some matrices need more jitter
            return Factor([inverse.to(dtype)], [[]])
    L = _blocks(cholesky(K, jitter), sizes)
    W = [_lower_inverse(row[i]).to(dtype) for i, row in enumerate(L)]
    return Factor(W, [[block.to(dtype) for block in row[:i]] for i, row in enumerate(L)])


class _WhitenSets(Function):
    """W = L⁻¹ of every diagonal block of L, and A = L⁻¹ k, where K = L Lᵀ.

    L is used by blocks, one for each set of variables: A_i = W_i (k_i − Σ_j<i L_ij A_j) and likewise for the
    adjoints below. This saves the half of each product that is zero.

    Differentiating K = L Lᵀ gives dL = L Φ(L⁻¹ dK L⁻ᵀ), where Φ keeps the lower triangle and halves the
    diagonal, hence dA = L⁻¹ dk − Φ(L⁻¹ dK L⁻ᵀ) A, and dW_i = −Φ(L⁻¹ dK L⁻ᵀ)_ii W_i. Taking the adjoint of
    every factor: k̄ = L⁻ᵀ Ā and K̄ = −L⁻ᵀ P L⁻¹, P = Φ(Ā Aᵀ + diag(W̄_i W_iᵀ)), symmetrised since K is symmetric.
    """

    @staticmethod
    def forward(K: Tensor, k: Tensor, jitter: float, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        W, below = factor = factorise(K, jitter, sizes, k.dtype)
        return *W, *factor.solve(k), *(block for row in below for block in row)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.n_sets = len(inputs[3])
        ctx.mark_non_differentiable(*output[2 * ctx.n_sets :])  # blocks below the diagonal
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx, *bars: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(bar is None for bar in bars):
            return None, None, None, None
        n = ctx.n_sets
        saved = ctx.saved_tensors  # read only once, as checkpointing demands
        W, A, below = saved[:n], saved[n : 2 * n], iter(saved[2 * n :])
        L = [[next(below) for _ in range(i)] for i in range(n)]
        W_bar = bars[:n]
        A_bar = [torch.zeros_like(A[i]) if bar is None else bar for i, bar in enumerate(bars[n : 2 * n])]

        Y = [[A_bar[i] @ A[j].mT for j in range(i + 1)] for i in range(n)]
        for i, row in enumerate(Y):
            if W_bar[i] is not None:
                row[i] += W_bar[i] @ W[i].mT
            row[i].tril_().diagonal(dim1=-2, dim2=-1).mul_(0.5)  # P
            for j in reversed(range(i + 1)):
                for m in range(j + 1, i + 1):
                    row[j] -= row[m] @ L[m][j]
                row[j] = row[j] @ W[j]  # P L⁻¹, lower triangular as P is
        columns = [_solve_transposed(W, L, [Y[i][j] if i >= j else 0.0 for i in range(n)]) for j in range(n)]
        K_bar = _joined([_joined(column, dim=-2) for column in columns], dim=-1)
        return (K_bar + K_bar.mT).mul_(-0.5), _joined(_solve_transposed(W, L, A_bar), dim=-2), None, None


def _joined(blocks: list[Tensor], dim: int) -> Tensor:
    """``torch.cat``, without a copy if there is only one block."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=dim)


def _solve_transposed(W: Sequence[Tensor], L: list[list[Tensor]], B: Sequence) -> list[Tensor]:
    """The blocks of L⁻ᵀ B, from last to first."""
    X = list(B)
    for i in reversed(range(len(X))):
        for j in range(i + 1, len(X)):
            X[i] = X[i] - L[j][i].mT @ X[j]
        X[i] = W[i].mT @ X[i]
    return X


def _blocks(matrix: Tensor, sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Views of the blocks of a square matrix."""
    return [row.split(sizes, -1) for row in matrix.split(sizes, -2)]


def _inverse_by_blocks(K: Tensor) -> Tensor:
    """Inverses of the Cholesky factors of many matrices, with NaN or infinity on the diagonal where there is none.

    With K = [[K₁, Bᵀ], [B, K₂]] and C = B W₁ᵀ, the inverse is [[W₁, 0], [−W₂ C W₁, W₂]], where W₁ is that of K₁ and W₂
    that of K₂ − C Cᵀ.
    """
    size = K.shape[-1]
    if size <= BLOCK:
        L, info = torch.linalg.cholesky_ex(K)
        return _lower_inverse(L.masked_fill((info > 0)[..., None, None], torch.nan))
    half = size // 2
    W1 = _inverse_by_blocks(K[..., :half, :half])
    C = K[..., half:, :half] @ W1.mT
    W2 = _inverse_by_blocks(K[..., half:, half:] - C @ C.mT)
    W = torch.zeros_like(K)
    W[..., :half, :half], W[..., half:, half:] = W1, W2
    W[..., half:, :half] = (W2 @ (C @ W1)).neg_()
    return W


def _lower_inverse(L: Tensor) -> Tensor:
    """Inverse of a lower triangular matrix."""
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return torch.linalg.solve_triangular(L, identity.expand_as(L), upper=False)


def inverse_cholesky(K: Tensor, jitter: float = JITTER) -> Tensor:
    """Inverse W = L⁻¹ of the lower Cholesky factor of ``K`` plus jitter.

    An explicit inverse turns every later triangular solve, and its backward pass, into a matrix
    product. With the few inducing variables of an amortised layer that is several times faster.

    Parameters
    ----------
    K : Tensor of shape (..., M, M)
        Symmetric positive semi-definite matrices.
    jitter : float, default=JITTER
        See :func:`cholesky`.

    Returns
    -------
    Tensor of shape (..., M, M)
        Lower triangular, ``W @ K @ W.mT`` is the identity up to the jitter.
    """
    [(W, _)] = whiten_sets(K, K.new_empty(*K.shape[:-1], 0), jitter)
    return W


def whiten_sets(
    K: Tensor, k: Tensor, jitter: float = JITTER, sizes: Sequence[int] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Whiten inducing variables' covariances with function values, one set of variables after the other.

    Each set is whitened with the covariance that the sets before it leave, C_i = L_ii L_iiᵀ with blocks of
    the Cholesky factor of all sets. For two sets that is SOLVE-GP's orthogonal decomposition: A_1 is
    L_u⁻¹ k(Z, x), and A_2 is L_v⁻¹ (k(O, x) − k(O, Z) K_uu⁻¹ k(Z, x)), where L_v is the factor of C_vv.

    Parameters
    ----------
    K : Tensor of shape (..., M, M)
        Symmetric positive semi-definite matrices, which are factorised in their own precision.
    k : Tensor of shape (..., M, N)
    jitter : float, default=JITTER
        See :func:`cholesky`.
    sizes : sequence of int, default=(M,)
        Numbers of variables M_i of the sets, which add up to M.

    Returns
    -------
    list of pairs (W, A) of Tensors of shape (..., M_i, M_i) and (..., M_i, N)
        For each set L_ii⁻¹ and the whitened covariances, in the precision of ``k``.
    """
    sizes = (K.shape[-1],) if sizes is None else tuple(sizes)
    parts = _WhitenSets.apply(K, k, jitter, sizes)
    return list(zip(parts[: len(sizes)], parts[len(sizes) : 2 * len(sizes)], strict=True))


class _Solve(Function):
    """K⁻¹ b for symmetric positive definite K, with the gradient b̄ = K⁻¹ x̄ and K̄ = −b̄ xᵀ of x = K⁻¹ b.

    Recording the factorisation and the solution instead would take several times as long for many small matrices.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(K: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        L = cholesky(K, NO_JITTER)
        return torch.cholesky_solve(b, L), L

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx, bar: Tensor | None, _) -> tuple[Tensor | None, Tensor | None]:
        if bar is None:
            return None, None
        x, L = ctx.saved_tensors
        b_bar = torch.cholesky_solve(bar, L)
        return -b_bar @ x.mT, b_bar


def solve(K: Tensor, b: Tensor) -> Tensor:
    """K⁻¹ b (..., M, N) for symmetric positive definite matrices K (..., M, M), without jitter unless it is needed."""
    return _Solve.apply(K, b)[0]
