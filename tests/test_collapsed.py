"""The collapsed bound: against dense algebra, the uncollapsed bound and the exact evidence."""

import numpy as np
import pytest
import torch
from helpers import ELBO, generator, normal, settings
from scipy.stats import multivariate_normal

from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer, OrthogonalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.propagation import make_propagation
from skdgp.inference import collapsed as module
from skdgp.inference.batches import Batch, Part
from skdgp.inference.collapsed import collapsed, set_posteriors, train
from skdgp.inference.objectives import elbo
from skdgp.inference.settings import Member

N_ROWS, N_INPUTS, N_INDUCING, N_ORTHOGONAL = 30, 2, 6, 5

every_split = pytest.mark.parametrize("n_orthogonal", [0, N_ORTHOGONAL])
every_n_outputs = pytest.mark.parametrize("n_outputs", [1, 2])


def make_data(n_outputs=1, *, weighted=False):
    X = normal(N_ROWS, N_INPUTS, seed=1)
    y = torch.stack([(X[:, 0] * (2 + d)).sin() + 0.3 * normal(N_ROWS, seed=d) for d in range(n_outputs)], dim=1)
    return Batch(X, y, 0.5 + normal(N_ROWS, seed=3).abs() if weighted else torch.ones(N_ROWS, dtype=torch.float64))


@torch.no_grad()
def make_model(data, n_orthogonal=N_ORTHOGONAL, jitter=1e-12):
    """A model of one whitened layer whose inducing points are rows of the data, and others."""
    n_outputs = data.y.shape[1]
    kernel = StationaryKernel("matern52", N_INPUTS, lengthscale=0.9, variance=1.4, ard=True).double()
    Z, v = normal(N_INDUCING, N_INPUTS, seed=5), torch.zeros(n_outputs, N_INDUCING, dtype=torch.float64)
    options = {"covariance": "full", "whiten": True, "jitter": jitter}
    if n_orthogonal:
        O = normal(n_orthogonal, N_INPUTS, seed=6)  # noqa: E741
        layer = OrthogonalLayer(kernel, ZeroMean(n_outputs), Z, v, **options, O=O, orthogonal_covariance="full")
    else:
        layer = GlobalLayer(kernel, ZeroMean(n_outputs), Z, v, **options)
    likelihood = Gaussian(n_outputs, excess=0.1)
    likelihood.log_excess.add_(0.3 * torch.arange(n_outputs))
    return DeepGP([layer], make_propagation("monte_carlo", (), 1, generator()), likelihood).double()


@torch.no_grad()
def uncollapsed(model, data):
    """The bound of the layer's own posteriors, by the objective of minibatch training."""
    return len(data) * elbo(model(data.X), model.likelihood, data.y, data.weight, 1 / len(data)).item()


@torch.no_grad()
def evidence(model, data):
    """log N(y | 0, K + σ²I), summed over outputs."""
    K = model.layers[0].kernel(data.X, data.X)[0].numpy()
    return sum(
        multivariate_normal.logpdf(data.y[:, d].numpy(), cov=K + noise.item() * np.eye(N_ROWS))
        for d, noise in enumerate(model.likelihood.variance)
    )


@every_n_outputs
@torch.no_grad()
def test_without_orthogonal_points_it_is_the_bound_of_titsias(n_outputs):
    """Eq. 3, dense: log N(y | 0, Q + σ²I) − tr(K − Q)/(2σ²)."""
    data = make_data(n_outputs)
    model = make_model(data, 0)
    layer = model.layers[0]
    K = lambda a, b: layer.kernel(a, b)[0].numpy()  # noqa: E731
    Q = K(data.X, layer.Z) @ np.linalg.solve(K(layer.Z, layer.Z), K(layer.Z, data.X))
    expected = 0.0
    for d, noise in enumerate(model.likelihood.variance.tolist()):
        expected += multivariate_normal.logpdf(data.y[:, d].numpy(), cov=Q + noise * np.eye(N_ROWS))
        expected -= np.trace(K(data.X, data.X) - Q) / (2 * noise)
    assert collapsed(model, data).bound.item() == pytest.approx(expected, rel=1e-8)


