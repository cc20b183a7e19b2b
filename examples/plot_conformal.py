"""
Conformal intervals: where their promise holds
==============================================

If a model is right, its 90 % intervals contain 90 % of new observations. Is there a promise that holds even if the
model is wrong? Conformal prediction makes one. It takes rows that were kept from training, looks how far off the model
is there, and makes intervals that are wide enough. This example puts three conformal methods of `MAPIE
<https://mapie.readthedocs.io>`_ on top of a deep Gaussian process (GP). It tries them where the promise holds, and
where it does not.
"""

# %%
# The data: rows from three places
# --------------------------------
# The target is a wave on a slope. Its noise grows from left to right. The noise also has heavy tails: now and then a
# target lies far from all others. Most rows are on the left, where the noise is small. There are three sets of test
# rows. They come from the same range as the training rows, from the noisy end of this range, and from beyond it.

# sphinx_gallery_thumbnail_number = 0
import numpy as np


def make_rows(n_rows, low, high, random_state, crowding=1):
    """Inputs (n, 1) and targets (n,); with crowding above 1, there are more
    rows on the left."""
    rng = np.random.default_rng(random_state)
    x = low + (high - low) * rng.beta(1, crowding, n_rows)
    return x[:, None], np.sin(2 * x) + 0.5 * x + (
        0.1 + 0.12 * x
    ) * rng.standard_t(4, size=n_rows)


X_train, y_train = make_rows(400, 0, 6, random_state=0, crowding=2)
X_calibration, y_calibration = make_rows(400, 0, 6, random_state=1, crowding=2)
tests = {
    "same range": make_rows(4000, 0, 6, random_state=2, crowding=2),
    "noisy end": make_rows(4000, 4, 6, random_state=2),
    "beyond": make_rows(4000, 6, 7.5, random_state=2),
}

# %%
# The deep GP's own intervals
# ---------------------------
# ``objective="predictive"`` lets the width of the intervals follow the noise. But the width follows the noise only
# roughly, and the model does not know that the noise has heavy tails. So the model is not quite right, like most
# models. To see what the deep GP itself can do, the mixture with a base and the correction by neighbours are off.

from skdgp import DSDGPRegressor
from skdgp.metrics import coverage

model = DSDGPRegressor(
    objective="predictive",
    beta=10.0,
    n_estimators=1,
    base=None,
    n_neighbors=0,
    random_state=0,
).fit(X_train, y_train)
X_same, y_same = tests["same range"]
covered = coverage(
    y_same, *model.predict_interval(X_same, confidence_level=0.9).T
)
print(f"The deep GP's 90 % intervals contain {100 * covered:.1f} %")
print(f"of {len(y_same)} test rows from the same range")

# %%
# Three conformal methods
# -----------------------
# All of them look at *calibration rows*, which the model has not learnt from. They differ in how they measure an error:
#
# * *Plain* takes errors as they are. So the intervals of all rows have the same width.
# * *Normalised* divides errors by the standard deviation that the deep GP predicts. So an interval is wide where the
#   deep GP's own is wide: the ratio of the two widths is nearly the same in all rows.
# * *Quantiles* is known as conformalized quantile regression. It moves the ends of the deep GP's own intervals, by the
#   same distances in all rows.
#
# MAPIE asks for regressors that predict the standard deviation or a quantile. ``skdgp.adapters`` has classes that make
# such regressors of a fitted model (:doc:`/other_packages`).

from mapie.conformity_scores import ResidualNormalisedScore
from mapie.regression import (
    ConformalizedQuantileRegressor,
    SplitConformalRegressor,
)

from skdgp.adapters import Deviation, Quantile

normalised = ResidualNormalisedScore(Deviation(model), prefit=True)
quantiles = [Quantile(model, quantile) for quantile in (0.05, 0.95, 0.5)]
conformal = {
    "Plain": SplitConformalRegressor(model, confidence_level=0.9, prefit=True),
    "Normalised": SplitConformalRegressor(
        model, confidence_level=0.9, conformity_score=normalised, prefit=True
    ),
    "Quantiles": ConformalizedQuantileRegressor(
        quantiles, confidence_level=0.9, prefit=True
    ),
}
for method in conformal.values():
    method.conformalize(X_calibration, y_calibration)


