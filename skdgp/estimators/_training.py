"""Training of an estimator: tables are checked, scaled and encoded, an ensemble learns, and its results are stored.

The functions take the estimator as an argument, as scikit-learn's own ``validate_data`` does. They need these members
of the estimator:

* from its method (:mod:`skdgp.methods`): ``n_members``, ``plan`` and ``build``;
* from its kind, regressor or classifier: ``_check_options``, ``_start_likelihood``, ``_encode``, ``_row_weights`` and
  ``_order_rows``.

They store on it ``_ensemble``, ``_columns``, ``_encoding``, ``_input_units``, ``_structure`` and ``_n_seen``, and the
public attributes.
"""

import math
import warnings
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from numbers import Real
from typing import cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from .._sklearn import CALLBACK_STATE
from ..gp.composed import Part
from ..gp.deep_gp import DeepGP
from ..gp.layers import Layer
from ..gp.likelihoods import NOISE_FLOOR, Gaussian, Likelihood, Standardised
from ..inference.batches import Batch
from ..inference.calibration import MAX_ROWS
from ..inference.callers import users_level
from ..inference.ensemble import Ensemble
from ..inference.linear import linear_score
from ..inference.plan import Plan, Split
from ..inference.processes import agree
from ..inference.restarts import start_from_evidence
from ..inference.threads import threads_for
from ..methods.budget import in_double
from ..methods.inducing import INITIAL_ROWS
from ..methods.kernels import has_objects
from ._encoding import Encoding
from ._fitted import warn_of_kernels
from ._inputs import inputs
from ._monitor import Monitor, curves
from ._parameters import keep_structure
from ._rows import Table, check_held_out, check_table
from ._wishes import Fit, warn_of_idle

#: Limits of the precision in which models are trained.
SINGLE = np.finfo(np.float32)

#: With fewer rows than this, none are held out.
MIN_ROWS_TO_SPLIT = 20

#: Rows from which on a fit is compared with a linear model, and how much worse than that it must be, beyond chance.
MIN_ROWS_TO_COMPARE, MARGIN = 100, 0.1

#: Variances of kernels and noise start near one. If training fails, the cause are targets whose root mean square is
#: larger than this, or smaller than one over this.
FAR_FROM_ONE = 1e6

#: Largest number of rows that are held out only to judge.
MAX_JUDGES = 1000


@torch.inference_mode(False)
@torch.enable_grad()
def fit(estimator, X, y, sample_weight, X_val, y_val):
    """Train an ensemble on all rows; see the estimators."""
    with threads_for(), _unchanged_on_error(estimator):
        before = vars(estimator).get("_ensemble") if estimator.warm_start else None
        table, likelihood, given = _learn_table(estimator, X, y, sample_weight, before)
        held_out = check_held_out(estimator, X_val, y_val)
        held_out = None if held_out is None else _weighted(estimator, held_out, given, "X_val")
        device, dtype = _resolve_device(estimator.device), _precision(estimator, table)
        data = _to_batch(estimator, table, likelihood, dtype, learnt=True)
        rng = check_random_state(estimator.random_state)
        own_seeds = _seeds(rng, estimator.n_members(len(data)))  # before all that depends on the number of rows
        order, seeds = agree(estimator._order_rows(data.y.numpy(), rng), own_seeds)
        plan = estimator.plan(len(data), held_out=held_out is not None or estimator.early_stopping)
        split = _hold_out(estimator, data, order, held_out, likelihood, plan)
        warn_of_idle(Fit(estimator, likelihood, plan, split, len(seeds), device))
        ensemble = Ensemble(device, data.X.dtype)
        start = _start(estimator, data, order, likelihood) if before is None else before.continued
        hooks = {"X": table.X, "y": table.y, "metadata": {"sample_weight": table.weight}}
        with Monitor(estimator, plan.n_epochs(len(seeds)), hooks) as monitor:
            base, n_neighbors = _has_base(estimator), _n_neighbors(estimator)
            groups = estimator._encoding.groups
            with _blaming_units(likelihood, data):
                ensemble.fit(
                    start, seeds, data, split, plan, monitor, base=base, groups=groups, n_neighbors=n_neighbors
                )
        _warn_of_failure(estimator, ensemble, data, order)
        _keep(estimator, ensemble, len(data), curves(ensemble.histories))
        warn_of_kernels(estimator)
        bound = ensemble.objective(data, plan.settings.batch_size)
        estimator.lower_bound_ = bound + likelihood.log_jacobian(data.y, data.weight)
    return estimator


