"""
Depth or width: eight inducing points in one layer or in two
============================================================

Is it better to have one layer with many inducing points, or two layers with few? A sparse Gaussian process describes a
function by its values at a few places, its *inducing points*. Here the function has to say which points lie inside
three letters, and eight inducing points are few for all the straight edges, curves, corners and holes. A *deep*
Gaussian process is a chain of layers, and each layer bends the plane for the next one. This example gives eight
inducing points to one layer, or divides them among two layers.
"""

# %%
# Inside or outside
# -----------------
# The rows are points of the unit square. The label says whether a point lies inside the letters D, G and P.

# sphinx_gallery_thumbnail_number = 0
from skdgp.datasets import make_letters

X, y = make_letters(6000, random_state=0)
X_test, y_test = make_letters(5000, random_state=1)
print(
    f"{len(X)} points to learn from, {100 * y.mean():.0f} % of them inside, "
    f"and {len(X_test)} to be tested on"
)

# %%
# Two classifiers with eight inducing points each
# -----------------------------------------------
# :class:`~skdgp.AVDGPClassifier` computes the inducing points of a row from the row itself (:doc:`/methods`).
# ``n_inducing`` contains the number of points in each layer. ``hidden_dims`` contains the number of outputs of each
# hidden layer, which is two here.
#
# Everything else is the same in both classifiers. Each of them is a single model and not an ensemble, to save time.
# With ``mean="identity"`` the hidden layer starts as the identity, and learns what to add to it. joblib fits the
# classifiers side by side, each on a core of its own, and begins with the one that takes longest.

from joblib import Parallel, delayed

from skdgp import AVDGPClassifier

n_inducing = {"2 layers": (4, 4), "1 layer": (8,)}
budget = {
    "n_estimators": 1,
    "n_samples": 4,
    "network_width": 64,
    "batch_size": 400,
    "max_iter": 80,
}
params = {"mean": "identity", "base": None, "random_state": 1} | budget
models = [
    AVDGPClassifier((2,) * (len(numbers) - 1), numbers, **params)
    for numbers in n_inducing.values()
]
fitted = Parallel(n_jobs=-1)(delayed(model.fit)(X, y) for model in models)
models = dict(zip(reversed(n_inducing), reversed(fitted), strict=True))

# %%
# Scores
# ------
# The error is the share of wrong labels. The log loss judges the probabilities, too. It is the mean of :math:`-\log p`,
# where :math:`p` is the probability that the model has given to the true label. Two layers make far fewer errors than
# one layer with as many inducing points.

from sklearn.metrics import log_loss

errors = {
    name: 100 * (1 - model.score(X_test, y_test))
    for name, model in models.items()
}
print(f"{'':<10}{'inducing points':<17}{'error':>8}{'log loss':>11}")
for name, model in models.items():
    points, loss = (
        " + ".join(map(str, n_inducing[name])),
        log_loss(y_test, model.predict_proba(X_test)),
    )
    print(f"{name:<10}{points:<17}{errors[name]:>6.1f} %{loss:>11.3f}")

assert errors["2 layers"] < 0.8 * errors["1 layer"]

# %%
# What each model has learnt
# --------------------------
# The colour is the predicted probability of "inside". Blue means that the model is sure of "inside", and orange that it
# is undecided. The white lines are where the probability is one half.

import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from sklearn.inspection import DecisionBoundaryDisplay

colours = LinearSegmentedColormap.from_list(
    "letters", ["#f4f1ea", "#e08a2e", "#0b5fa5"]
)
fig, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
axes[0].scatter(
    *X.T, c=y, cmap=ListedColormap(["#d9d2c3", "#0b5fa5"]), s=3, linewidth=0
)
axes[0].set_title(f"{len(X)} points to learn from")
style = {
    "response_method": "predict_proba",
    "plot_method": "pcolormesh",
    "cmap": colours,
    "vmin": 0,
    "vmax": 1,
}
for ax, (name, model) in zip(axes[1:], models.items(), strict=True):
    shown = DecisionBoundaryDisplay.from_estimator(
        model, X, eps=0, grid_resolution=200, ax=ax, **style
    )
    ax.contour(
        shown.xx0,
        shown.xx1,
        shown.response,
        levels=[0.5],
        colors="white",
        linewidths=0.8,
    )
    ax.set_title(f"{name}: {errors[name]:.1f} % wrong")
for ax in axes:
    ax.set(
        xticks=[],
        yticks=[],
        xlabel="",
        ylabel="",
        aspect="equal",
        xlim=(0, 1),
        ylim=(0, 1),
    )
fig.colorbar(
    shown.surface_,
    ax=axes,
    shrink=0.9,
    aspect=30,
    label='probability of "inside"',
)
plt.show()

# %%
# How depth does it
# -----------------
# :class:`~skdgp.display.LatentDisplay` shows what each layer of the deep model makes of the square. Each panel shows
# the output of one layer, as a height over the plane. If a layer has two outputs, the panel shows their first principal
# component. The first layer has mostly broad slopes. The last layer has the letters.

from skdgp.display import LatentDisplay

display = LatentDisplay.from_estimator(
    models["2 layers"], X, features=(0, 1), contour_kwargs={"cmap": "cividis"}
)
for ax in display.axes_:
    ax.set_axis_off()
plt.show()
