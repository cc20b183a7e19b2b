"""A step of training: from a minibatch to new parameters.

Read :meth:`Stepper.epoch`, :meth:`Stepper.step` and :meth:`Stepper.gradient`. Everything else is around them, each in a
module of its own:

* the schedule of the learning rate, early stopping and the loop over epochs, in :mod:`.minibatches` for a table and in
  :mod:`.streaming` for chunks;
* epochs that fail and are repeated, in :mod:`.retries`;
* several models as one, in :mod:`.stacks`, and their parameters as one vector, in :mod:`.flat`;
* several processes, in :mod:`.processes`, and CUDA graphs, in :mod:`.graphs`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .batches import Batch, shuffled
from .flat import Adam, FlatParameters
from .processes import ALONE, Processes
from .settings import Member, Settings


class Failure(Exception):
    """Some members cannot go on, for instance because their objective is infinite.

    Parameters
    ----------
    message : str
        What is wrong.
    members : sequence of int
        Numbers of the members that are the cause.
    error : Exception, default=FloatingPointError(message)
        What the user gets if retries do not help.
    """

    def __init__(self, message: str, members: Sequence[int], error: Exception | None = None):
        super().__init__(message)
        self.members, self.error = members, error or FloatingPointError(message)


class State(NamedTuple):
    """All that steps change, except the models' best epochs and histories."""

    parameters: Tensor
    moments: list[Tensor]  # of Adam
    generators: list[Tensor]


def do_nothing(step: int) -> None:
    """What there is to do after a step by default."""


def never() -> bool:
    """When an epoch ends early by default."""
    return False


