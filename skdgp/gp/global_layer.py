"""Layers whose inducing variables are the same for all rows: in one set, or with a second, orthogonal set."""

import math
from copy import copy
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn

from .conditionals import contribution, covariance_factors, kl_divergence, root_product, variance_floor
from .features import Features, Points, joint_covariance, joint_cross
from .kernels import Kernel
from .layers import Layer, LayerDraw, mirrored, upper_chunks
from .linalg import JITTER, NO_JITTER, Factor, cholesky, factorise, shared, whiten_sets
from .means import Mean
from .turned import Turned
from .waves import Streams

#: Largest number of inducing variables that are whitened together. Smaller blocks avoid more products with zeros, but
#: larger ones make larger products, which are faster.
MAX_BLOCK = 512

#: Variance of noise, relative to the prior's, that is added at several inputs of one row, since they may coincide.
REPLICATE_NOISE = 1e-6

#: Of one set of inducing variables: W and A as in :func:`.contribution`, and the mean and root of the posterior.
Block = tuple[Tensor | None, Tensor, Tensor, Tensor | None]


class Posterior(nn.Module):
    """Gaussian posterior of M inducing variables for each of D outputs.

    Parameters
    ----------
    mean : Tensor of shape (D, M)
        Initial means.
    root : Tensor of shape (D, M, M), or (1, M, M) where outputs share the covariance
        Lower triangular root of initial covariances.
    covariance : {"diag", "full", "prior"}
        Which part of the covariance is learnt. With "prior" nothing is learnt, and it stays the prior's.
    """

    stackable = True

    log_diagonal: Tensor  # (D, M), of the root; None if the covariance stays the prior's
    below: Tensor  # (D, M, M), of the root; None unless the covariance is full

    def __init__(self, mean: Tensor, root: Tensor, covariance: str):
        super().__init__()
        self.mean = nn.Parameter(mean.clone())
        self.register_parameter("log_diagonal", None)
        self.register_parameter("below", None)
        if covariance != "prior":
            # With logarithms, deviations that start near zero grow as fast as any other parameter.
            full = covariance == "full"
            diagonal = root.diagonal(dim1=-2, dim2=-1) if full else root.square().sum(-1).sqrt()
            self.log_diagonal = nn.Parameter(diagonal.log())
            if full:
                self.below = nn.Parameter(root.tril(-1))

    @property
    def root(self) -> Tensor | None:
        """Root of the covariance: its diagonal (D, M), lower triangular (D, M, M), or None for the prior's."""
        if self.log_diagonal is None:
            return None
        return self.log_diagonal.exp() if self.below is None else self.triangle

    @property
    def triangle(self) -> Tensor:
        """Lower triangular root (D, M, M) of a covariance that is learnt, whether it is full or diagonal."""
        diagonal = torch.diag_embed(self.log_diagonal.exp())
        return diagonal if self.below is None else self.below.tril(-1) + diagonal

    @torch.no_grad()
    def set(self, mean: Tensor, root: Tensor) -> None:
        """Set the means (D, M), and full covariances by their roots (D, M, M)."""
        self.mean.copy_(mean)
        self.log_diagonal.copy_(root.diagonal(dim1=-2, dim2=-1).log())
        self.below.copy_(root.tril(-1))


