"""Predictions of the training rows, each as if the models had not learnt from it, without another fit.

Members and base have posteriors in closed form. Taking a row out of such a posterior has a closed form, too
(:func:`.collapsed.left_out`). Everything else stays as all rows together have determined it: kernel, noise, inducing
points, the weight of the base, and the residuals that neighbours know. A row is no neighbour of itself.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..gp.deep_gp import DeepGP, Marginals
from ..gp.layers import with_parts
from ..gp.likelihoods import Likelihood
from ..gp.neighbours import Correction, corrected
from .base import Base
from .base_moments import left_out_of_each
from .batches import Batch, Part
from .calibration import marginals_of
from .outliers import PREDICT_ROWS
from .plan import LeftOut, Plan, Split
from .predictor import Predictor
from .state import to_array, to_tensor
from .trusted import refuse
from .twins import twins
from .validation import Validation

#: Largest number of rows whose predictions are kept. With more rows they would take time in every fit, and few people
#: would ask for them: a few thousand held-out rows tell as much.
MOST_ROWS = 5000

#: Largest number of means that are kept, for all rows, outputs and Gaussians: 2 MiB. There are as many variances.
MOST_NUMBERS = 2**18

#: Why a fit may have no such predictions, and what to do then, by the names that files have for it.
REASONS = {
    "": "it was interrupted or has not ended, or comes from a file of an earlier version of skdgp: fit again",
    "chunks": "partial_fit has learnt from chunks of rows, and does not keep them: call fit with all rows, or predict "
    "rows that are held out",
    "update": "update has added rows since: call fit with all rows, or predict rows that are held out",
    "minibatches": "its members have learnt by minibatches and have no posteriors in closed form: score the estimator "
    "by cross_validate, with a scorer of skdgp.metrics, or take a SOLVEGPRegressor with Gaussian noise",
    "densities": "a member that learns densities predicts beside the others, and has no posterior in closed form: set "
    'objective="elbo", or score the estimator by cross_validate, with a scorer of skdgp.metrics',
    "rows": f"predictions are kept for at most {MOST_ROWS} rows, and {MOST_NUMBERS} numbers of all outputs, members "
    "and alternatives of the base together: keep some rows from fit, and predict these",
    "cells": "cells of X are missing, and predictions average over draws of them, for which there is no closed form: "
    "fill the cells before fit, or score the estimator by cross_validate, with a scorer of skdgp.metrics",
    "singular": "a covariance matrix has no Cholesky factor: use fewer inducing points, or remove features and targets "
    "with values far from all others",
}


class LeftOutRows(NamedTuple):
    """What members predict for the function values of n rows, each left out, as mixtures of Gaussians.

    ``mean`` and ``variance`` (S, n, P) have the Gaussians of all members, one member after another. ``sizes`` (E,) says
    how many a member has. These count the same. ``lacking`` (n, J) says which categories rows lack; it may be empty.
    """

    mean: Tensor
    variance: Tensor
    sizes: Tensor
    lacking: Tensor = torch.empty(0, 0, dtype=torch.float64, device="cpu")

    @classmethod
    def of(cls, members: Sequence[Marginals]) -> Self:
        """Those of members, on the CPU. Their Gaussians must count the same."""
        mean, variance = (torch.cat(column).double().cpu() for column in zip(*(m[:2] for m in members), strict=True))
        return cls(mean, variance, torch.tensor([len(member.mean) for member in members], device="cpu"))

    def marginals(self, device: torch.device) -> list[Marginals]:
        """Marginals of each member on a device, as :meth:`.Predictor.marginals` returns them."""
        parts = (values.to(device).split(self.sizes.tolist()) for values in (self.mean, self.variance))
        return [_mixture(mean, variance) for mean, variance in zip(*parts, strict=True)]

    def shifted(self, trend: Tensor) -> "LeftOutRows":
        """The same with a trend (n, P) added, in units of function values."""
        return self._replace(mean=self.mean + nn.functional.pad(trend, (0, self.mean.shape[-1] - trend.shape[-1])))

    def among(self, others: "LeftOutRows", number: np.ndarray) -> "LeftOutRows":
        """These rows and others, in the order of a table: ``number`` (n,) is the place of each of these rows there."""
        n_rows = self.mean.shape[1] + others.mean.shape[1]
        there = torch.zeros(n_rows, dtype=torch.bool, device="cpu").index_fill(0, torch.as_tensor(number), True)

        def joined(own: Tensor, other: Tensor) -> Tensor:
            values = own.new_empty(len(own), n_rows, own.shape[-1])
            values[:, there], values[:, ~there] = own, other
            return values

        return LeftOutRows(joined(self.mean, others.mean), joined(self.variance, others.variance), self.sizes)

    def to_plain(self) -> dict:
        """The predictions as arrays."""
        return {name: to_array(values) for name, values in self._asdict().items()}

    @classmethod
    def from_plain(cls, state: dict) -> Self:
        """The predictions from what :meth:`to_plain` returned."""
        if type(state) is not dict or state.keys() | {"lacking"} != set(cls._fields):  # earlier files do without
            refuse("has something else in place of predictions of left-out rows")
        mean, variance, sizes = (to_tensor(state[name]) for name in cls._fields[:3])
        lacking = to_tensor(state["lacking"]) if "lacking" in state else cls._field_defaults["lacking"]
        if mean.dim() != 3 or mean.shape != variance.shape or {mean.dtype, variance.dtype} != {torch.float64}:
            refuse("has predictions of left-out rows of other shapes")
        if sizes.dim() != 1 or sizes.dtype != torch.int64 or (sizes < 1).any() or sizes.sum() != len(mean):
            refuse("has predictions of left-out rows of another number of members")
        if lacking.dim() != 2 or lacking.dtype != torch.float64 or len(lacking) not in (0, mean.shape[1]):
            refuse("has missing categories of another number of left-out rows")
        return cls(mean, variance, sizes, lacking)


def few_enough(n_rows: int, n_outputs: int, n_gaussians: int) -> bool:
    """Whether the predictions of so many rows are kept, with so many Gaussians for each."""
    return n_rows <= MOST_ROWS and n_rows * n_outputs * n_gaussians <= MOST_NUMBERS


@torch.no_grad()
def leave_one_out(
    predictor: Predictor,
    learnt_with: Sequence[Likelihood],
    basis: Part | None,
    validation: Validation,
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
    validation : Validation
        All rows, the rows that members hold out, and how they were trained.
    """
    data, split, plan = validation.data, validation.split, validation.plan
    if plan.closed is None:
        return "minibatches"
    n_alternatives = 1 if predictor.blend is None else predictor.blend.n_alternatives
    if not few_enough(len(data), predictor.models[0].likelihood.n_targets, max(len(predictor), n_alternatives)):
        return "rows"
    try:
        members = [
            _mixture(*_member_moments(with_parts(model, likelihood=likelihood), index, data, split, plan))
            for index, (model, likelihood) in enumerate(zip(predictor.models, learnt_with, strict=True))
        ]
        if (blend := predictor.blend) is not None:
            base = _mixture(*left_out_of_each(Base(blend.base, blend.n_alternatives), [Part(data)], cast(Part, basis)))
            t = blend.share(data.X.to(predictor.device, torch.float64), base)
            parts = zip(members, predictor.parts, strict=True)
            members = [blend.joined(t, member, base, part) for member, part in parts]
        if predictor.correction is not None:
            shift, spread = _of_neighbours(predictor.correction, data, validation.stored()[0])
            members = [corrected(member, shift, spread) for member in members]
    except np.linalg.LinAlgError:
        return "singular"
    return LeftOutRows.of(members)


