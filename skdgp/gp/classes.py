"""Likelihoods for classification: probabilities of the classes, given function values.

Two classes share one function (:class:`Bernoulli`). Three or more have one function each, and the largest value decides
(:class:`RobustMax`). Expectations over Gaussian function values have no closed form, and quadrature computes them.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from .argmax import probabilities_of_largest, probability_of_largest
from .likelihoods import Likelihood
from .linalg import being_recorded
from .special import N_NODES, gauss_hermite, graded, log_ndtr

_SQRT_2PI = math.sqrt(2 * math.pi)

#: Variance from which on Gauss-Hermite quadrature of log Φ has a relative error of more than 1e-6 (3e-6 in gradients).
_BENT = 2.5

#: Distance of the mean from the bend, in deviations, from which on the error is small in spite of that.
_UNBENT = 6.5

#: Number of deviations to either side that :func:`~skdgp.gp.special.graded` nodes cover. log Φ grows as f² in its tail.
_REACH = 8.0


class Classification(Likelihood):
    """Likelihood of K classes. Targets (B, 1) are the numbers of the classes, from 0 on."""

    base_kind = "classes"

    #: Variance of the Gaussian noise that is added to function values before they decide on the class.
    noise: ClassVar[float]

    def for_blend(self) -> Likelihood:
        """The same with a temperature."""
        return Tempered(self)

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y = c | f) N(f | mean, variance) df for all classes c, of shape (S, B, K)."""
        raise NotImplementedError


