r"""New rows for models that are trained, with all hyperparameters as they are.

The posterior of whitened inducing variables, N(m, RRᵀ), takes the place of the prior, and rows with weights w and noise
of variance σ² are added to it. Let φ be the whitened cross-covariances of a row (see :mod:`.collapsed`), ψ = Rᵀφ, and
r = y − φᵀm. Then

    m ← m + R Λ⁻¹ Σ w ψ r/σ²,    RRᵀ ← R Λ⁻¹ Rᵀ,    Λ = I + Σ w ψψᵀ/σ²

(a step of Kalman's filter; for sparse GPs: Bui, Nguyen and Turner, NeurIPS 2017). If the posterior was the best one for
the earlier rows, the new one is the best one for all rows together. In terms of R⁻¹(v − m) no digits are lost, however
little noise there is.

Two sets of inducing variables have independent posteriors. The means of both together still need the sum G_uv of the
earlier rows, which makes R_uᵀ G_uv R_v/σ² a block of Λ when it is solved for means.

New rows may be where no inducing point is. Then the rows that are explained least become inducing points. Whitened by
a triangular factor, the values that older points leave over have the prior N(0, I), so that the posterior of the older
ones does not change.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from ..gp.blend import Blend
from ..gp.coregional import Mixed
from ..gp.deep_gp import DeepGP
from ..gp.features import Points
from ..gp.global_layer import GlobalLayer, Posterior
from ..gp.likelihoods import Gaussian
from ..gp.linalg import NO_JITTER, cholesky
from ..gp.neighbours import Correction, Neighbours
from .base import LEFT_OVER
from .batches import Batch, as_of_complete, in_least_squares
from .collapsed import CHUNK_NUMBERS
from .locality import MOST_ROWS
from .outliers import FAR_OUT, PREDICT_ROWS
from .predictor import Predictor
from .stack import Stack
from .threads import threads_for

#: Kinds of bases that learn from new rows: those whose numbers are the targets, or stand for classes.
KINDS = ("numbers", "grades", "tails", "classes")

#: Largest number of inducing points that a layer can have when rows become points.
MOST_POINTS = 2000

#: Largest number of new rows that may become inducing points at once.
CANDIDATES = 1000


@torch.no_grad()
def conditioned(predictor: Predictor, rows: Batch, generator: torch.Generator) -> Predictor:
    """A copy of a predictor that has also learnt from some rows, if a part of it can; else a ValueError.

    Base, neighbours and members with Gaussian noise and a posterior of the last layer learn. Other members stay as they
    are. They have no weight where only new rows are.

    Parameters
    ----------
    predictor : Predictor
        What has been learnt from earlier rows.
    rows : Batch
        New rows, encoded.
    generator : Generator
        Decides which neighbours leave if there are too many.
    """
    models, blend = deepcopy(list(predictor.models)), deepcopy(predictor.blend)
    rows = rows.to(predictor.device, torch.float64)
    if blend is not None:
        rows = _without_outliers(blend, rows)
        if not len(rows):
            return Predictor(models, blend, predictor.correction)
    able = [model for model in models if _can_learn(model)]
    with_base = blend is not None and blend.likelihood.base_kind in KINDS
    if not (able or with_base or predictor.correction is not None):
        raise ValueError(
            f"No part of the model can learn from new rows without training: {_obstacle(models[0])}. Call partial_fit "
            "to go on with training, or fit with all rows."
        )
    with threads_for(predictor.products(len(rows))):
        for model in able:
            _learn(model, rows)
        if blend is not None and with_base:
            learn_base(blend, rows, keep_near=len(able) < len(models))
    correction = predictor.correction
    if correction is not None:
        rows = as_of_complete(models[0].likelihood, rows)
        residual = rows.y - _means(predictor, rows)
        correction = _with_neighbours(correction, rows, residual, generator)
    return Predictor(models, blend, correction)


def conditioned_stack(stack: Stack, rows: Batch, generator: torch.Generator) -> Stack:
    """The same of predictors without trends: the main one learns, and so do guides, but not from its outliers."""
    stack, blend = stack.with_main(conditioned(stack.main, rows, generator)), stack.main.blend
    if blend is not None:
        rows = _without_outliers(blend, rows.to(stack.device, torch.float64))
        rows = in_least_squares(blend.likelihood, rows)
    views = list(stack.views)
    for number, view in enumerate(views):
        if view.guide is not None and len(rows):
            learnt = conditioned(view.guide.predictor, rows, generator)
            views[number] = view._replace(guide=view.guide._replace(predictor=learnt))
    return Stack(stack.predictors, views, stack.shares)


def _means(predictor: Predictor, rows: Batch) -> Tensor:
    """Means (n, P) of function values."""
    frozen = predictor.frozen(predictor.dtype)
    parts = []
    for X in rows.X.split(PREDICT_ROWS):
        members = [marginals.moments()[0].double() for marginals in frozen.marginals(X.to(predictor.dtype))]
        parts.append(torch.stack(members).mean(0))
    return torch.cat(parts)


def _can_learn(model: DeepGP) -> bool:
    """Whether the posterior of the last layer can be conditioned on rows."""
    layer = model.layers[-1]
    plain = type(model) is DeepGP and isinstance(layer, GlobalLayer) and layer.whiten and layer.log_white_noise is None
    return plain and type(model.likelihood) is Gaussian and not model.has_latents


def _obstacle(model: DeepGP) -> str:
    """Why the posterior of the last layer cannot be conditioned on rows, if nothing else learns from them, either."""
    layer = model.layers[-1]
    if model.has_latents:
        return "rows have latent variables, as latent_dims says, which only training infers"
    if isinstance(layer, Mixed):
        return "outputs share functions, as n_latent_outputs says, which only training tells apart"
    if type(model) is not DeepGP:
        return "layers have their posterior together, as layer_posterior says, which only training finds"
    if isinstance(layer, GlobalLayer) and type(model.likelihood) is Gaussian and not layer.whiten:
        return "inducing variables are not whitened, as covariance says, and there is no base"
    return (
        "this needs targets that were exact in fit. It also needs Gaussian or Student t noise and a base, or Gaussian "
        "noise and an estimator whose last layer has inducing points that rows share"
    )


@torch.no_grad()
def learn_base(blend: Blend, rows: Batch, *, keep_near: bool = False) -> None:
    """Condition a base on rows of float64, in place.

    With ``keep_near`` new inducing points do not tell where members have weight.
    """
    layer = cast(GlobalLayer, blend.base.layers[0])
    noise, rows = _noise_of_base(blend), _without_outliers(blend, rows)
    if not len(rows):
        return
    rows = in_least_squares(blend.likelihood, rows)
    rows = Batch(rows.X, blend.scale * rows.y, rows.weight)
    n_before = len(layer.inducing)
    _add_points(layer, rows, noise)
    if keep_near:
        blend.n_near = blend.n_near or n_before

    def chunks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for some in _in_chunks(rows, sum(layer.sizes)):
            yield some.X, some.y.repeat(1, blend.n_alternatives), some.weight

    _update(layer, noise, chunks())


def _noise_of_base(blend: Blend) -> Tensor:
    """Variances (D,) of the noise of a base, of all outputs of its alternatives."""
    return blend.scale**2 * cast(Gaussian, blend.base.likelihood).variance.double()


def _without_outliers(blend: Blend, rows: Batch) -> Batch:
    """The rows that are not far out by all alternatives of a base which does not learn from outliers."""
    if not (blend.robust or blend.likelihood.base_kind == "tails"):
        return rows
    base, noise, near = blend.base.frozen(), _noise_of_base(blend), []
    numbers = in_least_squares(blend.likelihood, rows)
    precision = numbers.weight / rows.weight
    for start in range(0, len(rows), PREDICT_ROWS):
        some = slice(start, start + PREDICT_ROWS)
        mean, variance = (values[0] for values in base(rows.X[some])[:2])
        error = blend.scale * numbers.y[some].repeat(1, blend.n_alternatives) - mean
        far = error.square() > FAR_OUT**2 * (variance + noise / precision[some, None])
        near.append(~far.unflatten(-1, (blend.n_alternatives, -1)).all(1).any(-1))
    return rows.rows(torch.cat(near)) if near else rows


def _learn(model: DeepGP, rows: Batch) -> None:
    """Condition the last layer of a model on rows, averaged over the inputs that hidden layers make of them."""
    layer, noise = cast(GlobalLayer, model.layers[-1]), cast(Gaussian, model.likelihood).variance.double()
    rows = in_least_squares(model.likelihood, rows)
    if layer.remembered is not None:
        noise = layer.remembered[0].double()
        _add_points(layer, rows, noise)
    like = layer.q.mean
    S = model.propagation.n_samples if len(model.layers) > 1 else 1

    def chunks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for some in _in_chunks(rows, S * sum(layer.sizes)):
            inputs, weight = model.last_inputs(some.X.to(like))
            weight = (weight.double() * some.weight).expand(len(inputs), -1)
            yield inputs.flatten(0, 1), some.y.repeat(len(inputs), 1), weight.flatten()

    _update(layer, noise, chunks())


def _in_chunks(rows: Batch, numbers_per_row: int) -> Iterator[Batch]:
    """The rows, so many at a time that matrices of so many numbers for each row stay small."""
    n_chunk = max(1, CHUNK_NUMBERS // numbers_per_row)
    for start in range(0, len(rows), n_chunk):
        yield rows.rows(slice(start, start + n_chunk))


def _update(layer: GlobalLayer, noise: Tensor, chunks: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Condition the posteriors of a layer on rows: inputs (n, Q), targets (n, D) and weights (n,), in chunks."""
    means = torch.cat([posterior.mean.double() for posterior in layer.posteriors], dim=-1)  # (D, T)
    roots = [_root_of(posterior) for posterior in layer.posteriors]  # (D or 1, M, M) each
    total = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)  # Λ
    shift = torch.zeros_like(means)
    for X, y, weight in chunks:
        phi = _phi(layer, X)
        psi = torch.cat([root.mT @ part for root, part in zip(roots, phi.split(layer.sizes, -2), strict=True)], dim=-2)
        scaled = psi * (weight / noise[:, None, None])  # (D, T, n)
        left = y.mT - layer.mean(X).double().mT - (means[:, None] @ phi)[:, 0]  # (D, n)
        total, shift = total + scaled @ psi.mT, shift + (scaled @ left[..., None])[..., 0]
    together = total
    if len(roots) > 1:
        together = total.clone()
        n = layer.sizes[0]
        across = 0.0 if layer.remembered is None else _across(layer, roots, noise)
        together[:, :n, n:] += across
        together[:, n:, :n] = together[:, :n, n:].mT
    change = torch.cholesky_solve(shift[..., None], cholesky(together, NO_JITTER))  # (D, T, 1)
    end = 0
    for posterior, root in zip(layer.posteriors, roots, strict=True):
        start, end = end, end + posterior.mean.shape[-1]
        own = slice(start, end)
        mean = posterior.mean.double() + (root @ change[:, own])[..., 0]
        if not mean.to(posterior.mean).isfinite().all():
            raise ValueError(
                f"Targets of new rows are so far from those of fit that numbers of {posterior.mean.dtype} overflow: "
                "leave out such rows, or call fit with all rows."
            )
        posterior.mean.copy_(mean)
        _shrink(posterior, root, total[:, own, own])


