"""A deep GP and its base as one model, from their marginals to the faces of estimators."""

import pickle

import numpy as np
import pytest
import torch
from helpers import (
    AVDGP,
    DSDGP,
    SOLVEGP,
    Tiny,
    any_options,
    every_family,
    name_of,
    normal,
    predictor_of,
    targets,
)
from sklearn.base import clone
from sklearn.metrics import log_loss
from test_base import make_data, make_likelihood
from test_joint import N_DRAWS, assert_moments, shake

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.gp.blend import Blend
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.noise import Heteroskedastic
from skdgp.gp.units import Units
from skdgp.gp.waves import Streams
from skdgp.inference import foundation, predictor
from skdgp.inference.base import fit_base
from skdgp.inference.batches import Batch
from skdgp.inference.predictor import Predictor
from skdgp.inference.state import from_plain, to_plain
from skdgp.methods import DSDGP as DSDGPMethod

BLENDED = {"base": "gp", "n_estimators": 2}
REGRESSORS = [
    Tiny(AVDGPRegressor, **AVDGP).with_budget(**BLENDED),
    Tiny(DSDGPRegressor, **DSDGP).with_budget(**BLENDED),
    Tiny(SOLVEGPRegressor, **SOLVEGP).with_budget(**BLENDED),
]
every_regressor = pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)


def make_blended(weight=0.6, edge=0.9, n_outputs=1, **options):
    data = make_data(n_outputs=n_outputs)
    base = fit_base(data)
    method = DSDGPMethod((2,), 5, **options)
    deep = shake(method.build(data.X.float(), make_likelihood(n_outputs), torch.Generator().manual_seed(0)))
    return Predictor([deep], Blend(base, make_likelihood(n_outputs), weight=weight, edge=edge, spread=0.02))


@pytest.mark.parametrize("n_outputs", [1, 2])
@torch.no_grad()
def test_marginals_are_weighed_and_deviations_too(n_outputs):
    model = make_blended(n_outputs=n_outputs)
    X = torch.cat([normal(10, 2), torch.full((1, 2), 300.0).double()])
    h, g, (found,) = model.models[0](X), model.blend.base(X), model.marginals(X)
    layer = model.blend.base.layers[0]
    r = (layer.kernel.kernels[0](layer.Z, X)[0] / layer.kernel.kernels[0].variance).amax(0)
    known = (0.02 / g.variance[0].mean(1)).clamp(max=1.0) ** 2
    t = (0.6 * known * (r / 0.9).clamp(max=1.0))[:, None]
    mean, variance = h.moments()
    torch.testing.assert_close(found.moments()[0], t * mean + (1 - t) * g.mean[0])
    torch.testing.assert_close(found.moments()[1].sqrt(), t * variance.sqrt() + (1 - t) * g.variance[0].sqrt())
    assert t[:10].max() == 0.6 and t[10] < 1e-6


@torch.no_grad()
def test_far_from_all_rows_there_is_the_prior():
    model = make_blended(weight=1.0)
    model.blend.base.layers[0].kernel.kernels[1].log_variance.fill_(-30.0)  # no linear functions
    X = torch.full((1, 2), 1e4).double()
    _, variance = model.marginals(X)[0].moments()
    assert variance.item() == pytest.approx(model.blend.base.layers[0].kernel.kernels[0].variance.item(), rel=1e-3)


@torch.no_grad()
def test_a_base_that_explains_nothing_leaves_the_deep_model_alone():
    model = make_blended(weight=1.0, edge=0.01)
    X = torch.cat([normal(5, 2), torch.full((1, 2), 300.0).double()])
    model.blend.spread.fill_(1e9)
    torch.testing.assert_close(model.marginals(X)[0].mean, model.models[0](X).mean)


