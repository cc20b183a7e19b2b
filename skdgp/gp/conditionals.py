"""Marginals of function values given inducing variables, and the KL divergence of inducing variables.

All layers use these formulas. With K = k(Z, Z) = L Lᵀ, W = L⁻¹ and A = W k(Z, x), a Gaussian q(u) = N(μ, Σ) over the
inducing variables gives the marginals of f(x) in one of two coordinate systems:

- plain: the variable is u itself. mean = αᵀ μ with α = Wᵀ A, penalty KL(N(μ, Σ) ‖ N(0, K));
- whitened: u = L v and N(μ, Σ) is over v. mean = Aᵀ μ, penalty KL(N(μ, Σ) ‖ N(0, I)).

In both, var = k(x, x) − diag(AᵀA) + a quadratic form in Σ. The caller adds mean functions: they shift ``μ`` by m(Z) and
the result by m(x). ``root`` is a square root of Σ: the diagonal (..., M) of a diagonal root, or a lower triangular root
(..., M, M).

Other tensors have a dimension of D outputs in front of M. If outputs share W and A, these two may come without it.
Products with shared matrices are fewer and larger, and so they are faster.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd import Function

#: Smallest marginal variance, relative to the prior's: rounding must not make it negative, and the
#: derivative of its square root must stay finite.
VARIANCE_FLOOR = 1e-8

#: The same in float64. Functions without noise can be known more precisely than float32 can represent.
VARIANCE_FLOOR_DOUBLE = 1e-13

#: Two estimates of a variance do not differ by a larger factor than this. Where they seem to, the smaller one consists
#: of rounding errors, and so do the covariances of its row.
MOST_RAISED = 4.0


def variance_floor(like: Tensor) -> float:
    """Smallest marginal variance, relative to the prior's, in the precision of a tensor."""
    return VARIANCE_FLOOR_DOUBLE if like.dtype == torch.float64 else VARIANCE_FLOOR


def conditional(
    W: Tensor, Kzx: Tensor, mean: Tensor, root: Tensor, *, kxx: Tensor | float = 1.0, whiten: bool
) -> tuple[Tensor, Tensor]:
    """Marginal mean and variance of f at N points.

    Parameters
    ----------
    W : Tensor of shape (..., M, M)
        Inverse Cholesky factor of k(Z, Z).
    Kzx : Tensor of shape (..., M, N)
        Covariances of inducing variables and function values.
    mean : Tensor of shape (..., M)
        μ.
    root : Tensor of shape (..., M) or (..., M, M)
        Square root of Σ.
    kxx : float or Tensor broadcastable to (..., N), default=1.0
        Prior variances. They are 1 if ``W`` and ``Kzx`` are computed from correlations.
    whiten : bool
        Whether ``mean`` and ``root`` are in whitened coordinates.

    Returns
    -------
    mean, variance : Tensors of shape (..., N)
    """
    f_mean, change = contribution(None if whiten else W, W @ Kzx, mean, root)
    return f_mean, (change + kxx).clamp(min=VARIANCE_FLOOR * kxx)


def contribution(W: Tensor | None, A: Tensor, mean: Tensor, root: Tensor | None) -> tuple[Tensor, Tensor]:
    """Changes of the prior's mean and variance by inducing variables.

    Parameters
    ----------
    W : Tensor of shape (..., M, M), or None
        Inverse Cholesky factor of their prior covariance, for plain coordinates. None is for whitened ones.
    A : Tensor of shape (..., M, N)
        The factor times their covariances with function values. Outputs may share both; see the module's docstring.
    mean, root
        See :func:`conditional`. Without ``root`` their covariance stays the prior's.

    Returns
    -------
    mean, change : Tensors of shape (..., N)
        Aᵀμ and diag(Aᵀ(Σ − I)A), or in plain coordinates the same in terms of u.
    """
    diagonal, shared = root is not None and root.dim() == mean.dim(), A.dim() == mean.dim()
    if diagonal and W is None:
        return _DiagonalContribution.apply(A, mean, root)
    V = A if W is None else W.mT @ A
    f_mean = _times(mean, V)
    if root is None:
        return f_mean, torch.zeros_like(f_mean)
    if diagonal:
        added = _times(root.square(), V.square())
    elif shared:
        added = (root.mT.flatten(-3, -2) @ V).unflatten(-2, root.shape[-3:-1]).square().sum(-2)
    else:
        added = (root.mT @ V).square().sum(-2)
    return f_mean, added - A.square().sum(-2, keepdim=shared)


