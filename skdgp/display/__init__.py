"""Pictures of what models predict, how they learnt and what their layers do, in the manner of scikit-learn's displays.

A display holds the numbers that it draws. Its class methods compute them, from an estimator (pipelines and searches
too) or from predictions, and draw at once; :meth:`plot` draws them again, on other axes or in another style, and
leaves what it drew in attributes that end in an underscore. Only drawing needs matplotlib.
"""

from ._calibration import CalibrationDisplay
from ._interval import PredictiveIntervalDisplay
from ._latent import LatentDisplay
from ._learning import LearningCurveDisplay

__all__ = ["CalibrationDisplay", "LatentDisplay", "LearningCurveDisplay", "PredictiveIntervalDisplay"]
