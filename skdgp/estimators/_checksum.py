"""Checksums of a fitted estimator's attributes, which show whether a stored estimator is what it was.

A file with a flipped bit often opens without an error, and predicts something else. A checksum finds such a file. It is
no signature: whoever changes a file on purpose can change its checksums, too.

Numbers, text, arrays, lists and dictionaries count with all that they hold, and so do estimators of scikit-learn and
objects of this package. Other objects, such as kernel objects, callbacks and classes, do not count: pickling may change
them, and the predictions of a fitted estimator do not depend on them.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

#: Types whose values have a representation that says all.
_PLAIN = (type(None), bool, int, float, complex, str, bytes)

#: How objects that are stored as the dictionary of their attributes get their state.
_BY_ATTRIBUTES = (object.__getstate__, BaseEstimator.__getstate__)


def checksums(state: dict[str, Any]) -> dict[str, str]:
    """The checksum of each attribute that counts.

    It does not depend on the byte order of arrays, or on their order in memory. The names count, too: a pickle stores a
    text that occurs twice once, so that damage changes it in both places.
    """
    return {name: _checksum((name, value), {}).hex() for name, value in state.items() if _counts(value)}


def _counts(value: Any) -> bool:
    return type(value) in _PLAIN or isinstance(value, np.generic | np.ndarray) or _parts(value) is not None


def _checksum(value: Any, digests: dict[int, bytes]) -> bytes:
    """The checksum of a value; ``digests`` has those of containers so far, by their addresses."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if type(value) in _PLAIN:
        return _of_bytes(f"{type(value).__name__} {value!r}".encode())
    if isinstance(value, np.ndarray):
        return _of_array(value, digests)
    if id(value) not in digests:
        digests[id(value)] = b""  # for containers that hold themselves
        kind = type(value).__name__ if type(value) in (list, tuple) else ""
        digests[id(value)] = _joined(kind, _parts(value) or [], digests)
    return digests[id(value)]


def _of_array(array: np.ndarray, digests: dict[int, bytes]) -> bytes:
    header = f"{array.shape}"
    if array.dtype.kind not in "biufcSUmM":  # objects
        return _joined(header, array.ravel().tolist(), digests)
    header += f" {array.dtype.kind}{array.dtype.itemsize}"
    numbers = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return _of_bytes(header.encode() + _of_bytes(numbers.tobytes()))


def _parts(value: Any) -> list | None:
    """What a container holds; None for objects that do not count."""
    ours = isinstance(value, BaseEstimator) or type(value).__module__.startswith("skdgp.")
    if ours and type(value).__getstate__ in _BY_ATTRIBUTES:
        value = vars(value)
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    return list(value) if isinstance(value, list | tuple) else None


def _joined(header: str, parts: list, digests: dict[int, bytes]) -> bytes:
    return _of_bytes(header.encode() + b"".join(_checksum(part, digests) for part in parts))


def _of_bytes(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()
