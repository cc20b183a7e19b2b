"""Estimators: NumPy in, NumPy out."""

from ._avdgp import AVDGPClassifier, AVDGPRegressor

__all__ = ["AVDGPClassifier", "AVDGPRegressor"]
