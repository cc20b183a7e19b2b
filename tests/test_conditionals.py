"""Sparse conditionals and KL divergences against dense NumPy, torch.distributions and GPyTorch."""

import warnings

import numpy as np
import pytest
import torch
from helpers import every_covariance, every_whiten, normal
from torch.distributions import MultivariateNormal
from torch.distributions import kl_divergence as torch_kl_divergence

from skdgp.gp.conditionals import (
    VARIANCE_FLOOR,
    conditional,
    contribution,
    covariance_factors,
    kl_divergence,
    with_variances,
)
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.linalg import cholesky, inverse_cholesky

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"`torch\.jit\.script` is deprecated", DeprecationWarning)
    import gpytorch
    from gpytorch.variational import CholeskyVariationalDistribution as FullCovariance
    from gpytorch.variational import UnwhitenedVariationalStrategy, VariationalStrategy

N_OUTPUTS, N_INDUCING, N_POINTS = 2, 5, 4
JITTER = 1e-8


@torch.no_grad()
def make_prior():
    """Inducing points, test points, a kernel and its covariances, one per output."""
    kernel = StationaryKernel("matern52", 2, N_OUTPUTS).double()
    kernel.log_variance.copy_(torch.tensor([0.5, -0.7]))
    kernel.log_lengthscale.copy_(torch.tensor([[-0.3], [0.2]]))
    Z, X = normal(N_INDUCING, 2, seed=1), normal(N_POINTS, 2, seed=2)
    return kernel, Z, X, (kernel(Z, Z), kernel(Z, X), kernel(X, X))


def make_posterior(covariance):
    """Mean, root of the covariance, and that root as a matrix."""
    mean = normal(N_OUTPUTS, N_INDUCING, seed=3)
    root = 0.5 * normal(N_OUTPUTS, N_INDUCING, N_INDUCING, seed=4).tril(-1)
    diagonal = 0.3 + normal(N_OUTPUTS, N_INDUCING, seed=5).abs()
    if covariance == "diag":
        return mean, diagonal, torch.diag_embed(diagonal)
    root = root + torch.diag_embed(diagonal)
    return mean, root, root


def dense_marginal(Kzz, Kzx, Kxx, mean, root, whiten):
    """Mean and covariance of f from the joint Gaussian of f and u, one output at a time."""
    Kzz, Kzx, Kxx, mean, root = (part.numpy() for part in (Kzz, Kzx, Kxx, mean, root))
    if whiten:
        L = np.linalg.cholesky(Kzz)
        mean, root = L @ mean, L @ root
    G = Kzx.T @ np.linalg.inv(Kzz)  # E[f | u] = G u
    return G @ mean, Kxx - G @ Kzx + G @ root @ root.T @ G.T


def joint_covariance(W, Kzx, Kxx, mean, root, whiten):
    """Covariance of f at all points, from the factors of its change."""
    factors = covariance_factors(None if whiten else W, W @ Kzx, mean, root)
    return Kxx + sum(left.mT @ right for left, right in factors)


@every_whiten
@every_covariance
def test_conditionals_equal_dense_numpy(whiten, covariance):
    *_, (Kzz, Kzx, Kxx) = make_prior()
    mean, scale, root = make_posterior(covariance)
    W = inverse_cholesky(Kzz, jitter=0.0)
    kxx = Kxx.diagonal(dim1=-2, dim2=-1)
    f_mean, f_variance = conditional(W, Kzx, mean, scale, kxx=kxx, whiten=whiten)
    f_covariance = joint_covariance(W, Kzx, Kxx, mean, scale, whiten)
    for d in range(N_OUTPUTS):
        expected_mean, expected_covariance = dense_marginal(Kzz[d], Kzx[d], Kxx[d], mean[d], root[d], whiten)
        np.testing.assert_allclose(f_mean[d], expected_mean, rtol=1e-9)
        np.testing.assert_allclose(f_variance[d], np.diag(expected_covariance), rtol=1e-9)
        np.testing.assert_allclose(f_covariance[d], expected_covariance, rtol=1e-9, atol=1e-11)