@torch.no_grad()
def test_is_equation_9_at_the_optimal_posterior_of_v():
    """Dense: log N(y | C_fv C_vv⁻¹ m_v, Q + σ²I) − tr(S_f⊥)/(2σ²) − KL, with plain v."""
    data = make_data()
    model = make_model(data)
    layer, noise = model.layers[0], model.likelihood.variance.item()
    K = lambda a, b: layer.kernel(a, b)[0].numpy()  # noqa: E731
    C = lambda a, b: K(a, b) - K(a, layer.Z) @ np.linalg.solve(K(layer.Z, layer.Z), K(layer.Z, b))  # noqa: E731
    best = collapsed(model, data)
    C_vv, C_fv = C(layer.O, layer.O), C(data.X, layer.O)
    L = np.linalg.cholesky(C_vv)
    m, S = L @ best.v_mean[0].numpy(), L @ best.v_covariance[0].numpy() @ L.T
    gain = C_fv @ np.linalg.inv(C_vv)
    Q = K(data.X, data.X) - C(data.X, data.X)
    S_f = C(data.X, data.X) - gain @ C_fv.T + gain @ S @ gain.T
    y = data.y[:, 0].numpy()
    expected = multivariate_normal.logpdf(y, mean=gain @ m, cov=Q + noise * np.eye(N_ROWS))
    expected -= np.trace(S_f) / (2 * noise)
    log_det = np.linalg.slogdet(C_vv)[1] - np.linalg.slogdet(S)[1]
    expected -= 0.5 * (np.trace(np.linalg.solve(C_vv, S)) + m @ np.linalg.solve(C_vv, m) - len(m) + log_det)
    assert best.bound.item() == pytest.approx(expected, rel=1e-8)


@every_split
@every_n_outputs
@pytest.mark.parametrize("weighted", [False, True])
@torch.no_grad()
def test_the_uncollapsed_bound_reaches_it_at_the_optimum_alone(n_orthogonal, n_outputs, weighted):
    data = make_data(n_outputs, weighted=weighted)
    model = make_model(data, n_orthogonal)
    bound = collapsed(model, data).bound.item()
    assert uncollapsed(model, data) < bound - 1.0
    set_posteriors(model, data)
    assert uncollapsed(model, data) == pytest.approx(bound, rel=1e-9)
    for posterior in model.layers[0].posteriors:
        for parameter in posterior.parameters():
            kept = parameter.clone()
            parameter.add_(0.05 * normal(*parameter.shape, seed=9))
            assert uncollapsed(model, data) < bound - 1e-5
            parameter.copy_(kept)


@every_split
def test_a_row_of_weight_two_is_that_row_twice(n_orthogonal):
    """In the bound, and at every step of training."""
    data, repeats = make_data(), torch.arange(N_ROWS) % 4
    weighted = Batch(data.X, data.y, repeats.double()).rows(repeats > 0)
    repeated = data.rows(torch.arange(N_ROWS).repeat_interleave(repeats))
    models = [make_model(data, n_orthogonal, jitter=1e-6) for _ in range(2)]
    bounds = [collapsed(models[0], each).bound.item() for each in (weighted, repeated)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-10)
    losses = [run(model, each).loss for model, each in zip(models, (weighted, repeated), strict=True)]
    np.testing.assert_allclose(losses[0][:10], losses[1][:10], rtol=1e-8)


@every_n_outputs
@torch.no_grad()
def test_lies_between_the_bound_of_fewer_points_and_the_evidence(n_outputs):
    data = make_data(n_outputs)
    alone, both = (collapsed(make_model(data, n), data).bound.item() for n in (0, N_ORTHOGONAL))
    assert alone + 0.1 < both < evidence(make_model(data), data)


@torch.no_grad()
def test_rows_are_taken_in_chunks(monkeypatch):
    data = make_data()
    model = make_model(data)
    whole = collapsed(model, data)
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 7 * (N_INDUCING + N_ORTHOGONAL))
    for part, expected in zip(collapsed(model, data), whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-10, atol=1e-12)


def test_gradients(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 7 * (N_INDUCING + N_ORTHOGONAL))
    data = make_data(weighted=True)
    model = make_model(data)
    layer = model.layers[0]
    moved = [layer.Z, layer.O, layer.kernel.log_lengthscale, layer.kernel.log_variance, model.likelihood.log_excess]
    gradients = torch.autograd.grad(collapsed(model, data).bound, moved)
    with torch.no_grad():
        for parameter, gradient in zip(moved, gradients, strict=True):
            direction = normal(*parameter.shape, seed=2)
            bounds = []
            for step in (1e-5, -2e-5):
                parameter.add_(step * direction)
                bounds.append(collapsed(model, data).bound.item())
            parameter.add_(1e-5 * direction)
            assert (bounds[0] - bounds[1]) / 2e-5 == pytest.approx((gradient * direction).sum().item(), rel=1e-5)


