"""Searching for a deep GP: a table with words and gaps in it, scikit-learn's pipeline and two of its searches.

Six hundred houses, of which some lack the year they were built in or what heats them. How deep, how wide and with
which of its rules should a deep GP predict their prices? ``GridSearchCV`` trains every candidate in full.
``HalvingGridSearchCV`` trains all of them for a few epochs and gives three times as many to the best third, again and
again: that takes a third of the time, and favours what learns fast, such as a shallow model. Both compare candidates by
the CRPS, an error of distributions in units of the price. For speed, all are single models and not ensembles.
"""

import argparse
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.impute import SimpleImputer
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, KFold, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skdgp import AVDGPRegressor
from skdgp.metrics import crps_scorer

try:
    from sklearn.callback import ProgressBar
except ImportError:  # scikit-learn < 1.9
    ProgressBar = None

BLUE, GREY = "#0b5fa5", "#8a8a8a"
CRPS_TICKS = (20, 30, 40, 60, 80)
PRICE_PER_METRE = {"old town": 4.2, "hills": 3.9, "harbour": 3.6, "suburb": 2.6}
DEEP = [(4,), (16,), (4, 4), (16, 4)]
GRID = [{"model__hidden_dims": [()]}, {"model__hidden_dims": DEEP, "model__rule": ["ar1", "ar2p"]}]  # () has no rule
FACTOR = 3  # of the halving, which has three rounds


def make_houses(n_houses, random_state):
    """A table of houses, a tenth of its years and heatings missing, and prices in thousands."""
    rng = np.random.default_rng(random_state)
    district = rng.choice(list(PRICE_PER_METRE), n_houses, p=[0.2, 0.2, 0.2, 0.4])
    heating = rng.choice(["gas", "heat pump", "oil"], n_houses, p=[0.5, 0.3, 0.2])
    area = rng.gamma(8, 14, n_houses).clip(35, 300)
    year = rng.integers(1880, 2025, n_houses)
    station = rng.uniform(0, 4, n_houses)
    # These three say nothing about the price.
    number, month, floors = (rng.integers(1, most + 1, n_houses) for most in (200, 12, 4))

    age = (2024 - year) / 144
    charm = np.where(district == "old town", 0.5 * age**2, -0.35 * age)  # only there does age add to the price
    near = np.where(district == "hills", 0, 0.35 * np.exp(-station / 0.8))
    price = np.array([PRICE_PER_METRE[name] for name in district]) * area * (1 + charm + near)
    price = price + 25 * (heating == "heat pump") - 20 * (heating == "oil")
    price *= np.exp(0.04 * rng.standard_normal(n_houses))

    missing = rng.uniform(size=(2, n_houses)) < 0.1
    houses = {"district": district, "heating": np.where(missing[0], None, heating), "area": area, "station": station}
    houses |= {"year": np.where(missing[1], np.nan, year), "number": number, "month": month, "floors": floors}
    return pd.DataFrame(houses), price


def make_model(regressor):
    """A regressor behind the preparation that the table needs. A missing heating is a category of its own."""
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    prepare = make_column_transformer(
        (words, make_column_selector(dtype_exclude="number")), (numbers, make_column_selector(dtype_include="number"))
    )
    return Pipeline([("prepare", prepare), ("model", regressor)])


