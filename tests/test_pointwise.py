"""Likelihoods of which only p(y | f) is known: quadrature against integrals, and what estimators make of it."""

import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from helpers import REGRESSORS, name_of, normal
from scipy import stats
from scipy.integrate import quad
from sklearn.base import clone
from torch import nn

from skdgp import DSDGPRegressor, SOLVEGPRegressor
from skdgp.distributions import FamilyDistribution
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.pointwise import Pointwise
from skdgp.metrics import crps_scorer

MEMBERS = {"random_state": 0, "n_estimators": 2}


class Shares(Pointwise):
    """Beta distributions with the mean 1/(1 + exp(−f))."""

    stackable = True

    def __init__(self, n_outputs):
        super().__init__(n_outputs)
        self.log_size = nn.Parameter(torch.full((n_outputs,), 2.0))

    def calibrated(self):
        return [self.log_size]

    def shapes(self, f):
        size = self.log_size.exp()[..., None, None, :]
        return size * f.sigmoid(), size * (-f).sigmoid()

    def log_prob(self, y, f):
        return torch.distributions.Beta(*self.shapes(f), validate_args=False).log_prob(y)

    @staticmethod
    def mean(f):
        return f.sigmoid()

    def distribution(self, f):
        return stats.beta(*self.shapes(f))


class Noise(Pointwise):
    """Gaussian noise, written as if nothing but its density was known."""

    standardised = True

    def __init__(self, n_outputs):
        super().__init__(n_outputs)
        self.log_scale = nn.Parameter(torch.full((n_outputs,), -1.5))

    def calibrated(self):
        return [self.log_scale]

    def log_prob(self, y, f):
        return torch.distributions.Normal(f, self.log_scale.exp(), validate_args=False).log_prob(y)

    @staticmethod
    def mean(f):
        return f

    def distribution(self, f):
        return stats.norm(f, scale=self.log_scale.exp())


class Falling(Shares):
    """Shares whose mean falls with f."""

    @staticmethod
    def mean(f):
        return (-f).sigmoid()

    def log_prob(self, y, f):
        return super().log_prob(y, -f)

    def distribution(self, f):
        return super().distribution(-f)


class Impossible(Shares):
    def distribution(self, f):
        return stats.beta(-1.0, f.exp())


class Counts(Shares):
    def distribution(self, f):
        return stats.poisson(f.exp())


