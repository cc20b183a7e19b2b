"""
Targets with several values
===========================

The same drive to work takes half an hour, or twice as long when the bridge is up. No column of the table says when that
is. An interval that holds both durations holds every one in between as well, which nobody has ever seen. A latent
variable of every row, ``latent_dims=1``, stands for what the table does not say. The predictive distribution then has
two modes where there are two, and one where there is one.
"""

# %%
# The bridge
# ----------
# Minutes to work over the hour of departure. Ships pass between seven and nine.

import numpy as np

rng = np.random.default_rng(0)


def make_drives(n_drives):
    """Hours of departure (n, 1), and minutes on the road (n,)."""
    hour = rng.uniform(5, 11, n_drives)
    rush = np.exp(-0.5 * ((hour - 8) / 1.2) ** 2)
    is_up = (np.abs(hour - 8) < 1) & (rng.random(n_drives) < 0.4)
    return hour[:, None], 30 + 12 * rush + 25 * is_up + 1.5 * rng.standard_normal(n_drives)


X, y = make_drives(500)
X_new, y_new = make_drives(2000)

# %%
# One value, or two
# -----------------
# ``n_importance=5`` trains with the importance-weighted bound: five values of each row's latent variable at a time. It
# takes longer than ``n_importance=1``, and predicts better in most cases.

from skdgp import DSDGPRegressor

one = DSDGPRegressor(n_estimators=1, random_state=0).fit(X, y)
two = DSDGPRegressor(latent_dims=1, n_importance=5, n_estimators=1, random_state=0).fit(X, y)

for name, model in {"latent_dims=0": one, "latent_dims=1": two}.items():
    dist = model.predict_dist(X_new)
    lower, upper = dist.interval(0.9)
    inside = (lower <= y_new) & (y_new <= upper)
    print(f"{name}: NLL {dist.log_score(y_new).mean():.2f}, {inside.mean():.0%} within 90 % intervals")

# %%
# The densities of both models, from white to dark. The first one has to call 50 minutes at eight o'clock the likeliest.

import matplotlib.pyplot as plt

hours, minutes = np.linspace(5, 11, 181)[:, None], np.linspace(25, 80, 221)
_, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, {"latent_dims=0": one, "latent_dims=1": two}.items(), strict=True):
    density = np.exp(model.predict_dist(hours).logpdf(minutes[:, None]))  # (minutes, hours)
    ax.pcolormesh(hours[:, 0], minutes, np.sqrt(density), cmap="Blues", shading="auto")
    ax.plot(X, y, ".", color="black", markersize=2.5)
    ax.set(title=name, xlabel="Hour of departure")
axes[0].set_ylabel("Minutes")
plt.show()

# %%
# Questions that a mean cannot answer
# -----------------------------------
# How likely is it to arrive in time, if 45 minutes are left? And what if 55 are? The answers differ little at eight
# o'clock, since hardly any drive takes between 45 and 60 minutes. The model without a latent variable thinks that ten
# more minutes are worth a lot.

at_eight = np.array([[8.0]])
actual = y_new[np.abs(X_new[:, 0] - 8) < 0.25]
for left in (45, 55):
    answers = [model.predict_dist(at_eight).cdf(np.array([left]))[0] for model in (one, two)]
    print(
        f"{left} minutes: {answers[0]:.0%} without and {answers[1]:.0%} with it; {np.mean(actual < left):.0%} in fact"
    )

# %%
# A function drawn by ``sample_functions`` keeps one value of the latent variable. It follows one branch wherever it
# goes: a morning of ships, or one without. In draws of observations, ``sample_y``, every row has a value of its own.

functions, drives = two.sample_functions(6, random_state=1)(hours), two.sample_y(hours, 1, random_state=1)
_, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
axes[0].plot(hours, functions, linewidth=1.2)
axes[1].plot(hours, drives, ".", markersize=4)
axes[0].set(title="Six functions", xlabel="Hour of departure", ylabel="Minutes")
axes[1].set(title="Observations, one at each hour", xlabel="Hour of departure")
plt.show()

# %%
# Letters as a table
# ------------------
# A harder case: points within the letters DGP, whose height is to be predicted from where they are across. There are
# one, two or three ranges of heights at each place, with sharp ends. Depth alone does not help, for a function has one
# value at each place. A latent variable does, and a deep model with one is the best of the four.

from skdgp.datasets import make_letters

points, inside = make_letters(9000, random_state=0)
points = points[inside == 1]
train, test = points[:1500], points[1500:]
models = {
    "Shallow": {"hidden_dims": ()},
    "Deep": {"hidden_dims": (2,)},
    "Shallow, latent variable": {"hidden_dims": (), "latent_dims": 1, "n_importance": 5},
    "Deep, latent variable": {"hidden_dims": (2,), "latent_dims": 1, "n_importance": 5},
}
_, axes = plt.subplots(1, 5, figsize=(12.5, 2.8), sharey=True, layout="constrained")
axes[0].plot(*train.T, ".", color="black", markersize=1.5)
axes[0].set(title="Data", xlabel="Across", ylabel="Height")
grid, heights = np.linspace(0, 1, 161)[:, None], np.linspace(-0.2, 1.2, 141)
for ax, (name, parameters) in zip(axes[1:], models.items(), strict=True):
    model = DSDGPRegressor(n_estimators=1, random_state=0, **parameters).fit(train[:, :1], train[:, 1])
    score = model.predict_dist(test[:, :1]).log_score(test[:, 1]).mean()
    density = np.exp(model.predict_dist(grid).logpdf(heights[:, None]))
    ax.pcolormesh(grid[:, 0], heights, density, cmap="Greys", vmax=4, shading="auto")
    ax.set(title=f"{name}\nNLL {score:.2f}", xlabel="Across")
plt.show()

# %%
# When to use it
# --------------
# Look at the residuals of a fitted model, or at a scatter plot of targets over the feature that matters most: where
# they form two clouds, or have a sharp end on one side, a latent variable describes them. Where noise is a plain bell,
# it only takes time. :doc:`/choosing` has what it gained on twenty tables.
