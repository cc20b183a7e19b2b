"""Grades: the cumulative probit model against SciPy and integrals, their distributions, and estimators of them."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from helpers import REGRESSORS, any_options, name_of, normal
from scipy.integrate import quad
from scipy.stats import norm, rv_discrete
from sklearn.model_selection import GridSearchCV

from skdgp import AVDGPRegressor, SOLVEGPRegressor
from skdgp.distributions import GradeDistribution
from skdgp.gp.grades import Ordinal
from skdgp.metrics import crps_scorer, pit_values

SHALLOW = {"n_inducing": 10, "n_orthogonal": 0, "max_iter": 10, "random_state": 0}

CUTS = np.array([-1.0, 0.2, 0.9])


def ratings(n_rows=200, seed=0, n_outputs=None):
    """Rows, and grades 2, 3, 4 and 6 with the probabilities of an ordinal probit model, which are the last result."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    f = np.sin(2 * X[:, 0])
    below = norm.cdf((CUTS - f[:, None]) / 0.5)
    p = np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=(0, 1)))
    if n_outputs:
        f = np.stack(n_outputs * [f], axis=1)
    number = np.digitize(f + 0.5 * rng.normal(size=f.shape), CUTS)
    return X, np.array([2.0, 3.0, 4.0, 6.0])[number], p


@torch.no_grad()
def ready(n_outputs=1, variance=0.3, dtype=torch.float64):
    """A likelihood with cut points near ``CUTS`` and this variance of the noise."""
    likelihood = Ordinal(n_outputs, grades=[2, 3, 4, 6])
    likelihood.learn_units(np.full((4, n_outputs), 2.0), normalize=True)
    likelihood.first.fill_(CUTS[0])
    likelihood.last.fill_(CUTS[-1])
    likelihood.log_gaps.copy_(torch.from_numpy(np.log(np.diff(CUTS))))
    likelihood.log_scale.fill_(0.5 * np.log(variance - 0.01))
    return likelihood.to(dtype)


def numbers(*values):
    return [torch.full((1, 1, 1), value, dtype=torch.float64) for value in values]


