"""Regressors whose predictions are one statistic of a fitted regressor's."""

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted


class _Statistic(RegressorMixin, BaseEstimator):
    """A view of a fitted regressor: it is fitted as soon as that is, and ``fit`` leaves it as it is."""

    @property
    def n_features_in_(self):
        """As of the regressor."""
        return self.regressor.n_features_in_

    def fit(self, X, y):
        """Nothing: the regressor is fitted already."""
        check_is_fitted(self.regressor)
        return self

    def __sklearn_is_fitted__(self):
        return hasattr(self.regressor, "n_features_in_")


class Deviation(_Statistic):
    """A regressor that predicts the standard deviation of another one's observations.

    MAPIE's ``ResidualNormalisedScore`` takes it as it is, with ``prefit=True``.

    Parameters
    ----------
    regressor : regressor of this package
        Fitted.

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import Deviation
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
    >>> bool((Deviation(model).predict(X) == model.predict(X, return_std=True)[1]).all())
    True
    """

    def __init__(self, regressor):
        self.regressor = regressor

    def predict(self, X):
        """Standard deviations (n_samples,) or (n_samples, n_outputs), in the units of ``y``."""
        return self.regressor.predict(X, return_std=True)[1]


class Quantile(_Statistic):
    """A regressor that predicts a quantile of another one's observations.

    MAPIE's ``ConformalizedQuantileRegressor`` takes three of them, with ``prefit=True``: for the lower end, the upper
    end and the median.

    Parameters
    ----------
    regressor : regressor of this package
        Fitted.
    quantile : float, default=0.5
        Its probability, in [0, 1].

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import Quantile
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
    >>> bool((Quantile(model, 0.9).predict(X) == model.predict_quantiles(X, 0.9)).all())
    True
    """

    def __init__(self, regressor, quantile=0.5):
        self.regressor = regressor
        self.quantile = quantile

    def predict(self, X):
        """Quantiles (n_samples,) or (n_samples, n_outputs), in the units of ``y``."""
        return self.regressor.predict_quantiles(X, self.quantile)