@every_whiten
@every_covariance
def test_kl_divergence_equals_torch_distributions(whiten, covariance):
    *_, (Kzz, _, _) = make_prior()
    mean, scale, root = make_posterior(covariance)
    prior = torch.eye(N_INDUCING, dtype=torch.float64).expand_as(Kzz) if whiten else Kzz
    expected = torch_kl_divergence(
        MultivariateNormal(mean, scale_tril=root), MultivariateNormal(torch.zeros_like(mean), prior)
    )
    W = None if whiten else inverse_cholesky(Kzz, jitter=0.0)
    torch.testing.assert_close(kl_divergence(mean, scale, W), expected, rtol=1e-9, atol=0)


@every_covariance
@every_whiten
@pytest.mark.parametrize("members", [(), (2,)], ids=["one model", "stack"])
def test_outputs_may_share_whitened_covariances(members, whiten, covariance):
    W, A = (
        torch.eye(N_INDUCING) + normal(*members, N_INDUCING, N_INDUCING, seed=1).tril(-1),
        normal(*members, N_INDUCING, N_POINTS),
    )
    mean, root, _ = make_posterior(covariance)
    mean, root = mean.expand(*members, *mean.shape), root.expand(*members, *root.shape)
    repeated_W, repeated_A = (matrix.unsqueeze(-3).expand(*members, N_OUTPUTS, -1, -1) for matrix in (W, A))
    changes = contribution(None if whiten else W, A, mean, root)
    repeated = contribution(None if whiten else repeated_W, repeated_A, mean, root)
    for ours, expected in zip(changes, repeated, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    if not whiten:
        shared, own = (kl_divergence(mean, root, factor) for factor in (W, W.unsqueeze(-3)))
        torch.testing.assert_close(shared, own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (N_OUTPUTS,)], ids=["shared", "own"])
def test_gradients_of_diagonal_contributions(shape):
    mean, root, _ = make_posterior("diag")
    inputs = [each.clone().requires_grad_() for each in (normal(*shape, N_INDUCING, N_POINTS), mean, root)]
    assert torch.autograd.gradcheck(lambda A, *q: contribution(None, A, *q), inputs)


