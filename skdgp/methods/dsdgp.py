"""Doubly stochastic deep Gaussian processes; with quadrature, deep sigma point processes."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from ..gp.coregional import mixed
from ..gp.coupled import COUPLED, check_size
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import Kernel
from ..gp.latents import Latents
from ..gp.layers import Layer
from ..gp.likelihoods import Likelihood
from ..gp.means import ZeroMean, make_mean
from ..gp.propagation import Propagation, make_propagation
from ..inference.plan import Plan
from ..tables import Table
from .budget import Budget, n_members, plan_minibatches
from .inducing import (
    AT_POINTS,
    COVARIANCES,
    FEATURES,
    INITIAL_ROWS,
    Auto,
    cluster_centres,
    inducing_per_layer,
    make_features,
    make_global_layer,
    positive_ints,
    size_of_first,
    warn_of_few_rows,
)
from .kernels import KernelLike, layer_kernel
from .options import computing, modelling, parameter, training

#: Number of inducing points in each layer, by the smallest number of rows for which it holds.
INDUCING = {0: 64, 2000: 128, INITIAL_ROWS: 256}

#: The same if the layers are coupled. The cost then grows with the square of the number of all inducing variables.
COUPLED_INDUCING = 64

#: Chosen on held-out rows. With quadrature each row makes as many inputs of a layer as there are points. So minibatches
#: are smaller, which leaves time for more steps.
BUDGETS = {
    "monte_carlo": Budget(
        steps=(1200, 2200), epochs=(60, 400), member_rows=20_000, max_members=5, batch_sizes=(16, 250), large_batch=500
    ),
    "quadrature": Budget(
        steps=(1200, 1200), epochs=(20, 300), member_rows=20_000, max_members=5, batch_sizes=(16, 100), large_batch=250
    ),
}

#: Number of hidden layers that "auto" stands for.
AUTO_HIDDEN_LAYERS = 2

#: Their largest width (DS-DGP, Sec. 4).
MAX_AUTO_WIDTH = 30

#: Posterior covariances of hidden layers start at this share of the prior's (the square of ``initial_deviation``). So
#: hidden layers start almost without randomness (DS-DGP, supplement).
HIDDEN_SHARE = 1e-5

#: Their white noise starts at this variance, for the same reason.
HIDDEN_NOISE = 1e-5


@dataclass(eq=False, repr=False)
class DSDGPParameters:
    """Parameters of :class:`DSDGP`, which :class:`skdgp.DSDGPClassifier` describes."""

    hidden_dims: Sequence[int] | Auto = parameter(modelling.HIDDEN_DIMS, "auto")
    n_inducing: int | Sequence[int] | Auto = parameter(modelling.N_INDUCING, "auto")
    _: KW_ONLY
    inducing: str = parameter(modelling.INDUCING, "points")
    propagation: str = parameter(modelling.PROPAGATION, "monte_carlo")
    kernel: KernelLike = parameter(modelling.KERNEL, "matern52")
    ard: bool = parameter(modelling.ARD, True)
    mean: str = parameter(modelling.MEAN, "identity")
    covariance: str = parameter(modelling.COVARIANCE, "diag")
    n_orthogonal: int = parameter(modelling.N_ORTHOGONAL, 0)
    n_samples: int = parameter(modelling.N_SAMPLES, 8)
    layer_posterior: str = parameter(modelling.LAYER_POSTERIOR, "factorised")
    objective: str = parameter(training.OBJECTIVE, "auto")
    n_estimators: int | Auto = parameter(training.N_ESTIMATORS, "auto")
    beta: float = parameter(training.BETA, 0.1)
    max_iter: int | Auto = parameter(training.MAX_ITER, "auto")
    batch_size: int | Auto = parameter(training.BATCH_SIZE, "auto")
    learning_rate: float = parameter(training.LEARNING_RATE, 0.05)
    early_stopping: bool = parameter(training.EARLY_STOPPING, True)
    n_iter_no_change: int = parameter(training.N_ITER_NO_CHANGE, 100)
    dtype: str = parameter(computing.DTYPE, "auto")
    cuda_graphs: bool | str = parameter(computing.CUDA_GRAPHS, "auto")


class DSDGP(DSDGPParameters):
    """Deep GPs in which all rows share the inducing variables of each layer."""

    has_points = True

    #: Whether the outputs of a layer share a kernel. With kernels of their own a fit takes two to three times as long.
    share_kernel: ClassVar[bool] = True

    #: Number of latent variables of each row. A method that has latent variables makes it a parameter.
    latent_dims: ClassVar[int] = 0

    #: Number of functions that outputs share, which likewise is a parameter of some methods.
    n_latent_outputs: ClassVar[int | None] = None

    @property
    def feature_kinds(self) -> tuple[str, ...]:
        """Kinds of the inducing features."""
        return (self.inducing,)

    def n_members(self, n_rows: int | None) -> int:
        """Number of members of an ensemble for so many rows, or for an unknown number of rows."""
        return n_members(self, BUDGETS[self.propagation], n_rows)

    def plan(self, n_rows: int, n_chunk: int | None = None, *, held_out: bool = False, corrected: bool = False) -> Plan:
        """How a member is trained with ``n_rows`` rows. They may come in chunks, and some of them may be held out.

        ``corrected`` says whether a base and neighbours correct the members, so that they may learn less.
        """
        return plan_minibatches(self, BUDGETS[self.propagation], n_rows, n_chunk)

    def build(
        self, X: Tensor, likelihood: Likelihood, generator: torch.Generator, table: Table | None = None
    ) -> DeepGP:
        """Build an untrained model; arguments and errors are those of :meth:`.AVDGP.build`.

        It warns if there are fewer distinct rows than the inducing points that the user asked for.
        """
        hidden_dims = self.widths(X.shape[1])
        widths = (*hidden_dims, self.n_latent_outputs or likelihood.n_outputs)
        auto = [number for n_rows, number in INDUCING.items() if len(X) >= n_rows][-1]
        auto = COUPLED_INDUCING if self.layer_posterior in COUPLED else auto
        numbers = inducing_per_layer(self.n_inducing, hidden_dims, (auto, auto))
        if self.layer_posterior in COUPLED:
            check_size(self.layer_posterior, [M * D for M, D in zip(numbers, widths, strict=True)])
        layers: list[Layer] = []
        inputs = points = self.initial_inputs(X, generator)
        for depth, (n_outputs, n_inducing) in enumerate(zip(widths, numbers, strict=True)):
            hidden = depth < len(hidden_dims)
            shared = self.share_kernel and (hidden or likelihood.alike)
            kernel = layer_kernel(self, depth, len(widths), inputs.shape[1], 1 if shared else n_outputs, table)
            if isinstance(self.n_inducing, str):
                n_inducing = FEATURES[self.inducing].instead_of(n_inducing, inputs.shape[1])
            if depth and self.layer_posterior == "locations":  # values of this layer at its inducing points
                points = cast(GlobalLayer, layers[-1]).mean(points).detach()
            else:
                points = self.initial_points(kernel, inputs, n_inducing, generator)
            asked = {"n_inducing": self.n_located(n_inducing), "n_orthogonal": self.n_orthogonal}
            if isinstance(self.n_inducing, str) and asked["n_inducing"]:
                n_inducing = size_of_first(asked, ("n_inducing",), len(points))
                asked["n_inducing"] = 1
            if depth == 0 and (self.n_orthogonal or not isinstance(self.n_inducing, str)):
                warn_of_few_rows(asked, len(points))
            sizes = (n_inducing, n_outputs)
            layers.append(self.make_layer(inputs, points, *sizes, generator, kernel=kernel, hidden=hidden))
            with torch.no_grad():
                inputs = layers[-1](inputs[None], inputs)[0][0]  # the inputs of the next layer
        if self.n_latent_outputs is not None:
            layers = mixed(layers, likelihood, self.n_latent_outputs)
        kind = COUPLED.get(self.layer_posterior) if hidden_dims else None
        if kind is not None:
            hidden_dims = tuple(kind.widths(*cast(GlobalLayer, layer).q.mean.shape) for layer in layers[:-1])
        propagation = make_propagation(self.propagation, hidden_dims, self.n_samples, generator)
        if kind is not None and kind.shared_by_rows:
            propagation.n_fewest = propagation.n_samples  # one sample that all rows share would be too noisy
        return (kind or DeepGP)(layers, self.begun(propagation, X, likelihood, generator), likelihood)

    def initial_inputs(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Inputs of the first layer from which initial values are computed."""
        return X

    def n_located(self, n_inducing: int) -> int:
        """Number of points that the first set of a layer starts from; inducing features of some kinds have none."""
        return n_inducing if self.inducing in AT_POINTS else 0

    def initial_points(self, kernel: Kernel, inputs: Tensor, n_inducing: int, generator: torch.Generator) -> Tensor:
        """Points of both sets of a layer, those of the first set first; all distinct inputs if there are fewer."""
        number = self.n_located(n_inducing) + self.n_orthogonal
        return cluster_centres(kernel.places(inputs), number, generator) if number else inputs[:0]

    def begun(
        self, propagation: Propagation, X: Tensor, likelihood: Likelihood, generator: torch.Generator
    ) -> Propagation:
        """The propagation, with whatever comes before the first layer."""
        return propagation

    def widths(self, n_inputs: int) -> tuple[int, ...]:
        """Widths of the hidden layers for rows with so many columns; ValueError if they are not positive integers."""
        if isinstance(self.hidden_dims, str):
            return AUTO_HIDDEN_LAYERS * (min(MAX_AUTO_WIDTH, n_inputs) + self.latent_dims,)
        return positive_ints("hidden_dims", self.hidden_dims)

    def make_layer(
        self,
        inputs: Tensor,
        points: Tensor,
        n_inducing: int,
        n_outputs: int,
        generator: torch.Generator,
        *,
        kernel: Kernel,
        hidden: bool,
    ) -> Layer:
        """Make one of the layers, for inputs (N, Q)."""
        mean = make_mean(self.mean, inputs, n_outputs) if hidden else ZeroMean(n_outputs)
        n_first = self.n_located(n_inducing)
        Z = make_features(self.inducing, kernel, inputs, points[:n_first], n_inducing, generator)
        v = points.new_zeros(n_outputs, len(Z))
        if hidden and self.mean == "zero":
            # If this layer started at zero, the next one would see a single point. So it starts at a function that
            # is drawn from its prior.
            v.normal_(generator=generator)
        return make_global_layer(
            kernel,
            mean,
            Z,
            points[n_first:],
            v,
            covariance=COVARIANCES[self.covariance],
            initial_deviation=HIDDEN_SHARE**0.5 if hidden else 1.0,
            white_noise=HIDDEN_NOISE if hidden else None,
        )


