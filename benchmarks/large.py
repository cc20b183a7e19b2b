"""Many rows: accuracy, time and memory of the three families, of boosted trees and of a network, on generated tables.

    OMP_NUM_THREADS=1 python benchmarks/large.py measure --rows 10000 100000 --output large.csv
    python benchmarks/large.py picture --output large.csv --picture large.png

Three functions of ten features, with Gaussian noise whose deviation is known: Friedman's first, a rough one with
interactions, and one with jumps. Every cell (function, number of rows, estimator) runs in a process of its own, so that
its peak memory is its own; the import of PyTorch is in all of them. Times are CPU seconds. A cell takes at most
``--seconds``; one that takes longer, or fails, is said and left out. Cells that the file already has are not run again.
All models have their defaults. Those without a predictive distribution get a Gaussian with the deviation of
cross-validated residuals, so their time is that of six fits. "avdgp-streamed" and "solvegp-streamed" learn by
``fit_chunks`` from chunks that are made while they learn, so that no process holds the table.
"""

import argparse
import csv
import importlib
import json
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from uci import ESTIMATORS, MODULES, Data, fit_with_constant_variance, scores

from skdgp import AVDGPRegressor, SOLVEGPRegressor
from skdgp.streaming import fit_chunks

KEYS = ("problem", "n_rows", "estimator")
VALUES = ("noise_nll", "rmse", "nll", "crps", "coverage", "fit_s", "predict_s", "peak_mb")
TEST_ROWS, FEATURES = 10_000, 10
CHUNK_ROWS = 100_000

#: Deviation of the noise of the second and the third function; that of the first is one.
NOISE = 0.3


def friedman(X):
    """Friedman's first function of five of the features."""
    return 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]


def rough(X):
    """Waves of products of features, and a crease."""
    waves = np.sin(6 * np.pi * X[:, 0] * X[:, 1]) + 2 * X[:, 3] * np.cos(5 * np.pi * X[:, 2])
    return waves + 3 * np.abs(X[:, 4] - X[:, 5]) + np.sin(4 * np.pi * X[:, 6]) * X[:, 7]


def jumps(X):
    """Steps along features, along the sum of two, and in a pattern of two."""
    pattern = (X[:, 0] > 0.3) ^ (X[:, 1] > 0.6)
    return 2 * pattern + 3 * (X[:, 2] + X[:, 3] > 1) + np.floor(4 * X[:, 4]) * X[:, 5] + X[:, 6]


PROBLEMS = {"friedman": (friedman, 1.0), "rough": (rough, NOISE), "jumps": (jumps, NOISE)}


def make(problem, n_rows):
    """Rows to learn from and rows to test on, always the same."""
    function, deviation = PROBLEMS[problem]
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n_rows + TEST_ROWS, FEATURES))
    y = function(X) + rng.normal(scale=deviation, size=len(X))
    return Data(X[TEST_ROWS:], y[TEST_ROWS:], X[:TEST_ROWS], y[:TEST_ROWS])


