"""Likelihoods of regressors: expectations against integrals, and what estimators make of them."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers import REGRESSORS, any_options, name_of, normal, predictor_of, table_of
from scipy.special import expit, gammaln, log_softmax, logsumexp
from scipy.stats import beta, gamma, nbinom, norm, poisson
from scipy.stats import t as student_t
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import PowerTransformer, QuantileTransformer

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.distributions import CountDistribution, GammaDistribution, GradeDistribution, TransformedDistribution
from skdgp.gp.likelihoods import AdditiveNoise, Gaussian, Regression
from skdgp.gp.log_link import Gamma, NegativeBinomial, Poisson
from skdgp.gp.noise import Contaminated, Heteroskedastic, StudentT
from skdgp.gp.shares import Beta
from skdgp.gp.units import Units
from skdgp.inference import stand_ins
from skdgp.inference.base import ALTERNATIVES, fit_base, fit_base_of_tails
from skdgp.inference.batches import Batch
from skdgp.inference.stand_ins import CONVERGED, LONGEST, at_mode, by_newton, fit_base_of_means, give_noise
from skdgp.inference.twins import counting_once
from skdgp.inference.varying import _fit_variances, fit_base_of_varying
from skdgp.methods.likelihoods import LIKELIHOODS
from skdgp.metrics import coverage, crps_scorer, predictive_distribution

# That of logarithms is Gaussian noise: tests/test_censored.py has it.
NAMES = [name for name in LIKELIHOODS if name not in ("gaussian", "lognormal")]

NAME_OF = {LIKELIHOODS[name]: name for name in NAMES}

every_likelihood = pytest.mark.parametrize("name", NAMES)
every_regressor = pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)


def targets(name, n_rows=60, n_outputs=None, seed=0):
    """Rows and targets that the likelihood is made for."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    f = np.sin(2 * X[:, 0])
    f = f if n_outputs is None else np.stack([f + p for p in range(n_outputs)], axis=1)
    if name in ("poisson", "negative_binomial"):
        return X, rng.poisson(np.exp(1.0 + f)).astype(float)
    if name == "gamma":
        return X, rng.gamma(4.0, np.exp(f) / 4.0)
    if name == "ordinal":
        return X, np.digitize(f + 0.5 * rng.normal(size=f.shape), [-0.8, 0.3, 1.2]) + 1.0
    if name == "beta":
        return X, rng.beta(8.0 * expit(f), 8.0 * expit(-f))
    return X, f + 0.2 * rng.standard_t(4, size=f.shape)


def truth(kind, f, dispersion):
    """The distribution of targets, as one of SciPy, whose means are exp(f) or logistic functions of f."""
    if kind is Beta:
        return beta(expit(f) / dispersion, expit(-f) / dispersion)
    if kind is Gamma:
        return gamma(1 / dispersion, scale=dispersion * np.exp(f))
    return poisson(np.exp(f)) if kind is Poisson else nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(f)))


def ready(name, n_targets=1):
    """A likelihood in double precision that knows its units, and its parameters are none of the initial ones."""
    likelihood = LIKELIHOODS[name](n_targets)
    _, y = targets(name, n_outputs=n_targets)
    likelihood.learn_units(y, normalize=True)
    likelihood.double()
    if name == "ordinal":  # without cut points that differ there are no probabilities
        likelihood.initialise(torch.from_numpy(likelihood.encode(y)), torch.ones(len(y)))
    for parameter in likelihood.parameters():
        parameter.data += 0.3
    return likelihood, likelihood.encode(y)


def log_density(name, likelihood, y, f):
    """log p(y | f) by SciPy, of an encoded target and function values."""
    if name == "student_t":
        return student_t.logpdf(y, likelihood.degrees_of_freedom.item(), f[0], likelihood.scale.item() ** 0.5)
    if name == "heteroskedastic":
        return norm.logpdf(y, f[0], np.exp(0.5 * (f[1] + likelihood.log_level.item())))
    if name == "ordinal":
        ends = np.array([-np.inf, *likelihood.cuts[0].tolist(), np.inf])[[int(y), int(y) + 1]]
        low, high = ((end - f[0]) / likelihood.noise.item() ** 0.5 for end in ends)
        low, high = np.where(low + high > 0, [-high, -low], [low, high])
        return norm.logcdf(high) + np.log1p(-np.exp(norm.logcdf(low) - norm.logcdf(high)))
    if name == "beta":
        mean, size = expit(f[0] + likelihood.shift.item()), 1 / likelihood.dispersion.item()
        return beta.logpdf(y, size * mean, size * (1 - mean))
    mean = np.exp(f[0] + likelihood.shift[0])
    if name == "poisson":
        return poisson.logpmf(y, mean)
    d = likelihood.dispersion.item()
    if name == "negative_binomial":
        log_odds = f[0] + likelihood.shift[0] + np.log(d)  # SciPy rounds the probability of success to one
        level = gammaln(y + 1 / d) - gammaln(1 / d) - gammaln(y + 1)
        return level + y * log_odds - (y + 1 / d) * np.logaddexp(0, log_odds)
    return gamma.logpdf(y, 1 / d, scale=d * mean)


def integral(function, mean, variance):
    """E function(f) for f ~ N(mean, variance), over one or two dimensions."""
    z, w = np.polynomial.hermite_e.hermegauss(120)
    w = w / w.sum()
    if len(mean) == 1:
        f = mean[0] + np.sqrt(variance[0]) * z
        return w @ function([f])
    f, g = np.meshgrid(mean[0] + np.sqrt(variance[0]) * z, mean[1] + np.sqrt(variance[1]) * z, indexing="ij")
    return w @ function([f, g]) @ w


