"""
Composed kernels: tell the model what you know
==============================================

How does a function go on where there are no data? The *kernel* of a Gaussian process decides this. It says what the
function is like before there are any data: how smooth it is, whether it repeats, whether it has a trend, and whether
features act one by one. You can make such a kernel by adding and multiplying scikit-learn's kernel objects. The
estimators of this package take these objects as they are. :doc:`/choosing` says when this pays.
"""

# %%
# The data: a gas in the air
# --------------------------
# The data resemble the famous series of carbon dioxide from Mauna Loa. There is a concentration for each month. It
# rises faster and faster, and goes up and down with the seasons. The model learns from the first thirty years, in which
# some months are missing. The next twenty years are for testing.

# sphinx_gallery_thumbnail_number = 0
import numpy as np

rng = np.random.default_rng(0)
years = np.arange(1960, 2010, 1 / 12)[:, None]
trend = 315 + 0.8 * (years[:, 0] - 1960) + 0.012 * (years[:, 0] - 1960) ** 2
season = 3 * np.sin(2 * np.pi * years[:, 0]) + np.cos(4 * np.pi * years[:, 0])
slow = np.sin(years[:, 0] / 1.7) * 0.5
y = trend + season + slow + 0.2 * rng.standard_normal(len(years))
known = (years[:, 0] < 1990) & (rng.uniform(size=len(years)) < 0.8)
future = years[:, 0] >= 1990

# %%
# From words to a kernel
# ----------------------
# In words, the series is a sum of three parts:
#
# * a smooth trend, which changes over about a century;
# * a season, which repeats every year and may change slowly over the decades;
# * small deviations, which last some years.
#
# Each part becomes a term of the kernel. Lengthscales, the distances over which a part changes, are in years, the unit
# of ``X``. Training keeps them within their bounds. Variances are those of standardised targets. The kernel needs no
# term for white noise, because the likelihood of the model adds the noise. If training ends at a bound, as that of the
# trend here, a warning says so. We want the trend to be slow, and keep the bound.

import warnings

from sklearn.gaussian_process.kernels import (
    RBF,
    ExpSineSquared,
    RationalQuadratic,
)

from skdgp import SOLVEGPRegressor

kernel = (
    100.0 * RBF(100.0, length_scale_bounds=(80.0, 1000.0))
    + 0.1
    * RBF(100.0)
    * ExpSineSquared(1.0, periodicity=1.0, periodicity_bounds="fixed")
    + 0.05 * RationalQuadratic(1.0, alpha=1.0)
)
warnings.filterwarnings("ignore", message=".* has ended at its bound")
said = SOLVEGPRegressor(kernel=kernel, n_neighbors=0, random_state=0).fit(
    years[known], y[known]
)
print(said.kernel_)

# %%
# ``kernel_`` is a kernel object again, with the parameters that training has learnt. The lengthscale of the trend is at
# its lower bound. The one beside the season is so long that the season repeats nearly without change, which is true of
# these data.

trend_kernel = said.kernel_.k1.k1.k2
assert trend_kernel.length_scale < 81

# %%
# You can pass ``kernel_`` to scikit-learn's own ``GaussianProcessRegressor``. Set ``normalize_y=True`` there, since its
# variances are those of standardised targets. Add a ``WhiteKernel`` for the noise, here or there: this kernel has none.
#
# Twenty years ahead
# ------------------
# For comparison, the same estimator learns from these rows with all its defaults. Its default kernel only says that the
# function is smooth. The output has three scores for the test rows: the root mean squared error (RMSE), the continuous
# ranked probability score (CRPS), and the share of targets within their 90 % intervals. The CRPS is an error of the
# whole predicted distribution; lower is better.
#
# In the picture, the composed kernel continues the season and the trend. Its mean falls behind the test rows in the
# end, since no term says that the trend keeps becoming steeper. Its intervals widen. With the default kernel, the mean
# soon stays at the same level.

from skdgp.metrics import coverage

plain = SOLVEGPRegressor(random_state=0).fit(years[known], y[known])
for name, model in {"composed": said, "default": plain}.items():
    dist = model.predict_dist(years[future])
    inside = coverage(y[future], *dist.interval(0.9))
    error = np.sqrt(np.mean((dist.mean - y[future]) ** 2))
    print(
        f"{name:8s} RMSE {error:5.2f}, CRPS "
        f"{dist.crps(y[future]).mean():5.2f}, {inside:.0%} within 90 % "
        "intervals"
    )

import matplotlib.pyplot as plt

_, axes = plt.subplots(
    1, 2, figsize=(9, 3.6), sharey=True, layout="constrained"
)
for ax, (name, model) in zip(
    axes, {"composed": said, "default": plain}.items(), strict=True
):
    lower, upper = model.predict_interval(years).T
    ax.fill_between(
        years[:, 0], lower, upper, alpha=0.25, label="90 % interval"
    )
    ax.plot(years[:, 0], model.predict(years), linewidth=1, label="mean")
    ax.plot(
        years[known, 0],
        y[known],
        ".",
        color="0.4",
        markersize=2,
        label="training rows",
    )
    ax.plot(years[future, 0], y[future], "k", linewidth=0.5, label="test rows")
    ax.set(
        title=f"{name} kernel",
        xlabel="Year",
        ylabel="Concentration, ppm",
        ylim=(280, 420),
    )
    ax.label_outer()
axes[0].legend(frameon=False)
plt.show()

# %%
# An additive model: features one by one
# --------------------------------------
# Sometimes you know that each feature has an effect of its own, and that these effects add up. The kernel is then a sum
# of kernels of one feature each. :class:`~skdgp.kernels.Select` says which feature a kernel takes. If the assumption is
# true, such a model needs far fewer rows than a model that has to learn a function of all features together. Here it is
# true: the target is a sum of functions of four features. There are two other features, and only 120 rows.

from sklearn.gaussian_process.kernels import Matern

from skdgp.kernels import Select

X = rng.uniform(-2, 2, (120, 6))
parts = [np.sin(3 * X[:, 0]), X[:, 1] ** 2, np.abs(X[:, 2]), 0.5 * X[:, 3]]
z = np.sum(parts, axis=0) + 0.1 * rng.standard_normal(120)
additive = sum(
    (Select(Matern(1.0, nu=2.5), column) for column in range(1, 6)),
    start=Select(Matern(1.0, nu=2.5), 0),
)
new = rng.uniform(-2, 2, (2000, 6))
truth = (
    np.sin(3 * new[:, 0])
    + new[:, 1] ** 2
    + np.abs(new[:, 2])
    + 0.5 * new[:, 3]
)
for name, kernel in {
    "additive": additive,
    "all features together": "matern52",
}.items():
    model = SOLVEGPRegressor(
        kernel=kernel, base=None, n_neighbors=0, random_state=0
    ).fit(X, z)
    print(
        f"{name:22s} RMSE "
        f"{np.sqrt(np.mean((model.predict(new) - truth) ** 2)):.3f}"
    )
