"""A search on a cluster: dask's workers fit the candidates, scikit-learn asks for them as ever.

How many layers, and how many inducing points in each, does it take to read the letters DGP? ``GridSearchCV`` fits nine
pipelines to three folds: first one after the other on one core, then, with one more line, on the workers of a
cluster. Both find the same scores; the picture shows who fitted what and when.

The cluster is made of two processes on this machine. For a real one, start a scheduler and workers, where this package
is installed too, and say where the scheduler is. Nothing else changes::

    dask scheduler
    dask worker SCHEDULER:8786 --nworkers 8 --nthreads 1
    python examples/plot_cluster.py --scheduler tcp://SCHEDULER:8786
"""

import argparse
import contextlib
import os
import socket
import time
import zlib
from pathlib import Path

import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from distributed import Client, LocalCluster, WorkerPlugin
from matplotlib.colors import LinearSegmentedColormap, Normalize
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import DSDGPClassifier
from skdgp.datasets import make_letters

INDUCING = (24, 48, 96)
HIDDEN = ((2, 2), (2,), ())  # what takes longest first, so that no worker waits for it in the end
GRID = {"model__hidden_dims": HIDDEN, "model__n_inducing": INDUCING}
BUDGET = {"n_estimators": 1, "n_samples": 4, "batch_size": 200, "learning_rate": 0.1}
N_FOLDS = 3

INK, GREY = "#1d2b3a", "#8a8a8a"
LOSSES = LinearSegmentedColormap.from_list("losses", ["#0b5fa5", "#8fb8d8", "#f4f1ea", "#e8b27a", "#d9772b"])


class OneThread(WorkerPlugin):
    """Holds PyTorch to one thread in every worker, those that come later included.

    Dask starts workers with ``OMP_NUM_THREADS=1`` and ``MKL_NUM_THREADS=1``, unless they are exported already or
    there is no nanny: then every worker would start a thread for each core, and all would wait for one another. The
    ``env`` of a cluster is set after the processes have imported what this script imports, too late for PyTorch.
    """

    def setup(self, worker):
        """Called by dask in every worker."""
        torch.set_num_threads(1)


class Stamp(TransformerMixin, BaseEstimator):
    """A step of a pipeline that changes nothing, and notes when and by whom it was fitted."""

    def fit(self, X, y=None):
        """Look at the clock."""
        self.started_ = time.time()
        self.process_ = zlib.crc32(f"{socket.gethostname()} {os.getpid()}".encode())  # a search gathers numbers only
        return self

    def transform(self, X):
        """The same rows."""
        return X


def score(pipeline, X, y):
    """What to choose by, and beside it what the picture shows: a search keeps all that a scorer returns."""
    quality = -log_loss(y, pipeline.predict_proba(X))
    stamp = pipeline["stamp"]
    witnesses = {"process": stamp.process_, "started": stamp.started_, "threads": torch.get_num_threads()}
    return {"quality": quality, "stopped": time.time(), **witnesses}


def make_search(max_iter):
    """The same search for both."""
    model = DSDGPClassifier(max_iter=max_iter, device="cpu", random_state=0, **BUDGET)
    pipeline = Pipeline([("stamp", Stamp()), ("scale", StandardScaler()), ("model", model)])
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0)
    return GridSearchCV(pipeline, GRID, scoring=score, refit="quality", cv=folds)


@contextlib.contextmanager
def connect(scheduler, n_workers):
    """A client of the cluster at an address, or else of one that lasts as long as the client."""
    with contextlib.ExitStack() as stack:
        cluster = scheduler or stack.enter_context(
            LocalCluster(n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=None)
        )
        client = stack.enter_context(Client(cluster))
        client.register_plugin(OneThread())
        yield client


def table_of_fits(search, start):
    """A row per fit: candidate, fold, seconds from and to, process, threads, log loss."""
    results = search.cv_results_
    names = ("quality", "process", "started", "stopped", "threads")
    fits = [
        {"candidate": candidate, "fold": fold}
        | {name: results[f"split{fold}_test_{name}"][candidate] for name in names}
        for candidate in range(len(results["params"]))
        for fold in range(N_FOLDS)
    ]
    table = pd.DataFrame(fits).sort_values("started")
    table[["started", "stopped"]] -= start
    return table.assign(loss=-table["quality"])


def run(search, X, y):
    """Fit the search; its table of fits."""
    start = time.time()
    search.fit(X, y)
    return table_of_fits(search, start)


