"""How members of an ensemble are trained, and which rows they hold out."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .batches import Batch, Part
from .settings import OneByOne, Settings, Trainer

#: Means and variances (n, P) of function values at some rows, as if the model had not learnt from the row itself.
LeftOut = Callable[[DeepGP, Batch, Batch, Settings], tuple[Tensor, Tensor]]

#: Gives a model the posteriors that are best for some rows.
Solve = Callable[[DeepGP, Batch, Settings], None]


class Plan(NamedTuple):
    """How models are trained.

    ``precision`` is the precision of training. ``left_out`` predicts some of the rows that a model has learnt from, as
    if it had not learnt from them. Without it only held-out rows can judge a model. With ``hold_out`` some rows are
    held out for this, even if training itself does not need them. ``closed`` predicts in the same way, but only what
    users ask for, and judges nothing. A plan has it if posteriors are in closed form when training has ended.

    Two functions give a model the posteriors that are best for some rows. They are called with the model, the rows and
    the settings. ``solve`` is for trained models in the precision of predictions. ``solve_copy`` is for a trainer that
    sets posteriors only when training ends: callbacks may ask for a copy of a model in training, and it solves this
    copy.
    """

    trainer: Trainer
    settings: Settings
    precision: torch.dtype
    name: str
    solve: Solve | None = None
    left_out: LeftOut | None = None
    hold_out: bool = False
    solve_copy: Solve | None = None
    closed: LeftOut | None = None

    def n_epochs(self, n_members: int) -> int:
        """Largest number of epochs: members share them, unless they are trained one after another."""
        return self.settings.max_iter * (n_members if isinstance(self.trainer, OneByOne) else 1)


class Split(NamedTuple):
    """Which rows each model holds out: ``rows`` that the user gave, or ``n_rows`` of all rows, or none.

    If they are some of all rows, models hold out successive parts of one random ``order``. So the models together learn
    from every row. With ``for_validation`` held-out rows have no influence on training, and a plan's ``solve`` learns
    from them at the end.

    With ``unjudged`` models should hold rows out, but the table has too few. Then the base predicts without them.

    ``group`` has the numbers (N,) of the groups of twins that rows belong to (see :mod:`.twins`). In the order, twins
    stand side by side.

    With ``distinct`` no row is a neighbour of its twin. So it is with a trend: most of its copies have seen the twins
    of a new row, but the copy that a training row gets its trend from has seen none of its twins. So what is left over
    of training rows agrees better with their twins than it will with new rows.
    """

    order: np.ndarray
    rows: Batch | None = None
    n_rows: int = 0
    for_validation: bool = False
    group: np.ndarray | None = None
    unjudged: bool = False
    distinct: bool = False

    def of(self, data: Batch, index: int) -> tuple[Part, Part | None]:
        """Rows that the model of this number learns from, and those that it holds out, by which it may be judged.

        Twins may be parted where its part begins and ends. Such rows do not judge the model, since it learns from their
        twins. They judge it all the same if there are no others.
        """
        if not self.n_rows:
            return Part(data), None if self.rows is None else Part(self.rows)
        learnt, held_out = self.parts(index)
        if self.group is not None:
            alone = ~np.isin(self.group[held_out], self.group[learnt[[0, -1]]])  # only twins at the ends are parted
            held_out = held_out[alone] if alone.any() else held_out
        return self._part(data, learnt), self._part(data, held_out)

    @staticmethod
    def _part(data: Batch, rows: np.ndarray) -> Part:
        return Part(data, torch.as_tensor(rows, device=data.X.device))

    def parts(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the rows that the model of this number learns from, and of those that it does not."""
        rolled = np.roll(self.order, -index * self.n_rows)
        return rolled[self.n_rows :], rolled[: self.n_rows]


class HeldOut(NamedTuple):
    """Score on rows that members have not learnt from: mean log density or probability of encoded targets."""

    score: float
    n_rows: int
