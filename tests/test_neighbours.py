"""The local GP of what a model leaves over: exact limits, the choice of it, and the faces of estimators."""

import pickle

import numpy as np
import pytest
import torch
from helpers import AVDGP, DSDGP, SOLVEGP, Tiny, any_options, name_of, normal, predictor_of, table_of
from scipy import stats
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skdgp import AVDGPClassifier, AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp import neighbours as neighbours_module
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.neighbours import Neighbours, PlainNeighbours
from skdgp.gp.units import Units
from skdgp.gp.waves import Streams
from skdgp.inference import locality, validation
from skdgp.inference.batches import Batch
from skdgp.inference.locality import Predicted

LENGTH, VARIANCE, NOISE = [0.7, 1.3], [0.8, 0.3], [0.02, 0.05]


def make_local(n_rows=40, n_neighbors=100, n_outputs=1, weight=None, seed=0):
    X, residual = normal(n_rows, 2, seed=seed), normal(n_rows, n_outputs, seed=seed + 1)
    weight = torch.ones(n_rows) if weight is None else weight
    numbers = (torch.tensor(each).double() for each in (LENGTH, VARIANCE[:n_outputs], NOISE[:n_outputs]))
    numbers = dict(zip(("lengthscale", "variance", "noise"), numbers, strict=True))
    return Neighbours(X, residual, weight, **numbers, n_neighbors=n_neighbors)


def exact(local, output, rows=slice(None)):
    kernel = ConstantKernel(VARIANCE[output]) * Matern(LENGTH, nu=1.5) + WhiteKernel(NOISE[output])
    gp = GaussianProcessRegressor(kernel, optimizer=None)
    return gp.fit(local.X[rows].numpy(), local.residual[rows, output].numpy())


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_with_as_many_neighbours_as_rows_it_is_the_exact_gp(n_outputs):
    local, X = make_local(n_outputs=n_outputs), normal(7, 2, seed=5)
    mean, variance = local.moments(X)
    covariance = local.covariance(X)
    for output in range(n_outputs):
        expected, K = exact(local, output).predict(X.numpy(), return_cov=True)
        K -= NOISE[output] * np.eye(7)
        np.testing.assert_allclose(mean[:, output], expected, atol=1e-6)
        np.testing.assert_allclose(variance[:, output], K.diagonal(), atol=1e-6)
        np.testing.assert_allclose(covariance[output], K, atol=1e-6)


def test_fewer_are_the_exact_gp_of_the_nearest_but_for_fading(monkeypatch):
    monkeypatch.setattr(neighbours_module, "FADE", 1e-12)
    local, X = make_local(n_neighbors=6), normal(5, 2, seed=5)
    mean, variance = local.moments(X)
    for row, found, spread in zip(X, mean, variance, strict=True):
        nearest = ((local.X - row) / torch.tensor(LENGTH)).norm(dim=1).argsort()[:6]
        expected, deviation = exact(local, 0, nearest).predict(row.numpy()[None], return_std=True)
        assert found.item() == pytest.approx(expected[0], abs=1e-6)
        assert spread.item() + NOISE[0] == pytest.approx(deviation[0] ** 2, abs=1e-6)


def test_a_row_of_weight_two_is_that_row_twice():
    weight = torch.arange(40) % 2 + 1.0
    local, X = make_local(weight=weight), normal(5, 2, seed=5)
    times = weight.long()
    twice = Neighbours(
        *(each.repeat_interleave(times, dim=0) for each in (local.X, local.residual, torch.ones(40))),
        lengthscale=local.lengthscale,
        variance=local.variance,
        noise=local.noise,
        n_neighbors=100,
    )
    for found, expected in zip(local.moments(X), twice.moments(X), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [NOISE, [0.5, 2.0]])
