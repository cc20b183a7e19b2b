"""
A long series in a second
=========================

A meter is read every minute for half a year. A sparse GP with inducing points would have to look at all rows again and
again. With Fourier features it looks at them once.
"""

# %%
# Readings
# --------
# 260 000 of them, noisy, with a daily rhythm that comes and goes with the weather. Two days are missing.

import time

import numpy as np

rng = np.random.default_rng(0)
days = np.arange(0, 180, 1 / 1440)


def power(t):
    """What is measured, in kilowatts."""
    weather = np.sin(t / 4.7) + 0.6 * np.sin(t / 1.9 + 1.0)
    return 3.0 + weather + (0.6 + 0.3 * weather) * np.sin(2 * np.pi * t)


there = (days < 90.0) | (days > 92.0)
X, y = days[there, None], power(days[there]) + 0.5 * rng.standard_normal(there.sum())
print(f"{len(X)} readings")

# %%
# Inducing variables that are waves
# ---------------------------------
# The inducing variables of ``inducing="fourier"`` are products of the function with cosines and sines on the range of
# ``X``. What a reading has to do with them does not depend on the kernel's lengthscale or variance. So sums over
# readings are taken once, and learning goes on with the sums. ``n_inducing`` says how fast the function may change:
# 1000 features are waves of up to 500 periods in 180 days and their margins, so that a day has room for more than two.

from skdgp import SOLVEGPRegressor

start = time.perf_counter()
model = SOLVEGPRegressor(1000, inducing="fourier", n_neighbors=0, base=None, random_state=0).fit(X, y)
print(f"fitted in {time.perf_counter() - start:.1f} s by method_={model.method_!r}")
print("kernel", model.kernel_)
print(f"noise {np.sqrt(model.noise_variance_):.3f} (of the data: 0.5)")

# %%
# Four days with a gap
# --------------------
# The band holds the curve in 95 % of places. It is wider in the gap, where functions drawn from the model go their own
# ways.

import matplotlib.pyplot as plt

window = np.linspace(89.0, 93.0, 600)[:, None]
mean, std = model.predict_dist(window, latent=True).mean, model.predict_dist(window, latent=True).std
near = (X[:, 0] > window[0]) & (X[:, 0] < window[-1])
figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
ax.plot(X[near, 0], y[near], ".", ms=1.0, alpha=0.25, color="tab:gray", label="readings")
ax.fill_between(window[:, 0], mean - 1.96 * std, mean + 1.96 * std, alpha=0.3, label="95 % of the curve")
ax.plot(window[:, 0], model.sample_functions(4, random_state=0)(window), lw=0.8, color="tab:blue")
ax.plot(window[:, 0], power(window[:, 0]), "--", color="black", lw=1.0, label="true curve")
ax.set(xlabel="day", ylabel="kW", ylim=(0, 7))
ax.legend(loc="lower right", markerscale=6)
plt.show()

# %%
# How well it knows the curve
# ---------------------------
# Beside it is the same model with as many inducing points as a patient user would take. It learns by minibatches, from
# a tenth of the readings to keep this page short.

places = rng.uniform(1, 179, (5000, 1))
start = time.perf_counter()
points = SOLVEGPRegressor(300, 0, n_neighbors=0, base=None, max_iter=10, random_state=0).fit(X[::10], y[::10])
print(f"points: fitted in {time.perf_counter() - start:.1f} s")
for name, each in {"fourier": model, "points": points}.items():
    dist = each.predict_dist(places, latent=True)
    error = np.sqrt(np.mean((dist.mean - power(places[:, 0])) ** 2))
    print(f"{name:8s} error of the curve {error:.3f}, deviation that the model states {dist.std.mean():.3f}")

# %%
# Points lie too far apart for a rhythm of one day: 300 of them have more than half a day between them, and the model
# takes the rhythm for noise. With several features ``inducing="fourier"`` makes the kernel a sum over features. See
# "What inducing variables are" in :doc:`/choosing`, and the formulas in :doc:`/mathematics`.
