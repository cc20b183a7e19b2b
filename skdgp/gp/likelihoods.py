"""Likelihoods p(y | f): what a layer's last function values say about the targets, and all that follows from it.

A likelihood is asked for everything that depends on it, so that no other part of the house needs to know which one it
is: how targets are checked and scaled, where training starts, what held-out rows correct, the expectations that
training maximises, and what the function values' distribution says of observations, in the user's units.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..distributions import PredictiveDistribution
from .autograd import Function
from .special import gauss_hermite, log_ndtr
from .units import Units

_LOG_2PI = math.log(2 * math.pi)


#: Nodes of Gauss-Hermite quadrature for expectations that have no closed form.
N_NODES = 20

#: Stands for a probability that has underflowed.
_TINY = 1e-30

#: Excess of the noise variance over its floor that training starts from, in units of the targets' variance.
INITIAL_EXCESS = 0.05

#: Smallest noise variance in the same units.
NOISE_FLOOR = 1e-6


class Likelihood(nn.Module):
    """Link between the function values of the last layer and the targets; see the module's docstring.

    Parameters
    ----------
    n_outputs : int
        P, function values per row.
    """

    def __init__(self, n_outputs: int):
        super().__init__()
        self.n_outputs = n_outputs

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the largest tensor that prediction makes, for each row."""
        return n_samples * self.n_outputs

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Decide how targets like ``y`` (N, P), of some weight (N,), are scaled.

        ValueError if they are none of this likelihood's.
        """

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P) as the model sees them."""
        return y

    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Take initial values from some encoded targets (N, P), of some weight (N,)."""

    def calibrated(self) -> list[nn.Parameter]:
        """Logarithms to which held-out rows add a number, the same for all and for all members of an ensemble."""
        return []

    def log_jacobian(self) -> float:
        """Logarithm of the density of a target in the user's units over that of its encoding."""
        return 0.0

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f) over f ~ N(mean, variance), summed over outputs.

        Parameters
        ----------
        y : Tensor of shape (B, P)
            Encoded targets.
        mean, variance : Tensors of shape (S, B, P)

        Returns
        -------
        Tensor of shape (S, B)
        """
        raise NotImplementedError

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y | f) N(f | mean, variance) df, summed over outputs; shapes as above."""
        raise NotImplementedError


