"""The exact evidence of some rows, and what makes it highest."""

import math

import numpy as np
import pytest
import torch
from helpers import normal
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import nn
from torch.autograd import gradcheck

from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference import evidence as evidence_module
from skdgp.inference.batches import Batch
from skdgp.inference.evidence import _LogDensity, log_evidence, most_likely
from skdgp.inference.lbfgs import lbfgs


def make_data(n_rows=40, n_outputs=2):
    X = normal(n_rows, 3, seed=1)
    y = torch.stack([torch.sin(2 * X[:, 0]) + X[:, 1], X[:, 2].cos()][:n_outputs], dim=1)
    return Batch(X, y + 0.1 * normal(*y.shape, seed=2), torch.ones(n_rows, dtype=torch.float64))


def test_density_and_its_gradients():
    roots, y = normal(2, 4, 4, seed=3), normal(2, 4, seed=4)
    expected = sum(
        multivariate_normal.logpdf(t, cov=(R @ R.T + np.eye(4))) for t, R in zip(y, roots.numpy(), strict=True)
    )

    def density(y, roots):
        return _LogDensity.apply(y, roots @ roots.mT + torch.eye(4, dtype=torch.float64))

    assert density(y, roots).item() == pytest.approx(expected, rel=1e-12)
    assert gradcheck(density, (y.requires_grad_(), roots.requires_grad_()))


def test_outputs_that_share_everything_add_up():
    """As fast as one of them, by another path."""
    data, kernel = make_data(n_outputs=2), StationaryKernel("matern32", 3, ard=True).double()
    data = Batch(data.X, data.y, torch.arange(len(data)) % 3 + 1.0)
    shared, apart = (torch.full((n,), 0.2, dtype=torch.float64, requires_grad=True) for n in (1, 2))
    found, expected = log_evidence(kernel, shared, data), log_evidence(kernel, apart, data)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    slopes = [torch.autograd.grad(each, [kernel.log_lengthscale, kernel.log_variance]) for each in (found, expected)]
    torch.testing.assert_close(*slopes)
    root, y = normal(1, 4, 4, seed=3), normal(3, 4, seed=4)
    density = lambda y, root: _LogDensity.apply(y, root @ root.mT + torch.eye(4, dtype=torch.float64))  # noqa: E731
    assert gradcheck(density, (y.requires_grad_(), root.requires_grad_()))


def test_is_that_of_dense_algebra():
    """With weights, of rows that are repeated."""
    data, kernel, noise = make_data(), StationaryKernel("matern32", 3, ard=True).double(), torch.tensor([0.1, 0.3])
    times = torch.arange(len(data)) % 3 + 1
    X, y = (each.repeat_interleave(times, dim=0) for each in (data.X, data.y))
    K = kernel(X, X)[0].detach().numpy()
    expected = sum(multivariate_normal.logpdf(y[:, d], cov=K + noise[d].item() * np.eye(len(X))) for d in range(2))
    weighted = Batch(data.X, data.y, times.double())
    assert log_evidence(kernel, noise.double(), weighted).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("prior", [False, True])
def test_highest_where_scikit_learn_finds_it(prior, monkeypatch):
    data = make_data(n_outputs=1)
    kernel, likelihood = StationaryKernel("rbf", 3, ard=True).double(), Gaussian(1, floor=1e-9).double()
    if not prior:
        monkeypatch.setattr(StationaryKernel, "log_prior", lambda self: self.log_variance.sum() * 0)
    found = most_likely(kernel, likelihood, data, 200, 20.0)
    peer = ConstantKernel() * RBF([1.0, 1.0, 1.0], (1e-3, 1e9)) + WhiteKernel(0.1, (1e-9, 10.0))
    peer = GaussianProcessRegressor(peer).fit(data.X, data.y[:, 0])
    highest = peer.log_marginal_likelihood_value_ / len(data)
    if prior:
        assert found < highest - 1e-3
        assert log_evidence(kernel, likelihood.variance, data).item() / len(data) < highest
        assert (kernel.lengthscale < torch.tensor(peer.kernel_.k1.k2.length_scale)).any()
    else:
        assert found == pytest.approx(highest, abs=1e-3)


def test_moves_no_further_than_it_may():
    kernel, likelihood, data = StationaryKernel("rbf", 3).double(), Gaussian(2).double(), make_data()
    before = [each.clone() for each in (*kernel.parameters(), *likelihood.parameters())]
    most_likely(kernel, likelihood, data, 50, 0.2)
    moved = [
        (now - then).abs().max()
        for now, then in zip((*kernel.parameters(), *likelihood.parameters()), before, strict=True)
    ]
    assert max(moved).item() == pytest.approx(0.2)


def test_a_start_without_a_factor_gets_more_noise(monkeypatch):
    """As much as it needs. If no noise helps, it is an error."""
    data, evidence, least = make_data(40, 1), evidence_module.log_evidence, [1e-3]
    kernel, likelihood = StationaryKernel("rbf", 3).double(), Gaussian(1, excess=3e-3, floor=1e-30).double()
    expected = most_likely(kernel, likelihood, data, 50, 20.0)

    def fragile(kernel, noise, rows):
        if noise.min() < least[0]:
            raise np.linalg.LinAlgError("no factor")
        return evidence(kernel, noise, rows)

    monkeypatch.setattr(evidence_module, "log_evidence", fragile)
    kernel, likelihood = StationaryKernel("rbf", 3).double(), Gaussian(1, excess=3e-20, floor=1e-30).double()
    assert most_likely(kernel, likelihood, data, 50, 20.0) == pytest.approx(expected, abs=0.01)
    least[0] = np.inf
    with pytest.raises(np.linalg.LinAlgError, match="no factor"):
        most_likely(kernel, likelihood, data, 50, 20.0)


@pytest.mark.parametrize("failure", ["error", "value", "slope"])
def test_a_line_search_goes_back_from_where_nothing_can_be_computed(failure):
    """Also where a value or a slope is no number. The first step from 0 ends beyond 1, and the minimum is 0.9."""
    x, failed = nn.Parameter(torch.zeros(1, dtype=torch.float64)), []

    def loss():
        if x.item() < 1.0:
            return -(10.0 * x + (1.0 - x).log()).sum()
        failed.append(x.item())
        if failure == "error":
            raise np.linalg.LinAlgError("no factor")
        return (math.nan * x).sum() if failure == "value" else (x - x.detach()).sqrt().sum() - 1e3

    lbfgs(loss, [x], 50, 1)
    assert failed and x.item() == pytest.approx(0.9, abs=1e-2)


def test_data_without_any_gradient_leave_the_start():
    kernel, likelihood = StationaryKernel("rbf", 1).double(), Gaussian(1).double()
    one = Batch(torch.zeros(1, 1).double(), torch.zeros(1, 1).double(), torch.ones(1).double())
    assert np.isfinite(most_likely(kernel, likelihood, one, 5, 1e-12))
