"""Scores against numerical integration, scikit-learn and counting; scorers in searches, pipelines and pickles."""

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers import make_mixtures
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import mean_absolute_error, mean_pinball_loss
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import PredictiveDistribution, metrics
from skdgp.distributions import TransformedDistribution

SCORERS = [
    metrics.log_density_scorer,
    metrics.crps_scorer,
    metrics.interval_score_scorer,
    metrics.coverage_scorer,
    metrics.calibration_error_scorer,
]


class TestScores:
    def test_are_means_over_rows(self):
        y, dist = make_mixtures(4, 20)
        np.testing.assert_allclose(metrics.negative_log_predictive_density(y, dist), dist.log_score(y).mean())
        np.testing.assert_allclose(metrics.crps(y, dist), dist.crps(y).mean())
        np.testing.assert_array_equal(metrics.pit_values(y, dist), dist.cdf(y))

    @pytest.mark.parametrize("n_outputs", [None, 2])
    def test_weights_are_repeated_rows(self, n_outputs):
        y, dist = make_mixtures(3, 5, *([n_outputs] if n_outputs else []))
        repeats = np.array([0, 2, 1, 3, 1])
        rows = np.repeat(np.arange(5), repeats)
        lower, upper = dist.interval(0.5)
        for weighted, repeated in (
            (metrics.crps(y, dist, sample_weight=repeats), metrics.crps(y[rows], dist[rows])),
            (metrics.calibration_error(y, dist, sample_weight=repeats), metrics.calibration_error(y[rows], dist[rows])),
            (
                metrics.coverage(y, lower, upper, sample_weight=repeats),
                metrics.coverage(y[rows], lower[rows], upper[rows]),
            ),
        ):
            np.testing.assert_allclose(weighted, repeated, rtol=1e-12)

    def test_impossible_observations_are_counted(self):
        dist = TransformedDistribution(PredictiveDistribution.gaussian(np.zeros(3), np.ones(3)), "log")
        message = "2 of 3 observations have a predicted density of zero, so that their mean score is infinite"
        with pytest.warns(UserWarning, match=message):
            assert metrics.negative_log_predictive_density([-1.0, 0.0, 1.0], dist) == np.inf
        model = SimpleNamespace(predict_dist=lambda X: dist)
        with pytest.warns(UserWarning, match=message):
            assert metrics.log_density_scorer(model, None, [-1.0, 0.0, 1.0]) == -np.inf
        assert np.isfinite(metrics.crps([-1.0, 0.0, 1.0], dist))

    def test_infinite_scores_of_rows_without_weight_do_not_count(self):
        dist = TransformedDistribution(PredictiveDistribution.gaussian(np.zeros(2), np.ones(2)), "log")
        result = metrics.negative_log_predictive_density([-1.0, 2.0], dist, sample_weight=[0.0, 3.0])
        np.testing.assert_allclose(result, metrics.negative_log_predictive_density([2.0], dist[1:]))
        lower, upper = [-np.inf, 1.0], [np.inf, 4.0]
        assert metrics.interval_score([0.0, 2.0], lower, upper, sample_weight=[0.0, 1.0]) == 3.0
        by_group = metrics.coverage_by_group([0.0, 2.0], lower, upper, ["a", "a"], sample_weight=[0.0, 1.0])
        assert by_group.width == [3.0] and by_group.n_rows == [2]

    def test_crps_of_certainty_is_the_absolute_error(self):
        y = np.array([0.0, 1.0, 5.0])
        dist = PredictiveDistribution.gaussian([1.0, 1.0, 1.0], np.full(3, 1e-9))
        np.testing.assert_allclose(metrics.crps(y, dist), mean_absolute_error(y, np.ones(3)), rtol=1e-8)

    def test_interval_score_is_a_sum_of_pinball_losses(self):
        """Gneiting & Raftery (2007): (2/α)(pinball at α/2 + pinball at 1 − α/2), scikit-learn's being of all rows."""
        y, dist = make_mixtures(3, 50)
        lower, upper = dist.interval(0.6)
        expected = 5 * (mean_pinball_loss(y, lower, alpha=0.2) + mean_pinball_loss(y, upper, alpha=0.8))
        np.testing.assert_allclose(metrics.interval_score(y, lower, upper, 0.6), expected, rtol=1e-12)

    def test_coverage_counts_ends_as_inside(self):
        assert metrics.coverage([0.0, 1.0, 2.0, 2.1], [0.0] * 4, [2.0] * 4) == 0.75

    def test_calibration_error_is_the_area_beside_the_diagonal(self):
        y, dist = make_mixtures(3, 37)
        p = (np.arange(200_000) + 0.5) / 200_000
        share = (dist.cdf(y)[:, None] <= p[None, ::200]).mean(0)
        np.testing.assert_allclose(metrics.calibration_error(y, dist), np.abs(share - p[::200]).mean(), atol=2e-3)

    def test_calibration_error_knows_too_wide_too_narrow_and_right(self):
        y = np.random.default_rng(0).standard_normal(4000)
        errors = [
            metrics.calibration_error(y, PredictiveDistribution.gaussian(0 * y, std + 0 * y)) for std in (0.3, 1, 3)
        ]
        assert errors[1] < 0.01 < 0.1 < min(errors[0], errors[2])

    def test_expected_calibration_error_counts_bins(self):
        rng = np.random.default_rng(0)
        proba = rng.dirichlet(np.ones(3), size=500)
        y = np.array(["a", "b", "c"])[[rng.choice(3, p=row) for row in proba]]
        weight = rng.uniform(size=500)
        confidence, hit = proba.max(1), np.array(["a", "b", "c"])[proba.argmax(1)] == y
        expected = 0.0
        for low in np.arange(10) / 10:
            inside = (low < confidence) & (confidence <= low + 0.1)
            if inside.any():
                gap = np.average(hit[inside] - confidence[inside], weights=weight[inside])
                expected += abs(gap) * weight[inside].sum() / weight.sum()
        found = metrics.expected_calibration_error(y, proba, n_bins=10, sample_weight=weight)
        np.testing.assert_allclose(found, expected, rtol=1e-10)

    def test_labels_may_be_absent_from_the_rows(self):
        proba = [[0.8, 0.1, 0.1], [0.7, 0.2, 0.1]]
        np.testing.assert_allclose(metrics.expected_calibration_error([0, 0], proba, labels=[0, 1, 2]), 0.25)


