"""Trends: models of what regressors leave over, mixtures of them, and the faces of estimators that have one."""

import pickle
import time
from copy import deepcopy
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import any_options, predictor_of, table_of
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks
from test_sklearn_checks import expected_failures

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.adapters import MomentsModule, to_onnx
from skdgp.estimators import _training
from skdgp.estimators._functions import FunctionDraws
from skdgp.inference.predictor import Predictor
from skdgp.inference.stack import PRIOR_ROWS, Stack, View, stacking_weights
from skdgp.tables.trend import N_FOLDS, Trend, folds_of

N_FIRST = 60


class Plane(RegressorMixin, BaseEstimator):
    """A plane that it is given, whatever it learns from."""

    def __init__(self, slope=(2.0, -3.0, 1.0)):
        self.slope = slope

    def fit(self, X, y, sample_weight=None):
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        return 5.0 + X @ np.asarray(self.slope)


class Memory(RegressorMixin, BaseEstimator):
    """One for rows that it has learnt from, and zero for all others."""

    def fit(self, X, y):
        self.seen_ = set(map(tuple, X))
        return self

    def predict(self, X):
        return np.array([float(tuple(row) in self.seen_) for row in X])


class Broken(Plane):
    """Predicts what it is given."""

    def __init__(self, value=np.nan):
        self.value = value

    def predict(self, X):
        return np.resize(self.value, (len(X), np.size(self.value)))


PLANE, OTHER = Plane(), Plane((-1.0, 0.5, 4.0))

SMALL = {"max_iter": 4, "random_state": 0}
DEEP = SMALL | {"hidden_dims": (2,), "n_inducing": 5, "n_estimators": 2, "n_samples": 4}

#: Small regressors of each family.
FAMILIES = [
    partial(AVDGPRegressor, **DEEP, network_width=8),
    partial(DSDGPRegressor, **DEEP),
    partial(SOLVEGPRegressor, 10, 5, **SMALL),
]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.func.__name__)
alone = partial(SOLVEGPRegressor, 10, 5, base=None, n_neighbors=0, **SMALL)


def table(n_rows=N_FIRST, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n_rows, 3))
    return X, np.sin(3 * X[:, 0]) + PLANE.predict(X) + 0.1 * rng.normal(size=n_rows)


NEW = table(7, seed=1)[0]


def set_planes(monkeypatch):
    """Let trend="auto" stand for no trend and two planes."""
    monkeypatch.setattr(_training, "regressors", lambda trend, *_: [None, PLANE, OTHER] if trend == "auto" else [trend])


@pytest.fixture
def planes(monkeypatch):
    """A test with planes."""
    set_planes(monkeypatch)


@pytest.fixture
def cheap(monkeypatch):
    """Let trend="auto" stand for no trend, a linear regressor and few trees."""
    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingRegressor", lambda **_: Ridge())
    monkeypatch.setattr("sklearn.ensemble.ExtraTreesRegressor", lambda _: ExtraTreesRegressor(3))


def close(found, expected, tolerance=2e-3):
    """Whether numbers of the size of targets agree, but for rounding errors that training enlarges."""
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# One trend


def left_over(X, y, weight=None):
    """What the plane leaves over of targets: its mean stays."""
    plane = PLANE.predict(X)
    return y - plane + np.average(plane, weights=weight)


def with_plane(X):
    """Rows with the plane as one more feature."""
    return np.column_stack([X, PLANE.predict(X)])


@pytest.mark.parametrize(
    ("family", "likelihood"),
    [
        *((family, "gaussian") for family in FAMILIES),
        (FAMILIES[1], "heteroskedastic"),
        (FAMILIES[2], "student_t"),
    ],
)
def test_it_is_a_model_of_the_left_over_that_has_one_more_feature(family, likelihood):
    X, y = table()
    model = family(trend=PLANE, likelihood=likelihood, early_stopping=True).fit(X, y)
    by_hand = clone(model).set_params(trend=None).fit(with_plane(X), left_over(X, y))
    new, trend = with_plane(NEW), PLANE.predict(NEW) - PLANE.predict(X).mean()
    for latent in (False, True):
        (mean, deviation), (expected, own) = (
            one.predict(rows, return_std=True, latent=latent) for one, rows in ((model, NEW), (by_hand, new))
        )
        close(mean, expected + trend)
        close(deviation, own)
        draws, others = (
            one.sample_y(rows, 3, random_state=0, latent=latent) for one, rows in ((model, NEW), (by_hand, new))
        )
        close(draws, others + trend[:, None])
    close(model.predict(NEW, return_cov=True)[1], by_hand.predict(new, return_cov=True)[1])
    close(model.predict_interval(NEW), by_hand.predict_interval(new) + trend[:, None])
    close(model.predict_dist(NEW).pdf(mean), by_hand.predict_dist(new).pdf(mean - trend))
    for member in range(len(model.module_)):
        for layer, own in zip(model.predict_layers(NEW, member), by_hand.predict_layers(new, member), strict=True):
            close(layer, own)
        layers = zip(
            model.sample_layers(NEW, 2, member, random_state=0),
            by_hand.sample_layers(new, 2, member, random_state=0),
            strict=True,
        )
        for layer, own in layers:
            close(layer, own)
    close(model.lower_bound_, by_hand.lower_bound_)
    for scales, own in zip(model.length_scales_, by_hand.length_scales_, strict=True):
        close(scales, own)
    if hasattr(model, "inducing_points_"):
        for points, own in zip(model.inducing_points_, by_hand.inducing_points_, strict=True):
            close(points, own)
    if likelihood != "heteroskedastic":
        close(model.noise_variance_, by_hand.noise_variance_)


