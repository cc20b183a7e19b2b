"""Transformations of targets by name: the logit, the power, and the choice between them by left-out rows."""

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
from helpers import REGRESSORS, any_options, name_of
from scipy.integrate import quad
from scipy.special import expit, logit
from scipy.stats import lognorm, norm
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from skdgp import PredictiveDistribution, SOLVEGPRegressor
from skdgp.distributions import Logit, TransformedDistribution
from skdgp.estimators import _transforms
from skdgp.metrics import crps_scorer
from skdgp.tables.transforms import fitted_transform, margin_of

SHALLOW = {"n_inducing": 10, "n_orthogonal": 0, "max_iter": 10, "n_estimators": 1, "random_state": 0}


def rows(kind, n_rows=120, seed=0, scale=1.0):
    """Rows, and targets that are skewed as the kind says."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_rows, 2))
    z = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n_rows)
    kinds = {"right": np.exp(z), "left": -np.exp(z), "symmetric": z, "positive": 5 + z, "shares": expit(3 * z)}
    return X, scale * kinds[kind]


class TestLogit:
    def test_margins(self):
        assert margin_of(np.array([0.0, 0.2, 1.0])) == pytest.approx(0.1)  # half as far as 0.2
        assert margin_of(np.array([0.0, 1.0, 0.5, 0.5])) == pytest.approx(1 / 8)  # 1/2n
        assert margin_of(np.array([[0.5, 0.0], [0.5, 0.9]])) == pytest.approx(0.05)

    def test_values_and_slopes(self):
        transformer, y = Logit(0.01), np.array([0.0, 0.1, 0.5, 1.0])
        z = transformer.transform(y)
        np.testing.assert_allclose(z, logit((y + 0.01) / 1.02), rtol=1e-12)
        np.testing.assert_allclose(transformer.inverse_transform(z), y, atol=1e-15)
        inside, step = z[1:3], 1e-6
        slope = (transformer.inverse_transform(inside + step) - transformer.inverse_transform(inside - step)) / 2e-6
        np.testing.assert_allclose(transformer.slope(y[1:3]), slope, rtol=1e-8)
        assert np.isnan(transformer.transform(np.array([-0.001, 1.001]))).all()
        np.testing.assert_array_equal(transformer.inverse_transform(np.array([-50.0, 50.0])), [0.0, 1.0])

    @pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (-4.0, 2.0), (5.0, 3.0)])
    def test_distribution_is_that_of_limited_logits(self, mean, deviation):
        transformer, z = Logit(0.02), norm(mean, deviation)
        dist = TransformedDistribution(PredictiveDistribution.gaussian([mean], [deviation]), transformer)
        low, high = transformer.transform(np.array([0.0, 1.0]))
        expected = [z.cdf(low), z.cdf(transformer.transform(0.4)), 1.0, 0.0]
        np.testing.assert_allclose(dist.cdf([[0.0], [0.4], [1.0], [-0.1]])[:, 0], expected, atol=1e-12)
        assert dist.cdf(1 - 1e-12)[0] == pytest.approx(z.cdf(high), abs=1e-9)
        whole = quad(lambda y: dist.pdf([y])[0], 0, 1, points=[0.001, 0.999], limit=200)[0]
        assert whole == pytest.approx(z.cdf(high) - z.cdf(low), abs=1e-7)

        def moment(power):
            inside = quad(lambda y: y**power * dist.pdf([y])[0], 0, 1, points=[0.001, 0.999], limit=200)[0]
            return inside + z.sf(high)

        assert dist.mean[0] == pytest.approx(moment(1), abs=1e-4)  # the limits are kinks
        assert dist.var[0] == pytest.approx(moment(2) - moment(1) ** 2, abs=2e-4)
        for y in (0.0, 0.3, 1.0):
            score = quad(lambda t: (dist.cdf([t])[0] - (t >= y)) ** 2, 0, 1, points=[0.001, 0.3], limit=200)[0]  # noqa: B023
            assert dist.crps([y])[0] == pytest.approx(score, abs=1e-5)
        draws = dist.rvs(20_000, random_state=0)
        assert np.mean(draws == 0) == pytest.approx(z.cdf(low), abs=0.02) and draws.max() <= 1

    @pytest.mark.slow
    def test_fit(self):
        X, y = rows("shares", 200)
        y = np.clip(1.05 * y - 0.025, 0, 1)
        model = SOLVEGPRegressor(target_transform="logit", **SHALLOW).fit(X, y)
        dist = model.predict_dist(X)
        lower, upper = dist.interval(0.9)
        assert lower.min() >= 0 and upper.max() <= 1 and 0.8 < np.mean((lower <= y) & (y <= upper)) < 0.99
        assert np.isfinite(dist.logpdf(y)).all() and np.isfinite(dist.crps(y)).all()
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert model.target_transform_ == again.target_transform_ == "logit"

    def test_numbers_outside_are_refused(self):
        X, y = rows("shares", 30)
        y[3] = 1.5
        with pytest.raises(ValueError, match=r"makes \[nan\] of \[1.5\], which y holds in row 3.* between 0 and 1"):
            SOLVEGPRegressor(target_transform="logit").fit(X, y)


class TestPower:
    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    def test_does_not_depend_on_units(self, scale):
        _, y = rows("left")
        y = y[:, None]
        transformer, plain = fitted_transform("yeo-johnson", scale * y), PowerTransformer()
        expected = plain.fit_transform((y - y.mean()) / y.std())
        np.testing.assert_allclose(transformer.transform(scale * y), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(transformer.inverse_transform(transformer.transform(scale * y)), scale * y)


class TestChoice:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "scale", "expected"),
        [
            ("right", 1.0, "log"),
            ("right", 1e-6, "log"),
            ("left", 1e6, "yeo-johnson"),
            ("symmetric", 1.0, None),
            ("positive", 1e6, None),
        ],
    )
    def test_is_what_the_skew_asks_for(self, kind, scale, expected):
        X, y = rows(kind, 300, scale=scale)
        auto = SOLVEGPRegressor(target_transform="auto", **SHALLOW).fit(X[:150], y[:150])
        assert auto.target_transform_ == expected and (auto.target_transformer_ is None) == (expected is None)
        same = clone(auto).set_params(target_transform=expected).fit(X[:150], y[:150])
        np.testing.assert_array_equal(auto.predict(X), same.predict(X))
        if expected is not None:
            plain = clone(auto).set_params(target_transform=None).fit(X[:150], y[:150])
            scores = [model.predict_dist(X[150:]).logpdf(y[150:]).mean() for model in (auto, plain)]
            assert scores[0] > scores[1] + 0.2

    def test_densities_are_in_the_units_of_targets(self):
        """Without a function of the features, they are those of the transformed targets' distribution."""
        rng = np.random.default_rng(0)
        X, y = rng.uniform(size=(200, 1)), np.exp(1 + 0.5 * rng.normal(size=(200, 1)))
        found = _transforms._log_densities("log", X, y, np.ones(200))
        z = np.log(y[:, 0])
        expected = norm.logpdf(z, z.mean(), z.std()) - z
        assert found.mean() == pytest.approx(expected.mean(), abs=0.02)
        assert _transforms._log_densities("log", X, y - 2, np.ones(200)) is None  # not all are positive
        assert _transforms._log_densities(None, X, 0 * y, np.ones(200)) is None  # nothing to learn

    @any_options
    @pytest.mark.parametrize("tiny", REGRESSORS, ids=name_of)
    def test_all_families_chunks_and_storage(self, tiny):
        X, y = rows("right")
        model = tiny(target_transform="auto").fit(X, y)
        again = pickle.loads(pickle.dumps(model))
        assert again.target_transform_ == "log"
        np.testing.assert_array_equal(again.predict_interval(X), model.predict_interval(X))
        with pytest.raises(ValueError, match="has no formula with target_transform='log'"):
            model.predict(X, return_cov=True)
        streamed = tiny(target_transform="auto").partial_fit(X, y).partial_fit(X, y)  # the first chunk decides
        assert streamed.target_transform_ == "log"

    @pytest.mark.slow
    def test_several_targets_weights_and_gaps(self):
        X, y = rows("right")
        y, weight = np.stack([y, 2 * y], axis=1), np.arange(len(y)) % 3 + 0.0
        model = SOLVEGPRegressor(target_transform="auto", **SHALLOW).fit(X, y, weight)
        assert model.target_transform_ == "log" and model.predict(X).shape == y.shape
        y[::3, 1], X[5, 0] = np.nan, np.nan
        model = SOLVEGPRegressor(target_transform="auto", n_latent_outputs=1, **SHALLOW).fit(X, y)
        assert model.target_transform_ == "log"

    def test_predictions_have_limits_where_targets_are_missing(self):
        _, y = rows("right")
        y = np.stack([y, 2 * y], axis=1)
        whole = fitted_transform("yeo-johnson", y)
        y[3:9, 1] = np.nan
        gaps = fitted_transform("yeo-johnson", y)
        assert np.isfinite([gaps.low, gaps.high]).all()
        np.testing.assert_allclose(gaps.high, whole.high, rtol=0.1)

    @pytest.mark.parametrize(("n_rows", "factor"), [(5, 1.0), (60, 0.0)])
    def test_few_rows_and_constant_targets_decide_nothing(self, n_rows, factor):
        X, y = rows("right", n_rows)
        with pytest.warns(UserWarning, match="rows") if n_rows == 5 else nullcontext():
            model = SOLVEGPRegressor(target_transform="auto", **SHALLOW).fit(X, factor * y)
        assert model.target_transform_ is None

    @pytest.mark.parametrize("slope", [np.nan, np.inf])
    def test_candidates_without_densities_are_named(self, slope, monkeypatch):
        X, y = rows("right")
        monkeypatch.setattr(_transforms, "back_slopes", lambda transformer, z: np.full_like(z, slope))
        with pytest.warns(RuntimeWarning, match=r"has not compared \['log', 'yeo-johnson'\] with"):
            assert SOLVEGPRegressor(target_transform="auto", **SHALLOW).fit(X, y).target_transform_ is None

    @pytest.mark.filterwarnings("ignore:target_transform='auto' has not compared:RuntimeWarning")
    @pytest.mark.parametrize(
        ("y", "expected"),
        [(np.arange(60) == 3.0, None), (np.exp(50 * np.random.default_rng(0).normal(size=60)), "log")],
        ids=["one", "far"],
    )
    def test_targets_far_from_all_others(self, y, expected):
        X, _ = rows("right", 60)  # rounding decides whether the inverse of Yeo and Johnson's candidate is finite
        model = SOLVEGPRegressor(target_transform="auto", n_neighbors=0, **SHALLOW)
        assert model.fit(X, y.astype(float)).target_transform_ == expected

    @pytest.mark.parametrize("failing", [0, 1, 2])
    def test_matrices_without_a_factor_leave_a_candidate_out(self, failing, monkeypatch):
        X, y = rows("right")
        turns, names = iter(range(3)), [None, "log", "yeo-johnson"]

        def fit_base(part, base=_transforms.fit_base):
            if next(turns) == failing:
                raise np.linalg.LinAlgError
            return base(part)

        monkeypatch.setattr(_transforms, "fit_base", fit_base)
        with pytest.warns(RuntimeWarning, match=rf"has not compared \[{names[failing]!r}\] with"):
            model = SOLVEGPRegressor(target_transform="auto", **SHALLOW).fit(X, y)
        assert model.target_transform_ == [None, "yeo-johnson", "log"][failing]

    @pytest.mark.slow
    def test_a_search_compares_names(self):
        X, y = rows("right")
        model = SOLVEGPRegressor(**SHALLOW)
        search = GridSearchCV(model, {"target_transform": [None, "log", "auto"]}, scoring=crps_scorer, cv=2).fit(X, y)
        none, log, auto = search.cv_results_["mean_test_score"]
        assert log == auto > none

    def test_one_transformation_is_enough(self):
        X, y = rows("right", 30)
        with pytest.raises(ValueError, match="target_transform='auto' does not go with likelihood='gamma', since it"):
            SOLVEGPRegressor(target_transform="auto", likelihood="gamma").fit(X, y)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    "transform", [PowerTransformer("box-cox"), FunctionTransformer(np.sqrt, np.square)], ids=["box-cox", "root"]
)
def test_predictions_stop_where_targets_have_no_transform(transform, scale):
    """Far from all rows the Gaussian of z reaches below the z of zero, of which the inverse is not that of a target."""
    X, y = rows("right", scale=scale)
    model = SOLVEGPRegressor(target_transform=transform, **SHALLOW).fit(X, np.column_stack([y, y[::-1]]))
    assert np.isfinite(model.target_transformer_.low).all()
    far = np.vstack([X[:3], X[:3] + 40, X[:3] - 1e3])
    mean, std = model.predict(far, return_std=True)
    assert (mean > 0).all() and (mean < 20 * y.max()).all() and np.isfinite(std).all() and (std > 0).all()
    lower, upper = np.moveaxis(model.predict_interval(far, confidence_level=0.999), -1, 0)
    assert (lower >= 0).all() and (lower <= upper).all() and (upper < 20 * y.max()).all()


