"""Ensembles: models that are trained in the same way and predict together."""

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
from ..gp.likelihoods import Likelihood
from ..gp.neighbours import Corrected, Correction, corrected
from .batches import Batch, Part
from .calibration import FIRST_PRIOR_ROWS, MAX_ROWS, PRIOR_ROWS, recalibrate
from .callers import users_level
from .judging import Foundation, Judges
from .kept import Kept
from .memory import let_the_allocator_keep_pages
from .objectives import elbo
from .plan import HeldOut, Plan, Split
from .processes import ALONE, shared_among
from .settings import History, Member
from .state import from_plain, to_array, to_generator, to_plain
from .streaming import Stream
from .threads import threads_for
from .trusted import refuse

#: Largest number of entries of a tensor in a batch of predictions: 8 MiB in float32, and half as many entries in
#: float64. Larger batches are not faster, and the allocator would return their memory to the system between batches.
PREDICT_NUMBERS = 2**21

#: Number of rows from which on models predict in float32, if they lose nothing by that.
COARSE_ROWS = 10_000

#: Precisions of predictions, by their names in files.
DTYPES = {"float32": torch.float32, "float64": torch.float64}

T = TypeVar("T")

#: Makes the untrained member with a given number, with a generator on the CPU.
Start = Callable[[int, torch.Generator], DeepGP]


class Watcher(Protocol):
    """An object that follows the training."""

    def epoch(self, ensemble: "Ensemble") -> bool:
        """Called when some models end an epoch; returns whether the training is to end."""


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
        """The student, on the CPU, from the state that :meth:`to_plain` returned."""
        model = from_plain(state["model"], DeepGP)
        parameters = dict(model.named_parameters())
        for name in state["trained"]:
            parameters[name].requires_grad_(True)
        return cls(model, to_generator(state["generator"]), Stream.from_plain(state["stream"]))