def run(model, data, *on_epoch):
    watch = [lambda histories, each=each: each(histories[0]) for each in on_epoch]
    [history] = train([Member(model, Part(data), generator())], settings(ELBO, max_iter=30), *watch)
    return history


@every_split
def test_training_climbs_and_ends_at_the_optimal_posteriors(n_orthogonal):
    data = make_data()
    model = make_model(data, n_orthogonal, jitter=1e-6)
    start = collapsed(model, data).bound.item()
    history = run(model, data)
    end = collapsed(model, data).bound.item()
    assert end > start + 1.0
    assert len(history.loss) == history.best_epoch <= 30
    prior = model.layers[0].kernel.log_prior().item()
    assert -N_ROWS * history.loss[-1] == pytest.approx(end + prior, rel=1e-9)
    assert uncollapsed(model, data) == pytest.approx(end, rel=1e-7)
    assert end < evidence(model, data)


def test_a_callback_can_stop_training():
    data = make_data()
    history = run(make_model(data, jitter=1e-6), data, lambda history: len(history.loss) == 3)
    assert len(history.loss) == 3


@torch.no_grad()
@every_split
@every_n_outputs
@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_left_out_is_a_posterior_without_the_row(n_orthogonal, n_outputs, beta):
    """The posteriors of both sets are independent, so that each loses the row by itself."""
    data = make_data(n_outputs, weighted=True)
    model = make_model(data, n_orthogonal)
    set_posteriors(model, data, beta)
    mean, variance = module.left_out(model, data, data, beta)
    for row in (0, 7, 29):
        set_posteriors(model, data.rows(torch.arange(N_ROWS) != row), beta)
        found = model(data.X[row, None])
        torch.testing.assert_close(mean[row], found.mean[0, 0], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(variance[row], found.variance[0, 0], rtol=1e-7, atol=1e-9)


@torch.no_grad()
@every_split
@pytest.mark.parametrize("weighted", [False, True])
def test_features_are_computed_once_if_there_is_room(n_orthogonal, weighted, monkeypatch):
    """All rows by themselves, some of them, and chunks of which none is kept say the same."""
    data = make_data(2, weighted=weighted)
    model = make_model(data, n_orthogonal)
    set_posteriors(model, data)
    seen, features = [], module._features
    monkeypatch.setattr(module, "_features", lambda layer, X: seen.append(len(X)) or features(layer, X))
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 7 * sum(model.layers[0].sizes))
    expected = module.left_out(model, data, data)
    assert sum(seen) == N_ROWS and max(seen) == 7
    some = torch.tensor([3, 20, 11])
    found = module.left_out(model, data.rows(some), data)
    torch.testing.assert_close(found, tuple(values[some] for values in expected))
    seen.clear()
    monkeypatch.setattr(module, "KEPT_NUMBERS", 0)
    torch.testing.assert_close(module.left_out(model, data, data), expected)
    assert sum(seen) == 2 * N_ROWS


@torch.no_grad()
@pytest.mark.parametrize("noise", [1e-4, 1e-8, 1e-12, 1e-14])
@pytest.mark.parametrize("weight", [1.0, 7.0])
def test_rows_that_no_others_explain_are_predicted_by_the_prior(noise, weight):
    """With so little noise 1 − h has few digits, or none."""
    X = 100.0 * torch.arange(1, N_ROWS + 1, dtype=torch.float64)[:, None].expand(-1, N_INPUTS)
    data = Batch(X, normal(N_ROWS, 1, seed=2), torch.full((N_ROWS,), weight, dtype=torch.float64))
    kernel = StationaryKernel("matern52", N_INPUTS, lengthscale=0.9, variance=1.4).double()
    layer = GlobalLayer(
        kernel, ZeroMean(1), X, torch.zeros(1, N_ROWS).double(), covariance="full", whiten=True, jitter=1e-12
    )
    likelihood = Gaussian(1, excess=noise, floor=0.0)
    model = DeepGP([layer], make_propagation("monte_carlo", (), 1, generator()), likelihood).double()
    set_posteriors(model, data)
    mean, variance = module.left_out(model, data, data)
    of_others = module.leverages(model, data, data, torch.ones(N_ROWS))
    torch.testing.assert_close(variance, torch.full_like(variance, 1.4), rtol=1e-2, atol=0.0)
    torch.testing.assert_close(of_others.residual, data.y - mean)
    if noise > 1e-10:
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0.0, atol=1e-3)
    spread = data.y.max() - data.y.min()
    assert mean.abs().max() <= data.y.abs().max() + spread  # as far as rounding errors leave digits
