"""Bases of tables with many features and few rows."""

import numpy as np
import pytest
import torch
from helpers import normal
from scipy.stats import multivariate_normal

from skdgp import SOLVEGPRegressor
from skdgp.gp.kernels import LinearKernel, StationaryKernel, SumKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference import base as base_module
from skdgp.inference.base import fit_base, with_alternatives
from skdgp.inference.batches import Batch
from skdgp.inference.kernel_search import smooth_of
from skdgp.inference.wide import Learnt, _share


def make_rows(n_rows, n_inputs=70, n_outputs=1, sparse=True, seed=0):
    X = normal(n_rows, n_inputs, seed=seed)
    y = normal(n_rows, n_outputs, seed=seed + 1)
    return Batch(X, X[:, :1] - X[:, 1:2] + 0.3 * y if sparse else y, torch.ones(n_rows).double())


def test_density_is_that_of_a_joint_gaussian():
    """With weights and two outputs."""
    rows = make_rows(9, 3, n_outputs=2)
    rows = Batch(rows.X, rows.y, torch.arange(9) % 3 + 1.0)
    kernel = SumKernel([StationaryKernel("rbf", 3, ard=True), LinearKernel(3)]).double()
    learnt = Learnt(kernel, Gaussian(2, excess=0.1).double())
    with torch.no_grad():
        learnt.likelihood.log_excess.add_(torch.tensor([0.0, 1.0]))
        found = learnt.log_density(rows.rows(slice(7, None)), rows.rows(slice(7)))
        K = kernel.covariance(rows.X, rows.X)[0]
    expected = np.zeros(2)
    for output, noise in enumerate(learnt.likelihood.variance):
        C, y = (K + (noise / rows.weight).diag()).detach().numpy(), rows.y[:, output].numpy()
        for place, row in enumerate((7, 8)):
            at = [*range(7), row]
            joint = multivariate_normal(cov=C[np.ix_(at, at)]).logpdf(y[at])
            expected[place] += joint - multivariate_normal(cov=C[:7, :7]).logpdf(y[:7])
    np.testing.assert_allclose(found, expected)


def test_shares_are_those_that_make_rows_likely():
    first, second = torch.tensor([0.0, -9.0]).repeat(20).double(), torch.tensor([-9.0, 0.0]).repeat(20).double()
    assert _share(first, second, 20) == 10
    assert _share(first, first - 1.0, 20) == 20
    assert _share(first, first - 0.01, 20) == 0  # gains less than four nats
    assert _share(first - torch.inf, second, 20) == 0 and _share(first, second - torch.inf, 20) == 20


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "noise"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_lengthscales_differ_if_few_features_decide(sparse, n_outputs):
    rows = make_rows(50, n_outputs=n_outputs, sparse=sparse, seed=10)
    base = with_alternatives(fit_base(rows), rows)
    assert base.wide and base.n_alternatives == base_module.ALTERNATIVES
    scales = smooth_of(base.model.layers[0].kernel).lengthscale.reshape(base_module.ALTERNATIVES, n_outputs, 70)
    same = (scales == scales[..., :1]).all(-1)
    assert same.all() if not sparse else not same.any()


def test_two_distinct_rows_are_enough():
    X = normal(2, 70, seed=1).repeat(5, 1)
    rows = Batch(X, X[:, :1] + 0.1 * normal(10, 1, seed=2), torch.ones(10).double())
    assert with_alternatives(fit_base(rows), rows).n_alternatives == base_module.ALTERNATIVES
    rows = Batch(X[:1].expand(10, -1), rows.y, rows.weight)
    assert with_alternatives(fit_base(rows), rows).n_alternatives == 1


def test_many_rows_leave_one_alternative(monkeypatch):
    rows = make_rows(30)
    monkeypatch.setattr(base_module, "WIDE_ROWS", 29)
    assert with_alternatives(fit_base(rows), rows).n_alternatives == 1


def fitted(kind, n_rows=60, n_features=100, seed=0, n_new=300):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows + n_new, n_features))
    noise = rng.normal(size=len(X))
    y = {"noise": noise, "sparse": X[:, :5].sum(1) + 0.6 * noise, "dense": X.sum(1) / 10 + 0.3 * noise}[kind]
    model = SOLVEGPRegressor(random_state=0).fit(X[:n_rows], y[:n_rows])
    return model, X[n_rows:], y[n_rows:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "dense"])
def test_intervals_of_wide_tables_hold(kind):
    """They held 67 % of pure noise and of a linear function of all features."""
    held, variances = [], []
    for seed in range(3):
        model, new, y = fitted(kind, seed=seed)
        interval = model.predict_interval(new)
        held.append(np.mean((interval[:, 0] <= y) & (y <= interval[:, 1])))
        variances.append(np.mean((y - model.predict(new)) ** 2) / y.var())
    assert 0.85 < np.mean(held) < 0.95 and np.mean(variances) < (1.1 if kind == "noise" else 0.9)


@pytest.mark.slow
def test_few_features_among_hundreds_are_found():
    """The search for lengthscales started with linear functions of all features, and stayed there."""
    model, new, y = fitted("sparse", n_features=500, seed=1)
    assert np.mean((y - model.predict(new)) ** 2) < 0.3 * y.var()
