"""Targets whose noise has a known variance in each row."""

import pickle
import re

import numpy as np
import pytest
import torch
from helpers import REGRESSORS, generator, name_of, normal, predictor_of
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.kernels import LinearKernel, StationaryKernel, SumKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.propagation import make_propagation
from skdgp.gp.units import Units
from skdgp.inference.base import base_for
from skdgp.inference.batches import Batch
from skdgp.inference.collapsed import left_out, set_posteriors
from skdgp.inference.conditioning import conditioned
from skdgp.inference.evidence import most_likely, observations
from skdgp.inference.hyperparameters import HyperparameterPosterior
from skdgp.inference.predictor import Predictor

every_regressor = pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)


def measured(n_rows=40, seed=0, scale=1.0):
    """Rows, targets, variances of their noise, which is small in about half of the rows, and the function."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    f = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
    noise = np.where(rng.random(n_rows) < 0.5, 0.02, 0.5)
    return X, scale * (f + noise * rng.normal(size=n_rows)), (scale * noise) ** 2, scale * f


def of_noise(noise, scale=(1.0,)):
    """A likelihood in double precision that knows variances (n,) in the user's units."""
    likelihood, known = Gaussian(len(scale)).double(), {"noise_variance": noise[:, None]}
    likelihood.units = Units([0.0] * len(scale), list(scale))
    likelihood.learn_known(known, np.ones(len(noise)), normalize=True)
    likelihood.refine()
    return likelihood


def encoded(likelihood, y, noise):
    """Targets (n, P) with the variances of their noise, as models see them."""
    return torch.as_tensor(likelihood.encode_rows(y, {"noise_variance": noise[:, None]}))


class TestLikelihood:
    scale = (2.0, 0.5)

    def test_densities_have_the_variance_of_the_row(self):
        _, y, noise, _ = measured()
        likelihood = of_noise(noise, self.scale)
        both = np.stack([y, 3 * y], axis=1)
        rows, mean, variance = encoded(likelihood, both, noise), normal(3, 40, 2), 0.1 + normal(3, 40, 2).square()
        own = (noise[:, None] / np.square(self.scale))[None]
        y = rows[:, :2].numpy()
        predictive = norm.logpdf(y, mean.numpy(), np.sqrt(variance.numpy() + own)).sum(-1)
        np.testing.assert_allclose(likelihood.log_predictive(rows, mean, variance).detach(), predictive, rtol=1e-10)
        expected = (norm.logpdf(y, mean.numpy(), np.sqrt(own)) - 0.5 * variance.numpy() / own).sum(-1)
        np.testing.assert_allclose(likelihood.expected_log_prob(rows, mean, variance).detach(), expected, rtol=1e-10)

    def test_predictions_have_the_variance_of_the_row(self):
        _, _, noise, _ = measured()
        likelihood, log_weight = of_noise(noise, self.scale), torch.zeros(1, 1).double()
        mean, variance = normal(1, 40, 2), 0.1 + normal(1, 40, 2).square()
        there = likelihood.at({"noise_variance": noise[:, None]})
        own = variance[0].numpy() * np.square(self.scale)
        of = {
            "rows": (there.predictive(mean, variance, log_weight, latent=False), noise[:, None]),
            "latent": (there.predictive(mean, variance, log_weight, latent=True), 0.0),
            "mean": (likelihood.predictive(mean, variance, log_weight, latent=False), noise.mean()),
        }
        for dist, added in of.values():
            np.testing.assert_allclose(dist.var, own + added, rtol=1e-6)
        f = mean[0].numpy()
        draws = np.stack([there.draw(f, np.random.RandomState(seed)) for seed in range(4000)])
        np.testing.assert_allclose(draws.std(0), np.broadcast_to(np.sqrt(noise)[:, None], (40, 2)), rtol=0.06)
        np.testing.assert_allclose(likelihood.noise_variance(), np.full(2, noise.mean()), rtol=1e-6)

    def test_it_learns_nothing(self):
        likelihood = of_noise(np.full(3, 0.2))
        assert likelihood.calibrated() == [] and not likelihood.log_excess.requires_grad
        assert likelihood.variance.item() == pytest.approx(0.2, rel=1e-6)

    def test_no_noise_has_a_floor(self):
        rows = encoded(of_noise(np.zeros(3), self.scale), np.zeros((3, 2)), np.zeros(3))
        nothing = torch.zeros(1, 3, 2).double()
        assert of_noise(np.zeros(3), self.scale).log_predictive(rows, nothing, nothing).isfinite().all()


