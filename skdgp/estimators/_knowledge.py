"""What users know of rows besides targets: whether the likelihood can take it, and whether it is there when needed."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..gp.censored import Censored
from ..gp.likelihoods import Likelihood
from ..methods.likelihoods import kind_of
from ..tables import Encoded
from ..tables.known import Known, check_known
from ._fitted import built_with, fitted

#: What to do instead where a likelihood does not take something.
INSTEAD = {
    "exposure": "leave it out, or fit y / exposure with sample_weight=exposure",
    "noise_variance": "leave it out, or change these",
}

#: With which likelihoods it goes.
GOES_WITH = {
    "exposure": "counts, so with likelihood='poisson' or 'negative_binomial'",
    "noise_variance": "likelihood='gaussian', without n_latent_outputs and without intervals among the targets",
}


def check_taken(estimator, likelihood: Likelihood, known: Known) -> None:
    """ValueError if a likelihood has no use for something that is known of its rows."""
    if "noise_variance" in known and estimator.target_transform is not None:
        raise ValueError(
            f"noise_variance is that of y, and target_transform={estimator.target_transform!r} makes other noise of "
            "it: leave out one of them."
        )
    for name in known:
        asked_for = kind_of(estimator.likelihood, otherwise=type(likelihood))  # that of logarithms is another one
        if name not in likelihood.takes or name not in asked_for.takes:
            shared = getattr(estimator, "n_latent_outputs", None)
            got = f"likelihood={estimator.likelihood!r}" + (f", n_latent_outputs={shared}" if shared else "")
            got += " and intervals" if isinstance(likelihood, Censored) else ""
            raise ValueError(f"{name} goes with {GOES_WITH[name]}, got {got}: {INSTEAD[name]}.")


def check_before(estimator, likelihood: Likelihood, known: Known) -> None:
    """ValueError unless the same is known of rows as of those that a model has learnt from before."""
    check_taken(estimator, likelihood, known)
    _compare(likelihood.known, known, "", "the earlier rows")


def check_held_out(rows: Encoded, held_out: Encoded | None) -> None:
    """ValueError unless the same is known of rows that the user holds out as of those to learn from."""
    if held_out is not None:
        _compare(rows.given.known, held_out.given.known, "_val", "the rows to learn from")


def _compare(before: Iterable[str], now: Iterable[str], suffix: str, whose: str) -> None:
    for name in sorted(set(before) - set(now)):
        raise ValueError(f"{name}{suffix} is missing, but {name} is known of {whose}: pass both, or neither.")
    for name in sorted(set(now) - set(before)):
        raise ValueError(f"{name}{suffix} was given, but {name} is not known of {whose}: pass both, or neither.")


def known_of(estimator, n_rows: int, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What the user knows of rows to predict, as arrays (n, 1); ValueError if the model cannot take it."""
    known = check_known(values, n_rows)
    likelihood = fitted(estimator).models[0].likelihood
    for name in known:
        if name not in likelihood.takes:
            raise ValueError(
                f"{name} goes with {GOES_WITH[name]}, got likelihood={built_with(estimator, 'likelihood')!r}: leave it "
                "out."
            )
        if name not in likelihood.known:
            raise ValueError(
                f"{name} was given, but the model has been fitted without it: pass it to fit, too, or leave it out."
            )
    return known
