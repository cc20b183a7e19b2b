"""The one training loop: minibatches, a learning-rate schedule, early stopping, recovery."""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..gp.deep_gp import DeepGP
from .objectives import Objective, log_mixture

#: Share of the steps in which the learning rate climbs to its peak, and the share of the peak it
#: climbs from: one cycle (Smith & Topin, 2019), down to nothing along a cosine.
WARM_UP = 0.25
WARM_UP_FROM = 0.04

#: Held-out rows that epochs are compared by. More would cost large data sets as much as training does.
SCORED_ROWS = 2000

#: How often training may go back to its last good epoch at half the learning rate.
MAX_RETRIES = 10


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
        return Batch(*(column.to(device, dtype) for column in (self.X, self.y, self.weight)))


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


@dataclass
class History:
    """What training did, epoch by epoch.

    ``loss`` is the mean negative objective of an epoch's minibatches, ``score`` the mean log predictive
    density of at most ``SCORED_ROWS`` held-out rows after it (empty without such rows), ``best_epoch`` the
    epoch, counted from 1, whose parameters the model has in the end, ``interrupted`` whether the user ended it.
    """

    loss: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    best_epoch: int = 0
    interrupted: bool = False


def one_cycle(progress: float) -> float:
    """Learning rate, as a share of its peak, when ``progress`` in [0, 1] of the steps are done."""
    if progress < WARM_UP:
        return WARM_UP_FROM + (1 - WARM_UP_FROM) * 0.5 * (1 - math.cos(math.pi * progress / WARM_UP))
    return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))


def train(
    model: DeepGP,
    data: Batch,
    held_out: Batch | None,
    settings: Settings,
    generator: torch.Generator,
    on_epoch: Callable[[History], bool] = lambda history: False,
) -> History:
    """Maximise the objective over the parameters of ``model``, in place.

    Parameters
    ----------
    model : DeepGP
    data, held_out : Batch
        Rows to learn from, and rows to choose the best epoch by; None uses the last epoch.
    settings : Settings
    generator : torch.Generator
        Shuffles rows and draws noise.
    on_epoch : callable, default=never stops
        Called with the history after every epoch; training ends when it returns True.

    Returns
    -------
    History

    Raises
    ------
    numpy.linalg.LinAlgError, FloatingPointError
        If an epoch stays impossible although the learning rate was halved ``MAX_RETRIES`` times.
    KeyboardInterrupt
        If the user interrupts the first epoch. Later, the parameters are those of the best epoch so far, or
        of the last whole one without held-out rows.
    """
    _let_the_allocator_keep_pages()
    scored = None if held_out is None else held_out.spread(SCORED_ROWS)
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), fused=True)
    history = History()
    best = _Best(model)
    peak, retries = settings.learning_rate, 0
    while len(history.loss) < settings.max_iter:
        before = deepcopy((model.state_dict(), optimizer.state_dict()))
        try:
            loss = _run_epoch(model, optimizer, data, settings, generator, len(history.loss), peak)
            check_parameters(model)
            score = None if scored is None else mean_log_density(model, scored, settings.batch_size)
        except (np.linalg.LinAlgError, FloatingPointError):
            if retries == MAX_RETRIES:
                raise
            model.load_state_dict(before[0])
            optimizer.load_state_dict(before[1])
            peak, retries = peak / 2, retries + 1
            continue
        except KeyboardInterrupt:
            if not history.loss:
                raise
            model.load_state_dict(before[0])
            history.interrupted = True
            break
        history.loss.append(loss)
        history.best_epoch = len(history.loss)
        if score is not None:
            history.score.append(score)
            best.update(score, len(history.loss))
        if on_epoch(history) or _stalled(history.score, settings):
            break
    if held_out is not None:
        history.best_epoch = best.restore()
    return history


def _let_the_allocator_keep_pages() -> None:
    """Free one large block of memory, so that glibc stops returning smaller ones to the system.

    Its allocator maps fresh pages for every tensor of a few MiB until it has seen a larger one freed, up
    to 32 MiB. Those page faults are a fifth of the time of a step with 500 rows. Elsewhere it does nothing.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


class _Best:
    """The parameters of the epoch with the best held-out score."""

    def __init__(self, model: DeepGP):
        self.model = model
        self.score, self.epoch, self.state = -math.inf, 0, deepcopy(model.state_dict())

    def update(self, score: float, epoch: int) -> None:
        if score > self.score:
            self.score, self.epoch, self.state = score, epoch, deepcopy(self.model.state_dict())

    def restore(self) -> int:
        self.model.load_state_dict(self.state)
        return self.epoch


def _run_epoch(
    model: DeepGP,
    optimizer: torch.optim.Optimizer,
    data: Batch,
    settings: Settings,
    generator: torch.Generator,
    epoch: int,
    peak: float,
) -> float:
    """One pass over the rows in random order; the mean loss."""
    # Batches of equal size: a remnant of a few rows would be a noisy step of full length.
    n_steps = -(-len(data) // settings.batch_size)
    order = torch.randperm(len(data), generator=generator, device=generator.device)
    shuffled = data.rows(order)  # gathered once; every batch is a slice
    total = 0.0
    for i, rows in enumerate(even_slices(len(data), n_steps)):
        rate = peak * one_cycle((epoch + i / n_steps) / settings.max_iter)
        batch = shuffled.rows(rows)
        total += len(batch) * step(model, optimizer, batch, settings, generator, rate)
    return total / len(data)


def step(
    model: DeepGP,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    settings: Settings,
    generator: torch.Generator,
    learning_rate: float,
) -> float:
    """One step of the optimiser; the negative objective before it."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad()
    objective = settings.objective(
        model(batch.X, generator), model.likelihood, batch.y, batch.weight, settings.kl_weight
    )
    value = objective.item()
    if not math.isfinite(value):
        raise FloatingPointError(
            f"The training objective became {value}. The likely cause is a learning_rate too high for "
            "these data: lower it, or set dtype='float64'."
        )
    objective.neg().backward()
    optimizer.step()
    return -value


def check_parameters(model: DeepGP) -> None:
    """Raise FloatingPointError if a step has left a parameter that is not finite."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise FloatingPointError(
                f"Training made the parameter {name} infinite or NaN. The likely cause is a learning_rate too "
                "high for these data: lower it, or set dtype='float64'."
            )


def even_slices(n_rows: int, n_slices: int) -> Iterator[slice]:
    """Consecutive slices of lengths that differ by one at most."""
    for i in range(n_slices):
        yield slice(i * n_rows // n_slices, (i + 1) * n_rows // n_slices)


@torch.no_grad()
def mean_log_density(model: DeepGP, data: Batch, batch_size: int) -> float:
    """Weighted mean log predictive density of rows, with the noise that predictions use."""
    total = 0.0
    for start in range(0, len(data), batch_size):
        batch = data.rows(slice(start, start + batch_size))
        total += float((batch.weight * log_mixture(model(batch.X), model.likelihood, batch.y)).sum())
    mean = total / float(data.weight.sum())
    if not math.isfinite(mean):
        raise FloatingPointError(
            f"The held-out log density became {mean}. The likely cause is a diverged optimisation: lower "
            "learning_rate, or set dtype='float64'."
        )
    return mean


def _stalled(scores: list[float], settings: Settings) -> bool:
    """Whether the last ``n_iter_no_change`` scores brought no improvement of more than ``tol``."""
    patience = settings.n_iter_no_change
    return len(scores) > patience and max(scores[-patience:]) <= max(scores[:-patience]) + settings.tol
