"""Combinations of options, each fitted once to a small table that suits it.

They are chosen so that few of them have every value of every option, and as many pairs of values as possible. Every
combination belongs to a seed and a number, so that a failed test can be repeated. ``SKDGP_SEED=7`` chooses another seed
than 0, and ``SKDGP_EVERY=1`` tests each property for all combinations instead of the first ones: so the same tests
search where they have not searched before.
"""

import os
import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations as pairs_of

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.gaussian_process.kernels import RBF, DotProduct, ExpSineSquared, Matern, RationalQuadratic
from sklearn.linear_model import Ridge
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

#: Number of combinations of each regressor and of each classifier, which has fewer options, and the part of them for
#: which each property is tested.
N_OF_REGRESSORS, N_OF_CLASSIFIERS, EVERY = 40, 32, int(os.environ.get("SKDGP_EVERY", "8"))

#: Probability that an option differs from the small budget, and from how many draws each combination is chosen.
CHANGED, N_DRAWN = 0.3, 60

N_ROWS, N_FEATURES = 48, 3


class ScaledRidge(Ridge):
    """Ridge regression whose penalty does not depend on the units of columns."""

    def fit(self, X, y, sample_weight=None):
        mean = np.average(X, axis=0, weights=sample_weight)
        deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=sample_weight))
        self.scale_ = np.where(deviation > 0, deviation, 1.0)
        return super().fit(X / self.scale_, y, sample_weight)

    def predict(self, X):
        return super().predict(X / self.scale_)


