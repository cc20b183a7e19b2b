"""Training by several processes, on one machine or many, and training on the workers of a Dask cluster."""

from ._dask import fit_dask
from ._processes import data_parallel

__all__ = ["data_parallel", "fit_dask"]
