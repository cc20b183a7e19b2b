"""Outputs that share functions: the linear model of coregionalisation, f = W g (tutorial, Eq. 25).

The P outputs f are weighted sums of G independent functions g, plus a constant each, f = W g + c. So outputs are
correlated, with Cov f(x) = W diag(v) Wᵀ, where v are the variances of g. If a target of a row is missing, the row's
other targets help to predict it. The constants correct the means of targets, which come from few rows if most targets
are missing.
"""

from collections.abc import Sequence
from typing import ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from .global_layer import GlobalLayer
from .kernels import Kernel
from .layers import Layer, LayerDraw, with_parts
from .likelihoods import Gaussian, Likelihood, noise_floor
from .special import LOG_2PI
from .units import Units
from .waves import Streams

#: Smallest initial length of an output's row of W, so that an output which shares no function at first can learn to.
LEAST_LOADING = 0.3


class Mixed(Layer):
    """A layer whose outputs are weighted sums of the outputs of another layer.

    Parameters
    ----------
    layer : Layer
        A layer of G outputs.
    W : Tensor of shape (P, G)
        Initial weights.
    """

    stackable = True

    def __init__(self, layer: Layer, W: Tensor):
        super().__init__()
        self.layer, self.W = layer, nn.Parameter(W.clone())
        self.constant = nn.Parameter(W.new_zeros(len(W)))

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]
        """Kernel of g."""
        return self.layer.kernel

    @property
    def Z(self) -> Tensor:
        """Inducing points of the first set."""
        [Z] = self.layer.inducing_points()
        return Z

    def inducing_points(self) -> list[Tensor]:
        """Those of g."""
        return self.layer.inducing_points()

    @property
    def O(self) -> Tensor:  # noqa: E743
        """Inducing points of the second set."""
        return cast(GlobalLayer, self.layer).O

    def numbers_per_row(self, n_samples: int) -> int:
        """Size of the largest tensor for each row, which belongs to g or to f."""
        return max(self.layer.numbers_per_row(n_samples), n_samples * self.W.shape[-2])

    def products(self, n_rows: int, n_samples: int) -> int:
        """Multiplications of the largest operation, which belongs to g."""
        return self.layer.products(n_rows, n_samples)

    def numbers_per_draw(self) -> int:
        """See :meth:`.Layer.numbers_per_draw`; those of g."""
        return self.layer.numbers_per_draw()

    def frozen(self, *, turned: bool = False) -> Self:
        """See :meth:`.Layer.frozen`."""
        return with_parts(self, layer=self.layer.frozen(turned=turned))

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Means W m + c and variances W² v, (S, B, P), and the KL divergence."""
        mean, variance, kl = self.layer(x, anchor, targets)
        W = self.W.mT.unsqueeze(-3)  # (..., 1, G, P)
        return mean @ W + self.constant[..., None, None, :], variance @ W.square(), kl

    def covariance(self, x: Tensor, anchor: Tensor, weight: Tensor) -> Tensor:
        """Covariances (P, B, B) between rows: weighted sums of those of g."""
        return torch.einsum("pg,gbc->pbc", self.W.square(), self.layer.covariance(x, anchor, weight))

    def between_outputs(self, x: Tensor, anchor: Tensor, weight: Tensor) -> Tensor:
        """Covariances W diag(v) Wᵀ between outputs, (B, P, P)."""
        _, variance, _ = self.layer(x, anchor)  # (S, B, G)
        return (self.W * (weight[..., None] * variance).sum(0)[:, None]) @ self.W.mT

    def draw(self, streams: Streams) -> LayerDraw:
        """Functions W g + c, where functions g are drawn."""
        draw = self.layer.draw(streams)
        return lambda x, anchor: draw(x, anchor) @ self.W.mT + self.constant

    def gradient_variance(self, x: Tensor) -> Tensor | None:
        """Variances (N, P, Q) of partial derivatives: weighted sums of those of g."""
        variance = self.layer.gradient_variance(x)
        return None if variance is None else torch.einsum("pg,ngq->npq", self.W.square(), variance)


class Incomplete(Gaussian):
    """Gaussian noise on targets that may be missing in some rows. Missing targets are NaN, and are left out.

    Parameters
    ----------
    n_targets : int
        P, number of targets.

    Attributes
    ----------
    correlations : Tensor of shape (P, P)
        Correlations of the targets with which training started, for :meth:`loadings`.
    """

    stackable = True
    mixes = False
    takes: ClassVar[tuple[str, ...]] = ()

    correlations: Tensor

    def __init__(self, n_targets: int):
        super().__init__(n_targets)
        self.register_buffer("correlations", torch.eye(n_targets, device="cpu", dtype=torch.float32))

    @property
    def has_base(self) -> bool:
        """False, since least squares needs all targets."""
        return False

    def units_of(self, y: np.ndarray, weight: np.ndarray | None, *, normalize: bool) -> Units:
        """Units from the known targets of each column; ValueError if a column has none."""
        known, shift, scale = ~np.isnan(y), [], []
        for p, column in enumerate(y.T):
            if not known[:, p].any():
                raise ValueError(f"Column {p} of y has no value in any row: leave it out.")
            rows = known[:, p]
            units = Units.of(column[rows, None], None if weight is None else weight[rows], normalize=normalize)
            shift.append(units.shift[0])
            scale.append(units.scale[0])
        return Units(shift, scale)

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """See :meth:`.Regression.learn_units`."""
        units = self.units_of(y, weight, normalize=normalize)
        super().learn_units(np.where(np.isnan(y), np.asarray(units.shift), y), weight, normalize=normalize)
        self.units = units

    def initialise(self, y: Tensor, weight: Tensor) -> None:
        """Set the smallest noise, which is larger if targets look rounded, and the correlations of targets."""
        known = ~y.isnan()
        floors = [noise_floor(y[rows, p : p + 1], weight[rows]) for p, rows in enumerate(known.mT)]
        self.floor.copy_(torch.cat(floors))
        filled, is_known = torch.where(known, y, 0.0), known.to(y)
        pairs = is_known.mT @ (weight[:, None] * is_known)
        self.correlations.copy_(filled.mT @ (weight[:, None] * filled) / pairs.clamp(min=1e-6))  # of rows with both

    def loadings(self, n_functions: int) -> Tensor:
        """Initial W (P, G): the largest principal components of targets.

        Targets that no component contains, since they are never known together with others, take turns in the
        functions.
        """
        variances, vectors = torch.linalg.eigh(self.correlations.double())
        n_known = min(n_functions, self.n_outputs)
        W = vectors.new_zeros(self.n_outputs, n_functions)
        W[:, :n_known] = (vectors * variances.clamp(min=0.0).sqrt()).flip(-1)[:, :n_known]
        length = W.norm(dim=-1, keepdim=True)
        turns = torch.arange(self.n_outputs, device=W.device) % n_functions
        alone = LEAST_LOADING * torch.eye(n_functions, dtype=W.dtype, device=W.device)[turns]
        return torch.where(length > 0, W * (length.clamp(min=LEAST_LOADING) / length.clamp(min=1e-6)), alone).float()

    def regressands(self, y: Tensor) -> Tensor:
        """Targets, with their means in place of missing ones."""
        return y.nan_to_num(0.0)

    def log_jacobian(self, y: Tensor, weight: Tensor) -> float:
        """See :meth:`.Likelihood.log_jacobian`; for targets that are known."""
        known = (~y.isnan()).double() * weight.double()[:, None]
        return -float(known.sum(0).cpu().numpy() @ np.log(self.units.scale))

    def expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :class:`.Gaussian`, summed over targets that are known."""
        noise, known = self.variance[..., None, None, :], ~y.isnan().unsqueeze(-3)
        squares = (y.nan_to_num(0.0).unsqueeze(-3) - mean).square()
        return -0.5 * (known * ((squares + variance) / noise + noise.log() + LOG_2PI)).sum(-1)

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """See :class:`.Gaussian`, summed over targets that are known."""
        total, known = variance + self.variance[..., None, None, :], ~y.isnan().unsqueeze(-3)
        squares = (y.nan_to_num(0.0).unsqueeze(-3) - mean).square()
        return -0.5 * (known * (squares / total + total.log() + LOG_2PI)).sum(-1)


def mixed(layers: Sequence[Layer], likelihood: Likelihood, n_functions: int) -> list[Layer]:
    """The layers, of which the last is mixed: its outputs share ``n_functions`` functions."""
    *hidden, last = layers
    return [*hidden, Mixed(last, likelihood.loadings(n_functions))]
