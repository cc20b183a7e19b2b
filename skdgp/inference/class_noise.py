"""The least noise of a base for classes or grades, chosen by cross-validation where rows are few.

A base for classes fits functions to numbers by least squares. The evidence of these numbers says little about how
certain classes are: with few rows, or a rare class, a function that bends at every row of that class is most likely,
and probabilities come too near to 0 and 1. Nor can rows tell that are left out of the posterior alone, since kernel and
noise have learnt from them, too. So bases with more and with less noise are fitted without a part of the rows, and
predict it. Each may multiply its function by a number of its own, as the base can when it is done. Copies of a row are
in the same part: a base that has learnt one of them would be sure of the others.

Grades stand for numbers in the same way, and a rare one for a number far out. Their likelihood has noise of its own,
which is chosen in place of the factor.
"""

import math
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Likelihood
from .batches import Batch
from .calibration import marginals_of
from .outliers import PREDICT_ROWS
from .twins import counting_once, folds, twins

#: Smallest noise variances that compete, relative to the variance of the numbers that stand for classes. A class is not
#: a smooth function of the features: with less noise the evidence prefers functions that bend at every row.
SHARES = (1.0, 0.1)

#: The same for grades. Many of them tell a function as precisely as numbers do, so that there may be any noise.
GRADE_SHARES = (0.0, 1.0)

#: Nats that the second must gain in all. A third of a small table has other classes or grades by chance.
DOUBT = 2.0

#: Largest number of rows for which they compete. With more rows it is the smaller one.
MOST_ROWS = 1000

#: Fewest rows, of which copies are one. With fewer it is the first.
FEWEST_ROWS = 10

#: Number of parts that are predicted, each by a base of the others: three, or two where that would take long.
PARTS, LARGE_PARTS, LARGE = 3, 2, 300

#: Limits of the logarithm of the number that functions are multiplied by, or of the deviation of the noise of grades.
LOGARITHMS = (-4.0, 6.0)

#: From rows, the share that is the least noise, and a base of almost the same rows or None, to a base.
Fit = Callable[[Batch, float, DeepGP | None], DeepGP]


def least_noise(
    likelihood: Likelihood,
    rows: Batch,
    numbers: Tensor,
    fit: Fit,
    shares: tuple[float, ...] = SHARES,
    doubt: float = DOUBT,
) -> float:
    """The share with which left-out classes or grades are most probable.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood of a member, for classes or grades.
    rows : Batch
        Rows of float64 with encoded targets, in random order.
    numbers : Tensor of shape (n, P)
        Numbers that stand for the targets.
    fit : callable
        Fits a base to some rows of numbers. The search for its kernel may start from that of another base.
    shares : tuple of float, default=SHARES
        Those that compete. The first is for very few rows, and the smallest for many.
    doubt : float, default=DOUBT
        Nats that another share must gain over the first, for all rows together.

    Returns
    -------
    float
        One of ``shares``.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix has no Cholesky factor in floating point.
    """
    if len(rows) > MOST_ROWS:
        return min(shares)
    group = twins(rows)
    if group.max() + 1 < FEWEST_ROWS:
        return shares[0]
    likelihood = deepcopy(likelihood).for_blend().to(numbers).requires_grad_(False)
    numbered = Batch(rows.X, numbers, rows.weight)
    losses = [_loss(likelihood, rows, *_predicted(numbered, group, fit, share)) for share in shares]
    losses[0] -= doubt
    return shares[int(np.argmin(losses))]


@torch.no_grad()
def _predicted(rows: Batch, group: Tensor, fit: Fit, share: float) -> tuple[Tensor, Tensor]:
    """Means and variances (n, P) that rows have by a base of the other parts. Rows of a ``group`` (n,) share a part.

    Kernels of all parts are nearly the same, and searching takes long. So the later ones start from the first.
    """
    mean, variance, first = torch.empty_like(rows.y), torch.empty_like(rows.y), None
    n_parts = PARTS if len(rows) <= LARGE else LARGE_PARTS
    part = torch.from_numpy(folds(np.arange(len(rows)), group.cpu().numpy(), n_parts)).to(rows.y.device)
    for number in range(n_parts):
        left_out = part == number
        with torch.enable_grad():
            model = fit(rows.rows(~left_out), share, first)
        first = model if first is None else first
        marginals = marginals_of(model, rows.rows(left_out), PREDICT_ROWS)
        mean[left_out], variance[left_out] = marginals.mean[0], marginals.variance[0]
    return mean, variance


@torch.no_grad()
def _loss(likelihood: Likelihood, rows: Batch, mean: Tensor, variance: Tensor) -> float:
    """The negative log probability of classes if functions are multiplied by the best number.

    For grades it is that with the best noise.
    """
    of_grades, weight = likelihood.base_kind == "grades", counting_once(rows)

    def negative(logarithm: float) -> float:
        scale = 1.0 if of_grades else math.exp(logarithm)
        for parameter in likelihood.calibrated() if of_grades else ():
            parameter.fill_(logarithm)
        of_rows = likelihood.log_predictive(rows.y, (scale * mean)[None], (scale**2 * variance)[None])[0]
        return -(weight @ of_rows).item()

    return float(minimize_scalar(negative, bounds=LOGARITHMS, method="bounded").fun)
