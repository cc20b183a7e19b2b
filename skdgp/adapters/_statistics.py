"""Regressors that predict one statistic of a fitted regressor's distributions."""

from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..metrics import predictive_distribution


class _Statistic(RegressorMixin, BaseEstimator):
    """A view of a regressor. It counts as fitted when the regressor is, and its own ``fit`` changes nothing."""

    @property
    def n_features_in_(self):
        """Number of features of the regressor."""
        return self.regressor.n_features_in_

    def fit(self, X, y):
        """Do nothing, since the regressor is fitted already."""
        check_is_fitted(self.regressor)
        return self

    def __sklearn_is_fitted__(self):
        try:
            check_is_fitted(self.regressor)
        except NotFittedError:
            return False
        return True


class Deviation(_Statistic):
    """A regressor whose predictions are the standard deviations of another regressor's observations.

    MAPIE's ``ResidualNormalisedScore`` takes it directly, with ``prefit=True``.

    Parameters
    ----------
    regressor : regressor of this package
        A fitted regressor, or a pipeline or search that ends in one.

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import Deviation
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
    >>> bool(
    ...     (
    ...         Deviation(model).predict(X) == model.predict(X, return_std=True)[1]
    ...     ).all()
    ... )
    True
    """

    def __init__(self, regressor):
        self.regressor = regressor

    def predict(self, X):
        """Predict standard deviations, (n_samples,) or (n_samples, n_outputs), in the units of ``y``."""
        return predictive_distribution(self.regressor, X).std


class Quantile(_Statistic):
    """A regressor whose predictions are quantiles of another regressor's observations.

    MAPIE's ``ConformalizedQuantileRegressor`` takes three of them, with ``prefit=True``: one each for the lower end,
    the upper end and the median.

    Parameters
    ----------
    regressor : regressor of this package
        A fitted regressor, or a pipeline or search that ends in one.
    quantile : float, default=0.5
        Probability of the quantile, in [0, 1].

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import Quantile
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0).fit(X, y)
    >>> bool(
    ...     (
    ...         Quantile(model, 0.9).predict(X) == model.predict_quantiles(X, 0.9)
    ...     ).all()
    ... )
    True
    """

    def __init__(self, regressor, quantile=0.5):
        self.regressor = regressor
        self.quantile = quantile

    def predict(self, X):
        """Predict quantiles, (n_samples,) or (n_samples, n_outputs), in the units of ``y``."""
        return predictive_distribution(self.regressor, X).ppf(self.quantile)
