"""
Totals over regions: errors that go together
============================================

How much rain fell on a district, how much ore lies in a block, what will a group of customers spend? Each of these is a
total over many predictions. You cannot compute the interval of a total from the intervals of the single predictions.
The reason is that errors of neighbouring predictions go together: where a model predicts too little for one place, it
also predicts too little for the places around it. This example computes intervals of totals from joint predictions, and
counts how many of them contain the true total.
"""

# %%
# A rainy day
# -----------
# The map has 50 by 50 cells of a square kilometre each, and twelve districts. The rain is a smooth random field. Two
# hundred gauges measure it, with errors. There are fewer gauges towards the east. Since the field is simulated, its
# true total over each district is known.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

side = np.arange(50) + 0.5
# Kilometres to the east and to the north.
cells = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
centres = np.random.default_rng(0).uniform(3, 47, (12, 2))
# Number of the nearest centre.
district = np.linalg.norm(cells[:, None] - centres, axis=-1).argmin(axis=1)


def make_day(random_state):
    """Places of gauges (n, 2), their measurements (n,) and the rain on the
    cells, both in mm."""
    rng = np.random.default_rng(random_state)
    frequencies = rng.standard_normal((200, 2)) / 9
    phases, heights = (
        rng.uniform(0, 2 * np.pi, 200),
        12 * rng.standard_normal(200) / 10,
    )

    def rain(places):
        return 60 + np.cos(places @ frequencies.T + phases) @ heights

    gauges = 50 * np.column_stack([rng.beta(1, 2, 200), rng.uniform(size=200)])
    return gauges, rain(gauges) + 6 * rng.standard_normal(200), rain(cells)


gauges, measured, rain = make_day(random_state=0)


def by_district(values):
    """Totals over each district of values on the cells (n, ...), in millions
    of cubic metres."""
    return (
        np.stack(
            [values[district == number].sum(axis=0) for number in range(12)]
        )
        / 1000
    )


truth = by_district(rain)
sizes = np.bincount(district)
print(
    f"{len(gauges)} gauges, {len(cells)} cells, districts of {sizes.min()} to "
    f"{sizes.max()} cells"
)

# %%
# A model of the rain
# -------------------
# The model is a sparse Gaussian process (GP) with an inducing point at each gauge, which makes it an exact one. So we
# switch off what the estimator adds to models that approximate: the mixture with a second GP (``base``), and the
# correction by the nearest rows.
#
# We want to know the rain itself, and not what a gauge would measure, which has an error. So we pass ``latent=True``,
# which leaves the noise out.
#
# First we check the intervals of single cells. They can be trusted, so whatever goes wrong with totals is not the fault
# of the model.

from skdgp import SOLVEGPRegressor
from skdgp.metrics import coverage


def fit_rain(gauges, measured):
    """A model that predicts the rain anywhere."""
    return SOLVEGPRegressor(
        n_orthogonal=0,
        method="collapsed",
        max_iter=50,
        base=None,
        n_neighbors=0,
        random_state=0,
    ).fit(gauges, measured)


model = fit_rain(gauges, measured)
covered = coverage(rain, *model.predict_interval(cells, 0.9, latent=True).T)
print(
    f"90 % intervals of single cells contain the rain in {100 * covered:.1f} "
    "% of the cells"
)

# %%
# Four intervals for a total
# --------------------------
# The prediction of a total is the sum of the predictions of its cells. The interval of the total depends on how the
# errors of the cells go together. We compare four ways to compute it:
#
# * *Joint covariance*: ``return_cov=True`` returns the covariances of all pairs of cells. The variance of the total is
#   the sum of all entries of this matrix.
# * *Independent*: we pretend that the errors of the cells are independent. Their variances then add up.
# * *As one*: we pretend that all cells are too high or too low together. Their standard deviations then add up.
# * *Draws*: ``sample_y`` draws whole maps of rain that are possible after the measurements. Each map has a total for
#   each district. The quantiles of these totals are the ends of the interval.
#
# The second and the third way need only the standard deviations of single cells. But each of them is a guess.


def total_std(model):
    """Standard deviations of the districts' totals, computed in three ways, in
    millions of cubic metres."""
    stds = {"Joint covariance": [], "Independent": [], "As one": []}
    for number in range(12):
        covariance = model.predict(
            cells[district == number], return_cov=True, latent=True
        )[1]
        variance = covariance.diagonal()
        stds["Joint covariance"].append(np.sqrt(covariance.sum()))
        stds["Independent"].append(np.sqrt(variance.sum()))
        stds["As one"].append(np.sqrt(variance).sum())
    return {name: np.array(values) / 1000 for name, values in stds.items()}


# Half the width of a Gaussian's 90 % interval, in standard deviations.
Z_90 = 1.645
predicted = by_district(model.predict(cells))
half_width = {name: Z_90 * std for name, std in total_std(model).items()}
maps = model.sample_y(cells, n_samples=100, random_state=0, latent=True)
from_draws = np.quantile(by_district(maps), [0.05, 0.95], axis=1)

print(
    "District  total  predicted  ± joint covariance  ± draws  ± independent  "
    "± as one"
)
joint, independent, one = half_width.values()
for number, row in enumerate(
    zip(
        truth,
        predicted,
        joint,
        np.ptp(from_draws, axis=0) / 2,
        independent,
        one,
        strict=True,
    )
):
    print(
        "{:>8}{:>7.2f}{:>11.2f}{:>20.2f}{:>9.2f}{:>15.2f}{:>10.2f}".format(
            number + 1, *row
        )
    )
