"""One step of training: the gradient of the objective, and what Adam makes of it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from ..gp.deep_gp import DeepGP
from ..gp.propagation import Share
from .batches import Batch
from .processes import ALONE, Processes
from .settings import Settings


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

    def step(self, rate: float | Tensor) -> None:
        """Move; a rate in a tensor may be recorded in a CUDA graph."""
        adam(
            [self.vector],
            [self.gradient],
            [self.mean],
            [self.square],
            [],  # what AMSGrad would remember
            [self.count],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
            fused=True,
            capturable=self.vector.is_cuda and isinstance(rate, Tensor),
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
    processes : Processes, default=ALONE
        Those that share every minibatch.
    kl_weight : float
        β/N, for weights of rows whose mean is one (:meth:`.Batch.relative`).
    scale : float, default=1.0
        Multiplies the objective.
    """

    def __init__(
        self,
        model: DeepGP,
        settings: Settings,
        generator: torch.Generator,
        processes: Processes = ALONE,
        *,
        kl_weight: float,
        scale: float = 1.0,
    ):
        self.model, self.settings, self.generator, self.processes = model, settings, generator, processes
        self.kl_weight, self.scale = kl_weight, scale
        self.flat = FlatParameters(model)
        if processes.rank:
            self.flat.vector.zero_()
        processes.add_up(self.flat.vector)  # what the first process starts from
        self.adam = Adam(self.flat.vector, self.flat.gradient)

    def step(self, batch: Batch, rate: float) -> float | Tensor:
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
        self.adam.step(rate)
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
        objective = self.settings.objective
        marginals = self.model(rows.X, self.generator, targets=rows.y, share=share, mixture=not objective.linear)
        value = objective.value(marginals, self.model.likelihood, rows.y, rows.weight, self.kl_weight)
        return value * (-self.scale * len(rows) / share.total)

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
