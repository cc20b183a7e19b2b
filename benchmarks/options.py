"""How many times as long training takes with other options than the defaults.

    OMP_NUM_THREADS=1 python benchmarks/options.py --output options.csv

Targets are generated, with eight features. Each option has the same rows, the same minibatches and the same number of
epochs as the defaults of its family, in a single member without base, neighbours and held-out rows. "ratio" is how many
times as long training works. These are seconds of one thread that the process has worked, and the median of some turns
in which all options take part.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from tables import write

from skdgp import AVDGPRegressor, DSDGPRegressor

PLAIN = {"n_estimators": 1, "base": None, "n_neighbors": 0, "early_stopping": False, "objective": "elbo"}

#: Options of each family. The first one is what the others are compared with.
OPTIONS = {
    "AVDGP": (
        AVDGPRegressor,
        {
            "default": {},
            "8 points": {"n_inducing": 8},
            "16 points": {"n_inducing": 16},
            "32 points": {"n_inducing": 32},
        },
    ),
    "DSDGP": (
        DSDGPRegressor,
        {
            "default": {},
            "1 layer": {"hidden_dims": ()},
            "4 layers": {"hidden_dims": (8, 8, 8)},
            "4 times the points": {"n_inducing": 4},
            "8 times the points": {"n_inducing": 8},
            "quadrature, 8": {"propagation": "quadrature"},
            "quadrature, 32": {"propagation": "quadrature", "n_samples": 32},
            "predictive": {"objective": "predictive"},
            "joint": {"layer_posterior": "joint"},
            "locations": {"layer_posterior": "locations"},
            "chain": {"layer_posterior": "chain"},
            "full": {"covariance": "full"},
            "full_unwhitened": {"covariance": "full_unwhitened"},
            "float64": {"dtype": "float64"},
        },
    ),
}

#: By number of rows: rows of a minibatch, epochs, and inducing points of DSDGP by default.
SIZES = {500: (100, 8, 64), 4000: (1000, 4, 128)}


def make_table(n_rows):
    """Rows of a smooth function with noise."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n_rows, 8))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n_rows)


def seconds(kind, options, X, y):
    """Seconds of training, without what comes before and after it."""
    batch_size, epochs, n_points = SIZES[len(X)]
    options = dict(options)
    if kind is DSDGPRegressor and "n_inducing" in options:
        options["n_inducing"] *= n_points
    model = kind(random_state=0, max_iter=epochs, batch_size=batch_size, **PLAIN | options)
    start = time.process_time()
    model.fit(X, y)
    spent = time.process_time() - start
    return spent * model.fit_times_["training"] / model.fit_times_["total"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--families", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for n_rows in args.rows:
        X, y = make_table(n_rows)
        for family in args.families:
            kind, options = OPTIONS[family]
            seconds(kind, {}, X, y)  # the first fit takes longer
            turns = [{name: seconds(kind, each, X, y) for name, each in options.items()} for _ in range(args.turns)]
            for name in options:
                ratio = statistics.median(turn[name] / turn["default"] for turn in turns)
                spent = statistics.median(turn[name] for turn in turns)
                line = {"family": family, "n_rows": n_rows, "option": name}
                lines.append(line | {"cpu_s": round(spent, 3), "ratio": round(ratio, 3)})
                print(*lines[-1].values(), flush=True)
    write(lines, args.output)


if __name__ == "__main__":
    main()