class TestScorers:
    @pytest.mark.parametrize("scorer", SCORERS, ids=repr)
    def test_prefer_the_better_prediction(self, scorer, wave):
        X, y = wave

        class Fixed:
            def __init__(self, std):
                self.std = std

            def predict_dist(self, X):
                return PredictiveDistribution.gaussian(y, np.full(len(y), self.std))

        rng = np.random.default_rng(1)
        observed = y + 0.1 * rng.standard_normal(len(y))
        assert scorer(Fixed(0.1), X, observed) > max(scorer(Fixed(0.02), X, observed), scorer(Fixed(1.0), X, observed))

    def test_know_what_they_score(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        assert metrics.crps_scorer(model, X, y) == -metrics.crps(y, model.predict_dist(X))
        weight = np.arange(len(y))
        found = metrics.log_density_scorer(model, X, y, sample_weight=weight)
        assert found == -metrics.negative_log_predictive_density(y, model.predict_dist(X), sample_weight=weight)

    def test_work_in_searches_of_pipelines(self, tiny, wave):
        X, y = wave
        pipeline = make_pipeline(StandardScaler(), tiny())
        search = GridSearchCV(pipeline, {f"{pipeline.steps[1][0]}__learning_rate": [1e-4, 0.05]}, cv=2,
                              scoring=metrics.crps_scorer).fit(X, y)  # fmt: skip
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert search.score(X, y) == metrics.crps_scorer(search.best_estimator_, X, y)
        assert metrics.crps_scorer(search, X, y) == search.score(X, y) < 0

    def test_take_any_estimator_with_a_standard_deviation(self, wave):
        X, y = wave
        scoring = {"crps": metrics.crps_scorer, "nlpd": metrics.log_density_scorer}
        found = cross_validate(make_pipeline(GaussianProcessRegressor(alpha=0.01)), X, y, scoring=scoring, cv=2)
        assert np.isfinite(found["test_crps"]).all() and np.isfinite(found["test_nlpd"]).all()

    def test_of_probabilities(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 2))
        y = np.where(X[:, 0] + rng.normal(size=300) > 0, "yes", "no")
        model = make_pipeline(LogisticRegression()).fit(X, y)
        expected = metrics.expected_calibration_error(y, model.predict_proba(X), labels=["no", "yes"])
        assert metrics.expected_calibration_error_scorer(model, X, y) == -expected

    def test_that_of_coverage_is_a_distance_from_nine_tenths(self):
        dist = PredictiveDistribution.gaussian(np.zeros(40), np.ones(40))
        y = np.r_[np.full(20, 1.6), np.full(20, 1.7)]  # a central interval of 90 % ends at 1.645
        model = SimpleNamespace(predict_dist=lambda X: dist)
        assert metrics.coverage_scorer(model, y[:, None], y) == pytest.approx(-0.4)

    @pytest.mark.parametrize("scorer", [*SCORERS, metrics.expected_calibration_error_scorer], ids=repr)
    def test_pickle_by_name(self, scorer):
        assert pickle.loads(pickle.dumps(scorer)) is scorer
        assert repr(scorer).startswith("skdgp.metrics.")