@every_likelihood
class TestMathematics:
    def test_expectations_are_integrals(self, name):
        likelihood, encoded = ready(name)
        D = likelihood.n_outputs
        mean, variance = 0.5 * normal(3, 5, D), 0.02 + 0.08 * normal(3, 5, D, seed=1).square()
        y = torch.as_tensor(encoded[:5])
        ours = likelihood.expected_log_prob(y, mean, variance)
        predictive = likelihood.log_predictive(y, mean, variance)
        for s in range(3):
            for b in range(5):
                m, v, t = mean[s, b].numpy(), variance[s, b].numpy(), encoded[b, 0]
                expected = integral(lambda f, t=t: log_density(name, likelihood, t, f), m, v)
                np.testing.assert_allclose(ours[s, b].item(), expected, rtol=1e-4, atol=3e-4)
                density = integral(lambda f, t=t: np.exp(log_density(name, likelihood, t, f)), m, v)
                np.testing.assert_allclose(predictive[s, b].item(), np.log(density), rtol=1e-4, atol=1e-4)

    def test_gradients(self, name):
        likelihood, encoded = ready(name, 2)
        y = torch.as_tensor(encoded[:2])
        D = likelihood.n_outputs
        mean = (0.5 * normal(2, 2, D)).requires_grad_()
        variance = (0.05 + 0.3 * normal(2, 2, D, seed=1).square()).requires_grad_()
        parameters = list(likelihood.parameters())

        def value(method):
            def call(mean, variance, *values):
                named = dict(zip([n for n, _ in likelihood.named_parameters()], values, strict=True))
                return torch.func.functional_call(
                    Method(likelihood, method), {f"of.{n}": v for n, v in named.items()}, (y, mean, variance)
                )

            return call

        values = [p.detach().clone().requires_grad_() for p in parameters]
        assert torch.autograd.gradcheck(value("expected_log_prob"), (mean, variance, *values))
        assert torch.autograd.gradcheck(value("log_predictive"), (mean, variance, *values), atol=1e-4)

    def test_a_stack_is_its_members(self, name):
        likelihood, encoded = ready(name, 2)
        D = likelihood.n_outputs
        mean, variance = normal(3, 4, D), normal(3, 4, D, seed=1).square()
        y = torch.as_tensor(encoded[:4])
        alone = [getattr(likelihood, method)(y, mean, variance) for method in ("expected_log_prob", "log_predictive")]
        for tensors in (likelihood._parameters, likelihood._buffers):
            for key, value in tensors.items():
                tensors[key] = None if value is None else torch.stack([value.detach(), value.detach()])
        for method, expected in zip(("expected_log_prob", "log_predictive"), alone, strict=True):
            stacked = getattr(likelihood, method)(*(torch.stack([each, each]) for each in (y, mean, variance)))
            np.testing.assert_allclose(stacked.detach(), torch.stack([expected, expected]).detach(), rtol=1e-9)

    def test_predictions_say_what_training_does(self, name):
        likelihood, encoded = ready(name)
        D = likelihood.n_outputs
        mean, variance = 0.5 * normal(3, 6, D), 0.05 + 0.2 * normal(3, 6, D, seed=1).square()
        log_weight = torch.tensor([0.2, 0.3, 0.5]).double().log()[:, None]
        y = torch.as_tensor(encoded[:6])
        with torch.no_grad():
            inside = torch.logsumexp(likelihood.log_predictive(y, mean, variance) + log_weight, 0).numpy()
            dist = likelihood.predictive(mean, variance, log_weight, latent=False)
            latent = likelihood.predictive(mean, variance, log_weight, latent=True)
            response = likelihood.mean_response(mean, variance, log_weight).numpy()
        user = targets(name, n_outputs=1)[1][:6]
        np.testing.assert_allclose(
            dist.logpdf(user)[:, 0], inside + likelihood.log_jacobian(torch.zeros(1, 1), torch.ones(1)), atol=2e-3
        )
        np.testing.assert_allclose(dist.mean, response, rtol=1e-6)
        np.testing.assert_allclose(latent.mean, response, rtol=1e-6)
        assert (latent.var < dist.var).all()


class Method(torch.nn.Module):
    """A method of a likelihood as a module's call."""

    def __init__(self, likelihood, method):
        super().__init__()
        self.of, self.method = likelihood, method

    def forward(self, *arguments):
        return getattr(self.of, self.method)(*arguments)


