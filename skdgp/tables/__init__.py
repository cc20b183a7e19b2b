"""Tables of the user: what a fit learns of them, and their rows as numbers that models learn from."""

from .table import Encoded, Table, learn

__all__ = ["Encoded", "Table", "learn"]
