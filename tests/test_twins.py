"""Rows that stand several times in a table: what they may judge, and what they say about the noise."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers import ensemble_of, normal, predictor_of
from test_base import make_data

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.gp.classes import Bernoulli
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.noise import Heteroskedastic, StudentT
from skdgp.inference.base import Base, fit_base
from skdgp.inference.batches import Batch, Part
from skdgp.inference.blending import OutOfSample, _density
from skdgp.inference.collapsed import left_out, set_posteriors
from skdgp.inference.plan import Split
from skdgp.inference.twins import (
    counting_once,
    distinct,
    merged,
    mostly_twins,
    side_by_side,
    twins,
    weight_of_twins,
)


def make_repeated(n_rows=40, seed=0):
    """A table in which some rows stand two or three times, and rows 0 and 1 have equal features, but other targets."""
    data, random = make_data(n_rows), np.random.default_rng(seed)
    index = torch.from_numpy(np.repeat(np.arange(n_rows), random.choice([1, 1, 2, 3], n_rows)))
    rows = data.rows(index[torch.from_numpy(random.permutation(len(index)))])
    X = rows.X.clone()
    X[1] = X[0]
    return Batch(X, rows.y, rows.weight)


def test_twins_have_equal_features_and_targets():
    rows = make_repeated()
    group = twins(rows).numpy()
    for i in range(len(rows)):
        same = (rows.X == rows.X[i]).all(1)
        alike = (rows.y[same] == rows.y[i]).all()
        expected = same.numpy() if alike else np.arange(len(rows)) == i
        assert np.array_equal(group == group[i], expected)
    first, weight = distinct(rows)
    assert len(first) == len(np.unique(group)) and weight.sum() == rows.weight.sum()
    torch.testing.assert_close(weight, torch.from_numpy(np.bincount(group)[group[first]]).double())
    assert torch.equal(merged(rows).weight, weight)
    torch.testing.assert_close(weight_of_twins(rows, rows), torch.from_numpy(np.bincount(group)[group]).double())
    plain = make_data(30)
    assert merged(plain) is plain and not mostly_twins(plain) and mostly_twins(plain.joined(plain))


def test_weights_that_count_twins_once():
    """Their sum is the number of rows that differ and have weight; the unit of weights does not matter."""
    rows = make_repeated()
    n_groups = len(twins(rows).unique())
    for weight in (rows.weight, 4.0 * rows.weight, 0.3 * torch.arange(1.0, len(rows) + 1).double()):
        counted = counting_once(Batch(rows.X, rows.y, weight))
        assert counted.sum().item() == pytest.approx(n_groups)
        torch.testing.assert_close(counted / counted[0], weight / weight[0])
    plain = make_data(30)
    assert torch.equal(counting_once(plain), plain.weight)
    assert counting_once(plain.weighing(torch.arange(30) % 2)).sum().item() == pytest.approx(15)
    assert not counting_once(plain.weighing(0.0)).any()


@pytest.mark.parametrize("likelihood", [Gaussian(1), StudentT(1), Heteroskedastic(1), Bernoulli()])
def test_copies_of_held_out_rows_judge_as_one(likelihood):
    """What the priors of a blend say does not count less because rows are repeated or weigh more."""
    data = make_data(60)
    base, few = fit_base(data), data.rows(slice(8))
    few = Batch(few.X, (few.y > 0).double() if likelihood.base_kind == "classes" else few.y, few.weight)

    def vector(rows, index):
        of_base = base(rows.X).mean[0], base(rows.X).variance[0]
        h = torch.cat(likelihood.n_outputs * [of_base[0] + 0.3 * normal(8, 1)[index]], dim=1)
        g, s = (values.expand(-1, likelihood.n_outputs) for values in of_base)
        judged = OutOfSample(rows, h, torch.full_like(h, 0.1), g, s, torch.zeros_like(s))
        return _density(Base(base), likelihood, [judged], None).best().x

    once = vector(few, torch.arange(8))
    copies = torch.arange(32) // 4
    np.testing.assert_allclose(vector(few.rows(copies), copies), once, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(vector(few.weighing(4.0), torch.arange(8)), once, rtol=1e-3, atol=1e-3)


def test_missing_targets_are_equal_to_each_other_alone():
    X = torch.zeros(4, 1).double()
    y = torch.tensor([[1.0, np.nan], [1.0, np.nan], [1.0, np.nan], [1.0, np.nan]]).double()
    assert len(twins(Batch(X, y, torch.ones(4).double())).unique()) == 1
    y[3, 1] = 0.0
    assert len(twins(Batch(X, y, torch.ones(4).double())).unique()) == 4


@pytest.mark.parametrize("n_held_out", [1, 4, 11])
def test_twins_do_not_stand_on_both_sides(n_held_out):
    rows = make_repeated()
    group, order = twins(rows).numpy(), np.random.default_rng(1).permutation(len(rows))
    together = side_by_side(order, group)
    assert np.array_equal(np.sort(together), np.sort(order))
    assert np.array_equal(side_by_side(order, np.arange(len(rows))), order)  # as it was, without twins
    split, judged = Split(together, None, n_held_out, group=group), 0
    for index in range(8):
        learnt, held_out = split.of(rows, index)
        parted = np.isin(group[held_out.index], group[learnt.index])
        assert not parted.any() or parted.all()
        assert len(learnt) == len(rows) - n_held_out
        judged += not parted.any()
    assert judged >= 2


def test_rows_with_many_twins_are_held_out_as_often_as_others():
    """One row stands twenty times, forty rows stand twice, and three hundred stand alone."""
    group = np.repeat(np.arange(341), [20] + 40 * [2] + 300 * [1])
    rng, count = np.random.default_rng(0), np.zeros(len(group))
    for _ in range(1000):
        count[side_by_side(rng.permutation(len(group)), group)[:100]] += 1
    kinds = np.split(count / 1000, [20, 100])
    assert all(abs(share.mean() - 0.25) < 0.04 for share in kinds)


def test_a_row_is_left_out_with_its_twins():
    """As if the posterior had learnt from none of them; kernel, noise and points stay."""
    rows = make_repeated()
    model, group = fit_base(rows), twins(rows)
    mean, variance = left_out(model, rows, rows)
    sizes = group.bincount()[group]
    for index in (int((sizes == 1).nonzero()[3]), int((sizes == 2).nonzero()[0]), int((sizes == 3).nonzero()[0])):
        again = deepcopy(model)
        set_posteriors(again, rows.rows(group != group[index]))
        expected = again(rows.X[index, None])
        torch.testing.assert_close(mean[index], expected.mean[0, 0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(variance[index], expected.variance[0, 0], rtol=1e-5, atol=1e-10)


FAMILIES = [
    SOLVEGPRegressor(random_state=0),
    SOLVEGPRegressor(method="svi", n_estimators=1, max_iter=60, random_state=0),
    DSDGPRegressor((2,), 10, n_estimators=2, max_iter=60, random_state=0),
    AVDGPRegressor((2,), (4, 4), n_estimators=2, max_iter=60, random_state=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: f"{type(model).__name__}-{model.max_iter}")
def test_weights_and_copies_are_no_proof_of_no_noise(model):
    """Weights of two, random weights, and tables that stand twice predict about as the tables themselves."""
    lost = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X, new = rng.uniform(-1, 1, size=(60, 2)), rng.uniform(-1, 1, size=(500, 2))
        y, truth = (np.sin(3 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=len(x)) for x in (X, new))

        def nll(X, y, weight=None, new=new, truth=truth):
            base = predictor_of(model.fit(X, y, weight)).blend.base
            return -np.mean(model.predict_dist(new).logpdf(truth)), base.likelihood.variance.max()

        plain, noise = nll(X, y)
        again, noises = zip(
            nll(X, y, np.full(60, 2.0)),
            nll(X, y, rng.integers(1, 4, 60)),
            nll(np.vstack([X, X]), np.concatenate([y, y])),
            strict=True,
        )
        lost.append(np.subtract(again, plain))
        assert min(noises) > 0.4 * noise
    assert np.mean(lost, axis=0).max() < 0.15


def test_few_distinct_rows_still_judge():
    """Where every held-out row has a twin outside, all of them judge, since there are no others."""
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    y = np.repeat([0.0, 1.0], 20)
    model = DSDGPRegressor((2,), 2, n_estimators=2, max_iter=4, random_state=0).fit(X, y)
    assert ensemble_of(model).held_out.n_rows > 0 and np.isfinite(model.predict(X)).all()


def test_parts_of_several_members_have_rows_of_their_own():
    rows = make_repeated()
    order = side_by_side(np.arange(len(rows)), twins(rows).numpy())
    split = Split(order, None, 5, group=twins(rows).numpy())
    assert isinstance(split.of(rows, 0)[1], Part)
    parts = [set(split.parts(index)[1]) for index in range(3)]
    assert not parts[0] & parts[1] and not parts[1] & parts[2]
