"""Amortised variational inference for deep Gaussian processes."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..gp.amortised_layer import AmortisedLayer
from ..gp.deep_gp import DeepGP
from ..gp.kernels import Kernel
from ..gp.layers import Layer
from ..gp.likelihoods import Likelihood
from ..gp.means import Mean, ZeroMean, make_mean
from ..gp.networks import INFERENCE_NETWORKS
from ..gp.propagation import make_propagation
from ..inference.plan import Plan
from ..tables import Table
from .budget import Budget, n_members, plan_minibatches
from .inducing import COVARIANCES, Auto, inducing_per_layer, positive_ints
from .kernels import KernelLike, layer_kernel
from .options import computing, modelling, parameter, training

#: Number of inducing points in the first layer and in every later one (AVDGP, App. C.1).
INDUCING = (8, 4)

#: Number of hidden layers of the networks, if there is one width for all of them (AVDGP, App. C.1).
NETWORK_DEPTH = 2

#: Chosen on held-out rows, so that a fit to ten thousand rows takes half a minute on two cores.
BUDGET = Budget(
    steps=(400, 400), epochs=(40, 300), member_rows=18_000, max_members=5, batch_sizes=(16, 128), large_batch=500
)


@dataclass(eq=False, repr=False)
class AVDGPParameters:
    """Parameters of :class:`AVDGP`, which :class:`skdgp.AVDGPRegressor` describes."""

    hidden_dims: Sequence[int] = parameter(modelling.HIDDEN_DIMS_AVDGP, (16, 4))
    n_inducing: int | Sequence[int] | Auto = parameter(modelling.N_INDUCING_AVDGP, "auto")
    _: KW_ONLY
    rule: str = parameter(modelling.RULE, "ar2p")
    kernel: KernelLike = parameter(modelling.KERNEL, "matern52")
    ard: bool = parameter(modelling.ARD, False)
    mean: str = parameter(modelling.MEAN, "zero")
    covariance: str = parameter(modelling.COVARIANCE_AVDGP, "diag")
    inducing_map: str = parameter(modelling.INDUCING_MAP, "affine")
    network_width: int | Sequence[int | None] | None = parameter(modelling.NETWORK_WIDTH, 128)
    n_samples: int = parameter(modelling.N_SAMPLES, 8)
    objective: str = parameter(training.OBJECTIVE, "auto")
    n_estimators: int | Auto = parameter(training.N_ESTIMATORS, "auto")
    beta: float = parameter(training.BETA_AVDGP, 100.0)
    max_iter: int | Auto = parameter(training.MAX_ITER_AVDGP, "auto")
    batch_size: int | Auto = parameter(training.BATCH_SIZE_AVDGP, "auto")
    learning_rate: float = parameter(training.LEARNING_RATE, 0.02)
    early_stopping: bool = parameter(training.EARLY_STOPPING, True)
    n_iter_no_change: int = parameter(training.N_ITER_NO_CHANGE, 25)
    dtype: str = parameter(computing.DTYPE, "auto")
    cuda_graphs: bool | str = parameter(computing.CUDA_GRAPHS, "auto")


class AVDGP(AVDGPParameters):
    """Deep GPs in which each row has inducing variables of its own, which networks compute."""

    feature_kinds = ()
    has_points = False
    n_latent_outputs: ClassVar[None] = None  # outputs share no functions

    def n_members(self, n_rows: int | None) -> int:
        """Number of members of an ensemble for so many rows, or for an unknown number of rows."""
        return n_members(self, BUDGET, n_rows)

    def plan(self, n_rows: int, n_chunk: int | None = None, *, held_out: bool = False, corrected: bool = False) -> Plan:
        """How a member is trained with ``n_rows`` rows. They may come in chunks, and some of them may be held out.

        ``corrected`` says whether a base and neighbours correct the members, so that they may learn less.
        """
        return plan_minibatches(self, BUDGET, n_rows, n_chunk)

    def build(
        self, X: Tensor, likelihood: Likelihood, generator: torch.Generator, table: Table | None = None
    ) -> DeepGP:
        """Build an untrained model.

        Parameters
        ----------
        X : Tensor of shape (N, Q)
            Standardised rows on the CPU, from which initial values are computed.
        likelihood : Likelihood
            The likelihood, which becomes a part of the model.
        generator : torch.Generator
            Source of randomness for initial values, on the CPU.
        table : Table, default=None
            Names and units of the features, and the columns of each, for kernel objects. With None each column is a
            feature, in its own units.

        Raises
        ------
        ValueError
            If widths or numbers of inducing points are not positive integers.
        """
        hidden_dims = self.widths(X.shape[1])
        widths = (X.shape[1], *hidden_dims, likelihood.n_outputs)
        layers, inputs = [], X
        for depth, n_inducing in enumerate(inducing_per_layer(self.n_inducing, hidden_dims, INDUCING)):
            n_in, n_out = widths[depth], widths[depth + 1]
            hidden = depth < len(hidden_dims)
            mean = make_mean(self.mean, inputs, n_out) if hidden else ZeroMean(n_out)
            kernel = layer_kernel(self, depth, len(widths) - 1, n_in, n_out, table)
            layers.append(self.make_layer(n_in, n_out, n_inducing, generator, kernel=kernel, mean=mean))
            inputs = mean(inputs)
        return DeepGP(layers, make_propagation(self.rule, hidden_dims, self.n_samples, generator), likelihood)

    def widths(self, n_inputs: int) -> tuple[int, ...]:
        """Widths of the hidden layers; ValueError if they are not positive integers."""
        return positive_ints("hidden_dims", self.hidden_dims)

    def make_layer(
        self, n_inputs: int, n_outputs: int, n_inducing: int, generator: torch.Generator, *, kernel: Kernel, mean: Mean
    ) -> Layer:
        """Make one of the layers."""
        covariance = COVARIANCES[self.covariance]
        network = INFERENCE_NETWORKS[self.inducing_map](
            n_inputs,
            n_outputs,
            n_inducing,
            covariance=covariance.first,
            widths=self._network_widths(),
            generator=generator,
        )
        return AmortisedLayer(kernel, mean, network, whiten=covariance.whitened)

    def _network_widths(self) -> tuple[int | None, ...]:
        """Units of each hidden layer of the networks; ValueError if they are not positive integers."""
        widths = (
            self.network_width if isinstance(self.network_width, Sequence) else NETWORK_DEPTH * [self.network_width]
        )
        positive_ints("network_width", [width for width in widths if width is not None])
        return tuple(widths)
