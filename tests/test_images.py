"""The convolutional kernel: against sums over patches in NumPy, moments of draws, and estimators of images."""

import pickle

import numpy as np
import pytest
import torch
from helpers import any_options, generator, make_table, normal
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skdgp import AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.images import Summands
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.units import Units
from skdgp.gp.waves import Streams
from skdgp.kernels import Convolutional, Select
from skdgp.methods import SOLVEGP
from skdgp.methods.kernels import layer_kernel

SHAPES = {"grey": ((4, 5), (2, 3)), "colour": ((3, 4, 2), (2, 2))}

every_shape = pytest.mark.parametrize(("image", "patch"), SHAPES.values(), ids=SHAPES)


def patches(X, image, patch):
    """Patches (n, P, d), by loops."""
    images = X.reshape(len(X), *image, *(1,) * (3 - len(image)))
    h, w = patch
    places = [(i, j) for i in range(image[0] - h + 1) for j in range(image[1] - w + 1)]
    return np.stack([images[:, i : i + h, j : j + w].reshape(len(X), -1) for i, j in places], axis=1)


def make_kernel(image, patch, units=None):
    """A kernel of ours with weights of its own, and base and weights of the same in NumPy."""
    base = ConstantKernel(1.7) * Matern(1.3, nu=2.5)
    method = SOLVEGP(kernel=Convolutional(image, patch, base))
    table = None if units is None else make_table(units)
    kernel = layer_kernel(method, 0, 1, int(np.prod(image)), 1, table).double()
    with torch.no_grad():
        kernel.change.copy_(0.5 * normal(*kernel.change.shape, seed=3))
    return kernel, base, kernel.weight[0].detach().numpy()


def make_sum(image, patch):
    """A convolution and a kernel of images, with inducing variables of both."""
    objects = ConstantKernel(0.8) * RBF(2.0) + Convolutional(image, patch, ConstantKernel(1.7) * Matern(1.3, nu=2.5))
    kernel = layer_kernel(SOLVEGP(kernel=objects), 0, 1, int(np.prod(image)), 1).double()
    with torch.no_grad():
        kernel.convolution.change.copy_(0.5 * normal(*kernel.convolution.change.shape, seed=3))
    X = normal(6, int(np.prod(image)), seed=5)
    return kernel, Summands(kernel.places(X)[:4], X[:3]).double(), X