def chunks(problem, n_rows):
    """Other rows of the same kind, in chunks that are the same each time."""
    function, deviation = PROBLEMS[problem]
    for number in range(-(-n_rows // CHUNK_ROWS)):
        rng = np.random.default_rng([1, number])
        X = rng.uniform(size=(min(CHUNK_ROWS, n_rows - number * CHUNK_ROWS), FEATURES))
        yield X, function(X) + rng.normal(scale=deviation, size=len(X))


def fit_stream(name, problem, n_rows):
    """One of ours that learns chunk by chunk."""
    model = STREAMED[name](random_state=0)
    return fit_chunks(model, lambda: chunks(problem, n_rows)).predict_dist


def noise_nll(problem, data):
    """What a model that knows the function has on the test rows, whose noise is not the same for all tables."""
    function, deviation = PROBLEMS[problem]
    return float(-norm.logpdf(data.y_test, function(data.X_test), deviation).mean())


def fit_network(data, seed):
    """One of scikit-learn's networks, which stops early, with a Gaussian of constant variance."""
    network = MLPRegressor(hidden_layer_sizes=(100, 100), max_iter=500, early_stopping=True, random_state=seed)
    model = make_pipeline(StandardScaler(), TransformedTargetRegressor(network, transformer=StandardScaler()))
    return fit_with_constant_variance(model, data.X, data.y, seed)


FITS = {name: ESTIMATORS[name] for name in ("avdgp", "dsdgp", "solvegp", "hgb", "lightgbm", "catboost")}
FITS |= {"mlp": fit_network}
STREAMED = {"avdgp-streamed": AVDGPRegressor, "solvegp-streamed": SOLVEGPRegressor}


def cell(problem, n_rows, estimator):
    """Fit one estimator to one table in this process; its line of the file."""
    streamed = estimator in STREAMED
    data = make(problem, 0 if streamed else n_rows)
    if estimator in MODULES:
        importlib.import_module(MODULES[estimator])
    start = time.process_time()
    predict = fit_stream(estimator, problem, n_rows) if streamed else FITS[estimator](data, 0)
    fitted = time.process_time()
    dist = predict(data.X_test)
    times = {"fit_s": fitted - start, "predict_s": time.process_time() - fitted}
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
    peak = {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    values = {name: float(value) for name, value in scores(data.y_test, dist).items()}
    keys = dict(zip(KEYS, (problem, n_rows, estimator), strict=True))
    return keys | {"noise_nll": noise_nll(problem, data)} | values | times | peak


def read(path):
    """Lines of the file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measure(args):
    """Run the cells that the file lacks, each in a process of its own, and save each at once."""
    done = {tuple(row[key] for key in KEYS) for row in read(args.output)}
    with args.output.open("a", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, KEYS + VALUES)
        if not done:
            lines.writeheader()
        for n_rows, problem, estimator in product(args.rows, args.problems, args.estimators):
            names = (problem, str(n_rows), estimator)
            if names in done:
                continue
            try:
                command = [sys.executable, __file__, "cell", *names]
                completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=args.seconds)
            except subprocess.TimeoutExpired:
                print(*names, f"left out: more than {args.seconds} s", flush=True)
            except subprocess.CalledProcessError as error:
                print(*names, "failed:", error.stderr.strip().splitlines()[-1], flush=True)
            else:
                row = json.loads(completed.stdout.splitlines()[-1])
                lines.writerow(row)
                file.flush()
                print(*names, *(f"{name}={row[name]:.3f}" for name in ("nll", "rmse", "fit_s", "peak_mb")), flush=True)


def picture(args):
    """NLL over seconds (left) and over rows (right), a row of panels for each function."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = read(args.output)
    problems = [name for name in PROBLEMS if any(row["problem"] == name for row in rows)]
    figure, axes = plt.subplots(len(problems), 2, figsize=(9, 3 * len(problems)), squeeze=False, layout="constrained")
    for line, problem in zip(axes, problems, strict=True):
        for number, name in enumerate(FITS):
            of_it = [row for row in rows if row["problem"] == problem and row["estimator"] == name]
            of_it.sort(key=lambda row: int(row["n_rows"]))
            style = {"marker": "o", "color": f"C{number}", "linestyle": "-" if number < 3 else "--"}
            for axis, over in zip(line, ("fit_s", "n_rows"), strict=True):
                x, y = ([float(row[key]) for row in of_it] for key in (over, "nll"))
                axis.plot(x, y, label=name, **style)
        for axis, over in zip(line, ("CPU seconds of the fit", "training rows"), strict=True):
            noise = norm(scale=PROBLEMS[problem][1]).entropy()
            axis.axhline(noise, color="grey", linestyle=":", label="the noise alone, expected")
            axis.set(xscale="log", xlabel=over, ylabel="NLL", title=problem)
    axes[0, 0].legend(fontsize="small")
    figure.savefig(args.picture, dpi=110)
    print(f"Saved to {args.picture}.")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    measuring = modes.add_parser("measure", help="run cells")
    measuring.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    measuring.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    measuring.add_argument("--estimators", nargs="+", choices=[*FITS, *STREAMED], default=list(FITS))
    measuring.add_argument("--seconds", type=float, default=900, help="longer cells are left out")
    drawing = modes.add_parser("picture", help="draw what is saved")
    drawing.add_argument("--picture", type=Path, default=Path("large.png"))
    for mode in (measuring, drawing):
        mode.add_argument("--output", type=Path, default=Path("large.csv"))
    one = modes.add_parser("cell", help="one fit in this process, which prints its line")
    one.add_argument("names", nargs=3, metavar=("PROBLEM", "ROWS", "ESTIMATOR"))
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.mode == "cell":
        problem, n_rows, estimator = args.names
        print(json.dumps(cell(problem, int(n_rows), estimator)))
    else:
        {"measure": measure, "picture": picture}[args.mode](args)


if __name__ == "__main__":
    main()
