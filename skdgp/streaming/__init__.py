"""Training from tables that do not fit into memory: files, queries, and chunks of rows."""

from ._fit import fit_chunks

__all__ = ["fit_chunks"]
