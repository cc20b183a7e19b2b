"""Dependences agree with scikit-learn's, sensitivities with known ones, and functions with what they are drawn from."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers import CLASSIFIERS, DEEP_REGRESSORS, REGRESSORS, name_of
from scipy.stats import sobol_indices, uniform
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skdgp import DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.inspection import dependence, sensitivity
from skdgp.inspection._dependence import subsample_of

ROOT = Path(__file__).resolve().parents[1]

FEW = {"n_draws": 12, "grid_resolution": 6, "random_state": 0}


@pytest.fixture(scope="module")
def frame():
    """A frame with a number that has gaps, a category, truth values and an ordered category; and targets."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=80), "age": rng.uniform(0, 90, 80)})
    X["city"] = rng.choice(["Rome", "Oslo", "Lima"], 80)
    X["garden"] = rng.random(80) < 0.5
    X["state"] = pd.Categorical(rng.choice(["poor", "fair", "good"], 80), ["poor", "fair", "good"], ordered=True)
    y = X["size"] + 0.5 * (X["city"] == "Oslo") + 0.3 * X["garden"] + 0.05 * rng.normal(size=80)
    X.loc[::9, "age"] = np.nan
    X.loc[4, "city"] = None
    return X, y.to_numpy()


@pytest.fixture(scope="module")
def house(frame):
    """A model of the frame."""
    return SOLVEGPRegressor(10, 0, max_iter=20, n_neighbors=0, random_state=0).fit(*frame)


def set_to(X, column, value):
    """Rows in which a column of numbers has one value."""
    X = X.copy()
    X[:, column] = value
    return X


