"""Guides: what a base and its neighbours say of rows, as features of a member that learns densities."""

import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import predictor_of

from skdgp import AVDGPRegressor
from skdgp.estimators import _ensembles
from skdgp.gp.neighbours import Neighbours
from skdgp.inference import ensemble as ensembles
from skdgp.inference import guiding
from skdgp.inference.base import Base
from skdgp.inference.batches import Batch
from skdgp.inference.collapsed import left_out, left_out_by_fold, set_posteriors
from skdgp.inference.ensemble import Training
from skdgp.inference.guide import LEAST_SCALE, Guide, values_from, values_of
from skdgp.inference.judged import Share
from skdgp.inference.predictor import Predictor
from skdgp.inference.stack import Stack
from skdgp.inference.twins import mostly_twins, twins

SMALL = {"hidden_dims": (2,), "n_inducing": 6, "n_estimators": 1, "n_samples": 4, "max_iter": 3, "random_state": 0}
N_ROWS = 240


def waves(n_rows=N_ROWS, seed=0, n_outputs=1, noise=0.1):
    """Rows of two features; targets are smooth functions with noise, and steps that only neighbours know."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n_rows, 2))
    columns = [np.sin((p + 1) * X[:, 0]) + (np.round(3 * X[:, 1]) % 2) for p in range(n_outputs)]
    y = np.stack(columns, axis=1) + noise * rng.normal(size=(n_rows, n_outputs))
    return X, y[:, 0] if n_outputs == 1 else y


X, Y = waves()
NEW, NEW_Y = waves(7, seed=1)


@pytest.fixture(autouse=True)
def mixed(monkeypatch):
    """Let tables of few rows have the member, always with the same weight."""
    monkeypatch.setattr(_ensembles, "FEWEST_TO_LEARN_DENSITIES", 100)
    monkeypatch.setattr(_ensembles, "MANY_TO_LEARN_DENSITIES", 100)
    monkeypatch.setattr(ensembles, "share_beside", lambda *_: Share(0.3, 100.0))


@pytest.fixture
def made(monkeypatch):
    """What guides are made from: a list of (training, predictor, guide and values) of each fit."""
    calls, make = [], Training.guide

    def watched(self, predictor, split):
        calls.append((self, predictor, make(self, predictor, split)))
        return calls[-1][2]

    monkeypatch.setattr(Training, "guide", watched)
    return calls


def small(**options):
    return AVDGPRegressor(**(SMALL | {"network_width": 8} | options))


def close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def again(training, predictor, data=None):
    """The guide and its values again, with other rows if they are given."""
    validation = training.validation if data is None else training.validation._replace(data=data)
    foundation = training.foundation
    if data is not None:
        rows = foundation.rows
        y = rows.data.y.clone()
        y[rows.index] = data.y[rows.index].to(y)
        foundation = replace(foundation, rows=type(rows)(Batch(data.X, y, rows.data.weight), rows.index))
    return guiding.guide_of(validation, foundation, predictor.correction, predictor.blend.likelihood)


def fold_of(training):
    data = training.validation.data
    group = twins(data) if mostly_twins(data) else torch.arange(len(data))
    return guiding._folds(training.validation, group).numpy()


# What a guide says


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("n_neighbors", [0, 5])
def test_it_says_what_the_base_and_its_neighbours_predict(made, n_neighbors, n_outputs):
    """If members have no weight, predictions are those of base and neighbours alone, and so the same."""
    small(n_neighbors=n_neighbors).fit(*waves(n_outputs=n_outputs))
    [(training, predictor, _)] = made
    predictor.blend.weight.zero_()
    predictor.correction = None
    if n_neighbors:
        predictor.correction, _ = training.validation.correction(predictor, training.foundation, n_neighbors)
    guide, _ = again(training, predictor)
    with torch.no_grad():
        rows = torch.as_tensor(NEW)
        mean, variance = (column.mT for column in predictor.joint(rows, joint=False))
    assert (guide.predictor.correction is None) == (n_neighbors == 0)
    close(values_of(guide.predictor, rows), torch.cat([mean, 0.5 * variance.log()], dim=1))


def test_rows_of_a_fold_are_predicted_by_the_others_alone(made):
    """Against the closed form with dense matrices, for the base; no numbers of the fold enter."""
    small(n_neighbors=0).fit(X, Y)
    [(training, _, (_, values))] = made
    data, fold = training.validation.data, fold_of(training)
    held_out = training.split.parts(0)[1]
    assert np.bincount(fold)[:-1].min() > 0.9 * (N_ROWS - len(held_out)) / guiding.N_FOLDS - 3
    [model] = training.foundation.base.alternatives()
    layer, noise = model.layers[0], model.likelihood.variance.item()
    inputs, targets = data.X.double(), data.y.double().numpy()[:, 0]

    def covariance(first, second):
        return layer.kernel.covariance(first, second)[0].detach().numpy()

    Z = layer.Z.double()
    for number in range(guiding.N_FOLDS):
        learnt, asked = inputs[fold != number], inputs[fold == number]
        Kzx, Kxz, Kzz = covariance(Z, learnt), covariance(asked, Z), covariance(Z, Z)
        inner = noise * Kzz + Kzx @ Kzx.T
        mean = Kxz @ np.linalg.solve(inner + 1e-9 * np.eye(len(Z)), Kzx @ targets[fold != number])
        close(values.numpy()[fold == number, 0], mean, 1e-3)


@pytest.mark.parametrize("n_neighbors", [0, 5])
def test_targets_of_a_fold_say_nothing_of_it(made, n_neighbors):
    small(n_neighbors=n_neighbors).fit(X, Y)
    [(training, predictor, (_, values))] = made
    data, fold = training.validation.data, fold_of(training)
    moved = data.y.clone()
    moved[torch.from_numpy(fold == 2)] += 1.0
    _, others = again(training, predictor, Batch(data.X, moved, data.weight))
    close(others[fold == 2], values[fold == 2], 1e-9)
    assert (others - values)[fold != 2].abs().max() > 0.01


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_moments_without_a_fold_are_those_of_a_posterior_without_it(made, n_outputs):
    """With weights, twins, and rows that the posterior never learns from."""
    features, targets = waves(n_outputs=n_outputs)
    small(n_neighbors=0).fit(features, targets)
    [model] = made[0][0].foundation.base.alternatives()
    rng = np.random.default_rng(0)
    X, y = (np.concatenate([values, values[:40]]) for values in (features, targets.reshape(N_ROWS, -1)))
    rows = Batch.of(X, y, rng.choice([0.0, 0.5, 1.0, 3.0], len(X)), np.float64)
    learnt, fold = torch.from_numpy(rng.random(len(X)) < 0.8), torch.from_numpy(rng.integers(4, size=len(X)))
    found = left_out_by_fold(model, rows, learnt, fold, 3)
    for number in range(4):
        among = learnt & ((fold != number) | (number == 3))
        other, some = deepcopy(model), rows.rows(among)
        set_posteriors(other, some)
        for moments, left, alone in zip(found, left_out(other, some, some), other(rows.X)[:2], strict=True):
            close(moments[number][among], left, 1e-7)
            close(moments[number][~among], alone[0].detach()[~among], 1e-7)


@pytest.mark.parametrize("n_neighbors", [0, 5])
@pytest.mark.parametrize("n_rows", [150, N_ROWS])
def test_rows_that_judge_are_left_out_one_by_one(made, n_neighbors, n_rows):
    """Against a base and neighbours that have learnt from all other rows."""
    small(n_neighbors=n_neighbors).fit(*waves(n_rows))
    [(training, predictor, (_, values))] = made
    judges = np.flatnonzero(fold_of(training) == guiding.JUDGES)
    assert set(judges) == set(training.split.parts(0)[1])
    data, foundation = training.validation.data, training.foundation
    for row in judges[:4]:
        others = torch.arange(n_rows) != row
        rows = foundation.rows.data.rows(others).to("cpu", torch.float64)
        models = [deepcopy(model) for model in foundation.base.alternatives()]
        for model in models:
            set_posteriors(model, rows)
        moments = [model(data.X[row : row + 1].double()).moments() for model in models]
        means, variances = (torch.stack(column) for column in zip(*moments, strict=True))
        mean, variance = means.mean(0), variances.mean(0) + means.var(0, correction=0)
        if predictor.correction is not None:
            left = torch.stack([left_out(model, rows, rows)[0] for model in models]).mean(0)
            before = predictor.correction.local
            numbers = {name: getattr(before, name) for name in ("lengthscale", "variance", "noise", "n_neighbors")}
            local = Neighbours(rows.X, rows.y - left, rows.weight, **numbers)
            shift, added = local.moments(data.X[row : row + 1].double())
            mean, variance = mean + shift, variance + added
        close(values[row], torch.cat([mean, 0.5 * variance.log()], dim=1)[0].detach(), 1e-4)


@pytest.mark.parametrize("n_repeated", [80, 200])
def test_rows_see_their_twins_unless_most_rows_have_some(made, n_repeated):
    """As new rows do; see :meth:`.Validation.stored`."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-2, 2, size=(N_ROWS, 2)), rng.normal(size=N_ROWS)
    repeated = np.concatenate([X, X[:n_repeated]]), np.concatenate([y, y[:n_repeated]])
    small(n_neighbors=5).fit(*repeated)
    [(training, predictor, _)] = made
    predictor.correction.local.noise.fill_(1e-9)
    predictor.correction.local.variance.fill_(1.0)
    _, values = again(training, predictor)
    error = (values[:n_repeated, 0] - training.validation.data.y[:n_repeated, 0]).abs()
    fold = fold_of(training)
    apart = fold[:n_repeated] != fold[N_ROWS:]
    if n_repeated == 80:
        assert error[apart].median() < 0.1
    else:
        assert apart.mean() < 0.1
        assert error.median() > 0.1


