"""The sparse GP that members are blended with, and the weight that it gets."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import ensemble_of, normal, predictor_of, table_of
from scipy import stats
from scipy.optimize import approx_fprime
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.classes import Bernoulli, RobustMax
from skdgp.gp.deep_gp import Marginals
from skdgp.gp.kernels import LinearKernel, StationaryKernel, SumKernel
from skdgp.gp.likelihoods import NOISE_DEVIATION, NOISE_FREEDOM, Gaussian
from skdgp.gp.noise import StudentT
from skdgp.gp.units import Units
from skdgp.gp.waves import Streams
from skdgp.inference import base as base_module
from skdgp.inference import base_moments, foundation, kernel_search, starts, validation
from skdgp.inference.base import Base, base_for, fit_base, fit_base_of_classes, with_alternatives
from skdgp.inference.base_moments import left_out_moments, left_out_of_basis
from skdgp.inference.batches import Batch, Part
from skdgp.inference.blending import (
    EDGE,
    OutOfSample,
    _Density,
    _density,
    _Probability,
    blend,
)
from skdgp.inference.collapsed import left_out, set_posteriors
from skdgp.inference.evidence import log_evidence, most_likely, observations
from skdgp.inference.foundation import Foundation, rows_of_posterior
from skdgp.inference.kernel_search import KernelSearch, smooth_of
from skdgp.inference.starts import greedy_points


def make_data(n_rows=60, noise=0.1, n_outputs=1, seed=0):
    X = normal(n_rows, 2, seed=seed)
    y = torch.stack([torch.sin(2 * X[:, 0]) + 0.5 * X[:, 1], X[:, 1].square() - 1.0][:n_outputs], dim=1)
    return Batch(X, y + noise * normal(*y.shape, seed=seed + 1), torch.ones(n_rows, dtype=torch.float64))


def as_scikit_learn(model):
    """The exact GP with a base's kernel and noise."""
    smooth, linear = model.layers[0].kernel.kernels
    profile = RBF if smooth.profile == "rbf" else lambda length_scale: Matern(length_scale, nu=2.5)
    kernel = (
        ConstantKernel(smooth.variance.item()) * profile(smooth.lengthscale[0].numpy())
        + ConstantKernel(linear.variance.item() / linear.n_inputs) * DotProduct(sigma_0=1e-9, sigma_0_bounds="fixed")
        + WhiteKernel(model.likelihood.variance.item())
    )
    return GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_is_the_exact_gp_where_points_are_as_many_as_it_takes(noise):
    data, new = make_data(noise=noise), make_data(20, seed=5)
    model = fit_base(data)
    exact = as_scikit_learn(model).fit(data.X, data.y[:, 0])
    mean, std = exact.predict(new.X, return_std=True)
    found = model(new.X)
    slack = 0.1 * std + 1e-6
    assert (np.abs(found.mean[0, :, 0].numpy() - mean) < slack).all()
    np.testing.assert_allclose((found.variance[0, :, 0] + model.likelihood.variance).sqrt(), std, rtol=0.1, atol=1e-6)


def test_takes_few_points_for_noisy_targets_and_many_for_exact_ones(monkeypatch):
    monkeypatch.setattr(base_module, "FEWEST_POINTS", 5)
    found = [len(fit_base(make_data(150, noise)).layers[0].Z) for noise in (1.0, 0.1, 0.0)]
    assert 5 <= found[0] < found[1] < found[2]


def test_takes_enough_points_to_know_where_the_data_are():
    data = make_data(150, noise=10.0)
    assert len(fit_base(data).layers[0].Z) > 40  # noise alone would need one


def test_has_the_kernel_that_makes_the_rows_most_likely():
    data = make_data(100, noise=0.0)
    rough = Batch(data.X, (data.X[:, :1] > 0).double() + 0.5 * (data.X[:, 1:] > 0.5), data.weight)
    profiles = [fit_base(each).layers[0].kernel.kernels[0].profile for each in (data, rough)]
    assert profiles == ["rbf", "matern52"]


