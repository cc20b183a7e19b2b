"""Likelihoods against numerical integration and against brute force."""

import numpy as np
import pytest
import torch
from helpers import normal
from scipy.integrate import quad
from scipy.special import erfcx, log_ndtr, ndtr
from scipy.stats import multivariate_normal, norm
from torch.overrides import TorchFunctionMode

from skdgp.gp import argmax, classes, special
from skdgp.gp.classes import Bernoulli, RobustMax, Tempered
from skdgp.gp.likelihoods import Gaussian

N_SAMPLES, N_ROWS = 2, 3
EPSILON = 0.02  # of slips; larger than anyone would choose, so that they show


def make_likelihood(n_outputs, floor=1e-3):
    likelihood = Gaussian(n_outputs, floor=floor).double()
    with torch.no_grad():
        likelihood.log_excess.copy_(torch.linspace(-1.0, 0.5, n_outputs))
    return likelihood


def make_case(n_outputs):
    y, mean = normal(N_ROWS, n_outputs, seed=1), normal(N_SAMPLES, N_ROWS, n_outputs, seed=2)
    return y, mean, 0.1 + normal(N_SAMPLES, N_ROWS, n_outputs, seed=3).square()


def integrate(function, mean, variance, points=()):
    """E function(f) over f ~ N(mean, variance); the function changes fast at points."""
    deviation = variance**0.5
    limits = (mean - 12 * deviation, mean + 12 * deviation)
    settings = {"points": np.clip(points, *limits), "limit": 1000} if len(points) else {}
    return quad(lambda f: function(f) * norm.pdf(f, mean, deviation), *limits, epsabs=1e-12, epsrel=1e-11, **settings)[
        0
    ]


def log_density(y, noise):
    return lambda f: norm.logpdf(y, f, noise**0.5)


def density(y, noise):
    return lambda f: norm.pdf(y, f, noise**0.5)


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize(
    ("method", "integrand", "after"),
    [("expected_log_prob", log_density, float), ("log_predictive", density, np.log)],
)
def test_gaussian_equals_numerical_integration(method, integrand, after, n_outputs):
    likelihood = make_likelihood(n_outputs)
    y, mean, variance = make_case(n_outputs)
    result = getattr(likelihood, method)(y, mean, variance)
    assert result.shape == (N_SAMPLES, N_ROWS)
    noise = likelihood.variance.tolist()
    for s, b in np.ndindex(N_SAMPLES, N_ROWS):
        expected = sum(
            after(integrate(integrand(y[b, p].item(), noise[p]), mean[s, b, p].item(), variance[s, b, p].item()))
            for p in range(n_outputs)
        )
        assert result[s, b].item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("method", ["expected_log_prob", "log_predictive"])
