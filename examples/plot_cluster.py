"""
A search on a cluster
=====================

A search fits many models that know nothing of one another. Can other processes, or other machines, take part, and do
scores stay the same? This example searches for a deep Gaussian process (GP) twice: first on one core, then, with
one more line, on the workers of a `dask <https://distributed.dask.org>`_ cluster. Two processes of this machine stand
in for a real one; :doc:`/parallel` tells how to connect to that.
"""

# %%
# A question with 18 fits
# -----------------------
# Points of a square lie inside the letters DGP or outside. A deep GP is a chain of layers, and
# :class:`~skdgp.DSDGPClassifier` sums up each by its values at *inducing points*. How many layers does it take to read
# the letters, and how many points in each? Nine candidates and two folds make 18 fits.
#
# A search keeps all numbers that its scorer returns: here minus the log loss, to choose by, and beside it who fitted
# the model, and from when to when.

import os
import time
from importlib import import_module

import torch
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from skdgp import DSDGPClassifier
from skdgp.datasets import make_letters


class TimedClassifier(DSDGPClassifier):
    """Notes when its fit began."""

    def fit(self, X, y):
        self.started_ = time.time()
        return super().fit(X, y)


def score(model, X, y):
    who = {"process": os.getpid(), "threads": torch.get_num_threads()}
    return who | {
        "neg_log_loss": -log_loss(y, model.predict_proba(X)),
        "started": model.started_,
        "stopped": time.time(),
    }


X, y = make_letters(1500, random_state=0)
# What takes longest comes first, so that no worker waits for it in the end.
hidden_dims, n_inducing = [(2, 2), (2,), ()], [24, 48, 96]
params = {"n_estimators": 1, "n_samples": 4, "batch_size": 200, "max_iter": 24, "learning_rate": 0.1, "base": None}
model = TimedClassifier(device="cpu", random_state=0, **params)  # with a base all of them would be much alike
search = GridSearchCV(
    model,
    {"hidden_dims": hidden_dims, "n_inducing": n_inducing},
    scoring=score,
    refit="neg_log_loss",
    cv=StratifiedKFold(2, shuffle=True, random_state=0),
)

# %%
# On one core
# -----------
# PyTorch is held to one thread, as each worker will be.

n_threads = torch.get_num_threads()
torch.set_num_threads(1)
alone = clone(search).set_params(refit=False)
alone_start = time.time()
alone.fit(X, y)
torch.set_num_threads(n_threads)

# %%
# On a cluster
# ------------
# scikit-learn leaves parallel work to joblib, and joblib leaves it to dask if told so. The class and the scorer above
# need not be in a module that workers can import: dask sends their code along. The best candidate is fitted once more
# to all rows, in this process.
#
# ``SubprocessCluster`` starts a scheduler and two workers, but not on Windows. ``LocalCluster`` does so anywhere, but
# its processes read the script again: all that is not theirs to do then belongs under ``if __name__ == "__main__":``.

import joblib
from distributed import Client, SubprocessCluster

with SubprocessCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
    client.wait_for_workers(2)
    client.run(torch.set_num_threads, 1)
    # Scheduler and workers import the package now, as those that have been up for a while would have long ago.
    client.run_on_scheduler(import_module, "skdgp")
    client.run(import_module, "skdgp")
    with joblib.parallel_config(backend="dask"):
        start = time.time()
        search.fit(X, y)

# %%
# What it took
# ------------
# Do the scores agree, and which candidate is best?

import numpy as np
import pandas as pd


def table_of_fits(search, start):
    """A row per fit: candidate, process, threads, seconds from and to, log loss."""
    names = ["process", "threads", "neg_log_loss", "started", "stopped"]
    folds = [{name: search.cv_results_[f"split{fold}_test_{name}"] for name in names} for fold in range(2)]
    table = pd.concat([pd.DataFrame(fold) for fold in folds], keys=range(2), names=["fold", "candidate"]).reset_index()
    return table.assign(loss=-table.neg_log_loss, started=table.started - start, stopped=table.stopped - start)


tables = {"one core": table_of_fits(alone, alone_start), "cluster": table_of_fits(search, start)}
print(f"{'':<12}{'processes':>10}{'threads each':>14}{'seconds':>9}")
for name, fits in tables.items():
    print(f"{name:<12}{fits.process.nunique():>10}{fits.threads.max():>14.0f}{fits.stopped.max():>9.1f}")
difference = (tables["one core"].loss - tables["cluster"].loss).abs().max()
print(f"Largest difference between the {len(fits)} scores: {difference:.1e}")

X_test, y_test = make_letters(2000, random_state=1)
loss = log_loss(y_test, search.predict_proba(X_test))
print(f"Best: {search.best_params_}, log loss {-search.best_score_:.3f} in the search, {loss:.3f} on other points")

# %%
# Who fitted what, and when
# -------------------------
# Left, the candidates, the best of them outlined. Right, a lane for each process and a bar for each fit, in the colour
# of its own log loss. A worker takes the next fit as soon as it is done with one.

import matplotlib.pyplot as plt

fig, (left, right) = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=(1, 2.2), layout="constrained")
cmap, norm = plt.get_cmap("YlGnBu_r"), plt.Normalize(fits.loss.min(), fits.loss.max())

losses = -search.cv_results_["mean_test_neg_log_loss"].reshape(3, 3)
left.imshow(losses, cmap=cmap, norm=norm, aspect="auto")
for (row, column), loss in np.ndenumerate(losses):
    colour = "white" if norm(loss) < 0.6 else "black"
    left.text(column, row, f"{loss:.2f}", ha="center", va="center", color=colour, fontsize=13)
row, column = np.unravel_index(search.best_index_, losses.shape)
left.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=2.5))
left.set(
    xticks=range(3),
    xticklabels=n_inducing,
    xlabel="inducing points of each layer",
    title=f"Log loss: {losses.min():.2f} at best",
)
left.set(yticks=range(3), yticklabels=["3 layers", "2 layers", "1 layer"])

lanes = {"one core": tables["one core"]}
lanes |= {f"worker {number + 1}": lane for number, (_, lane) in enumerate(fits.groupby("process"))}
for name, lane in lanes.items():
    edges = np.where(lane.candidate == search.best_index_, "black", "white")
    width = lane.stopped - lane.started
    right.barh(name, width, left=lane.started, height=0.75, color=cmap(norm(lane.loss)), edgecolor=edges, linewidth=1.5)
right.invert_yaxis()
right.set(xlabel="seconds since the search began")
took = [table.stopped.max() for table in tables.values()]
right.set_title(f"{took[0]:.0f} seconds on one core, {took[1]:.0f} on two workers")
plt.show()
