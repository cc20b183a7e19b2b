"""
Hidden layers: how much do the data say about them?
===================================================

A deep Gaussian process is a chain of functions, one for each layer. Many chains explain the same data: if one layer
doubles its input, the next layer can halve it again. So which functions may a hidden layer be? Training learns a
distribution of the functions, the *posterior*. The usual posterior settles on a single answer, and is nearly certain of
it. ``layer_posterior`` has three alternatives that leave more answers possible.
"""

# %%
# The data: a curve
# -----------------
# The curve is a sine wave that becomes faster from left to right. The model is a chain of two functions. The second one
# is periodic. The first one says where in its period a row is, and need not be a straight line.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

X = np.linspace(-2, 2, 20)[:, None]
y = np.sin(2 * np.pi * (0.35 * X[:, 0] + 0.1 * X[:, 0] ** 2))

# %%
# Four posteriors
# ---------------
# All rows take part in every training step. With ``beta=1`` training maximises the *evidence lower bound*, a lower
# bound of the log density that the model gives to the targets. The default is a smaller ``beta``, chosen for
# predictions. Here we do not want the best predictions, but the functions for which the bound is largest. The output
# says how uncertain each posterior is of the hidden layer at the input 0.

from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    ExpSineSquared,
)

from skdgp import DSDGPRegressor

kernels = [
    ConstantKernel(1.0) * RBF(1.0),
    ConstantKernel(1.0) * ExpSineSquared(1.0, 2.0),
]
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
    "max_iter": 800,
    "batch_size": len(X),
    "learning_rate": 0.03,
    "random_state": 0,
}
names = ("factorised", "joint", "chain", "locations")
models = {
    name: DSDGPRegressor(layer_posterior=name, **parameters).fit(X, y)
    for name in names
}

deviations = {}
for name, model in models.items():
    hidden, _ = model.sample_layers(np.zeros((1, 1)), 1000, random_state=0)
    deviations[name] = hidden.std()
    print(f'"{name}": standard deviation {deviations[name]:.3f} at 0')
assert min(deviations, key=deviations.get) == "factorised"

# %%
# Functions of both layers
# ------------------------
# ``LatentDisplay`` draws functions from the posterior if you set ``n_draws``. The left column has the hidden layer, and
# the right column has the whole chain. The black dots are the rows. The curves reach from the 2.5 % to the 97.5 %
# quantile of the feature, so that the first and the last row lie outside. The factorised posterior is nearly certain of
# its hidden layer. The others are less certain. This is possible because in the three alternatives the functions of the
# two layers depend on each other: if the hidden function lies higher, the function of the last layer makes up for it.
# "locations" moves whole hidden functions up and down. It has the widest spread.

assert max(deviations, key=deviations.get) == "locations"

import matplotlib.pyplot as plt

from skdgp.display import LatentDisplay

_, axes = plt.subplots(
    4, 2, figsize=(8, 10), sharex=True, sharey="col", layout="constrained"
)
for row, (name, model) in zip(axes, models.items(), strict=True):
    LatentDisplay.from_estimator(model, X, n_draws=25, random_state=1, ax=row)
    row[0].set_ylabel(f'"{name}"')
    row[1].plot(X, (y - y.mean()) / y.std(), ".", color="black")
    for ax in row:
        ax.set_xlabel("feature" if ax in axes[-1] else "")
plt.show()

# %%
# When to use them
# ----------------
# Use one of the alternatives if the hidden layers have a meaning, and you want to know how much the data say about
# them. For predictions, keep the factorised posterior. It takes less time, and on most tables it predicts as well.
# :doc:`/methods` has the comparison, and explains the alternatives.
