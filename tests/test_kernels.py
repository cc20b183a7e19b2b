"""Kernels against scikit-learn, their gradients against finite differences."""

import math

import numpy as np
import pytest
import torch
from helpers import every_whiten, generator, gradients_agree, normal, shared_or_own_kernels
from sklearn.gaussian_process.kernels import RBF, Matern
from torch import nn
from torch.autograd import gradcheck

from skdgp.gp import correlations
from skdgp.gp.amortised_layer import AmortisedLayer
from skdgp.gp.correlations import CANCELS_SQUARED_DOUBLE, largest_square
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import OrthogonalLayer
from skdgp.gp.kernels import PROFILES, Kernel, StationaryKernel
from skdgp.gp.kernels import make_kernel as kernel_of
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import LinearMean, ZeroMean
from skdgp.gp.networks import AffineInference
from skdgp.gp.propagation import make_propagation
from skdgp.gp.rowwise import conditional, packed_correlation, packing, plain_conditional
from skdgp.inference.batches import Batch
from skdgp.inference.collapsed import collapsed

N_INPUTS = 3

REFERENCES = {
    "rbf": RBF,
    "matern12": lambda length_scale: Matern(length_scale, nu=0.5),
    "matern32": lambda length_scale: Matern(length_scale, nu=1.5),
    "matern52": lambda length_scale: Matern(length_scale, nu=2.5),
}

every_profile = pytest.mark.parametrize("profile", PROFILES)
every_ard = pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])
every_sharing = pytest.mark.parametrize("n_outputs", [1, 3], ids=["shared", "per output"])


def make_kernel(profile, n_outputs, ard):
    """A kernel whose hyperparameters all differ."""
    kernel = StationaryKernel(profile, N_INPUTS, n_outputs, ard=ard).double()
    with torch.no_grad():
        for seed, parameter in enumerate(kernel.parameters()):
            parameter.copy_(0.5 * normal(*parameter.shape, seed=seed))
    return kernel


class Call(nn.Module):
    """A function of a kernel and two sets of points, of everything that it depends on."""

    def __init__(self, kernel, function):
        super().__init__()
        self.kernel = kernel
        self.function = function

    def forward(self, X1, X2):
        return self.function(self.kernel, X1, X2)


@every_sharing
def test_the_diagonal_is_that_of_the_covariance(n_outputs):
    kernel, X = make_kernel("matern32", n_outputs, True), normal(2, 5, N_INPUTS, seed=3)
    expected = kernel(X, X).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(kernel.diagonal(X), expected)
    relative = kernel.relative_covariance(X, X) * kernel.variance[:, None, None]
    torch.testing.assert_close(relative, kernel(X, X))
    torch.testing.assert_close(kernel.relative_diagonal(X) * kernel.variance[:, None].expand(2, -1, 5), expected)


@every_profile
@every_ard
@every_sharing
def test_equals_scikit_learn(profile, ard, n_outputs):
    kernel = make_kernel(profile, n_outputs, ard)
    X1, X2 = normal(2, 5, N_INPUTS, seed=3), normal(2, 4, N_INPUTS, seed=4)
    K = kernel(X1, X2).detach().numpy()
    assert K.shape == (2, n_outputs, 5, 4)
    for d, (lengthscale, variance) in enumerate(
        zip(kernel.lengthscale.detach().numpy(), kernel.variance.detach().numpy(), strict=True)
    ):
        reference = REFERENCES[profile](lengthscale if ard else lengthscale.item())
        for row in range(2):
            np.testing.assert_allclose(
                K[row, d], variance * reference(X1[row].numpy(), X2[row].numpy()), rtol=1e-12, atol=1e-14
            )


@pytest.mark.parametrize("function", [StationaryKernel.covariance, packed_correlation])
@every_profile
@every_ard
@every_sharing
def test_gradients(profile, ard, n_outputs, function):
    X1, X2 = normal(2, 3, N_INPUTS, seed=3), normal(2, 2, N_INPUTS, seed=4)
    call = Call(make_kernel(profile, n_outputs, ard), function)
    assert gradients_agree(call, X1.requires_grad_(), X2.requires_grad_())


def value_and_gradients(kernel, X1, X2, weights):
    """Covariances, and gradients of their weighted sum by points and by logarithms of lengthscales."""
    K = kernel(X1, X2)[0]
    return K, *torch.autograd.grad((weights * K).sum(), (X1, X2, kernel.log_lengthscale))