class TestLimits:
    def test_many_degrees_of_freedom_are_a_gaussian(self):
        ours, theirs = StudentT(1).double(), Gaussian(1).double()
        ours.log_freedom.data.fill_(np.log(1e6))
        y, mean, variance = normal(5, 1), normal(2, 5, 1, seed=1), normal(2, 5, 1, seed=2).square()
        for method in ("expected_log_prob", "log_predictive"):
            pair = [getattr(each, method)(y, mean, variance).detach() for each in (ours, theirs)]
            np.testing.assert_allclose(*pair, rtol=1e-4)

    def test_noise_that_is_the_same_everywhere_is_a_gaussian(self):
        ours, theirs = Heteroskedastic(1).double(), Gaussian(1, floor=0.0).double()
        ours.log_level.data.fill_(np.log(0.3))
        theirs.log_excess.data.fill_(np.log(0.3))
        y, mean, variance = normal(5, 1), normal(2, 5, 1, seed=1), normal(2, 5, 1, seed=2).square()
        nothing = torch.zeros_like(mean)
        both = torch.cat([mean, nothing], -1), torch.cat([variance, nothing], -1)
        for method in ("expected_log_prob", "log_predictive"):
            pair = getattr(ours, method)(y, *both), getattr(theirs, method)(y, mean, variance)
            np.testing.assert_allclose(*(each.detach() for each in pair), rtol=1e-5)

    def test_no_dispersion_is_a_poisson_distribution(self):
        ours, theirs = NegativeBinomial(1).double(), Poisson(1).double()
        ours.log_dispersion.data.fill_(np.log(1e-6))
        y = torch.tensor([[0.0], [3.0], [10.0]]).double()
        for each in (ours, theirs):
            each.shift = (0.5,)
        mean, variance = normal(2, 3, 1), 0.1 + 0 * normal(2, 3, 1)
        for method in ("expected_log_prob", "log_predictive"):
            pair = [getattr(each, method)(y, mean, variance).detach() for each in (ours, theirs)]
            np.testing.assert_allclose(*pair, atol=2e-4)

    @pytest.mark.parametrize("likelihood", [NegativeBinomial(1), Gamma(1)], ids=lambda each: type(each).__name__)
    @pytest.mark.parametrize("dispersion", [1e-6, 1e-3, 0.1])
    def test_small_dispersions_in_float32(self, likelihood, dispersion):
        likelihood = deepcopy(likelihood)
        likelihood.shift = (0.0,)
        likelihood.log_dispersion.data.fill_(np.log(dispersion))
        exact = deepcopy(likelihood).double()
        y = torch.tensor([[1.0], [5.0], [40.0]])
        mean = y.log()[None] + 0.5 * dispersion**0.5
        variance = torch.full_like(mean, 0.1 * dispersion)
        for method, args in {
            "log_predictive": [y, mean, variance],
            "expected_log_prob": [y, mean, variance],
        }.items():
            found = getattr(likelihood, method)(*args).sum()
            expected = getattr(exact, method)(*(each.double() for each in args)).sum()
            assert found.item() == pytest.approx(expected.item(), abs=2e-3)
            [slope] = torch.autograd.grad(found, likelihood.log_dispersion)
            [exact_slope] = torch.autograd.grad(expected, exact.log_dispersion)
            assert slope.item() == pytest.approx(exact_slope.item(), abs=0.05)

    @pytest.mark.parametrize(
        "likelihood", [Poisson(1), NegativeBinomial(1), Gamma(1)], ids=lambda each: type(each).__name__
    )
    def test_base_of_counts_is_the_laplace_approximation(self, likelihood):
        """Its mode has no gradient: what the targets pull is what the prior holds back."""
        X = np.linspace(-2, 2, 40)[:, None]
        y = np.random.default_rng(0).poisson(np.exp(1 + np.sin(2 * X))) + (
            0.5 if isinstance(likelihood, Gamma) else 0.0
        )
        likelihood.learn_units(y, normalize=True)
        rows = Batch(*(torch.as_tensor(each, dtype=torch.float64) for each in (X, y, np.ones(40))))
        likelihood = likelihood.double()
        model = fit_base(Batch(rows.X, likelihood.regressands(rows.y), rows.weight))
        give_noise(model, rows.y.new_ones(1))
        learnt, change = at_mode(model, rows, likelihood)
        assert change < CONVERGED
        f, K = model(rows.X).mean[0], model.layers[0].kernel(rows.X, rows.X)[0]
        slope, _ = likelihood.derivatives(rows.y[None], f[None])
        np.testing.assert_allclose(f, K @ slope[0].detach(), atol=2e-2)  # f = K ∇ log p(y | f); 40 rows, all inducing
        assert (learnt.weight > 0).all()

    @pytest.mark.parametrize("kind", [Gamma, NegativeBinomial, Beta])
    def test_base_knows_the_dispersion_and_that_kernels_are_uncertain(self, kind):
        rng = np.random.RandomState(0)
        X = rng.uniform(-2, 2, (60, 2))
        y = truth(kind, (0 if kind is Beta else 3) + np.sin(2 * X[:, 0]), 0.05).rvs(random_state=rng).astype(float)
        likelihood = kind(1)
        likelihood.learn_units(y[:, None], normalize=True)
        likelihood = likelihood.double()
        encoded = likelihood.encode(y[:, None])
        rows = Batch(*(torch.as_tensor(part, dtype=torch.float64) for part in (X, encoded, np.ones(60))))
        base, learnt, level = fit_base_of_means(rows, likelihood)
        assert 0.02 < level.exp().item() < 0.12
        assert base.n_alternatives == ALTERNATIVES
        # Weights are those of rows on average, and noise is what they are relative to.
        assert learnt.weight.mean().item() == pytest.approx(1.0)

    def test_counts_that_vary_too_much_for_poisson_do_not_make_functions_rough(self):
        rng = np.random.RandomState(0)
        X = rng.uniform(-2, 2, (200, 1))
        rate = np.exp(2 + np.sin(2 * X[:, 0]))
        y = rng.poisson(rate * rng.gamma(5, 1 / 5, 200)).astype(float)[:, None]
        likelihood = Poisson(1)
        likelihood.learn_units(y, normalize=True)
        rows = Batch(*(torch.as_tensor(part, dtype=torch.float64) for part in (X, y, np.ones(200))))
        base, _, level = fit_base_of_means(rows, likelihood.double())
        assert level is None
        error = base.model(rows.X).mean[0][:, 0].numpy() + likelihood.shift[0] - np.log(rate)
        assert np.sqrt(np.mean(error**2)) < 0.15


