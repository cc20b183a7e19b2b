"""Inducing features: against grids, integrals, differences and dense algebra; layers and estimators that have them."""

import pickle

import numpy as np
import pytest
import torch
from helpers import generator, normal
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skdgp import AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.gp.features import Features, Points
from skdgp.gp.fourier import Fourier
from skdgp.gp.global_layer import GlobalLayer, OrthogonalLayer
from skdgp.gp.interdomain import Derivatives, Eigen
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.waves import Streams
from skdgp.inference.batches import Batch
from skdgp.inference.collapsed import collapsed, statistics, statistics_of
from skdgp.kernels import Convolutional, Select
from skdgp.methods import SOLVEGP
from skdgp.methods.kernels import layer_kernel

MATERN = ("matern12", "matern32", "matern52")
SMOOTH = ("rbf", "matern52", "matern32")

every_matern = pytest.mark.parametrize("profile", MATERN)


def make_kernel(profile, n_inputs=1, n_outputs=1):
    """Away from where it starts, in double precision."""
    kernel = StationaryKernel(profile, n_inputs, n_outputs, ard=True, variance=1.7).double()
    with torch.no_grad():
        kernel.log_lengthscale.copy_(-0.4 + 0.2 * normal(n_outputs, n_inputs, seed=2))
    return kernel


def make_fourier(n_frequencies=3, profile="matern32"):
    return Fourier(torch.tensor([-1.0]), torch.tensor([1.5]), n_frequencies, [1 + MATERN.index(profile)], 1)


def make_layer(features, kernel, second=None):
    """Two outputs whose posterior is anything."""
    options = {"covariance": "full", "whiten": True}
    v = normal(2, len(features), seed=5)
    if second is None:
        layer = GlobalLayer(kernel, ZeroMean(2), features, v, **options)
    else:
        layer = OrthogonalLayer(kernel, ZeroMean(2), features, v, O=second, orthogonal_covariance="full", **options)
    layer = layer.double()
    with torch.no_grad():
        for posterior in layer.posteriors:
            posterior.mean.copy_(normal(*posterior.mean.shape, seed=6))
            posterior.log_diagonal.copy_(-0.5 + 0.3 * normal(*posterior.mean.shape, seed=7))
            posterior.below.copy_(0.2 * normal(*posterior.below.shape, seed=8))
    return layer


def some_features(kind):
    """Features of a kind with a kernel that suits it, and inputs, some beyond the data."""
    if kind == "fourier":
        return make_fourier(), make_kernel("matern32"), torch.linspace(-1.4, 1.9, 9).double()[:, None]
    if kind == "eigen":
        return Eigen(torch.zeros(2), torch.ones(2), 9), make_kernel("rbf", 2), normal(9, 2)
    kernel = make_kernel("matern52", 2)
    return (Derivatives if kind == "derivatives" else Points)(normal(3, 2, seed=3)), kernel, normal(9, 2)


every_kind = pytest.mark.parametrize("kind", ["fourier", "eigen", "derivatives"])