def _mixture(mean: Tensor, variance: Tensor) -> Marginals:
    """Marginals of Gaussians with these moments (S, n, P), each of which counts the same."""
    return Marginals(mean, variance, mean.new_full((len(mean), 1), -math.log(len(mean))), mean.new_zeros(()))


def _member_moments(model: DeepGP, index: int, data: Batch, split: Split, plan: Plan) -> tuple[Tensor, Tensor]:
    """Means and variances (1, n, P) that a member predicts for all rows, in float64."""
    learnt = Part(data) if split.for_validation else split.of(data, index)[0]  # see Training._correct
    like = next(model.parameters())
    rows, everything = (part.to(like.device, like.dtype) for part in (learnt.rows(), data))
    own = cast(LeftOut, plan.closed)(model, rows, rows, plan.settings)
    if learnt.index is None:
        return own[0].double()[None], own[1].double()[None]
    mean, variance = (values.double() for values in marginals_of(model, everything, PREDICT_ROWS).moments())
    there = learnt.index.to(like.device)
    mean[there], variance[there] = own[0].double(), own[1].double()
    return mean[None], variance[None]


def _of_neighbours(correction: Correction, data: Batch, stored: Part) -> tuple[Tensor, Tensor]:
    """Means and variances (n, P) of the correction at all rows, none of which is a neighbour of itself.

    If only one of several twins is stored, it stands for all of them.
    """
    local, group, index = correction.local, twins(data), cast(Tensor, stored.index)
    numbers = torch.arange(len(index), device=index.device)
    of_group = numbers.new_zeros(int(group.max()) + 1).index_put((group[index],), numbers)
    own = of_group[group].index_put((index,), numbers).to(local.X.device)
    X = data.X.to(local.X)
    parts = [
        local.moments(X[rows], local.neighbourhood(X[rows], own[rows]))
        for rows in torch.arange(len(X), device=X.device).split(PREDICT_ROWS)
    ]
    shift, spread = (torch.cat(column) for column in zip(*parts, strict=True))
    return shift, spread
