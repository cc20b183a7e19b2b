"""Layers with global inducing variables: against dense algebra, GPyTorch and the limits they must reach."""

from copy import deepcopy

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean as GPyTorchZeroMean
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    MeanFieldVariationalDistribution,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)
from helpers import (
    ExactRegression,
    every_covariance,
    every_whiten,
    generator,
    gradients_agree,
    normal,
    shared_or_own_kernels,
)

from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.linalg import JITTER
from skdgp.gp.means import LinearMean, ZeroMean, make_mean
from skdgp.gp.propagation import Quadrature, anchor_at_sample, make_propagation
from skdgp.gp.waves import Streams
from skdgp.inference.objectives import elbo, predictive

N_INPUTS, N_OUTPUTS, N_INDUCING, N_ROWS, N_SAMPLES = 3, 2, 5, 4, 3

every_sharing = shared_or_own_kernels(N_OUTPUTS)


@torch.no_grad()
def make_layer(covariance="full", *, whiten=True, n_kernels=N_OUTPUTS, linear=True, profile="rbf", noise=0.1):
    """A layer whose parameters all differ from their neighbours and from their initial values."""
    kernel = StationaryKernel(profile, N_INPUTS, n_kernels, ard=True).double()
    mean = LinearMean(normal(N_INPUTS, N_OUTPUTS, seed=8), learnable=True) if linear else ZeroMean(N_OUTPUTS)
    Z, v = normal(N_INDUCING, N_INPUTS, seed=9), normal(N_OUTPUTS, N_INDUCING, seed=10)
    layer = GlobalLayer(kernel, mean, Z, v, covariance=covariance, whiten=whiten, white_noise=noise).double()
    for seed, parameter in enumerate(layer.parameters()):
        parameter.add_(0.2 * normal(*parameter.shape, seed=seed))
    return layer


def dense_marginals(layer, x):
    """Mean (N, D), variance (N, D) and KL by NumPy, one output after the other, from the textbook."""
    Z, points = (part.detach().numpy() for part in (layer.Z, x.flatten(0, 1)))
    m_Z, m_x = (layer.mean(torch.from_numpy(part)).detach().numpy() for part in (Z, points))
    means, variances, kl = [], [], 0.0
    for d in range(N_OUTPUTS):
        k = lambda a, b, d=d: dense_kernel(layer.kernel, a, b, min(d, len(layer.kernel.log_variance) - 1))  # noqa: E731
        variance = k(Z[:1], Z[:1])[0, 0]
        K = k(Z, Z) + JITTER * variance * np.eye(len(Z))
        mu, root = layer.q.mean[d].detach().numpy(), layer.q.root[d].detach().numpy()
        S = np.diag(root**2) if root.ndim == 1 else root @ root.T
        if layer.whiten:
            L = np.linalg.cholesky(K)
            mu, S = m_Z[:, d] + L @ mu, L @ S @ L.T
        gain = np.linalg.solve(K, k(Z, points))  # (M, N)
        means.append(m_x[:, d] + gain.T @ (mu - m_Z[:, d]))
        noise = layer.log_white_noise[d].exp().item()
        variances.append(variance - (gain * k(Z, points)).sum(0) + (gain * (S @ gain)).sum(0) + noise)
        off = mu - m_Z[:, d]
        log_det = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
        kl += 0.5 * (np.trace(np.linalg.solve(K, S)) + off @ np.linalg.solve(K, off) - len(Z) + log_det)
    return np.stack(means, 1), np.stack(variances, 1), kl


def dense_kernel(kernel, a, b, d):
    scaled = (a[:, None] - b) / kernel.lengthscale[d].detach().numpy()
    return kernel.variance[d].item() * np.exp(-0.5 * (scaled**2).sum(-1))


