r"""Sparse GP regression in which the posteriors are always the best ones, and only hyperparameters are learnt.

With a Gaussian likelihood the bound of one global layer is quadratic in its inducing variables, so that their best
posterior has a closed form (Titsias, 2009; SOLVE-GP, Sec. 3.3 and App. C). It needs only sums over the rows. With φ_u
and φ_v, the whitened cross-covariances of a row with the layer's first and second inducing variables, these are

    G = Σ w φ φᵀ, split into G_uu, G_uv, G_vv;    b = Σ w φ y;    Σ w y²;    Σ w k(x, x);    Σ w,

and so rows can be processed in chunks. Let Λ = σ²I + G_uu. Let C = Φ_uᵀΦ_u + σ²I, the part of the targets' covariance
that f∥ and the noise explain. Then the best posteriors are

    S_v = (I + G_vv/σ²)⁻¹,  m_v = (I + H)⁻¹ c,  H = (G_vv − G_vu Λ⁻¹ G_uv)/σ²,  c = (b_v − G_vu Λ⁻¹ b_u)/σ²
    S_u = σ² Λ⁻¹,           m_u = Λ⁻¹ (b_u − G_uv m_v)

and the bound, with its terms in the order of Eq. 9, is

    log N(y | Φ_vᵀ m_v, C) − tr(S_f⊥)/(2σ²) − KL(N(m_v, S_v) ‖ N(0, I)).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..gp.deep_gp import DeepGP
from ..gp.fourier import Fourier
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import StationaryKernel
from ..gp.likelihoods import Gaussian
from ..gp.linalg import NO_JITTER, cholesky
from .batches import Batch, in_least_squares
from .lbfgs import lbfgs
from .settings import History, Member, OneByOne, Settings
from .starts import of_points, parts_of, start
from .threads import threads_for
from .twins import merged, weight_of_twins

#: Number of square matrices over all inducing points that a fit holds at a time, including gradients.
MATRICES = 25

#: Number of whitened cross-covariances of a chunk of rows that it holds at a time.
CHUNKS = 8

#: If a row's own target decides all of its prediction but this share, rounding errors may decide what is predicted
#: without it. So that is no farther from the targets than they are from each other.
ROUGH = 1e-8

#: What the last iteration gains, in nats per row, or as a share of them if they are more than one.
TOLERANCE = 1e-4

#: Factors of lengthscales from which a fit with Fourier features may start. A long series needs the smallest.
SHORTER = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.008, 0.004)

#: Excesses of the noise's variance from which it may start: from almost no noise to hardly anything else.
EXCESSES = (0.01, 0.1, 0.5, 0.9)

#: Largest number of entries in the whitened cross-covariances of a chunk of rows: 32 MiB in float64.
CHUNK_NUMBERS = 2**22

#: Largest number of them that are kept for a second pass over the rows: 256 MiB.
KEPT_NUMBERS = 2**25


class Statistics(NamedTuple):
    """The sums over rows that the bound needs; see the module's docstring."""

    G: Tensor  # (T, T), T = M + M₂
    b: Tensor  # (T, P)
    yy: Tensor  # (P,)
    prior: Tensor  # (), Σ w k(x, x)
    total_weight: Tensor  # ()


class Optimum(NamedTuple):
    """The best bound, and its posteriors: means (P, M) and covariances (P or 1, M, M).

    ``noise`` (P,) or (1,) and ``cross`` (M, M₂), which is G_uv, are what later rows need beside the posteriors.
    """

    bound: Tensor
    u_mean: Tensor
    u_covariance: Tensor
    v_mean: Tensor
    v_covariance: Tensor
    noise: Tensor
    cross: Tensor