@torch.inference_mode(False)
@torch.enable_grad()
def learn(estimator, X, y, sample_weight, total_size, labels=None):
    """Learn from one chunk of rows; see the estimators' ``partial_fit``."""
    with threads_for(), _unchanged_on_error(estimator):
        before = vars(estimator).get("_ensemble")
        table, likelihood, _ = _learn_table(estimator, X, y, sample_weight, before, labels)
        n_rows = _total_rows(total_size, len(table))
        chunk = _to_batch(estimator, table, likelihood, _precision(estimator, table), learnt=before is None)
        n_seen = len(chunk) + (0 if before is None else estimator._n_seen)
        rng = check_random_state(estimator.random_state)
        order = rng.permutation(len(chunk))
        n_members, start, losses = estimator.n_members(n_rows), None, np.empty(0)
        if before is None:
            before = Ensemble(_resolve_device(estimator.device), chunk.X.dtype)
            start = _start(estimator, chunk, order, likelihood)
        else:
            n_members, losses = len(before), estimator.loss_curve_
        plan = estimator.plan(n_rows or n_seen, len(chunk))
        split = Split(order)
        if start is not None:
            if likelihood.calibrated():
                split = Split(order, None, min(_n_held_out(estimator, chunk), MAX_ROWS))
            warn_of_idle(Fit(estimator, likelihood, plan, split, n_members, before.device, by_chunks=True))
        with _blaming_units(likelihood, chunk):
            learnt = before.learn(start, _seeds(rng, n_members), chunk, plan, split)
        losses = np.append(losses, np.mean([history.loss[-1] for history in learnt.histories]))
        found = {"n_iter_": len(losses), "loss_curve_": losses, "validation_scores_": np.empty(0)}
        _keep(estimator, learnt, n_seen, found | {"best_iter_": [len(losses)] * len(learnt)})
        vars(estimator).pop("lower_bound_", None)  # that of an earlier fit
    return estimator


@contextmanager
def _blaming_units(likelihood: Likelihood, data: Batch):
    """Turn a failure of training into a ValueError if targets are far from where variances start."""
    try:
        yield
    except FloatingPointError as error:
        size = float(data.y.double().nan_to_num().square().mean().sqrt())
        if not hasattr(likelihood, "units") or 1 / FAR_FROM_ONE < size < FAR_FROM_ONE:
            raise
        raise ValueError(
            f"Training failed since targets have a root mean square of {size:.2g}, and the variances of kernels and "
            "noise start near one: set normalize_y=True, or give targets in other units."
        ) from error


def _total_rows(total_size, n_chunk: int) -> int | None:
    """The number of rows of all chunks together, if it is known."""
    if total_size is None:
        return None
    whole = isinstance(total_size, Real) and float(total_size).is_integer()  # 1e6 is welcome
    if not (whole and total_size >= n_chunk):
        raise ValueError(
            f"total_size={total_size!r} must be the number of rows of all chunks together, and this one has "
            f"{n_chunk} rows: pass a whole number at least as large, or leave it out if unknown."
        )
    return int(total_size)


def _learn_table(
    estimator, X, y, sample_weight, before: Ensemble | None, labels=None
) -> tuple[Table, Likelihood, np.ndarray]:
    """Checked rows, the likelihood of their targets, and the targets of all rows that ``sample_weight`` leaves.

    Rows whose labels have no weight are not among the checked rows. Without an ensemble, the rows decide units and
    encoding. ``labels`` are those of all chunks together, if the rows are one chunk of them.
    """
    keep_structure(estimator, fresh=before is None)
    table = check_table(estimator, X, y, sample_weight, fresh=before is None)
    if before is None:
        likelihood = estimator._start_likelihood(table.y if labels is None else np.asarray(labels))
    else:
        likelihood = before.models[0].likelihood
    given = table.y
    table = _weighted(estimator, table, given, "X")
    if before is None:
        n_levels, numbers = _n_levels(estimator, table.X.shape[1]), _target_numbers(estimator, table.y)
        learnt = Encoding.learn(table.X, numbers, table.weight, n_levels, normalize=estimator.normalize_X)
        estimator._encoding, estimator._input_units = learnt
        normalize_y = getattr(estimator, "normalize_y", False)  # only a regressor has it
        likelihood.learn_units(estimator._encode(table.y), table.weight, normalize=normalize_y)
        _warn_of_small_targets(likelihood, table.y, normalize_y)
    return table, likelihood, given


