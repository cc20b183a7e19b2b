"""What users are owed by all classifiers, besides what they share with regressors."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import CLASSIFIERS, DEEP_CLASSIFIERS, any_options, name_of
from scipy.special import log_ndtr, ndtr
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import compute_class_weight, compute_sample_weight

from skdgp.estimators import _predicting
from skdgp.estimators._fitted import learnt
from skdgp.inference import predictor
from skdgp.inference.batches import Batch
from skdgp.inference.plan import Split
from skdgp.tables.targets import Labels

every_number_of_classes = pytest.mark.parametrize("n_classes", [2, 3])


@pytest.fixture(scope="module", params=CLASSIFIERS, ids=name_of)
def tiny(request):
    """Makes cheap classifiers of one family after the other."""
    return request.param.with_budget(batch_size=40, beta=1.0)


@pytest.fixture(scope="module", params=DEEP_CLASSIFIERS, ids=name_of)
def deep(request):
    """The same of families that have hidden layers."""
    return request.param.with_budget(batch_size=40, beta=1.0)


def make_rows(n_classes, n_rows=120):
    """Classes from 0 on of about equal size, in strips with a little noise."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(n_rows, 3))
    latent = X[:, 0] + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(n_rows)
    return X, np.digitize(latent, np.quantile(latent, np.arange(1, n_classes) / n_classes))


def make_rare_class(n_rare, n_rows=120):
    """Two classes of which label 1 has ``n_rare`` rows."""
    X, _ = make_rows(2, n_rows)
    y = np.zeros(n_rows, dtype=int)
    y[np.argsort(X[:, 0])[-n_rare:]] = 1
    return X, y


@pytest.fixture(scope="module")
def fitted(tiny):
    """A fitted model for each number of classes, to be looked at only."""
    rows = {n_classes: make_rows(n_classes) for n_classes in (2, 3)}
    return {n_classes: tiny(n_estimators=2, max_iter=10).fit(*rows[n_classes]) for n_classes in rows}


def assert_consistent(model, X):
    """Probabilities of the right shape and of sum one, of which the largest is predicted."""
    proba = model.predict_proba(X)
    assert proba.shape == (len(X), len(model.classes_)) and (proba >= 0).all()
    np.testing.assert_allclose(proba.sum(1), 1.0, rtol=0, atol=1e-12)
    assert np.array_equal(model.predict(X), model.classes_[proba.argmax(1)])


def assert_probabilities(model, X):
    """The same of a model of ours, whose logarithms are finite too."""
    assert_consistent(model, X)
    log_proba = model.predict_log_proba(X)
    assert np.isfinite(log_proba).all()
    np.testing.assert_allclose(np.exp(log_proba), model.predict_proba(X), rtol=1e-12)


def draw_labels(marginals, n_classes, n_draws, rng):
    """Labels (n_draws, n) by the definition of the likelihoods, a component of the mixture for each."""
    mean, variance, weight = (
        marginals.mean.numpy(),
        marginals.variance.numpy(),
        marginals.log_weight[:, 0].exp().numpy(),
    )
    chosen = rng.choice(len(mean), size=n_draws, p=weight)
    f = mean[chosen] + np.sqrt(variance[chosen]) * rng.standard_normal((n_draws, *mean.shape[1:]))
    u = rng.random(f.shape[:2])
    if n_classes == 2:
        return (u < ndtr(f[..., 0])).astype(int)
    slips = np.where(u < 1e-3, rng.integers(1, n_classes, u.shape), 0)
    return (f.argmax(-1) + slips) % n_classes


