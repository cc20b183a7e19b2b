"""A deep GP: a chain of layers, a rule for the propagation of uncertainty between them, and a likelihood.

It computes marginals of function values, joint covariances of rows and outputs, and whole functions.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from .conditionals import with_variances
from .layers import Layer, LayerDraw, with_parts
from .likelihoods import Likelihood
from .mixtures import Components, Response, covariance_of_rows
from .propagation import Propagation, Route, Share, Source
from .waves import Streams


class Marginals(NamedTuple):
    """For each row a mixture of S Gaussians over the D outputs of a layer; the last layer has P function values."""

    mean: Tensor  # (S, B, D)
    variance: Tensor  # (S, B, D)
    log_weight: Tensor  # (S, 1), or (S, B) where weights differ between rows
    kl: Tensor  # (B,), or () where no inducing variables depend on the row
    log_ratio: Tensor | None = None  # (S, B) or (1, B), log p(h)/q(h) of latent variables of rows in training
    n_replicates: int = 1  # K, number of successive components in one importance sum

    @classmethod
    def along(cls, route: Route, mean: Tensor, variance: Tensor, kl: Tensor) -> "Marginals":
        """Marginals of a layer, whose inputs follow a route. The first layer may have a single Gaussian."""
        mixed = mean.shape[-3] == route.log_weight.shape[-2]
        log_weight = route.log_weight if mixed else route.log_weight.new_zeros(1, 1)
        return cls(mean, variance, log_weight, kl, route.log_ratio, route.n_replicates)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (B, D) of the mixture."""
        weight = self.log_weight.exp()[..., None]
        mean = (weight * self.mean).sum(0)
        return mean, (weight * (self.variance + (self.mean - mean).square())).sum(0)

    def of(self, response: Response | None) -> "Marginals":
        """Marginals of a response to the values; the same if there is none."""
        if response is None:
            return self
        mean, variance = response(self.mean[..., None], self.variance[..., None, None])  # each row by itself
        return self._replace(mean=mean[..., 0], variance=variance[..., 0, 0])

    def rows(self, index: slice) -> "Marginals":
        """Marginals of some of the rows."""
        weight = self.log_weight if self.log_weight.shape[-1] == 1 else self.log_weight[:, index]
        return Marginals(self.mean[:, index], self.variance[:, index], weight, self.kl)

    def of_member(self, number: int) -> "Marginals":
        """Marginals of one model of a stack, from those of all; points, and so weights, may be the same in all."""
        log_weight = self.log_weight if self.log_weight.dim() == 2 else self.log_weight[number]
        return Marginals(self.mean[number], self.variance[number], log_weight, self.kl[number])

    def over_rows(self, row: Tensor, n_rows: int) -> "Marginals":
        """Marginals of ``n_rows`` rows, each an average over its copies; ``row`` (B,) is the row of each copy.

        The number of components stays the same. The mean and variance of a component are those over all copies of a
        row, which have equal weights.
        """
        weight = self.log_weight.exp()[..., None].expand(self.mean.shape[0], len(row), 1)  # (S, B, 1)

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(len(values), n_rows, values.shape[-1]).index_add_(1, row, values)

        total, count = summed(weight), torch.bincount(row, minlength=n_rows)
        mean = summed(weight * self.mean) / total  # (S, n, D)
        variance = summed(weight * (self.variance + (self.mean - mean[:, row]).square())) / total
        return Marginals(mean, variance, (total[..., 0] / count).log(), self.kl)

    def output_covariance(self, within: Tensor | None = None) -> Tensor:
        """Covariances (B, D, D) between outputs of the mixture.

        ``within`` (B, D, D) has those within components, where outputs are independent by default.
        """
        weight = self.log_weight.exp()[..., None]
        if within is None:
            within = torch.diag_embed((weight * self.variance).sum(0))
        centred = (self.mean - (weight * self.mean).sum(0)) * weight.sqrt()
        return within + torch.einsum("sbp,sbq->bpq", centred, centred)


