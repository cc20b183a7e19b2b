"""What all regressors share: scaled targets in; means, deviations and samples in the user's units out."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..gp.deep_gp import Marginals
from ..gp.likelihoods import Gaussian, Likelihood
from ..inference.calibration import recalibrate_noise
from ..inference.steps import Batch
from ._base import make_scaler, overflowing
from ._predictive import PredictiveDistribution, central_levels

#: Noise variance that training starts from, in units of the targets' variance.
INITIAL_NOISE = 0.05

#: Smallest noise variance in the same units.
NOISE_FLOOR = 1e-6


class DeepGPRegressor(MultiOutputMixin, RegressorMixin):
    """Regression with a Gaussian likelihood; a mixin for estimators that derive from BaseDeepGP."""

    module_: Any

    def _check_targets(self, y: np.ndarray) -> None:
        self._y_is_flat = y.ndim == 1
        columns = _columns(y)
        self._target_scaler = make_scaler(columns, normalize=self.normalize_y)
        if overflowing(self._target_scaler, self._target_scaler.transform(columns)).any():
            raise ValueError(
                f"y overflows when it is standardised: its values reach {np.abs(y).max():.1e}. "
                "Rescale y, for instance to its logarithm."
            )

    def _encode_targets(self, y: np.ndarray) -> np.ndarray:
        columns = _columns(y)
        n_outputs = self._target_scaler.n_features_in_
        if columns.shape[1] != n_outputs:
            raise ValueError(f"y has {columns.shape[1]} outputs, but the model was given {n_outputs}: match them.")
        return self._target_scaler.transform(columns)

    def _make_likelihood(self, y: Tensor) -> Likelihood:
        floor = [max(NOISE_FLOOR, _rounding_variance(column)) for column in y.T.numpy()]
        return Gaussian(y.shape[1], variance=INITIAL_NOISE, floor=torch.tensor(floor))

    def _recalibrate(self, judges: Sequence[Batch], batch_size: int) -> None:
        recalibrate_noise(self.module_, judges, batch_size)

    def _learn_from_chunk(self, data: Batch, total_size: int | None, *, fresh: bool) -> None:
        """The same, with the noise that makes rows likeliest before they are learnt from."""
        if fresh:
            return super()._learn_from_chunk(data, total_size, fresh=fresh)
        self.module_ = deepcopy(self.module_)  # should learning fail, it stays what it was
        self._recalibrate([data] * len(self.module_), len(data))
        calibrated = [member.likelihood.log_excess for member in self.module_]
        super()._learn_from_chunk(data, total_size, fresh=fresh)
        for member, log_excess in zip(self.module_, calibrated, strict=True):
            member.likelihood.log_excess = log_excess

    def _log_jacobian(self) -> float:
        return -float(np.log(_scale_and_shift(self._target_scaler)[0]).sum())

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, sample_weight=None, total_size=None):
        """Learn from a chunk of rows of which more will come, in one pass of minibatches.

        The first chunk decides how features and targets are scaled and where inducing points start: let it be a
        random sample of the data, of a few thousand rows. Chunks may come again, for more passes. The learning
        rate climbs in the first hundred steps and falls slowly from then on; predictions come from an average of the
        parameters of recent steps. The noise is calibrated on every chunk before the chunk is learnt from. No rows are
        held out, and ``max_iter`` and ``early_stopping`` play no part.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs, dense and finite, in any units.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets, in any units.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the rows' likelihood terms. They count as they are: a row of
            weight 1 is a row, whatever others of its chunk weigh.
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
        self._learn_chunk(X, y, sample_weight, total_size)
        return self

    @property
    def noise_variance_(self):
        """Variance of the observation noise in the user's units, mean over members: float, or of shape (n_outputs,)."""
        check_is_fitted(self)
        scale, _ = _scale_and_shift(self._target_scaler)
        standardised = np.mean([member.likelihood.variance.cpu().numpy() for member in self.module_], axis=0)
        variance = standardised * scale**2
        return float(variance[0]) if self._y_is_flat else variance

    def predict(self, X, return_std=False, return_cov=False):
        """Predict with the mixture over samples or quadrature points.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Query points, in the units of ``fit``.
        return_std : bool, default=False
            Whether to return the standard deviation of an observation, noise included.
        return_cov : bool, default=False
            Whether to return the covariance of observations, noise included. Rows are correlated
            through the samples or quadrature points that they share.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictive mean, in the units of ``y``.
        y_std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In the same units. Only with ``return_std``.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            In their square. Only with ``return_cov``.

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
        >>> cov.shape
        (3, 3)
        """
        if return_std and return_cov:
            raise ValueError("At most one of return_std and return_cov can be True, got both: choose one.")
        X = self._check_query(X)
        if return_cov:
            dist = self.predict_dist(X)
            return dist.mean, _covariance(dist)
        mean, std = self._empty(len(X)), self._empty(len(X))
        for rows, dist in self._distributions(X):
            mean[rows] = dist.mean
            if return_std:
                std[rows] = dist.std
        return (mean, std) if return_std else mean

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
        return PredictiveDistribution.concatenate(
            [dist for _, dist in self._distributions(self._check_query(X), latent)]
        )

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
        X = self._check_query(X)
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
        """Draw from the predictive distribution.

        A draw picks one sample or quadrature point for all rows, so that it is as smooth in ``X`` as
        the model is, and adds every row's own Gaussian uncertainty.

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
            If ``n_samples`` is less than 1.

        Examples
        --------
        >>> from skdgp import SOLVEGPRegressor
        >>> from skdgp.datasets import make_waves
        >>> X, y = make_waves(60, random_state=0)
        >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
        >>> model.sample_y(X, n_samples=10, random_state=0).shape
        (60, 10)
        """
        X = self._check_query(X)
        if n_samples < 1:
            raise ValueError(f"n_samples={n_samples} must be at least 1.")
        rng = check_random_state(random_state)
        draws = self._empty(len(X), n_samples)
        components = None
        for rows, dist in self._distributions(X, latent):
            components = dist.draw_components(n_samples, rng) if components is None else components
            draws[rows] = np.moveaxis(dist.draw(components, rng), 0, -1)
        return draws

    def _check_query(self, X) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=[np.float64, np.float32])

    def _empty(self, n_rows: int, *trailing: int) -> np.ndarray:
        """Room for values of every row, and of every output if ``y`` had an axis for them."""
        outputs = () if self._y_is_flat else (self._target_scaler.n_features_in_,)
        return np.empty((n_rows, *outputs, *trailing))

    def _distributions(self, X: np.ndarray, latent: bool = False) -> Iterator[tuple[slice, PredictiveDistribution]]:
        """Predictive distributions of one batch of rows after the other, all members side by side."""
        scale, shift = _scale_and_shift(self._target_scaler)

        def mixture(members: list[Marginals]) -> PredictiveDistribution:
            noise = [torch.zeros(()) if latent else module.likelihood.variance for module in self.module_]
            mean = torch.cat([member.mean for member in members]).double().cpu().numpy()  # (S, B, P)
            variance = torch.cat([m.variance + s for m, s in zip(members, noise, strict=True)]).double().cpu().numpy()
            weight = torch.cat([member.log_weight for member in members]).double().softmax(0).cpu().numpy()
            return PredictiveDistribution(
                self._like_targets(mean * scale + shift), self._like_targets(variance * scale**2), weight
            )

        return self._predict_batches(X, mixture)

    def _like_targets(self, values: np.ndarray) -> np.ndarray:
        """Drop the last axis, of outputs, if ``y`` had none."""
        return values[..., 0] if self._y_is_flat else values


