"""The probability that one of several Gaussian function values is the largest, with its gradients.

It has no closed form. Quadrature computes it precisely, also if variances are very different.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd import Function
from .linalg import being_recorded
from .special import MOST_NODES, N_NODES, gauss_hermite, graded

_SQRT_2PI = math.sqrt(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)

#: Replaces a probability that has underflowed to zero.
_TINY = 1e-30

#: Smallest exponent of densities. A smaller one changes no sum, but exp takes ten times longer where it underflows.
_LEAST = -80.0

#: Number of deviations to either side that :func:`~skdgp.gp.special.graded` nodes cover.
_REACH = 5.0

#: Sum of (v_c/v_j)² from which on the product of steps is too steep for Gauss-Hermite quadrature; see :func:`_steep`.
_STEEP = 7.0

#: Largest number of entries of a tensor with graded nodes for several rows.
_FEW_NUMBERS = 2**20


def probability_of_largest(mean: Tensor, deviation: Tensor, index: Tensor) -> Tensor:
    """P_c = P(argmax f = c) for f_j ~ N(m_j, s_j²).

    The error of P_c is at most 5e-5 for any means, and for variances up to 1e16 times another. The error of its
    gradients is at most 2e-4: for m_j and s_j in units of 1/√(v_c + v_j), where v = s², and for m_c and s_c in the
    largest such unit.

    Parameters
    ----------
    mean, deviation : Tensors of shape (..., K)
        m and s of K independent values.
    index : Tensor of shape (..., 1)
        c, an integer.

    Returns
    -------
    Tensor of shape (...)
    """
    return _ProbabilityOfLargest.apply(mean, deviation, index)[0]


def probabilities_of_largest(mean: Tensor, deviation: Tensor) -> Tensor:
    """P_c for every class c, as precise as :func:`probability_of_largest`.

    All classes share their nodes: P_c = Σ_n w_n φ((f_n − m_c)/s_c)/s_c Π_j Φ(x_nj) / Φ(x_nc). The product over all j is
    computed once, so that the cost grows in proportion to the number of classes.

    Parameters
    ----------
    mean, deviation : Tensors of shape (..., K)
        m and s of K independent values.

    Returns
    -------
    Tensor of shape (..., K)
    """
    m, s = mean.flatten(0, -2), deviation.flatten(0, -2)
    return _by_parts(_for_all_classes, m, s)[0].unflatten(0, mean.shape[:-1])


class _ProbabilityOfLargest(Function):
    """P_c = Σ_n w_n Π_{j≠c} Φ(x_nj), x_nj = (f_n − m_j)/s_j, at the nodes f_n = m_c + s_c z_n.

    With G_nj = w_n φ(x_nj) Π_{i≠c,j} Φ(x_ni) / s_j the gradients are −Σ_n G_nj for m_j and −Σ_n x_nj G_nj for s_j of
    the other classes j, and Σ_nj G_nj for m_c and Σ_nj z_n G_nj for s_c. The forward pass computes these sums over
    nodes, so that the tensors kept for the backward pass are no larger than the inputs.

    Nodes are those of Gauss-Hermite quadrature, but rows with :func:`_steep` factors have :func:`graded` nodes. While a
    CUDA graph is recorded, numbers cannot be read, and so all rows have graded nodes.
    """

    @staticmethod
    def forward(mean: Tensor, deviation: Tensor, index: Tensor) -> tuple[Tensor | None, ...]:
        wanted = mean.requires_grad or deviation.requires_grad
        graded_sums = partial(_by_graded_nodes, gradients=wanted)
        m, s, c = (values.flatten(0, -2) for values in (mean, deviation, index))  # S·B rows
        if being_recorded(mean):
            sums = _by_parts(graded_sums, m, s, c)
        elif not (steep := _steep(m, s, c)).any():
            sums = _by_gauss_hermite(m, s, c, wanted)
        else:
            easy, hard = (rows.nonzero()[:, 0] for rows in (~steep, steep))
            place = torch.cat([easy, hard]).argsort()
            pairs = zip(
                _by_gauss_hermite(m[easy], s[easy], c[easy], wanted),
                _by_parts(graded_sums, m[hard], s[hard], c[hard]),
                strict=True,
            )
            sums = [torch.cat(pair)[place] for pair in pairs]
        value, *gradients = (total.unflatten(0, mean.shape[:-1]) for total in sums)
        return value, *(gradients or (None, None))

    @staticmethod
    def setup_context(ctx, inputs, output):
        gradients = output[1:]
        ctx.mark_non_differentiable(*(gradient for gradient in gradients if gradient is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*gradients)

    @staticmethod
    @once_differentiable
    def backward(ctx, bar: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        if bar is None:
            return None, None, None
        mean_grad, deviation_grad = ctx.saved_tensors
        return mean_grad * bar[..., None], deviation_grad * bar[..., None], None


def _steep(mean: Tensor, deviation: Tensor, index: Tensor) -> Tensor:
    """Whether Π_j Φ((f − m_j)/s_j) is too steep for Gauss-Hermite nodes of N(f | m_c, v_c), for rows (R, K).

    20 nodes are 0.7 s_c apart, and the error for one factor in the middle is about exp(−2π² v_j / 0.5 v_c). That is
    1e-4 of the gradient for s_j = 0.6 s_c. n factors of the same width have a product as steep as one whose v_j is √n
    times smaller, hence the sum of (v_c/v_j)². A factor whose step is a distance δ from m_c matters less, by the factor
    exp(−½ δ²/v_c), hence v_j + δ²/120. Factors far below another one do not matter at all, since the product is zero
    there already.
    """
    lower = torch.sub(mean, deviation, alpha=7.0).amax(-1, keepdim=True)
    hidden = torch.sub(mean, deviation, alpha=2.5) < lower
    offset = mean - mean.gather(-1, index)
    ratio = deviation.gather(-1, index).square() / deviation.square().addcmul_(offset, offset, value=1 / 120)
    return ratio.square_().masked_fill_(hidden, 0.0).sum(-1) > 1.0 + _STEEP  # 1 for c itself


def _by_gauss_hermite(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """P_c (R,) by nodes around m_c, and if wanted its gradients (R, K), for rows of means and deviations (R, K)."""
    nodes, weights = gauss_hermite(N_NODES, mean)
    f = mean.gather(-1, index) + deviation.gather(-1, index) * nodes  # (R, nodes)
    x = (f[..., None] - mean[..., None, :]).div_(deviation[..., None, :])  # (R, nodes, K)
    return _sums_over_nodes(x, nodes, weights, deviation, index, gradients)


def _by_parts(function: Callable[..., list[Tensor]], mean: Tensor, *others: Tensor) -> list[Tensor]:
    """Results of a function of rows with graded nodes, by parts whose tensors stay small and fit the cache."""
    n_rows = max(1, _FEW_NUMBERS // (MOST_NODES * mean.shape[-1]))
    parts = zip(*(tensor.split(n_rows) for tensor in (mean, *others)), strict=True)
    return [torch.cat(column) for column in zip(*(function(*part) for part in parts), strict=True)]


def _by_graded_nodes(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """The same as :func:`_by_gauss_hermite` for any variances, by nodes that crowd where the others' product rises.

    Below f₀ = max_j (m_j − 5 s_j) the integrand is zero. All factors have begun to rise there, so that a factor which
    is still less than one at f₀ + d has s_j > d/10. The integrand is therefore smooth enough for graded nodes, in units
    of s₀, the deviation of the class that determines f₀. Nodes are densest at m₀ − 2 s₀, three of these units above f₀.
    All distances are measured from there, since a narrow factor would be lost in the rounding errors of f itself.
    """
    start, scale = _lines(mean, deviation)
    own_scale, own_start = scale.gather(-1, index), start.gather(-1, index)  # (R, 1)
    d, weights = _nodes_up_to(((_REACH - own_start) / own_scale)[:, 0])  # m_c + 5 s_c
    z = own_start + own_scale * d
    weights = weights * own_scale * (-0.5 * z.square()).exp() / _SQRT_2PI
    x = torch.addcmul(start[:, None], scale[:, None], d[..., None])  # (R, nodes, K)
    return _sums_over_nodes(x, z, weights, deviation, index, gradients)


def _for_all_classes(mean: Tensor, deviation: Tensor) -> list[Tensor]:
    """P_c (R, K) of every class, for rows of means and deviations (R, K).

    The nodes are those of :func:`_by_graded_nodes`, up to the largest m_c + 5 s_c. They suit the density of each class
    as they suit its step, since both change over the width s_c at the same place.
    """
    start, scale = _lines(mean, deviation)
    d, weights = _nodes_up_to(((_REACH - start) / scale).amax(-1))
    x = torch.addcmul((_SQRT_HALF * start)[:, None], (_SQRT_HALF * scale)[:, None], d[..., None])  # (R, nodes, K)
    ndtr = (0.5 * x.erf() + 0.5).clamp(min=_TINY)  # nothing in place, since probabilities have gradients
    product = ndtr.prod(-1) * weights  # (R, nodes)
    ratio = (-x.square()).clamp(min=_LEAST).exp() / ndtr  # φ/Φ √(2π)
    return [(product[:, None] @ ratio)[:, 0] * scale / _SQRT_2PI]


def _lines(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Where x_j = start_j + scale_j d begins and how steep it is, each (R, K); see :func:`_by_graded_nodes`."""
    first = (mean - _REACH * deviation).argmax(-1, keepdim=True)
    scale = deviation.gather(-1, first) / deviation  # s₀/s_j
    start = (mean.gather(-1, first) - mean - (_REACH - 3.0) * deviation.gather(-1, first)) / deviation
    return start, scale


