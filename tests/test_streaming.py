"""Learning from chunks: ``partial_fit`` of all families, and the stream beneath."""

import pickle
import warnings
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import (
    CLASSIFIERS,
    ELBO,
    REGRESSORS,
    Line,
    any_options,
    ensemble_of,
    every_family,
    generator,
    known,
    predictor_of,
    table_of,
    targets,
)
from sklearn.base import clone
from sklearn.datasets import make_friedman1

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.datasets import make_waves
from skdgp.estimators._training import learn
from skdgp.inference import conditioning, streamed_base, streaming
from skdgp.inference.batches import Batch
from skdgp.inference.settings import Settings
from skdgp.inference.steps import Failure, Stepper
from skdgp.inference.streaming import Sample, Stream, draw
from skdgp.metrics import negative_log_predictive_density


def line_rows(n_rows):
    X = torch.linspace(-1, 1, n_rows, dtype=torch.float64)[:, None]
    return Batch(X, 2 * X + 0.1 * torch.sin(30 * X), torch.ones(n_rows, dtype=torch.float64))


SETTINGS = Settings(ELBO, 1e-3, 1, 16, 0.02, 10, 0.0)


def chunks(X, y, n_chunks):
    return zip(np.array_split(X, n_chunks), np.array_split(y, n_chunks), strict=True)


