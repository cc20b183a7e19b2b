"""The toy problem of the AVDGP paper: how depth and inducing points help to learn the letters DGP.

    python benchmarks/letters.py --n-jobs 2 --output letters.csv

Fits a classifier for every number |M| of inducing points, all layers together, and every number of layers,
as in the paper's Table 2. The layers share |M| as 1:1, 2:1:1 or 4:2:1:1, and hidden ones have two outputs.
A third of the points is the test set; every run divides the others anew into training and validation parts
(train : test : validation = 3 : 2 : 1) and starts from other initial values. The validation part chooses
the epoch. There is a single member without a base, and its networks are as narrow as the paper's. Hidden layers have
identity means, without which they often get lost. With ``--paper`` means and training are the paper's, too, full
covariances in the shallow model among them.

    python benchmarks/letters.py --ablation --n-jobs 2 --output ablation.csv

Compares affine maps to inducing points with one network for everything, as Fig. 11: shallow, |M| = 8, full
covariances, networks with 1 to 4 hidden layers. Affine maps have none; there the networks for means and
covariances become deeper.

``--n-samples``, ``--inducing``, ``--layers``, ``--depths``, ``--runs`` and ``--params '{"max_iter": 5}'`` make
less of it. The CSV file gets a row per fit, as soon as it has finished. Its seconds per epoch are those of the
whole ``fit`` over the number of epochs.
"""

import argparse
import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs
from sklearn.metrics import log_loss
from tables import mean_and_error, save_each

from skdgp import AVDGPClassifier
from skdgp.datasets import make_letters

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

KEYS = ("n_samples", "inducing", "layers", "inducing_map", "depth", "params", "run")
SCORES = ("error", "log_loss", "ece", "fit_s", "epochs", "epoch_s")
TABLES = {"error": ("Test error, %", 2), "log_loss": ("Log loss", 3), "ece": ("Expected calibration error, %", 2)}
ECE_BINS = 15
DATA_SEED = 0

#: Shares of |M| that layers have, by their number (AVDGP, Sec. 6.2).
SHARES = {1: (1,), 2: (1, 1), 3: (2, 1, 1), 4: (4, 2, 1, 1)}

#: What is varied, unless options say otherwise. A depth of None leaves it to the estimator.
TABLE_2 = {"inducing": (16, 32, 64, 128), "layers": (1, 2, 3, 4), "inducing_map": ("affine",), "depths": (None,)}
FIG_11 = {"inducing": (8,), "layers": (1,), "inducing_map": ("affine", "mlp"), "depths": (1, 2, 3, 4)}

#: A model as small as the paper's, trained with larger minibatches, fewer quadrature points and a higher learning rate.
SMALL = {
    "n_estimators": 1,
    "base": None,
    "mean": "identity",
    "network_width": None,
    "n_samples": 8,
    "batch_size": 400,
    "max_iter": 100,
}

#: The training of the AVDGP paper (App. C.1), as far as parameters can say it.
PAPER = {
    "mean": "zero",
    "n_samples": 32,
    "beta": 1.0,
    "batch_size": 100,
    "learning_rate": 0.005,
}


