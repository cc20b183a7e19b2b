"""
A long series in seconds: Fourier features
==========================================

A meter is read every minute for half a year. How can a Gaussian process (GP) learn from so many readings in a short
time? A sparse GP with *inducing points* summarises the readings by the function's values at some times. Training
changes the points and the kernel in many steps, and has to look at the readings again in each step. With *Fourier
features*, waves take the place of the points. Then the model has to look at the readings only once.
"""

# %%
# The data: readings of a meter
# -----------------------------
# There are about 256 000 noisy readings. They have a daily rhythm, which becomes stronger and weaker with the weather.
# The readings of two days are missing.

import time

import numpy as np

rng = np.random.default_rng(0)
days = np.arange(0, 180, 1 / 1440)


def power(t):
    """The true power at a time in days, in kilowatts."""
    weather = np.sin(t / 4.7) + 0.6 * np.sin(t / 1.9 + 1.0)
    return 3.0 + weather + (0.6 + 0.3 * weather) * np.sin(2 * np.pi * t)


there = (days < 90.0) | (days > 92.0)
X, y = (
    days[there, None],
    power(days[there]) + 0.5 * rng.standard_normal(there.sum()),
)
print(f"{len(X)} readings")

# %%
# Waves instead of points
# -----------------------
# *Inducing variables* are the numbers in which the model stores what it has learnt. With ``inducing="fourier"`` they
# are inner products of the function with cosines and sines on the range of ``X``. The values of these waves at the
# readings do not change while the lengthscale and the variance of the kernel are learnt. So the model sums over all
# readings once. Then training needs only these sums.
#
# ``n_inducing`` limits how fast the function may change. Here the 1000 features are waves with up to 500 periods. The
# waves cover the 180 days and a margin at both ends, so the fastest wave has more than two periods in a day.

from skdgp import SOLVEGPRegressor

start = time.perf_counter()
model = SOLVEGPRegressor(
    1000, inducing="fourier", n_neighbors=0, base=None, random_state=0
).fit(X, y)
print(
    f"fitted in {time.perf_counter() - start:.1f} s by "
    f"method_={model.method_!r}"
)
print("kernel", model.kernel_)
print(
    f"standard deviation of the noise {np.sqrt(model.noise_variance_):.3f} "
    "(true value: 0.5)"
)

# %%
# Four days with a gap
# --------------------
# The band should contain the true curve at 95 % of all times. It is wider in the gap, where there are no readings. The
# thin blue lines are four functions drawn from the model. They stay close together where there are readings, and
# separate in the gap.

import matplotlib.pyplot as plt

window = np.linspace(89.0, 93.0, 600)[:, None]
mean, std = model.predict(window, return_std=True, latent=True)
near = (X[:, 0] > window[0]) & (X[:, 0] < window[-1])
figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
ax.plot(
    X[near, 0],
    y[near],
    ".",
    ms=1.0,
    alpha=0.25,
    color="tab:gray",
    label="readings",
)
ax.fill_between(
    window[:, 0],
    mean - 1.96 * std,
    mean + 1.96 * std,
    alpha=0.3,
    label="95 % band of the curve",
)
ax.plot(
    window[:, 0],
    model.sample_functions(4, random_state=0)(window),
    lw=0.8,
    color="tab:blue",
)
ax.plot(
    window[:, 0],
    power(window[:, 0]),
    "--",
    color="black",
    lw=1.0,
    label="true curve",
)
ax.set(xlabel="day", ylabel="power (kW)", ylim=(0, 7))
ax.legend(loc="upper left", markerscale=6)
plt.show()

# %%
# How accurate is the curve?
# --------------------------
# For comparison, here is the same model with inducing points, as many as a patient user would take. It learns from
# minibatches. It gets only a tenth of the readings, so that this example runs quickly. The output has the root mean
# squared error (RMSE) of each predicted curve, and the standard deviation that the model itself predicts for this
# error. The two numbers should be similar.

places = rng.uniform(1, 179, (5000, 1))
start = time.perf_counter()
points = SOLVEGPRegressor(
    300, 0, n_neighbors=0, base=None, max_iter=4, random_state=0
).fit(X[::10], y[::10])
print(f"points: fitted in {time.perf_counter() - start:.1f} s")
errors = {}
for name, estimator in {"fourier": model, "points": points}.items():
    dist = estimator.predict_dist(places, latent=True)
    errors[name] = error = np.sqrt(
        np.mean((dist.mean - power(places[:, 0])) ** 2)
    )
    print(
        f"{name:8s} RMSE of the curve {error:.3f}, predicted standard "
        f"deviation {dist.std.mean():.3f}"
    )
assert errors["fourier"] < 0.25 * errors["points"]

# %%
# The 300 points are more than half a day apart. This is too far for a rhythm of one day, so the model with points takes
# the rhythm for noise.
#
# With several features, ``inducing="fourier"`` makes the kernel a sum of kernels, one for each feature. See "What
# inducing variables are" in :doc:`/choosing`, and the formulas in :doc:`/mathematics`.
