"""Kernels of layers: by name, by a function that makes one, or from kernel objects of scikit-learn, and back again.

The inputs of the first layer are standardised features, and those of other layers are outputs of hidden layers. Kernel
objects are in the user's units of the features: in days, for instance, if a feature is in days.
"""

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from operator import add
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..gp import composed
from ..gp.composed import EDGE, Part, Positive, Stationary
from ..gp.images import Convolution, ConvolutionalSum
from ..gp.kernels import PROFILES, Kernel, StationaryKernel, by_name, make_kernel
from ..gp.units import Units
from ..tables import Table

#: A name, a function that makes a kernel, a kernel object of scikit-learn, or a list with one for each layer.
KernelLike = Any

#: Names of kernels by the ν of Matérn kernels.
PROFILE_OF_NU = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52", np.inf: "rbf"}

#: Largest change of a logarithm that is only a rounding error of float32.
UNMOVED = 1e-5


def layer_kernel(
    method, depth: int, n_layers: int, n_inputs: int, n_outputs: int, table: Table | None = None
) -> Kernel:
    """The kernel of a layer.

    Parameters
    ----------
    method : object
        The method, with ``kernel`` and ``ard``.
    depth : int
        Number of the layer, from 0 on.
    n_layers : int
        Number of layers.
    n_inputs, n_outputs : int
        Number Q of inputs, and number D of covariance functions.
    table : Table, default=None
        Units and names of the features, which kernel objects of the first layer are about.

    Raises
    ------
    ValueError
        If the numbers of kernels and layers differ, or if a kernel object does not suit the inputs or is unknown.
    """
    kernel = method.kernel
    if isinstance(kernel, list | tuple):
        if len(kernel) != n_layers:
            raise ValueError(
                f"kernel has {len(kernel)} values for {n_layers} layers: give one for all layers, or one for each."
            )
        kernel = kernel[depth]
        if depth < n_layers - 1 and is_object(kernel) and without_noise(kernel)[1] is not None:
            raise ValueError(
                f"kernel has a WhiteKernel for layer {depth + 1} of {n_layers}, but it is the noise of the targets: "
                "add it to the kernel of the last layer, or leave it out."
            )
    _check_kind(kernel)
    if is_object(kernel):
        kernel, _ = without_noise(kernel)
    groups = groups_of(table, n_inputs) if depth == 0 else None
    if not is_object(kernel) and not (n_inputs > 1 and is_additive(method, kernel)):
        return make_kernel(kernel, n_inputs, n_outputs, ard=method.ard, groups=groups)
    units, names = Units(n_inputs * [0.0], n_inputs * [1.0]), list[Any]()
    if not is_object(kernel):  # a function of every column by itself, also of those that belong to one feature
        return _Converter(n_outputs, units).part(additive_object(kernel, n_inputs * [1.0]), range(n_inputs))
    if depth == 0 and table is not None:
        units, names = table.units, table.group_names
        n_latent = n_inputs - len(units.scale)  # trends and latent variables, which come after the features
        units = Units([*units.shift, *n_latent * [0.0]], [*units.scale, *n_latent * [1.0]])
        n_features = n_inputs - n_latent if groups is None else groups[-1 - n_latent] + 1
        names = names and [*names, *range(n_features, n_features + n_latent)]
    if any(type(term).__name__ == "Convolutional" for term in _added(kernel)):
        convolution, others = _split(kernel)
        patches = _convolution(convolution, n_outputs, n_inputs, units)
        if not others:
            return patches
        whole = _Converter(n_outputs, units, names, groups).part(reduce(add, others), range(n_inputs))
        return ConvolutionalSum(patches, whole)
    return _Converter(n_outputs, units, names, groups).part(kernel, range(n_inputs))


def _check_kind(kernel: KernelLike) -> None:
    """ValueError if it is nothing that a layer can make its kernel of."""
    if isinstance(kernel, type) and any(base.__module__ == "sklearn.gaussian_process.kernels" for base in kernel.mro()):
        raise ValueError(f"kernel={kernel.__name__} is a class: give an object of it, such as {kernel.__name__}().")
    named = isinstance(kernel, str) and kernel in PROFILES
    if not (named or is_object(kernel) or callable(kernel)):
        raise ValueError(
            f"kernel={kernel!r} is no kernel: give one of {sorted(PROFILES)}, a kernel object of scikit-learn, or a "
            "function that makes a kernel."
        )


