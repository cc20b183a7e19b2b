"""
Which inputs matter: Sobol indices with error bars
==================================================

Which inputs does an outcome depend on, and how much of its variation does each of them explain? Sobol indices answer
with a share of the variance for each input. To compute them you need thousands of runs of a simulator, and often a run
takes hours. You can ask a model of the simulator instead. But how far can you trust its answer, if it has learnt from
two hundred runs? To find out, this example draws functions from a Gaussian process (GP). Each of them is a possible
simulator that agrees with the runs, and each has indices of its own.
"""

# %%
# A simulator whose indices are known
# -----------------------------------
# Ishigami's function has three inputs, uniform between -π and π. The *first-order* index of an input is the share of
# the variance that vanishes on average if you know this input. The *total* index is the share that is left if you know
# all other inputs. The third input is the interesting one. It has no effect of its own, and only acts together with the
# first input. So its first-order index is 0, but its total index is not.

# sphinx_gallery_thumbnail_number = 0
import numpy as np


def ishigami(X):
    """Values (n,) at inputs (n, 3)."""
    return (
        np.sin(X[:, 0])
        + 7 * np.sin(X[:, 1]) ** 2
        + 0.1 * X[:, 2] ** 4 * np.sin(X[:, 0])
    )


main = [0.5 * (1 + 0.1 * np.pi**4 / 5) ** 2, 7**2 / 8, 0.0]
# Of the first and the third input.
interaction = 0.1**2 * np.pi**8 * (1 / 18 - 1 / 50)
variance = sum(main) + interaction
true_first = np.array(main) / variance
true_total = (
    np.array(main) + np.array([interaction, 0, interaction])
) / variance


def run_simulator(n_runs, random_state):
    """Inputs (n, 3) and outcomes (n,)."""
    X = np.random.default_rng(random_state).uniform(-np.pi, np.pi, (n_runs, 3))
    return X, ishigami(X)


# %%
# Which estimator?
# ----------------
# If a model predicts the simulator badly, its indices are wrong as well. So first look at how well a model predicts
# runs that it has not seen. Here are the three families of this package (:doc:`/which_estimator`). Each consists of a
# single model instead of an ensemble, and has the smooth kernel "rbf". The first is a plain GP, for which the default
# corrections by a base and by neighbours are switched off. That saves half of the time.

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor


def make_model(n_inducing="auto"):
    """A plain sparse GP. By default it has an inducing point at each run, or
    256 points if there are more runs."""
    alone = {"n_orthogonal": 0, "base": None, "n_neighbors": 0}
    return SOLVEGPRegressor(
        n_inducing,
        kernel="rbf",
        method="collapsed",
        max_iter=60,
        random_state=0,
        **alone,
    )


X, y = run_simulator(200, random_state=0)
families = {
    "SOLVEGPRegressor": make_model(),
    "AVDGPRegressor": AVDGPRegressor(
        kernel="rbf", n_estimators=1, random_state=0
    ),
    "DSDGPRegressor": DSDGPRegressor(
        n_inducing=50,
        kernel="rbf",
        n_estimators=1,
        max_iter=100,
        random_state=0,
    ),
}
for name, family in families.items():
    family.fit(X[:150], y[:150])
    print(
        f"{name:<17} R² on 50 runs, after learning from 150 others: "
        f"{family.score(X[150:], y[150:]):.3f}"
    )

# %%
# All three predict about equally well. This is no coincidence. The two deep models have the default settings for the
# corrections, so they mix their predictions with those of a plain GP, the *base*. Here they give nearly all of the
# weight to the base (``base_weight_``). So a plain GP suits this simulator, which is smooth and has no noise.

for name in ("AVDGPRegressor", "DSDGPRegressor"):
    print(f"{name}: weight of the base {families[name].base_weight_:.2f}")
    assert families[name].base_weight_ > 0.8

# %%
# A set of indices for each draw
# ------------------------------
# :func:`scipy.stats.sobol_indices` takes a function with many outputs, and computes indices for each output. We pass it
# a hundred drawn functions as the outputs of one function. The spread of their indices shows how much is still
# uncertain after a few hundred runs. (:func:`skdgp.inspection.sensitivity` does the same for the features of a table.)

from scipy.stats import sobol_indices, uniform

N_DRAWS = 100
cube = 3 * [uniform(-np.pi, 2 * np.pi)]


def learn_indices(n_runs, random_state, n_draws=N_DRAWS):
    """First-order and total indices (n_draws, 3) of functions drawn from a
    model of so many runs."""
    draws = (
        make_model()
        .fit(*run_simulator(n_runs, random_state))
        .sample_functions(n_draws, random_state=0)
    )
    indices = sobol_indices(
        func=lambda x: draws(x.T).T, n=1024, dists=cube, rng=0
    )
    return indices.first_order, indices.total_order


