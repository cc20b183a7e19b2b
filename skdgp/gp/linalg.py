"""Linear algebra that kernels alone do not give: Cholesky factors that do not fail quietly.

Shapes are batched: ``...`` stands for any leading dimensions.
"""

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Added to the diagonal before factorising, relative to the diagonal's mean. Large enough for eight
#: nearly coincident points in float32, small enough not to be seen beside any realistic noise.
JITTER = 1e-6

#: How often the jitter of a failing matrix is multiplied by ten before we give up (1e-6 to 1e-1).
_MAX_GROWTHS = 5


def cholesky(K: Tensor, jitter: float = JITTER) -> Tensor:
    """Lower Cholesky factor of ``K`` plus jitter, of shape (..., M, M).

    The jitter is relative to the mean of each matrix's own diagonal, so that scaling ``K`` scales the
    factor. Only matrices that fail get ten times more: the factor of one matrix never depends on its
    neighbours in the batch.

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
        If a matrix is not finite or stays indefinite with 1e5 times the jitter.
    """
    diagonal_mean = K.diagonal(dim1=-2, dim2=-1).mean(-1)
    added = jitter * diagonal_mean
    # A matrix that fails without any jitter needs one to grow from.
    floor = torch.finfo(K.dtype).eps * diagonal_mean
    for growth in range(_MAX_GROWTHS + 1):
        lifted = K.clone()
        lifted.diagonal(dim1=-2, dim2=-1).add_(added[..., None])
        L, info = torch.linalg.cholesky_ex(lifted)
        # Infinity need not fail, but it reaches the diagonal.
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


class _Whiten(torch.autograd.Function):
    """W = L⁻¹ and A = W k, where K = L Lᵀ.

    Differentiating K = L Lᵀ gives dL = L Φ(W dK Wᵀ), where Φ keeps the lower triangle and halves the
    diagonal, hence dW = −W dL W = −Φ(W dK Wᵀ) W and dA = dW k + W dk. Taking the adjoint of every factor:
    k̄ = WᵀĀ and K̄ = −Wᵀ Φ(W̄Wᵀ + ĀAᵀ) W, symmetrised since K is symmetric. Where nothing depends on W but
    A, no product is cubic in M but the last two.
    """

    @staticmethod
    def forward(ctx, K: Tensor, k: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        L = cholesky(K, jitter)
        identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        W = torch.linalg.solve_triangular(L, identity.expand_as(L), upper=False).to(k.dtype)
        A = W @ k
        ctx.save_for_backward(W, A)
        return W, A

    @staticmethod
    @once_differentiable
    def backward(ctx, W_bar: Tensor | None, A_bar: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        W, A = ctx.saved_tensors
        inner = None if A_bar is None else A_bar @ A.mT
        if W_bar is not None:
            inner = W_bar @ W.mT if inner is None else inner + W_bar @ W.mT
        if inner is None:
            return None, None, None
        inner = inner.tril_()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)  # Φ
        K_bar = W.mT @ (inner @ W)
        return (K_bar + K_bar.mT).mul_(-0.5), None if A_bar is None else W.mT @ A_bar, None


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
    return whiten(K, K[..., :0], jitter)[0]


def whiten(K: Tensor, k: Tensor, jitter: float = JITTER) -> tuple[Tensor, Tensor]:
    """Inverse Cholesky factor of inducing variables' covariance, and whitened cross-covariances.

    Parameters
    ----------
    K : Tensor of shape (..., M, M)
        Symmetric positive semi-definite matrices, of any precision: they are factorised in theirs.
    k : Tensor of shape (..., M, N)
    jitter : float, default=JITTER
        See :func:`cholesky`.

    Returns
    -------
    W : Tensor of shape (..., M, M)
        See :func:`inverse_cholesky`; of the precision of ``k``.
    A : Tensor of shape (..., M, N)
        ``W`` times ``k``.
    """
    return _Whiten.apply(K, k, jitter)
