"""Warnings about how a fit has turned out."""

import math
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from ..gp.likelihoods import NOISE_FLOOR, Likelihood
from ..inference.batches import Batch
from ..inference.callers import users_level
from ..inference.ensemble import Ensemble
from ..inference.linear import linear_score
from ..inference.plan import Plan, Split
from ..methods.inducing import INITIAL_ROWS

#: With fewer rows every fit warns.
FEW_ROWS = 5

#: Rows from which on a fit is compared with a linear model.
MIN_ROWS_TO_COMPARE = 100

#: How much worse than that it must be, beyond chance.
MARGIN = 0.1


def warn_of_few_rows(ensemble: Ensemble, split: Split, n_rows: int, enough: int) -> None:
    """Warn if rows are too few to judge members, which needs ``enough`` of them, or to tell anything."""
    if split.unjudged and ensemble.predictor.blend is not None:
        warnings.warn(
            f"No rows have judged the members, which hold rows out of {enough} or more, got {n_rows}. So "
            "predictions are those of the base alone, a GP of one layer: give more rows, pass X_val and y_val, or set "
            "early_stopping=False and base=None for members alone.",
            UserWarning,
            stacklevel=users_level(),
        )
    elif split.unjudged:
        warnings.warn(
            f"No rows have judged the members, which hold rows out of {enough} or more, got {n_rows}. So "
            "their predictions may be far too certain: give more rows, or pass X_val and y_val.",
            UserWarning,
            stacklevel=users_level(),
        )
    elif n_rows < FEW_ROWS:
        warnings.warn(
            f"Fewer than {FEW_ROWS} rows tell hardly anything about how the function varies, got {n_rows}. So "
            "predictions rest on what a model assumes before it sees rows: give more.",
            UserWarning,
            stacklevel=users_level(),
        )


def warn_of_small_targets(likelihood: Likelihood, y: np.ndarray, normalize_y: bool) -> None:
    """Warn if the noise is wider than targets that are not standardised, since it has a smallest value."""
    if normalize_y or not likelihood.standardised:
        return
    deviation, least = float(np.nanstd(y[np.isfinite(y)])), math.sqrt(NOISE_FLOOR)
    if 0 < deviation < least:
        warnings.warn(
            f"The targets have a standard deviation of {deviation:.1e}, and with normalize_y=False the noise has one "
            f"of at least {least:g} while a model learns. So intervals may be far too wide: set normalize_y=True, or "
            "choose another unit.",
            UserWarning,
            stacklevel=users_level(),
        )


def warn_of_time(ensemble: Ensemble, plan: Plan) -> None:
    """Warn of what ``max_time`` has left no time for."""
    clock, n_epochs = ensemble.clock, max(len(history.loss) for history in ensemble.histories)
    cut = "training" in clock.left_out and n_epochs < plan.settings.max_iter
    missing = [f"training ended after {n_epochs} of {plan.settings.max_iter} epochs"] if cut else []
    missing += ["neighbours were left out"] if "neighbors" in clock.left_out else []
    if missing:
        warnings.warn(
            f"The time was too short, and {' and '.join(missing)}: raise max_time={clock.max_time:g}, or leave it out.",
            ConvergenceWarning,
            stacklevel=users_level(),
        )


def warn_of_failure(ensemble: Ensemble, data: Batch, order: np.ndarray) -> None:
    """Warn if a linear model predicts rows that it has not learnt from better."""
    held_out = ensemble.held_out
    likelihood = ensemble.models[0].likelihood
    comparable = likelihood.standardised and likelihood.base_kind != "censored"  # densities of standardised targets
    if held_out is None or not comparable or len(data) < MIN_ROWS_TO_COMPARE or data.y.isnan().any():
        return
    sample = data.rows(torch.from_numpy(order[:INITIAL_ROWS]))
    y = sample.y[:, : ensemble.models[0].likelihood.n_targets]  # without what else is known of rows
    line = linear_score(Batch(sample.X, y, sample.weight))
    chance = math.sqrt(2.0 / held_out.n_rows)  # two standard errors: a Gaussian's log density varies by 1/2
    if line is not None and (score := held_out.score) < line - MARGIN - chance:
        warnings.warn(
            f"A linear model predicts held-out rows better: their mean log density is {score:.2f} by this model, and "
            f"{line:.2f} by least squares, for standardised targets. Training may have failed: raise max_iter, change "
            'learning_rate, or set base="auto".',
            ConvergenceWarning,
            stacklevel=users_level(),
        )
