"""Rows together: joint covariances, functions drawn from the posterior, and gradients."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import (
    CLASSIFIERS,
    REGRESSORS,
    ExactRegression,
    every_covariance,
    every_family,
    every_whiten,
    generator,
    name_of,
    normal,
    predictor_of,
    table_of,
    targets,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

from skdgp import AVDGPRegressor, DSDGPRegressor, FunctionDraws, SOLVEGPRegressor
from skdgp.estimators import _functions
from skdgp.gp import blend
from skdgp.gp.amortised_layer import AmortisedLayer
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer, OrthogonalLayer
from skdgp.gp.kernels import PROFILES, Kernel, StationaryKernel, make_kernel
from skdgp.gp.layers import Layer
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean, make_mean
from skdgp.gp.networks import INFERENCE_NETWORKS
from skdgp.gp.propagation import make_propagation
from skdgp.gp.waves import N_WAVES, Streams, more_of_the_tail, spread
from skdgp.inference import joint
from skdgp.inference.batches import Batch
from skdgp.inference.collapsed import set_posteriors
from skdgp.kernels import Select

N_DRAWS = 1500


def assert_moments(draws, mean, covariance):
    """Draws (S, n) have these moments, within 4.5 standard errors and 2 %."""
    error = np.sqrt(np.diag(covariance) / len(draws))
    spread = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    slack = 0.02 * np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(0) - mean) < 4.5 * error + slack).all()
    found = np.cov(draws.T)
    assert (np.abs(found - covariance) < 4.5 * np.sqrt((spread**2 + covariance**2) / len(draws)) + 0.02 * spread).all()


@torch.no_grad()
def shake(module, size=0.3):
    """Move learnt parameters away from where they start."""
    source = generator(1)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(size * torch.randn(parameter.shape, generator=source).to(parameter))
    return module.double().requires_grad_(False)


def global_layer(kind, n_outputs, n_kernels, covariance, whiten, kernel="matern32"):
    Z = normal(5, 2, seed=1)
    options = {"covariance": covariance, "whiten": whiten}
    made = make_kernel(kernel, 2, n_kernels, ard=True).double()
    mean = make_mean("linear", Z, n_outputs).double()
    v = normal(n_outputs, 5, seed=2)
    if kind is OrthogonalLayer:
        options |= {"O": normal(3, 2, seed=3), "orthogonal_covariance": covariance}
    return shake(kind(made, mean, Z, v, **options))


def amortised_layer(n_outputs, covariance, whiten, inducing_map="affine", kernel="matern52"):
    network = INFERENCE_NETWORKS[inducing_map](
        2, n_outputs, 3, covariance=covariance, widths=(4,), generator=generator()
    )
    layer = AmortisedLayer(make_kernel(kernel, 2, n_outputs), ZeroMean(n_outputs), network, whiten=whiten)
    return shake(layer)


def assert_layer_draws(layer, x):
    """Draws at rows ``x`` (n, Q) have the layer's closed forms, whose diagonal is that of its marginals."""
    with torch.no_grad():
        mean, variance, _ = layer(x[None], x)
        covariance = layer.covariance(x[None], x, x.new_ones(1))
        draws = layer.draw(Streams(range(N_DRAWS)))(x[None], x)
    torch.testing.assert_close(covariance.diagonal(dim1=-2, dim2=-1).mT, variance[0], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(covariance, covariance.mT)
    for d in range(len(covariance)):
        assert_moments(draws[..., d].numpy(), mean[0, :, d].numpy(), covariance[d].numpy())


class TestWaves:
    """The prior's functions."""

    @pytest.mark.parametrize("profile", sorted(PROFILES))
    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_draws_have_the_covariance_of_the_kernel(self, profile, n_outputs):
        kernel = StationaryKernel(profile, 3, ard=True).double().requires_grad_(False)
        kernel.log_lengthscale.copy_(torch.tensor([[0.5, 0.0, -0.5]]))
        x = normal(6, 3, seed=1)
        draws = kernel.draw(Streams(range(N_DRAWS)), 3, n_outputs)(x[None])
        K = kernel.relative_covariance(x, x)[0].numpy()
        for d in range(n_outputs):
            assert_moments(draws[..., d].numpy(), np.zeros(6), K)
        if n_outputs == 2:
            product = (draws[..., 0] * draws[..., 1]).mean(0)
            assert product.abs().max() < 4.5 / np.sqrt(N_DRAWS)

    def test_variance_does_not_depend_on_frequencies(self):
        """Σ cos² + sin² of any frequencies is 1: given them, the variance is exactly the prior's."""
        kernel = StationaryKernel("matern12", 2).double().requires_grad_(False)
        points = spread(Streams([0]), 1, 16, 3)
        phases = kernel.frequencies(points)[0, 0] @ normal(2, 5)
        torch.testing.assert_close((phases.cos().square() + phases.sin().square()).mean(0), torch.ones(5).double())

    @pytest.mark.parametrize(("n_inputs", "largest"), [(1, 0.005), (3, 0.010), (10, 0.018)])
    def test_correlations_of_a_single_draw(self, n_inputs, largest):
        """Root mean square error of the correlations that one draw has, given its frequencies (as documented)."""
        kernel = StationaryKernel("matern52", n_inputs).double().requires_grad_(False)
        points = spread(Streams(range(50)), 1, N_WAVES, n_inputs + 1)
        step = normal(40, n_inputs, seed=5)
        found = (kernel.frequencies(points)[:, 0] @ step.mT).cos().mean(1)  # (S, 40)
        exact = kernel.relative_covariance(torch.zeros(1, n_inputs).double(), step)[0, 0]
        assert (found - exact).square().mean().sqrt() < largest

    def test_points_are_spread_evenly_and_uniform(self):
        points = spread(Streams(range(200)), 2, 64, 2)
        assert points.shape == (200, 2, 64, 2)
        assert (points > 0).all() and (points < 1).all()
        counts = torch.histc(points[0, 0, :, 0], 8, 0, 1)
        assert (counts == 8).all()  # chance would be off by three
        assert abs(points.mean() - 0.5) < 0.005
        assert spread(Streams([0]), 1, 4, 30_000).shape == (1, 1, 4, 30_000)  # more than Sobol's sequence has

    def test_streams_do_not_depend_on_each_other(self):
        together, alone = Streams([3, 4, 5]), Streams([5])
        for numbers in (lambda s: s.normal(2, 3), lambda s: s.uniform(4), lambda s: s.choice(torch.ones(7))):
            assert torch.equal(numbers(together)[2], numbers(alone)[0])

    def test_choices_have_their_probabilities(self):
        chosen = Streams(range(4000)).choice(torch.tensor([0.5, 0.0, 0.3, 0.2]))
        shares = torch.bincount(chosen, minlength=4) / 4000
        torch.testing.assert_close(shares, torch.tensor([0.5, 0.0, 0.3, 0.2]), atol=0.03, rtol=0)


class TestLayers:
    """Draws and closed forms of the three layers."""

    @pytest.mark.slow
    @every_whiten
    @every_covariance
    @pytest.mark.parametrize("kind", [GlobalLayer, OrthogonalLayer])
    @pytest.mark.parametrize("n_kernels", [1, 2])
    def test_global_draws(self, kind, n_kernels, covariance, whiten):
        assert_layer_draws(global_layer(kind, 2, n_kernels, covariance, whiten), normal(4, 2, seed=9))

    @pytest.mark.slow
    @every_whiten
    def test_draws_of_a_learnt_mean_alone(self, whiten):
        layer = global_layer(OrthogonalLayer, 1, 1, "diag", whiten)
        layer.q_orthogonal.log_diagonal = layer.q_orthogonal.below = None  # the covariance stays the prior's
        assert_layer_draws(layer, normal(4, 2, seed=9))

    @pytest.mark.slow
    @every_whiten
    @every_covariance
    @pytest.mark.parametrize("inducing_map", ["affine", "mlp"])
    def test_amortised_draws(self, inducing_map, covariance, whiten):
        assert_layer_draws(amortised_layer(2, covariance, whiten, inducing_map), normal(4, 2, seed=9))

    @pytest.mark.parametrize("kind", ["global", "amortised"])
    def test_inputs_of_every_sample_alone(self, kind):
        """Covariances are averaged over samples, whether they share anchors or not; draws follow their own inputs."""
        layer = global_layer(GlobalLayer, 2, 2, "full", True) if kind == "global" else amortised_layer(2, "diag", True)
        x, weight = normal(3, 5, 2, seed=4), torch.tensor([0.2, 0.3, 0.5]).double()
        for anchor in (x, x[0]):
            anchors = anchor if anchor.dim() == 3 else anchor.expand(3, -1, -1)
            expected = sum(
                w * layer.covariance(a[None], b, w.new_ones(1)) for w, a, b in zip(weight, x, anchors, strict=True)
            )
            torch.testing.assert_close(layer.covariance(x, anchor, weight), expected)
            values = layer.draw(Streams([1, 2, 3]))(x, anchor)
            for s in range(3):
                alone = layer.draw(Streams([s + 1]))(x[s, None], anchors[s])
                torch.testing.assert_close(values[s], alone[0])

    def test_orthogonal_covariance_equals_dense_algebra(self):
        layer = global_layer(OrthogonalLayer, 1, 1, "full", False)
        x, Z, O, k = normal(4, 2, seed=9), layer.Z, layer.O, lambda a, b: layer.kernel(a, b)[0].numpy()  # noqa: E741
        K, jitter = k(Z, Z), layer.jitter * layer.kernel.variance.item()
        inverse = np.linalg.inv(K + jitter * np.eye(5))
        A = inverse @ k(Z, x)
        C = k(O, O) + jitter * np.eye(3) - k(O, Z) @ inverse @ k(Z, O)
        B = np.linalg.inv(C) @ (k(O, x) - k(O, Z) @ A)
        S_u, S_v = ((q.root[0] @ q.root[0].mT).numpy() for q in layer.posteriors)
        expected = k(x, x) - A.T @ (K + jitter * np.eye(5)) @ A - B.T @ C @ B + A.T @ S_u @ A + B.T @ S_v @ B
        np.testing.assert_allclose(layer.covariance(x[None], x, x.new_ones(1))[0], expected, rtol=1e-7, atol=1e-9)

    def test_amortised_covariance_equals_dense_algebra(self):
        layer = amortised_layer(1, "diag", True, kernel="rbf")
        x, jitter = normal(4, 2, seed=9), 1e-6
        Z, _, c = (part.numpy() for part in layer.inference(x))  # (4, 3, 2), (3, 1, 4), (3, 1, 4)
        k = lambda a, b: layer.kernel.relative_covariance(torch.as_tensor(a), torch.as_tensor(b))[0].numpy()  # noqa: E731
        expected = np.empty((4, 4))
        a, L = [], []
        for n in range(4):
            K = k(Z[n], Z[n]) + jitter * np.eye(3)
            L.append(np.linalg.cholesky(K))
            a.append(np.linalg.solve(K, k(Z[n], x[n : n + 1])[:, 0]))
        for n in range(4):
            for m in range(4):
                K = k(Z[n], Z[m]) + jitter * np.eye(3)
                shared = (L[n].T @ a[n] * c[:, 0, n]) @ (L[m].T @ a[m] * c[:, 0, m])
                expected[n, m] = k(x[n : n + 1], x[m : m + 1])[0, 0] + a[n] @ K @ a[m] + shared
                expected[n, m] -= a[n] @ k(Z[n], x[m : m + 1])[:, 0] + a[m] @ k(Z[m], x[n : n + 1])[:, 0]
        expected *= layer.kernel.variance.item()
        np.testing.assert_allclose(layer.covariance(x[None], x, x.new_ones(1))[0], expected, rtol=1e-7, atol=1e-9)

    def test_blocks_of_rows_do_not_matter(self, monkeypatch):
        x, one = normal(7, 2, seed=9), torch.ones(1).double()
        layers = [amortised_layer(2, "diag", True), global_layer(OrthogonalLayer, 2, 2, "full", True)]
        whole = [layer.covariance(x[None], x, one) for layer in layers]
        monkeypatch.setattr("skdgp.gp.layers.CACHE_NUMBERS", 1)
        for layer, expected in zip(layers, whole, strict=True):
            torch.testing.assert_close(layer.covariance(x[None], x, one), expected)

    @pytest.mark.parametrize("n_kernels", [1, 2])
    @pytest.mark.parametrize("kernel", ["rbf", "matern32", "matern52"])
    def test_variance_of_gradients(self, n_kernels, kernel):
        """The limit of Var(f(x + h) − f(x))/h², from the joint covariance."""
        layer = global_layer(OrthogonalLayer, 2, n_kernels, "full", True, kernel=kernel)
        x, h = normal(3, 2, seed=9), 1e-4
        found = layer.gradient_variance(x)  # (3, 2, 2)
        for q in range(2):
            rows = torch.cat([x, x + h * torch.eye(2)[q]])
            C = layer.covariance(rows[None], rows, x.new_ones(1))
            n = torch.arange(3)
            expected = (C[:, n, n] + C[:, n + 3, n + 3] - 2 * C[:, n, n + 3]).mT / h**2
            torch.testing.assert_close(found[:, :, q], expected, rtol=3e-3, atol=1e-4)

    def test_layers_and_kernels_that_do_not_say_how(self):
        class Odd(Kernel):
            pass

        with pytest.raises(ValueError, match="Functions cannot be drawn with Odd, which does not say how"):
            Odd().draw(Streams([0]), 1, 1)
        with pytest.raises(ValueError, match="Functions cannot be drawn of Layer: define its method draw"):
            Layer().draw(Streams([0]))
        with pytest.raises(ValueError, match="Layer has no joint marginals of replicates: define its method jointly"):
            Layer().jointly(normal(2, 1, 1), normal(2, 1, 1), 2)
        with pytest.raises(ValueError, match="Layer has no joint posterior: define its method covariance"):
            Layer().covariance(*3 * [torch.ones(1)])
        assert Odd().gradient_variance(2) is None and Layer().gradient_variance(torch.ones(1, 1)) is None


class TestDeepModels:
    """Layers in a chain."""

    def model(self, rule, n_samples):
        if rule.startswith("ar"):
            layers = [amortised_layer(2, "diag", True), amortised_layer(1, "diag", True)]
        else:
            layers = [global_layer(GlobalLayer, 2, 1, "diag", True), global_layer(GlobalLayer, 1, 1, "diag", True)]
        return DeepGP(layers, make_propagation(rule, (2,), n_samples, generator()), Gaussian(1)).double()

    @pytest.mark.slow
    @pytest.mark.parametrize("rule", ["ar2p", "quadrature"])
    def test_with_quadrature_draws_have_exactly_the_mixture_of_predictions(self, rule):
        model, x = self.model(rule, 5), normal(4, 2, seed=9)
        with torch.no_grad():
            model.propagation.logits.copy_(normal(5, seed=3))
            mean, variance = model(x).moments()
            covariance = model.covariance(x, Streams(range(5)))[0]
            draws = model.draw(Streams(range(N_DRAWS)))(x)[..., 0]
            some = model.covariance(x, Streams(range(3)))[0]
        torch.testing.assert_close(covariance.diagonal(), variance[:, 0])
        torch.testing.assert_close(some.diagonal(), variance[:, 0])  # of the heaviest three components
        assert_moments(draws.numpy(), mean[:, 0].numpy(), covariance.numpy())

    @pytest.mark.slow
    @pytest.mark.parametrize("rule", ["ar1", "ar2", "monte_carlo"])
    def test_sampled_hidden_layers_have_functions_of_their_own(self, rule):
        model, x = self.model(rule, 2000), normal(4, 2, seed=9)
        with torch.no_grad():
            mean, variance = model(x).moments()
            covariance = model.covariance(x, Streams(range(5000, 5500)))[0]
            draws = model.draw(Streams(range(N_DRAWS)))(x)[..., 0]
        np.testing.assert_allclose(draws.mean(0), mean[:, 0], atol=0.1 * variance.max().sqrt().item())
        np.testing.assert_allclose(draws.var(0), variance[:, 0], rtol=0.15)
        np.testing.assert_allclose(np.cov(draws.numpy().T), covariance, atol=0.15 * variance.max().item())


@pytest.fixture(scope="module")
def fitted(wave):
    """Fitted estimators of all families, two members where there are ensembles."""
    X, y = wave
    return {name_of(tiny): tiny(n_estimators=2).fit(X, targets(tiny, y)) for tiny in [*REGRESSORS, *CLASSIFIERS]}


class TestFunctions:
    """What users are owed by draws."""

    @every_family
    def test_values_do_not_depend_on_other_rows(self, tiny, fitted, wave, monkeypatch):
        X, model = wave[0], fitted[name_of(tiny)]
        draws, rng = model.sample_functions(3, random_state=0), np.random.default_rng(0)
        whole = draws(X)
        for _ in range(5):
            rows = rng.permutation(len(X))[: rng.integers(1, len(X))]
            assert np.array_equal(draws(X[rows]), whole[rows])
        monkeypatch.setattr(joint, "PREDICT_NUMBERS", 1)  # 48 rows at a time
        assert np.array_equal(draws(X), whole)

    @pytest.mark.parametrize("kernel", ["matern52", DotProduct(), RBF() * DotProduct()], ids=["base", "dot", "product"])
    def test_values_do_not_depend_on_their_places_in_large_tables(self, kernel):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 3))
        y = X[:, 0] + np.sin(3 * X[:, 1])
        options = {"n_neighbors": 4} if kernel == "matern52" else {"n_neighbors": 0}
        draws = SOLVEGPRegressor(8, 0, kernel=kernel, random_state=0, **options).fit(X, y).sample_functions(5)
        whole = draws(X)
        for start, stop in ((50, 60), (100, 148), (0, 48), (0, 96), (299, 300)):
            assert np.array_equal(draws(X[start:stop]), whole[start:stop])

    @pytest.mark.parametrize("seeds", [[], [-1], [0.5], 3, [[1]]], ids=str)
    def test_seeds_are_integers(self, fitted, seeds):
        with pytest.raises(ValueError, match=r"seeds=.* must be integers from 0 on, one for each function"):
            FunctionDraws(next(iter(fitted.values())), seeds)

    @every_family
    def test_seeds_fix_functions(self, tiny, fitted, wave):
        X, model = wave[0], fitted[name_of(tiny)]
        draws = model.sample_functions(4, random_state=0)
        np.testing.assert_allclose(
            model.sample_functions(2, random_state=0)(X), draws(X)[..., :2], rtol=1e-9, atol=1e-10
        )
        np.testing.assert_allclose(draws[1:3](X), draws(X)[..., 1:3], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(draws[3](X)[..., 0], draws(X)[..., 3], rtol=1e-9, atol=1e-10)
        assert not np.allclose(model.sample_functions(4, random_state=1)(X), draws(X))
        assert len(draws) == draws.n_functions == 4 and len(draws[1:3]) == 2
        assert "n_functions=4" in repr(draws) and type(model).__name__ in repr(draws)

    @every_family
    def test_draws_outlive_their_estimator(self, tiny, wave):
        X, y = wave
        model = tiny(warm_start=True, max_iter=1).fit(X, targets(tiny, y))
        draws = model.sample_functions(2, random_state=0)
        before, stored = draws(X), pickle.dumps(draws)
        model.fit(X, targets(tiny, y))
        assert np.array_equal(draws(X), before)
        assert np.array_equal(pickle.loads(stored)(X), before)
        assert not np.array_equal(model.sample_functions(2, random_state=0)(X), before)

    @every_family
    def test_gradients_are_limits_of_differences(self, tiny, fitted, wave):
        X, model, h = wave[0][:5], fitted[name_of(tiny)], 1e-5
        draws = model.sample_functions(3, random_state=0)
        found = draws.gradient(X)
        for q in range(3):
            step = h * np.eye(3)[q]
            difference = (draws(X + step) - draws(X - step)) / (2 * h)
            np.testing.assert_allclose(np.moveaxis(found, -2, 0)[q], difference, atol=1e-5 * np.abs(found).max() + 1e-9)

    def test_shapes(self, tiny, wave):
        X, y = wave
        draws = tiny().fit(X, np.column_stack([y, -y])).sample_functions(2, random_state=0)
        assert draws(X[:7]).shape == (7, 2, 2) and draws.gradient(X[:7]).shape == (7, 2, 3, 2)
        assert tiny().fit(X, y).sample_functions()(X[:1]).shape == (1, 1)

    @pytest.mark.parametrize("tiny", CLASSIFIERS, ids=name_of)
    @pytest.mark.parametrize("n_classes", [2, 3])
    def test_mean_probabilities_of_functions_are_those_of_predictions(self, tiny, wave, n_classes):
        X, y = wave
        labels = targets(tiny, y) if n_classes == 3 else y > 0
        model = tiny(n_samples=100) if "n_samples" in tiny().get_params() else tiny()
        model.fit(X, labels)
        draws = model.sample_functions(300, random_state=0)
        proba = draws(X[:10])
        assert proba.shape == (10, n_classes, 300)
        np.testing.assert_allclose(proba.sum(1), 1.0)
        np.testing.assert_allclose(proba.mean(-1), model.predict_proba(X[:10]), atol=0.11)
        assert draws[0].gradient(X[:3]).shape == (3, n_classes, 3, 1)

    def test_draws_are_smooth_and_equal_at_equal_rows(self, tiny, fitted):
        draws = fitted[name_of(tiny)].sample_functions(5, random_state=0)
        line = np.linspace(-1, 1, 401)[:, None] * np.ones(3)
        steps = [np.abs(np.diff(draws(line[::every]), axis=0)).max() for every in (4, 2, 1)]
        assert steps[0] < 2.2 * steps[1] and steps[1] < 2.2 * steps[2] and steps[2] < 0.6 * steps[0]
        same = draws(np.repeat(line[:1], 60, axis=0))
        assert (same == same[0]).all()

    def test_functions_belong_to_members(self, tiny, wave):
        X, y = wave
        model = tiny(n_estimators=2, max_iter=10).fit(X, y)
        member_of = model.sample_functions(200, random_state=0).seeds % 2
        assert 60 < member_of.sum() < 140
        draws = model.sample_functions(200, random_state=0)(X[:20])
        for member in range(2):
            alone = SingleMember(model, member)
            difference = draws[:, member_of == member].mean(1) - alone.mean(X[:20])
            assert np.abs(difference).max() < 0.5 * draws.std()

    def test_tables_are_checked(self, tiny, wave):
        X, y = wave
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        draws = tiny().fit(frame, y).sample_functions(2, random_state=0)
        assert draws(frame).shape == (120, 2)
        with pytest.raises(ValueError, match="feature names should match"):
            draws(frame.rename(columns={"a": "z"}))
        with pytest.raises(ValueError, match="X has 2 features"):
            tiny().fit(X, y).sample_functions()(X[:, :2])
        with pytest.raises(ValueError, match="Found array with 0 sample"):
            draws.gradient(frame[:0])
        assert isinstance(draws, FunctionDraws)

    def test_far_away_is_finite(self, tiny, fitted):
        draws = fitted[name_of(tiny)].sample_functions(2, random_state=0)
        assert np.isfinite(draws(np.full((1, 3), 1e30))).all()


class SingleMember:
    """Predictions of one member of an ensemble."""

    def __init__(self, model, member):
        self.model, self.member = model, member

    def mean(self, X):
        units = self.model.module_[0].likelihood.units
        return self.model.predict_layers(X, member=self.member)[-1][0][:, 0] * units.scale[0] + units.shift[0]


class TestSamplesAndCovariances:
    """``sample_y`` and ``predict(return_cov=True)``."""

    @pytest.mark.slow
    @pytest.mark.parametrize("latent", [False, True])
    def test_samples_have_the_predicted_moments(self, tiny, wave, latent):
        X, y = wave
        model = tiny(n_estimators=1, **({"n_samples": 100} if "n_samples" in tiny().get_params() else {})).fit(X, y)
        rows = X[[0, 1, 2, 0]]
        mean, covariance = model.predict(rows, return_cov=True, latent=latent)
        draws = model.sample_y(rows, n_samples=600, random_state=0, latent=latent)
        deviation = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(draws.mean(1), mean, atol=0.15 * deviation.max())
        np.testing.assert_allclose(np.cov(draws), covariance, atol=0.2 * deviation.max() ** 2)
        if latent:
            assert np.array_equal(draws[0], draws[3])
            assert covariance[0, 3] == pytest.approx(covariance[0, 0], rel=1e-6)
        else:
            noise = draws[0] - draws[3]
            assert noise.var() == pytest.approx(2 * model.noise_variance_, rel=0.25)

    def test_the_same_seed_gives_the_same_functions(self, tiny, fitted, wave):
        X, model = wave[0], fitted[name_of(tiny)]
        whole = model.sample_y(X, 3, random_state=7, latent=True)
        rows = np.random.default_rng(0).permutation(len(X))[:50]
        assert np.array_equal(model.sample_y(X[rows], 3, random_state=7, latent=True), whole[rows])
        assert np.array_equal(model.sample_y(X, 3, random_state=7), model.sample_y(X, 3, random_state=7))
        assert np.array_equal(model.sample_functions(3, random_state=7)(X), whole)

    def test_members_disagree_jointly(self, wave):
        """The covariance between rows has the spread of members' means."""
        X, y = wave
        model = SOLVEGPRegressor(5, 0, n_estimators=3, max_iter=3, early_stopping=True, base=None, random_state=0)
        model.fit(X, y)
        rows = X[:6]
        found = model.predict(rows, return_cov=True, latent=True)[1]
        scale, means, own = model.module_[0].likelihood.units.scale[0], [], []
        inputs = torch.as_tensor(table_of(model).units.standardise(rows))
        for member in model.module_:
            means.append(member(inputs).moments()[0][:, 0].numpy())
            own.append(member.covariance(inputs, Streams([0]))[0].numpy())
        expected = scale**2 * (np.mean(own, axis=0) + np.cov(np.transpose(means), bias=True))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-10)

    @pytest.mark.parametrize("latent", [False, True])
    def test_collapsed_with_points_at_the_rows_is_exact_regression(self, latent):
        """Entry by entry scikit-learn's covariance, noise included (spec: 1e-6)."""
        rng = np.random.default_rng(0)
        X, X_test = rng.uniform(-2, 2, (40, 2)), rng.uniform(-3, 3, (15, 2))
        y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(40)
        raw = {"normalize_X": False, "normalize_y": False}
        model = SOLVEGPRegressor(40, 0, ard=False, max_iter=1, base=None, random_state=0, **raw).fit(X, y)
        member = model.module_[0].double()
        layer = member.layers[0]
        with torch.no_grad():  # the points, put back to where the rows are, and the posterior that is best then
            layer.Z.copy_(torch.as_tensor(X))
            layer.jitter = 1e-10
            set_posteriors(member, Batch.of(X, y, dtype=np.float64))
        kernel = layer.kernel
        exact = GaussianProcessRegressor(
            ConstantKernel(kernel.variance.item()) * Matern(kernel.lengthscale.item(), nu=2.5),
            alpha=model.noise_variance_,
            optimizer=None,
        ).fit(X, y)
        expected_mean, expected = exact.predict(X_test, return_cov=True)
        mean, covariance = model.predict(X_test, return_cov=True, latent=latent)
        np.testing.assert_allclose(mean, expected_mean, atol=1e-6)
        noise = 0.0 if latent else model.noise_variance_  # scikit-learn's kernel has no noise in it
        np.testing.assert_allclose(covariance, expected + noise * np.eye(15), atol=1e-6)

    def test_covariance_of_the_exact_posterior(self):
        """The layer's closed form, with Z = X, from the class that the other limits use."""
        exact = ExactRegression(12, "monte_carlo")
        K = exact.covariance(exact.X.numpy()) + exact.NOISE * np.eye(12)
        k = exact.covariance(exact.X.numpy(), exact.X_test.numpy())
        expected = exact.covariance(exact.X_test.numpy()) - k.T @ np.linalg.solve(K, k)
        L = torch.linalg.cholesky(torch.as_tensor(exact.covariance(exact.X.numpy())))
        S = torch.linalg.inv(torch.eye(12) + L.mT @ L / exact.NOISE)
        v = S @ L.mT @ exact.y / exact.NOISE
        layer = GlobalLayer(
            exact.make_kernel(), ZeroMean(1), exact.X, v.mT, covariance="full", whiten=True, jitter=1e-12
        ).double()
        layer.q.set(v.mT, torch.linalg.cholesky(S)[None])
        x = exact.X_test
        with torch.no_grad():
            np.testing.assert_allclose(layer.covariance(x[None], x, x.new_ones(1))[0], expected, atol=1e-6)