def _shrink(posterior: Posterior, root: Tensor, Lambda: Tensor) -> None:
    """Give a posterior the covariance R Λ⁻¹ Rᵀ, or the nearest one of its kind."""
    if posterior.log_diagonal is None:  # it stays the prior's
        return
    if posterior.below is None:
        diagonal = Lambda.diagonal(dim1=-2, dim2=-1)
        posterior.log_diagonal.sub_(0.5 * diagonal.log().to(posterior.log_diagonal))
        return
    if len(root) == 1:
        Lambda = Lambda[:1]  # outputs share it
    half = torch.linalg.solve_triangular(cholesky(Lambda, NO_JITTER), root.mT.expand(len(Lambda), -1, -1), upper=False)
    triangle = torch.linalg.qr(half, mode="r").R.mT  # (L⁻¹Rᵀ)ᵀ L⁻¹Rᵀ has the factor Rᵀ of its QR decomposition
    triangle = triangle * triangle.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    posterior.set(posterior.mean, triangle)


def _root_of(posterior: Posterior) -> Tensor:
    """Root (D or 1, M, M) of a posterior's covariance in float64."""
    if posterior.log_diagonal is None:
        size = posterior.mean.shape[-1]
        return torch.eye(size, dtype=torch.float64, device=posterior.mean.device)[None]
    return posterior.triangle.double()


