"""Outputs that share functions, and targets that are missing: dense Gaussians, masks, and estimators."""

import pickle

import numpy as np
import pytest
import torch
from helpers import any_options, generator, normal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from skdgp import DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.coregional import Incomplete, Mixed
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.propagation import make_propagation
from skdgp.gp.waves import Streams
from skdgp.inference.objectives import elbo
from skdgp.inference.stacks import stack

N_FUNCTIONS, N_OUTPUTS = 2, 3


def make_layer(W=None):
    """Functions with kernels of their own, mixed; and the layer of these functions."""
    kernel = StationaryKernel("matern52", 2, N_FUNCTIONS, ard=True).double()
    layer = GlobalLayer(
        kernel, ZeroMean(N_FUNCTIONS), normal(5, 2), normal(N_FUNCTIONS, 5, seed=1), covariance="full", whiten=True
    ).double()
    with torch.no_grad():
        kernel.log_lengthscale.add_(0.3 * normal(N_FUNCTIONS, 2, seed=2))
        kernel.log_variance.add_(0.3 * normal(N_FUNCTIONS, seed=3))
        layer.q.log_diagonal.add_(-0.5 + 0.2 * normal(N_FUNCTIONS, 5, seed=4))
        mixed = Mixed(layer, normal(N_OUTPUTS, N_FUNCTIONS, seed=5) if W is None else W)
        if W is None:
            mixed.constant.copy_(normal(N_OUTPUTS, seed=6))
    return mixed, layer


@torch.no_grad()
def test_moments_are_those_of_sums():
    mixed, layer = make_layer()
    x, W = normal(1, 6, 2, seed=7), mixed.W
    mean, variance, kl = mixed(x, x[0])
    g_mean, g_variance, g_kl = layer(x, x[0])
    for b in range(6):
        covariance = W @ torch.diag(g_variance[0, b]) @ W.mT
        torch.testing.assert_close(mean[0, b], W @ g_mean[0, b] + mixed.constant)
        torch.testing.assert_close(variance[0, b], covariance.diagonal())
        torch.testing.assert_close(mixed.between_outputs(x, x[0], torch.ones(1, 1).double())[b], covariance)
    assert kl == g_kl
    torch.testing.assert_close(mixed.frozen()(x, x[0])[0], mean)
    joint = layer.covariance(x, x[0], torch.ones(1).double())
    expected = torch.stack([sum(W[p, g] ** 2 * joint[g] for g in range(N_FUNCTIONS)) for p in range(N_OUTPUTS)])
    torch.testing.assert_close(mixed.covariance(x, x[0], torch.ones(1).double()), expected)


@pytest.mark.slow
@torch.no_grad()
def test_draws_are_correlated():
    mixed, _ = make_layer()
    x = normal(1, 4, 2, seed=7)
    values = torch.cat([mixed.draw(Streams(range(s, s + 500)))(x, x[0]) for s in range(0, 4000, 500)])  # (S, B, P)
    mean, _, _ = mixed(x, x[0])
    centred = values - mean[0]
    found = torch.einsum("sbp,sbq->bpq", centred, centred) / len(values)
    covariance = mixed.between_outputs(x, x[0], torch.ones(1, 1).double())
    scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((found - covariance) / (scale[:, :, None] * scale[:, None, :])).abs().max() < 6 / np.sqrt(len(values))


@torch.no_grad()
def test_derivatives_are_sums():
    mixed, layer = make_layer()
    x = normal(4, 2, seed=7)
    own = layer.gradient_variance(x)  # (N, G, Q)
    torch.testing.assert_close(mixed.gradient_variance(x), torch.einsum("pg,ngq->npq", mixed.W**2, own))