class TestDependence:
    @pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
    @pytest.mark.parametrize("sample_weight", [None, np.arange(120.0)], ids=["equal", "weighted"])
    def test_the_average_is_that_of_scikit_learn(self, tiny, wave, sample_weight):
        model = tiny(n_estimators=2).fit(*wave)
        options = {"sample_weight": sample_weight, "grid_resolution": 7, "kind": "both"}
        expected = partial_dependence(model, wave[0], [1], **options)
        result = dependence(model, wave[0], 1, n_draws=0, **options)
        np.testing.assert_allclose(result.grid_values, expected.grid_values[0])
        np.testing.assert_allclose(result.average, expected.average[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result.individual, expected.individual[0], rtol=1e-5, atol=1e-6)
        assert result.draws is None and result.lower is None and result.upper is None

    @pytest.mark.parametrize("tiny", CLASSIFIERS, ids=name_of)
    @pytest.mark.parametrize("n_classes", [2, 3])
    def test_probabilities_are_those_of_scikit_learn(self, tiny, wave, n_classes):
        X, labels = wave[0], np.array(["a", "b", "c"])[np.digitize(wave[1], [0.0, 0.8][: n_classes - 1])]
        model = tiny().fit(X, labels)
        expected = partial_dependence(model, X, [0], grid_resolution=4).average
        result = dependence(model, X, 0, target=None if n_classes == 2 else "c", n_draws=8, grid_resolution=4)
        np.testing.assert_allclose(result.average, expected[-1], rtol=1e-5)
        assert result.draws.min() >= 0 and result.draws.max() <= 1

    def test_draws_are_averages_of_functions_around_the_average(self, tiny, wave):
        X, y = wave
        model = tiny(n_estimators=2).fit(X, y)
        weight = np.linspace(0, 1, len(X))
        result = dependence(model, X, 0, subsample=None, sample_weight=weight, confidence_level=0.8, **FEW)
        draws = model.sample_functions(12, np.random.RandomState(0))
        values = [draws(set_to(X, 0, value)) for value in result.grid_values]
        expected = np.stack([np.average(of_rows, axis=0, weights=weight) for of_rows in values])
        expected += (result.average - expected.mean(axis=1))[:, None]
        np.testing.assert_allclose(result.draws, expected)
        np.testing.assert_allclose([result.lower, result.upper], np.quantile(expected, [0.1, 0.9], axis=1))

    def test_bands_have_the_width_of_the_joint_covariance(self, wave):
        """The variance of a mean over rows is the mean of all entries of their covariance."""
        X, y = wave[0][:30], wave[1][:30]
        model = SOLVEGPRegressor("auto", 0, method="collapsed", base=None, n_neighbors=0, max_iter=20).fit(X, y)
        result = dependence(model, X, 2, n_draws=1000, grid_resolution=3, random_state=0)
        expected = [
            model.predict(set_to(X, 2, value), return_cov=True, latent=True)[1].mean() ** 0.5
            for value in result.grid_values
        ]
        np.testing.assert_allclose(result.draws.std(axis=1), expected, rtol=0.1)
        np.testing.assert_allclose(result.upper - result.lower, 2 * 1.645 * np.array(expected), rtol=0.1)

    def test_functions_are_the_same_for_every_feature_and_rows_are_few(self, wave):
        model = DEEP_REGRESSORS[1]().fit(*wave)
        one, other = (dependence(model, wave[0], j, subsample=20, **FEW) for j in (0, 1))
        np.testing.assert_array_equal(one.rows, other.rows)
        assert len(one.rows) == 20 == len(set(one.rows))
        weight = np.r_[np.zeros(100), np.ones(20)]
        assert set(dependence(model, wave[0], 0, sample_weight=weight, **FEW).rows) == set(range(100, 120))

    @pytest.mark.slow
    def test_categories_truth_values_and_missing_cells(self, house, frame):
        X, _ = frame
        result = dependence(house, X, "city", kind="both", **FEW)
        assert result.is_categorical and result.grid_values == ["Lima", "Oslo", "Rome", None]
        assert result.deciles is None and result.individual.shape == (80, 4)
        for level, average in zip(result.grid_values, result.average, strict=True):
            np.testing.assert_allclose(average, house.predict(X.assign(city=level)).mean(), rtol=1e-6)
        assert (result.lower <= result.average).all() and (result.average <= result.upper).all()
        assert dependence(house, X, "state", **FEW).grid_values == ["poor", "fair", "good"]  # in their order
        assert dependence(house, X, "garden", **FEW).grid_values == [False, True]
        age = dependence(house, X, "age", **FEW)
        known = X["age"].dropna()
        assert known.min() < age.grid_values[0] < age.grid_values[-1] < known.max()
        np.testing.assert_allclose(age.deciles, np.quantile(known, np.arange(1, 10) / 10))

    @pytest.mark.slow
    def test_polars_arrays_of_objects_and_lists(self, house, frame):
        X, y = frame
        expected = dependence(house, X, "city", **FEW)
        table = pl.from_pandas(X.astype({"state": str}))
        model = SOLVEGPRegressor(10, 0, max_iter=20, n_neighbors=0, random_state=0).fit(table, y)
        result = dependence(model, table, "city", **FEW)
        np.testing.assert_allclose(result.average, expected.average, rtol=1e-4)
        chosen = X[["size", "city"]].astype({"city": object})
        rows = chosen.to_numpy().tolist()
        by_number = SOLVEGPRegressor(10, 0, max_iter=20, categorical_features=[1], random_state=0).fit(rows, y)
        by_name = SOLVEGPRegressor(10, 0, max_iter=20, random_state=0).fit(chosen, y)
        for feature in (0, 1):
            result = dependence(by_number, rows, feature, **FEW)
            np.testing.assert_allclose(result.average, dependence(by_name, chosen, feature, **FEW).average, rtol=1e-6)

    @pytest.mark.slow
    def test_a_pipeline_and_a_search(self, frame):
        X, y = frame[0][["size", "city"]].fillna("Rome"), frame[1]
        columns = make_column_transformer((OneHotEncoder(), ["city"]), remainder=StandardScaler())
        model = SOLVEGPRegressor(10, 0, max_iter=10, n_neighbors=0, random_state=0)
        pipeline = make_pipeline(columns, model).fit(X, y)
        search = GridSearchCV(make_pipeline(columns, model), {"solvegpregressor__kernel": ["rbf"]}, cv=2).fit(X, y)
        for estimator in (pipeline, search):
            result = dependence(estimator, X, "city", **FEW)
            expected = [estimator.predict(X.assign(city=level)).mean() for level in ("Lima", "Oslo", "Rome")]
            np.testing.assert_allclose(result.average, expected, rtol=1e-6)

    @pytest.mark.parametrize(
        ("kind", "given"),
        [
            ("datetime64[ns]", lambda value: pd.Timestamp(value)),
            ("datetime64[us, Europe/Berlin]", lambda value: pd.Timestamp(value).tz_localize("Europe/Berlin")),
            ("period[D]", lambda value: pd.Period(value, "D")),
            ("timedelta64[s]", lambda value: pd.Timedelta(value, unit="D")),
        ],
    )
    def test_dates_and_durations_are_set_to_those_that_occur(self, kind, given):
        dates = pd.Series(pd.date_range("2024-01-01", periods=40, freq="9D"))
        values = dates - dates[0] if kind.startswith("timedelta") else dates.dt.to_period("D")
        if kind.startswith("datetime"):
            values = dates.dt.tz_localize("Europe/Berlin") if "Berlin" in kind else dates
        X = pd.DataFrame({"size": np.resize([0.0, 1.0, 3.0], 40), "when": values.astype(kind)})
        model = REGRESSORS[2]().fit(X, X["size"] + np.arange(40) / 10)
        result = dependence(model, X, "when", **FEW)
        for number, value in enumerate(result.grid_values):
            column = pd.Series([given(value)] * 40, dtype=kind)
            np.testing.assert_allclose(result.average[number], model.predict(X.assign(when=column)).mean(), rtol=1e-6)
        assert len(result.grid_values) == 6 and (np.diff(result.average) > 0).all()
        with pytest.raises(ValueError, match="feature 'when' has only the value "):
            dependence(model, X.assign(when=X["when"].iloc[0]), "when")

    @pytest.mark.parametrize("scale", [1e-6, 1e6])
    def test_units(self, wave, scale):
        X, y = wave
        plain, scaled = (REGRESSORS[2]().fit(X * factor, y * factor) for factor in (1.0, scale))
        expected, result = dependence(plain, X, 0, **FEW), dependence(scaled, X * scale, 0, **FEW)
        for name in ("grid_values", "average", "lower", "upper"):
            np.testing.assert_allclose(result[name] / scale, expected[name], rtol=1e-3, atol=1e-3)

    @pytest.mark.slow
    def test_outputs_transformed_targets_and_trends(self, wave):
        X, y = wave
        two = DEEP_REGRESSORS[0]().fit(X, np.column_stack([y, -y]))
        np.testing.assert_allclose(
            dependence(two, X, 0, target=1, **FEW).average[0],
            two.predict(set_to(X, 0, dependence(two, X, 0, target=1, **FEW).grid_values[0]))[:, 1].mean(),
            rtol=1e-5,
        )
        log = REGRESSORS[2](target_transform="log").fit(X, np.exp(y))
        result = dependence(log, X, 0, **FEW)
        expected = log.predict(set_to(X, 0, result.grid_values[2]), latent=True).mean()
        np.testing.assert_allclose(result.average[2], expected, rtol=1e-5)
        trend = REGRESSORS[2](trend=HistGradientBoostingRegressor(max_iter=5)).fit(X, y)
        result = dependence(trend, X, 0, **FEW)
        assert (result.lower < result.average).all() and (result.average < result.upper).all()

    def test_what_does_not_go(self, wave):
        X, y = wave
        model = REGRESSORS[2]().fit(X, y)
        wrong = [
            ({"n_draws": 1}, "n_draws=1 must be the number of functions, at least 2, or 0 for none"),
            ({"confidence_level": 1.5}, "confidence_level must lie between 0 and 1, got 1.5"),
            ({"subsample": 0}, "subsample=0 must be a number of rows, at least 1, or None"),
            ({"kind": "ice"}, "kind='ice' is none of ['average', 'individual', 'both']: give one"),
            ({"percentiles": (0.9, 0.1)}, "percentiles=(0.9, 0.1) must be two numbers between 0 and 1"),
            ({"grid_resolution": 1}, "grid_resolution=1 makes no grid: give a whole number from 2 on"),
            ({"target": 1}, "target=1 is none of [0]: give one of them"),
        ]
        for options, message in wrong:
            with pytest.raises(ValueError, match=re.escape(message)):
                dependence(model, X, 0, **options)
        with pytest.raises(ValueError, match="feature 'a' is a name, but columns have none"):
            dependence(model, X, "a")
        with pytest.raises(ValueError, match="sample_weight is zero in all rows, so that they have no average"):
            subsample_of(np.zeros(120), None, None)  # newer versions of scikit-learn refuse such weights before
        for value, got in ((1.0, "only the value 1"), (np.nan, "no value")):
            with pytest.raises(ValueError, match=rf"feature 'X\[:, 0\]' has {got} between these percentiles"):
                dependence(model, set_to(X, 0, value), 0)
        with pytest.raises(NotFittedError):
            dependence(REGRESSORS[2](), X, 0)
        with pytest.raises(TypeError, match=r"dependence takes estimators of skdgp, or pipelines .*, got LinearRegr"):
            dependence(LinearRegression().fit(X, y), X, 0)
        three = SOLVEGPClassifier(5, 0, max_iter=1).fit(X, np.digitize(y, [0, 1]))
        with pytest.raises(ValueError, match=r"The model has 3 classes, \[0, 1, 2\]: choose one of them, such as targ"):
            dependence(three, X, 0)

    def test_functions_that_cannot_be_drawn(self, wave):
        power = SOLVEGPRegressor(5, 0, kernel=RBF(1.0) ** 5, base=None, n_neighbors=0, max_iter=1).fit(*wave)
        with pytest.raises(ValueError, match="Functions cannot be drawn with Power"):
            dependence(power, wave[0], 0)
        assert dependence(power, wave[0], 0, n_draws=0).draws is None
        latent = DSDGPRegressor((), 5, latent_dims=1, max_iter=1, n_estimators=1).fit(*wave)
        with pytest.raises(ValueError, match="latent_dims=1 gives each row latent variables of its own"):
            dependence(latent, wave[0], 0)


def product(X):
    """A function with an interaction."""
    return X[:, 0] + 2 * X[:, 0] * X[:, 1]


class TestSensitivity:
    @pytest.mark.slow
    def test_indices_are_those_of_scipy(self):
        rng = np.random.default_rng(0)
        X = np.stack([rng.permutation(np.linspace(-1, 1, 200)) for _ in range(3)], axis=1)
        model = SOLVEGPRegressor(40, 0, kernel="rbf", n_neighbors=0, max_iter=40, random_state=0).fit(X, product(X))
        result = sensitivity(model, X, n_draws=4, n_samples=1024, random_state=0)
        draws = model.sample_functions(4, np.random.RandomState(0))
        cube = 3 * [uniform(-1, 2)]
        expected = sobol_indices(func=lambda x: draws(x.T).T, n=1024, dists=cube, rng=0)
        np.testing.assert_allclose(result.first_order_draws, expected.first_order.T, atol=0.05)
        np.testing.assert_allclose(result.total_order_draws, expected.total_order.T, atol=0.05)
        variance = 1 / 3 + 4 / 9  # of x and of 2 x x'
        np.testing.assert_allclose(result.first_order, [1 / 3 / variance, 0, 0], atol=0.06)
        np.testing.assert_allclose(result.total_order, [1, 4 / 9 / variance, 0], atol=0.06)
        np.testing.assert_allclose(result.total_order, result.total_order_draws.mean(axis=1))
        np.testing.assert_allclose(result.first_order_std, result.first_order_draws.std(axis=1))

    def test_groups_and_categories(self, house, frame):
        X, _ = frame
        options = {"n_draws": 4, "n_samples": 256, "random_state": 0}
        single = sensitivity(house, X, **options)
        assert single.feature_names == ["size", "age", "city", "garden", "state"]
        assert single.total_order[[0, 2]].min() > 0.02 > single.total_order[4]
        assert single.total_order.argmax() == 0
        some = sensitivity(house, X, features=["city", ["size", "garden"]], **options)
        assert some.feature_names == ["city", ("size", "garden")]
        expected = [single.total_order[2], single.total_order[0] + single.total_order[3]]
        np.testing.assert_allclose(some.total_order, expected, atol=0.04)  # the function is nearly additive

    @pytest.mark.slow
    def test_one_feature_explains_everything(self):
        X = np.linspace(0, 1, 40)[:, None]
        model = SOLVEGPRegressor(10, 0, max_iter=10).fit(X, np.sin(6 * X[:, 0]))
        result = sensitivity(model, X, n_draws=3, random_state=0)
        np.testing.assert_allclose([result.first_order[0], result.total_order[0]], 1, atol=0.03)

    def test_a_constant_function_has_no_variance_to_explain(self, wave):
        model = DSDGPRegressor((), 5, base=None, n_estimators=1, max_iter=1, n_neighbors=0).fit(*wave)
        X = np.repeat(wave[0][:1], 10, axis=0)
        assert not sensitivity(model, X, n_draws=2, n_samples=16).total_order_draws.any()

    def test_probabilities(self, wave):
        model = SOLVEGPClassifier(20, 0, max_iter=40, random_state=0).fit(wave[0], wave[1] > 0)
        result = sensitivity(model, wave[0], n_draws=4, n_samples=128, random_state=0)
        assert result.total_order.argsort().tolist() == [2, 1, 0]

    def test_what_does_not_go(self, wave):
        model = REGRESSORS[2]().fit(*wave)
        wrong = [
            ({"n_samples": 500}, "n_samples=500 must be a power of 2, such as 512"),
            ({"n_draws": 0}, "n_draws=0 leaves no function to compute indices of: give a number from 2 on"),
            ({"features": [0, [0, 1]]}, "features=[0, [0, 1]] names a column twice, or has an empty group"),
            ({"features": [[]]}, "features=[[]] names a column twice, or has an empty group"),
        ]
        for options, message in wrong:
            with pytest.raises(ValueError, match=re.escape(message)):
                sensitivity(model, wave[0], **options)


def block(page, start):
    """The code of a page's literal block that begins with a line."""
    text = (ROOT / "doc" / page).read_text(encoding="utf-8")
    code = text[text.index(f"    {start}") :]
    return textwrap.dedent(re.split(r"\n(?=\S)", code, maxsplit=1)[0])


class TestRecipes:
    """Code of the documentation."""

    def test_numbers_become_categories_again_for_shap(self, house, frame):
        """What comes after it needs the package ``shap``."""
        X, _ = frame
        code = block("other_packages.rst", "import pandas as pd\n\n    # all columns").replace(
            '["city"]', '["city", "state"]'
        )
        space = {"X": X, "model": house}
        exec(code, space)
        assert set(space["coded"].dtypes) == {np.dtype(float)}
        np.testing.assert_allclose(space["predict"](space["coded"].to_numpy()), house.predict(X))

    def test_permutation_importance_of_a_frame(self, house, frame):
        found = permutation_importance(house, *frame, n_repeats=2, random_state=0).importances_mean
        assert found.argmax() == 0 and found[2] > 10 * abs(found[[1, 4]]).max()

    @pytest.mark.slow
    def test_functions_that_should_rise(self):
        rng = np.random.default_rng(0)
        X = rng.uniform(-2, 2, (60, 2))
        y = np.tanh(X[:, 0]) + 0.3 * rng.normal(size=60)
        space = {"X": X, "y": y, "model": SOLVEGPRegressor(20, 0, base=None, n_neighbors=0, max_iter=10).fit(X, y)}
        exec(block("choosing.rst", "from scipy.stats import norm"), space)
        draws = space["model"].sample_functions(500, random_state=0)
        np.testing.assert_allclose(space["falls"], (draws.gradient(X)[:, 0] < 0).mean(axis=1), atol=0.1)
        exec(block("choosing.rst", "import numpy as np\n\n    grid"), space)
        values = space["model"].sample_functions(100, random_state=0)(space["grid"])
        truth = np.tanh(space["grid"][:, [0]])
        before, after = (np.square(of_draws - truth).mean(axis=0) for of_draws in (values, space["rising"]))
        assert (after <= before + 1e-12).all() and (after < before).any()

    @pytest.mark.slow
    def test_a_monotone_trend(self):
        rng = np.random.default_rng(0)
        X = rng.uniform(-2, 2, (60, 2))
        y = np.tanh(X[:, 0]) + 0.3 * rng.normal(size=60)
        space = {"X": X, "y": y, "SOLVEGPRegressor": SOLVEGPRegressor}
        exec(block("choosing.rst", "from sklearn.ensemble import HistGradientBoostingRegressor\n\n    # along"), space)
        assert space["falls"].shape == (60,) and 0 <= space["falls"].min() and space["falls"].max() <= 1
        for regressor in np.ravel(space["model"].trend_):
            assert (regressor.predict(X + np.array([0.1, 0])) >= regressor.predict(X)).all()
