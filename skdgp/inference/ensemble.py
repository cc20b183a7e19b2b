"""Training of ensembles: models that are trained in the same way and predict together."""

import math
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Protocol, Self, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.blend import Blend
from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import AdditiveNoise, Likelihood
from ..gp.noise import Contaminated
from .batches import Batch, Part
from .blending import Gain
from .calibration import FIRST_PRIOR_ROWS, MAX_ROWS, PRIOR_ROWS, recalibrate
from .callers import users_level
from .clock import Clock
from .foundation import Foundation
from .guide import Guide
from .guiding import guide_of
from .judged import Judged, share_beside
from .kept import Kept
from .leave_one_out import REASONS, LeftOutRows, leave_one_out
from .objectives import elbo
from .plan import HeldOut, Plan, Split
from .predictor import Predictor
from .processes import ALONE, shared_among
from .settings import History, Member
from .stack import Stack, View, stacking_weights
from .streamed_base import first_blend, next_blend
from .streaming import Stream
from .tails import Tails, with_tails
from .threads import threads_for
from .trusted import refuse
from .validation import Validation

#: Share of the epochs after which held-out rows decide whether the base is good enough alone.
TRIAL = 0.2

#: It is, and training ends, if members add at most this much to the mean log density of held-out rows, in nats.
LITTLE = 1e-3

#: But training goes on if they may add more than this in the end: their errors are unlike those of the base.
PROMISING = 4e-3

#: The base is also good enough if all held-out rows together gain at most this much, now and in the end, in nats, which
#: may be chance. For classes, counts and positive numbers nothing tells what they may gain in the end. So members then
#: stay as they are after the trial, and the blend decides their weight.
CHANCE = 2.0

#: A base with noise of two Gaussians is better alone if each row gains so much on average. Where it was less, in nats,
#: new rows often lost.
BETTER_ALONE = 0.05

#: Share of the epochs after which they decide whether a member beside another ensemble gains anything. After a tenth it
#: may not have found yet that targets have two branches.
TRIAL_BESIDE = 0.2

#: With fewer epochs there is no trial beside a base.
LEAST_EPOCHS = 20

#: Makes the untrained member with a given number, with a generator on the CPU.
Start = Callable[[int, torch.Generator], DeepGP]


@dataclass
class Ensemble:
    """What training has produced: models that differ in their seeds, and in the rows that they have learnt from.

    A file stores an ensemble as arrays, numbers and names. It opens on the CPU, with any version of torch.

    Parameters
    ----------
    predictor : Predictor
        The trained models as they predict.
    plan_name : str
        Name of the plan of their last training.
    histories : list of History
        Histories of their last training. They are not stored.
    held_out : HeldOut, default=None
        Score after :func:`train`, if there were rows to judge by. It is not stored.
    streams : sequence of Stream, default=()
        What learns from chunks, from which the members are made.
    left_out : LeftOutRows or str, default=""
        Predictions of the training rows, each left out, or the name of the reason why there are none.
    clock : Clock, default=one that has measured nothing
        How long the parts of the last fit took. It is not stored.
    judged : Judged, default=None
        How likely rows are that members have not learnt from, if training was asked for it. It is not stored.
    outliers : ndarray of int, default=none
        Numbers of the rows whose targets are so far out that nothing has learnt from them. They are not stored.
    """

    predictor: Predictor
    plan_name: str
    histories: list[History] = field(default_factory=list)
    held_out: HeldOut | None = None
    streams: Sequence[Stream] = ()
    left_out: LeftOutRows | str = ""
    clock: Clock = field(default_factory=Clock)
    judged: Judged | None = None
    outliers: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))

    @property
    def models(self) -> Sequence[DeepGP]:
        """The members."""
        return self.predictor.models

    def objective(self, data: Batch, batch_size: int) -> float:
        """The evidence lower bound with β = 1, summed over encoded rows with their weights; mean over members."""
        exact = [history.bound for history in self.histories if history.bound is not None]
        if exact and len(exact) == len(self.models):
            return float(np.mean(exact))
        bounds, (data, mean_weight) = [], data.relative()
        device, dtype = self.predictor.device, self.predictor.dtype
        for member in (model.frozen() for model in self.models):
            total = 0.0
            # Fresh samples, as in training: few of them are unbiased, and the sum over rows averages their noise.
            generator = torch.Generator(device).manual_seed(0)
            for start in range(0, len(data), batch_size):
                batch = data.rows(slice(start, start + batch_size)).to(device, dtype)
                with threads_for(member.products(len(batch), mixture=False)):
                    marginals = member(batch.X, generator, targets=batch.y, mixture=False)
                bound = elbo(marginals, member.likelihood, batch.y, batch.weight, 1 / (mean_weight * len(data)))
                total += mean_weight * len(batch) * bound.item()
            bounds.append(total)
        return float(np.mean(bounds))

    def to_plain(self) -> dict:
        """The ensemble as arrays, numbers and names."""
        streams = [stream.to_plain() for stream in self.streams]
        left_out = self.left_out if isinstance(self.left_out, str) else self.left_out.to_plain()
        own = {"plan_name": self.plan_name, "students": streams, "left_out": left_out}  # as files name them
        return self.predictor.to_plain() | own

    @classmethod
    def from_plain(cls, state: dict) -> Self:
        """The ensemble, on the CPU, from the state that :meth:`to_plain` returned."""
        streams = [Stream.from_plain(stream) for stream in state.get("students", ())]
        left_out = state.get("left_out", "")
        if isinstance(left_out, str):
            if left_out not in REASONS:
                refuse(f"has {left_out!r} in place of predictions of left-out rows")
        else:
            left_out = LeftOutRows.from_plain(left_out)
        predictor = Stack.from_plain(state) if "stack" in state else Predictor.from_plain(state)
        return cls(predictor, state["plan_name"], streams=streams, left_out=left_out)


