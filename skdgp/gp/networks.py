"""Inference networks, which compute a row's own inducing variables from its anchor.

An inference network maps anchors (B, Q) to inducing points ``Z`` (B, M, Q) and to the mean (M, D, B) and
root of the covariance, (M, D, B) or (M, M, D, B), of a Gaussian over the inducing variables of each of D
outputs. Rows come last, as :mod:`skdgp.gp.rowwise` needs them. At the start the M inducing variables of a
row have the same mean and covariance, and differ only by their points ``Z``.

``widths`` are the units of the hidden layers. Where one is None, :func:`layer_sizes` chooses it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu_, softplus

#: Smallest posterior standard deviation of an inducing variable: softplus underflows to 0 in float32,
#: and the KL divergence takes its logarithm.
DEVIATION_FLOOR = 1e-4

#: Slope of LeakyReLU for negative arguments (AVDGP, App. C.1).
NEGATIVE_SLOPE = 0.2


def layer_sizes(n_inputs: int, n_outputs: int, widths: Sequence[int | None]) -> tuple[int, ...]:
    """Units of each layer of a network.

    A hidden layer without a width has the number of inputs or that of outputs, whichever is smaller. That is the
    paper's choice (AVDGP, App. C.1).
    """
    return (n_inputs, *(min(n_inputs, n_outputs) if width is None else width for width in widths), n_outputs)


class MLPs(nn.Module):
    """Multilayer perceptrons of equal sizes side by side, with LeakyReLU.

    Weights and biases are uniform in ±1/√(fan in), torch's default, but drawn from ``generator`` alone.
    Rows come last. So each layer of all networks is one batched matrix product, without copies in between.

    Parameters
    ----------
    n_nets : int
        G.
    sizes : sequence of int
        Units of every layer, first to last.
    generator : torch.Generator
    """

    stackable = True

    def __init__(self, n_nets: int, sizes: Sequence[int], generator: torch.Generator):
        super().__init__()
        empty = partial(torch.empty, device=generator.device, dtype=torch.float32)
        self.weights = nn.ParameterList(empty(n_nets, fan_out, fan_in) for fan_in, fan_out in pairwise(sizes))
        self.biases = nn.ParameterList(empty(n_nets, fan_out, 1) for fan_out in sizes[1:])
        for g in range(n_nets):
            for weight, bias in zip(self.weights, self.biases, strict=True):
                bound = weight.shape[-1] ** -0.5
                nn.init.uniform_(weight[g], -bound, bound, generator=generator)
                nn.init.uniform_(bias[g], -bound, bound, generator=generator)

    def forward(self, X: Tensor) -> Tensor:
        """Outputs (G, n_outputs, B) for inputs (B, Q)."""
        nets = self.weights[0].shape[:-2]
        h = X.mT.unsqueeze(-3).expand(*nets, -1, -1).flatten(0, -3)
        for depth, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = leaky_relu_(h, NEGATIVE_SLOPE) if depth else h
            h = torch.baddbmm(bias.flatten(0, -3), weight.flatten(0, -3), h)
        return h.unflatten(0, nets)

    @torch.no_grad()
    def start_equal(self, start: int, n_inducing: int, n_outputs: int) -> None:
        """Make the outputs (M, D) from ``start`` on equal for all M inducing variables."""
        for last in (self.weights[-1], self.biases[-1]):
            outputs = last[:, start : start + n_inducing * n_outputs]
            outputs.copy_(outputs[:, :n_outputs].repeat(1, n_inducing, 1))


class _Affine(nn.Linear):
    """An affine map whose initial values the caller sets, so that it does not use torch's global random numbers.

    ``torch.nn.utils.skip_init`` does the same, but imports a package for symbolic mathematics, which takes seconds.
    """

    stackable = True

    def reset_parameters(self) -> None:
        """Do nothing, since the caller sets initial values."""


class _Root(nn.Module):
    """Turns M·D (diagonal) or M·D + M(M−1)/2·D (full) unconstrained numbers into a root of Σ."""

    stackable = True

    def __init__(self, n_outputs: int, n_inducing: int, covariance: str):
        super().__init__()
        self.shape = (n_inducing, n_outputs)
        self.n_below = n_inducing * (n_inducing - 1) // 2 if covariance == "full" else 0
        self.dense = covariance == "full"
        self.n_numbers = (n_inducing + self.n_below) * n_outputs

    def forward(self, raw: Tensor) -> Tensor:
        n_inducing, n_outputs = self.shape
        raw = rows_last(raw, (n_inducing + self.n_below, n_outputs))
        diagonal = softplus(raw[:n_inducing]) + DEVIATION_FLOOR  # (M, D, B)
        if not self.dense:
            return diagonal
        root = raw.new_zeros(n_inducing, *diagonal.shape)
        points = torch.arange(n_inducing, device=raw.device)
        rows, columns = torch.tril_indices(n_inducing, n_inducing, -1, device=raw.device)
        root = root.index_put((points, points), diagonal)
        return root.index_put((rows, columns), raw[n_inducing:])  # (M, M, D, B)


def rows_last(raw: Tensor, shape: tuple[int, int]) -> Tensor:
    """Outputs (..., M·D, B) of networks as (M, D, ..., B)."""
    return raw.movedim(-2, 0).unflatten(0, shape)


class InferenceNetwork(nn.Module):
    """Computes a row's inducing variables; see the module's docstring."""

    shape: tuple[int, int]  # (M, D)

    @property
    def n_inputs(self) -> int:
        """Q, width of anchors."""
        raise NotImplementedError


class AffineInference(InferenceNetwork):
    """AVDGP's inference network: affine maps to ``Z``, one MLP each for mean and root (Eq. 3.2, 3.3).

    Z_m = W_m a + b_m keeps the geometry of the input space, whatever the depth of the other networks is.
    W_m starts at the identity and b_m ~ N(0, I).
    """

    stackable = True

    nets: Sequence[MLPs]  # a ModuleList

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        n_inducing: int,
        *,
        covariance: str,
        widths: Sequence[int | None],
        generator: torch.Generator,
    ):
        super().__init__()
        self.shape = (n_inducing, n_outputs)
        points = _Affine(n_inputs, n_inducing * n_inputs, device=generator.device, dtype=torch.float32)
        with torch.no_grad():
            points.weight.copy_(torch.eye(n_inputs, device=generator.device).repeat(n_inducing, 1))
            points.bias.normal_(generator=generator)
        self.points = points
        self.root = _Root(n_outputs, n_inducing, covariance)
        numbers = [n_inducing * n_outputs, self.root.n_numbers]
        grouped = [(2, numbers[0])] if numbers[0] == numbers[1] else [(1, number) for number in numbers]
        nets = [MLPs(n_nets, layer_sizes(n_inputs, number, widths), generator) for n_nets, number in grouped]
        self.add_module("nets", nn.ModuleList(nets))
        for mlps in nets:
            mlps.start_equal(0, n_inducing, n_outputs)

    @property
    def n_inputs(self) -> int:
        """Q, width of anchors."""
        return self.points.in_features

    def forward(self, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inducing points, posterior means and roots of posterior covariances."""
        Z = anchor @ self.points.weight.mT + self.points.bias.unsqueeze(-2)
        Z = Z.unflatten(-1, (self.shape[0], -1))  # (B, M, Q)
        mean, root = (raw for nets in self.nets for raw in nets(anchor).unbind(-3))
        return Z, rows_last(mean, self.shape), self.root(root)


