"""Objectives against their formulas in NumPy, and their gradients against finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import REGRESSORS, generator, gradients_agree, name_of, normal
from scipy.stats import norm
from torch import nn

from skdgp.gp.amortised_layer import AmortisedLayer
from skdgp.gp.deep_gp import DeepGP, Marginals
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import LinearMean, ZeroMean
from skdgp.gp.networks import AffineInference, InferenceNetwork
from skdgp.gp.propagation import make_propagation
from skdgp.inference.batches import Batch
from skdgp.inference.ensemble import Ensemble
from skdgp.inference.objectives import OBJECTIVES, elbo, log_mixture, predictive
from skdgp.inference.predictor import Predictor

N_SAMPLES, N_ROWS, N_OUTPUTS = 3, 4, 2
KL_WEIGHT = 0.3

every_kl = pytest.mark.parametrize("kl_shape", [(N_ROWS,), ()], ids=["kl per row", "one kl"])


@torch.no_grad()
def make_case(kl_shape=(N_ROWS,)):
    """Marginals, likelihood, targets and row weights."""
    shape = (N_SAMPLES, N_ROWS, N_OUTPUTS)
    marginals = Marginals(
        normal(*shape, seed=1),
        normal(*shape, seed=2).square(),
        normal(N_SAMPLES, 1, seed=3).log_softmax(0),
        normal(N_ROWS, seed=4).square().resize_(kl_shape),
    )
    likelihood = Gaussian(N_OUTPUTS, excess=0.5).double()
    likelihood.log_excess.copy_(torch.tensor([-1.0, 0.5]))
    return marginals, likelihood, normal(N_ROWS, N_OUTPUTS, seed=5), normal(N_ROWS, seed=6).square()


def arrays(marginals, likelihood, y, row_weight):
    """The same case in NumPy: mixture weights, means, variances, divergences, noise, targets, row weights."""
    tensors = (marginals.log_weight[:, 0].exp(), *marginals[:2], marginals.kl, likelihood.variance, y, row_weight)
    return [tensor.detach().numpy() for tensor in tensors]


def mixture_density(case, row):
    omega, m, v, _, noise, y, _ = arrays(*case)
    components = [
        np.prod([norm.pdf(y[row, p], m[s, row, p], np.sqrt(v[s, row, p] + noise[p])) for p in range(N_OUTPUTS)])
        for s in range(N_SAMPLES)
    ]
    return omega @ components


def test_log_mixture():
    case = make_case()
    expected = [np.log(mixture_density(case, row)) for row in range(N_ROWS)]
    np.testing.assert_allclose(log_mixture(*case[:3]).detach(), expected, rtol=1e-12)


def test_log_mixture_does_not_underflow():
    marginals, likelihood, y, _ = make_case()
    assert log_mixture(marginals, likelihood, y + 1e4).isfinite().all()


@every_kl
def test_elbo(kl_shape):
    case = make_case(kl_shape)
    omega, m, v, kl, noise, y, row_weight = arrays(*case)
    expected = 0.0
    for b, s, p in np.ndindex(N_ROWS, N_SAMPLES, N_OUTPUTS):
        log_prob = norm.logpdf(y[b, p], m[s, b, p], np.sqrt(noise[p])) - v[s, b, p] / (2 * noise[p])
        expected += row_weight[b] * omega[s] * log_prob / N_ROWS
    expected -= KL_WEIGHT * np.mean(row_weight * kl if kl_shape else kl)
    assert elbo(*case, KL_WEIGHT).item() == pytest.approx(expected, rel=1e-12)


@every_kl
def test_predictive(kl_shape):
    case = make_case(kl_shape)
    *_, kl, _, _, row_weight = arrays(*case)
    expected = np.mean([row_weight[b] * np.log(mixture_density(case, b)) for b in range(N_ROWS)])
    expected -= KL_WEIGHT * np.mean(row_weight * kl if kl_shape else kl)
    assert predictive(*case, KL_WEIGHT).item() == pytest.approx(expected, rel=1e-12)


def test_jensen():
    case = make_case()
    assert elbo(*case, 0.0) < predictive(*case, 0.0)
    marginals, *rest = case
    certain = Marginals(
        marginals.mean[:1], torch.zeros_like(marginals.variance[:1]), torch.zeros(1, 1).double(), marginals.kl
    )
    torch.testing.assert_close(elbo(certain, *rest, 0.0), predictive(certain, *rest, 0.0))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
def test_a_row_of_weight_two_is_that_row_twice(tiny, objective, wave):
    """In the objective of all rows, in the mean over minibatches, and in the bound of all rows together."""
    deterministic = tiny.propagations[-1 if "rule" in tiny.sampling else 0]
    member = tiny(**deterministic).fit(*wave).module_[0].double()
    repeats = torch.tensor([1, 2, 1, 3, 1, 1, 4, 2, 1])
    weighted = Batch(normal(9, wave[0].shape[1]), normal(9, 1, seed=1), repeats.double())
    repeated = weighted.rows(torch.arange(9).repeat_interleave(repeats))
    repeated = replace(repeated, weight=torch.ones(len(repeated)).double())

    def value(data, n_batches=1):
        rows, mean_weight = data.relative()
        total = 0.0
        for index in torch.arange(len(rows)).chunk(n_batches):
            part, marginals = rows.rows(index), member(rows.X[index])
            assert marginals.kl.max() > 1e-3
            arguments = marginals, member.likelihood, part.y, part.weight, 3.0 / (mean_weight * len(rows))
            total += OBJECTIVES[objective].value(*arguments).item() / n_batches
        return total

    assert value(weighted) == pytest.approx(value(repeated), rel=1e-12)
    assert value(weighted, n_batches=3) == pytest.approx(value(weighted), rel=1e-12)
    ensemble = Ensemble(Predictor([member]), "minibatches")
    assert ensemble.objective(weighted, 4) == pytest.approx(ensemble.objective(repeated, 4), rel=1e-12)


def make_model(rule, whiten, covariance):
    """A tiny model of two layers."""
    source = generator()
    hidden, last = (
        AffineInference(n_in, n_out, 3, covariance=covariance, width=3, depth=2, generator=source)
        for n_in, n_out in ((2, 2), (2, 1))
    )
    linear = LinearMean(normal(2, 2), learnable=True)
    layers = [
        AmortisedLayer(StationaryKernel("matern52", 2, 2), linear, hidden, whiten=whiten),
        AmortisedLayer(StationaryKernel("rbf", 2, ard=True), ZeroMean(1), last, whiten=whiten),
    ]
    return DeepGP(layers, make_propagation(rule, (2,), 2, source), Gaussian(1)).double()


class Loss(nn.Module):
    """An objective as a function of everything that a model learns."""

    def __init__(self, model, objective):
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, X, y, row_weight):
        return self.objective.value(self.model(X), self.model.likelihood, y, row_weight, KL_WEIGHT)


@pytest.mark.parametrize("objective", OBJECTIVES.values())
@pytest.mark.parametrize("rule", ["ar1", "ar2", "ar2p"])
@pytest.mark.parametrize(("whiten", "covariance"), [(True, "diag"), (False, "full")])
def test_gradients_of_a_deep_model(objective, rule, whiten, covariance):
    loss = Loss(make_model(rule, whiten, covariance), objective)
    rows = normal(3, 2, seed=1), normal(3, 1, seed=2), normal(3, seed=3).square()
    assert gradients_agree(loss, *rows, fast_mode=True)


class OwnPoint(InferenceNetwork):
    """Every row's inducing point is the row; its posterior mean has the sign of the second input."""

    shape = (1, 1)

    def __init__(self, mean, deviation):
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, anchor):
        mean = (self.mean * anchor[:, 1])[None, None]  # (1, 1, B)
        return anchor[:, None], mean, torch.full_like(mean, self.deviation)


@torch.no_grad()
def test_the_objective_of_amortised_layers_is_no_bound():
    """Rows that are far apart share nothing, and yet pay for their inducing variables a hundredth each."""
    n_rows, noise = 100, 0.01
    sign = torch.where(torch.arange(n_rows) % 2 == 0, 1.0, -1.0).double()
    X = torch.stack([1e3 * torch.arange(n_rows).double(), sign], dim=1)
    likelihood = Gaussian(1, excess=noise, floor=0.0).double()
    layer = AmortisedLayer(StationaryKernel("rbf", 2), ZeroMean(1), OwnPoint(1.0, 1e-2), whiten=True).double()
    model = DeepGP([layer], make_propagation("ar2p", (), 1, generator()), likelihood).double()
    evidence = norm.logpdf(sign.numpy(), 0.0, np.sqrt(1.0 + noise)).mean()
    objective = elbo(model(X), likelihood, sign[:, None], torch.ones(n_rows).double(), 1 / n_rows).item()
    assert evidence == pytest.approx(-1.42, abs=0.005)
    assert objective > 0.8  # 1.33 where mean and deviation are best
    assert elbo(model(X), likelihood, sign[:, None], torch.ones(n_rows).double(), 1.0).item() < evidence