@pytest.mark.slow
@pytest.mark.parametrize("propagation", ["quadrature", "monte_carlo"])
@torch.no_grad()
def test_functions_have_the_joint_moments(propagation):
    model = make_blended(propagation=propagation).frozen()
    X = torch.cat([normal(4, 2), torch.tensor([[4.0, -4.0]]).double()])
    draws = model.draw(0, Streams(range(N_DRAWS)))(X)[..., 0].numpy()
    many = model.blend.covariance(model.models[0], X, Streams(range(3000)))[0].numpy()
    mean = model.marginals(X)[0].moments()[0][:, 0].numpy() if propagation == "quadrature" else draws.mean(0)
    assert_moments(draws, mean, many)


def make_varying(weight=(0.6, 0.3)):
    """A blend with a base of the noise: two function values, of which each has a weight of its own."""
    data, likelihood = make_data(), Heteroskedastic(1).double().requires_grad_(False)
    likelihood.units = Units([3.0], [2.0])
    bases = fit_base(data), fit_base(Batch(data.X, 0.5 * data.X[:, :1] + normal(60, 1, seed=4), data.weight))
    method = DSDGPMethod((), 5)
    deep = shake(method.build(data.X.float(), likelihood, torch.Generator().manual_seed(0)))
    blend = Blend(bases[0], likelihood, weight=torch.tensor(weight), edge=0.01, spread=1e9, noise=bases[1])
    return Predictor([deep], blend)


@torch.no_grad()
def test_noise_that_varies_has_its_own_base_and_weight():
    model, X = make_varying(), normal(10, 2)
    (h, v), (found,) = model.models[0](X).moments(), model.marginals(X)
    bases = [base(X) for base in model.blend.bases]
    g, s = (torch.cat(column, dim=-1)[0] for column in ([b.mean for b in bases], [b.variance for b in bases]))
    t = torch.tensor([0.6, 0.3]).double()
    torch.testing.assert_close(found.moments()[0], t * h + (1 - t) * g)
    torch.testing.assert_close(found.moments()[1].sqrt(), t * v.sqrt() + (1 - t) * s.sqrt())
    model.blend.spread.fill_(0.5 * s[:, 0].min())  # only the base of the function says where the data are
    share = model.blend.share(X, model.blend.of_base(X))
    torch.testing.assert_close(share, t * (model.blend.spread / s[:, :1]).square())
    torch.testing.assert_close(model.frozen(turned=True).marginals(X)[0].mean, model.marginals(X)[0].mean)


@torch.no_grad()
def test_functions_of_noise_have_the_joint_moments():
    model, X = make_varying().frozen(), normal(4, 2)
    draws = model.draw(0, Streams(range(N_DRAWS)))(X).numpy()
    covariance = model.blend.covariance(model.models[0], X, Streams(range(16))).numpy()
    mean = model.marginals(X)[0].moments()[0].numpy()
    for value in range(2):
        assert_moments(draws[..., value], mean[:, value], covariance[value])
    assert np.abs(np.corrcoef(draws[:, 0].T)[0, 1]) < 4.5 / np.sqrt(N_DRAWS)  # function and noise are independent


@torch.no_grad()
def test_blends_of_earlier_versions_have_no_base_of_the_noise():
    model, X = make_varying(), normal(10, 2)
    state = to_plain(model.blend)
    del state["modules"]["noise"], state["attributes"]["n_alternatives"]
    blend = from_plain(state, Blend)
    found = Predictor(list(model.models), blend.frozen()).marginals(X)[0].moments()[0]
    torch.testing.assert_close(found[:, :1], model.marginals(X)[0].moments()[0][:, :1])
    torch.testing.assert_close(found[:, 1:], 0.3 * model.models[0](X).moments()[0][:, 1:])