class NetworkInference(InferenceNetwork):
    """IDSGP's inference network: one MLP for everything, inducing points included (Eq. 3.1)."""

    stackable = True

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        n_inducing: int,
        *,
        covariance: str,
        widths: Sequence[int | None],
        generator: torch.Generator,
    ):
        super().__init__()
        self.shape = (n_inducing, n_outputs)
        self.root = _Root(n_outputs, n_inducing, covariance)
        self.sizes = [n_inducing * n_inputs, n_inducing * n_outputs, self.root.n_numbers]
        self.net = MLPs(1, layer_sizes(n_inputs, sum(self.sizes), widths), generator)
        with torch.no_grad():
            self.net.biases[-1][0, : self.sizes[0]].normal_(generator=generator)
        for start in (self.sizes[0], self.sizes[0] + self.sizes[1]):
            self.net.start_equal(start, n_inducing, n_outputs)

    @property
    def n_inputs(self) -> int:
        """Q, width of anchors."""
        return self.net.weights[0].shape[-1]

    def forward(self, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inducing points, posterior means and roots of posterior covariances."""
        Z, mean, root = self.net(anchor)[..., 0, :, :].split(self.sizes, dim=-2)
        Z = Z.mT.unflatten(-1, (self.shape[0], -1))  # (B, M, Q)
        return Z, rows_last(mean, self.shape), self.root(root)


INFERENCE_NETWORKS: dict[str, Callable[..., InferenceNetwork]] = {"affine": AffineInference, "mlp": NetworkInference}
