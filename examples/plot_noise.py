"""
Noise that is not the same everywhere, and targets far out
==========================================================

Two things about noise spoil predictions most often. It is larger in one place than in another, so that one deviation
for all rows is too wide here and too narrow there. Or a few targets are plainly wrong, a slipped decimal point or a
broken sensor, and pull the function towards them. Both are a matter of one parameter, ``likelihood``.
"""

# %%
# A crash
# -------
# Accelerations of a helmet in a simulated crash, in g, over milliseconds. Before the impact hardly anything moves, and
# the sensor agrees with itself. Afterwards readings scatter widely.

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
# One deviation for all, and one for each
# ---------------------------------------
# ``likelihood="heteroskedastic"`` learns a second function, the logarithm of the noise variance.

from skdgp import DSDGPRegressor

plain = DSDGPRegressor(n_estimators=2, random_state=0).fit(X, y)
varying = DSDGPRegressor(likelihood="heteroskedastic", n_estimators=2, random_state=0).fit(X, y)

for name, model in {"gaussian": plain, "heteroskedastic": varying}.items():
    dist = model.predict_dist(X_new)
    lower, upper = dist.interval(0.9)
    inside, early = (lower <= y_new) & (y_new <= upper), X_new[:, 0] < 10
    print(f"{name}: NLL {dist.log_score(y_new).mean():.2f}, within 90 % intervals {inside.mean():.0%} of all readings;")
    print(f"  before the impact {inside[early].mean():.0%}, of a mean width of {(upper - lower)[early].mean():.0f} g")

# %%
# Both hold about nine in ten readings. The first does it by holding nearly all of the early ones, in intervals that are
# many times too wide, and too few of the later ones.

import matplotlib.pyplot as plt

from skdgp.display import PredictiveIntervalDisplay

_, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, {"gaussian": plain, "heteroskedastic": varying}.items(), strict=True):
    PredictiveIntervalDisplay.from_estimator(model, X, y, ax=ax)
    ax.set(title=f'likelihood="{name}"', xlabel="Time, ms", ylabel="Acceleration, g")
plt.show()

# %%
# A broken sensor
# ---------------
# Now a smooth function of two features, and one reading in twenty far out.

from skdgp import SOLVEGPRegressor

X = rng.uniform(-2, 2, (300, 2))
clean = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.standard_normal(300)
broken = rng.permutation(300)[:15]
y = clean.copy()
y[broken] += rng.choice([-1, 1], 15) * rng.uniform(5, 10, 15)

X_new = rng.uniform(-2, 2, (2000, 2))
truth = np.sin(2 * X_new[:, 0]) + 0.5 * X_new[:, 1] ** 2
for name, targets, likelihood in (
    ("nothing broken", clean, "gaussian"),
    ("gaussian", y, "gaussian"),
    ("student_t", y, "student_t"),
):
    model = SOLVEGPRegressor(likelihood=likelihood, random_state=0).fit(X, targets)
    mean, std = model.predict(X_new, return_std=True, latent=True)
    print(
        f"{name:16s} RMSE {np.sqrt(np.mean((mean - truth) ** 2)):.3f}, mean deviation of the function {std.mean():.3f}"
    )

# %%
# A Student t distribution expects a target far out now and then, and does not bend the function for it. It also says
# how often: the fewer degrees of freedom, the heavier the tails.

noise = model.module_[0].likelihood
print(f"{noise.degrees_of_freedom.item():.1f} degrees of freedom")
