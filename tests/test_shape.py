"""Whether targets are distributed as the noise says."""

import numpy as np
import pytest
import torch
from scipy.stats import cramervonmises, norm
from sklearn.linear_model import LinearRegression

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.estimators import _ensembles
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.noise import Contaminated
from skdgp.inference import ensemble as ensembles
from skdgp.inference.shape import MOST_UNEVEN, below, explained, misshapen, unevenness
from skdgp.inference.tails import Errors
from skdgp.inference.validation import Validation

FAMILIES = [AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor]


def make_noise(n_outputs=1, excess=0.3):
    return Gaussian(n_outputs, excess=excess, floor=n_outputs * [1e-6]).double()


def make_errors(n_rows, n_outputs=1, seed=0, noise=0.3):
    """Errors of rows for noise of this variance, and for functions that are as uncertain."""
    rng = np.random.default_rng(seed)
    variance = rng.uniform(0.1, 0.5, size=(n_rows, n_outputs))
    error = rng.normal(size=variance.shape) * np.sqrt(variance + noise)
    return Errors(*(torch.from_numpy(values) for values in (error, variance, np.ones(n_rows))))


@pytest.mark.parametrize("n_rows", [1, 2, 301])
def test_the_statistic_is_that_of_cramer_and_von_mises(n_rows):
    level = np.random.default_rng(0).uniform(size=(n_rows, 3)) ** 2
    expected = [
        cramervonmises(column, "uniform").statistic if n_rows > 1 else 1 / 12 + (column[0] - 0.5) ** 2
        for column in level.T
    ]
    np.testing.assert_allclose(unevenness(torch.from_numpy(level)), expected, rtol=1e-10)


def test_the_limit_is_that_of_one_in_a_thousand():
    assert cramervonmises(np.zeros(9), lambda x: x).pvalue < 0.001  # SciPy's, far beyond the limit
    rng = np.random.default_rng(0)
    share = np.mean(
        [unevenness(torch.from_numpy(rng.uniform(size=(300, 100)))).numpy() > MOST_UNEVEN for _ in range(300)]
    )
    assert 0.0005 < share < 0.0016


def test_probabilities_are_those_of_one_gaussian_or_of_two():
    errors, noise = make_errors(40, 2), make_noise(2)
    error, variance = errors.error.numpy(), errors.variance.numpy()
    narrow = norm.cdf(error, scale=np.sqrt(variance + 0.3 + 1e-6))
    np.testing.assert_allclose(below(errors, noise), narrow, rtol=1e-6)
    wide = norm.cdf(error, scale=np.sqrt(variance + np.array([5.0, 9.0])))
    both = Contaminated(noise, 0.1, torch.tensor([5.0, 9.0]).double())
    np.testing.assert_allclose(below(errors, both), 0.9 * narrow + 0.1 * wide, rtol=1e-6)


def make_rows(n_rows=400, seed=0):
    """Features of rows, and predicted means."""
    X = torch.from_numpy(np.random.default_rng(seed + 1000).uniform(-1, 1, size=(n_rows, 3)))
    return X, X[:, :1].exp()


SHAPES = {
    "two branches": lambda error, X: error.abs().sqrt() * error.sign(),
    "more noise at larger features": lambda error, X: error * (1.5 * X[:, 1:2]).exp(),
    "more noise at larger means": lambda error, X: error * (1.2 * X[:, :1]).exp(),
    "half the same": lambda error, X: torch.where(error < 0, -0.2, error),
    "skew": lambda error, X: error.exp() - 1.5,
}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shape", [None, *SHAPES])
def test_errors_of_the_noise_have_its_shape_in_all_units(shape, scale):
    noise, counts = Gaussian(1, excess=0.3 * scale**2, floor=[0.0]).double(), 0
    for seed in range(10):
        errors, (X, mean) = make_errors(400, seed=seed), make_rows(seed=seed)
        error = errors.error if shape is None else SHAPES[shape](errors.error, X)
        scaled = errors._replace(error=scale * error, variance=scale**2 * errors.variance)
        counts += misshapen(scaled, noise, 7.0 + 1e3 * X, scale * mean)
    assert counts == (0 if shape is None else 10)


