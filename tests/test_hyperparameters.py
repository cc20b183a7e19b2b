"""Kernels and noises drawn from their posterior, and bases that consist of several of them."""

import math
import pickle

import numpy as np
import pytest
import torch
from helpers import normal, predictor_of
from scipy.special import logsumexp
from sklearn.datasets import make_friedman1
from test_base import make_data

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.alternatives import alternative, side_by_side
from skdgp.gp.kernels import LinearKernel, StationaryKernel, SumKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.waves import Streams
from skdgp.inference import base as base_module
from skdgp.inference import hyperparameters
from skdgp.inference.base import Base, base_for, fit_base, with_alternatives
from skdgp.inference.base_moments import left_out_moments
from skdgp.inference.batches import Batch, Part
from skdgp.inference.evidence import log_evidence, observations
from skdgp.inference.hyperparameters import HyperparameterPosterior


def make_posterior(rows, n_inputs=2):
    kernel = SumKernel([StationaryKernel("matern52", n_inputs, ard=True), LinearKernel(n_inputs)]).double()
    likelihood = Gaussian(rows.y.shape[1], excess=0.1, floor=1e-10).double()
    return HyperparameterPosterior(kernel, likelihood, observations(rows))


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_density_is_that_of_evidence_and_prior(n_outputs):
    """Also with weights, and with several targets for the same features."""
    rows = make_data(20, n_outputs=n_outputs)
    rows = Batch(rows.X, rows.y, torch.arange(20) % 3 + 1.0).joined(Batch(rows.X[:5], rows.y[5:10], rows.weight[:5]))
    posterior = make_posterior(rows)
    theta = posterior.start + 0.3 * normal(4, len(posterior.start), seed=1)
    centre, distinct = posterior.start[2:].clone(), posterior.observed.rows
    size = ((distinct.weight[:, None] * distinct.y**2).mean() / distinct.weight.mean()).log()
    centre[0] = max(centre[0], size + 2.0)
    centre[2:] = (25 * centre[2:] + 10 * (size + math.log(0.05))) / 35
    deviation = torch.tensor([2.0] + (1 + n_outputs) * [3.0], dtype=torch.float64)
    expected = []
    for vector in theta:
        with torch.no_grad():
            kernel, likelihood = posterior._one(vector)
        evidence = log_evidence(kernel, likelihood.variance, observations(rows)) + kernel.log_prior()
        expected.append((evidence - 0.5 * ((vector[2:] - centre) / deviation).square().sum()).item())
    differences = (values - values[0] for values in (posterior.log_density(theta).detach().numpy(), np.array(expected)))
    np.testing.assert_allclose(*differences, rtol=1e-6)


def test_draws_have_the_moments_of_the_posterior(monkeypatch):
    """Against sums over a grid of one lengthscale, one variance and the noise."""
    monkeypatch.setattr("skdgp.inference.hyperparameters.PROPOSALS", 16384)
    X = torch.linspace(-1, 1, 12).double()[:, None]
    rows = Batch(X, torch.sin(3 * X) + 0.3 * normal(12, 1, seed=3), torch.ones(12).double())
    kernel = SumKernel([StationaryKernel("rbf", 1, ard=True)]).double()
    posterior = HyperparameterPosterior(kernel, Gaussian(1, excess=0.1, floor=1e-10).double(), observations(rows))
    axes = [np.linspace(start - 7, start + 7, 45) for start in posterior.start.numpy()]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    density = posterior._by_parts(torch.from_numpy(grid)).detach().numpy()
    weight = np.exp(density - logsumexp(density))
    mean = weight @ grid
    deviation = np.sqrt(weight @ (grid - mean) ** 2)
    pairs = posterior.draws(1000)
    drawn = [torch.cat([part.flatten() for part in (*k.parameters(), noise.log_excess)]) for k, noise in pairs]
    drawn = torch.stack(drawn).detach().numpy()
    np.testing.assert_allclose((drawn.mean(0) - mean) / deviation, 0.0, atol=0.15)
    np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.2)


def test_where_no_density_can_be_computed_all_draws_are_the_most_likely_one(monkeypatch):
    posterior = make_posterior(make_data(20))
    monkeypatch.setattr(posterior, "log_density", lambda theta: theta.sum(1) * 0 - math.inf)
    for kernel, likelihood in posterior.draws(3):
        assert torch.equal(kernel.kernels[0].log_lengthscale, posterior.kernel.kernels[0].log_lengthscale)
        assert torch.equal(likelihood.log_excess, posterior.likelihood.log_excess)


