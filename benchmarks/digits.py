"""Handwritten digits with the convolutional kernel: five folds of scikit-learn's 1797 images of 8 × 8 pixels.

    python benchmarks/digits.py --output digits.csv

Beside models with inducing patches are some with RBF kernels on all pixels, with one length ("pixels") and with one for
each ("rbf"), and a support vector machine whose probabilities are Platt's. The size of patches and ``beta`` were chosen
on held-out parts of training folds. Seconds are of a fit with one thread.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC
from tables import write

from skdgp import DSDGPClassifier, SOLVEGPClassifier
from skdgp.kernels import Convolutional

PATCHES = Convolutional((8, 8), (5, 5), 10.0 * RBF(15.0))
PIXELS = 10.0 * RBF(22.0)


def solvegp(kernel, n_inducing, n_orthogonal=0):
    """A classifier with so many inducing variables."""
    return SOLVEGPClassifier(n_inducing, n_orthogonal, kernel=kernel, beta=0.1, max_iter=60, random_state=0)


def patches(n_inducing, n_orthogonal=0):
    """The same with patches alone."""
    return solvegp(PATCHES, n_inducing, n_orthogonal)


MODELS = {
    "patches+pixels": lambda: solvegp(PATCHES + PIXELS, 384),
    "patches": lambda: patches(256),
    "pixels": lambda: solvegp(PIXELS, 384),
    "patches-64": lambda: patches(64),
    "patches-128": lambda: patches(128),
    "patches-64+64": lambda: patches(64, 64),
    "deep-patches": lambda: DSDGPClassifier(
        (10,), [128, 64], kernel=[PATCHES, 1.0 * RBF(3.0)], n_estimators=3, max_iter=120, random_state=0
    ),
    "rbf": lambda: SOLVEGPClassifier(kernel="rbf", random_state=0),
    "svc-platt": lambda: CalibratedClassifierCV(SVC(gamma=0.001, C=10), ensemble=False),
}


def measure(name, fold, train, test, X, y):
    """A line of the table."""
    start = time.perf_counter()
    model = MODELS[name]().fit(X[train], y[train])
    seconds = time.perf_counter() - start
    proba = model.predict_proba(X[test])
    error = np.mean(model.classes_[proba.argmax(axis=1)] != y[test])
    return {"model": name, "fold": fold, "error": error, "log_loss": log_loss(y[test], proba), "fit_s": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--output", type=Path, default=Path("digits.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0).split(X, y)
    rows = []
    for fold, (train, test) in enumerate(folds):
        for name in args.models:
            rows.append(measure(name, fold, train, test, X, y))
            print(*rows[-1].values(), flush=True)
    write(rows, args.output)


if __name__ == "__main__":
    main()
