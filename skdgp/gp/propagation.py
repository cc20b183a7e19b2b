"""How uncertainty travels from layer to layer, and how the anchor of the next layer is computed.

Each layer has S inputs for a row, which form a mixture. A propagation returns a :class:`Route` for rows: the inputs of
the first layer, points, and the weights of the mixture. A point turns the marginals N(mean, variance) of a hidden layer
into the input mean + √variance·point of the next layer. The function ``anchor`` of a propagation is the amortisation
rule. It gives the anchor, from which a layer computes inducing variables of rows. Any propagation can be combined with
latent variables of rows; see :mod:`skdgp.gp.latents`.

=========== =================== ============================ ==============================
rule        propagation         anchor of layer l + 1        source
=========== =================== ============================ ==============================
AR1         :class:`MonteCarlo` the sample itself            Eq. 4.8
AR2         :class:`MonteCarlo` (1/S) Σ_s m_s                Eq. 4.9, 4.10
AR2P        :class:`Quadrature` Σ_s ω_s m_s                  Eq. 4.11, 4.12
monte_carlo :class:`MonteCarlo` none                         DS-DGP Eq. 15
quadrature  :class:`Quadrature` none                         deep sigma point processes
=========== =================== ============================ ==============================

Equations are those of AVDGP unless another paper is named. Layers with global inducing variables do
not use the anchor. They get the sample, which costs nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .waves import Streams

#: From samples and means (S, B, D) of a layer and weights (S, 1 or B, 1) to the anchor (S, B, D) or (B, D) of the next.
Anchor = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Source of random numbers: a generator, or one for each member of a stack of models.
Source = torch.Generator | Sequence[torch.Generator]


class Share(NamedTuple):
    """Consecutive rows of a minibatch of ``total`` rows, which one of several processes has."""

    start: int
    stop: int
    total: int

    @property
    def rows(self) -> slice:
        """The rows as a slice."""
        return slice(self.start, self.stop)


class Route(NamedTuple):
    """How rows travel through the layers, as a mixture of S inputs of every layer."""

    inputs: Tensor  # of the first layer: (1, B, Q), or with latent variables (S, B, Q + H)
    points: list[Tensor]  # (S, B, D) or (S, 1, D) for each hidden layer
    log_weight: Tensor  # (S, 1), or (S, B) where they differ between rows: logarithms of the mixture's weights
    log_ratio: Tensor | None = None  # (S, B) or (1, B), log p(h)/q(h) of latent variables that were drawn from q
    n_replicates: int = 1  # K: each K successive inputs belong to the same function, and to one importance sum
    jointly: bool = False  # whether points of replicates have the correlations of the hidden functions' values

    def repeated(self, times: int) -> "Route":
        """The route with each component ``times`` times in succession, with equal shares of its weight."""
        if times == 1:
            return self
        points = [point.repeat_interleave(times, dim=-3) for point in self.points]
        log_weight = self.log_weight.repeat_interleave(times, dim=-2) - math.log(times)
        return self._replace(points=points, log_weight=log_weight)


def anchor_at_sample(F: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """P₁: each sample (S, B, D) is an anchor, and has inducing variables of its own."""
    return F


def anchor_at_mean(F: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """P₂: the mixture's mean (B, D) is the anchor, and all samples share inducing variables."""
    return (weight * mean).sum(-3) if mean.shape[-3] > 1 else mean[..., 0, :, :]


def _normal(n_samples: int, width: int, generator: torch.Generator) -> Tensor:
    """Standard normal points (S, 1, D)."""
    return torch.randn(n_samples, 1, width, generator=generator, device=generator.device, dtype=torch.float32)


class Propagation(nn.Module):
    """Points and weights of the mixture, and the rule for the anchor of the next layer; see the module's docstring."""

    n_samples: int  # S of the whole mixture
    n_fewest: int = 0  # samples that an unbiased estimate of a mean over it needs; 0 is all of them
    anchor: Anchor

    #: Whether points are random samples. Drawn functions then have hidden functions of their own. If points are learnt
    #: instead, the model was trained as their mixture, and a drawn function follows one of them through hidden layers.
    sampled: bool = True

    #: Whether rows have latent variables.
    has_latents: bool = False

    @property
    def weight(self) -> Tensor:
        """Weights (S,) of the stored points."""
        raise NotImplementedError

    @property
    def anchored_at_mean(self) -> bool:
        """Whether all samples of a row share the anchor."""
        return self.anchor is anchor_at_mean

    def stored(self, X: Tensor) -> Route:
        """The route of rows (B, Q) in predictions, by points that all rows share."""
        raise NotImplementedError

    def fresh(
        self, X: Tensor, generator: Source, share: Share | None, targets: Tensor | None, *, mixture: bool, K: int = 1
    ) -> Route:
        """The route in training, with arguments as in :meth:`forward`: that of stored points, unless samples are drawn.

        Each K successive inputs belong to the same function.
        """
        return self.stored(X).repeated(K)

    def forward(
        self,
        X: Tensor,
        generator: Source | None = None,
        share: Share | None = None,
        *,
        mixture: bool = True,
        targets: Tensor | None = None,
    ) -> Route:
        """The route of some rows.

        Parameters
        ----------
        X : Tensor of shape (B, Q)
            The rows.
        generator : torch.Generator or sequence of torch.Generator, default=None
            Source of fresh samples, or one for each member of a stack. Without it the points are those of prediction,
            which all rows share.
        share : Share, default=None
            Position of ``X`` in a minibatch. Its rows get the samples that they would have in the whole minibatch.
        mixture : bool, default=True
            Whether to return the whole mixture. With False there are only as many samples as an unbiased estimate of a
            mean over it needs.
        targets : Tensor of shape (B, P), default=None
            Targets of the rows in training, as :meth:`.Likelihood.regressands` returns them.
        """
        return self.stored(X) if generator is None else self.fresh(X, generator, share, targets, mixture=mixture)

    def of_functions(self, streams: Streams, *, of_rows: bool) -> Callable[[Tensor], Route]:
        """A callable that returns routes of rows for drawn functions, one for each stream; see :meth:`.DeepGP.draw`."""
        return self

    def of_copies(self, streams: Streams, *, hidden: bool) -> tuple[int, Callable[[Tensor], Route]]:
        """The number R of values that latent variables take in joint covariances; 1 if there are none.

        The callable returns the route of R copies of rows, (R·B, Q): first all rows with the first value, then all with
        the second, and so on. All rows have the same values, whatever the other rows are. ``hidden`` says whether there
        are hidden layers, of which each stream has functions of its own.
        """
        return 1, self