@pytest.mark.parametrize("seed", [0, 2])
def test_outputs_that_are_constant_do_not_decide_the_kernel(seed):
    """With four of them functions that do not vary were most likely, and the errors of the other output were large."""
    rng = np.random.default_rng(seed)
    X, new = rng.uniform(-2, 2, (60, 2)), rng.uniform(-2, 2, (200, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=60)
    model, constant = SOLVEGPRegressor(max_iter=2, random_state=0), np.full((60, 4), [3.0, 0.1, 0.0, -1e9])
    mean, std = model.fit(X, np.column_stack([y, constant])).predict(new, return_std=True)
    assert np.sqrt(np.mean((mean[:, 0] - np.sin(2 * new[:, 0])) ** 2)) < 0.05 and std[:, 0].mean() < 0.15
    np.testing.assert_allclose(mean[:, 1:], np.broadcast_to(constant[0], (200, 4)), rtol=1e-6, atol=1e-6)
    rows = Batch(*map(torch.from_numpy, (X, np.column_stack([y, 0 * y, 0 * y]), np.ones(60))))
    both, alone = fit_base(rows), fit_base(Batch(rows.X, rows.y[:, :1], rows.weight))
    scales = [smooth_of(one.layers[0].kernel).lengthscale for one in (both, alone)]
    torch.testing.assert_close(*scales, rtol=0.2, atol=0.0)
    noise = both.likelihood.variance
    assert noise[0].item() == pytest.approx(alone.likelihood.variance.item(), rel=0.05) and (noise[1:] < 1e-8).all()


@pytest.mark.parametrize("at_once", [0, 1000])
def test_points_are_those_of_largest_variance_left(at_once, monkeypatch):
    monkeypatch.setattr(starts, "AT_ONCE", at_once)
    X, kernel = normal(30, 2), SumKernel([StationaryKernel("rbf", 2), LinearKernel(2, variance=0.3)]).double()
    with torch.no_grad():
        chosen = greedy_points(kernel, X, 0.05, fewest=1, most=30)
        K = kernel(X, X)[0]
    left = K.diagonal()
    for number, pivot in enumerate(chosen):
        assert left.mean() > 0.05
        assert left[pivot].item() == pytest.approx(left.max().item())
        some = chosen[: number + 1]
        left = (K - K[:, some] @ torch.linalg.pinv(K[some][:, some]) @ K[some]).diagonal()
    assert left.mean() <= 0.05
    with torch.no_grad():
        assert len(greedy_points(kernel, X, 1e9, fewest=1, most=30)) == 1
        assert len(greedy_points(kernel, X.repeat(2, 1), 0.0, fewest=1, most=60)) <= 30


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("n_points", [6, 60])  # few points leave a part of the variance unexplained
def test_left_out_is_a_posterior_without_the_row(n_outputs, beta, n_points, monkeypatch):
    monkeypatch.setattr(base_module, "POINTS", n_points)
    data = make_data(n_outputs=n_outputs)
    data = Batch(data.X, data.y, (torch.arange(len(data)) % 3 + 1).double())
    model = fit_base(data)
    with torch.no_grad():
        model.likelihood.log_excess.fill_(np.log(0.01))
    set_posteriors(model, data, beta)
    some = torch.tensor([3, 17, 40])
    mean, variance = left_out(model, data.rows(some), data, beta)
    for place, row in enumerate(some):
        others = data.rows(torch.arange(len(data)) != row)
        set_posteriors(model, others, beta)
        found = model(data.X[row, None])
        torch.testing.assert_close(mean[place], found.mean[0, 0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(variance[place], found.variance[0, 0], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_left_out_rows_of_an_exact_function(seed):
    """Few rows and no noise: a row at the end has a leverage of nearly one, and others say little about it."""
    x = torch.from_numpy(np.random.default_rng(seed).random((15, 1)))
    y = (6 * x - 2).square() * (12 * x - 4).sin()
    x, y = ((column - column.mean()) / column.std() for column in (x, y))
    data = Batch(x, y, torch.ones(15, dtype=torch.float64))
    model = fit_base(data)
    mean, variance = left_out(model, data, data)
    noise = model.likelihood.variance.item()
    for row in range(15):
        set_posteriors(model, data.rows(torch.arange(15) != row))
        found = model(data.X[row, None])
        deviation = (found.variance[0, 0] + noise).sqrt()
        torch.testing.assert_close(mean[row] / deviation, found.mean[0, 0] / deviation, rtol=0.0, atol=1e-3)
        torch.testing.assert_close(variance[row] + noise, found.variance[0, 0] + noise, rtol=1e-3, atol=0.0)


def test_targets_on_a_grid_have_its_noise_unless_they_are_known_better():
    data = make_data(200, noise=0.0)
    rounded = Batch(data.X, (4 * data.y).round() / 4, data.weight)
    # Rows that come twice, with the same targets, look as if there were no noise.
    twice = Batch(
        *(torch.cat([column, column]) for column in (rounded.X, rounded.y + 0.25 * normal(200, 1).round(), data.weight))
    )
    steps = Batch(data.X, data.X[:, :1].round(), data.weight)  # an exact function, of whole numbers
    line = Batch(steps.y + 0.0 * data.X, 0.25 * steps.y, data.weight)
    noise = [fit_base(each).likelihood.variance.item() for each in (rounded, twice, line)]
    assert noise[0] >= 0.25**2 / 12 and noise[1] >= 0.25**2 / 12 and noise[2] < 1e-6


def test_rows_that_it_does_not_know_are_predicted(monkeypatch):
    monkeypatch.setattr(foundation, "POSTERIOR_ROWS", 40)
    data = make_data()
    order = np.random.default_rng(0).permutation(len(data))
    basis = rows_of_posterior(data, order)
    model = fit_base(basis.rows())
    [(mean, variance, between), again] = left_out_moments(
        Base(model), 2 * [Part(data, torch.as_tensor(order[10:30]))], basis
    )
    torch.testing.assert_close((mean, variance, between), tuple(again))
    assert not between.any()  # there is one alternative
    plain = model(data.X[order[10:30]])
    torch.testing.assert_close(mean[:10], plain.mean[0, :10])
    torch.testing.assert_close(variance[:10], plain.variance[0, :10])
    assert (variance[10:] > plain.variance[0, 10:]).all()
    others = make_data(90, seed=9)  # rows of another table, and some of them by numbers that this one has, too
    for found, _, _ in left_out_moments(Base(model), 2 * [Part(others)], basis):
        torch.testing.assert_close(found, model(others.X).mean[0])
    for found, _, _ in left_out_moments(Base(model), 2 * [Part(others).spread(30)], basis):
        torch.testing.assert_close(found, model(others.X[::3]).mean[0])


@pytest.mark.parametrize("n_rows", [30, 260])
def test_what_is_known_of_its_rows_is_not_computed_again(n_rows, monkeypatch):
    """Few rows have alternatives. Parts of its rows, in any order, and rows that it does not know."""
    monkeypatch.setattr(foundation, "POSTERIOR_ROWS", n_rows - 10)
    data = make_data(n_rows)
    order = np.random.default_rng(0).permutation(n_rows)
    basis = rows_of_posterior(data, order)
    base, _ = base_for(Gaussian(1).double(), basis.rows())
    known = left_out_of_basis(base, basis)
    parts = [Part(data, torch.as_tensor(order[3:25])), Part(data, torch.as_tensor(order[::-1].copy()))]
    expected = left_out_moments(base, parts, basis)
    monkeypatch.setattr(base_moments, "left_out", lambda *_: pytest.fail("computed again"))
    for found, moments in zip(left_out_moments(base, parts, basis, known), expected, strict=True):
        torch.testing.assert_close(tuple(found), tuple(moments))


def test_many_rows_of_the_user_judge(monkeypatch):
    """Of many rows some judge. They are rows of the user's table, which is longer than the training table here."""
    for name, number in (("MAX_ROWS", 40), ("MOST_VALIDATION_ROWS", 30)):
        monkeypatch.setattr(validation, name, number)
    data, others = make_data(60), make_data(200, seed=4)
    model = SOLVEGPRegressor(20, 0, method="svi", n_estimators=2, max_iter=3, n_neighbors=5, random_state=0)
    model.fit(data.X.numpy(), data.y[:, 0].numpy(), X_val=others.X.numpy(), y_val=others.y[:, 0].numpy())
    held_out = ensemble_of(model).held_out
    assert held_out.n_rows == 40  # of both members, which the same rows judge
    rows, blended = others.rows(torch.arange(40) * 5), predictor_of(model).blend
    units = ensemble_of(model).models[0].likelihood.units
    y = (rows.y - torch.tensor(units.shift)) / torch.tensor(units.scale)
    moments = [
        blended.joined(blended.share(X, blended.of_base(X)), each(X), blended.of_base(X)).moments()
        for each in ensemble_of(model).models
        for X in [torch.as_tensor(table_of(model).units.standardise(rows.X.numpy()))]
    ]
    score = [blended.likelihood.log_predictive(y, mean[None], variance[None]).mean() for mean, variance in moments]
    assert held_out.score == pytest.approx(float(torch.stack(score).mean()), abs=1e-6)


def make_likelihood(n_outputs=1):
    likelihood = Gaussian(n_outputs).double()
    likelihood.units = Units([3.0] * n_outputs, [2.0] * n_outputs)
    return likelihood


def judged_by(rows, mean, variance, base_mean, base_variance):
    """Held-out rows with the moments of a member and a base of one alternative."""
    return OutOfSample(rows, mean, variance, base_mean, base_variance, torch.zeros_like(base_variance))


def multiplied(model, factor):
    """A base with the same mean and so much times its variance."""
    layer = model.layers[0]
    with torch.no_grad():
        for part in layer.kernel.kernels:
            part.log_variance += np.log(factor)
        layer.q.mean /= np.sqrt(factor)
        model.likelihood.floor *= factor
        model.likelihood.log_excess += np.log(factor)
    return model


def judged(data, deep_error, base_error, n_members=2):
    """Members and a base whose errors have these deviations, and that know them."""
    found = []
    for member in range(n_members):
        h = data.y + deep_error * normal(*data.y.shape, seed=10 + member)
        g = data.y + base_error * normal(*data.y.shape, seed=20)
        spread = [torch.full_like(data.y, max(error**2, 1e-12)) for error in (deep_error, base_error)]
        found.append(judged_by(data, h, spread[0], g, spread[1]))
    return found


@pytest.mark.parametrize(("errors", "expected"), [((0.01, 1.0), 1.0), ((1.0, 0.01), 0.0), ((0.3, 0.3), 0.5)])
def test_the_better_one_has_more_weight(errors, expected):
    data = make_data(400, n_outputs=2)
    base = Base(multiplied(fit_base(make_data(n_outputs=2)), 0.01))  # so little that it does not shrink
    found, score = blend(base, make_likelihood(2), judged(data, *errors))
    assert found.weight.item() == pytest.approx(expected, abs=0.1)
    # The blend does not count on errors that cancel each other. Here they do.
    best, square = min(errors), 1.0 if expected != 0.5 else 0.5
    assert score == pytest.approx(-2 * (np.log(best) + 0.5 * np.log(2 * np.pi) + 0.5 * square), abs=0.1)


@pytest.mark.parametrize("prior", [0.2, 1.0, 10.0])
def test_variances_become_what_errors_are_but_no_prior_is_less_than_the_targets(prior):
    data, model = make_data(400), multiplied(fit_base(make_data()), prior)
    before, kernel = model(data.X), model.layers[0].kernel
    least = min(1.0, (data.y.var(correction=0) / kernel.diagonal(model.layers[0].Z).mean()).item())
    errors = (before.variance[0].sqrt() * normal(400, 1)).abs()
    for factor in (9.0, 0.1):
        g = data.y + np.sqrt(factor) * errors * normal(400, 1, seed=3).sign()
        rows = [judged_by(data, data.y + 5.0, torch.ones_like(data.y), g, before.variance[0])]
        base = multiplied(fit_base(make_data()), prior)
        blend(Base(base), make_likelihood(), rows)
        after = base(data.X)
        torch.testing.assert_close(after.mean, before.mean, rtol=1e-6, atol=1e-9)
        ratio = (after.variance / before.variance).mean().item()
        assert ratio == pytest.approx(max(factor, least), rel=0.3)
        columns = (part[:100] for part in (data.y, torch.ones_like(data.y), g, before.variance[0]))
        few = _density(Base(base), make_likelihood(), [judged_by(data.rows(slice(100)), *columns)], None)
        assert few.factor.low == 0.0
        assert after.variance.max() <= base.layers[0].kernel.diagonal(data.X).max() * (1 + 1e-9)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_survives_rows_that_contradict_the_first_ones(seed, outputs):
    """The last 350 rows, which are asked first, have no noise. The others have much of it."""
    X = normal(400, 2, seed=seed)
    y = X[:, 0].sin() + X[:, 1]
    y[:50] += normal(50, seed=seed + 10)
    y = ((y - y.mean()) / y.std())[:, None].repeat(1, outputs)
    rows = Batch(X, y, torch.ones_like(y[:, 0]))
    kernel, noise = KernelSearch(rows, torch.full((outputs,), 1e-10).double(), None, False).best()
    assert smooth_of(kernel).lengthscale.min() > 1.0
    assert (noise.variance > 0.01).all() and (noise.variance < 0.2).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_of_almost_the_same_rows_survives_rows_that_contradict_it(seed):
    """The rows that are known have no noise. Five others among the rows of the search have much of it."""
    X = normal(400, 2, seed=seed)
    y = (X[:, 0].sin() + X[:, 1])[:, None]
    y = (y - y.mean()) / y.std()
    rows = Batch(X, y, torch.ones_like(y[:, 0]))
    known = fit_base(rows.rows(slice(-350, None)))
    noisy = Batch(X, y.index_add(0, torch.arange(5), normal(5, 1, seed=seed + 10)), rows.weight)
    search = KernelSearch(noisy, torch.full((1,), 1e-10).double(), None, False)
    kernel, noise = search.best_near(known.layers[0].kernel, known.likelihood)
    assert known.likelihood.variance < 1e-7
    assert smooth_of(kernel).lengthscale.min() > 1.0
    assert 1e-3 < noise.variance < 0.2


def test_moments_of_rows_follow_a_base_that_has_changed():
    """They are computed once, and again when a blend has multiplied the variance."""
    data = make_data()
    rows = Part(data, torch.arange(len(data)))
    for base in (Base(fit_base(data)), with_alternatives(fit_base(data), data)):
        foundation = Foundation(base, rows)
        [first] = foundation.left_out_moments([rows])
        multiplied(base.model, 3.0)
        [again] = foundation.left_out_moments([rows])
        [fresh] = Foundation(base, rows).left_out_moments([rows])
        for one, other in zip(again, fresh, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
        assert (again.within > 2.0 * first.within).all()
    [other] = replace(foundation, base=Base(fit_base(data))).left_out_moments([rows])
    assert (other.within < again.within).all()


def test_the_noise_has_a_prior_around_that_of_the_base():
    """Student's t of the logarithm, against SciPy's density."""
    data = make_data(30, n_outputs=2)
    base = Base(fit_base(data))
    density = _Density(base, make_likelihood(2), judged(data, 0.3, 0.3))
    noise = base.model.likelihood.variance.detach().log().numpy()
    for log_noise in (noise, noise - 3.0, noise + 0.4):
        density.take(np.concatenate([[0.5, 0.0], log_noise]))
        found = density.likelihood.variance.detach().log().numpy()  # the floor is a part of it
        prior = stats.t(NOISE_FREEDOM, noise, NOISE_DEVIATION)
        expected = (prior.logpdf(noise) - prior.logpdf(found)).sum()
        assert density.cost_of_noise().item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_noise_that_is_uncertain_is_expected_at_its_mean():
    """A new target varies by the expectation of the variance, which is above its geometric mean."""
    data = make_data(30)
    base = with_alternatives(fit_base(data), data)
    noise = base.model.likelihood.variance.detach()
    expected = _Density(base, make_likelihood(1), judged(data, 0.3, 0.3)).expected
    assert expected.exp().item() == pytest.approx(noise.mean().item(), rel=1e-12)
    assert noise.log().mean().exp() < 0.99 * noise.mean()


def test_a_few_lucky_rows_do_not_make_the_noise_vanish():
    """Twelve rows that lie on the predictions by chance, beside 400 that have told the base its noise."""
    data, base = make_data(400, noise=0.3), Base(fit_base(make_data(400, noise=0.3)))
    few = data.rows(torch.arange(12))
    spread = torch.full_like(few.y, 1e-4)
    rows = [judged_by(few, few.y + 2.0 * normal(12, 1, seed=9), spread, few.y + 0.15 * normal(12, 1), spread)]
    found, _ = blend(base, make_likelihood(), rows)
    alone = (few.y - rows[0].base_mean).square().mean().item()
    assert 1.4 * alone < found.likelihood.variance.item() < 0.1  # the base says 0.09
    many = data.rows(torch.arange(400))
    spread = torch.full_like(many.y, 1e-4)
    rows = [judged_by(many, many.y + 2.0 * normal(400, 1, seed=9), spread, many.y + 0.15 * normal(400, 1), spread)]
    assert blend(base, make_likelihood(), rows)[0].likelihood.variance.item() < 0.03


def test_all_rows_judge_a_base_whose_members_have_no_weight():
    data, base = make_data(400, noise=0.3), fit_base(make_data(400, noise=0.3))
    few, calls = data.rows(torch.arange(12)), []
    spread = torch.full_like(few.y, 1e-4)

    def everything():
        calls.append(True)
        [of_base] = left_out_moments(Base(base), [basis], basis)
        return judged_by(data, of_base.mean, of_base.variance, of_base.mean, of_base.variance)

    basis = Part(data, torch.arange(400))
    error = 0.15 * normal(12, 1)
    bad = [judged_by(few, few.y + 10 * error, spread, few.y + error, spread)]
    found, score = blend(Base(base), make_likelihood(), bad, all_rows=everything)
    assert calls and not found.weight.any()
    assert found.likelihood.variance.item() == pytest.approx(0.09, rel=0.2) and score < 0  # 12 rows alone: positive
    good = [judged_by(few, few.y + 0.01 * normal(12, 1), spread, few.y + 2.0, spread)]
    found, _ = blend(Base(base), make_likelihood(), good, all_rows=everything)
    assert found.weight.item() > 0.9 and found.likelihood.variance.item() < 0.02


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_noise_of_few_rows_is_that_of_all_in_the_ratio_that_the_base_has(n_outputs):
    """A control variate, against NumPy: all of the ratio if errors are those of the base, none if they are unlike."""
    data = make_data(400, n_outputs=n_outputs, noise=0.3)
    whole, few = Base(fit_base(data)), data.rows(torch.arange(40))
    basis, spread = Part(data, torch.arange(400)), torch.full_like(few.y, 1e-6)
    [of_base] = left_out_moments(whole, [basis], basis)
    everything = judged_by(data, of_base.mean, of_base.variance, of_base.mean, of_base.variance)

    def noise_of(rows, **options):
        found, _ = blend(deepcopy(whole), make_likelihood(n_outputs), [rows], **options)
        return found.likelihood.variance.detach().numpy(), found.weight

    error, other = (0.1 * normal(40, n_outputs, seed=seed) for seed in (1, 2))
    all_rows = noise_of(everything, judged=False)[0]
    for own in (0.9 * error, 0.5 * error + 0.5 * other):
        rows = judged_by(few, few.y + own, spread, few.y + error, spread)
        easy, before, after = (
            noise_of(rows, judged=False)[0],
            noise_of(rows),
            noise_of(rows, all_rows=lambda: everything),
        )
        assert (after[1] == before[1]).all() and before[1].item() > 0.5
        t = before[1].item()
        left = (t * own + (1 - t) * error).numpy()
        rho = (left * error.numpy()).sum(0) / np.sqrt((left**2).sum(0) * (error.numpy() ** 2).sum(0))
        np.testing.assert_allclose(after[0], before[0] * (all_rows / easy) ** (rho**2), rtol=0.02)
        assert (easy < 0.8 * all_rows).all()


@pytest.mark.parametrize("rho", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("of_few", "own"), [(1e-12, 1e-3), (1e-12, 0.2), (0.05, 0.04), (0.4, 0.3)])
def test_noise_of_few_rows_does_not_grow_beyond_that_of_the_base(of_few, own, rho):
    """The base's variance may explain all errors on a few rows, and leave it next to no noise there."""
    alone, other = np.linalg.qr(normal(40, 2).numpy())[0].T[:, :, None]
    left = torch.as_tensor(rho * alone + np.sqrt(1 - rho**2) * other)
    noises = iter([(np.array([of_few]), None), (np.array([own]), left), (np.array([own]), torch.as_tensor(alone))])
    few, whole = (
        SimpleNamespace(
            likelihood=make_likelihood(),
            without_members=lambda: SimpleNamespace(x=None),
            noise_at=noise_at,
            n_weights=1,
            n_tails=0,
            y=torch.zeros(40, 1).double(),
            row_weight=torch.full((40,), 1 / 40).double(),
        )
        for noise_at in (lambda vector: next(noises), lambda vector: (np.array([0.1]), None))
    )
    found = _Density.as_for_all(few, np.array([0.5, 0.0, np.log(own)]), whole)
    assert found[:2].tolist() == [0.5, 0.0]
    expected = min(own * (0.1 / of_few) ** (rho**2), max(own, 0.1))
    assert np.exp(found[2]) == pytest.approx(expected, rel=1e-6)


def test_the_edge_of_the_data_is_far_from_its_points():
    data, model = make_data(400), fit_base(make_data())
    marginals = model(data.X)
    rows = [judged_by(data, data.y, torch.ones_like(data.y), marginals.mean[0], marginals.variance[0])]
    smooth = model.layers[0].kernel.kernels[0]
    nearest = (smooth(model.layers[0].Z, data.X)[0].amax(0) / smooth.variance).sort().values
    assert blend(Base(model), make_likelihood(), rows)[0].edge.item() == pytest.approx(
        nearest[round(400 * EDGE) - 1].item()
    )


def test_a_base_that_was_scaled_still_leaves_rows_out():
    """Where targets lie on a grid, whose noise floor is a part of the noise."""
    data = make_data(200, noise=0.3)
    data = Batch(data.X, data.y.mul(4).round() / 4, data.weight)
    model, basis = fit_base(data), Part(data, torch.arange(200))
    assert model.likelihood.floor.item() > 1e-3
    [(mean, variance, _)] = left_out_moments(Base(model), [basis], basis)
    density = _Density(Base(model), make_likelihood(), [judged_by(data, mean, variance, mean, variance)])
    density.multiply(model, np.log(3.0))
    [(again, larger, _)] = left_out_moments(Base(model), [basis], basis)
    torch.testing.assert_close(again, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(larger, 3 * variance, rtol=1e-4, atol=1e-8)


# Classes.


def make_classes(n_rows=80, n_classes=3, seed=0):
    """Rows, and numbers of classes that depend on them but for some."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 2))
    labels = np.digitize(X[:, 0] + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n_rows), np.linspace(-0.7, 0.7, n_classes - 1))
    return Batch.of(X, labels, dtype=np.float64), labels


def link(n_classes):
    return Bernoulli() if n_classes == 2 else RobustMax(n_classes)


def coded(data, n_classes):
    return Batch(data.X, link(n_classes).regressands(data.y), data.weight)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_base_of_classes_is_a_gp_of_what_stands_for_them(n_classes):
    data, labels = make_classes(n_classes=n_classes)
    codes = coded(data, n_classes)
    expected = 2 * labels[:, None] - 1 if n_classes == 2 else np.eye(n_classes)[labels]
    assert np.array_equal(codes.y, expected)
    model = fit_base_of_classes(codes)
    noise, kernel = model.likelihood.variance.item(), model.layers[0].kernel
    assert noise >= 0.1 * np.mean((expected - expected.mean(0)) ** 2) * (1 - 1e-6)
    X = torch.cat([normal(5, 2), torch.full((1, 2), 50.0).double()])
    K, k = kernel(data.X, data.X)[0].detach().numpy(), kernel(X, data.X)[0].detach().numpy()
    mean = expected.mean(0) + k @ np.linalg.solve(K + noise * np.eye(len(K)), expected - expected.mean(0))
    np.testing.assert_allclose(model(X).mean[0], mean, atol=0.02)


def test_classes_left_out_are_those_of_a_posterior_without_them():
    data, _ = make_classes()
    codes = coded(data, 3)
    model, rows = fit_base_of_classes(codes), [3, 17]
    basis = Part(codes, torch.arange(len(codes)))
    [(mean, variance, _)] = left_out_moments(Base(model), [Part(data, torch.tensor(rows))], basis)
    for index, row in enumerate(rows):
        others = torch.arange(len(codes)) != row
        again = deepcopy(model)
        layer = again.layers[0]
        rest = codes.rows(others)
        set_posteriors(again, Batch(rest.X, rest.y - layer.mean.constant, rest.weight))
        torch.testing.assert_close(mean[index], again(data.X[row, None]).mean[0, 0])
        torch.testing.assert_close(variance[index], again(data.X[row, None]).variance[0, 0])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_slopes_of_the_held_out_probability(n_classes):
    data, _ = make_classes(n_classes=n_classes)
    model = fit_base_of_classes(coded(data, n_classes))
    marginals = model(data.X)
    deep = torch.zeros_like(marginals.mean[0]), torch.ones_like(marginals.mean[0])
    by_base = marginals.mean[0], marginals.variance[0]
    density = _Probability(Base(model), link(n_classes), [judged_by(data, *deep, *by_base)])
    held_out = data.rows(data.y[:, 0] != 1)  # they lack a class
    there = model(held_out.X)
    deep = torch.ones_like(there.mean[0]), torch.ones_like(there.mean[0])
    judged = [judged_by(held_out, *deep, there.mean[0], there.variance[0])]
    lacking = _Probability(Base(model), link(n_classes), judged, (data.y, data.weight))
    at = np.array([0.4, 1.0, -0.5])
    for log_probability in (density, lacking):
        _, slopes = log_probability.negative(at)
        numeric = approx_fprime(at, lambda vector, one=log_probability: one.negative(vector)[0], 1e-6)
        np.testing.assert_allclose(slopes, numeric, rtol=1e-3, atol=1e-5)
    assert not density.absent and [number for number, _ in lacking.absent] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("n_held_out", [0, 1, 3])
def test_a_rare_class_keeps_its_share(n_held_out):
    """Of 400 rows 4 are of a class, and of 40 held-out rows none, one or three; features say nothing."""
    data = Batch(normal(400, 2), torch.zeros(400, 1).double(), torch.ones(400).double())
    data.y[:4] = 1.0
    held_out = data.rows(torch.arange(4 - n_held_out, 44 - n_held_out))
    h, noise = torch.full_like(held_out.y, -3.0), torch.full_like(held_out.y, 1e-3)  # a share of 0.001
    judged = [judged_by(held_out, h, noise, torch.zeros_like(h), noise)]
    found, score = blend(Base(fit_base_of_classes(coded(data, 2))), Bernoulli(), judged, (data.y, data.weight))
    probability = found.likelihood.response(found.weight * h[None, :1])[0, 0, 1]
    assert probability.item() == pytest.approx(0.01, abs=0.002)
    assert score == pytest.approx(0.01 * np.log(0.01) + 0.99 * np.log(0.99), abs=1e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_what_is_chosen_is_what_predicts(n_classes):
    """The score of held-out rows is that of the blend, with its base scaled and its temperature."""
    data, _ = make_classes(200, n_classes=n_classes)
    model = fit_base_of_classes(coded(data, n_classes))
    g = model(data.X)
    h = 3.0 * (link(n_classes).regressands(data.y) + normal(200, g.mean.shape[-1]))
    rows = [judged_by(data, h, torch.full_like(h, 0.2), g.mean[0], g.variance[0])]
    found, score = blend(Base(model), link(n_classes), rows)
    deep = Marginals(h[None], torch.full_like(h, 0.2)[None], torch.zeros(1, 1), torch.zeros(()))
    there = found.base(data.X)
    both = found.joined(found.share(data.X, there), deep, there)
    density = found.likelihood.log_predictive(data.y, both.mean, both.variance)[0].mean().item()
    assert score == pytest.approx(density, abs=0.05)  # but for the prior
    assert 0.0 <= found.weight.item() <= 1.0
    torch.testing.assert_close((there.mean / g.mean).std().item(), 0.0, atol=1e-5, rtol=0)
    assert density > max(score_of(link(n_classes), data, h), score_of(link(n_classes), data, g.mean[0])) - 0.02


def score_of(likelihood, data, f):
    """Mean log probability with function values as they are."""
    return likelihood.log_predictive(data.y, f[None], torch.full_like(f, 0.2)[None]).mean().item()


def test_certain_members_that_err_are_made_less_certain():
    data, _ = make_classes(400, n_classes=2)
    model = fit_base_of_classes(coded(data, 2))
    noise = torch.full_like(data.y, 1e-3)
    wrong = torch.arange(400) % 4 == 0  # a quarter
    h = 50.0 * (2 * data.y - 1) * torch.where(wrong, -1.0, 1.0)[:, None]
    found, score = blend(Base(model), Bernoulli(), [judged_by(data, h, noise, torch.zeros_like(h), noise)])
    probability = found.likelihood.response(torch.tensor([[[50.0 * found.weight.item()]]]).double())[0, 0, 1]
    assert probability.item() == pytest.approx(0.75, abs=0.03)
    assert score == pytest.approx(0.75 * np.log(0.75) + 0.25 * np.log(0.25), abs=0.03)


@pytest.mark.parametrize("freedom", [2.3, 30.0])
def test_rows_that_judge_say_how_heavy_tails_are(freedom):
    """Training that ends early leaves the degrees of freedom near five, where they start."""
    data, likelihood = make_data(400), StudentT(1)
    base, spread = fit_base(data), torch.full_like(data.y, 1e-6)
    error = 0.1 * torch.from_numpy(stats.t.rvs(freedom, size=(400, 1), random_state=0))
    judged = judged_by(data, data.y + error, spread, data.y + error, spread)
    likelihood.learn_units(data.y.numpy(), normalize=False)
    found = blend(Base(base), likelihood, [judged], judged=False)[0].likelihood
    _, _, scale = stats.t.fit(error.numpy(), f0=freedom, floc=0.0)
    assert found.scale.item() ** 0.5 == pytest.approx(scale, rel=0.1)
    assert found.degrees_of_freedom.item() < 3.0 if freedom < 3.0 else found.degrees_of_freedom.item() > 10.0


def make_measurements(seed, n_rows=600, n_people=40):
    """Repeated measurements without noise: every person has an age, a sex and a curve."""
    random = np.random.default_rng(seed)
    age, sex = random.normal(60, 10, n_people), random.integers(0, 2, n_people)
    a, b, c = random.normal(size=n_people), random.normal(size=n_people), random.uniform(0, 6, n_people)
    who, t = random.integers(0, n_people, n_rows), random.uniform(0, 6, n_rows)
    X = np.column_stack([age[who], sex[who], t, random.normal(size=(n_rows, 4))])
    y = a[who] + b[who] * t / 6 + 0.3 * np.sin(t + c[who])
    X, y = ((each - each.mean(0)) / each.std(0) for each in (X, y[:, None]))
    return Batch(torch.from_numpy(X), torch.from_numpy(y), torch.ones(n_rows, dtype=torch.float64))


@pytest.fixture
def one_thread():
    """Sums in the same order everywhere: searches of L-BFGS amplify their rounding."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 9])
@pytest.mark.usefixtures("one_thread")
def test_knows_people_who_were_measured_repeatedly(seed):
    """Their ages are equal to the last digit or differ, so that the best lengthscale is extremely short.

    The first searches for seed 2 end with noise alone.
    """
    data = make_measurements(seed)
    some, new = data.rows(slice(0, 400)), data.rows(slice(400, None))
    error = (fit_base(some)(new.X).mean[0] - new.y).square().mean().sqrt().item()
    assert error < 0.05  # of targets whose deviation is one


def test_what_has_no_posterior_gets_fewer_points_and_more_noise(monkeypatch):
    """And an error where no number of points is small enough."""
    data, sizes, most, plain = make_data(150, 0.0), [], [12], base_module.set_posteriors
    expected = fit_base(data).likelihood.variance

    def fragile(model, rows):
        sizes.append(len(model.layers[0].Z))
        if sizes[-1] > most[0]:
            raise np.linalg.LinAlgError("no factor")
        return plain(model, rows)

    monkeypatch.setattr(base_module, "set_posteriors", fragile)
    model, new = fit_base(data), make_data(20, 0.0, seed=5)
    assert len(sizes) > 1 and sizes[1:] == [each // 2 for each in sizes[:-1]] and sizes[-1] == len(model.layers[0].Z)
    assert (model.likelihood.variance > expected).all()
    assert (model(new.X).mean[0] - new.y).square().mean().sqrt() < 0.5
    most[0] = 0
    with pytest.raises(np.linalg.LinAlgError, match="no factor"):
        fit_base(data)


# Linear functions outside of their box


def boxed(n_outputs=1):
    low, high = torch.tensor([-1.0, 0.0]).double(), torch.tensor([1.0, 3.0]).double()
    return LinearKernel(2, n_outputs, variance=0.8, low=low, high=high).double()


@torch.no_grad()
def test_linear_functions_go_on_outside_of_a_box_by_other_slopes():
    kernel = boxed()
    X = torch.tensor([[0.5, 1.0], [-1.0, 3.0], [1.5, 1.0], [2.0, -1.0], [2.9, 5.9], [9.0, 9.0], [1e8, 9.0]]).double()
    inside = np.clip(X.numpy(), [-1.0, 0.0], [1.0, 3.0])
    beyond = np.clip(X.numpy(), [-3.0, -3.0], [3.0, 6.0]) - inside
    expected = 0.8 / 2 * (inside @ inside.T + beyond @ beyond.T)
    np.testing.assert_allclose(kernel(X, X)[0], expected, rtol=1e-6)
    np.testing.assert_allclose(kernel.diagonal(X)[0], expected.diagonal(), rtol=1e-6)
    assert not beyond[:2].any() and beyond[2:].any(1).all()  # the first two rows are in the box
    np.testing.assert_array_equal(expected[5], expected[6])  # far away nothing changes any more
    assert kernel.gradient_variance(2) is None and LinearKernel(2).gradient_variance(2) is not None


@torch.no_grad()
def test_draws_of_linear_functions_have_their_covariances_outside_of_the_box():
    kernel, X = boxed(), torch.tensor([[0.5, 1.0], [1.5, 1.0], [2.0, -1.0], [9.0, 9.0]]).double()
    values = kernel.draw(Streams(range(5000)), 2, 1)(X.expand(5000, -1, -1))[..., 0]
    expected = kernel.relative_covariance(X, X)[0]
    found = values.mT @ values / 5000
    error = ((expected.square() + expected.diagonal() * expected.diagonal()[:, None]) / 5000).sqrt()
    assert ((found - expected).abs() < 4.0 * error).all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("estimator", [SOLVEGPRegressor(), DSDGPRegressor(max_iter=3), AVDGPRegressor(max_iter=3)])
def test_intervals_hold_beyond_the_rows_of_a_linear_target(estimator, scale):
    X = scale * np.random.default_rng(0).uniform(0.0, 1.0, (60, 3))
    slopes = np.array([3.0, -2.0, 1.0])
    far = np.array([1.0, 0.5, 0.5]) * X.mean(0) + np.linspace(0.7, 1.5, 9)[:, None] * np.array([scale, 0.0, 0.0])
    model = clone(estimator).set_params(random_state=0).fit(X, X @ slopes)
    (_, near), (mean, std) = model.predict(X, return_std=True), model.predict(far, return_std=True)
    assert (np.abs(far @ slopes - mean) < 3.0 * std).all()
    assert near.max() < 0.5 * std.min()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("estimator", [SOLVEGPRegressor(), DSDGPRegressor(max_iter=3), AVDGPRegressor(max_iter=3)])
def test_linear_targets_are_found_exactly_at_every_scale(estimator, scale):
    """Four points are enough for the most likely kernel, but not for others that are possible."""
    X, new = np.random.default_rng(0).normal(size=(120, 4)), np.random.default_rng(1).uniform(-1, 1, (50, 4))
    slopes = scale * np.array([3.0, -1.0, 0.0, 0.0])
    model = clone(estimator).set_params(random_state=0).fit(X, X @ slopes)
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, new @ slopes, atol=1e-7 * scale)
    assert model.base_weight_ == 1.0 and std.max() < 1e-3 * scale


def test_alternatives_without_a_posterior_are_left_out(monkeypatch):
    data, plain, number = make_data(40, 0.0), base_module.set_posteriors, iter(range(100))
    model = fit_base(data)

    def fragile(model, rows):
        if next(number) % 2:
            raise np.linalg.LinAlgError("no factor")
        return plain(model, rows)

    monkeypatch.setattr(base_module, "set_posteriors", fragile)
    assert base_module.with_alternatives(model, data).n_alternatives == base_module.ALTERNATIVES // 2
    number = iter([1] * 100)
    base = base_module.with_alternatives(model, data)
    assert base.n_alternatives == 1 and base.model is model


# The search for a kernel


def smooth_rows(n_rows, noise):
    X = torch.as_tensor(np.random.default_rng(0).normal(size=(n_rows, 4)))
    y = (X[:, 0] + X[:, 1].square()).sin()[:, None] + X[:, 2:3]
    return Batch(X, y + noise * normal(n_rows, 1, seed=3), torch.ones(n_rows, dtype=torch.float64))


def score(model, rows):
    """Evidence and prior of a base per row."""
    kernel, noise = model.layers[0].kernel, model.likelihood.variance
    with torch.no_grad():
        return (log_evidence(kernel, noise, observations(rows)) + kernel.log_prior()).item() / len(rows)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_search_from_the_kernel_of_similar_rows_ends_as_high(noise, monkeypatch):
    rows = smooth_rows(300, noise)
    weight = 1.0 + (torch.arange(300) % 7 == 0)
    like, expected = fit_base(Batch(rows.X, rows.y, weight.double())), fit_base(rows)
    before = deepcopy(like.state_dict())
    monkeypatch.setattr(KernelSearch, "candidate", None)  # no comparison of kernels
    found = fit_base(rows, None, like)
    assert score(found, rows) > score(expected, rows) - 0.02
    low, width = rows.X.amin(0), rows.X.amax(0) - rows.X.amin(0)
    torch.testing.assert_close(found.layers[0].kernel.kernels[1].low, low - 0.1 * width)
    for name, value in like.state_dict().items():  # it has not changed
        torch.testing.assert_close(value, before[name])


def test_a_search_from_a_kernel_of_other_rows_has_its_own_noise_floor():
    rows = smooth_rows(100, 0.3)
    rounded = Batch(rows.X, rows.y.round(), rows.weight)
    found = fit_base(rounded, None, fit_base(rows))
    assert found.likelihood.floor.item() == pytest.approx(1 / 12, rel=1e-6)


def test_kernels_that_are_behind_by_some_rows_are_not_searched_by_all(monkeypatch):
    rows, sizes = smooth_rows(500, 0.0), []
    monkeypatch.setattr(kernel_search, "FIRST_ROWS", 200)

    def counting(kernel, likelihood, rows, *args, **options):
        sizes.append((len(kernel.kernels), kernel.kernels[0].profile, len(rows)))
        return most_likely(kernel, likelihood, rows, *args, **options)

    monkeypatch.setattr(kernel_search, "most_likely", counting)
    found = fit_base(rows).layers[0].kernel
    assert len({kernel[:2] for kernel in sizes if kernel[2] == 200}) == 3
    assert [kernel[:2] for kernel in sizes if kernel[2] == 500] == [(len(found.kernels), found.kernels[0].profile)]
