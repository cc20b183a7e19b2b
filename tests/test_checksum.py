"""Checksums of stored estimators: damage is an error, and nothing else is."""

import contextlib
import copy
import io
import pickle
import pickletools
import warnings

import joblib
import numpy as np
import pytest
from helpers import TINY, any_options, every_family, targets
from sklearn.base import clone
from sklearn.preprocessing import PowerTransformer

from skdgp import AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor
from skdgp.estimators._checksum import checksums

pytestmark = any_options


def predictions(model, X):
    if hasattr(model, "classes_"):
        return np.column_stack([model.predict(X) == model.classes_[0], model.predict_proba(X)])
    return np.column_stack(model.predict(X, return_std=True))


def small(estimator, **options):
    names = estimator().get_params()
    return estimator(**{name: value for name, value in (TINY | options).items() if name in names})


@pytest.fixture(scope="module")
def fitted():
    """Models with labels, with a transformer of targets, and with a stream."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 3))
    y = np.exp(np.sin(X[:, 0]))
    return X[:5], [
        small(DSDGPClassifier).fit(X, np.where(y > 1, "high", "low")),
        small(SOLVEGPRegressor, target_transform=PowerTransformer()).fit(X, y),
        small(DSDGPRegressor, base="gp", hidden_dims=()).partial_fit(X, y),
    ]


def fills_memory(stored):
    """Whether pickle would make gigabytes of room for what it has read, which takes it half a minute."""
    with contextlib.suppress(ValueError):  # where the damage leaves no opcode
        for opcode, place, _ in pickletools.genops(stored):
            if opcode.name == "LONG_BINPUT" and place > len(stored):
                return True
    return False


@pytest.mark.parametrize("number", range(3))
def test_a_flipped_bit_is_an_error_or_changes_nothing(fitted, number):
    X, model = fitted[0], fitted[1][number]
    expected, stored, rng = predictions(model, X), pickle.dumps(model), np.random.default_rng(number)
    n_opened = 0
    for place in rng.integers(8 * len(stored), size=250).tolist():
        damaged = bytearray(stored)
        damaged[place // 8] ^= 1 << place % 8
        with warnings.catch_warnings(action="ignore"):
            try:
                if fills_memory(bytes(damaged)):
                    continue
                again = pickle.loads(bytes(damaged))
            except Exception:  # whatever pickle, or a constructor, makes of it
                continue
            n_opened += 1
            assert np.array_equal(predictions(again, X), expected)
    assert n_opened < 50


@pytest.mark.parametrize("name", ["members", "classes_", "_input_units", "target_transformer_", "_encoding"])
def test_the_error_names_what_has_changed(fitted, name):
    _, models = fitted
    model = models[0] if name == "classes_" else models[1]
    state = copy.deepcopy(model.__getstate__())
    if name == "members":
        name = "_ensemble"
        state[name]["members"]["modules"]["0"]["modules"]["likelihood"]["attributes"]["extra"] = 1.0
    elif name == "target_transformer_":
        state[name].transformer.lambdas_ *= 1.01
    elif name == "classes_":
        state[name] = state[name][::-1]
    else:
        state[name][0] = state[name][1]
    with pytest.raises(ValueError, match=rf"A stored model differs from what was stored, in \['{name}'\]: the file is"):
        object.__new__(type(model)).__setstate__(state)


def test_a_file_without_checksums_is_damaged(fitted):
    state = fitted[1][0].__getstate__()
    for change in ({"_checksums": None}, {"_checksums": {}}):
        with pytest.raises(ValueError, match="A stored model has no checksums"):
            object.__new__(DSDGPClassifier).__setstate__(state | change)
    without = {name: value for name, value in state.items() if name != "_ensemble"}
    with pytest.raises(ValueError, match=r"in \['_ensemble'\]"):
        object.__new__(DSDGPClassifier).__setstate__(without)


@every_family
def test_every_way_of_storing_keeps_checksums(tiny, wave, tmp_path):
    X, y = wave
    model = tiny().fit(X, targets(tiny, y))
    cloudpickle = pytest.importorskip("cloudpickle")
    joblib.dump(model, tmp_path / "plain")
    joblib.dump(model, tmp_path / "small", compress=3)
    ways = {
        "pickle": [pickle.loads(pickle.dumps(model, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)],
        "cloudpickle": [pickle.loads(cloudpickle.dumps(model))],
        "deepcopy": [copy.deepcopy(model), copy.copy(model)],
        "joblib": [joblib.load(tmp_path / "plain"), joblib.load(tmp_path / "small")],
        "mapped": [joblib.load(tmp_path / "plain", mmap_mode=mode) for mode in ("r", "c")],
        "again": [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))],
    }
    for way, found in ways.items():
        for again in found:
            assert np.array_equal(again.predict(X), model.predict(X)), way
            assert not hasattr(again, "_checksums")
    clone(model)


@pytest.mark.parametrize(
    "options",
    [
        {"random_state": np.random.RandomState(0)},
        {"n_inducing": np.int64(3), "learning_rate": np.float32(0.05)},
        {"kernel": AVDGPRegressor().kernel, "n_estimators": 2},
    ],
)
def test_parameters_of_any_kind_survive(wave, options):
    skops = pytest.importorskip("skops.io")
    X, y = wave
    model = small(AVDGPRegressor, **options).fit(X, y)
    stored = skops.dumps(model)
    for again in (pickle.loads(pickle.dumps(model)), skops.loads(stored, skops.get_untrusted_types(data=stored))):
        assert np.array_equal(again.predict(X), model.predict(X))


class Keeper(AVDGPRegressor):
    """Stores something of its own, and leaves out what cannot be stored."""

    def __getstate__(self):
        state = super().__getstate__() | {"note": "mine"}
        state.pop("stream")
        return state


def test_classes_that_derive_may_store_more(wave):
    model = small(Keeper).fit(*wave)
    model.stream = io.StringIO()
    again = pickle.loads(pickle.dumps(model))
    assert again.note == "mine" and np.array_equal(again.predict(wave[0]), model.predict(wave[0]))


def test_order_in_memory_does_not_count_and_all_else_does():
    array = np.arange(6.0).reshape(2, 3)
    for same in (array.astype(">f8"), np.asfortranarray(array), np.repeat(array, 2, axis=1)[:, ::2]):
        assert checksums({"a": same}) == checksums({"a": array})
    values = [array, array.T, array.ravel(), array.astype("f4"), -array, array.tolist(), tuple(array.tolist())]
    values += [
        0,
        0.0,
        -0.0,
        False,
        None,
        "",
        "0",
        b"0",
        [],
        (),
        {},
        {"a": 0},
        {"b": 0},
        {"a": {"b": 0}},
        [[0], 0],
        [0, [0]],
    ]
    values += [np.array(["a", "b"]), np.array(["a", "b"], dtype=object), np.array(["ab"]), np.array([], dtype="U1")]
    found = [checksums({"a": value})["a"] for value in values] + [checksums({"b": 0})["b"]]
    assert len(set(found)) == len(found)
