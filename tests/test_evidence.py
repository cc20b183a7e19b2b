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
from skdgp.inference.evidence import _LogDensity, log_evidence, most_likely, observations
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
    data = data.joined(Batch(data.X[:9], data.y[9:18], data.weight[:9]))  # several targets for the same features
    shared, apart = (torch.full((n,), 0.2, dtype=torch.float64, requires_grad=True) for n in (1, 2))
    found, expected = (log_evidence(kernel, noise, observations(data)) for noise in (shared, apart))
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    slopes = [torch.autograd.grad(each, [kernel.log_lengthscale, kernel.log_variance]) for each in (found, expected)]
    torch.testing.assert_close(*slopes)
    root, y = normal(1, 4, 4, seed=3), normal(3, 4, seed=4)
    density = lambda y, root: _LogDensity.apply(y, root @ root.mT + torch.eye(4, dtype=torch.float64))  # noqa: E731
    assert gradcheck(density, (y.requires_grad_(), root.requires_grad_()))


def test_is_that_of_dense_algebra():
    """Weights say how precise an observation is beside the others. Some have the same features."""
    data, kernel, noise = make_data(), StationaryKernel("matern32", 3, ard=True).double(), torch.tensor([0.1, 0.3])
    X = torch.cat([data.X, data.X[:15], data.X[:5]])
    y = torch.cat([data.y, data.y[:15] + 0.3 * normal(15, 2, seed=5), -data.y[:5]])
    weight = torch.arange(len(X)) % 3 + 1.0
    K, relative = kernel(X, X)[0].detach().numpy(), (weight / weight.mean()).numpy()
    expected = sum(multivariate_normal.logpdf(y[:, d], cov=K + np.diag(noise[d].item() / relative)) for d in range(2))
    observed = observations(Batch(X, y, weight.double()))
    assert len(observed.rows) == 40 and observed.number == 60
    assert log_evidence(kernel, noise.double(), observed).item() == pytest.approx(expected, rel=1e-6)


def test_copies_are_one_observation_whose_weight_is_theirs():
    """Exact copies prove nothing about the noise, and the unit of weights does not matter."""
    data, kernel, noise = make_data(), StationaryKernel("rbf", 3).double(), torch.tensor([0.2]).double()
    times = torch.arange(len(data)) % 3 + 1
    index = torch.repeat_interleave(torch.arange(len(data)), times)[torch.randperm(int(times.sum()))]
    repeated, weighted = data.rows(index), Batch(data.X, data.y, 7.0 * times)
    found = [log_evidence(kernel, noise, observations(rows)).item() for rows in (repeated, weighted)]
    assert found[0] == pytest.approx(found[1], rel=1e-7)
    twice = log_evidence(kernel, noise, observations(data.joined(data))).item()
    assert twice == pytest.approx(log_evidence(kernel, noise, observations(data)).item(), rel=1e-12)


def test_the_first_of_equal_rows_gives_the_order():
    data = make_data(6)
    rows = data.rows(torch.tensor([4, 1, 4, 0, 1, 5]))
    observed = observations(rows)
    assert torch.equal(observed.rows.X, data.X[[4, 1, 0, 5]]) and observed.number == 4
    torch.testing.assert_close(observed.rows.weight, torch.tensor([2.0, 2.0, 1.0, 1.0]).double() / 1.5)


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
        assert log_evidence(kernel, likelihood.variance, observations(data)).item() / len(data) < highest
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


def test_outputs_that_are_zero_do_not_decide():
    """The others have the kernel and the noise that they would have alone."""
    data = make_data()
    zero = torch.zeros(len(data), 1, dtype=torch.float64)
    found = []
    for y, varying in ((data.y, [0, 1]), (torch.cat([data.y[:, :1], zero, data.y[:, 1:]], dim=1), [0, 2])):
        kernel, likelihood = StationaryKernel("rbf", 3).double(), Gaussian(y.shape[1]).double()
        before = likelihood.variance.detach().clone()
        value = most_likely(kernel, likelihood, Batch(data.X, y, data.weight), 30, 5.0, of_varying=True)
        found.append((torch.tensor(value), kernel.lengthscale, kernel.variance, likelihood.variance[varying]))
        assert torch.equal(likelihood.variance[y.eq(0).all(0)], before[y.eq(0).all(0)])
    for alone, beside in zip(*found, strict=True):
        torch.testing.assert_close(alone, beside, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(
        found[0][0],
        torch.tensor(most_likely(StationaryKernel("rbf", 3).double(), Gaussian(2).double(), data, 30, 5.0)),
    )


def test_levels_that_have_nothing_in_common():
    """Rows of one level have almost the same target, and a level says nothing of others, as far as it is from them."""
    level = torch.arange(120) % 40
    X = torch.cat([torch.eye(40)[level], 1e-3 * normal(120, 1).float()], dim=1).double()
    y = normal(40, 1, seed=1)[level]
    kernel = StationaryKernel("rbf", 41, ard=(*[0] * 40, 1), variance=300.0).double()
    with torch.no_grad():
        kernel.log_lengthscale[0] = torch.tensor([-11.0, 10.0])
    noise = Gaussian(1, excess=1e-9, floor=1e-10).double()
    most_likely(kernel, noise, Batch(X, y, torch.ones(120, dtype=torch.float64)), 75, 16.0)
    assert kernel.variance.item() == pytest.approx(y[:40].square().mean().item(), rel=0.1)


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