class TestFourier:
    @every_matern
    def test_what_a_grid_says_of_them_has_unit_covariance(self, profile):
        """With covariances C with f on a grid, C K⁻¹ Cᵀ grows towards the prior covariance of features."""
        features, kernel, errors = make_fourier(3, profile), make_kernel(profile), []
        for n_places in (200, 800):
            grid = torch.linspace(-1.0, 1.5, n_places).double()[:, None]
            C, K = features.cross(kernel, grid)[0], kernel.relative_covariance(grid, grid)[0]
            K = K + 1e-12 * torch.eye(n_places)
            errors.append((C @ torch.linalg.solve(K, C.mT) - torch.eye(len(features))).abs().max().item())
        assert errors[1] < 0.04 and errors[1] < 0.5 * errors[0]
        beyond = torch.tensor([[-1.6], [-1.01], [1.7], [4.0]]).double()
        expected = C @ torch.linalg.solve(K, kernel.relative_covariance(grid, beyond)[0])
        torch.testing.assert_close(features.cross(kernel, beyond)[0], expected, atol=0.01, rtol=0.0)

    @every_matern
    @pytest.mark.parametrize("length", [0.2, 1.0, 5.0])
    @torch.no_grad()
    def test_many_are_the_kernel(self, profile, length):
        """At the ends of the interval too, which sums of waves alone would hold to be the same place."""
        features, kernel = make_fourier(100, profile), StationaryKernel(profile, 1, lengthscale=length).double()
        x = torch.linspace(-1.0, 1.5, 40).double()[:, None]
        C, K = features.cross(kernel, x)[0], kernel.relative_covariance(x, x)[0]
        assert torch.linalg.eigvalsh(K - C.mT @ C).min() > -1e-9
        assert (K - C.mT @ C).abs().max() < (0.025 if profile == "matern12" else 0.005)
        coarse = make_fourier(25, profile).cross(kernel, x)[0]
        assert (K - C.mT @ C).trace() < 0.6 * (K - coarse.mT @ coarse).trace()

    def test_sums_have_features_along_each_input(self):
        method = SOLVEGP(kernel="matern32", inducing="fourier")
        kernel, X = layer_kernel(method, 0, 1, 3, 1).double(), normal(200, 3)
        features = Fourier.initial(kernel, X, X[:0], 500)
        assert len(features) == 3 * 165 and features.n_frequencies == 81
        C = features.cross(kernel, X[:20])[0]
        torch.testing.assert_close(C.mT @ C, kernel.relative_covariance(X[:20], X[:20])[0], atol=1e-3, rtol=0.0)
        one = kernel.relative_covariance(X[:1], X[:1] + torch.tensor([0.0, 0.0, 50.0]))
        assert one.item() == pytest.approx(2 / 3, rel=1e-6)  # two terms of three are the same there

    @every_matern
    def test_gradients(self, profile):
        features, kernel = make_fourier(2, profile), make_kernel(profile)
        x = torch.tensor([[-1.3], [-0.2], [0.9], [2.0]]).double()

        def cross(length, x):
            kernel.log_lengthscale.data = length.data
            parameters = {"log_lengthscale": length}
            return torch.func.functional_call(
                Cross(features, kernel), {f"kernel.{k}": v for k, v in parameters.items()}, x
            )

        length = kernel.log_lengthscale.detach().clone().requires_grad_()
        assert torch.autograd.gradcheck(cross, (length, x.requires_grad_()), atol=1e-6)


class Cross(torch.nn.Module):
    """k_u as a function of a kernel's parameters."""

    def __init__(self, features, kernel):
        super().__init__()
        self.features, self.kernel = features, kernel

    def forward(self, x):
        return self.features.cross(self.kernel, x)


class TestEigen:
    def test_many_are_the_kernel(self):
        kernel, x = make_kernel("rbf", 2, 2), normal(12, 2)
        features = Eigen(torch.tensor([0.3, -0.2]), torch.tensor([1.2, 0.8]), 1200)
        C = features.cross(kernel, x)
        torch.testing.assert_close(C.mT @ C, kernel.relative_covariance(x, x), atol=1e-8, rtol=0.0)

    def test_are_eigenfunctions(self):
        """∫ k(x, t) φ(t) p(t) dt = λ φ(x), by quadrature; and √λ φ has the norm √λ."""
        kernel, features = make_kernel("rbf"), Eigen(torch.tensor([0.5]), torch.tensor([1.5]), 5)
        nodes, weights = np.polynomial.hermite_e.hermegauss(150)
        t = torch.from_numpy(0.5 + 1.5 * nodes)[:, None]
        p = torch.from_numpy(weights / weights.sum())
        x = torch.linspace(-2, 3, 7).double()[:, None]
        at_t, at_x = features.cross(kernel, t)[0], features.cross(kernel, x)[0]
        eigenvalues = at_t.square() @ p
        left = kernel.relative_covariance(x, t)[0] @ (at_t * p).mT
        torch.testing.assert_close(left.mT, eigenvalues[:, None] * at_x, atol=1e-9, rtol=0.0)
        products = (at_t * p) @ at_t.mT / (eigenvalues[:, None] * eigenvalues).sqrt()
        torch.testing.assert_close(products, torch.eye(5).double(), atol=1e-9, rtol=0.0)

    def test_lowest_degrees_come_first(self):
        features = Eigen(torch.zeros(3), torch.ones(3), 12)
        assert features.degrees.sum(-1).tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3]
        assert len({tuple(each) for each in features.degrees.tolist()}) == 12


