"""A local GP of what a model leaves over: kriging by the nearest rows.

    y = f(x) + ρ(x) + noise,        ρ ~ GP(0, τ² k),        noise ~ N(0, σ²),

where f is what the model says, and k a Matérn-3/2 kernel. ρ is learnt from what the model leaves of each row's target,
r = y − E f(x). Given the residuals of the k nearest rows, with their correlations κ with ρ(x) and K with each other,

    E ρ(x) = aᵀ r,        Var ρ(x) = τ² (1 − aᵀ κ),        a = (K + (σ²/τ²) diag(1/w))⁻¹ κ

(Vecchia, 1988; Datta et al., 2016). With as many neighbours as rows this is the GP itself. Far from all rows nothing is
known of ρ, and its variance is τ².

Where x moves, one row stops being a neighbour and another starts. Lest ρ make a step there, a neighbour gets noise of
variance τ² (1 − u)/u besides. u falls from one to zero over the last tenth of the distance to the next row beyond.

Functions drawn are pathwise: with a function g drawn from the prior, and a draw ε of every row's noise,
ρ(x) = g(x) + aᵀ (r − g − ε) has the moments above in every row, and is a function of x like any other.
"""

from collections.abc import Callable
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from .blend import Blended
from .correlations import correlation
from .deep_gp import DeepGP, Marginals
from .kernels import PROFILES, StationaryKernel
from .likelihoods import Likelihood
from .linalg import NO_JITTER, cholesky
from .waves import Streams

PROFILE = "matern32"

#: Share of the distance to the first row beyond within which a neighbour fades.
FADE = 0.1

#: Least u, and what is added to the diagonal of correlations.
LEAST_WEIGHT, JITTER = 1e-6, 1e-10

#: Numbers that a matrix of distances or covariances may hold at a time.
MATRIX_NUMBERS = 2**21

#: Features up to which a tree finds neighbours. With more it visits so many rows that looking at all of them is faster.
TREE_FEATURES = 8

#: Rows of which the nearest is found first where all are looked at. The nearest k are among those of k such groups.
GROUP = 50


class Neighbourhood(NamedTuple):
    """The nearest rows of each of B queries: their numbers, and the noise (1 − u)/u that they fade by, (B, k)."""

    rows: Tensor
    noise: Tensor


