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
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..gp.alternatives import alternative, side_by_side
from ..gp.censored import Censored
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import Kernel, SumKernel
from ..gp.likelihoods import Gaussian, Likelihood, rounding_variance
from ..gp.means import ConstantMean, ZeroMean
from ..gp.propagation import make_propagation
from .batches import Batch, Part, in_least_squares
from .calibration import marginals_of
from .callers import users_level
from .class_noise import GRADE_SHARES, SHARES, least_noise
from .collapsed import left_out, set_posteriors
from .evidence import LIFT, observations
from .hyperparameters import HyperparameterPosterior
from .kernel_search import NOISE_FLOOR, WIDE, Groups, KernelSearch, smooth_of
from .outliers import PREDICT_ROWS, fit_without_outliers, reach_of
from .starts import CANDIDATES, greedy_points
from .twins import counting_once
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

#: Largest number of steps of Newton's method, for a posterior without a closed form.
NEWTON_STEPS = 30

#: Change of the function that ends Newton's method.
CONVERGED = 1e-3

#: How far the number that stands for a target may be from the function. Longer steps may overshoot.
LONGEST = 3.0

#: Smallest weight of a row, so that no row is divided by zero.
LEAST_CURVATURE = 1e-6

#: How often the kernel is learnt from numbers that stand for targets.
MEANS_ROUNDS = 2

#: How often kernel and noise are learnt if some targets are intervals. A fourth time changes hardly anything.
INTERVAL_ROUNDS = 3

#: How far the logarithm of the noise may move in a round.
NOISE_REACH = 3.0

#: Deviation of the prior of the noise's logarithm around the variance of a number in a typical interval. If intervals
#: are wide, a few rows do not tell any noise from none, and then the function would be as certain.
ROUNDING_DEVIATION = 2.0

#: Largest number of steps of expectation propagation. With little noise, and most targets censored, it took 94 steps.
PROPAGATIONS = 200

#: Share of such a step that is taken.
STEP = 0.5

#: How often the variances of noise that varies are estimated. The first estimate comes from residuals of a fit that
#: trusts all rows alike, which are too large where there is little noise. A third estimate gains nothing.
NOISE_ROUNDS = 2

#: Smallest mean of the noise's variances. Members start from it, and could not find the function from less noise. Where
#: there is less, the model of the logarithms says so.
LEAST_LEVEL = 1e-3

#: Mean and variance of the logarithm of a standard normal number's square.
LOG_SQUARE = (-1.2703628, 0.5 * math.pi**2)

#: Largest number of rows that the posterior learns from.
POSTERIOR_ROWS = 20_000

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


class Variances(NamedTuple):
    """A model of one layer for the logarithms of the noise's variances, less their mean over rows.

    ``level`` (P,) is this mean, and ``learnt`` are the numbers that the posterior has learnt, with their weights.
    """

    model: DeepGP
    learnt: Batch
    level: Tensor

    def logarithms(self, X: Tensor) -> Tensor:
        """Logarithms (n, P) of the variances at rows."""
        return self.model(X).mean[0] + self.level


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
    model = _fit(learnt, likelihood.variance.detach(), groups, fixed=True)
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
    model = _fit(rows, floor, groups, like=like)
    if not any(rounding) or not ((error := _error_left_out(model, rows)) < floor).all():
        return model
    exact = _fit(rows, torch.full_like(floor, NOISE_FLOOR), groups)
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
    model = _fit(rows, (least * spread)[None], groups, like=like)
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
    return _fit(rows, (least * variance).clamp(min=NOISE_FLOOR), groups, like=like)


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


def fit_base_of_means(rows: Batch, likelihood: Likelihood, groups: Groups = None) -> tuple[Base, Batch, Tensor | None]:
    """The same for targets whose mean is the exponential of the function, or their share its logistic function.

    The first kernel is the one that makes the logarithms of the targets most likely, and their noise is the first
    dispersion. The posterior is Laplace's approximation. Its mode is found by least squares, for numbers and weights
    that stand for targets there. With these the kernel is learnt again: where the mode has been found, the evidence of
    the numbers has the same gradient as Laplace's, but for the change of the weights.

    Parameters
    ----------
    rows : Batch
        Rows with encoded targets of one output.
    likelihood : Likelihood
        Likelihood of the targets. Its dispersion changes in place.
    groups : sequence of int, default=None
        Which inputs share a lengthscale.

    Returns
    -------
    base : Base
        The base.
    learnt : Batch
        The numbers that stand for targets in the end, with their weights. The posterior is that of these.
    level : Tensor of shape (1,) or None
        Logarithm of the dispersion; None if there is none.
    """
    with torch.no_grad():
        regressands = likelihood.regressands(rows.y)
    model = fit_base(Batch(rows.X, regressands, rows.weight), groups)
    likelihood.start_dispersion(model.likelihood.noise_variance().item())
    one = rows.y.new_ones(1)
    give_noise(model, one)
    learnt = at_mode(model, rows, likelihood)
    for turn in range(MEANS_ROUNDS):
        model = _fit(learnt, one, groups, fixed=True, like=model if turn else None)
        give_noise(model, one)
        learnt = at_mode(model, rows, likelihood)
        if likelihood.calibrated():
            learn_dispersion(likelihood, rows, left_out(model, learnt, learnt))
            learnt = at_mode(model, rows, likelihood)
    if not likelihood.calibrated():  # the noise is known
        model.likelihood.fixed = True
        return with_alternatives(model, learnt), learnt, None
    factor = rows.weight.sum() / learnt.weight.sum()  # the evidence assumes that weights are those of the rows
    learnt = learnt.weighing(factor)
    give_noise(model, factor[None])
    set_posteriors(model, learnt)
    base = with_alternatives(model, learnt)
    mean_noise = _variance_of(base.model).mean()  # a new target varies by the expectation of what is uncertain
    return base, learnt, likelihood.calibrated()[0].detach() + (mean_noise / factor).log()


