"""
Orthogonal inducing points: what the second set buys
====================================================

How few numbers does it take to stand for two hundred rows? A sparse Gaussian process sums them up in a few
*inducing points*: places at which it keeps the value of the function, and how sure it is of it. With too few of them
it is blurred, and every one more costs time, which grows as the cube of their number. Orthogonal inducing points are
a second set, for what the first leaves over, and two small sets cost somewhat less than one as large as both. This
example shows how close two sets of five come to one of ten.
"""

# %%
# Waves with a gap
# ----------------
# One feature, with nothing between 2.7 and 3.4 and nothing outside 0 to 6.

from skdgp.datasets import make_waves

X, y = make_waves(200, random_state=0)
X_test, y_test = make_waves(2000, random_state=1)
print(f"{len(X)} rows to learn from, {len(X_test)} to be tested on")

# %%
# The exact process
# -----------------
# Two hundred rows are few enough for scikit-learn's exact process, the ideal of all sparse ones. Its *log
# evidence* is the logarithm of the density that the model gives to the training targets. Training a sparse process
# maximises a *lower bound* of it: the distance between the two is what the summary has lost.

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

kernel = ConstantKernel() * RBF() + WhiteKernel(0.1)
exact = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0).fit(X, y)
evidence = exact.log_marginal_likelihood_value_ - len(y) * np.log(y.std())  # in the units of y
print(f"Log evidence of the exact process: {evidence:.1f}")

# %%
# Four sparse ones
# ----------------
# All are :class:`~skdgp.SOLVEGPRegressor`. SVGP has one set of inducing points. ODVGP has a second one, here of a
# hundred, which moves the mean and leaves the uncertainty alone (``orthogonal_covariance="prior"``). SOLVE-GP's second
# set has uncertainty of its own. ODVGP learns by minibatches, and ``beta=1`` tells it to maximise the bound itself; the
# others have the best summary in closed form. The *continuous ranked probability score* (CRPS) compares predictive
# distributions with fresh rows, in units of the target; lower is better.

from skdgp import SOLVEGPRegressor
from skdgp.metrics import crps, predictive_distribution

params = {"base": None, "n_neighbors": 0, "kernel": "rbf", "normalize_X": False, "random_state": 0}
models = {
    "SVGP 5": SOLVEGPRegressor(5, 0, **params),
    "ODVGP 5 + 100": SOLVEGPRegressor(
        5, 100, orthogonal_covariance="prior", beta=1.0, max_iter=400, dtype="float64", **params
    ),
    "SOLVE 5 + 5": SOLVEGPRegressor(5, 5, **params),
    "SVGP 10": SOLVEGPRegressor(10, 0, **params),
}
print(f"{'':<15}{'bound':>8}{'lost':>8}{'noise':>8}{'test CRPS':>12}")
for name, model in models.items():
    bound, noise = model.fit(X, y).lower_bound_, np.sqrt(model.noise_variance_)
    loss = crps(y_test, model.predict_dist(X_test))
    print(f"{name:<15}{bound:>8.1f}{evidence - bound:>8.1f}{noise:>8.3f}{loss:>12.4f}")
noise = y.std() * np.sqrt(exact.kernel_.k2.noise_level)
print(
    f"{'exact':<15}{evidence:>8.1f}{0:>8.1f}{noise:>8.3f}{crps(y_test, predictive_distribution(exact, X_test)):>12.4f}"
)

# %%
# What they predict
# -----------------
# Blue is the sparse process with its 90 % band, dashed the exact one. Ticks at the bottom are the inducing points,
# where training has put them, in blue the first set and in red the second.

import matplotlib.pyplot as plt

from skdgp.display import PredictiveIntervalDisplay

grid = np.linspace(-1, 7, 400)[:, None]
exact_dist = predictive_distribution(exact, grid)
fig, axes = plt.subplots(2, 2, figsize=(12, 7), sharex=True, sharey=True, layout="constrained")
for ax, (name, model) in zip(axes.flat, models.items(), strict=True):
    ax.scatter(X, y, s=7, color="#333333", alpha=0.6, linewidth=0, zorder=3)
    PredictiveIntervalDisplay.from_estimator(model, grid, ax=ax)
    curves = np.transpose([exact_dist.mean, *exact_dist.interval(0.9)])
    lines = ax.plot(grid, curves, color="#8a8a8a", linewidth=1, linestyle="--")
    lines[0].set_label("exact")
    for points, height, colour, label in (
        (model.inducing_points_, -3.6, "#0b5fa5", "inducing points"),
        (model.orthogonal_points_, -4.1, "#b3261e", "orthogonal ones"),
    ):
        ax.plot(points.ravel(), np.full(points.size, height), "|", color=colour, ms=10, mew=1.5, label=label)
    ax.set_title(f"{name}: {evidence - model.lower_bound_:.1f} nats lost")
    ax.set(xlim=(-1, 7), ylim=(-4.5, 4), xlabel="", ylabel="")
    ax.get_legend().remove()
axes[0, 0].legend(frameon=False, ncols=3, loc="upper center")
fig.supxlabel("feature")
fig.supylabel("target")
plt.show()