def test_noise_is_not_learnt_from_what_others_say_of_it(monkeypatch):
    """Targets that nothing explains have the density of noise in new rows, too."""
    monkeypatch.setattr(ensembles, "share_beside", lambda *_: Share(1.0, 100.0))
    rng = np.random.default_rng(0)
    X, X_new = rng.normal(size=(400, 2)), rng.normal(size=(400, 2))
    y, y_new = rng.normal(size=400), rng.normal(size=400)
    model = AVDGPRegressor(hidden_dims=(2,), n_inducing=16, n_estimators=1, random_state=0).fit(X, y)
    likely = model.predict_dist(X_new).logpdf(y_new).mean()
    assert likely > -0.5 * np.log(2 * np.pi) - 0.5 * np.mean(y_new**2) - 0.1


def test_new_features_have_deviation_one_unless_they_hardly_vary():
    rng = np.random.default_rng(0)
    values = torch.as_tensor(rng.normal(size=(50, 2)) * [3.0, 1e-3] + [5.0, -2.0])
    weight = torch.as_tensor(np.resize([1.0, 2.0, 0.0], 50))
    guide = Guide.of(Predictor([]), values, weight)
    copies = np.repeat(values.numpy(), weight.numpy().astype(int), axis=0)
    close(guide.units.shift, copies.mean(0))
    close(guide.units.scale, [copies[:, 0].std(), LEAST_SCALE])
    rows = torch.zeros(50, 3)
    seen = guide.beside(rows, values)
    assert seen.dtype == rows.dtype
    close(seen[:, 3], (values[:, 0] - copies[:, 0].mean()) / copies[:, 0].std(), 1e-5)


