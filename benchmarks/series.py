"""Inducing features on a long series: Fourier features, summed over rows once, beside inducing points.

    python benchmarks/series.py --output series.csv

A curve with a fast and a slow part is observed with noise at random times. Every model has as many inducing variables
and one member, and predicts 20 000 other times. Times are those of ``fit`` with one thread.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from tables import write

from skdgp import SOLVEGPRegressor

ALONE = {"base": None, "n_neighbors": 0, "random_state": 0}

#: Parameters by name.
MODELS = {
    "fourier": {"inducing": "fourier"},
    "points": {"n_orthogonal": 0},
    "points, with a base": {"n_orthogonal": 0, "base": "gp"},
}

#: Deviation of the noise.
NOISE = 0.3


def curve(x):
    """What is observed, at times between 0 and 100."""
    return np.sin(x) + 0.5 * np.sin(3.1 * x) + 0.2 * np.sin(7 * x) * np.exp(-((x - 50) ** 2) / 200)


def make_data(n_rows, seed):
    """Times, observations, and the curve there."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 100, n_rows))
    f = curve(x)
    return x[:, None], f + NOISE * rng.normal(size=n_rows), f


def measure(name, n_rows, n_inducing):
    """A line of the table."""
    X, y, _ = make_data(n_rows, 0)
    X_test, y_test, f_test = make_data(20_000, 1)
    start = time.perf_counter()
    model = SOLVEGPRegressor(n_inducing, **ALONE | MODELS[name]).fit(X, y)
    seconds = time.perf_counter() - start
    nll = -model.predict_dist(X_test).logpdf(y_test).mean()
    return {
        "model": name,
        "n_rows": n_rows,
        "n_inducing": n_inducing,
        "rmse_of_curve": np.sqrt(np.mean((model.predict(X_test) - f_test) ** 2)),
        "nll": nll,
        "nll_of_truth": 0.5 * np.log(2 * np.pi * NOISE**2) + 0.5 * np.mean(((y_test - f_test) / NOISE) ** 2),
        "bound_per_row": model.lower_bound_ / n_rows,
        "fit_s": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--n-inducing", type=int, default=400)
    parser.add_argument("--output", type=Path, default=Path("series.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for n_rows in args.rows:
        for name in args.models:
            rows.append(measure(name, n_rows, args.n_inducing))
            print(
                *(
                    f"{key} {value if isinstance(value, str) else format(value, '.4g')}"
                    for key, value in rows[-1].items()
                ),
                flush=True,
            )
    write(rows, args.output)


if __name__ == "__main__":
    main()
