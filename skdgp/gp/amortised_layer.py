"""A GP layer in which each row has inducing variables of its own.

A neural network, called the inference network, computes them from the row. So a few of them are enough for each row.
"""

import math

import torch
from torch import Tensor

from . import rowwise
from .kernels import Kernel, by_name
from .layers import Layer, LayerDraw, mirrored, upper_chunks
from .linalg import JITTER, inverse_cholesky
from .means import Mean
from .networks import InferenceNetwork
from .waves import Streams


class AmortisedLayer(Layer):
    """GP layer in which a network computes the inducing variables of each row (AVDGP, Sec. 3.1 and 4.1).

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
        Whether the inference network returns the posterior of the whitened v, instead of that of u = m(Z) + L v.
    """

    #: Whether coordinates of the whitened v are turned where inducing points of one input change places; see
    #: :meth:`_turns`. Layers in files of earlier versions do not do so.
    turns: bool = False

    def __init__(self, kernel: Kernel, mean: Mean, inference: InferenceNetwork, *, whiten: bool):
        super().__init__()
        self.turns = whiten
        self.kernel = kernel
        self.mean = mean
        self.inference = inference
        self.whiten = whiten
        # There are few points, and no covariance is inverted. Derived classes may do otherwise.
        self.coarse = whiten and self.stackable and type(self) is AmortisedLayer

    @property
    def stackable(self) -> bool:
        """Whether layers of several models can be computed as one; see :mod:`skdgp.inference.stacks`."""
        return by_name(self.kernel)

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the correlations of inducing variables with each other and with the samples."""
        n_inducing, n_outputs = self.inference.shape
        return n_inducing * n_outputs * (n_inducing + n_samples)

    def products(self, n_rows: int, n_samples: int) -> int:
        """Multiplications of the elimination that factorises the correlations of each row's inducing variables."""
        return self.inference.shape[0] * super().products(n_rows, n_samples)

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Means and variances (S, B, D) of function values, and the KL divergence (B,) of rows' inducing variables."""
        if anchor.dim() == x.dim():  # AR1: each sample has inducing variables of its own, like a row
            samples = anchor.shape[-3:-1]
            mean, variance, kl = self(x.flatten(-3, -2).unsqueeze(-3), anchor.flatten(-3, -2))
            mean, variance = (moment[..., 0, :, :].unflatten(-2, samples) for moment in (mean, variance))
            return mean, variance, kl.unflatten(-1, samples).mean(-2)  # Eq. 4.8

        Z, q_mean, q_root = self._unit_inference(anchor)
        Z, points = Z.movedim(-3, 0), x.movedim(-2, 0)  # (B, M, Q), (B, S, Q)
        if by_name(self.kernel) and len(q_mean) <= rowwise.MAX_ELIMINATION:
            deviation = self.kernel.deviation.movedim(-1, 0)[..., None]  # (D, 1)
            correlations = rowwise.packed_correlation(self.kernel, Z, points)
            mean, variance, kl = rowwise.conditional(correlations, q_mean, q_root, deviation, whiten=self.whiten)
        else:
            mean, variance, kl = rowwise.plain_conditional(self.kernel, Z, points, q_mean, q_root, whiten=self.whiten)
        mean, variance = (moment.movedim((0, 1), (-3, -1)) for moment in (mean, variance))  # (S, D, B) -> (S, B, D)
        return self.mean.added_to(mean, x), variance, kl.sum(0)

    def numbers_per_draw(self) -> int:
        """Number of correlations of inducing variables, and of values there of the function drawn from the prior."""
        n_inducing, n_outputs = self.inference.shape
        return n_inducing * n_outputs * (n_inducing + 1)

    def draw(self, streams: Streams) -> LayerDraw:
        """Functions f(x) = m(x) + g(x) + a(x)ᵀ(u(x) − g(Z(x))), where g is drawn from the prior.

        u(x) is computed from one ε ~ N(0, I) that all rows share. This is Matheron's rule for each row, so that
        functions have the marginals of the layer. g(Z) has noise with the variance of the jitter, as u has.
        """
        n_inducing, n_outputs = self.inference.shape
        prior = self.kernel.draw(streams, self.inference.n_inputs, n_outputs)
        epsilon, noise = (streams.normal(1, n_outputs, n_inducing) for _ in range(2))

        def function(x: Tensor, anchor: Tensor) -> Tensor:
            Z, weights, mean, root = self._matheron(x, anchor)
            g = prior(Z.flatten(1, 2)).unflatten(1, Z.shape[1:3]).transpose(-1, -2)  # (S, B, D, M)
            change = root * epsilon - weights * (g + math.sqrt(JITTER) * noise)
            return self.mean.added_to((prior(x) + mean + change.sum(-1)) * self.kernel.deviation, x)

        return function

    def covariance(self, x: Tensor, anchor: Tensor, weight: Tensor) -> Tensor:
        """Covariances (D, B, B) between rows of the functions that :meth:`draw` makes.

        They are k(x, x') − aᵀk(Z, x') − k(x, Z')a' + aᵀk(Z, Z')a' + bᵀb', where a and b are the factors of g(Z) and ε
        in Matheron's rule, and k(Z, Z') includes the noise of g(Z). Samples that share an anchor share k(Z, Z').
        """
        if anchor.dim() == 3:
            return torch.stack([self.covariance(x[s, None], anchor[s], weight[s, None]) for s in range(len(x))]).sum(0)
        Z, a, _, b = self._matheron(x, anchor)
        root_weight, points, k = weight.sqrt(), Z[0], self.kernel.relative_covariance
        a, b = (factor.permute(2, 1, 3, 0) * root_weight for factor in (a, b))  # (D, B, M, S)
        upper = b.flatten(2) @ b.flatten(2).mT + JITTER * a.flatten(2) @ a.flatten(2).mT  # (D, B, B)
        cross = torch.zeros_like(upper)
        n_outputs, n_rows, n_inducing, _ = a.shape
        for rows, later in upper_chunks(n_rows, n_outputs * n_inducing**2):
            here, there = points[rows].flatten(0, 1), points[later].flatten(0, 1)  # (bM, Q), (·M, Q)
            a_here = a[:, rows]  # (D, b, M, S)
            products = a_here.flatten(1, 2) @ a[:, later].flatten(1, 2).mT * k(here, there)  # (D, bM, ·M)
            products = products.unflatten(2, (-1, n_inducing)).sum(-1)  # (D, bM, ·)
            upper[:, rows, later] += products.unflatten(1, (-1, n_inducing)).sum(2)
            for s, x_s in enumerate(x):
                upper[:, rows, later] += weight[s] * k(x_s[rows], x_s[later])
                between = k(here, x_s).unflatten(1, (-1, n_inducing))  # (D, b, M, B)
                cross[:, rows] += root_weight[s] * (a_here[..., None, :, s] @ between)[..., 0, :]
        return (mirrored(upper) - cross - cross.mT) * self.kernel.variance[:, None, None]

    def _matheron(self, x: Tensor, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers that Matheron's rule needs for each row, for a prior of unit variance.

        Returns
        -------
        Z : Tensor of shape (S or 1, B, M, Q)
            Inducing points.
        a : Tensor of shape (S, B, D, M)
            K⁻¹ k(Z, x), the factor of u − g(Z) in f.
        mean : Tensor of shape (S, B, D)
            Mean of f, without the mean function.
        b : Tensor of shape (S, B, D, M)
            Factor of the standard normal ε in f.
        """
        if anchor.dim() == 3:
            of_samples = self._matheron(x.flatten(0, 1)[None], anchor.flatten(0, 1))
            Z, a, mean, b = (numbers[0].unflatten(0, anchor.shape[:2]) for numbers in of_samples)
            return Z, a, mean, b
        Z, q_mean, q_root = self._unit_inference(anchor)
        rows_first = (2, 1, 0) if q_root.dim() == 3 else (3, 2, 0, 1)
        q_mean, q_root = q_mean.permute(2, 1, 0), q_root.permute(rows_first)  # (B, D, M), (B, D, M[, M])
        W = inverse_cholesky(self.kernel.relative_covariance(Z, Z))  # (B, D, M, M)
        A = W @ self.kernel.relative_covariance(Z, x.transpose(0, 1))  # (B, D, M, S)
        a = W.mT @ A
        V = A if self.whiten else a
        b = q_root[..., None] * V if q_root.dim() == 3 else q_root.mT @ V
        if self.turns and Z.shape[-1] == 1:  # ε is the same for all rows
            b = b * self._turns(Z).mT[:, None, :, None]
        mean = (q_mean[..., None, :] @ V)[..., 0, :]  # (B, D, S)
        a, b = (factor.permute(3, 0, 1, 2).expand(-1, -1, len(q_mean[0]), -1) for factor in (a, b))
        return Z[None], a, mean.permute(2, 0, 1), b

    def _unit_inference(self, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The network's Z, mean and root for anchors (B, Q), relative to a prior of zero mean and unit variance."""
        Z, mean, root = self.inference(anchor)  # (B, M, Q), (M, D, B), (M, D, B) or (M, M, D, B)
        if self.turns and Z.shape[-1] == 1:
            sign = self._turns(Z)[:, None]  # (M, 1, B)
            mean = mean * sign
            if root.dim() == mean.dim() + 1:  # rows and columns, so that its diagonal stays positive
                root = root * sign[:, None] * sign
        if not self.whiten:
            # Dividing u and its prior by σ changes neither the KL nor the conditional.
            deviation = self.kernel.deviation.movedim(-1, 0)[..., None]
            mean, root = (mean - self.mean(Z).movedim((-2, -1), (0, 1))) / deviation, root / deviation
        return Z, mean, root

    def _turns(self, Z: Tensor) -> Tensor:
        """Signs (M, B) of the whitened coordinates for points (B, M, 1), which make functions continuous.

        With one input, points of a row meet on the way from row to row and change places. There the Cholesky factor of
        their covariance has the diagonal element |z_m − z_j| times a number, where a smooth root would have z_m − z_j.
        Without the sign, coordinate m of u = L v changes its sign there, and the function jumps. What remains is a
        notch, as narrow as the root of the jitter. With more inputs points pass each other at a distance.
        """
        place = Z[..., 0]  # (B, M)
        passed = (place[..., :, None] < place[..., None, :]).to(Z).tril(-1)  # j < m whose points are ahead of point m
        return (1.0 - 2.0 * passed.sum(-1).remainder(2.0)).movedim(-1, 0)
