"""
Learning from more rows than fit in memory
==========================================

A table in a file is larger than the memory of the machine. Can a Gaussian process (GP) learn from it, and as well as
from all rows at once? With :meth:`~skdgp.DSDGPRegressor.partial_fit` it can learn chunk by chunk: your program reads a
chunk, the model learns from it, and then the chunk can be forgotten. :doc:`/scale` has the details.
"""

# %%
# The data: a long table in a file
# --------------------------------
# The table is a Parquet file, which we write in chunks of ten thousand rows. The target is Friedman's function of five
# of ten features. The noise is larger where the sixth feature is large.
#
# The rows are in random order. This matters, because the first chunk decides how features are scaled, and where the
# model starts. If the rows of your table are sorted, shuffle them when you write the file.

# sphinx_gallery_thumbnail_number = 0
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

N_ROWS, N_CHUNK = 1_200_000, 10_000


def make_table(n_rows, rng):
    X = rng.uniform(size=(n_rows, 10))
    y = (
        10 * np.sin(np.pi * X[:, 0] * X[:, 1])
        + 20 * (X[:, 2] - 0.5) ** 2
        + 10 * X[:, 3]
        + 5 * X[:, 4]
    )
    y += (0.5 + X[:, 5]) * rng.standard_normal(n_rows)
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(10)]).assign(y=y)


rng = np.random.default_rng(0)
test = make_table(5000, rng)
X_test, y_test = test.drop(columns="y"), test["y"]
folder = TemporaryDirectory()
path = Path(folder.name) / "table.parquet"
with parquet.ParquetWriter(path, pa.Schema.from_pandas(test)) as file:
    for _ in range(N_ROWS // N_CHUNK):
        file.write_table(pa.Table.from_pandas(make_table(N_CHUNK, rng)))
table_size = N_ROWS * test.shape[1] * 8 / 2**20
print(f"{N_ROWS:,} rows, {table_size:.0f} MiB in memory")

# %%
# Chunk by chunk
# --------------
# A :class:`~skdgp.DSDGPRegressor` without hidden layers is a sparse GP. It summarises what it has learnt by the
# function's values at 128 *inducing points*, however many rows there are. A penalty holds these values near what was
# plausible without any data. The more rows there are in all, the less the penalty counts, and ``total_size`` is this
# number of rows. After each chunk we note the error on test rows, and by how much the memory of the process has grown.
#
# To compare training alone, the model passes once over each chunk (``max_iter=1``), and predicts without a base
# (``base=None``). By default it would pass several times over each chunk, and a base would learn from each chunk, too.

import psutil

from skdgp import DSDGPRegressor


def memory():
    """Memory of this process, in MiB."""
    return psutil.Process().memory_info().rss / 2**20


def read_chunks(path):
    with parquet.ParquetFile(
        path, pre_buffer=False
    ) as file:  # a buffer would keep what has been read
        for batch in file.iter_batches(N_CHUNK):
            yield batch.to_pandas()


def make_model():
    return DSDGPRegressor(
        (),
        128,
        batch_size=2000,
        max_iter=1,
        n_estimators=1,
        base=None,
        n_neighbors=0,
        random_state=0,
    )


streamed, rows, errors, growth = make_model(), [], [], []
before = memory()
for chunk in read_chunks(path):
    streamed.partial_fit(
        chunk.drop(columns="y"), chunk["y"], total_size=N_ROWS
    )
    rows.append(N_CHUNK * (len(rows) + 1))
    errors.append(np.sqrt(np.mean((streamed.predict(X_test) - y_test) ** 2)))
    growth.append(memory() - before)
    if len(rows) in (1, 5, 10, 20, 50, 120):
        print(
            f"{rows[-1]:>9,} rows read: RMSE {errors[-1]:.3f}, memory "
            f"+{growth[-1]:.0f} MiB"
        )

# %%
# All at once
# -----------
# Now the same model learns from the whole table in memory, in one pass. It holds out a tenth of the rows to set the
# variance of its noise. The last line has the root mean square of the noise, for comparison: no RMSE below this number
# can be expected.

from skdgp.metrics import coverage, crps

table = pd.read_parquet(path)
whole = make_model().fit(table.drop(columns="y"), table["y"])
folder.cleanup()

scores = {}
for name, model in {"chunk by chunk": streamed, "all at once": whole}.items():
    dist = model.predict_dist(X_test)
    scores[name] = {
        "RMSE": np.sqrt(np.mean((dist.mean - y_test) ** 2)),
        "CRPS": crps(y_test, dist),
        "90 % coverage": coverage(y_test, *dist.interval(0.9)),
    }
print(pd.DataFrame(scores).T.round(3).to_string())
noise = np.sqrt(np.mean((0.5 + X_test["x5"]) ** 2))
print(f"Root mean square of the noise: {noise:.3f}")

# %%
# Error and memory
# ----------------
# Left: the error falls to about that of the fit to all rows. Right: nearly all of the memory is taken by the first
# chunks. It does not grow in proportion to the rows that have been read.

assert errors[-1] < 1.05 * scores["all at once"]["RMSE"]

import matplotlib.pyplot as plt

blue, orange, grey = "#0b5fa5", "#c8762b", "#8a8a8a"
fig, (left, right) = plt.subplots(
    1, 2, figsize=(12, 4.5), layout="constrained"
)
thousands = np.array(rows) / 1000

left.loglog(thousands, errors, color=blue, linewidth=2, label="chunk by chunk")
left.axhline(
    scores["all at once"]["RMSE"],
    color=orange,
    linestyle="--",
    label="all at once",
)
left.axhline(noise, color=grey, linestyle=":", label="noise")
left.set(xlabel="thousand rows read", ylabel="test RMSE")
left.set_title(
    f"RMSE {errors[-1]:.3f} in the end, {scores['all at once']['RMSE']:.3f} "
    "with all rows at once"
)
left.legend(frameon=False)
left.xaxis.set_major_formatter("{x:g}")
left.yaxis.set_major_formatter("{x:g}")
left.yaxis.set_minor_formatter("{x:g}")

right.plot(
    thousands, growth, color=blue, linewidth=2, label="learning chunk by chunk"
)
right.axhline(table_size, color=grey, linestyle="--", label="the table itself")
right.set(
    xlabel="thousand rows read",
    ylabel="memory (MiB)",
    ylim=(0, 1.3 * max(table_size, *growth)),
)
right.set_title(
    "From the tenth chunk to the last, memory grew by "
    f"{growth[-1] - growth[9]:z.0f} MiB"
)
right.legend(frameon=False, loc="upper left")
plt.show()
