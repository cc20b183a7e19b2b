"""What a base and the nearest rows say of a row, as features of another member.

    z(x) = (x, (m(x) − a)/b, (½ log v(x) − c)/d)

m and v are the mean and the variance of the base, corrected by the nearest rows. a to d are such that the new features
have mean 0 and deviation 1 over the training rows; see :mod:`.guiding`. A member that learns densities from z(x) need
not find again what the base knows of means, and it knows where the base is certain.
"""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..gp.units import Units
from .predictor import Predictor

#: Smallest deviation that a feature is divided by, in units of standardised targets, or of logarithms. What is nearly
#: the same for all rows is not magnified.
LEAST_SCALE = 0.1


#: Smallest variance of which a feature tells, in the same units. Where a base meets a function without noise, rounding
#: errors may leave none.
LEAST_VARIANCE = 1e-14


class Guide(NamedTuple):
    """A predictor whose mean and log deviation are features of others.

    Parameters
    ----------
    predictor : Predictor
        The base, with neighbours if there are any. Its members are GPs of one layer.
    units : Units
        Shift and scale of the new features: those of P means, and of P log deviations.
    """

    predictor: Predictor
    units: Units

    @classmethod
    def of(cls, predictor: Predictor, values: Tensor, weight: Tensor) -> Self:
        """The guide of which these are the values (n, 2P) at training rows of weights (n,); see :func:`values_of`."""
        units = Units.of(values.cpu().numpy(), weight.cpu().numpy())
        return cls(predictor, Units(units.shift, np.maximum(units.scale, LEAST_SCALE)))

    def __call__(self, X: Tensor) -> Tensor:
        """Rows X (B, Q) with the new features (B, Q + 2P)."""
        return self.beside(X, values_of(self.predictor, X))

    def beside(self, X: Tensor, values: Tensor) -> Tensor:
        """The same if values (B, 2P) of the new features, not standardised, are known already."""
        shift, scale = (values.new_tensor(numbers) for numbers in (self.units.shift, self.units.scale))
        return torch.cat([X, ((values - shift) / scale).to(X)], dim=1)

    def alone(self, *, as_one: bool = False) -> "Guide":
        """A copy with a memory of its own; see :meth:`.Predictor.alone`."""
        return self._replace(predictor=self.predictor.alone(as_one=as_one))

    def frozen(self, *, turned: bool = False, as_one: bool = False) -> "Guide":
        """A copy that is faster in many calls; see :meth:`.Predictor.frozen`."""
        return self._replace(predictor=self.predictor.frozen(turned=turned, as_one=as_one))

    def to_plain(self) -> dict:
        """The guide as arrays, numbers and names."""
        return {"predictor": self.predictor.to_plain(), "shift": self.units.shift, "scale": self.units.scale}

    @classmethod
    def from_plain(cls, state: dict) -> Self:
        """The guide, on the CPU, from the state that :meth:`to_plain` returned."""
        return cls(Predictor.from_plain(state["predictor"]), Units(state["shift"], state["scale"]))


def values_of(predictor: Predictor, X: Tensor) -> Tensor:
    """Means and log deviations (B, 2P) of function values at rows X (B, Q), in float64."""
    mean, variance = (column.mT for column in predictor.joint(X.double(), joint=False))
    return values_from(mean, variance)


def values_from(mean: Tensor, variance: Tensor) -> Tensor:
    """The same from means and variances (B, P)."""
    return torch.cat([mean, 0.5 * variance.clamp(min=LEAST_VARIANCE).log()], dim=1)
