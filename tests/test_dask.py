"""Estimators fitted on the workers of a Dask cluster, by chunks or together."""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
import types
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import torch
from helpers import AVDGP, DSDGP, REGRESSORS, Tiny, every_family, table_of, targets
from sklearn.linear_model import LinearRegression

from skdgp import AVDGPClassifier, DSDGPRegressor
from skdgp.distributed import _dask, _meeting, _partitions, fit_dask
from skdgp.estimators._fitted import learnt

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
distributed = pytest.importorskip("distributed")

SMALL = {"hidden_dims": (), "n_inducing": 20, "n_estimators": 1, "batch_size": 100, "random_state": 0}


@pytest.fixture(scope="module")
def client():
    """Two processes with one thread each."""
    local = {"processes": True, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    patience = {"distributed.deploy.lost-worker-timeout": "1 h"}  # else a worker lost twice in 15 s is given up
    with dask.config.set(patience), distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
        yield client


def wait_until(condition):
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def losing(client):
    """The same, for tests that lose one of them, and wait for the one that takes its place."""
    before = set(client.nthreads())
    yield client
    wait_until(lambda: len(client.nthreads()) == 2 and set(client.nthreads()) != before)


@pytest.fixture(scope="module")
def frame():
    """Sorted rows of a smooth function of two of three features, with an index of its own."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-2, 2, size=(1200, 3)), columns=["a", "b", "c"])
    y = np.sin(2 * X.a) + 0.5 * X.b + 0.1 * rng.standard_normal(1200)
    return X.assign(y=y, weight=rng.integers(3, size=1200)).sort_values("a")


def arrays(*tables, chunks=40):
    return [da.from_array(table, chunks=(chunks, 2)[: table.ndim]) for table in tables]


@pytest.mark.slow
class TestChunks:
    def test_learn_what_a_frame_says_whose_partitions_have_unknown_lengths(self, client, frame):
        table = dd.from_pandas(frame, npartitions=6, sort=False)
        table = table[table.a > -1.2]  # the first partition is empty
        frame = frame[frame.a > -1.2]
        estimator = DSDGPRegressor(**SMALL | {"learning_rate": 0.1})
        model = fit_dask(estimator, table[["b", "a"]], table["y"], n_passes=5)
        assert list(model.feature_names_in_) == ["b", "a"] and not hasattr(estimator, "n_iter_")
        assert model.score(frame[["b", "a"]], frame.y) > 0.9
        mean, std = model.predict(frame[["b", "a"]], return_std=True)
        assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(frame[["b", "a"]]), mean)

        def predict(rows):
            columns = model.predict(rows, return_std=True) if len(rows) else ([], [])
            return pd.DataFrame(np.column_stack(columns), index=rows.index, columns=["mean", "std"])

        there = table[["b", "a"]].map_partitions(predict, meta={"mean": float, "std": float}).compute()
        np.testing.assert_allclose(there.to_numpy(), np.column_stack([mean, std]), rtol=1e-6)
        assert there.index.equals(frame.index)

    @every_family
    def test_of_all_families(self, client, tiny, wave, monkeypatch):
        monkeypatch.setattr(_dask, "INITIAL_ROWS", 60)  # so that there is a second chunk
        y = targets(tiny, wave[1])
        if tiny not in REGRESSORS:
            y = np.sort(y)  # no chunk but the first has all classes
        X, y = arrays(wave[0], y)
        model = fit_dask(tiny(), X, y, n_passes=1, client=client)
        assert type(model) is tiny.estimator and model.n_iter_ == 2
        assert learnt(model).n_rows == 120  # rows of the first chunk do not come again
        there = X.rechunk({1: -1}).map_blocks(model.predict, drop_axis=1, dtype=y.dtype)
        np.testing.assert_allclose(there.compute(), model.predict(wave[0]), rtol=1e-5, atol=1e-5)
        if tiny not in REGRESSORS:
            assert model.classes_.tolist() == [0, 1, 2]

    def test_labels_are_text_and_rows_without_weight_do_not_count(self, client, frame):
        table = dd.from_pandas(frame.assign(label=np.where(frame.y > 0, "up", "down")), npartitions=3, sort=False)
        table["weight"] = table.weight.where(table.a > 0, 0)  # at least a partition has none
        model = fit_dask(
            Tiny(AVDGPClassifier, **AVDGP)(), table[["a", "b"]], table.label, table.weight, n_passes=1, client=client
        )
        assert model.classes_.tolist() == ["down", "up"]
        used = frame[(frame.a > 0) & (frame.weight > 0)]
        expected = np.average(used[["a", "b"]], axis=0, weights=used.weight)
        np.testing.assert_allclose(table_of(model).units.shift, expected, rtol=1e-6)

    def test_the_first_of_them_is_a_sample_of_all_rows(self, client):
        X, y = arrays(np.arange(12_000.0)[:, None], np.arange(12_000.0), chunks=1000)
        model = fit_dask(DSDGPRegressor(**SMALL | {"batch_size": 4000}), X, y, n_passes=1)
        assert model.n_iter_ == 2
        assert table_of(model).units.shift[0] == pytest.approx(6000, rel=0.02)

    def test_of_several_outputs(self, client, wave):
        X, y = arrays(wave[0], np.column_stack([wave[1], wave[0][:, 0]]))
        model = fit_dask(Tiny(DSDGPRegressor, **DSDGP)(), X, y.rechunk({1: 1}), n_passes=1)
        assert model.predict(wave[0]).shape == (120, 2)


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [None, 1])
def test_workers_together_make_the_model_of_one_process(client, frame, n_workers):
    table = dd.from_pandas(frame, npartitions=5, sort=False)
    estimator = DSDGPRegressor(**SMALL | {"max_iter": 3, "n_estimators": 2, "dtype": "float64"})
    features = ["a", "b", "c"]
    model = fit_dask(estimator, table[features], table.y, table.weight, method="fit", n_workers=n_workers)
    alone = estimator.fit(frame[features], frame.y, frame.weight)
    for one, other in zip(model.module_.parameters(), alone.module_.parameters(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.validation_scores_, alone.validation_scores_, atol=1e-6)


def test_without_workers_a_fit_waits_for_the_first_to_join(wave):
    X, y = wave[0], wave[1]
    estimator = DSDGPRegressor(**SMALL | {"max_iter": 2})
    quiet = {"processes": False, "n_workers": 0, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**quiet) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        with ThreadPoolExecutor(1) as pool:
            fitted = pool.submit(fit_dask, estimator, *arrays(X, y), method="fit", client=client)
            wait_until(lambda: cluster.scheduler.tasks)
            cluster.scale(1)
            model = fitted.result(60)
    np.testing.assert_array_equal(model.predict(X), estimator.fit(X, y).predict(X))


@dataclass(eq=False, repr=False)
class Mortal(DSDGPRegressor):
    """Ends the first process that trains it, and makes a file."""

    grave: str = ""

    def _die_once(self):
        with suppress(FileExistsError), open(self.grave, "x"):
            os._exit(1)

    def fit(self, X, y, sample_weight=None):
        self._die_once()
        return super().fit(X, y, sample_weight)

    def partial_fit(self, X, y, **options):
        if hasattr(self, "n_iter_"):
            self._die_once()
        return super().partial_fit(X, y, **options)


@pytest.mark.slow
class TestLostWorkers:
    def test_another_learns_from_the_chunks(self, losing, wave, tmp_path, monkeypatch):
        monkeypatch.setattr(_dask, "INITIAL_ROWS", 60)
        X, y = arrays(*wave)
        model = fit_dask(Mortal(**SMALL, grave=str(tmp_path / "grave")), X, y, n_passes=2)
        expected = fit_dask(DSDGPRegressor(**SMALL), X, y, n_passes=2)
        assert (tmp_path / "grave").exists() and model.n_iter_ == 3
        assert np.array_equal(model.predict(wave[0]), expected.predict(wave[0]))

    def test_those_that_train_together_say_so(self, losing, wave, tmp_path, monkeypatch):
        monkeypatch.setattr(_dask, "EXPLAINING_SECONDS", 1)
        with pytest.raises(RuntimeError, match="One of the 2 workers that train the model together was lost"):
            fit_dask(Mortal(**SMALL, grave=str(tmp_path / "grave")), *arrays(*wave), method="fit")


def trains():
    """Whether this process, a worker, has a thread that trains."""
    stacks = [traceback.walk_stack(frame) for frame in sys._current_frames().values()]
    return any(frame.f_code.co_filename == _dask.__file__ for stack in stacks for frame, _ in stack)


@pytest.fixture
def interruptible():
    """Ctrl-C is an error, as in a terminal. A shell tells what it starts in the background to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"n_passes": 2000}, {"method": "fit"}])
