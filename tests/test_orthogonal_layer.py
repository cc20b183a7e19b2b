"""Layers with orthogonal inducing points: a structured posterior over both sets, and limits."""

import numpy as np
import pytest
import torch
from helpers import every_covariance, every_whiten, gradients_agree, normal, shared_or_own_kernels

from skdgp.gp import linalg
from skdgp.gp.global_layer import GlobalLayer, OrthogonalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.means import LinearMean

N_INPUTS, N_OUTPUTS, N_INDUCING, N_ORTHOGONAL, N_ROWS, N_SAMPLES = 3, 2, 5, 4, 4, 3

every_sharing = shared_or_own_kernels(N_OUTPUTS)
every_orthogonal = pytest.mark.parametrize("orthogonal_covariance", ["diag", "full", "prior"])


@torch.no_grad()
def make_layer(covariance="full", orthogonal_covariance="full", *, whiten=True, n_kernels=N_OUTPUTS, O=None):  # noqa: E741
    """A layer whose parameters all differ from their neighbours and from their initial values."""
    kernel = StationaryKernel("rbf", N_INPUTS, n_kernels, ard=True).double()
    mean = LinearMean(normal(N_INPUTS, N_OUTPUTS, seed=8), learnable=True)
    layer = OrthogonalLayer(
        kernel,
        mean,
        normal(N_INDUCING, N_INPUTS, seed=9),
        normal(N_OUTPUTS, N_INDUCING, seed=10),
        covariance=covariance,
        whiten=whiten,
        jitter=1e-12,
        O=normal(N_ORTHOGONAL, N_INPUTS, seed=11),
        orthogonal_covariance=orthogonal_covariance,
    ).double()
    for seed, parameter in enumerate(layer.parameters()):
        parameter.add_(0.2 * normal(*parameter.shape, seed=seed))
    if O is not None:
        layer.O.copy_(O)
    return layer


def dense(tensor):
    return tensor.detach().numpy()


def moments(posterior, d, L):
    """Mean and covariance of plain variables with prior LLᵀ, from those of a posterior in whitened coordinates."""
    mean = dense(posterior.mean)[d]
    if posterior.root is None:
        return L @ mean, L @ L.T
    root = dense(posterior.root)[d]
    root = np.diag(root) if root.ndim == 1 else root
    return L @ mean, L @ root @ root.T @ L.T


@every_covariance
@every_orthogonal
@every_sharing
@torch.no_grad()
def test_is_a_sparse_gp_of_both_sets_with_structured_covariance(covariance, orthogonal_covariance, n_kernels):
    """SOLVE-GP, Sec. 3.3: f(O) = k(O, Z) K⁻¹ u + v makes q(u) q(v) a posterior of f at both sets."""
    layer = make_layer(covariance, orthogonal_covariance, n_kernels=n_kernels)
    x = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5)
    points = torch.cat([layer.Z, layer.O])
    K = dense(layer.kernel(points, points)) * np.ones((N_OUTPUTS, 1, 1))
    means, roots = [], []
    for d in range(N_OUTPUTS):
        Kzz, Koz, Koo = K[d][:N_INDUCING, :N_INDUCING], K[d][N_INDUCING:, :N_INDUCING], K[d][N_INDUCING:, N_INDUCING:]
        P = Koz @ np.linalg.inv(Kzz)
        mu_u, S_u = moments(layer.q, d, np.linalg.cholesky(Kzz))
        mu_v, S_v = moments(layer.q_orthogonal, d, np.linalg.cholesky(Koo - P @ Koz.T))
        mean = np.concatenate([mu_u, P @ mu_u + mu_v])
        covariance_of_both = np.block([[S_u, S_u @ P.T], [P @ S_u, P @ S_u @ P.T + S_v]])
        means.append(mean + dense(layer.mean(points))[:, d])
        roots.append(np.linalg.cholesky(covariance_of_both))
    v = torch.zeros(N_OUTPUTS, len(points), dtype=torch.float64)
    union = GlobalLayer(layer.kernel, layer.mean, points, v, covariance="full", whiten=False, jitter=1e-12).double()
    union.q.mean.copy_(torch.from_numpy(np.stack(means)))
    roots = torch.from_numpy(np.stack(roots))
    union.q.log_diagonal.copy_(roots.diagonal(dim1=-2, dim2=-1).log())
    union.q.below.copy_(roots)
    for value, expected in zip(layer(x, x), union(x, x), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("orthogonal_covariance", ["full", "prior"])
@every_sharing
@torch.no_grad()
def test_coordinates_do_not_matter(orthogonal_covariance, n_kernels):
    """The same posterior, whitened and plain: with full covariances every Gaussian can be said in both."""
    layer = make_layer("full", orthogonal_covariance, n_kernels=n_kernels)
    options = {"covariance": "full", "whiten": False, "jitter": 1e-12}
    plain = OrthogonalLayer(
        layer.kernel, layer.mean, layer.Z, torch.zeros_like(layer.q.mean), **options,
        O=layer.O, orthogonal_covariance=orthogonal_covariance,
    ).double()  # fmt: skip
    Kzz, Kzo, Koo = (
        layer.kernel.relative_covariance(*pair) for pair in ((layer.Z, layer.Z), (layer.Z, layer.O), (layer.O, layer.O))
    )
    C = Koo - Kzo.mT @ torch.linalg.solve(Kzz, Kzo)
    deviation = layer.kernel.variance.sqrt()[:, None, None]
    L = deviation * torch.linalg.cholesky(Kzz)
    L_v = deviation * torch.linalg.cholesky(C)
    for posterior, other, root in ((plain.q, layer.q, L), (plain.q_orthogonal, layer.q_orthogonal, L_v)):
        posterior.mean.copy_((root @ other.mean[..., None])[..., 0])
        if other.root is not None:
            scale = root @ other.root
            posterior.log_diagonal.copy_(scale.diagonal(dim1=-2, dim2=-1).log())
            posterior.below.copy_(scale)
    plain.q.mean.add_(layer.mean(layer.Z).mT)
    x = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5)
    for value, expected in zip(plain(x, x), layer(x, x), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-8)


