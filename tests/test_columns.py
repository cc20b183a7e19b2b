"""Tables as people have them: categories, missing cells, and what models see of both."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import any_options, predictor_of, table_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.stats import norm
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.gaussian_process.kernels import Sum
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skdgp.tables.encoding as encoding_file
from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.gp.kernels import StationaryKernel
from skdgp.kernels import Select
from skdgp.tables.columns import Columns, categorical_mask
from skdgp.tables.encoding import Encoding
from skdgp.tables.levels import level_means, means_of_others
from skdgp.tables.missing import RIDGE, CellsGivenOthers

#: Small models of every kind.
SHALLOW = {"n_inducing": 16, "n_orthogonal": 0, "base": None, "max_iter": 30, "random_state": 0}
DEEP = {"n_inducing": 8, "n_estimators": 1, "base": None, "max_iter": 20, "random_state": 0}
REGRESSORS = [
    SOLVEGPRegressor(**SHALLOW, n_neighbors=0),
    DSDGPRegressor((2,), **(DEEP | {"max_iter": 60}), n_neighbors=0),
    AVDGPRegressor((2,), **(DEEP | {"n_inducing": 4}), n_neighbors=0, network_width=16),
]
CLASSIFIERS = [
    SOLVEGPClassifier(**SHALLOW),
    DSDGPClassifier((2,), **DEEP),
    AVDGPClassifier((2,), **(DEEP | {"n_inducing": 4}), network_width=16),
]


def make_table(n_rows=120, seed=0):
    """A frame with numbers, text, a category and truths, some cells missing; and what it says of y."""
    rng = np.random.default_rng(seed)
    size = rng.normal(size=n_rows)
    city = rng.choice(["Lima", "Oslo", "Rome"], n_rows)
    y = np.sin(2 * size) + 2.0 * (city == "Rome") - 1.0 * (city == "Oslo") + 0.1 * rng.normal(size=n_rows)
    X = pd.DataFrame(
        {
            "size": np.where(rng.random(n_rows) < 0.1, np.nan, size),
            "city": city,
            "grade": pd.Categorical(rng.integers(1, 4, n_rows)),
            "rooms": pd.array(rng.integers(1, 6, n_rows), dtype="Int64"),
            "new": rng.random(n_rows) < 0.5,
        }
    )
    X.loc[::11, "rooms"] = pd.NA
    X.loc[::13, "city"] = None
    return X, y


class TestColumns:
    """Which columns are categories, and numbers for their levels."""

    def test_dtypes_say_what_is_a_category(self):
        X, _ = make_table()
        X["code"] = X["city"].astype(object)
        X["number"] = X["size"].astype(object)
        assert categorical_mask(X, "from_dtype").tolist() == [False, True, True, False, False, True, False]
        assert categorical_mask(X, None) is None
        assert categorical_mask(X[["size"]].to_numpy(), "from_dtype") is None

    @pytest.mark.parametrize("given", [[0, 2], ["a", "c"], [True, False, True], np.array([0, 2]), np.array(["c", "a"])])
    def test_masks_numbers_and_names_say_the_same(self, given):
        X = pd.DataFrame({"a": [1.0, 2.0], "b": [0.5, 1.5], "c": [0.0, 0.0]})
        assert categorical_mask(X, given).tolist() == [True, False, True]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["d"], "has 'd', which is no column of X: give numbers from 0 to 2 or names, of which its names are"),
            ([3], "has 3, which is no column"),
            ([-1], "has -1, which is no column"),
            ([0.5], "has 0.5, which is no column"),
            ([True, False], r"is a mask of shape \(2,\), but X has 3 columns"),
        ],
    )
    def test_what_is_no_column_is_an_error(self, given, message):
        X = pd.DataFrame({"a": [1.0, 2.0], "b": [0.5, 1.5], "c": [0.0, 0.0]})
        with pytest.raises(ValueError, match=message):
            SOLVEGPRegressor(categorical_features=given).fit(X, [0.0, 1.0])

    def test_numbers_with_a_decimal_comma_name_the_cure(self):
        X = np.array([["3,5", 1.0], ["4,25", 2.0]], dtype=object)
        with pytest.raises(ValueError, match=r"Column 0 of X holds numbers with a decimal comma, such as '3,5': read"):
            SOLVEGPRegressor().fit(X, [0.0, 1.0])
        frame = pd.DataFrame(X, columns=["price", "size"])
        with pytest.raises(ValueError, match="Column 'price' of X holds numbers with a decimal comma"):
            SOLVEGPRegressor(categorical_features=None).fit(frame, [0.0, 1.0])
        with pytest.warns(UserWarning, match="^Column 'price' of X is text of numbers with a decimal comma, such as"):
            Columns.of(frame, "from_dtype")

    def test_names_need_a_frame(self):
        with pytest.raises(ValueError, match="it has no names"):
            SOLVEGPRegressor(categorical_features=["a"]).fit([[0.0], [1.0]], [0.0, 1.0])

    def test_levels_are_counted_and_others_are_known_for_it(self):
        X = pd.DataFrame({"a": ["x", "y", "y", None], "b": [1.0, 2.0, 3.0, 4.0]})
        columns = Columns.of(X, "from_dtype")
        assert columns.levels == [["y", None, "x"], None]
        X = pd.DataFrame({"a": ["z", None, "y", pd.NA], "b": [1.0, 2.0, 3.0, 4.0]})
        coded = columns.coded(X)
        assert coded["a"].tolist() == [3.0, 1.0, 0.0, 1.0] and coded["b"].tolist() == [1.0, 2.0, 3.0, 4.0]
        assert X["a"][2] == "y"  # the user's table is as it was
        assert Columns.from_plain(columns.to_plain()).levels == columns.levels

    def test_na_among_objects_is_a_missing_cell(self):
        X = pd.DataFrame({"a": pd.Series([1, pd.NA, 3] * 10, dtype=object), "b": np.arange(30.0)})
        model = SOLVEGPRegressor(5, 0, max_iter=2, base=None, random_state=0).fit(X, X["b"])
        known = X.assign(a=[1.0, np.nan, 3.0] * 10)
        expected = clone(model).fit(known, X["b"]).predict(known)
        assert np.array_equal(model.predict(X), expected) and X.loc[1, "a"] is pd.NA
        as_array = clone(model).fit(X.to_numpy(dtype=object), X["b"])
        assert np.array_equal(as_array.predict(X.to_numpy(dtype=object)), expected)

    @pytest.mark.parametrize("text", [False, True])
    def test_dates_of_polars_are_days(self, text):
        pl = pytest.importorskip("polars")
        days = pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 1, 30), eager=True)
        X = pl.DataFrame({"a": np.arange(30.0), "day": days} | ({"b": ["x", "y"] * 15} if text else {}))
        model = SOLVEGPRegressor(5, 0, max_iter=2, base=None)
        assert model.fit(X, X["a"]).date_features_ == {"day": ["days", "week"]}
        passed = X.with_columns(pl.col("day") - pl.date(2020, 1, 1))
        assert model.fit(passed, X["a"]).date_features_ == {"day": ["days"]}
        model.set_params(categorical_features=["day", "b"] if text else ["day"]).fit(X, X["a"])

    @pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
    def test_a_masked_cell_is_a_missing_cell(self, kind):
        X = np.random.default_rng(0).integers(-9, 9, size=(40, 2)).astype(kind)
        masked = np.ma.masked_array(X, mask=X > 5)
        missing = np.where(X > 5, np.nan, X).astype(kind if kind == np.float32 else np.float64)
        model = SOLVEGPRegressor(5, 0, max_iter=2, base=None, random_state=0)
        expected = clone(model).fit(missing, X[:, 0]).predict(missing)
        assert np.array_equal(model.fit(masked, X[:, 0]).predict(masked), expected)
        with pytest.raises(ValueError, match="y contains NaN"):
            model.fit(X, masked[:, 0])
        assert model.fit(X, np.ma.masked_array(X[:, 0], mask=False)).predict(X).shape == (40,)

    def test_a_masked_target_may_lack_where_outputs_share_functions(self):
        rng = np.random.default_rng(0)
        X, Y = rng.normal(size=(40, 2)), rng.normal(size=(40, 2))
        mask = rng.random((40, 2)) < 0.2
        model = SOLVEGPRegressor(5, 0, max_iter=2, n_latent_outputs=1, random_state=0)
        expected = clone(model).fit(X, np.where(mask, np.nan, Y)).predict(X)
        assert np.array_equal(model.fit(X, np.ma.masked_array(Y, mask)).predict(X), expected)

    def test_numbers_are_levels_too(self):
        columns = Columns.of(np.array([[1.0, 5.0], [1.0, np.nan], [2.0, 0.0]]), [0, 1])
        assert columns.levels == [[1.0, 2.0], [5.0, None, 0.0]] or columns.levels == [[1.0, 2.0], [None, 0.0, 5.0]]
        frame = pd.DataFrame({"p": pd.Categorical([2, 1, 3]), "q": [0, 0, 5]})
        assert columns.coded(frame)["p"].tolist() == [1.0, 0.0, 2.0]

    @pytest.mark.parametrize("fitted", ["ns", "us", "s", "D"])
    def test_levels_are_the_same_in_any_precision(self, fitted):
        """Levels would be new ones, without a word, if a file had been read with another unit."""
        days = np.array(["2024-05-01", "2024-05-02", "NaT", "2024-05-01"], dtype="M8[s]")
        forms = [days.astype(f"M8[{unit}]") for unit in ("ns", "us", "s")]
        forms += [np.array([None if np.isnat(day) else day.astype("M8[D]").item() for day in days], dtype=object)]
        values = forms[-1] if fitted == "D" else days.astype(f"M8[{fitted}]")
        columns = Columns.of(pd.DataFrame({"day": values}), ["day"])
        waits = Columns.of(pd.DataFrame({"wait": np.array([1, 2], dtype="m8[ns]") * 10**9}), ["wait"])
        assert Columns.from_plain(columns.to_plain()).levels == columns.levels
        for form in forms:
            assert columns.coded(pd.DataFrame({"day": form}))["day"].tolist() == [0.0, 2.0, 1.0, 0.0]
        assert waits.coded(pd.DataFrame({"wait": np.array([2, 1], dtype="m8[s]")}))["wait"].tolist() == [1.0, 0.0]
        doses = pd.DataFrame({"dose": [0.1, 0.3, np.nan, 0.1]})
        for dtype in ("float64", "float32"):
            coded = Columns.of(doses.astype(dtype), ["dose"]).coded
            for other in ("float64", "float32"):
                assert coded(doses.astype(other))["dose"].tolist() == [0.0, 2.0, 1.0, 0.0]

    def test_polars(self):
        polars = pytest.importorskip("polars")
        X, y = make_table()
        other = polars.DataFrame(
            {
                "size": X["size"].tolist(),
                "city": [None if each is None or each != each else each for each in X["city"]],
                "grade": X["grade"].astype(str).tolist(),
                "rooms": [None if each is pd.NA else int(each) for each in X["rooms"]],
                "new": X["new"].tolist(),
            },
            schema_overrides={"grade": polars.Enum(["1", "2", "3"])},
        ).with_columns(polars.col("size").fill_nan(None))
        model = REGRESSORS[0]
        by_pandas, by_polars = (model.fit(each, y).predict(each) for each in (X, other))
        assert np.allclose(by_pandas, by_polars)
        assert model.is_categorical_.tolist() == [False, True, True, False, False]


class TestLevels:
    """Numbers for levels that are many."""

    def test_means_are_drawn_towards_that_of_all(self):
        rng = np.random.default_rng(0)
        effect, codes = rng.normal(size=50), rng.integers(50, size=2000)
        y = (effect[codes] + rng.normal(size=2000))[:, None]
        found = level_means(codes, 50, y, np.ones(2000))
        count = np.bincount(codes, minlength=50)
        exact = count / (count + 1.0)  # variances within and between are 1: the posterior mean
        plain = np.array([y[codes == level].mean() for level in range(50)])
        found = found + y.mean()  # numbers are relative to it
        assert np.allclose(found[:50], plain * exact + y.mean() * (1 - exact), atol=0.05)
        assert np.abs(found[:50] - effect).mean() < np.abs(plain - effect).mean()
        assert np.isclose(found[50], y.mean())

    def test_weights_count_rows(self):
        rng = np.random.default_rng(0)
        codes, y, weight = rng.integers(5, size=40), rng.normal(size=(40, 1)), rng.integers(0, 3, size=40)
        repeated = np.repeat(np.arange(40), weight)
        once = level_means(codes, 5, y, weight.astype(float))
        assert np.allclose(once, level_means(codes[repeated], 5, y[repeated], np.ones(len(repeated))))

    def test_own_targets_say_nothing(self):
        rng = np.random.default_rng(0)
        codes, y = np.arange(400) // 2, rng.normal(size=(400, 1))  # levels of two rows, which mean nothing
        of_others = means_of_others(codes, 200, y, np.ones(400))
        own = level_means(codes, 200, y, np.ones(400))[codes]
        assert np.corrcoef(own, y[:, 0])[0, 1] > 0.5 > 0.1 > np.corrcoef(of_others, y[:, 0])[0, 1]

    def test_several_targets_give_the_direction_in_which_levels_differ(self):
        rng = np.random.default_rng(0)
        effect, codes = rng.normal(size=20), rng.integers(20, size=2000)
        y = np.outer(effect[codes], [3.0, -4.0]) + rng.normal(size=(2000, 2))
        y[::3, 0] = np.nan
        found = level_means(codes, 20, y, np.ones(2000))[:20]
        assert abs(np.corrcoef(found, effect)[0, 1]) > 0.99

    def test_columns_have_the_units_of_what_models_learn_from(self):
        """Not those of numbers that know the row's own target: cells of new levels would then be far from all rows."""
        rng = np.random.default_rng(0)
        codes, y = np.repeat(np.arange(200), 2), rng.normal(size=(400, 1))
        X, weight = np.stack([codes.astype(float), y[:, 0] + 0.01 * rng.normal(size=400)], axis=1), np.ones(400)
        encoding, units = Encoding.learn(X, y, weight, [200, 0], normalize=True)
        columns = units.standardise(encoding.encode(X, encoding.of_others(X, y, weight)))
        assert np.allclose(columns.std(axis=0), 1.0) and np.allclose(columns.mean(axis=0), 0.0, atol=1e-9)
        drawn = units.standardise(encoding.encode_draws(np.column_stack([np.full(400, np.nan), X[:, 1]])))
        assert 0.5 < drawn[..., 0].std() < 1.2

    @pytest.mark.parametrize(("n_levels", "are_ids"), [(400, True), (390, True), (370, False)])
    def test_ids_have_one_number(self, n_levels, are_ids):
        rng = np.random.default_rng(0)
        codes, y = np.minimum(np.arange(400), n_levels - 1), rng.normal(size=(400, 1))
        numbers = level_means(codes, n_levels, y, np.ones(400))
        of_others = means_of_others(codes, n_levels, y, np.ones(400))
        assert len(numbers) == n_levels + 1 and len(of_others) == 400
        assert (np.ptp(numbers) == 0.0) == (np.ptp(of_others) == 0.0) == are_ids

    @pytest.mark.parametrize("model", [*REGRESSORS, *CLASSIFIERS])
    @pytest.mark.filterwarnings("ignore:Column 'name' of X")  # one of ids, or the same in all rows
    def test_ids_change_no_prediction(self, model):
        rng = np.random.default_rng(0)
        X = pd.DataFrame(rng.uniform(-2, 2, size=(180, 2)), columns=["a", "b"])
        y = X["a"] * X["b"]
        y = y if hasattr(model, "likelihood") else y > 0
        ids = X.assign(name=[f"player {i}" for i in range(180)])
        by_ids = clone(model).fit(ids[:140], y[:140]).predict(ids[140:])
        plain = clone(model).fit(X[:140].assign(name=0.0), y[:140]).predict(X[140:].assign(name=0.0))
        assert np.array_equal(by_ids, plain)

    @pytest.mark.parametrize("y", [np.zeros((6, 1)), np.arange(6.0)[:, None]])
    def test_constant_targets_and_levels_of_one_row(self, y):
        found = level_means(np.arange(6), 6, y, np.ones(6))
        assert np.isfinite(found).all()