@every_regressor
class TestFaces:
    def test_agree_with_each_other(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        assert 0.0 <= model.base_weight_ <= 1.0 and predictor_of(model).blend is not None
        mean, std = model.predict(X, return_std=True)
        dist = model.predict_dist(X)
        np.testing.assert_allclose(dist.mean, mean)
        np.testing.assert_allclose(dist.std, std)
        latent = model.predict_dist(X, latent=True)
        np.testing.assert_allclose(std**2 - latent.std**2, model.noise_variance_, rtol=1e-4, atol=1e-12)
        _, covariance = model.predict(X[:9], return_cov=True)
        np.testing.assert_allclose(covariance.diagonal(), std[:9] ** 2, rtol=1e-5)
        assert np.linalg.eigvalsh(covariance).min() > 0

    @pytest.mark.slow
    def test_functions_and_gradients(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        draws = model.sample_functions(400, random_state=0)
        values, latent = draws(X[:6]), model.predict_dist(X[:6], latent=True)
        assert (np.abs(values.mean(1) - latent.mean) < 0.25 * latent.std + 1e-9).all()
        np.testing.assert_allclose(values.std(1), latent.std, rtol=0.25)
        gradient, deviation = model.predict_gradient(X[:3], return_std=True)
        step = 1e-4 * np.eye(X.shape[1])
        slopes = np.stack([(model.predict(X[:3] + each) - model.predict(X[:3] - each)) / 2e-4 for each in step], axis=1)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-3, atol=1e-4)
        assert (deviation > 0).all()
        one = draws[:1]
        slope = (one(X[:1] + step[0]) - one(X[:1] - step[0])) / 2e-4
        assert one.gradient(X[:1])[0, 0, 0] == pytest.approx(slope[0, 0], rel=1e-3, abs=1e-4)

    def test_last_in_files(self, tiny, wave):
        model = tiny().fit(*wave)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict(wave[0]), model.predict(wave[0]))
        assert again.base_weight_ == model.base_weight_ and again.noise_variance_ == model.noise_variance_
        assert clone(model).base == "gp"

    def test_of_several_outputs_with_weights_in_single_precision(self, tiny, wave):
        X, y = wave[0].astype(np.float32), np.column_stack([wave[1], 100.0 * wave[0][:, 0]])
        weight = np.arange(len(X)) % 3
        model = tiny().fit(X, y, weight)
        mean, std = model.predict(X, return_std=True)
        assert mean.shape == std.shape == (len(X), 2) and np.isfinite(std).all() and (std > 0).all()
        assert model.predict(X[:4], return_cov=True)[1].shape == (4, 4, 2)
        assert model.noise_variance_.shape == (2,)

    def test_rows_of_the_user_judge(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X[:80], y[:80], X_val=X[80:], y_val=y[80:])
        other = tiny().fit(X[:80], y[:80], X_val=X[80:], y_val=-y[80:])
        assert model.base_weight_ > 0.9 and other.noise_variance_ > 10 * model.noise_variance_  # they are upside down
        assert model.noise_variance_ < 0.1 * other.noise_variance_

    def test_exact_targets_are_met_and_deviations_grow_outside(self, tiny):
        rng = np.random.default_rng(0)
        X = rng.uniform(-2, 2, size=(80, 2))
        y = 50.0 + 10.0 * (np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2)
        model = tiny().fit(X[:60], y[:60])
        assert np.abs(model.predict(X[60:]) - y[60:]).mean() < 0.1
        _, std = model.predict([[0.0, 0.0], [40.0, 0.0]], return_std=True)
        assert std[0] < 0.1 and std[1] > 5.0

    def test_constant_targets_are_no_trouble(self, tiny, wave):
        model = tiny().fit(wave[0], np.full(len(wave[0]), 7.0))  # without a warning
        mean, std = model.predict(wave[0], return_std=True)
        np.testing.assert_allclose(mean, 7.0, atol=1e-3)
        assert (std < 1e-2).all()

    @any_options
    def test_without_rows_to_judge_there_is_no_blend(self, tiny, wave):
        if tiny.estimator is SOLVEGPRegressor:
            model = tiny(early_stopping=False, covariance="diag").fit(*wave)
        else:
            model = tiny(early_stopping=False).fit(*wave)
        assert model.base_weight_ == 0.0 and predictor_of(model).blend is None

    def test_nor_where_numbers_are_beyond_floating_point(self, tiny, wave, monkeypatch):
        def fail(*_, **__):
            raise np.linalg.LinAlgError("never")

        monkeypatch.setattr(foundation, "base_for", fail)
        with pytest.warns(RuntimeWarning, match=r"The base could not be computed.*or set base=None"):
            model = tiny().fit(*wave)
        assert model.base_weight_ == 0.0
        assert np.array_equal(model.predict(wave[0]), tiny(base=None).fit(*wave).predict(wave[0]))

    def test_rows_get_the_same_however_many_there_are(self, tiny, wave, monkeypatch):
        model = tiny().fit(*wave)
        expected = model.predict(wave[0], return_std=True)
        monkeypatch.setattr(predictor, "COARSE_ROWS", 1)
        np.testing.assert_allclose(model.predict(wave[0], return_std=True), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["svi", "collapsed"])
