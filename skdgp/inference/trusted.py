"""What stored models may name: classes and functions of this package, layers of torch, and the user's own parts.

A file that somebody else has made must not decide which code runs. So names are looked up in tables that are made
here, of what is *defined* in a fixed list of modules. What these modules have only imported is not in the tables. No
look-up imports a module, or asks a module for an attribute that it would make on demand.
"""

import sys
from types import FunctionType
from typing import Any, NoReturn

from torch import nn

from ..gp import (
    amortised_layer,
    blend,
    censored,
    classes,
    composed,
    coregional,
    coupled,
    deep_gp,
    features,
    fourier,
    global_layer,
    images,
    interactions,
    interdomain,
    kernels,
    latents,
    layers,
    likelihoods,
    log_link,
    means,
    neighbours,
    networks,
    noise,
    propagation,
)

#: Modules whose own classes are parts of models.
MODULES = (
    *(amortised_layer, blend, censored, classes, composed, coregional, coupled, deep_gp, features, fourier),
    *(global_layer, images, interactions, interdomain, kernels, latents, layers, likelihoods, log_link, means),
    *(neighbours, networks, noise, propagation),
)

#: Layers of torch: those of this package's models, and some more of which users make their own parts.
LAYERS = (
    *(nn.ModuleList, nn.ParameterList, nn.Sequential, nn.Linear),
    *(nn.Identity, nn.Flatten, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.Dropout),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh),
)

#: The functions that models contain.
FUNCTIONS: tuple[Any, ...] = (propagation.anchor_at_sample, propagation.anchor_at_mean)

#: The user's own classes are allowed, too, if they derive from these and are imported already.
PARTS = (
    *(kernels.Kernel, layers.Layer, likelihoods.Likelihood, means.Mean),
    *(networks.InferenceNetwork, propagation.Propagation),
)


def _name(thing: type | FunctionType) -> str:
    """The module in which a class or function is defined, and its name there."""
    return f"{thing.__module__}:{thing.__qualname__}"


def _own_classes(module) -> list[type[nn.Module]]:
    """The classes of parts of models that are defined in a module, and not imported there."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, nn.Module)]
    return [kind for kind in kinds if kind.__module__ == module.__name__]


_CLASSES = {_name(kind): kind for kind in [*LAYERS, *(own for module in MODULES for own in _own_classes(module))]}
_FUNCTIONS = {_name(function): function for function in FUNCTIONS}


def name_of_class(kind: type) -> str:
    """The name of a class; TypeError if :func:`find_class` would never find it.

    Another process may know one of the user's classes by this name, even if it cannot be found here: joblib's workers
    get classes of the main program without their module.
    """
    name = _name(kind)
    if _CLASSES.get(name) is not kind and ("." in kind.__qualname__ or not issubclass(kind, PARTS)):
        raise TypeError(
            f"{name} cannot be stored, since it could not be found again by this name: define classes at the top of a "
            f"module, and derive them from {_list_of(PARTS)}. Of torch's layers, only these are found: "
            f"{_list_of(LAYERS)}."
        )
    return name


def name_of_function(function: FunctionType) -> str:
    """The name of a function; TypeError if :func:`find_function` would not find it."""
    name = _name(function)
    if _FUNCTIONS.get(name) is not function:
        raise TypeError(
            f"{name} cannot be stored, since it could not be found again by this name: make it a method of the part "
            "that uses it."
        )
    return name


def find_class(name: Any) -> type[nn.Module]:
    """The class that a stored model names; ValueError if it may not be part of a model."""
    kind = _CLASSES.get(name) or _users_class(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(
            f"A stored model names {name!r}, which is no type of skdgp that is part of models, nor a layer of torch "
            "that skdgp trusts: this version of skdgp did not write it. Fit the model anew, or open the file with the "
            "version that wrote it. If it is a class of your own, import it before."
        )
    return kind


def find_function(name: Any) -> FunctionType:
    """The function that a stored model names; ValueError if it may not be part of a model."""
    function = _FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        raise ValueError(
            f"A stored model names {name!r}, which is no function of skdgp that is part of models: this version of "
            "skdgp did not write it. Fit the model anew, or open the file with the version that wrote it."
        )
    return function


def _users_class(name: str) -> type[nn.Module] | None:
    """A class of the user's own, from the module that defines it; None if there is none."""
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        return None
    kind = vars(sys.modules[module]).get(attribute)  # without the module's own __getattr__
    return kind if isinstance(kind, type) and issubclass(kind, PARTS) and _name(kind) == name else None


def _list_of(kinds: tuple[type, ...]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def refuse(what: str) -> NoReturn:
    """ValueError: a stored model is not as this package stores models."""
    raise ValueError(
        f"A stored model {what}: the file is damaged, or somebody has changed it. Take another copy of the file, or "
        "fit the model anew."
    )
