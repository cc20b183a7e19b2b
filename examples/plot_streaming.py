"""Learning from a file that is larger than the memory for it.

A table of two million rows lies in a Parquet file (or, with ``--format npy``, in NumPy's own format).
``partial_fit`` takes it in chunks of ten thousand rows, each read, learnt from and forgotten, so that memory stays
where it was after the first chunks, however long the file. For comparison the same model is then fitted to all rows
at once.

    python examples/plot_streaming.py

What to take care of:

- The first chunk decides how features are scaled and where inducing points start. Shuffle the rows when the file is
  written, or read a random sample first.
- ``total_size`` tells how many rows there are in all, which the penalty on inducing variables is weighed against.
- Chunks may come again in a second pass. Here one is enough.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone

from skdgp import DSDGPRegressor
from skdgp.metrics import coverage, crps, negative_log_predictive_density

N_FEATURES = 10
COLOURS = {"streamed": "#0b5fa5", "in memory": "#c8762b"}
GREY = "#8a8a8a"


def make_rows(n_rows, rng):
    """Friedman's first function of five of ten features, with more noise where the sixth is large."""
    X = rng.uniform(size=(n_rows, N_FEATURES))
    signal = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return X, signal + (0.5 + X[:, 5]) * rng.standard_normal(n_rows)


def write_parquet(path, chunks, n_rows):
    """Write chunks of rows (X, y), one group of rows for each."""
    import pyarrow as pa
    from pyarrow import parquet

    names = [*(f"x{i}" for i in range(N_FEATURES)), "y"]
    with parquet.ParquetWriter(path, pa.schema([(name, pa.float64()) for name in names])) as file:
        for X, y in chunks:
            file.write_table(pa.table(dict(zip(names, [*X.T, y], strict=True))))


def read_parquet(path, n_chunk):
    """Chunks of rows (X, y) of a Parquet file."""
    from pyarrow import parquet

    with parquet.ParquetFile(path, pre_buffer=False) as file:  # which would keep what it has read
        for batch in file.iter_batches(n_chunk):
            table = np.column_stack([column.to_numpy() for column in batch.columns])
            yield table[:, :-1], table[:, -1]


def write_npy(path, chunks, n_rows):
    """The same as an array that NumPy can map into memory."""
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, N_FEATURES + 1)}
        np.lib.format.write_array_header_1_0(file, header)
        for X, y in chunks:
            np.column_stack([X, y]).tofile(file)


def read_npy(path, n_chunk):
    """Chunks of rows of a mapped array: only what a slice touches is read."""
    for start in range(0, len(np.load(path, mmap_mode="r")), n_chunk):
        # Mapped anew for every chunk: pages count as the process's own until their file is closed.
        table = np.array(np.load(path, mmap_mode="r")[start : start + n_chunk])
        yield table[:, :-1], table[:, -1]


FORMATS = {"parquet": (write_parquet, read_parquet), "npy": (write_npy, read_npy)}


def peak_memory():
    """Most MiB that this process has used so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def stream(model, chunks, n_rows, X_test, y_test):
    """Learn from chunks; after each the rows seen, RMSE on other rows and the growth of memory in MiB."""
    curve, seen, before = [], 0, peak_memory()
    for X, y in chunks:
        model.partial_fit(X, y, total_size=n_rows)
        seen += len(y)
        rmse = np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2))
        curve.append((seen, rmse, peak_memory() - before))
        print(f"\r{seen:>9,} rows read, test RMSE {rmse:.4f}, memory +{curve[-1][2]:.0f} MiB", end="", flush=True)
    print()
    return np.array(curve)


def scores(model, X, y):
    """What a distribution is judged by, and how long its rows took to be learnt from."""
    dist = model.predict_dist(X)
    return {
        "RMSE": np.sqrt(np.mean((dist.mean - y) ** 2)),
        "CRPS": crps(y, dist),
        "NLL": negative_log_predictive_density(y, dist),
        "90 % coverage": coverage(y, *dist.interval(0.9)),
    }


def plot(curve, whole_rmse, file_size, path):
    """Save the picture."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
        rows = curve[:, 0] / 1000
        axes[0].loglog(rows, curve[:, 1], color=COLOURS["streamed"], linewidth=2)
        axes[0].axhline(whole_rmse, color=COLOURS["in memory"], linestyle="--")
        text = {"textcoords": "offset points", "va": "bottom"}
        axes[0].annotate("all rows in memory", (rows[0], whole_rmse), (0, 4), color=COLOURS["in memory"], **text)
        middle = len(rows) // 8
        place = (rows[middle], curve[middle, 1])
        axes[0].annotate("chunk by chunk", place, (0, 10), color=COLOURS["streamed"], **text)
        axes[0].set(xlabel="Thousand rows read", ylabel="Test RMSE", title="As good as with all rows at once")
        axes[0].yaxis.set_major_formatter("{x:g}")
        axes[0].yaxis.set_minor_formatter("{x:g}")
        axes[0].xaxis.set_major_formatter("{x:g}")
        axes[1].plot(rows, curve[:, 2], color=COLOURS["streamed"], linewidth=2)
        axes[1].axhline(file_size, color=GREY, linestyle="--")
        axes[1].annotate("size of the table", (0, file_size), (0, 4), color=GREY, **text)
        axes[1].annotate("memory taken by learning", (0, curve[0, 2]), (16, -16), color=COLOURS["streamed"], **text)
        axes[1].set(xlabel="Thousand rows read", ylabel="MiB", ylim=(0, 1.15 * max(file_size, curve[-1, 2])))
        axes[1].set_title("Memory does not grow with the file")
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Write a file, learn from it, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_streaming.png"), help="where the picture goes")
    parser.add_argument("--format", choices=FORMATS, default="parquet")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that the script runs")
    args = parser.parse_args()
    n_rows, n_chunk = (20_000, 5000) if args.quick else (args.rows, 10_000)
    write, read = FORMATS[args.format]
    rng = np.random.default_rng(0)
    X_test, y_test = make_rows(5000, rng)
    model = DSDGPRegressor((), 128, batch_size=2000, max_iter=1, n_estimators=1, random_state=0)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table.{args.format}"
        write(path, (make_rows(min(n_chunk, n_rows - start), rng) for start in range(0, n_rows, n_chunk)), n_rows)
        start = time.perf_counter()
        streamed = clone(model)
        curve = stream(streamed, read(path, n_chunk), n_rows, X_test, y_test)
        times = {"streamed": time.perf_counter() - start}

        X, y = (np.concatenate(column) for column in zip(*read(path, n_chunk), strict=True))
        start = time.perf_counter()
        whole = clone(model).fit(X, y)
        times["in memory"] = time.perf_counter() - start

    found = {"streamed": scores(streamed, X_test, y_test), "in memory": scores(whole, X_test, y_test)}
    print(f"\n{'':<12}" + "".join(f"{name:>15}" for name in found["streamed"]) + f"{'seconds':>10}")
    for name, row in found.items():
        print(f"{name:<12}" + "".join(f"{value:>15.4f}" for value in row.values()) + f"{times[name]:>10.1f}")
    table_size = 8 * (N_FEATURES + 1) * n_rows / 2**20
    print(f"\nThe table has {table_size:.0f} MiB, learning from it took {curve[-1, 2]:.0f} MiB more memory.")
    plot(curve, found["in memory"]["RMSE"], table_size, args.output)
    print(f"Picture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
