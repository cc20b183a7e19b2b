"""Estimators: NumPy in, NumPy out."""

from ._avdgp import AVDGPRegressor

__all__ = ["AVDGPRegressor"]
