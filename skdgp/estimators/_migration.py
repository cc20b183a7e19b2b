"""Converts files that earlier versions wrote into today's form."""

import warnings
from copy import deepcopy
from typing import Any

import numpy as np

from ..inference.callers import users_level
from ..methods.avdgp import NETWORK_DEPTH
from ..methods.options import REMOVED

#: Classes and functions that have moved, or have a new name.
MOVED = {"skdgp.inference.propagation:": "skdgp.gp.propagation:", "skdgp.gp.networks:_Scale": "skdgp.gp.networks:_Root"}

#: Parts of modules that have a new name, by the file of the module's class.
RENAMED = {
    "propagation": {"noise": "points", "n_train_samples": "n_fewest"},
    "networks": {"scale": "root"},
    "layers": {"log_noise": "log_white_noise"},
}


def without_removed(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters, and whatever else an estimator stores, with today's parameters in place of removed ones."""
    new = {name: value for name, value in params.items() if name not in REMOVED}
    if params.get("orthogonal_covariance") == "prior" and _is_odvgp(params):
        new["covariance"] = "odvgp"
    if not params.get("whiten", True):
        new["covariance"] += "_unwhitened"
    if params.get("orthogonal_inducing", "points") != "points":
        new["inducing"] = f"points+{params['orthogonal_inducing']}"
    if params.get("network_depth", NETWORK_DEPTH) != NETWORK_DEPTH:
        new["network_width"] = params["network_depth"] * (params["network_width"],)
    return new


def warn_of_lost(params: dict[str, Any]) -> None:
    """Warn of values of removed parameters that no parameter of today can say.

    They are part of the model. Only a later fit is without them.
    """
    values = {"share_kernel": True, "tol": 0} | ({} if _is_odvgp(params) else {"orthogonal_covariance": "free"})
    for name, default in values.items():
        if params.get(name, default) != default:
            warnings.warn(
                f"A stored model was made with {name}={params[name]!r}, which is no parameter any more: it predicts as "
                "before, but another fit will not have it.",
                UserWarning,
                stacklevel=users_level(),
            )


def _is_odvgp(params: dict[str, Any]) -> bool:
    """Whether the second set of inducing variables is the only difference from full covariances."""
    return params.get("covariance") == "full" and params.get("whiten", True) and params.get("n_orthogonal", 0) != 0


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
