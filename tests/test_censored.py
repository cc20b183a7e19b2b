"""Targets of which some are only known to lie in an interval: survival times and limits of detection."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import approx_fprime
from scipy.stats import norm
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import FunctionTransformer

from skdgp import AVDGPRegressor, DSDGPRegressor, PredictiveDistribution, SOLVEGPRegressor
from skdgp.distributions import CountDistribution, TransformedDistribution
from skdgp.gp.censored import Censored
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.special import FAR_AWAY, log_ndtr_between
from skdgp.inference import base as base_module
from skdgp.inference import stand_ins
from skdgp.inference.base import fit_base
from skdgp.inference.batches import Batch
from skdgp.inference.stand_ins import fit_base_of_intervals
from skdgp.metrics import concordance_index, log_density_scorer, negative_log_predictive_density
from skdgp.tables.bounds import bounds_of

SURVIVAL = [("event", bool), ("time", float)]

#: Bounds: exact, open on either side, wide, narrow, and far from the function.
BOUNDS = [(0.3, 0.3), (0.5, np.inf), (-np.inf, 0.2), (-1.0, 2.0), (0.1, 0.1001), (7.0, 7.5), (9.0, np.inf)]

#: Small models of each family.
SMALL = {
    AVDGPRegressor: {"hidden_dims": (2,), "n_inducing": 2, "n_estimators": 1, "max_iter": 3},
    DSDGPRegressor: {"hidden_dims": (2,), "n_inducing": 4, "n_estimators": 1, "max_iter": 3},
    SOLVEGPRegressor: {"n_inducing": 6, "n_orthogonal": 2, "max_iter": 3},
}


def survival(n, seed=0, censoring=2.5, noise=0.4):
    """Rows, observed times with events, true times, and the mean of their logarithms."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    time, end = np.exp(f + noise * rng.normal(size=n)), rng.exponential(censoring, size=n)
    y = np.empty(n, dtype=SURVIVAL)
    y["event"], y["time"] = time <= end, np.minimum(time, end)
    return X, y, time, f


def make(cls, **options):
    return cls(**({"likelihood": "lognormal", "random_state": 0} | SMALL[cls] | options))


def log_mass(low, high, mean=0.0, deviation=1.0):
    """log P(low ≤ t ≤ high), or the log density if both are equal, by integration around the largest density."""
    if low == high:
        return norm.logpdf(low, mean, deviation)
    a, b = (low - mean) / deviation, (high - mean) / deviation
    top = min(max(0.0, a), b)
    value, _ = quad(
        lambda t: np.exp(0.5 * (top**2 - t**2)), max(a, top - 40), min(b, top + 40), epsrel=1e-12, limit=500
    )
    return np.log(value) - 0.5 * top**2 - 0.5 * np.log(2 * np.pi)


INTERVALS = [(-1, 1), (3, 3.001), (3, 3.5), (30, 30.01), (30, 31), (-50, -20), (5, np.inf), (-np.inf, 3), (0, 1.01)]


@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_log_probabilities_of_intervals_are_precise_in_both_tails_and_for_narrow_ones(low, high):
    limits = torch.tensor([[low], [high]], dtype=torch.float64).clamp(-FAR_AWAY, FAR_AWAY).requires_grad_()
    value = log_ndtr_between(*limits)
    expected = log_mass(low, high)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    slopes = torch.autograd.grad(value.sum(), limits)[0][:, 0].numpy()
    exact = [-np.exp(norm.logpdf(low) - expected), np.exp(norm.logpdf(high) - expected)]
    np.testing.assert_allclose(slopes, exact, rtol=1e-9, atol=1e-300)
    single = log_ndtr_between(*limits.detach().float()).item()
    assert single == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def likelihood():
    return Censored().double()


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("variance", [0.0, 0.09])
def test_expectations_and_predictive_densities_are_those_of_numerical_integration(likelihood, low, high, variance):
    y, mean = torch.tensor([[low, high]], dtype=torch.float64), torch.full((2, 1, 1), 0.1, dtype=torch.float64)
    v = torch.full_like(mean, variance)
    noise = likelihood.variance.item()
    s = np.sqrt(noise)

    def value(m, spread):
        if not spread:
            return log_mass(low, high, m, s)
        z, w = np.polynomial.hermite_e.hermegauss(100)
        return (w / w.sum()) @ [log_mass(low, high, m + np.sqrt(spread) * one, s) for one in z]

    expected = likelihood.expected_log_prob(y, mean, v)
    assert expected.shape == (2, 1)
    np.testing.assert_allclose(expected.detach(), value(0.1, variance), rtol=3e-3, atol=1e-3)
    density = likelihood.log_predictive(y, mean, v)
    np.testing.assert_allclose(
        density.detach(), log_mass(low, high, 0.1, np.sqrt(noise + variance)), rtol=1e-9, atol=1e-14
    )


