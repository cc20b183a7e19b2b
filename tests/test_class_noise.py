"""The least noise of a base for classes."""

import numpy as np
import pytest
import torch
from helpers import normal
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.metrics import log_loss

from skdgp import AVDGPClassifier, DSDGPClassifier, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.gp.classes import Bernoulli, RobustMax
from skdgp.gp.grades import Ordinal
from skdgp.inference import class_noise
from skdgp.inference.base import base_for, fit_base_of_classes, fit_base_of_grades
from skdgp.inference.batches import Batch, in_least_squares
from skdgp.inference.class_noise import DOUBT, GRADE_SHARES, MOST_ROWS, least_noise

CLASSIFIERS = [SOLVEGPClassifier(), AVDGPClassifier(max_iter=3), DSDGPClassifier(max_iter=3)]


def rows_of(n_rows, n_classes=2, noise=0.0):
    """Rows whose class is a level of some function, but for noise; and the numbers that stand for the classes."""
    X = normal(n_rows, 4)
    height = (2 * X[:, 0]).sin() + X[:, 1] + noise * normal(n_rows, 1, seed=7)[:, 0]
    edges = height.quantile(torch.arange(1, n_classes).double() / n_classes)
    rows = Batch(X, torch.bucketize(height, edges)[:, None].double(), torch.ones(n_rows, dtype=torch.float64))
    likelihood = (Bernoulli() if n_classes == 2 else RobustMax(n_classes)).double()
    return likelihood, rows, in_least_squares(likelihood, rows)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_that_overlap_have_much_noise_and_certain_ones_little(n_classes):
    for n_rows, noise, expected in ((200, 0.0, 0.1), (100, 1.5, 1.0)):
        likelihood, rows, numbers = rows_of(n_rows, n_classes, noise)
        assert least_noise(likelihood, rows, numbers.y, fit_base_of_classes) == expected
        base, _ = base_for(likelihood, rows)
        spread = (numbers.y - numbers.y.mean(0)).square().mean().item()
        assert base.model.likelihood.floor.item() == pytest.approx(expected * spread, rel=1e-5)


@pytest.mark.parametrize("n_parts", [2, 3])
def test_rows_are_predicted_by_bases_of_the_others(n_parts, monkeypatch):
    monkeypatch.setattr(class_noise, "LARGE", 60 if n_parts == 3 else 59)
    _, rows, numbers = rows_of(60)
    mean, variance = class_noise._predicted(numbers, torch.arange(60), fit_base_of_classes, 0.3)
    first = None
    for number in range(n_parts):
        model = fit_base_of_classes(numbers.rows(torch.arange(60) % n_parts != number), 0.3, first)
        first = first or model
        expected = model(rows.X[number::n_parts])
        torch.testing.assert_close(mean[number::n_parts], expected.mean[0])
        torch.testing.assert_close(variance[number::n_parts], expected.variance[0])


@pytest.mark.parametrize("copies", [2, 3, 8])
def test_copies_of_rows_are_no_proof_of_little_noise(copies):
    """A base that has learnt a copy is sure of the class of the other ones."""
    likelihood, rows, numbers = rows_of(100, noise=1.5)
    index = torch.arange(100).repeat_interleave(copies)
    assert least_noise(likelihood, rows.rows(index), numbers.y[index], fit_base_of_classes) == 1.0
    few = torch.arange(class_noise.FEWEST_ROWS - 1).repeat_interleave(copies)
    assert least_noise(likelihood, rows.rows(few), numbers.y[few], None) == 1.0


def test_loss_is_that_of_the_best_multiple():
    likelihood, rows, _ = rows_of(30)
    rows = Batch(rows.X, rows.y, (1.0 + torch.arange(30) % 3).double())
    mean, variance = 0.2 * normal(30, 1, seed=1) + 0.1 * (rows.y - 0.5), normal(30, 1, seed=2).square()
    sign, m, v = (values.numpy()[:, 0] for values in (2 * rows.y - 1, mean, variance))

    def negative(log_scale):
        c = np.exp(log_scale)
        return -rows.weight.numpy() @ norm.logcdf(sign * c * m / np.sqrt(1 + c**2 * v))

    expected = minimize_scalar(negative, bounds=(-4, 6), method="bounded").fun
    for some in (rows, rows.weighing(4.0)):  # the unit of weights, whose mean is 2 and 8, is no evidence
        assert class_noise._loss(likelihood, some, mean, variance) == pytest.approx(expected / 2.0, rel=1e-6)


def test_a_row_of_weight_two_counts_twice():
    likelihood, rows, _ = rows_of(30)
    weight, twice = torch.where(torch.arange(30) < 10, 2.0, 1.0).double(), [*range(10), *range(30)]
    mean, variance = rows.X[:, :1], torch.ones(30, 1, dtype=torch.float64)
    found = class_noise._loss(likelihood, Batch(rows.X, rows.y, weight), mean, variance)
    assert found == pytest.approx(class_noise._loss(likelihood, rows.rows(twice), mean[twice], variance[twice]))


