"""Depth instead of width: deep GPs learn to read with eight inducing points.

Does a point of the unit square lie inside the letters DGP? Straight edges, curves, corners and holes lie
close to one another, and one layer has its eight inducing points for all of that. The same eight go further
when two, three or four layers share them, for each layer bends the plane for the next. The script fits the
four classifiers to the same points with the same settings, scores them on fresh points and saves a picture:
the points, every classifier's probabilities, and how fast each learns. Another seed can make neighbours swap
places; ``benchmarks/letters.py`` averages over runs.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from joblib import Parallel, delayed
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.ticker import PercentFormatter
from sklearn.metrics import log_loss

from skdgp import AVDGPClassifier
from skdgp.datasets import make_letters

#: Inducing points of every layer, eight in all.
INDUCING = {1: (8,), 2: (4, 4), 3: (4, 2, 2), 4: (4, 2, 1, 1)}

#: A single member, narrower networks and fewer quadrature points than by default, so that all four take about
#: a minute on two cores. Hidden layers add to what comes in (mean "identity"): four of them would
#: otherwise take longer to learn anything at all than one.
BUDGET = {
    "mean": "identity",
    "n_samples": 8,
    "n_estimators": 1,
    "network_width": 64,
    "batch_size": 400,
    "max_iter": 100,
}

OUTSIDE, UNSURE, INSIDE = "#f4f1ea", "#e08a2e", "#0b5fa5"
PROBABILITIES = LinearSegmentedColormap.from_list("letters", [OUTSIDE, UNSURE, INSIDE])
DEPTH_COLOURS = dict(zip(INDUCING, ("#b9b4a8", "#8fb8d8", "#4a8fc4", "#0b3f75"), strict=True))
PIXELS = 160


class Result(NamedTuple):
    """What one classifier found."""

    error: float  # share of test points
    log_loss: float
    curve: np.ndarray  # of shape (epochs,), held-out log probability
    image: np.ndarray  # of shape (PIXELS, PIXELS), probability of "inside" over the square, from below


def fit_and_score(n_layers, train, test, **params):
    """Fit a classifier of ``n_layers``; its ``Result``."""
    model = AVDGPClassifier((2,) * (n_layers - 1), INDUCING[n_layers], random_state=0, **params).fit(*train)
    X_test, y_test = test
    probability = model.predict_proba(X_test)[:, 1]
    ticks = (np.arange(PIXELS) + 0.5) / PIXELS
    pixels = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    image = model.predict_proba(pixels)[:, 1].reshape(PIXELS, PIXELS)
    error = np.mean((probability > 0.5) != y_test)
    return Result(error, log_loss(y_test, probability), model.validation_scores_, image)


def title(n_layers):
    """Such as "2 layers"."""
    return f"{n_layers} layer{'s' if n_layers > 1 else ''}"


def plot_points(ax, X, y):
    """The training points, in the colours of certainty."""
    ax.scatter(*X.T, c=y, cmap=ListedColormap(["#d9d2c3", INSIDE]), s=3, linewidth=0)
    ax.set_title(f"{len(X)} points to learn from")


def plot_probabilities(ax, result, n_layers):
    """Probability of "inside" over the square, and where it is one half."""
    extent = (0, 1, 0, 1)
    image = ax.imshow(result.image, origin="lower", extent=extent, cmap=PROBABILITIES, vmin=0, vmax=1)
    ax.contour(result.image, levels=[0.5], extent=extent, colors="white", linewidths=0.8)
    ax.set_title(f"{title(n_layers)}: {100 * result.error:.1f} % wrong")
    return image


def plot_curves(ax, results):
    """Held-out log loss by epoch, a line for every depth."""
    for n_layers, result in results.items():
        epochs = np.arange(1, len(result.curve) + 1)
        ax.plot(epochs, -result.curve, color=DEPTH_COLOURS[n_layers], linewidth=2, label=title(n_layers))
    ax.set(xlabel="Epoch", ylim=(0, None), title="Log loss on held-out points")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, labelcolor="linecolor", handlelength=0, handletextpad=0, loc="lower left")


def plot(train, results, path):
    """Save the picture."""
    with plt.rc_context({"axes.titlelocation": "left", "font.size": 11}):
        fig, axes = plt.subplots(2, 3, figsize=(12, 8), layout="constrained")
        plot_points(axes[0, 0], *train)
        maps = axes[:, 1:].ravel()
        for ax, (n_layers, result) in zip(maps, results.items(), strict=True):
            image = plot_probabilities(ax, result, n_layers)
        for ax in (axes[0, 0], *maps):
            ax.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1), aspect="equal")
            ax.spines[:].set_color("#cccccc")
        plot_curves(axes[1, 0], results)
        bar = fig.colorbar(image, ax=maps, shrink=0.5, aspect=30, format=PercentFormatter(1), ticks=[0, 0.5, 1])
        bar.set_label('Probability of "inside"')
        bar.outline.set_visible(False)
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Fit, score, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_letters.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()
    budget = BUDGET | {"max_iter": 2, "batch_size": 1000} if args.quick else BUDGET

    train, test = make_letters(8000, random_state=0), make_letters(10000, random_state=1)
    depths = sorted(INDUCING, reverse=True)  # what takes longest first, so that no core waits for it in the end
    fits = [delayed(fit_and_score)(n_layers, train, test, **budget) for n_layers in depths]
    results = dict(sorted(zip(depths, Parallel(n_jobs=-1)(fits), strict=True)))
    print(f"{'':<10}{'inducing points':<18}{'error':>8}{'log loss':>12}")
    for n_layers, result in results.items():
        inducing = " + ".join(map(str, INDUCING[n_layers]))
        print(f"{title(n_layers):<10}{inducing:<18}{100 * result.error:>6.1f} %{result.log_loss:>12.3f}")
    plot(train, results, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