@every_profile
@pytest.mark.parametrize("lengthscale", [1e-3, 1e-2, 0.3, 3.0])
def test_short_lengthscales_in_single_precision(profile, lengthscale):
    """Half of the points coincide, and half are near each other, all of them far from the origin in lengthscales."""
    X1 = normal(60, 2)
    X2 = X1 + torch.where(torch.arange(60)[:, None] < 30, 0.0, 0.5 * lengthscale) * normal(60, 2, seed=1)
    # Rows that single precision and double agree on, divided by the lengthscale or not.
    X1, X2 = ((torch.round(X / lengthscale * 64) / 64 * lengthscale).float() for X in (X1, X2))
    found, expected = (
        value_and_gradients(
            StationaryKernel(profile, 2, ard=True, lengthscale=lengthscale).to(dtype),
            X1.to(dtype).requires_grad_(),
            X2.to(dtype).requires_grad_(),
            normal(60, 60, seed=2).to(dtype),
        )
        for dtype in (torch.float32, torch.float64)
    )
    tolerance = 1e-6 if lengthscale < 0.1 else 5e-5
    torch.testing.assert_close(found[0].diagonal()[:30], torch.ones(30), rtol=0, atol=tolerance)
    for single, double in zip(found, expected, strict=True):
        assert single.dtype == torch.float32
        assert (single - double).norm() < 1e-3 * double.norm()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_points_are_looked_at_where_they_can_be():
    near, far = torch.ones(3, 2), torch.full((3, 2), 1e2)
    assert largest_square(near) == 2.0 and largest_square(far) == 2e4 and largest_square(near[:0]) == 0.0
    inside = torch.func.vmap(lambda x: 0.0 * x[0] + largest_square(x))(far)
    assert (inside == CANCELS_SQUARED_DOUBLE).all()
    found = torch.func.vmap(lambda x: StationaryKernel("rbf", 2)(x, x), in_dims=0)(torch.stack([near, 1e4 * far]))
    torch.testing.assert_close(found, torch.ones(2, 1, 3, 3))


@pytest.mark.parametrize("profile", sorted(set(PROFILES) - {"matern12"}))
@every_ard
def test_gradients_where_points_coincide(profile, ard):
    kernel = make_kernel(profile, 2, ard)
    assert gradcheck(lambda X: kernel(X, X), normal(3, N_INPUTS).requires_grad_())


SLOPES = {  # k'(r)/r for r = ‖x − x'‖/ℓ, zero for equal points
    "rbf": lambda r: -np.exp(-(r**2) / 2),
    "matern12": lambda r: np.divide(-np.exp(-r), r, out=np.zeros_like(r), where=r > 0),
    "matern32": lambda r: -3 * np.exp(-np.sqrt(np.longdouble(3)) * r),
    "matern52": lambda r: -5 / np.longdouble(3) * (1 + np.sqrt(np.longdouble(5)) * r) * np.exp(-np.sqrt(5) * r),
}


@every_profile
@pytest.mark.parametrize(
    ("few", "at_a_time"), [(0.0, 2**15), (math.inf, 2**15), (math.inf, 30)], ids=["near pairs", "all pairs", "few rows"]
)
@pytest.mark.parametrize("sets", [((), ()), ((2,), ()), ((1,), (2,))], ids=str)
def test_gradients_of_points_many_lengthscales_apart(profile, few, at_a_time, sets, monkeypatch):
    """The gradient of a matrix that is nearly singular is huge for rows that nearly coincide, and they cancel."""
    monkeypatch.setattr(correlations, "FEW_PAIRS", few)
    monkeypatch.setattr(correlations, "AT_A_TIME", at_a_time)
    kernel = StationaryKernel(profile, N_INPUTS, ard=True).double()
    with torch.no_grad():
        kernel.log_lengthscale[0] = torch.tensor([0.1, -12.0, 3.0])
    island = (torch.arange(12) % 4)[:, None] * torch.tensor([0.0, 1.0, 0.0])
    X1, X2 = (
        island[: 12 - n] + 1e-3 * normal(*lead, 12 - n, 3) * island.new_tensor([1, 0, 1]) for n, lead in enumerate(sets)
    )
    X1, X2 = X1.double().requires_grad_(), X2.double().requires_grad_()
    lead = np.broadcast_shapes(*sets)
    bar = 1e10 * normal(*lead, 1, 12, 11, seed=5)
    found = torch.autograd.grad(kernel.relative_covariance(X1, X2), (X1, X2, kernel.log_lengthscale), bar)
    x1, x2, length = (part.detach().numpy().astype(np.longdouble) for part in (X1, X2, kernel.lengthscale[0]))
    scaled = (x1[..., :, None, :] - x2[..., None, :, :]) / length
    inner = bar[..., 0, :, :].numpy() * SLOPES[profile](np.sqrt((scaled**2).sum(-1)))
    parts = inner[..., None] * scaled
    expected = [
        torch.from_numpy((parts / length).sum(-2).astype(float)).sum_to_size(X1.shape),
        torch.from_numpy((-parts / length).sum(-3).astype(float)).sum_to_size(X2.shape),
        torch.from_numpy(-(parts * scaled).sum((*range(len(lead)), -3, -2)).astype(float))[None],
    ]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7 * other.abs().max().item())
        assert (one[..., 1] == 0).all()  # rows are in the same place there, or out of reach


