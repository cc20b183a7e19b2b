"""What users are owed by all regressors."""

import gc
import pickle
import warnings
import weakref
from copy import deepcopy
from datetime import date

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import TINY, any_options, predictor_of
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from skdgp import SOLVEGPRegressor
from skdgp.estimators._parameters import method_of
from skdgp.gp.likelihoods import rounding_variance
from skdgp.inference import ensemble, predictor
from skdgp.inference.steps import Stepper
from skdgp.kernels import Select


def parameters_of(model) -> np.ndarray:
    return np.concatenate([p.numpy().ravel() for p in model.module_.parameters()])


class TestFit:
    def test_fitted_attributes(self, tiny, wave):
        X, y = wave
        model = tiny(n_estimators=2).fit(X, y)
        assert model.n_iter_ == len(model.loss_curve_) == len(model.validation_scores_) == TINY["max_iter"]
        assert len(model.best_iter_) == len(model.module_) == 2
        assert [scales.shape for scales in model.length_scales_] == tiny.length_scales(1)
        assert np.isfinite(model.lower_bound_) and model.noise_variance_ > 0
        assert model.device_.type == "cpu"

    @any_options
    def test_validation_rows_of_the_user(self, tiny, wave):
        X, y = wave
        model = tiny(early_stopping=False)
        assert len(model.fit(X, y).validation_scores_) == 0
        assert len(model.fit(X, y, X_val=X[:20], y_val=y[:20]).validation_scores_) == TINY["max_iter"]

    def test_early_stopping(self, tiny, wave):
        X, y = wave
        model = tiny(max_iter=100, n_iter_no_change=1, n_estimators=1).fit(X, y)
        *better, worse = np.diff(model.validation_scores_)
        assert model.n_iter_ < 100 and min(better, default=1) > 0 >= worse

    def test_members_hold_out_different_rows(self, tiny, wave, monkeypatch):
        X, y = wave
        judged, recalibrate = [], ensemble.recalibrate

        def spy(models, held_out, *others):
            judged.extend(held_out)
            return recalibrate(models, held_out, *others)

        monkeypatch.setattr(ensemble, "recalibrate", spy)
        tiny(n_estimators=3).fit(X, y)
        assert [len(part) for part in judged] == [12, 12, 12]
        assert len({tuple(row) for part in judged for row in part.X.numpy()}) == 3 * 12

    @pytest.mark.slow
    @any_options
    def test_warm_start_goes_on(self, tiny, wave):
        X, y = wave
        model = tiny(warm_start=True, max_iter=20, early_stopping=False).fit(X, y)
        first, before = model.loss_curve_, model.module_
        model.fit(X, y)
        assert model.loss_curve_[0] < first[0]
        assert model.module_ is not before

    def test_sample_weight_matters_and_zero_is_absence(self, tiny, wave):
        X, y = wave
        weight = np.where(np.arange(len(X)) < 60, 1.0, 0.0)
        weighted = tiny().fit(X, y, sample_weight=weight)
        assert np.array_equal(weighted.predict(X), tiny().fit(X[:60], y[:60]).predict(X))
        assert not np.allclose(weighted.predict(X), tiny().fit(X, y).predict(X))

    def test_progress_is_shown_only_when_asked_for(self, tiny, wave, capsys):
        X, y = wave
        tiny().fit(X, y)
        assert capsys.readouterr().out == ""
        tiny(verbose=1).fit(X, y)
        shown = capsys.readouterr().out
        assert "epoch 3/3" in shown and "fitted in" in shown


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"early_stopping": True}])
def test_nothing_that_is_fitted_keeps_the_table(tiny, wave, monkeypatch, parameters):
    """Not even while it is not pickled."""
    tables, run = [], ensemble.Training.run

    def spy(self, start, seeds, **options):
        tables.append(weakref.ref(self.data))
        return run(self, start, seeds, **options)

    monkeypatch.setattr(ensemble.Training, "run", spy)
    model = tiny(base="gp", **parameters).fit(*wave)
    gc.collect()
    assert len(model.module_) > 0 and [table() for table in tables] == [None]


