"""
Depth instead of width: reading with eight inducing points
==========================================================

Can a model that sums up what it knows in eight numbers learn to read? A sparse Gaussian process describes a function
by its values at a few *inducing points*, and eight are few for the straight edges, curves, corners and holes of three
letters. A *deep* Gaussian process chains layers, of which each bends the plane for the next. This example gives
eight inducing points to one layer, or shares them among two and three.
"""

# %%
# Inside or outside
# -----------------
# Points of the unit square, and whether each lies inside the letters DGP.

from skdgp.datasets import make_letters

X, y = make_letters(8000, random_state=0)
X_test, y_test = make_letters(10000, random_state=1)
print(f"{len(X)} points to learn from, {100 * y.mean():.0f} % of them inside, and {len(X_test)} to be tested on")

# %%
# Three classifiers, eight inducing points each
# ---------------------------------------------
# :class:`~skdgp.AVDGPClassifier` computes a row's inducing points from the row itself, by small networks.
# ``n_inducing`` are those of each layer, and ``hidden_dims`` are the numbers of outputs of the layers before the
# last, two here. All else is the same for all: one model and not an ensemble, to save time, and layers that start as
# the identity and learn what to add to it (``mean="identity"``). The fits have nothing to do with each other, so
# joblib gives each a core, beginning with the longest.

from joblib import Parallel, delayed

from skdgp import AVDGPClassifier

n_inducing = {"3 layers": (4, 2, 2), "2 layers": (4, 4), "1 layer": (8,)}
budget = {"n_estimators": 1, "n_samples": 4, "network_width": 64, "batch_size": 400, "max_iter": 100}
params = {"mean": "identity", "base": None, "random_state": 1} | budget
models = [AVDGPClassifier((2,) * (len(each) - 1), each, **params) for each in n_inducing.values()]
fitted = Parallel(n_jobs=-1)(delayed(model.fit)(X, y) for model in models)
models = dict(reversed([*zip(n_inducing, fitted, strict=True)]))

# %%
# Scores
# ------
# The log loss judges the probabilities, and not only the labels that they lead to: it is the mean of
# :math:`-\log p` over the probabilities :math:`p` that were given to the true labels. With other initial values
# (``random_state``) neighbours can swap places.

from sklearn.metrics import log_loss

errors = {name: 100 * (1 - model.score(X_test, y_test)) for name, model in models.items()}
print(f"{'':<10}{'inducing points':<17}{'error':>8}{'log loss':>11}")
for name, model in models.items():
    points, loss = " + ".join(map(str, n_inducing[name])), log_loss(y_test, model.predict_proba(X_test))
    print(f"{name:<10}{points:<17}{errors[name]:>6.1f} %{loss:>11.3f}")

# %%
# What each of them reads
# -----------------------
# The probability of "inside" over the square: blue is sure to be inside, orange is undecided, and white lines are where
# it is one half.

import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from sklearn.inspection import DecisionBoundaryDisplay

colours = LinearSegmentedColormap.from_list("letters", ["#f4f1ea", "#e08a2e", "#0b5fa5"])
fig, axes = plt.subplots(2, 2, figsize=(9, 8.2), layout="constrained")
axes[0, 0].scatter(*X.T, c=y, cmap=ListedColormap(["#d9d2c3", "#0b5fa5"]), s=3, linewidth=0)
axes[0, 0].set_title(f"{len(X)} points to learn from")
style = {"response_method": "predict_proba", "plot_method": "pcolormesh", "cmap": colours, "vmin": 0, "vmax": 1}
for ax, (name, model) in zip(axes.flat[1:], models.items(), strict=True):
    shown = DecisionBoundaryDisplay.from_estimator(model, X, eps=0, grid_resolution=200, ax=ax, **style)
    ax.contour(shown.xx0, shown.xx1, shown.response, levels=[0.5], colors="white", linewidths=0.8)
    ax.set_title(f"{name}: {errors[name]:.1f} % wrong")
for ax in axes.flat:
    ax.set(xticks=[], yticks=[], xlabel="", ylabel="", aspect="equal", xlim=(0, 1), ylim=(0, 1))
fig.colorbar(shown.surface_, ax=axes, shrink=0.5, aspect=30, label='probability of "inside"')
plt.show()

# %%
# How depth does it
# -----------------
# :class:`~skdgp.display.LatentDisplay` follows the square through the layers of the deepest model. Each panel is what a
# layer passes on, as a height over the plane; of a layer with two outputs it is the direction in which they vary most.
# The first layer knows broad slopes only, the last one the letters.

from skdgp.display import LatentDisplay

display = LatentDisplay.from_estimator(models["3 layers"], X, features=(0, 1), contour_kwargs={"cmap": "cividis"})
for ax in display.axes_:
    ax.set_axis_off()
plt.show()