class TestPartialFit:
    @every_family
    def test_learns_a_little_from_every_chunk(self, tiny, wave):
        X, y = wave[0], targets(tiny, wave[1])
        model = tiny.of_chunks()
        for _ in range(3):
            for part in chunks(X, y, 4):
                assert model.partial_fit(*part, **known(tiny), total_size=len(X)) is model
        assert model.n_iter_ == len(model.loss_curve_) == 12 and len(model.module_) == 1
        assert np.mean(model.loss_curve_[-4:]) < np.mean(model.loss_curve_[:4])
        assert np.isfinite(model.score(X, y)) and len(model.validation_scores_) == 0

    @pytest.mark.slow
    @every_family
    def test_goes_on_from_a_fit_and_from_a_file(self, tiny, wave):
        X, y = wave[0], targets(tiny, wave[1])
        model = tiny(n_estimators=2).fit(X, y)
        before = [parameter.clone() for parameter in model.module_.parameters()]
        model.partial_fit(X, y)
        assert len(model.module_) == 2 and model.n_iter_ == 4
        after = list(model.module_.parameters())
        assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
        assert not hasattr(model, "lower_bound_")
        again = pickle.loads(pickle.dumps(model)).partial_fit(X, y)
        assert again.n_iter_ == 5 and len(again.module_) == 2
        again = pickle.loads(pickle.dumps(again.set_params(n_estimators="auto")))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "n_estimators='auto' has no effect")  # unless it is what the class has
            assert len(again.partial_fit(X, y).module_) == 2

    @any_options
    @every_family
    def test_a_stored_stream_goes_on_as_if_it_had_not_been_stored(self, tiny, wave):
        X, y = wave[0], targets(tiny, wave[1])
        kept, stored = tiny.of_chunks(), tiny()
        for part in chunks(X, y, 3):
            kept.partial_fit(*part, **known(tiny))
            stored = pickle.loads(pickle.dumps(stored)).partial_fit(*part, **known(tiny))
        output = "predict_proba" if hasattr(kept, "predict_proba") else "predict"
        assert np.array_equal(getattr(kept, output)(X), getattr(stored, output)(X))

    @pytest.mark.parametrize(
        "model",
        [
            AVDGPRegressor((), random_state=0),
            DSDGPRegressor((), 50, random_state=0),
            SOLVEGPRegressor(30, 30, random_state=0),
        ],
        ids=lambda model: type(model).__name__,
    )
    def test_small_chunks_are_enough(self, model):
        X, y = make_friedman1(1000, noise=1.0, random_state=0)
        for part in chunks(X[:400], y[:400], 4):
            model.partial_fit(*part)
        assert model.score(X[400:], y[400:]) > 0.8

    def test_same_seed_same_result(self, tiny, wave):
        X, y = wave
        found = []
        for _ in range(2):
            model = tiny.of_chunks()
            for part in chunks(X, y, 3):
                model.partial_fit(*part)
            found.append(model.predict(X))
        assert np.array_equal(*found)

    @pytest.mark.slow
    def test_reaches_what_fit_reaches(self):
        """Many small chunks, several passes; without knowing the number of rows."""
        rng = np.random.default_rng(0)
        X = rng.uniform(-2, 2, (2000, 2))
        y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(2000)
        model = DSDGPRegressor((), 30, batch_size=100, base=None, n_neighbors=0, random_state=0)
        whole = clone(model).set_params(max_iter=25).fit(X, y)
        for _ in range(2):
            for part in chunks(X, y, 4):
                model.partial_fit(*part)
        X_new = rng.uniform(-2, 2, (1000, 2))
        truth = np.sin(2 * X_new[:, 0]) * X_new[:, 1]
        errors = [np.sqrt(np.mean((each.predict(X_new) - truth) ** 2)) for each in (whole, model)]
        assert errors[1] < 1.2 * errors[0]
        y_new = truth + 0.1 * rng.standard_normal(1000)
        losses = [negative_log_predictive_density(y_new, each.predict_dist(X_new)) for each in (whole, model)]
        assert losses[1] < losses[0] + 0.02

    @pytest.mark.parametrize(
        "model",
        [
            AVDGPRegressor((), batch_size=250, n_estimators=1, random_state=0),
            DSDGPRegressor((), 30, batch_size=500, n_estimators=1, random_state=0),
            SOLVEGPRegressor(10, 10, batch_size=500, n_estimators=1, random_state=0),
        ],
        ids=lambda model: type(model).__name__,
    )
    def test_intervals_are_right_after_the_first_chunk(self, model):
        rng = np.random.default_rng(0)
        X = rng.uniform(-2, 2, (5000, 3))
        y = np.sin(2 * X[:, 0]) * X[:, 1] + np.exp(-(X[:, 2] ** 2)) + 0.1 * rng.standard_normal(5000)
        lower, upper = model.partial_fit(X[:2000], y[:2000]).predict_quantiles(X[2000:], [0.05, 0.95]).T
        assert 0.87 < np.mean((lower < y[2000:]) & (y[2000:] < upper)) < 0.95

    def test_the_first_chunk_holds_rows_out_for_each_member_and_keeps_them(self, wave, monkeypatch):
        X, y = wave
        learnt, learn = [], Stream.__call__

        def spy(self, chunk, *others):
            learnt.append({tuple(row) for row in chunk.X.numpy()})
            return learn(self, chunk, *others)

        monkeypatch.setattr(Stream, "__call__", spy)
        options = {"n_estimators": 2, "normalize_X": False, "dtype": "float64", "random_state": 0}
        model = DSDGPRegressor((), 5, validation_fraction=0.25, **options)
        model.partial_fit(X, y)
        everything = {tuple(row) for row in X}
        assert [len(rows) for rows in learnt] == [90, 90] and learnt[0] | learnt[1] == everything
        for stream in ensemble_of(model).streams:
            assert stream.n_seen == 120
            assert {tuple(row) for row in stream.sample.X.numpy()} == everything
        model.partial_fit(X[:40], y[:40])
        SOLVEGPRegressor(5, 0, likelihood="poisson", random_state=0).partial_fit(X, np.arange(120) % 5)
        DSDGPRegressor((), 5, n_estimators=1, random_state=0).partial_fit(X[:19], y[:19])
        assert [len(rows) for rows in learnt[2:]] == [40, 40, 120, 19]

    def test_noise_is_what_new_rows_show(self, tiny, wave):
        X, y = wave
        model = tiny.of_chunks().partial_fit(X, y).partial_fit(X, y)
        before = model.noise_variance_
        model.partial_fit(X, y + 2 * np.random.default_rng(0).standard_normal(len(y)))
        assert model.noise_variance_ > 2 * before
        residuals = y + 2 * np.random.default_rng(0).standard_normal(len(y)) - model.predict(X)
        assert 0.5 < model.noise_variance_ / np.mean(residuals**2) < 1.5

    def test_weights_of_a_chunk_count_beside_those_of_others(self, wave, monkeypatch):
        X, y = wave
        seen, learn = [], Stream.__call__

        def spy(self, chunk, *others):
            seen.append(chunk.weight.numpy())
            return learn(self, chunk, *others)

        monkeypatch.setattr(Stream, "__call__", spy)
        model = SOLVEGPRegressor(10, 0, random_state=0)
        model.partial_fit(X, y).partial_fit(X, y, sample_weight=np.full(len(X), 5.0))
        assert (seen[0] == 1).all() and (seen[1] == 5).all()

    @pytest.mark.slow
    @pytest.mark.parametrize("tiny", REGRESSORS, ids=lambda tiny: tiny.estimator.__name__)
    def test_heavy_chunks_weigh_more_beside_the_same_penalty(self, tiny, wave):
        """The loss of a step that goes nowhere is −w E + β KL/N, with KL the mean over rows.

        Of three passes one is over the chunk and two are replayed, here over its rows and as many of weight one.
        """
        X, y = wave
        losses = {}
        for weight, beta in ((1.0, 0.0), (1.0, 50.0), (3.0, 0.0), (3.0, 50.0)):
            model = tiny.of_chunks(
                beta=beta, learning_rate=1e-12, dtype="float64", **tiny.propagations[-1]
            ).partial_fit(X, y)
            model.partial_fit(X, y, sample_weight=np.full(len(X), weight))
            losses[weight, beta] = model.loss_curve_[-1]
        assert losses[3.0, 0.0] == pytest.approx((3 + 1 + 3) / 3 * losses[1.0, 0.0], rel=1e-4)
        assert losses[3.0, 50.0] - losses[3.0, 0.0] == pytest.approx(losses[1.0, 50.0] - losses[1.0, 0.0], rel=1e-4)

    def test_total_size_weighs_the_penalty(self, wave, monkeypatch):
        X, y = wave
        weights, learn = [], Stream.__call__

        def spy(self, chunk, settings):
            weights.append(settings.kl_weight(len(chunk), mean_weight=1.0))
            return learn(self, chunk, settings)

        monkeypatch.setattr(Stream, "__call__", spy)
        model = SOLVEGPRegressor(10, 0, random_state=0, beta=3.0)
        model.partial_fit(X, y).partial_fit(X[:60], y[:60]).partial_fit(X, y, total_size=10_000)
        np.testing.assert_allclose(weights, [3 / 120, 3 / 180, 3 / 10_000])

    @every_family
    def test_after_a_fit_the_base_goes_on_and_neighbours_do_not(self, tiny, wave):
        X, y = wave[0], targets(tiny, wave[1])
        regressor = tiny in REGRESSORS
        model = tiny(base="gp", **({"n_neighbors": 5} if regressor else {})).fit(X, y)
        assert model.base_weight_ > 0 and (model.neighbors_ is not None if regressor else True)
        weight = model.partial_fit(X, y).base_weight_
        assert weight > 0 and getattr(model, "neighbors_", None) is None
        assert model.partial_fit(X[:30], y[:30]).base_weight_ == weight  # so few rows cannot judge

    @every_family
    def test_a_base_goes_along_with_chunks(self, tiny):
        """It learns from all chunks, and so predicts better than the base of the first one."""
        X, y = make_waves(600, random_state=0)
        y = targets(tiny, y)
        model = tiny.of_chunks(base="gp").partial_fit(X[:60], y[:60], **known(tiny))
        first = model.score(X[300:], y[300:])
        for start in range(60, 300, 60):
            model.partial_fit(X[start : start + 60], y[start : start + 60])
        assert model.score(X[300:], y[300:]) > first and model.base_weight_ > 0.5
        again = pickle.loads(pickle.dumps(model))
        assert predictor_of(again).blend.scale == predictor_of(model).blend.scale
        for each in (model, again):
            each.partial_fit(X[:60], y[:60])
        np.testing.assert_allclose(again.score(X, y), model.score(X, y), atol=1e-6)

    @any_options
    @every_family
    @pytest.mark.parametrize(("first", "second"), [(np.float64, np.float32), (np.float32, np.float64)])
    def test_chunks_may_differ_in_precision(self, tiny, wave, first, second):
        """Predictions keep that of the first."""
        X, y = wave[0], targets(tiny, wave[1])
        model = tiny.of_chunks().partial_fit(X.astype(first), y, **known(tiny)).partial_fit(X.astype(second), y)
        assert next(model.module_.parameters()).numpy().dtype == first
        assert np.isfinite(model.predict(X.astype(second))).all()
        model.fit(X.astype(first), y).partial_fit(X.astype(second), y)
        assert np.isfinite(model.predict(X)).all()

    @pytest.mark.parametrize(("first", "second"), [("auto", "float64"), ("float64", "auto"), ("float32", "float64")])
    def test_a_later_dtype_changes_nothing(self, wave, first, second):
        X, y = wave
        model, same = (REGRESSORS[0].of_chunks(dtype=first).partial_fit(X, y) for _ in range(2))
        said = pytest.warns(UserWarning, match="^dtype='float64' has no effect in partial_fit, which goes on with")
        with said if first == "float32" else nullcontext():
            model.set_params(dtype=second).partial_fit(X, y)
        np.testing.assert_array_equal(model.predict(X), same.partial_fit(X, y).predict(X))

    @pytest.mark.parametrize("family", [AVDGPRegressor, SOLVEGPRegressor])
    def test_a_row_far_away_is_where_predictions_see_it(self, wave, family):
        """Its squares overflow in float32 otherwise."""
        (X, y), options = wave, {"base": None, "n_neighbors": 0, "n_estimators": 1, "max_iter": 2, "random_state": 0}
        model, same = (family(**options).partial_fit(X, y) for _ in range(2))
        X_far, X_edge = np.vstack([X, np.full(X.shape[1], 1e40)]), np.vstack([X, np.full(X.shape[1], 1e18)])
        model.partial_fit(X_far, np.append(y, 0.0))
        same.partial_fit(X_edge, np.append(y, 0.0))
        np.testing.assert_array_equal(model.predict(X_far), same.predict(X_edge))

    @pytest.mark.slow
    @every_family
    def test_a_chunk_that_fails_leaves_all_as_it_was(self, tiny, wave, monkeypatch):
        X, y = wave[0], targets(tiny, wave[1])
        model = tiny.of_chunks(n_estimators=2).partial_fit(X, y, **known(tiny))
        again = tiny.of_chunks(n_estimators=2).partial_fit(X, y, **known(tiny))
        expected = model.predict(X)
        calls, learn = iter(range(100)), Stream.__call__

        def failing(self, *others):
            if next(calls) == 1:  # the second member's
                raise MemoryError
            return learn(self, *others)

        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(Stream, "__call__", failing)
            model.partial_fit(X, y)
        assert np.array_equal(model.predict(X), expected) and model.n_iter_ == 1
        # What it goes on with is not changed either.
        assert np.array_equal(model.partial_fit(X, y).predict(X), again.partial_fit(X, y).predict(X))

    def test_bad_calls(self, wave):
        X, y = wave
        regressor, classifier = REGRESSORS[0](), CLASSIFIERS[0]()
        with pytest.raises(ValueError, match=r"total_size=5 must be the number of rows of all chunks.* has 120 rows"):
            regressor.partial_fit(X, y, total_size=5)
        with pytest.raises(ValueError, match=r"total_size=200.5 must be .*: pass a whole number"):
            regressor.partial_fit(X, y, total_size=200.5)
        regressor.partial_fit(X, y, total_size=1e6)
        with pytest.raises(ValueError, match="first call of partial_fit needs the labels of all chunks: pass classes"):
            classifier.partial_fit(X, y > 0)
        classifier.partial_fit(X, y > 0, classes=[False, True])
        with pytest.raises(ValueError, match="differ from those of the first call"):
            classifier.partial_fit(X, y > 0, classes=[0, 1, 2])
        with pytest.raises(ValueError, match="contains the label 7"):
            CLASSIFIERS[0]().partial_fit(X, np.full(len(X), 7), classes=[0, 1])
        with pytest.raises(ValueError, match=r"built with hidden_dims=.*but hidden_dims is now"):
            regressor.partial_fit(X, y).set_params(hidden_dims=(3,)).partial_fit(X, y)
        with pytest.raises(ValueError, match="method='collapsed' needs all rows at once"):
            SOLVEGPRegressor(method="collapsed").partial_fit(X, y)


