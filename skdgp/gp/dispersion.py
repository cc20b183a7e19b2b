"""The dispersion of targets whose noise is not added to function values."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .devices import constant
from .likelihoods import cost_of_surprise


class Dispersed:
    """Mixin of likelihoods with one parameter ``log_dispersion`` (P,), which held-out rows calibrate."""

    log_dispersion: nn.Parameter

    #: The logarithms (P,) that all rows have told the base, if there is one.
    level: Sequence[float] = ()

    def calibrated(self) -> list[nn.Parameter]:
        """The logarithm of the dispersion."""
        return [self.log_dispersion]

    @torch.no_grad()
    def fix_level(self, level: Tensor) -> None:
        """See :meth:`.Likelihood.fix_level`."""
        self.level = tuple(level.tolist())
        self.log_dispersion.copy_(level)

    def cost_of_noise(self) -> float | Tensor:
        """See :meth:`.Likelihood.cost_of_noise`. A few held-out rows often look as if there was no dispersion."""
        if not self.level:
            return 0.0
        return cost_of_surprise(self.log_dispersion - constant(self.level, self.log_dispersion))