@pytest.mark.parametrize(("n_rows", "expected"), [(class_noise.FEWEST_ROWS - 1, 1.0), (MOST_ROWS + 1, 0.1)])
def test_very_few_and_many_rows_are_not_asked(n_rows, expected):
    likelihood, rows, numbers = rows_of(n_rows)
    assert least_noise(likelihood, rows, numbers.y, None) == expected
    assert least_noise(likelihood, rows, numbers.y, None, GRADE_SHARES) == 0.0


@pytest.mark.parametrize("gain", [DOUBT - 0.1, DOUBT + 0.1])
def test_less_noise_must_gain_more_than_chance(gain, monkeypatch):
    """A third of a small table has other classes by chance, and functions that bend at every row would fit them."""
    likelihood, rows, numbers = rows_of(30)
    monkeypatch.setattr(class_noise, "_predicted", lambda numbers, group, fit, share: (share, None))
    monkeypatch.setattr(class_noise, "_loss", lambda likelihood, rows, share, _: 20.0 - gain * (share == 0.1))
    assert least_noise(likelihood, rows, numbers.y, None) == (0.1 if gain > DOUBT else 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [12, 30])
def test_few_rows_of_classes_that_overlap_are_not_certain(n_rows):
    """Kernel and noise have learnt from the rows that judge them, so that a few rows look certain."""
    losses = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n_rows + 500, 3))
        y = rng.random(n_rows + 500) < 1 / (1 + np.exp(-X[:, 0]))
        predicted = SOLVEGPClassifier(max_iter=2, random_state=0).fit(X[:n_rows], y[:n_rows]).predict_proba(X[n_rows:])
        losses.append(log_loss(y[n_rows:], predicted))
    assert np.mean(losses) < 0.78


@pytest.mark.parametrize("n_rare", [1, 2, 5])
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_rare_class_may_be_missing_from_a_part(classifier, n_rare):
    X = normal(60, 4).numpy()
    y = np.where(np.arange(60) < n_rare, "rare", "usual")
    found = classifier.set_params(random_state=0).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert np.isfinite(found).all() and 0.0 < found[:, 0].mean() < 0.3


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scales_of_features_do_not_matter(scale):
    X, y = normal(80, 3).numpy(), np.arange(80) % 2
    one, other = (
        SOLVEGPClassifier(random_state=0).fit(factor * X, y).predict_proba(factor * X) for factor in (1.0, scale)
    )
    np.testing.assert_allclose(one, other, atol=1e-3)


def test_probabilities_hold_where_a_rare_class_is_hard_to_tell():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2200, 8))
    y = rng.random(2200) < 0.05 + 0.1 * (X[:, 0] > 1)
    predicted = SOLVEGPClassifier(random_state=0).fit(X[:200], y[:200]).predict_proba(X[200:])
    constant = np.tile([1 - y[:200].mean(), y[:200].mean()], (2000, 1))
    assert log_loss(y[200:], predicted) < log_loss(y[200:], constant) + 0.01


def grades_of(n_rows, cuts, noise, seed):
    """Rows of two features, and grades: between which cut points a smooth function plus noise lies."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    height = np.sin(1.5 * X[:, 0]) + 0.3 * X[:, 1] + noise * rng.standard_normal(n_rows)
    return X, np.digitize(height, cuts).astype(float)


@pytest.mark.parametrize(("cuts", "noise", "expected"), [([1.3, 1.6], 0.5, 1.0), ([-1.0, -0.3, 0.3, 1.0], 0.1, 0.0)])
def test_rare_grades_have_much_noise_and_certain_ones_any(cuts, noise, expected):
    X, y = (column[:90] for column in grades_of(390, cuts, noise, seed=167))
    likelihood = Ordinal(1)
    likelihood.learn_units(y[:, None], normalize=True)
    rows = Batch(torch.from_numpy(X), torch.from_numpy(likelihood.encode(y[:, None])), torch.ones(90).double())
    likelihood.initialise(rows.y, rows.weight)
    numbers = likelihood.regressands(rows.y)
    base, _ = base_for(likelihood, rows)
    share = base.model.likelihood.floor[0].item() / numbers.var(correction=0).item()
    assert share == pytest.approx(expected, rel=1e-4, abs=0.2)
    # However much rows gain, there may be more doubt.
    assert least_noise(likelihood, rows, numbers, fit_base_of_grades, GRADE_SHARES, doubt=1e3) == 0.0


def test_rare_grades_are_not_certain():
    """A base that bends at the few rows of rare grades would give others the probability 1e-10."""
    X, y = grades_of(390, [1.3, 1.6], 0.5, seed=167)
    model = SOLVEGPRegressor(likelihood="ordinal", max_iter=2, random_state=0).fit(X[:90], y[:90])
    log_p = model.predict_dist(X[90:]).logpmf(y[90:])
    shares = np.bincount(y[:90].astype(int)) / 90
    assert log_p.mean() > np.log(shares[y[90:].astype(int)]).mean()
    assert log_p.min() > -10
