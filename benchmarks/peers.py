"""Other packages' models: scikit-learn's exact GP and boosted trees; GPyTorch's, built and trained as it documents.

``fit(X, y, seed, budget, device)`` returns a function from rows to means and standard deviations. The budget is a
number of passes or trees, or None for what is usual.
"""

import warnings
from functools import partial

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import nn

from skdgp.methods import SOLVEGP

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # at its import, of parts of torch that will go
    import gpytorch
    from gpytorch.kernels import MaternKernel, ScaleKernel
    from gpytorch.means import LinearMean, ZeroMean
    from gpytorch.mlls import DeepApproximateMLL, DeepPredictiveLogLikelihood, VariationalELBO
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
    from gpytorch.models.deep_gps.dspp import DSPP, DSPPLayer
    from gpytorch.variational import (
        CholeskyVariationalDistribution,
        MeanFieldVariationalDistribution,
        VariationalStrategy,
    )

#: Training rows of the exact GP, inducing points of GPyTorch's SVGP, and rows that both predict at a time. They hold a
#: number for each such row and each training row or inducing point, so a million rows at once would take gigabytes.
GPR_ROWS, SVGP_POINTS, CHUNK = 2000, 512, 4096

TREES = 100  # scikit-learn's default


def matern(n_inputs, batch=()):
    """A Matérn-5/2 kernel with a lengthscale per input; every output has a kernel of its own."""
    batch = torch.Size(batch)
    return ScaleKernel(MaternKernel(2.5, ard_num_dims=n_inputs, batch_shape=batch), batch_shape=batch)


def make_layer(base, n_inputs, n_outputs, n_inducing, distribution, **options):
    """A layer, each of whose outputs has a kernel, inducing points and a posterior; None outputs for the last layer."""

    class Layer(base):
        def __init__(self):
            batch = torch.Size([n_outputs]) if n_outputs else torch.Size()
            points = torch.randn(*batch, n_inducing, n_inputs)
            q = distribution(n_inducing, batch_shape=batch)
            super().__init__(
                VariationalStrategy(self, points, q, learn_inducing_locations=True), n_inputs, n_outputs, **options
            )
            self.mean_module = LinearMean(n_inputs, batch_shape=batch) if n_outputs else ZeroMean()
            self.covar_module = matern(n_inputs, batch)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Layer()


def make_chain(base, layers, *arguments):
    """A deep model of the layers."""

    class Model(base):
        def __init__(self):
            super().__init__(*arguments)
            self.parts = nn.ModuleList(layers)
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x):
            for part in self.parts:
                x = part(x)
            return x

    return Model()


def deep_gp(n_rows, widths, n_inducing):
    """The doubly stochastic deep GP, and its objective for ``n_rows``; widths from the inputs on."""
    sizes = zip(widths, (*widths[1:], None), n_inducing, strict=True)
    model = make_chain(DeepGP, [make_layer(DeepGPLayer, *size, CholeskyVariationalDistribution) for size in sizes])
    return model, DeepApproximateMLL(VariationalELBO(model.likelihood, model, n_rows))


def dspp(n_rows, widths, n_inducing, n_points):
    """The same of the deep sigma point process with ``n_points`` quadrature points."""
    sizes = zip(widths, (*widths[1:], None), n_inducing, strict=True)
    options = {"num_quad_sites": n_points}
    layers = [make_layer(DSPPLayer, *size, MeanFieldVariationalDistribution, **options) for size in sizes]
    model = make_chain(DSPP, layers, n_points)
    return model, DeepPredictiveLogLikelihood(model.likelihood, model, n_rows)


def svgp(X, n_inducing):
    """The same of the sparse variational GP, whose inducing points start at the first rows of ``X``."""

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self):
            points = torch.from_numpy(X[:n_inducing]).clone()
            q = CholeskyVariationalDistribution(len(points))
            super().__init__(VariationalStrategy(self, points, q, learn_inducing_locations=True))
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.mean_module, self.covar_module = ZeroMean(), matern(X.shape[1])

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = SVGP()
    return model, VariationalELBO(model.likelihood, model, len(X))


def make_pass(model, objective, rows, n_steps, device):
    """A function that goes once over ``rows``, a pair (X, y), in ``n_steps`` steps of fused Adam like ours."""
    objective.to(device)  # which holds the model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    chunks = [torch.from_numpy(column).to(device).chunk(n_steps) for column in rows]
    batches = list(zip(*chunks, strict=True))

    def run():
        with gpytorch.settings.num_likelihood_samples(1):
            for X, y in batches:
                optimizer.zero_grad()
                loss = -objective(model(X), y)
                loss.item()  # ours looks at it, too
                loss.backward()
                optimizer.step()

    return run


@torch.no_grad()
def predict_svgp(model, X, device):
    """Means and standard deviations of observations."""
    dist = model.likelihood(model(torch.from_numpy(X).to(device)))
    return dist.mean.cpu().numpy(), dist.stddev.cpu().numpy()


def fit_gpr(X, y, seed, budget, device):
    """Exact GP of the first rows; its kernel stays as it is where there is a budget."""
    model = gpr(X, y, seed, optimizer="fmin_l_bfgs_b" if budget is None else None)
    return in_chunks(partial(model.predict, return_std=True))


def gpr(X, y, seed=0, *, optimizer):
    """The exact GP itself."""
    kernel = ConstantKernel() * RBF(np.full(X.shape[1], 2.0), (1e-2, 1e6)) + WhiteKernel(0.1, (1e-6, 1e2))
    model = GaussianProcessRegressor(kernel, optimizer=optimizer, normalize_y=True, random_state=seed)
    return model.fit(X[:GPR_ROWS].astype(np.float64), y[:GPR_ROWS].astype(np.float64))


def fit_hgb(X, y, seed, budget, device):
    """Boosted trees with a Gaussian around them, whose variance is that of a tenth of the rows, held out."""
    n_train = len(X) - len(X) // 10
    model = HistGradientBoostingRegressor(max_iter=budget or TREES, random_state=seed).fit(X[:n_train], y[:n_train])
    std = np.sqrt(np.mean((y[n_train:] - model.predict(X[n_train:])) ** 2))
    return lambda X: (model.predict(X), np.full(len(X), std))


def fit_svgp(X, y, seed, budget, device):
    """GPyTorch's SVGP, with as many steps of as many rows as our sparse GP by plain minibatches."""
    torch.manual_seed(seed)
    settings = SOLVEGP().plan(len(X)).settings
    model, objective = svgp(X, SVGP_POINTS)
    run = make_pass(model, objective, (X, y), -(-len(X) // settings.batch_size), device)
    for _ in range(budget or settings.max_iter):
        run()
    return in_chunks(partial(predict_svgp, model.eval(), device=device))


def in_chunks(predict):
    """The same, ``CHUNK`` rows at a time."""

    def chunked(X):
        parts = [predict(X[start : start + CHUNK]) for start in range(0, len(X), CHUNK)]
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    return chunked
