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
# impact hardly anything moves, and the readings have little noise. Afterwards they scatter widely. Because we made the
# data, we know the true mean and the true noise of each reading.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

rng = np.random.default_rng(0)


def truth(time):
    """Mean and standard deviation (n,) of accelerations in g."""
    jolt = -110 * np.exp(-0.5 * ((time - 21) / 4) ** 2)
    rebound = 45 * np.exp(-0.5 * ((time - 33) / 5) ** 2)
    fading = np.exp(-np.maximum(time - 33, 0) / 40)
    return jolt + rebound, 1 + 24 / (1 + np.exp(14 - time)) * fading


def make_crash(n_readings):
    """Times (n, 1) in ms and accelerations (n,) in g."""
    time = np.sort(rng.uniform(0, 60, n_readings))
    mean, std = truth(time)
    return time[:, None], mean + std * rng.standard_normal(n_readings)


X, y = make_crash(200)
X_new, y_new = make_crash(2000)

# %%
# One standard deviation for all rows, or one for each
# ----------------------------------------------------
# ``likelihood="heteroskedastic"`` learns a second function of the features: the logarithm of the noise variance. The
# negative log predictive density (NLL) compares the predicted distributions with new readings; lower is better. The
# other number is the width of the intervals before the impact.

from skdgp import SOLVEGPRegressor
from skdgp.metrics import coverage

models = {
    name: SOLVEGPRegressor(likelihood=name, random_state=0).fit(X, y)
    for name in ("gaussian", "heteroskedastic")
}
early, widths, losses = X_new[:, 0] < 10, {}, {}
for name, model in models.items():
    dist = model.predict_dist(X_new)
    lower, upper = dist.interval(0.9)
    widths[name] = (upper - lower)[early].mean()
    losses[name] = dist.log_score(y_new).mean()
    print(f"{name}: NLL {losses[name]:.2f}")
    for when, rows in {"before": early, "after": ~early}.items():
        inside = coverage(y_new[rows], lower[rows], upper[rows])
        print(f"  {inside:.0%} {when} the impact in 90 % intervals")
    print(f"  mean width before the impact {widths[name]:.0f} g")
assert losses["heteroskedastic"] < losses["gaussian"] - 0.3
assert widths["heteroskedastic"] < 0.25 * widths["gaussian"]

# %%
# With one standard deviation for all rows, the intervals before the impact are many times too wide, and contain all
# readings. With a standard deviation for each row they are a small part of that, and readings are predicted better.

import matplotlib.pyplot as plt

from skdgp.display import PredictiveIntervalDisplay

_, axes = plt.subplots(
    1, 2, figsize=(9, 3.6), sharey=True, layout="constrained"
)
for ax, (name, model) in zip(axes, models.items(), strict=True):
    PredictiveIntervalDisplay.from_estimator(model, X, y, ax=ax)
    ax.plot(X[:, 0], truth(X[:, 0])[0], "k--", lw=1, label="true mean")
    ax.set(title=f'likelihood="{name}"')
    ax.set(xlabel="Time (ms)", ylabel="Acceleration (g)")
    ax.get_legend().remove()
    ax.label_outer()
axes[1].legend(frameon=False, fontsize="small", loc="lower right")
plt.show()

# %%
# The mean at the trough
# ----------------------
# Where readings scatter most, the mean stays above the true trough. Is that a fault of the model? For comparison, we
# tell an exact Gaussian process the true noise of each reading, which nobody knows in practice.

from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

kernel = ConstantKernel(2000) * RBF(5)
noise_variance = truth(X[:, 0])[1] ** 2
told = GaussianProcessRegressor(kernel, alpha=noise_variance).fit(X, y)
true_mean = truth(X_new[:, 0])[0]
errors = {}
for name, model in {**models, "told the noise": told}.items():
    mean = model.predict(X_new)
    errors[name] = np.sqrt(np.mean((mean - true_mean) ** 2))
    print(f"{name}: lowest {mean.min():.0f} g, RMSE {errors[name]:.1f} g")
print(f"truth: lowest {true_mean.min():.0f} g")
assert errors["heteroskedastic"] < 1.3 * errors["told the noise"]

# %%
# Even with the true noise, the trough is too shallow. These two hundred readings do not say more. The model that learns
# the noise comes close to the one that is told.

# %%
# A broken sensor
# ---------------
# The second table is a smooth function of two features. One reading in twenty is far off.

X = rng.uniform(-2, 2, (300, 2))
clean = (
    np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.standard_normal(300)
)
broken = rng.permutation(300)[:15]
y = clean.copy()
y[broken] += rng.choice([-1, 1], 15) * rng.uniform(5, 10, 15)

X_new = rng.uniform(-2, 2, (2000, 2))
truth = np.sin(2 * X_new[:, 0]) + 0.5 * X_new[:, 1] ** 2
fitted, error = {}, {}
for name, targets, options in (
    ("no outliers", clean, {}),
    ("default", y, {}),
    ("student_t", y, {"likelihood": "student_t"}),
    ("no base", y, {"base": None, "n_neighbors": 0}),
):
    model = SOLVEGPRegressor(random_state=0, **options).fit(X, targets)
    fitted[name] = model
    error[name] = np.sqrt(np.mean((model.predict(X_new) - truth) ** 2))
    print(f"{name:12s} RMSE {error[name]:.3f}")
assert error["default"] < 1.5 * error["no outliers"] < error["no base"]

# %%
# A model with Gaussian noise bends towards readings that are far off. The last one does. By default the base looks for
# such readings, and nothing learns from them if all others are predicted better then. It has found the broken ones:

outliers = fitted["default"].outliers_
print("Broken readings: ", np.sort(broken))
print("Outliers:        ", outliers)
assert set(broken) <= set(outliers)

# %%
# A Student t distribution allows for targets that are far off now and then, so that a model does not bend its function
# towards them. Training also learns how often this happens: the fewer degrees of freedom, the heavier are the tails. It
# is for tails that are heavy everywhere, where no few readings stand out.

noise = fitted["student_t"].module_[0].likelihood
print(
    f"The model has learnt {noise.degrees_of_freedom.item():.1f} degrees of "
    "freedom"
)
