"""Functions drawn from a fitted estimator, in the user's units."""

from numbers import Integral
from typing import cast

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..gp.likelihoods import Likelihood, Regression
from ..inference.joint import FunctionSet, layer_functions
from ..inference.threads import threads_for
from . import _shell
from ._rows import check_query
from ._targets import back, back_slopes


class FunctionDraws:
    """Functions drawn from the posterior of a fitted estimator: called with rows, they give their values there.

    Made by ``sample_functions``. Each function could be the one that the data came from. It is smooth, defined
    everywhere, and the same in every call. A number computed from each function, such as its maximum, its integral over
    a region, or its sum over the rows of a table, is a draw of that number. A function is fixed by its seed, whatever
    other functions there are.

    Values of a row are equal to the last digit whichever other rows are asked for with it. A cell that is missing has
    its mean given the others. Memory does not grow with the number of rows, but for what is returned. A draw keeps the
    estimator as it was, and can be pickled.

    Parameters
    ----------
    estimator : object
        A fitted estimator of this package.
    seeds : array-like of shape (n_functions,)
        Non-negative integers.

    Attributes
    ----------
    n_functions : int
        How many there are; also ``len(draws)``.
    seeds : ndarray of shape (n_functions,)

    See Also
    --------
    AVDGPRegressor.sample_functions : Makes them.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(10, 0, max_iter=20, random_state=0).fit(X, y)
    >>> draws = model.sample_functions(5, random_state=0)
    >>> grid = np.linspace(0, 1, 200)[:, None]
    >>> draws(grid).shape, draws.gradient(grid).shape
    ((200, 5), (200, 1, 5))
    >>> highest = grid[draws(grid).argmax(axis=0)]  # where each function is highest on the grid
    >>> bool((draws(grid[50:60]) == draws(grid)[50:60]).all())  # a function, whatever rows are asked for
    True
    """

    def __init__(self, estimator, seeds):
        ensemble = _shell.fitted(estimator)
        self.seeds = np.array(seeds, dtype=np.int64)
        self._estimator = object.__new__(type(estimator))
        vars(self._estimator).update(vars(estimator))  # a later fit gives the estimator another ensemble
        self._set = FunctionSet(ensemble, self.seeds, _response)

    @property
    def n_functions(self):
        """How many there are."""
        return len(self.seeds)

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, index):
        """Some of the functions, by a number, slice, mask or array."""
        return FunctionDraws(self._estimator, np.atleast_1d(self.seeds[index]))

    def __repr__(self):
        return f"FunctionDraws({type(self._estimator).__name__}, n_functions={len(self)})"

    def __getstate__(self):
        return {"estimator": self._estimator, "seeds": self.seeds}

    def __setstate__(self, state):
        self.__init__(state["estimator"], state["seeds"])  # type: ignore[misc]

    @threads_for()
    def __call__(self, X):
        """Values of the functions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_functions) or (n_samples, n_outputs, n_functions)
            In the units of ``y``, without noise. Of a classifier (n_samples, n_classes, n_functions), probabilities of
            classes given the function.
        """
        X = self._prepared(check_query(self._estimator, X))
        return self._flat(back(self._transformer, _gathered(self._set.values(X), len(X), len(self))))

    @threads_for()
    def gradient(self, X):
        """Gradients of the functions with respect to the features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_features, n_functions) or (n_samples, n_outputs, n_features, n_functions)
            In the units of ``y`` per unit of each feature; NaN for categories, and for cells of ``X`` that are missing.
            Of a classifier (n_samples, n_classes, n_features, n_functions).
        """
        X = check_query(self._estimator, X)
        rows = self._prepared(X)
        found = _gathered(self._set.gradients(rows), len(X), len(self))
        if self._transformer is not None:
            values = _gathered(self._set.values(rows), len(X), len(self))
            found = found * back_slopes(self._transformer, values)[:, :, None]
        return self._flat(_shell.by_feature(self._estimator, found, X, axis=-2))

    def observations(self, X, rng: np.random.RandomState) -> np.ndarray:
        """Observations of a regressor's functions, of the shape of their values."""
        X = self._prepared(check_query(self._estimator, X))
        ensemble = _shell.fitted(self._estimator)
        functions = FunctionSet(ensemble, self.seeds, lambda _, values: values, of_rows=True)
        values = _gathered(functions.values(X), len(X), len(self))
        likelihoods = [cast(Regression, likelihood) for likelihood in functions.likelihoods]
        drawn = [each.draw(values[..., i], rng) for i, each in enumerate(likelihoods)]
        return self._flat(back(self._transformer, np.stack(drawn, axis=-1)))

    @property
    def _transformer(self):
        """Of a regressor's targets, if there is one."""
        return getattr(self._estimator, "target_transformer_", None)

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        """Rows in the units of the models."""
        return _shell.prepared(self._estimator)(X).astype(np.float64)

    def _flat(self, found: np.ndarray) -> np.ndarray:
        """Values (n, P, ...) without the axis of outputs where there is none."""
        return found[:, 0] if getattr(self._estimator, "_y_is_flat", False) else found


