"""Inducing features other than function values at points.

``Derivatives`` u_m = f(z_m), and ℓ_q ∂f/∂x_q at z_m (tutorial, Eq. 22 and 23)
``Fourier``     inner products of f with waves on an interval, in :mod:`skdgp.gp.fourier`
``Eigen``       inner products of f with eigenfunctions of its kernel (tutorial, Eq. 20)
"""

import math
from functools import lru_cache
from itertools import chain, combinations_with_replacement, count, islice

import torch
from torch import Tensor, nn

from .features import Features, Orthonormal, kernel_name
from .kernels import Kernel, StationaryKernel, by_name
from .waves import Functions, Streams

#: Number of places along each input, for each eigenfunction, at which drawn functions are evaluated.
PLACES = 4

#: Largest number of places. A draw takes a Cholesky factor of their covariance.
MOST_PLACES = 600


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

    def points(self) -> list[Tensor]:
        """Z."""
        return [self.Z]

    @staticmethod
    def instead_of(n_points: int, n_inputs: int) -> int:
        """Number of points with no more inducing variables than ``n_points`` in all."""
        return max(1, n_points // (1 + n_inputs))

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Derivatives":
        """Features at these points; ValueError for a kernel without derivatives."""
        if not by_name(kernel) or kernel.profile == "matern12":
            raise ValueError(
                'inducing="derivatives" needs a kernel by name whose functions have derivatives: kernel="rbf", '
                f'"matern52" or "matern32", got {kernel_name(kernel)}. Take one of these, or inducing="points".'
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
            slopes = [torch.autograd.grad(output.sum(), Z, retain_graph=True)[0] for output in g.unbind(-1)]
        slope = torch.stack(slopes, dim=1) * _stationary(kernel).lengthscale[:, None]
        return torch.cat([g.detach().mT[..., None, :], slope.mT], dim=-2).flatten(-2)

    @staticmethod
    def _along(kernel: Kernel, Z: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Δ (..., D, M, N, Q), and κ and its derivatives there."""
        length = _stationary(kernel).lengthscale[..., None, :]  # (D, 1, 1 or Q)
        delta = (Z / length)[..., :, None, :] - (x.unsqueeze(-3) / length)[..., None, :, :]
        return delta, _smooth(_stationary(kernel).profile, delta.square().sum(-1))


def _stationary(kernel: Kernel) -> StationaryKernel:
    """The kernel, whose type :meth:`Features.initial` has checked."""
    assert by_name(kernel)
    return kernel


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


class Eigen(Orthonormal):
    """Inner products with eigenfunctions of the RBF kernel under a Gaussian measure, divided by roots of eigenvalues.

    For inputs t of mean 0 and variance 1, with a = 1/4, b = 1/(2ℓ²), c = √(a² + 2ab), A = a + b + c and B = b/A (Zhu,
    Williams, Rohwer and Morciniec, 1997; Rasmussen and Williams, Sec. 4.3), eigenvalues are √(2a/A) Bⁿ, and
    k_u(t) = √λ_n φ_n(t) follows from the two before:

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

    @staticmethod
    def instead_of(n_points: int, n_inputs: int) -> int:
        """Number that "auto" stands for: at least a constant feature and one for each input."""
        return max(n_points, 1 + n_inputs)

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Eigen":
        """Features for the mean and deviation of inputs; ValueError for other kernels, or too few features."""
        if not by_name(kernel) or kernel.profile != "rbf":
            raise ValueError(
                'inducing="eigen" needs kernel="rbf", whose eigenfunctions are known, got '
                f'{kernel_name(kernel)}: take it, or inducing="points".'
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
        t = (x - self.centre.to(x)) / self.scale.to(x)  # (..., N, Q)
        length = (_stationary(kernel).lengthscale.to(x) / self.scale.to(x)).unsqueeze(-2)  # (D, 1, Q)
        product = t.new_ones(())
        for q, degrees in enumerate(self.degrees.unbind(-1)):
            highest = _highest_degrees(self.n_inputs, len(self))[q]
            table = _eigenfunctions(t[..., q].unsqueeze(-2), length[..., q], highest)  # (..., D, n, N)
            product = product * table[..., degrees, :]
        return product

    def places(self, kernel: Kernel) -> Tensor:
        """Places spread evenly where features are not zero, which is a larger region for higher degrees."""
        n_inputs, highest = self.n_inputs, max(_highest_degrees(self.n_inputs, len(self)))
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
    g = [(2 * c / A).sqrt().sqrt() * torch.exp(-(c - a) * t.square())]
    for n in range(highest):
        following = (2 * B / (n + 1)).sqrt() * step * g[-1]
        if n:
            following = following - B * math.sqrt(n / (n + 1)) * g[-2]
        g.append(following)
    return torch.stack(g, dim=-2)


def _lowest_degrees(n_inputs: int, n_features: int) -> Tensor:
    """Degrees (T, Q) of the products with the lowest total degrees, from the constant one on."""
    by_total = (combinations_with_replacement(range(n_inputs), total) for total in count())
    products = islice(chain.from_iterable(by_total), n_features)
    return torch.tensor([[factors.count(q) for q in range(n_inputs)] for factors in products], device="cpu")


@lru_cache(maxsize=16)
def _highest_degrees(n_inputs: int, n_features: int) -> tuple[int, ...]:
    """The highest of these degrees for each input, which no step has to ask the device for."""
    return tuple(_lowest_degrees(n_inputs, n_features).amax(0).tolist())