def test_rows_that_are_left_out_and_new_rows_are_those_of_the_left_over():
    X, y = table(70)
    weight = np.where(np.arange(N_FIRST) % 5 == 1, 0.0, 1.0 + np.arange(N_FIRST) % 3)
    first, later = slice(0, N_FIRST), slice(N_FIRST, None)
    shift = np.average(PLANE.predict(X[first]), weights=weight)
    left = y - PLANE.predict(X) + shift
    options = {"n_neighbors": 4, "base": "gp"}
    model = SOLVEGPRegressor(10, 5, trend=PLANE, **options, **SMALL).fit(X[first], y[first], weight)
    by_hand = clone(model).set_params(trend=None).fit(with_plane(X[first]), left[first], weight)
    out, expected = model.leave_one_out(), by_hand.leave_one_out()
    assert out.shape == (N_FIRST,)
    close(out.mean, expected.mean + PLANE.predict(X[first]) - shift)
    close(out.std, expected.std)
    assert np.abs(out.mean - model.predict(X[first]))[weight > 0].max() > 0.02
    np.testing.assert_allclose(out.mean[weight == 0], model.predict(X[first])[weight == 0], rtol=1e-6)
    close(model.neighbors_["length_scales"], by_hand.neighbors_["length_scales"][:3])
    close(model.neighbors_["variance"], by_hand.neighbors_["variance"])
    model.update(X[later], y[later]), by_hand.update(with_plane(X[later]), left[later])
    close(model.predict(X), by_hand.predict(with_plane(X)) + PLANE.predict(X) - shift)
    close(model.predict(X, return_std=True)[1], by_hand.predict(with_plane(X), return_std=True)[1])


@every_family
def test_models_with_kernel_objects_do_not_see_the_trend(family):
    X, y = table()
    model = family(trend=PLANE, kernel=RBF(), n_neighbors=4).fit(X, y)
    by_hand = clone(model).set_params(trend=None).fit(X, left_over(X, y))
    close(model.predict(NEW), by_hand.predict(NEW) + PLANE.predict(NEW) - PLANE.predict(X).mean())
    close(model.predict(NEW, return_cov=True)[1], by_hand.predict(NEW, return_cov=True)[1])
    first, own = (one.kernel_[0] if isinstance(one.kernel_, list) else one.kernel_ for one in (model, by_hand))
    close(first.theta, own.theta)
    constant = clone(model).set_params(trend=DummyRegressor(strategy="constant", constant=1e3)).fit(X, y)
    without = clone(model).set_params(trend=None).fit(X, y)
    close(constant.predict(NEW, return_std=True), without.predict(NEW, return_std=True))


def test_rows_that_the_user_holds_out_are_judged_by_the_left_over():
    X, y = table(80)
    first, later = slice(0, N_FIRST), slice(N_FIRST, None)
    model = FAMILIES[1](trend=PLANE).fit(X[first], y[first], X_val=X[later], y_val=y[later])
    left = y - PLANE.predict(X) + PLANE.predict(X[first]).mean()
    by_hand = clone(model).set_params(trend=None)
    by_hand.fit(with_plane(X[first]), left[first], X_val=with_plane(X[later]), y_val=left[later])
    close(model.validation_scores_, by_hand.validation_scores_)
    close(model.base_weight_, by_hand.base_weight_)


def test_far_away_predictions_follow_a_linear_trend():
    X = np.linspace(-1, 1, 40)[:, None]
    y = 3 * X[:, 0] - 2 + 0.01 * np.random.default_rng(0).normal(size=40)
    far = np.array([[-50.0], [50.0]])
    model = SOLVEGPRegressor(10, 0, trend=LinearRegression(), **SMALL).fit(X, y)
    np.testing.assert_allclose(model.predict(far), 3 * far[:, 0] - 2, rtol=0.02)
    assert np.abs(model.set_params(trend=None).fit(X, y).predict(far)).max() < 10