def test_gradients_are_those_of_finite_differences(likelihood):
    y = torch.tensor(BOUNDS, dtype=torch.float64)
    mean, variance = torch.zeros(1, len(y), 1).double(), torch.full((1, len(y), 1), 0.2).double()

    def total(vector, name):
        with torch.no_grad():
            likelihood.log_excess.fill_(vector[0])
        function = getattr(likelihood, name)
        return function(y, mean + vector[1], variance * np.exp(vector[2])).sum()

    start = torch.tensor([-1.0, 0.1, 0.3], dtype=torch.float64)
    for name in ("expected_log_prob", "log_predictive"):
        shift, scale = (start[index].clone().requires_grad_() for index in (1, 2))
        with torch.no_grad():
            likelihood.log_excess.fill_(start[0])
        value = getattr(likelihood, name)(y, mean + shift, variance * scale.exp()).sum()
        slopes = torch.autograd.grad(value, [likelihood.log_excess, shift, scale])
        expected = approx_fprime(start.numpy(), lambda vector, name=name: total(vector, name).item(), 1e-6)
        np.testing.assert_allclose([slope.item() for slope in slopes], expected, rtol=1e-4)


def test_exact_bounds_are_the_likelihood_of_gaussian_noise(likelihood):
    gaussian, rng = Gaussian(1).double(), torch.Generator().manual_seed(0)
    y, mean = torch.randn(5, 1, generator=rng).double(), torch.randn(3, 5, 1, generator=rng).double()
    bounds, variance = y.expand(5, 2), mean.square()
    for name in ("expected_log_prob", "log_predictive"):
        own, other = (getattr(kind, name) for kind in (likelihood, gaussian))
        torch.testing.assert_close(own(bounds, mean, variance), other(y, mean, variance))


@pytest.mark.parametrize("variance", [0.0, 0.04, 3.0])
def test_stand_ins_have_the_derivatives_of_the_log_probability_beside_all_other_rows(likelihood, variance):
    y = torch.tensor([(0.3, 0.3), (0.5, np.inf), (-np.inf, 0.2), (-1.0, 2.0), (0.1, 0.4)], dtype=torch.float64)
    mean, noise = torch.full((len(y), 1), 0.15, dtype=torch.float64), torch.tensor([0.2], dtype=torch.float64)
    number, weight = likelihood.stand_ins(y, mean, torch.full_like(mean, variance), noise)
    for row, (low, high) in enumerate(y.tolist()):
        deviation = np.sqrt(variance + 0.2)
        values = [log_mass(low, high, 0.15 + step, deviation) for step in (-1e-3, 0.0, 1e-3)]
        slope, curvature = (values[2] - values[0]) / 2e-3, (2 * values[1] - values[0] - values[2]) / 1e-6
        share = 1 / (0.2 / weight[row].item() + variance)  # of a number with this noise: the curvature by the mean
        assert share == pytest.approx(max(curvature, 0.0), rel=1e-3, abs=1e-4)
        assert ((number - mean)[row] * share).item() == pytest.approx(slope, rel=1e-4)
    torch.testing.assert_close(number[0], y[0, :1])
    assert weight[0] == 1.0
    far, _ = likelihood.stand_ins(
        torch.tensor([(1e6, np.inf), (-np.inf, -1e6)]).double(), mean[:2], 0.0 * mean[:2], noise
    )
    torch.testing.assert_close(far, torch.tensor([[1e6], [-1e6]]).double())


