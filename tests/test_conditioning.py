"""Posteriors that learn from new rows: refits with the same hyperparameters, exact GPs, and the faces of estimators."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers import generator, normal, predictor_of, table_of
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.gp.alternatives import alternative, side_by_side
from skdgp.gp.deep_gp import DeepGP
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.means import ZeroMean
from skdgp.gp.propagation import make_propagation
from skdgp.inference import conditioning
from skdgp.inference.batches import Batch
from skdgp.inference.collapsed import set_posteriors
from skdgp.inference.conditioning import conditioned
from skdgp.inference.predictor import Predictor
from skdgp.kernels import Convolutional

N_FIRST = 60


def table(n_rows=90, n_outputs=1, *, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n_rows, 2))
    Y = np.stack([np.sin(6 * X[:, 0]) + X[:, 1] ** 2, 100 + 5 * np.cos(5 * X[:, 1])], axis=1)
    Y = (Y + noise * rng.normal(size=Y.shape))[:, :n_outputs]
    return X, Y[:, 0] if n_outputs == 1 else Y, rng.uniform(0.5, 2.0, n_rows)


def small(n_inducing=12, n_orthogonal=6, **parameters) -> SOLVEGPRegressor:
    fixed = {"n_neighbors": 0, "base": None, "max_iter": 10, "random_state": 0}
    return SOLVEGPRegressor(n_inducing, n_orthogonal, **(fixed | parameters))


@pytest.fixture
def no_new_points(monkeypatch):
    """No row becomes an inducing point."""
    monkeypatch.setattr(conditioning, "MOST_POINTS", 0)


def halves(X, y, weight=None):
    first, later = slice(0, N_FIRST), slice(N_FIRST, None)
    weights = (None, None) if weight is None else (weight[first], weight[later])
    return (X[first], y[first], weights[0]), (X[later], y[later], weights[1])


def encoded(model, X, y, weight=None) -> Batch:
    """Rows as a model sees them, in float64."""
    learnt = table_of(model).read(model, X, y, weight)
    likelihood = predictor_of(model).models[0].likelihood
    return Batch.of(learnt.X, likelihood.encode(learnt.y), learnt.given.weight, np.float64)


def assert_same_posteriors(layer, other, atol):
    for own, expected in zip(layer.posteriors, other.posteriors, strict=True):
        torch.testing.assert_close(own.mean, expected.mean, rtol=0, atol=atol)
        covariance, expected = (posterior.root @ posterior.root.mT for posterior in (own, expected))
        torch.testing.assert_close(covariance, expected, rtol=0, atol=atol)


# Against refits


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("n_orthogonal", [0, 6])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"method": "svi", "early_stopping": False}, {"inducing": "eigen", "kernel": "rbf"}]
)
def test_it_is_a_refit_with_the_same_hyperparameters(no_new_points, n_outputs, n_orthogonal, weighted, options):
    X, y, weight = table(n_outputs=n_outputs)
    weight = weight if weighted else None
    first, later = halves(X, y, weight)
    model = small(n_orthogonal=n_orthogonal, **options).fit(*first)
    expected = deepcopy(predictor_of(model).models[0])
    beta = (expected.layers[0].remembered[0] / expected.likelihood.variance)[
        0
    ].item()  # held-out rows correct the noise
    set_posteriors(expected, encoded(model, X, y, weight), beta)
    model.update(*later)
    assert_same_posteriors(predictor_of(model).models[0].layers[0], expected.layers[0], atol=1e-6)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_the_base_and_its_alternatives_are_refits(no_new_points, n_outputs):
    X, y, _ = table(n_outputs=n_outputs)
    first, later = halves(X, y)
    model = small(base="gp").fit(*first)
    blend = deepcopy(predictor_of(model).blend)
    assert blend.n_alternatives > 1
    alternatives = [alternative(blend.base, i, blend.n_alternatives) for i in range(blend.n_alternatives)]
    for base in alternatives:
        set_posteriors(base, encoded(model, X, y))
    expected = side_by_side(alternatives)
    model.update(*later)
    assert_same_posteriors(predictor_of(model).blend.base.layers[0], expected.layers[0], atol=1e-6)


def test_several_updates_are_one():
    X, y, weight = table()
    first, _ = halves(X, y, weight)
    model = small(base="gp").fit(*first)
    together = deepcopy(model).update(X[N_FIRST:], y[N_FIRST:], weight[N_FIRST:])
    for row in range(N_FIRST, len(X)):
        model.update(X[row : row + 1], y[row : row + 1], weight[row : row + 1])
    grid = table(200, seed=5)[0]
    mean, deviation = model.predict(grid, return_std=True)
    expected_mean, expected = together.predict(grid, return_std=True)
    # Which rows become inducing points depends on what is known by then.
    np.testing.assert_allclose(mean, expected_mean, atol=0.02)
    np.testing.assert_allclose(deviation, expected, rtol=0.02)


# Against exact GPs


@torch.no_grad()
@pytest.mark.parametrize("noise", [1e-6, 0.05])
def test_with_rows_as_inducing_points_it_is_the_exact_gp(noise):
    X, y = normal(40, 2, seed=1), normal(40, 1, seed=2)
    X[30:] += 3.0  # where no row has been before
    kernel = StationaryKernel("matern32", 2, lengthscale=0.9, variance=1.4).double()
    layer = GlobalLayer(
        kernel, ZeroMean(1), X[:30].clone(), 0 * y[:30].mT, covariance="full", whiten=True, jitter=1e-12
    )
    model = DeepGP(
        [layer], make_propagation("monte_carlo", (), 1, torch.Generator()), Gaussian(1, excess=noise)
    ).double()
    noise = model.likelihood.variance.item()
    weight = 0.5 + normal(40, seed=3).abs()
    set_posteriors(model, Batch(X[:30], y[:30], weight[:30]), remember=True)
    predictor = conditioned(Predictor([model]), Batch(X[30:], y[30:], weight[30:]), generator())
    assert len(predictor.models[0].layers[0].Z) == 40
    exact = GaussianProcessRegressor(
        ConstantKernel(1.4) * Matern(0.9, nu=1.5), alpha=(noise / weight).numpy(), optimizer=None
    ).fit(X.numpy(), y[:, 0].numpy())
    rows = torch.cat([normal(20, 2, seed=4), normal(20, 2, seed=5) + 3.0])
    mean, deviation = exact.predict(rows.numpy(), return_std=True)
    marginals = predictor.marginals(rows)[0]
    np.testing.assert_allclose(marginals.mean[0, :, 0], mean, atol=1e-6)
    np.testing.assert_allclose(marginals.variance[0, :, 0].sqrt(), deviation, atol=1e-5)


# Against NumPy: the last layer behind others


@torch.no_grad()
@pytest.mark.parametrize("covariance", ["diag", "full"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_the_last_layer_of_a_deep_model_averages_over_hidden_inputs(covariance, n_outputs):
    X, y, weight = table(n_outputs=n_outputs)
    first, later = halves(X, y, weight)
    options = {"n_inducing": 5, "n_estimators": 1, "max_iter": 3, "base": None, "n_neighbors": 0, "random_state": 0}
    model = DSDGPRegressor(covariance=covariance, dtype="float64", **options).fit(*first)
    before = predictor_of(model).models[0]
    rows, layer = encoded(model, *later), before.layers[-1]
    inputs, share = before.last_inputs(rows.X)
    phi = np.stack([layer.whitened(F)[0][1].numpy() for F in inputs]) * layer.kernel.deviation.numpy()  # (S, M, n)
    w = (share * rows.weight).numpy()
    expected = []
    for output, noise in enumerate(before.likelihood.variance.numpy()):
        m, root = layer.q.mean[output].numpy(), layer.q.triangle[output].numpy()
        precision = np.linalg.inv(root @ root.T)
        added = np.einsum("smn,sn,skn->mk", phi, w, phi) / noise
        shift = np.einsum("smn,sn,n->m", phi, w, rows.y[:, output].numpy()) / noise
        mean = np.linalg.solve(precision + added, precision @ m + shift)
        new = np.linalg.inv(precision + (np.diag(np.diag(added)) if covariance == "diag" else added))
        expected.append((mean, new))
    model.update(*later)
    q = predictor_of(model).models[0].layers[-1].q
    for output, (mean, new) in enumerate(expected):
        np.testing.assert_allclose(q.mean[output], mean, atol=1e-8)
        np.testing.assert_allclose(q.triangle[output] @ q.triangle[output].mT, new, atol=1e-8)


# Faces


def test_new_rows_are_learnt_also_where_no_row_has_been():
    X, y, _ = table(noise=0.01)
    model = SOLVEGPRegressor(random_state=0).fit(X[:N_FIRST], y[:N_FIRST])
    far = np.array([[3.0, 3.0]])
    before = model.predict(far, return_std=True)[1]
    mean, after = model.update(far, [7.0]).predict(far, return_std=True)
    assert after < 0.5 * before
    assert mean == pytest.approx(7.0, abs=0.5)
    assert not hasattr(model, "lower_bound_")


@pytest.mark.parametrize("estimator", [AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor])
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
def test_every_family_learns(estimator, likelihood):
    X, y, _ = table(140)
    model = estimator(likelihood=likelihood, max_iter=25, random_state=0).fit(X[:N_FIRST], y[:N_FIRST])
    before, weight = model.predict_dist(X).logpdf(y).mean(), predictor_of(model).base_weight
    assert weight > 0.5  # so that there is a base
    stored = pickle.loads(pickle.dumps(model.update(X[N_FIRST:], y[N_FIRST:])))
    assert model.predict_dist(X).logpdf(y).mean() > before
    np.testing.assert_allclose(stored.predict(X), model.predict(X), rtol=1e-6)


def test_a_row_far_away_is_learnt_where_predictions_see_it():
    """Predictions see no difference beyond a limit. A row that was learnt beyond it changed them nowhere."""
    X, y, _ = table()
    model, far = small(base="gp").fit(X, y), np.array([[1e20, -1e20]])
    before = model.predict(far, return_std=True)[1]
    assert model.update(far, [1.0]).predict(far, return_std=True)[1] < 0.5 * before
    model.update(1e150 * far, [1.0])  # of which squares overflow


def test_rows_that_are_points_already_become_none_again():
    """Noise of almost nothing is less than what jitter leaves over of a row that is a point."""
    X = table()[0]
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2
    model = SOLVEGPRegressor(n_estimators=1, max_iter=10, random_state=0).fit(X, y)
    for _ in range(2):
        model.update(X, y)
        points = predictor_of(model).blend.base.inducing_points()[0]
        assert len(np.unique(points, axis=0)) == len(points) <= len(X)


def test_rows_that_are_images_do_not_become_points_of_a_convolution_which_are_patches():
    rng = np.random.default_rng(0)
    images, later = rng.random((40, 16)), rng.uniform(-1, 2, (10, 16))
    y, y_later = (np.sin(9 * some).sum(1) for some in (images, later))
    kernel = Convolutional((4, 4), (2, 2), 1.0 * RBF(0.3, "fixed"))  # rough, so that much of new rows is unexplained
    model = small(8, 8, kernel=kernel, covariance="full", method="svi").fit(images, y)
    before = np.abs(model.predict(later) - y_later).mean()
    assert np.abs(model.update(later, y_later).predict(later) - y_later).mean() < before


def test_one_outlier_does_not_move_the_base_of_student_t():
    X, y, _ = table()
    model = SOLVEGPRegressor(likelihood="student_t", max_iter=3, random_state=0).fit(X[:N_FIRST], y[:N_FIRST])
    before = model.predict(X)
    np.testing.assert_allclose(model.update(X[:1], [1e4]).predict(X), before, atol=1e-8)


def test_neighbours_take_new_rows_and_let_old_ones_go(monkeypatch):
    X, y, _ = table(140)
    model = SOLVEGPRegressor(6, 0, n_neighbors=5, max_iter=3, random_state=0).fit(X[:N_FIRST], y[:N_FIRST])
    residual = y[N_FIRST:] - model.predict(X[N_FIRST:])
    monkeypatch.setattr(conditioning, "MOST_ROWS", 100)
    local = predictor_of(model.update(X[N_FIRST:], y[N_FIRST:])).correction.local
    assert local.X.shape == (100, 2)
    new = encoded(model, X[N_FIRST:], y[N_FIRST:])
    torch.testing.assert_close(local.X[-80:], new.X)
    scale = predictor_of(model).models[0].likelihood.units.scale[0]
    np.testing.assert_allclose(local.residual[-80:, 0], residual / scale, atol=1e-6)


def test_members_that_cannot_learn_have_no_weight_where_only_new_rows_are():
    X, y, _ = table()
    model = AVDGPRegressor(max_iter=3, random_state=0).fit(X[:N_FIRST], y[:N_FIRST])
    blend = predictor_of(model).blend
    blend.weight.fill_(0.8)
    far = torch.full((1, 2), 6.0, dtype=torch.float64)
    predictor = conditioned(
        predictor_of(model), Batch(far, torch.ones(1, 1).double(), torch.ones(1).double()), generator()
    )
    base = predictor.blend.of_base(far)
    assert predictor.blend.share(far, base).item() == pytest.approx(
        blend.share(far, blend.of_base(far)).item(), abs=1e-2
    )
    assert len(predictor.blend.base.inducing_points()[0]) > predictor.blend.n_near > 0


def test_it_copies_nothing_that_others_use():
    X, y, _ = table()
    model = small(base="gp").fit(X[:N_FIRST], y[:N_FIRST])
    before, grid = deepcopy(model), table(20, seed=3)[0]
    other = clone(model).fit(X[:N_FIRST], y[:N_FIRST])
    other.update(X[N_FIRST:], y[N_FIRST:])
    np.testing.assert_array_equal(model.predict(grid), before.predict(grid))
    with pytest.raises(ValueError, match="NaN"):
        model.update(X[:2], [np.nan, 1.0])
    np.testing.assert_array_equal(model.predict(grid), before.predict(grid))


@pytest.mark.parametrize(
    ("cls", "options", "cause"),
    [
        (DSDGPRegressor, {"latent_dims": 1}, "rows have latent variables, as latent_dims says"),
        (DSDGPRegressor, {"n_latent_outputs": 1}, "outputs share functions, as n_latent_outputs says"),
        (SOLVEGPRegressor, {"n_latent_outputs": 1}, "outputs share functions, as n_latent_outputs says"),
        (DSDGPRegressor, {"layer_posterior": "joint", "base": None, "n_neighbors": 0}, "as layer_posterior says"),
        (SOLVEGPRegressor, {"covariance": "diag_unwhitened"}, "inducing variables are not whitened, as covariance"),
        (SOLVEGPRegressor, {"likelihood": "gamma"}, "this needs targets that were exact in fit"),
    ],
)
def test_what_cannot_learn_says_why(cls, options, cause):
    X, y, _ = table()
    y = np.column_stack([y, y[::-1]]) if "n_latent_outputs" in options else np.exp(y)
    model = cls(n_inducing=3, n_estimators=1, max_iter=1, random_state=0, **options).fit(X, y)
    with pytest.raises(ValueError, match=f"^No part of the model can learn .*: .*{cause}.*\\. Call partial_fit"):
        model.update(X, y)


def test_refusals():
    X, y, _ = table()
    with pytest.raises(NotFittedError):
        small().update(X, y)
    with pytest.raises(ValueError, match="No part of the model can learn from new rows without training"):
        AVDGPRegressor(base=None, n_neighbors=0, max_iter=1, random_state=0).fit(X, y).update(X, y)
    with pytest.raises(ValueError, match="No part of the model can learn from new rows without training"):
        SOLVEGPRegressor(likelihood="poisson", max_iter=1, random_state=0).fit(X, np.round(10 * y**2)).update(
            X, np.round(y**2)
        )
    model = small().fit(X, y)
    with pytest.raises(ValueError, match="warm_start=True, partial_fit and update go on with a model"):
        model.set_params(kernel="rbf").update(X, y)
    assert not hasattr(SOLVEGPClassifier, "update")
    model, before = small(dtype="float32").fit(X, y), small(dtype="float32").fit(X, y)
    with pytest.raises(ValueError, match=r"Targets of new rows are so far from .* that numbers of torch.float32"):
        model.update(X, 1e45 * y)
    np.testing.assert_array_equal(model.predict(X), before.predict(X))
    model = small().fit(X, y).update(X, y)
    with pytest.raises(ValueError, match="update has added rows"):
        model.leave_one_out()