@pytest.mark.parametrize("y", [2 * table()[0][:, 1] - 1, np.full(N_FIRST, 3.7), 1e9 + table()[0][:, 0]])
def test_a_trend_may_leave_nothing_over(y):
    X = table()[0]
    model = alone(trend=LinearRegression()).fit(X, y)
    mean, deviation = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y, rtol=1e-12, atol=1e-6 * np.ptp(y))
    assert (deviation < 0.01).all()


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e6])
def test_predictions_of_a_perfect_trend_have_the_scale_of_the_targets(scale):
    X = table()[0]
    y = 2 * X[:, 1] + 1
    mean, deviation = alone(trend=LinearRegression()).fit(X, scale * y).predict(X, return_std=True)
    np.testing.assert_allclose(mean, scale * y, rtol=0, atol=1e-5 * scale)
    assert (deviation < 0.01 * scale).all()


# Trends of rows that are left out


def folds(n_rows=40, n_groups=40, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.integers(n_groups, size=n_rows)
    return folds_of(rng.permutation(n_rows), group), group


@pytest.mark.parametrize(("n_rows", "n_groups"), [(40, 1000), (40, 12), (9, 5), (3, 1000)])
def test_rows_of_a_group_share_a_fold_and_folds_have_as_many_groups(n_rows, n_groups):
    fold, group = folds(n_rows, n_groups)
    pairs = np.unique(np.stack([group, fold]), axis=1)
    assert pairs.shape[1] == len(np.unique(group))
    n_folds = min(N_FOLDS, len(np.unique(group)))
    counts = np.bincount(pairs[1], minlength=n_folds)
    assert len(counts) == n_folds and counts.max() - counts.min() <= 1
    assert n_rows < 40 or (fold != folds(n_rows, n_groups, seed=1)[0]).any()


def test_folds_follow_the_order_of_rows():
    order, group = np.array([2, 0, 4, 1, 3]), np.array([7, 5, 5, 9, 7])
    np.testing.assert_array_equal(folds_of(order, group), [1, 0, 0, 2, 1])


@pytest.mark.parametrize("even", [True, False])
def test_trends_of_rows_come_from_copies_that_have_not_seen_their_fold(even):
    X, y = table(40)
    Y = np.column_stack([y, X[:, 0] ** 2])
    Y[[3, 8], 1] = np.nan
    fold, _ = folds(40, 15)
    weight = np.full(40, 2.0) if even else np.random.default_rng(0).uniform(0.1, 3.0, 40)
    trend, values = Trend.learn(Ridge(5.0), X, Y, weight, fold)
    means = np.zeros((len(NEW), 2))
    for output in range(2):
        for number in np.unique(fold):
            there = (fold != number) & ~np.isnan(Y[:, output])
            own = Ridge(5.0).fit(X[there], Y[there, output], None if even else weight[there])
            np.testing.assert_allclose(values[fold == number, output], own.predict(X[fold == number]))
            means[:, output] += own.predict(NEW) / len(np.unique(fold))
    np.testing.assert_allclose(trend(NEW), means)
    assert trend(NEW[:0]).shape == (0, 2)
    inside = trend.units.standardise(values)
    np.testing.assert_allclose(np.average(inside, axis=0, weights=weight), 0, atol=1e-12)
    np.testing.assert_allclose(np.average(inside**2, axis=0, weights=weight), 1)


def test_copies_of_a_row_are_left_out_together():
    X, y = table(30)
    X, y = np.vstack([X, X[:15]]), np.append(y, y[:15])
    model = alone(trend=Memory()).fit(X, y)
    [[copies]] = model.trend_
    columns = table_of(model).as_given(table_of(model).units.standardise(X))
    seen = np.array([copy.predict(columns) for copy in copies])
    np.testing.assert_array_equal(seen.sum(axis=0), N_FOLDS - 1)
    assert table_of(model).trends[0].units.shift == (0.0,)


def test_copies_of_a_row_have_the_same_trend_to_the_last_digit():
    """Products of matrices may round differently in each row, so that copies would not be twins any more."""
    X, y = np.random.default_rng(0).random((9, 30)), np.arange(9.0)
    copies = np.repeat(np.arange(9), np.arange(1, 10))
    fold = folds_of(np.arange(len(copies)), copies)
    _, values = Trend.learn(Ridge(), X[copies], y[copies, None], np.ones(len(copies)), fold)
    np.testing.assert_array_equal(values, values[np.unique(copies, return_index=True)[1]][copies])
    few = alone(trend=Ridge()).set_params(n_inducing=5, n_orthogonal=4)
    weighted, repeated = clone(few).fit(X, y, np.arange(1, 10)), clone(few).fit(X[copies], y[copies])
    np.testing.assert_allclose(repeated.predict(X + 0.1), weighted.predict(X + 0.1), rtol=1e-6)


def test_what_a_trend_cannot_be():
    X, y = table(30)
    weight = np.linspace(1, 2, 30)
    with pytest.raises(ValueError, match=r"KNeighborsRegressor\(\) takes no sample_weight, but rows have different"):
        alone(trend=KNeighborsRegressor()).fit(X, y, weight)
    alone(trend=KNeighborsRegressor()).fit(X, y, np.full(30, 2.0))
    with pytest.raises(ValueError, match=r"Broken\(.*\) predicts numbers that are not finite: choose a regressor that"):
        alone(trend=Broken()).fit(X, y)
    with pytest.raises(ValueError, match=r"Broken\(.*\) predicts 2 numbers for a row"):
        alone(trend=Broken((1.0, 2.0))).fit(X, y)
    with pytest.raises(ValueError, match="A trend needs at least 2 different rows, got 8 copies of 1 sample: give"):
        alone(trend=Ridge()).fit(np.ones((8, 2)), np.ones(8))
    with pytest.raises(
        ValueError, match=r"^Column 1 of y has values in 1 of 30 rows, all in one of the folds of a trend"
    ):
        once = np.where(np.arange(30) == 3, y, np.nan)
        SOLVEGPRegressor(n_latent_outputs=1, trend=Ridge()).fit(X, np.column_stack([y, once]))


# Mixtures of several


class Mixed(NamedTuple):
    """A mixture with ``planes``, its parts fitted alone, and their shares."""

    model: BaseEstimator
    parts: list
    shares: np.ndarray

    @classmethod
    def of(cls, model, X, y):
        parts = [clone(model).set_params(trend=trend).fit(X, y) for trend in (None, PLANE, OTHER)]
        return cls(model.fit(X, y), parts, np.array(predictor_of(model).shares))


@pytest.fixture(
    scope="module",
    params=[*(partial(family, base=None, n_neighbors=0) for family in FAMILIES[:2]), FAMILIES[2]],
    ids=lambda family: family.func.__name__,
)
def mixed(request):
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_planes(monkeypatch)
        return Mixed.of(request.param(trend="auto"), *table())


def test_predictions_are_a_mixture_of_all_parts(mixed):
    model, parts, shares = mixed
    assert shares.sum() == pytest.approx(1) and shares.min() > 0 and np.ptp(shares) > 1e-3
    for latent in (False, True):
        mean, deviation = model.predict(NEW, return_std=True, latent=latent)
        covariance = model.predict(NEW, return_cov=True, latent=latent)[1]
        means, within = zip(*(part.predict(NEW, return_cov=True, latent=latent) for part in parts), strict=True)
        expected = np.einsum("k,kij->ij", shares, within)
        expected += np.einsum("k,ki,kj->ij", shares, *2 * [means - shares @ means])
        close(mean, shares @ means, 1e-6)
        close(covariance, expected, 1e-5)
        np.testing.assert_allclose(covariance.diagonal(), deviation**2, rtol=1e-6)
        dist, others = model.predict_dist(NEW, latent), [part.predict_dist(NEW, latent) for part in parts]
        for there in (mean, mean + deviation):
            close(dist.pdf(there), shares @ [other.pdf(there) for other in others], 1e-5)
        quantiles = model.predict_quantiles(NEW, [0.1, 0.6], latent)
        for level, quantile in zip((0.1, 0.6), quantiles.T, strict=True):
            close(shares @ [other.cdf(quantile) for other in others], np.full(len(NEW), level), 1e-5)
    for name in ("noise_variance_", "lower_bound_", "base_weight_"):
        assert getattr(model, name) == pytest.approx(shares @ [getattr(part, name) for part in parts], rel=1e-6)
    main = parts[shares.argmax()]
    for scales, own in zip(model.length_scales_, main.length_scales_, strict=True):
        close(scales, own, 1e-6)
    assert str(model.kernel_) == str(main.kernel_)
    assert (model.neighbors_ is None) == (main.neighbors_ is None)
    if hasattr(model, "inducing_points_"):
        np.testing.assert_array_equal(model.inducing_points_[0], main.inducing_points_[0])


def test_functions_are_functions_of_the_parts(mixed):
    model, parts, _ = mixed
    sizes = [len(part.module_) for part in parts]
    owner = np.repeat(np.arange(3), sizes)[predictor_of(model).members_of(np.arange(2000))]
    seeds = np.concatenate([np.flatnonzero(owner == part)[:3] for part in range(3)])
    assert len(seeds) == 9
    for seed, values in zip(seeds, FunctionDraws(model, seeds)(NEW).T, strict=True):
        close(values, FunctionDraws(parts[owner[seed]], [seed])(NEW)[:, 0], 1e-6)
    for member in range(len(model.module_)):
        part, own = np.repeat(np.arange(3), sizes)[member], member % sizes[0]
        for found, expected in (
            (model.predict_layers(NEW, member), parts[part].predict_layers(NEW, own)),
            (model.sample_layers(NEW, 2, member, 0), parts[part].sample_layers(NEW, 2, own, 0)),
        ):
            for layer, other in zip(found, expected, strict=True):
                close(layer, other, 1e-6)


def test_functions_have_the_moments_of_predictions(planes):
    X, y = table()
    model = alone(trend="auto").fit(X, y)
    rows = np.vstack([NEW[:4], NEW[:4] + 0.1])
    draws = model.sample_y(rows, 2000, random_state=0, latent=True)
    mean, covariance = model.predict(rows, return_cov=True, latent=True)
    deviation = np.sqrt(covariance.diagonal())
    np.testing.assert_allclose((draws.mean(axis=1) - mean) / deviation, 0, atol=4 / np.sqrt(2000))
    np.testing.assert_allclose((np.cov(draws) - covariance) / np.outer(deviation, deviation), 0, atol=0.15)
    assert np.abs(covariance - np.diag(deviation**2)).max() > 0.3 * deviation.max() ** 2
    noisy = model.sample_y(rows, 2000, random_state=0).std(axis=1)
    np.testing.assert_allclose(noisy, model.predict(rows, return_std=True)[1], rtol=0.08)


def test_functions_do_not_depend_on_rows_or_on_each_other(planes):
    X, y = table()
    model = alone(trend="auto").fit(X, y)
    few, many = (model.sample_functions(number, random_state=0) for number in (3, 12))
    # Products of matrices of other sizes may round in another order.
    np.testing.assert_allclose(few(NEW), many(NEW)[:, :3], rtol=1e-12)
    np.testing.assert_allclose(many(NEW)[2:5], many(NEW[2:5]), rtol=1e-12)
    before = many(NEW)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(many))(NEW), before)
    model.set_params(trend=None).fit(X, -y)
    np.testing.assert_array_equal(many(NEW), before)


