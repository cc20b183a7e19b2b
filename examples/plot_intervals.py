"""
Intervals, and what they cannot show
====================================

A strut under load stays straight until the load is critical. Then it buckles, to the left or to the right. How should a
model predict where the strut will be? The mean deflection is a place where no strut is ever found, and an interval
around the mean is mostly empty. A deep Gaussian process (GP) can predict the whole distribution instead. This example
checks what you gain by that.
"""

# %%
# The struts
# ----------
# The data are simulated. Struts stay straight below 5 kN, but they rattle at loads around 2.5 kN. Above 5 kN about two
# in three struts buckle to the right, and the others to the left.

# sphinx_gallery_thumbnail_number = 0
import numpy as np


def make_struts(n_struts, random_state, lightest=0, heaviest=10):
    """Loads (n, 1) in kN and deflections (n,) in mm."""
    rng = np.random.default_rng(random_state)
    load = rng.uniform(lightest, heaviest, n_struts)
    side = np.where(rng.uniform(size=n_struts) < 0.65, 1, -1)
    noise = 0.12 + 0.4 * np.exp(-((load - 2.5) ** 2))
    deflection = 1.1 * side * np.sqrt(
        np.maximum(load - 5, 0)
    ) + noise * rng.standard_normal(n_struts)
    return load[:, None], deflection


X_train, y_train = make_struts(800, random_state=0)
X_test, y_test = make_struts(1000, random_state=1)
print(f"{len(X_train)} struts to learn from, {len(X_test)} to be tested on")

# %%
# A deep GP that learns the shape of the distribution
# ---------------------------------------------------
# A deep GP predicts a mixture of Gaussians for each row. Such a mixture can have two branches with nothing in between.
# With ``objective="predictive"``, training maximises the predicted density of the observations. So it learns the shape
# of their distribution.
#
# Training may end in a poor optimum, such as one wide Gaussian over both branches. Therefore we train three times, with
# different seeds. In each fit :class:`~skdgp.AVDGPRegressor` holds out a tenth of the rows. We keep the fit that
# predicts its held-out rows best.
#
# By default predictions are also mixed with those of a plain GP (``base``), and corrected by the nearest training rows
# (``n_neighbors``). Here both are switched off, to see what the deep GP itself can do. :doc:`/choosing` describes them.

from skdgp import AVDGPRegressor

fits = []
for seed in range(3):
    start = AVDGPRegressor(
        objective="predictive",
        beta=1.0,
        mean="identity",
        n_estimators=1,
        base=None,
        n_neighbors=0,
        random_state=seed,
    )
    fits.append(start.fit(X_train, y_train))
    print(
        f"Start {seed}: mean log density of held-out rows "
        f"{start.validation_scores_.max():.2f}"
    )
model = max(fits, key=lambda fit: fit.validation_scores_.max())
dist = model.predict_dist(X_test)

# %%
# Two models to compare with
# --------------------------
# scikit-learn's exact GP predicts one Gaussian for each row. Boosted trees can predict quantiles: one model predicts
# the lower end of the interval, and another one the upper end.

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skdgp.metrics import predictive_distribution

kernel = ConstantKernel() * RBF() + WhiteKernel()
gp = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(
    X_train, y_train
)
gp_dist = predictive_distribution(gp, X_test)

trees = [
    HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0)
    for q in (0.05, 0.95)
]
trees_interval = [tree.fit(X_train, y_train).predict(X_test) for tree in trees]

# %%
# Scores
# ------
# Coverage is the share of struts inside their 90 % intervals. The interval score is the mean width of the intervals
# plus a penalty for each strut outside. The continuous ranked probability score (CRPS) judges the whole distribution.
# Both scores are in mm, and lower is better. The trees have no CRPS, since they predict only the ends of an interval.

from skdgp.metrics import coverage, crps, interval_score

intervals = {
    "Deep GP": dist.interval(0.9),
    "Exact GP": gp_dist.interval(0.9),
    "Boosted trees": trees_interval,
}
scores = {
    "Deep GP": f"{crps(y_test, dist):.3f}",
    "Exact GP": f"{crps(y_test, gp_dist):.3f}",
    "Boosted trees": "-",
}
print(f"{'':<15}{'90 % coverage':>14}{'interval score':>16}{'CRPS':>8}")
for name, ends in intervals.items():
    covered, score = (
        100 * coverage(y_test, *ends),
        interval_score(y_test, *ends),
    )
    print(f"{name:<15}{covered:>12.1f} %{score:>16.2f}{scores[name]:>8}")

interval_scores = {
    name: interval_score(y_test, *ends) for name, ends in intervals.items()
}
assert (
    interval_scores["Deep GP"]
    < interval_scores["Boosted trees"]
    < interval_scores["Exact GP"]
)
assert crps(y_test, dist) < 0.75 * crps(y_test, gp_dist)

