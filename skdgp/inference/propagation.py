"""How uncertainty travels from layer to layer, and what the next layer is anchored at.

A propagation, called with a number of rows B, returns the noise that turns each hidden layer's
marginals into inputs of the next, a list of tensors (S, B, D) or (S, 1, D), and the logarithms of the
S mixture weights. Its ``anchor`` is the amortisation rule.

=========== =================== ============================ ==============================
rule        propagation         anchor of layer l + 1        source
=========== =================== ============================ ==============================
AR1         :class:`MonteCarlo` the sample itself            Eq. 4.8
AR2         :class:`MonteCarlo` (1/S) Σ_s m_s                Eq. 4.9, 4.10
AR2P        :class:`Quadrature` Σ_s ω_s m_s                  Eq. 4.11, 4.12
monte_carlo :class:`MonteCarlo` none                         DS-DGP Eq. 15
quadrature  :class:`Quadrature` none                         deep sigma point processes
=========== =================== ============================ ==============================

Equations are those of AVDGP unless another paper is named. Layers with global inducing variables have
no use for an anchor; they are given the sample, which costs nothing.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .processes import Share

Anchor = Callable[[Tensor, Tensor, Tensor], Tensor]


def anchor_at_sample(F: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """P₁: every sample (S, B, D) anchors inducing variables of its own."""
    return F


def anchor_at_mean(F: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
    """P₂: the mixture's mean (B, D) anchors inducing variables that all samples share."""
    return (weight * mean).sum(0) if len(mean) > 1 else mean[0]


class Propagation(nn.Module):
    """Noise and weights of the mixture, and the rule that anchors the next layer."""

    n_samples: int
    anchor: Anchor


class MonteCarlo(Propagation):
    """Random samples: fresh for every row in training, stored and shared by all rows in prediction.

    Parameters
    ----------
    hidden_dims : tuple of int
        Widths D of the hidden layers.
    n_samples : int
        S in prediction.
    anchor : callable
        The amortisation rule.
    generator : torch.Generator
        Draws the stored noise.
    n_train_samples : int, default=None
        S in training, ``n_samples`` by default.
    """

    origin: Tensor

    def __init__(
        self,
        hidden_dims: tuple[int, ...],
        n_samples: int,
        anchor: Anchor,
        generator: torch.Generator,
        n_train_samples: int | None = None,
    ):
        super().__init__()
        self.hidden_dims = tuple(hidden_dims)
        self.n_samples = n_samples if hidden_dims else 1
        self.n_train_samples = (n_train_samples or n_samples) if hidden_dims else 1
        self.anchor = anchor
        self.noise = nn.ParameterList(
            nn.Parameter(torch.randn(self.n_samples, 1, width, generator=generator), requires_grad=False)
            for width in hidden_dims
        )
        self.register_buffer("origin", torch.zeros(()))  # knows device and dtype

    def forward(
        self, n_rows: int, generator: torch.Generator | None = None, share: Share | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Fresh noise with a generator, the stored noise without; equal weights.

        A share of a minibatch gets its part of the noise that the whole would have.
        """
        if generator is None:
            return list(self.noise), self._log_weight(self.n_samples)
        n_samples = self.n_train_samples
        shapes = [(n_samples, n_rows if share is None else share.total, width) for width in self.hidden_dims]
        noise = [self.origin.new_empty(shape).normal_(generator=generator) for shape in shapes]
        if share is not None:
            noise = [each[:, share.rows] for each in noise]
        return noise, self._log_weight(n_samples)

    def _log_weight(self, n_samples: int) -> Tensor:
        return self.origin.new_full((n_samples,), -math.log(n_samples))


class Quadrature(Propagation):
    """Learnt points and weights instead of samples (deep sigma point process): deterministic.

    Points start as standard normal draws, weights equal: a Monte Carlo estimate that is then trained.
    Parameters as of :class:`MonteCarlo`.
    """

    def __init__(self, hidden_dims: tuple[int, ...], n_samples: int, anchor: Anchor, generator: torch.Generator):
        super().__init__()
        self.anchor = anchor
        self.n_samples = n_samples if hidden_dims else 1
        self.noise = nn.ParameterList(
            nn.Parameter(torch.randn(self.n_samples, 1, width, generator=generator)) for width in hidden_dims
        )
        self.logits = nn.Parameter(torch.zeros(self.n_samples))

    def forward(
        self, n_rows: int, generator: torch.Generator | None = None, share: Share | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """The learnt points and weights, whatever the generator."""
        return list(self.noise), self.logits.log_softmax(0)


def make_propagation(
    rule: str, hidden_dims: tuple[int, ...], n_samples: int, generator: torch.Generator
) -> Propagation:
    """Propagation called ``rule``, as in the first column of the module's table but in lower case."""
    if rule in ("ar1", "monte_carlo"):  # one sample suffices for an unbiased gradient (AVDGP, App. B)
        return MonteCarlo(hidden_dims, n_samples, anchor_at_sample, generator, n_train_samples=1)
    if rule == "ar2":
        return MonteCarlo(hidden_dims, n_samples, anchor_at_mean, generator)
    anchor = anchor_at_mean if rule == "ar2p" else anchor_at_sample
    return Quadrature(hidden_dims, n_samples, anchor, generator)