class TestMissingCells:
    """A Gaussian of all columns, given those that are known."""

    def test_is_that_of_dense_algebra(self):
        rng = np.random.default_rng(0)
        root = rng.normal(size=(4, 4))
        S, mean = root @ root.T + np.eye(4), rng.normal(size=4)
        cells = CellsGivenOthers(mean, S, np.full(4, -100.0), np.full(4, 100.0))
        rows = rng.normal(size=(6, 4))
        rows[0, 1] = rows[1, 3] = rows[2, :2] = rows[3, 1:] = rows[4, :] = np.nan
        filled, deviation = cells.fill(rows)
        for row, expected, spread in zip(rows, filled, deviation, strict=True):
            m, o = np.isnan(row), ~np.isnan(row)
            gain = S[np.ix_(m, o)] @ np.linalg.inv(S[np.ix_(o, o)])
            assert np.allclose(expected[m], mean[m] + gain @ (row[o] - mean[o]))
            assert np.allclose(spread[m] ** 2, np.diag(S[np.ix_(m, m)] - gain @ S[np.ix_(o, m)]))
            assert np.array_equal(expected[o], row[o]) and not spread[o].any()

    def test_rows_at_a_time_change_nothing(self, monkeypatch):
        rng = np.random.default_rng(0)
        rows = np.where(rng.random((50, 3)) < 0.4, np.nan, rng.normal(size=(50, 3)))
        cells = CellsGivenOthers.of(rows, np.ones(50))
        whole = cells.fill(rows)
        monkeypatch.setattr("skdgp.tables.missing.NUMBERS", 20)
        assert all(np.allclose(a, b) for a, b in zip(whole, cells.fill(rows), strict=True))

    def test_moments_are_the_most_likely_ones(self):
        """The likelihood of what is known, at its maximum: no other moments do better."""
        rng = np.random.default_rng(0)
        rows = rng.multivariate_normal([0, 1, 2], [[1, 0.8, 0], [0.8, 1, 0.3], [0, 0.3, 1]], 400)
        rows[rng.random(rows.shape) < 0.3] = np.nan
        cells = CellsGivenOthers.of(rows, np.ones(400))

        def log_likelihood(mean, covariance):
            total = 0.0
            for row in rows:
                o = ~np.isnan(row)
                if o.any():
                    S, gap = covariance[np.ix_(o, o)], row[o] - mean[o]
                    total -= 0.5 * (gap @ np.linalg.solve(S, gap) + np.linalg.slogdet(S)[1])
            return total

        best = log_likelihood(cells.mean, cells.covariance)
        for _ in range(30):
            moved = 0.1 * rng.normal(size=(3, 3))
            assert best > log_likelihood(cells.mean + 0.1 * rng.normal(size=3), cells.covariance)
            assert best > log_likelihood(cells.mean, (np.eye(3) + moved) @ cells.covariance @ (np.eye(3) + moved).T)

    def test_complete_rows_have_their_own_moments(self):
        rng = np.random.default_rng(0)
        rows, weight = rng.normal(size=(100, 3)), rng.integers(1, 4, 100).astype(float)
        cells = CellsGivenOthers.of(rows, weight)
        assert np.allclose(cells.mean, np.average(rows, axis=0, weights=weight))
        assert np.allclose(cells.covariance, np.cov(rows.T, fweights=weight.astype(int), ddof=0) + RIDGE * np.eye(3))

    def test_many_columns_are_independent(self, monkeypatch):
        monkeypatch.setattr("skdgp.tables.missing.MOST_COLUMNS", 2)
        rng = np.random.default_rng(0)
        rows = np.repeat(rng.normal(size=(100, 1)), 3, axis=1)
        cells = CellsGivenOthers.of(rows, np.ones(100))
        assert np.count_nonzero(cells.covariance) == 3

    def test_means_stay_within_the_data(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=200)
        cells = CellsGivenOthers.of(np.stack([x, 2 * x], axis=1), np.ones(200))
        filled, _ = cells.fill(np.array([[1e6, np.nan], [-1e6, np.nan]]))
        assert np.array_equal(filled[:, 1], [2 * x.max(), 2 * x.min()])