def groups_of(table: Table | None, n_inputs: int) -> tuple[int, ...] | None:
    """Feature, trend or latent variable that each input of the first layer belongs to; None if each is its own."""
    groups = None if table is None else table.encoding.groups
    if groups is None:
        return None
    n_features, n_latent = groups[-1] + 1, n_inputs - len(groups)
    return (*groups, *range(n_features, n_features + n_latent))


def _added(kernel: Any) -> list[Any]:
    """The kernel objects that a sum consists of."""
    return _added(kernel.k1) + _added(kernel.k2) if type(kernel).__name__ == "Sum" else [kernel]


def without_noise(kernel: Any) -> tuple[Any, Any]:
    """A kernel object without its WhiteKernel, and this WhiteKernel; None if there is none.

    Raises
    ------
    ValueError
        If there are several, or nothing else.
    """
    added = _added(kernel)
    others = [term for term in added if type(term).__name__ != "WhiteKernel"]
    n_white = len(added) - len(others)
    if not n_white:
        return kernel, None
    if n_white > 1 or not others:
        raise ValueError(
            f"kernel={kernel} has {n_white} WhiteKernel and {len(others)} other terms: add one WhiteKernel to a kernel "
            "of functions."
        )
    [white] = [term for term in added if type(term).__name__ == "WhiteKernel"]
    return reduce(add, others), white


def by_layer(kernel: KernelLike, n_layers: int) -> list[KernelLike]:
    """The kernel of each layer. Only that of the last one keeps a WhiteKernel."""
    if isinstance(kernel, list | tuple):
        return list(kernel)
    hidden = without_noise(kernel)[0] if is_object(kernel) else kernel
    return [*(n_layers - 1) * [hidden], kernel]


def white_noise(kernel: KernelLike) -> Any:
    """The WhiteKernel that says where the noise of the targets starts; None if there is none."""
    last = kernel[-1] if isinstance(kernel, list | tuple) and kernel else kernel
    return without_noise(last)[1] if is_object(last) else None


def _split(kernel: Any) -> tuple[Any, list[Any]]:
    """The convolution in a sum, and the other terms of the sum."""
    added = _added(kernel)
    place = [type(each).__name__ for each in added].index("Convolutional")
    return added[place], added[:place] + added[place + 1 :]


def _convolution(kernel: Any, n_outputs: int, n_inputs: int, units: Units) -> Convolution:
    """A kernel of images. Its base is in the units of pixels."""
    shape, patch = tuple(kernel.image_shape), tuple(kernel.patch_shape)
    if len(shape) not in (2, 3) or len(patch) != 2 or min(*shape, *patch) < 1:
        raise ValueError(
            f"Convolutional has image_shape={kernel.image_shape!r} and patch_shape={kernel.patch_shape!r}: give height "
            "and width of both, and a third number for channels of images."
        )
    if int(np.prod(shape)) != n_inputs or patch[0] > shape[0] or patch[1] > shape[1] or patch == shape[:2]:
        raise ValueError(
            f"Convolutional has images of shape {shape} and patches of shape {patch}, but the layer has {n_inputs} "
            "inputs: images must have as many pixels, and patches be smaller than they are. Levels of categories and "
            "marks of missing cells are inputs, too."
        )
    index = torch.from_numpy(kernel.index().copy())
    n_pixels = index.shape[1]
    base = _Converter(n_outputs, Units(n_pixels * [0.0], n_pixels * [1.0]))
    scale, shift = (torch.tensor(column, dtype=torch.float32) for column in (units.scale, units.shift))
    return Convolution(base.part(kernel.resolved_base(), range(n_pixels)), index, scale, shift)


def is_additive(method, kernel: KernelLike) -> bool:
    """Whether a kernel by name becomes a sum over inputs, since each input has Fourier features."""
    return "fourier" in method.feature_kinds and kernel in ("matern12", "matern32", "matern52")


def additive_object(profile: str, lengths: Sequence[float], variances: Sequence[float] | None = None) -> KernelLike:
    """A kernel object that is a sum of Matérn kernels, one for each input. By default they share the variance 1."""
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    from ..kernels import Select

    nu, shares = PROFILES[profile].nu, variances or len(lengths) * [1 / len(lengths)]
    numbers = enumerate(zip(shares, lengths, strict=True))
    return reduce(add, [ConstantKernel(share) * Select(Matern(length, nu=nu), i) for i, (share, length) in numbers])


