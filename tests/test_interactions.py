"""The kernel of second-order interactions, by itself and in the base of an ensemble."""

import math
import pickle
from functools import partial
from itertools import combinations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from helpers import gradients_agree, normal
from scipy import stats
from sklearn.gaussian_process.kernels import Matern
from torch.autograd import gradcheck

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor
from skdgp.adapters import to_onnx
from skdgp.gp import correlations, interactions
from skdgp.gp.alternatives import alternative, side_by_side
from skdgp.gp.interactions import InteractionKernel
from skdgp.gp.kernels import LinearKernel, StationaryKernel, SumKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.waves import Streams
from skdgp.inference import kernel_search
from skdgp.inference.base import fit_base, with_alternatives
from skdgp.inference.batches import Batch
from skdgp.inference.evidence import log_evidence, observations
from skdgp.inference.hyperparameters import HyperparameterPosterior
from skdgp.inference.kernel_search import smooth_of

PROFILES = {name: partial(Matern, nu=nu) for name, nu in (("rbf", math.inf), ("matern32", 1.5), ("matern52", 2.5))}
GROUPS = [True, (0, 1, 1, 2, 0), (1, 1, 0, 0, 1)]


def make_kernel(profile="matern52", groups=True, n_outputs=1):
    """A kernel of five inputs in float64, whose quantities have different lengthscales."""
    kernel = InteractionKernel(profile, 5, ard=groups).double()
    with torch.no_grad():
        numbers = torch.linspace(-0.5, 0.5, n_outputs * kernel.n_quantities).double()
        kernel.log_lengthscale = torch.nn.Parameter(numbers.reshape(n_outputs, -1))
        kernel.log_variance = torch.nn.Parameter(torch.linspace(0.1, 0.3, n_outputs).double())
    kernel.n_outputs, kernel.unit = n_outputs, torch.ones(n_outputs).double()
    return kernel


def products_of_pairs(kernel, X1, X2):
    """The covariances (D, N1, N2) by scikit-learn's kernels, pair by pair."""
    numbers = range(5) if kernel.groups is None else kernel.groups
    columns = [[c for c in range(5) if numbers[c] == g] for g in range(kernel.n_quantities)]
    outputs = []
    for lengths, variance in zip(kernel.log_lengthscale.exp().tolist(), kernel.variance.tolist(), strict=True):
        parts = [
            PROFILES[kernel.profile](length)(X1[:, c].numpy(), X2[:, c].numpy())
            for length, c in zip(lengths, columns, strict=True)
        ]
        outputs.append(variance * np.mean([one * other for one, other in combinations(parts, 2)], axis=0))
    return np.array(outputs)


@pytest.fixture(params=[(2**15, 4), (30, 4), (2**15, 1), (30, 1)])
def block_size(request, monkeypatch):
    """All covariances at once, and in many small blocks; with differences of all inputs, and with products of some."""
    size, width = request.param
    monkeypatch.setattr(interactions, "AT_A_TIME", size)
    monkeypatch.setattr(interactions, "WIDE", width)
    return request.param


@pytest.mark.parametrize("few", [0.0, math.inf], ids=["near pairs", "all pairs"])
def test_gradients_of_levels_many_lengthscales_from_the_origin(few, monkeypatch):
    """Rows that are near each other there have gradients, which are those of finite differences."""
    monkeypatch.setattr(correlations, "FEW_PAIRS", few)
    kernel = InteractionKernel("matern52", 7, ard=(0, 1, 2, 2, 2, 2, 2)).double()
    X, Z = normal(4, 7), normal(3, 7, seed=1)
    X[:, 2:] += 200.0
    Z[:, 2:] += 200.0
    assert gradcheck(kernel.relative_covariance, (X.requires_grad_(), Z.requires_grad_()))


def test_levels_many_lengthscales_apart():
    """Rows of one level have exactly its value. The lengthscale of levels that are out of reach has no gradient."""
    groups = (0, 1, 2, 2, 2, 2, 2)
    level = torch.arange(20) % 5
    levels = 3.7 * (torch.eye(5)[level] - 0.2)
    X = torch.cat([1e-3 * normal(20, 1).float(), torch.linspace(0, 1, 20)[:, None], levels], dim=1).double()
    kernel = InteractionKernel("matern52", 7, ard=groups).double()
    with torch.no_grad():
        kernel.log_lengthscale[0] = torch.tensor([0.25, 0.5, -12.0])
    K = kernel.relative_covariance(X, X)
    same = (level[:, None] == level).double()
    first, second = (PROFILES["matern52"](math.exp(0.25 * (g + 1)))(X[:, [g]].numpy()) for g in range(2))
    expected = torch.from_numpy(first * second + (first + second) * same.numpy()) / 3
    torch.testing.assert_close(K[0], expected, rtol=1e-14, atol=1e-15)
    [gradient] = torch.autograd.grad(K, kernel.log_lengthscale, 1e10 * normal(1, 20, 20, seed=1))
    assert gradient[0, 2] == 0 and (gradient[0, :2] != 0).all()


