"""Minibatches between posteriors in closed form."""

import warnings

import numpy as np
import pytest
import torch
from helpers import ELBO, generator, settings
from sklearn.gaussian_process.kernels import Matern
from test_collapsed import N_ROWS, make_data, make_model

from skdgp import SOLVEGPRegressor
from skdgp.inference import minibatches, solved, starts
from skdgp.inference.batches import Part
from skdgp.inference.collapsed import set_posteriors
from skdgp.inference.evidence import log_evidence, observations
from skdgp.inference.objectives import elbo
from skdgp.inference.settings import Member
from skdgp.methods import SOLVEGPRegression

PLAN = settings(ELBO, beta=0.3, max_iter=4, batch_size=10, learning_rate=0.02)


def slopes(model, data, beta):
    """The steepest slope of E log p(y | f) − β KL along parameters of the posteriors."""
    objective = elbo(model(data.X), model.likelihood, data.y, data.weight, beta / len(data))
    q = [parameter for posterior in model.layers[0].posteriors for parameter in posterior.parameters()]
    return max(gradient.abs().max().item() for gradient in torch.autograd.grad(objective, q))


def evidence_of(model, data):
    return log_evidence(model.layers[0].kernel, model.likelihood.variance, observations(data))


def kernel_of(model):
    return [parameter.detach().clone() for parameter in model.layers[0].kernel.parameters()]


@pytest.mark.parametrize("beta", [1.0, 0.1, 3.0])
@pytest.mark.parametrize("n_orthogonal", [0, 5])
def test_posteriors_are_the_optimum_at_any_weight_of_the_penalty(n_orthogonal, beta):
    """That of v is the optimum given u's, and the other way round; so there is no slope at all."""
    data = make_data(2, weighted=True)
    model = make_model(data, n_orthogonal, jitter=1e-6)
    assert slopes(model, data, beta) > 1e-2
    set_posteriors(model, data, beta)
    assert slopes(model, data, beta) < 1e-6


