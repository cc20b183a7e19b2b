"""Posteriors across layers: filters and penalties against dense algebra, limits, functions, and estimators."""

import pickle

import numpy as np
import pytest
import torch
from helpers import any_options, generator, normal, own_kernels
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skdgp import DSDGPClassifier, DSDGPRegressor
from skdgp.gp.coupled import COUPLED, DRAWN_JITTER, MOST_COUPLINGS, Chain, Joint, Locations, check_size
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.propagation import make_propagation
from skdgp.gp.waves import Streams
from skdgp.inference.objectives import elbo
from skdgp.methods import DSDGP, LatentDSDGP

N_FEATURES, N_ROWS = 2, 3

every_coupling = pytest.mark.parametrize("kind", COUPLED)


def make_model(
    kind, hidden_dims=(2, 2), *, n_outputs=1, n_samples=5, size=0.3, seed=0, kernels=lambda method: method, **options
):
    """A small model away from where it starts, without white noise, in double precision."""
    options = {"n_inducing": 4, "n_samples": n_samples, "layer_posterior": kind, "covariance": "full"} | options
    method = kernels(DSDGP(hidden_dims, **options))
    model = method.build(normal(30, N_FEATURES).float(), Gaussian(n_outputs), generator(seed))
    model = model.double()
    with torch.no_grad():
        for i, (name, parameter) in enumerate(model.named_parameters()):
            if parameter.requires_grad:
                parameter.add_(size * normal(*parameter.shape, seed=seed + i))
            if "white" in name:
                parameter.fill_(-12.0)
            if "log_diagonal" in name:
                parameter.fill_(-2.5 if kind == "locations" else -0.5)  # drawn points that crowd have heavy tails
    return model


def correlations(layer, x):
    """A of a row x (Q,), (M,) in NumPy."""
    Z, length = layer.Z.detach().numpy(), layer.kernel.lengthscale.detach().numpy()[0]

    def k(a, b):
        r = np.sqrt(5) * np.linalg.norm((a[:, None] - b) / length, axis=-1)
        return (1 + r + r**2 / 3) * np.exp(-r)

    return np.linalg.solve(np.linalg.cholesky(k(Z, Z) + layer.jitter * np.eye(len(Z))), k(Z, x[None]))[:, 0]


def joint_moments(model):
    """Mean (T,) and covariance (T, T) of all whitened inducing variables of a chain."""
    means = [layer.q.mean.detach().numpy().ravel() for layer in model.layers]
    roots = []
    for layer in model.layers:
        root = layer.q.root.detach().numpy()
        roots.append(
            np.block([[root[d] if d == e else 0 * root[0] for e in range(len(root))] for d in range(len(root))])
        )
    blocks = [[roots[0]]]  # root of the whole: R_{l+1, j} = J R_{l, j}
    for J, root in zip(model.J, roots[1:], strict=True):
        blocks.append([J.detach().numpy() @ each for each in blocks[-1]] + [root])
    total = sum(map(len, means))
    R, start = np.zeros((total, total)), 0
    for row in blocks:
        R[start : start + len(row[0]), : sum(each.shape[1] for each in row)] = np.hstack(row)
        start += len(row[0])
    return np.concatenate(means), R


def observation(model, depth, x):
    """What f_l of a row is of all inducing variables: matrix (D, T), and what is left of the variance (D,)."""
    layer, sizes = model.layers[depth], model.sizes
    a, H = correlations(layer, x), np.zeros((sizes[depth][0], sum(model.totals)))
    sigma2 = layer.kernel.variance.item()
    for d in range(sizes[depth][0]):
        start = sum(model.totals[:depth]) + d * sizes[depth][1]
        H[d, start : start + sizes[depth][1]] = np.sqrt(sigma2) * a
    white = 0.0 if layer.log_white_noise is None else layer.log_white_noise.exp().detach().numpy()
    return H, sigma2 * (1 - a @ a) * np.ones(sizes[depth][0]) + white


