r"""How much the targets of rows with missing cells vary, beside the noise of all rows.

The function f of a row depends on cells that nobody knows. So the target of such a row varies around what its other
cells tell, by the noise and by the variance v of f over the missing cells. A single variance of the noise would be the
average of all rows: too large for complete rows, and so for most predictions. Here the noise of row i has the variance

    s_i² = σ² (1 + ρ_i),   ρ_i = c/P Σ_p v_ip/σ_p²,

for P outputs, so that least squares needs one weight for each row. A sparse GP in closed form gives v: it predicts the
row with draws of its missing cells. The factor c is one if these draws are right.

A missing category is a level like any other, and f has a value there. What rows vary around it is not known before: the
level may stand for any other one, or mean something itself. So a row that lacks category j has κ_j in its ρ_i.

All c, κ and σ² are those that make the targets of rows most likely, each left out. The prior of log c is standard
normal. That of κ is as if a few rows that lack the category had the noise of others. Rows with a large ρ count less;
see :data:`~skdgp.gp.likelihoods.MOST_ADDED`. Predictions are for draws of missing numbers, so that their noise is σ²,
or more by σ² κ_j in rows that lack category j.
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
from .base import fit_base
from .batches import Batch
from .callers import users_level
from .collapsed import left_out
from .kernel_search import Groups
from .processes import current
from .twins import counting_once

#: Largest number of rows, in random order, that the sparse GP learns from.
ROWS = 5000

#: Fewest rows of a table that can tell what gaps mean.
FEWEST_ROWS = 10

#: Number of fits. The first one does not know yet what rows weigh.
ROUNDS = 2

#: Gaps that add less than this share to the noise of rows, on average, do not count.
LITTLE = 0.01

#: Smallest κ. A smaller one counts as zero.
LEAST_OF_CATEGORY = 0.05

#: Largest logarithms that the search changes σ² and c by.
REACH = 3.0

#: Largest logarithm of 1 + κ.
REACH_OF_CATEGORIES = 20.0

#: The prior of κ counts as so many rows.
ROWS_OF_PRIOR = 4.0


class Gaps(NamedTuple):
    """What each gap adds (P + J,), and the noise (P,) that this is over."""

    per_gap: Tensor
    noise: Tensor


def learn_gaps(
    rows: Batch, groups: Groups, spread: Callable[[DeepGP], Tensor], lacking: Tensor | None = None
) -> tuple[Gaps | None, DeepGP | None]:
    """What missing cells mean for the noise of rows, None if they hardly matter; and the base of these rows.

    Parameters
    ----------
    rows : Batch
        Rows of float64 in random order, with targets in units in which they have a variance near one.
    groups : sequence of int or None
        Which inputs share a lengthscale.
    spread : callable
        From a GP to the variances (n, P) of its means over the missing numbers of each row, zero if there are none.
    lacking : Tensor of shape (n, J), default=None
        Which categories are missing, one or zero. With None there is no such category.

    Returns
    -------
    Gaps or None
        What gaps mean.
    DeepGP or None
        The GP that has told it. It is None after a warning if it cannot be computed.
    """
    lacking = rows.y[:, :0] if lacking is None else lacking.to(rows.y)
    n_outputs = rows.y.shape[1]
    noise, numbers = (rows.y.new_zeros(n).cpu() for n in (n_outputs, n_outputs + lacking.shape[1]))
    gaps, model = torch.cat([torch.zeros_like(rows.y), lacking], dim=1), None
    try:
        for _ in range(ROUNDS):
            ratio, share = noise_with_gaps(gaps, numbers.tolist())
            weight = rows.weight * share
            precise = weight / ratio
            weighted = Batch(rows.X, rows.y, precise * (weight.sum() / precise.sum()))
            model = fit_base(weighted, groups, model)
            gaps = torch.cat([spread(model).to(rows.y), lacking], dim=1)
            noise, numbers = _most_likely(model, weighted, counting_once(rows), gaps)
            numbers = _worthwhile(numbers, gaps, rows)
            if not numbers.any():
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
    for values in (noise, numbers):
        current().take_first(values)  # rounding errors of processes may differ
    return Gaps(numbers, noise) if numbers.any() else None, model


def _most_likely(model: DeepGP, learnt: Batch, weight: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """σ² (P,) and the numbers (P + J,), c/(Pσ²) and κ, by which targets are most likely.

    Each target is left out by a model of the rows. ``weight`` (n,) says how often each row counts.
    """
    n_outputs, start = learnt.y.shape[1], cast(Gaussian, model.likelihood).variance.double()
    sizes = [n_outputs, 1, gaps.shape[1] - n_outputs]
    mean, of_function = left_out(model, learnt, learnt)
    squares = (learnt.y - mean).square()

    def parts(vector: Tensor) -> tuple[Tensor, Tensor]:
        log_ratio, log_factor, log_larger = vector.split(sizes)
        noise = start * log_ratio.exp()
        return noise, torch.cat([log_factor.exp() / (n_outputs * noise), log_larger.expm1()])

    def negative(vector: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(vector, dtype=torch.float64, device=squares.device, requires_grad=True)
        noise, numbers = parts(free)
        total = of_function + noise * (1.0 + gaps @ numbers)[:, None]
        _, log_factor, log_larger = free.split(sizes)
        prior = 0.5 * log_factor.square().sum() + 0.5 * ROWS_OF_PRIOR * ((-log_larger).exp() + log_larger).sum()
        value = 0.5 * (weight[:, None] * (squares / total + total.log())).sum() + prior
        return value.item(), torch.autograd.grad(value, free)[0].cpu().numpy()

    bounds = (n_outputs + 1) * [(-REACH, REACH)] + sizes[2] * [(0.0, REACH_OF_CATEGORIES)]
    best = minimize(negative, np.zeros(sum(sizes)), jac=True, method="L-BFGS-B", bounds=bounds)
    noise, numbers = parts(torch.as_tensor(best.x, device=squares.device))
    return noise.cpu(), numbers.cpu()


def _worthwhile(numbers: Tensor, gaps: Tensor, rows: Batch) -> Tensor:
    """The numbers (P + J,) without those that hardly change the noise."""
    n_outputs = rows.y.shape[1]
    of_cells, of_categories = numbers[:n_outputs], numbers[n_outputs:]
    added = rows.weight @ (gaps[:, :n_outputs] @ of_cells.to(gaps))
    matter = added >= LITTLE * rows.weight.sum()
    kept = torch.where(of_categories >= LEAST_OF_CATEGORY, of_categories, 0.0)
    return torch.cat([of_cells if matter else torch.zeros_like(of_cells), kept])
