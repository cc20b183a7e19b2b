"""
What a hidden layer may be
==========================

A deep Gaussian process is a chain of functions. Many chains explain the same data: if one layer doubles its input, the
next can halve it. So what is a hidden layer like? The usual posterior picks a single answer, and is certain of it.
``layer_posterior`` has three that leave the question as open as it is.
"""

# %%
# A curve, and a chain of two functions
# -------------------------------------
# The second layer of the model is periodic. The first one says where in its period a row is, and need not be a line.

import numpy as np

X = np.linspace(-2, 2, 20)[:, None]
y = np.sin(2 * np.pi * (0.35 * X[:, 0] + 0.1 * X[:, 0] ** 2))

# %%
# Four answers
# ------------
# All rows take part in every step, and ``beta=1`` is the evidence lower bound itself: the question is what the bound
# prefers, not which model predicts best.

from sklearn.gaussian_process.kernels import RBF, ConstantKernel, ExpSineSquared

from skdgp import DSDGPRegressor

kernels = [ConstantKernel(1.0) * RBF(1.0), ConstantKernel(1.0) * ExpSineSquared(1.0, 2.0)]
parameters = {
    "hidden_dims": (1,),
    "n_inducing": 10,
    "kernel": kernels,
    "covariance": "full",
    "beta": 1.0,
    "base": None,
    "n_neighbors": 0,
    "early_stopping": False,
    "n_estimators": 1,
    "max_iter": 1500,
    "batch_size": len(X),
    "learning_rate": 0.03,
    "random_state": 0,
}
names = ("factorised", "joint", "chain", "locations")
models = {name: DSDGPRegressor(layer_posterior=name, **parameters).fit(X, y) for name in names}

for name, model in models.items():
    hidden, _ = model.sample_layers(np.zeros((1, 1)), 1000, random_state=0)
    print(f"{name}: deviation of the hidden layer at 0 is {hidden.std():.3f}")

# %%
# Functions of both layers
# ------------------------
# ``LatentDisplay`` draws functions with ``n_draws``. On the left is the hidden layer, and on the right the whole chain.
# Functions of both layers are drawn together: where a hidden function lies higher, the last layer makes up for it. The
# factorised posterior is nearly certain of its hidden layer wherever the curve bends. "joint" and "chain" are less so.
# "locations" has found hidden functions of quite different heights, and they all end in the same curve.

import matplotlib.pyplot as plt

from skdgp.display import LatentDisplay

_, axes = plt.subplots(4, 2, figsize=(8, 10), sharex=True, sharey="col", layout="constrained")
for row, (name, model) in zip(axes, models.items(), strict=True):
    LatentDisplay.from_estimator(model, X, n_draws=25, random_state=1, ax=row)
    row[0].set_ylabel(f'"{name}"')
    row[1].plot(X, (y - y.mean()) / y.std(), ".", color="black")
    for ax in row:
        ax.label_outer()
plt.show()

# %%
# When to use them
# ----------------
# When hidden layers mean something, and the question is how much the data say about them. For predictions alone the
# factorised posterior is as good on most tables, and faster; :doc:`/global` has the comparison.