class DeepGP(nn.Module):
    """The model y ~ likelihood(f_L(... f_2(f_1(x)))), where each f is a layer of :mod:`skdgp.gp.layers`.

    Many models of one shape can be computed as one (:mod:`skdgp.inference.stacks`). Parameters, rows and marginals then
    all have a dimension of members in front.

    Parameters
    ----------
    layers : sequence of Layer
    propagation : Propagation
        Determines how uncertainty travels from layer to layer, and the anchor of the next layer.
    likelihood : Likelihood
    """

    stackable = True

    layers: Sequence[Layer]  # a ModuleList
    propagation: Propagation
    likelihood: Likelihood

    def __init__(self, layers: Sequence[Layer], propagation: Propagation, likelihood: Likelihood):
        super().__init__()
        self.add_module("layers", nn.ModuleList(layers))
        self.propagation = propagation
        self.likelihood = likelihood

    def numbers_per_row(self) -> int:
        """Size of the largest tensor that prediction makes, for each row."""
        parts: list[Layer | Likelihood] = [*self.layers, self.likelihood]
        return max(part.numbers_per_row(self.propagation.n_samples) for part in parts)

    def numbers_per_draw(self) -> int:
        """Number of entries of the tensors that one drawn function computes with, for each row."""
        return max(layer.numbers_per_draw() for layer in (self.layers if self.draws_hidden else self.layers[-1:]))

    def products(self, n_rows: int, *, mixture: bool = True) -> int:
        """Multiplications of the largest operation for this many rows, roughly; ``mixture`` as in :meth:`propagate`."""
        n_fewest = 0 if mixture else self.propagation.n_fewest
        return max(layer.products(n_rows, n_fewest or self.propagation.n_samples) for layer in self.layers)

    @property
    def coarse(self) -> bool:
        """Whether predictions in float32 are as good as in float64; see :class:`.Layer`."""
        return all(layer.coarse for layer in self.layers)

    def frozen(self, *, turned: bool = False) -> Self:
        """A copy that is faster in many calls without gradients; see :meth:`.Layer.frozen`."""
        return with_parts(self, layers=nn.ModuleList(layer.frozen(turned=turned) for layer in self.layers))

    def forward(self, X: Tensor, generator: Source | None = None, **options) -> Marginals:
        """Marginals of the last layer's function values, and the penalties of all layers together.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
        generator : torch.Generator or sequence of torch.Generator, default=None
            Source of fresh samples, for training; a stack of models has one for each. Without it the stored points are
            used, which all rows share: the result for a row then depends on that row alone.
        **options
            Options of :meth:`propagate`.

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
            See :meth:`forward`.
        targets : Tensor of shape (B, P), default=None
            Targets of the rows in training, for layers that infer something from them.
        share : Share, default=None
            Position of ``X`` in a minibatch that several processes share. By default ``X`` is a whole minibatch.
        mixture : bool, default=True
            Whether to return the whole mixture. With False there are only as many samples as an unbiased estimate of a
            mean over it needs.
        """
        regressands = None if targets is None else self.likelihood.regressands(targets)
        route = self.propagation(X, generator, share, mixture=mixture, targets=regressands)
        return [layer for layer, _, _ in self._travel(X, route, targets)]

    def _travel(
        self, X: Tensor, route: Route, targets: Tensor | None = None
    ) -> Iterator[tuple[Marginals, Tensor, Tensor]]:
        """Yields for each layer its marginals, and the inputs and anchors of the next layer."""
        weight = route.log_weight.exp()[..., None]
        F, anchor = route.inputs, X  # (1 or S, B, Q)
        for layer, point in zip_longest(self.layers, route.points):
            if point is not None and route.jointly:
                mean, variance, kl, root = layer.jointly(F, anchor, route.n_replicates)
                F = mean + _correlated(root, point)
            else:
                mean, variance, kl = layer(F, anchor, targets)
                F = F if point is None else torch.addcmul(mean, variance.sqrt(), point)  # (S, B, D)
            if point is not None:
                anchor = self.propagation.anchor(F, mean, weight)
            yield Marginals.along(route, mean, variance, kl), F, anchor

    # Functions, and joint covariances of rows and outputs.

    def inducing_points(self) -> list[Tensor]:
        """Inducing points (M, Q) of each layer in which all rows share them."""
        return [points for layer in self.layers for points in layer.inducing_points()]

    @property
    def has_latents(self) -> bool:
        """Whether rows have latent variables."""
        return self.propagation.has_latents

    def draw(self, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], Tensor]:
        """Functions of the model, one for each of S streams of random numbers: from X (B, Q) to values (S, B, P).

        A function depends only on its stream. White noise of hidden layers is not part of it. Latent variables have one
        value for each function. With ``of_rows`` each row has new values in each call, as observed rows have.
        """
        draw = self.draw_layers(streams, of_rows=of_rows)
        return lambda X: draw(X)[-1]

    def draw_layers(self, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], list[Tensor]]:
        """Functions as in :meth:`draw` that return the values (S, B, D) of all layers, from the first to the last."""
        *hidden, last = self._layer_draws(streams)
        components = None
        if not (self.draws_hidden or self.has_latents) and len(self.layers) > 1:
            components = streams.choice(self.propagation.weight)
        inputs = self._inputs(hidden, self.propagation.of_functions(streams, of_rows=of_rows))

        def function(X: Tensor) -> list[Tensor]:
            _, *values = steps = inputs(X)
            F, anchor = steps[-1]
            if components is not None:
                F, anchor = F[components], anchor[components] if anchor.dim() == 3 else anchor
                values = [(value[components], at) for value, at in values]
            return [*(value for value, _ in values), last(F, anchor)]

        return function

    def _layer_draws(self, streams: Streams) -> list[LayerDraw]:
        """Functions of all layers, or only of the last one if hidden layers have no functions of their own."""
        last = self.layers[-1].draw(streams)
        return [*self._hidden_draws(streams), last]

    def _hidden_draws(self, streams: Streams) -> list[LayerDraw]:
        return [layer.draw(streams) for layer in self.layers[:-1]] if self.draws_hidden else []

    def covariance(self, X: Tensor, streams: Streams, response: Response | None = None) -> Tensor:
        """Joint covariance of rows, (P, B, B): the law of total covariance over the mixture.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
        streams : Streams
            S streams. If hidden layers have functions of their own, the mixture has S components. Otherwise it is the
            mixture of the stored points, and covariances within components are averaged over the S components of
            largest weight.
        response : callable, default=None
            Response to function values whose covariance is wanted, instead of that of the values.
        """
        covariance = covariance_of_rows(self._components(X, streams), len(streams), response)
        if not self.has_latents:
            return covariance
        _, variance = self(X).of(response).moments()
        return with_variances(covariance, variance.mT, most=1.0)  # latent variables are a row's own

    def _components(self, X: Tensor, streams: Streams) -> Components:
        """Components of the mixture, with copies of the rows if these have latent variables."""
        draws = self._hidden_draws(streams)
        n_copies, route_of = self.propagation.of_copies(streams, hidden=len(self.layers) > 1)
        F, anchor = self._inputs(draws, route_of)(X.repeat(n_copies, 1))[-1]
        equal = self.draws_hidden or self.has_latents
        weight = X.new_full((len(F),), 1 / len(F)) if equal else self.propagation.weight
        return Components(self.layers[-1], F, anchor, weight, n_copies)

    def output_covariance(self, X: Tensor) -> Tensor:
        """Covariances (B, P, P) between the function values of a row, of the mixture of the stored points."""
        *before, (marginals, _, _) = self._travel(X, route := self.propagation(X))
        F, anchor = before[-1][1:] if before else (route.inputs, X)
        within = self.layers[-1].between_outputs(F, anchor, marginals.log_weight.exp())
        return marginals.output_covariance(within)

    def last_inputs(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (S, B, D) of the last layer at rows X (B, Q), at the stored points, and their weights (S, 1)."""
        *before, (marginals, _, _) = self._travel(X, route := self.propagation(X))
        return before[-1][1] if before else route.inputs, marginals.log_weight.exp()

    def gradient_variance(self, X: Tensor) -> Tensor | None:
        """Variances (B, P, Q) of partial derivatives of functions at the rows of ``X``; None if they are not known."""
        alone = len(self.layers) == 1 and not self.has_latents
        return self.layers[0].gradient_variance(X) if alone else None

    @property
    def draws_hidden(self) -> bool:
        """Whether there are hidden layers, and drawn functions have hidden functions of their own."""
        return self.propagation.sampled and len(self.layers) > 1

    def _inputs(
        self, draws: Sequence[LayerDraw], route_of: Callable[[Tensor], Route]
    ) -> Callable[[Tensor], list[tuple[Tensor, Tensor]]]:
        """A function of rows that returns each layer's inputs (S or 1, B, D) and anchors.

        ``draws`` are the functions of hidden layers, if they have any.
        """
        propagation, n_hidden = self.propagation, len(self.layers) - 1

        def inputs(X: Tensor) -> list[tuple[Tensor, Tensor]]:
            route = route_of(X)
            F, anchor = route.inputs, X
            steps = [(F, anchor)]
            layers = islice(self._travel(X, route), n_hidden)
            if not draws:
                return steps + [(F, anchor) for _, F, anchor in layers]
            for draw in draws:
                F = draw(F, anchor)
                # The mixture's mean is the same anchor as in predictions.
                mean = next(layers)[0].mean if propagation.anchored_at_mean else F
                anchor = propagation.anchor(F, mean, route.log_weight.exp()[..., None])
                steps.append((F, anchor))
            return steps

        return inputs


def _correlated(root: Tensor, point: Tensor) -> Tensor:
    """Points (S, B, D): each K successive standard normal ones get the covariance of a root (S/K, B, D, K, K)."""
    K = root.shape[-1]
    noise = point.unflatten(-3, (-1, K)).movedim(-3, -1)[..., None]  # (S/K, B, D, K, 1)
    return (root @ noise)[..., 0].movedim(-1, -3).flatten(-4, -3)
