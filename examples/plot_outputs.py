"""
Several targets: how a cheap one helps an expensive one
=======================================================

Often one target is cheap to measure and another one is expensive. Can rows that have only the cheap target help to
predict the expensive one? They can, if both targets have the same causes. In this example one of three targets is
missing in most rows.
"""

# %%
# The data: two sensors and a laboratory
# --------------------------------------
# Two cheap sensors measure the water of a lake every day of a year. A laboratory measures the chlorophyll, which is the
# target that matters, in micrograms per litre. It does so on thirty days only, and on none after day 230. Missing
# targets are NaN.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

rng = np.random.default_rng(0)
days = np.arange(0.0, 365.0)[:, None]
algae = np.exp(-(((days[:, 0] - 150) / 35) ** 2)) + 0.7 * np.exp(
    -(((days[:, 0] - 265) / 18) ** 2)
)
mud = 0.6 * np.sin(days[:, 0] / 23) + 0.3 * np.sin(days[:, 0] / 9)
truth = np.column_stack(
    [12 * algae + 2 * mud + 5, 0.5 * algae + mud, algae - 0.8 * mud]
)
y = truth + truth.std(axis=0) * rng.normal(size=truth.shape) * [
    0.08,
    0.25,
    0.25,
]
measured = np.zeros(len(days), dtype=bool)
measured[rng.choice(230, 30, replace=False)] = True
y[~measured, 0] = np.nan

# %%
# Two functions for three targets
# -------------------------------
# With ``n_latent_outputs=2`` every target is a weighted sum of the same two functions, plus a constant. Training learns
# the functions, the weights, the constants and the noise of each target together. A second model learns from the values
# of the laboratory alone, for comparison.

from skdgp import SOLVEGPRegressor

together = SOLVEGPRegressor(80, 0, n_latent_outputs=2, random_state=0).fit(
    days, y
)
alone = SOLVEGPRegressor(30, 0, n_neighbors=0, random_state=0).fit(
    days[measured], y[measured, 0]
)
weights = together.module_[0].layers[-1].W.detach().numpy()
print("weights of the two functions in each target\n", np.round(weights, 2))

# %%
# Autumn
# ------
# The algae bloom a second time around day 265. The laboratory's own values say nothing about this second bloom, but the
# sensors have measured it. The picture shows the chlorophyll: the values of the laboratory (points), the truth
# (dashed), and what each model predicts, with its 95 % band.

import matplotlib.pyplot as plt

errors = {}
_, axes = plt.subplots(
    1, 2, figsize=(10, 3.8), sharey=True, layout="constrained"
)
for ax, model, title in zip(
    axes,
    (alone, together),
    ("laboratory alone", "with two sensors"),
    strict=True,
):
    dist = model.predict_dist(days, latent=True)
    mean, std = (
        values if values.ndim == 1 else values[:, 0]
        for values in (dist.mean, dist.std)
    )
    error = np.sqrt(np.mean((mean - truth[:, 0])[230:] ** 2))
    errors[title] = error
    print(
        f"{title}: RMSE after day 230 is {error:.2f}, predicted standard "
        f"deviation {std[230:].mean():.2f}"
    )
    ax.fill_between(
        days[:, 0], mean - 1.96 * std, mean + 1.96 * std, alpha=0.25
    )
    ax.plot(days, mean)
    ax.plot(days, truth[:, 0], "--", color="black", lw=1)
    ax.plot(days[measured], y[measured, 0], "o", ms=4, color="black")
    ax.set(title=title, xlabel="day")
axes[0].set_ylabel("chlorophyll (µg/l)")
assert errors["with two sensors"] < 0.5 * errors["laboratory alone"]
plt.show()

# %%
# How targets vary together
# -------------------------
# After day 230 the model knows the chlorophyll only through the sensors. So its uncertainty about the chlorophyll comes
# from its uncertainty about the targets of the sensors. ``predict_output_cov`` returns the covariances between the
# targets, separately for every day. Functions that you draw from the model have the same covariances.

cov = together.predict_output_cov(days[[100, 300]], latent=True)
deviation = np.sqrt(np.einsum("npp->np", cov))
correlation = cov / deviation[:, :, None] / deviation[:, None, :]
print(
    "correlation of the chlorophyll with the target of each sensor, on days "
    "100 and 300"
)
print(np.round(correlation[:, 0, 1:], 2))
