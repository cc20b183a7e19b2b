"""What methods share: numbers of inducing points, and initial inducing points."""

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Literal

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


def check_inducing(method, *names: str) -> None:
    """ValueError if inducing features do not go with a method's other parameters."""
    others = [name for name in names if getattr(method, name) != "points"]
    for name in others:
        if not method.whiten:
            raise ValueError(
                f"{name}={getattr(method, name)!r} goes with whiten=True alone, got whiten=False: change one of them."
            )
    if len(others) > 1:
        raise ValueError(
            f"{others[0]}={getattr(method, others[0])!r} and {others[1]}={getattr(method, others[1])!r}: one of the "
            'two sets must be "points".'
        )


def check_one_set(kernel: Kernel, n_orthogonal: int) -> None:
    """ValueError if there is a second set of inducing variables together with a convolution in a sum."""
    if n_orthogonal and isinstance(kernel, ConvolutionalSum):
        raise ValueError(
            f"A Convolutional in a sum has a single set of inducing variables, got n_orthogonal={n_orthogonal}: set it "
            "to 0."
        )


def make_global_layer(
    kernel,
    mean,
    Z: Tensor | Features,
    O: Tensor | Features,  # noqa: E741
    v: Tensor,
    *,
    covariance: str,
    orthogonal_covariance: str,
    **options,
) -> GlobalLayer:
    """A global layer with inducing features ``Z`` and, orthogonal to them, ``O``, which may be empty."""
    if not len(O):
        return GlobalLayer(kernel, mean, Z, v, covariance=covariance, **options)
    learnt = covariance if orthogonal_covariance == "free" else "prior"
    return OrthogonalLayer(kernel, mean, Z, v, O=O, covariance=covariance, orthogonal_covariance=learnt, **options)


def positive_ints(name: str, values) -> tuple[int, ...]:
    """``values`` as a tuple of positive integers. If they are not that, a ValueError names the parameter."""
    if isinstance(values, Integral):
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
