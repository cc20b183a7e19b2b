"""What predicts: members, base and neighbours with all that does not depend on the rows computed once."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..gp.blend import Blend
from ..gp.deep_gp import DeepGP
from ..gp.neighbours import Correction, Neighbours
from .threads import threads_for


class Predictors(NamedTuple):
    """Frozen modules for predictions in one precision."""

    members: list[DeepGP]
    base: DeepGP | None
    local: Neighbours | None


class Kept:
    """Predictors that were made before. They serve until a parameter of what they were made from changes."""

    def __init__(self):
        self._made: dict[torch.dtype, tuple[_Sources, Predictors]] = {}

    def predictors(
        self, members: Sequence[DeepGP], blend: Blend | None, correction: Correction | None, dtype: torch.dtype
    ) -> Predictors:
        """Members in this precision, base and neighbours in their own."""
        parts: list[nn.Module] = [*members, *(each for each in (blend, correction) if each is not None)]
        if dtype not in self._made or not self._made[dtype][0].hold(parts):
            models = [members[0]] if blend is None else [members[0], blend.base]
            with threads_for(max(model.products(0) for model in models)):
                found = Predictors(
                    [_in_precision(member, dtype).frozen(turned=True) for member in members],
                    None if blend is None else blend.base.frozen(turned=True),
                    None if correction is None else correction.local.frozen(),
                )
            self._made[dtype] = _Sources(parts), found
        return self._made[dtype][1]


def _in_precision(member: DeepGP, dtype: torch.dtype) -> DeepGP:
    """The member, or a copy if it has another precision."""
    same = next(member.parameters()).dtype == dtype
    return member if same else deepcopy(member).to(dtype)


class _Sources:
    """The tensors that something was computed from, to find out whether it still holds.

    Parameters are few and compared by value, since torch does not count all of their changes. Buffers may be whole
    tables, and so only torch's count of their changes is compared.
    """

    def __init__(self, parts: Sequence[nn.Module]):
        self.parameters = [each.detach().clone() for part in parts for each in part.parameters()]
        self.buffers = [(each, self._count(each)) for part in parts for each in part.buffers()]

    def hold(self, parts: Sequence[nn.Module]) -> bool:
        """Whether parts have the same parameters and buffers as then."""
        parameters = [each for part in parts for each in part.parameters()]
        buffers = [each for part in parts for each in part.buffers()]
        if len(parameters) != len(self.parameters) or len(buffers) != len(self.buffers):
            return False
        same = all(now is then and self._count(now) == n for now, (then, n) in zip(buffers, self.buffers, strict=True))
        return same and all(
            now.dtype == then.dtype and now.device == then.device and torch.equal(now, then)
            for now, then in zip(parameters, self.parameters, strict=True)
        )

    @staticmethod
    def _count(tensor: Tensor) -> int:
        return 0 if tensor.is_inference() else tensor._version