def _gathered(parts, n_rows: int, n_functions: int) -> np.ndarray:
    """Values (n, K, ..., S) of all rows and functions, from those (S', B, K, ...) of some."""
    found = np.empty(0)
    for places, rows, values in parts:
        if not found.size:
            found = np.empty((n_rows, *values.shape[2:], n_functions))
        found[rows, ..., places] = np.moveaxis(values, 0, -1)
    return found


def _response(likelihood: Likelihood, values: Tensor) -> Tensor:
    return likelihood.response(values)


def sample_functions(self, n_functions=1, random_state=None):
    """Draw whole functions from the posterior.

    Parameters
    ----------
    n_functions : int, default=1
        How many.
    random_state : int, RandomState instance or None, default=None
        Source of randomness. The first functions of an integer are the same however many there are.

    Returns
    -------
    draws : FunctionDraws
        To be called with rows, and asked for gradients. A regressor's functions are without noise. A classifier's are
        probabilities of classes given the function; with more than two classes they are close to 0 and 1, as robust max
        has them, and their mean over functions is what ``predict_proba`` returns.

    Raises
    ------
    ValueError
        If ``n_functions`` is no integer of at least 1, or if a kernel of your own does not say how functions are drawn.

    Notes
    -----
    A function belongs to one member of the ensemble, and random ones to all alike. The prior part of every layer is a
    sum of 512 waves with frequencies of their own for each function, and Matheron's rule turns it into a draw of the
    posterior; see :doc:`/predictions`. White noise of hidden layers is no part of a function.

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(10, 0, max_iter=20, random_state=0).fit(X, y)
    >>> draws = model.sample_functions(3, random_state=0)
    >>> draws(X).shape
    (60, 3)
    """
    check_is_fitted(self)
    return FunctionDraws(self, draw_seeds("n_functions", n_functions, check_random_state(random_state)))


@threads_for()
def sample_layers(self, X, n_functions=1, member=0, random_state=None):
    """Functions of all layers of a member, drawn from their posterior: what hidden layers may be.

    A draw has one function of each layer, which belong together: the values of one layer are the inputs of the next.
    Layers speak of the same units as those of ``predict_layers``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Query points, in the units of ``fit``.
    n_functions : int, default=1
        How many draws.
    member : int, default=0
        Which member of the ensemble.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    list of ndarrays of shape (n_samples, n_outputs_of_the_layer, n_functions)
        From the first layer to the last. There is no noise in them, neither of observations nor of hidden layers.

    Raises
    ------
    ValueError
        If there is no such member, if ``n_functions`` is no integer of at least 1, or if a kernel of your own does not
        say how functions are drawn.

    Examples
    --------
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = DSDGPRegressor((2,), 5, max_iter=2, n_estimators=1, random_state=0).fit(X, y)
    >>> [values.shape for values in model.sample_layers(X[:3], 4)]
    [(3, 2, 4), (3, 1, 4)]
    """
    X, model = check_query(self, X), _shell.member_of(self, member)
    seeds = draw_seeds("n_functions", n_functions, check_random_state(random_state))
    rows = _shell.prepared(self)(X).astype(np.float64)
    return [np.moveaxis(values, 0, -1) for values in layer_functions(model, rows, seeds.tolist())]


def draw_seeds(name: str, number: int, rng: np.random.RandomState) -> np.ndarray:
    """Seeds of as many functions; ValueError if it is no number of them."""
    if not (isinstance(number, Integral) and number >= 1):
        raise ValueError(f"{name}={number!r} must be an integer of at least 1.")
    return rng.randint(np.iinfo(np.int32).max, size=number)
