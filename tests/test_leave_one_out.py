"""Predictions of training rows that are left out: against dense algebra, other posteriors and other fits."""

import pickle
import re
from copy import deepcopy
from typing import NamedTuple

import joblib
import numpy as np
import pytest
import torch
from helpers import ELBO, ensemble_of, normal, predictor_of, settings, table_of
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import r2_score
from test_state import STORED

from skdgp import AVDGPRegressor, DSDGPRegressor, PredictiveDistribution, SOLVEGPRegressor
from skdgp.datasets import make_waves
from skdgp.display import CalibrationDisplay, PredictiveIntervalDisplay
from skdgp.distributions import TransformedDistribution
from skdgp.gp.alternatives import alternative, side_by_side
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.neighbours import Neighbours
from skdgp.gp.propagation import make_propagation
from skdgp.inference import collapsed, ensemble
from skdgp.inference import leave_one_out as module
from skdgp.inference.batches import Batch, Part
from skdgp.inference.collapsed import set_posteriors
from skdgp.inference.kept import Kept
from skdgp.inference.leave_one_out import REASONS, leave_one_out
from skdgp.inference.plan import Plan, Split
from skdgp.inference.predictor import Predictor
from skdgp.inference.twins import twins
from skdgp.inference.validation import Validation
from skdgp.metrics import coverage, crps, negative_log_predictive_density, pit_values


class Call(NamedTuple):
    """What a fit gives to ``leave_one_out``."""

    predictor: Predictor
    learnt_with: list
    basis: Part | None
    validation: Validation


@pytest.fixture
def calls(monkeypatch):
    """The calls that fits have made."""
    made = []

    def watched(*args):
        made.append(Call(*args))
        return leave_one_out(*args)

    monkeypatch.setattr(ensemble, "leave_one_out", watched)
    return made


def table(n_rows=50, n_outputs=1, *, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n_rows, 2))
    Y = np.stack([np.sin(6 * X[:, 0]) + X[:, 1] ** 2, 100 + 5 * np.cos(5 * X[:, 1])], axis=1)
    return X, (Y + noise * rng.normal(size=Y.shape))[:, :n_outputs]


def small(n_inducing=12, n_orthogonal=6, **parameters) -> SOLVEGPRegressor:
    return SOLVEGPRegressor(
        n_inducing, n_orthogonal, **({"n_neighbors": 0, "max_iter": 10, "random_state": 0} | parameters)
    )


@torch.no_grad()
def without(model, call: Call, row: int):
    """The distribution of a row by the same model, whose posteriors learn from all rows but this one and its twins."""
    predictor, (_, learnt_with, basis, (data, split, plan, *_)) = deepcopy(call.predictor), call
    group = twins(data)
    there = group != group[row]
    beta = 1.0 if plan.name == "collapsed" else plan.settings.beta
    for number, member in enumerate(predictor.models):
        part = Part(data) if split.for_validation else split.of(data, number)[0]
        index = part.at(torch.arange(len(part)))
        noise, member.likelihood = member.likelihood, learnt_with[number]
        set_posteriors(member, data.rows(index[there[index]]).to("cpu", predictor.dtype), beta)
        member.likelihood = noise
    if predictor.blend is not None:
        others = basis.data.rows(basis.index[there[basis.index]])
        blend = predictor.blend
        alternatives = [alternative(blend.base, i, blend.n_alternatives) for i in range(blend.n_alternatives)]
        for base in alternatives:
            set_posteriors(base, others.to("cpu", torch.float64))
        blend.base = side_by_side(alternatives)
    marginals = predictor.marginals(data.X[row, None].to(predictor.dtype))
    return model._mixture(predictor.likelihoods, marginals, latent=False)


# Against algebra