class TestSample:
    """Each of the rows that have come is kept with the same probability."""

    @staticmethod
    def numbered(numbers):
        column = torch.as_tensor(numbers, dtype=torch.float64)
        return Batch(column[:, None], column[:, None], torch.ones(len(column)))

    def test_rows_of_all_chunks_are_as_likely(self, monkeypatch):
        monkeypatch.setattr(streaming, "REMEMBERED_ROWS", 10)
        source, counts = generator(), np.zeros(40)
        for _ in range(500):
            sample = Sample.of(self.numbered(range(25)), source)
            for start, stop in ((25, 30), (30, 40)):
                sample = sample.joined(Sample.of(self.numbered(range(start, stop)), source))
            assert len(sample.key) == 10
            counts[sample.X[:, 0].int().numpy()] += 1
        # Binomial: 500 of probability 1/4 have a deviation of 9.7.
        assert abs(counts - 125).max() < 4.5 * 9.7

    def test_draws_no_row_twice_before_all_have_been_drawn(self):
        assert sorted(np.bincount(draw(10, 25, generator()), minlength=10)) == 5 * [2] + 5 * [3]

    def test_work_is_bounded(self):
        settings, stream = replace(SETTINGS, max_iter=1000), Stream(Line(), generator())
        # The first chunk of a new model: 25 passes, or 100 000 rows, or max_iter passes.
        assert stream._n_replayed(2000, settings) == 24 * 2000
        assert stream._n_replayed(20_000, settings) == 80_000
        assert stream._n_replayed(200_000, settings) == 0
        assert stream._n_replayed(20_000, replace(settings, max_iter=2)) == 20_000
        stream.n_seen = 1
        assert stream._n_replayed(200, settings) == 24 * 200  # 25 passes
        assert stream._n_replayed(2000, settings) == 10_000 - 2000
        assert stream._n_replayed(20_000, settings) == 0
        assert stream._n_replayed(200, replace(settings, max_iter=1)) == 0
        stream.n_seen = 39_800
        assert stream._n_replayed(200, settings) == 300  # a tenth of the rows is remembered
        stream.n_seen, stream.continues = 0, True
        assert stream._n_replayed(200, replace(settings, n_rows=1000)) == 800  # it knows a fifth of them


