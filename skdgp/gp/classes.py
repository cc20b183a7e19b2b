"""Likelihoods for classification: probabilities of the classes, given function values.

Two classes share one function (:class:`Bernoulli`). Three or more have one function each, and the largest value decides
(:class:`RobustMax`). Expectations over Gaussian function values have no closed form. Most of this file computes them
precisely, also if variances are very different.
"""

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .autograd import Function
from .likelihoods import Likelihood
from .linalg import being_recorded
from .special import MOST_NODES, N_NODES, gauss_hermite, graded, log_ndtr

_SQRT_2PI = math.sqrt(2 * math.pi)

#: Replaces a probability that has underflowed to zero.
_TINY = 1e-30

#: Variance from which on Gauss-Hermite quadrature of log Φ has a relative error of more than 1e-6 (3e-6 in gradients);
#: and the distance of the mean from the bend, in deviations, from which on the error is small in spite of that.
_BENT, _UNBENT = 2.5, 6.5

#: Number of deviations to either side that :func:`~skdgp.gp.special.graded` nodes cover: for E log Φ, since log Φ grows
#: as f² in its tail, and for P_c.
_REACH_LOG_NDTR, _REACH = 8.0, 5.0

#: Sum of (v_c/v_j)² from which on the product of steps is too steep for Gauss-Hermite quadrature; see :func:`_steep`.
_STEEP = 7.0

#: Number of entries that a tensor may always have, even if it is larger than in Gauss-Hermite quadrature.
_FEW_NUMBERS = 2**20


class Classification(Likelihood):
    """Likelihood of K classes. Targets (B, 1) are the numbers of the classes, from 0 on."""

    #: Variance of the Gaussian noise that is added to function values before they decide on the class.
    noise: ClassVar[float]

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y = c | f) N(f | mean, variance) df for all classes c, of shape (S, B, K)."""
        raise NotImplementedError


class Bernoulli(Classification):
    """Two classes with the probit link: p(y = 1 | f) = Φ(f) (AVDGP Eq. 2.5)."""

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
        return mean * square.rsqrt(), variance / square + (self.noise - cast(Classification, self.likelihood).noise)


def _mean_log_ndtr(mean: Tensor, deviation: Tensor, nodes: Tensor, weights: Tensor) -> Tensor:
    """E log Φ(f) for means and deviations (...) by nodes and weights (K,) or (..., K)."""
    value = log_ndtr(mean[..., None] + deviation[..., None] * nodes)  # (..., K)
    return (value * weights).sum(-1)


@torch.no_grad()
def _around_the_bend(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes z and weights, (..., K), for E g(mean + deviation z) with z ~ N(0, 1), if g(f) bends at f = 0."""
    low, high = mean - _REACH_LOG_NDTR * deviation, mean + _REACH_LOG_NDTR * deviation
    f, weights = graded(low, high)
    z = (f - mean[..., None]) / deviation[..., None]
    return z, weights * (-0.5 * z.square()).exp() / (_SQRT_2PI * deviation[..., None])


