"""Likelihoods against numerical integration."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from skdgp.gp.likelihoods import Gaussian

N_SAMPLES, N_ROWS = 2, 3


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_likelihood(n_outputs, floor=1e-3):
    likelihood = Gaussian(n_outputs, floor=floor).double()
    with torch.no_grad():
        likelihood.log_excess.copy_(torch.linspace(-1.0, 0.5, n_outputs))
    return likelihood


def make_case(n_outputs):
    y, mean = normal(N_ROWS, n_outputs, seed=1), normal(N_SAMPLES, N_ROWS, n_outputs, seed=2)
    return y, mean, 0.1 + normal(N_SAMPLES, N_ROWS, n_outputs, seed=3).square()


def integrate(function, mean, variance):
    """E function(f) over f ~ N(mean, variance)."""
    deviation = variance**0.5
    limits = (mean - 12 * deviation, mean + 12 * deviation)
    return quad(lambda f: function(f) * norm.pdf(f, mean, deviation), *limits, epsabs=1e-12, epsrel=1e-11)[0]


def log_density(y, noise):
    return lambda f: norm.logpdf(y, f, noise**0.5)


def density(y, noise):
    return lambda f: norm.pdf(y, f, noise**0.5)


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize(
    ("method", "integrand", "after"),
    [("expected_log_prob", log_density, float), ("log_predictive", density, np.log)],
)
def test_gaussian_equals_numerical_integration(method, integrand, after, n_outputs):
    likelihood = make_likelihood(n_outputs)
    y, mean, variance = make_case(n_outputs)
    result = getattr(likelihood, method)(y, mean, variance)
    assert result.shape == (N_SAMPLES, N_ROWS)
    noise = likelihood.variance.tolist()
    for s, b in np.ndindex(N_SAMPLES, N_ROWS):
        expected = sum(
            after(integrate(integrand(y[b, p].item(), noise[p]), mean[s, b, p].item(), variance[s, b, p].item()))
            for p in range(n_outputs)
        )
        assert result[s, b].item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("method", ["expected_log_prob", "log_predictive"])
def test_without_uncertainty_both_are_the_log_density(method):
    likelihood = make_likelihood(2)
    y, mean, _ = make_case(2)
    result = getattr(likelihood, method)(y, mean, torch.zeros_like(mean))
    expected = norm.logpdf(y, mean, likelihood.variance.detach().sqrt()).sum(-1)
    np.testing.assert_allclose(result.detach(), expected, rtol=1e-12)


@pytest.mark.parametrize("floor", [1e-4, torch.tensor([1e-4, 1e-2])], ids=["shared", "per output"])
def test_the_noise_never_falls_below_its_floor(floor):
    likelihood = make_likelihood(2, floor)
    with torch.no_grad():
        likelihood.log_excess.fill_(-1e4)
    expected = torch.as_tensor(floor, dtype=torch.float32).double().expand(2)
    torch.testing.assert_close(likelihood.variance, expected, rtol=1e-12, atol=0)
    assert likelihood.expected_log_prob(*make_case(2)).isfinite().all()


def test_initial_noise():
    torch.testing.assert_close(Gaussian(2, variance=0.3, floor=0.1).variance, torch.full((2,), 0.4))
