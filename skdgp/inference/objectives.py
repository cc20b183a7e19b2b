"""What training maximises: plain functions of a model's marginals and the targets.

All are per-row means, so that a learning rate means the same for every number of rows. ``kl_weight``
is β/N: the price of the inducing variables shrinks with the number of rows N of the whole data set.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..gp.deep_gp import Marginals
from ..gp.likelihoods import Likelihood

Objective = Callable[[Marginals, Likelihood, Tensor, Tensor, float], Tensor]


def log_mixture(marginals: Marginals, likelihood: Likelihood, y: Tensor) -> Tensor:
    """log Σ_s ω_s ∫ p(y | f) N(f | m_s, v_s) df for every row: the log predictive density, (B,)."""
    log_components = likelihood.log_predictive(y, marginals.mean, marginals.variance)  # (S, B)
    return torch.logsumexp(log_components + marginals.log_weight[:, None], dim=0)


def elbo(marginals: Marginals, likelihood: Likelihood, y: Tensor, row_weight: Tensor, kl_weight: float) -> Tensor:
    """mean_n w_n Σ_s ω_s E log p(y_n | f_s) − (β/N) Σ_l KL_l (AVDGP Eq. 4.6, 4.12)."""
    log_likelihood = likelihood.expected_log_prob(y, marginals.mean, marginals.variance)  # (S, B)
    expected = (marginals.log_weight.exp()[:, None] * log_likelihood).sum(0)
    return (row_weight * expected).mean() - kl_weight * marginals.kl.mean()


def predictive(marginals: Marginals, likelihood: Likelihood, y: Tensor, row_weight: Tensor, kl_weight: float) -> Tensor:
    """mean_n w_n log Σ_s ω_s p(y_n | s) − (β/N) Σ_l KL_l (AVDGP Eq. 4.16, App. D)."""
    return (row_weight * log_mixture(marginals, likelihood, y)).mean() - kl_weight * marginals.kl.mean()


OBJECTIVES: dict[str, Objective] = {"elbo": elbo, "predictive": predictive}
