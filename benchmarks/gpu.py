"""How long training steps, default fits and predictions take on a GPU, beside the CPU of the same machine.

    python benchmarks/gpu.py --output gpu.csv

``step``: milliseconds of a training step of one member alone, for minibatches of 500 and of 5000 of 20 000 rows, with
CUDA graphs and without. It is the difference of two fits, one of which makes ten passes more.

``fit``: seconds of a default fit to 4000 and to 100 000 rows and of its parts, its NLL on 2048 others, and seconds that
it takes to predict means and deviations of 100 000 rows given in float64 and in float32.

All have the rows of ``speed.py``. A line of the CSV file has the work, estimator, device, size of minibatches, number
of rows, whether there are CUDA graphs, what was measured, and its value.
"""

import argparse
import csv
import time
from pathlib import Path

import torch
from competitors import N_TEST, make_rows

import skdgp
from skdgp.metrics import negative_log_predictive_density

FAMILIES = ("AVDGPRegressor", "DSDGPRegressor", "SOLVEGPRegressor")
ALONE = {"base": None, "n_neighbors": 0, "n_estimators": 1, "random_state": 0}
BATCHES, STEP_ROWS, FIT_ROWS, PREDICTED_ROWS = (500, 5000), 20_000, (4000, 100_000), 100_000
PASSES = (2, 12)


def seconds(run, device):
    """Seconds of a call, until the device has finished."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def step(family, device, batch_size, recorded, n_rows):
    """Milliseconds of a training step."""
    X, y = make_rows(n_rows)
    own = {"method": "svi"} if family == "SOLVEGPRegressor" else {}
    own |= {} if recorded or device == "cpu" else {"cuda_graphs": False}

    def fit(n_passes):
        model = getattr(skdgp, family)(device=device, batch_size=batch_size, max_iter=n_passes, **ALONE, **own)
        return seconds(lambda: model.fit(X, y), device)

    fit(1)  # libraries prepare themselves
    few, many = map(fit, PASSES)
    return {"ms a step": 1e3 * (many - few) / ((PASSES[1] - PASSES[0]) * -(-n_rows // batch_size))}


def fit(family, device, batch_size, recorded, n_rows):
    """Seconds of a default fit and of its predictions, and its NLL."""
    X, y = make_rows(n_rows + N_TEST + PREDICTED_ROWS)
    train, test, many = slice(n_rows), slice(n_rows, n_rows + N_TEST), slice(n_rows + N_TEST, None)
    own = {} if recorded or device == "cpu" else {"cuda_graphs": False}
    model = getattr(skdgp, family)(device=device, batch_size=batch_size, random_state=0, **own)
    measured = {"seconds": seconds(lambda: model.fit(X[train].astype("float64"), y[train]), device)}
    measured |= {f"seconds, {part}": value for part, value in model.fit_times_.items()}
    measured["NLL"] = negative_log_predictive_density(y[test], model.predict_dist(X[test]))
    for name in ("float64", "float32"):
        rows = X[many].astype(name)
        model.predict(rows[:1000], return_std=True)  # libraries prepare themselves
        measured[f"seconds of {PREDICTED_ROWS} rows, {name}"] = seconds(
            lambda rows=rows: model.predict(rows, return_std=True), device
        )
    return measured


def cases(quick):
    """Every work with its arguments."""
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    steps = [
        (step, family, device, batch_size, recorded, 1000 if quick else STEP_ROWS)
        for batch_size in BATCHES
        for family in FAMILIES
        for device in devices
        for recorded in ([False, True] if device == "cuda" else [False])
    ]
    fits = [
        (fit, family, device, "auto", recorded, 200 if quick else n_rows)
        for n_rows in FIT_ROWS
        for family in FAMILIES
        for device in devices
        for recorded in ([False, True] if device == "cuda" else [False])
    ]
    return fits + steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure too little, to see that the script runs")
    parser.add_argument("--works", nargs="+", choices=["step", "fit"], default=["step", "fit"])
    parser.add_argument("--output", type=Path, default=Path("gpu.csv"))
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    names = {"cuda": gpu, "cpu": f"CPU, {torch.get_num_threads()} threads"}
    with args.output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("work", "estimator", "device", "batch_size", "rows", "cuda_graphs", "measure", "value"))
        for work, family, device, batch_size, recorded, n_rows in cases(args.quick):
            if work.__name__ not in args.works:
                continue
            for measure, value in work(family, device, batch_size, recorded, n_rows).items():
                row = (work.__name__, family, names[device], batch_size, n_rows, recorded, measure, f"{value:.4g}")
                writer.writerow(row)
                print(*row, sep=", ", flush=True)
            file.flush()


if __name__ == "__main__":
    main()
