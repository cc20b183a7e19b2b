"""Fast paths against plain ones, and predictions against functions drawn, for models of all kinds.

A model is copied, turned, kept, converted and stacked in order to predict fast. This must be right for parts that do
something of their own, too, such as a posterior that couples layers. Two fast paths may share a fault. So predictions
are also compared with functions drawn and with fresh samples.
"""

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers import generator, normal, own_kernels
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, ExpSineSquared, Matern

from skdgp.gp.amortised_layer import AmortisedLayer
from skdgp.gp.classes import Bernoulli, RobustMax
from skdgp.gp.coregional import Incomplete
from skdgp.gp.deep_gp import Marginals
from skdgp.gp.global_layer import GlobalLayer
from skdgp.gp.kernels import StationaryKernel
from skdgp.gp.likelihoods import Gaussian
from skdgp.gp.log_link import Poisson
from skdgp.gp.means import ZeroMean
from skdgp.gp.noise import Heteroskedastic, StudentT
from skdgp.gp.waves import Streams
from skdgp.inference.joint import output_moments
from skdgp.inference.predictor import FEW_ROWS, Predictor
from skdgp.inference.stacks import can_be_stacked, stack
from skdgp.kernels import Convolutional
from skdgp.methods import AVDGP, SOLVEGP
from skdgp.methods.dsdgp import LatentDSDGP

N_ROWS, N_SAMPLES = 4, 4

#: Number of samples of hidden layers, and of functions drawn, where moments are compared.
MANY = 400

#: Number of waves of which a function consists. It does not matter for moments over functions.
FEW_WAVES = 16


def warped(x):
    """Inputs bent, so that distances change."""
    return x + 0.5 * torch.sin(2.0 * x)


class Warped(StationaryKernel):
    """A kernel whose class is derived from one of the package, and which does something else."""

    def __init__(self, n_inputs, n_outputs=1, *, ard=False):
        super().__init__("rbf", n_inputs, n_outputs, ard=ard)

    def relative_covariance(self, X1, X2):
        return super().relative_covariance(warped(X1), warped(X2))

    def draw(self, streams, n_inputs, n_outputs):
        draw = super().draw(streams, n_inputs, n_outputs)
        return lambda x: draw(warped(x))


class WarpedLayer(GlobalLayer):
    """A layer of this kind, which whitens in another way."""

    def whitened(self, x):
        return super().whitened(warped(x))


class RoundedLayer(AmortisedLayer):
    """A layer of this kind. It may need float64."""


def dsdgp(**options):
    return LatentDSDGP(**{"hidden_dims": (2,), "n_inducing": 4, "n_samples": N_SAMPLES, "covariance": "full"} | options)


def avdgp(**options):
    return AVDGP(**{"hidden_dims": (2,), "n_inducing": 3, "n_samples": N_SAMPLES, "network_width": 5} | options)


def solvegp(**options):
    return SOLVEGP(**{"n_inducing": 5, "n_orthogonal": 0} | options)


OBJECT = ConstantKernel(0.5) * RBF(1.0) + ConstantKernel(0.3) * DotProduct(0.5) * Matern(2.0, nu=2.5)
IMAGES = Convolutional((2, 3), (2, 2), ConstantKernel(1.7) * RBF(1.5))