@pytest.mark.parametrize("profile", SMOOTH)
def test_derivatives_are_differences(profile):
    kernel, features, x = make_kernel(profile, 2, 2), Derivatives(normal(3, 2, seed=3)), normal(6, 2)
    Z = features.Z.detach()

    def functionals(of, length, step=1e-4):
        """Values of a function at Z, and its derivatives over lengthscales."""
        rows = [of(Z)]
        for q in range(2):
            move = torch.zeros(2).double()
            move[q] = step * length[q]
            rows.append((of(Z + move) - of(Z - move)) / (2 * step))
        return torch.cat(rows)

    cross, K = features.cross(kernel, x), features.covariance(kernel, torch.float64)
    assert cross.shape == (2, 9, 6) and K.shape == (2, 9, 9) and len(features) == 9
    with torch.no_grad():
        for d, length in enumerate(kernel.lengthscale):

            def seen_from(x, d=d, length=length):
                return functionals(lambda z: kernel.relative_covariance(z, x)[d], length)

            torch.testing.assert_close(cross[d], seen_from(x), atol=1e-5, rtol=0.0)
            both = functionals(lambda z, seen_from=seen_from: seen_from(z).mT, length)
            torch.testing.assert_close(K[d], both, atol=2e-3 if profile == "matern32" else 1e-5, rtol=0.0)
    prior = kernel.draw(Streams(range(3)), 2, 2)
    values = features.values(kernel, prior, Streams(range(3)))  # (S, D, T)
    with torch.no_grad():
        for d, length in enumerate(kernel.lengthscale):
            # Drawn functions may have waves of high frequencies, for which steps must be small.
            expected = functionals(lambda z, d=d: prior(z[None])[..., d].mT, length, step=1e-7)
            torch.testing.assert_close(values[:, d].mT, expected, atol=1e-4, rtol=1e-3)


@every_kind
def test_gradients_of_covariances_are_differences(kind):
    features, kernel, x = some_features(kind)
    found = features.gradient(kernel, x)
    for q in range(x.shape[1]):
        move = torch.zeros(x.shape[1]).double()
        move[q] = 1e-6
        expected = (features.cross(kernel, x + move) - features.cross(kernel, x - move)) / 2e-6
        torch.testing.assert_close(found[q], expected, atol=1e-5, rtol=0.0)


def test_points_agree_with_what_all_features_do():
    points, kernel, x = some_features("points")
    torch.testing.assert_close(points.gradient(kernel, x), Features.gradient(points, kernel, x))