def _nodes_up_to(high: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes d and weights, (R, nodes), from f₀ up to limits (R,), which may lie below f₀."""
    high = high.clamp(min=-3.0)
    return graded(torch.full_like(high, -3.0), high)


def _ndtr(x: Tensor) -> Tensor:
    """Φ(x) with the absolute precision that the integral needs, and above zero, since sums are divided by it."""
    return x.mul(math.sqrt(0.5)).erf_().add_(1.0).mul_(0.5).clamp_(min=_TINY)


def _sums_over_nodes(
    x: Tensor, z: Tensor, weights: Tensor, deviation: Tensor, index: Tensor, gradients: bool
) -> list[Tensor]:
    """The formulas of :class:`_ProbabilityOfLargest` for x (R, nodes, K), which is overwritten."""
    ndtr = _ndtr(x)
    own = index[:, None].expand(-1, x.shape[1], -1)
    ndtr.scatter_(-1, own, 1.0)
    product = ndtr.prod(-1).mul_(weights)  # (R, nodes)
    if not gradients:
        return [product.sum(-1)]
    G = x.square().mul_(-0.5).clamp_(min=_LEAST).exp_().mul_(1 / _SQRT_2PI).div_(ndtr).mul_(product[..., None])
    G.div_(deviation[:, None]).scatter_(-1, own, 0.0)
    total = G.sum(-1)
    mean_grad = G.sum(-2).neg_().scatter_(-1, index, total.sum(-1, keepdim=True))
    own_grad = (total * z).sum(-1, keepdim=True)
    deviation_grad = x.mul_(G).sum(-2).neg_().scatter_(-1, index, own_grad)
    return [product.sum(-1), mean_grad, deviation_grad]
