"""Which trends a fit starts from, and what its models learn from with each of them."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from ..gp.likelihoods import Likelihood
from ..inference.batches import Batch
from ..inference.processes import current
from ..inference.stack import View
from ..inference.twins import twins
from ..tables import Encoded, Table
from ..tables.trend import Trend, folds_of

#: Largest number of rows with which trend="auto" also tries extremely randomised trees, which do not scale well.
MOST_ROWS_OF_EXTRA_TREES = 10_000


class StartingPoint(NamedTuple):
    """Rows for the models of one trend, whose targets are what the trend leaves over.

    Parameters
    ----------
    rows : Encoded
        The rows to learn from.
    held_out : Encoded or None
        Rows that the user holds out.
    number : int or None
        Number of the trend in the table; None if there is no trend.
    sees : bool
        Whether models see the trend as one more column.
    trend : ndarray of shape (n, P) or None
        The trend at the rows to learn from, less its mean, in the user's units.
    """

    rows: Encoded
    held_out: Encoded | None
    number: int | None = None
    sees: bool = True
    trend: np.ndarray | None = None

    def view(self, table: Table, likelihood: Likelihood) -> View:
        """What its models see of the table's rows."""
        if self.number is None:
            return View(table.encoding.width)
        first = table.encoding.width + sum(len(trend.units.scale) for trend in table.trends[: self.number])
        scale = np.asarray(table.trends[self.number].units.scale) / np.asarray(likelihood.units.scale)
        return View(table.encoding.width, first, tuple(scale.tolist()), self.sees)


def regressors(trend: Any, n_rows: int, rng: np.random.RandomState) -> list[Any]:
    """Regressors whose predictions models start from, one after another; None where they start from nothing.

    Sources of randomness that are not set are set, so that a fit with a seed can be repeated.
    """
    if trend is None:
        return [None]
    if current().size > 1:
        raise ValueError(
            f"trend={trend!r} is learnt by a single process, got {current().size}: fit without data_parallel, or set "
            "trend=None."
        )
    if isinstance(trend, type):
        raise ValueError(f"trend={trend.__name__} is a class: give an object of it, such as {trend.__name__}().")
    if not isinstance(trend, str):
        return [_seeded(clone(trend), rng)]
    # Imported here, since it brings modules that most fits do not need.
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

    boosted = HistGradientBoostingRegressor(
        max_iter=300,
        learning_rate=0.06,
        max_depth=5,
        max_leaf_nodes=24,
        min_samples_leaf=3,
        max_features=0.5,
        l2_regularization=1.0,
        early_stopping=False,
    )
    kinds = [boosted, ExtraTreesRegressor(300)] if n_rows <= MOST_ROWS_OF_EXTRA_TREES else [boosted]
    return [None, *(_seeded(kind, rng) for kind in kinds)]


def starting_points(
    table: Table,
    rows: Encoded,
    held_out: Encoded | None,
    kinds: list[Any],
    order: np.ndarray,
    *,
    sees: bool,
) -> tuple[Table, list[StartingPoint]]:
    """The table with its trends, and what models learn from with each of the regressors.

    Parameters
    ----------
    table : Table
        What has been learnt of the table. It has no trends yet.
    rows, held_out : Encoded
        Rows to learn from, and rows that the user holds out, if any.
    kinds : list
        What :func:`regressors` returns.
    order : ndarray of shape (n,)
        Random order of the rows, which decides their folds.
    sees : bool
        Whether models see their trend, if it tells more than the targets' mean.
    """
    parts, trends = list[StartingPoint](), list[Trend]()
    columns = table.as_given(rows.X)
    fold = folds_of(order, twins(Batch.of(rows.X, rows.y, dtype=np.float64)).numpy())
    for kind in kinds:
        if kind is None:
            parts.append(StartingPoint(rows, held_out))
            continue
        y, weight = rows.y.astype(np.float64), rows.given.weight
        trend, values = Trend.learn(kind, columns, y, weight, fold)
        shown = sees and _tells(y, values, weight)
        parts.append(
            StartingPoint(
                _from(rows, trend, values, sees=shown),
                None if held_out is None else _from(held_out, trend, trend(table.as_given(held_out.X)), sees=shown),
                len(trends),
                shown,
                values - np.asarray(trend.units.shift),
            )
        )
        trends.append(trend)
    return replace(table, trends=tuple(trends)), parts


def _tells(y: np.ndarray, values: np.ndarray, weight: np.ndarray) -> bool:
    """Whether trends (n, P) of left-out rows are nearer to their targets than the mean of all targets is.

    Otherwise a trend may tell little but the fold of a row, and so what targets in the fold are not like.
    """
    known = np.where(np.isnan(y), 0.0, weight[:, None])
    filled = np.nan_to_num(y)
    mean = (known * filled).sum(axis=0) / known.sum(axis=0)
    left, whole = ((known * (filled - guess) ** 2).sum(axis=0) for guess in (values, mean))
    return bool((left < whole).any())


def without_trend(rows: Encoded, table: Table, view: View) -> Encoded:
    """New rows as models of a view learn from them; see :class:`StartingPoint`."""
    if view.first is None:
        return rows
    first, trends = table.encoding.width, list(table.trends)
    while first < view.first:
        first += len(trends.pop(0).units.scale)
    return _from(rows, trends[0], trends[0](table.as_given(rows.X)), sees=view.sees)


def _from(rows: Encoded, trend: Trend, values: np.ndarray, *, sees: bool) -> Encoded:
    """Rows whose targets are what a trend of these values (n, P) leaves over, and who see it if they are to."""
    column = trend.units.standardise(values).astype(rows.X.dtype)
    left = rows.y - (values - np.asarray(trend.units.shift)).astype(rows.y.dtype)
    return Encoded(rows.given, np.hstack([rows.X, column]) if sees else rows.X, left, rows.labels)


def _seeded(regressor, rng: np.random.RandomState):
    """The regressor, with seeds in place of sources of randomness that are not set."""
    unset = [
        name
        for name, value in sorted(regressor.get_params(deep=True).items())
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    ]
    return regressor.set_params(**{name: rng.randint(np.iinfo(np.int32).max) for name in unset})
