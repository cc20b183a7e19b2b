"""Training by chunks of rows that come one after another, without knowing how many there will be.

The model passes over a chunk as often as a fit to all rows would, but no more than ten times. A small chunk would be
only a few steps even so, while a new model needs hundreds. So a new model passes more often over its first chunk. A
stream also keeps a uniform sample of the rows so far, and replays some of them with each small chunk, in the same
minibatches. This makes more steps, and the model does not forget earlier rows if later rows differ from them. The work
is bounded for each row and for each chunk.

A learning rate that falls to zero would have to know the end of the stream. Here it falls as 1/√t in the long run.
Predictions use an average of the parameters of all steps, in which later steps weigh more (Shamir and Zhang,
"Stochastic Gradient Descent for Non-smooth Optimization", ICML 2013). After t steps, the weight of step s is in
proportion to about (s/t)^η. This average is available at any time.
"""

import math
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .batches import Batch, Part
from .retries import repeated
from .settings import History, Member, Settings
from .state import from_plain, to_array, to_generator, to_plain, to_tensor
from .steps import Stepper
from .threads import threads_for
from .trusted import refuse

#: η: the average spans about the last 1/(η + 1) of all steps.
AVERAGE_EXPONENT = 8.0

#: Number of steps in which the learning rate climbs to its peak.
WARM_UP_STEPS = 100

#: Number of steps after which it has fallen to 1/√2 of the peak.
LONG_RUN_STEPS = 1000

#: Largest number of rows that a stream keeps.
REMEMBERED_ROWS = 4000

#: A small chunk takes as much work as this many passes over it. The first chunk of a new model may take as much as this
#: many passes over ``REMEMBERED_ROWS`` rows.
PASSES = 25

#: A later chunk that is small takes no more work than one pass over this many rows, or than the passes of large ones.
ROWS_OF_WORK = 10_000

#: Attributes of a stream that are not part of its memory. Files have them beside it.
NOT_MEMORY = ("model", "generator")


def slowing(n_steps: int) -> float:
    """Learning rate of the step with this number, as a share of its peak: it climbs, and then falls as 1/√t."""
    return min(1.0, n_steps / WARM_UP_STEPS) / math.sqrt(1.0 + n_steps / LONG_RUN_STEPS)


class Sample(NamedTuple):
    """A uniform sample of rows: each row draws a random key, and the rows with the largest keys are kept.

    Two samples can be joined into a sample of all their rows, however the rows were divided between them.
    """

    X: Tensor
    y: Tensor
    weight: Tensor
    key: Tensor

    @classmethod
    def of(cls, rows: Batch, generator: torch.Generator) -> "Sample":
        """A sample of the rows, on the generator's device."""
        key = torch.rand(len(rows), generator=generator, device=generator.device, dtype=torch.float64)
        kept = _largest(key)
        rows = rows.rows(kept.to(rows.X.device)).to(generator.device, rows.X.dtype)
        return cls(rows.X, rows.y, rows.weight, key[kept])

    @property
    def rows(self) -> Batch:
        """The rows of the sample."""
        return Batch(self.X, self.y, self.weight)

    def joined(self, other: "Sample") -> "Sample":
        """The sample of the rows of both samples."""
        both = [torch.cat(columns) for columns in zip(self, other, strict=True)]
        kept = _largest(both[-1])
        return Sample(*(column[kept] for column in both))


def draw(n_kept: int, n_rows: int, generator: torch.Generator) -> Tensor:
    """Numbers of ``n_rows`` rows among ``n_kept``; each row comes as often as any other, or once more."""
    orders = [torch.randperm(n_kept, generator=generator, device=generator.device) for _ in range(0, n_rows, n_kept)]
    return torch.cat(orders)[:n_rows]


def _largest(key: Tensor) -> Tensor:
    """Places of the keys that a sample keeps."""
    return key.topk(min(REMEMBERED_ROWS, len(key))).indices