@every_covariance
def test_plain_and_whitened_describe_the_same_posterior(covariance):
    *_, (Kzz, Kzx, Kxx) = make_prior()
    mean, scale, root = make_posterior(covariance)
    L, W = cholesky(Kzz), inverse_cholesky(Kzz)
    plain_mean, plain_scale = (L @ mean[..., None])[..., 0], L @ root  # u = L v
    kxx = Kxx.diagonal(dim1=-2, dim2=-1)
    whitened = *conditional(W, Kzx, mean, scale, kxx=kxx, whiten=True), joint_covariance(W, Kzx, Kxx, mean, scale, True)
    plain = (
        *conditional(W, Kzx, plain_mean, plain_scale, kxx=kxx, whiten=False),
        joint_covariance(W, Kzx, Kxx, plain_mean, plain_scale, False),
    )
    torch.testing.assert_close(plain, whitened, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(kl_divergence(plain_mean, plain_scale, W), kl_divergence(mean, scale), rtol=1e-9, atol=0)


def test_the_posterior_is_the_prior_where_q_is():
    *_, (Kzz, Kzx, Kxx) = make_prior()
    W = inverse_cholesky(Kzz)
    mean, scale = Kzz.new_zeros(N_OUTPUTS, N_INDUCING), Kzz.new_ones(N_OUTPUTS, N_INDUCING)
    kxx = Kxx.diagonal(dim1=-2, dim2=-1)
    f_mean, f_variance = conditional(W, Kzx, mean, scale, kxx=kxx, whiten=True)
    torch.testing.assert_close(f_mean, torch.zeros_like(f_mean))
    torch.testing.assert_close(f_variance, kxx)
    torch.testing.assert_close(joint_covariance(W, Kzx, Kxx, mean, scale, True), Kxx)
    assert covariance_factors(None, W @ Kzx, mean, None) == []  # nothing is added where q is the prior
    torch.testing.assert_close(kl_divergence(mean, scale), Kzz.new_zeros(N_OUTPUTS))


def test_variances_of_well_known_rows_are_kept():
    covariance = torch.tensor([[1.0, 1e-7], [1e-7, 1e-10]], dtype=torch.float64)
    variance = torch.tensor([4.0, 3e-10], dtype=torch.float64)
    found = with_variances(covariance, variance)
    torch.testing.assert_close(found.diagonal(), variance)
    assert torch.linalg.eigvalsh(found).min() > 0


def test_variances_are_set_row_by_row():
    """A row of large variance does not change others. Where rounding has eaten a variance, little is multiplied."""
    small = torch.tensor([[2e-10, 1e-10], [1e-10, 3e-10]], dtype=torch.float64)
    wanted = torch.tensor([3e-10, 2e-10], dtype=torch.float64)
    beside = torch.block_diag(small, torch.tensor([[1e12]], dtype=torch.float64))
    found = with_variances(beside, torch.cat([wanted, wanted.new_tensor([2e12])]))
    torch.testing.assert_close(found[:2, :2], with_variances(small, wanted), rtol=1e-12, atol=0)
    torch.testing.assert_close(found[0, 1], 1e-10 * (wanted.prod() / 6e-20).sqrt(), rtol=1e-12, atol=0)
    lost = torch.tensor([[-1e-17, 1e-17], [1e-17, 1e-18]], dtype=torch.float64)
    found = with_variances(lost, wanted.new_tensor([1e-13, 2e-13]))
    expected = torch.tensor([[1e-13, 4e-17], [4e-17, 2e-13]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_what_is_a_row_s_own_changes_no_covariance():
    covariance = torch.tensor([[4.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    found = with_variances(covariance, covariance.new_tensor([1.0, 2.0]), most=1.0)
    torch.testing.assert_close(found, covariance.new_tensor([[1.0, 0.5], [0.5, 2.0]]))
    zero = with_variances(torch.zeros(1, 1), torch.zeros(1))
    assert zero == 0.0


@every_whiten
def test_rounding_cannot_make_a_variance_negative(whiten):
    _, _, _, (Kzz, _, _) = make_prior()
    mean, kxx = Kzz.new_zeros(N_OUTPUTS, N_INDUCING), Kzz.diagonal(dim1=-2, dim2=-1)
    W = inverse_cholesky(Kzz, jitter=0.0)
    _, variance = conditional(W, Kzz, mean, torch.zeros_like(mean), kxx=kxx, whiten=whiten)
    torch.testing.assert_close(variance, VARIANCE_FLOOR * kxx, rtol=1e-12, atol=0)


class GPyTorchModel(gpytorch.models.ApproximateGP):
    """One output of the same prior and posterior."""

    def __init__(self, kernel, output, Z, mean, root, strategy):
        distribution = FullCovariance(len(Z))
        super().__init__(strategy(self, Z, distribution, learn_inducing_locations=False, jitter_val=JITTER))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))
        self.double()
        self.covar_module.outputscale = kernel.variance[output]
        self.covar_module.base_kernel.lengthscale = kernel.lengthscale[output]
        self.variational_strategy.variational_params_initialized.fill_(1)
        with torch.no_grad():
            distribution.variational_mean.copy_(mean)
            distribution.chol_variational_covar.copy_(root)

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


@pytest.mark.parametrize("output", range(N_OUTPUTS))
@pytest.mark.parametrize("strategy", [UnwhitenedVariationalStrategy, VariationalStrategy])
@torch.no_grad()
def test_equals_gpytorch(strategy, output):
    whiten = strategy is VariationalStrategy
    kernel, Z, X, covariances = make_prior()
    Kzz, Kzx, Kxx = (K[output] for K in covariances)
    mean, scale, root = (part[output] for part in make_posterior("full"))
    oracle = GPyTorchModel(kernel, output, Z, mean, root, strategy)
    with gpytorch.settings.fast_computations(False, False, False):
        expected = oracle(X)  # in training mode, which caches what the divergence needs
        expected_kl = oracle.variational_strategy.kl_divergence()
    W = inverse_cholesky(Kzz, jitter=JITTER / kernel.variance[output].item())
    f_mean, f_variance = conditional(W, Kzx, mean, scale, kxx=Kxx.diagonal(), whiten=whiten)
    # GPyTorch may add its jitter to the covariance of f as well.
    torch.testing.assert_close(f_mean, expected.mean, rtol=0, atol=10 * JITTER)
    torch.testing.assert_close(f_variance, expected.variance, rtol=0, atol=10 * JITTER)
    torch.testing.assert_close(kl_divergence(mean, scale, None if whiten else W), expected_kl, rtol=1e-7, atol=0)