# %%
# The empty middle
# ----------------
# An interval cannot show that it is empty inside, but a distribution can. What is the probability that a strut at 8 kN
# is within 1 mm of straight?

_, y_buckled = make_struts(1000, random_state=2, lightest=8, heaviest=8)
print(
    f"{100 * np.mean(np.abs(y_buckled) < 1):.1f} % of {len(y_buckled)} more "
    "struts are within 1 mm of straight"
)
inside = {}
for name, estimator in {"deep GP": model, "exact GP": gp}.items():
    below, above = predictive_distribution(estimator, [[8.0]]).cdf(
        [[-1], [1]]
    )[:, 0]
    inside[name] = above - below
    print(f"The {name} predicts {100 * (above - below):.1f} %")
assert inside["deep GP"] < 0.05 and inside["exact GP"] > 0.3

# %%
# Intervals and densities
# -----------------------
# The left picture compares the intervals. Those of the deep GP become wider where struts rattle, and again where there
# are two branches. Those of the exact GP, between the dashed lines, have nearly the same width at all loads.
#
# The right picture shows the density that the deep GP predicts, and three draws by
# :meth:`~skdgp.AVDGPRegressor.sample_y`. A draw is a function of the load, with noise added to each of its values. The
# function follows one component of the mixture at all loads. Here each component follows one branch beyond the critical
# load. So a draw does not jump between the branches.

import matplotlib.pyplot as plt

from skdgp.display import PredictiveIntervalDisplay

blue, orange, dark = "#0b5fa5", "#c8762b", "#333333"
loads, deflections = (
    np.linspace(0, 10, 300)[:, None],
    np.linspace(-3.4, 4.6, 300)[:, None],
)

fig, (left, right) = plt.subplots(
    1, 2, figsize=(12, 5), sharey=True, layout="constrained"
)
PredictiveIntervalDisplay.from_estimator(
    model, X_test, y_test, ax=left, scatter_kwargs={"s": 8}
)
ends = np.transpose(predictive_distribution(gp, loads).interval(0.9))
left.plot(
    loads,
    ends,
    "--",
    color=orange,
    linewidth=1.4,
    label=["90 % interval, exact GP", None],
)
left.legend(frameon=False, loc="upper left")
left.set(
    xlim=(0, 10),
    ylim=(-3.4, 4.6),
    xlabel="load (kN)",
    ylabel="deflection (mm)",
)

# The square root makes low densities visible beside high ones.
density = np.sqrt(model.predict_dist(loads).pdf(deflections))
right.pcolormesh(
    loads[:, 0],
    deflections[:, 0],
    density,
    cmap="Blues",
    vmax=1.6,
    rasterized=True,
)
draws = model.sample_y(loads[::6], n_samples=3, random_state=3)
for draw, colour in zip(draws.T, (orange, "#5f8f4e", dark), strict=True):
    right.plot(
        loads[::6],
        draw,
        "o",
        color=colour,
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=0.5,
    )
right.set(xlabel="load (kN)", title="Deep GP: density and three draws")
plt.show()

# %%
# Densities at two loads, and calibration
# ---------------------------------------
# The first two pictures show the predicted densities at 2.5 kN and 8 kN. Behind them are histograms of a thousand more
# struts at these loads. The third picture checks all quantiles at once. For each probability p, it shows the share of
# struts below the predicted quantile p. The curve of a calibrated model stays in the grey band. The curve of the deep
# GP leaves it a little, and that of the exact GP much further.
#
# :doc:`/gallery/plot_modes` shows another way to model targets with several values.

from skdgp.display import CalibrationDisplay

fig, axes = plt.subplots(
    1, 3, figsize=(12, 4.2), width_ratios=(1, 1, 1.3), layout="constrained"
)
for ax, load in zip(axes, (2.5, 8.0), strict=False):
    _, y_cut = make_struts(1000, random_state=2, lightest=load, heaviest=load)
    ax.hist(
        y_cut,
        np.linspace(-3.4, 3.4, 69),
        density=True,
        color="#dddddd",
        label="struts",
    )
    for name, estimator, colour in (
        ("Deep GP", model, blue),
        ("Exact GP", gp, orange),
    ):
        density = predictive_distribution(estimator, [[load]]).pdf(deflections)
        ax.plot(deflections, density, color=colour, linewidth=1.8, label=name)
    ax.set(
        title=f"At {load:g} kN",
        xlabel="deflection (mm)",
        ylabel="density (1/mm)",
    )
    ax.set(xlim=(-3.4, 3.4), ylim=(0, 1.3 * ax.get_ylim()[1]))
    ax.legend(frameon=False, loc="upper left")
for name, predicted, colour in (
    ("Deep GP", dist, blue),
    ("Exact GP", gp_dist, orange),
):
    CalibrationDisplay.from_predictions(
        y_test, predicted, name=name, ax=axes[2], line_kwargs={"color": colour}
    )
axes[2].set_title("All quantiles")
plt.show()
