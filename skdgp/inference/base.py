"""The base of an ensemble: a sparse GP that is computed without training by minibatches.

Kernel and noise have the values that make some hundred rows most likely, according to the exact evidence; see
:mod:`.kernel_search`. Inducing points are rows, chosen one after another: the next is the row whose variance the points
so far explain least (Burt, Rasmussen and van der Wilk, JMLR 2020). This ends when the unexplained variance is small
beside the noise. So there are few points for noisy targets, and nearly all rows for a function without noise. The
posterior is the best one for these points. All is computed in float64, since float32 is too coarse if there is no
noise.

A hundred rows cannot tell the best kernel from others. Then the base consists of several GPs, which differ in kernel
and noise; see :mod:`.hyperparameters`.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.alternatives import alternative, side_by_side
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import Kernel, SumKernel
from ..gp.likelihoods import Gaussian, Likelihood, rounding_variance
from ..gp.means import ConstantMean, ZeroMean
from ..gp.propagation import make_propagation
from .batches import Batch, in_least_squares
from .class_noise import GRADE_SHARES, SHARES, least_noise
from .collapsed import left_out, set_posteriors
from .evidence import LIFT, observations
from .hyperparameters import HyperparameterPosterior
from .kernel_search import NOISE_FLOOR, WIDE, Groups, KernelSearch, smooth_of
from .outliers import fit_without_outliers, reach_of
from .starts import CANDIDATES, greedy_points
from .wide import draws_of_wide

#: Jitter, as a share of the kernel's variance. In float64 a smaller one no longer helps.
JITTER = 1e-12

#: Smallest number of inducing points. Targets of pure noise would need a single one, but the points also tell where the
#: data are.
FEWEST_POINTS = 100

#: Largest number of inducing points. The cost of the posterior grows with its square.
POINTS = 1000

#: Variance that inducing points may leave unexplained, relative to the noise.
LEFT_OVER = 0.1

#: Number of fits, each without the targets that the previous fit found to be outliers.
ROUNDS = 2

#: Largest number of rows for which kernel and noise count as uncertain. With more rows their posterior is narrow, and
#: drawing from it would take more than a second.
UNCERTAIN_ROWS = 200

#: Largest number of hyperparameters that are drawn. The curvature of their density takes two gradients for each.
MOST_DIMENSIONS = 64

#: Largest number of rows for which folds decide on the lengthscales of more quantities than ``WIDE``; see :mod:`.wide`.
#: With more rows this would take too long.
WIDE_ROWS = 400

#: Number of GPs that the base then consists of.
ALTERNATIVES = 20

#: Smallest number of them.
FEWEST_ALTERNATIVES = 5

#: Largest number of entries of their posterior covariances together, so that stored estimators stay small.
ALTERNATIVE_NUMBERS = 500_000


#: Means and variances of some rows.
Moments = tuple[Tensor, Tensor]


class Base(NamedTuple):
    """GPs of one layer, of which each counts the same, side by side in one model; see :mod:`..gp.alternatives`.

    They are ``wide`` if folds of the rows have chosen their kernels, because there are many features.
    """

    model: DeepGP
    n_alternatives: int = 1
    wide: bool = False

    def alternatives(self) -> list[DeepGP]:
        """The GPs one by one."""
        return [alternative(self.model, number, self.n_alternatives) for number in range(self.n_alternatives)]

    def repeated(self, rows: Batch) -> Batch:
        """Rows whose targets are repeated for each of the GPs, as outputs stand side by side in the model."""
        return Batch(rows.X, rows.y.repeat(1, self.n_alternatives), rows.weight)


def base_for(
    likelihood: Likelihood,
    rows: Batch,
    groups: Groups = None,
    *,
    robust: bool = False,
    like: DeepGP | None = None,
    in_time: Callable[[], bool] = lambda: True,
) -> tuple[Base, Batch | None]:
    """The base that suits a likelihood, and the rows that it has learnt, if they differ from the regressands.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood of a member.
    rows : Batch
        Rows of float64 with encoded targets, in random order.
    groups : sequence of int, default=None
        Which inputs share a lengthscale.
    robust : bool, default=False
        Whether the base does without outliers if rows are more likely then. Their weights are zero in the rows that it
        has learnt.
    like : DeepGP, default=None
        See :func:`fit_base`. Not used unless the likelihood has noise of one variance that is not given.
    in_time : callable, default=always
        Whether there is time for another base, of the rows without outliers.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix has no Cholesky factor in floating point.
    """
    if likelihood.fixed:
        return _base_of_given_noise(rows, cast(Gaussian, deepcopy(likelihood).to(rows.X)), groups)
    numbers = in_least_squares(likelihood, rows)
    if likelihood.base_kind == "classes":
        fit = partial(fit_base_of_classes, groups=groups)
        return Base(fit(numbers, least_noise(likelihood, rows, numbers.y, fit))), None
    if likelihood.base_kind == "grades":
        fit_grades = partial(fit_base_of_grades, groups=groups)
        least = least_noise(likelihood, rows, numbers.y, fit_grades, GRADE_SHARES)
        return with_alternatives(fit_grades(numbers, least), numbers), None
    if likelihood.base_kind == "tails":
        model, learnt = fit_base_of_tails(numbers, groups)
        return with_alternatives(model, learnt.rows(learnt.weight > 0)), learnt
    model = fit_base(numbers, groups, like)
    if robust:
        precision = numbers.weight / rows.weight
        others = fit_without_outliers(
            model, numbers, precision, lambda some: fit_base(some, groups) if in_time() else None
        )
        if others is not None:
            kept = Batch(numbers.X, numbers.y, numbers.weight * others.near)
            return with_alternatives(others.model, numbers.rows(others.near)), kept
    return with_alternatives(model, numbers), numbers if likelihood.rows_differ else None


def _base_of_given_noise(rows: Batch, likelihood: Gaussian, groups: Groups) -> tuple[Base, Batch]:
    """The base if the variances of the rows' noise are given, and the rows with weights that stand for them."""
    likelihood.refine()
    learnt = in_least_squares(likelihood, rows)
    model = fit_with_floor(learnt, likelihood.variance.detach(), groups, fixed=True)
    return with_alternatives(model, learnt), learnt


