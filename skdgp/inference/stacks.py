"""Stacks: several models of one shape as one model, which computes all of them at once.

Parameters and buffers of a stack have a dimension of members in front, and so have its inputs and results. Layers,
kernels and likelihoods need not know about it if they count their dimensions from the last one. A class that does says
``stackable = True`` in its own body. A class that derives from it says so for itself, since its code may differ.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..gp.deep_gp import DeepGP

#: Modules of torch that compute nothing themselves.
LISTS = (nn.ModuleList, nn.ParameterList)


def can_be_stacked(models: Sequence[DeepGP]) -> bool:
    """Whether models have the same shapes, and only parts that say that they can be parts of a stack."""
    if not all(type(part) in LISTS or _is_stackable(part) for part in models[0].modules()):
        return False
    shapes = [[(name, tensor.shape) for name, tensor in model.state_dict().items()] for model in models]
    return all(others == shapes[0] for others in shapes[1:])


def _is_stackable(part: nn.Module) -> bool:
    """Whether the class of a part, and not one that it derives from, says that it works in a stack."""
    return "stackable" in vars(type(part)) and bool(part.stackable)


def stack(models: Sequence[DeepGP]) -> DeepGP:
    """Copies of the models as one model."""
    whole = deepcopy(models[0])
    for target, *sources in zip(*map(_tensors, (whole, *models)), strict=True):
        target.data = torch.stack([source.detach() for source in sources])
    return whole


def _tensors(model: DeepGP) -> list[Tensor]:
    """Parameters and buffers, in an order that is the same in all models of one shape."""
    return [*model.parameters(), *model.buffers()]