def test_the_identity_leaves_outputs_independent():
    mixed, layer = make_layer(torch.eye(N_FUNCTIONS).double())
    x = normal(1, 6, 2, seed=7)
    for found, expected in zip(mixed(x, x[0]), layer(x, x[0]), strict=True):
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_stack_is_its_members():
    models = []
    for seed in (0, 1):
        mixed, _ = make_layer(normal(N_OUTPUTS, N_FUNCTIONS, seed=seed))
        models.append(
            DeepGP([mixed], make_propagation("monte_carlo", (), 1, generator()), Incomplete(N_OUTPUTS).double())
        )
    X, y = normal(7, 2, seed=3), normal(7, N_OUTPUTS, seed=4)
    y[::2, 1] = torch.nan
    whole, both = stack(models), X.expand(2, -1, -1)
    marginals = whole(both)
    bounds = elbo(marginals, whole.likelihood, y.expand(2, -1, -1), torch.ones(2, 7).double(), 0.1)
    for i, model in enumerate(models):
        torch.testing.assert_close(marginals.mean[i], model(X).mean)
        torch.testing.assert_close(bounds[i], elbo(model(X), model.likelihood, y, torch.ones(7).double(), 0.1))


class TestMissing:
    def make(self):
        likelihood, plain = Incomplete(N_OUTPUTS).double(), Gaussian(N_OUTPUTS).double()
        with torch.no_grad():
            likelihood.log_excess.add_(normal(N_OUTPUTS))
            plain.log_excess.copy_(likelihood.log_excess)
        return likelihood, plain, normal(6, N_OUTPUTS, seed=1), normal(4, 6, N_OUTPUTS, seed=2)

    @pytest.mark.parametrize("name", ["expected_log_prob", "log_predictive"])
    def test_nothing_is_asked_of_missing_targets(self, name):
        likelihood, plain, y, mean = self.make()
        variance = mean.square() + 0.1
        torch.testing.assert_close(
            getattr(likelihood, name)(y, mean, variance), getattr(plain, name)(y, mean, variance)
        )
        partly = y.clone()
        partly[2, 1] = partly[4, 0] = partly[4, 2] = torch.nan
        mean = mean.requires_grad_()
        found = getattr(likelihood, name)(partly, mean, variance)
        for p in range(N_OUTPUTS):  # a likelihood of one output at a time
            one = Gaussian(1).double()
            with torch.no_grad():
                one.log_excess.copy_(plain.log_excess[p : p + 1])
            column = getattr(one, name)(y[:, p : p + 1], mean[..., p : p + 1], variance[..., p : p + 1])
            found = found - torch.where(partly[:, p].isnan(), 0.0, column)
        torch.testing.assert_close(found, torch.zeros_like(found))
        gradient = torch.autograd.grad(getattr(likelihood, name)(partly, mean, variance).sum(), mean)[0]
        assert gradient.isfinite().all() and (gradient[:, partly.isnan()] == 0).all()

    def test_units_are_of_what_is_known(self):
        rng = np.random.default_rng(0)
        y = rng.normal(size=(200, 2)) * [3.0, 50.0] + [1.0, -7.0]
        y[rng.uniform(size=y.shape) < 0.4] = np.nan
        likelihood = Incomplete(2)
        likelihood.learn_units(y, np.ones(200), normalize=True)
        np.testing.assert_allclose(likelihood.units.shift, np.nanmean(y, axis=0))
        np.testing.assert_allclose(likelihood.units.scale, np.nanstd(y, axis=0))
        encoded = likelihood.encode(y)
        assert (np.isnan(encoded) == np.isnan(y)).all()
        weight = torch.from_numpy(rng.uniform(size=200))
        expected = -np.sum(weight.numpy()[:, None] * ~np.isnan(y) * np.log(likelihood.units.scale))
        assert likelihood.log_jacobian(torch.from_numpy(encoded), weight) == pytest.approx(expected)

    def test_w_starts_at_principal_components(self):
        rng = np.random.default_rng(0)
        W = rng.normal(size=(4, 2))
        y = rng.normal(size=(30_000, 2)) @ W.T
        y = y / y.std(axis=0)
        missing = np.where(rng.uniform(size=y.shape) < 0.3, np.nan, y)
        likelihood = Incomplete(4)
        likelihood.initialise(torch.from_numpy(missing).float(), torch.ones(30_000))
        found = likelihood.loadings(2).numpy()
        np.testing.assert_allclose(found @ found.T, np.corrcoef(y.T), atol=0.06)
        assert likelihood.loadings(6).shape == (4, 6)

    def test_targets_that_are_never_known_together_start_with_a_function_each(self):
        y = torch.tensor([[1.0, torch.nan], [-1.0, torch.nan], [torch.nan, 1.0], [torch.nan, -1.0]])
        likelihood = Incomplete(2)
        likelihood.initialise(y, torch.ones(4))
        assert (likelihood.loadings(1).norm(dim=1) >= 0.3 - 1e-6).all()
        assert torch.allclose(Incomplete(2).loadings(2) @ Incomplete(2).loadings(2).mT, torch.eye(2))


