"""Kernels that are composed of parts: constants, stationary, periodic and linear kernels, sums, products and powers.

Each part has numbers that are learnt between bounds, or fixed (:class:`Positive`). A part multiplies inputs by units of
its own. So its lengthscales may be in days or metres, although the layer sees standardised inputs.

A kernel is a sum of terms, and functions are drawn for each of them (:class:`Term`). A product of stationary kernels is
stationary: its frequencies are sums of frequencies, one from each. A linear factor has features. Each feature is
multiplied by a function of its own, and the products are added up.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.special import ive
from torch import Tensor, nn

from .correlations import cancels_in_float64, centred_correlation, distances, largest_square
from .devices import columns_of
from .kernels import PROFILES, Kernel, gamma_quantiles, unit_frequencies
from .waves import N_WAVES, Functions, Streams, UndrawnError, more_of_the_tail, spread, waves, weighed_rows

#: Smallest distance of an initial value from its bounds, as a share of half their range. At a bound gradients are zero.
EDGE = 1e-3

#: Largest number of features of a product of linear kernels whose functions can be drawn.
MOST_FEATURES = 2000

#: The same if each feature is multiplied by waves, of which it has :data:`.N_WAVES`.
MOST_WAVY_FEATURES = 64

#: Number of harmonics of a periodic kernel in drawn functions: nearly all that matter for lengthscales from 0.02 on.
N_HARMONICS = 200


class Positive(nn.Module):
    """Positive numbers (D, n), learnt between bounds or fixed.

    The learnt parameter p gives log θ = middle + reach tanh(p/reach). Far from the bounds a step of p changes log θ by
    the same step.

    Parameters
    ----------
    n_outputs : int
        D.
    values : sequence of float
        Initial values.
    bounds : sequence of pairs of float, or None
        Bounds of each value. None fixes the values.
    """

    stackable = True

    log_value: Tensor
    middle: Tensor
    reach: Tensor

    def __init__(self, n_outputs: int, values: Sequence[float], bounds: Sequence[tuple[float, float]] | None):
        super().__init__()
        self.fixed = bounds is None
        logs = torch.tensor(values, dtype=torch.float64, device="cpu").log().expand(n_outputs, -1).clone()
        if bounds is None:
            self.register_buffer("log_value", logs.float())
            return
        low, high = torch.tensor(bounds, dtype=torch.float64, device="cpu").log().unbind(-1)
        self.register_buffer("middle", (0.5 * (low + high)).float())
        self.register_buffer("reach", (0.5 * (high - low)).clamp(min=1e-6).float())
        self.place = nn.Parameter(torch.empty_like(logs, dtype=torch.float32))
        self.set_share(0.5 + 0.5 * (logs - self.middle) / self.reach)

    @torch.no_grad()
    def set_share(self, share: Tensor) -> None:
        """Set the numbers (D, n), whose logarithms lie at these shares of the way between their bounds."""
        place = (2.0 * share - 1.0).clamp(EDGE - 1, 1 - EDGE).atanh() * self.reach.double()
        self.place.copy_(place)

    def log(self) -> Tensor:
        """Logarithms (D, n)."""
        if self.fixed:
            return self.log_value
        middle, reach = self.middle[..., None, :], self.reach[..., None, :]
        return middle + reach * (self.place / reach).tanh()

    def forward(self) -> Tensor:
        """The numbers (D, n)."""
        return self.log().exp()


class Term(NamedTuple):
    """A product of a number, stationary parts and linear parts, each part with the columns that it sees."""

    scale: Tensor  # (D,)
    waves: tuple[tuple["WavePart", tuple[int, ...] | None], ...] = ()
    linear: tuple[tuple["DotProduct", tuple[int, ...] | None], ...] = ()

    def times(self, other: "Term") -> "Term":
        """The product of two terms."""
        return Term(self.scale * other.scale, self.waves + other.waves, self.linear + other.linear)

    def selected(self, columns: tuple[int, ...]) -> "Term":
        """The same term, for inputs of which it sees only some columns."""

        def on_columns(parts):
            return tuple((part, columns if seen is None else tuple(columns[i] for i in seen)) for part, seen in parts)

        return Term(self.scale, on_columns(self.waves), on_columns(self.linear))


class Part(Kernel):
    """A kernel of which others are composed."""

    def terms(self) -> list[Term]:
        """The terms whose sum it is; ValueError if functions cannot be drawn."""
        raise UndrawnError(
            f"Functions cannot be drawn with {type(self).__name__}: sums and products of stationary kernels, dot "
            "products and constants, and whole powers of them, can be."
        )

    def draw(self, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
        """Sums of functions drawn for each term; see :meth:`.Kernel.draw`."""
        draws = [draw_term(term, streams, n_inputs, n_outputs) for term in self.terms()]
        return lambda x: torch.stack([draw(x) for draw in draws]).sum(0)


class WavePart(Part):
    """A stationary part of unit variance, whose functions are sums of waves."""

    def diagonal(self, X: Tensor) -> Tensor:
        """1 for all inputs, (..., D, N)."""
        return X.new_ones(*X.shape[:-2], self.n_outputs, X.shape[-2])

    def terms(self) -> list[Term]:
        """A term of waves."""
        return [Term(self.unit, ((self, None),))]

    @property
    def heavy_tailed(self) -> bool:
        """Whether the spectral density has a heavy tail, at small values of the first of the uniform numbers."""
        return False

    def dims(self, n_inputs: int) -> int:
        """Number of uniform random numbers from which a frequency is computed."""
        return n_inputs

    def frequencies(self, points: Tensor) -> Tensor:
        """Frequencies (..., D, F, Q) from the spectral density, given uniform ``points`` (..., D, F, dims)."""
        raise NotImplementedError


class Constant(Part):
    """Constant kernel, k = c.

    Parameters
    ----------
    value : Positive
        c, (D, 1).
    """

    stackable = True

    def __init__(self, n_outputs: int, value: Positive):
        super().__init__(n_outputs)
        self.value = value

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`.Kernel.hyperparameters`."""
        return {"constant_value": self.value()}

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """c for all pairs, (..., D, N1, N2)."""
        shape = (*X1.shape[:-2], self.n_outputs, X1.shape[-2], X2.shape[-2])
        return self.value()[..., None].expand(shape)

    def diagonal(self, X: Tensor) -> Tensor:
        """c for all inputs, (..., D, N)."""
        return self.value().expand(*X.shape[:-2], self.n_outputs, X.shape[-2])

    def terms(self) -> list[Term]:
        """A term that is a number."""
        return [Term(self.value()[:, 0])]