@pytest.mark.usefixtures("interruptible")
def test_users_who_interrupt_set_workers_free(client, wave, options):
    endless = DSDGPRegressor(**SMALL | {"max_iter": 10**7, "n_iter_no_change": 10**7})
    n_training = 2 if "method" in options else 1

    def interrupt():
        try:
            wait_until(lambda: sum(client.run(trains).values()) == n_training)
        finally:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # Ctrl-C

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fit_dask(endless, *arrays(*wave), **options)
    thread.join()
    wait_until(lambda: not any(client.run(trains).values()))


def set_patience(seconds):
    _meeting.MEETING_SECONDS = seconds


def hold(event):
    """Occupy a worker."""
    distributed.Event(event).wait()


def begin_another():
    assert _meeting._in_group.acquire(blocking=False)


def end_another():
    _meeting._in_group.release()


@pytest.fixture
def impatient(client):
    """A client of workers that do not wait for one another; one of them has something else to do."""
    client.run(set_patience, 0)
    other = client.submit(hold, "done", workers=sorted(client.nthreads())[1:])
    yield client
    distributed.Event("done").set()
    other.result()
    client.run(set_patience, _meeting.MEETING_SECONDS)


@pytest.fixture
def occupied(client):
    """A client of workers that train another model together."""
    client.run(begin_another)
    yield client
    client.run(end_another)