class Setting(NamedTuple):
    """One cell of a table: inducing points of all layers together, layers, and inference networks."""

    inducing: int
    layers: int
    inducing_map: str
    depth: int | None

    @property
    def row(self):
        """Which line of a table it belongs to."""
        return f"|M| = {self.inducing}, {self.inducing_map}"

    @property
    def column(self):
        """Which column of a table it belongs to."""
        layers = f"{self.layers} layer{'s' if self.layers > 1 else ''}"
        return layers if self.depth is None else f"{layers}, depth {self.depth}"

    def params(self):
        """Parameters of the estimator."""
        shares = SHARES[self.layers]
        total = sum(shares)
        if self.inducing % total:
            ratio = ":".join(map(str, shares))
            sys.exit(f"--inducing {self.inducing} cannot be shared as {ratio}: give a multiple of {total}.")
        params = {
            "hidden_dims": (2,) * (self.layers - 1),
            "n_inducing": tuple(self.inducing * share // total for share in shares),
            "inducing_map": self.inducing_map,
        }
        return params if self.depth is None else params | {"network_width": self.depth * (None,)}


def paper_params(setting):
    """``PAPER``, and covariances that are full in shallow models and diagonal in deep ones."""
    return PAPER | {"covariance": "full_unwhitened" if setting.layers == 1 else "diag_unwhitened"}


def make_parts(n_samples, run):
    """Training, test and validation part, the test part the same in every run."""
    X, y = make_letters(n_samples, random_state=DATA_SEED)
    n_test, n_validation = n_samples // 3, n_samples // 6
    others = n_test + np.random.default_rng(run).permutation(n_samples - n_test)
    rows = others[n_validation:], slice(n_test), others[:n_validation]
    return [(X[part], y[part]) for part in rows]


def expected_calibration_error(y, probability):
    """Mean distance between probability and frequency of class 1, over equally wide bins of the probability.

    Never less than the error of the predicted class's probability, where bins p and 1 − p are one.
    """
    bins = np.minimum((ECE_BINS * probability).astype(int), ECE_BINS - 1)
    return np.abs(np.bincount(bins, y - probability, ECE_BINS)).sum() / len(y)


def fit(setting, run, n_samples, params, one_thread):
    """Fit one classifier; its row of the file."""
    if one_thread:
        torch.set_num_threads(1)  # as many threads as cores in every process would wait for each other
    (X, y), (X_test, y_test), (X_val, y_val) = make_parts(n_samples, run)
    model = AVDGPClassifier(**{"random_state": run} | params)
    start = time.perf_counter()
    model.fit(X, y, X_val=X_val, y_val=y_val)
    seconds = time.perf_counter() - start
    probability = model.predict_proba(X_test)[:, 1]
    keys = (n_samples, *setting, json.dumps(params), run)
    scores = {
        "error": 100 * np.mean((probability > 0.5) != y_test),
        "log_loss": log_loss(y_test, probability),
        "ece": 100 * expected_calibration_error(y_test, probability),
        "fit_s": seconds,
        "epochs": model.n_iter_,
        "epoch_s": seconds / model.n_iter_,
    }
    return dict(zip(KEYS, keys, strict=True)) | scores


def setting_of(row):
    return Setting(*(row[name] for name in ("inducing", "layers", "inducing_map", "depth")))


def summary(settings, rows, score, decimals):
    """Lines of a table with mean ± standard error over runs."""
    heads = list(dict.fromkeys(setting.row for setting in settings))
    columns = list(dict.fromkeys(setting.column for setting in settings))
    values = {}
    for row in rows:
        setting = setting_of(row)
        values.setdefault((setting.row, setting.column), []).append(row[score])
    width = max(map(len, heads))
    yield " " * width + "".join(f"{column:>20}" for column in columns)
    for head in heads:
        cells = (mean_and_error(values[head, column], decimals) for column in columns)
        yield f"{head:<{width}}" + "".join(f"{cell:>20}" for cell in cells)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ablation", action="store_true", help="Fig. 11 instead of Table 2")
    parser.add_argument("--n-samples", type=int, default=40000, help="points in all three parts together")
    parser.add_argument("--inducing", nargs="+", type=int, help="|M|; default: 16 32 64 128, or 8 for the ablation")
    parser.add_argument("--layers", nargs="+", type=int, choices=SHARES, help="default: 1 2 3 4, or 1 for the ablation")
    parser.add_argument("--depths", nargs="+", type=int, help="hidden layers of inference networks; ablation: 1 2 3 4")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--paper", action="store_true", help="train as the paper does")
    parser.add_argument("--params", type=json.loads, default={}, help="JSON: parameters of AVDGPClassifier")
    parser.add_argument("--n-jobs", type=int, default=1, help="fits at a time, each with one thread if more than 1")
    parser.add_argument("--output", type=Path, default=Path("letters.csv"))
    return parser.parse_args()


def make_settings(args):
    """Every cell of the table with the estimator's parameters."""
    varied = FIG_11 if args.ablation else TABLE_2
    varied = varied | {name: getattr(args, name) for name in ("inducing", "layers", "depths") if getattr(args, name)}
    params = {}
    for setting in (Setting(*values) for values in product(*varied.values())):
        paper = paper_params(setting) if args.paper else {}
        full = {"covariance": "full"} if args.ablation else {}
        params[setting] = SMALL | setting.params() | paper | full | args.params
    return params


def main():
    args = parse_arguments()
    settings = make_settings(args)
    n_jobs = effective_n_jobs(args.n_jobs)
    fits = [
        delayed(fit)(setting, run, args.n_samples, params, n_jobs > 1)
        for run, (setting, params) in product(range(args.runs), settings.items())
    ]
    finished = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(fits)
    finished = finished if tqdm is None else tqdm(finished, total=len(fits), unit="fit")
    show = print if tqdm is None else tqdm.write
    rows = []
    for row in save_each(finished, args.output, KEYS + SCORES):
        rows.append(row)
        scores = "".join(f"  {name} {row[name]:.4g}" for name in SCORES)
        show(f"{setting_of(row).row}, {setting_of(row).column}, run {row['run']}:{scores}")
    for score, (title, decimals) in TABLES.items():
        print(f"\n{title} (mean ± standard error over runs)", *summary(settings, rows, score, decimals), sep="\n")
    print(f"\nSaved to {args.output}.")


if __name__ == "__main__":
    main()