@torch.no_grad()
def at_mode(model: DeepGP, rows: Batch, likelihood: Likelihood) -> Batch:
    """Numbers and weights that stand for targets at the mode, by Newton's method from where the model is.

    The model has the posterior of these (Rasmussen and Williams, 2006, Sec. 3.4).
    """
    f, learnt = model(rows.X).mean[0], rows
    for _ in range(NEWTON_STEPS):
        slope, curvature = (values[0] for values in likelihood.derivatives(rows.y[None], f[None]))
        curvature = torch.maximum(curvature, slope.abs() / LONGEST).clamp(min=LEAST_CURVATURE)
        learnt = Batch(rows.X, f + slope / curvature, rows.weight * curvature[:, 0])
        set_posteriors(model, learnt)
        before, f = f, model(rows.X).mean[0]
        if (f - before).abs().max() < CONVERGED:
            break
    return learnt


@torch.no_grad()
def learn_dispersion(likelihood: Likelihood, rows: Batch, moments: Moments) -> None:
    """Give a likelihood the dispersion that makes rows most likely, of whose function the moments are known."""
    mean, variance = (values[None] for values in moments)
    [log_dispersion] = likelihood.calibrated()
    start = log_dispersion.item()

    def loss(value: float) -> float:
        log_dispersion.fill_(value)
        return -(rows.weight * likelihood.log_predictive(rows.y, mean, variance)[0]).sum().item()

    best = minimize_scalar(loss, bounds=(start - NOISE_REACH, start + NOISE_REACH), method="bounded")
    log_dispersion.fill_(best.x)