@pytest.mark.parametrize("kind", [Gamma, Beta])
@pytest.mark.parametrize("seed", range(3))
def test_few_held_out_rows_do_not_make_dispersion_vanish(kind, seed):
    """A handful of them often look as if members had explained everything."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-2, 2, (340, 1))
    distribution = truth(kind, np.sin(3 * X[:, 0]), 0.01)
    y = distribution.rvs(random_state=rng)
    model = SOLVEGPRegressor(likelihood=NAME_OF[kind], max_iter=30, random_state=0).fit(X[:40], y[:40])
    predicted = model.predict_dist(X[40:])
    level = predicted.cdf(y[40:])
    assert ((0.05 < level) & (level < 0.95)).mean() > 0.7
    assert predicted.logpdf(y[40:]).mean() > distribution.logpdf(y)[40:].mean() - 1.0


@pytest.mark.parametrize("kind", [Poisson, NegativeBinomial, Gamma])
@pytest.mark.parametrize("uncertain", [1e-6, 0.1, 4.0, 25.0])
@torch.no_grad()
def test_means_of_any_uncertainty(kind, uncertain):
    """Expectations and log densities against fine grids, for few and for many counts, near and far from the mean."""
    likelihood = kind(1).double()
    likelihood.shift = (0.0,)
    z = np.linspace(-14, 14, 40_001)
    share = norm.pdf(z) / norm.pdf(z).sum()
    for y in (1.0 if kind is Gamma else 0.0, 20.0, 1e5):
        for far in (-4.0, 0.0, 4.0):
            m = np.log(max(y, 0.1)) + far * uncertain**0.5
            moments = torch.tensor([[[m]]]).double(), torch.tensor([[[uncertain]]]).double()
            log_p = log_density(NAME_OF[kind], likelihood, y, [m + uncertain**0.5 * z])
            expected, found = share @ log_p, likelihood.expected_log_prob(torch.tensor([[y]]).double(), *moments).item()
            assert found == pytest.approx(expected, rel=1e-8, abs=1e-4)
            found = likelihood.log_predictive(torch.tensor([[y]]).double(), *moments).item()
            dist = likelihood.predictive(*moments, torch.zeros(1, 1).double(), latent=False)
            assert found == pytest.approx(dist.logpdf([[y]])[0, 0], abs=1e-3 if uncertain > 4 else 5e-5)
            if uncertain >= 4 and y < 1e5:  # so that the grid is fine enough
                assert dist.logpdf([[y]])[0, 0] == pytest.approx(np.log(share @ np.exp(log_p)), abs=1e-5)


class TestTails:
    """Noise of heavy tails, and uncertain noise, against SciPy and fine grids."""

    @pytest.mark.parametrize("freedom", [2.01, 2.05, 5.0])
    def test_variance_of_student_t(self, freedom):
        likelihood = StudentT(1).double()
        likelihood.units = Units([0.0], [2.0])
        likelihood.log_freedom.data.fill_(np.log(freedom - 2))
        expected = 4 * likelihood.scale.item() * freedom / (freedom - 2)
        assert likelihood.noise_variance()[0] == pytest.approx(expected, rel=1e-6)
        zero = torch.zeros(1, 1, 1).double()
        with torch.no_grad():
            dist = likelihood.predictive(zero, zero, zero[0], latent=False)
        assert dist.var.item() == pytest.approx(expected, rel=1e-6)
        y = np.array([0.0, 3.0, 50.0])
        exact = student_t.logpdf(y, freedom, scale=2 * likelihood.scale.item() ** 0.5)
        np.testing.assert_allclose(dist.logpdf(y[:, None, None])[:, 0, 0], exact, atol=1e-6)

    @pytest.mark.parametrize("freedom", [2.01, 3.0, 20.0, 100.0, 1e5])
    @pytest.mark.parametrize("variance", [0.0, 1.0, 100.0])
    @torch.no_grad()
    def test_density_of_student_t(self, freedom, variance):
        """Against a fine grid of logarithms of precisions, up to twenty deviations from the mean."""
        likelihood = StudentT(1).double()
        likelihood.log_freedom.data.fill_(np.log(freedom - 2))
        s2 = likelihood.scale.item()
        u = np.linspace(*((-40, 5) if freedom < 1e3 else (-0.2, 0.1)), 100_001)
        log_share = log_softmax(0.5 * freedom * (u - np.expm1(u)))
        for far in (0.0, 1.0, 5.0, 20.0):
            y = far * np.sqrt(s2 * (1 + variance))
            exact = logsumexp(log_share + norm.logpdf(y, 0, np.sqrt(s2 * (variance + np.exp(-u)))))
            moments = torch.zeros(1, 1, 1).double(), torch.full((1, 1, 1), variance * s2).double()
            found = likelihood.log_predictive(torch.tensor([[y]]).double(), *moments).item()
            assert found == pytest.approx(exact, abs=2e-5)

    @pytest.mark.parametrize("variance", [0.0, 1.0, 100.0, 1e6])
    @pytest.mark.parametrize("far", [0.0, 4.0])
    def test_expected_student_t(self, variance, far):
        likelihood = StudentT(1).double()
        s2, freedom = likelihood.scale.item(), likelihood.degrees_of_freedom.item()
        z = np.linspace(-9, 9, 400_001)
        share, y = norm.pdf(z) / norm.pdf(z).sum(), far * np.sqrt(s2 * (1 + variance))
        exact = share @ student_t.logpdf(y - np.sqrt(variance * s2) * z, freedom, scale=np.sqrt(s2))
        mean = torch.zeros(1, 1, 1).double()
        ours = likelihood.expected_log_prob(torch.tensor([[y]]).double(), mean, mean + variance * s2)
        assert ours.item() == pytest.approx(exact, abs=1e-3)

    @pytest.mark.parametrize("far", [0.0, 1.0, 4.0, 8.0])
    @pytest.mark.parametrize("uncertain", [0.5, 2.0, 4.0])
    def test_noise_of_uncertain_variance(self, far, uncertain):
        likelihood = Heteroskedastic(1).double()
        likelihood.log_level.data.zero_()
        likelihood.units = Units([0.0], [1.0])
        z = np.linspace(-12, 12, 20_001)
        noise = 0.01 + np.exp(np.sqrt(uncertain) * z) + likelihood.floor.item()
        y = far * np.exp(uncertain / 4)
        exact = np.log(norm.pdf(z) / norm.pdf(z).sum() @ norm.pdf(y, 0, np.sqrt(noise)))
        moments = torch.zeros(1, 1, 2).double(), torch.tensor([[[0.01, uncertain]]]).double()
        with torch.no_grad():
            ours = likelihood.log_predictive(torch.tensor([[y]]).double(), *moments)
            dist = likelihood.predictive(*moments, torch.zeros(1, 1).double(), latent=False)
        assert ours.item() == pytest.approx(exact, abs=1e-4)
        assert dist.logpdf([[y]])[0, 0] == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize(
    "likelihood", [Poisson(1), NegativeBinomial(1), Gamma(1)], ids=lambda each: type(each).__name__
)
def test_means_stay_within_limits_where_targets_say_nothing(likelihood):
    likelihood.learn_units(np.array([[1.0], [10.0]]), normalize=True)
    mean, variance = torch.tensor([[[200.0], [0.0]]]), torch.tensor([[[1e5], [0.1]]])
    with torch.no_grad():
        dist = likelihood.predictive(mean, variance, torch.zeros(1, 1), latent=False)
        response = likelihood.mean_response(mean, variance, torch.zeros(1, 1))
    assert np.isfinite(dist.mean).all() and np.isfinite(dist.std).all()
    np.testing.assert_allclose(response, dist.mean)
    np.testing.assert_allclose(dist.means[0, 0], np.log(1e7))
    np.testing.assert_allclose(dist.means[0, 1], np.log(5.5), rtol=1e-6)


@torch.no_grad()
def test_noise_that_varies_stays_within_limits_where_targets_say_nothing():
    likelihood = Heteroskedastic(1).double()
    likelihood.units = Units([0.0], [1.0])
    likelihood.initialise(normal(50, 1, seed=1), torch.ones(50).double())
    mean, variance = torch.tensor([[[0.0, 1e14]]]).double(), torch.tensor([[[0.1, 1e28]]]).double()
    dist = likelihood.predictive(mean, variance, torch.zeros(1, 1).double(), latent=False)
    assert 1e5 < dist.var.item() < 1e7  # of standardised targets
    assert np.isfinite(likelihood.draw(np.array([[0.0, 1e14]]), np.random.RandomState(0))).all()
    assert likelihood.log_predictive(torch.zeros(1, 1).double(), mean, variance).isfinite().all()


@every_likelihood
@every_regressor
class TestEstimators:
    def test_every_method_answers(self, name, tiny):
        X, y = targets(name)
        model = tiny(likelihood=name).fit(X, y)
        dist, Q = model.predict_dist(X[:7]), X[:7]
        mean, std = model.predict(Q, return_std=True)
        np.testing.assert_allclose(dist.mean, mean, rtol=1e-6)
        np.testing.assert_allclose(dist.std, std, rtol=1e-6)
        quantiles, interval = model.predict_quantiles(Q, [0.05, 0.5, 0.95]), model.predict_interval(Q)
        np.testing.assert_allclose(quantiles[:, [0, 2]], interval, rtol=1e-6)
        mean, covariance = model.predict(Q, return_cov=True)
        np.testing.assert_allclose(covariance.diagonal(), std**2, rtol=1e-12)
        assert np.linalg.eigvalsh(covariance).min() > -1e-8 * covariance.max()
        assert model.sample_y(Q, 3, random_state=0).shape == (7, 3)
        latent = model.predict(Q, return_std=True, latent=True)[1]
        assert (latent < std).all() and np.isfinite(model.predict_dist(Q, latent=True).logpdf(mean)).all()
        step = np.array([1e-5, 0.0])
        slope = (model.predict(Q + step) - model.predict(Q - step)) / 2e-5
        np.testing.assert_allclose(model.predict_gradient(Q)[:, 0], slope, rtol=0.02, atol=2e-2 * np.abs(slope).max())
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_interval(Q), interval)
        assert np.isfinite(dist.crps(y[:7])).all() and np.isfinite(model.lower_bound_)
        if name in ("poisson", "negative_binomial"):
            assert isinstance(dist, CountDistribution)
            for counts in (quantiles, model.sample_y(Q, 3)):
                assert (counts == np.floor(counts)).all() and (counts >= 0).all()
        if name == "ordinal":
            assert isinstance(dist, GradeDistribution)
            for grades in (quantiles, model.sample_y(Q, 3)):
                assert set(np.unique(grades)) <= {1.0, 2.0, 3.0, 4.0}
        if name == "beta":
            assert (quantiles > 0).all() and (quantiles < 1).all()
        if name == "gamma":
            assert isinstance(dist, GammaDistribution) and (quantiles > 0).all() and (model.sample_y(Q, 3) > 0).all()

    @any_options
    def test_several_outputs_chunks_and_held_out_rows(self, name, tiny):
        X, y = targets(name, n_outputs=2)
        model = tiny(likelihood=name, base="gp").fit(X, y, X_val=X[:20], y_val=y[:20])
        assert model.predict_dist(X[:3]).shape == (3, 2) and model.sample_y(X[:3], 4).shape == (3, 2, 4)
        assert model.predict(X[:3], return_cov=True)[1].shape == (3, 3, 2)
        streamed = tiny(likelihood=name).partial_fit(X, y).partial_fit(X, y)
        assert np.isfinite(streamed.predict_dist(X).logpdf(y)).all()


@torch.no_grad()
@pytest.mark.parametrize("make", [Poisson, NegativeBinomial, Gamma], ids=lambda each: each.__name__)
def test_joint_moments_of_means_are_those_of_many_draws(make):
    likelihood, L = make(2).double(), 0.25 * normal(2, 3, 3, seed=1)
    likelihood.learn_units(np.array([[2.0, 300.0], [5.0, 10.0]]), normalize=True)
    mean = normal(2, 3, seed=2)
    f = mean + (L @ normal(200_000, 2, 3, 1, seed=3))[..., 0]
    draws = likelihood.response(f.mT).mT  # (S, P, B)
    M, C = likelihood.joint(mean, L @ L.mT)
    torch.testing.assert_close(M, draws.mean(0), rtol=0.01, atol=0)
    for p in range(2):
        found, expected = np.cov(draws[:, p].T.numpy()), C[p].numpy()
        spread = np.sqrt(expected.diagonal())
        assert (np.abs(found - expected) < 0.05 * np.outer(spread, spread)).all()
    M, C = likelihood.joint(torch.full((2, 2), 1e4).double(), torch.full((2, 2, 2), 1e6).double())
    assert M.isfinite().all() and C.isfinite().all()  # within limits


@pytest.mark.parametrize("name", ["poisson", "negative_binomial", "gamma"])
@pytest.mark.parametrize("base", [None, "gp"])
def test_covariances_of_members_that_have_a_logarithmic_link(name, base, monkeypatch):
    """Log-normal moments of each member, and the covariance of the members' means, from Gaussian moments."""
    monkeypatch.setattr("skdgp.inference.base.UNCERTAIN_ROWS", 0)  # one kernel, so that each member is one Gaussian
    X, y = targets(name, 60)
    model = SOLVEGPRegressor(8, 0, likelihood=name, base=base, n_estimators=3, max_iter=5, random_state=0).fit(X, y)
    shift, rows = model.module_[0].likelihood.shift[0], X[:6]
    inputs = torch.as_tensor(table_of(model).prepared(rows)).double()
    M, C = [], []
    for number in range(3):
        with torch.no_grad():
            f, K = (column[0].numpy() for column in predictor_of(model).alone(number).joint(inputs))
        M.append(np.exp(f + shift + 0.5 * K.diagonal()))
        C.append(M[-1][:, None] * M[-1] * np.expm1(K))
    expected = np.mean(C, axis=0) + np.cov(np.array(M).T, bias=True)
    found = model.predict(rows, return_cov=True, latent=True)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * expected.max())
    for latent in (True, False):
        covariance, std = (
            model.predict(rows, latent=latent, **{kind: True})[1] for kind in ("return_cov", "return_std")
        )
        np.testing.assert_allclose(covariance.diagonal(), std**2, rtol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_covariances_of_a_mixture_that_has_a_logarithmic_link(name):
    """Each quadrature point of a hidden layer is a component with log-normal moments."""
    X, y = targets(name, 40)
    options = {"n_inducing": 4, "n_samples": 5, "n_estimators": 2, "max_iter": 3, "base": None, "random_state": 0}
    model = DSDGPRegressor((2,), propagation="quadrature", likelihood=name, **options).fit(X, y)
    shift, rows = model.module_[0].likelihood.shift[0], X[:5]
    inputs, weights, M, C = torch.as_tensor(table_of(model).prepared(rows)).double(), [], [], []
    for member in predictor_of(model).alone().models:
        mean, variance, _ = member.layers[0](inputs[None], inputs)
        for weight, point in zip(member.propagation.weight, member.propagation.points[0], strict=True):
            F = mean + variance.sqrt() * point
            f, K = member.layers[1](F, F)[0][0, :, 0], member.layers[1].covariance(F, F, torch.ones(1))[0]
            M.append(np.exp(f.numpy() + shift + 0.5 * K.diagonal().numpy()))
            C.append(M[-1][:, None] * M[-1] * np.expm1(K.numpy()))
            weights.append(weight.item() / 2)
    expected = np.average(C, axis=0, weights=weights) + np.cov(np.array(M).T, aweights=weights, bias=True)
    found = model.predict(rows, return_cov=True, latent=True)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * expected.max())


