"""
Searching for a deep GP in a pipeline
=====================================

How many layers should a deep Gaussian process (GP) have to predict the prices of houses, and how wide should they be?
There are six hundred houses. For some, the year of construction or the kind of heating is missing. The estimators of
this package work in scikit-learn's pipelines and searches. This example runs two searches over the same candidates, a
thorough one and a quick one. Do they agree? And was the search worth its time, or do the defaults predict as well?
"""

# %%
# The data: houses and their prices
# ---------------------------------
# The table has words and numbers. A tenth of the years and a tenth of the heatings are missing. Three columns say
# nothing about the price: ``number``, ``month`` and ``floors``.

# sphinx_gallery_thumbnail_number = 0
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split


def make_houses(n_houses, random_state):
    """A table of houses, and their prices in thousands."""
    rng = np.random.default_rng(random_state)
    per_metre = {"old town": 4.2, "hills": 3.9, "harbour": 3.6, "suburb": 2.6}
    district = rng.choice(list(per_metre), n_houses, p=[0.2, 0.2, 0.2, 0.4])
    heating = rng.choice(
        ["gas", "heat pump", "oil"], n_houses, p=[0.5, 0.3, 0.2]
    )
    area = rng.gamma(8, 14, n_houses).clip(35, 300)
    year = rng.integers(1880, 2025, n_houses)
    station = rng.uniform(0, 4, n_houses)
    number, month, floors = (
        rng.integers(1, most + 1, n_houses) for most in (200, 12, 4)
    )

    age = (2024 - year) / 144
    # Age adds to the price in the old town only.
    charm = np.where(district == "old town", 0.5 * age**2, -0.35 * age)
    near = np.where(district == "hills", 0, 0.35 * np.exp(-station / 0.8))
    price = (
        np.array([per_metre[name] for name in district])
        * area
        * (1 + charm + near)
    )
    price = price + 25 * (heating == "heat pump") - 20 * (heating == "oil")
    price *= np.exp(0.04 * rng.standard_normal(n_houses))

    missing = rng.uniform(size=(2, n_houses)) < 0.1
    houses = {
        "district": district,
        "heating": np.where(missing[0], None, heating),
        "area": area,
        "station": station,
    }
    houses |= {
        "year": np.where(missing[1], np.nan, year),
        "number": number,
        "month": month,
        "floors": floors,
    }
    return pd.DataFrame(houses), price


X, y = make_houses(600, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=1 / 3, random_state=0
)
print(X_train.head().round(1).to_string())

# %%
# The pipeline
# ------------
# The first step encodes the table. Words become columns of zeros and ones, and a missing heating is a category of its
# own. Missing years are filled with the mean year, and an extra column marks them. The estimators of this package also
# take such columns as they are (:doc:`/tables`). This example encodes them to show a search over a pipeline, and
# because a linear model, with which we compare, needs columns of numbers.
#
# The second step is the deep GP. It standardises the features and the prices itself. By default it is an ensemble; here
# it is a single model, to save time. By default its predictions are also mixed with those of a simpler GP, the *base*.
# This would make the candidates much alike, so we leave the base out. The correction by the nearest training rows is
# left out, too.

import warnings

from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from skdgp import AVDGPRegressor

# Three epochs are too few, and fits warn of it.
warnings.filterwarnings("ignore", category=ConvergenceWarning)

prepare = make_column_transformer(
    (
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
        make_column_selector(dtype_exclude="number"),
    ),
    (
        SimpleImputer(add_indicator=True),
        make_column_selector(dtype_include="number"),
    ),
)
deep_gp = AVDGPRegressor(
    n_estimators=1,
    n_samples=8,
    max_iter=27,
    base=None,
    n_neighbors=0,
    random_state=0,
)
pipeline = Pipeline([("prepare", prepare), ("model", deep_gp)])

# %%
# Nine candidates
# ---------------
# A deep GP is a chain of layers. ``hidden_dims`` has the widths of all layers but the last. So ``()`` is a *shallow*
# GP, with one layer.
#
# We compare the candidates by the continuous ranked probability score (CRPS), an error of whole predicted distributions
# in the units of the price; lower is better. ``GridSearchCV`` trains all candidates for 27 epochs.
# ``HalvingGridSearchCV`` first trains all of them for 3 epochs. Then it trains the best third for 9, and the best one
# of these for 27.

from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, KFold

from skdgp.metrics import crps_scorer

widths = [(), (2,), (4,), (8,), (16,), (4, 2), (8, 4), (16, 4), (16, 8)]
grid = {"model__hidden_dims": widths}
common = {
    "scoring": crps_scorer,
    "cv": KFold(3, shuffle=True, random_state=0),
    "n_jobs": -1,
}
epochs = {
    "resource": "model__max_iter",
    "min_resources": 3,
    "max_resources": 27,
    "factor": 3,
}
searches = {
    "grid": GridSearchCV(pipeline, grid, **common),
    "halving": HalvingGridSearchCV(pipeline, grid, **epochs, **common),
}

