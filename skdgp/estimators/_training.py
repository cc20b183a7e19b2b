"""Training of an estimator: a table is learnt, an ensemble learns from its rows, and the results are stored."""

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from ..inference.calibration import MAX_ROWS
from ..inference.clock import Clock
from ..inference.conditioning import conditioned, conditioned_stack
from ..inference.ensemble import Ensemble
from ..inference.ensemble import learn as learn_chunk
from ..inference.leave_one_out import LeftOutRows, few_enough
from ..inference.plan import Split
from ..inference.processes import agree, current
from ..inference.stack import Stack, View
from ..inference.streamed_base import suits
from ..inference.threads import threads_for
from ..methods.budget import in_double
from ..methods.kernels import has_objects
from ..tables import Encoded, Table
from ..tables.bounds import are_intervals
from ..tables.encoding import has_missing
from ..tables.rows import Rows
from ._ensembles import How, Trainings, learns_densities
from ._fitted import Learnt, keep
from ._gaps import batches_of, batches_to_learn
from ._kernels import warn_of_kernels
from ._knowledge import check_held_out
from ._monitor import Monitor, curves, times
from ._parameters import method_of, structure_of
from ._refusals import check
from ._rows import checker_of, class_weight_of, more_rows, read
from ._setup import blaming_units, has_base, likelihood_of, n_held_out, n_neighbors_of, split_of, start_of
from ._trends import StartingPoint, regressors, starting_points, without_trend
from ._warnings import warn_of_time
from ._wishes import Wishes, warn_of_changes, warn_of_idle


@torch.inference_mode(False)
@torch.enable_grad()
def fit(estimator, X, y, sample_weight, X_val, y_val, *, known=None, known_val=None):
    """Train an ensemble on all rows; see the estimators. What is known of rows comes by name."""
    clock = Clock(estimator.max_time)
    with threads_for():
        before, structure = vars(estimator).get("_learnt") if estimator.warm_start else None, structure_of(estimator)
        method, wishes = wishes_of(estimator, before, y, by_chunks=False)
        checker = checker_of(estimator, before)
        table, rows = read(checker, before, structure, X, y, sample_weight, known=known)
        if before is not None:
            warn_of_changes(wishes, before.structure)
        held_out = table.read_held_out(checker, X_val, y_val, rows.labels, class_weight_of(estimator), known_val)
        check_held_out(rows, held_out)
        device, dtype = _resolve_device(estimator.device), _precision(estimator, rows)
        rng = check_random_state(estimator.random_state)
        own_seeds = _seeds(rng, method.n_members(len(rows)))  # before all that depends on the number of rows
        order, seeds = agree(table.targets.order(rows.y, rng), own_seeds)
        kinds = regressors(getattr(estimator, "trend", None), len(rows), rng)  # only a regressor has trends
        parts = [StartingPoint(rows, held_out)]
        if kinds != [None]:
            with clock.timing("trend"):
                sees = not has_objects(estimator.kernel)  # kernel objects are about the user's features
                table, parts = starting_points(table, rows, held_out, kinds, order, sees=sees)
        judged = held_out is not None or estimator.early_stopping
        plan = method.plan(len(rows), held_out=judged, corrected=_is_corrected(estimator, rows.given))
        how = How(method, plan, seeds, base=has_base(estimator), n_neighbors=n_neighbors_of(estimator))
        trainings = Trainings(estimator, how, before, table, order, device, dtype, wishes, clock)
        hooks = {"X": rows.given.X, "y": rows.given.y, "metadata": {"sample_weight": rows.given.weight}}

        def attributes(ensemble: Ensemble) -> dict:
            course = curves(ensemble.histories) | {"fit_times_": times(clock)}
            if not is_classifier(estimator):
                course["outliers_"] = np.sort(rows.given.number[ensemble.outliers])
            return Learnt(ensemble, table, structure, len(rows)).attributes() | course

        n_epochs = len(parts) * how.n_epochs
        if learns_densities(estimator, how, rows):
            trainings.densities = how.of_densities(len(rows))
            n_epochs += trainings.densities.n_epochs
        with Monitor(estimator, n_epochs, hooks, lambda ensemble: attributes(trainings.together(ensemble))) as monitor:
            ensemble, bound = trainings.run(parts, monitor)
        ensemble.clock = clock
        ensemble.left_out = _in_table(ensemble, table, checker, X, rows.given)
        warn_of_time(ensemble, plan)
        warn_of_kernels(ensemble.predictor.main.models[0], table, estimator.kernel)
        return keep(estimator, attributes(ensemble) | {"lower_bound_": bound})