class TestSum:
    @every_shape
    @torch.no_grad()
    def test_is_a_sum(self, image, patch):
        kernel, features, X = make_sum(image, patch)
        both = [kernel.convolution, kernel.whole]
        torch.testing.assert_close(kernel.covariance(X, X), sum(each.covariance(X, X) for each in both))
        torch.testing.assert_close(kernel.diagonal(X), kernel.covariance(X, X).diagonal(dim1=-2, dim2=-1))
        K, k = features.covariance(kernel, torch.float64)[0], features.cross(kernel, X)[0]
        assert K.shape == (7, 7) and (K[:4, 4:] == 0).all() and len(features) == 7
        torch.testing.assert_close(K[:4, :4], kernel.convolution.covariance(features.patches, features.patches)[0])
        torch.testing.assert_close(k[4:], kernel.whole.covariance(features.images, X)[0])
        left = kernel.covariance(X, X)[0] - k.mT @ torch.linalg.solve(K, k)
        assert torch.linalg.eigvalsh(left).min() > -1e-9  # what they leave is a covariance

    @pytest.mark.slow
    @torch.no_grad()
    def test_draws_have_the_moments_of_the_posterior(self):
        kernel, features, X = make_sum(*SHAPES["grey"])
        layer = GlobalLayer(
            kernel, ZeroMean(1), features, normal(1, 7, seed=6), covariance="full", whiten=True
        ).double()
        layer.q.log_diagonal.sub_(0.5)
        values = torch.cat([layer.draw(Streams(range(s, s + 500)))(X[None], X)[..., 0] for s in range(0, 4000, 500)])
        mean, variance, _ = layer(X[None], X)
        covariance = layer.covariance(X[None], X, torch.ones(1).double())[0]
        torch.testing.assert_close(covariance.diagonal(), variance[0, :, 0], rtol=1e-5, atol=1e-8)
        scale = covariance.diagonal().sqrt()
        centred = values - mean[0, :, 0]
        assert (centred.mean(0) / scale).abs().max() < 5 / np.sqrt(4000)
        found = centred.mT @ centred / 4000
        assert ((found - covariance) / (scale[:, None] * scale)).abs().max() < 6 / np.sqrt(4000)

    def test_estimators(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(60, 12))
        y = (X[:, :4].sum(axis=1) > 0).astype(int)
        kernel = Convolutional((3, 4), (2, 2), 1.0 * RBF(2.0)) + 1.0 * RBF(4.0) + 0.1 * Select(RBF(2.0), [0, 1])
        for model in (
            SOLVEGPClassifier(10, kernel=kernel, max_iter=2, random_state=0),
            DSDGPRegressor((2,), 10, kernel=[kernel, "rbf"], n_estimators=2, max_iter=2, random_state=0),
        ):
            fitted = clone(model).fit(X, y)
            again = pickle.loads(pickle.dumps(fitted))
            np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
            assert np.isfinite(fitted.sample_functions(2, random_state=0)(X)).all()
            found = fitted.kernel_ if isinstance(fitted, SOLVEGPClassifier) else fitted.kernel_[0]
            assert found.k1.k1.weights_.shape == (6,) and found.k2.k2.kernel.length_scale != 2.0
        with pytest.raises(ValueError, match="n_orthogonal=3 does not go with a Convolutional in a sum"):
            SOLVEGPClassifier(10, 3, kernel=kernel, max_iter=2).fit(X, y)
        with pytest.raises(ValueError, match="has a single set of inducing variables"):
            DSDGPRegressor((), 10, n_orthogonal=3, kernel=kernel, max_iter=2).fit(X, y)
        with pytest.raises(ValueError, match="in a product, or two of them"):
            SOLVEGPRegressor(10, kernel=kernel + Convolutional((3, 4), (2, 2)), max_iter=2).fit(X, y)


class TestKernel:
    @every_shape
    @torch.no_grad()
    def test_is_a_sum_over_pairs_of_patches(self, image, patch):
        kernel, base, w = make_kernel(image, patch)
        X1, X2 = (normal(n, int(np.prod(image)), seed=n) for n in (3, 4))
        own, other = patches(X1.numpy(), image, patch), patches(X2.numpy(), image, patch)
        expected = np.array([[w @ base(a, b) @ w for b in other] for a in own])
        np.testing.assert_allclose(kernel.covariance(X1, X2)[0], expected, rtol=1e-5)
        np.testing.assert_allclose(kernel.diagonal(X1)[0], [w @ base(a) @ w for a in own], rtol=1e-5)
        Z = normal(5, own.shape[2], seed=7)
        cross = np.stack([base(Z.numpy(), a) @ w for a in own], axis=1)
        np.testing.assert_allclose(kernel.covariance(Z, X1)[0], cross, rtol=1e-5)
        np.testing.assert_allclose(kernel.covariance(X1, Z)[0], cross.T, rtol=1e-5)
        np.testing.assert_allclose(kernel.covariance(Z, Z)[0], base(Z.numpy()), rtol=1e-5)
        np.testing.assert_allclose(kernel.places(X1), own.reshape(-1, own.shape[2]))

    @torch.no_grad()
    def test_chunks_are_the_whole(self, monkeypatch):
        kernel, _, _ = make_kernel(*SHAPES["grey"])
        X = normal(7, 20)
        whole = kernel.covariance(X, X), kernel.diagonal(X)
        monkeypatch.setattr("skdgp.gp.images.PAIRS", 1)
        torch.testing.assert_close((kernel.covariance(X, X), kernel.diagonal(X)), whole)

    @torch.no_grad()
    def test_pixels_are_in_the_users_units(self):
        image, patch = SHAPES["grey"]
        units = Units(np.linspace(1, 2, 20), np.linspace(3, 5, 20))
        kernel, _, _ = make_kernel(image, patch, units)
        plain, _, _ = make_kernel(image, patch)
        X = normal(4, 20)
        pixels = torch.from_numpy(X.numpy() * units.scale + np.asarray(units.shift))
        torch.testing.assert_close(kernel.covariance(X, X), plain.covariance(pixels, pixels), rtol=1e-6, atol=1e-8)

    @pytest.mark.slow
    @torch.no_grad()
    def test_draws_have_its_covariance(self):
        image, patch = SHAPES["grey"]
        kernel, _, _ = make_kernel(image, patch)
        X, Z = 0.5 * normal(3, 20), 0.5 * normal(2, 6, seed=5)
        draw = kernel.draw(Streams(range(4000)), 20, 1)
        values = torch.cat([draw(X[None]), draw(Z[None])], dim=1)[..., 0]
        blocks = [[kernel.covariance(a, b)[0] for b in (X, Z)] for a in (X, Z)]
        expected = torch.cat([torch.cat(row, dim=1) for row in blocks])
        scale = expected.diagonal().sqrt()
        np.testing.assert_allclose(
            np.cov(values.T) / np.outer(scale, scale), expected / scale[:, None] / scale, atol=0.1
        )

    def test_gradients_are_differences(self):
        kernel, _, _ = make_kernel(*SHAPES["grey"])
        X, Z = normal(2, 20), normal(2, 6, seed=5).requires_grad_()

        def value(Z):
            return kernel.covariance(Z, X).sum() + kernel.diagonal(X).sum()

        assert torch.autograd.gradcheck(value, (Z,))
        (gradient,) = torch.autograd.grad(value(Z), [kernel.change])
        sides = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                kernel.change[0, 2] += step
                sides.append(value(Z).item())
                kernel.change[0, 2] -= step
        assert gradient[0, 2].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4)


