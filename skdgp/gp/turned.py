"""Whitened inducing variables of a frozen layer, turned so that full posteriors have diagonal covariances.

N(μ, U diag(s²) Uᵀ) of v is N(Uᵀμ, diag(s²)) of Uᵀv, whose prior is N(0, I) as well. Marginals in these coordinates need
one product less for each row.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .linalg import Factor, factorise


class Turned(NamedTuple):
    """Turned variables of all sets."""

    factor: Factor  # of their prior covariance
    posteriors: list[tuple[Tensor, Tensor | None]]  # mean and root of each set

    @classmethod
    def of(
        cls, prior: Tensor, n_kernels: int, jitter: float, posteriors: Sequence[tuple[Tensor, Tensor | None]]
    ) -> "Turned | None":
        """The variables for a prior covariance in float64, (T, T) or (D, T, T) for D kernels, and whitened posteriors.

        None if no covariance is full, or if outputs share the prior or full covariances, but not both.
        """
        full = [root is not None and root.dim() > mean.dim() for mean, root in posteriors]
        roots = [root for (_, root), is_full in zip(posteriors, full, strict=True) if root is not None and is_full]
        if not roots or any(root.shape[-3] != n_kernels for root in roots):
            return None
        W, below = factorise(prior, jitter, [mean.shape[-1] for mean, _ in posteriors], torch.float64)
        rows, turned = [list(row) for row in below], []
        for i, (mean, root) in enumerate(posteriors):
            if root is not None and full[i]:
                mean, root, U = _turned(mean, root)
                U = U.squeeze(-3) if n_kernels == 1 else U
                W[i] = U.mT @ W[i]
                for row in rows[i + 1 :]:
                    row[i] = row[i] @ U
            turned.append((mean, root))
        return cls(Factor(W, rows).apply(lambda block: block.to(posteriors[0][0])), turned)

    def apply(self, fn: Callable[[Tensor], Tensor]) -> "Turned":
        """The same with ``fn`` applied to all tensors."""
        posteriors = [(fn(mean), None if root is None else fn(root)) for mean, root in self.posteriors]
        return Turned(self.factor.apply(fn), posteriors)


def _turned(mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Uᵀμ and s (D, M), and U (D or 1, M, M) in float64, where U diag(s²) Uᵀ is the covariance with this root."""
    if not root.isfinite().all():
        raise np.linalg.LinAlgError(
            "A posterior covariance contains NaN or infinity. The likely cause is a diverged optimisation: lower "
            "learning_rate, or have features and targets standardised."
        )
    exact = root.double()
    variance, U = torch.linalg.eigh(exact @ exact.mT)
    turned = (U.mT @ mean.double()[..., None])[..., 0]
    return turned.to(mean), variance.clamp(min=0.0).sqrt().to(mean).expand_as(mean), U
