"""A jump: what depth does that one Gaussian process cannot.

A stationary kernel takes a function to vary alike everywhere. Near a jump it must be short-sighted, so far
from it the flat parts ring and the band is too wide or too narrow. A deep GP bends its own inputs first: its
hidden layers are steep where the target jumps, and flat where it is. The script fits models of one, two and
four layers, prints how wrong each is, and saves a picture of what they predict and of what their hidden
layers do.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Patch

from skdgp import DSDGPRegressor
from skdgp.datasets import make_step

DEPTHS = (1, 2, 4)
NOISE = 0.05
GRID = np.linspace(-1.3, 1.3, 521)[:, None]
BLUE, RED, GREY = "#0b5fa5", "#b3261e", "#8a8a8a"


def fit(X, y, n_layers, **params):
    """A model of ``n_layers`` layers with hidden ones of one output."""
    return DSDGPRegressor((1,) * (n_layers - 1), n_estimators=1, early_stopping=False, random_state=1, **params).fit(
        X, y
    )


def hidden_mean(model, X):
    """Mean of the last hidden layer at ``X``, standardised; None if there is none."""
    member = model.module_[0]
    if len(member.layers) == 1:
        return None
    with torch.no_grad():
        F = torch.as_tensor(model._scale_inputs(X))[None]
        for layer in member.layers[:-1]:
            F = layer(F, F)[0]
    values = F[0, :, 0].numpy()
    return (values - values.mean()) / values.std()


def ringing(mean):
    """Root mean square error of the mean, away from the jump and inside the data."""
    x = GRID[:, 0]
    flat = (np.abs(x) > 0.05) & (np.abs(x) < 1)
    return np.sqrt(np.mean((mean - (x > 0))[flat] ** 2))


def plot_prediction(ax, X, y, mean, std, title):
    """Data, the step, and the model's mean with its 95 % band."""
    x = GRID[:, 0]
    ax.fill_between(x, mean - 1.96 * std, mean + 1.96 * std, color=BLUE, alpha=0.16, linewidth=0)
    ax.plot([-1.3, 0, 0, 1.3], [0, 0, 1, 1], color=GREY, linewidth=1)
    ax.plot(x, mean, color=BLUE, linewidth=2)
    ax.scatter(X[:, 0], y, s=9, color="#333333", linewidth=0, zorder=3)
    ax.set(xlim=(-1.3, 1.3), ylim=(-0.6, 1.6), title=title)


def plot_hidden(ax, values):
    """What the last layer sees of the feature."""
    if values is None:
        ax.text(0.5, 0.5, "no hidden layer", color=GREY, ha="center", va="center", transform=ax.transAxes)
        ax.set(xlim=(-1.3, 1.3), yticks=[])
    else:
        ax.plot(GRID[:, 0], values, color=RED, linewidth=2)
        ax.set(xlim=(-1.3, 1.3))
    ax.set(xlabel="feature")


def plot(X, y, models, path):
    """Save the picture."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(
            2, len(models), figsize=(12, 6), height_ratios=(2, 1), sharex=True, sharey="row", layout="constrained"
        )
        for (top, bottom), (n_layers, model) in zip(axes.T, models.items(), strict=True):
            mean, std = model.predict(GRID, return_std=True)
            title = f"{n_layers} layer{'s' if n_layers > 1 else ''}: error of the mean {ringing(mean):.3f}"
            plot_prediction(top, X, y, mean, std, title)
            plot_hidden(bottom, hidden_mean(model, GRID))
        axes[0, 0].set_ylabel("target")
        axes[1, 0].set_ylabel("input of the\nlast layer")
        handles = [*axes[0, 0].lines[1:], Patch(color=BLUE, alpha=0.16, linewidth=0), axes[0, 0].lines[0]]
        axes[0, 0].legend(handles, ["mean", "95 % band", "truth"], frameon=False, loc="upper left")
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Fit, score, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_step_function.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()
    budget = {"max_iter": 3} if args.quick else {"max_iter": 600}

    X, y = make_step(100, noise=NOISE, random_state=0)
    models = {}
    print(f"{'layers':>6}{'error of the mean':>20}{'noise (true ' + str(NOISE) + ')':>20}")
    for n_layers in DEPTHS:
        models[n_layers] = fit(X, y, n_layers, **budget)
        error, noise = ringing(models[n_layers].predict(GRID)), np.sqrt(models[n_layers].noise_variance_)
        print(f"{n_layers:>6}{error:>20.4f}{noise:>20.4f}")
    plot(X, y, models, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
