"""Files that somebody has made to run code of their choice: each is refused before anything is imported or called."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from helpers import REGRESSORS
from sklearn.preprocessing import StandardScaler
from torch import nn

import skdgp.gp
from skdgp import DSDGPRegressor
from skdgp.estimators._checksum import checksums
from skdgp.gp.kernels import StationaryKernel
from skdgp.inference.state import from_plain, to_plain, to_tensor
from skdgp.inference.trusted import find_class, name_of_class

skops = pytest.importorskip("skops.io")


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 3))
    small = {"hidden_dims": (), "n_inducing": 4, "max_iter": 1, "n_estimators": 1, "random_state": 0}
    return DSDGPRegressor(**small).partial_fit(X, np.sin(X[:, 0]))


@pytest.fixture
def payload(tmp_path, monkeypatch):
    """A module that is not imported yet."""
    (tmp_path / "payload.py").write_text("raise SystemExit('the file has run code')\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def loads(fitted, monkeypatch, payload):
    """Opens a skops file of the fitted estimator after somebody has changed its state, and its checksums with it."""

    def loads(change):
        state = fitted.__getstate__()
        change(state)
        state["_checksums"] = checksums({name: value for name, value in state.items() if name != "_checksums"})
        with monkeypatch.context() as patch:
            patch.setattr(DSDGPRegressor, "__getstate__", lambda self: state)
            stored = skops.dumps(fitted)
        trusted = ["skdgp.estimators._dsdgp.DSDGPRegressor"]
        assert skops.get_untrusted_types(data=stored) == trusted
        return skops.loads(stored, trusted=trusted)

    yield loads
    assert "payload" not in sys.modules


def member(state):
    return state["_ensemble"]["members"]["modules"]["0"]


def student(state):
    return state["_ensemble"]["students"][0]


def test_a_file_that_nobody_has_changed_opens(fitted, loads):
    X = np.zeros((1, 3))
    assert np.array_equal(loads(lambda state: None).predict(X), fitted.predict(X))


FUNCTIONS = [
    "skdgp.adapters:import_module",
    "torch.nn.modules.module:register_module_forward_hook",
    "skdgp.inference.state:find_class",
    "skdgp.inference.objectives:elbo",
    "skdgp.gp.propagation:Propagation",
    "builtins:exec",
    "payload:run",
]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("attribute", ["rule", "add_module", "register_buffer"])
def test_functions_are_those_that_models_contain(loads, name, attribute):
    def change(state):
        member(state)["attributes"][attribute] = {"function": name}
        member(state)["modules"] = {"payload": None} | member(state)["modules"]

    with pytest.raises(ValueError, match=r"A stored model (names|has an attribute)"):
        loads(change)


@pytest.mark.parametrize(
    "name",
    [
        "skdgp.adapters:import_module",
        "skdgp.adapters._export:_MeanAndStd",
        "skdgp.gp.layers:nn",
        "skdgp.gp.layers:Kernel",  # imported there, and defined elsewhere
        "torch.nn.modules.module:OrderedDict",
        "torch.nn.modules.lazy:LazyModuleMixin",
        "torch.nn.modules.transformer:Transformer",
        "collections:namedtuple",
        "contextlib:ExitStack",
        "payload:Kernel",
        "torch:_inductor",
        "",
        None,
        ["skdgp.gp.layers:Layer"],
    ],
)
def test_classes_are_those_that_models_contain(loads, name):
    with pytest.raises(ValueError, match=r"A stored model names .*, which is no type of skdgp"):
        loads(lambda state: member(state).update({"class": name}))


class Other(nn.Module):
    """A class of the user's own that is no part of a model."""


class OwnKernel(StationaryKernel):
    """A kernel of the user's own."""


def test_classes_of_users_are_found_where_they_are_defined(monkeypatch):
    assert find_class(name_of_class(OwnKernel)) is OwnKernel
    elsewhere = ModuleType("elsewhere")
    elsewhere.OwnKernel = OwnKernel
    elsewhere.__getattr__ = lambda name: pytest.fail(f"{name} would be imported")
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)
    for name in (f"{__name__}:Other", "elsewhere:OwnKernel", "elsewhere:Lazy"):
        with pytest.raises(ValueError, match=rf"names '{name}', which is no type"):
            find_class(name)
    with pytest.raises(TypeError, match=r"Other cannot be stored.*derive them from Kernel, Layer"):
        name_of_class(Other)


def test_every_part_of_models_is_known():
    def kinds(kind):
        return {kind}.union(*(kinds(each) for each in kind.__subclasses__()))

    ours = {kind for kind in kinds(nn.Module) if kind.__module__.startswith(f"{skdgp.gp.__name__}.")}
    assert len(ours) > 50
    assert all(find_class(f"{kind.__module__}:{kind.__qualname__}") is kind for kind in ours)


