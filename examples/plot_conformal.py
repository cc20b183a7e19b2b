"""Conformal prediction on top of a deep GP: what it promises, what it does not.

A model's 90 % intervals hold 90 % of new observations if the model is right. Conformal prediction needs no such luck.
It asks a calibration set, rows kept from training, how far off the model was, and makes intervals to match: they hold
at least 90 % of new rows, on average over rows and calibration sets, as long as new rows come from where the
calibration rows came from. No more than that: not for every input, and not once inputs shift.

Errors as they are give every row the same width. Errors in units of the deep GP's own standard deviation keep its
widths, narrow where noise is low and wide where it is high, and moving its own quantiles (conformalized quantile
regression) does too. The script makes all three with MAPIE and tries them on rows like those of calibration, on rows
from the noisy end of the same range, and on rows beyond it.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from skdgp import AVDGPRegressor
from skdgp.metrics import coverage

try:
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
except ImportError as error:
    raise SystemExit("This example needs MAPIE, version 1 or later: pip install mapie") from error

LEVEL = 0.9
# Ranges of the input; above 1, the last number crowds rows to the left.
PLACES = {"like calibration": (0, 6, 2), "noisy end": (4, 6, 1), "beyond": (6, 7.5, 1)}
OWN, PLAIN, NORMALISED, QUANTILES = "Deep GP's own", "Conformal, plain", "Conformal, normalised", "Conformal, quantiles"
COLOURS = {OWN: "#8a8a8a", PLAIN: "#c8762b", NORMALISED: "#0b5fa5", QUANTILES: "#5f8f4e"}


class Summary(RegressorMixin, BaseEstimator):
    """A fitted deep GP as MAPIE wants a regressor: ``predict`` is a quantile, or the standard deviation.

    Parameters
    ----------
    model : object
        Fitted regressor of skdgp.
    quantile : float, default=None
        Probability of the quantile; None is the standard deviation.
    """

    def __init__(self, model, quantile=None):
        self.model = model
        self.quantile = quantile

    @property
    def n_features_in_(self):
        """Number of features, by which MAPIE sees that the model is fitted."""
        return self.model.n_features_in_

    def fit(self, X, y):
        """Do nothing: the model is fitted."""
        return self

    def predict(self, X):
        """One number for each row."""
        if self.quantile is None:
            return self.model.predict(X, return_std=True)[1]
        return self.model.predict_quantiles(X, self.quantile)


def make_rows(n_rows, place, random_state):
    """Inputs (n, 1) and targets (n,): a wave on a slope, with heavy-tailed noise that grows along it."""
    rng = np.random.default_rng(random_state)
    low, high, left = PLACES[place]
    x = low + (high - low) * rng.beta(1, left, n_rows)
    return x[:, None], np.sin(2 * x) + 0.5 * x + (0.1 + 0.12 * x) * rng.standard_t(4, size=n_rows)


def conformalize(model, X, y):
    """Functions from rows to 90 % intervals (n, 2): the model's own, and three that calibration rows made."""
    levels = ((1 - LEVEL) / 2, (1 + LEVEL) / 2, 0.5)
    normalised = ResidualNormalisedScore(Summary(model), prefit=True)
    wrapped = {
        PLAIN: SplitConformalRegressor(model, LEVEL, prefit=True),
        NORMALISED: SplitConformalRegressor(model, LEVEL, normalised, prefit=True),
        QUANTILES: ConformalizedQuantileRegressor([Summary(model, q) for q in levels], LEVEL, prefit=True),
    }
    own = {OWN: lambda X_new: model.predict_interval(X_new, LEVEL)}
    return own | {name: _ends(each.conformalize(X, y)) for name, each in wrapped.items()}


def _ends(conformal):
    """The ends (n, 2), out of MAPIE's means and intervals (n, 2, number of levels)."""
    return lambda X: conformal.predict_interval(X)[1][:, :, 0]


