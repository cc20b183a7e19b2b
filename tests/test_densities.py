"""Members that learn densities: their weight beside members that learn functions, and the faces of such mixtures."""

import pickle
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from helpers import ensemble_of, predictor_of
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.linear_model import Ridge

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.adapters import MomentsModule, to_onnx
from skdgp.estimators import _ensembles
from skdgp.gp.amortised_layer import AmortisedLayer
from skdgp.inference import ensemble as ensembles
from skdgp.inference.judged import CREDIT, GROWTH, PRIOR_ROWS, Judged, Share, share_beside
from skdgp.inference.predictor import Predictor
from skdgp.inference.stack import Stack
from skdgp.inference.validation import Validation

N_ROWS, SHARE = 240, 0.3

SMALL = {"hidden_dims": (2,), "n_inducing": 6, "n_estimators": 2, "n_samples": 4, "max_iter": 5, "random_state": 0}
small = partial(AVDGPRegressor, **SMALL, network_width=8)


def forked(n_rows=N_ROWS, seed=0):
    """Targets that lie on one of two branches, which no mean tells."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n_rows, 2))
    return X, 0.5 * X[:, 1] + rng.choice([-1.0, 1.0], n_rows) * (1.5 + X[:, 0]) + 0.1 * rng.normal(size=n_rows)


X, Y = forked()
NEW, NEW_Y = forked(9, seed=1)


@pytest.fixture
def few(monkeypatch):
    """Let tables of few rows be tried, too."""
    monkeypatch.setattr(_ensembles, "FEWEST_TO_LEARN_DENSITIES", 100)
    monkeypatch.setattr(_ensembles, "MANY_TO_LEARN_DENSITIES", 100)


@pytest.fixture
def mixed(few, monkeypatch):
    """The same, and the member always has the same weight."""
    monkeypatch.setattr(ensembles, "share_beside", lambda *_: Share(SHARE, 100.0))


def close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def parts_of(model):
    """A regressor that predicts by the members of each part alone."""
    regressors, stack = [], predictor_of(model)
    for part, view in zip(stack.predictors, stack.views, strict=True):
        part = part if view.guide is None else Stack([part], [view], [1.0])
        regressor = clone(model)
        vars(regressor).update(vars(model))
        learnt = model._learnt
        regressor._learnt = type(learnt)(
            ensembles.Ensemble(part, learnt.ensemble.plan_name), learnt.table, learnt.structure, learnt.n_rows
        )
        regressors.append(regressor)
    return regressors


# The weight


def judged(log_density, error, weight=None, number=None):
    error = np.asarray(error, dtype=float).reshape(len(error), -1)
    return Judged(
        np.arange(len(error)) if number is None else number,
        np.asarray(log_density, dtype=float),
        np.ones(len(error)) if weight is None else weight,
        error,
    )


def make_judged(seed=0, n_rows=200, n_outputs=1, distance=0.3):
    """What rows say of two predictors whose means differ little, and whose densities differ much."""
    rng = np.random.default_rng(seed)
    error = rng.normal(size=(n_rows, n_outputs))
    apart = distance * (error + rng.normal(size=error.shape))
    return judged(rng.normal(size=n_rows), error), judged(rng.normal(size=n_rows), error - apart)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_weight_is_the_most_likely_one_up_to_what_means_allow(seed, n_outputs):
    first, second = make_judged(seed, n_outputs=n_outputs, distance=0.3 + seed)
    share = share_beside(first, second)
    apart = first.error - second.error
    lost = np.linspace(0, 1, 100001)[1:]
    of_rows = np.sum(first.error * apart, axis=1)
    counted = CREDIT * np.sum(of_rows) - len(of_rows) ** 0.5 * np.std(of_rows)
    growth = lost**2 * np.sum(apart**2) - 2 * lost * counted
    most = lost[growth <= GROWTH * np.sum(first.error**2)].max()
    grid = np.linspace(1e-4, most, 4001)
    logs = np.stack([np.log1p(-np.minimum(grid, 1 - 1e-12)), np.log(grid)])[:, None]
    gains = logsumexp(
        logs + np.stack([0 * first.log_density, second.log_density - first.log_density])[..., None], axis=0
    )
    best = (gains.sum(0) + PRIOR_ROWS * logs[0, 0]).argmax()
    assert share.gain == pytest.approx(gains.sum(0)[best], abs=1e-2)
    assert share.weight == pytest.approx(grid[best], abs=2e-3)
    assert 0 < share.weight <= most


def test_means_that_are_worse_everywhere_have_hardly_any_weight():
    rng = np.random.default_rng(0)
    error = rng.normal(size=300)
    worse = judged(np.full(300, 5.0), 3 * error)  # the difference has the opposite sign of the error
    assert share_beside(judged(np.zeros(300), error), worse).weight < GROWTH


def test_means_that_are_near_have_weight_although_they_explain_nothing():
    rng = np.random.default_rng(0)
    error = rng.normal(size=300)
    near = judged(np.full(300, 0.5), error - 0.05 * rng.normal(size=300))
    assert share_beside(judged(np.zeros(300), error), near).weight > 0.9


def test_means_that_agree_leave_the_weight_to_densities():
    error = np.random.default_rng(0).normal(size=50)
    first, second = judged(np.zeros(50), error), judged(np.full(50, 2.0), error)
    assert 0.9 < share_beside(first, second).weight < 0.99
    assert share_beside(second, first).gain <= 0
    many = [judged(np.repeat(one.log_density, 40), np.repeat(one.error, 40)) for one in (first, second)]
    assert share_beside(*many).weight > 0.998  # few rows never leave all to the second one, many may


def test_densities_that_are_no_numbers_have_no_member(few, monkeypatch):
    monkeypatch.setattr(ensembles, "share_beside", lambda *_: Share(np.nan, np.nan))
    assert type(predictor_of(small().fit(X, Y))) is Predictor


@pytest.mark.parametrize("n_estimators", [1, 3])
def test_one_row_and_any_number_of_members(n_estimators, mixed):
    model = small(n_estimators=n_estimators).fit(X, Y)
    assert len(predictor_of(model).models) == n_estimators + 1
    close(model.predict(NEW[:1], return_std=True), np.array(model.predict(NEW, return_std=True))[:, :1], 1e-5)


def test_rows_without_weight_judge_nothing():
    first, second = make_judged()
    assert share_beside(first._replace(weight=0 * first.weight), second) == Share(0.0, 0.0)


def test_only_rows_that_both_have_count_and_weights_are_copies():
    first, second = make_judged()
    weight = np.resize([1.0, 2.0, 0.0], len(first.number))
    own = first._replace(weight=weight), second._replace(weight=weight)
    copies = np.repeat(np.arange(len(weight)), weight.astype(int))
    repeated = [
        one._replace(
            number=np.arange(len(copies)),
            **{name: getattr(one, name)[copies] for name in ("log_density", "weight", "error")},
        )
        for one in (first, second)
    ]
    close(share_beside(*own), share_beside(*repeated))
    shuffled = np.random.default_rng(0).permutation(len(weight))
    half = shuffled[: len(weight) // 2]
    close(share_beside(first, second.of(shuffled)), share_beside(first, second))
    close(share_beside(first, second.of(half)), share_beside(first.of(half), second.of(half)))
    assert share_beside(first, second._replace(number=second.number + 1000)) == Share(0.0, 0.0)


# Whether there is such a member


FAMILIES = {
    AVDGPRegressor: {"hidden_dims": (2,), "n_inducing": 16, "n_estimators": 2},
    DSDGPRegressor: {"hidden_dims": (2,), "n_inducing": 16, "n_estimators": 1, "batch_size": 64, "max_iter": 100},
    SOLVEGPRegressor: {"method": "svi", "batch_size": 64, "max_iter": 100},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_targets_on_two_branches_are_more_likely(family, few):
    held_out, targets = forked(600, seed=2)
    densities = {
        objective: family(objective=objective, random_state=0, **FAMILIES[family])
        .fit(*forked(400))
        .predict_dist(held_out)
        for objective in ("elbo", "auto")
    }
    likely = {objective: dist.logpdf(targets).mean() for objective, dist in densities.items()}
    assert likely["auto"] > likely["elbo"] + 0.2
    errors = {objective: np.mean((dist.mean - targets) ** 2) for objective, dist in densities.items()}
    assert errors["auto"] < 1.05 * errors["elbo"]


@pytest.mark.parametrize("family", [DSDGPRegressor, SOLVEGPRegressor])
def test_in_other_families_it_is_amortised_too(family, mixed):
    model = family(**FAMILIES[family] | {"max_iter": 3, "random_state": 0}).fit(X, Y)
    *others, last = predictor_of(model).models
    assert isinstance(last.layers[0], AmortisedLayer)
    assert not any(isinstance(member.layers[0], AmortisedLayer) for member in others)
    assert predictor_of(model).views[1].guide is not None
    assert np.shape(model.inducing_points_ if family is SOLVEGPRegressor else model.inducing_points_[0])[0] == 1


def test_it_takes_of_other_families_what_means_the_same(mixed, monkeypatch):
    plans = []
    run = ensembles.Training.run

    def watched(self, *arguments, first=None, **options):
        plans.append((self.plan, self.split))
        return run(self, *arguments, first=first, **options)

    monkeypatch.setattr(ensembles.Training, "run", watched)
    SOLVEGPRegressor(method="svi", max_iter=4, batch_size=32, random_state=0).fit(X, Y)
    (first, split), (second, others) = plans
    assert (second.settings.max_iter, second.settings.batch_size) == (4, 32)
    assert split.for_validation  # rows that are held out to judge the one
    assert not others.for_validation  # end the training of the other
    assert others.n_rows == split.n_rows > 0
    assert first.solve is not None
    assert second.solve is None


#: Each way to train the others, for as short as possible.
OTHERS = {
    "minibatches": DSDGPRegressor((2,), 8, n_estimators=1, max_iter=3, random_state=0),
    "members": DSDGPRegressor((2,), 8, n_estimators=3, max_iter=3, random_state=0),
    "svi": SOLVEGPRegressor(method="svi", max_iter=3, random_state=0),
    "collapsed": SOLVEGPRegressor(max_iter=3, random_state=0),
}


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("way", OTHERS)
def test_beside_others_units_do_not_matter(way, scale, mixed):
    model, other = clone(OTHERS[way]).fit(X, Y), clone(OTHERS[way]).fit(X, Y * scale)
    expected = np.array(model.predict(NEW, return_std=True))
    close(np.array(other.predict(NEW, return_std=True)) / scale, expected, 1e-3)


@pytest.mark.parametrize("way", OTHERS)
def test_beside_others_each_row_is_by_itself_near_and_far(way, mixed):
    model = clone(OTHERS[way]).fit(X, Y)
    assert len(predictor_of(model).models) == (4 if way == "members" else 2)
    mean, std = model.predict(np.concatenate([NEW, np.full((1, 2), 1e6)]), return_std=True)
    close(model.predict(NEW, return_std=True), (mean[:-1], std[:-1]), 1e-5)
    close([model.predict(row[None])[0] for row in NEW], mean[:-1], 1e-5)
    assert std[-1] > std[:-1].max()


@pytest.mark.parametrize("way", OTHERS)
def test_beside_others_there_are_gaps_and_weights(way, mixed):
    gaps, weight = X.copy(), np.resize([1.0, 2.0, 0.0], N_ROWS)
    gaps[::7, 1] = np.nan
    model = clone(OTHERS[way]).fit(gaps, Y, sample_weight=weight)
    assert isinstance(predictor_of(model), Stack)
    assert np.isfinite(model.predict(gaps[:30], return_std=True)).all()
    absent = clone(OTHERS[way]).fit(gaps[weight > 0], Y[weight > 0], sample_weight=weight[weight > 0])
    close(model.predict(NEW), absent.predict(NEW), 1e-4)


@pytest.mark.parametrize("family", [DSDGPRegressor, SOLVEGPRegressor])
def test_onnx_cannot_have_it(family, mixed, tmp_path):
    model = family(**FAMILIES[family] | {"max_iter": 2, "random_state": 0}).fit(X, Y)
    with pytest.raises(ValueError, match=r'a member that learns densities, .* fit with objective="elbo"'):
        to_onnx(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("name", ["batch_size", "validation_fraction", "learning_rate"])
def test_what_only_it_heeds_is_no_idle_wish(name, mixed):
    """A collapsed fit heeds none of these."""
    options = {"max_iter": 2, "random_state": 0, name: {"batch_size": 32}.get(name, 0.3)}
    alone, heeded = SOLVEGPRegressor(objective="elbo", **options), name != "learning_rate"
    with pytest.warns(UserWarning, match=f"{name}=.* has no effect"):
        alone.fit(X, Y)
    with nullcontext() if heeded else pytest.warns(UserWarning, match=f"{name}=.* has no effect"):
        model = SOLVEGPRegressor(**options).fit(X, Y)
    usual = SOLVEGPRegressor(**options | {name: getattr(SOLVEGPRegressor(), name)}).fit(X, Y)
    assert (model.predict(NEW) != usual.predict(NEW)).any() == heeded


@pytest.mark.parametrize("family", FAMILIES)
def test_left_out_rows_have_no_predictions_by_it(family, mixed):
    """Those of SOLVEGP alone would have a closed form, and the error says how to get them."""
    model = family(**FAMILIES[family] | {"max_iter": 3, "random_state": 0}).fit(X, Y)
    cure = 'set objective="elbo"' if family is SOLVEGPRegressor else "cross_validate"
    with pytest.raises(ValueError, match=cure):
        model.leave_one_out()
    if family is SOLVEGPRegressor:
        assert np.isfinite(model.set_params(objective="elbo").fit(X, Y).leave_one_out().mean).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_try_none_without_a_guide(family, mixed, monkeypatch):
    monkeypatch.setattr(_ensembles, "MOST_ROWS", N_ROWS - 1)
    model = family(**FAMILIES[family] | {"max_iter": 3, "random_state": 0}).fit(X, Y)
    assert (type(predictor_of(model)) is Stack) == (family is AVDGPRegressor)


def test_a_collapsed_fit_holds_rows_out_for_it_alone(few, monkeypatch):
    """All rows judge the others, each left out, and those that the member holds out compare the two."""
    splits, shares = [], []
    run = ensembles.Training.run

    def watched(self, *arguments, **options):
        splits.append(self.split)
        return run(self, *arguments, **options)

    monkeypatch.setattr(ensembles.Training, "run", watched)
    monkeypatch.setattr(ensembles, "share_beside", lambda *pair: shares.append(pair) or Share(SHARE, 100.0))
    held_out, targets = forked(600, seed=2)
    model = SOLVEGPRegressor(max_iter=3, random_state=0).fit(X, Y)
    assert [split.n_rows for split in splits] == [0, N_ROWS // 10]
    first, second = shares[-1]
    assert sorted(first.number) == list(range(N_ROWS))
    assert sorted(second.number) == sorted(splits[1].parts(0)[1])
    alone, member = (part.predict_dist(held_out).logpdf(targets).mean() for part in parts_of(model))
    assert np.mean(second.log_density) == pytest.approx(member, abs=0.5)
    assert np.mean(first.log_density) == pytest.approx(alone, abs=0.2)


def test_a_member_that_gains_nothing_ends_after_a_trial_and_leaves_no_trace(few, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(N_ROWS, 2))
    y = np.sin(2 * X[:, 0]) + 0.01 * rng.normal(size=N_ROWS)
    ended, options = [], SMALL | {"max_iter": 40}
    before = ensembles.Training._gain_beside
    monkeypatch.setattr(
        ensembles.Training, "_gain_beside", lambda *arguments: ended.append(before(*arguments)) or ended[-1]
    )
    model = AVDGPRegressor(**options).fit(X, y)
    other = clone(model).set_params(objective="elbo").fit(X, y)
    assert len(ended) == 1
    assert ended[0] <= ensembles.CHANCE
    assert type(predictor_of(model)) is Predictor
    assert (model.predict(X) == other.predict(X)).all()
    assert (model.loss_curve_ == other.loss_curve_).all()
    assert model.lower_bound_ == other.lower_bound_


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "elbo"},
        {"objective": "predictive"},
        {"max_time": 100.0},
        {"likelihood": "student_t"},
        {"early_stopping": False},
        {"base": None},
        {"trend": Ridge()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_such_member_is_tried(options, mixed):
    predictor = predictor_of(small(**options).fit(X, Y))
    assert len(predictor.models) == SMALL["n_estimators"]


def test_few_rows_are_not_tried(monkeypatch):
    monkeypatch.setattr(_ensembles, "FEWEST_TO_LEARN_DENSITIES", N_ROWS + 1)
    assert type(predictor_of(small().fit(X, Y))) is Predictor


@pytest.mark.parametrize("family", [AVDGPClassifier, DSDGPClassifier, SOLVEGPClassifier])
def test_classifiers_have_no_such_member(family, few):
    options = {name: value for name, value in SMALL.items() if hasattr(family(), name)} | {"max_iter": 2}
    assert type(predictor_of(family(**options).fit(X, Y > 0))) is Predictor


def test_without_rows_that_judge_the_first_ensemble_is_alone(few, monkeypatch):
    monkeypatch.setattr(Validation, "judge", lambda *_: None)
    assert type(predictor_of(small(n_neighbors=0).fit(X, Y))) is Predictor


@pytest.mark.parametrize("epoch", [1, 3])
def test_users_who_interrupt_it_keep_what_had_ended(epoch, mixed, monkeypatch):
    """Before its first epoch has ended it is left out; later it is as trained as it is."""
    run, count = ensembles.Training.run, [0]

    def interrupted(self, *arguments, first=None, **options):
        if first is not None:
            epochs = self.watcher.epoch

            def on_epoch(*reports):
                count[0] += 1
                if count[0] == epoch:
                    raise KeyboardInterrupt
                return epochs(*reports)

            if epoch == 1:
                raise KeyboardInterrupt
            self.watcher.epoch = on_epoch
        return run(self, *arguments, first=first, **options)

    monkeypatch.setattr(ensembles.Training, "run", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        model = small().fit(X, Y)
    assert (type(predictor_of(model)) is Stack) == (epoch > 1)
    assert np.isfinite(model.predict(NEW)).all()


# What judges


def test_log_densities_of_rows_are_those_of_predictions(few, monkeypatch):
    """Rows that the user gave judge the parts by what is predicted for them, in the user's units."""
    shares = []
    monkeypatch.setattr(ensembles, "share_beside", lambda *pair: shares.append(pair) or Share(SHARE, 100.0))
    others, targets = forked(150, seed=3)
    model = small(n_neighbors=0).fit(X, 7 * Y, X_val=others, y_val=7 * targets)
    first, second = shares[-1]
    _, alone = parts_of(model)
    dist = alone.predict_dist(others)
    close(second.log_density, dist.logpdf(7 * targets)[second.number], 1e-3)
    scale = predictor_of(model).likelihoods[0].units.scale[0]
    close(second.error[:, 0] * scale, (7 * targets - dist.mean)[second.number], 1e-3)
    close(first.number, second.number)


