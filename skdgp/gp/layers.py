"""Layers of a deep GP.

A layer is a function of its parameters and inputs, and leaves nothing behind:

    layer(x, anchor, targets) -> mean, variance, kl

============ ===================== ==============================================================
``x``        (S, B, Q)             inputs, S samples or quadrature points for each of B rows
``anchor``   (B, Q) or (S, B, Q)   what a row's inducing variables are computed from, if they are
``targets``  (B, P) or None        targets of the rows, in training alone
``mean``     (S, B, D)             marginal means of the D outputs
``variance`` (S, B, D)             marginal variances
``kl``       (B,) or ()            what inducing variables, a row's or global, cost, summed over outputs
============ ===================== ==============================================================
"""

import math
from copy import copy
from typing import Self, cast

import torch
from torch import Tensor, nn

from . import rowwise
from .conditionals import VARIANCE_FLOOR, contribution, kl_divergence
from .kernels import Kernel, StationaryKernel
from .linalg import JITTER, Factor, cholesky, factorise, whiten_sets
from .means import Mean
from .networks import InferenceNetwork

#: Inducing variables that are whitened together. Fewer spare more products with zeros, more make larger ones.
MAX_BLOCK = 512


class Layer(nn.Module):
    """A GP layer; see the module's docstring."""

    kernel: Kernel

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Marginals of function values, and what the inducing variables cost."""
        raise NotImplementedError

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the largest tensor that the layer makes, for each row."""
        raise NotImplementedError

    def frozen(self) -> Self:
        """The layer as it is, for many calls without gradients: what does not depend on inputs is computed once."""
        return self


class AmortisedLayer(Layer):
    """GP layer whose inducing variables are a learnt function of every row (AVDGP, Sec. 3.1 and 4.1).

    Parameters
    ----------
    kernel : Kernel
        One covariance per output, or one that all outputs share.
    mean : Mean
        Mean function, from (..., Q) to (..., D).
    inference : InferenceNetwork
        Maps an anchor (B, Q) to Z (B, M, Q), mean (M, D, B) and root (M, D, B) or (M, M, D, B);
        see :mod:`skdgp.gp.networks`.
    whiten : bool
        Whether the inference network speaks of v or of u = m(Z) + L v.
    """

    def __init__(self, kernel: Kernel, mean: Mean, inference: InferenceNetwork, *, whiten: bool):
        super().__init__()
        self.kernel = kernel
        self.mean = mean
        self.inference = inference
        self.whiten = whiten

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the correlations of inducing variables with each other and with the samples."""
        n_inducing, n_outputs = self.inference.shape
        return n_inducing * n_outputs * (n_inducing + n_samples)

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Marginals of the row's function values, and what its inducing variables cost."""
        if anchor.dim() == 3:  # AR1: every sample is a row with inducing variables of its own
            n_samples = anchor.shape[0]
            mean, variance, kl = self(x.flatten(0, 1)[None], anchor.flatten(0, 1))
            mean, variance = mean[0].unflatten(0, (n_samples, -1)), variance[0].unflatten(0, (n_samples, -1))
            return mean, variance, kl.unflatten(0, (n_samples, -1)).mean(0)  # Eq. 4.8

        Z, q_mean, q_root = self.inference(anchor)  # (B, M, Q), (M, D, B), (M, D, B) or (M, M, D, B)
        deviation = self.kernel.deviation[:, None]  # (D, 1)
        if not self.whiten:
            # Dividing u and its prior by σ changes neither the KL nor the conditional.
            q_mean = (q_mean - self.mean(Z).permute(1, 2, 0)) / deviation
            q_root = q_root / deviation
        points = x.transpose(0, 1)  # (B, S, Q)
        if isinstance(self.kernel, StationaryKernel):
            correlations = rowwise.packed_correlation(self.kernel, Z, points)
            mean, variance, kl = rowwise.conditional(correlations, q_mean, q_root, deviation, whiten=self.whiten)
        else:
            mean, variance, kl = rowwise.plain_conditional(self.kernel, Z, points, q_mean, q_root, whiten=self.whiten)
        return self.mean.added_to(mean.transpose(1, 2), x), variance.transpose(1, 2), kl.sum(0)


class Posterior(nn.Module):
    """Gaussian posterior of M inducing variables for each of D outputs.

    Parameters
    ----------
    mean : Tensor of shape (D, M)
        Initial means.
    root : Tensor of shape (D, M, M)
        Lower triangular root of initial covariances.
    covariance : {"diag", "full", "prior"}
        What is learnt of the covariance; with "prior" nothing, it stays the prior's.
    """

    def __init__(self, mean: Tensor, root: Tensor, covariance: str):
        super().__init__()
        self.mean = nn.Parameter(mean.clone())
        self.log_diagonal, self.below = None, None
        if covariance != "prior":
            # The logarithm lets deviations grow from next to nothing at the pace of any other parameter.
            full = covariance == "full"
            diagonal = root.diagonal(dim1=-2, dim2=-1) if full else root.square().sum(-1).sqrt()
            self.log_diagonal = nn.Parameter(diagonal.log())
            self.below = nn.Parameter(root.tril(-1)) if full else None

    @property
    def root(self) -> Tensor | None:
        """Root of the covariance: its diagonal (D, M), lower triangular (D, M, M), or None for the prior's."""
        if self.log_diagonal is None:
            return None
        diagonal = self.log_diagonal.exp()
        return diagonal if self.below is None else self.below.tril(-1) + torch.diag_embed(diagonal)

    @torch.no_grad()
    def set(self, mean: Tensor, root: Tensor) -> None:
        """Become another posterior, of means (D, M) and full covariances with roots (D, M, M)."""
        self.mean.copy_(mean)
        cast(Tensor, self.log_diagonal).copy_(root.diagonal(dim1=-2, dim2=-1).log())
        cast(Tensor, self.below).copy_(root.tril(-1))


