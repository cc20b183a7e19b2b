"""What a training starts from: the likelihood, untrained members, and the rows that judge them."""

from contextlib import contextmanager
from copy import deepcopy
from typing import cast

import numpy as np
import torch
from sklearn.base import is_classifier

from ..gp.composed import Part
from ..gp.deep_gp import DeepGP
from ..gp.layers import Layer
from ..gp.likelihoods import Gaussian, Likelihood, Regression
from ..inference.batches import Batch
from ..inference.ensemble import Start
from ..inference.plan import Plan, Split
from ..inference.restarts import start_from_evidence
from ..inference.twins import side_by_side, twins
from ..methods.inducing import INITIAL_ROWS
from ..methods.kernels import has_objects, white_noise
from ..tables import Encoded, Table
from ._fitted import Learnt
from ._knowledge import check_before, check_taken
from ._warnings import warn_of_small_targets

#: With fewer rows than this, none are held out.
MIN_ROWS_TO_SPLIT = 20

#: Variances of kernels and noise start near one. If training fails, the cause are targets whose root mean square is
#: larger than this, or smaller than one over this.
FAR_FROM_ONE = 1e6

#: Largest number of rows that are held out only to judge.
MAX_VALIDATION_ROWS = 3000


def likelihood_of(estimator, before: Learnt | None, table: Table, rows: Encoded) -> Likelihood:
    """The likelihood of a model that goes on learning, or one of targets like these, in whose units it computes."""
    known = rows.given.known
    if before is not None:
        likelihood = before.predictor.models[0].likelihood
        check_before(estimator, likelihood, known)
        return likelihood
    likelihood = estimator._make_likelihood(table.targets, rows.y.shape[1])
    check_taken(estimator, likelihood, known)
    normalize_y = getattr(estimator, "normalize_y", False)  # only a regressor has it
    likelihood.learn_units(rows.y, rows.given.weight, normalize=normalize_y)
    likelihood.learn_known(known, rows.given.weight, normalize=normalize_y)
    _start_noise(estimator, likelihood)
    warn_of_small_targets(likelihood, rows.given.y, normalize_y)
    return likelihood


def _start_noise(estimator, likelihood: Likelihood) -> None:
    """Let the noise start where a WhiteKernel in the parameter ``kernel`` says; ValueError if that means nothing."""
    white = white_noise(estimator.kernel)
    if white is None:
        return
    if type(likelihood) is not Gaussian:
        cure = ", or set likelihood='gaussian'" if isinstance(likelihood, Regression) else ""
        raise ValueError(
            f"kernel has a WhiteKernel, but the likelihood is {type(likelihood).__name__}, whose noise is not one "
            f"variance: leave the WhiteKernel out{cure}."
        )
    if likelihood.fixed:
        raise ValueError(
            "kernel has a WhiteKernel, and noise_variance was given: the noise of rows is the one or the other."
        )
    about = white.hyperparameter_noise_level
    bounds = [] if about.fixed else np.asarray(about.bounds, dtype=np.float64).ravel().tolist()
    levels = np.array([white.noise_level, *bounds])
    if not (np.isfinite(levels) & (levels > 0)).all() or bounds != sorted(set(bounds)):
        raise ValueError(
            f"kernel has {white} with noise_level_bounds={about.bounds!r}: give a positive number, and "
            'positive bounds of which the first is smaller, or "fixed".'
        )
    likelihood.start_at(float(white.noise_level), (bounds[0], bounds[1]) if bounds else None)


