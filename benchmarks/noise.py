"""Targets whose noise is not Gaussian: scores of likelihoods beside each other, and beside peers.

    python benchmarks/noise.py --data DIR --output noise.csv

``DIR`` is as of ``uci.py``. The problems:

* ``motorcycle``: generated, 133 rows of one feature and noise that varies, like accelerations of a helmet in a crash;
* ``outliers``: concrete, where one training target in twenty is moved by five to ten standard deviations. The fits
  "clean" learn from the targets as they were. Test rows are never changed;
* ``counts``: generated from a known rate of four features, with 700 rows to learn from;
* ``dispersed``: the same, with a variance that is larger than the mean;
* ``solar``: flares in a day, by region of the sun.

For counts there are two models of scikit-learn, boosted trees and a linear model with a Poisson loss. They predict only
means. So all models have the deviance of their means, and only the estimators of this package have scores of
distributions.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import save_each
from uci import Data, stored_split

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor

KEYS = ("problem", "estimator", "likelihood", "split")
SCORES = ("rmse", "nll", "coverage", "deviance", "fit_s")
OURS = {"avdgp": AVDGPRegressor, "dsdgp": DSDGPRegressor, "solvegp": SOLVEGPRegressor}
PEERS = {
    "hgb": lambda seed: HistGradientBoostingRegressor(loss="poisson", random_state=seed),
    "glm": lambda seed: make_pipeline(StandardScaler(), PoissonRegressor(alpha=1e-3, max_iter=1000)),
}
N_TEST = 4000

#: Outliers: their share, and how far out they are, in deviations of the targets.
SHARE, NEAREST, FARTHEST = 0.05, 5.0, 10.0


def motorcycle(data_folder, split):
    """A jolt and its echo, with noise where something moves."""
    rng = np.random.default_rng(split)
    x = rng.uniform(0, 60, 133 + N_TEST)
    jolt = -110 * np.exp(-0.5 * ((x - 21) / 4) ** 2) + 45 * np.exp(-0.5 * ((x - 33) / 5) ** 2)
    y = jolt + (1 + 24 / (1 + np.exp(-(x - 14))) * np.exp(-0.5 * np.maximum(x - 33, 0) / 20)) * rng.normal(size=len(x))
    return Data(x[:133, None], y[:133], x[133:, None], y[133:])


def outliers(data_folder, split):
    """Some training targets far out."""
    clean = stored_split(data_folder / "concrete", split)
    rng, y = np.random.default_rng(split), clean.y.copy()
    rows = rng.permutation(len(y))[: round(SHARE * len(y))]
    y[rows] += rng.choice([-1, 1], len(rows)) * rng.uniform(NEAREST, FARTHEST, len(rows)) * y.std()
    return clean._replace(y=y)


def rate(X):
    """Means of counts."""
    return np.exp(0.8 + np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * (X[:, 2] > 0))


def counts(data_folder, split, dispersion=0.0):
    """Counts of a known rate; the fourth feature does not matter."""
    rng = np.random.default_rng(split)
    X = rng.uniform(-2, 2, (700 + N_TEST, 4))
    more = rng.gamma(1 / dispersion, dispersion, len(X)) if dispersion else 1.0
    y = rng.poisson(rate(X) * more).astype(float)
    return Data(X[:700], y[:700], X[700:], y[700:])


def dispersed(data_folder, split):
    """Counts that vary more than a rate explains."""
    return counts(data_folder, split, dispersion=0.5)


def solar(data_folder, split):
    """Flares, which the published table has less their mean."""
    data = stored_split(data_folder / "solar", split)
    lowest = data.y.min()
    return data._replace(y=np.rint(data.y - lowest), y_test=np.rint(data.y_test - lowest))


COUNTS = ("poisson", "negative_binomial")
PROBLEMS = {
    "motorcycle": (motorcycle, ("gaussian", "heteroskedastic")),
    "outliers": (outliers, ("clean", "gaussian", "student_t")),
    "counts": (counts, COUNTS),
    "dispersed": (dispersed, COUNTS),
    "solar": (solar, COUNTS),
}


def run(problem, estimator, likelihood, split, folder):
    """One fit; its row of the file."""
    data = PROBLEMS[problem][0](folder, split)
    if likelihood == "clean":
        data = data._replace(y=stored_split(folder / "concrete", split).y)
    start = time.perf_counter()
    if estimator in PEERS:
        model = PEERS[estimator](split).fit(data.X, data.y)
    else:
        name = "gaussian" if likelihood == "clean" else likelihood
        model = OURS[estimator](likelihood=name, random_state=split).fit(data.X, data.y)
    seconds = time.perf_counter() - start
    mean = model.predict(data.X_test)
    scores = {"rmse": np.sqrt(np.mean((data.y_test - mean) ** 2)), "fit_s": seconds}
    if likelihood in (*COUNTS, "mean"):
        scores["deviance"] = mean_poisson_deviance(data.y_test, np.maximum(mean, 1e-9))
    if estimator in OURS:
        dist = model.predict_dist(data.X_test)
        lower, upper = dist.interval(0.9)
        scores["nll"] = dist.log_score(data.y_test).mean()
        scores["coverage"] = np.mean((lower <= data.y_test) & (data.y_test <= upper))
    return dict(zip(KEYS, (problem, estimator, likelihood, split), strict=True)) | scores


def make_rows(args):
    """The row of every fit that the options ask for."""
    for problem in args.problems:
        likelihoods = PROBLEMS[problem][1]
        ours = [(name, likelihood) for name in args.estimators if name in OURS for likelihood in likelihoods]
        peers = [(name, "mean") for name in args.estimators if name in PEERS and likelihoods == COUNTS]
        for split in args.splits:
            for estimator, likelihood in ours + peers:
                yield run(problem, estimator, likelihood, split, args.data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--estimators", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("noise.csv"))
    args = parser.parse_args()
    for row in save_each(make_rows(args), args.output, KEYS + SCORES):
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
