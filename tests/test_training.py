"""The training loop, on models small enough to know what it must do."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import ELBO, PEAK, REGRESSORS, Line, any_options, climb, generator, make_data, name_of, normal, settings
from sklearn.gaussian_process.kernels import DotProduct

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.estimators._parameters import method_of
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference.batches import Batch, Part
from skdgp.inference.calibration import recalibrate
from skdgp.inference.minibatches import WARM_UP, WARM_UP_FROM, one_cycle, train
from skdgp.inference.objectives import OBJECTIVES, elbo
from skdgp.inference.plan import Plan
from skdgp.inference.retries import MAX_RETRIES
from skdgp.inference.scoring import mean_log_density
from skdgp.inference.settings import History, Member, OneByOne
from skdgp.inference.steps import Failure, Stepper
from skdgp.methods import SOLVEGP


class Recorder:
    """An objective that keeps the targets it sees and, in chosen calls, misbehaves."""

    def __init__(self, objective=climb, misbehave=None, calls=()):
        self.objective, self.misbehave, self.calls = objective, misbehave, calls
        self.linear = objective.linear
        self.seen = []

    def value(self, marginals, likelihood, y, row_weight, kl_weight):
        self.seen.append(y[:, 0])
        value = self.objective.value(marginals, likelihood, y, row_weight, kl_weight)
        return self.misbehave(value) if len(self.seen) - 1 in self.calls else value


def become_nan(value):
    return value * math.nan


def become_infinite(value):
    return value + math.inf


def spoil_gradient(value):
    """The value stays finite: only the parameters show what the step has done to them."""
    value.register_hook(lambda gradient: gradient * math.nan)
    return value


def fail_to_factorise(value):
    raise np.linalg.LinAlgError("no factor")


def member_of(model, data, held_out=None, seed=0):
    return Member(model, Part(data), generator(seed), None if held_out is None else Part(held_out))


def run(model, data, options, held_out=None, seed=0, on_epoch=None):
    watch = [] if on_epoch is None else [lambda histories: on_epoch(histories[0])]
    [history] = train([member_of(model, data, held_out, seed)], options, *watch)
    return history


@pytest.mark.parametrize(
    ("n_rows", "batch_size", "n_batches"), [(17, 5, 4), (16, 4, 4), (9, 8, 2), (5, 8, 1), (3, 1, 3)]
)
def test_an_epoch_visits_every_row_once_in_batches_of_equal_size(n_rows, batch_size, n_batches):
    data, objective = make_data(n_rows, noise=1.0), Recorder()
    run(Line(), data, settings(objective, max_iter=3, batch_size=batch_size))
    assert len(objective.seen) == 3 * n_batches
    epochs = [objective.seen[i * n_batches : (i + 1) * n_batches] for i in range(3)]
    for epoch in epochs:
        sizes = [len(batch) for batch in epoch]
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        assert torch.equal(torch.cat(epoch).sort().values, data.y[:, 0].sort().values)
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))


def test_columns_of_a_batch_stay_together():
    column = torch.arange(6.0)
    batch = Batch(column[:, None], 10 * column[:, None], 100 * column)
    part = batch.rows(torch.tensor([4, 1])).to("cpu", torch.float64)
    assert len(part) == 2
    assert (part.X.tolist(), part.y.tolist(), part.weight.tolist()) == ([[4], [1]], [[40], [10]], [400, 100])
    assert part.X.dtype == part.y.dtype == part.weight.dtype == torch.float64


def test_rows_to_score_are_spread_over_all(monkeypatch):
    data = make_data(n_rows=10, noise=1.0)
    assert data.spread(10) is data
    assert torch.equal(data.spread(4).y, data.y[[0, 2, 5, 7]])
    monkeypatch.setattr("skdgp.inference.scoring.SCORED_ROWS", 4)
    model = Line()
    seen = []
    model.register_forward_pre_hook(lambda module, arguments: seen.append(len(arguments[0])))
    run(model, make_data(), settings(max_iter=1), held_out=data)
    assert seen[-1] == 4


def test_one_cycle():
    assert one_cycle(0.0) == pytest.approx(WARM_UP_FROM)
    assert one_cycle(WARM_UP) == pytest.approx(1.0)
    assert one_cycle(WARM_UP - 1e-9) == pytest.approx(1.0)
    assert one_cycle(1.0) == pytest.approx(0.0, abs=1e-12)
    rates = np.array([one_cycle(progress) for progress in np.linspace(0, 1, 101)])
    turn = round(100 * WARM_UP)
    assert (np.diff(rates[: turn + 1]) > 0).all()
    assert (np.diff(rates[turn:]) < 0).all()


@pytest.mark.parametrize("batch_size", [8, 4])
def test_steps_follow_the_cycle(batch_size):
    model, options = Line(), settings(batch_size=batch_size)
    run(model, make_data(), options)
    n_steps = 8 * 8 // batch_size
    expected = PEAK * sum(one_cycle(step / n_steps) for step in range(n_steps))
    assert model.slope.item() == pytest.approx(expected, rel=1e-6)


def test_the_maximum_of_the_objective_is_found():
    data, model = make_data(64, slope=2.0, noise=0.5), Line(slope=1.5)
    history = run(model, data, settings(ELBO, max_iter=200, batch_size=64))
    assert model.slope.item() == pytest.approx(data.y.mean().item(), abs=1e-2)
    assert model.likelihood.variance.item() == pytest.approx(data.y.var(correction=0).item(), rel=1e-2)
    assert len(history.loss) == history.best_epoch == 200
    assert history.score == []
    best = elbo(model(data.X), model.likelihood, data.y, data.weight, 0.0).item()
    assert history.loss[-1] == pytest.approx(-best, abs=1e-4)
    assert history.loss[0] > history.loss[-1]


def test_the_loss_of_an_epoch_is_a_mean_over_rows():
    data = make_data(5, noise=1.0)
    history = run(Line(slope=0.5), data, settings(ELBO, max_iter=1, batch_size=2, learning_rate=1e-12))
    model = Line(slope=0.5)
    expected = -elbo(model(data.X), model.likelihood, data.y, data.weight, 0.0).item()
    assert history.loss == [pytest.approx(expected, rel=1e-9)]


def test_the_weights_of_the_best_epoch_are_restored():
    """The slope climbs past the one that the held-out rows want."""
    model, slopes = Line(), []
    history = run(
        model,
        make_data(),
        settings(max_iter=20),
        held_out=make_data(slope=0.5),
        on_epoch=lambda history: slopes.append(model.slope.item()),
    )
    best = int(np.argmax(history.score))
    assert 0 < best < 19
    assert best == np.argmin(np.abs(np.array(slopes) - 0.5))
    assert history.best_epoch == best + 1
    assert model.slope.item() == slopes[best] != slopes[-1]


@pytest.mark.parametrize("patience", [1, 3])
def test_training_stops_where_the_score_stalls(patience):
    history = run(Line(), make_data(), settings(max_iter=20, n_iter_no_change=patience), make_data(slope=0.5))
    assert len(history.loss) == len(history.score) == history.best_epoch + patience < 20


def test_every_improvement_counts():
    history = run(Line(), make_data(), settings(max_iter=20, n_iter_no_change=3), make_data(slope=100.0))
    assert len(history.loss) == history.best_epoch == 20


def test_a_callback_can_stop_training():
    lengths = []

    def stop(history):
        lengths.append(len(history.loss))
        return len(history.loss) == 3

    assert len(run(Line(), make_data(), settings(), on_epoch=stop).loss) == 3
    assert lengths == [1, 2, 3]


failures = pytest.mark.parametrize("misbehave", [become_nan, become_infinite, fail_to_factorise])


@failures
@pytest.mark.parametrize("failing", [0, 1, 4, 15])
def test_a_failed_epoch_is_undone_and_repeated_at_half_the_rate(misbehave, failing):
    model, objective = Line(), Recorder(climb, misbehave, calls=[failing])
    history = run(model, make_data(), settings(objective, batch_size=4))
    steps = PEAK * np.array([one_cycle(step / 16) for step in range(16)])
    steps[failing - failing % 2 :] /= 2  # two steps are an epoch
    assert model.slope.item() == pytest.approx(steps.sum(), rel=1e-6)
    assert len(history.loss) == 8
    assert np.isfinite(history.loss).all()
    assert len(objective.seen) == 16 + failing % 2 + 1


@pytest.mark.parametrize("failing", [0, 3, 7])
def test_a_step_to_nan_is_undone_and_repeated_at_half_the_rate(failing):
    model = Line()
    history = run(model, make_data(), settings(Recorder(climb, spoil_gradient, calls=[failing])))
    steps = PEAK * np.array([one_cycle(step / 8) for step in range(8)])
    steps[failing:] /= 2
    assert model.slope.item() == pytest.approx(steps.sum(), rel=1e-6)
    assert len(history.loss) == 8


@failures
def test_moments_of_the_optimiser_are_undone_too(misbehave):
    """All rows are alike, so a failure in the first epoch must leave a run at half the rate."""
    failed, unharmed = Line(), Line()
    run(failed, make_data(), settings(Recorder(ELBO, misbehave, calls=[1]), batch_size=4))
    run(unharmed, make_data(), settings(ELBO, batch_size=4, learning_rate=PEAK / 2))
    torch.testing.assert_close(failed.state_dict(), unharmed.state_dict())


def test_a_failure_on_held_out_rows_is_undone_too(monkeypatch):
    calls = []

    def fail_once(stepper, data, batch_size):
        calls.append(stepper.model.slope.item())
        if len(calls) == 2:
            raise Failure("no density", [0])
        return mean_log_density(stepper, data, batch_size)

    monkeypatch.setattr("skdgp.inference.minibatches.mean_log_density", fail_once)
    history = run(Line(), make_data(), settings(), make_data(slope=100.0))
    assert len(history.score) == len(history.loss) == 8
    assert calls[2] - calls[0] == pytest.approx((calls[1] - calls[0]) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("misbehave", "error", "message"),
    [
        (become_nan, FloatingPointError, "training objective is nan before the first step.*kernel"),
        (become_infinite, FloatingPointError, "training objective is inf before the first step"),
        (fail_to_factorise, np.linalg.LinAlgError, "no factor"),
        (spoil_gradient, FloatingPointError, "the parameter slope infinite or NaN.*learning_rate"),
    ],
)
def test_error_where_every_retry_fails(misbehave, error, message):
    objective = Recorder(climb, misbehave, calls=range(1000))
    with pytest.raises(error, match=message):
        run(Line(), make_data(), settings(objective))
    assert len(objective.seen) == MAX_RETRIES + 1


def test_steps_are_blamed_only_where_there_were_some():
    objective = Recorder(climb, become_nan, calls=range(1, 1000))
    with pytest.raises(FloatingPointError, match=r"training objective became nan.*learning_rate"):
        run(Line(), make_data(), settings(objective))


@pytest.mark.parametrize("likelihood", ["poisson", "gamma", "heteroskedastic"])
@pytest.mark.parametrize("estimator", [AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor])
def test_error_where_the_variance_of_a_kernel_is_too_large_at_first(estimator, likelihood):
    X = np.random.default_rng(0).uniform(-1, 1, (30, 1)) + 1e5
    model = estimator(kernel=1.0 * DotProduct(), likelihood=likelihood, max_iter=2, n_estimators=1, base=None)
    with pytest.raises(FloatingPointError, match=r"is -inf before the first step.*move the features of a DotProduct"):
        model.fit(X, np.arange(1.0, 31.0))


def test_error_where_held_out_rows_have_no_density():
    held_out = make_data(slope=math.inf)
    with pytest.raises(FloatingPointError, match=r"held-out log density became -inf.*learning_rate"):
        run(Line(), make_data(), settings(), held_out)


def test_equal_generators_make_equal_models():
    data, state = make_data(16, noise=1.0), torch.random.get_rng_state()
    models = [Line(jiggle=0.5) for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        run(model, data, settings(ELBO, batch_size=4), seed=seed)
    first, same, other = (model.slope.item() for model in models)
    assert first == same != other
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_mean_log_density_is_a_weighted_mean(batch_size):
    data, model = make_data(7, noise=1.0), Line(slope=0.5)
    data = replace(data, weight=torch.arange(7).double())
    expected = np.average(
        torch.distributions.Normal(0.5, 0.5).log_prob(data.y[:, 0]).numpy(), weights=data.weight.numpy()
    )
    stepper = Stepper([member_of(model, data)], settings())
    assert mean_log_density(stepper, data, batch_size) == [pytest.approx(expected, rel=1e-6)]


def test_a_full_posterior_that_has_diverged_is_named_by_its_score():
    data = replace(make_data(n_rows=9, noise=1.0), X=normal(9, 1))
    model = SOLVEGP(3, 0).build(data.X.float(), Gaussian(1), generator()).double()
    with torch.no_grad():
        model.layers[0].q.below.fill_(math.nan)
    stepper = Stepper([member_of(model, data)], settings())
    with pytest.raises(Failure, match="held-out log density became nan"):
        mean_log_density(stepper, data, 9)


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_recalibration_finds_the_noise_of_rows_not_learnt_from(noise):
    """Two models judge 300 and 100 rows; the factor is the one of all of them together."""
    models = [Line(slope=1.0, noise=0.25), Line(slope=3.0, noise=0.25)]
    held_out = [make_data(300, 1.0, noise, seed=1), make_data(100, 3.0, 1.5 * noise, seed=2)]
    factor = math.exp(recalibrate(models, held_out, batch_size=64))
    residuals = torch.cat([held_out[0].y - 1.0, held_out[1].y - 3.0])
    assert factor == pytest.approx(residuals.square().mean().item() / 0.25, rel=0.02)
    for model in models:
        assert model.likelihood.variance.item() == pytest.approx(0.25 * factor, rel=1e-5)
        assert model.likelihood.log_excess.requires_grad
    assert [model.slope.item() for model in models] == [1.0, 3.0]


def test_recalibration_takes_weights_for_repeated_rows():
    def models():
        return [Line(slope=1.0, noise=0.25), Line(slope=3.0, noise=0.25)]

    first, second = make_data(300, 1.0, 0.5, seed=1), make_data(100, 3.0, 1.5, seed=2)
    tripled = replace(second, weight=3 * second.weight), second.rows(torch.arange(100).repeat(3))
    found = [recalibrate(models(), (first, rows), batch_size=64) for rows in tripled]
    assert found[0] == pytest.approx(found[1], abs=1e-9)
    assert found[0] > recalibrate(models(), (first, second), batch_size=64) + 0.2


def test_recalibration_counts_copies_once_against_what_was_known_before():
    """Three copies of each held-out row, or rows of weight three, outweigh the earlier noise no more than the rows."""
    rows = make_data(50, 1.0, 1.5, seed=1)
    rows = replace(rows, X=rows.X + 0.01 * torch.arange(50)[:, None])
    several = (rows, rows.rows(torch.arange(50).repeat(3)), replace(rows, weight=3 * rows.weight))
    found = [recalibrate([Line(slope=1.0, noise=0.25)], (part,), batch_size=64, n_earlier=20) for part in several]
    np.testing.assert_allclose(found, found[0], atol=1e-9)
    assert found[0] > 0.3


def test_recalibration_weighs_what_was_known_before_alike_however_many_models_there_are():
    """Each model has as many earlier rows. Ten models that say the same find what one of them finds."""
    rows = make_data(50, 1.0, 1.5, seed=1)
    rows = replace(rows, X=rows.X + 0.01 * torch.arange(50)[:, None])
    found = [
        recalibrate([Line(slope=1.0, noise=0.25) for _ in range(number)], number * [rows], batch_size=64, n_earlier=40)
        for number in (1, 10)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_recalibration_keeps_the_ratios_between_models():
    models = [Line(slope=1.0, noise=0.04), Line(slope=1.0, noise=0.16)]
    held_out = [make_data(300, 1.0, 0.6, seed=1), make_data(300, 1.0, 1.2, seed=2)]
    recalibrate(models, held_out, batch_size=64)
    first, second = (model.likelihood.variance.item() for model in models)
    assert second / first == pytest.approx(4.0)
    assert first == pytest.approx(0.36, rel=0.1)


@pytest.mark.parametrize(("objective", "expected"), [("elbo", 1), ("predictive", 4)])
@pytest.mark.parametrize("options", [{"propagation": "monte_carlo"}, {"rule": "ar1"}], ids=["dsdgp", "avdgp"])
def test_objectives_that_are_not_linear_see_the_whole_mixture(wave, monkeypatch, objective, expected, options):
    """The logarithm of a mean over one sample would be no mixture at all."""
    seen, real = [], OBJECTIVES[objective].value

    def spy(marginals, *others):
        seen.append(len(marginals.mean))
        return real(marginals, *others)

    monkeypatch.setitem(OBJECTIVES, objective, OBJECTIVES[objective]._replace(value=spy))
    tiny = REGRESSORS[1] if "propagation" in options else REGRESSORS[0]
    tiny(objective=objective, n_samples=4, max_iter=1, **options).fit(*wave)
    assert set(seen) == {expected}


@any_options
@pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
def test_the_penalty_is_weighed_against_the_rows_that_are_learnt_from(tiny, wave, monkeypatch):
    X, y = wave
    prices, start = [], Stepper.__init__

    def spy(self, members, *arguments, **options):
        start(self, members, *arguments, **options)
        prices.extend(np.broadcast_to(self.kl_weight, len(members)))

    monkeypatch.setattr(Stepper, "__init__", spy)
    model = tiny(beta=3.0, n_estimators=2, max_iter=1, validation_fraction=0.25)
    model.fit(X, y)
    model.set_params(early_stopping=False).fit(X, y)
    model.fit(X, y, X_val=X[:30], y_val=y[:30])
    model.fit(X, y, sample_weight=np.full(120, 2.0))  # 120 rows still say how large the noise is
    np.testing.assert_allclose(prices, np.repeat([3 / 90, 3 / 120, 3 / 120, 3 / 120], 2))
    assert method_of(model).plan(120) == method_of(model).plan(120, held_out=True)  # budgets are those of all rows


@pytest.mark.parametrize(("trainer", "n_epochs"), [(train, 60), (OneByOne(lambda member, *_: History()), 180)])
def test_epochs_add_up_where_members_are_trained_one_after_another(trainer, n_epochs):
    assert Plan(trainer, settings(max_iter=60), torch.float32, "own").n_epochs(3) == n_epochs
