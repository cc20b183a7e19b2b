r"""
Prior collapse: what deep GPs expect before they see data
=========================================================

A deep Gaussian process (GP) is a chain of layers, and it can describe more functions than a single layer. Does every
further layer help? Before a model has seen any data, it is a distribution over functions, its *prior*. You can draw
functions from it. Draws from long chains of ordinary GPs are known to *collapse*: almost all inputs end at a few values
[1]_. The reason is that no layer can separate two inputs that the layer before has made equal. *Amortised* priors, the
kind behind :class:`~skdgp.AVDGPRegressor`, are said not to collapse [2]_. This example draws from both kinds of priors,
counts how many different values are left, and looks at what this means for training.
"""

# %%
# Chains of ordinary GPs
# ----------------------
# A GP says that the values of a function at any inputs have a joint Gaussian distribution. So an exact draw needs only
# one Cholesky factor of their covariance matrix. The covariance of two values falls as the distance between their
# inputs grows. The values that were drawn are the inputs of the next layer.
#
# Every layer has variance 1 here. It also has lengthscale 1, the distance over which its functions change. Its mean is
# either zero or the identity. With the identity, the draw is added to the inputs of the layer, as in
# :class:`~skdgp.DSDGPRegressor`.

# sphinx_gallery_thumbnail_number = 0
import numpy as np


def correlation(a, b):
    return np.exp(-0.5 * (a - b) ** 2)


def draw_conventional(x, n_layers, rng, identity=False):
    F = x
    for _ in range(n_layers):
        L = np.linalg.cholesky(
            correlation(F[:, None], F) + 1e-8 * np.eye(len(F))
        )
        F = identity * F + L @ rng.standard_normal(len(F))
        yield F


# %%
# Amortised chains
# ----------------
# Here every row :math:`n` has a few *inducing points* of its own, :math:`z_{nm} = w_m a_n + b_m`, where :math:`a_n` is
# the output of the layer before for this row (Eq. 3.3 of [2]_). The function's values at these points, :math:`u_n`, are
# drawn from the prior. The value :math:`f_n` of the row follows from them (Eq. 4.2 and 4.3):
#
# .. math::
#
#     u_n = L_n v_n, \quad L_n L_n^\top = k(Z_n, Z_n), \quad A_n = L_n^{-1} k(Z_n, a_n), \quad
#     f_n = A_n^\top v_n + \sqrt{1 - A_n^\top A_n}\, e_n,
#
# with standard normal :math:`v_n` and :math:`e_n`. These equations are about one row at a time. They do not say how the
# draws for different rows depend on each other, and the paper [2]_ does not say what its figure assumes. So we draw two
# extreme cases. In the first, every row has new :math:`v_n` and :math:`e_n`, as in the equations. In the second, all
# rows share one draw of them, and so the draw is a function of the input. There are four inducing points, as in the
# figure of the paper, with standard normal :math:`w_m` and :math:`b_m`.


def draw_amortised(x, n_layers, rng, shared, n_inducing=4):
    F = x
    n_draws = 1 if shared else len(x)
    for _ in range(n_layers):
        w, b = rng.standard_normal((2, n_inducing))
        Z = w * F[:, None] + b  # (n, M)
        # (n, M, M)
        K = correlation(Z[:, :, None], Z[:, None, :]) + 1e-6 * np.eye(
            n_inducing
        )
        A = np.linalg.solve(
            np.linalg.cholesky(K), correlation(Z, F[:, None])[..., None]
        )[..., 0]
        v, e = (
            rng.standard_normal((n_draws, n_inducing)),
            rng.standard_normal(n_draws),
        )
        F = (A * v).sum(axis=1) + np.sqrt(
            np.maximum(1 - (A**2).sum(axis=1), 0)
        ) * e
        yield F


# %%
# How many values are left
# ------------------------
# We sort the values after each layer into bins of width 0.05, a twentieth of the prior's standard deviation. Then we
# compute their *effective number*: the exponential of the entropy of the bins' shares. If the inputs are spread evenly
# over :math:`k` bins, the effective number is :math:`k`. If all inputs are in one bin, it is 1.
#
# The output has means over 100 draws, with standard errors. The last column is the correlation between the values at
# neighbouring inputs, after the last layer. It is near 1 for smooth functions, and 0 for noise.

