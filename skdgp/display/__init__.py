"""Pictures of a model's predictions, of its training and of its layers. They work like scikit-learn's displays.

A display stores the numbers that it draws. Its class methods compute these numbers and draw them: ``from_estimator``
from an estimator, which may be a pipeline or a search, and ``from_predictions`` from predictions. The method ``plot``
draws the same numbers again, on other axes or in another style. It stores what it has drawn in attributes whose names
end in an underscore. Only drawing needs matplotlib.
"""

from ._calibration import CalibrationDisplay
from ._dependence import DependenceDisplay
from ._groups import GroupCoverageDisplay
from ._interval import PredictiveIntervalDisplay
from ._latent import LatentDisplay
from ._learning import LearningCurveDisplay

__all__ = [
    "CalibrationDisplay",
    "DependenceDisplay",
    "GroupCoverageDisplay",
    "LatentDisplay",
    "LearningCurveDisplay",
    "PredictiveIntervalDisplay",
]