class TestStream:
    def test_average_weighs_later_steps_more(self, monkeypatch):
        """The weights of t steps, written out: the product of what later steps leave of each."""
        data, model = line_rows(64), Line(jiggle=0.1)
        stream = Stream(model, generator())
        visited = []
        real = Stepper.step

        def spy(stepper, *others):
            loss = real(stepper, *others)
            visited.append([parameter.detach().clone() for parameter in stepper.model.parameters()])
            return loss

        monkeypatch.setattr(Stepper, "step", spy)
        stream(data, SETTINGS)
        stream(data, SETTINGS)
        shares = 9 / (8 + np.arange(1, len(visited) + 1))
        weights = shares * np.append(np.cumprod((1 - shares)[::-1])[::-1][1:], 1.0)
        assert abs(weights.sum() - 1) < 1e-12 and (np.diff(weights) > 0).all()
        for i, average in enumerate(stream.averaged().parameters()):
            expected = sum(weight * step[i] for weight, step in zip(weights, visited, strict=True))
            torch.testing.assert_close(average.detach(), expected)

    def test_rates_of_a_later_chunk_go_on_where_those_of_the_one_before_ended(self, monkeypatch):
        stream, rates, real = Stream(Line(jiggle=0.1), generator()), [], Stepper.step

        def spy(stepper, batch, rate):
            rates.append(rate)
            return real(stepper, batch, rate)

        monkeypatch.setattr(Stepper, "step", spy)
        stream(line_rows(64), SETTINGS)
        stream(line_rows(64), SETTINGS)
        expected = [SETTINGS.learning_rate * streaming.slowing(step) for step in range(1, len(rates) + 1)]
        assert stream.n_steps == len(rates) > 2
        np.testing.assert_allclose(rates, expected, rtol=1e-12)

    def test_impossible_steps_are_tried_again_at_half_the_rate(self, monkeypatch):
        data, model = line_rows(64), Line(jiggle=0.1)
        stream = Stream(model, generator())
        before = deepcopy(model.state_dict())
        real, steps = Stepper.step, []

        def fragile(stepper, batch, rate):
            steps.append(rate)
            if len(steps) == 2 and rate * stepper.factor > 0.3 * 2 * SETTINGS.learning_rate / streaming.WARM_UP_STEPS:
                steps.clear()
                raise Failure("too fast", [0])
            return real(stepper, batch, rate)

        monkeypatch.setattr(Stepper, "step", fragile)
        stream(data, SETTINGS)
        assert stream.rate == 0.25 and stream.n_steps == 4
        monkeypatch.setattr(Stepper, "step", lambda *args: (_ for _ in ()).throw(never))
        never, state = Failure("never", [0], np.linalg.LinAlgError("never")), deepcopy(model.state_dict())
        with pytest.raises(np.linalg.LinAlgError, match="never"):
            stream(data, SETTINGS)
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        assert any(not torch.equal(before[name], value) for name, value in state.items())
        assert stream.rate == 0.25 and stream.n_steps == 4 and stream.n_seen == 64


