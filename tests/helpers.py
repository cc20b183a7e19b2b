"""Small data, small models and oracles that many tests share."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from torch import nn
from torch.func import functional_call

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    PredictiveDistribution,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.estimators._fitted import fitted, learnt
from skdgp.gp.deep_gp import DeepGP, Marginals
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.propagation import make_propagation
from skdgp.inference.batches import Batch
from skdgp.inference.objectives import OBJECTIVES, Objective, elbo
from skdgp.inference.settings import Settings
from skdgp.tables import Table
from skdgp.tables.encoding import Encoding
from skdgp.tables.targets import Numbers

# What is inside a fitted estimator


def predictor_of(model):
    """What predicts for a fitted estimator."""
    return fitted(model)


def ensemble_of(model):
    """What the training of a fitted estimator has produced."""
    return learnt(model).ensemble


def table_of(model):
    """What a fitted estimator has learnt of its table."""
    return learnt(model).table


def make_table(units, names=None):
    """A table of numbers in some units."""
    return Table(None, Encoding.of_complete(units), units, Numbers(None), names)


# Random numbers


def generator(seed=0, device="cpu"):
    """A source of random numbers that starts at ``seed``."""
    return torch.Generator(device).manual_seed(seed)


def normal(*shape, seed=0):
    """Standard normal numbers of double precision."""
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def make_mixtures(n_components, *shape, seed=0, shift=0.0, scale=1.0):
    """Observations and mixtures with components of different widths, weights among them zero."""
    rng = np.random.default_rng(seed)
    mean = shift + scale * rng.normal(size=(n_components, *shape))
    variance = scale**2 * rng.uniform(0.05, 2.0, size=(n_components, *shape))
    weight = rng.dirichlet(np.ones(n_components))
    if n_components > 2:
        weight[1] = 0.0
        weight /= weight.sum()
    y = shift + 1.5 * scale * rng.normal(size=shape)
    return y, PredictiveDistribution(mean, variance, weight)


# Cheap estimators of every family

#: A budget that shows behaviour, not quality.
TINY = {
    "hidden_dims": (2,),
    "n_inducing": 3,
    "n_samples": 4,
    "n_estimators": 1,
    "max_iter": 3,
    "batch_size": 16,
    "learning_rate": 0.05,
    "base": None,
    "n_neighbors": 0,
    "random_state": 0,
}


class Tiny:
    """Makes cheap estimators of one class.

    Parameters
    ----------
    estimator : type
    own : dict
        Parameters of the budget that only this family has.
    propagations : list of dict
        Parameters that choose how uncertainty travels between layers; the second one samples.
    length_scales : callable
        From the number of outputs to shapes of ``length_scales_`` for two members and three features.
    """

    def __init__(self, estimator, own, propagations, length_scales):
        self.estimator = estimator
        self.own = own
        self.propagations = propagations
        self.sampling = propagations[1]
        self.length_scales = length_scales

    def __call__(self, **parameters):
        known = self.estimator().get_params()
        budget = {name: value for name, value in TINY.items() if name in known} | self.own
        if parameters.get("hidden_dims", (1,)) == () and not parameters.get("latent_dims"):
            budget.pop("n_samples")  # of hidden layers
        return self.estimator(**(budget | parameters))

    def of_chunks(self, **parameters):
        """The same for ``partial_fit`` and for a few rows, where none are held out."""
        return self(**({"early_stopping": False} | parameters))

    def with_budget(self, **parameters):
        """The same with other parameters in its budget."""
        return Tiny(self.estimator, self.own | parameters, self.propagations, self.length_scales)


AVDGP = {
    "own": {"network_width": 8},
    "propagations": [{"rule": "ar1"}, {"rule": "ar2"}, {"rule": "ar2p"}],
    "length_scales": lambda n_outputs: [(2, 2, 1), (2, n_outputs, 1)],
}
DSDGP = {
    "own": {"n_inducing": "auto"},
    "propagations": [{"propagation": "quadrature"}, {"propagation": "monte_carlo"}],
    "length_scales": lambda n_outputs: [(2, 1, 3), (2, 1, 2)],
}

SOLVEGP = {
    "own": {"n_inducing": "auto", "early_stopping": True},
    "propagations": [{}, {}],
    "length_scales": lambda n_outputs: [(2, 1, 3)],
}

DEEP_REGRESSORS = [Tiny(AVDGPRegressor, **AVDGP), Tiny(DSDGPRegressor, **DSDGP)]
DEEP_CLASSIFIERS = [Tiny(AVDGPClassifier, **AVDGP), Tiny(DSDGPClassifier, **DSDGP)]
REGRESSORS = [*DEEP_REGRESSORS, Tiny(SOLVEGPRegressor, **SOLVEGP)]
CLASSIFIERS = [*DEEP_CLASSIFIERS, Tiny(SOLVEGPClassifier, **SOLVEGP)]
FAMILIES = [*REGRESSORS, *CLASSIFIERS]


def name_of(tiny):
    """Name of the estimator that ``tiny`` makes."""
    return tiny.estimator.__name__


every_family = pytest.mark.parametrize("tiny", FAMILIES, ids=name_of)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


#: For tests that combine options whatever these do together. Those without effect are named in a warning.
any_options = pytest.mark.filterwarnings("ignore:.+ has no effect:UserWarning")


def targets(tiny, y):
    """What the family learns: the numbers ``y``, or three classes of them."""
    return y if tiny in REGRESSORS else np.digitize(y, [-0.5, 0.5])


def known(tiny):
    """What the first call of ``partial_fit`` has to be told about ``targets``."""
    return {} if tiny in REGRESSORS else {"classes": [0, 1, 2]}


# A model of one parameter, its data and its training

#: The learning rate of ``settings``.
PEAK = 0.1


class Line(nn.Module):
    """y = slope · x, with fresh noise in training where ``jiggle`` is positive. Lines may be stacked."""

    def __init__(self, slope=0.0, *, noise=0.25, jiggle=0.0):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope, dtype=torch.float64))
        self.likelihood = Gaussian(1, excess=noise, floor=0.0).double()
        self.jiggle = jiggle

    def frozen(self, *, turned=False):
        return self

    def numbers_per_row(self):
        return 1

    def products(self, n_rows, *, mixture=True):
        return n_rows

    def forward(self, X, generator=None, *, targets=None, share=None, mixture=True):
        mean = self.slope[..., None, None, None] * X.unsqueeze(-3)
        if generator is not None:
            sources = [generator] if isinstance(generator, torch.Generator) else generator
            noise = [
                torch.randn(mean.shape[-3:], generator=each, dtype=mean.dtype, device=each.device) for each in sources
            ]
            mean = mean + self.jiggle * torch.stack(noise).reshape(mean.shape)
        return Marginals(mean, torch.zeros_like(mean), mean.new_zeros(1, 1), torch.zeros_like(self.slope))


def mean_of_means(marginals, likelihood, y, row_weight, kl_weight):
    """A value whose gradient is always one where x is."""
    return marginals.mean.mean((-3, -2, -1))


#: The evidence lower bound, for settings.
ELBO = OBJECTIVES["elbo"]

#: An objective with which Adam moves by the learning rate.
climb = Objective(mean_of_means, linear=True)


def own_kernels(method):
    """The method, whose layers have a kernel for each output."""
    method.share_kernel = False
    return method


def make_data(n_rows=8, slope=1.0, noise=0.0, seed=0):
    """Rows of x = 1 and y = slope + noise."""
    X = torch.ones(n_rows, 1, dtype=torch.float64)
    return Batch(X, slope * X + noise * normal(n_rows, 1, seed=seed), torch.ones(n_rows, dtype=torch.float64))


def settings(objective=climb, **changes):
    """Settings of eight epochs without early stopping, with ``changes``."""
    default = Settings(objective, beta=0.1, max_iter=8, batch_size=8, learning_rate=PEAK, n_iter_no_change=100)
    return replace(default, **changes)


# Layers

every_whiten = pytest.mark.parametrize("whiten", [False, True], ids=["plain", "whitened"])
every_covariance = pytest.mark.parametrize("covariance", ["diag", "full"])


def shared_or_own_kernels(n_outputs):
    """Parametrise a test by ``n_kernels``: one for all outputs, and one for each."""
    return pytest.mark.parametrize("n_kernels", [1, n_outputs], ids=["shared kernel", "kernel per output"])


def gradients_agree(module, *inputs, **options):
    """Compare gradients by ``inputs`` that require them, and by learnt parameters, with finite differences."""
    learnt = {name: value for name, value in module.named_parameters() if value.requires_grad}
    values = [value.detach().clone().requires_grad_() for value in learnt.values()]

    def call(*arguments):
        parameters = dict(zip(learnt, arguments[len(inputs) :], strict=True))
        return functional_call(module, parameters, arguments[: len(inputs)])

    return torch.autograd.gradcheck(call, (*inputs, *values), **options)


class ExactRegression:
    """Exact GP regression by scikit-learn, and the bound of our models on the same data."""

    NOISE, VARIANCE, LENGTHSCALE = 0.1, 1.5, 0.9

    def __init__(self, n_rows, propagation):
        self.propagation = propagation
        self.X = torch.linspace(-2.0, 2.0, n_rows, dtype=torch.float64)[:, None] ** 3 / 2
        self.y = self.X.sin() + 0.3 * normal(n_rows, 1, seed=7)
        self.X_test = torch.linspace(-5.0, 5.0, 11, dtype=torch.float64)[:, None]
        self.covariance = ConstantKernel(self.VARIANCE) * Matern(self.LENGTHSCALE, nu=2.5)
        exact = GaussianProcessRegressor(self.covariance, alpha=self.NOISE, optimizer=None)
        exact.fit(self.X.numpy(), self.y[:, 0].numpy())
        self.evidence = exact.log_marginal_likelihood_value_
        self.mean, self.deviation = exact.predict(self.X_test.numpy(), return_std=True)

    @torch.no_grad()
    def make_kernel(self):
        """The same covariance as a kernel of ours."""
        kernel = StationaryKernel("matern52", 1).double()
        kernel.log_lengthscale.fill_(np.log(self.LENGTHSCALE))
        kernel.log_variance.fill_(np.log(self.VARIANCE))
        return kernel

    @torch.no_grad()
    def total_elbo(self, layer):
        """Evidence lower bound on log p(y) of the model of one ``layer``."""
        likelihood = Gaussian(1, excess=self.NOISE, floor=0.0).double()
        likelihood.log_excess.fill_(np.log(self.NOISE))
        model = DeepGP([layer], make_propagation(self.propagation, (), 1, generator()), likelihood).double()
        n_rows = len(self.X)
        return n_rows * elbo(model(self.X), likelihood, self.y, torch.ones(n_rows), kl_weight=1 / n_rows).item()
