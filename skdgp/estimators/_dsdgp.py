"""Deep Gaussian processes with global inducing variables."""

import warnings
from numbers import Integral
from typing import ClassVar

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from ..gp.deep_gp import DeepGP
from ..gp.kernels import PROFILES, StationaryKernel
from ..gp.layers import GlobalLayer
from ..gp.likelihoods import Likelihood
from ..gp.means import ZeroMean, make_mean
from ..inference.propagation import make_propagation
from ._base import BaseDeepGP
from ._regression import DeepGPRegressor
from ._shapes import HIDDEN_DIMS, N_INDUCING, inducing_per_layer, positive_ints

#: Inducing points of the first layer and of every later one.
AUTO_INDUCING = (128, 128)

#: Hidden layers that "auto" stands for, and the width they do not exceed (DS-DGP, Sec. 4).
AUTO_HIDDEN_LAYERS, MAX_AUTO_WIDTH = 2, 30

#: Hidden layers start all but deterministic (DS-DGP, supplement), and with a little white noise.
HIDDEN_SCALE, HIDDEN_NOISE = 1e-5, 1e-5


class BaseDSDGP(BaseDeepGP):
    """Which layers a doubly stochastic deep GP has."""

    _structural_parameters: ClassVar[tuple[str, ...]] = (
        *BaseDeepGP._structural_parameters,
        "hidden_dims",
        "n_inducing",
        "propagation",
        "kernel",
        "ard",
        "share_kernel",
        "mean",
        "covariance",
        "whiten",
        "n_samples",
    )

    _parameter_constraints: ClassVar[dict] = {
        **BaseDeepGP._parameter_constraints,
        "hidden_dims": [*HIDDEN_DIMS, StrOptions({"auto"})],
        "n_inducing": N_INDUCING,
        "propagation": [StrOptions({"monte_carlo", "quadrature"})],
        "kernel": [StrOptions(set(PROFILES))],
        "ard": ["boolean"],
        "share_kernel": ["boolean"],
        "mean": [StrOptions({"zero", "linear", "identity"})],
        "covariance": [StrOptions({"diag", "full"})],
        "whiten": ["boolean"],
        "n_samples": [Interval(Integral, 1, None, closed="left")],
    }

    @property
    def inducing_points_(self):
        """Inducing points of every layer, in units of its inputs, a list of arrays (n_estimators, M, Q)."""
        layers = zip(*(member.layers for member in self.module_), strict=True)
        return [np.stack([layer.Z.cpu().numpy() for layer in members]) for members in layers]

    def _make_model(self, X: Tensor, likelihood: Likelihood, generator: torch.Generator) -> DeepGP:
        hidden_dims = self._hidden_dims(X.shape[1])
        widths = (*hidden_dims, likelihood.n_outputs)
        numbers = inducing_per_layer(self.n_inducing, hidden_dims, AUTO_INDUCING)
        layers: list[GlobalLayer] = []
        inputs = X
        for depth, (n_outputs, n_inducing) in enumerate(zip(widths, numbers, strict=True)):
            Z = self._inducing_points(inputs, n_inducing, generator, warn=depth == 0)
            layers.append(self._make_layer(inputs, Z, n_outputs, generator, hidden=depth < len(hidden_dims)))
            with torch.no_grad():
                inputs = layers[-1](inputs[None], inputs)[0][0]  # as they reach the next layer
        propagation = make_propagation(self.propagation, hidden_dims, self.n_samples, generator)
        return DeepGP(layers, propagation, likelihood)

    def _hidden_dims(self, n_features: int) -> tuple[int, ...]:
        if isinstance(self.hidden_dims, str):
            return AUTO_HIDDEN_LAYERS * (min(MAX_AUTO_WIDTH, n_features),)
        return positive_ints("hidden_dims", self.hidden_dims)

    def _make_layer(
        self, inputs: Tensor, Z: Tensor, n_outputs: int, generator: torch.Generator, *, hidden: bool
    ) -> GlobalLayer:
        n_kernels = 1 if self.share_kernel else n_outputs
        kernel = StationaryKernel(self.kernel, inputs.shape[1], n_kernels, ard=self.ard)
        mean: nn.Module = make_mean(self.mean, inputs, n_outputs) if hidden else ZeroMean(n_outputs)
        v = torch.zeros(n_outputs, len(Z))
        if hidden and self.mean == "zero":
            # The next layer would see a single point, were this one to start at zero: it starts at a
            # function drawn from its prior.
            v.normal_(generator=generator)
        return GlobalLayer(
            kernel,
            mean,
            Z,
            v,
            covariance=self.covariance,
            whiten=self.whiten,
            scale=HIDDEN_SCALE if hidden else 1.0,
            noise=HIDDEN_NOISE if hidden else None,
        )

    def _inducing_points(self, inputs: Tensor, n_inducing: int, generator: torch.Generator, *, warn: bool) -> Tensor:
        """Centres (M, Q) of clusters of the inputs as they reach a layer, or all inputs where they are few."""
        distinct = np.unique(inputs.numpy(), axis=0)
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        if len(distinct) <= n_inducing:
            if warn and len(distinct) < n_inducing and not isinstance(self.n_inducing, str):
                warnings.warn(
                    f"n_inducing={n_inducing} is more than the {len(distinct)} distinct rows of X that inducing points "
                    f"start from: {len(distinct)} are used. Lower n_inducing to avoid this warning.",
                    UserWarning,
                    stacklevel=2,
                )
            return torch.from_numpy(distinct)
        clusters = MiniBatchKMeans(n_inducing, n_init=1, random_state=seed).fit(inputs.numpy())
        return torch.from_numpy(clusters.cluster_centers_.astype(np.float32))


class DSDGPRegressor(DeepGPRegressor, BaseDSDGP):
    """Deep Gaussian process regression with global inducing variables."""

    _structural_parameters: ClassVar[tuple[str, ...]] = (*BaseDSDGP._structural_parameters, "normalize_y")
    _parameter_constraints: ClassVar[dict] = {**BaseDSDGP._parameter_constraints, "normalize_y": ["boolean"]}

    def __init__(
        self,
        hidden_dims="auto",
        n_inducing="auto",
        *,
        propagation="monte_carlo",
        objective="elbo",
        kernel="rbf",
        ard=True,
        share_kernel=True,
        mean="identity",
        covariance="diag",
        whiten=True,
        n_samples=32,
        n_estimators=1,
        beta=1.0,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.01,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=40,
        tol=0.0,
        normalize_X=True,
        normalize_y=True,
        device="auto",
        dtype="auto",
        warm_start=False,
        random_state=None,
        verbose=0,
    ):
        for name, value in list(locals().items()):
            if name not in ("self", "__class__"):
                setattr(self, name, value)
