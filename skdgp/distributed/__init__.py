"""Models that several processes train, on one machine or many."""

from ._processes import data_parallel

__all__ = ["data_parallel"]