# Closed forms: with all rows as inducing points they are the exact Gaussian process


def exact_gp(X, y, noise):
    """scikit-learn's."""
    kernel = ConstantKernel(1.4) * Matern(0.9, nu=1.5)
    return GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, y)


def model_of(X, likelihood):
    """A model of one layer with the same kernel."""
    kernel = StationaryKernel("matern32", 2, lengthscale=0.9, variance=1.4).double()
    Z = torch.as_tensor(X).clone()
    layer = GlobalLayer(kernel, ZeroMean(1), Z, Z.new_zeros(1, len(Z)), covariance="full", whiten=True, jitter=1e-12)
    return DeepGP([layer], make_propagation("monte_carlo", (), 1, torch.Generator()), likelihood).double()


@torch.no_grad()
@pytest.mark.parametrize("weighted", [False, True])
def test_closed_forms_are_those_of_the_exact_gp(weighted):
    X, y, noise, _ = measured()
    weight = np.where(weighted, 0.5 + np.arange(40) % 3, 1.0)
    likelihood = of_noise(noise)
    rows = Batch(torch.as_tensor(X), encoded(likelihood, y[:, None], noise), torch.as_tensor(weight))
    model, exact = model_of(X, likelihood), exact_gp(X, y, noise / weight)
    bound = set_posteriors(model, rows)
    Q = normal(20, 2, seed=1).numpy()
    mean, std = exact.predict(Q, return_std=True)
    marginals = model(torch.as_tensor(Q))
    np.testing.assert_allclose(marginals.mean[0, :, 0], mean, atol=1e-6)
    np.testing.assert_allclose(marginals.variance[0, :, 0].sqrt(), std, atol=1e-6)
    if not weighted:
        assert bound == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-5)
    inverse = np.linalg.inv(exact.kernel_(X) + np.diag(noise / weight))
    without, variance = left_out(model, rows, rows)
    np.testing.assert_allclose(without[:, 0], y - inverse @ y / inverse.diagonal(), atol=1e-6)
    np.testing.assert_allclose(variance[:, 0], 1 / inverse.diagonal() - noise / weight, atol=1e-6)


@torch.no_grad()
def test_new_rows_have_noise_of_their_own():
    X, y, noise, _ = measured()
    X[30:] += 3.0
    likelihood = of_noise(noise)
    rows = Batch(torch.as_tensor(X), encoded(likelihood, y[:, None], noise), torch.ones(40).double())
    model, Q = model_of(X[:30], likelihood), np.concatenate([X[:5] + 0.1, X[30:] + 0.1])
    set_posteriors(model, rows.rows(slice(30)), remember=True)
    predictor = conditioned(Predictor([model]), rows.rows(slice(30, 40)), generator())
    mean, std = exact_gp(X, y, noise).predict(Q, return_std=True)
    marginals = predictor.marginals(torch.as_tensor(Q))[0]
    np.testing.assert_allclose(marginals.mean[0, :, 0], mean, atol=1e-6)
    np.testing.assert_allclose(marginals.variance[0, :, 0].sqrt(), std, atol=1e-5)


def dense_evidence(kernel, X, y, noise):
    """log N(y | 0, K + diag(s²))."""
    K = kernel.covariance(X, X)[0].detach().numpy()
    return multivariate_normal(np.zeros(len(y)), K + np.diag(noise)).logpdf(y)


def test_the_evidence_is_that_of_the_rows_noise():
    X, y, noise, _ = measured()
    likelihood, kernel = of_noise(noise), StationaryKernel("rbf", 2, variance=1.0).double()
    rows = Batch(torch.as_tensor(X), encoded(likelihood, y[:, None], noise), torch.ones(40).double())
    part = rows.rows(slice(10, 30))  # whose mean noise is another one
    most_likely(kernel, likelihood, part, 200, 5.0, 1e-12)
    assert likelihood.variance.item() == pytest.approx(noise.mean(), rel=1e-6)
    place, best = (
        kernel.log_lengthscale,
        dense_evidence(kernel, part.X, y[10:30], noise[10:30]) + kernel.log_prior().item(),
    )
    for step in (-0.1, 0.1):  # nothing nearby is more likely
        with torch.no_grad():
            place.add_(step)
            assert dense_evidence(kernel, part.X, y[10:30], noise[10:30]) + kernel.log_prior().item() < best
            place.sub_(step)


