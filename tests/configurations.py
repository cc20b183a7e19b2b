"""Random combinations of options, each fitted once to a small table that suits it.

Every combination belongs to a seed and a number, so that a failed test can be repeated. ``SKDGP_SEED=7`` chooses
another seed than 0, and ``SKDGP_EVERY=1`` tests each property for all combinations instead of some of them: so the same
tests search where they have not searched before.
"""

import os
import warnings
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pandas as pd
from sklearn.gaussian_process.kernels import RBF, DotProduct, ExpSineSquared, Matern, RationalQuadratic
from sklearn.preprocessing import PowerTransformer, QuantileTransformer

from skdgp import (
    AVDGPClassifier,
    AVDGPRegressor,
    DSDGPClassifier,
    DSDGPRegressor,
    SOLVEGPClassifier,
    SOLVEGPRegressor,
)
from skdgp.kernels import Select

SEED = int(os.environ.get("SKDGP_SEED", "0"))

#: Each property is tested for one of so many combinations, and different properties for different ones.
EVERY = int(os.environ.get("SKDGP_EVERY", "24"))

#: Probability that an option differs from the small budget, and how many combinations in a row may be refused.
CHANGED, MOST_REFUSALS = 0.2, 100

N_ROWS, N_FEATURES = 48, 3

#: Values of options that change predictions. The first is that of the small budget.
OF_ALL = {
    "kernel": ["matern52", "rbf", "matern32", "matern12", "sum", "season", "waves"],
    "ard": [True, False],
    "covariance": ["full", "diag"],
    "whiten": [True, False],
    "objective": ["elbo", "predictive"],
    "n_estimators": [1, 3],
    "base": [None, "gp"],
    "early_stopping": [True, False],
    "dtype": ["auto", "float64", "float32"],
    "normalize_X": [True, False],
}
OF_REGRESSORS = {
    "likelihood": [
        "gaussian",
        "heteroskedastic",
        "student_t",
        "poisson",
        "negative_binomial",
        "gamma",
    ],
    "target_transform": [None, "log", "power", "quantiles"],
    "n_neighbors": [0, "auto", 6],
    "normalize_y": [True, False],
}
OF_AVDGP = {
    "hidden_dims": [(2,), (), (2, 1)],
    "rule": ["ar2p", "ar2", "ar1"],
    "mean": ["zero", "linear", "identity"],
    "inducing_map": ["affine", "mlp"],
}
OF_DSDGP = {
    "hidden_dims": [(2,), (), (3, 2)],
    "propagation": ["monte_carlo", "quadrature"],
    "layer_posterior": ["factorised", "joint", "chain", "locations"],
    "inducing": ["points", "derivatives", "fourier", "eigen"],
    "n_orthogonal": [0, 4],
    "orthogonal_covariance": ["free", "prior"],
    "share_kernel": [True, False],
    "mean": ["identity", "linear", "zero"],
}
OF_DSDGP_REGRESSOR = {"latent_dims": [0, 1], "n_importance": [1, 3], "n_latent_outputs": [None, 1]}
OF_SOLVEGP = {
    "inducing": ["points", "derivatives", "fourier", "eigen"],
    "orthogonal_inducing": ["points", "derivatives"],
    "n_orthogonal": [4, 0],
    "orthogonal_covariance": ["free", "prior"],
}
OF_SOLVEGP_REGRESSOR = {"method": ["auto", "svi", "collapsed"], "n_latent_outputs": [None, 1]}

OPTIONS = {
    AVDGPRegressor: OF_ALL | OF_REGRESSORS | OF_AVDGP,
    DSDGPRegressor: OF_ALL | OF_REGRESSORS | OF_DSDGP | OF_DSDGP_REGRESSOR,
    SOLVEGPRegressor: OF_ALL | OF_REGRESSORS | OF_SOLVEGP | OF_SOLVEGP_REGRESSOR,
    AVDGPClassifier: OF_ALL | OF_AVDGP,
    DSDGPClassifier: OF_ALL | OF_DSDGP,
    SOLVEGPClassifier: OF_ALL | OF_SOLVEGP,
}
REGRESSORS, CLASSIFIERS = list(OPTIONS)[:3], list(OPTIONS)[3:]

#: What a value needs of other options to have an effect.
NEEDS = {
    ("inducing", "eigen"): {"kernel": "rbf"},
    ("inducing", "fourier"): {"n_inducing": 36},
    ("layer_posterior", "joint"): {"hidden_dims": (2,)},
    ("layer_posterior", "chain"): {"hidden_dims": (2,)},
    ("layer_posterior", "locations"): {"hidden_dims": (2,)},
    ("n_importance", 3): {"latent_dims": 1},
    ("orthogonal_covariance", "prior"): {"n_orthogonal": 4},
}

#: What the rows are like. The first is a table of numbers without gaps.
TABLES = ["plain", "gaps", "categories", "one column", "offset", "weights"]

#: What the targets are like besides what the likelihood asks for.
TARGETS = ["one", "two", "tied"]

#: A budget that shows behaviour, not quality.
BUDGET = {"n_inducing": 6, "n_samples": 16, "max_iter": 12, "batch_size": 16, "random_state": 0}

KERNELS = {
    "sum": lambda: 1.0 * Matern(1.0, nu=2.5) + 0.3 * DotProduct(1.0),
    "season": lambda: Select(1.0 * ExpSineSquared(1.0, 2.0), [0]) + 0.5 * RBF(1.0),
    "waves": lambda: 1.0 * RationalQuadratic(1.0, 0.7),
}
TRANSFORMS = {
    "power": PowerTransformer,
    "quantiles": lambda: QuantileTransformer(n_quantiles=20, output_distribution="normal"),
}


