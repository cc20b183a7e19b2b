"""Rows as models learn from them: where missing cells matter, with the ratios of their noise to that of others."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Gaussian, Likelihood, noise_with_gaps
from ..gp.noise import StudentT
from ..inference.batches import Batch
from ..inference.gaps import FEWEST_ROWS, ROWS, learn_gaps
from ..inference.kernel_search import Groups
from ..inference.outliers import PREDICT_ROWS
from ..inference.predictor import Predictor
from ..inference.stack import View
from ..tables import Encoded, Table
from ..tables.encoding import N_DRAWS, has_missing
from ._rows import to_batch

#: With more incomplete rows than this, there are fewer draws of their cells.
MANY_ROWS, FEW_DRAWS = 20_000, 4

#: From rows, and the precision of the batch, to the batch that models learn from.
Batches = Callable[[Encoded, np.dtype], Batch]


def batches_to_learn(
    rows: Encoded,
    likelihood: Likelihood,
    table: Table,
    view: View,
    order: np.ndarray,
    groups: Groups,
    device: torch.device,
) -> tuple[Batches, DeepGP | None]:
    """How models learn from a table, and a base of its rows if that needed one.

    The rows, in this random order, decide how much missing cells matter.

    They do not matter for likelihoods whose noise is given, or is not the same for all complete rows. With Student's t
    rows weigh less, since it has no ratios.
    """
    plain, X = partial(to_batch, likelihood), rows.given.X
    if not _has_one_noise(likelihood) or likelihood.fixed or (isinstance(likelihood, Gaussian) and likelihood.bounded):
        return plain, None
    if len(rows) < FEWEST_ROWS or not (has_missing(X) or table.lacking(X).any()):
        return plain, None
    places = order[-ROWS:]
    sample = plain(rows, np.dtype(np.float64)).rows(torch.from_numpy(places)).to(device, torch.float64)

    def with_ratios(model: DeepGP) -> WithRatios:
        return WithRatios(likelihood, table, view, lambda inputs: model(inputs).mean[0], sample.X)

    lacking = torch.from_numpy(table.lacking(X[places]))
    gaps, base = learn_gaps(sample, groups, lambda model: with_ratios(model).spread(X[places]), lacking)
    if gaps is None or base is None:
        return plain, base
    batches = with_ratios(base)
    if isinstance(likelihood, Gaussian):
        weight = torch.from_numpy(rows.given.weight)
        likelihood.learn_ratios(gaps.per_gap.tolist(), gaps.noise.tolist(), batches.gaps(X), weight)
    else:
        likelihood.learn_gaps(gaps.per_gap.tolist(), gaps.noise.tolist())
    return batches, base


def _has_one_noise(likelihood: Likelihood) -> TypeGuard[Gaussian | StudentT]:
    """Whether the noise of all complete rows is the same, unless it is given."""
    return type(likelihood) in (Gaussian, StudentT)


def batches_of(predictor: Predictor, table: Table, view: View) -> Batches:
    """How the models of a predictor learn from more rows.

    If they have not learnt what missing cells mean, these mean what draws of them say.
    """
    likelihood = predictor.models[0].likelihood
    if not _has_one_noise(likelihood) or "noise_variance" in likelihood.known:
        return partial(to_batch, likelihood)

    def mean(inputs: Tensor) -> Tensor:
        members = predictor.frozen(predictor.dtype).marginals(inputs)
        return torch.stack([marginals.moments()[0] for marginals in members]).mean(0)

    like = torch.empty(0, dtype=predictor.dtype, device=predictor.device)
    noise = predictor.likelihoods[0].noise_variance() / np.square(likelihood.units.scale)
    usual = np.concatenate([1.0 / (len(noise) * noise), np.zeros(len(table.may_lack))])
    return WithRatios(likelihood, table, view, mean, like, usual)


@dataclass
class WithRatios:
    """Makes batches of rows for models that have learnt how much missing cells matter.

    Parameters
    ----------
    likelihood : Gaussian or StudentT
        Likelihood of the models.
    table : Table
        What has been learnt of the table.
    view : View
        What the models see of it.
    mean : callable
        From inputs (B, Q) of the models to means (B, D) of function values.
    like : Tensor
        A tensor on the device of the models, and in their precision.
    usual : ndarray of shape (P + J,), default=None
        What gaps add to the noise if the likelihood has not learnt it.
    """

    likelihood: Gaussian | StudentT
    table: Table
    view: View
    mean: Callable[[Tensor], Tensor]
    like: Tensor
    usual: np.ndarray | None = None

    def __call__(self, rows: Encoded, dtype: np.dtype) -> Batch:
        data, gaps = to_batch(self.likelihood, rows, dtype), self.gaps(rows.given.X)
        if isinstance(self.likelihood, Gaussian) and self.likelihood.per_gap:
            return Batch(data.X, *self.likelihood.with_ratios(data.y, gaps, data.weight))
        ratio, share = noise_with_gaps(gaps, self.likelihood.per_gap or cast(np.ndarray, self.usual).tolist())
        return data.weighing((share / ratio).to(data.weight))

    def gaps(self, X: np.ndarray) -> Tensor:
        """Variances over missing numbers, and which categories are missing (n, P + J), of rows in the user's units."""
        return torch.cat([self.spread(X), torch.from_numpy(self.table.lacking(X))], dim=1)

    @torch.no_grad()
    def spread(self, X: np.ndarray) -> Tensor:
        """Variances (n, P) of means, and of the trend, over draws of the missing cells of rows in the user's units."""
        encoding, n_targets = self.table.encoding, self.likelihood.n_targets
        total = torch.zeros(len(X), n_targets, dtype=torch.float64, device="cpu")
        incomplete = np.flatnonzero(np.isnan(X).any(axis=1))
        n_draws = N_DRAWS if len(incomplete) <= MANY_ROWS else FEW_DRAWS
        size = PREDICT_ROWS // n_draws
        for start in range(0, len(incomplete), size):
            index = incomplete[start : start + size]
            drawn = self.table.clipped(encoding.encode_draws(X[index], n_draws).reshape(-1, encoding.width))
            columns = torch.from_numpy(drawn).to(self.like)
            values = self.mean(self.view.inputs(columns))[:, :n_targets] + self.view.trend(columns, n_targets)
            total[index] = values.double().unflatten(0, (n_draws, len(index))).var(0, correction=0).cpu()
        return total