class TestChain:
    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_filter_is_conditioning_of_all_inducing_variables(self, n_outputs):
        model, X = make_model("chain", n_outputs=n_outputs), normal(N_ROWS, N_FEATURES, seed=1)
        layers = model.propagate(X)
        mean, root = joint_moments(model)
        for row in range(N_ROWS):
            for s in range(model.propagation.n_samples):
                m, S, x = mean, root @ root.T, X[row].numpy()
                for depth, found in enumerate(layers):
                    sample = s if len(found.mean) > 1 else 0
                    H, left = observation(model, depth, x)
                    prior = model.layers[depth].mean(torch.from_numpy(x)[None])[0].detach().numpy()
                    expected, V = prior + H @ m, H @ S @ H.T + np.diag(left)
                    np.testing.assert_allclose(found.mean[sample, row].detach(), expected, rtol=1e-7, atol=1e-9)
                    np.testing.assert_allclose(found.variance[sample, row].detach(), V.diagonal(), rtol=1e-6)
                    if depth < len(layers) - 1:
                        point = model.propagation.points[depth][s, 0].numpy()
                        x = expected + np.linalg.cholesky(V) @ point
                        gain = S @ H.T @ np.linalg.inv(V)
                        m, S = m + gain @ (x - expected), S - gain @ H @ S

    def test_without_couplings_is_doubly_stochastic(self):
        model, X = make_model("chain"), normal(N_ROWS, N_FEATURES, seed=1)
        with torch.no_grad():
            for J in model.J:
                J.zero_()
        plain = DeepGP(list(model.layers), model.propagation, model.likelihood)
        for found, expected in zip(model.propagate(X), plain.propagate(X), strict=True):
            torch.testing.assert_close(found.mean, expected.mean, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.variance, expected.variance, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(model(X).kl, plain(X).kl)

    def test_penalty_is_that_of_dense_gaussians(self):
        model = make_model("chain")
        mean, root = joint_moments(model)
        expected = 0.5 * (np.square(root).sum() + mean @ mean - len(mean)) - np.log(root.diagonal()).sum()
        assert model(normal(1, N_FEATURES)).kl.item() == pytest.approx(expected)


class TestJoint:
    @pytest.mark.slow
    @torch.no_grad()
    def test_is_a_chain_of_the_same_precision(self):
        chain = make_model("chain", n_samples=100_000)
        _, root = joint_moments(chain)
        precision = np.linalg.inv(root @ root.T)
        assert np.abs(precision[: chain.totals[0], -chain.totals[-1] :]).max() < 1e-8 * np.abs(precision).max()
        joint = make_model("joint", n_samples=100_000)
        joint.layers.load_state_dict(chain.layers.state_dict())
        root = torch.from_numpy(root)
        joint.cross.copy_(root / root.diagonal()[:, None])
        torch.testing.assert_close(joint.root(), root)
        X = normal(2, N_FEATURES, seed=1)
        torch.testing.assert_close(joint(X).kl, chain(X).kl)
        for found, expected in zip(joint(X).moments(), chain(X).moments(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.01)

    @torch.no_grad()
    def test_without_couplings_is_doubly_stochastic(self):
        joint = make_model("joint", n_samples=100_000)
        joint.cross.zero_()
        propagation = make_propagation("monte_carlo", (2, 2), 100_000, generator(1)).double()
        plain, X = DeepGP(list(joint.layers), propagation, joint.likelihood), normal(2, N_FEATURES, seed=1)
        torch.testing.assert_close(joint(X).kl, plain(X).kl)
        for found, expected in zip(joint(X).moments(), plain(X).moments(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.01)

    @torch.no_grad()
    @pytest.mark.parametrize("covariance", ["diag", "full"])
    def test_last_layer_given_the_others_is_dense_conditioning(self, covariance):
        model, X = make_model("joint", n_outputs=2, covariance=covariance), normal(N_ROWS, N_FEATURES, seed=1)
        R, means = model.root().numpy(), np.concatenate([layer.q.mean.numpy().ravel() for layer in model.layers])
        assert (np.triu(R, 1) == 0).all()
        end = sum(model.totals[:-1])
        marginals, layers = model(X), list(model._travel(X, model.propagation(X)))
        F = layers[-2][1]
        for s in range(model.propagation.n_samples):
            epsilon = np.concatenate(
                [model._split(p, i)[1][s, 0].numpy() for i, p in enumerate(model.propagation.points)]
            )
            m = means[end:] + R[end:, :end] @ epsilon
            S = R[end:, end:] @ R[end:, end:].T
            H, left = observation(model, 2, F[s, 1].numpy())
            H = H[:, end:]
            np.testing.assert_allclose(marginals.mean[s, 1], H @ m, rtol=1e-7)
            np.testing.assert_allclose(marginals.variance[s, 1], (H @ S @ H.T).diagonal() + left, rtol=1e-7)


class TestLocations:
    @torch.no_grad()
    def test_marginals_and_penalty_are_dense_algebra_for_drawn_values(self):
        model, X = make_model("locations", n_outputs=2), normal(N_ROWS, N_FEATURES, seed=1)
        layers = list(model._travel(X, model.propagation(X)))
        posteriors = [(m.numpy(), root.numpy()) for m, root in model._posteriors()]
        penalties = np.zeros((5, 3))
        for s in range(5):
            points, x = model.layers[0].Z, X
            for depth, layer in enumerate(model.layers):
                white = 0.0 if layer.log_white_noise is None else layer.log_white_noise.exp().numpy()
                K = layer.kernel.covariance(points, points)[0].numpy()
                Kx = layer.kernel.covariance(points, x)[0].numpy()
                jitter = DRAWN_JITTER * (K.diagonal().mean() + white)
                m, root = posteriors[depth]
                centre = layer.mean(points).numpy().T
                found, F, _ = layers[depth]
                sample = s if len(found.mean) > 1 else 0
                draws = []
                for d in range(len(m)):
                    noise = (white + jitter)[d] if np.ndim(jitter) else white + jitter
                    Kd, S = K + noise * np.eye(len(K)), root[d] @ root[d].T
                    delta = m[d] - centre[d]
                    inverse = np.linalg.inv(Kd)
                    log_ratio = np.linalg.slogdet(Kd)[1] - np.linalg.slogdet(S)[1]
                    penalties[s, depth] += 0.5 * (
                        np.trace(inverse @ S) + delta @ inverse @ delta - len(m[d]) + log_ratio
                    )
                    alpha = inverse @ Kx
                    w = white[d] if np.ndim(white) else white
                    variance = layer.kernel.variance.item() - np.sum(Kx * alpha, 0) + w
                    if depth < 2:
                        own = model._split(model.propagation.points[depth], depth)[1][s, 0].numpy().reshape(m.shape)
                        draws.append(m[d] + root[d] @ own[d])
                        mean = alpha.T @ (draws[-1] - centre[d])
                    else:
                        mean, variance = alpha.T @ delta, variance + np.sum(alpha * (S @ alpha), 0)
                    mean = mean + layer.mean(x).numpy()[:, d]
                    np.testing.assert_allclose(found.mean[sample if depth else s, :, d], mean, rtol=1e-6, atol=1e-8)
                    np.testing.assert_allclose(found.variance[sample if depth else s, :, d], variance, rtol=1e-5)
                points, x = torch.from_numpy(np.array(draws).T), F[s if depth < 2 else 0]
        np.testing.assert_allclose([each.kl.item() for each, _, _ in layers], penalties.mean(0), rtol=1e-6)

    def test_points_are_means_of_the_layer_before(self):
        model = make_model("locations")
        points = model.inducing_points()
        assert [tuple(each.shape) for each in points] == [(4, 2), (4, 2), (4, 2)]
        assert [name for name, each in model.named_parameters() if "Z" in name and each.requires_grad] == [
            "layers.0.inducing.Z"
        ]


@every_coupling
@pytest.mark.parametrize("options", [{}, {"covariance": "diag", "kernels": own_kernels}])
def test_gradients_are_differences(kind, options):
    model, X, y = make_model(kind, (2,), **options), normal(N_ROWS, N_FEATURES, seed=1), normal(N_ROWS, 1, seed=2)

    def value():
        return elbo(model(X), model.likelihood, y, torch.ones(N_ROWS), 0.1)

    learnt = {name: each for name, each in model.named_parameters() if each.requires_grad}
    gradients = dict(zip(learnt, torch.autograd.grad(value(), list(learnt.values())), strict=True))
    for name, parameter in learnt.items():
        flat, gradient = parameter.data.view(-1), gradients[name].flatten()
        for i in {0, len(flat) // 2, len(flat) - 1}:
            sides = []
            for step in (1e-6, -1e-6):
                flat[i] += step
                sides.append(value().item())
                flat[i] -= step
            assert gradient[i].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-3, abs=1e-6), name


@pytest.mark.slow
@torch.no_grad()
@every_coupling
def test_more_samples_steady_the_bound(kind):
    X, y = normal(N_ROWS, N_FEATURES, seed=1), normal(N_ROWS, 1, seed=2)
    spread = []
    for n_samples in (1, 25):
        model, source = make_model(kind, n_samples=n_samples), generator(3)
        draws = [elbo(model(X, source), model.likelihood, y, torch.ones(N_ROWS), 0.1).item() for _ in range(300)]
        spread.append(np.var(draws))
    # Drawn points that crowd give locations' penalties heavy tails.
    assert spread[1] < spread[0] / (4 if kind == "locations" else 12)


@pytest.mark.slow
@torch.no_grad()
@every_coupling
def test_functions_have_the_moments_of_predictions(kind):
    model, X = make_model(kind, (2,), n_samples=4000, size=0.2), normal(3, N_FEATURES, seed=1)
    draws = torch.cat([model.draw(Streams(part.tolist()))(X) for part in torch.arange(4000).split(500)])[..., 0]
    mean, variance = (each[:, 0] for each in model(X).moments())
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.1 * variance.max().sqrt())
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.15)
    covariance = model.covariance(X, Streams(range(32)))[0]
    np.testing.assert_allclose(covariance.diagonal(), variance, rtol=1e-6)
    np.testing.assert_allclose(covariance, np.cov(draws.T), atol=0.25 * variance.max())
    layers = model.draw_layers(Streams(range(6)))(X)
    assert [tuple(each.shape) for each in layers] == [(6, 3, 2), (6, 3, 1)]
    torch.testing.assert_close(layers[-1], model.draw(Streams(range(6)))(X))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("kernel", ["rbf", ConstantKernel(1e4) * RBF()], ids=["name", "object"])
def test_functions_of_locations_keep_their_variance_at_inducing_points(kernel):
    """Jitter is in proportion to the kernel's variance. It is all the variance there if the values are known."""
    shallow = make_model("locations", (), kernel=kernel)  # the method couples nothing if there is one layer
    model, layer = Locations(shallow.layers, shallow.propagation, shallow.likelihood), shallow.layers[0]
    layer.q.log_diagonal.fill_(-9.0)
    layer.q.below.zero_()
    if kernel == "rbf":
        layer.kernel.log_variance.fill_(np.log(1e4))
    draws = model.draw(Streams(range(4000)))(layer.Z)[..., 0]
    np.testing.assert_allclose(draws.var(0), model(layer.Z).moments()[1][:, 0], rtol=0.15)


def small(kind, **options):
    budget = {"n_inducing": 6, "n_estimators": 2, "max_iter": 15, "batch_size": 20, "n_samples": 3, "random_state": 0}
    return DSDGPRegressor(**{"hidden_dims": (2,), "layer_posterior": kind} | budget | options)


class TestEstimator:
    X = np.random.RandomState(0).uniform(-1, 1, (60, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * np.random.RandomState(1).randn(60)

    @pytest.mark.slow
    @every_coupling
    @pytest.mark.parametrize("options", [{}, {"dtype": "float64", "covariance": "full", "n_inducing": 5}])
    def test_predicts_and_lives_in_files(self, kind, options):
        model = small(kind, **options).fit(self.X, self.y)
        assert type(model.module_[0]) is COUPLED[kind]
        assert np.isfinite(model.predict_dist(self.X).log_score(self.y)).all()
        again = pickle.loads(pickle.dumps(model))
        assert (again.predict(self.X) == model.predict(self.X)).all()
        assert (
            again.sample_functions(2, random_state=0)(self.X) == model.sample_functions(2, random_state=0)(self.X)
        ).all()
        assert [each.shape[0] for each in model.inducing_points_] == [2, 2]
        model.partial_fit(self.X, self.y)
        assert np.isfinite(model.predict(self.X)).all()

    @pytest.mark.slow
    @every_coupling
    def test_predictions_are_means_of_functions(self, kind):
        X = np.linspace(-2, 2, 40)[:, None]
        y = np.sin(4 * X[:, 0])
        options = {"covariance": "full", "kernel": "rbf", "beta": 1.0, "early_stopping": False, "max_iter": 150}
        options |= {"hidden_dims": (1,), "n_inducing": 10, "n_estimators": 1, "batch_size": 40, "n_samples": 8}
        model = small(kind, **options).fit(X, y)
        values = model.sample_functions(100, random_state=0)(X)
        np.testing.assert_allclose(model.predict(X), values.mean(1), atol=0.1)

    @pytest.mark.slow
    @every_coupling
    def test_classifies(self, kind):
        budget = small(kind).get_params()
        names = DSDGPClassifier().get_params()
        model = DSDGPClassifier(**{name: value for name, value in budget.items() if name in names})
        probability = model.fit(self.X, np.digitize(self.y, [-0.3, 0.3])).predict_proba(self.X)
        np.testing.assert_allclose(probability.sum(1), 1.0)

    @every_coupling
    def test_goes_with_latent_variables(self, kind):
        model = small(kind, latent_dims=1, n_estimators=1).fit(self.X, self.y)
        assert np.isfinite(model.sample_y(self.X, 3, random_state=0)).all()
        _, covariance = model.predict(self.X[:4], return_cov=True)
        assert np.linalg.eigvalsh(covariance).min() > 0

    @every_coupling
    def test_covariances_of_counts_with_a_base(self, kind):
        X = np.random.default_rng(0).uniform(-2, 2, size=(60, 2))
        y = np.random.default_rng(1).poisson(np.exp(1 + np.sin(X[:, 0])))
        options = {"likelihood": "poisson", "base": "gp", "n_neighbors": 0, "n_estimators": 1, "random_state": 0}
        model = DSDGPRegressor((1,), 5, layer_posterior=kind, max_iter=2, n_samples=4, **options).fit(X, y)
        std = model.predict(X[:5], return_std=True, latent=True)[1]
        cov = model.predict(X[:5], return_cov=True, latent=True)[1]
        np.testing.assert_allclose(np.sqrt(cov.diagonal()), std, rtol=1e-5)
        assert np.linalg.eigvalsh(cov).min() > -1e-9 * std.max() ** 2

    @any_options
    def test_a_single_layer_has_nothing_to_couple(self):
        alone, coupled = (small(kind, hidden_dims=()).fit(self.X, self.y) for kind in ("factorised", "joint"))
        assert (alone.predict(self.X) == coupled.predict(self.X)).all()

    @any_options
    @pytest.mark.parametrize(
        "options",
        [{"propagation": "quadrature"}, {"covariance": "full_unwhitened"}, {"n_orthogonal": 2}, {"n_importance": 2}],
    )
    def test_says_what_it_does_not_go_with(self, options):
        [(name, value)] = options.items()
        with pytest.raises(ValueError, match=f"layer_posterior='chain' needs {name}=.*, got {value!r}: change one of"):
            small("chain", **options).fit(self.X, self.y)

    def test_locations_have_as_many_points_everywhere(self):
        with pytest.raises(
            ValueError, match="layer_posterior='locations' needs the same inducing points in all layers"
        ):
            small("locations", n_inducing=(5, 6)).fit(self.X, self.y)

    def test_memory_has_a_limit(self):
        with pytest.raises(ValueError, match=r"couples 5000 inducing variables of 2 layers, which takes 0.4 GiB"):
            small("joint", n_inducing=(2499, 2)).fit(self.X, self.y)
        check_size("joint", [int(MOST_COUPLINGS**0.5)])
        check_size("locations", [10**9])


def test_auto_takes_fewer_points_where_layers_are_coupled():
    X = normal(2500, 2).float()
    model = LatentDSDGP(layer_posterior="chain").build(X, Gaussian(1), generator())
    assert {layer.Z.shape[0] for layer in model.layers} == {64}
    assert isinstance(model, Chain) and not isinstance(model, Joint | Locations)
