"""Estimators that are not fitted: their functions are drawn from the prior.

Before a fit there are no units. So features count as they are given, and the same row has the same function value
whatever the other rows are. Targets are those that the likelihood makes of functions with mean zero.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from sklearn.exceptions import NotFittedError

from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.latents import Latents
from ..gp.likelihoods import Likelihood
from ..gp.prior import PriorLayer
from ..inference.ensemble import Ensemble
from ..inference.predictor import Predictor
from ..methods.kernels import with_fixed_numbers
from ..tables import Table
from ..tables import learn as learn_table
from ..tables.frames import as_array_or_frame
from ._fitted import Learnt, keep
from ._parameters import structure_of
from ._rows import checker_of
from ._setup import likelihood_of
from ._training import wishes_of

#: Targets where functions are zero, by likelihood. For other likelihoods, targets decide what the prior is.
NEUTRAL = {"gaussian": 0.0, "student_t": 0.0, "heteroskedastic": 0.0}
NEUTRAL |= {"poisson": 1.0, "negative_binomial": 1.0, "gamma": 1.0, "lognormal": 1.0, "beta": 0.5}

#: Values of parameters with which models are built. They say how posteriors are approximated, and priors have none.
BUILT_WITH = {
    "n_inducing": "auto",
    "n_orthogonal": 0,
    "covariance": "diag",
    "layer_posterior": "factorised",
    "propagation": "monte_carlo",
    "rule": "ar1",
}

#: Number of rows with standard normal features that models are built from. Only posteriors depend on them, and means
#: of hidden layers that are narrower than their inputs.
N_ROWS = 100


@torch.inference_mode(False)
@torch.no_grad()
def with_prior(estimator, X, known: Mapping[str, Any]):
    """A copy of an estimator that is not fitted, whose functions are those of the prior.

    The rows say which levels, dates and gaps there are. ``known`` is what else is known of them, by name. It is a
    NotFittedError if targets decide what the prior is.
    """
    estimator._validate_params()
    neutral, X = _neutral(estimator), as_array_or_frame(X)
    y = np.full((*np.shape(X), 1)[0], neutral)  # what is no table has no shape, and is an error later
    copy = checker_of(estimator, None)
    copy.normalize_X, copy.normalize_y, copy.kernel = False, False, with_fixed_numbers(estimator.kernel)
    method, _ = wishes_of(copy, None, y, by_chunks=False)
    options = {"normalize": False, "categorical_features": copy.categorical_features, "known": known}
    table, rows = learn_table(copy, copy._kind_of_targets(), X, y, **options)
    if any(values is not None for values in table.encoding.values):
        _refuse(estimator, "a category of so many levels that mean targets stand for them")
    model = _model_of(method, likelihood_of(copy, None, table, rows), rows.X.shape[1], table)
    learnt = Learnt(Ensemble(Predictor([model]), "prior"), table, structure_of(copy), n_rows=0)
    return keep(copy, learnt.attributes())


def _neutral(estimator) -> float:
    """A target for which functions are zero; NotFittedError if targets decide what the prior is."""
    likelihood, logarithms = estimator.likelihood, estimator.target_transform == "log"
    refused = {name: getattr(estimator, name, None) is not None for name in ("n_latent_outputs", "trend")}
    refused["likelihood"] = not (isinstance(likelihood, str) and likelihood in NEUTRAL)
    # Logarithms with other noise than Gaussian are bounded by the targets.
    refused["target_transform"] = estimator.target_transform is not None and not (
        logarithms and likelihood == "gaussian"
    )
    for name, is_refused in refused.items():
        if is_refused:
            _refuse(estimator, f"{name}={getattr(estimator, name)!r}")
    return NEUTRAL["lognormal" if logarithms else likelihood]


def _refuse(estimator, what: str) -> None:
    raise NotFittedError(
        f"This {type(estimator).__name__} is not fitted yet, and without targets there is no prior with {what}: call "
        "fit first, or leave it out."
    )


def _model_of(method, likelihood: Likelihood, n_inputs: int, table: Table) -> DeepGP:
    """The model of a method whose layers are those of the prior, for rows with so many columns."""
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(N_ROWS, n_inputs, generator=generator, device="cpu", dtype=torch.float32)
    names = {field.name for field in fields(method)}
    simple = replace(method, **{name: value for name, value in BUILT_WITH.items() if name in names})
    built = simple.build(X, likelihood, generator, table)
    n_latent = built.propagation.n_dims if isinstance(built.propagation, Latents) else 0
    widths = (n_inputs + n_latent, *method.widths(n_inputs), likelihood.n_outputs)
    layers = [
        PriorLayer(layer.kernel, cast(GlobalLayer, layer).mean, *sizes)
        for layer, sizes in zip(built.layers, pairwise(widths), strict=True)
    ]
    return DeepGP(layers, built.propagation, likelihood)
