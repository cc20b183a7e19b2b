"""Mean functions of layers: maps from (..., Q) to (..., D)."""

import torch
from torch import Tensor, nn


class Mean(nn.Module):
    """A mean function."""

    def added_to(self, values: Tensor, X: Tensor) -> Tensor:
        """``values`` (..., D) + m(X)."""
        return values + self(X)


class ZeroMean(Mean):
    """m(x) = 0."""

    stackable = True

    def __init__(self, n_outputs: int):
        super().__init__()
        self.n_outputs = n_outputs

    def forward(self, X: Tensor) -> Tensor:
        """Zeros of shape (..., D), which take no memory."""
        return X.new_zeros(()).expand(*X.shape[:-1], self.n_outputs)

    def added_to(self, values: Tensor, X: Tensor) -> Tensor:
        """The values themselves. Most layers have this mean, and this saves an addition."""
        return values


class ConstantMean(Mean):
    """m(x) = c, the same everywhere."""

    stackable = True

    constant: Tensor

    def __init__(self, constant: Tensor):
        super().__init__()
        self.register_buffer("constant", constant.clone())

    def forward(self, X: Tensor) -> Tensor:
        """The constants (D,) in each row, (..., D), without memory for copies."""
        return self.constant.to(X).expand(*X.shape[:-1], -1)


class LinearMean(Mean):
    """m(x) = x P with a matrix ``P`` of shape (Q, D), learnt or fixed."""

    stackable = True

    projection: Tensor

    def __init__(self, projection: Tensor, *, learnable: bool):
        super().__init__()
        if learnable:
            self.projection = nn.Parameter(projection.clone())
        else:
            self.register_buffer("projection", projection.clone())

    def forward(self, X: Tensor) -> Tensor:
        """Projected inputs of shape (..., D)."""
        P = self.projection
        if P.dim() > 2:  # P of a stack of models
            P = P.reshape(*P.shape[:-2], *(X.dim() - P.dim()) * (1,), *P.shape[-2:])
        return X @ P


def principal_projection(X: Tensor, n_outputs: int) -> Tensor:
    """Matrix (Q, D) that keeps as much of ``X`` as ``n_outputs`` columns can.

    It is the identity if the layer is as wide as its inputs. If the layer is narrower, its columns are the leading
    principal directions of the rows of ``X``. If it is wider, it is the identity padded with zero columns (Salimbeni &
    Deisenroth, 2017, Sec. 3).
    """
    n_inputs = X.shape[-1]
    if n_outputs >= n_inputs:
        return torch.eye(n_inputs, n_outputs, dtype=X.dtype, device=X.device)
    _, R = torch.linalg.qr(X - X.mean(0), mode="r")  # (Q, Q), or (N, Q) if there are fewer rows
    _, _, directions = torch.linalg.svd(R, full_matrices=True)  # rows are directions, the same as those of X
    return directions[:n_outputs].mT.contiguous()


def make_mean(name: str, X: Tensor, n_outputs: int) -> Mean:
    """Mean function called ``name`` for a layer that sees inputs like the rows of ``X`` (N, Q).

    ``"zero"`` is none. ``"identity"`` is the fixed map of :func:`principal_projection`. ``"linear"`` starts with this
    map, and is learnt.
    """
    if name == "zero":
        return ZeroMean(n_outputs)
    return LinearMean(principal_projection(X, n_outputs), learnable=name == "linear")