def is_object(kernel: KernelLike) -> bool:
    """Whether it is a kernel object of scikit-learn."""
    module = sys.modules.get("sklearn.gaussian_process.kernels")  # without this import there can be no such object
    return module is not None and isinstance(kernel, module.Kernel)


def has_objects(kernel: KernelLike) -> bool:
    """Whether it is a kernel object, or a list that contains some."""
    return any(is_object(one) for one in (kernel if isinstance(kernel, list | tuple) else [kernel]))


def patched(kernel: KernelLike) -> list[int]:
    """For each kernel, of those of all layers, that has a convolution: of how many terms it is a sum."""
    sums = [_added(one) for one in (kernel if isinstance(kernel, list | tuple) else [kernel])]
    return [len(terms) for terms in sums if "Convolutional" in [type(term).__name__ for term in terms]]


def has_corners(model: nn.Module) -> bool:
    """Whether a model has a kernel with ν = 1/2, whose functions have a corner everywhere."""
    return any(getattr(part, "profile", None) == PROFILE_OF_NU[0.5] for part in model.modules())


def to_object(given: KernelLike, kernel: Kernel, units: Units | None, noise: float | None = None) -> KernelLike:
    """A layer's kernel as a kernel object of scikit-learn, in the units of the features; None if there is none.

    If outputs have covariance functions of their own, it is the first one. ``noise`` is the variance of the noise,
    which the object's WhiteKernel gets, if it has one.
    """
    if is_object(given):
        learnt = deepcopy(given)
        functions, white = without_noise(learnt)
        _fill(functions, kernel)
        if white is not None and noise is not None and not white.hyperparameter_noise_level.fixed:
            white.noise_level = noise
        return learnt
    if isinstance(kernel, Part) and isinstance(given, str):
        return _learnt_sum(given, kernel, units)
    if not by_name(kernel):
        return None
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

    lengths = _numbers(kernel.hyperparameters()["lengthscale"][0])
    if units is not None:  # units of features; latent variables may come after them
        scale = np.asarray(units.scale)
        lengths = lengths * (scale if len(lengths) == 1 else np.append(scale, np.ones(len(lengths) - len(scale))))
    length = float(lengths[0]) if len(set(lengths.tolist())) == 1 else lengths
    nu = PROFILES[kernel.profile].nu
    return ConstantKernel(float(kernel.variance[0])) * (Matern(length, nu=nu) if np.isfinite(nu) else RBF(length))


def with_numbers(kernel: Kernel, source: Any, n_inputs: int, table: Table) -> Kernel:
    """A first layer's kernel with the numbers of a kernel object that :func:`to_object` has made of one like it.

    The numbers may lie outside of the bounds. Weights of patches, which no kernel object sets, stay as they are.
    """
    functions = without_noise(source)[0]
    if by_name(kernel):
        groups = groups_of(table, n_inputs)
        named = StationaryKernel(kernel.profile, n_inputs, ard=True if groups is None else groups)
        lengths = torch.as_tensor(functions.k2.length_scale / np.asarray(table.group_units.scale))
        with torch.no_grad():
            named.log_lengthscale.copy_(lengths.log())
            named.log_variance.fill_(np.log(functions.k1.constant_value))
        return named
    other = layer_kernel(SimpleNamespace(kernel=with_fixed_numbers(functions)), 0, 1, n_inputs, 1, table)
    weights = {name: value for name, value in kernel.state_dict().items() if name.endswith("change")}
    other.load_state_dict(weights, strict=False)
    return other


def with_fixed_numbers(kernel: KernelLike) -> KernelLike:
    """A copy of kernel objects whose numbers are fixed, and so may lie outside of their bounds; others as they are."""
    if isinstance(kernel, list | tuple):
        return [with_fixed_numbers(one) for one in kernel]
    if not is_object(kernel):
        return kernel
    bounds = [name for name in kernel.get_params() if name.endswith("_bounds")]
    return deepcopy(kernel).set_params(**dict.fromkeys(bounds, "fixed"))


