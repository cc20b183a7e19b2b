"""Tables and targets of other packages and of odd kinds: they work, or an error says what is wrong."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse

from skdgp import SOLVEGPClassifier, SOLVEGPRegressor

OPTIONS = {"n_inducing": 3, "n_orthogonal": 3, "max_iter": 1, "base": None, "random_state": 0}
X = np.random.default_rng(0).normal(size=(30, 2))
Y = X[:, 0] + 0.1 * X[:, 1] ** 2
LABELS = np.where(Y > 0, "a", "b").astype(object)


def regressor(**options):
    return SOLVEGPRegressor(**OPTIONS | options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_tensors_work_as_arrays_do(dtype):
    x, y = torch.tensor(X, dtype=dtype), torch.tensor(Y, dtype=dtype)
    weight = torch.ones(30, dtype=dtype)
    found = regressor().fit(x.requires_grad_(), y.requires_grad_(), weight.requires_grad_()).predict(x)
    arrays = [(each.detach() if dtype.itemsize > 2 else each.detach().float()).numpy() for each in (x, y, weight)]
    np.testing.assert_array_equal(found, regressor().fit(*arrays).predict(arrays[0]))


def test_tables_of_arrow_work_as_frames_do():
    arrow = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"number": X[:, 0], "text": LABELS})
    table = arrow.Table.from_pandas(frame)
    found = regressor().fit(table, Y).predict(table)
    np.testing.assert_array_equal(found, regressor().fit(frame, Y).predict(frame))


@pytest.mark.parametrize("cell", [{"u": 1}, pd.Interval(0, 1), {1}, [1.0]], ids=repr)
def test_cells_that_are_no_single_value(cell):
    with pytest.raises(TypeError, match=r"Column 'odd' of X holds .* must be a string or a number"):
        regressor().fit(pd.DataFrame({"number": X[:, 0], "odd": 30 * [cell]}), Y)


def test_structs_of_polars():
    with pytest.raises(TypeError, match=r"Column 'odd' of X holds .* must be a string or a number"):
        regressor().fit(pl.DataFrame({"number": X[:, 0], "odd": 30 * [{"u": 1.0}]}), Y)


@pytest.mark.parametrize("values", [X, X.astype(str)], ids=["numbers", "text"])
def test_columns_of_one_name(values):
    with pytest.raises(ValueError, match="Two columns have the name 'a': give each column a name of its own"):
        regressor().fit(pd.DataFrame(values, columns=["a", "a"]), Y)


@pytest.mark.parametrize("make", [SOLVEGPRegressor, SOLVEGPClassifier])
def test_sparse_targets(make):
    with pytest.raises(ValueError, match=r"y is a sparse matrix, and .*: pass y\.toarray\(\)"):
        make(**OPTIONS).fit(X, sparse.csr_matrix((Y[:, None] > 0).astype(float)))


@pytest.mark.parametrize("missing", [None, pd.NA, np.nan], ids=repr)
def test_missing_labels(missing):
    labels = LABELS.copy()
    labels[3] = missing
    with pytest.raises(ValueError, match=r"y holds .* in row 3, which is no label: leave out rows without one"):
        SOLVEGPClassifier(**OPTIONS).fit(X, labels)


def test_labels_of_several_types():
    labels = LABELS.copy()
    labels[3] = 7
    with pytest.raises(ValueError, match=r"y holds labels of several types, int and str, which cannot be sorted"):
        SOLVEGPClassifier(**OPTIONS).fit(X, labels)


@pytest.mark.parametrize("weight", [1e-320, 1e308, 1e38])
def test_weights_beyond_single_precision(weight):
    with pytest.raises(
        ValueError, match=r"Weights of the rows of X are at most .* and add up to .*, which float32 cannot"
    ):
        regressor().fit(X, Y, sample_weight=np.full(30, weight))


def test_rows_at_any_distance():
    """Those that overflow when standardised are predicted as the farthest rows that do not."""
    model = regressor().fit(1e-100 * X, Y)
    with np.errstate(all="raise"):
        found = model.predict(np.array([[1e250, 1e250], [1e200, 1e200]]), return_std=True)
    for each in found:
        assert np.isfinite(each).all() and each[0] == each[1]
