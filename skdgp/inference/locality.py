"""Chooses the correction of a model by the nearest rows, by means of rows that the model has not learnt from."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..gp.likelihoods import AdditiveNoise, rounding_variance
from ..gp.neighbours import Correction, Neighbourhood, Neighbours
from ..gp.noise import Contaminated
from .batches import Batch
from .judged import Judged
from .lbfgs import going_back
from .tails import Errors, gaussian, log_mixture, noise_of, with_tails
from .twins import counting_once

#: Default number of neighbours. Twelve are nearly as good, and fifty are not better.
N_NEIGHBORS = 24

#: Largest number of rows whose residuals are kept. If there are more, they are a random part.
MOST_ROWS = 50_000

#: Smallest number of rows that judge a correction, if there are so many.
FEWEST_VALIDATION_ROWS = 16

#: Largest number of rows that judge a correction: more of them take longer and hardly decide better.
MOST_VALIDATION_ROWS = 3000

#: Largest number of entries in the correlations of these rows' neighbours.
VALIDATION_NUMBERS = 2**25

#: Number of rows by which scales are compared. The best one is then learnt from all of them, which takes few iterations
#: more.
SEARCH_ROWS = 300

#: What the last iteration gains, in nats per row, or as a share of them if they are more than one.
TOLERANCE = 1e-5

#: The same if scales are compared, since the best one is learnt again.
COMPARED = 1e-4

#: Number of standard errors by which the mean log density must gain, unless the user asks for neighbours.
ERRORS = 2.0

#: Least gain that counts, in nats a row. A correction that gains less than this is no use. And it does harm where the
#: model meets its rows exactly: it would add residuals that rows have only if they are left out.
LEAST_GAIN = 1e-3

#: The neighbour whose median distance decides the initial lengthscales.
START_NEIGHBOR = 8

#: How far the logarithms of lengthscales may move.
REACH = 5.0

#: Initial variance of ρ, as a share of the old noise.
FUNCTION_SHARE = 0.5

#: Initial variance of the new noise, as a share of the old one.
NOISE_SHARE = 0.6

#: Smallest variance of ρ and of the new noise, as a share of the old noise.
LEAST = 1e-3

#: Largest variance of both.
MOST = 10.0

#: Initial log odds of wide noise, and their limits.
ODDS = (-3.0, -12.0, 2.0)

#: Initial logarithm of the variance of wide noise over that of the old noise, and its limits. Rows of which their
#: neighbours say nothing are at least as uncertain as without neighbours.
WIDTH = (1.0, 0.0, 4.0)

#: Rows with wide noise, and rows without, that are counted beforehand. No share is zero then.
PSEUDO_COUNT = 0.5

#: Residuals of rows that a model has learnt from are too small. They are made larger, at most by this factor.
MOST_INFLATION = 5.0

ITERATIONS = 60

#: Largest number of searches for lengthscales of single features. Each starts from those of the one before, by which
#: other rows are the nearest.
ROUNDS = 6

#: Fewest rows that judge, so that features have lengthscales of their own. Among twenty fits to 114 rows of a smooth
#: function one seemed to gain 0.08 nats by them, and lost 0.17 on new rows.
FEWEST_BY_FEATURE = 300

#: What such a search must gain, in nats a row, so that another one follows.
WORTHWHILE = 5e-3


class Predicted(NamedTuple):
    """Rows with a model's moments (n, P) there.

    ``unseen`` (n,) is True if the model has not learnt from the row. ``worth`` (n,) are shares of the rows' weights
    with which they are neighbours, or None if these are one.
    """

    rows: Batch
    mean: Tensor
    variance: Tensor
    unseen: Tensor
    worth: Tensor | None = None

    def at(self, index: Tensor) -> "Predicted":
        """The rows at ``index``."""
        worth = None if self.worth is None else self.worth[index]
        return Predicted(self.rows.rows(index), self.mean[index], self.variance[index], self.unseen[index], worth)

    def errors(self) -> Errors:
        """Errors of the predictions."""
        return Errors(self.rows.y - self.mean, self.variance, self.rows.weight)


def best_correction(
    stored: Predicted,
    others: Predicted | None,
    likelihood: AdditiveNoise,
    scales: Sequence[Tensor],
    n_neighbors: int = N_NEIGHBORS,
    change: Callable[[Tensor, Tensor], Tensor] | None = None,
    tails: Contaminated | None = None,
) -> tuple[Correction, Judged] | None:
    """The best correction there is, and how likely rows are with it; None if there are no rows to judge.

    Log densities are in the model's units. Rows have their numbers among those that are given.

    Parameters
    ----------
    stored : Predicted
        Rows that may become neighbours.
    others : Predicted or None
        Rows that judge. With None the unseen ones among ``stored`` do.
    likelihood : AdditiveNoise
        Likelihood of the model.
    scales : sequence of Tensors of shape (Q,)
        Numbers that divide the features before distances are computed. The best scale is taken.
    n_neighbors : int, default=N_NEIGHBORS
        Number of neighbours.
    change : callable, default=no change
        From the numbers of rows that judge (B,) and of their neighbours (B, k) to what is added to the neighbours'
        residuals (B, k, P), so that these have not learnt from the row that judges either.
    tails : Contaminated, default=None
        The model's noise without neighbours if this is a mixture. Neighbours must gain more than it does.

    Returns
    -------
    tuple of Correction and Judged, or None
    """
    source = stored if others is None else others
    index = _rows_that_judge(source, min(n_neighbors, len(stored.rows)))
    held_out = source.at(index)
    own = index if others is None else None  # numbers of the rows that judge among those that become neighbours
    if len(held_out.rows) < 2 or len(stored.rows) < 3:
        return None
    residual = stored.rows.y - stored.mean if own is None else _as_of_unseen_rows(stored)
    noise, weight = noise_of(likelihood).to(residual), stored.rows.weight
    if stored.worth is not None:
        weight = weight * stored.worth

    def candidate(scale: Tensor, rows: Tensor, start: np.ndarray | None = None, **options: Any) -> _Candidate:
        numbers = {"lengthscale": scale, "variance": noise, "noise": noise}
        local = Neighbours(stored.rows.X, residual, weight, **numbers, n_neighbors=n_neighbors)
        judges = held_out.at(rows)

        def find() -> Neighbourhood:
            near = local.neighbourhood(judges.rows.X, None if own is None else own[rows])
            if change is None or own is None:
                return near
            return near._replace(residual=residual[near.rows] + change(own[rows], near.rows))

        return _Candidate(local, judges, find, likelihood, start, tails=tails, **options)

    everything = torch.arange(len(held_out.rows), device=residual.device)
    first = _spread(everything, SEARCH_ROWS)
    tolerance = COMPARED if len(first) < len(everything) else TOLERANCE
    compared = ((scale, candidate(scale, first, tolerance=tolerance)) for scale in scales)
    scale, best = min(compared, key=lambda pair: pair[1].value)
    if len(first) < len(everything):
        best = candidate(scale, everything, best.optimum.x)
    other = [_by_feature(best, partial(candidate, rows=everything))] if len(everything) >= FEWEST_BY_FEATURE else []
    correction, judged = max((one.result() for one in (best, *other)), key=lambda result: result[0].gain)
    return correction, judged._replace(number=index.cpu().numpy())


def _as_of_unseen_rows(stored: Predicted) -> Tensor:
    """Residuals of all rows, with those of learnt rows as large as those of rows that were not learnt; shape (N, P)."""
    residual = stored.rows.y - stored.mean
    if stored.unseen.all() or not stored.unseen.any():
        return residual
    unseen, learnt = (residual[rows].square().mean(0) for rows in (stored.unseen, ~stored.unseen))
    inflation = (unseen / learnt.clamp(min=1e-300)).sqrt().clamp(1.0, MOST_INFLATION)  # they may all be zero
    return torch.where(stored.unseen[:, None], residual, residual * inflation)


def _by_feature(best: "_Candidate", candidate: Callable[..., "_Candidate"]) -> "_Candidate":
    """The same with a lengthscale for each feature, if that gains anything; see :data:`ROUNDS`.

    A feature that says which rows belong together, such as a number that is the same in all rows of an hour, then
    decides who is whose neighbour.
    """
    usual, start = best.lengthscale, None
    for _ in range(ROUNDS if len(usual) > 1 else 0):
        again = candidate(best.lengthscale, start=start, usual=usual)
        gain = best.value - again.value
        if gain > 0:
            best, start = again, np.concatenate([np.zeros(len(usual)), again.numbers])
        if gain < WORTHWHILE:
            break
    return best


def _rows_that_judge(source: Predicted, n_neighbors: int) -> Tensor:
    """Numbers of the unseen rows, or of some of them if the covariances of so many neighbours take much memory."""
    affordable = VALIDATION_NUMBERS // n_neighbors**2
    return _spread(
        torch.nonzero(source.unseen)[:, 0], max(FEWEST_VALIDATION_ROWS, min(MOST_VALIDATION_ROWS, affordable))
    )


def _spread(index: Tensor, n_rows: int) -> Tensor:
    """At most ``n_rows`` of the numbers, evenly spread over all."""
    return index if len(index) <= n_rows else index[torch.arange(n_rows, device=index.device) * len(index) // n_rows]


class _Candidate:
    """The best correction for one scale, which lengthscales start from.

    At first all features share a factor of the scale. If there are ``usual`` lengthscales (Q,), each feature has a
    factor of its own, and the logarithm of its lengthscale has a Cauchy prior around that of the usual one. The search
    keeps the neighbours that it starts with. By the lengthscales that it finds other rows may be the nearest, and with
    these the candidate is judged.

    Neighbours speak of most rows, but not of all: a row may repeat another one and have quite another target. So noise
    is a mixture of two Gaussians. A single Gaussian that suits most rows would be far too narrow for the others.
    """

    def __init__(
        self,
        local: Neighbours,
        held_out: Predicted,
        find: Callable[[], Neighbourhood],
        likelihood: AdditiveNoise,
        start: np.ndarray | None,
        *,
        usual: Tensor | None = None,
        tails: Contaminated | None = None,
        tolerance: float = TOLERANCE,
    ):
        self.local, self.held_out, self.near, self.likelihood = local, held_out, find(), likelihood
        self.scale, self.noise, self.usual = local.lengthscale, local.noise, usual
        self.tails, self.tolerance = tails, tolerance
        weight = counting_once(held_out.rows)
        self.total_weight = weight.sum()  # copies of a row are no more evidence than the row
        self.weight = weight / self.total_weight
        self.distances = None if usual is not None else local.distances(held_out.rows.X, self.near)
        self.optimum = self._best(start)
        self.n_lengths, self.value = len(self.optimum.x) - 2 * len(self.noise) - 2, self.optimum.fun
        if usual is not None:
            self._set(torch.as_tensor(self.optimum.x, device=self.noise.device))
            self.near = find()
            self.value, _ = self._negative(self.optimum.x)

    @property
    def lengthscale(self) -> Tensor:
        """The best lengthscales (Q,)."""
        return self.scale * torch.as_tensor(self.optimum.x[: self.n_lengths], device=self.scale.device).exp()

    @property
    def numbers(self) -> np.ndarray:
        """The other numbers of the best vector."""
        return self.optimum.x[self.n_lengths :]

    def _best(self, first: np.ndarray | None) -> OptimizeResult:
        """Search by gradients from a first vector, by default from the distances of neighbours."""
        eighth = self.near.rows[:, min(START_NEIGHBOR, self.near.rows.shape[1]) - 1]
        distance = ((self.local.X[eighth] - self.held_out.rows.X) / self.scale).norm(dim=-1).median().clamp(min=1e-6)
        floor = [rounding_variance(column) for column in self.held_out.rows.y.mT.cpu().numpy()]
        noise = self.noise.log().cpu().numpy()
        low, high = noise + math.log(LEAST), noise + math.log(MOST)
        low_noise = np.maximum(low, np.log(np.maximum(floor, 1e-12)))
        start = [noise + math.log(FUNCTION_SHARE), np.maximum(noise + math.log(NOISE_SHARE), low_noise)]
        ends = [*zip(low, high, strict=True), *zip(low_noise, np.maximum(high, low_noise), strict=True)]
        lengths = np.array([math.log(distance.item())] if self.usual is None else len(self.scale) * [0.0])
        odds, width = self._first_tails()
        widths = WIDTH[1], max(WIDTH[2], width + 1.0)
        bounds = [*zip(lengths - REACH, lengths + REACH, strict=True), *ends, ODDS[1:], widths]
        if first is None:
            first = np.concatenate([lengths, *start, [odds, width]])
        options, first = {"maxiter": ITERATIONS, "ftol": self.tolerance}, np.clip(first, *np.transpose(bounds))
        return minimize(going_back(self._negative), first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    def _set(self, vector: Tensor) -> None:
        """Set ρ and the noise from logarithms of the lengthscale, τ² and σ², and from odds and width of wide noise."""
        n_noises = len(self.noise)
        n_lengths = len(vector) - 2 * n_noises - 2
        length, variance, noise, self.odds, width = vector.split([n_lengths, n_noises, n_noises, 1, 1])
        self.factor = length.exp()
        self.local.lengthscale, self.local.variance = self.scale * self.factor, variance.exp()
        self.local.noise, self.wide = noise.exp(), self.noise * width.exp()

    def _left(self) -> Errors:
        """Errors of held-out rows with neighbours, before noise."""
        near = self.near
        if self.distances is not None:  # a common factor of the lengthscales divides them
            between, from_query = self.distances
            near = near._replace(distances=(between / self.factor, from_query / self.factor))
        mean, variance = self.local.moments(self.held_out.rows.X, near)
        errors = self.held_out.errors()
        return errors._replace(error=errors.error - mean, variance=errors.variance + variance)

    def _density(self, left: Errors) -> Tensor:
        """Log densities (n,) of held-out rows; the model's own distribution counts as a Gaussian with its moments."""
        return log_mixture(left, self.odds, self.local.noise, self.wide)

    def _negative(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(vector, device=self.noise.device, requires_grad=True)
        self._set(free)
        counted = PSEUDO_COUNT * (logsigmoid(self.odds) + logsigmoid(-self.odds)).sum() / self.total_weight
        value = -(self.weight * self._density(self._left())).sum() - counted
        if self.usual is not None:
            unusual = (self.local.lengthscale / self.usual).log()
            value = value + unusual.square().log1p().sum() / self.total_weight
        return value.item(), torch.autograd.grad(value, free)[0].cpu().numpy()

    @torch.no_grad()
    def result(self) -> tuple[Correction, Judged]:
        """The correction with the gain that new rows can expect, and how likely the rows that judge are.

        These rows have chosen k numbers and gain k/(2n) nats by that on average, and new ones lose as much (Akaike,
        1974). With a dozen rows that is more than neighbours usually are worth.
        """
        self._set(torch.as_tensor(self.optimum.x, device=self.noise.device))
        left = self._left()
        density = self._density(left)
        gain = density - self._density_before()
        mean = (self.weight * gain).sum()
        n_before = 0 if self.tails is None else 1 + 2 * len(self.noise)
        chosen = (len(self.optimum.x) - n_before) / self.total_weight
        error = ((self.weight * (gain - mean)).square().sum()).sqrt()
        likelihood = with_tails(self.likelihood, self.odds.sigmoid().item(), self.local.noise, self.wide)
        columns = (values.cpu().numpy() for values in (density, self.weight * self.total_weight, left.error))
        return Correction(self.local, likelihood, (mean - chosen).item(), error.item()), Judged(np.empty(0), *columns)

    def _density_before(self) -> Tensor:
        """Log densities (n,) of held-out rows without neighbours."""
        errors = self.held_out.errors()
        if self.tails is None:
            return gaussian(errors, self.noise).sum(-1)
        odds, wide = self.tails.share.logit().to(self.noise), self.tails.wide.to(self.noise)
        return log_mixture(errors, odds, noise_of(self.tails).to(self.noise), wide)

    def _first_tails(self) -> tuple[float, float]:
        """Initial log odds of wide noise, and logarithm of its variance over the old noise: larger for outliers."""
        if self.tails is None:
            return ODDS[0], WIDTH[0]
        width = (self.tails.wide.to(self.noise) / self.noise).log().max().item()
        if width <= WIDTH[2]:
            return ODDS[0], WIDTH[0]
        return float(np.clip(self.tails.share.logit().item(), *ODDS[1:])), width