class TestLabels:
    @pytest.mark.parametrize(
        "labels",
        [
            np.array(["ham", "spam"]),
            np.array([False, True]),
            np.array([-1, 1]),
            np.array([7, 1000]),
            np.array([0.0, 3.0]),
            np.array(["ham", "spam"], dtype=object),
            np.array([-5, 0, 2]),
            np.array(["a", "b", "c"], dtype=object),
            np.array([1, 2, 30], dtype=np.uint8),
        ],
        ids=repr,
    )
    def test_any_labels(self, tiny, labels):
        X, y = make_rows(len(labels))
        model, expected = tiny().fit(X, labels[y]), tiny().fit(X, y)
        assert np.array_equal(model.classes_, labels) and model.classes_.dtype == labels.dtype
        assert np.array_equal(model.predict_proba(X), expected.predict_proba(X))
        assert np.array_equal(model.predict(X), labels[expected.predict(X)])

    @pytest.mark.parametrize("labels", [["yes", "no"], ["b", "c", "a"]])
    def test_columns_are_in_the_order_of_the_classes(self, tiny, labels):
        X, y = make_rows(len(labels))
        y = np.array(labels)[y]
        model = tiny(max_iter=30).fit(X, y)
        assert model.classes_.tolist() == sorted(labels)
        assert model.score(X, y) > 0.8
        column = np.searchsorted(model.classes_, y)
        assert model.predict_proba(X)[np.arange(len(y)), column].mean() > 0.6

    def test_lists(self, tiny):
        X, y = make_rows(2)
        model = tiny().fit(X.tolist(), ["no" if label else "yes" for label in y])
        assert model.predict(X.tolist()).dtype == model.classes_.dtype


class TestFit:
    @any_options
    @every_number_of_classes
    @pytest.mark.parametrize("objective", ["elbo", "predictive"])
    @pytest.mark.parametrize("hidden_dims", [(), (2,)])
    def test_every_propagation_objective_and_depth(self, deep, n_classes, objective, hidden_dims):
        X, y = make_rows(n_classes)
        for propagation in deep.propagations:
            model = deep(objective=objective, hidden_dims=hidden_dims, max_iter=2, **propagation).fit(X, y)
            assert_probabilities(model, X)
            assert np.isfinite(model.loss_curve_).all() and np.isfinite(model.lower_bound_)

    @every_number_of_classes
    def test_learns(self, tiny, n_classes):
        X, y = make_rows(n_classes)
        model = tiny(max_iter=40).fit(X[:100], y[:100])
        assert model.score(X[100:], y[100:]) > 0.7
        assert log_loss(y[100:], model.predict_proba(X[100:])) < 0.7 * np.log(n_classes)

    def test_fitted_attributes(self, tiny, fitted):
        model = fitted[3]
        assert model.n_iter_ == len(model.loss_curve_) == len(model.validation_scores_) == 10
        assert len(model.best_iter_) == len(model.module_) == 2
        assert [scales.shape for scales in model.length_scales_] == tiny.length_scales(3)
        assert not hasattr(model, "noise_variance_")

    @every_number_of_classes
    def test_lower_bound_is_the_expected_log_probability_less_the_penalty(self, tiny, n_classes):
        """By deterministic propagation; expectations by many nodes of quadrature in NumPy."""
        X, y = make_rows(n_classes)
        deterministic = {"propagation": "quadrature"} if "propagation" in tiny().get_params() else {}
        model = tiny(max_iter=10, **deterministic).fit(X, y)
        (member,) = model.module_
        mean, variance, log_weight, kl = (
            each.detach().numpy() for each in member(torch.as_tensor(StandardScaler().fit_transform(X)))[:4]
        )
        nodes, weights = np.polynomial.hermite_e.hermegauss(200)
        own = 0 if n_classes == 2 else y[None, :, None]
        m, s = (
            np.take_along_axis(each, np.broadcast_to(own, (len(mean), len(y), 1)), -1) for each in (mean, variance**0.5)
        )
        f = m + s * nodes  # (S, B, nodes), of the label's own function
        if n_classes == 2:
            expected = log_ndtr((2 * y[:, None] - 1) * f) @ weights
        else:
            win = ndtr((f[..., None] - mean[:, :, None]) / np.sqrt(variance)[:, :, None])
            win = np.where(np.arange(3) == y[:, None, None], 1.0, win).prod(-1) @ weights / weights.sum()
            expected = win * np.log(1 - 1e-3) + (1 - win) * np.log(1e-3 / 2)
        expected = expected / (weights.sum() if n_classes == 2 else 1.0)
        bound = (np.exp(log_weight) * expected).sum() - np.mean(kl)
        assert model.lower_bound_ == pytest.approx(bound, abs=1e-3 * abs(bound))
        assert np.mean(kl) > 0.01 * abs(bound)  # its sign and its size matter to the comparison

    def test_warm_start_goes_on(self, tiny):
        X, y = make_rows(2)
        model = tiny(warm_start=True, max_iter=20, early_stopping=False).fit(X, y)
        first = model.loss_curve_
        assert model.fit(X, y).loss_curve_[0] < first[0]

    def test_warm_start_with_fewer_classes_keeps_all(self, tiny):
        X, y = make_rows(3)
        model = tiny(warm_start=True).fit(X, y)
        assert model.fit(X[y < 2], y[y < 2]).classes_.tolist() == [0, 1, 2]
        assert_probabilities(model, X)


