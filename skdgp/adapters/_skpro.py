"""Regressors of this package as regressors of skpro, with predictive distributions of skpro."""

import numpy as np
from sklearn.base import clone

try:
    import pandas as pd  # comes with skpro
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError as error:
    raise ImportError('SkproRegressor needs skpro: install it with pip install "skpro".') from error

from ..estimators._regression import DeepGPRegressor


class SkproDistribution(BaseDistribution):
    """A predictive distribution of this package as a distribution of skpro, with names of rows and columns.

    Parameters
    ----------
    predictive : PredictiveDistribution
        The distribution, of shape (n, P); without names it is that of a single number.
    index, columns : pandas.Index, default=None
        Names of rows and columns.
    """

    _tags = {  # noqa: RUF012 - skpro's own way
        "distr:measuretype": "continuous",
        "distr:paramtype": "nonparametric",
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "capabilities:approx": ["energy", "pdfnorm"],
    }

    def __init__(self, predictive, index=None, columns=None):
        self.predictive = predictive
        super().__init__(index=index, columns=columns)

    def _mean(self):
        return self._as_wanted(self.predictive.mean)

    def _var(self):
        return self._as_wanted(self.predictive.var)

    def _pdf(self, x):
        return self._as_wanted(self.predictive.pdf(np.reshape(x, self.predictive.shape)))

    def _log_pdf(self, x):
        return self._as_wanted(self.predictive.logpdf(np.reshape(x, self.predictive.shape)))

    def _cdf(self, x):
        return self._as_wanted(self.predictive.cdf(np.reshape(x, self.predictive.shape)))

    def _ppf(self, p):
        return self._as_wanted(self.predictive.ppf(np.reshape(p, self.predictive.shape)))

    def _as_wanted(self, values):
        """An array, or a number if the distribution has no names."""
        return np.asarray(values) if self.ndim else float(np.ravel(values)[0])

    def _iloc(self, rowidx=None, colidx=None):
        rows = np.arange(len(self.index))[slice(None) if rowidx is None else np.atleast_1d(rowidx)]
        columns = np.arange(len(self.columns))[slice(None) if colidx is None else np.atleast_1d(colidx)]
        part = self.predictive[rows][:, columns]
        return SkproDistribution(part, index=self.index[rows], columns=self.columns[columns])

    def _iat(self, rowidx=None, colidx=None):
        return SkproDistribution(self.predictive[[rowidx]][:, [colidx]])

    def sample(self, n_samples=None):
        """Random draws, in the form of skpro's distributions."""
        drawn = self.predictive.rvs(1 if n_samples is None else n_samples)
        if self.ndim == 0:
            return float(np.ravel(drawn)[0]) if n_samples is None else pd.DataFrame(np.reshape(drawn, (n_samples, 1)))
        if n_samples is None:
            return pd.DataFrame(drawn[0], index=self.index, columns=self.columns)
        index = pd.MultiIndex.from_product([range(n_samples), self.index])
        return pd.DataFrame(drawn.reshape(-1, len(self.columns)), index=index, columns=self.columns)

    @classmethod
    def get_test_params(cls, parameter_set="default"):
        """Parameters for skpro's own tests."""
        from ..distributions import PredictiveDistribution

        mean = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
        names = {"index": pd.RangeIndex(3), "columns": pd.Index(["a", "b"])}
        return [{"predictive": PredictiveDistribution.gaussian(mean, np.ones((3, 2))), **names}]


class SkproRegressor(BaseProbaRegressor):
    """A regressor of this package as a regressor of skpro.

    ``predict_proba`` returns the whole predictive distribution. skpro computes ``predict_interval``,
    ``predict_quantiles`` and ``predict_var`` from it.

    Parameters
    ----------
    regressor : regressor of this package
        The regressor. It does not change: ``fit`` fits a clone of it, ``regressor_``.

    Examples
    --------
    >>> import pandas as pd
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.adapters import SkproRegressor
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> X, y = (
    ...     pd.DataFrame(X, columns=["time"]),
    ...     pd.DataFrame(y, columns=["height"]),
    ... )
    >>> model = SkproRegressor(
    ...     SOLVEGPRegressor(5, 5, max_iter=2, random_state=0)
    ... ).fit(X, y)
    >>> model.predict_proba(X[:3]).mean().shape
    (3, 1)
    """

    _tags = {  # noqa: RUF012 - skpro's own way
        "capability:multioutput": True,
        "capability:missing": True,
        "capability:update": False,
    }

    def __init__(self, regressor):
        self.regressor = regressor
        super().__init__()

    def _fit(self, X, y):
        if not isinstance(self.regressor, DeepGPRegressor):
            raise TypeError(
                f"SkproRegressor takes regressors of skdgp, got {type(self.regressor).__name__}: give one of them."
            )
        self._targets = y.columns
        self.regressor_ = clone(self.regressor).fit(_named(X), y.to_numpy())
        return self

    def _predict(self, X):
        return pd.DataFrame(self.regressor_.predict(_named(X)), index=X.index, columns=self._targets)

    def _predict_proba(self, X):
        return SkproDistribution(self.regressor_.predict_dist(_named(X)), index=X.index, columns=self._targets)

    @classmethod
    def get_test_params(cls, parameter_set="default"):
        """Parameters for skpro's own tests."""
        from ..estimators import DSDGPRegressor, SOLVEGPRegressor

        shallow = SOLVEGPRegressor(5, 0, max_iter=3, random_state=0)
        deep = DSDGPRegressor((2,), 5, n_estimators=1, base=None, n_neighbors=0, max_iter=2, random_state=0)
        return [{"regressor": shallow}, {"regressor": deep}]


def _named(X: pd.DataFrame) -> pd.DataFrame:
    """The table with names that are strings, as scikit-learn requires."""
    return X.rename(columns=str)