#: Values of options that change predictions. The first is that of the small budget.
OF_ALL = {
    "kernel": ["matern52", "rbf", "matern32", "matern12", "sum", "season", "waves"],
    "ard": [True, False],
    "covariance": ["full", "diag", "full_unwhitened", "diag_unwhitened"],
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
        "lognormal",
        "beta",
        "ordinal",
    ],
    "target_transform": [None, "log", "power", "quantiles"],
    "trend": [None, "ridge"],
    "known": [None, "exposure", "noise_variance"],
    "n_neighbors": [0, "auto", 6],
    "normalize_y": [True, False],
}
OF_AVDGP = {
    "hidden_dims": [(2,), (), (2, 1)],
    "rule": ["ar2p", "ar2", "ar1"],
    "mean": ["zero", "linear", "identity"],
    "inducing_map": ["affine", "mlp"],
}
COVARIANCE = OF_ALL["covariance"] + ["odvgp"]
OF_DSDGP = {
    "covariance": COVARIANCE,
    "hidden_dims": [(2,), (), (3, 2)],
    "propagation": ["monte_carlo", "quadrature"],
    "layer_posterior": ["factorised", "joint", "chain", "locations"],
    "inducing": ["points", "derivatives", "fourier", "eigen"],
    "n_orthogonal": [0, 4],
    "mean": ["identity", "linear", "zero"],
}
OF_DSDGP_REGRESSOR = {"latent_dims": [0, 1], "n_importance": [1, 3], "n_latent_outputs": [None, 1]}
OF_SOLVEGP = {
    "covariance": COVARIANCE,
    "inducing": ["points", "derivatives", "fourier", "eigen", "points+derivatives"],
    "n_orthogonal": [4, 0],
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

#: What the rows are like. The first is a table of numbers without gaps.
TABLES = ["plain", "gaps", "categories", "one column", "offset", "weights", "new levels", "dates"]

#: Levels of the category. Rows to predict may have one more.
COLOURS, NEW_COLOUR = ["red", "green", "blue"], "violet"

#: What the targets are like besides what the likelihood asks for.
TARGETS = ["one", "two", "tied", "intervals"]

ANY_NAME = ["matern52", "rbf", "matern32", "matern12"]
LEVEL = {"kernel": [*ANY_NAME, "waves"]}  # functions grow without end in no direction, so that exponentials are finite
NO_LATENT = {"latent_dims": [0], "n_latent_outputs": [None]}
WHITENED = ["full", "diag"]
COUPLED = NO_LATENT | {
    "hidden_dims": [(2,), (3, 2)],
    "propagation": ["monte_carlo"],
    "n_orthogonal": [0],
    "covariance": WHITENED,
    "n_importance": [1],
}

#: The values of other options with which a value is possible and has an effect.
GOES_WITH = {
    ("kernel", "season"): {"table": ["plain", "one column", "offset", "weights"]},
    ("ard", False): {"kernel": ANY_NAME, "table": ["plain", "gaps", "categories", "offset", "weights", "new levels"]},
    ("normalize_X", False): {"table": ["plain", "gaps", "categories", "one column", "weights", "new levels"]},
    ("dtype", "float32"): {"covariance": ["full", "diag", "odvgp"]},  # too coarse for the others, as their page says
    ("base", "gp"): NO_LATENT | {"kernel": ANY_NAME, "early_stopping": [True]},
    ("n_neighbors", "auto"): NO_LATENT | {"likelihood": ["gaussian"], "early_stopping": [True]},
    ("n_neighbors", 6): NO_LATENT | {"likelihood": ["gaussian"], "early_stopping": [True]},
    **{
        ("target_transform", value): {"likelihood": ["gaussian", "student_t", "heteroskedastic"]}
        for value in OF_REGRESSORS["target_transform"][2:]
    },
    ("trend", "ridge"): {
        "likelihood": ["gaussian", "student_t", "heteroskedastic"],
        "target_transform": [None, "power", "quantiles"],
    },
    ("known", "exposure"): {"likelihood": ["poisson", "negative_binomial"]},
    ("known", "noise_variance"): {"likelihood": ["gaussian"], "target_transform": [None], "n_latent_outputs": [None]},
    ("targets", "intervals"): NO_LATENT
    | {
        "likelihood": ["gaussian", "lognormal"],
        "target_transform": [None, "log"],
        "trend": [None],
        "known": [None],
        "n_neighbors": [0],
        "method": ["auto", "svi"],
    },
    ("target_transform", "log"): LEVEL | {"likelihood": ["gaussian", "student_t", "heteroskedastic"]},
    ("likelihood", "lognormal"): LEVEL,
    ("n_latent_outputs", 1): {"likelihood": ["gaussian"], "targets": ["two"]},
    ("n_importance", 3): {"latent_dims": [1]},
    ("layer_posterior", "joint"): COUPLED,
    ("layer_posterior", "chain"): COUPLED,
    ("layer_posterior", "locations"): COUPLED | {"inducing": ["points"]},
    ("inducing", "derivatives"): {"kernel": ["matern52", "rbf"], "covariance": WHITENED},
    ("inducing", "fourier"): {
        "kernel": ["matern52", "matern32", "matern12"],
        "covariance": WHITENED,
        "ard": [True],
        "table": [table for table in TABLES if table != "dates"],  # which have many columns, as trends have
        "trend": [None],
    },
    ("inducing", "eigen"): {"kernel": ["rbf"], "covariance": WHITENED},
    ("inducing", "points+derivatives"): {
        "kernel": ["matern52", "rbf"],
        "covariance": WHITENED,
        "n_orthogonal": [4],
    },
    ("covariance", "odvgp"): {"n_orthogonal": [4], "method": ["auto", "svi"]},
    ("method", "collapsed"): {
        "covariance": ["full"],
        "objective": ["elbo"],
        "likelihood": ["gaussian"],
        "n_latent_outputs": [None],
    },
}

#: How many inducing variables some kinds need.
FEATURES = {"fourier": 42, "eigen": 16}

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
MADE = {
    "kernel": KERNELS,
    "target_transform": TRANSFORMS,
    "trend": {"ridge": ScaledRidge},
}


@dataclass(frozen=True, eq=False)
class Combination:
    """An estimator, its options, and the kind of its table."""

    estimator: type
    options: dict
    table: str = "plain"
    targets: str = "one"
    seed: int = 0

    def __str__(self) -> str:
        kinds = [kind for kind in (self.table, self.targets) if kind not in ("plain", "one")]
        return " ".join([self.estimator.__name__, *kinds, *(f"{name}={value}" for name, value in self.changed.items())])

    @property
    def changed(self) -> dict:
        """Options that differ from the small budget."""
        usual = {name: values[0] for name, values in OPTIONS[self.estimator].items()}
        return {name: value for name, value in self.options.items() if value != usual[name]}

    @property
    def values(self) -> dict:
        """All options, and the kinds of table and targets."""
        return self.options | {"table": self.table, "targets": self.targets}

    @property
    def likelihood(self) -> str:
        """Name of the likelihood; that of a classifier is "classes"."""
        return self.options.get("likelihood", "classes")

    def new(self, **changes):
        """The estimator, not fitted."""
        options = {"n_inducing": FEATURES.get(self.options.get("inducing"), 6)} | self.options | changes
        for name, values in MADE.items():
            if options.get(name) in values:
                options[name] = values[options[name]]()
        known = self.estimator().get_params()
        return self.estimator(**{name: value for name, value in (BUDGET | options).items() if name in known})

    @cached_property
    def X(self):
        """Features of the training rows: an array, or a data frame if some are categories."""
        return self.rows(np.random.default_rng(self.seed), N_ROWS, COLOURS)

    def rows(self, rng: np.random.Generator, n_rows: int, levels=None):
        """Rows from where the training rows are; by default with any level that rows to predict may have."""
        n_features = 1 if self.table == "one column" else N_FEATURES
        X = rng.uniform(-2, 2, size=(n_rows, n_features))
        if self.table == "offset":
            X = X * [1.0, 1e3, 1e-4][:n_features] + [0.0, 1e5, 3.0][:n_features]
        if self.table == "gaps":
            X[rng.random(X.shape) < 0.15] = np.nan
        frame = pd.DataFrame(X[:, :2], columns=["a", "b"][:n_features])
        if self.table == "categories":
            return frame.assign(c=pd.Categorical(rng.choice(COLOURS, n_rows), categories=COLOURS))
        if self.table == "new levels":
            return frame.assign(c=rng.choice(levels or [*COLOURS, NEW_COLOUR], n_rows))
        if self.table == "dates":
            return frame.assign(when=pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 800, n_rows), "D"))
        return X

    def known(self, X, unit: float = 1.0) -> dict[str, np.ndarray]:
        """What is known of rows besides their targets in this unit: numbers that depend on a row alone."""
        name = self.options.get("known")
        if name is None:
            return {}
        first = np.nan_to_num(np.asarray(pd.DataFrame(X).iloc[:, 0], dtype=float))
        size = np.exp(2 * np.frexp(np.abs(first))[0])  # 1 or between e and e², also if features have other units
        return {name: size if name == "exposure" else 0.02 * unit**2 * size}

    @cached_property
    def y(self):
        """Targets that suit the likelihood: an array, or a data frame of bounds."""
        rng = np.random.default_rng(self.seed + 1)
        x = np.nan_to_num(np.asarray(pd.DataFrame(self.X).iloc[:, 0], dtype=float))
        f = np.sin(2 * x)[:, None] + [0.0, 0.5][: 2 if self.targets == "two" else 1]
        y = f + 0.2 * rng.standard_normal(f.shape)
        if self.likelihood == "classes":
            return np.array(["no", "perhaps", "yes"])[np.digitize(y[:, 0], [-0.5, 0.5] if self.seed % 2 else [0.0])]
        if self.likelihood in ("poisson", "negative_binomial"):
            y = rng.poisson(np.exp(1.5 * f + 0.5)).astype(float)
        elif self.likelihood in ("gamma", "lognormal") or self.options["target_transform"] == "log":
            y = np.exp(y)
        elif self.likelihood == "ordinal":
            y = 1.0 + np.digitize(y, [-0.5, 0.2, 0.8])
        elif self.targets == "tied":
            y = y.round(1)
        if self.likelihood == "beta":
            y = expit(2 * y) if self.targets != "tied" else np.clip(0.5 + 0.4 * y, 0, 1)
        if self.options.get("n_latent_outputs") and self.targets == "two":
            y[::3, 1] = np.nan
        if self.targets == "intervals":
            number = np.arange(len(y)) % 6
            upper = np.where(number == 1, np.inf, y[:, 0] + np.where(number == 2, 0.5, 0.0))
            return pd.DataFrame({"lower": y[:, 0], "upper": upper})
        return y if self.targets == "two" else y[:, 0]

    @cached_property
    def weight(self) -> np.ndarray | None:
        """Weights of the rows, some of them zero, if the table has any."""
        return np.arange(N_ROWS) % 3 / 1.5 if self.table == "weights" else None

    def fitted(self, X=None, y=None, weight=None, unit=1.0, **changes):
        """The estimator, fitted to its own table or to another one, whose targets may have another unit."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few rows, and of training that ends early
            weight = self.weight if weight is None else weight
            X, y = self.X if X is None else X, self.y if y is None else y
            return self.new(**changes).fit(X, y, sample_weight=weight, **self.known(X, unit))

    @cached_property
    def model(self):
        """The estimator, fitted once."""
        return self.fitted()


def all_values(estimator: type) -> dict:
    """Values of all options of an estimator, and the kinds of its tables and targets."""
    return OPTIONS[estimator] | {"table": TABLES} | ({"targets": TARGETS} if estimator in REGRESSORS else {})


def combinations(estimator: type) -> list[Combination]:
    """All combinations of an estimator. The first ones of all estimators have every value, and many pairs of values."""
    return chosen(SEED)[estimator]


def n_first(estimator: type) -> int:
    """Number of the first ones, for which each property is tested."""
    return -(-(N_OF_REGRESSORS if estimator in REGRESSORS else N_OF_CLASSIFIERS) // EVERY)


@cache
def chosen(seed: int) -> dict[type, list[Combination]]:
    """The combinations of all estimators. They are chosen in turn, so that an estimator has what others do not."""
    rng = np.random.default_rng(seed)
    known: dict = {estimator: set() for estimator in OPTIONS}
    anywhere: set = set()  # values that any estimator has
    found: dict = {estimator: [] for estimator in OPTIONS}
    for estimator in N_OF_CLASSIFIERS * list(OPTIONS) + (N_OF_REGRESSORS - N_OF_CLASSIFIERS) * REGRESSORS:
        values = all_values(estimator)
        unseen = [(name, value) for name in values for value in values[name][1:] if (name, value) not in anywhere]
        candidates = [drawn(values, rng, unseen) for _ in range(N_DRAWN)]
        options = max(candidates, key=lambda each: n_new(pairs(values, each), known[estimator], anywhere))
        known[estimator] |= pairs(values, options)
        anywhere |= set(options.items())
        table, targets = options.pop("table"), options.pop("targets", "one")
        found[estimator].append(Combination(estimator, options, table, targets, int(rng.integers(100))))
    return found


def pairs(values: dict, options: dict) -> set:
    """Values that are not those of the small budget, and pairs of them."""
    changed = [(name, value) for name, value in options.items() if value != values[name][0]]
    return {*((each,) for each in changed), *pairs_of(changed, 2)}


def n_new(found: set, known: set, anywhere: set) -> int:
    """Number of values and pairs that are not known. New values count more, and most if no estimator has them."""
    new = found - known
    return len(new) + sum(4 if each[0] in anywhere else 60 for each in new if len(each) == 1)


def drawn(values: dict, rng: np.random.Generator, unseen: list) -> dict:
    """Options drawn at random that go with each other, among them an unseen value if there are any."""
    decided: dict = {}
    if unseen:
        decided = with_value(values, decided, *unseen[rng.integers(len(unseen))]) or decided
    for name in rng.permutation(list(values)):
        if rng.random() < CHANGED and len(values[name]) > 1:
            value = values[name][rng.integers(1, len(values[name]))]
            decided = with_value(values, decided, str(name), value) or decided
    return {name: decided.get(name, values[name][0]) for name in values}


def with_value(values: dict, decided: dict, name: str, value) -> dict | None:
    """Decisions with one more value, and with those that it needs of other options; None if they do not go together."""
    if name in decided:
        return decided if decided[name] == value else None
    if any(value not in GOES_WITH.get(each, {}).get(name, [value]) for each in decided.items()):
        return None
    found: dict | None = decided | {name: value}
    for other, allowed in GOES_WITH.get((name, value), {}).items():
        if other not in values or found is None:
            continue
        if other in found:
            found = found if found[other] in allowed else None
        elif values[other][0] not in allowed:
            found = with_value(values, found, other, allowed[0])
    return found
