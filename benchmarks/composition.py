"""What hidden layers may be, by posterior: Table 1 of "Compositional uncertainty in deep Gaussian processes".

    python benchmarks/composition.py --output composition.csv

Two layers with one output each, a squared-exponential kernel in the first and a periodic one in the second, are fitted
to twenty points of a curve, once for every posterior and seed. The table has the evidence lower bound and the variances
of both layers at x = 0, over functions drawn from the posterior. The paper's data are not published: the curve is ours,
so that orders can be compared and numbers cannot.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, ExpSineSquared
from tables import write

from skdgp import DSDGPRegressor
from skdgp.inference.objectives import elbo

#: Weights of the penalty, and the share of the steps that each has.
STAGES = ((0.01, 0.25), (0.1, 0.25), (1.0, 0.5))

POSTERIORS = ("factorised", "joint", "chain", "locations")


def make_data():
    """A curve that a periodic function of a smooth one can be."""
    x = np.linspace(-2, 2, 20)
    return x[:, None], np.sin(2 * np.pi * (0.35 * x + 0.1 * x**2))


def fit(posterior, seed, max_iter, n_samples):
    """A model of one member, trained on all rows at a time, in the end with the bound itself.

    The weight of the penalty grows to one in stages. With the whole penalty from the start, models often end where the
    noise explains the curve.
    """
    kernel = [ConstantKernel(1.0) * RBF(1.0), ConstantKernel(1.0) * ExpSineSquared(1.0, 2.0)]
    X, y = make_data()
    model = DSDGPRegressor(
        (1,),
        10,
        layer_posterior=posterior,
        kernel=kernel,
        covariance="full",
        n_samples=n_samples,
        base=None,
        n_neighbors=0,
        early_stopping=False,
        n_estimators=1,
        batch_size=len(X),
        learning_rate=0.03,
        warm_start=True,
        random_state=seed,
    )
    for beta, share in STAGES:
        model.set_params(beta=beta, max_iter=round(share * max_iter)).fit(X, y)
    return model


@torch.no_grad()
def bound(model, X, y, n_draws=500):
    """The evidence lower bound, as a mean over many samples."""
    member, units = model.module_[0], model.module_[0].likelihood.units
    rows, targets = (torch.as_tensor(numbers) for numbers in ((X - X.mean()) / X.std(), units.standardise(y[:, None])))
    source, weight = torch.Generator().manual_seed(0), torch.ones(len(X), dtype=torch.float64)
    draws = [
        elbo(member(rows, source, mixture=False), member.likelihood, targets, weight, 1 / len(X)).item()
        for _ in range(n_draws)
    ]
    return len(X) * (np.mean(draws) - np.log(units.scale[0]))


def measure(posterior, seed, max_iter, n_samples):
    """A line of the table."""
    start = time.perf_counter()
    model = fit(posterior, seed, max_iter, n_samples)
    seconds = time.perf_counter() - start
    first, second = model.sample_layers(np.zeros((1, 1)), 1000, random_state=seed)
    numbers = {
        "bound": bound(model, *make_data()),
        "variance_1": first.var(),
        "variance_2": second.var(),
        "fit_s": seconds,
    }
    return {"posterior": posterior, "seed": seed, "noise": float(model.noise_variance_)} | numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posteriors", nargs="+", default=POSTERIORS, choices=POSTERIORS)
    parser.add_argument("--runs", type=int, default=10, help="seeds")
    parser.add_argument("--max-iter", type=int, default=4000, help="steps")
    parser.add_argument("--n-samples", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("composition.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for posterior in args.posteriors:
        rows += [measure(posterior, seed, args.max_iter, args.n_samples) for seed in range(args.runs)]
        of_this = rows[-args.runs :]
        means = {
            name: np.mean([row[name] for row in of_this])
            for name in ("bound", "variance_1", "variance_2", "noise", "fit_s")
        }
        spreads = {name: np.std([row[name] for row in of_this]) for name in means}
        print(posterior, *(f"{name} {means[name]:.3g} ± {spreads[name]:.2g}" for name in means), sep="  ", flush=True)
    write(rows, args.output)


if __name__ == "__main__":
    main()
