"""A local GP of a model's residuals: kriging by the nearest rows.

    y = f(x) + ρ(x) + noise,        ρ ~ GP(0, τ² k),        noise ~ N(0, σ²),

where f is the function of the model, and k a Matérn-3/2 kernel. ρ is learnt from the residuals of rows, r = y − E f(x).
In predictions a share of the rows has noise of a larger variance: those of which their neighbours say nothing.
Let κ be the correlations of the k nearest rows with ρ(x), and K those with each other. Given the residuals of these
rows,

    E ρ(x) = aᵀ r,        Var ρ(x) = τ² (1 − aᵀ κ),        a = (K + (σ²/τ²) diag(1/w))⁻¹ κ

(Vecchia, 1988; Datta et al., 2016). With as many neighbours as rows this is the GP itself. Far from all rows nothing is
known of ρ, and its variance is τ².

When x moves, one row stops being a neighbour and another one becomes a neighbour. So that ρ has no step there, a
neighbour gets additional noise of variance τ² (1 − u)/u. u is one up to nine tenths of the distance to the nearest row
that is no neighbour, and falls to zero over the last tenth.

Functions are drawn pathwise. Let g be a function drawn from the prior, and ε a draw of each row's noise. Then
ρ(x) = g(x) + aᵀ (r − g − ε) has the moments above for each x, and is an ordinary function of x.
"""

from collections.abc import Callable
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from .correlations import correlation, distances
from .deep_gp import Marginals
from .devices import at_a_time
from .kernels import PROFILES, StationaryKernel
from .layers import with_parts
from .linalg import solve
from .noise import Contaminated
from .waves import Functions, Streams

PROFILE = "matern32"

#: Share of the distance to the nearest row that is no neighbour, over which a neighbour fades.
FADE = 0.1

#: Smallest u, so that the noise (1 − u)/u stays finite.
LEAST_WEIGHT = 1e-6

#: Jitter that is added to the diagonal of correlations, since rows may be equal and have no noise.
JITTER = 1e-10

#: Largest number of entries in a matrix of distances or covariances.
MATRIX_NUMBERS = 2**21

#: Largest number of entries of a block of a matrix that is used at once, so that it stays in the processor's cache.
CACHE_NUMBERS = 2**18

#: Largest number of values of drawn functions at rows that are kept: 8 MiB.
KEPT_NUMBERS = 2**20

#: Largest number of features for which a tree finds neighbours. With more features it visits so many rows that a search
#: of all rows is faster.
TREE_FEATURES = 8

#: Rows in a group. A search of all rows first finds the nearest row of each group. The k nearest rows of all are in the
#: k groups whose nearest rows are closest.
GROUP = 50


class Neighbourhood(NamedTuple):
    """The nearest rows of each of B queries: their numbers, and the noise (1 − u)/u by which they fade, (B, k).

    Their residuals (B, k, P) may depend on the query. ``distances`` are those of the neighbours from each other
    (B, k, k) and from the query (B, k, 1), in lengthscales, if they are known.
    """

    rows: Tensor
    noise: Tensor
    residual: Tensor | None = None
    distances: tuple[Tensor, Tensor] | None = None


