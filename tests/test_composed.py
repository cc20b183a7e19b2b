"""Kernel objects of scikit-learn as kernels of layers, against scikit-learn itself."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import REGRESSORS, any_options, gradients_agree, make_table, name_of, normal
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)
from sklearn.model_selection import GridSearchCV

from skdgp import AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.composed import Positive
from skdgp.gp.units import Units
from skdgp.gp.waves import Streams
from skdgp.kernels import Select
from skdgp.methods import SOLVEGP
from skdgp.methods.kernels import layer_kernel

KERNELS = {
    "constant": ConstantKernel(2.0) * RBF(1.5),
    "rbf": RBF([1.0, 2.0, 3.0]),
    "matern12": Matern(2.0, nu=0.5),
    "matern32": Matern([1.0, 2.0, 3.0], nu=1.5),
    "matern52": Matern(2.0, nu=2.5),
    "matern of infinity": Matern(2.0, nu=np.inf),
    "rational quadratic": RationalQuadratic(2.0, 0.7),
    "periodic": Select(ExpSineSquared(1.3, 7.0), 0),
    "dot product": DotProduct(2.0),
    "sum": RBF(2.0) + DotProduct(1.0),
    "product": RBF(3.0) * DotProduct(0.5),
    "square of a line": (0.5 * DotProduct(1.0)) ** 2,
    "square": RationalQuadratic(3.0, 0.5) ** 2,
    "additive": Select(RBF(1.0), [0]) + Select(Matern([1.0, 2.0], nu=1.5), [1, 2]),
    "all": 1.5 * RBF([1.0, 2.0, 3.0]) + Select(ExpSineSquared(1.0, 7.0), 0) * Matern(4.0, nu=1.5) + DotProduct(),
}

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def ours(kernel, n_outputs=1, n_inputs=3, units=None):
    table = None if units is None else make_table(units)
    return layer_kernel(SOLVEGP(kernel=kernel), 0, 1, n_inputs, n_outputs, table).double()


def fixed(kernel):
    """The same with nothing to learn."""
    kernel = clone(kernel)
    return kernel.set_params(**{name: "fixed" for name in kernel.get_params() if name.endswith("_bounds")})


@every_kernel
class TestAgainstScikitLearn:
    def test_covariances(self, kernel):
        A, B = 2 * normal(2, 7, 3), 2 * normal(2, 5, 3, seed=1)
        found = ours(kernel, 2)
        for which in range(2):
            expected = kernel(A[which].numpy(), B[which].numpy())
            for d in range(2):
                np.testing.assert_allclose(found(A, B)[which, d].detach(), expected, rtol=2e-6, atol=1e-6)
            np.testing.assert_allclose(found.diagonal(A)[which, 0].detach(), kernel.diag(A[which].numpy()), rtol=2e-6)

    def test_units_are_those_of_the_user(self, kernel):
        units = Units([1.0, -2.0, 0.5], [3.0, 0.5, 2.0])
        A, B = normal(7, 3), normal(5, 3, seed=1)
        user = [(X * torch.tensor(units.scale) + torch.tensor(units.shift)).numpy() for X in (A, B)]
        np.testing.assert_allclose(ours(kernel, units=units)(A, B)[0].detach(), kernel(*user), rtol=1e-5, atol=1e-5)

    def test_gradients(self, kernel):
        A, B = normal(4, 3).requires_grad_(), normal(3, 3, seed=1).requires_grad_()
        assert gradients_agree(ours(kernel, 2), A, B, atol=1e-4)

    def test_a_fit_with_all_rows_inducing_is_an_exact_gp(self, kernel):
        rng = np.random.default_rng(0)
        X, Q = rng.uniform(-3, 3, (25, 3)), rng.uniform(-3, 3, (10, 3))
        y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.3 * rng.normal(size=25)
        options = {"n_neighbors": 0, "max_iter": 15, "random_state": 0}
        model = SOLVEGPRegressor(25, 0, kernel=fixed(kernel), **options).fit(X, y)
        noise = model.noise_variance_ / np.var(y)
        exact = GaussianProcessRegressor(fixed(kernel), alpha=noise, optimizer=None, normalize_y=True).fit(X, y)
        mean, std = model.predict(Q, return_std=True, latent=True)
        expected_mean, expected_std = exact.predict(Q, return_std=True)
        np.testing.assert_allclose(mean, expected_mean, atol=6e-3)
        np.testing.assert_allclose(std, expected_std, atol=6e-3)
        assert model.kernel_ == fixed(kernel) and model.base_weight_ == 0.0

    @pytest.mark.slow
    def test_functions_have_the_covariance(self, kernel):
        found, X = ours(kernel), normal(4, 3)
        n_draws = 1500
        draws = found.draw(Streams(range(n_draws)), 3, 1)(X[None])[..., 0].detach()  # (S, 4)
        expected = found(X, X)[0].detach()
        scale = expected.diagonal().sqrt()
        np.testing.assert_allclose(
            draws.mT @ draws / n_draws / (scale * scale[:, None]), expected / (scale * scale[:, None]), atol=0.13
        )


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e3, 1e5])
def test_mixtures_of_hardly_different_lengthscales_in_single_precision(alpha):
    """A large α, such as the default bound, makes the kernel an RBF, and one plus a small number loses its digits."""
    kernel, X = RationalQuadratic(1.0, alpha), normal(40, 3).float()
    found = layer_kernel(SOLVEGP(kernel=kernel), 0, 1, 3, 1)(X, X)[0].detach().double()
    np.testing.assert_allclose(found, kernel(X.double().numpy()), atol=2e-6)
    assert torch.linalg.eigvalsh(found).min() > -1e-5


class TestLearning:
    def test_bounds_are_kept(self):
        held = Positive(1, [1.0], [(0.5, 2.0)])
        held.place.data.fill_(50.0)
        assert 1.99 < held().item() <= 2.0
        np.testing.assert_allclose(Positive(2, [1.0, 30.0], [(1e-5, 1e5)] * 2)().detach(), [[1.0, 30.0]] * 2, rtol=1e-5)
        edge = Positive(1, [1e5], [(1e-5, 1e5)])  # learnt although it starts at a bound
        assert edge().item() == pytest.approx(1e5, rel=0.05)
        gradient = torch.autograd.grad(edge.log().sum(), edge.place)[0]
        assert gradient.item() > 1e-4

    def test_what_is_fixed_stays(self):
        X = np.random.default_rng(0).uniform(-2, 2, (60, 1))
        kernel = ConstantKernel(1.3, "fixed") * RBF(1.0, (0.1, 10.0))
        found = SOLVEGPRegressor(kernel=kernel, max_iter=50).fit(X, np.sin(4 * X[:, 0])).kernel_
        assert found.k1.constant_value == 1.3 and 0.1 < found.k2.length_scale < 0.99
        assert kernel.k2.length_scale == 1.0  # the user's own

    def test_learnt_kernels_are_for_scikit_learn(self):
        rng = np.random.default_rng(0)
        X = rng.uniform(0, 20, (80, 2)) * [1.0, 100.0]
        y = np.sin(2 * np.pi * X[:, 0] / 5) + X[:, 1] / 1000 + 0.05 * rng.normal(size=80)
        kernel = Select(ExpSineSquared(1.0, 4.5, periodicity_bounds=(3, 8)), 0) + Select(RBF(500.0), 1)
        model = SOLVEGPRegressor(kernel=kernel, max_iter=150, n_neighbors=0).fit(X, y)
        assert model.kernel_.k1.kernel.periodicity == pytest.approx(5, rel=0.02)
        exact = GaussianProcessRegressor(
            model.kernel_, alpha=model.noise_variance_ / np.var(y), optimizer=None, normalize_y=True
        )
        np.testing.assert_allclose(exact.fit(X, y).predict(X), model.predict(X), atol=0.05)

    @any_options
    @pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
    def test_every_family_and_method(self, tiny):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40, 3))
        y = X[:, 0] + 0.1 * rng.normal(size=40)
        model = tiny(kernel=1.0 * RBF(2.0) + 0.1 * DotProduct(), n_estimators=2).fit(X, y)
        assert np.isfinite(model.predict_dist(X).logpdf(y)).all()
        assert model.predict(X[:4], return_cov=True)[1].shape == (4, 4)
        assert model.sample_functions(3, random_state=0).gradient(X[:4]).shape == (4, 3, 3)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert str(again.kernel_) == str(model.kernel_)
        assert np.isfinite(tiny(kernel=RBF(2.0)).partial_fit(X, y).partial_fit(X, y).predict(X)).all()

    def test_a_kernel_for_each_layer(self):
        X = np.random.default_rng(0).normal(size=(40, 3))
        options = {"hidden_dims": (2,), "n_estimators": 1, "max_iter": 3}
        model = DSDGPRegressor(kernel=[RBF([1.0, 2.0, 3.0]), "matern32"], **options).fit(X, X[:, 0])
        first, second = model.kernel_
        assert np.shape(first.length_scale) == (3,) and "nu=1.5" in str(second)
        y = (X[:, 0] > 0).astype(int)
        assert "RBF" in str(DSDGPClassifier(kernel=RBF(1.0), **options).fit(X, y).kernel_[0])
        with pytest.raises(
            ValueError, match="kernel has 3 values for 2 layers: give one for all layers, or one for each"
        ):
            DSDGPRegressor(kernel=3 * ["rbf"], **options).fit(X, X[:, 0])
        with pytest.raises(ValueError, match="kernel has RBF with 3 lengthscales, but a layer with 2 inputs"):
            DSDGPRegressor(kernel=RBF([1.0, 2.0, 3.0]), **options).fit(X, X[:, 0])

    def test_names_and_their_kernels(self):
        X = np.random.default_rng(0).normal(size=(60, 2)) * [2.0, 5.0]
        model = SOLVEGPRegressor(max_iter=20, n_neighbors=0).fit(X, X[:, 0])
        exact = GaussianProcessRegressor(
            model.kernel_, alpha=model.noise_variance_ / X[:, 0].var(), optimizer=None, normalize_y=True
        )
        np.testing.assert_allclose(exact.fit(X, X[:, 0]).predict(X), model.predict(X), atol=0.05)
        assert "RBF" in str(AVDGPRegressor((), kernel="rbf", max_iter=2, n_estimators=1).fit(X, X[:, 0]).kernel_)

    @pytest.mark.slow
    def test_searches(self):
        X = np.random.default_rng(0).normal(size=(60, 1))
        model = SOLVEGPRegressor(kernel=1.0 * RBF(1.0), max_iter=3)
        assert "kernel__k2__length_scale" in model.get_params()
        grid = {"kernel": [RBF(1.0), Matern(1.0, nu=1.5)], "max_iter": [2]}
        assert GridSearchCV(model, grid, cv=2).fit(X, X[:, 0]).best_params_["kernel"] in grid["kernel"]
        search = GridSearchCV(model, {"kernel__k2__length_scale": [0.5, 2.0]}, cv=2).fit(X, X[:, 0])
        assert search.best_params_["kernel__k2__length_scale"] in (0.5, 2.0)


class TestSelect:
    def test_names_of_columns(self):
        rng = np.random.default_rng(0)
        X = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
        y = np.sin(2 * X["b"])
        by_name = SOLVEGPRegressor(kernel=Select(RBF(1.0), "b"), max_iter=10, n_neighbors=0, random_state=0).fit(X, y)
        by_number = SOLVEGPRegressor(kernel=Select(RBF(1.0), [1]), max_iter=10, n_neighbors=0, random_state=0).fit(X, y)
        np.testing.assert_allclose(by_name.predict(X), by_number.predict(X))
        moved = X.assign(a=X["a"] + 5.0)
        np.testing.assert_allclose(by_name.predict(moved), by_name.predict(X))
        with pytest.raises(
            ValueError, match=r"kernel has Select of column 'd', which is none of \[0, 1, 2, 'a', 'b', 'c'\]"
        ):
            SOLVEGPRegressor(kernel=Select(RBF(1.0), "d")).fit(X, y)

    def test_scikit_learn_learns_with_it(self):
        X = np.random.default_rng(0).uniform(-3, 3, (40, 2))
        kernel = Select(RBF(3.0, (0.1, 10.0)), 0) + Select(RBF(1.0, "fixed"), [1])
        model = GaussianProcessRegressor(kernel, alpha=1e-2).fit(X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]))
        assert model.kernel_.k1.kernel.length_scale != 3.0 and model.kernel_.k2.kernel.length_scale == 1.0
        assert model.score(X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1])) > 0.95
        K, gradient = kernel(X, eval_gradient=True)
        assert gradient.shape == (40, 40, 1) and kernel.is_stationary() is not False
        step = kernel.clone_with_theta(kernel.theta + 1e-6)
        np.testing.assert_allclose((step(X) - K) / 1e-6, gradient[..., 0], atol=1e-4)
        assert clone(kernel) == kernel and kernel != Select(RBF(3.0, (0.1, 10.0)), 1) + Select(RBF(1.0, "fixed"), [1])
        with pytest.raises(ValueError, match="columns='b' are names, and an array has numbers"):
            Select(RBF(1.0), "b")(X)

    def test_of_selected_columns(self):
        X = normal(6, 4)
        kernel = Select(Select(RBF([1.0, 2.0]), [1, 0]) * RBF(1.0), [3, 1, 0])
        np.testing.assert_allclose(ours(kernel, n_inputs=4)(X, X)[0].detach(), kernel(X.numpy()), rtol=1e-5)

    def test_names_among_selected_columns(self):
        X, table = normal(6, 4), make_table(Units(4 * [0.0], 4 * [1.0]), list("abcd"))
        method = SOLVEGP(kernel=Select(Select(RBF(1.0), "b"), ["b", "c", "d"]))
        kernel = layer_kernel(method, 0, 1, 4, 1, table).double()
        np.testing.assert_allclose(kernel(X, X)[0].detach(), Select(RBF(1.0), 1)(X.numpy()), rtol=1e-5)
        method.kernel = Select(Select(RBF(1.0), "a"), ["b", "c", "d"])
        with pytest.raises(ValueError, match=r"Select of column 'a', which is none of \[0, 1, 2, 'b', 'c', 'd'\]"):
            layer_kernel(method, 0, 1, 4, 1, table)

    def test_masks(self):
        X = np.random.default_rng(0).normal(size=(40, 3))
        mask = Select(RBF(1.0), [False, False, True])
        np.testing.assert_array_equal(mask(X), Select(RBF(1.0), 2)(X))
        options = {"max_iter": 2, "base": None, "n_neighbors": 0, "random_state": 0}
        model = SOLVEGPRegressor(8, 0, kernel=mask, **options).fit(X, X[:, 2])
        number = SOLVEGPRegressor(8, 0, kernel=Select(RBF(1.0), 2), **options).fit(X, X[:, 2])
        np.testing.assert_array_equal(model.predict(X), number.predict(X))

    @pytest.mark.parametrize(
        "columns", [[], slice(0, 2), {0, 1}, [[0, 1]], [[0, 1], [2]], [True, False], [False] * 3, [True, 1, 2], 1.0]
    )
    def test_columns_that_are_neither_numbers_nor_names_nor_a_mask(self, columns):
        X = np.zeros((5, 3))
        for act in (Select(RBF(), columns), lambda X: SOLVEGPRegressor(kernel=Select(RBF(), columns)).fit(X, X[:, 0])):
            with pytest.raises(
                ValueError, match=r"Select of columns=.*: give a number or a name, a list of them, or a"
            ):
                act(X)

    def test_columns_in_an_array(self):
        kernel = Select(RBF(1.0), np.array([0, 1]))
        assert clone(kernel) == kernel and kernel != Select(RBF(1.0), np.array([0, 1, 2])) and kernel != RBF(1.0)
        X = normal(30, 2).numpy()
        model = SOLVEGPRegressor(10, 0, kernel=kernel, max_iter=2, warm_start=True, random_state=0).fit(X, X[:, 0])
        assert np.isfinite(model.fit(X, X[:, 0]).predict(X)).all()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF() * WhiteKernel(), "kernel has a WhiteKernel inside a product or another kernel"),
        (PairwiseKernel(), "kernel has a PairwiseKernel, which is none of"),
        (Matern(nu=0.7), "kernel has Matern with nu=0.7: choose 0.5, 1.5, 2.5 or infinity"),
        (RBF() ** 0.5, "kernel has an exponent of 0.5: give a whole number of at least 1"),
        (RBF() ** -1, "kernel has an exponent of -1: give a whole number"),
        (RBF, r"kernel=RBF is a class: give an object of it, such as RBF\(\)"),
        (["nope"], "kernel='nope' is no kernel: give one of .*matern12"),
        ([None], "kernel=None is no kernel: give one of"),
    ],
)
def test_kernels_that_are_not_known(kernel, message):
    X = np.zeros((5, 1))
    with pytest.raises(ValueError, match=message):
        SOLVEGPRegressor(kernel=kernel).fit(X, X[:, 0])


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF(1.0) ** 5, "Functions cannot be drawn with Power: sums and products"),
        (
            DotProduct() ** 4 * DotProduct() ** 4,
            "Functions cannot be drawn with a product of dot products that has 6561",
        ),
    ],
)
def test_functions_that_cannot_be_drawn(kernel, message):
    with pytest.raises(ValueError, match=message):
        ours(kernel, n_inputs=2).draw(Streams([0]), 2, 1)