def test_a_posterior_of_two_intervals_has_the_moments_of_integration():
    """Two rows with one function value: the posterior is a prior times two probabilities, in one dimension."""
    rows = Batch.of(np.zeros((2, 1)), np.array([[0.2, np.inf], [-1.0, 1.0]]), dtype=np.float64)
    kernel = base_module.SumKernel([StationaryKernel("rbf", 1, ard=True, variance=1.0)]).double()
    noise = Gaussian(1, excess=0.25, floor=0.0).double()
    model = base_module._model(kernel, noise, torch.zeros(1, 1).double(), 1).requires_grad_(False)
    start = Batch(rows.X, torch.zeros(2, 1).double(), rows.weight)
    stand_ins.stand_ins_of(model, rows, Censored().double(), start)
    f = np.linspace(-8, 8, 200_001)
    density = norm.pdf(f) * norm.sf(0.2, f, 0.5) * (norm.cdf(1.0, f, 0.5) - norm.cdf(-1.0, f, 0.5))
    mean = np.average(f, weights=density)
    marginals = model(rows.X[:1])
    assert marginals.mean.item() == pytest.approx(mean, abs=0.01)
    assert marginals.variance.item() == pytest.approx(np.average((f - mean) ** 2, weights=density), rel=0.03)


def test_one_interval_for_all_rows_says_nothing_of_the_noise():
    """A function that is constant has no noise, or as much as the interval allows."""
    bounds = pd.DataFrame({"lower": np.zeros(20), "upper": np.ones(20)})
    mean, std = (
        make(SOLVEGPRegressor, likelihood="gaussian")
        .fit(np.arange(20.0)[:, None], bounds)
        .predict([[3.0]], return_std=True)
    )
    assert mean[0] == pytest.approx(0.5, abs=0.01)
    assert 0.05 < std[0] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("width", [1.0, 2.0])
def test_intervals_of_observations_hold_if_all_targets_are_known_to_an_interval(width):
    """However much wider these are than the noise."""
    rng = np.random.default_rng(0)
    X, new = rng.uniform(size=(60, 3)), rng.uniform(size=(300, 3))
    noise = 0.1 * rng.normal(size=360)
    y, truth = (3 * np.sin(6 * x[:, 0]) + 2 * np.cos(4 * x[:, 2]) + e for x, e in ((X, noise[:60]), (new, noise[60:])))
    low = np.floor(y / width) * width
    model = SOLVEGPRegressor(random_state=0).fit(X, pd.DataFrame({"lower": low, "upper": low + width}))
    interval = model.predict_interval(new)
    assert 0.65 < np.mean((interval[:, 0] <= truth) & (truth <= interval[:, 1])) < 0.999


def test_the_base_of_exact_bounds_is_that_of_numbers():
    X, _, _, f = survival(60)
    rows = Batch.of(X, np.column_stack([f, f]), dtype=np.float64)
    base, learnt, _ = fit_base_of_intervals(rows, Censored().double())
    plain = fit_base(Batch.of(X, f, dtype=np.float64))
    torch.testing.assert_close(learnt.y, rows.y[:, :1])
    torch.testing.assert_close(base.alternatives()[0](rows.X).mean, plain(rows.X).mean, rtol=1e-2, atol=1e-2)


