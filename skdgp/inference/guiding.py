"""Guides are made of a base and its neighbours; see :mod:`.guide`.

At training rows their values must be what they are at new rows. So rows are divided into folds, and those of a fold are
predicted by a base and neighbours that have not learnt from the fold (Breiman, "Stacked regressions", 1996). In all
folds kernel, noise, inducing points and the neighbours' lengthscales are those that all rows have decided. Twins share
a fold if most rows have twins, since they are no neighbours then (:meth:`.Validation.stored`).

To leave out each row by itself would not do. Its mean is then that of all rows less a share of its own residual, and
from the difference a flexible member could read the target. But rows that judge the member, from which it does not
learn, are left out one by one, as they are when they judge others.
"""

import warnings
from copy import deepcopy
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.likelihoods import Gaussian, Likelihood
from ..gp.neighbours import Correction, Neighbourhood, Neighbours
from .batches import Batch, Part, as_of_complete
from .callers import users_level
from .collapsed import left_out_by_fold
from .foundation import Foundation
from .guide import Guide, values_from
from .pairs import Pairs
from .predictor import Predictor
from .twins import folds, mostly_twins, twins
from .validation import MOST_OWN_SHARE, Validation, n_points

#: Number of folds.
N_FOLDS = 4

#: With more rows there is no guide. To predict them all by base and neighbours would take longer than the member.
MOST_ROWS = 50_000

#: Number that stands for the fold of rows that judge.
JUDGES = N_FOLDS

#: Number of rows that are predicted at a time.
CHUNK_ROWS = 4096