@pytest.fixture
def narrow(monkeypatch):
    """A posterior of which a single proposal has nearly all of the weight: proposals are rare there."""
    posterior = make_posterior(make_data(25))
    theta = posterior.start + 0.8 * normal(256, len(posterior.start), seed=5)
    log_q = torch.zeros(256).double()
    log_q[17] = -15.0
    monkeypatch.setattr(posterior, "_proposals", lambda: (theta, log_q, posterior.start))
    monkeypatch.setattr(posterior, "log_density", lambda theta: -2.0 * (theta - posterior.start).square().sum(1))
    return posterior


def drawn_by(posterior, number=20):
    """Logarithms (number, d) that draws have."""
    pairs = posterior.draws(number)
    return torch.stack([torch.cat([part.flatten() for part in (*k.parameters(), n.log_excess)]) for k, n in pairs])


def test_a_single_proposal_does_not_have_all_of_the_weight(narrow, monkeypatch):
    theta, log_q, mode = narrow._proposals()
    log_p = narrow._by_parts(theta)
    assert hyperparameters._effective_number(hyperparameters._weights(log_p - log_q)) < 1.5
    draws = drawn_by(narrow)
    distinct = len(draws.unique(dim=0))
    half = 0.5 * len(mode)
    assert distinct > 5
    assert (draws == theta[17]).all(1).any()  # where proposals are rare, they count for more
    assert (narrow._by_parts(draws) >= narrow._by_parts(mode[None]) - half - 3 * math.sqrt(half)).all()
    monkeypatch.setattr(hyperparameters, "FEWEST_EFFECTIVE", 1.0)
    assert len(drawn_by(narrow).unique(dim=0)) < 0.5 * distinct


@pytest.mark.parametrize("name, value", [("FEWEST_PLAUSIBLE", 1000), ("LEAST_NOISE", 1.0)])
def test_where_tempering_tells_nothing_draws_are_the_most_likely_one(narrow, monkeypatch, name, value):
    monkeypatch.setattr(hyperparameters, name, value)
    assert len(drawn_by(narrow).unique(dim=0)) == 1


@pytest.mark.parametrize("effective", [2.0, 20.0, 60.0])
def test_tempered_weights_are_as_effective_as_asked_for(effective):
    log_weight = 30.0 * normal(100, seed=4)
    weight = hyperparameters._levelled(log_weight, effective)
    assert weight.sum() ** 2 / (weight**2).sum() == pytest.approx(effective, rel=1e-6)
    powers = weight.log()[1:].sub(weight.log()[0]) / (log_weight[1:] - log_weight[0])
    torch.testing.assert_close(powers, powers[:1].expand(99))  # one power for all
    assert 0 < powers[0] < 1


def test_weights_that_are_even_enough_are_not_tempered():
    log_weight = 0.1 * normal(100, seed=4)
    torch.testing.assert_close(hyperparameters._levelled(log_weight, 20.0), hyperparameters._weights(log_weight))


def test_draws_are_the_same_each_time_and_differ_from_each_other():
    posterior = make_posterior(make_data(25))
    lengths = [
        torch.stack([kernel.kernels[0].log_lengthscale[0] for kernel, _ in posterior.draws(20)]) for _ in range(2)
    ]
    assert torch.equal(*lengths)
    assert (lengths[0].std(0) > 0.05).all()


@pytest.mark.parametrize("n_outputs", [1, 2])
@torch.no_grad()
def test_alternatives_stand_side_by_side(n_outputs):
    data, X = make_data(30, n_outputs=n_outputs), normal(7, 2, seed=8)
    base = with_alternatives(fit_base(data), data)
    assert base.n_alternatives == base_module.ALTERNATIVES
    models = base.alternatives()
    together = base.model(X)
    for number, model in enumerate(models):
        own = slice(number * n_outputs, (number + 1) * n_outputs)
        torch.testing.assert_close(model(X).mean[0], together.mean[0, :, own])
        torch.testing.assert_close(model(X).variance[0], together.variance[0, :, own])
        torch.testing.assert_close(model.likelihood.variance, base.model.likelihood.variance[own])
    again = side_by_side(models)
    torch.testing.assert_close(again(X).mean, together.mean)
    frozen = alternative(base.model.frozen(turned=True), 3, base.n_alternatives)
    torch.testing.assert_close(frozen(X).mean, models[3](X).mean)
    assert side_by_side(models[:1]) is models[0] and alternative(models[0], 0, 1) is models[0]


