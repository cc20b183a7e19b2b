"""
Predicting counts
=================

How many calls will come in this hour, how many bicycles will be hired? Counts are whole numbers and never negative, and
they vary more the larger they are. A Gaussian has none of these properties. Where counts are small, it may give up to
half of its probability to negative numbers. This example compares it with two likelihoods that are made for counts,
``likelihood="poisson"`` and ``likelihood="negative_binomial"``.
"""

# %%
# A hire station
# --------------
# The target is the number of bicycles hired in an hour. The features are the hour of the day and the temperature. The
# data are simulated, so the true rate is known, which is the expected number of bicycles. Counts vary around this rate
# more than a Poisson distribution says, as if it rained in some hours, or trains were late. The features do not show
# this, so no model can explain it.

import numpy as np

rng = np.random.default_rng(0)


def rate(X):
    """Expected number of bicycles in an hour."""
    hour, temperature = X.T
    rush = 12 * np.exp(-0.5 * ((hour - 8) / 1.2) ** 2) + 15 * np.exp(
        -0.5 * ((hour - 17.5) / 1.8) ** 2
    )
    return (0.5 + rush) * np.exp(0.05 * (temperature - 12))


def make_hires(n_hours):
    """Hours and temperatures (n, 2), and bicycles (n,)."""
    X = np.column_stack(
        [rng.uniform(0, 24, n_hours), rng.normal(12, 7, n_hours)]
    )
    return X, rng.poisson(rate(X) * rng.gamma(5, 1 / 5, n_hours))


X, y = make_hires(500)
X_new, y_new = make_hires(5000)

# %%
# Three likelihoods
# -----------------
# The deviance compares predicted means with counts. It is what :class:`~sklearn.linear_model.PoissonRegressor`
# minimises. The negative log probability (NLL) and the share of counts inside 90 % intervals judge the whole
# distribution. Both the deviance and the NLL are better if they are lower.

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_poisson_deviance

from skdgp import SOLVEGPRegressor
from skdgp.metrics import coverage

models = {
    name: SOLVEGPRegressor(likelihood=name, random_state=0)
    for name in ("gaussian", "poisson", "negative_binomial")
}
shares, losses = {}, {}
for name, model in models.items():
    dist = model.fit(X, y).predict_dist(X_new)
    shares[name] = coverage(y_new, *dist.interval(0.9))
    losses[name] = dist.log_score(y_new).mean()
    deviance = mean_poisson_deviance(y_new, np.maximum(dist.mean, 0.01))
    print(
        f"{name:18s} deviance {deviance:.2f}, NLL {losses[name]:.2f}, "
        f"{shares[name]:.0%} within 90 % intervals"
    )

trees = HistGradientBoostingRegressor(loss="poisson", random_state=0).fit(X, y)
print(
    "boosted trees      deviance "
    f"{mean_poisson_deviance(y_new, trees.predict(X_new)):.2f}"
)

# %%
# The ends of an interval of counts are whole numbers. So a 90 % interval of small counts often contains more than 90 %
# of them. How many does the interval of the true distribution contain? The simulated counts are negative binomial.

from scipy.stats import nbinom

true = nbinom(5, 5 / (5 + rate(X_new)))
true_share = coverage(y_new, *true.interval(0.9))
true_loss = -true.logpmf(y_new).mean()
print(f"the truth: NLL {true_loss:.2f}, {true_share:.0%} within its intervals")
assert shares["poisson"] < true_share - 0.01
assert abs(shares["negative_binomial"] - true_share) < 0.03
assert losses["negative_binomial"] < losses["poisson"] < losses["gaussian"]
assert losses["negative_binomial"] < true_loss + 0.1

# %%
# The NLL of the Gaussian is computed from a density and not from probabilities. You can still compare it with the
# others, since whole numbers are one apart. The Poisson distribution is too sure of itself, because the simulated
# counts vary more than it allows: its intervals contain fewer counts than those of the truth. The negative binomial
# distribution has one more number for this, its dispersion. Held-out rows set it. It comes close to the truth.
#
# Intervals over the day
# ----------------------
# Since the ends of an interval are counts, the edges of the band in this picture are steps.

import matplotlib.pyplot as plt

hours = np.column_stack([np.linspace(0, 24, 200), np.full(200, 12.0)])
dist = models["negative_binomial"].predict_dist(hours)
_, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
lower, upper = dist.interval(0.9)
ax.fill_between(
    hours[:, 0], lower, upper, step="mid", alpha=0.25, label="90 % interval"
)
ax.plot(hours[:, 0], dist.mean, label="mean")
ax.plot(hours[:, 0], rate(hours), "k--", linewidth=1, label="true rate")
near = np.abs(X[:, 1] - 12) < 3
ax.plot(
    X[near, 0],
    y[near],
    ".",
    color="0.5",
    markersize=4,
    label="observed at 9 to 15 °C",
)
ax.set(
    xlabel="Hour of the day",
    ylabel="Bicycles hired, at 12 °C",
    xlim=(0, 24),
    ylim=(-1.5, 44),
)
ax.legend(
    frameon=False,
    loc="upper center",
    ncols=4,
    columnspacing=1.2,
    handlelength=1.6,
)
plt.show()

# %%
# The count of an hour, or the rate
# ---------------------------------
# By default an interval is about the count of an hour. With ``latent=True`` it is about the rate. More data make the
# rate better known. But the counts of an hour still vary around the rate, however many data there are.

rush = np.array([[17.5, 20.0]])
model = models["negative_binomial"]
count, expected = (
    model.predict_interval(rush)[0],
    model.predict_interval(rush, latent=True)[0],
)
print(
    f"At 17:30 and 20 °C, the 90 % interval of the count is {count[0]:.0f} to "
    f"{count[1]:.0f} bicycles."
)
print(
    f"That of the rate is {expected[0]:.1f} to {expected[1]:.1f}, and the "
    f"true rate is {rate(rush)[0]:.1f}."
)