class TestEncoding:
    """What models see."""

    def learnt(self, X, n_levels, y=None, *, normalize=True):
        y = np.zeros((len(X), 1)) if y is None else y
        return Encoding.learn(X, y, np.ones(len(X)), n_levels, normalize=normalize)

    def test_complete_numbers_stay_what_they_are(self):
        X = np.random.default_rng(0).normal(size=(20, 3))
        encoding, units = self.learnt(X, [0, 0, 0])
        assert encoding.encode(X) is X and encoding.groups is None
        assert np.allclose(units.shift, X.mean(0)) and np.allclose(units.scale, X.std(0))

    def test_two_levels_are_equally_far_and_a_new_one_as_well(self):
        codes = np.repeat([0.0, 1.0, 2.0], [70, 29, 1])
        encoding, units = self.learnt(np.stack([np.arange(100.0), codes], axis=1), [0, 3])
        assert encoding.groups == (0, 1, 1, 1, 1) and encoding.first.tolist() == [0, 1]
        inside = units.standardise(encoding.encode(np.stack([np.zeros(4), np.arange(4.0)], axis=1)))[:, 1:]
        distance = np.linalg.norm(inside[:, None] - inside, axis=-1)
        assert np.allclose(distance[~np.eye(4, dtype=bool)], distance[0, 1])
        all_rows = units.standardise(encoding.encode(np.stack([np.zeros(100), codes], axis=1)))[:, 1:]
        assert np.isclose(all_rows.var(axis=0).sum(), 1.0)  # of all levels together

    def test_a_cell_that_is_missing_has_a_mean_and_a_deviation(self):
        rng = np.random.default_rng(0)
        x = 5 + 2 * rng.normal(size=500)
        X = np.stack([x, 100 + 3 * x + rng.normal(size=500)], axis=1)
        X[:50, 1] = np.nan
        encoding, units = self.learnt(X, [0, 0])
        assert encoding.groups == (0, 1, 1)
        encoded = encoding.encode(X)
        assert np.array_equal(encoded[50:, :2], X[50:]) and not encoded[50:, 2].any()
        assert np.allclose(encoded[:50, 1], 100 + 3 * x[:50], atol=0.5)
        assert np.allclose(encoded[:50, 2], 1.0, atol=0.15)  # given the other column, whose own deviation is 6
        assert units.scale[1] == units.scale[2] and units.shift[2] == 0.0

    def test_squared_distances_are_those_of_wasserstein(self):
        """Against the distance by quantiles, ∫ (F⁻¹ − G⁻¹)² du."""
        X = np.array([[0.0, 1.0], [1.0, np.nan], [2.0, 5.0], [3.0, np.nan], [4.0, 2.0]])
        encoding, units = self.learnt(X, [0, 0], normalize=False)
        assert set(units.scale) == {1.0}
        (a, b), u = encoding.encode(X)[[1, 4]], (np.arange(100_000) + 0.5) / 100_000
        quantile = a[1] + a[2] * norm.ppf(u), b[1] + b[2] * norm.ppf(u)
        assert np.isclose(((a - b)[1:] ** 2).sum(), np.mean((quantile[0] - quantile[1]) ** 2), rtol=1e-3)
        kernel = StationaryKernel("rbf", 3, ard=encoding.groups)
        assert kernel.log_lengthscale.shape == (1, 2) and kernel.lengthscale.shape == (1, 3)

    def test_many_levels_take_one_column(self, monkeypatch):
        monkeypatch.setattr(encoding_file, "MOST_LEVELS", 2)
        rng = np.random.default_rng(0)
        codes = rng.integers(3, size=90).astype(float)
        y = (codes - 1)[:, None]
        X = np.stack([rng.normal(size=90), codes], axis=1)
        encoding, units = self.learnt(X, [0, 3], y)
        assert encoding.groups is None
        seen = encoding.encode(np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]))[:, 1]
        assert np.allclose(seen + y.mean(), [-1, 0, 1, y.mean()], atol=0.05)
        of_others = encoding.of_others(X, y, np.ones(90))
        assert np.allclose(encoding.encode(X, of_others)[:, 1] + y.mean(), y[:, 0], atol=0.1) and list(of_others) == [1]
        assert np.isclose(units.scale[1], y.std(), rtol=0.05)
        new = encoding.without_new_levels(np.array([[0.0, 3.0], [0.0, 2.0]]))  # it may have any effect
        drawn = encoding.encode_draws(new)[:, :, 1] + y.mean()
        assert np.isclose(drawn[:, 0].mean(), y.mean(), atol=0.1) and np.isclose(drawn[:, 0].std(), y.std(), rtol=0.2)
        assert np.allclose(drawn[:, 1], 1.0, atol=0.05)

    def test_categories_say_something_of_missing_cells(self):
        codes = np.tile([0.0, 1.0], 100)
        X = np.stack([np.where(codes == 1, 10.0, -10.0), codes], axis=1)
        X[:10, 0] = np.nan
        encoding, _ = self.learnt(X, [0, 2])
        assert np.allclose(encoding.encode(X)[:10, 0], np.where(codes[:10] == 1, 10.0, -10.0), atol=0.2)

    def test_opens_again(self):
        X = np.array([[0.0, 1.0], [1.0, np.nan], [2.0, 0.0]])
        encoding, _ = self.learnt(X[:, [0, 0]], [0, 3])
        again = Encoding.from_plain(encoding.to_plain())
        assert np.array_equal(again.encode(X[:, [0, 0]]), encoding.encode(X[:, [0, 0]]))