@pytest.mark.parametrize("n_neighbors", [5, 100])
def test_functions_have_the_moments_that_rows_have(n_neighbors, noise):
    local, X = make_local(n_neighbors=n_neighbors, n_outputs=2), normal(6, 2, seed=5)
    local.noise = torch.tensor(noise).double()
    local = local.frozen()
    draws = local.draw(Streams(range(4000)))(X)
    mean, variance = local.moments(X)
    covariance = local.covariance(X)
    torch.testing.assert_close(covariance.diagonal(dim1=-2, dim2=-1).mT, variance, atol=1e-8, rtol=1e-6)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.05)
    for output in range(2):
        np.testing.assert_allclose(torch.cov(draws[..., output].mT), covariance[output], atol=0.05)
    some = local.draw(Streams([0, 1]))
    torch.testing.assert_close(some(X[2:3]), draws[:2, 2:3])  # whatever rows and functions are beside


def test_neighbours_that_come_and_go_make_no_steps(monkeypatch):
    """Along a line: a thousand times finer, differences are far smaller, if they fade."""

    def largest(n_points):
        line = torch.linspace(-1, 1, n_points).double()[:, None] * torch.tensor([[1.0, 0.5]]).double()
        return max(each.diff(dim=0).abs().max().item() for each in local.moments(line))

    local = make_local(n_neighbors=6).frozen()
    coarse, fine = largest(51), largest(50_001)
    monkeypatch.setattr(neighbours_module, "FADE", 1e-12)
    steps = largest(50_001)
    assert fine < 0.01 * coarse and fine < 0.1 * steps


def test_rows_are_not_their_own_neighbours():
    local = make_local(n_neighbors=5)
    own = torch.tensor([3, 17, 39])
    near = local.neighbourhood(local.X[own], own)
    assert near.rows.shape == (3, 5) and not (near.rows == own[:, None]).any()
    with_self = local.neighbourhood(local.X[own])
    assert (with_self.rows[:, 0] == own).all()
    everything = make_local(n_neighbors=100).neighbourhood(local.X[own], own)
    assert everything.rows.shape == (3, 39) and (everything.noise == 0).all()


def test_rows_that_repeat_are_no_trouble():
    local = make_local(n_neighbors=4)
    same = Neighbours(
        local.X[:3].repeat(5, 1),
        local.residual[:15],
        torch.ones(15),
        lengthscale=local.lengthscale,
        variance=local.variance,
        noise=local.noise,
        n_neighbors=4,
    )
    mean, variance = same.moments(local.X[:3])
    assert mean.isfinite().all() and (variance >= 0).all() and (variance < VARIANCE[0]).all()
    near = same.neighbourhood(local.X[:1], torch.tensor([0]))
    assert not (near.rows == 0).any()
    query = local.X[:3].clone().requires_grad_()
    for part in same.moments(query):
        (slope,) = torch.autograd.grad(part.sum(), query, retain_graph=True)
        assert slope.isfinite().all()


@pytest.mark.parametrize("tree_features", [0, 8])
@pytest.mark.parametrize("n_rows", [7, 300, 1230])
def test_searches_agree(tree_features, n_rows, monkeypatch):
    monkeypatch.setattr(neighbours_module, "TREE_FEATURES", tree_features)
    monkeypatch.setattr(neighbours_module, "MATRIX_NUMBERS", 5 * n_rows)  # queries by fives
    local, X = make_local(n_rows=n_rows, n_neighbors=7).frozen(), normal(23, 2, seed=5)
    distance = ((local.X - X[:, None]) / local.lengthscale).norm(dim=-1)
    found, index = local._nearest(X, 7)
    assert torch.equal(index, distance.argsort(dim=1)[:, :7])
    torch.testing.assert_close(found, distance.sort(dim=1).values[:, :7])


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize(("n_rows", "n_neighbors"), [(300, 12), (300, 1), (5, 12), (60, 60)])
def test_plain_operations_give_the_same(n_rows, n_neighbors, n_outputs):
    local = make_local(n_rows, n_neighbors, n_outputs, weight=1.0 + torch.arange(n_rows) % 3)
    for values in (local.X, local.residual, local.weight):
        values[1] = values[0]  # a pair of equal rows
    X = torch.cat([normal(50, 2, seed=5), local.X[:3], 1e3 + normal(2, 2, seed=6)])
    for plain, expected in zip(PlainNeighbours.of(local).moments(X), local.moments(X), strict=True):
        torch.testing.assert_close(plain, expected, atol=1e-8, rtol=1e-7)