x = np.linspace(-3, 3, 200)
n_layers, n_draws, depths = 8, 100, (1, 2, 4, 8)
priors = {
    "ordinary, zero mean": lambda rng: draw_conventional(x, n_layers, rng),
    "ordinary, identity mean": lambda rng: draw_conventional(
        x, n_layers, rng, identity=True
    ),
    "amortised, a draw per row": lambda rng: draw_amortised(
        x, n_layers, rng, shared=False
    ),
    "amortised, one draw": lambda rng: draw_amortised(
        x, n_layers, rng, shared=True
    ),
}


def count_values(F, resolution=0.05):
    _, counts = np.unique(np.floor(F / resolution), return_counts=True)
    share = counts / counts.sum()
    return np.exp(-share @ np.log(share))


draws, means, errors = {}, {}, {}
print(
    f"{'values, by layers':<26}"
    + "".join(f"{depth:>13}" for depth in depths)
    + f"{'neighbours':>13}"
)
for name, draw in priors.items():
    rng = np.random.default_rng(0)
    # (draws, layers, inputs)
    draws[name] = np.array([list(draw(rng)) for _ in range(n_draws)])
    values = np.apply_along_axis(count_values, -1, draws[name])
    means[name], errors[name] = (
        values.mean(axis=0),
        values.std(axis=0) / np.sqrt(n_draws),
    )
    last = draws[name][:, -1]
    alike = np.corrcoef(last[:, :-1].ravel(), last[:, 1:].ravel())[0, 1]
    shown = (
        f"{means[name][depth - 1]:.1f} ± {errors[name][depth - 1]:.1f}"
        for depth in depths
    )
    print(
        f"{name:<26}"
        + "".join(f"{text:>13}" for text in shown)
        + f"{alike:>13.2f}"
    )

# %%
# What draws look like
# --------------------
# There are three draws from each prior. Ordinary functions become flat, layer by layer. The identity slows this down,
# but plateaus form nevertheless. If every row has a draw of its own, nothing collapses, but the values at neighbouring
# inputs have nothing in common. If all rows share one amortised draw, the draw is a function, and it becomes flat as
# ordinary functions do.

import matplotlib.pyplot as plt

fig, axes = plt.subplots(
    4, 4, figsize=(12, 10), sharex=True, sharey="row", layout="constrained"
)
for row, (name, drawn) in zip(axes, draws.items(), strict=True):
    row[0].set_ylabel(name)
    for ax, depth in zip(row, depths, strict=True):
        ax.plot(
            x,
            drawn[:3, depth - 1].T,
            "." if "per row" in name else "-",
            markersize=2,
            linewidth=1.5,
        )
        layers = f"{depth} layer{'s' * (depth > 1)}: " if ax in axes[0] else ""
        ax.set_title(f"{layers}{means[name][depth - 1]:.0f} values")
fig.supxlabel("input")
fig.supylabel("value")
plt.show()

# %%
# Does it matter for training?
# ----------------------------
# If a chain gives two inputs the same value, training cannot tell these inputs apart. To see how much this matters, we
# fit chains to two hundred noisy rows of a wave. All hidden layers have a single output. Some of the chains are
# ordinary ones. The others are amortised, as in the estimator: its networks compute the inducing variables of every
# row, so the rows are not independent. Each chain may take 60 epochs.
#
# The *continuous ranked probability score* (CRPS) compares predicted distributions with new rows, in the units of the
# target; lower is better. A model that has learnt nothing predicts the mean and the standard deviation of all targets
# for each row.

from itertools import product

from joblib import Parallel, delayed
from sklearn.base import clone

from skdgp import AVDGPRegressor, DSDGPRegressor, PredictiveDistribution
from skdgp.datasets import make_waves
from skdgp.metrics import crps

X, y = make_waves(200, random_state=0)
X_test, y_test = make_waves(1000, random_state=1)
nothing = crps(
    y_test,
    PredictiveDistribution.gaussian(
        np.full(1000, y.mean()), np.full(1000, y.std())
    ),
)
params = {
    "base": None,
    "n_neighbors": 0,
    "n_estimators": 1,
    "n_samples": 8,
    "batch_size": 60,
    "max_iter": 60,
    "random_state": 0,
}
chains = {
    "ordinary": DSDGPRegressor(n_inducing=20, **params),
    "amortised": AVDGPRegressor(n_inducing=4, **params),
}
settings = [*product(chains, ("zero", "identity"), depths)]
models = [
    clone(chains[chain]).set_params(mean=mean, hidden_dims=(1,) * (depth - 1))
    for chain, mean, depth in settings
]
fitted = Parallel(n_jobs=-1)(delayed(model.fit)(X, y) for model in models)
losses = {}
for (chain, mean, _), model in zip(settings, fitted, strict=True):
    losses.setdefault(f"{chain}, {mean} mean", []).append(
        crps(y_test, model.predict_dist(X_test))
    )

