"""The base class of functions whose gradients are written by hand."""

import torch


class Function(torch.autograd.Function):
    """``torch.autograd.Function`` with a faster ``apply``, which takes 7 µs instead of 24.

    If a function has ``setup_context``, torch looks up its default arguments with :mod:`inspect` in each call. The
    functions of this package have no default arguments, and a training step calls some twenty of them.
    """

    @classmethod
    def apply(cls, *args):
        """The function's value, with its gradient."""
        if torch._C._are_functorch_transforms_active():  # vmap, jvp and the like
            return super().apply(*args)
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]  # of a C class
