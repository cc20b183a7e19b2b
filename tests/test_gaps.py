"""Rows with missing cells in training: they count less where these cells matter, and noise is that of complete rows."""

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import REGRESSORS, name_of, normal, predictor_of
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import Ridge

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.estimators._gaps import batches_of
from skdgp.estimators._rows import more_rows
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.noise import Contaminated
from skdgp.gp.propagation import make_propagation
from skdgp.gp.units import Units
from skdgp.inference import blending, gaps
from skdgp.inference.base import base_for
from skdgp.inference.batches import Batch, as_of_complete
from skdgp.inference.collapsed import best_of
from skdgp.inference.gaps import learn_gaps
from skdgp.inference.kernel_search import KernelSearch
from skdgp.inference.stack import View

NOISE = 0.1  # deviation

QUICK = {"max_iter": 20, "n_estimators": 1, "random_state": 0}

every_regressor = pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
every_class = pytest.mark.parametrize("kind", [SOLVEGPRegressor, DSDGPRegressor, AVDGPRegressor])


def wave(n_rows, seed=0, share=0.05, scale=1.0):
    """Rows of which cells are missing at random, their targets, and which rows are complete."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 3))
    y = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] / 2 + NOISE * rng.normal(size=n_rows)
    X[rng.random(X.shape) < share] = np.nan
    return X, scale * y, ~np.isnan(X).any(axis=1)


def likelihood_of(model) -> Gaussian:
    return predictor_of(model).models[0].likelihood


def with_ratios(per_gap=(3.0, 0.5), n_rows=40):
    """A likelihood that knows what missing cells add, the variances of some rows over these cells, and weights."""
    rng = np.random.default_rng(0)
    likelihood, n_outputs = Gaussian(len(per_gap), excess=0.2).double().requires_grad_(False), len(per_gap)
    variance = torch.from_numpy(np.where(rng.random((n_rows, 1)) < 0.5, 0.0, rng.random((n_rows, n_outputs))))
    weight = torch.from_numpy(1.0 + rng.integers(3, size=n_rows))
    likelihood.learn_ratios(per_gap, likelihood.variance, variance, weight)
    return likelihood, variance, weight


class TestLikelihood:
    def test_ratios(self):
        likelihood, variance, weight = with_ratios()
        y = normal(40, 2)
        rows, counted = likelihood.with_ratios(y, variance, weight)
        added = 3.0 * variance[:, 0] + 0.5 * variance[:, 1]
        np.testing.assert_allclose(rows[:, 2], likelihood.plain_ratio * (1 + added), rtol=1e-12)
        assert torch.equal(counted, weight)
        assert likelihood.precise_weights(rows, weight).sum().item() == pytest.approx(weight.sum().item())
        assert torch.equal(likelihood.regressands(rows), y)

    def test_rows_of_much_more_noise_count_less_often(self):
        likelihood, variance, weight = with_ratios((50.0, 50.0))
        rows, counted = likelihood.with_ratios(normal(40, 2), variance, weight)
        added = 50.0 * variance.sum(1)
        assert (added > 10).any() and (added < 10).any()
        np.testing.assert_allclose(rows[:, 2], likelihood.plain_ratio * (1 + added.clamp(max=10.0)), rtol=1e-12)
        np.testing.assert_allclose(counted, weight / (added / 10.0).clamp(min=1.0), rtol=1e-12)
        assert likelihood.precise_weights(rows, counted).sum().item() == pytest.approx(counted.sum().item())

    def test_a_blend_compares_functions_with_targets_alone(self):
        likelihood, variance, weight = with_ratios()
        y = normal(40, 2)
        rows, _ = likelihood.with_ratios(y, variance, weight)
        density = SimpleNamespace(likelihood=likelihood, y=rows, row_weight=weight / weight.sum(), h=y + 1, g=y - 1)
        density.numbers = lambda: blending._Density.numbers(density)
        assert torch.equal(density.numbers(), y)
        assert blending._Density.gain_of_smaller_errors(density, 0.85) > 0

    def test_densities_have_the_variance_of_the_row(self):
        likelihood, variance, weight = with_ratios()
        rows, _ = likelihood.with_ratios(normal(40, 2), variance, weight)
        mean, of_function = normal(3, 40, 2), normal(3, 40, 2)
        of_function = 0.1 + of_function.square()
        own = likelihood.variance.numpy() * rows[:, 2:].numpy()
        y = rows[:, :2].numpy()
        predictive = norm.logpdf(y, mean.numpy(), np.sqrt(of_function.numpy() + own)).sum(-1)
        np.testing.assert_allclose(likelihood.log_predictive(rows, mean, of_function), predictive, rtol=1e-10)
        expected = (norm.logpdf(y, mean.numpy(), np.sqrt(own)) - 0.5 * of_function.numpy() / own).sum(-1)
        np.testing.assert_allclose(likelihood.expected_log_prob(rows, mean, of_function), expected, rtol=1e-10)
        f = likelihood.regressands(rows) + 0.1
        squares = likelihood.precise_weights(rows, weight)[:, None] * ((rows[:, :2] - f) ** 2 / likelihood.variance)
        same_noise = -0.5 * (
            squares + likelihood.precise_weights(rows, weight)[:, None] * (2 * np.pi * likelihood.variance).log()
        )
        exact = weight.numpy() @ norm.logpdf(y, f.numpy(), np.sqrt(own)).sum(-1)
        assert same_noise.sum().item() + likelihood.log_precise(rows, weight) == pytest.approx(exact)

    def test_rows_to_predict_have_the_noise_of_complete_rows(self):
        likelihood, _, _ = with_ratios()
        complete = likelihood.variance.numpy() * likelihood.plain_ratio
        np.testing.assert_allclose(likelihood.noise_variance(), complete, rtol=1e-12)
        mean, variance = torch.zeros(1, 5, 2).double(), 0.3 * torch.ones(1, 5, 2).double()
        dist = likelihood.predictive(mean, variance, torch.zeros(1, 1).double(), latent=False)
        np.testing.assert_allclose(dist.var, np.tile(0.3 + complete, (5, 1)), rtol=1e-12)
        drawn = likelihood.draw(np.zeros((100_000, 2)), np.random.RandomState(0))
        np.testing.assert_allclose(drawn.var(axis=0), complete, rtol=0.02)

    def test_a_bound_with_all_rows_as_inducing_points_is_the_evidence(self):
        likelihood, variance, _ = with_ratios((2.0,))
        X, y = normal(40, 2), normal(40, 1)
        likelihood.learn_ratios((2.0,), (1.0,), variance, torch.ones(40).double())
        kernel = StationaryKernel("rbf", 2).double()
        layer = GlobalLayer(kernel, ZeroMean(1), X, X.new_zeros(1, 40), covariance="full", whiten=True, jitter=1e-10)
        propagation = make_propagation("monte_carlo", (), 1, torch.Generator().manual_seed(0)).double()
        model = DeepGP([layer.double()], propagation, likelihood).requires_grad_(False)
        rows = Batch(X, *likelihood.with_ratios(y, variance, torch.ones(40).double()))
        with torch.no_grad():
            K = kernel.covariance(X, X).reshape(40, 40).numpy()
        noise = np.diag((likelihood.variance * rows.y[:, 1]).numpy())
        exact = multivariate_normal.logpdf(y[:, 0].numpy(), np.zeros(40), K + noise)
        assert best_of(model, rows)[1] == pytest.approx(exact, rel=1e-6)

    def test_noise_of_least_squares_is_that_of_complete_rows(self):
        likelihood, variance, weight = with_ratios((4.0,))
        rows = Batch(normal(40, 2), *likelihood.with_ratios(normal(40, 1), variance, weight))
        there = as_of_complete(likelihood, rows)
        np.testing.assert_allclose(there.weight, weight / (1 + 4.0 * variance[:, 0]), rtol=1e-12)

    def test_rows_to_predict_that_lack_a_category(self):
        likelihood, gaps, weight = with_ratios()
        likelihood.units = Units([1.0, 0.0], [2.0, 3.0])
        lacking = (np.arange(40)[:, None] % np.array([2, 3]) == 0).astype(float)
        gaps = torch.cat([gaps, torch.from_numpy(lacking)], dim=1)
        likelihood.learn_ratios((3.0, 0.5, 2.0, 7.0), (0.1, 0.4), gaps, weight)
        assert likelihood.at({}) is likelihood
        complete = likelihood.noise_variance()
        expected = complete + (lacking @ [2.0, 7.0])[:, None] * (0.1, 0.4) * np.square([2.0, 3.0])
        there = likelihood.at({"lacking": lacking})
        mean, variance = torch.zeros(1, 40, 2).double(), 0.3 * torch.ones(1, 40, 2).double()
        log_weight, square = torch.zeros(1, 1).double(), np.square([2.0, 3.0])
        dist = there.predictive(mean, variance, log_weight, latent=False)
        np.testing.assert_allclose(dist.var, 0.3 * square + expected, rtol=1e-12)
        latent = there.predictive(mean, variance, log_weight, latent=True)
        np.testing.assert_allclose(latent.var, np.tile(0.3 * square, (40, 1)), rtol=1e-12)
        rng = np.random.RandomState(0)
        drawn = np.stack([there.draw(np.zeros((40, 2)), rng) for _ in range(10_000)])
        np.testing.assert_allclose(drawn.var(axis=0), expected, rtol=0.1)
        wide = Contaminated(likelihood, 0.25, torch.tensor([1.0, 2.0]).double())
        more = wide.at({"lacking": lacking}).predictive(mean, variance, log_weight, latent=False)
        plain = wide.predictive(mean, variance, log_weight, latent=False)
        np.testing.assert_allclose(more.var - plain.var, expected - complete, rtol=1e-9, atol=1e-12)


class TestLearning:
    def rows(self, n_rows=400, factor=1.0, n_outputs=1):
        """Rows of which a third vary by ``factor`` times known variances more than the noise, and these variances."""
        rng = np.random.default_rng(0)
        X = rng.uniform(-2, 2, (n_rows, 2))
        variance = np.where(rng.random((n_rows, 1)) < 0.3, 0.2, 0.0) * rng.random((n_rows, 1))
        noise = np.sqrt(NOISE**2 + factor * variance) * rng.normal(size=(n_rows, n_outputs))
        variance = np.tile(variance, (1, n_outputs))
        return Batch.of(X, np.sin(X[:, [0]]) + noise, dtype=np.float64), torch.from_numpy(variance)

    @pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_what_cells_add(self, factor, n_outputs):
        rows, variance = self.rows(factor=factor, n_outputs=n_outputs)
        found = learn_gaps(rows, None, lambda model: variance)[0]
        np.testing.assert_allclose(found.per_gap, factor / NOISE**2 / n_outputs, rtol=0.35)

    def test_weights_count_rows(self):
        rows, variance = self.rows(120)
        weight = 1 + np.arange(120) % 3
        twice = np.repeat(np.arange(120), weight)
        weighted = Batch(rows.X, rows.y, torch.from_numpy(weight.astype(float)))
        repeated = rows.rows(torch.from_numpy(twice))
        one, other = (
            learn_gaps(weighted, None, lambda model: variance)[0],
            learn_gaps(repeated, None, lambda model: variance[twice])[0],
        )
        np.testing.assert_allclose(one.per_gap, other.per_gap, rtol=0.02)

    def test_draws_say_what_few_rows_cannot(self):
        rows, variance = self.rows(60)
        only = torch.zeros_like(variance)
        only[:2] = 1.0
        found = learn_gaps(rows, None, lambda model: only)[0]
        assert 0.05 < found.per_gap.item() * NOISE**2 < 5

    @pytest.mark.parametrize("larger", [1.0, 8.0, 300.0])
    @pytest.mark.parametrize("n_outputs", [1, 2])
    def test_what_a_missing_category_adds(self, larger, n_outputs):
        rows, of_cells = self.rows(800, 0.0, n_outputs)
        rng, lacking = np.random.default_rng(1), np.zeros((800, 2))
        lacking[::5, 0], lacking[1::5, 1] = 1.0, 1.0
        more = torch.from_numpy(lacking[:, [0]] * NOISE * np.sqrt(larger) * rng.normal(size=(800, n_outputs)))
        rows = Batch(rows.X, rows.y + more, rows.weight)
        found = learn_gaps(rows, None, lambda model: torch.zeros_like(of_cells), torch.from_numpy(lacking))[0]
        first, second = found.per_gap[n_outputs:].tolist()
        assert first == pytest.approx(larger, rel=0.35) and second < 0.5

    def test_few_rows_without_a_category_count_like_others(self):
        rows, of_cells = self.rows(120, 0.0)
        lacking = torch.zeros(120, 1).double()
        lacking[:2] = 1.0
        rows.y[:2] += 2 * NOISE * torch.tensor([[1.0], [-1.0]])
        found = learn_gaps(rows, None, lambda model: 0 * of_cells, lacking)[0]
        assert found is None or found.per_gap[1] < 2.0  # most likely is about 4

    @pytest.mark.parametrize("gap", [np.nan, None])
    def test_kernels_are_compared_once_in_a_fit(self, gap, monkeypatch):
        searches = []
        best = KernelSearch.best
        monkeypatch.setattr(KernelSearch, "best", lambda search: searches.append(len(search.rows)) or best(search))
        X, y = pd.DataFrame(normal(150, 2).numpy()), normal(150, seed=1).numpy()
        X[2] = np.where(X[0] > 0, "a", "b")
        X.iloc[::4, 2 if gap is None else 0] = gap
        SOLVEGPRegressor(n_neighbors=0, random_state=0).fit(X.set_axis(list("abc"), axis=1), X[1] + 0.1 * y)
        assert len(searches) == 1

    def test_gaps_that_do_not_matter(self):
        rows, variance = self.rows(factor=0.0)
        assert learn_gaps(rows, None, lambda model: 1e-5 * variance)[0] is None

    def test_a_matrix_without_a_factor(self, monkeypatch):
        def failing(*args):
            raise np.linalg.LinAlgError

        monkeypatch.setattr(gaps, "fit_base", failing)
        X, y, _ = wave(60)
        with pytest.warns(RuntimeWarning, match="Rows with missing cells count as much as complete rows"):
            model = SOLVEGPRegressor(base=None, n_neighbors=0, **QUICK).fit(X, y)
        assert not likelihood_of(model).rows_differ

    def test_a_base_learns_from_weights(self):
        rows, variance = self.rows()
        likelihood = Gaussian(1).double()
        likelihood.learn_ratios((1 / NOISE**2,), (1.0,), variance, rows.weight)
        rows = Batch(rows.X, *likelihood.with_ratios(rows.y, variance, rows.weight))
        base, learnt = base_for(likelihood, rows)
        assert learnt.weight.sum().item() == pytest.approx(rows.weight.sum().item())
        noise = base.model.likelihood.variance.detach().mean() * likelihood.plain_ratio
        assert noise.item() == pytest.approx(NOISE**2, rel=0.3)


def coverage(model, X, y, level=0.9):
    low, high = model.predict_dist(X).interval(level)
    return np.mean((low <= y) & (y <= high))


class TestFits:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "scale", "share"),
        [
            (SOLVEGPRegressor, 1.0, 0.05),
            (DSDGPRegressor, 1e-6, 0.05),
            (DSDGPRegressor, 1.0, 0.2),
            (AVDGPRegressor, 1.0, 0.05),
            (AVDGPRegressor, 1e6, 0.2),
        ],
    )
    def test_complete_rows_have_their_own_intervals(self, kind, scale, share):
        X, y, _ = wave(300, share=share, scale=scale)
        X_new, y_new, complete = wave(1000, 1, share, scale)
        model = kind(**QUICK).fit(X, y)
        assert 0.84 < coverage(model, X_new[complete], y_new[complete]) < 0.95
        assert 0.84 < coverage(model, X_new[~complete], y_new[~complete]) < 0.96
        assert 0.5 < model.noise_variance_ / (scale * NOISE) ** 2 < 2.2

    def test_cells_matter_by_what_the_trend_makes_of_them(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(150, 2))
        y = X[:, 0] + NOISE * rng.normal(size=150)
        X[::10, 0], X[5::10, 1] = np.nan, np.nan
        model = SOLVEGPRegressor(trend=Ridge(), n_neighbors=0, **QUICK).fit(X, y)
        assert likelihood_of(model).rows_differ  # the trend leaves nothing over that would depend on cells
        assert 0.4 < model.noise_variance_ / NOISE**2 < 2.5

    @pytest.mark.slow
    def test_positive_targets_weights_and_rows_that_the_user_holds_out(self):
        X, y, _ = wave(300)
        X_new, y_new, complete = wave(2000, 1)
        model = SOLVEGPRegressor(target_transform="log", **QUICK)
        model.fit(X, np.exp(y), 1.0 + np.arange(300) % 2, X_val=X_new[:50], y_val=np.exp(y_new[:50]))
        assert likelihood_of(model).rows_differ
        assert 0.84 < coverage(model, X_new[complete], np.exp(y_new[complete])) < 0.95

    @every_regressor
    def test_two_outputs(self, tiny):
        X, y, _ = wave(60)
        model = tiny().fit(X, np.stack([y, 1e3 * y], axis=1))
        one, other = likelihood_of(model).per_gap
        assert one == pytest.approx(other, rel=0.5) and model.predict(X).shape == (60, 2)

    @every_regressor
    def test_complete_tables_have_no_ratios(self, tiny):
        X, y, _ = wave(40, share=0.0)
        assert not likelihood_of(tiny().fit(X, y)).rows_differ

    @pytest.mark.parametrize(
        "options",
        [
            {"likelihood": "student_t"},
            {"likelihood": "heteroskedastic"},
            {"kernel": RBF() + WhiteKernel(0.1)},
            {"n_latent_outputs": 1},
        ],
        ids=str,
    )
    def test_others_have_no_ratios(self, options):
        X, y, _ = wave(40)
        y = np.stack([y, y], axis=1) if "n_latent_outputs" in options else y
        model = SOLVEGPRegressor(max_iter=3, n_inducing=10, random_state=0, **options).fit(X, y)
        assert not likelihood_of(model).rows_differ

    def test_known_noise_has_no_ratios(self):
        X, y, _ = wave(40)
        model = SOLVEGPRegressor(**QUICK).fit(X, y, noise_variance=np.full(40, 0.01))
        assert not likelihood_of(model).per_gap

    def test_a_missing_cell_that_does_not_matter(self):
        X, y, _ = wave(200, share=0.0)
        X = np.column_stack([X, np.random.default_rng(5).normal(size=200)])
        whole = SOLVEGPRegressor(**QUICK).fit(X, y)
        X[::3, 3] = np.nan
        model = SOLVEGPRegressor(**QUICK).fit(X, y)
        assert model.noise_variance_ == pytest.approx(whole.noise_variance_, rel=0.3)
        assert likelihood_of(model).plain_ratio > 0.9


def cities(n_rows, seed=0, scale=1.0, told=False, n_levels=4):
    """Rows of which some lack a category, at random or in a city of its own; targets; and which rows have it."""
    rng = np.random.default_rng(seed)
    x, city = rng.uniform(-2, 2, n_rows), rng.integers(n_levels, size=n_rows)
    y = np.sin(2 * x) + np.linspace(-1, 1, n_levels)[city] + NOISE * rng.normal(size=n_rows)
    missing = city == 1 if told else rng.random(n_rows) < 0.15
    names = np.where(missing, None, np.array([f"city {i}" for i in range(n_levels)], dtype=object)[city])
    return pd.DataFrame({"x": x, "city": names}), scale * y, ~missing


#: Options that change what is made of rows with missing cells, numbers and categories alike, and options that change
#: who learns how much such cells add, which is the same for both.
OF_ROWS = [
    {"n_neighbors": 10},
    {"base": None, "n_neighbors": 0},
    {"trend": Ridge()},
    {"normalize_X": False},
    {"likelihood": "student_t"},
    {"target_transform": "log"},
]
OF_LEARNERS = [{"n_neighbors": 0}, {"trend": Ridge(), "base": None}, {"early_stopping": False}, {"n_estimators": 3}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "options"),
    [(wave, each) for each in OF_ROWS + OF_LEARNERS] + [(cities, each) for each in OF_ROWS],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_intervals_hold_with_all_options(table, options):
    X, y, _ = table(300)
    X_new, y_new, complete = table(1000, 1)
    if "target_transform" in options:
        y, y_new = np.exp(y), np.exp(y_new)
    model = SOLVEGPRegressor(**QUICK | options).fit(X, y)
    assert 0.84 < coverage(model, X_new[complete], y_new[complete]) < 0.95
    assert 0.84 < coverage(model, X_new[~complete], y_new[~complete])


class TestMissingCategories:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "scale", "told"),
        [
            (SOLVEGPRegressor, 1.0, False),
            (SOLVEGPRegressor, 1.0, True),
            (DSDGPRegressor, 1.0, False),
            (DSDGPRegressor, 1e-6, False),
            (AVDGPRegressor, 1e6, False),
            (AVDGPRegressor, 1.0, True),
        ],
    )
    def test_intervals(self, kind, scale, told):
        X, y, _ = cities(300, 0, scale, told)
        X_new, y_new, complete = cities(1000, 1, scale, told)
        model = kind(**QUICK).fit(X, y)
        assert 0.84 < coverage(model, X_new[complete], y_new[complete]) < 0.95
        assert 0.84 < coverage(model, X_new[~complete], y_new[~complete])
        assert 0.5 < model.noise_variance_ / (scale * NOISE) ** 2 < 2.2
        std = model.predict(X_new, return_std=True)[1]
        ratio = std[~complete].mean() / std[complete].mean()
        assert ratio < 1.3 if told else 3 < ratio < 10

    @pytest.mark.slow
    def test_a_category_of_many_levels(self):
        X, y, _ = cities(1200, n_levels=150)
        X_new, y_new, complete = cities(1000, 1, n_levels=150)
        model = SOLVEGPRegressor(**QUICK).fit(X, y)
        assert coverage(model, X_new[~complete], y_new[~complete]) > 0.84
        assert model.predict(X_new, return_std=True)[1][~complete].min() > 3 * NOISE

    @every_regressor
    def test_all_predictions_have_the_same_noise(self, tiny):
        X, y, complete = cities(80)
        model = tiny().fit(X, np.stack([y, 3 * y], axis=1))
        rows = X[:12]
        noise = model.predict_dist(rows).var - model.predict_dist(rows, latent=True).var
        assert (noise[~complete[:12]] > 1.5 * noise[complete[:12]].max(axis=0)).all()
        np.testing.assert_allclose(noise[complete[:12]], np.tile(model.noise_variance_, (complete[:12].sum(), 1)))
        joint = [model.predict(rows, return_cov=True, latent=latent)[1] for latent in (False, True)]
        np.testing.assert_allclose(np.einsum("iip->ip", joint[0] - joint[1]), noise, rtol=1e-6)
        outputs = [model.predict_output_cov(rows, latent=latent) for latent in (False, True)]
        np.testing.assert_allclose(np.einsum("npp->np", outputs[0] - outputs[1]), noise, rtol=1e-6)
        observed, latent = (
            model.sample_y(rows, 4000, random_state=0, latent=latent).var(axis=-1) for latent in (False, True)
        )
        np.testing.assert_allclose(observed - latent, noise, rtol=0.25, atol=0.3 * noise.min())
        one_by_one = np.concatenate([model.predict_dist(rows.iloc[[i]]).std for i in range(12)])
        np.testing.assert_allclose(one_by_one, model.predict_dist(rows).std, rtol=1e-6)

    def test_leave_one_out(self):
        X, y, complete = cities(80)
        weight = np.where(np.arange(80) % 7 == 3, 0.0, 1.0)
        for weights in (None, weight):
            model = SOLVEGPRegressor(**QUICK).fit(X, y, sample_weight=weights)
            for again in (model, pickle.loads(pickle.dumps(model))):
                noise = again.leave_one_out().var - again.leave_one_out(latent=True).var
                np.testing.assert_allclose(noise[complete], model.noise_variance_)
                assert (noise[~complete] > 2 * model.noise_variance_).all() and np.ptp(noise[~complete]) < 1e-9

    @pytest.mark.slow
    @every_class
    @pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
    def test_more_rows(self, kind, likelihood):
        X, y, _ = cities(250)
        X_new, y_new, complete = cities(1500, 1)
        more, test = slice(250), np.arange(1500) >= 250
        model = kind(likelihood=likelihood, **QUICK).fit(X, y)
        stored = pickle.loads(pickle.dumps(model)).update(X_new[more], y_new[more])
        model.partial_fit(X_new[more], y_new[more])
        for learnt in (stored, model):
            assert 0.82 < coverage(learnt, X_new[test & complete], y_new[test & complete]) < 0.95
            assert 0.82 < coverage(learnt, X_new[test & ~complete], y_new[test & ~complete])

    def test_gaps_of_both_kinds(self):
        X, y, complete = cities(300)
        X.loc[::9, "x"] = np.nan
        model = SOLVEGPRegressor(**QUICK).fit(X, y)
        of_cells, of_city = likelihood_of(model).per_gap
        assert of_cells > 0 and 3 < of_city / (0.55 / NOISE**2) * 4 < 12
        variance = model.predict_dist(X).var
        assert variance[::9][complete[::9]].mean() < variance[::9][~complete[::9]].mean()

    def test_a_category_that_no_row_has(self):
        X, y, _ = cities(60)
        with pytest.warns(UserWarning, match="Column 'city' of X is empty"):
            model = SOLVEGPRegressor(**QUICK).fit(X.assign(city=pd.Series([None] * 60, dtype="str")), y)
        assert np.isfinite(model.predict_dist(X[:3]).std).all()


class TestMoreRows:
    @every_regressor
    def test_they_have_ratios_too(self, tiny):
        X, y, complete = wave(80, share=0.1)
        model = tiny().fit(X, y)
        before, _, rows = more_rows(model, X, y, None, None)
        batch = batches_of(before.predictor, before.table, View(before.table.encoding.width))(rows, np.dtype("f8"))
        ratio = batch.y[:, 1].numpy() / likelihood_of(model).plain_ratio
        np.testing.assert_allclose(ratio[complete], 1.0, rtol=1e-6)
        assert (ratio[~complete] > 1.0).all()

    @pytest.mark.slow
    @every_class
    @pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
    def test_they_keep_intervals(self, kind, likelihood):
        X, y, _ = wave(250)
        X_new, y_new, complete = wave(1500, 1)
        more, test = slice(250), complete & (np.arange(1500) >= 250)
        model = kind(likelihood=likelihood, **QUICK).fit(X, y)
        stored = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(stored.predict(X_new[:5]), model.predict(X_new[:5]))
        stored.update(X_new[more], y_new[more])
        assert 0.84 < coverage(stored, X_new[test], y_new[test]) < 0.95
        model.partial_fit(X_new[more], y_new[more])
        assert 0.84 < coverage(model, X_new[test], y_new[test]) < 0.95

    def test_new_neighbours_have_the_noise_of_complete_rows(self):
        X, y, _ = wave(80, share=0.1)
        X_new, y_new, complete = wave(60, 1, share=0.1)
        model = SOLVEGPRegressor(n_neighbors=5, **QUICK).fit(X, y).update(X_new, y_new)
        weight = predictor_of(model).correction.local.weight[-60:].numpy()
        np.testing.assert_allclose(weight[complete], 1.0, rtol=1e-6)
        assert (weight[~complete] < 1.0).all()

    @pytest.mark.slow
    def test_an_update_with_a_trend(self):
        X, y, _ = wave(250)
        X_new, y_new, complete = wave(1500, 1)
        model = SOLVEGPRegressor(trend=Ridge(), **QUICK).fit(X, y).update(X_new[:250], y_new[:250])
        test = complete & (np.arange(1500) >= 250)
        assert 0.84 < coverage(model, X_new[test], y_new[test]) < 0.95

    @every_regressor
    def test_complete_rows_and_warm_starts(self, tiny):
        X, y, complete = wave(80, share=0.1)
        model = tiny(warm_start=True).fit(X, y)
        ratio = likelihood_of(model).plain_ratio
        model.fit(X[complete], y[complete]).partial_fit(X[complete], y[complete])
        assert likelihood_of(model).plain_ratio == ratio and np.isfinite(model.predict(X)).all()

    @pytest.mark.parametrize("kernel", ["rbf", RBF(np.ones(3)) + WhiteKernel(0.1)], ids=str)
    def test_the_evidence_of_the_rows_of_fit_is_the_bound(self, kernel):
        X, y, _ = wave(80, share=0.1)
        model = SOLVEGPRegressor(kernel=kernel, base=None, n_neighbors=0, **QUICK).fit(X, y)
        assert likelihood_of(model).rows_differ == (kernel == "rbf")
        assert model.log_marginal_likelihood(None, X, y) == pytest.approx(model.lower_bound_, rel=0.05)

    @pytest.mark.slow
    @pytest.mark.parametrize("table", [wave, cities])
    @pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
    def test_a_new_model_of_chunks_learns_from_the_first_one(self, table, likelihood):
        X, y, _ = table(1000)
        X_new, y_new, complete = table(1500, 1)
        model = SOLVEGPRegressor(likelihood=likelihood, **QUICK)
        for places in np.arange(1000).reshape(4, 250):
            model.partial_fit(X[places] if table is wave else X.iloc[places], y[places], total_size=1000)
        assert len(likelihood_of(model).per_gap) == (1 if table is wave else 2)
        assert 0.84 < coverage(model, X_new[complete], y_new[complete]) < 0.96
        assert 0.84 < coverage(model, X_new[~complete], y_new[~complete])

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("learn", "loss", "kernel"),
        [
            ("update", 0.0, "matern52"),
            ("update", 0.0, RBF(np.ones(3)) + WhiteKernel(NOISE**2, "fixed")),
            ("partial_fit", 0.3, "matern52"),
        ],
        ids=str,
    )
    def test_new_gaps_do_no_harm(self, learn, loss, kernel):
        """A model of complete rows meets rows with gaps, whose expected cells would mislead it."""
        X, y, _ = wave(400, share=0.0)
        X_new, y_new, _ = wave(400, 1, share=0.3)
        X_test, y_test, _ = wave(1000, 2, share=0.0)
        model = SOLVEGPRegressor(kernel=kernel, **QUICK).fit(X, y)
        before = model.predict_dist(X_test).logpdf(y_test).mean()
        getattr(model, learn)(X_new, y_new)
        assert model.predict_dist(X_test).logpdf(y_test).mean() > before - loss
        assert coverage(model, X_test, y_test) > 0.85

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{}, {"kernel": RBF() + WhiteKernel(0.1)}], ids=str)
    def test_a_warm_start_with_new_gaps(self, options):
        X, y, _ = wave(120, share=0.0)
        X_new, y_new, _ = wave(120, 1, share=0.2)
        model = SOLVEGPRegressor(warm_start=True, **QUICK | options).fit(X, y).fit(X_new, y_new)
        assert np.isfinite(model.predict_dist(X_new).logpdf(y_new)).all()