def test_processes_begin_together_or_not_at_all(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arrivals = []

    def is_wanted(job):
        """Not any more; and meanwhile the other process arrives."""
        if not arrivals:
            arrivals.append(job)
            _meeting._wait_for_all(store, 2, "job")
        return False

    monkeypatch.setattr(_meeting, "is_wanted", is_wanted)
    _meeting._wait_for_all(store, 2, "job")
    assert arrivals == ["job"]

    store = torch.distributed.PrefixStore("next", store)
    for _ in range(2):  # the first gives up before the second arrives
        with pytest.raises(CancelledError):
            _meeting._wait_for_all(store, 2, "job")


def listeners():
    """The addresses and ports on which this process, perhaps a worker, waits for connections."""
    sockets = psutil.net_connections("tcp")
    return {tuple(each.laddr) for each in sockets if each.pid == os.getpid() and each.status == psutil.CONN_LISTEN}


class TestStores:
    @pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
    def test_listen_on_the_address_that_was_given(self, host):
        before = listeners()
        try:
            place = _meeting.open_store("job", host)
        except ConnectionError:
            pytest.skip(f"{host} is no address of this machine")
        assert listeners() - before == {(host, place.port)}
        _meeting.close_store("job")
        assert listeners() == before

    def test_have_names_with_the_secret(self):
        before = listeners()
        place = _meeting.open_store("job", "127.0.0.1")
        outsider = torch.distributed.TCPStore(place.host, place.port, is_master=False)
        outsider.set("outcome", "one left")  # which would end the meeting
        with _meeting.met("job", place, 0, 1) as processes:
            assert processes.size == 1
            assert outsider.check([f"{place.secret}/outcome"]) and not outsider.check(["present"])
            if hasattr(outsider, "list_keys"):  # torch 2.10
                assert all(key.startswith(f"{place.secret}/") for key in set(outsider.list_keys()) - {"outcome"})
            assert (place.host, place.port) in listeners()
        assert listeners() == before
        assert len(place.secret) == 32 and place.secret != _meeting.open_store("job", "127.0.0.1").secret
        _meeting.close_store("job")

    def test_that_the_client_has_closed_are_not_waited_for(self):
        place = _meeting.open_store("job", "127.0.0.1")
        _meeting.close_store("job")
        with pytest.raises(CancelledError), _meeting.met("job", place, 0, 2):
            pass
        with pytest.raises(ConnectionError), _meeting.met("job", place, 1, 2):
            pass

    @pytest.mark.slow
    def test_are_closed_if_the_first_worker_does_not_begin(self, client, wave, monkeypatch):
        before = client.run(listeners)

        def interrupted(tasks):
            assert sum(len(after - before[worker]) for worker, after in client.run(listeners).items()) == 1
            raise KeyboardInterrupt

        monkeypatch.setattr(_dask, "_result", interrupted)
        others = [client.submit(hold, "free", workers=[worker], pure=False) for worker in client.nthreads()]
        try:
            wait_until(lambda: sum(map(len, client.processing().values())) == 2)
            X, y = wave
            with pytest.raises(KeyboardInterrupt):
                fit_dask(DSDGPRegressor(**SMALL), *arrays(X, y), method="fit")
            assert client.run(listeners) == before
        finally:
            distributed.Event("free").set()
            distributed.wait(others)

    @pytest.mark.slow
    def test_are_closed_after_an_error(self, client, frame):
        table = dd.from_pandas(frame.assign(colour="red"), npartitions=2, sort=False)
        numbers = DSDGPRegressor(**SMALL, categorical_features=None)
        before = client.run(listeners)
        with pytest.raises(ValueError, match="holds text"):
            fit_dask(numbers, table[["a", "colour"]], table.y, method="fit")
        wait_until(lambda: client.run(listeners) == before)


@pytest.mark.slow
class TestErrors:
    def test_addresses_of_others(self, client, wave, monkeypatch):
        elsewhere = "192.0.2.1"  # an address for examples (RFC 5737)
        monkeypatch.setattr(_meeting, "urlsplit", lambda worker: types.SimpleNamespace(hostname=elsewhere))
        with pytest.raises(ConnectionError, match=r"first worker cannot listen on 192\.0\.2\.1.*--host of dask worker"):
            fit_dask(DSDGPRegressor(**SMALL), *arrays(*wave), method="fit")

    def test_workers_out_of_reach(self, client, wave, monkeypatch):
        """Nothing listens on port 1. The first worker waits until the others have had time to explain."""
        monkeypatch.setattr(_dask, "EXPLAINING_SECONDS", 1)

        @contextmanager
        def misleading(client, job, worker):
            with _meeting.meeting_place(client, job, worker) as place:
                yield place._replace(port=1)

        monkeypatch.setattr(_dask, "meeting_place", misleading)
        before = client.run(listeners)
        with pytest.raises(
            ConnectionError, match=r"cannot reach the first worker at 127\.0\.0\.1, port 1: .*firewalls"
        ):
            fit_dask(DSDGPRegressor(**SMALL), *arrays(*wave), method="fit")
        wait_until(lambda: client.run(listeners) == before)

    def test_workers_that_do_not_meet(self, impatient, wave):
        with pytest.raises(RuntimeError, match="2 workers that are to train together did not all begin within 0 sec"):
            fit_dask(DSDGPRegressor(**SMALL), *arrays(*wave), method="fit")

    def test_workers_that_train_already(self, occupied, wave):
        with pytest.raises(RuntimeError, match=r"trains another model together.*processes=True"):
            fit_dask(DSDGPRegressor(**SMALL), *arrays(*wave), method="fit")

    @pytest.mark.parametrize("method", ["fit", "partial_fit"])
    def test_of_the_estimator(self, client, frame, method):
        table = dd.from_pandas(frame.assign(colour="red"), npartitions=2, sort=False)
        with pytest.raises(ValueError, match="Column 'colour' of X holds text, such as 'red'"):
            numbers = DSDGPRegressor(**SMALL, categorical_features=None)
            fit_dask(numbers, table[["a", "colour"]], table.y, method=method)
        with pytest.raises(ValueError, match="Found array with 0 sample"):
            fit_dask(DSDGPRegressor(**SMALL), table[table.a > 9][["a", "b"]], table[table.a > 9].y, method=method)

    def test_rows_that_do_not_match(self, client, frame):
        table = dd.from_pandas(frame, npartitions=2, sort=False)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            fit_dask(DSDGPRegressor(**SMALL), table[["a", "b"]], table.y[table.y > 0])
        with pytest.raises(ValueError, match=r"numbers of partitions differ, {'X': 2, 'y': 1}: .* repartition"):
            fit_dask(DSDGPRegressor(**SMALL), table[["a", "b"]], table.y.repartition(npartitions=1))
        with pytest.raises(ValueError, match="Unknown label type: continuous"):
            fit_dask(AVDGPClassifier(), table[["a", "b"]], table.y)

    @pytest.mark.parametrize("name", ["X", "y", "sample_weight"])
    def test_tables_of_others(self, client, frame, name):
        table = dd.from_pandas(frame, npartitions=2, sort=False)
        tables = {"X": table[["a", "b"]], "y": table.y, "sample_weight": table.weight} | {name: frame.b.to_numpy()}
        with pytest.raises(TypeError, match=f"{name} must be a Dask array, DataFrame or Series, got ndarray"):
            fit_dask(DSDGPRegressor(**SMALL), **tables)

    def test_estimators_of_others(self, client, wave):
        with pytest.raises(TypeError, match=r"fits estimators of skdgp, got LinearRegression.*last step"):
            fit_dask(LinearRegression(), *arrays(*wave))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "train"}, 'method=\'train\' is not known: give "partial_fit" or "fit"'),
            ({"n_passes": 0}, "n_passes=0 must be an integer of at least 1"),
            ({"method": "fit", "n_workers": 1.5}, "n_workers=1.5 must be an integer of at least 1"),
            ({"method": "fit", "n_workers": 3}, "n_workers=3 is more than the cluster has, 2: give at most so many"),
            ({"n_workers": 2}, 'n_workers=2 goes with method="fit": leave it out'),
        ],
    )
    def test_choices(self, client, wave, options, message):
        with pytest.raises(ValueError, match=message):
            fit_dask(DSDGPRegressor(**SMALL), *arrays(*wave), **options)

    def test_without_dask(self, wave, monkeypatch):
        monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(ImportError, match=r'needs dask and distributed.*pip install "skdgp\[dask\]"'):
            fit_dask(DSDGPRegressor(**SMALL), *wave)