@pytest.mark.slow
@every_likelihood
def test_base_and_draws(name):
    """With a base, draws and covariances are those of the blend."""
    X, y = targets(name, 200)
    model = SOLVEGPRegressor(likelihood=name, n_inducing=8, n_orthogonal=0, max_iter=5, random_state=0).fit(X, y)
    assert 0 <= model.base_weight_ <= 1 and model.neighbors_ is None
    draws = model.sample_y(X[:5], 1500, random_state=0)
    dist = model.predict_dist(X[:5])
    np.testing.assert_allclose(draws.mean(1), dist.mean, atol=5 * dist.std.max() / 35)
    np.testing.assert_allclose(draws.std(1), dist.std, rtol=0.15)
    functions = model.sample_functions(800, random_state=0)(X[:5])
    np.testing.assert_allclose(functions.std(1), model.predict(X[:5], return_std=True, latent=True)[1], rtol=0.15)


class TestTransforms:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "transform", ["log", PowerTransformer(), QuantileTransformer(n_quantiles=50, output_distribution="normal")]
    )
    def test_predictions_are_in_the_units_of_targets(self, transform):
        X, y = targets("gamma", 200)
        model = SOLVEGPRegressor(20, 0, target_transform=transform, max_iter=50, random_state=0).fit(X, y)
        dist = model.predict_dist(X)
        assert isinstance(dist, TransformedDistribution) and (model.predict_interval(X) > -0.5).all()
        np.testing.assert_allclose(dist.cdf(dist.ppf(0.2)), 0.2, atol=0.02)
        assert model.score(X, y) > 0.3
        draws = model.sample_y(X[:5], 1500, random_state=0)
        np.testing.assert_allclose(draws.mean(1), model.predict(X[:5]), rtol=0.1)
        functions = model.sample_functions(3, random_state=0)
        step = 1e-5 * np.array([1.0, 0.0])
        slope = (functions(X[:4] + step) - functions(X[:4] - step)) / 2e-5
        np.testing.assert_allclose(functions.gradient(X[:4])[:, 0], slope, rtol=0.05, atol=0.05)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))

    @pytest.mark.slow
    @pytest.mark.parametrize("scale", [0.01, 1.0])
    def test_scores_of_a_search_are_in_the_units_of_targets(self, scale):
        rng = np.random.default_rng(0)
        X = rng.uniform(-3, 3, (90, 1))
        y = scale * np.exp(np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=90))
        model = SOLVEGPRegressor(
            10, 0, target_transform=PowerTransformer(), n_estimators=1, max_iter=10, random_state=0
        )
        scores = cross_val_score(model, X, y, cv=2, scoring=crps_scorer)
        assert (scores < -0.05 * y.std()).all() and (scores > -0.6 * y.std()).all()

    @pytest.mark.slow
    def test_logarithm_is_a_model_of_logarithms(self):
        X, y = targets("gamma", 100)
        ours = SOLVEGPRegressor(target_transform="log", max_iter=20, random_state=0).fit(X, y)
        theirs = SOLVEGPRegressor(max_iter=20, random_state=0).fit(X, np.log(y))
        np.testing.assert_allclose(ours.predict_quantiles(X, 0.3), np.exp(theirs.predict_quantiles(X, 0.3)))
        expected = theirs.predict_dist(X).logpdf(np.log(y)) - np.log(y)
        np.testing.assert_allclose(ours.predict_dist(X).logpdf(y), expected)
        wrapped = TransformedTargetRegressor(theirs, func=np.log, inverse_func=np.exp).fit(X, y)
        np.testing.assert_allclose(predictive_distribution(wrapped, X).logpdf(y), expected, rtol=1e-4)
        assert np.isfinite(crps_scorer(wrapped, X, y))

    @pytest.mark.slow
    def test_what_has_no_formula_says_so(self):
        X, y = targets("gamma")
        model = SOLVEGPRegressor(target_transform="log", max_iter=3).fit(X, y)
        with pytest.raises(ValueError, match="return_cov=True has no formula with target_transform='log': sample_y"):
            model.predict(X, return_cov=True)
        with pytest.raises(ValueError, match="predict_gradient has no formula"):
            model.predict_gradient(X)
        with pytest.raises(
            ValueError, match="target_transform='log' does not go with likelihood='gamma', since it transforms"
        ):
            SOLVEGPRegressor(likelihood="gamma", target_transform="log").fit(X, y)
        with pytest.raises(ValueError, match=r"target_transform='log' does not go with likelihood=<class .*Gamma'>"):
            SOLVEGPRegressor(likelihood=Gamma, target_transform="log").fit(X, y)
        with pytest.raises(ValueError, match="return_cov=True has no formula with target_transform='log'"):
            model.set_params(target_transform=None).predict(X, return_cov=True)  # too late: it has been fitted
        wrapped = TransformedTargetRegressor(SOLVEGPRegressor(max_iter=3), func=np.log, inverse_func=np.exp).fit(X, y)
        with pytest.raises(TypeError, match="TransformedTargetRegressor transforms means alone"):
            wrapped.predict(X, return_std=True)
        plain = TransformedTargetRegressor(LinearRegression(), func=np.log, inverse_func=np.exp).fit(X, y)
        with pytest.raises(TypeError, match="predicts no distribution"):
            predictive_distribution(plain, X)


