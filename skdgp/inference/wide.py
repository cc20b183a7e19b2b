"""Kernels of wide tables, of which rows tell too little to give each feature a lengthscale of its own.

Among hundreds of features there are some on which even pure noise seems to depend. With a lengthscale for each feature
the most likely kernel finds them, and believes that there is less noise than there is. With one for all features it
finds none, also where few features decide. So kernels of both kinds are learnt without some of the rows, one fold after
another, and these rows judge them. The base consists of both, in the shares that make left-out rows most likely
("stacking": Yao, Vehtari, Simpson and Gelman, Bayesian Analysis 2018).
"""

import math
from copy import deepcopy
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..gp.kernels import SumKernel
from ..gp.likelihoods import Gaussian
from ..gp.special import LOG_2PI
from .batches import Batch
from .evidence import groups_of_rows, observations
from .hyperparameters import HyperparameterPosterior
from .kernel_search import EXCESS, KernelSearch, smooth_of

#: Number of folds.
FOLDS = 5

#: The same with more than ``MANY`` rows, which take longer.
FEWER_FOLDS, MANY = 3, 200

#: Least gain by lengthscales that differ, in nats of all left-out rows. Two of twelve tables of pure noise gained two.
LEAST_GAIN = 4.0


class Learnt(NamedTuple):
    """A kernel and its noise, which some rows have made most likely."""

    kernel: SumKernel
    likelihood: Gaussian

    def log_density(self, rows: Batch, given: Batch) -> Tensor:
        """Log density (n,) of each row, given others, which differ in features; −∞ if it cannot be computed."""
        noise = self.likelihood.variance[:, None]  # (P or 1, 1)
        K = self.kernel.covariance(given.X, given.X) + torch.diag_embed(noise / given.weight)
        L, failed = torch.linalg.cholesky_ex(K)
        if failed.any():
            return rows.weight.new_full((len(rows),), -math.inf)
        cross = torch.linalg.solve_triangular(L, self.kernel.covariance(given.X, rows.X), upper=False)
        solved = torch.linalg.solve_triangular(L, given.y.mT[..., None], upper=False)
        mean = (cross.mT @ solved)[..., 0]  # (P, n)
        variance = self.kernel.diagonal(rows.X) - cross.square().sum(-2) + noise / rows.weight
        return -0.5 * ((rows.y.mT - mean).square() / variance + variance.log() + LOG_2PI).sum(0)


@torch.no_grad()
def draws_of_wide(
    kernel: SumKernel, likelihood: Gaussian, rows: Batch, number: int
) -> list[tuple[SumKernel, Gaussian]]:
    """Kernels and noises of both kinds, each of which counts the same.

    Parameters
    ----------
    kernel : SumKernel
        The most likely kernel with a lengthscale for each feature, of one output.
    likelihood : Gaussian
        Its noise.
    rows : Batch
        Rows of float64, in random order.
    number : int
        How many there are.
    """
    relative = not likelihood.fixed
    rows = rows.relative()[0] if relative else rows
    fold = groups_of_rows(rows.X)
    n_folds = min(FOLDS if len(rows) <= MANY else FEWER_FOLDS, int(fold.max()) + 1)
    own, of_own, of_shared = [], [], []
    for turn in range(n_folds):
        judges, others = rows.rows(fold % n_folds == turn), rows.rows(fold % n_folds != turn)
        given = observations(others, relative=relative).rows
        own.append(_learn(kernel, likelihood, others, shared=False))
        of_own.append(own[-1].log_density(judges, given))
        of_shared.append(_learn(kernel, likelihood, others, shared=True).log_density(judges, given))
    n_own = _share(torch.cat(of_own), torch.cat(of_shared), number)
    draws: list[tuple[SumKernel, Gaussian]] = [own[turn % n_folds] for turn in range(n_own)]
    if n_own < number:
        one = _learn(kernel, likelihood, rows, shared=True)
        shared = HyperparameterPosterior(*one, observations(rows, relative=relative)).draws(number - n_own)
        draws += [_like(kernel, *draw) for draw in shared]
    return draws


def _share(first: Tensor, second: Tensor, number: int) -> int:
    """How many of a number of equal Gaussians are of the first kind, if that makes rows with these densities likely."""
    share = torch.arange(number + 1, dtype=first.dtype, device=first.device)[:, None] / number
    total = torch.logaddexp(share.log() + first, (1 - share).log() + second).sum(1)
    return int(total.argmax()) if total.max() > total[0] + LEAST_GAIN else 0


def _learn(kernel: SumKernel, likelihood: Gaussian, rows: Batch, *, shared: bool) -> Learnt:
    """The most likely kernel of the same profile."""
    floor = likelihood.variance if likelihood.fixed else likelihood.floor
    smooth = smooth_of(kernel)
    search = KernelSearch(rows, floor, smooth.groups, likelihood.fixed)
    found = search.candidate(smooth.profile, EXCESS, shared=shared)
    found.learn(rows)
    return Learnt(found.kernel.requires_grad_(False), found.likelihood)


def _like(kernel: SumKernel, same: SumKernel, likelihood: Gaussian) -> tuple[SumKernel, Gaussian]:
    """A kernel whose lengthscales are all the same, with as many of them as another one."""
    result = deepcopy(kernel)
    for part, other in zip(result.kernels, same.kernels, strict=True):
        for name, value in part.named_parameters():
            value.copy_(cast(Tensor, getattr(other, name)).expand_as(value))
    return result, likelihood
