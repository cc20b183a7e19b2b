"""Stacks: several models of one shape as one model, which computes all of them at once.

Parameters and buffers of a stack have a dimension of members in front, and so have its inputs and results. Layers,
kernels and likelihoods need not know about it, because they count their dimensions from the last one.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn

from ..gp.deep_gp import DeepGP


def can_be_stacked(models: Sequence[DeepGP]) -> bool:
    """Whether models have the same shapes, and only parts that are known to work in a stack.

    Parts of the user's own may not count their dimensions from the last one, and some layers of this package do not.
    """
    if any(not type(part).__module__.startswith(("skdgp.", "torch.")) for part in models[0].modules()):
        return False
    if not all(getattr(layer, "stackable", True) for layer in models[0].modules()):
        return False
    shapes = [[(name, tensor.shape) for name, tensor in model.state_dict().items()] for model in models]
    return all(each == shapes[0] for each in shapes)


def stack(models: Sequence[DeepGP]) -> DeepGP:
    """Copies of the models as one model."""
    whole = deepcopy(models[0])
    for parts in zip(whole.modules(), *(model.modules() for model in models), strict=True):
        target, *sources = parts
        for tensors in ("_parameters", "_buffers"):
            for name, tensor in getattr(target, tensors).items():
                if tensor is not None:
                    found = torch.stack([getattr(source, tensors)[name].detach() for source in sources])
                    is_parameter = isinstance(tensor, nn.Parameter)
                    getattr(target, tensors)[name] = (
                        nn.Parameter(found, tensor.requires_grad) if is_parameter else found
                    )
    return whole
