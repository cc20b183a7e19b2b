"""How long a fit takes and may take, and training that ends where it gains nothing."""

import math
import time
from copy import deepcopy
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import (
    ELBO,
    FAMILIES,
    REGRESSORS,
    Line,
    every_family,
    generator,
    make_data,
    name_of,
    predictor_of,
    settings,
    targets,
)
from sklearn.exceptions import ConvergenceWarning

from skdgp import DSDGPClassifier, DSDGPRegressor, SOLVEGPRegressor
from skdgp.inference import blending, validation
from skdgp.inference import ensemble as ensemble_module
from skdgp.inference.batches import Part
from skdgp.inference.blending import Gain
from skdgp.inference.clock import TRAINED, Clock
from skdgp.inference.ensemble import CHANCE, LITTLE, PROMISING, TRIAL, Training
from skdgp.inference.minibatches import one_cycle, schedule, train
from skdgp.inference.settings import History, Member
from skdgp.inference.steps import Stepper

CUT = pytest.mark.filterwarnings("ignore:The time was too short:sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def ticking(monkeypatch):
    """A clock that goes on by a hundredth of a second whenever somebody looks at it."""
    looks = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(looks) / 100)


class TestClock:
    def test_parts_add_up(self, ticking):
        clock = Clock()
        for _ in range(2):
            with clock.timing("base"):
                pass
        assert clock.seconds == {"base": pytest.approx(0.02)}
        assert clock.left == clock.end_of_training == np.inf

    def test_training_ends_before_all_of_the_time_is_over(self, ticking):
        clock = Clock(10.0)
        assert clock.end_of_training == clock.start + TRAINED * 10.0
        assert clock.left == pytest.approx(10.0 - 0.01)


class TestMaxTime:
    @pytest.mark.parametrize("tiny", FAMILIES, ids=name_of)
    def test_training_is_cut_and_says_so(self, tiny, wave, ticking):
        X, y = wave
        with pytest.warns(ConvergenceWarning, match=r"The time was too short, and training ended after \d+ of 5000 ep"):
            model = tiny(max_iter=5000, max_time=1.0).fit(X, targets(tiny, y))
        assert 0 < model.n_iter_ < 100
        assert np.isfinite(model.predict(X)).all() if tiny in REGRESSORS else model.score(X, targets(tiny, y)) > 0

    @every_family
    def test_nothing_is_cut_where_there_is_time(self, tiny, wave):
        X, y = wave
        with_limit, without = (tiny(max_time=limit).fit(X, targets(tiny, y)) for limit in (1e6, None))
        assert with_limit.n_iter_ == without.n_iter_
        # The schedule follows the share of the time, too, which is next to nothing.
        np.testing.assert_array_equal(with_limit.predict(X), without.predict(X))

    @CUT
    def test_neighbours_are_left_out_where_no_time_is_left(self, wave, ticking):
        with pytest.warns(ConvergenceWarning, match="neighbours were left out: raise max_time=0.05, or leave it out"):
            model = SOLVEGPRegressor(8, 0, n_neighbors=4, max_time=0.05).fit(*wave)
        assert model.neighbors_ is None and "neighbors" not in model.fit_times_

    def test_the_rate_falls_to_zero_by_the_end(self, ticking, monkeypatch):
        rates, step = [], Stepper.step
        monkeypatch.setattr(Stepper, "step", lambda self, batch, rate: rates.append(rate) or step(self, batch, rate))
        data = make_data(40, noise=1.0)
        plan = settings(ELBO, max_iter=10_000, batch_size=4, until=2.0)
        train([Member(Line(), Part(data), generator())], plan, lambda histories: plan.out_of_time())
        assert len(rates) < 200
        assert max(rates) == pytest.approx(plan.learning_rate, rel=0.01) and rates[-1] < 0.01 * plan.learning_rate

    def test_an_epoch_that_takes_too_long_ends_after_a_step(self):
        data = make_data(40, noise=1.0)
        plan = settings(ELBO, max_iter=10, batch_size=1, until=time.monotonic())
        [history] = train([Member(Line(), Part(data), generator())], plan, lambda histories: True)
        assert len(history.loss) == 1 and np.isfinite(history.loss[0])

    @pytest.mark.parametrize("max_time", [0, -1.0, "1 min"])
    def test_other_values_are_errors(self, wave, max_time):
        with pytest.raises(ValueError, match="max_time"):
            DSDGPRegressor(max_time=max_time).fit(*wave)


