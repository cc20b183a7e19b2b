"""
Correcting predictions by the nearest rows
==========================================

When does it help to look at the nearest training rows, and what does it cost? A deep Gaussian process (GP) learns
smooth functions, while boosted trees learn functions that jump. The rents of a town do both. They fall smoothly with
the distance from its centre, and they jump from block to block: every block has a level of its own, which no feature
shows. A deep GP misses most of these levels. So the regressors of this package also look at the *residuals* of the
nearest training rows. A residual is the difference between a row's target and what the model predicts for it. The
regressors correct their predictions by these residuals if it helps.
"""

# %%
# Three towns
# -----------
# In the first town rents are smooth. In the second town each of 625 blocks has a level of its own. In the third town
# flats are listed several times, with the same features and nearly the same rent. Rents are in euros per square metre.
# The town of blocks has 4000 training rows, and the others have 2000. There are 500 new rows of each town.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

levels = np.random.default_rng(7).normal(size=(25, 25))


def true_rent(kind, X):
    """Rents without noise, at places in a square of ten kilometres."""
    rent = 15 - 0.9 * np.hypot(X[:, 0] - 5, X[:, 1] - 5) + np.sin(X[:, 0])
    if kind == "blocks":
        column, row = (2.5 * X).clip(0, 24).astype(int).T
        rent = rent + levels[row, column]
    if kind == "repeats":  # each flat has a value of its own
        rent = rent + np.sin(1e4 * X[:, 0]) + np.cos(1e4 * X[:, 1])
    return rent


def make_town(kind, n_flats, random_state):
    """Places of flats, and their rents."""
    rng = np.random.default_rng(random_state)
    X = rng.uniform(0, 10, (n_flats, 2))
    if kind == "repeats":
        X = X[rng.integers(n_flats // 3, size=n_flats)]
    return X, true_rent(kind, X) + 0.2 * rng.normal(size=n_flats)


sizes = {"smooth": 2500, "blocks": 4500, "repeats": 2500}
towns = {
    kind: make_town(kind, n_flats, random_state=0)
    for kind, n_flats in sizes.items()
}

# %%
# With and without neighbours, and trees
# --------------------------------------
# The default is ``n_neighbors="auto"``: held-out rows decide whether the model uses the correction. If they gain too
# little, the attribute ``neighbors_`` is None. Otherwise it contains the gain, which is how much the correction raises
# their mean log density.
#
# The score of the table is the mean log density of new rows, and greater is better. Trees predict no standard
# deviations. So each row gets a Gaussian with the same standard deviation, which comes from cross-validation.

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

from skdgp import DSDGPRegressor, PredictiveDistribution
from skdgp.metrics import negative_log_predictive_density

models, rmses = {}, {}
print(
    f"{'town':<10}{'model':<22}{'RMSE':>7}{'log density':>13}  gain on "
    "held-out rows"
)
for kind, (X, y) in towns.items():
    X_train, X_test, y_train, y_test = X[:-500], X[-500:], y[:-500], y[-500:]
    trees = HistGradientBoostingRegressor(random_state=0).fit(X_train, y_train)
    width = np.std(y_train - cross_val_predict(trees, X_train, y_train))
    distributions = {
        "boosted trees": PredictiveDistribution.gaussian(
            trees.predict(X_test), np.full(len(X_test), width)
        )
    }
    for name, n_neighbors in (
        ("deep GP alone", 0),
        ("deep GP, neighbours", "auto"),
    ):
        model = DSDGPRegressor(
            n_estimators=1,
            max_iter=20,
            n_neighbors=n_neighbors,
            random_state=0,
        )
        models[kind, name] = model.fit(X_train, y_train)
        distributions[name] = model.predict_dist(X_test)
    for name, dist in distributions.items():
        rmse = np.sqrt(np.mean((dist.mean - y_test) ** 2))
        rmses[kind, name] = rmse
        density = -negative_log_predictive_density(y_test, dist)
        neighbors = (
            models[kind, name].neighbors_ if (kind, name) in models else None
        )
        gain = (
            ""
            if neighbors is None
            else f"{neighbors['gain']:.2f} ± {neighbors['standard_error']:.2f}"
        )
        print(f"{kind:<10}{name:<22}{rmse:>7.2f}{density:>13.2f}  {gain}")

# %%
# A street through the blocks
# ---------------------------
# The picture follows a street of the second town. The black line is the true rent. The deep GP alone rounds off every
# corner, and its interval has to be wide. With neighbours it follows the levels. But some of the nearest flats belong
# to other blocks. So the model is wrong near the corners, and in blocks with few rows.

import matplotlib.pyplot as plt

street = np.column_stack([np.linspace(0, 10, 600), np.full(600, 4.5)])
truth = true_rent("blocks", street)
fig, axes = plt.subplots(
    1, 2, figsize=(10, 4), sharey=True, layout="constrained"
)
for ax, name, color in zip(
    axes,
    ("deep GP alone", "deep GP, neighbours"),
    ("#8a8a8a", "#0b5fa5"),
    strict=True,
):
    model = models["blocks", name]
    low, high = model.predict_interval(street, 0.9).T
    ax.fill_between(
        street[:, 0], low, high, color=color, alpha=0.25, linewidth=0
    )
    ax.plot(street[:, 0], model.predict(street), color=color, linewidth=2)
    ax.plot(street[:, 0], truth, color="black", linewidth=1)
    ax.set(title=name, xlabel="kilometres along the street")
axes[0].set_ylabel("rent (€ per square metre), with 90 % intervals")
plt.show()

# %%
# What it costs
# -------------
# The estimator keeps the features and residuals of the training rows, of at most 50 000. So its file is larger, and
# everyone who has the file has these rows. ``n_neighbors=0`` leaves them out. :doc:`/predictions` lists what else a
# file contains.

import pickle

for name in ("deep GP alone", "deep GP, neighbours"):
    print(
        f"{name:<22}{len(pickle.dumps(models['blocks', name])) / 1e3:>8.0f} kB"
    )

# %%
# If rents are smooth, the model gains nothing by its neighbours and does not use them. In the other two towns it does,
# and the mean squared error falls to about half in the town of blocks, and to a small part in the town of repeats.

alone, corrected = "deep GP alone", "deep GP, neighbours"
ratio = {
    kind: (rmses[kind, corrected] / rmses[kind, alone]) ** 2 for kind in towns
}
print({kind: round(float(share), 2) for kind, share in ratio.items()})
assert models["smooth", corrected].neighbors_ is None
assert ratio["blocks"] < 0.65 and ratio["repeats"] < 0.25
