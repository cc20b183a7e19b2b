"""Inference networks: from a row's anchor to that row's own inducing variables.

An inference network maps anchors (B, Q) to inducing points ``Z`` (B, M, Q) and to the mean (M, D, B) and
root of the covariance, (M, D, B) or (M, M, D, B), of a Gaussian over the inducing variables of each of D
outputs; rows come last, as :mod:`skdgp.gp.rowwise` wants them. The M inducing variables of a row start
equal, so that nothing distinguishes them but ``Z``.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.utils import skip_init

#: Smallest posterior standard deviation of an inducing variable: softplus underflows to 0 in float32,
#: and the KL divergence takes its logarithm.
SCALE_FLOOR = 1e-4

#: Slope of LeakyReLU for negative arguments (AVDGP, App. C.1).
NEGATIVE_SLOPE = 0.2


def make_mlp(n_inputs: int, n_outputs: int, width: int, n_hidden: int, generator: torch.Generator) -> nn.Sequential:
    """Multilayer perceptron of ``n_hidden`` layers of ``width`` units with LeakyReLU between them.

    Weights are uniform in ±1/√(fan in), torch's default, but drawn from ``generator`` alone.
    """
    sizes = [n_inputs] + n_hidden * [width] + [n_outputs]
    modules: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = skip_init(nn.Linear, fan_in, fan_out)
        bound = fan_in**-0.5
        nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)
        modules += [linear, nn.LeakyReLU(NEGATIVE_SLOPE)]
    return nn.Sequential(*modules[:-1])


def _start_equal(linear: Any, start: int, n_inducing: int, n_outputs: int) -> None:
    """Make the outputs (M, D) of ``linear`` from ``start`` on equal for all M inducing variables."""
    with torch.no_grad():
        for parameter in (linear.weight, linear.bias):
            first = parameter[start : start + n_outputs].clone()
            for m in range(n_inducing):
                parameter[start + m * n_outputs : start + (m + 1) * n_outputs] = first


def _rows_last(raw: Tensor, *shape: int) -> Tensor:
    """(B, product of shape) -> (*shape, B), contiguous."""
    return raw.mT.contiguous().unflatten(0, shape)


class _Scale(nn.Module):
    """Turns M·D (diagonal) or M·D + M(M−1)/2·D (full) unconstrained numbers into a root of Σ."""

    def __init__(self, n_outputs: int, n_inducing: int, covariance: str):
        super().__init__()
        self.shape = (n_inducing, n_outputs)
        self.n_below = n_inducing * (n_inducing - 1) // 2 if covariance == "full" else 0
        self.dense = covariance == "full"
        self.n_numbers = (n_inducing + self.n_below) * n_outputs

    def forward(self, raw: Tensor) -> Tensor:
        n_inducing, n_outputs = self.shape
        raw = _rows_last(raw, n_inducing + self.n_below, n_outputs)
        diagonal = softplus(raw[:n_inducing]) + SCALE_FLOOR  # (M, D, B)
        if not self.dense:
            return diagonal
        scale = raw.new_zeros(n_inducing, *diagonal.shape)
        points = torch.arange(n_inducing, device=raw.device)
        rows, columns = torch.tril_indices(n_inducing, n_inducing, -1, device=raw.device)
        scale = scale.index_put((points, points), diagonal)
        return scale.index_put((rows, columns), raw[n_inducing:])  # (M, M, D, B)


class InferenceNetwork(nn.Module):
    """Computes a row's inducing variables; see the module's docstring."""

    shape: tuple[int, int]  # (M, D)


class AffineInference(InferenceNetwork):
    """AVDGP's inference network: affine maps to ``Z``, one MLP each for mean and scale (Eq. 3.2, 3.3).

    Z_m = W_m a + b_m keeps the geometry of the input space however deep the other networks are.
    W_m starts at the identity and b_m ~ N(0, I).
    """

    def __init__(
        self, n_inputs: int, n_outputs: int, n_inducing: int, *, covariance: str, width: int, generator: torch.Generator
    ):
        super().__init__()
        self.shape = (n_inducing, n_outputs)
        points: nn.Linear = skip_init(nn.Linear, n_inputs, n_inducing * n_inputs)
        with torch.no_grad():
            points.weight.copy_(torch.eye(n_inputs).repeat(n_inducing, 1))
            points.bias.normal_(generator=generator)
        self.points = points
        self.scale = _Scale(n_outputs, n_inducing, covariance)
        self.mean_net = make_mlp(n_inputs, n_inducing * n_outputs, width, 2, generator)
        self.scale_net = make_mlp(n_inputs, self.scale.n_numbers, width, 2, generator)
        for net in (self.mean_net, self.scale_net):
            _start_equal(net[-1], 0, n_inducing, n_outputs)

    def forward(self, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inducing points, posterior means and roots of posterior covariances."""
        Z = self.points(anchor).unflatten(-1, (self.shape[0], -1))  # (B, M, Q)
        mean = _rows_last(self.mean_net(anchor), *self.shape)  # (M, D, B)
        return Z, mean, self.scale(self.scale_net(anchor))


class NetworkInference(InferenceNetwork):
    """IDSGP's inference network: one MLP for everything, inducing points included (Eq. 3.1)."""

    def __init__(
        self, n_inputs: int, n_outputs: int, n_inducing: int, *, covariance: str, width: int, generator: torch.Generator
    ):
        super().__init__()
        self.shape = (n_inducing, n_outputs)
        self.scale = _Scale(n_outputs, n_inducing, covariance)
        self.sizes = [n_inducing * n_inputs, n_inducing * n_outputs, self.scale.n_numbers]
        self.net = make_mlp(n_inputs, sum(self.sizes), width, 2, generator)
        last: Any = self.net[-1]
        with torch.no_grad():
            last.bias[: self.sizes[0]].normal_(generator=generator)
        for start in (self.sizes[0], self.sizes[0] + self.sizes[1]):
            _start_equal(last, start, n_inducing, n_outputs)

    def forward(self, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inducing points, posterior means and roots of posterior covariances."""
        Z, mean, scale = self.net(anchor).split(self.sizes, dim=-1)
        Z = Z.unflatten(-1, (self.shape[0], -1))  # (B, M, Q)
        return Z, _rows_last(mean, *self.shape), self.scale(scale)


INFERENCE_NETWORKS: dict[str, Callable[..., InferenceNetwork]] = {"affine": AffineInference, "mlp": NetworkInference}
