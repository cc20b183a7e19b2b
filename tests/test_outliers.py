"""Targets far out: nothing learns from them if rows are predicted better then, and noise has tails if rows ask."""

import pickle
import time
from itertools import count

import numpy as np
import pytest
import torch
from helpers import normal, predictor_of
from scipy.stats import norm
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from test_base import make_data

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.adapters import MomentsModule
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.noise import Contaminated
from skdgp.gp.units import Units
from skdgp.inference import blending
from skdgp.inference import outliers as outliers_module
from skdgp.inference.base import base_for, fit_base
from skdgp.inference.batches import Batch
from skdgp.inference.ensemble import BETTER_ALONE, CHANCE, Training
from skdgp.inference.tails import Errors, best_tails, noise_of, with_tails
from skdgp.inference.validation import Validation

NOISE = 0.1  # deviation

QUICK = {"max_iter": 20, "n_estimators": 1, "random_state": 0}

KINDS = [SOLVEGPRegressor, DSDGPRegressor, AVDGPRegressor]

every_class = pytest.mark.parametrize("kind", KINDS)

every_scale = pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])


def wave(n_rows=200, seed=0, n_far=10, scale=1.0, side=None):
    """Rows, targets without and with outliers, and the sorted numbers of these; ``side`` is where all of them lie."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    clean = np.sin(3 * X[:, 0]) + X[:, 1] / 2 + NOISE * rng.normal(size=n_rows)
    far = np.sort(rng.choice(n_rows, n_far, replace=False))
    y = clean.copy()
    y[far] += (rng.choice([-1, 1], n_far) if side is None else side) * rng.uniform(5, 10, n_far)
    return X, scale * clean, scale * y, far


def rmse(model, X, y):
    return np.sqrt(np.mean((model.predict(X) - y) ** 2))


def errors_of(n_rows=20_000, share=0.1, narrow=0.04, wide=1.0, variance=0.02, seed=0, n_outputs=1):
    """Errors whose noise is a mixture of two Gaussians."""
    rng = np.random.default_rng(seed)
    noise = np.where(rng.random((n_rows, n_outputs)) < share, wide, narrow)
    error = np.sqrt(noise + variance) * rng.normal(size=(n_rows, n_outputs))
    columns = error, np.full_like(error, variance), np.ones(n_rows)
    return Errors(*(torch.from_numpy(column) for column in columns))


def single(errors):
    """The variance of noise that is one Gaussian."""
    return (errors.error.square() - errors.variance).mean(0)


# Two Gaussians


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_both_gaussians_are_found(n_outputs, unit):
    errors = errors_of(n_outputs=n_outputs)
    errors = Errors(unit * errors.error, unit**2 * errors.variance, errors.weight)
    tails = best_tails(errors, single(errors))
    assert tails.heavy and 0.08 < tails.share < 0.12
    np.testing.assert_allclose(tails.narrow / unit**2, 0.04, rtol=0.1)
    np.testing.assert_allclose(tails.wide / unit**2, 1.0, rtol=0.2)


def test_density_is_that_of_the_mixture():
    errors = errors_of(n_rows=300, n_outputs=2)
    tails = best_tails(errors, single(errors))
    error, variance = errors.error.numpy(), errors.variance.numpy()
    narrow, wide = (norm.pdf(error, scale=np.sqrt(variance + noise.numpy())) for noise in (tails.narrow, tails.wide))
    density = np.log((1 - tails.share) * narrow + tails.share * wide).sum()
    alone = norm.logpdf(error, scale=np.sqrt(variance + single(errors).numpy())).sum()
    np.testing.assert_allclose(tails.log_density, density - 5, rtol=1e-9)  # five numbers were chosen
    np.testing.assert_allclose(tails.gain, density - 5 - alone, rtol=1e-7)


def test_one_gaussian_is_enough_for_gaussian_noise():
    heavy = [best_tails(errors, single(errors)).heavy for errors in (errors_of(200, 0.0, seed=s) for s in range(30))]
    assert sum(heavy) <= 1


def test_one_target_far_out_is_enough_for_two():
    errors = errors_of(200, 0.0)
    errors.error[3] = 50.0
    tails = best_tails(errors, single(errors))
    assert tails.heavy and tails.share < 0.02 and tails.narrow.item() < 0.06 and tails.wide.item() > 100


def test_weights_are_repeated_rows():
    errors = errors_of(300)
    weight = torch.from_numpy(1.0 + np.random.default_rng(1).integers(3, size=300))
    repeated = Errors(*(column.repeat_interleave(weight.long(), 0) for column in errors))
    weighted = best_tails(errors._replace(weight=weight), single(errors))
    again = best_tails(repeated, single(errors))
    np.testing.assert_allclose(weighted.share, again.share, rtol=1e-4)
    np.testing.assert_allclose(weighted.log_density, again.log_density, rtol=1e-7)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_a_likelihood_gets_the_variances(n_outputs):
    likelihood = Gaussian(n_outputs, excess=0.5, floor=0.1).double().requires_grad_(False)
    likelihood.units = Units(n_outputs * [3.0], n_outputs * [2.0])
    narrow, wide = torch.arange(1.0, n_outputs + 1).double() / 100, torch.arange(1.0, n_outputs + 1).double()
    mixed = with_tails(likelihood, 0.2, narrow, wide)
    again = with_tails(mixed, 0.2, narrow, wide)
    for one in (mixed, again):
        np.testing.assert_allclose(noise_of(one), narrow, rtol=1e-6)
        np.testing.assert_allclose(one.noise_variance(), 4 * (0.8 * narrow + 0.2 * wide), rtol=1e-6)
    assert again.narrow is not mixed.narrow and type(again.narrow) is Gaussian
    np.testing.assert_allclose(likelihood.noise_variance(), 4 * 0.6, rtol=1e-6)  # as before


def test_rows_with_missing_cells_have_more_of_both():
    """Densities are those of SciPy, with noise times the rows' ratios."""
    likelihood = Gaussian(2, excess=0.2, floor=0.0).double().requires_grad_(False)
    gaps, weight = normal(30, 2, seed=3).square(), torch.ones(30, dtype=torch.float64)
    likelihood.learn_ratios([1.0, 0.5], likelihood.variance, gaps, weight)
    y, _ = likelihood.with_ratios(normal(30, 2), gaps, weight)
    mixed = Contaminated(likelihood, 0.1, torch.tensor([1.0, 3.0]).double())
    mean, variance = normal(1, 30, 2, seed=1), normal(1, 30, 2, seed=2).square()
    ratio = 1 + gaps @ torch.tensor([1.0, 0.5]).double()
    total = 0.0
    for share, noise in ((0.9, likelihood.variance * likelihood.plain_ratio), (0.1, mixed.wide)):
        deviation = (variance[0] + noise * ratio[:, None]).sqrt()
        total = total + share * norm.pdf(y[:, :2], mean[0], deviation)
    np.testing.assert_allclose(mixed.log_predictive(y, mean, variance)[0], np.log(total).sum(1), rtol=1e-9)
    plain = Contaminated(likelihood, 1e-12, mixed.wide).log_predictive(y, mean, variance)
    torch.testing.assert_close(plain, likelihood.log_predictive(y, mean, variance), rtol=1e-9, atol=1e-5)


