"""What a base predicts for rows as if it had not learnt from the row itself."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..gp.global_layer import GlobalLayer
from .base import Base, Moments
from .batches import Part
from .calibration import marginals_of
from .collapsed import left_out
from .outliers import PREDICT_ROWS


class BaseMoments(NamedTuple):
    """Moments (n, P) of function values: means, variances within alternatives, and variances between their means."""

    mean: Tensor
    within: Tensor
    between: Tensor

    @property
    def variance(self) -> Tensor:
        """Both variances together."""
        return self.within + self.between


@torch.no_grad()
def left_out_moments(
    base: Base, parts: Sequence[Part], basis: Part, of_basis: Moments | None = None
) -> list[BaseMoments]:
    """Moments of function values at rows, as if the base had not learnt from the row itself.

    Parameters
    ----------
    base : Base
        The base.
    parts : sequence of Part
        Some rows of the table that ``basis`` belongs to, by their numbers; or rows of another table.
    basis : Part
        Rows that the posterior has learnt from. If their targets differ from those of ``parts``, these count.
    of_basis : pair of Tensors, default=None
        What :func:`left_out_of_basis` says of all of these, if it is known.
    """
    mean, within = left_out_of_each(base, parts, basis, of_basis)
    total = BaseMoments(mean.mean(0), within.mean(0), mean.var(0, correction=0))
    if parts[0].data.X is not basis.data.X:  # the same rows for all members
        return len(parts) * [total]
    sizes = [len(part) for part in parts]
    return [BaseMoments(*columns) for columns in zip(*(column.split(sizes) for column in total), strict=True)]


@torch.no_grad()
def left_out_of_each(base: Base, parts: Sequence[Part], basis: Part, of_basis: Moments | None = None) -> Moments:
    """Means and variances (A, n, P) that each alternative predicts for the rows of all parts, in the same way."""
    moments = _moments(base, parts, basis, of_basis)
    mean, variance = (values.unflatten(-1, (base.n_alternatives, -1)).movedim(1, 0) for values in moments)
    return mean, variance


@torch.no_grad()
def left_out_of_basis(base: Base, basis: Part) -> Moments:
    """Means and variances (n, AP) of all alternatives at the rows that they have learnt from, each without the row."""
    like = cast(GlobalLayer, base.model.layers[0]).Z
    everything = base.repeated(basis.rows().to(like.device, like.dtype))
    return left_out(base.model, everything, everything)


def _moments(base: Base, parts: Sequence[Part], basis: Part, of_basis: Moments | None) -> Moments:
    """Means and variances (n, AP) of all alternatives at the rows of all parts, or at another table's rows once."""
    model = base.model
    like = cast(GlobalLayer, model.layers[0]).Z
    if parts[0].data.X is not basis.data.X:
        marginals = marginals_of(model, parts[0].rows().to(like.device, like.dtype), PREDICT_ROWS)
        return marginals.mean[0], marginals.variance[0]
    index = torch.cat([part.at(torch.arange(len(part), device=part.data.X.device)) for part in parts])
    rows = base.repeated(Part(basis.data, index).rows().to(like.device, like.dtype))
    mean, variance = like.new_empty(rows.y.shape), like.new_empty(rows.y.shape)
    learnt = torch.isin(index, cast(Tensor, basis.index)).to(like.device)
    if learnt.any():
        own = left_out_of_basis(base, basis) if of_basis is None else of_basis
        place = basis.places(index).to(like.device)[learnt]
        mean[learnt], variance[learnt] = own[0][place], own[1][place]
    if not learnt.all():
        marginals = marginals_of(model, rows.rows(~learnt), PREDICT_ROWS)
        mean[~learnt], variance[~learnt] = marginals.mean[0], marginals.variance[0]
    return mean, variance
