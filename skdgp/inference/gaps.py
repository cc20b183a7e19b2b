r"""How much the targets of rows with missing cells vary, beside the noise of all rows.

The function f of a row depends on cells that nobody knows. So the target of such a row varies around what its other
cells tell, by the noise and by the variance v of f over the missing cells. A single variance of the noise would be the
average of all rows: too large for complete rows, and so for most predictions. Here the noise of row i has the variance

    s_i² = σ² (1 + ρ_i),   ρ_i = c/P Σ_p v_ip/σ_p²,

for P outputs, so that least squares needs one weight for each row. A sparse GP in closed form gives v: it predicts the
row with draws of its missing cells. The factor c is one if these draws are right. It and σ² are those that make the
targets of rows most likely, each left out, with a standard normal prior for log c. Rows with a large ρ count less; see
:data:`~skdgp.gp.likelihoods.MOST_ADDED`. Predictions are for complete rows, or for draws of the missing cells. So their
noise is σ².
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Gaussian, noise_with_gaps
from .base import Groups, fit_base
from .batches import Batch
from .callers import users_level
from .collapsed import left_out
from .processes import current

#: Largest number of rows, in random order, that the sparse GP learns from.
ROWS = 5000

#: Fewest rows of a table that can tell what gaps mean.
FEWEST_ROWS = 10

#: Number of fits. The first one does not know yet what rows weigh.
ROUNDS = 2

#: Gaps that add less than this share to the noise of rows, on average, do not count.
LITTLE = 0.01

#: Largest logarithms that the search changes σ² and c by.
REACH = 3.0


class Gaps(NamedTuple):
    """A GP that tells what missing cells mean, and by what the variances that they add are multiplied (P,)."""

    model: DeepGP
    per_variance: Tensor


def learn_gaps(rows: Batch, groups: Groups, spread: Callable[[DeepGP], Tensor]) -> Gaps | None:
    """What missing cells mean for the noise of rows; None if they hardly matter.

    Parameters
    ----------
    rows : Batch
        Rows of float64 in random order, with targets in units in which they have a variance near one.
    groups : sequence of int or None
        Which inputs share a lengthscale.
    spread : callable
        From a GP to the variances (n, P) of its means over the missing cells of each row. They are zero for complete
        rows.
    """
    numbers, variance, model = torch.zeros(rows.y.shape[1], dtype=torch.float64), torch.zeros_like(rows.y), None
    try:
        for _ in range(ROUNDS):
            ratio, share = noise_with_gaps(variance, numbers.tolist())
            weight = rows.weight * share
            precise = weight / ratio
            weighted = Batch(rows.X, rows.y, precise * (weight.sum() / precise.sum()))
            model = fit_base(weighted, groups)
            variance = spread(model).to(rows.y)
            numbers = _most_likely(model, weighted, rows.weight, variance)
            if rows.weight @ (variance @ numbers.to(variance)) < LITTLE * rows.weight.sum():
                numbers = torch.zeros_like(numbers)
                break
    except np.linalg.LinAlgError:
        warnings.warn(
            "Rows with missing cells count as much as complete rows, and intervals may be too wide: a covariance "
            "matrix has no Cholesky factor. The likely cause is features or targets with values far from all others: "
            "remove or transform these.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
        numbers = torch.zeros_like(numbers)
    current().take_first(numbers)  # rounding errors of processes may differ
    return Gaps(model, numbers) if model is not None and numbers.any() else None


def _most_likely(model: DeepGP, learnt: Batch, weight: Tensor, of_cells: Tensor) -> Tensor:
    """The numbers (P,), c/(Pσ²), that make targets most likely, each left out by a model that has learnt the rows.

    ``weight`` (n,) says how often each row counts, and ``of_cells`` (n, P) are the variances that missing cells add.
    """
    n_outputs, start = learnt.y.shape[1], cast(Gaussian, model.likelihood).variance.double()
    mean, of_function = left_out(model, learnt, learnt)
    squares = (learnt.y - mean).square()

    def parts(vector: Tensor) -> tuple[Tensor, Tensor]:
        noise = start * vector[:-1].exp()
        return noise, vector[-1].exp() / (n_outputs * noise)

    def negative(vector: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(vector, dtype=torch.float64, device=squares.device, requires_grad=True)
        noise, numbers = parts(free)
        total = of_function + noise * (1.0 + of_cells @ numbers)[:, None]
        value = 0.5 * (weight[:, None] * (squares / total + total.log())).sum() + 0.5 * free[-1].square()
        return value.item(), torch.autograd.grad(value, free)[0].cpu().numpy()

    bounds = (n_outputs + 1) * [(-REACH, REACH)]
    best = minimize(negative, np.zeros(n_outputs + 1), jac=True, method="L-BFGS-B", bounds=bounds)
    return parts(torch.as_tensor(best.x, device=squares.device))[1].cpu()