def start_of(estimator, method, table: Table, data: Batch, order: np.ndarray, likelihood: Likelihood) -> Start:
    """A function that makes untrained members. Their initial values come from the first rows of a random order."""
    sample = data.rows(torch.from_numpy(order[:INITIAL_ROWS])).to("cpu", torch.float32)
    likelihood.initialise(sample.y, sample.weight)
    n_restarts = getattr(estimator, "n_restarts_optimizer", 0)
    learnt = list[torch.nn.Module]()  # kernel and noise of the first member, which all members start with

    def build(index: int, generator: torch.Generator) -> DeepGP:
        model = method.build(sample.X, deepcopy(likelihood), generator, table)
        if _has_evidence(estimator, model):
            kernel, noise = cast(Layer, model.layers[0]).kernel, cast(Gaussian, model.likelihood)
            if not learnt:
                start_from_evidence(kernel, noise, sample, n_restarts, generator)
                learnt.extend(map(deepcopy, (kernel, noise)))
            for module, source in zip((kernel, noise), learnt, strict=True):
                module.load_state_dict(source.state_dict())
        return model

    return build


def _has_evidence(estimator, model: DeepGP) -> bool:
    """Whether hyperparameters can start from the exact evidence.

    It needs kernel objects, one layer whose inputs are the features alone, and Gaussian noise.
    """
    return (
        has_objects(estimator.kernel)
        and len(model.layers) == 1
        and not model.has_latents
        and isinstance(model.layers[0].kernel, Part)
        and type(model.likelihood) is Gaussian
    )


@contextmanager
def blaming_units(likelihood: Likelihood, data: Batch):
    """Turn a failure of training into a ValueError if targets are far from where variances start."""
    try:
        yield
    except FloatingPointError as error:
        size = float(data.y.double().nan_to_num().square().mean().sqrt())
        if not likelihood.standardised or 1 / FAR_FROM_ONE < size < FAR_FROM_ONE:
            raise
        raise ValueError(
            f"Training failed since targets have a root mean square of {size:.2g}, and the variances of kernels and "
            "noise start near one: set normalize_y=True, or give targets in other units."
        ) from error


def hold_out(
    estimator, data: Batch, order: np.ndarray, rows: Batch | None, likelihood: Likelihood, plan: Plan
) -> Split:
    """Rows that judge the models: those that the user gave, or a share of all rows, or none."""
    if rows is not None:
        return Split(order, rows)
    kriged = likelihood.kriged and n_neighbors_of(estimator) != 0
    wanted = kriged or (has_base(estimator) and likelihood.has_base)
    for_validation = not estimator.early_stopping and (plan.solve is not None or plan.hold_out) and wanted
    if not (estimator.early_stopping or for_validation):
        return Split(order)
    n_rows = n_held_out(estimator, data)
    if not n_rows:
        return Split(order, unjudged=plan.left_out is None)
    return split_of(data, order, min(n_rows, MAX_VALIDATION_ROWS) if for_validation else n_rows, for_validation)


def split_of(data: Batch, order: np.ndarray, n_rows: int, for_validation: bool = False) -> Split:
    """So many of all rows, which come in this order but for twins, which are held out together."""
    if not n_rows:
        return Split(order)
    group = twins(data).numpy()
    return Split(side_by_side(order, group), None, n_rows, for_validation, group)


def n_held_out(estimator, data: Batch) -> int:
    """Number of rows that a member holds out, if it holds any out."""
    if len(data) < MIN_ROWS_TO_SPLIT:
        return 0
    return min(max(1, round(estimator.validation_fraction * len(data))), len(data) - 1)


def has_base(estimator) -> bool:
    """Whether predictions are to be blended with a base.

    They are not with kernel objects, which describe the functions far from all rows themselves.
    """
    return estimator.base is not None and not has_objects(estimator.kernel) and not _is_alone(estimator)


def _is_alone(estimator) -> bool:
    """Whether neither base nor neighbours suit: predictions have several modes, or outputs are correlated."""
    return getattr(estimator, "latent_dims", 0) > 0 or getattr(estimator, "n_latent_outputs", None) is not None


def n_neighbors_of(estimator) -> int | None:
    """Number of neighbours that correct predictions; None if the gain decides whether there are any."""
    if is_classifier(estimator) or _is_alone(estimator):
        return 0
    return None if estimator.n_neighbors == "auto" else int(estimator.n_neighbors)