@every_kind
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
@torch.no_grad()
def test_marginals_are_those_of_dense_algebra(kind, second, swapped):
    """f's moments from those of u = L v, by Gaussian conditioning with K_uu and k_u."""
    if swapped and not second:
        return
    features, kernel, x = some_features(kind)
    points = Points(normal(4, x.shape[1], seed=9)) if second else None
    if swapped:
        features, points = points, features
    layer = make_layer(features, kernel, points)
    sets = layer.feature_sets
    if second:
        a, b = sets
        Z, other = (b, a) if isinstance(b, Points) else (a, b)
        between = other.cross(kernel, Z.Z)[0]
        between = between if sets[0] is other else between.mT
        K = np.block(
            [
                [a.covariance(kernel, torch.float64)[0].numpy(), between.numpy()],
                [between.mT.numpy(), b.covariance(kernel, torch.float64)[0].numpy()],
            ]
        )
    else:
        K = features.covariance(kernel, torch.float64)[0].numpy()
    k = np.concatenate([each.cross(kernel, x)[0].numpy() for each in sets])
    alone = not second and features.orthonormal
    L = np.linalg.cholesky(K + (0.0 if alone else layer.jitter * np.trace(K) / len(K)) * np.eye(len(K)))
    A = np.linalg.solve(L, k)
    mean, variance, _ = layer(x[None], x)
    for d in range(2):
        m = np.concatenate([q.mean[d].numpy() for q in layer.posteriors])
        S = np.zeros((len(K), len(K)))
        start = 0
        for q in layer.posteriors:
            end = start + q.mean.shape[1]
            S[start:end, start:end] = (q.root[d] @ q.root[d].mT).numpy()
            start = end
        sigma2 = kernel.variance.item()
        np.testing.assert_allclose(mean[0, :, d], np.sqrt(sigma2) * A.T @ m, atol=1e-6)
        expected = sigma2 * (1 - np.sum(A * A, 0) + np.sum(A * (S @ A), 0))
        np.testing.assert_allclose(variance[0, :, d], expected, atol=1e-6)
    torch.testing.assert_close(layer.frozen()(x[None], x)[0], mean)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("second", [False, True])
@torch.no_grad()
def test_draws_have_the_moments_of_the_posterior(kind, second):
    features, kernel, x = some_features(kind)
    layer = make_layer(features, kernel, Points(normal(3, x.shape[1], seed=9)) if second else None)
    values = torch.cat([layer.draw(Streams(range(s, s + 500)))(x[None], x) for s in range(0, 6000, 500)])  # (S, B, D)
    mean, _, _ = layer(x[None], x)
    covariance = layer.covariance(x[None], x, torch.ones(1).double())
    centred = values - mean[0]
    found = torch.einsum("sbd,scd->dbc", centred, centred) / len(values)
    scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert (centred.mean(0).mT / scale).abs().max() < 5 / np.sqrt(len(values))
    assert ((found - covariance) / (scale[:, :, None] * scale[:, None, :])).abs().max() < 6 / np.sqrt(len(values))


@pytest.mark.parametrize(
    ("inducing", "kernel", "n_inducing"),
    [("fourier", Matern(0.8, nu=1.5), 161), ("eigen", RBF(0.8), 40), ("derivatives", Matern(0.8, nu=2.5), 40)],
    ids=["fourier", "eigen", "derivatives"],
)
def test_many_features_are_the_exact_process(inducing, kernel, n_inducing):
    X = np.sort(generator_of(0).uniform(-2, 2, (60, 1)), axis=0)
    y = np.sin(3 * X[:, 0]) + 0.3 * generator_of(1).normal(size=60)
    exact = GaussianProcessRegressor(ConstantKernel(1.0) * kernel + WhiteKernel(0.1)).fit(X, y)
    name = {"fourier": "matern32", "eigen": "rbf", "derivatives": "matern52"}[inducing]
    options = {"kernel": name, "inducing": inducing, "base": None, "n_neighbors": 0, "normalize_y": False}
    ours = SOLVEGPRegressor(n_inducing, **options).fit(X, y)
    assert ours.method_ == "collapsed"
    assert ours.lower_bound_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.7)  # lengths have a prior
    query = np.linspace(-1.9, 1.9, 30)[:, None]
    mean, std = ours.predict(query, return_std=True)
    expected, expected_std = exact.predict(query, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=0.06)
    np.testing.assert_allclose(std, expected_std, rtol=0.06)