def rough(n_inputs, n_outputs=1, *, ard=False):
    return StationaryKernel("matern12", n_inputs, n_outputs, ard=ard)


ROUGH = {"name": "matern12", "object": RBF() + 2.0 * Select(Matern(nu=0.5), 0), "function": rough}


class TestPredictedGradients:
    """``predict_gradient``."""

    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_gradient_of_the_mean(self, tiny, wave, n_outputs):
        X, y = wave
        model = tiny(n_estimators=2).fit(X * [1, 10, 100], 50 * (y if n_outputs == 1 else np.column_stack([y, -y])))
        rows = X[:5] * [1, 10, 100]
        gradient = model.predict_gradient(rows)
        assert gradient.shape == ((5, 3) if n_outputs == 1 else (5, 2, 3))
        for q, h in enumerate([1e-5, 1e-4, 1e-3]):
            step = h * np.eye(3)[q]
            difference = (model.predict(rows + step) - model.predict(rows - step)) / (2 * h)
            np.testing.assert_allclose(gradient[..., q], difference, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_closed_form_deviation_is_that_of_functions(self, wave, monkeypatch):
        X, y = wave
        options = {"base": None, "n_neighbors": 0, "n_estimators": 2, "early_stopping": True, "random_state": 0}
        model = SOLVEGPRegressor(10, 5, max_iter=3, **options).fit(X, y)
        monkeypatch.setattr("skdgp.estimators._regression.GRADIENT_DRAWS", None)  # none are drawn
        gradient, std = model.predict_gradient(X[:4], return_std=True)
        draws = model.sample_functions(300, random_state=0).gradient(X[:4])
        np.testing.assert_allclose(draws.std(-1), std, rtol=0.15)
        np.testing.assert_allclose(draws.mean(-1), gradient, atol=0.2 * std.max())

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [AVDGPRegressor, DSDGPRegressor])
    def test_deviation_by_draws(self, kind, wave):
        X, y = wave
        model = kind((2,), 4, max_iter=2, n_estimators=1, n_samples=4, random_state=0).fit(X, y)
        gradient, std = model.predict_gradient(X[:2], return_std=True)
        assert gradient.shape == std.shape == (2, 3) and (std > 0).all()
        assert np.array_equal(std, model.predict_gradient(X[:2], return_std=True)[1])

    @pytest.mark.parametrize("kernel", ROUGH.values(), ids=ROUGH)
    def test_no_deviation_without_derivatives(self, tiny, wave, kernel):
        X, y = wave
        model = tiny(kernel=kernel).fit(X, y)
        assert np.isfinite(model.predict_gradient(X[:2])).all()
        model.set_params(kernel="rbf")  # it is too late to change what has been fitted
        with pytest.raises(ValueError, match=f"kernel={re.escape(repr(kernel))} has functions without derivatives"):
            model.predict_gradient(X[:2], return_std=True)

    def test_deviation_with_one_rough_layer(self, wave):
        model = DSDGPRegressor((2,), 4, kernel=["matern12", "rbf"], max_iter=1, n_estimators=1, random_state=0)
        with pytest.raises(ValueError, match=r"kernel=\['matern12', 'rbf'\] has functions without derivatives"):
            model.fit(*wave).predict_gradient(wave[0][:2], return_std=True)