class TestErrors:
    def test_of_shapes(self):
        y, dist = make_mixtures(2, 4)
        with pytest.raises(ValueError, match=r"y_true of shape \(3,\) and predictions of shape \(4,\) do not match"):
            metrics.crps(y[:3], dist)
        with pytest.raises(ValueError, match="must have one shape"):
            metrics.coverage(y, *dist[:3].interval())
        with pytest.raises(ValueError, match="a column for each of the 2 labels, got shape"):
            metrics.expected_calibration_error(["a", "b"], np.ones((2, 3)) / 3)
        half = np.full((2, 2), 0.5)
        with pytest.raises(ValueError, match=r"y_true has labels that are none of .*: pass the classifier's classes_"):
            metrics.expected_calibration_error(["a", "c"], half, labels=["a", "b"])
        for n_bins in (0, 2.5, None):
            with pytest.raises(ValueError, match=f"n_bins={n_bins} must be an integer of at least 1"):
                metrics.expected_calibration_error(["a", "b"], half, n_bins=n_bins)

    def test_of_classes_that_training_lacked(self):
        """A fold may lack a rare class. Its rows are misses, whatever is predicted."""
        X, y = np.arange(12.0)[:, None], np.array([0, 1] * 5 + [1, 2])
        model = LogisticRegression().fit(X[:10], y[:10])
        confidence = model.predict_proba(X).max(axis=1)
        expected = np.abs(
            np.bincount(np.ceil(15 * confidence).astype(int) - 1, (model.predict(X) == y) - confidence)
        ).sum()
        found = metrics.expected_calibration_error_scorer(model, X, y)
        assert found == pytest.approx(-expected / 12)

    def test_of_missing_observations(self):
        y, dist = make_mixtures(2, 4)
        y[2] = np.nan
        with pytest.raises(ValueError, match="y_true contains NaN or infinity: leave out such rows"):
            metrics.crps(y, dist)
        with pytest.raises(ValueError, match="y_true contains NaN: leave out such rows"):
            metrics.coverage(y, *dist.interval())
        assert metrics.coverage([0.0], [-np.inf], [np.inf]) == 1.0

    def test_of_weights(self):
        y, dist = make_mixtures(2, 4)
        for weight in ([1.0, -1.0, 1.0, 1.0], [1.0, np.nan, 1.0, 1.0]):
            with pytest.raises(ValueError, match=r"[Nn]egative|NaN"):
                metrics.crps(y, dist, sample_weight=weight)

    def test_of_no_rows(self):
        _, dist = make_mixtures(2, 4)
        for score in (metrics.crps, metrics.calibration_error, metrics.negative_log_predictive_density):
            with pytest.raises(ValueError, match="y_true is empty: pass at least one row"):
                score([], dist[:0])
        with pytest.raises(ValueError, match="y_true is empty: pass at least one row"):
            metrics.coverage([], [], [])

    def test_of_probabilities_that_are_none(self):
        with pytest.raises(ValueError, match=r"y_proba must lie between 0 and 1, got -2\.0 to 0\.5: pass"):
            metrics.expected_calibration_error(["a", "b"], [[-2.0, 0.5], [0.1, 0.2]])
        with pytest.raises(ValueError, match="y_proba contains NaN"):
            metrics.expected_calibration_error(["a", "b"], [[np.nan, 0.5], [0.1, 0.2]])

    def test_of_no_probability(self):
        with pytest.raises(ValueError, match="confidence_level must lie between 0 and 1"):
            metrics.interval_score([0.0], [0.0], [1.0], 90)

    def test_of_a_search_that_is_not_fitted(self, tiny, wave):
        with pytest.raises(NotFittedError):
            metrics.crps_scorer(GridSearchCV(tiny(), {}), *wave)

    @pytest.mark.parametrize(
        "model", [LinearRegression(), TransformedTargetRegressor(LinearRegression()), StandardScaler()]
    )
    def test_of_models_without_distributions(self, model, wave):
        with pytest.raises(TypeError, match="predicts no distribution: it has neither predict_dist"):
            metrics.crps_scorer(model.fit(*wave), *wave)