@pytest.mark.usefixtures("block_size")
@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("profile", PROFILES)
def test_equals_products_of_scikit_learn(profile, groups, n_outputs):
    kernel, X, Z = make_kernel(profile, groups, n_outputs), normal(9, 5), normal(4, 5, seed=1)
    for first, second in ((X, Z), (Z, X), (X, X), (X[:1], Z), (X[:1], X[:1])):
        found = kernel.covariance(first, second).detach().numpy()
        np.testing.assert_allclose(found, products_of_pairs(kernel, first, second), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(kernel.diagonal(X).detach()[:, 0], kernel.variance.detach())
    many = kernel.covariance(torch.stack([X, 2 * X]), Z)
    torch.testing.assert_close(many[1], kernel.covariance(2 * X, Z))


@pytest.mark.usefixtures("block_size")
@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("profile", PROFILES)
def test_gradients(profile, groups, n_outputs):
    kernel = make_kernel(profile, groups, n_outputs)
    X, Z = (normal(n, 5, seed=n).requires_grad_() for n in (6, 4))
    gradients_agree(kernel, X, Z)
    gradients_agree(kernel, X, X)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.usefixtures("block_size")
def test_rows_out_of_reach_are_uncorrelated(profile, groups):
    kernel, X = make_kernel(profile, groups), normal(3, 5)
    for far in (1e30, 1e300):
        Z = torch.full((2, 5), far, dtype=torch.float64).requires_grad_()
        covariance = kernel.covariance(X, Z)
        covariance.sum().backward()
        assert (covariance == 0).all() and (Z.grad == 0).all()


@pytest.mark.parametrize("groups", GROUPS)
def test_transforms_of_torch_have_the_same_derivatives(groups):
    kernel, X, Z = make_kernel(groups=groups), normal(6, 5), normal(4, 5, seed=1)
    slopes = torch.func.jacrev(lambda x: kernel.covariance(x[None], Z)[0, 0])(X[0])
    expected = torch.autograd.functional.jacobian(lambda x: kernel.covariance(x[None], Z)[0, 0], X[0])
    torch.testing.assert_close(slopes, expected)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("profile", PROFILES)
def test_drawn_functions_have_its_covariance(profile, groups):
    kernel, X = make_kernel(profile, groups), normal(5, 5)
    draws = kernel.draw(Streams(range(3000)), 5, 1)(X.expand(3000, -1, -1))[..., 0]
    expected = (kernel.relative_covariance(X, X)[0]).detach()
    torch.testing.assert_close(draws.mT @ draws / 3000, expected, rtol=0, atol=0.08)
    frequencies = kernel.frequencies(torch.rand(1, 1, 500, 8, generator=torch.Generator().manual_seed(0)).double())
    numbers = np.arange(5) if kernel.groups is None else np.array(kernel.groups)
    moving = [set(numbers[row.nonzero()[:, 0]]) for row in frequencies[0, 0]]
    assert all(len(pair) == 2 for pair in moving)
    assert len({frozenset(pair) for pair in moving}) == kernel.n_quantities * (kernel.n_quantities - 1) / 2


@pytest.mark.parametrize("groups", GROUPS)
def test_the_prior_of_lengthscales_is_that_of_one_quantity(groups):
    kernel = make_kernel(groups=groups, n_outputs=2)
    logs = kernel.log_lengthscale.detach().numpy()
    expected = stats.cauchy(0.5).logpdf(logs).sum(1) + logs.shape[1] * np.log(np.pi)
    np.testing.assert_allclose(kernel.log_prior_of_each().detach(), expected, rtol=1e-9)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("profile", PROFILES)
def test_slopes_have_the_variance_of_differences(profile, groups):
    kernel, step = make_kernel(profile, groups), 1e-3
    expected = []
    for column in range(5):
        X = torch.zeros(2, 5, dtype=torch.float64)
        X[1, column] = step
        expected.append(2 * (1 - kernel.relative_covariance(X, X)[0, 0, 1].item()) / step**2)
    np.testing.assert_allclose(kernel.gradient_variance(5)[0].detach(), expected, rtol=5e-3)


def make_rows(n_rows=250, n_outputs=1, function="pairs", seed=0):
    """Targets of six features, with noise of deviation 0.1."""
    X = 2 * torch.rand(n_rows, 6, generator=torch.Generator().manual_seed(seed)).double() - 1
    if function == "pairs":
        y = torch.sin(4 * X[:, 0] * X[:, 1]) + torch.sin(5 * X[:, 2]) * X[:, 3] + (X[:, 4] - X[:, 5]).abs()
    else:
        y = torch.sin(2 * X.sum(1))
    y = torch.stack([y, y - X[:, 0]][:n_outputs], dim=1)
    y = (y - y.mean(0)) / y.std()
    return Batch(X / X.std(0), y + 0.1 * normal(*y.shape, seed=seed + 1), torch.ones(n_rows).double())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_a_base_finds_functions_of_pairs(n_outputs, scale, monkeypatch):
    rows, new = make_rows(n_outputs=n_outputs), make_rows(200, n_outputs, seed=5)
    scaled = Batch(rows.X, scale * rows.y, rows.weight)
    joined = fit_base(scaled)
    assert [type(part) for part in joined.layers[0].kernel.kernels][-1] is InteractionKernel
    monkeypatch.setattr(kernel_search, "INTERACTING", range(0))
    alone = fit_base(scaled)
    assert len(alone.layers[0].kernel.kernels) == 2
    errors = [((model(new.X).mean[0] / scale - new.y) ** 2).mean().sqrt().item() for model in (joined, alone)]
    assert errors[0] < 0.6 * errors[1]


def test_a_base_does_without_them_where_they_bring_nothing():
    base = fit_base(make_rows(function="ridge"))
    assert len(base.layers[0].kernel.kernels) == 2
    assert len(fit_base(make_rows(3)).layers[0].kernel.kernels) == 2


@pytest.mark.parametrize(("n_features", "n_rows"), [(6, 600), (32, 500), (50, 350)])
@pytest.mark.parametrize("interactions", [False, True])
def test_a_search_of_many_features_takes_fewer_rows(n_features, n_rows, interactions, monkeypatch):
    """The time of a step grows with the number of features and the square of that of rows."""
    parts = [StationaryKernel("matern52", n_features, ard=True), LinearKernel(n_features)]
    parts += [InteractionKernel("matern52", n_features)] if interactions else []
    rows, learnt = Batch(normal(700, n_features), normal(700, 1), torch.ones(700).double()), []
    monkeypatch.setattr(kernel_search, "most_likely", lambda _, likelihood, rows, *args, **kw: learnt.append(len(rows)))
    search = kernel_search.KernelSearch(rows, torch.tensor([1e-10]).double(), None, fixed=False)
    search.best_near(SumKernel(parts).double(), Gaussian(1, excess=0.1, floor=1e-10).double())
    assert learnt == [n_rows if interactions else kernel_search.NOISY_ROWS]


def test_categories_are_one_quantity():
    rows, groups = make_rows(), (0, 1, 1, 1, 2, 3)
    kernel = fit_base(rows, groups).layers[0].kernel
    assert all(part.groups == groups for part in kernel.kernels if isinstance(part, StationaryKernel))


def test_hyperparameters_of_interactions_are_drawn_too():
    rows = make_rows(40)
    parts = [StationaryKernel("matern52", 6, ard=True), LinearKernel(6), InteractionKernel("matern52", 6)]
    posterior = HyperparameterPosterior(
        SumKernel(parts).double(), Gaussian(1, excess=0.1, floor=1e-10).double(), observations(rows)
    )
    theta = posterior.start + 0.2 * normal(3, len(posterior.start), seed=1)
    free = torch.ones(len(posterior.start), dtype=torch.bool)
    free[:6] = free[8:14] = False  # lengthscales
    assert torch.equal(posterior.free, free)
    expected = []
    for vector in theta:
        with torch.no_grad():
            kernel, likelihood = posterior._one(vector)
            evidence = log_evidence(kernel, likelihood.variance, observations(rows)) + kernel.log_prior()
            apart = (vector[free] - posterior.centre) / posterior.deviation
            expected.append((evidence - 0.5 * apart.square().sum()).item())
    found = posterior.log_density(theta).detach().numpy()
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], rtol=1e-6, atol=1e-9)


