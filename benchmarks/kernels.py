"""Hyperparameters of kernel objects: the evidence that they reach, beside scikit-learn's exact Gaussian process.

    python benchmarks/kernels.py --output kernels.csv

Ten kernels of trends, seasons and features one by one, on generated rows. Both models start from the same kernel and
search once. The evidence is that of all rows, the exact one, of the kernel and the noise that a model ends with.
Targets have the mean 0 and the variance 1. Seconds are of fits with one thread.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, DotProduct, ExpSineSquared, Matern, RationalQuadratic, WhiteKernel
from tables import save_each

from skdgp import SOLVEGPRegressor
from skdgp.kernels import Select

COLUMNS = ("problem", "n_rows", "n_parameters", "estimator", "seed", "evidence", "noise", "fit_s")
N_ROWS = 150

#: Variance of the noise at the start, in units of the targets' variance. It is that of SOLVEGP.
NOISE = 0.05


def standardised(y):
    """Targets of mean 0 and variance 1."""
    return (y - y.mean()) / y.std()


def drift(rng):
    """A slow change."""
    t = np.sort(rng.uniform(0, 300, N_ROWS))
    return t[:, None], np.exp(t / 100) + np.sin(t / 40) + 0.5 * rng.normal(size=N_ROWS)


def wave(rng):
    """A season of 40 days."""
    t = np.sort(rng.uniform(0, 300, N_ROWS))
    return t[:, None], np.sin(2 * np.pi * t / 40) + 0.1 * rng.normal(size=N_ROWS)


def bumps(rng):
    """A function that bends in some places more than in others."""
    t = np.sort(rng.uniform(0, 10, N_ROWS))
    return t[:, None], np.sin(t) + np.exp(-((t - 4) ** 2) / 0.1) + 0.1 * rng.normal(size=N_ROWS)


def series(rng):
    """A trend, a year and a week, for each fourth day of 600."""
    t = np.arange(0.0, 4 * N_ROWS, 4)
    f = 0.003 * t + np.sin(2 * np.pi * t / 365) + 0.5 * np.sin(2 * np.pi * t / 7)
    return t[:, None], f + 0.2 * rng.normal(size=N_ROWS)


def table(rng):
    """A sum of functions of three features and a product of two; the last feature does nothing."""
    X = rng.uniform(-2, 2, (N_ROWS, 4))
    f = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 / 2 + X[:, 2] * (1 + 0.5 * np.sin(2 * X[:, 1]))
    return X, f + 0.1 * rng.normal(size=N_ROWS)


def one_by_one(*features):
    """A kernel of each of some features, and their sum."""
    return sum((1.0 * Select(RBF(1.0), feature) for feature in features[1:]), start=1.0 * Select(RBF(1.0), features[0]))


YEAR = 1.0 * ExpSineSquared(1.0, 365.0, periodicity_bounds=(300.0, 450.0))
WEEK = 1.0 * ExpSineSquared(1.0, 7.0, periodicity_bounds="fixed")
PROBLEMS = {
    "trend": (drift, 1.0 * RBF(100.0)),
    "trend with bounds": (drift, 1.0 * RBF(100.0, (50.0, 1000.0))),
    "season": (wave, 1.0 * ExpSineSquared(1.0, 40.0)),
    "season with bounds": (wave, 1.0 * ExpSineSquared(1.0, 39.0, periodicity_bounds=(10.0, 100.0))),
    "rational quadratic": (bumps, 1.0 * RationalQuadratic(1.0, 1.0)),
    "rational quadratic with bounds": (bumps, 1.0 * RationalQuadratic(1.0, 1.0, alpha_bounds=(0.1, 10.0))),
    "trend, year and week": (series, 1.0 * RBF(500.0) + YEAR + WEEK),
    "line and changing season": (wave, 1.0 * DotProduct() + 1.0 * RBF(100.0) * ExpSineSquared(1.0, 40.0)),
    "features one by one": (table, one_by_one(0, 1, 2, 3)),
    "product of features": (table, one_by_one(0, 3) + 1.0 * Select(RBF(1.0), 1) * Select(Matern(1.0, nu=2.5), 2)),
}


def make_problem(name, seed):
    """Rows, targets and the kernel to start from."""
    make, kernel = PROBLEMS[name]
    X, y = make(np.random.default_rng(seed))
    return X, standardised(y), kernel


def evidence(kernel, noise, X, y):
    """The exact evidence of a kernel and a variance of the noise, by scikit-learn."""
    model = GaussianProcessRegressor(kernel + WhiteKernel(noise), alpha=0.0, optimizer=None)
    return model.fit(X, y).log_marginal_likelihood_value_


def fit_ours(kernel, X, y, seed):
    """Kernel and noise of SOLVEGP. A correction by neighbours would take a part of the noise."""
    model = SOLVEGPRegressor(kernel=kernel, n_neighbors=0, random_state=seed).fit(X, y)
    return model.kernel_, float(model.noise_variance_)


def fit_peer(kernel, X, y, seed):
    """Kernel and noise of scikit-learn."""
    model = GaussianProcessRegressor(kernel + WhiteKernel(NOISE), alpha=0.0, random_state=seed).fit(X, y)
    return model.kernel_.k1, model.kernel_.k2.noise_level


FITS = {"solvegp": fit_ours, "gpr": fit_peer}


def measure(problem, estimator, seed):
    """A line of the table."""
    X, y, kernel = make_problem(problem, seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # some numbers are best at their bounds
        learnt, noise = FITS[estimator](kernel, X, y, seed)
    seconds = time.perf_counter() - start
    values = (problem, len(X), len(kernel.theta), estimator, seed, evidence(learnt, noise, X, y), noise, seconds)
    return dict(zip(COLUMNS, values, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--estimators", nargs="+", choices=FITS, default=list(FITS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("kernels.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    fits = ((name, fit, seed) for name in args.problems for seed in args.seeds for fit in args.estimators)
    for row in save_each((measure(*fit) for fit in fits), args.output, COLUMNS):
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