first, total = {}, {}
for n_runs in (100, 200, 400):
    first[n_runs], total[n_runs] = learn_indices(n_runs, random_state=0)

for title, indices, truth in (
    ("First-order", first, true_first),
    ("Total", total, true_total),
):
    print(f"{title} indices of the three inputs, true values {truth.round(3)}")
    for n_runs, values in indices.items():
        low, high = np.quantile(values, [0.05, 0.95], axis=0)
        ends = "   ".join(
            f"{a:.3f} to {b:.3f}" for a, b in zip(low, high, strict=True)
        )
        print(f"  {n_runs} runs, the middle 90 % of the draws: {ends}")

# %%
# A hundred runs are enough to see that the third input does next to nothing alone, and much with others. If an input
# acts alone, its two indices are equal. The second input is such an input, but it takes more runs to see that: its
# indices are nearly equal after two hundred. With more runs, the draws agree better with each other, and in general
# they come closer to the truth. Some indices are a little below 0, which no true index can be. This is the error of
# ``sobol_indices``.
#
# In the picture each shape is the distribution of an index over the draws. The white dots are medians.

import matplotlib.pyplot as plt

blues, red, dark = (
    {100: "#a9cbe8", 200: "#4f94cd", 400: "#0b4a83"},
    "#b3261e",
    "#333333",
)


def violins(ax, values, places, colour, width):
    """Draw the distribution of each column of values, one at each place."""
    for body in ax.violinplot(values, places, widths=width, showextrema=False)[
        "bodies"
    ]:
        body.set(facecolor=colour, alpha=0.9, edgecolor=colour)
    ax.plot(
        places,
        np.median(values, axis=0),
        "o",
        color="white",
        markeredgecolor=dark,
        markersize=3.5,
        zorder=3,
    )


fig, axes = plt.subplots(
    1, 2, figsize=(12, 4.4), sharey=True, layout="constrained"
)
for ax, indices, truth in zip(
    axes, (first, total), (true_first, true_total), strict=True
):
    for shift, (n_runs, values) in zip(
        (-0.25, 0, 0.25), indices.items(), strict=True
    ):
        violins(ax, values, np.arange(3) + shift, blues[n_runs], 0.24)
        ax.fill_between(
            [], [], color=blues[n_runs], label=f"100 draws, {n_runs} runs"
        )
    ax.hlines(
        truth,
        np.arange(3) - 0.42,
        np.arange(3) + 0.42,
        color=red,
        linewidth=1.8,
        label="true index",
    )
    ax.set(
        xticks=range(3),
        xticklabels=["first input", "second input", "third input"],
    )
axes[0].set(
    ylabel="share of the variance",
    title="First-order: what the input does alone",
)
axes[1].set(title="Total: what it does alone and with others")
axes[0].legend(frameon=False, loc="upper right")
plt.show()

# %%
# Can the error bars be trusted?
# ------------------------------
# Some true indices above lie outside the range of their draws. Is that chance? To find out, we take five other sets of
# 200 runs. If the spread of the draws were the whole uncertainty, the middle 90 % of the draws would contain nine in
# ten of the true indices.

inside = []
for random_state in range(1, 6):
    draws = np.hstack(learn_indices(200, random_state, n_draws=50))
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    truth = np.concatenate([true_first, true_total])
    inside.append((low <= truth) & (truth <= high))
print(
    f"The middle 90 % of the draws contain {np.sum(inside)} of "
    f"{np.size(inside)} true indices"
)

# %%
# That is far fewer than nine in ten. The draws show only the uncertainty that the model knows of. The model takes its
# kernel and its lengthscales as certain. The kernel also assumes that the simulator is equally wavy everywhere, and
# Ishigami's function is not. So the true uncertainty is larger than the spread of the draws. The indices themselves
# are close to the truth: medians after two hundred runs are off by less than 0.05.

assert np.mean(inside) < 0.75
for values, truth in ((first, true_first), (total, true_total)):
    assert np.abs(np.median(values[200], axis=0) - truth).max() < 0.05

# %%
# Real data
# ---------
# scikit-learn's diabetes data say how far the disease had progressed in a year. There are 442 patients with ten
# measurements each. The true indices are not known.
#
# There is a difficulty. Sobol indices ask what happens if one input changes and the others stay. So they assume that
# inputs are *independent*, and measurements of patients are not. Six of them are of the blood serum, and two of these,
# total cholesterol and LDL, say almost the same. If each input is drawn independently, the result is patients that
# cannot exist, and the model has to guess what would happen to them.
#
# One way out is to draw together what belongs together. A *group* of inputs takes all its values from one random
# patient, and counts as one input. Then only the groups are assumed to be independent. This is still not quite true. It
# causes an error that the draws do not show.

