"""Tables with categories and missing cells, beside boosted trees and a pipeline that encodes before.

    python benchmarks/frames.py --data DIR --output frames.csv

"codes": five of the stored data sets (``DIR`` as of ``uci.py``) in which some columns have three to twelve values.
These are numbers once ("number"), and once categories ("category"). The published splits are taken.

"prices" and "survivors": tables that are generated, a regression like a list of houses that were sold and a
classification like a list of passengers, with numbers that depend on each other, categories of 2 to 40 levels, and
functions with bends and interactions. No cell is missing, or a tenth or three tenths of all cells: at random
("random"), or the more often the larger a number is and the rarer a level ("not random"). Trees take all of it as it
comes. "pipeline" is our estimator after scikit-learn's OneHotEncoder and SimpleImputer(add_indicator=True).

Scores are of new rows, with cells missing alike. "nll" is the negative log density, of standardised targets, or the log
loss; "error" the root mean squared error of standardised targets, or the share of wrong labels; "coverage" that of 90 %
intervals. Trees have a Gaussian around them whose variance comes from cross-validation.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from tables import write
from uci import fit_with_constant_variance, stored_split

from skdgp import DSDGPRegressor, SOLVEGPClassifier, SOLVEGPRegressor

DATA_SETS = ("autos", "servo", "forest", "solar", "machine")
N_TRAIN, N_TEST = 800, 800

#: (share of cells that are missing, how)
MISSING = [(0.0, "none"), (0.1, "random"), (0.3, "random"), (0.1, "not random"), (0.3, "not random")]


def prices(n_rows, rng):
    """Rows like houses, and logarithms of what they cost."""
    area = rng.lognormal(4.7, 0.4, n_rows)
    X = pd.DataFrame(
        {
            "area": area,
            "rooms": np.clip(np.round(area / 30 + rng.normal(0, 0.8, n_rows)), 1, 9),
            "plot": area * rng.lognormal(1.0, 0.5, n_rows),
            "year": np.round(2020 - rng.gamma(2.0, 20.0, n_rows)),
            "distance": rng.gamma(2.0, 3.0, n_rows),
            "noise level": rng.normal(50, 8, n_rows),
            "quarter": [f"quarter {i}" for i in np.minimum(rng.geometric(0.08, n_rows), 40)],
            "heating": rng.choice(["gas", "oil", "pump", "wood"], n_rows, p=[0.5, 0.3, 0.15, 0.05]),
            "garage": rng.choice(["none", "one", "two"], n_rows, p=[0.4, 0.45, 0.15]),
            "street": rng.choice(["paved", "gravel"], n_rows, p=[0.95, 0.05]),
        }
    )
    effects = np.random.default_rng(0)  # the same in training and test rows
    quarter = X["quarter"].map(
        dict(zip([f"quarter {i}" for i in range(1, 41)], effects.normal(0, 0.25, 40), strict=True))
    )
    old = (2020 - X["year"]) / 50
    y = (
        0.8 * np.log(area)
        + 0.15 * np.log(X["plot"])
        + quarter
        - 0.3 * np.tanh(X["distance"] / 5)
        - 0.25 * old * np.where(X["heating"] == "oil", 1.5, 0.7)
        + X["garage"].map({"none": 0.0, "one": 0.06, "two": 0.15})
        - 0.01 * np.maximum(X["noise level"] - 55, 0)
        + X["heating"].map({"gas": 0.0, "oil": -0.05, "pump": 0.1, "wood": -0.1})
    )
    return X, (y + 0.1 * rng.normal(size=n_rows)).to_numpy()


def survivors(n_rows, rng):
    """Rows like passengers, and whether they lived."""
    cabin = rng.choice(["first", "second", "third"], n_rows, p=[0.25, 0.2, 0.55])
    rank = pd.Series(cabin).map({"first": 0, "second": 1, "third": 2}).to_numpy()
    X = pd.DataFrame(
        {
            "cabin": cabin,
            "sex": rng.choice(["female", "male"], n_rows, p=[0.35, 0.65]),
            "age": np.clip(rng.normal(38 - 6 * rank, 13), 0.5, 80),
            "relatives": rng.poisson(0.9, n_rows).astype(float),
            "fare": rng.lognormal(4.4 - 1.0 * rank, 0.5),
            "port": rng.choice(["S", "C", "Q"], n_rows, p=[0.7, 0.2, 0.1]),
        }
    )
    score = (
        0.8
        - 0.9 * rank
        + np.where(X["sex"] == "female", 2.4 - 0.4 * (rank == 2), -0.4)
        + 1.8 * np.exp(-X["age"] / 8)
        - 0.5 * np.maximum(X["relatives"] - 2, 0)
        + np.where(X["port"] == "C", 0.5, 0.0)
    )
    return X, np.where(rng.random(n_rows) < 1 / (1 + np.exp(-score)), "lived", "died")


def with_missing(X, share, how, rng):
    """The table without some of its cells."""
    X = X.copy()
    for name in X:
        if how == "none":
            break
        rank = (
            X[name].map(X[name].value_counts()).rank(ascending=False) if X[name].dtype.kind in "OT" else X[name].rank()
        )
        chance = np.full(len(X), share) if how == "random" else 2 * share * rank / len(X)
        X.loc[rng.random(len(X)) < chance, name] = np.nan if X[name].dtype.kind == "f" else None
    return X


def fit_trees(X, y, seed, *, labels):
    """Boosted trees of a frame, whose text they want as categories."""
    text = make_column_selector(dtype_exclude=np.number)(X)
    levels = {name: sorted(X[name].dropna().unique()) for name in text}

    def typed(table):
        known = {name: table[name].where(table[name].isin(levels[name])) for name in text}
        return table.assign(**{name: pd.Categorical(known[name], levels[name]) for name in text})

    if labels:
        model = HistGradientBoostingClassifier(random_state=seed).fit(typed(X), y)
        return lambda table: model.predict_proba(typed(table))
    model = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=seed)
    predict = fit_with_constant_variance(model, typed(X), y, seed)
    return lambda table: predict(typed(table))


def fit_ours(kind, X, y, seed, *, labels, **options):
    """One of our estimators, and a frame as it is."""
    model = kind(random_state=seed, **options).fit(X, y)
    return model.predict_proba if labels else model.predict_dist


def fit_pipeline(kind, X, y, seed, *, labels):
    """The same after an encoder and an imputer."""
    numbers = make_column_selector(dtype_include=np.number)(X)
    text = [name for name in X if name not in numbers]
    encoder = make_column_transformer(
        (SimpleImputer(add_indicator=True), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text),
    )
    model = make_pipeline(encoder, kind(random_state=seed)).fit(X, y)
    if labels:
        return model.predict_proba
    return lambda table: model[-1].predict_dist(model[0].transform(table))


def scores(predicted, y, spread):
    """Error, negative log density and coverage; ``spread`` is the deviation of training targets."""
    if isinstance(predicted, np.ndarray):
        labels = np.unique(y)
        wrong = np.mean(labels[predicted.argmax(axis=1)] != y)
        return {"error": wrong, "nll": log_loss(y, predicted), "coverage": np.nan}
    lower, upper = predicted.interval(0.9)
    return {
        "error": np.sqrt(np.mean((predicted.mean - y) ** 2)) / spread,
        "nll": -np.mean(predicted.logpdf(y)) - np.log(spread),
        "coverage": np.mean((lower <= y) & (y <= upper)),
    }


def measured(fit, X, y, X_test, y_test, seed):
    """Scores of one fit, and its seconds."""
    start = time.perf_counter()
    predict = fit(X, y, seed, labels=y.dtype.kind != "f")
    fit_s = time.perf_counter() - start
    spread = y.std() if y.dtype.kind == "f" else 1.0
    return scores(predict(X_test), y_test, spread) | {"fit_s": fit_s}


def codes(folder, name, split):
    """Lines for a stored data set."""
    data = stored_split(folder / name, split)
    numbers = [pd.DataFrame(X).add_prefix("x") for X in (data.X, data.X_test)]
    chosen = [column for column in numbers[0] if 3 <= numbers[0][column].nunique() <= 12]
    texts = [X.assign(**{column: X[column].map("{:.6g}".format) for column in chosen}) for X in numbers]
    fits = {
        "trees": fit_trees,
        "solvegp": partial(fit_ours, SOLVEGPRegressor),
        "dsdgp": partial(fit_ours, DSDGPRegressor),
    }
    for kind, (X, X_test) in (("number", numbers), ("category", texts)):
        for estimator, fit in fits.items():
            measures = measured(fit, X, data.y, X_test, data.y_test, split)
            yield {"problem": name, "missing": "none", "share": 0.0, "estimator": estimator, "columns": kind} | measures


def cells(make, share, how, seed):
    """Lines for a table that is generated."""
    rng = np.random.default_rng(seed)
    X, y = make(N_TRAIN + N_TEST, rng)
    X = with_missing(X, share, how, rng)
    train, test = slice(0, N_TRAIN), slice(N_TRAIN, None)
    if make is survivors:
        ours = {"solvegp": partial(fit_ours, SOLVEGPClassifier), "pipeline": partial(fit_pipeline, SOLVEGPClassifier)}
    else:
        ours = {
            "solvegp": partial(fit_ours, SOLVEGPRegressor),
            "solvegp-varying": partial(fit_ours, SOLVEGPRegressor, likelihood="heteroskedastic"),
            "pipeline": partial(fit_pipeline, SOLVEGPRegressor),
        }
    for estimator, fit in ({"trees": fit_trees} | ours).items():
        measures = measured(fit, X[train], y[train], X[test], y[test], seed)
        yield {
            "problem": make.__name__,
            "missing": how,
            "share": share,
            "estimator": estimator,
            "columns": "frame",
        } | measures


def main():
    """Measure everything, and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the stored data sets; without it 'codes' is left out")
    parser.add_argument("--data-sets", nargs="*", default=DATA_SETS)
    parser.add_argument("--generated", nargs="*", choices=["prices", "survivors"], default=["prices", "survivors"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="also the numbers of splits")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    if options.data:
        runs += [partial(codes, options.data, name) for name in options.data_sets]
    makers = {"prices": prices, "survivors": survivors}
    runs += [partial(cells, makers[name], *case) for name in options.generated for case in MISSING]
    rows = []
    for run in runs:
        for seed in options.seeds:
            for row in run(seed):
                rows.append({**row, "seed": seed})
                print(
                    *(f"{value:.3f}" if isinstance(value, float) else value for value in row.values()), seed, flush=True
                )
            write(rows, options.output)


if __name__ == "__main__":
    main()
