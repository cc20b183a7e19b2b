"""The exact evidence of a few rows: the density that a Gaussian process gives to their targets before it learns.

It needs no inducing points and no posterior. So only the kernel and the noise are left to choose.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..gp.autograd import Function
from ..gp.kernels import Kernel
from ..gp.likelihoods import Gaussian
from ..gp.linalg import NO_JITTER, cholesky
from .batches import Batch, in_least_squares
from .lbfgs import TOLERANCE, lbfgs

#: If the evidence cannot be computed at the start, the noise's excess is multiplied by this number.
LIFT = 10.0

#: Standardised targets of this size or less are zero but for rounding errors.
TINY = 1e-10


class _LogDensity(Function):
    """log N(y | 0, K), summed over outputs, for y (P, n) and K (P, n, n), or (1, n, n) if outputs share it.

    Its gradient with respect to K is ½ Σ (ααᵀ − K⁻¹) with α = K⁻¹y. This takes one inverse. Recording the factorisation
    and the solution instead would take several products that cost as much.
    """

    @staticmethod
    def forward(ctx, y: Tensor, K: Tensor) -> Tensor:
        L = cholesky(K, NO_JITTER)
        columns = y[..., None] if len(K) > 1 else y.mT[None]  # (P, n, 1), or (1, n, P)
        alpha = torch.cholesky_solve(columns, L)
        ctx.save_for_backward(alpha, L)
        log_determinants = 2.0 * columns.shape[-1] * L.diagonal(dim1=-2, dim2=-1).log().sum()
        return -0.5 * ((columns * alpha).sum() + log_determinants + y.numel() * math.log(2 * math.pi))

    @staticmethod
    @once_differentiable
    def backward(ctx, bar: Tensor) -> tuple[Tensor, Tensor]:
        alpha, L = ctx.saved_tensors
        inverse = torch.cholesky_inverse(L).mul_(-alpha.shape[-1])
        columns = alpha[..., 0] if len(L) > 1 else alpha[0].mT
        return -bar * columns, inverse.add_(alpha @ alpha.mT).mul_(0.5 * bar)


class Observations(NamedTuple):
    """Rows of which those with the same features are one, whose target is their mean; see :func:`observations`."""

    rows: Batch  # G rows, whose weights are sums; the mean weight of an observation is one unless weights are absolute
    within: Tensor  # (P,), weighted squares of targets around these means
    number: int  # N, observations, which are rows that differ in features or targets
    log_weight: Tensor  # (), sum of the logarithms of the weights of observations


def observations(rows: Batch, *, relative: bool = True) -> Observations:
    """What the evidence needs to know of rows in which some may be repeated.

    Rows with the same features and targets are a single observation, whose weight is the sum of theirs. So a row of
    weight 2 counts as that row twice. But a repetition is no second proof that the noise is small: if it was, exact
    copies would be most likely without any noise. Weights only say how precise an observation is beside the others. If
    the noise is given, weights are not ``relative``: they say how precise it is.
    """
    X, y, weight = _summed(torch.cat([rows.X, rows.y], dim=1), rows.weight, rows.X.shape[1])
    weight = weight / weight.mean() if relative else weight
    number, log_weight = len(weight), weight.log().sum()
    group, first = _groups(X)
    if len(first) == number:
        return Observations(Batch(X, y, weight), torch.zeros_like(y[0]), number, log_weight)
    total = weight.new_zeros(len(first)).index_add(0, group, weight)
    mean = y.new_zeros(len(first), y.shape[1]).index_add(0, group, weight[:, None] * y) / total[:, None]
    within = (weight[:, None] * (y - mean[group]).square()).sum(0)
    return Observations(Batch(X[first], mean, total), within, number, log_weight)


def _summed(columns: Tensor, weight: Tensor, n_features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, targets and weights of the distinct rows of ``columns``, whose weights are sums."""
    group, first = _groups(columns)
    if len(first) < len(columns):
        columns, weight = columns[first], weight.new_zeros(len(first)).index_add(0, group, weight)
    return columns[:, :n_features], columns[:, n_features:], weight


def _groups(columns: Tensor) -> tuple[Tensor, Tensor]:
    """The number of each row's group (n,) of equal rows, and the first row of each group in the order of the rows."""
    _, group = torch.unique(columns, dim=0, return_inverse=True)
    n_groups = int(group.max()) + 1
    places = torch.arange(len(columns), device=columns.device)
    first = places.new_full((n_groups,), len(columns)).scatter_reduce(0, group, places, "amin")
    order = first.argsort()
    rank = torch.empty_like(order).scatter(0, order, torch.arange(n_groups, device=order.device))
    return rank[group], first[order]


def groups_of_rows(X: Tensor) -> Tensor:
    """The number of each row's group (n,) of rows with the same features, in the order of the rows."""
    return _groups(X)[0]