class AdditiveNoise(Likelihood):
    """y = f + noise, whose density is a Gaussian's or a mixture of K Gaussians of zero mean.

    Targets are standardised. A new kind of noise says what the mixture is, :meth:`noise`, and its expected log density;
    everything else follows.
    """

    units: Units

    def noise(self) -> tuple[Tensor, Tensor]:
        """Log weights (K,) and variances (K, P) of the mixture, independent between outputs."""
        raise NotImplementedError

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Standardise, or take the targets as they are; ValueError if that overflows."""
        self.units = Units.of(y, weight, normalize=normalize)
        if self.units.first_overflow(self.units.standardise(y)) is not None:
            raise ValueError(
                f"y overflows when it is standardised: its values reach {np.abs(y).max():.1e}. "
                "Rescale y, for instance to its logarithm."
            )

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Standardised targets."""
        if y.shape[1] != self.n_outputs:
            raise ValueError(f"y has {y.shape[1]} outputs, but the model was given {self.n_outputs}: match them.")
        return self.units.standardise(y)

    def log_jacobian(self) -> float:
        """See :meth:`Likelihood.log_jacobian`."""
        return -float(np.log(self.units.scale).sum())

    def noise_variance(self) -> np.ndarray:
        """Variances of the noise (P,), in the square of the user's units."""
        log_weight, variance = self.noise()
        return (log_weight.exp() @ variance).detach().cpu().numpy() * np.square(self.units.scale)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_p log Σ_k w_k N(y | m, v + σ_k²)."""
        log_weight, noise = self.noise()
        total = variance + noise[:, None, None]  # (K, S, B, P)
        log_density = -0.5 * ((y - mean).square() / total + total.log() + _LOG_2PI)
        return torch.logsumexp(log_density + log_weight[:, None, None, None], dim=0).sum(-1)

    def predictive(self, mean: Tensor, variance: Tensor, log_weight: Tensor, *, latent: bool) -> PredictiveDistribution:
        """Distribution of observations, or of f itself where ``latent``, in the user's units.

        Parameters
        ----------
        mean, variance : Tensors of shape (S, B, P)
        log_weight : Tensor of shape (S, 1)
            Of the S Gaussians.

        Returns
        -------
        PredictiveDistribution
            Of shape (B, P), with K·S components.
        """
        log_share, noise = (mean.new_zeros(1), mean.new_zeros(1, 1)) if latent else self.noise()
        shape = (len(noise), *mean.shape)
        means = mean.expand(shape).flatten(0, 1).double().cpu().numpy()  # (K·S, B, P)
        variances = (variance + noise[:, None, None]).flatten(0, 1).double().cpu().numpy()
        weights = (log_share[:, None] + log_weight[:, 0]).flatten().double().softmax(0).cpu().numpy()
        scale, shift = np.asarray(self.units.scale), np.asarray(self.units.shift)
        return PredictiveDistribution(means * scale + shift, variances * scale**2, weights)


class Gaussian(AdditiveNoise):
    """y = f + noise of one variance per output, independent between outputs.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    excess : float, default=INITIAL_EXCESS
        What the initial noise variance has over its floor.
    floor : float or sequence of P floats, default=NOISE_FLOOR
        What the noise variance never falls below.
    """

    floor: Tensor

    def __init__(self, n_outputs: int, *, excess: float = INITIAL_EXCESS, floor: float | Sequence[float] = NOISE_FLOOR):
        super().__init__(n_outputs)
        self.log_excess = nn.Parameter(torch.full((n_outputs,), math.log(excess)))
        self.register_buffer("floor", torch.as_tensor(floor, dtype=self.log_excess.dtype).expand(n_outputs).clone())

    @property
    def variance(self) -> Tensor:
        """Noise variances, of shape (P,), of encoded targets."""
        return self.floor + self.log_excess.exp()

    def noise(self) -> tuple[Tensor, Tensor]:
        """A single Gaussian."""
        variance = self.variance
        return variance.new_zeros(1), variance[None]

    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Where targets look rounded, the noise is never less than what rounding has added."""
        n_rows = weight.sum().item()
        floor = [max(NOISE_FLOOR, rounding_variance(column, n_rows)) for column in y.T.numpy()]
        self.floor.copy_(torch.tensor(floor))

    def calibrated(self) -> list[nn.Parameter]:
        """The noise's excess over its floor."""
        return [self.log_excess]

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """−½ Σ_p [((y − m)² + v)/σ² + log 2πσ²]."""
        noise = self.variance
        return -0.5 * (((y - mean).square() + variance) / noise + noise.log() + _LOG_2PI).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log Π_p N(y | m, v + σ²)."""
        total = variance + self.variance
        return -0.5 * ((y - mean).square() / total + total.log() + _LOG_2PI).sum(-1)


def rounding_variance(y: np.ndarray, n_rows: float | None = None) -> float:
    """Variance that rounding has added to targets, or 0 where they do not look rounded.

    ``n_rows`` is how many rows they stand for, ``len(y)`` by default: a row of weight 2 is that row twice.

    Targets that mostly repeat each other lie on a grid of some step. A density finer than the grid would
    only describe the rounding, and the predictive objective would pile it up in spikes on the grid.
    """
    values = np.unique(y)
    if len(values) < 2 or len(values) > (len(y) if n_rows is None else n_rows) / 2:
        return 0.0
    return float(np.diff(values).min() ** 2 / 12)


class Classification(Likelihood):
    """Probabilities of K classes; targets (B, 1) are the classes' numbers from 0 on."""

    def log_probabilities(self, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y = c | f) N(f | mean, variance) df for all classes c, of shape (S, B, K)."""
        raise NotImplementedError


class Bernoulli(Classification):
    """Two classes with the probit link: p(y = 1 | f) = Φ(f) (AVDGP Eq. 2.5)."""

    def __init__(self) -> None:
        super().__init__(1)

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
        super().__init__(n_classes)
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
        return _ProbabilityOfLargest.apply(mean, variance.sqrt(), y.long().expand(len(mean), -1, -1))[0]


class _ProbabilityOfLargest(Function):
    """P_c = Σ_n w_n Π_{j≠c} Φ(x_nj), x_nj = (f_n − m_j)/s_j, at the nodes f_n = m_c + s_c z_n.

    With G_nj = w_n φ(x_nj) Π_{i≠c,j} Φ(x_ni) / s_j the gradients are −Σ_n G_nj for m_j, −Σ_n x_nj G_nj for
    s_j, and Σ_nj G_nj and Σ_nj z_n G_nj more for m_c and s_c. They are summed over nodes in the forward
    pass: what has to wait for the backward one is then no larger than the inputs.
    """

    @staticmethod
    def forward(mean: Tensor, deviation: Tensor, index: Tensor) -> tuple[Tensor | None, ...]:
        nodes, weights = gauss_hermite(N_NODES, mean)
        f = mean.gather(-1, index) + deviation.gather(-1, index) * nodes  # (S, B, nodes)
        x = (f[..., None] - mean[..., None, :]).div_(deviation[..., None, :])  # (S, B, nodes, K)
        # The integral is wanted to an absolute precision, which 1 + erf has; Φ > 0 may be divided by.
        ndtr = x.mul(math.sqrt(0.5)).erf_().add_(1.0).mul_(0.5).clamp_(min=_TINY)
        own = index[..., None].expand(*f.shape, 1)
        ndtr.scatter_(-1, own, 1.0)
        product = ndtr.prod(-1).mul_(weights)  # (S, B, nodes)
        mean_grad, deviation_grad = None, None
        if mean.requires_grad or deviation.requires_grad:
            G = x.square().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi)).div_(ndtr).mul_(product[..., None])
            G.div_(deviation[..., None, :]).scatter_(-1, own, 0.0)
            total = G.sum(-1)
            mean_grad = G.sum(-2).neg_().scatter_(-1, index, total.sum(-1, keepdim=True))
            deviation_grad = x.mul_(G).sum(-2).neg_().scatter_(-1, index, (total @ nodes)[..., None])
        return product.sum(-1), mean_grad, deviation_grad

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