@every_whiten
@every_covariance
@every_sharing
@torch.no_grad()
def test_agrees_with_dense_algebra(whiten, covariance, n_kernels):
    layer = make_layer(covariance, whiten=whiten, n_kernels=n_kernels)
    x = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5)
    mean, variance, kl = layer(x, x)
    expected_mean, expected_variance, expected_kl = dense_marginals(layer, x)
    shape = (N_SAMPLES, N_ROWS, N_OUTPUTS)
    np.testing.assert_allclose(mean.numpy(), expected_mean.reshape(shape), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(variance.numpy(), expected_variance.reshape(shape), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(kl.item(), expected_kl, rtol=1e-9)


@every_whiten
@every_covariance
@every_sharing
def test_gradients(whiten, covariance, n_kernels):
    layer = make_layer(covariance, whiten=whiten, n_kernels=n_kernels, profile="matern52")
    x = normal(2, 2, N_INPUTS, seed=5).requires_grad_()
    assert gradients_agree(layer, x, x)


class OneLayer(gpytorch.models.ApproximateGP):
    """GPyTorch's sparse GP with one batch dimension, the outputs."""

    def __init__(self, layer, covariance):
        n_outputs, n_inducing = layer.q.mean.shape
        batch = torch.Size([n_outputs])
        distribution = {"diag": MeanFieldVariationalDistribution, "full": CholeskyVariationalDistribution}[covariance]
        strategy = VariationalStrategy if layer.whiten else UnwhitenedVariationalStrategy
        q = distribution(n_inducing, batch_shape=batch)
        points = layer.Z.detach().expand(n_outputs, -1, -1).clone()
        super().__init__(strategy(self, points, q, learn_inducing_locations=True))
        self.mean_module = GPyTorchZeroMean(batch_shape=batch)
        self.covar_module = ScaleKernel(RBFKernel(ard_num_dims=N_INPUTS, batch_shape=batch), batch_shape=batch)
        self.double()
        self.variational_strategy.variational_params_initialized.fill_(1)
        with torch.no_grad():
            self.covar_module.base_kernel.lengthscale = layer.kernel.lengthscale[:, None].expand(n_outputs, 1, -1)
            self.covar_module.outputscale = layer.kernel.variance.expand(n_outputs)
            q.variational_mean.copy_(layer.q.mean)
            root = q._variational_stddev if covariance == "diag" else q.chol_variational_covar
            root.copy_(layer.q.root)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


@every_whiten
@every_covariance
@every_sharing
@pytest.mark.filterwarnings("ignore::gpytorch.utils.warnings.GPInputWarning")
@torch.no_grad()
def test_agrees_with_gpytorch(whiten, covariance, n_kernels):
    layer = make_layer(covariance, whiten=whiten, n_kernels=n_kernels, linear=False)
    layer.log_white_noise.fill_(-1e3)
    layer.jitter = 1e-12
    x = normal(1, 20, N_INPUTS, seed=5)
    mean, variance, kl = layer(x, x)
    with gpytorch.settings.variational_cholesky_jitter(double_value=1e-12), gpytorch.settings.cholesky_jitter(1e-12):
        theirs = OneLayer(layer, covariance).eval()
        q = theirs(x.expand(N_OUTPUTS, -1, -1))
    strategy = theirs.variational_strategy
    # Its own divergence without whitening is from a prior with 1e-3 on the diagonal.
    prior = strategy.prior_distribution if whiten else theirs.forward(strategy.inducing_points)
    their_kl = torch.distributions.kl_divergence(strategy.variational_distribution, prior).sum()
    torch.testing.assert_close(mean[0].mT, q.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(variance[0].mT, q.variance, rtol=0, atol=1e-8)
    torch.testing.assert_close(kl, their_kl, rtol=1e-8, atol=0)


class SparseRegression(ExactRegression):
    """Exact regression, and the optimal q(u) at any inducing points."""

    JITTER = 1e-12

    def __init__(self):
        super().__init__(12, "monte_carlo")

    @torch.no_grad()
    def optimal_layer(self, Z, whiten):
        """A layer with inducing points ``Z``, at the posterior that is best for them (Titsias, 2009)."""
        v = torch.zeros(1, len(Z), dtype=Z.dtype)
        options = {"covariance": "full", "whiten": whiten, "jitter": self.JITTER}
        layer = GlobalLayer(self.make_kernel(), ZeroMean(1), Z, v, **options).double()
        Kzz = self.covariance(Z.numpy()) + self.JITTER * self.VARIANCE * np.eye(len(Z))
        L = np.linalg.cholesky(Kzz)
        A = np.linalg.solve(L, self.covariance(Z.numpy(), self.X.numpy()))  # whitened
        S = np.linalg.inv(np.eye(len(Z)) + A @ A.T / self.NOISE)
        mu, root = S @ A @ self.y[:, 0].numpy() / self.NOISE, np.linalg.cholesky(S)
        if not whiten:
            mu, root = L @ mu, L @ root
        layer.q.set(torch.from_numpy(mu)[None], torch.from_numpy(root)[None])
        return layer


@every_whiten
@torch.no_grad()
def test_with_all_inputs_as_inducing_points_it_is_exact_regression(whiten):
    exact = SparseRegression()
    layer = exact.optimal_layer(exact.X, whiten)
    mean, variance, _ = layer(exact.X_test[None], exact.X_test)
    np.testing.assert_allclose(mean[0, :, 0], exact.mean, atol=1e-6)
    np.testing.assert_allclose(variance[0, :, 0].sqrt(), exact.deviation, atol=1e-6)
    assert exact.total_elbo(layer) == pytest.approx(exact.evidence, abs=1e-6)


@every_whiten
@torch.no_grad()
def test_the_bound_rises_with_inducing_points_to_the_evidence(whiten):
    exact = SparseRegression()
    order = torch.randperm(len(exact.X), generator=generator())
    bounds = [exact.total_elbo(exact.optimal_layer(exact.X[order[:m]], whiten)) for m in range(1, len(exact.X))]
    assert (np.diff(bounds) > 0).all()
    assert exact.evidence - 1e-3 < bounds[-1] < exact.evidence


@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_no_other_posterior_reaches_the_bound_of_the_optimal_one(seed):
    exact = SparseRegression()
    Z = exact.X[::2]
    layer = exact.optimal_layer(Z, whiten=True)
    best = exact.total_elbo(layer)
    layer.q.mean.add_(0.1 * normal(1, len(Z), seed=seed))
    moved = exact.total_elbo(layer)
    layer = exact.optimal_layer(Z, whiten=True)
    layer.q.set(layer.q.mean, layer.q.root * (0.1 * normal(1, len(Z), 1, seed=seed)).exp())
    assert moved < best - 1e-4
    assert exact.total_elbo(layer) < best - 1e-4


@every_covariance
@every_whiten
@pytest.mark.parametrize("sharing", ["covariance", "one output", "own kernels"])
@torch.no_grad()
def test_a_frozen_layer_is_the_same_in_other_coordinates(covariance, whiten, sharing):
    n_outputs, n_kernels = 1 if sharing == "one output" else N_OUTPUTS, N_OUTPUTS if sharing == "own kernels" else 1
    kernel = StationaryKernel("matern52", N_INPUTS, n_kernels).double()
    Z, v = normal(N_INDUCING, N_INPUTS, seed=9), normal(n_outputs, N_INDUCING, seed=10)
    options = {"covariance": covariance, "whiten": whiten, "share_covariance": sharing == "covariance"}
    layer = GlobalLayer(kernel, ZeroMean(n_outputs), Z, v, initial_deviation=0.5, **options).double()
    if covariance == "full":
        layer.q.below.copy_(0.3 * normal(*layer.q.below.shape, seed=11).tril(-1))
    x, weight = normal(2, 6, N_INPUTS, seed=12), torch.tensor([0.4, 0.6]).double()
    frozen, converted = layer.frozen(turned=True), deepcopy(layer).frozen(turned=True).float()
    assert layer.frozen()._turned is None
    for found, expected in zip(frozen.whitened(x[0]), layer.whitened(x[0]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)  # in coordinates of the posteriors
    for found, expected in zip(frozen.frozen()(x, x), layer(x, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    assert (frozen._turned is not None) == (whiten and covariance == "full")
    for found, expected in zip(frozen(x, x), layer(x, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    for found, expected in zip(converted(x.float(), x.float()), layer(x, x), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(frozen.covariance(x, x, weight), layer.covariance(x, x, weight), rtol=1e-8, atol=1e-10)
    slopes = frozen.gradient_variance(x[0]), layer.gradient_variance(x[0])
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-10)


@torch.no_grad()
def make_model(propagation, *, hidden_scale, n_hidden=2):
    """A model of layers of equal widths, hidden ones with identity means."""
    layers = []
    for depth in range(n_hidden + 1):
        hidden = depth < n_hidden
        n_outputs = N_INPUTS if hidden else 1
        kernel = StationaryKernel("rbf", N_INPUTS).double()
        mean = make_mean("identity", normal(9, N_INPUTS), n_outputs) if hidden else ZeroMean(n_outputs)
        Z, v = normal(N_INDUCING, N_INPUTS, seed=depth), normal(n_outputs, N_INDUCING, seed=depth + 5)
        options = {"initial_deviation": hidden_scale, "white_noise": hidden_scale} if hidden else {}
        layer = GlobalLayer(
            kernel, mean, Z, v * hidden_scale if hidden else v, covariance="full", whiten=True, **options
        )
        if hidden:
            kernel.log_variance.fill_(np.log(hidden_scale))
        layers.append(layer.double())
    return DeepGP(layers, propagation, Gaussian(1)).double()


@pytest.mark.parametrize("rule", ["monte_carlo", "quadrature"])
@torch.no_grad()
def test_without_variance_in_hidden_layers_only_the_last_is_left(rule):
    propagation = make_propagation(rule, (N_INPUTS, N_INPUTS), N_SAMPLES, generator())
    model = make_model(propagation, hidden_scale=1e-18)
    x = normal(N_ROWS, N_INPUTS, seed=5)
    marginals = model(x)
    mean, variance, _ = model.layers[-1](x[None], x)
    torch.testing.assert_close(marginals.mean, mean.expand(N_SAMPLES, -1, -1), rtol=0, atol=1e-7)
    torch.testing.assert_close(marginals.variance, variance.expand(N_SAMPLES, -1, -1), rtol=0, atol=1e-7)


@torch.no_grad()
def test_quadrature_with_the_points_of_monte_carlo_is_monte_carlo():
    hidden_dims = (N_INPUTS, N_INPUTS)
    sampled = make_model(make_propagation("monte_carlo", hidden_dims, N_SAMPLES, generator(1)), hidden_scale=0.5)
    points = Quadrature(hidden_dims, N_SAMPLES, anchor_at_sample, generator(2)).double()
    for point, noise in zip(points.points, sampled.propagation.points, strict=True):
        point.copy_(noise)
    x, y, weight = normal(N_ROWS, N_INPUTS, seed=5), normal(N_ROWS, 1, seed=6), torch.ones(N_ROWS)
    values = []
    for propagation in (sampled.propagation, points):
        sampled.propagation = propagation
        marginals = sampled(x)
        values.append([objective(marginals, sampled.likelihood, y, weight, 0.1) for objective in (elbo, predictive)])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-12)
    assert values[0][0] < values[0][1]  # Jensen


@torch.no_grad()
def test_samples_have_the_moments_of_the_layer():
    """Fresh noise makes a hidden layer's samples: their mean and variance are the layer's marginals."""
    model = make_model(make_propagation("monte_carlo", (N_INPUTS,), 20_000, generator()), hidden_scale=0.5, n_hidden=1)
    x, seen = normal(N_ROWS, N_INPUTS, seed=5), []
    model.layers[1].register_forward_pre_hook(lambda layer, arguments: seen.append(arguments[0]))
    model(x, generator(3))
    mean, variance, _ = model.layers[0](x[None], x)
    standard_error = (variance[0] / len(seen[0])).sqrt()
    assert ((seen[0].mean(0) - mean[0]).abs() < 4.5 * standard_error).all()
    torch.testing.assert_close(seen[0].var(0), variance[0], rtol=0.06, atol=0)


@every_whiten
@every_covariance
@torch.no_grad()
def test_a_row_depends_on_that_row_alone(whiten, covariance):
    layer = make_layer(covariance, whiten=whiten)
    x = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5)
    mean, variance, _ = layer(x, x)
    x[:, 1:] += 1.0
    new_mean, new_variance, _ = layer(x, x)
    torch.testing.assert_close(new_mean[:, 0], mean[:, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(new_variance[:, 0], variance[:, 0], rtol=1e-12, atol=1e-12)
    assert not torch.isclose(new_mean[:, 1:], mean[:, 1:]).any()


@every_whiten
@every_covariance
@torch.no_grad()
def test_starts_at_a_scaled_prior(whiten, covariance):
    Z, v, x = normal(N_INDUCING, N_INPUTS), torch.zeros(N_OUTPUTS, N_INDUCING), 9.0 * normal(1, 50, N_INPUTS, seed=1)
    kernel = StationaryKernel("rbf", N_INPUTS, lengthscale=0.3, variance=2.0).double()
    mean = make_mean("identity", x[0], N_OUTPUTS)
    options = {"covariance": covariance, "whiten": whiten}
    layer = GlobalLayer(kernel, mean, Z, v.double(), **options).double()
    f_mean, variance, kl = layer(x, x)
    torch.testing.assert_close(f_mean, mean(x), rtol=0, atol=1e-6)
    if covariance == "full" or whiten:
        torch.testing.assert_close(variance, torch.full_like(variance, 2.0), rtol=1e-4, atol=0)
        assert kl < 1e-4
    small = GlobalLayer(kernel, mean, Z, v.double(), initial_deviation=1e-3, **options).double()
    assert (small(Z[None], Z)[1] < 1e-4).all()


@pytest.mark.parametrize(("covariance", "n_kernels", "factor"), [("diag", 1, 1), ("full", 1, 2), ("diag", 2, 2)])
def test_the_largest_tensor_is_announced(covariance, n_kernels, factor):
    layer = make_layer(covariance, n_kernels=n_kernels)
    assert layer.numbers_per_row(7) == 7 * N_INDUCING * factor


@torch.no_grad()
def test_single_precision_is_close_where_inducing_points_crowd():
    """The Cholesky factor is of float64, so that float32 costs products their precision and no more."""
    layer = make_layer()
    crowded = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None].expand(-1, N_INPUTS)
    v = 0.3 * normal(N_OUTPUTS, 60)
    layer = GlobalLayer(
        layer.kernel, layer.mean, crowded, v, covariance="full", whiten=True, initial_deviation=0.1
    ).double()
    x = crowded[None, ::7] + 0.01
    expected = layer(x, x)
    single = layer.float()(x.float(), x.float())
    for value, truth in zip(single, expected, strict=True):
        torch.testing.assert_close(value.double(), truth, rtol=2e-3, atol=2e-3)


@every_whiten
@torch.no_grad()
def test_outputs_that_share_a_covariance_are_as_if_each_had_it(whiten):
    kernel = StationaryKernel("rbf", N_INPUTS, ard=True).double()
    Z, v = normal(N_INDUCING, N_INPUTS, seed=9), normal(N_OUTPUTS, N_INDUCING, seed=10)
    root = normal(1, N_INDUCING, N_INDUCING, seed=11).tril(-1) + 0.5 * torch.eye(N_INDUCING).double()
    layers = []
    for share in (True, False):
        options = {"covariance": "full", "whiten": whiten, "share_covariance": share}
        layers.append(GlobalLayer(kernel, ZeroMean(N_OUTPUTS), Z, v, **options).double())
        layers[-1].q.set(v, root)
    x = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=12)
    shared, own = (layer(x, x[0]) for layer in layers)
    torch.testing.assert_close(shared, own)
    weight = torch.full((N_SAMPLES,), 1 / N_SAMPLES, dtype=torch.float64)
    torch.testing.assert_close(*(layer.covariance(x, x[0], weight) for layer in layers))
    torch.testing.assert_close(*(layer.gradient_variance(x[0]) for layer in layers))
    torch.testing.assert_close(*(layer.draw(Streams(range(4)))(x[:1], x[0]) for layer in layers))
    assert len(layers[0].q.below) == 1 < len(layers[1].q.below)