class MonteCarlo(Propagation):
    """Random samples: fresh for every row in training, stored and shared by all rows in prediction.

    Stored points come in pairs of opposite sign. So their mean is zero, like that of the distribution, and a few of
    them predict as well as many independent ones.

    Parameters
    ----------
    hidden_dims : tuple of int
        Widths D of the hidden layers.
    n_samples : int
        S.
    anchor : callable
        The amortisation rule. An anchor at the mean always needs all samples.
    generator : torch.Generator
        Source of the stored points.
    """

    stackable = True

    origin: Tensor

    def __init__(self, hidden_dims: tuple[int, ...], n_samples: int, anchor: Anchor, generator: torch.Generator):
        super().__init__()
        self.hidden_dims = tuple(hidden_dims)
        self.n_samples = n_samples if hidden_dims else 1
        self.n_fewest = 1 if anchor is anchor_at_sample else self.n_samples
        self.anchor = anchor
        self.points = nn.ParameterList(
            nn.Parameter(_pairs(self.n_samples, width, generator), requires_grad=False) for width in hidden_dims
        )
        self.register_buffer("origin", torch.zeros((), device="cpu", dtype=torch.float32))  # knows device and dtype

    def stored(self, X: Tensor) -> Route:
        """The stored points, with equal weights."""
        return Route(X.unsqueeze(-3), list(self.points), self._log_weight(self.n_samples))

    def fresh(
        self, X: Tensor, generator: Source, share: Share | None, targets: Tensor | None, *, mixture: bool, K: int = 1
    ) -> Route:
        """Fresh samples for each row, with equal weights."""
        n_samples = K * (self.n_samples if mixture else self.n_fewest)
        points = [fresh_normal(X, generator, share, n_samples, width) for width in self.hidden_dims]
        return Route(X.unsqueeze(-3), points, self._log_weight(n_samples), jointly=K > 1)

    @property
    def weight(self) -> Tensor:
        """Equal weights (S,)."""
        return self._log_weight(self.n_samples)[:, 0].exp()

    def _log_weight(self, n_samples: int) -> Tensor:
        return self.origin.new_full((n_samples, 1), -math.log(n_samples))


def fresh_normal(X: Tensor, generator: Source, share: Share | None, n_samples: int, width: int) -> Tensor:
    """Normal numbers (n_samples, B, width) for rows; with ``share`` those that they have in the whole minibatch."""
    shape = (n_samples, X.shape[-2] if share is None else share.total, width)
    sources = [generator] if isinstance(generator, torch.Generator) else generator
    drawn = [X.new_empty(shape).normal_(generator=source) for source in sources]
    numbers = drawn[0] if isinstance(generator, torch.Generator) else torch.stack(drawn)
    return numbers if share is None else numbers[..., share.rows, :]


def _pairs(n_samples: int, width: int, generator: torch.Generator) -> Tensor:
    """Points (S, 1, D): normal numbers, and the same with the opposite sign. If S is odd, one has no partner."""
    points = _normal(n_samples - n_samples // 2, width, generator)
    return torch.cat([points, -points[: n_samples // 2]])


class Quadrature(Propagation):
    """Learnt points and weights instead of samples (deep sigma point process): deterministic.

    Points start as standard normal draws with equal weights, as in a Monte Carlo estimate, and are then trained.
    Parameters are those of :class:`MonteCarlo`.
    """

    stackable = True

    sampled = False

    def __init__(self, hidden_dims: tuple[int, ...], n_samples: int, anchor: Anchor, generator: torch.Generator):
        super().__init__()
        self.anchor = anchor
        self.n_samples = n_samples if hidden_dims else 1
        self.points = nn.ParameterList(nn.Parameter(_normal(self.n_samples, width, generator)) for width in hidden_dims)
        self.logits = nn.Parameter(torch.zeros(self.n_samples, device="cpu", dtype=torch.float32))

    def stored(self, X: Tensor) -> Route:
        """The learnt points and weights, in training too."""
        return Route(X.unsqueeze(-3), list(self.points), self.logits.log_softmax(-1)[..., None])

    @property
    def weight(self) -> Tensor:
        """The learnt weights (S,)."""
        return self.logits.softmax(0)


def make_propagation(
    rule: str, hidden_dims: tuple[int, ...], n_samples: int, generator: torch.Generator
) -> Propagation:
    """Propagation called ``rule``, as in the first column of the module's table but in lower case."""
    kind = MonteCarlo if rule in ("ar1", "ar2", "monte_carlo") else Quadrature
    anchor = anchor_at_mean if rule in ("ar2", "ar2p") else anchor_at_sample
    return kind(hidden_dims, n_samples, anchor, generator)