#: Method, likelihood and number of features.
MODELS = {
    "points": (dsdgp(), Gaussian(2), 2),
    "points, diag": (dsdgp(covariance="diag"), Gaussian(2), 2),
    "plain": (dsdgp(covariance="full_unwhitened"), Gaussian(2), 2),
    "plain, diag": (dsdgp(covariance="diag_unwhitened"), Gaussian(1), 2),
    "own kernels": (own_kernels(dsdgp()), Gaussian(2), 2),
    "two hidden layers": (dsdgp(hidden_dims=(2, 3), mean="linear"), Gaussian(1), 2),
    "quadrature": (dsdgp(propagation="quadrature", mean="zero"), Gaussian(2), 2),
    "orthogonal": (dsdgp(n_orthogonal=3), Gaussian(2), 2),
    "orthogonal, diag, own kernels": (own_kernels(dsdgp(n_orthogonal=3, covariance="diag")), Gaussian(2), 2),
    "orthogonal, plain": (dsdgp(n_orthogonal=3, covariance="full_unwhitened"), Gaussian(2), 2),
    "orthogonal, prior": (dsdgp(n_orthogonal=3, covariance="odvgp"), Gaussian(1), 2),
    "derivatives": (dsdgp(inducing="derivatives", n_inducing=2), Gaussian(1), 2),
    "eigen": (dsdgp(inducing="eigen", kernel="rbf", n_inducing=6), Gaussian(1), 2),
    "fourier": (dsdgp(inducing="fourier", n_inducing=14), Gaussian(1), 2),
    "kernel objects": (own_kernels(dsdgp(kernel=OBJECT)), Gaussian(2), 2),
    "warped kernel": (dsdgp(kernel=Warped), Gaussian(1), 2),
    "images": (dsdgp(kernel=[IMAGES, "rbf"]), Gaussian(1), 6),
    "images in a sum": (dsdgp(kernel=[IMAGES + RBF(2.0), "rbf"]), Gaussian(1), 6),
    "joint": (dsdgp(layer_posterior="joint"), Gaussian(2), 2),
    "joint, diag": (dsdgp(layer_posterior="joint", covariance="diag"), Gaussian(1), 2),
    "joint, two hidden layers": (dsdgp(layer_posterior="joint", hidden_dims=(1, 2)), Gaussian(1), 2),
    "joint, own kernels": (own_kernels(dsdgp(layer_posterior="joint")), Gaussian(2), 2),
    "chain": (dsdgp(layer_posterior="chain"), Gaussian(2), 2),
    "chain, diag": (dsdgp(layer_posterior="chain", covariance="diag"), Gaussian(1), 2),
    "chain, two hidden layers": (dsdgp(layer_posterior="chain", hidden_dims=(1, 2)), Gaussian(1), 2),
    "chain, kernel objects": (dsdgp(layer_posterior="chain", kernel=OBJECT), Gaussian(2), 2),
    "chain, eigen": (dsdgp(layer_posterior="chain", inducing="eigen", kernel="rbf", n_inducing=6), Gaussian(1), 2),
    "chain, derivatives": (dsdgp(layer_posterior="chain", inducing="derivatives", n_inducing=2), Gaussian(1), 2),
    "joint, fourier": (dsdgp(layer_posterior="joint", inducing="fourier", n_inducing=14), Gaussian(1), 2),
    "locations": (dsdgp(layer_posterior="locations"), Gaussian(2), 2),
    "locations, diag": (own_kernels(dsdgp(layer_posterior="locations", covariance="diag")), Gaussian(1), 2),
    "latent": (dsdgp(latent_dims=1), Gaussian(2), 2),
    "latent, one layer": (dsdgp(latent_dims=2, hidden_dims=(), n_importance=64), Gaussian(1), 2),
    "latent, quadrature": (dsdgp(latent_dims=1, propagation="quadrature", n_importance=2), Gaussian(1), 2),
    "latent, importance": (dsdgp(latent_dims=1, n_importance=3), Gaussian(1), 2),
    "latent, chain": (dsdgp(latent_dims=1, layer_posterior="chain"), Gaussian(1), 2),
    "latent, joint": (dsdgp(latent_dims=1, layer_posterior="joint"), Gaussian(1), 2),
    "latent, locations": (dsdgp(latent_dims=1, layer_posterior="locations"), Gaussian(1), 2),
    "mixed": (dsdgp(n_latent_outputs=2), Incomplete(3), 2),
    "mixed, latent": (dsdgp(n_latent_outputs=2, latent_dims=1, n_orthogonal=2), Incomplete(3), 2),
    "heteroskedastic": (dsdgp(), Heteroskedastic(1), 2),
    "student": (dsdgp(covariance="diag"), StudentT(1), 2),
    "poisson, chain": (dsdgp(layer_posterior="chain"), Poisson(1), 2),
    "classes": (dsdgp(), RobustMax(3), 2),
    "classes, joint": (dsdgp(layer_posterior="joint"), RobustMax(3), 2),
    "two classes, chain": (dsdgp(layer_posterior="chain"), Bernoulli(), 2),
    "amortised, ar1": (avdgp(rule="ar1"), Gaussian(2), 2),
    "amortised, ar2": (avdgp(rule="ar2", covariance="full"), Gaussian(2), 2),
    "amortised, ar2p": (avdgp(), Gaussian(2), 2),
    "amortised, one feature": (avdgp(covariance="full", hidden_dims=(1,)), Gaussian(2), 1),
    "amortised, one feature, diag": (avdgp(covariance="diag", hidden_dims=(1,), rule="ar1"), Gaussian(1), 1),
    "amortised, plain": (avdgp(covariance="full_unwhitened", mean="linear", ard=True), Gaussian(1), 2),
    "amortised, ar1, plain": (
        avdgp(covariance="diag_unwhitened", rule="ar1", inducing_map="mlp"),
        Heteroskedastic(1),
        2,
    ),
    "amortised, kernel objects": (avdgp(kernel=OBJECT, rule="ar2"), Gaussian(2), 2),
    "amortised, warped kernel": (avdgp(kernel=Warped, rule="ar1"), Gaussian(1), 2),
    "amortised, without networks": (avdgp(network_width=None, rule="ar2"), RobustMax(3), 2),
    "one layer": (solvegp(), Gaussian(2), 2),
    "one layer, orthogonal": (solvegp(n_orthogonal=3), Gaussian(2), 2),
    "one layer, orthogonal, plain": (solvegp(n_orthogonal=3, covariance="full_unwhitened"), Heteroskedastic(1), 2),
    "one layer, prior": (solvegp(n_orthogonal=3, covariance="odvgp"), Gaussian(1), 2),
    "one layer, derivatives": (solvegp(inducing="derivatives", n_inducing=2, n_orthogonal=2), Gaussian(2), 2),
    "one layer, orthogonal eigen": (
        solvegp(n_orthogonal=6, inducing="points+eigen", kernel="rbf"),
        Heteroskedastic(1),
        2,
    ),
    "one layer, fourier": (solvegp(inducing="fourier", n_inducing=20, n_orthogonal=3), Gaussian(2), 2),
    "one layer, fourier alone": (solvegp(inducing="fourier", n_inducing=9, covariance="diag"), Gaussian(1), 1),
    "one layer, images": (solvegp(kernel=IMAGES, n_orthogonal=3), Gaussian(2), 6),
    "one layer, images in a sum": (solvegp(kernel=IMAGES + RBF(2.0)), RobustMax(3), 6),
    "one layer, periodic": (solvegp(kernel=OBJECT + ExpSineSquared(1.0, 1.5)), Gaussian(1), 1),
}