@dataclass(eq=False, repr=False)
class LatentDSDGPParameters(DSDGPParameters):
    """Parameters of :class:`LatentDSDGP`, which :class:`skdgp.DSDGPRegressor` describes."""

    _: KW_ONLY
    latent_dims: int = parameter(modelling.LATENT_DIMS, 0)
    n_importance: int = parameter(modelling.N_IMPORTANCE, 1)
    n_latent_outputs: int | None = parameter(modelling.N_LATENT_OUTPUTS, None)


class LatentDSDGP(LatentDSDGPParameters, DSDGP):  # type: ignore[misc]
    """The same, with latent variables of each row that join its features (Salimbeni et al., ICML 2019)."""

    def initial_inputs(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Rows, joined with latent variables that are drawn from their prior."""
        if not self.latent_dims:
            return X
        h = torch.randn(len(X), self.latent_dims, generator=generator, device=X.device, dtype=X.dtype)
        return torch.cat([X, h], dim=-1)

    def begun(
        self, propagation: Propagation, X: Tensor, likelihood: Likelihood, generator: torch.Generator
    ) -> Propagation:
        """The propagation, with latent variables before the first layer."""
        if not self.latent_dims:
            return propagation
        return Latents(propagation, X.shape[1], likelihood.n_targets, self.latent_dims, self.n_importance, generator)