def test_alternatives_stand_side_by_side(monkeypatch):
    monkeypatch.setattr("skdgp.inference.base.MOST_DIMENSIONS", 20)
    rows = make_rows(120)
    base = with_alternatives(fit_base(rows), rows)
    assert base.n_alternatives > 1 and len(smooth_of(base.model.layers[0].kernel).log_lengthscale) > 1
    models = base.alternatives()
    joined, new = side_by_side(models)(rows.X[:9]), rows.X[:9]
    for number, model in enumerate(models):
        torch.testing.assert_close(joined.mean[0][:, number], model(new).mean[0][:, 0])
        torch.testing.assert_close(alternative(base.model, number, len(models))(new).mean, model(new).mean)


@pytest.fixture(scope="module")
def fitted():
    """A model whose base has interactions and all the weight, with the rows that it has learnt from."""
    rows = make_rows(200)
    X, y = rows.X.numpy(), rows.y[:, 0].numpy()
    model = SOLVEGPRegressor(n_inducing=5, max_iter=1, n_estimators=1, n_neighbors=0, random_state=0).fit(X, y)
    assert model.base_weight_ > 0.9
    return model, X, y


def test_the_whole_face_knows_interactions(fitted):
    """Draws, joint moments, gradients, rows one by one, pickles."""
    model, X, _ = fitted
    new = X[:6] + 0.1
    mean, std = model.predict(new, return_std=True)
    draws = model.sample_y(new, n_samples=500, random_state=0)
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * std.max() / np.sqrt(500))
    np.testing.assert_allclose(draws.std(1), std, rtol=0.2)
    step = 1e-4
    shifted = [model.predict(new + step * row) - model.predict(new - step * row) for row in np.eye(6)]
    np.testing.assert_allclose(model.predict_gradient(new), np.transpose(shifted) / (2 * step), rtol=1e-3, atol=1e-3)
    one_by_one = np.concatenate([model.predict(row[None]) for row in new])
    np.testing.assert_allclose(one_by_one, mean, rtol=1e-9)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(new), mean)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript", "ignore::FutureWarning:(copyreg|torch)")