def test_neighbours_judge_by_their_own_predictions(few, monkeypatch):
    shares = []
    monkeypatch.setattr(ensembles, "share_beside", lambda *pair: shares.append(pair) or Share(SHARE, 100.0))
    others, targets = forked(150, seed=3)
    model = small(n_neighbors=5).fit(X, 7 * Y, X_val=others, y_val=7 * targets)
    first, alone = shares[-1][0], parts_of(model)[0]
    mean, scale = alone.predict(others), predictor_of(model).likelihoods[0].units.scale[0]
    close(first.error[:, 0] * scale, (7 * targets - mean)[first.number], 1e-3)
    # The first part counts as a Gaussian with its moments before noise is added.
    assert np.mean(first.log_density) == pytest.approx(alone.predict_dist(others).logpdf(7 * targets).mean(), abs=0.2)


def test_outliers_are_no_rows_to_learn_from(mixed, monkeypatch):
    weights = []
    run = ensembles.Training.run

    def watched(self, *arguments, first=None, **options):
        ensemble = run(self, *arguments, first=first, **options)
        if first is None:
            ensemble.outliers = np.array([3, 5])
        else:
            weights.append(self.data.weight.numpy())
        return ensemble

    monkeypatch.setattr(ensembles.Training, "run", watched)
    small().fit(X, Y)
    assert np.flatnonzero(weights[0] == 0).tolist() == [3, 5]


