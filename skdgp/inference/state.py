"""Modules as plain data, so that a stored estimator contains only arrays, numbers and names.

Such a file opens with any version of torch and on any device. Tools that only load types that they trust, such as
skops, find no types of torch in it.
"""

import inspect
import zlib
from collections.abc import Sequence
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..gp.features import Points
from ..gp.global_layer import GlobalLayer
from ..gp.units import Units
from .trusted import find_class, find_function, name_of_class, name_of_function, refuse

#: New places of classes that files of earlier versions name.
MOVED = {
    f"skdgp.gp.layers:{name}": f"skdgp.gp.{module}:{name}"
    for name, module in {
        "AmortisedLayer": "amortised_layer",
        "GlobalLayer": "global_layer",
        "OrthogonalLayer": "global_layer",
        "Posterior": "global_layer",
    }.items()
} | {f"skdgp.gp.likelihoods:{name}": f"skdgp.gp.classes:{name}" for name in ("Bernoulli", "RobustMax", "Tempered")}

#: Inducing points that were parameters of a layer in earlier files, and the modules that contain them as Z now.
POINTS = {"Z": "inducing", "O": "orthogonal"}

#: Attributes that every module has. All others belong to its class.
_INTERNAL = frozenset(vars(nn.Module()))

#: What a module consists of, besides its class.
_KINDS = ("attributes", "parameters", "buffers", "modules")

#: Types of plain values.
_PLAIN = (type(None), bool, int, float, str)