class Stationary(WavePart):
    """Stationary kernel of distances over lengthscales, with one lengthscale for all inputs or one for each.

    Parameters
    ----------
    profile : {"rbf", "matern12", "matern32", "matern52"}
    lengthscale : Positive
        Lengthscales (D, 1 or Q), in the units of inputs times ``units``.
    units : Tensor of shape (Q,)
        Factors of the inputs.
    index : sequence of int, default=None
        Position of each input's lengthscale, if some inputs share one.
    """

    stackable = True

    units: Tensor
    index: tuple[int, ...] | None = None

    def __init__(
        self, n_outputs: int, profile: str, lengthscale: Positive, units: Tensor, index: Sequence[int] | None = None
    ):
        super().__init__(n_outputs)
        self.profile, self.lengthscale = profile, lengthscale
        self.register_buffer("units", units.clone())
        if index is not None and lengthscale.log().shape[-1] > 1:
            self.index = tuple(index)

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`.Kernel.hyperparameters`."""
        return {"length_scale": self.lengthscale()}

    def rate(self) -> Tensor:
        """Factors (D, Q) of the inputs before distances are computed."""
        lengthscale = self.lengthscale()
        return self.units[..., None, :] / (lengthscale if self.index is None else columns_of(lengthscale, self.index))

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Correlations (..., D, N1, N2)."""
        return centred_correlation(X1, X2, self.rate(), PROFILES[self.profile])

    @property
    def heavy_tailed(self) -> bool:
        """True for Matérn kernels."""
        return math.isfinite(PROFILES[self.profile].nu)

    def dims(self, n_inputs: int) -> int:
        """One for each input, and one for the mixture of Gaussians that Matérn kernels have."""
        return n_inputs + 1

    def frequencies(self, points: Tensor) -> Tensor:
        """See :meth:`.StationaryKernel.frequencies`."""
        return unit_frequencies(self.profile, points) * self.rate()[:, None]