# The base


def base_of(X, y, robust=True, weight=None, groups=None):
    rows = Batch.of(X, y, weight, dtype=np.float64)
    return base_for(Gaussian(rows.y.shape[1]).requires_grad_(False), rows, groups, robust=robust)


@pytest.mark.parametrize("side", [None, 1])
def test_a_base_does_without_outliers(side):
    X, clean, y, far = wave(side=side)
    base, learnt = base_of(X, y)
    np.testing.assert_array_equal(np.flatnonzero(learnt.weight == 0), far)
    near = np.setdiff1d(np.arange(len(y)), far)
    alone = fit_base(Batch.of(X[near], clean[near], dtype=np.float64))
    expected, found = (model(torch.from_numpy(X)).mean[0] for model in (alone, base.alternatives()[0]))
    np.testing.assert_allclose(found, expected, rtol=0.2, atol=0.05)  # alternatives differ in kernels


def test_a_base_of_clean_rows_is_as_before():
    X, clean, _, _ = wave()
    (plain, nothing), (base, learnt) = base_of(X, clean, robust=False), base_of(X, clean)
    assert nothing is None and learnt is None
    torch.testing.assert_close(*(one.model(torch.from_numpy(X)).mean for one in (plain, base)))


def test_outliers_of_any_output_count():
    X, clean, y, far = wave()
    _, learnt = base_of(X, np.column_stack([clean, y, -clean]))
    np.testing.assert_array_equal(np.flatnonzero(learnt.weight == 0), far)


