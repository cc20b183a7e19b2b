"""Mean functions and the projections that they start from."""

import numpy as np
import pytest
import torch
from helpers import generator
from sklearn.decomposition import PCA

from skdgp.gp.means import LinearMean, ZeroMean, make_mean, principal_projection


def inputs(n_columns=4):
    """Rows whose columns are correlated, shifted and of unequal spread."""
    source = generator()
    X = torch.randn(20, n_columns, generator=source, dtype=torch.float64)
    mix = torch.randn(n_columns, n_columns, generator=source, dtype=torch.float64)
    return X @ mix + 5.0


def test_zero():
    mean = make_mean("zero", inputs(), 2)
    assert isinstance(mean, ZeroMean)
    values = mean(inputs()[None])
    assert values.dtype == torch.float64
    assert torch.equal(values, torch.zeros(1, 20, 2, dtype=torch.float64))


@pytest.mark.parametrize("name", ["identity", "linear"])
def test_identity_where_widths_agree(name):
    X = inputs()
    assert torch.equal(make_mean(name, X, 4)(X[None]), X[None])


@pytest.mark.parametrize("name", ["identity", "linear"])
def test_padding_where_the_layer_widens(name):
    X = inputs()
    values = make_mean(name, X, 6)(X)
    assert torch.equal(values[:, :4], X)
    assert torch.equal(values[:, 4:], X.new_zeros(20, 2))


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_principal_directions_where_the_layer_narrows(n_outputs):
    X = inputs()
    projection = principal_projection(X, n_outputs)
    expected = PCA(n_outputs).fit(X).components_.T
    np.testing.assert_allclose(projection.abs(), np.abs(expected), rtol=1e-9)  # signs are free
    np.testing.assert_allclose(projection.mT @ projection, np.eye(n_outputs), atol=1e-12)
    np.testing.assert_allclose(make_mean("identity", X, n_outputs)(X), X @ projection)


def test_fewer_rows_than_directions():
    assert principal_projection(inputs()[:2], 3).shape == (4, 3)


@pytest.mark.parametrize(("name", "n_parameters"), [("zero", 0), ("identity", 0), ("linear", 1)])
def test_only_the_linear_mean_learns(name, n_parameters):
    assert len(list(make_mean(name, inputs(), 2).parameters())) == n_parameters


def test_gradient_of_the_linear_mean():
    projection = torch.ones(4, 2, dtype=torch.float64)
    mean, X = LinearMean(projection, learnable=True), inputs()
    mean(X).sum().backward()
    torch.testing.assert_close(mean.projection.grad, X.sum(0)[:, None].expand(4, 2))
    with torch.no_grad():
        mean.projection.zero_()
    assert torch.equal(projection, torch.ones_like(projection))  # the argument is copied
