"""
What the nearest rows still know
================================

A deep Gaussian process (GP) learns functions that bend; boosted trees learn tables that jump. Rents of a town do both.
They fall smoothly with the distance from its centre, and every block has a level of its own, which no map of the
features announces. Regressors therefore look at what they leave over at the nearest training rows, and correct
themselves if that helps. When does it, and what does it cost?
"""

# %%
# Three towns
# -----------
# In the first one rents are smooth. In the second each of 625 blocks has a level of its own. In the third flats are
# listed several times, with the same features and nearly the same rent. 4000 rows each, and 1000 new ones.

import numpy as np


def make_town(kind, n_flats, random_state):
    """Places of flats in a square of ten kilometres, and their rents."""
    rng = np.random.default_rng(random_state)
    X = rng.uniform(0, 10, (n_flats, 2))
    level = np.random.default_rng(7).normal(size=(25, 25))
    if kind == "repeats":
        X = X[rng.integers(n_flats // 3, size=n_flats)]
    rent = 15 - 0.9 * np.hypot(X[:, 0] - 5, X[:, 1] - 5) + np.sin(X[:, 0])
    if kind == "blocks":
        column, row = (2.5 * X).astype(int).T
        rent = rent + level[row, column]
    if kind == "repeats":  # what a flat is worth beyond its place
        rent = rent + np.sin(1e4 * X[:, 0]) + np.cos(1e4 * X[:, 1])
    return X, rent + 0.2 * rng.normal(size=n_flats)


towns = {kind: make_town(kind, 5000, random_state=0) for kind in ("smooth", "blocks", "repeats")}

# %%
# With and without neighbours, and trees
# --------------------------------------
# ``n_neighbors="auto"`` is the default. ``neighbors_`` is None where held-out rows gain too little; where they gain, it
# says how much, as log density per row. The score is the mean log density of new rows. Trees predict no deviations, so
# they get a Gaussian of one width from cross-validation.

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

from skdgp import DSDGPRegressor, PredictiveDistribution
from skdgp.metrics import negative_log_predictive_density

models = {}
print(f"{'town':<10}{'model':<22}{'RMSE':>7}{'log density':>13}  gain of held-out rows")
for kind, (X, y) in towns.items():
    X_train, X_test, y_train, y_test = X[:4000], X[4000:], y[:4000], y[4000:]
    trees = HistGradientBoostingRegressor(random_state=0).fit(X_train, y_train)
    width = np.std(y_train - cross_val_predict(trees, X_train, y_train))
    found = {"boosted trees": PredictiveDistribution.gaussian(trees.predict(X_test), np.full(len(X_test), width))}
    for name, n_neighbors in (("deep GP alone", 0), ("deep GP, neighbours", "auto")):
        model = DSDGPRegressor(n_estimators=1, max_iter=20, n_neighbors=n_neighbors, random_state=0)
        models[kind, name] = model.fit(X_train, y_train)
        found[name] = model.predict_dist(X_test)
    for name, dist in found.items():
        rmse = np.sqrt(np.mean((dist.mean - y_test) ** 2))
        density = -negative_log_predictive_density(y_test, dist)
        neighbors = models[kind, name].neighbors_ if (kind, name) in models else None
        gain = "" if neighbors is None else f"{neighbors['gain']:.2f} ± {neighbors['standard_error']:.2f}"
        print(f"{kind:<10}{name:<22}{rmse:>7.2f}{density:>13.2f}  {gain}")

# %%
# A walk through the blocks
# -------------------------
# Along a street of the second town the deep GP alone rounds off every corner, and its interval has to be wide. With
# neighbours it follows the levels. Flats of other blocks are
# among its neighbours too, so that it errs at corners, and where a block has few rows.

import matplotlib.pyplot as plt

street = np.column_stack([np.linspace(0, 10, 600), np.full(600, 4.5)])
level = np.random.default_rng(7).normal(size=(25, 25))
truth = 15 - 0.9 * np.hypot(street[:, 0] - 5, street[:, 1] - 5) + np.sin(street[:, 0])
truth = truth + level[11, (2.5 * street[:, 0]).clip(0, 24).astype(int)]
fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, name, color in zip(axes, ("deep GP alone", "deep GP, neighbours"), ("#8a8a8a", "#0b5fa5"), strict=True):
    model = models["blocks", name]
    low, high = model.predict_interval(street, 0.9).T
    ax.fill_between(street[:, 0], low, high, color=color, alpha=0.25, linewidth=0)
    ax.plot(street[:, 0], model.predict(street), color=color, linewidth=2)
    ax.plot(street[:, 0], truth, color="black", linewidth=1)
    ax.set(title=name, xlabel="kilometres along the street")
axes[0].set_ylabel("rent, with 90 % intervals")
plt.show()

# %%
# What it costs
# -------------
# The estimator keeps its training rows, at most 50 000. So it is larger, and whoever has the file has the rows.
# ``n_neighbors=0`` leaves them out.

import pickle

for name in ("deep GP alone", "deep GP, neighbours"):
    print(f"{name:<22}{len(pickle.dumps(models['blocks', name])) / 1e3:>8.0f} kB")

# %%
# Where rents are smooth nothing is gained, and nothing is taken. In a town of blocks, or of repeats, most of what was
# noise to the smooth model is known next door.
