"""
A jump: what depth does that one Gaussian process cannot
========================================================

How well can a model that knows nothing but smooth functions learn a step? A Gaussian process has one
*lengthscale*, the distance over which its functions change, and takes it to be the same everywhere. A
jump wants it short and the flat parts on either side want it long. A deep Gaussian process has a way out: its hidden
layers bend the feature first, so that the last layer sees something smooth.
"""

# %%
# A step, and noise
# -----------------
# A hundred rows of one feature. The target jumps from 0 to 1 where the feature is 0.

import numpy as np

from skdgp.datasets import make_step

noise = 0.05
X, y = make_step(100, noise=noise, random_state=0)
print(f"{len(X)} rows, {np.sum(np.abs(X) < 0.05)} of them within 0.05 of the jump; noise of standard deviation {noise}")

# %%
# One layer, two, four
# --------------------
# :class:`~skdgp.DSDGPRegressor` without hidden layers, ``hidden_dims=()``, is an ordinary sparse Gaussian process.
# Hidden layers of one output each make it deeper. They start as the identity, so that a deep
# model begins as a shallow one. joblib gives each fit a core.

from joblib import Parallel, delayed

from skdgp import DSDGPRegressor

params = {
    "base": None,
    "n_neighbors": 0,
    "n_inducing": 32,
    "n_estimators": 1,
    "early_stopping": False,
    "max_iter": 400,
    "random_state": 1,
}
depths = (4, 2, 1)  # what takes longest first
models = [DSDGPRegressor((1,) * (depth - 1), **params) for depth in depths]
fitted = Parallel(n_jobs=-1)(delayed(model.fit)(X, y) for model in models)
models = dict(reversed([*zip(depths, fitted, strict=True)]))

# %%
# Two numbers tell them apart, both in units of the target. The error of the mean is its root mean square distance from
# the truth, inside the data but not within 0.05 of the jump: it counts ringing. The *continuous ranked
# probability score* (CRPS) compares whole predictive distributions with fresh rows; lower is better.

from skdgp.metrics import crps

grid = np.linspace(-1.3, 1.3, 521)[:, None]
flat = (np.abs(grid[:, 0]) > 0.05) & (np.abs(grid[:, 0]) < 1)
X_test, y_test = make_step(1000, noise=noise, random_state=1)
errors = {}
print(f"{'layers':>6}{'error of the mean':>20}{'test CRPS':>12}")
for depth, model in models.items():
    errors[depth] = np.sqrt(np.mean((model.predict(grid) - (grid[:, 0] > 0))[flat] ** 2))
    print(f"{depth:>6}{errors[depth]:>20.4f}{crps(y_test, model.predict_dist(X_test)):>12.4f}")

# %%
# What they predict
# -----------------
# Bands are 90 % intervals. One layer has to be short-sighted: its mean ripples with the noise, and turns back to the
# average soon after the data end. The deeper the model, the flatter it is on both sides of the jump.

import matplotlib.pyplot as plt

from skdgp.display import LatentDisplay, PredictiveIntervalDisplay

fig, axes = plt.subplots(1, 3, figsize=(12, 4.2), sharex=True, sharey=True, layout="constrained")
for ax, (depth, model) in zip(axes, models.items(), strict=True):
    PredictiveIntervalDisplay.from_estimator(model, grid, ax=ax)
    ax.scatter(X, y, s=9, color="#333333", linewidth=0, zorder=3, label="data")
    ax.set_title(f"{depth} layer{'s' * (depth > 1)}: error of the mean {errors[depth]:.3f}")
    ax.set(xlabel="feature", ylabel="", xlim=(-1.3, 1.3), ylim=(-0.4, 1.4))
    ax.get_legend().remove()
axes[0].set_ylabel("target")
axes[0].legend(loc="upper left", frameon=False)
plt.show()

# %%
# How the deep one does it
# ------------------------
# :class:`~skdgp.display.LatentDisplay` follows the feature through the layers of the deepest model. The first
# stretches the feature around the jump, so that later ones find the two sides well apart. None of them has to be a
# step to what it is given.

display = LatentDisplay.from_estimator(models[4], X, line_kwargs={"color": "#0b5fa5"})
for ax in display.axes_:
    ax.set_xlabel("feature")
plt.show()
