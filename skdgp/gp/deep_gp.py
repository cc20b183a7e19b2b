"""A deep GP: a chain of layers, a way to travel between them, and a likelihood at its end."""

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from .layers import Layer
from .likelihoods import Likelihood


class Marginals(NamedTuple):
    """Per row a mixture of S Gaussians over the P function values of the last layer."""

    mean: Tensor  # (S, B, P)
    variance: Tensor  # (S, B, P)
    log_weight: Tensor  # (S,)
    kl: Tensor  # (B,), summed over layers; () where no layer's inducing variables depend on the row


class DeepGP(nn.Module):
    """y ~ likelihood(f_L(... f_2(f_1(x)))), every f a layer of :mod:`skdgp.gp.layers`.

    Parameters
    ----------
    layers : sequence of Layer
    propagation : Propagation
        Standard normal numbers (or learnt points) that carry uncertainty from layer to layer, the
        weights of the mixture they make, and the rule that chooses the anchor of the next layer; see
        :mod:`skdgp.inference.propagation`.
    likelihood : Likelihood
    """

    layers: Any  # a ModuleList of Layer
    propagation: Any  # what skdgp.inference.propagation offers; this floor does not look upwards
    likelihood: Likelihood

    def __init__(self, layers: Sequence[Layer], propagation: nn.Module, likelihood: Likelihood):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.propagation = propagation
        self.likelihood = likelihood

    def numbers_per_row(self) -> int:
        """Size of the largest tensor that prediction makes, for each row."""
        n_samples = self.propagation.n_samples
        return max(part.numbers_per_row(n_samples) for part in (*self.layers, self.likelihood))

    def frozen(self) -> Self:
        """The model as it is, for many calls without gradients; see :meth:`.Layer.frozen`."""
        model = copy(self)
        model._modules = self._modules | {"layers": nn.ModuleList(layer.frozen() for layer in self.layers)}
        return model

    def forward(self, X: Tensor, generator: torch.Generator | None = None, share: Any = None) -> Marginals:
        """Marginals of the last layer's function values.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
        generator : torch.Generator, default=None
            Source of fresh noise, for training. Without it the stored noise is used, which all rows
            share: the result for a row then depends on that row alone.
        share : Share, default=None
            Which rows of a minibatch ``X`` are, where processes share it; all by default.

        Returns
        -------
        Marginals
        """
        layers, log_weight = self.propagate(X, generator, share)
        mean, variance, _ = layers[-1]
        return Marginals(mean, variance, log_weight, sum((kl for _, _, kl in layers), X.new_zeros(())))

    def propagate(
        self, X: Tensor, generator: torch.Generator | None = None, share: Any = None
    ) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]:
        """Marginals (S, B, D) and penalty of every layer, (1, B, D) of the first, and the S log weights.

        Parameters as of :meth:`forward`.
        """
        noise, log_weight = self.propagation(len(X), generator, share)
        weight = log_weight.exp()[:, None, None]
        F, anchor = X[None], X  # (1, B, Q)
        layers = []
        for depth, layer in enumerate(self.layers):
            mean, variance, kl = layer(F, anchor)
            layers.append((mean, variance, kl))
            if depth < len(noise):
                F = torch.addcmul(mean, variance.sqrt(), noise[depth])  # (S, B, D)
                anchor = self.propagation.anchor(F, mean, weight)
        return layers, log_weight