def stacked(ensembles: Sequence[Ensemble], views: Sequence[View]) -> Ensemble:
    """Ensembles of different trends as one, with weights that rows decide which none of them has learnt from.

    Without such rows all have the same weight.
    """
    first, judged = ensembles[0], [ensemble.judged for ensemble in ensembles if ensemble.judged is not None]
    shares = np.full(len(ensembles), 1 / len(ensembles))
    if len(judged) == len(ensembles) > 1:
        common = reduce(np.intersect1d, [one.number for one in judged])
        densities = np.stack([one.of(common).log_density for one in judged], axis=1)
        weight = judged[0].of(common).weight
        shares = stacking_weights(densities, weight)
    return Ensemble(
        Stack([ensemble.predictor for ensemble in ensembles], views, shares.tolist()),
        first.plan_name,
        [history for ensemble in ensembles for history in ensemble.histories],
        held_out=first.held_out,
        left_out=_left_out_of_all([ensemble.left_out for ensemble in ensembles]),
        clock=first.clock,
        outliers=reduce(np.union1d, [ensemble.outliers for ensemble in ensembles]),
    )


def beside(first: Ensemble, second: Ensemble, view: View, guide: Guide | None = None) -> Ensemble:
    """An ensemble with another one of the same rows beside it, if rows gain by that; else the first one.

    The second one knows densities better than means, and has no more weight than means allow; see :mod:`.judged`. It
    sees what the guide makes of rows, if there is one.
    """
    if first.judged is None or second.judged is None:
        return first
    share = share_beside(first.judged, second.judged)
    if not share.gain > CHANCE:  # nor if it is no number
        return first
    views = [view, view._replace(guide=guide)]
    stack = Stack([first.predictor, second.predictor], views, [1.0 - share.weight, share.weight])
    left_out = first.left_out if isinstance(first.left_out, str) else "densities"
    return replace(first, predictor=stack, left_out=left_out)


class Watcher(Protocol):
    """An object that follows the training."""

    def epoch(self, histories: Sequence[History], so_far: Callable[[], Ensemble]) -> bool:
        """Called when some models end an epoch; returns whether the training is to end.

        ``so_far`` makes the ensemble as it would be if training ended now, with copies of the models in training. It
        has neither a base nor a correction by nearest rows, and its likelihoods are not calibrated. Held-out rows
        decide all of these when training has ended.
        """

    def end(self, ensemble: Ensemble) -> None:
        """Called with the ensemble when training has ended and held-out rows have decided."""