@dataclass(frozen=True)
class Combination:
    """An estimator, its options, and the kind of its table."""

    estimator: type
    options: dict
    table: str = "plain"
    targets: str = "one"
    seed: int = 0
    asked: str = ""

    def __str__(self) -> str:
        usual = {name: values[0] for name, values in OPTIONS[self.estimator].items()}
        changed = {name: value for name, value in self.options.items() if value != usual.get(name)}
        kinds = [kind for kind in (self.table, self.targets) if kind not in ("plain", "one")]
        return " ".join([self.estimator.__name__, *kinds, *(f"{name}={value}" for name, value in changed.items())])

    @property
    def likelihood(self) -> str:
        """Name of the likelihood; that of a classifier is "classes"."""
        return self.options.get("likelihood", "classes")

    def new(self, **changes):
        """The estimator, not fitted."""
        options = self.options | changes
        for name, values in {"kernel": KERNELS, "target_transform": TRANSFORMS}.items():
            if options.get(name) in values:
                options[name] = values[options[name]]()
        known = self.estimator().get_params()
        return self.estimator(**{name: value for name, value in (BUDGET | options).items() if name in known})

    @cached_property
    def X(self):
        """Features of the training rows: an array, or a data frame if some are categories."""
        return self.rows(np.random.default_rng(self.seed), N_ROWS)

    def rows(self, rng: np.random.Generator, n_rows: int):
        """Rows from where the training rows are."""
        n_features = 1 if self.table == "one column" else N_FEATURES
        X = rng.uniform(-2, 2, size=(n_rows, n_features))
        if self.table == "offset":
            X = X * [1.0, 1e3, 1e-4][:n_features] + [0.0, 1e5, 3.0][:n_features]
        if self.table == "gaps":
            X[rng.random(X.shape) < 0.15] = np.nan
        if self.table == "categories":
            frame = pd.DataFrame(X[:, :2], columns=["a", "b"])
            return frame.assign(c=pd.Categorical(rng.choice(["red", "green", "blue"], n_rows)))
        return X

    @cached_property
    def y(self) -> np.ndarray:
        """Targets that suit the likelihood."""
        rng = np.random.default_rng(self.seed + 1)
        x = np.nan_to_num(np.asarray(pd.DataFrame(self.X).iloc[:, 0], dtype=float))
        f = np.sin(2 * x)[:, None] + [0.0, 0.5][: 2 if self.targets == "two" else 1]
        y = f + 0.2 * rng.standard_normal(f.shape)
        if self.likelihood == "classes":
            return np.array(["no", "perhaps", "yes"])[np.digitize(y[:, 0], [-0.5, 0.5] if self.seed % 2 else [0.0])]
        if self.likelihood in ("poisson", "negative_binomial"):
            y = rng.poisson(np.exp(1.5 * f + 0.5)).astype(float)
        elif self.likelihood == "gamma" or self.options["target_transform"] == "log":
            y = np.exp(y)
        elif self.targets == "tied":
            y = y.round(1)
        if self.options.get("n_latent_outputs") and self.targets == "two":
            y[::3, 1] = np.nan
        return y if self.targets == "two" else y[:, 0]

    @cached_property
    def weight(self) -> np.ndarray | None:
        """Weights of the rows, some of them zero, if the table has any."""
        return np.arange(N_ROWS) % 3 / 1.5 if self.table == "weights" else None

    def fitted(self, X=None, y=None, **changes):
        """The estimator, fitted to its own table or to another one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few rows, and of training that ends early
            warnings.filterwarnings("error", f".*{asked}=.* has no effect" if (asked := self.asked) else "x^")
            model = self.new(**changes)
            return model.fit(self.X if X is None else X, self.y if y is None else y, sample_weight=self.weight)

    @cached_property
    def model(self):
        """The estimator, fitted once."""
        return self.fitted()


@cache
def combination(estimator: type, number: int, seed: int = SEED) -> Combination:
    """The combination of this number, which ``fit`` does not refuse.

    Each number asks for one more value of an option, so that all values have their turn; chance decides the rest.
    """
    asked, value = wishes(estimator)[number % len(wishes(estimator))]
    rng = np.random.default_rng([seed, list(OPTIONS).index(estimator), number])
    for _ in range(MOST_REFUSALS):
        options = {
            name: values[rng.integers(1, len(values))] if rng.random() < CHANGED else values[0]
            for name, values in OPTIONS[estimator].items()
        }
        options |= {asked: value}
        for chosen in [(asked, value), *options.items()]:
            options |= NEEDS.get(chosen, {})
        table = str(rng.choice(TABLES)) if rng.random() < 0.5 else "plain"
        targets = str(rng.choice(TARGETS)) if estimator in REGRESSORS and rng.random() < 0.4 else "one"
        drawn = Combination(estimator, options, table, targets, int(rng.integers(100)), asked)
        try:
            drawn.model  # noqa: B018
        except (ValueError, TypeError, FloatingPointError, UserWarning):  # refused, or of no effect
            continue
        return drawn
    raise AssertionError(f"{estimator.__name__} refuses {asked}={value!r}, whatever the other options are.")


@cache
def wishes(estimator: type) -> list[tuple[str, object]]:
    """All values of options but those of the small budget."""
    return [(name, value) for name, values in OPTIONS[estimator].items() for value in values[1:]]
