"""The likelihood of grades: a few whole numbers of which only the order matters."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..distributions import GradeDistribution, Mixture, PredictiveDistribution
from .devices import constant
from .likelihoods import first_row
from .pointwise import LEAST_VARIANCE, N_PREDICTED, Pointwise, even_nodes, gauss_nodes
from .special import LOG_2PI, log_ndtr

#: Initial variance of the noise, where noise and function together have about one.
INITIAL_NOISE = 0.5

#: Smallest variance of the noise. With less of it the mean grade would be a staircase, which quadrature cannot resolve.
LEAST_NOISE = 0.01

#: Smallest number of Gaussians that stand for one in the distribution of the mean grade.
FEWEST_NARROW = 24

#: Count of each grade before any row is seen.
PRIOR_COUNT = 0.5

#: Share of the distance of the first and the last cut point that is divided evenly, so that no gap is empty.
LEAST_GAP = 1e-3

#: How far cut points are from a function at most, in deviations of the noise.
FARTHEST = 1e3

#: Stands for infinity, of which gradients would not be numbers.
BEYOND = 1e30

#: Largest number of grades.
MOST_GRADES = 100


class Ordinal(Pointwise):
    """Likelihood p(y = k | f) = Φ((b_{k+1} − f)/s) − Φ((b_k − f)/s), the cumulative probit model.

    A grade says between which two of the cut points b the number f + s ε lies, where ε is standard normal. The first
    and the last cut point are such that a standard normal number has the lowest and the highest grade as often as rows
    have. So f + s ε has about the variance one, and members and base agree on the scale of f. The other cut points, and
    s, are learnt.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    grades : sequence of int, default=None
        All possible grades. None stands for those that are among the targets. Others have the probability zero.
    """

    stackable = True
    base_kind: ClassVar[str] = "grades"
    grades: tuple[float, ...]
    log_gaps: nn.Parameter
    first: Tensor
    last: Tensor

    def __init__(self, n_outputs: int, grades: Sequence[float] | None = None):
        super().__init__(n_outputs)
        self.grades = () if grades is None else tuple(float(grade) for grade in sorted({*grades}))
        self.chosen = grades is not None
        self.log_scale = _parameter(0.5 * math.log(INITIAL_NOISE), n_outputs)
        for end in ("first", "last"):
            self.register_buffer(end, torch.zeros(n_outputs, device="cpu", dtype=torch.float32))
        self.log_gaps = _parameter(0.0, n_outputs, max(len(self.grades) - 2, 0))

    def calibrated(self) -> list[nn.Parameter]:
        """The logarithm of s."""
        return [self.log_scale]

    def numbers_per_row(self, n_samples: int) -> int:
        """See :meth:`.Likelihood.numbers_per_row`."""
        return max(super().numbers_per_row(n_samples), n_samples * self.n_outputs * len(self.grades))

    # Targets.

    def checked(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P); ValueError that names a row with numbers that are not whole."""
        y = super().checked(y)
        row = first_row(y != np.floor(y))
        if row is not None:
            raise ValueError(
                f"Grades are whole numbers, but y holds {y[row].tolist()} in row {row}: number the grades in their "
                "order, choose another likelihood, or correct the row."
            )
        return y

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Learn which grades there are. ValueError if targets are not whole numbers, or too few or many grades."""
        y = self.checked(y)
        if not self.chosen:
            self.grades = tuple(np.unique(y).astype(float).tolist())
        if not 2 <= len(self.grades) <= MOST_GRADES:
            few = len(self.grades) < 2
            cure = "give rows of another one" if few else "choose a likelihood of numbers, or of counts"
            raise ValueError(
                f"likelihood='ordinal' is for 2 to {MOST_GRADES} grades, but y holds {len(self.grades)}: {cure}."
            )
        self.log_gaps = _parameter(0.0, self.n_outputs, len(self.grades) - 2)

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Numbers of the grades, from zero; ValueError that names a row with an unknown grade."""
        y, grades = self.checked(y), np.asarray(self.grades)
        row = first_row(~np.isin(y, grades))
        if row is not None:
            raise ValueError(
                f"The model knows the grades {[int(grade) for grade in grades]}, but y holds {y[row].tolist()} in row "
                f"{row}: leave out the row, or name all grades, likelihood=functools.partial(skdgp.gp.grades.Ordinal, "
                "grades=[...])."
            )
        return np.searchsorted(grades, y).astype(y.dtype)

    @torch.no_grad()
    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set cut points so that a standard normal number has grades with the shares that rows have."""
        number = torch.arange(len(self.grades), device=y.device)
        count = PRIOR_COUNT + (weight[:, None, None] * (y[..., None] == number)).sum(0).double()  # (P, K)
        below = count.cumsum(-1)[:, :-1] / count.sum(-1, keepdim=True)
        cuts = torch.special.ndtri(below)
        self.first.copy_(cuts[:, 0])
        self.last.copy_(cuts[:, -1])
        self.log_gaps.copy_(cuts.diff(dim=-1).log())

    # Probabilities.

    @property
    def noise(self) -> Tensor:
        """Variances s² (..., P) of the noise, in float64."""
        return LEAST_NOISE + (2 * self.log_scale.double()).exp()

    @property
    def cuts(self) -> Tensor:
        """Cut points (..., P, K − 1), ascending, in float64."""
        first, last = self.first.double()[..., None], self.last.double()[..., None]
        even = LEAST_GAP / max(self.log_gaps.shape[-1], 1)
        shares = even + (1 - LEAST_GAP) * self.log_gaps.double().softmax(-1)
        return torch.cat([first, first + (last - first) * shares.cumsum(-1)], dim=-1)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f)."""
        return self._log_probability(y, f, torch.zeros_like(f))

    def _log_probability(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y | f) N(f | mean, variance) df of numbers y (..., 1, B, P): that of noise with s² + variance."""
        low, high = self._ends(y, mean, variance)
        return _log_between(low, high).to(mean)

    def _ends(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """The two cut points around grades, less the mean, in deviations; see :meth:`_log_probability`."""
        number, cuts = y.long().squeeze(-3)[..., None], self.cuts  # (..., B, P, 1) and (..., P, K − 1)
        last = torch.full_like(cuts[..., :1], BEYOND)
        padded = torch.cat([-last, cuts, last], dim=-1).unsqueeze(-3)  # (..., 1, P, K + 1)
        padded = padded.expand(*number.shape[:-1], padded.shape[-1])
        m, deviation = mean.double(), self._deviation(variance)
        low, high = (
            ((padded.gather(-1, number + above)[..., 0].unsqueeze(-3) - m) / deviation).clamp(-FARTHEST, FARTHEST)
            for above in (0, 1)
        )
        return low, high

    def _deviation(self, variance: Tensor) -> Tensor:
        """√(s² + variance)."""
        return (variance.double() + self.noise[..., None, None, :]).sqrt()

    def _above(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Probabilities (..., S, B, P, K − 1) that the grade is above each cut point."""
        apart = mean.double()[..., None] - self.cuts[..., None, None, :, :]
        return torch.special.ndtr(apart / self._deviation(variance)[..., None])

    def _mean(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Mean grades (..., S, B, P) for f ~ N(mean, variance)."""
        steps = constant(self.grades, mean, torch.float64).diff()
        return self.grades[0] + (self._above(mean, variance) * steps).sum(-1)

    # What training and predictions ask.

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`.Likelihood.log_predictive`, in closed form."""
        return self._log_probability(y.unsqueeze(-3), mean, variance).sum(-1)

    def response(self, f: Tensor) -> Tensor:
        """Mean grades."""
        return self._mean(f, torch.zeros_like(f)).to(f)

    def mean_response(self, mean: Tensor, variance: Tensor, log_weight: Tensor) -> Tensor:
        """See :meth:`.Likelihood.mean_response`, in closed form."""
        return (log_weight.double().exp()[..., None] * self._mean(mean, variance)).sum(0)

    @torch.no_grad()
    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> Mixture:
        """See :meth:`.Likelihood.predictive`; with ``latent`` it is the distribution of the mean grade."""
        weight = log_weight[:, 0].double().softmax(0)
        if latent:
            return self._distribution_of_mean(mean.double(), variance.double(), weight)
        above = torch.tensordot(weight, self._above(mean, variance), dims=1)  # (B, P, K − 1)
        ends = torch.ones_like(above[..., :1])
        p = -torch.cat([ends, above, 0 * ends], dim=-1).diff(dim=-1)
        return GradeDistribution(self.grades, p.clamp(min=0.0)[None].cpu().numpy(), [1.0])

    def _distribution_of_mean(self, mean: Tensor, variance: Tensor, weight: Tensor) -> Mixture:
        """Mixture of narrow Gaussians, with the exact mean and variance of the mean grade.

        N(m, v) is a mixture of Gaussians of variance τ² v whose means are distributed as N(m, (1 − τ²) v). Between
        the means of two of them the mean grade is nearly linear in f.
        """
        z, shares = even_nodes(max(FEWEST_NARROW, N_PREDICTED // len(mean)), mean)
        narrow = ((z[1] - z[0]).square() / (1 + (z[1] - z[0]).square())).item()  # τ²: as wide as means are apart
        v = variance.clamp(min=LEAST_VARIANCE)
        m = mean + (v * (1 - narrow)).sqrt() * z.reshape(-1, 1, 1, 1)  # (K, S, B, P)
        f, weights = gauss_nodes(m, (narrow * v).expand_as(m))
        values = torch.stack([self._mean(part, torch.zeros_like(part)) for part in f])
        centre = torch.tensordot(weights, values, dims=1)
        spread = torch.tensordot(weights, (values - centre).square(), dims=1).clamp(min=LEAST_VARIANCE)
        means, variances = (numbers.flatten(0, 1).cpu().numpy() for numbers in (centre, spread))
        return PredictiveDistribution(means, variances, (shares[:, None] * weight).flatten().cpu().numpy())

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`.Likelihood.draw`."""
        with torch.no_grad():
            cuts, scale = self.cuts.cpu().numpy(), self.noise.sqrt().cpu().numpy()
        noisy = f + scale * rng.standard_normal(f.shape)
        return np.asarray(self.grades)[(noisy[..., None] > cuts).sum(axis=-1)]

    # The base.

    @torch.no_grad()
    def regressands(self, y: Tensor) -> Tensor:
        """Means of a standard normal number between the cut points, over the slope that they have in f on average."""
        cuts, number = self.cuts, y.long()[..., None]
        ends = torch.zeros_like(cuts[..., :1])
        density = torch.cat([ends, (-0.5 * (cuts.square() + LOG_2PI)).exp(), ends], dim=-1)
        share = torch.cat([ends, torch.special.ndtr(cuts), ends + 1], dim=-1).diff(dim=-1).clamp(min=1e-12)
        score = -density.diff(dim=-1) / share  # (..., P, K)
        score = score / (share * score.square()).sum(-1, keepdim=True)
        return score.unsqueeze(-3).expand(*number.shape[:-1], -1).gather(-1, number)[..., 0].to(y)


def _parameter(value: float, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value, device="cpu", dtype=torch.float32))


def _log_between(low: Tensor, high: Tensor) -> Tensor:
    """log[Φ(high) − Φ(low)] for low < high, without cancellation in either tail."""
    right = low + high > 0
    low, high = torch.where(right, -high, low), torch.where(right, -low, high)
    top = log_ndtr(high)
    return top + (-(log_ndtr(low) - top).clamp(max=-1e-30).expm1()).log()
