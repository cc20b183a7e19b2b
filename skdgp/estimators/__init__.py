"""The estimators. They take arrays and data frames, and return NumPy arrays."""

from ..distributions import PredictiveDistribution
from ._avdgp import AVDGPClassifier, AVDGPRegressor
from ._dsdgp import DSDGPClassifier, DSDGPRegressor
from ._functions import FunctionDraws
from ._solvegp import SOLVEGPClassifier, SOLVEGPRegressor

__all__ = [
    "AVDGPClassifier",
    "AVDGPRegressor",
    "DSDGPClassifier",
    "DSDGPRegressor",
    "FunctionDraws",
    "PredictiveDistribution",
    "SOLVEGPClassifier",
    "SOLVEGPRegressor",
]
