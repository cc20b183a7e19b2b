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

    #: Whether they are values of the function at the points Z.
    are_values = False

    Z: Tensor  # (M, Q), of features at points

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

    def points(self) -> list[Tensor]:
        """The points Z (M, Q), if they are features at points: a list of one tensor, or an empty one."""
        return []

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
            rows = [torch.autograd.grad(row.sum(), x, retain_graph=True)[0] for row in k.flatten(0, 1)]
        return torch.stack(rows).unflatten(0, k.shape[:2]).movedim(-1, 0)


class Points(Features):
    """Values of the function at points.

    Parameters
    ----------
    Z : Tensor of shape (T, Q)
        Initial points.
    """

    stackable = True

    are_values = True

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

    def points(self) -> list[Tensor]:
        """Z."""
        return [self.Z]

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
            totals = k.sum((0, 1)).unbind()
            gradients = [torch.autograd.grad(total, copies, retain_graph=True)[0] for total in totals]
        return torch.stack(gradients).permute(3, 0, 1, 2)


def all_points(sets: list[Features]) -> Tensor | None:
    """Points of all sets, one after the other; None if a set does not consist of points."""
    if not all(features.are_values for features in sets):
        return None
    points = [features.Z for features in sets]
    return points[0] if len(points) == 1 else torch.cat(points, dim=-2)


def joint_covariance(sets: list[Features], kernel: Kernel, dtype: torch.dtype) -> Tensor:
    """K_uu of all sets. Of two sets at least one consists of points; the other's covariances with these are its k_u."""
    if len(sets) == 1:
        return sets[0].covariance(kernel, dtype)
    if (points := all_points(sets)) is not None:
        return kernel.relative_covariance(points.to(dtype), points.to(dtype))
    first, second = sets
    if second.are_values:
        k12 = first.cross(kernel, second.Z.to(dtype))  # (D or 1, T1, T2)
    else:
        k12 = second.cross(kernel, first.Z.to(dtype)).mT
    k11, k12, k22 = same_kernels([first.covariance(kernel, dtype), k12, second.covariance(kernel, dtype)])
    return torch.cat([torch.cat([k11, k12], dim=-1), torch.cat([k12.mT, k22], dim=-1)], dim=-2)


def joint_cross(sets: list[Features], kernel: Kernel, x: Tensor) -> Tensor:
    """k_u(x) of all sets."""
    if len(sets) == 1:
        return sets[0].cross(kernel, x)
    if (points := all_points(sets)) is not None:
        return kernel.relative_covariance(points, x)
    return torch.cat(same_kernels([features.cross(kernel, x) for features in sets]), dim=-2)


def same_kernels(covariances: list[Tensor]) -> list[Tensor]:
    """Covariances (..., D or 1, ·, ·), with D kernels each if one of them has so many."""
    n_kernels = max(k.shape[-3] for k in covariances)
    return [k.expand(*k.shape[:-3], n_kernels, -1, -1) for k in covariances]


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
        expected = (A.mT @ torch.linalg.solve_triangular(L, g[..., None], upper=False))[..., 0]
        left = torch.eye(len(self), dtype=A.dtype, device=A.device) - A.mT @ A
        variances, vectors = torch.linalg.eigh(left)  # nearly zero, so that rounding errors matter
        root = vectors * variances.clamp(min=0.0).sqrt()[..., None, :]
        return expected + (root @ streams.normal(g.shape[1], len(self), 1).to(A))[..., 0]
