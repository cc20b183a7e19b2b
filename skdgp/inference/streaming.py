"""Training by chunks of rows that come one after the other, without knowing how many will.

A learning rate that falls to nothing needs to know its end. Here it falls as 1/√t in the long run, and what is
handed out is an average of the parameters that steps have visited, of which the later ones weigh more (Shamir and
Zhang, "Stochastic Gradient Descent for Non-smooth Optimization", ICML 2013): after t steps the step s has a weight
in proportion to about (s/t)^η. It may be asked for at any time.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .batches import Batch, Part, shuffled
from .minibatches import MAX_RETRIES
from .settings import History, Settings
from .steps import Trainee
from .threads import threads_for

#: η: the average spans about the last 1/(η + 1) of all steps.
AVERAGE_EXPONENT = 8.0

#: Steps in which the learning rate climbs to its peak, and steps until it has fallen to 1/√2 of it.
WARM_UP_STEPS, LONG_RUN_STEPS = 100, 1000


class Stream:
    """A trainer that remembers: every call is a pass over one more chunk, for the same model.

    Attributes
    ----------
    average : list of Tensor
        The model's parameters, averaged over steps.
    n_steps : int
        Steps so far.
    rate : float
        Share of the peak learning rate that training has not yet failed with.
    """

    def __init__(self) -> None:
        self.average: list[Tensor] = []
        self.moments: list[Tensor] | None = None  # of the optimiser
        self.n_steps = 0
        self.rate = 1.0

    def __call__(
        self,
        model: DeepGP,
        data: Batch,
        held_out: Batch | None,
        settings: Settings,
        generator: torch.Generator,
    ) -> History:
        """One pass.

        ``max_iter`` and what decides early stopping do not matter. A pass that fails is repeated at ever lower learning
        rates; if that does not help, model and stream are what they were before.
        """
        self.average = self.average or [parameter.detach().clone() for parameter in model.parameters()]
        retries = 0
        while True:
            try:
                history = History([self._pass(model, data, settings, generator)], best_epoch=1)
            except (np.linalg.LinAlgError, FloatingPointError):
                if retries == MAX_RETRIES:
                    raise
                self.rate, retries = self.rate / 2, retries + 1
            else:
                return history

    def averaged(self, model: DeepGP) -> DeepGP:
        """A copy of the model with the average of its parameters."""
        model = deepcopy(model)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.average, strict=True):
                parameter.copy_(value)
        return model

    def _pass(self, model: DeepGP, chunk: Batch, settings: Settings, generator: torch.Generator) -> float:
        """The mean loss of the chunk's minibatches."""
        average, n_steps = [each.clone() for each in self.average], self.n_steps
        total: float | Tensor = 0.0
        chunk, mean_weight = chunk.relative()
        products = model.products(settings.batch_size, mixture=not settings.objective.linear)
        with threads_for(products), self._trainee(model, settings, generator, len(chunk), mean_weight) as trainee:
            for batch in shuffled([Part(chunk)], settings.batch_size, [generator]):
                n_steps += 1
                schedule = min(1.0, n_steps / WARM_UP_STEPS) / math.sqrt(1.0 + n_steps / LONG_RUN_STEPS)
                rate = self.rate * settings.learning_rate * schedule
                total += len(batch) * trainee.step(batch, rate).double()
                weight = (AVERAGE_EXPONENT + 1) / (AVERAGE_EXPONENT + n_steps)
                torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], weight)
            trainee.check()
        self.average, self.n_steps = average, n_steps
        return float(total) / len(chunk)

    @contextmanager
    def _trainee(
        self, model: DeepGP, settings: Settings, generator: torch.Generator, n_rows: int, mean_weight: float
    ) -> Iterator[Trainee]:
        """The model in training, which is what it was before if the body fails.

        ``scale`` lets weights count as they are, beside those of other chunks.
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