def statistics(layer: GlobalLayer, data: Batch) -> Statistics:
    """Sums over rows in float64, by chunks. For gradients several chunks are computed again instead of stored."""
    n_features = sum(posterior.mean.shape[1] for posterior in layer.posteriors)
    n_chunk = max(1, CHUNK_NUMBERS // n_features)

    def chunk(X: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        phi = _features(layer, X)
        weighted = phi * weight
        prior = (weight * layer.kernel.relative_diagonal(X)).sum() * layer.kernel.variance[0]
        return weighted @ phi.mT, weighted @ y.double(), prior.double()

    if len(data) <= n_chunk:  # computing twice gains nothing, and the first checkpoint imports torch's compiler
        parts = [chunk(data.X, data.y, data.weight)]
    else:
        chunks = (data.rows(slice(start, start + n_chunk)) for start in range(0, len(data), n_chunk))
        again = partial(checkpoint, chunk, use_reentrant=False) if torch.is_grad_enabled() else chunk
        parts = [again(rows.X, rows.y, rows.weight) for rows in chunks]
    G, b, prior = (torch.stack(column).sum(0) for column in zip(*parts, strict=True))
    weight, y = data.weight.double(), data.y.double()
    return Statistics(G, b, weight @ y.square(), prior, weight.sum())


def statistics_of(layer: GlobalLayer, data: Batch) -> Callable[[], Statistics]:
    """A function that computes the same for the current hyperparameters.

    Hyperparameters change Fourier features only by a factor, so that sums over rows are computed once. This holds in
    the intervals of the features. There are few rows outside, if any, and these are summed each time.
    """
    features = layer.inducing
    if not isinstance(features, Fourier) or len(layer.sizes) > 1:
        return lambda: statistics(layer, data)
    within, beyond = features.contain(layer.kernel, data.X), data.rows(slice(0))
    if not within.any():
        return lambda: statistics(layer, data)
    if not within.all():
        beyond, data = data.rows(~within), data.rows(within)
    weight, y = data.weight.double(), data.y.double()
    with torch.no_grad():
        sums = torch.cat(features.sums(layer.kernel, data.X.double(), y, weight), dim=1)  # G and b
    squares, total = weight @ y.square(), weight.sum()

    def now() -> Statistics:
        scale, kernel = layer.kernel.deviation.double(), layer.kernel
        roots = features.roots(kernel)
        half, b_now = features.orthonormal_of(kernel, sums, roots)[0].split(
            [len(features), sums.shape[1] - len(features)], 1
        )
        whole = features.orthonormal_of(kernel, half.mT, roots)[0] * scale**2  # R⁻¹ G R⁻ᵀ
        prior = kernel.diagonal(data.X[:1]).double().sum() * total  # the same everywhere
        inside = Statistics(0.5 * (whole + whole.mT), b_now * scale, squares, prior, total)
        if not len(beyond):
            return inside
        return Statistics(*(one + other for one, other in zip(inside, statistics(layer, beyond), strict=True)))

    return now


def optimum(sums: Statistics, n_inducing: int, noise: Tensor) -> Optimum:
    """The collapsed bound and its posteriors.

    Parameters
    ----------
    sums : Statistics
    n_inducing : int
        M, the number of features in the first set. The others are those of the second set, which may be empty.
    noise : Tensor of shape (P,) or (1,)
        σ² of each output, or one for all outputs, which then share the covariances.
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

    # log N(y | Φ_vᵀ m_v, C) − ½ m_vᵀm_v, with |y|² and log|C| simplified by the inversion lemma.
    squares = (sums.yy - p_u.square().sum((-2, -1))) / noise - p_c.square().sum((-2, -1))
    log_det_C = (sums.total_weight - n_inducing) * noise.log() + 2 * _log_diagonal(L)
    fit = -0.5 * (sums.total_weight * math.log(2 * math.pi) + log_det_C + squares)
    left_over = sums.prior - G_uu.trace() - G_vv.trace() + (v_covariance * G_vv).sum((-2, -1))
    kl_v = 0.5 * (v_covariance.diagonal(dim1=-2, dim2=-1).sum(-1) - len(G_vv)) + _log_diagonal(L_v)
    bound = (fit - 0.5 * left_over / noise - kl_v).sum()

    u_mean = torch.cholesky_solve(b_u - G_uv @ v_mean, L)
    u_covariance = s2 * torch.cholesky_inverse(L)
    return Optimum(bound, u_mean[..., 0], u_covariance, v_mean[..., 0], v_covariance, noise, G_uv)


def _log_diagonal(L: Tensor) -> Tensor:
    return L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def collapsed(model: DeepGP, data: Batch, sums: Callable[[], Statistics] | None = None, beta: float = 1.0) -> Optimum:
    """The optimum for these rows and the noise βσ², of a model of one whitened global layer with one kernel."""
    layer, likelihood = parts_of(model)
    sums = sums or statistics_of(layer, data)
    return optimum(sums(), layer.sizes[0], beta * likelihood.variance.double())


@OneByOne
def train(member: Member, settings: Settings, on_epoch: Callable[[History], bool]) -> History:
    """Maximise the collapsed bound with the lengthscales' prior by L-BFGS, and set the posteriors.

    It is a :class:`~.settings.Trainer` for a model of one whitened global layer with full covariances and one kernel.
    It uses all rows at once, in float64. An epoch is an iteration, whose loss is the negative bound per row. No rows
    are held out, and nothing is random. If the user interrupts it, the model keeps the last whole iteration.
    """
    model, data, history = member.model, member.at_once(), History()
    layer, likelihood = parts_of(model)
    kernel = layer.kernel
    judged, _ = merged(data).relative()
    sums = statistics_of(layer, in_least_squares(likelihood, judged))

    def record(loss: float) -> bool:
        history.add(loss)
        return on_epoch(history)

    def loss() -> Tensor:
        return -(collapsed(model, judged, sums).bound + kernel.log_prior()) / len(judged)

    untrained = not layer.q.mean.any()
    if untrained and isinstance(kernel, StationaryKernel) and isinstance(layer.inducing, Fourier):
        _try_starts(kernel, likelihood, loss)
    elif untrained and of_points(layer):
        start(model, judged)
    try:
        lbfgs(loss, not_solved(model), settings.max_iter, model.products(len(data)), record, tolerance=TOLERANCE)
    except KeyboardInterrupt:
        if not history.loss:
            raise
        history.interrupted = True
    if not history.loss:  # training started at an optimum, so that no step has gained anything
        with torch.no_grad():
            record(loss().item())
    history.bound = set_posteriors(model, data, remember=True)
    return history


@torch.no_grad()
def _try_starts(kernel: StationaryKernel, likelihood: Gaussian, loss: Callable[[], Tensor]) -> None:
    """Start with the best of several lengthscales and noises.

    With the initial lengthscale a long series may look like noise. Since sums over rows are computed once, trying
    others takes hardly any time.
    """
    initial = kernel.log_lengthscale.clone()

    def start(factor: float, excess: float) -> None:
        kernel.log_lengthscale.copy_(initial + math.log(factor))
        likelihood.log_excess.fill_(math.log(excess))

    def loss_at(place: tuple[float, float]) -> float:
        start(*place)
        try:
            return loss().item()
        except np.linalg.LinAlgError:  # the features cannot represent so short a lengthscale
            return math.inf

    start(*min(product(SHORTER, EXCESSES), key=loss_at))


def not_solved(model: DeepGP) -> list[nn.Parameter]:
    """Trainable parameters whose best values have no closed form."""
    layer, likelihood = parts_of(model)
    solved = {id(parameter) for posterior in layer.posteriors for parameter in posterior.parameters()}
    parts = (*layer.parameters(), *likelihood.parameters())
    return [parameter for parameter in parts if parameter.requires_grad and id(parameter) not in solved]


@torch.no_grad()
def set_posteriors(
    model: DeepGP,
    data: Batch,
    beta: float = 1.0,
    sums: Callable[[], Statistics] | None = None,
    *,
    remember: bool = False,
) -> float:
    """Give the layer of ``model`` the best posteriors for these rows; return the bound that they reach.

    ``beta`` is the weight of the penalty. Up to a constant, log N(y | f, σ²) is β log N(y | f, βσ²). So the posteriors
    that maximise E log p(y | f) − β KL are those that maximise the bound for a noise of βσ². Covariances of rows are
    computed in the model's precision. The posteriors are then the best ones for the model with its rounding errors.
    Everything else is in float64. With ``remember`` the layer also keeps what :mod:`.conditioning` needs.
    """
    layer, _ = parts_of(model)
    posteriors = layer.posteriors
    best, bound = best_of(model, data, beta, sums)
    moments = [(best.u_mean, best.u_covariance), (best.v_mean, best.v_covariance)][
        : len(posteriors)
    ]  # there may be no v
    roots = [cholesky(covariance, NO_JITTER) for _, covariance in moments]  # all before any is set, since one may fail
    for posterior, (mean, _), root in zip(posteriors, moments, roots, strict=True):
        posterior.set(mean, root)
    if remember:
        layer.remember(best.noise, best.cross)
    return bound


@torch.no_grad()
def best_of(
    model: DeepGP, data: Batch, beta: float = 1.0, sums: Callable[[], Statistics] | None = None
) -> tuple[Optimum, float]:
    """The optimum for encoded rows, which the model does not get, and the bound of their targets that it reaches.

    ``beta`` is that of :func:`set_posteriors`.
    """
    _, likelihood = parts_of(model)
    with threads_for(model.products(len(data))):
        best = collapsed(model, in_least_squares(likelihood, data), sums, beta)
    return best, best.bound.item() + likelihood.log_precise(data.y, data.weight)


@torch.no_grad()
def left_out(model: DeepGP, rows: Batch, data: Batch, beta: float = 1.0) -> tuple[Tensor, Tensor]:
    """Means and variances (n, P) of function values at some rows, as if the row's own target had not been learnt.

    Let s = φᵀΛ⁻¹φ with Λ = σ²I + G of both sets together, and let h = ws be the leverage of the row, w its weight.
    Without the row the residual of its target is (y − m)/(1 − h). The posteriors of the two sets are independent, and
    the covariance of each is σ²Λ⁻¹ with Λ of this set alone. So each set contributes σ²s/(1 − ws) to the variance, with
    its own s. Differences of variances would lose all digits if there is hardly any noise, and so would 1 − ws. But it
    is not less than σ²/(σ² + wφᵀφ), since Λ is not less than σ²I + wφφᵀ. Kernel, noise and inducing
    points stay as all rows together have determined them. Outputs may have kernels of their own.

    Twins of the row are left out together with it (see :mod:`.twins`). They have the same φ and the same y, so that
    they enter Λ and b as a single row with the sum of their weights. This sum takes the place of the weight.

    Parameters
    ----------
    model : DeepGP
        A model with the posteriors of :func:`set_posteriors`.
    rows : Batch
        Some of the rows of ``data``.
    data : Batch
        All rows that the posteriors have learnt from.
    beta : float, default=1.0
        The value with which the posteriors were set.
    """
    rows, data = _in_least_squares(model, rows, data)
    parts, weight = [], weight_of_twins(rows, data)
    with threads_for(model.products(len(data))):
        layer, likelihood = parts_of(model.frozen())
        features, of_data = _features_of_both(layer, rows, data)
        G = of_data.gram(data.weight)
        noise = beta * likelihood.variance.double()[:, None, None]
        Lambda = G + noise * torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)  # (P, T, T)
        L, ends = cholesky(Lambda, NO_JITTER), list(accumulate(layer.sizes, initial=0))
        sets = [slice(start, stop) for start, stop in pairwise(ends) if stop > start]
        roots = [L if len(sets) == 1 else cholesky(Lambda[:, own, own], NO_JITTER) for own in sets]
        for at, phi in features:
            unexplained = layer.kernel.diagonal(rows.X[at]) - phi.square().sum(-2)  # by all inducing variables
            variance = unexplained.clamp(min=0.0).mT
            for own, root in zip(sets, roots, strict=True):
                s = _inverse_form(root, phi[..., own, :])
                variance = variance + noise[..., 0, 0] * s / _kept(weight[at], s, _squares(phi[..., own, :]), noise)
            of_both = s if len(sets) == 1 else _inverse_form(L, phi)
            kept = _kept(weight[at], of_both, _squares(phi), noise)
            mean = _means(layer, phi, rows.X[at])
            parts.append((_without(rows.y[at], mean, kept, data.y), variance.expand_as(mean)))
    means, variances = (torch.cat(column) for column in zip(*parts, strict=True))
    return means, variances


@torch.no_grad()
def left_out_by_fold(model: DeepGP, rows: Batch, learnt: Tensor, fold: Tensor, n_folds: int) -> tuple[Tensor, Tensor]:
    """Means and variances (K + 1, n, P) of function values if one fold after another is not learnt from, and none.

    Kernel, noise and inducing points stay as they are. A row that is learnt from is left out for its own moments, as in
    :func:`left_out`. The features of a row are computed once or twice, however many folds there are.

    Parameters
    ----------
    model : DeepGP
        A model of one whitened layer with one set of inducing points, a kernel that outputs share, and mean zero.
    rows : Batch
        All rows.
    learnt : Tensor of shape (n,)
        Which of them the posterior learns from at all.
    fold : Tensor of shape (n,)
        Number of the fold of each row. The number K stands for rows in no fold.
    n_folds : int
        K.
    """
    rows = in_least_squares(model.likelihood, rows)
    with threads_for(model.products(len(rows))):
        layer, likelihood = parts_of(model.frozen())
        noise, n_points = likelihood.variance.double()[:, None, None], sum(layer.sizes)
        features = _Features(layer, rows.X)
        G, b = (rows.y.new_zeros(n_folds + 1, n_points, m) for m in (n_points, rows.y.shape[1]))
        for at, phi in features:
            for number in fold[at].unique().tolist():
                own = (fold[at] == number) & learnt[at]
                weighted = phi[:, own] * rows.weight[at][own]
                G[number] += weighted @ phi[:, own].mT
                b[number] += weighted @ rows.y[at][own]
        posteriors, weights = [], []
        for number in range(n_folds + 1):
            kept = [k for k in range(n_folds + 1) if k != number or k == n_folds]  # no differences, for their digits
            L = cholesky(G[kept].sum(0) + noise * torch.eye(n_points, dtype=G.dtype, device=G.device), NO_JITTER)
            posteriors.append((L, torch.cholesky_solve(b[kept].sum(0).mT[..., None], L)[..., 0].mT))  # (T, P)
            among = learnt & ((fold != number) | (number == n_folds))
            weights.append(weight_of_twins(rows, rows.rows(among)) * among)
        moments = [
            _moments_of_chunk(layer, phi, rows.rows(at), [weight[at] for weight in weights], posteriors, noise, rows.y)
            for at, phi in features
        ]
    means, variances = (torch.cat(column, dim=1) for column in zip(*moments, strict=True))
    return means, variances


def _moments_of_chunk(
    layer: GlobalLayer,
    phi: Tensor,
    rows: Batch,
    weights: Sequence[Tensor],
    posteriors: Sequence[tuple[Tensor, Tensor]],
    noise: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """Means and variances (K, n, P) of some rows by K posteriors, each without the row if that is one of its own."""
    means, variances = [], []
    unexplained = (layer.kernel.diagonal(rows.X) - phi.square().sum(-2)).clamp(min=0.0).mT
    for weight, (L, solved) in zip(weights, posteriors, strict=True):
        s = _inverse_form(L, phi)
        kept = _kept(weight, s, _squares(phi), noise)
        means.append(_without(rows.y, phi.mT @ solved, kept, targets))
        variances.append((unexplained + noise[..., 0, 0] * s / kept).expand_as(means[-1]))
    return torch.stack(means), torch.stack(variances)


class Leverages(NamedTuple):
    """What the targets of n rows have to do with the predictions of all of them; see :func:`leverages`."""

    whitened: Tensor  # (P or 1, T, n), L⁻¹φ with LLᵀ = Λ
    kept: Tensor  # (n, P or 1), 1 − h
    weight: Tensor  # (n,), of a row and its twins; zero if it has not been learnt
    residual: Tensor  # (n, P), y − m without the row


@torch.no_grad()
def leverages(model: DeepGP, rows: Batch, data: Batch, learnt: Tensor) -> Leverages:
    """The factors of h_ji = w_i φ_jᵀΛ⁻¹φ_i, the share of the target of row i in the prediction of row j.

    Parameters are those of :func:`left_out`, and ``learnt`` (n,), which of the rows are among ``data``.
    """
    rows, data = _in_least_squares(model, rows, data)
    weight = weight_of_twins(rows, data) * learnt
    with threads_for(model.products(len(data))):
        layer, likelihood = parts_of(model.frozen())
        features, of_data = _features_of_both(layer, rows, data)
        G = of_data.gram(data.weight)
        noise = likelihood.variance.double()[:, None, None]
        L = cholesky(G + noise * torch.eye(G.shape[-1], dtype=G.dtype, device=G.device), NO_JITTER)
        parts = []
        for at, phi in features:
            whitened = torch.linalg.solve_triangular(L, phi.expand(len(L), -1, -1), upper=False)
            parts.append((whitened, _squares(phi), _means(layer, phi, rows.X[at]).mT))
    whitened, squares, mean = (torch.cat(columns, dim=-1) for columns in zip(*parts, strict=True))
    kept = _kept(weight, whitened.square().sum(-2).mT, squares, noise)
    return Leverages(whitened, kept, weight, rows.y - _without(rows.y, mean.mT, kept, data.y))


def _features(layer: GlobalLayer, X: Tensor) -> Tensor:
    """φ (T, n) of rows X in float64, or (P, T, n) if each output has its own kernel."""
    A, deviation = torch.cat([A for _, A in layer.whitened(X)], dim=-2).double(), layer.kernel.deviation
    return A * (deviation if len(deviation) == 1 else deviation[:, None, None])


class _Features:
    """Features φ of rows, chunk by chunk. They are kept if they take little memory, and else computed each time."""

    def __init__(self, layer: GlobalLayer, X: Tensor):
        size = max(1, layer.kernel.n_outputs * sum(layer.sizes))
        n_chunk = max(1, CHUNK_NUMBERS // size)
        self.layer, self.X, self.kept = layer, X, dict[int, Tensor]()
        self.keep = len(X) * size <= KEPT_NUMBERS
        self.places = [slice(start, start + n_chunk) for start in range(0, len(X), n_chunk)]

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Places of the rows of each chunk, and their features; see :func:`_features`."""
        for at in self.places:
            phi = self.kept.get(at.start)
            if phi is None:
                phi = _features(self.layer, self.X[at])
            if self.keep:
                self.kept[at.start] = phi
            yield at, phi

    def gram(self, weight: Tensor) -> Tensor:
        """G = Σ wφφᵀ (T, T) or (P, T, T)."""
        G = torch.zeros((), dtype=torch.float64, device=self.X.device)
        for at, phi in self:
            G = G + (phi * weight[at]) @ phi.mT
        return G


def _features_of_both(layer: GlobalLayer, rows: Batch, data: Batch) -> tuple[_Features, _Features]:
    """Features of some rows, and of all of them, which are the same if these are all."""
    of_data = _Features(layer, data.X)
    return of_data if rows is data else _Features(layer, rows.X), of_data


def _in_least_squares(model: DeepGP, rows: Batch, data: Batch) -> tuple[Batch, Batch]:
    """Some rows and all of them as closed forms see them; the same object if these are all."""
    everything = in_least_squares(model.likelihood, data)
    return everything if rows is data else in_least_squares(model.likelihood, rows), everything


def _means(layer: GlobalLayer, phi: Tensor, X: Tensor) -> Tensor:
    """Means (n, P) that the posteriors have at rows X with the features φ (T, n) or (P, T, n)."""
    mean = torch.cat([posterior.mean for posterior in layer.posteriors], dim=-1).to(phi)  # (P, T)
    values = mean @ phi if phi.dim() == 2 else (mean[:, None] @ phi)[:, 0]
    return layer.mean.added_to(values.mT, X)


def _inverse_form(root: Tensor, phi: Tensor) -> Tensor:
    """φᵀΛ⁻¹φ (n, P or 1) for the columns of φ (T, n) or (P, T, n) and a root (P or 1, T, T) of Λ."""
    return torch.linalg.solve_triangular(root, phi.expand(len(root), -1, -1), upper=False).square().sum(-2).mT


def _squares(phi: Tensor) -> Tensor:
    """φᵀφ (1 or P, n) for the columns of φ (T, n) or (P, T, n)."""
    return torch.atleast_2d(phi.square().sum(-2))


def _kept(weight: Tensor, s: Tensor, squares: Tensor, noise: Tensor) -> Tensor:
    """1 − ws (n, P or 1): the share of a row's prediction that its own target does not decide; see :func:`left_out`.

    ``squares`` (1 or P, n) are φᵀφ, and ``noise`` is (P or 1, 1, 1).
    """
    weight, noise = weight[:, None], noise[:, 0].mT
    least = noise / (noise + weight * squares.mT)
    return torch.maximum(1.0 - weight * s, least)


def _without(y: Tensor, mean: Tensor, kept: Tensor, targets: Tensor) -> Tensor:
    """Means (n, P) without the rows' own targets y, from those with them, for rows among these targets."""
    without, low, high = y - (y - mean) / kept, targets.amin(0), targets.amax(0)
    return torch.where(kept < ROUGH, without.clamp(2 * low - high, 2 * high - low), without)


def solve_copy(model: DeepGP, rows: Batch, settings: Settings) -> None:
    """Give a copy of a model in training the posteriors that :func:`train` sets in the end."""
    set_posteriors(model, rows, remember=True)


def predict_left_out(model: DeepGP, rows: Batch, data: Batch, settings: Settings) -> tuple[Tensor, Tensor]:
    """Predictions of a model that :func:`train` has trained, as if it had not learnt from these rows."""
    return left_out(model, rows, data)


def memory_needed(n_points: int) -> int:
    """Bytes that a fit with so many inducing points needs in addition to its rows."""
    return 8 * (MATRICES * n_points**2 + CHUNKS * CHUNK_NUMBERS)


def free_memory() -> float:
    """Bytes of memory that new arrays can get without swapping; infinity if the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            sizes = dict(line.split(":") for line in lines)
        return 1024 * int(sizes["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # only Linux has this file
        return math.inf
