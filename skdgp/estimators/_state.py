"""A fitted estimator as plain data, and back."""

import inspect
from types import FunctionType

from ..inference.ensemble import Ensemble
from ..inference.state import to_units
from ..inference.trusted import refuse
from ._checksum import checksums
from ._columns import Columns
from ._encoding import Encoding
from ._migration import upgraded


def to_state(state: dict) -> dict:
    """The state of a fitted estimator as arrays, numbers and names only, with checksums."""
    if "_ensemble" not in state:
        return state
    units = state["_input_units"]
    plain = {"_ensemble": state["_ensemble"].__getstate__(), "_input_units": [list(units.shift), list(units.scale)]}
    found = {name: state[name].to_plain() for name in ("_columns", "_encoding") if state[name] is not None}
    state = state | plain | found
    return state | {"_checksums": checksums(state)}


def from_state(state: dict, kind: type) -> dict:
    """The inverse of :func:`to_state` for an estimator of a class, which also reads files of version 0.1."""
    if "module_" in state:  # version 0.1 had no checksums
        state = upgraded(state)
    elif "_ensemble" in state or "_checksums" in state:
        state = _unharmed(state)
    for name in state:
        if isinstance(inspect.getattr_static(kind, name, None), FunctionType | property | classmethod | staticmethod):
            refuse(f"has an attribute {name!r} in place of what {kind.__name__} has under this name")
    if "_ensemble" not in state:
        return state
    units = to_units(state["_input_units"])
    if "_encoding" not in state:  # a file from before categories and missing cells
        state = state | {"_columns": None, "is_categorical_": None, "_encoding": Encoding.of_complete(units).to_plain()}
    if state["_columns"] is not None:
        state = state | {"_columns": Columns.from_plain(state["_columns"])}
    ensemble = Ensemble.__new__(Ensemble)
    ensemble.__setstate__(state["_ensemble"])
    return state | {"_ensemble": ensemble, "_encoding": Encoding.from_plain(state["_encoding"]), "_input_units": units}


def _unharmed(state: dict) -> dict:
    """The state without its checksums; ValueError if they say that it has changed since it was stored."""
    expected = state.get("_checksums")
    if type(expected) is not dict or "_ensemble" not in expected:
        refuse("has no checksums")
    found = checksums({name: value for name, value in state.items() if name in expected})
    changed = [name for name in expected if found.get(name) != expected[name]]
    if changed:
        refuse(f"differs from what was stored, in {changed}")
    return {name: value for name, value in state.items() if name != "_checksums"}
