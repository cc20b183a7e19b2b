"""The base of a fit with the rows that it has learnt from, of the kind that suits the likelihood."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ..gp.censored import Censored
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.likelihoods import Likelihood
from .base import Base, Moments, base_for
from .base_moments import BaseMoments, left_out_moments, left_out_of_basis
from .batches import Batch, Part
from .kept import Kept
from .kernel_search import Groups
from .outliers import PREDICT_ROWS, reach_of
from .stand_ins import fit_base_of_intervals, fit_base_of_means
from .varying import fit_base_of_varying

#: Largest number of rows that the posterior learns from.
POSTERIOR_ROWS = 20_000


@dataclass(frozen=True)
class Foundation:
    """A base, and the rows that it has learnt from.

    If the noise varies, there is another base of the logarithms of its variances, less their means ``level`` (P,). If
    targets are intervals, ``level`` is the logarithm of the noise's variance, and if they have a dispersion, it is that
    of this. A ``robust`` base has done without outliers, whose weights are zero.
    """

    base: Base
    rows: Part
    noise: "Foundation | None" = None
    level: Tensor | None = None
    robust: bool = False
    _kept: Kept[Moments] = field(init=False, default_factory=Kept)

    def left_out_moments(self, parts: Sequence[Part]) -> list[BaseMoments]:
        """Moments at some rows, of each part, as if neither base had learnt from the row itself."""
        own = parts[0].data.X is self.rows.data.X
        moments = left_out_moments(self.base, parts, self.rows, self._of_rows if own else None)
        if self.noise is None:
            return moments
        both = zip(moments, self.noise.left_out_moments(parts), strict=True)
        return [BaseMoments(*(torch.cat(pair, dim=-1) for pair in zip(*pairs, strict=True))) for pairs in both]

    @property
    def _of_rows(self) -> Moments:
        """What the base says of its own rows: parts of them are asked for again and again."""
        return self._kept.copy(self.base.model, "rows", lambda: left_out_of_basis(self.base, self.rows))

    @torch.no_grad()
    def outliers(self) -> Tensor:
        """Which rows (N,) of the table the base has done without, and which others have errors as large."""
        data, index = self.rows.data, cast(Tensor, self.rows.index)
        far = torch.zeros(len(data), dtype=torch.bool, device=data.X.device)
        far[index] = data.weight[index] == 0
        if far.any() and len(index) < len(data):
            [model, *_] = self.base.alternatives()
            like = cast(GlobalLayer, model.layers[0]).Z
            parts = (data.rows(slice(start, start + PREDICT_ROWS)) for start in range(0, len(data), PREDICT_ROWS))
            error = torch.cat([part.y.to(like) - model(part.X.to(like)).mean[0] for part in parts])
            others = torch.ones_like(far).index_fill(0, index, False)
            far[others] = (error[others].abs() > reach_of(error[index])).any(-1).to(far.device)
        return far


def learn_foundation(
    likelihood: Likelihood,
    rows: Batch,
    basis: Part,
    groups: Groups = None,
    *,
    robust: bool = False,
    like: DeepGP | None = None,
    in_time: Callable[[], bool] = lambda: True,
) -> Foundation:
    """The base that suits a likelihood.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood of a member. It does not change.
    rows : Batch
        Rows of float64 with encoded targets, in random order.
    basis : Part
        The same rows of the table, whose targets are those of least squares.
    groups, robust, like, in_time
        See :func:`.base_for`.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix has no Cholesky factor in floating point.
    """
    if likelihood.base_kind == "varying":
        base, weighted, variances = fit_base_of_varying(rows, groups)
        noise = Foundation(Base(variances.model), basis.with_targets(variances.learnt))
        return Foundation(base, basis.with_targets(weighted), noise, variances.level)
    if likelihood.base_kind == "censored":
        base, stand_ins, variance = fit_base_of_intervals(rows, deepcopy(cast(Censored, likelihood)).double(), groups)
        return Foundation(base, basis.with_targets(stand_ins), level=variance.log())
    if likelihood.base_kind == "means":
        base, stand_ins, dispersion = fit_base_of_means(rows, deepcopy(likelihood).to(rows.X), groups)
        return Foundation(base, basis.with_targets(stand_ins), level=dispersion)
    base, learnt = base_for(likelihood, rows, groups, robust=robust, like=like, in_time=in_time)
    if learnt is None:
        return Foundation(base, basis)
    return Foundation(base, basis.with_targets(learnt), robust=robust and not learnt.weight.all())


def rows_of_posterior(data: Batch, order: np.ndarray) -> Part:
    """The rows that the base's posterior learns from: the last of a random order, since the first are held out."""
    return Part(data, torch.as_tensor(order[-POSTERIOR_ROWS:], device=data.X.device))
