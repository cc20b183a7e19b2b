"""What is SOLVEGPRegressor's and SOLVEGPClassifier's own."""

import numpy as np
import pytest
import torch
from helpers import generator
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.pipeline import make_pipeline

from skdgp import DSDGPClassifier, DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.gp.classes import RobustMax
from skdgp.gp.global_layer import OrthogonalLayer
from skdgp.inference import collapsed
from skdgp.methods import SOLVEGP, solvegp


def tiny(n_inducing=10, n_orthogonal=6, **parameters) -> SOLVEGPRegressor:
    return SOLVEGPRegressor(n_inducing, n_orthogonal, **({"max_iter": 5, "random_state": 0} | parameters))


@pytest.mark.parametrize("method", ["svi", "collapsed"])
@pytest.mark.parametrize("n_orthogonal", [0, 6])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_every_method(wave, method, n_orthogonal, n_outputs):
    X, y = wave
    Y = np.column_stack([y, -y])[:, :n_outputs]
    model = tiny(n_orthogonal=n_orthogonal, method=method).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (len(X), n_outputs) and (std > 0).all()
    assert model.method_ == method and model.n_iter_ <= 5
    assert model.inducing_points_.shape == (1, 10, 3) and model.orthogonal_points_.shape == (1, n_orthogonal, 3)
    assert isinstance(model.module_[0].layers[0], OrthogonalLayer) == (n_orthogonal > 0)


@pytest.mark.parametrize("covariance", ["diag", "full", "diag_unwhitened", "full_unwhitened", "odvgp"])
@pytest.mark.parametrize("objective", ["elbo", "predictive"])
def test_every_posterior_and_objective(wave, covariance, objective):
    X, y = wave
    model = tiny(method="svi", covariance=covariance, objective=objective)
    assert np.isfinite(model.fit(X, y).predict(X, return_std=True)).all()


def test_a_row_of_weight_two_is_that_row_twice(wave):
    X, y = wave[0][:40], wave[1][:40]
    model = tiny(
        30, 10, max_iter=10, base=None, n_neighbors=0
    )  # a base is judged by rows that are left out, however often they come
    weighted = clone(model).fit(X, y, sample_weight=np.full(40, 2.0))
    repeated = clone(model).fit(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    mean, std = weighted.predict(X, return_std=True)
    np.testing.assert_allclose((mean, std), repeated.predict(X, return_std=True), rtol=1e-6)
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, rel=1e-9)
    np.testing.assert_allclose(weighted.loss_curve_, repeated.loss_curve_, rtol=1e-9)
    narrow, wide = (each.predict_dist(X, latent=True).std for each in (weighted, model.fit(X, y)))
    assert narrow.mean() < 0.9 * wide.mean()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_all_rows_as_inducing_points_are_nearly_exact_regression(wave):
    """The collapsed fit's bound and predictions come close to those of scikit-learn's optimised GP."""
    X, y = wave
    X_train, y_train = X[:80], y[:80]
    model = SOLVEGPRegressor(80, 0, max_iter=200, base=None, random_state=0).fit(X_train, y_train)
    kernel = ConstantKernel() * Matern(np.ones(3), (1e-2, 1e4), nu=2.5) + WhiteKernel(0.1)
    centre, scale = X_train.mean(0), X_train.std(0)
    exact = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    exact.fit((X_train - centre) / scale, y_train)
    evidence = exact.log_marginal_likelihood_value_ - len(y_train) * np.log(y_train.std())
    assert evidence - 1.5 < model.lower_bound_ < evidence + 0.1
    mean, std = exact.predict((X[80:] - centre) / scale, return_std=True)
    ours, our_std = model.predict(X[80:], return_std=True)
    np.testing.assert_allclose(ours, mean, atol=0.05)
    np.testing.assert_allclose(our_std, std, rtol=0.1)


@pytest.mark.slow
def test_auto_collapses_small_data_unless_something_speaks_against_it(wave, monkeypatch):
    X, y = wave
    against = [
        {"covariance": "diag"},
        {"covariance": "odvgp"},
        {"covariance": "full_unwhitened"},
        {"objective": "predictive"},
        {"beta": 2.0},
        {"early_stopping": True},
    ]
    assert tiny().fit(X, y).method_ == "collapsed"
    assert all(tiny(**parameters).fit(X, y).method_ == "svi" for parameters in against)
    assert tiny().fit(X, y, X_val=X[:5], y_val=y[:5]).method_ == "svi"
    monkeypatch.setattr(solvegp, "COLLAPSED_ROWS", len(X) - 1)
    assert tiny().fit(X, y).method_ == "svi"


