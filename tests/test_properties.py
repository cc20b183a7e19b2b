"""What must hold for every estimator, whatever its options are: tests over the whole public face.

The combinations of options are those of ``configurations.py``, and the rows are found by Hypothesis.
"""

import pickle
import sys
import warnings
import zlib
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from configurations import CLASSIFIERS, EVERY, KERNELS, N_ROWS, REGRESSORS, combination, wishes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from skdgp.distributions import CountDistribution
from skdgp.estimators import _regression

#: Hypothesis looks at the same rows in every run.
few_rows = settings(
    derandomize=True,
    max_examples=2,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # seeds and exponents do not become clearer by shrinking
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: Likelihoods whose functions are logarithms of means.
POSITIVE = ("poisson", "negative_binomial", "gamma")

LEVELS = [0.01, 0.1, 0.5, 0.9, 0.99]

#: Largest number of calls of Python functions in what the face does for a few rows.
MOST_CALLS = 3_000_000


def pytest_generate_tests(metafunc):
    """Give each property its share of the combinations of those estimators that it is about."""
    wanted = {"regression": REGRESSORS, "classification": CLASSIFIERS, "any_combination": [*REGRESSORS, *CLASSIFIERS]}
    for name in set(metafunc.fixturenames) & set(wanted):
        first = zlib.crc32(metafunc.function.__name__.encode()) % EVERY
        pairs = [(each, number) for each in wanted[name] for number in range(len(wishes(each)))][first::EVERY]
        metafunc.parametrize(name, pairs, ids=[f"{each.__name__}-{n}" for each, n in pairs], indirect=True)


@pytest.fixture
def regression(request):
    """A combination of options of a regressor."""
    return combination(*request.param)


@pytest.fixture
def classification(request):
    """A combination of options of a classifier."""
    return combination(*request.param)


@pytest.fixture
def any_combination(request):
    """A combination of options of any estimator."""
    return combination(*request.param)


@pytest.fixture
def few_draws(monkeypatch):
    """Deviations of gradients by few drawn functions: what they depend on does not depend on their number."""
    monkeypatch.setattr(_regression, "GRADIENT_DRAWS", 8)


# Rows and what the face says of them

seeds = st.integers(0, 2**16)
exponents = st.integers(2, 30)


def near(case, seed, n_rows=4):
    """Rows that are near the data, one of them twice."""
    rows = case.rows(np.random.default_rng([1, seed]), n_rows)
    return joined([rows, taken(rows, [0])])


def far(case, seed, exponent):
    """Rows that are far from the data in one direction or the other."""
    rows = case.rows(np.random.default_rng([2, seed]), 2)
    signs = np.random.default_rng([3, seed]).choice([-1.0, 1.0], 2)
    if isinstance(rows, pd.DataFrame):
        return rows.assign(a=signs * 10.0**exponent)
    rows[:, 0] = signs * 10.0**exponent
    return rows


def joined(parts):
    """Rows of several tables, one after another."""
    if isinstance(parts[0], pd.DataFrame):
        return pd.concat(parts, ignore_index=True)
    return np.concatenate(parts)


def taken(X, index):
    """Some rows of a table."""
    return X.iloc[index] if isinstance(X, pd.DataFrame) else X[index]


def has_gradient(case):
    """Whether predictions have a gradient, and whether it has a deviation."""
    rough = case.options["kernel"] == "matern12"
    return case.options.get("target_transform") is None, not rough


def face(case, model, X) -> dict[str, np.ndarray]:
    """Everything that an estimator says of each row: numbers of shape (n, ...) by name."""
    with bounded_work():
        return said_of(case, model, X)


def said_of(case, model, X) -> dict[str, np.ndarray]:
    draws = model.sample_functions(3, random_state=0)
    said = {"functions": draws(X), "gradients of functions": draws.gradient(X)}
    if case.estimator in CLASSIFIERS:
        return said | {"probabilities": model.predict_proba(X)}
    mean, std = model.predict(X, return_std=True)
    dist = model.predict_dist(X)
    points = dist.ppf(0.3)
    said |= {
        "mean": mean,
        "std": std,
        "latent std": model.predict(X, return_std=True, latent=True)[1],
        "quantiles": model.predict_quantiles(X, LEVELS),
        "interval": model.predict_interval(X, 0.9),
        "mean of distribution": dist.mean,
        "cdf": dist.cdf(mean),
        "logpdf": dist.logpdf(points),
        "crps": dist.crps(points),
    }
    gradient, deviation = has_gradient(case)
    if gradient and deviation:
        said["gradient"], said["std of gradient"] = model.predict_gradient(X, return_std=True)
    elif gradient:
        said["gradient"] = model.predict_gradient(X)
    return said


def agree(said, expected, tolerance, rows=slice(None)):
    """Assert that what is said of rows agrees: to this share of a typical value."""
    for name, values in expected.items():
        size = np.nanmedian(np.abs(values)) if np.isfinite(values).any() else 0.0
        np.testing.assert_allclose(said[name][rows], values, rtol=tolerance, atol=tolerance * size, err_msg=name)


def tolerance_of(model):
    """Rounding errors that predictions may have, as a share."""
    return 1e-2 if model.dtype == "float32" else 1e-6


@contextmanager
def bounded_work(most_calls=MOST_CALLS):
    """Fail if what happens inside takes more calls of Python functions than ``most_calls``."""
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event == "call"
        if n_calls > most_calls:
            raise AssertionError(f"more than {most_calls} calls of functions")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


# Properties of all estimators


@pytest.mark.usefixtures("few_draws")
@few_rows
@given(seed=seeds, exponent=exponents)
def test_a_row_is_predicted_alike_alone_and_among_others(any_combination, seed, exponent):
    case, model = any_combination, any_combination.model
    X = near(case, seed)
    together = face(case, model, X)
    order = np.random.default_rng(seed).permutation(len(X) + 2)
    among = face(case, model, taken(joined([X, far(case, seed, exponent)]), order))
    agree(among, together, tolerance_of(model), np.argsort(order)[: len(X)])
    alone = face(case, model, taken(X, [0]))
    agree({name: values[:1] for name, values in together.items()}, alone, tolerance_of(model))
    for name, values in together.items():
        assert np.allclose(values[0], values[-1], rtol=tolerance_of(model), equal_nan=True), f"{name} of equal rows"


@pytest.mark.usefixtures("few_draws")
@few_rows
@given(seed=seeds, exponent=exponents)
def test_numbers_are_finite_and_work_is_bounded(any_combination, seed, exponent):
    case, model = any_combination, any_combination.model
    for X in (near(case, seed), far(case, seed, exponent)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            said = face(case, model, X)
        for name, values in said.items():
            known = np.isnan(values) & ("gradient" in name) if case.table in ("gaps", "categories") else False
            assert (np.isfinite(values) | known).all(), name


@pytest.mark.usefixtures("few_draws")
def test_copies_predict_alike(any_combination):
    case, model = any_combination, any_combination.model
    X = near(case, 0)
    expected = face(case, model, X)
    for copy in (pickle.loads(pickle.dumps(model)), deepcopy(model)):
        agree(face(case, copy, X), expected, 1e-12)
    refitted = case.fitted()
    agree(face(case, refitted, X), expected, 1e-12)
    assert clone(model).get_params().keys() == model.get_params().keys()


@pytest.mark.usefixtures("few_draws")
def test_rows_of_no_weight_are_absent(any_combination):
    case = any_combination
    rng = np.random.default_rng(0)
    weight = np.ones(N_ROWS) if case.weight is None else case.weight
    extra = case.rows(rng, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = np.concatenate([case.y, case.y[:5][::-1]])
        with_them = case.new().fit(joined([case.X, extra]), y, sample_weight=np.append(weight, np.zeros(5)))
        without = case.new().fit(case.X, case.y, sample_weight=weight)
    X = near(case, 0)
    agree(face(case, with_them, X), face(case, without, X), 1e-9)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("power", [-20, 20])
def test_units_of_features_do_not_matter(any_combination, power):
    case = any_combination
    if not case.options["normalize_X"] or case.options["kernel"] in KERNELS:
        pytest.skip("kernels are in the user's units here")
    factor, X = 2.0**power, near(case, 0)  # powers of two leave all digits alone

    def scaled(rows):
        if isinstance(rows, pd.DataFrame):
            return rows.assign(a=factor * rows["a"])
        return rows * np.append(factor, np.ones(rows.shape[1] - 1))

    said, expected = face(case, case.fitted(X=scaled(case.X)), scaled(X)), face(case, case.model, X)
    for name in expected:
        if "gradient" in name:
            axis = 2 if expected[name].ndim > 2 and (case.estimator in CLASSIFIERS or case.y.ndim == 2) else 1
            slopes = np.moveaxis(said[name], axis, -1)
            slopes[..., 0] *= factor
            said[name] = np.moveaxis(slopes, -1, axis)
    agree(said, expected, 1e-6)


# Properties of regressors


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("power", [-20, 20])
def test_predictions_have_the_units_of_targets(regression, power):
    case = regression
    counts = case.likelihood in ("poisson", "negative_binomial")
    in_units = case.options["normalize_y"] and case.options["kernel"] not in KERNELS
    if counts or not in_units or case.options["target_transform"] is not None:
        pytest.skip("the model depends on the targets' units")
    factor, X = 2.0**power, near(case, 0)
    said, expected = face(case, case.fitted(y=factor * case.y), X), face(case, case.model, X)
    for name, values in said.items():
        if name == "logpdf":
            said[name] = values + power * np.log(2)
        elif name != "cdf":
            said[name] = values / factor
    agree(said, expected, 1e-6)


@few_rows
@given(seed=seeds, exponent=exponents)
def test_covariances_are_covariances(regression, seed, exponent):
    case, model = regression, regression.model
    if case.options["target_transform"] is not None:
        pytest.skip("there is no formula")
    X = near(case, seed)
    for rows in (X, joined([X, far(case, seed, exponent)])):
        _, std = model.predict(rows, return_std=True)
        cov = np.moveaxis(np.atleast_3d(model.predict(rows, return_cov=True)[1]), -1, 0)  # (P, n, n)
        deviations = std.reshape(len(std), -1).T  # (P, n)
        for matrix, deviation in zip(cov, deviations, strict=True):
            correlation = matrix / deviation[:, None] / deviation
            np.testing.assert_allclose(correlation.diagonal(), 1.0, rtol=50 * tolerance_of(model))
            np.testing.assert_allclose(correlation, correlation.T, atol=1e-9)
            assert np.linalg.eigvalsh(correlation).min() > -50 * tolerance_of(model)
        if rows is X:
            among_near = cov
    np.testing.assert_allclose(
        cov[:, : len(X), : len(X)], among_near, rtol=1e-5, atol=10 * tolerance_of(model) * np.abs(among_near).max()
    )


def test_draws_have_the_predicted_moments(regression):
    """Predictions of models with hidden layers are mixtures of a few samples, which draws are not."""
    case, model = regression, regression.model
    if case.options["target_transform"] is not None or case.table == "gaps" or case.likelihood in POSITIVE:
        pytest.skip("moments of functions are not those of predictions")
    n_draws, X = 1000, near(case, 0, 3)
    few_samples = bool(case.options.get("hidden_dims", ())) or bool(case.options.get("latent_dims"))
    rough = 0.5 if few_samples else 0.02
    values = model.sample_functions(n_draws, random_state=1)(X)  # (n, [P], S)
    mean, std = model.predict(X, return_std=True, latent=True)
    assert (np.abs(values.mean(-1) - mean) < 6 * values.std(-1) / np.sqrt(n_draws) + rough * std).all()
    centred = values - values.mean(-1, keepdims=True)
    products = np.einsum("i...s,j...s->ij...s", centred, centred)
    cov = model.predict(X, return_cov=True, latent=True)[1]
    error = 6 * products.std(-1) / np.sqrt(n_draws) + 2 * rough * np.einsum("i...,j...->ij...", std, std)
    assert (np.abs(products.mean(-1) - cov) < error).all()


def test_gradients_are_those_of_predictions(regression):
    case, model = regression, regression.model
    gradient, deviation = has_gradient(case)
    if not gradient or case.table in ("categories", "gaps") or model.dtype == "float32" or not deviation:
        pytest.skip("there is no gradient, or differences are too coarse")
    X = near(case, 0, 3)
    slopes, std = model.predict_gradient(X, return_std=True)
    draws = model.sample_functions(400, random_state=2)
    spread = draws.gradient(X).std(-1)
    reach = np.ptp(case.X, axis=0)
    for feature, step in enumerate(1e-4 * reach):
        low, high = X.copy(), X.copy()
        low[:, feature] -= step
        high[:, feature] += step
        difference = (model.predict(high) - model.predict(low)) / (2 * step)
        tolerance = 1e-3 * (np.abs(slopes[..., feature]) + std[..., feature])
        assert (np.abs(slopes[..., feature] - difference) < tolerance + 1e-6 / reach[feature]).all()
    np.testing.assert_allclose(std, spread, rtol=0.35, atol=1e-6 / reach.min())


@few_rows
@given(seed=seeds, exponent=exponents)
def test_distributions_agree_with_themselves(regression, seed, exponent):
    case, model = regression, regression.model
    for X in (near(case, seed, 2), far(case, seed, min(exponent, 4))):
        dist = model.predict_dist(X)
        if dist.shape[1:]:
            dist = dist[:, 0]
        (check_counts if isinstance(dist, CountDistribution) else check_density)(dist)


def check_counts(dist):
    """Assert that probabilities, quantiles, moments and scores of counts agree with plain sums."""
    top = dist.ppf(1 - 1e-9)
    for row in np.flatnonzero(top < 20_000):
        one = dist[int(row)]
        k = np.arange(int(top[row]) + 1)[:, None]
        p, F = one.pdf(k)[:, 0], one.cdf(k)[:, 0]
        np.testing.assert_allclose(np.cumsum(p), F, atol=1e-7)
        np.testing.assert_allclose(F[-1], 1.0, atol=1e-6)
        for level in LEVELS:
            assert one.ppf(level)[0] == np.searchsorted(F, level - 1e-12)
        y = float(one.ppf(0.8)[0])
        np.testing.assert_allclose(one.crps([y]), np.square(F - (k[:, 0] >= y)).sum(), rtol=1e-3)
    check_draws(dist)


def check_density(dist):
    """Assert that density, cdf, quantiles, moments and score agree, by quadrature between many quantiles."""
    tails = np.logspace(-9, -2, 120)
    levels = np.concatenate([tails, np.linspace(0.01, 0.99, 400)[1:-1], 1 - tails[::-1]])[:, None]
    x = dist.ppf(levels)  # (L, n)
    assert (np.diff(x, axis=0) >= 0).all()
    nodes, weights = np.polynomial.legendre.leggauss(4)
    width = 0.5 * np.diff(x, axis=0)[:, None]
    points = 0.5 * (x[1:] + x[:-1])[:, None] + width * nodes[:, None]  # (L - 1, 4, n)
    share = (dist.pdf(points) * width * weights[:, None]).sum(1)  # (L - 1, n)
    np.testing.assert_allclose(share.sum(0), 1.0, atol=2e-3)
    np.testing.assert_allclose(dist.cdf(x), np.broadcast_to(levels, x.shape), atol=1e-6)
    F = dist.cdf(points)
    score = (np.square(F - (points >= x[300])) * width * weights[:, None]).sum((0, 1))
    np.testing.assert_allclose(dist.crps(x[300]), score, rtol=1e-2)
    check_draws(dist)


def check_draws(dist, n_draws=4000):
    """Assert that draws are spread as the cdf says."""
    draws = dist.rvs(n_draws, random_state=0)
    transform = dist.pit(draws, random_state=0)
    ranks = (np.arange(n_draws) + 0.5)[:, None] / n_draws
    assert np.abs(np.sort(transform, axis=0) - ranks).max() < 2.5 / np.sqrt(n_draws)  # Kolmogorov: 1 in 130 000


# Properties of classifiers


@few_rows
@given(seed=seeds, exponent=exponents)
def test_probabilities(classification, seed, exponent):
    case, model = classification, classification.model
    X = joined([near(case, seed), far(case, seed, exponent)])
    probability = model.predict_proba(X)
    np.testing.assert_allclose(probability.sum(1), 1.0, rtol=1e-6)
    assert probability.min() >= 0
    np.testing.assert_array_equal(model.predict(X), model.classes_[probability.argmax(1)])
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probability, rtol=1e-5, atol=1e-12)


def test_mean_of_drawn_probabilities(classification):
    case, model = classification, classification.model
    if case.table == "gaps":
        pytest.skip("functions take the mean of a missing cell")
    X, n_draws = near(case, 0), 2000
    values = model.sample_functions(n_draws, random_state=1)(X)
    error = 6 * values.std(-1) / np.sqrt(n_draws)
    assert (np.abs(values.mean(-1) - model.predict_proba(X)) < error + 0.01).all()


def test_names_of_classes_do_not_matter(classification):
    case, X = classification, near(classification, 0)
    numbers = np.searchsorted(case.model.classes_, case.y)
    np.testing.assert_array_equal(case.fitted(y=numbers).predict_proba(X), case.model.predict_proba(X))