class Ensemble:
    """Models that differ in their seeds, and in the rows that they have learnt from.

    A file stores an ensemble as arrays, numbers and names. It opens on the CPU, with any version of torch.

    Parameters
    ----------
    device : torch.device
        Device of the models.
    dtype : torch.dtype
        Precision of predictions.
    members : sequence of DeepGP, default=()
        Trained models.

    Attributes
    ----------
    members : ModuleList of DeepGP
        The trained models.
    histories : list of History
        Histories of their last training. During training there are more of them than members, and some may be empty.
    plan_name : str
        Name of the plan of their last training.
    blend : Blend or None
        The base, with which members are blended in predictions, and its weight.
    correction : Correction or None
        Correction by nearest rows, which is added to predictions.
    held_out : HeldOut or None
        Score after :meth:`fit`, if there were rows to judge by.
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
        self._in_training: list[Callable[[], DeepGP]] = []  # functions that make copies, as if training ended now
        self._kept = Kept()

    def __len__(self) -> int:
        return len(self.members)

    @property
    def models(self) -> Sequence[DeepGP]:
        """The members, with their type."""
        return cast(Sequence[DeepGP], self.members)

    # Training.

    def continued(self, index: int, generator: torch.Generator) -> DeepGP:
        """A copy of a member to continue with; it serves as a ``Start`` of another ensemble."""
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
        """Train a member for each seed, and calibrate the members together.

        Parameters
        ----------
        start : callable
            Makes the untrained members.
        seeds : sequence of int
            One for each member.
        data : Batch
            All rows.
        split : Split
            Says which rows are held out.
        plan : Plan
            Says how to train.
        watcher : Watcher
            Follows the training.
        base : bool, default=False
            Whether members are blended with a base, if there are rows to judge them by.
        groups : sequence of int, default=None
            Which inputs share a lengthscale in the base. With None each has its own.
        n_neighbors : int or None, default=0
            Number of nearest rows that correct predictions, if there are rows to judge by. With None they correct
            predictions only if that gains.

        Raises
        ------
        KeyboardInterrupt
            If the user interrupts before there is a trained member. Later interruptions keep the trained members, and
            what rows have decided by then, and warn.
        """
        self.plan_name = plan.name
        near = data.to("cpu", plan.precision).near(self.device)
        learners = []
        for index, seed in enumerate(seeds):
            model, generator = self._untrained(start, index, seed, plan.precision)
            rows, held_out = split.of(near, index)
            learners.append(Member(model, rows, generator, None if split.to_judge else held_out))

        judges = Judges(data, split, plan, self.device, self.dtype)
        foundation = judges.foundation(learners[0].model.likelihood, groups) if base else None

        def finished(model: DeepGP, index: int) -> DeepGP:
            model = self._ready(model)
            if plan.solve is not None:
                rows, _ = split.of(data, index)
                plan.solve(model, rows.rows().to(self.device, self.dtype), plan.settings)
            return model

        histories = self._train(learners, plan, watcher, finished)
        trained = [learner for learner, history in zip(learners, histories, strict=True) if history.loss]
        self.histories = [history for history in histories if history.loss]
        self.members.extend(finished(learner.model, index) for index, learner in enumerate(trained))
        try:
            self._calibrate([learner.held_out for learner in trained], plan, given=split.rows is not None)
            self._complete(judges, foundation, n_neighbors)
        except KeyboardInterrupt:
            for history in self.histories:
                history.interrupted = True
        self._warn_if_interrupted(histories)

    def _complete(self, judges: Judges, foundation: Foundation | None, n_neighbors: int | None) -> None:
        """Let rows decide on base and neighbours. Members then learn from rows that were held out for this alone."""
        if foundation is not None:
            self.blend, self.held_out = judges.blend(self.models, foundation)
        if n_neighbors != 0 and judges.exist and self.models[0].likelihood.kriged:
            self.correction = judges.correction(self.models, self.blend, foundation, n_neighbors)
        if judges.split.to_judge and judges.plan.solve is not None:
            for model in self.models:
                judges.plan.solve(model, judges.data.to(self.device, self.dtype), judges.plan.settings)

    def _warn_if_interrupted(self, histories: Sequence[History]) -> None:
        """Warn that there are fewer members, or that members are less trained."""
        if any(history.interrupted for history in histories):
            warnings.warn(
                f"Training was interrupted: the estimator is fitted with the best parameters so far, of "
                f"{len(self)} of {len(histories)} members. Call fit again to train it to the end.",
                UserWarning,
                stacklevel=users_level(),
            )

    def _calibrate(self, held_out: Sequence[Part | None], plan: Plan, *, given: bool) -> None:
        """Correct the members' likelihoods by the rows that each of them holds out, if there are any.

        With ``given`` these are the same rows for all members.
        """
        judges = [part.spread(MAX_ROWS).rows().to(self.device, self.dtype) for part in held_out if part is not None]
        if judges:
            recalibrate(self.models, judges, plan.settings.batch_size)
            scores = [max(history.score) for history in self.histories if history.score]
            n_rows = len(judges[0]) if given else sum(map(len, judges))
            self.held_out = HeldOut(float(np.mean(scores)), n_rows) if scores else None

    def _untrained(self, start: Start, index: int, seed: int, precision: torch.dtype) -> tuple[DeepGP, torch.Generator]:
        """The untrained member with this number and its source of random numbers, on the device of training."""
        generator = torch.Generator("cpu").manual_seed(seed)
        model = start(index, generator).to(device=self.device, dtype=precision)
        if self.device.type != "cpu":
            generator = torch.Generator(self.device).manual_seed(seed)
        return model, generator

    def _train(
        self,
        learners: Sequence[Member],
        plan: Plan,
        watcher: Watcher,
        finished: Callable[[DeepGP, int], DeepGP],
    ) -> list[History]:
        """Train the members. Meanwhile :meth:`so_far` can tell what they would be if training ended."""

        def on_epoch(histories: Sequence[History]) -> bool:
            self.histories = list(histories)
            return watcher.epoch(self)

        def copied(index: int) -> DeepGP:
            learner = learners[index]
            model = deepcopy(learner.model)
            with shared_among(ALONE):  # other processes may not ask for a copy
                if plan.solve_copy is not None:
                    plan.solve_copy(model, learner.at_once(), plan.settings)
                return finished(model, index)

        self._in_training = [partial(copied, index) for index in range(len(learners))]
        try:
            return plan.trainer(learners, plan.settings, on_epoch)
        finally:
            self._in_training = []

    def learn(self, start: Start | None, seeds: Sequence[int], chunk: Batch, plan: Plan, split: Split) -> "Ensemble":
        """A new ensemble that has also learnt from one more chunk; this one does not change.

        If there are members already, the chunk calibrates them as they were before they learnt from it. Otherwise the
        rows that they hold out calibrate them. These rows enter the samples of the streams, which replay them later.

        Parameters
        ----------
        start : callable
            Makes the untrained members. With None the existing members continue.
        seeds : sequence of int
            One for each member.
        chunk : Batch
            Rows of the chunk.
        plan : Plan
            Says how to train. Its trainer is not used, since each model has a stream.
        split : Split
            Says which rows of the chunk each member holds out, if it is the first chunk.
        """
        before = deepcopy(self)
        students = before._students
        if not students:
            for index, seed in enumerate(seeds):
                untrained = self._untrained(start or before.continued, index, seed, plan.precision)
                students.append(_Student(*untrained, Stream(continues=start is None)))
        learnt = Ensemble(self.device, self.dtype)
        learnt._students, learnt.plan_name = students, plan.name
        near, held_out = chunk.to("cpu", plan.precision).near(self.device), []
        for index, (model, generator, stream) in enumerate(students):
            rows, others = split.of(near, index)
            learnt.histories.append(stream(model, rows.rows(), plan.settings, generator))
            learnt.members.append(self._ready(stream.averaged(model)))
            if others is not None:
                stream.remember(others.rows(), generator)
                held_out.append(others.rows().to(self.device, self.dtype))
        if len(before):
            judged, n_earlier = before.models, PRIOR_ROWS
            held_out = len(before) * [chunk.spread(MAX_ROWS).to(self.device, self.dtype)]
        else:
            judged, n_earlier = learnt.models, FIRST_PRIOR_ROWS
        if held_out:
            recalibrate(judged, held_out, len(chunk), n_earlier)
        for member, calibrated in zip(learnt.models, judged, strict=True):  # themselves at first
            for each, value in zip(member.likelihood.calibrated(), calibrated.likelihood.calibrated(), strict=True):
                each.copy_(value)
        return learnt

    def so_far(self) -> "Ensemble":
        """The ensemble as it would be if training ended now, with copies of the models in training.

        It has neither a base nor a correction by nearest rows, and its likelihoods are not calibrated. Held-out rows
        decide all of these when training has ended.
        """
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
        """The members as they predict: blended with the base, and corrected by neighbours."""
        predictors = self.models if self.blend is None else [Blended(model, self.blend) for model in self.models]
        return predictors if self.correction is None else [Corrected(each, self.correction) for each in predictors]

    @property
    def base_weight(self) -> float:
        """Weight of the base near the training rows; 0 if there is no base."""
        return 0.0 if self.blend is None else 1.0 - self.blend.weight.reshape(-1)[0].item()

    @property
    def likelihoods(self) -> list[Likelihood]:
        """Likelihoods of the members as they predict."""
        return [model.likelihood for model in self.predictors]

    def objective(self, data: Batch, batch_size: int) -> float:
        """The evidence lower bound with β = 1, summed over encoded rows with their weights; mean over members."""
        known = [history.bound for history in self.histories if history.bound is not None]
        if known and len(known) == len(self.models):
            return float(np.mean(known))
        bounds, (data, mean_weight) = [], data.relative()
        for member in (each.frozen() for each in self.models):
            total = 0.0
            # Fresh samples, as in training: few of them are unbiased, and the sum over rows averages their noise.
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
        """Values of ``function`` for one batch of rows after another.

        If a GPU has too little memory for a batch, the batch is halved.

        Parameters
        ----------
        X : ndarray of shape (n, Q)
            Rows in the user's units.
        prepare : callable
            Brings some of the rows into the units of the models.
        function : callable
            A function of a Tensor (B, Q) on the device.
        dtype : torch.dtype, default=that of the ensemble
            Precision of this tensor.
        copies : int, default=1
            Largest number of rows that ``prepare`` makes of each row.

        Yields
        ------
        rows : slice
            Rows of the batch.
        value : what the function returned for them
            Value for these rows.
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
        """Values of ``function`` of the members' likelihoods and marginals, by batches as in :meth:`batches`.

        With ``exact`` predictions are in the ensemble's precision, whatever the number of rows is.
        """
        coarse = not exact and len(X) >= COARSE_ROWS and all(member.coarse for member in self.models)
        dtype, likelihoods, blend = torch.float32 if coarse else self.dtype, self.likelihoods, self.blend
        members, base, local = self._kept.predictors(self.models, blend, self.correction, dtype)

        def value(batch: Tensor) -> T:
            marginals = [member(batch) for member in members]
            if blend is not None:  # all members have the same base
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
        dtype = DTYPES.get(state["dtype"]) if isinstance(state["dtype"], str) else None
        if dtype is None:
            refuse(f"predicts in {state['dtype']!r}, which is none of {list(DTYPES)}")
        self.__init__(torch.device("cpu"), dtype)  # type: ignore[misc]
        self.members, self.plan_name = from_plain(state["members"], nn.ModuleList), state["plan_name"]
        if not all(isinstance(member, DeepGP) for member in self.members):
            refuse("has a member that is no DeepGP")
        self._students = [_Student.from_plain(student) for student in state.get("students", ())]
        blend, correction = state.get("blend"), state.get("correction")
        self.blend = None if blend is None else from_plain(blend, Blend)
        self.correction = None if correction is None else from_plain(correction, Correction)

    def __deepcopy__(self, memo: dict) -> "Ensemble":
        copy = Ensemble(self.device, self.dtype, deepcopy(list(self.models), memo))
        copy.histories, copy.plan_name = deepcopy(self.histories, memo), self.plan_name
        copy._students = deepcopy(self._students, memo)
        copy.blend, copy.correction = deepcopy(self.blend, memo), deepcopy(self.correction, memo)
        return copy
