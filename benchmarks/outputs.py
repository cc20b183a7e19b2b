"""Outputs that share functions: an output that few rows have, and many outputs.

    python benchmarks/outputs.py --output outputs.csv

"missing": three outputs are sums of two functions of two features, plus noise; the first one is known in a tenth of
1000 rows. Its error in the other rows is measured with all outputs together (``n_latent_outputs=2``) and for a model
that learns it alone. "many": fifty outputs are sums of five functions. A model with ``n_latent_outputs=5`` is fitted
beside one whose outputs have a function each and share the kernel ("alone"), and beside fifty models ("separate").
Errors are of functions, over outputs' deviations; seconds are of fits with one thread.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.multioutput import MultiOutputRegressor
from tables import write

from skdgp import DSDGPRegressor, SOLVEGPRegressor

MODELS = {"solvegp": SOLVEGPRegressor, "dsdgp": DSDGPRegressor}
ALONE = {"base": None, "n_neighbors": 0, "n_estimators": 1}
SIZES = {"solvegp": {"n_inducing": 128, "n_orthogonal": 0}, "dsdgp": {"hidden_dims": (), "n_inducing": 128}}


def make_outputs(n_rows, n_outputs, n_functions, rng, noise=0.1):
    """Features, outputs and what they are without noise: sums of sines of random directions."""
    X = rng.uniform(-2, 2, (n_rows, 2))
    directions, phases = rng.normal(size=(2, n_functions)) * 2, rng.uniform(0, 6, n_functions)
    f = np.sin(X @ directions + phases) @ rng.normal(size=(n_functions, n_outputs))
    f /= f.std(axis=0)
    return X, f + noise * rng.normal(size=f.shape), f


def fit(name, X, y, seed, **options):
    """A model and the seconds it took."""
    start = time.perf_counter()
    model = MODELS[name](**ALONE | SIZES[name] | options, random_state=seed).fit(X, y)
    return model, time.perf_counter() - start


def missing(name, seed):
    """Lines for an output that a tenth of the rows have."""
    rng = np.random.default_rng(seed)
    X, y, f = make_outputs(1000, 3, 2, rng)
    known = rng.uniform(size=len(X)) < 0.1
    partly = np.where(known | (np.arange(3)[:, None] > 0), y.T, np.nan).T
    together, seconds = fit(name, X, partly, seed, n_latent_outputs=2)
    alone, seconds_alone = fit(name, X[known], y[known, 0], seed)
    predictions = {"together": (together.predict(X)[:, 0], seconds), "alone": (alone.predict(X), seconds_alone)}
    for model, (mean, fit_s) in predictions.items():
        error = np.sqrt(np.mean((mean - f[:, 0])[~known] ** 2))
        yield {"problem": "missing", "estimator": name, "model": model, "seed": seed, "error": error, "fit_s": fit_s}


def many(name, seed):
    """Lines for fifty outputs that are sums of five functions."""
    rng = np.random.default_rng(seed)
    X, y, f = make_outputs(2000, 50, 5, rng, noise=0.5)
    train = slice(0, 1000)
    for model, n_latent_outputs in (("together", 5), ("alone", None)):
        fitted, fit_s = fit(name, X[train], y[train], seed, n_latent_outputs=n_latent_outputs)
        error = np.sqrt(np.mean((fitted.predict(X[1000:]) - f[1000:]) ** 2))
        yield {"problem": "many", "estimator": name, "model": model, "seed": seed, "error": error, "fit_s": fit_s}
    start = time.perf_counter()
    fitted = MultiOutputRegressor(MODELS[name](**ALONE | SIZES[name], random_state=seed)).fit(X[train], y[train])
    fit_s = time.perf_counter() - start
    error = np.sqrt(np.mean((fitted.predict(X[1000:]) - f[1000:]) ** 2))
    yield {"problem": "many", "estimator": name, "model": "separate", "seed": seed, "error": error, "fit_s": fit_s}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for problem in (missing, many):
        for name in MODELS:
            for seed in range(args.seeds):
                for row in problem(name, seed):
                    rows.append(row)
                    print(*row.values(), flush=True)
    write(rows, args.output)


if __name__ == "__main__":
    main()
