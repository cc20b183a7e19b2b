"""Training of an estimator: a table is learnt, an ensemble learns from its rows, and the results are stored."""

import warnings
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from ..gp.composed import Part
from ..gp.deep_gp import DeepGP
from ..gp.layers import Layer
from ..gp.likelihoods import Gaussian, Likelihood, Regression
from ..gp.units import Units
from ..inference.batches import Batch
from ..inference.calibration import MAX_ROWS
from ..inference.callers import users_level
from ..inference.clock import Clock
from ..inference.conditioning import conditioned
from ..inference.ensemble import Ensemble, Start, Training, beside, stacked
from ..inference.ensemble import learn as learn_chunk
from ..inference.leave_one_out import LeftOutRows, few_enough
from ..inference.plan import Plan, Split
from ..inference.processes import agree, current
from ..inference.restarts import start_from_evidence
from ..inference.stack import Stack, View
from ..inference.streamed_base import suits
from ..inference.threads import threads_for
from ..inference.twins import side_by_side, twins
from ..methods.budget import in_double
from ..methods.inducing import INITIAL_ROWS
from ..methods.kernels import groups_of, has_objects, white_noise
from ..tables import Encoded, Table
from ..tables.bounds import are_intervals
from ..tables.encoding import has_missing
from ..tables.rows import Rows
from ._fitted import Learnt, keep, warn_of_kernels
from ._gaps import Batches, batches_of, batches_to_learn
from ._knowledge import check_before, check_held_out, check_taken
from ._monitor import Monitor, curves, times
from ._parameters import method_of, structure_of
from ._refusals import check
from ._rows import checker_of, class_weight_of, more_rows, read
from ._trends import StartingPoint, regressors, starting_points, without_trend
from ._warnings import warn_of_failure, warn_of_few_rows, warn_of_small_targets, warn_of_time
from ._wishes import Wishes, warn_of_idle

#: With fewer rows than this, none are held out.
MIN_ROWS_TO_SPLIT = 20

#: Variances of kernels and noise start near one. If training fails, the cause are targets whose root mean square is
#: larger than this, or smaller than one over this.
FAR_FROM_ONE = 1e6

#: If a trend leaves over less than this share of the targets' deviation, this share is the unit of what is left over.
LEAST_LEFT_OVER = 1e-6

#: With fewer rows than this, no member is tried that learns densities. It gains little there.
FEWEST_TO_LEARN_DENSITIES = 4000

#: Weight of the penalty in this member. It is no ensemble, whose members would otherwise have to differ.
PENALTY_OF_DENSITIES = 1.0

#: Largest number of rows that are held out only to judge.
MAX_VALIDATION_ROWS = 1000


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
        how = How(method, plan, seeds, base=_has_base(estimator), n_neighbors=_n_neighbors(estimator))
        trainings = _Trainings(estimator, how, before, table, order, device, dtype, wishes, clock)
        hooks = {"X": rows.given.X, "y": rows.given.y, "metadata": {"sample_weight": rows.given.weight}}

        def attributes(ensemble: Ensemble) -> dict:
            course = curves(ensemble.histories) | {"fit_times_": times(clock)}
            if not is_classifier(estimator):
                course["outliers_"] = np.sort(rows.given.number[ensemble.outliers])
            return Learnt(ensemble, table, structure, len(rows)).attributes() | course

        n_epochs = len(parts) * how.n_epochs
        if _learns_densities(estimator, rows):
            trainings.densities = how.of_densities(len(rows), held_out=judged)
            n_epochs += trainings.densities.n_epochs
        with Monitor(estimator, n_epochs, hooks, lambda ensemble: attributes(trainings.together(ensemble))) as monitor:
            ensemble, bound = trainings.run(parts, monitor)
        ensemble.clock = clock
        ensemble.left_out = _in_table(ensemble, table, checker, X, rows.given)
        warn_of_time(ensemble, plan)
        warn_of_kernels(ensemble.predictor.main.models[0], table, estimator.kernel)
        return keep(estimator, attributes(ensemble) | {"lower_bound_": bound})


class How(NamedTuple):
    """How an ensemble is trained, whether it has a base, and how many neighbours (None if the gain decides)."""

    method: Any
    plan: Plan
    seeds: Sequence[int]
    base: bool
    n_neighbors: int | None

    @property
    def n_epochs(self) -> int:
        """Largest number of epochs."""
        return self.plan.n_epochs(len(self.seeds))

    def of_densities(self, n_rows: int, *, held_out: bool) -> "How":
        """How a member learns densities. It is alone: a base and neighbours would tell what its means are."""
        method = replace(self.method, objective="predictive", n_estimators=1, beta=PENALTY_OF_DENSITIES)
        return How(method, method.plan(n_rows, held_out=held_out), self.seeds[:1], base=False, n_neighbors=0)


class Lesson(NamedTuple):
    """What an ensemble learns from: rows with what a trend leaves over, and the rows that judge it."""

    part: StartingPoint
    likelihood: Likelihood
    data: Batch
    split: Split


