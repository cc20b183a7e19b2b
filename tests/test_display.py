"""Displays draw what is computed independently here, and say what they cannot draw."""

import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import DEEP_CLASSIFIERS, DEEP_REGRESSORS, REGRESSORS, name_of, targets
from scipy.stats import binom, norm
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skdgp import AVDGPRegressor, DSDGPRegressor, PredictiveDistribution
from skdgp.display import (
    CalibrationDisplay,
    DependenceDisplay,
    GroupCoverageDisplay,
    LatentDisplay,
    LearningCurveDisplay,
    PredictiveIntervalDisplay,
)
from skdgp.inspection import dependence
from skdgp.metrics import calibration_error

matplotlib.use("Agg")

NAMES = ["age", "bmi", "bp"]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def model(wave):
    """An ensemble of two members with two hidden layers, and rows held out."""
    tiny = DEEP_REGRESSORS[1]
    return tiny(hidden_dims=(2, 5), n_estimators=2, early_stopping=True, validation_fraction=0.2).fit(*wave)


@pytest.fixture(scope="module")
def named(wave):
    """A pipeline that was given columns with names."""
    X, y = pd.DataFrame(wave[0], columns=NAMES), wave[1]
    return make_pipeline(StandardScaler(), DEEP_REGRESSORS[0]()).fit(X, y), X, y


@pytest.fixture
def mixture():
    """Observations and mixtures that are too narrow for them."""
    rng = np.random.default_rng(0)
    dist = PredictiveDistribution(rng.normal(size=(2, 60)), rng.uniform(0.1, 0.4, size=(2, 60)), [0.3, 0.7])
    return rng.normal(size=60), dist


def band_of(collection, n):
    """Lower and upper edge (n,) of a band that ``fill_between`` drew over n points."""
    vertices = collection.get_paths()[0].vertices
    return vertices[1 : n + 1, 1], vertices[n + 2 : 2 * n + 2, 1][::-1]


def labels_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# Predictive intervals


def test_interval_over_a_feature_is_the_band_of_the_distribution(tiny, wave):
    X, y = wave
    model = tiny().fit(X, y)
    display = PredictiveIntervalDisplay.from_estimator(model, X, y, feature=1, confidence_level=0.8)
    order = np.argsort(X[:, 1])
    dist = model.predict_dist(X)
    np.testing.assert_allclose(display.line_.get_xdata(), X[order, 1])
    np.testing.assert_allclose(display.line_.get_ydata(), dist.mean[order])
    np.testing.assert_allclose(band_of(display.interval_, len(X)), [end[order] for end in dist.interval(0.8)])
    assert display.ax_.get_xlabel() == "X[:, 1]"
    assert "80 % interval" in labels_of(display.ax_)


def test_interval_marks_observations_and_says_their_share(mixture):
    y, dist = mixture
    display = PredictiveIntervalDisplay.from_predictions(dist, y)
    lower, upper = dist.interval(0.9)
    inside = (lower < y) & (y < upper)
    assert 0 < inside.sum() < 60
    assert sorted(display.inside_.get_offsets()[:, 1]) == sorted(y[inside])
    assert sorted(display.outside_.get_offsets()[:, 1]) == sorted(y[~inside])
    share = f"{inside.sum()} of 60 rows ({100 * inside.mean():.1f} %)"
    assert display.ax_.get_title() == f"{share} lie inside their 90 % interval"


@pytest.mark.parametrize("n_rows", [60, 600])
def test_interval_without_a_feature_sorts_rows_by_their_means(mixture, n_rows):
    _, dist = mixture
    dist = dist[np.arange(n_rows) % 60]
    display = PredictiveIntervalDisplay.from_predictions(dist)
    order = np.argsort(dist.mean, kind="stable")
    segments = np.array(display.interval_.get_segments())  # (n, 2 ends, x and y)
    np.testing.assert_allclose(segments[:, 0, 0], np.arange(1, n_rows + 1))
    np.testing.assert_allclose(segments[:, :, 1].T, [end[order] for end in dist.interval(0.9)])
    np.testing.assert_array_equal(display.line_.get_ydata(), dist.mean[order])
    assert display.inside is None and display.inside_ is None and display.outside_ is None
    assert display.ax_.get_title() == ""


def test_interval_of_one_column_is_drawn_over_it():
    X = np.linspace(0, 1, 10)[::-1, None]
    model = GaussianProcessRegressor(optimizer=None).fit(X, X[:, 0])
    for rows in (X, X.tolist()):
        display = PredictiveIntervalDisplay.from_estimator(model, rows)
        np.testing.assert_array_equal(display.line_.get_xdata(), X[::-1, 0])


@pytest.mark.parametrize("feature", [1, "bmi"])
def test_interval_over_a_named_column(named, feature):
    model, X, y = named
    display = PredictiveIntervalDisplay.from_estimator(model, X, y, feature=feature)
    assert display.ax_.get_xlabel() == "bmi"
    np.testing.assert_array_equal(display.line_.get_xdata(), np.sort(X["bmi"]))


