"""Sobol indices: shares of the variance of drawn functions that features explain."""

from numbers import Integral

import numpy as np
from scipy.stats import qmc
from sklearn.utils import Bunch, check_random_state

from ..tables.frames import rows_at
from ._dependence import draw_functions
from ._response import Response, in_batches
from ._rows import as_table, cells_at, find_feature, names_of, plain_column, with_column


def sensitivity(estimator, X, *, features=None, target=None, n_draws=50, n_samples=512, random_state=None):
    """Shares of the variance of a function that features explain (Sobol indices), with their uncertainty.

    The *first-order* index of a feature is the share of the variance that vanishes on average if the feature is known.
    The *total* index is the share that is left if all other features are known. The difference of the two is what the
    feature does together with others. Each function that is drawn from the posterior has indices of its own, and their
    spread shows how well the model knows them.

    Parameters
    ----------
    estimator : object
        Fitted regressor or classifier of this package, or a pipeline or search that ends in one.
    X : array-like of shape (n, n_features)
        Rows whose features say how features vary, such as the training rows. Each feature takes the values that it has
        in ``X``, *independently* of all other features. Cells may be missing.
    features : list of int, str or list, default=None
        Numbers or names of columns. A list among them is a group of columns, which take their values together from one
        row and have a single index. None stands for all columns, one by one. Columns that are not named vary, too.
    target : int, str or None, default=None
        Which output of a regressor, by its number, or which class of a classifier, by its label. None stands for the
        only output, or for the second of two classes.
    n_draws : int, default=50
        Number of functions, at least 2.
    n_samples : int, default=512
        Number of points whose mean is an index, a power of 2. Functions are evaluated at ``n_samples`` times two plus
        the number of features.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    Bunch
        With these attributes. Q is the number of features and groups.

        * ``feature_names``: list of length Q; a group has a tuple of names.
        * ``first_order``, ``total_order``: ndarrays of shape (Q,), means of the indices over functions.
        * ``first_order_std``, ``total_order_std``: ndarrays of shape (Q,), their standard deviations.
        * ``first_order_draws``, ``total_order_draws``: ndarrays of shape (Q, n_draws), indices of each function.

        A function that is constant has indices of zero.

    Raises
    ------
    TypeError
        If the estimator is not one of this package.
    ValueError
        If ``X`` has no such feature, if a column is named twice, if there is no such target, if ``n_draws`` or
        ``n_samples`` is not such a number, or if functions cannot be drawn: a kernel of your own may not be able to,
        and with ``latent_dims`` a function holds latent variables fixed.

    See Also
    --------
    dependence : How predictions change with a feature.

    Notes
    -----
    Points a and b are two draws of a row, and a_i is a whose feature i is that of b. With the variance V of f, the
    first-order index is computed as E[f(b) (f(a_i) − f(a))] / V, and the total index as E[(f(a_i) − f(a))²] / 2V [1]_.
    The points come from a Sobol sequence of quantiles. With 512 points an index has an error of about 0.01, so that
    first-order indices may be a little below zero. The spread of the draws does not contain this error, which is
    nearly the same for all of them.

    Features that depend on each other, such as height and weight, make independent draws of rows that do not exist.
    Put such features into a group.

    References
    ----------
    .. [1] Saltelli, A., Annoni, P., Azzini, I., Campolongo, F., Ratto, M. and Tarantola, S., "Variance based
       sensitivity analysis of model output", Computer Physics Communications 181, 2010.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.inspection import sensitivity
    >>> X, y = make_friedman1(
    ...     100, n_features=6, random_state=0
    ... )  # the sixth feature is useless
    >>> model = SOLVEGPRegressor(max_iter=20, random_state=0).fit(X, y)
    >>> result = sensitivity(model, X, n_draws=10, n_samples=256, random_state=0)
    >>> int(result.total_order.argmin())
    5
    """
    X = as_table(X)
    rng = check_random_state(random_state)
    if not (isinstance(n_samples, Integral) and n_samples >= 2 and n_samples & (n_samples - 1) == 0):
        raise ValueError(f"n_samples={n_samples!r} must be a power of 2, such as 512.")
    inputs, names = _inputs(X, features)
    response = Response(estimator, X, target, "sensitivity")
    functions = draw_functions(response, n_draws, rng)
    if functions is None:
        raise ValueError(f"n_draws={n_draws} leaves no function to compute indices of: give a number from 2 on.")
    a, b = _points(X, inputs, n_samples, rng)

    def values(points: np.ndarray) -> np.ndarray:
        return in_batches(functions, _rows(X, inputs, points))

    f_a, f_b = values(a), values(b)  # (n_samples, S)
    changes = [values(_swapped(a, b, number)) - f_a for number in range(len(names))]
    first, total = _indices(f_a, f_b, np.stack(changes))
    return Bunch(
        feature_names=names,
        first_order=first.mean(axis=1),
        first_order_std=first.std(axis=1),
        first_order_draws=first,
        total_order=total.mean(axis=1),
        total_order_std=total.std(axis=1),
        total_order_draws=total,
    )