def test_partitions_are_mixed_until_there_are_enough_rows():
    n_rows = np.array([9_000, 0, 30_000, 12_000, 5, 4_000, 21_000])
    for seed in range(20):
        groups = _partitions.mixed(n_rows, np.random.default_rng(seed))
        assert sorted(number for group in groups for number in group) == [0, 2, 3, 4, 5, 6]
        assert all(n_rows[group].sum() >= _partitions.CHUNK_ROWS for group in groups)
    assert len({str(_partitions.mixed(n_rows, np.random.default_rng(seed))) for seed in range(20)}) > 10
    assert sorted(_partitions.mixed(np.array([3, 0, 4]), np.random.default_rng(0))[0]) == [0, 2]


def test_rows_are_drawn_of_positive_weight_without_repetition():
    X, weight = np.arange(20.0)[:, None], np.arange(20) % 2
    rows, y, drawn = _partitions.draw(X, pd.Series(X[:, 0]), weight, 10, seed=0)
    assert sorted(rows[:, 0]) == list(range(1, 20, 2)) and np.array_equal(y, rows[:, 0]) and drawn.all()


def test_rows_that_are_not_drawn_are_left():
    X, weight = np.arange(20.0)[:, None], np.arange(20) % 2
    drawn, left = (take(X, X[:, 0], weight, 4, seed=3)[1] for take in (_partitions.draw, _partitions.not_drawn))
    assert len(drawn) == 4 and sorted([*drawn, *left]) == list(range(1, 20, 2))
