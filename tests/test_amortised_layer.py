"""Amortised layers and inference networks: the cases in which they must equal something simpler."""

import numpy as np
import pytest
import torch
from helpers import ExactRegression, every_covariance, every_whiten, generator, normal, shared_or_own_kernels
from torch import nn

from skdgp.gp.amortised_layer import AmortisedLayer
from skdgp.gp.conditionals import conditional, kl_divergence
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.linalg import JITTER, inverse_cholesky
from skdgp.gp.means import LinearMean, ZeroMean
from skdgp.gp.networks import DEVIATION_FLOOR, INFERENCE_NETWORKS
from skdgp.gp.waves import Streams
from skdgp.inference.state import from_plain, to_plain

N_INPUTS, N_OUTPUTS, N_INDUCING, N_ROWS, N_SAMPLES = 3, 2, 4, 5, 3

every_sharing = shared_or_own_kernels(N_OUTPUTS)
every_network = pytest.mark.parametrize("network", INFERENCE_NETWORKS)


def make_network(network="affine", covariance="full", seed=0):
    shape = (N_INPUTS, N_OUTPUTS, N_INDUCING)
    return INFERENCE_NETWORKS[network](*shape, covariance=covariance, widths=(6, 6), generator=generator(seed))


@torch.no_grad()
def make_layer(network="affine", covariance="full", *, whiten=True, linear=True, n_kernels=N_OUTPUTS):
    """A layer whose parameters all differ from their neighbours and from their initial values."""
    kernel = StationaryKernel("matern32", N_INPUTS, n_kernels, ard=True)
    projection = normal(N_INPUTS, N_OUTPUTS, seed=8)
    mean = LinearMean(projection, learnable=True) if linear else ZeroMean(N_OUTPUTS)
    layer = AmortisedLayer(kernel, mean, make_network(network, covariance), whiten=whiten).double()
    for seed, parameter in enumerate(layer.parameters()):
        parameter.add_(0.3 * normal(*parameter.shape, seed=seed))
    return layer


def inverse_softplus(x):
    return x + torch.log(-torch.expm1(-x))


@torch.no_grad()
def make_constant(network, Z, mean, scale):
    """Let an affine ``network`` say Z (M, Q), mean (M, D) and scale (M, D) or (M, M, D) for every row."""
    numbers = scale
    if scale.dim() == 3:
        rows, columns = torch.tril_indices(len(Z), len(Z), -1)
        numbers = torch.cat([scale.diagonal().mT, scale[rows, columns]])
    numbers = numbers.clone()
    numbers[: len(Z)] = inverse_softplus(numbers[: len(Z)] - DEVIATION_FLOOR)
    network.points.weight.zero_()
    network.points.bias.copy_(Z.flatten())
    for nets in network.nets:
        nets.weights[-1].zero_()
    biases = [bias for nets in network.nets for bias in nets.biases[-1]]
    for bias, value in zip(biases, (mean, numbers), strict=True):
        bias.copy_(value.reshape(-1, 1))


def make_posterior(covariance, n_inducing=N_INDUCING, n_outputs=N_OUTPUTS):
    """Mean (M, D) and scale (M, D) or (M, M, D)."""
    mean, scale = normal(n_inducing, n_outputs, seed=1), 0.2 + normal(n_inducing, n_outputs, seed=2).abs()
    if covariance == "full":
        below = 0.3 * normal(n_outputs, n_inducing, n_inducing, seed=3).tril(-1)
        scale = (below + torch.diag_embed(scale.mT)).permute(1, 2, 0)
    return mean, scale


