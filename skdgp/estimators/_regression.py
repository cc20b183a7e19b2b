"""What all regressors share: targets in the user's units in; means, deviations and samples in them out."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._sklearn import CallbackSupportMixin, fit_context
from ..distributions import Mixture, TransformedDistribution, central_levels
from ..gp.deep_gp import Marginals
from ..gp.likelihoods import AdditiveNoise, Likelihood, Regression
from ..inference.joint import joint_covariance, mean_gradient, output_covariance
from ..inference.threads import threads_for
from ..methods.inducing import Auto, shaping
from ..methods.likelihoods import POSITIVE_TARGETS, make_incomplete, make_likelihood
from . import _functions, _shell
from ._rows import FLOATS, check_query
from ._targets import fitted_transform, transformed

#: Functions whose gradients' deviation stands for that of all, where there is no closed form.
GRADIENT_DRAWS = 128


@dataclass(eq=False, repr=False)
class DeepGPRegressor(CallbackSupportMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """The face of a regressor, which derives from a method of :mod:`skdgp.methods` too."""

    _: KW_ONLY
    likelihood: str | Regression | Callable[[int], Regression] = shaping("gaussian")
    target_transform: Any = shaping(None)
    base: str | None = "gp"
    n_neighbors: int | Auto = "auto"
    validation_fraction: float = 0.1
    categorical_features: Any = shaping("from_dtype")
    normalize_X: bool = shaping(True)
    normalize_y: bool = shaping(True)
    device: str = "auto"
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    module_ = _shell.module_
    device_ = _shell.device_
    base_weight_ = _shell.base_weight_
    kernel_ = _shell.kernel_
    predict_layers = _shell.predict_layers
    sample_functions = _functions.sample_functions
    sample_layers = _functions.sample_layers

    def __getstate__(self):
        """State without anything of torch's: it opens with other versions, and where there is no such device."""
        return _shell.to_state(super().__getstate__())

    def __setstate__(self, state):
        super().__setstate__(_shell.from_state(state))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        named = isinstance(self.likelihood, str) and self.likelihood in POSITIVE_TARGETS
        logarithm = isinstance(self.target_transform, str) and self.target_transform == "log"
        tags.target_tags.positive_only = named or logarithm
        tags.input_tags.allow_nan = True
        return tags

    def _start_likelihood(self, y: np.ndarray) -> Regression:
        """The likelihood of targets like ``y``, which does not know their units yet."""
        self._y_is_flat = y.ndim == 1
        numbers = self._numbers(y)
        self.target_transformer_ = fitted_transform(self.target_transform, numbers)
        return self.make_likelihood(numbers.shape[1])

    def make_likelihood(self, n_outputs: int) -> Regression:
        """The likelihood of so many targets; a class of its own may have another."""
        if self._shares_outputs:
            return make_incomplete(self.likelihood, n_outputs)
        return make_likelihood(self.likelihood, n_outputs)

    def _encode(self, y: np.ndarray) -> np.ndarray:
        """Targets (n,) or (n, P) as finite numbers (n, P), transformed."""
        return transformed(getattr(self, "target_transformer_", None), self._numbers(y))

    def _numbers(self, y: np.ndarray) -> np.ndarray:
        """Targets (n,) or (n, P) as finite numbers (n, P)."""
        if y.dtype.kind in "mM":
            raise ValueError(f"y holds dates or durations, {y.dtype}: turn them into numbers, such as days, before.")
        # A row may lack some of its targets, if outputs share functions, but not its only one.
        finite = "allow-nan" if self._shares_outputs and y.ndim == 2 else True
        return check_array(y.reshape(len(y), -1), dtype=FLOATS, input_name="y", ensure_all_finite=finite)

    @property
    def _shares_outputs(self) -> bool:
        """Whether outputs are sums of the same functions."""
        return getattr(self, "n_latent_outputs", None) is not None

    @property
    def _check_options(self) -> dict:
        """Of scikit-learn's checks of tables."""
        if not self._shares_outputs:
            return {"dtype": FLOATS, "multi_output": True, "y_numeric": True}
        targets = {"dtype": FLOATS, "ensure_2d": False, "ensure_all_finite": "allow-nan"}
        return {"validate_separately": ({"dtype": FLOATS}, targets)}

    def _row_weights(self, y: np.ndarray, learnt: np.ndarray) -> np.ndarray | float:
        """None of rows that lack all targets."""
        return (~np.isnan(y).all(axis=1)).astype(np.float64) if self._shares_outputs and y.ndim == 2 else 1.0

    def _order_rows(self, y: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
        """Order of the rows of encoded targets ``y`` of which members hold out successive parts."""
        return random_state.permutation(len(y))

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, X_val=None, y_val=None):
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs, in any units: an array or a data frame. Cells may be missing (NaN, None, NA), but not
            infinite.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, in any units.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows' likelihood terms. A row of weight 2 counts as that row twice, and so
            weights that are all alike matter: large ones narrow deviations. Rows of weight zero are left out.
        X_val : array-like of shape (n_val, n_features), default=None
            Rows to choose the best epoch by, instead of a part of ``X`` and ``y``. They are honoured with
            ``early_stopping=False`` too.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), default=None
            Their targets. Needed with ``X_val``, and not without.

        Returns
        -------
        self : object
            The fitted estimator. If fitting fails, it stays what it was before.

        Raises
        ------
        ValueError
            If parameters or data are not what they must be.
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers stay beyond floating point although the learning rate was halved ten times.
        KeyboardInterrupt
            If the user interrupts training (Ctrl-C) before the end of its first epoch.

        Warns
        -----
        UserWarning
            If the user interrupts training after its first epoch: the estimator is then fitted, with the
            best parameters so far.
        sklearn.exceptions.ConvergenceWarning
            If held-out rows of a table of a hundred rows or more would be predicted better by a linear model.

        Examples
        --------
        >>> from skdgp import AVDGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(100, random_state=0)
        >>> model = AVDGPRegressor(max_iter=2, n_estimators=1, random_state=0)
        >>> model.fit(X[:80], y[:80], X_val=X[80:], y_val=y[80:]).validation_scores_.shape
        (2,)
        """
        return _shell.fit(self, X, y, sample_weight, X_val, y_val)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, sample_weight=None, total_size=None):
        """Learn from a chunk of rows of which more will come.

        The first chunk decides how features and targets are scaled and where inducing points start: let it be a
        random sample of the data, of a few thousand rows. Chunks may come again, for more passes. The learning
        rate climbs in the first hundred steps and falls slowly from then on; predictions come from an average of the
        parameters of recent steps. The noise is calibrated on every chunk before the chunk is learnt from. No rows are
        held out, and ``early_stopping`` plays no part.

        A chunk of 10 000 rows or more is one pass of minibatches. A smaller one is up to 25 passes, but never more
        than ``max_iter`` or 10 000 rows: after it come rows out of a random sample of 4000 that the estimator keeps.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs, in any units: an array or a data frame. Cells may be missing, but not infinite.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, in any units.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows' likelihood terms. A row of weight 2 counts as that row twice, beside
            those of all chunks.
        total_size : int, default=None
            Number of rows of all chunks together, which the penalty on inducing variables is weighed against. Without
            it, those seen so far count.

        Returns
        -------
        self : object
            The fitted estimator, without ``lower_bound_``. If learning fails, it stays what it was before.

        Raises
        ------
        ValueError
            If ``total_size`` is less than the rows of the chunk, if the data are not what they must be, or if a
            parameter that shapes the model has changed since the first chunk.
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers stay beyond floating point although the learning rate was halved ten times.

        Examples
        --------
        >>> from skdgp import DSDGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(200, random_state=0)
        >>> model = DSDGPRegressor(n_inducing=5, random_state=0)
        >>> for rows in (slice(0, 100), slice(100, 200)):
        ...     model = model.partial_fit(X[rows], y[rows], total_size=200)
        >>> model.loss_curve_.shape  # a number for each chunk
        (2,)
        """
        return _shell.learn(self, X, y, sample_weight, total_size)

    @property
    def noise_variance_(self):
        """Variance of the observation noise in the user's units, mean over members: float, or of shape (n_outputs,).

        AttributeError where it is not the same everywhere.
        """
        if not isinstance(_shell.fitted(self).likelihoods[0], AdditiveNoise):
            raise AttributeError(
                f"likelihood={self.likelihood!r} has no noise_variance_, since its noise depends on the row: compare "
                "predict_dist(X).var with predict_dist(X, latent=True).var."
            )
        variance = self._mean_noise_variance()
        return float(variance[0]) if self._y_is_flat else variance

    @property
    def neighbors_(self):
        """The correction by nearest rows, a dictionary; None if predictions have none."""
        found = _shell.fitted(self).correction
        if found is None:
            return None
        scale = np.square(cast(AdditiveNoise, found.likelihood).units.scale)
        first = self._encoding.first  # columns of a feature share a lengthscale
        local, flat = found.local, (lambda values: float(values[0]) if self._y_is_flat else values)
        return {
            "n_neighbors": local.n_neighbors,
            "length_scales": local.lengthscale.cpu().numpy()[first] * _shell.feature_units(self).scale,
            "variance": flat(local.variance.cpu().numpy() * scale),
            "noise_variance": flat(local.noise.cpu().numpy() * scale),
            "gain": found.gain,
            "standard_error": found.error,
        }

    def _mean_noise_variance(self) -> np.ndarray:
        """Of every output (P,), in the square of the user's units."""
        likelihoods = cast(list[AdditiveNoise], self._ensemble.likelihoods)
        return np.mean([likelihood.noise_variance() for likelihood in likelihoods], axis=0)

    @threads_for()
    def predict(self, X, return_std=False, return_cov=False, latent=False):
        """Predict with the mixture over samples or quadrature points.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.
        return_std : bool, default=False
            Whether to return standard deviations.
        return_cov : bool, default=False
            Whether to return the joint covariance of all rows.
        latent : bool, default=False
            Whether deviations and covariances are of the noiseless function f, and not of observations y.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictive mean, in the units of ``y``.
        y_std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In the same units. Only with ``return_std``.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            In their square. Only with ``return_cov``. Closed form, but for correlations where hidden layers are sampled
            ("monte_carlo", "ar1", "ar2"): these are a mean over some thirty functions of the hidden layers.

        Raises
        ------
        ValueError
            If both ``return_std`` and ``return_cov`` are set.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
        >>> mean, std = model.predict(X[:3], return_std=True)
        >>> mean.shape, std.shape
        ((3,), (3,))
        >>> mean, cov = model.predict(X[:3], return_cov=True)
        >>> bool((abs(cov.diagonal() - std**2) < 1e-6).all())
        True
        """
        if return_std and return_cov:
            raise ValueError("At most one of return_std and return_cov can be True, got both: choose one.")
        check_is_fitted(self)
        X = check_query(self, X)
        mean, std = self._empty(len(X)), self._empty(len(X))
        for rows, dist in self._distributions(X, latent):
            mean[rows] = dist.mean
            if return_std:
                std[rows] = dist.std
        if return_cov:
            return _Pair((mean, self._covariance(X, latent)))
        return _Pair((mean, std)) if return_std else mean

    def _covariance(self, X: np.ndarray, latent: bool) -> np.ndarray:
        """Joint covariances (n, n) or (n, n, P) of rows, in the square of the user's units."""
        self._refuse_transform("return_cov=True", "sample_y(X, 1000) has draws, whose covariance is the one wanted")
        covariance = joint_covariance(self._ensemble, _shell.prepared(self)(X))  # (D, n, n)
        likelihood, index = cast(Regression, self._ensemble.likelihoods[0]), np.arange(len(X))
        if isinstance(likelihood, AdditiveNoise):
            deviation: np.ndarray = np.empty(0)
            noise: np.ndarray = self._mean_noise_variance()
        else:
            without, whole = self._distribution(X, True), self._distribution(X)
            deviation, noise = (each.reshape(len(X), -1) for each in (without.std, whole.var - without.var))
        covariance = likelihood.joint(covariance, deviation)  # (n, n, P)
        incomplete = np.flatnonzero(np.isnan(X).any(axis=1))
        if len(incomplete):  # of which each is uncertain for itself
            variances = self._distribution(X[incomplete], True).var
            covariance[incomplete, incomplete] = variances.reshape(len(incomplete), -1)
        if not latent:
            covariance[index, index] += noise
        return covariance[..., 0] if self._y_is_flat else covariance

    @threads_for()
    def predict_output_cov(self, X, latent=False):
        """Covariances between the outputs of each row.

        Outputs are correlated with ``n_latent_outputs``, where they share functions. Else what correlation there is
        comes from the members of the ensemble, and in deep models from the hidden layers.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.
        latent : bool, default=False
            Whether of the noiseless function f, and not of observations y.

        Returns
        -------
        cov : ndarray of shape (n_samples, n_outputs, n_outputs)
            In the units of the two outputs, multiplied. The diagonal holds predictive variances.

        Raises
        ------
        ValueError
            If targets are transformed, or the noise depends on the row.

        Examples
        --------
        >>> import numpy as np
        >>> from skdgp import SOLVEGPRegressor
        >>> X = np.linspace(-1, 1, 40)[:, None]
        >>> y = np.hstack([np.sin(3 * X), -np.sin(3 * X)])
        >>> y[::2, 1] = np.nan
        >>> model = SOLVEGPRegressor(8, 0, n_latent_outputs=1, max_iter=40, random_state=0).fit(X, y)
        >>> bool((model.predict_output_cov(X, latent=True)[:, 0, 1] < 0).all())
        True
        """
        check_is_fitted(self)
        X = check_query(self, X)
        self._refuse_transform("predict_output_cov", "sample_y(X, 1000) has draws, whose covariance is the one wanted")
        likelihood = self._ensemble.likelihoods[0]
        if not isinstance(likelihood, AdditiveNoise):
            raise ValueError(
                f"predict_output_cov needs noise that is added, but likelihood={self.likelihood!r}: sample_y(X, 1000) "
                "has draws, whose covariance is the one wanted."
            )
        scale = np.asarray(likelihood.units.scale)
        found = output_covariance(self._ensemble, _shell.prepared(self)(X)) * scale[:, None] * scale
        return found if latent else found + np.diag(self._mean_noise_variance())

    def _refuse_transform(self, what: str, instead: str) -> None:
        """ValueError where targets are transformed, which ``what`` has no formula for."""
        if self.target_transform is not None:
            raise ValueError(f"{what} has no formula with target_transform={self.target_transform!r}: {instead}.")

    @threads_for()
    def predict_gradient(self, X, return_std=False):
        """Gradient of the predictive mean with respect to the features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.
        return_std : bool, default=False
            Whether to return standard deviations of the gradient of f as well.

        Returns
        -------
        gradient : ndarray of shape (n_samples, n_features) or (n_samples, n_outputs, n_features)
            In the units of ``y`` per unit of each feature; NaN for categories, and for cells of ``X`` that are missing.
        std : ndarray of the same shape
            In the same units. Only with ``return_std``. Closed form for a single layer whose inducing variables all
            rows share; else that of 128 functions, which is off by some 6 %.

        Raises
        ------
        ValueError
            If ``return_std`` is set with ``kernel="matern12"``, whose functions have no derivative.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(10, 0, max_iter=20, random_state=0).fit(X, y)
        >>> gradient, std = model.predict_gradient(X[:3], return_std=True)
        >>> gradient.shape, std.shape
        ((3, 1), (3, 1))
        """
        check_is_fitted(self)
        queries = check_query(self, X)
        if return_std and self.kernel == "matern12":
            raise ValueError(
                "kernel='matern12' has functions without derivatives, so that gradients have no deviation: choose "
                "'matern32', 'matern52' or 'rbf', or leave return_std out."
            )
        self._refuse_transform("predict_gradient", "sample_functions(1000).gradient(X) has those of functions")
        rows = _shell.prepared(self)(queries)
        gradient, variance = mean_gradient(self._ensemble, rows, _mean_response, return_std=return_std)
        gradient = self._flat(_shell.by_feature(self, gradient, queries))
        if not return_std:
            return gradient
        likelihood = self._ensemble.models[0].likelihood
        if variance is not None and isinstance(likelihood, AdditiveNoise):
            deviation = np.sqrt(variance) * np.asarray(likelihood.units.scale)[:, None]
            return gradient, self._flat(_shell.by_feature(self, deviation, queries))
        seeds = _functions.draw_seeds("n_functions", GRADIENT_DRAWS, np.random.RandomState(0))
        return gradient, _functions.FunctionDraws(self, seeds).gradient(X).std(axis=-1)

    @threads_for()
    def predict_dist(self, X, latent=False):
        """Predictive distribution of every row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.
        latent : bool, default=False
            Whether of the noiseless function f, and not of an observation y.

        Returns
        -------
        dist : PredictiveDistribution
            Of shape ``(n_samples,)`` or ``(n_samples, n_outputs)``, in the units of ``y``. It holds two numbers for
            each sample or quadrature point of each row; methods below that reduce them take any number of rows.

        See Also
        --------
        predict_quantiles, predict_interval, sample_y : What it offers, in bounded memory.
        skdgp.metrics : Scores of it, and scorers for searches.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
        >>> dist = model.predict_dist(X)
        >>> dist.shape, dist.cdf(y).shape
        ((60,), (60,))
        >>> bool((dist.std > model.predict_dist(X, latent=True).std).all())
        True
        """
        check_is_fitted(self)
        return self._distribution(check_query(self, X), latent)

    @threads_for()
    def predict_quantiles(self, X, quantiles, latent=False):
        """Quantiles of every row's predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in [0, 1]; 0.5 is the median.
        latent : bool, default=False
            Whether of the noiseless function f, and not of an observation y.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_outputs, n_quantiles)
            In the units of ``y``. Without the last axis where ``quantiles`` is a float.

        Raises
        ------
        ValueError
            If quantiles are not between 0 and 1, or have more than one axis.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
        >>> model.predict_quantiles(X, [0.1, 0.5, 0.9]).shape, model.predict_quantiles(X, 0.5).shape
        ((60, 3), (60,))
        """
        check_is_fitted(self)
        X = check_query(self, X)
        levels = np.asarray(quantiles, dtype=np.float64)
        if levels.ndim > 1:
            raise ValueError(f"quantiles must be a number or a list of numbers, got an array of shape {levels.shape}.")
        found = self._empty(len(X), *levels.shape)
        for rows, dist in self._distributions(X, latent):
            values = dist.ppf(levels.reshape(*levels.shape, *(1 for _ in dist.shape)))  # ([k,] n, [P])
            found[rows] = np.moveaxis(values, 0, -1) if levels.ndim else values
        return found

    def predict_interval(self, X, confidence_level=0.9, latent=False):
        """Central interval of every row's predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.
        confidence_level : float, default=0.9
            Probability of the interval, between 0 and 1.
        latent : bool, default=False
            Whether of the noiseless function f, and not of an observation y.

        Returns
        -------
        ndarray of shape (n_samples, 2) or (n_samples, n_outputs, 2)
            Lower and upper ends, in the units of ``y``.

        Raises
        ------
        ValueError
            If ``confidence_level`` is not between 0 and 1.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
        >>> lower, upper = model.predict_interval(X, 0.9).T
        >>> lower.shape, upper.shape
        ((60,), (60,))
        """
        return self.predict_quantiles(X, central_levels(confidence_level), latent)

    def sample_y(self, X, n_samples=1, random_state=None, latent=False):
        """Draw functions from the posterior, and observations of them.

        A draw is a function: its values at neighbouring rows are near each other, at equal rows they are equal. Noise
        of observations is added to it, independent between rows. The same ``random_state`` gives the same functions
        whatever rows are asked for. A row with missing cells is drawn for itself.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Query points, in the units of ``fit``.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=None
            Source of randomness.
        latent : bool, default=False
            Whether to draw the noiseless function f, and not observations y.

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            In the units of ``y``.

        Raises
        ------
        ValueError
            If ``n_samples`` is no integer of at least 1.

        See Also
        --------
        sample_functions : Functions to keep, with gradients.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
        >>> model.sample_y(X, n_samples=10, random_state=0).shape
        (60, 10)
        """
        check_is_fitted(self)
        rng = check_random_state(random_state)
        functions = _functions.FunctionDraws(self, _functions.draw_seeds("n_samples", n_samples, rng))
        values = functions(X) if latent else functions.observations(X, rng)
        queries = check_query(self, X)
        incomplete = np.isnan(queries).any(axis=1)
        if incomplete.any():
            dist = self._distribution(queries[incomplete], latent)
            values[incomplete] = np.moveaxis(dist.rvs(n_samples, rng), 0, -1)
        return values

    def _flat(self, values: np.ndarray) -> np.ndarray:
        """Values (n, P, ...) without the axis of outputs where ``y`` had none."""
        return values[:, 0] if self._y_is_flat else values

    def _empty(self, n_rows: int, *trailing: int) -> np.ndarray:
        """Room for values of every row, and of every output if ``y`` had an axis for them."""
        outputs = () if self._y_is_flat else (cast(Regression, self._ensemble.models[0].likelihood).n_targets,)
        return np.empty((n_rows, *outputs, *trailing))

    def _distribution(self, X: np.ndarray, latent: bool = False) -> Mixture:
        """The predictive distribution of all rows."""
        parts = [dist for _, dist in self._distributions(X, latent)]
        return parts[0].concatenate(parts)

    def _distributions(self, X: np.ndarray, latent: bool = False) -> Iterator[tuple[slice, Mixture]]:
        """Predictive distributions of one batch of rows after the other, all members side by side."""
        transformer = getattr(self, "target_transformer_", None)  # not in files of earlier versions

        def mixture(likelihoods, marginals) -> Mixture:
            parts = [
                likelihood.predictive(each.mean, each.variance, each.log_weight, latent=latent)
                for likelihood, each in zip(likelihoods, marginals, strict=True)
            ]
            dist = parts[0].mixture(parts)
            if transformer is not None:
                dist = TransformedDistribution(dist, transformer)
            return dist[:, 0] if self._y_is_flat else dist

        return _shell.predict(self, X, mixture)


class _Pair(tuple):
    """A mean, and how sure it is."""

    __slots__ = ()

    @property
    def ndim(self):
        """What TransformedTargetRegressor asks for, which cannot transform a deviation."""
        raise TypeError(
            "TransformedTargetRegressor transforms means alone, and cannot pass on return_std=True or return_cov=True: "
            "set target_transform of the regressor instead, or use skdgp.metrics.predictive_distribution."
        )


def _mean_response(likelihood: Likelihood, marginals: Marginals) -> Tensor:
    """Means of observations (B, P), in the user's units."""
    return cast(Regression, likelihood).mean_response(marginals.mean, marginals.variance, marginals.log_weight)
