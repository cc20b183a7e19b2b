"""``sample_y`` before ``fit``: draws from the prior, with the moments and the units that its page promises."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel
from sklearn.preprocessing import PowerTransformer

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import LinearMean
from skdgp.gp.prior import PriorLayer
from skdgp.gp.waves import Streams
from skdgp.kernels import Select
from skdgp.methods.solvegp import SOLVEGP

X = np.random.default_rng(0).normal(size=(6, 2))

#: The same rows with other columns: a category, and days.
FRAME = pd.DataFrame({"a": X[:, 0], "c": [*"xyxzyx"], "when": pd.date_range("2020-01-01", periods=6)})

#: Estimators of one to three layers, with means, kernels and features of every kind.
MODELS = {
    "avdgp": AVDGPRegressor((3, 2)),
    "avdgp narrow": AVDGPRegressor((1,), mean="identity", n_estimators=3),
    "avdgp flat": AVDGPRegressor(()),
    "dsdgp": DSDGPRegressor(n_inducing=500),
    "dsdgp narrow": DSDGPRegressor((1,), propagation="quadrature"),
    "dsdgp wide": DSDGPRegressor((3, 2), mean="zero", kernel="matern12", layer_posterior="joint"),
    "dsdgp latent": DSDGPRegressor((2,), latent_dims=1, propagation="quadrature"),
    "solvegp": SOLVEGPRegressor(n_inducing=500, n_orthogonal=500, covariance="odvgp", n_estimators=3),
    "solvegp waves": SOLVEGPRegressor(inducing="fourier", kernel="matern32"),
    "solvegp object": SOLVEGPRegressor(kernel=RBF(0.7) + WhiteKernel(0.1)),
}

by_model = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


def drawn(model, rows=X, n_draws=1000, latent=True, **options):
    """Draws of a copy of an estimator, which warn of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return clone(model).sample_y(rows, n_draws, random_state=0, latent=latent, **options)


def assert_covariance(draws, expected):
    """Assert that draws (n, S) of Gaussian numbers of mean zero have a covariance, but for six of its errors."""
    variance, n_draws = np.diagonal(expected), draws.shape[1]
    errors = np.sqrt((expected**2 + np.outer(variance, variance)) / n_draws)  # Isserlis
    assert (np.abs(draws @ draws.T / n_draws - expected) < 6 * errors).all()
    assert (np.abs(draws.mean(axis=1)) < 6 * np.sqrt(variance / n_draws)).all()


