"""Estimators: NumPy in, NumPy out."""

from ._avdgp import AVDGPClassifier, AVDGPRegressor
from ._dsdgp import DSDGPClassifier, DSDGPRegressor
from ._predictive import PredictiveDistribution
from ._solvegp import SOLVEGPClassifier, SOLVEGPRegressor

__all__ = [
    "AVDGPClassifier",
    "AVDGPRegressor",
    "DSDGPClassifier",
    "DSDGPRegressor",
    "PredictiveDistribution",
    "SOLVEGPClassifier",
    "SOLVEGPRegressor",
]
