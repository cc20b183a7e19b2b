"""Deep GPs whose posteriors couple the layers.

A posterior in which layers are independent lets hidden layers collapse to single functions, although many
compositions of functions explain the same data (Ustyuzhaninov, Kazlauskaite, Kaiser, Bodin, Campbell and Ek,
"Compositional uncertainty in deep Gaussian processes", UAI 2020). Here are three others:

=============== ====================================================================================================
``Joint``       q(v_1, ..., v_L) is one Gaussian (Eq. 12). v is drawn, and given v every layer is a GP (Eq. 13)
``Chain``       q(v_{l+1} | v_l) = N(m_{l+1} + J_l (v_l − m_l), C_{l+1}) (Eq. 14). v is integrated out (Eq. 15 to 17)
``Locations``   function values at inducing points of one layer are the inducing points of the next (Eq. 18 to 23)
=============== ====================================================================================================

v_l are the D_l M_l whitened inducing variables of all outputs of layer l, with u = m(Z) + σ L v and the prior N(0, I).
Here and below f = m(x) + σ (Aᵀv + r) with A = L⁻¹ k(Z, x). r has the variance that inducing variables leave, which is
1 − AᵀA relative to σ². Shapes are those of :mod:`skdgp.gp.deep_gp`, with T_l for D_l M_l.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from .conditionals import VARIANCE_FLOOR, contribution, kl_divergence, root_product, variance_floor, with_variances
from .deep_gp import DeepGP, Marginals
from .global_layer import GlobalLayer
from .layers import Layer, LayerDraw
from .likelihoods import Likelihood
from .linalg import NO_JITTER, cholesky, inverse_cholesky
from .mixtures import Components, Response
from .propagation import Propagation, Route
from .waves import Streams

#: Largest number of entries of a matrix that couples layers. In float32 the parameters, their gradients and Adam's two
#: moments then take a quarter of a gigabyte.
MOST_COUPLINGS = 2**24

#: Jitter of covariances at random points, which are close to each other more often than learnt points.
DRAWN_JITTER = 1e-4

#: Number of drawn functions from which a joint covariance is computed.
COVARIANCE_FUNCTIONS = 256


class Conditional(NamedTuple):
    """Conditional of a layer's function values at S·B inputs, given whitened inducing variables."""

    A: Tensor  # (S, B, D or 1, M)
    left: Tensor  # (S, B, D or 1), relative variance that they leave

    @classmethod
    def of(cls, layer: GlobalLayer, x: Tensor) -> "Conditional":
        """The conditional at inputs x (S, B, Q)."""
        rows = x.flatten(0, 1)
        [(_, A)] = layer.whitened(rows)
        A = (A if A.dim() == 3 else A[None]).movedim(-1, 0)  # (S·B, D or 1, M)
        prior = (A.new_zeros(1, 1) + layer.kernel.relative_diagonal(rows)).mT  # (S·B or 1, D or 1)
        left = torch.maximum(prior - A.square().sum(-1), variance_floor(x) * prior)
        return cls(A.unflatten(0, x.shape[:2]), left.unflatten(0, x.shape[:2]))

    def times(self, v: Tensor) -> Tensor:
        """Aᵀv, (S, B, D), for v of shape (S, B or 1, D, M)."""
        return (self.A * v).sum(-1)


def _white(layer: GlobalLayer, like: Tensor) -> Tensor:
    """Variances of a layer's white noise, (D,) or ()."""
    return like.new_zeros(()) if layer.log_white_noise is None else layer.log_white_noise.exp()