@pytest.mark.slow
class TestMoments:
    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    @pytest.mark.parametrize(
        "kernel",
        [
            lambda s: ConstantKernel(2.0) * RBF(0.5 * s),
            lambda s: 0.5 * Matern([1.0 * s, 3.0 * s], nu=1.5) + ConstantKernel(0.3),
            lambda s: DotProduct(s),
        ],
    )
    def test_kernel_objects_in_the_units_of_features(self, kernel, scale):
        rows = scale * (X + 3.0)
        expected = kernel(scale)(rows)
        np.testing.assert_allclose(
            expected, GaussianProcessRegressor(kernel(scale)).predict(rows, return_cov=True)[1], rtol=1e-12
        )
        assert_covariance(drawn(SOLVEGPRegressor(kernel=kernel(scale)), rows, 2000), expected)

    def test_deep_models_have_the_variance_of_the_last_kernel(self):
        kernels = [RBF([0.5, 0.5]), ConstantKernel(4.0) * RBF(1.0)]
        for model in (DSDGPRegressor((2,), kernel=kernels), AVDGPRegressor((2,), kernel=kernels)):
            np.testing.assert_allclose(drawn(model).var(axis=1), 4.0, atol=6 * 4.0 * np.sqrt(2 / 1000))

    def test_hidden_layers_are_drawn(self):
        """Given two hidden values h and h', which differ by a normal number, the covariance is exp(−(h − h')²/2)."""
        model = AVDGPRegressor((1,), kernel=[RBF(0.5), RBF(1.0)])
        apart = 2 * (1 - RBF(0.5)(X))  # variances of h − h'
        draws = drawn(model, n_draws=2000)
        np.testing.assert_allclose(draws @ draws.T / 2000, 1 / np.sqrt(1 + apart), atol=6 * np.sqrt(2 / 2000))

    @by_model
    def test_names_have_variance_one(self, model):
        draws = drawn(model, n_draws=500)
        np.testing.assert_allclose(draws.var(axis=1), 1.0, atol=6 * np.sqrt(2 / 500))
        np.testing.assert_allclose(draws.mean(axis=1), 0.0, atol=6 / np.sqrt(500))

    def test_numbers_of_kernel_objects_may_lie_outside_of_their_bounds(self):
        kernel = ConstantKernel(2.0, (1.0, 1.5)) * RBF(0.5, (1.0, 2.0)) + WhiteKernel(4.0, (1.0, 2.0))
        assert_covariance(drawn(SOLVEGPRegressor(kernel=kernel)), (ConstantKernel(2.0) * RBF(0.5))(X))
        noise = drawn(SOLVEGPRegressor(kernel=kernel), latent=False) - drawn(SOLVEGPRegressor(kernel=kernel))
        assert abs(noise.var() / 4.0 - 1) < 6 * np.sqrt(2 / noise.size)

    def test_noise(self):
        for model, expected in (
            (SOLVEGPRegressor(kernel=RBF() + WhiteKernel(0.3)), 0.3),
            (DSDGPRegressor((2,), kernel=[RBF([1, 1]), RBF() + WhiteKernel(0.3, "fixed")]), 0.3),
            (SOLVEGPRegressor(), 0.05),
        ):
            noise = drawn(model, n_draws=500, latent=False) - drawn(model, n_draws=500)
            assert abs(noise.var() / expected - 1) < 6 * np.sqrt(2 / noise.size)

    def test_given_noise(self):
        variance = np.arange(6.0)
        model = SOLVEGPRegressor()
        noise = drawn(model, latent=False, noise_variance=variance) - drawn(model, noise_variance=variance)
        np.testing.assert_allclose(noise.var(axis=1), variance, rtol=6 * np.sqrt(2 / 1000))

    def test_targets_of_likelihoods(self):
        f = drawn(SOLVEGPRegressor(), n_draws=300)
        for likelihood in ("poisson", "negative_binomial", "gamma", "lognormal"):
            model = SOLVEGPRegressor(likelihood=likelihood)
            np.testing.assert_allclose(drawn(model, n_draws=300), np.exp(f), rtol=1e-6)
            ratio = drawn(model, n_draws=300, latent=False) / np.exp(f)
            mean = np.exp(0.5 * 0.05) if likelihood == "lognormal" else 1.0
            np.testing.assert_allclose(ratio.mean(), mean, atol=6 * ratio.std() / np.sqrt(ratio.size))
        log, beta = SOLVEGPRegressor(target_transform="log"), SOLVEGPRegressor(likelihood="beta")
        np.testing.assert_allclose(drawn(log, n_draws=300), np.exp(f), rtol=1e-6)
        np.testing.assert_allclose(drawn(beta, n_draws=300), 1 / (1 + np.exp(-f)), rtol=1e-6)
        shares = drawn(beta, n_draws=300, latent=False)
        assert shares.min() >= 0 and shares.max() <= 1
        for likelihood in ("student_t", "heteroskedastic"):
            y = drawn(SOLVEGPRegressor(likelihood=likelihood), n_draws=300, latent=False)
            np.testing.assert_allclose(np.median(y, axis=1), 0.0, atol=0.4)

    def test_exposures(self):
        exposure = np.array([1.0, 1.0, 10.0, 10.0, 1000.0, 1000.0])
        model = SOLVEGPRegressor(likelihood="poisson")
        mean = drawn(model, n_draws=500, exposure=exposure)
        np.testing.assert_allclose(mean, exposure[:, None] * drawn(model, n_draws=500), rtol=1e-12)
        counts = drawn(model, n_draws=500, latent=False, exposure=exposure)
        np.testing.assert_allclose(((counts - mean) ** 2 / mean).mean(axis=1), 1.0, atol=0.5)  # that of Poisson


