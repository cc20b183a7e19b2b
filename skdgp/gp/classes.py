"""Likelihoods of classes: what function values say of them."""

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

#: Stands for a probability that has underflowed.
_TINY = 1e-30

#: Variance from which on Gauss-Hermite quadrature of log Φ is off by more than 1e-6 of its value (and its gradients by
#: 3e-6), and how many deviations off its bend the mean must then be for that not to matter.
_BENT, _UNBENT = 2.5, 6.5

#: How many deviations :func:`~skdgp.gp.special.graded` nodes reach for E log Φ, whose tails grow as f², and for P_c.
_REACH_LOG_NDTR, _REACH = 8.0, 5.0

#: Sum of (v_c/v_j)² from which on the product of steps is too steep for Gauss-Hermite quadrature; see :func:`_steep`.
_STEEP = 7.0

#: Numbers that a tensor may always have, though a plain rule's would be smaller.
_FEW_NUMBERS = 2**20


class Classification(Likelihood):
    """Probabilities of K classes; targets (B, 1) are the classes' numbers from 0 on."""

    #: Variance of the Gaussian noise that function values have before they decide on the class.
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
        """Minus one and one."""
        return 2.0 * y - 1.0

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log Φ(±f) by quadrature, to 1e-5 of its value or 1e-5.

        The nodes are Gauss-Hermite's, but where log Φ bends sharply for the width of N(mean, variance). There they
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
        """Φ(∓f)."""
        return torch.special.ndtr(torch.cat([-f, f], dim=-1))

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Classification.log_probabilities`."""
        f = mean * (1.0 + variance).rsqrt()  # (S, B, 1)
        return log_ndtr(torch.cat([-f, f], dim=-1))


class Tempered(Classification):
    """Classes decided by f/τ and Gaussian noise of variance one: a large τ makes all of them alike probable.

    τ is a temperature, which held-out rows set. With τ = 1 and two classes this is the likelihood that it is made of.

    Parameters
    ----------
    likelihood : Classification
        What decides on the class; not to be trained.
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
        """log τ²."""
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
        """Moments of f/τ, and of the noise that the likelihood within has none of."""
        square = self.log_square.exp().to(mean)
        return mean * square.rsqrt(), variance / square + (self.noise - cast(Classification, self.likelihood).noise)


def _mean_log_ndtr(mean: Tensor, deviation: Tensor, nodes: Tensor, weights: Tensor) -> Tensor:
    """E log Φ(f) for means and deviations (...) by nodes and weights (K,) or (..., K)."""
    value = log_ndtr(mean[..., None] + deviation[..., None] * nodes)  # (..., K)
    return (value * weights).sum(-1)


@torch.no_grad()
def _around_the_bend(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes z and weights, (..., K), of E g(mean + deviation z) for z ~ N(0, 1), where g(f) bends at f = 0."""
    low, high = mean - _REACH_LOG_NDTR * deviation, mean + _REACH_LOG_NDTR * deviation
    f, weights = graded(low, high)
    z = (f - mean[..., None]) / deviation[..., None]
    return z, weights * (-0.5 * z.square()).exp() / (_SQRT_2PI * deviation[..., None])


class RobustMax(Classification):
    """The class is the largest function value's, but for a slip of probability ε to any other one.

    p(y = c | f) = 1 − ε if c = argmax f, else ε/(K − 1) (Hernández-Lobato et al., 2011), so that all
    integrals follow from P_c = P(argmax f = c) = ∫ N(f_c | m_c, v_c) Π_{j≠c} Φ((f_c − m_j)/√v_j) df_c.

    P_c is correct to 5e-5 for any means, and variances up to 1e16 times another. Its gradients for m_j and √v_j are
    correct to 2e-4 in units of 1/√(v_c + v_j), and those for m_c and √v_c in the largest such unit.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float, default=1e-3
        Probability of a slip.
    """

    noise = 0.0

    def __init__(self, n_classes: int, *, epsilon: float = 1e-3):
        super().__init__(n_classes)
        self.log_hit = math.log1p(-epsilon)
        self.log_miss = math.log(epsilon / (n_classes - 1))

    def regressands(self, y: Tensor) -> Tensor:
        """A column for each class, of ones in its rows and zeros elsewhere."""
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
        """1 − ε for the class of the largest value, and what is left for the others."""
        hit, miss = math.exp(self.log_hit), math.exp(self.log_miss)
        largest = f.detach().argmax(-1, keepdim=True)
        return torch.full_like(f, miss, requires_grad=False).scatter_(-1, largest, hit)

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Classification.log_probabilities`; before they are normalised they add up to 1 ± 5e-5 K."""
        numbers = mean.new_tensor(range(self.n_outputs))
        classes = [self.log_predictive(number.expand(mean.shape[1], 1), mean, variance) for number in numbers]
        return torch.stack(classes, dim=-1).log_softmax(-1)

    def _wins(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """P_y, of shape (S, B)."""
        index = y.long().unsqueeze(-3).expand(*mean.shape[:-1], 1)
        return _ProbabilityOfLargest.apply(mean, variance.sqrt(), index)[0]


class _ProbabilityOfLargest(Function):
    """P_c = Σ_n w_n Π_{j≠c} Φ(x_nj), x_nj = (f_n − m_j)/s_j, at the nodes f_n = m_c + s_c z_n.

    With G_nj = w_n φ(x_nj) Π_{i≠c,j} Φ(x_ni) / s_j the gradients are −Σ_n G_nj for m_j, −Σ_n x_nj G_nj for
    s_j, and Σ_nj G_nj and Σ_nj z_n G_nj more for m_c and s_c. They are summed over nodes in the forward
    pass: what has to wait for the backward one is then no larger than the inputs.

    The nodes are Gauss-Hermite's, but for rows with :func:`_steep` factors, where they are :func:`graded`. While a
    CUDA graph is recorded nobody knows which rows these are, and all have graded nodes.
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
    times smaller, hence the sum of (v_c/v_j)². A factor δ off m_c matters less by exp(−½ δ²/v_c), hence v_j + δ²/120.
    Factors far below another one have no say at all: there the product is zero already.
    """
    lower = torch.sub(mean, deviation, alpha=7.0).amax(-1, keepdim=True)
    hidden = torch.sub(mean, deviation, alpha=2.5) < lower
    offset = mean - mean.gather(-1, index)
    ratio = deviation.gather(-1, index).square() / deviation.square().addcmul_(offset, offset, value=1 / 120)
    return ratio.square_().masked_fill_(hidden, 0.0).sum(-1) > 1.0 + _STEEP  # 1 for c itself


def _by_gauss_hermite(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """P_c (R,) by nodes around m_c, and its gradients (R, K) on demand, for rows of means and deviations (R, K)."""
    nodes, weights = gauss_hermite(N_NODES, mean)
    f = mean.gather(-1, index) + deviation.gather(-1, index) * nodes  # (R, nodes)
    x = (f[..., None] - mean[..., None, :]).div_(deviation[..., None, :])  # (R, nodes, K)
    return _sums_over_nodes(x, nodes, weights, deviation, index, gradients)


def _by_parts(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """:func:`_by_graded_nodes` of so few rows at once that tensors are no larger than Gauss-Hermite's for all rows."""
    n_rows = max(N_NODES * len(mean), _FEW_NUMBERS // mean.shape[-1]) // MOST_NODES
    parts = zip(*(each.split(max(1, n_rows)) for each in (mean, deviation, index)), strict=True)
    sums = [_by_graded_nodes(m, s, c, gradients) for m, s, c in parts]
    return [torch.cat(each) for each in zip(*sums, strict=True)]


def _by_graded_nodes(mean: Tensor, deviation: Tensor, index: Tensor, gradients: bool) -> list[Tensor]:
    """As :func:`_by_gauss_hermite` for any variances, by nodes that crowd where the product of the others begins.

    Below f₀ = max_j (m_j − 5 s_j) the integrand is zero. Above it no factor begins any more, so that a factor which
    is not yet one at f₀ + d has s_j > d/10. The integrand is therefore as smooth as graded nodes resolve, in units of
    s₀, the deviation of the class that f₀ comes from. They are densest at m₀ − 2 s₀, three of these units above f₀.
    All is measured from there: f itself would round away a narrow factor.
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
    # The integral is wanted to an absolute precision, which 1 + erf has; Φ > 0 may be divided by.
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