def are_zero(y: Tensor) -> Tensor:
    """Which outputs (P,) have targets (n, P) that are all zero but for rounding errors, beside others that are not."""
    zero = y.abs().amax(0) <= TINY
    return zero & ~zero.all()


def telling(noise: Tensor, observed: Observations) -> tuple[Tensor, Observations]:
    """Noise (P,) and observations without outputs whose targets are all the same, which are zero when standardised.

    They tell nothing of how functions vary. But with the kernel of the others they would be most likely if no function
    varied at all, so that a few of them would leave nothing of the others.
    """
    rows, zero = observed.rows, are_zero(observed.rows.y)
    if not zero.any() or noise.shape[-1] == 1:
        return noise, observed
    rows = Batch(rows.X, rows.y[:, ~zero], rows.weight)
    return noise[..., ~zero], observed._replace(rows=rows, within=observed.within[~zero])


def log_evidence(kernel: Kernel, noise: Tensor, observed: Observations) -> Tensor:
    """log ∫ Π_i N(y_i | f(x_i), σ²/w_i) N(f | 0, K) df, summed over outputs; w_i is the weight of observation i.

    G groups of observations have the same features. With the mean ȳ_g of a group and its total weight W_g it is

        log N(ȳ | 0, K + diag(σ²/W)) − ½ Σ_i w_i (y_i − ȳ_g)²/σ² − ½ (N − G) log 2πσ² + ½ (Σ_i log w_i − Σ_g log W_g).

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    noise : Tensor of shape (P,) or (1,)
        σ² of each output, or one for all outputs. If outputs share kernel and noise, the evidence of P outputs takes no
        longer than that of one.
    observed : Observations
        The observations.
    """
    rows, n_outputs = observed.rows, observed.rows.y.shape[1]
    K = kernel.covariance(rows.X, rows.X) + torch.diag_embed(noise[:, None] / rows.weight)  # (P or 1, G, G)
    means = cast(Tensor, _LogDensity.apply(rows.y.mT, K))
    if observed.number == len(rows):
        return means
    log_noise = (2 * math.pi * noise).log().expand(n_outputs).sum()
    change = n_outputs * (observed.log_weight - rows.weight.log().sum())
    return means - 0.5 * ((observed.within / noise).sum() + (observed.number - len(rows)) * log_noise - change)


def most_likely(
    kernel: Kernel,
    likelihood: Gaussian,
    rows: Batch,
    max_iter: int,
    reach: float,
    tolerance: float = TOLERANCE,
    *,
    of_varying: bool = False,
) -> float:
    """Give a kernel and a noise of float64 the values that are most probable given some rows.

    Where the first values have so little noise that the evidence cannot be computed, the search starts with more of it.

    Parameters
    ----------
    kernel : Kernel
        The kernel, which changes in place.
    likelihood : Gaussian
        The likelihood, whose noise changes in place.
    rows : Batch
        The rows.
    max_iter : int
        Largest number of iterations of L-BFGS.
    reach : float
        How far each logarithm may move.
    tolerance : float, default=TOLERANCE
        Share of the logarithm that the last iteration gains.
    of_varying : bool, default=False
        Whether only the outputs of :func:`telling` decide. The noise of the others stays as it is.

    Returns
    -------
    float
        The logarithm of evidence and prior, per observation.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the evidence cannot be computed at the start, even with as much noise as the kernel's variance.
    """
    rows = in_least_squares(likelihood, rows)
    observed, best = observations(rows, relative=not likelihood.fixed), math.nan

    def loss() -> Tensor:
        judged = telling(likelihood.variance, observed) if of_varying else (likelihood.variance, observed)
        return -(log_evidence(kernel, *judged) + kernel.log_prior()) / observed.number

    def record(value: float) -> bool:
        nonlocal best
        best = -value
        return False

    free = [parameter for parameter in _parameters(kernel, likelihood) if parameter.requires_grad]
    while True:
        try:
            lbfgs(loss, free, max_iter, len(observed.rows) ** 3 / 3, record, reach=reach, tolerance=tolerance)
            break
        except np.linalg.LinAlgError:
            if not likelihood.log_excess.requires_grad or not _below(likelihood, kernel.diagonal(rows.X)):
                raise
            with torch.no_grad():
                likelihood.log_excess.add_(math.log(LIFT))
    if not math.isfinite(best):  # no step has gained anything
        with torch.no_grad():
            best = -loss().item()
    return best


def _below(likelihood: Gaussian, variances: Tensor) -> bool:
    """Whether the noise is smaller than a kernel's variances and may grow; False if these are not numbers."""
    return likelihood.variance.min().item() < min(variances.mean().item(), 0.5 * likelihood.ceiling)


def _parameters(*modules: nn.Module) -> Sequence[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]