from scipy.stats import randint
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score

data = load_diabetes(as_frame=True, scaled=False)
patients, progression = data.data, data.target
titles = dict(
    age="age",
    sex="sex",
    bmi="body mass index",
    bp="blood pressure",
    s1="total cholesterol",
    s2="LDL",
)
titles |= dict(
    s3="HDL", s4="cholesterol / HDL", s5="triglycerides (log)", s6="glucose"
)
singles = {title: [column] for column, title in titles.items()}
lipids = ["s1", "s2", "s3", "s4", "s5"]
groups = {
    title: columns
    for title, columns in singles.items()
    if columns[0] not in lipids
}
groups["blood lipids (five)"] = lipids

print(
    "Correlation of total cholesterol and LDL: "
    f"{patients['s1'].corr(patients['s2']):.2f}"
)
model = make_model(n_inducing=50)
print(
    "R² by cross-validation: "
    f"{cross_val_score(model, patients, progression, cv=5).mean():.2f}"
)
model.fit(patients, progression)
draws = model.sample_functions(50, random_state=0)


def made_up(numbers, inputs):
    """Patients whose inputs come from different patients, whose numbers are
    given for each input (n_inputs, n)."""
    made = patients.iloc[numbers[0].astype(int)].reset_index(drop=True)
    for number, columns in zip(
        numbers.astype(int), inputs.values(), strict=True
    ):
        made[columns] = patients[columns].to_numpy()[number]
    return made


effect = {}
for title, inputs in (
    ("Ten single inputs", singles),
    ("Lipids as one group", groups),
):
    any_patient = [randint(0, len(patients)) for _ in inputs]
    indices = sobol_indices(
        func=lambda x, inputs=inputs: draws(made_up(x, inputs)).T,
        n=1024,
        dists=any_patient,
        rng=0,
    )
    effect[title] = indices.total_order
    numbers = np.random.default_rng(0).integers(
        len(patients), size=(len(inputs), 1000)
    )
    doubt = model.predict(
        made_up(numbers, inputs), return_std=True, latent=True
    )[1].mean()
    print(
        f"{title}, made-up patients: mean standard deviation of the model "
        f"{doubt:.1f}"
    )
print(
    "Real patients: mean standard deviation of the model "
    f"{model.predict(patients, return_std=True, latent=True)[1].mean():.1f}"
)

for title, inputs in (
    ("Ten single inputs", singles),
    ("Lipids as one group", groups),
):
    print(f"{title}: total indices, median and middle 90 % of the draws")
    for name, values in zip(inputs, effect[title].T, strict=True):
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
        print(f"  {name:<20}{middle:>6.2f}   {low:.2f} to {high:.2f}")

# %%
# Among the single inputs, triglycerides and body mass index matter most. LDL and total cholesterol seem to matter
# hardly at all. But that says little about them. Most of what they say about a patient is also in the other lipids, and
# the model needs only some of them. The group shows how much the lipids matter together. The model is less sure of
# made-up patients than of real ones, and surer of the made-up patients of the groups than of those of the single
# inputs.
#
# The ranges are wide, since 442 patients are few. The choice of made-up patients also moves the indices a little. And
# all indices are shares of the variance of what the *model* predicts. It leaves a part of the variance of the disease's
# progression unexplained, which the R² above tells.

middle = {
    title: dict(zip(inputs, np.median(effect[title], axis=0), strict=True))
    for title, inputs in (
        ("Ten single inputs", singles),
        ("Lipids as one group", groups),
    )
}
single = middle["Ten single inputs"]
assert sorted(single, key=single.get)[-2:] == [
    "body mass index",
    "triglycerides (log)",
]
assert single["LDL"] + single["total cholesterol"] < 0.1
assert middle["Lipids as one group"]["blood lipids (five)"] > 0.4

fig, axes = plt.subplots(
    1,
    2,
    figsize=(12, 4.8),
    width_ratios=(10, 6),
    sharey=True,
    layout="constrained",
)
for ax, (title, values), inputs in zip(
    axes, effect.items(), (singles, groups), strict=True
):
    for place, columns in enumerate(inputs.values()):
        colour = "#c8762b" if set(columns) <= set(lipids) else blues[200]
        violins(ax, values[:, [place]], [place], colour, 0.8)
    ax.set_xticks(
        range(len(inputs)),
        list(inputs),
        rotation=40,
        ha="right",
        rotation_mode="anchor",
    )
    ax.set_title(title)
axes[0].fill_between([], [], color="#c8762b", label="blood lipids")
axes[0].fill_between([], [], color=blues[200], label="other inputs")
axes[0].legend(frameon=False, loc="upper left")
axes[0].set_ylabel("total index: share of the variance")
plt.show()