class RationalQuadratic(Stationary):
    """Mixture of RBF kernels of many lengthscales: (1 + r²/2α)^−α, where r is the distance over the lengthscale.

    Parameters
    ----------
    lengthscale, alpha : Positive
        ℓ and α, (D, 1) each.
    units : Tensor of shape (Q,)
        Factors of the inputs.
    """

    stackable = True

    def __init__(self, n_outputs: int, lengthscale: Positive, alpha: Positive, units: Tensor):
        super().__init__(n_outputs, "rbf", lengthscale, units)
        self.alpha = alpha

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`.Kernel.hyperparameters`."""
        return {"length_scale": self.lengthscale(), "alpha": self.alpha()}

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`.Kernel.covariance`."""
        alpha = self.alpha()[..., None]  # (D, 1, 1)
        # With a large α one plus a small number would lose digits, and the power would multiply the error.
        return (-alpha * torch.log1p(squared_distances(X1, X2, self.rate()) / (2 * alpha))).exp()

    def frequencies(self, points: Tensor) -> Tensor:
        """Frequencies of RBF kernels whose inverse squared lengthscales are from a gamma distribution."""
        squares = gamma_quantiles(self.alpha().detach()[:, None].cpu().numpy(), points[..., :1])
        return torch.special.ndtri(points[..., 1:]) * squares.sqrt() * self.rate()[:, None]


class Periodic(WavePart):
    """Periodic kernel exp(−2 sin²(π r/p)/ℓ²), where r is the distance. It has one input: with more it is no covariance.

    Parameters
    ----------
    lengthscale, periodicity : Positive
        ℓ, which has no unit, and p, (D, 1) each.
    units : Tensor of shape (1,)
        Factor of the input.

    Raises
    ------
    ValueError
        If there are several inputs.
    """

    stackable = True

    units: Tensor

    def __init__(self, n_outputs: int, lengthscale: Positive, periodicity: Positive, units: Tensor):
        super().__init__(n_outputs)
        if len(units) > 1:
            raise ValueError(
                f"kernel has ExpSineSquared of {len(units)} inputs, which is no covariance: with Select, which chooses "
                "columns, give each input a periodic kernel of its own."
            )
        self.lengthscale, self.periodicity = lengthscale, periodicity
        self.register_buffer("units", units.clone())

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`.Kernel.hyperparameters`."""
        return {"length_scale": self.lengthscale(), "periodicity": self.periodicity()}

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`.Kernel.covariance`."""
        rate = (self.units[..., None, :] / self.periodicity()).double()  # (D, 1)
        # Each point is rounded by itself. So even points that are too far away to have a phase are in one place.
        phase1, phase2 = ((X.mT.double() * rate).remainder(1.0).to(X.dtype) for X in (X1, X2))  # (..., D, N)
        turn = phase1[..., :, None] - phase2[..., None, :]
        return (-2.0 * ((math.pi * turn).sin() / self.lengthscale()[..., None]).square()).exp()

    def dims(self, n_inputs: int) -> int:
        """One, which chooses the harmonic."""
        return 1

    def frequencies(self, points: Tensor) -> Tensor:
        """Frequencies 2πj/p. The harmonic j has the probability exp(−1/ℓ²) I_j(1/ℓ²), or twice that for j > 0."""
        place = (1 / self.lengthscale().detach().double()[:, 0].square()).cpu().numpy()  # (D,)
        probability = [torch.as_tensor(ive(j, place)) * (1 if j == 0 else 2) for j in range(N_HARMONICS)]
        steps = torch.stack(probability, -1).cumsum(-1).to(points)  # (D, J)
        places = (points[..., d, :, :].contiguous() * steps[d, -1] for d in range(len(steps)))
        harmonics = [torch.searchsorted(*pair) for pair in zip(steps.contiguous(), places, strict=True)]
        rate = self.units / self.periodicity()  # (D, 1)
        harmonic = torch.stack(harmonics, dim=-3).clamp(max=N_HARMONICS - 1)
        return 2 * math.pi * harmonic.to(points) * rate[:, None]