def test_rows_left_out_are_left_out_of_each_alternative():
    data = make_data(30)
    base, basis = with_alternatives(fit_base(data), data), Part(data, torch.arange(30))
    [moments] = left_out_moments(base, [basis], basis)
    single = [left_out_moments(Base(model), [basis], basis)[0] for model in base.alternatives()]
    means = torch.stack([one.mean for one in single])
    torch.testing.assert_close(moments.mean, means.mean(0))
    torch.testing.assert_close(moments.within, torch.stack([one.within for one in single]).mean(0))
    torch.testing.assert_close(moments.between, means.var(0, correction=0))
    assert moments.between.max() > 0
    torch.testing.assert_close(moments.variance, moments.within + moments.between)


def test_many_rows_or_many_hyperparameters_leave_one_alternative(monkeypatch):
    likelihood = Gaussian(1).double()
    assert base_for(likelihood, make_data(30))[0].n_alternatives > 1
    for name, value in (("UNCERTAIN_ROWS", 29), ("MOST_DIMENSIONS", 4)):
        with monkeypatch.context() as changed:
            changed.setattr(base_module, name, value)
            assert base_for(likelihood, make_data(30))[0].n_alternatives == 1
    monkeypatch.setattr(base_module, "ALTERNATIVE_NUMBERS", 0)
    assert base_for(likelihood, make_data(30))[0].n_alternatives == base_module.FEWEST_ALTERNATIVES


FAMILIES = [
    SOLVEGPRegressor(random_state=0, max_iter=30),
    DSDGPRegressor((2,), 8, n_estimators=3, max_iter=20, random_state=0),
    AVDGPRegressor((2,), (4, 4), n_estimators=2, max_iter=20, random_state=0),
    DSDGPRegressor((), 8, n_estimators=2, max_iter=20, random_state=0, likelihood="heteroskedastic"),
]


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: f"{type(model).__name__}-{model.likelihood}")
def test_faces_agree(model):
    """Marginals, joint covariances and drawn functions of members and alternatives."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(25, 3))
    y = np.sin(4 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=25)
    model.fit(X, y)
    predictor = predictor_of(model)
    assert predictor.blend.n_alternatives == base_module.ALTERNATIVES
    numbers = [number for part in predictor.parts for number in range(base_module.ALTERNATIVES)[part]]
    assert sorted(numbers) == list(range(base_module.ALTERNATIVES))
    new = np.vstack([rng.uniform(size=(4, 3)), [[3.0, 3.0, 3.0]]])
    mean, std = model.predict(new, return_std=True)
    _, covariance = model.predict(new, return_cov=True, latent=True)
    latent = model.predict_dist(new, latent=True)
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), latent.std, rtol=1e-4)
    draws = model.sample_functions(3000, random_state=1)(new)
    np.testing.assert_allclose(draws.mean(1), latent.mean, atol=0.08 * latent.std.max())
    np.testing.assert_allclose(draws.std(1), latent.std, rtol=0.1)
    expected = covariance / np.outer(latent.std, latent.std)
    np.testing.assert_allclose(np.corrcoef(draws), expected, atol=0.08)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(new), mean)
    np.testing.assert_allclose(model.predict(new[:1], return_std=True)[1], std[:1], rtol=1e-10)


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroskedastic"])
@torch.no_grad()
def test_a_function_depends_on_its_stream_alone(likelihood):
    data, X = make_data(30), normal(5, 2, seed=8)
    model = SOLVEGPRegressor(random_state=0, max_iter=20, likelihood=likelihood)
    model.fit(data.X.numpy(), data.y[:, 0].numpy())
    predictor = predictor_of(model).alone()
    together = predictor.draw(0, Streams(range(6)))(X)
    for seed in range(6):
        torch.testing.assert_close(predictor.draw(0, Streams([seed]))(X)[0], together[seed])


def test_intervals_of_thirty_rows_hold_more_than_those_of_one_kernel(monkeypatch):
    """Of a function of five features, over six tables."""

    def coverage():
        held = []
        for seed in range(6):
            X, y = make_friedman1(230, n_features=5, random_state=seed)
            X, new, y, truth = X[:30], X[30:], y[:30], y[30:]
            interval = SOLVEGPRegressor(random_state=0).fit(X, y).predict_interval(new)
            held.append(np.mean((interval[:, 0] <= truth) & (truth <= interval[:, 1])))
        return np.mean(held)

    uncertain = coverage()
    monkeypatch.setattr(base_module, "UNCERTAIN_ROWS", 0)
    assert 0.8 < uncertain < 0.97 and coverage() < uncertain - 0.04