def test_a_collapsed_fit_may_hold_out_rows(wave):
    X, y = wave
    model = tiny(method="collapsed", early_stopping=True, n_estimators=2, max_iter=30).fit(X, y)
    assert len(model.module_) == 2 and len(model.validation_scores_) == 0
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize(("n_classes", "n_points"), [(3, 256), (10, 256), (40, 128), (300, 64)])
def test_many_classes_have_fewer_inducing_points(n_classes, n_points):
    X = torch.rand(2000, 2, generator=generator())
    model = SOLVEGP().build(X, RobustMax(n_classes), generator())
    assert [len(each.mean.T) for each in model.layers[0].posteriors] == [n_points, n_points]


def test_few_rows_are_shared_by_both_sets(wave):
    X, y = wave
    expected = r"n_inducing=10 \+ n_orthogonal=6 is more than the 8 distinct rows of X"
    with pytest.warns(UserWarning, match=expected) as seen:
        model = tiny().fit(X[:8], y[:8])
    assert {each.filename for each in seen} == {__file__}
    with pytest.warns(UserWarning, match=expected) as seen:
        make_pipeline(tiny()).fit(X[:8], y[:8])
    with pytest.warns(UserWarning, match=expected) as also_seen:
        tiny().partial_fit(X[:8], y[:8])
    assert {each.filename for each in [*seen, *also_seen]} == {__file__}
    assert model.inducing_points_.shape[1] == 5 and model.orthogonal_points_.shape[1] == 3
    assert np.isfinite(model.predict(X, return_std=True)).all()


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes(wave, n_classes):
    X, y = wave
    labels = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    model = SOLVEGPClassifier(20, 20, max_iter=60, random_state=0).fit(X[:100], labels[:100])
    assert model.score(X[100:], labels[100:]) > 0.65
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "exact"}, "'method' parameter"),
        ({"n_orthogonal": -1}, "'n_orthogonal' parameter"),
        (
            {"covariance": "diag"},
            "method='collapsed' needs covariance='full', got 'diag': change it, or set method='svi'",
        ),
        ({"beta": 0.5}, "method='collapsed' needs beta='auto' or 1.0, got 0.5"),
    ],
)
def test_bad_parameters(wave, parameters, message):
    X, y = wave
    with pytest.raises(ValueError, match=message):
        tiny(**{"method": "collapsed"} | parameters).fit(X, y)


def test_a_collapsed_fit_that_memory_would_not_hold_is_refused(wave, monkeypatch):
    X, y = wave
    monkeypatch.setattr(collapsed, "free_memory", lambda: 2**20)
    with pytest.raises(
        ValueError, match=r"16 inducing points needs about 0\.\d GiB, and 0\.0 GiB are free: set method='svi'"
    ):
        tiny(method="collapsed").fit(X, y)


@pytest.mark.slow
def test_memory_is_not_asked_for_where_the_system_does_not_say(wave, monkeypatch):
    X, y = wave

    def missing(*args, **options):
        raise FileNotFoundError("/proc/meminfo")  # as on macOS

    monkeypatch.setattr(collapsed, "open", missing, raising=False)
    assert tiny(method="collapsed").fit(X, y).method_ == "collapsed"


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_a_collapsed_fit_survives_steps_that_go_too_far(scale):
    X = np.random.default_rng(2).uniform(-1, 1, (150, 2))
    y = scale * (X[:, 0] > 0)
    model = SOLVEGPRegressor(normalize_y=False, max_iter=30, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("cls", [DSDGPRegressor, SOLVEGPRegressor, DSDGPClassifier, SOLVEGPClassifier])
@pytest.mark.parametrize("n_rows", [8, 30])
def test_a_number_that_is_given_is_kept_beside_auto(wave, cls, n_rows):
    """The rows are fewer than the points that "auto" would take."""
    X, y = wave[0][:n_rows], wave[1][:n_rows]
    y = y > np.median(y) if "Classifier" in cls.__name__ else y
    options = {"base": None, "early_stopping": False, "max_iter": 1, "n_estimators": 1, "random_state": 0}

    def sizes(**numbers):
        [layer, *_] = cls(**options, **numbers).fit(X, y).module_[0].layers
        return layer.sizes

    assert sizes(n_orthogonal=6) == [n_rows - 6, 6]
    if "SOLVE" in cls.__name__:
        assert sizes(n_inducing=6) == [6, n_rows - 6]
        with pytest.warns(UserWarning, match=f"n_inducing=40 is more than the {n_rows} distinct rows of X"):
            assert sizes(n_inducing=40) == [n_rows]
    with pytest.warns(UserWarning, match=rf"n_inducing=1 \+ n_orthogonal=40 is more than the {n_rows} distinct rows"):
        assert sizes(n_orthogonal=40) == [1, n_rows - 1]