def test_closed_forms_are_judged_by_rows_that_they_have_learnt(wave, method):
    model = SOLVEGPRegressor(12, 6, method=method, max_iter=5, random_state=0).fit(*wave)
    assert predictor_of(model).blend is not None and model.validation_scores_.size == 0


@pytest.mark.slow
def test_going_on_chooses_anew(wave):
    model = REGRESSORS[0](warm_start=True).fit(*wave)
    first = predictor_of(model).blend
    model.fit(*wave)
    assert predictor_of(model).blend is not None and predictor_of(model).blend is not first
    model.set_params(base=None).fit(*wave)
    assert model.base_weight_ == 0.0


CLASSIFIERS = [
    Tiny(AVDGPClassifier, **AVDGP).with_budget(**BLENDED),
    Tiny(DSDGPClassifier, **DSDGP).with_budget(**BLENDED),
    Tiny(SOLVEGPClassifier, **SOLVEGP).with_budget(**BLENDED),
]


@pytest.mark.parametrize("tiny", CLASSIFIERS, ids=name_of)
@pytest.mark.parametrize("n_classes", [2, 3])
class TestClassifiers:
    @staticmethod
    def data(n_classes):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(150, 2))
        return X, np.array(["c", "a", "b"])[np.digitize(X.sum(1), np.linspace(-0.7, 0.7, n_classes - 1))]

    def test_a_base_makes_good_what_few_steps_leave(self, tiny, n_classes):
        X, y = self.data(n_classes)
        model, alone = tiny().fit(X[:90], y[:90]), tiny(base=None).fit(X[:90], y[:90])
        assert model.base_weight_ > 0.0 and alone.base_weight_ == 0.0
        found, of_alone = (log_loss(y[90:], each.predict_proba(X[90:])) for each in (model, alone))
        assert found < 0.35 < of_alone

    @pytest.mark.slow
    def test_probabilities_are_those_of_functions(self, tiny, n_classes):
        X, y = self.data(n_classes)
        model = tiny(n_estimators=1).fit(X, y)
        proba = model.predict_proba(X[:8])
        np.testing.assert_allclose(proba.sum(1), 1.0)
        draws = model.sample_functions(400, random_state=0)(X[:8])  # (8, K, 400)
        np.testing.assert_allclose(draws.mean(-1), proba, atol=0.08)

    @pytest.mark.slow
    def test_last_in_files_and_choose_anew(self, tiny, n_classes):
        X, y = self.data(n_classes)
        model = tiny(warm_start=True).fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
        assert again.base_weight_ == model.base_weight_
        first = predictor_of(again).blend
        assert predictor_of(again.fit(X, y)).blend is not first

    def test_weights_and_single_precision(self, tiny, n_classes):
        X, y = self.data(n_classes)
        model = tiny(class_weight="balanced").fit(X.astype(np.float32), y, np.arange(len(X)) % 3)
        assert np.isfinite(model.predict_log_proba(X.astype(np.float32))).all()