class Training:
    """The training of an ensemble from all rows at once.

    Parameters
    ----------
    data : Batch
        All rows, in the precision of predictions. The attribute ``data`` has them with weights of zero for outliers.
    split : Split
        Says which rows are held out.
    plan : Plan
        Says how to train.
    watcher : Watcher
        Follows the training.
    device : torch.device
        Where the models are.
    clock : Clock
        Knows how much time there is. What gains least is left out if there is too little.
    """

    def __init__(self, data: Batch, split: Split, plan: Plan, watcher: Watcher, device: torch.device, clock: Clock):
        plan = plan._replace(settings=replace(plan.settings, until=clock.end_of_training))
        self.data, self.split, self.plan, self.watcher, self.device = data, split, plan, watcher, device
        self.clock, self.base_is_enough = clock, False
        self.outliers, self.foundation = np.empty(0, np.int64), cast(Foundation | None, None)
        self.validation = Validation(data, split, plan, device, data.X.dtype, Kept())

    def run(
        self,
        start: Start,
        seeds: Sequence[int],
        *,
        base: bool = False,
        groups: Sequence[int] | None = None,
        n_neighbors: int | None = 0,
        judge: bool = False,
        if_misshapen: bool = False,
        robust: bool = False,
        like: DeepGP | None = None,
        first: Judged | None = None,
    ) -> Ensemble:
        """Train a member for each seed, and calibrate the members together.

        Parameters
        ----------
        start : callable
            Makes the untrained members.
        seeds : sequence of int
            One for each member.
        base : bool, default=False
            Whether members are blended with a base, if there are rows to judge them by.
        groups : sequence of int, default=None
            Which inputs share a lengthscale in the base. With None each has its own.
        n_neighbors : int or None, default=0
            Number of nearest rows that correct predictions, if there are rows to judge by. With None they correct
            predictions only if that gains.
        judge : bool, default=False
            Whether rows judge the whole predictor at the end, to compare it with others.
        if_misshapen : bool, default=False
            Whether they do so only if their targets are distributed in another way than the noise says. Likelihoods
            must then have noise of one Gaussian.
        robust : bool, default=False
            Whether rows decide if there are outliers, from which neither the base nor members learn, and if the noise
            has heavy tails.
        like : DeepGP, default=None
            The base of almost the same rows, if there is one; see :func:`.fit_base`.
        first : Judged, default=None
            What rows say of another ensemble, beside which this one is to predict. Training ends after a trial if rows
            gain nothing by that.

        Raises
        ------
        KeyboardInterrupt
            If the user interrupts before there is a trained member. Later interruptions keep the trained members, and
            what rows have decided by then, and warn.
        """
        untrained = [_untrained(start, i, seed, self.device, self.plan.precision) for i, seed in enumerate(seeds)]
        with self.clock.timing("base"):
            likelihood = untrained[0][0].likelihood
            foundation = self._foundation(likelihood, groups, robust=robust, like=like) if base else None
        training = self._members(untrained, foundation)
        with self.clock.timing("training"):
            histories = self._train(training, foundation, first)
            trained = [member for member, history in zip(training, histories, strict=True) if history.loss]
            begun = [history for history in histories if history.loss]
            predictor = Predictor([self._finished(member.model, index) for index, member in enumerate(trained)])
        ensemble = Ensemble(predictor, self.plan.name, begun, clock=self.clock, outliers=self.outliers)
        tails, learnt_with = None, [deepcopy(model.likelihood) for model in predictor.models]
        try:
            with self.clock.timing("judging"):
                self._calibrate(ensemble, [member.held_out for member in trained])
                if foundation is not None:
                    tails = self._blend(ensemble, foundation, robust=robust)
            self._correct(ensemble, n_neighbors, tails)
            self._judge(ensemble, first, judge=judge, if_misshapen=if_misshapen)
            basis = None if foundation is None else foundation.rows
            with self.clock.timing("leave_one_out"):
                ensemble.left_out = leave_one_out(predictor, learnt_with, basis, self.validation)
        except KeyboardInterrupt:
            for history in begun:
                history.interrupted = True
        _warn_if_interrupted(histories)
        self.watcher.end(ensemble)
        return ensemble

    def _members(
        self, untrained: Sequence[tuple[DeepGP, torch.Generator]], foundation: Foundation | None
    ) -> list[Member]:
        """Untrained models with the rows that each learns from."""
        near, members = self.data.to("cpu", self.plan.precision).near(self.device), []
        for index, (model, generator) in enumerate(untrained):
            if foundation is not None and foundation.level is not None:
                model.likelihood.fix_level(foundation.level)
            rows, held_out = self.split.of(near, index)
            members.append(Member(model, rows, generator, None if self.split.for_validation else held_out))
        return members

    def guide(self, predictor: Predictor, split: Split) -> tuple[Guide, Tensor] | None:
        """A guide of this training's base and of the predictor's neighbours, and its values (N, 2P) at all rows.

        ``split`` says which rows judge a member that sees it. None if there is no base, or as :func:`.guide_of` says.
        """
        if self.foundation is None:
            return None
        with self.clock.timing("base"):
            shared = predictor.models[0] if predictor.blend is None else predictor.blend
            return guide_of(
                self.validation._replace(split=split), self.foundation, predictor.correction, shared.likelihood
            )

    def _foundation(
        self, likelihood: Likelihood, groups: Sequence[int] | None, *, robust: bool, like: DeepGP | None
    ) -> Foundation | None:
        """The base; see :meth:`.Validation.foundation`. Outliers have no weight from now on."""
        begun = self.clock.total

        def in_time() -> bool:  # another base takes about as long as the first
            enough = self.clock.left >= self.clock.total - begun
            if not enough:
                self.clock.left_out.append("outliers")
            return enough

        foundation = self.validation.foundation(likelihood, groups, robust=robust, like=like, in_time=in_time)
        if foundation is not None and foundation.robust:
            outliers = foundation.outliers()
            self.outliers = torch.nonzero(outliers)[:, 0].cpu().numpy()
            self.validation = self.validation.without(outliers)
            self.data = self.validation.data
        self.foundation = foundation
        return foundation

    def _blend(self, ensemble: Ensemble, foundation: Foundation, *, robust: bool) -> Contaminated | None:
        """Blend the members with the base. Return noise of two Gaussians if rows ask for it."""
        predictor, base = ensemble.predictor, deepcopy(foundation.base) if robust else None  # blending changes it
        predictor.blend, ensemble.held_out = self.validation.blend(
            predictor.models, foundation, with_members=not self.base_is_enough
        )
        predictor.blend.robust = foundation.robust
        if base is None or not self.validation.possible:
            return None
        tails = self.validation.tails(predictor, foundation)
        if tails.heavy and predictor.with_members:
            tails = self._base_alone(ensemble, replace(foundation, base=base), tails)
        likelihood = cast(AdditiveNoise, predictor.likelihoods[0])
        return with_tails(likelihood, tails.share, tails.narrow, tails.wide) if tails.heavy else None

    def _base_alone(self, ensemble: Ensemble, foundation: Foundation, tails: Tails) -> Tails:
        """Give members no weight if rows are clearly more likely by the base alone; return the noise in the end.

        A single Gaussian has decided about members. With a few rows far out its noise is so large that it cannot tell
        how near all others are.
        """
        alone = Predictor(ensemble.predictor.models)
        alone.blend, held_out = self.validation.blend(alone.models, foundation, with_members=False)
        of_alone = self.validation.tails(alone, foundation, as_with_members=True)
        if not of_alone.log_density > tails.log_density + max(CHANCE, BETTER_ALONE * tails.n_rows):
            return tails
        alone.blend.robust = foundation.robust
        ensemble.predictor.blend, ensemble.held_out, self.foundation = alone.blend, held_out, foundation
        return self.validation.tails(alone, foundation)

    def _train(self, members: Sequence[Member], foundation: Foundation | None, first: Judged | None) -> list[History]:
        """Train the members. Meanwhile the watcher can ask what they would be if training ended.

        If they are blended with a base, training ends early if this gains hardly anything after a trial, or no more
        than may be chance. If they are to predict beside another ensemble, it ends if that gains no more than this.
        """
        settings = self.plan.settings
        if self.plan.name == "svi" and settings.until == math.inf:
            trial = _trial(settings.max_iter, with_base=foundation is not None, beside=first is not None)
            settings = replace(settings, trial=trial)

        def copied(index: int) -> DeepGP:
            member = members[index]
            model = deepcopy(member.model)
            with shared_among(ALONE):  # other processes may not ask for a copy
                if self.plan.solve_copy is not None:
                    self.plan.solve_copy(model, member.at_once(), self.plan.settings)
                return self._finished(model, index)

        def so_far(histories: Sequence[History]) -> Ensemble:
            begun = [index for index, history in enumerate(histories) if history.loss]
            copies = [copied(index) for index in begun]
            return Ensemble(Predictor(copies), self.plan.name, [histories[index] for index in begun])

        def on_epoch(histories: Sequence[History]) -> bool:
            ended = self.watcher.epoch(histories, partial(so_far, histories))
            at_trial = max(len(history.loss) for history in histories) == settings.trial
            if foundation is not None and at_trial and not ended:
                gain = self._gain(so_far(histories), members, foundation)
                by_chance, foreseen = gain.of_all_rows <= CHANCE, members[0].model.likelihood.additive
                ended = by_chance or gain.at_most(LITTLE, PROMISING)
                self.base_is_enough = ended and (foreseen or not by_chance)
            if first is not None and at_trial and not ended:
                ended = not self._gain_beside(first, so_far(histories), members) > CHANCE
            if settings.out_of_time():
                self.clock.left_out.append("training")
            return ended or settings.out_of_time()

        return self.plan.trainer(members, settings, on_epoch)

    def _gain(self, ensemble: Ensemble, members: Sequence[Member], foundation: Foundation) -> Gain:
        """What a blend of the members with the base gains beyond the base."""
        with self.clock.timing("judging"), shared_among(ALONE):
            begun = zip(members, ensemble.histories, strict=True)
            self._calibrate(ensemble, [member.held_out for member, history in begun if history.loss])
            return self.validation.gain_of_members(ensemble.models, foundation)

    def _gain_beside(self, first: Judged, ensemble: Ensemble, members: Sequence[Member]) -> float:
        """What rows gain by members beside another ensemble, in nats of all of them together."""
        with self.clock.timing("judging"), shared_among(ALONE):
            begun = zip(members, ensemble.histories, strict=True)
            self._calibrate(ensemble, [member.held_out for member, history in begun if history.loss])
            judged = self.validation.judge(ensemble.predictor, None, first)
        return 0.0 if judged is None else share_beside(first, judged).gain

    def _finished(self, model: DeepGP, index: int) -> DeepGP:
        """The trained model of this number, in the precision of predictions."""
        model = _ready(model, self.data.X.dtype)
        if self.plan.solve is not None:
            rows, _ = self.split.of(self.data, index)
            self.plan.solve(model, rows.rows().to(self.device, self.data.X.dtype), self.plan.settings)
        return model

    def _calibrate(self, ensemble: Ensemble, held_out: Sequence[Part | None]) -> None:
        """Correct the members' likelihoods by the rows that each of them holds out, if there are any."""
        dtype = self.data.X.dtype
        rows = [part.spread(MAX_ROWS).rows().to(self.device, dtype) for part in held_out if part is not None]
        if not rows:
            return
        recalibrate(ensemble.models, rows, self.plan.settings.batch_size)
        scores = [max(history.score) for history in ensemble.histories if history.score]
        # Rows that the user gave are the same for all members.
        n_rows = sum(map(len, rows)) if self.split.rows is None else len(rows[0])
        ensemble.held_out = HeldOut(float(np.mean(scores)), n_rows) if scores else None

    def _correct(self, ensemble: Ensemble, n_neighbors: int | None, tails: Contaminated | None) -> None:
        """Let rows decide on neighbours."""
        predictor = ensemble.predictor
        if n_neighbors != 0 and self.validation.possible and ensemble.models[0].likelihood.kriged:
            # They take about as long as a base.
            if self.clock.left < self.clock.seconds["base"]:
                self.clock.left_out.append("neighbors")
            else:
                with self.clock.timing("neighbors"):
                    best = self.validation.correction(predictor, self.foundation, n_neighbors, tails)
                if best is not None:
                    predictor.correction, ensemble.judged = best
        if tails is not None:
            cast(Blend, predictor.blend).likelihood = tails

    def _judge(self, ensemble: Ensemble, first: Judged | None, *, judge: bool, if_misshapen: bool) -> None:
        """Let rows judge all of it, those that judge the first ensemble if there is one.

        Members then learn from rows that were held out to judge them alone.
        """
        with self.clock.timing("judging"):
            if if_misshapen and not self.validation.misshapen(ensemble.predictor, self.foundation):
                ensemble.judged = None
            elif judge and ensemble.judged is None:
                ensemble.judged = self.validation.judge(ensemble.predictor, self.foundation, first)
        if self.split.for_validation and self.plan.solve is not None:
            for model in ensemble.models:
                self.plan.solve(model, self.data.to(self.device, self.data.X.dtype), self.plan.settings)