def test_the_noise_of_the_base_of_intervals_is_that_of_exact_rows():
    """Weights are those of the rows on average, and the noise over its weight is that of an exact row."""
    X, y, _, _ = survival(210, censoring=1.0)
    bounds = np.log(bounds_of(y))
    rows = Batch.of(X, bounds, dtype=np.float64)
    base, learnt, variance = fit_base_of_intervals(rows, Censored().double())
    exact = torch.from_numpy(y["event"])
    noise = base.model.likelihood.variance / learnt.weight[exact]
    torch.testing.assert_close(noise, variance.expand_as(noise))
    assert learnt.weight.mean().item() == pytest.approx(1.0)
    assert 0.08 < variance.item() < 0.3  # of 0.16


# What users pass.


def test_bounds_and_events_are_recognised_by_names():
    frame = pd.DataFrame({"Upper": [1.0, np.inf], "lower": [1.0, 0.5]})
    expected = np.array([[1.0, 1.0], [0.5, np.inf]])
    np.testing.assert_array_equal(bounds_of(frame), expected)
    np.testing.assert_array_equal(bounds_of(frame.to_records(index=False)), expected)
    events = np.array([(1.0, True), (0.5, False)], dtype=[("days", float), ("died", bool)])
    np.testing.assert_array_equal(bounds_of(events), expected)
    assert bounds_of(np.ones((3, 2))) is None
    assert bounds_of(pd.DataFrame({"first": [1.0], "second": [2.0]})) is None
    assert bounds_of([1.0, 2.0]) is None


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (pd.DataFrame({"lower": [0.0], "upper": [1.0], "third": [1.0]}), "y has columns named lower and upper among"),
        (pd.DataFrame({"event": [True], "time": [1.0]}), "y has a column of booleans and one of numbers"),
        (np.zeros(1, dtype=[("a", float), ("b", float)]), "y is a structured array with the fields"),
        (pd.DataFrame({"lower": ["a"], "upper": [1.0]}), "Column 'lower' of y holds"),
        (pd.DataFrame({"lower": [0.0, np.nan], "upper": [1.0, 2.0]}), "y has NaN in row 1"),
        (pd.DataFrame({"lower": [0.0, 3.0], "upper": [1.0, 2.0]}), "y has a lower bound above the upper one in row 1"),
        (pd.DataFrame({"lower": [np.inf], "upper": [np.inf]}), "y has an infinite value in row 0"),
        (pd.DataFrame({"lower": [-np.inf], "upper": [np.inf]}), "y has no bound at all in row 0"),
    ],
)
def test_what_cannot_be_told_is_asked(y, message):
    with pytest.raises(ValueError, match=message):
        SOLVEGPRegressor().fit(np.zeros((len(y), 1)), y)


def test_two_plain_columns_stay_two_outputs():
    X, _, _, f = survival(30)
    model = make(SOLVEGPRegressor, likelihood="gaussian").fit(X, np.column_stack([f, f + 1]))
    assert model.predict(X).shape == (30, 2)


@pytest.mark.slow
def test_exact_rows_only_are_an_ordinary_fit():
    X, _, time, _ = survival(40)
    bounds = pd.DataFrame({"lower": time, "upper": time})
    plain, own = (make(SOLVEGPRegressor).fit(X, y) for y in (time, bounds))
    np.testing.assert_array_equal(own.predict(X), plain.predict(X))
    assert own.score(X, bounds) == plain.score(X, time)
    with pytest.raises(ValueError, match="y has intervals, but the model has learnt from exact targets only"):
        own.partial_fit(X, bounds.assign(upper=np.inf))