def _learnt_sum(given: str, kernel: Part, units: Units | None) -> KernelLike:
    """A sum of Matérn kernels, one for each input, as a kernel object in the units of the features."""
    terms = kernel.terms()
    scale = np.ones(len(terms))
    if units is not None:  # units of features; latent variables may come after them
        scale[: len(units.scale)] = units.scale
    rates = [_numbers(cast(Stationary, term.waves[0][0]).rate())[0, 0] for term in terms]  # per unit of an input
    return additive_object(given, (scale / rates).tolist(), [float(_numbers(term.scale)[0]) for term in terms])


def _fill(target: Any, source: Any) -> None:
    """Copy the learnt numbers of a kernel into the kernel object from which it was made."""
    if isinstance(source, ConvolutionalSum):
        convolution, others = _split(target)
        _fill(convolution, source.convolution)
        return _fill(reduce(add, others), source.whole)
    if isinstance(source, Convolution):
        target.base = target.resolved_base()
        target.weights_ = _numbers(source.weight[0]) * source.index.shape[0]
        return _fill(target.base, source.kernel)
    for name in ("k1", "k2", "kernel"):
        if hasattr(source, name):
            _fill(getattr(target, name), getattr(source, name))
    if not any(hasattr(source, name) for name in ("k1", "kernel")):
        for name, value in source.hyperparameters().items():
            if not getattr(target, f"hyperparameter_{name}").fixed:
                numbers = _numbers(value[0])
                setattr(target, name, float(numbers[0]) if np.ndim(getattr(target, name)) == 0 else numbers)


def stayed(given: Any, learnt: Any) -> bool:
    """Whether a kernel object has hyperparameters to learn, and all of them are the initial ones."""
    return len(given.theta) > 0 and bool(np.allclose(given.theta, learnt.theta, rtol=0.0, atol=UNMOVED))


def at_bounds(kernel: Any) -> list[tuple[str, float]]:
    """Names of the hyperparameters of a kernel object that are as near to a bound as they can start, and the bound."""
    names = [
        hyperparameter.name
        for hyperparameter in kernel.hyperparameters
        if not hyperparameter.fixed
        for _ in range(hyperparameter.n_elements)
    ]
    ended = []
    for name, log_value, (low, high) in zip(names, kernel.theta, kernel.bounds, strict=True):
        margin = 0.5 * EDGE * (high - low) + UNMOVED
        ended += [(name, float(np.exp(end))) for end in (low, high) if abs(log_value - end) <= margin]
    return ended


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


