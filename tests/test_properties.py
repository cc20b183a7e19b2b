"""What must hold for every estimator, whatever its options are: tests over the whole public face.

The combinations of options are those of ``configurations.py``. Each property is tested for the first ones of each
estimator that it is about. Every combination has rows of its own.
"""

import pickle
import sys
import warnings
from contextlib import contextmanager
from functools import cache

import numpy as np
import pandas as pd
import pytest
from configurations import (
    CLASSIFIERS,
    KERNELS,
    LEVEL,
    N_ROWS,
    OPTIONS,
    REGRESSORS,
    Combination,
    all_values,
    combinations,
    n_first,
)
from sklearn.base import clone

from skdgp.distributions import CountDistribution, GradeDistribution
from skdgp.estimators import _regression

#: Likelihoods whose functions are not means, but logarithms of them, for instance.
CURVED = ("poisson", "negative_binomial", "gamma", "lognormal", "beta", "ordinal")

#: Tables with columns that have no gradient, or rows without one.
UNEVEN = ("gaps", "categories", "new levels")

LEVELS = [0.01, 0.1, 0.5, 0.9, 0.99]

#: Largest number of calls of Python functions in what the face does for a few rows.
MOST_CALLS = 3_000_000


def combinations_of(estimators, holds=lambda case: True):
    """Parametrise a test by combinations of options of these estimators for which ``holds`` is true.

    All but the last of each estimator are slow.
    """
    cases = []
    for estimator in estimators:
        fitting = [(number, case) for number, case in enumerate(combinations(estimator)) if holds(case)]
        *others, last = fitting[: n_first(estimator)]
        marked = [(*each, pytest.mark.slow) for each in others] + [(*last, ())]
        cases += [
            pytest.param(case, id=f"{estimator.__name__}-{number}", marks=marks) for number, case, marks in marked
        ]
    return pytest.mark.parametrize("case", cases)


def untransformed(case):
    """Whether models see the targets themselves."""
    return case.options["target_transform"] is None and case.likelihood != "lognormal"


def plain_functions(case):
    """Whether predictions are functions and noise that is the same for all."""
    return untransformed(case) and case.likelihood not in CURVED and case.table != "gaps"


any_regressor, any_classifier = combinations_of(REGRESSORS), combinations_of(CLASSIFIERS)
any_estimator = combinations_of([*REGRESSORS, *CLASSIFIERS])


@pytest.fixture
def few_draws(monkeypatch):
    """Deviations of gradients by few drawn functions: what they depend on does not depend on their number."""
    monkeypatch.setattr(_regression, "GRADIENT_DRAWS", 8)


# Rows and what the face says of them


def near(case, n_rows=4):
    """Rows that are near the data, one of them twice."""
    rows = case.rows(np.random.default_rng([1, case.seed]), n_rows)
    return joined([rows, taken(rows, [0])])


def far(case, *exponents):
    """Rows that are far from the data in one direction or the other."""
    rows = case.rows(np.random.default_rng([2, case.seed]), len(exponents))
    places = np.random.default_rng([3, case.seed]).choice([-1.0, 1.0], len(rows)) * 10.0 ** np.asarray(exponents)
    if isinstance(rows, pd.DataFrame):
        return rows.assign(a=places)
    rows[:, 0] = places
    return rows


def any_exponent(case, most=30):
    """A power of ten, which is another one for other combinations."""
    return 2 + case.seed % (most - 1)


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
    return case.options.get("trend") is None and (case.estimator in CLASSIFIERS or untransformed(case)), not rough


def leads_beyond(case):
    """Whether predictions may grow beyond the range of a transformer of targets, where all targets are the same."""
    grows = case.options["trend"] or case.options["kernel"] not in LEVEL["kernel"]
    return bool(grows and case.options["target_transform"])


def has_atoms(case):
    """Whether distributions may have atoms."""
    return leads_beyond(case) or (case.targets == "tied" and case.options["target_transform"] == "quantiles")