def score(methods, tests):
    """Coverage and mean width, {method: {place: (coverage, width)}}."""
    results = {}
    for name, predict_interval in methods.items():
        ends = {place: predict_interval(X) for place, (X, _) in tests.items()}
        results[name] = {p: (coverage(tests[p][1], *e.T), np.ptp(e, axis=1).mean()) for p, e in ends.items()}
    return results


def print_scores(results):
    """A line per method, two columns per place."""
    print(f"{'coverage, mean width':<24}" + "".join(f"{place:>20}" for place in PLACES))
    for name, row in results.items():
        print(f"{name:<24}" + "".join(f"{100 * share:>12.1f} %{width:>6.2f}" for share, width in row.values()))


def plot_intervals(ax, methods, X, y):
    """Intervals of three methods over the input."""
    grid = np.linspace(0, PLACES["beyond"][1], 400)[:, None]
    ax.scatter(X[:, 0], y, s=7, color="#333333", alpha=0.45, linewidth=0, label="calibration rows")
    ax.fill_between(grid[:, 0], *methods[OWN](grid).T, color=COLOURS[OWN], alpha=0.25, linewidth=0, label=OWN)
    for name in (PLAIN, NORMALISED):
        lower, upper = methods[name](grid).T
        ax.plot(grid, lower, color=COLOURS[name], linewidth=1.8, label=name)
        ax.plot(grid, upper, color=COLOURS[name], linewidth=1.8)
    for place, height in (("noisy end", 7.6), ("beyond", 7.6)):
        low, high, _ = PLACES[place]
        ax.annotate("", (low, height), (high, height), arrowprops={"arrowstyle": "<->", "color": "#333333"})
        ax.text((low + high) / 2, height + 0.15, place, ha="center")
    ax.set(xlim=(0, 7.5), ylim=(-3.4, 8.6), xlabel="x", ylabel="y", title="90 % intervals")
    ax.legend(frameon=False, loc="upper left")


def plot_coverage(ax, results):
    """Coverage in each place, a dot per method."""
    ax.axvline(100 * LEVEL, color="#333333", linewidth=1, linestyle=":")
    for row, place in enumerate(PLACES):
        for number, (name, scores) in enumerate(results.items()):
            share, width = scores[place]
            height = row + 0.17 * (number - 1.5)
            ax.plot(100 * share, height, "o", color=COLOURS[name], markersize=8, label=None if row else name)
            ax.text(103, height, f"{width:.2f}", color=COLOURS[name], va="center", fontsize=10)
    ax.text(103, -0.48, "mean width", fontsize=10)
    ax.set(xlim=(0, 100), ylim=(len(PLACES) - 0.5, -0.6), yticks=range(len(PLACES)), yticklabels=PLACES)
    ax.set(xlabel="Test rows inside their 90 % intervals (%)", title="Coverage, by where test rows come from")
    ax.tick_params(axis="y", length=0)
    ax.legend(frameon=False, loc="upper left")


def plot(methods, results, X, y, path):
    """Save the picture."""
    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "font.size": 11}
    with plt.rc_context(style):
        fig, axes = plt.subplots(1, 2, figsize=(13, 5.2), layout="constrained")
        plot_intervals(axes[0], methods, X, y)
        plot_coverage(axes[1], results)
        fig.savefig(path, dpi=100)
        plt.close(fig)


def main():
    """Fit, conformalize, score, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("plot_conformal.png"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="train too little, to see that the script runs")
    args = parser.parse_args()
    budget = {"max_iter": 3, "n_estimators": 1} if args.quick else {"n_estimators": 3}

    # Other than the default, the predictive objective lets the predicted width follow the noise.
    model = AVDGPRegressor(objective="predictive", beta=10.0, random_state=0, **budget)
    model.fit(*make_rows(400, "like calibration", random_state=0))
    X_conformal, y_conformal = make_rows(400, "like calibration", random_state=1)
    methods = conformalize(model, X_conformal, y_conformal)

    results = score(methods, {place: make_rows(4000, place, random_state=2) for place in PLACES})
    print_scores(results)
    plot(methods, results, X_conformal, y_conformal, args.output)
    print(f"\nPicture saved to {args.output.resolve()}")


if __name__ == "__main__":
    main()
