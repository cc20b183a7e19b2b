"""What a fitted model makes of its features, with the uncertainty of the answer.

Both functions draw functions from the model's posterior, and compute a number from each of them. They take estimators
of this package, and pipelines and searches that end in one. :class:`skdgp.display.DependenceDisplay` draws the results
of :func:`dependence`. :doc:`/functions` says what the numbers mean.
"""

from ._dependence import dependence
from ._sensitivity import sensitivity

__all__ = ["dependence", "sensitivity"]
