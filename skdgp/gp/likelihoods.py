"""Likelihoods p(y | f): what a layer's last function values say about the targets."""

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .special import gauss_hermite, log_ndtr

_LOG_2PI = math.log(2 * math.pi)


#: Nodes of Gauss-Hermite quadrature for expectations that have no closed form.
N_NODES = 20

#: Stands for a probability that has underflowed.
_TINY = 1e-30


class Likelihood(nn.Module):
    """Link between the function values of the last layer and the targets."""

    n_outputs: int  # P, function values per row

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the largest tensor that prediction makes, for each row."""
        return n_samples * self.n_outputs

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f) over f ~ N(mean, variance), summed over outputs.

        Parameters
        ----------
        y : Tensor of shape (B, P)
        mean, variance : Tensors of shape (S, B, P)

        Returns
        -------
        Tensor of shape (S, B)
        """
        raise NotImplementedError

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y | f) N(f | mean, variance) df, summed over outputs; shapes as above."""
        raise NotImplementedError


class Gaussian(Likelihood):
    """y = f + noise of one variance per output, independent between outputs.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    variance : float, default=0.01
        Initial noise variance.
    floor : float or Tensor of shape (P,), default=1e-6
        What the noise variance never falls below.
    """

    floor: Tensor

    def __init__(self, n_outputs: int, *, variance: float = 0.01, floor: float | Tensor = 1e-6):
        super().__init__()
        self.n_outputs = n_outputs
        self.log_excess = nn.Parameter(torch.full((n_outputs,), math.log(variance)))
        self.register_buffer("floor", torch.as_tensor(floor, dtype=self.log_excess.dtype).expand(n_outputs).clone())

    @property
    def variance(self) -> Tensor:
        """Noise variances, of shape (P,)."""
        return self.floor + self.log_excess.exp()

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """−½ Σ_p [((y − m)² + v)/σ² + log 2πσ²]."""
        noise = self.variance
        return -0.5 * (((y - mean).square() + variance) / noise + noise.log() + _LOG_2PI).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log Π_p N(y | m, v + σ²)."""
        total = variance + self.variance
        return -0.5 * ((y - mean).square() / total + total.log() + _LOG_2PI).sum(-1)


class Classification(Likelihood):
    """Probabilities of K classes; targets (B, 1) are the classes' numbers from 0 on."""

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y = c | f) N(f | mean, variance) df for all classes c, of shape (S, B, K)."""
        raise NotImplementedError


class Bernoulli(Classification):
    """Two classes with the probit link: p(y = 1 | f) = Φ(f) (AVDGP Eq. 2.5)."""

    n_outputs = 1

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log Φ(±f) by Gauss-Hermite quadrature."""
        sign = (2.0 * y - 1.0)[..., 0]  # (B,)
        nodes, weights = gauss_hermite(N_NODES, mean)
        f = mean + variance.sqrt() * nodes  # (S, B, K)
        return log_ndtr(sign[:, None] * f) @ weights

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log Φ(±m / √(1 + v)), in closed form."""
        sign = 2.0 * y - 1.0
        return log_ndtr(sign * mean * (1.0 + variance).rsqrt())[..., 0]

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Classification.log_probabilities`."""
        f = mean * (1.0 + variance).rsqrt()  # (S, B, 1)
        return log_ndtr(torch.cat([-f, f], dim=-1))


class RobustMax(Classification):
    """The class is the largest function value's, but for a slip of probability ε to any other one.

    p(y = c | f) = 1 − ε if c = argmax f, else ε/(K − 1) (Hernández-Lobato et al., 2011), so that all
    integrals follow from P_c = P(argmax f = c) = ∫ N(f_c | m_c, v_c) Π_{j≠c} Φ((f_c − m_j)/√v_j) df_c.

    Parameters
    ----------
    n_classes : int
        K, at least 2.
    epsilon : float, default=1e-3
        Probability of a slip.
    """

    def __init__(self, n_classes: int, *, epsilon: float = 1e-3):
        super().__init__()
        self.n_outputs = n_classes
        self.log_hit = math.log1p(-epsilon)
        self.log_miss = math.log(epsilon / (n_classes - 1))

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

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """See :meth:`Classification.log_probabilities`; quadrature leaves their sum a little off one."""
        numbers = mean.new_tensor(range(self.n_outputs))
        classes = [self.log_predictive(number.expand(mean.shape[1], 1), mean, variance) for number in numbers]
        return torch.stack(classes, dim=-1).log_softmax(-1)

    def _wins(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """P_y, of shape (S, B)."""
        return _ProbabilityOfLargest.apply(mean, variance.sqrt(), y.long().expand(len(mean), -1, -1))


class _ProbabilityOfLargest(torch.autograd.Function):
    """P_c = Σ_n w_n Π_{j≠c} Φ(x_nj), x_nj = (f_n − m_j)/s_j, at the nodes f_n = m_c + s_c z_n.

    With G_nj = w_n φ(x_nj) Π_{i≠c,j} Φ(x_ni) / s_j the gradients are −Σ_n G_nj for m_j, −Σ_n x_nj G_nj for
    s_j, and Σ_nj G_nj and Σ_nj z_n G_nj more for m_c and s_c. They are summed over nodes in the forward
    pass: what has to wait for the backward one is then no larger than the inputs.
    """

    @staticmethod
    def forward(ctx, mean: Tensor, deviation: Tensor, index: Tensor) -> Tensor:
        nodes, weights = gauss_hermite(N_NODES, mean)
        f = mean.gather(-1, index) + deviation.gather(-1, index) * nodes  # (S, B, nodes)
        x = (f[..., None] - mean[..., None, :]).div_(deviation[..., None, :])  # (S, B, nodes, K)
        # The integral is wanted to an absolute precision, which 1 + erf has; Φ > 0 may be divided by.
        ndtr = x.mul(math.sqrt(0.5)).erf_().add_(1.0).mul_(0.5).clamp_(min=_TINY)
        own = index[..., None].expand(*f.shape, 1)
        ndtr.scatter_(-1, own, 1.0)
        product = ndtr.prod(-1).mul_(weights)  # (S, B, nodes)
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            G = x.square().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi)).div_(ndtr).mul_(product[..., None])
            G.div_(deviation[..., None, :]).scatter_(-1, own, 0.0)
            total = G.sum(-1)
            mean_grad = G.sum(-2).neg_().scatter_(-1, index, total.sum(-1, keepdim=True))
            deviation_grad = x.mul_(G).sum(-2).neg_().scatter_(-1, index, (total @ nodes)[..., None])
            ctx.save_for_backward(mean_grad, deviation_grad)
        return product.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, bar: Tensor) -> tuple[Tensor, Tensor, None]:
        mean_grad, deviation_grad = ctx.saved_tensors
        return mean_grad * bar[..., None], deviation_grad * bar[..., None], None