@pytest.fixture(scope="module")
def member():
    """A model of one layer."""
    return predictor_of(alone(max_iter=1).fit(*table(20))).models[0]


@pytest.mark.parametrize("first", [0, 10**6, 2**60])
def test_functions_belong_to_parts_by_their_shares(member, first):
    stack = Stack([Predictor(n * [member]) for n in (2, 1, 4)], 3 * [View(3)], [0.5, 0.2, 0.3])
    np.testing.assert_allclose(stack.weights, [0.25, 0.25, 0.2, *4 * [0.075]])
    random = np.random.RandomState(0).randint(2**31 - 1, size=20_000)
    for seeds, tolerance in ((first + np.arange(20_000), 1e-3), (first + random, 0.01)):
        members = stack.members_of(seeds)
        np.testing.assert_allclose(np.bincount(members, minlength=7) / 20_000, stack.weights, atol=tolerance)
    np.testing.assert_array_equal(stack.members_of(seeds[:50]), members[:50])


def test_two_outputs_have_the_covariances_of_the_mixture(planes):
    X, y = table()
    model = alone(trend="auto").fit(X, np.column_stack([y, 10 * X[:, 1] ** 2 - y]))
    dist = model.predict_dist(NEW)
    assert dist.shape == (len(NEW), 2)
    covariance = model.predict_output_cov(NEW)
    np.testing.assert_allclose(covariance[:, [0, 1], [0, 1]], dist.var, rtol=1e-6)
    draws = model.sample_y(NEW, 2000, random_state=0)
    scale = dist.std[:, :, None] * dist.std[:, None]
    found = np.stack([np.cov(row) for row in draws])
    np.testing.assert_allclose((found - covariance) / scale, 0, atol=0.15)
    assert np.abs(covariance[:, 0, 1] / scale[:, 0, 1]).max() > 0.2
    assert model.predict(NEW, return_cov=True)[1].shape == (len(NEW), len(NEW), 2)
    assert model.leave_one_out().shape == (len(X), 2)
    assert [len(outputs) for outputs in model.trend_] == [2, 2]


