"""
Orthogonal inducing points: what a second set gains
===================================================

How few numbers can stand for two hundred rows? A *sparse* Gaussian process (GP) summarises the rows by a few *inducing
points*. At these places it stores the value of the function, and how certain it is of this value. With too few points
the function becomes blurred. But every further point takes time: with many points, the time of a step grows with the
cube of their number. *Orthogonal* inducing points are a second set, which describes what the first set misses. Each of
two small sets has fewer parameters to learn than one set that is as large as both. This example shows how close two
sets of five points come to one set of ten.
"""

# %%
# The data: waves with a gap
# --------------------------
# The only feature lies between 0 and 6, with a gap from 2.7 to 3.4.

# sphinx_gallery_thumbnail_number = 0
from skdgp.datasets import make_waves

X, y = make_waves(200, random_state=0)
X_test, y_test = make_waves(2000, random_state=1)
print(f"{len(X)} rows for training, {len(X_test)} for testing")

# %%
# The exact GP
# ------------
# Two hundred rows are few enough for scikit-learn's exact GP. All sparse GPs approximate it, so it is what we compare
# them with. Its *log evidence* is the logarithm of the probability density that the model gives to the training
# targets. Training a sparse GP maximises a *lower bound* of the log evidence. The difference between the two is what
# the summary has lost.

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

kernel = ConstantKernel() * RBF() + WhiteKernel(0.1)
exact = GaussianProcessRegressor(
    kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0
).fit(X, y)
# For targets in the units of y.
evidence = exact.log_marginal_likelihood_value_ - len(y) * np.log(y.std())
print(f"Log evidence of the exact GP: {evidence:.1f}")

# %%
# Four sparse GPs
# ---------------
# All of them are :class:`~skdgp.SOLVEGPRegressor`, with different sets of inducing points:
#
# * *SVGP* has a single set, of five or of ten points.
# * *ODVGP* has a second set, here of a hundred points. The second set only moves the mean, and leaves the uncertainty
#   as it is (``covariance="odvgp"``).
# * *SOLVE-GP* has a second set with an uncertainty of its own.
#
# ODVGP learns from minibatches. It needs ``beta=1`` to maximise the bound itself, since ``beta`` is 0.1 for minibatches
# by default. For the other models the best summary has a formula.
#
# The output has the bound, what has been lost, and the standard deviation of the noise that the model has learnt. The
# last column is the *continuous ranked probability score* (CRPS). It compares predicted distributions with test rows,
# in the units of the target; lower is better.

from skdgp import SOLVEGPRegressor
from skdgp.metrics import crps, predictive_distribution

params = {
    "base": None,
    "n_neighbors": 0,
    "kernel": "rbf",
    "normalize_X": False,
    "random_state": 0,
}
models = {
    "SVGP 5": SOLVEGPRegressor(5, 0, **params),
    "ODVGP 5 + 100": SOLVEGPRegressor(
        5,
        100,
        covariance="odvgp",
        beta=1.0,
        max_iter=400,
        dtype="float64",
        **params,
    ),
    "SOLVE 5 + 5": SOLVEGPRegressor(5, 5, **params),
    "SVGP 10": SOLVEGPRegressor(10, 0, **params),
}
print(f"{'':<15}{'bound':>8}{'lost':>8}{'noise':>8}{'test CRPS':>12}")
for name, model in models.items():
    bound, noise = model.fit(X, y).lower_bound_, np.sqrt(model.noise_variance_)
    loss = crps(y_test, model.predict_dist(X_test))
    print(
        f"{name:<15}{bound:>8.1f}{evidence - bound:>8.1f}{noise:>8.3f}"
        f"{loss:>12.4f}"
    )
noise = y.std() * np.sqrt(exact.kernel_.k2.noise_level)
print(
    f"{'exact':<15}{evidence:>8.1f}{0:>8.1f}{noise:>8.3f}"
    f"{crps(y_test, predictive_distribution(exact, X_test)):>12.4f}"
)

# %%
# Two sets of five points lose only little more than one set of ten, and a small part of what one set of five loses.

lost = {name: evidence - model.lower_bound_ for name, model in models.items()}
assert lost["SVGP 10"] < lost["SOLVE 5 + 5"] < 0.05 * lost["SVGP 5"]

# %%
# What they predict
# -----------------
# The blue line and the blue band are the mean and the 90 % intervals of the sparse GP. The dashed lines are those of
# the exact GP. The ticks at the bottom are the inducing points where training has put them: the first set in blue, and
# the second set in red. The titles say what the bound has lost, in *nats*, the unit of the natural logarithm.

import matplotlib.pyplot as plt

from skdgp.display import PredictiveIntervalDisplay

grid = np.linspace(-1, 7, 400)[:, None]
exact_dist = predictive_distribution(exact, grid)
fig, axes = plt.subplots(
    2, 2, figsize=(12, 7), sharex=True, sharey=True, layout="constrained"
)
for ax, (name, model) in zip(axes.flat, models.items(), strict=True):
    ax.scatter(X, y, s=7, color="#333333", alpha=0.6, linewidth=0, zorder=3)
    PredictiveIntervalDisplay.from_estimator(model, grid, ax=ax)
    curves = np.transpose([exact_dist.mean, *exact_dist.interval(0.9)])
    lines = ax.plot(grid, curves, color="#8a8a8a", linewidth=1, linestyle="--")
    lines[0].set_label("exact GP")
    for points, height, colour, label in (
        (model.inducing_points_, -3.6, "#0b5fa5", "inducing points"),
        (model.orthogonal_points_, -4.1, "#b3261e", "orthogonal points"),
    ):
        ax.plot(
            points.ravel(),
            np.full(points.size, height),
            "|",
            color=colour,
            ms=10,
            mew=1.5,
            label=label,
        )
    ax.set_title(f"{name}: {evidence - model.lower_bound_:.1f} nats lost")
    ax.set(xlim=(-1, 7), ylim=(-4.5, 4), xlabel="", ylabel="")
    ax.get_legend().remove()
axes[0, 0].legend(frameon=False, ncols=3, loc="upper center")
fig.supxlabel("feature")
fig.supylabel("target")
plt.show()