@every_ard
def test_the_kink_of_matern12_has_a_finite_gradient(ard):
    kernel = make_kernel("matern12", 2, ard)
    X = normal(3, N_INPUTS)
    together, apart = X.clone().requires_grad_(), X[:1].clone().requires_grad_()
    kernel(together, together)[:, 0].sum().backward()
    kernel(apart, X[1:]).sum().backward()
    torch.testing.assert_close(together.grad[:1], apart.grad)  # the diagonal adds the subgradient zero


@every_profile
@every_ard
@every_sharing
def test_packed_correlations_are_a_selection(profile, ard, n_outputs):
    kernel = make_kernel(profile, n_outputs, ard)
    Z, x = normal(4, 3, N_INPUTS, seed=3), normal(4, 2, N_INPUTS, seed=4)
    joint = kernel.relative_covariance(Z, torch.cat([Z, x], dim=1)).permute(2, 3, 1, 0).flatten(0, 1)
    packed = packed_correlation(kernel, Z, x)
    assert packed.shape == (3 + 3 * 2, n_outputs, 4)
    torch.testing.assert_close(packed, joint[packing(3, 2, Z.device).square], rtol=1e-12, atol=0)


@every_profile
@every_ard
def test_single_precision_far_from_the_origin(profile, ard):
    """Points are centred before they are scaled and multiplied, so that little is rounded or cancels."""
    kernel = make_kernel(profile, 2, ard).float()
    X = (1e3 + normal(50, N_INPUTS)).float()
    correlation = kernel.relative_covariance(X, X)
    torch.testing.assert_close(
        correlation.diagonal(dim1=-2, dim2=-1), torch.ones(2, 50), rtol=0, atol=0 if profile == "matern12" else 1e-5
    )
    exact = kernel.double().relative_covariance(X.double(), X.double())
    torch.testing.assert_close(correlation.double(), exact, rtol=0, atol=1e-5)


@every_profile
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_out_of_reach_are_uncorrelated(profile, dtype):
    kernel = make_kernel(profile, 2, True).to(dtype)
    X = normal(3, N_INPUTS).to(dtype)
    for distance in (1e8, 1e15, 1e18):
        far = (X + distance).requires_grad_()
        correlation = kernel.relative_covariance(X, far)
        assert (correlation == 0).all()
        correlation.sum().backward()
        assert (far.grad == 0).all()


def test_what_makes_no_kernel_is_refused():
    with pytest.raises(ValueError, match=r"kernel is a StationaryKernel already, .* pass what makes it"):
        kernel_of(StationaryKernel("rbf", 3), 3)
    with pytest.raises(ValueError, match=r"kernel=<function .* made a int: it must make a skdgp.gp.kernels.Kernel"):
        kernel_of(lambda *args, **options: 3, 3)
    with pytest.raises(ValueError, match=r"profile=3 is none of \['matern12', .*'rbf'\]: choose one"):
        kernel_of(StationaryKernel, 3)


@every_ard
def test_initial_hyperparameters(ard):
    default = StationaryKernel("rbf", N_INPUTS, 2, ard=ard)
    assert default.lengthscale.shape == (2, N_INPUTS if ard else 1)
    torch.testing.assert_close(default.lengthscale, torch.full_like(default.lengthscale, math.sqrt(N_INPUTS)))
    torch.testing.assert_close(default.variance, torch.ones(2))
    chosen = StationaryKernel("rbf", N_INPUTS, ard=ard, lengthscale=0.3, variance=4.0)
    torch.testing.assert_close(chosen.lengthscale, torch.full_like(chosen.lengthscale, 0.3))
    torch.testing.assert_close(chosen.variance, torch.tensor([4.0]))