def face(case, model, X, unit=1.0) -> dict[str, np.ndarray]:
    """Everything that an estimator says of each row: numbers of shape (n, ...) by name. Targets have this unit."""
    said, known = {}, case.known(X, unit)
    if case.options["kernel"] != "matern12":  # whose functions have no gradient, and enlarge rounding errors
        draws = model.sample_functions(3, random_state=0)
        said = {"functions": draws(X)}
        if case.options.get("trend") is None:  # which may have none
            said["gradients of functions"] = draws.gradient(X)
    if case.estimator in CLASSIFIERS:
        return said | {"probabilities": model.predict_proba(X)}
    mean, std = model.predict(X, return_std=True, **known)
    dist = model.predict_dist(X, **known)
    points = dist.ppf(0.3)
    said |= {
        "mean": mean,
        "std": std,
        "latent std": model.predict(X, return_std=True, latent=True, **known)[1],
        "quantiles": model.predict_quantiles(X, LEVELS, **known),
        "interval": model.predict_interval(X, 0.9, **known),
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


@cache
def usual(case):
    """What the fitted estimator says of rows near the data: the same for all tests of a combination."""
    return face(case, case.model, near(case))


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


def test_usual_combinations_have_every_value():
    first = [case for each in OPTIONS for case in combinations(each)[: n_first(each)]]
    found = {pair for case in first for pair in case.values.items()}
    assert {(name, each) for values in map(all_values, OPTIONS) for name in values for each in values[name]} <= found


@pytest.mark.usefixtures("few_draws")
@any_estimator
def test_a_row_is_predicted_alike_alone_and_among_others(case):
    model = case.model
    X = near(case)
    together = usual(case)
    order = np.random.default_rng(case.seed).permutation(len(X) + 3)
    among = face(case, model, taken(joined([X, far(case, 1, 8, any_exponent(case))]), order))
    agree(among, together, tolerance_of(model), np.argsort(order)[: len(X)])
    alone = face(case, model, taken(X, [0]))
    agree({name: values[:1] for name, values in together.items()}, alone, tolerance_of(model))
    for name, values in together.items():
        assert np.allclose(values[0], values[-1], rtol=tolerance_of(model), equal_nan=True), f"{name} of equal rows"


@pytest.mark.usefixtures("few_draws")
@any_estimator
def test_numbers_are_finite_and_work_is_bounded(case):
    model = case.model
    X = joined([taken(near(case), [0, 1]), far(case, 1, 2, any_exponent(case))])
    with warnings.catch_warnings(), bounded_work():
        warnings.simplefilter("error")
        said = face(case, model, X)
    for name, values in said.items():
        if name == "logpdf" and leads_beyond(case):
            continue
        known = np.isnan(values) & ("gradient" in name) if case.table in UNEVEN else False
        assert (np.isfinite(values) | known).all(), name


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
@any_estimator
def test_copies_predict_alike(case):
    model, X, expected = case.model, near(case), usual(case)
    agree(face(case, pickle.loads(pickle.dumps(model)), X), expected, 1e-12)
    agree(face(case, case.fitted(), X), expected, 1e-12)
    assert clone(model).get_params().keys() == model.get_params().keys()


@pytest.mark.usefixtures("few_draws")
@any_estimator
def test_rows_of_no_weight_are_absent(case):
    weight = np.ones(N_ROWS) if case.weight is None else case.weight
    extra = case.rows(np.random.default_rng(0), 5)
    y = joined([case.y, case.y[:5][::-1]])
    with_them = case.fitted(joined([case.X, extra]), y, np.append(weight, np.zeros(5)))
    agree(face(case, with_them, near(case)), usual(case), 1e-9)


def in_own_units(case):
    """Whether kernels see features in units of their own."""
    return case.options["normalize_X"] and case.options["kernel"] not in KERNELS


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
@combinations_of([*REGRESSORS, *CLASSIFIERS], in_own_units)
def test_units_of_features_do_not_matter(case):
    power = 20 if case.seed % 2 else -20
    factor, X = 2.0**power, near(case)  # powers of two leave all digits alone

    def scaled(rows):
        if isinstance(rows, pd.DataFrame):
            return rows.assign(a=factor * rows["a"])
        return rows * np.append(factor, np.ones(rows.shape[1] - 1))

    said, expected = face(case, case.fitted(X=scaled(case.X)), scaled(X)), usual(case)
    for name in expected:
        if "gradient" in name:
            axis = 2 if expected[name].ndim > 2 and (case.estimator in CLASSIFIERS or case.targets == "two") else 1
            slopes = np.moveaxis(said[name], axis, -1)
            slopes[..., 0] *= factor
            said[name] = np.moveaxis(slopes, -1, axis)
    agree(said, expected, 1e-6)


# Properties of regressors


def has_units(case):
    """Whether the model sees targets in units of its own, to the last digit.

    Counts, shares and grades have no units. Training enlarges the rounding errors of logarithms of targets.
    """
    linear = untransformed(case) and case.likelihood not in CURVED
    return linear and case.options["normalize_y"] and case.options["kernel"] not in KERNELS


@pytest.mark.usefixtures("few_draws")
@combinations_of(REGRESSORS, has_units)
def test_predictions_have_the_units_of_targets(case):
    check_units(case)


@pytest.mark.parametrize("estimator", REGRESSORS)
def test_deviations_in_closed_form_have_the_units_of_targets(estimator):
    """Several members of one layer know the deviations of their gradients, and differ in the gradients."""
    options = {name: values[0] for name, values in OPTIONS[estimator].items()}
    one_layer = {"hidden_dims": ()} if "hidden_dims" in options else {}
    check_units(Combination(estimator, options | one_layer | {"n_estimators": 3}))


def check_units(case):
    """Assert that predictions of targets in another unit are the same in this unit."""
    power = 20 if case.seed % 2 else -20
    factor = 2.0**power
    said, expected = face(case, case.fitted(y=factor * case.y, unit=factor), near(case), factor), usual(case)
    for name, values in said.items():
        if name == "logpdf":
            said[name] = values + power * np.log(2)
        elif name != "cdf":
            said[name] = values / factor
    agree(said, expected, 1e-6)


@combinations_of(REGRESSORS, untransformed)
def test_covariances_are_covariances(case):
    model, X = case.model, near(case)
    for rows in (X, joined([X, far(case, 8, any_exponent(case))])):
        mean, std = model.predict(rows, return_std=True, **case.known(rows))
        same, cov = model.predict(rows, return_cov=True, **case.known(rows))
        agree({"mean": same}, {"mean": mean}, tolerance_of(model))
        cov = np.moveaxis(np.atleast_3d(cov), -1, 0)  # (P, n, n)
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


def one_plain_member(case):
    """Whether predictions are those of the last layer of one member."""
    others = ("base", "n_neighbors", "trend")
    alone = case.options["n_estimators"] == 1 and not any(case.options[name] for name in others)
    return alone and plain_functions(case) and case.likelihood != "heteroskedastic"


@combinations_of(REGRESSORS, one_plain_member)
def test_predictions_are_those_of_the_last_layer(case):
    model, X = case.model, near(case, 8)
    layer, std_of_layer = model.predict_layers(X)[-1]
    mean, std = (each.reshape(len(X), -1) for each in model.predict(X, return_std=True, latent=True))
    scale = np.median(std / std_of_layer, axis=0)
    np.testing.assert_allclose(std, scale * std_of_layer, rtol=tolerance_of(model))
    difference = mean - scale * layer
    np.testing.assert_allclose(difference - difference[:1], 0.0, atol=tolerance_of(model) * scale.max())


@pytest.mark.slow
@combinations_of(REGRESSORS, plain_functions)
def test_draws_have_the_predicted_moments(case):
    """Predictions of models with hidden layers are mixtures of a few samples, which draws are not."""
    model, n_draws, X = case.model, 1000, near(case, 3)
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


def has_slopes(case):
    """Whether predictions have a gradient, differences are precise, and the gradient has a deviation."""
    return all(has_gradient(case)) and case.table not in (*UNEVEN, "dates") and case.options["dtype"] != "float32"


def has_closed_form(case):
    """Whether deviations of gradients do not come from draws, and are those of functions without heavy tails."""
    deep = (
        case.options.get("hidden_dims") or case.options.get("latent_dims") or case.options.get("inducing") == "fourier"
    )
    joined = case.options["base"] or case.options["n_neighbors"]
    return not deep and not joined and plain_functions(case)


@pytest.mark.usefixtures("few_draws")
@combinations_of(REGRESSORS, has_slopes)
def test_gradients_are_those_of_predictions(case):
    model, X = case.model, near(case, 3)
    slopes, std = model.predict_gradient(X, return_std=True)
    reach = np.ptp(case.X, axis=0)
    for feature, step in enumerate(1e-6 * reach):  # so short that hardly any kink or step lies between
        low, high = X.copy(), X.copy()
        low[:, feature] -= step
        high[:, feature] += step
        difference = (model.predict(high) - model.predict(low)) / (2 * step)
        tolerance = 1e-3 * (np.abs(slopes[..., feature]) + std[..., feature])
        assert (np.abs(slopes[..., feature] - difference) < tolerance + 1e-6 / reach[feature]).all()
    if has_closed_form(case):
        spread = model.sample_functions(400, random_state=2).gradient(X).std(-1)
        np.testing.assert_allclose(std, spread, rtol=0.35, atol=1e-6 / reach.min())


@any_regressor
def test_distributions_agree_with_themselves(case):
    X = joined([near(case, 2), far(case, any_exponent(case, 4))])
    dist = case.model.predict_dist(X, **case.known(X))
    if dist.shape[1:]:
        dist = dist[:, 0]
    if isinstance(dist, CountDistribution | GradeDistribution):
        check_counts(dist)
    else:
        check_density(dist, plain=not has_atoms(case))
        if not has_atoms(case):
            check_draws(dist)


def check_counts(dist):
    """Assert that probabilities, quantiles, moments and scores of counts or grades agree with plain sums."""
    top = dist.ppf(1 - 1e-9)
    for row in np.flatnonzero(top < 500):
        one = dist[int(row)]
        k = np.arange(int(top[row]) + 1)[:, None]
        p, F = one.pdf(k)[:, 0], one.cdf(k)[:, 0]
        np.testing.assert_allclose(np.cumsum(p), F, atol=1e-7)
        np.testing.assert_allclose(F[-1], 1.0, atol=1e-6)
        for level in LEVELS:
            assert one.ppf(level)[0] == np.searchsorted(F, level - 1e-12)
        y = float(one.ppf(0.8)[0])
        np.testing.assert_allclose(one.crps([y]), np.square(F - (k[:, 0] >= y)).sum(), rtol=1e-3)
    check_draws(dist, 500)  # each takes sums over all components


def check_density(dist, *, plain=True):
    """Assert that cdf and quantiles agree and, if it is plain, density and score, by quadrature between quantiles."""
    tails = np.logspace(-9, -2, 120)
    levels = np.concatenate([tails, np.linspace(0.01, 0.99, 400)[1:-1], 1 - tails[::-1]])[:, None]
    x = dist.ppf(levels)  # (L, n)
    assert (np.diff(x, axis=0) >= -1e-15 * np.abs(x[1:])).all()  # but for the last digit
    error = 2e-15 * np.abs(x)  # atoms, and most of a distribution of shares, may lie within rounding errors
    below, above = dist.cdf(np.nextafter(x - error, -np.inf)), dist.cdf(np.nextafter(x + error, np.inf))
    assert ((below < levels + 1e-6) & (levels - 1e-6 < above)).all()
    if not plain:
        return
    nodes, weights = np.polynomial.legendre.leggauss(4)
    width = 0.5 * np.diff(x, axis=0)[:, None]
    points = 0.5 * (x[1:] + x[:-1])[:, None] + width * nodes[:, None]  # (L - 1, 4, n)
    resolved = width[:, 0] > 1e-12 * np.abs(x[1:])  # the density of shares may be infinite at the ends
    density = np.where(resolved[:, None], dist.pdf(points), 0.0)
    share = (density * width * weights[:, None]).sum(1) + np.where(resolved, 0.0, np.diff(dist.cdf(x), axis=0))
    inside = dist.cdf(np.nextafter(x[-1], -np.inf)) - dist.cdf(x[0])  # 1 but for atoms where transformers end
    np.testing.assert_allclose(share.sum(0), inside, atol=2e-3)
    F = dist.cdf(points)
    score = (np.square(F - (points >= x[300])) * width * weights[:, None]).sum((0, 1))
    np.testing.assert_allclose(dist.crps(x[300]), score, rtol=1e-2)


def check_draws(dist, n_draws=4000):
    """Assert that draws are spread as the cdf says."""
    draws = dist.rvs(n_draws, random_state=0)
    transform = dist.pit(draws, random_state=0)
    ranks = (np.arange(n_draws) + 0.5)[:, None] / n_draws
    assert np.abs(np.sort(transform, axis=0) - ranks).max() < 2.5 / np.sqrt(n_draws)  # Kolmogorov: 1 in 130 000


# Properties of classifiers


@any_classifier
def test_probabilities(case):
    model, X = case.model, joined([near(case), far(case, 1, any_exponent(case))])
    probability = model.predict_proba(X)
    np.testing.assert_allclose(probability.sum(1), 1.0, rtol=1e-6)
    assert probability.min() >= 0
    np.testing.assert_array_equal(model.predict(X), model.classes_[probability.argmax(1)])
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probability, rtol=1e-5, atol=1e-12)


@pytest.mark.slow
@combinations_of(CLASSIFIERS, lambda case: case.table != "gaps")  # functions take the mean of a missing cell
def test_mean_of_drawn_probabilities(case):
    X, n_draws = near(case), 600
    values = case.model.sample_functions(n_draws, random_state=1)(X)
    error = 6 * values.std(-1) / np.sqrt(n_draws)
    assert (np.abs(values.mean(-1) - case.model.predict_proba(X)) < error + 0.01).all()


@any_classifier
def test_names_of_classes_do_not_matter(case):
    X, numbers = near(case), np.searchsorted(case.model.classes_, case.y)
    np.testing.assert_array_equal(case.fitted(y=numbers).predict_proba(X), case.model.predict_proba(X))
