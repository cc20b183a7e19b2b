"""What ``speed.py`` measures: which competitors every work has, and what each of them does in a turn.

The function of a competitor gets the device and prepares everything outside the clock. It returns the turn: a
function of the repeat's number, whose result has values by measure.
"""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import peers
import plain
import torch
from gauges import clock, first_steps, forget_peak, peak_memory, peaks, step_memory, timed

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
from skdgp.estimators._parameters import method_of
from skdgp.gp.likelihoods import Gaussian
from skdgp.inference import Batch, Member, Part
from skdgp.methods import AVDGP, DSDGP, SOLVEGP
from skdgp.methods.solvegp import MINIBATCH_BETA

N_FEATURES, HIDDEN_DIMS, N_POINTS = 8, (16, 4), 32
#: The model of the AVDGP paper (App. C.1).
PAPER = {"covariance": "diag_unwhitened", "network_width": None, "beta": 1.0, "n_samples": N_POINTS, "dtype": "float32"}
PAPER_INDUCING = (8, 4, 4)

#: Standard deviation of the noise of ``make_rows``, and the NLL to reach: 0.2 nats above what the noise leaves.
NOISE = 0.3
TARGET_NLL = math.log(NOISE) + 0.5 * math.log(2 * math.pi * math.e) + 0.2
N_TEST = 2048

#: Rows that models learn from in the works about prediction, and those that initial values are computed from.
LEARNT_ROWS, INITIAL_ROWS = 10_000, 3000


class Competitor(NamedTuple):
    """Who takes turns: ``make`` a turn for a device; ``size`` is what grows, where something does."""

    name: str
    make: Callable[[str], Callable[[int], dict[str, float]]]
    size: int | None = None


class Heat(NamedTuple):
    """Competitors that take turns; in ``fresh`` processes for every turn, if so.

    The two measures of a ``curve`` are drawn against each other.
    """

    title: str
    competitors: list[Competitor]
    baselines: tuple[str, ...] = ()
    fresh: bool = False
    curve: tuple[str, str] | None = None


class Work(NamedTuple):
    """Heats, made small if ``quick``, and how often competitors take turns."""

    heats: Callable[[bool], list[Heat]]
    repeats: int


def make_rows(n_rows):
    """Standard normal inputs and a smooth function of pairs and triples of them, with noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, N_FEATURES), dtype=np.float32)
    y = NOISE * rng.standard_normal(n_rows, dtype=np.float32)
    y += np.sin(X[:, 0] * X[:, 1]) + np.tanh(X[:, 2] + X[:, 3] * X[:, 4]) + np.cos(X[:, 5] + X[:, 6]) * X[:, 7]
    return X, y


# Training steps.


class OwnKernels(DSDGP):
    """DSDGP with a kernel for each output of a layer, as in GPyTorch."""

    share_kernel = False


def our_training(device, method, n_rows, batch_size, *, n_passes=1, **params):
    """A function that trains a model in the package's own loop."""
    chosen = method(batch_size=batch_size, max_iter=n_passes, **params)
    plan = chosen.plan(n_rows)
    data = Batch.of(*make_rows(n_rows))  # standardised, nearly
    model = chosen.build(data.X[:INITIAL_ROWS], Gaussian(1), torch.Generator().manual_seed(0))
    model, data = model.to(device, plan.precision), data.near(torch.device(device))
    generator = torch.Generator(device).manual_seed(0)
    return lambda: plan.trainer([Member(model, Part(data), generator)], plan.settings)


def our_steps(device, *, method=DSDGP, n_steps=1, batch_size, **params):
    """A pass of ``n_steps``, whole loop."""
    return timed(our_training(device, method, n_steps * batch_size, batch_size, **params), device, n_steps)


def gpytorch_steps(device, *, kind, n_steps, batch_size, n_inducing):
    """The same of GPyTorch."""
    X, y = make_rows(n_steps * batch_size)
    widths = (N_FEATURES, *HIDDEN_DIMS)
    if kind == "svgp":
        model, objective = peers.svgp(X, n_inducing)
    elif kind == "dspp":
        model, objective = peers.dspp(len(X), widths, n_inducing, N_POINTS)
    else:
        model, objective = peers.deep_gp(len(X), widths, n_inducing)
    return timed(peers.make_pass(model, objective, (X, y), n_steps, device), device, n_steps)