class GlobalLayer(Layer):
    """GP layer whose inducing variables are parameters, the same for every row (DS-DGP, Sec. 2.1 and 3).

    Parameters
    ----------
    kernel : Kernel
        One covariance per output, or one that all outputs share.
    mean : Mean
        Mean function, from (..., Q) to (..., D).
    Z : Tensor of shape (M, Q) or Features
        Initial inducing points, which all outputs share, or other inducing features; see :mod:`skdgp.gp.features`.
    v : Tensor of shape (D, M)
        Initial posterior means, whitened.
    covariance : {"diag", "full"}
        Covariance of the inducing variables' posterior.
    whiten : bool
        Whether the posterior is that of the whitened v, instead of that of u = m(Z) + L v.
    initial_deviation : float, default=1.0
        Initial posterior deviations, in units of the prior's. 1 is the prior, and with a small number the layer is
        nearly deterministic.
    white_noise : float, default=None
        Initial variance of white noise that the layer adds, learnt for each output; None is no noise. It is added
        to the marginals, but not to the inducing variables' prior covariance; the paper's kernel has it in both.
    jitter : float, default=JITTER
        Added to the unit diagonal of the inducing points' correlations.
    share_covariance : bool, default=False
        Whether the posterior's covariance is the same for all outputs. This suits outputs that share kernel and noise.
    """

    stackable = True

    # Of a frozen layer: the factor of its prior covariance, or what marginals need if it was turned; and the prior
    # covariance with its Cholesky factor, which the first drawn function computes for all that follow.
    _factor: Factor | None = None
    _turned: Turned | None = None
    _for_draws: list[tuple[Tensor, Tensor]] | None = None

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        Z: Tensor | Features,
        v: Tensor,
        *,
        covariance: str,
        whiten: bool,
        initial_deviation: float = 1.0,
        white_noise: float | None = None,
        jitter: float = JITTER,
        share_covariance: bool = False,
    ):
        super().__init__()
        self.kernel = kernel
        self.mean = mean
        self.whiten = whiten
        self.jitter = jitter
        self.inducing = Points(Z) if isinstance(Z, Tensor) else Z
        n_outputs, n_inducing = v.shape
        root = torch.eye(n_inducing, dtype=v.dtype, device=v.device)
        with torch.no_grad():
            if not whiten:
                root = cholesky(kernel.covariance(self.Z, self.Z), jitter)  # (D or 1, M, M)
                v = mean(self.Z).mT + (root @ v[..., None])[..., 0]
            root = initial_deviation * root.expand(1 if share_covariance else n_outputs, -1, -1)
        self.q = Posterior(v, root, covariance)
        log_noise = None if white_noise is None else nn.Parameter(v.new_full((n_outputs,), math.log(white_noise)))
        self.log_white_noise = log_noise

    @property
    def Z(self) -> Tensor:
        """Inducing points (M, Q); AttributeError if the features are not points."""
        return self.inducing.Z

    @property
    def O(self) -> Tensor:  # noqa: E743
        """Inducing points (M₂, Q) of the second set, of which there are none."""
        return self.Z[:0]

    @property
    def feature_sets(self) -> list[Features]:
        """The inducing features of each set of inducing variables."""
        return [self.inducing]

    @property
    def sizes(self) -> list[int]:
        """Numbers of inducing variables of each set."""
        return [len(features) for features in self.feature_sets]

    @property
    def posteriors(self) -> list[Posterior]:
        """The posterior of each set."""
        return [self.q]

    def remember(self, noise: Tensor, cross: Tensor) -> None:
        """Keep with what noise (P,) the best posteriors were computed, and Σ w φ_u φ_vᵀ (M, M₂) of the two sets."""
        self.register_buffer("learnt_noise", noise.detach().to(self.q.mean))
        self.register_buffer("learnt_cross", cross.detach().to(self.q.mean))

    @property
    def remembered(self) -> tuple[Tensor, Tensor] | None:
        """Noise and sum that :meth:`remember` has kept; None if posteriors have been learnt in another way."""
        noise, cross = (self._buffers.get(name) for name in ("learnt_noise", "learnt_cross"))
        return None if noise is None or cross is None else (noise, cross)

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of whitened cross-correlations, and of their products with the posteriors' roots."""
        below = [posterior.below for posterior in self.posteriors if posterior.below is not None]
        shared = self.kernel.n_outputs == 1 and all(root.shape[-3] == 1 for root in below)
        return n_samples * sum(self.sizes) * max(1 if shared else self.q.mean.shape[-2], self.kernel.numbers())

    def products(self, n_rows: int, n_samples: int) -> int:
        """Multiplications for whitening the rows; for few rows, those for the inverse Cholesky factor."""
        n_features = sum(self.sizes)
        return n_features * max(super().products(n_rows, n_samples), n_features**2 // 3)

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Means and variances (S, B, D) of function values, and the KL divergence (), which does not depend on rows."""
        return self._at(x, self._blocks(x))

    def jointly(self, x: Tensor, anchor: Tensor, n_replicates: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See :meth:`.Layer.jointly`; covariances are K** + Aᵀ(Σ − I)A for the inputs of each row."""
        blocks, shape = self._blocks(x), (*x.shape[:-3], -1, n_replicates, *x.shape[-2:])
        rows = x.reshape(shape).movedim((-4, -2), (0, 1))  # (S/K, B, K, Q)
        K = self.kernel.relative_covariance(rows, rows)  # (S/K, B, D or 1, K, K)
        for W, A, mean, root in blocks:
            if A.dim() == mean.dim():  # outputs share both
                W, A = None if W is None else W.unsqueeze(-3), A.unsqueeze(-3)
            for pair in covariance_factors(W, A, mean, root):
                factors = (factor.unflatten(-1, shape[-4:-1]) for factor in pair)  # (D or 1, M, S/K, K, B)
                left, right = (factor.movedim((-3, -1), (0, 1)) for factor in factors)  # (S/K, B, D or 1, M, K)
                K = K + left.mT @ right
        noise = REPLICATE_NOISE * self.kernel.deviation.square()
        if self.log_white_noise is not None:
            noise = noise + self.log_white_noise.exp()
        noise = torch.diag_embed(noise[..., None].expand(*noise.shape, n_replicates))
        K = K * self.kernel.variance[..., None, None] + noise
        return *self._at(x, blocks), cholesky(K, NO_JITTER).movedim((0, 1), (-5, -4))

    def _blocks(self, x: Tensor) -> list[Block]:
        """Each set of inducing variables at inputs (S, B, Q), with the posterior for a unit prior."""
        rows = x.flatten(-3, -2)
        if self._turned is None:
            return self._with_posteriors(self.whitened(rows))
        k = shared(joint_cross(self.feature_sets, self.kernel, rows))
        sets = zip(self._turned.factor.solve(k), self._turned.posteriors, strict=True)
        return [(None, A, *posterior) for A, posterior in sets]

    def _with_posteriors(self, whitened: list[tuple[Tensor | None, Tensor]]) -> list[Block]:
        """What :meth:`whitened` returns, with the posteriors of the sets."""
        return [(W, A, *posterior) for (W, A), posterior in zip(whitened, self._unit_posteriors(), strict=True)]

    def _at(self, x: Tensor, blocks: list[Block]) -> tuple[Tensor, Tensor, Tensor]:
        """Marginals (S, B, D) and the KL divergence (), from what :meth:`_blocks` returns."""
        prior = self.kernel.relative_diagonal(x.flatten(-3, -2))  # (D or 1, N), N = S·B, or a number
        f_mean, kl = x.new_zeros(()), x.new_zeros(())
        f_variance = kl + prior
        for W, A, mean, root in blocks:
            added, change = contribution(W, A, mean, root)  # (D, N)
            f_mean, f_variance = f_mean + added, f_variance + change
            kl = kl + kl_divergence(mean, root, W).sum(-1)
        f_variance = f_variance.clamp(min=variance_floor(x) * prior).expand_as(f_mean)
        return *self._marginals(x, f_mean, f_variance), kl

    def inducing_points(self) -> list[Tensor]:
        """See :meth:`.Layer.inducing_points`; those of the first set."""
        return self.inducing.points()

    def numbers_per_draw(self) -> int:
        """Number of covariances with inducing variables, for each row."""
        return self.kernel.n_outputs * sum(self.sizes)

    def draw(self, streams: Streams, v: Tensor | None = None) -> LayerDraw:
        """Functions f(x) = m(x) + g(x) + k_u(x)ᵀ K⁻¹ (u − g_u), with the inducing features of all sets.

        g is drawn from the prior, and g_u are its features. Whitened inducing variables ``v`` (S, D, T) come from the
        posterior, if they are not given.
        """
        n_outputs = len(self.q.mean)
        prior = self.kernel.draw(streams, self.inducing.n_inputs, n_outputs)
        K, L = self._prior_root()
        noise = (self.jitter * K.diagonal(dim1=-2, dim2=-1).mean(-1)).sqrt()[:, None, None]
        parts = [features.values(self.kernel, prior, streams) for features in self.feature_sets]
        g_u = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)  # (S, D, T)
        g = g_u[..., None] + noise * streams.normal(n_outputs, K.shape[-1], 1)  # since K has jitter
        v = self._drawn(streams, L) if v is None else v
        residual = v[..., None] - torch.linalg.solve_triangular(L, g, upper=False)
        change = torch.linalg.solve_triangular(L.mT, residual, upper=True)[..., 0]  # (S, D, T)

        def function(x: Tensor, anchor: Tensor) -> Tensor:
            k = joint_cross(self.feature_sets, self.kernel, x)  # (S or 1, D or 1, T, N)
            if k.shape[1] == 1:
                values = change @ (k[0, 0] if len(k) == 1 else k[:, 0])  # (S, D, N)
            else:
                values = (change[..., None, :] @ k)[..., 0, :]
            return self.mean.added_to((prior(x) + values.mT) * self.kernel.deviation, x)

        return function

    def _prior_root(self) -> tuple[Tensor, Tensor]:
        """Prior covariance of all inducing variables, (D or 1, T, T), and its Cholesky factor.

        A frozen layer keeps both.
        """
        if self._for_draws:
            return self._for_draws[0]
        K = joint_covariance(self.feature_sets, self.kernel, self.q.mean.dtype)
        root = cholesky(K, self.jitter)
        if self._for_draws is not None:
            self._for_draws.append((K, root))
        return K, root

    def _drawn(self, streams: Streams, L: Tensor) -> Tensor:
        """Inducing variables from their posteriors, whitened by the factor ``L`` of all sets: L⁻¹u, (S, D, T)."""
        parts, end = [], 0
        for mean, root in self._unit_posteriors():
            start, end = end, end + mean.shape[-1]
            epsilon = streams.normal(*mean.shape)
            spread = root_product(root, epsilon) if root is not None else torch.zeros_like(epsilon)
            u = mean + spread  # (S, D, M)
            if not self.whiten:
                u = torch.linalg.solve_triangular(L[..., start:end, start:end], u[..., None], upper=False)[..., 0]
            parts.append(u if root is not None else u + epsilon)
        return torch.cat(parts, dim=-1)

    def covariance(self, x: Tensor, anchor: Tensor, weight: Tensor) -> Tensor:
        """See :meth:`.Layer.covariance`: K** plus Aᵀ(Σ − I)A of each set of inducing variables."""
        n_rows = x.shape[1]
        upper = x.new_zeros(len(self.q.mean), n_rows, n_rows)
        for weight_s, x_s in zip(weight, x, strict=True):
            factors = [covariance_factors(*block) for block in self._with_posteriors(self.whitened(x_s))]
            for rows, later in upper_chunks(n_rows):
                K = shared(self.kernel.relative_covariance(x_s[rows], x_s[later]))  # (b, ·) or (D, b, ·)
                for left, right in chain.from_iterable(factors):
                    K = K + left[..., rows].mT @ right[..., later]
                upper[:, rows, later] += weight_s * K
        return mirrored(upper) * self.kernel.variance[:, None, None]

    def gradient_variance(self, x: Tensor) -> Tensor | None:
        """See :meth:`Layer.gradient_variance`; None if the kernel has no closed form.

        A derivative of f is Gaussian like f itself, with the derivative of k_u(x) in place of k_u(x).
        """
        prior = self.kernel.gradient_variance(x.shape[-1])  # (D or 1, Q)
        if prior is None:
            return None
        gradients = [features.gradient(self.kernel, x) for features in self.feature_sets]  # (Q, D or 1, ·, N) each
        variances = []
        for q, k in enumerate(torch.cat(gradients, dim=-2)):
            variance = prior[:, q, None]
            for block in self._with_posteriors(self._whitened(shared(k))):
                variance = variance + contribution(*block)[1]
            variances.append(variance.clamp(min=0.0).expand(len(self.q.mean), -1))
        return torch.stack(variances, dim=-1).transpose(0, 1) * self.kernel.variance[:, None]

    def whitened(self, x: Tensor) -> list[tuple[Tensor | None, Tensor]]:
        """For each set of inducing variables W = L⁻¹ and A (see :func:`~.linalg.whiten_sets`), without the kernel's σ².

        W is (M, M), and A, whitened covariances with function values at ``x`` (N, Q), is (M, N); with a
        kernel per output there are D of both. Whitened posteriors do not need W, which is None then. Covariances are
        factorised in float64, whatever the layer's precision, since inducing points may be close to each other.
        """
        return self._whitened(shared(joint_cross(self.feature_sets, self.kernel, x)))

    def _whitened(self, k: Tensor) -> list[tuple[Tensor | None, Tensor]]:
        """The same for covariances (T, N) or (D, T, N) with all inducing variables."""
        if len(self.sizes) == 1 and self.inducing.orthonormal:
            return [(None, k)]
        if self._factor is not None:
            blocks = list(zip(self._factor.W, self._factor.solve(k), strict=True))
        else:
            blocks = whiten_sets(self._prior(), k, self.jitter, self._block_sizes)
        if not self.whiten:
            return [*blocks]
        joint = blocks[0][1] if len(blocks) == 1 else torch.cat([A for _, A in blocks], dim=-2)
        return [(None, A) for A in joint.split(self.sizes, dim=-2)]

    @torch.no_grad()
    def frozen(self, *, turned: bool = False) -> Self:
        """See :meth:`Layer.frozen`.

        With ``turned`` marginals use whitened variables whose posteriors have diagonal covariances; see
        :mod:`.turned`. That saves a product for each row. :meth:`whitened` keeps the coordinates of the posteriors,
        since other code, such as a posterior that couples layers, combines the two.
        """
        layer = copy(self)
        layer._factor, layer._turned, layer._for_draws = None, None, []
        if len(self.sizes) == 1 and self.inducing.orthonormal:
            return layer  # nothing is whitened
        prior = self._prior()
        plain = self.whiten and type(self).whitened is GlobalLayer.whitened  # a derived class may whiten otherwise
        if turned and plain:
            layer._turned = Turned.of(prior, self.kernel.n_outputs, self.jitter, self._unit_posteriors())
        if layer._turned is None:
            layer._factor = factorise(prior, self.jitter, self._block_sizes, self.q.mean.dtype)
        return layer

    def _apply(self, fn, recurse=True):
        """Also move or convert what a frozen layer knows."""
        layer = super()._apply(fn, recurse)
        if layer._for_draws is not None:
            layer._for_draws = []
        if layer._factor is not None:
            layer._factor = layer._factor.apply(fn)
        if layer._turned is not None:
            layer._turned = layer._turned.apply(fn)
        return layer

    def _prior(self) -> Tensor:
        """Prior covariance of all inducing variables, (T, T) or (D, T, T), in float64."""
        return shared(joint_covariance(self.feature_sets, self.kernel, torch.float64))

    @property
    def _block_sizes(self) -> list[int]:
        """Numbers of inducing variables that are whitened together: a set, or a part of it if W is not needed."""
        return [block for size in self.sizes for block in _even_parts(size, MAX_BLOCK)] if self.whiten else self.sizes

    def _unit_posteriors(self) -> list[tuple[Tensor, Tensor | None]]:
        """Mean and root of the posterior of each set of inducing variables, for a prior of variance one."""
        mean = self.q.mean if self.whiten else self.q.mean - self.mean(self.Z).mT
        return [self._in_units(mean, self.q.root)]

    def _in_units(self, mean: Tensor, root: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A posterior in units of the prior's deviation, which whitened variables have anyway.

        Dividing u and its prior by σ changes neither the KL nor the conditional.
        """
        if self.whiten:
            return mean, root
        deviation = self.kernel.deviation[..., None]  # (D or 1, 1)
        if root is not None:
            root = root / (deviation if root.dim() == mean.dim() else deviation[..., None])
        return mean / deviation, root

    def _marginals(self, x: Tensor, f_mean: Tensor, f_variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (S, B, D) at ``x`` from those of a unit prior (D, N)."""
        deviation = self.kernel.deviation[..., None]
        variance = f_variance * deviation.square()
        if self.log_white_noise is not None:
            variance = variance + self.log_white_noise.exp()[..., None]
        shape = (*x.shape[:-1], -1)
        return self.mean.added_to((f_mean * deviation).mT.reshape(shape), x), variance.mT.reshape(shape)


class OrthogonalLayer(GlobalLayer):
    """Global layer with a second set of inducing points, for the part of f that the first leaves (SOLVE-GP, Sec. 3).

    f = f∥ + f⊥, where f∥ is the part of f that the inducing variables at Z determine. f⊥ is independent of them, with
    covariance C(a, b) = k(a, b) − k(a, Z) K⁻¹ k(Z, b). Variables v at O summarise f⊥. If a point of O coincides with a
    point of Z, C has nothing but the jitter there, which keeps it positive definite.

    Parameters
    ----------
    O : Tensor of shape (M₂, Q) or Features
        Initial inducing points of f⊥, or its features. At least one of the two sets must consist of points.
    orthogonal_covariance : {"diag", "full", "prior"}
        Covariance of the posterior of v. With "prior" only its mean is learnt (ODVGP, Sec. 5).
    **options
        Arguments of :class:`GlobalLayer`.
    """

    stackable = True

    def __init__(self, *args, O: Tensor | Features, orthogonal_covariance: str, **options):  # noqa: E741
        super().__init__(*args, **options)
        self.orthogonal = Points(O) if isinstance(O, Tensor) else O
        like, n_outputs, n_features = self.q.mean, len(self.q.mean), len(self.orthogonal)
        root = torch.eye(n_features, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            if not self.whiten:
                points = torch.cat([self.Z, self.O]).double()
                L = cholesky(self.kernel.covariance(points, points), self.jitter)  # of both sets: L_v is its last block
                root = L[..., len(self.Z) :, len(self.Z) :].to(like.dtype)
            root = options.get("initial_deviation", 1.0) * root.expand(n_outputs, -1, -1)
        self.q_orthogonal = Posterior(like.new_zeros(n_outputs, n_features).detach(), root, orthogonal_covariance)

    @property
    def O(self) -> Tensor:  # noqa: E743
        """Inducing points (M₂, Q) of the second set; AttributeError if the features are not points."""
        return self.orthogonal.Z

    @property
    def feature_sets(self) -> list[Features]:
        """The inducing features of each set of inducing variables."""
        return [self.inducing, self.orthogonal]

    @property
    def posteriors(self) -> list[Posterior]:
        """The posterior of each set."""
        return [self.q, self.q_orthogonal]

    def _unit_posteriors(self) -> list[tuple[Tensor, Tensor | None]]:
        v = self._in_units(self.q_orthogonal.mean, self.q_orthogonal.root)  # f⊥ has zero mean
        return [*super()._unit_posteriors(), v]


def _even_parts(total: int, largest: int) -> list[int]:
    """Numbers that differ by one at most, are at most ``largest`` and add up to ``total``."""
    n_parts = -(-total // largest)
    return [(i + 1) * total // n_parts - i * total // n_parts for i in range(n_parts)]