class Neighbours(nn.Module):
    """The GP ρ, given residuals at some rows. It computes in float64.

    Parameters
    ----------
    X : Tensor of shape (N, Q)
        Rows.
    residual : Tensor of shape (N, P)
    weight : Tensor of shape (N,)
        A row of weight 2 counts as that row twice.
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
        rows = {"X": X, "residual": residual, "weight": weight}
        for name, numbers in (rows | {"lengthscale": lengthscale, "variance": variance, "noise": noise}).items():
            self.register_buffer(name, numbers.double())
        self.n_neighbors = min(n_neighbors, len(X))

    def frozen(self) -> Self:
        """A copy for many calls, for which rows are sorted once."""
        frozen = copy(self)
        if self.X.device.type == "cpu" and self.X.shape[1] <= TREE_FEATURES:
            frozen._tree = cKDTree((self.X / self.lengthscale).numpy())
        return frozen

    def numbers_per_row(self) -> int:
        """Size of the largest tensor that predictions make, for each row."""
        return self.n_neighbors * (self.n_neighbors * len(self.variance) + self.X.shape[1])

    def neighbourhood(self, X: Tensor, own: Tensor | None = None) -> Neighbourhood:
        """Neighbourhoods of queries X (B, Q). If queries are rows, ``own`` (B,) are their numbers, to be left out."""
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
            beyond = torch.where(beyond > 0, beyond, 1.0)  # 0/0 would make gradients NaN: more than k rows are equal
            u = ((beyond - distance[:, :k]) / (FADE * beyond)).clamp(LEAST_WEIGHT, 1.0)
        return Neighbourhood(index[:, :k], (1.0 - u) / u)

    def _nearest(self, X: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Distances, in lengthscales, and numbers of the nearest rows (B, k), the nearest first."""
        queries = X / self.lengthscale
        if self._tree is not None and X.device.type == "cpu":
            distance, index = self._tree.query(queries.numpy(), np.arange(1, k + 1), workers=torch.get_num_threads())
            return torch.from_numpy(distance).to(X), torch.from_numpy(index)
        rows = self.X / self.lengthscale
        centre = rows.mean(0)  # rounding errors are smaller near the origin
        rows, queries = rows - centre, queries - centre
        squares = rows.square().sum(1)
        n_together = max(1, at_a_time(MATRIX_NUMBERS, X.device) // len(rows))
        parts = [_search(part, rows, squares, k) for part in queries.split(n_together)]
        distance, index = (torch.cat(column) for column in zip(*parts, strict=True))
        return distance, index

    def distances(self, X: Tensor, near: Neighbourhood) -> tuple[Tensor, Tensor]:
        """Distances in lengthscales, as neighbourhoods of X (B, Q) may have them."""
        rows = (self.X[near.rows] - X[:, None]) / self.lengthscale
        return distances(rows, rows), distances(rows, torch.zeros_like(rows[:, :1]))

    def moments(self, X: Tensor, near: Neighbourhood | None = None) -> tuple[Tensor, Tensor]:
        """Means and variances of ρ at X (B, Q), (B, P)."""
        near = near or self.neighbourhood(X)
        a, _, explained = self._kriging(X, near)
        residual = self.residual[near.rows] if near.residual is None else near.residual
        mean = (a * residual.permute(2, 0, 1)).sum(-1)  # (P, B)
        return mean.mT, (self.variance[:, None] * (1.0 - explained).clamp(min=0.0)).mT

    def _kriging(self, X: Tensor, near: Neighbourhood) -> tuple[Tensor, Tensor, Tensor]:
        """a and the neighbours' noise over τ², (P, B, k), and aᵀκ (P, B)."""
        profile = PROFILES[PROFILE]
        if near.distances is None:
            rows = (self.X[near.rows] - X[:, None]) * (profile.rate / self.lengthscale)  # (B, k, Q), from the query
            K = correlation(rows, rows, profile)
            kappa = correlation(rows, torch.zeros_like(rows[:, :1]), profile)  # (B, k, 1)
        else:
            K, kappa = (profile.evaluate(-profile.rate * distance)[0] for distance in near.distances)
        noise = (self.noise / self.variance)[:, None, None] / self.weight[near.rows] + near.noise
        a = self._solved(K + torch.diag_embed(noise + JITTER), kappa.expand(len(noise), -1, -1, -1))[..., 0]
        return a, noise, (a * kappa[..., 0]).sum(-1)

    def _solved(self, K: Tensor, right: Tensor) -> Tensor:
        """K⁻¹ right, of positive definite matrices K (..., k, k)."""
        return solve(K, right)

    def covariance(self, X: Tensor) -> Tensor:
        """Joint covariance of ρ at rows, (P, B, B): that of functions drawn."""
        near = self.neighbourhood(X)
        a, noise, _ = self._kriging(X, near)
        used, place = near.rows.unique(return_inverse=True)
        rows, kernel = self.X[used], self._prior()
        parts = rows.split(max(1, at_a_time(CACHE_NUMBERS, X.device) // len(rows)))
        prior, across, covariances = kernel.relative_covariance(X, X)[0], kernel.relative_covariance(rows, X)[0], []
        blocks = [
            [_weighed(K, place, a_p) for a_p in a]
            for K in (kernel.relative_covariance(rows, part)[0] for part in parts)
        ]
        for a_p, deviation, *within in zip(a, noise.sqrt(), *blocks, strict=True):  # of each output
            cross = _weighed(across, place, a_p)  # (B, B)
            between = _weighed(torch.cat(within, dim=-1).mT, place, a_p)  # Σ a_i K a_jᵀ, (B, B)
            noisy = torch.zeros_like(across).mT.scatter(1, place, a_p * deviation).mT  # (U, B)
            covariances.append(prior - cross - cross.mT + between + _weighed(noisy, place, a_p * deviation))
        return self.variance[:, None, None] * torch.stack(covariances)

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """Functions, one for each of S streams: from X (B, Q) to values (S, B, P)."""
        n_outputs, deviation = len(self.variance), self.variance.sqrt()
        prior = self._prior().draw(streams, self.X.shape[1], n_outputs)
        epsilon = streams.normal(len(self.X), n_outputs)  # (S, N, P)
        at_rows = _AtRows(prior, self.X, len(epsilon), n_outputs)

        def function(X: Tensor) -> Tensor:
            near = self.neighbourhood(X)
            a, noise = (numbers.permute(1, 2, 0) for numbers in self._kriging(X, near)[:2])  # (B, k, P)
            used, place = near.rows.unique(return_inverse=True)
            left = (self.residual[used] / deviation - at_rows(used))[:, place]  # (S, B, k, P)
            left = left - epsilon[:, near.rows] * noise.sqrt()
            return deviation * (prior(X[None]) + (a * left).sum(-2))

        return function

    def _prior(self) -> StationaryKernel:
        """The kernel k, with the learnt lengthscales."""
        kernel = StationaryKernel(PROFILE, len(self.lengthscale), ard=True).to(self.X)
        kernel.log_lengthscale.data.copy_(self.lengthscale.log())
        return kernel.requires_grad_(False)


def _weighed(matrix: Tensor, place: Tensor, weight: Tensor) -> Tensor:
    """Sums (B, n) of some rows of a matrix (U, n), whose numbers are ``place`` (B, k), with weights (B, k).

    It has first derivatives only.
    """
    return nn.functional.embedding_bag(place, matrix.contiguous(), per_sample_weights=weight.contiguous(), mode="sum")


class PlainNeighbours(Neighbours):
    """The same with few kinds of operations, so that other systems can compute it: products, sums and top-k.

    All rows are searched. Systems of equations are solved by elimination, one neighbour after another.
    """

    @classmethod
    def of(cls, local: Neighbours) -> Self:
        """One that computes what another one does."""
        names = ("lengthscale", "variance", "noise", "n_neighbors")
        return cls(local.X, local.residual, local.weight, **{name: getattr(local, name) for name in names})

    def _nearest(self, X: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows, queries = self.X / self.lengthscale, X / self.lengthscale
        centre = rows.mean(0)  # rounding errors are smaller near the origin
        rows, queries = rows - centre, queries - centre
        index = (rows.square().sum(1) - 2.0 * queries @ rows.mT).topk(k, largest=False).indices
        distance, order = (rows[index] - queries[:, None]).square().sum(-1).sqrt().topk(k, largest=False)
        return distance, index.gather(1, order)

    def _solved(self, K: Tensor, right: Tensor) -> Tensor:
        """Gauss-Jordan elimination. Positive definite matrices need no other pivots."""
        system = torch.cat([K, right], dim=-1)
        for j in range(K.shape[-1]):
            pivot = system[..., j : j + 1, :] / system[..., j : j + 1, j : j + 1]
            rest = system - system[..., :, j : j + 1] * pivot
            system = torch.cat([rest[..., :j, :], pivot, rest[..., j + 1 :, :]], dim=-2)
        return system[..., K.shape[-1] :]


class _AtRows:
    """Values (S, N, P) of S functions at N rows. Each is computed when it is first asked for, unless there are many."""

    def __init__(self, functions: Functions, X: Tensor, n_functions: int, n_outputs: int):
        self.functions, self.X = functions, X
        self.kept = n_functions * len(X) * n_outputs <= KEPT_NUMBERS
        if self.kept:
            self.values = X.new_empty(n_functions, len(X), n_outputs)
            self.known = torch.zeros(len(X), dtype=torch.bool, device=X.device)

    @torch.no_grad()
    def __call__(self, index: Tensor) -> Tensor:
        """Values (S, U, P) at the rows of these numbers (U,)."""
        if not self.kept:
            return self.functions(self.X[index][None])
        missing = index[~self.known[index]]
        if len(missing):
            self.values[:, missing] = self.functions(self.X[missing][None]).to(self.values)
            self.known[missing] = True
        return self.values[:, index]


def _search(queries: Tensor, rows: Tensor, squares: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and numbers of the nearest rows (B, k), by a search of all of them; ``squares`` are |rows|²."""
    square = torch.addmm(squares, queries, rows.mT, alpha=-2.0)  # without that of the query
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
    """The correction ρ, which is added to the predictions of all members of an ensemble.

    Parameters
    ----------
    local : Neighbours
    likelihood : Contaminated
        Likelihood of a model and ρ together. Its targets have the same units as the model's.
    gain, error : float
        Gain of the mean log density of held-out rows by ρ, and its standard error.
    """

    def __init__(self, local: Neighbours, likelihood: Contaminated, gain: float, error: float):
        super().__init__()
        self.local, self.likelihood, self.gain, self.error = local, likelihood, gain, error

    def frozen(self) -> "Correction":
        """A copy that is faster in many calls; see :meth:`Neighbours.frozen`."""
        return with_parts(self, local=self.local.frozen())


def corrected(marginals: Marginals, mean: Tensor, variance: Tensor) -> Marginals:
    """Marginals of f + ρ from those of f, a mixture of Gaussians, and from the moments (B, P) of ρ."""
    mean, variance = mean.to(marginals.mean), variance.to(marginals.mean)
    return marginals._replace(mean=marginals.mean + mean, variance=marginals.variance + variance)
