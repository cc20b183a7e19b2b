"""Converts files that version 0.1 wrote into today's form."""

from copy import deepcopy

import numpy as np

#: Classes and functions that have moved, or have a new name.
MOVED = {"skdgp.inference.propagation:": "skdgp.gp.propagation:", "skdgp.gp.networks:_Scale": "skdgp.gp.networks:_Root"}

#: Parts of modules that have a new name, by the file of the module's class.
RENAMED = {
    "propagation": {"noise": "points", "n_train_samples": "n_fewest"},
    "networks": {"scale": "root"},
    "layers": {"log_noise": "log_white_noise"},
}


def upgraded(state: dict) -> dict:
    """The state of an estimator, from that of version 0.1."""
    state = {name: value for name, value in state.items() if name not in ("device_", "_streams")}
    target_units, plan = _units(state.pop("_target_scaler", None)), state.pop("method_", "svi")
    members = _module(state.pop("module_"), target_units)
    ensemble = {"members": members, "dtype": str(_first_array(members).dtype), "plan_name": plan}
    return state | {"_ensemble": ensemble, "_input_units": _units(state.pop("_input_scaler"))}


def _units(scaler) -> list | None:
    """Shift and scale, from a StandardScaler."""
    if scaler is None:
        return None
    one = np.ones(scaler.n_features_in_)
    shift, scale = 0 * one if scaler.mean_ is None else scaler.mean_, one if scaler.scale_ is None else scaler.scale_
    return [list(map(float, numbers)) for numbers in (shift, scale)]


def _module(state: dict, target_units: list | None) -> dict:
    """The state of a module in today's form."""
    file, _, name = state["class"].rpartition(".")[2].partition(":")
    names = RENAMED.get(file, {})
    new = {
        kind: {names.get(key, key): value for key, value in part.items()}
        for kind, part in state.items()
        if kind != "class"
    }
    parts = new["modules"].items()
    new["modules"] = {key: None if part is None else _module(part, target_units) for key, part in parts}
    attributes = new["attributes"]
    for key, value in attributes.items():
        if isinstance(value, dict):
            attributes[key] = {"function": _moved(value["function"])}
    if name == "StationaryKernel":
        log_variance = new["parameters"]["log_variance"]
        attributes["n_outputs"], new["buffers"]["unit"] = len(log_variance), np.ones_like(log_variance)
    elif name == "Gaussian":
        attributes["units"] = {"units": deepcopy(target_units)}  # each member has its own
    elif name == "Bernoulli":
        attributes["n_outputs"] = 1
    return new | {"class": _moved(state["class"])}


def _moved(name: str) -> str:
    for old, today in MOVED.items():
        name = name.replace(old, today)
    return name


def _first_array(state: dict) -> np.ndarray:
    """The first parameter of a module that has a value."""
    arrays = [array for array in state["parameters"].values() if array is not None]
    return arrays[0] if arrays else _first_array(next(iter(state["modules"].values())))