#: Types of numbers in stored arrays.
_NUMBERS = frozenset(
    map(np.dtype, ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"))
)

#: Length of the state of a generator on the CPU.
_CPU_STATE = len(torch.Generator("cpu").get_state())

#: Number of words of the Mersenne twister in it.
_TWISTER = 624

Part = TypeVar("Part", bound=nn.Module)


def to_plain(module: nn.Module) -> dict:
    """A module as nested dictionaries of arrays, numbers and names.

    Parameters
    ----------
    module : Module
        A module whose class :mod:`skdgp.inference.trusted` knows. Its attributes are numbers, strings, units, functions
        that are known there, too, or lists or tuples of these.

    Returns
    -------
    dict
        The module as plain data.
    """
    return {
        "class": name_of_class(type(module)),
        "attributes": {name: _plain(value) for name, value in vars(module).items() if name not in _INTERNAL},
        "parameters": {name: to_array(value) for name, value in module._parameters.items()},
        "buffers": {name: to_array(value) for name, value in module._buffers.items()},
        "modules": {name: None if part is None else to_plain(part) for name, part in module._modules.items()},
    }


@torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
def from_plain(state: dict, kind: type[Part] = nn.Module) -> Part:  # type: ignore[assignment]
    """The module of a class that :func:`to_plain` has stored in ``state``, on the CPU and without gradients.

    ``state`` may come from anybody. It decides what numbers the module has, and of which known classes its parts are,
    but not which code runs.

    Raises
    ------
    ValueError
        If ``state`` is something that :func:`to_plain` does not make.
    """
    _check_tree(state)
    module = _module(state)
    if not isinstance(module, kind):
        refuse(f"has a {type(module).__name__} in place of a {kind.__name__}")
    return module


def _module(state: dict) -> nn.Module:
    """The module, whose parts are made in turn."""
    if type(state) is not dict or state.keys() != {"class", *_KINDS} or any(type(state[k]) is not dict for k in _KINDS):
        refuse("has something else in place of a part")
    name = state["class"]
    kind = find_class(MOVED.get(name, name) if isinstance(name, str) else name)
    if issubclass(kind, GlobalLayer):
        state = _with_points(state)
    _check_names(kind, [name for kind_of_part in _KINDS for name in state[kind_of_part]])
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    vars(module).update({name: _rich(value) for name, value in state["attributes"].items()})
    for name, array in state["parameters"].items():
        parameter = None if array is None else nn.Parameter(to_tensor(array), requires_grad=False)
        nn.Module.register_parameter(module, name, parameter)
    for name, array in state["buffers"].items():
        nn.Module.register_buffer(module, name, None if array is None else to_tensor(array))
    for name, part in state["modules"].items():
        nn.Module.add_module(module, name, None if part is None else _module(part))
    return module


def _check_tree(state: dict) -> None:
    """ValueError if a part is in several places: few such parts could stand for more modules than any memory holds."""
    seen, waiting = set[int](), [state]
    while waiting:
        part = waiting.pop()
        if not (isinstance(part, dict | list | tuple) and part):
            continue
        if id(part) in seen:
            refuse("has the same part in two places")
        seen.add(id(part))
        waiting.extend(part.values() if isinstance(part, dict) else part)


def _check_names(kind: type[nn.Module], names: Sequence[Any]) -> None:
    """ValueError if a module of this class has no use for an attribute, part or array of a name."""
    for name in names:
        if not isinstance(name, str) or not name or "." in name or name.startswith("__"):
            refuse(f"has an attribute {name!r} of {kind.__name__}")
        inherited, own = name in _INTERNAL or hasattr(nn.Module, name), inspect.getattr_static(kind, name, None)
        if inherited or callable(own) or hasattr(type(own), "__get__"):  # a method or a property, and no default value
            refuse(f"has an attribute {name!r} in place of what {kind.__name__} has under this name")
    if len(set(names)) < len(names):
        refuse(f"has two attributes of {kind.__name__} with the same name")


def _with_points(state: dict) -> dict:
    """The state of a layer with inducing points as modules, also from a file of an earlier version."""
    moved = {POINTS[name]: array for name, array in state["parameters"].items() if name in POINTS}
    points = {name: to_plain(Points(to_tensor(array))) for name, array in moved.items()}
    own = {name: array for name, array in state["parameters"].items() if name not in POINTS}
    return state | {"parameters": own, "modules": points | state["modules"]}


def to_array(tensor: Tensor | None) -> np.ndarray | None:
    """A copy of a tensor as an array."""
    return None if tensor is None else tensor.detach().cpu().numpy().copy()


def to_tensor(array: np.ndarray) -> Tensor:
    """A copy of an array as a tensor on the CPU; the array itself may be a read-only memory map of a file."""
    if type(array) not in (np.ndarray, np.memmap) or (dtype := array.dtype.newbyteorder("=")) not in _NUMBERS:
        refuse(f"has a {type(array).__name__} that is no array of numbers")
    return torch.from_numpy(np.array(array, dtype, order="C"))


def to_generator(array: np.ndarray) -> torch.Generator:
    """A generator on the CPU with the stored state. The state of a GPU's generator becomes a seed instead."""
    generator, state = torch.Generator("cpu"), to_tensor(array)
    if state.dtype != torch.uint8 or state.dim() != 1:
        refuse("has something else in place of a generator's state")
    if len(state) != _CPU_STATE:
        return generator.manual_seed(zlib.crc32(array.tobytes()))
    # torch does not compare the number of random words that are left with the place of the next one, and would read
    # beyond the last. A new generator has (1, 0).
    left, place = state[8:12].view(torch.int32).item(), state[16:24].view(torch.int64).item()
    if (left, place) != (1, 0) and not (1 <= left <= _TWISTER and left + place == _TWISTER + 1):
        refuse("has a generator's state that no generator has")
    return generator.set_state(state)


def to_units(plain: Any) -> Units:
    """Units from lists of their shifts and scales."""
    columns = plain if type(plain) is list and len(plain) == 2 else [None, None]
    if any(type(column) is not list or any(type(number) is not float for number in column) for column in columns):
        refuse("has something else in place of units")
    return Units(*columns)


def _plain(value):
    if isinstance(value, FunctionType):
        return {"function": name_of_function(value)}
    if isinstance(value, np.generic):  # a parameter that the user has set to one
        value = value.item()
    if isinstance(value, Units):
        return {"units": [list(value.shift), list(value.scale)]}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    if type(value) in _PLAIN:
        return value
    raise TypeError(
        f"A module's attribute of type {type(value).__name__} cannot be stored: make it a buffer or a number."
    )


def _rich(value):
    """The inverse of :func:`_plain`."""
    if type(value) in (list, tuple):
        return type(value)(map(_rich, value))
    if type(value) is dict and value.keys() == {"units"}:
        return to_units(value["units"])
    if type(value) is dict and value.keys() == {"function"}:
        return find_function(value["function"])
    if type(value) not in _PLAIN:
        refuse(f"has an attribute of type {type(value).__name__}")
    return value