class TestObject:
    @every_shape
    def test_is_the_same_in_scikit_learn(self, image, patch):
        kernel = Convolutional(image, patch, 2.0 * RBF(1.5))
        X = normal(4, int(np.prod(image))).numpy()
        ours = layer_kernel(SOLVEGP(kernel=kernel), 0, 1, X.shape[1], 1)
        np.testing.assert_allclose(
            kernel(X), ours.covariance(*2 * [torch.from_numpy(X).float()])[0].detach(), rtol=1e-4
        )
        np.testing.assert_allclose(kernel.diag(X), kernel(X).diagonal())
        exact = GaussianProcessRegressor(kernel, alpha=0.1, optimizer=None).fit(X, X[:, 0])
        assert np.isfinite(exact.predict(X)).all()

    def test_has_parameters(self):
        kernel = Convolutional((4, 4), (2, 2), 2.0 * RBF(1.5))
        assert clone(kernel) == kernel and kernel != Convolutional((4, 4), (2, 2))
        assert kernel.get_params()["base__k2__length_scale"] == 1.5
        assert [each.name for each in kernel.hyperparameters] == ["base__k1__constant_value", "base__k2__length_scale"]
        np.testing.assert_allclose(kernel.clone_with_theta(np.log([3.0, 4.0])).base.k2.length_scale, 4.0)
        assert kernel.bounds.shape == (2, 2) and not kernel.is_stationary()
        assert repr(kernel) == "Convolutional((4, 4), (2, 2), 1.41**2 * RBF(length_scale=1.5))"
        assert Convolutional((4, 4, 3), (2, 2)).resolved_base().k2.length_scale == pytest.approx(12**0.5)
        with pytest.raises(ValueError, match="Convolutional has no gradient here: fit it with the estimators"):
            kernel(np.zeros((1, 16)), eval_gradient=True)


def make_images(n_images=120, seed=0):
    """A bright spot of 2 × 2 pixels somewhere, or none."""
    rng = np.random.RandomState(seed)
    X, y = 0.1 * rng.rand(n_images, 6, 6), rng.randint(2, size=n_images)
    for image in X[y == 1]:
        i, j = rng.randint(5, size=2)
        image[i : i + 2, j : j + 2] += 1
    where = np.flatnonzero(y)
    for n in where:
        i, j = rng.randint(5, size=2)
        X[n, i : i + 2, j : j + 2] += 1
    return X.reshape(n_images, -1), y