def test_drawn_functions_are_the_same_whether_values_at_rows_are_kept(monkeypatch):
    local, X = make_local(n_neighbors=6).frozen(), normal(9, 2, seed=5)
    kept = local.draw(Streams(range(3), X.device))
    torch.testing.assert_close(kept(X[2:5]), kept(X)[:, 2:5], rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(neighbours_module, "KEPT_NUMBERS", 0)
    torch.testing.assert_close(local.draw(Streams(range(3), X.device))(X), kept(X), rtol=1e-9, atol=1e-12)


# The choice.


def best_correction(*arguments):
    """The best correction, without what rows say of it."""
    best = locality.best_correction(*arguments)
    return None if best is None else best[0]


def make_predicted(n_rows=400, local=True, seed=0, n_outputs=1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n_rows, 2))
    rho = np.sin(6 * X[:, :1] + np.arange(n_outputs)) if local else 0.0
    y = rho + 0.2 * rng.normal(size=(n_rows, n_outputs))
    rows = Batch.of(X, y, dtype=np.float64)
    return Predicted(rows, torch.zeros_like(rows.y), torch.full_like(rows.y, 1e-3), torch.arange(n_rows) % 2 == 0)


def make_likelihood(n_outputs=1, variance=0.5):
    likelihood = Gaussian(n_outputs, excess=variance, floor=0.0).double().requires_grad_(False)
    likelihood.units = Units([3.0] * n_outputs, [2.0] * n_outputs)
    return likelihood


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_what_is_left_over_is_found(n_outputs):
    scales = [torch.ones(2).double(), torch.tensor([0.1, 10.0]).double()]
    found = best_correction(make_predicted(n_outputs=n_outputs), None, make_likelihood(n_outputs), scales)
    assert found.gain > 10 * found.error > 0
    np.testing.assert_allclose(found.local.noise, 0.04, rtol=0.4)
    share = found.likelihood.share.item()
    assert 1e-3 < share < 0.03  # the noise is Gaussian, but the prior allows for exceptions
    total = (1 - share) * found.local.noise + share * found.likelihood.wide
    np.testing.assert_allclose(total, 0.04, rtol=0.2)
    np.testing.assert_allclose(found.likelihood.noise_variance(), 4 * total, rtol=1e-6)
    assert found.local.lengthscale[1] / found.local.lengthscale[0] > 50  # the second column is useless
    new = make_predicted(seed=1, n_outputs=n_outputs)
    mean, _ = found.local.moments(new.rows.X)
    assert (new.rows.y - mean).square().mean() < 0.1


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_known_distances_say_the_same_as_rows(factor):
    local = make_local(n_outputs=2, n_neighbors=7)
    X = torch.cat([normal(5, 2, seed=3), local.X[:1]])
    near = local.neighbourhood(X)
    known = near._replace(distances=tuple(each / factor for each in local.distances(X, near)))
    local.lengthscale = factor * local.lengthscale
    for found, expected in zip(local.moments(X, known), local.moments(X, near), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_slopes_of_a_search_by_known_distances():
    """They are those of differences, also for the factor that all lengthscales share."""
    found, scale, vector = make_predicted(60), torch.tensor([1.0, 3.0]).double(), np.array([0.5, -2.0, -3.0, -1.0, 1.0])
    rows, numbers = found.rows, {"variance": torch.ones(1), "noise": torch.full((1,), 0.1), "n_neighbors": 5}
    local = Neighbours(rows.X, rows.y, rows.weight, lengthscale=scale, **numbers)
    near = local.neighbourhood(rows.X, torch.arange(60))
    candidate = locality._Candidate(local, found, lambda: near, make_likelihood(), None)
    _, slopes = candidate._negative(vector)
    for number, step in enumerate(1e-5 * np.eye(5)):
        higher, lower = (candidate._negative(moved)[0] for moved in (vector + step, vector - step))
        assert slopes[number] == pytest.approx((higher - lower) / 2e-5, rel=1e-5, abs=1e-8)
    value = candidate._negative(vector)[0]
    candidate.distances = None
    assert candidate._negative(vector)[0] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_features_that_matter_get_shorter_lengthscales(n_outputs, monkeypatch):
    left_over, new = make_predicted(800, n_outputs=n_outputs), make_predicted(seed=1, n_outputs=n_outputs)
    arguments = left_over, None, make_likelihood(n_outputs), [torch.ones(2).double()]
    found = best_correction(*arguments)
    assert found.local.lengthscale[1] > 5 * found.local.lengthscale[0]
    monkeypatch.setattr(locality, "ROUNDS", 0)
    common = best_correction(*arguments)
    assert common.local.lengthscale[1] == common.local.lengthscale[0] and found.gain > common.gain + 0.1
    errors = [(new.rows.y - local.moments(new.rows.X)[0]).square().mean() for local in (found.local, common.local)]
    assert errors[0] < 0.7 * errors[1]


def test_few_rows_that_judge_choose_one_factor_for_all_features():
    rows = make_predicted(800)
    few = rows._replace(unseen=torch.arange(800) < locality.FEWEST_BY_FEATURE - 1)
    enough = rows._replace(unseen=torch.arange(800) < locality.FEWEST_BY_FEATURE)
    likelihood, scale = make_likelihood(), [torch.ones(2).double()]
    lengths = [best_correction(part, None, likelihood, scale).local.lengthscale for part in (few, enough)]
    assert lengths[0][0] == lengths[0][1] and lengths[1][0] != lengths[1][1]


def test_lengthscales_of_features_have_a_prior_around_the_usual_one():
    """Two usual lengthscales differ by the Cauchy densities of the same vector, counted once for all rows."""
    found, scale, vector = make_predicted(60), torch.ones(2).double(), np.array([0.5, -1.0, 0.0, -2.0, -3.0, 1.0])
    numbers = {"variance": torch.ones(1), "noise": torch.full((1,), 0.1), "n_neighbors": 5}

    def objective(usual):
        rows = found.rows
        local = Neighbours(rows.X, rows.y, rows.weight, lengthscale=scale, **numbers)
        near = local.neighbourhood(found.rows.X, torch.arange(60))
        candidate = locality._Candidate(local, found, lambda: near, make_likelihood(), vector, usual=usual)
        return candidate._negative(vector)[0]

    usual = torch.tensor([0.3, 20.0]).double()
    log_density = stats.cauchy.logpdf(vector[:2] - usual.log().numpy()) - stats.cauchy.logpdf(vector[:2])
    assert objective(usual) - objective(scale) == pytest.approx(-log_density.sum() / 60, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_a_number_that_is_the_same_in_some_rows_finds_them(scale):
    """Thirty rows each share an effect and a number, such as the hour in which they were measured."""
    rng = np.random.default_rng(0)
    hour = np.arange(600) % 20
    X = np.column_stack([rng.uniform(-1, 1, size=(600, 2)), rng.uniform(-1, 1, size=20)[hour]])
    y = scale * (rng.normal(size=20)[hour] + 0.1 * rng.normal(size=600))
    rows = Batch.of(X, y[:, None], dtype=np.float64)
    variance = torch.full_like(rows.y, 1e-6 * scale**2)
    left_over = Predicted(rows, torch.zeros_like(rows.y), variance, torch.arange(600) % 2 == 0)
    found = best_correction(left_over, None, make_likelihood(variance=scale**2), [torch.ones(3).double()])
    assert found.local.lengthscale[2] < 0.1 * found.local.lengthscale[:2].min()
    near = found.local.neighbourhood(rows.X[:50], torch.arange(50)).rows[:, :5]
    assert (hour[near.numpy()] == hour[:50, None]).mean() > 0.9


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_the_gain_is_that_of_the_neighbours_that_lengthscales_find(rounds, monkeypatch):
    monkeypatch.setattr(locality, "ROUNDS", rounds)
    rng = np.random.default_rng(0)
    hour, X = np.arange(600) % 20, rng.uniform(-1, 1, size=(600, 3))
    X[:, 2] = X[hour, 2]
    y = rng.normal(size=20)[hour] + 0.1 * rng.normal(size=600)
    rows = Batch.of(X, y[:, None], dtype=np.float64)
    left_over = Predicted(rows, torch.zeros_like(rows.y), torch.full_like(rows.y, 1e-6), torch.ones(600).bool())
    found = best_correction(left_over, None, make_likelihood(variance=1.0), [torch.ones(3).double()])
    mean, variance = found.local.moments(rows.X, found.local.neighbourhood(rows.X, torch.arange(600)))
    left, variance, share = y - mean[:, 0].numpy(), 1e-6 + variance[:, 0].numpy(), found.likelihood.share.item()
    narrow, wide = (
        stats.norm.logpdf(left, scale=np.sqrt(variance + noise.item()))
        for noise in (found.local.noise, found.likelihood.wide)
    )
    density = np.logaddexp(np.log1p(-share) + narrow, np.log(share) + wide)
    gain = (density - stats.norm.logpdf(y, scale=np.sqrt(1 + 1e-6))).mean()
    assert found.gain == pytest.approx(gain - 7 / 600, abs=1e-6)


@pytest.mark.parametrize(("n_rows", "knows"), [(2400, False), (400, True)])
@pytest.mark.parametrize("estimator", [SOLVEGPRegressor, DSDGPRegressor])
def test_residuals_leave_out_the_row_that_judges_if_predictions_know_it(estimator, n_rows, knows):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(n_rows, 3))
    y = X[:, 0] + 0.5 * rng.normal(size=n_rows)
    model, seen = estimator(n_inducing=5, max_iter=1, n_estimators=1, n_neighbors=10, random_state=0), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "best_correction", lambda *arguments: seen.append(arguments[5] is not None))
        model.fit(X, y)
    assert seen == [knows]