@dataclass
class _Trainings:
    """The trainings of a fit, which are as many as there are trends to compare, and perhaps one that learns densities.

    ``densities`` says how that one is trained. ``ended`` has the ensembles of those that have ended, and ``views`` what
    these and the present one see.
    """

    estimator: Any
    how: How
    before: Learnt | None
    table: Table
    order: np.ndarray
    device: torch.device
    dtype: np.dtype
    wishes: Wishes
    clock: Clock
    densities: How | None = None
    ended: list[Ensemble] = field(default_factory=list)
    views: list[View] = field(default_factory=list)

    def together(self, ensemble: Ensemble) -> Ensemble:
        """The ensembles that have ended, with the present one, as one."""
        if self.table.trends:
            return stacked([*self.ended[: len(self.views) - 1], ensemble], self.views)
        return beside(self.ended[0], ensemble, self.views[0]) if self.ended else ensemble

    def run(self, parts: Sequence[StartingPoint], monitor: Monitor) -> tuple[Ensemble, float]:
        """All ensembles as one, and its evidence lower bound in the user's units."""
        bounds = []
        for number, part in enumerate(parts):
            likelihood = likelihood_of(self.estimator, self.before, self.table, part.rows)
            if part.trend is not None and self.estimator.normalize_y:
                _widen_units(cast(Regression, likelihood), part)
            self.views.append(part.view(self.table, likelihood))
            clock = self.clock.share(len(parts) - number)
            X = part.rows.given.X
            with clock.timing("gaps") if has_missing(X) or self.table.lacking(X).any() else nullcontext():
                batches, like = self.batches(part.rows, likelihood)
            lesson = self.lesson(part, likelihood, batches)
            judge = len(parts) > 1 or self.densities is not None
            ensemble, bound = self.train(lesson, monitor, clock, judge=judge, like=like)
            self.ended.append(ensemble)
            bounds.append(bound)
        ensemble = stacked(self.ended, self.views) if self.table.trends else self.ended[0]
        bound = float(np.dot(ensemble.predictor.shares, bounds))
        if self.densities is not None and not any(history.interrupted for history in ensemble.histories):
            ensemble = self.with_densities(lesson, self.densities, monitor)
        return ensemble, bound

    def batches(self, rows: Encoded, likelihood: Likelihood) -> tuple[Batches, DeepGP | None]:
        """How the models of the present view learn from rows, and a base of these if that needed one."""
        if self.before is not None:
            return batches_of(self.before.predictor, self.table, self.views[-1]), None
        groups = groups_of(self.table, rows.X.shape[1])
        return batches_to_learn(rows, likelihood, self.table, self.views[-1], self.order, groups, self.device)

    def lesson(self, part: StartingPoint, likelihood: Likelihood, batches: Batches) -> Lesson:
        """The rows of a part, encoded, and those that judge."""
        data = batches(part.rows, self.dtype)
        held_out = None if part.held_out is None else batches(part.held_out, self.dtype)
        split = _hold_out(self.estimator, data, self.order, held_out, likelihood, self.how.plan)
        return Lesson(part, likelihood, data, split._replace(distinct=part.trend is not None))

    def train(
        self, lesson: Lesson, monitor: Monitor, clock: Clock, *, judge: bool, like: DeepGP | None
    ) -> tuple[Ensemble, float]:
        """The ensemble of a trend, and its bound. With ``judge`` left-out rows compare it with others.

        ``like`` is the base of almost the same rows, if there is one. Only the first training warns of what holds for
        all.
        """
        part, likelihood, data, split = lesson
        estimator, table, first = self.estimator, self.table, not self.ended
        method, plan, seeds, base, n_neighbors = self.how
        if first:
            known = {"table": table, "likelihood": likelihood, "plan": plan, "split": split}
            warn_of_idle(self.wishes, **known, n_members=len(seeds))
        start = (
            _start(estimator, method, table, data, self.order, likelihood)
            if self.before is None
            else self.before.predictor.main.continued
        )
        with _blaming_units(likelihood, data):
            training = Training(data, split, plan, monitor, self.device, clock)
            ensemble = training.run(
                start,
                seeds,
                base=base,
                groups=groups_of(table, data.X.shape[1]),
                n_neighbors=n_neighbors,
                judge=judge,
                robust=likelihood.mixes and table.targets.transformer is None,
                like=like,
            )
        if part.trend is not None and isinstance(ensemble.left_out, LeftOutRows):
            trend = part.trend / np.asarray(likelihood.units.scale)
            ensemble.left_out = ensemble.left_out.shifted(torch.from_numpy(trend))
        if first:
            warn_of_few_rows(ensemble, split, len(data), MIN_ROWS_TO_SPLIT)
        warn_of_failure(ensemble, data, self.order)
        data = training.data  # without outliers
        bound = ensemble.objective(data, plan.settings.batch_size)
        return ensemble, bound + likelihood.log_jacobian(data.y, data.weight)

    def with_densities(self, lesson: Lesson, how: How, monitor: Monitor) -> Ensemble:
        """The ensemble that has ended, with a member beside it that learns densities, if rows gain by that."""
        first, data = self.ended[0], lesson.data
        weight = data.weight.index_fill(0, torch.from_numpy(first.outliers), 0.0)
        data = Batch(data.X, data.y, weight)
        before = None if self.before is None else self.before.predictor
        start = (
            before.predictors[1].continued
            if isinstance(before, Stack)
            else _start(self.estimator, how.method, self.table, data, self.order, lesson.likelihood)
        )
        training = Training(data, lesson.split, how.plan, monitor, self.device, self.clock)
        try:
            ensemble = training.run(start, how.seeds, judge=True, first=first.judged)
        except KeyboardInterrupt:
            warnings.warn(
                "Training was interrupted before the member that learns densities had begun. Predictions do without "
                "it: fit again if you want it.",
                UserWarning,
                stacklevel=users_level(),
            )
            return first
        return self.together(ensemble)


