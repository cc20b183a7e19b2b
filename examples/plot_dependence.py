"""
What a feature does, and how sure the model is
==============================================

How does the harvest change with rain? A model that predicts harvests has learnt an answer, but it is hidden in the
model. *Partial dependence* brings it to light: set the rain to the same amount in all rows, average the predictions,
and do so for one amount after the other. With a Gaussian process you also learn how sure the model is of this answer.
For that, :class:`~skdgp.display.DependenceDisplay` draws functions from the posterior, and averages each of them in
the same way.
"""

# %%
# The data: fields and their harvests
# -----------------------------------
# The harvest of a field, in tonnes per hectare, rises with rain and falls if it is too hot or too cold. It depends on
# the soil. Fertiliser helps, but the more rain there is, the more it helps. The height above the sea does nothing. In a
# tenth of the rows the rain was not measured. We have 220 fields.

# sphinx_gallery_thumbnail_number = 0
import numpy as np
import pandas as pd

SOILS = {"clay": 0.3, "loam": 0.8, "sand": -0.5}


def true_harvest(X):
    """Mean harvest of fields."""
    rain = 4 * (1 - np.exp(-X["rain"] / 250))
    heat = -0.03 * (X["warmth"] - 16) ** 2
    return (
        2
        + rain
        + heat
        + X["soil"].map(SOILS)
        + 0.00004 * X["fertiliser"] * X["rain"]
    )


def make_fields(n_rows, random_state):
    """Fields without missing cells, and their harvests."""
    rng = np.random.default_rng(random_state)
    X = pd.DataFrame(
        {
            "rain": rng.gamma(6, 70, n_rows).round(),
            "warmth": rng.normal(17, 3, n_rows).round(1),
            "fertiliser": rng.uniform(0, 120, n_rows).round(),
            "height": rng.uniform(0, 600, n_rows).round(),
            "soil": rng.choice(list(SOILS), n_rows, p=[0.55, 0.4, 0.05]),
        }
    )
    return X, (true_harvest(X) + rng.normal(0, 0.4, n_rows)).to_numpy()


complete, y = make_fields(220, random_state=0)
X = complete.copy()
X.loc[np.random.default_rng(1).random(len(X)) < 0.1, "rain"] = np.nan
print(X.assign(harvest=y.round(1)).head().to_string())

# %%
# One picture for each feature
# ----------------------------
# The blue line is the mean prediction over all fields. The band contains 90 % of the drawn functions. Since the band is
# about the average over fields, it is much narrower than an interval for a single harvest. The soil is a category, and
# has a point and a bar for each level. The small ticks at the bottom are deciles: a tenth of the fields lies between
# two of them. Because we made the data, we can add the truth, in red.

import matplotlib.pyplot as plt

from skdgp import SOLVEGPRegressor
from skdgp.display import DependenceDisplay

model = SOLVEGPRegressor(random_state=0).fit(X, y)
display = DependenceDisplay.from_estimator(model, X, random_state=0)


def true_dependence(result):
    """Mean of the true harvest over the fields, with the feature set to each
    value of a picture."""
    return [
        true_harvest(complete.assign(**{result.feature_name: value})).mean()
        for value in result.grid_values
    ]


for ax, result in zip(display.axes_, display.results, strict=True):
    places = range(len(SOILS)) if result.is_categorical else result.grid_values
    ax.plot(
        places,
        true_dependence(result),
        "_" if result.is_categorical else "--",
        color="#b3261e",
        ms=16,
        label="truth",
    )
    ax.set(ylim=(4, 8))
display.axes_[0].set(ylabel="Mean harvest (t/ha)")
display.axes_[0].legend(frameon=False, loc="lower right")
plt.show()

# %%
# The picture of the height shows what "nothing" looks like: a line that is nearly flat, in a band that allows a slope
# in either direction. Only one field in twenty is sandy. So the bar of sand is the longest.

# %%
# Single fields
# -------------
# An average can hide that fields differ. With ``kind="both"`` grey lines show single fields (*individual conditional
# expectation*, ICE). The lines of fertiliser are not parallel: they are flat at the bottom, where fields are dry, and
# steep at the top. So fertiliser and rain act together. We see it better in the averages over two kinds of fields.

dry, wet = X[X["rain"] < 350], X[X["rain"] > 500]
fig, axes = plt.subplots(
    1, 2, figsize=(10, 4), sharey=True, layout="constrained"
)
DependenceDisplay.from_estimator(
    model, X, "fertiliser", kind="both", random_state=0, ax=axes[0]
)
for rows, name, color in ((dry, "dry", "#c8762b"), (wet, "wet", "#0b5fa5")):
    DependenceDisplay.from_estimator(
        model,
        rows,
        "fertiliser",
        random_state=0,
        ax=axes[1],
        line_kwargs={"color": color, "label": f"{len(rows)} {name} fields"},
        band_kwargs={"color": color, "alpha": 0.2, "label": None},
    )
axes[0].set(ylabel="Harvest (t/ha)")
axes[1].set(ylabel="Mean harvest (t/ha)")
plt.show()

# %%
# The numbers behind the picture
# ------------------------------
# :func:`~skdgp.inspection.dependence` returns the numbers. ``draws`` has an average for each function. From these you
# can compute what you want to know. How much does a wet field gain by 100 kg of fertiliser, and a dry one? Is loam
# better than clay? The same functions are averaged at every value of the feature, so that differences are right, too.

from skdgp.inspection import dependence

for rows, name in ((dry, "dry"), (wet, "wet")):
    result = dependence(
        model,
        rows,
        "fertiliser",
        percentiles=(0, 1),
        grid_resolution=2,
        random_state=0,
    )
    gain = 100 * np.diff(result.draws, axis=0)[0] / np.diff(result.grid_values)
    low, high = np.quantile(gain, [0.05, 0.95])
    truth = 100 * 0.00004 * complete["rain"][rows.index].mean()
    print(
        f"100 kg of fertiliser on {name} fields: {gain.mean():.2f} t/ha, "
        f"{low:.2f} to {high:.2f} (truth {truth:.2f})"
    )

result = dependence(model, X, "soil", random_state=0)
of_soil = dict(zip(result.grid_values, result.draws, strict=True))
for better, worse in (("loam", "clay"), ("clay", "sand")):
    difference = of_soil[better] - of_soil[worse]
    low, high = np.quantile(difference, [0.05, 0.95])
    truth = SOILS[better] - SOILS[worse]
    print(
        f"{better} instead of {worse}: {difference.mean():.2f} t/ha, "
        f"{low:.2f} to {high:.2f} (truth {truth:.2f})"
    )

# %%
# Can the bands be trusted?
# -------------------------
# If they can, nine in ten of them contain the truth. We make four other tables, and count.

inside = []
for random_state in range(2, 6):
    complete, y = make_fields(220, random_state)
    other = SOLVEGPRegressor(random_state=0).fit(complete, y)
    for name in X:
        result = dependence(
            other, complete, name, grid_resolution=4, random_state=0
        )
        truth = true_dependence(result)
        inside += list((result.lower <= truth) & (truth <= result.upper))
print(
    f"{100 * np.mean(inside):.0f} % of {len(inside)} true values lie in their "
    "bands"
)

# %%
# They contain it about as often as they should. Four tables cannot tell more, since the values of one curve are right
# or wrong together.

assert np.mean(inside) > 0.8
