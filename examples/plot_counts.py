"""
Counts, and how many to expect
==============================

How many calls will come in this hour, how many bicycles will be hired? Counts are whole, never negative, and vary the
more the larger they are. A Gaussian knows none of that: it gives half a probability to less than nothing where counts
are small. ``likelihood="poisson"`` and ``"negative_binomial"`` do.
"""

# %%
# A hire station
# --------------
# Bicycles hired in an hour, by the hour of the day and the temperature. The rate is known here, and so is what no
# model can explain: the counts of an hour vary more than a Poisson distribution says, since it rains, or trains are
# late.

import numpy as np

rng = np.random.default_rng(0)


def rate(X):
    """Bicycles in an hour that are to be expected."""
    hour, temperature = X.T
    rush = 12 * np.exp(-0.5 * ((hour - 8) / 1.2) ** 2) + 15 * np.exp(-0.5 * ((hour - 17.5) / 1.8) ** 2)
    return (0.5 + rush) * np.exp(0.05 * (temperature - 12))


def make_hires(n_hours):
    """Hours and temperatures (n, 2), and bicycles (n,)."""
    X = np.column_stack([rng.uniform(0, 24, n_hours), rng.normal(12, 7, n_hours)])
    return X, rng.poisson(rate(X) * rng.gamma(5, 1 / 5, n_hours))


X, y = make_hires(500)
X_new, y_new = make_hires(5000)

# %%
# Three likelihoods
# -----------------
# The deviance compares predicted means with counts: :class:`~sklearn.linear_model.PoissonRegressor` minimises it. The
# negative log probability (NLL) and the share of counts within 90 % intervals judge the whole distribution.

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_poisson_deviance

from skdgp import SOLVEGPRegressor

models = {
    name: SOLVEGPRegressor(likelihood=name, random_state=0) for name in ("gaussian", "poisson", "negative_binomial")
}
for name, model in models.items():
    dist = model.fit(X, y).predict_dist(X_new)
    lower, upper = dist.interval(0.9)
    share = np.mean((lower <= y_new) & (y_new <= upper))
    deviance = mean_poisson_deviance(y_new, np.maximum(dist.mean, 0.01))
    print(
        f"{name:18s} deviance {deviance:.2f}, NLL {dist.log_score(y_new).mean():.2f}, {share:.0%} within 90 % intervals"
    )

trees = HistGradientBoostingRegressor(loss="poisson", random_state=0).fit(X, y)
print(f"boosted trees      deviance {mean_poisson_deviance(y_new, trees.predict(X_new)):.2f}")

# %%
# The Gaussian's NLL is that of a density and not of probabilities, but for whole numbers the two can be compared. A
# Poisson distribution is too sure of itself, as the data were made to show; the negative binomial has a number more for
# that, and held-out rows set it.
#
# Quantiles are counts
# --------------------

import matplotlib.pyplot as plt

hours = np.column_stack([np.linspace(0, 24, 200), np.full(200, 12.0)])
dist = models["negative_binomial"].predict_dist(hours)
_, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
lower, upper = dist.interval(0.9)
ax.fill_between(hours[:, 0], lower, upper, step="mid", alpha=0.25, label="90 % interval")
ax.plot(hours[:, 0], dist.mean, label="mean")
ax.plot(hours[:, 0], rate(hours), "k--", linewidth=1, label="true rate")
near = np.abs(X[:, 1] - 12) < 3
ax.plot(X[near, 0], y[near], ".", color="0.5", markersize=4, label="hours of 9 to 15 °C")
ax.set(xlabel="Hour of the day", ylabel="Bicycles hired, at 12 °C", xlim=(0, 24))
ax.legend(frameon=False)
plt.show()

# %%
# What to expect, and how sure of it
# ----------------------------------
# ``latent=True`` asks for the rate: it is known better with more data, while the counts of an hour stay what they are.

rush = np.array([[17.5, 20.0]])
model = models["negative_binomial"]
count, expected = model.predict_interval(rush)[0], model.predict_interval(rush, latent=True)[0]
print(f"At half past five and 20 °C between {count[0]:.0f} and {count[1]:.0f} bicycles will be hired,")
print(f"and on the mean between {expected[0]:.1f} and {expected[1]:.1f}; in truth {rate(rush)[0]:.1f}")