@torch.no_grad()
def guide_of(
    validation: Validation, foundation: Foundation, correction: Correction | None, likelihood: Likelihood
) -> tuple[Guide, Tensor] | None:
    """The guide of a base and its neighbours, and its values (N, 2P) at all rows, each as if the row were new.

    Parameters
    ----------
    validation : Validation
        It has the rows, and says which of them may be neighbours, and which judge the member.
    foundation : Foundation
        The base, and the rows that it has learnt from.
    correction : Correction or None
        Neighbours of a blend with this base, whose lengthscales and variances those of the guide have.
    likelihood : Likelihood
        Likelihood of the blend.

    Returns
    -------
    tuple of Guide and Tensor, or None
        None if there are too many rows; and, after a warning, if a matrix has no Cholesky factor without some of them.
    """
    data = validation.data
    if len(data) > MOST_ROWS:
        return None
    group = twins(data) if mostly_twins(data) else torch.arange(len(data), device=data.X.device)
    fold, near = _folds(validation, group), None
    try:
        of_base = _of_base(foundation, fold)
        everywhere = fold.to(of_base[0].device), torch.arange(len(fold), device=of_base[0].device)
        mean, variance = (moments[everywhere] for moments in of_base)
        if correction is not None:
            asked = fold, group, of_base[0]
            local, shift, added = _of_neighbours(validation, foundation, correction, likelihood, *asked)
            mean, variance = mean + shift, variance + added
            near = Correction(local, correction.likelihood, correction.gain, correction.error)
    except np.linalg.LinAlgError:
        warnings.warn(
            "The member that learns densities does not see what the base predicts, since a covariance matrix has no "
            "Cholesky factor if some rows are left out. The likely cause is features or targets with values far from "
            "all others: remove or transform these.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
        return None
    values = values_from(mean, variance)
    members = [_ready_to_learn(model) for model in foundation.base.alternatives()]
    return Guide.of(Predictor(members, None, near), values, data.weight), values


def _folds(validation: Validation, group: Tensor) -> Tensor:
    """Number of the fold of each row (N,). Groups stay together, and rows that the first member holds out judge."""
    split = validation.split
    fold = folds(split.order, group.cpu().numpy(), N_FOLDS)
    if split.n_rows:
        fold[split.parts(0)[1]] = JUDGES
    return torch.from_numpy(fold).to(group.device)


def _of_base(foundation: Foundation, fold: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (K + 1, N, P) of the base at all rows, without one fold after another, and with all."""
    models, basis = foundation.base.alternatives(), foundation.rows
    like = next(models[0].parameters())
    rows, fold = basis.data.to(like.device, like.dtype), fold.to(like.device)
    learnt = torch.zeros_like(fold, dtype=torch.bool).index_fill(0, cast(Tensor, basis.index).to(fold.device), True)
    moments = [left_out_by_fold(model, rows, learnt, fold, N_FOLDS) for model in models]
    means, variances = (torch.stack(column) for column in zip(*moments, strict=True))
    return means.mean(0), variances.mean(0) + means.var(0, correction=0)


def _of_neighbours(
    validation: Validation,
    foundation: Foundation,
    correction: Correction,
    likelihood: Likelihood,
    fold: Tensor,
    group: Tensor,
    of_base: Tensor,
) -> tuple[Neighbours, Tensor, Tensor]:
    """Neighbours of the base, and their means and variances (N, P) at all rows.

    Rows of a ``group`` (N,) have one neighbour. ``of_base`` (K + 1, N, P) are the means of the base; see
    :func:`_of_base`.
    """
    (stored, weight, worth), device = validation.stored(), of_base.device
    index, fold, X = cast(Tensor, stored.index).to(device), fold.to(device), validation.data.X.to(of_base)
    rows = stored.rows().to(device, torch.float64)
    weight = (weight if worth is None else weight * worth).to(rows.weight)
    rows = as_of_complete(likelihood, Batch(rows.X, rows.y, weight))
    before, judges = correction.local, _Judges(foundation, stored, group)
    numbers = {"lengthscale": before.lengthscale, "variance": before.variance, "noise": before.noise}
    mean, variance = torch.empty_like(of_base[0]), torch.empty_like(of_base[0])
    for number in range(N_FOLDS + 1):
        kept = (fold[index] != number) | (number == JUDGES)
        residual = (rows.y - of_base[number][index])[kept]
        local = Neighbours(rows.X[kept], residual, rows.weight[kept], **numbers, n_neighbors=before.n_neighbors)
        ready = local.frozen()
        for some in torch.nonzero(fold == number)[:, 0].split(CHUNK_ROWS):
            near = judges.near(ready, X[some], some) if number == JUDGES else ready.neighbourhood(X[some])
            mean[some], variance[some] = ready.moments(X[some], near)
    return local, mean, variance


class _Judges:
    """Rows that are left out one by one, and their neighbours."""

    def __init__(self, foundation: Foundation, stored: Part, group: Tensor):
        self.place = torch.empty_like(group)
        self.place[group[cast(Tensor, stored.index)]] = torch.arange(len(stored), device=group.device)
        self.place = self.place[group]  # of each row, or of the one that stands for its group, among those stored
        few_points = n_points(foundation.base.model) <= MOST_OWN_SHARE * len(foundation.rows)
        self.pairs = None if few_points else Pairs.of([foundation.base], stored, foundation.rows)

    def near(self, local: Neighbours, X: Tensor, index: Tensor) -> Neighbourhood:
        """The neighbours of some rows (B, Q) of these numbers, with residuals that have not learnt from the row."""
        own = self.place[index.to(self.place.device)].to(X.device)
        near = local.neighbourhood(X, own)
        if self.pairs is None:
            return near
        return near._replace(residual=local.residual[near.rows] + self.pairs.change(own, near.rows))


def _ready_to_learn(model: DeepGP) -> DeepGP:
    """A copy of a base that knows what its posterior needs, so that rows which come later can be inducing points."""
    model = deepcopy(model)
    layer, noise = cast(GlobalLayer, model.layers[0]), cast(Gaussian, model.likelihood).variance
    layer.remember(noise, noise.new_empty(layer.sizes[0], 0))
    return model