class GlobalLayer(Layer):
    """GP layer whose inducing variables are parameters, the same for every row (DS-DGP, Sec. 2.1 and 3).

    Parameters
    ----------
    kernel : Kernel
        One covariance per output, or one that all outputs share.
    mean : Mean
        Mean function, from (..., Q) to (..., D).
    Z : Tensor of shape (M, Q)
        Initial inducing points, which all outputs share.
    v : Tensor of shape (D, M)
        Initial posterior means, whitened.
    covariance : {"diag", "full"}
        Of the inducing variables' posterior.
    whiten : bool
        Whether the posterior is of v or of u = m(Z) + L v.
    initial_deviation : float, default=1.0
        Posterior deviations to start from, in units of the prior's: 1 is the prior, and a small number an
        all but deterministic layer.
    white_noise : float, default=None
        Initial variance of white noise that the layer adds, learnt per output; None is no noise. It is added
        to the marginals, and not to the inducing variables' prior covariance; the paper's kernel has it in both.
    jitter : float, default=JITTER
        Added to the unit diagonal of the inducing points' correlations.
    """

    _factor: Factor | None = None  # of a frozen layer

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        Z: Tensor,
        v: Tensor,
        *,
        covariance: str,
        whiten: bool,
        initial_deviation: float = 1.0,
        white_noise: float | None = None,
        jitter: float = JITTER,
    ):
        super().__init__()
        self.kernel = kernel
        self.mean = mean
        self.whiten = whiten
        self.jitter = jitter
        n_outputs, n_inducing = v.shape
        root = torch.eye(n_inducing, dtype=Z.dtype)
        with torch.no_grad():
            if not whiten:
                root = cholesky(kernel.covariance(Z, Z), jitter)  # (D or 1, M, M)
                v = mean(Z).mT + (root @ v[..., None])[..., 0]
            root = initial_deviation * root.expand(n_outputs, -1, -1)
        self.Z = nn.Parameter(Z.clone())
        self.q = Posterior(v, root, covariance)
        log_noise = None if white_noise is None else nn.Parameter(Z.new_full((n_outputs,), math.log(white_noise)))
        self.log_white_noise = log_noise

    @property
    def point_sets(self) -> list[Tensor]:
        """The inducing points of each set of inducing variables."""
        return [self.Z]

    @property
    def posteriors(self) -> list[Posterior]:
        """The posterior of each set."""
        return [self.q]

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of whitened cross-correlations, and of their products with the posterior's root."""
        n_outputs, n_inducing = self.q.mean.shape
        shared = self.q.below is None and self.kernel.n_outputs == 1
        return n_samples * n_inducing * (1 if shared else n_outputs)

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Marginals of function values; rows do not matter to what the inducing variables cost."""
        rows = x.flatten(0, -2)  # (N, Q), N = S·B
        prior = self.kernel.relative_diagonal(rows)  # (D or 1, N), or a number
        f_mean, f_variance, kl = x.new_zeros(()), prior, x.new_zeros(())
        for (W, A), (mean, root) in zip(self.whitened(rows), self._unit_posteriors(), strict=True):
            added, change = contribution(W, A, mean, root, whiten=self.whiten)  # (D, N)
            f_mean, f_variance = f_mean + added, f_variance + change
            kl = kl + kl_divergence(mean, root, W).sum()
        f_variance = cast(Tensor, f_variance).clamp(min=VARIANCE_FLOOR * prior)
        return *self._marginals(x, f_mean, f_variance), kl

    def whitened(self, x: Tensor) -> list[tuple[Tensor | None, Tensor]]:
        """For each set of inducing variables W = L⁻¹ and A (see :func:`~.linalg.whiten_sets`), without the kernel's σ².

        W is (M, M), and A, whitened covariances with function values at ``x`` (N, Q), is (M, N); with a
        kernel per output there are D of both. Whitened posteriors have no use for W, which is None then.
        Covariances are factorised in float64, whatever the layer's precision, since inducing points may crowd.
        """
        points, sizes = torch.cat(self.point_sets), [len(each) for each in self.point_sets]
        k = self._covariance(points, x)
        if self._factor is not None:
            blocks = list(zip(self._factor.W, self._factor.solve(k), strict=True))
        else:
            exact = points.double()
            blocks = whiten_sets(self._covariance(exact, exact), k, self.jitter, self._block_sizes)
        if not self.whiten:
            return [*blocks]
        A = blocks[0][1] if len(blocks) == 1 else torch.cat([A for _, A in blocks], dim=-2)
        return [(None, each) for each in A.split(sizes, dim=-2)]

    @torch.no_grad()
    def frozen(self) -> Self:
        """See :meth:`Layer.frozen`."""
        layer, points = copy(self), torch.cat(self.point_sets)
        K = self._covariance(points.double(), points.double())
        layer._factor = factorise(K, self.jitter, self._block_sizes, points.dtype)
        return layer

    @property
    def _block_sizes(self) -> list[int]:
        """Numbers of inducing variables that are whitened together: a set, or a part of one without its own W."""
        sizes = [len(each) for each in self.point_sets]
        return [block for size in sizes for block in _even_parts(size, MAX_BLOCK)] if self.whiten else sizes

    def _covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Covariances without the kernel's σ², (N1, N2) if outputs share a kernel, else (D, N1, N2)."""
        K = self.kernel.relative_covariance(X1, X2)
        return K[0] if len(K) == 1 else K

    def _unit_posteriors(self) -> list[tuple[Tensor, Tensor | None]]:
        """For each set of inducing variables the mean and root of the posterior, of a unit prior."""
        mean = self.q.mean if self.whiten else self.q.mean - self.mean(self.Z).mT
        return [self._in_units(mean, self.q.root)]

    def _in_units(self, mean: Tensor, root: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A posterior in units of the prior's deviation, which whitened variables have anyway.

        Dividing u and its prior by σ changes neither the KL nor the conditional.
        """
        if self.whiten:
            return mean, root
        deviation = self.kernel.deviation[:, None]  # (D or 1, 1)
        if root is not None:
            root = root / (deviation if root.dim() == 2 else deviation[..., None])
        return mean / deviation, root

    def _marginals(self, x: Tensor, f_mean: Tensor, f_variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (S, B, D) at ``x`` from those of a unit prior (D, N)."""
        deviation = self.kernel.deviation[:, None]
        variance = f_variance * deviation.square()
        if self.log_white_noise is not None:
            variance = variance + self.log_white_noise.exp()[:, None]
        shape = (*x.shape[:-1], -1)
        return self.mean.added_to((f_mean * deviation).mT.reshape(shape), x), variance.mT.reshape(shape)


class OrthogonalLayer(GlobalLayer):
    """Global layer with a second set of inducing points, for what the first leaves over (SOLVE-GP, Sec. 3).

    f = f∥ + f⊥, where f∥ is what the inducing variables at Z say of f, and f⊥ is independent of them, with
    covariance C(a, b) = k(a, b) − k(a, Z) K⁻¹ k(Z, b). Variables v at O summarise f⊥. Where O meets Z nothing
    is left of C but the jitter, which keeps it positive definite.

    Parameters
    ----------
    O : Tensor of shape (M₂, Q)
        Initial inducing points of f⊥.
    orthogonal_covariance : {"diag", "full", "prior"}
        Of the posterior of v. "prior" learns its mean alone (ODVGP, Sec. 5).
    **options
        Of :class:`GlobalLayer`.
    """

    def __init__(self, *args, O: Tensor, orthogonal_covariance: str, **options):  # noqa: E741
        super().__init__(*args, **options)
        n_outputs = len(self.q.mean)
        root = torch.eye(len(O), dtype=O.dtype)
        self.O = nn.Parameter(O.clone())
        with torch.no_grad():
            if not self.whiten:
                points = torch.cat(self.point_sets).double()
                L = cholesky(self.kernel.covariance(points, points), self.jitter)  # of both sets: L_v is its last block
                root = L[..., len(self.Z) :, len(self.Z) :].to(O.dtype)
            root = options.get("initial_deviation", 1.0) * root.expand(n_outputs, -1, -1)
        self.q_orthogonal = Posterior(O.new_zeros(n_outputs, len(O)), root, orthogonal_covariance)

    @property
    def point_sets(self) -> list[Tensor]:
        """The inducing points of each set of inducing variables."""
        return [self.Z, self.O]

    @property
    def posteriors(self) -> list[Posterior]:
        """The posterior of each set."""
        return [self.q, self.q_orthogonal]

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of whitened cross-correlations of both sets, and of their products with posteriors' roots."""
        shared = super().numbers_per_row(n_samples) == n_samples * self.q.mean.shape[1]
        shared = shared and self.q_orthogonal.below is None
        n_points = len(self.Z) + len(self.O)
        return n_samples * n_points * (1 if shared else len(self.q.mean))

    def _unit_posteriors(self) -> list[tuple[Tensor, Tensor | None]]:
        v = self._in_units(self.q_orthogonal.mean, self.q_orthogonal.root)  # f⊥ has zero mean
        return [*super()._unit_posteriors(), v]


def _even_parts(total: int, largest: int) -> list[int]:
    """Numbers that differ by one at most, are at most ``largest`` and add up to ``total``."""
    n_parts = -(-total // largest)
    return [(i + 1) * total // n_parts - i * total // n_parts for i in range(n_parts)]
