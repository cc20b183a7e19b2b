"""Models that are trained alike and predict together."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..gp.blend import Blend, Blended
from ..gp.deep_gp import DeepGP, Marginals
from ..gp.kernels import StationaryKernel, SumKernel
from ..gp.likelihoods import AdditiveNoise, Likelihood
from ..gp.neighbours import Corrected, Correction, corrected
from .base import base_for, judge_base, known
from .batches import Batch, Part
from .blending import Judged, blend
from .calibration import MAX_ROWS, PRIOR_ROWS, marginals_of, recalibrate
from .locality import ERRORS, MOST_JUDGES, MOST_ROWS, N_NEIGHBORS, LeftOver, look_around
from .memory import let_the_allocator_keep_pages
from .objectives import elbo
from .settings import History, Learner, Settings, Trainer
from .state import from_plain, to_array, to_generator, to_plain
from .streaming import Stream
from .threads import threads_for

#: Numbers that the largest tensor of a batch of predictions may hold in float32, 8 MiB; half as many in float64. Larger
#: batches are no faster, and the allocator gives pages of theirs back to the system between them.
PREDICT_NUMBERS = 2**21

#: Rows that members are asked for at a time where nobody waits.
PREDICT_ROWS = 1000

#: Rows from which on models that lose nothing by it predict in float32.
COARSE_ROWS = 10_000

T = TypeVar("T")

#: Means and variances (n, P) of function values at some of the rows, if a model had not learnt from each of them.
Judge = Callable[[DeepGP, Batch, Batch, Settings], tuple[Tensor, Tensor]]

#: Makes the untrained model of a number, with a generator on the CPU.
Start = Callable[[int, torch.Generator], DeepGP]


class Plan(NamedTuple):
    """How models are trained.

    ``precision`` is that of training; ``finish`` is called with every trained model in the precision of its
    predictions, with the rows that it has learnt from, and with the settings. ``judge`` says what such a model would
    have said of some of these rows had it not learnt from them; without it only rows that are held out can judge. With
    ``hold_out`` some are, though training itself needs none.
    """

    trainer: Trainer
    settings: Settings
    precision: torch.dtype
    name: str
    finish: Callable[[DeepGP, Batch, Settings], None] | None = None
    judge: Judge | None = None
    hold_out: bool = False

    def n_epochs(self, n_members: int) -> int:
        """Epochs at most: members share those of minibatches, and a collapsed fit is of one after the other."""
        return self.settings.max_iter * (n_members if self.name == "collapsed" else 1)


class Split(NamedTuple):
    """Which rows each model holds out: ``rows`` that the user gave, or ``n_rows`` of all, or none.

    Of all rows, models hold out successive parts of one random ``order``, so that together they learn from every one.
    With ``to_judge`` these rows decide nothing in training, and a plan's ``finish`` learns from them in the end.
    """

    order: np.ndarray
    rows: Batch | None = None
    n_rows: int = 0
    to_judge: bool = False

    def of(self, data: Batch, index: int) -> tuple[Part, Part | None]:
        """Rows that the model of this number learns from, and those that it holds out."""
        if not self.n_rows:
            return Part(data), None if self.rows is None else Part(self.rows)
        rolled = torch.as_tensor(np.roll(self.order, -index * self.n_rows), device=data.X.device)
        return Part(data, rolled[self.n_rows :]), Part(data, rolled[: self.n_rows])


class HeldOut(NamedTuple):
    """How members do on rows that they have not learnt from: mean log density or probability of encoded targets."""

    score: float
    n_rows: int


class Watcher(Protocol):
    """Is told how training goes."""

    def epoch(self, ensemble: "Ensemble") -> bool:
        """An epoch of some models ends; whether it was told to be the last."""


class _Student(NamedTuple):
    """A model that learns from chunks, and what trains it."""

    model: DeepGP
    generator: torch.Generator
    stream: Stream

    def to_plain(self) -> dict:
        """The student as arrays, numbers and names."""
        return {
            "model": to_plain(self.model),
            "trained": [name for name, parameter in self.model.named_parameters() if parameter.requires_grad],
            "generator": to_array(self.generator.get_state()),
            "stream": self.stream.to_plain(),
        }

    @classmethod
    def from_plain(cls, state: dict) -> "_Student":
        """The student that :meth:`to_plain` made ``state`` of, on the CPU."""
        model = cast(DeepGP, from_plain(state["model"]))
        for name in state["trained"]:
            model.get_parameter(name).requires_grad_(True)
        return cls(model, to_generator(state["generator"]), Stream.from_plain(state["stream"]))


class Ensemble:
    """Models that differ in their seeds, and in the rows that they have learnt from.

    Stored in a file it is arrays, numbers and names; it opens on the CPU, with any version of torch.

    Parameters
    ----------
    device : torch.device
        Where the models are.
    dtype : torch.dtype
        Precision of predictions.
    members : sequence of DeepGP, default=()
        Trained models.

    Attributes
    ----------
    members : ModuleList of DeepGP
    histories : list of History
        Of their last training. While it goes on there are more of them than members, and some may be empty.
    plan_name : str
        Of the plan of their last training.
    blend : Blend or None
        What members are blended with in predictions.
    correction : Correction or None
        What is added to them.
    held_out : HeldOut or None
        After :meth:`fit`, if there were rows to judge by.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, members: Sequence[DeepGP] = ()):
        self.device, self.dtype = device, dtype
        self.members = nn.ModuleList(members)
        self.histories: list[History] = []
        self.plan_name = ""
        self.blend: Blend | None = None
        self.correction: Correction | None = None
        self.held_out: HeldOut | None = None
        self._students: list[_Student] = []
        self._in_training: list[Callable[[], DeepGP]] = []  # copies of them, as they would be if training ended

    def __len__(self) -> int:
        return len(self.members)

    @property
    def models(self) -> Sequence[DeepGP]:
        """The members, as what they are."""
        return cast(Sequence[DeepGP], self.members)

    # Training.

    def continued(self, index: int, generator: torch.Generator) -> DeepGP:
        """A copy of a member to go on with; a ``Start`` for another ensemble."""
        return deepcopy(self.models[index % len(self)]).requires_grad_(True)

    def fit(
        self,
        start: Start,
        seeds: Sequence[int],
        data: Batch,
        split: Split,
        plan: Plan,
        watcher: Watcher,
        *,
        base: bool = False,
        groups: Sequence[int] | None = None,
        n_neighbors: int | None = 0,
    ) -> None:
        """Train a member for every seed, and calibrate them together.

        Parameters
        ----------
        start : callable
            Makes what is trained.
        seeds : sequence of int
        data : Batch
            All rows.
        split : Split
        plan : Plan
        watcher : Watcher
        base : bool, default=False
            Whether members are blended with a base, if there are rows to judge them by.
        groups : sequence of int, default=None
            Which inputs share a lengthscale in the base; None lets each have its own.
        n_neighbors : int or None, default=0
            Nearest rows that correct predictions, if there are rows to judge by; None takes them where they gain.

        Raises
        ------
        KeyboardInterrupt
            If the user interrupts before there is a trained member. Later those that there are remain, with a warning.
        """
        self.plan_name = plan.name
        near = data.to("cpu", plan.precision).near(self.device)
        learners = []
        for index, seed in enumerate(seeds):
            model, generator = self._untrained(start, index, seed, plan.precision)
            rows, held_out = split.of(near, index)
            learners.append(Learner(model, rows, generator, None if split.to_judge else held_out))

        foundation = self._foundation(learners[0].model.likelihood, data, split, plan, groups) if base else None

        def finished(model: DeepGP, index: int) -> DeepGP:
            model = self._ready(model)
            if plan.finish is not None:
                rows, _ = split.of(data, index)
                plan.finish(model, rows.rows().to(self.device, self.dtype), plan.settings)
            return model

        histories = self._train(learners, plan, watcher, finished)
        trained = [learner for learner, history in zip(learners, histories, strict=True) if history.loss]
        self.histories = [history for history in histories if history.loss]
        self.members.extend(finished(learner.model, index) for index, learner in enumerate(trained))
        self._calibrate([learner.held_out for learner in trained], plan)
        if foundation is not None:
            self._blend_with(*foundation, data, split, plan)
        kriged = getattr(self.models[0].likelihood, "kriged", False)
        if kriged and n_neighbors != 0 and (split.n_rows or split.rows is not None or plan.judge is not None):
            basis = None if foundation is None else foundation[1]
            self.correction = self._corrected(basis, data, split, plan, n_neighbors)
        if split.to_judge and plan.finish is not None:
            for model in self.models:
                plan.finish(model, data.to(self.device, self.dtype), plan.settings)
        self._warn_if_interrupted(histories)

    def _warn_if_interrupted(self, histories: Sequence[History]) -> None:
        """Say that there are fewer members, or less trained ones."""
        if any(history.interrupted for history in histories):
            warnings.warn(
                f"Training was interrupted: the estimator is fitted with the best parameters so far, of "
                f"{len(self)} of {len(histories)} members. Call fit again to train it to the end.",
                UserWarning,
                stacklevel=6,
            )

    def _calibrate(self, held_out: Sequence[Part | None], plan: Plan) -> None:
        """Correct members' likelihoods by what each holds out, if it does."""
        judges = [part.spread(MAX_ROWS).rows().to(self.device, self.dtype) for part in held_out if part is not None]
        if judges:
            recalibrate(self.models, judges, plan.settings.batch_size)
            scores = [max(history.score) for history in self.histories if history.score]
            self.held_out = HeldOut(float(np.mean(scores)), sum(map(len, judges))) if scores else None

    def _foundation(
        self, likelihood: Likelihood, data: Batch, split: Split, plan: Plan, groups: Sequence[int] | None
    ) -> tuple[DeepGP, Part] | None:
        """The base of members that there are rows to judge by, and what it knows; None if it cannot be computed."""
        if not likelihood.has_base or (not split.n_rows and split.rows is None and plan.judge is None):
            return None
        basis = known(Batch(data.X, likelihood.regressands(data.y), data.weight), split.order)
        try:
            rows = Part(data, basis.index).rows().to(self.device, torch.float64)
            base, learnt = base_for(likelihood, rows, groups)
        except np.linalg.LinAlgError:
            return None
        return base, basis if learnt is None else basis.with_targets(learnt)

    def _blend_with(self, base: DeepGP, basis: Part, data: Batch, split: Split, plan: Plan) -> None:
        """Choose the blend by rows that members hold out, or else by what they would say of rows they have learnt."""
        judged = []
        held_out = (split.of(data, index)[1] for index in range(len(self)))
        parts = [(Part(data, basis.index) if part is None else part).spread(MAX_ROWS) for part in held_out]
        by_base = judge_base(base, parts, basis)
        for model, part, (base_mean, base_variance) in zip(self.models, parts, by_base, strict=True):
            rows = part.rows().to(self.device, self.dtype)
            if part.data is data and not split.n_rows:
                mean, variance = cast(Judge, plan.judge)(model, rows, data.to(self.device, self.dtype), plan.settings)
            else:
                mean, variance = marginals_of(model, rows, plan.settings.batch_size).moments()
            judged.append(Judged(rows, mean.double(), variance.double(), base_mean, base_variance))
        self.blend, score = blend(base, self.models[0].likelihood, judged)
        self.held_out = HeldOut(score, sum(len(each.rows) for each in judged))

    def _corrected(
        self, basis: Part | None, data: Batch, split: Split, plan: Plan, n_neighbors: int | None
    ) -> Correction | None:
        """The correction by nearest rows, if it is wanted; ``basis`` is what the blend's base knows."""
        stored = Part(data, torch.as_tensor(split.order[:MOST_ROWS], device=data.X.device))
        others = None
        if split.rows is not None:
            others = self._left_over(Part(split.rows).spread(MOST_JUDGES), basis, data, split, plan)
        scales = [torch.ones(data.X.shape[1], dtype=torch.float64, device=self.device)]
        if self.blend is not None:
            length = (
                cast(StationaryKernel, cast(SumKernel, self.blend.base.layers[0].kernel).parts[0])
                .lengthscale[0]
                .double()
            )
            scales.append(length / length.log().mean().exp())
        left_over = self._left_over(stored, basis, data, split, plan)
        likelihood = cast(AdditiveNoise, self.likelihoods[0])
        try:
            found = look_around(left_over, others, likelihood, scales, n_neighbors or N_NEIGHBORS)
        except np.linalg.LinAlgError:
            return None
        if found is None or (n_neighbors is None and found.gain <= ERRORS * found.error):
            return None
        return found

    @torch.no_grad()
    def _left_over(self, part: Part, basis: Part | None, data: Batch, split: Split, plan: Plan) -> LeftOver:
        """What members and base say of some rows, without what they have learnt from each of them where that is known.

        Of a row that some members hold out these alone are asked.
        """
        rows, own = part.rows().to(self.device, self.dtype), part.data is data
        judged = own and not split.n_rows and plan.judge is not None
        moments, fair = [], []
        for number, model in enumerate(self.models):
            if judged:
                everything = data.to(self.device, self.dtype)
                moments.append(cast(Judge, plan.judge)(model, rows, everything, plan.settings))
            else:
                moments.append(marginals_of(model, rows, max(plan.settings.batch_size, PREDICT_ROWS)).moments())
            held_out = split.of(data, number)[1] if own else None
            if held_out is not None and held_out.index is not None:
                fair.append(torch.isin(cast(Tensor, part.index), held_out.index))
            else:
                fair.append(torch.full((len(part),), judged or not own, device=data.X.device))
        by_member = torch.stack(fair).to(self.device)  # (E, n)
        known = by_member.any(0)
        share = (by_member | ~known).double()[..., None]
        share = share / share.sum(0)
        means, variances = (torch.stack(column).double() for column in zip(*moments, strict=True))  # (E, n, P)
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean).square())).sum(0)
        exact = rows.to(self.device, torch.float64)
        if self.blend is not None:
            t = self.blend.share(exact.X, self.blend.base(exact.X))
            [(g, s)] = judge_base(self.blend.base, [part], cast(Part, basis))
            mean, variance = t * mean + (1 - t) * g, t.square() * variance + (1 - t).square() * s
        return LeftOver(exact, mean, variance, known)

    def _untrained(self, start: Start, index: int, seed: int, precision: torch.dtype) -> tuple[DeepGP, torch.Generator]:
        """The member of a number, and its source of random numbers, where training is."""
        generator = torch.Generator("cpu").manual_seed(seed)
        model = start(index, generator).to(device=self.device, dtype=precision)
        if self.device.type != "cpu":
            generator = torch.Generator(self.device).manual_seed(seed)
        return model, generator

    def _train(
        self,
        learners: Sequence[Learner],
        plan: Plan,
        watcher: Watcher,
        finished: Callable[[DeepGP, int], DeepGP],
    ) -> list[History]:
        """Train members, and let others look at what they would be meanwhile."""

        def on_epoch(histories: Sequence[History]) -> bool:
            self.histories = list(histories)
            return watcher.epoch(self)

        def copied(index: int) -> DeepGP:
            return finished(deepcopy(learners[index].model), index)

        self._in_training = [partial(copied, index) for index in range(len(learners))]
        try:
            return plan.trainer(learners, plan.settings, on_epoch)
        finally:
            self._in_training = []

    def learn(self, start: Start | None, seeds: Sequence[int], chunk: Batch, plan: Plan) -> "Ensemble":
        """An ensemble that has learnt from one more chunk as well; this one stays what it is.

        The chunk calibrates members, if there are any, before they learn from it.

        Parameters
        ----------
        start : callable
            Makes what is trained; None goes on with the members that there are.
        seeds : sequence of int
        chunk : Batch
        plan : Plan
            Its trainer does not matter: each model has a stream.
        """
        before = deepcopy(self)
        if len(before):
            held_out = chunk.spread(MAX_ROWS).to(self.device, self.dtype)
            recalibrate(before.models, [held_out] * len(before), len(chunk), PRIOR_ROWS)
        students = before._students
        if not students:
            for index, seed in enumerate(seeds):
                untrained = self._untrained(start or before.continued, index, seed, plan.precision)
                students.append(_Student(*untrained, Stream(continues=start is None)))
        rows = chunk.to("cpu", plan.precision).near(self.device)
        histories = [stream(model, rows, plan.settings, generator) for model, generator, stream in students]
        members = [self._ready(stream.averaged(model)) for model, _, stream in students]
        learnt = Ensemble(self.device, self.dtype, members)
        learnt._students, learnt.histories, learnt.plan_name = students, histories, plan.name
        for member, calibrated in zip(learnt.models, before.models, strict=False):  # there may be none before
            for each, value in zip(member.likelihood.calibrated(), calibrated.likelihood.calibrated(), strict=True):
                each.copy_(value)
        return learnt

    def so_far(self) -> "Ensemble":
        """What training would leave if it ended now, with copies of models in training."""
        if not self._in_training:
            return self
        begun = [(copy, each) for copy, each in zip(self._in_training, self.histories, strict=True) if each.loss]
        ensemble = Ensemble(self.device, self.dtype, [copy() for copy, _ in begun])
        ensemble.histories, ensemble.plan_name = [each for _, each in begun], self.plan_name
        return ensemble

    def _ready(self, model: DeepGP) -> DeepGP:
        """The model in the precision of predictions."""
        return model.to(self.dtype).requires_grad_(False)

    # What has been learnt.

    @property
    def predictors(self) -> Sequence[DeepGP] | Sequence[Blended] | Sequence[Corrected]:
        """The members, as they predict."""
        predictors = self.models if self.blend is None else [Blended(model, self.blend) for model in self.models]
        return predictors if self.correction is None else [Corrected(each, self.correction) for each in predictors]

    @property
    def base_weight(self) -> float:
        """Weight of the base near rows that were learnt from; 0 without one."""
        return 0.0 if self.blend is None else 1.0 - self.blend.weight.reshape(-1)[0].item()

    @property
    def likelihoods(self) -> list[Likelihood]:
        """Of the members, as they predict."""
        return [model.likelihood for model in self.predictors]

    def objective(self, data: Batch, batch_size: int) -> float:
        """The evidence lower bound, with β = 1, of encoded rows, summed over them by weight; mean over members."""
        known = [history.bound for history in self.histories if history.bound is not None]
        if known and len(known) == len(self.models):
            return float(np.mean(known))
        bounds, (data, mean_weight) = [], data.relative()
        for member in (each.frozen() for each in self.models):
            total = 0.0
            # Fresh samples, as in training: unbiased with few of them, and rows average out.
            generator = torch.Generator(self.device).manual_seed(0)
            for start in range(0, len(data), batch_size):
                batch = data.rows(slice(start, start + batch_size)).to(self.device, self.dtype)
                with threads_for(member.products(len(batch), mixture=False)):
                    marginals = member(batch.X, generator, targets=batch.y, mixture=False)
                bound = elbo(marginals, member.likelihood, batch.y, batch.weight, 1 / (mean_weight * len(data)))
                total += mean_weight * len(batch) * bound.item()
            bounds.append(total)
        return float(np.mean(bounds))

    # Predictions.

    def batches(
        self,
        X: np.ndarray,
        prepare: Callable[[np.ndarray], np.ndarray],
        function: Callable[[Tensor], T],
        dtype: torch.dtype | None = None,
        copies: int = 1,
    ) -> Iterator[tuple[slice, T]]:
        """Values of ``function`` of one batch of rows after the other.

        Where a GPU has too little memory for a batch, the batch is halved.

        Parameters
        ----------
        X : ndarray of shape (n, Q)
            In the user's units.
        prepare : callable
            Brings some of the rows into those of the models.
        function : callable
            Of a Tensor (B, Q) on the device.
        dtype : torch.dtype, default=that of the ensemble
            Of this tensor.
        copies : int, default=1
            How many rows ``prepare`` makes of each, at most.

        Yields
        ------
        rows : slice
        value : what the function returned for them
        """
        let_the_allocator_keep_pages()
        dtype = dtype or self.dtype
        numbers = PREDICT_NUMBERS * torch.float32.itemsize // dtype.itemsize
        n_batch = max(1, numbers // copies // max(member.numbers_per_row() for member in self.predictors))
        start = 0
        while start < len(X):
            rows = slice(start, min(start + n_batch, len(X)))
            try:
                batch = torch.as_tensor(prepare(X[rows]), dtype=dtype, device=self.device)
                with torch.no_grad(), threads_for(self.predictors[0].products(len(batch))):
                    value = function(batch)
            except torch.OutOfMemoryError:
                if n_batch == 1:
                    raise
                n_batch //= 2
                continue
            yield rows, value
            start = rows.stop

    def predict(
        self,
        X: np.ndarray,
        prepare: Callable[[np.ndarray], np.ndarray],
        function: Callable[[list[Likelihood], list[Marginals]], T],
        *,
        exact: bool = False,
        copies: int = 1,
    ) -> Iterator[tuple[slice, T]]:
        """What ``function`` makes of likelihoods and marginals of members, by batches as :meth:`batches` has them.

        ``exact`` keeps the ensemble's precision, however many rows there are.
        """
        coarse = not exact and len(X) >= COARSE_ROWS and all(member.coarse for member in self.models)
        dtype, likelihoods, blend = torch.float32 if coarse else self.dtype, self.likelihoods, self.blend
        with threads_for(self.models[0].products(0)):
            members = [(deepcopy(member).float() if coarse else member).frozen() for member in self.models]
            base = None if blend is None else blend.base.frozen()
            local = None if self.correction is None else self.correction.local.frozen()

        def value(batch: Tensor) -> T:
            marginals = [member(batch) for member in members]
            if blend is not None:  # the base is the same for all
                there = cast(DeepGP, base)(batch.double())
                t = blend.share(batch, there)
                marginals = [blend.joined(t, each, there) for each in marginals]
            if local is not None:
                moments = local.moments(batch.double())
                marginals = [corrected(each, *moments) for each in marginals]
            return function(likelihoods, marginals)

        return self.batches(X, prepare, value, dtype, copies)

    # Storage.

    def __getstate__(self) -> dict:
        dtype = str(self.dtype).removeprefix("torch.")
        students = [student.to_plain() for student in self._students]
        members = to_plain(self.members)
        blend = None if self.blend is None else to_plain(self.blend)
        return {
            "members": members,
            "dtype": dtype,
            "plan_name": self.plan_name,
            "students": students,
            "blend": blend,
            "correction": None if self.correction is None else to_plain(self.correction),
        }

    def __setstate__(self, state: dict) -> None:
        self.__init__(torch.device("cpu"), getattr(torch, state["dtype"]))  # type: ignore[misc]
        self.members, self.plan_name = cast(nn.ModuleList, from_plain(state["members"])), state["plan_name"]
        self._students = [_Student.from_plain(student) for student in state.get("students", ())]
        self.blend = cast(Blend, from_plain(state["blend"])) if state.get("blend") else None
        correction = state.get("correction")
        self.correction = None if correction is None else cast(Correction, from_plain(correction))

    def __deepcopy__(self, memo: dict) -> "Ensemble":
        copy = Ensemble(self.device, self.dtype, deepcopy(list(self.models), memo))
        copy.histories, copy.plan_name = deepcopy(self.histories, memo), self.plan_name
        copy._students = deepcopy(self._students, memo)
        copy.blend, copy.correction = deepcopy(self.blend, memo), deepcopy(self.correction, memo)
        return copy