class TestErrors:
    @pytest.mark.parametrize(
        ("parameters", "wrong", "message"),
        [
            ({"likelihood": "poisson"}, -1.0, r"Counts are non-negative integers, but y holds \[-1.0\] in row 3"),
            ({"likelihood": "negative_binomial"}, 0.5, r"Counts are .* \[0.5\] in row 3"),
            ({"likelihood": "gamma"}, 0.0, r"likelihood='gamma' is for positive targets, but y holds \[0.0\] in row 3"),
            ({"target_transform": "log"}, -2.0, r"target_transform makes \[nan\] of \[-2.0\], which y holds in row 3"),
        ],
    )
    def test_name_the_row(self, parameters, wrong, message):
        X, y = targets("poisson")
        y = y + 1.0
        model = AVDGPRegressor((), max_iter=2, n_estimators=1, **parameters)
        held_out = y.copy()
        held_out[3] = wrong
        with pytest.raises(ValueError, match=message):
            model.fit(X, held_out)
        with pytest.raises(ValueError, match=message):
            model.fit(X, y, X_val=X, y_val=held_out)

    @pytest.mark.parametrize("factor", [1e100, 1e-100])
    def test_targets_of_another_size(self, factor):
        X, y = targets("gamma")
        with pytest.raises(
            ValueError, match=r"must lie between 1e-30 and 1e\+30, since models learn in single precision"
        ):
            AVDGPRegressor((), likelihood="gamma").fit(X, factor * y)
        with pytest.raises(ValueError, match="The variance of y overflows or underflows: its values reach"):
            AVDGPRegressor((), target_transform="log").fit(X, factor**1.7 * y)

    def test_small_targets_that_are_not_standardised(self):
        X, y = targets("student_t")
        with pytest.warns(UserWarning, match="with normalize_y=False the noise has one of at least 0.001"):
            AVDGPRegressor((), max_iter=2, n_estimators=1, normalize_y=False).fit(X, 1e-12 * y)

    def test_noise_variance_is_there_where_it_is_one(self):
        X, y = targets("heteroskedastic")
        model = AVDGPRegressor((), max_iter=2, n_estimators=1, likelihood="heteroskedastic").fit(X, y)
        with pytest.raises(AttributeError, match="likelihood='heteroskedastic' has no noise_variance_"):
            model.noise_variance_  # noqa: B018
        assert AVDGPRegressor((), max_iter=2, n_estimators=1, likelihood="student_t").fit(X, y).noise_variance_ > 0

    @pytest.mark.slow
    def test_likelihoods_of_ones_own(self):
        X, y = targets("student_t")
        for likelihood in (Gaussian(1, excess=0.3), Gaussian, lambda n: Gaussian(n)):
            model = AVDGPRegressor((), max_iter=2, n_estimators=1, likelihood=likelihood).fit(X, y)
            assert model.noise_variance_ > 0
        with pytest.raises(ValueError, match="is of 2 targets, but y has 1: match them, or pass the class"):
            AVDGPRegressor((), likelihood=Gaussian(2)).fit(X, y)
        with pytest.raises(TypeError, match="makes Linear, which is no likelihood of a regressor"):
            AVDGPRegressor((), likelihood=lambda n: torch.nn.Linear(n, n)).fit(X, y)
        with pytest.raises(ValueError, match="method='collapsed' needs likelihood='gaussian' or 'lognormal', got"):
            SOLVEGPRegressor(method="collapsed", likelihood="student_t").fit(X, y)
        assert issubclass(AdditiveNoise, Regression)