def test_changed_residuals_decide():
    """Residuals that lose what the row that judges has brought say nothing of it any more."""
    left_over = make_predicted()
    arguments = left_over, None, make_likelihood(), [torch.ones(2).double()], 24
    residual = left_over.rows.y - left_over.mean
    found = best_correction(*arguments, lambda first, second: -residual[second])
    assert found.gain < 0.01 < 0.1 < best_correction(*arguments).gain


def test_a_dozen_rows_that_are_noise_have_no_neighbours():
    """Five numbers fit twelve rows of noise: the mean log density rises, but less than it will fall for new rows."""
    gains = []
    for seed in range(20):
        rows = make_predicted(60, local=False, seed=seed)
        rows = rows._replace(unseen=torch.arange(60) < 12)
        gains.append(best_correction(rows, None, make_likelihood(variance=0.04), [torch.ones(2).double()]).gain)
    assert np.mean(gains) < 0 and max(gains) < 0.3


def test_rows_that_contradict_their_neighbours_do_not_make_the_others_uncertain():
    left_over, new = make_predicted(), make_predicted(seed=1)
    y = left_over.rows.y + 3.0 * (torch.arange(400) % 50 == 0)[:, None]
    rows = Batch(left_over.rows.X, y, left_over.rows.weight)
    found = best_correction(left_over._replace(rows=rows), None, make_likelihood(), [torch.ones(2).double()])
    assert 0.01 < found.likelihood.share < 0.2
    assert found.local.noise < 0.1 < 1.0 < found.likelihood.wide
    mean, variance = found.local.moments(new.rows.X)

    def density(likelihood, y):
        return likelihood.log_predictive(y, mean[None], variance[None])[0]

    assert density(found.likelihood, new.rows.y).mean() > -0.7
    surprise = new.rows.y + 6.0
    assert density(found.likelihood, surprise).min() > -20.0 > -50.0 > density(found.likelihood.narrow, surprise).min()


