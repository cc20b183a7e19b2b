"""Minibatches between posteriors in closed form, for one layer of global inducing variables and Gaussian noise.

Adam takes some two thousand steps for a posterior, the kernel, the inducing points and the noise together. A few
hundred are enough where the model starts with the kernel and the noise that explain a sample of the rows best, by their
exact evidence, and where its posterior becomes the best one for all rows every few epochs. That takes as long as some
ten steps (see :mod:`.collapsed`). It does so a last time when training has ended, in the precision of predictions: what
minibatches learn in float32 makes the best of its roundings, which predictions in float64 do not have.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.likelihoods import Gaussian
from ..gp.linalg import cholesky
from . import minibatches
from .batches import Batch
from .collapsed import NO_JITTER, set_posteriors
from .lbfgs import lbfgs
from .processes import current
from .settings import History, Learner, OnEpoch, Settings, go_on

#: Rows whose evidence the kernel and the noise start from, and iterations of L-BFGS that look for it.
#: Logarithms move by ``REACH`` at most: without noise the evidence has its peak far out, where float32 fails.
START_ROWS, START_ITERATIONS, REACH = 700, 25, 3.0

#: Epochs from one solution to the next.
EVERY = 4


def train(learners: Sequence[Learner], settings: Settings, on_epoch: OnEpoch = go_on) -> list[History]:
    """A :class:`~.settings.Trainer` for models of one whitened global layer with full covariances and one kernel.

    A model that has learnt before goes on from what it knows. Where processes share the minibatches, each solves for
    itself, and the first one's solution is taken.
    """
    for learner in learners:
        if not any(posterior.mean.any() for posterior in _layer(learner.model).posteriors):
            _start(learner.model, learner.rows.spread(START_ROWS).rows())
            solve(learner.model, learner.rows.rows(), settings)

    def after_epoch(histories: Sequence[History]) -> bool:
        if max(len(history.loss) for history in histories) % EVERY == 0:
            for learner in learners:
                solve(learner.model, learner.rows.rows(), settings)
        return on_epoch(histories)

    return minibatches.train(learners, settings, after_epoch)


def _layer(model: DeepGP) -> GlobalLayer:
    return cast(GlobalLayer, model.layers[0])


def _start(model: DeepGP, rows: Batch) -> None:
    """Give the model the kernel and the noise of the highest evidence of these rows."""
    exact = deepcopy(model).double()
    rows = rows.to(rows.X.device, torch.float64)
    chosen = (*_layer(exact).kernel.parameters(), *exact.likelihood.parameters())
    free = [parameter for parameter in chosen if parameter.requires_grad]
    try:
        total_weight = rows.weight.sum().item()
        lbfgs(lambda: -_evidence(exact, rows) / total_weight, free, START_ITERATIONS, len(rows) ** 3 / 3, reach=REACH)
    except np.linalg.LinAlgError:
        return  # it starts where it is
    with torch.no_grad():
        for now, found in zip(model.parameters(), exact.parameters(), strict=True):
            now.copy_(found)


def _evidence(model: DeepGP, rows: Batch) -> Tensor:
    """log ∫ Π N(y | f, σ²)ʷ N(f | 0, K) df, summed over outputs; w are weights of rows.

    A row of weight 2 is that row twice: N(y | f, σ²)ʷ is N(y | f, σ²/w) times √(2πσ²/w) (2πσ²)^(−w/2).
    """
    K, noise = _layer(model).kernel.covariance(rows.X, rows.X), cast(Gaussian, model.likelihood).variance
    L = cholesky(K + torch.diag_embed(noise[:, None] / rows.weight), NO_JITTER)  # (P, n, n)
    whitened = torch.linalg.solve_triangular(L, rows.y.mT[..., None], upper=False)
    log_determinants = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum()
    plain = -0.5 * (whitened.square().sum() + log_determinants + rows.y.numel() * math.log(2 * math.pi))
    log_noise = (2 * math.pi * noise[:, None]).log()
    return plain + 0.5 * (log_noise * (1.0 - rows.weight) - rows.weight.log()).sum()


@torch.no_grad()
def solve(model: DeepGP, rows: Batch, settings: Settings) -> None:
    """Give a model the best posterior for rows, at the weight of the penalty that it is trained with."""
    processes, mean_weight = current(), rows.weight.double().mean().item()
    beta = settings.kl_weight(len(rows), mean_weight) * len(rows) * mean_weight
    try:
        set_posteriors(model, rows, beta)
    except np.linalg.LinAlgError:
        pass  # the posterior that minibatches have found remains
    for posterior in _layer(model).posteriors:
        for parameter in posterior.parameters():
            if processes.rank:
                parameter.zero_()
            processes.add_up(parameter)
