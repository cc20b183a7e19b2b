"""Likelihoods of regressors, by name."""

from collections.abc import Callable
from copy import deepcopy

from ..gp.censored import LogNormal
from ..gp.grades import Ordinal
from ..gp.likelihoods import Gaussian, Likelihood, Regression
from ..gp.log_link import Gamma, NegativeBinomial, Poisson
from ..gp.noise import Heteroskedastic, StudentT
from ..gp.shares import Beta

LIKELIHOODS: dict[str, type[Regression]] = {
    "gaussian": Gaussian,
    "lognormal": LogNormal,
    "heteroskedastic": Heteroskedastic,
    "student_t": StudentT,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "gamma": Gamma,
    "beta": Beta,
    "ordinal": Ordinal,
}


def kind_of(likelihood, otherwise: type[Likelihood] = Likelihood) -> type[Likelihood]:
    """The class that a name, a likelihood or a class of one stands for. What another function makes is not known."""
    if isinstance(likelihood, str):
        return LIKELIHOODS[likelihood]
    kind = likelihood if isinstance(likelihood, type) else type(likelihood)
    return kind if issubclass(kind, Likelihood) else otherwise


def is_gaussian(likelihood) -> bool:
    """Whether a name, a likelihood or a class of one stands for Gaussian noise."""
    return kind_of(likelihood).conjugate


def make_likelihood(likelihood: str | Regression | Callable[[int], Regression], n_targets: int) -> Regression:
    """An untrained likelihood of so many targets.

    Parameters
    ----------
    likelihood : str, Regression or callable
        A name, a likelihood to copy, or a function of the number of targets that makes one, such as its class.
    n_targets : int
        Number of targets.

    Raises
    ------
    ValueError
        If the likelihood has another number of targets.
    TypeError
        If it is not a likelihood of a regressor.
    """
    if isinstance(likelihood, str):
        kind = LIKELIHOODS[likelihood]
        return Gaussian(n_targets) if kind.transform is not None else kind(n_targets)  # models see logarithms
    made = deepcopy(likelihood) if isinstance(likelihood, Regression) else likelihood(n_targets)
    if not isinstance(made, Regression):
        raise TypeError(
            f"likelihood={likelihood!r} makes {type(made).__name__}, which is no likelihood of a regressor: derive it "
            "from skdgp.gp.pointwise.Pointwise, or from AdditiveNoise or Regression of skdgp.gp.likelihoods."
        )
    if made.n_targets != n_targets:
        raise ValueError(
            f"likelihood={likelihood!r} is of {made.n_targets} targets, but y has {n_targets}: match them, or pass the "
            "class."
        )
    return made