class Stepper:
    """Members that are trained as one model: their parameters, Adam's moments, and the step that changes both.

    Parameters
    ----------
    members : sequence of Member
        Members of one shape, with equal numbers of rows. Their models change in place, and their parameters are views
        of one vector until :meth:`release`.
    settings : Settings
        Settings of the training.
    processes : Processes, default=ALONE
        The processes that share every minibatch.
    scale : float, default=1.0
        Factor of the objective.
    halvings : sequence of int, default=zeros
        How often the learning rate of each member has been halved.

    Attributes
    ----------
    model : DeepGP
        The stack of the members' models, or the model itself if there is only one.
    kl_weight : float or Tensor of shape (E,)
        β/N of each member, for weights of rows whose mean is one.
    """

    def __init__(
        self,
        members: Sequence[Member],
        settings: Settings,
        processes: Processes = ALONE,
        *,
        scale: float = 1.0,
        halvings: Sequence[int] | None = None,
    ):
        self.members, self.settings, self.processes, self.scale = members, settings, processes, scale
        self.generators = [member.generator for member in members]
        self.flat = FlatParameters([member.model for member in members])
        self.model = self.flat.whole
        processes.take_first(self.flat.vector)  # all start from the same parameters
        self.adam = Adam(self.flat.vector, self.flat.gradient)
        weights, n_rows, alone = [member.rows.mean_weight() for member in members], len(members[0].rows), len(self) == 1
        numbers = [member.n_distinct for member in members]
        kl_weights = [
            settings.kl_weight(n_rows, weight) if number is None else settings.kl_weight(number, 1.0)
            for number, weight in zip(numbers, weights, strict=True)
        ]
        self.kl_weight = kl_weights[0] if alone else self.flat.vector.new_tensor(kl_weights)
        factors = self.flat.vector.new_tensor([1 / weight for weight in weights])
        self._weighing = factors if alone else factors[:, None]  # weights of rows then have a mean of one
        self._source = self.generators[0] if alone else self.generators
        self.halvings = list(halvings or [0] * len(members))
        self._set_pace()

    def __len__(self) -> int:
        return len(self.members)

    @property
    def n_steps(self) -> int:
        """Number of steps in an epoch."""
        return -(-len(self.members[0].rows) // self.settings.batch_size)

    def epoch(
        self,
        rate: Callable[[int], float],
        after_step: Callable[[int], None] = do_nothing,
        over: Callable[[], bool] = never,
    ) -> list[float]:
        """Pass once over the rows in random order, at the rate of each step; return the members' mean losses.

        The pass ends early, but not before its first step, if it is ``over``.
        """
        parts, n_rows = [member.rows for member in self.members], 0
        total = torch.zeros(len(self), dtype=torch.float64, device=self.flat.vector.device)
        for number, batch in enumerate(shuffled(parts, self.settings.batch_size, self.generators)):
            total += len(batch) * self.step(batch.weighing(self._weighing), rate(number)).double()
            after_step(number)
            n_rows += len(batch)
            if over():
                break
        self.check_parameters()
        return (total / n_rows).tolist()

    def step(self, batch: Batch, rate: float) -> Tensor:
        """Take a step of Adam; return the losses (E,) before it: negative objectives."""
        losses = self.gradient(batch)
        self.check(losses)
        self.adam.step(rate * self.factor, self.pace)
        return losses

    def gradient(self, batch: Batch) -> Tensor:
        """Compute losses (E,), and the gradient of their sum. Processes have shares of the rows, and add them up."""
        objective, share = self.settings.objective, self.processes.share(len(batch))
        rows = batch.rows(share.rows)
        with self.blaming(batch), self.processes.adding_up(self.flat.sums.zero_()):
            marginals = self.model(rows.X, self._source, targets=rows.y, share=share, mixture=not objective.linear)
            value = objective.value(marginals, self.model.likelihood, rows.y, rows.weight, self.kl_weight)
            losses = value * (-self.scale * len(rows) / len(batch))
            losses.sum().backward()
            self.flat.losses.copy_(losses.detach())
        return self.flat.losses.clone()

    # Failures.

    def check(self, losses: Tensor) -> None:
        """Failure if an objective is infinite or NaN."""
        values = losses.tolist()
        failed = [number for number, value in enumerate(values) if not math.isfinite(value)]
        for number in failed:
            if self.adam.count.item() == 0:  # so that no step can be the cause
                raise Failure(
                    f"The training objective is {-values[number]} before the first step. The likely cause is a kernel "
                    "whose variance at the rows is far too large for these targets: give it a smaller one, move the "
                    "features of a DotProduct towards zero, or set normalize_X=True.",
                    failed,
                )
            raise Failure(
                f"The training objective became {-values[number]}. The likely cause is a learning_rate too high for "
                "these data: lower it, or set dtype='float64'.",
                failed,
            )

    def check_parameters(self) -> None:
        """Failure if a step has left a parameter that is not finite."""
        finite = self.flat.vector.isfinite()
        if finite.all():
            return
        failed = self.flat.owner[~finite].unique().tolist()
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise Failure(
                    f"Training made the parameter {name} infinite or NaN. The likely cause is a learning_rate too "
                    "high for these data: lower it, or set dtype='float64'.",
                    failed,
                )

    @contextmanager
    def blaming(self, rows: Batch) -> Iterator[None]:
        """Find out which members are the cause of a failed factorisation, which makes all of them fail."""
        try:
            yield
        except np.linalg.LinAlgError as error:
            models = [member.model for member in self.members] if len(self) > 1 else []
            failed = [number for number, model in enumerate(models) if not _can_compute(model, rows.X[number])]
            raise Failure(f"{error}", failed or range(len(self)), error) from error

    def state(self) -> State:
        """A copy of all that steps change."""
        moments = [moment.clone() for moment in self.adam.memory]
        return State(self.flat.vector.clone(), moments, [generator.get_state() for generator in self.generators])

    def restore(self, state: State, failed: Sequence[int] = ()) -> None:
        """Go back to an earlier state. Members that have failed continue with other random numbers."""
        self.flat.vector.copy_(state.parameters)
        self.adam.restore(state.moments)
        for number, (generator, earlier) in enumerate(zip(self.generators, state.generators, strict=True)):
            if number not in failed:
                generator.set_state(earlier)

    def slow_down(self, members: Sequence[int]) -> None:
        """Halve the learning rates of some members."""
        for number in members:
            self.halvings[number] += 1
        self._set_pace()

    def _set_pace(self) -> None:
        """Factors of the rate: one for the fastest members, and one for each parameter where members differ."""
        fewest = min(self.halvings)
        self.factor = 0.5**fewest
        paces = self.flat.vector.new_tensor([0.5 ** (number - fewest) for number in self.halvings])
        self.pace = None if len(set(self.halvings)) == 1 else paces[self.flat.owner]

    # Members that leave.

    def only(self, numbers: Sequence[int]) -> Self:
        """A stepper of some of the members, which continue; this one releases all of them."""
        self.release()
        continuing = type(self)(
            [self.members[number] for number in numbers],
            self.settings,
            self.processes,
            scale=self.scale,
            halvings=[self.halvings[number] for number in numbers],
        )
        kept = self.of(numbers)  # the new vector has the same order: both are ordered by parameter first
        continuing.adam.restore([moment[kept] if moment.dim() else moment for moment in self.adam.memory])
        return continuing

    def of(self, numbers: Sequence[int]) -> Tensor:
        """Mask (n,) of the parameters that belong to some of the members."""
        chosen = [number in numbers for number in range(len(self))]
        return self.flat.owner.new_tensor(chosen, dtype=torch.bool)[self.flat.owner]

    def release(self) -> None:
        """End the training: each parameter of each model gets memory of its own."""
        self.flat.release()


@torch.no_grad()
def _can_compute(model: DeepGP, X: Tensor) -> bool:
    """Whether all factorisations of a model succeed for some rows."""
    try:
        model(X)
    except np.linalg.LinAlgError:
        return False
    return True
