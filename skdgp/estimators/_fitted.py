"""What a fitted estimator has learnt, and errors if it has learnt nothing."""

from numbers import Integral
from typing import cast

from sklearn.utils.validation import check_is_fitted

from ..gp.composed import Part
from ..gp.deep_gp import DeepGP
from ..gp.layers import Layer
from ..inference.ensemble import Ensemble
from ..methods.kernels import to_object
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
