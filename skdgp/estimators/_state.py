"""A fitted estimator as plain data, and back."""

from ..gp.units import Units
from ..inference.ensemble import Ensemble
from ._columns import Columns
from ._encoding import Encoding
from ._migration import upgraded


def to_state(state: dict) -> dict:
    """The state of a fitted estimator as arrays, numbers and names only."""
    if "_ensemble" not in state:
        return state
    units = state["_input_units"]
    plain = {"_ensemble": state["_ensemble"].__getstate__(), "_input_units": [list(units.shift), list(units.scale)]}
    found = {name: state[name].to_plain() for name in ("_columns", "_encoding") if state[name] is not None}
    return state | plain | found


def from_state(state: dict) -> dict:
    """The inverse of :func:`to_state`, which also reads files of version 0.1."""
    if "module_" in state:
        state = upgraded(state)
    if "_ensemble" not in state:
        return state
    units = Units(*state["_input_units"])
    if "_encoding" not in state:  # a file from before categories and missing cells
        state = state | {"_columns": None, "is_categorical_": None, "_encoding": Encoding.of_complete(units).to_plain()}
    if state["_columns"] is not None:
        state = state | {"_columns": Columns.from_plain(state["_columns"])}
    ensemble = Ensemble.__new__(Ensemble)
    ensemble.__setstate__(state["_ensemble"])
    return state | {"_ensemble": ensemble, "_encoding": Encoding.from_plain(state["_encoding"]), "_input_units": units}
