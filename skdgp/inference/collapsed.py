r"""Sparse GP regression with every posterior at its optimum: only hyperparameters are left to learn.

With a Gaussian likelihood the bound of one global layer is quadratic in its inducing variables, and their best
posterior has a closed form (Titsias, 2009; SOLVE-GP, Sec. 3.2 and App. C). The data enter through sums over rows
alone: with φ_u and φ_v, whitened cross-covariances of a row with the layer's first and second inducing variables,

    G = Σ w φ φᵀ, split into G_uu, G_uv, G_vv;    b = Σ w φ y;    Σ w y²;    Σ w,

so that rows can be taken in chunks. With Λ = σ²I + G_uu and A = Φ_uᵀΦ_u + σ²I, what f∥ and noise explain of the
targets' covariance:

    S_v = (I + G_vv/σ²)⁻¹,  m_v = (I + H)⁻¹ c,  H = (G_vv − G_vu Λ⁻¹ G_uv)/σ²,  c = (b_v − G_vu Λ⁻¹ b_u)/σ²
    S_u = σ² Λ⁻¹,           m_u = Λ⁻¹ (b_u − G_uv m_v)

and the bound, with Eq. 9's terms in its order, is

    log N(y | Φ_vᵀ m_v, A) − tr(S_f⊥)/(2σ²) − KL(N(m_v, S_v) ‖ N(0, I)).
"""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.checkpoint import checkpoint

from ..gp.deep_gp import DeepGP
from ..gp.layers import GlobalLayer
from ..gp.likelihoods import Gaussian
from ..gp.linalg import cholesky
from .steps import Batch
from .training import History

#: Numbers that the whitened cross-covariances of a chunk of rows may hold: 32 MiB in float64.
CHUNK_NUMBERS = 2**22

#: Noise is on these matrices' diagonals already. Where it is as good as nothing they get jitter, once they fail.
NO_JITTER = 0.0


class Statistics(NamedTuple):
    """What the bound needs to know of the data; see the module's docstring."""

    G: Tensor  # (T, T), T = M + M₂
    b: Tensor  # (T, P)
    yy: Tensor  # (P,)
    total_weight: Tensor  # ()


class Optimum(NamedTuple):
    """The bound, and the posteriors that reach it: means (M, P), covariances (P, M, M)."""

    bound: Tensor
    u_mean: Tensor
    u_covariance: Tensor
    v_mean: Tensor
    v_covariance: Tensor


