"""Values of parameters that have no effect in a fit although the user gave them: each is named in a warning.

A value counts as given if it differs from the default. What "auto" or a default stands for needs no warning. Nor does a
value that asks for nothing, such as ``n_neighbors=0``: every fit does as it says. What describes hidden layers, such as
``mean``, needs none either if there are none: a search over ``hidden_dims`` passes it to models of every depth.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch

from ..gp.censored import LogNormal
from ..gp.likelihoods import Gaussian, Likelihood
from ..inference.callers import users_level
from ..inference.plan import Plan, Split
from ..inference.streamed_base import suits
from ..methods.inducing import COVARIANCES
from ..methods.kernels import has_objects, is_additive, is_object, patched
from ..methods.likelihoods import kind_of
from ..tables import Table
from ._parameters import UNFOLLOWED, same

#: Values that ask for nothing.
NOTHING = {"base": None, "n_neighbors": 0, "cuda_graphs": False, "objective": "elbo"}


@dataclass(frozen=True)
class Wishes:
    """What a user asks for."""

    estimator: Any
    method: Any
    by_chunks: bool  # whether partial_fit learns
    censored: bool  # whether some targets are intervals

    def value(self, name: str, otherwise=None):
        """Value of a parameter that some estimators do not have."""
        return getattr(self.estimator, name, otherwise)

    @property
    def values(self) -> dict[str, Any]:
        """The values of all parameters."""
        return {field.name: getattr(self.estimator, field.name) for field in fields(self.estimator)}

    @property
    def on_gpu(self) -> bool:
        """Whether the models are on a CUDA device."""
        name = self.estimator.device
        return torch.cuda.is_available() if name == "auto" else torch.device(name).type == "cuda"

    @property
    def patches(self) -> list[int]:
        """For each kernel with a convolution, of how many terms it is a sum."""
        return patched(self.estimator.kernel)

    @property
    def of_images(self) -> bool:
        """Whether the kernel of the first layer is one of images."""
        kernel = self.estimator.kernel
        return any(patched(kernel[:1] if isinstance(kernel, list | tuple) else kernel))

    @property
    def numbers_of_points(self) -> set:
        """The different numbers of inducing points that layers are to have."""
        n_inducing = self.value("n_inducing")
        return set(n_inducing) if np.ndim(n_inducing) else {n_inducing}

    @property
    def has_evidence(self) -> bool:
        """Whether the exact evidence of some rows can choose hyperparameters of a kernel."""
        gaussian = kind_of(self.value("likelihood")) in (Gaussian, LogNormal) and self.value("n_latent_outputs") is None
        return gaussian and has_objects(self.estimator.kernel) and not self.patches


@dataclass(frozen=True)
class Fit(Wishes):
    """What decides which parameters have an effect, and is known before training begins."""

    table: Table
    likelihood: Likelihood
    plan: Plan
    split: Split
    n_members: int
    densities: bool = False  # whether a member is tried that learns densities
    # Layers.

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return self.method.widths(self.table.encoding.width)

    @property
    def one_input(self) -> bool:
        """Whether every layer has a single input."""
        n_features = self.table.n_features + self.value("latent_dims", 0)
        return n_features == 1 and set(self.hidden) <= {1}

    @property
    def own_lengthscales(self) -> bool:
        """Whether all kernels say themselves which of their inputs share a lengthscale."""
        kernel = self.estimator.kernel
        kernels = kernel if isinstance(kernel, list | tuple) else [kernel]
        return all(is_object(one) or is_additive(self.method, one) for one in kernels)

    @property
    def second_set(self) -> bool:
        """Whether there is a second set of inducing variables."""
        n_orthogonal = self.estimator.n_orthogonal
        return (self.method.n_points()["n_orthogonal"] if n_orthogonal == "auto" else n_orthogonal) > 0

    # Training.

    @property
    def collapsed(self) -> bool:
        """Whether it is a collapsed fit."""
        return self.plan.name == "collapsed"

    # Rows that judge.

    @property
    def given(self) -> bool:
        """Whether the user holds rows out."""
        return self.split.rows is not None

    @property
    def holds_out(self) -> bool:
        """Whether members hold rows of the table out."""
        return self.split.n_rows > 0

    @property
    def too_few(self) -> bool:
        """Whether members would hold rows out if the table had more."""
        return self.estimator.early_stopping and not (self.by_chunks or self.given or self.holds_out)

    @property
    def n_judges(self) -> float:
        """Number of rows that can judge a base, or a correction by neighbours."""
        if self.by_chunks:
            return float("inf")  # every later chunk
        if self.split.rows is not None:
            return len(self.split.rows)
        if not self.split.n_rows and self.plan.left_out is not None:
            return float("inf")  # every row of the table
        return self.n_members * self.split.n_rows


class Idle(NamedTuple):
    """Parameters that have no effect if a condition holds. The reason may name values of parameters, in braces."""

    names: tuple[str, ...]
    holds: Callable[[Fit], Any]
    reason: str
    cure: str


_BLENDED = ("base", "n_neighbors")

#: All of them. Of the lines whose condition holds, the first one with the parameter counts.
IDLE = (
    # Layers.
    Idle(
        ("layer_posterior",),
        lambda fit: not fit.hidden,
        "with hidden_dims=(), since it is about hidden layers",
        "add some, or leave it out",
    ),
    Idle(("ard",), lambda fit: fit.one_input, "where every layer has a single input", "leave it out"),
    Idle(
        ("ard",),
        lambda fit: fit.own_lengthscales,
        "with kernel objects or Fourier features, whose kernels have lengthscales of their own",
        'take a kernel by name and inducing="points", or leave it out',
    ),
    Idle(
        ("n_importance",),
        lambda fit: not fit.estimator.latent_dims,
        "with latent_dims=0, since it counts draws of latent variables",
        "set latent_dims=1, or leave it out",
    ),
    Idle(
        ("inducing",),
        lambda fit: "+" in fit.estimator.inducing and not fit.second_set,
        "with n_orthogonal={n_orthogonal!r}, since there is no second set of inducing variables",
        "give n_orthogonal a positive number, or leave it out",
    ),
    Idle(
        ("covariance",),
        lambda fit: COVARIANCES[fit.estimator.covariance].second == "prior" and not fit.second_set,
        'beyond that of "full" with n_orthogonal={n_orthogonal!r}, since there is no second set of inducing variables',
        'give n_orthogonal a positive number, or set covariance="full"',
    ),
    # Training.
    Idle(
        ("cuda_graphs",),
        lambda fit: not fit.on_gpu,
        "on the CPU",
        'set device="cuda", or leave it out',
    ),
    Idle(
        ("batch_size", "cuda_graphs"),
        lambda fit: fit.collapsed and not fit.densities,
        "in a collapsed fit, which learns from all rows at once until it ends",
        'set method="svi", or leave it out',
    ),
    Idle(
        ("learning_rate", "n_iter_no_change"),
        lambda fit: fit.collapsed,
        "in a collapsed fit, which learns from all rows at once until it ends",
        'set method="svi", or leave it out',
    ),
    # Rows that judge.
    Idle(
        ("n_iter_no_change", "cuda_graphs", "n_neighbors", "max_time"),
        lambda fit: fit.by_chunks,
        "in partial_fit, which has no epochs, no neighbours, no limit of time and no CUDA graphs",
        "use fit, or leave it out",
    ),
    Idle(
        ("base",),
        lambda fit: fit.by_chunks and fit.likelihood.has_base and not suits(fit.likelihood),
        "in partial_fit with likelihood={likelihood!r}, whose base cannot learn from one chunk after another",
        "use fit, or leave it out",
    ),
    Idle(
        ("early_stopping",),
        lambda fit: fit.by_chunks and fit.estimator.early_stopping,
        "in partial_fit, which has no epochs",
        "use fit, or leave it out",
    ),
    Idle(
        ("validation_fraction",),
        lambda fit: fit.by_chunks and not fit.holds_out,
        "in partial_fit with such a first chunk, of which no rows are held out",
        "use fit, or leave it out",
    ),
    Idle(
        ("early_stopping",),
        lambda fit: fit.given and not fit.estimator.early_stopping,
        "with X_val and y_val, which choose the best epoch",
        "leave these rows out, or leave it out",
    ),
    Idle(
        ("validation_fraction",),
        lambda fit: fit.given,
        "with X_val and y_val, which are held out instead",
        "leave these rows out, or leave it out",
    ),
    Idle(
        ("validation_fraction", "n_iter_no_change"),
        lambda fit: fit.too_few,
        "with so few rows, of which none are held out",
        "pass X_val and y_val, or leave it out",
    ),
    Idle(
        ("validation_fraction",),
        lambda fit: not (fit.holds_out or fit.densities),
        "with early_stopping=False, since no rows are held out",
        "set early_stopping=True, or leave it out",
    ),
    Idle(
        ("n_iter_no_change",),
        lambda fit: not (fit.given or fit.estimator.early_stopping),
        "with early_stopping=False, since no rows choose the best epoch",
        "set early_stopping=True, or leave it out",
    ),
    # Base and neighbours.
    Idle(
        ("base",),
        lambda fit: has_objects(fit.estimator.kernel),
        "with kernel objects, which describe the functions far from all rows themselves",
        "take a kernel by name, or leave it out",
    ),
    Idle(
        _BLENDED,
        lambda fit: fit.value("latent_dims"),
        "with latent_dims={latent_dims!r}, since predictions may have several modes",
        "set latent_dims=0, or leave it out",
    ),
    Idle(
        _BLENDED,
        lambda fit: fit.value("n_latent_outputs"),
        "with n_latent_outputs={n_latent_outputs!r}, since outputs are correlated",
        "set n_latent_outputs=None, or leave it out",
    ),
    Idle(
        ("base",),
        lambda fit: not fit.likelihood.has_base,
        "with likelihood={likelihood!r} and these targets, which it cannot be fitted to",
        "fit each target by itself, or leave it out",
    ),
    Idle(
        ("n_neighbors",),
        lambda fit: fit.likelihood.fixed,
        "with a noise_variance, which leaves neighbours no noise to learn",
        "leave it out",
    ),
    Idle(
        ("n_neighbors",),
        lambda fit: fit.censored,
        "with intervals among the targets, which have no residuals",
        "leave it out",
    ),
    Idle(
        ("n_neighbors",),
        lambda fit: not fit.likelihood.kriged,
        "with likelihood={likelihood!r}, since its noise is not the same for all rows",
        'set likelihood="gaussian", or leave it out',
    ),
    Idle(
        _BLENDED,
        lambda fit: not fit.n_judges and not fit.too_few,
        "with early_stopping=False, since no rows judge the predictions",
        "set early_stopping=True, or leave it out",
    ),
    Idle(
        ("n_neighbors",),
        lambda fit: not fit.n_judges,
        "with so few rows, of which none judge the predictions",
        "pass X_val and y_val, or leave it out",
    ),
    Idle(
        ("n_neighbors",),
        lambda fit: fit.n_judges < 2,
        "with a single held-out row, which cannot judge them",
        "raise validation_fraction, pass X_val and y_val, or leave it out",
    ),
)


def warn_of_idle(wishes: Wishes, **known: Any) -> None:
    """Warn of every value that the user gave and that has no effect in a fit of which this is ``known``."""
    fit, values = Fit(**vars(wishes), **known), wishes.values
    for name, value in _given(wishes).items():
        line = next((line for line in IDLE if name in line.names and line.holds(fit)), None)
        if line is not None:
            _warn(name, value, line.reason.format(**values), line.cure)


def warn_of_changes(wishes: Wishes, before: dict[str, Any], **has: tuple) -> None:
    """Warn of every value that has changed since earlier rows, and that models which go on from these do not follow.

    Parameters
    ----------
    wishes : Wishes
    before : dict
        The values with which the models have learnt before.
    **has
        Values of parameters that say what the models have, whatever the values before were.
    """
    given, what = _given(wishes), "partial_fit" if wishes.by_chunks else "a fit with warm_start=True"
    for name in UNFOLLOWED if wishes.by_chunks else ("n_restarts_optimizer",):
        if (
            name in given
            and name in before
            and not (same(given[name], before[name]) or given[name] in has.get(name, ()))
        ):
            reason = f"in {what}, which goes on with a model that has learnt with {before[name]!r}"
            _warn(name, given[name], reason, "set it back, or start anew with fit and warm_start=False")


def _given(wishes: Wishes) -> dict[str, Any]:
    """The values that the user gave and that ask for something, by name."""
    values = wishes.values
    return {
        field.name: values[field.name]
        for field in fields(wishes.estimator)
        if not same(values[field.name], field.default)
        and not (field.name in NOTHING and same(values[field.name], NOTHING[field.name]))
    }


def _warn(name: str, value, reason: str, cure: str) -> None:
    """Warn of a value without effect."""
    warnings.warn(f"{name}={value!r} has no effect {reason}: {cure}.", UserWarning, stacklevel=users_level())