def test_nothing_is_found_where_nothing_is():
    left_over = make_predicted(local=False)
    found = best_correction(left_over, None, make_likelihood(variance=0.04), [torch.ones(2).double()])
    assert found.gain < 3 * found.error + 0.01
    mean, _ = found.local.moments(left_over.rows.X)
    assert mean.square().mean() < 0.01


def test_residuals_that_were_learnt_are_made_larger():
    left_over = make_predicted()
    shrunk = left_over.rows.y * torch.where(left_over.unseen, 1.0, 0.25)[:, None]
    learnt = left_over._replace(mean=left_over.rows.y - shrunk)
    found = best_correction(learnt, None, make_likelihood(), [torch.ones(2).double()])
    torch.testing.assert_close(found.local.residual, left_over.rows.y, rtol=0.15, atol=0.05)


def test_rows_of_the_user_judge_and_too_few_do_not():
    scales, stored = [torch.ones(2).double()], make_predicted()
    unfair = stored._replace(unseen=torch.zeros(400, dtype=torch.bool))
    assert best_correction(unfair, None, make_likelihood(), scales) is None
    assert best_correction(unfair, make_predicted(seed=3), make_likelihood(), scales).gain > 0.1


def test_targets_on_a_grid_keep_its_noise():
    left_over = make_predicted(local=False)
    X = left_over.rows.X.round()  # rows repeat, and so do their targets
    rows = Batch(X, X[:, :1].sin().mul(3).round() / 3, left_over.rows.weight)
    found = best_correction(left_over._replace(rows=rows), None, make_likelihood(), [torch.ones(2).double()])
    assert found.local.noise.item() >= (1 / 3) ** 2 / 12 * (1 - 1e-6)