def test_outputs_of_a_stack_are_in_the_units_of_the_first_part():
    X, y = table(40)
    Y = np.column_stack([y, y**2])
    parts = [alone().fit(X, Y), alone().fit(X, 100 + 7 * Y)]
    stack = Stack([predictor_of(part) for part in parts], 2 * [View(3)], [0.3, 0.7])
    rows = torch.from_numpy(table_of(parts[0]).prepared(NEW)).double()
    mean, covariance = (values.numpy() for values in stack.frozen().outputs(rows))
    units = predictor_of(parts[0]).likelihoods[0].units
    means, within = zip(
        *((part.predict(NEW), part.predict_output_cov(NEW, latent=True)) for part in parts), strict=True
    )
    expected = 0.3 * means[0] + 0.7 * means[1]
    np.testing.assert_allclose(mean * units.scale + units.shift, expected, rtol=1e-5)
    apart = means[1] - means[0]
    total = 0.3 * within[0] + 0.7 * within[1] + 0.21 * apart[:, :, None] * apart[:, None]
    scale = np.asarray(units.scale)
    np.testing.assert_allclose(covariance * scale[:, None] * scale, total, rtol=1e-4)


def test_a_stack_of_a_file_has_a_share_for_each_part(planes):
    model = alone(trend="auto", max_iter=1).fit(*table(30))
    stack = predictor_of(model)
    state = stack.to_plain()
    assert Stack.from_plain(state).shares == stack.shares and Stack.from_plain(state).views == stack.views
    for wrong in ([0.5, 0.5], [0.5, 0.5, 0.5], [1.5, -0.5, 0.0]):
        with pytest.raises(ValueError, match="has weights of another number of predictors"):
            Stack.from_plain(state | {"shares": wrong})


