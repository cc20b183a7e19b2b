"""Latent variables of rows: they stand for causes of a target that are not in the table.

Each row has h_n ~ N(0, I_H), which is appended to the inputs x_n. So targets at one x may have several values
(tutorial on sparse GPs, Sec. 3.3 and 4.2; Salimbeni, Dutordoir, Hensman and Deisenroth, ICML 2019). In training
q(h_n | x_n, y_n) = N(m, diag s²) comes from a small network, the *encoder*. Let h_k ~ q be K replicates of a row's
latent variables. The term of the row in the bound is then (tutorial Eq. 68, 79 where K = 1, and 76, 81)

    K = 1:   E_q(h) E log p(y | f) − KL(q(h) ‖ p(h))
    K > 1:   E log (1/K) Σ_k exp(E log p(y | f_k)) p(h_k)/q(h_k)

where f_k is the same function for all replicates of a row. In prediction h comes from its prior. A prediction is a
mixture over values of h, and may have several modes.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from .networks import MLPs
from .propagation import Propagation, Route, Share, Source, fresh_normal
from .waves import Streams

#: Smallest number of values of the latent variables in the mixture that a prediction is.
N_VALUES = 64

#: Number of values of a row's latent variables in joint covariances, for each drawn function of hidden layers. Time
#: grows with the square of this number.
COPIES = 8

#: The same number without hidden layers, where a mixture has a single component, and more values take little time.
COPIES_ALONE = 16

#: Units of the encoder's two hidden layers.
ENCODER_WIDTH = 32

#: Initial deviation of q. With 1, that of the prior, latent variables would be pure noise at first, and the function
#: would learn to ignore them.
INITIAL_DEVIATION = 0.1


class Posterior(NamedTuple):
    """Gaussian posteriors q(h | x, y) of rows."""

    mean: Tensor  # (B, H)
    log_deviation: Tensor  # (B, H)

    def kl(self) -> Tensor:
        """KL(q ‖ N(0, I)), (B,)."""
        square = self.mean.square() + (2.0 * self.log_deviation).exp()
        return 0.5 * (square - 1.0).sum(-1) - self.log_deviation.sum(-1)

    def draw(self, noise: Tensor) -> Tensor:
        """Samples h (S, B, H), computed from standard normal numbers."""
        return self.mean.unsqueeze(-3) + self.log_deviation.exp().unsqueeze(-3) * noise

    def log_ratio(self, noise: Tensor, h: Tensor) -> Tensor:
        """log p(h)/q(h), (S, B), of the samples ``h`` that :meth:`draw` computed from the noise."""
        return 0.5 * (noise.square() - h.square()).sum(-1) + self.log_deviation.sum(-1).unsqueeze(-2)


class Latents(Propagation):
    """A propagation that appends latent variables to rows, before another one; see the module's docstring.

    Parameters
    ----------
    inner : Propagation
        The other propagation, which determines how uncertainty travels between layers.
    n_inputs : int
        Q.
    n_targets : int
        How many numbers of a row's targets the encoder gets.
    n_dims : int
        H.
    n_importance : int
        K.
    generator : torch.Generator
        Source of random initial values.
    """

    stackable = True

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

    def stored(self, X: Tensor) -> Route:
        """The route of rows with the stored latent variables, which all rows share."""
        route = self.inner.stored(X).repeated(self.n_samples // self.inner.n_samples)
        return route._replace(inputs=joined(X, self.points))

    def fresh(
        self, X: Tensor, generator: Source, share: Share | None, targets: Tensor | None, *, mixture: bool, K: int = 1
    ) -> Route:
        """The route of rows with K latent variables for each function, from the posterior if there are targets.

        Otherwise they come from the prior.
        """
        K *= self.n_importance
        route = self.inner.fresh(X, generator, share, targets, mixture=mixture, K=K)
        noise = fresh_normal(X, generator, share, route.log_weight.shape[-2], self.n_dims)  # (S, B, H)
        if targets is None:
            return route._replace(inputs=joined(X, noise), n_replicates=K)
        q = self.posterior(X, targets)
        h = q.draw(noise)
        # With a single replicate the bound is a mean, in which the expectation of this term is known.
        log_ratio = -q.kl().unsqueeze(-2) if K == 1 and not mixture else q.log_ratio(noise, h)
        return route._replace(inputs=joined(X, h), log_ratio=log_ratio, n_replicates=K)

    @property
    def weight(self) -> Tensor:
        """Weights (S,) of the stored points of hidden layers and latent variables."""
        times = self.n_samples // self.inner.n_samples
        return self.inner.weight.repeat_interleave(times) / times

    def of_functions(self, streams: Streams, *, of_rows: bool) -> Callable[[Tensor], Route]:
        """A callable that returns the route of rows (B, Q) for drawn functions, one for each of S streams.

        Each function has one value of the latent variables. With ``of_rows`` each row has new values in each call, as
        observed rows have.
        """
        chosen, fixed = self._chosen(streams), streams.normal(1, self.n_dims)
        return lambda X: self._with_values(X, streams.normal(len(X), self.n_dims) if of_rows else fixed, chosen)

    def of_copies(self, streams: Streams, *, hidden: bool) -> tuple[int, Callable[[Tensor], Route]]:
        """See :meth:`.Propagation.of_copies`.

        With hidden layers each stream has values of its own.
        """
        chosen, n_copies, generators = None, COPIES_ALONE, streams.generators[:1]
        if hidden:
            chosen, n_copies, generators = self._chosen(streams), COPIES, streams.generators
        values = [_even_normal(n_copies, self.n_dims, generator) for generator in generators]
        h = torch.cat(values, 1).movedim(0, 1)  # (S, R, H)
        return n_copies, lambda X: self._with_values(X, h.repeat_interleave(len(X) // n_copies, dim=1), chosen)

    def _chosen(self, streams: Streams) -> Tensor | None:
        """For each stream the number of the learnt point that its function follows; None if points are not learnt."""
        return None if self.sampled else streams.choice(self.inner.weight)

    def _with_values(self, X: Tensor, h: Tensor, chosen: Tensor | None) -> Route:
        """The route of rows (B, Q) whose latent variables are h (S, B or 1, H)."""
        points = [] if chosen is None else [point[chosen] for point in self.inner.stored(X).points]
        return Route(joined(X, h), points, X.new_full((len(h), 1), -math.log(len(h))))


def joined(X: Tensor, h: Tensor) -> Tensor:
    """Rows (B, Q) with latent variables (S, B or 1, H) appended, (S, B, Q + H)."""
    X = X.unsqueeze(-3).expand(*h.shape[:-2], *X.shape[-2:])
    return torch.cat([X, h.to(X).expand(*X.shape[:-1], -1)], dim=-1)


def _even_normal(n_points: int, n_dims: int, generator: torch.Generator) -> Tensor:
    """Points (n_points, 1, n_dims) whose distribution is close to normal, in random order."""
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    uniform = SobolEngine(n_dims, scramble=True, seed=seed).draw(n_points, dtype=torch.float64)
    order = torch.randperm(n_points, generator=generator, device=generator.device)
    normal = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9)).float()
    return normal.to(order.device)[order][:, None]