class TestLikelihood:
    @torch.no_grad()
    @pytest.mark.parametrize("grade", [0, 1, 3])
    @pytest.mark.parametrize(("mean", "variance"), [(0.0, 0.4), (-2.0, 0.05), (1.5, 3.0)])
    def test_is_the_probit_model(self, grade, mean, variance):
        likelihood = ready()
        cuts = np.array([-np.inf, *likelihood.cuts[0].tolist(), np.inf])
        np.testing.assert_allclose(cuts[1:-1], CUTS, atol=3e-3)
        y, m, v = numbers(float(grade), mean, variance)

        def probability(f, k=grade):
            return np.diff(norm.cdf((cuts[[k, k + 1]] - f) / 0.3**0.5)).item()

        def expected(function):
            points = np.clip(cuts[1:-1], mean - 9 * variance**0.5, mean + 9 * variance**0.5)
            ends = mean - 9 * variance**0.5, mean + 9 * variance**0.5
            return quad(lambda f: function(f) * norm.pdf(f, mean, variance**0.5), *ends, points=points, limit=200)[0]

        density = np.log(expected(probability))
        assert likelihood.log_predictive(y[0], m, v).item() == pytest.approx(density, rel=1e-6)
        dist = likelihood.predictive(m, v, torch.zeros(1, 1), latent=False)
        assert dist.logpmf(likelihood.grades[grade]).item() == pytest.approx(density, rel=1e-6)
        np.testing.assert_allclose(dist.probabilities.sum(-1), 1.0)

        def mean_grade(f):
            return sum(grade * probability(f, k) for k, grade in enumerate(likelihood.grades))

        first, second = expected(mean_grade), expected(lambda f: mean_grade(f) ** 2)
        assert likelihood.mean_response(m, v, torch.zeros(1, 1)).item() == pytest.approx(first, rel=1e-6)
        assert dist.mean.item() == pytest.approx(first, rel=1e-6)
        latent = likelihood.predictive(m, v, torch.zeros(1, 1), latent=True)
        assert latent.mean.item() == pytest.approx(first, rel=1e-5)
        assert latent.var.item() == pytest.approx(second - first**2, rel=1e-3)
        f = norm.ppf(0.3, mean, variance**0.5)
        assert latent.cdf(mean_grade(f)).item() == pytest.approx(0.3, abs=0.01)

    @torch.no_grad()
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_far_function_values_have_finite_log_probabilities(self, dtype):
        likelihood = ready(dtype=dtype)
        y = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=dtype)
        m, v = torch.tensor([-300.0, -20.0, 0.0, 20.0, 300.0], dtype=dtype), 0.1
        m = m[:, None, None].expand(5, 4, 1).clone()
        found = likelihood.log_predictive(y, m, torch.full_like(m, v))
        assert found.isfinite().all() and likelihood.expected_log_prob(y, m, torch.full_like(m, v)).isfinite().all()
        ends = np.array([-np.inf, *likelihood.cuts[0].tolist(), np.inf])
        expected = norm.logcdf((ends[1] + 20) / 0.4**0.5), norm.logsf((ends[3] + 20) / 0.4**0.5)
        np.testing.assert_allclose([found[1, 0], found[1, 3]], expected, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(found[1, 1], norm.logsf((ends[1] + 20) / 0.4**0.5), rtol=1e-3)

    def test_gradients(self):
        likelihood, y = ready(2), torch.tensor([[0.0, 3.0], [1.0, 2.0]]).double()
        names = ("log_scale", "log_gaps")
        values = [getattr(likelihood, name).detach().clone().requires_grad_() for name in names]
        mean, variance = normal(2, 2, 2).requires_grad_(), (0.1 + normal(2, 2, 2, seed=1).square()).requires_grad_()
        for method in ("expected_log_prob", "log_predictive"):

            def value(mean, variance, *values, method=method):
                likelihood._parameters.update(zip(names, values, strict=True))
                return getattr(likelihood, method)(y, mean, variance)

            assert torch.autograd.gradcheck(value, (mean, variance, *values), atol=1e-6)

    @torch.no_grad()
    def test_initial_probabilities_are_shares(self):
        likelihood, y = Ordinal(1).double(), np.repeat([1.0, 2.0, 5.0], [100, 200, 100])[:, None]
        likelihood.learn_units(y, normalize=True)
        encoded = torch.from_numpy(likelihood.encode(y))
        likelihood.initialise(encoded, torch.ones(400))
        np.testing.assert_allclose(likelihood.cuts[0], norm.ppf([0.25, 0.75]), atol=0.01)
        z = norm.expect(lambda z: z, lb=norm.ppf(0.75), ub=np.inf) / 0.25
        score = likelihood.regressands(encoded)
        np.testing.assert_allclose(score[[0, 200, 399], 0], np.array([-z, 0.0, z]) / (0.5 * z**2), atol=0.02)
        likelihood.initialise(encoded, torch.from_numpy((y[:, 0] == 1) * 2.0 + (y[:, 0] == 2)))  # as copies
        np.testing.assert_allclose(likelihood.cuts[0, 0], 0.0, atol=0.01)

    @torch.no_grad()
    def test_draws_have_the_probabilities(self):
        likelihood = ready(2)
        f = np.array([[-0.5, 1.0]])
        draws = likelihood.draw(np.repeat(f, 40_000, axis=0), np.random.RandomState(0))
        dist = likelihood.predictive(torch.from_numpy(f)[None], torch.zeros(1, 1, 2), torch.zeros(1, 1), latent=False)
        shares = (draws[..., None] == dist.grades).mean(0)
        np.testing.assert_allclose(shares, dist.probabilities[0], atol=0.01)


class TestDistribution:
    @pytest.fixture
    def dist(self):
        p = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 5))
        p[:, 2, 3] = 0.0
        return GradeDistribution([1, 2, 4, 7], p / p.sum(-1, keepdims=True), [0.2, 0.5, 0.3])

    def test_is_that_of_scipy(self, dist):
        for row, p in enumerate(dist.probabilities):
            one, exact = dist[row], rv_discrete(values=([1, 2, 4, 7], p))
            assert (one.mean.item(), one.std.item()) == pytest.approx((exact.mean(), exact.std()))
            points = np.array([[0.0], [1.0], [1.5], [4.0], [6.9], [7.0], [9.0]])
            np.testing.assert_allclose(one.cdf(points)[:, 0], exact.cdf(points)[:, 0], atol=1e-12)
            np.testing.assert_allclose(one.pmf(points)[[1, 3, 5], 0], exact.pmf([1, 4, 7]))
            assert (one.pmf(points)[[0, 2, 4, 6]] == 0).all()
            q = np.array([[1e-9], [0.1], [0.5], [0.9]])
            np.testing.assert_array_equal(one.ppf(q)[:, 0], exact.ppf(q)[:, 0])
            assert one.ppf(0.0)[0] == 1.0 and one.ppf(1.0)[0] == (4.0 if row == 2 else 7.0)  # the highest possible one
        assert (dist.pmf(4.0) == dist.pdf(4.0)).all() and (dist.logpmf(4.0) == np.log(dist.pmf(4.0))).all()

    @pytest.mark.parametrize("y", [-2.0, 1.0, 3.3, 4.0, 7.0, 11.0])
    def test_scores_are_integrals(self, dist, y):
        for row in range(3):
            ends, grades = (-3.0, 12.0), [1, 2, 4, 7, y]
            score = quad(lambda t: (dist[row].cdf([t])[0] - (t >= y)) ** 2, *ends, points=grades, limit=100)[0]  # noqa: B023
            assert dist[row].crps([y])[0] == pytest.approx(score, rel=1e-6)

    def test_draws_rows_and_mixtures(self, dist):
        draws = dist.rvs(40_000, random_state=0)
        shares = (draws[..., None] == dist.grades).mean(0)
        np.testing.assert_allclose(shares, dist.probabilities, atol=0.02)
        np.testing.assert_array_equal(dist[:2].rvs(5, random_state=0), dist.rvs(5, random_state=0)[:, :2])
        again = dist.concatenate([dist[:2], dist[2:]])
        for other in (again, dist.mixture([dist, dist]), pickle.loads(pickle.dumps(dist))):
            np.testing.assert_allclose(other.probabilities, dist.probabilities)
        with pytest.raises(ValueError, match="cannot be joined"):
            dist.mixture([dist, GradeDistribution([1, 2, 4, 8], dist.component_probabilities, dist.weights)])
        several = GradeDistribution([1, 2], np.full((1, 3, 2, 2), 0.5), [1.0])
        assert (
            several.shape == (3, 2) and several[:, 1].mean.tolist() == 3 * [1.5] and several.rvs(4).shape == (4, 3, 2)
        )

    def test_transforms_are_uniform(self, dist):
        many = dist.concatenate(4000 * [dist])
        transforms = many.pit(many.rvs(random_state=0))
        np.testing.assert_allclose(np.quantile(transforms, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)

    @pytest.mark.parametrize(
        ("grades", "p", "message"),
        [
            ([2, 1], [[[0.5, 0.5]]], "grades must be whole numbers in ascending order, got"),
            ([1, 1.5], [[[0.5, 0.5]]], "grades must be whole numbers in ascending order, got"),
            ([1, 2, 3], [[[0.5, 0.5]]], r"Probabilities of shape \(S, n, K\) or .* got \(1, 1, 2\), \(1,\) and 3"),
            ([1, 2], [[[0.5, 0.6]]], "Probabilities of grades, and weights, must be non-negative"),
            ([1, 2], [[[1.5, -0.5]]], "Probabilities of grades, and weights, must be non-negative"),
        ],
    )
    def test_what_is_no_distribution(self, grades, p, message):
        with pytest.raises(ValueError, match=message):
            GradeDistribution(grades, p, [1.0])


class TestEstimators:
    @pytest.mark.slow
    @pytest.mark.parametrize("n_estimators", [1, 3])
    def test_probabilities_are_nearly_the_true_ones(self, n_estimators):
        X, y, p = ratings(900)
        options = {"n_estimators": n_estimators, "random_state": 0}
        model = SOLVEGPRegressor(likelihood="ordinal", **options).fit(X[:400], y[:400])
        dist = model.predict_dist(X[400:])
        assert dist.grades.tolist() == [2.0, 3.0, 4.0, 6.0]
        number = np.searchsorted(dist.grades, y[400:])
        best = np.log(p[400:][np.arange(500), number]).mean()
        assert best - 0.05 < dist.logpmf(y[400:]).mean() < best + 0.02
        np.testing.assert_allclose(dist.probabilities, p[400:], atol=0.25)
        mean = p[400:] @ dist.grades
        assert np.abs(model.predict(X[400:]) - mean).mean() < 0.15
        np.testing.assert_allclose(np.histogram(pit_values(y[400:], dist), 4)[0] / 500, 0.25, atol=0.07)

    @any_options
    @pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
    def test_several_targets_chunks_and_search(self, tiny):
        X, y, _ = ratings(80, n_outputs=2)
        y[:, 1] -= 1  # has grades that the other one lacks
        model = tiny(likelihood="ordinal", n_estimators=2, base="auto").fit(X, y)
        dist = model.predict_dist(X)
        assert dist.shape == (80, 2) and np.isfinite(dist.logpmf(y)).all() and len(dist.grades) == 6
        np.testing.assert_allclose(model.predict_dist(X, latent=True).mean, model.predict(X), rtol=1e-4)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_interval(X), model.predict_interval(X))
        streamed = tiny(likelihood="ordinal", base="auto").partial_fit(X, y[:, 0]).partial_fit(X, y[:, 0])
        assert np.isfinite(streamed.predict_dist(X).logpmf(y[:, 0])).all()
        search = GridSearchCV(tiny(), {"likelihood": ["ordinal", "gaussian"]}, scoring=crps_scorer, cv=2)
        assert np.isfinite(search.fit(X, y[:, 0]).cv_results_["mean_test_score"]).all()

    def test_grades_that_no_row_has(self):
        X, y, _ = ratings(60)
        model = SOLVEGPRegressor(likelihood="ordinal", **SHALLOW).fit(X, y)
        assert (model.predict_dist(X).pmf(5.0) == 0).all()
        model.set_params(likelihood=partial(Ordinal, grades=range(1, 8))).fit(X, y)
        dist = model.predict_dist(X)
        assert dist.grades.tolist() == [*range(1, 8)] and (dist.pmf(5.0) > 0).all() and (dist.pmf(5.0) < 0.2).all()
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda y: np.where(np.arange(30) == 3, 2.5, y), r"Grades are whole numbers, but y holds \[2.5\] in row 3"),
            (lambda y: 0 * y + 2, "is for 2 to 100 grades, but y holds 1: give rows of another one"),
            (lambda y: 100.0 * np.arange(len(y)).repeat(1), None),
        ],
    )
    def test_targets_that_are_no_grades(self, change, message):
        X, y, _ = ratings(30)
        model = AVDGPRegressor((), max_iter=2, n_estimators=1, likelihood="ordinal")
        if message is None:
            X, y = np.repeat(X, 4, axis=0), np.arange(120.0)
            message = "is for 2 to 100 grades, but y holds 120: choose a likelihood of numbers, or of counts"
        else:
            y = change(y)
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)

    def test_unknown_grades_are_refused(self):
        X, y, _ = ratings(30)
        other = y.copy()
        other[3] = 5.0
        model = AVDGPRegressor((), max_iter=2, n_estimators=1, likelihood="ordinal")
        message = r"The model knows the grades \[2, 3, 4, 6\], but y holds \[5.0\] in row 3: leave out the row, or name"
        with pytest.raises(ValueError, match=message):
            model.fit(X, y, X_val=X, y_val=other)
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y).partial_fit(X, other)

    @pytest.mark.parametrize("options", [{"target_transform": "auto"}, {"trend": "auto"}])
    def test_what_is_about_function_values_is_refused(self, options):
        X, y, _ = ratings(30)
        with pytest.raises(ValueError, match="does not go with likelihood='ordinal', since"):
            SOLVEGPRegressor(likelihood="ordinal", **options).fit(X, y)
