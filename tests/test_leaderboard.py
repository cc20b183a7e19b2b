"""The entry for ScoringBench, with stand-ins for what it uses of ScoringBench.

The stand-ins have the signatures of https://github.com/jonaslandsgesell/ScoringBench, commit 49f0d7a,
``scoringbench/univariate/wrappers/base.py``. How it calls wrappers is in ``scoringbench/univariate/cv.py``.
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "leaderboard.py"
MODULE = "scoringbench.univariate.wrappers.base"


class ProbabilisticWrapper:
    """Remembers the range of the targets; the rest is for wrappers to write."""

    _y_train_range = None

    def _set_train_range(self, y):
        self._y_train_range = (float(np.min(y)), float(np.max(y)))
        return self._y_train_range

    def fit(self, X, y):
        raise NotImplementedError

    def predict(self, X):
        raise NotImplementedError

    def predict_distribution(self, X):
        raise NotImplementedError


class DistributionPrediction:
    """What one of its constructors is given."""

    @classmethod
    def from_multi_quantile(cls, q, alphas, mean=None, *, train_range, **kw):
        prediction = cls()
        prediction.q, prediction.alphas, prediction.mean, prediction.train_range = q, alphas, mean, train_range
        return prediction


@pytest.fixture
def leaderboard(monkeypatch):
    """The names of the file."""
    parts = MODULE.split(".")
    for depth in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
    for stand_in in (ProbabilisticWrapper, DistributionPrediction):
        setattr(sys.modules[MODULE], stand_in.__name__, stand_in)
    return runpy.run_path(str(FILE))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skdgp_avdgp", "skdgp_dsdgp", "skdgp_solvegp"])
def test_an_entry_is_what_the_leaderboard_calls(leaderboard, name):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"length": rng.normal(size=60), "kind": rng.choice(["old", "new"], 60)})
    y = 1000 + 50 * X["length"] + rng.normal(size=60)
    wrapper = leaderboard["ENTRIES"][name]()
    assert isinstance(wrapper, ProbabilisticWrapper)
    wrapper.model.regressor.set_params(max_iter=2, n_estimators=1)  # a table takes too long with the defaults
    assert wrapper.fit(X.iloc[:50], y.iloc[:50]) is wrapper
    prediction = wrapper.predict_distribution(X.iloc[50:])
    plain = wrapper.model.regressor_.predict_dist(X.iloc[50:])
    assert prediction.q.shape == (10, len(prediction.alphas)) and (np.diff(prediction.q, axis=1) > 0).all()
    for column in (0, 99, 198):  # rows are rows of the table, columns are probabilities
        np.testing.assert_allclose(prediction.q[:, column], plain.ppf(prediction.alphas[column]), rtol=1e-9)
    assert prediction.train_range == (y[:50].min(), y[:50].max())
    np.testing.assert_allclose(prediction.mean, wrapper.predict(X.iloc[50:]), rtol=1e-6)


def test_each_call_makes_another_wrapper(leaderboard):
    for make in leaderboard["ENTRIES"].values():
        assert make() is not make()
