"""Intervals, and what they leave out: struts that buckle to either side.

A strut under load stays straight, with a rattle around 2.5 kN, until the load is critical at 5 kN. From there it
buckles, two times in three to the right. Its mean deflection says little and no strut has it; what matters is the
distribution. A deep GP trained for its predictive density learns it as a mixture of Gaussians: noise that comes and
goes with the load, then two branches with nothing in between. scikit-learn's exact GP has one width for all loads.
Boosted trees, fitted to two quantiles, follow the data with the ends of their intervals, and know nothing else.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_validate

from skdgp import AVDGPRegressor
from skdgp.display import CalibrationDisplay, PredictiveIntervalDisplay
from skdgp.metrics import coverage, crps, crps_scorer, interval_score, log_density_scorer, predictive_distribution

BLUE, ORANGE, GREEN, GREY = "#0b5fa5", "#c8762b", "#5f8f4e", "#8a8a8a"
CRITICAL, TO_THE_RIGHT = 5.0, 0.65
RATTLING, BUCKLED = 2.5, 8.0  # the loads that the picture cuts through
SCORING = {"−CRPS": crps_scorer, "log density": log_density_scorer}
SEEDS = (0, 1, 2)
N_DRAWS = 3


def make_struts(n_struts, random_state):
    """Loads (n, 1) in kN and deflections (n,) in mm."""
    rng = np.random.default_rng(random_state)
    load = rng.uniform(0, 10, n_struts)
    side = np.where(rng.uniform(size=n_struts) < TO_THE_RIGHT, 1, -1)
    noise = 0.12 + 0.4 * np.exp(-((load - RATTLING) ** 2))
    deflection = 1.1 * side * np.sqrt(np.maximum(load - CRITICAL, 0)) + noise * rng.standard_normal(n_struts)
    return load[:, None], deflection


def fit_avdgp(X, y, seeds, **params):
    """The deep GP, from those initial values that predict its held-out rows best.

    Other than the evidence lower bound, the default, the predictive objective learns the shape of the noise. It has
    poor optima too, here one wide Gaussian over both branches, which held-out rows tell from good ones.
    """
    model = AVDGPRegressor(objective="predictive", beta=1.0, mean="identity", n_estimators=1, **params)
    fits = [clone(model).set_params(random_state=seed).fit(X, y) for seed in seeds]
    return max(fits, key=lambda fitted: fitted.validation_scores_.max())


def make_gp():
    """scikit-learn's exact GP."""
    return GaussianProcessRegressor(ConstantKernel() * RBF() + WhiteKernel(), normalize_y=True, random_state=0)


def predict_trees(X_train, y_train, X):
    """Ends of 90 % intervals, each from boosted trees of its own."""
    trees = [HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0) for q in (0.05, 0.95)]
    return np.column_stack([each.fit(X_train, y_train).predict(X) for each in trees])


def print_scores(y, distributions, intervals):
    """One line per model, of scores in mm except coverage; the trees predict no distribution to take the CRPS of."""
    print(f"{'':<15}{'CRPS':>7}{'interval score':>17}{'90 % coverage':>16}")
    for name, ends in intervals.items():
        score = f"{crps(y, distributions[name]):.3f}" if name in distributions else "-"
        print(f"{name:<15}{score:>7}{interval_score(y, *ends.T):>17.2f}{100 * coverage(y, *ends.T):>14.1f} %")


def print_quantiles(model):
    """Deflections that the deep GP predicts under some loads."""
    loads, levels = np.array([RATTLING, CRITICAL, BUCKLED]), (0.05, 0.25, 0.5, 0.75, 0.95)
    print(f"\n{'quantiles, mm':<15}" + "".join(f"{100 * level:>6.0f} %" for level in levels))
    for load, row in zip(loads, model.predict_quantiles(loads[:, None], levels), strict=True):
        print(f"{f'{load:g} kN':<15}" + "".join(f"{value:>8.2f}" for value in row))


def print_cross_validation(models, X, y):
    """Scorers in scikit-learn's own loop; a fold that stands out has met a poor optimum."""
    print("\nFolds of cross-validation")
    for name, model in models.items():
        scores = cross_validate(model, X, y, scoring=SCORING, cv=3)
        folds = (f"{what} " + ", ".join(f"{fold:.2f}" for fold in scores[f"test_{what}"]) for what in SCORING)
        print(f"{name:<15}" + "; ".join(folds))