@pytest.mark.parametrize(
    "transformer", [QuantileTransformer(n_quantiles=20), StandardScaler(), PowerTransformer(), "box-cox"], ids=str
)
def test_infinite_points_have_no_density_and_all_or_no_probability(transformer):
    """Transformers of scikit-learn refuse infinity, and Box and Cox's refuses negative numbers, too."""
    y = rows("right")[1]
    if transformer == "box-cox":
        transformer = fitted_transform(PowerTransformer("box-cox"), y[:, None])
    else:
        transformer.fit(y[:, None])
    dist = TransformedDistribution(PredictiveDistribution.gaussian([0.3, 0.5], [0.02, 0.05]), transformer)
    largest = np.finfo(np.float64).max
    np.testing.assert_array_equal(dist.cdf([[-np.inf], [largest], [np.inf]]), [[0, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(dist.sf([[-np.inf], [largest], [np.inf]]), [[1, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(dist.pdf([[-np.inf], [np.inf]]), np.zeros((2, 2)))
    np.testing.assert_array_equal(dist.log_score([[-np.inf], [np.inf]]), np.full((2, 2), np.inf))
    np.testing.assert_array_equal(dist.crps([[-np.inf], [np.inf]]), np.full((2, 2), np.inf))
    for method in (dist.pdf, dist.cdf, dist.crps):
        assert np.isnan(method([np.nan, 1.0])).tolist() == [True, False]
    if not isinstance(transformer, StandardScaler | PowerTransformer):  # they bound no target from below
        assert (dist.cdf(-1.0) == 0).all() and (dist.pdf(-1.0) == 0).all()
        np.testing.assert_allclose(dist.crps(-1.0), 1 + dist.crps(0.0), rtol=1e-12)


@pytest.mark.parametrize("far", [1e6, 1e12, 1e20, 1e150, 1e200, 1e300])
def test_density_far_out_is_that_of_z(far):
    """A step of slopes is a share of the deviation, and far out rounding hides it."""
    transformer = StandardScaler().fit([[1.0], [5.0]])
    dist = TransformedDistribution(PredictiveDistribution.gaussian([0.0], [1.0]), transformer)
    expected = PredictiveDistribution.gaussian([3.0], [2.0])
    for y in (far, -far):
        np.testing.assert_allclose(dist.logpdf([y]), expected.logpdf([y]), rtol=1e-12)


@pytest.mark.parametrize("deviation", [1e-4, 0.1, 1.0, 3.0, 6.0])
def test_moments_under_the_logarithm_are_those_of_scipy(deviation):
    dist = TransformedDistribution(PredictiveDistribution.gaussian([-2.0, 4.0], [deviation, deviation]), "log")
    expected = lognorm(deviation, scale=np.exp([-2.0, 4.0]))
    np.testing.assert_allclose(dist.mean, expected.mean(), rtol=1e-12)
    np.testing.assert_allclose(dist.std, expected.std(), rtol=1e-6)


def test_moments_under_the_logarithm_that_overflow_are_refused():
    dist = TransformedDistribution(PredictiveDistribution.gaussian([0.0, 1.0], [40.0, 1.0]), "log")
    for moment in ("mean", "std"):
        with pytest.raises(ValueError, match=r"of 1 of 2 predictions overflows: .* deviations up to 40\. Leave out"):
            getattr(dist, moment)
    np.testing.assert_allclose(dist.ppf(0.5), np.exp([0.0, 1.0]))
    wide = TransformedDistribution(PredictiveDistribution([[0.0], [500.0]], [[1.0], [1.0]], [0.5, 0.5]), "log")
    with pytest.raises(ValueError, match="of 1 of 1 predictions overflows"):
        wide.var  # noqa: B018
    small = TransformedDistribution(PredictiveDistribution.gaussian([-1000.0], [np.sqrt(710.0)]), "log")
    assert small.mean[0] == pytest.approx(np.exp(-645.0)) and small.var[0] == pytest.approx(np.exp(-580.0))


@pytest.mark.parametrize("name", ["square", "reciprocal", "cosh"])
def test_transformers_that_are_monotone_for_these_targets_alone(name):
    X = np.linspace(0, 1, 40)[:, None]
    y = 3 + np.sin(5 * X[:, 0]) + 0.05 * np.random.default_rng(0).standard_normal(40)
    functions = {"square": np.sqrt, "reciprocal": np.reciprocal, "cosh": np.arccosh}
    transformer = FunctionTransformer(getattr(np, name), functions[name])
    model = SOLVEGPRegressor(10, 0, max_iter=5, random_state=0, target_transform=transformer).fit(X, y)
    assert model.score(X, y) > 0.98
    lower, upper = model.predict_interval(X, 0.9999).T
    assert ((lower < y) & (y < upper)).all()
    assert np.isfinite(model.predict_dist(X).logpdf(y)).all()
    assert np.isfinite(model.sample_y(X, 20, random_state=0)).all()


@pytest.mark.parametrize("refused", [-1.0, 0.0])
def test_targets_end_where_the_inverse_does_not_find_them(refused):
    y = np.array([[1.0, 5.0], [2.0, 7.0], [4.0, 6.0]])
    square = fitted_transform(FunctionTransformer(np.square, np.sqrt), y)
    np.testing.assert_allclose(square.inverse_transform(np.full((1, 2), refused)), 0.0, atol=1e-4)
    reciprocal = fitted_transform(FunctionTransformer(np.reciprocal, np.reciprocal), y)
    np.testing.assert_allclose(reciprocal.inverse_transform(np.full((1, 2), refused)), [[34.0, 27.0]])
    np.testing.assert_allclose(fitted_transform(PowerTransformer(), y).inverse_transform([[-1e9, 1e9]])[0, 1], 27.0)


@pytest.mark.parametrize("name", ["cdf", "logsf", "logcdf", "logpdf"])
def test_one_output_rises_and_another_falls(name):
    rng = np.random.RandomState(0)
    mean, std, y = rng.randn(5, 2), 0.5 + rng.rand(5, 2), rng.randn(5, 2)
    sign = np.array([1.0, -1.0])
    transform = FunctionTransformer(lambda z: z * sign, lambda z: z * sign, check_inverse=False).fit(mean)
    dist = TransformedDistribution(PredictiveDistribution.gaussian(mean, std), transform)
    expected = getattr(PredictiveDistribution.gaussian(mean * sign, std), name)(y)
    np.testing.assert_allclose(getattr(dist, name)(y), expected, rtol=1e-10)


def test_falling_transformers_of_targets_far_from_zero():
    dist = PredictiveDistribution([[-1e6 - 3.0, -1e6 - 4.0]], [[0.01, 0.04]], [1.0])
    y = 1e6 + np.array([[3.0], [4.0]])
    falling = fitted_transform(FunctionTransformer(np.negative, np.negative), y)
    told = TransformedDistribution(dist, falling)
    expected = PredictiveDistribution.gaussian([1e6 + 3.0, 1e6 + 4.0], [0.1, 0.2])
    np.testing.assert_allclose(told.interval(), expected.interval(), rtol=1e-12)
    np.testing.assert_allclose(told.cdf(y), expected.cdf(y))
    np.testing.assert_allclose(told.crps(y), expected.crps(y), rtol=1e-4)
    np.testing.assert_allclose(told[:0].shape, 0)


@pytest.mark.parametrize("unit", [1.0, 1e-4, 1e8])
def test_gradients_of_transformed_functions_do_not_depend_on_the_unit_of_targets(unit):
    X = np.linspace(0, 1, 30)[:, None]
    y = unit * (3 + np.sin(5 * X[:, 0]))
    transformer = FunctionTransformer(np.square, np.sqrt)
    model = SOLVEGPRegressor(10, 0, max_iter=5, random_state=0, target_transform=transformer).fit(X, y)
    draws, rows, step = model.sample_functions(2, random_state=0), X[5:25:5], 1e-5
    expected = (draws(rows + step) - draws(rows - step)) / (2 * step)
    np.testing.assert_allclose(draws.gradient(rows)[:, 0], expected, rtol=1e-3, atol=1e-3 * unit)


ROOT = FunctionTransformer(np.square, np.sqrt, check_inverse=False)


class TestTransformersThatCannotBe:
    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    @pytest.mark.parametrize(
        ("transformer", "fault"),
        [
            (PCA(), "mixes the columns of y"),
            (PCA(n_components=1), r"makes values of shape \(60, 1\) of targets of shape \(60, 2\)"),
            (
                KBinsDiscretizer(5, strategy="uniform"),
                r"makes values of shape \(60, 10\) of targets of shape \(60, 2\)",
            ),
            (
                KBinsDiscretizer(5, encode="ordinal", strategy="uniform"),
                "makes .* of the target .* in row 0, there and back",
            ),
            (FunctionTransformer(np.cbrt), "makes .* in row 0, there and back"),  # without an inverse
            (ROOT, "is not monotone among the targets"),
        ],
        ids=["mixed", "fewer", "more", "bins", "one-way", "square"],
    )
    def test_are_refused(self, transformer, fault, scale):
        y = scale * np.random.default_rng(0).normal(size=(60, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
        with pytest.raises(
            ValueError, match=f"(?s)^target_transform=.* {fault}: give a transformer that is strictly mono"
        ):
            SOLVEGPRegressor(target_transform=transformer).fit(np.arange(60.0)[:, None], y)

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    @pytest.mark.parametrize("gaps", [False, True])
    @pytest.mark.parametrize(
        "transformer",
        [
            PCA(),
            RobustScaler(),
            QuantileTransformer(n_quantiles=20, output_distribution="normal", subsample=500),
            QuantileTransformer(n_quantiles=500),
            PowerTransformer(),
        ],
        ids=["one", "scaled", "normal", "uniform", "power"],
    )
    def test_others_are_taken(self, transformer, gaps, scale):
        y = np.random.default_rng(0).standard_t(1.5, (1000, 2))
        y[:300, 0] = 0.0
        y[::7, 1] = np.nan if gaps else 1.0
        y = scale * (y[:, :1] if isinstance(transformer, PCA) else y)
        assert fitted_transform(transformer, y).n_features_in_ == y.shape[1]
