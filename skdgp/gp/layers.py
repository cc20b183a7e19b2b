"""The interface of a deep GP's layers.

A layer is a function of its parameters and inputs, without any other state:

    layer(x, anchor, targets) -> mean, variance, kl

============ ===================== ==============================================================
``x``        (S, B, Q)             inputs, S samples or quadrature points for each of B rows
``anchor``   (B, Q) or (S, B, Q)   a row's inducing variables are computed from it, if they differ between rows
``targets``  (B, P) or None        targets of the rows, in training alone
``mean``     (S, B, D)             marginal means of the D outputs
``variance`` (S, B, D)             marginal variances
``kl``       (B,) or ()            KL divergence of inducing variables, a row's or global ones, summed over outputs
============ ===================== ==============================================================

Training needs only marginals. :meth:`Layer.covariance` computes covariances between rows, and :meth:`Layer.draw` draws
whole functions:

    layer.draw(streams)(x, anchor) -> values of S functions, (S, B, D)

Draws are pathwise (Wilson et al., ICML 2020): f(x) = m(x) + g(x) + k(x, Z) K⁻¹ (u − g(Z)), where g is drawn from the
prior and u from the posterior of the inducing variables. Given g and u, f is an ordinary function of x.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Self, TypeVar

from torch import Tensor, nn

from .kernels import Kernel
from .waves import Streams, UndrawnError

#: Number of entries of a joint covariance that are computed at a time: 8 MiB. Larger and smaller parts are slower.
CACHE_NUMBERS = 2**20

#: Functions of S draws: from inputs (S or 1, B, Q) and anchors (B, Q) or (S, B, Q) to values (S, B, D).
LayerDraw = Callable[[Tensor, Tensor], Tensor]

Part = TypeVar("Part", bound=nn.Module)


class Layer(nn.Module):
    """A GP layer; see the module's docstring."""

    kernel: Kernel

    #: Whether marginals in float32 are those of float64 up to 1e-5 of a deviation.
    coarse = False

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Marginals of function values, and the KL divergence; see the module's docstring."""
        raise NotImplementedError

    def jointly(self, x: Tensor, anchor: Tensor, n_replicates: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, and covariances between each K successive inputs, which belong to one row.

        Returns
        -------
        mean, variance, kl
            As returned by the layer.
        root : Tensor of shape (S/K, B, D, K, K)
            Lower triangular roots of covariances.
        """
        raise ValueError(f"{type(self).__name__} has no joint marginals of replicates: define its method jointly.")

    def inducing_points(self) -> list[Tensor]:
        """Inducing points (M, Q), if all rows share them: a list of one tensor, or an empty one."""
        return []

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the largest tensor that the layer makes, for each row."""
        raise NotImplementedError

    def products(self, n_rows: int, n_samples: int) -> int:
        """Multiplications of the layer's largest operation, roughly; they decide on the number of threads."""
        return n_rows * self.numbers_per_row(n_samples)

    def frozen(self, *, turned: bool = False) -> Self:
        """A copy for many calls without gradients, for which everything independent of inputs is computed once.

        With ``turned`` that includes eigendecompositions of posterior covariances. They pay only if there are more rows
        than inducing variables. Parameters that are not finite are an error then.
        """
        return self

    def covariance(self, x: Tensor, anchor: Tensor, weight: Tensor) -> Tensor:
        """Covariances of function values between rows, (D, B, B): Σ_s weight_s Cov(f(x_si), f(x_sj)).

        Parameters
        ----------
        x, anchor
            Arguments of the layer.
        weight : Tensor of shape (S,)
        """
        raise ValueError(f"{type(self).__name__} has no joint posterior: define its method covariance.")

    def between_outputs(self, x: Tensor, anchor: Tensor, weight: Tensor) -> Tensor | None:
        """Covariances Σ_s weight_s Cov(f(x_sb)) between outputs, (B, D, D), for weights (S, 1) or (S, B).

        None if outputs are independent.
        """
        return None

    def draw(self, streams: Streams) -> LayerDraw:
        """Functions of the layer, one for each stream of random numbers, without the layer's white noise."""
        raise UndrawnError(f"Functions cannot be drawn of {type(self).__name__}: define its method draw.")

    def gradient_variance(self, x: Tensor) -> Tensor | None:
        """Variances (N, D, Q) of partial derivatives of f at ``x`` (N, Q); None if there is no closed form."""
        return None

    def numbers_per_draw(self) -> int:
        """Number of entries of the tensors that one drawn function computes with, for each row."""
        raise NotImplementedError


def with_parts(module: Part, **parts: nn.Module) -> Part:
    """A copy of a module that has other parts under these names, and shares everything else."""
    changed = copy(module)
    changed._modules = {**module._modules, **parts}
    return changed


def upper_chunks(n_rows: int, numbers_per_pair: int = 1) -> Iterator[tuple[slice, slice]]:
    """Parts that cover the upper triangle of a symmetric matrix: some rows, and columns from the first of them on."""
    size = max(1, CACHE_NUMBERS // (n_rows * numbers_per_pair))
    yield from ((slice(start, start + size), slice(start, n_rows)) for start in range(0, n_rows, size))


def mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrix with this upper triangle; entries below it are ignored."""
    return upper.triu() + upper.triu(1).mT