def learn_again(estimator, X, y, sample_weight, total_size, classes=None):
    """Learn from a chunk of rows that the estimator knows, and that cannot judge it therefore."""
    return learn(estimator, X, y, sample_weight, total_size, classes, new=False)


@torch.inference_mode(False)
@torch.enable_grad()
def learn(estimator, X, y, sample_weight, total_size, classes=None, *, new: bool = True, known=None):
    """Learn from one chunk of rows; see the estimators' ``partial_fit``.

    Rows that are not ``new`` train members, and judge nothing. What is known of rows comes by name.
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
            start = _start(estimator, method, table, chunk, order, likelihood)
            if likelihood.calibrated():
                split = _split(chunk, order, min(_n_held_out(estimator, chunk), MAX_ROWS))
            warn_of_idle(wishes, table=table, likelihood=likelihood, plan=plan, split=split, n_members=n_members)
        else:
            main = before.predictor.main  # without a member that learns densities
            losses, n_members, start = estimator.loss_curve_, len(main), main.continued
        earlier = None if before is None else replace(before.ensemble, predictor=main)
        with _blaming_units(likelihood, chunk):
            with_base = _has_base(estimator) and suits(likelihood) and current().size == 1
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
            view = View(table.encoding.width)
            main = conditioned(predictor.main, batches_of(predictor, table, view)(rows, exact), generator)
            predictor = predictor.with_main(main)
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


@contextmanager
def _blaming_units(likelihood: Likelihood, data: Batch):
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


def _widen_units(likelihood: Regression, part: StartingPoint) -> None:
    """Let units be no smaller than a small part of the targets, of which a trend may leave rounding errors alone."""
    units, weight = likelihood.units, part.rows.given.weight
    whole = likelihood.units_of(part.rows.y + part.trend, weight, normalize=True)
    least = LEAST_LEFT_OVER * np.asarray(whole.scale)
    nothing = np.nanstd(part.rows.y, axis=0) < least
    likelihood.units = Units(units.shift, np.where(nothing, least, units.scale))


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


def _hold_out(
    estimator, data: Batch, order: np.ndarray, rows: Batch | None, likelihood: Likelihood, plan: Plan
) -> Split:
    """Rows that judge the models: those that the user gave, or a share of all rows, or none."""
    if rows is not None:
        return Split(order, rows)
    kriged = likelihood.kriged and _n_neighbors(estimator) != 0
    wanted = kriged or (_has_base(estimator) and likelihood.has_base)
    for_validation = not estimator.early_stopping and (plan.solve is not None or plan.hold_out) and wanted
    if not (estimator.early_stopping or for_validation):
        return Split(order)
    n_rows = _n_held_out(estimator, data)
    if not n_rows:
        return Split(order, unjudged=plan.left_out is None)
    return _split(data, order, min(n_rows, MAX_VALIDATION_ROWS) if for_validation else n_rows, for_validation)


def _split(data: Batch, order: np.ndarray, n_rows: int, for_validation: bool = False) -> Split:
    """So many of all rows, which come in this order but for twins, which are held out together."""
    if not n_rows:
        return Split(order)
    group = twins(data).numpy()
    return Split(side_by_side(order, group), None, n_rows, for_validation, group)


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


def _learns_densities(estimator, rows: Encoded) -> bool:
    """Whether a member is tried that learns densities: rows are many, and all else is as usual."""
    return (
        getattr(estimator, "objective", None) == "auto"
        and len(rows) >= FEWEST_TO_LEARN_DENSITIES
        and estimator.early_stopping
        and estimator.max_time is None
        and _has_base(estimator)
        and getattr(estimator, "likelihood", None) == "gaussian"
        and estimator.trend is None
        and not rows.given.known
        and current().size == 1
    )


def _is_corrected(estimator, rows: Rows) -> bool:
    """Whether members may learn less since a base and neighbours correct them. Known noise has no neighbours."""
    return _has_base(estimator) and _n_neighbors(estimator) != 0 and "noise_variance" not in rows.known


def _start(estimator, method, table: Table, data: Batch, order: np.ndarray, likelihood: Likelihood) -> Start:
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
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, AssertionError) as error:
        available = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ValueError(f"device={name!r} cannot be used here. Available: 'auto', {available}.") from error