def _terms(kernel):
    """What a kernel object is a sum of."""
    return [*_terms(kernel.k1), kernel.k2] if isinstance(kernel, Sum) else [kernel]


class TestEstimators:
    """Fits and predictions of tables with both."""

    @pytest.mark.parametrize("model", REGRESSORS, ids=lambda model: type(model).__name__)
    def test_regressors(self, model):
        X, y = make_table()
        model.fit(X[:90], y[:90])
        assert model.score(X[90:], y[90:]) > 0.5
        assert model.is_categorical_.tolist() == [False, True, True, False, False]
        assert model.length_scales_[0].shape[-1] in (1, 5)  # a length for each feature, or one for all
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.predict(X), model.predict(X))
        gradient = model.predict_gradient(X[90:])
        known = ~(X[90:].isna().to_numpy() | model.is_categorical_)
        assert np.array_equal(np.isfinite(gradient), known)
        draws = model.sample_functions(2, random_state=0)
        assert np.isfinite(draws(X)).all() and draws.gradient(X[:4]).shape == (4, 5, 2)

    @pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda model: type(model).__name__)
    def test_classifiers(self, model):
        X, y = make_table()
        labels = np.where(y > 1, "high", np.where(y > 0, "middle", "low"))
        model.fit(X[:90], labels[:90])
        assert model.score(X[90:], labels[90:]) > 0.5
        assert model.sample_functions(1, random_state=0).gradient(X[:3]).shape == (3, 3, 5, 1)

    def test_gradients_are_differences(self):
        X, y = make_table()
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, y)
        higher, lower = X[:20].copy(), X[:20].copy()
        higher["size"] += 1e-4
        lower["size"] -= 1e-4
        complete = ~X[:20].isna().any(axis=1).to_numpy()  # else what others are taken for moves as well
        differences = (model.predict(higher) - model.predict(lower)) / 2e-4
        assert np.allclose(model.predict_gradient(X[:20])[complete, 0], differences[complete], rtol=1e-3)
        draws = model.sample_functions(3, random_state=0)
        differences = (draws(higher) - draws(lower)) / 2e-4
        assert np.allclose(draws.gradient(X[:20])[complete, 0], differences[complete], rtol=1e-2, atol=1e-2)

    def test_names_of_levels_and_their_order_do_not_matter(self):
        X, y = make_table()
        renamed = X.assign(city=X["city"].map({"Lima": "3", "Oslo": "1", "Rome": "2"}))
        numbers = X.assign(city=X["city"].map({"Lima": 0.5, "Oslo": -7.0, "Rome": 3.0}).astype(float))
        expected = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, y).predict(X)
        for other in (renamed, numbers):
            model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0, categorical_features=["city", "grade"])
            assert np.array_equal(model.fit(other, y).predict(other), expected)

    def test_unknown_levels_are_uncertain(self):
        X, y = make_table()
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, y)
        X = X[X.notna().all(axis=1)]
        new = X.assign(city="Paris")
        assert (model.predict(new, return_std=True)[1] > 1.5 * model.predict(X, return_std=True)[1]).mean() > 0.9

    def test_missing_cells_are_uncertain(self):
        X, y = make_table(200)
        model = SOLVEGPRegressor(**(SHALLOW | {"n_inducing": 50, "max_iter": 60}), n_neighbors=0).fit(X, y)
        known = X["size"].notna().to_numpy()
        hidden = X.assign(size=np.nan)
        std, of_hidden = (model.predict(each, return_std=True)[1][known] for each in (X, hidden))
        assert np.median(of_hidden) > 1.5 * np.median(std)

    def test_predictions_are_over_draws_of_missing_cells(self):
        """Against Monte Carlo: cells drawn from what their column holds, and the mixture of predictions there."""
        rng = np.random.default_rng(0)
        X = rng.normal(size=(150, 2))
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, np.sin(2 * X[:, 0]) + X[:, 1])
        mean, std = model.predict([[np.nan, 0.3], [0.1, 0.3]], return_std=True)
        drawn = np.stack([X[:, 0].mean() + X[:, 0].std() * rng.normal(size=4000), np.full(4000, 0.3)], axis=1)
        means, stds = model.predict(drawn, return_std=True)
        assert np.isclose(mean[0], means.mean(), atol=0.1)
        assert np.isclose(std[0], np.sqrt(means.var() + np.mean(stds**2)), rtol=0.1)
        assert np.allclose((mean[1], std[1]), [each[0] for each in model.predict([[0.1, 0.3]], return_std=True)])

    def test_means_of_learnt_and_of_drawn_cells_meet_halfway(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(150, 2))
        y = np.sin(2 * X[:, 0]) + X[:, 1]
        X[y > 1.2, 0] = np.nan
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0, normalize_y=False).fit(X, y)
        row, units, (inner,) = np.array([[np.nan, 0.3]]), table_of(model).units, predictor_of(model).alone().models
        drawn, learnt = table_of(model).encoding.encode_draws(row)[:, 0], table_of(model).encoding.encode(row)
        inputs = torch.as_tensor((np.vstack([drawn, learnt]) - units.shift) / units.scale)
        m, v = (each.detach().numpy()[:, 0] for each in inner(inputs).moments())
        assert abs(m[:-1].mean() - m[-1]) > 0.2  # that cells are missing says something here
        mean, std = model.predict(row, return_std=True, latent=True)
        assert np.isclose(mean, (m[:-1].mean() + m[-1]) / 2, rtol=1e-4)
        assert np.isclose(std**2, v[:-1].mean() + m[:-1].var() + (m[:-1].mean() - m[-1]) ** 2 / 4, rtol=1e-3)

    @pytest.mark.slow
    def test_all_of_the_face_agrees_about_missing_cells(self):
        X, y = make_table(150)
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, y)
        some = X[:12].assign(size=np.where(np.arange(12) % 3 == 0, np.nan, X["size"][:12].fillna(0.0)))
        mean, std = model.predict(some, return_std=True)
        assert np.allclose(np.sqrt(np.diag(model.predict(some, return_cov=True)[1])), std)
        dist = model.predict_dist(some)
        assert np.allclose(dist.mean, mean) and np.allclose(dist.std, std)
        draws = model.sample_y(some, 3000, random_state=0)
        assert np.allclose(draws.mean(axis=1), mean, atol=0.06) and np.allclose(draws.std(axis=1), std, rtol=0.1)
        order = np.random.default_rng(0).permutation(12)
        assert np.allclose(model.predict(some.iloc[order]), mean[order])
        assert np.allclose([model.predict(some[i : i + 1])[0] for i in range(12)], mean)

    @pytest.mark.parametrize("likelihood", ["gaussian", "gamma", "heteroskedastic"])
    def test_covariances_are_over_independent_draws_of_missing_cells(self, likelihood):
        """By plain means over all pairs of draws, which complete rows stand for."""
        rng = np.random.default_rng(0)
        X = rng.normal(size=(60, 3))
        y = np.exp(np.sin(2 * X[:, 0]) + X[:, 1])
        params = SHALLOW | {"n_estimators": 2, "early_stopping": True, "likelihood": likelihood}
        model = SOLVEGPRegressor(**params, n_neighbors=0).fit(X, y)
        rows = X[:5].copy()
        rows[[0, 2, 3], 0], rows[[3, 4], 1] = np.nan, np.nan
        draws = np.repeat(X[None, :5], 16, axis=0)
        draws[:, [0, 2, 3, 4]] = table_of(model).encoding.encode_draws(rows[[0, 2, 3, 4]])
        whole = model.predict(draws.reshape(-1, 3), return_cov=True, latent=True)[1].reshape(16, 5, 16, 5)
        expected = whole.mean(axis=(0, 2))
        std = model.predict(rows, return_std=True, latent=True)[1]
        np.fill_diagonal(expected, std**2)
        found = model.predict(rows, return_cov=True, latent=True)[1]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * expected.max())
        assert np.linalg.eigvalsh(found).min() > 0
        whole = model.predict(rows, return_cov=True)[1]
        np.testing.assert_allclose(whole - np.diag(whole.diagonal() - found.diagonal()), found)
        np.testing.assert_allclose(np.sqrt(whole.diagonal()), model.predict(rows, return_std=True)[1])

    @pytest.mark.slow
    @pytest.mark.parametrize("learnt", [False, True], ids=["drawn", "learnt"])
    @pytest.mark.parametrize("base", [None, "gp"])
    def test_joint_moments_of_rows_with_missing_cells(self, learnt, base, monkeypatch):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(120, 2))
        y = np.sin(2 * X[:, 0]) + X[:, 1]
        rows = np.array([[np.nan, 0.3], [np.nan, 0.4], [0.2, 0.3], [0.5, np.nan], [np.nan, np.nan]])
        if learnt:
            X[y > 1.2, 0] = np.nan
        model = SOLVEGPRegressor(**SHALLOW | {"base": base, "n_inducing": 20}, n_neighbors=0).fit(X, 100 * y)
        for latent in (not learnt, learnt):
            mean, covariance = model.predict(rows, return_cov=True, latent=latent)
            std = model.predict(rows, return_std=True, latent=latent)[1]
            spread = np.outer(std, std)
            np.testing.assert_allclose(covariance.diagonal(), std**2, rtol=1e-6)
            assert np.array_equal(covariance, covariance.T) and np.linalg.eigvalsh(covariance / spread).min() > -1e-9
        draws = model.sample_y(rows, 1500, random_state=0, latent=learnt)
        assert (np.abs(draws.mean(axis=1) - mean) < 0.12 * std).all()
        assert (np.abs(np.cov(draws) - covariance) < 0.15 * spread).all()
        monkeypatch.setattr("skdgp.estimators._predicting.MOST_ROWS", 10)  # fewer draws
        few, std = (model.predict(rows, latent=True, **{kind: True})[1] for kind in ("return_cov", "return_std"))
        np.testing.assert_allclose(few.diagonal(), std**2, rtol=1e-6)
        assert np.linalg.eigvalsh(few / np.outer(std, std)).min() > -1e-9

    @pytest.mark.slow
    @pytest.mark.parametrize("learnt", [False, True], ids=["drawn", "learnt"])
    def test_covariances_of_outputs_of_rows_with_missing_cells(self, learnt):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(120, 2))
        y = np.column_stack([np.sin(2 * X[:, 0]) + X[:, 1], 100 * X[:, 0]])
        rows = np.array([[np.nan, 0.3], [0.2, 0.3], [np.nan, -1.0]])
        if learnt:
            X[X[:, 1] > 0.5, 0] = np.nan
        model = SOLVEGPRegressor(**SHALLOW | {"n_inducing": 20}, n_neighbors=0).fit(X, y)
        for latent in (True, False):
            found = model.predict_output_cov(rows, latent=latent)
            std = model.predict(rows, return_std=True, latent=latent)[1]
            np.testing.assert_allclose(found[:, [0, 1], [0, 1]], std**2, rtol=1e-6)
            draws = model.sample_y(rows, 1500, random_state=0, latent=latent)
            for n in range(3):
                assert (np.abs(np.cov(draws[n]) - found[n]) < 0.15 * np.outer(std[n], std[n])).all()

    def test_probabilities_of_missing_cells_are_averages(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(200, 2))
        model = SOLVEGPClassifier(**SHALLOW).fit(X, X[:, 0] > 0)
        assert np.allclose(model.predict_proba([[np.nan, 0.0]]), 0.5, atol=0.1)

    def test_cells_may_be_missing_in_predictions_alone(self):
        rng = np.random.default_rng(0)
        X = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], 100)
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, X.sum(axis=1))
        query = X[:20].copy()
        query[:, 1] = np.nan
        assert model.score(query, X[:20].sum(axis=1)) > 0.8
        assert np.isfinite(model.predict([[np.nan, np.nan]], return_std=True)).all()

    @pytest.mark.parametrize("model", [DSDGPRegressor((2,), **DEEP), DSDGPClassifier((2,), **DEEP)])
    def test_chunks(self, model):
        X, y = make_table()
        y, more = (np.where(y > 0, "high", "low"), {"classes": ["high", "low"]}) if "Class" in repr(model) else (y, {})
        model.partial_fit(X[:60], y[:60], **more)
        rest = X[60:].assign(new=np.nan)  # a column of which the first chunk has every cell
        rest.loc[61, "city"] = "Paris"
        model.partial_fit(rest, y[60:])
        assert np.isfinite(model.score(X, y)) and len(model.predict(rest)) == 60

    @pytest.mark.slow
    def test_rows_that_judge_and_warm_starts(self):
        X, y = make_table()
        model = DSDGPRegressor((2,), **DEEP, early_stopping=True, warm_start=True)
        model.fit(X[:90], y[:90], X_val=X[90:], y_val=y[90:])
        model.fit(X[:90], y[:90])
        with pytest.raises(ValueError, match="built with categorical_features='from_dtype', but categorical_features"):
            model.set_params(categorical_features=None).fit(X[["size", "rooms"]], y)

    @pytest.mark.slow
    @pytest.mark.parametrize("inducing", ["fourier", "points+fourier"])
    def test_sums_over_inputs_are_over_columns(self, inducing):
        X, y = make_table()
        model = SOLVEGPRegressor(120, 120, inducing=inducing, max_iter=5, random_state=0).fit(X, y)
        selected = [each.k2.columns for each in _terms(model.kernel_)]
        assert selected == list(range(table_of(model).encoding.width))
        assert np.isfinite(model.predict(X)).all()

    def test_hundreds_of_levels(self):
        rng = np.random.default_rng(0)
        codes = rng.integers(300, size=2000)
        effect = rng.normal(size=300)
        X = pd.DataFrame({"x": rng.normal(size=2000), "shop": pd.Categorical([f"shop {code}" for code in codes])})
        y = effect[codes] + 0.3 * rng.normal(size=2000)
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X[:1800], y[:1800])
        assert model.inducing_points_.shape[-1] == 2  # one column
        assert model.score(X[1800:], y[1800:]) > 0.7
        lower, upper = model.predict_interval(X[1800:], 0.9).T
        assert 0.82 < np.mean((lower < y[1800:]) & (y[1800:] < upper)) < 0.97

    def test_new_levels_among_hundreds_have_the_variance_of_effects(self):
        rng = np.random.default_rng(0)
        codes = np.repeat(np.arange(350), 4)
        y = rng.normal(size=350)[codes] + 0.3 * rng.normal(size=1400)
        X = pd.DataFrame({"x": rng.normal(size=1400), "shop": [f"shop {code}" for code in codes]})
        known = codes < 200
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X[known], y[known])
        mean, std = model.predict(X[~known], return_std=True)
        assert 0.7 < std.mean() < 1.4 and model.predict(X[known], return_std=True)[1].mean() < 0.6
        lower, upper = model.predict_interval(X[~known], 0.9).T
        assert 0.82 < np.mean((lower < y[~known]) & (y[~known] < upper)) < 0.97
        assert np.allclose(model.predict(X[~known][:1]), mean[:1])

    @any_options
    def test_kernel_objects_speak_of_features(self):
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

        X, y = make_table()
        kernel = (
            ConstantKernel() * RBF([1.0, 2.0, 3.0, 4.0, 5.0]) + Select(Matern(nu=1.5), "city") + Select(RBF(), [3, 4])
        )
        model = SOLVEGPRegressor(**(SHALLOW | {"base": "gp"}), n_neighbors=0, kernel=kernel).fit(X[:90], y[:90])
        assert model.score(X[90:], y[90:]) > 0.5
        assert model.kernel_.k1.k1.k2.length_scale.shape == (5,)
        part = model.module_[0].layers[0].kernel
        columns = [each.columns for each in part.modules() if hasattr(each, "columns")]
        widths = np.bincount(table_of(model).encoding.groups)
        assert sorted(len(each) for each in columns) == sorted([widths[1], widths[3] + widths[4]])
        with pytest.raises(ValueError, match="with 3 lengthscales, but a layer with 5 inputs"):
            SOLVEGPRegressor(kernel=RBF([1.0, 2.0, 3.0])).fit(X, y)

    def test_lengths_of_neighbours_are_those_of_features(self):
        X, y = make_table(200)
        model = SOLVEGPRegressor(**(SHALLOW | {"base": "gp"}), n_neighbors=8).fit(X, y)
        assert model.neighbors_["length_scales"].shape == (5,)
        assert np.isfinite(model.predict(X)).all()

    def test_latent_variables_come_after_the_columns(self):
        X, y = make_table()
        model = DSDGPRegressor((), **(DEEP | {"max_iter": 4}), latent_dims=1).fit(X, y)
        assert model.length_scales_[0].shape == (1, 1, 6) and np.isfinite(model.predict(X)).all()
        assert "length_scale=" in repr(model.kernel_)

    def test_outputs_of_which_some_are_missing(self):
        X, y = make_table()
        Y = np.stack([y, -y], axis=1)
        Y[::3, 1] = np.nan
        model = SOLVEGPRegressor(**SHALLOW, n_latent_outputs=1).fit(X, Y)
        assert model.score(X, np.stack([y, -y], axis=1)) > 0.5

    @pytest.mark.slow
    def test_pipelines_searches_and_importance(self):
        X, y = make_table()
        scaled = make_column_transformer((StandardScaler(), ["size", "rooms"]), remainder="passthrough")
        pipeline = make_pipeline(scaled.set_output(transform="pandas"), SOLVEGPRegressor(**SHALLOW, n_neighbors=0))
        grid = {"solvegpregressor__categorical_features": ["from_dtype", [2, 3]]}
        search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
        importance = permutation_importance(search, X, y, n_repeats=2, random_state=0).importances_mean
        assert importance[:2].min() > 5 * np.abs(importance[2:]).max()

    def test_weights_that_are_none_leave_levels_out(self):
        X, y = make_table()
        weight = (X["city"] != "Rome").to_numpy().astype(float)
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, y, sample_weight=weight)
        alone = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X[weight > 0], y[weight > 0])
        assert np.allclose(model.predict(X), alone.predict(X), atol=0.2)

    def test_infinite_cells_and_missing_targets_are_errors(self):
        X, y = make_table()
        with pytest.raises(ValueError, match="infinity"):
            SOLVEGPRegressor().fit(X.assign(size=np.inf), y)
        with pytest.raises(ValueError, match="y contains NaN"):
            SOLVEGPRegressor().fit(X, np.where(y > 1, np.nan, y))
        with pytest.raises(ValueError, match="Column 'city' of X holds text, such as"):
            SOLVEGPRegressor(categorical_features=None).fit(X, y)
        with pytest.raises(TypeError, match=r"Column 'pair' of X holds \(1, 'a'\), but a cell"):
            SOLVEGPRegressor().fit(X.assign(pair=[(1, "a")] * len(X)), y)
        with pytest.raises(TypeError, match="Sparse data was passed"):
            SOLVEGPRegressor(categorical_features=[0]).fit(csr_matrix(np.eye(5)), np.arange(5.0))

    def test_other_columns_than_before_are_errors(self):
        X, y = make_table()
        model = SOLVEGPRegressor(**SHALLOW, n_neighbors=0).fit(X, y)
        for wrong in (X[["size", "city"]], X.rename(columns={"size": "width"}), X[X.columns[::-1]]):
            with pytest.raises(ValueError, match=r"feature names|Feature names"):
                model.predict(wrong)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an array has no names
            assert np.allclose(model.predict(X.astype(object).to_numpy()), model.predict(X))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_table_can_be_learnt_from(data):
    """Columns of any kind, with missing cells, levels seen once, and columns that are constant or missing."""
    n_rows = data.draw(st.integers(2, 30))
    kinds = {
        "number": st.floats(-1e3, 1e3) | st.none(),
        "constant": st.just(1.0) | st.none(),
        "missing": st.none(),
        "text": st.sampled_from(["a", "b", "c"]) | st.none(),
        "any text": st.text(max_size=3),
        "truth": st.booleans(),
    }
    chosen = data.draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=4))
    columns = {}
    for number, kind in enumerate(chosen):
        values = data.draw(st.lists(kinds[kind], min_size=n_rows, max_size=n_rows))
        text = kind in ("text", "any text")
        columns[f"{kind} {number}"] = pd.Series(values, dtype="category" if text else None)
        if kind in ("number", "constant", "missing"):
            columns[f"{kind} {number}"] = columns[f"{kind} {number}"].astype(float)
    X, y = pd.DataFrame(columns), np.random.default_rng(0).normal(size=n_rows)
    model = SOLVEGPRegressor(4, 0, base=None, n_neighbors=0, max_iter=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model.fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
    half = X.copy()
    for name in half:
        half[name] = pd.Series([None] * n_rows, dtype=object)
    assert np.isfinite(model.predict(half, return_std=True)).all()


@pytest.mark.parametrize(
    "weight", [lambda w: w, list, pd.Series, torch.tensor], ids=["array", "list", "series", "tensor"]
)
def test_rows_of_no_weight_have_no_levels(weight):
    """Neither does their number decide the order of levels, on which drawn functions depend."""
    X = pd.DataFrame({"colour": 6 * ["red"] + 4 * ["blue"] + 5 * ["green"], "size": np.arange(15.0)})
    options = {"n_inducing": 4, "n_orthogonal": 0, "max_iter": 1, "base": None, "random_state": 0}
    model = SOLVEGPRegressor(**options).fit(X, X["size"], weight(np.r_[np.zeros(4), np.ones(6), np.zeros(5)]))
    assert table_of(model).columns.levels == [["blue", "red"], None]
    expected = SOLVEGPRegressor(**options).fit(X[4:10], X["size"][4:10])
    drawn, alone = (each.sample_functions(2, random_state=0)(X[:8]) for each in (model, expected))
    np.testing.assert_array_equal(drawn, alone)


def test_new_levels_have_the_variance_of_effects():
    """A level that no row has is as uncertain as the effects of known levels differ; known levels are known."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 6)
    X = pd.DataFrame({"a": rng.normal(size=360), "group": [f"group {number}" for number in group]})
    effect = rng.normal(size=60)
    y = np.sin(X["a"]) + effect[group] + 0.1 * rng.normal(size=360)
    new = group >= 40
    model = SOLVEGPRegressor(n_neighbors=0, random_state=0).fit(X[~new], y[~new])
    mean, std = model.predict(X[new], return_std=True)
    assert 0.7 < std.mean() < 1.4
    assert 0.8 < (np.abs(y[new] - mean) < 1.645 * std).mean() < 0.99
    assert model.predict(X[~new], return_std=True)[1].mean() < 0.2


class TestColumnsThatTellNothing:
    """One warning for each kind of them, and predictions that they do not change."""

    N_ROWS = 30

    @pytest.fixture
    def frame(self):
        rng = np.random.default_rng(0)
        return pd.DataFrame(rng.normal(size=(self.N_ROWS, 2)), columns=["a", "b"])

    @staticmethod
    def fit(X, **options):
        y = np.sin(np.arange(len(X)))
        return SOLVEGPRegressor(4, 0, base=None, n_neighbors=0, max_iter=3, random_state=0, **options).fit(X, y)

    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (np.full(N_ROWS, np.nan), "^Column 'e' of X is empty: no row has a value in it. .*: leave it out, or fill"),
            (pd.Series(N_ROWS * [None], dtype="category"), "^Column 'e' of X is empty"),
            (np.full(N_ROWS, 3.0), "^Column 'e' of X has the same value in all rows. .*: leave it out.$"),
            (N_ROWS * ["x"], "^Column 'e' of X has the same value in all rows"),
            ([f"id {i}" for i in range(N_ROWS)], "^Column 'e' of X is a category with a level of its own in almost"),
            (["id 1", *(f"id {i}" for i in range(1, N_ROWS))], "^Column 'e' of X is a category with a level of its"),
        ],
        ids=["empty", "empty category", "constant", "one level", "ids", "ids, one twice"],
    )
    def test_warnings_name_column_cure_and_the_users_line(self, frame, column, message):
        with pytest.warns(UserWarning, match=message) as caught:
            self.fit(frame.assign(e=column))
        assert len(caught) == 1 and caught[0].filename == __file__

    @pytest.mark.parametrize(
        "column",
        [
            np.arange(N_ROWS),
            np.r_[np.nan, np.full(N_ROWS - 1, 3.0)],
            np.r_[np.full(N_ROWS - 1, np.nan), 3.0],
            [*("x" for _ in range(N_ROWS - 1)), None],
            [f"subject {i // 2}" for i in range(N_ROWS)],
        ],
        ids=["numbers of rows", "gaps tell", "one value", "gaps in text", "panel"],
    )
    def test_no_false_alarm(self, frame, column):
        self.fit(frame.assign(e=column))  # a warning would be an error

    @pytest.mark.parametrize("how", ["chosen", "array", "chunk"])
    def test_ids_that_are_left_out_are_named(self, how):
        """Also where a column of few ids would not be, since it has an effect then."""
        X = pd.DataFrame({"a": np.linspace(-1, 1, 150), "e": [f"id {i}" for i in range(150)]})
        X, chosen = (X.to_numpy(), [1]) if how == "array" else (X, ["e"] if how == "chosen" else "from_dtype")
        model = SOLVEGPRegressor(4, 0, base=None, n_neighbors=0, max_iter=1, categorical_features=chosen)
        with pytest.warns(UserWarning, match="^Column .* of X is a category with a level of its own") as caught:
            (model.partial_fit if how == "chunk" else model.fit)(X, np.linspace(-1, 1, 150))
        assert len(caught) == 1

    def test_few_rows_arrays_and_chunks_are_not_called_constant(self, frame):
        self.fit(frame[:8].assign(e=1.0))
        self.fit(frame.assign(e=1.0).to_numpy())
        model = SOLVEGPRegressor(4, 0, base=None, max_iter=1, random_state=0)
        model.partial_fit(frame.assign(e=1.0), frame["a"])

    def test_columns_without_names_are_numbered_and_many_are_counted(self, frame):
        with pytest.warns(UserWarning, match="^Column 2 of X is empty"):
            self.fit(frame.assign(e=np.nan).to_numpy())
        with pytest.warns(UserWarning, match="The same holds for 'e1', 'e2', 'e3', 'e4' and 2 more.$") as caught:
            self.fit(frame.assign(**{f"e{i}": 1.0 for i in range(7)}))
        assert len(caught) == 1

    @pytest.mark.parametrize("tiny", [SOLVEGPRegressor, DSDGPRegressor, AVDGPRegressor])
    def test_an_empty_column_predicts_as_a_column_of_zeros(self, frame, tiny):
        """It has nothing to draw, and values that come later do not matter."""
        y, model = np.sin(frame["a"]), tiny(max_iter=3, random_state=0)
        with pytest.warns(UserWarning, match="^Column .e. of X has the same value"):
            expected = clone(model).fit(frame.assign(e=0.0), y).predict(frame.assign(e=0.0), return_std=True)
        with pytest.warns(UserWarning, match="is empty"):
            model.fit(frame.assign(e=np.nan), y)
        for value in (np.nan, 0.0, 5.0):
            np.testing.assert_array_equal(model.predict(frame.assign(e=value), return_std=True), expected)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(frame.assign(e=7.0), return_std=True), expected)
        assert table_of(model).encoding.from_plain(table_of(model).encoding.to_plain()).empty == [False, False, True]
        drawn = model.sample_functions(2, random_state=0)
        np.testing.assert_array_equal(drawn(frame.assign(e=np.nan)), drawn(frame.assign(e=1.0)))
