"""A deep GP: a chain of layers, a way to travel between them, and a likelihood at its end."""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from .layers import Layer
from .likelihoods import Likelihood
from .propagation import Propagation, Share


class Marginals(NamedTuple):
    """Per row a mixture of S Gaussians over the D outputs of a layer; of the last one, P function values."""

    mean: Tensor  # (S, B, D)
    variance: Tensor  # (S, B, D)
    log_weight: Tensor  # (S, 1), or (S, B) where weights differ between rows
    kl: Tensor  # (B,), or () where no inducing variables depend on the row

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (B, D) of the mixture."""
        weight = self.log_weight.exp()[..., None]
        mean = (weight * self.mean).sum(0)
        return mean, (weight * (self.variance + (self.mean - mean).square())).sum(0)


class DeepGP(nn.Module):
    """y ~ likelihood(f_L(... f_2(f_1(x)))), every f a layer of :mod:`skdgp.gp.layers`.

    Parameters
    ----------
    layers : sequence of Layer
    propagation : Propagation
        How uncertainty goes from layer to layer, and the rule that chooses the anchor of the next one.
    likelihood : Likelihood
    """

    propagation: Propagation
    likelihood: Likelihood

    def __init__(self, layers: Sequence[Layer], propagation: Propagation, likelihood: Likelihood):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.propagation = propagation
        self.likelihood = likelihood

    def numbers_per_row(self) -> int:
        """Size of the largest tensor that prediction makes, for each row."""
        parts: list[Layer | Likelihood] = [*cast(Sequence[Layer], self.layers), self.likelihood]
        return max(part.numbers_per_row(self.propagation.n_samples) for part in parts)

    def frozen(self) -> Self:
        """The model as it is, for many calls without gradients; see :meth:`.Layer.frozen`."""
        model, layers = copy(self), cast(Sequence[Layer], self.layers)
        model._modules = self._modules | {"layers": nn.ModuleList(layer.frozen() for layer in layers)}
        return model

    def forward(self, X: Tensor, generator: torch.Generator | None = None, **options) -> Marginals:
        """Marginals of the last layer's function values, and the penalties of all layers together.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
        generator : torch.Generator, default=None
            Source of fresh samples, for training. Without it the stored points are used, which all rows
            share: the result for a row then depends on that row alone.
        **options
            Of :meth:`propagate`.

        Returns
        -------
        Marginals
        """
        layers = self.propagate(X, generator, **options)
        return layers[-1]._replace(kl=sum((layer.kl for layer in layers), X.new_zeros(())))

    def propagate(
        self,
        X: Tensor,
        generator: torch.Generator | None = None,
        *,
        targets: Tensor | None = None,
        share: Share | None = None,
        mixture: bool = True,
    ) -> list[Marginals]:
        """Marginals and penalty of every layer; S is 1 in the first.

        Parameters
        ----------
        X, generator
            As of :meth:`forward`.
        targets : Tensor of shape (B, P), default=None
            Targets of the rows in training, for layers that infer something from them.
        share : Share, default=None
            Which rows of a minibatch ``X`` are, where processes share it; all by default.
        mixture : bool, default=True
            Whether the whole mixture is wanted, or the fewest samples that estimate a mean over it without bias.
        """
        points, log_weight = self.propagation(X, generator, share, mixture=mixture)
        weight = log_weight.exp()[..., None]  # (S, B or 1, 1)
        F, anchor = X[None], X  # (1, B, Q)
        layers = []
        for depth, layer in enumerate(self.layers):
            mean, variance, kl = layer(F, anchor, targets)
            mixed = len(mean) == len(log_weight)  # the first layer's inputs are not a mixture
            layers.append(Marginals(mean, variance, log_weight if mixed else log_weight.new_zeros(1, 1), kl))
            if depth < len(points):
                F = torch.addcmul(mean, variance.sqrt(), points[depth])  # (S, B, D)
                anchor = self.propagation.anchor(F, mean, weight)
        return layers