def test_rows_without_weight_do_not_count_and_each_output_does():
    errors, (X, mean) = make_errors(600), make_rows(600)
    some = torch.arange(600) < 300
    shifted = errors._replace(error=torch.where(some[:, None], errors.error, 1.0))
    assert misshapen(shifted, make_noise(), X, mean)
    assert not misshapen(shifted._replace(weight=some.double()), make_noise(), X, mean)
    assert not misshapen(shifted._replace(weight=torch.zeros(600).double()), make_noise(), X, mean)
    both = (torch.cat([of_first, of_other], dim=1) for of_first, of_other in zip(errors[:2], shifted[:2], strict=True))
    assert misshapen(Errors(*both, errors.weight), make_noise(2), X, mean.repeat(1, 2))


def test_what_is_explained_is_the_adjusted_coefficient_of_determination():
    rng = np.random.default_rng(0)
    X, values = rng.normal(size=(80, 5)), rng.normal(size=80)
    values = values + X[:, 2]
    r2 = LinearRegression().fit(X, values).score(X, values)
    expected = 1 - (1 - r2) * 79 / 74
    X, values = torch.from_numpy(X), torch.from_numpy(values)
    assert explained(values, X) == pytest.approx(expected, abs=1e-5)
    with_others = torch.cat([1e-9 * X, torch.ones(80, 1)], dim=1)  # neither scales nor constants matter
    assert explained(values, with_others) == pytest.approx(expected, abs=1e-5)
    assert np.isfinite(explained(values, torch.cat([X, X], dim=1)))
    assert explained(torch.ones(80).double(), X) == 0.0
    assert explained(values[:6], X[:6]) == 0.0  # they explain any values


def test_more_features_than_rows_are_not_asked():
    """A line through many columns comes near any numbers."""
    errors = make_errors(300)
    for n_features in (200, 400):
        X = torch.from_numpy(np.random.default_rng(0).normal(size=(300, n_features)))
        assert not misshapen(errors, make_noise(), X, X[:, :1])


def amounts(n_rows=320, seed=0):
    """Amounts of which half are zero, and bells around the same means."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n_rows, 2))
    amount = np.where(rng.uniform(size=n_rows) < 0.5, 0.0, np.exp(X[:, 0] + 0.3 * rng.normal(size=n_rows)))
    return X, amount, np.exp(X[:, 0]) + 0.3 * rng.normal(size=n_rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_few_rows_try_a_member_that_learns_densities_if_the_shape_asks_for_it(family, monkeypatch):
    tried = []
    run = ensembles.Training.run
    monkeypatch.setattr(
        ensembles.Training,
        "run",
        lambda *given, **options: tried.append(options.get("first")) or run(*given, **options),
    )
    X, amount, bells = amounts()
    model = family(max_iter=2, random_state=0)
    for y, n_trainings in ((amount, 2), (bells, 1)):
        tried.clear()
        model.fit(X, y)
        assert len(tried) == n_trainings
    monkeypatch.setattr(_ensembles, "FEWEST_TO_LEARN_DENSITIES", len(X) + 1)
    tried.clear()
    model.fit(X, amount)
    assert len(tried) == 1


@pytest.mark.parametrize("share_of_gaps", [0.0, 0.3])
def test_more_noise_of_rows_with_gaps_is_no_other_shape(share_of_gaps, monkeypatch):
    asked, before = [], Validation.misshapen
    monkeypatch.setattr(Validation, "misshapen", lambda *given: asked.append(before(*given)) or asked[-1])
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 2))
    y = np.sin(2 * X[:, 0]) + 0.8 * X[:, 1] + 0.2 * rng.normal(size=400)
    X[rng.uniform(size=400) < share_of_gaps, 1] = np.nan
    SOLVEGPRegressor(max_iter=2, n_neighbors=0, random_state=0).fit(X, y)
    assert asked == [False]


@pytest.mark.slow
def test_amounts_of_which_half_are_zero_have_better_intervals():
    X, amount, _ = amounts(450)
    model = SOLVEGPRegressor(random_state=0).fit(X[:320], amount[:320])
    plain = SOLVEGPRegressor(objective="elbo", random_state=0).fit(X[:320], amount[:320])
    new, truth = X[320:], amount[320:]
    assert model.predict_dist(new).crps(truth).mean() < 0.95 * plain.predict_dist(new).crps(truth).mean()
    assert np.sqrt(np.mean((model.predict(new) - truth) ** 2)) < 1.05 * np.sqrt(
        np.mean((plain.predict(new) - truth) ** 2)
    )