# Weights


def densities(n_rows=50, n_parts=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_parts)) + [0.3, 0.0, -0.5, 0.1][:n_parts], rng.uniform(0.2, 2.0, n_rows)


@pytest.mark.parametrize("n_parts", [2, 3, 4])
def test_weights_are_the_maximum_of_the_penalised_likelihood(n_parts):
    log_density, weight = densities(n_parts=n_parts)

    def loss(logits):
        log_shares = logits - np.logaddexp.reduce(logits)
        mixed = np.logaddexp.reduce(log_density + log_shares, axis=1)
        return -(weight @ mixed + PRIOR_ROWS * log_shares.sum())

    best = minimize(loss, np.zeros(n_parts), method="BFGS", options={"gtol": 1e-9}).x
    expected = np.exp(best - np.logaddexp.reduce(best))
    found = stacking_weights(log_density, weight)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found.sum() == pytest.approx(1)
    assert np.ptp(found) > 0.1


def test_weights_of_parts_that_are_equal_or_much_better():
    log_density, weight = densities()
    same = np.repeat(log_density[:, :1], 2, axis=1)
    np.testing.assert_allclose(stacking_weights(same, weight), 0.5)
    better = stacking_weights(same + np.array([50.0, 0.0]), np.ones(50))
    np.testing.assert_allclose(better, [50.5 / 51, 0.5 / 51])
    np.testing.assert_allclose(stacking_weights(-1e5 + 0 * same, weight), 0.5)


def test_weights_do_not_depend_on_the_order_of_rows_and_count_copies():
    log_density, weight = densities()
    found, order = stacking_weights(log_density, weight), np.random.default_rng(1).permutation(50)
    np.testing.assert_allclose(stacking_weights(log_density[order], weight[order]), found)
    twice = stacking_weights(np.vstack([log_density, log_density[:20]]), np.append(weight, weight[:20]))
    weight[:20] *= 2
    np.testing.assert_allclose(stacking_weights(log_density, weight), twice)


def test_left_out_rows_decide_the_shares(planes):
    X, _ = table(80)
    noise = np.random.default_rng(3).normal(size=80)
    linear = alone(trend="auto", kernel=RBF(1e-3, "fixed"), early_stopping=True)  # so that models know nothing else
    assert predictor_of(linear.fit(X, PLANE.predict(X) + 0.1 * noise)).shares[1] > 0.7
    assert predictor_of(linear.fit(X, OTHER.predict(X) + 0.1 * noise)).shares[2] > 0.7


# Faces


@pytest.mark.parametrize(
    ("family", "trend"), [(FAMILIES[0], "auto"), (FAMILIES[1], Ridge()), (FAMILIES[2], Ridge()), (FAMILIES[2], "auto")]
)
def test_every_family_has_all_that_others_have(family, trend, cheap):
    X, y = table()
    model = family(trend=trend).fit(X, y)
    assert model.score(X, y) > 0.5
    n_parts = 3 if trend == "auto" else 1
    assert len(predictor_of(model).shares) == n_parts
    assert {"trend", "training", "total"} <= model.fit_times_.keys()
    assert len(model.trend_) == max(1, n_parts - 1) and len(model.trend_[0][0]) == N_FOLDS
    expected, draws = model.predict(NEW, return_std=True), model.sample_y(NEW, 5, random_state=0)
    for copy in (pickle.loads(pickle.dumps(model)), deepcopy(model)):
        for found, own in zip(copy.predict(NEW, return_std=True), expected, strict=True):
            np.testing.assert_allclose(found, own, rtol=1e-6)
    np.testing.assert_allclose(copy.sample_y(NEW, 5, random_state=0), draws, rtol=1e-6)
    copy.update(NEW + 5, np.zeros(len(NEW)))
    assert np.abs(copy.predict(NEW) - expected[0]).max() > 1e-6
    np.testing.assert_array_equal(model.predict(NEW), expected[0])
    single = model.predict(NEW.astype(np.float32))
    np.testing.assert_allclose(single, expected[0], rtol=1e-3, atol=1e-3)


