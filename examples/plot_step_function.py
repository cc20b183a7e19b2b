"""
A jump: where several layers do better than one
===============================================

How well can a model learn a step, if it knows only smooth functions? A Gaussian process has one *lengthscale*, the
distance over which its functions change, and this lengthscale is the same everywhere. A jump needs a short lengthscale,
but the flat parts on either side need a long one. A deep Gaussian process can solve this. Its hidden layers bend the
feature first, so that the last layer has to learn only a smooth function.
"""

# %%
# A step with noise
# -----------------
# There are a hundred rows with one feature. The target jumps from 0 to 1 where the feature is 0.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

from skdgp.datasets import make_step

noise = 0.05
X, y = make_step(100, noise=noise, random_state=0)
print(
    f"{len(X)} rows, {np.sum(np.abs(X) < 0.05)} of them within 0.05 of the "
    f"jump; noise of standard deviation {noise}"
)

# %%
# One layer, or four
# ------------------
# Without hidden layers, ``hidden_dims=()``, :class:`~skdgp.DSDGPRegressor` is an ordinary sparse Gaussian process. Each
# hidden layer makes it deeper. Here every hidden layer has one output. Hidden layers start as the identity, so a deep
# model starts as a shallow one. joblib fits the two models side by side, each on a core of its own.
#
# To see the effect of depth alone, we switch off what the estimator does in addition: mixing with a base, correction by
# neighbours, and the ensemble. There are few rows, so the models learn from all of them (``early_stopping=False``). For
# your own data keep the defaults.

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
depths = (4, 1)  # the deepest takes longest, so it starts first
models = [DSDGPRegressor((1,) * (depth - 1), **params) for depth in depths]
fitted = Parallel(n_jobs=-1)(delayed(model.fit)(X, y) for model in models)
models = dict(zip(reversed(depths), reversed(fitted), strict=True))

# %%
# Two numbers compare the models. Both are in the units of the target, and lower is better. The *error of the mean* is
# the root mean square distance between the predicted mean and the true step. We compute it inside the data, but not
# within 0.05 of the jump. So it measures how much the mean overshoots and ripples beside the jump. The *continuous
# ranked probability score* (CRPS) compares whole predictive distributions with new rows.

from skdgp.metrics import crps

grid = np.linspace(-1.3, 1.3, 521)[:, None]
flat = (np.abs(grid[:, 0]) > 0.05) & (np.abs(grid[:, 0]) < 1)
X_test, y_test = make_step(1000, noise=noise, random_state=1)
errors = {}
print(f"{'layers':>6}{'error of the mean':>20}{'test CRPS':>12}")
for depth, model in models.items():
    errors[depth] = np.sqrt(
        np.mean((model.predict(grid) - (grid[:, 0] > 0))[flat] ** 2)
    )
    print(
        f"{depth:>6}{errors[depth]:>20.4f}"
        f"{crps(y_test, model.predict_dist(X_test)):>12.4f}"
    )

# %%
# What the models predict
# -----------------------
# The bands are 90 % intervals. The model with one layer needs a short lengthscale. So its mean ripples with the noise,
# and returns to the average soon after the data end. With four layers the mean is flat on both sides of the jump. How
# many layers a table needs, a search can tell (:doc:`/gallery/plot_depth`).

assert errors[4] < 0.5 * errors[1]

import matplotlib.pyplot as plt

from skdgp.display import LatentDisplay, PredictiveIntervalDisplay

fig, axes = plt.subplots(
    1, 2, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained"
)
for ax, (depth, model) in zip(axes, models.items(), strict=True):
    PredictiveIntervalDisplay.from_estimator(model, grid, ax=ax)
    ax.scatter(X, y, s=9, color="#333333", linewidth=0, zorder=3, label="data")
    ax.set_title(
        f"{depth} layer{'s' * (depth > 1)}: error of the mean "
        f"{errors[depth]:.3f}"
    )
    ax.set(xlabel="feature", ylabel="", xlim=(-1.3, 1.3), ylim=(-0.4, 1.4))
    ax.get_legend().remove()
axes[0].set_ylabel("target")
axes[0].legend(loc="upper left", frameon=False)
plt.show()

# %%
# How the deep model does it
# --------------------------
# :class:`~skdgp.display.LatentDisplay` shows what each layer of the deepest model makes of the feature. The first layer
# stretches the feature around the jump. So later layers find the two sides well apart. None of them has to be a step as
# a function of its own input.

display = LatentDisplay.from_estimator(
    models[4], X, line_kwargs={"color": "#0b5fa5"}
)
for ax in display.axes_:
    ax.set_xlabel("feature")
plt.show()