@torch.inference_mode(False)
@torch.enable_grad()
def learn(estimator, X, y, sample_weight, total_size, classes=None, *, new: bool = True, known=None):
    """Learn from one chunk of rows; see the estimators' ``partial_fit``.

    Rows that are not ``new`` to the estimator train members, and judge nothing. What is known of rows comes by name.
    """
    clock = Clock()
    with threads_for():
        before, structure = vars(estimator).get("_learnt"), structure_of(estimator)
        method, wishes = wishes_of(estimator, before, y, by_chunks=True)
        options = {"by_chunks": True, "classes": classes, "known": known}
        table, rows = read(checker_of(estimator, before), before, structure, X, y, sample_weight, **options)
        n_rows = _total_rows(total_size, len(rows))
        likelihood = likelihood_of(estimator, before, table, rows)
        view, groups = View(table.encoding.width), table.encoding.groups
        rng = check_random_state(estimator.random_state)
        order = rng.permutation(len(rows))
        if before is None:
            device = _resolve_device(estimator.device)
            batches, _ = batches_to_learn(rows, likelihood, table, view, order, groups, device)
        else:
            device, batches = before.predictor.device, batches_of(before.predictor, table, view)
        chunk = batches(rows, _precision(estimator, rows))
        n_seen = len(chunk) + (0 if before is None else before.n_rows)
        plan, split = method.plan(n_rows or n_seen, len(chunk)), Split(order)
        if before is None:
            losses, n_members = np.empty(0), method.n_members(n_rows)
            start = start_of(estimator, method, table, chunk, order, likelihood)
            if likelihood.calibrated():
                split = split_of(chunk, order, min(n_held_out(estimator, chunk), MAX_ROWS))
            warn_of_idle(wishes, table=table, likelihood=likelihood, plan=plan, split=split, n_members=n_members)
        else:
            main = before.predictor.main  # without a member that learns densities
            has = {"n_estimators": (len(main),), "device": (str(device), device.type)}
            warn_of_changes(wishes, before.structure, **has, dtype=(str(main.dtype).removeprefix("torch."),))
            losses, n_members, start = estimator.loss_curve_, len(main), main.continued
        earlier = None if before is None else replace(before.ensemble, predictor=main)
        with blaming_units(likelihood, chunk):
            with_base = has_base(estimator) and suits(likelihood) and current().size == 1
            seeds = _seeds(rng, n_members)
            ensemble = learn_chunk(
                earlier, start, seeds, chunk, plan, split, device, base=with_base, groups=groups, new=new
            )
        losses = np.append(losses, np.mean([history.loss[-1] for history in ensemble.histories]))
        course = {"n_iter_": len(losses), "loss_curve_": losses, "validation_scores_": np.empty(0)}
        course["best_iter_"] = [len(losses)] * n_members
        course["fit_times_"] = times(clock)
        return keep(estimator, Learnt(ensemble, table, structure, n_seen).attributes() | course)


