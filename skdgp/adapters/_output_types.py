"""A regressor whose ``predict`` has the argument ``output_type``, as some packages and leaderboards expect."""

from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from ..metrics import predictive_distribution

#: What ``predict`` can return.
OUTPUT_TYPES = ("mean", "median", "quantiles", "main")

#: Probabilities of the quantiles that it returns by default.
DECILES = tuple(np.arange(1, 10) / 10)


class OutputTypes(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """A regressor of this package whose ``predict`` has the argument ``output_type``.

    Scripts that compare regressors by their distributions can then call all of them in the same way.

    Parameters
    ----------
    regressor : regressor of this package
        An unfitted regressor, or a pipeline or search that ends in one.

    Attributes
    ----------
    regressor_ : regressor
        The fitted copy.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import OutputTypes
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = OutputTypes(
    ...     SOLVEGPRegressor(5, 5, max_iter=2, random_state=0)
    ... ).fit(X, y)
    >>> low, high = model.predict(
    ...     X, output_type="quantiles", quantiles=[0.05, 0.95]
    ... )
    >>> bool((low < model.predict(X, output_type="median")).all())
    True
    """

    # What is asked for is nothing that is known of rows, and that searches would have to pass on.
    __metadata_request__predict: ClassVar = {"output_type": UNUSED, "quantiles": UNUSED}

    def __init__(self, regressor):
        self.regressor = regressor

    @property
    def n_features_in_(self):
        """Number of features."""
        return self.regressor_.n_features_in_

    def fit(self, X, y, **fit_params):
        """Fit a copy of the regressor.

        Parameters
        ----------
        X, y
            See the regressor's ``fit``.
        **fit_params
            Passed on to it.

        Returns
        -------
        self : OutputTypes
            The fitted adapter.
        """
        self.regressor_ = clone(self.regressor).fit(X, y, **fit_params)
        return self

    def predict(self, X, output_type="mean", quantiles=None):
        """Predict what is asked for.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows to predict.
        output_type : {"mean", "median", "quantiles", "main"}, default="mean"
            "quantiles" is a list with an array for each probability. "main" is a dictionary of the three others.
        quantiles : float or sequence of float, default=(0.1, 0.2, ..., 0.9)
            Probabilities of the quantiles, in [0, 1].

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs), list or dict
            In the units of ``y``.

        Raises
        ------
        ValueError
            If ``output_type`` is none of these, or if a probability is not in [0, 1].
        """
        if output_type not in OUTPUT_TYPES:
            raise ValueError(
                f"output_type={output_type!r} is none of {list(OUTPUT_TYPES)}: choose one of these, or call "
                "predict_distribution, which returns whole distributions."
            )
        probabilities = DECILES if quantiles is None else np.atleast_1d(quantiles)
        if output_type == "mean":
            check_is_fitted(self)
            return self.regressor_.predict(X)
        distribution = self.predict_distribution(X)
        results = {
            "mean": lambda: distribution.mean,
            "median": lambda: distribution.ppf(0.5),
            "quantiles": lambda: [distribution.ppf(q) for q in probabilities],
        }
        return {name: make() for name, make in results.items()} if output_type == "main" else results[output_type]()

    def predict_distribution(self, X):
        """Predict whole distributions; see the regressor's ``predict_dist``.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        PredictiveDistribution, or another distribution of this package
            Distributions of observations, in the units of ``y``.
        """
        check_is_fitted(self)
        return predictive_distribution(self.regressor_, X)