def _n_levels(estimator, n_features: int) -> list[int]:
    """For each feature the number of its levels; 0 if it is not a category."""
    columns = estimator._columns
    return n_features * [0] if columns is None else [0 if each is None else len(each) for each in columns.levels]


def _target_numbers(estimator, y: np.ndarray) -> np.ndarray:
    """Targets (n, P) whose means make sense: classes become indicators."""
    numbers = estimator._encode(y)
    return np.eye(len(estimator.classes_))[numbers[:, 0]] if is_classifier(estimator) else numbers


def _weighted(estimator, table: Table, learnt: np.ndarray, name: str) -> Table:
    """Rows whose weights are multiplied by those of their labels, which the labels ``learnt`` decide."""
    table = replace(table, weight=table.weight * estimator._row_weights(table.y, learnt))
    found = table.where(table.weight > 0)  # a class without weight counts as absent, as a row without weight does
    if not len(found):
        raise ValueError(f"{name} has no row with a target and a positive weight: pass other rows, or none.")
    with np.errstate(over="ignore"):
        largest, total = found.weight.max(), found.weight.sum()
    if largest < SINGLE.tiny or total > SINGLE.max:
        raise ValueError(
            f"Weights of the rows of {name} are at most {largest:.1e} and add up to {total:.1e}, which float32 cannot "
            "hold: pass sample_weight=weight / weight.max(), or a smaller class_weight."
        )
    return found


def _to_batch(estimator, table: Table, likelihood: Likelihood, dtype: np.dtype, *, learnt: bool = False) -> Batch:
    """Scaled and encoded rows in main memory; ``learnt`` if the numbers of levels come from the same rows."""
    of_others = None
    if learnt and any(values is not None for values in estimator._encoding.values):
        of_others = estimator._encoding.of_others(table.X, _target_numbers(estimator, table.y), table.weight)
    X = inputs(estimator, table.X, of_others)
    return Batch.of(X, likelihood.encode(estimator._encode(table.y)), table.weight, dtype)


def _hold_out(
    estimator, data: Batch, order: np.ndarray, rows: Table | None, likelihood: Likelihood, plan: Plan
) -> Split:
    """Rows that judge the models: those that the user gave, or a share of all rows, or none."""
    if rows is not None:
        return Split(order, _to_batch(estimator, rows, likelihood, data.X.numpy().dtype))
    kriged = getattr(likelihood, "kriged", False) and _n_neighbors(estimator) != 0
    wanted = kriged or (_has_base(estimator) and likelihood.has_base)
    to_judge = not estimator.early_stopping and (plan.finish is not None or plan.hold_out) and wanted
    if not (estimator.early_stopping or to_judge):
        return Split(order)
    n_rows = _n_held_out(estimator, data)
    return Split(order, None, min(n_rows, MAX_JUDGES) if to_judge else n_rows, to_judge)


def _n_held_out(estimator, data: Batch) -> int:
    """Number of rows that a member holds out, if it holds any out."""
    if len(data) < MIN_ROWS_TO_SPLIT:
        return 0
    return min(max(1, round(estimator.validation_fraction * len(data))), len(data) - 1)


def _has_base(estimator) -> bool:
    """Whether predictions are to be blended with a base.

    They are not with kernel objects, which describe the functions far from all rows themselves.
    """
    return estimator.base is not None and not has_objects(estimator.kernel) and not _is_alone(estimator)


def _is_alone(estimator) -> bool:
    """Whether neither base nor neighbours suit: predictions have several modes, or outputs are correlated."""
    return getattr(estimator, "latent_dims", 0) > 0 or getattr(estimator, "n_latent_outputs", None) is not None


def _n_neighbors(estimator) -> int | None:
    """Number of neighbours that correct predictions; None if the gain decides whether there are any."""
    if is_classifier(estimator) or _is_alone(estimator):
        return 0
    return None if estimator.n_neighbors == "auto" else int(estimator.n_neighbors)


def _warn_of_small_targets(likelihood: Likelihood, y: np.ndarray, normalize_y: bool) -> None:
    """Warn if the noise is wider than targets that are not standardised, since it has a smallest value."""
    if normalize_y or not isinstance(likelihood, Standardised):
        return
    deviation, least = float(np.nanstd(y)), math.sqrt(NOISE_FLOOR)
    if 0 < deviation < least:
        warnings.warn(
            f"The targets have a standard deviation of {deviation:.1e}, and with normalize_y=False the noise has one "
            f"of at least {least:g} while a model learns. So intervals may be far too wide: set normalize_y=True, or "
            "choose another unit.",
            UserWarning,
            stacklevel=users_level(),
        )


