"""Predictive distributions: densities, quantiles, draws and scores."""

from ._family import FamilyDistribution
from ._gaussian import PredictiveDistribution
from ._grades import GradeDistribution
from ._log_link import CountDistribution, GammaDistribution
from ._mixture import Mixture, central_levels
from ._transformed import Logarithm, Logit, TransformedDistribution

__all__ = [
    "CountDistribution",
    "FamilyDistribution",
    "GammaDistribution",
    "GradeDistribution",
    "Logarithm",
    "Logit",
    "Mixture",
    "PredictiveDistribution",
    "TransformedDistribution",
    "central_levels",
]
