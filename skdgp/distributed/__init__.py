"""Models that several processes train, on one machine or many, and models trained where a cluster's data are."""

from ._dask import fit_dask
from ._processes import data_parallel

__all__ = ["data_parallel", "fit_dask"]