@every_whiten
@every_covariance
@torch.no_grad()
def test_with_v_at_its_prior_it_is_the_global_layer(whiten, covariance):
    layer = make_layer(covariance, "prior", whiten=whiten)
    layer.q_orthogonal.mean.zero_()
    x = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5)
    for value, expected in zip(layer(x, x), GlobalLayer.forward(layer, x, x), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-10)
    if whiten:
        unit = make_layer(covariance, "full")
        unit.q_orthogonal.mean.zero_()
        unit.q_orthogonal.log_diagonal.zero_()
        unit.q_orthogonal.below.zero_()
        for value, expected in zip(unit(x, x), GlobalLayer.forward(unit, x, x), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-10)


@every_whiten
@every_covariance
@every_orthogonal
def test_gradients(whiten, covariance, orthogonal_covariance):
    layer = make_layer(covariance, orthogonal_covariance, whiten=whiten)
    x = normal(2, 2, N_INPUTS, seed=5).requires_grad_()
    assert gradients_agree(layer, x, x)


@every_whiten
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_orthogonal_points_may_meet_the_others(whiten, dtype):
    """Where they meet nothing is left to say: f⊥ has no variance there, and v changes nothing."""
    Z = normal(N_INDUCING, N_INPUTS, seed=9)
    layer = make_layer(whiten=True, O=Z[:N_ORTHOGONAL])
    layer.Z.copy_(Z)
    layer.jitter = 1e-6
    x = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5).to(dtype)
    layer = layer.to(dtype)
    mean, variance, kl = layer(x, x)
    alone = GlobalLayer.forward(layer, x, x)
    assert kl.isfinite()
    torch.testing.assert_close(mean, alone[0], rtol=0, atol=2e-2)
    torch.testing.assert_close(variance, alone[1], rtol=0, atol=2e-2)


@torch.no_grad()
def test_starts_at_a_scaled_prior():
    for whiten in (True, False):
        kernel = StationaryKernel("matern52", N_INPUTS, variance=2.0).double()
        layer = OrthogonalLayer(
            kernel, LinearMean(normal(N_INPUTS, N_OUTPUTS), learnable=False), normal(N_INDUCING, N_INPUTS, seed=1),
            torch.zeros(N_OUTPUTS, N_INDUCING, dtype=torch.float64), covariance="full", whiten=whiten,
            O=normal(N_ORTHOGONAL, N_INPUTS, seed=2), orthogonal_covariance="full",
        ).double()  # fmt: skip
        x = normal(1, 20, N_INPUTS, seed=3)
        _, variance, kl = layer(x, x)
        torch.testing.assert_close(variance, torch.full_like(variance, 2.0), rtol=1e-5, atol=0)
        assert kl < 1e-4


@pytest.mark.parametrize(("covariance", "factor"), [("diag", 1), ("full", N_OUTPUTS)])
def test_the_largest_tensor_is_announced(covariance, factor):
    layer = make_layer(covariance, covariance, n_kernels=1)
    assert layer.numbers_per_row(7) == 7 * (N_INDUCING + N_ORTHOGONAL) * factor


@every_whiten
@every_sharing
@torch.no_grad()
def test_a_frozen_layer_factorises_once_and_stays_what_it_was(monkeypatch, whiten, n_kernels):
    layer, x = make_layer(whiten=whiten, n_kernels=n_kernels), normal(3, 20, N_INPUTS, seed=3)
    expected = layer(x, x)
    calls = []
    monkeypatch.setattr(linalg, "cholesky", lambda *args, real=linalg.cholesky: calls.append(1) or real(*args))
    frozen = layer.frozen()
    for parameter in frozen.parameters():
        assert any(parameter is other for other in layer.parameters())
    for rows in (slice(0, 7), slice(7, 20)):
        mean, variance, kl = frozen(x[:, rows], x[:, rows])
        torch.testing.assert_close(mean, expected[0][:, rows], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(variance, expected[1][:, rows], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(kl, expected[2], rtol=1e-9, atol=1e-9)
    assert len(calls) == 1
    layer.Z.add_(1.0)
    assert not torch.allclose(layer(x, x)[0], expected[0])
    assert len(calls) == 2