def test_base_of_tails_leaves_out_what_is_far_out():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 2))
    clean = np.sin(2 * X[:, :1]) + 0.1 * rng.normal(size=(150, 1))
    y, broken = clean.copy(), np.arange(0, 150, 20)
    y[broken] += 6.0
    tensors = (torch.as_tensor(each, dtype=torch.float64) for each in (X, y, np.ones(150)))
    model, learnt = fit_base_of_tails(Batch(*tensors))
    assert (learnt.weight[broken] == 0).all() and learnt.weight.sum() >= 138
    np.testing.assert_allclose(model(torch.as_tensor(X)).mean[0].numpy(), np.sin(2 * X[:, :1]), atol=0.25)


def varying_rows(n_rows=300, scale=1.0, seed=0):
    """Rows whose noise has the deviation exp(x₀ − 1), their means without noise, and logarithms of its variances."""
    rng = np.random.default_rng(seed)
    X = torch.as_tensor(rng.uniform(-2, 2, (n_rows, 2)))
    mean, level = torch.sin(2 * X[:, :1]) + 0.5 * X[:, 1:].square() - 2 / 3, 2 * (X[:, :1] - 1)
    y = mean + (0.5 * level).exp() * torch.as_tensor(rng.standard_normal((n_rows, 1)))
    weight = torch.ones(n_rows, dtype=torch.float64)
    return Batch(X, scale * y, weight), scale * mean, level + 2 * np.log(scale)


def rms(error):
    return error.square().mean().sqrt().item()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_base_of_noise_that_varies_knows_both_functions(scale):
    rows, mean, level = varying_rows(scale=scale)
    base, learnt, variances = fit_base_of_varying(rows)
    assert rms(variances.logarithms(rows.X) - level) < 0.5  # from -6 to 2
    deviation = (0.5 * level).exp()
    error, plain = (rms((model(rows.X).mean[0] - mean) / deviation) for model in (base.model, fit_base(rows)))
    assert error < 0.25 and error < 0.6 * plain
    assert learnt.weight.sum().item() == pytest.approx(300)
    noise = base.model.likelihood.variance / learnt.weight[:, None]
    assert rms(noise.log() - level) < 0.5  # weights and the base's own noise say the same


def test_base_of_noise_that_does_not_vary_is_the_plain_one():
    rng = np.random.default_rng(1)
    X = torch.as_tensor(rng.uniform(-2, 2, (300, 2)))
    y = torch.sin(2 * X[:, :1]) + 0.3 * torch.as_tensor(rng.standard_normal((300, 1)))
    rows = Batch(X, y, torch.ones(300, dtype=torch.float64))
    base, _, variances = fit_base_of_varying(rows)
    torch.testing.assert_close(base.model(X).mean, fit_base(rows)(X).mean, rtol=0, atol=0.06)
    assert rms(variances.logarithms(X) - np.log(0.09)) < 0.3


def test_base_of_noise_that_varies_is_where_the_squares_are_most_likely():
    rows, _, _ = varying_rows(200)
    squares = Batch(rows.X, rows.y.square(), 1.0 + (torch.arange(200) % 2).double())
    variances = _fit_variances(squares, None)
    layer = variances.model.layers[0]
    [(_, A)] = layer.whitened(squares.X)  # features of the rows
    features = layer.kernel.deviation * A
    inner = (squares.y * (-variances.logarithms(squares.X)).exp() - 1.0).clamp(max=LONGEST)
    slope = 0.5 * features @ (counting_once(squares)[:, None] * inner)  # of the log density
    torch.testing.assert_close(slope[:, 0], layer.q.mean[0], rtol=0, atol=0.02)  # that of the prior