def with_alternatives(model: DeepGP, rows: Batch) -> Base:
    """A base that has learnt from some rows, and others with kernels and noises that the rows leave possible.

    If there are many rows, it is the base alone. If there are many features, see :mod:`.wide`.
    """
    if len(rows) < 2:
        return Base(model)
    layer, likelihood = cast(GlobalLayer, model.layers[0]), cast(Gaussian, model.likelihood)
    observed = observations(rows, relative=not likelihood.fixed)
    posterior = HyperparameterPosterior(cast(SumKernel, layer.kernel), likelihood, observed)
    wide = smooth_of(posterior.kernel).n_quantities > WIDE and len(observed.rows) > 1
    too_many = len(posterior.start) > MOST_DIMENSIONS and not wide
    if too_many or observed.number > (WIDE_ROWS if wide else UNCERTAIN_ROWS):
        return Base(model)
    n_outputs, n_points = layer.q.mean.shape
    number = int(np.clip(ALTERNATIVE_NUMBERS // (n_outputs * n_points**2), FEWEST_ALTERNATIVES, ALTERNATIVES))
    draws = draws_of_wide(posterior.kernel, likelihood, rows, number) if wide else posterior.draws(number)
    models, points = [], layer.Z
    if wide or n_points < min(FEWEST_POINTS, len(rows)):  # enough for the most likely kernel, which may be simpler
        points = max((_points(kernel, noise, rows) for kernel, noise in draws), key=len)
    for kernel, noise in draws:
        drawn = _model(kernel, noise, points, n_outputs)
        try:
            set_posteriors(drawn, rows)
        except np.linalg.LinAlgError:  # too little noise for the distances of rows
            continue
        models.append(drawn.requires_grad_(False))
    return Base(side_by_side(models), len(models), wide) if models else Base(model)


def fit_base(rows: Batch, groups: Groups = None, like: DeepGP | None = None) -> DeepGP:
    """A model of one layer for rows of float64, in random order.

    If targets look rounded, the noise is not less than the variance that rounding adds. Otherwise rows with the same
    features and targets would suggest that there is no noise. But targets of an exact function may lie on a grid, too.
    So if the model predicts rows, each of them left out, more precisely than the grid, it is fitted again without that
    floor.

    Parameters
    ----------
    rows : Batch
        Rows that the posterior learns from. The last of them decide the kernel.
    groups : sequence of int, default=None
        Which inputs share a lengthscale.
    like : DeepGP, default=None
        The base of almost the same rows, from whose kernel and noise the search starts.

    Returns
    -------
    DeepGP

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix has no Cholesky factor in floating point.
    """
    number = observations(rows).number  # copies of a row do not make its target look rounded
    rounding = [rounding_variance(column, number) for column in rows.y.mT.cpu().numpy()]
    floor = rows.y.new_tensor(rounding).clamp(min=NOISE_FLOOR)
    model = fit_with_floor(rows, floor, groups, like=like)
    if not any(rounding) or not ((error := _error_left_out(model, rows)) < floor).all():
        return model
    exact = fit_with_floor(rows, torch.full_like(floor, NOISE_FLOOR), groups)
    return exact if (_error_left_out(exact, rows) < error).all() else model


def fit_base_of_classes(
    rows: Batch, least: float = min(SHARES), like: DeepGP | None = None, groups: Groups = None
) -> DeepGP:
    """The same for numbers that stand for classes; outputs share the noise.

    The noise variance is no less than the share ``least`` of the variance of these numbers; see :mod:`.class_noise`.

    Least squares fits functions to them that are smooth where classes overlap (Rasmussen and Williams, 2006, Sec. 6.5).
    Held-out rows decide later how these functions translate to probabilities.
    """
    centre = (rows.weight[:, None] * rows.y).sum(0) / rows.weight.sum()
    rows = Batch(rows.X, rows.y - centre, rows.weight)
    spread = (rows.weight[:, None] * rows.y.square()).sum() / (rows.weight.sum() * rows.y.shape[1])
    model = fit_with_floor(rows, (least * spread)[None], groups, like=like)
    cast(GlobalLayer, model.layers[0]).mean = ConstantMean(centre)
    return model


def fit_base_of_grades(rows: Batch, least: float, like: DeepGP | None = None, groups: Groups = None) -> DeepGP:
    """The same for numbers that stand for grades; each output has noise of its own.

    The noise variances are no less than the share ``least`` of the variances of these numbers; see :mod:`.class_noise`.
    """
    if least == 0.0:
        return fit_base(rows, groups, like)
    weight = rows.weight[:, None] / rows.weight.sum()
    variance = (weight * (rows.y - (weight * rows.y).sum(0)).square()).sum(0)
    return fit_with_floor(rows, (least * variance).clamp(min=NOISE_FLOOR), groups, like=like)


def fit_base_of_tails(rows: Batch, groups: Groups = None) -> tuple[DeepGP, Batch]:
    """The same for targets with outliers: the base learns from the other targets.

    Residuals of the previous fit decide which targets are outliers; each row is left out for its own residual. A target
    that counted as an outlier before may come back. The rows are returned with their weights, which are zero for
    outliers.
    """
    near = torch.ones_like(rows.weight, dtype=torch.bool)
    for turn in range(ROUNDS):
        kept = rows.rows(near)
        model = fit_base(kept, groups)
        if turn == ROUNDS - 1:
            break
        mean = model(rows.X).mean[0]
        mean[near], _ = left_out(model, kept, kept)
        error = rows.y - mean
        near = (error.abs() <= reach_of(error[near])).all(-1)
    return model, Batch(rows.X, rows.y, rows.weight * near)


def fit_with_floor(
    rows: Batch, floor: Tensor, groups: Groups, *, fixed: bool = False, like: DeepGP | None = None
) -> DeepGP:
    """The model whose noise variances, of each output or of all, are not less than a floor (P,) or (1,).

    If they are ``fixed``, the floor is what they are. If a matrix has no Cholesky factor, fewer points and more noise
    are tried, step by step.
    """
    search = KernelSearch(rows, floor, groups, fixed)
    kernel, likelihood = search.best() if like is None else search.best_near(*_kernel_and_noise(like))
    points = _points(kernel, likelihood, rows)
    while True:
        model = _model(kernel, likelihood, points, rows.y.shape[1])
        try:
            set_posteriors(model, rows)
            return model.requires_grad_(False)
        except np.linalg.LinAlgError:
            if len(points) == 1:
                raise
        points = points[: len(points) // 2]  # the first of them explain most
        with torch.no_grad():
            likelihood.log_excess.add_(math.log(LIFT))


@torch.no_grad()
def _points(kernel: Kernel, likelihood: Gaussian, rows: Batch) -> Tensor:
    """Inducing points (M, Q) for a kernel: rows that explain the others up to a share of the noise."""
    candidates = rows.X[-CANDIDATES:]
    weight = rows.weight.mean().item() if likelihood.fixed else 1.0
    tolerance = LEFT_OVER * likelihood.variance.min().item() / weight
    return candidates[greedy_points(kernel, candidates, tolerance, fewest=FEWEST_POINTS, most=POINTS)]


def _model(kernel: Kernel, likelihood: Gaussian, points: Tensor, n_outputs: int) -> DeepGP:
    """A model of one layer with these inducing points, which has not learnt anything yet."""
    layer = GlobalLayer(
        kernel,
        ZeroMean(n_outputs),
        points,
        points.new_zeros(n_outputs, len(points)),
        covariance="full",
        whiten=True,
        jitter=JITTER,
        share_covariance=len(likelihood.floor) == 1,
    )
    propagation = make_propagation("monte_carlo", (), 1, torch.Generator("cpu").manual_seed(0))
    return DeepGP([layer], propagation.to(points), likelihood)


def _kernel_and_noise(model: DeepGP) -> tuple[SumKernel, Gaussian]:
    """The kernel of a base, and its noise."""
    return cast(SumKernel, cast(GlobalLayer, model.layers[0]).kernel), cast(Gaussian, model.likelihood)


def _error_left_out(model: DeepGP, rows: Batch) -> Tensor:
    """Mean squared errors (P,) at some of the rows, each of which is left out for its own error."""
    predicted = rows.rows(slice(-CANDIDATES, None))
    mean, _ = left_out(model, predicted, rows)
    return (predicted.weight[:, None] * (predicted.y - mean).square()).sum(0) / predicted.weight.sum()