def test_many_neighbours_have_few_judges(monkeypatch):
    sizes = []
    plain = Neighbours.neighbourhood
    monkeypatch.setattr(Neighbours, "neighbourhood", lambda *args: sizes.append(len(args[1])) or plain(*args))
    monkeypatch.setattr(locality, "VALIDATION_NUMBERS", 50 * 100)
    monkeypatch.setattr(locality, "ROUNDS", 0)
    for n_neighbors in (5, 10, 100):
        best_correction(make_predicted(), None, make_likelihood(), [torch.ones(2).double()], n_neighbors)
    assert sizes == [200, 50, 16]


def test_numbers_beyond_floating_point_leave_the_model_alone(wave, monkeypatch):
    def fail(*_, **__):
        raise np.linalg.LinAlgError("never")

    monkeypatch.setattr(validation, "best_correction", fail)
    with pytest.warns(RuntimeWarning, match=r"The correction by nearest rows could not .*or set n_neighbors=0"):
        model = REGRESSORS[1]().fit(*wave)
    assert model.neighbors_ is None


def test_a_step_beyond_floating_point_is_made_shorter(monkeypatch):
    """The search goes on from where it was, instead of doing without a correction."""
    calls, plain = [], locality._Candidate._negative

    def fails_once(self, vector):
        calls.append(vector)
        if len(calls) == 2:
            raise np.linalg.LinAlgError("too far")
        return plain(self, vector)

    arguments = make_predicted(), None, make_likelihood(), [torch.ones(2).double()]
    expected = best_correction(*arguments)
    monkeypatch.setattr(locality._Candidate, "_negative", fails_once)
    found = best_correction(*arguments)
    assert found.gain == pytest.approx(expected.gain, abs=1e-2) and len(calls) > 3


# Estimators.

REGRESSORS = [
    Tiny(AVDGPRegressor, **AVDGP).with_budget(base="gp", n_neighbors=6, n_estimators=2),
    Tiny(DSDGPRegressor, **DSDGP).with_budget(n_neighbors=6),
    Tiny(SOLVEGPRegressor, **SOLVEGP).with_budget(n_neighbors=6, base="gp"),
]


@pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
class TestFaces:
    def test_agree_with_each_other(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        assert model.neighbors_["n_neighbors"] == 6 and model.neighbors_["length_scales"].shape == X.shape[1:]
        mean, std = model.predict(X, return_std=True)
        np.testing.assert_allclose(model.predict_dist(X).mean, mean)
        latent = model.predict_dist(X, latent=True)
        np.testing.assert_allclose(std**2 - latent.std**2, model.noise_variance_, rtol=1e-4, atol=1e-12)
        found = model.neighbors_
        share = found["wide_noise_share"]
        total = (1 - share) * found["noise_variance"] + share * found["wide_noise_variance"]
        assert total == pytest.approx(model.noise_variance_, rel=1e-4)
        _, covariance = model.predict(X[:9], return_cov=True)
        np.testing.assert_allclose(covariance.diagonal(), std[:9] ** 2, rtol=1e-4)
        assert np.linalg.eigvalsh(covariance).min() > 0

    @pytest.mark.slow
    def test_functions_and_gradients(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        draws = model.sample_functions(300, random_state=0)
        values, latent = draws(X[:6] + 0.01), model.predict_dist(X[:6] + 0.01, latent=True)
        assert (np.abs(values.mean(1) - latent.mean) < 0.3 * latent.std + 1e-9).all()
        np.testing.assert_allclose(values.std(1), latent.std, rtol=0.3)
        gradient, deviation = model.predict_gradient(X[:3] + 0.01, return_std=True)
        step = 1e-4 * np.eye(X.shape[1])
        at = X[:3] + 0.01
        slopes = np.stack([(model.predict(at + each) - model.predict(at - each)) / 2e-4 for each in step], axis=1)
        np.testing.assert_allclose(gradient, slopes, rtol=0.05, atol=0.05 * np.abs(slopes).max())
        assert (deviation > 0).all()

    @pytest.mark.slow
    def test_last_in_files(self, tiny, wave):
        model = tiny().fit(*wave)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict(wave[0]), model.predict(wave[0]))
        assert again.neighbors_["gain"] == model.neighbors_["gain"] and clone(model).n_neighbors == 6

    def test_of_several_outputs_with_weights_in_single_precision(self, tiny, wave):
        X, y = wave[0].astype(np.float32), np.column_stack([wave[1], 100.0 * wave[0][:, 0]])
        model = tiny().fit(X, y, np.arange(len(X)) % 3)
        mean, std = model.predict(X, return_std=True)
        assert mean.shape == std.shape == (len(X), 2) and np.isfinite(std).all() and (std > 0).all()
        assert model.neighbors_["variance"].shape == (2,)
        assert model.predict(X[:4], return_cov=True)[1].shape == (4, 4, 2)

    def test_rows_of_the_user_judge(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X[:80], y[:80], X_val=X[80:], y_val=y[80:])
        assert model.neighbors_ is not None and len(predictor_of(model).correction.local.X) == 80

    def test_stored_models_hold_rows_unless_told_not_to(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        assert len(predictor_of(model).correction.local.X) == n_stored(model, X) == len(X)
        model = tiny(n_neighbors=0, base=None, n_inducing=5).fit(X, y)
        assert model.neighbors_ is None
        assert n_stored(model, X) <= (0 if tiny.estimator is AVDGPRegressor else 10)  # inducing points may be rows

    @any_options
    def test_without_rows_to_judge_there_are_none(self, tiny, wave):
        options = {"covariance": "diag"} if tiny.estimator is SOLVEGPRegressor else {}
        assert tiny(early_stopping=False, **options).fit(*wave).neighbors_ is None


def n_stored(model, X):
    """How many rows of the table a stored model has, standardised as it standardises them."""
    arrays = [each for each in flat(model.__getstate__()) if isinstance(each, np.ndarray) and each.ndim >= 2]
    kept = np.concatenate([each.reshape(-1, X.shape[1]) for each in arrays if each.shape[-1] == X.shape[1]])
    standard = (X - X.mean(0)) / X.std(0)
    distances = np.abs(standard[:, None] - kept).max(-1).min(1)
    return int((distances < 1e-6).sum())


def flat(state):
    """All values of nested dictionaries and lists."""
    if isinstance(state, dict):
        for value in state.values():
            yield from flat(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from flat(value)
    else:
        yield state


@pytest.mark.slow
def test_spikes_are_worth_neighbours_and_smooth_functions_are_not():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(600, 2))
    spikes = (np.floor(12 * X[:, 0]) % 2) + 0.1 * rng.normal(size=600)
    smooth = X[:, 0] + 0.1 * rng.normal(size=600)
    model = DSDGPRegressor(n_inducing=10, max_iter=10, n_estimators=2, base=None, random_state=0)
    found = model.fit(X[:500], spikes[:500])
    assert found.neighbors_["gain"] > 0.2
    with_them = found.score(X[500:], spikes[500:])
    assert (
        with_them > clone(model).set_params(n_neighbors=0).fit(X[:500], spikes[:500]).score(X[500:], spikes[500:]) + 0.3
    )
    assert clone(model).set_params(max_iter=60).fit(X, smooth).neighbors_ is None


@any_options
def test_streams_and_classifiers_have_none(wave):
    assert REGRESSORS[0]().partial_fit(*wave).neighbors_ is None
    assert "n_neighbors" not in AVDGPClassifier().get_params()


def test_functions_of_several_members_share_the_neighbours(wave, monkeypatch):
    X, y = wave
    model = SOLVEGPRegressor(10, 0, method="svi", n_neighbors=5, n_estimators=3, max_iter=3, random_state=0).fit(X, y)
    trees, tree = [], neighbours_module.cKDTree
    monkeypatch.setattr(neighbours_module, "cKDTree", lambda rows: trees.append(len(rows)) or tree(rows))
    draws = model.sample_functions(6, random_state=0)
    values = draws(X[:4])
    assert len(trees) == 1
    alone = np.stack([draws[number](X[:4])[:, 0] for number in range(6)], axis=1)
    np.testing.assert_allclose(values, alone, atol=1e-7)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_joint_moments_are_those_of_single_rows(wave, n_outputs):
    X, y = wave
    Y = np.column_stack([y, X[:, 0] - 2 * y])[:, :n_outputs]
    model = SOLVEGPRegressor(6, 0, method="svi", n_neighbors=5, n_estimators=3, max_iter=3, random_state=0).fit(X, Y)
    predictor, rows = predictor_of(model).frozen(), torch.from_numpy(table_of(model).prepared(X[:5]))
    assert predictor.correction is not None and predictor.correction.local.moments(rows)[0].abs().max() > 1e-4
    mean, covariance = predictor.joint(rows)
    marginals = predictor.marginals(rows)
    means, variances = (torch.stack(column) for column in zip(*(one.moments() for one in marginals), strict=True))
    torch.testing.assert_close(mean, means.mean(0).mT)
    expected = (variances.mean(0) + means.var(0, correction=0)).mT
    torch.testing.assert_close(covariance.diagonal(dim1=-2, dim2=-1), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("estimator", [AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor])
def test_rows_of_an_exact_function_are_met(estimator):
    """Neighbours would lead away from them: residuals are only those of rows that are left out."""
    for seed in (100, 102):
        X = np.random.RandomState(seed).uniform(size=(30, 1))
        y = (6 * X[:, 0] - 2) ** 2 * np.sin(12 * X[:, 0] - 4)
        mean, std = estimator(max_iter=5, random_state=2).fit(X, y).predict(X, return_std=True)
        assert np.abs((y - mean) / std).max() < 4


def test_a_correction_that_leads_away_is_left_out_unless_it_is_asked_for(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(500, 2))
    y = (np.floor(12 * X[:, 0]) % 2) + 0.1 * rng.normal(size=500)
    model = DSDGPRegressor(n_inducing=10, max_iter=5, n_estimators=1, base=None, random_state=0)
    assert model.fit(X, y).neighbors_ is not None
    moments = Neighbours.moments

    def away(self, X, near=None):
        mean, variance = moments(self, X, near)
        return -mean, variance

    monkeypatch.setattr(Neighbours, "moments", lambda *args: moments(*args) if len(args) > 2 else away(*args))
    assert model.fit(X, y).neighbors_ is None
    assert model.set_params(n_neighbors=24).fit(X, y).neighbors_ is not None
