"""
Quick start: a prediction and its uncertainty
=============================================

When will the parcel arrive, and how sure is that? A single number does not answer the second half of this question. In
the middle of the day a delivery takes about as long as the last one. In the rush hour it takes longer, and nobody can
say how much longer. This example fits a deep Gaussian process (GP) to 400 deliveries. It predicts a *distribution* of
the duration for each of 2000 others, and compares these distributions with what happened, and with the truth. Two
models of scikit-learn do the same.

From a clone of the repository, ``python examples/plot_quickstart.py`` prints the scores and saves the picture.
"""

# %%
# The deliveries
# --------------
# The table has the distance in kilometres, the number of stops, and the hour of the day. The target is the duration in
# minutes. We generate the table, so that the true mean and the true standard deviation of each delivery are known. The
# mean and the spread both grow with the distance, and most of all in the two rush hours.

# sphinx_gallery_thumbnail_number = 0
import numpy as np
from sklearn.model_selection import train_test_split

rng = np.random.default_rng(1)
X = np.column_stack(
    [
        rng.uniform(1, 20, 2400),
        rng.integers(1, 6, 2400),
        rng.uniform(6, 22, 2400),
    ]
)


def truth(X):
    distance, stops, hour = X.T
    rush = np.exp(-((hour - 8) ** 2) / 1.5) + np.exp(
        -((hour - 17.5) ** 2) / 2.5
    )
    return (
        4 + 1.5 * distance + 3 * stops + 1.2 * distance * rush,
        1 + 0.25 * distance * (0.1 + rush),
    )


mean, std = truth(X)
y = mean + std * rng.standard_normal(len(X))
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=400, random_state=0
)

# %%
# Fit a deep Gaussian process
# ---------------------------
# A deep GP is a chain of Gaussian processes (:doc:`/deep_gps`). Here it is an estimator of scikit-learn, with ``fit``
# and ``predict``. The estimator standardises features and targets itself, so you need no scaler. All predictions are in
# the units of ``y``. The only choice is ``likelihood="heteroskedastic"``: the noise may differ from row to row.
# :meth:`~skdgp.DSDGPRegressor.predict_dist` returns the whole distribution of each duration.

import sys

from skdgp import DSDGPRegressor

# Only a terminal can show the line of progress.
in_a_terminal = sys.stdout.isatty()
model = DSDGPRegressor(
    likelihood="heteroskedastic", verbose=in_a_terminal, random_state=0
).fit(X_train, y_train)
dist = model.predict_dist(X_test)

lower, upper = dist.interval(0.9)
chance = 1 - dist.cdf(45)
for row in range(3):
    print(
        f"Delivery {row}: the predicted mean is {dist.mean[row]:.0f} minutes, "
        "and the 90 % interval is "
        f"{lower[row]:.0f} to {upper[row]:.0f}. The probability of more than "
        f"45 is {chance[row]:.2f}. "
        f"In fact it took {y_test[row]:.0f}."
    )

# %%
# Two models to compare with
# --------------------------
# An exact Gaussian process predicts a mean and a standard deviation for each delivery. Boosted trees predict only a
# mean. The usual remedy is to give all rows the same standard deviation, that of the cross-validated residuals.
# :meth:`PredictiveDistribution.gaussian <skdgp.PredictiveDistribution.gaussian>` makes distributions from the means and
# standard deviations, so that all three models can be scored in the same way.

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import PredictiveDistribution

kernel = (
    ConstantKernel() * RBF(np.ones(X.shape[1]), (1e-2, 1e6)) + WhiteKernel()
)
exact = make_pipeline(
    StandardScaler(),
    GaussianProcessRegressor(kernel, normalize_y=True, random_state=0),
)
exact.fit(X_train, y_train)

trees = HistGradientBoostingRegressor(random_state=0)
residuals = y_train - cross_val_predict(trees, X_train, y_train, cv=5)
trees.fit(X_train, y_train)


def of_exact(X):
    return PredictiveDistribution.gaussian(*exact.predict(X, return_std=True))


def of_trees(X):
    return PredictiveDistribution.gaussian(
        trees.predict(X), np.full(len(X), residuals.std())
    )


models = {
    "Deep GP": model.predict_dist,
    "Exact GP": of_exact,
    "Boosted trees": of_trees,
}

# %%
# Scores
# ------
# The root mean squared error (RMSE) judges only the means. Two other scores judge the whole distributions: the negative
# log predictive density (NLL) and the continuous ranked probability score (CRPS). Both are small if a distribution is
# narrow and the observation lies where its density is high. *Coverage* is the share of deliveries whose duration lies
# inside their 90 % interval. It should be 90 %. The last line is the truth, which no model can beat except by chance.

