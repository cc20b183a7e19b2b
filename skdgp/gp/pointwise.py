"""Likelihoods of which only the distribution p(y | f) of a target given its function value is known.

A class defines the log density, the conditional mean, and the distribution as an object of SciPy. Everything else
follows by quadrature over Gaussian function values. Expectations have Gauss-Hermite nodes. Densities of targets may be
narrower than the Gaussian, so that their nodes are placed where the integrand is. A predictive distribution is the
mixture of the distributions at some function values of each of its Gaussians.
"""

import math
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from ..distributions import FamilyDistribution, Mixture, PredictiveDistribution, TransformedDistribution
from ..distributions.families import log_integral
from .likelihoods import Regression, first_row
from .special import N_NODES, gauss_hermite

#: How far a function value may be from the best constant. There the exponential has grown by a factor of 1e13, so that
#: values beyond would say no more. Without a limit, densities would overflow in float32.
FARTHEST = 30.0

#: Number of nodes of predictive distributions for all Gaussians of a model together.
N_PREDICTED = 128

#: Smallest number of nodes for each of them. Many Gaussians need few.
FEWEST_NODES = 6

#: How far nodes at equal distances reach, in deviations.
MOST_REACH = 7.0

#: Number of nodes of log densities in training.
N_DENSITY_NODES = 24

#: Smallest variance of function values in integrals.
LEAST_VARIANCE = 1e-12

#: The number that stands for a target in least squares is the most likely one if numbers had this variance. So targets
#: at the edge of what is possible, such as a count of zero, get a number that is not infinite.
WIDE = 9.0

#: How far an integrand reaches, in deviations of the Gaussian.
REACH = 8.5

#: Number of places that each round of a search compares.
N_PLACES = 9

#: Factor by which their distance shrinks after a round.
SHRINK = 4.0

#: Rounds of a search within a Gaussian.
ROUNDS = 4

#: Rounds of a search among all function values.
MORE_ROUNDS = 6

#: Terms of the series for the covariance of two rows. Those of smooth means fall quickly.
N_TERMS = 12

#: Steps by which the inverse of a mean halves an interval, until it is as short as the digits of float64.
HALVINGS = 60