#: Those of which several cannot be computed as one.
ALONE = {name for name in MODELS if any(each in name for each in ("joint", "chain", "locations", "warped"))}
ALONE |= {name for name in MODELS if any(each in name for each in ("derivatives", "eigen", "fourier", "in a sum"))}
ALONE |= {"amortised, kernel objects"}

every_model = pytest.mark.parametrize("name", MODELS)


@cache
@torch.no_grad()
def make_model(name, *, seed=0, n_samples=N_SAMPLES):
    """A model with parameters of any value, in double precision. It has no white noise, as functions have none."""
    method, likelihood, n_features = MODELS[name]
    if hasattr(method, "n_samples"):
        method = replace(method, n_samples=n_samples)
    model = method.build(normal(30, n_features).float(), deepcopy(likelihood), generator(seed)).double()
    for i, (label, parameter) in enumerate(model.named_parameters()):
        change = 0.3 * normal(*parameter.shape, seed=seed + i)
        if "white_noise" in label:
            parameter.fill_(-14.0)
        elif "log_diagonal" in label:
            parameter.copy_(change - (2.0 if "locations" in name else 0.5))  # drawn points that crowd have heavy tails
        elif parameter.requires_grad:
            parameter.add_(change)
    return model.requires_grad_(False)


def rows_of(name):
    """Rows, of which the last lies far from the others."""
    X = normal(N_ROWS, MODELS[name][2], seed=3)
    X[-1] *= 3.0
    return X