def test_interval_of_a_search(wave):
    X, y = wave
    search = GridSearchCV(DEEP_REGRESSORS[1](max_iter=1), {"beta": [0.1]}, cv=2).fit(X, y)
    display = PredictiveIntervalDisplay.from_estimator(search, X)
    np.testing.assert_allclose(display.mean, search.best_estimator_.predict(X))


def test_interval_of_one_of_several_outputs(mixture):
    y, dist = mixture
    wide = PredictiveDistribution(
        np.stack([dist.means, dist.means + 5], axis=-1), np.stack([dist.variances] * 2, axis=-1), dist.weights
    )
    display = PredictiveIntervalDisplay.from_predictions(wide, np.column_stack([y, y + 5]), output=1)
    np.testing.assert_allclose([display.lower, display.upper], [5 + end for end in dist.interval()], atol=1e-4)
    np.testing.assert_array_equal(display.y, y + 5)
    message = r"dist of shape \(60, 2\) has 2: choose one, as output=0"
    for draw in (PredictiveIntervalDisplay.from_predictions, lambda d: CalibrationDisplay.from_predictions(y, d)):
        with pytest.raises(ValueError, match=message):
            draw(wide)
    with pytest.raises(ValueError, match="output=2 is none of the 2 outputs: give 0 to 1, or None"):
        PredictiveIntervalDisplay.from_predictions(wide, output=2)


def test_interval_of_a_column_of_targets(mixture):
    y, dist = mixture
    column = PredictiveDistribution(dist.means[..., None], dist.variances[..., None], dist.weights)
    display = PredictiveIntervalDisplay.from_predictions(column, y[:, None])
    np.testing.assert_array_equal(display.mean, dist.mean)
    np.testing.assert_array_equal(display.y, y)


def test_interval_takes_axes_and_styles(mixture):
    y, dist = mixture
    figure, ax = plt.subplots()
    display = PredictiveIntervalDisplay.from_predictions(
        dist, y, ax=ax, line_kwargs={"c": "k", "lw": 3}, interval_kwargs={"lw": 2}, scatter_kwargs={"c": "g"}
    )
    assert display.ax_ is ax and display.figure_ is figure
    assert (display.line_.get_color(), display.line_.get_linewidth()) == ("k", 3)
    assert display.interval_.get_linewidth() == 2
    again = display.plot()
    assert again is display and again.ax_ is not ax


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": np.zeros(5)}, r"y of shape \(5,\) does not match predictions of shape \(60,\): give as many rows"),
        ({"x": np.zeros(5)}, r"x of shape \(5,\) must have one value for each of the 60 predictions"),
        ({"confidence_level": 90}, "confidence_level must lie between 0 and 1"),
        ({"y": np.full(60, np.nan)}, "Input y contains NaN"),
    ],
)
def test_interval_says_what_does_not_match(mixture, options, message):
    with pytest.raises(ValueError, match=message):
        PredictiveIntervalDisplay.from_predictions(mixture[1], **options)


@pytest.mark.parametrize(
    ("as_frame", "feature", "message"),
    [
        (False, 3, "feature 3 is none of the 3 columns: give 0 to 2"),
        (False, "age", "feature 'age' is a name, but columns have none: give a number or a DataFrame"),
        (True, "sex", r"feature 'sex' is none of the columns \['age', 'bmi', 'bp'\]: give one of them, or its number"),
    ],
)
def test_unknown_features_are_named(wave, as_frame, feature, message):
    X = pd.DataFrame(wave[0], columns=NAMES) if as_frame else wave[0]
    model = GaussianProcessRegressor(optimizer=None).fit(X, wave[1])
    with pytest.raises(ValueError, match=message):
        PredictiveIntervalDisplay.from_estimator(model, X, feature=feature)


# Calibration


def test_reliability_is_the_share_below_each_quantile(mixture):
    y, dist = mixture
    display = CalibrationDisplay.from_predictions(y, dist, name="mine")
    reached, share = display.line_.get_data()
    assert display.line_.get_drawstyle() == "steps-post"
    assert (reached[0], share[0], reached[-1], share[-1]) == (0, 0, 1, 1)
    for p in (0.03, 0.2, 0.5, 0.77):
        assert share[np.searchsorted(reached, p, side="right") - 1] == np.mean(y <= dist.ppf(p))
    assert labels_of(display.ax_)[1] == f"mine (calibration error {calibration_error(y, dist):.3f})"


