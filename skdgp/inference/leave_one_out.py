"""Predictions of the training rows, each as if the models had not learnt from it, without another fit.

Members and base have posteriors in closed form. Taking a row out of such a posterior has a closed form, too
(:func:`.collapsed.left_out`). Everything else stays as all rows together have determined it: kernel, noise, inducing
points, the weight of the base, and the residuals that neighbours know. A row is no neighbour of itself.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP, Marginals
from ..gp.layers import with_parts
from ..gp.likelihoods import Likelihood
from ..gp.neighbours import Correction, corrected
from .base import PREDICT_ROWS, left_out_moments
from .batches import Batch, Part
from .calibration import marginals_of
from .plan import LeftOut, Plan, Split
from .predictor import Predictor
from .state import to_array, to_tensor
from .trusted import refuse

#: Largest number of rows whose predictions are kept. With more rows they would take time in every fit, and few people
#: would ask for them: a few thousand held-out rows tell as much.
MOST_ROWS = 5000

#: Largest number of means that are kept, for all rows, outputs and members: 2 MiB. There are as many variances.
MOST_NUMBERS = 2**18

#: Why a fit may have no such predictions, and what to do then, by the names that files have for it.
REASONS = {
    "": "it was interrupted or has not ended, or comes from a file of an earlier version of skdgp: fit again",
    "chunks": "partial_fit has learnt from chunks of rows, and does not keep them: call fit with all rows, or predict "
    "rows that are held out",
    "minibatches": "its members have learnt by minibatches and have no posteriors in closed form: score the estimator "
    "by cross_validate, with a scorer of skdgp.metrics, or take a SOLVEGPRegressor with Gaussian noise",
    "rows": f"predictions are kept for at most {MOST_ROWS} rows, and {MOST_NUMBERS} numbers of all outputs and members "
    "together: keep some rows from fit, and predict these",
    "cells": "cells of X are missing, and predictions average over draws of them, for which there is no closed form: "
    "fill the cells before fit, or score the estimator by cross_validate, with a scorer of skdgp.metrics",
    "singular": "a covariance matrix has no Cholesky factor: use fewer inducing points, or remove features and targets "
    "with values far from all others",
}


class LeftOutRows(NamedTuple):
    """Means and variances (E, n, P) of the function values that E members predict for rows, each left out."""

    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, members: Sequence[Marginals]) -> Self:
        """Those of members, each of which predicts a single Gaussian for each row, on the CPU."""
        return cls(*(torch.cat(column).double().cpu() for column in zip(*(m[:2] for m in members), strict=True)))

    def marginals(self, device: torch.device) -> list[Marginals]:
        """Marginals of each member on a device, as :meth:`.Predictor.marginals` returns them."""
        mean, variance = self.mean.to(device), self.variance.to(device)
        return [_gaussian(m, v) for m, v in zip(mean, variance, strict=True)]

    def among(self, others: "LeftOutRows", number: np.ndarray) -> "LeftOutRows":
        """These rows and others, in the order of a table: ``number`` (n,) is the place of each of these rows there."""
        n_rows = self.mean.shape[1] + others.mean.shape[1]
        there = torch.zeros(n_rows, dtype=torch.bool, device="cpu").index_fill(0, torch.as_tensor(number), True)

        def joined(own: Tensor, other: Tensor) -> Tensor:
            values = own.new_empty(len(own), n_rows, own.shape[-1])
            values[:, there], values[:, ~there] = own, other
            return values

        return LeftOutRows(joined(self.mean, others.mean), joined(self.variance, others.variance))

    def to_plain(self) -> dict:
        """The predictions as arrays."""
        return {name: to_array(values) for name, values in self._asdict().items()}

    @classmethod
    def from_plain(cls, state: dict) -> Self:
        """The predictions from what :meth:`to_plain` returned."""
        if type(state) is not dict or state.keys() != set(cls._fields):
            refuse("has something else in place of predictions of left-out rows")
        mean, variance = (to_tensor(state[name]) for name in cls._fields)
        if mean.dim() != 3 or mean.shape != variance.shape or {mean.dtype, variance.dtype} != {torch.float64}:
            refuse("has predictions of left-out rows of other shapes")
        return cls(mean, variance)


def few_enough(n_rows: int, n_outputs: int, n_members: int) -> bool:
    """Whether the predictions of so many rows are kept."""
    return n_rows <= MOST_ROWS and n_rows * n_outputs * n_members <= MOST_NUMBERS


@torch.no_grad()
def leave_one_out(
    predictor: Predictor,
    learnt_with: Sequence[Likelihood],
    basis: Part | None,
    data: Batch,
    split: Split,
    plan: Plan,
) -> LeftOutRows | str:
    """Predictions of all rows of a table, each of them left out, or the name of the reason why there are none.

    Parameters
    ----------
    predictor : Predictor
        Members, base and neighbours as training and the choices after it have left them.
    learnt_with : sequence of Likelihood
        Likelihoods of the members when their posteriors were set. Held-out rows may have corrected the noise since.
    basis : Part or None
        The rows that the base has learnt from.
    data, split, plan
        All rows, the rows that members hold out, and how they were trained.
    """
    if plan.closed is None:
        return "minibatches"
    if not few_enough(*data.y.shape, len(predictor)):
        return "rows"
    try:
        members = [
            _gaussian(*_member_moments(with_parts(model, likelihood=likelihood), index, data, split, plan))
            for index, (model, likelihood) in enumerate(zip(predictor.models, learnt_with, strict=True))
        ]
        if (blend := predictor.blend) is not None:
            [moments] = left_out_moments(blend.base, [Part(data)], cast(Part, basis))
            base = _gaussian(*moments)
            t = blend.share(data.X.to(predictor.device, torch.float64), base)
            members = [blend.joined(t, member, base) for member in members]
        if predictor.correction is not None:
            shift, spread = _of_neighbours(predictor.correction, data, split.order)
            members = [corrected(member, shift, spread) for member in members]
    except np.linalg.LinAlgError:
        return "singular"
    return LeftOutRows.of(members)


def _gaussian(mean: Tensor, variance: Tensor) -> Marginals:
    """Marginals of one Gaussian for each row, with these moments (n, P)."""
    return Marginals(mean[None], variance[None], mean.new_zeros(1, 1), mean.new_zeros(()))


def _member_moments(model: DeepGP, index: int, data: Batch, split: Split, plan: Plan) -> tuple[Tensor, Tensor]:
    """Means and variances (n, P) that a member predicts for all rows, in float64."""
    learnt = Part(data) if split.for_validation else split.of(data, index)[0]  # see Training._decide
    like = next(model.parameters())
    rows, everything = (part.to(like.device, like.dtype) for part in (learnt.rows(), data))
    own = cast(LeftOut, plan.closed)(model, rows, rows, plan.settings)
    if learnt.index is None:
        return own[0].double(), own[1].double()
    mean, variance = (values.double() for values in marginals_of(model, everything, PREDICT_ROWS).moments())
    there = learnt.index.to(like.device)
    mean[there], variance[there] = own[0].double(), own[1].double()
    return mean, variance


def _of_neighbours(correction: Correction, data: Batch, order: np.ndarray) -> tuple[Tensor, Tensor]:
    """Means and variances (n, P) of the correction at all rows, none of which is a neighbour of itself."""
    local = correction.local
    own = torch.empty(len(data), dtype=torch.int64, device="cpu")
    own[torch.as_tensor(order)] = torch.arange(len(data), device="cpu")  # rows are stored in this order
    X, own = data.X.to(local.X), own.to(local.X.device)
    parts = [
        local.moments(X[rows], local.neighbourhood(X[rows], own[rows]))
        for rows in torch.arange(len(X), device=X.device).split(PREDICT_ROWS)
    ]
    shift, spread = (torch.cat(column) for column in zip(*parts, strict=True))
    return shift, spread