def small(kind, **options):
    budget = {"n_inducing": 12, "max_iter": 30, "batch_size": 40, "random_state": 0, "n_estimators": 1}
    return kind(**{"kernel": Convolutional((6, 6), (2, 2))} | budget | options)


class TestEstimator:
    def test_sees_what_has_moved(self):
        X, y = make_images()
        kernel = Convolutional((6, 6), (2, 2), 100.0 * RBF(1.0))
        model = small(SOLVEGPClassifier, n_orthogonal=0, kernel=kernel, max_iter=60).fit(X, y)
        assert model.score(*make_images(seed=1)) > 0.95
        assert model.kernel_.weights_.shape == (25,)
        again = pickle.loads(pickle.dumps(model))
        assert (again.predict_proba(X) == model.predict_proba(X)).all()
        assert np.isfinite(model.sample_functions(3, random_state=0)(X[:5])).all()

    @pytest.mark.slow
    @any_options
    @pytest.mark.parametrize("options", [{"n_orthogonal": 6}, {"likelihood": "student_t"}, {"method": "svi"}])
    def test_regression(self, options):
        X, y = make_images(20)  # the evidence of the base takes time for every pair of patches of all rows
        model = small(SOLVEGPRegressor, **{"n_orthogonal": 0} | options).fit(X, y + 0.01 * X[:, 0])
        mean, covariance = model.predict(X[:4], return_cov=True)
        assert np.isfinite(mean).all() and np.linalg.eigvalsh(covariance).min() > 0

    def test_first_layer_of_a_deep_model(self):
        X, y = make_images(60)
        kernel = [Convolutional((6, 6), (2, 2)), "matern52"]
        model = DSDGPClassifier((2,), 8, kernel=kernel, max_iter=5, n_estimators=2, random_state=0).fit(X, y)
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1.0)
        assert [each.shape[-1] for each in model.inducing_points_] == [4, 2]

    def test_a_layer_is_built_of_patches(self):
        method = SOLVEGP(8, 4, kernel=Convolutional((4, 5), (2, 3)))
        model = method.build(normal(30, 20).float(), Gaussian(1), generator())
        assert [tuple(each.Z.shape) for each in model.layers[0].feature_sets] == [(8, 6), (4, 6)]
        assert model.numbers_per_row() == 12 * 9

    @pytest.mark.parametrize(
        ("kernel", "message"),
        [
            (
                Convolutional((6,), (2, 2)),
                r"Convolutional has image_shape=\(6,\) and patch_shape=\(2, 2\): give height",
            ),
            (
                Convolutional((5, 6), (2, 2)),
                r"images of shape \(5, 6\) and patches of shape \(2, 2\), but the layer has 36 inputs: images must",
            ),
            (Convolutional((6, 6), (7, 2)), r"images must have as many pixels, and patches be smaller than they are"),
            (1.0 * Convolutional((6, 6), (2, 2)), "kernel has a Convolutional in a product, or two"),
            (Select(Convolutional((2, 2), (1, 1)), [0, 1, 2, 3]), "kernel has a Convolutional in a product"),
        ],
    )
    def test_says_what_does_not_fit(self, kernel, message):
        X, y = make_images(30)
        with pytest.raises(ValueError, match=message):
            SOLVEGPRegressor(kernel=kernel).fit(X, y)

    @pytest.mark.parametrize(
        ("estimator", "message"),
        [
            (AVDGPRegressor(), "those of AVDGP are computed from rows: take DSDGP or SOLVEGP"),
            (
                SOLVEGPRegressor(covariance="full_unwhitened"),
                "covariance='full_unwhitened' takes inducing points for rows",
            ),
            (DSDGPRegressor(layer_posterior="locations"), "layer_posterior='locations' takes inducing points for rows"),
        ],
    )
    def test_says_where_inducing_points_are_rows(self, estimator, message):
        X, y = make_images(30)
        kernel = Convolutional((6, 6), (2, 2))
        several = [kernel, "rbf", "rbf"] if isinstance(estimator, AVDGPRegressor | DSDGPRegressor) else kernel
        with pytest.raises(ValueError, match=message):
            estimator.set_params(kernel=several).fit(X, y)
