"""Classification benchmarks: log loss, calibration, accuracy and time.

    python benchmarks/classification.py --n-jobs 2 --output classification.csv

Scikit-learn's own data sets by stratified 5-fold cross-validation, and generated problems of 420 to 1400 rows, each
fold with rows of its own, with 5000 more to judge by. Features are raw. The peers are scikit-learn's boosted trees,
and behind a StandardScaler its Gaussian process classifier (RBF kernel with an optimised variance and lengthscale, one
against the rest) and logistic regression with a cross-validated penalty.

The calibration error is that of the most probable class in ten bins. With few rows to judge by it is mostly chance.
"""

import argparse
import json
import time
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_blobs,
    make_circles,
    make_classification,
    make_gaussian_quantiles,
    make_moons,
)
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import mean_and_error, save_each

from skdgp import AVDGPClassifier, DSDGPClassifier, SOLVEGPClassifier
from skdgp.metrics import expected_calibration_error

KEYS = ("dataset", "estimator", "params", "fold")
SCORES = ("log_loss", "calibration_error", "accuracy", "fit_s")
BUNDLED = {"breast_cancer": load_breast_cancer, "digits": load_digits, "iris": load_iris, "wine": load_wine}
N_TEST = 5000


def linear(n_samples, random_state):
    """Ten features, of which three decide by a logistic law."""
    rng = np.random.default_rng(random_state)
    X = rng.normal(size=(n_samples, 10))
    return X, (X[:, :3] @ [1.5, -1.0, 1.0] + rng.logistic(size=n_samples) > 0).astype(int)


def checkerboard(n_samples, random_state):
    """Sixteen fields of two colours."""
    X = np.random.default_rng(random_state).uniform(-2, 2, (n_samples, 2))
    return X, np.floor(X).sum(axis=1).astype(int) % 2


#: Rows to learn from, and what makes them.
GENERATED = {
    "moons": (700, partial(make_moons, noise=0.1)),
    "moons_noisy": (700, partial(make_moons, noise=0.35)),
    "circles": (560, partial(make_circles, noise=0.1, factor=0.5)),
    "checkerboard": (1050, checkerboard),
    "linear": (420, linear),
    "noisy": (
        840,
        partial(make_classification, n_features=6, n_informative=4, n_redundant=0, flip_y=0.1, class_sep=0.8),
    ),
    "useless": (700, partial(make_classification, n_features=30, n_informative=4)),
    "rare": (1050, partial(make_classification, n_features=8, n_informative=5, weights=[0.93], flip_y=0.02)),
    "spheres": (840, partial(make_gaussian_quantiles, n_features=10, n_classes=3)),
    "four": (
        700,
        partial(
            make_classification,
            n_features=5,
            n_informative=5,
            n_redundant=0,
            n_classes=4,
            n_clusters_per_class=1,
            flip_y=0.1,
        ),
    ),
    "blobs": (420, partial(make_blobs, n_features=3, centers=5, cluster_std=3.0)),
    "ten": (
        1400,
        partial(make_classification, n_features=12, n_informative=8, n_classes=10, n_clusters_per_class=1),
    ),
}


def make_ours(estimator, n_features, seed, **params):
    return estimator(random_state=seed, **params)


def make_gpc(n_features, seed):
    kernel = ConstantKernel() * RBF(np.sqrt(n_features))
    return make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=seed))


def make_hgb(n_features, seed):
    return HistGradientBoostingClassifier(random_state=seed)


def make_logistic(n_features, seed):
    model = GridSearchCV(LogisticRegression(max_iter=1000), {"C": np.logspace(-4, 4, 9)}, scoring="neg_log_loss")
    return make_pipeline(StandardScaler(), model)


OURS = {"avdgp": AVDGPClassifier, "dsdgp": DSDGPClassifier, "solvegp": SOLVEGPClassifier}
ESTIMATORS = {name: partial(make_ours, estimator) for name, estimator in OURS.items()}
ESTIMATORS |= {"gpc": make_gpc, "hgb": make_hgb, "logistic": make_logistic}


def rows_of(dataset, fold):
    """Rows to learn from and to judge by: X, y, X_test, y_test."""
    if dataset in BUNDLED:
        X, y = BUNDLED[dataset](return_X_y=True)
        train, test = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))[fold]
    else:
        n_rows, make = GENERATED[dataset]
        X, y = make(n_samples=n_rows + N_TEST, random_state=fold)
        train, test = np.split(np.random.default_rng(fold).permutation(len(X)), [n_rows])
    return X[train], y[train], X[test], y[test]


def run(dataset, estimator, fold, params, one_thread):
    """Fit one estimator to one fold's training part; its row of the file."""
    if one_thread:
        torch.set_num_threads(1)  # as many threads as cores in every process would wait for each other
    X, y, X_test, y_test = rows_of(dataset, fold)
    params = params if estimator in OURS else {}
    model = ESTIMATORS[estimator](X.shape[1], fold, **params)
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    probabilities = model.predict_proba(X_test).clip(0, 1)  # those of scikit-learn's process may be -8e-14
    scores = (
        log_loss(y_test, probabilities, labels=model.classes_),
        expected_calibration_error(y_test, probabilities, n_bins=10, labels=model.classes_),
        accuracy_score(y_test, model.classes_[probabilities.argmax(axis=1)]),
        seconds,
    )
    return dict(zip(KEYS + SCORES, (dataset, estimator, json.dumps(params), fold, *scores), strict=True))


def summary(rows):
    """Lines with mean ± standard error over folds, for every data set and estimator."""
    groups = {}
    for row in rows:
        groups.setdefault((row["dataset"], row["estimator"]), []).append([row[name] for name in SCORES])
    for (dataset, estimator), values in sorted(groups.items()):
        cells = (mean_and_error(column, 4).rjust(20) for column in zip(*values, strict=True))
        yield f"{dataset:<16}{estimator:<10}" + "".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=[*BUNDLED, *GENERATED], default=[*BUNDLED, *GENERATED])
    parser.add_argument("--estimators", nargs="+", choices=ESTIMATORS, default=list(ESTIMATORS))
    parser.add_argument("--folds", nargs="+", type=int, choices=range(5), default=range(5))
    parser.add_argument("--params", type=json.loads, default={}, help="JSON: parameters of skdgp's classifiers")
    parser.add_argument("--n-jobs", type=int, default=1, help="fits at a time, each with one thread if more than 1")
    parser.add_argument("--output", type=Path, default=Path("classification.csv"))
    args = parser.parse_args()
    n_jobs = effective_n_jobs(args.n_jobs)
    fits = [
        delayed(run)(dataset, estimator, fold, args.params, n_jobs > 1)
        for dataset, fold, estimator in product(args.datasets, args.folds, args.estimators)
    ]
    finished = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(fits)
    rows = list(save_each(finished, args.output, KEYS + SCORES))
    print(" " * 26 + "".join(f"{name:>20}" for name in SCORES))
    print(*summary(rows), sep="\n")
    print(f"\nSaved to {args.output}.")


if __name__ == "__main__":
    main()
