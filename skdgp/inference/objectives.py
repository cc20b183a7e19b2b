"""Objectives of training: plain functions of a model's marginals and the targets.

All are means over rows, so that a learning rate means the same for every number of rows. ``kl_weight`` is β/N: the
weight of the penalty on the inducing variables falls with the number N of all training rows.

A row of weight 2 counts as that row twice. So N is the sum of the weights of all rows. ``row_weight`` are the weights
from :meth:`.Batch.relative`, whose mean over all rows is one.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..gp.deep_gp import Marginals
from ..gp.likelihoods import Likelihood


class Objective(NamedTuple):
    """A function of marginals, likelihood, targets, weights of rows and β/N that training maximises.

    If it is ``linear`` in the mixture, a single sample estimates it and its gradient without bias (AVDGP, App. B).
    """

    value: Callable[[Marginals, Likelihood, Tensor, Tensor, float | Tensor], Tensor]
    linear: bool


def log_mixture(marginals: Marginals, likelihood: Likelihood, y: Tensor) -> Tensor:
    """log Σ_s ω_s ∫ p(y | f) N(f | m_s, v_s) df for every row: the log predictive density, (B,)."""
    log_components = likelihood.log_predictive(y, marginals.mean, marginals.variance)  # (S, B)
    log_ratio = 0.0 if marginals.log_ratio is None else marginals.log_ratio
    return torch.logsumexp(log_components + marginals.log_weight + log_ratio, dim=-2)


def penalty(marginals: Marginals, row_weight: Tensor) -> Tensor:
    """Σ_l KL_l of inducing variables that all rows share; otherwise the weighted mean of the rows' own penalties."""
    return marginals.kl if marginals.kl.dim() < row_weight.dim() else (row_weight * marginals.kl).mean(-1)


def with_latents(marginals: Marginals, log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Terms that replace the expected log likelihoods (S, B) if rows have latent variables, and their weights.

    A term is log (1/K) Σ_k exp(E log p(y | f_k)) p(h_k)/q(h_k) of K successive components (tutorial on sparse GPs,
    Eq. 81). With K = 1 it is the expected log likelihood plus the logarithm of the ratio, or plus the expectation of
    that, −KL(q(h) ‖ p(h)) (Eq. 79).
    """
    weight, K = marginals.log_weight.exp(), marginals.n_replicates
    if marginals.log_ratio is not None:
        log_likelihood = log_likelihood + marginals.log_ratio
    if K == 1:
        return log_likelihood, weight
    sums = torch.logsumexp(log_likelihood.unflatten(-2, (-1, K)), dim=-2) - math.log(K)  # (S/K, B)
    return sums, weight.unflatten(-2, (-1, K)).sum(-2)


def elbo(
    marginals: Marginals, likelihood: Likelihood, y: Tensor, row_weight: Tensor, kl_weight: float | Tensor
) -> Tensor:
    """mean_n w_n [Σ_s ω_s E log p(y_n | f_s) − (β/N) Σ_l KL_nl] (AVDGP Eq. 4.6, 4.12).

    With β = 1 it is a lower bound of the log evidence per row if all rows share their inducing variables. If each row
    has its own, it is an approximation, which may exceed the log evidence (AVDGP, App. A). For latent variables of rows
    see :func:`with_latents`.
    """
    log_likelihood = likelihood.expected_log_prob(y, marginals.mean, marginals.variance)  # (S, B)
    log_likelihood, weight = with_latents(marginals, log_likelihood)
    expected = (weight * log_likelihood).sum(-2)
    return (row_weight * expected).mean(-1) - kl_weight * penalty(marginals, row_weight)


def predictive(
    marginals: Marginals, likelihood: Likelihood, y: Tensor, row_weight: Tensor, kl_weight: float | Tensor
) -> Tensor:
    """mean_n w_n [log Σ_s ω_s p(y_n | s) − (β/N) Σ_l KL_nl] (AVDGP Eq. 4.16, App. D).

    If rows have latent variables, these are drawn from q, and a component's density is multiplied by p(h_s)/q(h_s).
    """
    return (row_weight * log_mixture(marginals, likelihood, y)).mean(-1) - kl_weight * penalty(marginals, row_weight)


OBJECTIVES = {"elbo": Objective(elbo, linear=True), "predictive": Objective(predictive, linear=False)}
