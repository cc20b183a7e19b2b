"""Functions drawn from a fitted estimator, in the user's units."""

from numbers import Integral

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..inference.joint import FunctionSet, layer_functions
from ..inference.threads import threads_for
from ..tables import Table
from ..tables.known import Known
from ..tables.transforms import back, back_slopes
from ._fitted import fitted, learnt, member_of, query, refuse_trend
from ._predicting import gathered, lacking, with_drawn_cells

#: Number of functions that samples are drawn with at a time. The waves of a function take some hundred kilobytes.
DRAWS_AT_A_TIME = 512


class FunctionDraws:
    """Functions drawn from the posterior of a fitted estimator. Call it with rows to get the functions' values there.

    ``sample_functions`` makes it. Each function could be the one that the data came from. It is smooth, defined
    everywhere, and the same in every call. So you can compute a number from each function, such as its maximum, its
    integral over a region, or its sum over the rows of a table. The numbers of all functions are then draws of that
    quantity. A function depends only on its seed, and not on the other functions.

    A function has the same value for a row, to the last digit, whatever the other rows of the call are. A missing cell
    has its mean given the other cells. Memory does not grow with the number of rows, except for the returned values.
    The functions keep the estimator as it was when they were drawn, and can be pickled.

    Parameters
    ----------
    estimator : object
        A fitted estimator of this package.
    seeds : array-like of shape (n_functions,)
        Non-negative integers, one for each of at least one function.

    Attributes
    ----------
    n_functions : int
        Number of functions, which is also ``len(draws)``.
    seeds : ndarray of shape (n_functions,)
        The seeds.

    Raises
    ------
    ValueError
        If ``seeds`` are not such integers, or if ``draws[index]`` chooses none of the functions.

    See Also
    --------
    AVDGPRegressor.sample_functions : Draws the functions.

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
    >>> highest = grid[
    ...     draws(grid).argmax(axis=0)
    ... ]  # where each function is highest on the grid
    >>> bool(
    ...     (draws(grid[50:60]) == draws(grid)[50:60]).all()
    ... )  # a function, whatever rows are asked for
    True
    """

    def __init__(self, estimator, seeds):
        predictor = fitted(estimator)
        self.seeds = np.array(seeds)
        whole = self.seeds.ndim == 1 and self.seeds.dtype.kind in "iu"
        if not whole or not len(self.seeds) or self.seeds.min() < 0:
            raise ValueError(f"seeds={self.seeds.tolist()} must be integers from 0 on, one for each function.")
        self._estimator = object.__new__(type(estimator))
        vars(self._estimator).update(vars(estimator))  # a later fit of the estimator does not change these
        self._set = FunctionSet(predictor, self.seeds, lambda likelihood, values: likelihood.response(values))

    @property
    def n_functions(self):
        """Number of functions."""
        return len(self.seeds)

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, index):
        """Some of the functions, chosen by a number, slice, mask or array."""
        return FunctionDraws(self._estimator, np.atleast_1d(self.seeds[index]))

    def __repr__(self):
        return f"FunctionDraws({type(self._estimator).__name__}, n_functions={len(self)})"

    def __getstate__(self):
        return {"estimator": self._estimator, "seeds": self.seeds}

    def __setstate__(self, state):
        self.__init__(state["estimator"], state["seeds"])  # type: ignore[misc]

    @threads_for()
    def __call__(self, X):
        """Values of the functions at rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, in the units of ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_functions) or (n_samples, n_outputs, n_functions)
            Values in the units of ``y``, without noise. For a classifier the shape is (n_samples, n_classes,
            n_functions), and the values are class probabilities given the function.
        """
        X = self._prepared(query(self._estimator, X))
        return self._in_units(gathered(self._set.values(X), len(X), len(self)))

    @threads_for()
    def gradient(self, X):
        """Gradients of the functions with respect to the features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows, in the units of ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_features, n_functions) or (n_samples, n_outputs, n_features, n_functions)
            Gradients in the units of ``y`` per unit of each feature. NaN for categories, and for missing cells of
            ``X``. For a classifier the shape is (n_samples, n_classes, n_features, n_functions). With the kernel
            "matern12" or ``Matern(nu=0.5)`` the numbers mean nothing, since its functions have no derivative.
        """
        refuse_trend(self._estimator, "gradient")
        X, table = query(self._estimator, X), self._table
        rows = self._prepared(X)
        gradients = gathered(self._set.gradients(rows), len(X), len(self))
        if table.targets.transformer is not None:
            values = gathered(self._set.values(rows), len(X), len(self))
            size = np.asarray(self._set.likelihoods[0].units.scale)[:, None]
            gradients = gradients * back_slopes(table.targets.transformer, values, size)[:, :, None]
        return table.flattened(table.by_feature(gradients, X, axis=-2))

    def _sampled(self, X: np.ndarray, rng: np.random.RandomState, latent: bool, known: Known) -> np.ndarray:
        """Values of a regressor's functions, or observations with noise, where cells are drawn that are missing.

        Rows are checked already, and so is what is known of them.
        """
        known, samples = {**known, **lacking(self._table, X)}, []
        for start in range(0, len(self), DRAWS_AT_A_TIME):
            seeds = self.seeds[start : start + DRAWS_AT_A_TIME]
            samples += self._some_sampled(X, seeds, rng, latent, known)
        return self._in_units(np.stack(samples, axis=-1))

    def _some_sampled(
        self, X: np.ndarray, seeds: np.ndarray, rng: np.random.RandomState, latent: bool, known: Known
    ) -> list[np.ndarray]:
        """The same (n, P) for each of some seeds, with transformed targets as models see them."""
        functions = FunctionSet(fitted(self._estimator), seeds, lambda _, values: values, of_rows=not latent)
        values = gathered(functions.values(self._prepared(X)), len(X), len(seeds))
        incomplete = np.isnan(X).any(axis=1)
        if incomplete.any():
            values[incomplete] = with_drawn_cells(learnt(self._estimator), functions, X[incomplete], rng)
        samples = []
        for drawn, likelihood in zip(np.moveaxis(values, -1, 0), functions.likelihoods, strict=True):
            likelihood = likelihood.at(known)
            if latent:
                samples.append(likelihood.response(torch.from_numpy(drawn.copy())[None])[0].numpy())
            else:
                samples.append(likelihood.draw(drawn, rng))
        return samples

    @property
    def _table(self) -> Table:
        return learnt(self._estimator).table

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        """Rows in the units of the models."""
        return self._table.prepared(X).astype(np.float64)

    def _in_units(self, values: np.ndarray) -> np.ndarray:
        """Values (n, P, ...) in the user's units, without the axis of outputs if ``y`` had none."""
        return self._table.flattened(back(self._table.targets.transformer, values))


