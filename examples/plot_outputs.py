"""
Targets that help each other
============================

Often one target is cheap and another is dear. If both have the same causes, rows with the cheap one alone say something
about the dear one as well.
"""

# %%
# A cheap sensor and a laboratory
# -------------------------------
# Over a year two cheap sensors measure a lake every day. A laboratory has measured what matters on thirty days, none of
# them in autumn. What is missing is NaN.

import numpy as np

rng = np.random.default_rng(0)
days = np.arange(0.0, 365.0)[:, None]
algae = np.exp(-(((days[:, 0] - 150) / 35) ** 2)) + 0.7 * np.exp(-(((days[:, 0] - 265) / 18) ** 2))
mud = 0.6 * np.sin(days[:, 0] / 23) + 0.3 * np.sin(days[:, 0] / 9)
truth = np.column_stack([12 * algae + 2 * mud + 5, 0.5 * algae + mud, algae - 0.8 * mud])
y = truth + truth.std(axis=0) * rng.normal(size=truth.shape) * [0.08, 0.25, 0.25]
measured = np.zeros(len(days), dtype=bool)
measured[rng.choice(230, 30, replace=False)] = True
y[~measured, 0] = np.nan

# %%
# Two functions for three targets
# -------------------------------
# ``n_latent_outputs=2`` makes every target a sum of two functions, plus a constant. The functions, the sums and the
# noise of each target are learnt together.

from skdgp import SOLVEGPRegressor

together = SOLVEGPRegressor(80, 0, n_latent_outputs=2, random_state=0).fit(days, y)
alone = SOLVEGPRegressor(30, 0, n_neighbors=0, random_state=0).fit(days[measured], y[measured, 0])
weights = together.module_[0].layers[-1].W.detach().numpy()
print("weights of the two functions in each target\n", np.round(weights, 2))

# %%
# Autumn
# ------
# Alone, the laboratory's values say nothing about the second bloom. The sensors have seen it.

import matplotlib.pyplot as plt

_, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
for ax, model, title in zip(axes, (alone, together), ("laboratory alone", "with two sensors"), strict=True):
    dist = model.predict_dist(days, latent=True)
    mean, std = (each if each.ndim == 1 else each[:, 0] for each in (dist.mean, dist.std))
    error = np.sqrt(np.mean((mean - truth[:, 0])[230:] ** 2))
    print(f"{title}: error after day 230 is {error:.2f}, stated deviation {std[230:].mean():.2f}")
    ax.fill_between(days[:, 0], mean - 1.96 * std, mean + 1.96 * std, alpha=0.25)
    ax.plot(days, mean)
    ax.plot(days, truth[:, 0], "--", color="black", lw=1)
    ax.plot(days[measured], y[measured, 0], "o", ms=4, color="black")
    ax.set(title=title, xlabel="day")
axes[0].set_ylabel("chlorophyll")
plt.show()

# %%
# How targets vary together
# -------------------------
# Where the laboratory is missing, its uncertainty comes from that of the sensors. ``predict_output_cov`` has the
# covariances of every day, and draws of functions have them too.

cov = together.predict_output_cov(days[[100, 300]], latent=True)
deviation = np.sqrt(np.einsum("npp->np", cov))
correlation = cov / deviation[:, :, None] / deviation[:, None, :]
print("correlation of the laboratory with each sensor on day 100 and 300")
print(np.round(correlation[:, 0, 1:], 2))
