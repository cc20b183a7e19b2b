"""The likelihood of shares, which lie between 0 and 1."""

import math
from typing import ClassVar

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from .dispersion import Dispersed
from .likelihoods import first_row
from .pointwise import Pointwise

#: Initial dispersion.
INITIAL_DISPERSION = 0.1

#: Smallest dispersion.
LEAST_DISPERSION = 1e-6

#: Smallest dispersion that the noise of regressands may set.
LEAST_START = 1e-4

#: The largest one is 1, which belongs to this share of the variance that shares can have.
MOST = 0.5

#: Smallest distance of a target from 0 and from 1, which single precision resolves.
CLOSEST = 1e-6


class Beta(Dispersed, Pointwise):
    """Likelihood y ~ Beta(φ μ, φ (1 − μ)) with the mean μ = 1/(1 + exp(−f)) and the variance μ (1 − μ)/(1 + φ).

    What is learnt is the dispersion 1/φ.

    Zero and one have no density. They count as shares that lie nearer to 0 or 1 than every other target: at half the
    distance of the nearest one, but not farther than 1/2n, where n is the number of rows. That is where (Smithson and
    Verkuilen, Psychological Methods 2006) put them by y ← (y (n − 1) + ½)/n, which would move all other targets, too.

    Parameters
    ----------
    n_outputs : int
        P, number of targets.
    """

    stackable = True
    base_kind: ClassVar[str] = "means"

    def __init__(self, n_outputs: int):
        super().__init__(n_outputs)
        start = torch.full((n_outputs,), math.log(INITIAL_DISPERSION), device="cpu", dtype=torch.float32)
        self.log_dispersion = nn.Parameter(start)
        self.margin = n_outputs * (CLOSEST,)  # how near to 0 and to 1 a target of 0 or 1 counts

    @property
    def has_base(self) -> bool:
        """Whether there is one target. With several, each would need weights of its own."""
        return self.n_outputs == 1

    @property
    def dispersion(self) -> Tensor:
        """Dispersions 1/φ, (P,)."""
        return LEAST_DISPERSION + self.log_dispersion.exp()

    # Targets.

    def checked(self, y: np.ndarray) -> np.ndarray:
        """Targets (N, P); ValueError that names a row with numbers outside [0, 1]."""
        y = super().checked(y)
        row = first_row((y < 0) | (y > 1))
        if row is not None:
            raise ValueError(
                f"likelihood='beta' is for shares between 0 and 1, but y holds {y[row].tolist()} in row {row}: divide "
                "percentages by 100, choose another likelihood, or correct the row."
            )
        return y

    def learn_units(self, y: np.ndarray, weight: np.ndarray | None = None, *, normalize: bool) -> None:
        """Decide what zeros and ones count as. ValueError if targets are not between 0 and 1."""
        y = self.checked(y).astype(np.float64)
        n_rows = max(float(len(y)), 0.0 if weight is None else float(weight.sum()))
        distance = np.minimum(y, 1 - y)
        nearest = distance.min(axis=0, where=distance > 0, initial=1 / n_rows)
        self.margin = tuple(np.maximum(0.5 * nearest, CLOSEST).tolist())

    def encode(self, y: np.ndarray) -> np.ndarray:
        """Shares, of which none is 0 or 1; ValueError if some are not between 0 and 1."""
        y = self.checked(y)
        margin = np.asarray(self.margin, dtype=y.dtype)
        inside = np.clip(y, CLOSEST, 1 - CLOSEST)
        return np.where(y == 0, margin, np.where(y == 1, 1 - margin, inside))

    # What the mixin needs.

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), in float64 since large terms cancel."""
        a, b = self._shapes(f)
        exact = y.double()
        level = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        return (level + (a - 1) * exact.log() + (b - 1) * (-exact).log1p()).to(f)

    @staticmethod
    def mean(f: Tensor) -> Tensor:
        """The mean μ."""
        return f.sigmoid()

    def distribution(self, f: Tensor):
        """Beta distributions of SciPy."""
        return stats.beta(*(shape.detach().numpy() for shape in self._shapes(f)))

    def _shapes(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """φ μ and φ (1 − μ)."""
        size = self.dispersion.double()[..., None, None, :].reciprocal()
        f = f.double()
        return size * f.sigmoid(), size * (-f).sigmoid()

    # The base.

    def regressands(self, y: Tensor) -> Tensor:
        """Arcsines 2 arcsin √y, less that of the mean at f = 0, with the slope of f there.

        Their noise has about the same variance for all means. Logits of shares near 0 or 1 would vary most.
        """
        mean = self.shift[..., None, :].to(y).sigmoid()
        return 2 * (y.sqrt().asin() - mean.sqrt().asin()) / (mean * (1 - mean)).sqrt()

    @torch.no_grad()
    def start_dispersion(self, noise: float) -> None:
        """The dispersion for which regressands vary so much: 1/(1 + φ) = noise μ (1 − μ) at f = 0."""
        mean = self.shift.double().sigmoid()
        share = min((noise * mean * (1 - mean)).item(), MOST)
        self.log_dispersion.fill_(math.log(max(share / (1 - share), LEAST_START)))

    def derivatives(self, y: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """The slope φ μ (1 − μ) (logit y − ψ(a) + ψ(b)), and the expected curvature (φ μ (1 − μ))² (ψ'(a) + ψ'(b))."""
        f = self._shifted(f)
        a, b = self._shapes(f)
        steep = a * (-f.double()).sigmoid()
        slope = steep * (y.double().logit() - torch.digamma(a) + torch.digamma(b))
        curvature = steep.square() * (torch.polygamma(1, a) + torch.polygamma(1, b))
        return slope.to(f), curvature.to(f)