def sample_functions(self, n_functions=1, random_state=None):
    """Draw whole functions from the posterior.

    Parameters
    ----------
    n_functions : int, default=1
        Number of functions.
    random_state : int, RandomState instance or None, default=None
        Source of randomness. With an integer, the first functions are the same whatever ``n_functions`` is.

    Returns
    -------
    draws : FunctionDraws
        The functions. Call them with rows to get their values, or ask them for gradients. A regressor's functions are
        without noise. A classifier's functions are class probabilities given the function. With more than two classes
        they are close to 0 or 1, because of the robust max likelihood; their mean over functions is what
        ``predict_proba`` returns.

    Raises
    ------
    ValueError
        If ``n_functions`` is not an integer of at least 1, or if a kernel of your own cannot draw functions.

    Notes
    -----
    Each function is drawn from one member of the ensemble, and each member is equally likely. In each layer, the prior
    part of a function is a sum of 512 waves, whose frequencies are drawn anew for each function. Matheron's rule turns
    it into a draw of the posterior; see :doc:`/functions`. The white noise of hidden layers is not part of a function.

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
    """Draw functions of all layers of a member, to see what its hidden layers may be.

    Each draw has one function for each layer. These functions belong together: the values of one layer are the inputs
    of the next. Their units are those of ``predict_layers``.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Rows, in the units of ``fit``.
    n_functions : int, default=1
        Number of draws.
    member : int, default=0
        Number of the ensemble's member.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    list of ndarrays of shape (n_samples, n_outputs_of_the_layer, n_functions)
        Values of the first layer to the last. They contain no noise, neither of observations nor of hidden layers.

    Raises
    ------
    ValueError
        If there is no such member, if ``n_functions`` is not an integer of at least 1, or if a kernel of your own
        cannot draw functions.

    Examples
    --------
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = DSDGPRegressor(
    ...     (2,), 5, max_iter=2, n_estimators=1, random_state=0
    ... ).fit(X, y)
    >>> [values.shape for values in model.sample_layers(X[:3], 4)]
    [(3, 2, 4), (3, 1, 4)]
    """
    model, X = member_of(self, member), query(self, X)
    seeds = draw_seeds("n_functions", n_functions, check_random_state(random_state))
    rows = torch.from_numpy(learnt(self).table.prepared(X).astype(np.float64))
    seen = fitted(self).inputs(member, rows).numpy()
    return [np.moveaxis(values, 0, -1) for values in layer_functions(model, seen, seeds.tolist())]


def draw_seeds(name: str, number: int, rng: np.random.RandomState) -> np.ndarray:
    """Seeds of ``number`` functions; ValueError unless ``number`` is an integer of at least 1."""
    if not (isinstance(number, Integral) and number >= 1):
        raise ValueError(f"{name}={number!r} must be an integer of at least 1.")
    return rng.randint(np.iinfo(np.int32).max, size=number)