class TestGroups:
    def test_agrees_with_counting_in_every_group(self):
        rng = np.random.default_rng(0)
        y, lower, width, weight = (
            rng.normal(size=80),
            rng.normal(-1, 1, 80),
            rng.uniform(1, 3, 80),
            rng.uniform(size=80),
        )
        groups = rng.integers(3, size=80)
        by_group = metrics.coverage_by_group(y, lower, lower + width, groups, sample_weight=weight)
        assert by_group.group.tolist() == [0, 1, 2]
        columns = by_group.n_rows, by_group.coverage, by_group.width
        for number, (n_rows, share, mean_width) in enumerate(zip(*columns, strict=True)):
            rows = groups == number
            one = metrics.coverage(y[rows], lower[rows], (lower + width)[rows], sample_weight=weight[rows])
            assert n_rows == rows.sum() and share == pytest.approx(one)
            assert mean_width == pytest.approx(np.average(width[rows], weights=weight[rows]))
        whole = np.average(by_group.coverage, weights=[weight[groups == number].sum() for number in range(3)])
        assert whole == pytest.approx(metrics.coverage(y, lower, lower + width, sample_weight=weight))

    @pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, pd.NaT])
    def test_missing_groups_are_the_last_one(self, nothing):
        groups = pd.Series(["b", nothing, "a", nothing], dtype=object)
        by_group = metrics.coverage_by_group(np.zeros(4), np.ones(4), np.full(4, 2.0), groups)
        assert by_group.group.tolist() == ["a", "b", None] and by_group.n_rows.tolist() == [1, 1, 2]
        assert by_group.coverage.tolist() == [0, 0, 0] and by_group.width.tolist() == [1, 1, 1]

    def test_takes_several_outputs_and_groups_of_mixed_types(self):
        by_group = metrics.coverage_by_group(*(np.full((3, 2), value) for value in (0, -1, 1)), [1, "x", 1])
        assert by_group.group.tolist() == [1, "x"] and by_group.coverage.tolist() == [1, 1]

    def test_errors(self):
        column = np.zeros(3)
        with pytest.raises(ValueError, match="All rows of the group 'b' have the weight zero: leave these rows out"):
            metrics.coverage_by_group(column, column, column, ["a", "b", "b"], sample_weight=[1, 0, 0])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            metrics.coverage_by_group(column, column, column, ["a", "b"])


class TestStandardizedLogLoss:
    def test_is_the_gain_over_a_gaussian_for_all_rows(self):
        rng = np.random.default_rng(0)
        y_train, y = rng.normal(3, 2, 50), rng.normal(3, 2, 20)
        weight = rng.uniform(size=20)
        trivial = norm.logpdf(y, y_train.mean(), y_train.std())
        expected = np.average(trivial - norm.logpdf(y, y + 0.1, 0.5), weights=weight)
        for scale in (1e-6, 1.0, 1e6):  # units do not matter
            scaled = PredictiveDistribution.gaussian(scale * (y + 0.1), np.full(20, 0.5 * scale))
            loss = metrics.mean_standardized_log_loss(scale * y, scaled, scale * y_train, sample_weight=weight)
            assert loss == pytest.approx(expected)
        nothing = PredictiveDistribution.gaussian(np.full(20, y_train.mean()), np.full(20, y_train.std()))
        assert metrics.mean_standardized_log_loss(y, nothing, y_train) == pytest.approx(0.0)

    def test_is_a_mean_over_outputs(self):
        rng = np.random.default_rng(0)
        y, y_train = rng.normal(size=(9, 2)), rng.normal(size=(30, 2))
        dist = PredictiveDistribution.gaussian(y, np.ones((9, 2)))
        parts = [metrics.mean_standardized_log_loss(y[:, p], dist[:, p], y_train[:, [p]]) for p in (0, 1)]
        whole = metrics.mean_standardized_log_loss(y, dist, y_train)
        assert whole == pytest.approx(np.mean(parts))

    def test_errors(self):
        dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 1.0])
        with pytest.raises(
            ValueError, match=r"y_train of shape \(3, 2\) has other outputs than y_true of shape \(2,\)"
        ):
            metrics.mean_standardized_log_loss([0.0, 1.0], dist, np.eye(3)[:, :2])
        with pytest.raises(ValueError, match="y_train does not vary, so that there is no Gaussian to compare with"):
            metrics.mean_standardized_log_loss([0.0, 1.0], dist, [2.0, 2.0, 2.0])
        with pytest.raises(ValueError, match="Input y_train contains NaN"):
            metrics.mean_standardized_log_loss([0.0, 1.0], dist, [2.0, np.nan])


@pytest.mark.parametrize("score", [metrics.crps, metrics.calibration_error, metrics.pit_values])
def test_exact_times_are_numbers_and_others_are_refused(score):
    dist, times = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 1.0]), np.array([0.5, 2.0])
    events = np.array([(True, 0.5), (True, 2.0)], dtype=[("event", bool), ("time", float)])
    np.testing.assert_array_equal(score(events, dist), score(times, dist))
    assert metrics.coverage(events, [0.0, 0.0], [1.0, 1.0]) == 0.5
    events["event"][1] = False
    with pytest.raises(ValueError, match=r"needs exact observations.*negative_log_predictive_density"):
        score(events, dist)
    with pytest.raises(ValueError, match="needs exact observations"):
        metrics.interval_score(events, [0.0, 0.0], [1.0, 1.0])
    frame = pd.DataFrame({"lower": [0.5, 2.0], "upper": [0.5, 3.0]})
    with pytest.raises(ValueError, match="needs exact observations"):
        score(frame, dist)