def _left_out_of_all(left_out: Sequence[LeftOutRows | str]) -> LeftOutRows | str:
    """Predictions of left-out rows by the members of several ensembles, or the reason why some have none."""
    rows = [one for one in left_out if not isinstance(one, str)]
    if len(rows) < len(left_out):
        return next(one for one in left_out if isinstance(one, str))
    return LeftOutRows(*(torch.cat(column) for column in zip(*rows, strict=True)))


def _untrained(
    start: Start, index: int, seed: int, device: torch.device, precision: torch.dtype
) -> tuple[DeepGP, torch.Generator]:
    """The untrained member with this number and its source of random numbers, on the device of training."""
    generator = torch.Generator("cpu").manual_seed(seed)
    model = start(index, generator).to(device=device, dtype=precision)
    if device.type != "cpu":
        generator = torch.Generator(device).manual_seed(seed)
    return model, generator


def _ready(model: DeepGP, dtype: torch.dtype) -> DeepGP:
    """The model in the precision of predictions."""
    return model.to(dtype).requires_grad_(False)


def _trial(n_epochs: int, *, with_base: bool, beside: bool) -> int:
    """Number of epochs after which rows decide whether training goes on; 0 if they do not."""
    if beside and n_epochs > 1:
        return max(1, round(TRIAL_BESIDE * n_epochs))
    return round(TRIAL * n_epochs) if with_base and n_epochs >= LEAST_EPOCHS else 0


