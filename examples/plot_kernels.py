"""
Kernels that say what one knows
===============================

A kernel says what a function is like before there are data: how smooth, whether it repeats, whether it has a trend,
whether features act one by one. Where data end, it is all that there is. scikit-learn's kernel objects can be added and
multiplied, and the estimators of this package take them as they are.
"""

# %%
# A gas in the air
# ----------------
# Monthly concentrations that rise, faster and faster, and breathe with the seasons, after the famous series of carbon
# dioxide from Mauna Loa. Thirty years are known, with gaps; twenty more are to come.

import numpy as np

rng = np.random.default_rng(0)
years = np.arange(1960, 2010, 1 / 12)[:, None]
trend = 315 + 0.8 * (years[:, 0] - 1960) + 0.012 * (years[:, 0] - 1960) ** 2
season = 3 * np.sin(2 * np.pi * years[:, 0]) + np.cos(4 * np.pi * years[:, 0])
slow = np.sin(years[:, 0] / 1.7) * 0.5
y = trend + season + slow + 0.2 * rng.standard_normal(len(years))
known = (years[:, 0] < 1990) & (rng.uniform(size=len(years)) < 0.8)
future = years[:, 0] >= 1990

# %%
# In words and in code
# --------------------
# A smooth trend, which takes a century to turn, plus a season that may change slowly over the decades, plus wiggles of
# a year or two. Lengths are in years, the unit of ``X``, and stay within bounds, if there are any. Variances are in
# units of the standardised targets. White noise is the likelihood's.

from sklearn.gaussian_process.kernels import RBF, ExpSineSquared, RationalQuadratic

from skdgp import SOLVEGPRegressor

kernel = (
    100.0 * RBF(100.0, length_scale_bounds=(80.0, 1000.0))
    + 0.1 * RBF(100.0) * ExpSineSquared(1.0, periodicity=1.0, periodicity_bounds="fixed")
    + 0.05 * RationalQuadratic(1.0, alpha=1.0)
)
said = SOLVEGPRegressor(kernel=kernel, n_neighbors=0, random_state=0).fit(years[known], y[known])
print(said.kernel_)

# %%
# ``kernel_`` is a kernel object again, with what was learnt. scikit-learn's own process takes it.
#
# Twenty years ahead
# ------------------
# Beside it is the default kernel, which knows only that functions are smooth.

plain = SOLVEGPRegressor(random_state=0).fit(years[known], y[known])
for name, model in {"said": said, "smooth": plain}.items():
    dist = model.predict_dist(years[future])
    lower, upper = dist.interval(0.9)
    inside = np.mean((lower <= y[future]) & (y[future] <= upper))
    error = np.sqrt(np.mean((dist.mean - y[future]) ** 2))
    print(f"{name:8s} RMSE {error:5.2f}, CRPS {dist.crps(y[future]).mean():5.2f}, {inside:.0%} within 90 % intervals")

import matplotlib.pyplot as plt

_, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, {"said": said, "smooth": plain}.items(), strict=True):
    lower, upper = model.predict_interval(years).T
    ax.fill_between(years[:, 0], lower, upper, alpha=0.25, label="90 % interval")
    ax.plot(years[:, 0], model.predict(years), linewidth=1, label="mean")
    ax.plot(years[known, 0], y[known], ".", color="0.4", markersize=2, label="known")
    ax.plot(years[future, 0], y[future], "k", linewidth=0.5, label="to come")
    ax.set(title=name, xlabel="Year", ylabel="Concentration, ppm", ylim=(280, 420))
axes[0].legend(frameon=False)
plt.show()

# %%
# Features one by one
# -------------------
# An additive model is a sum of kernels of one feature each. :class:`~skdgp.kernels.Select` says which. It needs far
# fewer rows than a function of all features together, if it is true.

from sklearn.gaussian_process.kernels import Matern

from skdgp.kernels import Select

X = rng.uniform(-2, 2, (120, 6))
parts = [np.sin(3 * X[:, 0]), X[:, 1] ** 2, np.abs(X[:, 2]), 0.5 * X[:, 3]]
z = np.sum(parts, axis=0) + 0.1 * rng.standard_normal(120)
additive = sum((Select(Matern(1.0, nu=2.5), column) for column in range(1, 6)), start=Select(Matern(1.0, nu=2.5), 0))
new = rng.uniform(-2, 2, (2000, 6))
truth = np.sin(3 * new[:, 0]) + new[:, 1] ** 2 + np.abs(new[:, 2]) + 0.5 * new[:, 3]
for name, kernel in {"additive": additive, "all features together": "matern52"}.items():
    model = SOLVEGPRegressor(kernel=kernel, base=None, n_neighbors=0, random_state=0).fit(X, z)
    print(f"{name:22s} RMSE {np.sqrt(np.mean((model.predict(new) - truth) ** 2)):.3f}")