def test_fits_can_be_repeated_and_forgotten(cheap):
    X, y = table()
    model = alone(trend="auto").fit(X, y)
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    again.set_params(trend=None).fit(X, y)
    assert not hasattr(again, "trend_")
    np.testing.assert_array_equal(again.predict(NEW), alone().fit(X, y).predict(NEW))
    coarse = alone(trend=Ridge()).fit(X.astype(np.float32), y)
    np.testing.assert_allclose(coarse.predict(NEW), alone(trend=Ridge()).fit(X, y).predict(NEW), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("trend", [Ridge(), "auto"], ids=str)
def test_new_rows_are_learnt(trend, cheap):
    X, y = table()
    model = alone(trend=trend).fit(X, y)
    before = model.predict_dist(NEW).logpdf(PLANE.predict(NEW) + 3.0).mean()
    error = np.abs(model.predict(NEW) - PLANE.predict(NEW) - 3.0).mean()
    model.update(NEW, PLANE.predict(NEW) + 3.0)
    assert np.abs(model.predict(NEW) - PLANE.predict(NEW) - 3.0).mean() < 0.8 * error
    assert model.predict_dist(NEW).logpdf(PLANE.predict(NEW) + 3.0).mean() > before
    with pytest.raises(ValueError, match="update has added rows"):
        model.leave_one_out()


def test_left_out_rows_of_a_mixture(mixed):
    X, y = table()
    model, parts, shares = mixed
    if not isinstance(model, SOLVEGPRegressor):
        with pytest.raises(ValueError, match="have learnt by minibatches"):
            model.leave_one_out()
        return
    out = model.leave_one_out()
    close(out.pdf(y), shares @ [part.leave_one_out().pdf(y) for part in parts], 1e-5)
    assert 0.5 < np.mean(((y - out.mean) / out.std) ** 2) < 2.0
    assert np.abs(y - out.mean).mean() > np.abs(y - model.predict(X)).mean()


@pytest.mark.parametrize("trend", [Ridge(), "auto"], ids=str)
def test_tables_with_categories_and_missing_cells(trend, cheap):
    X, y = table()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=pd.Categorical(np.where(X[:, 1] > 0, "up", "down")))
    frame.loc[::7, "a"] = np.nan
    frame.loc[3::9, "kind"] = None
    model = alone(trend=trend).fit(frame, y)
    assert model.score(frame, y) > 0.5
    mean, covariance = model.predict(frame, return_cov=True)
    deviation = model.predict(frame, return_std=True)[1]
    np.testing.assert_allclose(covariance.diagonal(), deviation**2, rtol=1e-6)
    draws = model.sample_y(frame[:8], 1000, random_state=0)
    np.testing.assert_allclose((draws.mean(axis=1) - mean[:8]) / deviation[:8], 0, atol=0.15)
    np.testing.assert_allclose(draws.std(axis=1) / deviation[:8], 1, atol=0.15)
    with pytest.raises(ValueError, match="cells of X are missing"):
        model.leave_one_out()
    model.update(frame[:3], y[:3])


def test_transformed_targets_have_the_trend_of_their_logarithms(planes):
    X, y = table()
    model = alone(trend="auto", target_transform="log").fit(X, np.exp(y))
    plain = clone(model).set_params(target_transform=None).fit(X, y)
    close(np.log(model.predict_quantiles(NEW, [0.2, 0.7])), plain.predict_quantiles(NEW, [0.2, 0.7]))
    close(np.log(model.sample_y(NEW, 3, random_state=0)), plain.sample_y(NEW, 3, random_state=0))


@pytest.mark.parametrize("likelihood", ["student_t", "heteroskedastic"])
def test_mixtures_with_other_noise(likelihood, planes):
    X, y = table()
    model, parts, shares = Mixed.of(alone(trend="auto", likelihood=likelihood, early_stopping=True), X, y)
    assert np.ptp(shares) > 1e-3
    close(model.predict_dist(NEW).pdf(5.0), shares @ [part.predict_dist(NEW).pdf(5.0) for part in parts], 1e-5)
    _, covariance = model.predict(NEW, return_cov=True)
    np.testing.assert_allclose(covariance.diagonal(), model.predict(NEW, return_std=True)[1] ** 2, rtol=1e-6)
    means, within = zip(*(part.predict(NEW, return_cov=True) for part in parts), strict=True)
    between = np.einsum("k,ki,kj->ij", shares, *2 * [means - shares @ means])
    close(covariance, np.einsum("k,kij->ij", shares, within) + between, 1e-5)


