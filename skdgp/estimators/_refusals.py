"""Values of parameters that cannot be meant together: errors before the table is read.

They depend on parameters alone. What depends on the table, too, is an error where the table is met: inducing features
check kernel and inputs, for example.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ..gp.coupled import COUPLED
from ..gp.likelihoods import Gaussian
from ..methods.likelihoods import kind_of
from ..methods.solvegp import BETA, CLOSED_NEEDS
from ._parameters import same
from ._wishes import Wishes

#: What a collapsed fit needs.
COLLAPSED_NEEDS = CLOSED_NEEDS | {"beta": ("auto", BETA)}


class Refusal(NamedTuple):
    """Values of a parameter that are refused if a condition holds; without ``values``, all but None and zero.

    The reason may name values of parameters, in braces.
    """

    name: str
    values: tuple[str, ...]
    holds: Callable[[Wishes], Any]
    reason: str
    cure: str


def needs(name: str, values: tuple[str, ...], others: dict[str, tuple], cure: str) -> list[Refusal]:
    """Refusals of some values of a parameter, each with other values than those that it needs of another parameter."""
    return [
        Refusal(
            name,
            values,
            lambda wishes, other=other, needed=needed: wishes.value(other, needed[0]) not in needed,  # type: ignore[misc]
            f"needs {other}={' or '.join(map(repr, needed))}, got {{{other}!r}}",
            cure,
        )
        for other, needed in others.items()
    ]


def without_intervals(name: str, values: tuple[str, ...], reason: str, cure: str, allowed: tuple = ()) -> Refusal:
    """Refusal of values of a parameter, but for those that are allowed, if some targets are intervals."""
    return Refusal(
        name,
        values,
        lambda wishes: wishes.censored and not any(same(wishes.value(name), value) for value in allowed),
        f"does not go with intervals among the targets, {reason}",
        cure,
    )


_COUPLED = tuple(COUPLED)
_WHITENED = ("diag", "full")
_UNWHITENED = ("diag_unwhitened", "full_unwhitened")
_FACTORISE = 'change one of them, or set layer_posterior="factorised"'

#: All of them. The first one that holds counts.
REFUSED = (
    *needs("layer_posterior", _COUPLED, {"propagation": ("monte_carlo",), "n_orthogonal": (0,)}, _FACTORISE),
    *needs("layer_posterior", _COUPLED, {"n_importance": (1,), "n_latent_outputs": (None,)}, _FACTORISE),
    *needs("layer_posterior", _COUPLED, {"covariance": _WHITENED}, _FACTORISE),
    *needs("layer_posterior", ("locations",), {"inducing": ("points",)}, "change one of them"),
    Refusal(
        "layer_posterior",
        ("locations",),
        lambda wishes: len(wishes.numbers_of_points) > 1,
        "needs the same inducing points in all layers, got n_inducing={n_inducing!r}",
        "give one number",
    ),
    Refusal(
        "layer_posterior",
        ("locations",),
        lambda wishes: wishes.patches,
        "takes inducing points for rows, but those of a Convolutional are patches",
        'set layer_posterior="factorised"',
    ),
    *needs("covariance", _UNWHITENED, {"inducing": ("points",)}, 'change one of them, or set covariance="full"'),
    Refusal(
        "covariance",
        _UNWHITENED,
        lambda wishes: wishes.patches,
        "takes inducing points for rows, but those of a Convolutional are patches",
        'set covariance="full"',
    ),
    Refusal(
        "kernel",
        (),
        lambda wishes: wishes.patches and not wishes.method.has_points,
        "has a Convolutional, whose inducing points are patches, but those of AVDGP are computed from rows",
        "take DSDGP or SOLVEGP",
    ),
    Refusal(
        "n_orthogonal",
        (),
        lambda wishes: wishes.value("n_orthogonal") != "auto" and any(number > 1 for number in wishes.patches),
        "does not go with a Convolutional in a sum, which has a single set of inducing variables",
        "set n_orthogonal=0",
    ),
    Refusal(
        "latent_dims",
        (),
        lambda wishes: wishes.of_images,
        "does not go with a Convolutional in the first layer, since latent variables are no pixels",
        "set latent_dims=0",
    ),
    without_intervals(
        "likelihood", (), "which are for Gaussian noise", 'set "gaussian" or "lognormal"', ("gaussian", "lognormal")
    ),
    without_intervals(
        "target_transform", (), "of which only logarithms are taken", 'set "log", or transform bounds before', ("log",)
    ),
    without_intervals("trend", (), "of which a trend would need exact values", "set trend=None"),
    without_intervals("n_latent_outputs", (), "which are of a single output", "set n_latent_outputs=None"),
    without_intervals("latent_dims", (), "from which it would have to be inferred", "set latent_dims=0"),
    without_intervals("n_restarts_optimizer", (), "since there is no exact evidence", "set n_restarts_optimizer=0"),
    without_intervals("method", ("collapsed",), "since there is no closed form", "set method='svi' or 'auto'"),
    Refusal(
        "target_transform",
        (),
        lambda wishes: kind_of(wishes.value("likelihood"), Gaussian).transform is not None,
        "does not go with likelihood={likelihood!r}, which takes logarithms of targets itself",
        "leave out one of them",
    ),
    *needs("n_latent_outputs", (), {"likelihood": ("gaussian",)}, "change one of them"),
    Refusal(
        "target_transform",
        (),
        lambda wishes: not kind_of(wishes.value("likelihood"), Gaussian).linear,
        "does not go with likelihood={likelihood!r}, since it transforms function values itself",
        "leave out one of them",
    ),
    Refusal(
        "trend",
        (),
        lambda wishes: not kind_of(wishes.value("likelihood"), Gaussian).linear,
        "does not go with likelihood={likelihood!r}, since a trend is added to targets",
        "leave out one of them",
    ),
    Refusal(
        "trend",
        (),
        lambda wishes: wishes.value("warm_start"),
        "is learnt anew in each fit, so that a fit cannot go on with warm_start=True",
        "leave out one of them",
    ),
    Refusal(
        "trend",
        (),
        lambda wishes: wishes.by_chunks,
        "needs all rows at once, got a chunk of them",
        "use fit, or set trend=None",
    ),
    Refusal(
        "n_restarts_optimizer",
        (),
        lambda wishes: not wishes.has_evidence,
        "needs a kernel object and Gaussian noise without n_latent_outputs",
        "change these, or set n_restarts_optimizer=0",
    ),
    *needs("method", ("collapsed",), COLLAPSED_NEEDS, "change it, or set method='svi'"),
    Refusal(
        "method",
        ("collapsed",),
        lambda wishes: wishes.by_chunks,
        "needs all rows at once, got a chunk of them",
        "set method='svi'",
    ),
)


def check(wishes: Wishes) -> None:
    """ValueError if values of parameters do not go together."""
    values = wishes.values
    for rule in REFUSED:
        value = values.get(rule.name)
        applies = value in rule.values if rule.values else not (value is None or value == 0)
        if applies and rule.holds(wishes):
            raise ValueError(f"{rule.name}={value!r} {rule.reason.format(**values)}: {rule.cure}.")