def generator_of(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("n_inputs", [1, 2])  # products of waves are waves where there is one input
def test_sums_over_rows_are_taken_once(n_inputs):
    method = SOLVEGP(30, inducing="fourier", kernel="matern52")
    X, y = normal(80, n_inputs).float(), normal(80, 2, seed=1).float()
    model = method.build(X, Gaussian(2), generator()).double()
    data = Batch(X.double(), y.double(), torch.rand(80, generator=generator()).double())
    layer = model.layers[0]
    sums = statistics_of(layer, data)
    for shift in (0.0, 0.5):
        with torch.no_grad():
            for parameter in layer.kernel.parameters():
                parameter.add_(shift)
        now, anew = sums(), statistics(layer, data)
        for each, expected in zip(now, anew, strict=True):
            torch.testing.assert_close(each, expected, rtol=1e-6, atol=1e-6)
    own = [each for each in layer.kernel.parameters() if each.requires_grad]
    bounds = [collapsed(model, data, sums).bound, collapsed(model, data, lambda: statistics(layer, data)).bound]
    gradients = [torch.autograd.grad(each, own) for each in bounds]
    for each, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-6)


def test_rows_outside_the_intervals_count_as_predictions_continue():
    method = SOLVEGP(30, inducing="fourier", kernel="matern32")
    X, y = normal(80, 1).float(), normal(80, 1, seed=1).float()
    model = method.build(X[X[:, 0].abs() < 1.0], Gaussian(1), generator()).double()
    data, layer = Batch(X.double(), y.double(), torch.ones(80, dtype=torch.float64)), model.layers[0]
    inside = layer.inducing.contain(layer.kernel, data.X)
    assert 0 < inside.sum() < 80
    with torch.no_grad():
        for each, expected in zip(statistics_of(layer, data)(), statistics(layer, data), strict=True):
            torch.testing.assert_close(each, expected, rtol=1e-6, atol=1e-6)
        nowhere = data.rows(~inside)
        for each, expected in zip(statistics_of(layer, nowhere)(), statistics(layer, nowhere), strict=True):
            torch.testing.assert_close(each, expected)


TINY = {"max_iter": 3, "base": None, "random_state": 0}