def _phi(layer: GlobalLayer, X: Tensor) -> Tensor:
    """Whitened cross-covariances (D or 1, T, n) of inputs (n, Q) with all inducing variables, in float64."""
    phi = torch.cat([A for _, A in layer.whitened(X.to(layer.q.mean))], dim=-2).double()
    phi = phi if phi.dim() == 3 else phi[None]
    return phi * layer.kernel.deviation.double()[:, None, None]


def _across(layer: GlobalLayer, roots: list[Tensor], noise: Tensor) -> Tensor:
    """R_uᵀ G_uv R_v/σ², (D, M, M₂), of earlier rows."""
    cross = cast(tuple[Tensor, Tensor], layer.remembered)[1].double()
    n_new = layer.sizes[1] - cross.shape[1]  # points that were added later, which earlier rows say nothing of
    cross = nn.functional.pad(cross, (0, n_new))
    return roots[0].mT @ cross @ roots[1] / noise[:, None, None]


def _add_points(layer: GlobalLayer, rows: Batch, noise: Tensor) -> None:
    """Make rows inducing points of the last set as long as the points leave much of a row's variance unexplained."""
    features, posterior = layer.feature_sets[-1], layer.posteriors[-1]
    room = MOST_POINTS - sum(layer.sizes)
    full = posterior.log_diagonal is not None and posterior.below is not None
    if room <= 0 or not full or not all(type(part) is Points for part in layer.feature_sets):
        return
    if features.Z.shape[-1] != rows.X.shape[-1]:  # points of a convolution are patches, and rows are images
        return
    X = rows.spread(CANDIDATES).X.to(layer.q.mean)
    phi, variance = _phi(layer, X), layer.kernel.variance.double()  # (D or 1, T, n), (D or 1,)
    K = layer.kernel.relative_covariance(X, X).double() * variance[:, None, None]
    # Of a row that is a point already, jitter is left over: that is no reason for another point in the same place.
    jitter = layer.jitter * layer.kernel.diagonal(features.Z).double().mean(-1)  # (D or 1,)
    noise = noise.maximum(2 * jitter / LEFT_OVER)
    left = (K - phi.mT @ phi) / noise[:, None, None]  # relative to the noise, of each output
    chosen = _least_explained(left, room)
    if not chosen:
        return
    features.Z = nn.Parameter(torch.cat([features.Z, X[chosen]]), requires_grad=False)
    n_new = len(chosen)
    for name, value in {"mean": (0, n_new), "log_diagonal": (0, n_new), "below": (0, n_new, 0, n_new)}.items():
        setattr(posterior, name, nn.Parameter(nn.functional.pad(getattr(posterior, name), value), requires_grad=False))