@pytest.mark.parametrize("family", [AVDGPRegressor, SOLVEGPRegressor])
def test_a_small_chunk_keeps_a_base_of_many_rows(family):
    X, y = make_friedman1(700, noise=1.0, random_state=0)
    options = {"max_iter": 20, "n_estimators": 1, "random_state": 0}
    model = family(**options).fit(X[:600], y[:600])
    weight, before = model.base_weight_, model.predict_dist(X[600:]).logpdf(y[600:]).mean()
    model.partial_fit(X[600:630], y[600:630])
    after = model.predict_dist(X[630:]).logpdf(y[630:]).mean()
    assert model.base_weight_ == pytest.approx(weight)
    assert after > before - 0.3  # members alone lose 0.8 after a few passes


def test_a_small_chunk_drops_a_base_of_few_rows():
    X, y = make_friedman1(80, noise=1.0, random_state=0)
    model = SOLVEGPRegressor(random_state=0).partial_fit(X[:60], y[:60])
    assert model.base_weight_ > 0
    assert model.partial_fit(X[60:], y[60:]).base_weight_ == 0


def test_the_base_learns_from_a_chunk_in_parts(monkeypatch):
    X, y = make_friedman1(400, noise=1.0, random_state=0)
    predictions = []
    for numbers in (conditioning.CHUNK_NUMBERS, 5000):
        monkeypatch.setattr(conditioning, "CHUNK_NUMBERS", numbers)
        model = SOLVEGPRegressor(random_state=0, max_iter=2).partial_fit(X[:200], y[:200]).partial_fit(X[200:], y[200:])
        predictions.append(model.predict(X))
    np.testing.assert_allclose(*predictions, rtol=1e-6)


