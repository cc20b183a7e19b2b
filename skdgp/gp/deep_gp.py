"""A deep GP: a chain of layers, a way to travel between them, and a likelihood at its end."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice, zip_longest
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from .conditionals import with_variances
from .layers import Layer
from .likelihoods import Likelihood
from .propagation import Propagation, Share, Source
from .waves import Streams


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

    Many models of one shape may be one (:mod:`skdgp.inference.stacks`). All shapes then have a dimension of members in
    front, of parameters, rows and marginals alike.

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
        parts: list[Layer | Likelihood] = [*self._layers, self.likelihood]
        return max(part.numbers_per_row(self.propagation.n_samples) for part in parts)

    def numbers_per_draw(self) -> int:
        """Numbers that one function of the model computes with at a time, for each row."""
        return max(layer.numbers_per_draw() for layer in (self._layers if self.draws_hidden else self._layers[-1:]))

    def products(self, n_rows: int, *, mixture: bool = True) -> int:
        """Multiplications of the largest operation for so many rows, roughly; ``mixture`` as of :meth:`propagate`."""
        n_fewest = 0 if mixture else self.propagation.n_fewest
        return max(layer.products(n_rows, n_fewest or self.propagation.n_samples) for layer in self._layers)

    @property
    def coarse(self) -> bool:
        """Whether predictions in float32 are as good; see :class:`.Layer`."""
        return all(layer.coarse for layer in self._layers)

    def frozen(self) -> Self:
        """The model as it is, for many calls without gradients; see :meth:`.Layer.frozen`."""
        model = copy(self)
        model._modules = self._modules | {"layers": nn.ModuleList(layer.frozen() for layer in self._layers)}
        return model

    @property
    def _layers(self) -> Sequence[Layer]:
        """The layers, as what they are."""
        return cast(Sequence[Layer], self.layers)

    def forward(self, X: Tensor, generator: Source | None = None, **options) -> Marginals:
        """Marginals of the last layer's function values, and the penalties of all layers together.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
        generator : torch.Generator or sequence of torch.Generator, default=None
            Source of fresh samples, for training; a stack of models has one for each. Without it the stored points are
            used, which all rows share: the result for a row then depends on that row alone.
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
        generator: Source | None = None,
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
        return [layer for layer, _, _ in self._travel(X, points, log_weight, targets)]

    def _travel(
        self, X: Tensor, points: list[Tensor], log_weight: Tensor, targets: Tensor | None = None
    ) -> Iterator[tuple[Marginals, Tensor, Tensor]]:
        """Layer by layer its marginals, and the inputs and anchors of the next one."""
        weight = log_weight.exp()[..., None]  # (S, B or 1, 1)
        F, anchor = X.unsqueeze(-3), X  # (1, B, Q)
        for layer, point in zip_longest(self.layers, points):
            mean, variance, kl = layer(F, anchor, targets)
            mixed = mean.shape[-3] == log_weight.shape[-2]  # the first layer's inputs are not a mixture
            if point is not None:
                F = torch.addcmul(mean, variance.sqrt(), point)  # (S, B, D)
                anchor = self.propagation.anchor(F, mean, weight)
            yield Marginals(mean, variance, log_weight if mixed else log_weight.new_zeros(1, 1), kl), F, anchor

    # Rows together.

    def draw(self, streams: Streams) -> Callable[[Tensor], Tensor]:
        """Functions of the model, one for each of S streams of random numbers: from X (B, Q) to values (S, B, P).

        Which function it is depends on its stream alone. White noise of hidden layers is no part of it.
        """
        last, hidden = self._layers[-1].draw(streams), self._hidden(streams)
        components = None
        if not self.draws_hidden and len(self.layers) > 1:
            components = streams.choice(self.propagation.weight)

        def function(X: Tensor) -> Tensor:
            F, anchor = hidden(X)
            if components is not None:
                F, anchor = F[components], anchor[components] if anchor.dim() == 3 else anchor
            return last(F, anchor)

        return function

    def covariance(self, X: Tensor, streams: Streams) -> Tensor:
        """Joint covariance of the function values of rows, (P, B, B): the law of total covariance over the mixture.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
        streams : Streams
            Where hidden layers have functions of their own, the mixture is of as many. Else it is that of the stored
            points; covariances within components are then an average over as many components, the heaviest.
        """
        F, anchor = self._hidden(streams)(X)
        weight = X.new_full((len(F),), 1 / len(F)) if self.draws_hidden else self.propagation.weight
        mean, variance, _ = self._layers[-1](F, anchor)
        centred = (mean - (weight[:, None, None] * mean).sum(0)) * weight.sqrt()[:, None, None]  # (S, B, P)
        spread = centred.permute(2, 1, 0) @ centred.permute(2, 0, 1)
        if len(weight) <= len(streams):
            return spread + self._layers[-1].covariance(F, anchor, weight)
        some = weight.topk(len(streams)).indices
        anchor, share = anchor[some] if anchor.dim() == 3 else anchor, weight[some] / weight[some].sum()
        within = self._layers[-1].covariance(F[some], anchor, share)
        return spread + with_variances(within, (weight[:, None, None] * variance).sum(0).mT)

    def gradient_variance(self, X: Tensor) -> Tensor | None:
        """Variances (B, P, Q) of partial derivatives of functions at the rows of ``X``, where they are known."""
        return self._layers[0].gradient_variance(X) if len(self.layers) == 1 else None

    @property
    def draws_hidden(self) -> bool:
        """Whether there are hidden layers, and functions have their own."""
        return self.propagation.sampled and len(self.layers) > 1

    def _hidden(self, streams: Streams) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """What the last layer is given for rows: inputs (S or 1, B, D) and anchors."""
        hidden = self._layers[:-1]
        draws = [layer.draw(streams) for layer in hidden] if self.draws_hidden else []

        def inputs(X: Tensor) -> tuple[Tensor, Tensor]:
            points, log_weight = self.propagation(X)
            F, anchor = X[None], X
            layers = islice(self._travel(X, points, log_weight), len(hidden))
            if not draws:
                for _, F, anchor in layers:  # noqa: B007 that of the last one is wanted
                    pass
                return F, anchor
            for draw in draws:
                F = draw(F, anchor)
                # An anchor at the mixture's mean is the one of predictions.
                mean = next(layers)[0].mean if self.propagation.anchored_at_mean else F
                anchor = self.propagation.anchor(F, mean, log_weight.exp()[..., None])
            return F, anchor

        return inputs