class TestWeights:
    def test_zero_sample_weight_is_absence(self, tiny):
        X, y = make_rows(2)
        weight = np.where(np.arange(len(X)) < 60, 1.0, 0.0)
        weighted = tiny(class_weight="balanced").fit(X, y, sample_weight=weight)
        expected = tiny(class_weight="balanced").fit(X[:60], y[:60])
        assert np.array_equal(weighted.predict_proba(X), expected.predict_proba(X))
        assert not np.allclose(weighted.predict_proba(X), tiny().fit(X, y).predict_proba(X))

    def test_a_class_without_weight_is_absent(self, tiny):
        X, y = make_rows(3)
        model = tiny().fit(X, y, sample_weight=(y != 1).astype(float))
        assert model.classes_.tolist() == [0, 2]
        assert np.array_equal(model.predict_proba(X), tiny().fit(X[y != 1], y[y != 1]).predict_proba(X))

    @pytest.mark.parametrize("class_weight", ["balanced", {"x": 3.0, "y": 0.5}, {"x": 2.0}], ids=str)
    @pytest.mark.parametrize("given", [False, True], ids=["alone", "times sample_weight"])
    def test_class_weight_is_a_sample_weight(self, tiny, class_weight, given):
        X, y = make_rare_class(20)
        y = np.array(["x", "y"])[y]
        sample_weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y)) if given else None
        model = tiny(class_weight=class_weight).fit(X, y, sample_weight=sample_weight)
        product = compute_sample_weight(class_weight, y) * (sample_weight if given else 1.0)
        expected = tiny().fit(X, y, sample_weight=product)
        np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(X), rtol=1e-4)
        assert not np.allclose(model.predict_proba(X), tiny().fit(X, y).predict_proba(X), rtol=1e-2)

    def test_balanced_favours_the_rare_class(self, tiny):
        X, y = make_rare_class(12)
        plain, balanced = (tiny(class_weight=name, max_iter=10).fit(X, y) for name in (None, "balanced"))
        assert balanced.predict_proba(X)[:, 1].mean() > 1.5 * plain.predict_proba(X)[:, 1].mean()


