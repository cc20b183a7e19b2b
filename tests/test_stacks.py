"""Models that are trained as one: what each computes and becomes is what it would alone."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers import ELBO, PEAK, Line, climb, generator, make_data, normal, own_kernels, settings

from skdgp.gp.classes import Bernoulli, RobustMax
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference import minibatches
from skdgp.inference.batches import Batch, Part, side_by_side
from skdgp.inference.minibatches import train
from skdgp.inference.objectives import OBJECTIVES, Objective
from skdgp.inference.settings import Member
from skdgp.inference.stacks import can_be_stacked, stack
from skdgp.inference.steps import Stepper
from skdgp.methods import AVDGP, DSDGP, SOLVEGP

N_MEMBERS, N_ROWS, N_FEATURES = 3, 12, 2

SMALL = {"n_samples": 3, "hidden_dims": (2,), "n_inducing": 4}

METHODS = {
    "ar2p": AVDGP(**SMALL, network_width=6),
    "ar1, full": AVDGP(**SMALL, network_width=6, rule="ar1", covariance="full"),
    "ar2, ard, by LAPACK": AVDGP(**SMALL | {"n_inducing": 50}, network_width=6, rule="ar2", ard=True),
    "plain, linear mean": AVDGP(**SMALL, network_width=6, covariance="diag_unwhitened", mean="linear"),
    "plain, full, one network": AVDGP(
        **SMALL, network_width=6, covariance="full_unwhitened", inducing_map="mlp", mean="identity"
    ),
    "global": DSDGP(**SMALL),
    "global, full, own kernels": own_kernels(
        DSDGP(**SMALL, propagation="quadrature", covariance="full", mean="linear")
    ),
    "orthogonal, plain": DSDGP(**SMALL, n_orthogonal=3, covariance="diag_unwhitened"),
    "orthogonal, plain, full": DSDGP(**SMALL, n_orthogonal=3, covariance="full_unwhitened", mean="zero"),
    "orthogonal, plain, full, own kernels": own_kernels(DSDGP(**SMALL, n_orthogonal=3, covariance="full_unwhitened")),
    "one layer": SOLVEGP(4, 3),
    "one layer, prior": SOLVEGP(4, 3, covariance="odvgp"),
}

LIKELIHOODS = {"gaussian": Gaussian(2), "bernoulli": Bernoulli(), "robust max": RobustMax(3)}


def make_models(method, likelihood):
    """Models of different seeds, away from where they start."""
    models = []
    for seed in range(N_MEMBERS):
        model = method.build(normal(40, N_FEATURES).float(), deepcopy(likelihood), generator(seed)).double()
        with torch.no_grad():
            for i, parameter in enumerate(model.parameters()):
                parameter.add_(0.1 * normal(*parameter.shape, seed=100 * seed + i) * parameter.requires_grad)
        models.append(model)
    return models


def make_rows(likelihood):
    """Rows of its own for every member."""
    y = normal(N_MEMBERS, N_ROWS, likelihood.n_outputs, seed=1)
    if not isinstance(likelihood, Gaussian):
        y = (y[..., :1] > 0).double()
    weight = 1.0 + normal(N_MEMBERS, N_ROWS, seed=2).abs()
    return Batch(normal(N_MEMBERS, N_ROWS, N_FEATURES), y, weight)


def rows_of(rows, number):
    return Batch(rows.X[number], rows.y[number], rows.weight[number])


class TestStack:
    @pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
    @pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
    def test_objectives_and_gradients_are_those_of_the_members(self, method, likelihood, objective):
        models, rows = make_models(method, likelihood), make_rows(likelihood)
        whole = stack(models)

        def learnt(model):
            return [parameter for parameter in model.parameters() if parameter.requires_grad]

        def value(model, rows):
            return objective.value(model(rows.X), model.likelihood, rows.y, rows.weight, 0.1)

        together = value(whole, rows)
        alone = [value(model, rows_of(rows, number)) for number, model in enumerate(models)]
        torch.testing.assert_close(together, torch.stack(alone), rtol=1e-9, atol=1e-9)
        gradients = torch.autograd.grad(together.sum(), learnt(whole))
        expected = [torch.autograd.grad(each, learnt(model)) for each, model in zip(alone, models, strict=True)]
        for found, parts in zip(gradients, zip(*expected, strict=True), strict=True):
            size = found.abs().max().item()
            torch.testing.assert_close(found, torch.stack(parts), rtol=0, atol=1e-7 * max(size, 1e-3))

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
    def test_frozen_ones_predict_alike(self, method):
        likelihood = LIKELIHOODS["gaussian"]
        whole, rows = stack(make_models(method, likelihood)), make_rows(likelihood)
        torch.testing.assert_close(whole.frozen()(rows.X).variance, whole(rows.X).variance, rtol=1e-8, atol=1e-10)

    @pytest.mark.parametrize("method", [METHODS["ar1, full"], METHODS["global"]], ids=["ar1", "monte_carlo"])
    @pytest.mark.parametrize("mixture", [True, False])
    def test_random_numbers_are_those_of_the_members(self, method, mixture):
        likelihood = LIKELIHOODS["gaussian"]
        models, rows = make_models(method, likelihood), make_rows(likelihood)
        sources = [generator(seed) for seed in range(N_MEMBERS)]
        together = stack(models)(rows.X, sources, mixture=mixture)
        for number, model in enumerate(models):
            alone = model(rows.X[number], generator(number), mixture=mixture)
            torch.testing.assert_close(together.mean[number], alone.mean, rtol=1e-9, atol=1e-9)

    def test_only_models_of_one_shape_and_of_this_package(self):
        class OwnKernel(StationaryKernel):
            pass

        same = make_models(METHODS["global"], Gaussian(1))
        assert can_be_stacked(same)
        wider = DSDGP(**SMALL | {"hidden_dims": (3,)}).build(normal(40, 2).float(), Gaussian(1), generator())
        assert not can_be_stacked([*same, wider])
        foreign = DSDGP(**SMALL, kernel=lambda *sizes, ard: OwnKernel("rbf", *sizes, ard=ard))
        assert not can_be_stacked(make_models(foreign, Gaussian(1)))


@pytest.fixture
def lines_may_be_stacked(monkeypatch):
    monkeypatch.setattr(minibatches, "can_be_stacked", lambda models: True)


def parts(data, n_members=N_MEMBERS, n_rows=8):
    """Members' own rows of a table, and rows that they hold out."""
    order = torch.arange(len(data))
    rolled = [order.roll(-2 * number) for number in range(n_members)]
    return [(Part(data, index[:n_rows]), Part(data, index[n_rows:])) for index in rolled]