@pytest.mark.slow
def test_lognormal_is_gaussian_noise_of_logarithms():
    X, _, time, _ = survival(40)
    plain = make(SOLVEGPRegressor, likelihood="gaussian", target_transform="log").fit(X, time).predict_dist(X)
    own = make(SOLVEGPRegressor).fit(X, time)
    np.testing.assert_array_equal(own.predict_dist(X).logpdf(time), plain.logpdf(time))
    assert own.__sklearn_tags__().target_tags.positive_only
    with pytest.raises(ValueError, match="return_cov=True has no formula with target_transform='log'"):
        own.predict(X, return_cov=True)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [((-1.0, 0.0), "allow for no positive number"), ((0.0, np.inf), "exclude no positive number")],
)
def test_logarithms_of_impossible_bounds_are_refused(bounds, message):
    X, y, _, _ = survival(30)
    table = bounds_of(y)
    table[3] = bounds
    with pytest.raises(ValueError, match=f"Logarithms need positive targets, but bounds in row 3 of y.*{message}"):
        make(SOLVEGPRegressor).fit(X, pd.DataFrame(table, columns=["lower", "upper"]))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([(True, 1.0), (False, np.nan)], dtype=SURVIVAL), "y has NaN in row 1"),
        (
            np.array([("a", 1.0)], dtype=[("lower", "U1"), ("upper", float)]),
            "Column 'lower' of y holds <U1, and bounds",
        ),
        (
            np.array([(-1e308, 1e308), (1.0, np.inf), (-1e308, 1.0)], dtype=[("lower", float), ("upper", float)]),
            "y over",
        ),
    ],
)
def test_numbers_that_are_none_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        SOLVEGPRegressor().fit(np.arange(len(y))[:, None], y)


def test_kernel_objects_and_categories_take_intervals():
    X, y, _, _ = survival(40)
    frame = pd.DataFrame(X).assign(group=pd.Categorical(np.where(X[:, 0] > 0, "a", "b")))
    frame.columns = frame.columns.astype(str)
    assert np.isfinite(make(SOLVEGPRegressor).fit(frame, y).predict(frame)).all()
    assert np.isfinite(make(SOLVEGPRegressor, kernel=RBF(1.0)).fit(X, y).predict(X)).all()


# Fits.


@pytest.mark.slow
@pytest.mark.parametrize("cls", SMALL)
def test_all_families_learn_from_intervals(cls):
    X, y, _, _ = survival(60)
    model = make(cls).fit(X[:40], y[:40], sample_weight=np.ones(40), X_val=X[40:], y_val=y[40:])
    dist = model.predict_dist(X)
    assert dist.shape == (60,)
    assert np.isfinite([model.lower_bound_, model.noise_variance_, log_density_scorer(model, X, y)]).all()
    assert model.neighbors_ is None
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    again.partial_fit(X, y)
    again.partial_fit(X[:20], y["time"][:20])  # numbers are exact targets
    assert np.isfinite(again.predict(X)).all()
    for what in (again.leave_one_out, lambda: again.score(X, y), lambda: model.update(X, y)):
        with pytest.raises(ValueError, match=r"leave_one_out has no answer|score is R²|targets that were exact in fit"):
            what()
    with pytest.raises(ValueError, match="y has 2 columns without names"):
        again.partial_fit(X, np.ones((60, 2)))


@pytest.mark.slow
def test_three_members_and_a_search_take_events_and_times():
    X, y, _, _ = survival(60)
    model = make(DSDGPRegressor, n_estimators=3)
    search = GridSearchCV(clone(model), {"base": ["auto", None]}, scoring=log_density_scorer, cv=2).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale):
    X, y, _, _ = survival(60)
    bounds = np.log(bounds_of(y))
    plain, scaled = (
        make(SOLVEGPRegressor, likelihood="gaussian", normalize_y=True)
        .fit(X, pd.DataFrame(factor * bounds, columns=["lower", "upper"]))
        .predict(X)
        for factor in (1.0, scale)
    )
    np.testing.assert_allclose(scaled / scale, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_survival_times_are_calibrated_and_ignoring_censoring_is_biased():
    X, y, time, f = survival(700)
    new, times = X[300:], time[300:]
    assert 0.3 < 1 - y["event"][:300].mean() < 0.5
    own, ignoring = (
        SOLVEGPRegressor(64, 0, likelihood="lognormal", max_iter=20, random_state=0)
        .fit(X[:300], target)
        .predict_dist(new)
        for target in (y[:300], y["time"][:300])
    )
    low, high = own.interval(0.9)
    assert 0.84 < ((low < times) & (times < high)).mean() < 0.97
    for share in (0.2, 0.5, 0.8):
        assert own.sf(np.exp(f[300:] + 0.4 * norm.isf(share))).mean() == pytest.approx(share, abs=0.06)
    errors = [(np.log(dist.ppf(0.5)) - f[300:]).mean() for dist in (own, ignoring)]
    assert abs(errors[0]) < 0.08
    assert errors[1] < -0.3
    assert own.logpdf(times).mean() > ignoring.logpdf(times).mean() + 0.2


@pytest.mark.slow
def test_values_below_a_limit_of_detection_are_learnt_from():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(500, 1))
    f = 1 + X[:, 0]
    y = f + 0.3 * rng.normal(size=500)
    bounds = np.column_stack([np.where(y < 0.5, -np.inf, y), np.maximum(y, 0.5)])
    frame = pd.DataFrame(bounds[:200], columns=["lower", "upper"])
    model = SOLVEGPRegressor(32, 0, max_iter=20, random_state=0).fit(X[:200], frame)
    below = X[200:, 0] < -1
    dist = model.predict_dist(X[200:])
    assert (dist.mean - f[200:])[below].mean() == pytest.approx(0.0, abs=0.3)  # nothing but the slope says it
    low, high = dist.interval(0.9)
    assert 0.84 < ((low < y[200:]) & (y[200:] < high)).mean() < 0.99