# What is made of it


def test_the_member_has_learnt_from_what_others_say(made):
    model = small().fit(X, Y)
    [(_, _, (guide, values))] = made
    stack = predictor_of(model)
    first, second = stack.views
    assert first.guide is None
    assert second.guide is guide
    assert stack.inputs(0, torch.zeros(3, 2)).shape == (3, 2)
    assert stack.inputs(1, torch.zeros(3, 2)).shape == (3, 4)
    close(stack.inputs(1, torch.as_tensor(NEW)), guide(torch.as_tensor(NEW)))
    assert values.shape == (N_ROWS, 2)


def test_rows_that_judge_are_new_rows(made, monkeypatch):
    data, run = [], Training.run

    def watched(self, *arguments, **options):
        data.append(self.split.rows)
        return run(self, *arguments, **options)

    monkeypatch.setattr(Training, "run", watched)
    small().fit(X, Y, X_val=NEW, y_val=NEW_Y)
    [(_, _, (guide, _))] = made
    assert data[1].X.dtype == data[0].X.dtype
    close(data[1].X, guide(data[0].X))


def test_files_have_it_and_older_files_have_none(tmp_path):
    model = small(n_neighbors=5).fit(X, Y)
    opened = pickle.loads(pickle.dumps(model))
    close(opened.predict(NEW, return_std=True), model.predict(NEW, return_std=True), 1e-12)
    state = predictor_of(model).to_plain()
    assert [guide is None for guide in state["guides"]] == [True, False]
    del state["guides"]
    assert [view.guide for view in Stack.from_plain(state).views] == [None, None]


def test_a_base_of_alternatives_is_a_mixture(made):
    small().fit(*waves(150))
    [(training, _, (guide, _))] = made
    assert training.foundation.base.n_alternatives == len(guide.predictor) > 1
    rows = torch.as_tensor(NEW)
    moments = [one(rows).moments() for one in Base(*training.foundation.base).alternatives()]
    means, variances = (torch.stack(column) for column in zip(*moments, strict=True))
    local = guide.predictor.correction
    shift, added = (0.0, 0.0) if local is None else local.local.moments(rows)
    expected = means.mean(0) + shift, variances.mean(0) + means.var(0, correction=0) + added
    close(values_of(guide.predictor, rows), torch.cat([expected[0], 0.5 * expected[1].log()], dim=1))


def test_beyond_a_number_of_rows_there_is_none(monkeypatch):
    monkeypatch.setattr(guiding, "MOST_ROWS", N_ROWS - 1)
    model = small(n_neighbors=5).fit(X, Y)
    assert [view.guide for view in predictor_of(model).views] == [None, None]
    assert np.isfinite(model.predict(NEW)).all()


