"""Residuals of rows of which two are left out: the row itself, and one that judges it.

Let h_ji be the share that the target of row i has in the prediction of row j, in a model that is linear in targets.
Without row j the residual of its target is r_j = (y_j − m_j)/(1 − h_jj). Without row i, too, it is

    r_j(i) = (r_j + c_ji r_i)/(1 − c_ij c_ji),        c_ji = h_ji/(1 − h_jj).

These two are the solution of (I − H) r = y − m for the rows i and j alone.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor

from ..gp.global_layer import GlobalLayer
from .base import Base
from .batches import Part
from .collapsed import Leverages, leverages
from .twins import twins

#: Largest number of entries of a tensor of pairs. If there are no more pairs of rows than this, one product of matrices
#: has what all of them have to do with each other.
PAIR_NUMBERS = 2**22

#: Smallest 1 − c_ij c_ji. It is positive, but rounding errors may say otherwise if two rows decide what is predicted.
LEAST = 1e-9


class Pairs(NamedTuple):
    """Some rows and models that have learnt from them: what leaving out a second row changes."""

    models: Sequence[Leverages]
    products: Sequence[Tensor | None]  # of each model, φ_jᵀΛ⁻¹φ_i (P or 1, n, n) of all rows; None if these are many
    n_alternatives: int  # of which outputs stand side by side in each model
    group: Tensor  # (n,), twins are in the same group

    @classmethod
    def of(cls, bases: Sequence[Base], rows: Part, basis: Part) -> Self:
        """Those of ``rows`` of a table, of which models of one layer have learnt from the rows ``basis``."""
        like = cast(GlobalLayer, bases[0].model.layers[0]).q.mean
        index = rows.at(torch.arange(len(rows), device=rows.data.X.device))
        learnt = torch.isin(index, basis.at(torch.arange(len(basis), device=rows.data.X.device))).to(like.device)
        some, everything = (part.rows().to(like.device, like.dtype) for part in (Part(basis.data, index), basis))
        same = bool(learnt.all()) and len(index) == len(basis)  # but for the order

        def leverages_of(base: Base) -> Leverages:
            own = base.repeated(some)
            return leverages(base.model, own, own if same else base.repeated(everything), learnt)

        models = [leverages_of(base) for base in bases]
        return cls(models, [_products(model.whitened) for model in models], bases[0].n_alternatives, twins(some))

    def change(self, first: Tensor, second: Tensor) -> Tensor:
        """r_j(i) − r_j (B, k, P) for rows i of the numbers ``first`` (B,) and j of the numbers ``second`` (B, k).

        It is the mean over models and alternatives, and zero for twins, which are left out together anyway.
        """
        n_rows = max(1, PAIR_NUMBERS // (self.models[0].whitened[..., 0].numel() * second.shape[1]))
        parts = [
            torch.stack([_change(*model, i, j) for model in zip(self.models, self.products, strict=True)]).mean(0)
            for i, j in zip(first.split(n_rows), second.split(n_rows), strict=True)
        ]
        different = self.group[first][:, None] != self.group[second]
        change = torch.cat(parts).unflatten(-1, (self.n_alternatives, -1)).mean(-2)
        return change * different[..., None]


def _products(whitened: Tensor) -> Tensor | None:
    """Products of all columns of matrices (P or 1, T, n) with each other; None if these are many."""
    return whitened.mT @ whitened if len(whitened) * whitened.shape[-1] ** 2 <= PAIR_NUMBERS else None


def _change(of: Leverages, products: Tensor | None, i: Tensor, j: Tensor) -> Tensor:
    """The same of one model, in which twins are not told apart."""
    if products is None:
        between = (of.whitened[..., i, None] * of.whitened[..., j]).sum(-3)
    else:
        between = products[:, i[:, None], j]
    between = between.permute(1, 2, 0)  # (B, k, P or 1)
    c_ji = of.weight[i][:, None, None] * between / of.kept[j]
    c_ij = of.weight[j][..., None] * between / of.kept[i][:, None]
    left = of.residual[j] + c_ji * of.residual[i][:, None]
    return left / (1.0 - c_ij * c_ji).clamp(min=LEAST) - of.residual[j]
