"""Stored estimators: plain data, small, opened elsewhere, by other versions and by tools that trust little."""

import io
import pickle
import pickletools
import sys
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import torch
from helpers import REGRESSORS, every_family, name_of, predictor_of, targets
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import AVDGPRegressor, DSDGPClassifier
from skdgp.estimators._migration import warn_of_lost, without_removed
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.propagation import anchor_at_mean
from skdgp.gp.units import Units
from skdgp.inference.predictor import Predictor
from skdgp.inference.state import MOVED, from_plain, to_plain
from skdgp.methods.options import REMOVED

STORED = Path(__file__).parent / "stored"


@every_family
@pytest.mark.parametrize("way", [0, 1])
def test_modules_survive_as_plain_data(tiny, wave, way):
    X, y = wave
    model = tiny(n_estimators=2, **tiny.propagations[way]).fit(X, targets(tiny, y))
    expected = model.predict(X)
    predictor_of(model).members = from_plain(pickle.loads(pickle.dumps(to_plain(model.module_))))
    assert np.array_equal(model.predict(X), expected)
    assert not any(parameter.requires_grad for parameter in model.module_.parameters())


@pytest.mark.parametrize("inducing_map", ["affine", "mlp"])
@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_networks_survive_as_plain_data(wave, inducing_map, covariance):
    X, y = wave
    model = REGRESSORS[0](inducing_map=inducing_map, covariance=covariance).fit(X, y)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


@every_family
def test_pickles_hold_the_parameters_and_little_else(tiny, wave):
    X, y = wave
    rng = np.random.default_rng(0)
    many = np.repeat(X, 200, axis=0) + 1e-3 * rng.standard_normal((24_000, 3))
    few = {"n_inducing": 8, "n_orthogonal": 8} if "SOLVE" in name_of(tiny) else {}
    model = tiny(max_iter=1, batch_size=4000, **few).fit(many, np.repeat(targets(tiny, y), 200))
    parameters = sum(each.nbytes for each in [*model.module_.parameters(), *model.module_.buffers()])
    stored = pickle.dumps(model)
    assert len(stored) - parameters < 50_000 < many.nbytes
    named = {argument for _, argument, _ in pickletools.genops(stored) if isinstance(argument, str)}
    assert not any(name.startswith("torch") and ":" not in name for name in named)


@every_family
@pytest.mark.parametrize("mmap_mode", [None, "r"])
def test_joblib_files_may_be_mapped(tiny, wave, mmap_mode, tmp_path):
    X, y = wave
    model = tiny().fit(X, targets(tiny, y))
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib", mmap_mode=mmap_mode)
    assert np.array_equal(again.predict(X), model.predict(X))
    again.set_params(warm_start=True).fit(X, targets(tiny, y))


@every_family
def test_skops_trusts_a_pipeline_with_the_estimator_alone(tiny, wave):
    skops = pytest.importorskip("skops.io")
    X, y = wave
    pipeline = make_pipeline(StandardScaler(), tiny()).fit(X, targets(tiny, y))
    stored = skops.dumps(pipeline)
    kind = f"{tiny.estimator.__module__}.{tiny.estimator.__name__}"
    assert skops.get_untrusted_types(data=stored) == [kind]
    assert np.array_equal(skops.loads(stored, trusted=[kind]).predict(X), pipeline.predict(X))


@pytest.mark.parametrize("device", ["cuda:3", "cpu"])
def test_state_names_no_device(wave, device, monkeypatch):
    model = AVDGPRegressor(max_iter=1, n_estimators=1, random_state=0).fit(*wave)
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "device", torch.device(device))
        stored = pickle.dumps(model)
        assert model.device_ == torch.device(device)
    assert pickle.loads(stored).device_ == torch.device("cpu")