class TestFunctions:
    @by_model
    def test_rows_one_by_one_have_the_values_of_rows_together(self, model):
        whole = drawn(model, n_draws=3)
        parts = [drawn(model, X[[i]], n_draws=3) for i in range(len(X))]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        np.testing.assert_array_equal(drawn(model, n_draws=5)[:, :3], whole)  # whatever the number of draws is
        assert np.ptp(whole, axis=1).min() > 0

    @by_model
    def test_any_table(self, model):
        gaps = FRAME.assign(b=[np.nan, 1.0, 2.0, np.nan, 0.0, 3.0])
        for table in (FRAME, gaps, FRAME[["c"]]):
            assert np.isfinite(drawn(model, table, n_draws=3, latent=False)).all()

    def test_names_of_features(self):
        draws = drawn(SOLVEGPRegressor(kernel=Select(RBF(0.5), ["a"])), FRAME)
        assert_covariance(draws, RBF(0.5)(FRAME[["a"]]))

    def test_equal_levels_have_equal_values(self):
        draws = drawn(SOLVEGPRegressor(), FRAME[["c"]], n_draws=20)
        codes = FRAME["c"].astype("category").cat.codes.to_numpy()
        same = codes[:, None] == codes
        np.testing.assert_array_equal((draws[:, None] == draws).all(axis=-1), same)

    def test_missing_cells_are_drawn(self):
        """A cell of which nothing is known beside its mean and deviation: E k(x, x') over it, not k at its mean."""
        rows = np.random.default_rng(1).normal(size=(200, 1))
        rows[0] = np.nan
        draws = drawn(SOLVEGPRegressor(kernel=RBF(0.5)), rows)
        np.testing.assert_allclose(draws[0].var(), 1.0, atol=0.25)
        assert abs(np.corrcoef(draws[0], draws[np.abs(rows[1:, 0]).argmin() + 1])[0, 1]) < 0.75

    def test_nothing_is_kept(self):
        model = SOLVEGPRegressor()
        before = dict(vars(model))
        model.sample_y(X)
        assert vars(model) == before
        with pytest.raises(NotFittedError):
            model.predict(X)

    def test_a_fit_decides_from_then_on(self):
        y = np.sin(X[:, 0]) + 100.0
        model = SOLVEGPRegressor(max_iter=2, base=None, n_neighbors=0)
        assert np.abs(drawn(model, n_draws=3)).max() < 50
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few rows
            fitted = clone(model).fit(X, y)
        assert fitted.sample_y(X, 3, random_state=0).min() > 50


class TestRefusals:
    @pytest.mark.parametrize(
        "options",
        [
            {"likelihood": "ordinal"},
            {"likelihood": Gaussian},
            {"trend": "auto"},
            {"n_latent_outputs": 1},
            {"target_transform": "auto"},
            {"target_transform": "logit"},
            {"target_transform": PowerTransformer()},
            {"target_transform": "log", "likelihood": "student_t"},
        ],
        ids=str,
    )
    def test_where_targets_decide(self, options):
        name = min(options, key=lambda each: each != "target_transform")
        with pytest.raises(NotFittedError, match=rf"no prior with {name}=.*: call fit first, or leave it out"):
            SOLVEGPRegressor(**options).sample_y(X)

    def test_mean_targets_of_levels(self):
        levels = pd.DataFrame({"c": [f"level {i}" for i in range(200)]})
        with pytest.raises(NotFittedError, match="no prior with a category of so many levels that mean targets"):
            SOLVEGPRegressor().sample_y(levels)

    def test_errors_of_fit(self):
        for options, rows, error, message in (
            ({"kernel": "none"}, X, ValueError, "'kernel' parameter of SOLVEGPRegressor must be"),
            ({"kernel": [RBF(), RBF()]}, X, ValueError, "kernel has 2 values for 1 layers"),
            ({"method": "collapsed", "covariance": "diag"}, X, ValueError, "needs covariance='full'"),
            ({"kernel": RBF() + WhiteKernel(), "likelihood": "gamma"}, X, ValueError, "kernel has a WhiteKernel"),
            ({}, None, TypeError, "X is of type NoneType, which is no table"),
            ({}, X[0], ValueError, "Expected 2D array"),
            ({}, X[:0], ValueError, "0 sample"),
        ):
            with pytest.raises(error, match=message):
                SOLVEGPRegressor(**options).sample_y(rows)
        for options in ({"exposure": 1.0}, {"n_samples": 0}):
            with pytest.raises(ValueError, match=r"exposure goes with counts|n_samples=0 must be"):
                SOLVEGPRegressor().sample_y(X, **options)


def test_marginals_of_a_layer_are_those_of_its_draws():
    kernel = SOLVEGP(kernel="matern52").build(torch.zeros(3, 2), Gaussian(1), torch.Generator().manual_seed(0))
    kernel = kernel.layers[0].kernel
    with torch.no_grad():
        kernel.log_variance.fill_(np.log(3.0))
    layer = PriorLayer(kernel, LinearMean(torch.eye(2), learnable=False), 2, 2).double()
    x = torch.from_numpy(X)[None]
    mean, variance, kl = layer(x, x[0])
    assert mean.shape == variance.shape == (1, 6, 2) and kl == 0
    values = layer.draw(Streams(range(2000)))(x, x[0]).detach().numpy()
    np.testing.assert_allclose(values.mean(0), mean[0].numpy(), atol=6 * np.sqrt(3 / 2000))
    np.testing.assert_allclose(values.var(0), variance[0].detach().numpy(), atol=6 * 3 * np.sqrt(2 / 2000))
