"""Rows that stand several times in a table.

Rows are *twins* if their features are equal, and the targets of all rows with these features are equal, too. Such
rows may be copies of one row: after a join, a bootstrap or an oversampling of rare rows. Nobody can tell a copy from a
second measurement that happened to agree exactly. But if copies count as measurements, they prove that there is no
noise. So twins judge nothing that has learnt from the other twin, and count once where noise is learnt.

Rows of equal features whose targets differ are repeated measurements. They say how large the noise is, and are no
twins.
"""

import numpy as np
import torch
from torch import Tensor

from .batches import Batch

#: How much the targets of twins may differ, as a share of the largest target: numbers that stand for targets are
#: computed, and have rounding errors.
ROUNDING = 1e-9


def twins(rows: Batch) -> Tensor:
    """Numbers (n,) of the groups of twins that rows belong to; a row without a twin is a group of its own."""
    place = _numbers(rows.X)
    y = rows.y.double()
    others = (y.isnan(), y.isposinf(), y.isneginf())  # targets may be missing, or bounds that are open
    y = torch.cat([torch.where(y.isfinite(), y, 0.0), *(mask.double() for mask in others)], dim=1)
    shape = (int(place.max()) + 1, y.shape[1])
    index = place[:, None].expand_as(y)
    low, high = (y.new_zeros(shape).scatter_reduce(0, index, y, how, include_self=False) for how in ("amin", "amax"))
    alike = (high - low <= ROUNDING * y.abs().max()).all(1)[place]
    alone = shape[0] + torch.arange(len(place), device=place.device)
    return torch.where(alike, place, alone).unique(return_inverse=True)[1]


def _numbers(X: Tensor) -> Tensor:
    """A number (n,) for each row, which rows with equal entries share."""
    entries = np.ascontiguousarray(X.cpu().numpy() + 0.0)  # −0 becomes 0
    whole = entries.view(
        np.dtype((np.void, entries.itemsize * entries.shape[1]))
    ).ravel()  # compares bytes, and is fast
    return torch.from_numpy(np.unique(whole, return_inverse=True)[1]).to(X.device)


def side_by_side(order: np.ndarray, group: np.ndarray) -> np.ndarray:
    """A random order of rows, in which twins stand together. Without twins it stays as it is.

    They stand where the first of them in the table stood. If they stood where the first of them in the order is, then
    the more twins a row has, the sooner it would come, and rows that are held out would nearly all have twins.
    """
    place = order.argsort()
    _, first, number = np.unique(group, return_index=True, return_inverse=True)
    return order[np.argsort(place[first][number][order], kind="stable")]


def folds(order: np.ndarray, group: np.ndarray, number: int) -> np.ndarray:
    """Number of the fold of each row (n,). Rows of a group share a fold; groups come in the order of the rows."""
    _, first, place = np.unique(group[order], return_index=True, return_inverse=True)
    fold = np.empty(len(order), dtype=int)
    fold[order] = first.argsort().argsort()[place] % number
    return fold


def weight_of_twins(rows: Batch, data: Batch) -> Tensor:
    """For some rows (n,) of a table, the weight that they have together with their twins there."""
    group = twins(data.joined(rows))
    in_table, asked = group.split([len(data), len(rows)])
    total = data.weight.new_zeros(int(group.max()) + 1).index_add(0, in_table, data.weight)[asked]
    return torch.where(total > 0, total, rows.weight)  # it is 0 for rows of equal features whose targets differ


def merged(rows: Batch) -> Batch:
    """The same rows with the first one of each group of twins instead of all, which has the weight of all."""
    first, weight = distinct(rows)
    return rows if len(first) == len(rows) else Batch(rows.X[first], rows.y[first], weight)


def distinct(rows: Batch) -> tuple[Tensor, Tensor]:
    """The numbers (m,) of the first rows of each group of twins, in their order, and the weights of the groups."""
    group = twins(rows)
    numbers, n_groups = torch.arange(len(rows), device=group.device), int(group.max()) + 1
    first = numbers.new_empty(n_groups).scatter_reduce(0, group, numbers, "amin", include_self=False)
    weight = rows.weight.new_zeros(n_groups).index_add(0, group, rows.weight)
    first, order = first.sort()
    return first, weight[order]


def counting_once(rows: Batch) -> Tensor:
    """Weights (n,) in the same proportions, whose sum is the number of rows that have weight and differ.

    So twins share the weight of one row. If all rows weigh four times as much, they are no more rows than before.
    """
    number = len(twins(rows)[rows.weight > 0].unique())
    return rows.weight * (number / rows.weight.sum().clamp(min=torch.finfo(rows.weight.dtype).tiny))


def mostly_twins(rows: Batch) -> bool:
    """Whether more than half of the rows have twins."""
    size = twins(rows).bincount()
    return int(size[size > 1].sum()) > len(rows) / 2