class Bernoulli(Classification):
    """Two classes with the probit link: p(y = 1 | f) = Φ(f) (AVDGP Eq. 2.5)."""

    stackable = True

    noise = 1.0

    def __init__(self) -> None:
        super().__init__(1)

    def regressands(self, y: Tensor) -> Tensor:
        """Targets of least squares (N, 1): −1 and 1 for the two classes."""
        return 2.0 * y - 1.0

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log Φ(±f), (S, B), by quadrature with a relative or absolute error of at most 1e-5.

        Gauss-Hermite nodes are too far apart if log Φ bends sharply within the width of N(mean, variance). Then nodes
        crowd around the bend, which is at f = 0.
        """
        sign = (2.0 * y - 1.0)[..., 0].unsqueeze(-2)  # (1, B)
        m, s = sign * mean[..., 0], variance[..., 0].sqrt()  # (S, B)
        bent = (s.square() > _BENT) & (m.abs() < _UNBENT * s)
        plain = _mean_log_ndtr(m, s, *gauss_hermite(N_NODES, mean))
        if being_recorded(mean):
            return torch.where(bent, _mean_log_ndtr(m, s, *_around_the_bend(m, s)), plain)
        rows = bent.nonzero(as_tuple=True)
        if not len(rows[0]):
            return plain
        m, s = m[rows], s[rows]
        return plain.index_put(rows, _mean_log_ndtr(m, s, *_around_the_bend(m, s)))

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log Φ(±m / √(1 + v)), in closed form."""
        sign = (2.0 * y - 1.0).unsqueeze(-3)
        return log_ndtr(sign * mean * (1.0 + variance).rsqrt())[..., 0]

    def response(self, f: Tensor) -> Tensor:
        """Probabilities Φ(∓f), (S, B, 2)."""
        return torch.special.ndtr(torch.cat([-f, f], dim=-1))

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Classification.log_probabilities`."""
        f = mean * (1.0 + variance).rsqrt()  # (S, B, 1)
        return log_ndtr(torch.cat([-f, f], dim=-1))


class Tempered(Classification):
    """Likelihood in which f/τ and Gaussian noise of variance one decide on the class.

    τ is a temperature: the larger it is, the closer are the probabilities of all classes to each other. It is fitted to
    held-out rows. With τ = 1 and two classes this is the same as ``likelihood``.

    Parameters
    ----------
    likelihood : Classification
        The likelihood that is given f/τ and the noise. It is not trained any more.
    """

    noise = 1.0
    likelihood: Classification

    def __init__(self, likelihood: Classification):
        super().__init__(likelihood.n_outputs)
        self.likelihood = likelihood
        self.log_square = nn.Parameter(torch.zeros(1, device="cpu", dtype=torch.float32), requires_grad=False)  # log τ²

    def numbers_per_row(self, n_samples: int) -> int:
        """See :meth:`Likelihood.numbers_per_row`."""
        return self.likelihood.numbers_per_row(n_samples)

    def regressands(self, y: Tensor) -> Tensor:
        """See :meth:`Likelihood.regressands`."""
        return self.likelihood.regressands(y)

    def calibrated(self) -> list[nn.Parameter]:
        """The parameter log τ²."""
        return [self.log_square]

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Likelihood.log_predictive`."""
        return self.likelihood.log_predictive(y, *self._tempered(mean, variance))

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Classification.log_probabilities`."""
        return self.likelihood.log_probabilities(*self._tempered(mean, variance))

    def response(self, f: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return self.log_probabilities(f, torch.zeros_like(f)).exp()

    def _tempered(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of f/τ, with the noise added that the inner likelihood does not have itself."""
        square = self.log_square.exp().to(mean)
        return mean * square.rsqrt(), variance / square + (self.noise - self.likelihood.noise)


def _mean_log_ndtr(mean: Tensor, deviation: Tensor, nodes: Tensor, weights: Tensor) -> Tensor:
    """E log Φ(f) for means and deviations (...) by nodes and weights (K,) or (..., K)."""
    value = log_ndtr(mean[..., None] + deviation[..., None] * nodes)  # (..., K)
    return (value * weights).sum(-1)


@torch.no_grad()
def _around_the_bend(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes z and weights, (..., K), for E g(mean + deviation z) with z ~ N(0, 1), if g(f) bends at f = 0."""
    low, high = mean - _REACH * deviation, mean + _REACH * deviation
    f, weights = graded(low, high)
    z = (f - mean[..., None]) / deviation[..., None]
    return z, weights * (-0.5 * z.square()).exp() / (_SQRT_2PI * deviation[..., None])


class RobustMax(Classification):
    """The class with the largest function value, or with probability ε any other class.

    p(y = c | f) = 1 − ε if c = argmax f, else ε/(K − 1) (Hernández-Lobato et al., 2011), so that all
    integrals follow from P_c = P(argmax f = c) = ∫ N(f_c | m_c, v_c) Π_{j≠c} Φ((f_c − m_j)/√v_j) df_c; see
    :func:`~skdgp.gp.argmax.probability_of_largest`.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float, default=1e-3
        Probability that the class is not the one with the largest value.
    """

    stackable = True

    noise = 0.0

    def __init__(self, n_classes: int, *, epsilon: float = 1e-3):
        super().__init__(n_classes)
        self.log_hit = math.log1p(-epsilon)
        self.log_miss = math.log(epsilon / (n_classes - 1))

    def regressands(self, y: Tensor) -> Tensor:
        """Targets of least squares (N, K): a column for each class, with ones in its rows and zeros elsewhere."""
        return (y[:, :1] == torch.arange(self.n_outputs, device=y.device)).to(y)

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the integrand of P_c, for each row."""
        return n_samples * N_NODES * self.n_outputs

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """P_y log(1 − ε) + (1 − P_y) log(ε/(K − 1))."""
        return self.log_miss + (self.log_hit - self.log_miss) * self._wins(y, mean, variance)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log[P_y (1 − ε) + (1 − P_y) ε/(K − 1)]."""
        hit, miss = math.exp(self.log_hit), math.exp(self.log_miss)
        return torch.log(miss + (hit - miss) * self._wins(y, mean, variance))

    def response(self, f: Tensor) -> Tensor:
        """Probabilities (S, B, K): 1 − ε for the class with the largest value; the others share ε equally."""
        hit, miss = math.exp(self.log_hit), math.exp(self.log_miss)
        largest = f.detach().argmax(-1, keepdim=True)
        return torch.full_like(f, miss, requires_grad=False).scatter_(-1, largest, hit)

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Classification.log_probabilities`. The P_c add up to 1 ± 5e-5 K, and are then normalised."""
        hit, miss = math.exp(self.log_hit), math.exp(self.log_miss)
        wins = probabilities_of_largest(mean, variance.sqrt())
        return torch.log(miss + (hit - miss) * wins / wins.sum(-1, keepdim=True))

    def _wins(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Probabilities P_y, (S, B), that the class y has the largest function value."""
        index = y.long().unsqueeze(-3).expand(*mean.shape[:-1], 1)
        return probability_of_largest(mean, variance.sqrt(), index)
