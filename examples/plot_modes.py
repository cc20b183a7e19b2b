"""
Targets with several values at the same features
================================================

What should a model predict if a drive takes 42 minutes on one day and 67 on the next? Both drives start at eight, but
on the second day the bridge is up, and no column of the table says so. An interval that contains both durations also
contains all durations in between, which nobody has ever seen. ``latent_dims=1`` gives every row a *latent variable*, an
unknown number that stands for what the table does not say. The predictive distribution then has two *modes* (peaks)
where targets have two values, and one mode where they have one.
"""

# %%
# The bridge
# ----------
# The feature is the hour of departure, and the target is the duration of the drive in minutes. Ships pass between seven
# and nine, and the bridge is then up for four in ten drives.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

rng = np.random.default_rng(0)


def make_drives(n_drives):
    """Hours of departure (n, 1), and minutes on the road (n,)."""
    hour = rng.uniform(5, 11, n_drives)
    rush = np.exp(-0.5 * ((hour - 8) / 1.2) ** 2)
    is_up = (np.abs(hour - 8) < 1) & (rng.random(n_drives) < 0.4)
    return hour[
        :, None
    ], 30 + 12 * rush + 25 * is_up + 1.5 * rng.standard_normal(n_drives)


X, y = make_drives(500)
X_new, y_new = make_drives(2000)

# %%
# Without and with a latent variable
# ----------------------------------
# ``n_importance=5`` trains with the importance-weighted bound. It uses five values of each row's latent variable at a
# time. Training takes longer than with ``n_importance=1``, and predictions are better in most cases. The other model
# has ``objective="elbo"``. The default would see that these targets are not Gaussian, and add a member that learns
# densities.

from skdgp import DSDGPRegressor
from skdgp.metrics import coverage

one = DSDGPRegressor(objective="elbo", n_estimators=1, random_state=0).fit(
    X, y
)
two = DSDGPRegressor(
    latent_dims=1, n_importance=5, n_estimators=1, random_state=0
).fit(X, y)

losses = {}
for name, model in {"latent_dims=0": one, "latent_dims=1": two}.items():
    dist = model.predict_dist(X_new)
    losses[name] = dist.log_score(y_new).mean()
    inside = coverage(y_new, *dist.interval(0.9))
    print(f"{name}: NLL {losses[name]:.2f}, {inside:.0%} in 90 % intervals")
assert losses["latent_dims=1"] < losses["latent_dims=0"] - 0.5

# %%
# The picture shows the density that each model predicts. The darker the colour, the higher is the density. At eight
# o'clock the model without a latent variable says that about 50 minutes are most likely. In fact hardly any drive takes
# 50 minutes.

import matplotlib.pyplot as plt

hours, minutes = np.linspace(5, 11, 181)[:, None], np.linspace(25, 80, 221)
_, axes = plt.subplots(
    1, 2, figsize=(9, 3.8), sharey=True, layout="constrained"
)
for ax, (name, model) in zip(
    axes, {"latent_dims=0": one, "latent_dims=1": two}.items(), strict=True
):
    # (minutes, hours)
    density = np.exp(model.predict_dist(hours).logpdf(minutes[:, None]))
    ax.pcolormesh(
        hours[:, 0], minutes, np.sqrt(density), cmap="Blues", shading="auto"
    )
    ax.plot(X, y, ".", color="black", markersize=2.5)
    ax.set(title=name, xlabel="Hour of departure")
axes[0].set_ylabel("Minutes")
plt.show()

# %%
# Questions that a mean cannot answer
# -----------------------------------
# How likely are you to arrive in time if you leave at eight o'clock and have 45 minutes? And if you have 55? The true
# answers differ little, since hardly any drive takes between 45 and 60 minutes. But the model without a latent variable
# expects ten more minutes to help a lot.

at_eight = np.array([[8.0]])
actual = y_new[np.abs(X_new[:, 0] - 8) < 0.25]
for left in (45, 55):
    answers = [
        model.predict_dist(at_eight).cdf(np.array([left]))[0]
        for model in (one, two)
    ]
    print(
        f"{left} minutes: probability {answers[0]:.0%} without a latent "
        f"variable and {answers[1]:.0%} with it; "
        f"in fact {np.mean(actual < left):.0%} of the drives"
    )

# %%
# A function drawn by ``sample_functions`` keeps one value of the latent variable. So it follows one branch at all
# hours: on such a morning the bridge is up for all drives, or for none. Now and then a function lies between the two,
# where the latent variable is between the values of the branches. In draws of observations, ``sample_y``, every row has
# a value of its own.

functions, drives = (
    two.sample_functions(6, random_state=1)(hours),
    two.sample_y(hours, 1, random_state=1),
)
_, axes = plt.subplots(
    1, 2, figsize=(9, 3.4), sharey=True, layout="constrained"
)
axes[0].plot(hours, functions, linewidth=1.2)
axes[1].plot(hours, drives, ".", markersize=4)
axes[0].set(
    title="Six functions", xlabel="Hour of departure", ylabel="Minutes"
)
axes[1].set(title="Draws of observations", xlabel="Hour of departure")
plt.show()

# %%
# A harder case: letters
# ----------------------
# The rows are points inside the letters D, G and P. The feature is how far to the right a point lies, and the target is
# its height. At each place there are one, two or three ranges of heights, with sharp ends. Depth alone does not help,
# because a function has only one value at each place. A latent variable does.

from skdgp.datasets import make_letters

points, inside = make_letters(9000, random_state=0)
points = points[inside == 1]
train, test = points[:1000], points[1000:]
models = {
    "Deep": {"hidden_dims": (2,)},
    "Deep, latent variable": {
        "hidden_dims": (2,),
        "latent_dims": 1,
        "n_importance": 5,
    },
}
scores = []
_, axes = plt.subplots(
    1, 3, figsize=(9, 3.2), sharey=True, layout="constrained"
)
axes[0].plot(*train.T, ".", color="black", markersize=1.5)
axes[0].set(title="Data", xlabel="Place", ylabel="Height", xlim=(0, 1))
grid, heights = np.linspace(0, 1, 161)[:, None], np.linspace(-0.2, 1.2, 141)
for ax, (name, parameters) in zip(axes[1:], models.items(), strict=True):
    model = DSDGPRegressor(n_estimators=1, random_state=0, **parameters).fit(
        train[:, :1], train[:, 1]
    )
    score = model.predict_dist(test[:, :1]).log_score(test[:, 1]).mean()
    scores.append(score)
    density = np.exp(model.predict_dist(grid).logpdf(heights[:, None]))
    ax.pcolormesh(
        grid[:, 0], heights, density, cmap="Greys", vmax=4, shading="auto"
    )
    ax.set(title=f"{name}\nNLL {score:.2f}", xlabel="Place")
assert scores[1] < scores[0] - 0.2
plt.show()

# %%
# When to use it
# --------------
# Plot the residuals of a fitted model, or the targets, against the feature that matters most. If the points form two
# clouds, or have a sharp end on one side, a latent variable can describe them. If the noise is plainly Gaussian, it
# only takes time.
