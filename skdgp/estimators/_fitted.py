"""What a fitted estimator has learnt, and errors if it has learnt nothing."""

import warnings
from numbers import Integral
from typing import cast

from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ..gp.composed import Part
from ..gp.deep_gp import DeepGP
from ..gp.layers import Layer
from ..inference.callers import users_level
from ..inference.ensemble import Ensemble
from ..methods.kernels import at_bounds, is_object, stayed, to_object
from ._inputs import feature_units
from ._parameters import built_with


def fitted(estimator) -> Ensemble:
    """The ensemble of an estimator. Without one there is a NotFittedError, which is an AttributeError, too."""
    check_is_fitted(estimator)
    return estimator._ensemble


def member_of(estimator, number: int) -> DeepGP:
    """The model of a number; ValueError if there is no such model."""
    models = fitted(estimator).models
    if not (isinstance(number, Integral) and 0 <= number < len(models)):
        raise ValueError(f"member={number} is none of the {len(models)} members: give 0 to {len(models) - 1}.")
    return models[number]


def learnt_kernels(estimator):
    """Learnt kernels as kernel objects of scikit-learn: one, or a list with one for each layer."""
    layers, given = fitted(estimator).models[0].layers, built_with(estimator, "kernel")
    each = given if isinstance(given, list | tuple) else len(layers) * [given]
    found = []
    for depth, (own, layer) in enumerate(zip(each, layers, strict=True)):
        kernel = cast(Layer, layer).kernel
        sums = isinstance(own, str) and isinstance(kernel, Part)  # over the model's columns, one by one
        units = estimator._input_units if sums else feature_units(estimator)
        found.append(to_object(own, kernel, units if depth == 0 else None))
    return found[0] if len(found) == 1 else found


def warn_of_kernels(estimator) -> None:
    """Warn of kernel objects that have learnt nothing, or whose hyperparameters ended at their bounds."""
    learnt, given = learnt_kernels(estimator), built_with(estimator, "kernel")
    learnt = learnt if isinstance(learnt, list) else [learnt]
    for own, kernel in zip(given if isinstance(given, list | tuple) else len(learnt) * [given], learnt, strict=True):
        if not is_object(own):
            continue
        if stayed(own, kernel):
            warnings.warn(
                f"The kernel {own} has kept its initial hyperparameters: raise max_iter, or start from other values.",
                ConvergenceWarning,
                stacklevel=users_level(),
            )
        for name, bound in at_bounds(kernel):
            warnings.warn(
                f"{name} of the kernel has ended at its bound of {bound:.3g}: widen its bounds, or fix it.",
                ConvergenceWarning,
                stacklevel=users_level(),
            )
