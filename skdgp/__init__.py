"""Deep Gaussian processes for people who use scikit-learn."""

from .estimators import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    FunctionDraws,
    PredictiveDistribution,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)

__version__ = "0.2.0"

__all__ = [
    "AVDGPClassifier",
    "AVDGPRegressor",
    "DSDGPClassifier",
    "DSDGPRegressor",
    "FunctionDraws",
    "PredictiveDistribution",
    "SOLVEGPClassifier",
    "SOLVEGPRegressor",
    "__version__",
]
