"""Deep models: the ways of travelling between layers, and the limits in which they must agree."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import generator, normal
from scipy.stats import norm

from skdgp.gp.amortised_layer import AmortisedLayer
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.layers import Layer
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import LinearMean, ZeroMean
from skdgp.gp.networks import AffineInference
from skdgp.gp.propagation import Propagation, Route, anchor_at_mean, anchor_at_sample, make_propagation
from skdgp.inference.objectives import log_mixture

N_INPUTS, N_ROWS, N_SAMPLES = 2, 6, 4
RULES = ["ar1", "ar2", "ar2p"]

every_rule = pytest.mark.parametrize("rule", RULES)


def make_model(rule, hidden_dims=(N_INPUTS,), n_samples=N_SAMPLES):
    """A deep GP with whitened layers and identity means; layers of equal place have equal parameters."""
    source = generator()
    widths = (N_INPUTS, *hidden_dims, 1)
    layers = []
    for n_in, n_out in pairwise(widths):
        network = AffineInference(n_in, n_out, 3, covariance="full", widths=(4, 4), generator=source)
        mean = LinearMean(torch.eye(n_in, n_out), learnable=False) if len(layers) < len(hidden_dims) else ZeroMean(1)
        layers.append(AmortisedLayer(StationaryKernel("rbf", n_in, n_out), mean, network, whiten=True))
    return DeepGP(layers, make_propagation(rule, hidden_dims, n_samples, source), Gaussian(1)).double()


@torch.no_grad()
def silence(layer):
    """Leave nothing of a whitened ``layer`` but its mean function."""
    layer.kernel.log_variance.fill_(-80.0)
    return layer


def assert_same_mixture(marginals, expected):
    """Components are compared one by one, and broadcast where they are all the same."""
    mean, variance, log_weight, kl = marginals[:4]
    torch.testing.assert_close(mean, expected.mean.expand_as(mean), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(variance, expected.variance.expand_as(variance), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kl, expected.kl, rtol=1e-9, atol=1e-9)
    assert log_weight.exp().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("rule", ["ar2", "ar2p"])
@torch.no_grad()
def test_rules_agree_on_one_layer(rule):
    X = normal(N_ROWS, N_INPUTS, seed=1)
    marginals = make_model(rule, ())(X)
    assert marginals.mean.shape == (1, N_ROWS, 1)
    assert_same_mixture(marginals, make_model("ar1", ())(X))


@pytest.mark.parametrize("rule", ["ar2", "ar2p"])
@pytest.mark.parametrize("hidden_dims", [(N_INPUTS,), (3,), (2, 2)])
@torch.no_grad()
def test_rules_agree_where_hidden_variance_vanishes(rule, hidden_dims):
    X, (model, ar1) = normal(N_ROWS, N_INPUTS, seed=1), (make_model(name, hidden_dims) for name in (rule, "ar1"))
    for layer in (*model.layers[:-1], *ar1.layers[:-1]):
        silence(layer)
    assert_same_mixture(model(X), ar1(X))


@torch.no_grad()
def test_rules_differ_where_hidden_variance_does_not_vanish():
    X = normal(N_ROWS, N_INPUTS, seed=1)
    assert not torch.isclose(make_model("ar1")(X).mean, make_model("ar2")(X).mean).any()


@pytest.mark.parametrize("hidden_dims", [(N_INPUTS,), (3, 2)])
@torch.no_grad()
def test_quadrature_at_the_noise_of_monte_carlo_equals_it(hidden_dims):
    X = normal(N_ROWS, N_INPUTS, seed=1)
    monte_carlo, quadrature = (make_model(rule, hidden_dims) for rule in ("ar2", "ar2p"))
    noise = [normal(N_SAMPLES, 1, width, seed=2) for width in hidden_dims]
    for model in (monte_carlo, quadrature):
        for stored, value in zip(model.propagation.points, noise, strict=True):
            stored.copy_(value)
    assert_same_mixture(quadrature(X), monte_carlo(X))
    torch.testing.assert_close(quadrature(X).log_weight, monte_carlo(X).log_weight)
    assert not torch.isclose(quadrature(X).mean[0], quadrature(X).mean[1]).any()


@every_rule
@pytest.mark.parametrize("depth", [1, 2])
@torch.no_grad()
def test_silent_layers_with_identity_means_leave_the_last_layer(rule, depth):
    X, model = normal(N_ROWS, N_INPUTS, seed=1), make_model(rule, depth * (N_INPUTS,))
    *hidden, last = model.layers
    hidden_kl = sum(silence(layer)(X[None], X)[2] for layer in hidden)
    mean, variance, kl = last(X[None], X)
    expected = model(X)._replace(mean=mean, variance=variance, kl=hidden_kl + kl)
    assert_same_mixture(model(X), expected)


@every_rule
@torch.no_grad()
def test_three_layers_step_by_step(rule):
    """The equations written out, with unequal weights."""
    X, model = normal(N_ROWS, N_INPUTS, seed=1), make_model(rule, (2, 3))
    weight = torch.full((N_SAMPLES,), 1 / N_SAMPLES, dtype=torch.float64)
    if rule == "ar2p":
        model.propagation.logits.copy_(normal(N_SAMPLES, seed=2))
        weight = model.propagation.logits.exp() / model.propagation.logits.exp().sum()
    first, second, third = model.layers
    xi1, xi2 = model.propagation.points

    mean, variance, kl1 = first(X[None], X)
    F = mean[0] + variance[0].sqrt() * xi1
    anchor = F if rule == "ar1" else mean[0]
    mean, variance, kl2 = second(F, anchor)
    F = torch.stack([mean[s] + variance[s].sqrt() * xi2[s] for s in range(N_SAMPLES)])
    anchor = F if rule == "ar1" else sum(weight[s] * mean[s] for s in range(N_SAMPLES))
    mean, variance, kl3 = third(F, anchor)

    marginals = model(X)
    torch.testing.assert_close(marginals.mean, mean)
    torch.testing.assert_close(marginals.variance, variance)
    torch.testing.assert_close(marginals.kl, kl1 + kl2 + kl3)
    torch.testing.assert_close(marginals.log_weight, weight.log()[:, None])


def test_anchors():
    F, mean = normal(3, N_ROWS, 2, seed=1), normal(3, N_ROWS, 2, seed=2)
    weight = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)[:, None, None]
    assert torch.equal(anchor_at_sample(F, mean, weight), F)
    np.testing.assert_allclose(anchor_at_mean(F, mean, weight), np.average(mean, axis=0, weights=[0.5, 0.2, 0.3]))
    # The first layer has one mean, however many samples are drawn from it.
    assert torch.equal(anchor_at_mean(F, mean[:1], weight), mean[0])


@every_rule
@torch.no_grad()
def test_a_prediction_depends_on_its_row_alone(rule):
    X, model = normal(N_ROWS, N_INPUTS, seed=1), make_model(rule, (3, 2))
    together, order = model(X), torch.randperm(N_ROWS, generator=generator())
    for part, rows, shuffled in zip(together[:4], (1, 1, None, 0), model(X[order])[:4], strict=True):
        expected = part if rows is None else part.index_select(rows, order)
        torch.testing.assert_close(shuffled, expected, rtol=1e-10, atol=1e-12)
    for i in range(N_ROWS):
        torch.testing.assert_close(model(X[i : i + 1]).mean[:, 0], together.mean[:, i], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rule", "mixture", "n_samples"), [("ar1", False, 1), ("ar1", True, 4), ("ar2", False, 4)])
@torch.no_grad()
def test_training_noise_is_fresh_and_from_the_generator_alone(rule, mixture, n_samples):
    model, X = make_model(rule), normal(1, N_INPUTS, seed=1).expand(N_ROWS, -1)
    state, source = torch.random.get_rng_state(), generator(1)
    first, second, again = (model(X, each, mixture=mixture) for each in (source, source, generator(1)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.mean.shape == (n_samples, N_ROWS, 1)
    np.testing.assert_allclose(first.log_weight.exp(), np.full((n_samples, 1), 1 / n_samples))
    assert len(first.mean.unique()) == first.mean.numel()  # equal rows, different noise
    assert not torch.isclose(first.mean, second.mean).any()
    assert torch.equal(first.mean, again.mean)


@torch.no_grad()
def test_noise_of_monte_carlo_is_standard_normal():
    _, points, log_weight, *_ = make_propagation("ar2", (5,), 100, generator())(torch.empty(200, 3), generator(1))
    np.testing.assert_allclose(log_weight.exp(), np.full((100, 1), 0.01), rtol=1e-6)
    assert points[0].shape == (100, 200, 5)
    assert points[0].mean().item() == pytest.approx(0.0, abs=0.02)
    assert points[0].var().item() == pytest.approx(1.0, abs=0.02)


@torch.no_grad()
def test_quadrature_has_no_noise():
    model, X = make_model("ar2p"), normal(N_ROWS, N_INPUTS, seed=1)
    assert_same_mixture(model(X, generator(1)), model(X))


@pytest.mark.parametrize(("rule", "learnt"), [("ar1", set()), ("ar2", set()), ("ar2p", {"points.0", "logits"})])
def test_only_quadrature_learns(rule, learnt):
    model = make_model(rule)
    marginals = model(normal(N_ROWS, N_INPUTS, seed=1))
    (marginals.mean * marginals.log_weight[..., None]).sum().backward()
    parameters = model.propagation.named_parameters()
    assert {name for name, parameter in parameters if parameter.grad is not None and parameter.grad.any()} == learnt


@every_rule
@pytest.mark.parametrize("hidden_dims", [(), (3,)])
def test_noise_is_drawn_once(rule, hidden_dims):
    state = torch.random.get_rng_state()
    first, same = (make_propagation(rule, hidden_dims, N_SAMPLES, generator()) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.n_samples == (N_SAMPLES if hidden_dims else 1)
    assert [tuple(noise.shape) for noise in first.points] == [(N_SAMPLES, 1, width) for width in hidden_dims]
    assert all(torch.equal(*pair) for pair in zip(first.points, same.points, strict=True))


@every_rule
def test_the_largest_tensor_is_that_of_the_widest_layer(rule):
    model = make_model(rule, (5,), n_samples=2)
    assert model.numbers_per_row() == 3 * 5 * (3 + 2)


class WeighsByTarget(Propagation):
    """A mixture of two whose weights differ between rows."""

    n_samples = 2

    def forward(self, X, generator=None, share=None, *, mixture=True, targets=None):
        weight = torch.stack([0.2 + 0.1 * X[:, 0], 0.8 - 0.1 * X[:, 0]])
        return Route(X[None], [torch.tensor([[[-1.0]], [[1.0]]]).double()], weight.log())

    def anchor(self, F, mean, weight):
        return anchor_at_mean(F, mean, weight)


class KnowsTargets(Layer):
    """Moves its input by the row's target, where there is one."""

    def forward(self, x, anchor, targets=None):
        mean = x if targets is None else x + targets
        return mean, torch.ones_like(mean), mean.new_zeros(())


