"""Steps on a CUDA device recorded once and replayed: one launch in place of a thousand small ones.

A recording has fixed addresses and cannot look at what it computes. So a minibatch, the learning rate and the loss
live in memory of their own, and a failure shows only in numbers that are not finite at the end of an epoch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .batches import Batch
from .settings import Settings
from .steps import Trainee

#: Calls before a recording, in which libraries get their workspaces ready.
_WARM_UP_CALLS = 3


def record(function: Callable[[], Tensor], generator: torch.Generator) -> Callable[[], Tensor]:
    """A function that does on the device what ``function`` does, at one launch.

    Parameters
    ----------
    function : callable
        Works on the same memory in every call. It is called a few times.
    generator : torch.Generator
        What the function draws random numbers from, and the replay goes on with.
    """
    stream = torch.cuda.Stream(generator.device)
    stream.wait_stream(torch.cuda.current_stream(generator.device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_CALLS):
            function()
    torch.cuda.current_stream(generator.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = function()

    def replay() -> Tensor:
        graph.replay()
        return result.clone()

    return replay


class CapturedTrainee(Trainee):
    """A model in training whose steps are replayed, with a recording for every size of minibatch (there are two)."""

    def __init__(self, model: DeepGP, settings: Settings, generator: torch.Generator, *, kl_weight: float):
        self.rate = torch.zeros((), device=generator.device)
        super().__init__(model, settings, generator, kl_weight=kl_weight)
        self.recordings: dict[int, tuple[Batch, Callable[[], Tensor]]] = {}

    def step(self, batch: Batch, rate: float) -> Tensor:
        """Take a step; the negative objective before it, which may be anything."""
        if len(batch) not in self.recordings:
            self.recordings[len(batch)] = self._record(batch)
        own, replay = self.recordings[len(batch)]
        for target, source in zip((own.X, own.y, own.weight), (batch.X, batch.y, batch.weight), strict=True):
            target.copy_(source)
        self.rate.fill_(rate)
        return replay()

    def _record(self, batch: Batch) -> tuple[Batch, Callable[[], Tensor]]:
        """Memory for minibatches of this size, and what takes a step with the one that is there."""
        own = Batch(batch.X.clone(), batch.y.clone(), batch.weight.clone())

        def step() -> Tensor:
            loss = self._gradient(own)
            self.adam.step(self.rate)
            return loss

        before, noise = (self.parameters(), self.moments()), self.generator.get_state()
        replay = record(step, self.generator)
        self.restore(*before)
        self.generator.set_state(noise)
        return own, replay