from skdgp.metrics import coverage, crps, negative_log_predictive_density

predictions = {name: predict(X_test) for name, predict in models.items()}
predictions["Truth"] = PredictiveDistribution.gaussian(*truth(X_test))
density = {
    name: negative_log_predictive_density(y_test, predicted)
    for name, predicted in predictions.items()
}
print(f"\n{'':<16}{'RMSE':>8}{'NLL':>8}{'CRPS':>8}{'90 % coverage':>16}")
for name, predicted in predictions.items():
    rmse = np.sqrt(np.mean((y_test - predicted.mean) ** 2))
    covered = 100 * coverage(y_test, *predicted.interval(0.9))
    print(
        f"{name:<16}{rmse:>8.2f}{density[name]:>8.3f}"
        f"{crps(y_test, predicted):>8.2f}{covered:>14.1f} %"
    )

# %%
# Coverage over all rows is not enough. A model that gives all rows the same width is right on average, and wrong for
# nearly everybody: too wide in quiet hours, and too narrow in the rush hours.

rush_hour = (
    np.minimum(np.abs(X_test[:, 2] - 8), np.abs(X_test[:, 2] - 17.5)) < 1.5
)
groups = {"quiet hours": ~rush_hour, "rush hours": rush_hour}
shares = {
    name: [
        100
        * coverage(
            y_test[rows], *(end[rows] for end in predicted.interval(0.9))
        )
        for rows in groups.values()
    ]
    for name, predicted in predictions.items()
}
print(f"\n{'90 % coverage':<16}{'quiet hours':>14}{'rush hours':>14}")
for name, (quiet, rush) in shares.items():
    print(f"{name:<16}{quiet:>12.1f} %{rush:>12.1f} %")
off = {
    name: max(abs(share - 90) for share in of_groups)
    for name, of_groups in shares.items()
}
assert off["Deep GP"] < 0.5 * min(off["Exact GP"], off["Boosted trees"])

# %%
# Pictures
# --------
# Each of the first three pictures follows one delivery, of 12 kilometres and three stops, through the day. The truth is
# grey: the mean, and the ends of an interval of 90 %. The interval of the deep GP follows it. The exact GP knows one
# noise for all rows, and so do the trees with their one standard deviation. The last picture has the coverage by hours:
# intervals of the deep GP hold about as often as they say, in quiet hours and in rush hours.
#
# :doc:`/predictions` describes what else you can ask of a fitted model.

import matplotlib.pyplot as plt

from skdgp.display import PredictiveIntervalDisplay

day = np.column_stack(
    [np.full(300, 12.0), np.full(300, 3), np.linspace(6, 22, 300)]
)
true_mean, true_std = truth(day)
fig, axes = plt.subplots(
    1, 4, figsize=(14, 4.2), width_ratios=(1, 1, 1, 1.1), layout="constrained"
)
for ax, (name, predict) in zip(axes, models.items(), strict=False):
    PredictiveIntervalDisplay.from_predictions(
        predict(day), x=day[:, 2], x_name="hour of the day", ax=ax
    )
    for end in (-1.645, 0, 1.645):
        ax.plot(
            day[:, 2],
            true_mean + end * true_std,
            color="0.35",
            lw=1.6,
            ls="-" if end == 0 else "--",
            zorder=3,
        )
    ax.set(title=f"{name}: NLL {density[name]:.2f}", ylim=(22, 58), ylabel="")
    ax.get_legend().remove()
axes[0].set_ylabel("minutes, with 90 % interval")
place, by_hours = np.arange(3), np.array([shares[name] for name in models])
axes[3].vlines(
    place, by_hours.min(axis=1), by_hours.max(axis=1), color="0.8", lw=6
)
for number, (name, color) in enumerate(
    {"quiet hours": "#e08214", "rush hours": "#0b5ea8"}.items()
):
    axes[3].plot(
        place, by_hours[:, number], "o", ms=9, color=color, label=name
    )
    for x, share in zip(place, by_hours[:, number], strict=True):
        axes[3].annotate(
            f"{share:.0f}",
            (x, share),
            xytext=(9, -4),
            textcoords="offset points",
        )
axes[3].axhline(90, color="0.35", ls="--", lw=1.6, zorder=0)
axes[3].set(
    xticks=place,
    xticklabels=list(models),
    xlim=(-0.5, 2.6),
    title="Inside their 90 % interval, %",
)
axes[3].legend(loc="lower left")
fig.savefig("quickstart.png", dpi=100)
print("\nPicture saved to quickstart.png")
plt.show()