def predict_intervals(X):
    """90 % intervals (n, 2) of the deep GP and of the three methods, by
    name."""
    made = {
        name: method.predict_interval(X)[1][:, :, 0]
        for name, method in conformal.items()
    }
    return {
        "Deep GP's own": model.predict_interval(X, confidence_level=0.9)
    } | made


# %%
# Coverage
# --------
# The promise is that the intervals cover at least 90 % of new rows, if these come from where the calibration rows came
# from. It holds on average, over rows and over sets of calibration rows. It does not hold for each single input, and
# not for inputs that come from elsewhere.

import pandas as pd

covered, width = pd.DataFrame(), pd.DataFrame()
for place, (X, y) in tests.items():
    for name, ends in predict_intervals(X).items():
        covered.loc[name, place] = 100 * coverage(y, *ends.T)
        width.loc[name, place] = np.ptp(ends, axis=1).mean()
print(
    f"Coverage, %\n{covered.round(1).to_string()}\n\nMean "
    f"width\n{width.round(2).to_string()}"
)

# %%
# In the same range all three methods keep the promise. At the noisy end the plain intervals cover far fewer rows than
# 90 %, because they have one width for all rows. The other two come closer. Beyond the range the deep GP itself is
# wrong. There no method helps, because no calibration rows come from there.

methods = list(conformal)
assert (covered.loc[methods, "same range"] - 90).abs().max() < 2.5
plain, *others = covered.loc[methods, "noisy end"]
assert plain < 75 and min(others) > plain + 5
assert covered.loc[methods, "beyond"].max() < 75

# %%
# Pictures
# --------
# Left: the deep GP's own intervals along x, with the plain and the normalised ones. Right: the coverage from the table
# above.

import matplotlib.pyplot as plt

colours = {
    "Deep GP's own": "#8a8a8a",
    "Plain": "#c8762b",
    "Normalised": "#0b5fa5",
    "Quantiles": "#5f8f4e",
}
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")

grid = np.linspace(0, 7.5, 400)[:, None]
ends = predict_intervals(grid)
rows = {"s": 8, "alpha": 0.45, "linewidth": 0}
left.scatter(
    X_calibration,
    y_calibration,
    color="#333333",
    label="Calibration rows",
    **rows,
)
left.scatter(
    tests["beyond"][0][::20],
    tests["beyond"][1][::20],
    color="#b3261e",
    label="Test rows beyond",
    **rows,
)
left.fill_between(
    grid[:, 0],
    *ends["Deep GP's own"].T,
    color="#8a8a8a",
    alpha=0.25,
    linewidth=0,
    label="Deep GP's own",
)
for name in ("Plain", "Normalised"):
    left.plot(
        grid,
        ends[name],
        color=colours[name],
        linewidth=1.8,
        label=[name, None],
    )
for place, low, high in (("noisy end", 4, 6), ("beyond", 6, 7.5)):
    left.annotate(
        "",
        (low, 9),
        (high, 9),
        arrowprops={"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 0},
    )
    left.text((low + high) / 2, 9.2, place, ha="center")
left.set(
    xlim=(0, 7.5),
    ylim=(-3.5, 10.2),
    xlabel="x",
    ylabel="y",
    title="90 % intervals",
)
left.legend(frameon=False, loc="upper left")

for row, place in enumerate(covered):
    heights = row + 0.17 * (np.arange(len(colours)) - 1.5)
    right.scatter(
        covered.loc[list(colours), place],
        heights,
        s=70,
        color=colours.values(),
        zorder=3,
    )
for name, colour in colours.items():
    right.scatter([], [], s=70, color=colour, label=name)
right.axvline(90, color="#333333", linewidth=1, linestyle=":")
right.set(
    xlim=(0, 100),
    ylim=(len(tests) - 0.5, -0.5),
    yticks=range(len(tests)),
    yticklabels=list(tests),
)
right.set(xlabel="test rows inside their 90 % intervals (%)")
near, beyond = covered.loc["Normalised", ["same range", "beyond"]]
right.set_title(
    f"Normalised covers {near:.0f} % in the same range, {beyond:.0f} % beyond"
)
right.tick_params(axis="y", length=0)
right.legend(frameon=False, loc="upper left")
plt.show()