def test_band_holds_calibrated_models_nine_times_in_ten(mixture):
    display = CalibrationDisplay.from_predictions(*mixture)
    p = display.reference_.get_xdata()
    np.testing.assert_array_equal(display.reference_.get_ydata(), p)
    lower, upper = 60 * np.array(band_of(display.band_, len(p)))
    inner = (p > 0) & (p < 1)
    p, lower, upper = p[inner], lower[inner].round(), upper[inner].round()
    assert (binom.cdf(lower - 1, 60, p) < 0.05).all() and (binom.cdf(lower, 60, p) >= 0.05).all()
    assert (binom.sf(upper, 60, p) <= 0.05).all() and (binom.sf(upper - 1, 60, p) > 0.05).all()


def test_histogram_counts_transforms(mixture):
    y, dist = mixture
    display = CalibrationDisplay.from_predictions(y, dist, kind="pit", n_bins=4)
    pit = dist.weights @ norm.cdf((y - dist.means) / np.sqrt(dist.variances))
    density, edges, _ = display.line_.get_data()
    np.testing.assert_allclose(density, [4 * np.mean((low <= pit) & (pit < low + 0.25)) for low in edges[:-1]])
    np.testing.assert_allclose(band_of(display.band_, 2)[0], 4 * binom.ppf(0.05, 60, 0.25) / 60)
    assert display.ax_.get_ylim()[1] > max(density)
    assert labels_of(display.ax_)[0] == "calibrated, with 90 % band of 60 rows, 4 bins"


@pytest.mark.parametrize("kind", ["reliability", "pit"])
def test_models_share_axes_and_the_band(mixture, kind):
    y, dist = mixture
    first = CalibrationDisplay.from_predictions(y, dist, kind=kind)
    second = CalibrationDisplay.from_predictions(y, dist, kind=kind, name="second", ax=first.ax_)
    assert second.ax_ is first.ax_
    assert second.band_ is None and second.reference_ is None
    assert len(labels_of(first.ax_)) == 3
    fewer = CalibrationDisplay.from_predictions(y[:30], dist[:30], kind=kind, ax=first.ax_)
    assert fewer.band_ is not None  # which is wider


def test_histograms_on_the_same_axes_all_fit_in(mixture):
    y, dist = mixture
    first = CalibrationDisplay.from_predictions(y, dist, kind="pit")
    far = CalibrationDisplay.from_predictions(y + 100, dist, kind="pit", ax=first.ax_)
    assert far.line_.get_data().values.max() == 10
    CalibrationDisplay.from_predictions(y, dist, kind="pit", ax=first.ax_)
    assert first.ax_.get_ylim()[0] == 0 and first.ax_.get_ylim()[1] > 10


def test_calibration_names_the_model_in_a_pipeline(named):
    model, X, y = named
    display = CalibrationDisplay.from_estimator(model, X, y)
    np.testing.assert_allclose(display.pit, model[-1].predict_dist(model[:-1].transform(X)).cdf(y))
    assert display.line_.get_label().startswith("AVDGPRegressor (calibration error 0.")
    assert CalibrationDisplay.from_estimator(model, X, y, name="mine").line_.get_label().startswith("mine (")


def test_calibration_without_an_error_or_a_name(mixture):
    assert CalibrationDisplay([0.2, 0.6], name="mine").plot().line_.get_label() == "mine"
    assert CalibrationDisplay.from_predictions(*mixture).line_.get_label().startswith("calibration error")
    assert len(labels_of(CalibrationDisplay([0.2, 0.6]).plot().ax_)) == 1


def test_calibration_names_the_kinds(mixture):
    with pytest.raises(ValueError, match='kind=\'histogram\' is not known: give "reliability" or "pit"'):
        CalibrationDisplay.from_predictions(*mixture, kind="histogram")


# Learning curves


def test_learning_curve_shows_what_was_recorded(model):
    display = LearningCurveDisplay.from_estimator(make_pipeline(StandardScaler(), model))
    np.testing.assert_array_equal(display.loss_line_.get_data(), [[1, 2, 3], model.loss_curve_])
    np.testing.assert_array_equal(display.score_line_.get_data(), [[1, 2, 3], model.validation_scores_])
    assert [line.get_xdata()[0] for line in display.best_lines_] == sorted({*model.best_iter_})
    assert labels_of(display.ax_) == ["best epochs of 2 members"]
    assert display.score_ax_.get_ylabel() == "Validation score: log density per row, nats"


def test_learning_curve_without_held_out_rows(deep, wave):
    model = deep(early_stopping=False).fit(*wave)
    display = LearningCurveDisplay.from_estimator(model)
    np.testing.assert_array_equal(display.loss_line_.get_ydata(), model.loss_curve_)
    assert display.score_ax_ is None and display.score_line_ is None and display.best_lines_ == []
    assert display.ax_.get_legend() is None


def test_learning_curve_of_one_member():
    display = LearningCurveDisplay([2.0, 1.0], [-1.0, -0.5], best=2).plot(best_kwargs={"ls": ":"})
    assert labels_of(display.ax_) == ["best epoch"]
    assert display.best_lines_[0].get_linestyle() == ":"