def _times(vectors: Tensor, V: Tensor) -> Tensor:
    """Vectors (..., D, M) times V (..., D, M, N), or (..., M, N) that all D share: (..., D, N)."""
    return vectors @ V if V.dim() == vectors.dim() else (vectors[..., None, :] @ V)[..., 0, :]


class _DiagonalContribution(Function):
    """Aᵀμ and diag(Aᵀ(Σ − I)A) = cᵀA² for diagonal Σ, with c = r² − 1.

    Gradients: Ā = μ m̄ᵀ + 2 A∘(c v̄ᵀ), μ̄ = A m̄ and r̄ = 2 r∘(A² v̄), summed over outputs that share A.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        return _times(mean, A), _times(root.square().sub_(1.0), A.square())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, mean_bar: Tensor, change_bar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        A, mean, root = ctx.saved_tensors
        shared = A.dim() == mean.dim()
        c = root.square().sub_(1.0).mul_(2.0)
        if shared:
            A_bar = torch.matmul(c.mT, change_bar).mul_(A).add_(mean.mT @ mean_bar)
        else:
            A_bar = (c[..., None] * change_bar[..., None, :]).mul_(A).addcmul_(mean[..., None], mean_bar[..., None, :])
        return A_bar.sum_to_size(A.shape), _times(mean_bar, A.mT), _times(change_bar, A.square().mT) * root * 2.0


def covariance_factors(W: Tensor | None, A: Tensor, mean: Tensor, root: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Pairs (..., M, N) whose products leftᵀ right add up to Aᵀ(Σ − I)A, or to the same in terms of u.

    The sum is the change of the prior's covariance of function values by inducing variables. Its diagonal is the
    ``change`` of :func:`contribution`, which has the same arguments.
    """
    if root is None:
        return []
    diagonal = root.dim() == mean.dim()
    if diagonal and W is None:
        return [((root.square() - 1.0)[..., None] * A, A)]
    V = A if W is None else W.mT @ A
    product = root[..., None] * V if diagonal else root.mT @ V
    return [(product, product), (-A, A)]


def with_variances(covariance: Tensor, variance: Tensor, most: float = MOST_RAISED) -> Tensor:
    """A matrix (..., N, N) with the correlations of ``covariance``, as far as possible, and these variances (..., N).

    It is D C D with a diagonal matrix D, plus what variances lack then. Both keep a matrix positive semidefinite. D
    multiplies no variance by more than ``most``. With 1, what a variance lacks has nothing to do with other rows.
    """
    own = covariance.diagonal(dim1=-2, dim2=-1)
    least = (variance / most).clamp(min=torch.finfo(variance.dtype).tiny)
    factor = (variance / torch.maximum(own, least)).sqrt()
    scaled = covariance * (factor[..., None] * factor[..., None, :])  # as symmetric as before, to the last digit
    return scaled.diagonal_scatter(variance, dim1=-2, dim2=-1)


def root_product(root: Tensor, epsilon: Tensor) -> Tensor:
    """A root of Σ, (..., M) or (..., M, M), times standard normal numbers (S, ..., M)."""
    return root * epsilon if root.dim() < epsilon.dim() else (root @ epsilon[..., None])[..., 0]


def kl_divergence(mean: Tensor, root: Tensor | None, W: Tensor | None = None) -> Tensor:
    """KL(N(μ, Σ) ‖ N(0, K)) with K⁻¹ = WᵀW, or KL(N(μ, Σ) ‖ N(0, I)) where ``W`` is None.

    Parameters
    ----------
    mean : Tensor of shape (..., M)
    root : Tensor of shape (..., M) or (..., M, M), or None
        Square root of Σ; its diagonal is positive. Without it Σ is the prior's covariance.
    W : Tensor of shape (..., M, M), default=None
        Inverse Cholesky factor of the prior covariance (plain coordinates). Outputs may share it; see the module's
        docstring.

    Returns
    -------
    Tensor of shape (...)
    """
    if W is not None and W.dim() == mean.dim():
        W = W.unsqueeze(-3)
    v = mean if W is None else (W @ mean[..., None])[..., 0]
    if root is None:
        return 0.5 * v.square().sum(-1)
    dense = root.dim() > mean.dim()
    diagonal = root.diagonal(dim1=-2, dim2=-1) if dense else root
    log_determinants = -2 * diagonal.log().sum(-1)
    if W is None:
        trace = root.square().sum((-2, -1)) if dense else root.square().sum(-1)
    else:
        trace = (W @ root if dense else W * root[..., None, :]).square().sum((-2, -1))
        log_determinants = log_determinants - 2 * W.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # + log|K|
    return 0.5 * (trace + v.square().sum(-1) - mean.shape[-1] + log_determinants)
