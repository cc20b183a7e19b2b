"""Tables and targets of other packages and of odd kinds: they work, or an error says what is wrong."""

import pickle
import re
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers import table_of
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


def test_labels_of_several_types_in_lists():
    """NumPy would make text of the numbers."""
    with pytest.raises(ValueError, match="y holds labels of several types, int and str"):
        SOLVEGPClassifier(**OPTIONS).fit(X, 15 * [1, "a"])
    with pytest.raises(ValueError, match="classes holds labels of several types, int and str"):
        SOLVEGPClassifier(**OPTIONS).partial_fit(X, LABELS, classes=[0, "a", "b"])
    with pytest.raises(ValueError, match="classes holds None in row 2, which is no label"):
        SOLVEGPClassifier(**OPTIONS).partial_fit(X, LABELS, classes=["a", "b", None])


@pytest.mark.parametrize("label", [date(2020, 1, 1), Decimal(1), ("a",)], ids=repr)
def test_objects_that_are_no_labels(label):
    labels = np.empty(30, dtype=object)
    labels[:] = [label] * 30
    with pytest.raises(ValueError, match=r"y holds .*, which is neither text nor a number: make text of all labels"):
        SOLVEGPClassifier(**OPTIONS).fit(X, labels)


NUMBERS = (LABELS == "b").astype(int)


@pytest.mark.parametrize(
    "labels",
    [
        *(pd.array(NUMBERS, dtype=dtype) for dtype in ["Int64", "UInt8", "boolean", "int64[pyarrow]"]),
        NUMBERS.astype(object),
        pl.Series(LABELS == "b"),
        pd.Series(LABELS, dtype="string"),
        pd.Series(LABELS, dtype="string[pyarrow]"),
        pd.Categorical(LABELS),
        pl.Series(LABELS.tolist(), dtype=pl.Categorical),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_of_any_dtype(labels):
    """Predictions are those for plain labels."""
    model = SOLVEGPClassifier(**OPTIONS)
    for found in (model.fit(X, labels), SOLVEGPClassifier(**OPTIONS).fit(X[:20], labels[:20], X_val=X, y_val=labels)):
        assert found.classes_.tolist() in ([0, 1], ["a", "b"])
    expected = SOLVEGPClassifier(**OPTIONS).fit(X, NUMBERS)
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "string", "string[pyarrow]", "category"])
def test_nullable_labels_that_are_missing(dtype):
    values = pd.Series(LABELS if "str" in dtype or dtype == "category" else NUMBERS).astype(dtype)
    values[3] = None
    with pytest.raises(ValueError, match=r"y holds .* in row 3, which is no label|Input y contains NaN"):
        SOLVEGPClassifier(**OPTIONS).fit(X, values)


@pytest.mark.parametrize(
    "y",
    [LABELS, LABELS.astype("S"), pd.Series(LABELS, dtype="string"), pd.Series([pd.NA, *LABELS[1:]], dtype="string")],
    ids=["objects", "bytes", "nullable", "missing"],
)
def test_regression_of_text(y):
    with pytest.raises(ValueError, match=r"y holds text, such as b?'[ab]', and a regressor predicts numbers"):
        regressor().fit(X, y)


@pytest.mark.parametrize("make", [np.asarray, np.ndarray.tolist, pd.DataFrame, torch.tensor])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(make, dtype):
    z = X.astype(dtype)
    with pytest.raises(ValueError, match=r"Complex data not supported, but column [01] of X holds .*j"):
        regressor().fit(make(z), Y)
    with pytest.raises(ValueError, match=r"Complex data not supported, but y holds .*j"):
        regressor().fit(X, make(z))


def test_numbers_beyond_floats():
    with pytest.raises(ValueError, match="X or y holds a whole number of more than 308 digits"):
        regressor().fit(np.array(15 * [[10**400], [1]]), Y)


@pytest.mark.parametrize("thing", [{"a": X}, "table", 3.0, None, iter(X)], ids=lambda thing: type(thing).__name__)
def test_what_is_no_table(thing):
    with pytest.raises(TypeError, match=r"X is of type \w+, which is no table: pass an array or a data frame"):
        regressor().fit(thing, Y)


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame])
def test_bytes_are_text(make):
    text = [label.encode() for label in LABELS]
    model = regressor(categorical_features=["text"]).fit(make({"number": X[:, 0], "text": text}), Y)
    expected = regressor().fit(pd.DataFrame({"number": X[:, 0], "text": LABELS}), Y)
    frames = (make({"number": X[:, 0], "text": text}), pd.DataFrame({"number": X[:, 0], "text": LABELS}))
    np.testing.assert_array_equal(*(each.predict(frame) for each, frame in zip((model, expected), frames, strict=True)))
    assert table_of(pickle.loads(pickle.dumps(model))).columns.levels == table_of(model).columns.levels
    with pytest.raises(ValueError, match=r"Column 'text' of X holds text, such as b'[ab]'"):
        regressor(categorical_features=None).fit(frames[0], Y)


def test_lazy_frames_of_polars():
    frame = pl.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    np.testing.assert_array_equal(
        regressor().fit(frame.lazy(), Y).predict(frame.lazy()), regressor().fit(frame, Y).predict(frame)
    )


def test_errors_about_arguments_name_no_class_of_ours():
    for call in (regressor().fit, regressor().fit(X, Y).predict, SOLVEGPClassifier().fit, SOLVEGPClassifier().predict):
        with pytest.raises(TypeError, match=r"^(fit|predict)\(\) "):
            call(X, nothing=1)


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


@pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[D]", "complex128"])
@pytest.mark.parametrize(("make", "y"), [(SOLVEGPRegressor, Y), (SOLVEGPClassifier, LABELS)], ids=["numbers", "labels"])
def test_weights_are_numbers(make, y, dtype):
    weight = np.arange(30).astype(dtype)
    with pytest.raises(ValueError, match=rf"sample_weight holds {re.escape(dtype)}, and a weight is a number"):
        make(**OPTIONS).fit(X, y, weight)