def test_weights_may_differ_between_rows():
    X = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    model = DeepGP([KnowsTargets(), KnowsTargets()], WeighsByTarget(), Gaussian(1, excess=1.0, floor=0.0).double())
    marginals = model(X)
    assert marginals.log_weight.shape == (2, 3)
    weight = np.array([[0.2, 0.3, 0.4], [0.8, 0.7, 0.6]])
    components = X[:, 0].numpy() + np.array([[-1.0], [1.0]])
    mean, variance = marginals.moments()
    np.testing.assert_allclose(mean[:, 0], (weight * components).sum(0))
    np.testing.assert_allclose(variance[:, 0], (weight * (1 + (components - mean[:, 0].numpy()) ** 2)).sum(0))
    y = torch.zeros(3, 1, dtype=torch.float64)
    density = (weight * norm.pdf(0.0, components, np.sqrt(2.0))).sum(0)
    np.testing.assert_allclose(log_mixture(marginals, model.likelihood, y).detach(), np.log(density), rtol=1e-6)


def test_layers_see_the_targets_in_training_alone():
    X, y = normal(3, 1, seed=1), normal(3, 1, seed=2)
    model = DeepGP([KnowsTargets()], make_propagation("ar1", (), 1, generator()), Gaussian(1)).double()
    assert torch.equal(model(X).mean[0], X)
    assert torch.equal(model(X, targets=y).mean[0], X + y)
