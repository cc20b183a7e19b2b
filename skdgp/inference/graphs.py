"""Records training steps on a CUDA device once and replays them: one launch instead of a thousand small ones.

A recording uses fixed addresses, and cannot react to the numbers that it computes. So the minibatch, the learning rate
and the loss have memory of their own. A failure shows only at the end of an epoch, in numbers that are not finite.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from .batches import Batch
from .processes import ALONE, Processes
from .settings import Member, Settings
from .steps import Stepper

#: Number of calls before a recording, in which libraries prepare their workspaces.
_WARM_UP_CALLS = 3

#: Packages whose modules decide nothing by numbers that they compute.
_RECORDABLE = (__name__.split(".")[0], "torch")


def can_be_recorded(model: nn.Module) -> bool:
    """Whether all parts of a model are of this package or of PyTorch. Others may decide by what they have computed."""
    return all(type(part).__module__.split(".")[0] in _RECORDABLE for part in model.modules())


@cache
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    """The stream of a thread's recordings on a device. Libraries keep a workspace of tens of MiB for each stream."""
    return torch.cuda.Stream(device)


def record(function: Callable[[], Tensor], generators: Sequence[torch.Generator]) -> Callable[[], Tensor]:
    """A function that does the same on the device as ``function``, with one launch.

    Parameters
    ----------
    function : callable
        A function that works on the same memory in each call. It is called a few times.
    generators : sequence of torch.Generator
        Generators of one device from which the function draws random numbers. The replay continues with them.
    """
    device = generators[0].device
    stream = _stream(device, threading.get_ident())
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_CALLS):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=stream):
        result = function()

    def replay() -> Tensor:
        graph.replay()
        return result.clone()

    return replay


class RecordedStepper(Stepper):
    """A stepper whose steps are replayed. Each of the two sizes of minibatches has a recording."""

    def __init__(self, members: Sequence[Member], settings: Settings, processes: Processes = ALONE, **options):
        super().__init__(members, settings, processes, **options)
        self.rate = torch.zeros((), device=self.flat.vector.device)
        self.recordings: dict[int, tuple[Batch, Callable[[], Tensor]]] = {}

    def slow_down(self, members: Sequence[int]) -> None:
        """See :meth:`.Stepper.slow_down`. Old recordings have the old pace, and are deleted."""
        super().slow_down(members)
        self.recordings.clear()

    def step(self, batch: Batch, rate: float) -> Tensor:
        """Take a step; return the losses before it, which may be infinite or NaN."""
        if len(batch) not in self.recordings:
            self.recordings[len(batch)] = self._record(batch)
        own, replay = self.recordings[len(batch)]
        for target, source in zip((own.X, own.y, own.weight), (batch.X, batch.y, batch.weight), strict=True):
            target.copy_(source)
        self.rate.fill_(rate * self.factor)
        return replay()

    def _record(self, batch: Batch) -> tuple[Batch, Callable[[], Tensor]]:
        """Memory for minibatches of this size, and a function that takes a step with its contents."""
        own = Batch(batch.X.clone(), batch.y.clone(), batch.weight.clone())

        def step() -> Tensor:
            losses = self.gradient(own)
            self.adam.step(self.rate, self.pace)
            return losses

        before = self.state()
        replay = record(step, self.generators)
        self.restore(before)
        return own, replay
