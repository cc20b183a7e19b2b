"""Calibrated predictions on real data: a deep GP beside two models of scikit-learn.

How much will a diabetes patient's disease have progressed in a year, and how sure is that? The script
fits three models to two thirds of the patients, scores them on the others and saves a picture: the deep
GP's predictions with their 90 % intervals, and how often the intervals of all three models hold.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import AVDGPRegressor, PredictiveDistribution
from skdgp.metrics import coverage, crps, negative_log_predictive_density

COLOURS = {"AVDGP": "#0b5fa5", "Exact GP": "#c8762b", "Boosted trees": "#5f8f4e"}
GREY = "#8a8a8a"
LEVELS = np.linspace(0.05, 0.95, 19)


def predict_avdgp(X_train, y_train, X_test, **params):
    """Predictive distributions of observations under the deep GP."""
    return AVDGPRegressor(verbose=1, random_state=0, **params).fit(X_train, y_train).predict_dist(X_test)


def predict_exact_gp(X_train, y_train, X_test):
    """Gaussian predictions of scikit-learn's GP, a lengthscale for every feature."""
    kernel = ConstantKernel() * RBF(np.ones(X_train.shape[1]), (1e-2, 1e6)) + WhiteKernel()
    model = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=0))
    return PredictiveDistribution.gaussian(*model.fit(X_train, y_train).predict(X_test, return_std=True))


def predict_trees(X_train, y_train, X_test):
    """Gaussians around boosted trees, of one standard deviation from cross-validated residuals."""
    model = HistGradientBoostingRegressor(random_state=0)
    std = np.std(y_train - cross_val_predict(model, X_train, y_train, cv=5))
    return PredictiveDistribution.gaussian(model.fit(X_train, y_train).predict(X_test), np.full(len(X_test), std))


def print_scores(y, predictions):
    """One line per model; RMSE and CRPS are in the units of ``y``, all but coverage better if lower."""
    print(f"\n{'':<14}{'RMSE':>8}{'NLL':>8}{'CRPS':>8}{'90 % coverage':>16}")
    for name, dist in predictions.items():
        rmse, nll = np.sqrt(np.mean((y - dist.mean) ** 2)), negative_log_predictive_density(y, dist)
        covered = 100 * coverage(y, *dist.interval(0.9))
        print(f"{name:<14}{rmse:>8.2f}{nll:>8.3f}{crps(y, dist):>8.2f}{covered:>14.1f} %")


def plot_predictions(ax, y, dist):
    """Predicted mean, 90 % band and truth, patients sorted by predicted mean."""
    order = np.argsort(dist.mean)
    y, dist = y[order], dist[order]
    mean, (lower, upper) = dist.mean, dist.interval(0.9)
    rank = np.arange(1, len(y) + 1)
    outside = (y < lower) | (y > upper)
    colour = COLOURS["AVDGP"]
    ax.fill_between(rank, lower, upper, color=colour, alpha=0.14, linewidth=0)
    ax.plot(rank, mean, color=colour, linewidth=2)
    ax.scatter(rank[~outside], y[~outside], s=14, color="#333333", linewidth=0, zorder=3, label="observed")
    open_circle = {"facecolor": "white", "edgecolor": "#b3261e", "linewidth": 1.3}
    ax.scatter(rank[outside], y[outside], s=24, zorder=3, label="observed, outside the band", **open_circle)
    for text, height in (("90 %\nband", upper[-1]), ("mean", mean[-1])):
        ax.annotate(text, (rank[-1], height), (6, 0), color=colour, textcoords="offset points", va="center")
    ax.set(xlim=(0, len(y) + 1), xlabel="Test patients, sorted by predicted mean")
    ax.set_ylabel("Disease progression after one year")
    ax.set_title(f"AVDGP: {len(y) - outside.sum()} of {len(y)} test patients lie within the 90 % band")
    ax.legend(frameon=False, loc="upper left", handletextpad=0.2, borderaxespad=0)


def plot_calibration(ax, y, predictions):
    """Observed against nominal coverage of central intervals."""
    nominal = np.linspace(0, 1, 101)
    sampling = 1.96 * np.sqrt(nominal * (1 - nominal) / len(y))
    ax.fill_between(nominal, nominal - sampling, nominal + sampling, color=GREY, alpha=0.15, linewidth=0)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    for name, dist in predictions.items():
        observed = [coverage(y, *dist.interval(level)) for level in LEVELS]
        ax.plot(LEVELS, observed, color=COLOURS[name], linewidth=2, label=name)
    note = f"grey: perfect calibration, and what\n95 % of samples of {len(y)} would show"
    ax.text(0.99, 0.03, note, color="#6a6a6a", fontsize=9.5, ha="right", linespacing=1.4)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="Nominal coverage", ylabel="Observed coverage")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    ax.set_title("Calibration of central intervals")
    ax.legend(frameon=False, labelcolor="linecolor", handlelength=0, handletextpad=0, loc="upper left")


def plot(y, predictions, path):
    """Save the picture."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(1, 2, figsize=(12, 5), width_ratios=(1.55, 1), layout="constrained")
        plot_predictions(axes[0], y, predictions["AVDGP"])
        plot_calibration(axes[1], y, predictions)
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Fit, score, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("quickstart.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()
    budget = {"max_iter": 3, "n_estimators": 1} if args.quick else {}

    X, y = load_diabetes(return_X_y=True, scaled=False)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0)
    predictions = {
        "AVDGP": predict_avdgp(X_train, y_train, X_test, **budget),
        "Exact GP": predict_exact_gp(X_train, y_train, X_test),
        "Boosted trees": predict_trees(X_train, y_train, X_test),
    }
    print_scores(y_test, predictions)
    plot(y_test, predictions, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