def _warn_if_interrupted(histories: Sequence[History]) -> None:
    """Warn that there are fewer members, or that members are less trained."""
    if any(history.interrupted for history in histories):
        n_trained = sum(bool(history.loss) for history in histories)
        warnings.warn(
            f"Training was interrupted: the estimator is fitted with the best parameters so far, of "
            f"{n_trained} of {len(histories)} members. Call fit again to train it to the end.",
            UserWarning,
            stacklevel=users_level(),
        )


def learn(
    before: Ensemble | None,
    start: Start,
    seeds: Sequence[int],
    chunk: Batch,
    plan: Plan,
    split: Split,
    device: torch.device,
    *,
    base: bool = False,
    groups: Sequence[int] | None = None,
    new: bool = True,
) -> Ensemble:
    """An ensemble that has also learnt from one more chunk; the one before does not change.

    If there are members already, the chunk calibrates them as they were before they learnt from it. Otherwise the
    rows that they hold out calibrate them. These rows enter the samples of the streams, which replay them later.

    Parameters
    ----------
    before : Ensemble or None
        What has been learnt from earlier rows.
    start : callable
        Makes the members from which the first streams start.
    seeds : sequence of int
        One for each member.
    chunk : Batch
        Rows of the chunk.
    plan : Plan
        Says how to train. Its trainer is not used, since each model has a stream.
    split : Split
        Says which rows of the chunk each member holds out, if it is the first chunk.
    device : torch.device
        Where the models are.
    base : bool, default=False
        Whether members are blended with a base.
    groups : sequence of int, default=None
        Which inputs share a lengthscale in the base.
    new : bool, default=True
        Whether the ensemble has not learnt from these rows before. Only new rows judge, and change the base.
    """
    before = deepcopy(before)
    dtype = chunk.X.dtype if before is None else before.predictor.dtype
    streams = list(before.streams) if before is not None and before.streams else []
    for index, seed in enumerate([] if streams else seeds):
        untrained = _untrained(start, index, seed, device, plan.precision)
        streams.append(Stream(*untrained, continues=before is not None))
    blend = None
    if base and before is not None:
        known = before.predictor.blend
        blend = next_blend(before.predictor, streams[0], chunk.to("cpu", dtype), groups) if new else known
    precision = next(streams[0].model.parameters()).dtype  # that of the first chunk, as that of predictions is
    near, held_out, histories, members = chunk.to("cpu", precision).near(device), [], [], []
    for index, stream in enumerate(streams):
        rows, others = split.of(near, index)
        histories.append(stream(rows.rows(), plan.settings))
        members.append(_ready(stream.averaged(), dtype))
        if others is not None:
            stream.remember(near.rows(torch.as_tensor(split.parts(index)[1], device=near.X.device)))
            held_out.append(others.rows().to(device, dtype))
    models, n_earlier = (members, FIRST_PRIOR_ROWS) if before is None else (before.models, PRIOR_ROWS)
    if before is not None and new:
        held_out = len(models) * [chunk.spread(MAX_ROWS).to(device, dtype)]
    if held_out:
        recalibrate(models, held_out, len(chunk), n_earlier)
    for member, calibrated in zip(members, models, strict=True):  # themselves at first
        pairs = zip(member.likelihood.calibrated(), calibrated.likelihood.calibrated(), strict=True)
        for logarithm, value in pairs:
            logarithm.copy_(value)
    if base and before is None:
        blend = first_blend(members, chunk, split, plan, groups)
    return Ensemble(Predictor(members, blend), plan.name, histories, streams=streams, left_out="chunks")
