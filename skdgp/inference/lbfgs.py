"""L-BFGS for a loss without noise that has few parameters."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import Bounds, minimize
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .threads import threads_for

#: A function of all parameters as one vector: its value and its gradient.
Evaluate = Callable[[np.ndarray], tuple[float, np.ndarray]]

#: An iteration that gains a smaller share than this is the last; it is a share of the loss, or of one if the loss is
#: smaller. With 1e-5 of a collapsed bound per row, fits to five small tables took half the iterations, and ended within
#: 0.004 nats of the bound that they would have reached.
TOLERANCE = 1e-5


def go_on(loss: float) -> bool:
    """Never end early."""
    return False


def going_back(evaluate: Evaluate) -> Evaluate:
    """The same function for a line search, which takes a shorter step where the function cannot be computed.

    There the value is worse than the last one. At the start the error is raised, since there is nothing to go back to.
    """
    last = math.inf

    def guarded(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal last
        try:
            value, gradient = evaluate(vector)
        except np.linalg.LinAlgError:
            if not math.isfinite(last):
                raise
            value, gradient = math.nan, vector
        if math.isfinite(last) and not (math.isfinite(value) and np.isfinite(gradient).all()):
            return last + 10 * max(1.0, abs(last)), np.zeros_like(vector)
        last = value
        return value, gradient

    return guarded


def lbfgs(
    loss: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    max_iter: int,
    products: float,
    on_iteration: Callable[[float], bool] = go_on,
    *,
    reach: float = math.inf,
    tolerance: float = TOLERANCE,
) -> None:
    """Minimise ``loss()`` over parameters, in place.

    If the loss cannot be computed, a step was too long, and the line search takes a shorter one. The parameters in the
    end are those of the last whole iteration, also after an interruption.

    Parameters
    ----------
    loss : callable
        Computes the loss () from the current parameters.
    parameters : sequence of Parameter
        Parameters of float64, which change in place. Without any of them nothing happens.
    max_iter : int
        Largest number of iterations.
    products : float
        Multiplications of the loss's largest operation, for :func:`.threads_for`.
    on_iteration : callable, default=never stops
        Called with the loss after each iteration. The minimisation ends if it returns True.
    reach : float, default=no limit
        How far each parameter may move.
    tolerance : float, default=TOLERANCE
        Share of the loss that the last iteration gains.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the loss cannot be computed at the start.
    """
    if not parameters:  # all are fixed
        return
    start = parameters_to_vector(parameters).detach().cpu().numpy()
    device, last, reached = parameters[0].device, math.inf, start

    def move(vector: np.ndarray) -> None:
        vector_to_parameters(torch.as_tensor(vector, device=device), parameters)

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal last
        move(vector)
        with threads_for(products), torch.enable_grad():
            value = loss()
            gradient = torch.autograd.grad(value, parameters)
        last = value.item()
        return last, parameters_to_vector([part.contiguous() for part in gradient]).cpu().numpy()

    def record(vector: np.ndarray) -> None:
        nonlocal reached
        reached = vector.copy()
        if on_iteration(last):
            raise StopIteration

    try:
        options = {"maxiter": max_iter, "ftol": tolerance}
        bounds = Bounds(start - reach, start + reach)
        reached = minimize(
            going_back(evaluate), start, jac=True, method="L-BFGS-B", bounds=bounds, callback=record, options=options
        ).x
    finally:
        move(reached)