class CoupledGP(DeepGP):
    """A deep GP whose posterior couples the layers.

    Subclasses define the posterior in :meth:`_travel`, and its functions in :meth:`_drawn` or :meth:`_layer_draws`.

    Parameters
    ----------
    layers : sequence of GlobalLayer
        Layers with one set of inducing points each, and whitened posteriors.
    propagation : Propagation
        A propagation of random samples, whose points have as many numbers as :meth:`widths` returns.
    likelihood : Likelihood
    """

    layers: Sequence[GlobalLayer]

    #: Whether all rows of a minibatch have the same samples of inducing variables.
    shared_by_rows: ClassVar[bool] = False

    def __init__(self, layers: Sequence[Layer], propagation: Propagation, likelihood: Likelihood):
        super().__init__(layers, propagation, likelihood)
        self.sizes = [(layer.q.mean.shape[0], layer.q.mean.shape[1]) for layer in self.layers]  # D_l, M_l
        self.totals = [n_outputs * n_inducing for n_outputs, n_inducing in self.sizes]
        self.outputs = sum(n_outputs for n_outputs, _ in self.sizes)

    @staticmethod
    def widths(n_outputs: int, n_inducing: int) -> int:
        """Standard normal numbers for a sample of a hidden layer: for its values and its inducing variables."""
        return n_outputs * (1 + n_inducing)

    @staticmethod
    def couplings(totals: Sequence[int]) -> int:
        """Number of entries of the largest matrix that couples layers with ``totals`` inducing variables."""
        raise NotImplementedError

    def numbers_per_row(self) -> int:
        """See :meth:`.DeepGP.numbers_per_row`; each sample has inducing variables of all outputs."""
        return max(super().numbers_per_row(), self.propagation.n_samples * max(self.totals))

    def frozen(self, *, turned: bool = False) -> Self:
        """See :meth:`.DeepGP.frozen`. Layers are never turned: couplings belong to the variables as they are."""
        return super().frozen()

    def _split(self, point: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The parts of a hidden layer's points for its values (S, B or 1, D) and for its inducing variables (…, T)."""
        values, inducing = point.split([self.sizes[depth][0], self.totals[depth]], dim=-1)
        return values, inducing

    # Functions.

    def _layer_draws(self, streams: Streams) -> list[LayerDraw]:
        """Functions of all layers, whose inducing variables are drawn together."""
        return [layer.draw(streams, v) for layer, v in zip(self.layers, self._drawn(streams), strict=True)]

    def _drawn(self, streams: Streams) -> list[Tensor]:
        """Whitened inducing variables (S, D, M) of all layers, drawn together."""
        raise NotImplementedError

    def covariance(self, X: Tensor, streams: Streams, response: Response | None = None) -> Tensor:
        """See :meth:`.DeepGP.covariance`. Correlations are those of drawn functions, variances those of predictions.

        Variances of a response are those of drawn functions, too, since it may be that of this model and a base.
        """
        covariance = super().covariance(X, streams, response)
        return covariance if response is not None else with_variances(covariance, self(X).moments()[1].mT)

    def _components(self, X: Tensor, streams: Streams) -> Components:
        """Functions that are drawn, as components without variance."""
        values = []
        for part in torch.arange(COVARIANCE_FUNCTIONS).split(len(streams)):
            some_streams = Streams(part.tolist(), X.device)
            *hidden, last = self._layer_draws(some_streams)
            n_copies, route_of = self.propagation.of_copies(some_streams, hidden=True)
            rows = X.repeat(n_copies, 1)
            values.append(last(*self._inputs(hidden, route_of)(rows)[-1]))  # (s, R·B, P)
        weight = X.new_full((COVARIANCE_FUNCTIONS,), 1 / COVARIANCE_FUNCTIONS)
        return Components(_Values(), torch.cat(values), rows, weight, n_copies)

    def gradient_variance(self, X: Tensor) -> None:
        """None: there is no closed form."""
        return None


class _Values(Layer):
    """Stands for a layer whose values are known: they are its inputs."""

    def forward(self, x: Tensor, anchor: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs, without variance."""
        return x, torch.zeros_like(x), x.new_zeros(())

    def covariance(self, x: Tensor, anchor: Tensor, weight: Tensor) -> Tensor:
        """Zeros (P, B, B)."""
        return x.new_zeros(()).expand(x.shape[-1], x.shape[1], x.shape[1])


class Joint(CoupledGP):
    """One Gaussian over the inducing variables of all layers; see the module's docstring.

    The root R of its covariance is lower triangular. The diagonal block of each output is the root in the layer's own
    posterior. Left of these blocks R is the deviations of the posteriors times ``cross``, which starts at zero.
    """

    def __init__(self, layers: Sequence[Layer], propagation: Propagation, likelihood: Likelihood):
        super().__init__(layers, propagation, likelihood)
        total = sum(self.totals)
        self.cross = nn.Parameter(self.layers[0].q.mean.new_zeros(total, total).detach())

    @staticmethod
    def couplings(totals: Sequence[int]) -> int:
        """The square of the number of all inducing variables."""
        return sum(totals) ** 2

    def root(self) -> Tensor:
        """R, (T, T)."""
        blocks = [root for layer in self.layers for root in layer.q.triangle]
        deviations = torch.cat([root.diagonal() for root in blocks])
        output = torch.cat([torch.full((len(root),), i, device=root.device) for i, root in enumerate(blocks)])
        below = output[:, None] > output  # blocks of an output and an earlier one, of the same layer or before
        return torch.block_diag(*blocks) + deviations[:, None] * self.cross * below

    def _means(self) -> list[Tensor]:
        return [layer.q.mean.flatten() for layer in self.layers]

    def _kl(self, root: Tensor) -> Tensor:
        """KL(N(m, R Rᵀ) ‖ N(0, I))."""
        return kl_divergence(torch.cat(self._means()), root)

    def _travel(
        self, X: Tensor, route: Route, targets: Tensor | None = None
    ) -> Iterator[tuple[Marginals, Tensor, Tensor]]:
        """Each sample has inducing variables of all hidden layers. Those of the last layer are integrated out."""
        root, means, ends = self.root(), self._means(), list(accumulate(self.totals, initial=0))
        kl, last = self._kl(root), len(self.layers) - 1
        F, epsilon = route.inputs, None
        for depth, (layer, point) in enumerate(zip_longest(self.layers, route.points)):
            rows, conditional = root[ends[depth] : ends[depth + 1]], Conditional.of(layer, F)  # (T_l, T)
            variance = conditional.left.expand(*F.shape[:2], self.sizes[depth][0])
            v = means[depth] if epsilon is None else means[depth] + epsilon @ rows[:, : ends[depth]].mT
            if depth < last:
                noise, epsilon_l = self._split(point, depth)
                v = v + epsilon_l @ rows[:, ends[depth] : ends[depth + 1]].mT  # (S, B or 1, T_l)
                epsilon = epsilon_l if epsilon is None else torch.cat([epsilon, epsilon_l], dim=-1)
            else:
                own_root = rows[:, ends[depth] :].unflatten(0, self.sizes[depth])  # (D, M, T_l)
                spread = torch.einsum("sbdm,dmt->sbdt", conditional.A.expand(-1, -1, len(own_root), -1), own_root)
                variance = variance + spread.square().sum(-1)
            mean = conditional.times(v.unflatten(-1, self.sizes[depth]))
            mean = layer.mean.added_to(mean * layer.kernel.deviation, F)
            variance = variance * layer.kernel.variance + _white(layer, mean)
            if depth < last:
                F = mean + variance.sqrt() * noise
            kl_l = kl if depth == last else torch.zeros_like(kl)  # the last layer stands for all
            yield Marginals.along(route, mean, variance, kl_l), F, X

    def _drawn(self, streams: Streams) -> list[Tensor]:
        v = torch.cat(self._means()) + streams.normal(sum(self.totals)) @ self.root().mT
        return [v_l.unflatten(-1, size) for v_l, size in zip(v.split(self.totals, -1), self.sizes, strict=True)]


class Chain(CoupledGP):
    """A Gaussian in which each layer depends only on the layer before; see the module's docstring.

    C_l is the covariance in the layer's own posterior. J starts at zero.
    """

    def __init__(self, layers: Sequence[Layer], propagation: Propagation, likelihood: Likelihood):
        super().__init__(layers, propagation, likelihood)
        like = self.layers[0].q.mean
        self.J = nn.ParameterList(
            like.new_zeros(above, below).detach()
            for below, above in zip(self.totals[:-1], self.totals[1:], strict=True)
        )

    @staticmethod
    def widths(n_outputs: int, n_inducing: int) -> int:
        """Standard normal numbers for a sample of a hidden layer: for its values alone."""
        return n_outputs

    @staticmethod
    def couplings(totals: Sequence[int]) -> int:
        """Entries of J and of the covariance of inducing variables, for the layer that has most of them."""
        return max(total * (below + total) for below, total in zip([0, *totals[:-1]], totals, strict=True))

    def numbers_per_row(self) -> int:
        """See :meth:`.DeepGP.numbers_per_row`; U has a row of inducing variables for each output of earlier layers."""
        return self.propagation.n_samples * max(self.totals) * self.outputs

    def _own(self, depth: int) -> Tensor:
        """C_l, (T_l, T_l)."""
        root = self.layers[depth].q.triangle
        return torch.block_diag(*(root @ root.mT))

    def _travel(
        self, X: Tensor, route: Route, targets: Tensor | None = None
    ) -> Iterator[tuple[Marginals, Tensor, Tensor]]:
        """A Kalman filter over layers: v_l | f_1, ..., f_{l−1} ~ N(m̃, P − U Uᵀ), where P is the same for all rows.

        Each output of an earlier layer has reduced the covariance by one rank of U Uᵀ.
        """
        last, F, P = len(self.layers) - 1, route.inputs, self._own(0)
        U, kl = F.new_zeros(1, 1, 0, self.totals[0]), F.new_zeros(())  # U has no rows in the first layer
        expected = self.layers[0].q.mean  # m̃: (D, M), or (S, B, D, M)
        for depth, (layer, point) in enumerate(zip_longest(self.layers, route.points)):
            size, conditional, m = self.sizes[depth], Conditional.of(layer, F), layer.q.mean
            kl = kl + 0.5 * (P.diagonal().sum() + m.square().sum() - m.numel()) - layer.q.log_diagonal.sum()
            mean = layer.mean.added_to(conditional.times(expected) * layer.kernel.deviation, F)
            A, sigma = conditional.A.expand(-1, -1, size[0], -1), layer.kernel.deviation  # (S, B, D, M)
            Uh = (U.unflatten(-1, size) * A[..., None, :, :]).sum(-1)  # (S, B, r, D)
            noise = conditional.left * layer.kernel.variance + _white(layer, A)
            Ph = self._with_values(P, U, A, Uh) * sigma  # (S, B, T, D)
            V = (Ph.unflatten(-2, size) * A[..., None]).sum(-2) * sigma[:, None]
            V = V + torch.diag_embed(noise.expand(A.shape[:3]))  # (S, B, D, D)
            if depth < last:
                L, J = cholesky(V, NO_JITTER), self.J[depth]
                F = mean + (L @ point[..., None])[..., 0]
                # Condition v_{l+1} on f_l. J P comes first: it takes longest, and all rows share it.
                JP = J @ P
                JU = U @ J.mT
                JPh = self._with_values(JP, JU, A, Uh) * sigma  # (S, B, T', D)
                W = torch.linalg.solve_triangular(L, JPh.mT, upper=False)  # (S, B, D, T')
                shift = (expected - m).flatten(-2) @ J.mT + (point[..., None, :] @ W)[..., 0, :]
                U = torch.cat([JU.expand(*W.shape[:2], -1, -1), W], dim=-2)  # (S, B, r, T')
                P = self._own(depth + 1) + JP @ J.mT
                expected = self.layers[depth + 1].q.mean + shift.unflatten(-1, self.sizes[depth + 1])
            kl_l = kl if depth == last else torch.zeros_like(kl)  # the last layer stands for all
            yield Marginals.along(route, mean, V.diagonal(dim1=-2, dim2=-1), kl_l), F, X

    @staticmethod
    def _with_values(P: Tensor, U: Tensor, A: Tensor, Uh: Tensor) -> Tensor:
        """Covariances (P − U Uᵀ) h, over σ, with the values h of a row's outputs: (S, B, T, D). ``Uh`` is Uᵀh."""
        return torch.einsum("tdm,sbdm->sbtd", P.unflatten(1, A.shape[-2:]), A) - U.mT @ Uh

    def _drawn(self, streams: Streams) -> list[Tensor]:
        drawn: list[Tensor] = []
        deviation = torch.zeros(())
        for depth, layer in enumerate(self.layers):
            innovation = root_product(layer.q.triangle, streams.normal(*self.sizes[depth]))  # (S, D, M)
            carried = (deviation @ self.J[depth - 1].mT).unflatten(-1, self.sizes[depth]) if depth else 0.0
            deviation = (innovation + carried).flatten(-2)
            drawn.append(layer.q.mean + innovation + carried)
        return drawn


class Locations(CoupledGP):
    """Values f_l^z of layer l at the inducing points of the first layer are the inducing points of layer l + 1.

    q(f_l^z) = N(m_l, S_l) is independent of other layers. Its parameters v and R are easier to learn than m_l and S_l:
    m_l = m(z̄) + L̄ v and S_l = L̄ R Rᵀ L̄ᵀ, where z̄ are the means of the layer before, and L̄ is the root of the
    kernel's matrix there. All layers have the same number of inducing points.
    """

    shared_by_rows = True

    def __init__(self, layers: Sequence[Layer], propagation: Propagation, likelihood: Likelihood):
        super().__init__(layers, propagation, likelihood)
        for layer in self.layers[1:]:
            layer.Z.requires_grad_(False)  # points are values of the layer before

    @staticmethod
    def couplings(totals: Sequence[int]) -> int:
        """0, since no matrix couples layers."""
        return 0

    def inducing_points(self) -> list[Tensor]:
        """Inducing points (M, Q) of the first layer, and the means of those of the other layers."""
        return [self.layers[0].Z, *(m.mT for m, _ in self._posteriors()[:-1])]

    def _posteriors(self) -> list[tuple[Tensor, Tensor]]:
        """Means m_l (D, M) and roots (D, M, M) of S_l, for each layer."""
        points, posteriors = self.layers[0].Z, []
        for layer in self.layers:
            K, noise = self._prior(layer, points[None])
            L = cholesky((K + noise.diag_embed())[0], NO_JITTER).to(points)  # (D or 1, M, M)
            m = layer.mean(points).mT + (L @ layer.q.mean[..., None])[..., 0]
            posteriors.append((m, L @ layer.q.triangle))
            points = m.mT
        return posteriors

    def _travel(
        self, X: Tensor, route: Route, targets: Tensor | None = None
    ) -> Iterator[tuple[Marginals, Tensor, Tensor]]:
        """Each sample has values f^z of hidden layers, which rows share. Those of the last layer are integrated out."""
        F, points, last = route.inputs, self.layers[0].Z[None], len(self.layers) - 1  # points: (S or 1, M, Q)
        with_posteriors = zip(self.layers, self._posteriors(), strict=True)
        for depth, ((layer, (m, root)), point) in enumerate(zip_longest(with_posteriors, route.points)):
            n_outputs, centre = self.sizes[depth][0], layer.mean(points).mT  # (S or 1, D, M)
            root = root.expand(len(points), -1, -1, -1)
            K, white = self._prior(layer, points)
            W = inverse_cholesky(K + white.diag_embed(), NO_JITTER).to(points)
            W = W.expand(len(points), n_outputs, -1, -1)
            kl = kl_divergence(m - centre, root, W).sum(-1).mean(0)
            A = W @ layer.kernel.covariance(points, F)  # (S, D, M, B)
            variance = layer.kernel.diagonal(F).expand(-1, n_outputs, -1) - A.square().sum(-2)  # (S, D, B)
            if depth < last:
                noise, epsilon = self._split(point, depth)
                # All rows share the random numbers of the first row. In data_parallel it is the first of each process.
                fz = m + (root @ epsilon[:, 0].unflatten(-1, self.sizes[depth])[..., None])[..., 0]
                mean = ((W @ (fz - centre)[..., None]).mT @ A)[..., 0, :]
            else:
                mean, change = contribution(W, A, m - centre, root)
                variance = variance + change + A.square().sum(-2)
            mean = layer.mean.added_to(mean.mT, F)
            variance = (variance.clamp(min=VARIANCE_FLOOR).mT + _white(layer, F)).expand_as(mean)
            if depth < last:
                F, points = mean + variance.sqrt() * noise, fz.mT
            yield Marginals.along(route, mean, variance, kl), F, X

    def _prior(self, layer: GlobalLayer, points: Tensor) -> tuple[Tensor, Tensor]:
        """Covariances (S or 1, D or 1, M, M) of functions, and variances (S or 1, D or 1, M) of white noise and jitter.

        Together they are the prior of f^z. Both are in float64.
        """
        exact = points.double()
        K, white = layer.kernel.covariance(exact, exact), _white(layer, exact)
        n_kernels = max(white.numel(), K.shape[1])
        white = (white[..., None] if white.dim() else white).expand(len(K), n_kernels, K.shape[-1])
        # Jitter is part of the model here, so that gradients include its growth with the kernel's variance.
        jitter = DRAWN_JITTER * K.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        return K, white + jitter

    def _layer_draws(self, streams: Streams) -> list[LayerDraw]:
        """Functions by Matheron's rule, each with inducing points of its own."""
        draws, points = [], self.layers[0].Z.expand(len(streams), -1, -1)
        for layer, (m, root), size in zip(self.layers, self._posteriors(), self.sizes, strict=True):
            fz = m + (root @ streams.normal(*size, 1))[..., 0]
            draws.append(self._matheron(layer, streams, points, fz))
            points = fz.mT
        return draws

    def _matheron(self, layer: GlobalLayer, streams: Streams, points: Tensor, fz: Tensor) -> LayerDraw:
        """Functions of a layer with values fz (S, D, M) at inducing points (S, M, Q)."""
        prior = layer.kernel.draw(streams, points.shape[-1], fz.shape[1])
        K, noise = self._prior(layer, points)
        W, sigma = inverse_cholesky(K + noise.diag_embed(), NO_JITTER).to(points), layer.kernel.deviation
        white = noise.sqrt().to(points) * streams.normal(*fz.shape[1:])
        left = fz - layer.mean(points).mT - (prior(points) * sigma).mT - white  # (S, D, M)
        change = (W.mT @ (W @ left[..., None]))[..., 0]

        def function(x: Tensor, anchor: Tensor) -> Tensor:
            k = layer.kernel.covariance(points, x)  # (S, D or 1, M, B)
            values = (change[..., None, :] @ k)[..., 0, :]
            return layer.mean.added_to(prior(x) * sigma + values.mT, x)

        return function


COUPLED: dict[str, type[CoupledGP]] = {"joint": Joint, "chain": Chain, "locations": Locations}


def check_size(name: str, totals: Sequence[int]) -> None:
    """Raise ValueError if a posterior of this name would take too much memory."""
    number = COUPLED[name].couplings(totals)
    # In float32, with as many numbers again for gradients and for each of Adam's two moments.
    needed, most = (4 * torch.float32.itemsize * n_entries / 2**30 for n_entries in (number, MOST_COUPLINGS))
    if number > MOST_COUPLINGS:
        raise ValueError(
            f'layer_posterior="{name}" couples {sum(totals)} inducing variables of {len(totals)} layers, which takes '
            f"{needed:.1f} GiB in training, more than {most:.2f}: lower n_inducing or hidden_dims."
        )