for name, width in half_width.items():
    print(
        f"{name}: {np.sum(np.abs(truth - predicted) <= width)} of 12 true "
        "totals are inside their intervals"
    )

# %%
# The joint covariance and the draws answer the same question, one by a formula and the other by simulation. Their
# intervals agree, apart from the chance in a hundred draws. For sums the covariance is quicker. Draws also answer
# questions that have no formula. Which district had the most rain? By how much does the wettest cell exceed 90 mm?
#
# If variances are added as if cells were independent, the intervals are several times too narrow.

assert np.all(joint > 3 * independent) and np.all(one > joint)

# %%
# Twenty more days
# ----------------
# One day may be an exception. So here are twenty more days, each with new rain, new gauges and a new model.

import pandas as pd

N_DAYS = 20
inside, width = [], []
for day in range(N_DAYS):
    gauges_of_day, measured_of_day, rain_of_day = make_day(
        random_state=100 + day
    )
    model_of_day = fit_rain(gauges_of_day, measured_of_day)
    error = np.abs(
        by_district(rain_of_day) - by_district(model_of_day.predict(cells))
    )
    std_of_day = total_std(model_of_day)
    inside.append(
        {
            name: np.mean(error <= Z_90 * std)
            for name, std in std_of_day.items()
        }
    )
    width.append(
        {name: np.mean(2 * Z_90 * std) for name, std in std_of_day.items()}
    )
covered = 100 * pd.DataFrame(inside).mean()
print(
    pd.DataFrame(
        {
            "coverage, %": covered.round(1),
            "mean width": pd.DataFrame(width).mean().round(2),
        }
    ).to_string()
)

# %%
# The joint intervals contain about as many totals as 90 % intervals should. Of the intervals from independent cells,
# only a small part contains its total, although the intervals of single cells can be trusted. If standard deviations
# are added, the intervals contain more totals than they need to, and are much wider than the joint ones.

assert 80 < covered["Joint covariance"] < 97
assert covered["Independent"] < 30 and covered["As one"] > 95

# %%
# Pictures
# --------
# The left picture shows the first day, and the middle one its totals. Where there are few gauges, the errors of cells
# go together over long distances. The joint intervals are wide there, but those of independent cells stay narrow. The
# right picture shows how many totals of the twenty days are inside their intervals.
#
# :doc:`/functions` has more about questions that concern several rows together.

import matplotlib.pyplot as plt

colours = {
    "Joint covariance": "#0b5fa5",
    "Independent": "#c8762b",
    "As one": "#8a8a8a",
}
dark = "#333333"
fig, axes = plt.subplots(
    1, 3, figsize=(12, 4.8), width_ratios=(1.25, 1.35, 1), layout="constrained"
)

image = axes[0].pcolormesh(
    side, side, rain.reshape(50, 50), cmap="Blues", vmax=115, rasterized=True
)
label_box = {
    "boxstyle": "round,pad=0.1",
    "facecolor": "white",
    "alpha": 0.75,
    "linewidth": 0,
}
for number in range(12):
    axes[0].contour(
        side,
        side,
        (district == number).reshape(50, 50),
        [0.5],
        colors=dark,
        linewidths=0.9,
    )
    east, north = cells[district == number].mean(axis=0)
    axes[0].text(
        east,
        north,
        number + 1,
        ha="center",
        va="center",
        weight="bold",
        zorder=4,
        bbox=label_box,
    )
axes[0].plot(
    *gauges.T,
    "o",
    color="white",
    markeredgecolor=dark,
    markersize=3.5,
    markeredgewidth=0.6,
)
axes[0].set(
    aspect="equal",
    xlim=(0, 50),
    ylim=(0, 50),
    xlabel="km to the east",
    ylabel="km to the north",
)
axes[0].set_title("The rain and its gauges (circles)")
fig.colorbar(image, ax=axes[0], label="rain (mm)", shrink=0.8)

rows = np.arange(12)
for name, height in (("Joint covariance", 0.7), ("Independent", 0.35)):
    axes[1].barh(
        rows,
        2 * half_width[name],
        height,
        -half_width[name],
        color=colours[name],
        label=name,
    )
ends = (from_draws - predicted).ravel()
axes[1].plot(
    ends,
    np.tile(rows, 2),
    "|",
    color=dark,
    markersize=13,
    markeredgewidth=1.5,
    label="Ends from draws",
)
axes[1].plot(
    truth - predicted,
    rows,
    "o",
    color="white",
    markeredgecolor=dark,
    label="True total",
)
axes[1].set(
    xlabel="total minus its prediction (million m³)",
    ylabel="district",
    yticks=rows,
    yticklabels=rows + 1,
)
axes[1].set(
    xlim=(-1.05 * joint.max(), 1.05 * joint.max()),
    ylim=(14.6, -0.7),
    title="90 % intervals of the totals",
)
axes[1].legend(frameon=False, loc="lower center", ncols=2)

bars = axes[2].bar(
    list(covered.index),
    covered,
    color=[colours[name] for name in covered.index],
)
axes[2].bar_label(
    bars, fmt="%.0f %%", padding=-16, color="white", weight="bold"
)
axes[2].axhline(
    90,
    color=dark,
    linewidth=1,
    linestyle=":",
    label="expected of 90 % intervals",
)
axes[2].set(
    ylim=(0, 118),
    ylabel="totals inside their intervals (%)",
    title=f"{N_DAYS} days: {12 * N_DAYS} totals",
)
axes[2].set_xticks(range(3), ["Joint\ncovariance", "Independent", "As one"])
axes[2].legend(frameon=False, loc="upper center")
plt.show()