class Stream:
    """A member that learns from chunks, and its memory: each call teaches its model one more chunk.

    Parameters
    ----------
    model : DeepGP
        The model, which changes in place.
    generator : torch.Generator
        Shuffles rows and draws samples.
    continues : bool, default=False
        Whether the model has learnt from rows that the stream has not seen. The smaller the stream's part of all rows
        is, the less it then replays. Otherwise the model would forget the other rows.

    Attributes
    ----------
    average : list of Tensor
        The model's parameters, averaged over steps.
    sample : Sample or None
        A sample of the rows so far.
    n_seen, n_steps : int
        Number of rows and steps so far.
    rate : float
        Share of the peak learning rate, which is halved after each failure.
    """

    def __init__(self, model: DeepGP, generator: torch.Generator, *, continues: bool = False) -> None:
        self.model, self.generator = model, generator
        self.continues = continues
        self.average: list[Tensor] = []
        self.moments: list[Tensor] = []  # the optimiser's state
        self.sample: Sample | None = None
        self.n_seen = self.n_steps = 0
        self.rate = 1.0

    def __call__(self, chunk: Batch, settings: Settings) -> History:
        """Learn from one more chunk.

        ``max_iter`` limits the number of passes over a chunk. Settings of early stopping are not used. If a chunk
        fails, it is tried again at lower and lower learning rates. If that does not help, model and stream stay as they
        were before.
        """
        sample, history = self._sample_with(chunk), History()
        rows = self._with_replayed(chunk, sample, settings)
        batch_size = min(settings.batch_size, max(len(chunk), len(sample.key)))
        settings = replace(settings, batch_size=batch_size, n_rows=settings.n_rows or len(chunk))
        history.add(self._learn(Member(self.model, rows, self.generator), settings))
        self.sample, self.n_seen = sample, self.n_seen + len(chunk)
        return history

    def remember(self, rows: Batch) -> None:
        """Take rows into the sample without learning from them now; later chunks replay them."""
        self.sample, self.n_seen = self._sample_with(rows), self.n_seen + len(rows)

    def averaged(self) -> DeepGP:
        """A copy of the model with the averaged parameters."""
        model = deepcopy(self.model)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.average, strict=True):
                parameter.copy_(value)
        return model

    def to_plain(self) -> dict:
        """The stream as arrays, numbers and names."""
        lists = {"average": self.average, "moments": self.moments, "sample": self.sample or ()}
        arrays = {name: [to_array(tensor) for tensor in tensors] for name, tensors in lists.items()}
        return {
            "model": to_plain(self.model),
            "trained": [name for name, parameter in self.model.named_parameters() if parameter.requires_grad],
            "generator": to_array(self.generator.get_state()),
            "stream": {name: value for name, value in vars(self).items() if name not in NOT_MEMORY} | arrays,
        }

    @classmethod
    def from_plain(cls, state: dict) -> Self:
        """The stream, on the CPU, from the state that :meth:`to_plain` returned."""
        stream = cls(from_plain(state["model"], DeepGP), to_generator(state["generator"]))
        parameters, memory = dict(stream.model.named_parameters()), vars(stream)
        for name in state["trained"]:
            parameters[name].requires_grad_(True)
        for name, value in state["stream"].items():
            if name in NOT_MEMORY or name not in memory or type(value) not in (list, type(memory[name])):
                refuse(f"has a stream with {name!r} of type {type(value).__name__}")
            memory[name] = [to_tensor(array) for array in value] if type(value) is list else value
        stream.sample = Sample(*stream.sample) if stream.sample else None
        return stream

    def _with_replayed(self, chunk: Batch, sample: Sample, settings: Settings) -> Part:
        """The rows of a chunk, and those that are replayed with it."""
        n_replayed = self._n_replayed(len(chunk), settings)
        n_more = int(settings.n_passes * self._share(len(chunk), settings) * len(chunk)) - len(chunk) - n_replayed
        if n_more <= 0 and not n_replayed:
            return Part(chunk)
        numbers = torch.arange(len(chunk), device=chunk.X.device)
        if n_more > 0:
            again = draw(len(chunk), n_more, self.generator).to(chunk.X.device)
            numbers = torch.cat([numbers, again])
        if not n_replayed:
            return Part(chunk, numbers)
        replayed = chunk if self._begins else sample.rows
        drawn = len(chunk) + draw(len(replayed), n_replayed, self.generator).to(chunk.X.device)
        return Part(chunk.joined(replayed), torch.cat([numbers, drawn]))

    def _share(self, n_rows: int, settings: Settings) -> float:
        """Share of the rows that a model has learnt from which the stream has seen, with ``n_rows`` more."""
        n_seen = self.n_seen + n_rows
        return min(1.0, n_seen / (settings.n_rows or n_seen)) if self.continues else 1.0

    @property
    def _begins(self) -> bool:
        """Whether the model has learnt nothing yet."""
        return not (self.n_seen or self.continues)

    def _sample_with(self, rows: Batch) -> Sample:
        """The sample as it is when these rows have come, too."""
        sample = Sample.of(rows, self.generator)
        return sample if self.sample is None else self.sample.joined(sample)

    def _n_replayed(self, n_rows: int, settings: Settings) -> int:
        """Number of rows that are replayed with a chunk of ``n_rows`` rows."""
        n_seen = self.n_seen + n_rows
        passes = PASSES * min(1.0, REMEMBERED_ROWS / n_seen) * self._share(n_rows, settings)
        passes = min(passes, settings.max_iter)
        work = passes * n_rows if self._begins else min(passes * n_rows, ROWS_OF_WORK)
        return max(0, int(work) - n_rows)

    def _learn(self, member: Member, settings: Settings) -> float:
        """Pass over a member's rows, whose weights count as they are; return the mean loss."""
        stepper = Stepper([member], settings, scale=member.rows.mean_weight())
        try:
            if self.moments:
                stepper.adam.restore(self.moments)
            with threads_for(member.model.products(settings.batch_size, mixture=not settings.objective.linear)):
                loss, average = repeated(stepper, lambda: self._pass(stepper))
        finally:
            stepper.release()
        self.average, self.moments, self.n_steps = average, stepper.adam.memory, self.n_steps + stepper.n_steps
        self.rate *= stepper.factor
        return loss

    def _pass(self, stepper: Stepper) -> tuple[float, list[Tensor]]:
        """Pass over the rows: the mean loss, and the average of parameters over all steps so far."""
        parameters = [parameter.detach() for parameter in stepper.model.parameters()]
        average = [mean.clone() for mean in self.average or parameters]

        def rate(step: int) -> float:
            return self.rate * stepper.settings.learning_rate * slowing(self.n_steps + step + 1)

        def add_to_average(step: int) -> None:
            weight = (AVERAGE_EXPONENT + 1) / (AVERAGE_EXPONENT + self.n_steps + step + 1)
            torch._foreach_lerp_(average, parameters, weight)

        [loss] = stepper.epoch(rate, add_to_average)
        return loss, average
