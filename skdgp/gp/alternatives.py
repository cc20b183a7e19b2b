"""Models of one layer that differ in kernel, noise and posterior, as one model whose outputs stand side by side.

Together they take one product of matrices, where one after another would take many small ones. Output p of alternative
b is output bP + p of all P outputs of B alternatives.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from .deep_gp import DeepGP
from .global_layer import GlobalLayer
from .kernels import Kernel, ScaledKernel, StationaryKernel, SumKernel
from .likelihoods import Gaussian
from .means import ZeroMean


@torch.no_grad()
def side_by_side(models: Sequence[DeepGP]) -> DeepGP:
    """One model with the outputs of several ones, or the model itself if it is the only one.

    Parameters
    ----------
    models : sequence of DeepGP
        Models with Gaussian noise and one whitened :class:`.GlobalLayer`, whose outputs share a kernel and have zero
        mean. Inducing points are the same in all, and so is the structure of kernels.
    """
    if len(models) == 1:
        return models[0]
    joined = deepcopy(models[0])
    layers = [cast(GlobalLayer, model.layers[0]) for model in models]
    n_outputs = len(layers[0].q.mean)
    layer, noise = cast(GlobalLayer, joined.layers[0]), cast(Gaussian, joined.likelihood)
    for part, *parts in zip(*(_scaled(layer.kernel) for layer in (layer, *layers)), strict=True):
        for name in _logarithms(part):
            _replace(part, name, torch.cat([_of_each(getattr(source, name), n_outputs) for source in parts]))
    _count_outputs(layer.kernel, len(models) * n_outputs)
    for name in ("mean", "log_diagonal", "below"):
        _replace(layer.q, name, torch.cat([_of_each(getattr(source.q, name), n_outputs) for source in layers]))
    cast(ZeroMean, layer.mean).n_outputs = len(models) * n_outputs
    noises = [cast(Gaussian, model.likelihood) for model in models]
    noise.n_outputs = len(models) * n_outputs
    _replace(noise, "log_excess", torch.cat([_of_each(source.log_excess, n_outputs) for source in noises]))
    noise.floor = torch.cat([_of_each(source.floor, n_outputs) for source in noises])
    return joined


@torch.no_grad()
def alternative(joined: DeepGP, number: int, n_alternatives: int) -> DeepGP:
    """The alternative of this number among those that stand side by side. It is not frozen."""
    if n_alternatives == 1:
        return joined
    layer, noise = cast(GlobalLayer, joined.layers[0]), cast(Gaussian, joined.likelihood)
    n_outputs = len(layer.q.mean) // n_alternatives
    rows = slice(number * n_outputs, (number + 1) * n_outputs)
    # Copies have these in place of what stands side by side, so that nothing is copied in vain.
    instead: dict[int, object] = {id(part): None for part in (layer._factor, layer._turned, layer._for_draws)}
    first = slice(rows.start, rows.start + 1)  # outputs share the kernel
    for own, modules in ((rows, (layer.q, noise)), (first, _scaled(layer.kernel))):
        for parameter in (parameter for module in modules for parameter in module.parameters()):
            instead[id(parameter)] = nn.Parameter(parameter[own].clone(), requires_grad=False)
    instead[id(noise.floor)] = noise.floor[rows].clone()
    model = deepcopy(joined, instead)
    layer = cast(GlobalLayer, model.layers[0])
    _count_outputs(layer.kernel, 1)
    cast(ZeroMean, layer.mean).n_outputs = cast(Gaussian, model.likelihood).n_outputs = n_outputs
    return model


def _scaled(kernel: Kernel) -> list[ScaledKernel]:
    """The parts of a kernel, each of which has a variance."""
    return [cast(ScaledKernel, part) for part in cast(SumKernel, kernel).kernels]


def _logarithms(kernel: ScaledKernel) -> list[str]:
    """Names of a part's parameters."""
    return ["log_lengthscale", "log_variance"] if isinstance(kernel, StationaryKernel) else ["log_variance"]


def _of_each(numbers: Tensor, n_outputs: int) -> Tensor:
    """Numbers (P, ...) of each output, from those of each or of all (1, ...)."""
    return numbers.detach().expand(n_outputs, *numbers.shape[1:])


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    setattr(module, name, nn.Parameter(value.detach().clone(), requires_grad=False))


def _count_outputs(kernel: Kernel, n_outputs: int) -> None:
    """Tell a kernel and its parts how many outputs they have."""
    for part in (kernel, *_scaled(kernel)):
        part.n_outputs, part.unit = n_outputs, part.unit.new_ones(n_outputs)
