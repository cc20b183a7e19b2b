"""The base of targets whose noise varies, beside a model of how it varies."""

import math
from typing import NamedTuple, cast

from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Gaussian
from .base import Base, fit_base, fit_with_floor, with_alternatives
from .batches import Batch
from .collapsed import left_out
from .kernel_search import NOISE_FLOOR, Groups
from .stand_ins import LONGEST, by_newton, warn_of_newton
from .twins import counting_once

#: How often the variances of noise that varies are estimated. The first estimate comes from residuals of a fit that
#: trusts all rows alike, which are too large where there is little noise. A third estimate gains nothing.
NOISE_ROUNDS = 2

#: Smallest mean of the noise's variances. Members start from it, and could not find the function from less noise. Where
#: there is less, the model of the logarithms says so.
LEAST_LEVEL = 1e-3

#: Mean and variance of the logarithm of a standard normal number's square.
LOG_SQUARE = (-1.2703628, 0.5 * math.pi**2)


class Variances(NamedTuple):
    """A model of one layer for the logarithms of the noise's variances, less their mean over rows.

    ``level`` (P,) is this mean, and ``learnt`` are the numbers that the posterior has learnt, with their weights.
    ``change`` is the length of the last step of Newton's method.
    """

    model: DeepGP
    learnt: Batch
    level: Tensor
    change: float

    def logarithms(self, X: Tensor) -> Tensor:
        """Logarithms (n, P) of the variances at rows."""
        return self.model(X).mean[0] + self.level


def fit_base_of_varying(rows: Batch, groups: Groups = None) -> tuple[Base, Batch, Variances]:
    """The base of targets with noise whose variance depends on the row, and a model of the variances.

    Each of the two needs the other. The base learns from rows whose weights are in inverse proportion to their
    variances. The variances come from residuals of the previous base. Each row is left out for its own residual. So
    noise is what cannot be predicted, and it cannot take the place of the function. With several targets a row has one
    weight for all of them, which comes from the mean of their logarithms.

    Returns
    -------
    base : Base
        The base.
    learnt : Batch
        The rows with their weights. Up to a common factor these are precisions.
    variances : Variances
        The model of the variances.
    """
    model, learnt = fit_base(rows, groups), rows
    for _ in range(NOISE_ROUNDS):
        mean, variance = left_out(model, learnt, learnt)
        noise = cast(Gaussian, model.likelihood).variance * (rows.weight / learnt.weight)[:, None]
        squares = (rows.y - mean).square() * noise / (noise + variance)  # E (y − m)² is the sum of both variances
        variances = _fit_variances(Batch(rows.X, squares, rows.weight), groups)
        precision = rows.weight * (-variances.logarithms(rows.X).mean(-1)).exp()
        learnt = Batch(rows.X, rows.y, precision * (rows.weight.sum() / precision.sum()))
        model = fit_base(learnt, groups)
    warn_of_newton(variances.change)
    return with_alternatives(model, learnt), learnt, variances


def _fit_variances(squares: Batch, groups: Groups) -> Variances:
    """The model of variances of which squares of residuals are known: variances times squares of N(0, 1).

    The kernel is the one that makes the logarithms of the squares most likely. Their noise has a known variance. But
    logarithms lose half of what the squares tell. So the posterior is Laplace's approximation for the squares, as in
    :func:`fit_base_of_means`, with the expected curvature ½ of each row. A row far out counts no more than one whose
    square is ``1 + LONGEST`` times the variance.
    """
    y, weight = squares.y.clamp(min=NOISE_FLOOR), counting_once(squares)  # copies of a square tell no more than it
    logarithms = y.log() - LOG_SQUARE[0]
    level = (weight @ logarithms / weight.sum()).clamp(min=math.log(LEAST_LEVEL))
    model = fit_with_floor(Batch(squares.X, logarithms - level, weight), y.new_tensor(LOG_SQUARE[1:]), groups)
    model.likelihood = Gaussian(1, excess=1.0, floor=0.0).to(y).requires_grad_(False)

    def stand_ins(f: Tensor) -> Batch:
        step = (y * (-f - level).exp() - 1.0).clamp(max=LONGEST)
        return Batch(squares.X, f + step, 0.5 * weight)

    learnt, change = by_newton(model, squares.X, stand_ins)
    return Variances(model, learnt, level, change)
