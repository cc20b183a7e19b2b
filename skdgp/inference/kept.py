"""What was computed from a module before, and serves until a parameter changes; mostly a copy of it."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Made = TypeVar("Made")


class Kept(Generic[Made]):
    """What was computed from a module, by what distinguishes it. A copy of this object starts empty."""

    def __init__(self):
        self._made: dict[Hashable, tuple[_Sources, Made]] = {}

    def __deepcopy__(self, memo: dict) -> "Kept[Made]":
        return Kept()

    def copy(self, module: nn.Module, kind: Hashable, make: Callable[[], Made]) -> Made:
        """What is of a kind. It is made if there is none, or if the module, always the same, has changed since."""
        if kind not in self._made or not self._made[kind][0].hold():
            self._made[kind] = _Sources(module), make()
        return self._made[kind][1]


class _Sources:
    """The tensors that something was computed from, to find out whether it still holds.

    Parameters are few and compared by value, since torch does not count all of their changes. Buffers may be whole
    tables, and so only torch's count of their changes is compared. Modules are found once: a walk through them takes
    longer than the prediction of a row.
    """

    def __init__(self, module: nn.Module):
        self.parts = [(part, list(part._modules.items())) for part in module.modules()]
        self.parameters = [parameter.detach().clone() for parameter in self._of_parts("_parameters")]
        self.buffers = [(buffer, self._count(buffer)) for buffer in self._of_parts("_buffers")]

    def hold(self) -> bool:
        """Whether the module has the same parts, parameters and buffers as then."""
        if any(list(part._modules.items()) != children for part, children in self.parts):
            return False
        parameters, buffers = self._of_parts("_parameters"), self._of_parts("_buffers")
        if len(parameters) != len(self.parameters) or len(buffers) != len(self.buffers):
            return False
        same = all(now is then and self._count(now) == n for now, (then, n) in zip(buffers, self.buffers, strict=True))
        return same and all(
            now.dtype == then.dtype and now.device == then.device and torch.equal(now, then)
            for now, then in zip(parameters, self.parameters, strict=True)
        )

    def _of_parts(self, kind: str) -> list[Tensor]:
        """All parameters or all buffers, part by part."""
        return [tensor for part, _ in self.parts for tensor in vars(part)[kind].values() if tensor is not None]

    @staticmethod
    def _count(tensor: Tensor) -> int:
        return 0 if tensor.is_inference() else tensor._version
