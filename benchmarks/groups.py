"""Rows that belong to groups: how well effects of known and of new groups are predicted.

    OMP_NUM_THREADS=1 python benchmarks/groups.py --output groups.csv

Targets are a smooth function of three features, plus an effect of variance one for each group, plus noise of deviation
0.3. The function is a draw from a Gaussian process with a unit variance and lengthscales of 1.5. Each table has four
more rows of each group ("known"), and some groups that training has not seen ("new").

"effects" is just that. In "slopes" each group also has a slope of the first feature, of variance one. "many" has more
groups than a category may have levels. In "constant" two of the three features are the same in all rows of a group.

"truth" is the exact Gaussian process that the table was drawn from. "default" has the group among its features, "sum"
has a sum of kernels, "held out" four whole groups as ``X_val``, and "no column" has only the other features.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from tables import save_each

from skdgp import PredictiveDistribution, SOLVEGPRegressor
from skdgp.kernels import Select

NUMBERS = ["a", "b", "c"]
NOISE = 0.3
LENGTHSCALE = 1.5

#: Rows of each known group that are predicted.
N_LATER = 4

KEYS = ("problem", "n_groups", "n_rows", "seed", "model", "rows", "nll", "coverage", "cpu_s")


class Problem(NamedTuple):
    """Numbers of groups, of rows in each to learn from, and of new groups; and the models."""

    n_groups: int
    n_rows: int
    n_new: int
    models: tuple[str, ...] = ("truth", "default")
    slopes: bool = False
    constant: bool = False


PROBLEMS = {
    "effects": Problem(40, 8, 20, ("truth", "default", "sum")),
    "slopes": Problem(40, 8, 0, slopes=True),
    "long slopes": Problem(20, 20, 0, slopes=True),
    "many": Problem(300, 3, 60),
    "constant": Problem(40, 8, 40, ("default", "held out", "no column"), constant=True),
}


class Table(NamedTuple):
    """What was drawn."""

    X: pd.DataFrame
    y: np.ndarray
    covariance: np.ndarray  # of the targets without noise
    group: np.ndarray
    parts: dict[str, np.ndarray]  # rows to learn from, and those to predict


def make_table(problem, seed):
    """Rows of known and new groups."""
    rng = np.random.default_rng(seed)
    each = problem.n_rows + N_LATER
    group = np.repeat(np.arange(problem.n_groups + problem.n_new), each)
    numbers = rng.uniform(-2, 2, (len(group), 3))
    if problem.constant:
        numbers[:, 1:] = rng.uniform(-2, 2, (len(np.unique(group)), 2))[group]
    X = pd.DataFrame(numbers, columns=NUMBERS)
    same = (group[:, None] == group).astype(float)
    covariance = RBF(LENGTHSCALE)(numbers) + same
    if problem.slopes:
        covariance += same * np.outer(numbers[:, 0], numbers[:, 0])
    root = np.linalg.cholesky(covariance + 1e-8 * np.eye(len(group)))
    y = root @ rng.normal(size=len(group)) + NOISE * rng.normal(size=len(group))
    new, later = group >= problem.n_groups, np.arange(len(group)) % each >= problem.n_rows
    parts = {"learnt": ~new & ~later, "known": ~new & later, "new": new}
    return Table(X.assign(group=[f"group {i}" for i in group]), y, covariance, group, parts)


def truth(table):
    """Predictions of the process that the table was drawn from."""
    learnt = table.parts["learnt"]
    inverse = np.linalg.inv(table.covariance[np.ix_(learnt, learnt)] + NOISE**2 * np.eye(learnt.sum()))

    def predict(rows):
        cross = table.covariance[np.ix_(rows, learnt)]
        variance = np.diag(table.covariance)[rows] - np.einsum("ij,jk,ik->i", cross, inverse, cross)
        return PredictiveDistribution.gaussian(cross @ inverse @ table.y[learnt], np.sqrt(variance + NOISE**2))

    return predict


def fit(table, name, seed):
    """Predictions of one of our models."""
    X = table.X[NUMBERS] if name == "no column" else table.X
    learnt, options, held = table.parts["learnt"], {}, {}
    if name == "sum":
        function = ConstantKernel() * Select(RBF([1.0] * len(NUMBERS)), NUMBERS)
        options = {"kernel": function + ConstantKernel() * Select(RBF(0.1, "fixed"), "group")}
    if name == "held out":
        apart = learnt & (table.group < 4)
        learnt = learnt & ~apart
        held = {"X_val": X[apart], "y_val": table.y[apart]}
    model = SOLVEGPRegressor(random_state=seed, **options).fit(X[learnt], table.y[learnt], **held)
    return lambda rows: model.predict_dist(X[rows])


def measure(names, seeds):
    """Lines, one for each model and kind of rows."""
    for name in names:
        problem = PROBLEMS[name]
        for seed in seeds:
            table = make_table(problem, seed)
            for model in problem.models:
                start = time.process_time()
                predict = truth(table) if model == "truth" else fit(table, model, seed)
                seconds = time.process_time() - start
                for kind in ("known", "new"):
                    rows = table.parts[kind]
                    if not rows.any():
                        continue
                    dist, y = predict(rows), table.y[rows]
                    low, high = dist.interval(0.9)
                    yield {
                        "problem": name,
                        "n_groups": problem.n_groups,
                        "n_rows": problem.n_rows,
                        "seed": seed,
                        "model": model,
                        "rows": kind,
                        "nll": round(-dist.logpdf(y).mean(), 4),
                        "coverage": round(np.mean((low < y) & (y < high)), 4),
                        "cpu_s": round(seconds, 3),
                    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in save_each(measure(options.problems, options.seeds), options.output, KEYS):
        print(*line.values(), flush=True)


if __name__ == "__main__":
    main()
