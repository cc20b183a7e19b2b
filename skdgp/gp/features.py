"""Inducing features, which define the inducing variables of a layer.

Each inducing variable is a linear functional of the function f, such as its value at a point. A layer needs three
things from a set of T features, always without the kernel's factor σ²:

================================== ======================= ======================================================
``covariance(kernel, dtype)``      (D or 1, T, T)          K_uu, their prior covariance
``cross(kernel, x)``               (..., D or 1, T, N)     k_u(x), their covariances with f at x (..., N, Q)
``values(kernel, prior, streams)`` (S, D, T)               their values for functions that are drawn from the prior
================================== ======================= ======================================================

``Points`` are values at points, u_m = f(z_m). Others are in :mod:`skdgp.gp.interdomain`.
"""

from typing import cast

import torch
from torch import Tensor, nn

from .kernels import Kernel, by_name
from .linalg import cholesky
from .waves import Functions, Streams


def kernel_name(kernel: Kernel) -> str:
    """Name of a kernel in messages."""
    return repr(kernel.profile) if by_name(kernel) else f"a {type(kernel).__name__}"


class Features(nn.Module):
    """Inducing features; see the module's docstring."""

    #: Whether K_uu = I.
    orthonormal = False

    def __init__(self, n_inputs: int):
        super().__init__()
        self.n_inputs = n_inputs

    @staticmethod
    def instead_of(n_points: int, n_inputs: int) -> int:
        """Number that "auto" stands for, if it would be ``n_points`` for points."""
        return n_points

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Features":
        """Initial features for a layer's inputs (N, Q): at points (M, Q), or at most ``n_features`` of them.

        Raises
        ------
        ValueError
            If they do not suit the kernel, or the number of inputs.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        """Number T of features."""
        raise NotImplementedError

    def covariance(self, kernel: Kernel, dtype: torch.dtype) -> Tensor:
        """Prior covariances K_uu, (D or 1, T, T)."""
        raise NotImplementedError

    def cross(self, kernel: Kernel, x: Tensor) -> Tensor:
        """Covariances k_u(x) with f at x (..., N, Q), (..., D or 1, T, N)."""
        raise NotImplementedError

    def values(self, kernel: Kernel, prior: Functions, streams: Streams) -> Tensor:
        """Values (S, D, T) for the functions ``prior``, which map (1, N, Q) to (S, N, D)."""
        raise NotImplementedError

    def gradient(self, kernel: Kernel, x: Tensor) -> Tensor:
        """∂k_u(x)/∂x for inputs (N, Q), of shape (Q, D or 1, T, N)."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            k = self.cross(kernel, x)  # (D or 1, T, N)
            rows = [torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in k.flatten(0, 1)]
        return torch.stack(rows).unflatten(0, k.shape[:2]).movedim(-1, 0)


class Points(Features):
    """Values of the function at points.

    Parameters
    ----------
    Z : Tensor of shape (T, Q)
        Initial points.
    """

    stackable = True

    def __init__(self, Z: Tensor):
        super().__init__(Z.shape[-1])
        self.Z = nn.Parameter(Z.clone())

    @classmethod
    def initial(cls, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int) -> "Points":
        """Values at these points."""
        return cls(points)

    def __len__(self) -> int:
        """Number T of points: the last dimension but one, in a stack of models too."""
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
        """See :meth:`Features.gradient`. Points and inputs are paired, since kernels may have their own gradients."""
        Z = self.Z.detach()
        with torch.enable_grad():
            copies = x.detach().expand(len(Z), -1, -1).clone().requires_grad_()  # (T, N, Q): pairs
            k = kernel.relative_covariance(Z[:, None, None], copies[:, :, None])[..., 0, 0]  # (T, N, D or 1)
            total = k.sum((0, 1)).unbind()
            found = [torch.autograd.grad(each, copies, retain_graph=True)[0] for each in total]
        return torch.stack(found).permute(3, 0, 1, 2)


def all_points(sets: list[Features]) -> Tensor | None:
    """Points of all sets, one after the other; None if a set does not consist of points."""
    points: list[Tensor] = [each.Z for each in sets if isinstance(each, Points)]
    if len(points) < len(sets):
        return None
    return points[0] if len(points) == 1 else torch.cat(points, dim=-2)


def joint_covariance(sets: list[Features], kernel: Kernel, dtype: torch.dtype) -> Tensor:
    """K_uu of all sets. Of two sets at least one consists of points; the other's covariances with these are its k_u."""
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


class Orthonormal(Features):
    """Features with K_uu = I. Their values for a drawn function follow from its values at many places."""

    orthonormal = True

    def covariance(self, kernel: Kernel, dtype: torch.dtype) -> Tensor:
        """The identity, (1, T, T)."""
        return torch.eye(len(self), dtype=dtype, device=kernel.unit.device)[None]

    def places(self, kernel: Kernel) -> Tensor:
        """Inputs (G, Q), in float64, where a function's values determine its features almost exactly."""
        raise NotImplementedError

    def values(self, kernel: Kernel, prior: Functions, streams: Streams) -> Tensor:
        """Values drawn from their distribution given the function at :meth:`places`, which almost determines them."""
        G = self.places(kernel)
        L = cholesky(kernel.relative_covariance(G, G))  # (D or 1, G, G)
        A = torch.linalg.solve_triangular(L, self.cross(kernel, G).mT, upper=False)  # (D or 1, G, T)
        g = prior(G[None]).mT.to(A)  # (S, D, G)
        found = (A.mT @ torch.linalg.solve_triangular(L, g[..., None], upper=False))[..., 0]
        left = torch.eye(len(self), dtype=A.dtype, device=A.device) - A.mT @ A
        variances, vectors = torch.linalg.eigh(left)  # nearly zero, so that rounding errors matter
        root = vectors * variances.clamp(min=0.0).sqrt()[..., None, :]
        return found + (root @ streams.normal(g.shape[1], len(self), 1).to(A))[..., 0]