def kept(model, dtype=torch.float64):
    """What predicts in an ensemble."""
    return Predictor([model]).frozen(dtype, turned=True).models[0]


def assert_alike(found, expected, tolerance=1e-7):
    """Equal mixtures, up to a share of the deviations."""
    scale = expected.variance.sqrt()
    assert ((found.mean - expected.mean).abs() <= tolerance * scale).all()
    assert ((found.variance / expected.variance - 1).abs() <= tolerance).all()
    assert (found.log_weight - expected.log_weight).abs().max() <= tolerance


@every_model
@torch.no_grad()
def test_copies_predict_alike(name):
    model, X = make_model(name), rows_of(name)
    copies = [model.frozen(), model.frozen(turned=True), model.frozen(turned=True).frozen(), kept(model)]
    for copy in [*copies, *Predictor([model]).alone().models]:
        for layer, expected in zip(copy.propagate(X), model.propagate(X), strict=True):
            assert_alike(layer, expected)
    within = torch.from_numpy(output_moments(Predictor([model]), X.numpy())[1]).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(within, model(X).moments()[1], rtol=1e-7, atol=0.0)


@every_model
@torch.no_grad()
def test_float32_is_almost_as_good(name):
    model, X = make_model(name), rows_of(name)
    assert_alike(kept(model, torch.float32)(X.float()), model(X), 1e-4 if model.coarse else 2e-2)


@every_model
@torch.no_grad()
def test_rows_do_not_depend_on_each_other(name):
    model, X = make_model(name), rows_of(name)
    for copy in (model, kept(model)):
        for i in range(N_ROWS):
            assert_alike(copy(X[i : i + 1]), copy(X).rows(slice(i, i + 1)), 1e-9)


@every_model
@torch.no_grad()
def test_models_that_are_computed_as_one(name):
    models, X = [make_model(name, seed=seed) for seed in range(2)], rows_of(name)
    assert can_be_stacked(models) == (name not in ALONE)
    if name in ALONE:
        return
    for whole in (stack(models), stack(models).frozen(turned=True)):
        together = whole(torch.stack([X, X]))
        for i, model in enumerate(models):
            alone = model(X)
            weight = together.log_weight.expand(len(models), *alone.log_weight.shape)
            assert_alike(Marginals(together.mean[i], together.variance[i], weight[i], alone.kl), alone)
            assert_alike(together.of_member(i), alone)


@every_model
@torch.no_grad()
def test_members_predict_few_rows_as_one(name):
    predictor, X = Predictor([make_model(name, seed=seed) for seed in range(3)]), rows_of(name)
    few = predictor.frozen(turned=True, as_one=True)
    assert (few._as_one is None) == (name in ALONE)
    for found, expected in zip(few.marginals(X), predictor.marginals(X), strict=True):
        assert_alike(found, expected)