def test_rows_that_come_again_judge_nothing():
    X, y = make_friedman1(400, noise=1.0, random_state=0)
    model = SOLVEGPRegressor(random_state=0, max_iter=2).partial_fit(X[:200], y[:200]).partial_fit(X[200:], y[200:])
    weight, noise = model.base_weight_, predictor_of(model).blend.likelihood.noise_variance()
    base = deepcopy(predictor_of(model).blend.base)
    learn(model, X[200:], y[200:], None, 400, new=False)
    assert model.base_weight_ == weight
    assert predictor_of(model).blend.likelihood.noise_variance() == noise
    for now, then in zip(predictor_of(model).blend.base.parameters(), base.parameters(), strict=True):
        torch.testing.assert_close(now, then)


@pytest.mark.parametrize("n_later", [60, 50, 10])
def test_the_base_learns_from_each_later_chunk(n_later, monkeypatch):
    """In closed form: a new base where the number of rows doubles, the same one, and where too few rows judge."""
    rng = np.random.RandomState(0)
    monkeypatch.setattr(streamed_base, "FEWEST_LEARNT", 40)
    X = rng.rand(300, 1)
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.randn(300)
    model = SOLVEGPRegressor(10, 0, max_iter=1, n_estimators=1, random_state=0).partial_fit(X[:200], y[:200])
    before = predictor_of(model).blend
    later = slice(200, 200 + n_later)
    rows = torch.as_tensor(table_of(model).prepared(X[later]).astype(np.float64))
    earlier = before.of_base(rows).moments()
    model.partial_fit(X[later], y[later] + 1.0)  # a step that the base has not expected
    mean, variance = predictor_of(model).blend.of_base(rows).moments()
    assert (mean - earlier[0]).mean() > 0.03
    assert variance.mean() < earlier[1].mean()