print(
    f"{'test CRPS, by layers':<26}"
    + "".join(f"{depth:>8}" for depth in depths)
)
for name, row in losses.items():
    print(f"{name:<26}" + "".join(f"{loss:>8.3f}" for loss in row))
print(f"{'nothing learnt':<26}{nothing:>8.3f}")

# %%
# Priors and trained chains in one picture
# ----------------------------------------
# Left: how many values the priors keep. The bars are two standard errors. Right: the CRPS that the chains reach with
# this much training.

colours = ("#b3261e", "#0b5fa5", "#8a8a8a", "#c8762b")
fig, (left, right) = plt.subplots(
    1, 2, figsize=(12, 4.6), layout="constrained"
)
for name, colour in zip(priors, colours, strict=True):
    style = {"color": colour, "linewidth": 2, "capsize": 3, "label": name}
    left.errorbar(
        np.arange(1, n_layers + 1), means[name], 2 * errors[name], **style
    )
for (name, row), colour in zip(
    losses.items(), ("#b3261e", "#0b5fa5", "#7a4a12", "#e0a458"), strict=True
):
    right.plot(depths, row, color=colour, linewidth=2, marker="o", label=name)
right.axhline(nothing, color="#8a8a8a", linestyle="--", label="nothing learnt")
kept = means["ordinary, zero mean"][-1] / means["ordinary, zero mean"][0]
left.set(
    ylabel="effective number of values",
    title=f"Ordinary, zero mean: {100 * kept:.0f} % of the values left",
)
learnt = [name for name, row in losses.items() if row[-1] < 0.5 * nothing]
title = f"Below half of the dashed line with {n_layers} layers:\n"
title += "; ".join(learnt) or "none"
right.set(ylabel="test CRPS", xticks=depths, title=title)
for ax in (left, right):
    ax.set(xlabel="layers", ylim=(0, None))
    ax.legend(frameon=False)
plt.show()

# %%
# Summary
# -------

for name, row in means.items():
    print(
        f"{name}: {100 * row[-1] / row[0]:.0f} % of the values after one "
        f"layer are left after {n_layers} layers."
    )
for name, row in losses.items():
    useful = [
        depth
        for depth, loss in zip(depths, row, strict=True)
        if loss < 0.5 * nothing
    ]
    print(
        f"{name}, trained: CRPS less than half of 'nothing learnt' for these "
        f"numbers of layers: {useful}"
    )

kept = {name: row[-1] / row[0] for name, row in means.items()}
assert kept["ordinary, zero mean"] < 0.5 * kept["ordinary, identity mean"]
assert kept["amortised, a draw per row"] > 0.95
assert kept["amortised, one draw"] < 0.2
assert max(losses["ordinary, identity mean"]) < 0.5 * nothing
for mean in ("zero", "identity"):
    one, two, *longer = losses[f"amortised, {mean} mean"]
    assert two < one and min(longer) > 0.8 * nothing

# %%
# So the priors of ordinary chains collapse as the literature says. The identity mean is a good remedy: values are lost,
# but enough are left to learn from at all depths. Amortised priors do not collapse as long as their rows are
# independent. If the rows depend on each other, long chains fail, too. With a shared draw they become flat. With the
# networks of the estimator, long chains with one output each learn next to nothing from this much training, while two
# layers are better than one. So keep amortised chains short and wide.
# :class:`~skdgp.AVDGPRegressor` has three layers by default, with 16, 4 and 1 outputs.
#
# .. [1] Duvenaud, D., Rippel, O., Adams, R. P. and Ghahramani, Z., "Avoiding Pathologies in Very Deep Networks",
#    AISTATS 2014.
# .. [2] Meng, Q. and Zhang, Y., "Amortized Variational Inference for Deep Gaussian Processes", 2024, Fig. 3.