@every_family
def test_a_fit_tells_where_its_time_went(tiny, wave):
    X, y = wave
    options = {"base": "gp"} | ({"n_neighbors": 4} if tiny in REGRESSORS else {})
    seconds = dict(tiny(**options).fit(X, targets(tiny, y)).fit_times_)
    total = seconds.pop("total")
    assert {"base", "training", "judging"} <= seconds.keys()
    assert ("neighbors" in seconds) == (tiny in REGRESSORS)
    assert 0.5 * total < sum(seconds.values()) <= total


class TestTrial:
    def test_the_rate_has_two_cycles(self):
        assert [schedule(share, 0.0) for share in (0.0, 0.3, 1.0)] == [one_cycle(share) for share in (0.0, 0.3, 1.0)]
        shares = np.linspace(0, 1, 1001)
        rates = np.array([schedule(share, 0.2) for share in shares])
        assert rates[199] < 1e-3 and rates[-1] < 1e-6
        np.testing.assert_allclose(rates[:200:10], [one_cycle(share) for share in shares[:200:10] / 0.2])
        assert rates[:200].max() == pytest.approx(1.0, abs=0.01) and rates[200:].max() == pytest.approx(1.0, abs=0.01)

    def test_scores_before_the_end_of_the_trial_do_not_end_training(self):
        plan = settings(ELBO, n_iter_no_change=3, trial=5)
        history = History()
        for score in [0.0, 1.0, 2.0, 3.0, 9.0, 1.0, 2.0, 3.0]:
            history.add(0.0, score)
        assert not history.stalled(plan)
        for score in (2.5, 2.5, 2.5):
            history.add(0.0, score)
        assert history.stalled(plan)

    @pytest.mark.parametrize(
        ("family", "gain", "alone"),
        [
            (DSDGPRegressor, Gain(LITTLE, PROMISING, 1e6), True),
            (DSDGPRegressor, Gain(0.0, 0.0, 50), True),
            (DSDGPRegressor, Gain(2 * LITTLE, 0.0, 1e6), None),
            (DSDGPRegressor, Gain(0.0, 2 * PROMISING, 1e6), None),
            (DSDGPRegressor, Gain(CHANCE / 50, CHANCE / 50, 50), True),
            (DSDGPRegressor, Gain(1.01 * CHANCE / 50, 0.0, 50), None),
            (DSDGPRegressor, Gain(0.0, 1.01 * CHANCE / 50, 50), None),
            (DSDGPClassifier, Gain(LITTLE, 0.0, 1e6), True),
            (DSDGPClassifier, Gain(CHANCE / 50, 0.0, 50), False),
            (DSDGPClassifier, Gain(2 * LITTLE, 0.0, 1e6), None),
        ],
    )
    def test_ends_training_if_members_gain_hardly_anything(self, wave, monkeypatch, family, gain, alone):
        """``alone`` says whether the base then predicts without members; None if training goes on."""
        monkeypatch.setattr(ensemble_module.Validation, "gain_of_members", lambda *_: gain)
        blends, real = [], ensemble_module.Validation.blend

        def spy(*them, **options):
            blends.append(options["with_members"])
            return real(*them, **options)

        monkeypatch.setattr(ensemble_module.Validation, "blend", spy)
        X, y = wave
        model = family((2,), 4, n_estimators=2, max_iter=40, early_stopping=True, random_state=0)
        model.fit(X, y > 0 if family is DSDGPClassifier else y)
        assert round(TRIAL * 40) == 8 and model.n_iter_ == (40 if alone is None else 8)
        assert blends == [not alone]

    def test_rows_that_judge_count_once(self, wave, monkeypatch):
        """Members hold out different rows, but rows of the user are the same for all. Weights are no more rows."""
        X, y = wave
        gains, real = [], ensemble_module.Validation.gain_of_members
        monkeypatch.setattr(
            ensemble_module.Validation, "gain_of_members", lambda *them: gains.append(real(*them)) or gains[-1]
        )
        for sample_weight, given in [
            (None, {}),
            (np.full(len(y), 2.0), {}),
            (None, {"X_val": X[:30], "y_val": y[:30]}),
        ]:
            model = DSDGPRegressor((2,), 4, n_estimators=3, max_iter=20, validation_fraction=0.1, random_state=0)
            model.fit(X, y, sample_weight=sample_weight, **given)
        n_held_out = 3 * round(0.1 * len(y))
        assert [gain.n_rows for gain in gains] == pytest.approx([n_held_out, n_held_out, 30], abs=0.5)

    @every_family
    def test_the_gain_is_what_the_blend_has_beyond_the_base(self, tiny, wave, monkeypatch):
        X, y = wave
        gains, real = [], ensemble_module.Validation.gain_of_members

        def spy(self, models, foundation):
            before = deepcopy(foundation.base)  # a blend changes the base

            def score_of(models):
                return self.blend(models, replace(foundation, base=deepcopy(before)))[1].score

            gains.append((real(self, models, foundation).now, score_of))
            return Gain(0.0, 0.0, 1.0)  # so that the members stay as they are

        def by_held_out_rows(*args, all_rows=None, **options):  # which judge the base here, too
            return blending.blend(*args, **options)

        monkeypatch.setattr(validation, "blend", by_held_out_rows)
        monkeypatch.setattr(ensemble_module.Validation, "gain_of_members", spy)
        model = tiny(base="gp", max_iter=20).fit(X, targets(tiny, y))
        for gain, score_of in gains:
            together = score_of(predictor_of(model).models)
            monkeypatch.setattr(blending, "STARTS", (0.0,))
            monkeypatch.setattr(blending._Density, "best", blending._Density.without_members)
            alone = score_of(predictor_of(model).models)
            assert gain == pytest.approx(together - alone, abs=0.02)  # members end with their best epoch, not the last

    @pytest.mark.parametrize(("size", "share"), [(0.7, 0.3), (2.0, 0.2), (2.0, 0.9), (1.0, 1.0)])
    def test_what_members_may_add_is_that_of_the_best_weighted_mean(self, size, share):
        """``share`` of the base's error is in that of members, too; weights are tried one by one."""
        base, own = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 4000, 2)))
        deep = size * (share * base + (1 - share**2) ** 0.5 * own)
        weight = torch.from_numpy(np.random.default_rng(1).uniform(size=4000))
        weight = weight / weight.sum()
        y = torch.zeros(4000, 2).double()
        density = SimpleNamespace(y=y, numbers=lambda: y, h=deep, g=base, row_weight=weight)
        later = max(0.85, ((weight @ base.square()) / (weight @ deep.square())).sqrt().mean().item()) * deep
        errors = [weight @ (t * later + (1 - t) * base).square() for t in np.linspace(0, 1, 2001)]
        best = -0.5 * torch.stack(errors).amin(0).div(weight @ base.square()).log().sum()
        gain = blending._Density.gain_of_smaller_errors(density, 0.85)
        assert gain == pytest.approx(best.item(), abs=0.01) and (gain > 0 or share > 0.8)
        density.h = 4 * base + own  # too far behind
        assert blending._Density.gain_of_smaller_errors(density, 0.85) == 0
        density.h = -base  # a correlation that counts as none
        assert blending._Density.gain_of_smaller_errors(density, 0.85) == pytest.approx(math.log(2), abs=0.01)

    def test_changes_nothing_in_what_is_decided_later(self, wave, monkeypatch):
        """The trial judges copies: members and base are afterwards as if it had not judged."""
        X, y = wave
        options = {"n_estimators": 2, "max_iter": 20, "n_neighbors": 0, "random_state": 0}
        found, judge, much = [], Training._gain, Gain(1.0, 1.0, 100.0)
        for verdict in (lambda *them: (judge(*them), much)[1], lambda *_: much):
            monkeypatch.setattr(Training, "_gain", verdict)
            found.append(DSDGPRegressor((2,), 4, **options).fit(X, y).predict(X))
        np.testing.assert_array_equal(*found)

    @pytest.mark.parametrize(
        "options", [{"base": None}, {"early_stopping": False}, {"max_iter": 10}, {"max_time": 1e6}]
    )
    def test_is_left_out_where_nothing_judges_or_epochs_are_few(self, wave, monkeypatch, options):
        monkeypatch.setattr(Training, "_gain", lambda *_: pytest.fail("there was a trial"))
        params = {"max_iter": 24, "n_estimators": 1, "n_neighbors": 0, "random_state": 0}
        DSDGPRegressor((2,), 4, **(params | options)).fit(*wave)

    def test_members_that_no_rows_can_judge_are_hardly_trained(self):
        X = np.linspace(0, 3, 15)[:, None]
        with pytest.warns(UserWarning, match="No rows have judged the members"):
            model = DSDGPRegressor(max_iter=50, random_state=0).fit(X, np.sin(X[:, 0]))
        assert model.n_iter_ == 10
        assert torch.equal(model._learnt.predictor.blend.weight, torch.zeros(1, dtype=torch.float64))
