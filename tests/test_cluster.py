"""Searches on the workers of a cluster, with dask as joblib's backend."""

import multiprocessing
import os
from unittest import mock

import joblib
import numpy as np
import pytest
import torch
from distributed import Client, LocalCluster, WorkerPlugin
from helpers import AVDGP, DSDGP, Tiny
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import AVDGPRegressor, DSDGPClassifier

pytestmark = pytest.mark.slow  # all of it waits for a cluster


class OneThread(WorkerPlugin):
    def setup(self, worker):
        torch.set_num_threads(1)


@pytest.fixture(scope="module")
def client():
    """Two workers that would take two threads each, as the shell says, if the plugin did not hold them to one."""
    many = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with mock.patch.dict(os.environ, many):  # where dask, too, leaves variables behind
        with LocalCluster(**local) as cluster, Client(cluster) as client:
            client.register_plugin(OneThread())
            workers = set(client.run(os.getpid).values())
            yield client
    assert client.status == "closed" and cluster.status.name == "closed"
    assert len(workers) == 2 and not workers & {process.pid for process in multiprocessing.active_children()}


@pytest.fixture
def one_thread():
    """The same number of threads here as in the workers, for another adds in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_search(estimator, scoring):
    name = type(estimator).__name__.lower()
    grid = {f"{name}__hidden_dims": [(), (2,)], f"{name}__learning_rate": [0.02, 0.05]}
    folds = StratifiedKFold(2, shuffle=True, random_state=0) if scoring == "neg_log_loss" else 2
    return GridSearchCV(make_pipeline(StandardScaler(), estimator), grid, scoring=scoring, cv=folds)


def test_tasks_run_in_workers_with_one_thread(client):
    calls = [joblib.delayed(call)() for call in (os.getpid, torch.get_num_threads) * 4]
    with joblib.parallel_config(backend="dask"):
        results = joblib.Parallel()(calls)
    assert os.getpid() not in results[::2]
    assert results[1::2] == [1] * 4


@pytest.mark.parametrize(
    ("tiny", "scoring"),
    [
        (Tiny(AVDGPRegressor, **AVDGP), "neg_root_mean_squared_error"),
        (Tiny(DSDGPClassifier, **DSDGP), "neg_log_loss"),
    ],
    ids=["AVDGPRegressor", "DSDGPClassifier"],
)
def test_searches_find_the_same_scores_as_without_a_cluster(client, one_thread, wave, tiny, scoring):
    X, y = wave
    y = y > 0 if scoring == "neg_log_loss" else y
    alone = make_search(tiny(), scoring).fit(X, y)
    search = make_search(tiny(), scoring)
    with joblib.parallel_config(backend="dask"):
        search.fit(X, y)

    names = [f"split{fold}_test_score" for fold in range(2)]
    assert len(np.unique([alone.cv_results_[name] for name in names])) > 4  # candidates do differ
    for name in names:
        np.testing.assert_allclose(search.cv_results_[name], alone.cv_results_[name], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(search.predict(X), alone.predict(X))
