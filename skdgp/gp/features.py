"""Inducing features: what the inducing variables of a layer are.

Every inducing variable is a linear functional of the function f, such as its value at a point. A layer asks three
things of T of them, always without the kernel's factor σ²:

==================================== ================= =========================================================
``covariance(kernel, dtype)``        (D or 1, T, T)    K_uu, their prior covariance
``cross(kernel, x)``                 (..., D or 1, T, N) k_u(x), their covariances with f at x (..., N, Q)
``values(kernel, prior, streams)``   (S, D, T)         what they are of functions that are drawn from the prior
==================================== ================= =========================================================

``Points``      u_m = f(z_m)
``Derivatives`` u_m = f(z_m), and ℓ_q ∂f/∂x_q at z_m (tutorial, Eq. 22 and 23)
``Fourier``     inner products of f with waves on an interval (Hensman, Durrande and Solin, JMLR 2018)
``Eigen``       inner products of f with eigenfunctions of its kernel (tutorial, Eq. 20)

Features of the last two are *orthonormal*, K_uu = I. The function is smooth or rough only through k_u(x).
"""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement, count
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from .composed import Part, Stationary
from .kernels import PROFILES, Kernel, StationaryKernel
from .linalg import NO_JITTER, being_recorded, cholesky
from .waves import Functions, Streams

#: Places for each Fourier feature, and for each eigenfunction, at which drawn functions are looked at.
PLACES, FEWEST_PLACES = 4, 65

#: By how much of the data's range the interval of Fourier features is longer, at either end.
MARGIN = 0.1

#: Most places of eigenfunctions.
MOST_PLACES = 2000


class Features(nn.Module):
    """Inducing features; see the module's docstring."""

    #: Whether it counts its dimensions from the last one; see :class:`.Layer`.
    stackable = False

    #: Whether K_uu = I.
    orthonormal = False

    def __init__(self, n_inputs: int):
        super().__init__()
        self.n_inputs = n_inputs

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Features":
        """Initial ones for a layer's inputs (N, Q): at points (M, Q), or as many as asked for at most.

        Raises
        ------
        ValueError
            If they do not suit the kernel, or the number of inputs.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        """T."""
        raise NotImplementedError

    def covariance(self, kernel: Kernel, dtype: torch.dtype) -> Tensor:
        """K_uu."""
        raise NotImplementedError

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """k_u(x)."""
        raise NotImplementedError

    def values(self, kernel: Kernel, prior: Functions, streams: Streams) -> Tensor:
        """Those of functions ``prior``, from (1, N, Q) to (S, N, D)."""
        raise NotImplementedError

    def gradient(self, kernel: Kernel, x: Tensor) -> Tensor:
        """∂k_u(x)/∂x for inputs (N, Q), of shape (Q, D or 1, T, N)."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            k = self.cross(kernel, x)  # (D or 1, T, N)
            rows = [torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in k.flatten(0, 1)]
        return torch.stack(rows).unflatten(0, k.shape[:2]).movedim(-1, 0)


