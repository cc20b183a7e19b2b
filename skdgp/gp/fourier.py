"""Fourier features: inner products of a function with waves on an interval (Hensman, Durrande and Solin, JMLR 2018).

Hyperparameters change their covariances with function values only by a factor. So sums over rows are computed once, and
many features for a long series take little time.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .composed import Part, Stationary
from .devices import constant
from .features import Orthonormal, kernel_name, same_kernels
from .kernels import PROFILES, Kernel, by_name
from .linalg import NO_JITTER, being_recorded, cholesky

#: Length by which intervals are longer than the data at either end, as a share of the data's range.
MARGIN = 0.1

#: Number of places for each feature at which drawn functions are evaluated.
PLACES = 4

#: Smallest number of places, so that few features are determined by them as well.
FEWEST_PLACES = 65

#: Smallest number of features along each input that "auto" stands for.
FEW = 14

#: Number of rows whose waves are summed at a time, so that they stay in the processor's cache.
ROWS_AT_A_TIME = 2**15

#: Jitter of the p × p matrix VᵀV in :meth:`Fourier._root`. V has nearly dependent columns if a lengthscale is very
#: short or very long.
EDGE_JITTER = 1e-14


class Along(NamedTuple):
    """A Matérn kernel of one input, which is a summand of the layer's kernel without the factor σ²."""

    column: int
    nu: float
    variance: Tensor  # (D,)
    lengthscale: Tensor  # (D,)

    @property
    def order(self) -> int:
        """p = ν + ½: functions have p − 1 derivatives."""
        return round(self.nu + 0.5)

    @property
    def rate(self) -> Tensor:
        """λ = √(2ν)/ℓ, (D,)."""
        return math.sqrt(2 * self.nu) / self.lengthscale

    def root_of_state(self) -> Tensor:
        """Root of the covariance of f, f', ... of orders below p, (D, p, p), in float64."""
        rate = self.rate.double()
        none, slope = torch.zeros_like(rate), rate.square() / (3 if self.order == 3 else 1)
        P = torch.stack([none + 1, none, -slope, none, slope, none, -slope, none, rate**4], dim=-1).unflatten(
            -1, (3, 3)
        )
        return cholesky(P[:, : self.order, : self.order] * self.variance.double()[:, None, None], NO_JITTER)


def along_inputs(kernel: Kernel) -> list[Along] | None:
    """The Matérn kernels of one input that a kernel is the sum of; None if it is something else."""
    if by_name(kernel):
        alone = kernel.n_inputs == 1 and kernel.profile != "rbf"
        return [Along(0, PROFILES[kernel.profile].nu, kernel.unit, kernel.lengthscale[..., 0])] if alone else None
    if not isinstance(kernel, Part) or type(kernel).places is not Kernel.places:  # a kernel of patches has others
        return None
    along = []
    for term in kernel.terms():
        if term.linear or len(term.waves) != 1:
            return None
        part, columns = term.waves[0]
        if not isinstance(part, Stationary) or part.profile == "rbf" or ((columns or ()) == () and len(part.units) > 1):
            return None
        if columns is not None and len(columns) > 1:
            return None
        lengthscale = 1 / part.rate()[..., 0]
        variance = term.scale.expand(len(lengthscale))
        along.append(Along(columns[0] if columns else 0, PROFILES[part.profile].nu, variance, lengthscale))
    return along or None


class RootOfWaves(NamedTuple):
    """A root R of the prior covariance of a term's waves, by which these are divided."""

    scale: Tensor  # (D, T', 1)
    change: Tensor  # (D, T', p)
    E: Tensor  # (D, p, T')

    def __call__(self, k: Tensor) -> Tensor:
        """R⁻¹ k for waves (..., T', N)."""
        scaled = k * self.scale.to(k)
        return scaled + self.change.to(k) @ (self.E.to(k) @ scaled)


