"""Trainable parameters as one vector, and Adam on this vector."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from ..gp.deep_gp import DeepGP
from .stacks import stack


class FlatParameters:
    """The trainable parameters of models as one vector, which one operation can copy or change.

    Parameters
    ----------
    models : sequence of DeepGP
        Models of one shape. Their parameters become views of ``vector`` until :meth:`release`.

    Attributes
    ----------
    whole : DeepGP
        The stack of the models, or the model itself if there is only one. Its parameters and gradients are views of
        ``vector`` and ``gradient``.
    vector, gradient : Tensors of shape (n,)
        All parameters, and their gradient.
    owner : Tensor of shape (n,)
        Number of the model that each parameter belongs to.
    losses : Tensor of shape (E,)
        Memory for the losses of the E models.
    sums : Tensor of shape (n + E,)
        The memory of gradient and losses. Processes add this up in one operation.
    """

    def __init__(self, models: Sequence[DeepGP]):
        n_models = len(models)
        self.whole = stack(models) if n_models > 1 else models[0]
        self.parameters = [parameter for parameter in self.whole.parameters() if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in self.parameters]
        self.vector = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.sums = self.vector.new_zeros(sum(sizes) + n_models)
        self.gradient, self.losses = self.sums.split([sum(sizes), n_models])
        numbers = torch.arange(n_models, device=self.vector.device)
        self.owner = torch.cat([numbers.repeat_interleave(size // n_models) for size in sizes])
        values, gradients = self.vector.split(sizes), self.gradient.split(sizes)
        for parameter, value, gradient in zip(self.parameters, values, gradients, strict=True):
            parameter.data = value.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)
        self.own = [[parameter for parameter in model.parameters() if parameter.requires_grad] for model in models]
        if n_models > 1:
            for number, parameters in enumerate(self.own):
                for parameter, shared in zip(parameters, self.parameters, strict=True):
                    parameter.data = shared.data[number]

    def release(self) -> None:
        """Give each parameter of each model memory of its own."""
        for parameters in self.own:
            for parameter in parameters:
                parameter.data, parameter.grad = parameter.detach().clone(), None


class Adam:
    """Adam on one vector, with torch's defaults. It uses the function that torch's class calls.

    The class itself would import torch's compiler, which takes a second or two in every new process.

    Parameters
    ----------
    vector, gradient : Tensor
        The vector that moves, and the tensor that will contain its gradient.
    """

    def __init__(self, vector: Tensor, gradient: Tensor):
        self.vector, self.gradient = vector, gradient
        self.mean, self.square = torch.zeros_like(vector), torch.zeros_like(vector)
        self.count = torch.zeros((), dtype=torch.float32, device=vector.device)

    @property
    def memory(self) -> list[Tensor]:
        """All tensors that keep its state."""
        return [self.mean, self.square, self.count]

    def restore(self, memory: Sequence[Tensor]) -> None:
        """Copy an earlier state into the present memory."""
        for present, earlier in zip(self.memory, memory, strict=True):
            present.copy_(earlier)

    def step(self, rate: float | Tensor, pace: Tensor | None = None) -> None:
        """Take a step. If the rate is a tensor, a CUDA graph can record the step.

        ``pace`` (n,) has a factor of the rate for each number.
        """
        before = self.vector.clone() if pace is not None else self.vector
        adam(
            [self.vector],
            [self.gradient],
            [self.mean],
            [self.square],
            [],  # the state of AMSGrad, which is not used
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
        if pace is not None:
            torch.lerp(before, self.vector, pace, out=self.vector)
