"""
A search on a cluster
=====================

A search fits many models that do not depend on each other. Can other processes, or other machines, do a part of the
work, and do the scores stay the same? This example searches for a deep Gaussian process (GP) twice. First it uses one
core. Then it uses the workers of a `dask <https://distributed.dask.org>`_ cluster, which takes one more line. Two
processes of this machine stand in for a real cluster; :doc:`/scale` says how to connect to one.
"""

# %%
# A search with 18 fits
# ---------------------
# The rows are points of a square. Each lies inside one of the letters D, G and P, or outside of them. A deep GP is a
# chain of layers. :class:`~skdgp.DSDGPClassifier` summarises each layer by its values at some places, the *inducing
# points*. How many layers does it need to recognise the letters, and how many inducing points in each layer? Nine
# candidates and two folds make 18 fits.
#
# The search keeps all numbers that its scorer returns. One of them is minus the log loss, by which the search chooses.
# The others say which process fitted the model, with how many threads, and from when to when.

# sphinx_gallery_thumbnail_number = 0
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
    """A classifier that notes when its fit began."""

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


X, y = make_letters(1000, random_state=0)
# The longest fits come first. Otherwise, one worker might have to wait for the
# other at the end.
hidden_dims, n_inducing = [(2, 2), (2,), ()], [24, 48, 96]
params = {
    "n_estimators": 1,
    "n_samples": 4,
    "batch_size": 200,
    "max_iter": 15,
    "learning_rate": 0.1,
    "base": None,
}
# A base would make all candidates much alike.
model = TimedClassifier(device="cpu", random_state=0, **params)
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
# PyTorch may use one thread only, like each of the workers later.

n_threads = torch.get_num_threads()
torch.set_num_threads(1)
alone = clone(search).set_params(refit=False)
alone_start = time.time()
alone.fit(X, y)
torch.set_num_threads(n_threads)

# %%
# On a cluster
# ------------
# scikit-learn leaves parallel work to joblib, and joblib leaves it to dask if you say so. The workers need not be able
# to import the class and the scorer above, because dask sends their code to them. At the end, this process fits the
# best candidate once more, to all rows.
#
# ``SubprocessCluster`` starts a scheduler and two workers. It does not work on Windows. ``LocalCluster`` works on all
# systems, but its processes read your script again. So everything that these processes should not do must be under
# ``if __name__ == "__main__":``.

import joblib
from distributed import Client, SubprocessCluster

with (
    SubprocessCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as cluster,
    Client(cluster) as client,
):
    client.wait_for_workers(2)
    client.run(torch.set_num_threads, 1)
    # The scheduler and the workers import the package now. Those of a running
    # cluster have done so before.
    client.run_on_scheduler(import_module, "skdgp")
    client.run(import_module, "skdgp")
    with joblib.parallel_config(backend="dask"):
        start = time.time()
        search.fit(X, y)

# %%
# Times and scores
# ----------------
# Do both searches find the same scores, how long do they take, and which candidate is best? The two workers save time
# only if each of them has a core to itself. If other programs keep the machine busy, they may save nothing. That is the
# case where this page was made, since other examples ran at the same time.

import numpy as np
import pandas as pd


def table_of_fits(search, start):
    """A row for each fit: candidate, process, threads, log loss, and the
    seconds when it began and ended."""
    names = ["process", "threads", "neg_log_loss", "started", "stopped"]
    folds = [
        {
            name: search.cv_results_[f"split{fold}_test_{name}"]
            for name in names
        }
        for fold in range(2)
    ]
    table = pd.concat(
        [pd.DataFrame(fold) for fold in folds],
        keys=range(2),
        names=["fold", "candidate"],
    ).reset_index()
    return table.assign(
        loss=-table.neg_log_loss,
        started=table.started - start,
        stopped=table.stopped - start,
    )


tables = {
    "one core": table_of_fits(alone, alone_start),
    "cluster": table_of_fits(search, start),
}
print(f"{'':<12}{'processes':>10}{'threads each':>14}{'seconds':>9}")
for name, fits in tables.items():
    print(
        f"{name:<12}{fits.process.nunique():>10}{fits.threads.max():>14.0f}"
        f"{fits.stopped.max():>9.1f}"
    )
difference = (tables["one core"].loss - tables["cluster"].loss).abs().max()
print(f"Largest difference between the {len(fits)} scores: {difference:.1e}")

assert difference < 1e-6

X_test, y_test = make_letters(2000, random_state=1)
loss = log_loss(y_test, search.predict_proba(X_test))
print(
    f"Best: {search.best_params_}, log loss {-search.best_score_:.3f} in the "
    f"search, {loss:.3f} on test points"
)

# %%
# Who fitted what, and when
# -------------------------
# Left: the log loss of the candidates, with an outline around the best one. Right: each process has a lane, and each
# fit has a bar in the colour of its own log loss. The bars of the best candidate have an outline, too. When a worker is
# done with a fit, it takes the next one.

import matplotlib.pyplot as plt

fig, (left, right) = plt.subplots(
    1, 2, figsize=(13, 4.2), width_ratios=(1, 2.2), layout="constrained"
)
cmap, norm = (
    plt.get_cmap("YlGnBu_r"),
    plt.Normalize(fits.loss.min(), fits.loss.max()),
)

losses = -search.cv_results_["mean_test_neg_log_loss"].reshape(3, 3)
left.imshow(losses, cmap=cmap, norm=norm, aspect="auto")
for (row, column), loss in np.ndenumerate(losses):
    colour = "white" if norm(loss) < 0.4 else "black"
    left.text(
        column,
        row,
        f"{loss:.2f}",
        ha="center",
        va="center",
        color=colour,
        fontsize=13,
    )
row, column = np.unravel_index(search.best_index_, losses.shape)
left.add_patch(
    plt.Rectangle(
        (column - 0.5, row - 0.5),
        1,
        1,
        fill=False,
        edgecolor="black",
        linewidth=2.5,
    )
)
left.set(
    xticks=range(3),
    xticklabels=n_inducing,
    xlabel="inducing points of each layer",
    title=f"Log loss: {losses.min():.2f} at best",
)
left.set(yticks=range(3), yticklabels=["3 layers", "2 layers", "1 layer"])

lanes = {"one core": tables["one core"]}
lanes |= {
    f"worker {number + 1}": lane
    for number, (_, lane) in enumerate(fits.groupby("process"))
}
for name, lane in lanes.items():
    edges = np.where(lane.candidate == search.best_index_, "black", "white")
    width = lane.stopped - lane.started
    right.barh(
        name,
        width,
        left=lane.started,
        height=0.75,
        color=cmap(norm(lane.loss)),
        edgecolor=edges,
        linewidth=1.5,
    )
right.invert_yaxis()
right.set(xlabel="seconds since the search began", xlim=(0, None))
right.set_title(f"{len(fits)} fits, once by one process and once by two")
plt.show()