# %%
# Two winners
# -----------
# Each search fits its winner once more, to all houses of the search. We score the winners on other houses, together
# with a linear model in the same pipeline, and with the same estimator as it comes: with its defaults, on the data
# frame as it is.

from time import perf_counter

from sklearn.linear_model import BayesianRidge

tables = {}
print(
    f"{'':<16}{'best candidate':<16}{'epochs':>8}{'seconds':>9}"
    f"{'CRPS in search':>16}{'on other houses':>17}"
)
for name, search in searches.items():
    start = perf_counter()
    search.fit(X_train, y_train)
    seconds = perf_counter() - start
    table = tables[name] = pd.DataFrame(search.cv_results_)
    table["epochs"] = table.get("n_resources", deep_gp.max_iter)
    table["crps"] = -table.mean_test_score
    table["name"] = [
        str(candidate["model__hidden_dims"]) for candidate in table.params
    ]
    best, cost = (
        table.name[search.best_index_],
        search.n_splits_ * table.epochs.sum(),
    )
    print(
        f"{name:<16}{best:<16}{cost:>8}{seconds:>9.1f}"
        f"{-search.best_score_:>16.1f}",
        end="",
    )
    print(f"{-crps_scorer(search, X_test, y_test):>17.1f}")

linear = Pipeline([("prepare", prepare), ("model", BayesianRidge())]).fit(
    X_train, y_train
)
default = AVDGPRegressor(random_state=0).fit(X_train, y_train)
for name, model in {"Bayesian ridge": linear, "defaults": default}.items():
    print(f"{name:<65}{-crps_scorer(model, X_test, y_test):>17.1f}")

# %%
# Both searches predict far better than the linear model. But the defaults are better still, and needed no search. The
# data choose there, too: held-out rows decide how much the deep GP counts and how much its base (``base_weight_``). So
# begin with the defaults. A search pays if you have time for many candidates, and if the base is among them.

best_crps = min(
    -crps_scorer(search, X_test, y_test) for search in searches.values()
)
assert best_crps < -crps_scorer(linear, X_test, y_test) / 1.5
assert -crps_scorer(default, X_test, y_test) < best_crps
print(f"Weight of the base with the defaults: {default.base_weight_:.2f}")

# %%
# What happened in the searches
# -----------------------------
# Left: the candidates of the grid, with the best one at the top. Right: the candidates of the halving search. Each has
# a line from round to round as long as it stays in the search. The halving search needs a third of the epochs. But it
# prefers candidates that learn fast, and these are not always the best in the end. The titles say which candidate has
# won.

import matplotlib.pyplot as plt

blue, grey = "#0b5fa5", "#8a8a8a"
ticks = (20, 30, 40, 60, 80)
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")

table = tables["grid"].sort_values("crps", ascending=False)
error = table.std_test_score / np.sqrt(searches["grid"].n_splits_ - 1)
colours = [grey] * (len(table) - 1) + [blue]
left.hlines(
    table.name,
    table.crps - error,
    table.crps + error,
    color=colours,
    alpha=0.4,
    linewidth=3,
)
left.scatter(table.crps, table.name, s=60, color=colours, zorder=3)
left.set(
    xscale="log", xlabel="CRPS (thousands), mean over folds ± standard error"
)
left.set_xticks(ticks, ticks)
left.set_title(f"Grid: {table.name.iloc[-1]} wins")
left.grid(axis="x", color="#eeeeee")

table, best = (
    tables["halving"],
    tables["halving"].name[searches["halving"].best_index_],
)
for name, rounds in table.groupby("name"):
    style = (
        {"color": blue, "linewidth": 2.5, "zorder": 3}
        if name == best
        else {"color": grey, "linewidth": 1.2}
    )
    right.plot(rounds.epochs, rounds.crps, "o-", **style)
    if len(rounds) > 1:
        end = (rounds.epochs.iloc[-1], rounds.crps.iloc[-1])
        others = table.crps[(table.epochs == end[0]) & (table.name != best)]
        # Labels must not overlap.
        height = -12 if name != best and end[1] < others.max() else 4
        right.annotate(
            name,
            end,
            (7, height),
            color=style["color"],
            textcoords="offset points",
        )
counts = table.groupby("epochs").size()
right.set(
    xscale="log",
    yscale="log",
    xlim=(0.8 * counts.index[0], 2.2 * counts.index[-1]),
)
right.set_xticks(
    counts.index,
    [
        f"{epochs} epochs\n{count} of {counts.max()}"
        for epochs, count in counts.items()
    ],
)
right.set_yticks(ticks, ticks)
right.set(
    xlabel="candidates in each round",
    ylabel="CRPS (thousands)",
    title=f"Halving: {best} wins",
)
right.grid(axis="y", color="#eeeeee")
for ax in (left, right):
    ax.minorticks_off()
    ax.set_axisbelow(True)
plt.show()