class Pointwise(Regression):
    """Likelihood whose three methods :meth:`log_prob`, :meth:`mean` and :meth:`distribution` say all about it.

    They get encoded targets and function values of the same last two dimensions, rows and outputs (..., B, P), and are
    elementwise. A parameter of shape (P,) enters them as ``parameter[..., None, None, :]``. Then members of an ensemble
    can be trained as one, and the class may say ``stackable = True``. Function values are counted from the constant
    that suits all targets best, which is added before the methods see them.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    shift: Tensor

    def __init__(self, n_outputs: int):
        super().__init__(n_outputs)
        self.register_buffer("shift", torch.zeros(n_outputs, device="cpu", dtype=torch.float32))

    # What each likelihood defines.

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), which can be differentiated; finite for all targets that are allowed."""
        raise NotImplementedError

    @staticmethod
    def mean(f: Tensor) -> Tensor:
        """Mean of targets given f, which can be differentiated. It is monotone, and has no parameters."""
        raise NotImplementedError

    def distribution(self, f: Tensor):
        """Continuous distribution of targets given f, of float64 in main memory, as a frozen one of scipy.stats."""
        raise NotImplementedError

    # What follows.

    def numbers_per_row(self, n_samples: int) -> int:
        """See :meth:`.Likelihood.numbers_per_row`."""
        return self.n_outputs * max(N_PREDICTED, n_samples * N_NODES)

    @torch.no_grad()
    def encode(self, y: np.ndarray) -> np.ndarray:
        """Targets in ``units``; ValueError that names a row without a density in single precision."""
        encoded = super().encode(y)
        rows = torch.as_tensor(encoded, dtype=torch.float32, device=self.shift.device)[None]
        row = first_row(~self._log_prob(rows, torch.zeros_like(rows))[0].isfinite().cpu().numpy())
        if row is not None:
            raise ValueError(
                f"The likelihood {type(self).__name__} gives no density to {y[row].tolist()}, which y holds in row "
                f"{row}: correct the row, or choose another likelihood."
            )
        return encoded

    @torch.no_grad()
    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set the constant to which function values are added, for each output the most likely one."""
        y, weight = y.double(), weight.double()[:, None]

        def value(f: Tensor) -> Tensor:
            return (weight * self.log_prob(y, f)).sum(-2, keepdim=True)

        constant, _ = _peak(value, y.new_full((1, 1, y.shape[1]), FARTHEST), MORE_ROUNDS)
        self.shift.copy_(constant[0, 0])

    def regressands(self, y: Tensor) -> Tensor:
        """The function values that are most likely given each target; see :data:`WIDE`."""
        y = y.unsqueeze(-3)
        return self._peak(y, torch.zeros_like(y), torch.full_like(y, WIDE))[0].squeeze(-3)

    def response(self, f: Tensor) -> Tensor:
        """Means of targets."""
        return self.in_units(self.mean(self._shifted(f)))

    def mean_response(self, mean: Tensor, variance: Tensor, log_weight: Tensor) -> Tensor:
        """See :meth:`.Likelihood.mean_response`."""
        f, weights = gauss_nodes(mean.double(), variance.double())
        return (log_weight.double().exp()[..., None] * torch.tensordot(weights, self.response(f), dims=1)).sum(0)

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`.Likelihood.expected_log_prob`."""
        f, weights = gauss_nodes(mean, variance)
        return torch.tensordot(weights, self._log_prob(y.unsqueeze(-3), f), dims=1).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`.Likelihood.log_predictive`."""
        v, y = variance.clamp(min=LEAST_VARIANCE), y.unsqueeze(-3)

        def log_density(offset: Tensor) -> Tensor:  # (..., S, B, P, K)
            return self._log_prob(y, mean + offset.movedim(-1, 0)).movedim(0, -1)

        everywhere = 2 * (torch.full_like(v, math.inf),)
        return log_integral(log_density, v, self._peak(y, mean, v), everywhere, N_DENSITY_NODES).sum(-1)

    @torch.no_grad()
    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> Mixture:
        """See :meth:`.Likelihood.predictive`; with ``latent`` it is the distribution of the mean."""
        m, v = mean.double(), variance.double().clamp(min=LEAST_VARIANCE)
        weight = log_weight[:, 0].double().softmax(0)
        if latent:
            gaussians = PredictiveDistribution(m.cpu().numpy(), v.cpu().numpy(), weight.cpu().numpy())
            return TransformedDistribution(gaussians, Link(self))
        z, shares = even_nodes(max(FEWEST_NODES, N_PREDICTED // len(m)), m)
        f = m + v.sqrt() * z[:, None, None, None]  # (K, S, B, P)
        weights = (shares[:, None] * weight).flatten().cpu().numpy()
        return self._mixture(f.flatten(0, 1), weights)

    def draw(self, f: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """See :meth:`.Likelihood.draw`."""
        return self._mixture(torch.tensor(f, device="cpu")[None], np.ones(1)).rvs(None, rng)

    def joint(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`.Likelihood.joint`; covariances are Σ_k a_k(x) a_k(x') ρ(x, x')^k, where a_0 is the mean.

        ρ is the correlation of function values, and a_k the mean of the response times the k-th Hermite polynomial,
        which is divided by its norm √k! (Mehler's formula, 1866).
        """
        v = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=LEAST_VARIANCE)  # (..., P, B)
        f, weights = gauss_nodes(mean.mT, v.mT)  # (K, ..., B, P)
        z, _ = gauss_hermite(N_NODES, mean)
        terms = [weights, weights * z]
        for k in range(1, N_TERMS):
            terms.append((z * terms[k] - math.sqrt(k) * terms[k - 1]) / math.sqrt(k + 1))
        a = torch.tensordot(torch.stack(terms), self.response(f), dims=1).mT  # (N_TERMS + 1, ..., P, B)
        rho = (covariance * v.rsqrt()[..., :, None] * v.rsqrt()[..., None, :]).clamp(-1.0, 1.0)
        total = torch.zeros_like(covariance)
        for term in a[1:].flip(0):  # Horner's rule
            total = (total + term[..., :, None] * term[..., None, :]) * rho
        return a[0], total

    def _shifted(self, f: Tensor) -> Tensor:
        """Function values (..., S, B, P) as the methods of the class see them."""
        return f.clamp(-FARTHEST, FARTHEST) + self.shift[..., None, None, :].to(f)

    def _log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        return self.log_prob(y, self._shifted(f))

    @torch.no_grad()
    def _mixture(self, f: Tensor, weights: np.ndarray) -> FamilyDistribution:
        """Mixture of the distributions given function values (S, B, P), in the user's units."""
        own = deepcopy(self).cpu()  # SciPy knows no other device
        frozen = own.distribution(own._shifted(f.double().cpu()))
        units = (np.asarray(column) for column in (self.units.shift, self.units.scale))
        return FamilyDistribution.of(frozen, weights, f.shape[1:], *units)

    @torch.no_grad()
    def _peak(self, y: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Where p(y | f) N(f | m, v) is largest, as f − m, and its width there."""

        def value(offset: Tensor) -> Tensor:
            return self._log_prob(y, m + offset) - 0.5 * offset.square() / v

        shape = np.broadcast_shapes(y.shape, m.shape)  # torch's imports SymPy
        middle, width = _peak(value, (REACH * v.sqrt()).expand(shape), ROUNDS)
        return middle, torch.minimum(width, v.sqrt())


def gauss_nodes(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes (K, ...) of Gaussians (...), and their weights (K,)."""
    z, weights = gauss_hermite(N_NODES, mean)
    return mean + variance.clamp(min=LEAST_VARIANCE).sqrt() * z.reshape(-1, *mean.dim() * [1]), weights


def even_nodes(n_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights (K,) of the trapezoidal rule for N(0, 1).

    They are closer to each other than those of Gauss-Hermite quadrature, and so resolve narrower distributions. The
    error is about exp(−½ r²) since they end at r, and exp(−2π²/h²) since their distance is h. With K h = 2r, both are
    equal if r² = π K.
    """
    reach = min(MOST_REACH, math.sqrt(math.pi * n_nodes))
    place = torch.arange(n_nodes, dtype=like.dtype, device=like.device) + 0.5
    z = reach * (2 * place / n_nodes - 1)
    return z, (-0.5 * z.square()).softmax(0)


def _peak(value: Callable[[Tensor], Tensor], reach: Tensor, n_rounds: int) -> tuple[Tensor, Tensor]:
    """Where a function of x (K, ...) with one peak between −reach and reach (...) is largest, and the peak's width.

    Every round compares some places at equal distances, and the next one goes into detail around the best of them. A
    parabola through the last three of them gives the digits that are missing.
    """
    places = torch.linspace(-1.0, 1.0, N_PLACES, dtype=reach.dtype, device=reach.device)
    places, middle, step = places.reshape(-1, *reach.dim() * [1]), torch.zeros_like(reach), reach
    for _ in range(n_rounds):
        x = middle + step * places
        middle = x.gather(0, value(x).nan_to_num(-math.inf).argmax(0, keepdim=True))[0]
        step = step / SHRINK
    below, top, above = value(middle + step * places[:: N_PLACES // 2])
    drop = (2 * top - below - above).clamp(min=torch.finfo(reach.dtype).tiny)
    change = (0.5 * (above - below) / drop).clamp(-1.0, 1.0)
    return middle + step * change, step * drop.rsqrt()


class Link:
    """The mean of a likelihood as a transformer of function values (n, P), in the user's units; and its inverse.

    It holds nothing that is learnt besides the constant, so that all members of an ensemble have the same.

    Parameters
    ----------
    likelihood : Pointwise
    """

    def __init__(self, likelihood: Pointwise):
        self.mean, self.units, self.n_features_in_ = likelihood.mean, likelihood.units, likelihood.n_outputs
        self.shift = likelihood.shift.double().cpu().numpy()

    def inverse_transform(self, f):
        """Means of function values (n, P)."""
        values = self.mean(torch.from_numpy(np.clip(f, -FARTHEST, FARTHEST) + self.shift)).numpy()
        return values * np.asarray(self.units.scale) + np.asarray(self.units.shift)

    def transform(self, y):
        """Function values of means (n, P), by halving intervals."""
        low, high = np.full(y.shape, -FARTHEST), np.full(y.shape, FARTHEST)
        rising = self.inverse_transform(low) < self.inverse_transform(high)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            below = (self.inverse_transform(middle) < y) == rising
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return high