def test_a_narrow_peak_stays():
    """Rows that are far from others, but belong to the function: they predict each other."""
    X = np.linspace(-2, 2, 300)[:, None]
    y = 6 * np.exp(-((X[:, 0] - 0.5) ** 2) / 0.002) + 0.05 * np.random.default_rng(0).normal(size=300)
    _, learnt = base_of(X, y)
    assert learnt is None


def test_rare_events_stay():
    """Without the few large targets, means of all rows would be too low."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 3))
    y = np.where(rng.random(400) < 0.02 + 0.1 * (X[:, 0] > 0), rng.uniform(2, 4, 400), 0.05 * rng.normal(size=400))
    _, learnt = base_of(X, y)
    assert learnt is None


def test_absolute_errors_must_be_smaller():
    """Most rows are predicted better, those that were dropped worse, and one row far away decides on the squares."""
    rng = np.random.default_rng(0)
    near, far = 0.1 * rng.normal(size=95), np.full(10, 0.5)

    def judged(near, far, last):
        error = torch.from_numpy(np.concatenate([near, far, [last]]))[:, None]
        errors = Errors(error, torch.zeros_like(error), torch.ones(len(error)).double())
        return outliers_module._Judged(errors, errors, torch.ones(len(error)).bool(), torch.tensor([0.01]).double())

    before = judged(near, far, 50.0)
    assert judged(near / 5, far, 49.9).better_than(before)
    assert not judged(near / 5, 4 * far, 49.0).better_than(before)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_copies_of_errors_are_no_proof(weight):
    """Differences of errors are as sure, and gain as much, as those of the rows once."""
    rows = make_data(40)
    model, alike = fit_base(rows), torch.ones(160, dtype=torch.bool)
    copies = rows.rows(torch.arange(160) // 4).weighing(weight)
    once = outliers_module._judged(model, rows, alike[:40], torch.ones(40).double())
    again = outliers_module._judged(model, copies, alike, torch.ones(160).double())
    assert len(again.errors.error) == 160 and len(again.told.error) == 40
    torch.testing.assert_close(again.told.weight, once.told.weight)


def test_outliers_are_no_neighbours():
    X, _, y, far = wave(300, n_far=15)
    model = SOLVEGPRegressor(**QUICK, n_neighbors=5).fit(X, y)
    np.testing.assert_array_equal(model.outliers_, far)
    weight = predictor_of(model).correction.local.weight
    assert (weight < 1e-6).sum() == 15 and (weight == 1).sum() == 285


def test_too_many_are_no_outliers(monkeypatch):
    """They are the data then. No other base is fitted."""

    def fail(*arguments):
        raise AssertionError

    X, _, y, _ = wave()
    monkeypatch.setattr(outliers_module, "MOST", 0.04)
    monkeypatch.setattr(outliers_module, "set_posteriors", fail)
    assert base_of(X, y)[1] is None


def test_a_matrix_without_a_factor_leaves_the_base_as_it_is(monkeypatch):
    def fail(*arguments):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(outliers_module, "set_posteriors", fail)
    X, _, y, _ = wave()
    assert base_of(X, y)[1] is None


# Estimators


@every_class
@every_scale
def test_predictions_are_nearly_those_without_outliers(kind, scale):
    X, clean, y, far = wave(300, n_far=15, scale=scale)
    new, truth, _, _ = wave(400, seed=1, scale=scale)
    spoilt, expected = kind(**QUICK).fit(X, y), kind(**QUICK).fit(X, clean)
    np.testing.assert_array_equal(spoilt.outliers_, far)
    assert not len(expected.outliers_)
    assert rmse(spoilt, new, truth) < 1.2 * rmse(expected, new, truth)
    low, high = spoilt.predict_interval(new).T
    assert 0.86 < np.mean((low <= truth) & (truth <= high)) < 0.99
    plain = kind(**QUICK, base=None, n_neighbors=0).fit(X, y)
    assert not len(plain.outliers_)


@every_class
def test_new_outliers_are_expected(kind):
    """The density of targets far out is that of their share: intervals of 99 % reach to them, those of 90 % do not."""
    X, _, y, _ = wave(400, n_far=20)
    new, _, truth, far = wave(400, seed=1, n_far=20)
    model = kind(**QUICK).fit(X, y)
    spoilt = np.isin(np.arange(400), far)
    density = model.predict_dist(new).logpdf(truth)
    assert density[spoilt].min() > -12  # a single Gaussian of the usual width has −1000
    low, high = model.predict_interval(new, confidence_level=0.9).T
    assert np.mean(high - low) < 6 * NOISE
    draws = model.sample_y(new[:50], n_samples=200, random_state=0)
    centred = np.abs(draws - np.median(draws, axis=-1, keepdims=True))
    assert 0.02 < np.mean(centred > 1.0) < 0.08


@every_class
def test_weights_decide_as_repeated_rows_do(kind):
    X, _, y, far = wave(240, n_far=12)
    weight = 1.0 + np.random.default_rng(0).integers(2, size=240)
    weight[5] = 0.0
    y[5] = 40.0  # never learnt from, and no outlier therefore
    model = kind(**QUICK).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.outliers_, np.setdiff1d(far, [5]))


def test_weights_count_for_the_share_of_wide_noise():
    X, _, y, far = wave(300, n_far=15)
    weight = np.where(np.isin(np.arange(300), far), 1.0, 3.0)
    models = [SOLVEGPRegressor(**QUICK, n_neighbors=0).fit(X, y, sample_weight=given) for given in (None, weight)]
    shares = [predictor_of(model).likelihoods[0].share.item() for model in models]
    np.testing.assert_allclose(shares, [15 / 300, 15 / 870], rtol=0.25)


def test_rows_given_to_judge_decide_on_the_tails():
    X, _, y, far = wave(300, n_far=15)
    new, clean, spoilt, _ = wave(300, seed=1, n_far=15)
    narrow, wide = (SOLVEGPRegressor(**QUICK).fit(X, y, X_val=new, y_val=values) for values in (clean, spoilt))
    np.testing.assert_array_equal(narrow.outliers_, far)
    assert narrow.noise_variance_ < 3 * NOISE**2 < 0.1 < wide.noise_variance_


def test_a_verbose_fit_says_so(capsys):
    X, clean, y, _ = wave()
    SOLVEGPRegressor(**QUICK, verbose=1).fit(X, y)
    assert "targets of 10 rows are far out (outliers_)" in capsys.readouterr().out
    SOLVEGPRegressor(**QUICK, verbose=1).fit(X, clean)
    assert "far out" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"trend": "auto"}, {"n_neighbors": 5}, {"target_transform": None}])
def test_options_do_not_hide_outliers(options):
    X, clean, y, far = wave(300, n_far=15)
    model = SOLVEGPRegressor(**QUICK, **options).fit(X, y)
    np.testing.assert_array_equal(model.outliers_, far)
    assert rmse(model, X, clean) < 0.2


def test_missing_cells_are_no_outliers():
    X, clean, y, far = wave(400, n_far=20)
    X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    complete = ~np.isnan(X).any(axis=1)
    model = SOLVEGPRegressor(**QUICK).fit(X, y)
    assert np.isin(model.outliers_, far).mean() > 0.8 and np.isin(far[complete[far]], model.outliers_).all()
    assert rmse(model, X[complete], clean[complete]) < 0.2


@pytest.mark.parametrize("options", [{"likelihood": "student_t"}, {"target_transform": "log"}, {"base": None}])
def test_other_models_have_none(options):
    X, _, y, _ = wave()
    model = SOLVEGPRegressor(**QUICK, **options).fit(X, y - y.min() + 1)
    assert model.outliers_.dtype == np.int64 and not len(model.outliers_)
    assert not hasattr(SOLVEGPClassifier(**QUICK).fit(X, y > 0), "outliers_")


def test_one_fit_after_another_forgets():
    X, clean, y, far = wave()
    model = SOLVEGPRegressor(**QUICK).fit(X, y)
    assert len(model.outliers_) == len(far)
    assert not len(model.fit(X, clean).outliers_)
    assert not hasattr(model.fit(X, y).partial_fit(X, clean), "outliers_")


def test_rows_left_out_are_predicted_with_the_tails():
    X, clean, y, far = wave(300, n_far=15)
    model = SOLVEGPRegressor(**QUICK).fit(X, y)
    left_out = model.leave_one_out()
    near = np.setdiff1d(np.arange(300), far)
    assert np.sqrt(np.mean((left_out.mean[near] - clean[near]) ** 2)) < 0.15
    np.testing.assert_allclose(left_out.mean[far], model.predict(X[far]), atol=0.05)  # not learnt, so not left out
    assert left_out.logpdf(y)[far].min() > -12


@every_class
def test_alone_as_in_a_table_and_in_files(kind):
    X, _, y, _ = wave(300, n_far=15)
    model = kind(**QUICK).fit(X, y)
    assert type(predictor_of(model).likelihoods[0]) is Contaminated
    again = pickle.loads(pickle.dumps(model))
    together, alone = model.predict_dist(X), [again.predict_dist(X[[row]]) for row in range(3)]
    np.testing.assert_allclose(together.logpdf(y)[:3], [one.logpdf(y[[i]])[0] for i, one in enumerate(alone)])
    np.testing.assert_array_equal(again.outliers_, model.outliers_)


def test_moments_elsewhere_have_the_tails():
    X, _, y, _ = wave(300, n_far=15)
    model = SOLVEGPRegressor(**QUICK).fit(X, y)
    mean, std = model.predict(X[:5], return_std=True)
    moments = MomentsModule(model)(torch.from_numpy(X[:5]))
    np.testing.assert_allclose(moments[0].numpy().ravel(), mean, rtol=1e-6)
    np.testing.assert_allclose(moments[1].numpy().ravel(), std, rtol=1e-6)
    assert std.min() > 1.0  # one target in twenty is far out


def test_evidence_is_that_of_the_other_rows():
    X, _, y, far = wave(300, n_far=15)
    weight = 1.0 + np.random.default_rng(0).integers(2, size=300)
    weight[3] = 0.0
    model = SOLVEGPRegressor(**QUICK).fit(X, y, sample_weight=weight)
    near = np.setdiff1d(np.arange(300), far)
    expected = model.log_marginal_likelihood(None, X[near], y[near], sample_weight=weight[near])
    assert model.log_marginal_likelihood(None, X, y, sample_weight=weight) == pytest.approx(expected, rel=1e-9)
    assert model.log_marginal_likelihood() == pytest.approx(expected, rel=1e-3)


def test_rows_come_back_that_the_next_base_predicts(monkeypatch):
    """The first base, which bends towards an outlier, takes rows for outliers that are none."""
    X, clean, y, far = wave(seed=10, n_far=1)
    y[far] = clean[far] + 20
    _, learnt = base_of(X, y)
    np.testing.assert_array_equal(np.flatnonzero(learnt.weight == 0), far)
    monkeypatch.setattr(outliers_module, "ROUNDS", 1)
    assert (base_of(X, y)[1].weight == 0).sum() > 1


def test_updates_leave_out_outliers():
    X, _, y, _ = wave(300, n_far=15)
    new, clean, spoilt, far = wave(200, seed=1, n_far=10)
    expected, found = (SOLVEGPRegressor(**QUICK).fit(X, y) for _ in range(2))
    near = np.setdiff1d(np.arange(200), far)
    expected.update(new[near], clean[near])
    found.update(new[far], spoilt[far]).update(new, spoilt)
    np.testing.assert_allclose(found.predict(new), expected.predict(new), rtol=1e-6, atol=1e-8)


def test_chunks_after_a_fit_leave_out_outliers():
    X, _, y, _ = wave(300, n_far=15)
    new, clean, spoilt, _ = wave(200, seed=1, n_far=10)
    expected, found = (SOLVEGPRegressor(**QUICK).fit(X, y) for _ in range(2))
    error = rmse(expected.partial_fit(new, clean), new, clean)
    assert rmse(found.partial_fit(new, spoilt), new, clean) < 1.5 * error


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SOLVEGPRegressor, AVDGPRegressor])
def test_default_members_of_a_known_function(kind):
    """Friedman's function with one target in twenty moved by five to ten deviations."""
    X, truth = make_friedman1(500, noise=1.0, random_state=0)
    rng = np.random.default_rng(0)
    y, far = truth.copy(), np.sort(rng.choice(400, 20, replace=False))
    y[far] += rng.choice([-1, 1], 20) * rng.uniform(5, 10, 20) * truth.std()
    model = kind(random_state=0).fit(X[:400], y[:400])
    np.testing.assert_array_equal(model.outliers_, far)
    assert rmse(model, X[400:], truth[400:]) < 1.25