def make_searches(model, max_iter):
    """The full grid, and the halving, whose last round trains for as many epochs."""
    common = {"scoring": crps_scorer, "cv": KFold(3, shuffle=True, random_state=0)}
    epochs = {"resource": "model__max_iter", "min_resources": max_iter // FACTOR**2, "max_resources": max_iter}
    return {
        "grid": GridSearchCV(clone(model).set_params(model__max_iter=max_iter), GRID, **common),
        "halving": HalvingGridSearchCV(model, GRID, factor=FACTOR, **epochs, **common),
    }


def run(search, X, y, show_progress):
    """Fit; seconds that it took."""
    if show_progress and ProgressBar is not None:
        search.set_callbacks(ProgressBar(max_propagation_depth=0))
    start = time.perf_counter()
    search.fit(X, y)
    return time.perf_counter() - start


def describe(params):
    """A candidate in a few words, such as "16, 4: ar2p"."""
    dims = ", ".join(map(str, params["model__hidden_dims"]))
    return f"{dims}: {params['model__rule']}" if dims else "shallow"


def error_table(search):
    """A row per candidate and round: CRPS, mean and standard error over folds, and the epochs it was trained for."""
    table = pd.DataFrame(search.cv_results_)
    epochs = table["n_resources"] if "n_resources" in table else search.estimator.get_params()["model__max_iter"]
    error = table["std_test_score"] / np.sqrt(search.n_splits_ - 1)
    names = table["params"].map(describe)
    return pd.DataFrame({"name": names, "crps": -table["mean_test_score"], "error": error, "epochs": epochs})


def print_results(searches, seconds, baseline, X, y):
    """What each search found, what it cost, and how good its winner is on other houses."""
    print(f"{'':<16}{'best candidate':<16}{'epochs':>8}{'seconds':>9}{'CRPS in search':>16}{'on other houses':>17}")
    for name, search in searches.items():
        epochs = error_table(search).epochs.sum() * search.n_splits_
        found = f"{describe(search.best_params_):<16}{epochs:>8}{seconds[name]:>9.1f}{-search.best_score_:>16.1f}"
        print(f"{name:<16}{found}{-crps_scorer(search, X, y):>17.1f}")
    print(f"{'Bayesian ridge':<65}{-crps_scorer(baseline, X, y):>17.1f}")


def plot_grid(ax, search):
    """Candidates of the grid, best first."""
    table = error_table(search).sort_values("crps", ascending=False)
    rows = np.arange(len(table))
    ax.errorbar(table.crps, rows, xerr=table.error, fmt="o", color=GREY, ecolor="#c9c9c9", elinewidth=2, markersize=7)
    ax.plot(table.crps.iloc[-1], rows[-1], "o", color=BLUE, markersize=10, zorder=3)
    ax.set_xscale("log")
    ax.set_xticks(CRPS_TICKS, CRPS_TICKS)
    ax.set(yticks=rows, yticklabels=table.name, xlabel="CRPS (thousands), mean over folds ± standard error")
    ax.set_title("Grid: every candidate in full")
    ax.minorticks_off()
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#eeeeee")
    ax.set_axisbelow(True)


def plot_halving(ax, search):
    """Candidates over the rounds of the halving."""
    table = error_table(search)
    best = describe(search.best_params_)
    rounds = sorted(table.epochs.unique())
    for name, path in table.groupby("name"):
        style = {"color": BLUE, "linewidth": 2.5, "zorder": 3} if name == best else {"color": GREY, "linewidth": 1.2}
        ax.plot(path.epochs, path.crps, "o-", markersize=7 if name == best else 5, **style)
    for name, path in table[table.epochs > rounds[0]].groupby("name"):
        place, color = (path.epochs.iloc[-1], path.crps.iloc[-1]), BLUE if name == best else GREY
        ax.annotate(name, place, (6, 5), color=color, textcoords="offset points")
    ax.set_yscale("log")
    ax.set_yticks(CRPS_TICKS, CRPS_TICKS)
    counts = table.groupby("epochs").size()
    ax.set_xscale("log")
    ax.set_xticks(rounds, [f"{epochs} epochs\n{counts[epochs]} of {counts.max()}" for epochs in rounds])
    ax.minorticks_off()
    ax.set_xlim(0.8 * rounds[0], 2.2 * rounds[-1])
    ax.set(
        xlabel="Candidates in each round", ylabel="CRPS (thousands)", title="Halving: more epochs for fewer candidates"
    )
    ax.grid(axis="y", color="#eeeeee")
    ax.set_axisbelow(True)


def plot(searches, path):
    """Save the picture."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(1, 2, figsize=(12.5, 5), layout="constrained")
        plot_grid(axes[0], searches["grid"])
        plot_halving(axes[1], searches["halving"])
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Search, score, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_search.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()

    X, y = make_houses(120 if args.quick else 600, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0)
    model = make_model(AVDGPRegressor(n_estimators=1, n_samples=8, random_state=0))
    searches = make_searches(model, max_iter=9 if args.quick else 45)
    show_progress = sys.stdout.isatty() and not args.quick
    seconds = {name: run(search, X_train, y_train, show_progress) for name, search in searches.items()}

    baseline = make_model(BayesianRidge()).fit(X_train, y_train)
    print_results(searches, seconds, baseline, X_test, y_test)
    plot(searches, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
