"""Training shared by processes: the model of one process, and no process that waits for another in vain."""

import os
import socket
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from skdgp import DSDGPRegressor
from skdgp.distributed import data_parallel
from skdgp.distributed._processes import process_group
from skdgp.inference import processes

#: What every process does. A part of it fails in the second process alone, at the first epoch of the last model.
SCRIPT = """
import sys
import numpy as np
import torch
from skdgp import AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor
from skdgp.distributed import data_parallel
from skdgp.gp.deep_gp import DeepGP

torch.set_num_threads(1)
rng = np.random.default_rng(0)
X = rng.standard_normal((301, 4))
y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(301)
budget = {"max_iter": 3, "batch_size": 51, "n_estimators": 1, "dtype": "float64", "random_state": 0}
alone = budget | {"base": None, "n_neighbors": 0}

def parameters(model):
    return np.concatenate([p.numpy().ravel() for p in model.module_.parameters()])

def message(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

with data_parallel() as rank:
    found = {}
    found["samples"] = parameters(DSDGPRegressor((3,), n_inducing=12, **budget | {"n_estimators": 2}).fit(X, y))
    found["samples of rows"] = parameters(AVDGPRegressor((3,), rule="ar1", **alone).fit(X, y))
    found["weights"] = parameters(AVDGPRegressor((3,), **alone).fit(X, y, sample_weight=np.arange(301.0)))
    found["classes"] = parameters(DSDGPClassifier((3,), n_inducing=12, **budget).fit(X, y > 0))
    found["one layer"] = parameters(SOLVEGPRegressor(12, 6, method="svi", **alone).fit(X, y))
    found["scores"] = AVDGPRegressor((3,), **alone).fit(X, y).validation_scores_

    unseeded = DSDGPRegressor((3,), n_inducing=12, **alone | {"random_state": None}).fit(X, y)
    different_rows = message(lambda: AVDGPRegressor(**alone).fit(X[: 301 - rank], y[: 301 - rank]))
    few_rows = message(lambda: AVDGPRegressor(**alone | {"batch_size": 1}).fit(X[:20], y[:20]))
    nested = message(lambda: data_parallel().__enter__())

    forward, calls = DeepGP.forward, []

    def fail_once(self, X, generator=None, *, share=None, **options):
        if share is not None:  # in training
            calls.append(rank)
            if len(calls) == 4 and share.start > 0:
                raise np.linalg.LinAlgError("one process fails")
        return forward(self, X, generator, share=share, **options)

    DeepGP.forward = fail_once
    failed = parameters(AVDGPRegressor((3,), **alone).fit(X, y))

np.savez(f"{sys.argv[1]}/{rank}.npz", different_rows=str(different_rows), few_rows=str(few_rows), nested=str(nested),
         unseeded=parameters(unseeded), failed=failed, n_steps=len(calls),
         **{"same " + name: value for name, value in found.items()})
"""


def torchrun(n_processes, folder):
    """What each of the processes has found."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    (folder / "train.py").write_text(SCRIPT)
    here = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--master-port", port]
    command = [*launcher, "--nproc-per-node", str(n_processes), str(folder / "train.py"), str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(n_processes)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of one process, and of each of two."""
    return torchrun(1, tmp_path_factory.mktemp("one")) + torchrun(2, tmp_path_factory.mktemp("two"))


@pytest.mark.slow
def test_two_processes_make_the_model_of_one(found):
    one, first, second = found
    names = [name for name in one if name.startswith("same")]
    assert len(names) == 6
    for name in names:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], one[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_what_no_seed_decides_the_first_process_decides(found):
    _, first, second = found
    np.testing.assert_array_equal(first["unseeded"], second["unseeded"])


@pytest.mark.slow
def test_when_one_process_fails_all_repeat_the_epoch(found):
    one, first, second = found
    assert np.isfinite(first["failed"]).all()
    np.testing.assert_array_equal(first["failed"], second["failed"])
    assert not np.allclose(first["failed"], one["failed"], atol=1e-3)  # at half the rate from there on
    assert first["n_steps"] == second["n_steps"] == one["n_steps"] + 4


@pytest.mark.slow
def test_errors_are_those_of_all_processes(found):
    for process in found[1:]:
        assert "different numbers of rows, [301, 300]" in str(process["different_rows"])
        assert "Minibatches of 1 rows cannot be shared by 2 processes" in str(process["few_rows"])
        assert "RuntimeError: data_parallel starts a process group, but there is one" in str(process["nested"])


def test_without_torchrun_nothing_changes(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with data_parallel() as rank:
        assert rank == 0
        assert processes.current() is processes.ALONE
        assert not torch.distributed.is_initialized()


def test_a_build_without_torch_distributed_is_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"has no torch\.distributed.*install another"), data_parallel():
        DSDGPRegressor()


@pytest.mark.parametrize(("n_rows", "size"), [(7, 2), (10, 4), (3, 3), (100, 7)])
def test_shares_are_consecutive_and_even(n_rows, size):
    class Fake(processes.Processes):
        def __init__(self, rank):
            self.rank, self.size = rank, size

    shares = [Fake(rank).share(n_rows) for rank in range(size)]
    rows = [row for share in shares for row in range(n_rows)[share.rows]]
    assert rows == list(range(n_rows))
    lengths = [share.stop - share.start for share in shares]
    assert max(lengths) - min(lengths) <= 1
    assert {share.total for share in shares} == {n_rows}


def test_a_group_that_failed_leaves_no_trace():
    """Else this process and others, in which none has failed, would wait for each other."""
    for _ in range(2):
        with (
            pytest.raises(dist.DistError),
            process_group("gloo", store=dist.HashStore(), rank=0, world_size=2, timeout=timedelta(seconds=1)),
        ):
            pass
        assert not dist.is_initialized()
    with process_group("gloo", store=dist.HashStore(), rank=0, world_size=1):
        assert dist.group.WORLD.group_name == "0"
