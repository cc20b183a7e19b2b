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
from ..tables import Table
from ..tables.encoding import MOST_LEVELS
from ..tables.levels import are_ids

#: With fewer rows every fit warns.
FEW_ROWS = 5

#: Rows from which on a fit is compared with a linear model.
MIN_ROWS_TO_COMPARE = 100

#: How much worse than that it must be, beyond chance.
MARGIN = 0.1

#: With fewer rows than this, a column is not called constant or one of ids.
ROWS_TO_TELL = 10

#: Number of columns that a warning names; it counts others.
NAMED = 5


def warn_of_columns(table: Table, X: np.ndarray, *, by_chunks: bool, chosen: bool) -> None:
    """Warn of columns that tell nothing of new rows: empty ones, constant ones and ids.

    Parameters
    ----------
    table : Table
    X : ndarray of shape (n, n_features)
        Rows of ``fit``: numbers, and for categories the places of their levels.
    by_chunks : bool
        Whether other rows follow, in which columns may vary.
    chosen : bool
        Whether dtypes have chosen the categories. If the user has, they are called ids only if models do without them.
    """
    levels = table.n_features * [None] if table.columns is None else table.columns.levels
    empty = np.array(table.encoding.empty) | [of_column == [None] for of_column in levels]
    _warn_of(
        "is empty: no row has a value in it. Nothing is learnt from it: leave it out, or fill it in.", table, empty
    )
    ids = np.array([are_ids(n_levels, len(X)) for n_levels in table.encoding.n_levels])
    left_out = ids & (np.array(table.encoding.n_levels) > MOST_LEVELS)  # whoever has chosen it
    if by_chunks or len(X) < ROWS_TO_TELL or table.names is None:  # arrays of pixels or indicators are often constant
        ids = left_out
    else:
        constant = ~empty & (X == X[0]).all(axis=0)
        _warn_of("has the same value in all rows. Nothing is learnt from it: leave it out.", table, constant)
        ids = left_out | (ids & chosen)
    _warn_of(
        "is a category with a level of its own in almost every row, as ids are. New rows have other levels, so that it "
        "tells nothing of them: leave it out, or replace it by columns of what is in it.",
        table,
        ids,
    )


def _warn_of(fault: str, table: Table, found: np.ndarray) -> None:
    """One warning of all columns that were found to have a fault."""
    if not found.any():
        return
    first, *others = (table.name(j) for j in np.flatnonzero(found).tolist())
    rest = f" and {len(others) - NAMED + 1} more" if len(others) >= NAMED else ""
    same = f" The same holds for {', '.join(map(repr, others[: NAMED - 1]))}{rest}." if others else ""
    warnings.warn(f"Column {first!r} of X {fault}{same}", UserWarning, stacklevel=users_level())


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
    missing += ["outliers were not left out"] if "outliers" in clock.left_out else []
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