@torch.no_grad()
def test_hyperparameters_are_uncertain_without_the_noise():
    X, y, noise, _ = measured()
    likelihood, X = Gaussian(1).double(), torch.as_tensor(X)
    likelihood.fix(torch.tensor([noise.mean()]))
    kernel = SumKernel(
        [StationaryKernel("rbf", 2, variance=1.0), LinearKernel(2, low=-torch.ones(2), high=torch.ones(2))]
    )
    kernel = kernel.double()
    rows = Batch(X, torch.as_tensor(y)[:, None], torch.as_tensor(noise.mean() / noise))
    posterior = HyperparameterPosterior(kernel, likelihood, observations(rows, relative=False))
    theta = torch.stack([posterior.start, posterior.start + 0.3])
    found = posterior.log_density(theta)
    expected = []
    for vector in theta:
        one, same = posterior._one(vector.detach())
        assert same.variance.item() == pytest.approx(noise.mean(), rel=1e-6)
        free = (vector[posterior.free] - posterior.centre) / posterior.deviation
        prior = one.kernels[0].log_prior_of_each().sum() - 0.5 * free.square().sum()
        expected.append(dense_evidence(one, X, y, noise) + prior.item())
    assert (found[1] - found[0]).item() == pytest.approx(expected[1] - expected[0], abs=1e-4)


@pytest.mark.slow
def test_a_base_weighs_rows_by_their_noise():
    X, y, noise, _ = measured(150)
    likelihood = of_noise(noise)
    rows = Batch(torch.as_tensor(X), encoded(likelihood, y[:, None], noise), torch.ones(150).double())
    base, learnt = base_for(likelihood, rows)
    np.testing.assert_allclose(learnt.weight, noise.mean() / noise, rtol=1e-6)
    assert learnt.y.shape == (150, 1) and base.model.likelihood.variance.min() == pytest.approx(noise.mean(), rel=1e-5)


# Estimators

KERNEL = ConstantKernel(1.0, "fixed") * RBF([1.0, 2.0], "fixed")


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_a_fit_with_all_rows_inducing_is_scikit_learns(scale):
    X, y, noise, _ = measured(40, scale=scale)
    Q, _, new, _ = measured(10, seed=1, scale=scale)
    options = {"kernel": KERNEL, "normalize_X": False, "method": "collapsed", "max_iter": 3, "random_state": 0}
    model = SOLVEGPRegressor(40, 0, **options).fit(X, y, noise_variance=noise)
    exact = GaussianProcessRegressor(KERNEL, alpha=noise / y.var(), optimizer=None, normalize_y=True).fit(X, y)
    mean, std = exact.predict(Q, return_std=True)
    found, deviation = model.predict(Q, return_std=True, noise_variance=new)
    np.testing.assert_allclose(found, mean, atol=1e-3 * scale)  # but for the layer's jitter
    np.testing.assert_allclose(deviation, np.sqrt(std**2 + new), rtol=1e-3)
    jacobian = -40 * np.log(y.std())
    assert model.lower_bound_ == pytest.approx(exact.log_marginal_likelihood_value_ + jacobian, abs=0.3)
    K = exact.kernel_(X) * y.var() + np.diag(noise)
    inverse = np.linalg.inv(K)
    dist = model.leave_one_out(noise_variance=noise)
    left = inverse @ (y - y.mean()) / inverse.diagonal()
    np.testing.assert_allclose(dist.mean, y - left, atol=5e-3 * scale)
    np.testing.assert_allclose(dist.std, inverse.diagonal() ** -0.5, rtol=5e-3)
    with pytest.raises(
        ValueError, match="leave_one_out needs the noise_variance of the rows of fit, which differ: pass"
    ):
        model.leave_one_out()
    np.testing.assert_allclose(model.leave_one_out(latent=True).var, dist.var - noise, rtol=1e-4, atol=1e-6 * scale**2)


