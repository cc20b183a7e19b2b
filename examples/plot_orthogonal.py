"""Orthogonal inducing points: what the second set buys.

Four sparse Gaussian processes see the same two hundred rows of a wavy function with a gap. With five inducing
points one process cannot follow the waves (SVGP 5). A hundred more that only move the mean (ODVGP 5 + 100) mend
that, but its band is wrong. Five more that have uncertainty of their own, orthogonal to the first five
(SOLVE 5 + 5), come close to a process with ten (SVGP 10), for two factorisations of five points in place of one of
ten. The script prints each bound on the log evidence beside the evidence of an exact process, and saves a picture.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skdgp import SOLVEGPRegressor
from skdgp.datasets import make_waves

MODELS = {
    "SVGP 5": {"n_inducing": 5, "n_orthogonal": 0},
    "ODVGP 5 + 100": {"n_inducing": 5, "n_orthogonal": 100, "orthogonal_covariance": "prior", "max_iter": 400},
    "SOLVE 5 + 5": {"n_inducing": 5, "n_orthogonal": 5},
    "SVGP 10": {"n_inducing": 10, "n_orthogonal": 0},
}
GRID = np.linspace(-1.0, 7.0, 400)[:, None]
BLUE, RED, GREY = "#0b5fa5", "#b3261e", "#8a8a8a"


def fit_exact(X, y):
    """An exact process with an optimised kernel, and its log evidence in the units of ``y``."""
    kernel = ConstantKernel() * RBF() + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0, n_restarts_optimizer=2).fit(X, y)
    return model, model.log_marginal_likelihood_value_ - len(y) * np.log(y.std())


def place(model, points):
    """Inducing points in the units of the feature."""
    return points[0, :, 0] * model._input_scaler.scale_ + model._input_scaler.mean_


def plot_model(ax, X, y, model, exact, title):
    """A model's mean and 95 % band, the exact process's, and the inducing points of both sets."""
    x = GRID[:, 0]
    mean, std = model.predict(GRID, return_std=True)
    exact_mean, exact_std = exact.predict(GRID, return_std=True)
    ax.scatter(X[:, 0], y, s=7, color="#333333", alpha=0.6, linewidth=0)
    ax.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.16, linewidth=0)
    ax.plot(x, mean, color=BLUE, linewidth=2)
    for line in (exact_mean, exact_mean - 1.96 * exact_std, exact_mean + 1.96 * exact_std):
        ax.plot(x, line, color=GREY, linewidth=1, linestyle="--")
    ax.plot(
        place(model, model.inducing_points_),
        np.full(model.inducing_points_.shape[1], -3.6),
        "|",
        color=BLUE,
        ms=10,
        mew=2,
    )
    ax.plot(
        place(model, model.orthogonal_points_), np.full(model.orthogonal_points_.shape[1], -4.1), "|", color=RED, ms=10
    )
    ax.set(xlim=(-1, 7), ylim=(-4.5, 4), title=title)


def plot(X, y, models, exact, path):
    """Save the picture."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(2, 2, figsize=(12, 7), sharex=True, sharey=True, layout="constrained")
        for ax, (name, model) in zip(axes.flat, models.items(), strict=True):
            plot_model(ax, X, y, model, exact, f"{name}: bound {model.lower_bound_:.1f}")
        band, exact_line = Patch(color=BLUE, alpha=0.16, linewidth=0), axes[0, 0].lines[1]
        points = axes[0, 0].lines[-2], axes[0, 0].lines[-1]
        axes[0, 0].legend(
            [axes[0, 0].lines[0], band, exact_line, *points],
            ["mean", "95 % band", "exact", "inducing points", "orthogonal ones"],
            frameon=False, ncols=3, loc="upper center", fontsize=10,
        )  # fmt: skip
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Fit, compare, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_orthogonal.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()
    budget = {"max_iter": 3} if args.quick else {}

    X, y = make_waves(200, random_state=0)
    exact, evidence = fit_exact(X, y)
    models = {
        name: SOLVEGPRegressor(kernel="rbf", random_state=0, **params | budget).fit(X, y)
        for name, params in MODELS.items()
    }
    for name, model in models.items():
        print(f"{name:<14} bound {model.lower_bound_:8.1f}  noise {np.sqrt(model.noise_variance_):.3f}")
    print(f"{'exact':<14} evidence {evidence:5.1f}")
    plot(X, y, models, exact, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