class Neighbours(nn.Module):
    """ρ, given what is left over at some rows. All is in float64.

    Parameters
    ----------
    X : Tensor of shape (N, Q)
        Rows.
    residual : Tensor of shape (N, P)
    weight : Tensor of shape (N,)
        A row of weight 2 is that row twice.
    lengthscale : Tensor of shape (Q,)
    variance, noise : Tensors of shape (P,)
        τ² and σ², of each output.
    n_neighbors : int
        k, or all rows where there are fewer.
    """

    X: Tensor
    residual: Tensor
    weight: Tensor
    lengthscale: Tensor
    variance: Tensor
    noise: Tensor
    _tree: cKDTree | None = None  # of a frozen one

    def __init__(
        self,
        X: Tensor,
        residual: Tensor,
        weight: Tensor,
        *,
        lengthscale: Tensor,
        variance: Tensor,
        noise: Tensor,
        n_neighbors: int,
    ):
        super().__init__()
        numbers = {"X": X, "residual": residual, "weight": weight}
        for name, each in (numbers | {"lengthscale": lengthscale, "variance": variance, "noise": noise}).items():
            self.register_buffer(name, each.double())
        self.n_neighbors = min(n_neighbors, len(X))

    def frozen(self) -> Self:
        """As it is, for many calls: rows are sorted for searches once."""
        found = copy(self)
        if not self.X.is_cuda and self.X.shape[1] <= TREE_FEATURES:
            found._tree = cKDTree((self.X / self.lengthscale).numpy())
        return found

    def numbers_per_row(self) -> int:
        """Size of the largest tensor that predictions make, for each row."""
        return self.n_neighbors * (self.n_neighbors * len(self.variance) + self.X.shape[1])

    def neighbourhood(self, X: Tensor, own: Tensor | None = None) -> Neighbourhood:
        """Of queries X (B, Q); ``own`` (B,) are numbers of rows that are not to be their own neighbours."""
        n_wanted = self.n_neighbors + (1 if own is None else 2)
        distance, index = self._nearest(X.detach(), min(n_wanted, len(self.X)))
        if own is not None:
            distance, order = distance.masked_fill(index == own[:, None], torch.inf).sort(dim=1, stable=True)
            distance, index = distance[:, :-1], index.gather(1, order)[:, :-1]
        if X.requires_grad:
            distance = ((self.X[index] - X[:, None]) / self.lengthscale).norm(dim=-1)
        k = min(self.n_neighbors, distance.shape[1])
        u = torch.ones_like(distance[:, :k])
        if distance.shape[1] > k:
            beyond = distance[:, k, None]
            fading = (beyond - distance[:, :k]) / (FADE * beyond)
            u = torch.where(beyond > 0, fading.clamp(LEAST_WEIGHT, 1.0), u)
        return Neighbourhood(index[:, :k], (1.0 - u) / u)

    def _nearest(self, X: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Distances, in lengthscales, and numbers of the nearest rows (B, k), the nearest first."""
        queries = X / self.lengthscale
        if self._tree is not None:
            distance, index = self._tree.query(queries.numpy(), np.arange(1, k + 1), workers=torch.get_num_threads())
            return torch.from_numpy(distance).to(X), torch.from_numpy(index)
        rows = self.X / self.lengthscale
        centre = rows.mean(0)  # near the origin less cancels
        rows, queries = rows - centre, queries - centre
        squares = rows.square().sum(1)
        parts = [_search(some, rows, squares, k) for some in queries.split(max(1, MATRIX_NUMBERS // len(rows)))]
        distance, index = (torch.cat(column) for column in zip(*parts, strict=True))
        return distance, index

    def moments(self, X: Tensor, near: Neighbourhood | None = None) -> tuple[Tensor, Tensor]:
        """Means and variances of ρ at X (B, Q), (B, P)."""
        near = near or self.neighbourhood(X)
        a, _, explained = self._kriging(X, near)
        mean = (a * self.residual[near.rows].permute(2, 0, 1)).sum(-1)  # (P, B)
        return mean.mT, (self.variance[:, None] * (1.0 - explained).clamp(min=0.0)).mT

    def _kriging(self, X: Tensor, near: Neighbourhood) -> tuple[Tensor, Tensor, Tensor]:
        """a and the neighbours' noise over τ², (P, B, k), and aᵀκ (P, B)."""
        profile = PROFILES[PROFILE]
        rows = (self.X[near.rows] - X[:, None]) * (profile.rate / self.lengthscale)  # (B, k, Q), from the query
        K = correlation(rows, rows, profile)
        kappa = correlation(rows, torch.zeros_like(rows[:, :1]), profile)  # (B, k, 1)
        noise = (self.noise / self.variance)[:, None, None] / self.weight[near.rows] + near.noise
        L = cholesky(K + torch.diag_embed(noise + JITTER), NO_JITTER)
        a = torch.cholesky_solve(kappa.expand(len(noise), -1, -1, -1), L)[..., 0]
        return a, noise, (a * kappa[..., 0]).sum(-1)

    def covariance(self, X: Tensor) -> Tensor:
        """Joint covariance of ρ at rows, (P, B, B): that of functions drawn."""
        near = self.neighbourhood(X)
        a, noise, _ = self._kriging(X, near)
        used, place = near.rows.unique(return_inverse=True)
        zeros = a.new_zeros(*a.shape[:2], len(used))  # (P, B, U)
        A, noisy = (zeros.scatter(-1, place.expand(len(a), -1, -1), each) for each in (a, a * noise.sqrt()))
        rows, kernel = self.X[used], self._prior()
        cross = A @ kernel.relative_covariance(rows, X)  # (P, B, B)
        some = rows.split(max(1, MATRIX_NUMBERS // len(rows)))
        within = torch.cat([A @ kernel.relative_covariance(rows, each) for each in some], dim=-1)
        found = kernel.relative_covariance(X, X) - cross - cross.mT + within @ A.mT + noisy @ noisy.mT
        return self.variance[:, None, None] * found

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """Functions, one for each of S streams: from X (B, Q) to values (S, B, P)."""
        n_outputs, deviation = len(self.variance), self.variance.sqrt()
        prior = self._prior().draw(streams, self.X.shape[1], n_outputs)
        epsilon = streams.normal(len(self.X), n_outputs)  # (S, N, P)

        def function(X: Tensor) -> Tensor:
            near = self.neighbourhood(X)
            a, noise, _ = (each.permute(1, 2, 0) if each.dim() == 3 else each for each in self._kriging(X, near))
            used, place = near.rows.unique(return_inverse=True)
            left = (self.residual[used] / deviation - prior(self.X[used][None]))[:, place]  # (S, B, k, P)
            left = left - epsilon[:, near.rows] * noise.sqrt()
            return deviation * (prior(X[None]) + (a * left).sum(-2))

        return function

    def _prior(self) -> StationaryKernel:
        """k."""
        kernel = StationaryKernel(PROFILE, len(self.lengthscale), ard=True).to(self.X)
        kernel.log_lengthscale.data.copy_(self.lengthscale.log())
        return kernel.requires_grad_(False)


def _search(queries: Tensor, rows: Tensor, squares: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and numbers of the nearest rows (B, k), by looking at all of them; ``squares`` are |rows|²."""
    square = torch.addmm(squares, queries, rows.mT, alpha=-2.0)  # but for that of the query
    n_groups = len(rows) // GROUP
    candidates = torch.arange(len(rows), device=rows.device)
    if n_groups > 2 * k:
        groups = square[:, : n_groups * GROUP].unflatten(1, (n_groups, GROUP))
        nearest = groups.amin(-1).topk(k, largest=False).indices  # (B, k)
        within = torch.arange(GROUP, device=rows.device)
        rest = torch.arange(n_groups * GROUP, len(rows), device=rows.device).expand(len(queries), -1)
        candidates = torch.cat([(nearest[..., None] * GROUP + within).flatten(1), rest], dim=1)
        square = square.gather(1, candidates)
    chosen = square.topk(k, largest=False).indices
    index = candidates[chosen] if candidates.dim() == 1 else candidates.gather(1, chosen)
    distance, order = (rows[index] - queries[:, None]).norm(dim=-1).sort(dim=1)
    return distance, index.gather(1, order)


class Correction(nn.Module):
    """What is added to the predictions of all members of an ensemble.

    Parameters
    ----------
    local : Neighbours
    likelihood : Likelihood
        Of a model and ρ together, of targets in the same units as the model's.
    gain, error : float
        What ρ adds to the mean log density of held-out rows, and the standard error of that.
    """

    def __init__(self, local: Neighbours, likelihood: Likelihood, gain: float, error: float):
        super().__init__()
        self.local, self.likelihood, self.gain, self.error = local, likelihood, gain, error

    def frozen(self) -> "Correction":
        """As it is, for many calls."""
        return Correction(self.local.frozen(), self.likelihood, self.gain, self.error)


class Corrected(nn.Module):
    """A member of an ensemble, as it predicts, and ρ, as one model; it answers what a :class:`.DeepGP` does.

    Parameters
    ----------
    model : DeepGP or Blended
    correction : Correction
    """

    def __init__(self, model: DeepGP | Blended, correction: Correction):
        super().__init__()
        self.model, self.correction = model, correction

    @property
    def local(self) -> Neighbours:
        """ρ."""
        return self.correction.local

    @property
    def likelihood(self) -> Likelihood:
        """Of both together."""
        return self.correction.likelihood

    @property
    def draws_hidden(self) -> bool:
        """See :attr:`.DeepGP.draws_hidden`."""
        return self.model.draws_hidden

    def frozen(self) -> Self:
        """See :meth:`.DeepGP.frozen`."""
        return type(self)(self.model.frozen(), self.correction.frozen())

    def numbers_per_row(self) -> int:
        """See :meth:`.DeepGP.numbers_per_row`."""
        return max(self.model.numbers_per_row(), self.local.numbers_per_row())

    def numbers_per_draw(self) -> int:
        """See :meth:`.DeepGP.numbers_per_draw`."""
        return self.model.numbers_per_draw() + self.local.n_neighbors

    def products(self, n_rows: int) -> int:
        """See :meth:`.DeepGP.products`."""
        return max(self.model.products(n_rows), n_rows * self.local.numbers_per_row())

    def forward(self, X: Tensor) -> Marginals:
        """See :meth:`.DeepGP.forward`."""
        return corrected(self.model(X), *self.local.moments(X.double()))

    def draw(self, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], Tensor]:
        """See :meth:`.DeepGP.draw`."""
        model, local = self.model.draw(streams, of_rows=of_rows), self.local.draw(streams)
        return lambda X: model(X) + local(X.double()).to(X)

    def covariance(self, X: Tensor, streams: Streams) -> Tensor:
        """See :meth:`.DeepGP.covariance`."""
        return self.model.covariance(X, streams) + self.local.covariance(X.double()).to(X)

    def gradient_variance(self, X: Tensor) -> None:
        """None: there is no closed form."""
        return None


def corrected(marginals: Marginals, mean: Tensor, variance: Tensor) -> Marginals:
    """Marginals of f + ρ from those of f, a mixture of any number of Gaussians, and moments (B, P) of ρ."""
    mean, variance = mean.to(marginals.mean), variance.to(marginals.mean)
    return marginals._replace(mean=marginals.mean + mean, variance=marginals.variance + variance)