@pytest.mark.slow
@every_regressor
@pytest.mark.parametrize("base", [None, "auto"])
def test_every_prediction_takes_variances(tiny, base):
    X, y, noise, _ = measured(50)
    X[::9, 0] = np.nan
    model = tiny(base=base).fit(X, y, noise_variance=noise)
    assert model.noise_variance_ == pytest.approx(noise.mean(), rel=1e-5) and model.neighbors_ is None
    mean, latent = model.predict(X, return_std=True, latent=True)
    np.testing.assert_allclose(model.predict_dist(X).var - latent**2, noise.mean(), rtol=1e-4)
    dist = model.predict_dist(X, noise_variance=noise)
    np.testing.assert_allclose(dist.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(dist.var - latent**2, noise, rtol=1e-4)
    np.testing.assert_array_equal(model.predict_quantiles(X, 0.9, noise_variance=noise), dist.ppf(0.9))
    interval = np.stack(dist.interval(0.9), axis=1)  # of both ends at once: sums may round in another order
    np.testing.assert_allclose(model.predict_interval(X, noise_variance=noise), interval, rtol=1e-12)
    _, covariance = model.predict(X[1:5], return_cov=True, noise_variance=noise[1:5])
    _, of_function = model.predict(X[1:5], return_cov=True, latent=True)
    np.testing.assert_allclose(covariance - of_function, np.diag(noise[1:5]), atol=1e-5)
    of_outputs = model.predict_output_cov(X[1:5], noise_variance=noise[1:5])
    np.testing.assert_allclose(of_outputs[:, 0, 0], dist.var[1:5], rtol=1e-4)
    draws = model.sample_y(X[1:2], 400, random_state=0, noise_variance=1e4)
    assert draws.std() == pytest.approx(100, rel=0.15)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_dist(X, noise_variance=noise).var, dist.var)
    one = tiny(base=base).fit(X, y, noise_variance=0.09)
    assert one.noise_variance_ == pytest.approx(0.09, rel=1e-5)


@pytest.mark.slow
@every_regressor
def test_chunks_held_out_rows_weights_and_outputs(tiny):
    X, y, noise, _ = measured(60)
    both = np.stack([y, 2 * y], axis=1)
    stream = tiny.of_chunks(base="auto")
    for rows in (slice(0, 30), slice(30, 60)):
        stream.partial_fit(X[rows], both[rows], noise_variance=noise[rows])
    mean = noise[:30].mean()
    np.testing.assert_allclose(stream.noise_variance_, [mean, mean], rtol=1e-5)
    added = stream.predict_dist(X, noise_variance=noise).var - stream.predict_dist(X, latent=True).var
    np.testing.assert_allclose(added, np.stack([noise, noise], axis=1), rtol=1e-3)
    again = pickle.loads(pickle.dumps(stream)).partial_fit(X, both, noise_variance=0.1)
    assert np.isfinite(again.predict(X)).all()
    weight, held_out = np.arange(60) % 3, {"X_val": X[:20], "y_val": y[:20], "noise_variance_val": noise[:20]}
    model = tiny(base="auto").fit(X, y, weight, noise_variance=noise, **held_out)
    used = weight > 0
    short = tiny(base="auto").fit(X[used], y[used], weight[used], noise_variance=noise[used], **held_out)
    np.testing.assert_allclose(model.predict(X), short.predict(X), rtol=1e-5)
    warm = tiny(warm_start=True).fit(X, y, noise_variance=noise)
    warm.fit(X, y, noise_variance=noise)
    assert warm.noise_variance_ == pytest.approx(noise.mean(), rel=1e-5)
    with pytest.raises(ValueError, match="noise_variance is missing, but noise_variance is known of the earlier rows"):
        warm.fit(X, y)


@pytest.mark.slow
def test_update_and_trend():
    X, y, noise, f = measured(80)
    model = SOLVEGPRegressor(20, 0, max_iter=5, random_state=0).fit(X[:60], y[:60], noise_variance=noise[:60])
    with pytest.raises(ValueError, match="noise_variance is missing, but noise_variance is known of the earlier rows"):
        model.update(X[60:], y[60:])
    precise = pickle.loads(pickle.dumps(model)).update(X[60:], f[60:], noise_variance=1e-6)
    vague = pickle.loads(pickle.dumps(model)).update(X[60:], f[60:], noise_variance=100.0)
    np.testing.assert_allclose(precise.predict(X[60:]), f[60:], atol=0.02)
    np.testing.assert_allclose(vague.predict(X), model.predict(X), atol=0.05)
    trend = SOLVEGPRegressor(10, 0, trend="auto", max_iter=3, random_state=0).fit(X, y, noise_variance=noise)
    assert trend.noise_variance_ == pytest.approx(noise.mean(), rel=1e-5)
    added = trend.predict_dist(X, noise_variance=noise).var - trend.predict_dist(X, latent=True).var
    np.testing.assert_allclose(added, noise, rtol=1e-5)