# The faces of such mixtures


@pytest.fixture(scope="module")
def model():
    """A regressor with such a member, which tests may not change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ensembles, "FEWEST_TO_LEARN_DENSITIES", 100)
        patch.setattr(_ensembles, "MANY_TO_LEARN_DENSITIES", 100)
        patch.setattr(ensembles, "share_beside", lambda *_: Share(SHARE, 100.0))
        return small(n_neighbors=5).fit(X, Y)


def test_predictions_are_those_of_the_mixture(model):
    predictor = predictor_of(model)
    assert isinstance(predictor, Stack)
    close(predictor.shares, [1 - SHARE, SHARE])
    assert [part.blend is not None for part in predictor.predictors] == [True, False]
    assert [part.correction is not None for part in predictor.predictors] == [True, False]
    first, second = (part.predict_dist(NEW) for part in parts_of(model))
    dist = model.predict_dist(NEW)
    mixture = np.log((1 - SHARE) * first.pdf(NEW_Y) + SHARE * second.pdf(NEW_Y))
    close(dist.logpdf(NEW_Y), mixture)
    mean, std = model.predict(NEW, return_std=True)
    close(mean, (1 - SHARE) * first.mean + SHARE * second.mean)
    moments = [one.std**2 + one.mean**2 for one in (first, second)]
    close(std**2, (1 - SHARE) * moments[0] + SHARE * moments[1] - mean**2)
    close(model.predict(NEW, return_cov=True)[1].diagonal(), std**2, 1e-4)
    low, high = np.moveaxis(model.predict_interval(NEW, 0.9), -1, 0)
    close(dist.cdf(high) - dist.cdf(low), 0.9, 1e-4)


def test_rows_alone_and_together_are_the_same(model):
    far = np.full((1, 2), 1e6)
    many = np.concatenate([NEW, forked(500, seed=4)[0], far])
    near, deviation = model.predict(many, return_std=True)[1][[0, -1]]
    assert np.isfinite(deviation) and deviation > near
    close(model.predict(many)[: len(NEW)], model.predict(NEW), 1e-5)
    close([model.predict(row[None])[0] for row in NEW], model.predict(NEW), 1e-5)


def test_draws_and_gradients_belong_to_it(model):
    draws = model.sample_functions(4000, random_state=0)
    mean = model.predict(NEW)
    std = model.predict(NEW, return_std=True, latent=True)[1]
    assert (np.abs(draws(NEW).mean(1) - mean) < 6 * std / np.sqrt(4000)).all()
    gradient, step = model.predict_gradient(NEW), 1e-4
    for feature in range(2):
        shift = step * np.eye(2)[feature]
        slope = (model.predict(NEW + shift) - model.predict(NEW - shift)) / (2 * step)
        close(gradient[:, feature], slope, 2e-2)
    function, step = model.sample_functions(2, random_state=0), 1e-6  # neighbours have short lengthscales
    moved = (function(NEW + step * np.eye(2)[0]) - function(NEW - step * np.eye(2)[0])) / (2 * step)
    close(function.gradient(NEW)[:, 0], moved, 1e-2)


def test_files_and_modules_have_all_of_it(model, tmp_path):
    close(pickle.loads(pickle.dumps(model)).predict(NEW), model.predict(NEW), 1e-12)
    mean, std = (values.detach().numpy()[:, 0] for values in MomentsModule(model)(torch.as_tensor(NEW)))
    close(np.stack([mean, std]), model.predict(NEW, return_std=True))


def test_modules_know_transformed_targets(mixed):
    model = small(target_transform="log").fit(X, np.exp(Y))
    mean, std = (values.detach().numpy()[:, 0] for values in MomentsModule(model)(torch.as_tensor(NEW)))
    close(np.stack([mean, std]), model.predict(NEW, return_std=True), 1e-4)


def test_update_changes_the_first_part_and_what_the_second_sees(model):
    model = pickle.loads(pickle.dumps(model))
    before, members = [part.predict(NEW) for part in parts_of(model)], predictor_of(model).predictors[1].state_dict()
    first, second = (part.predict(NEW) for part in parts_of(model.update(NEW, NEW_Y + 1.0)))
    assert np.abs(first - before[0]).max() > 0.05
    assert np.abs(second - before[1]).max() > 1e-3
    assert all((members[name] == value).all() for name, value in predictor_of(model).predictors[1].state_dict().items())
    close(predictor_of(model).shares, [1 - SHARE, SHARE])


def test_chunks_go_on_without_the_member(model):
    model = pickle.loads(pickle.dumps(model))
    n_epochs = model.n_iter_
    model.partial_fit(*forked(60, seed=5))
    assert type(predictor_of(model)) is Predictor
    assert len(predictor_of(model)) == SMALL["n_estimators"]
    assert model.n_iter_ == n_epochs + 1


def test_a_warm_start_goes_on_with_both_parts(mixed):
    model = small(warm_start=True).fit(X, Y)
    weights = [next(part.models[0].parameters()).clone() for part in predictor_of(model).predictors]
    model.set_params(max_iter=1, learning_rate=1e-6).fit(X, Y)
    parts = predictor_of(model).predictors
    assert [len(part) for part in parts] == [SMALL["n_estimators"], 1]
    for part, before in zip(parts, weights, strict=True):
        close(next(part.models[0].parameters()).numpy(), before.numpy(), 1e-4)


def test_attributes_are_those_of_members_that_learn_functions(mixed):
    model = small(n_neighbors=5).fit(X, Y)
    alone = clone(model).set_params(objective="elbo").fit(X, Y)
    assert model.n_iter_ == alone.n_iter_
    assert (model.loss_curve_ == alone.loss_curve_).all()
    assert model.lower_bound_ == pytest.approx(alone.lower_bound_, rel=1e-9)
    assert model.neighbors_["gain"] == alone.neighbors_["gain"]
    for scales, own in zip(model.length_scales_, alone.length_scales_, strict=True):
        close(scales, own)
    assert model.best_iter_ == alone.best_iter_
    assert len(model.module_) == len(alone.module_) + 1
    assert ensemble_of(model).left_out == "minibatches"


def test_the_same_seed_has_the_same_result_and_units_do_not_matter(mixed):
    first = small().fit(X, Y).predict(NEW)
    assert (small().fit(X, Y).predict(NEW) == first).all()
    for scale in (1e-6, 1e6):
        close(small().fit(X * scale, Y * scale).predict(NEW * scale) / scale, first, 1e-3)


def test_gaps_several_targets_and_callbacks(mixed):
    incomplete = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    model = small().fit(incomplete, np.column_stack([Y, -2 * Y]))
    dist = model.predict_dist(np.where(np.arange(2) == 1, np.nan, NEW))
    assert dist.mean.shape == (len(NEW), 2)
    assert np.isfinite(dist.logpdf(np.column_stack([NEW_Y, -2 * NEW_Y]))).all()
    assert isinstance(predictor_of(model), Stack)
