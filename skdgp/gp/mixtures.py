"""Covariances between rows whose values are a mixture of jointly Gaussian ones.

Component s has the weight ω_s, and in it the values of all rows have the means m_s and the covariance C_s. By the law
of total covariance, that of the mixture is Σ_s ω_s C_s plus the covariance of the m_s. The same holds for a *response*
to function values, such as their exponentials, with the moments of the response in place of m_s and C_s.

Each row may have R *copies*, which differ in latent variables. Which copy a row is has nothing to do with other rows.
So the covariance of two rows is the mean over all pairs of their copies.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from .conditionals import with_variances
from .layers import Layer

#: From means (..., D, B) and covariances (..., D, B, B) of jointly Gaussian values to those of a response.
Response = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

#: About how many copies of rows are in a matrix of covariances between copies.
COPIES_AT_A_TIME = 1024


class Components(NamedTuple):
    """Components of a mixture, each a Gaussian layer at inputs of its own."""

    layer: Layer
    inputs: Tensor  # (S, R·B, Q): first copies of all rows, then second ones
    anchor: Tensor  # (S, R·B, ·) or (R·B, ·)
    weight: Tensor  # (S,)
    n_copies: int = 1  # R


def covariance_of_rows(components: Components, most: int, response: Response | None = None) -> Tensor:
    """Covariances (P, B, B) of the values of rows, or of a response to them.

    If there is no response and there are more than ``most`` components, correlations within components are those of
    the components with the largest weights.
    """
    layer, inputs, anchor, weight, R = components
    within = means = inputs.new_zeros(())
    for index, share_of_copy, share_of_pair in groups_of_copies(R, inputs.shape[1] // R, inputs.device):
        x, a = (rows.unflatten(-2, (R, -1))[..., index, :, :].flatten(-3, -2) for rows in (inputs, anchor))
        if response is None:
            mean, covariance = _moments(layer, x, a, weight, most)
        else:
            mean, covariance = _response_moments(layer, x, a, weight, response)
        blocks = covariance.unflatten(-2, (len(index), -1)).unflatten(-1, (len(index), -1))  # (P, k, B, k, B)
        within = within + torch.einsum("pkblc,kl->pbc", blocks, share_of_pair.to(blocks))
        means = means + share_of_copy * mean.unflatten(-1, (len(index), -1)).sum(-2)  # (S, P, B)
    centred = (means - torch.einsum("s,spb->pb", weight, means)) * weight.sqrt()[:, None, None]
    return within + centred.movedim(0, -1) @ centred.transpose(0, 1)


def groups_of_copies(n_copies: int, n_rows: int, device: torch.device) -> Iterator[tuple[Tensor, float, Tensor]]:
    """Numbers of copies (k,) that are computed together, how much each counts, and how much pairs of them count (k, k).

    Two copies are at least once in the same group. All that they count adds up to 1/R for a copy, and to 1/R² for a
    pair.
    """
    size = max(1, COPIES_AT_A_TIME // n_rows)
    parts = torch.arange(n_copies, device=device).split(size)
    n_meetings = max(1, len(parts) - 1)  # of two copies of a part
    for together in combinations(parts, 2) if len(parts) > 1 else (parts,):
        index = torch.cat(together)
        meetings = torch.where(index[:, None] // size == index // size, n_meetings, 1)
        yield index, 1 / (n_copies * n_meetings), 1 / (n_copies**2 * meetings)


def _moments(layer: Layer, x: Tensor, anchor: Tensor, weight: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Means (S, P, B) of components, and the average (P, B, B) of their covariances."""
    mean, variance, _ = layer(x, anchor)
    if len(weight) <= most:
        return mean.mT, layer.covariance(x, anchor, weight)
    top = weight.topk(most).indices
    within = layer.covariance(x[top], anchor[top] if anchor.dim() == 3 else anchor, weight[top] / weight[top].sum())
    return mean.mT, with_variances(within, (weight[:, None, None] * variance).sum(0).mT)


def _response_moments(
    layer: Layer, x: Tensor, anchor: Tensor, weight: Tensor, response: Response
) -> tuple[Tensor, Tensor]:
    """The same for a response."""
    mean, _, _ = layer(x, anchor)
    means, total, alone = [], x.new_zeros(()), weight.new_ones(1)
    for s, weight_s in enumerate(weight):
        covariance = layer.covariance(x[s, None], anchor[s] if anchor.dim() == 3 else anchor, alone)
        response_mean, covariance = response(mean[s].mT, covariance)
        means.append(response_mean)
        total = total + weight_s * covariance
    return torch.stack(means), total
