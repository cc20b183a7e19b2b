"""Time against score: default fits of every estimator and its peers to small tables, and fits with parts of the budget.

Tables are generated, scikit-learn's, or published splits in a folder, laid out as ``uci.py`` says.
"""

import math
from functools import partial

import numpy as np
import peers
from competitors import OURS, PEERS, Competitor, Heat, make_rows
from gauges import clock
from sklearn.datasets import load_iris, make_classification, make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from uci import stored_split

from skdgp import AVDGPClassifier, DSDGPClassifier, SOLVEGPClassifier
from skdgp.estimators._parameters import method_of

N_TEST = 2000

#: Published splits that are read, and what they are called.
STORED = {"boston": "bostonHousing", "concrete": "concrete", "wine": "wine-quality-red", "kin8nm": "kin8nm"}

#: Shares of an estimator's own budget.
SHARES = (16, 4)


def generated(n_rows):
    X, y = make_rows(n_rows + N_TEST)
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


def friedman(n_rows):
    X, y = make_friedman1(n_rows + N_TEST, noise=1.0, random_state=0)
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


def iris():
    X, y = load_iris(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    return X, y, X_test, y_test


def two_features(n_rows):
    shape = {"n_features": 2, "n_informative": 2, "n_redundant": 0, "n_clusters_per_class": 2, "class_sep": 0.8}
    X, y = make_classification(n_rows + N_TEST, **shape, random_state=0)
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


# Fits: (X, y, seed, budget, device) -> a function from (X, y) to the NLL and the error.


def our_regressor(X, y, seed, budget, device, *, estimator):
    model = estimator(max_iter=budget or "auto", random_state=seed, device=device).fit(X, y)

    def scores(X, y):
        dist = model.predict_dist(X)
        return -dist.logpdf(y).mean(), rmse(y, dist.mean)

    return scores


def other_regressor(X, y, seed, budget, device, *, fit):
    predict = fit(X, y, seed, budget, device)

    def scores(X, y):
        mean, std = predict(X)
        squares = ((y - mean) / std) ** 2
        return np.mean(0.5 * squares + np.log(std)) + 0.5 * math.log(2 * math.pi), rmse(y, mean)

    return scores


def classifier(X, y, seed, budget, device, *, make):
    model = make(seed, budget, device).fit(X, y)

    def scores(X, y):
        p = model.predict_proba(X)[np.arange(len(X)), y]
        return -np.log(p.clip(1e-12)).mean(), 1.0 - model.score(X, y)

    return scores


def rmse(y, mean):
    return math.sqrt(np.mean((y - mean) ** 2))


def our_classifier(seed, budget, device, *, estimator):
    return estimator(max_iter=budget or "auto", random_state=seed, device=device)


def boosted_trees(seed, budget, device):
    return HistGradientBoostingClassifier(max_iter=budget or peers.TREES, random_state=seed)


def exact_gp(seed, budget, device):
    return make_pipeline(StandardScaler(), GaussianProcessClassifier(1.0 * RBF(), random_state=seed))


CLASSIFIERS = {estimator.__name__: estimator for estimator in (AVDGPClassifier, DSDGPClassifier, SOLVEGPClassifier)}
REGRESSOR_FITS = {name: partial(our_regressor, estimator=estimator) for name, estimator in OURS.items()}
REGRESSOR_FITS |= {name: partial(other_regressor, fit=fit) for name, fit in PEERS.items() if "SVGP" not in name}
CLASSIFIER_FITS = {
    name: partial(classifier, make=partial(our_classifier, estimator=estimator))
    for name, estimator in CLASSIFIERS.items()
}
CLASSIFIER_FITS |= {"HGB": partial(classifier, make=boosted_trees), "GPC": partial(classifier, make=exact_gp)}


# Turns and heats.


def fit_and_score(device, *, fit, table, budget):
    """Seconds of a fit with a budget, and its scores on other rows."""
    X, y, X_test, y_test = table()
    some = np.random.default_rng(0).permutation(len(X))[:100]
    fit(X[some], y[some], 0, 1, device)  # warms up

    def turn(repeat):
        start = clock(device)
        scores = fit(X, y, repeat, budget, device)
        seconds = clock(device) - start
        nll, error = scores(X_test, y_test)
        return {"s": seconds, "NLL": float(nll), "error": float(error)}

    return turn


def budgets(name, n_rows):
    """Parts of an estimator's own budget, and None, which is all of it."""
    if name.startswith("GP"):
        return [None]
    estimator = (OURS | CLASSIFIERS).get(name)
    own = method_of(estimator()).plan(n_rows).settings.max_iter if estimator else peers.TREES
    return [*(max(1, own // share) for share in SHARES), None]


def curve_heats(quick, data=None):
    """A heat for every table; a size is a number of passes or trees, and no size the estimator's own."""
    few = 60 if quick else None
    tables = {"generated": (partial(generated, few or 8192), REGRESSOR_FITS)}
    tables["Friedman's first function"] = (partial(friedman, few or 500), REGRESSOR_FITS)
    tables |= {"iris": (iris, CLASSIFIER_FITS), "two features": (partial(two_features, few or 800), CLASSIFIER_FITS)}
    if quick:
        tables = {name: tables[name] for name in ("generated", "iris")}
    for name, folder in STORED.items() if data else ():
        tables[name] = (partial(stored, data / folder), REGRESSOR_FITS)
    return [heat(name, table, fits, quick) for name, (table, fits) in tables.items()]


def stored(folder):
    return stored_split(folder, 0)[:4]


def heat(title, table, fits, quick):
    n_rows = len(table()[0])
    runs = [
        Competitor(name, partial(fit_and_score, fit=fit, table=table, budget=budget), budget)
        for name, fit in fits.items()
        for budget in ([2] if quick else budgets(name, n_rows))
    ]
    return Heat(f"{title}, {n_rows} rows", runs, curve=("s", "NLL"))