class Protocol(Kernel):
    """A kernel that says what every kernel must, and nothing of what makes a stationary one fast."""

    def __init__(self, kernel):
        super().__init__(kernel.n_outputs)
        self.kernel = kernel

    def covariance(self, X1, X2):
        return self.kernel.covariance(X1, X2)

    def diagonal(self, X):
        return self.kernel.diagonal(X)


class Varying(Protocol):
    """The same times g(x) g(x'), g(x) = 1 + x₁²/2: its diagonal differs between points."""

    def covariance(self, X1, X2):
        g1, g2 = (1 + 0.5 * X[..., :1].square() for X in (X1, X2))
        return super().covariance(X1, X2) * (g1 @ g2.mT).unsqueeze(-3)

    def diagonal(self, X):
        return super().diagonal(X) * (1 + 0.5 * X[..., 0].square()).square().unsqueeze(-2)


class WithoutOutputs(Protocol):
    """Covariances without an axis of outputs."""

    def covariance(self, X1, X2):
        return super().covariance(X1, X2)[..., 0, :, :]


class InDoublePrecision(Protocol):
    """Covariances in another precision than that of the points."""

    def covariance(self, X1, X2):
        return super().covariance(X1.double(), X2.double())


class OfAnotherLibrary(Protocol):
    """Variances that are no tensor."""

    def diagonal(self, X):
        return super().diagonal(X).numpy()


class OtherVariances(Protocol):
    """Variances that are not those of the covariance."""

    def diagonal(self, X):
        return 0.5 * super().diagonal(X)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (WithoutOutputs, r"WithoutOutputs.covariance\(X1, X2\) of 2 and 3 points .*shape \(2, 2, 3\) .*got \(\(2, 3\)"),
        (InDoublePrecision, r"of shape \(2, 2, 3\) and torch.float32, .*got \(\(2, 2, 3\), torch.float64\): correct"),
        (OfAnotherLibrary, r"OfAnotherLibrary.diagonal\(X\) of 3 points must be a tensor .*got ndarray: correct"),
        (OtherVariances, r"must be the diagonal of covariance\(X, X\), here \[1.0, 1.0.*got \[0.5, 0.5"),
    ],
)
def test_kernels_of_the_users_are_checked(kernel, message):
    def make(n_inputs, n_outputs, *, ard):
        return kernel(StationaryKernel("rbf", n_inputs, n_outputs, ard=ard))

    with pytest.raises(ValueError, match=message):
        kernel_of(make, N_INPUTS, 2)
    assert kernel_of(lambda *sizes, ard: Varying(StationaryKernel("rbf", *sizes, ard=ard)), N_INPUTS).n_outputs == 1


def moved(layer):
    """The layer with parameters that all differ from their neighbours."""
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters()):
            parameter.add_(0.3 * normal(*parameter.shape, seed=seed))
    return layer


def amortised(kernel, whiten, covariance):
    network = AffineInference(N_INPUTS, 2, 4, covariance=covariance, widths=(6, 6), generator=generator())
    return AmortisedLayer(kernel, LinearMean(normal(N_INPUTS, 2).float(), learnable=True), network, whiten=whiten)


def orthogonal(kernel, whiten, covariance, **options):
    Z, v = normal(5, N_INPUTS, seed=1), normal(2, 5, seed=2)
    options |= {"covariance": covariance, "orthogonal_covariance": covariance, "O": normal(4, N_INPUTS, seed=3)}
    return OrthogonalLayer(kernel, ZeroMean(2), Z, v, whiten=whiten, white_noise=0.1, **options)


every_layer = pytest.mark.parametrize("make", [amortised, orthogonal])
every_covariance = pytest.mark.parametrize("covariance", ["diag", "full"])


