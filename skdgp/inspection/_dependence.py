"""Partial dependence: the mean prediction over rows in which one feature is set to each value of a grid."""

from numbers import Integral

import numpy as np
from scipy.stats.mstats import mquantiles
from sklearn.utils import Bunch, check_random_state

from .._sklearn import check_sample_weight
from ..distributions import central_levels
from ..tables.dates import days_of
from ..tables.frames import column as column_of
from ..tables.frames import is_pandas, rows_at
from ._response import ROWS_AT_A_TIME, Response
from ._rows import as_table, cells_at, find_feature, names_of, plain_column, with_column

#: What ``kind`` may be.
KINDS = ("average", "individual", "both")


def dependence(
    estimator,
    X,
    feature,
    *,
    kind="average",
    target=None,
    sample_weight=None,
    n_draws=50,
    confidence_level=0.9,
    percentiles=(0.05, 0.95),
    grid_resolution=25,
    subsample=100,
    random_state=None,
):
    """Partial dependence of predictions on a feature, with its uncertainty.

    The feature is set to each value of a grid, in all rows of ``X``, and predictions are averaged over the rows. The
    average is that of :func:`sklearn.inspection.partial_dependence`. In addition, functions are drawn from the
    posterior, and each of them is averaged in the same way. Their spread is the uncertainty of the average effect,
    which is smaller than that of single rows. It does not contain the noise of observations.

    Parameters
    ----------
    estimator : object
        Fitted regressor or classifier of this package, or a pipeline or search that ends in one.
    X : array-like of shape (n, n_features)
        Rows to average over. Cells may be missing.
    feature : int or str
        Number or name of the column to set.
    kind : {"average", "individual", "both"}, default="average"
        With "individual" or "both" the predictions of single rows are returned, too. As lines over the feature they
        are known as individual conditional expectation (ICE).
    target : int, str or None, default=None
        Which output of a regressor, by its number, or which class of a classifier, by its label. None stands for the
        only output, or for the second of two classes.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows in averages.
    n_draws : int, default=50
        Number of functions, at least 2. 0 draws none.
    confidence_level : float, default=0.9
        Share of the functions that lie between ``lower`` and ``upper`` at each value, between 0 and 1.
    percentiles : tuple of two floats, default=(0.05, 0.95)
        Quantiles of the feature at which the grid begins and ends.
    grid_resolution : int, default=25
        Number of values, at least 2. A category, or a feature with fewer different values, is set to each of its
        values.
    subsample : int or None, default=100
        Functions are averaged over at most so many of the rows, which are chosen at random, since functions take longer
        than predictions. None stands for all rows. ``average`` and ``individual`` always use all rows.
    random_state : int, RandomState instance or None, default=None
        Source of randomness. With an integer the functions are the same for every feature.

    Returns
    -------
    Bunch
        With these attributes. G is the number of values.

        * ``feature_name``: name of the feature.
        * ``grid_values``: ndarray of shape (G,), or for a category a list of its levels, with None for a missing one.
          Those of a date are dates that occur in ``X``, as datetime64. Durations are in days.
        * ``is_categorical``: whether the feature is a category, or holds only True and False.
        * ``average``: ndarray of shape (G,), in the units of ``y``, or probabilities.
        * ``draws``: ndarray of shape (G, n_draws), averages of functions. They are moved together at each value, so
          that their mean is ``average``. This removes most of the error that comes from few functions and few rows.
        * ``lower``, ``upper``: ndarrays of shape (G,), quantiles of ``draws``.
        * ``rows``: numbers of the rows that functions were averaged over.
        * ``deciles``: ndarray of shape (9,) of the feature; None for a category.
        * ``individual``: ndarray of shape (n, G). Only if ``kind`` is not "average".

        Without functions ``draws``, ``lower`` and ``upper`` are None.

    Raises
    ------
    TypeError
        If the estimator is not one of this package.
    ValueError
        If ``X`` has no such feature or a feature without different values, if there is no such target, if another
        parameter has an impossible value, or if functions cannot be drawn: a kernel of your own may not be able to, and
        with ``latent_dims`` a function holds latent variables fixed.

    See Also
    --------
    skdgp.display.DependenceDisplay : Draws the result.
    sensitivity : Shares of the variance that features explain.

    Notes
    -----
    With ``target_transform`` the average is that of ``predict(X, latent=True)``: the mean of the function, without the
    noise of observations. The transformation makes the mean of noisy targets another one.

    A row whose feature is set to a value that it could not have, given its other features, does not exist. Predictions
    for such rows are guesses, which widens the draws.

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.inspection import dependence
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(10, 0, max_iter=20, random_state=0).fit(X, y)
    >>> result = dependence(model, X, 0, n_draws=20, random_state=0)
    >>> result.average.shape, result.draws.shape
    ((25,), (25, 20))
    """
    X = as_table(X)
    response = Response(estimator, X, target, "dependence")
    rng = check_random_state(random_state)
    functions = draw_functions(response, n_draws, rng)
    settings = {"kind": kind, "percentiles": percentiles, "grid_resolution": grid_resolution}
    ends = central_levels(confidence_level)
    weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    rows = subsample_of(weight, subsample, rng)
    return dependence_of(response, X, feature, functions, weight=weight, rows=rows, ends=ends, **settings)


