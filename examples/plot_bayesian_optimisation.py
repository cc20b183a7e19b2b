"""
Bayesian optimisation with drawn functions
==========================================

An experiment costs an hour or a day, and after a few dozen experiments you want a setting that is as good as possible.
Several experiments can run side by side. Which settings should you try next? Thompson sampling has a simple answer:
draw a function from the model, and try the setting that would be best if this function were the truth. This example
does so with :meth:`~skdgp.SOLVEGPRegressor.sample_functions` and :func:`scipy.optimize.minimize`, and needs nothing
else.

If you prefer BoTorch and its acquisition functions, :class:`~skdgp.adapters.BoTorchModel` makes a fitted regressor a
model of BoTorch (:doc:`/other_packages`).
"""

# %%
# Two problems
# ------------
# A setting is a point in the unit square, and lower values are better. The first problem is Branin's function, a common
# test of such methods. It has three valleys, which are equally deep. The second problem is a real search. Its settings
# are the parameters C and gamma of a support vector machine, both on logarithmic scales. Its value is the error of the
# machine on scikit-learn's diabetes data, by cross-validation. Every second patient is enough for that, and saves time.

# sphinx_gallery_thumbnail_number = 0
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVR

X_patients, y_patients = (part[::2] for part in load_diabetes(return_X_y=True))


def branin(setting):
    """Branin's function of a point in the unit square."""
    u, v = 15 * setting[0] - 5, 15 * setting[1]
    return (
        (v - 5.1 * u**2 / (4 * np.pi**2) + 5 * u / np.pi - 6) ** 2
        + 10 * (1 - 1 / (8 * np.pi)) * np.cos(u)
        + 10
    )


def svm_error(setting):
    """Root mean squared error of a support vector machine, by cross-validation
    in three parts."""
    svm = SVR(C=10 ** (-1 + 5 * setting[0]), gamma=10 ** (-3 + 6 * setting[1]))
    return -cross_val_score(
        svm,
        X_patients,
        y_patients,
        cv=3,
        scoring="neg_root_mean_squared_error",
    ).mean()


problems = {"Branin's function": branin, "Support vector machine": svm_error}

# %%
# Thompson sampling
# -----------------
# Five experiments run side by side in each round. So a round takes five draws. The draws differ where the model is
# unsure, and agree where it is sure. Therefore the five settings spread out by themselves. You need no parameter that
# balances exploration and improvement, and no rule that keeps the five settings apart.
#
# A draw is a function with a gradient, so L-BFGS-B can minimise it. It begins at the best of a thousand random points.
# The model is a Gaussian process (GP) with an inducing point at every row. Training learns only its kernel and its
# noise, and everything else has a closed form. For so few rows the model is an exact GP. So we switch off what the
# estimator adds to models that approximate: the mixture with a second GP (``base``), and the correction by the nearest
# rows.

from scipy.optimize import minimize

from skdgp import SOLVEGPRegressor

SQUARE = [(0, 1), (0, 1)]


def make_model(seed):
    """A GP that learns from a few dozen settings in less than a second."""
    return SOLVEGPRegressor(
        n_orthogonal=0,
        method="collapsed",
        max_iter=50,
        base=None,
        n_neighbors=0,
        random_state=seed,
    )


def lowest(draw, start):
    """Lowest point of a drawn function that a local search finds."""

    def value_and_gradient(setting):
        return draw([setting])[0, 0], draw.gradient([setting])[0, :, 0]

    return minimize(
        value_and_gradient,
        start,
        jac=True,
        bounds=SQUARE,
        method="L-BFGS-B",
        options={"maxiter": 15},
    ).x


def thompson(settings, values, n_new, seed):
    """The settings to try next, (n_new, 2)."""
    draws = (
        make_model(seed)
        .fit(settings, values)
        .sample_functions(n_new, random_state=seed)
    )
    candidates = np.random.default_rng(seed).uniform(size=(1000, 2))
    starts = candidates[draws(candidates).argmin(axis=0)]
    return np.array(
        [lowest(draws[i], start) for i, start in enumerate(starts)]
    )


# %%
# One round
# ---------
# The first picture shows Branin's function, which the model does not see. The others show five functions that the model
# considers possible after eight settings. Their lowest points are the next five settings.

import matplotlib.pyplot as plt
from scipy.stats import qmc

blue, orange, grey, red, dark = (
    "#0b5fa5",
    "#c8762b",
    "#8a8a8a",
    "#b3261e",
    "#333333",
)
settings = qmc.LatinHypercube(2, rng=0).random(8)
values = np.array([branin(setting) for setting in settings])
draws = make_model(0).fit(settings, values).sample_functions(5, random_state=0)

