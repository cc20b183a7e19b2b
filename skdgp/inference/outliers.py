"""Finds targets that are so far out that a base is better without them.

One target that is wrong by ten deviations bends a smooth function near it, and makes the noise of all rows large. So
after the first fit of a base, rows whose error is more than ``FAR_OUT`` robust deviations count as outliers, and the
base is fitted to the others. Each row is left out for its own error. All rows, outliers as well, then decide between
the two bases. The one without outliers must be better by three scores, with noise of two Gaussians (:mod:`.tails`):

* a higher density,
* smaller absolute errors, by ``CLEARLY`` standard errors of the mean difference,
* squared errors that are not larger, by ``HARDLY`` standard errors.

If that base finds that some of them are not far out, they come back unless a base with them is worse.

Large targets that belong to the function, where the base is only worse than elsewhere, have larger absolute errors
without themselves. Rare events to one side have larger squared errors: without them means are too low. So both stay.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Gaussian
from .batches import Batch
from .calibration import marginals_of
from .collapsed import left_out, set_posteriors
from .kernel_search import NOISE_FLOOR
from .tails import LEAST_GAIN, Errors, best_tails
from .twins import counting_once, distinct, merged

#: Number of deviations from which on a target is an outlier.
FAR_OUT = 6.0

#: A Gaussian's deviation over the median of its absolute value.
TO_DEVIATION = 1.4826

#: Largest number of fits without outliers. A better base finds more of them.
ROUNDS = 3

#: A further fit must have other outliers: more than this share of those before must have come or gone.
SAME = 0.2

#: How many standard errors absolute errors must be smaller without outliers, and how many squared ones may be larger.
CLEARLY, HARDLY = 3.5, 1.0

#: The same for a base that has the kernel of the one with outliers. If it is not better at all, no other is fitted.
HOPE = 1.5

#: Largest share of rows that can be outliers.
MOST = 0.2

#: Number of rows that are predicted at a time.
PREDICT_ROWS = 1000


class WithoutOutliers(NamedTuple):
    """A base, and which of the rows (n,) it has learnt from."""

    model: DeepGP
    near: Tensor


class _Judged(NamedTuple):
    """Errors of a base at all rows, which of them (n,) it has learnt from, and its noise (P,).

    ``told`` are errors in which copies of a row count once.
    """

    errors: Errors
    told: Errors
    learnt: Tensor
    noise: Tensor

    def better_than(self, other: "_Judged", clearly: float = CLEARLY) -> bool:
        """Whether this base is better without the outliers of its own; see the module's docstring."""
        absolute, square = (_difference(self.told, other.told, power) for power in (1, 2))
        if not (absolute < -clearly and square < HARDLY):
            return False
        return _density(self) - _density(other) > LEAST_GAIN

    def as_good_as(self, other: "_Judged") -> bool:
        """Whether this base, which has learnt from more rows, is not worse."""
        no_worse = all(_difference(self.told, other.told, power) < HARDLY for power in (1, 2))
        return no_worse and _density(self) >= _density(other)


def _density(judged: _Judged) -> float:
    """Log density of all rows."""
    return best_tails(judged.told, judged.noise).log_density


def _difference(errors: Errors, others: Errors, power: int) -> float:
    """How much larger powers of absolute errors are than others on average, in standard errors."""
    larger = (errors.error.abs() ** power - others.error.abs() ** power).sum(-1)
    weight = errors.weight / errors.weight.sum()
    mean = (weight * larger).sum()
    error = (weight * (larger - mean)).square().sum().sqrt()
    return (mean / error.clamp(min=torch.finfo(error.dtype).tiny)).item()


def reach_of(error: Tensor) -> Tensor:
    """How large (P,) errors (n, P) may be without being outliers."""
    return FAR_OUT * TO_DEVIATION * error.abs().median(dim=0).values.clamp(min=NOISE_FLOOR**0.5)


def fit_without_outliers(
    model: DeepGP, rows: Batch, precision: Tensor, fit: Callable[[Batch], DeepGP | None]
) -> WithoutOutliers | None:
    """A base without outliers; None if there are none, or if rows are more likely by the base with them.

    Parameters
    ----------
    model : DeepGP
        The base that has learnt from all rows.
    rows : Batch
        All rows of float64.
    precision : Tensor of shape (n,)
        In proportion to the precisions of the rows' noise. These are parts of the weights.
    fit : callable
        Fits a base to some of the rows; None ends the search, if there is no time for it.
    """
    judged = _judged(model, rows, torch.ones_like(rows.weight, dtype=torch.bool), precision)
    best = None
    for _ in range(ROUNDS):
        near = (judged.errors.error.abs() <= reach_of(judged.errors.error)).all(-1)
        same = (near != judged.learnt).sum() <= SAME * (~judged.learnt).sum()
        if same or near.all() or (~near).double().mean() > MOST:
            break
        kept, fewer = rows.rows(near), bool((near >= judged.learnt).all())
        try:
            trial = None if fewer else _judged(_with_same_kernel(model, kept, judged), rows, near, precision)
            if trial is not None and not trial.better_than(judged, HOPE):
                break
            if (alone := fit(kept)) is None:
                break
            without = _judged(alone, rows, near, precision)
        except np.linalg.LinAlgError:  # there is a base already
            break
        if not (without.as_good_as(judged) if fewer else without.better_than(judged)):
            break
        best, judged = WithoutOutliers(alone, near), without
    return best


@torch.no_grad()
def _with_same_kernel(model: DeepGP, rows: Batch, judged: _Judged) -> DeepGP:
    """The base with the posterior of some rows alone, and with as much noise as they have."""
    model = deepcopy(model)
    likelihood = cast(Gaussian, model.likelihood)
    variance = (reach_of(judged.errors.error) / FAR_OUT).square()
    likelihood.log_excess.copy_(torch.minimum(variance, likelihood.variance).log())
    likelihood.floor.zero_()
    set_posteriors(model, rows)
    return model


@torch.no_grad()
def _judged(model: DeepGP, rows: Batch, learnt: Tensor, precision: Tensor) -> _Judged:
    """A base with the errors of all rows as if it had not learnt from the row, in units of noise of one variance."""
    mean, variance, kept = torch.empty_like(rows.y), torch.empty_like(rows.y), rows.rows(learnt)
    mean[learnt], variance[learnt] = left_out(model, kept, kept)
    if not learnt.all():
        marginals = marginals_of(model, rows.rows(~learnt), PREDICT_ROWS)
        mean[~learnt], variance[~learnt] = marginals.mean[0], marginals.variance[0]
    errors = Errors(rows.y - mean, variance, rows.weight / precision).in_units(1.0 / precision[:, None])
    counted = Batch(rows.X, rows.y, errors.weight)
    first, weight = distinct(counted)[0], counting_once(merged(counted))
    told = Errors(errors.error[first], errors.variance[first], weight)
    return _Judged(errors, told, learnt, cast(Gaussian, model.likelihood).variance)