def shares(n_rows=80, n_outputs=None, seed=0):
    """Rows, and beta targets around a smooth function of them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    f = np.sin(2 * X[:, 0]) - 1
    f = f if n_outputs is None else np.stack([f + p for p in range(n_outputs)], axis=1)
    mean = 1 / (1 + np.exp(-f))
    return X, rng.beta(20 * mean, 20 * (1 - mean))


def ready(kind, n_outputs=1, log_scale=None):
    """A likelihood in double precision that knows units and constant."""
    likelihood = kind(n_outputs).double()
    _, y = shares(n_outputs=n_outputs)
    likelihood.learn_units(y, normalize=True)
    likelihood.initialise(torch.from_numpy(likelihood.encode(y)), torch.ones(len(y), dtype=torch.float64))
    if log_scale is not None:
        [scale] = likelihood.calibrated()
        scale.data.fill_(log_scale)
    return likelihood


def tensors(*numbers):
    return [torch.full((1, 1, 1), number, dtype=torch.float64) for number in numbers]


def expected(likelihood, function, mean, variance, bend):
    """E function(distribution of y given f) over f ~ N(mean, variance), for a function that bends at ``bend``."""

    def integrand(f):
        shapes = likelihood.shapes(torch.full((1, 1, 1), f, dtype=torch.float64) + likelihood.shift)
        return function(stats.beta(*(each.item() for each in shapes))) * stats.norm.pdf(f, mean, variance**0.5)

    with torch.no_grad():
        ends = mean - 9 * variance**0.5, mean + 9 * variance**0.5
        points = np.clip(bend + np.array([-0.3, -0.1, 0.0, 0.1, 0.3]), *ends)
        return quad(integrand, *ends, points=points, limit=200, epsabs=1e-12)[0]


class TestMathematics:
    @pytest.mark.parametrize("log_scale", [1.0, 4.0])
    @pytest.mark.parametrize(("y", "mean", "variance"), [(0.3, 0.0, 0.5), (0.7, -0.5, 1.0), (0.1, 0.5, 0.01)])
    def test_quadrature_is_integration(self, log_scale, y, mean, variance):
        likelihood = ready(Shares, log_scale=log_scale)
        of = partial(
            expected, likelihood, mean=mean, variance=variance, bend=math.log(y / (1 - y)) - likelihood.shift.item()
        )
        Y, m, v = tensors(y, mean, variance)
        assert likelihood.expected_log_prob(Y[0], m, v).item() == pytest.approx(of(lambda p: p.logpdf(y)), rel=1e-8)
        density = math.log(of(lambda p: p.pdf(y)))
        assert likelihood.log_predictive(Y[0], m, v).item() == pytest.approx(density, abs=1e-4)
        dist = likelihood.predictive(m, v, torch.zeros(1, 1), latent=False)
        assert dist.logpdf(y).item() == pytest.approx(density, abs=1e-4)
        assert dist.cdf(y).item() == pytest.approx(of(lambda p: p.cdf(y)), abs=1e-9)
        first, second = of(lambda p: p.mean()), of(lambda p: p.var() + p.mean() ** 2)
        assert dist.mean.item() == pytest.approx(first, abs=1e-9)
        assert dist.var.item() == pytest.approx(second - first**2, rel=1e-7)
        assert likelihood.mean_response(m, v, torch.zeros(1, 1)).item() == pytest.approx(first, abs=1e-8)
        latent = likelihood.predictive(m, v, torch.zeros(1, 1), latent=True)
        assert latent.mean.item() == pytest.approx(first, abs=1e-8)
        spread = of(lambda p: p.mean() ** 2) - first**2
        assert latent.var.item() == pytest.approx(spread, rel=1e-6)
        assert likelihood.joint(m[0], v)[1].item() == pytest.approx(spread, rel=1e-6)

    def test_gaussian_noise_is_the_closed_form(self):
        """What holds for noise of any kind must hold for the kind whose integrals are known."""
        ours, plain = ready(Noise, 2), Gaussian(2, floor=0.0).double()
        plain.units = ours.units
        plain.log_excess.data = 2 * ours.log_scale.data
        y, m, v = normal(5, 2), normal(3, 5, 2, seed=1), 0.01 + 0.1 * normal(3, 5, 2, seed=2).square()
        log_weight = torch.tensor([[0.2], [0.3], [0.5]]).double().log()
        moved = m + ours.shift
        for method in ("expected_log_prob", "log_predictive"):
            found = getattr(ours, method)(y, m, v)
            np.testing.assert_allclose(found.detach(), getattr(plain, method)(y, moved, v).detach(), rtol=1e-4)
        weights = torch.full((5,), 2.0)
        assert ours.log_jacobian(y, weights) == plain.log_jacobian(y, weights) != 0
        for latent in (False, True):
            found = ours.predictive(m, v, log_weight, latent=latent)
            with torch.no_grad():
                dist = plain.predictive(moved, v, log_weight, latent=latent)
            np.testing.assert_allclose(found.mean, dist.mean, rtol=1e-6)
            np.testing.assert_allclose(found.std, dist.std, rtol=1e-5)
            at = dist.ppf(0.4)
            np.testing.assert_allclose(found.cdf(at), 0.4, atol=1e-4)
            np.testing.assert_allclose(found.ppf(0.4), at, rtol=1e-4)
            np.testing.assert_allclose(found.logpdf(at), dist.logpdf(at), rtol=1e-3)
            np.testing.assert_allclose(found.crps(at + 0.1), dist.crps(at + 0.1), rtol=1e-3)
        covariance = torch.tensor([[1.0, 0.4], [0.4, 0.5]]).double().expand(2, 2, 2)
        for found, exact in zip(
            ours.joint(m[0, :2].T, covariance), plain.joint(moved[0, :2].T, covariance), strict=True
        ):
            np.testing.assert_allclose(found, exact, rtol=1e-9)

    @pytest.mark.parametrize("kind", [Shares, Falling])
    def test_joint_moments_are_those_of_draws(self, kind):
        likelihood = ready(kind)
        mean, covariance = torch.tensor([[0.3, -1.0]]).double(), torch.tensor([[[1.0, 0.6], [0.6, 0.8]]]).double()
        m, C = likelihood.joint(mean, covariance)
        f = np.random.default_rng(0).multivariate_normal(mean[0].numpy(), covariance[0].numpy(), 100_000)
        values = likelihood.response(torch.from_numpy(f)[:, :, None])[..., 0].numpy()
        np.testing.assert_allclose(m[0], values.mean(0), atol=2e-3)
        np.testing.assert_allclose(C[0], np.cov(values.T), atol=5e-4)

    def test_gradients(self):
        likelihood = ready(Shares, 2)
        y = torch.tensor([[0.1, 0.5], [0.9, 0.3]]).double()
        mean, variance = normal(2, 2, 2), 0.1 + normal(2, 2, 2, seed=1).square()
        learnt = likelihood.log_size.detach().clone()

        for method in ("expected_log_prob", "log_predictive"):

            def value(mean, variance, size, method=method):
                likelihood._parameters["log_size"] = size
                return getattr(likelihood, method)(y, mean, variance)

            free = [each.requires_grad_() for each in (mean, variance, learnt)]
            assert torch.autograd.gradcheck(value, free, atol=1e-4)

    def test_a_stack_is_its_members(self):
        likelihood = ready(Shares, 2)
        y, mean, variance = torch.full((4, 2), 0.3).double(), normal(3, 4, 2), normal(3, 4, 2, seed=1).square()
        methods = ("expected_log_prob", "log_predictive")
        alone = [getattr(likelihood, method)(y, mean, variance) for method in methods]
        near = likelihood.regressands(y)
        likelihood._parameters["log_size"] = torch.stack(2 * [likelihood.log_size])
        likelihood._buffers["shift"] = torch.stack(2 * [likelihood.shift])
        for method, one in zip(methods, alone, strict=True):
            both = getattr(likelihood, method)(*(torch.stack(2 * [each]) for each in (y, mean, variance)))
            torch.testing.assert_close(both, torch.stack([one, one]))
        torch.testing.assert_close(likelihood.regressands(torch.stack([y, y])), torch.stack([near, near]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("mean", [-300.0, -30.0, 0.0, 30.0])
    def test_far_function_values_are_numbers(self, dtype, mean):
        likelihood = Shares(2).to(dtype)
        y = torch.tensor([[0.01, 0.5], [0.999, 1e-6]], dtype=dtype)
        m, v = torch.full((1, 2, 2), mean, dtype=dtype), torch.tensor([[[1e-14, 1.0], [100.0, 1e4]]], dtype=dtype)
        free = [m.requires_grad_(), v.requires_grad_(), likelihood.log_size]
        for method in ("expected_log_prob", "log_predictive"):
            value = getattr(likelihood, method)(y, m, v).sum()
            assert all(each.isfinite().all() for each in (value, *torch.autograd.grad(value, free)))
        for latent in (False, True):
            dist = likelihood.predictive(m.detach(), v.detach(), torch.zeros(1, 1), latent=latent)
            numbers = dist.mean, dist.std, dist.ppf(0.1), dist.ppf(0.9), dist.cdf(0.3)
            assert np.isfinite(numbers).all()

    def test_the_constant_is_the_most_likely_one(self):
        likelihood = ready(Shares, 2)
        _, y = shares(n_outputs=2)
        y = torch.from_numpy(y)
        free = likelihood.shift.expand(1, 1, 2).clone().requires_grad_()
        (slope,) = torch.autograd.grad(likelihood.log_prob(y, free).sum(), free, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), free)
        assert (slope / curvature).abs().max() < 1e-3

    def test_regressands_are_links_of_targets(self):
        likelihood = ready(Shares, log_scale=8.0)
        y = torch.tensor([[0.02], [0.3], [0.9]]).double()
        np.testing.assert_allclose(likelihood.regressands(y) + likelihood.shift, y.logit(), atol=0.05)
        assert ready(Shares, log_scale=0.0).regressands(torch.full((1, 1), 1e-30).double()).isfinite().all()

    def test_what_its_author_defines(self):
        f = torch.zeros(1, 1, 1)
        for method in (lambda p: p.log_prob(f, f), lambda p: p.mean(f), lambda p: p.distribution(f)):
            with pytest.raises(NotImplementedError):
                method(Pointwise(1))


class TestDistribution:
    def test_scores_are_integrals(self):
        rng = np.random.default_rng(0)
        parameters = {"a": rng.uniform(0.5, 20, (30, 2)), "b": rng.uniform(0.5, 20, (30, 2))}
        dist = FamilyDistribution(stats.beta, parameters, rng.dirichlet(np.ones(30)))
        for y in ([0.3, 0.9], [-1.0, 2.0]):
            for row, target in enumerate(y):

                def integrand(t, row=row, target=target):
                    return (dist[row].cdf([t]).item() - (t >= target)) ** 2

                points = np.clip([target, *dist[row].ppf([[0.1], [0.5], [0.9]])[:, 0]], -1.0, 2.0)
                score = quad(integrand, -1.0, 2.0, points=points, limit=100)[0]
                assert dist.crps(y)[row] == pytest.approx(score, rel=1e-6)

    def test_quantiles_invert_probabilities(self):
        rng = np.random.default_rng(0)
        parameters = {"a": rng.uniform(1e-3, 20, (30, 2, 2)), "b": rng.uniform(0.1, 500, (30, 2, 2))}
        dist = FamilyDistribution(stats.beta, parameters, rng.dirichlet(np.ones(30)))
        for level in (0.5, 0.9, 0.999):
            np.testing.assert_allclose(dist.cdf(dist.ppf(level)), level, rtol=1e-9)
        assert (dist.ppf(0.0) == 0).all() and (dist.ppf(1.0) == 1).all()
        close = FamilyDistribution(stats.beta, {"a": [[0.3], [0.4]], "b": [[0.3], [0.5]]}, [0.5, 0.5])
        q = 1 - 1e-4  # there 1 - y is 3e-12
        np.testing.assert_allclose(close.cdf(close.ppf(q)), q, rtol=0, atol=1e-8)
        one = FamilyDistribution(stats.norm, {"loc": [[1.0, 2.0]]}, [1.0])
        np.testing.assert_allclose(one.ppf(0.9), stats.norm.ppf(0.9, [1.0, 2.0]))

    def test_draws_are_those_of_the_mixture(self):
        dist = FamilyDistribution(stats.norm, {"loc": [[0.0, 1.0], [5.0, 1.0]], "scale": np.ones((2, 2))}, [0.3, 0.7])
        draws = dist.rvs(20_000, random_state=0)
        np.testing.assert_allclose(draws.mean(0), dist.mean, atol=0.05)
        np.testing.assert_allclose(draws.std(0), dist.std, atol=0.05)
        np.testing.assert_array_equal(dist[:1].rvs(5, random_state=0), dist.rvs(5, random_state=0)[:, :1])

    def test_joins_distributions_of_one_family(self):
        one = FamilyDistribution(stats.norm, {"loc": [[0.0, 1.0]]}, [1.0])
        assert one.mixture([one, one]).mean.tolist() == [0.0, 1.0]
        assert one.concatenate([one, one]).mean.tolist() == [0.0, 1.0, 0.0, 1.0]
        other = FamilyDistribution(stats.beta, {"a": [[1.0, 1.0]], "b": [[1.0, 1.0]]}, [1.0])
        with pytest.raises(TypeError, match="FamilyDistribution of beta and FamilyDistribution of norm"):
            one.mixture([one, other])

    def test_families_that_it_does_not_take(self):
        with pytest.raises(TypeError, match=r"takes a continuous family of .*, got poisson_gen"):
            FamilyDistribution(stats.poisson, {"mu": [[1.0]]}, [1.0])
        with pytest.raises(ValueError, match="'beta' does not allow some of the parameters a, b"):
            FamilyDistribution(stats.beta, {"a": [[-1.0]], "b": [[1.0]]}, [1.0])


class TestEstimators:
    @pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
    def test_all_methods_of_regressors(self, tiny):
        X, y = shares(60, 2)
        weight = np.random.default_rng(0).integers(1, 3, len(X))
        X[3, 0] = np.nan
        model = tiny().set_params(likelihood=Shares, base="auto", random_state=0).fit(X, y, weight)
        lower, upper = np.moveaxis(model.predict_interval(X, 0.9), -1, 0)
        assert (lower > 0).all() and (upper < 1).all() and 0.6 < np.mean((lower < y) & (y < upper))
        mean, std = model.predict(X[:3], return_std=True)
        draws = model.sample_y(X[:3], 40, random_state=0)
        assert draws.min() > 0 and draws.max() < 1
        np.testing.assert_allclose(draws.mean(-1), mean, atol=0.6 * std.max())
        _, covariance = model.predict(X[:3], return_cov=True)
        np.testing.assert_allclose(np.diagonal(covariance).T, std**2, rtol=1e-6)
        step = np.array([1e-4, 0.0])
        slope = (model.predict(X[:1] + step) - model.predict(X[:1] - step)) / 2e-4
        np.testing.assert_allclose(model.predict_gradient(X[:1])[..., 0], slope, atol=1e-4 + 1e-2 * np.abs(slope).max())
        assert np.isfinite(model.predict_dist(X, latent=True).logpdf(mean.mean())).all()
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_quantiles(X, [0.1, 0.5]), model.predict_quantiles(X, [0.1, 0.5]))
        assert np.isfinite(crps_scorer(model, X[:5], y[:5]))
        before = model.predict(X)
        streamed = clone(model).set_params(early_stopping=False).partial_fit(X, y)
        assert not np.array_equal(streamed.partial_fit(X, y).predict(X), before)

    def test_gaussian_noise_is_learnt_as_in_the_closed_form(self):
        X, y = shares(100)
        y = 50 + 10 * y
        options = {"hidden_dims": (), "n_inducing": 20, "max_iter": 60, "n_neighbors": 0, **MEMBERS, "base": None}
        ours, plain = (DSDGPRegressor(likelihood=kind, **options).fit(X, y) for kind in (Noise, "gaussian"))
        mean, std = plain.predict(X, return_std=True)
        found, deviation = ours.predict(X, return_std=True)
        np.testing.assert_allclose(found, mean, atol=0.5 * std.mean())
        np.testing.assert_allclose(deviation, std, rtol=0.25)
        assert ours.lower_bound_ == pytest.approx(plain.lower_bound_, abs=15)

    def test_targets_without_a_density_are_refused(self):
        X, y = shares(40)
        y[3] = 1.0
        with pytest.raises(ValueError, match=r"Shares gives no density to \[1.0\], which y holds in row 3"):
            SOLVEGPRegressor(likelihood=Shares).fit(X, y)

    def test_one_link_is_enough(self):
        X, y = shares(40)
        with pytest.raises(ValueError, match="since it transforms function values itself"):
            SOLVEGPRegressor(likelihood=Shares, target_transform="log").fit(X, y)

    @pytest.mark.parametrize(
        ("kind", "error", "message"),
        [(Impossible, ValueError, "does not allow some"), (Counts, TypeError, "takes a continuous family")],
    )
    def test_distributions_of_another_kind_are_refused(self, kind, error, message):
        X, y = shares(40)
        model = SOLVEGPRegressor(5, 0, likelihood=kind, base=None, max_iter=2).fit(X, y)
        with pytest.raises(error, match=message):
            model.predict(X)