class Root(NamedTuple):
    """The same for waves and powers. Waves come first."""

    of_waves: RootOfWaves
    below: Tensor  # (D, p, T'), left of the root of powers
    of_powers: Tensor  # (D, p, p)

    def __call__(self, k: Tensor) -> Tensor:
        """R⁻¹ k for waves and powers (..., T' + p, N)."""
        waves, powers = k.split([self.below.shape[-1], self.below.shape[-2]], dim=-2)
        waves = self.of_waves(waves)
        left = powers - self.below.to(k) @ waves
        root = self.of_powers.to(k).expand(*left.shape[:-2], -1, -1)
        return torch.cat([waves, torch.linalg.solve_triangular(root, left, upper=False)], dim=-2)


class Fourier(Orthonormal):
    """Inner products with cosines, sines and a few powers on an interval, for Matérn kernels along inputs.

    On [a, b] let t = x − a, ω_m = 2πm/(b − a), and ⟨·, ·⟩ the inner product of the kernel's own space of functions.
    For a function φ of that space, the inducing variable ⟨f, φ⟩ has the covariance φ(x) with f(x). It is the same for
    all hyperparameters. Beyond the interval φ continues with the smallest norm, as a polynomial times exp(−λr), with
    λ = √(2ν)/ℓ. The φ are cos ω_m t, sin ω_m t and p = ν + ½ powers t, ..., t^p. Powers are needed, since a sum of
    waves has the same value at b as at a. With s for the spectral density, H for derivatives of φ at a of orders below
    p, and P for the prior covariance of the same derivatives of f,

        ⟨φ, φ'⟩ = ∫ Lφ Lφ' dt / q + H P⁻¹ H'ᵀ,    L = (λ + d/dt)^p,    q = s(ω) (λ² + ω²)^p

    so that K_uu of the waves is diagonal plus a matrix of rank p: diag(α) + H P⁻¹ Hᵀ with α = (b − a)/(2 s(ω)), twice
    that for ω = 0. Features are divided by a root of K_uu, with the powers last, which takes O(T p) for each row.
    A kernel that is a sum over inputs has features along each of them.

    Parameters
    ----------
    low, high : Tensor of shape (n_terms,)
        a and b of every term.
    n_frequencies : int
        Largest m. There are 2m + 1 + p features for each term.
    orders : sequence of int
        p of every term.
    n_inputs : int
        Q.
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor, n_frequencies: int, orders: Sequence[int], n_inputs: int):
        super().__init__(n_inputs)
        self.n_frequencies, self.orders = n_frequencies, tuple(orders)
        for name, value in {"low": low, "high": high}.items():
            self.register_buffer(name, value.double())

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Features of each term."""
        return [2 * self.n_frequencies + 1 + order for order in self.orders]

    @staticmethod
    def instead_of(n_points: int, n_inputs: int) -> int:
        """Number that "auto" stands for: at least ``FEW`` along each input."""
        return max(n_points, FEW * n_inputs)

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Fourier":
        """Features on intervals somewhat longer than the inputs; ValueError for other kernels, or too few features."""
        along = along_inputs(kernel)
        if along is None:
            raise ValueError(
                'inducing="fourier" needs a Matérn kernel of one input, or a sum of such kernels: kernel="matern12", '
                '"matern32" or "matern52", or a sum of kernel objects Select(Matern(...), [i]), got '
                f'{kernel_name(kernel)}. Take one of these, or inducing="points".'
            )
        columns, orders = [term.column for term in along], [term.order for term in along]
        fewest = 3 + max(orders)
        if n_features < fewest * len(along):
            raise ValueError(
                f'inducing="fourier" takes {fewest} features at least along each of {len(along)} inputs, got '
                f"{n_features}: raise their number."
            )
        low, high = inputs.amin(0).double()[columns], inputs.amax(0).double()[columns]
        margin = torch.where(high > low, MARGIN * (high - low), 1.0)
        n_frequencies = (n_features // len(columns) - 1 - max(orders)) // 2
        return cls(low - margin, high + margin, n_frequencies, orders, inputs.shape[1])

    def contain(self, kernel: Kernel, X: Tensor) -> Tensor:
        """Which rows (N,) lie in all intervals, where the formulas of :meth:`inside` hold."""
        inside = [(a <= X[:, along.column]) & (X[:, along.column] <= b) for along, a, b in self._terms(kernel)]
        return torch.stack(inside).all(0)

    def inside(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Waves and powers (..., T, N), by their formulas on the intervals."""
        terms = self._terms(kernel)
        return torch.cat([self._functions(along, x[..., along.column] - a, b - a) for along, a, b in terms], dim=-2)

    def sums(self, kernel: Kernel, X: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Σ w φ φᵀ (T, T) and Σ w φ y (T, P) over rows inside the intervals, for waves and powers φ.

        Products of two waves are sums of waves, cos α cos β = ½ cos(α − β) + ½ cos(α + β). With one term, sums over
        rows of twice as many waves are therefore enough, which take O(N T) instead of O(N T²).
        """
        terms, T = self._terms(kernel), len(self)
        G, b = X.new_zeros(T, T), X.new_zeros(T, y.shape[1])
        for rows, targets, w in zip(*(numbers.split(ROWS_AT_A_TIME) for numbers in (X, y, weight)), strict=True):
            if len(terms) == 1:
                along, low, high = terms[0]
                G_rows, b_rows = self._sums_along(along, rows[:, along.column] - low, high - low, targets, w)
            else:
                phi = self.inside(kernel, rows)
                G_rows, b_rows = (phi * w) @ phi.mT, phi @ (targets * w[:, None])
            G, b = G + G_rows, b + b_rows
        return G, b

    def _sums_along(self, along: Along, t: Tensor, length: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The same for inputs t (N,) of a few rows along one input."""
        m, powers = self.n_frequencies, torch.stack([(t / length) ** j for j in range(1, along.order + 1)])
        weighted = weight * torch.cat([torch.ones_like(t)[None], powers, y.mT])  # (1 + p + P, N)
        step = torch.polar(torch.ones_like(t), 2 * math.pi / length * t)  # exp(iω_1 t)
        wave, totals = torch.ones_like(step), []
        for k in range(2 * m + 1):
            factors = weighted if k <= m else weighted[:1]
            totals.append(factors @ torch.view_as_real(wave))  # cosines and sines of ω_k
            wave = wave * step
        C, S = torch.stack([total[0] for total in totals]).unbind(-1)  # (2m + 1,)
        others = torch.stack([total[1:] for total in totals[: m + 1]], dim=1)  # (p + P, m + 1, 2)
        others = torch.cat([others[..., 0], others[:, 1:, 1]], dim=-1)  # (p + P, 2m + 1)
        order = torch.arange(m + 1, device=t.device)
        both, gap = order[:, None] + order, order[:, None] - order
        cosines, sines = 0.5 * (C[gap.abs()] + C[both]), 0.5 * (C[gap.abs()] - C[both])[1:, 1:]
        mixed = 0.5 * (S[both] + gap.sign() * S[gap.abs()])[1:]  # sines by cosines
        waves = torch.cat([torch.cat([cosines, mixed.mT], dim=1), torch.cat([mixed, sines], dim=1)])
        with_waves, targets = others.split([along.order, y.shape[1]])
        of_powers = torch.cat([with_waves, (weight * powers) @ powers.mT], dim=1)
        G = torch.cat([torch.cat([waves, with_waves.mT], dim=1), of_powers])
        return G, torch.cat([targets.mT, powers @ (weight[:, None] * y)])

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """See the class's docstring."""
        return self.orthonormal_of(kernel, self._everywhere(kernel, x))

    def roots(self, kernel: Kernel) -> list[Root]:
        """Roots of the prior covariances of all terms."""
        return [self._root(along, b - a) for along, a, b in self._terms(kernel)]

    def orthonormal_of(self, kernel: Kernel, k: Tensor, roots: Sequence[Root] | None = None) -> Tensor:
        """R⁻¹ k for covariances (..., T, N) with waves and powers, where R Rᵀ = K_uu; ``roots`` if they are known."""
        roots = self.roots(kernel) if roots is None else roots
        terms = zip(roots, k.split(self.sizes, dim=-2), strict=True)
        return torch.cat([root(k_term) for root, k_term in terms], dim=-2)

    def places(self, kernel: Kernel) -> Tensor:
        """Places along each input, with the other inputs in the middle of their intervals.

        They are enough, since a function is a sum of functions of one input each.
        """
        middle, rows = self.low.new_zeros(self.n_inputs), []
        for along, a, b in self._terms(kernel):
            middle[along.column] = 0.5 * (a + b)
        for along, a, b in self._terms(kernel):
            even = torch.linspace(0.0, 1.0, max(FEWEST_PLACES, PLACES * 2 * self.n_frequencies + 1)).to(a)
            ends = torch.logspace(-3, -1, 9, dtype=torch.float64, device=a.device) / self.n_frequencies
            t = torch.cat([even, ends, 1.0 - ends])  # features depend on derivatives at the ends
            line = middle.repeat(len(t), 1)
            line[:, along.column] = a + (b - a) * t
            rows.append(line)
        return torch.cat(rows)

    def _terms(self, kernel: Kernel) -> list[tuple[Along, Tensor, Tensor]]:
        """The kernel and the interval of each term."""
        return list(zip(along_inputs(kernel) or (), self.low, self.high, strict=True))

    def _omega(self, length: Tensor) -> Tensor:
        """ω_0, ..., ω_m."""
        return 2 * math.pi * torch.arange(self.n_frequencies + 1, dtype=torch.float64, device=length.device) / length

    def _functions(self, along: Along, t: Tensor, length: Tensor) -> Tensor:
        """φ at t (..., N), of shape (..., T, N). Powers are those of t/(b − a)."""
        angle = self._omega(length).to(t)[:, None] * t[..., None, :]
        powers = [(t / length.to(t)) ** j for j in range(1, along.order + 1)]
        return torch.cat([angle.cos(), angle[..., 1:, :].sin(), torch.stack(powers, dim=-2)], dim=-2)

    def _edge(self, along: Along, length: Tensor, *, end: bool) -> Tensor:
        """Derivatives of φ at a or b of orders below three, (T, 3)."""
        omega = self._omega(length)
        one, zero = torch.ones_like(omega), torch.zeros_like(omega)
        cosine = torch.stack([one, zero, -omega.square()], dim=-1)
        sine = torch.stack([zero, omega, zero], dim=-1)[1:]
        j = torch.arange(1, along.order + 1, dtype=torch.float64, device=length.device)
        if end:
            powers = torch.stack([torch.ones_like(j), j / length, j * (j - 1) / length.square()], dim=-1)
        else:
            powers = torch.stack([torch.zeros_like(j), (j == 1) / length, 2 * (j == 2) / length.square()], dim=-1)
        return torch.cat([cosine, sine, powers])

    def _everywhere(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Covariances (..., D or 1, T, N) with waves and powers, beyond intervals too."""
        covariances, mirrored = [], constant((1.0, -1.0, 1.0), self.low)
        for along, a, b in self._terms(kernel):
            t, length = x[..., along.column] - a.to(x), (b - a).to(x)
            functions = self._functions(along, torch.minimum(t.clamp(min=0.0), length), b - a).unsqueeze(-3)
            r = torch.relu(-t) + torch.relu(t - length)
            if being_recorded(x) or (r > 0).any():
                beyond = torch.where(
                    (t < 0)[..., None, None, :],
                    _continued(along, self._edge(along, b - a, end=False) * mirrored, r),
                    _continued(along, self._edge(along, b - a, end=True), r),
                )
                functions = torch.where((r > 0)[..., None, None, :], beyond, functions)
            covariances.append(functions)
        return torch.cat(same_kernels(covariances), dim=-2)

    def _root(self, along: Along, length: Tensor) -> Root:
        """Root of a term's prior covariance. For waves it is D^½ (I + E (T − I) Eᵀ).

        D is diag(α), E has orthonormal columns that span D^−½ H, and T is a root of a p × p matrix.
        """
        alpha, V, B, C = self._structure(along, length)  # (D, T'), (D, T', p), (D, T', p), (D, p, p)
        U = cholesky(V.mT @ V, EDGE_JITTER)  # V = E Uᵀ
        E = torch.linalg.solve_triangular(U, V.mT, upper=False).mT
        identity = torch.eye(along.order, dtype=U.dtype, device=U.device)
        T = cholesky(identity + U.mT @ U, NO_JITTER)
        change = E @ (torch.linalg.solve_triangular(T, identity.expand_as(T), upper=False) - identity)
        of_waves = RootOfWaves(alpha.rsqrt()[..., None], change, E.mT)
        B = of_waves(B)
        return Root(of_waves, B.mT, cholesky(C - B.mT @ B, NO_JITTER))

    def _structure(self, along: Along, length: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """α, D^−½ H P^−½, and covariances of powers with waves and with each other, in float64."""
        rate, omega, order = along.rate.double()[:, None], self._omega(length), along.order
        noise = along.variance.double()[:, None] * {1: 2.0, 2: 4.0, 3: 16 / 3}[order] * rate ** (2 * order - 1)  # q
        alpha = 0.5 * length * (rate.square() + omega.square()) ** order / noise
        alpha = torch.cat([2 * alpha[:, :1], alpha[:, 1:], alpha[:, 1:]], dim=-1)
        edge = self._edge(along, length, end=False)[:, :order]
        H = torch.linalg.solve_triangular(along.root_of_state(), edge.mT.expand(len(rate), -1, -1), upper=False).mT
        waves, powers = H.split([len(omega) * 2 - 1, order], dim=-2)  # times P^−½

        # L t^j = Σ_i C(p, i) λ^(p−i) (d/dt)^i t^j, as coefficients (D, j, n) of powers n ≤ p of t/(b − a).
        coefficients = rate.new_zeros(len(rate), order, order + 1)
        for j in range(1, order + 1):
            for i in range(j + 1):
                factor = math.comb(order, i) * math.perm(j, i) / length**i
                coefficients[:, j - 1, j - i] = factor * rate[:, 0] ** (order - i)
        exponent = torch.arange(order + 1, dtype=torch.float64, device=length.device)
        gram = length / (exponent[:, None] + exponent + 1)  # ∫ of products of powers
        C = coefficients @ gram @ coefficients.mT / noise[..., None] + powers @ powers.mT

        # ∫ (t/(b − a))^n exp(iωt) dt by parts, and L exp(iωt) = (λ + iω)^p exp(iωt).
        moments = [torch.where(omega == 0, length, 0.0).to(torch.complex128)]
        for n in range(1, order + 1):
            following = (1.0 - n * moments[-1] / length) / torch.where(omega == 0, 1.0, 1j * omega)
            moments.append(torch.where(omega == 0, length / (n + 1), following))
        adjoint = torch.complex(rate.expand(-1, len(omega)), omega.expand(len(rate), -1)) ** order  # (D, m + 1)
        integrals = torch.stack(moments, dim=-1) @ coefficients.mT.to(torch.complex128)  # (D, m + 1, p)
        products = adjoint[..., None] * integrals
        B = torch.cat([products.real, products.imag[:, 1:]], dim=-2) / noise[..., None] + waves @ powers.mT
        return alpha, waves * alpha.rsqrt()[..., None], B, C


def _continued(along: Along, edge: Tensor, r: Tensor) -> Tensor:
    """Functions (..., D, T, N) at distances r (..., N) from an edge, where outward derivatives are ``edge`` (T, 3).

    The functions continue with the smallest norm.
    """
    rate, r = along.rate[:, None, None].to(r), r[..., None, None, :]  # (D, 1, 1)
    h0, h1, h2 = (derivative[:, None] for derivative in edge.to(r).unbind(-1))  # (T, 1)
    polynomial = h0 + 0.0 * rate * r  # h0 in the full shape, (..., D, T, N)
    if along.order > 1:
        polynomial = polynomial + (h1 + rate * h0) * r
    if along.order > 2:
        polynomial = polynomial + 0.5 * (h2 + 2 * rate * h1 + rate.square() * h0) * r.square()
    return polynomial * torch.exp(-rate * r)