def test_learning_curve_says_what_does_not_match():
    with pytest.raises(ValueError, match="scores of 1 epochs and loss of 2 must have the same length"):
        LearningCurveDisplay([2.0, 1.0], [-1.0]).plot()
    with pytest.raises(ValueError, match=r"best=\[1, 3\] must hold epochs from 1 to 2, as many as loss has"):
        LearningCurveDisplay([2.0, 1.0], best=[1, 3]).plot()


# Layers


def follow(model, member, rows):
    """Standardised moments (n, P) of a member's last layer, from its own forward pass."""
    inputs = torch.as_tensor(rows, dtype=next(model.module_.parameters()).dtype)
    mean, variance, log_weight, _ = model.module_[member](inputs)[:4]
    mean, variance, weight = (each.double().numpy() for each in (mean, variance, log_weight[:, 0].exp()))
    centre = np.tensordot(weight, mean, axes=1)
    return centre, np.sqrt(np.tensordot(weight, variance + (mean - centre) ** 2, axes=1))


@pytest.mark.parametrize("member", [0, 1])
def test_last_layer_is_what_the_member_predicts(model, wave, member):
    X, _ = wave
    display = LatentDisplay.from_estimator(model, X, features=1, grid_resolution=20, member=member)
    (grid,) = display.grids
    np.testing.assert_allclose(grid, np.linspace(*np.quantile(X[:, 1], [0.025, 0.975]), 20))
    rows = np.column_stack([np.full(20, np.median(X[:, 0])), grid, np.full(20, np.median(X[:, 2]))])
    mean, std = follow(model, member, (rows - X.mean(axis=0)) / X.std(axis=0))
    np.testing.assert_allclose(display.means[-1], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(display.stds[-1], std, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(display.lines_[-1][0].get_ydata(), mean[:, 0], rtol=1e-4, atol=1e-5)
    band = band_of(display.bands_[-1][0], 20)
    np.testing.assert_allclose(band, [mean[:, 0] - 2 * std[:, 0], mean[:, 0] + 2 * std[:, 0]], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tiny", [*DEEP_REGRESSORS, DEEP_CLASSIFIERS[1]], ids=name_of)
def test_latent_display_draws_functions_of_layers(tiny, wave):
    model = tiny(hidden_dims=(6,)).fit(wave[0], targets(tiny, wave[1]))
    display = LatentDisplay.from_estimator(model, wave[0], grid_resolution=9, n_draws=3, random_state=0)
    grid = np.tile(np.median(wave[0], axis=0), (9, 1))
    grid[:, 0] = display.grids[0]
    for drawn, expected in zip(display.draws, model.sample_layers(grid, 3, random_state=0), strict=True):
        np.testing.assert_array_equal(drawn, expected)
    assert display.draws[0].shape == (9, 6, 3)
    assert [len(lines) for lines in display.lines_] == [4 * 3, min(4, display.draws[1].shape[1]) * 3]
    np.testing.assert_array_equal(display.lines_[1][2].get_ydata(), display.draws[1][:, 0, 2])
    assert display.bands_ == [[], []] and display.axes_[0].get_ylabel() == "Functions of the posterior"
    assert "4 of 6 outputs" in display.axes_[0].get_title()
    with pytest.raises(ValueError, match="n_draws=3 functions are lines over one feature, got features="):
        LatentDisplay.from_estimator(model, wave[0], features=(0, 1), n_draws=3)


def test_sampled_layers_end_in_functions(wave):
    model = DEEP_REGRESSORS[1]().fit(*wave)
    layers = model.sample_layers(wave[0][:5], 4, random_state=1)
    again = model.sample_layers(wave[0], 4, random_state=1)
    np.testing.assert_array_equal(layers[0], again[0][:5])
    y = model.sample_functions(4, random_state=1)(wave[0][:5])
    units = model.module_[0].likelihood.units
    np.testing.assert_allclose(layers[1][:, 0] * units.scale[0] + units.shift[0], y)
    for number in (0, -1):
        with pytest.raises(ValueError, match=f"n_functions={number} must be an integer of at least 1"):
            model.sample_layers(wave[0], number)
    with pytest.raises(ValueError, match="member=3 is none of the 1 members"):
        model.sample_layers(wave[0], member=3)


def test_first_layer_is_a_function_of_the_inputs(model, wave):
    X, _ = wave
    display = LatentDisplay.from_estimator(model, X, grid_resolution=5)
    rows = np.column_stack([display.grids[0], *(np.full(5, np.median(X[:, i])) for i in (1, 2))])
    rows = model.module_[0].layers[0].Z.new_tensor((rows - X.mean(axis=0)) / X.std(axis=0))
    mean, variance, _ = model.module_[0].layers[0](rows[None], rows)
    np.testing.assert_allclose(display.means[0], mean[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(display.stds[0], variance[0].sqrt(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("propagation", [0, 1, 2])
def test_layers_of_one_member_average_to_the_prediction(wave, propagation):
    X, y = wave
    tiny = DEEP_REGRESSORS[0]
    model = tiny(**tiny.propagations[propagation]).fit(X, y)
    display = LatentDisplay.from_estimator(model, X, grid_resolution=7)
    rows = np.column_stack([display.grids[0], *(np.full(7, np.median(X[:, i])) for i in (1, 2))])
    dist = model.predict_dist(rows, latent=True)
    scale, shift = y.std(), y.mean()
    np.testing.assert_allclose(shift + scale * display.means[-1][:, 0], dist.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scale * display.stds[-1][:, 0], dist.std, rtol=1e-5, atol=1e-6)


def test_every_layer_has_axes_and_titles(model, wave):
    display = LatentDisplay.from_estimator(model, wave[0], grid_resolution=10)
    assert [mean.shape for mean in display.means] == [(10, 2), (10, 5), (10, 1)]
    assert [ax.get_title() for ax in display.axes_] == [
        "Hidden layer 1",
        "Hidden layer 2\n4 of 5 outputs, which vary most",
        "Last layer, standardised y",
    ]
    left_out = np.ptp(display.means[1], axis=0).argmin()
    assert [*display.outputs_[1]] == [i for i in range(5) if i != left_out]
    assert labels_of(display.axes_[1]) == [f"output {i}" for i in display.outputs_[1]]
    assert display.contours_ == []


def test_a_shallow_process_has_one_layer(wave):
    display = LatentDisplay.from_estimator(REGRESSORS[2]().fit(*wave), wave[0], grid_resolution=5)
    assert [ax.get_title() for ax in display.axes_] == ["Last layer, standardised y"]


def test_two_features_make_contours(model, wave):
    X, _ = wave
    display = LatentDisplay.from_estimator(model, X, features=(2, 0), grid_resolution=6)
    assert [mean.shape for mean in display.means] == [(6, 6, 2), (6, 6, 5), (6, 6, 1)]
    i, j = 1, 4
    row = np.array([[display.grids[1][j], np.median(X[:, 1]), display.grids[0][i]]])
    expected, _ = follow(model, 0, (row - X.mean(axis=0)) / X.std(axis=0))
    np.testing.assert_allclose(display.means[-1][i, j], expected[0], rtol=1e-4, atol=1e-5)
    assert (display.axes_[0].get_xlabel(), display.axes_[0].get_ylabel()) == ("X[:, 2]", "X[:, 0]")
    assert len(display.contours_) == 3 and display.lines_ == []
    low, high = display.contours_[-1].levels[[0, -1]]
    assert low <= display.means[-1].min() and high >= display.means[-1].max()


def test_contours_of_several_outputs_are_their_first_component():
    a, b = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 5), indexing="ij")
    mean = np.stack([3 * a, 4 * a, 1 + 0 * b], axis=-1)  # 5 a along (0.6, 0.8, 0)
    display = LatentDisplay([a[:, 0], b[0]], [mean], [0 * mean]).plot()
    assert display.axes_[0].get_title() == "Layer 1\n1st component, 100 % of variance"
    assert display.contours_[0].zmin == pytest.approx(-5) and display.contours_[0].zmax == pytest.approx(5)


def test_collapsed_layers_are_drawn():
    mean = np.ones((5, 5, 2))
    display = LatentDisplay([np.arange(5), np.arange(5)], [mean], [mean]).plot()
    display.figure_.canvas.draw()
    assert display.axes_[0].get_title().endswith("100 % of variance")


def test_pipeline_layers_are_drawn_over_what_the_last_step_is_given(named):
    model, X, _ = named
    display = LatentDisplay.from_estimator(model, X, features="bmi", grid_resolution=5)
    scaled = model[:-1].transform(X)
    np.testing.assert_allclose(display.grids[0][[0, -1]], np.quantile(scaled[:, 1], [0.025, 0.975]))
    assert display.axes_[0].get_xlabel() == "bmi"


def test_steps_that_name_no_columns(named):
    model, X, _ = named
    unnamed = make_pipeline(FunctionTransformer(), *model)
    display = LatentDisplay.from_estimator(unnamed, X, features=1, grid_resolution=5)
    assert display.axes_[0].get_xlabel() == "X[:, 1]"


def test_names_of_the_columns_of_fit(deep, wave):
    X = pd.DataFrame(wave[0], columns=NAMES)
    display = LatentDisplay.from_estimator(deep().fit(X, wave[1]), X, features=("age", "bp"), grid_resolution=5)
    assert (display.axes_[0].get_xlabel(), display.axes_[0].get_ylabel()) == ("age", "bp")


def test_layers_of_a_classifier(wave):
    model = DEEP_CLASSIFIERS[1]().fit(wave[0], wave[1] > 0)
    display = LatentDisplay.from_estimator(model, wave[0], grid_resolution=5)
    assert display.axes_[-1].get_title() == "Last layer, latent"


def test_targets_that_are_not_standardised_are_not_called_so(wave):
    fitted = DEEP_REGRESSORS[1](normalize_y=False).fit(*wave)
    for now in (False, True):  # the parameter as it was in fit counts
        display = LatentDisplay.from_estimator(fitted.set_params(normalize_y=now), wave[0])
        assert display.axes_[-1].get_title() == "Last layer, y"


def test_targets_without_their_trend_are_called_so(wave):
    fitted = DEEP_REGRESSORS[1](trend="auto").fit(*wave)
    members = fitted._learnt.predictor
    names = {LatentDisplay.from_estimator(fitted, wave[0], member=k).axes_[-1].get_title() for k in range(len(members))}
    assert names == {"Last layer, standardised y", "Last layer, standardised y less its trend"}
    alone = DEEP_REGRESSORS[1](trend=Ridge(), normalize_y=False).fit(*wave)
    title = LatentDisplay.from_estimator(alone, wave[0]).axes_[-1].get_title()
    assert title == "Last layer, y less its trend"


@pytest.mark.parametrize("options", [{"likelihood": "poisson"}, {"target_transform": "log"}])
def test_outputs_that_are_no_targets_are_not_called_so(wave, options):
    X, y = wave
    fitted = DEEP_REGRESSORS[1](**options).fit(X, np.rint(np.exp(y)) + 1)
    display = LatentDisplay.from_estimator(fitted.set_params(target_transform=None), X, grid_resolution=5)
    assert display.axes_[-1].get_title() == "Last layer, latent"


def test_layers_of_tables_that_cannot_be_varied(wave):
    X, y = wave
    missing = X.copy()
    missing[3, 0] = np.nan
    with pytest.raises(ValueError, match="LatentDisplay needs rows without missing cells, and X has some: leave out"):
        LatentDisplay.from_estimator(DEEP_REGRESSORS[1]().fit(X, y), missing)
    frame = pd.DataFrame(X).assign(where=pd.Categorical(np.where(y > 0, "a", "b"))).rename(columns=str)
    with pytest.raises(ValueError, match="LatentDisplay varies numbers, but this model has categories among its"):
        LatentDisplay.from_estimator(DEEP_REGRESSORS[1]().fit(frame, y), frame)


def test_layers_do_not_depend_on_batches(model, wave, monkeypatch):
    whole = LatentDisplay.from_estimator(model, wave[0], grid_resolution=9)
    monkeypatch.setattr("skdgp.inference.predictor.PREDICT_NUMBERS", 1)
    rows = LatentDisplay.from_estimator(model, wave[0], grid_resolution=9)
    for expected, found in zip(whole.means + whole.stds, rows.means + rows.stds, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_take_axes(model, wave):
    figure, axes = plt.subplots(3, 1)
    display = LatentDisplay.from_estimator(model, wave[0], grid_resolution=5, ax=axes)
    assert display.figure_ is figure and [*display.axes_] == [*axes]
    with pytest.raises(ValueError, match="ax holds 2 axes, but 3 are drawn on: give as many, or None"):
        display.plot(axes[:2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 3}, "feature 3 is none of the 3 columns"),
        ({"n_draws": -1}, "n_draws=-1 must be the number of functions to show, or 0 for means and bands"),
        ({"grid_resolution": 2.5}, r"grid_resolution=2\.5 makes no grid"),
        ({"features": (0, 1, 2)}, r"features=\[0, 1, 2\] must be one column of X, or two different ones"),
        ({"features": (1, 1)}, r"features=\[1, 1\] must be one column of X, or two different ones"),
        ({"features": ()}, r"features=\[\] must be one column of X, or two different ones"),
        ({"member": 2}, "member=2 is none of the 2 members: give 0 to 1"),
        ({"grid_resolution": 1}, "grid_resolution=1 makes no grid: give a whole number from 2 on"),
    ],
)
def test_layers_say_what_cannot_be_drawn(model, wave, options, message):
    with pytest.raises(ValueError, match=message):
        LatentDisplay.from_estimator(model, wave[0], **options)


def test_constant_features_cannot_be_drawn(model, wave):
    X = wave[0].copy()
    X[:, 1] = 0.5
    message = r"feature 'X\[:, 1\]' is 0.5 at its 2.5 % quantile and at its 97.5 % quantile: choose one that varies"
    with pytest.raises(ValueError, match=message):
        LatentDisplay.from_estimator(model, X, features=1)


# All displays


def draw_from_estimator(display, estimator, X, y):
    rows = {LearningCurveDisplay: (), LatentDisplay: (X,), DependenceDisplay: (X,)}.get(display, (X, y))
    return display.from_estimator(estimator, *rows)


DISPLAYS = [CalibrationDisplay, DependenceDisplay, LatentDisplay, LearningCurveDisplay, PredictiveIntervalDisplay]


@pytest.mark.parametrize("display", DISPLAYS)
def test_displays_need_matplotlib_and_say_so(display, model, wave, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = rf'{display.__name__}.from_estimator draws with matplotlib, .* pip install "skdgp\[plot\]"'
    with pytest.raises(ImportError, match=message):
        draw_from_estimator(display, model, *wave)


def test_plot_needs_matplotlib_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for display in (LearningCurveDisplay([1.0]), CalibrationDisplay([0.5]), LatentDisplay([], [], [])):
        with pytest.raises(ImportError, match=rf"{type(display).__name__}\.plot draws with matplotlib"):
            display.plot()


@pytest.mark.parametrize("display", DISPLAYS)
@pytest.mark.parametrize(
    "estimator",
    [
        AVDGPRegressor(),
        make_pipeline(StandardScaler(), AVDGPRegressor()),
        GridSearchCV(AVDGPRegressor(), {"beta": [1.0]}),
    ],
    ids=["alone", "pipeline", "search"],
)
def test_displays_need_fitted_estimators(display, estimator, wave):
    with pytest.raises(NotFittedError):
        draw_from_estimator(display, estimator, *wave)


@pytest.mark.parametrize("display", [DependenceDisplay, LatentDisplay, LearningCurveDisplay])
def test_displays_of_deep_gps_reject_other_models(display, wave):
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(*wave)
    message = f"{display.__name__} takes estimators of skdgp, or pipelines and searches .*, got LinearRegression"
    with pytest.raises(TypeError, match=message):
        draw_from_estimator(display, model, *wave)


def test_displays_of_predictions_reject_models_without_any(wave):
    for display in (CalibrationDisplay, PredictiveIntervalDisplay):
        with pytest.raises(TypeError, match="LinearRegression predicts no distribution"):
            draw_from_estimator(display, LinearRegression().fit(*wave), *wave)


# Partial dependence


def test_dependence_draws_averages_bands_and_rows(model, wave):
    X, _ = wave
    options = {"n_draws": 10, "grid_resolution": 5, "random_state": 0}
    display = DependenceDisplay.from_estimator(model, X, [0, 2], kind="both", subsample=7, **options)
    for j, axes, result, line, band, lines, rug in zip(
        (0, 2),
        display.axes_,
        display.results,
        display.lines_,
        display.bands_,
        display.individual_lines_,
        display.rugs_,
        strict=True,
    ):
        expected = dependence(model, X, j, kind="both", subsample=7, **options)
        np.testing.assert_allclose(result.draws, expected.draws)
        np.testing.assert_allclose(line.get_xydata(), np.column_stack([expected.grid_values, expected.average]))
        np.testing.assert_allclose(band_of(band, 5), [expected.lower, expected.upper])
        np.testing.assert_allclose([row.get_ydata() for row in lines], expected.individual[expected.rows])
        assert axes.get_xlabel() == f"X[:, {j}]" and len(lines) == 7 and len(rug.get_segments()) == 9
    assert display.axes_[0].get_ylabel() == "Mean prediction"
    assert labels_of(display.axes_[0]) == ["single rows", "90 % band", "mean over rows"]
    again = display.plot(plt.subplots(1, 2)[1], line_kwargs={"color": "k"})
    assert again is display and display.lines_[0].get_color() == "k"
    with pytest.raises(ValueError, match="ax holds 1 axes, but 2 are drawn on"):
        display.plot(plt.gca())


def test_dependence_on_categories_has_points_and_bars():
    X = pd.DataFrame({"size": np.linspace(0, 1, 40), "city": np.resize(["Rome", "Oslo", "Lima", None], 40)})
    tree = DEEP_REGRESSORS[1]().fit(X, X["size"])
    display = DependenceDisplay.from_estimator(tree, X, "city", kind="both", n_draws=5, random_state=0)
    (result,), (line,), (bars,), (points,) = display.results, display.lines_, display.bands_, display.individual_lines_
    np.testing.assert_allclose(line.get_xydata(), np.column_stack([range(4), result.average]))
    ends = np.array(bars.get_segments())[:, :, 1].T
    np.testing.assert_allclose(ends, [result.lower, result.upper])
    assert [text.get_text() for text in display.axes_[0].get_xticklabels()] == ["Lima", "Oslo", "Rome", "missing"]
    np.testing.assert_allclose(points[0].get_ydata(), result.individual.T.ravel())
    assert len(DependenceDisplay.from_estimator(tree, X, n_draws=2).axes_) == 2  # all columns


def test_dependence_on_dates_is_drawn_over_them():
    X = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=40, freq="9D")})
    model = DEEP_REGRESSORS[1]().fit(X, np.arange(40.0))
    display = DependenceDisplay.from_estimator(model, X, n_draws=5, random_state=0)
    (result,), (line,), (rug,) = display.results, display.lines_, display.rugs_
    np.testing.assert_array_equal(line.get_xdata(), result.grid_values)
    assert result.grid_values.dtype == "datetime64[us]" and len(rug.get_segments()) == 9


@pytest.mark.slow
def test_dependence_of_classes_and_outputs(wave):
    X, y = wave
    classifier = DEEP_CLASSIFIERS[1]().fit(X, np.where(y > 0, "up", "down"))
    options = {"n_draws": 3, "grid_resolution": 3}
    assert (
        DependenceDisplay.from_estimator(classifier, X, 0, **options).axes_[0].get_ylabel() == "Mean probability of up"
    )
    two = DEEP_REGRESSORS[1]().fit(X, np.column_stack([y, y]))
    display = DependenceDisplay.from_estimator(two, X, 0, target=1, kind="individual", **options)
    assert display.axes_[0].get_ylabel() == "Prediction of output 1"
    assert display.lines_ == [None] and display.bands_ == [None] and len(display.individual_lines_[0]) == 100


@pytest.mark.slow
def test_dependence_without_a_band(model, wave):
    X, y = wave
    assert DependenceDisplay.from_estimator(model, X, 0, band=False).bands_ == [None]
    latent = DSDGPRegressor((), 5, latent_dims=1, max_iter=1, n_estimators=1).fit(X, y)
    assert DependenceDisplay.from_estimator(latent, X, 0).bands_ == [None]
    with pytest.raises(ValueError, match="latent_dims=1 gives each row latent variables of its own"):
        DependenceDisplay.from_estimator(latent, X, 0, band=True)
    with pytest.raises(ValueError, match='band=True belongs to averages, which kind="individual" does not show'):
        DependenceDisplay.from_estimator(model, X, 0, kind="individual", band=True)
    with pytest.raises(ValueError, match="band='yes' must be \"auto\", True or False"):
        DependenceDisplay.from_estimator(model, X, 0, band="yes")


class TestGroupCoverageDisplay:
    def test_draws_what_is_counted_in_each_group(self, mixture):
        y, dist = mixture
        groups = np.where(np.arange(60) < 40, "b", "a")
        display = GroupCoverageDisplay.from_predictions(dist, y, groups=groups, confidence_level=0.8, name="region")
        lower, upper = dist.interval(0.8)
        for number, rows in enumerate([slice(40, 60), slice(0, 40)]):
            inside = (lower[rows] <= y[rows]) & (y[rows] <= upper[rows])
            assert display.coverage[number] == pytest.approx(inside.mean())
            assert display.width[number] == pytest.approx((upper - lower)[rows].mean())
            np.testing.assert_allclose(display.dots_.get_offsets()[number], [100 * inside.mean(), number])
            low, high = binom.interval(0.9, len(inside), 0.8)
            np.testing.assert_allclose(
                display.band_.get_segments()[number][:, 0], np.array([low, high]) / len(inside) * 100
            )
            assert display.bars_[number].get_width() == pytest.approx(display.width[number])
        left, right = display.axes_
        assert [label.get_text() for label in left.get_yticklabels()] == ["a  (20)", "b  (40)"]
        assert left.get_ylabel() == "region (rows)" and "80 %" in right.get_xlabel() and left.yaxis_inverted()

    def test_takes_columns_of_frames_and_other_regressors(self, named):
        model, X, y = named
        X = X.assign(region=pd.Series(["n", None] * len(X))[: len(X)].to_numpy())
        display = GroupCoverageDisplay.from_estimator(model, X[NAMES], y, groups=X["region"], name="region")
        assert display.group.tolist() == ["n", None]
        assert [label.get_text()[:7] for label in display.axes_[0].get_yticklabels()] == [
            f"n  ({display.n_rows[0]})",
            "missing",
        ]
        with pytest.raises(ValueError, match="groups='region' is no column of X: pass the name of one"):
            GroupCoverageDisplay.from_estimator(model, X[NAMES], y, groups="region")
        by_age = GroupCoverageDisplay.from_estimator(model, X[NAMES].round(0), y, groups="age")
        assert by_age.name == "age" and by_age.n_rows.sum() == len(y)

    def test_draws_on_given_axes_and_in_a_given_style(self, mixture):
        y, dist = mixture
        figure, axes = plt.subplots(1, 2)
        display = GroupCoverageDisplay.from_predictions(dist, y, groups=np.arange(60) % 3, ax=axes)
        assert display.axes_[0] is axes[0] and display.figure_ is figure and axes[1].yaxis_inverted()
        again = display.plot(bar_kwargs={"color": "k"}, dot_kwargs={"s": 9})
        assert again.bars_[0].get_facecolor() == (0, 0, 0, 1) and again.dots_.get_sizes().tolist() == [9]