def _inputs(X, features) -> tuple[list[list[int]], list]:
    """Columns that take their values together, first those that are named, and the names of these."""
    features = range(X.shape[1]) if features is None else features
    inputs, names = [], []
    for feature in features:
        group = feature if isinstance(feature, list | tuple) else [feature]
        pairs = [find_feature(column, names_of(X), X.shape[1]) for column in group]
        inputs.append([number for number, _ in pairs])
        names.append(tuple(name for _, name in pairs) if isinstance(feature, list | tuple) else pairs[0][1])
    named = [number for group in inputs for number in group]
    if not all(inputs) or len(set(named)) < len(named):
        raise ValueError(f"features={features} names a column twice, or has an empty group: name each column once.")
    return inputs + [[number] for number in range(X.shape[1]) if number not in named], names


def _points(X, inputs, n_samples: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of points: for each input the row of ``X`` that it comes from, (n_samples, n_inputs) each.

    Quantiles are those of the order of an input's values, since a Sobol sequence is exact for smooth functions.
    """
    sequence = qmc.Sobol(2 * len(inputs), rng=np.random.default_rng(rng.randint(np.iinfo(np.int32).max)))
    place = np.minimum((sequence.random(n_samples) * len(X)).astype(int), len(X) - 1)
    orders = np.stack([_order(plain_column(X, columns[0])) for columns in inputs], axis=1)  # (n, n_inputs)
    return tuple(np.take_along_axis(orders, half, axis=0) for half in np.split(place, 2, axis=1))


def _order(values: list) -> np.ndarray:
    """Numbers of rows in the order of their values; missing ones come first."""
    keys = [("", 0.0) if value is None else (type(value).__name__, value) for value in values]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__))


def _rows(X, inputs, points: np.ndarray):
    """Rows whose inputs come from these rows of ``X``."""
    rows = rows_at(X, points[:, 0])
    for columns, index in zip(inputs, points.T, strict=True):
        for j in columns:
            rows = with_column(rows, j, cells_at(X, j, index))
    return rows


def _swapped(a: np.ndarray, b: np.ndarray, number: int) -> np.ndarray:
    """Points of ``a`` that have one input of ``b``."""
    swapped = a.copy()
    swapped[:, number] = b[:, number]
    return swapped


def _indices(f_a: np.ndarray, f_b: np.ndarray, changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First-order and total indices (Q, S) from values (n, S) at points, and changes (Q, n, S) of those at ``a``.

    These are the estimators (b) and (f) of Table 2 in Saltelli et al. (2010). The mean of f does not matter in the
    first, whose error is smaller without it.
    """
    both = np.concatenate([f_a, f_b])
    variance = both.var(axis=0)
    share = np.divide(1.0, variance, where=variance > 0, out=np.zeros_like(variance))
    first = ((f_b - both.mean(axis=0)) * changes).mean(axis=1) * share
    return first, 0.5 * np.square(changes).mean(axis=1) * share