class Points(Features):
    """Values at points.

    Parameters
    ----------
    Z : Tensor of shape (T, Q)
        Initial ones.
    """

    stackable = True

    def __init__(self, Z: Tensor):
        super().__init__(Z.shape[-1])
        self.Z = nn.Parameter(Z.clone())

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Points":
        """At these points."""
        return cls(points)

    def __len__(self) -> int:
        """T, the last dimension but one, in a stack of models too."""
        return self.Z.shape[-2]

    def covariance(self, kernel: Kernel, dtype: torch.dtype) -> Tensor:
        """k(Z, Z)."""
        return kernel.relative_covariance(self.Z.to(dtype), self.Z.to(dtype))

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """k(Z, x)."""
        return kernel.relative_covariance(self.Z, x)

    def values(self, kernel: Kernel, prior: Functions, streams: Streams) -> Tensor:
        """g(Z)."""
        return prior(self.Z[None]).mT

    def gradient(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Of pairs, since kernels may have gradients of their own."""
        Z = self.Z.detach()
        with torch.enable_grad():
            copies = x.detach().expand(len(Z), -1, -1).clone().requires_grad_()  # (T, N, Q): pairs
            k = kernel.relative_covariance(Z[:, None, None], copies[:, :, None])[..., 0, 0]  # (T, N, D or 1)
            total = k.sum((0, 1)).unbind()
            found = [torch.autograd.grad(each, copies, retain_graph=True)[0] for each in total]
        return torch.stack(found).permute(3, 0, 1, 2)


def all_points(sets: list[Features]) -> Tensor | None:
    """Points of all sets, one after the other; None if some are no points."""
    points: list[Tensor] = [each.Z for each in sets if isinstance(each, Points)]
    if len(points) < len(sets):
        return None
    return points[0] if len(points) == 1 else torch.cat(points, dim=-2)


def joint_covariance(sets: list[Features], kernel: Kernel, dtype: torch.dtype) -> Tensor:
    """K_uu of all sets. Of two, one at least is of points: what the other has to do with these, its k_u says."""
    if len(sets) == 1:
        return sets[0].covariance(kernel, dtype)
    if (points := all_points(sets)) is not None:
        return kernel.relative_covariance(points.to(dtype), points.to(dtype))
    first, second = sets
    own, other = first.covariance(kernel, dtype), second.covariance(kernel, dtype)
    if isinstance(second, Points):
        between = first.cross(kernel, second.Z.to(dtype))  # (D or 1, T1, T2)
    else:
        between = second.cross(kernel, cast(Points, first).Z.to(dtype)).mT
    n_kernels = max(len(own), len(other), len(between))
    own, other, between = (each.expand(n_kernels, -1, -1) for each in (own, other, between))
    return torch.cat([torch.cat([own, between], dim=-1), torch.cat([between.mT, other], dim=-1)], dim=-2)


def joint_cross(sets: list[Features], kernel: Kernel, x: Tensor) -> Tensor:
    """k_u(x) of all sets."""
    if len(sets) == 1:
        return sets[0].cross(kernel, x)
    if (points := all_points(sets)) is not None:
        return kernel.relative_covariance(points, x)
    parts = [each.cross(kernel, x) for each in sets]
    n_kernels = max(each.shape[-3] for each in parts)
    return torch.cat([each.expand(*each.shape[:-3], n_kernels, -1, -1) for each in parts], dim=-2)


class Derivatives(Features):
    """Values and partial derivatives at points, ℓ_q ∂f/∂x_q: all values first, then a derivative at all points.

    With s = |(z − x)/ℓ|², k = κ(s) and Δ = (z − x)/ℓ, covariances are derivatives of κ:

        Cov(ℓ_q ∂_q f(z), f(x)) = 2κ' Δ_q,    Cov(ℓ_p ∂_p f(z), ℓ_q ∂_q f(z')) = −2κ' δ_pq − 4κ'' Δ_p Δ_q

    Parameters
    ----------
    Z : Tensor of shape (M, Q)
        Initial points. T is M (1 + Q).
    """

    def __init__(self, Z: Tensor):
        super().__init__(Z.shape[-1])
        self.Z = nn.Parameter(Z.clone())

    def __len__(self) -> int:
        return self.Z.shape[0] * (1 + self.Z.shape[1])

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Derivatives":
        """At these points; ValueError for a kernel without derivatives."""
        if not isinstance(kernel, StationaryKernel) or kernel.profile == "matern12":
            raise ValueError(
                'inducing="derivatives" needs a kernel by name whose functions have derivatives: kernel="rbf", '
                f'"matern52" or "matern32", got {_name(kernel)}. Take one of these, or inducing="points".'
            )
        return cls(points)

    def covariance(self, kernel: Kernel, dtype: torch.dtype) -> Tensor:
        """See the class's docstring."""
        Z = self.Z.to(dtype)
        delta, (k, k1, k2) = self._along(kernel, Z, Z)  # (D, M, M, Q) and (D, M, M)
        first = (-2 * k1[..., None] * delta).movedim(-1, -3)  # Cov(f(z), ℓ_q ∂_q f(z')), (D, Q, M, M)
        second = -4 * k2[..., None, None] * delta[..., :, None] * delta[..., None, :]
        second = second - 2 * k1[..., None, None] * torch.eye(Z.shape[1], dtype=dtype, device=Z.device)
        second = second.permute(0, 3, 1, 4, 2).flatten(1, 2).flatten(2, 3)  # (D, Q·M, Q·M)
        above = torch.cat([k, first.permute(0, 2, 1, 3).flatten(2, 3)], dim=-1)
        below = torch.cat([-first.flatten(1, 2), second], dim=-1)
        return torch.cat([above, below], dim=-2)

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """See the class's docstring."""
        delta, (k, k1, _) = self._along(kernel, self.Z.to(x.dtype), x)
        return torch.cat([k, (2 * k1[..., None] * delta).movedim(-1, -3).flatten(-3, -2)], dim=-2)

    def values(self, kernel: Kernel, prior: Functions, streams: Streams) -> Tensor:
        """g(Z), and ℓ ∂g/∂x there."""
        with torch.enable_grad():
            Z = self.Z.detach().expand(len(streams), -1, -1).clone().requires_grad_()  # (S, M, Q)
            g = prior(Z)  # (S, M, D)
            slopes = [torch.autograd.grad(each.sum(), Z, retain_graph=True)[0] for each in g.unbind(-1)]
        slope = torch.stack(slopes, dim=1) * kernel.lengthscale[:, None]  # type: ignore[operator, index]
        return torch.cat([g.detach().mT[..., None, :], slope.mT], dim=-2).flatten(-2)

    @staticmethod
    def _along(kernel: Kernel, Z: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Δ (..., D, M, N, Q), and κ and its derivatives there."""
        assert isinstance(kernel, StationaryKernel)
        length = kernel.lengthscale[..., None, :]  # (D, 1, 1 or Q)
        delta = (Z / length)[..., :, None, :] - (x.unsqueeze(-3) / length)[..., None, :, :]
        return delta, _smooth(kernel.profile, delta.square().sum(-1))


def _smooth(profile: str, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """κ(s), κ'(s) and κ''(s) of squared distances over lengthscales."""
    if profile == "rbf":
        k = torch.exp(-0.5 * s)
        return k, -0.5 * k, 0.25 * k
    if profile == "matern52":
        r = (5 * s + 1e-20).sqrt()
        e = torch.exp(-r)
        return (1 + r + r.square() / 3) * e, -5 / 6 * (1 + r) * e, 25 / 12 * e
    r = (3 * s + 1e-20).sqrt()
    e = torch.exp(-r)
    return (1 + r) * e, -1.5 * e, 2.25 * e / r  # the last one is multiplied by squares of distances


def _name(kernel: Kernel) -> str:
    return repr(kernel.profile) if isinstance(kernel, StationaryKernel) else f"a {type(kernel).__name__}"


class Orthonormal(Features):
    """Features with K_uu = I. What they are of a drawn function, its values at many places say."""

    orthonormal = True

    def covariance(self, kernel: Kernel, dtype: torch.dtype) -> Tensor:
        """I."""
        return torch.eye(len(self), dtype=dtype, device=kernel.unit.device)[None]

    def places(self, kernel: Kernel) -> Tensor:
        """Inputs (G, Q), in float64, between which functions hold no surprises that features would notice."""
        raise NotImplementedError

    def values(self, kernel: Kernel, prior: Functions, streams: Streams) -> Tensor:
        """Drawn from their distribution given the function's values at places, which leave next to nothing open."""
        G = self.places(kernel)
        L = cholesky(kernel.relative_covariance(G, G))  # (D or 1, G, G)
        A = torch.linalg.solve_triangular(L, self.cross(kernel, G).mT, upper=False)  # (D or 1, G, T)
        g = prior(G[None]).mT.to(A)  # (S, D, G)
        found = (A.mT @ torch.linalg.solve_triangular(L, g[..., None], upper=False))[..., 0]
        left = torch.eye(len(self), dtype=A.dtype, device=A.device) - A.mT @ A
        root = cholesky(left + torch.diag_embed(1e-9 + (-left.diagonal(dim1=-2, dim2=-1)).clamp(min=0.0)))
        return found + (root @ streams.normal(g.shape[1], len(self), 1).to(A))[..., 0]


class Along(NamedTuple):
    """A Matérn kernel of one input, relative to the layer's."""

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
        """λ (D,)."""
        return math.sqrt(2 * self.nu) / self.lengthscale

    def root_of_state(self) -> Tensor:
        """Of the covariance of f, f', ... of orders below p, (D, p, p), in float64."""
        rate = self.rate.double()
        none, slope = torch.zeros_like(rate), rate.square() / (3 if self.order == 3 else 1)
        P = torch.stack([none + 1, none, -slope, none, slope, none, -slope, none, rate**4], dim=-1).unflatten(
            -1, (3, 3)
        )
        return cholesky(P[:, : self.order, : self.order] * self.variance.double()[:, None, None], NO_JITTER)


def along_inputs(kernel: Kernel) -> list[Along] | None:
    """The Matérn kernels of one input that a kernel is the sum of; None if it is something else."""
    if isinstance(kernel, StationaryKernel):
        alone = kernel.n_inputs == 1 and kernel.profile != "rbf"
        known = Along(0, PROFILES[kernel.profile].nu, kernel.unit, kernel.lengthscale[..., 0])
        return [known] if alone else None
    found = []
    for term in kernel.terms() if isinstance(kernel, Part) else []:
        if term.linear or len(term.waves) != 1:
            return None
        part, columns = term.waves[0]
        if not isinstance(part, Stationary) or part.profile == "rbf" or ((columns or ()) == () and len(part.units) > 1):
            return None
        if columns is not None and len(columns) > 1:
            return None
        lengthscale = 1 / part.rate()[..., 0]
        variance = term.scale.expand(len(lengthscale))
        found.append(Along(columns[0] if columns else 0, PROFILES[part.profile].nu, variance, lengthscale))
    return found or None


class Fourier(Orthonormal):
    """Inner products with cosines, sines and a few powers on an interval, of Matérn kernels along inputs.

    On [a, b] let t = x − a, ω_m = 2πm/(b − a), and ⟨·, ·⟩ the inner product of the kernel's own space of functions.
    For a function φ of that space, the inducing variable ⟨f, φ⟩ has the covariance φ(x) with f(x): it is the same for
    all hyperparameters. Beyond the interval φ goes on with the smallest norm, as a polynomial times exp(−λr), with
    λ = √(2ν)/ℓ. The φ are cos ω_m t, sin ω_m t and, as sums of waves return at b to where they were at a, p = ν + ½
    powers t, ..., t^p. With s for the spectral density, H for the derivatives of φ at a of orders below p, and P for the
    prior covariance of the same derivatives of f,

        ⟨φ, φ'⟩ = ∫ Lφ Lφ' dt / q + H P⁻¹ H'ᵀ,    L = (λ + d/dt)^p,    q = s(ω) (λ² + ω²)^p

    so that K_uu of the waves is diagonal plus a matrix of rank p: diag(α) + H P⁻¹ Hᵀ with α = (b − a)/(2 s(ω)), twice
    that for ω = 0. Features are divided by a root of it, which takes O(T p) for each row, and the powers come last.
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

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Fourier":
        """On intervals somewhat longer than inputs; ValueError for other kernels, or too few features."""
        along = along_inputs(kernel)
        if along is None:
            raise ValueError(
                'inducing="fourier" needs a Matérn kernel of one input, or a sum of such kernels: kernel="matern12", '
                f'"matern32" or "matern52", or a sum of kernel objects Select([i], Matern(...)), got {_name(kernel)}. '
                'Take one of these, or inducing="points".'
            )
        columns, orders = [each.column for each in along], [each.order for each in along]
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

    def inside(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Waves and powers (..., T, N), as they are on the intervals."""
        parts = [self._functions(each, x[..., each.column] - a, b - a) for each, a, b in self._terms(kernel)]
        return torch.cat(parts, dim=-2)

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """See the class's docstring."""
        return self.orthonormal_of(kernel, self._everywhere(kernel, x))

    def orthonormal_of(self, kernel: Kernel, k: Tensor) -> Tensor:
        """R⁻¹ k for covariances (..., T, N) with waves and powers, where R Rᵀ = K_uu."""
        parts = zip(self._terms(kernel), k.split(self.sizes, dim=-2), strict=True)
        return torch.cat([self._orthonormal(along, b - a, each) for (along, a, b), each in parts], dim=-2)

    def places(self, kernel: Kernel) -> Tensor:
        """Along each input, with the others in the middle: a function that is a sum has no more to it."""
        middle, rows = self.low.new_zeros(self.n_inputs), []
        for each, a, b in self._terms(kernel):
            middle[each.column] = 0.5 * (a + b)
        for each, a, b in self._terms(kernel):
            even = torch.linspace(0.0, 1.0, max(FEWEST_PLACES, PLACES * 2 * self.n_frequencies + 1)).to(a)
            ends = torch.logspace(-3, -1, 9, dtype=torch.float64, device=a.device) / self.n_frequencies
            share = torch.cat([even, ends, 1.0 - ends])  # derivatives at the ends count
            row = middle.repeat(len(share), 1)
            row[:, each.column] = a + (b - a) * share
            rows.append(row)
        return torch.cat(rows)

    def _terms(self, kernel: Kernel) -> list[tuple[Along, Tensor, Tensor]]:
        """Of every term the kernel, and the interval."""
        return list(zip(along_inputs(kernel) or (), self.low, self.high, strict=True))

    def _omega(self, length: Tensor) -> Tensor:
        """ω_0, ..., ω_m."""
        return 2 * math.pi * torch.arange(self.n_frequencies + 1, dtype=torch.float64, device=length.device) / length

    def _functions(self, along: Along, t: Tensor, length: Tensor) -> Tensor:
        """φ at t (..., N); powers are of t/(b − a)."""
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
        found = []
        for along, a, b in self._terms(kernel):
            t, length = x[..., along.column] - a.to(x), (b - a).to(x)
            functions = self._functions(along, torch.minimum(t.clamp(min=0.0), length), b - a).unsqueeze(-3)
            r = torch.relu(-t) + torch.relu(t - length)
            if being_recorded(x) or (r > 0).any():
                beyond = torch.where(
                    (t < 0)[..., None, None, :],
                    _continued(along, self._edge(along, b - a, end=False) * self.low.new_tensor([1.0, -1.0, 1.0]), r),
                    _continued(along, self._edge(along, b - a, end=True), r),
                )
                functions = torch.where((r > 0)[..., None, None, :], beyond, functions)
            found.append(functions)
        n_kernels = max(each.shape[-3] for each in found)
        return torch.cat([each.expand(*each.shape[:-3], n_kernels, -1, -1) for each in found], dim=-2)

    def _orthonormal(self, along: Along, length: Tensor, k: Tensor) -> Tensor:
        """R⁻¹ k of a term. Of waves, with E orthonormal columns that span D^−½ H, R = D^½ (I + E (T − I) Eᵀ)."""
        alpha, V, B, C = self._structure(along, length)  # (D, T'), (D, T', p), (D, T', p), (D, p, p)
        U = cholesky(V.mT @ V, 1e-14)  # V = E Uᵀ
        E = torch.linalg.solve_triangular(U, V.mT, upper=False).mT
        identity = torch.eye(along.order, dtype=U.dtype, device=U.device)
        T = cholesky(identity + U.mT @ U, NO_JITTER)
        change = E @ (torch.linalg.solve_triangular(T, identity.expand_as(T), upper=False) - identity)

        def whitened(waves: Tensor) -> Tensor:
            scaled = waves * alpha.rsqrt().to(waves)[..., None]
            return scaled + change.to(waves) @ (E.mT.to(waves) @ scaled)

        waves, powers = k.split([k.shape[-2] - along.order, along.order], dim=-2)
        waves, B = whitened(waves), whitened(B)
        root = cholesky(C - B.mT @ B, NO_JITTER).to(k)  # of what waves leave of the powers
        left = powers - B.mT.to(k) @ waves
        return torch.cat(
            [waves, torch.linalg.solve_triangular(root.expand(*left.shape[:-2], -1, -1), left, upper=False)], -2
        )

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
        n = torch.arange(order + 1, dtype=torch.float64, device=length.device)
        gram = length / (n[:, None] + n + 1)  # ∫ of products of powers
        C = coefficients @ gram @ coefficients.mT / noise[..., None] + powers @ powers.mT

        # ∫ (t/(b − a))^n exp(iωt) dt by parts, and L exp(iωt) = (λ + iω)^p exp(iωt).
        moments = [torch.where(omega == 0, length, 0.0).to(torch.complex128)]
        for each in range(1, order + 1):
            following = (1.0 - each * moments[-1] / length) / torch.where(omega == 0, 1.0, 1j * omega)
            moments.append(torch.where(omega == 0, length / (each + 1), following))
        both = torch.complex(rate.expand(-1, len(omega)), omega.expand(len(rate), -1)) ** order  # (D, m + 1)
        products = both[..., None] * (
            torch.stack(moments, dim=-1) @ coefficients.mT.to(torch.complex128)
        )  # (D, m + 1, p)
        B = torch.cat([products.real, products.imag[:, 1:]], dim=-2) / noise[..., None] + waves @ powers.mT
        return alpha, waves * alpha.rsqrt()[..., None], B, C


def _continued(along: Along, edge: Tensor, r: Tensor) -> Tensor:
    """Functions with outward derivatives ``edge`` (T, 3) at a distance r (..., N) from it, of the smallest norm."""
    rate, r = along.rate[:, None, None].to(r), r[..., None, None, :]  # (D, 1, 1)
    h0, h1, h2 = (each[:, None] for each in edge.to(r).unbind(-1))  # (T, 1)
    found = h0 + 0.0 * rate * r
    if along.order > 1:
        found = found + (h1 + rate * h0) * r
    if along.order > 2:
        found = found + 0.5 * (h2 + 2 * rate * h1 + rate.square() * h0) * r.square()
    return found * torch.exp(-rate * r)


class Eigen(Orthonormal):
    """Inner products with eigenfunctions of the RBF kernel under a Gaussian measure, over roots of eigenvalues.

    For inputs t of mean 0 and variance 1, with a = 1/4, b = 1/(2ℓ²), c = √(a² + 2ab), A = a + b + c and B = b/A (Zhu,
    Williams, Rohwer and Morciniec, 1997; Rasmussen and Williams, Sec. 4.3), eigenvalues are √(2a/A) Bⁿ, and
    k_u(t) = √λ_n φ_n(t) follows from two before:

        g_0 = (2c/A)^¼ exp(−(c − a)t²),    g_{n+1} = √(2B/(n + 1)) √(2c) t g_n − B √(n/(n + 1)) g_{n−1}

    Functions of several inputs are products, and those of lowest total degree are taken.

    Parameters
    ----------
    centre, scale : Tensor of shape (Q,)
        Mean and deviation of the measure.
    n_features : int
        T.
    """

    centre: Tensor
    scale: Tensor
    degrees: Tensor

    def __init__(self, centre: Tensor, scale: Tensor, n_features: int):
        super().__init__(len(centre))
        degrees = _lowest_degrees(len(centre), n_features)
        for name, value in {"centre": centre, "scale": scale, "degrees": degrees}.items():
            self.register_buffer(name, value.clone())

    def __len__(self) -> int:
        return len(self.degrees)

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Eigen":
        """For the mean and deviation of inputs; ValueError for other kernels, or too few features."""
        if not isinstance(kernel, StationaryKernel) or kernel.profile != "rbf":
            raise ValueError(
                f'inducing="eigen" needs kernel="rbf", whose eigenfunctions are known, got {_name(kernel)}: take it, '
                'or inducing="points".'
            )
        if n_features <= inputs.shape[1]:
            raise ValueError(
                f'inducing="eigen" takes one function at least for each of {inputs.shape[1]} inputs and a constant '
                f'one, got {n_features}: raise their number, or take inducing="points", which suits many inputs better.'
            )
        scale = inputs.std(0, correction=0)
        return cls(inputs.mean(0), torch.where(scale > 0, scale, 1.0), n_features)

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """See the class's docstring."""
        assert isinstance(kernel, StationaryKernel)
        t = (x - self.centre.to(x)) / self.scale.to(x)  # (..., N, Q)
        length = (kernel.lengthscale.to(x) / self.scale.to(x)).unsqueeze(-2)  # (D, 1, Q)
        product = t.new_ones(())
        for q, degrees in enumerate(self.degrees.unbind(-1)):
            table = _eigenfunctions(t[..., q].unsqueeze(-2), length[..., q], int(degrees.max()))  # (..., D, n, N)
            product = product * table[..., degrees, :]
        return product

    def places(self, kernel: Kernel) -> Tensor:
        """Spread evenly over where features are not zero, which is farther out for higher degrees."""
        n_inputs, highest = self.n_inputs, int(self.degrees.max())
        n_places = min(MOST_PLACES, PLACES**n_inputs * (len(self) + 8))
        reach = 2.0 + math.sqrt(2.0 * highest + 1.0)
        unit = torch.quasirandom.SobolEngine(n_inputs).draw(n_places, dtype=torch.float64).to(self.centre.device)
        return self.centre.double() + self.scale.double() * reach * (2 * unit - 1)


def _eigenfunctions(t: Tensor, length: Tensor, highest: int) -> Tensor:
    """√λ_n φ_n(t) for n up to ``highest``, (..., D, n, N), at t (..., 1, N) with lengthscales (D, 1)."""
    a, b = 0.25, 0.5 / length.square()
    c = (a * a + 2 * a * b).sqrt()
    A = a + b + c
    B, step = b / A, (2 * c).sqrt() * t
    found = [(2 * c / A).sqrt().sqrt() * torch.exp(-(c - a) * t.square())]
    for n in range(highest):
        following = (2 * B / (n + 1)).sqrt() * step * found[-1]
        if n:
            following = following - B * math.sqrt(n / (n + 1)) * found[-2]
        found.append(following)
    return torch.stack(found, dim=-2)


def _lowest_degrees(n_inputs: int, n_features: int) -> Tensor:
    """Degrees (T, Q) of products, from the constant one on."""
    found: list[list[int]] = []
    for total in count():
        for chosen in combinations_with_replacement(range(n_inputs), total):
            found.append([chosen.count(q) for q in range(n_inputs)])
            if len(found) == n_features:
                return torch.tensor(found)
    raise AssertionError


FEATURES: dict[str, type[Features]] = {"points": Points, "derivatives": Derivatives, "fourier": Fourier, "eigen": Eigen}
