"""Minibatches, with posteriors in closed form every few epochs, for one global layer and Gaussian noise.

Adam takes about two thousand steps to learn the posterior, the kernel, the inducing points and the noise together. A
few hundred steps are enough with two measures. First, the kernel and the noise start at the values with the highest
exact evidence of a sample of the rows. Second, every few epochs the posterior is replaced by the best one for all rows,
which takes as long as about ten steps (see :mod:`.collapsed`). This is done once more at the end of training, in the
precision of predictions. A posterior that was learnt in float32 is adapted to the rounding errors of float32, which
predictions in float64 do not have.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from . import minibatches
from .batches import Batch
from .callers import users_level
from .collapsed import left_out, set_posteriors
from .processes import current
from .settings import History, Member, OnEpoch, Settings, go_on
from .starts import CANDIDATES, parts_of, start
from .twins import merged

#: Number of epochs from one solution to the next.
EPOCHS_BETWEEN = 4


def train(members: Sequence[Member], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
    """A :class:`~.settings.Trainer` for models of one whitened global layer with full covariances and one kernel.

    A model that has been trained before continues from its parameters. If processes share the minibatches, each of them
    computes the solution, and that of the first process is taken.
    """
    for member in members:
        if not any(posterior.mean.any() for posterior in parts_of(member.model).layer.posteriors):
            start(member.model, merged(member.at_once(CANDIDATES)).relative()[0])
            solve(member.model, merged(member.at_once()).relative()[0], settings)

    def after_epoch(histories: Sequence[History]) -> bool:
        if max(len(history.loss) for history in histories) % EPOCHS_BETWEEN == 0:
            for member in members:
                solve(member.model, merged(member.at_once()).relative()[0], settings)
        return on_epoch(histories)

    return minibatches.train(members, settings, after_epoch)


@torch.no_grad()
def solve(model: DeepGP, rows: Batch, settings: Settings) -> None:
    """Give a model the best posterior for rows, with the weight of the penalty in its training."""
    try:
        set_posteriors(model, rows, settings.beta, remember=True)
    except np.linalg.LinAlgError:
        warnings.warn(
            "The best posterior could not be computed, and the one that minibatches have found remains: a covariance "
            "matrix has no Cholesky factor. The likely cause is inducing points that nearly coincide: use fewer of "
            "them, or set dtype='float64'.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
    for posterior in parts_of(model).layer.posteriors:
        for parameter in posterior.parameters():
            current().take_first(parameter)


def predict_left_out(model: DeepGP, rows: Batch, data: Batch, settings: Settings) -> tuple[Tensor, Tensor]:
    """Predictions of a model with the posterior of :func:`solve`, as if it had not learnt from these rows."""
    return left_out(model, rows, data, settings.beta)