class TestPredict:
    def test_shapes_of_one_and_of_several_outputs(self, tiny, wave):
        X, y = wave
        Y = np.column_stack([y, -10 * y])
        model = tiny().fit(X, Y)
        mean, std = model.predict(X[:5], return_std=True)
        assert mean.shape == std.shape == (5, 2)
        assert model.predict(X[:5], return_cov=True)[1].shape == (5, 5, 2)
        assert model.sample_y(X[:5], n_samples=7).shape == (5, 2, 7)
        assert model.noise_variance_.shape == (2,)
        single = tiny().fit(X, y)
        assert single.predict(X[:5], return_cov=True)[1].shape == (5, 5)
        assert single.sample_y(X[:5], n_samples=7).shape == (5, 7)

    def test_covariance_agrees_with_std(self, tiny, wave):
        X, y = wave
        model = tiny(n_estimators=2).fit(X, y)
        _, std = model.predict(X, return_std=True)
        _, covariance = model.predict(X, return_cov=True)
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std)
        np.testing.assert_allclose(covariance, covariance.T)
        assert np.linalg.eigvalsh(covariance).min() > 0

    @pytest.mark.parametrize("n_outputs", [None, 2])
    def test_distribution_is_what_everything_else_reports(self, tiny, wave, n_outputs):
        X, y = wave
        y = 50 + 20 * (y if n_outputs is None else np.column_stack([y, -y]))
        model = tiny(n_estimators=2).fit(X, y)
        dist = model.predict_dist(X)
        mean, std = model.predict(X, return_std=True)
        np.testing.assert_allclose(dist.mean, mean, rtol=1e-12)
        np.testing.assert_allclose(dist.std, std, rtol=1e-10)
        quantiles = model.predict_quantiles(X, [0.1, 0.5, 0.8])
        assert quantiles.shape == (*y.shape, 3)
        for level, column in zip([0.1, 0.5, 0.8], np.moveaxis(quantiles, -1, 0), strict=True):
            np.testing.assert_allclose(dist.cdf(column), level, atol=1e-6)
        np.testing.assert_allclose(model.predict_quantiles(X, 0.5), quantiles[..., 1], rtol=1e-12)
        interval = model.predict_interval(X, confidence_level=0.6)
        np.testing.assert_allclose(interval, model.predict_quantiles(X, [0.2, 0.8]), rtol=1e-12)
        np.testing.assert_allclose(np.moveaxis(interval, -1, 0), dist.interval(0.6), rtol=1e-12)

    def test_latent_distributions_have_no_noise(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        observed, latent = model.predict_dist(X), model.predict_dist(X, latent=True)
        np.testing.assert_allclose(latent.mean, observed.mean, rtol=1e-12)
        np.testing.assert_allclose(observed.var - latent.var, model.noise_variance_, rtol=1e-5)
        narrow, wide = (np.diff(model.predict_interval(X, latent=latent)) for latent in (True, False))
        assert (narrow < wide).all()
        assert np.array_equal(model.predict(X, return_std=True, latent=True)[1], latent.std)

    def test_batches_do_not_matter(self, tiny, wave, monkeypatch):
        X, y = wave
        model = tiny().fit(X, y)
        whole = [model.sample_y(X, 3, random_state=0), model.predict_interval(X), model.predict_dist(X).means]
        monkeypatch.setattr(predictor, "PREDICT_NUMBERS", 100)
        parts = [model.sample_y(X, 3, random_state=0), model.predict_interval(X), model.predict_dist(X).means]
        for one, other in zip(whole, parts, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)  # some means are next to zero

    def test_rows_are_predicted_one_by_one(self, tiny, wave, monkeypatch):
        X, y = wave
        model = tiny(**tiny.sampling).fit(X, y)
        mean, std = model.predict(X, return_std=True)
        np.testing.assert_allclose(model.predict(X[::-1])[::-1], mean, rtol=1e-9, atol=1e-10)
        monkeypatch.setattr(predictor, "PREDICT_NUMBERS", 100)
        batched_mean, batched_std = model.predict(X, return_std=True)
        np.testing.assert_allclose(batched_mean, mean, rtol=1e-9, atol=1e-10)  # some are next to zero
        np.testing.assert_allclose(batched_std, std, rtol=1e-9)
        assert model.sample_y(X, 2, random_state=0).shape == (120, 2)

    def test_many_rows_are_predicted_in_float32_where_that_is_as_good(self, tiny, wave, monkeypatch):
        X, y = wave
        model = tiny().fit(X, y)
        mean, std = model.predict(X, return_std=True)
        monkeypatch.setattr(predictor, "COARSE_ROWS", len(X))
        coarse = model.predict(X, return_std=True)
        np.testing.assert_allclose(model.predict(X[1:]), mean[1:], rtol=1e-9, atol=1e-10)  # too few
        if tiny.estimator.__name__ != "AVDGPRegressor":
            assert np.array_equal(coarse, (mean, std))
            return
        assert not np.array_equal(coarse[0], mean)
        assert (abs(coarse[0] - mean) < 1e-5 * std).all() and (abs(coarse[1] / std - 1) < 1e-5).all()
        for exact in ({"dtype": "float64"}, {"covariance": "diag_unwhitened"}):
            other = tiny(**exact).fit(X, y)
            found = other.predict(X)
            monkeypatch.setattr(predictor, "COARSE_ROWS", 10**6)
            assert np.array_equal(other.predict(X), found)
            monkeypatch.setattr(predictor, "COARSE_ROWS", len(X))

    def test_units_of_the_user(self, tiny, wave):
        """Scaling the data scales the results: a wrong factor in mean, std or bound would show."""
        X, y = wave
        plain, scaled = tiny().fit(X, y), tiny().fit(1e3 * X, 50.0 * y - 7.0)
        mean, std = plain.predict(X, return_std=True)
        scaled_mean, scaled_std = scaled.predict(1e3 * X, return_std=True)
        np.testing.assert_allclose(scaled_mean, 50.0 * mean - 7.0, rtol=1e-6)
        np.testing.assert_allclose(scaled_std, 50.0 * std, rtol=1e-6)
        np.testing.assert_allclose(scaled.noise_variance_, 2500 * plain.noise_variance_, rtol=1e-6)
        np.testing.assert_allclose(scaled.lower_bound_, plain.lower_bound_ - len(y) * np.log(50.0), rtol=1e-6)

    def test_normalisation_can_be_left_out(self, tiny, wave):
        X, y = wave
        model = tiny(normalize_X=False, normalize_y=False).fit(X, y)
        assert np.isfinite(model.predict(X, return_std=True)).all()


def few_points(tiny):
    """Parameters of five inducing points."""
    few = {name: 5 for name in ("n_inducing", "n_orthogonal") if name in tiny().get_params()}
    return few | ({"n_orthogonal": 0} if "hidden_dims" in tiny().get_params() and "n_orthogonal" in few else {})


class TestReproducibility:
    def test_same_seed_same_result(self, tiny, wave):
        X, y = wave
        assert np.array_equal(parameters_of(tiny().fit(X, y)), parameters_of(tiny().fit(X, y)))
        assert not np.array_equal(parameters_of(tiny().fit(X, y)), parameters_of(tiny(random_state=1).fit(X, y)))

    def test_global_state_is_left_alone(self, tiny, wave):
        X, y = wave
        states = lambda: (  # noqa: E731
            torch.get_rng_state().numpy().tobytes(),
            str(np.random.get_state()),  # noqa: NPY002
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
        )
        before = states()
        tiny(**tiny.sampling).fit(X, y).predict(X)
        assert states() == before

    def test_pickle_and_joblib(self, tiny, wave, tmp_path):
        X, y = wave
        model = tiny().fit(X, y)
        joblib.dump(model, tmp_path / "model.joblib")
        for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
            assert np.array_equal(copy.predict(X, return_std=True), model.predict(X, return_std=True))

    def test_clone_keeps_parameters_only(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        copy = clone(model)
        assert copy.get_params() == model.get_params() and not hasattr(copy, "module_")

    def test_precision_follows_the_data(self, tiny, wave):
        X, y = wave
        dtype = lambda model: next(model.module_.parameters()).dtype  # noqa: E731
        assert dtype(tiny().fit(X, y)) == torch.float64
        assert dtype(tiny().fit(X.astype(np.float32), y)) == torch.float32
        assert dtype(tiny(dtype="float32").fit(X, y)) == torch.float32

    @any_options
    @pytest.mark.parametrize(
        ("given", "expected"),
        [("auto", torch.float64), ("float64", torch.float64), ("float32", torch.float32)],
        ids=lambda value: str(value).removeprefix("torch."),
    )
    def test_what_is_not_whitened_is_in_double_precision(self, tiny, wave, given, expected, monkeypatch):
        X, y = wave
        seen, step = [], Stepper.step

        def spy(self, batch, rate):
            seen.extend([batch.X.dtype, self.flat.vector.dtype])
            return step(self, batch, rate)

        monkeypatch.setattr(Stepper, "step", spy)
        model = tiny(covariance="diag_unwhitened", dtype=given, max_iter=1)
        for fitted in (model.fit(X.astype(np.float32), y), clone(model).partial_fit(X.astype(np.float32), y)):
            assert set(seen) == {expected} == {each.dtype for each in fitted.module_.parameters()}
            assert predictor_of(fitted).dtype == expected
        assert method_of(tiny()).plan(120, held_out=True).precision == torch.float32

    def test_a_model_predicts_alike_in_both_precisions(self, tiny, wave):
        """With an inducing point for every row, posteriors in closed form are only as exact as their matrix."""
        X, y = wave
        double = tiny(**few_points(tiny)).fit(X, y)
        single = pickle.loads(pickle.dumps(double))
        single.module_.float()
        for one, other in zip(*(model.predict(X, return_std=True) for model in (double, single)), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-3 * y.std())

    def test_roundings_of_the_inputs_stay_small_where_inducing_points_are_few(self, tiny, wave):
        """Where there is an inducing point for every row, training makes anything of a rounding.

        There the gradients of the points are next to nothing at first, Adam divides them by themselves, and a matrix
        that is nearly singular multiplies what has been rounded.
        """
        X, y = wave
        few = few_points(tiny)
        single = tiny(**few).fit(X.astype(np.float32), y).predict(X.astype(np.float32))
        np.testing.assert_allclose(single, tiny(**few).fit(X, y).predict(X), rtol=0, atol=1e-4)


class TestAtHomeInScikitLearn:
    @pytest.mark.slow
    @any_options
    def test_pipeline_and_search_in_processes(self, deep, wave):
        X, y = wave
        pipeline = make_pipeline(StandardScaler(), deep())
        name = type(deep()).__name__.lower()
        grid = {f"{name}__hidden_dims": [(), (2,), (3, 2)], f"{name}__n_inducing": ["auto", 2]}
        search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2).fit(X, y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert np.isfinite(search.predict(X)).all()

    def test_cross_validation(self, tiny, wave):
        X, y = wave
        assert np.isfinite(cross_val_score(tiny(), X, y, cv=3)).all()

    def test_names_of_pandas(self, tiny, wave):
        X, y = wave
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        model = tiny().fit(frame, pd.Series(y))
        assert list(model.feature_names_in_) == ["a", "b", "c"]
        assert np.array_equal(model.predict(frame), tiny().fit(X, y).predict(X))
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(frame[["c", "b", "a"]])

    def test_memory_maps(self, tiny, wave, tmp_path):
        X, y = wave
        np.save(tmp_path / "X.npy", X)
        mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
        assert np.array_equal(tiny().fit(mapped, y).predict(mapped), tiny().fit(X, y).predict(X))


class TestOddData:
    @pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
    def test_tiny_and_huge_scales(self, tiny, wave, scale):
        X, y = wave
        mean, std = tiny().fit(scale * X, scale * y).predict(scale * X, return_std=True)
        expected, expected_std = tiny().fit(X, y).predict(X, return_std=True)
        np.testing.assert_allclose(mean / scale, expected, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(std / scale, expected_std, rtol=1e-5)

    def test_constant_column(self, tiny, wave):
        X, y = wave
        assert np.isfinite(tiny().fit(np.column_stack([X, np.full(len(X), 3.0)]), y).predict(np.c_[X, X[:, 0]])).all()

    @pytest.mark.slow
    @pytest.mark.parametrize("value", [0.0, -4.0])
    def test_constant_target(self, tiny, wave, value):
        X, _ = wave
        mean, std = tiny(max_iter=30).fit(X, np.full(len(X), value)).predict(X, return_std=True)
        np.testing.assert_allclose(mean, value, atol=0.5)
        assert np.isfinite(std).all()

    @any_options
    @pytest.mark.parametrize("n_rows", [1, 2, 5, 19])
    def test_few_rows(self, tiny, wave, n_rows):
        X, y = wave
        model = tiny(n_inducing="auto").fit(X[:n_rows], y[:n_rows])
        assert np.isfinite(model.predict(X, return_std=True)).all()

    def test_duplicates(self, tiny, wave):
        X, y = wave
        assert np.isfinite(tiny().fit(np.repeat(X[:3], 40, axis=0), y).predict(X)).all()

    def test_one_feature(self, deep, wave):
        X, y = wave
        assert np.isfinite(deep(mean="linear").fit(X[:, :1], y).predict(X[:, :1])).all()

    def test_far_away_rows(self, tiny, wave):
        X, y = wave
        for dtype in ("auto", "float32"):
            model = tiny(dtype=dtype).fit(X, y)
            assert np.isfinite([model.predict(scale * X, return_std=True) for scale in (1e6, 1e30)]).all()

    def test_rounded_targets_bound_the_noise_from_below(self, tiny, wave):
        X, y = wave
        rounded = np.round(y)
        assert rounding_variance(rounded) == pytest.approx(1 / 12)
        assert rounding_variance(y) == 0.0
        assert rounding_variance(np.unique(rounded)) == 0.0
        assert rounding_variance(np.unique(rounded), n_rows=len(y)) == rounding_variance(rounded)
        assert tiny(objective="predictive").fit(X, rounded).noise_variance_ >= 1 / 12 * (1 - 1e-6)


class TestBadInput:
    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"hidden_dims": (2, 0)}, r"hidden_dims=\(2, 0\) holds 0: every value must be an integer of at least 1"),
            ({"hidden_dims": (2.5,)}, r"hidden_dims=\(2.5,\) holds 2.5"),
            ({"hidden_dims": 16}, r"hidden_dims=16 must have a number for each layer: write \(16,\) for a single one"),
            ({"n_inducing": (4, 4, 4)}, r"n_inducing=\(4, 4, 4\) has 3 values for 2 layers"),
            ({"n_inducing": 0}, "'n_inducing' parameter"),
            ({"kernel": "cosine"}, "'kernel' parameter"),
            ({"learning_rate": 0.0}, "'learning_rate' parameter"),
            ({"validation_fraction": 1.0}, "'validation_fraction' parameter"),
            ({"beta": -1.0}, "'beta' parameter"),
            ({"device": "abacus"}, "device='abacus' cannot be used here. Available: 'auto', "),
            ({"device": "meta"}, "device='meta' cannot be used here. Available: 'auto', "),
            ({"dtype": "float16"}, "'dtype' parameter"),
        ],
    )
    def test_parameters(self, deep, wave, parameters, message):
        X, y = wave
        model = deep(**parameters)
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
        assert not [name for name in vars(model) if name.endswith("_") or name.startswith("_")]

    def test_data(self, tiny, wave):
        X, y = wave
        with pytest.raises(TypeError, match=r"[Ss]parse"):
            tiny().fit(sparse.csr_array(X), y)
        with pytest.raises(ValueError, match=r"Input X contains infinity"):
            tiny().fit(np.where(X > 1.9, np.inf, X), y)
        with pytest.raises(ValueError, match="Input y contains infinity"):
            tiny().fit(X, np.where(y > 1, np.inf, y))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            tiny().fit(X, y[:-1])
        with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
            tiny().fit(X, y, sample_weight=-np.ones(len(X)))
        with pytest.raises(ValueError, match="must contain at least one non-zero number"):
            tiny().fit(X, y, sample_weight=np.zeros(len(X)))

    def test_validation_rows(self, tiny, wave):
        X, y = wave
        with pytest.raises(ValueError, match="X_val was given without y_val: give both or neither"):
            tiny().fit(X, y, X_val=X)
        with pytest.raises(ValueError, match="y_val was given without X_val: give both or neither"):
            tiny().fit(X, y, y_val=y)
        with pytest.raises(ValueError, match="y has 2 outputs, but the model was given 1"):
            tiny().fit(X, y, X_val=X, y_val=np.column_stack([y, y]))
        with pytest.raises(ValueError, match="X has 2 features"):
            tiny().fit(X, y, X_val=X[:, :2], y_val=y)

    def test_overflow_names_the_column(self, tiny, wave):
        X, y = wave
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        frame["b"] *= 1e300
        with pytest.raises(ValueError, match=r"Column 'b' of X overflows.*reach 2\.\de\+300.*Rescale"):
            tiny().fit(frame, y)
        with pytest.raises(ValueError, match="y overflows or underflows when it is standardised"):
            tiny().fit(X, 1e300 * y)

    def test_columns_beyond_what_models_see(self, tiny, wave):
        """Predictions would be the same for all rows."""
        X, y = wave
        frame = pd.DataFrame(X * np.array([1.0, 1e18, 1.0]), columns=["a", "b", "c"])
        with pytest.raises(ValueError, match=r"Column 'b' of X reaches 1e\+15, beyond .*: set normalize_X=True"):
            tiny(normalize_X=False).fit(frame, y)
        assert np.isfinite(tiny().fit(frame, y).predict(frame)).all()

    @pytest.mark.parametrize("scale", [1e-170, 1e-160, 1e160])
    def test_both_ends_of_floating_point_are_refused(self, tiny, wave, scale):
        X, y = wave
        with pytest.raises(ValueError, match=r"^y overflows or underflows.*reach \d\.\de.1[67].*Rescale"):
            tiny().fit(X, scale * y)
        with pytest.raises(ValueError, match=r"^Column 0 of X overflows or underflows.*Rescale"):
            tiny().fit(X * np.array([scale, 1.0, 1.0]), y)

    @pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e-6, 1e6, 1e30, 1e100])
    def test_predictions_follow_the_scale(self, tiny, wave, scale):
        X, y = wave[0][:40], wave[1][:40]
        expected, found = tiny(dtype="float64").fit(X, y), tiny(dtype="float64").fit(scale * X, scale * y)
        pairs = zip(found.predict(scale * X, return_std=True), expected.predict(X, return_std=True), strict=True)
        for there, here in pairs:
            np.testing.assert_allclose(there / scale, here, rtol=1e-5, atol=1e-6)

    def test_columns_that_are_no_numbers_are_named(self, tiny, wave):
        X, y = wave
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        colours = frame.assign(b=np.where(y > 0, "red", "blue"))
        dates = frame.assign(c=pd.date_range("2020-01-01", periods=len(X)))
        with pytest.raises(ValueError, match=r"Column 'b' of X holds text, such as '(red|blue)', but is not taken for"):
            tiny(categorical_features=None).fit(colours, y)
        objects = [date(2020, 1, 1), 3.0] * (len(X) // 2)
        with pytest.raises(ValueError, match="Column 'c' of X holds dates or durations, date: turn them"):
            tiny().fit(frame.assign(c=objects), y)
        with pytest.raises(ValueError, match=r"Column 0 of X holds dates or durations, datetime64\[.s\]: turn them"):
            tiny().fit(dates[["c"]].to_numpy(), y)
        with pytest.raises(ValueError, match="Column 1 of X holds text"):
            tiny().fit(colours.to_numpy(), y)
        model = tiny().fit(frame, y)
        with pytest.raises(ValueError, match="Column 'b' of X holds text"):
            model.predict(colours)
        with pytest.raises(ValueError, match="Column 'c' of X holds dates"):
            model.predict(dates)
        assert np.array_equal(tiny().fit(X.round(2).astype(str), y).predict(X), tiny().fit(X.round(2), y).predict(X))

    def test_targets_must_be_numbers(self, tiny, wave):
        X, y = wave
        model = tiny()
        for unit in ("datetime64[s]", "timedelta64[s]"):
            with pytest.raises(ValueError, match=r"y holds dates or durations, .*\[s\]: turn them into numbers"):
                model.fit(X, np.arange(len(X)).astype(unit))
        with pytest.raises(ValueError, match=r"y holds dates or durations, date: turn them into numbers"):
            model.fit(X, [date(2020, 1, 1)] * len(X))
        with pytest.raises(ValueError, match="y holds text, such as 'high', and a regressor predicts numbers"):
            model.fit(X, np.where(y > 0, "high", "low"))
        with pytest.raises(ValueError, match="y contains NaN"):
            model.fit(X, np.where(y > 0, y, None))
        assert not hasattr(model, "module_")
        expected = tiny().fit(X, y.round(3)).predict(X)
        np.testing.assert_array_equal(tiny().fit(X, y.round(3).astype(str)).predict(X), expected)

    def test_failed_refit_leaves_the_earlier_fit(self, deep, wave):
        X, y = wave
        model = deep().fit(X, y)
        expected = model.predict(X)
        with pytest.raises(ValueError, match="holds -1"):
            model.set_params(hidden_dims=(-1,)).fit(X[:, :2], y)
        assert np.array_equal(model.predict(X), expected) and model.n_features_in_ == 3

    def test_warm_start_of_another_model(self, deep, wave):
        X, y = wave
        model = deep(warm_start=True).fit(X, y).set_params(hidden_dims=(3,))
        with pytest.raises(
            ValueError, match=r"built with hidden_dims=\(2,\), but hidden_dims is now \(3,\): set it back"
        ):
            model.fit(X, y)
        assert np.isfinite(model.set_params(warm_start=False).fit(X, y).predict(X)).all()

    def test_warm_start_with_a_parameter_changed_in_place(self, wave):
        X, y = wave
        kernel = 1.0 * RBF() * Select(RBF(), 0)
        model = SOLVEGPRegressor(8, 0, kernel=kernel, max_iter=2, warm_start=True).fit(X, y)
        model.set_params(kernel__k2__columns=[1, 2])
        for act in (model.fit, model.partial_fit):
            with pytest.raises(
                ValueError, match=r"built with kernel=.*0\), but kernel is now .*\[1, 2\]\): set it back"
            ):
                act(X, y)
        assert model.kernel_.k2.columns == 0  # what has been fitted
        assert model.set_params(kernel=RBF()).kernel_.k2.columns == 0

    def test_warm_start_with_an_equal_parameter(self, wave):
        X, y = wave
        options = {"target_transform": PowerTransformer(), "kernel": [RBF() * Select(RBF(), np.array([0, 1]))]}
        model = SOLVEGPRegressor(8, 0, max_iter=2, warm_start=True, **options).fit(X, y)
        model.set_params(**{name: deepcopy(value) for name, value in options.items()})
        assert np.isfinite(model.fit(X, y).predict(X)).all()

    def test_what_only_a_fitted_model_has(self, tiny, wave):
        model = tiny()
        assert not hasattr(model, "module_") and not hasattr(model, "noise_variance_")
        for look in (
            lambda: model.device_,
            lambda: model.predict_layers(wave[0]),
            lambda: model.sample_layers(wave[0]),
            lambda: model.predict_dist(wave[0]),
            lambda: model.predict_gradient(wave[0]),
            lambda: model.sample_functions(),
        ):
            with pytest.raises(NotFittedError, match="is not fitted yet"):
                look()
        model.fit(*wave)
        for member in (1, -1, 0.5, "first"):
            with pytest.raises(ValueError, match=f"member={member} is none of the 1 members: give 0 to 0"):
                model.predict_layers(wave[0], member=member)

    def test_no_draws(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        for number in (0, 1.5):
            with pytest.raises(ValueError, match=f"n_samples={number} must be an integer of at least 1"):
                model.sample_y(X, n_samples=number)
            with pytest.raises(ValueError, match=f"n_functions={number} must be an integer of at least 1"):
                model.sample_functions(number)

    def test_std_and_cov_together(self, tiny, wave):
        X, y = wave
        with pytest.raises(ValueError, match="At most one of return_std and return_cov"):
            tiny().fit(X, y).predict(X, return_std=True, return_cov=True)

    @pytest.mark.slow
    def test_no_warnings_in_ordinary_use(self, tiny, wave):
        X, y = wave
        for table in (X, pd.DataFrame(X, columns=["a", "b", "c"])):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model = tiny(base="gp").fit(table, y, X_val=table[:20], y_val=y[:20])
                for options in ({}, {"return_std": True}, {"return_cov": True}):
                    model.predict(table, **options)
                model.predict_dist(table), model.predict_interval(table), model.sample_y(table)
                model.predict_layers(table), model.partial_fit(table, y)

    def test_impossible_quantiles(self, tiny, wave):
        X, y = wave
        model = tiny().fit(X, y)
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            model.predict_quantiles(X, [0.1, 10])
        with pytest.raises(ValueError, match=r"quantiles must be a number or a list of numbers, got .* \(2, 1\)"):
            model.predict_quantiles(X, [[0.1], [0.2]])
        with pytest.raises(ValueError, match="confidence_level must lie between 0 and 1, got 90"):
            model.predict_interval(X, 90)