def draw_functions(response: Response, n_draws, rng):
    """Functions, which are called with rows; None if ``n_draws`` is 0."""
    if not (isinstance(n_draws, Integral) and n_draws >= 0 and n_draws != 1):
        raise ValueError(f"n_draws={n_draws!r} must be the number of functions, at least 2, or 0 for none.")
    return response.functions(n_draws, rng) if n_draws else None


def subsample_of(weight: np.ndarray, subsample, rng) -> np.ndarray:
    """Numbers of at most ``subsample`` rows of positive weight, in order."""
    if not (subsample is None or (isinstance(subsample, Integral) and subsample >= 1)):
        raise ValueError(f"subsample={subsample!r} must be a number of rows, at least 1, or None for all rows.")
    rows = np.flatnonzero(weight > 0)
    if not len(rows):
        raise ValueError("sample_weight is zero in all rows, so that they have no average: give some rows a weight.")
    if subsample is None or subsample >= len(rows):
        return rows
    return np.sort(rng.choice(rows, size=subsample, replace=False))


def dependence_of(
    response: Response, X, feature, functions, *, weight, rows, kind, percentiles, grid_resolution, ends
) -> Bunch:
    """:func:`dependence` with functions that have been drawn; a band is between these ends, two probabilities."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {list(KINDS)}: give one of them.")
    j, name = find_feature(feature, names_of(X), X.shape[1])
    is_categorical = bool(response.is_categorical(X)[j]) or all(isinstance(cell, bool) for cell in plain_column(X, j))
    grid = _levels(X, j) if is_categorical else _numbers(X, j, name, percentiles, grid_resolution)
    individual = _over_grid(response, X, j, grid)  # (G, n)
    average = individual @ (weight / weight.sum())
    result = Bunch(feature_name=name, grid_values=grid.values, is_categorical=is_categorical, average=average)
    result.update(rows=rows, deciles=grid.deciles, draws=None, lower=None, upper=None)
    if functions is not None:
        draws = _over_grid(functions, rows_at(X, rows), j, grid, weight[rows] / weight[rows].sum())  # (G, S)
        draws += (average - draws.mean(axis=1))[:, None]
        if response.is_probability:
            draws = draws.clip(0.0, 1.0)
        lower, upper = np.quantile(draws, ends, axis=1)
        result.update(draws=draws, lower=lower, upper=upper)
    if kind != "average":
        result["individual"] = individual.T
    return result


class _Grid:
    """Values of a feature. ``cells`` returns the column that has given ones of them, by their numbers."""

    def __init__(self, values, cells, deciles=None):
        self.values, self.cells, self.deciles = values, cells, deciles

    def __len__(self):
        return len(self.values)


def _levels(X, j: int) -> _Grid:
    """Levels of a category in ``X``, in the order of its dtype or in their own; a missing one is the last."""
    values, first = plain_column(X, j), dict[object, int]()
    for row, level in enumerate(values):
        first.setdefault(level, row)
    known = [level for level in first if level is not None]
    dtype = X.dtypes.iloc[j] if is_pandas(X) else None
    if getattr(dtype, "ordered", False):
        known.sort(key=dtype.categories.tolist().index)
    else:
        known.sort(key=lambda level: (type(level).__name__, level))
    levels = known + ([None] if None in first else [])
    place = np.array([first[level] for level in levels])
    return _Grid(levels, lambda numbers: cells_at(X, j, place[numbers]))


def _numbers(X, j: int, name, percentiles, resolution) -> _Grid:
    """Values of a number from one quantile to another, or its different values if there are few.

    A date or duration is set to values that it has, since its column may be of many types.
    """
    if not (isinstance(resolution, Integral) and resolution >= 2):
        raise ValueError(f"grid_resolution={resolution} makes no grid: give a whole number from 2 on.")
    if not (len(percentiles) == 2 and 0 <= percentiles[0] < percentiles[1] <= 1):
        raise ValueError(f"percentiles={percentiles} must be two numbers between 0 and 1, the smaller one first.")
    dates = days_of(column_of(X, j))
    column = _floats(X, j) if dates is None else dates[1]
    known = np.flatnonzero(~np.isnan(column))
    distinct, first = np.unique(column[known], return_index=True)
    few = len(distinct) < resolution
    values = distinct if few else np.linspace(*mquantiles(column[known], percentiles), resolution)
    if dates is not None and not few:
        nearest = np.unique([np.abs(distinct - value).argmin() for value in values])
        values, first, few = distinct[nearest], first[nearest], True
    as_shown = _dates_at if dates is not None and dates[0] == "date" else np.asarray
    if len(values) < 2 or not values[0] < values[-1]:
        one = f"{values[0]:.6g}" if len(values) and dates is None else "".join(as_shown(values[:1]).astype(str))
        got = f"only the value {one}" if one else "no value"
        raise ValueError(f"feature {name!r} has {got} between these percentiles of its column: choose one that varies.")
    place = known[first]
    deciles = as_shown(np.quantile(column[known], np.arange(1, 10) / 10))
    return _Grid(as_shown(values), (lambda n: cells_at(X, j, place[n])) if few else (lambda n: values[n]), deciles)


def _floats(X, j: int) -> np.ndarray:
    """Cells (n,) of a column of numbers; NaN for those that are missing."""
    return np.array([np.nan if value is None else value for value in plain_column(X, j)], dtype=np.float64)


def _dates_at(days: np.ndarray) -> np.ndarray:
    """Dates from days since 1970."""
    return np.datetime64(0, "us") + np.round(days * 86_400e6).astype("timedelta64[us]")


def _over_grid(function, X, j: int, grid: _Grid, weight: np.ndarray | None = None) -> np.ndarray:
    """Values (G, n, ...) at rows in which a feature has each value of a grid, or their means (G, ...) with weights."""
    n_rows, parts = len(X), []
    size = max(1, ROWS_AT_A_TIME // n_rows)
    for start in range(0, len(grid), size):
        numbers = np.arange(start, min(start + size, len(grid)))
        rows = rows_at(X, np.tile(np.arange(n_rows), len(numbers)))
        values = function(with_column(rows, j, grid.cells(np.repeat(numbers, n_rows))))
        values = values.reshape(len(numbers), n_rows, *values.shape[1:])
        parts.append(values if weight is None else np.einsum("gn...,n->g...", values, weight))
    return np.concatenate(parts)