ticks = np.linspace(0, 1, 60)
grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
surfaces = [branin(grid.T), *draws(grid).T]
fig, axes = plt.subplots(
    1, 6, figsize=(12, 2.9), sharex=True, sharey=True, layout="constrained"
)
for number, (ax, surface) in enumerate(zip(axes, surfaces, strict=True)):
    surface = surface.reshape(60, 60)
    image = ax.pcolormesh(
        ticks,
        ticks,
        surface,
        cmap="Blues_r",
        vmin=-100,
        vmax=300,
        rasterized=True,
    )
    ax.plot(
        *settings.T,
        "o",
        color="white",
        markeredgecolor=dark,
        markersize=5,
        label="tried",
    )
    if number:
        start = grid[surfaces[number].argmin()]
        minimum = lowest(draws[number - 1], start)
        ax.plot(
            *minimum,
            "*",
            color=red,
            markeredgecolor="white",
            markersize=15,
            clip_on=False,
            zorder=3,
            label="next",
        )
    ax.set(
        title=f"Draw {number}" if number else "Branin's function",
        aspect="equal",
        xticks=[0, 1],
        yticks=[0, 1],
    )
    ax.set(xlabel="first setting")
axes[0].set_ylabel("second setting")
fig.colorbar(image, ax=axes[-1], label="value")
fig.legend(
    *axes[1].get_legend_handles_labels(),
    frameon=False,
    loc="outside lower center",
    ncols=2,
)
plt.show()

# %%
# Two methods to compare with
# ---------------------------
# The usual method is expected improvement (EI). It chooses the setting whose value is expected to fall furthest below
# the best value so far. EI chooses one setting at a time. To choose five, we use the *constant liar*: it pretends that
# the setting just chosen has given the best value so far, and asks for another one. The model is scikit-learn's exact
# GP, with a Matérn kernel like that of our model without its base. Maximum likelihood sets its hyperparameters.
#
# The other method is random search.

import warnings

from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern


def expected_improvement(settings, values, n_new, seed):
    """The settings to try next, (n_new, 2)."""
    kernel = ConstantKernel() * Matern([0.3, 0.3], nu=2.5)
    gp = GaussianProcessRegressor(
        kernel,
        alpha=1e-6,
        normalize_y=True,
        n_restarts_optimizer=2,
        random_state=seed,
    )
    candidates = np.random.default_rng(seed).uniform(size=(1000, 2))
    with warnings.catch_warnings():
        # Parameters may reach the ends of their ranges.
        warnings.simplefilter("ignore", ConvergenceWarning)
        gp.fit(settings, values)
    for _ in range(n_new):
        best = values.min()

        def loss(points, gp=gp, best=best):
            mean, std = gp.predict(np.atleast_2d(points), return_std=True)
            z = (best - mean) / std
            return -std * (z * norm.cdf(z) + norm.pdf(z))

        def loss_of_one(point, loss=loss):
            return loss(point)[0]

        start = candidates[loss(candidates).argmin()]
        chosen = minimize(
            loss_of_one,
            start,
            bounds=SQUARE,
            method="L-BFGS-B",
            options={"maxiter": 15},
        ).x
        settings, values = (
            np.vstack([settings, chosen]),
            np.append(values, best),
        )
        gp = (
            clone(gp)
            .set_params(kernel=gp.kernel_, optimizer=None)
            .fit(settings, values)
        )
    return settings[-n_new:]


def random_search(settings, values, n_new, seed):
    """The settings to try next, (n_new, 2)."""
    return np.random.default_rng(seed).uniform(size=(n_new, 2))


methods = {
    "Thompson sampling": thompson,
    "Expected improvement": expected_improvement,
    "Random search": random_search,
}

# %%
# Five searches with each method
# ------------------------------
# A search starts from eight settings, a Latin hypercube, and goes on for four rounds of five settings. Each method
# searches five times, with five seeds. For each seed, all methods start from the same eight settings. We compare the
# *regret*, which is the best value so far minus the minimum. For the support vector machine, the minimum is not known
# in closed form. We find it by a minimisation that begins at the best setting of all searches.

N_START, N_ROUNDS, N_NEW, N_SEEDS = 8, 4, 5, 5


def search(problem, choose, settings, values, seed):
    """All settings of a search, in order, and their values."""
    for step in range(N_ROUNDS):
        new = choose(settings, values, N_NEW, 100 * seed + step)
        settings = np.vstack([settings, new])
        values = np.append(values, [problem(setting) for setting in new])
    return settings, values


tried, results = {}, {}
for title, problem in problems.items():
    for seed in range(N_SEEDS):
        settings = qmc.LatinHypercube(2, rng=seed).random(N_START)
        values = np.array([problem(setting) for setting in settings])
        for name, choose in methods.items():
            tried[title, name, seed], results[title, name, seed] = search(
                problem, choose, settings, values, seed
            )

