"""Whether targets are distributed around predictions as the noise says.

With the distribution functions F_n of left-out rows, the probabilities u_n = F_n(y_n) of smaller targets are uniform if
predictions are right. Too many of them are alike where half of the targets are zero, or targets are skew. This tells
the statistic of Cramér and von Mises,

    W² = 1/(12 N) + Σ_n ((2n − 1)/(2N) − u_(n))²

with the sorted u_(n) (Anderson and Darling, Annals of Mathematical Statistics 1952). And |2 u_n − 1|, which says how
far out a target is, is the same on average everywhere. Where the noise depends on the row it is not: then a linear
function of the features, of the predicted mean and of its square explains a share of its variance.
"""

import torch
from torch import Tensor
from torch.special import ndtr

from ..gp.likelihoods import AdditiveNoise
from ..gp.noise import Contaminated
from .tails import Errors, noise_of

#: W² of uniform numbers is larger in one of a thousand cases.
MOST_UNEVEN = 1.168

#: Largest share of the variance that may be explained. On twelve tables of 100 to 600 rows where a member that learns
#: densities gained nothing it was 0.13 at most, and on tables where it gained much 0.23 to 0.94.
MOST_EXPLAINED = 0.2

#: If there are more features than this share of the rows, they explain too much by chance and are not asked.
MOST_FEATURES = 0.1

#: Share of the variance of columns that is added to it, so that columns may depend on each other.
RIDGE = 1e-6


def misshapen(errors: Errors, likelihood: AdditiveNoise, X: Tensor, mean: Tensor) -> bool:
    """Whether errors of rows have another shape than those that noise of one or two Gaussians makes likely.

    Parameters
    ----------
    errors : Errors
        Errors of n rows, in units of noise that is the same for all.
    likelihood : AdditiveNoise
        A Gaussian one, or a contaminated one.
    X, mean : Tensor of shape (n, Q) or (n, P)
        Features and predicted means.
    """
    counts = errors.weight > 0
    if not counts.any():
        return False
    level = below(errors, likelihood)[counts]
    return bool((unevenness(level) > MOST_UNEVEN).any()) or any(
        explained((2.0 * u - 1.0).abs(), _columns(X[counts], m)) > MOST_EXPLAINED
        for u, m in zip(level.mT, mean[counts].mT, strict=True)
    )


def below(errors: Errors, likelihood: AdditiveNoise) -> Tensor:
    """Probabilities (n, P) of smaller errors."""
    narrow = noise_of(likelihood).to(errors.error)
    of_narrow = ndtr(errors.error / (errors.variance + narrow).sqrt())
    if not isinstance(likelihood, Contaminated):
        return of_narrow
    share, wide = likelihood.share.to(narrow), likelihood.wide.to(narrow)
    return (1.0 - share) * of_narrow + share * ndtr(errors.error / (errors.variance + wide).sqrt())


def unevenness(level: Tensor) -> Tensor:
    """W² of each column of probabilities (n, P)."""
    n_rows = len(level)
    place = (torch.arange(n_rows, dtype=level.dtype, device=level.device) + 0.5) / n_rows
    return (level.sort(dim=0).values - place[:, None]).square().sum(0) + 1.0 / (12.0 * n_rows)


def explained(values: Tensor, columns: Tensor) -> float:
    """The share of the variance of values (n,) that a linear function of columns (n, K) explains, beyond chance."""
    values, columns = values - values.mean(), columns - columns.mean(0)
    size = columns.square().mean(0).sqrt()
    columns = columns[:, size > 0] / size[size > 0]
    n_rows, n_columns = columns.shape
    total = values.square().sum()
    if n_rows <= n_columns + 1 or not total > 0:
        return 0.0
    both = columns.mT @ columns + RIDGE * n_rows * torch.eye(n_columns, dtype=columns.dtype, device=columns.device)
    left = (values - columns @ torch.linalg.solve(both, columns.mT @ values)).square().sum()
    return 1.0 - (left / total).item() * (n_rows - 1) / (n_rows - n_columns - 1)


def _columns(X: Tensor, mean: Tensor) -> Tensor:
    """What may explain how far out targets (n,) are: the features, the mean, and its square."""
    of_mean = torch.stack([mean, (mean - mean.mean()).square()], dim=1)
    return of_mean if X.shape[1] > MOST_FEATURES * len(X) else torch.cat([X.to(of_mean), of_mean], dim=1)