class _Converter:
    """Makes kernels from kernel objects. A feature is one input, or a group of inputs; inputs have these units."""

    def __init__(self, n_outputs: int, units: Units, names: Sequence[Any] = (), groups: Sequence[int] | None = None):
        self.n_outputs, self.units, self.names = n_outputs, units, names
        self.groups = tuple(range(len(units.scale))) if groups is None else groups
        self.makers: dict[str, Callable[[Any, Sequence[int]], Part]] = {
            "ConstantKernel": self._constant,
            "RBF": lambda kernel, columns: self._stationary(kernel, columns, "rbf"),
            "Matern": self._matern,
            "RationalQuadratic": self._rational_quadratic,
            "ExpSineSquared": self._periodic,
            "DotProduct": self._dot_product,
            "Sum": lambda kernel, columns: composed.Sum(*self._both(kernel, columns)),
            "Product": lambda kernel, columns: composed.Product(*self._both(kernel, columns)),
            "Exponentiation": self._power,
            "Select": self._select,
        }

    def part(self, kernel: Any, columns: Sequence[int]) -> Part:
        """The kernel that a kernel object makes of some columns, given by their numbers."""
        name = type(kernel).__name__
        if name == "Convolutional":
            raise ValueError(
                "kernel has a Convolutional in a product, or two of them: there may be one, by itself or in a sum. "
                "Compose its base instead."
            )
        if name == "WhiteKernel":
            raise ValueError(
                "kernel has a WhiteKernel inside a product or another kernel, but it can only be the noise of the "
                "targets: add it to the whole kernel, or leave it out."
            )
        if name not in self.makers:
            raise ValueError(f"kernel has a {name}, which is none of {sorted(self.makers)}: compose it of these.")
        return self.makers[name](kernel, columns)

    def _both(self, kernel: Any, columns: Sequence[int]) -> tuple[Part, Part]:
        return self.part(kernel.k1, columns), self.part(kernel.k2, columns)

    def _power(self, kernel: Any, columns: Sequence[int]) -> Part:
        # Roots have infinite slopes at 0 and are not real below, and a negative power of a kernel is none.
        if kernel.exponent < 1 or kernel.exponent != int(kernel.exponent):
            raise ValueError(f"kernel has an exponent of {kernel.exponent!r}: give a whole number of at least 1.")
        return composed.Power(self.part(kernel.kernel, columns), kernel.exponent)

    def _positive(self, kernel: Any, name: str) -> Positive:
        """The hyperparameter of a name, with its bounds."""
        about = getattr(kernel, f"hyperparameter_{name}")
        values = np.atleast_1d(np.asarray(getattr(kernel, name), dtype=np.float64))
        if about.fixed:
            return Positive(self.n_outputs, values.tolist(), None)
        bounds = np.asarray(about.bounds, dtype=np.float64)
        if not (np.isfinite(bounds) & (bounds > 0)).all():
            raise ValueError(
                f"kernel has {type(kernel).__name__} with {name}_bounds={about.bounds.tolist()}: give positive and "
                "finite bounds, or fix the value."
            )
        return Positive(self.n_outputs, values.tolist(), bounds.tolist())

    def _scale(self, columns: Sequence[int]) -> Tensor:
        return torch.tensor(np.asarray(self.units.scale)[list(columns)], dtype=torch.float32)

    def _lengthscale(self, kernel: Any, columns: Sequence[int]) -> Positive:
        length = self._positive(kernel, "length_scale")
        number, n_features = length.log().shape[-1], len(self._features(columns))
        if number not in (1, n_features):
            raise ValueError(
                f"kernel has {type(kernel).__name__} with {number} lengthscales, but a layer with {n_features} "
                "inputs: give one lengthscale, or one for each input, and layers that differ a list of kernels."
            )
        return length

    def _features(self, columns: Sequence[int]) -> list[int]:
        """The features to which some columns belong, in order."""
        return list(dict.fromkeys(self.groups[i] for i in columns))

    def _index(self, columns: Sequence[int]) -> list[int] | None:
        """For each column the place of its feature among these features; None if each column is a feature."""
        features = self._features(columns)
        return None if len(features) == len(columns) else [features.index(self.groups[i]) for i in columns]

    def _constant(self, kernel: Any, columns: Sequence[int]) -> Part:
        return composed.Constant(self.n_outputs, self._positive(kernel, "constant_value"))

    def _stationary(self, kernel: Any, columns: Sequence[int], profile: str) -> Part:
        length = self._lengthscale(kernel, columns)
        return composed.Stationary(self.n_outputs, profile, length, self._scale(columns), self._index(columns))

    def _matern(self, kernel: Any, columns: Sequence[int]) -> Part:
        if kernel.nu not in PROFILE_OF_NU:
            raise ValueError(f"kernel has Matern with nu={kernel.nu!r}: choose 0.5, 1.5, 2.5 or infinity.")
        return self._stationary(kernel, columns, PROFILE_OF_NU[kernel.nu])

    def _rational_quadratic(self, kernel: Any, columns: Sequence[int]) -> Part:
        length, alpha = self._lengthscale(kernel, columns), self._positive(kernel, "alpha")
        return composed.RationalQuadratic(self.n_outputs, length, alpha, self._scale(columns))

    def _periodic(self, kernel: Any, columns: Sequence[int]) -> Part:
        length, period = self._positive(kernel, "length_scale"), self._positive(kernel, "periodicity")
        return composed.Periodic(self.n_outputs, length, period, self._scale(columns))

    def _dot_product(self, kernel: Any, columns: Sequence[int]) -> Part:
        shift = torch.tensor(np.asarray(self.units.shift)[list(columns)], dtype=torch.float32)
        return composed.DotProduct(self.n_outputs, self._positive(kernel, "sigma_0"), self._scale(columns), shift)

    def _select(self, kernel: Any, columns: Sequence[int]) -> Part:
        chosen, features = list[int](), self._features(columns)
        known: dict[Any, int] = dict(enumerate(features))  # numbers count among the features that are left
        known |= {name: i for i, name in enumerate(self.names) if i in features and name not in known}
        for column in kernel.chosen(len(features)):
            if column not in known:
                raise ValueError(f"kernel has Select of column {column!r}, which is none of {[*known]}: choose others.")
            chosen += [place for place, i in enumerate(columns) if self.groups[i] == known[column]]
        return composed.Columns(self.part(kernel.kernel, [columns[i] for i in chosen]), chosen)
