"""What all regressors share: scaled targets in; means, deviations and samples in the user's units out."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..gp.likelihoods import Gaussian, Likelihood
from ..inference.calibration import recalibrate_noise
from ..inference.training import Batch
from ._base import overflowing

#: Noise variance that training starts from, in units of the targets' variance.
INITIAL_NOISE = 0.05

#: Smallest noise variance in the same units.
NOISE_FLOOR = 1e-6


class Mixture(NamedTuple):
    """Predictive Gaussian mixtures of a batch of rows, in the user's units."""

    mean: np.ndarray  # (S, n, P)
    variance: np.ndarray  # (S, n, P), of the function values, without noise
    noise: np.ndarray  # (S, 1, P)
    weight: np.ndarray  # (S,), sums to one


class DeepGPRegressor(MultiOutputMixin, RegressorMixin):
    """Regression with a Gaussian likelihood; a mixin for estimators that derive from BaseDeepGP."""

    def _check_targets(self, y: np.ndarray) -> None:
        self._y_is_flat = y.ndim == 1
        columns = y.reshape(len(y), -1)
        self._target_scaler = StandardScaler(with_mean=self.normalize_y, with_std=self.normalize_y).fit(columns)
        if overflowing(self._target_scaler, self._target_scaler.transform(columns)).any():
            raise ValueError(
                f"y overflows when it is standardised: its values reach {np.abs(y).max():.1e}. "
                "Rescale y, for instance to its logarithm."
            )

    def _encode_targets(self, y: np.ndarray) -> np.ndarray:
        columns = y.reshape(len(y), -1)
        n_outputs = self._target_scaler.n_features_in_
        if columns.shape[1] != n_outputs:
            raise ValueError(f"y has {columns.shape[1]} outputs, but the model was given {n_outputs}: match them.")
        return self._target_scaler.transform(columns)

    def _make_likelihood(self, y: Tensor) -> Likelihood:
        floor = [max(NOISE_FLOOR, _rounding_variance(column)) for column in y.T.numpy()]
        return Gaussian(y.shape[1], variance=INITIAL_NOISE, floor=torch.tensor(floor))

    def _recalibrate(self, judges: Sequence[Batch], batch_size: int) -> None:
        recalibrate_noise(self.module_, judges, batch_size)

    def _log_jacobian(self) -> float:
        return -float(np.log(_scale_and_shift(self._target_scaler)[0]).sum())

    @property
    def noise_variance_(self):
        """Variance of the observation noise in the user's units, mean over members."""
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
            Query points.
        return_std : bool, default=False
            Whether to return the standard deviation of an observation, noise included.
        return_cov : bool, default=False
            Whether to return the covariance of observations, noise included. Rows are correlated
            through the samples or quadrature points that they share.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictive mean.
        y_std : ndarray of the same shape
            Only with ``return_std``.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            Only with ``return_cov``.

        Raises
        ------
        ValueError
            If both ``return_std`` and ``return_cov`` are set.
        """
        if return_std and return_cov:
            raise ValueError("At most one of return_std and return_cov can be True, got both: choose one.")
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        n_outputs = self._target_scaler.n_features_in_
        mean, variance = np.empty((2, len(X), n_outputs))
        for rows, mixture in self._mixtures(X):
            mean[rows], variance[rows] = _moments(mixture)
        if return_cov:
            return self._like_targets(mean), self._like_targets(self._covariance(X, mean, variance), axis=2)
        if return_std:
            return self._like_targets(mean), self._like_targets(np.sqrt(variance))
        return self._like_targets(mean)

    def sample_y(self, X, n_samples=1, random_state=None):
        """Draw observations, noise included, from the predictive distribution.

        A draw picks one sample or quadrature point for all rows, so that it is as smooth in ``X`` as
        the model is, and adds every row's own Gaussian uncertainty.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Query points.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=None
            Source of randomness.

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)

        Raises
        ------
        ValueError
            If ``n_samples`` is less than 1.
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"n_samples={n_samples} must be at least 1.")
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        rng = check_random_state(random_state)
        n_outputs = self._target_scaler.n_features_in_
        draws = np.empty((len(X), n_outputs, n_samples))
        chosen = None
        for rows, mixture in self._mixtures(X):
            if chosen is None:
                chosen = rng.choice(len(mixture.weight), size=n_samples, p=mixture.weight)
            deviation = np.sqrt(mixture.variance + mixture.noise)[chosen]
            picked = mixture.mean[chosen] + deviation * rng.standard_normal(deviation.shape)
            draws[rows] = np.moveaxis(picked, 0, -1)
        return self._like_targets(draws, axis=1)

    def _mixtures(self, X: np.ndarray) -> Iterator[tuple[slice, Mixture]]:
        """Predictive mixture of one batch of rows after the other, all members side by side."""
        scale, shift = _scale_and_shift(self._target_scaler)
        for rows, members in self._marginals(X):
            parts = []
            for marginals, module in zip(members, self.module_, strict=True):
                noise = module.likelihood.variance.expand(len(marginals.mean), 1, -1)
                weight = marginals.log_weight.exp() / len(members)
                parts.append(Mixture(marginals.mean, marginals.variance, noise, weight))
            mean, variance, noise, weight = (
                np.concatenate([part.double().cpu().numpy() for part in column]) for column in zip(*parts, strict=True)
            )
            yield (
                rows,
                Mixture(mean * scale + shift, variance * scale**2, noise * scale**2, weight / weight.sum()),
            )

    def _covariance(self, X: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Covariances (n, n, P) between rows: those of the component means, plus each row's own."""
        means = [mixture.mean for _, mixture in self._mixtures(X)]
        weight = next(self._mixtures(X[:1]))[1].weight
        centred = np.concatenate(means, axis=1) - mean
        covariance = np.einsum("s,snp,smp->nmp", weight, centred, centred)
        index = np.arange(len(X))
        covariance[index, index] = variance
        return covariance

    def _like_targets(self, values: np.ndarray, axis: int = 1) -> np.ndarray:
        """Drop the axis of outputs if ``y`` had none."""
        return values.squeeze(axis) if self._y_is_flat else values


def _moments(mixture: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance (n, P) of observations."""
    weight = mixture.weight[:, None, None]
    mean = (weight * mixture.mean).sum(0)
    # Centred, as E m² − (E m)² would lose every digit to a large mean.
    spread = (weight * (mixture.mean - mean) ** 2).sum(0)
    return mean, spread + (weight * (mixture.variance + mixture.noise)).sum(0)


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
