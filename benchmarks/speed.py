"""How fast training is, beside GPyTorch, in one process and one run.

    python benchmarks/speed.py step --output step.csv

``step``: one training step of deep GPs with hidden layers of 16 and 4 outputs, 256, 128 and 128 inducing points, a
Matérn-5/2 kernel with a lengthscale per input and minibatches of 100 rows of 8 features, in float32. Ours goes
through the package's own training loop; GPyTorch's are its documented models, DeepGP and DSPP (32 quadrature
points), with fused Adam like ours.

    python benchmarks/speed.py depth --output depth.csv

``depth``: how the step of DSDGPRegressor grows with the number of layers, beside one layer with 500 inducing
points, for minibatches of 10000 rows and hidden layers of one output, as Table 3 of the DS-DGP paper.

Competitors take turns, ``--repeats`` times, and medians are compared: what slows the machine slows all of them.
"""

import argparse
import csv
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from skdgp import DSDGPRegressor
from skdgp.inference.training import train

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # at its import, of parts of torch that will go
    import gpytorch
    from gpytorch.kernels import MaternKernel, ScaleKernel
    from gpytorch.means import LinearMean, ZeroMean
    from gpytorch.mlls import DeepApproximateMLL, DeepPredictiveLogLikelihood, VariationalELBO
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
    from gpytorch.models.deep_gps.dspp import DSPP, DSPPLayer
    from gpytorch.variational import (
        CholeskyVariationalDistribution,
        MeanFieldVariationalDistribution,
        VariationalStrategy,
    )

N_FEATURES, HIDDEN_DIMS, N_INDUCING = 8, (16, 4), (256, 128, 128)
BATCH_SIZE, N_POINTS = 100, 32
KEYS = ("work", "competitor", "repeat", "step_ms")


def make_rows(n_rows):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, N_FEATURES)).astype(np.float32)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n_rows)
    return X, y.astype(np.float32)