class TestPredict:
    @every_number_of_classes
    def test_probabilities(self, fitted, n_classes):
        X, _ = make_rows(n_classes)
        assert_probabilities(fitted[n_classes], X)

    @every_number_of_classes
    def test_brute_force(self, fitted, n_classes):
        """Draw a member, a component, function values, a label: frequencies to three standard errors."""
        X, _ = make_rows(n_classes)
        model, X, n_draws = fitted[n_classes], X[:5], 100_000
        rng = np.random.default_rng(0)
        members = next(_predicting.predict(learnt(model), X, lambda members, marginals: marginals, exact=False))[1]
        draws = [draw_labels(marginals, n_classes, n_draws // len(members), rng) for marginals in members]
        seen = (np.concatenate(draws)[..., None] == np.arange(n_classes)).mean(0)
        proba = model.predict_proba(X)
        assert (np.abs(seen - proba) < 3 * np.sqrt(proba * (1 - proba) / n_draws)).all()

    @every_number_of_classes
    def test_rows_are_predicted_one_by_one(self, fitted, n_classes, monkeypatch):
        X, _ = make_rows(n_classes)
        model = fitted[n_classes]
        expected = model.predict_log_proba(X)
        np.testing.assert_allclose(model.predict_log_proba(X[::-1])[::-1], expected, rtol=1e-11)
        np.testing.assert_allclose(model.predict_log_proba(X[5:8]), expected[5:8], rtol=1e-11)
        monkeypatch.setattr(predictor, "PREDICT_NUMBERS", 500)
        assert len(list(_predicting.predict(learnt(model), X, lambda members, marginals: marginals, exact=False))) > 3
        np.testing.assert_allclose(model.predict_log_proba(X), expected, rtol=1e-11)
        assert np.array_equal(model.predict(X), model.classes_[expected.argmax(1)])

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("mean", ["zero", "linear"])
    @every_number_of_classes
    def test_far_outside_the_data(self, deep, n_classes, mean, dtype):
        X, y = make_rows(n_classes)
        model = deep(mean=mean, max_iter=10).fit(X.astype(dtype), y)
        for scale in (1e2, 1e6, 1e12, 1e30):
            assert_probabilities(model, (scale * X).astype(dtype))

    @every_number_of_classes
    def test_extreme_function_values(self, tiny, n_classes):
        """A model that is sure of itself beyond any doubt still gives finite logarithms."""
        X, y = make_rows(n_classes)
        model = tiny().fit(X, y)

        def exaggerate(member, arguments, marginals):
            return marginals._replace(mean=1e3 * marginals.mean, variance=1e-9 * marginals.variance)

        model.module_[0].register_forward_hook(exaggerate)
        assert_probabilities(model, X)
        floor = -1e3 if n_classes == 2 else np.log(1e-3 / 2)
        assert model.predict_log_proba(X).min() < 0.99 * floor


class TestHeldOutRows:
    @pytest.mark.parametrize(
        "counts", [(60, 60), (100, 20), (119, 1), (2, 2), (40, 40, 40), 10 * (12,), (90, 20, 8, 2)]
    )
    def test_any_part_of_the_order_is_stratified(self, counts):
        """Within one row where there are two classes, or equal ones; from its start within half of that.

        A class that keeps its share p to half a row, among K that do, is off by (1 + p (K − 2))/2 at most.
        """
        counts = np.array(counts)
        y = np.repeat(np.arange(len(counts)), counts)
        order = Labels().order(y[:, None].astype(float), np.random.RandomState(0))
        assert np.array_equal(np.sort(order), np.arange(len(y)))
        assert not np.array_equal(order, Labels().order(y[:, None].astype(float), np.random.RandomState(1)))
        share = counts / len(y)
        from_start = (1 + share * (len(counts) - 2)) / 2
        anywhere = np.ones(len(counts)) if len(set(counts)) == 1 else 2 * from_start
        seen = np.cumsum(np.eye(len(counts))[np.tile(y[order], 2)], axis=0)
        seen = np.concatenate([np.zeros((1, len(counts))), seen])
        for length in range(1, len(y)):
            in_window = seen[length : length + len(y)] - seen[: len(y)]
            assert (np.abs(in_window[0] - length * share) <= from_start + 1e-9).all()
            assert (np.abs(in_window - length * share) <= anywhere + 1e-9).all()

    def test_order_within_a_class_is_random(self):
        y = np.repeat([0.0, 1.0], 60)[:, None]
        orders = [Labels().order(y, np.random.RandomState(seed)) for seed in range(40)]
        first = [order[y[order, 0] == 0][0] for order in orders]
        assert len(set(first)) > 15

    def test_every_member_holds_out_its_share_of_a_rare_class(self):
        X, y = make_rare_class(20)
        data = Batch.of(X, y)
        order = Labels().order(data.y.numpy(), np.random.RandomState(0))
        for index in range(3):
            learn, held_out = Split(order, None, 12).of(data, index)
            assert len(held_out) == 12 and len(learn) == 108
            assert 1 <= held_out.rows().y.sum() <= 3

    def test_a_rare_class_keeps_its_share_though_no_judging_row_has_it(self, tiny):
        """Features say nothing about the two rows of class 1; the rows that the user gives lack that class."""
        rng = np.random.default_rng(0)
        X, y, X_new = rng.normal(size=(240, 3)), np.arange(240) < 2, rng.normal(size=(200, 3))
        model = tiny(base="gp", max_iter=40)
        for options in ({}, {"X_val": X[2:62], "y_val": y[2:62]}):
            share = model.fit(X, y, **options).predict_proba(X_new)[:, 1].mean()
            assert 0.004 < share < 0.016  # 2 of 240 are 0.008

    @pytest.mark.parametrize(("n_classes", "error"), [(2, 1e-5), (3, 5e-3)])
    def test_score_is_the_log_loss(self, tiny, n_classes, error):
        """Of the best epoch's model; quadrature for more classes scores labels without normalising."""
        X, y = make_rows(n_classes)
        model = tiny(max_iter=15, learning_rate=0.2).fit(X[:80], y[:80], X_val=X[80:], y_val=y[80:])
        best = model.validation_scores_[model.best_iter_[0] - 1]
        assert best == model.validation_scores_.max()
        assert -log_loss(y[80:], model.predict_proba(X[80:])) == pytest.approx(best, abs=error)

    def test_a_chunk_may_lack_a_class_that_class_weight_names(self, tiny):
        X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2 * 2
        model = tiny(class_weight={0: 1.0, 1: 2.0}).partial_fit(X, y, classes=[0, 1, 2])
        assert np.isfinite(model.predict_proba(X)).all()
        with pytest.raises(ValueError, match="first call of partial_fit needs the labels of all chunks"):
            tiny().partial_fit(X, y, classes=[])

    @pytest.mark.parametrize("class_weight", ["balanced", {0: 3.0, 1: 0.5}], ids=str)
    def test_the_users_rows_weigh_as_held_out_ones_do(self, tiny, class_weight):
        """By the weights of classes in the rows that are learnt from."""
        X, y = make_rare_class(20)
        learn, judge = np.arange(120) % 3 > 0, np.arange(120) % 3 == 0
        model = tiny(class_weight=class_weight, learning_rate=0.2, max_iter=15)
        score = model.fit(X[learn], y[learn], X_val=X[judge], y_val=y[judge]).validation_scores_.max()
        weight_of = dict(zip([0, 1], compute_class_weight(class_weight, classes=np.arange(2), y=y[learn]), strict=True))
        weights = [weight_of[label] for label in y[judge]]
        expected = -log_loss(y[judge], model.predict_proba(X[judge]), sample_weight=weights)
        assert score == pytest.approx(expected, abs=1e-5)
        assert score != pytest.approx(-log_loss(y[judge], model.predict_proba(X[judge])), abs=1e-3)

    def test_classes_without_weight_are_absent_from_the_users_rows_too(self, tiny):
        X, y = make_rows(2)
        y = np.where(np.arange(len(y)) % 5 == 0, "other", np.array(["no", "yes"])[y])
        model = tiny(class_weight={"other": 0.0}).fit(X, y, X_val=X[:30], y_val=y[:30])
        kept = y != "other"
        expected = clone(model).fit(X, y, X_val=X[:30][kept[:30]], y_val=y[:30][kept[:30]])
        np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
        with pytest.raises(ValueError, match="X_val has no row with a target and a positive weight: pass other rows"):
            model.fit(X, y, X_val=X[::5], y_val=y[::5])

    def test_early_stopping(self, tiny):
        X, y = make_rows(2)
        assert tiny(max_iter=100, n_iter_no_change=1, tol=10.0).fit(X, y).n_iter_ == 2
        assert len(tiny(early_stopping=False).fit(X, y).validation_scores_) == 0

    def test_labels_of_the_users_rows_are_encoded(self, tiny):
        X, y = make_rows(2)
        words = np.array(["no", "yes"])[y]
        model = tiny().fit(X, words, X_val=X[:30], y_val=words[:30])
        expected = tiny().fit(X, y, X_val=X[:30], y_val=y[:30])
        assert np.array_equal(model.validation_scores_, expected.validation_scores_)


class TestReproducibility:
    @every_number_of_classes
    def test_same_seed_same_result(self, tiny, n_classes):
        X, y = make_rows(n_classes)
        expected = tiny(**tiny.sampling).fit(X, y).predict_log_proba(X)
        assert np.array_equal(tiny(**tiny.sampling).fit(X, y).predict_log_proba(X), expected)
        assert not np.allclose(tiny(**tiny.sampling, random_state=1).fit(X, y).predict_log_proba(X), expected)

    @pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c"]])
    def test_pickle_and_joblib(self, tiny, labels, tmp_path):
        X, y = make_rows(len(labels))
        model = tiny().fit(X, np.array(labels)[y])
        joblib.dump(model, tmp_path / "model.joblib")
        for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
            assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))
            assert np.array_equal(copy.predict(X), model.predict(X)) and np.array_equal(copy.classes_, model.classes_)

    def test_clone_keeps_parameters_only(self, fitted):
        copy = clone(fitted[2].set_params(class_weight=None))
        assert copy.get_params() == fitted[2].get_params()
        assert not hasattr(copy, "classes_") and not hasattr(copy, "module_")

    def test_precision_follows_the_data(self, tiny):
        """With few inducing points: where there is one for every second row, training makes much of a rounding."""
        X, y = make_rows(3)
        single = tiny(n_inducing=5).fit(X.astype(np.float32), y)
        assert next(single.module_.parameters()).dtype == torch.float32
        assert_probabilities(single, X.astype(np.float32))
        np.testing.assert_allclose(single.predict_proba(X), tiny(n_inducing=5).fit(X, y).predict_proba(X), atol=0.05)


