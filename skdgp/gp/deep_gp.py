"""A deep GP: a chain of layers, a way to travel between them, and a likelihood at its end."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice, zip_longest
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from .conditionals import with_variances
from .layers import Layer, LayerDraw
from .likelihoods import Likelihood
from .propagation import Propagation, Route, Share, Source
from .waves import Streams

#: Values of a row's latent variables over which means of a joint covariance are taken.
COPIES = 8


class Marginals(NamedTuple):
    """Per row a mixture of S Gaussians over the D outputs of a layer; of the last one, P function values."""

    mean: Tensor  # (S, B, D)
    variance: Tensor  # (S, B, D)
    log_weight: Tensor  # (S, 1), or (S, B) where weights differ between rows
    kl: Tensor  # (B,), or () where no inducing variables depend on the row
    log_ratio: Tensor | None = None  # (S, B) or (1, B), log p(h)/q(h) of latent variables of rows in training
    n_replicates: int = 1  # K, components in turn that one importance sum is made of

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (B, D) of the mixture."""
        weight = self.log_weight.exp()[..., None]
        mean = (weight * self.mean).sum(0)
        return mean, (weight * (self.variance + (self.mean - mean).square())).sum(0)

    def rows(self, index: slice) -> "Marginals":
        """Of some of the rows."""
        weight = self.log_weight if self.log_weight.shape[-1] == 1 else self.log_weight[:, index]
        return Marginals(self.mean[:, index], self.variance[:, index], weight, self.kl)

    def over_rows(self, row: Tensor, n_rows: int) -> "Marginals":
        """Of ``n_rows`` rows, each of which several rows stand for, with equal weights; ``row`` (B,) says which.

        Components keep their number: means and variances are those over the rows that stand for one.
        """
        weight = self.log_weight.exp()[..., None].expand(self.mean.shape[0], len(row), 1)  # (S, B, 1)

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(len(values), n_rows, values.shape[-1]).index_add_(1, row, values)

        total, count = summed(weight), torch.bincount(row, minlength=n_rows)
        mean = summed(weight * self.mean) / total  # (S, n, D)
        variance = summed(weight * (self.variance + (self.mean - mean[:, row]).square())) / total
        return Marginals(mean, variance, (total[..., 0] / count).log(), self.kl)

    def output_covariance(self, within: Tensor | None = None) -> Tensor:
        """Covariances (B, D, D) between outputs of the mixture; ``within`` components none by default."""
        weight = self.log_weight.exp()[..., None]
        if within is None:
            within = torch.diag_embed((weight * self.variance).sum(0))
        centred = (self.mean - (weight * self.mean).sum(0)) * weight.sqrt()
        return within + torch.einsum("sbp,sbq->bpq", centred, centred)


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
        known = None if targets is None else self.likelihood.regressands(targets)
        route = self.propagation(X, generator, share, mixture=mixture, targets=known)
        return [layer for layer, _, _ in self._travel(X, route, targets)]

    def _travel(
        self, X: Tensor, route: Route, targets: Tensor | None = None
    ) -> Iterator[tuple[Marginals, Tensor, Tensor]]:
        """Layer by layer its marginals, and the inputs and anchors of the next one."""
        weight, about = route.log_weight.exp()[..., None], (route.log_ratio, route.n_replicates)
        F, anchor = route.inputs, X  # (1 or S, B, Q)
        for layer, point in zip_longest(self._layers, route.points):
            if point is not None and route.jointly:
                mean, variance, kl, root = layer.jointly(F, anchor, route.n_replicates)
                F = mean + _correlated(root, point)
            else:
                mean, variance, kl = layer(F, anchor, targets)
                F = F if point is None else torch.addcmul(mean, variance.sqrt(), point)  # (S, B, D)
            if point is not None:
                anchor = self.propagation.anchor(F, mean, weight)
            yield Marginals(mean, variance, route.log_weight_of(mean), kl, *about), F, anchor

    # Rows together.

    def inducing_points(self) -> list[Tensor]:
        """Inducing points of layers that have some for all rows, (M, Q)."""
        return [cast(Tensor, layer.Z) for layer in self._layers if hasattr(layer, "Z")]

    @property
    def has_latents(self) -> bool:
        """Whether rows have latent variables."""
        return self.propagation.has_latents

    def draw(self, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], Tensor]:
        """Functions of the model, one for each of S streams of random numbers: from X (B, Q) to values (S, B, P).

        Which function it is depends on its stream alone. White noise of hidden layers is no part of it. Latent
        variables have one value for each function; or for each row anew in every call, if its values are to be
        ``of_rows`` as these are observed.
        """
        draw = self.draw_layers(streams, of_rows=of_rows)
        return lambda X: draw(X)[-1]

    def draw_layers(self, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], list[Tensor]]:
        """The same, with the values of all layers: (S, B, D) from the first to the last."""
        *hidden, last = self._layer_draws(streams)
        components = None
        if not (self.draws_hidden or self.has_latents) and len(self.layers) > 1:
            components = streams.choice(self.propagation.weight)
        inputs = self._inputs(hidden, streams, of_rows=of_rows)

        def function(X: Tensor) -> list[Tensor]:
            _, *values = steps = inputs(X)
            F, anchor = steps[-1]
            if components is not None:
                F, anchor = F[components], anchor[components] if anchor.dim() == 3 else anchor
                values = [(value[components], at) for value, at in values]
            return [*(value for value, _ in values), last(F, anchor)]

        return function

    def _layer_draws(self, streams: Streams) -> list[LayerDraw]:
        """Functions of all layers, or of the last one alone, where hidden layers have none of their own."""
        last = self._layers[-1].draw(streams)
        return [*self._hidden_draws(streams), last]

    def _hidden_draws(self, streams: Streams) -> list[LayerDraw]:
        return [layer.draw(streams) for layer in self._layers[:-1]] if self.draws_hidden else []

    def covariance(self, X: Tensor, streams: Streams) -> Tensor:
        """Joint covariance of the function values of rows, (P, B, B): the law of total covariance over the mixture.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
        streams : Streams
            Where hidden layers have functions of their own, the mixture is of as many. Else it is that of the stored
            points; covariances within components are then an average over as many components, the heaviest. With latent
            variables, which every row has of its own, all is an average over as many.
        """
        if self.has_latents:
            return self._covariance_over_latents(X, streams)
        F, anchor = self._inputs(self._hidden_draws(streams), streams)(X)[-1]
        weight = X.new_full((len(F),), 1 / len(F)) if self.draws_hidden else self.propagation.weight
        last = self._layers[-1]
        mean, variance, _ = last(F, anchor)
        spread = _covariance_of_means(mean, weight)
        if len(weight) <= len(streams):
            return spread + last.covariance(F, anchor, weight)
        some = weight.topk(len(streams)).indices
        anchor, share = anchor[some] if anchor.dim() == 3 else anchor, weight[some] / weight[some].sum()
        within = last.covariance(F[some], anchor, share)
        return spread + with_variances(within, (weight[:, None, None] * variance).sum(0).mT)

    def _covariance_over_latents(self, X: Tensor, streams: Streams) -> Tensor:
        """The same where every row has latent variables of its own: between rows only the function is shared."""
        inputs = self._inputs(self._hidden_draws(streams), streams, of_rows=True)
        F, anchor = inputs(X.repeat(COPIES, 1))[-1]  # (S, COPIES·B, D): one function for all copies of a row
        weight = X.new_full((len(F),), 1 / len(F))
        found = self._layers[-1].covariance(F[:, : len(X)], anchor[..., : len(X), :], weight)
        if len(self.layers) > 1:  # what hidden functions move, by means over copies
            mean, _, _ = self._layers[-1](F, anchor)
            found = found + _covariance_of_means(mean.unflatten(1, (COPIES, -1)).mean(1), weight)
        own, (_, variance) = found.diagonal(dim1=-2, dim2=-1), self(X).moments()
        return found + torch.diag_embed((variance.mT - own).clamp(min=0.0))  # latent variables are a row's own

    def output_covariance(self, X: Tensor) -> Tensor:
        """Covariances (B, P, P) between the function values of a row, of the mixture of the stored points."""
        route = self.propagation(X)
        *before, (marginals, _, _) = self._travel(X, route)
        F, anchor = before[-1][1:] if before else (route.inputs, X)
        within = self._layers[-1].between_outputs(F, anchor, marginals.log_weight.exp())
        return marginals.output_covariance(within)

    def gradient_variance(self, X: Tensor) -> Tensor | None:
        """Variances (B, P, Q) of partial derivatives of functions at the rows of ``X``, where they are known."""
        known = len(self.layers) == 1 and not self.has_latents
        return self._layers[0].gradient_variance(X) if known else None

    @property
    def draws_hidden(self) -> bool:
        """Whether there are hidden layers, and functions have their own."""
        return self.propagation.sampled and len(self.layers) > 1

    def _inputs(
        self, draws: Sequence[LayerDraw], streams: Streams, *, of_rows: bool = False
    ) -> Callable[[Tensor], list[tuple[Tensor, Tensor]]]:
        """What every layer is given for rows, inputs (S or 1, B, D) and anchors; ``draws`` are of hidden layers."""
        propagation, n_hidden = self.propagation, len(self.layers) - 1
        route_of = propagation.of_functions(streams, of_rows=of_rows)

        def inputs(X: Tensor) -> list[tuple[Tensor, Tensor]]:
            route = route_of(X)
            F, anchor = route.inputs, X
            steps = [(F, anchor)]
            layers = islice(self._travel(X, route), n_hidden)
            if not draws:
                return steps + [(F, anchor) for _, F, anchor in layers]
            for draw in draws:
                F = draw(F, anchor)
                # An anchor at the mixture's mean is the one of predictions.
                mean = next(layers)[0].mean if propagation.anchored_at_mean else F
                anchor = propagation.anchor(F, mean, route.log_weight.exp()[..., None])
                steps.append((F, anchor))
            return steps

        return inputs


def _correlated(root: Tensor, point: Tensor) -> Tensor:
    """Standard normal points (S, B, D), of which K in turn get the covariance with the root (S/K, B, D, K, K)."""
    K = root.shape[-1]
    noise = point.unflatten(-3, (-1, K)).movedim(-3, -1)[..., None]  # (S/K, B, D, K, 1)
    return (root @ noise)[..., 0].movedim(-1, -3).flatten(-4, -3)


def _covariance_of_means(mean: Tensor, weight: Tensor) -> Tensor:
    """Covariances (P, B, B) between rows of means (S, B, P) of the components of a mixture."""
    centred = (mean - (weight[:, None, None] * mean).sum(0)) * weight.sqrt()[:, None, None]
    return centred.permute(2, 1, 0) @ centred.permute(2, 0, 1)