def fit_base_of_intervals(rows: Batch, likelihood: Censored, groups: Groups = None) -> tuple[Base, Batch, Tensor]:
    """The same for targets of which some are only known to lie in an interval.

    At first the middles of the bounds stand for targets. Then expectation propagation finds numbers and weights that
    stand for them. With these the kernel is learnt again: where expectation propagation has converged, its evidence has
    the same gradient as that of the numbers (Seeger, "Expectation Propagation for Exponential Families", 2005). The
    noise is the one that makes the targets most likely, each left out for its own density.

    Returns
    -------
    base : Base
        The base.
    learnt : Batch
        The numbers that stand for targets in the end, with their weights. The posterior is that of these.
    noise : Tensor of shape (1,)
        Variance of the noise of an exact target.
    """
    learnt = Batch(rows.X, likelihood.regressands(rows.y), rows.weight)
    model = fit_base(learnt, groups)
    for turn in range(INTERVAL_ROUNDS):
        if turn > 0:
            model = _fit(learnt, _variance_of(model), groups, fixed=True, like=model if turn > 1 else None)
            give_noise(model, _variance_of(model))
        learnt, _ = _stand_ins(model, rows, likelihood, learnt)
        give_noise(model, _most_likely_noise(likelihood, rows, left_out(model, learnt, learnt), _variance_of(model)))
        learnt, change = _stand_ins(model, rows, likelihood, learnt)
    if not change < CONVERGED:
        warnings.warn(
            "Numbers that stand for intervals among the targets have not converged: the last step has changed the "
            f"function of the base by {change:.1e} standard deviations of y. Predictions may be as wrong as this: "
            "remove targets that are far from all others or contradict them, or set base=None.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
    variance = _variance_of(model)
    # The evidence assumes that weights are those of the rows on average.
    factor = rows.weight.sum() / learnt.weight.sum()
    learnt = learnt.weighing(factor)
    give_noise(model, factor * variance)
    set_posteriors(model, learnt)
    return with_alternatives(model, learnt), learnt, variance


def _variance_of(model: DeepGP) -> Tensor:
    """Variances (P,) or (1,) of a base's noise."""
    return cast(Gaussian, model.likelihood).variance.detach()


@torch.no_grad()
def give_noise(model: DeepGP, variance: Tensor) -> None:
    """Let the noise of a base have these variances, and be free if they were given."""
    noise = Gaussian(len(variance), floor=0.0).to(variance).requires_grad_(False)
    noise.log_excess.copy_(variance.log())
    model.likelihood = noise


@torch.no_grad()
def _most_likely_noise(likelihood: Censored, rows: Batch, moments: tuple[Tensor, Tensor], start: Tensor) -> Tensor:
    """The variance (1,) of the noise that is most probable given rows, of whose function the moments are known."""
    trial = deepcopy(likelihood)
    trial.floor.zero_()
    mean, variance = (values[None] for values in moments)
    width = rows.y[:, 1] - rows.y[:, 0]
    typical = width[width.isfinite() & (width > 0)].square().log() - math.log(12.0)  # of a uniform number's variance

    def loss(log_noise: float) -> float:
        trial.log_excess.fill_(log_noise)
        density = (rows.weight * trial.log_predictive(rows.y, mean, variance)[0]).sum().item()
        prior = ((log_noise - typical.median().item()) / ROUNDING_DEVIATION) ** 2 if len(typical) else 0.0
        return 0.5 * prior - density

    low, high = start.log().item() - NOISE_REACH, start.log().item() + NOISE_REACH
    high = max(high, typical.median().item()) if len(typical) else high
    best = minimize_scalar(loss, bounds=(low, high), method="bounded")
    return start.new_tensor([math.exp(best.x)])


@torch.no_grad()
def _stand_ins(model: DeepGP, rows: Batch, likelihood: Censored, learnt: Batch) -> tuple[Batch, float]:
    """Numbers and weights that stand for targets, by expectation propagation from those that stood for them before.

    Each stands for its target beside all others, whose moments are those of the row left out. The model has the
    posterior of the returned ones. The second result is by how much the last step has changed function values.
    """
    set_posteriors(model, learnt)
    f = model(rows.X).mean[0]
    for _ in range(PROPAGATIONS):
        mean, variance = left_out(model, learnt, learnt)
        numbers, weight = likelihood.stand_ins(rows.y, mean, variance, _variance_of(model))
        weight = rows.weight * weight[:, 0]
        # Steps of their whole length may go to and fro.
        total = (1.0 - STEP) * learnt.weight + STEP * weight
        means = ((1.0 - STEP) * learnt.weight * learnt.y[:, 0] + STEP * weight * numbers[:, 0]) / total
        learnt = Batch(rows.X, torch.where(total > 0, means, numbers[:, 0])[:, None], total)
        set_posteriors(model, learnt)
        before, f = f, model(rows.X).mean[0]
        change = (f - before).abs().max().item()
        if change < CONVERGED:
            break
    return learnt, change


def fit_base_of_varying(rows: Batch, groups: Groups = None) -> tuple[Base, Batch, Variances]:
    """The same for noise whose variance depends on the row, with a model of the variances.

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
    model = _fit(Batch(squares.X, logarithms - level, weight), y.new_tensor(LOG_SQUARE[1:]), groups)
    model.likelihood = Gaussian(1, excess=1.0, floor=0.0).to(y).requires_grad_(False)
    f = model(squares.X).mean[0]
    for _ in range(NEWTON_STEPS):
        step = (y * (-f - level).exp() - 1.0).clamp(max=LONGEST)
        learnt = Batch(squares.X, f + step, 0.5 * weight)
        set_posteriors(model, learnt)
        before, f = f, model(squares.X).mean[0]
        if (f - before).abs().max() < CONVERGED:
            break
    return Variances(model, learnt, level)


def _fit(rows: Batch, floor: Tensor, groups: Groups, *, fixed: bool = False, like: DeepGP | None = None) -> DeepGP:
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


def rows_of_posterior(data: Batch, order: np.ndarray) -> Part:
    """The rows that the base's posterior learns from: the last of a random order, since the first are held out."""
    return Part(data, torch.as_tensor(order[-POSTERIOR_ROWS:], device=data.X.device))


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
        if of_basis is None:
            everything = base.repeated(basis.rows().to(like.device, like.dtype))
            mean[learnt], variance[learnt] = left_out(model, rows.rows(learnt), everything)
        else:
            place = basis.places(index).to(like.device)[learnt]
            mean[learnt], variance[learnt] = of_basis[0][place], of_basis[1][place]
    if not learnt.all():
        marginals = marginals_of(model, rows.rows(~learnt), PREDICT_ROWS)
        mean[~learnt], variance[~learnt] = marginals.mean[0], marginals.variance[0]
    return mean, variance
