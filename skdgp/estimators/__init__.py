"""Estimators: NumPy in, NumPy out."""

from ._avdgp import AVDGPClassifier, AVDGPRegressor
from ._dsdgp import DSDGPRegressor

__all__ = ["AVDGPClassifier", "AVDGPRegressor", "DSDGPRegressor"]
