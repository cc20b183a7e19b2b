"""Predictive distributions: densities, quantiles, draws and scores."""

from ._family import FamilyDistribution
from ._gaussian import PredictiveDistribution
from ._log_link import CountDistribution, GammaDistribution
from ._mixture import Mixture, central_levels
from ._transformed import Logarithm, TransformedDistribution

__all__ = [
    "CountDistribution",
    "FamilyDistribution",
    "GammaDistribution",
    "Logarithm",
    "Mixture",
    "PredictiveDistribution",
    "TransformedDistribution",
    "central_levels",
]