def make_table(n_rows=300, seed=0, known=0.1):
    """Three outputs of two functions; the first is known in a tenth of the rows, or another share of them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n_rows, 1))
    f = np.c_[np.sin(2 * X), np.cos(3 * X)] @ [[1.0, 0.8, 20.0], [0.3, -0.5, 100.0]]
    y = f + 0.05 * f.std(axis=0) * rng.normal(size=f.shape)
    missing = rng.uniform(size=n_rows) > known
    partly = y.copy()
    partly[missing, 0] = np.nan
    return X, y, partly, missing, f


SMALL = {
    "solvegp": SOLVEGPRegressor(30, 0, n_latent_outputs=2, max_iter=400, batch_size=100, random_state=0),
    "dsdgp": DSDGPRegressor((), 30, n_latent_outputs=2, n_estimators=1, max_iter=100, batch_size=100, random_state=0),
}


@pytest.mark.slow
@any_options
@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_a_sibling_helps(model):
    X, y, partly, missing, f = make_table(seed=2, known=0.05)
    fitted = clone(model).fit(X, partly)
    alone = clone(model).set_params(n_latent_outputs=None, n_inducing=10, base=None, n_neighbors=0)
    alone.fit(X[~missing], y[~missing, 0])
    errors = [np.abs(each - f[:, 0])[missing].mean() for each in (fitted.predict(X)[:, 0], alone.predict(X))]
    assert errors[0] < 0.7 * errors[1]
    assert fitted.predict(X).shape == (300, 3) and np.isfinite(fitted.lower_bound_)
    assert fitted.noise_variance_.shape == (3,)


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_covariances_between_outputs(model):
    X, _, partly, *_ = make_table(120)
    fitted = clone(model).set_params(max_iter=20).fit(X, partly)
    rows = X[:5]
    cov, latent = fitted.predict_output_cov(rows), fitted.predict_output_cov(rows, latent=True)
    np.testing.assert_allclose(np.sqrt(np.einsum("npp->np", cov)), fitted.predict(rows, return_std=True)[1], rtol=1e-4)
    np.testing.assert_allclose(cov - latent, np.broadcast_to(np.diag(fitted.noise_variance_), cov.shape), rtol=1e-5)
    assert np.linalg.matrix_rank(latent[0] / np.outer(*2 * [partly[~np.isnan(partly[:, 0])].std(0)]), tol=1e-6) == 2
    draws = fitted.sample_functions(3000, random_state=0)(rows)  # (n, P, S)
    found = np.einsum("nps,nqs->npq", *2 * [draws - draws.mean(-1, keepdims=True)]) / 3000
    scale = np.sqrt(np.einsum("npp->np", latent))
    assert np.abs((found - latent) / (scale[:, :, None] * scale[:, None, :])).max() < 0.12
    _, joint = fitted.predict(rows, return_cov=True)
    np.testing.assert_allclose(np.einsum("nnp->np", joint), np.einsum("npp->np", cov), rtol=1e-4)


@pytest.mark.slow
def test_estimators_are_estimators():
    X, _, partly, *_ = make_table(100)
    tiny = DSDGPRegressor((2,), 8, n_latent_outputs=2, latent_dims=1, n_estimators=2, max_iter=2, random_state=0)
    fitted = clone(tiny).fit(X, partly)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert fitted.sample_y(X[:3], 4, random_state=0).shape == (3, 3, 4)
    stream = clone(tiny).set_params(latent_dims=0)
    for rows in (slice(0, 60), slice(60, 100)):
        stream.partial_fit(X[rows], partly[rows])
    assert np.isfinite(stream.predict(X)).all()
    whole = np.nan_to_num(partly)
    search = GridSearchCV(clone(tiny).set_params(latent_dims=0), {"n_latent_outputs": [None, 1]}, cv=2).fit(X, whole)
    assert np.isfinite(search.best_score_)
    assert len(fitted.inducing_points_) == 2
    gradient, std = stream.predict_gradient(X[:2], return_std=True)
    assert gradient.shape == std.shape == (2, 3, 1)


def test_targets_may_be_transformed():
    X, _, partly, *_ = make_table(60)
    model = SOLVEGPRegressor(10, 0, n_latent_outputs=1, target_transform="log", max_iter=3, random_state=0)
    found = model.fit(X, np.exp(partly / np.nanstd(partly, axis=0))).predict_dist(X[:3])
    assert (found.ppf(0.5) > 0).all()


def test_rows_without_targets_do_not_count():
    X, _, partly, *_ = make_table(80)
    more, none = np.vstack([X, X[:20]]), np.vstack([partly, np.full((20, 3), np.nan)])
    model = SOLVEGPRegressor(10, 0, n_latent_outputs=1, max_iter=3, random_state=0)
    np.testing.assert_allclose(model.fit(more, none).predict(X), clone(model).fit(X, partly).predict(X))


@pytest.mark.slow
def test_other_models_between_outputs():
    """Outputs that share nothing but hidden layers."""
    X, y, *_ = make_table(80)
    fitted = DSDGPRegressor((2,), 8, n_estimators=2, max_iter=3, random_state=0).fit(X, y)
    cov = fitted.predict_output_cov(X[:6])
    np.testing.assert_allclose(np.einsum("npp->np", cov), fitted.predict(X[:6], return_std=True)[1] ** 2, rtol=1e-3)
    one = SOLVEGPRegressor(8, 0, max_iter=3, random_state=0).fit(X, y[:, 0])
    assert one.predict_output_cov(X[:2]).shape == (2, 1, 1)


def test_coupled_layers_have_variances_of_their_own():
    """What hidden values say of the last layer is in the variance of a component."""
    X, y, *_ = make_table(60)
    options = {"layer_posterior": "chain", "n_estimators": 1, "base": None, "n_neighbors": 0, "max_iter": 5}
    fitted = DSDGPRegressor((2,), 8, **options, random_state=0).fit(X, y)
    member = fitted.module_[0]
    with torch.no_grad():
        member.J[0].add_(0.3 * normal(*member.J[0].shape).float())
        for layer in member.layers:
            layer.q.log_diagonal.fill_(-0.5)
    std = fitted.predict(X[:6], return_std=True, latent=True)[1]
    cov = fitted.predict_output_cov(X[:6], latent=True)
    np.testing.assert_allclose(np.einsum("npp->np", cov), std**2, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"likelihood": "student_t"}, None, "n_latent_outputs=2 needs likelihood='gaussian', got 'student_t'"),
        ({"method": "collapsed"}, None, "method='collapsed' needs n_latent_outputs=None"),
        ({}, "column", "Column 1 of y has no value in any row"),
        ({}, "flat", "contains NaN"),
        ({}, "infinite", "infinity"),
        ({"n_latent_outputs": None}, None, "contains NaN"),
        ({"n_latent_outputs": 0}, None, "n_latent_outputs"),
        ({}, "rows", "inconsistent numbers of samples"),
    ],
)
def test_errors(options, change, message):
    X, _, partly, *_ = make_table(40)
    if change == "column":
        partly[:, 1] = np.nan
    if change == "infinite":
        partly[3, 1] = np.inf
    if change == "rows":
        X = X[1:]
    y = np.where(np.arange(40) < 3, np.nan, 1.0) if change == "flat" else partly
    model = SOLVEGPRegressor(8, 0, n_latent_outputs=2, max_iter=2).set_params(**options)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def test_coupled_layers_have_none():
    X, _, partly, *_ = make_table(40)
    with pytest.raises(ValueError, match="needs n_latent_outputs=None, got 2"):
        DSDGPRegressor((1,), 8, layer_posterior="chain", n_latent_outputs=2, max_iter=2).fit(X, partly)


def test_noise_of_a_row_has_no_covariance():
    X, y, *_ = make_table(40)
    fitted = SOLVEGPRegressor(8, 0, likelihood="heteroskedastic", base=None, max_iter=2, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="predict_output_cov needs noise that is added"):
        fitted.predict_output_cov(X)
