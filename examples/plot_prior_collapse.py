r"""
Prior collapse: what deep GPs expect before they see data
=========================================================

A chain of Gaussian processes is richer than one. Is a longer chain richer still? Before it has seen data, a model
is a distribution over functions, its *prior*, from which one can draw. Draws from long chains of ordinary processes
are known to *collapse*: all inputs end at a few values, as no layer can tell apart what the one before has made
equal [1]_. Amortised priors, those behind :class:`~skdgp.AVDGPRegressor`, are said to be free of that [2]_. This
example draws from both, counts the values that are left, and looks at what that means for training.
"""

# %%
# Chains of ordinary processes
# ----------------------------
# A Gaussian process says that values at any inputs are jointly Gaussian, with covariances that fall with the distance
# of the inputs. So a draw is exact and takes one Cholesky factor, and the next layer takes its values as inputs. Every
# layer here has variance 1 and lengthscale 1, the distance over which its functions change. Its mean is zero; or it is
# the identity, as in :class:`~skdgp.DSDGPRegressor`, which adds the draw to the inputs.

import numpy as np


def correlation(a, b):
    return np.exp(-0.5 * (a - b) ** 2)


def draw_conventional(x, n_layers, rng, identity=False):
    F = x
    for _ in range(n_layers):
        L = np.linalg.cholesky(correlation(F[:, None], F) + 1e-8 * np.eye(len(F)))
        F = identity * F + L @ rng.standard_normal(len(F))
        yield F


# %%
# Amortised chains
# ----------------
# Here every row :math:`n` has a few *inducing points* of its own, :math:`z_{nm} = w_m a_n + b_m`, where :math:`a_n` is
# what the layer before made of the row (Eq. 3.3 of the paper). Function values there, :math:`u_n`, are drawn from the
# prior, and the row's own value follows from them (Eq. 4.2 and 4.3):
#
# .. math::
#
#     u_n = L_n v_n, \quad L_n L_n^\top = k(Z_n, Z_n), \quad A_n = L_n^{-1} k(Z_n, a_n), \quad
#     f_n = A_n^\top v_n + \sqrt{1 - A_n^\top A_n}\, e_n,
#
# with standard normal :math:`v_n` and :math:`e_n`. That speaks of one row at a time. How draws of different rows hang
# together is left open, and the paper does not say what its figure assumes. Two extremes are drawn here: new
# :math:`v_n` and :math:`e_n` for each row, as the equations read, and one draw that all rows share, which makes
# functions. There are four inducing points, as in the figure, with standard normal :math:`w_m` and :math:`b_m`.


def draw_amortised(x, n_layers, rng, shared, n_inducing=4):
    F = x
    n_draws = 1 if shared else len(x)
    for _ in range(n_layers):
        w, b = rng.standard_normal((2, n_inducing))
        Z = w * F[:, None] + b  # (n, M)
        K = correlation(Z[:, :, None], Z[:, None, :]) + 1e-6 * np.eye(n_inducing)  # (n, M, M)
        A = np.linalg.solve(np.linalg.cholesky(K), correlation(Z, F[:, None])[..., None])[..., 0]
        v, e = rng.standard_normal((n_draws, n_inducing)), rng.standard_normal(n_draws)
        F = (A * v).sum(axis=1) + np.sqrt(np.maximum(1 - (A**2).sum(axis=1), 0)) * e
        yield F


# %%
# How many values are left
# ------------------------
# Values are sorted into bins of width 0.05, a twentieth of the prior's standard deviation. Their effective number is
# the exponential of the entropy of the bins' shares: :math:`k` if inputs are spread evenly over :math:`k` bins, and 1
# if all are in one. Below are means over 100 draws with standard errors. The last column is the correlation
# of values at neighbouring inputs after the last layer: 1 for smooth functions, 0 for noise.

x = np.linspace(-3, 3, 200)
n_layers, n_draws, depths = 8, 100, (1, 2, 4, 8)
priors = {
    "ordinary, zero mean": lambda rng: draw_conventional(x, n_layers, rng),
    "ordinary, identity mean": lambda rng: draw_conventional(x, n_layers, rng, identity=True),
    "amortised, a draw per row": lambda rng: draw_amortised(x, n_layers, rng, shared=False),
    "amortised, one draw": lambda rng: draw_amortised(x, n_layers, rng, shared=True),
}


def count_values(F, resolution=0.05):
    _, counts = np.unique(np.floor(F / resolution), return_counts=True)
    share = counts / counts.sum()
    return np.exp(-share @ np.log(share))


draws, means, errors = {}, {}, {}
print(f"{'values, by layers':<26}" + "".join(f"{depth:>13}" for depth in depths) + f"{'neighbours':>13}")
for name, draw in priors.items():
    rng = np.random.default_rng(0)
    draws[name] = np.array([list(draw(rng)) for _ in range(n_draws)])  # (draws, layers, inputs)
    values = np.apply_along_axis(count_values, -1, draws[name])
    means[name], errors[name] = values.mean(axis=0), values.std(axis=0) / np.sqrt(n_draws)
    last = draws[name][:, -1]
    alike = np.corrcoef(last[:, :-1].ravel(), last[:, 1:].ravel())[0, 1]
    shown = (f"{means[name][depth - 1]:.1f} ± {errors[name][depth - 1]:.1f}" for depth in depths)
    print(f"{name:<26}" + "".join(f"{each:>13}" for each in shown) + f"{alike:>13.2f}")