@every_layer
@every_whiten
@every_covariance
@shared_or_own_kernels(2)
@torch.no_grad()
def test_layers_need_no_more_than_the_protocol(make, whiten, covariance, n_kernels):
    kernel = StationaryKernel("matern52", N_INPUTS, n_kernels, ard=True)
    layer = moved(make(kernel, whiten, covariance).double())
    x, anchor = normal(3, 5, N_INPUTS, seed=5), normal(5, N_INPUTS, seed=6)
    fast = layer(x, anchor)
    layer.kernel = Protocol(kernel).double()
    for found, expected in zip(layer(x, anchor), fast, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@every_whiten
@every_covariance
@shared_or_own_kernels(2)
def test_gradients_need_no_more_than_the_protocol(whiten, covariance, n_kernels):
    """Of rows with inducing variables of their own, with a jitter that is next to nothing."""
    kernel = make_kernel("matern52", n_kernels, True)
    Z, x = normal(5, 4, N_INPUTS, seed=1).requires_grad_(), normal(5, 3, N_INPUTS, seed=2).requires_grad_()
    mean, root = normal(4, 2, 5, seed=3).requires_grad_(), 0.2 + normal(4, 2, 5, seed=4).abs()
    if covariance == "full":
        root = torch.diag_embed(root.permute(1, 2, 0)).permute(2, 3, 0, 1) + 0.1 * normal(4, 4, 1, 1, seed=5).tril(-1)
    root.requires_grad_()
    learnt, options = [Z, x, mean, root, *kernel.parameters()], {"whiten": whiten, "jitter": 1e-12}
    deviation = kernel.deviation[:, None]
    unit = (mean, root) if whiten else (mean / deviation, root / deviation)
    fast = conditional(packed_correlation(kernel, Z, x), *unit, deviation, **options)
    gradients = []
    for outputs in (fast, plain_conditional(Protocol(kernel).double(), Z, x, mean, root, **options)):
        total = sum((weight * part).sum() for weight, part in zip((1.0, 0.7, 0.3), outputs, strict=True))
        gradients.append((total.detach(), *torch.autograd.grad(total, learnt, retain_graph=True)))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@every_whiten
@every_covariance
@shared_or_own_kernels(2)
def test_gradients_of_global_layers_need_no_more_than_the_protocol(whiten, covariance, n_kernels):
    kernel = StationaryKernel("matern52", N_INPUTS, n_kernels, ard=True)
    layer = moved(orthogonal(kernel, whiten, covariance, jitter=1e-12).double())
    x = normal(3, 5, N_INPUTS, seed=5).requires_grad_()
    learnt, gradients = [x, *layer.parameters()], []
    for each in (kernel, Protocol(kernel).double()):
        layer.kernel = each
        total = sum((weight * part).sum() for weight, part in zip((1.0, 0.7, 0.3), layer(x, x), strict=True))
        gradients.append(torch.autograd.grad(total, learnt))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@every_layer
@torch.no_grad()
def test_prior_variances_may_differ_between_points(make):
    """Where the posterior is the prior, so is what the layer says."""
    kernel = Varying(StationaryKernel("rbf", N_INPUTS, 2)).double()
    layer = make(kernel, True, "diag").double()
    x, anchor = normal(1, 40, N_INPUTS, seed=5), normal(40, N_INPUTS, seed=6)
    if make is orthogonal:
        for posterior in layer.posteriors:
            posterior.mean.zero_()
            posterior.log_diagonal.zero_()
    else:
        layer.inference.forward = lambda a: (
            a[:, None].expand(-1, 4, -1) + normal(4, N_INPUTS, seed=7), a.new_zeros(4, 2, 40), a.new_ones(4, 2, 40)
        )  # fmt: skip
    noise = 0.1 if make is orthogonal else 0.0
    mean, variance, kl = layer(x, anchor)
    torch.testing.assert_close(variance[0].mT - noise, kernel.diagonal(x[0]), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(mean[0], layer.mean(x[0]), rtol=0, atol=1e-12)
    assert kl.abs().max() < 1e-9


@torch.no_grad()
def test_the_collapsed_bound_needs_no_more_than_the_protocol():
    layer = moved(orthogonal(StationaryKernel("matern32", N_INPUTS), True, "full").double())
    layer.log_white_noise = None
    likelihood = Gaussian(2, excess=0.1).double()
    data = Batch(normal(30, N_INPUTS, seed=8), normal(30, 2, seed=9), 0.5 + normal(30, seed=3).abs())
    bounds = []
    for kernel in (layer.kernel, Protocol(layer.kernel).double()):
        layer.kernel = kernel
        bounds.append(collapsed(DeepGP([layer], make_propagation("ar1", (), 1, generator()), likelihood), data).bound)
    torch.testing.assert_close(bounds[1], bounds[0], rtol=1e-9, atol=0)
