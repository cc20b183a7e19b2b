"""Predictive distributions, which answer questions and score themselves."""

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