def test_copies_of_squares_say_no_more_of_noise_that_varies():
    rows, _, _ = varying_rows(60)
    squares = Batch(rows.X, rows.y.square(), rows.weight)
    once = _fit_variances(squares, None).model(rows.X)
    for copies in (squares.rows(torch.arange(240) // 4), squares.weighing(4.0)):
        again = _fit_variances(copies, None).model(rows.X)
        torch.testing.assert_close(again.mean, once.mean, rtol=0, atol=0.05)
        torch.testing.assert_close(again.variance, once.variance, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("copied", ["once", "copies", "weights"])
def test_few_held_out_rows_do_not_make_noise_that_varies_vanish(copied, seed):
    """Six rows are held out. They told the level of the noise alone, and it could become nothing."""
    rng = np.random.default_rng(seed)
    X, new = rng.uniform(-2, 2, (60, 2)), rng.uniform(-2, 2, (1000, 2))
    y, truth = (np.sin(2 * x[:, 0]) + np.exp(0.7 * x[:, 1] - 1) * rng.normal(size=len(x)) for x in (X, new))
    model = SOLVEGPRegressor(likelihood="heteroskedastic", n_estimators=1, random_state=0)
    if copied == "copies":
        model.fit(np.repeat(X, 4, axis=0), np.repeat(y, 4))
    else:
        model.fit(X, y, np.full(60, 4.0) if copied == "weights" else None)
    assert coverage(truth, *model.predict_interval(new).T) > 0.8


@pytest.mark.parametrize("kind", ["exact", "constant", "partly exact", "rounded", "few", "one"])
def test_base_of_noise_that_varies_where_there_is_none(kind):
    rows, mean, _ = varying_rows({"few": 5, "one": 1}.get(kind, 100))
    y = {
        "exact": mean,
        "constant": 0.0 * mean,
        "partly exact": torch.where(rows.X[:, :1] > 0, rows.y, mean),
        "rounded": rows.y.round(),
    }.get(kind, rows.y)
    base, learnt, variances = fit_base_of_varying(Batch(rows.X, y, rows.weight))
    for model in (*base.alternatives(), variances.model):
        assert model(rows.X).mean.isfinite().all() and (model(rows.X).variance >= 0).all()
    assert learnt.weight.isfinite().all() and (learnt.weight > 0).all() and variances.level.isfinite().all()
    if kind == "exact":
        assert rms(base.model(rows.X).mean[0] - mean) < 1e-3


def test_noise_that_varies_has_a_weight_for_all_targets_and_a_variance_for_each():
    rows, mean, level = varying_rows()
    other = mean + 0.1 * normal(300, 1, seed=3)
    base, _, variances = fit_base_of_varying(Batch(rows.X, torch.cat([rows.y, other], dim=1), rows.weight))
    found = variances.logarithms(rows.X)
    assert rms(found[:, :1] - level) < 0.6 and rms(found[:, 1:] - np.log(0.01)) < 0.8
    assert base.model(rows.X).mean.shape[-1] == 2 * base.n_alternatives


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [DSDGPRegressor(()), SOLVEGPRegressor()], ids=lambda each: type(each).__name__)
def test_noise_that_varies_is_known_nearly_as_well_as_it_can_be(estimator):
    rows, _, _ = varying_rows(600, seed=1)
    new, mean, level = varying_rows(2000, seed=2)
    model = clone(estimator).set_params(likelihood="heteroskedastic", random_state=0).fit(rows.X, rows.y[:, 0])
    best = norm.logpdf(new.y, mean, (0.5 * level).exp()).mean()
    assert model.predict_dist(new.X.numpy()).log_score(new.y[:, 0].numpy()).mean() + best < 0.08


def test_noise_that_is_rarely_wide():
    narrow = Gaussian(2, excess=0.09, floor=0.0).double().requires_grad_(False)
    narrow.units = Units([3.0, 0.0], [2.0, 1.0])
    likelihood = Contaminated(narrow, 0.25, torch.tensor([4.0, 1.0]).double())
    mean, variance, y = normal(1, 5, 2), normal(1, 5, 2, seed=1).square(), normal(5, 2, seed=2)
    total = (variance + torch.tensor([[[0.09, 0.09]], [[4.0, 1.0]]])).numpy()
    density = np.logaddexp(*(np.log([[[0.75]], [[0.25]]]) + norm.logpdf(y.numpy(), mean.numpy(), np.sqrt(total))))
    np.testing.assert_allclose(likelihood.log_predictive(y, mean, variance)[0], density.sum(-1), rtol=1e-6)

    dist = likelihood.predictive(mean, variance, torch.zeros(1, 1).double(), latent=False)
    units = np.array([2.0, 1.0]), np.array([3.0, 0.0])
    np.testing.assert_allclose(dist.logpdf(y.numpy() * units[0] + units[1]), density - np.log(units[0]), rtol=1e-6)
    np.testing.assert_allclose(dist.mean, mean[0].numpy() * units[0] + units[1])
    total = 0.75 * 0.09 + 0.25 * np.array([4.0, 1.0])
    np.testing.assert_allclose(likelihood.noise_variance(), total * units[0] ** 2, rtol=1e-6)
    draws = likelihood.draw(np.zeros((200_000, 2)), np.random.RandomState(0))
    np.testing.assert_allclose(draws.var(0), likelihood.noise_variance(), rtol=0.02)
    assert likelihood.calibrated() == narrow.calibrated()


@pytest.mark.parametrize(
    ("likelihood", "scale"), [("poisson", 1), ("gamma", 1e6), ("beta", 0.1), ("heteroskedastic", 1)]
)
def test_warning_if_newtons_method_has_not_converged(likelihood, scale, monkeypatch):
    """Once in a fit. It ended after its last step without a word."""
    monkeypatch.setattr(stand_ins, "NEWTON_STEPS", 1)
    monkeypatch.setattr(stand_ins, "CONVERGED", 1e-12)
    rng = np.random.RandomState(0)
    X = rng.rand(40, 1)
    y = scale * rng.poisson(4.0 + 4.0 * X[:, 0]) if likelihood == "poisson" else scale * rng.uniform(0.1, 2.0, 40)
    model = SOLVEGPRegressor(5, 0, max_iter=1, n_estimators=1, likelihood=likelihood, random_state=0)
    with pytest.warns(RuntimeWarning, match=r"Newton's method has not converged: .* by \d\.\de[+-]\d\d\.") as found:
        model.fit(X, y)
    assert [each.filename for each in found if "Newton" in str(each.message)] == [__file__]


def test_newtons_method_converges_where_whole_steps_go_to_and_fro():
    """A whole step from f ends at 2 − f, so that whole steps never end. A half of one is at the fixed point."""
    X = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    model = fit_base(Batch(X, torch.sin(6 * X), torch.ones(8, dtype=torch.float64)))
    give_noise(model, X.new_ones(1))
    certain = X.new_full((8,), 1e8)
    learnt, change = by_newton(model, X, lambda f: Batch(X, 2.0 - f, certain))
    assert change < CONVERGED
    torch.testing.assert_close(learnt.y, torch.ones_like(X), atol=CONVERGED, rtol=0)
