"""Likelihoods p(y | f): what a layer's last function values say about the targets, and all that follows from it.

A likelihood is asked for everything that depends on it, so that no other part of the house needs to know which one it
is: how targets are checked and scaled, where training starts, what held-out rows correct, the expectations that
training maximises, and what the function values' distribution says of observations, in the user's units.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..distributions import PredictiveDistribution
from .autograd import Function
from .linalg import being_recorded
from .special import MOST_NODES, gauss_hermite, graded, log_ndtr
from .units import Units

_LOG_2PI = math.log(2 * math.pi)
_SQRT_2PI = math.sqrt(2 * math.pi)

#: Nodes of Gauss-Hermite quadrature for expectations that have no closed form.
N_NODES = 20

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

#: Excess of the noise variance over its floor that training starts from, in units of the targets' variance.
INITIAL_EXCESS = 0.05

#: Smallest noise variance in the same units.
NOISE_FLOOR = 1e-6

#: The same of predictions, in float64, by models that were not trained in float32.
LEAST_NOISE = 1e-12


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

    def regressands(self, y: Tensor) -> Tensor:
        """What least squares learns from in place of encoded targets (N, P), of shape (N, n_outputs)."""
        return y

    def calibrated(self) -> list[nn.Parameter]:
        """Logarithms to which held-out rows add a number, the same for all and for all members of an ensemble."""
        return []

    def refine(self) -> None:
        """Allow what only float64 can say, for a model that is not trained by steps."""

    def log_jacobian(self) -> float:
        """Logarithm of the density of a target in the user's units over that of its encoding."""
        return 0.0

    def response(self, f: Tensor) -> Tensor:
        """What function values (S, B, P) mean to the user, (S, B, K): in the units of targets, or probabilities."""
        raise NotImplementedError

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

    def response(self, f: Tensor) -> Tensor:
        """Function values in the user's units."""
        return f * f.new_tensor(self.units.scale) + f.new_tensor(self.units.shift)

    def draw_noise(self, shape: tuple[int, ...], rng: np.random.RandomState) -> np.ndarray:
        """Noise of observations, in the user's units, of a shape that ends with P."""
        log_weight, variance = (column.detach().double().cpu().numpy() for column in self.noise())
        deviation = np.sqrt(variance) * np.asarray(self.units.scale)  # (K, P)
        share = np.exp(log_weight)
        component = rng.choice(len(share), size=shape, p=share / share.sum())
        return deviation[component, np.arange(shape[-1])] * rng.standard_normal(shape)

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
        self.log_excess = nn.Parameter(torch.full((n_outputs,), math.log(excess), device="cpu", dtype=torch.float32))
        lowest = torch.as_tensor(floor, dtype=torch.float32, device="cpu")
        self.register_buffer("floor", lowest.expand(n_outputs).clone())

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
        self.floor.copy_(self.floor.new_tensor(floor))

    def refine(self) -> None:
        """Lower the floor, even where targets look rounded: rows that were held out have shown what can be known."""
        self.floor.fill_(LEAST_NOISE)

    def calibrated(self) -> list[nn.Parameter]:
        """The noise's excess over its floor."""
        return [self.log_excess]

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """−½ Σ_p [((y − m)² + v)/σ² + log 2πσ²]."""
        noise = self.variance[..., None, None, :]
        return -0.5 * (((y.unsqueeze(-3) - mean).square() + variance) / noise + noise.log() + _LOG_2PI).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log Π_p N(y | m, v + σ²)."""
        total = variance + self.variance[..., None, None, :]
        return -0.5 * ((y.unsqueeze(-3) - mean).square() / total + total.log() + _LOG_2PI).sum(-1)


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
