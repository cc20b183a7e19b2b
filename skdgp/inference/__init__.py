"""How models learn, with tensors as inputs and outputs."""

from .batches import Batch, Part
from .objectives import OBJECTIVES
from .settings import History, Member, OneByOne, Settings, Trainer

__all__ = ["OBJECTIVES", "Batch", "History", "Member", "OneByOne", "Part", "Settings", "Trainer"]
