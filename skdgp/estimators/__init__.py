"""Estimators: NumPy in, NumPy out."""

from ._avdgp import AVDGPClassifier, AVDGPRegressor
from ._dsdgp import DSDGPClassifier, DSDGPRegressor

__all__ = ["AVDGPClassifier", "AVDGPRegressor", "DSDGPClassifier", "DSDGPRegressor"]
