"""Predictive distributions: densities, quantiles, draws and scores."""

from ._gaussian import PredictiveDistribution
from ._log_link import CountDistribution, GammaDistribution
from ._mixture import Mixture, central_levels
from ._transformed import Logarithm, TransformedDistribution

__all__ = [
    "CountDistribution",
    "GammaDistribution",
    "Logarithm",
    "Mixture",
    "PredictiveDistribution",
    "TransformedDistribution",
    "central_levels",
]
