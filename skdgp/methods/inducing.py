"""What methods share: numbers of inducing points, and initial inducing points."""

import warnings
from collections.abc import Collection, Sequence
from numbers import Integral
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..gp.features import Features, Points
from ..gp.fourier import Fourier
from ..gp.global_layer import GlobalLayer, OrthogonalLayer
from ..gp.images import ConvolutionalSum, Summands
from ..gp.interdomain import Derivatives, Eigen
from ..gp.kernels import Kernel
from ..inference.callers import users_level

#: A value that is chosen to suit the table.
Auto = Literal["auto"]

#: Inducing features by the names that parameters have for them.
FEATURES: dict[str, type[Features]] = {"points": Points, "derivatives": Derivatives, "fourier": Fourier, "eigen": Eigen}

#: Those of them that are at points, which are rows at first. The others need no rows.
AT_POINTS = ("points", "derivatives")


class Covariance(NamedTuple):
    """What is learnt of the posterior covariances of the first and the second set of inducing variables."""

    first: str
    second: str
    whitened: bool  # whether the posteriors are those of whitened inducing variables


#: The same by the values of ``covariance``.
COVARIANCES = {
    "diag": Covariance("diag", "diag", whitened=True),
    "full": Covariance("full", "full", whitened=True),
    "diag_unwhitened": Covariance("diag", "diag", whitened=False),
    "full_unwhitened": Covariance("full", "full", whitened=False),
    "odvgp": Covariance("full", "prior", whitened=True),
}

#: Largest number of rows from which initial values are computed.
INITIAL_ROWS = 10_000


def cluster_centres(inputs: Tensor, n_centres: int, generator: torch.Generator) -> Tensor:
    """Centres (M, Q) of clusters of ``inputs`` (N, Q) in random order; all distinct inputs if there are fewer."""
    distinct = np.unique(inputs.numpy(), axis=0)
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    if len(distinct) > n_centres:
        from sklearn.cluster import MiniBatchKMeans  # it imports a hundred modules, which not every fit needs

        clusters = MiniBatchKMeans(n_centres, n_init=1, random_state=seed).fit(inputs.numpy())
        distinct = clusters.cluster_centers_.astype(np.float32)
    return torch.from_numpy(distinct)[torch.randperm(len(distinct), generator=generator, device=generator.device)]


def make_features(
    name: str, kernel: Kernel, inputs: Tensor, points: Tensor, n_features: int, generator: torch.Generator
) -> Features:
    """Inducing features by name; see :meth:`.Features.initial`. Half are patches if a convolution is in a sum."""
    if name != "points" or not isinstance(kernel, ConvolutionalSum):
        return FEATURES[name].initial(kernel, inputs, points, n_features)
    patches = points[: max(1, n_features // 2)]
    return Summands(patches, cluster_centres(inputs, max(1, n_features - len(patches)), generator))


def make_global_layer(
    kernel,
    mean,
    Z: Tensor | Features,
    O: Tensor | Features,  # noqa: E741
    v: Tensor,
    *,
    covariance: Covariance,
    **options,
) -> GlobalLayer:
    """A global layer with inducing features ``Z`` and, orthogonal to them, ``O``, which may be empty."""
    options |= {"covariance": covariance.first, "whiten": covariance.whitened}
    if not len(O):
        return GlobalLayer(kernel, mean, Z, v, **options)
    return OrthogonalLayer(kernel, mean, Z, v, O=O, orthogonal_covariance=covariance.second, **options)


def positive_ints(name: str, values) -> tuple[int, ...]:
    """``values`` as a tuple of positive integers. If they are not that, a ValueError names the parameter."""
    if isinstance(values, Integral) or (isinstance(values, np.ndarray) and not values.ndim):
        raise ValueError(f"{name}={values!r} must have a number for each layer: write ({values},) for a single one.")
    for value in values:
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}={values!r} holds {value!r}: every value must be an integer of at least 1.")
    return tuple(int(value) for value in values)


def inducing_per_layer(n_inducing, hidden_dims: Sequence[int], auto: tuple[int, int]) -> tuple[int, ...]:
    """Number of inducing points in each layer; ``auto`` is what "auto" means for the first and for later layers."""
    n_layers = len(hidden_dims) + 1
    if isinstance(n_inducing, str):
        first, later = auto
        return (first,) + (n_layers - 1) * (later,)
    if isinstance(n_inducing, Integral):
        return n_layers * (int(n_inducing),)
    numbers = positive_ints("n_inducing", n_inducing)
    if len(numbers) != n_layers:
        raise ValueError(
            f"n_inducing={n_inducing!r} has {len(numbers)} values for {n_layers} layers "
            f"(hidden_dims={tuple(hidden_dims)!r} and the output): give one value for all layers, one for each, or "
            "'auto'."
        )
    return numbers


def size_of_first(numbers: dict[str, int], auto: Collection[str], n_found: int) -> int:
    """Number of points of the first set if both sets together have ``n_found``; it has at least one.

    Parameters
    ----------
    numbers : dict
        Number of points of each set that is at points, by parameter.
    auto : collection of str
        Parameters whose number is "auto". If one of them is, its set has what the other one leaves.
    n_found : int
        Number of points, which may be less than all of these numbers.
    """
    first, others = numbers.get("n_inducing", 0), numbers.get("n_orthogonal", 0)
    if not first:
        return 0
    if "n_inducing" in auto and "n_orthogonal" not in auto:
        return max(1, n_found - others)
    if "n_orthogonal" in auto and "n_inducing" not in auto:
        return first
    return max(1, round(first * min(1.0, n_found / (first + others))))


def warn_of_few_rows(asked: dict[str, int], n_found: int) -> None:
    """Warn if the user has asked for more inducing points, here by parameter, than could be found."""
    if sum(asked.values()) > n_found:
        names = " + ".join(f"{name}={number}" for name, number in asked.items() if number)
        warnings.warn(
            f"{names} is more than the {n_found} distinct rows of X that inducing points start from: {n_found} are "
            "used. Ask for fewer to avoid this warning.",
            UserWarning,
            stacklevel=users_level(),
        )