def plot_intervals(ax, model, gp, X, y):
    """Intervals of both models, and the test struts."""
    PredictiveIntervalDisplay.from_estimator(model, X, y, feature=0, ax=ax, scatter_kwargs={"s": 8})
    order = np.argsort(X[:, 0])
    ends = np.column_stack(predictive_distribution(gp, X[order]).interval(0.9))
    lines = ax.plot(X[order, 0], ends, color=ORANGE, linewidth=1.4, linestyle="--")
    lines[0].set_label("90 % interval, exact GP")
    ax.legend(frameon=False, loc="upper left", fontsize=9.5)
    ax.set(xlim=(0, 10), ylim=(-3.4, 4.9), xlabel="Load (kN)", ylabel="Deflection (mm)")


def plot_density(ax, model):
    """The predictive density over all loads, and draws from it."""
    loads, deflections = np.linspace(0, 10, 300)[:, None], np.linspace(-3.4, 4.9, 300)
    density = model.predict_dist(loads).pdf(deflections[:, None])
    # The square root shows faint densities beside dense ones.
    ax.pcolormesh(loads[:, 0], deflections, np.sqrt(density), cmap="Blues", vmax=1.6, rasterized=True)
    draws = model.sample_y(loads[::6], N_DRAWS, random_state=3)
    for draw, colour, marker in zip(draws.T, (ORANGE, GREEN, "#333333"), "o^s", strict=True):
        ax.plot(loads[::6, 0], draw, marker, color=colour, markersize=4.5, markeredgecolor="white", markeredgewidth=0.4)
    ax.set(xlim=(0, 10), ylim=(-3.4, 4.9), xlabel="Load (kN)", ylabel="Deflection (mm)")
    ax.set_title(f"AVDGP: density, and {N_DRAWS} draws of sample_y")


def plot_cut(axes, model, gp, X, y):
    """Densities at two loads, beside the struts tested within 0.4 kN of them."""
    deflections = np.linspace(-3.4, 3.4, 400)
    for ax, load in zip(axes, (RATTLING, BUCKLED), strict=True):
        near = np.abs(X[:, 0] - load) < 0.4
        ax.hist(y[near], np.linspace(-3.4, 3.4, 35), density=True, color="#dddddd", label=f"{near.sum()} struts near")
        for name, each, colour in (("AVDGP", model, BLUE), ("Exact GP", gp, ORANGE)):
            dist = predictive_distribution(each, [[load]])
            ax.plot(deflections, dist.pdf(deflections[:, None])[:, 0], color=colour, linewidth=1.8, label=name)
        ax.set(title=f"Density at {load:g} kN", xlabel="Deflection (mm)", xlim=(-3.4, 3.4))
        ax.legend(frameon=False, fontsize=9.5, loc="upper left", borderaxespad=0)
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])  # room for the legend


def plot(model, gp, X, y, path):
    """Save the picture."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    layout = [["intervals", "intervals", "density", "density"], ["first", "second", "calibration", "calibration"]]
    with plt.rc_context(style):
        fig, axes = plt.subplot_mosaic(layout, figsize=(13, 9), layout="constrained")
        plot_intervals(axes["intervals"], model, gp, X, y)
        plot_density(axes["density"], model)
        plot_cut((axes["first"], axes["second"]), model, gp, X, y)
        for name, each, colour in (("AVDGP", model, BLUE), ("Exact GP", gp, ORANGE)):
            line = {"color": colour}
            CalibrationDisplay.from_estimator(each, X, y, name=name, ax=axes["calibration"], line_kwargs=line)
        axes["calibration"].set_title("Calibration of all quantiles")
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Fit, score, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_intervals.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()

    X_train, y_train = make_struts(300 if args.quick else 800, random_state=0)
    X_test, y_test = make_struts(1000, random_state=1)
    budget = {"max_iter": 3} if args.quick else {}
    model = fit_avdgp(X_train, y_train, SEEDS, **budget)
    gp = make_gp().fit(X_train, y_train)

    distributions = {"AVDGP": model.predict_dist(X_test), "Exact GP": predictive_distribution(gp, X_test)}
    intervals = {
        "AVDGP": model.predict_interval(X_test, confidence_level=0.9),
        "Exact GP": np.column_stack(distributions["Exact GP"].interval(0.9)),
        "Boosted trees": predict_trees(X_train, y_train, X_test),
    }
    print_scores(y_test, distributions, intervals)
    print_quantiles(model)
    print_cross_validation({"AVDGP": model, "Exact GP": gp}, X_train, y_train)
    plot(model, gp, X_test, y_test, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
