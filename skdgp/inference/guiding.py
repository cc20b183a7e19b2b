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
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.alternatives import side_by_side
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.likelihoods import Gaussian, Likelihood
from ..gp.neighbours import Correction, Neighbours
from .base import Base, left_out_moments
from .batches import Batch, Part, as_of_complete
from .callers import users_level
from .collapsed import set_posteriors
from .guide import Guide, values_of
from .pairs import Pairs
from .predictor import Predictor
from .twins import folds, mostly_twins, twins
from .validation import MOST_OWN_SHARE, Foundation, Validation, n_points

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
        It has the rows, and says which of them may be neighbours.
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
    data, device = validation.data, validation.device
    if len(data) > MOST_ROWS:
        return None
    makers = _Makers(validation, foundation, correction, likelihood)
    fold = _folds(validation)
    try:
        whole, values = makers.predictor(), []
        for number in fold.unique().tolist():
            rows = torch.nonzero(fold == number)[:, 0]
            if number == JUDGES:
                values.append(makers.left_out(whole, rows))
                continue
            without = makers.predictor(fold != number).frozen(turned=True)
            values += [values_of(without, data.X[some].to(device)) for some in rows.split(CHUNK_ROWS)]
    except np.linalg.LinAlgError:
        warnings.warn(
            "The member that learns densities does not see what the base predicts, since a covariance matrix has no "
            "Cholesky factor if some rows are left out. The likely cause is features or targets with values far from "
            "all others: remove or transform these.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
        return None
    of_rows = torch.cat(values)[fold.argsort(stable=True).argsort().to(device)]
    return Guide.of(whole, of_rows, data.weight), of_rows


def _folds(validation: Validation) -> Tensor:
    """Number of the fold of each row (N,). Rows that the first member holds out are in none."""
    data, split = validation.data, validation.split
    fold = folds(split.order, _groups(data).cpu().numpy(), N_FOLDS)
    if split.n_rows:
        fold[split.parts(0)[1]] = JUDGES
    return torch.from_numpy(fold).to(data.X.device)


def _groups(data: Batch) -> Tensor:
    """Numbers (N,) of groups of rows that are left out together."""
    return twins(data) if mostly_twins(data) else torch.arange(len(data), device=data.X.device)


class _Makers(NamedTuple):
    """What predictors are made of, each of some of the rows; see :func:`guide_of`."""

    validation: Validation
    foundation: Foundation
    correction: Correction | None
    likelihood: Likelihood

    def predictor(self, learnt: Tensor | None = None) -> Predictor:
        """The base and its neighbours if they have learnt from some rows (N,) alone, or from all."""
        base, basis = self.foundation.base, self.foundation.rows
        if learnt is not None:
            index, (like, *_) = cast(Tensor, basis.index), base.model.parameters()
            basis = Part(basis.data, index[learnt[index]])
            rows, models = basis.rows().to(like.device, like.dtype), [deepcopy(model) for model in base.alternatives()]
            for model in models:
                set_posteriors(model, rows)
            base = Base(side_by_side(models), len(models))
        members = [_ready_to_learn(model) for model in base.alternatives()]
        if self.correction is None:
            return Predictor(members)
        stored, weight, worth = self.validation.stored()
        weight = weight if worth is None else weight * worth
        if learnt is not None:
            index = cast(Tensor, stored.index)
            stored, weight = Part(stored.data, index[learnt[index]]), weight[learnt[index]]
        rows = stored.rows().to(self.validation.device, torch.float64)
        rows = as_of_complete(self.likelihood, Batch(rows.X, rows.y, weight.to(rows.weight)))
        [of_base] = left_out_moments(base, [stored], basis)
        before, n_neighbors = self.correction.local, self.correction.local.n_neighbors
        numbers = {"lengthscale": before.lengthscale, "variance": before.variance, "noise": before.noise}
        local = Neighbours(rows.X, rows.y - of_base.mean, rows.weight, **numbers, n_neighbors=n_neighbors)
        gain, error = self.correction.gain, self.correction.error
        return Predictor(members, None, Correction(local, self.correction.likelihood, gain, error))

    def left_out(self, whole: Predictor, index: Tensor) -> Tensor:
        """Values (n, 2P) at some of the rows that the whole predictor has learnt from, each left out by itself."""
        data, foundation = self.validation.data, self.foundation
        [of_base] = foundation.left_out_moments([Part(data, index)])
        mean, variance = of_base.mean, of_base.variance
        if whole.correction is not None:
            local, (stored, *_) = whole.correction.local, self.validation.stored()
            group, place = _groups(data), torch.empty(len(data), dtype=torch.int64, device=data.X.device)
            place[group[stored.index]] = torch.arange(len(stored), device=place.device)  # twins have one neighbour
            own, X = place[group[index]].to(mean.device), data.X[index].to(mean)
            near, residual = local.neighbourhood(X, own), local.residual
            if n_points(foundation.base.model) > MOST_OWN_SHARE * len(foundation.rows):
                pairs = Pairs.of([foundation.base], stored, foundation.rows)
                near = near._replace(residual=residual[near.rows] + pairs.change(own, near.rows))
            shift, added = local.moments(X, near)
            mean, variance = mean + shift, variance + added
        return torch.cat([mean, 0.5 * variance.log()], dim=1)


def _ready_to_learn(model: DeepGP) -> DeepGP:
    """A copy of a base that knows what its posterior needs, so that rows which come later can be inducing points."""
    model = deepcopy(model)
    layer, noise = cast(GlobalLayer, model.layers[0]), cast(Gaussian, model.likelihood).variance
    layer.remember(noise, noise.new_empty(layer.sizes[0], 0))
    return model