class DotProduct(Part):
    """Linear kernel, σ₀² + x·x'.

    Parameters
    ----------
    sigma_0 : Positive
        σ₀, (D, 1).
    units, shift : Tensor of shape (Q,)
        x is the inputs times ``units`` plus ``shift``.
    """

    stackable = True

    units: Tensor
    shift: Tensor

    def __init__(self, n_outputs: int, sigma_0: Positive, units: Tensor, shift: Tensor):
        super().__init__(n_outputs)
        self.sigma_0 = sigma_0
        self.register_buffer("units", units.clone())
        self.register_buffer("shift", shift.clone())

    def hyperparameters(self) -> dict[str, Tensor]:
        """See :meth:`.Kernel.hyperparameters`."""
        return {"sigma_0": self.sigma_0()}

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`.Kernel.covariance`."""
        products = self._x(X1) @ self._x(X2).mT
        return products.unsqueeze(-3) + self.sigma_0().square()[..., None]

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`.Kernel.diagonal`."""
        return self._x(X).square().sum(-1).unsqueeze(-2) + self.sigma_0().square()

    def features(self, x: Tensor) -> Tensor:
        """Features x and σ₀, (..., D, N, Q + 1)."""
        x = self._x(x).unsqueeze(-3).expand(*x.shape[:-2], self.n_outputs, -1, -1)
        return torch.cat([x, self.sigma_0()[..., None].expand(*x.shape[:-1], 1)], dim=-1)

    def terms(self) -> list[Term]:
        """A linear term."""
        return [Term(self.unit, linear=((self, None),))]

    def _x(self, X: Tensor) -> Tensor:
        return X * self.units[..., None, :] + self.shift[..., None, :]


class Pair(Part):
    """A kernel of two kernels, k₁ and k₂."""

    def __init__(self, k1: Part, k2: Part):
        super().__init__(k1.n_outputs)
        self.k1, self.k2 = k1, k2


class Sum(Pair):
    """The sum of two kernels, k₁ + k₂."""

    stackable = True

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`.Kernel.covariance`."""
        return self.k1.covariance(X1, X2) + self.k2.covariance(X1, X2)

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`.Kernel.diagonal`."""
        return self.k1.diagonal(X) + self.k2.diagonal(X)

    def terms(self) -> list[Term]:
        """The terms of both kernels."""
        return self.k1.terms() + self.k2.terms()


class Product(Pair):
    """The product of two kernels, k₁ k₂."""

    stackable = True

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`.Kernel.covariance`."""
        return self.k1.covariance(X1, X2) * self.k2.covariance(X1, X2)

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`.Kernel.diagonal`."""
        return self.k1.diagonal(X) * self.k2.diagonal(X)

    def terms(self) -> list[Term]:
        """Each term of the first kernel times each term of the second."""
        return [first.times(second) for first in self.k1.terms() for second in self.k2.terms()]


class Power(Part):
    """A kernel to the power of a number.

    Parameters
    ----------
    kernel : Part
    exponent : float
    """

    stackable = True

    def __init__(self, kernel: Part, exponent: float):
        super().__init__(kernel.n_outputs)
        self.kernel, self.exponent = kernel, exponent

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`.Kernel.covariance`."""
        return self.kernel.covariance(X1, X2) ** self.exponent

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`.Kernel.diagonal`."""
        return self.kernel.diagonal(X) ** self.exponent

    def terms(self) -> list[Term]:
        """The terms of a product, if the exponent is a whole number up to 4."""
        if self.exponent not in (1, 2, 3, 4):
            return super().terms()
        terms = self.kernel.terms()
        for _ in range(int(self.exponent) - 1):
            terms = [first.times(second) for first in terms for second in self.kernel.terms()]
        return terms


