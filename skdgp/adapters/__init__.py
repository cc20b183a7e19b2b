"""Adapters that let other packages use the estimators.

Each adapter needs the package that it is for. That package is imported when you first use the adapter.

* :class:`SkproRegressor` makes a regressor of `skpro <https://skpro.readthedocs.io>`_.
* :class:`BoTorchModel` makes a model of `BoTorch <https://botorch.org>`_, for its acquisition functions.
* :class:`Deviation` and :class:`Quantile` make regressors that predict a deviation or a quantile, for MAPIE.
* :class:`OutputTypes` makes a regressor whose ``predict`` has the argument ``output_type``.
* :class:`MomentsModule` makes a PyTorch module of mean and deviation, and :func:`to_onnx` saves them in an ONNX file.
"""

from importlib import import_module

_PLACES = {
    "SkproRegressor": "._skpro",
    "BoTorchModel": "._botorch",
    "Deviation": "._statistics",
    "Quantile": "._statistics",
    "OutputTypes": "._output_types",
    "MomentsModule": "._export",
    "to_onnx": "._export",
}

__all__ = ["BoTorchModel", "Deviation", "MomentsModule", "OutputTypes", "Quantile", "SkproRegressor", "to_onnx"]


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name], __name__), name)


def __dir__():
    return sorted(__all__)
