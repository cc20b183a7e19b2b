"""Bases of targets that are no function values plus noise: counts, positive numbers, shares, and intervals.

A number with a weight stands for each target, and the base learns from these numbers. Laplace's approximation finds
them for targets whose mean is a function of the function's value, and expectation propagation for intervals.
"""

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import cast

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..gp.censored import Censored
from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Gaussian, Likelihood
from .base import Base, Moments, fit_base, fit_with_floor, with_alternatives
from .batches import Batch
from .callers import users_level
from .collapsed import left_out, set_posteriors
from .kernel_search import Groups

#: Largest number of steps of Newton's method, for a posterior without a closed form. With twelve rows of varying noise
#: it took 34.
NEWTON_STEPS = 100

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


def fit_base_of_means(rows: Batch, likelihood: Likelihood, groups: Groups = None) -> tuple[Base, Batch, Tensor | None]:
    """The base of targets whose mean is the exponential of the function, or whose share is its logistic function.

    The first kernel is the one that makes the logarithms of the targets most likely, and their noise is the first
    dispersion. The posterior is Laplace's approximation. Its mode is found by least squares, for numbers and weights
    that stand for targets there. With these the kernel is learnt again: where the mode has been found, the evidence of
    the numbers has the same gradient as Laplace's, but for the change of the weights. Where there is no dispersion, the
    first kernel stays: counts often vary more than a Poisson distribution allows, which would become a function.

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
    learnt, change = at_mode(model, rows, likelihood)
    if not likelihood.calibrated():
        warn_of_newton(change)
        return Base(model), learnt, None
    for turn in range(MEANS_ROUNDS):
        model = fit_with_floor(learnt, one, groups, fixed=True, like=model if turn else None)
        give_noise(model, one)
        learnt, change = at_mode(model, rows, likelihood)
        learn_dispersion(likelihood, rows, left_out(model, learnt, learnt))
        learnt, change = at_mode(model, rows, likelihood)
    warn_of_newton(change)
    learnt = _with_weights_of_rows(model, learnt, rows)
    base = with_alternatives(model, learnt)
    # A new target varies by the expectation of what is uncertain.
    share = variance_of(base.model).mean() / variance_of(model)
    return base, learnt, likelihood.calibrated()[0].detach() + share.log()


@torch.no_grad()
def at_mode(model: DeepGP, rows: Batch, likelihood: Likelihood) -> tuple[Batch, float]:
    """Numbers and weights that stand for targets at the mode, by Newton's method from where the model is.

    The model has the posterior of these (Rasmussen and Williams, 2006, Sec. 3.4). The second result is the length of
    the last step.
    """

    def stand_ins(f: Tensor) -> Batch:
        slope, curvature = (values[0] for values in likelihood.derivatives(rows.y[None], f[None]))
        curvature = torch.maximum(curvature, slope.abs() / LONGEST).clamp(min=LEAST_CURVATURE)
        return Batch(rows.X, f + slope / curvature, rows.weight * curvature[:, 0])

    return by_newton(model, rows.X, stand_ins)


@torch.no_grad()
def by_newton(model: DeepGP, X: Tensor, stand_ins: Callable[[Tensor], Batch]) -> tuple[Batch, float]:
    """What stands for targets at the mode, and the length of the last step.

    ``stand_ins`` says what stands for targets where the function has some values (n, P). Newton's method may go to and
    fro for ever. Where the largest change takes back some of the step before, only a half of it is made, or a half of
    that, and so on until there is a step that takes nothing back.
    """
    f, share = model(X).mean[0], 1.0
    before = torch.zeros_like(f)
    for _ in range(NEWTON_STEPS):
        set_posteriors(model, learnt := stand_ins(f))
        step = model(X).mean[0] - f
        largest = step.abs().argmax()
        change = step.flatten()[largest].abs().item()
        if change < CONVERGED:
            break
        share = 0.5 * share if (step * before).flatten()[largest] < 0 else min(1.0, 2.0 * share)
        f, before = f + share * step, step
    return learnt, change


def warn_of_newton(change: float) -> None:
    """Warn if the last step of Newton's method has changed the function of a base by so much that it may be wrong."""
    if not change < CONVERGED:
        warnings.warn(
            "Newton's method has not converged: its last step would change what the base says of the logarithm of a "
            f"mean, variance or share by {change:.1e}. Predictions may be as wrong as this: remove targets that are "
            "far from all others, give rows weights that differ less, or set base=None.",
            RuntimeWarning,
            stacklevel=users_level(),
        )


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
    """The base of targets of which some are only known to lie in an interval.

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
            model = fit_with_floor(learnt, variance_of(model), groups, fixed=True, like=model if turn > 1 else None)
            give_noise(model, variance_of(model))
        learnt, _ = stand_ins_of(model, rows, likelihood, learnt)
        give_noise(model, _most_likely_noise(likelihood, rows, left_out(model, learnt, learnt), variance_of(model)))
        learnt, change = stand_ins_of(model, rows, likelihood, learnt)
    if not change < CONVERGED:
        warnings.warn(
            "Numbers that stand for intervals among the targets have not converged: the last step has changed the "
            f"function of the base by {change:.1e} standard deviations of y. Predictions may be as wrong as this: "
            "remove targets that are far from all others or contradict them, or set base=None.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
    variance = variance_of(model)
    learnt = _with_weights_of_rows(model, learnt, rows)
    return with_alternatives(model, learnt), learnt, variance


def _with_weights_of_rows(model: DeepGP, learnt: Batch, rows: Batch) -> Batch:
    """What a model has learnt, with weights that are those of the rows on average, as the evidence assumes.

    The noise of the model changes with them.
    """
    factor = rows.weight.sum() / learnt.weight.sum()
    learnt = learnt.weighing(factor)
    give_noise(model, factor * variance_of(model))
    set_posteriors(model, learnt)
    return learnt


def variance_of(model: DeepGP) -> Tensor:
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
def stand_ins_of(model: DeepGP, rows: Batch, likelihood: Censored, learnt: Batch) -> tuple[Batch, float]:
    """Numbers and weights that stand for targets, by expectation propagation from those that stood for them before.

    Each stands for its target beside all others, whose moments are those of the row left out. The model has the
    posterior of the returned ones. The second result is by how much the last step has changed function values.
    """
    set_posteriors(model, learnt)
    f = model(rows.X).mean[0]
    for _ in range(PROPAGATIONS):
        mean, variance = left_out(model, learnt, learnt)
        numbers, weight = likelihood.stand_ins(rows.y, mean, variance, variance_of(model))
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