def members_of(models, data, hold_out):
    pairs = zip(models, parts(data, len(models)), strict=True)
    return [
        Member(model, rows, generator(seed), held_out if hold_out else None)
        for seed, (model, (rows, held_out)) in enumerate(pairs)
    ]


def lines(slopes, **options):
    return [Line(slope, **options) for slope in slopes]


def slopes_of(models):
    return [model.slope.item() for model in models]


class TestTraining:
    @pytest.mark.parametrize("hold_out", [False, True])
    @pytest.mark.parametrize("batch_size", [3, 8])
    def test_members_become_what_they_would_alone(self, lines_may_be_stacked, hold_out, batch_size):
        data, options = make_data(12, noise=1.0), settings(ELBO, batch_size=batch_size, max_iter=20)
        together, alone = (lines([0.0, 2.0, -1.0], jiggle=0.5) for _ in range(2))
        found = train(members_of(together, data, hold_out), options)
        expected = [train([each], options)[0] for each in members_of(alone, data, hold_out)]
        assert slopes_of(together) == pytest.approx(slopes_of(alone), rel=1e-9)
        for history, other in zip(found, expected, strict=True):
            assert history.best_epoch == other.best_epoch
            assert history.loss == pytest.approx(other.loss, rel=1e-9)
            assert history.score == pytest.approx(other.score, rel=1e-9)

    def test_stalled_members_leave_the_others(self, lines_may_be_stacked):
        """The slope climbs past what held-out rows want, which differs."""
        column = torch.tensor([9.0, 9.0, 0.3]).double().repeat_interleave(4)[:, None]
        data = Batch(torch.ones_like(column), column, torch.ones(12).double())
        options = settings(climb, max_iter=20, n_iter_no_change=2)
        together, alone = (lines([0.0, 0.0, 0.0]) for _ in range(2))
        found = train(members_of(together, data, True), options)
        expected = [train([each], options)[0] for each in members_of(alone, data, True)]
        assert [len(each.loss) for each in found] == [len(each.loss) for each in expected]
        assert len({len(each.loss) for each in found}) > 1
        assert slopes_of(together) == pytest.approx(slopes_of(alone), rel=1e-9)

    @pytest.mark.parametrize("spoil", ["value", "gradient", "factor"])
    def test_a_member_that_fails_takes_no_other_with_it(self, lines_may_be_stacked, spoil):
        """It goes on at half the rate. What the others become is not changed."""
        calls = []

        def value(marginals, likelihood, y, row_weight, kl_weight):
            calls.append(None)
            result, mine = climb.value(marginals, likelihood, y, row_weight, kl_weight), torch.tensor([0.0, 1.0, 0.0])
            if len(calls) == 3:
                if spoil == "factor":
                    raise np.linalg.LinAlgError("no factor")
                if spoil == "value":
                    return torch.where(mine > 0, torch.nan, result)
                result.register_hook(lambda gradient: torch.where(mine > 0, torch.nan, gradient))
            return result

        class Fragile(Line):
            def forward(self, X, *args, **options):
                if X.dim() == 2 and self.slope > 0.99:  # asked alone
                    raise np.linalg.LinAlgError("no factor")
                return super().forward(X, *args, **options)

        models = [Fragile(slope) for slope in (0.0, 1.0, 0.5)]
        histories = train(members_of(models, make_data(12), False), settings(Objective(value, linear=True)))
        whole = lines([0.0])
        train(members_of(whole, make_data(12), False), settings(climb))
        [rise] = slopes_of(whole)
        gains = np.array(slopes_of(models)) - [0.0, 1.0, 0.5]
        np.testing.assert_allclose(gains[[0, 2]], rise, rtol=1e-6)
        assert 0 < gains[1] < rise - 0.1 * PEAK
        assert [len(each.loss) for each in histories] == [8, 8, 8]

    def test_a_slowed_member_keeps_its_rate_when_others_leave(self, lines_may_be_stacked):
        """The last member fails in its first step. The first one stalls and leaves: its held-out rows want no slope."""

        def failing_once(factor):
            steps = iter(range(1000))
            return Objective(lambda *args: climb.value(*args) * (1.0 if next(steps) else factor), linear=True)

        column = torch.tensor([9.0, 9.0, 0.3]).double().repeat_interleave(4)[:, None]
        data, options = Batch(torch.ones_like(column), column, torch.ones(12).double()), {"n_iter_no_change": 2}
        together, alone = (lines([0.0, 0.0]) for _ in range(2))
        found = train(
            members_of(together, data, True),
            settings(failing_once(torch.tensor([1.0, torch.nan])), max_iter=20, **options),
        )
        train(members_of(alone, data, True)[1:], settings(failing_once(torch.nan), max_iter=20, **options))
        assert len(found[0].loss) < len(found[1].loss)
        assert together[1].slope.item() == pytest.approx(alone[1].slope.item(), rel=1e-9)

    def test_error_where_a_member_fails_for_good(self, lines_may_be_stacked):
        def value(*args):
            return climb.value(*args) * torch.tensor([1.0, 1.0, torch.nan])

        with pytest.raises(FloatingPointError, match="training objective is nan"):
            train(members_of(lines([0.0, 1.0, 2.0]), make_data(12), False), settings(Objective(value, linear=True)))

    def test_members_that_cannot_be_stacked_share_epochs(self):
        seen = []

        def watch(histories):
            seen.append([len(each.loss) for each in histories])
            return len(seen) == 2

        train(members_of(lines([0.0, 1.0]), make_data(12), False), settings(ELBO), watch)
        assert seen == [[1, 1], [2, 2]]

    def test_stacks_are_no_larger_than_memory_allows(self, lines_may_be_stacked, monkeypatch):
        sizes, start = [], Stepper.__init__

        def spy(self, members, *args, **options):
            sizes.append(len(members))
            start(self, members, *args, **options)

        monkeypatch.setattr(Stepper, "__init__", spy)
        monkeypatch.setattr(minibatches, "STACKED_NUMBERS", 16)
        train(members_of(lines([0.0, 1.0, 2.0]), make_data(12), False), settings(ELBO, max_iter=1))
        assert sizes == [2, 1]

    def test_models_own_their_memory_afterwards(self, lines_may_be_stacked):
        models = lines([0.0, 1.0, 2.0])
        train(members_of(models, make_data(12), True), settings(ELBO))
        for model in models:
            assert all(each.untyped_storage().nbytes() == each.numel() * 8 for each in model.parameters())
            assert all(each.grad is None for each in model.parameters())


def test_rows_of_parts_side_by_side():
    data = make_data(6, noise=1.0)
    both = side_by_side([Part(data, torch.tensor([0, 3])), Part(data, torch.tensor([5, 1]))])
    assert both.X.shape == (2, 2, 1) and len(both) == 2
    assert torch.equal(both.y[..., 0], data.y[[[0, 3], [5, 1]], 0])
    assert side_by_side([Part(data)]).y.shape == (6, 1)