@pytest.mark.parametrize(
    "kernel", ["matern32", "matern52", 1.0 * Matern(nu=2.5)], ids=["matern32", "matern52", "object"]
)
def test_functions_without_noise_have_no_heavy_tails(kernel):
    X = np.random.default_rng(0).uniform(size=(80, 2))
    params = {"base": None, "n_neighbors": 0, "n_inducing": 80, "n_orthogonal": 0, "random_state": 0}
    model = SOLVEGPRegressor(kernel=kernel, **params).fit(X, np.sin(3 * X.sum(1)) + 0.5 * X[:, 0] ** 2)
    new = np.random.default_rng(1).uniform(0.1, 0.9, size=(20, 2))
    latent = model.predict_dist(new, latent=True)
    z = (model.sample_functions(400, random_state=0)(new) - latent.mean[:, None]) / latent.std[:, None]
    assert np.mean(z**4) < 6.0  # 3 for a Gaussian; hundreds if all frequencies come from the spectral density
    assert np.mean(z**2) == pytest.approx(1.0, abs=0.15)


def test_weights_make_up_for_frequencies_from_the_tail():
    points, weight = more_of_the_tail(spread(Streams(range(50)), 2, 512, 3))
    u = points[..., 0]
    assert weight.max() <= 2.0 and (u < 1e-3).double().mean() > 0.1
    for power in (0, 1, 4):  # moments of a uniform number
        assert (weight * u**power).mean().item() == pytest.approx(1 / (power + 1), rel=0.01)


