"""One step of training: the gradient of the objective, and the step of Adam."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from ..gp.deep_gp import DeepGP
from ..gp.propagation import Share
from .batches import Batch
from .processes import ALONE, Processes
from .settings import Settings
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
    sums : Tensor of shape (n + E,)
        The gradient, and after it the losses of the E models. Processes add this up in one operation.
    """

    def __init__(self, models: Sequence[DeepGP]):
        n_models = len(models)
        self.whole = stack(models) if n_models > 1 else models[0]
        self.parameters = [parameter for parameter in self.whole.parameters() if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in self.parameters]
        self.vector = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.sums = self.vector.new_zeros(sum(sizes) + n_models)
        self.gradient = self.sums[:-n_models]
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

    def step(self, rate: float | Tensor, pace: Tensor | None = None) -> None:
        """Take a step. If the rate is a tensor, a CUDA graph can record the step.

        ``pace`` (n,) has a factor of the rate for each number.
        """
        before = None if pace is None else self.vector.clone()
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
        if before is not None:
            torch.lerp(before, self.vector, cast(Tensor, pace), out=self.vector)


class Trainee:
    """Models in training: their parameters, Adam's moments, and the step that changes both.

    Parameters
    ----------
    models : sequence of DeepGP
        Models of one shape, which change in place. Their parameters are views of one vector until :meth:`release`.
    settings : Settings
        Settings of the training.
    generators : sequence of torch.Generator
        Sources of random samples, one for each model.
    processes : Processes, default=ALONE
        The processes that share every minibatch.
    kl_weight : sequence of float
        β/N of each model, for weights of rows whose mean is one (:meth:`.Batch.relative`).
    scale : float, default=1.0
        Factor of the objective.

    Attributes
    ----------
    model : DeepGP
        The stack of the models, or the model itself if there is only one.
    failed : list of int
        Numbers of the models that caused the last error.
    """

    def __init__(
        self,
        models: Sequence[DeepGP],
        settings: Settings,
        generators: Sequence[torch.Generator],
        processes: Processes = ALONE,
        *,
        kl_weight: Sequence[float],
        scale: float = 1.0,
    ):
        self.models, self.settings, self.generators, self.processes = models, settings, generators, processes
        self.kl_weight, self.scale = kl_weight, scale
        self.flat = FlatParameters(models)
        self.model = self.flat.whole
        processes.take_first(self.flat.vector)  # all start from the same parameters
        self.adam = Adam(self.flat.vector, self.flat.gradient)
        self.pace: Tensor | None = None
        self.failed: list[int] = []
        self._price: float | Tensor = kl_weight[0] if len(models) == 1 else self.flat.vector.new_tensor(kl_weight)

    def __len__(self) -> int:
        return len(self.models)

    def only(self, numbers: Sequence[int]) -> Self:
        """A trainee of some of the models, which continue; this trainee releases all of them."""
        self.release()
        trainee = type(self)(
            [self.models[number] for number in numbers],
            self.settings,
            [self.generators[number] for number in numbers],
            self.processes,
            kl_weight=[self.kl_weight[number] for number in numbers],
            scale=self.scale,
        )
        kept = self.of(numbers)  # the new vector has the same order: both are ordered by parameter first
        for now, then in zip(trainee.adam.memory, self.adam.memory, strict=True):
            now.copy_(then[kept] if then.dim() else then)
        return trainee

    def of(self, numbers: Sequence[int]) -> Tensor:
        """Mask (n,) of the parameters that belong to some of the models."""
        wanted = [number in numbers for number in range(len(self))]
        return self.flat.owner.new_tensor(wanted, dtype=torch.bool)[self.flat.owner]

    def pace_by(self, rates: Sequence[float]) -> None:
        """Let models learn at rates in these proportions. The rate of a step is that of the fastest model."""
        shares = self.flat.vector.new_tensor([rate / max(rates) for rate in rates])
        self.pace = None if len(set(rates)) == 1 else shares[self.flat.owner]

    def step(self, batch: Batch, rate: float) -> Tensor:
        """Take a step; return the negative objectives (E,) before it.

        Raises
        ------
        numpy.linalg.LinAlgError, FloatingPointError
            If an objective cannot be computed.
        """
        with self.blaming(batch):
            loss = self._gradient(batch)
        values = loss.tolist()
        self.failed = [number for number, value in enumerate(values) if not math.isfinite(value)]
        for number in self.failed:
            if self.adam.count.item() == 0:  # so that no step can be the cause
                raise FloatingPointError(
                    f"The training objective is {-values[number]} before the first step. The likely cause is a kernel "
                    "whose variance at the rows is far too large for these targets: give it a smaller one, move the "
                    "features of a DotProduct towards zero, or set normalize_X=True."
                )
            raise FloatingPointError(
                f"The training objective became {-values[number]}. The likely cause is a learning_rate too high for "
                "these data: lower it, or set dtype='float64'."
            )
        self.adam.step(rate, self.pace)
        return loss

    def _gradient(self, batch: Batch) -> Tensor:
        """Compute the gradient; return the losses (E,)."""
        sums, share, n_models = self.flat.sums.zero_(), self.processes.share(len(batch)), len(self.models)
        try:
            loss = self._loss(batch.rows(share.rows), share) if self.processes.size > 1 else self._loss(batch, share)
            loss.sum().backward()
            sums[-n_models:] = loss.detach()
        except np.linalg.LinAlgError:
            if self.processes.size == 1:
                raise
            sums.fill_(math.nan)
        self.processes.add_up(sums)
        return sums[-n_models:].clone()

    def _loss(self, rows: Batch, share: Share) -> Tensor:
        """Contribution of the rows of one process to the negative objectives."""
        objective, source = self.settings.objective, self.generators if len(self) > 1 else self.generators[0]
        marginals = self.model(rows.X, source, targets=rows.y, share=share, mixture=not objective.linear)
        value = objective.value(marginals, self.model.likelihood, rows.y, rows.weight, self._price)
        return value * (-self.scale * len(rows) / share.total)

    @contextmanager
    def blaming(self, batch: Batch) -> Iterator[None]:
        """Find out which models caused a failed factorisation, which makes all of them fail."""
        try:
            yield
        except np.linalg.LinAlgError:
            self.failed = [number for number in range(len(self)) if self._fails(number, batch)] or [*range(len(self))]
            raise

    @torch.no_grad()
    def _fails(self, number: int, batch: Batch) -> bool:
        if len(self) == 1:
            return True
        try:
            self.models[number](batch.X[number])
        except np.linalg.LinAlgError:
            return True
        return False

    def release(self) -> None:
        """End the training."""
        self.flat.release()

    def check(self) -> None:
        """Raise FloatingPointError if a step has left a parameter that is not finite."""
        finite = self.flat.vector.isfinite()
        if finite.all():
            return
        self.failed = self.flat.owner[~finite].unique().tolist()
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"Training made the parameter {name} infinite or NaN. The likely cause is a learning_rate too "
                    "high for these data: lower it, or set dtype='float64'."
                )

    def parameters(self) -> Tensor:
        """A copy of the parameters, for :meth:`restore`."""
        return self.flat.vector.clone()

    def moments(self) -> list[Tensor]:
        """A copy of the optimiser's state, for :meth:`restore`."""
        return [each.clone() for each in self.adam.memory]

    def restore(self, parameters: Tensor, moments: Sequence[Tensor] | None = None) -> None:
        """Go back to earlier parameters and moments, which are copied into the present memory."""
        self.flat.vector.copy_(parameters)
        for now, then in zip(self.adam.memory, moments or (), strict=bool(moments)):
            now.copy_(then)
