"""Training by chunks of rows that come one after another, without knowing how many there will be.

The model passes once over a large chunk. A small chunk would be only a few steps, while a new model needs hundreds. So
a new model passes several times over its first chunk. A stream also keeps a uniform sample of the rows so far, and
replays some of them with each small chunk, in the same minibatches. This makes more steps, and the model does not
forget earlier rows if later rows differ from them. The work is bounded for each row, for each chunk, and for the stream
as a whole.

A learning rate that falls to zero would have to know the end of the stream. Here it falls as 1/√t in the long run.
Predictions use an average of the parameters of all steps, in which later steps weigh more (Shamir and Zhang,
"Stochastic Gradient Descent for Non-smooth Optimization", ICML 2013). After t steps, the weight of step s is in
proportion to about (s/t)^η. This average is available at any time.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .batches import Batch, Part, shuffled
from .minibatches import MAX_RETRIES
from .settings import History, Settings
from .state import to_array, to_tensor
from .steps import Trainee
from .threads import threads_for
from .trusted import refuse

#: η: the average spans about the last 1/(η + 1) of all steps.
AVERAGE_EXPONENT = 8.0

#: Number of steps in which the learning rate climbs to its peak, and number after which it has fallen to 1/√2 of it.
WARM_UP_STEPS, LONG_RUN_STEPS = 100, 1000

#: Largest number of rows that a stream keeps.
REMEMBERED_ROWS = 4000

#: A small chunk takes as much work as this many passes over it, but no more than one pass over ``ROWS_OF_WORK`` rows.
#: The first chunk of a new model may take as much as this many passes over ``REMEMBERED_ROWS`` rows.
PASSES, ROWS_OF_WORK = 25, 10_000


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
    """A trainer with a memory: each call teaches the same model one more chunk.

    Parameters
    ----------
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

    def __init__(self, *, continues: bool = False) -> None:
        self.continues = continues
        self.average: list[Tensor] = []
        self.moments: list[Tensor] = []  # the optimiser's state
        self.sample: Sample | None = None
        self.n_seen = self.n_steps = 0
        self.rate = 1.0

    def __call__(self, model: DeepGP, chunk: Batch, settings: Settings, generator: torch.Generator) -> History:
        """Learn from one more chunk.

        ``max_iter`` limits the number of passes over a chunk. Settings of early stopping are not used. If a chunk
        fails, it is tried again at lower and lower learning rates. If that does not help, model and stream stay as they
        were before.
        """
        self.average = self.average or [parameter.detach().clone() for parameter in model.parameters()]
        rate, retries = self.rate, 0
        while True:
            try:
                history = History([self._learn(model, chunk, settings, generator)], best_epoch=1)
            except (np.linalg.LinAlgError, FloatingPointError):
                if retries == MAX_RETRIES:
                    self.rate = rate
                    raise
                self.rate, retries = self.rate / 2, retries + 1
            else:
                return history

    def remember(self, rows: Batch, generator: torch.Generator) -> None:
        """Take rows into the sample without learning from them now; later chunks replay them."""
        self.sample, self.n_seen = self._sample_with(rows, generator), self.n_seen + len(rows)

    def averaged(self, model: DeepGP) -> DeepGP:
        """A copy of the model with the averaged parameters."""
        model = deepcopy(model)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.average, strict=True):
                parameter.copy_(value)
        return model

    def to_plain(self) -> dict:
        """The stream as arrays and numbers."""
        lists = {"average": self.average, "moments": self.moments, "sample": self.sample or ()}
        return vars(self) | {name: [to_array(each) for each in tensors] for name, tensors in lists.items()}

    @classmethod
    def from_plain(cls, state: dict) -> "Stream":
        """The stream, on the CPU, from the state that :meth:`to_plain` returned."""
        stream = cls()
        for name, value in state.items():
            if name not in vars(stream) or type(value) not in (list, type(vars(stream)[name])):
                refuse(f"has a stream with {name!r} of type {type(value).__name__}")
            vars(stream)[name] = [to_tensor(each) for each in value] if type(value) is list else value
        stream.sample = Sample(*stream.sample) if stream.sample else None
        return stream

    def _learn(self, model: DeepGP, chunk: Batch, settings: Settings, generator: torch.Generator) -> float:
        """Learn from a chunk and the rows that are replayed with it; return the mean loss of the minibatches."""
        sample = self._sample_with(chunk, generator)
        rows, n_replayed = Part(chunk), self._n_replayed(len(chunk), settings)
        if n_replayed:
            known = chunk if self._begins else sample.rows
            numbers = torch.arange(len(chunk), device=chunk.X.device)
            replayed = len(chunk) + draw(len(known), n_replayed, generator).to(chunk.X.device)
            rows = Part(chunk.joined(known), torch.cat([numbers, replayed]))
        batch_size = min(settings.batch_size, max(len(chunk), len(sample.key)))
        settings = replace(settings, batch_size=batch_size, n_rows=settings.n_rows or len(chunk))
        loss = self._pass(model, rows, settings, generator)
        self.sample, self.n_seen = sample, self.n_seen + len(chunk)
        return loss

    @property
    def _begins(self) -> bool:
        """Whether the model has learnt nothing yet."""
        return not (self.n_seen or self.continues)

    def _sample_with(self, rows: Batch, generator: torch.Generator) -> Sample:
        """The sample as it is when these rows have come, too."""
        sample = Sample.of(rows, generator)
        return sample if self.sample is None else self.sample.joined(sample)

    def _n_replayed(self, n_rows: int, settings: Settings) -> int:
        """Number of rows that are replayed with a chunk of ``n_rows`` rows."""
        n_seen = self.n_seen + n_rows
        passes = PASSES * min(1.0, REMEMBERED_ROWS / n_seen)
        if self.continues:
            passes *= min(1.0, n_seen / (settings.n_rows or n_seen))
        passes = min(passes, settings.max_iter)
        work = passes * n_rows if self._begins else min(passes * n_rows, ROWS_OF_WORK)
        return max(0, int(work) - n_rows)

    def _pass(self, model: DeepGP, rows: Part, settings: Settings, generator: torch.Generator) -> float:
        """Pass over the rows; return the mean loss of the minibatches."""
        average, n_steps = [each.clone() for each in self.average], self.n_steps
        total: float | Tensor = 0.0
        mean_weight = rows.mean_weight()
        rows = Part(rows.data.weighing(1 / mean_weight), rows.index)
        products = model.products(settings.batch_size, mixture=not settings.objective.linear)
        with threads_for(products), self._trainee(model, settings, generator, len(rows), mean_weight) as trainee:
            for batch in shuffled([rows], settings.batch_size, [generator]):
                n_steps += 1
                schedule = min(1.0, n_steps / WARM_UP_STEPS) / math.sqrt(1.0 + n_steps / LONG_RUN_STEPS)
                rate = self.rate * settings.learning_rate * schedule
                total += len(batch) * trainee.step(batch, rate).double()
                weight = (AVERAGE_EXPONENT + 1) / (AVERAGE_EXPONENT + n_steps)
                torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], weight)
            trainee.check()
        self.average, self.n_steps = average, n_steps
        return float(total) / len(rows)

    @contextmanager
    def _trainee(
        self, model: DeepGP, settings: Settings, generator: torch.Generator, n_rows: int, mean_weight: float
    ) -> Iterator[Trainee]:
        """The model in training. If the body fails, the model is restored.

        With ``scale`` the weights of rows count in full, and not relative to their mean in the chunk.
        """
        kl_weight = settings.kl_weight(n_rows, mean_weight)
        trainee = Trainee([model], settings, [generator], kl_weight=[kl_weight], scale=mean_weight)
        before = trainee.parameters()
        try:
            trainee.restore(before, self.moments)
            yield trainee
            self.moments = trainee.moments()
        except BaseException:
            trainee.restore(before)
            raise
        finally:
            trainee.release()