def plain_steps(device, *, n_steps, batch_size):
    """The same of AVDGP in plain torch."""
    X, y = (torch.from_numpy(column).to(device) for column in make_rows(n_steps * batch_size))
    model = plain.AVDGP(len(X), (N_FEATURES, *HIDDEN_DIMS), PAPER_INDUCING, N_POINTS).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    batches = list(zip(X.chunk(n_steps), y[:, None].chunk(n_steps), strict=True))

    def run():
        for rows, targets in batches:
            optimizer.zero_grad()
            loss = -model(rows, targets)
            loss.item()  # ours looks at it, too
            loss.backward()
            optimizer.step()

    return timed(run, device, n_steps)


def growth(device, *, method, n_rows, batch_size, n_steps, **params):
    """The first steps of a training with the whole table in place, and what they say about a pass."""
    run = our_training(device, method, n_rows, batch_size, n_passes=n_steps + 1, **params)
    n_batches = -(-n_rows // batch_size)
    memory = step_memory(run, n_steps, device)

    def turn(repeat):
        start, first, *_, last = first_steps(run, n_steps, device)
        step = (last - first) / n_steps
        whole_pass = first - start + (n_batches - 1) * step
        return {"ms a step": 1e3 * step, "µs a row": 1e6 * whole_pass / n_rows, **memory}

    return turn


def fit_ours(X, y, seed, budget, device, *, estimator, **params):
    """Fit an estimator of the package, as ``peers`` fits others."""
    model = estimator(max_iter=budget or "auto", random_state=seed, device=device, **params).fit(X, y)
    return partial(model.predict, return_std=True)


OURS = {estimator.__name__: estimator for estimator in (AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor)}
PEERS = {
    f"GPR, {peers.GPR_ROWS} rows": peers.fit_gpr,
    "HGB": peers.fit_hgb,
    f"GPyTorch SVGP {peers.SVGP_POINTS}": peers.fit_svgp,
}
MEMBERS = {name: partial(fit_ours, estimator=estimator, n_estimators=1) for name, estimator in OURS.items()} | PEERS
#: The same without corrections by a base and by neighbours.
ALONE = {f"{name}, alone": partial(MEMBERS[name], base=None, n_neighbors=0) for name in OURS}
FITS = {name: partial(fit_ours, estimator=estimator) for name, estimator in OURS.items()} | PEERS


def other_budgets(name, n_rows):
    """Budgets to try where an estimator's own reaches the target, and where it does not."""
    powers = [2**power for power in range(12)]
    if name == "HGB":
        return [n for n in powers if n < peers.TREES], [n for n in powers if n > peers.TREES]
    if name.startswith("GPR"):
        return [], []
    method = method_of(OURS[name]()) if name in OURS else SOLVEGP()  # GPyTorch's SVGP has the budget of ours
    settings = method.plan(n_rows).settings
    return [n for n in powers if n < settings.max_iter], []


def fit_to_target(device, *, name, n_rows, own=None):
    """A fit with the estimator's ``own`` budget and its scores, and the smallest that reaches the target."""
    X, y = make_rows(n_rows + N_TEST)
    (X, X_test), (y, y_test) = np.split(X, [n_rows]), np.split(y, [n_rows])
    less, more = other_budgets(name, n_rows)

    def attempt(repeat, budget):
        start = clock(device)
        predict = FITS[name](X, y, repeat, budget, device)
        seconds = clock(device) - start
        mean, std = predict(X_test)
        squares = (y_test - mean) ** 2
        nll = np.mean(0.5 * squares / std**2 + np.log(std)) + 0.5 * math.log(2 * math.pi)
        return seconds, math.sqrt(np.mean(squares)), float(nll)

    def turn(repeat):
        seconds, rmse, nll = attempt(repeat, own)
        reached = seconds if nll <= TARGET_NLL else math.inf
        for budget in less if nll <= TARGET_NLL else more:
            other, _, score = attempt(repeat, budget)
            if score <= TARGET_NLL:
                reached = other
                break
        return {"s": seconds, "RMSE": rmse, "NLL": nll, "s to target": reached}

    FITS[name](X[:500], y[:500], 0, 1, device)  # warms up
    return turn


# Prediction, memory, import.


def hardly_trained(device, fit, n_learnt):
    """How a model predicts after one pass, which takes as long as after many.

    A prediction by trees takes time for each tree, so they have their default number.
    """
    budget = None if fit is peers.fit_hgb else 1
    return fit(*make_rows(n_learnt), 0, budget, device)


def prediction(device, *, fit, n_rows, n_learnt):
    """Means and standard deviations of ``n_rows``."""
    predict = hardly_trained(device, fit, n_learnt)
    X, _ = make_rows(n_rows)
    return timed(partial(predict, X), device, unit="ms a call", warm_up=partial(predict, X[:1000]))


def after_fit(device, *, method, n_rows, n_learnt):
    """A method of AVDGPRegressor, or of the distribution that it predicts."""
    X, y = make_rows(n_rows)
    model = AVDGPRegressor(n_samples=N_POINTS, n_estimators=1, max_iter=1, device=device, random_state=0)
    dist = model.fit(X[:n_learnt], y[:n_learnt]).predict_dist(X)
    run = {
        "predict, return_std": lambda: model.predict(X, return_std=True),
        "predict_dist": lambda: model.predict_dist(X),
        "ppf of 5 quantiles": lambda: dist.ppf(np.array([0.05, 0.25, 0.5, 0.75, 0.95])[:, None]),
        "crps": lambda: dist.crps(y),
        "log_score": lambda: dist.log_score(y),
    }[method]
    return timed(run, device, unit="ms a call")


def rows_together(device, *, name, task, n_rows, n_learnt):
    """The joint covariance of rows, or values of ten functions there, functions drawn anew in every turn."""
    X, y = make_rows(n_learnt)
    if name in OURS:
        model = OURS[name](max_iter=1, n_estimators=1, random_state=0, device=device).fit(X, y)
        functions = lambda: model.sample_functions(10, random_state=0)(rows)  # noqa: E731
    else:
        model = peers.gpr(X, y, optimizer=None)
        functions = lambda: model.sample_y(rows, 10, random_state=0)  # noqa: E731
    rows, _ = make_rows(n_rows)
    run = {"covariance": lambda: model.predict(rows, return_cov=True), "functions": functions}[task]
    return timed(run, device, unit="ms a call")


def training_memory(device, *, fit, n_rows):
    """Peak of a fit of one pass beyond what the imports took, its table included."""
    imported = peak_memory()

    def turn(repeat):
        X, y = make_rows(n_rows)
        fit(X, y, 0, 1, device)
        return peaks(device, imported)

    return turn


def prediction_memory(device, *, fit, n_rows, n_learnt):
    """The same of a prediction, without what the fit before held."""
    imported = peak_memory()
    predict = hardly_trained(device, fit, n_learnt)
    forget_peak(device)

    def turn(repeat):
        predict(make_rows(n_rows)[0])
        return peaks(device, imported)

    return turn


#: What a first fit takes that a later one does not: imports, which every process of a search pays.
FIRST_FIT = """
import numpy, skdgp
X = numpy.random.default_rng(0).standard_normal((60, 3))
skdgp.AVDGPRegressor(max_iter=2, n_estimators=1, random_state=0).fit(X, X[:, 0])
"""


def start_time(device, *, code):
    """A fresh interpreter that runs something."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return timed(partial(subprocess.run, command, check=True), "cpu", unit="ms", warm_up=lambda: None)


# Works: heats by --quick.


def step_heats(quick):
    if quick:
        return [step_heat(2, 50, n_inducing=(32, 16, 16))]
    return [step_heat(20, 100), step_heat(5, 1000)]


def step_heat(n_steps, batch_size, n_inducing=(256, 128, 128)):
    """All models; of large minibatches not DSPP, for GPyTorch's would take minutes."""
    minibatches = {"n_steps": n_steps, "batch_size": batch_size}
    ours = partial(our_steps, **minibatches)
    dsdgp = partial(ours, hidden_dims=HIDDEN_DIMS, n_inducing=n_inducing, kernel="matern52")
    dspp = partial(dsdgp, propagation="quadrature", objective="predictive", n_samples=N_POINTS)
    gpytorch = partial(gpytorch_steps, n_inducing=n_inducing, **minibatches)
    runs = {
        "AVDGP": partial(ours, method=AVDGP),
        "AVDGP as in its paper": partial(ours, method=AVDGP, **PAPER),
        "AVDGP as in its paper, plain torch": partial(plain_steps, **minibatches),
        "DSDGP": dsdgp,
        "DSDGP, full covariance": partial(dsdgp, covariance="full"),
        "DSDGP, full covariance, kernel per output": partial(dsdgp, method=OwnKernels, covariance="full"),
        "GPyTorch DeepGP": partial(gpytorch, kind="deep_gp"),
        f"GPyTorch SVGP {peers.SVGP_POINTS}": partial(gpytorch, kind="svgp", n_inducing=peers.SVGP_POINTS),
        "DSPP": dspp,
        "DSPP, kernel per output": partial(dspp, method=OwnKernels),
        "GPyTorch DSPP": partial(gpytorch, kind="dspp"),
    }
    chosen = [Competitor(*run) for run in runs.items() if batch_size <= 100 or "DSPP" not in run[0]]
    return Heat(f"minibatches of {batch_size} rows", chosen, BASELINES)


BASELINES = ("AVDGP as in its paper, plain torch", "GPyTorch DeepGP", "GPyTorch DSPP")


def depth_heats(quick):
    deep = partial(our_steps, batch_size=600 if quick else 10_000)
    runs = {
        f"{depth} layers" if depth > 1 else "1 layer": partial(deep, hidden_dims=(1,) * (depth - 1), n_inducing=100)
        for depth in range(1, 6)
    }
    runs["1 layer, 500 inducing points"] = partial(deep, hidden_dims=(), n_inducing=500)
    return [Heat("layers", [Competitor(*run) for run in runs.items()], ("1 layer",))]


def orthogonal_heats(quick):
    batch_size, n_steps, sizes = (64, 1, (32,)) if quick else (1024, 3, (128, 256, 512, 1024))
    minibatches = {"n_steps": n_steps, "batch_size": batch_size}
    solve = partial(our_steps, method=SOLVEGP, beta=MINIBATCH_BETA)  # as of the regressor
    runs = {}
    for size in sizes:
        both, one = {"n_inducing": size, "n_orthogonal": size}, {"n_inducing": 2 * size, "n_orthogonal": 0}
        runs[f"SOLVE {size} + {size}"] = partial(solve, **minibatches, **both)
        runs[f"SVGP {2 * size}"] = partial(solve, **minibatches, **one)
    for size in (64,) if quick else (512, 1024):
        runs[f"GPyTorch SVGP {size}"] = partial(gpytorch_steps, kind="svgp", n_inducing=size, **minibatches)
    points = {"n_inducing": sizes[0], "n_orthogonal": sizes[0]}
    for n_steps in (2, 4) if quick else (10, 100, 1000):
        name = f"SOLVE {sizes[0]} + {sizes[0]}, {n_steps * batch_size:,} rows"
        runs[name] = partial(solve, n_steps=n_steps, batch_size=batch_size, **points)
    baselines = ("SVGP 1024", "SVGP 2048", "GPyTorch SVGP 1024")
    return [Heat("inducing points", [Competitor(*run) for run in runs.items()], baselines)]


def fit_heats(quick):
    small = {"n_rows": 80, "own": 2} if quick else {"n_rows": 8192}
    runs = [Competitor(name, partial(fit_to_target, name=name, **small)) for name in FITS]
    return [Heat(f"{small['n_rows']} rows, target NLL {TARGET_NLL:.3f}", runs, ("HGB",))]


def predict_heats(quick):
    methods = ("predict, return_std", "predict_dist", "ppf of 5 quantiles", "crps", "log_score")
    n_rows, few_learnt = (1000, 60) if quick else (100_000, 1000)
    base = partial(after_fit, n_rows=n_rows, n_learnt=few_learnt)
    after = [Competitor(method, partial(base, method=method)) for method in methods]
    sizes, n_learnt = ((1000,), 60) if quick else ((100_000, 1_000_000), LEARNT_ROWS)
    few = {"SOLVEGPRegressor, alone": ALONE["SOLVEGPRegressor, alone"]} | PEERS
    fits = few if quick else MEMBERS | ALONE
    runs = [
        Competitor(name, partial(prediction, fit=fit, n_rows=size, n_learnt=n_learnt), size)
        for name, fit in fits.items()
        for size in sizes
    ]
    return [Heat(f"AVDGP, {n_rows:,} rows", after), Heat("means and standard deviations", runs, ("HGB",))]


def joint_heats(quick):
    few, many, n_learnt = (100, 200, 60) if quick else (2000, 100_000, LEARNT_ROWS)
    names = (*OURS, f"GPR, {peers.GPR_ROWS} rows")
    base = partial(rows_together, n_learnt=n_learnt)
    covariance = [Competitor(name, partial(base, name=name, task="covariance", n_rows=few)) for name in names]
    functions = [
        Competitor(name, partial(base, name=name, task="functions", n_rows=size), size)
        for size in ((few,) if quick else (few, many))
        for name in names
        if size == few or name in OURS  # scikit-learn's draws need a matrix of rows by rows
    ]
    return [
        Heat(f"joint covariance of {few:,} rows", covariance, names[-1:]),
        Heat("values of ten functions", functions, names[-1:]),
    ]


def memory_heats(quick):
    names, sizes = (("AVDGPRegressor",), (1000,)) if quick else (MEMBERS, (10_000, 100_000, 1_000_000))
    n_learnt = 60 if quick else LEARNT_ROWS
    tasks = {"training pass": training_memory, "prediction": partial(prediction_memory, n_learnt=n_learnt)}
    return [
        Heat(
            title,
            [Competitor(name, partial(task, fit=MEMBERS[name], n_rows=size), size) for name in names for size in sizes],
            fresh=True,
        )
        for title, task in tasks.items()
    ]


def import_heats(quick):
    modules = ("", "torch", "skdgp", "sklearn", "sklearn.gaussian_process", "gpytorch")[: 3 if quick else None]
    codes = {name or "nothing": f"import {name}" if name else "pass" for name in modules}
    codes["skdgp, and a first fit"] = FIRST_FIT
    runs = [Competitor(name, partial(start_time, code=code)) for name, code in codes.items()]
    return [Heat("a fresh interpreter", runs, ("torch",))]


def growth_heats(quick):
    """One thing grows; the others stay at 10 000 rows, minibatches of 500 and the estimators' defaults."""
    n_rows, batch_size, n_steps = (200, 50, 2) if quick else (10_000, 500, 10)
    base = partial(growth, n_rows=n_rows, batch_size=batch_size, n_steps=n_steps)
    avdgp = {"AVDGP": partial(base, method=AVDGP)}
    # "auto" inducing points would depend on the number of rows.
    dsdgp = {"DSDGP": partial(base, method=DSDGP, n_inducing=128)}
    # Monte Carlo takes a single sample in training.
    quadrature = {"DSDGP, quadrature": partial(dsdgp["DSDGP"], propagation="quadrature")}
    row_numbers = (200,) if quick else (10**3, 10**4, 10**5, 10**6, 10**7)
    few = slice(1 if quick else None)
    points = grown(avdgp, "n_inducing", (4, 8, 16, 32)[few]) + grown(dsdgp, "n_inducing", (64, 128, 256, 512)[few])
    widths, depths = (2, 4, 8, 16, 32)[few], (1, 2, 3, 4, 5)[few]
    return [
        Heat("N, rows", grown(avdgp | dsdgp, "n_rows", row_numbers)),
        Heat("M, inducing points", points),
        Heat("S, quadrature points", grown(avdgp | quadrature, "n_samples", (8, 16, 32, 64)[few])),
        Heat("D, width of one hidden layer", grown(avdgp | dsdgp, "hidden_dims", widths, lambda size: (size,))),
        Heat(
            "L, layers, hidden ones of 4", grown(avdgp | dsdgp, "hidden_dims", depths, lambda size: (4,) * (size - 1))
        ),
    ]


def grown(makes, parameter, sizes, value=lambda size: size):
    """Competitors for every size, which sets a parameter to a value."""
    return [
        Competitor(name, partial(make, **{parameter: value(size)}), size)
        for name, make in makes.items()
        for size in sizes
    ]


#: Works by name, and how many turns there are by default. A fit is long, and memory hardly varies.
WORKS = {
    "step": Work(step_heats, 7),
    "depth": Work(depth_heats, 7),
    "orthogonal": Work(orthogonal_heats, 7),
    "fit": Work(fit_heats, 1),
    "predict": Work(predict_heats, 3),
    "joint": Work(joint_heats, 3),
    "memory": Work(memory_heats, 1),
    "import": Work(import_heats, 5),
    "growth": Work(growth_heats, 5),
}
