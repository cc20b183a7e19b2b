"""
Noise that varies, and outliers
===============================

What if some targets are noisier than others, or a few targets are plainly wrong? In the first case one standard
deviation for all rows is too large for some rows and too small for others. In the second case a slipped decimal point
or a broken sensor pulls the function towards a wrong target. In both cases you need to change only one parameter,
``likelihood``. It says how targets are distributed around the function (:doc:`/targets`).
"""

# %%
# A crash
# -------
# The data are simulated. They are accelerations of a helmet in a crash, in g, over the time in milliseconds. Before the
# impact hardly anything moves, and the readings have little noise. Afterwards they scatter widely.

import numpy as np

rng = np.random.default_rng(0)


def make_crash(n_readings):
    """Times (n, 1) in ms and accelerations (n,) in g."""
    time = np.sort(rng.uniform(0, 60, n_readings))
    jolt = -110 * np.exp(-0.5 * ((time - 21) / 4) ** 2) + 45 * np.exp(-0.5 * ((time - 33) / 5) ** 2)
    scatter = 1 + 24 / (1 + np.exp(14 - time)) * np.exp(-np.maximum(time - 33, 0) / 40)
    return time[:, None], jolt + scatter * rng.standard_normal(n_readings)


X, y = make_crash(200)
X_new, y_new = make_crash(2000)

# %%
# One standard deviation for all rows, or one for each
# ----------------------------------------------------
# ``likelihood="heteroskedastic"`` learns a second function of the features: the logarithm of the noise variance. The
# negative log predictive density (NLL) compares the predicted distributions with new readings; lower is better.

from skdgp import DSDGPRegressor

plain = DSDGPRegressor(n_estimators=2, random_state=0).fit(X, y)
varying = DSDGPRegressor(likelihood="heteroskedastic", n_estimators=2, random_state=0).fit(X, y)

for name, model in {"gaussian": plain, "heteroskedastic": varying}.items():
    dist = model.predict_dist(X_new)
    lower, upper = dist.interval(0.9)
    inside, early = (lower <= y_new) & (y_new <= upper), X_new[:, 0] < 10
    print(f"{name}: NLL {dist.log_score(y_new).mean():.2f}; {inside.mean():.0%} of all readings in 90 % intervals")
    print(f"  before the impact {inside[early].mean():.0%}, with a mean width of {(upper - lower)[early].mean():.0f} g")

# %%
# The intervals of both models contain about nine in ten readings. But the first model reaches this share in the wrong
# way. Before the impact, its intervals are many times too wide and contain nearly all readings. Later they are too
# narrow, and contain too few. The intervals of the second model are much narrower before the impact, and wider where
# readings scatter most. But before the impact they are still several times wider than necessary.

import matplotlib.pyplot as plt

from skdgp.display import PredictiveIntervalDisplay

_, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, {"gaussian": plain, "heteroskedastic": varying}.items(), strict=True):
    PredictiveIntervalDisplay.from_estimator(model, X, y, ax=ax)
    ax.set(title=f'likelihood="{name}"', xlabel="Time (ms)", ylabel="Acceleration (g)")
    ax.label_outer()
plt.show()

# %%
# A broken sensor
# ---------------
# The second table is a smooth function of two features. One reading in twenty is far off.

from skdgp import SOLVEGPRegressor

X = rng.uniform(-2, 2, (300, 2))
clean = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.standard_normal(300)
broken = rng.permutation(300)[:15]
y = clean.copy()
y[broken] += rng.choice([-1, 1], 15) * rng.uniform(5, 10, 15)

X_new = rng.uniform(-2, 2, (2000, 2))
truth = np.sin(2 * X_new[:, 0]) + 0.5 * X_new[:, 1] ** 2
for name, targets, likelihood in (
    ("no outliers", clean, "gaussian"),
    ("gaussian", y, "gaussian"),
    ("student_t", y, "student_t"),
):
    model = SOLVEGPRegressor(likelihood=likelihood, random_state=0).fit(X, targets)
    mean, std = model.predict(X_new, return_std=True, latent=True)
    print(
        f"{name:16s} RMSE {np.sqrt(np.mean((mean - truth) ** 2)):.3f}, "
        f"mean standard deviation of the function {std.mean():.3f}"
    )

# %%
# A Student t distribution allows for a target that is far off now and then. So the model does not bend its function
# towards it. Training also learns how often this happens: the fewer degrees of freedom, the heavier are the tails.

noise = model.module_[0].likelihood
print(f"The model has learnt {noise.degrees_of_freedom.item():.1f} degrees of freedom")