@pytest.mark.parametrize("name", ["regressor", "classifier"])
def test_files_of_the_first_version_open(name):
    """Written by ``python tests/test_state.py`` with skdgp 0.1.0, torch 2.13.0 and scikit-learn 1.9.1.

    The predictions stored beside a model are the numbers that it has to give again.
    """
    stored = joblib.load(STORED / f"{name}.joblib")
    model = stored["model"]
    found = model.predict(stored["X"]) if name == "regressor" else model.predict_proba(stored["X"])
    np.testing.assert_allclose(found, stored["expected"], rtol=1e-6)


def test_files_with_removed_parameters_open():
    """Each model had values of removed parameters. Where no parameter of today says them, a warning does.

    Written when ``whiten``, ``share_kernel`` and others were parameters, as the predictions that it has to give again.
    """
    with pytest.warns(UserWarning, match=r"any more: it predicts as before, but another fit will not have it") as found:
        stored = joblib.load(STORED / "parameters.joblib")
    lost = [str(each.message).partition(",")[0] for each in found]
    assert lost == [f"A stored model was made with {value}" for value in ("share_kernel=False", "tol=0.1")]
    models = [model for model, _ in stored["models"]]
    for model, expected in stored["models"]:
        np.testing.assert_allclose(model.predict(stored["X"]), expected, rtol=1e-6)
        assert not set(REMOVED) & set(vars(model)) and model.get_params().keys() <= vars(model).keys()
        model.set_params(warm_start=True, cuda_graphs=False).fit(
            stored["X"], stored["y"]
        )  # it goes on with what has shaped it
    assert models[0].covariance == "full_unwhitened" and models[0].network_width == (4,)
    assert [model.covariance for model in models[3:]] == ["odvgp", "full"]
    assert models[4].inducing == "points+derivatives"


@pytest.mark.parametrize(
    ("params", "new"),
    [
        ({"whiten": False, "covariance": "diag"}, {"covariance": "diag_unwhitened"}),
        ({"orthogonal_covariance": "prior", "covariance": "full", "n_orthogonal": 0}, {"covariance": "full"}),
        ({"network_depth": 2, "network_width": 8}, {"network_width": 8}),
        ({"network_depth": 3, "network_width": None}, {"network_width": (None, None, None)}),
    ],
)
def test_values_of_removed_parameters(params, new):
    found = without_removed(params)
    assert found | new == found and not set(REMOVED) & set(found)


def test_what_no_parameter_says_is_a_warning():
    with pytest.warns(UserWarning, match="made with orthogonal_covariance='prior', which is no parameter any more"):
        warn_of_lost({"orthogonal_covariance": "prior", "covariance": "diag", "n_orthogonal": 3})


@pytest.mark.parametrize(
    "name", ["os:system", "skdgp.inference.collapsed:os", "torch.nn.modules.linear:math", "skdgp.gp.layers:Absent"]
)
def test_files_cannot_name_what_is_no_module(name):
    state = to_plain(torch.nn.Linear(2, 2)) | {"class": name}
    with pytest.raises(ValueError, match=f"A stored model names '{name}', which is no type of .*skdgp"):
        from_plain(state)


@pytest.mark.parametrize("name", MOVED)
def test_files_may_name_a_class_where_it_was(name):
    state = to_plain(torch.nn.Linear(2, 2)) | {"class": name}
    found = from_plain(state)
    assert f"{type(found).__module__}:{type(found).__name__}" == MOVED[name]


def test_numbers_of_numpy_are_numbers(wave):
    X, y = wave
    numbers = {"n_samples": np.int64(2), "ard": np.True_, "latent_dims": np.int64(0)}
    model = REGRESSORS[1](**numbers).fit(X, y)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


CHANGES = {
    "in place": lambda q: q.mean.mul_(2.0),
    "data": lambda q: q.mean.data.mul_(2.0),
    "array": lambda q: np.multiply(q.mean.numpy(), 2.0, out=q.mean.numpy()),
    "replaced": lambda q: setattr(q, "mean", torch.nn.Parameter(2.0 * q.mean, requires_grad=False)),
}