@pytest.mark.slow
def test_rows_beyond_those_of_the_base_count_too(monkeypatch):
    from skdgp.inference import validation

    monkeypatch.setattr(validation, "rows_of_posterior", _of_two_hundred)
    X, clean, y, far = wave(600, n_far=30)
    model = SOLVEGPRegressor(**QUICK).fit(X, y)
    np.testing.assert_array_equal(model.outliers_, far)
    assert rmse(model, X, clean) < 0.15


def _of_two_hundred(data, order):
    from skdgp.inference.batches import Part

    return Part(data, torch.as_tensor(order[-200:]))


@pytest.mark.parametrize(("more", "weighs"), [(-0.1, True), (0.1, False)])
def test_members_have_no_weight_if_rows_are_likelier_without_them(more, weighs, monkeypatch):
    """A single Gaussian has decided about members. If there are tails, noise with these decides again."""
    X, y, *_ = wave(120)
    own, asked = Validation.tails, []

    def tails(self, predictor, foundation, *, as_with_members=False):
        asked.append((predictor.with_members, as_with_members))
        found = own(self, predictor, foundation, as_with_members=as_with_members)
        less = 0.0 if asked[-1] == (False, True) else more + max(CHANCE, BETTER_ALONE * found.n_rows)
        return found._replace(log_density=10.0 - less, gain=3.0)

    monkeypatch.setattr(Validation, "tails", tails)
    monkeypatch.setattr(blending, "DOUBT", -1e3)  # members gain by it
    fit = {"max_iter": 2, "n_estimators": 2, "random_state": 0, "n_neighbors": 0}
    model = DSDGPRegressor(**fit).fit(X, y)
    assert asked == [(True, False), (False, True), *([] if weighs else [(False, False)])]
    assert (model.base_weight_ < 1) == weighs and type(predictor_of(model).likelihoods[0]) is Contaminated
    if weighs:
        return
    monkeypatch.undo()
    monkeypatch.setattr(Training, "_train", without_gain(Training._train))
    alone = DSDGPRegressor(**fit).fit(X, y)
    assert alone.base_weight_ == 1
    for found, expected in zip(model.predict(X, return_std=True), alone.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0.05)


def without_gain(train):
    """A training at whose end members are no use."""

    def trained(self, *arguments):
        histories = train(self, *arguments)
        self.base_is_enough = True
        return histories

    return trained


@every_class
@every_scale
def test_there_is_no_second_base_where_no_time_is_left(monkeypatch, kind, scale):
    X, clean, y, far = wave(120, n_far=6)
    options = {"n_inducing": 4, "n_estimators": 1, "n_neighbors": 0, "max_iter": 1, "random_state": 0}
    np.testing.assert_array_equal(kind(**options, max_time=1e6).fit(X, scale * y).outliers_, far)
    looks = count()  # a clock that goes on by a hundredth of a second whenever somebody looks at it
    monkeypatch.setattr(time, "monotonic", lambda: next(looks) / 100)
    with pytest.warns(ConvergenceWarning, match="The time was too short, and outliers were not left out: raise max_ti"):
        model = kind(**options, max_time=0.05).fit(X, scale * y)
    assert not len(model.outliers_) and np.isfinite(model.predict(X)).all()
    assert not len(kind(**options, max_time=0.05).fit(X, scale * clean).outliers_)  # without a word
