"""What is used of scikit-learn that is not public there, or is imported only when it is needed.

A new version of scikit-learn can break this file alone.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions, validate_params
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

try:
    from sklearn.callback import CallbackSupportMixin  # since 1.9
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands for callbacks of an older scikit-learn: there are none."""


def is_watched(estimator) -> bool:
    """Whether callbacks follow the fit of an estimator: its own, or those of what it is a part of."""
    return bool(getattr(estimator, "_skl_callbacks", None)) or hasattr(estimator, "_parent_callback_ctx")


def is_search(estimator) -> bool:
    """Whether it is a search, such as GridSearchCV. Those of other packages are only known once they are fitted."""
    from sklearn.model_selection._search import BaseSearchCV  # brings modules that fits do not need

    return isinstance(estimator, BaseSearchCV) or hasattr(estimator, "best_estimator_")


def is_transformed_target(estimator) -> bool:
    """Whether it is a TransformedTargetRegressor."""
    from sklearn.compose import TransformedTargetRegressor  # brings modules that fits do not need

    return isinstance(estimator, TransformedTargetRegressor)


__all__ = [
    "CallbackSupportMixin",
    "HasMethods",
    "Interval",
    "StrOptions",
    "check_sample_weight",
    "fit_context",
    "is_search",
    "is_transformed_target",
    "is_watched",
    "validate_params",
]