@pytest.mark.parametrize("n_rows", [5, 300])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_parameter_changes_predictions(wave, n_rows, change):
    """Although what the first prediction has computed is kept."""
    X, y = wave
    model, rows = REGRESSORS[2](n_neighbors=5).fit(X, y), np.repeat(X[:5], n_rows // 5, axis=0)
    before = model.predict(rows)
    assert np.array_equal(model.predict(rows), before)
    with torch.no_grad():
        change(model.module_[0].layers[0].q)
    found = model.predict(rows)
    assert not np.array_equal(found, before)
    assert np.array_equal(found, pickle.loads(pickle.dumps(model)).predict(rows))


def test_other_rows_change_predictions(wave):
    model = REGRESSORS[2](n_neighbors=5).fit(*wave)
    before = model.predict(wave[0])
    local = predictor_of(model).correction.local
    local.residual = local.residual.clone()
    assert np.array_equal(model.predict(wave[0]), before)
    local.residual.mul_(2.0)
    assert not np.array_equal(model.predict(wave[0]), before)


def test_files_opened_in_inference_mode_can_be_learnt_from(wave):
    stored = pickle.dumps(REGRESSORS[2]().fit(*wave))
    with torch.inference_mode():
        opened = pickle.loads(stored)
    assert not any(each.is_inference() for each in opened.module_.parameters())


def test_what_could_not_be_found_again_is_refused():
    module = torch.nn.Linear(2, 2)
    module.rule = lambda x: x
    with pytest.raises(TypeError, match=r"<lambda> cannot be stored, since it could not be found again by this name"):
        to_plain(module)

    class Inner(torch.nn.Linear):
        pass

    with pytest.raises(TypeError, match=r"Inner cannot be stored, since it could not be found again by this name"):
        to_plain(Inner(2, 2))


def test_lists_of_functions_and_units_survive():
    module = torch.nn.Linear(2, 2)
    module.parts = [(anchor_at_mean, 1.0), Units([0.5], [2.0])]
    [(function, number), units] = from_plain(to_plain(module)).parts
    assert function is anchor_at_mean and number == 1.0 and (units.shift, units.scale) == ((0.5,), (2.0,))


def test_classes_of_the_main_program_may_be_stored_in_other_processes():
    """joblib's workers get such a class without its module; the main program finds it by its name."""
    kind = type("MainKernel", (StationaryKernel,), {"__module__": "main_program_of_another_process"})
    state = to_plain(kind("rbf", 2))
    assert state["class"] == "main_program_of_another_process:MainKernel"
    with pytest.raises(ValueError, match="MainKernel', which is no type of"):
        from_plain(state)
    sys.modules["main_program_of_another_process"] = SimpleNamespace(MainKernel=kind)
    try:
        assert type(from_plain(state)) is kind
    finally:
        del sys.modules["main_program_of_another_process"]


def test_attributes_that_are_no_plain_data_are_refused():
    module = torch.nn.Linear(2, 2)
    module.stream = io.StringIO()
    with pytest.raises(TypeError, match=r"A module.s attribute of type StringIO cannot be stored"):
        to_plain(module)


def write_files():
    """Make the stored files anew; only for a new format, under a new name."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    STORED.mkdir(exist_ok=True)
    regressor = AVDGPRegressor((2,), 4, network_width=8, max_iter=20, n_estimators=2, random_state=0).fit(X, y)
    expected = {"X": X[:5], "model": regressor, "expected": regressor.predict(X[:5])}
    joblib.dump(expected, STORED / "regressor.joblib", compress=3)
    classifier = DSDGPClassifier((2,), 5, max_iter=20, n_estimators=1, random_state=0).fit(X, y > 0)
    expected = {"X": X[:5], "model": classifier, "expected": classifier.predict_proba(X[:5])}
    joblib.dump(expected, STORED / "classifier.joblib", compress=3)


if __name__ == "__main__":
    write_files()