# Scores.


def test_concordance_counts_comparable_pairs():
    _, y, _, f = survival(50)
    prediction = np.round(f, 1)  # ties
    pairs = [
        (prediction[j] > prediction[i]) + 0.5 * (prediction[j] == prediction[i])
        for i in range(50)
        for j in range(50)
        if y["event"][i] and y["time"][i] < y["time"][j]
    ]
    assert concordance_index(y, prediction) == pytest.approx(np.mean(pairs))
    assert concordance_index(y["time"], y["time"]) == 1.0
    with pytest.raises(ValueError, match="concordance_index takes targets that are exact or have a lower bound only"):
        concordance_index(pd.DataFrame({"lower": [0.0, 1.0], "upper": [1.0, 1.0]}), [1.0, 2.0])
    with pytest.raises(ValueError, match="concordance_index needs two rows whose order is known"):
        concordance_index([1.0], [1.0])
    with pytest.raises(ValueError, match="y_pred contains NaN"):
        concordance_index([1.0, 2.0], [1.0, np.nan])


@pytest.mark.slow
def test_negative_log_density_of_intervals_is_that_of_their_probability():
    X, y, _, _ = survival(40)
    dist = make(SOLVEGPRegressor).fit(X, y).predict_dist(X)
    bounds = bounds_of(y)
    bounds[:3] = [(0.0, 1.0), (0.5, 2.0), (50.0, 60.0)]
    exact = bounds[:, 0] == bounds[:, 1]
    density = np.where(exact, dist.pdf(np.maximum(bounds[:, 0], 1e-9)), dist.cdf(bounds[:, 1]) - dist.cdf(bounds[:, 0]))
    own = negative_log_predictive_density(pd.DataFrame(bounds, columns=["lower", "upper"]), dist)
    assert own == pytest.approx(-np.log(density).mean(), rel=1e-6)
    with pytest.raises(ValueError, match="do not match"):
        negative_log_predictive_density(y[:3], dist)