def test_targets_without_noise_do_not_lead_the_start_astray():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(40, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    model = SOLVEGPRegressor(8, 4, method="svi", max_iter=20, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_starts_where_the_evidence_is_high_and_ends_at_the_optimum(dtype):
    data = make_data()
    model = make_model(data, jitter=1e-6).to(dtype)
    rows = data.to("cpu", dtype)
    before = evidence_of(model.double(), data).item()
    model.to(dtype)
    [history] = solved.train([Member(model, Part(rows), generator())], PLAN)
    solved.solve(model, rows, PLAN)
    assert len(history.loss) == 4 and history.loss[0] < history.loss[-1] + 1.0
    model.double()
    assert evidence_of(model, data).item() > before + 1.0
    assert slopes(model, data, 0.3) < (1e-3 if dtype == torch.float32 else 1e-6)


def test_is_ahead_of_minibatches_alone():
    data, losses = make_data(), {}
    for train in (solved.train, minibatches.train):
        model = make_model(data, jitter=1e-6)
        [history] = train([Member(model, Part(data), generator())], PLAN)
        losses[train] = history.loss
    assert max(losses[solved.train]) < min(losses[minibatches.train])


def test_a_model_that_has_learnt_goes_on_from_what_it_knows():
    data = make_data()
    model = make_model(data, jitter=1e-6)
    set_posteriors(model, data)
    before = kernel_of(model)
    solved.train([Member(model, Part(data), generator())], settings(ELBO, max_iter=1, learning_rate=1e-9))
    torch.testing.assert_close(kernel_of(model), before, rtol=0.0, atol=1e-6)


def test_what_cannot_be_solved_is_left_to_minibatches(monkeypatch):
    def fail(*_, **__):
        raise np.linalg.LinAlgError("never")

    monkeypatch.setattr(solved, "set_posteriors", fail)
    monkeypatch.setattr(starts, "most_likely", fail)
    data = make_data()
    found = []
    for train in (solved.train, minibatches.train):
        model = make_model(data, jitter=1e-6)
        with warnings.catch_warnings(record=True, action="always") as said:
            train([Member(model, Part(data), generator())], PLAN)
        texts = " ".join(str(each.message) for each in said)
        for text in ("remove or transform these", "use fewer of them, or set dtype='float64'"):
            assert (text in texts) == (train is solved.train)
        found.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(*found)


def test_solves_every_few_epochs(monkeypatch):
    calls, real = [], solved.set_posteriors
    monkeypatch.setattr(solved, "set_posteriors", lambda *args, **options: calls.append(args) or real(*args, **options))
    data = make_data()
    for n_models in (1, 2):
        calls.clear()
        members = [Member(make_model(data, jitter=1e-6), Part(data), generator()) for _ in range(n_models)]
        solved.train(members, settings(ELBO, max_iter=7, batch_size=N_ROWS))
        assert len(calls) == n_models * (1 + 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_solves_once_more_in_the_precision_of_predictions(wave, monkeypatch, dtype):
    precisions, real = [], solved.set_posteriors

    def spy(model, rows, beta, **options):
        precisions.append(rows.X.dtype)
        assert beta == pytest.approx(0.1)  # also where some of the rows are held out
        real(model, rows, beta, **options)

    monkeypatch.setattr(solved, "set_posteriors", spy)
    X, y = wave[0].astype(dtype), wave[1]
    SOLVEGPRegressor(10, 6, method="svi", early_stopping=True, max_iter=4, n_estimators=2, random_state=0).fit(X, y)
    expected = getattr(torch, np.dtype(dtype).name)
    assert precisions == 4 * [torch.float32] + 2 * [expected]


@pytest.mark.parametrize(
    ("parameters", "n_rows", "trainer"),
    [
        ({}, 5000, solved.train),
        ({"beta": 0.5}, 5000, solved.train),
        ({"method": "svi"}, 100, solved.train),
        ({}, 200_000, minibatches.train),
        ({"covariance": "diag"}, 5000, minibatches.train),
        ({"objective": "predictive"}, 5000, minibatches.train),
    ],
)
def test_who_is_solved(parameters, n_rows, trainer):
    assert SOLVEGPRegression(**parameters).plan(n_rows).trainer is trainer


def test_corrections_save_steps():
    """A base and members start where the evidence is highest, and neighbours add what both miss."""

    def n_steps(n_rows, corrected=True, **parameters):
        settings = SOLVEGPRegression(**parameters).plan(n_rows, corrected=corrected).settings
        return settings.max_iter * n_rows / settings.batch_size

    for n_rows, most in ((3000, 150), (7000, 125), (20_000, 250), (40_000, 330)):
        assert 90 < n_steps(n_rows) < most
        assert n_steps(n_rows, corrected=False) > 450
        assert n_steps(n_rows, max_iter=30) == n_steps(n_rows, corrected=False, max_iter=30)  # as the user says
        others = {"covariance": "diag"}  # which nobody can solve
        assert n_steps(n_rows, **others) == n_steps(n_rows, corrected=False, **others) > 900
    collapsed = [SOLVEGPRegression().plan(500, corrected=corrected).settings.max_iter for corrected in (False, True)]
    assert collapsed == [40, 12]


@pytest.mark.parametrize(
    ("options", "known", "corrected"),
    [
        ({}, {}, True),
        ({"n_neighbors": 8}, {}, True),
        ({"n_neighbors": 0}, {}, False),
        ({"base": None}, {}, False),
        ({"kernel": Matern()}, {}, False),
        ({}, {"noise_variance": 0.01}, False),  # neighbours are for noise that is learnt
    ],
)
def test_estimators_say_whether_members_are_corrected(options, known, corrected, wave, monkeypatch):
    """Without neighbours members alone find what the base misses, which takes all their steps."""
    plan, asked = SOLVEGPRegression.plan, []

    def spy(self, n_rows, n_chunk=None, **given):
        asked.append(given["corrected"])
        return plan(self, n_rows, n_chunk, **given)

    monkeypatch.setattr(SOLVEGPRegression, "plan", spy)
    SOLVEGPRegressor(10, 6, max_iter=1, random_state=0, **options).fit(*wave, **known)
    assert asked == [corrected]
