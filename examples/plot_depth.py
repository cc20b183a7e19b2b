"""Does depth help? Test log likelihood against the number of layers, on real data.

A photograph of a flower, of which the models see three thousand pixels and predict three thousand others, has
edges: no one lengthscale suits both a petal's rim and its inside, and a second layer pays at once. The records of
442 diabetes patients have next to nothing for depth to find, and layers that are not needed stay close to the
identity that they start from: there, depth costs time and not quality.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_diabetes, load_sample_image
from sklearn.model_selection import train_test_split

from skdgp import DSDGPRegressor

DEPTHS = (1, 2, 3, 4)
BLUE, GREY = "#0b5fa5", "#8a8a8a"


def load_flower(n_pixels=6000):
    """Places of random pixels, in heights of the picture, and how bright they are, from 0 to 1."""
    brightness = load_sample_image("flower.jpg").mean(-1)[::2, ::2] / 255
    rows, columns = np.indices(brightness.shape)
    chosen = np.random.default_rng(0).permutation(brightness.size)[:n_pixels]
    X = np.column_stack([columns.ravel(), rows.ravel()])[chosen] / len(brightness)
    return X, brightness.ravel()[chosen]


def load_patients():
    """Ten measurements of each patient, and the disease's progression after a year."""
    return load_diabetes(return_X_y=True, scaled=False)


STORIES = {"Pixels of a photograph": load_flower, "Diabetes patients": load_patients}


def mean_log_density(model, X, y):
    """Mean log density of targets, each under a Gaussian of the predicted moments."""
    mean, std = model.predict(X, return_std=True)
    return norm.logpdf(y, mean, std).mean()


def scores(story, n_splits, **params):
    """Test scores (depth, split) of models of every depth."""
    X, y = STORIES[story]()
    results = np.empty((len(DEPTHS), n_splits))
    for split in range(n_splits):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=split)
        for row, n_layers in enumerate(DEPTHS):
            hidden_dims = (X.shape[1],) * (n_layers - 1)
            model = DSDGPRegressor(hidden_dims, n_estimators=1, random_state=split, **params)
            start = time.perf_counter()
            results[row, split] = mean_log_density(model.fit(X_train, y_train), X_test, y_test)
            seconds = time.perf_counter() - start
            print(f"{story}, split {split}, layers {n_layers}: {results[row, split]:.3f} ({seconds:.0f} s)", flush=True)
    return results


def plot(results, path):
    """Save the picture: a panel per data set, a grey line per split and their mean."""
    span = 1.15 * max(np.ptp(values) for values in results.values())
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(1, len(results), figsize=(11, 4.2), layout="constrained")
        for ax, (story, values) in zip(axes, results.items(), strict=True):
            ax.plot(DEPTHS, values, color=GREY, linewidth=1, alpha=0.6)
            ax.plot(DEPTHS, values.mean(1), color=BLUE, linewidth=2.5, marker="o")
            ax.annotate(
                "mean", (DEPTHS[-1], values[-1].mean()), (8, 0), color=BLUE, textcoords="offset points", va="center"
            )
            ax.set(title=story, xlabel="layers", xticks=DEPTHS)
            ax.set_xlim(0.8, 4.7)
            middle = (values.min() + values.max()) / 2
            ax.set_ylim(middle - span / 2, middle + span / 2)  # the same scale in all panels
        axes[0].set_ylabel("log density per test row")
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Fit, score, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_depth.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()
    budget = {"max_iter": 2, "n_inducing": 20} if args.quick else {"max_iter": 50, "n_inducing": 64}
    n_splits = 1 if args.quick else 2
    results = {story: scores(story, n_splits, **budget) for story in STORIES}
    plot(results, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
