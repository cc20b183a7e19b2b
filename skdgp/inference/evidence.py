"""The exact evidence of a few rows: the density that a Gaussian process gives to their targets before it learns.

It needs no inducing points and no posterior. So only the kernel and the noise are left to choose.
"""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..gp.autograd import Function
from ..gp.kernels import Kernel
from ..gp.likelihoods import Gaussian
from ..gp.linalg import NO_JITTER, cholesky
from .batches import Batch
from .lbfgs import TOLERANCE, lbfgs

#: If the evidence cannot be computed at the start, the noise's excess is multiplied by this number.
LIFT = 10.0


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


def log_evidence(kernel: Kernel, noise: Tensor, rows: Batch) -> Tensor:
    """log ∫ Π N(y | f, σ²)ʷ N(f | 0, K) df, summed over outputs; w are weights of rows.

    A row of weight 2 counts as that row twice: N(y | f, σ²)ʷ is N(y | f, σ²/w) times √(2πσ²/w) (2πσ²)^(−w/2).

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    noise : Tensor of shape (P,) or (1,)
        σ² of each output, or one for all outputs. If outputs share kernel and noise, the evidence of P outputs takes no
        longer than that of one.
    rows : Batch
        The rows.
    """
    K = kernel.covariance(rows.X, rows.X) + torch.diag_embed(noise[:, None] / rows.weight)  # (P or 1, n, n)
    log_noise = (2 * math.pi * noise[:, None]).log().expand(rows.y.shape[1], -1)
    repetitions = (log_noise * (1.0 - rows.weight) - rows.weight.log()).sum()  # over outputs and rows
    return cast(Tensor, _LogDensity.apply(rows.y.mT, K)) + 0.5 * repetitions


def most_likely(
    kernel: Kernel, likelihood: Gaussian, rows: Batch, max_iter: int, reach: float, tolerance: float = TOLERANCE
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

    Returns
    -------
    float
        The logarithm of evidence and prior, per row.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the evidence cannot be computed at the start, even with as much noise as the kernel's variance.
    """
    total_weight, best = rows.weight.sum().item(), math.nan

    def loss() -> Tensor:
        return -(log_evidence(kernel, likelihood.variance, rows) + kernel.log_prior()) / total_weight

    def record(value: float) -> bool:
        nonlocal best
        best = -value
        return False

    free = [parameter for parameter in _parameters(kernel, likelihood) if parameter.requires_grad]
    while True:
        try:
            lbfgs(loss, free, max_iter, len(rows) ** 3 / 3, record, reach=reach, tolerance=tolerance)
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
    """Whether the noise is smaller than a kernel's variances; False if these are not numbers."""
    return likelihood.variance.min().item() < variances.mean().item()


def _parameters(*modules: nn.Module) -> Sequence[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]
