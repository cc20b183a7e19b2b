"""Fitted and unfitted estimators as other packages want them.

Each adapter needs the package that it is for, which is imported when the adapter is asked for.

* :class:`SkproRegressor`: a regressor of `skpro <https://skpro.readthedocs.io>`_.
* :class:`BoTorchModel`: a model of `BoTorch <https://botorch.org>`_, for its acquisition functions.
* :class:`Deviation` and :class:`Quantile`: regressors whose ``predict`` is a deviation or a quantile, for MAPIE.
* :class:`MomentsModule` and :func:`to_onnx`: mean and deviation as a module of torch, and as a file for ONNX.
"""

from importlib import import_module

_PLACES = {
    "SkproRegressor": "._skpro",
    "BoTorchModel": "._botorch",
    "Deviation": "._statistics",
    "Quantile": "._statistics",
    "MomentsModule": "._export",
    "to_onnx": "._export",
}

__all__ = ["BoTorchModel", "Deviation", "MomentsModule", "Quantile", "SkproRegressor", "to_onnx"]


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name], __name__), name)


def __dir__():
    return sorted(__all__)