class TestAtHomeInScikitLearn:
    @any_options
    def test_search_in_a_pipeline_by_log_loss(self, deep):
        X, y = make_rows(3)
        pipeline = make_pipeline(StandardScaler(), deep())
        name = name_of(deep).lower()
        grid = {f"{name}__hidden_dims": [(), (2,)], f"{name}__class_weight": [None, "balanced"]}
        search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, np.array(["a", "b", "c"])[y])
        scores = search.cv_results_["mean_test_score"]
        assert np.isfinite(scores).all() and search.best_score_ == scores.max()
        assert set(search.predict(X)) <= {"a", "b", "c"}

    @every_number_of_classes
    def test_calibration(self, tiny, n_classes):
        X, y = make_rows(n_classes)
        assert_consistent(CalibratedClassifierCV(tiny(max_iter=10), cv=2).fit(X, y), X)

    def test_calibration_of_a_fitted_model(self, fitted):
        frozen = pytest.importorskip("sklearn.frozen").FrozenEstimator(fitted[2])
        X, y = make_rows(2)
        assert_consistent(CalibratedClassifierCV(frozen).fit(X, y), X)

    def test_soft_voting(self, tiny):
        X, y = make_rows(3)
        words = np.array(["a", "b", "c"])[y]
        members = [("deep", tiny()), ("linear", LogisticRegression())]
        voting = VotingClassifier(members, voting="soft").fit(X, words)
        expected = (tiny().fit(X, y).predict_proba(X) + LogisticRegression().fit(X, y).predict_proba(X)) / 2
        np.testing.assert_allclose(voting.predict_proba(X), expected, rtol=1e-9)

    @every_number_of_classes
    def test_cross_validation_and_area_under_the_curve(self, tiny, n_classes):
        X, y = make_rows(n_classes)
        folds = StratifiedKFold(3)
        proba = cross_val_predict(tiny(max_iter=10), X, y, cv=folds, method="predict_proba")
        assert proba.shape == (len(X), n_classes)
        scores = proba[:, 1] if n_classes == 2 else proba
        assert roc_auc_score(y, scores, multi_class="ovr") > 0.7

    def test_scorers(self, tiny):
        X, y = make_rows(2)
        for scoring in ("roc_auc", "neg_brier_score", "f1", "balanced_accuracy"):
            assert np.isfinite(cross_val_score(tiny(), X, y, cv=2, scoring=scoring)).all()

    def test_one_against_the_rest(self, tiny):
        X, y = make_rows(3)
        words = np.array(["a", "b", "c"])[y]
        wrapper = OneVsRestClassifier(tiny(max_iter=10)).fit(X, words)
        assert len(wrapper.estimators_) == 3 and wrapper.score(X, words) > 0.6
        np.testing.assert_allclose(wrapper.predict_proba(X).sum(1), 1.0)

    @pytest.mark.parametrize("dtype", ["object", "category", "string"])
    def test_pandas(self, tiny, dtype):
        X, y = make_rows(3)
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        labels = pd.Series(np.array(["low", "mid", "top"])[y]).astype(dtype)
        model = tiny().fit(frame, labels)
        assert list(model.feature_names_in_) == ["a", "b", "c"] and model.classes_.tolist() == ["low", "mid", "top"]
        assert np.array_equal(model.predict_proba(frame), tiny().fit(X, y).predict_proba(X))
        assert set(model.predict(frame)) <= {"low", "mid", "top"}
        assert model.score(frame, labels) == np.mean(model.predict(frame) == labels.to_numpy())


