"""
Choosing: deep GP, boosting, or NGBoost?
========================================

Which model should predict a number, and say how certain it is? No model is best everywhere. This example compares three
kinds of models: deep Gaussian processes (GPs), boosted trees, and NGBoost, which boosts a mean and a standard deviation
together. There are three problems. How far a robot's arm reaches is a smooth function. What a parcel costs changes in
steps. How long a delivery takes is uncertain, and the spread is as interesting as the mean.
"""

# %%
# Three problems
# --------------
# We generate all data, so that the true mean and the true standard deviation of every row are known.
#
# * The arm has four joints. The features are their angles, in radians.
# * The price of a parcel depends on its zone and on its weight, and is the same within a bracket of weights. Parcels of
#   2.5 kilograms or more cost extra at weekends. The scales round to half kilograms.
# * Deliveries take longer in rush hours. How much longer is hard to predict, most of all over a long distance.

# sphinx_gallery_thumbnail_number = 0
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
n, n_train = 3000, 1500
arms = pd.DataFrame(
    rng.uniform(-2, 2, (n, 4)), columns=["shoulder", "elbow", "wrist", "hand"]
)
parcels = pd.DataFrame(
    {
        "zone": pd.Categorical(rng.integers(16, size=n)),
        "kilograms": rng.uniform(0, 20, n).round() / 2,
        "day": pd.Categorical(rng.integers(7, size=n)),
    }
)
deliveries = pd.DataFrame(
    {
        "distance": rng.uniform(1, 20, n),
        "hour": rng.uniform(6, 22, n),
        "stops": rng.integers(1, 6, n),
    }
)
basic_prices = rng.uniform(3, 12, 16)


def reach(X):
    gripper = np.exp(1j * X.cumsum(axis=1)) @ [
        0.4,
        0.3,
        0.2,
        0.15,
    ]  # in the complex plane, metres
    return np.abs(gripper), np.full(len(X), 0.01)


def price(X):
    bracket = np.digitize(X["kilograms"], [0.5, 1, 2.5, 5, 7.5])
    weekend = 4 * (X["day"].astype(int) >= 5) * (bracket >= 3)
    return basic_prices[X["zone"].astype(int)] * (
        1 + 0.35 * bracket
    ) + weekend, np.full(len(X), 0.3)


def duration(X):
    rush = np.exp(-((X["hour"] - 8) ** 2) / 2) + np.exp(
        -((X["hour"] - 17.5) ** 2) / 3
    )
    return 4 + 2 * X["distance"] + 3 * X["stops"] + 6 * rush, (
        0.5 + 0.25 * X["distance"]
    ) * (0.4 + 1.6 * rush)


problems = {
    "Reach, m": (arms, reach),
    "Price, €": (parcels, price),
    "Duration, min": (deliveries, duration),
}

# %%
# The first half of the rows is for training, and the second half is for testing. For the pictures, each problem also
# has a *cut*: the first test row, many times over, with one feature that runs from its smallest to its largest value.

features = {
    "Reach, m": "elbow",
    "Price, €": "kilograms",
    "Duration, min": "hour",
}
train, test, cuts = {}, {}, {}
for problem, (X, truth) in problems.items():
    mean, std = truth(X)
    y = mean + std * rng.standard_normal(n)
    train[problem], test[problem] = (
        (X[:n_train], y[:n_train]),
        (X[n_train:], y[n_train:]),
    )
    feature = features[problem]
    cuts[problem] = X.iloc[np.full(200, n_train)].assign(
        **{feature: np.linspace(X[feature].min(), X[feature].max(), 200)}
    )
    print(
        f"{problem:<14} mean {mean.min():4.1f} to {mean.max():4.1f}, std "
        f"{std.min():5.2f} to {std.max():5.2f}"
    )

# %%
# Three ways to predict a distribution
# ------------------------------------
# * *Deep GP*: by default the noise is the same for all rows. With ``objective="predictive"`` training maximises the
#   density that predictions give to the targets. ``beta`` is the weight of a penalty. With a small ``beta`` the model
#   is free to follow noise that changes from row to row.
# * *Boosted trees* predict a mean only. They need a standard deviation in addition. A common choice is that of the
#   cross-validated residuals, for all rows the same.
# * *NGBoost* predicts a mean and a standard deviation for each row.
#
# Boosted trees take the categories as they are. The other models get a column of zeros and ones for each category
# value. NGBoost needs these columns. The deep GP would take categories as they are, too (:doc:`/tables`). It gets the
# same columns as NGBoost here, so that both learn from the same features.
#
# To save time, the deep GP is a single model instead of an ensemble, and learns for at most 50 epochs. The
# other models have their default settings.

from ngboost import NGBRegressor
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from skdgp import AVDGPRegressor, PredictiveDistribution
from skdgp.metrics import predictive_distribution

categories = make_column_selector(dtype_include="category")
indicators = make_column_transformer(
    (OneHotEncoder(sparse_output=False), categories), remainder="passthrough"
)


def deep_gp(X, y, X_test):
    model = AVDGPRegressor(
        objective="predictive",
        beta=1.0,
        mean="identity",
        n_estimators=1,
        n_samples=8,
        max_iter=50,
        random_state=0,
    )
    return predictive_distribution(
        make_pipeline(clone(indicators), model).fit(X, y), X_test
    )


