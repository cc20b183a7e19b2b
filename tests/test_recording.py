"""Training steps can be recorded on a GPU: none of their operations waits for numbers or brings new ones to the device.

What a GPU would refuse is seen on the CPU, too: operations pass a mode of PyTorch that names those of the kinds below.
"""

import linecache
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from configurations import OPTIONS, combinations, n_first
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from skdgp.gp import devices, linalg
from skdgp.inference import graphs, minibatches

aten = torch.ops.aten

#: Where lines of the package and of its tests are.
OURS = (str(Path(devices.__file__).parents[1]), str(Path(__file__).parent))

#: Operations that read numbers of the device, or whose result has a shape that depends on them.
REFUSED = {
    aten._local_scalar_dense,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.bincount,
    aten._linalg_check_errors,
}
#: Operations that read the numbers of indices if these are masks.
INDEXED = {aten.index, aten.index_put, aten.index_put_}


#: Functions that bring numbers of Python to the device.
BRINGING = {torch.Tensor.new_tensor, torch.tensor, torch.as_tensor, torch.from_numpy}


def holds_list(index) -> bool:
    """Whether an index has a sequence of numbers, which becomes a tensor."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list | tuple | range) for part in parts)


class OfPython(TorchFunctionMode):
    """Names calls of functions that bring numbers of Python to the device."""

    def __init__(self, refuse):
        super().__init__()
        self.refuse = refuse

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.tensor and isinstance(args[0], tuple | list | range):
            self.refuse(function.__name__, str(args[0]))
            return function(*args, **(kwargs or {}))
        indexed = function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and holds_list(args[1])
        if function in BRINGING or indexed:
            self.refuse(function.__name__)
        return function(*args, **(kwargs or {}))


class OfDevice(TorchDispatchMode):
    """Names operations that read numbers of the device, also those of gradients."""

    def __init__(self, refuse):
        super().__init__()
        self.refuse = refuse

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet = function.overloadpacket
        if packet in REFUSED or (packet in INDEXED and any(x is not None and x.dtype == torch.bool for x in args[1])):
            self.refuse(str(packet))
        return function(*args, **(kwargs or {}))


#: Functions of this file that stand between a line of the package and the watch.
BETWEEN = ("__torch_function__", "__torch_dispatch__")

#: Functions that read numbers, which steps on a GPU do not call, or not with numbers that they would have to wait for.
ON_A_CPU = ("largest_square", "summed_differences")


class Watch:
    """Gathers where a block has operations that cannot be recorded.

    Constants may be new as long as the watch only prepares itself.
    """

    def __init__(self, preparing=False):
        self.preparing, self.places, self.constants = preparing, set(), set()
        self.modes = OfPython(self.refuse), OfDevice(self.refuse)

    def refuse(self, name, numbers=None):
        """Remember the line of the package that has called something."""
        if self.preparing:
            self.constants.add(numbers)
            return
        frame = sys._getframe().f_back
        while not (code := frame.f_code).co_filename.startswith(OURS) or code.co_name in BETWEEN:
            frame = frame.f_back
        if code.co_name not in ON_A_CPU and not (code.co_name == "constant" and numbers in self.constants):
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            self.places.add(f"{name} in {code.co_filename}:{frame.f_lineno}: {text}")

    def __enter__(self):
        for mode in self.modes:
            mode.__enter__()
        return self

    def __exit__(self, *error):
        for mode in reversed(self.modes):
            mode.__exit__(*error)


@pytest.fixture
def watch(monkeypatch):
    """Steps of all fits on the CPU are recorded, as far as the package knows; the watch looks at the recording."""
    watch = Watch(preparing=True)

    def watched(function, generators):
        for watch.preparing in (True, False):
            with watch, suppress(torch.linalg.LinAlgError):  # a GPU goes on with numbers that are not finite
                function()
        watch.preparing = True
        return function

    monkeypatch.setattr(graphs, "record", watched)
    monkeypatch.setattr(minibatches, "Stepper", graphs.RecordedStepper)
    asked = linalg.being_recorded
    for module in [module for name, module in sys.modules.items() if name.startswith("skdgp.gp.")]:
        if getattr(module, "being_recorded", None) is asked:
            monkeypatch.setattr(module, "being_recorded", lambda x: not watch.preparing)
    return watch


def cases():
    for estimator in OPTIONS:
        for number, case in enumerate(combinations(estimator)[: n_first(estimator)]):
            yield pytest.param(case, id=f"{estimator.__name__}-{number}", marks=[pytest.mark.slow] if number else [])


@pytest.mark.parametrize("case", list(cases()))
def test_steps_wait_for_no_numbers(case, watch):
    case.fitted(max_iter=1)
    assert not watch.places, "\n".join(sorted(watch.places))


def test_the_watch_sees_what_cannot_be_recorded():
    x = torch.ones(3, 3)
    for call, name in [
        (lambda: x.new_tensor([1.0]), "new_tensor"),
        (lambda: x[..., [0, 2]], "__getitem__"),
        (lambda: x[x > 0], "aten.index"),
        (lambda: x.sum().item(), "aten._local_scalar_dense"),
        (lambda: torch.linalg.cholesky(torch.eye(2)), "aten._linalg_check_errors"),
        (lambda: devices.columns_of(x, [0, 2]), "tensor"),  # it is new
        (lambda: linalg.cholesky(torch.eye(2)), "aten._local_scalar_dense"),  # it asks whether it has failed
    ]:
        with Watch() as watch:
            call()
        assert {place.partition(" in ")[0] for place in watch.places} == {name}


def test_constants_are_made_before_the_recording():
    watch = Watch(preparing=True)
    for watch.preparing in (True, False):
        with watch:
            devices.columns_of(torch.ones(3, 3), [0, 2])
    assert not watch.places
    with watch:
        devices.columns_of(torch.ones(3, 3), [0, 1])
    assert len(watch.places) == 1