def _warn_of_failure(estimator, ensemble: Ensemble, data: Batch, order: np.ndarray) -> None:
    """Warn if a linear model predicts rows that it has not learnt from better."""
    held_out = ensemble.held_out
    comparable = hasattr(ensemble.models[0].likelihood, "units")  # their densities are those of standardised targets
    if held_out is None or not comparable or len(data) < MIN_ROWS_TO_COMPARE or data.y.isnan().any():
        return
    line = linear_score(data.rows(torch.from_numpy(order[:INITIAL_ROWS])))
    chance = math.sqrt(2.0 / held_out.n_rows)  # two standard errors: a Gaussian's log density varies by 1/2
    if line is not None and (score := held_out.score) < line - MARGIN - chance:
        warnings.warn(
            f"A linear model predicts held-out rows better: their mean log density is {score:.2f} by this model, and "
            f"{line:.2f} by least squares, for standardised targets. Training may have failed: raise max_iter, change "
            'learning_rate, or set base="auto".',
            ConvergenceWarning,
            stacklevel=users_level(),
        )


def _start(estimator, data: Batch, order: np.ndarray, likelihood: Likelihood):
    """A function that makes untrained members. Their initial values come from the first rows of a random order."""
    sample = data.rows(torch.from_numpy(order[:INITIAL_ROWS])).to("cpu", torch.float32)
    likelihood.initialise(sample.y, sample.weight)
    n_restarts = getattr(estimator, "n_restarts_optimizer", 0)
    learnt = list[torch.nn.Module]()  # kernel and noise of the first member, which all members start with

    def build(index: int, generator: torch.Generator) -> DeepGP:
        model = estimator.build(sample.X, deepcopy(likelihood), generator)
        if _has_evidence(estimator, model):
            kernel, noise = cast(Layer, model.layers[0]).kernel, cast(Gaussian, model.likelihood)
            if not learnt:
                start_from_evidence(kernel, noise, sample, n_restarts, generator)
                learnt.extend(map(deepcopy, (kernel, noise)))
            for module, source in zip((kernel, noise), learnt, strict=True):
                module.load_state_dict(source.state_dict())
        elif n_restarts:
            raise ValueError(
                f"n_restarts_optimizer={n_restarts} needs a kernel object and Gaussian noise without n_latent_outputs: "
                "change these, or set n_restarts_optimizer=0."
            )
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


def _keep(estimator, ensemble: Ensemble, n_seen: int, found: dict) -> None:
    """Store the attributes of a fitted estimator."""
    estimator._ensemble, estimator._n_seen = ensemble, n_seen
    for name, value in found.items():
        setattr(estimator, name, value)
    estimator.length_scales_ = _length_scales(ensemble)


def _length_scales(ensemble: Ensemble) -> list[np.ndarray | None]:
    """Lengthscales of each layer for all members; None for a layer whose kernel has none."""
    scales = []
    for layers in zip(*(member.layers for member in ensemble.models), strict=True):
        found = [layer.kernel.hyperparameters().get("lengthscale") for layer in layers]
        scales.append(None if found[0] is None else np.stack([each.detach().cpu().numpy() for each in found]))
    return scales


def _precision(estimator, table: Table) -> np.dtype:
    """Precision of predictions."""
    if in_double(estimator):
        return np.dtype(np.float64)
    return table.X.dtype if estimator.dtype == "auto" else np.dtype(estimator.dtype)


def _seeds(rng: np.random.RandomState, number: int) -> list[int]:
    """Random seeds of members."""
    return [int(seed) for seed in rng.randint(np.iinfo(np.int32).max, size=number)]


def _resolve_device(name: str) -> torch.device:
    """The device called ``name``. If it cannot be used, a ValueError says which devices there are."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        available = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ValueError(f"device={name!r} cannot be used here. Available: 'auto', {available}.") from error
    return device


@contextmanager
def _unchanged_on_error(estimator: BaseEstimator):
    """Give the estimator its old attributes back if the body raises an error."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        callbacks = {name: value for name, value in vars(estimator).items() if name in CALLBACK_STATE}
        vars(estimator).clear()
        vars(estimator).update(before | callbacks)
        raise