def our_steps(X, y, n_steps, **params):
    """A function that makes ``n_steps`` steps in the package's training loop."""
    model = DSDGPRegressor(max_iter=1, batch_size=len(X) // n_steps, random_state=0, **params).fit(X, y)
    member, settings = model.module_[0], model._settings(len(X))
    for name, parameter in member.named_parameters():
        parameter.requires_grad_(model.propagation == "quadrature" or not name.startswith("propagation"))
    data = model._to_batch(X, y, np.ones(len(X)), dtype=np.float32)
    generator = torch.Generator().manual_seed(0)
    return lambda: train(member, data, None, settings, generator)


def hidden_layer(base, n_inputs, n_outputs, n_inducing, distribution, **options):
    """A layer of GPyTorch's documentation: kernels, inducing points and posteriors of every output's own."""

    class Layer(base):
        def __init__(self):
            batch = torch.Size([n_outputs]) if n_outputs else torch.Size()
            points = torch.randn(*batch, n_inducing, n_inputs)
            q = distribution(n_inducing, batch_shape=batch)
            super().__init__(
                VariationalStrategy(self, points, q, learn_inducing_locations=True), n_inputs, n_outputs, **options
            )
            self.mean_module = LinearMean(n_inputs, batch_shape=batch) if n_outputs else ZeroMean()
            self.covar_module = ScaleKernel(
                MaternKernel(2.5, ard_num_dims=n_inputs, batch_shape=batch), batch_shape=batch
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Layer()


def gpytorch_steps(X, y, n_steps, *, kind):
    """The same of a model of GPyTorch, "deep_gp" or "dspp"."""
    deep_gp = kind == "deep_gp"
    layer = DeepGPLayer if deep_gp else DSPPLayer
    distribution = CholeskyVariationalDistribution if deep_gp else MeanFieldVariationalDistribution
    options = {} if deep_gp else {"num_quad_sites": N_POINTS}
    widths = zip((N_FEATURES, *HIDDEN_DIMS), (*HIDDEN_DIMS, None), N_INDUCING, strict=True)
    parts = [hidden_layer(layer, *sizes, distribution, **options) for sizes in widths]

    class Model(DeepGP if deep_gp else DSPP):
        def __init__(self):
            super().__init__(*(() if deep_gp else (N_POINTS,)))
            self.parts = nn.ModuleList(parts)
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x):
            for part in self.parts:
                x = part(x)
            return x

    model = Model()
    if deep_gp:
        objective = DeepApproximateMLL(VariationalELBO(model.likelihood, model, len(X)))
    else:
        objective = DeepPredictiveLogLikelihood(model.likelihood, model, len(X))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    batches = list(zip(torch.from_numpy(X).chunk(n_steps), torch.from_numpy(y).chunk(n_steps), strict=True))

    def run():
        with gpytorch.settings.num_likelihood_samples(1):
            for rows, targets in batches:
                optimizer.zero_grad()
                loss = -objective(model(rows), targets)
                loss.item()  # ours looks at it, too
                loss.backward()
                optimizer.step()

    return run


def step_competitors(*, quick):
    """How many steps a run of ``step`` makes, and the runs of all models."""
    params = {"hidden_dims": HIDDEN_DIMS, "n_inducing": N_INDUCING, "kernel": "matern52"}
    dspp = {"propagation": "quadrature", "objective": "predictive", "n_samples": N_POINTS}
    n_steps = 3 if quick else 10
    X, y = make_rows(n_steps * BATCH_SIZE)
    full = {"covariance": "full"}
    return n_steps, {
        "DSDGP": our_steps(X, y, n_steps, **params),
        "DSDGP, full covariance": our_steps(X, y, n_steps, **params, **full),
        "DSDGP, full covariance, kernel per output": our_steps(X, y, n_steps, **params, **full, share_kernel=False),
        "GPyTorch DeepGP": gpytorch_steps(X, y, n_steps, kind="deep_gp"),
        "DSPP": our_steps(X, y, n_steps, **params, **dspp),
        "DSPP, kernel per output": our_steps(X, y, n_steps, **params, **dspp, share_kernel=False),
        "GPyTorch DSPP": gpytorch_steps(X, y, n_steps, kind="dspp"),
    }


def depth_competitors(*, quick):
    """The same of ``depth``."""
    X, y = make_rows(600 if quick else 10_000)
    layers = {f"{depth} layers" if depth > 1 else "1 layer": (1,) * (depth - 1) for depth in range(1, 6)}
    runs = {name: our_steps(X, y, 1, hidden_dims=hidden, n_inducing=100) for name, hidden in layers.items()}
    return 1, runs | {"1 layer, 500 inducing points": our_steps(X, y, 1, hidden_dims=(), n_inducing=500)}


WORK = {
    "step": (step_competitors, ("GPyTorch DeepGP", "GPyTorch DSPP")),
    "depth": (depth_competitors, ("1 layer",)),
}


def interleaved(runs, n_steps, repeats):
    """Milliseconds a step, (competitor, repeat), all taking turns; the first turn only warms up."""
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat:
                yield name, repeat, 1e3 * (time.perf_counter() - start) / n_steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="time too little, to see that the script runs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=Path("speed.csv"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    make, peers = WORK[args.work]
    n_steps, runs = make(quick=args.quick)
    times = {name: [] for name in runs}
    with args.output.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(KEYS)
        for name, repeat, milliseconds in interleaved(runs, n_steps, args.repeats):
            times[name].append(milliseconds)
            table.writerow((args.work, name, repeat, milliseconds))
    medians = {name: statistics.median(values) for name, values in times.items()}
    width = max(map(len, runs))
    print(f"{args.threads} threads\n{'':<{width}}{'ms a step':>12}" + "".join(f"{'× ' + peer:>20}" for peer in peers))
    for name, median in medians.items():
        ratios = (f"{median / medians[peer]:>20.3f}" for peer in peers)
        print(f"{name:<{width}}{median:>12.2f}" + "".join(ratios))
    print(f"\nSaved to {args.output}.")


if __name__ == "__main__":
    main()