class TestOddData:
    @every_number_of_classes
    def test_separable_classes(self, tiny, n_classes):
        X, y = make_rows(n_classes)
        X[:, 0] = X[:, 0] / 10 + 10.0 * y
        model = tiny(max_iter=40).fit(X, y)
        assert_probabilities(model, X)
        assert model.score(X, y) == 1.0
        assert model.predict_proba(X).max(1).mean() > 0.9

    @pytest.mark.parametrize("class_weight", [None, "balanced"])
    def test_one_row_in_a_thousand(self, tiny, class_weight):
        X, y = make_rare_class(1, n_rows=1000)
        model = tiny(batch_size=200, n_estimators=2, class_weight=class_weight).fit(X, y)
        assert_probabilities(model, X)
        if class_weight is None:
            assert (model.predict(X) == 0).mean() > 0.99

    @every_number_of_classes
    def test_two_rows_per_class(self, tiny, n_classes):
        X, y = make_rows(n_classes)
        rows = np.concatenate([np.flatnonzero(y == c)[:2] for c in range(n_classes)])
        model = tiny(n_inducing="auto", class_weight="balanced").fit(X[rows], y[rows])
        assert_probabilities(model, X)

    def test_a_class_of_weight_zero_is_absent(self, tiny):
        X, y = make_rare_class(2, n_rows=24)
        model = tiny(class_weight={0: 0, 1: 1}, max_iter=20).fit(X, y)
        assert_probabilities(model, X)
        assert model.classes_.tolist() == [0, 1]
        assert (model.predict(X[y == 1]) == 1).all()

    def test_one_row_per_class(self, tiny):
        X, y = make_rows(2)
        rows = [np.argmin(y), np.argmax(y)]
        assert_probabilities(tiny().fit(X[rows], y[rows]), X)

    def test_constant_column(self, tiny):
        X, y = make_rows(2)
        model = tiny().fit(np.column_stack([X, np.full(len(X), 3.0)]), y)
        assert_probabilities(model, np.column_stack([X, X[:, 0]]))

    @pytest.mark.parametrize("mean", ["zero", "linear"])
    @every_number_of_classes
    def test_one_feature(self, deep, n_classes, mean):
        X, y = make_rows(n_classes)
        assert_probabilities(deep(mean=mean).fit(X[:, :1], y), X[:, :1])

    def test_equal_rows_of_different_classes(self, tiny):
        X, y = make_rows(2)
        X = np.zeros_like(X)
        model = tiny(max_iter=20).fit(X, y)
        np.testing.assert_allclose(model.predict_proba(X), 0.5, atol=0.1)

    def test_many_classes(self, tiny):
        X, y = make_rows(20)
        assert_probabilities(tiny().fit(X, y), X)

    @pytest.mark.parametrize("scale", [1e-30, 1e30])
    def test_tiny_and_huge_scales(self, tiny, scale):
        X, y = make_rows(2)
        expected = tiny().fit(X, y).predict_proba(X)
        np.testing.assert_allclose(tiny().fit(scale * X, y).predict_proba(scale * X), expected, rtol=1e-3)