def test_onnx_and_update(fitted, tmp_path):
    model, X, y = pickle.loads(pickle.dumps(fitted))
    to_onnx(model, tmp_path / "model.onnx")
    mean, std = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"X": X})
    expected = model.predict(X, return_std=True)
    np.testing.assert_allclose([mean.ravel(), std.ravel()], expected, rtol=1e-5, atol=1e-6)
    before = np.abs(model.predict(X) - y).mean()
    new = make_rows(50, seed=9)
    model.update(new.X.numpy(), new.y[:, 0].numpy())
    assert np.abs(model.predict(new.X.numpy()) - new.y[:, 0].numpy()).mean() < before * 2


def test_rows_left_out(fitted):
    """Residuals of rows left out are those of rows that nobody has learnt from: about as large as the noise."""
    model, _, y = fitted
    errors = y - model.leave_one_out().mean
    assert 0.1 < np.std(errors) < 0.3


@pytest.mark.parametrize("kind", [AVDGPRegressor, DSDGPRegressor])
def test_deep_families_have_such_a_base(kind):
    rows, new = make_rows(200), make_rows(100, seed=5)
    model = kind(n_inducing=5, max_iter=2, n_estimators=1, random_state=0).fit(rows.X.numpy(), rows.y[:, 0].numpy())
    assert np.sqrt(np.mean((model.predict(new.X.numpy()) - new.y[:, 0].numpy()) ** 2)) < 0.35


def test_classes_of_pairs():
    rows, new = make_rows(300), make_rows(200, seed=5)
    model = SOLVEGPClassifier(n_inducing=5, max_iter=2, n_estimators=1, random_state=0)
    model.fit(rows.X.numpy(), rows.y[:, 0].numpy() > 0)
    assert model.score(new.X.numpy(), new.y[:, 0].numpy() > 0) > 0.8


def test_slopes_of_groups(monkeypatch):
    """Twenty groups of fifteen rows, of which each has a level and a slope of its own."""
    rng = np.random.default_rng(0)
    group, new = np.arange(300) % 20, np.arange(300) >= 240
    X = pd.DataFrame({"x": rng.uniform(-1, 1, 300), "z": rng.uniform(-1, 1, 300), "group": [f"g{g}" for g in group]})
    level, slope = rng.normal(size=(2, 20))
    y = level[group] + slope[group] * X["x"].to_numpy() + np.sin(3 * X["z"].to_numpy()) + 0.2 * rng.normal(size=300)

    def error():
        model = SOLVEGPRegressor(max_iter=1, n_estimators=1, random_state=0).fit(X[~new], y[~new])
        return np.sqrt(np.mean((model.predict(X[new]) - y[new]) ** 2))

    joined = error()
    monkeypatch.setattr(kernel_search, "INTERACTING", range(0))
    assert joined < 0.28 and joined < 0.9 * error()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_the_same_levels_of_wide_categories_are_alike(dtype):
    levels = torch.eye(40, dtype=dtype)[torch.arange(60) % 40] * 30.0  # columns of rare levels have large values
    X = torch.cat([normal(60, 1).to(dtype), levels], dim=1)
    kernel = InteractionKernel("matern52", 41, ard=(0, *(40 * [1]))).to(dtype)
    assert kernel._quantities(X).wide
    X[40:, 0] = X[:20, 0]  # the last rows repeat the first
    K = kernel.covariance(X, X)[0].detach()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(K[40:, :20].diagonal(), K.diagonal()[:20], rtol=tolerance, atol=0.0)
    torch.testing.assert_close(K.diagonal(), kernel.diagonal(X)[0].detach(), rtol=tolerance, atol=0.0)
