"""How likely the targets of some rows are, for hyperparameters that the user may choose."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Gaussian
from ..inference.collapsed import best_of
from ..inference.stack import View
from ..inference.threads import threads_for
from ..methods.kernels import white_noise, with_numbers
from ..tables import Table
from ._fitted import Learnt, built_with, learnt
from ._gaps import batches_of
from ._kernels import learnt_kernels
from ._rows import more_rows, to_batch


@torch.inference_mode(False)
@torch.no_grad()
def log_marginal_likelihood(estimator, theta, X, y, sample_weight, *, known: Mapping[str, Any]) -> float:
    """The bound of rows for some hyperparameters; see :meth:`.SOLVEGPRegressor.log_marginal_likelihood`."""
    of_fit, others = learnt(estimator), [theta, X, y, sample_weight, *known.values()]
    if all(value is None for value in others) and hasattr(estimator, "lower_bound_"):
        return estimator.lower_bound_
    if X is None or y is None:
        raise ValueError(
            "log_marginal_likelihood needs the rows of fit, since the estimator keeps none of them: pass X and y, too."
        )
    _check_closed(estimator, of_fit)
    kernel = None if theta is None else _kernel_at(estimator, theta)
    _, _, rows = more_rows(estimator, X, y, sample_weight, known)
    predictor, likelihood = of_fit.predictor, of_fit.predictor.models[0].likelihood
    view = View(of_fit.table.encoding.width)  # rows count as in fit, which may not have looked at their gaps
    batches = batches_of(predictor, of_fit.table, view) if likelihood.rows_differ else partial(to_batch, likelihood)
    data = batches(rows, np.dtype(np.float64))
    if len(rows) == of_fit.n_rows:  # those of fit, of which outliers have no part in the models
        learnt_from = ~np.isin(rows.given.number, getattr(estimator, "outliers_", []))
        data = data.rows(torch.from_numpy(learnt_from))
    with threads_for():
        try:
            there = data.to(predictor.device, torch.float64)
            models = [_at(model, kernel, data.X.shape[1], of_fit.table) for model in predictor.models]
            bound = float(np.mean([best_of(model, there)[1] for model in models]))
        except np.linalg.LinAlgError:  # as scikit-learn, so that a search goes on elsewhere
            return -np.inf
    return bound + likelihood.log_jacobian(data.y, data.weight) if np.isfinite(bound) else -np.inf


def _check_closed(estimator, of_fit: Learnt) -> None:
    """ValueError if the best posterior of a model has no closed form."""
    if of_fit.table.trends or type(of_fit.predictor.models[0].likelihood) is not Gaussian:
        got = ", ".join(
            f"{name}={built_with(estimator, name)!r}" for name in ("likelihood", "n_latent_outputs", "trend")
        )
        raise ValueError(
            "log_marginal_likelihood of rows needs Gaussian noise of targets that are exact, without n_latent_outputs "
            f"and without a trend, got {got}: read lower_bound_, or score held-out rows."
        )


def _kernel_at(estimator, theta) -> Any:
    """The learnt kernel object with other hyperparameters, whose logarithms are ``theta``."""
    kernel = learnt_kernels(estimator)
    if kernel is None:
        raise ValueError(
            f"kernel={built_with(estimator, 'kernel')!r} is known to the package by its covariances alone, so that "
            "theta has no meaning: leave theta out, or compose the kernel of kernel objects."
        )
    values, names = np.asarray(theta, dtype=np.float64), [one.name for one in kernel.hyperparameters if not one.fixed]
    if values.shape != kernel.theta.shape or not np.isfinite(values).all():
        raise ValueError(
            f"theta={values.tolist()} must be {len(kernel.theta)} finite numbers, in the order of kernel_.theta: give "
            f"natural logarithms of {names}."
        )
    with np.errstate(over="ignore", under="ignore"):  # where numbers overflow there is no density
        return kernel.clone_with_theta(values)


def _at(model: DeepGP, kernel: Any, n_inputs: int, table: Table) -> DeepGP:
    """A copy of a model of one layer in float64, with the numbers of a kernel object; None leaves them as they are."""
    model = deepcopy(model).double()
    if kernel is not None:
        layer, white = model.layers[0], white_noise(kernel)
        layer.kernel = with_numbers(layer.kernel, kernel, n_inputs, table).to(next(model.parameters()))
        if white is not None:
            likelihood = cast(Gaussian, model.likelihood)
            likelihood.fix(likelihood.floor.new_tensor(white.noise_level))
    return model