@torch.no_grad()
def test_only_few_rows_are_predicted_by_members_as_one():
    predictor, calls = Predictor([make_model("points", seed=seed) for seed in range(3)]), []
    for n_rows in (1, FEW_ROWS, FEW_ROWS + 1):
        rows = normal(n_rows, MODELS["points"][2]).numpy()
        [_] = predictor.predict(rows, np.asarray, lambda _, marginals: calls.append(len(marginals)))
    assert calls == 3 * [3]
    kinds = {kind[2]: made for kind, (_, made) in predictor._kept._made.items()}
    assert kinds[True]._as_one is not None and kinds[False]._as_one is None
    predictor = Predictor(predictor.models)
    [_] = predictor.predict(
        np.zeros((2, 2)), lambda X: np.repeat(X, FEW_ROWS, axis=0), lambda *_: None, copies=FEW_ROWS
    )
    [(_, _, as_one)] = predictor._kept._made
    assert not as_one  # rows with gaps come many times


def fresh_moments(model, X):
    """Moments of a mixture of at least ``MANY`` fresh samples."""
    source, parts = generator(7), []
    while sum(len(part.mean) for part in parts) < MANY:
        parts.append(model(X, source))
    mean, variance, weight = (torch.cat([part[i] for part in parts]) for i in range(3))
    return Marginals(mean, variance, weight - math.log(len(parts)), parts[0].kl).moments()


@every_model
@torch.no_grad()
def test_predictions_are_those_of_functions_and_of_fresh_samples(name, monkeypatch):
    for module in ("kernels", "composed"):
        monkeypatch.setattr(f"skdgp.gp.{module}.N_WAVES", FEW_WAVES)
    model, X = make_model(name, n_samples=MANY), rows_of(name)
    random = model.draws_hidden or model.has_latents
    mean, variance = kept(model)(X).moments()
    draws = model.draw(Streams(range(MANY)), of_rows=model.has_latents)(X)
    square = (draws - draws.mean(0)).square()
    error = 3.5 * ((2 if random else 1) / MANY) ** 0.5  # predictions are from random samples, too
    moments = [(draws.mean(0), square.mean(0))] + ([fresh_moments(model, X)] if random else [])
    for found_mean, found_variance in moments:
        assert ((found_mean - mean).abs() < error * variance.sqrt()).all()
        assert ((found_variance - variance).abs() < error * square.std(0) + 0.01 * variance).all()


@torch.no_grad()
def test_layers_of_derived_classes_are_not_taken_for_those_of_the_package():
    kernel, Z, x = StationaryKernel("rbf", 2), normal(5, 2), normal(1, 6, 2, seed=1)
    layer = WarpedLayer(kernel, ZeroMean(2), Z, normal(2, 5, seed=2), covariance="full", whiten=True).double()
    layer.q.below.copy_(0.3 * normal(2, 5, 5, seed=3))
    for found, expected in zip(layer.frozen(turned=True)(x, x)[:2], layer(x, x)[:2], strict=True):
        torch.testing.assert_close(found, expected)
    parts = layer.kernel, layer.mean, make_model("amortised, ar1").layers[0].inference
    assert AmortisedLayer(*parts, whiten=True).coarse and not RoundedLayer(*parts, whiten=True).coarse


@torch.no_grad()
def test_kernels_of_derived_classes_are_not_taken_for_those_of_the_package():
    network, x = make_model("amortised, ar1").layers[0].inference, normal(1, 6, 2, seed=1)
    layer = AmortisedLayer(Warped(2, 2), ZeroMean(2), network, whiten=True).double()
    _, variance, _ = layer(x, x[0])
    expected = layer.covariance(x, x[0], torch.ones(1).double()).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(variance[0].mT, expected, rtol=1e-4, atol=1e-5)
    assert not layer.coarse and not layer.stackable


@pytest.mark.parametrize(
    "options", [{"inducing": "derivatives"}, {"inducing": "eigen"}, {"inducing": "fourier", "n_inducing": 20}]
)
def test_formulas_of_kernels_by_name_are_refused_to_others(options):
    with pytest.raises(ValueError, match="got a Warped"):
        solvegp(kernel=Warped, **options).build(normal(30, 1).float(), Gaussian(1), generator())