@pytest.mark.slow
def test_without_noise_a_model_goes_through_its_targets():
    X, _, _, f = measured(80)
    model = SOLVEGPRegressor(20, 0, max_iter=5, random_state=0).fit(X, f, noise_variance=0.0)
    np.testing.assert_allclose(model.predict(X), f, atol=1e-3)
    assert model.predict(X, return_std=True)[1].max() < 0.05


def test_a_searched_kernel_object_learns_with_given_noise():
    """The most likely lengthscale is scikit-learn's, since the noise is that of each row."""
    X, y, noise, _ = measured(60)
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * RBF(1.0, (0.1, 10.0))
    options = {"normalize_X": False, "normalize_y": False, "max_iter": 60, "method": "collapsed", "random_state": 0}
    model = SOLVEGPRegressor(60, 0, kernel=kernel, **options).fit(X, y, noise_variance=noise)
    exact = GaussianProcessRegressor(clone(kernel), alpha=noise, n_restarts_optimizer=2, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.kernel_.theta, exact.kernel_.theta, atol=0.1)


def test_noise_of_intervals_is_refused():
    X, y, noise, _ = measured()
    bounds = np.rec.fromarrays([y, y + (np.arange(len(y)) % 2)], names="lower, upper")
    model = SOLVEGPRegressor(4, 0, max_iter=1, random_state=0)
    for learn in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="got likelihood='gaussian' and intervals: leave it out"):
            learn(X, bounds, noise_variance=noise)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"likelihood": "student_t"},
            "noise_variance goes with likelihood='gaussian', without n_latent_outputs and without intervals among the "
            "targets, got",
        ),
        ({"likelihood": "lognormal"}, "got likelihood='lognormal': leave it out, or change these."),
        ({"likelihood": "heteroskedastic"}, "got likelihood='heteroskedastic': leave it out, or change these."),
        ({"n_latent_outputs": 1}, "got likelihood='gaussian', n_latent_outputs=1: leave it out, or change these."),
        (
            {"target_transform": "log"},
            "noise_variance is that of y, and target_transform='log' makes other noise of it",
        ),
    ],
)
def test_only_plain_gaussian_noise_may_be_known(options, message):
    X, y, noise, _ = measured()
    both = np.stack([y, y], axis=1) + 9 if "n_latent_outputs" in options else y + 9
    model = SOLVEGPRegressor(4, 0, max_iter=1, random_state=0, **options)
    with pytest.raises(ValueError, match=re.escape(message)):
        model.fit(X, both, noise_variance=noise)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (-0.1, "noise_variance must be zero or positive, and finite, but is -0.1 in row 0: correct the row, or leave"),
        (np.r_[np.ones(39), np.nan], "noise_variance must be zero or positive, and finite, but is nan in row 39"),
        (np.ones((40, 2)), "noise_variance has the shape (40, 2), but X has 40 rows: pass a number for each row."),
    ],
)
def test_impossible_variances_are_named(noise, message):
    X, y, usual, _ = measured()
    model = SOLVEGPRegressor(4, 0, max_iter=1, random_state=0)
    with pytest.raises(ValueError, match=re.escape(message)):
        model.fit(X, y, noise_variance=noise)
    model.fit(X, y, noise_variance=usual)
    with pytest.raises(ValueError, match=re.escape(message)):
        model.predict(X, noise_variance=noise)
    with pytest.raises(ValueError, match="noise_variance was given, but the model has been fitted without it: pass it"):
        clone(model).fit(X, y).predict(X, noise_variance=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SOLVEGPRegressor, AVDGPRegressor, DSDGPRegressor])
@pytest.mark.parametrize("base", ["auto", None])
def test_errors_are_as_large_as_deviations_in_both_groups(kind, base):
    X, y, noise, _ = measured(300)
    Q, new, variance, f = measured(1000, seed=1)
    short = {"max_iter": 100} if base and kind is not SOLVEGPRegressor else {}
    n_members = 5 if kind is AVDGPRegressor and base is None else 2  # a single network does not know its own errors
    model = kind(base=base, n_estimators=n_members, random_state=0, **short).fit(X, y, noise_variance=noise)
    mean, std = model.predict(Q, return_std=True, noise_variance=variance)
    precise, z = variance < 0.01, (new - mean) / std
    assert z[~precise].std() == pytest.approx(1.0, abs=0.1)
    assert (0.85 if base else 0.5) < z[precise].std() < (1.15 if base else 1.4)
    if base:
        assert np.sqrt(np.mean((mean - f) ** 2)) < 0.02  # a single noise for all rows has 0.115
    assert predictor_of(model).likelihoods[0].fixed
