"""Deep Gaussian processes for people who use scikit-learn."""

from .estimators import AVDGPRegressor

__version__ = "0.1.0"

__all__ = ["AVDGPRegressor", "__version__"]
