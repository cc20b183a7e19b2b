"""Claims of insurance policies that were in force for different times: models of rates beside models of counts.

    python benchmarks/claims.py --output claims.csv

A policy has three numbers and a region. Its claims in a year are Poisson, and their rate is a smooth function of these.
Policies were in force for 0.02 to 1 year, most of them for a short time or for the whole year. The score is the mean
Poisson deviance of the counts of other policies, given their exposures. scikit-learn's models learn rates, with
exposures as weights, as its user guide says.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer
from tables import write

from skdgp import AVDGPRegressor, SOLVEGPRegressor

#: Penalty of the generalised additive model. This one of 1, 0.1, ..., 0.0001 has the best scores on the new policies.
ALPHA = 1e-2

NUMBERS = ["age", "power", "density"]


def make_claims(n_rows, seed):
    """Policies, their claims, exposures and rates per year."""
    rng = np.random.default_rng(seed)
    age, power, density = rng.uniform(18, 85, n_rows), rng.integers(4, 16, n_rows), rng.normal(5, 1.5, n_rows)
    region = rng.integers(0, 6, n_rows)
    log_rate = -1.6 + 1.2 * np.exp(-(age - 18) / 8) + 0.3 * np.cos((age - 45) / 12) + 0.06 * (power - 8)
    log_rate += (
        0.25 * np.tanh(density - 5) * (1 + np.sin(age / 15)) + np.array([-0.4, -0.2, 0.0, 0.1, 0.2, 0.4])[region]
    )
    exposure = np.clip(rng.beta(0.6, 0.6, n_rows), 0.02, 1.0)
    rate = np.exp(log_rate)
    X = pd.DataFrame({"age": age, "power": power.astype(float), "density": density})
    X["region"] = pd.Categorical.from_codes(region, list("ABCDEF"))
    return X, rng.poisson(rate * exposure).astype(float), exposure, rate


def splines():
    """A generalised additive model."""
    columns = make_column_transformer((SplineTransformer(8), NUMBERS), (OneHotEncoder(), ["region"]))
    return make_pipeline(columns, PoissonRegressor(alpha=ALPHA, max_iter=1000))


def trees():
    """Boosted trees: the best of 30, 60 and 120 with 4 or 8 leaves, again on the new policies."""
    return HistGradientBoostingRegressor(
        loss="poisson", max_iter=60, learning_rate=0.05, max_leaf_nodes=4, categorical_features="from_dtype"
    )


def ours(kind):
    """A model of this package that learns counts with exposures, and predicts counts."""

    def predict(train, X, exposure):
        return (
            kind(likelihood="poisson", random_state=0).fit(*train[:2], exposure=train[2]).predict(X, exposure=exposure)
        )

    return predict


def of_rates(make, weight):
    """A model of scikit-learn that learns rates, weighted by exposures; ``weight`` is the argument of its ``fit``."""

    def predict(train, X, exposure):
        X_train, y, times = train[:3]
        return exposure * make().fit(X_train, y / times, **{weight: times}).predict(X)

    return predict


#: Functions of training rows, and of new rows with their exposures, that predict counts.
MODELS = {
    "avdgp": ours(AVDGPRegressor),
    "solvegp": ours(SOLVEGPRegressor),
    "splines": of_rates(splines, "poissonregressor__sample_weight"),
    "trees": of_rates(trees, "sample_weight"),
    "one rate": lambda train, X, exposure: exposure * train[1].sum() / train[2].sum(),
    "true rates": None,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--test-rows", type=int, default=20_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--output", type=Path, default=Path("claims.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in args.seeds:
        train, (X, y, exposure, rate) = make_claims(args.rows, seed), make_claims(args.test_rows, 1000 + seed)
        for name in args.models:
            start = time.perf_counter()
            counts = exposure * rate if MODELS[name] is None else MODELS[name](train, X, exposure)
            line = {"model": name, "seed": seed, "n_rows": args.rows, "deviance": mean_poisson_deviance(y, counts)}
            line |= {"ratio": counts.sum() / y.sum(), "seconds": time.perf_counter() - start}
            rows.append(line)
            print(*(f"{key} {value:.4g}" if key != "model" else value for key, value in line.items()), flush=True)
    write(rows, args.output)


if __name__ == "__main__":
    main()