class RobustMax(Classification):
    """The class with the largest function value, or with probability ε any other class.

    p(y = c | f) = 1 − ε if c = argmax f, else ε/(K − 1) (Hernández-Lobato et al., 2011), so that all
    integrals follow from P_c = P(argmax f = c) = ∫ N(f_c | m_c, v_c) Π_{j≠c} Φ((f_c − m_j)/√v_j) df_c.

    The error of P_c is at most 5e-5 for any means, and for variances up to 1e16 times another. The error of its
    gradients is at most 2e-4: for m_j and √v_j in units of 1/√(v_c + v_j), and for m_c and √v_c in the largest such
    unit.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float, default=1e-3
        Probability that the class is not the one with the largest value.
    """

    noise = 0.0

    def __init__(self, n_classes: int, *, epsilon: float = 1e-3):
        super().__init__(n_classes)
        self.log_hit = math.log1p(-epsilon)
        self.log_miss = math.log(epsilon / (n_classes - 1))

    def regressands(self, y: Tensor) -> Tensor:
        """Targets of least squares (N, K): a column for each class, with ones in its rows and zeros elsewhere."""
        return nn.functional.one_hot(y[:, 0].long(), self.n_outputs).to(y)

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
        """See :meth:`Classification.log_probabilities`. Probabilities add up to 1 ± 5e-5 K, and are then normalised."""
        numbers = mean.new_tensor(range(self.n_outputs))
        classes = [self.log_predictive(number.expand(mean.shape[1], 1), mean, variance) for number in numbers]
        return torch.stack(classes, dim=-1).log_softmax(-1)

    def _wins(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Probabilities P_y, (S, B), that the class y has the largest function value."""
        index = y.long().unsqueeze(-3).expand(*mean.shape[:-1], 1)
        return _ProbabilityOfLargest.apply(mean, variance.sqrt(), index)[0]


class _ProbabilityOfLargest(Function):
    """P_c = Σ_n w_n Π_{j≠c} Φ(x_nj), x_nj = (f_n − m_j)/s_j, at the nodes f_n = m_c + s_c z_n.

    With G_nj = w_n φ(x_nj) Π_{i≠c,j} Φ(x_ni) / s_j the gradients are −Σ_n G_nj for m_j and −Σ_n x_nj G_nj for s_j of
    the other classes j, and Σ_nj G_nj for m_c and Σ_nj z_n G_nj for s_c. The forward pass computes these sums over
    nodes, so that the tensors kept for the backward pass are no larger than the inputs.

    Nodes are those of Gauss-Hermite quadrature, but rows with :func:`_steep` factors have :func:`graded` nodes. While a
    CUDA graph is recorded, numbers cannot be read, and so all rows have graded nodes.
    """

    @staticmethod
    def forward(mean: Tensor, deviation: Tensor, index: Tensor) -> tuple[Tensor | None, ...]:
        wanted = mean.requires_grad or deviation.requires_grad
        m, s, c = (each.flatten(0, -2) for each in (mean, deviation, index))  # S·B rows
        if being_recorded(mean):
            sums = _by_parts(m, s, c, wanted)
        elif not (steep := _steep(m, s, c)).any():
            sums = _by_gauss_hermite(m, s, c, wanted)
        else:
            easy, hard = (rows.nonzero()[:, 0] for rows in (~steep, steep))
            place = torch.cat([easy, hard]).argsort()
            pairs = zip(
                _by_gauss_hermite(m[easy], s[easy], c[easy], wanted),
                _by_parts(m[hard], s[hard], c[hard], wanted),
                strict=True,
            )
            sums = [torch.cat(pair)[place] for pair in pairs]
        value, *gradients = (each.unflatten(0, mean.shape[:-1]) for each in sums)
        return value, *(gradients or (None, None))

    @staticmethod
    def setup_context(ctx, inputs, output):
        gradients = output[1:]
        ctx.mark_non_differentiable(*(each for each in gradients if each is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*gradients)

    @staticmethod
    @once_differentiable
    def backward(ctx, bar: Tensor | None, *_) -> tuple[Tensor | None, ...]:
        if bar is None:
            return None, None, None
        mean_grad, deviation_grad = ctx.saved_tensors
        return mean_grad * bar[..., None], deviation_grad * bar[..., None], None


def _steep(mean: Tensor, deviation: Tensor, index: Tensor) -> Tensor:
    """Whether Π_j Φ((f − m_j)/s_j) is too steep for Gauss-Hermite nodes of N(f | m_c, v_c), for rows (R, K).

    20 nodes are 0.7 s_c apart, and the error for one factor in the middle is about exp(−2π² v_j / 0.5 v_c). That is
    1e-4 of the gradient for s_j = 0.6 s_c. n factors of the same width have a product as steep as one whose v_j is √n
    times smaller, hence the sum of (v_c/v_j)². A factor whose step is a distance δ from m_c matters less, by the factor
    exp(−½ δ²/v_c), hence v_j + δ²/120. Factors far below another one do not matter at all, since the product is zero
    there already.
    """
    lower = torch.sub(mean, deviation, alpha=7.0).amax(-1, keepdim=True)
    hidden = torch.sub(mean, deviation, alpha=2.5) < lower
    offset = mean - mean.gather(-1, index)
    ratio = deviation.gather(-1, index).square() / deviation.square().addcmul_(offset, offset, value=1 / 120)
    return ratio.square_().masked_fill_(hidden, 0.0).sum(-1) > 1.0 + _STEEP  # 1 for c itself


def _by_gauss_hermite(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """P_c (R,) by nodes around m_c, and if wanted its gradients (R, K), for rows of means and deviations (R, K)."""
    nodes, weights = gauss_hermite(N_NODES, mean)
    f = mean.gather(-1, index) + deviation.gather(-1, index) * nodes  # (R, nodes)
    x = (f[..., None] - mean[..., None, :]).div_(deviation[..., None, :])  # (R, nodes, K)
    return _sums_over_nodes(x, nodes, weights, deviation, index, gradients)


def _by_parts(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """:func:`_by_graded_nodes` by parts, so that tensors are no larger than for Gauss-Hermite nodes and all rows."""
    n_rows = max(N_NODES * len(mean), _FEW_NUMBERS // mean.shape[-1]) // MOST_NODES
    parts = zip(*(each.split(max(1, n_rows)) for each in (mean, deviation, index)), strict=True)
    sums = [_by_graded_nodes(m, s, c, gradients) for m, s, c in parts]
    return [torch.cat(each) for each in zip(*sums, strict=True)]


def _by_graded_nodes(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """The same as :func:`_by_gauss_hermite` for any variances, by nodes that crowd where the others' product rises.

    Below f₀ = max_j (m_j − 5 s_j) the integrand is zero. All factors have begun to rise there, so that a factor which
    is still less than one at f₀ + d has s_j > d/10. The integrand is therefore smooth enough for graded nodes, in units
    of s₀, the deviation of the class that determines f₀. Nodes are densest at m₀ − 2 s₀, three of these units above f₀.
    All distances are measured from there, since a narrow factor would be lost in the rounding errors of f itself.
    """
    first = (mean - _REACH * deviation).argmax(-1, keepdim=True)
    scale = deviation.gather(-1, first) / deviation  # s₀/s_j, (R, K)
    start = (mean.gather(-1, first) - mean - (_REACH - 3.0) * deviation.gather(-1, first)) / deviation  # x_j, (R, K)
    own_scale, own_start = scale.gather(-1, index), start.gather(-1, index)  # (R, 1)
    high = ((_REACH - own_start) / own_scale)[:, 0].clamp(min=-3.0)  # m_c + 5 s_c, which may lie below f₀
    low = torch.full_like(high, -3.0)  # f₀
    d, weights = graded(low, high)  # (R, nodes)
    z = own_start + own_scale * d
    weights = weights * own_scale * (-0.5 * z.square()).exp() / _SQRT_2PI
    x = torch.addcmul(start[:, None], scale[:, None], d[..., None])  # (R, nodes, K)
    return _sums_over_nodes(x, z, weights, deviation, index, gradients)


def _sums_over_nodes(
    x: Tensor, z: Tensor, weights: Tensor, deviation: Tensor, index: Tensor, gradients: bool
) -> list[Tensor]:
    """The formulas of :class:`_ProbabilityOfLargest` for x (R, nodes, K), which is overwritten."""
    # 1 + erf has the absolute precision that the integral needs. Φ is kept above zero, since G is divided by it.
    ndtr = x.mul(math.sqrt(0.5)).erf_().add_(1.0).mul_(0.5).clamp_(min=_TINY)
    own = index[:, None].expand(-1, x.shape[1], -1)
    ndtr.scatter_(-1, own, 1.0)
    product = ndtr.prod(-1).mul_(weights)  # (R, nodes)
    if not gradients:
        return [product.sum(-1)]
    G = x.square().mul_(-0.5).exp_().mul_(1 / _SQRT_2PI).div_(ndtr).mul_(product[..., None])
    G.div_(deviation[:, None]).scatter_(-1, own, 0.0)
    total = G.sum(-1)
    mean_grad = G.sum(-2).neg_().scatter_(-1, index, total.sum(-1, keepdim=True))
    own_grad = (total * z).sum(-1, keepdim=True)
    deviation_grad = x.mul_(G).sum(-2).neg_().scatter_(-1, index, own_grad)
    return [product.sum(-1), mean_grad, deviation_grad]