def test_without_uncertainty_both_are_the_log_density(method):
    likelihood = make_likelihood(2)
    y, mean, _ = make_case(2)
    result = getattr(likelihood, method)(y, mean, torch.zeros_like(mean))
    expected = norm.logpdf(y, mean, likelihood.variance.detach().sqrt()).sum(-1)
    np.testing.assert_allclose(result.detach(), expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("floor", [1e-4, torch.tensor([1e-4, 1e-2])], ids=["shared", "per output"])
def test_the_noise_never_falls_below_its_floor(floor):
    likelihood = make_likelihood(2, floor)
    with torch.no_grad():
        likelihood.log_excess.fill_(-1e4)
    expected = torch.as_tensor(floor, dtype=torch.float32).double().expand(2)
    torch.testing.assert_close(likelihood.variance, expected, rtol=1e-12, atol=0)
    assert likelihood.expected_log_prob(*make_case(2)).isfinite().all()


def test_initial_noise():
    torch.testing.assert_close(Gaussian(2, excess=0.3, floor=0.1).variance, torch.full((2,), 0.4))


def labels_of(n_classes, n_rows=N_ROWS):
    """Targets in which every class comes up."""
    return torch.arange(n_rows, dtype=torch.float64)[:, None] % n_classes


def moderate(*shape):
    """Variances in [0.5, 1.5]."""
    return 0.5 + normal(*shape, seed=3).square().clamp(max=1.0)


def make_classes(n_classes):
    """Likelihood, targets, means and variances of a case with ``n_classes``."""
    likelihood = Bernoulli() if n_classes == 2 else RobustMax(n_classes, epsilon=EPSILON)
    shape = (N_SAMPLES, N_ROWS, likelihood.n_outputs)
    return likelihood, labels_of(n_classes), normal(*shape, seed=2), moderate(*shape)


def win_by_quad(mean, variance):
    """P(argmax f = c) for every class, one row."""
    deviation = np.sqrt(variance)

    def probability(c):
        others = np.arange(len(mean)) != c
        return integrate(lambda f: ndtr((f - mean[others]) / deviation[others]).prod(), mean[c], variance[c])

    return np.array([probability(c) for c in range(len(mean))])


def win_by_panels(mean, variance, c):
    """P(argmax f = c) by 16 Gauss-Legendre nodes in every piece in which each factor changes over one deviation."""
    deviation = np.sqrt(variance)
    origin = np.argmax(mean - 9 * deviation)  # where positions count from, so that the narrowest is not rounded away
    mean = mean - mean[origin]
    low, high = -9 * deviation[origin], mean[c] + 9 * deviation[c]
    if high <= low:
        return 0.0
    edges = np.append((mean[:, None] + deviation[:, None] * np.arange(-9, 10)).ravel(), [low, high]).clip(low, high)
    edges = np.unique(edges)[:, None]
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(edges, axis=0) / 2
    x = ((edges[:-1] + half * (1 + nodes)).ravel()[:, None] - mean) / deviation
    others = np.arange(len(mean)) != c
    density = norm.pdf(x[:, c]) / deviation[c]
    return float(((half * weights).ravel() * density) @ ndtr(x[:, others]).prod(-1))


def slopes_by_panels(mean, deviation, c):
    """Gradients of the former for means and deviations, by central differences."""
    slopes = np.zeros((2, len(mean)))
    for part, j in np.ndindex(slopes.shape):
        step = np.zeros_like(slopes)
        step[part, j] = h = 1e-3 * deviation[j]
        up, down, up2, down2 = (
            win_by_panels(mean + k * step[0], (deviation + k * step[1]) ** 2, c) for k in (1, -1, 2, -2)
        )
        slopes[part, j] = (8 * (up - down) - (up2 - down2)) / (12 * h)
    return slopes


#: Means, deviations and a class that Gauss-Hermite nodes are bad at, by what makes them so.
HARD = {
    "a step": ([0.0, 0.1, -20.0], [1.0, 1e-4, 1.0], 0),
    "a narrow one": ([0.0, 0.1, 0.3], [1.0, 0.1, 1.0], 0),
    "a spike at a node": ([0.0, 0.3469641570813560], [1.0, 1e-5], 0),
    "the narrow class itself": ([0.0, 0.1, 0.3], [1.0, 1e-4, 1.0], 1),
    "one below the other": ([0.0, 0.0, 3e-4], [1.0, 1e-6, 1e-4], 0),
    "equal ends": ([0.0, 5.0, 0.5, 0.05, 0.005], [100.0, 1.0, 0.1, 0.01, 0.001], 0),
    "many equal": ([0.0] * 26, [1.0] * 26, 3),
    "many equal and narrow": ([0.0] * 26, [1.0] + [0.3] * 25, 0),
    "hopeless": ([0.0, 100.0, 0.0], [1.0, 1e-3, 1.0], 0),
    "all scales": ([0.0, 0.1, -0.2, 0.3], [1e3, 1e-5, 1.0, 1e-2], 0),
}


def hard_case(name):
    if name in HARD:
        mean, deviation, c = HARD[name]
        return np.array(mean), np.array(deviation), c
    rng = np.random.default_rng(int(name))
    n_classes = (2, 3, 5, 10, 26)[int(name) % 5]
    deviation = 10.0 ** rng.uniform(-2.0, 1.5, n_classes) ** rng.integers(1, 3)
    mean = (rng.normal(size=n_classes), rng.normal(size=n_classes) * deviation, 5 * deviation)[int(name) % 3]
    return mean, deviation, int(rng.integers(n_classes))


def win_and_slopes(mean, deviation, c, dtype):
    """P_c and its gradients, from the expectation of a likelihood."""
    likelihood = RobustMax(len(mean))
    mean = torch.tensor(mean, dtype=dtype)[None, None].requires_grad_()
    deviation = torch.tensor(deviation, dtype=dtype)[None, None].requires_grad_()
    value = likelihood.expected_log_prob(torch.tensor([[float(c)]], dtype=dtype), mean, deviation.square())
    win = (value - likelihood.log_miss) / (likelihood.log_hit - likelihood.log_miss)
    slopes = torch.autograd.grad(win.sum(), (mean, deviation))
    assert win.dtype == dtype
    return win.item(), torch.stack(slopes)[:, 0, 0].double().numpy()


@pytest.fixture(params=[False, True], ids=["", "recorded"])
def recorded(request, monkeypatch):
    """Whether nothing may depend on values, as in a CUDA graph."""
    if request.param:
        for module in (argmax, classes, special):
            monkeypatch.setattr(module, "being_recorded", lambda x: True)


class Sizes(TorchFunctionMode):
    """Notes how many entries each tensor has that is computed meanwhile."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if isinstance(result, torch.Tensor):
            self.found.append(result.numel())
        return result


class TestClassification:
    """What holds for any number of classes."""

    @pytest.mark.parametrize("n_classes", [2, 3, 5])
    def test_probabilities_are_normalised(self, n_classes):
        likelihood, _, mean, variance = make_classes(n_classes)
        log_proba = likelihood.log_probabilities(mean, variance)
        assert log_proba.shape == (N_SAMPLES, N_ROWS, n_classes)
        np.testing.assert_allclose(log_proba.exp().sum(-1), 1.0, rtol=1e-14)

    @pytest.mark.parametrize("n_classes", [2, 3, 5])
    def test_probabilities_are_those_of_the_labels(self, n_classes):
        """Up to the error of quadrature, which normalising removes."""
        likelihood, _, mean, variance = make_classes(n_classes)
        log_proba = likelihood.log_probabilities(mean, variance)
        for c in range(n_classes):
            y = torch.full((N_ROWS, 1), float(c), dtype=torch.float64)
            np.testing.assert_allclose(log_proba[..., c], likelihood.log_predictive(y, mean, variance), atol=1e-4)

    @pytest.mark.parametrize("n_classes", [2, 3])
    @pytest.mark.parametrize("method", ["expected_log_prob", "log_predictive"])
    def test_gradcheck(self, method, n_classes):
        likelihood, y, mean, variance = make_classes(n_classes)
        call = lambda *moments: getattr(likelihood, method)(y, *moments)  # noqa: E731
        assert torch.autograd.gradcheck(call, (mean.requires_grad_(), variance.requires_grad_()))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("variance", [1e-12, 1.0, 1e6])
    @pytest.mark.parametrize("n_classes", [2, 3])
    def test_extremes_are_finite(self, n_classes, variance, dtype):
        likelihood = make_classes(n_classes)[0]
        values = torch.tensor([-1e3, -30.0, 0.0, 30.0, 1e3], dtype=dtype)
        mean = torch.cartesian_prod(*likelihood.n_outputs * [values]).reshape(1, -1, likelihood.n_outputs)
        for c in range(n_classes):
            y = torch.full((mean.shape[1], 1), float(c), dtype=dtype)
            moments = mean.clone().requires_grad_(), torch.full_like(mean, variance).requires_grad_()
            for method in (likelihood.expected_log_prob, likelihood.log_predictive):
                value = method(y, *moments)
                assert value.isfinite().all() and value.dtype == dtype
                assert all(slope.isfinite().all() for slope in torch.autograd.grad(value.sum(), moments))
        assert likelihood.log_probabilities(mean, torch.full_like(mean, variance)).isfinite().all()

    @pytest.mark.parametrize("n_classes", [2, 3, 5])
    @pytest.mark.parametrize("method", ["expected_log_prob", "log_predictive"])
    def test_single_precision_agrees(self, method, n_classes):
        likelihood, *case = make_classes(n_classes)
        results = []
        for dtype in (torch.float64, torch.float32):
            y, mean, variance = (part.to(dtype) for part in case)
            moments = (3 * mean).requires_grad_(), variance.requires_grad_()
            value = getattr(likelihood, method)(y, *moments)
            results.append((value, *torch.autograd.grad(value.sum(), moments)))
        for double, single in zip(*results, strict=True):
            torch.testing.assert_close(single, double.float(), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("n_classes", [2, 3, 5])
    def test_jensen(self, n_classes):
        likelihood, y, mean, variance = make_classes(n_classes)
        assert (likelihood.expected_log_prob(y, mean, variance) < likelihood.log_predictive(y, mean, variance)).all()

    @pytest.mark.parametrize("n_classes", [2, 7])
    def test_values_that_are_none(self, n_classes, recorded):
        """They are nobody's fault here, and do no harm to other rows."""
        likelihood, y, mean, variance = make_classes(n_classes)
        expected = likelihood.expected_log_prob(y, mean, 100 * variance)
        mean[0, 0], mean[0, 1] = np.nan, np.inf
        found = likelihood.expected_log_prob(y, mean, 100 * variance)
        torch.testing.assert_close(found[1], expected[1])
        assert found[0, 0].isnan()

    @pytest.mark.parametrize("n_classes", [2, 7])
    @pytest.mark.parametrize("ratio", [1.0, 1e4])
    def test_no_tensor_is_larger_than_announced(self, n_classes, ratio, monkeypatch):
        monkeypatch.setattr(argmax, "_FEW_NUMBERS", 0)
        likelihood, _, mean, variance = make_classes(n_classes)
        mean, variance = mean.repeat(1, 20, 1), variance.repeat(1, 20, 1)
        variance[..., -1] /= ratio
        with Sizes() as sizes:
            likelihood.log_probabilities(mean, variance)
            for each in (variance, torch.ones_like(variance)):  # with equal ones, nodes are those of Gauss and Hermite
                likelihood.log_predictive(labels_of(n_classes, n_rows=mean.shape[1]), mean, each)
        announced = 20 * N_ROWS * likelihood.numbers_per_row(N_SAMPLES)
        assert announced / 2 <= max(sizes.found) <= 2 * announced


class TestBernoulli:
    @pytest.mark.parametrize(
        ("method", "integrand", "after", "error"),
        [("expected_log_prob", log_ndtr, float, 1e-7), ("log_predictive", ndtr, np.log, 1e-10)],
    )
    def test_numerical_integration(self, method, integrand, after, error):
        likelihood, y, mean, variance = make_classes(2)
        result = getattr(likelihood, method)(y, mean, variance)
        assert result.shape == (N_SAMPLES, N_ROWS)
        for s, b in np.ndindex(N_SAMPLES, N_ROWS):
            sign = 1.0 if y[b] else -1.0
            expected = after(
                integrate(lambda f, sign=sign: integrand(sign * f), mean[s, b].item(), variance[s, b].item())
            )
            assert result[s, b].item() == pytest.approx(expected, abs=error)

    @pytest.mark.parametrize("variance", [1e-4, 1.0, 2.6, 10.0, 100.0, 1e4, 1e6])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_wide_distributions(self, dtype, variance, recorded):
        """Values and gradients to 1e-5 of what is larger, they or one, however sharply log Φ seems to bend."""
        deviation = np.float64(np.sqrt(variance).astype(np.float32))
        means = deviation * np.float64([-8.0, -6.4, -3.0, -0.5, 0.0, 1.0, 2.5, 4.0, 6.0, 7.0])
        means = means.astype(np.float32).astype(float)
        mean = torch.tensor(means, dtype=dtype)[None, :, None].requires_grad_()
        s = torch.tensor(deviation, dtype=dtype).expand(1, len(means), 1).clone().requires_grad_()
        value = Bernoulli().expected_log_prob(torch.ones(len(means), 1, dtype=dtype), mean, s.square())
        found = torch.stack([value[0], *(slope[0, :, 0] for slope in torch.autograd.grad(value.sum(), (mean, s)))])

        slope = lambda f: np.sqrt(2 / np.pi) / erfcx(-f / np.sqrt(2))  # noqa: E731
        nodes, weights = np.polynomial.legendre.leggauss(20)
        for m, *results in zip(means, *found.tolist(), strict=True):
            bend = np.geomspace(0.1, 1e5, 60)
            edges = np.unique(np.concatenate([m + deviation * np.arange(-12, 13), bend, -bend, [0.0]]))
            edges = edges[abs(edges - m) <= 12.001 * deviation][:, None]
            half = np.diff(edges, axis=0) / 2
            f = (edges[:-1] + half * (1 + nodes)).ravel()
            z = (f - m) / deviation
            w = (half * weights).ravel() * norm.pdf(z) / deviation
            for result, integrand in zip(results, (log_ndtr(f), slope(f), z * slope(f)), strict=True):
                expected = w @ integrand
                rounded = abs(m) if dtype == torch.float32 else 0.0  # derivatives are as large, and may cancel
                assert abs(result - expected) < 1e-5 * max(1.0, abs(expected), rounded), (m, result, expected)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("mean", [-1e3, -50.0, 50.0, 1e3])
    def test_far_from_the_boundary(self, mean, dtype):
        """Where log Φ(f) ≈ −f²/2 − log|f| − log √2π, or 0."""
        y, variance = torch.ones(1, 1, dtype=dtype), torch.full((1, 1, 1), 4.0, dtype=dtype)
        moments = torch.full((1, 1, 1), mean, dtype=dtype), variance
        expected = integrate(log_ndtr, mean, 4.0)
        assert Bernoulli().expected_log_prob(y, *moments).item() == pytest.approx(expected, rel=1e-6, abs=1e-30)
        expected = log_ndtr(mean / np.sqrt(5.0))
        assert Bernoulli().log_predictive(y, *moments).item() == pytest.approx(expected, rel=1e-6, abs=1e-30)

    @pytest.mark.parametrize("method", ["expected_log_prob", "log_predictive"])
    def test_without_uncertainty_both_are_the_log_probability(self, method):
        likelihood, y, mean, variance = make_classes(2)
        result = getattr(likelihood, method)(y, mean, torch.zeros_like(variance))
        expected = log_ndtr(torch.where(y == 1, mean, -mean)[..., 0].numpy())
        np.testing.assert_allclose(result, expected, rtol=1e-13)


class TestRobustMax:
    @pytest.mark.parametrize("n_classes", [3, 5])
    def test_numerical_integration(self, n_classes):
        likelihood, y, mean, variance = make_classes(n_classes)
        expected_log_prob = likelihood.expected_log_prob(y, mean, variance)
        log_predictive = likelihood.log_predictive(y, mean, variance)
        assert expected_log_prob.shape == log_predictive.shape == (N_SAMPLES, N_ROWS)
        hit, miss = 1 - EPSILON, EPSILON / (n_classes - 1)
        for s, b in np.ndindex(N_SAMPLES, N_ROWS):
            wins = win_by_quad(mean[s, b].numpy(), variance[s, b].numpy())
            assert wins.sum() == pytest.approx(1.0)
            win = wins[int(y[b])]
            assert log_predictive[s, b].exp().item() == pytest.approx(win * hit + (1 - win) * miss, abs=1e-4)
            expected = win * np.log(hit) + (1 - win) * np.log(miss)
            assert expected_log_prob[s, b].item() == pytest.approx(expected, abs=1e-4 * np.log(hit / miss))

    @pytest.mark.parametrize("n_classes", [3, 5])
    def test_brute_force(self, n_classes):
        """Draw functions' values, take the largest one's class, let it slip: to three standard errors."""
        n_draws, rng = 100_000, np.random.default_rng(0)
        likelihood, _, mean, variance = make_classes(n_classes)
        mean, variance = mean[0, 0], torch.linspace(0.5, 1.5, n_classes, dtype=torch.float64)
        f = mean.numpy() + np.sqrt(variance.numpy()) * rng.standard_normal((n_draws, n_classes))
        best = f.argmax(1)
        seen = (best + np.where(rng.random(n_draws) < EPSILON, rng.integers(1, n_classes, n_draws), 0)) % n_classes
        proba = likelihood.log_probabilities(mean[None, None], variance[None, None])[0, 0].exp().numpy()
        standard_error = np.sqrt(proba * (1 - proba) / n_draws)
        assert (np.abs(np.bincount(seen, minlength=n_classes) / n_draws - proba) < 3 * standard_error).all()

        for c in range(n_classes):
            log_prob = np.where(best == c, np.log(1 - EPSILON), np.log(EPSILON / (n_classes - 1)))
            y = torch.full((1, 1), float(c), dtype=torch.float64)
            expected_log_prob = likelihood.expected_log_prob(y, mean[None, None], variance[None, None])
            assert abs(expected_log_prob.item() - log_prob.mean()) < 3 * log_prob.std() / np.sqrt(n_draws)

    def test_two_classes_in_closed_form(self):
        """P(f₁ > f₀) = Φ((m₁ − m₀)/√(v₀ + v₁)), on the same side of ½ as a Bernoulli of the difference."""
        mean, variance = normal(1, 200, 2, seed=1), moderate(1, 200, 2)
        proba = RobustMax(2).log_probabilities(mean, variance).exp()[..., 1]
        difference = (mean[..., 1] - mean[..., 0]).unsqueeze(-1)
        win = ndtr((difference[..., 0] / variance.sum(-1).sqrt()).numpy())
        np.testing.assert_allclose(proba, 0.999 * win + 0.001 * (1 - win), atol=2e-6)
        bernoulli = Bernoulli().log_probabilities(difference, variance.sum(-1, keepdim=True)).exp()[..., 1]
        assert torch.equal(proba > 0.5, bernoulli > 0.5)

    def test_classes_are_alike(self):
        likelihood, y, mean, variance = make_classes(5)
        order = torch.tensor([3, 0, 4, 1, 2])
        proba = likelihood.log_probabilities(mean, variance)
        permuted = likelihood.log_probabilities(mean[..., order], variance[..., order])
        torch.testing.assert_close(permuted, proba[..., order], rtol=1e-10, atol=1e-12)
        place = torch.argsort(order)[y.long()].double()  # where the class of each row has gone
        moments = mean[..., order], variance[..., order]
        expected = likelihood.expected_log_prob(y, mean, variance)
        torch.testing.assert_close(likelihood.expected_log_prob(place, *moments), expected, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("n_classes", [2, 3, 10])
    def test_without_uncertainty_the_largest_wins(self, n_classes):
        likelihood, y = RobustMax(n_classes), labels_of(n_classes, n_rows=n_classes)
        mean = torch.eye(n_classes, dtype=torch.float64)[None]
        variance = torch.full_like(mean, 1e-12)
        hit, miss = np.log(1 - 1e-3), np.log(1e-3 / (n_classes - 1))
        for method in (likelihood.expected_log_prob, likelihood.log_predictive):
            np.testing.assert_allclose(method(y, mean, variance), hit, rtol=1e-12)
            np.testing.assert_allclose(method(y.roll(1, 0), mean, variance), miss, rtol=1e-12)
        expected = np.where(mean == 1, hit, miss)
        np.testing.assert_allclose(likelihood.log_probabilities(mean, variance), expected, rtol=1e-12)

    def test_the_oracle_is_right(self):
        """It agrees with adaptive integration, and with a normal distribution's orthants: of f_c − f_j for all j."""
        for name in ("a narrow one", "equal ends", "1", "2", "4"):
            mean, deviation, c = hard_case(name)
            others = np.arange(len(mean)) != c
            points = (mean[others][:, None] + deviation[others][:, None] * [-4, 0, 4]).ravel()
            expected = integrate(
                lambda f, m=mean[others], s=deviation[others]: ndtr((f - m) / s).prod(),
                mean[c],
                deviation[c] ** 2,
                points,
            )
            assert win_by_panels(mean, deviation**2, c) == pytest.approx(expected, abs=1e-9)
        mean, deviation = np.array([0.0, 0.1, 0.3]), np.array([1.0, 0.1, 1.0])
        for c in range(3):
            others = np.arange(3) != c
            covariance = deviation[c] ** 2 + np.diag(deviation[others] ** 2)
            expected = multivariate_normal.cdf(mean[c] - mean[others], np.zeros(2), covariance)
            assert win_by_panels(mean, deviation**2, c) == pytest.approx(expected, abs=1e-7)

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("name", [*HARD, *map(str, range(30))])
    def test_any_variances(self, name, dtype, recorded):
        """To the bounds that the class states."""
        mean, deviation, c = hard_case(name)
        if dtype == torch.float32:
            mean, deviation = (part.astype(np.float32).astype(float) for part in (mean, deviation))
        win, slopes = win_and_slopes(mean, deviation, c, dtype)
        assert win == pytest.approx(win_by_panels(mean, deviation**2, c), abs=5e-5)
        unit = np.hypot(deviation, deviation[c])
        unit[c] = np.delete(unit, c).min()
        np.testing.assert_allclose(slopes * unit, slopes_by_panels(mean, deviation, c) * unit, rtol=0, atol=2e-4)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("name", [*HARD, *map(str, range(30))])
    def test_all_classes_of_any_variances(self, name, dtype, recorded):
        """Nodes that all classes share are as precise as those of one class."""
        mean, deviation, _ = hard_case(name)
        mean, deviation = (torch.tensor(part, dtype=dtype) for part in (mean, deviation))
        found = argmax.probabilities_of_largest(mean[None], deviation[None])[0]
        assert found.dtype == dtype
        mean, variance = mean.double().numpy(), deviation.double().numpy() ** 2
        expected = [win_by_panels(mean, variance, c) for c in range(len(mean))]
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6)

    def test_gradients_of_all_classes(self):
        """They are those of the probabilities of single classes."""
        mean = normal(20, 3, seed=1).requires_grad_()
        deviation = normal(20, 3, seed=2).abs().add(0.1).requires_grad_()
        found = argmax.probabilities_of_largest(mean, deviation)
        for c in range(3):
            alone = argmax.probability_of_largest(mean, deviation, torch.full((20, 1), c))
            expected = torch.autograd.grad(alone.sum(), (mean, deviation))
            slopes = torch.autograd.grad(found[:, c].sum(), (mean, deviation), retain_graph=True)
            torch.testing.assert_close(slopes, expected, rtol=0, atol=1e-3)  # deviations are 0.1 or more

    @pytest.mark.slow
    def test_work_grows_in_proportion_to_the_number_of_classes(self):
        """Counted as entries of all tensors together; and 300 classes are as precise as few."""
        work = {}
        for n_classes in (30, 300):
            mean, variance = normal(1, 2, n_classes, seed=1), moderate(1, 2, n_classes)
            with Sizes() as sizes:
                found = RobustMax(n_classes).log_probabilities(mean, variance)[0, 0].exp()
            work[n_classes] = sum(sizes.found)
        assert work[300] < 12 * work[30]
        win = win_by_panels(mean[0, 0].numpy(), variance[0, 0].numpy(), c=7)
        assert found[7].item() == pytest.approx(0.999 * win + 0.001 / 299 * (1 - win), abs=1e-6)

    @pytest.mark.parametrize("ratio", [1e-8, 1e-4, 1e-2, 0.1, 0.3, 0.5, 1.0, 10.0, 1e8])
    def test_two_classes_of_any_variances(self, ratio, recorded):
        """In closed form, over all means that matter; rows of every kind in one call."""
        mean = torch.zeros(1, 101, 2, dtype=torch.float64)
        mean[..., 0] = torch.linspace(-7.0, 7.0, 101)
        variance = torch.tensor([1.0, ratio**2], dtype=torch.float64).expand_as(mean)
        likelihood = RobustMax(2)
        y = torch.zeros(101, 1, dtype=torch.float64)
        win = (likelihood.log_predictive(y, mean, variance).exp() - 0.001) / 0.998
        np.testing.assert_allclose(win[0], ndtr(mean[0, :, 0].numpy() / np.hypot(1.0, ratio)), rtol=0, atol=5e-5)

    @pytest.mark.parametrize("n_classes", [2, 3, 10])
    def test_probabilities_add_up_before_they_are_normalised(self, n_classes):
        likelihood = RobustMax(n_classes)
        mean, variance = normal(2, 50, n_classes, seed=1), normal(2, 50, n_classes, seed=2).mul(3).exp()
        classes = torch.arange(n_classes, dtype=torch.float64)
        total = sum(likelihood.log_predictive(c.expand(50, 1), mean, variance).exp() for c in classes)
        np.testing.assert_allclose(total, 1.0, rtol=0, atol=n_classes * 5e-5)

    def test_easy_rows_have_the_same_nodes_in_any_company(self):
        likelihood, y, mean, variance = make_classes(3)
        expected = likelihood.log_predictive(y, mean, torch.ones_like(mean))
        variance = torch.ones_like(mean)
        variance[0, 0, 1] = 1e-6
        found = likelihood.log_predictive(y, mean, variance)
        assert torch.equal(found[1], expected[1]) and torch.equal(found[0, 1:], expected[0, 1:])
        assert found[0, 0] != expected[0, 0]

    def test_gradcheck_of_hard_rows(self):
        mean, variance = normal(2, 3, 4, seed=1), torch.tensor([4.0, 1.0, 0.04, 0.01], dtype=torch.float64)
        call = lambda *moments: RobustMax(4).expected_log_prob(labels_of(4), *moments)  # noqa: E731
        variance = variance.expand(2, 3, 4).clone().requires_grad_()
        assert torch.autograd.gradcheck(call, (mean.requires_grad_(), variance), atol=1e-3)


class TestTempered:
    @staticmethod
    def make(n_classes, log_square=0.0):
        tempered = Tempered(Bernoulli() if n_classes == 2 else RobustMax(n_classes)).double()
        tempered.log_square.fill_(log_square)
        return tempered

    def test_of_one_is_the_probit_link_itself(self):
        y, mean, variance = make_case(1)
        y = (y > 0).double()
        torch.testing.assert_close(
            self.make(2).log_predictive(y, mean, variance), Bernoulli().log_predictive(y, mean, variance)
        )

    @pytest.mark.parametrize("n_classes", [2, 4])
    @pytest.mark.parametrize("log_square", [-2.0, 1.0])
    def test_is_what_sampling_says(self, n_classes, log_square):
        tempered = self.make(n_classes, log_square)
        n_outputs, n_draws = tempered.n_outputs, 200_000
        mean, variance = normal(1, 2, n_outputs, seed=1), 0.1 + normal(1, 2, n_outputs, seed=2).square()
        rng = np.random.default_rng(0)
        f = mean.numpy() + np.sqrt(variance.numpy()) * rng.standard_normal((n_draws, 2, n_outputs))
        f = f + np.exp(0.5 * log_square) * rng.standard_normal(f.shape)
        winner = (f[..., 0] > 0).astype(int) if n_classes == 2 else f.argmax(-1)
        expected = np.stack([np.mean(winner == label, axis=0) for label in range(n_classes)], axis=-1)
        found = tempered.log_probabilities(mean, variance).exp()[0]
        np.testing.assert_allclose(found, expected, atol=0.005)
        for label in range(n_classes):
            y = torch.full((2, 1), float(label), dtype=torch.float64)
            np.testing.assert_allclose(tempered.log_predictive(y, mean, variance)[0].exp(), found[:, label], atol=2e-3)

    @pytest.mark.parametrize("n_classes", [2, 4])
    def test_response_averages_to_the_prediction(self, n_classes):
        tempered = self.make(n_classes, -1.0)
        mean, variance = normal(1, 1, tempered.n_outputs, seed=1), torch.full((1, 1, tempered.n_outputs), 0.5).double()
        f = mean + variance.sqrt() * normal(20_000, 1, tempered.n_outputs, seed=3)
        found = tempered.response(f).mean(0)
        np.testing.assert_allclose(found, tempered.log_probabilities(mean, variance).exp()[0], atol=0.01)

    @pytest.mark.parametrize("n_classes", [2, 4])
    def test_hot_makes_classes_alike(self, n_classes):
        tempered = self.make(n_classes, 25.0)
        mean = normal(1, 3, tempered.n_outputs)
        found = tempered.log_probabilities(mean, torch.ones_like(mean)).exp()
        np.testing.assert_allclose(found, 1 / n_classes, atol=1e-3)
