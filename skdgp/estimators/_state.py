"""A fitted estimator as plain data, and back."""

import inspect
from dataclasses import fields
from types import FunctionType
from typing import Any

from ..inference.ensemble import Ensemble
from ..inference.state import to_units
from ..inference.trusted import refuse
from ..tables import Table
from ..tables.columns import Columns
from ..tables.encoding import Encoding
from ..tables.targets import Labels, Numbers
from ..tables.trend import Trend
from ._checksum import checksums
from ._fitted import Learnt
from ._migration import upgraded, warn_of_lost, without_removed

#: What only a fitted estimator has in a file. In memory ``Learnt`` has it.
STORED = (
    "_ensemble",
    "_columns",
    "_encoding",
    "_input_units",
    "_structure",
    "_n_seen",
    "_y_is_flat",
    "_y_is_censored",
    "_trend_units",
    "_label_encoder",
)


def to_state(state: dict) -> dict:
    """The state of a fitted estimator as arrays, numbers and names only, with checksums."""
    if "_learnt" not in state:
        return state
    learnt, table = state["_learnt"], state["_learnt"].table
    plain = {
        "_ensemble": learnt.ensemble.to_plain(),
        "_columns": None if table.columns is None else table.columns.to_plain(),
        "_encoding": table.encoding.to_plain(),
        "_input_units": [list(table.units.shift), list(table.units.scale)],
        "_structure": learnt.structure,
        "_n_seen": learnt.n_rows,
        "_y_is_flat": table.targets.flat,
        "_y_is_censored": table.targets.censored,
        "_trend_units": [[list(trend.units.shift), list(trend.units.scale)] for trend in table.trends],
    }
    state = {name: value for name, value in state.items() if name != "_learnt"} | plain
    return state | {"_checksums": checksums(state)}


def from_state(state: dict, kind: type) -> dict:
    """The inverse of :func:`to_state` for an estimator of a class, which also reads files of earlier versions.

    Parameters that a version did not have get their defaults.
    """
    if "module_" in state:  # version 0.1 had no checksums
        state = upgraded(state)
    elif "_ensemble" in state or "_checksums" in state:
        state = _unharmed(state)
    warn_of_lost(state)
    state = {field.name: field.default for field in fields(kind) if "option" in field.metadata} | without_removed(state)
    for name in state:
        if isinstance(inspect.getattr_static(kind, name, None), FunctionType | property | classmethod | staticmethod):
            refuse(f"has an attribute {name!r} in place of what {kind.__name__} has under this name")
    if "_ensemble" not in state:
        return state
    ensemble, structure = Ensemble.from_plain(state["_ensemble"]), without_removed(state.get("_structure", {}))
    structure = {"trend": None} | structure  # files from before trends have none
    learnt = Learnt(ensemble, _table(state), structure, state.get("_n_seen", 0))
    return learnt.attributes() | {name: value for name, value in state.items() if name not in STORED}


def _table(state: dict[str, Any]) -> Table:
    """What the estimator of a state has learnt of its table."""
    units, columns = to_units(state["_input_units"]), state.get("_columns")
    plain = state.get("_encoding")  # files from before categories and missing cells have none
    encoding = Encoding.of_complete(units) if plain is None else Encoding.from_plain(plain)
    columns = None if columns is None else Columns.from_plain(columns)
    trends = zip(state.get("trend_", []), map(to_units, state.get("_trend_units", [])), strict=True)
    return Table(
        columns,
        encoding,
        units,
        _targets(state),
        state.get("feature_names_in_"),
        tuple(Trend(regressors, of_trend) for regressors, of_trend in trends),
    )


def _targets(state: dict[str, Any]) -> Numbers | Labels:
    """The targets of the estimator of a state."""
    if "classes_" in state:
        return Labels(state["classes_"])
    transform = state.get("target_transform_", state.get("target_transform"))  # files from before "auto" have no choice
    transformer = state.get("target_transformer_")
    gaps = state.get("n_latent_outputs") is not None
    flat, censored = bool(state["_y_is_flat"]), bool(state.get("_y_is_censored", False))
    return Numbers(transform, gaps=gaps, transformer=transformer, flat=flat, censored=censored)


def _unharmed(state: dict) -> dict:
    """The state without its checksums; ValueError if they say that it has changed since it was stored."""
    expected = state.get("_checksums")
    if type(expected) is not dict or "_ensemble" not in expected:
        refuse("has no checksums")
    present = checksums({name: value for name, value in state.items() if name in expected})
    changed = [name for name in expected if present.get(name) != expected[name]]
    if changed:
        refuse(f"differs from what was stored, in {changed}")
    return {name: value for name, value in state.items() if name != "_checksums"}
