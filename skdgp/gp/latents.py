"""Latent variables of rows: what decides a target and is not in the table.

Every row has h_n ~ N(0, I_H), which joins x_n at the first layer, so that targets at one x may have several values
(tutorial on sparse GPs, Sec. 3.3 and 4.2; Salimbeni, Dutordoir, Hensman and Deisenroth, ICML 2019). In training
q(h_n | x_n, y_n) = N(m, diag s²) comes from a small network, the *encoder*. The bound has per row, with K replicates
h_k ~ q of a row's latent variables (tutorial Eq. 68, 79 where K = 1, and 76, 81),

    K = 1:   E_q(h) E log p(y | f) − KL(q(h) ‖ p(h))
    K > 1:   E log (1/K) Σ_k exp(E log p(y | f_k)) p(h_k)/q(h_k)

where f_k is the same function for all replicates of a row. In prediction h comes from its prior: a mixture over its
values, which may have several modes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from .networks import MLPs
from .propagation import MonteCarlo, Propagation, Route, Share, Source, fresh_normal
from .waves import Streams

#: Values of the latent variables, at least, whose mixture a prediction is.
N_VALUES = 64

#: Units of the encoder's two hidden layers.
ENCODER_WIDTH = 32

#: Deviation of q that training starts from. At 1, the prior's, rows would have nothing to say about their latent
#: variables at first, and the function would learn to do without them.
INITIAL_DEVIATION = 0.1


class Posterior(NamedTuple):
    """q(h | x, y) of rows."""

    mean: Tensor  # (B, H)
    log_deviation: Tensor  # (B, H)

    def kl(self) -> Tensor:
        """KL(q ‖ N(0, I)), (B,)."""
        square = self.mean.square() + (2.0 * self.log_deviation).exp()
        return 0.5 * (square - 1.0).sum(-1) - self.log_deviation.sum(-1)

    def draw(self, noise: Tensor) -> Tensor:
        """h (S, B, H) of standard normal numbers."""
        return self.mean.unsqueeze(-3) + self.log_deviation.exp().unsqueeze(-3) * noise

    def log_ratio(self, noise: Tensor, h: Tensor) -> Tensor:
        """log p(h)/q(h), (S, B), of what :meth:`draw` made of the noise."""
        return 0.5 * (noise.square() - h.square()).sum(-1) + self.log_deviation.sum(-1).unsqueeze(-2)


class Latents(Propagation):
    """A propagation through the layers, and before it latent variables of rows; see the module's docstring.

    Parameters
    ----------
    inner : Propagation
        How uncertainty travels between layers.
    n_inputs : int
        Q.
    n_targets : int
        Numbers that the encoder is given of a row's targets.
    n_dims : int
        H.
    n_importance : int
        K.
    generator : torch.Generator
        Draws what is random in initial values.
    """

    has_latents = True

    def __init__(
        self,
        inner: Propagation,
        n_inputs: int,
        n_targets: int,
        n_dims: int,
        n_importance: int,
        generator: torch.Generator,
    ):
        super().__init__()
        self.inner, self.n_dims, self.n_importance = inner, n_dims, n_importance
        self.anchor, self.sampled = inner.anchor, inner.sampled
        self.n_samples = inner.n_samples * -(-N_VALUES // inner.n_samples)
        self.n_fewest = (inner.n_fewest or inner.n_samples) * n_importance
        sizes = (n_inputs + n_targets, ENCODER_WIDTH, ENCODER_WIDTH, 2 * n_dims)
        self.encoder = MLPs(1, sizes, generator)
        with torch.no_grad():
            self.encoder.biases[-1][:, n_dims:].add_(math.log(INITIAL_DEVIATION))
        self.points = nn.Parameter(_even_normal(self.n_samples, n_dims, generator), requires_grad=False)  # (S, 1, H)

    def posterior(self, X: Tensor, targets: Tensor) -> Posterior:
        """q(h | x, y) of rows (B, Q) with targets (B, P)."""
        raw = self.encoder(torch.cat([X, targets], dim=-1))[..., 0, :, :].mT  # (B, 2H)
        return Posterior(*raw.split(self.n_dims, dim=-1))

    def forward(
        self,
        X: Tensor,
        generator: Source | None = None,
        share: Share | None = None,
        *,
        mixture: bool = True,
        targets: Tensor | None = None,
    ) -> Route:
        """With targets, latent variables from their posterior; without, from the prior, the stored ones or fresh."""
        inner, K = self.inner, self.n_importance
        if generator is None:
            route = self._repeated(inner(X), self.n_samples // inner.n_samples)
            return route._replace(inputs=joined(X, self.points))
        if isinstance(inner, MonteCarlo):
            n_samples = K * (inner.n_samples if mixture else inner.n_fewest)
            route = inner.fresh(X, generator, share, n_samples)._replace(jointly=K > 1)
        else:  # a function follows one of the learnt points
            n_samples, route = K * inner.n_samples, self._repeated(inner(X), K)
        noise = fresh_normal(X, generator, share, n_samples, self.n_dims)  # (S, B, H)
        if targets is None:
            return route._replace(inputs=joined(X, noise), n_replicates=K)
        q = self.posterior(X, targets)
        h = q.draw(noise)
        # A single draw in a mean over the bound: its expectation is known.
        log_ratio = -q.kl().unsqueeze(-2) if K == 1 and not mixture else q.log_ratio(noise, h)
        return route._replace(inputs=joined(X, h), log_ratio=log_ratio, n_replicates=K)

    @staticmethod
    def _repeated(route: Route, times: int) -> Route:
        """Every component so many times in turn, with its share of the weight."""
        if times == 1:
            return route
        points = [point.repeat_interleave(times, dim=-3) for point in route.points]
        log_weight = route.log_weight.repeat_interleave(times, dim=-2) - math.log(times)
        return route._replace(points=points, log_weight=log_weight)

    @property
    def weight(self) -> Tensor:
        """Of the stored points of hidden layers and latent variables."""
        times = self.n_samples // self.inner.n_samples
        return self.inner.weight.repeat_interleave(times) / times

    def of_functions(self, streams: Streams, *, of_rows: bool) -> Callable[[Tensor], Route]:
        """The way of rows (B, Q) for functions, one for each of S streams.

        Each has one value of the latent variables; or for each row anew in every call, where the function's values are
        to be ``of_rows`` as these are observed.
        """
        chosen = None if self.sampled else streams.choice(self.inner.weight)
        fixed = streams.normal(1, self.n_dims)

        def route(X: Tensor) -> Route:
            h = streams.normal(len(X), self.n_dims) if of_rows else fixed
            points = [] if chosen is None else [point[chosen] for point in self.inner(X).points]
            return Route(joined(X, h), points, X.new_full((len(h), 1), -math.log(len(h))))

        return route


def joined(X: Tensor, h: Tensor) -> Tensor:
    """Rows (B, Q), each with latent variables (S, B or 1, H): (S, B, Q + H)."""
    X = X.unsqueeze(-3).expand(*h.shape[:-2], *X.shape[-2:])
    return torch.cat([X, h.to(X).expand(*X.shape[:-1], -1)], dim=-1)


def _even_normal(n_points: int, n_dims: int, generator: torch.Generator) -> Tensor:
    """Points (n_points, 1, n_dims) whose distribution is close to normal, in random order."""
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    uniform = SobolEngine(n_dims, scramble=True, seed=seed).draw(n_points, dtype=torch.float64)
    order = torch.randperm(n_points, generator=generator, device=generator.device)
    normal = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9)).float()
    return normal.to(order.device)[order][:, None]