def boosted_trees(X, y, X_test):
    model = HistGradientBoostingRegressor(random_state=0)
    std = np.std(y - cross_val_predict(model, X, y))
    return PredictiveDistribution.gaussian(
        model.fit(X, y).predict(X_test), np.full(len(X_test), std)
    )


def ngboost(X, y, X_test):
    columns = clone(indicators).fit(X)
    normal = (
        NGBRegressor(verbose=False, random_state=0)
        .fit(columns.transform(X), y)
        .pred_dist(columns.transform(X_test))
    )
    return PredictiveDistribution.gaussian(normal.loc, normal.scale)


models = {
    "Deep GP": deep_gp,
    "Boosted trees": boosted_trees,
    "NGBoost": ngboost,
}

# %%
# Scores
# ------
# The root mean squared error (RMSE) judges the means only. The continuous ranked probability score (CRPS) judges whole
# distributions, in the unit of the target. It is small if the probability lies where the target is, and is not spread
# more widely than necessary. Coverage is the share of test rows inside their 90 % intervals, and 90 % is right. "The
# truth" has the scores of the true distribution, the best that a model can hope for. The seconds are those of a fit and
# its predictions, on one core.

import time

from joblib import Parallel, delayed

from skdgp.metrics import coverage, crps


def timed(fit_and_predict, *args):
    start = time.perf_counter()
    return fit_and_predict(*args), time.perf_counter() - start


rows = {
    problem: pd.concat([test[problem][0], cuts[problem]])
    for problem in problems
}
tasks = [(problem, name) for name in models for problem in problems]
results = Parallel(n_jobs=-1)(
    delayed(timed)(models[name], *train[problem], rows[problem])
    for problem, name in tasks
)
predictions = dict(zip(tasks, results, strict=True))

scores = {}
for problem, (_, truth) in problems.items():
    y_test = test[problem][1]
    predictions[problem, "The truth"] = (
        PredictiveDistribution.gaussian(*truth(rows[problem])),
        0.0,
    )
    for name in (*models, "The truth"):
        dist, seconds = (
            predictions[problem, name][0][: len(y_test)],
            predictions[problem, name][1],
        )
        rmse, covered = (
            np.sqrt(np.mean((y_test - dist.mean) ** 2)),
            100 * coverage(y_test, *dist.interval(0.9)),
        )
        scores[problem, name] = {
            "RMSE": rmse,
            "CRPS": crps(y_test, dist),
            "coverage, %": covered,
            "seconds": seconds,
        }
scores = pd.DataFrame(scores).T
print(
    scores.to_string(
        formatters={"RMSE": "{:.4f}".format, "CRPS": "{:.4f}".format},
        float_format="%.1f",
    )
)
best = scores["CRPS"].unstack().drop(columns="The truth").idxmin(axis=1)
print(
    "\nBest CRPS: "
    + "; ".join(
        f"{problem.split(',')[0]}, {name}" for problem, name in best.items()
    )
)

smooth, steps, spread = (scores["CRPS"][problem] for problem in problems)
assert smooth["Deep GP"] < 0.6 * min(smooth[["Boosted trees", "NGBoost"]])
assert max(steps[["Deep GP", "Boosted trees"]]) < 0.5 * steps["NGBoost"]
assert spread["Deep GP"] < spread["NGBoost"] < spread["Boosted trees"]

# %%
# Predictions along one feature
# -----------------------------
# The models have two lines each, the lower and the upper ends of their 90 % intervals. The grey area is the true
# interval. Trees can only make steps, and both boosted trees and NGBoost consist of trees. They follow the steps of the
# tariff, but they also turn the smooth reach of the arm into stairs. The deep GP follows the smooth reach, rounds off
# the steps of the tariff a little, and waves between half kilograms, where there are no rows. Boosted trees have
# intervals of the same width for all rows. For deliveries these are too wide at noon, and too narrow in the rush hours.

import matplotlib.pyplot as plt

colours = {
    "Deep GP": "#0b5fa5",
    "Boosted trees": "#c8762b",
    "NGBoost": "#5f8f4e",
}
fig, axes = plt.subplots(1, 3, figsize=(13, 4.6), layout="constrained")
for ax, problem in zip(axes, problems, strict=True):
    x = cuts[problem][features[problem]]
    ends = {
        name: predictions[problem, name][0][-len(x) :].interval(0.9)
        for name in ("The truth", *colours)
    }
    ax.fill_between(
        x, *ends["The truth"], color="#cfcfcf", linewidth=0, label="The truth"
    )
    for name, colour in colours.items():
        ax.plot(
            x,
            np.transpose(ends[name]),
            color=colour,
            linewidth=1.3,
            label=[name, None],
        )
    ax.set(
        xlabel=features[problem],
        ylabel=problem,
        title=f"Best CRPS: {best[problem]}",
    )
axes[0].legend(frameon=False)
plt.show()

# %%
# Advice
# ------
# For data like these, the scores lead to the following advice:
#
# ===============================================  ===================================================================
# Your target                                      Try first
# ===============================================  ===================================================================
# Is a smooth function of numbers that interact    a deep GP
# Changes in steps, or depends on many categories  both: here they are close, and trees are quicker
# Varies more for some rows than for others        a deep GP with ``objective="predictive"``, or NGBoost
# Is needed quickly                                boosted trees
# ===============================================  ===================================================================
#
# If a model follows the noise, its intervals may be too narrow. So look at their coverage.
# :doc:`/gallery/plot_conformal` shows how to correct intervals. :doc:`/which_estimator` helps you to choose among the
# estimators of this package.