@pytest.mark.parametrize("group", ["attributes", "parameters", "buffers", "modules"])
@pytest.mark.parametrize(
    "name", ["add_module", "forward", "coarse", "training", "_modules", "__class__", "__call__", "", "a.b", "layers"]
)  # the last one is the name of a part already
def test_names_are_no_methods_and_nothing_that_every_module_has(loads, group, name):
    value = {"attributes": 1, "parameters": np.zeros(1), "buffers": np.zeros(1), "modules": None}[group]

    def change(state):
        member(state)[group][name] = value
        if name == "layers" and group == "modules":
            member(state)["attributes"][name] = 1

    with pytest.raises(ValueError, match=r"A stored model has .*attribute"):
        loads(change)


@pytest.mark.parametrize(
    "value",
    [
        np.exp,
        StandardScaler(),
        np.zeros(2),
        {"units": "ab"},
        {"units": [[1.0], ["2.0"]]},
        {"units": [[1.0]], "function": "skdgp.gp.propagation:anchor_at_mean"},
        {"function": ["skdgp.gp.propagation:anchor_at_mean"]},
        {},
    ],
    ids=str,
)
def test_attributes_are_plain(loads, value):
    with pytest.raises(ValueError, match=r"A stored model (has|names)"):
        loads(lambda state: member(state)["attributes"].update(rule=[value]))


@pytest.mark.parametrize(
    "array",
    [
        np.array([StandardScaler()], dtype=object),
        np.array(["text"]),
        np.zeros(2, dtype=[("field", float)]),
        np.ma.masked_array([1.0]),
        np.zeros(2, dtype=complex),
        [1.0],
    ],
    ids=lambda array: str(getattr(array, "dtype", "list")),
)
def test_arrays_are_numbers(array):
    state = to_plain(nn.Linear(2, 2))
    state["parameters"]["bias"] = array
    with pytest.raises(ValueError, match="that is no array of numbers"):
        from_plain(state)


def test_arrays_may_have_any_order():
    array = np.arange(6.0).reshape(2, 3)
    for same in (array.astype(">f8"), np.asfortranarray(array), array[::-1][::-1], np.repeat(array, 2, axis=0)[::2]):
        assert np.array_equal(to_tensor(same).numpy(), array)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["_ensemble"].update(dtype="load"),
        lambda state: state["_ensemble"].update(dtype=["float32"]),
        lambda state: state["_ensemble"].update(members=member(state)),
        lambda state: state["_ensemble"].update(blend=member(state)),
        lambda state: state["_ensemble"]["members"]["modules"].update({"0": member(state)["modules"]["layers"]}),
        lambda state: member(state).pop("buffers"),
        lambda state: member(state)["modules"].update(layers=["skdgp"]),
        lambda state: student(state)["stream"].update(__class__="payload"),
        lambda state: student(state)["stream"].update(averaged=1.0),
        lambda state: student(state)["stream"].update(rate="1.0"),
        lambda state: student(state)["stream"].update(model=[]),
        lambda state: student(state).update(generator=np.zeros(5056)),
        lambda state: state.update(predict=np.exp),
        lambda state: state.update(kernel_=1.0),
        lambda state: state.update(_input_units=[[0.0], [1.0, "2.0"]]),
    ],
)
def test_the_rest_is_what_estimators_store(loads, change):
    with pytest.raises(ValueError, match=r"A stored model"):
        loads(change)


def test_generators_do_not_read_beyond_their_words(loads):
    def change(state):
        words = student(state)["generator"]
        words[8:12], words[16:24] = np.array([624], "i4").view("u1"), np.array([624], "i8").view("u1")
        torch.Generator().set_state(torch.from_numpy(words.copy()))  # torch accepts it

    with pytest.raises(ValueError, match="has a generator's state that no generator has"):
        loads(change)


def test_few_parts_are_not_many_modules():
    """Thirty parts, each of which has the next one twice, would be 2^30 modules."""
    part = to_plain(nn.Identity())
    for _ in range(30):
        part = to_plain(nn.Identity()) | {"modules": {"a": part, "b": part}}
    assert len(checksums({"part": part})) == 1
    with pytest.raises(ValueError, match="has the same part in two places"):
        from_plain(part)


def test_parts_within_parts_end_in_an_error():
    part = to_plain(nn.Identity())
    for _ in range(10_000):
        part = to_plain(nn.Identity()) | {"modules": {"a": part}}
    with pytest.raises(RecursionError):
        from_plain(part)


@pytest.mark.slow
@pytest.mark.parametrize("tiny", REGRESSORS)
def test_streams_go_on_where_they_stopped(tiny, wave):
    """The generator's state is one that a generator has, however many numbers it has drawn."""
    X, y = wave
    for n_rows in (20, 41, 120):
        model = tiny.of_chunks().partial_fit(X[:n_rows], y[:n_rows])
        again = skops.loads(skops.dumps(model), trusted=skops.get_untrusted_types(data=skops.dumps(model)))
        assert np.array_equal(model.partial_fit(X, y).predict(X), again.partial_fit(X, y).predict(X))
