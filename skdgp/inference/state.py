"""Modules as plain data, so that a stored estimator contains only arrays, numbers and names.

Such a file opens with any version of torch and on any device. Tools that only load types that they trust, such as
skops, find no types of torch in it.
"""

import sys
import zlib
from importlib import import_module
from types import FunctionType
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from ..gp.features import Points
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import Kernel
from ..gp.layers import Layer
from ..gp.likelihoods import Likelihood
from ..gp.means import Mean
from ..gp.networks import InferenceNetwork
from ..gp.propagation import Propagation
from ..gp.units import Units

#: Packages from which classes and functions of stored modules may come. No others are ever imported.
TRUSTED = ("skdgp.", "torch.nn.modules.")

#: Parts of the user's own classes are allowed, too, if they derive from these and are imported already.
PARTS = (Kernel, Layer, Likelihood, Mean, InferenceNetwork, Propagation)

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


def to_plain(module: nn.Module) -> dict:
    """A module as nested dictionaries of arrays, numbers and names.

    Parameters
    ----------
    module : Module
        A module whose class comes from ``TRUSTED`` or derives from ``PARTS``. Its attributes are numbers, strings,
        units, functions, or lists or tuples of these.

    Returns
    -------
    dict
        The module as plain data.
    """
    return {
        "class": _checked_name(type(module), type),
        "attributes": {name: _plain(value) for name, value in vars(module).items() if name not in _INTERNAL},
        "parameters": {name: to_array(value) for name, value in module._parameters.items()},
        "buffers": {name: to_array(value) for name, value in module._buffers.items()},
        "modules": {name: None if part is None else to_plain(part) for name, part in module._modules.items()},
    }


@torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
def from_plain(state: dict) -> nn.Module:
    """The module that :func:`to_plain` has stored in ``state``, on the CPU and without gradients.

    Raises
    ------
    ValueError
        If ``state`` names something that :func:`to_plain` does not store.
    """
    kind = _find(state["class"], type)
    if issubclass(kind, GlobalLayer):
        state = _with_points(state)
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    vars(module).update({name: _rich(value) for name, value in state["attributes"].items()})
    for name, array in state["parameters"].items():
        module.register_parameter(name, None if array is None else nn.Parameter(to_tensor(array), requires_grad=False))
    for name, array in state["buffers"].items():
        module.register_buffer(name, None if array is None else to_tensor(array))
    for name, part in state["modules"].items():
        module.add_module(name, None if part is None else from_plain(part))
    return module


def _with_points(state: dict) -> dict:
    """The state of a layer with inducing points as modules, also from a file of an earlier version."""
    found = {POINTS[name]: array for name, array in state["parameters"].items() if name in POINTS}
    points = {name: to_plain(Points(to_tensor(array))) for name, array in found.items()}
    own = {name: array for name, array in state["parameters"].items() if name not in POINTS}
    return state | {"parameters": own, "modules": points | state["modules"]}


def to_array(tensor: Tensor | None) -> np.ndarray | None:
    """A copy of a tensor as an array."""
    return None if tensor is None else tensor.detach().cpu().numpy().copy()


def to_tensor(array: np.ndarray) -> Tensor:
    """A copy of an array as a tensor on the CPU; the array itself may be a read-only memory map of a file."""
    return torch.from_numpy(np.array(array))


def to_generator(array: np.ndarray) -> torch.Generator:
    """A generator on the CPU with the stored state. The state of a GPU's generator becomes a seed instead."""
    generator = torch.Generator("cpu")
    if len(array) == len(generator.get_state()):
        return generator.set_state(to_tensor(array))
    return generator.manual_seed(zlib.crc32(array.tobytes()))


def _plain(value):
    if isinstance(value, FunctionType):
        return {"function": _checked_name(value, FunctionType)}
    if isinstance(value, np.generic):  # a parameter that the user has set to one
        value = value.item()
    if isinstance(value, Units):
        return {"units": [list(value.shift), list(value.scale)]}
    if isinstance(value, list | tuple):
        return type(value)(_plain(each) for each in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"A module's attribute of type {type(value).__name__} cannot be stored: make it a buffer or a number."
    )


def _rich(value):
    if isinstance(value, list | tuple):
        return type(value)(_rich(each) for each in value)
    if not isinstance(value, dict):
        return value
    return Units(*value["units"]) if "units" in value else _find(value["function"], FunctionType)


def _checked_name(thing: type | FunctionType, kind: type) -> str:
    """The name of a class or function; TypeError if :func:`_find` would never find it.

    Another process may know a class by this name, even if it cannot be found here: joblib's workers get classes of the
    main program without their module.
    """
    name, ours = f"{thing.__module__}:{thing.__qualname__}", thing.__module__.startswith(TRUSTED)
    if "." in thing.__qualname__ or not (ours or (kind is type and issubclass(cast(type, thing), PARTS))):
        raise TypeError(
            f"{name} cannot be stored, since it could not be found again by this name: define classes at the top of a "
            "module, and functions as their methods."
        )
    return name


def _find(name: str, kind: type):
    """The class or function called ``name``."""
    module, _, attribute = MOVED.get(name, name).partition(":")
    if module.startswith(TRUSTED):
        found = getattr(import_module(module), attribute, None)
    else:
        found = getattr(sys.modules.get(module), attribute, None)
        found = found if isinstance(found, type) and issubclass(found, PARTS) else None
    if not isinstance(found, kind):
        raise ValueError(
            f"A stored model names {name!r}, which is no {kind.__name__} of {TRUSTED}: this version of skdgp did not "
            "write it. Fit the model anew, or open the file with the version that wrote it. If it is a class of your "
            "own, import it before."
        )
    return found
