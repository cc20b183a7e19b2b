"""What a fit has learnt of kernels, as kernel objects of scikit-learn."""

import warnings
from typing import cast

from sklearn.exceptions import ConvergenceWarning

from ..gp.composed import Part
from ..gp.deep_gp import DeepGP
from ..gp.layers import Layer
from ..gp.likelihoods import Gaussian
from ..inference.callers import users_level
from ..methods.kernels import at_bounds, by_layer, is_object, stayed, to_object
from ..tables import Table
from ._fitted import built_with, learnt


def learnt_kernels(estimator):
    """Learnt kernels as kernel objects of scikit-learn: one, or a list with one for each layer."""
    of_fit = learnt(estimator)
    kernels = _kernels(of_fit.predictor.main.models[0], of_fit.table, built_with(estimator, "kernel"))
    return kernels[0] if len(kernels) == 1 else kernels


def warn_of_kernels(model: DeepGP, table: Table, given) -> None:
    """Warn of kernel objects that have learnt nothing, or whose hyperparameters ended at their bounds."""
    for start, kernel in zip(by_layer(given, len(model.layers)), _kernels(model, table, given), strict=True):
        if not is_object(start):
            continue
        if stayed(start, kernel):
            warnings.warn(
                f"The kernel {start} has kept its initial hyperparameters: raise max_iter, or start from other values.",
                ConvergenceWarning,
                stacklevel=users_level(),
            )
        for name, bound in at_bounds(kernel):
            warnings.warn(
                f"{name} of the kernel has ended at its bound of {bound:.3g}: widen its bounds, or fix it.",
                ConvergenceWarning,
                stacklevel=users_level(),
            )


def _kernels(model: DeepGP, table: Table, given) -> list:
    """Learnt kernels of all layers as kernel objects."""
    objects = []
    for depth, (start, layer) in enumerate(zip(by_layer(given, len(model.layers)), model.layers, strict=True)):
        kernel = cast(Layer, layer).kernel
        sums = isinstance(start, str) and isinstance(kernel, Part)  # over the model's columns, one by one
        units = table.units if sums else table.group_units
        likelihood, last = model.likelihood, depth == len(model.layers) - 1
        noise = float(likelihood.variance[0]) if last and isinstance(likelihood, Gaussian) else None
        objects.append(to_object(start, kernel, units if depth == 0 else None, noise))
    return objects
