"""Residuals of rows of which two are left out, against models that have learnt from neither."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from skdgp import SOLVEGPRegressor
from skdgp.inference import pairs, validation
from skdgp.inference.base import Base, fit_base, with_alternatives
from skdgp.inference.batches import Batch, Part
from skdgp.inference.collapsed import set_posteriors
from skdgp.inference.pairs import Pairs


def make_rows(n_outputs=1, weighted=False, scale=1.0):
    """Forty rows, of which the first two are twins."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(40, 2))
    y = np.column_stack([np.sin(3 * X[:, 0]), X[:, 1] ** 2])[:, :n_outputs] + 0.1 * rng.normal(size=(40, n_outputs))
    X[1], y[1] = X[0], y[0]
    weight = np.arange(40) % 3 + 0.5 if weighted else np.ones(40)
    return Batch(*(torch.as_tensor(column).double() for column in (X, scale * y, weight)))


def residual(model, rows, without, j):
    """That of row j by a model that has the kernel and noise of another one, and has not learnt from some rows."""
    kept = torch.tensor([row not in without for row in range(len(rows))])
    model = deepcopy(model)
    set_posteriors(model, rows.rows(kept))
    return rows.y[j] - model(rows.X[j : j + 1]).mean[0, 0]


def of_models(models, rows, without, j):
    return torch.stack([residual(model, rows, without, j) for model in models]).mean(0)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n_outputs", "scale"), [(1, 1.0), (2, 1.0), (1, 1e-3), (1, 1e3)])
def test_they_are_those_of_models_without_both_rows(n_outputs, scale, weighted, several):
    rows = make_rows(n_outputs, weighted, scale)
    model = fit_base(rows)
    base = with_alternatives(model, rows) if several else Base(model)
    everything = Part(rows, torch.arange(40))
    i, j = torch.tensor([5, 7, 0]), torch.tensor([[6, 3], [2, 9], [4, 8]])
    change = Pairs.of([base], everything, everything).change(i, j)
    for row, first in enumerate(i.tolist()):
        own = {0, 1} if first == 0 else {first}
        for column, second in enumerate(j[row].tolist()):
            models = base.alternatives()
            expected = of_models(models, rows, own | {second}, second) - of_models(models, rows, {second}, second)
            torch.testing.assert_close(change[row, column], expected, rtol=1e-5, atol=1e-7 * scale)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_products_of_all_rows_say_the_same_as_those_of_pairs(n_outputs, monkeypatch):
    rows = make_rows(n_outputs, weighted=True)
    everything, bases = Part(rows, torch.arange(40)), [with_alternatives(fit_base(rows), rows)]
    i, j = torch.arange(40), (torch.arange(40)[:, None] + torch.arange(1, 8)) % 40
    expected = Pairs.of(bases, everything, everything)
    monkeypatch.setattr(pairs, "PAIR_NUMBERS", 1000)
    found = Pairs.of(bases, everything, everything)
    assert expected.products[0] is not None and found.products[0] is None
    torch.testing.assert_close(found.change(i, j), expected.change(i, j), rtol=1e-9, atol=1e-12)


def test_twins_are_left_out_together_anyway():
    rows = make_rows()
    everything = Part(rows, torch.arange(40))
    change = Pairs.of([Base(fit_base(rows))], everything, everything).change(torch.tensor([0]), torch.tensor([[1, 2]]))
    assert change[0, 0] == 0 and change[0, 1] != 0


def test_rows_that_the_base_has_not_learnt_from():
    """Only the row that judges is left out; and where that has not been learnt either, nothing changes."""
    rows = make_rows()
    learnt = Part(rows, torch.arange(20))
    model = fit_base(rows.rows(slice(20)))
    change = Pairs.of([Base(model)], Part(rows, torch.arange(40)), learnt).change(
        torch.tensor([5, 30]), torch.tensor([[25], [26]])
    )
    expected = residual(model, rows, {5, *range(20, 40)}, 25) - residual(model, rows, set(range(20, 40)), 25)
    torch.testing.assert_close(change[0, 0], expected, rtol=1e-6, atol=1e-9)
    assert change[1, 0] == 0


def test_base_and_members_count_by_their_weights(monkeypatch):
    """Residuals of a blend are those of both without both rows, weighted as in its predictions."""
    seen, of = {}, validation.Validation._change

    def spy(self, predictor, foundation, stored, X):
        predictor.blend.weight.fill_(0.4)
        share = predictor.blend.frozen().share(X, predictor.blend.frozen().of_base(X))
        rows = stored.rows().to("cpu", torch.float64)
        change = of(self, predictor, foundation, stored, X)
        seen.update(rows=rows, share=share, change=change, base=foundation.base, members=[*predictor.models])
        return change

    monkeypatch.setattr(validation.Validation, "_change", spy)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(60, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=60)
    SOLVEGPRegressor(10, max_iter=5, dtype="float64", random_state=0).fit(X, y)
    i, j, share = 3, 8, seen["share"][8]
    assert 0.05 < share < 0.5

    def residuals(without):
        groups = seen["members"], seen["base"].alternatives()
        of_members, of_base = (of_models(models, seen["rows"], without, j) for models in groups)
        return share * of_members + (1 - share) * of_base

    expected = residuals({i, j}) - residuals({j})
    found = seen["change"](torch.tensor([i]), torch.tensor([[j]]))[0, 0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-8)
