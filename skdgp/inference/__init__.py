"""How models learn: tensors in, tensors out."""

from .batches import Batch, Part
from .objectives import OBJECTIVES
from .settings import History, Learner, Settings, Trainer

__all__ = ["OBJECTIVES", "Batch", "History", "Learner", "Part", "Settings", "Trainer"]