def _covariance(dist: PredictiveDistribution) -> np.ndarray:
    """Covariances (n, n) or (n, n, P) between rows: those of the components' means, plus each row's own."""
    centred = dist.means - dist.mean
    covariance = np.einsum("s,sn...,sm...->nm...", dist.weights, centred, centred)
    index = np.arange(len(dist))
    covariance[index, index] = dist.var
    return covariance


def _columns(y: np.ndarray) -> np.ndarray:
    """Targets (n,) or (n, P) as finite numbers (n, P)."""
    if y.dtype.kind in "mM":
        raise ValueError(f"y holds dates or durations, {y.dtype}: turn them into numbers, such as days, before.")
    return check_array(y.reshape(len(y), -1), dtype=[np.float64, np.float32], input_name="y")


def _scale_and_shift(scaler: StandardScaler) -> tuple[np.ndarray, np.ndarray]:
    """What a standardised target is multiplied by, and what is then added."""
    one = np.ones(scaler.n_features_in_)
    return (one if scaler.scale_ is None else scaler.scale_), (0.0 * one if scaler.mean_ is None else scaler.mean_)


def _rounding_variance(y: np.ndarray) -> float:
    """Variance that rounding has added to targets, or 0 where they do not look rounded.

    Targets that mostly repeat each other lie on a grid of some step. A density finer than the grid would
    only describe the rounding, and the predictive objective would pile it up in spikes on the grid.
    """
    values = np.unique(y)
    if len(values) < 2 or len(values) > len(y) / 2:
        return 0.0
    return float(np.diff(values).min() ** 2 / 12)
