"""Classification benchmarks on scikit-learn's own data sets: log loss, accuracy, calibration and time.

    python benchmarks/classification.py --n-jobs 2 --output classification.csv

Stratified 5-fold cross-validation with raw features. The peers are scikit-learn's Gaussian process
classifier (RBF kernel with an optimised variance and lengthscale, one against the rest) behind a
StandardScaler, and its boosted trees.
"""

import argparse
import csv
import json
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import AVDGPClassifier, DSDGPClassifier

KEYS = ("dataset", "estimator", "params", "fold")
SCORES = ("log_loss", "accuracy", "fit_s")
DATASETS = {"breast_cancer": load_breast_cancer, "digits": load_digits, "iris": load_iris, "wine": load_wine}


def make_avdgp(n_features, seed, **params):
    return AVDGPClassifier(random_state=seed, **params)


def make_dsdgp(n_features, seed, **params):
    return DSDGPClassifier(random_state=seed, **params)


def make_gpc(n_features, seed):
    kernel = ConstantKernel() * RBF(np.sqrt(n_features))
    return make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=seed))


def make_hgb(n_features, seed):
    return HistGradientBoostingClassifier(random_state=seed)


ESTIMATORS = {"avdgp": make_avdgp, "dsdgp": make_dsdgp, "gpc": make_gpc, "hgb": make_hgb}


OURS = {"avdgp", "dsdgp"}


def run(dataset, estimator, fold, params, one_thread):
    """Fit one estimator to one fold's training part; its row of the file."""
    if one_thread:
        torch.set_num_threads(1)  # as many threads as cores in every process would wait for each other
    X, y = DATASETS[dataset](return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0).split(X, y)
    train, test = list(folds)[fold]
    params = params if estimator in OURS else {}
    model = ESTIMATORS[estimator](X.shape[1], fold, **params)
    start = time.perf_counter()
    model.fit(X[train], y[train])
    seconds = time.perf_counter() - start
    probabilities = model.predict_proba(X[test])
    scores = (
        log_loss(y[test], probabilities),
        accuracy_score(y[test], model.classes_[probabilities.argmax(axis=1)]),
        seconds,
    )
    return dict(zip(KEYS + SCORES, (dataset, estimator, json.dumps(params), fold, *scores), strict=True))


def summary(rows):
    """Lines with mean ± standard error over folds, for every data set and estimator."""
    groups = {}
    for row in rows:
        groups.setdefault((row["dataset"], row["estimator"]), []).append([row[name] for name in SCORES])
    for (dataset, estimator), values in sorted(groups.items()):
        error = np.std(values, axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(3, np.nan)
        cells = (f"{m:.4f} ± {e:.4f}".rjust(20) for m, e in zip(np.mean(values, axis=0), error, strict=True))
        yield f"{dataset:<16}{estimator:<8}" + "".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--estimators", nargs="+", choices=ESTIMATORS, default=list(ESTIMATORS))
    parser.add_argument("--folds", nargs="+", type=int, choices=range(5), default=range(5))
    parser.add_argument("--params", type=json.loads, default={}, help="JSON: parameters of AVDGPClassifier")
    parser.add_argument("--n-jobs", type=int, default=1, help="fits at a time, each with one thread if more than 1")
    parser.add_argument("--output", type=Path, default=Path("classification.csv"))
    args = parser.parse_args()
    n_jobs = effective_n_jobs(args.n_jobs)
    fits = [
        delayed(run)(dataset, estimator, fold, args.params, n_jobs > 1)
        for dataset, fold, estimator in product(args.datasets, args.folds, args.estimators)
    ]
    rows = []
    with args.output.open("w", newline="") as file:
        table = csv.DictWriter(file, KEYS + SCORES)
        table.writeheader()
        for row in Parallel(n_jobs=n_jobs, return_as="generator_unordered")(fits):
            rows.append(row)
            table.writerow(row)
            file.flush()  # what is done stays, should a later fit fail
    print(" " * 24 + "".join(f"{name:>20}" for name in SCORES))
    print(*summary(rows), sep="\n")
    print(f"\nSaved to {args.output}.")


if __name__ == "__main__":
    main()