def test_survival_functions_and_hazards_are_precise_in_the_upper_tail():
    gaussian = PredictiveDistribution(np.array([[0.0, 1.0], [1.0, 2.0]]), np.full((2, 2), 0.25), [0.3, 0.7])
    y = np.array([[0.5], [30.0]])
    parts = [norm(mean, 0.5).logsf(y) for mean in gaussian.means]
    expected = np.logaddexp(np.log(0.3) + parts[0], np.log(0.7) + parts[1])
    np.testing.assert_allclose(gaussian.logsf(y), expected)
    np.testing.assert_allclose(gaussian.sf(y), np.exp(expected))
    np.testing.assert_allclose(gaussian.hazard(y), np.exp(gaussian.logpdf(y) - expected))
    times = TransformedDistribution(gaussian, "log")
    np.testing.assert_allclose(times.logsf(np.exp(y)), expected)
    np.testing.assert_allclose(times.hazard(2.0), times.pdf(2.0) / (1 - times.cdf(2.0)))
    np.testing.assert_array_equal(times.sf([-1.0, 0.0]), 1.0)
    counts = CountDistribution(np.zeros((1, 1)), np.full((1, 1), 1e-12), np.zeros((1, 1)), [1.0])
    assert counts.hazard(0)[0] == pytest.approx(np.exp(-1.0))  # of a Poisson distribution with mean one
    falling = TransformedDistribution(gaussian, FunctionTransformer(np.negative, np.negative, check_inverse=False))
    np.testing.assert_allclose(falling.sf(-0.5), gaussian.cdf(0.5))


def test_improbable_bounds_count_alike_below_and_above():
    gaussian = PredictiveDistribution(np.array([[0.0, 1.0], [0.5, 2.0]]), np.full((2, 2), 0.25), [0.3, 0.7])
    mirrored = PredictiveDistribution(-gaussian.means, gaussian.variances, gaussian.weights)
    above = pd.DataFrame({"lower": [5.0, 30.0], "upper": [np.inf, 31.0]})
    below = pd.DataFrame({"lower": -above["upper"], "upper": -above["lower"]})
    parts = np.log([0.3, 0.7])[:, None] + norm(gaussian.means, 0.5).logsf([5.0, 30.0])
    expected = -np.logaddexp(*parts).mean()
    assert negative_log_predictive_density(above, gaussian) == pytest.approx(expected, rel=1e-12)
    assert negative_log_predictive_density(below, mirrored) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(mirrored.cdf([-5.0, -6.0]), gaussian.sf([5.0, 6.0]), rtol=1e-12)
    np.testing.assert_allclose(mirrored.cdf(mirrored.ppf(1e-30)), 1e-30, rtol=1e-6)
    np.testing.assert_allclose(
        TransformedDistribution(mirrored, "log").logcdf(np.exp([-30.0, -40.0])), gaussian.logsf([30.0, 40.0])
    )
    np.testing.assert_array_equal(TransformedDistribution(mirrored, "log").logcdf([-1.0, np.inf]), [-np.inf, 0.0])


def nearly_without_noise(n=300):
    """Rows of which most have lower bounds alone, and of which the others are nearly exact."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 2))
    y = np.sin(2 * X[:, 0]) + 1e-3 * rng.normal(size=n)
    limit = np.quantile(y, 0.3)
    return X, pd.DataFrame({"lower": np.minimum(y, limit), "upper": np.where(y > limit, np.inf, y)})


@pytest.mark.slow
def test_expectation_propagation_converges_where_there_is_hardly_any_noise(monkeypatch):
    changes = []

    def spy(*them, stand_ins=stand_ins.stand_ins_of):
        result = stand_ins(*them)
        changes.append(result[1])
        return result

    monkeypatch.setattr(stand_ins, "stand_ins_of", spy)
    make(SOLVEGPRegressor, likelihood="gaussian").fit(*nearly_without_noise())
    assert len(changes) == 2 * stand_ins.INTERVAL_ROUNDS and max(changes) < stand_ins.CONVERGED


@pytest.mark.parametrize("cls", SMALL)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_expectation_propagation_that_has_not_converged_says_so(monkeypatch, cls, scale):
    monkeypatch.setattr(stand_ins, "PROPAGATIONS", 2)
    monkeypatch.setattr(stand_ins, "CONVERGED", 1e-9)
    X, y = nearly_without_noise(60)
    with pytest.warns(RuntimeWarning, match=r"have not converged: .* by \d\.\de-\d\d standard deviations") as found:
        make(cls, likelihood="gaussian").fit(X, scale * y)
    assert [each.filename for each in found if each.category is RuntimeWarning] == [__file__]
