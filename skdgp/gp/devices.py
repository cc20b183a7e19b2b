"""What depends on the device: how many numbers it computes at a time, and constants that lie there."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

#: How many times as many numbers a GPU computes at a time as a processor. Its operations take as long for a few numbers
#: as for a million, so that parts which fit a processor's cache would leave it idle.
OF_A_GPU = 16

#: Number of constants on GPUs that are kept.
KEPT_CONSTANTS = 256


def at_a_time(numbers: int, device: torch.device) -> int:
    """How many numbers the device computes at a time, if a processor computes so many."""
    return numbers if device.type == "cpu" else OF_A_GPU * numbers


def constant(numbers: Sequence[float], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers that never change as a tensor on the device of ``like``, by default of its type.

    A copy to a GPU waits until the GPU has nothing else to do, and cannot be recorded. So it is made once.
    """
    dtype = like.dtype if dtype is None else dtype
    if like.device.type == "cpu":
        return torch.tensor(numbers, dtype=dtype, device=like.device)
    return _kept(tuple(numbers), dtype, like.device)


@lru_cache(maxsize=KEPT_CONSTANTS)
@torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
def _kept(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)


def columns_of(x: Tensor, numbers: Sequence[int]) -> Tensor:
    """Columns (..., n) of ``x`` (..., Q) that have these numbers."""
    return x[..., constant(numbers, x, torch.long)]