@pytest.mark.parametrize("part", ["left_out_by_fold", "Neighbours"])
def test_without_a_factor_the_member_does_without_it(part, monkeypatch):
    def fail(*_, **__):
        raise np.linalg.LinAlgError("no factor")

    monkeypatch.setattr(guiding, part, fail)
    with pytest.warns(RuntimeWarning, match="does not see what the base predicts, since a covariance matrix has no"):
        model = small(n_neighbors=5).fit(X, Y)
    assert [view.guide for view in predictor_of(model).views] == [None, None]
    assert np.isfinite(model.predict(NEW)).all()


@pytest.mark.parametrize("far", [False, True])
def test_update_tells_it_of_new_rows(far):
    """It knows what the base then knows, also where no row was before."""
    model = small(n_neighbors=0).fit(X, Y)
    rows = NEW + 10.0 * far
    asked = torch.as_tensor(np.concatenate([rows, NEW, rows + 0.01]))
    before = values_of(predictor_of(model).views[1].guide.predictor, asked)
    stack = predictor_of(model.update(rows, NEW_Y + 1.0))
    values = values_of(stack.views[1].guide.predictor, asked)
    close(values[:, :1], stack.main.blend.base(asked).mean[0].detach(), 1e-8)
    assert (values - before)[: len(NEW)].abs().max() > 0.01


def test_update_gives_it_neighbours_but_no_outliers():
    X, y = waves()
    y[17] = 1e3
    model = small(n_neighbors=5).fit(X, y)
    before = predictor_of(model).views[1].guide.predictor
    outlier = np.where(np.arange(len(NEW)) == 3, 1e3, NEW_Y)
    after = predictor_of(model.update(NEW, outlier)).views[1].guide.predictor
    n_before, n_after = (len(guide.correction.local.X) for guide in (before, after))
    assert n_after == n_before + len(NEW) - 1
    assert np.abs(model.predict(NEW)).max() < 10


def test_a_warm_start_from_a_member_that_saw_less_starts_anew(monkeypatch):
    monkeypatch.setattr(Training, "guide", lambda *_: None)
    model = small(warm_start=True).fit(X, Y)
    assert predictor_of(model).views[1].guide is None
    monkeypatch.undo()
    monkeypatch.setattr(_ensembles, "FEWEST_TO_LEARN_DENSITIES", 100)
    monkeypatch.setattr(_ensembles, "MANY_TO_LEARN_DENSITIES", 100)
    monkeypatch.setattr(ensembles, "share_beside", lambda *_: Share(0.3, 100.0))
    model.fit(X, Y)
    assert predictor_of(model).views[1].guide is not None
    assert np.isfinite(model.predict(NEW)).all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_functions_without_noise_leave_a_deviation(made, scale):
    y = scale * (X[:, 0] + np.sin(X[:, 1]))
    model = small().fit(X, y)
    [(_, _, (guide, values))] = made
    assert torch.isfinite(values).all()
    assert np.isfinite(model.predict_dist(np.concatenate([X, NEW, 1e6 * NEW])).logpdf(scale)).all()
    exact = values_from(torch.zeros(3, 1), torch.zeros(3, 1))
    assert torch.isfinite(guide.beside(torch.zeros(3, 2), exact)).all()


def test_a_damaged_file_is_refused():
    state = predictor_of(small().fit(X, Y)).to_plain()
    state["guides"].pop()
    with pytest.raises(ValueError, match="has guides of another number of predictors"):
        Stack.from_plain(state)


def test_outliers_gaps_categories_and_weights():
    rng = np.random.default_rng(0)
    cells = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    table = np.column_stack([cells, rng.integers(3, size=N_ROWS)])
    y = np.where(np.arange(N_ROWS) == 17, 1e3, Y + (table[:, 2] == 1))
    weight = rng.choice([0.0, 1.0, 2.0], N_ROWS)
    weight[17] = 1.0
    model = small(categorical_features=[2]).fit(table, y, sample_weight=weight)
    assert 17 in model.outliers_
    assert predictor_of(model).views[1].guide is not None
    assert np.abs(model.predict(table[:20]) - Y[:20]).max() < 10


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale):
    model, other = small().fit(X, Y), small().fit(X * scale, Y * scale)
    close(other.predict(NEW * scale) / scale, model.predict(NEW), 1e-3)


def test_each_row_is_by_itself_near_and_far():
    model = small(n_neighbors=5).fit(X, Y)
    many = np.concatenate([NEW, waves(300, seed=3)[0], np.full((1, 2), 1e6)])
    mean, std = model.predict(many, return_std=True)
    close(model.predict(NEW, return_std=True), (mean[: len(NEW)], std[: len(NEW)]), 1e-5)
    close([model.predict(row[None])[0] for row in NEW], mean[: len(NEW)], 1e-5)
    assert std[-1] > std[:-1].max()
