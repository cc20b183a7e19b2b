"""The three families as entries of ScoringBench, a public leaderboard of probabilistic regression.

In a clone of https://github.com/jonaslandsgesell/ScoringBench, and where skdgp is installed:

1. Copy this file to ``scoringbench/univariate/wrappers/skdgp_wrapper.py``.
2. In ``scoringbench/univariate/models.py`` write ``from .wrappers.skdgp_wrapper import ENTRIES``, and put ``**ENTRIES``
   into ``MODELS``.
3. ``python run_bench_regression.py --lite`` tries it. Without ``--lite`` all tables run. Then its README says how to
   compute the ranks and to send them.

The file was written for the wrappers of its commit 49f0d7a. What it uses of them is in ``tests/test_leaderboard.py``.
"""

from functools import partial

import numpy as np
from scoringbench.univariate.wrappers.base import DistributionPrediction, ProbabilisticWrapper

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.adapters import OutputTypes

#: Probabilities of the quantiles that stand for a distribution: as many steps as its grid of densities has cells.
LEVELS = np.arange(1, 200) / 200


class SkdgpWrapper(ProbabilisticWrapper):
    """A regressor of skdgp with its defaults, whose quantiles are what ScoringBench scores."""

    def __init__(self, regressor):
        self.model = OutputTypes(regressor)

    def fit(self, X, y):
        """Fit to a data frame, whose columns may be categories."""
        self._set_train_range(y)
        self.model.fit(X, y)
        return self

    def predict(self, X):
        """Means."""
        return self.model.predict(X)

    def predict_distribution(self, X):
        """Quantiles of each row and its mean."""
        main = self.model.predict(X, output_type="main", quantiles=LEVELS)
        quantiles = np.stack(main["quantiles"], axis=1)
        return DistributionPrediction.from_multi_quantile(
            quantiles, LEVELS, mean=main["mean"], train_range=self._y_train_range
        )


def entry(regressor_class):
    """A wrapper that has not been fitted."""
    return SkdgpWrapper(regressor_class(random_state=0))


#: What ``MODELS`` maps names to: functions without arguments that make wrappers.
ENTRIES = {
    "skdgp_avdgp": partial(entry, AVDGPRegressor),
    "skdgp_dsdgp": partial(entry, DSDGPRegressor),
    "skdgp_solvegp": partial(entry, SOLVEGPRegressor),
}
