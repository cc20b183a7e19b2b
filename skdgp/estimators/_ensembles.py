"""The ensembles of a fit: one for each trend, and perhaps one member that learns densities."""

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Likelihood, Regression
from ..gp.units import Units
from ..inference.batches import Batch
from ..inference.callers import users_level
from ..inference.clock import Clock
from ..inference.ensemble import Ensemble, Start, Training, beside, stacked
from ..inference.guide import Guide
from ..inference.guiding import MOST_ROWS
from ..inference.leave_one_out import LeftOutRows
from ..inference.plan import Plan, Split
from ..inference.processes import current
from ..inference.stack import Stack, View
from ..methods import AVDGP
from ..methods.kernels import groups_of
from ..tables import Encoded, Table
from ..tables.encoding import has_missing
from ._fitted import Learnt
from ._gaps import Batches, batches_of, batches_to_learn
from ._monitor import Monitor
from ._setup import (
    MIN_ROWS_TO_SPLIT,
    blaming_units,
    has_base,
    hold_out,
    likelihood_of,
    n_held_out,
    split_of,
    start_of,
)
from ._trends import StartingPoint
from ._warnings import warn_of_failure, warn_of_few_rows
from ._wishes import Wishes, warn_of_idle

#: With fewer rows than this, no member is tried that learns densities: a tenth of them would be too few to judge it.
FEWEST_TO_LEARN_DENSITIES = 300

#: With fewer rows than this, it is tried only if targets are distributed in another way than the noise says. Otherwise
#: it is rarely worth its time.
MANY_TO_LEARN_DENSITIES = 1000

#: What this member is like. It is no ensemble, whose members would otherwise have to differ, hence the small penalty.
OF_DENSITIES: dict[str, Any] = {"objective": "predictive", "n_estimators": 1, "beta": 1.0}

#: What it takes from other methods, of which the other parameters mean something else.
FROM_OTHERS = ("max_iter", "batch_size", "dtype", "cuda_graphs")

#: If a trend leaves over less than this share of the targets' deviation, this share is the unit of what is left over.
LEAST_LEFT_OVER = 1e-6


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

    def of_densities(self, n_rows: int) -> "How":
        """How a member learns densities: with neither base nor neighbours, which would decide its means.

        In all families it is an amortised deep GP, which learns them best.
        """
        own = self.method
        if not isinstance(own, AVDGP):
            own = AVDGP(**{name: getattr(own, name) for name in FROM_OTHERS})
        method = replace(own, **OF_DENSITIES)
        return How(method, method.plan(n_rows, held_out=True), self.seeds[:1], base=False, n_neighbors=0)


class Lesson(NamedTuple):
    """What an ensemble learns from: rows with what a trend leaves over, and the rows that judge it."""

    part: StartingPoint
    likelihood: Likelihood
    data: Batch
    split: Split


@dataclass
class Trainings:
    """The trainings of a fit, which are as many as there are trends to compare, and perhaps one that learns densities.

    ``densities`` says how that one is trained, and ``guide`` what it sees besides. ``training`` is the present one.
    ``ended`` has the ensembles of those that have ended, and ``views`` what these and the present one see.
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
    training: Training | None = None
    guide: Guide | None = None
    ended: list[Ensemble] = field(default_factory=list)
    views: list[View] = field(default_factory=list)

    def together(self, ensemble: Ensemble) -> Ensemble:
        """The ensembles that have ended, with the present one, as one."""
        if self.table.trends:
            return stacked([*self.ended[: len(self.views) - 1], ensemble], self.views)
        return beside(self.ended[0], ensemble, self.views[0], self.guide) if self.ended else ensemble

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
        split = hold_out(self.estimator, data, self.order, held_out, likelihood, self.how.plan)
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
            warn_of_idle(self.wishes, **known, n_members=len(seeds), densities=self.densities is not None)
        start = (
            start_of(estimator, method, table, data, self.order, likelihood)
            if self.before is None
            else self.before.predictor.main.continued
        )
        with blaming_units(likelihood, data):
            self.training = training = Training(data, split, plan, monitor, self.device, clock)
            ensemble = training.run(
                start,
                seeds,
                base=base,
                groups=groups_of(table, data.X.shape[1]),
                n_neighbors=n_neighbors,
                judge=judge,
                if_misshapen=self.densities is not None and len(data) < MANY_TO_LEARN_DENSITIES,
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
        """The ensemble that has ended, with a member beside it that learns densities, if rows gain by that.

        There is none if no rows judge the ensemble, or none had to. The member sees what the base and its neighbours
        say of rows.
        """
        first = self.ended[0]
        if first.judged is None:
            return first
        try:
            lesson = self.guided(self.judged(lesson), first)
            training = Training(lesson.data, lesson.split, how.plan, monitor, self.device, self.clock)
            start = self.start_of_densities(lesson, how)
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

    def judged(self, lesson: Lesson) -> Lesson:
        """The same with rows that end the training of the member: those that judge the others, or some of these.

        In a collapsed fit all rows judge, each left out.
        """
        split = lesson.split._replace(for_validation=False)
        if split.rows is None and not split.n_rows:
            split = split_of(lesson.data, self.order, n_held_out(self.estimator, lesson.data))
        return lesson._replace(split=split)

    def guided(self, lesson: Lesson, first: Ensemble) -> Lesson:
        """The same rows with what a guide makes of them, if there is a base. Outliers have no weight."""
        data, rows = lesson.data, lesson.split.rows
        weight = data.weight.index_fill(0, torch.from_numpy(first.outliers), 0.0)
        guided = cast(Training, self.training).guide(first.predictor, lesson.split)
        X = data.X
        if guided is not None:
            self.guide, values = guided
            X = self.guide.beside(X, values.to(X.device))
            if rows is not None:
                rows = Batch(self.guide(rows.X.to(self.device)).to(rows.X), rows.y, rows.weight)
        return lesson._replace(data=Batch(X, data.y, weight), split=lesson.split._replace(rows=rows))

    def start_of_densities(self, lesson: Lesson, how: How) -> Start:
        """How the member starts: from that of the fit before, if it sees as many features."""
        before = None if self.before is None else self.before.predictor
        if isinstance(before, Stack) and (before.views[1].guide is None) == (self.guide is None):
            return before.predictors[1].continued
        return start_of(self.estimator, how.method, self.table, lesson.data, self.order, lesson.likelihood)


def _widen_units(likelihood: Regression, part: StartingPoint) -> None:
    """Let units be no smaller than a small part of the targets, of which a trend may leave rounding errors alone."""
    units, weight = likelihood.units, part.rows.given.weight
    whole = likelihood.units_of(part.rows.y + part.trend, weight, normalize=True)
    least = LEAST_LEFT_OVER * np.asarray(whole.scale)
    nothing = np.nanstd(part.rows.y, axis=0) < least
    likelihood.units = Units(units.shift, np.where(nothing, least, units.scale))


def learns_densities(estimator, how: How, rows: Encoded) -> bool:
    """Whether a member is tried that learns densities: rows are many, some of them judge, and all else is as usual.

    Without a guide it takes long beside a quick method.
    """
    return (
        how.method.objective == "auto"
        and FEWEST_TO_LEARN_DENSITIES <= len(rows) <= (math.inf if isinstance(how.method, AVDGP) else MOST_ROWS)
        and (estimator.early_stopping or how.plan.solve is not None or how.plan.left_out is not None)
        and estimator.max_time is None
        and has_base(estimator)
        and getattr(estimator, "likelihood", None) == "gaussian"
        and estimator.trend is None
        and not rows.given.known
        and current().size == 1
    )