class TestManyDraws:
    @pytest.mark.parametrize("cls", REGRESSORS)
    def test_samples_do_not_depend_on_how_many_are_drawn_at_a_time(self, cls, monkeypatch):
        """All at once, they would take hundreds of kilobytes each."""
        X = np.random.RandomState(0).rand(40, 2)
        model = cls(max_iter=1, n_estimators=2, random_state=0).fit(X, 1e6 * np.sin(6 * X[:, 0]))
        options = [{"latent": False}, {"latent": True}]
        whole = [model.sample_y(X[:5], 7, random_state=0, **option) for option in options]
        sizes = []

        class Counting(joint.FunctionSet):
            def __init__(self, predictor, seeds, *arguments, **others):
                sizes.append(len(seeds))
                super().__init__(predictor, seeds, *arguments, **others)

        monkeypatch.setattr(_functions, "FunctionSet", Counting)
        monkeypatch.setattr(_functions, "DRAWS_AT_A_TIME", 3)
        for option, expected in zip(options, whole, strict=True):
            sizes.clear()
            samples = model.sample_y(X[:5], 7, random_state=0, **option)
            np.testing.assert_allclose(samples, expected, rtol=1e-9)
            assert sizes[-3:] == [3, 3, 1]

    def test_alternatives_of_the_base_are_made_once(self, monkeypatch):
        """To make one takes longer than to draw a function from it."""
        X = np.random.RandomState(0).rand(40, 2)
        model = SOLVEGPRegressor(10, 0, max_iter=1, n_estimators=1, random_state=0).fit(X, np.sin(6 * X[:, 0]))
        number = predictor_of(model).blend.n_alternatives
        made, real = [], blend.alternative
        monkeypatch.setattr(blend, "alternative", lambda *arguments: made.append(1) or real(*arguments))
        monkeypatch.setattr(joint, "PREDICT_NUMBERS", 2**12)  # one function at a time
        model.sample_y(X[:2], 5 * number, random_state=0)
        assert 1 < len(made) <= number