def _least_explained(left: Tensor, most: int) -> list[int]:
    """Numbers of rows, chosen one after another, from covariances (D, n, n) that are left, relative to the noise.

    The next is the row of which most is left. It ends when less than ``LEFT_OVER`` of any row is.
    """
    chosen, left = list[int](), left.clone()
    while len(chosen) < most:
        worst, row = left.diagonal(dim1=-2, dim2=-1).amax(0).max(0)
        if worst <= LEFT_OVER:
            break
        pivot = int(row)
        column = left[:, :, pivot].clone()
        scale = column[:, pivot].clamp(min=1e-300)
        left -= column[:, :, None] * column[:, None, :] / scale[:, None, None]
        left[:, pivot], left[:, :, pivot] = 0.0, 0.0
        chosen.append(pivot)
    return chosen


def _with_neighbours(correction: Correction, rows: Batch, residual: Tensor, generator: torch.Generator) -> Correction:
    """The correction with further rows, whose residuals were those before any part has learnt from them.

    If there are too many rows, some of the old ones leave at random.
    """
    old, rows, residual = correction.local, rows.rows(slice(-MOST_ROWS, None)), residual[-MOST_ROWS:]
    n_kept = min(len(old.X), MOST_ROWS - len(rows))
    order = torch.randperm(len(old.X), generator=generator, device=generator.device)
    kept = order[:n_kept].sort().values.to(old.X.device)
    new = {"X": rows.X, "residual": residual, "weight": rows.weight}
    columns = {name: torch.cat([getattr(old, name)[kept], values.to(old.X)]) for name, values in new.items()}
    numbers = {name: getattr(old, name) for name in ("lengthscale", "variance", "noise")}
    local = Neighbours(**columns, **numbers, n_neighbors=old.n_neighbors)
    return Correction(local, correction.likelihood, correction.gain, correction.error)
