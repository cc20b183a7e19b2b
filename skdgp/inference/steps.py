"""Minibatches, and one step of training: the gradient of the objective, and what Adam makes of it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from ..gp.deep_gp import DeepGP
from .objectives import Objective
from .processes import ALONE, Alone, Share

#: Rows that are brought into random order, and to the device, at a time: memory stays bounded, and a minibatch
#: is a view.
GATHERED_ROWS = 2**17


@dataclass(frozen=True)
class Batch:
    """Rows on the device: inputs (B, Q), targets (B, P) and the weights of their likelihood terms (B,)."""

    X: Tensor
    y: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.X)

    def rows(self, index: Tensor | slice) -> "Batch":
        """The rows at ``index``."""
        return Batch(self.X[index], self.y[index], self.weight[index])

    def spread(self, n_rows: int) -> "Batch":
        """At most ``n_rows`` of the rows, evenly spread over all."""
        if len(self) <= n_rows:
            return self
        return self.rows(torch.arange(n_rows, device=self.X.device) * len(self) // n_rows)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Batch":
        """The same rows elsewhere."""
        return self._columns(lambda column: column.to(device, dtype, non_blocking=column.is_pinned()))

    def pinned(self) -> "Batch":
        """The same rows where a GPU can fetch them from by itself."""
        return self._columns(Tensor.pin_memory)

    def _columns(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(function(self.X), function(self.y), function(self.weight))


@dataclass(frozen=True)
class Settings:
    """What training needs to know besides model and data; see the estimators for the meanings."""

    objective: Objective
    kl_weight: float
    max_iter: int
    batch_size: int
    learning_rate: float
    n_iter_no_change: int
    tol: float
    cuda_graphs: bool = False


def shuffled(data: Batch, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """All rows in random order, on the generator's device, in minibatches of equal size.

    A remnant of a few rows would be a noisy step of full length.
    """
    n_steps = -(-len(data) // batch_size)
    order = torch.randperm(len(data), generator=generator, device=generator.device).to(data.X.device)
    device, away = generator.device, data.X.device != generator.device
    n_together = max(1, GATHERED_ROWS // batch_size)
    ends = [i * len(data) // n_steps for i in range(n_steps + 1)]
    for first in range(0, n_steps, n_together):
        steps = ends[first : first + n_together + 1]
        rows = data.rows(order[steps[0] : steps[-1]])
        if away:
            rows = rows.pinned().to(device, rows.X.dtype)
        for start, stop in pairwise(steps):
            yield rows.rows(slice(start - steps[0], stop - steps[0]))


class FlatParameters:
    """The trainable parameters of a model as one vector: one copy saves them, one kernel moves them.

    Parameters
    ----------
    model : Module
        Whose parameters and gradients become views of ``vector`` and ``gradient``, until :meth:`release`.

    Attributes
    ----------
    vector, gradient : Tensors of shape (n,)
    sums : Tensor of shape (n + 1,)
        What processes add up in one go: the gradient, and after it the loss.
    """

    def __init__(self, model: nn.Module):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in self.parameters]
        self.vector = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.sums = self.vector.new_zeros(sum(sizes) + 1)
        self.gradient = self.sums[:-1]
        values, gradients = self.vector.split(sizes), self.gradient.split(sizes)
        for parameter, value, gradient in zip(self.parameters, values, gradients, strict=True):
            parameter.data = value.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)

    def release(self) -> None:
        """Give every parameter memory of its own."""
        for parameter in self.parameters:
            parameter.data, parameter.grad = parameter.detach().clone(), None


class Adam:
    """Adam on one vector, with torch's defaults, by the function that its class calls.

    The class brings torch's compiler with it, whose import takes a second or two of every new process.

    Parameters
    ----------
    vector, gradient : Tensor
        What moves, and where its gradient will be.
    """

    def __init__(self, vector: Tensor, gradient: Tensor):
        self.vector, self.gradient = vector, gradient
        self.mean, self.square = torch.zeros_like(vector), torch.zeros_like(vector)
        self.count = torch.zeros((), dtype=torch.float32, device=vector.device)

    @property
    def memory(self) -> list[Tensor]:
        """All that it remembers."""
        return [self.mean, self.square, self.count]

    def step(self, learning_rate: float | Tensor) -> None:
        """Move; a rate in a tensor may be recorded in a CUDA graph."""
        adam(
            [self.vector],
            [self.gradient],
            [self.mean],
            [self.square],
            [],  # what AMSGrad would remember
            [self.count],
            lr=learning_rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
            fused=True,
            capturable=self.vector.is_cuda and isinstance(learning_rate, Tensor),
        )


class Trainee:
    """A model in training: its parameters, Adam's moments, and the step that changes both.

    Parameters
    ----------
    model : DeepGP
        Changed in place. Its parameters are views of one vector until :meth:`release`.
    settings : Settings
    generator : torch.Generator
        Draws noise.
    processes : Alone, default=ALONE
        Those that share every minibatch.
    """

    def __init__(self, model: DeepGP, settings: Settings, generator: torch.Generator, processes: Alone = ALONE):
        self.model, self.settings, self.generator, self.processes = model, settings, generator, processes
        self.flat = FlatParameters(model)
        if processes.rank:
            self.flat.vector.zero_()
        processes.add_up(self.flat.vector)  # what the first process starts from
        self.adam = Adam(self.flat.vector, self.flat.gradient)

    def step(self, batch: Batch, learning_rate: float) -> float | Tensor:
        """Take a step; the negative objective before it.

        Raises
        ------
        numpy.linalg.LinAlgError, FloatingPointError
            If the objective cannot be computed.
        """
        loss = self._gradient(batch).item()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"The training objective became {-loss}. The likely cause is a learning_rate too high for "
                "these data: lower it, or set dtype='float64'."
            )
        self.adam.step(learning_rate)
        return loss

    def _gradient(self, batch: Batch) -> Tensor:
        """Fill in the gradient; the loss."""
        sums, share = self.flat.sums.zero_(), self.processes.share(len(batch))
        try:
            loss = self._loss(batch.rows(share.rows), share) if self.processes.size > 1 else self._loss(batch, share)
            loss.backward()
            sums[-1] = loss.detach()
        except np.linalg.LinAlgError:
            if self.processes.size == 1:
                raise
            sums.fill_(math.nan)
        self.processes.add_up(sums)
        return sums[-1]

    def _loss(self, rows: Batch, share: Share) -> Tensor:
        """What the rows of one process add to the negative objective."""
        marginals = self.model(rows.X, self.generator, share)
        objective = self.settings.objective(
            marginals, self.model.likelihood, rows.y, rows.weight, self.settings.kl_weight
        )
        return objective * (-len(rows) / share.total)

    def release(self) -> None:
        """End the training."""
        self.flat.release()

    def check(self) -> None:
        """Raise FloatingPointError if a step has left a parameter that is not finite."""
        if self.flat.vector.isfinite().all():
            return
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"Training made the parameter {name} infinite or NaN. The likely cause is a learning_rate too "
                    "high for these data: lower it, or set dtype='float64'."
                )

    def parameters(self) -> Tensor:
        """A copy of them, for :meth:`restore`."""
        return self.flat.vector.clone()

    def moments(self) -> list[Tensor]:
        """A copy of what the optimiser remembers, for :meth:`restore`."""
        return [each.clone() for each in self.adam.memory]

    def restore(self, parameters: Tensor, moments: Sequence[Tensor] | None = None) -> None:
        """Go back to earlier parameters, and moments, in the memory where they are."""
        self.flat.vector.copy_(parameters)
        for now, then in zip(self.adam.memory, moments or (), strict=bool(moments)):
            now.copy_(then)