def statistics(layer: GlobalLayer, data: Batch) -> Statistics:
    """Sums over rows, in chunks whose intermediate values are computed again for the gradient."""
    n_features = sum(posterior.mean.shape[1] for posterior in layer.posteriors)
    n_chunk = max(1, CHUNK_NUMBERS // n_features)

    def chunk(X: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        phi = torch.cat([A for _, A in layer.whitened(X)], dim=-2) * layer.kernel.deviation  # (T, n)
        weighted = phi * weight
        return weighted @ phi.mT, weighted @ y

    parts = []
    for start in range(0, len(data), n_chunk):
        rows = data.rows(slice(start, start + n_chunk))
        parts.append(checkpoint(chunk, rows.X, rows.y, rows.weight, use_reentrant=False))
    G, b = (torch.stack(column).sum(0) for column in zip(*parts, strict=True))
    return Statistics(G, b, (data.weight[:, None] * data.y.square()).sum(0), data.weight.sum())


def optimum(sums: Statistics, n_inducing: int, prior_variance: Tensor, noise: Tensor) -> Optimum:
    """The collapsed bound and its posteriors.

    Parameters
    ----------
    sums : Statistics
    n_inducing : int
        M, features of the first set; the others are of the second, of which there may be none.
    prior_variance : Tensor of shape ()
        k(x, x).
    noise : Tensor of shape (P,)
        σ², of each output.
    """
    G_uu, G_uv, G_vv = (
        sums.G[:n_inducing, :n_inducing],
        sums.G[:n_inducing, n_inducing:],
        sums.G[n_inducing:, n_inducing:],
    )
    b_u, b_v = sums.b[:n_inducing].mT[..., None], sums.b[n_inducing:].mT[..., None]  # (P, ·, 1)
    s2 = noise[:, None, None]
    identity_u = torch.eye(n_inducing, dtype=s2.dtype, device=s2.device)
    identity_v = torch.eye(len(G_vv), dtype=s2.dtype, device=s2.device)

    L = cholesky(s2 * identity_u + G_uu, NO_JITTER)  # of Λ, (P, M, M)
    P_uv = torch.linalg.solve_triangular(L, G_uv.expand(len(noise), -1, -1), upper=False)
    p_u = torch.linalg.solve_triangular(L, b_u, upper=False)
    H, c = (G_vv - P_uv.mT @ P_uv) / s2, (b_v - P_uv.mT @ p_u) / s2
    L_H = cholesky(identity_v + H, NO_JITTER)
    p_c = torch.linalg.solve_triangular(L_H, c, upper=False)
    v_mean = torch.linalg.solve_triangular(L_H.mT, p_c, upper=True)
    L_v = cholesky(identity_v + G_vv / s2, NO_JITTER)
    v_covariance = torch.cholesky_inverse(L_v)

    # log N(y | Φ_vᵀ m_v, A) − ½ m_vᵀm_v: what is left of |y|² and of log|A| after the inversion lemma.
    squares = (sums.yy - p_u.square().sum((-2, -1))) / noise - p_c.square().sum((-2, -1))
    log_det_A = (sums.total_weight - n_inducing) * noise.log() + 2 * _log_diagonal(L)
    fit = -0.5 * (sums.total_weight * math.log(2 * math.pi) + log_det_A + squares)
    left_over = sums.total_weight * prior_variance - G_uu.trace() - G_vv.trace() + (v_covariance * G_vv).sum((-2, -1))
    kl_v = 0.5 * (v_covariance.diagonal(dim1=-2, dim2=-1).sum(-1) - len(G_vv)) + _log_diagonal(L_v)
    bound = (fit - 0.5 * left_over / noise - kl_v).sum()

    u_mean = torch.cholesky_solve(b_u - G_uv @ v_mean, L)
    return Optimum(bound, u_mean[..., 0], s2 * torch.cholesky_inverse(L), v_mean[..., 0], v_covariance)


def _log_diagonal(L: Tensor) -> Tensor:
    return L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def collapsed(model: DeepGP, data: Batch) -> Optimum:
    """The optimum of a model of one whitened global layer with one kernel, for these rows."""
    layer, likelihood = cast(GlobalLayer, model.layers[0]), cast(Gaussian, model.likelihood)
    return optimum(statistics(layer, data), len(layer.Z), layer.kernel.variance[0], likelihood.variance)


def train_collapsed(
    model: DeepGP, data: Batch, max_iter: int, on_epoch: Callable[[History], bool] = lambda history: False
) -> History:
    """Maximise the collapsed bound over kernel, inducing points and noise by L-BFGS, and set the posteriors.

    Parameters
    ----------
    model : DeepGP
        One whitened global layer with full covariances and one kernel; changed in place.
    data : Batch
        All rows, in float64.
    max_iter : int
        Iterations at most.
    on_epoch : callable, default=never stops
        See :func:`skdgp.inference.training.train`.

    Returns
    -------
    History
        ``loss`` is the negative bound per row after every iteration.

    Raises
    ------
    KeyboardInterrupt
        If the user interrupts the first iteration; later, the last whole one is the result.
    """
    layer = cast(GlobalLayer, model.layers[0])
    fixed = {id(parameter) for posterior in layer.posteriors for parameter in posterior.parameters()}
    parts = (*layer.parameters(), *model.likelihood.parameters())
    free = [parameter for parameter in parts if parameter.requires_grad and id(parameter) not in fixed]
    history = History()
    state: dict = {"loss": math.inf}

    def loss_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
        vector_to_parameters(torch.as_tensor(vector, device=data.X.device), free)
        try:
            loss = -collapsed(model, data).bound / len(data)
        except np.linalg.LinAlgError:
            if not math.isfinite(state["loss"]):
                raise
            # A step too far: worse than where it came from, so that the line search takes a shorter one.
            return state["loss"] + 10 * max(1.0, abs(state["loss"])), np.zeros_like(vector)
        gradient = torch.autograd.grad(loss, free)
        state["loss"] = loss.item()
        return loss.item(), parameters_to_vector(gradient).cpu().numpy()

    def record(vector: np.ndarray) -> None:
        state["vector"] = vector.copy()
        history.loss.append(state["loss"])
        history.best_epoch = len(history.loss)
        if on_epoch(history):
            raise StopIteration

    start = parameters_to_vector(free).detach().cpu().numpy()
    try:
        state["vector"] = minimize(
            loss_and_gradient, start, jac=True, method="L-BFGS-B", callback=record, options={"maxiter": max_iter}
        ).x
    except KeyboardInterrupt:
        if not history.loss:
            raise
        history.interrupted = True
    vector_to_parameters(torch.as_tensor(state["vector"], device=data.X.device), free)
    set_posteriors(model, data)
    return history


@torch.no_grad()
def set_posteriors(model: DeepGP, data: Batch) -> None:
    """Give the layer of ``model`` the posteriors that are best for these rows."""
    layer = cast(GlobalLayer, model.layers[0])
    best = collapsed(model, data)
    found = [(best.u_mean, best.u_covariance), (best.v_mean, best.v_covariance)]
    for posterior, (mean, covariance) in zip(layer.posteriors, found, strict=False):  # v may be missing
        root = cholesky(covariance, NO_JITTER)
        posterior.set(mean, root)
