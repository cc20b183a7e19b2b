"""What all regressors share: they take targets in the user's units, and predict in the same units."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from torch import Tensor

from .._sklearn import fit_context
from ..distributions import Mixture, TransformedDistribution, central_levels
from ..gp.censored import Censored
from ..gp.coregional import Incomplete
from ..gp.deep_gp import Marginals
from ..gp.likelihoods import Likelihood, Regression
from ..inference.joint import joint_covariance, mean_gradient, over_copies
from ..inference.leave_one_out import REASONS
from ..inference.threads import threads_for
from ..methods.inducing import Auto
from ..methods.kernels import has_corners
from ..methods.likelihoods import LIKELIHOODS, is_gaussian, kind_of, make_likelihood
from ..methods.options import computing, modelling, parameter, tabular, training
from ..tables.bounds import bounds_of
from ..tables.known import Known
from ..tables.targets import Numbers
from . import _predicting, _training
from ._fitted import built_with, fitted, learnt, query, refuse_trend
from ._functions import FunctionDraws, draw_seeds
from ._knowledge import known_of
from ._parameters import method_of
from ._prior import with_prior
from ._shell import Shell, nameless

#: Number of drawn functions that estimate the deviation of the gradient, where it has no closed form.
GRADIENT_DRAWS = 128


@nameless
@dataclass(eq=False, repr=False)
class DeepGPRegressor(Shell, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """The public face of a regressor. Estimators derive from it and from a method of :mod:`skdgp.methods`."""

    _: KW_ONLY
    likelihood: str | Regression | Callable[[int], Regression] = parameter(modelling.LIKELIHOOD, "gaussian")
    target_transform: Any = parameter(tabular.TARGET_TRANSFORM, None)
    trend: Any = parameter(tabular.TREND, None)
    base: str | None = parameter(training.BASE, "auto")
    n_neighbors: int | Auto = parameter(training.N_NEIGHBORS, "auto")
    validation_fraction: float = parameter(tabular.VALIDATION_FRACTION, 0.1)
    categorical_features: Any = parameter(tabular.CATEGORICAL_FEATURES, "from_dtype")
    normalize_X: bool = parameter(tabular.NORMALIZE_X, True)
    normalize_y: bool = parameter(tabular.NORMALIZE_Y, True)
    device: str = parameter(computing.DEVICE, "auto")
    warm_start: bool = parameter(training.WARM_START, False)
    random_state: int | np.random.RandomState | None = parameter(computing.RANDOM_STATE, None)
    max_time: float | None = parameter(training.MAX_TIME, None)
    verbose: int = parameter(computing.VERBOSE, 0)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        kind = LIKELIHOODS.get(self.likelihood) if isinstance(self.likelihood, str) else None
        logarithm = isinstance(self.target_transform, str) and self.target_transform == "log"
        tags.target_tags.positive_only = logarithm or (kind is not None and kind.positive)
        return tags

    def _kind_of_targets(self) -> Numbers:
        """What kind the targets are of. If outputs share functions, a row may lack some of them."""
        transform = kind_of(self.likelihood).transform or self.target_transform
        return Numbers(transform, is_gaussian(self.likelihood), gaps=self._shares_outputs)

    def _make_likelihood(self, targets: Numbers, n_outputs: int) -> Regression:
        """The likelihood of so many targets. It does not know their units yet."""
        if targets.censored:
            return Censored()
        return Incomplete(n_outputs) if self._shares_outputs else make_likelihood(self.likelihood, n_outputs)

    @property
    def _shares_outputs(self) -> bool:
        """Whether outputs are sums of the same functions."""
        return method_of(self).n_latent_outputs is not None

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X,
        y,
        sample_weight=None,
        X_val=None,
        y_val=None,
        exposure=None,
        exposure_val=None,
        noise_variance=None,
        noise_variance_val=None,
    ):
        """Fit the model to training rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features of the training rows, in any units: an array or a data frame. Cells may be missing (NaN, None, NA),
            but not infinite.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, in any units. A data frame or a structured array whose two columns are named lower and upper (in
            any case) has the bounds of one target in each row: equal bounds are an exact value, and -inf and inf are
            open sides. A structured array of a boolean and a number, as scikit-survival's, has events and times:
            without an event the target is at least the time. Two columns without these names are two targets. See
            :doc:`/targets`.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows. A row of weight 2 counts as if the table contained it twice. So weights
            matter even if they are all the same: large ones make intervals narrower. Rows of weight zero are left out.
        X_val : array-like of shape (n_val, n_features), default=None
            Rows that choose the best epoch, instead of a part of ``X`` and ``y``. They also set the noise, the weight
            of the base, and whether neighbours correct predictions. So the model scores better on them than on new
            rows. ``fit`` uses them even with ``early_stopping=False``.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), default=None
            Targets of ``X_val``: give both or neither.
        exposure : float or array-like of shape (n_samples,), default=None
            For how long, or over how large an area, each row was observed, if ``y`` are counts: with
            ``likelihood="poisson"`` or "negative_binomial". All numbers are positive. The model learns the rate, the
            mean count per unit of exposure. Give predictions the exposure of new rows. See :doc:`/targets`.
        exposure_val : float or array-like of shape (n_val,), default=None
            Exposures of ``X_val``, if there is an ``exposure``.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variance of the noise in each row, in the square of the units of ``y``, if it is known and
            ``likelihood="gaussian"``: as scikit-learn's ``GaussianProcessRegressor(alpha=...)``. It is all noise there
            is; none is learnt besides. With several outputs it is the noise of each of them. With zero the model goes
            through the targets, as far as numerical precision allows. Neighbours do not correct predictions then. See
            :doc:`/targets`.
        noise_variance_val : float or array-like of shape (n_val,), default=None
            The same of ``X_val``, if there is a ``noise_variance``.

        Returns
        -------
        self : object
            The fitted estimator. If fitting fails, the estimator stays as it was before.

        Raises
        ------
        TypeError, ValueError
            If parameters or data are not valid.
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers still become infinite or NaN after the learning rate has been halved ten times.
        KeyboardInterrupt
            If the user interrupts training (Ctrl-C) before the end of its first epoch.

        Warns
        -----
        UserWarning
            If the user interrupts training after its first epoch. The estimator is then fitted, with the best
            parameters so far.
        UserWarning
            If there are fewer distinct rows than the inducing points that you asked for.
        sklearn.exceptions.ConvergenceWarning
            If a linear model predicts the held-out rows clearly better: by more than 0.1 in the mean log density, and
            by more than chance explains. Only tables of a hundred rows or more are checked.

        Examples
        --------
        >>> from skdgp import AVDGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(100, random_state=0)
        >>> model = AVDGPRegressor(max_iter=2, n_estimators=1, random_state=0)
        >>> model.fit(
        ...     X[:80], y[:80], X_val=X[80:], y_val=y[80:]
        ... ).validation_scores_.shape
        (2,)
        """
        known = {"exposure": exposure, "noise_variance": noise_variance}
        known_val = {"exposure": exposure_val, "noise_variance": noise_variance_val}
        return _training.fit(self, X, y, sample_weight, X_val, y_val, known=known, known_val=known_val)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, sample_weight=None, total_size=None, exposure=None, noise_variance=None):
        """Learn from one chunk of rows. Call it again with the next chunk.

        The first chunk decides how features and targets are scaled and where inducing points start. So the first chunk
        should be a random sample of the data, of a few thousand rows. Each row should come once, since a chunk judges
        the model before the model learns from it. The learning rate climbs in the first hundred steps and then falls
        slowly. Predictions come from an average of the parameters in recent steps. Of the first chunk each member holds
        out ``validation_fraction`` of the rows, at most 5000, and none of fewer than 20. They calibrate the noise, and
        are replayed later. Each later chunk calibrates the noise before the model learns from it. ``early_stopping``
        has no effect.

        Predictions are blended with a base if ``base`` is not None, and if the likelihood is neither "heteroskedastic"
        nor one of counts, positive numbers or shares. The base learns from each chunk in closed form. Held-out rows of
        the first chunk, and every later chunk, decide its weight, ``base_weight_``. A later chunk of fewer than 50 rows
        cannot, and members predict alone after it. There is no correction by neighbours. See :doc:`/scale`.

        Over each chunk there are as many passes as ``fit`` would take for ``total_size`` rows, but at most ten, and at
        most ``max_iter``. A small chunk would be too few steps even so. So the estimator keeps a random sample of up to
        4000 earlier rows, and learns from some of these again with each small chunk. If it is more work than the passes
        above, the first chunk is as much work as up to 25 passes over it, but no more than 100 000 rows. A later chunk
        is as much work as up to 25 passes over it, but no more than 10 000 rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features of the rows, in any units: an array or a data frame. Cells may be missing, but not infinite.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, in any units.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows. A row of weight 2 counts as if it came twice, among the rows of all
            chunks.
        total_size : int, default=None
            Number of rows of all chunks together. It decides how much the penalty on the inducing variables counts
            beside the rows. Without it the number of rows seen so far takes its place.
        exposure : float or array-like of shape (n_samples,), default=None
            Exposures of the rows, if ``y`` are counts; see ``fit``. All chunks have them, or none has.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of the noise of the rows, if they are known; see ``fit``. All chunks have them, or none has. The
            mean of the first chunk is what predictions have by default.

        Returns
        -------
        self : object
            The fitted estimator, without ``lower_bound_``. If learning fails, the estimator stays as it was before.

        Raises
        ------
        TypeError, ValueError
            If ``total_size`` is less than the number of rows in the chunk; if the data are not valid; or if a parameter
            that shapes the model has changed since the first chunk.
        numpy.linalg.LinAlgError, FloatingPointError
            If numbers still become infinite or NaN after the learning rate has been halved ten times.

        Warns
        -----
        UserWarning
            If the first chunk has fewer distinct rows than the inducing points that you asked for, or if a parameter
            has changed that later chunks do not follow, such as ``n_estimators``.

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
        known = {"exposure": exposure, "noise_variance": noise_variance}
        return _training.learn(self, X, y, sample_weight, total_size, known=known)

    @fit_context(prefer_skip_nested_validation=True)
    def update(self, X, y, sample_weight=None, noise_variance=None):
        """Learn from new rows without training, in a moment. Hyperparameters stay as they are.

        A posterior that has a closed form learns from the new rows as if they had been among the rows of ``fit``:

        * the base, if the noise is Gaussian or Student's t;
        * the posterior of the last layer, if the noise is Gaussian and layers have inducing points that rows share. So
          it does for SOLVEGPRegressor, exactly, and for DSDGPRegressor, where hidden layers stay as they are. It does
          not for AVDGPRegressor, whose members stay as they are. But a member that learns densities sees what base
          and neighbours then know;
        * the neighbours, which new rows join.

        New rows that the inducing points of the base, or of a SOLVEGPRegressor, do not explain become inducing points,
        as long as a layer has no more than 2000. Call ``fit`` again with all rows from time to time, so that
        hyperparameters learn, too.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features of the new rows, with the columns of ``fit``.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of their noise, if ``fit`` has had those of its rows.

        Returns
        -------
        self : object
            The estimator, which has also learnt from the new rows, without ``lower_bound_``. If that fails, it stays
            as it was before.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        TypeError, ValueError
            If no part of the model can learn in this way; if the data are not valid; or if a parameter that shapes the
            model has changed since ``fit``.
        numpy.linalg.LinAlgError
            If a covariance matrix has no Cholesky factor.

        References
        ----------
        Bui, T. D., Nguyen, C. V. and Turner, R. E., "Streaming sparse Gaussian process approximations", NeurIPS 2017.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(100, random_state=0)
        >>> model = SOLVEGPRegressor(max_iter=5, random_state=0).fit(X[:80], y[:80])
        >>> before = model.predict_dist(X[80:]).logpdf(y[80:]).mean()
        >>> after = (
        ...     model.update(X[80:], y[80:]).predict_dist(X[80:]).logpdf(y[80:]).mean()
        ... )
        >>> bool(after > before)
        True
        """
        return _training.condition(self, X, y, sample_weight, known={"noise_variance": noise_variance})

    @property
    def noise_variance_(self):
        """Variance of the observation noise, mean over members: a float, or an array of shape (n_outputs,).

        It is in the square of the units of ``y``, or of the transformed targets if there is a ``target_transform``. If
        the noise depends on the row, there is an AttributeError.
        """
        if not fitted(self).likelihoods[0].additive:
            raise AttributeError(
                f"likelihood={built_with(self, 'likelihood')!r} has no noise_variance_, since its noise depends on the "
                "row: compare predict_dist(X).var with predict_dist(X, latent=True).var."
            )
        return self._per_output(self._mean_noise_variance())

    @property
    def neighbors_(self):
        """The correction by nearest rows, as a dictionary. None if predictions are not corrected."""
        correction = fitted(self).main.correction
        if correction is None:
            return None
        local, likelihood, table = correction.local, correction.likelihood, learnt(self).table
        scale = np.square(likelihood.units.scale)
        first = table.encoding.first_of_groups  # the columns of a group share a lengthscale
        return {
            "n_neighbors": local.n_neighbors,
            "length_scales": local.lengthscale.cpu().numpy()[first] * table.group_units.scale,
            "variance": self._per_output(local.variance.cpu().numpy() * scale),
            "noise_variance": self._per_output(local.noise.cpu().numpy() * scale),
            "wide_noise_variance": self._per_output(likelihood.wide.cpu().numpy() * scale),
            "wide_noise_share": likelihood.share.item(),
            "gain": correction.gain,
            "standard_error": correction.error,
        }

    def _mean_noise_variance(self) -> np.ndarray:
        """Noise variance of each output (P,), in the square of the user's units."""
        predictor = fitted(self)
        variances = [likelihood.noise_variance() for likelihood in predictor.likelihoods]
        return np.average(variances, axis=0, weights=predictor.weights)

    @threads_for()
    def predict(self, X, return_std=False, return_cov=False, latent=False, exposure=None, noise_variance=None):
        """Predict the mean of each row and, if you ask for it, standard deviations or covariances.

        The predictive distribution of a row is a mixture over the members of the ensemble and their samples or
        quadrature points.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.
        return_std : bool, default=False
            Whether to return standard deviations.
        return_cov : bool, default=False
            Whether to return the joint covariance of all rows.
        latent : bool, default=False
            Whether deviations and covariances are those of the noiseless function f, instead of observations y.
        exposure : float or array-like of shape (n_samples,), default=None
            Exposures of the rows, if the model has learnt from counts with exposures. One by default: then
            ``y_mean`` is the rate.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of the noise of the rows, if ``fit`` has had those of its rows. Their mean by default.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictive mean, in the units of ``y``.
        y_std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictive standard deviation, in the units of ``y``. Only with ``return_std``.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            Covariance of the rows, in the square of the units of ``y``. Only with ``return_cov``. It has a closed form
            for a single layer, and for at most 32 quadrature points in all members together. Otherwise correlations are
            averages over about thirty components; see :doc:`/functions`.

        Raises
        ------
        ValueError
            If both ``return_std`` and ``return_cov`` are set, or if ``return_cov`` is set and targets are transformed.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(
        ...     n_inducing=5, max_iter=2, n_estimators=1, random_state=0
        ... ).fit(X, y)
        >>> mean, std = model.predict(X[:3], return_std=True)
        >>> mean.shape, std.shape
        ((3,), (3,))
        >>> mean, cov = model.predict(X[:3], return_cov=True)
        >>> bool((abs(cov.diagonal() - std**2) < 1e-6).all())
        True
        """
        if return_std and return_cov:
            raise ValueError("At most one of return_std and return_cov can be True, got both: choose one.")
        X, known = self._query(X, exposure, noise_variance)
        mean, std = self._empty(len(X)), self._empty(len(X))
        for rows, dist in self._distributions(X, latent, known):
            mean[rows] = dist.mean
            if return_std:
                std[rows] = dist.std
        if return_cov:
            return _Pair((mean, self._covariance(X, latent, known)))
        return _Pair((mean, std)) if return_std else mean

    def _covariance(self, X: np.ndarray, latent: bool, known: Known) -> np.ndarray:
        """Joint covariances (n, n) or (n, n, P) of rows, in the square of the user's units."""
        self._refuse_transform("return_cov=True", "sample_y(X, 1000) has draws, whose covariance is the one wanted")
        rows, row = _predicting.drawn_rows(learnt(self).table, X)
        covariance = over_copies(joint_covariance(fitted(self), rows), row, self._variance(X, latent=True))
        size = fitted(self).likelihoods[0].sizes(known)
        covariance = covariance * size * size.T
        if not latent:
            index = np.arange(len(X))
            covariance[:, index, index] = self._variance(X, latent=False, known=known).T
        return covariance[0] if self._is_flat else np.moveaxis(covariance, 0, -1)

    def _variance(self, X: np.ndarray, latent: bool, known: Known | None = None) -> np.ndarray:
        """Predictive variances (n, P), in the square of the user's units."""
        return np.concatenate([dist.var for _, dist in self._distributions(X, latent, known)]).reshape(len(X), -1)

    @threads_for()
    def predict_output_cov(self, X, latent=False, noise_variance=None):
        """Covariances between the outputs of each row.

        With ``n_latent_outputs`` outputs share functions, and are therefore correlated. Otherwise correlations come
        only from the members of the ensemble and, in deep models, from the hidden layers.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.
        latent : bool, default=False
            Whether covariances are those of the noiseless function f, instead of observations y.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of the noise of the rows, if ``fit`` has had those of its rows. Their mean by default.

        Returns
        -------
        cov : ndarray of shape (n_samples, n_outputs, n_outputs)
            Each entry is in the product of the units of its two outputs. The diagonal holds predictive variances.

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
        >>> model = SOLVEGPRegressor(
        ...     8, 0, n_latent_outputs=1, max_iter=40, random_state=0
        ... ).fit(X, y)
        >>> bool((model.predict_output_cov(X, latent=True)[:, 0, 1] < 0).all())
        True
        """
        X, known = self._query(X, None, noise_variance)
        self._refuse_transform("predict_output_cov", "sample_y(X, 1000) has draws, whose covariance is the one wanted")
        likelihood = fitted(self).likelihoods[0]
        if not likelihood.additive:
            raise ValueError(
                f"predict_output_cov needs noise that is added, but likelihood={built_with(self, 'likelihood')!r}: "
                "sample_y(X, 1000) has draws, whose covariance is the one wanted."
            )
        scale = np.asarray(likelihood.units.scale)
        variance = self._variance(X, latent=True)
        covariance = _predicting.output_covariance(learnt(self), X, variance / scale**2) * scale[:, None] * scale
        if latent:
            return covariance
        noise = self._variance(X, latent=False, known=known) - variance
        return covariance + noise[..., None] * np.eye(len(scale))

    def _refuse_transform(self, what: str, instead: str) -> None:
        """ValueError if targets are transformed: ``what`` has no formula for them."""
        transform = learnt(self).table.targets.target_transform
        if transform is not None:
            raise ValueError(f"{what} has no formula with target_transform={transform!r}: {instead}.")

    @threads_for()
    def predict_gradient(self, X, return_std=False):
        """Gradient of the predictive mean with respect to the features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows at which to compute the gradient, in the units of ``fit``.
        return_std : bool, default=False
            Whether to return standard deviations of the gradient of f as well.

        Returns
        -------
        gradient : ndarray of shape (n_samples, n_features) or (n_samples, n_outputs, n_features)
            In the units of ``y`` per unit of each feature. NaN for categories, and for missing cells of ``X``.
        std : ndarray of the same shape
            In the same units. Only with ``return_std``. It has a closed form for a model of one layer whose inducing
            variables all rows share, if it predicts without a base and without a correction by neighbours. Otherwise
            it is the deviation over 128 drawn functions, which has an error of about 6 %; see :doc:`/functions`.

        Raises
        ------
        ValueError
            If targets are transformed; if there is a ``trend``; or if ``return_std`` is set and a kernel is
            "matern12" or ``Matern(nu=0.5)``, whose functions have no derivative.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(n_inducing=10, max_iter=20, random_state=0).fit(
        ...     X, y
        ... )
        >>> gradient, std = model.predict_gradient(X[:3], return_std=True)
        >>> gradient.shape, std.shape
        ((3, 1), (3, 1))
        """
        queries = query(self, X)
        if return_std and has_corners(self.module_[0]):
            raise ValueError(
                f"kernel={built_with(self, 'kernel')!r} has functions without derivatives, so that gradients have no "
                "deviation: choose 'matern32', 'matern52', 'rbf' or a Matern with a larger nu, or leave return_std out."
            )
        self._refuse_transform("predict_gradient", "sample_functions(1000).gradient(X) has those of functions")
        refuse_trend(self, "predict_gradient")
        table = learnt(self).table
        rows = table.prepared(queries)
        likelihood = fitted(self).models[0].likelihood
        scale = likelihood.units.scale if return_std and likelihood.additive else None
        gradient, variance = mean_gradient(fitted(self), rows, _mean_response, scale)
        gradient = table.flattened(table.by_feature(gradient, queries))
        if not return_std:
            return gradient
        if variance is not None:
            return gradient, table.flattened(table.by_feature(np.sqrt(variance), queries))
        seeds = draw_seeds("n_functions", GRADIENT_DRAWS, np.random.RandomState(0))
        return gradient, FunctionDraws(self, seeds).gradient(X).std(axis=-1)

    @threads_for()
    def predict_dist(self, X, latent=False, exposure=None, noise_variance=None):
        """Predictive distribution of every row, with density, quantiles, draws and scores.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.
        latent : bool, default=False
            Whether the distribution is that of the noiseless function f, instead of an observation y. Of counts it is
            that of the mean count.
        exposure : float or array-like of shape (n_samples,), default=None
            Exposures of the rows, if the model has learnt from counts with exposures. One by default: then a count
            is that of one unit of exposure.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of the noise of the rows, if ``fit`` has had those of its rows. Their mean by default.

        Returns
        -------
        dist : PredictiveDistribution
            Of shape ``(n_samples,)`` or ``(n_samples, n_outputs)``, in the units of ``y``. Counts have a
            ``CountDistribution``, "gamma" has a ``GammaDistribution``, and "ordinal" a ``GradeDistribution``.
            Transformed targets have a ``TransformedDistribution``, and "beta" has a ``FamilyDistribution``, as has a
            likelihood of your own that derives from ``Pointwise``. All of them have the same methods. For each row they
            store at least two numbers for each sample or quadrature point of each member, with "student_t" 48 times as
            many, and with "heteroskedastic" 10 times as many. For very many rows the methods under "See Also" need less
            memory.

        See Also
        --------
        predict_quantiles, predict_interval, sample_y : The same for any number of rows, in bounded memory.
        skdgp.metrics : Scores of distributions, and scorers for searches.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(
        ...     n_inducing=5, max_iter=2, n_estimators=1, random_state=0
        ... ).fit(X, y)
        >>> dist = model.predict_dist(X)
        >>> dist.shape, dist.cdf(y).shape
        ((60,), (60,))
        >>> bool((dist.std > model.predict_dist(X, latent=True).std).all())
        True
        """
        X, known = self._query(X, exposure, noise_variance)
        batches = [dist for _, dist in self._distributions(X, latent, known)]
        return batches[0].concatenate(batches)

    @threads_for()
    def leave_one_out(self, latent=False, noise_variance=None):
        """Predictive distribution of every training row, as if the model had not learnt from it.

        With these you can score a model, check its intervals and look for outliers without holding rows out. They need
        posteriors in closed form, which :class:`~skdgp.SOLVEGPRegressor` has with Gaussian noise. ``fit`` keeps them
        for up to 5000 rows. Kernel, noise, inducing points, the weight of the base and the neighbours' residuals stay
        as all rows together have determined them. So the distributions are a little too good where there are few rows.

        Parameters
        ----------
        latent : bool, default=False
            Whether the distribution is that of the noiseless function f, instead of an observation y.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of the noise of the rows of ``fit``, if ``fit`` has had different ones. Without ``latent`` they
            are needed then, since the estimator does not keep them.

        Returns
        -------
        dist : PredictiveDistribution
            Of shape ``(n_samples,)`` or ``(n_samples, n_outputs)``, in the order of the rows of ``fit`` and in the
            units of ``y``. It is of the kind that :meth:`predict_dist` returns. Rows of weight zero are among the rows.

        Raises
        ------
        ValueError
            If there is no closed form: after ``partial_fit``, with members that learn by minibatches, with one that
            learns densities (``objective``), for more rows, or with missing cells in ``X``. If ``noise_variance`` is
            needed and missing.

        See Also
        --------
        predict_dist : Predictive distributions of any rows.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> from skdgp.metrics import crps
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(20, 0, random_state=0).fit(X, y)
        >>> dist = model.leave_one_out()
        >>> dist.shape
        (60,)
        >>> crps(y, dist) > crps(y, model.predict_dist(X))
        True
        """
        left_out = learnt(self).ensemble.left_out
        if isinstance(left_out, str):
            raise ValueError(f"leave_one_out has no answer for this fit, since {REASONS[left_out]}.")
        predictor, n_rows = fitted(self), left_out.mean.shape[1]
        known = known_of(self, n_rows, {"noise_variance": noise_variance})
        if not latent and not known and predictor.models[0].likelihood.noise_differs:
            raise ValueError(
                "leave_one_out needs the noise_variance of the rows of fit, which differ: pass it again, or set "
                "latent=True."
            )
        if len(left_out.lacking):
            known["lacking"] = left_out.lacking.numpy()
        likelihoods = [likelihood.at(known) for likelihood in predictor.likelihoods]
        return self._mixture(likelihoods, left_out.marginals(predictor.device), latent=latent)

    @threads_for()
    def predict_quantiles(self, X, quantiles, latent=False, exposure=None, noise_variance=None):
        """Quantiles of every row's predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.
        quantiles : float or array-like of shape (n_quantiles,)
            Probabilities in [0, 1]; 0.5 is the median.
        latent : bool, default=False
            Whether quantiles are those of the noiseless function f, instead of an observation y.
        exposure : float or array-like of shape (n_samples,), default=None
            Exposures of the rows, if the model has learnt from counts with exposures. One by default: then a count
            is that of one unit of exposure.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of the noise of the rows, if ``fit`` has had those of its rows. Their mean by default.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_outputs, n_quantiles)
            Quantiles in the units of ``y``. The last axis is missing if ``quantiles`` is a float.

        Raises
        ------
        ValueError
            If ``quantiles`` are not between 0 and 1, or have more than one axis.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(
        ...     n_inducing=5, max_iter=2, n_estimators=1, random_state=0
        ... ).fit(X, y)
        >>> (
        ...     model.predict_quantiles(X, [0.1, 0.5, 0.9]).shape,
        ...     model.predict_quantiles(X, 0.5).shape,
        ... )
        ((60, 3), (60,))
        """
        X, known = self._query(X, exposure, noise_variance)
        levels = np.asarray(quantiles, dtype=np.float64)
        if levels.ndim > 1:
            raise ValueError(f"quantiles must be a number or a list of numbers, got an array of shape {levels.shape}.")
        values = self._empty(len(X), *levels.shape)
        for rows, dist in self._distributions(X, latent, known):
            batch = dist.ppf(levels.reshape(*levels.shape, *(1 for _ in dist.shape)))  # ([k,] n, [P])
            values[rows] = np.moveaxis(batch, 0, -1) if levels.ndim else batch
        return values

    def predict_interval(self, X, confidence_level=0.9, latent=False, exposure=None, noise_variance=None):
        """Central interval of every row's predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.
        confidence_level : float, default=0.9
            Probability of the interval, between 0 and 1.
        latent : bool, default=False
            Whether intervals are those of the noiseless function f, instead of an observation y.
        exposure : float or array-like of shape (n_samples,), default=None
            Exposures of the rows, if the model has learnt from counts with exposures. One by default: then a count
            is that of one unit of exposure.
        noise_variance : float or array-like of shape (n_samples,), default=None
            Variances of the noise of the rows, if ``fit`` has had those of its rows. Their mean by default.

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
        >>> model = SOLVEGPRegressor(
        ...     n_inducing=5, max_iter=2, n_estimators=1, random_state=0
        ... ).fit(X, y)
        >>> lower, upper = model.predict_interval(X, 0.9).T
        >>> lower.shape, upper.shape
        ((60,), (60,))
        """
        return self.predict_quantiles(X, central_levels(confidence_level), latent, exposure, noise_variance)

    def sample_y(self, X, n_samples=1, random_state=None, latent=False, exposure=None, noise_variance=None):
        """Draw functions from the posterior, and observations of them. Before ``fit``, draw from the prior.

        Each draw is one function: its values at neighbouring rows are close to each other, and its values at equal rows
        are equal. Observation noise is then added, independently for each row. The same ``random_state`` gives the same
        functions, whatever the rows in ``X`` are. Missing cells are drawn for each row and each function.

        Before ``fit``, kernels and noise are those that you gave, or those that training of a member starts from. There
        are no units yet, and a single output. Features count as they are, as with ``normalize_X=False``: standardise
        them for kernels by name, whose lengthscales suit standardised features. Functions have mean zero and the
        variance of the last layer's kernel, which is one for a kernel by name. As targets they are what the likelihood
        makes of them: exp(f) for counts and positive numbers, 1/(1 + exp(−f)) for shares. The rows in ``X`` say which
        levels categories have, at which date days begin, and what a missing cell may be.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Rows at which to draw, in the units of ``fit``.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=None
            Source of randomness.
        latent : bool, default=False
            Whether to draw the noiseless function f, instead of observations y.
        exposure : float or array-like of shape (n_samples_X,), default=None
            Exposures of the rows, if the model has learnt from counts with exposures, or has not learnt yet. One by
            default: then a count is that of one unit of exposure.
        noise_variance : float or array-like of shape (n_samples_X,), default=None
            Variances of the noise of the rows, if ``fit`` has had those of its rows, or there was no fit yet. Their
            mean by default.

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            In the units of ``y``.

        Raises
        ------
        ValueError
            If ``n_samples`` is not an integer of at least 1.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted, and targets decide what the prior is: with ``trend``, ``n_latent_outputs``,
            ``likelihood="ordinal"`` or one of your own, a category of more than 128 levels, or a ``target_transform``
            other than "log" with Gaussian noise.

        See Also
        --------
        sample_functions : Draws functions that you can keep, and that have gradients.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(
        ...     n_inducing=5, max_iter=2, n_estimators=1, random_state=0
        ... ).fit(X, y)
        >>> model.sample_y(X, n_samples=10, random_state=0).shape
        (60, 10)
        >>> SOLVEGPRegressor().sample_y(
        ...     X, n_samples=10, random_state=0
        ... ).shape  # of the prior
        (60, 10)
        """
        rng = check_random_state(random_state)
        seeds, estimator = draw_seeds("n_samples", n_samples, rng), self
        if "_learnt" not in vars(self):
            estimator = with_prior(self, X, {"exposure": exposure, "noise_variance": noise_variance})
        X, known = estimator._query(X, exposure, noise_variance)
        return FunctionDraws(estimator, seeds)._sampled(X, rng, latent, known)

    def score(self, X, y, sample_weight=None, exposure=None):
        """Coefficient of determination R² of the predictions.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to predict, in the units of ``fit``.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets. Bounds must be exact; see :meth:`fit`.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.
        exposure : float or array-like of shape (n_samples,), default=None
            Exposures of the rows, if the model has learnt from counts with exposures.

        Returns
        -------
        float
            1 − (sum of squared errors)/(sum of squared deviations from the mean), averaged over outputs.

        Raises
        ------
        ValueError
            If some targets are intervals, for which there is no R².

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> SOLVEGPRegressor(n_inducing=10, max_iter=20, random_state=0).fit(
        ...     X, y
        ... ).score(X, y) > 0.5
        True
        """
        from sklearn.metrics import r2_score  # brings modules that fits do not need

        bounds = bounds_of(y)
        if bounds is not None and (bounds[:, 0] < bounds[:, 1]).any():
            raise ValueError(
                "score is R², which needs exact targets, and y has intervals: take log_density_scorer of "
                "skdgp.metrics, also as scoring of a search, or concordance_index."
            )
        return r2_score(
            y if bounds is None else bounds[:, 0], self.predict(X, exposure=exposure), sample_weight=sample_weight
        )

    @property
    def _is_flat(self) -> bool:
        """Whether ``y`` had no axis of outputs."""
        return learnt(self).table.targets.flat

    def _per_output(self, values: np.ndarray) -> np.ndarray | float:
        """Numbers (P,) of all outputs, or a single number if ``y`` had no axis of outputs."""
        return float(values[0]) if self._is_flat else values

    def _empty(self, n_rows: int, *trailing: int) -> np.ndarray:
        """An empty array for values of every row, and of every output if ``y`` had an axis for them."""
        outputs = () if self._is_flat else (fitted(self).models[0].likelihood.n_targets,)
        return np.empty((n_rows, *outputs, *trailing))

    def _means(self, X: np.ndarray) -> np.ndarray:
        """Means (n, P) of the noiseless function at checked rows, in the user's units."""
        return np.concatenate([dist.mean for _, dist in self._distributions(X, latent=True)]).reshape(len(X), -1)

    def _query(self, X, exposure, noise_variance) -> tuple[np.ndarray, Known]:
        """Rows to predict, checked, and what the user knows of them."""
        X = query(self, X)
        return X, known_of(self, len(X), {"exposure": exposure, "noise_variance": noise_variance})

    def _distributions(
        self, X: np.ndarray, latent: bool, known: Known | None = None
    ) -> Iterator[tuple[slice, Mixture]]:
        """Predictive distributions of one batch of rows after another, with the components of all members."""
        mixture = partial(self._mixture, latent=latent)
        return _predicting.predict(learnt(self), X, mixture, exact=self.dtype == "float64", known=known)

    def _mixture(self, likelihoods: Sequence[Likelihood], marginals: Sequence[Marginals], *, latent: bool) -> Mixture:
        """The predictive distribution of some rows, from the function values of all members."""
        members = [
            likelihood.predictive(member.mean, member.variance, member.log_weight, latent=latent)
            for likelihood, member in zip(likelihoods, marginals, strict=True)
        ]
        of_fit = learnt(self)
        dist, targets = members[0].mixture(members, of_fit.predictor.weights), of_fit.table.targets
        if targets.transformer is not None:
            dist = TransformedDistribution(dist, targets.transformer)
        return dist[:, 0] if targets.flat else dist


class _Pair(tuple):
    """A mean, with its deviation or covariance."""

    __slots__ = ()

    @property
    def ndim(self):
        """TransformedTargetRegressor asks for it, but cannot transform a deviation."""
        raise TypeError(
            "TransformedTargetRegressor transforms means alone, and cannot pass on return_std=True or return_cov=True: "
            "set target_transform of the regressor instead, or use skdgp.metrics.predictive_distribution."
        )


def _mean_response(likelihood: Likelihood, marginals: Marginals) -> Tensor:
    """Means of observations (B, P), in the user's units."""
    return likelihood.mean_response(marginals.mean, marginals.variance, marginals.log_weight)
