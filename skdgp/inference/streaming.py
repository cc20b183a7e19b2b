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
from .steps import Batch, Settings, Trainee, shuffled
from .training import MAX_RETRIES

#: η: the average spans about the last 1/(η + 1) of all steps.
AVERAGE_EXPONENT = 8.0

#: Steps in which the learning rate climbs to its peak, and steps until it has fallen to 1/√2 of it.
WARM_UP_STEPS, LONG_RUN_STEPS = 100, 1000


class Stream:
    """A model in training, and its average.

    Parameters
    ----------
    model : DeepGP
        Where training starts; it is copied.
    generator : torch.Generator
        Shuffles the rows of a chunk and draws noise.
    """

    def __init__(self, model: DeepGP, generator: torch.Generator):
        self.model = deepcopy(model)
        self.generator = generator
        self.average = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.moments: list[Tensor] | None = None  # of the optimiser
        self.n_steps = 0
        self.rate = 1.0  # share of the peak that training has not yet failed with

    def averaged(self) -> DeepGP:
        """The average as a model of its own."""
        model = deepcopy(self.model)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), self.average, strict=True):
                parameter.copy_(value)
        return model

    def learn(self, chunk: Batch, settings: Settings) -> float:
        """One pass over a chunk; the mean loss of its minibatches.

        Parameters
        ----------
        chunk : Batch
        settings : Settings
            ``max_iter`` and what decides early stopping do not matter.

        Returns
        -------
        float

        Raises
        ------
        numpy.linalg.LinAlgError, FloatingPointError
            If the pass stays impossible at ever lower learning rates. Whatever the error, the stream is then what
            it was before.
        """
        retries = 0
        while True:
            try:
                return self._pass(chunk, settings)
            except (np.linalg.LinAlgError, FloatingPointError):
                if retries == MAX_RETRIES:
                    raise
                self.rate, retries = self.rate / 2, retries + 1

    def _pass(self, chunk: Batch, settings: Settings) -> float:
        average, n_steps = [each.clone() for each in self.average], self.n_steps
        total: float | Tensor = 0.0
        with self._trainee(settings) as trainee:
            for batch in shuffled(chunk, settings.batch_size, self.generator):
                n_steps += 1
                schedule = min(1.0, n_steps / WARM_UP_STEPS) / math.sqrt(1.0 + n_steps / LONG_RUN_STEPS)
                rate = self.rate * settings.learning_rate * schedule
                total += len(batch) * trainee.step(batch, rate)
                weight = (AVERAGE_EXPONENT + 1) / (AVERAGE_EXPONENT + n_steps)
                torch._foreach_lerp_(average, [p.detach() for p in self.model.parameters()], weight)
            trainee.check()
        self.average, self.n_steps = average, n_steps
        return float(total) / len(chunk)

    @contextmanager
    def _trainee(self, settings: Settings) -> Iterator[Trainee]:
        """The model in training, which is what it was before if the body fails."""
        trainee = Trainee(self.model, settings, self.generator)
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