def print_results(tables, search, X, y):
    """What it took, whether both agree, and how good the winner is."""
    print(f"{'':<12}{'processes':>10}{'threads each':>14}{'seconds':>9}")
    for name, fits in tables.items():
        seconds = fits.stopped.max()
        print(f"{name:<12}{fits.process.nunique():>10}{int(fits.threads.max()):>14}{seconds:>9.1f}")
    alone, cluster = (fits.sort_values(["candidate", "fold"]).loss.to_numpy() for fits in tables.values())
    print(f"\nLargest difference between the {len(alone)} scores: {np.abs(alone - cluster).max():.1e}")
    best = {name.removeprefix("model__"): value for name, value in search.best_params_.items()}
    loss = -score(search.best_estimator_, X, y)["quality"]
    print(f"Best: {best}, log loss {-search.best_score_:.3f} in the search, {loss:.3f} on other points")


def outline(ax, x, y, width, height):
    """Mark what belongs to the best candidate."""
    ax.add_patch(plt.Rectangle((x, y), width, height, fill=False, edgecolor=INK, linewidth=2, zorder=3))


def plot_grid(ax, search, norm):
    """Mean log loss of every candidate: a row per depth, a column per number of inducing points."""
    losses = -search.cv_results_["mean_test_quality"].reshape(len(HIDDEN), len(INDUCING))
    ax.imshow(losses, cmap=LOSSES, norm=norm, aspect="auto")
    for (row, column), loss in np.ndenumerate(losses):
        dark = abs(norm(loss) - 0.5) > 0.35
        ax.text(column, row, f"{loss:.2f}", ha="center", va="center", color="white" if dark else INK, fontsize=13)
    row, column = np.unravel_index(search.best_index_, losses.shape)
    outline(ax, column - 0.5, row - 0.5, 1, 1)
    layers = [f"{len(dims) + 1} layer{'s' if dims else ''}" for dims in HIDDEN]
    ax.set(yticks=range(len(HIDDEN)), yticklabels=layers, xticks=range(len(INDUCING)), xticklabels=INDUCING)
    ax.set(xlabel="Inducing points of each layer", title="Log loss of the candidates")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def lanes_of(tables):
    """A name and its fits for every process, the lone one first."""
    alone, cluster = tables.values()
    workers = enumerate(cluster.process.unique(), start=1)
    return [("one core", alone), *((f"worker {i}", cluster[cluster.process == process]) for i, process in workers)]


def plot_lanes(ax, tables, best, norm):
    """A lane per process, a bar per fit in the colour of its candidate's fold."""
    lanes = lanes_of(tables)
    places = np.concatenate([[0], 1.35 + np.arange(len(lanes) - 1)])
    for place, (_, fits) in zip(places, lanes, strict=True):
        widths = fits.stopped - fits.started
        colors = LOSSES(norm(fits.loss))
        ax.barh(place, widths, left=fits.started, height=0.75, color=colors, edgecolor="white", linewidth=1)
        for fit in fits[fits.candidate == best].itertuples():
            outline(ax, fit.started, place - 0.375, fit.stopped - fit.started, 0.75)
    for place, fits in zip((0, places[1:].mean()), tables.values(), strict=True):
        end = fits.stopped.max()
        ax.annotate(f"{end:.0f} s", (end, place), (8, 0), textcoords="offset points", va="center", color=INK)
    ax.set(yticks=places, yticklabels=[name for name, _ in lanes], xlabel="Seconds since the search began")
    ax.set(xlim=(0, 1.08 * max(fits.stopped.max() for fits in tables.values())), title="Who fitted what, and when")
    ax.invert_yaxis()
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#eeeeee")
    ax.set_axisbelow(True)


def plot(tables, search, path):
    """Save the picture."""
    losses = tables["cluster"].loss
    norm = Normalize(losses.min(), losses.max())
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=[1, 2.4], layout="constrained")
        plot_grid(axes[0], search, norm)
        plot_lanes(axes[1], tables, search.best_index_, norm)
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Search twice, compare, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_cluster.png"), help="where the picture goes")
    parser.add_argument("--scheduler", help="address of a running scheduler, instead of processes on this machine")
    parser.add_argument("--workers", type=int, default=2, help="how many processes on this machine")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()

    X, y = make_letters(300 if args.quick else 1500, random_state=0)
    max_iter = 2 if args.quick else 32
    torch.set_num_threads(1)  # as the workers; more would add in another order
    tables = {"one core": run(make_search(max_iter).set_params(refit=False), X, y)}

    search = make_search(max_iter)
    with connect(args.scheduler, args.workers), joblib.parallel_config(backend="dask"):
        tables["cluster"] = run(search, X, y)

    print_results(tables, search, *make_letters(2000, random_state=1))
    plot(tables, search, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
