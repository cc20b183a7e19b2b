"""Latent variables of rows: bounds against integrals and dense NumPy, functions, and estimators with two modes."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers import any_options, generator, normal, own_kernels
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV

from skdgp import AVDGPRegressor, DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp import latents, mixtures
from skdgp.gp.global_layer import REPLICATE_NOISE
from skdgp.gp.latents import N_VALUES, Latents, joined
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.propagation import Share
from skdgp.gp.waves import Streams
from skdgp.inference.objectives import elbo, log_mixture, predictive
from skdgp.inference.stacks import stack
from skdgp.kernels import Select
from skdgp.methods import DSDGP, LatentDSDGP

N_FEATURES = 2

SMALL = {"n_inducing": 4, "n_samples": 3, "latent_dims": 1}


@torch.no_grad()
def shaken(model, size=0.3):
    """Away from where it starts, in double precision."""
    model = model.double()
    for i, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            parameter.add_(size * normal(*parameter.shape, seed=i))
    return model


def make_model(hidden_dims=(), *, seed=0, share_kernel=True, **options):
    method = LatentDSDGP(hidden_dims, **SMALL | options)
    method = method if share_kernel else own_kernels(method)
    return shaken(method.build(normal(40, N_FEATURES).float(), Gaussian(1, excess=0.1), generator(seed)))


def bound(model, X, y, source, *, mixture=False, objective=elbo):
    marginals = model(X, source, targets=y, mixture=mixture)
    return objective(marginals, model.likelihood, y, torch.ones(len(X), dtype=X.dtype), 0.0)


def at_latents(model, X, h):
    """Means and variances (S, B) of the last layer of a model of one, for each of S latent values."""
    mean, variance, _ = model.layers[0](joined(X, h[:, None, None]), X)
    return mean[..., 0], variance[..., 0]


class TestBounds:
    grid = torch.linspace(-8.0, 8.0, 4001, dtype=torch.float64)

    def integral(self, log_values):
        """log ∫ N(h | 0, 1) exp(log values (S, B)) dh by the trapezoidal rule."""
        log_prior = -0.5 * self.grid.square() - 0.5 * np.log(2 * np.pi)
        step = (self.grid[1] - self.grid[0]).item()
        return torch.logsumexp(log_values + log_prior[:, None], dim=0) + np.log(step)

    @torch.no_grad()
    def test_predictions_integrate_over_the_prior(self):
        model, X, y = make_model(n_samples=1), normal(5, N_FEATURES, seed=1), normal(5, 1, seed=2)
        mean, variance = at_latents(model, X, self.grid)
        exact = self.integral(model.likelihood.log_predictive(y, mean[..., None], variance[..., None]))
        marginals = model(X)
        assert marginals.mean.shape == (N_VALUES, 5, 1)
        np.testing.assert_allclose(log_mixture(marginals, model.likelihood, y), exact, atol=0.05)

    @pytest.mark.slow
    @torch.no_grad()
    @pytest.mark.parametrize("hidden_dims", [(), (2,)])
    def test_more_replicates_tighten_the_bound(self, hidden_dims):
        X, y = normal(3, N_FEATURES, seed=1), normal(3, 1, seed=2)
        values = []
        for K in (1, 4, 16):
            model, source = make_model(hidden_dims, n_importance=K), generator(3)
            values.append(np.array([bound(model, X, y, source).item() for _ in range(1000)]))
        error = np.sqrt(sum(each.var() for each in values) / 1000)
        assert values[0].mean() + 5 * error < values[1].mean() < values[2].mean() - 5 * error

    @torch.no_grad()
    def test_many_replicates_are_the_integral(self):
        model, X, y = make_model(n_importance=20_000), normal(3, N_FEATURES, seed=1), normal(3, 1, seed=2)
        model.propagation.encoder.biases[-1][:, 1:] += 2.3  # as wide as the prior: few draws do not miss much of it
        mean, variance = at_latents(model, X, self.grid)
        exact = self.integral(model.likelihood.expected_log_prob(y, mean[..., None], variance[..., None])).mean()
        assert bound(model, X, y, generator(3)).item() == pytest.approx(exact.item(), abs=0.01)

    @pytest.mark.slow
    @torch.no_grad()
    def test_one_replicate_has_the_expectation_of_the_plain_bound(self):
        # Whole mixtures have a sample of the ratio, and fewest samples its expectation.
        model, X, y = make_model(), normal(3, N_FEATURES, seed=1), normal(3, 1, seed=2)
        source = generator(3)
        found = [[bound(model, X, y, source, mixture=mixture).item() for _ in range(3000)] for mixture in (True, False)]
        assert model(X, source, targets=y, mixture=False).log_ratio.shape == (1, 3)
        error = np.sqrt(np.var(found, axis=1).sum() / 3000)
        assert abs(np.mean(found[0]) - np.mean(found[1])) < 4 * error

    @torch.no_grad()
    def test_kl_is_the_expectation_of_the_ratio(self):
        model, X, y = make_model(latent_dims=3), normal(4, N_FEATURES, seed=1), normal(4, 1, seed=2)
        q, noise = model.propagation.posterior(X, y), normal(100_000, 4, 3, seed=3)
        ratio = q.log_ratio(noise, q.draw(noise))
        np.testing.assert_allclose(-ratio.mean(0), q.kl(), atol=0.02)

    @torch.no_grad()
    @pytest.mark.parametrize("options", [{}, {"n_importance": 3}, {"propagation": "quadrature"}])
    def test_the_predictive_objective_weighs_components_by_the_ratio(self, options):
        model, X, y = make_model((2,), **options), normal(3, N_FEATURES, seed=1), normal(3, 1, seed=2)
        marginals = model(X, generator(3), targets=y)
        density = model.likelihood.log_predictive(y, marginals.mean, marginals.variance)
        expected = torch.logsumexp(density + marginals.log_ratio + marginals.log_weight, 0).mean()
        assert len(density) == 3 * options.get("n_importance", 1)
        assert marginals.log_weight.exp().sum().item() == pytest.approx(1.0)
        found = predictive(marginals, model.likelihood, y, torch.ones(3), 0.0)
        torch.testing.assert_close(found, expected)


class Oracle:
    """The bound of two layers with latent variables in dense NumPy, with the noise that a model has drawn."""

    K = 3

    def __init__(self, X, y):
        self.X, self.y = X, y

    def layer(self, layer, x):
        """Joint mean (n, D) and covariances (D, n, n) of a whitened layer with diagonal posteriors, at n inputs."""
        value = {name: each.detach().numpy() for name, each in layer.named_parameters()}
        Z, length = value["inducing.Z"], np.exp(value["kernel.log_lengthscale"][0])
        sigma = np.exp(value["kernel.log_variance"][0])

        def k(a, b):
            r = np.sqrt(5) * np.linalg.norm((a[:, None] - b) / length, axis=-1)
            return (1 + r + r**2 / 3) * np.exp(-r)

        prior = k(Z, Z)
        L = np.linalg.cholesky(prior + layer.jitter * np.eye(len(Z)))
        A = np.linalg.solve(L, k(Z, x))
        mean = np.sqrt(sigma) * A.T @ value["q.mean"].T + layer.mean(torch.from_numpy(x)).detach().numpy()
        spread = [A.T @ np.diag(root**2 - 1) @ A for root in layer.q.root.detach().numpy()]
        return mean, sigma * (k(x, x) + np.array(spread)), sigma

    def __call__(self, model, noise, epsilon):
        """Mean over rows of log (1/K) Σ_k exp(E log p(y | f_k)) p(h_k)/q(h_k); noise (K, B, 1), points (K, B, D)."""
        q = model.propagation.posterior(torch.from_numpy(self.X), torch.from_numpy(self.y))
        m, s = q.mean.detach().numpy(), np.exp(q.log_deviation.detach().numpy())
        first, last = model.layers
        sigma2 = model.likelihood.variance.detach().numpy()
        rows = []
        for n in range(len(self.X)):
            h = m[n] + s[n] * noise[:, n]  # (K, 1)
            x = np.column_stack([np.repeat(self.X[n : n + 1], self.K, axis=0), h])
            mean, covariance, sigma = self.layer(first, x)
            own = np.exp(first.log_white_noise.detach().numpy()) + REPLICATE_NOISE * sigma
            covariance = covariance + own[:, None, None] * np.eye(self.K)
            F = mean + np.stack([np.linalg.cholesky(c) @ e for c, e in zip(covariance, epsilon[:, n].T, strict=True)]).T
            mean, covariance, _ = self.layer(last, F)
            variance = covariance[0].diagonal()
            expected = -0.5 * (((self.y[n] - mean[:, 0]) ** 2 + variance) / sigma2 + np.log(2 * np.pi * sigma2))
            ratio = -0.5 * (h**2).sum(1) + 0.5 * (noise[:, n] ** 2).sum(1) + np.log(s[n]).sum()
            rows.append(logsumexp(expected + ratio) - np.log(self.K))
        return np.mean(rows)


class TestImportanceWeightedBound:
    @pytest.fixture
    def case(self):
        model = make_model((2,), n_importance=Oracle.K)
        X, y = normal(4, N_FEATURES, seed=1), normal(4, 1, seed=2)
        source = generator(3)
        epsilon = torch.empty(Oracle.K, 4, 2, dtype=torch.float64).normal_(generator=source).numpy()
        noise = torch.empty(Oracle.K, 4, 1, dtype=torch.float64).normal_(generator=source).numpy()
        return model, X, y, (noise, epsilon)

    def test_is_that_of_dense_algebra(self, case):
        model, X, y, drawn = case
        oracle = Oracle(X.numpy(), y.numpy())
        assert bound(model, X, y, generator(3)).item() == pytest.approx(oracle(model, *drawn), rel=1e-8)

    def test_gradients_are_differences_of_dense_algebra(self, case):
        model, X, y, drawn = case
        oracle = Oracle(X.numpy(), y.numpy())
        value = bound(model, X, y, generator(3))
        names = [
            "propagation.encoder.biases.2",
            "layers.0.q.mean",
            "layers.0.log_white_noise",
            "layers.0.kernel.log_lengthscale",
            "layers.1.inducing.Z",
        ]
        for name in names:
            parameter = model.get_parameter(name)
            (gradient,) = torch.autograd.grad(value, [parameter], retain_graph=True)
            flat, found = parameter.data.view(-1), []
            for i in range(min(3, len(flat))):
                sides = []
                for step in (1e-5, -1e-5):
                    flat[i] += step
                    sides.append(oracle(model, *drawn))
                    flat[i] -= step
                found.append((sides[0] - sides[1]) / 2e-5)
            np.testing.assert_allclose(gradient.flatten()[: len(found)], found, rtol=1e-4, atol=1e-7, err_msg=name)

    @torch.no_grad()
    @pytest.mark.parametrize("options", [{"covariance": "diag"}, {"n_orthogonal": 2, "covariance": "full"}])
    @pytest.mark.parametrize("whitened", [True, False])
    @pytest.mark.parametrize("share_kernel", [True, False])
    def test_replicates_vary_together_as_rows_do(self, options, whitened, share_kernel):
        covariance = options["covariance"] + ("" if whitened else "_unwhitened")
        layer = make_model((2,), share_kernel=share_kernel, **options | {"covariance": covariance}).layers[0]
        x = normal(6, 4, 3, seed=5)  # two groups of three replicates, four rows
        mean, variance, _, root = layer.jointly(x, x, 3)
        marginals = layer(x, x)
        torch.testing.assert_close(mean, marginals[0])
        torch.testing.assert_close(variance, marginals[1])
        noise = layer.log_white_noise.exp() + REPLICATE_NOISE * layer.kernel.variance
        for group in range(2):
            for row in range(4):
                own = x[3 * group : 3 * group + 3, row]
                expected = layer.covariance(own[None], own, torch.ones(1, dtype=torch.float64))
                expected = expected + noise[:, None, None] * torch.eye(3, dtype=torch.float64)
                found = root[group, row]
                torch.testing.assert_close(found @ found.mT, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("hidden_dims", [(), (2,)])
@pytest.mark.parametrize("options", [{}, {"n_importance": 4}, {"propagation": "quadrature", "n_importance": 2}])
def test_a_stack_computes_what_its_members_do(hidden_dims, options):
    models = [make_model(hidden_dims, seed=seed, **options) for seed in range(2)]
    whole, X, y = stack(models), normal(2, 5, N_FEATURES, seed=1), normal(2, 5, 1, seed=2)
    together = whole(X, [generator(3), generator(4)], targets=y, mixture=False)
    value = elbo(together, whole.likelihood, y, torch.ones(2, 5), torch.zeros(2))
    for i, model in enumerate(models):
        alone = bound(model, X[i], y[i], generator(3 + i))
        torch.testing.assert_close(value[i], alone)
    torch.testing.assert_close(whole(X).mean[1], models[1](X[1]).mean)


def test_processes_share_the_noise_of_a_minibatch():
    model, X, y = make_model((2,), n_importance=2), normal(5, N_FEATURES, seed=1), normal(5, 1, seed=2)
    whole = model(X, generator(3), targets=y, mixture=False)
    part = model(X[2:4], generator(3), targets=y[2:4], share=Share(2, 4, 5), mixture=False)
    torch.testing.assert_close(part.mean, whole.mean[:, 2:4])
    torch.testing.assert_close(part.log_ratio, whole.log_ratio[:, 2:4])


class TestFunctions:
    @torch.no_grad()
    def test_a_function_has_one_value_of_the_latent_variables(self):
        model, X = make_model(n_inducing=6), normal(1, N_FEATURES, seed=1).repeat(7, 1)
        assert (model.draw(Streams(range(5)))(X).std(1) < 1e-9).all()  # equal rows
        assert (model.draw(Streams(range(5)), of_rows=True)(X).std(1) > 1e-3).all()

    @pytest.mark.slow
    @torch.no_grad()
    @pytest.mark.parametrize("options", [{}, {"hidden_dims": (2,)}, {"hidden_dims": (2,), "propagation": "quadrature"}])
    def test_values_of_rows_have_the_moments_of_predictions(self, options):
        model, X = make_model(**options), normal(3, N_FEATURES, seed=1)
        with torch.no_grad():
            for layer in model.layers[:-1]:
                layer.log_white_noise.fill_(-30.0)  # which is no part of functions
        draws = model.draw(Streams(range(6000)), of_rows=True)(X)[..., 0]
        mean, variance = (each[:, 0] for each in model(X).moments())
        np.testing.assert_allclose(draws.mean(0), mean, atol=0.12 * variance.max().sqrt())
        np.testing.assert_allclose(draws.var(0), variance, rtol=0.12)

    @pytest.mark.slow
    @torch.no_grad()
    @pytest.mark.parametrize("hidden_dims", [(), (2,)])
    def test_rows_vary_together_by_the_function_alone(self, hidden_dims):
        model = make_model(hidden_dims)
        X = torch.cat([normal(2, N_FEATURES, seed=1), normal(1, N_FEATURES, seed=1)[:1]])
        draws = model.draw(Streams(range(5000)), of_rows=True)(X)[..., 0]
        expected, found = np.cov(draws.T), model.covariance(X, Streams(range(300)))[0]
        assert np.linalg.eigvalsh(found).min() > 0
        size = expected.diagonal().max()
        np.testing.assert_allclose(found, expected, atol=0.12 * size)
        assert found[0, 0] > found[0, 2] + 0.01 * size  # equal rows have latent variables of their own

    @torch.no_grad()
    @pytest.mark.parametrize("at_a_time", [9, 1024], ids=["in parts", "at once"])
    @pytest.mark.parametrize("response", [None, lambda mean, K: exponentials(mean, K)], ids=["values", "exponentials"])
    def test_covariances_are_means_over_all_pairs_of_values(self, at_a_time, response, monkeypatch):
        monkeypatch.setattr(mixtures, "COPIES_AT_A_TIME", at_a_time)
        model, X = make_model(), normal(3, N_FEATURES, seed=1)
        h = model.propagation.points[:, 0]  # those of predictions, so that variances are theirs
        monkeypatch.setattr(latents, "COPIES_ALONE", N_VALUES)
        monkeypatch.setattr(latents, "_even_normal", lambda *_: model.propagation.points)
        rows = torch.cat([X.repeat(N_VALUES, 1), h.repeat_interleave(3, dim=0)], dim=1)
        mean, K = (
            model.layers[0](rows[None], rows)[0][0, :, 0],
            model.layers[0].covariance(rows[None], rows, torch.ones(1)),
        )
        whole, mean = K[0].numpy(), mean.numpy()
        if response is not None:
            own = np.exp(mean + 0.5 * whole.diagonal())
            mean, whole = own, own[:, None] * own * np.expm1(whole)
        expected = whole.reshape(N_VALUES, 3, N_VALUES, 3).mean(axis=(0, 2))
        np.fill_diagonal(
            expected, (whole.diagonal() + mean**2).reshape(-1, 3).mean(0) - mean.reshape(-1, 3).mean(0) ** 2
        )
        found = model.covariance(X, Streams(range(2)), response)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)

    def test_gradients_have_no_closed_form_of_their_deviation(self):
        assert make_model().gradient_variance(normal(2, N_FEATURES)) is None


def exponentials(mean, K):
    """Moments of exponentials of jointly Gaussian values."""
    M = (mean + 0.5 * K.diagonal(dim1=-2, dim2=-1)).exp()
    return M, M[..., :, None] * M[..., None, :] * K.expm1()


def make_two(n_rows=150, seed=0):
    """Targets near ±1 at every x."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, (n_rows, 1))
    return X, np.where(rng.rand(n_rows) < 0.5, 1.0, -1.0) + 0.1 * rng.randn(n_rows)


