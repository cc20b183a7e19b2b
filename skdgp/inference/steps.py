"""One step of training: the gradient of the objective, and what Adam makes of it."""

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
    """The trainable parameters of models as one vector: one copy saves them, one kernel moves them.

    Parameters
    ----------
    models : sequence of DeepGP
        Of one shape. Their parameters become views of ``vector``, until :meth:`release`.

    Attributes
    ----------
    whole : DeepGP
        The stack of the models, or the model where there is one alone. Its parameters and gradients are views of
        ``vector`` and ``gradient``.
    vector, gradient : Tensors of shape (n,)
    owner : Tensor of shape (n,)
        Number of the model that a parameter belongs to.
    sums : Tensor of shape (n + E,)
        What processes add up in one go: the gradient, and after it the losses.
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
        """Give every parameter of every model memory of its own."""
        for parameters in self.own:
            for parameter in parameters:
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

    def step(self, rate: float | Tensor, pace: Tensor | None = None) -> None:
        """Move; a rate in a tensor may be recorded in a CUDA graph.

        ``pace`` (n,) says of every number which share of the rate is its own: steps are proportional to rates.
        """
        before = None if pace is None else self.vector.clone()
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
        if before is not None:
            torch.lerp(before, self.vector, cast(Tensor, pace), out=self.vector)


class Trainee:
    """Models in training: their parameters, Adam's moments, and the step that changes both.

    Parameters
    ----------
    models : sequence of DeepGP
        Of one shape, changed in place. Their parameters are views of one vector until :meth:`release`.
    settings : Settings
    generators : sequence of torch.Generator
        Draw noise, one for each model.
    processes : Processes, default=ALONE
        Those that share every minibatch.
    kl_weight : sequence of float
        β/N of every model, for weights of rows whose mean is one (:meth:`.Batch.relative`).
    scale : float, default=1.0
        Multiplies the objective.

    Attributes
    ----------
    model : DeepGP
        The stack of the models, or the model where there is one alone.
    failed : list of int
        Models that the last error is about.
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
        if processes.rank:
            self.flat.vector.zero_()
        processes.add_up(self.flat.vector)  # what the first process starts from
        self.adam = Adam(self.flat.vector, self.flat.gradient)
        self.pace: Tensor | None = None
        self.failed: list[int] = []
        self._price: float | Tensor = kl_weight[0] if len(models) == 1 else self.flat.vector.new_tensor(kl_weight)

    def __len__(self) -> int:
        return len(self.models)

    def only(self, numbers: Sequence[int]) -> Self:
        """Some of the models, which go on where they are; all are released from this trainee."""
        self.release()
        trainee = type(self)(
            [self.models[number] for number in numbers],
            self.settings,
            [self.generators[number] for number in numbers],
            self.processes,
            kl_weight=[self.kl_weight[number] for number in numbers],
            scale=self.scale,
        )
        kept = self.of(numbers)  # in the order of the new vector, for both go by parameters first
        for now, then in zip(trainee.adam.memory, self.adam.memory, strict=True):
            now.copy_(then[kept] if then.dim() else then)
        trainee.pace = None if self.pace is None else self.pace[kept]
        return trainee

    def of(self, numbers: Sequence[int]) -> Tensor:
        """Which of the parameters belong to some of the models, (n,)."""
        wanted = [number in numbers for number in range(len(self))]
        return self.flat.owner.new_tensor(wanted, dtype=torch.bool)[self.flat.owner]

    def pace_by(self, rates: Sequence[float]) -> None:
        """Let models learn at rates in these proportions; that of a step is the highest."""
        shares = self.flat.vector.new_tensor([rate / max(rates) for rate in rates])
        self.pace = None if len(set(rates)) == 1 else shares[self.flat.owner]

    def step(self, batch: Batch, rate: float) -> Tensor:
        """Take a step; the negative objectives (E,) before it.

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
            raise FloatingPointError(
                f"The training objective became {-values[number]}. The likely cause is a learning_rate too high for "
                "these data: lower it, or set dtype='float64'."
            )
        self.adam.step(rate, self.pace)
        return loss

    def _gradient(self, batch: Batch) -> Tensor:
        """Fill in the gradient; the losses (E,)."""
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
        """What the rows of one process add to the negative objectives."""
        objective, source = self.settings.objective, self.generators if len(self) > 1 else self.generators[0]
        marginals = self.model(rows.X, source, targets=rows.y, share=share, mixture=not objective.linear)
        value = objective.value(marginals, self.model.likelihood, rows.y, rows.weight, self._price)
        return value * (-self.scale * len(rows) / share.total)

    @contextmanager
    def blaming(self, batch: Batch) -> Iterator[None]:
        """Find out which models fail where a factorisation of one makes all of them fail."""
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