@any_options
def test_streams_have_a_base_unless_the_user_wants_none(wave):
    assert REGRESSORS[0](base="gp").partial_fit(*wave).base_weight_ > 0.0
    assert REGRESSORS[0](base=None).partial_fit(*wave).base_weight_ == 0.0


def wild_rows(rng):
    """Twenty collinear features, of which some values are far out, as in tables of measurements."""
    causes = rng.normal(size=(700, 5))
    X = causes @ rng.normal(size=(5, 20)) + 0.05 * rng.normal(size=(700, 20))
    far = rng.random(700) < 0.01
    X[far] *= np.exp(rng.uniform(1, 5, size=(far.sum(), 20)))
    return X, causes[:, 0] + 0.5 * np.sin(2 * causes[:, 1]) + 0.1 * rng.normal(size=700)


def panel(rng):
    """Seven rows of each subject, whose own level and features they share."""
    subject = np.repeat(np.arange(100), 7)
    features, level, time = rng.normal(size=(100, 4)), rng.normal(size=100), rng.random(700)
    y = np.sin(features[subject, 0]) + 0.7 * level[subject] + time + 0.1 * rng.normal(size=700)
    return np.c_[features[subject], time], y


@pytest.mark.slow
@pytest.mark.parametrize("make", [wild_rows, panel])
@pytest.mark.parametrize("seed", range(2))
def test_a_few_rows_far_out_do_not_give_weight_to_the_worse_part(make, seed):
    """Members that have hardly learnt must not spoil the predictions of the base, however rows are distributed."""
    rng = np.random.default_rng(seed)
    X, y = make(rng)
    order = rng.permutation(700)
    train, test = order[:550], order[550:]
    model = AVDGPRegressor((2,), n_estimators=1, max_iter=3, n_neighbors=0, random_state=0).fit(X[train], y[train])
    blend = predictor_of(model).blend
    chosen, errors = blend.weight.clone(), []
    for weight in (chosen, 0 * chosen, 0 * chosen + 1):
        blend.weight.copy_(weight)
        errors.append(np.sqrt(np.mean((model.predict(X[test]) - y[test]) ** 2)))
    assert errors[0] < 1.05 * min(errors[1:])


@every_family
def test_members_without_weight_are_not_computed(tiny, wave, monkeypatch):
    """With hardly any weight they are, and predictions are the same."""
    X, y = wave
    model = tiny(base="gp", n_estimators=2).fit(X, targets(tiny, y))
    calls, forward = [], DeepGP.forward
    monkeypatch.setattr(
        DeepGP, "forward", lambda self, *rows, **options: calls.append(0) or forward(self, *rows, **options)
    )

    def predictions(weight):
        calls.clear()
        predictor_of(model).blend.weight.fill_(weight)
        if hasattr(model, "predict_proba"):
            return [model.predict_proba(X)]
        dist = model.predict_dist(X)
        return [
            dist.mean,
            dist.std,
            dist.ppf(0.1),
            model.predict_gradient(X),
            model.predict(X, return_cov=True)[1],
        ]

    expected, n_calls = predictions(1e-30), len(calls)
    for ours, theirs in zip(predictions(0.0), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    assert len(calls) < n_calls


@pytest.mark.slow
def test_few_rows_do_not_make_noise_that_varies_much_smaller_than_that_of_its_base():
    random = np.random.RandomState(1903)  # rows that judge a noise 0.37 smaller, in logarithms, by themselves
    X = random.uniform(-1.0, 1.0, (440, 4))[:40]
    y = X @ [1.0, -0.7, 0.4, 0.1] + 0.2 * np.exp(1.2 * X[:, 0]) * random.randn(40)
    learnt = predictor_of(SOLVEGPRegressor(likelihood="heteroskedastic", random_state=0).fit(X, y))
    of_base, judged = (model.likelihood.log_level.item() for model in (learnt.models[0], learnt.blend))
    assert abs(judged - of_base) < 0.2