def small(**options):
    budget = {"n_inducing": 16, "n_estimators": 1, "max_iter": 120, "batch_size": 32, "random_state": 0}
    return DSDGPRegressor(**{"hidden_dims": (), "latent_dims": 1} | budget | options)


@pytest.fixture(scope="module")
def fitted():
    return small().fit(*make_two())


class TestEstimator:
    @pytest.mark.slow
    def test_predictions_have_two_modes(self, fitted):
        density = np.exp(fitted.predict_dist(np.zeros((3, 1))).logpdf(np.array([-1.0, 0.0, 1.0])))
        assert density[1] < 0.3 * min(density[0], density[2])
        X, y = make_two(seed=1)
        plain = small(latent_dims=0).fit(*make_two())
        assert fitted.predict_dist(X).log_score(y).mean() < plain.predict_dist(X).log_score(y).mean() - 0.3

    def test_functions_and_observations(self, fitted):
        X = np.linspace(-1, 1, 40)[:, None]
        functions = fitted.sample_functions(30, random_state=0)(X)
        jumps = np.abs(np.diff(functions, axis=0)).max(0)
        assert np.median(jumps) < 0.5
        y = fitted.sample_y(X, 30, random_state=0)
        assert np.median(np.abs(np.diff(y, axis=0)).max(0)) > 1.0
        assert (y == fitted.sample_y(X, 30, random_state=0)).all()
        _, covariance = fitted.predict(X, return_cov=True)
        _, std = fitted.predict(X, return_std=True)
        np.testing.assert_allclose(covariance.diagonal(), std**2, rtol=1e-6)

    @pytest.mark.parametrize(
        "options",
        [{}, {"likelihood": "gamma", "n_estimators": 2}, {"hidden_dims": (2,)}, {"layer_posterior": "joint"}],
        ids=["one layer", "gamma", "two layers", "coupled"],
    )
    def test_covariances_do_not_depend_on_places(self, options):
        hidden_dims = (2,) if "layer_posterior" in options else ()
        X, y = make_two(30)
        model = small(**{"hidden_dims": hidden_dims, "n_inducing": 4, "max_iter": 2} | options).fit(X, y + 2.0)
        rows, order = np.append(X[:4], X[:1], axis=0), np.array([3, 4, 1, 0, 2])
        covariance = model.predict(rows, return_cov=True)[1]
        tolerance = {"rtol": 1e-9, "atol": 1e-9 * covariance.max()}
        np.testing.assert_allclose(
            model.predict(rows[order], return_cov=True)[1], covariance[np.ix_(order, order)], **tolerance
        )
        np.testing.assert_allclose(model.predict(rows[2:4], return_cov=True)[1], covariance[2:4, 2:4], **tolerance)
        np.testing.assert_allclose(covariance[0], covariance[4][[4, 1, 2, 3, 0]], **tolerance)  # equal rows
        assert covariance[0, 4] < covariance[0, 0] and np.linalg.eigvalsh(covariance).min() > 0

    def test_lives_in_files_and_goes_on(self, fitted):
        X, y = make_two()
        again = pickle.loads(pickle.dumps(fitted))
        assert (again.predict(X) == fitted.predict(X)).all()
        assert isinstance(again.module_[0].propagation, Latents)
        model = small(max_iter=2, warm_start=True).fit(X, y).fit(X, y).partial_fit(X, y)
        assert np.isfinite(model.predict(X)).all()
        with pytest.raises(ValueError, match="built with latent_dims=1"):
            model.set_params(latent_dims=2).fit(X, y)

    @pytest.mark.slow
    @pytest.mark.parametrize("n_importance", [1, 3])
    def test_bound_is_that_of_targets(self, n_importance):
        X, y = make_two()
        model = small(n_importance=n_importance, max_iter=60).fit(X, y)
        assert model.lower_bound_ / len(y) < -model.predict_dist(X).log_score(y).mean() + 0.1

    def test_kernels_speak_of_features_and_then_latents(self):
        X, y = make_two()
        X = np.column_stack([X, 100 * X])
        model = small(kernel=Select(RBF(1.0), [1]) + RBF([1.0, 100.0, 1.0]), max_iter=2).fit(X, y)
        assert len(model.kernel_.k2.length_scale) == 3
        assert small(max_iter=2).fit(X, y).kernel_.k2.length_scale.shape == (3,)
        assert model.length_scales_[0] is None and small(max_iter=2).fit(X, y).length_scales_[0].shape == (1, 1, 3)

    @pytest.mark.parametrize("options", [{"likelihood": "student_t"}, {"likelihood": "poisson"}, {"dtype": "float64"}])
    def test_goes_with_other_parameters(self, options):
        X, y = make_two()
        model = small(**{"max_iter": 3, "hidden_dims": (2,), "n_importance": 2} | options).fit(X, np.abs(y).round())
        assert np.isfinite(model.predict_dist(X).log_score(np.abs(y).round())).all()

    @pytest.mark.slow
    def test_several_outputs_and_search(self):
        X, y = make_two()
        search = GridSearchCV(small(max_iter=2), {"latent_dims": [0, 2]}, cv=2).fit(X, np.column_stack([y, -y]))
        assert search.predict(X[:3]).shape == (3, 2)
        assert search.predict(X[:0:-1]).shape == (149, 2)

    @any_options
    def test_neighbours_do_not_correct_it(self):
        model = small(max_iter=2, n_neighbors=5).fit(*make_two())
        assert model.neighbors_ is None


def test_without_latent_variables_the_model_is_the_one_without():
    X = normal(40, N_FEATURES).float()
    plain, model = (method((3,), 4).build(X, Gaussian(1), generator()) for method in (DSDGP, LatentDSDGP))
    assert not model.has_latents
    for one, other in zip(plain.state_dict().items(), model.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])
    y = normal(40, 1).float()
    source = [generator(1), generator(1)]
    values = [bound(each, X, y, s) for each, s in zip((plain, model), source, strict=True)]
    assert torch.equal(*values)


def test_auto_widths_have_room_for_latent_variables():
    assert LatentDSDGP(latent_dims=2).widths(5) == (7, 7)
    assert LatentDSDGP().widths(5) == (5, 5)


def test_other_estimators_have_none():
    for estimator in (AVDGPRegressor, SOLVEGPRegressor, DSDGPClassifier):
        assert "latent_dims" not in estimator().get_params()
    assert clone(small()).get_params()["latent_dims"] == 1
    assert deepcopy(small()).n_importance == 1