class Columns(Part):
    """A kernel that sees only some columns of the inputs.

    Parameters
    ----------
    kernel : Part
    columns : sequence of int
    """

    stackable = True

    def __init__(self, kernel: Part, columns: Sequence[int]):
        super().__init__(kernel.n_outputs)
        self.kernel, self.columns = kernel, tuple(columns)

    def covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """See :meth:`.Kernel.covariance`."""
        return self.kernel.covariance(columns_of(X1, self.columns), columns_of(X2, self.columns))

    def diagonal(self, X: Tensor) -> Tensor:
        """See :meth:`.Kernel.diagonal`."""
        return self.kernel.diagonal(columns_of(X, self.columns))

    def terms(self) -> list[Term]:
        """The terms of the kernel, for these columns."""
        return [term.selected(self.columns) for term in self.kernel.terms()]


def squared_distances(X1: Tensor, X2: Tensor, rate: Tensor) -> Tensor:
    """‖rate (x − x')‖² (..., D, N1, N2) for rates (D, Q)."""
    centre = X1.detach().mean(-2, keepdim=True)
    # In float64, since the terms cancel: float32 would lose small distances of points that are far from the centre.
    A, B = (((X - centre).unsqueeze(-3) * rate[..., None, :]).double() for X in (X1, X2))
    if cancels_in_float64(A, largest_square(A)):  # perhaps since a far point has moved the centre away from the others
        A, B = (X.double().unsqueeze(-3) * rate[..., None, :].double() for X in (X1, X2))
        return distances(A, B).square().to(X1.dtype)
    squares = A.square().sum(-1, keepdim=True) + B.square().sum(-1, keepdim=True).mT
    return (squares - 2.0 * A @ B.mT).clamp(min=0.0).to(X1.dtype)


def draw_term(term: Term, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
    """Functions with values (S, N, D), whose covariance is a term."""
    n_kernels = len(term.scale)
    sizes = [1 + (n_inputs if columns is None else len(columns)) for _, columns in term.linear]
    n_features = math.prod(sizes)
    if n_features > (MOST_WAVY_FEATURES if term.waves else MOST_FEATURES):
        raise UndrawnError(
            f"Functions cannot be drawn with a product of dot products that has {n_features} features: choose columns "
            "with Select, or a lower exponent."
        )
    deviation = term.scale.sqrt()[:, None]  # (D or 1, 1)

    def features(x: Tensor) -> Tensor:  # (S, D or 1, N, M)
        product = x.new_ones(*x.shape[:-2], n_kernels, x.shape[-2], 1)
        for part, columns in term.linear:
            factor = part.features(x if columns is None else x[..., columns])
            product = (product[..., :, None] * factor[..., None, :]).flatten(-2)
        return product

    if not term.waves:
        w = streams.normal(n_outputs, n_features)  # (S, D, M)
        return lambda x: (weighed_rows(features(x), w) * deviation).mT
    draws = [_draw_waves(term, streams, n_inputs, n_outputs) for _ in range(n_features)]
    if not term.linear:
        return lambda x: draws[0](x) * deviation.mT
    return lambda x: ((features(x) * torch.stack([draw(x).mT for draw in draws], dim=-1)).sum(-1) * deviation).mT


def _draw_waves(term: Term, streams: Streams, n_inputs: int, n_outputs: int) -> Functions:
    """Functions of unit variance, whose covariance is the product of a term's stationary parts."""
    n_kernels = len(term.scale)
    n_frequencies = N_WAVES if n_outputs == n_kernels else N_WAVES // 2
    widths = [n_inputs if columns is None else len(columns) for _, columns in term.waves]
    dims = [part.dims(width) for (part, _), width in zip(term.waves, widths, strict=True)]
    points = spread(streams, n_kernels, n_frequencies, sum(dims)).split(dims, dim=-1)
    total = points[0].new_zeros(*points[0].shape[:-1], n_inputs)
    weight = torch.ones_like(total[..., 0])
    for (part, columns), part_points in zip(term.waves, points, strict=True):
        if part.heavy_tailed:
            part_points, part_weight = more_of_the_tail(part_points)
            weight = weight * part_weight
        total[..., slice(None) if columns is None else list(columns)] += part.frequencies(part_points)
    return waves(streams, total, n_outputs, weight)
