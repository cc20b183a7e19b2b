"""How models learn: tensors in, tensors out."""

from .batches import Batch
from .objectives import OBJECTIVES
from .settings import History, Settings, Trainer

__all__ = ["OBJECTIVES", "Batch", "History", "Settings", "Trainer"]