@torch.no_grad()
@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_as_inducing_points_are_those_of_the_exact_posterior(n_outputs, weighted):
    """With all rows as inducing points, K⁻¹ has means and variances (Rasmussen and Williams, Eq. 5.12)."""
    n_rows = 25
    X, y = normal(n_rows, 2, seed=1), normal(n_rows, n_outputs, seed=2)
    weight = 0.5 + normal(n_rows, seed=3).abs() if weighted else torch.ones(n_rows, dtype=torch.float64)
    kernel = StationaryKernel("matern32", 2, lengthscale=0.9, variance=1.4).double()
    layer = GlobalLayer(kernel, ZeroMean(n_outputs), X.clone(), 0 * y.mT, covariance="full", whiten=True, jitter=1e-12)
    likelihood = Gaussian(n_outputs, excess=0.1)
    likelihood.log_excess.add_(torch.arange(n_outputs))
    model = DeepGP([layer], make_propagation("monte_carlo", (), 1, torch.Generator()), likelihood).double()
    data = Batch(X, y, weight)
    set_posteriors(model, data)
    plan = Plan(None, settings(ELBO), torch.float64, "collapsed", closed=collapsed.predict_left_out)
    validation = Validation(data, Split(np.arange(n_rows)), plan, torch.device("cpu"), torch.float64, Kept())
    found = leave_one_out(Predictor([model]), [model.likelihood], None, validation)
    for output, noise in enumerate(model.likelihood.variance):
        inverse = torch.linalg.inv(kernel(X, X)[0] + torch.diag(noise / weight))
        mean = y[:, output] - (inverse @ y[:, output]) / inverse.diagonal()
        variance = 1 / inverse.diagonal() - noise / weight
        torch.testing.assert_close(found.mean[0, :, output], mean, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(found.variance[0, :, output], variance, rtol=1e-7, atol=1e-8)


def test_what_members_predict_for_all_rows_is_computed_once(monkeypatch):
    """Blend, noise and neighbours ask for the same, and each time for rows in another order."""
    X, y = table()
    calls, plain = [], collapsed.left_out

    def spy(model, rows, data, *rest):
        calls.append(rows is data)
        return plain(model, rows, data, *rest)

    monkeypatch.setattr(collapsed, "left_out", spy)
    SOLVEGPRegressor(10, method="collapsed", max_iter=3, n_estimators=1, random_state=0).fit(X, y.squeeze())
    assert calls and all(calls) and len(calls) <= 3  # before and after its noise is corrected, and for the user


ROWS = [3, 17]

SVI = {"method": "svi", "max_iter": 5, "dtype": "float64"}

FITS = [
    {},
    {"base": None, "n_orthogonal": 0, "scale": 1e-6},
    {"n_estimators": 3, "n_outputs": 2},
    {"target_transform": "log"},
    {"weighted": True, "scale": 1e6},
    {"twice": True},
    {"kernel": 1.0 * RBF([0.3, 0.3]), "n_orthogonal": 0},
    {"inducing": "fourier", "n_orthogonal": 0, "n_features": 1},
    {"validation": True, "method": "collapsed"},
    SVI | {"n_estimators": 2},
    SVI | {"base": None},
    SVI | {"early_stopping": True, "n_estimators": 2},
    SVI | {"validation": True},
]


@pytest.mark.parametrize("options", FITS, ids=str)
def test_distributions_are_those_of_posteriors_without_the_row(options, calls):
    options = dict(options)
    scale = options.pop("scale", 1.0)
    X, y = table(n_outputs=options.pop("n_outputs", 1))
    X, y = X[:, : options.pop("n_features", 2)], y.squeeze() * scale
    if options.pop("twice", False):
        X, y = np.vstack([X, X[:20]]), np.concatenate([y, y[:20]])
    weight = np.random.default_rng(1).uniform(0.5, 3.0, len(X)) if options.pop("weighted", False) else None
    given = table(30, seed=5) if options.pop("validation", False) else None
    if options.get("target_transform") == "log":
        y = np.exp(y)
    model = small(**options)
    if given is None:
        model.fit(X, y, weight)
    else:
        model.fit(X, y, X_val=given[0], y_val=given[1][:, 0] * scale)
    found, plain = model.leave_one_out(), model.predict_dist(X)
    assert type(found) is type(plain) and found.shape == plain.shape == y.shape
    assert found.weights.shape == plain.weights.shape
    for row in ROWS:
        expected = without(model, calls[-1], row)
        deviation = plain.std[row]
        np.testing.assert_allclose((found.mean[row] - expected.mean[0]) / deviation, 0.0, atol=1e-5)
        np.testing.assert_allclose(found.var[row], expected.var[0], rtol=1e-5)


def test_base_and_members_are_blended(calls, monkeypatch):
    """As in predictions, with weights that follow from the base's variance without the row."""
    X, y = table(100)
    model = small(30, 0, max_iter=40).fit(X, y[:, 0])
    with torch.no_grad():
        predictor_of(model).blend.weight.fill_(0.4)
    left_out = leave_one_out(*calls[-1])
    learnt = ensemble_of(model)
    learnt.left_out = left_out
    for row in ROWS:
        expected = without(model, calls[-1], row)
        found = model.leave_one_out()[row]
        np.testing.assert_allclose([found.mean[0], found.var[0]], [expected.mean[0], expected.var[0]], rtol=1e-6)


@pytest.mark.slow
def test_neighbours_are_other_rows():
    X, y = table(80)
    model, plain = small(n_neighbors=5).fit(X, y[:, 0]), small().fit(X, y[:, 0])
    assert model.neighbors_["n_neighbors"] == 5
    local = predictor_of(model).correction.local
    order = np.array([np.flatnonzero((local.X.numpy() == row).all(1))[0] for row in table_of(model).prepared(X)])
    shift = ensemble_of(model).left_out.mean - ensemble_of(plain).left_out.mean
    spread = ensemble_of(model).left_out.variance - ensemble_of(plain).left_out.variance
    for row in ROWS:
        others = np.arange(len(X)) != order[row]
        alone = Neighbours(
            *(column[others] for column in (local.X, local.residual, local.weight)),
            lengthscale=local.lengthscale,
            variance=local.variance,
            noise=local.noise,
            n_neighbors=5,
        )
        mean, variance = alone.moments(local.X[order[row], None])
        torch.testing.assert_close(shift[0, row], mean[0], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(spread[0, row], variance[0], rtol=1e-6, atol=1e-9)
    n_gaussians = len(ensemble_of(model).left_out.mean)
    assert len(model.leave_one_out().weights) == 2 * n_gaussians  # noise is a mixture of two Gaussians


# Rows of the table


def test_rows_of_weight_zero_have_their_places():
    X, y = table()
    weight = np.ones(len(X))
    weight[::7] = 0
    model = small().fit(X, y, weight)
    found, plain, learnt = model.leave_one_out(), model.predict_dist(X), weight > 0
    assert found.shape == (50, 1)
    np.testing.assert_allclose(found.mean[~learnt], plain.mean[~learnt])
    np.testing.assert_allclose(found.std[~learnt], plain.std[~learnt])
    alone = small().fit(X[learnt], y[learnt]).leave_one_out()
    np.testing.assert_allclose(found.mean[learnt], alone.mean)
    assert (abs(found.mean - plain.mean)[learnt] > 1e-9).all()


def test_latent_distributions_have_no_noise():
    X, y = table()
    model = small().fit(X, y[:, 0])
    noisy, latent = model.leave_one_out(), model.leave_one_out(latent=True)
    np.testing.assert_allclose(latent.mean, noisy.mean)
    np.testing.assert_allclose(latent.var + model.noise_variance_, noisy.var)
    assert (latent.std > model.predict_dist(X, latent=True).std).all()


@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_hardly_any_rows(n_rows):
    X, y = table(n_rows)
    found = small("auto", 0, base=None).fit(X, y[:, 0]).leave_one_out()
    assert found.shape == (n_rows,) and np.isfinite(found.mean).all() and (found.std > 0).all()


def test_constant_targets():
    X, _ = table()
    np.testing.assert_allclose(small().fit(X, np.full(50, 3.0)).leave_one_out().mean, 3.0)


# What users do with them


@pytest.mark.slow
def test_metrics_and_displays_take_them():
    X, y = make_waves(100, random_state=0)
    model = SOLVEGPRegressor(30, 0, random_state=0).fit(X, y)
    dist = model.leave_one_out()
    assert isinstance(dist, PredictiveDistribution)
    assert r2_score(y, dist.mean) < model.score(X, y)
    assert crps(y, dist) > crps(y, model.predict_dist(X))
    assert 0.8 <= coverage(y, *dist.interval(0.9)) <= 1.0
    display = CalibrationDisplay.from_predictions(y, dist, kind="pit")
    np.testing.assert_array_equal(display.pit, pit_values(y, dist))
    assert PredictiveIntervalDisplay.from_predictions(dist, y).figure_ is not None
    log = SOLVEGPRegressor(30, 0, target_transform="log", max_iter=5).fit(X, np.exp(y)).leave_one_out()
    assert isinstance(log, TransformedDistribution) and np.isfinite(negative_log_predictive_density(np.exp(y), log))
    inside = TransformedTargetRegressor(SOLVEGPRegressor(10, 0, max_iter=2), func=np.sinh, inverse_func=np.arcsinh)
    assert inside.fit(X, y).regressor_.leave_one_out().shape == (100,)


@pytest.mark.slow
def test_they_agree_with_fits_without_the_rows():
    """With hyperparameters of their own, too: scores are nearly those of cross-validation."""
    X, y = table(120)
    y = y[:, 0]
    dist = SOLVEGPRegressor(random_state=0).fit(X, y).leave_one_out()
    scores = np.empty(len(X))
    for fold in range(10):
        out = np.arange(len(X)) % 10 == fold
        scores[out] = SOLVEGPRegressor(random_state=0).fit(X[~out], y[~out]).predict_dist(X[out]).log_score(y[out])
    assert abs(dist.log_score(y).mean() - scores.mean()) < 0.03
    assert np.corrcoef(dist.log_score(y), scores)[0, 1] > 0.95


@pytest.mark.slow
def test_intervals_hold_their_share():
    inside = []
    for seed in range(5):
        X, y = table(150, seed=seed)
        inside.append(
            coverage(y[:, 0], *SOLVEGPRegressor(random_state=0).fit(X, y[:, 0]).leave_one_out().interval(0.9))
        )
    assert 0.86 < np.mean(inside) < 0.94


# Storage


def test_they_are_stored():
    X, y = table(n_outputs=2)
    model = small(n_estimators=2).fit(X, y)
    again = pickle.loads(pickle.dumps(model)).leave_one_out()
    np.testing.assert_array_equal(model.leave_one_out().mean, again.mean)
    np.testing.assert_array_equal(model.leave_one_out().std, again.std)


@pytest.mark.parametrize(
    "left_out",
    [
        "nonsense",
        7,
        {"mean": np.zeros((1, 3, 1))},
        {"mean": np.zeros((1, 3, 1)), "variance": np.zeros((1, 2, 1)), "sizes": np.ones(1, np.int64)},
        {"mean": np.zeros((1, 3, 1), "f"), "variance": np.zeros((1, 3, 1), "f"), "sizes": np.ones(1, np.int64)},
        {"mean": np.zeros(3), "variance": np.zeros(3), "sizes": np.ones(1, np.int64)},
        {"mean": np.zeros((1, 3, 1)), "variance": np.zeros((1, 3, 1)), "sizes": np.ones(2, np.int64)},
        {"mean": np.zeros((1, 3, 1)), "variance": np.zeros((1, 3, 1)), "sizes": np.ones(1)},
        {
            "mean": np.zeros((1, 3, 1)),
            "variance": np.zeros((1, 3, 1)),
            "sizes": np.ones(1, np.int64),
            "lacking": np.zeros((2, 1)),
        },
    ],
)
def test_files_may_not_have_anything_else(left_out):
    X, y = table()
    state = ensemble_of(small(max_iter=2, base=None).fit(X, y)).to_plain()
    with pytest.raises(ValueError, match="left-out rows"):
        type(ensemble_of(small(max_iter=2, base=None).fit(X, y))).from_plain(state | {"left_out": left_out})


# Fits without them


def reason(name):
    return "leave_one_out has no answer for this fit, since " + re.escape(REASONS[name])


@pytest.mark.filterwarnings("ignore:.+ has no effect:UserWarning")
@pytest.mark.parametrize(
    "model",
    [
        AVDGPRegressor((2,), 3, n_samples=2, n_estimators=1, max_iter=1),
        DSDGPRegressor((), 3, n_estimators=1, max_iter=1),
        small(likelihood="student_t", max_iter=1),
        small(likelihood="heteroskedastic", max_iter=1),
        small(n_latent_outputs=1, max_iter=1),
        small(covariance="diag", max_iter=1),
        small(objective="predictive", max_iter=1),
    ],
    ids=str,
)
def test_members_that_learn_by_minibatches_have_none(model):
    X, y = table(n_outputs=2)
    with pytest.raises(ValueError, match=reason("minibatches")):
        model.fit(X, y).leave_one_out()


def test_chunks_are_not_kept():
    X, y = table()
    model = small(early_stopping=False, method="svi").partial_fit(X, y)
    with pytest.raises(ValueError, match=reason("chunks")):
        model.leave_one_out()
    model.fit(X, y).leave_one_out()
    with pytest.raises(ValueError, match=reason("chunks")):
        model.partial_fit(X, y).leave_one_out()


@pytest.mark.parametrize("limit", ["MOST_ROWS", "MOST_NUMBERS"])
def test_many_rows_are_not_kept(limit, monkeypatch):
    X, y = table()
    weight = np.ones(len(X))
    weight[0] = 0
    for most, kept in ((50, True), (49, False), (48, False)):  # 49 rows have a weight
        monkeypatch.setattr(module, limit, most)
        model = small(max_iter=2, base=None).fit(X, y, weight)
        if kept:
            assert len(model.leave_one_out()) == 50
        else:
            with pytest.raises(ValueError, match=reason("rows")):
                model.leave_one_out()


@pytest.mark.parametrize("row", [0, 5])
def test_missing_cells_have_no_closed_form(row):
    X, y = table()
    weight = np.ones(len(X))
    weight[0], X[row, 0] = 0, np.nan
    with pytest.raises(ValueError, match=reason("cells")):
        small(max_iter=2).fit(X, y, weight).leave_one_out()


def test_matrices_without_factor(monkeypatch):
    def fail(*args):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(module, "left_out_of_each", fail)
    X, y = table()
    model = small(max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match=reason("singular")):
        model.leave_one_out()
    assert model.predict(X).shape == (50, 1)


def test_earlier_files_have_none():
    model = joblib.load(STORED / "regressor.joblib")["model"]
    with pytest.raises(ValueError, match=reason("")):
        model.leave_one_out()
