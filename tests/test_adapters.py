"""Adapters for other packages, each beside the package itself."""

import json
import re
import sys

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.models import ModelList
from botorch.optim import optimize_acqf
from mapie.conformity_scores import ResidualNormalisedScore
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PowerTransformer, StandardScaler
from skpro.utils import check_estimator

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor, adapters
from skdgp.adapters import BoTorchModel, Deviation, MomentsModule, OutputTypes, Quantile, SkproRegressor, to_onnx
from skdgp.adapters._back import back_of
from skdgp.adapters._skpro import SkproDistribution
from skdgp.datasets import make_waves
from skdgp.metrics import coverage

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore::FutureWarning:(skpro|copyreg|torch)"),
]

TINY = {"n_inducing": 6, "max_iter": 20, "random_state": 0}


def rows(n_rows=60, n_features=2, seed=0):
    """Rows with units, and a target of each of two kinds."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(10, 14, (n_rows, n_features))
    y = 100 + 20 * np.sin(X[:, 0]) + 5 * X[:, -1] + rng.normal(size=n_rows)
    return X, y


def shallow(**changed):
    return SOLVEGPRegressor(**{"n_orthogonal": 6, **TINY, **changed})


def deep(**changed):
    return DSDGPRegressor((2,), **{"n_estimators": 2, "n_neighbors": 0, **TINY, **changed})


MODELS = {
    "shallow": shallow(),
    "deep with a base": deep(),
    "deep alone": deep(base=None),
    "corrected": deep(n_neighbors=8, base=None),
    "amortised": AVDGPRegressor((2,), n_estimators=1, base=None, n_neighbors=0, **TINY),
}


@pytest.fixture(scope="module", params=list(MODELS))
def fitted(request):
    return MODELS[request.param].fit(*rows())


@pytest.fixture(scope="module")
def smooth():
    return shallow().fit(*rows())


# skpro


@pytest.mark.slow
def test_skpros_own_checks_hold():
    found = check_estimator(SkproRegressor, raise_exceptions=True, verbose=False)
    assert len(found) > 40 and set(found.values()) == {"PASSED"}


def test_skpro_has_the_same_distribution(smooth):
    X, y = rows()
    X, y = pd.DataFrame(X, columns=["a", 7]), pd.DataFrame({"height": y})
    model = SkproRegressor(shallow()).fit(X, y)
    X_new = X.iloc[:5].set_index(pd.Index(list("pqrst")))
    mean, std = smooth.predict(X_new.to_numpy(), return_std=True)

    found = model.predict_proba(X_new)
    np.testing.assert_allclose(found.mean()["height"], mean)
    np.testing.assert_allclose(found.var()["height"], std**2)
    np.testing.assert_allclose(
        found.log_pdf(y.iloc[:5].set_index(X_new.index))["height"].to_numpy(),
        smooth.predict_dist(X_new.to_numpy()).logpdf(y["height"].to_numpy()[:5]),
    )
    assert list(found.mean().index) == list("pqrst")
    interval = model.predict_interval(X_new, coverage=0.9).to_numpy()
    np.testing.assert_allclose(interval, smooth.predict_interval(X_new.to_numpy(), confidence_level=0.9))
    np.testing.assert_allclose(found.loc[["q"]].mean()["height"], mean[1])
    np.testing.assert_allclose(found.iloc[2, 0].mean(), mean[2])
    assert found.sample(4).shape == (20, 1) and found.sample().shape == (5, 1)


def test_draws_of_a_skpro_distribution_have_its_moments(smooth):
    X, _ = rows(3)
    found = SkproDistribution(smooth.predict_dist(X)[:, None], index=pd.RangeIndex(3), columns=pd.Index(["y"]))
    drawn = found.sample(4000).to_numpy().reshape(4000, 3)
    mean, std = smooth.predict(X, return_std=True)
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=5 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(axis=0), std, rtol=0.06)


def test_skpro_takes_missing_cells():
    X, y = rows()
    X[::7, 1] = np.nan
    model = SkproRegressor(shallow()).fit(pd.DataFrame(X), pd.DataFrame(y))
    assert np.isfinite(model.predict(pd.DataFrame(X)).to_numpy()).all()


def test_skpro_refuses_others():
    X, y = rows()
    with pytest.raises(TypeError, match="SkproRegressor takes regressors of skdgp, got LinearRegression"):
        SkproRegressor(LinearRegression()).fit(pd.DataFrame(X), pd.DataFrame(y))


# BoTorch


@pytest.mark.slow
def test_posteriors_are_those_of_predictions(fitted):
    model = BoTorchModel(fitted)
    X, _ = rows(4, seed=1)
    assert model.num_outputs == 1 and model.batch_shape == torch.Size([])
    posterior = model.posterior(torch.as_tensor(X))
    mean, covariance = fitted.predict(X, return_cov=True, latent=True)
    np.testing.assert_allclose(posterior.mean.detach()[:, 0], mean, rtol=1e-5)
    np.testing.assert_allclose(
        posterior.distribution.covariance_matrix.detach(), covariance, rtol=1e-4, atol=1e-4 * covariance.max()
    )

    observed = model.posterior(torch.as_tensor(X), observation_noise=True)
    _, std = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(observed.variance.detach()[:, 0], std**2, rtol=1e-4)

    alone = model.posterior(torch.as_tensor(X)[:, None])  # one at a time
    np.testing.assert_allclose(alone.mean.detach()[:, 0, 0], mean, rtol=1e-5)
    np.testing.assert_allclose(alone.variance.detach()[:, 0, 0], covariance.diagonal(), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("n_jointly", [1, 3])
def test_posteriors_have_gradients(n_jointly):
    model = BoTorchModel(deep().fit(*rows()))
    X = torch.as_tensor(rows(n_jointly, seed=1)[0]).requires_grad_()

    def summary(X):
        posterior = model.posterior(X)
        return posterior.mean.sum() / 100, posterior.distribution.covariance_matrix.sum() / 100

    assert torch.autograd.gradcheck(summary, (X,), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")  # a line search on a flat function
def test_improvement_is_largest_where_it_should_be():
    X = np.linspace(0, 10, 40)[:, None]
    X = X[(X[:, 0] < 5.5) | (X[:, 0] > 7.2)]
    y = -((X[:, 0] - 6.3) ** 2) + np.random.default_rng(0).normal(size=len(X))
    model = BoTorchModel(shallow(n_inducing=10, max_iter=300).fit(X, y))
    bounds = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        best, _ = optimize_acqf(LogExpectedImprovement(model, best_f=0.0), bounds, 1, num_restarts=4, raw_samples=32)
        pair, _ = optimize_acqf(qLogExpectedImprovement(model, best_f=0.0), bounds, 2, num_restarts=2, raw_samples=16)
    assert abs(best.item() - 6.3) < 0.5
    assert ((pair - 6.3).abs() < 0.5).any()


@pytest.mark.slow
def test_models_of_several_outputs_stand_in_a_list(smooth):
    both = ModelList(BoTorchModel(smooth), BoTorchModel(smooth))
    assert both.posterior(torch.as_tensor(rows(3)[0])).mean.shape == (3, 2)
    with pytest.raises(ValueError, match=r"output_indices=\[1\] asks for other outputs than 0"):
        BoTorchModel(smooth).posterior(torch.as_tensor(rows(3)[0]), output_indices=[1])
    X, y = rows()
    with pytest.raises(ValueError, match="BoTorchModel takes models of one output, got one of 2"):
        BoTorchModel(shallow().fit(X, np.column_stack([y, -y])))


def test_new_observations_make_a_new_model(smooth):
    X, y = rows()
    model = BoTorchModel(smooth)
    x, target = torch.full((1, X.shape[1]), 0.3, dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    before = model.posterior(x).variance
    later = model.condition_on_observations(x, target)
    assert later.posterior(x).variance < before == model.posterior(x).variance
    expected = clone(smooth).fit(X, y).update(x.numpy(), target[:, 0].numpy()).predict(x.numpy())
    assert later.posterior(x).mean.item() == pytest.approx(expected[0], abs=1e-6)
    with pytest.raises(ValueError, match=r"must be \(q, n_features\) and \(q, 1\): add one batch"):
        model.condition_on_observations(x[None], target[None])
    with pytest.raises(ValueError, match="noise must be None"):
        model.condition_on_observations(x, target, noise=target)


# MAPIE


@pytest.mark.slow
def test_mapie_takes_deviations_and_quantiles():
    X, y = make_waves(500, random_state=0)
    model = shallow(n_inducing=20, max_iter=200).fit(X[:200], y[:200])
    score = ResidualNormalisedScore(Deviation(model), prefit=True)
    normalised = SplitConformalRegressor(model, confidence_level=0.9, conformity_score=score, prefit=True)
    ends = [Quantile(model, level) for level in (0.05, 0.95, 0.5)]
    quantiles = ConformalizedQuantileRegressor(ends, confidence_level=0.9, prefit=True)
    for conformal in (normalised, quantiles):
        conformal.conformalize(X[200:350], y[200:350])
        _, found = conformal.predict_interval(X[350:])
        assert 0.8 < coverage(y[350:], *found[:, :, 0].T) <= 1.0


def test_a_statistic_is_fitted_as_soon_as_its_regressor():
    X, y = make_waves(50, random_state=0)
    model = shallow()
    view = Quantile(model, 0.9)
    with pytest.raises(ValueError, match="not fitted"):
        view.fit(X, y)
    model.fit(X, y)
    assert view.fit(X, y).n_features_in_ == 1
    np.testing.assert_array_equal(view.predict(X), model.predict_quantiles(X, 0.9))
    np.testing.assert_array_equal(Deviation(model).predict(X), model.predict(X, return_std=True)[1])


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda model: make_pipeline(StandardScaler(), model), "search"])
def test_statistics_see_through_pipelines_and_searches(wrap):
    X, y = make_waves(50, random_state=0)
    outer = GridSearchCV(shallow(), {"kernel": ["rbf"]}, cv=2) if wrap == "search" else wrap(shallow())
    outer.fit(X, y)
    inner, rows_inside = (outer.best_estimator_, X) if wrap == "search" else (outer[-1], outer[:-1].transform(X))
    np.testing.assert_array_equal(Quantile(outer, 0.9).predict(X), inner.predict_quantiles(rows_inside, 0.9))
    np.testing.assert_array_equal(Deviation(outer).predict(X), inner.predict(rows_inside, return_std=True)[1])


# torch and ONNX


def test_a_module_computes_what_predict_does(fitted):
    X, _ = rows(7, seed=1)
    mean, std = MomentsModule(fitted)(torch.as_tensor(X))
    expected = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(mean.detach()[:, 0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(std.detach()[:, 0], expected[1], rtol=1e-4)


def test_a_module_made_in_inference_mode_has_gradients(fitted):
    X = torch.as_tensor(rows(3, seed=1)[0]).requires_grad_()
    with torch.inference_mode():
        module = MomentsModule(fitted)
    module(X)[0].sum().backward()
    assert X.grad.abs().sum() > 0


def test_a_module_has_several_outputs():
    X, y = rows()
    model = deep().fit(X, np.column_stack([y, -3 * y]))
    mean, std = MomentsModule(model)(torch.as_tensor(X))
    expected = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean.detach(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(std.detach(), expected[1], rtol=1e-4)


TRANSFORMS = {
    "log": "log",
    "logit": "logit",
    "yeo-johnson": "yeo-johnson",
    "box-cox": PowerTransformer("box-cox", standardize=False),
    "steps": make_pipeline(StandardScaler(), PowerTransformer()),
}


def shares_of(y):
    """Positive targets below one."""
    return 1 / (1 + np.exp((100 - y) / 20))


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("make", [shallow, deep], ids=["shallow", "deep"])
def test_a_module_has_moments_of_transformed_targets(make, transform):
    X, y = rows()
    model = make(target_transform=transform, base="auto" if make is shallow else None).fit(
        X, np.column_stack([shares_of(y), 0.9 * shares_of(220 - y)])
    )
    new = np.vstack([X[:5], rows(5, seed=1)[0], X[:1] + 50])
    mean, std = MomentsModule(model)(torch.as_tensor(new))
    expected = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean.detach(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(std.detach(), expected[1], rtol=1e-4)


def test_a_module_has_moments_of_heavy_tails_and_gradients():
    X, y = rows()
    model = deep(target_transform="log", likelihood="student_t", base="gp").fit(X, shares_of(y))
    there = torch.as_tensor(X[:5]).requires_grad_()
    mean, std = MomentsModule(model)(there)
    expected = model.predict(X[:5], return_std=True)
    np.testing.assert_allclose(mean.detach()[:, 0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(std.detach()[:, 0], expected[1], rtol=1e-4)
    mean.sum().backward()
    assert there.grad.isfinite().all() and (there.grad != 0).any()


def test_inverses_of_powers_are_those_of_scikit_learn():
    z = torch.linspace(-1.4, 1.4, 29, dtype=torch.float64)[:, None]
    for method, powers in {"yeo-johnson": (-0.7, 0.0, 0.6, 1.0, 2.0, 2.6), "box-cox": (-0.6, 0.0, 0.4)}.items():
        for power in powers:
            transformer = PowerTransformer(method, standardize=False).fit(np.array([[1.0], [2.0]]))
            transformer.lambdas_ = np.array([power])
            found = back_of(transformer)(z, torch.zeros_like(z))
            np.testing.assert_allclose(found[0], transformer.inverse_transform(z.numpy()), rtol=1e-10, atol=1e-12)
            assert found[1].abs().max() < 1e-20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log", "logit", "yeo-johnson"])
@pytest.mark.filterwarnings("ignore")  # PyTorch's exporter and what it imports
def test_onnx_has_moments_of_transformed_targets(name, tmp_path):
    X, y = rows()
    model = deep(target_transform=TRANSFORMS[name], n_neighbors=6, base="gp").fit(X, shares_of(y))
    to_onnx(model, tmp_path / "model.onnx")
    X, _ = rows(9, seed=1)
    mean, std = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"X": X})
    expected = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean[:, 0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(std[:, 0], expected[1], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log", "yeo-johnson"])
@pytest.mark.filterwarnings("ignore")  # PyTorch's exporter and what it imports
def test_onnx_is_exact_where_targets_are_far_from_zero(name, tmp_path):
    X, _ = rows()
    y = 1e6 + np.sin(X[:, 0]) + 0.01 * np.random.default_rng(0).standard_normal(len(X))
    model = shallow(target_transform=name).fit(X, y)
    to_onnx(model, tmp_path / "model.onnx")
    mean, std = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"X": X})
    expected = model.predict(X, return_std=True)
    assert np.max(np.abs(mean[:, 0] - expected[0]) / expected[1]) < 0.01
    np.testing.assert_allclose(std[:, 0], expected[1], rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shallow", "deep with a base", "deep alone", "corrected"])
@pytest.mark.filterwarnings("ignore")  # PyTorch's exporter and what it imports
def test_onnx_computes_what_predict_does(name, tmp_path, capfd):
    model = MODELS[name].fit(*rows())
    capfd.readouterr()
    to_onnx(model, tmp_path / "model.onnx")
    assert capfd.readouterr().err == ""
    X, _ = rows(9, seed=1)
    mean, std = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"X": X})
    expected = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean[:, 0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(std[:, 0], expected[1], rtol=1e-4)


def houses(n_rows=60, seed=0):
    """A table with gaps, a category of which some are missing, one of many levels, and an empty column."""
    rng = np.random.default_rng(seed)
    city, street = rng.integers(3, size=n_rows), rng.integers(200, size=n_rows)
    size = rng.normal(size=n_rows)
    y = size + city + 0.01 * street + 0.1 * rng.normal(size=n_rows)
    X = pd.DataFrame({"size": size, "city": np.array(["Oslo", "Rome", "Lima"], dtype=object)[city]})
    X.loc[rng.random(n_rows) < 0.2, "size"], X.loc[rng.random(n_rows) < 0.2, "city"] = np.nan, None
    return X.assign(street=[f"street {i}" for i in street], nothing=np.nan), y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's exporter and what it imports; the column that is empty
def test_onnx_takes_numbers_of_levels(tmp_path):
    X, y = houses(500)
    model = shallow(n_neighbors=6).fit(X, y)
    new = houses(40, seed=1)[0]
    new.loc[0, ["size", "city"]] = 0.3, "Paris"
    module = MomentsModule(model)
    numbers, complete = module.numbers(new), new["size"].notna() & new["street"].isin(X["street"])
    assert set(module.levels) == {"city", "street"} and None in module.levels["city"]
    assert module.levels["city"][int(numbers[1, 1])] == new["city"][1]
    to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["levels"]) == module.levels
    expected = model.predict(new, return_std=True)
    for mean, std in (module(torch.as_tensor(numbers)), session.run(None, {"X": numbers})):
        mean, std = (torch.as_tensor(column).detach().numpy()[:, 0] for column in (mean, std))
        assert np.isnan(mean[~complete]).all() and np.isnan(std[~complete]).all()
        np.testing.assert_allclose(mean[complete], expected[0][complete], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(std[complete], expected[1][complete], rtol=1e-4)


def test_what_onnx_cannot_have_is_said(tmp_path):
    model = MODELS["amortised"].fit(*rows())
    with pytest.raises(ValueError, match="to_onnx cannot export AVDGP, since ONNX has no operations"):
        to_onnx(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_module_takes_the_columns_of_fit_alone(smooth):
    for n_columns in (1, 3):
        wrong = torch.zeros(4, n_columns, dtype=torch.float64)
        for call in (MomentsModule(smooth), BoTorchModel(smooth).posterior):
            with pytest.raises(ValueError, match=f"X has {n_columns} columns, but the model has learnt from 2: give"):
                call(wrong)


@pytest.mark.parametrize("shape", [(0, 2), (3, 0, 2), (0, 1, 2), (0, 3, 2), (2,)])
def test_a_module_needs_rows(smooth, shape):
    for call in (MomentsModule(smooth), BoTorchModel(smooth).posterior):
        with pytest.raises(ValueError, match=f"^X has the shape {re.escape(str(shape))}: give at least one row, as"):
            call(torch.zeros(shape, dtype=torch.float64))


def test_a_posterior_has_the_noise_that_is_given(smooth):
    model, X = smooth, torch.as_tensor(np.linspace(0, 1, 3)[:, None].repeat(smooth.n_features_in_, 1))
    noise = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    of_function, of_targets = (BoTorchModel(model).posterior(X, observation_noise=value) for value in (False, noise))
    np.testing.assert_allclose(of_targets.variance - of_function.variance, noise, rtol=1e-8)
    with pytest.raises(ValueError, match="observation_noise of shape"):
        BoTorchModel(model).posterior(X, observation_noise=noise[:2])


@pytest.mark.slow
def test_what_a_module_cannot_have_is_said(tmp_path):
    X, y = rows()
    with pytest.raises(TypeError, match="MomentsModule takes regressors of skdgp, got LinearRegression"):
        MomentsModule(LinearRegression().fit(X, y))
    with pytest.raises(ValueError, match="not fitted"):
        MomentsModule(shallow())
    with pytest.raises(ValueError, match="MomentsModule takes models whose noise is added"):
        MomentsModule(shallow(likelihood="heteroskedastic").fit(X, y))
    root = FunctionTransformer(np.sqrt, np.square)
    with pytest.raises(ValueError, match=r"MomentsModule has no formula for target_transform=FunctionTransformer\("):
        MomentsModule(shallow(target_transform=root).fit(X, shares_of(y)))
    with pytest.raises(ValueError, match="BoTorchModel takes models whose posteriors are Gaussian"):
        BoTorchModel(shallow(target_transform="log").fit(X, shares_of(y)))
    dates = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=len(y))})
    with pytest.raises(ValueError, match="MomentsModule takes models of numbers and categories, but X had dates"):
        MomentsModule(shallow().fit(dates, y))
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match="BoTorchModel takes models of numbers"):
        BoTorchModel(shallow().fit(X, y))


@pytest.mark.parametrize(("package", "adapter"), [("skpro", "SkproRegressor"), ("botorch", "BoTorchModel")])
def test_a_missing_package_is_named(monkeypatch, package, adapter):
    monkeypatch.delitem(sys.modules, f"skdgp.adapters._{package}")
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"{adapter} needs .*pip install"):
        getattr(adapters, adapter)


def test_missing_onnx_is_named(monkeypatch, smooth, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match="to_onnx needs onnx and onnxscript"):
        to_onnx(smooth, tmp_path / "model.onnx")


def test_adapters_are_listed():
    assert dir(adapters) == sorted(adapters.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        adapters.Nothing  # noqa: B018


class TestOutputTypes:
    """The argument ``output_type``, beside the methods of the regressor that it stands for."""

    X, y = make_waves(60, random_state=0)
    regressor = SOLVEGPRegressor(5, 5, max_iter=2, random_state=0)

    @pytest.mark.parametrize("outputs", [1, 2])
    def test_each_is_a_statistic_of_the_distribution(self, outputs):
        y = self.y if outputs == 1 else np.column_stack([self.y, -self.y])
        model, plain = OutputTypes(self.regressor).fit(self.X, y), clone(self.regressor).fit(self.X, y)
        np.testing.assert_array_equal(model.predict(self.X), plain.predict(self.X))
        median = plain.predict_dist(self.X).ppf(0.5)
        np.testing.assert_array_equal(model.predict(self.X, output_type="median"), median)
        low, high = model.predict(self.X, output_type="quantiles", quantiles=[0.05, 0.95])
        np.testing.assert_allclose(high, plain.predict_dist(self.X).ppf(0.95), rtol=1e-12)
        main = model.predict(self.X, "main")
        assert list(main) == ["mean", "median", "quantiles"] and len(main["quantiles"]) == 9
        np.testing.assert_allclose(main["quantiles"][4], median, rtol=1e-12)
        assert low.shape == y.shape and (low < high).all()
        np.testing.assert_allclose(main["mean"], plain.predict(self.X), rtol=1e-6, atol=1e-6)

    def test_one_quantile(self):
        model = OutputTypes(self.regressor).fit(self.X, self.y)
        [median] = model.predict(self.X, output_type="quantiles", quantiles=0.5)
        np.testing.assert_array_equal(median, model.predict(self.X, output_type="median"))

    def test_it_is_at_home_in_scikit_learn(self):
        with pytest.raises(NotFittedError):
            OutputTypes(self.regressor).predict_distribution(self.X)
        search = GridSearchCV(OutputTypes(self.regressor), {"regressor__max_iter": [1, 2]}, cv=2).fit(self.X, self.y)
        assert search.best_estimator_.n_features_in_ == self.X.shape[1]
        weight = np.ones(60)
        model = OutputTypes(make_pipeline(StandardScaler(), self.regressor))
        model.fit(self.X, self.y, solvegpregressor__sample_weight=weight)
        assert np.isfinite(model.predict_distribution(self.X).crps(self.y)).all()

    def test_what_it_cannot_return(self):
        model = OutputTypes(self.regressor).fit(self.X, self.y)
        with pytest.raises(
            ValueError, match=r"output_type='full' is none of .*: choose one of these, or call predict_d"
        ):
            model.predict(self.X, output_type="full")
        with pytest.raises(ValueError, match=r"1\.5"):
            model.predict(self.X, output_type="quantiles", quantiles=[1.5])