class TestBadInput:
    def test_continuous_targets(self, tiny):
        X, y = make_rows(2)
        with pytest.raises(ValueError, match="Unknown label type: continuous"):
            tiny().fit(X, y + 0.5)

    def test_several_targets(self, tiny):
        X, y = make_rows(2)
        with pytest.raises(ValueError, match=r"y should be a 1d array, got an array of shape \(120, 2\) instead"):
            tiny().fit(X, np.column_stack([y, y]))

    def test_column_of_targets(self, tiny):
        X, y = make_rows(2)
        with pytest.warns(DataConversionWarning, match="A column-vector y was passed when a 1d array was expected"):
            model = tiny().fit(X, y[:, None])
        assert np.array_equal(model.predict_proba(X), tiny().fit(X, y).predict_proba(X))

    @pytest.mark.parametrize(("label", "shown"), [("a", "'a'"), (3, "3"), (True, "True")])
    def test_one_class(self, tiny, label, shown):
        X, _ = make_rows(2)
        message = f"A classifier needs rows of at least two classes, but y contains 1 class, {shown}, among"
        with pytest.raises(ValueError, match=message):
            tiny().fit(X, np.full(len(X), label))

    def test_one_class_of_positive_weight(self, tiny):
        X, y = make_rows(2)
        with pytest.raises(ValueError, match="y contains 1 class, 1, among the rows of positive weight"):
            tiny().fit(X, y, sample_weight=y)

    def test_data(self, tiny):
        X, y = make_rows(2)
        with pytest.raises(ValueError, match=r"Input X contains infinity"):
            tiny().fit(np.where(X > 1.9, np.inf, X), y)
        with pytest.raises(ValueError, match=r"Input y contains NaN\."):
            tiny().fit(X, np.where(X[:, 0] > 1.9, np.nan, y))
        with pytest.raises(ValueError, match="must contain at least one non-zero number"):
            tiny().fit(X, y, sample_weight=np.zeros(len(X)))
        with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
            tiny().fit(X, y, sample_weight=-np.ones(len(X)))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            tiny().fit(X, y[:-1])

    def test_data_to_predict(self, tiny, fitted):
        X, _ = make_rows(2)
        for method in ("predict", "predict_proba", "predict_log_proba"):
            with pytest.raises(ValueError, match=f"X has 2 features, but {name_of(tiny)} is expecting 3"):
                getattr(fitted[2], method)(X[:, :2])
            with pytest.raises(ValueError, match=r"Input X contains infinity"):
                getattr(fitted[2], method)(np.full_like(X, np.inf))
            with pytest.raises(ValueError, match="not fitted yet"):
                getattr(tiny(), method)(X)

    @pytest.mark.parametrize(
        ("class_weight", "message"),
        [
            ({"no": 1.0, "maybe": 2.0}, r"The classes, \['yes'\], are not in class_weight"),
            (
                {"no": 0.0, "yes": 0.0},
                "class_weight=.* must give finite, non-negative weights, and a positive one to some",
            ),
            ({"no": -1.0, "yes": 2.0}, r"class_weight={'no': -1\.0, 'yes': 2\.0} must give finite"),
            ({"no": np.nan, "yes": 2.0}, "must give finite"),
            ({"no": np.inf, "yes": 2.0}, "must give finite"),
            ("uniform", "'class_weight' parameter of .*GPClassifier must be"),
            ([{"no": 1.0, "yes": 1.0}], "'class_weight' parameter of .*GPClassifier must be"),
        ],
        ids=str,
    )
    def test_class_weight(self, tiny, class_weight, message):
        X, y = make_rows(2)
        model = tiny(class_weight=class_weight)
        with pytest.raises(ValueError, match=message):
            model.fit(X, np.array(["no", "yes"])[y])
        assert not [name for name in vars(model) if name.endswith("_") or name.startswith("_")]

    def test_unknown_label_to_judge_by(self, tiny):
        X, y = make_rows(2)
        words = np.array(["no", "yes"])[y]
        with pytest.raises(
            ValueError, match=r"y contains the label 'maybe', but the model was given the classes \['no'"
        ):
            tiny().fit(X, words, X_val=X[:2], y_val=["yes", "maybe"])
        with pytest.raises(ValueError, match="y contains the label 2, but"):
            tiny().fit(X, y, X_val=X[:3], y_val=[0, 1, 2])
        with pytest.raises(ValueError, match="X_val was given without y_val: give both or neither"):
            tiny().fit(X, y, X_val=X)

    def test_warm_start_with_a_new_class(self, tiny):
        X, y = make_rows(2)
        model = tiny(warm_start=True).fit(X, y)
        expected = model.predict_proba(X)
        with pytest.raises(ValueError, match=r"y contains the label 2, but .* leave out its rows, or fit anew with it"):
            model.fit(X, y + 1)
        assert np.array_equal(model.predict_proba(X), expected) and model.classes_.tolist() == [0, 1]

    def test_failed_refit_leaves_the_earlier_fit(self, deep):
        X, y = make_rows(2)
        model = deep().fit(X, y)
        expected = model.predict_proba(X)
        with pytest.raises(ValueError, match="at least two classes"):
            model.fit(X, np.full(len(y), 7))
        with pytest.raises(ValueError, match="holds -1"):
            model.set_params(hidden_dims=(-1,)).fit(X[:, :2], np.array(["a", "b"])[y])
        assert np.array_equal(model.predict_proba(X), expected)
        assert model.n_features_in_ == 3 and model.classes_.tolist() == [0, 1]