@torch.inference_mode(False)
def condition(estimator, X, y, sample_weight, *, known=None):
    """Let closed posteriors learn from new rows; see the estimators' ``update``. What is known of them is by name."""
    with threads_for():
        before, structure, rows = more_rows(estimator, X, y, sample_weight, known, by_chunks=True)
        table = before.table
        predictor, generator = before.predictor, torch.Generator("cpu").manual_seed(before.n_rows)
        exact = np.dtype(np.float64)
        if isinstance(predictor, Stack) and table.trends:
            parts = [
                conditioned(part, batches_of(part, table, view)(without_trend(rows, table, view), exact), generator)
                for part, view in zip(predictor.predictors, predictor.views, strict=True)
            ]
            predictor = Stack(parts, predictor.views, predictor.shares)
        else:
            batch = batches_of(predictor, table, View(table.encoding.width))(rows, exact)
            if isinstance(predictor, Stack):
                predictor = conditioned_stack(predictor, batch, generator)
            else:
                predictor = conditioned(predictor, batch, generator)
        ensemble = Ensemble(predictor, before.ensemble.plan_name, left_out="update")
        return keep(estimator, Learnt(ensemble, table, structure, before.n_rows + len(rows)).attributes())


def wishes_of(estimator, before: Learnt | None, y, *, by_chunks: bool) -> tuple[Any, Wishes]:
    """The method, and what the user asks for; ValueError if parameters do not go together, or with the targets."""
    if before is None:
        censored = not is_classifier(estimator) and are_intervals(y)
    else:
        censored = before.table.targets.censored
    method = method_of(estimator, censored=censored)
    check(wishes := Wishes(estimator, method, by_chunks, censored))
    return method, wishes


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


def _in_table(ensemble: Ensemble, table: Table, checker, X, rows: Rows) -> LeftOutRows | str:
    """Predictions of all rows that the user gave, each left out, or the reason why there are none.

    Models have not learnt from rows of weight zero, and predict them as they predict new rows.
    """
    left_out, absent = ensemble.left_out, np.setdiff1d(np.arange(rows.n_given), rows.number)
    if isinstance(left_out, str):
        return left_out
    others = table.query(checker, X)[absent] if len(absent) else rows.X[:0]
    if has_missing(rows.X) or has_missing(others):
        return "cells"
    if not len(absent):
        return left_out._replace(lacking=torch.from_numpy(table.lacking(rows.X)))
    if not few_enough(rows.n_given, left_out.mean.shape[2], len(left_out.mean)):
        return "rows"
    predictor = ensemble.predictor
    batches = [members for _, members in predictor.predict(others, table.prepared, lambda _, marginals: marginals)]
    parts = [LeftOutRows.of(members) for members in batches]
    mean, variance = (torch.cat([part[i] for part in parts], dim=1) for i in (0, 1))
    plain = LeftOutRows(mean, variance, left_out.sizes)
    lacking = np.empty((rows.n_given, len(table.may_lack)))
    lacking[rows.number], lacking[absent] = table.lacking(rows.X), table.lacking(others)
    return left_out.among(plain, rows.number)._replace(lacking=torch.from_numpy(lacking))


def _is_corrected(estimator, rows: Rows) -> bool:
    """Whether members may learn less since a base and neighbours correct them. Known noise has no neighbours."""
    return has_base(estimator) and n_neighbors_of(estimator) != 0 and "noise_variance" not in rows.known


def _precision(estimator, rows: Encoded) -> np.dtype:
    """Precision of predictions."""
    if in_double(estimator):
        return np.dtype(np.float64)
    return rows.given.X.dtype if estimator.dtype == "auto" else np.dtype(estimator.dtype)


def _seeds(rng: np.random.RandomState, number: int) -> list[int]:
    """Random seeds of members."""
    return [int(seed) for seed in rng.randint(np.iinfo(np.int32).max, size=number)]


def _resolve_device(name: str) -> torch.device:
    """The device called ``name``, with its number. If it cannot be used, a ValueError says which devices there are."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        number = torch.zeros(1, device=torch.device(name))
        number.cpu()  # "meta" is a device, too, but its tensors hold nothing
        return number.device
    except (RuntimeError, AssertionError) as error:
        available = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ValueError(f"device={name!r} cannot be used here. Available: 'auto', {available}.") from error