lowest_value, regret = {}, {}
for title, problem in problems.items():
    _, name, seed = min(
        (key for key in results if key[0] == title),
        key=lambda key: results[key].min(),
    )
    best = tried[title, name, seed][results[title, name, seed].argmin()]
    lowest_value[title] = minimize(
        problem,
        best,
        bounds=SQUARE,
        method="Nelder-Mead",
        options={"maxfev": 80},
    ).fun
    for name in methods:
        so_far = [
            np.minimum.accumulate(results[title, name, seed])
            for seed in range(N_SEEDS)
        ]
        regret[title, name] = np.array(so_far) - lowest_value[title]

for title in problems:
    print(
        f"{title}: minimum {lowest_value[title]:.4f}. Median regret after "
        f"{N_START} settings and after each round:"
    )
    for name in methods:
        medians = np.median(
            regret[title, name][:, N_START - 1 :: N_NEW], axis=0
        )
        print(
            f"  {name:<22}" + "".join(f"{median:>10.4f}" for median in medians)
        )

# %%
# Which method wins
# -----------------
# Medians do not show which searches had an easy start. But for each seed all methods had the same start, so we can
# compare them seed by seed.

for title in problems:
    ours, improvement, random = (
        regret[title, name][:, -1] for name in methods
    )
    print(
        f"{title}: of {N_SEEDS} searches, Thompson sampling ends with less "
        "regret than",
        end=" ",
    )
    print(
        f"EI in {np.sum(ours < improvement)}, and than random search in "
        f"{np.sum(ours < random)}"
    )

# %%
# Random search is behind on Branin's function. Expected improvement finds its valleys sooner, and ends closer to the
# minimum. Draws differ wherever the model is unsure, even where there is little to gain. So Thompson sampling explores
# for longer. That is the price of its simplicity if you can try few settings and the function is smooth. The models
# differ as well: scikit-learn's model is told that values have no noise, and the other one has to learn it.
#
# A cross-validated error is not as smooth, and there the two methods are about even.

final = {key: np.median(regrets[:, -1]) for key, regrets in regret.items()}
for title in problems:
    ours, _, random = (final[title, name] for name in methods)
    assert ours < random
ours, improvement, _ = (final["Branin's function", name] for name in methods)
assert improvement < ours < 1
ours, improvement, _ = (
    final["Support vector machine", name] for name in methods
)
assert 0.5 < ours / improvement < 1.5

# %%
# Pictures
# --------
# The left picture shows one search by Thompson sampling, with the first seed. The other two show the regret after each
# round. The lines are medians of the seeds, and the bands contain the middle half of them.

colours = dict(zip(methods, (blue, orange, grey), strict=True))
fig, (left, *others) = plt.subplots(
    1, 3, figsize=(12, 4.9), layout="constrained"
)

levels = np.geomspace(0.4, 310, 12)
left.contour(
    ticks,
    ticks,
    surfaces[0].reshape(60, 60),
    levels,
    colors="#bbbbbb",
    linewidths=0.8,
)
settings = tried["Branin's function", "Thompson sampling", 0]
left.plot(
    *settings[:N_START].T,
    "o",
    color="white",
    markeredgecolor=dark,
    label="first eight",
)
for step, colour in enumerate(
    plt.get_cmap("viridis_r")(np.linspace(0.1, 1, N_ROUNDS))
):
    rows = slice(N_START + N_NEW * step, N_START + N_NEW * (step + 1))
    left.plot(
        *settings[rows].T,
        "o",
        color=colour,
        markeredgecolor="white",
        label=f"round {step + 1}",
        clip_on=False,
    )
left.set(
    xlabel="first setting",
    ylabel="second setting",
    title="Branin's function: one search",
)
left.legend(
    loc="upper center",
    bbox_to_anchor=(0.5, -0.14),
    ncols=3,
    frameon=False,
    fontsize="small",
)

number = N_START + N_NEW * np.arange(N_ROUNDS + 1)
for ax, title in zip(others, problems, strict=True):
    for name, colour in colours.items():
        low, median, high = np.quantile(
            regret[title, name][:, number - 1], [0.25, 0.5, 0.75], axis=0
        )
        ax.fill_between(
            number, low, high, color=colour, alpha=0.18, linewidth=0
        )
        ax.plot(number, median, "o-", color=colour, linewidth=2, label=name)
    ax.set(yscale="log", title=title, xlabel="settings tried", xticks=number)
others[0].set_ylabel("regret: best value so far minus the minimum")
others[1].set_ylabel("regret, in units of disease progression")
others[0].legend(frameon=False, loc="lower left")
plt.show()