MODELS = [
    SOLVEGPRegressor(20, inducing="fourier", n_neighbors=0, **TINY),
    SOLVEGPRegressor(12, 6, inducing="eigen", kernel="rbf", n_neighbors=0, method="svi", **TINY),
    SOLVEGPRegressor(8, 19, inducing="points+fourier", n_neighbors=0, **TINY),
    SOLVEGPRegressor(6, 9, inducing="derivatives", n_neighbors=0, **TINY),
    SOLVEGPClassifier(20, inducing="fourier", kernel="matern12", **TINY),
    DSDGPRegressor((2,), 9, inducing="derivatives", n_estimators=2, n_neighbors=0, **TINY),
    DSDGPRegressor((2,), 18, inducing="fourier", n_estimators=1, n_neighbors=0, **TINY),
    DSDGPClassifier((2,), 9, inducing="eigen", kernel="rbf", n_orthogonal=3, n_estimators=2, **TINY),
    DSDGPRegressor(
        (2,), 9, inducing="eigen", kernel="rbf", layer_posterior="chain", n_estimators=2, n_neighbors=0, **TINY
    ),
    DSDGPRegressor((2,), 24, inducing="fourier", latent_dims=1, n_estimators=2, n_neighbors=0, **TINY),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{type(model).__name__}-{model.inducing}")
def test_estimators(model):
    X = generator_of(0).normal(size=(60, 3))
    y = np.sin(X[:, 0]) + 0.1 * generator_of(1).normal(size=60)
    classes = "Classifier" in type(model).__name__
    y = (y > 0).astype(int) if classes else y
    fitted = clone(model).fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    far = np.vstack([X[:3], 100.0 * X[:3]])
    found = fitted.predict_proba(far) if classes else np.stack(fitted.predict(far, return_std=True))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(again.predict(far), fitted.predict(far))
    if not classes:
        assert np.isfinite(fitted.sample_functions(2, random_state=0)(far)).all()
        _, covariance = fitted.predict(X[:4], return_cov=True)
        assert np.linalg.eigvalsh(covariance).min() > 0
        _, gradient = fitted.predict(X[:4], return_gradient=True) if hasattr(fitted, "gradient_") else (None, X[:4])
        assert np.isfinite(gradient).all()


def test_kernel_is_a_sum_over_inputs():
    X, y = generator_of(0).normal(size=(50, 2)) * [1.0, 100.0], generator_of(1).normal(size=50)
    fitted = SOLVEGPRegressor(14, inducing="fourier", **TINY).fit(X, y)
    found = fitted.kernel_
    assert type(found.k1.k2) is Select and type(found.k2.k2) is Select
    assert 5 < found.k2.k2.kernel.length_scale / found.k1.k2.kernel.length_scale < 2000  # in units of the features
    with pytest.raises(AttributeError):
        _ = fitted.inducing_points_
    latent = DSDGPRegressor((), 30, inducing="fourier", latent_dims=1, n_neighbors=0, n_estimators=1, **TINY).fit(X, y)
    assert latent.kernel_.k2.k2.columns == 2 and latent.kernel_.k1.k2.k2.kernel.length_scale > 5
    named = SOLVEGPRegressor(18, inducing="fourier", kernel=found, **TINY).fit(X, y)
    assert np.isfinite(named.predict(X)).all()


@pytest.mark.parametrize("power", [-20, 20])
def test_a_sum_over_inputs_does_not_depend_on_their_units(power):
    X, y = generator_of(0).normal(size=(50, 2)), generator_of(1).normal(size=50)
    units = np.array([1.0, 2.0**power])  # powers of two leave all digits alone
    model = SOLVEGPRegressor(14, inducing="fourier", **TINY)
    fitted, other = clone(model).fit(X, y), clone(model).fit(units * X, y)
    np.testing.assert_array_equal(other.predict(units * X), fitted.predict(X))
    lengths = [[part.k2.kernel.length_scale for part in (each.kernel_.k1, each.kernel_.k2)] for each in (fitted, other)]
    np.testing.assert_allclose(lengths[1], units * lengths[0], rtol=1e-12)
    own = fitted.module_[0].layers[0].kernel.diagonal(torch.zeros(1, 2)).detach()[0]
    np.testing.assert_allclose(fitted.kernel_.diag(X[:1]), own, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SOLVEGPRegressor(9, inducing="fourier", kernel="rbf"), "needs a Matérn kernel of one input"),
        (SOLVEGPRegressor(9, inducing="fourier", kernel=1.0 * RBF(1.0)), "needs a Matérn kernel of one input"),
        (
            SOLVEGPRegressor(20, 0, inducing="fourier", kernel=Convolutional((2, 2), (1, 1), Matern(nu=1.5))),
            "needs a Matérn kernel of one input",
        ),
        (SOLVEGPRegressor(20, inducing="fourier"), "takes 6 features at least along each of 4 inputs, got 20"),
        (SOLVEGPRegressor(9, inducing="eigen"), 'needs kernel="rbf", whose eigenfunctions are known'),
        (SOLVEGPRegressor(4, inducing="eigen", kernel="rbf"), "at least for each of 4 inputs and a constant one"),
        (SOLVEGPRegressor(9, inducing="derivatives", kernel="matern12"), "whose functions have derivatives"),
        (SOLVEGPRegressor(9, inducing="derivatives", kernel=Convolutional((2, 2), (1, 2))), "whose functions have"),
        (
            DSDGPRegressor(inducing="derivatives", kernel="rbf", covariance="diag_unwhitened"),
            "'derivatives': change one",
        ),
        (SOLVEGPRegressor(9, 9, inducing="points+eigen", covariance="full_unwhitened"), "got 'points\\+eigen': change"),
        (
            DSDGPRegressor((2,), 9, inducing="eigen", layer_posterior="locations"),
            "needs inducing='points', got 'eigen'",
        ),
    ],
)
def test_errors(model, message):
    X, y = generator_of(0).normal(size=(30, 4)), generator_of(1).normal(size=30)
    with pytest.raises(ValueError, match=message):
        model.set_params(**TINY).fit(X, y)


def test_amortising_models_have_none():
    assert "inducing" not in AVDGPRegressor().get_params()