def test_searches_choose_a_trend():
    X = np.linspace(-1, 1, 40)[:, None]
    rng = np.random.default_rng(0)
    search = GridSearchCV(alone(kernel=RBF(0.01, "fixed")), {"trend": [None, Ridge(1e-3)]}, cv=2)
    search.fit(X, 5 * X[:, 0] + 0.1 * rng.normal(size=40))
    assert isinstance(search.best_params_["trend"], Ridge)


def test_rows_of_weight_zero_do_not_matter():
    X, y = table()
    weight = np.where(np.arange(N_FIRST) % 4 == 0, 0.0, 2.0)
    model = alone(trend=Ridge()).fit(X, np.where(weight, y, 1e6), weight)
    without = alone(trend=Ridge()).fit(X[weight > 0], y[weight > 0], weight[weight > 0])
    np.testing.assert_allclose(model.predict(NEW), without.predict(NEW), rtol=1e-6)
    assert model.leave_one_out().shape == (N_FIRST,)


@pytest.mark.filterwarnings("ignore:The time was too short:sklearn.exceptions.ConvergenceWarning")
def test_progress_is_that_of_all_parts_and_time_is_limited(cheap, capsys):
    X, y = table()
    model = FAMILIES[1](trend="auto", base=None, n_neighbors=0, n_estimators=1, verbose=1).fit(X, y)
    shown = capsys.readouterr().out
    assert "epoch 12/12" in shown and "fitted in" in shown
    start = time.monotonic()
    model.set_params(max_iter=10**6, verbose=0, max_time=2.0).fit(X, y)
    assert time.monotonic() - start < 10.0
    assert model.score(X, y) > 0.5


def test_callbacks_get_copies_that_predict(planes):
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on")
    from test_callbacks import Copier

    X, y = table()
    copier = Copier()
    model = FAMILIES[1](trend="auto", n_estimators=1).set_callbacks(copier).fit(X, y)
    scores = [score for _, _, score in copier.copies]
    assert len(scores) > 3 and np.isfinite(scores).all()
    numbers = [len(predictor_of(copy).shares) for _, copy, _ in copier.copies]
    assert set(numbers) == {1, 2, 3} and len(predictor_of(model).shares) == 3


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "poisson"}, "does not go with likelihood='poisson', since a trend is added to targets"),
        ({"warm_start": True}, "a fit cannot go on with warm_start=True"),
        ({"trend": "trees"}, "The 'trend' parameter of SOLVEGPRegressor must be"),
        ({"trend": 3}, "The 'trend' parameter of SOLVEGPRegressor must be"),
    ],
)
def test_options_that_do_not_go_with_a_trend(options, message):
    X, y = table(30)
    with pytest.raises(ValueError, match=message):
        SOLVEGPRegressor(**({"trend": Ridge()} | SMALL | options)).fit(X, np.round(y**2))


def test_a_class_is_no_trend():
    with pytest.raises(ValueError, match=r"trend=Ridge is a class: give an object of it, such as Ridge\(\)"):
        alone(trend=Ridge).fit(*table(30))


def test_methods_that_do_not_go_with_a_trend():
    X, y = table(30)
    with pytest.raises(ValueError, match=r"trend=.* needs all rows at once, got a chunk of them"):
        FAMILIES[1](trend=Ridge()).partial_fit(X, y)
    model = alone(trend=Ridge()).fit(X, y)
    with pytest.raises(ValueError, match=r"predict_gradient needs the derivatives of the trend, and trend=Ridge\(\)"):
        model.predict_gradient(NEW)
    with pytest.raises(ValueError, match="gradient needs the derivatives of the trend"):
        model.sample_functions(2, random_state=0).gradient(NEW)
    with pytest.raises(ValueError, match=r"takes models of PyTorch alone, but this one has trend=Ridge\(\)"):
        MomentsModule(model)
    with pytest.raises(ValueError, match=r"takes models of PyTorch alone, but this one has trend=Ridge\(\)"):
        to_onnx(model, "model.onnx")
    with pytest.raises(ValueError, match="built with trend=Ridge"):
        model.set_params(trend=Ridge(2.0)).update(X, y)


# scikit-learn's checks


class Whole(SOLVEGPRegressor):
    """A regressor that learns from all rows at once, since the checks would give it chunks."""

    @property
    def partial_fit(self):
        raise AttributeError


@parametrize_with_checks(
    [Whole(trend=Ridge(), max_iter=5, base=None, n_neighbors=0)], expected_failed_checks=expected_failures
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@any_options
def test_scikit_learn_checks(estimator, check):
    check(estimator)