# %%
# What draws look like
# --------------------
# Three draws from each prior. Ordinary functions flatten out, layer by layer. The identity slows that down, but
# plateaus form nevertheless. With a draw for each row nothing collapses, and neighbours have nothing in common. Where
# amortised rows share a draw they make functions, and these flatten as ordinary ones do.

import matplotlib.pyplot as plt

fig, axes = plt.subplots(4, 4, figsize=(12, 10), sharex=True, sharey="row", layout="constrained")
for row, (name, drawn) in zip(axes, draws.items(), strict=True):
    row[0].set_ylabel(name)
    for ax, depth in zip(row, depths, strict=True):
        ax.plot(x, drawn[:3, depth - 1].T, "." if "per row" in name else "-", markersize=2, linewidth=1.5)
        layers = f"{depth} layer{'s' * (depth > 1)}: " if ax in axes[0] else ""
        ax.set_title(f"{layers}{means[name][depth - 1]:.0f} values")
fig.supxlabel("input")
plt.show()

# %%
# Does it matter?
# ---------------
# What a chain does not tell apart, training cannot use. Two hundred noisy rows of a wave go to chains whose hidden
# layers have a single output: ordinary ones, and amortised ones as the estimator has them, where networks tie the
# rows. All may take 60 passes over the data. The *continuous ranked probability score* (CRPS) compares predictive
# distributions with fresh rows, in units of the target; lower is better. A model that has learnt nothing predicts the
# mean and the standard deviation of all targets.

from itertools import product

from joblib import Parallel, delayed
from sklearn.base import clone

from skdgp import AVDGPRegressor, DSDGPRegressor, PredictiveDistribution
from skdgp.datasets import make_waves
from skdgp.metrics import crps

X, y = make_waves(200, random_state=0)
X_test, y_test = make_waves(1000, random_state=1)
nothing = crps(y_test, PredictiveDistribution.gaussian(np.full(1000, y.mean()), np.full(1000, y.std())))
params = {
    "base": None,
    "n_neighbors": 0,
    "n_estimators": 1,
    "n_samples": 8,
    "batch_size": 60,
    "max_iter": 60,
    "random_state": 0,
}
chains = {"ordinary": DSDGPRegressor(n_inducing=20, **params), "amortised": AVDGPRegressor(n_inducing=4, **params)}
settings = [*product(chains, ("zero", "identity"), depths)]
models = [clone(chains[chain]).set_params(mean=mean, hidden_dims=(1,) * (depth - 1)) for chain, mean, depth in settings]
fitted = Parallel(n_jobs=-1)(delayed(model.fit)(X, y) for model in models)
losses = {}
for (chain, mean, _), model in zip(settings, fitted, strict=True):
    losses.setdefault(f"{chain}, {mean} mean", []).append(crps(y_test, model.predict_dist(X_test)))

print(f"{'test CRPS, by layers':<26}" + "".join(f"{depth:>8}" for depth in depths))
for name, row in losses.items():
    print(f"{name:<26}" + "".join(f"{loss:>8.3f}" for loss in row))
print(f"{'nothing learnt':<26}{nothing:>8.3f}")

# %%
# Both in one picture
# -------------------
# Left, priors, with bars of two standard errors; right, what this much training made of such chains.

colours = ("#b3261e", "#0b5fa5", "#8a8a8a", "#c8762b")
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
for name, colour in zip(priors, colours, strict=True):
    style = {"color": colour, "linewidth": 2, "capsize": 3, "label": name}
    left.errorbar(np.arange(1, n_layers + 1), means[name], 2 * errors[name], **style)
for (name, row), colour in zip(losses.items(), ("#b3261e", "#0b5fa5", "#7a4a12", "#e0a458"), strict=True):
    right.plot(depths, row, color=colour, linewidth=2, marker="o", label=name)
right.axhline(nothing, color="#8a8a8a", linestyle="--", label="nothing learnt")
kept = means["ordinary, zero mean"][-1] / means["ordinary, zero mean"][0]
left.set(ylabel="values left, of 200 inputs", title=f"Ordinary, zero mean: {100 * kept:.0f} % of the values are left")
learnt = [name for name, row in losses.items() if row[-1] < 0.5 * nothing]
right.set(ylabel="test CRPS", xticks=depths, title=f"Still learns with {n_layers} layers: {'; '.join(learnt)}")
for ax in (left, right):
    ax.set(xlabel="layers", ylim=(0, None))
    ax.legend(frameon=False)
plt.show()

# %%
# In short
# --------

for name, row in means.items():
    print(f"{name}: {100 * row[-1] / row[0]:.0f} % of the values of one layer are left after {n_layers}.")
for name, row in losses.items():
    useful = [depth for depth, loss in zip(depths, row, strict=True) if loss < 0.5 * nothing]
    print(f"{name}, trained: less than half the CRPS of nothing learnt with {useful} layers.")

# %%
# So the collapse is what the literature says it is, and for ordinary chains the identity mean is a good remedy: not
# all values survive, but enough to learn from. Amortised priors escape as long as their rows are independent. Once
# something ties the rows, long chains flatten too (a shared draw) or get nowhere in so much training (the estimator's
# networks). It is a reason to keep amortised chains short and wide: :class:`~skdgp.AVDGPRegressor` has three layers by
# default, with 16, 4 and 1 outputs.
#
# .. [1] D. Duvenaud, O. Rippel, R. P. Adams and Z. Ghahramani, "Avoiding Pathologies in Very Deep Networks", AISTATS
#    2014.
# .. [2] Q. Meng and Y. Zhang, "Amortized Variational Inference for Deep Gaussian Processes", 2024, Fig. 3.