@every_whiten
@every_covariance
@pytest.mark.parametrize("linear", [False, True], ids=["zero mean", "linear mean"])
@every_sharing
@torch.no_grad()
def test_constant_networks_make_a_global_layer(whiten, covariance, linear, n_kernels):
    layer = make_layer("affine", covariance, whiten=whiten, linear=linear, n_kernels=n_kernels)
    Z, (mean, scale) = normal(N_INDUCING, N_INPUTS, seed=4), make_posterior(covariance)
    make_constant(layer.inference, Z, mean, scale)
    x, anchor = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5), normal(N_ROWS, N_INPUTS, seed=6)

    flat = x.flatten(0, 1)
    W, Kzx = inverse_cholesky(layer.kernel(Z, Z)), layer.kernel(Z, flat)
    if not whiten:
        mean = mean - layer.mean(Z)
    q = mean.mT, scale.movedim(-1, 0)
    f_mean, f_variance = conditional(W, Kzx, *q, kxx=layer.kernel.variance[:, None], whiten=whiten)  # (D, S·B)
    expected_mean = (f_mean.mT + layer.mean(flat)).unflatten(0, (N_SAMPLES, N_ROWS))
    expected_kl = kl_divergence(*q, None if whiten else W).sum()

    result_mean, result_variance, kl = layer(x, anchor)
    torch.testing.assert_close(result_mean, expected_mean, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(result_variance, f_variance.mT.unflatten(0, (N_SAMPLES, N_ROWS)), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(kl, expected_kl.expand(N_ROWS), rtol=1e-9, atol=1e-11)


class DenseRegression(ExactRegression):
    """Exact regression, and the optimal q(u) at its training inputs."""

    def __init__(self):
        super().__init__(7, "ar1")
        self.kernel = self.make_kernel()
        K = self.covariance(self.X.numpy())
        gain = K @ np.linalg.inv(K + self.NOISE * np.eye(len(K)))
        self.q_mean = torch.from_numpy(gain @ self.y[:, 0].numpy())
        self.q_scale = torch.from_numpy(np.linalg.cholesky(K - gain @ K))


class GlobalLayer(nn.Module):
    """Sparse GP with hardly any jitter, in plain coordinates."""

    def __init__(self, kernel, Z, q_mean, q_scale):
        super().__init__()
        self.kernel, self.Z, self.q = kernel, Z, (q_mean[None], q_scale[None])

    def forward(self, x, anchor, targets=None):
        W = inverse_cholesky(self.kernel(self.Z, self.Z), jitter=1e-12)
        mean, variance = conditional(
            W, self.kernel(self.Z, x[0]), *self.q, kxx=self.kernel.variance[:, None], whiten=False
        )
        return mean.mT[None], variance.mT[None], kl_divergence(*self.q, W).sum()


@torch.no_grad()
def test_the_optimal_posterior_is_exact_regression():
    exact = DenseRegression()
    layer = GlobalLayer(exact.kernel, exact.X, exact.q_mean, exact.q_scale)
    mean, variance, _ = layer(exact.X_test[None], exact.X_test)
    np.testing.assert_allclose(mean[0, :, 0], exact.mean, atol=1e-6)
    np.testing.assert_allclose(variance[0, :, 0].sqrt(), exact.deviation, atol=1e-6)
    assert exact.total_elbo(layer) == pytest.approx(exact.evidence, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
@torch.no_grad()
def test_no_other_posterior_reaches_the_evidence(seed):
    exact = DenseRegression()
    step = 0.1 * normal(len(exact.X), seed=seed)
    moved = GlobalLayer(exact.kernel, exact.X, exact.q_mean + step, exact.q_scale)
    stretched = GlobalLayer(exact.kernel, exact.X, exact.q_mean, step.exp()[:, None] * exact.q_scale)
    coarse = GlobalLayer(exact.kernel, exact.X[::2], exact.q_mean[::2], exact.q_scale[::2, ::2])
    for layer in (moved, stretched, coarse):
        assert exact.total_elbo(layer) < exact.evidence - 1e-4


@torch.no_grad()
def test_constant_networks_can_be_exact_regression():
    exact = DenseRegression()
    network = INFERENCE_NETWORKS["affine"](1, 1, len(exact.X), covariance="full", widths=(2, 2), generator=generator())
    layer = AmortisedLayer(exact.kernel, ZeroMean(1), network, whiten=False).double()
    make_constant(network, exact.X, exact.q_mean[:, None], exact.q_scale[..., None])
    mean, variance, _ = layer(exact.X_test[None], exact.X_test)
    np.testing.assert_allclose(mean[0, :, 0], exact.mean, atol=100 * JITTER)
    np.testing.assert_allclose(variance[0, :, 0].sqrt(), exact.deviation, atol=100 * JITTER)
    assert exact.total_elbo(layer) == pytest.approx(exact.evidence, abs=100 * JITTER)


@every_network
@every_whiten
@torch.no_grad()
def test_an_anchor_per_sample_is_a_loop_over_samples(network, whiten):
    layer = make_layer(network, whiten=whiten)
    x, anchor = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5), normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=6)
    mean, variance, kl = layer(x, anchor)
    loop = [layer(x[s : s + 1], anchor[s]) for s in range(N_SAMPLES)]
    torch.testing.assert_close(mean, torch.cat([part[0] for part in loop]))
    torch.testing.assert_close(variance, torch.cat([part[1] for part in loop]))
    torch.testing.assert_close(kl, torch.stack([part[2] for part in loop]).mean(0))


@every_network
@every_whiten
@every_covariance
@torch.no_grad()
def test_a_row_depends_on_that_row_alone(network, whiten, covariance):
    layer = make_layer(network, covariance, whiten=whiten)
    x, anchor = normal(N_SAMPLES, N_ROWS, N_INPUTS, seed=5), normal(N_ROWS, N_INPUTS, seed=6)
    others = torch.arange(N_ROWS) != 2
    before = layer(x, anchor)
    x[:, others] += 1.0
    anchor[others] -= 1.0
    for old, new, rows in zip(before, layer(x, anchor), (1, 1, 0), strict=True):
        torch.testing.assert_close(new.select(rows, 2), old.select(rows, 2), rtol=1e-12, atol=1e-12)
        assert not torch.isclose(new.movedim(rows, 0)[others], old.movedim(rows, 0)[others]).any()


@every_network
@every_covariance
def test_shapes_and_signs_of_what_networks_say(network, covariance):
    Z, mean, scale = make_network(network, covariance)(normal(N_ROWS, N_INPUTS).float())
    assert Z.shape == (N_ROWS, N_INDUCING, N_INPUTS)
    assert mean.shape == (N_INDUCING, N_OUTPUTS, N_ROWS)
    square = (N_INDUCING,) if covariance == "full" else ()
    assert scale.shape == (*square, N_INDUCING, N_OUTPUTS, N_ROWS)
    if covariance == "full":
        scale = scale.movedim((0, 1), (-2, -1))
        assert torch.equal(scale, scale.tril())
        assert scale.tril(-1).any()
        scale = scale.diagonal(dim1=-2, dim2=-1)
    assert (scale > 0).all()


@every_network
def test_inducing_variables_of_a_row_start_equal(network):
    Z, mean, scale = make_network(network, "diag")(normal(N_ROWS, N_INPUTS).float())
    for part in (mean, scale):
        torch.testing.assert_close(part, part[:1].expand_as(part))
        assert not torch.isclose(part[0, 0], part[0, 1]).any()  # but outputs of a layer differ
    assert not torch.isclose(Z[:, :1], Z[:, 1:]).any()  # and so do their places


def test_affine_inducing_points_start_as_translations():
    network = make_network("affine")
    anchor = normal(N_ROWS, N_INPUTS).float()
    shift = network(anchor)[0] - anchor[:, None]
    torch.testing.assert_close(shift, shift[:1].expand_as(shift))


@every_network
def test_initial_weights_come_from_the_generator_alone(network):
    state = torch.random.get_rng_state()
    first, same, other = (make_network(network, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if name != "points.weight")


@pytest.mark.parametrize(
    ("network", "covariance", "n_inputs", "n_inducing", "n_outputs", "widths"),
    [
        ("mlp", "full", 30, 4, 1, [30]),  # of 4·30 + 4 + 4 + 6 outputs
        ("mlp", "diag", 2, 4, 1, [2]),
        ("affine", "diag", 30, 4, 2, [8]),  # two networks side by side
        ("affine", "full", 30, 4, 1, [4, 10]),
        ("affine", "full", 30, 1, 3, [3]),
        ("affine", "diag", 3, 4, 2, [3]),
    ],
)
def test_without_a_width_a_network_has_the_smaller_of_its_inputs_and_outputs(
    network, covariance, n_inputs, n_inducing, n_outputs, widths
):
    shape = n_inputs, n_outputs, n_inducing
    options = {"covariance": covariance, "generator": generator()}
    made, given = (INFERENCE_NETWORKS[network](*shape, widths=3 * (width,), **options) for width in (None, 7))
    nets = list(made.nets) if network == "affine" else [made.net]
    assert [[bias.shape[1] for bias in net.biases[:-1]] for net in nets] == [3 * [width] for width in widths]
    nets = list(given.nets) if network == "affine" else [given.net]
    assert [[bias.shape[1] for bias in net.biases[:-1]] for net in nets] == [3 * [7] for _ in widths]


@every_whiten
@every_covariance
@torch.no_grad()
def test_scales_cannot_vanish_in_single_precision(whiten, covariance):
    layer = make_layer("affine", covariance, whiten=whiten).float()
    layer.inference.nets[-1].biases[-1][-1, : N_INDUCING * N_OUTPUTS] = -1e4
    anchor = normal(N_ROWS, N_INPUTS).float()
    scale = layer.inference(anchor)[2]
    diagonal = scale.diagonal(dim1=0, dim2=1).movedim(-1, 0) if covariance == "full" else scale
    torch.testing.assert_close(diagonal, torch.full_like(diagonal, DEVIATION_FLOOR))
    assert all(part.isfinite().all() for part in layer(anchor[None], anchor))


@every_network
@every_covariance
def test_the_largest_tensor_is_announced(network, covariance):
    layer = make_layer(network, covariance)
    assert layer.numbers_per_row(1) == N_INDUCING * N_OUTPUTS * (N_INDUCING + 1)
    assert layer.numbers_per_row(10) == N_INDUCING * N_OUTPUTS * (N_INDUCING + 10)


@torch.no_grad()
def make_crossing(covariance, profile="matern52", seed=0):
    """A layer of one input whose points move at speeds of their own, and so pass each other."""
    network = INFERENCE_NETWORKS["affine"](
        1, 1, N_INDUCING, covariance=covariance, widths=(6, 6), generator=generator(0)
    )
    layer = AmortisedLayer(StationaryKernel(profile, 1, 1), ZeroMean(1), network, whiten=True).double()
    for number, parameter in enumerate(layer.parameters()):
        parameter.add_(normal(*parameter.shape, seed=10 * seed + number))
    return layer


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("covariance", ["diag", "full"])
@torch.no_grad()
def test_functions_go_on_where_points_pass_each_other(covariance, seed):
    """Means and drawn functions a little before and after two points have met, with the sign and without."""
    layer, x = make_crossing(covariance, seed=seed), torch.linspace(-4, 4, 8_001).double()[:, None]
    changes = layer._turns(layer._unit_inference(x)[0]).diff(dim=1)
    meeting = x[:-1][(changes != 0).any(0)]
    steps = []
    for layer.turns in (True, False):
        before, after = (
            torch.cat([layer(at[None], at)[0], layer.draw(Streams(range(3), at.device))(at[None], at)])
            for at in (meeting - 0.01, meeting + 0.01)
        )
        steps.append((after - before).abs().mean())
    assert len(meeting) > 3 and steps[0] < 0.25 * steps[1]


@torch.no_grad()
def test_signs_are_those_of_a_smooth_root():
    """Against the determinant: the product of all differences, whose sign is that of the Vandermonde matrix."""
    layer = make_crossing("diag")
    Z = normal(50, N_INDUCING, 1)
    signs = layer._turns(Z).prod(0)
    vandermonde = np.stack([np.vander(points, increasing=True) for points in Z[..., 0].numpy()])
    np.testing.assert_array_equal(signs.numpy(), np.sign(np.linalg.det(vandermonde)))


def test_layers_of_earlier_files_compute_as_before():
    layer = make_crossing("full")
    state = to_plain(layer)
    del state["attributes"]["turns"]
    again, x = from_plain(state), torch.linspace(-4, 4, 101).double()[:, None]
    assert not again.turns and from_plain(to_plain(layer)).turns
    layer.turns = False
    torch.testing.assert_close(again(x[None], x)[0], layer(x[None], x)[0])
