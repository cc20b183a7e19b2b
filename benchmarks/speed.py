"""How fast training is, beside GPyTorch, in one process and one run.

    python benchmarks/speed.py step --output step.csv

``step``: one training step of deep GPs with hidden layers of 16 and 4 outputs, 256, 128 and 128 inducing points, a
Matérn-5/2 kernel with a lengthscale per input and minibatches of 100 rows of 8 features, in float32. Ours goes
through the package's own training loop; GPyTorch's are its documented models, DeepGP and DSPP (32 quadrature
points), with fused Adam like ours.

    python benchmarks/speed.py depth --output depth.csv

``depth``: how the step of DSDGPRegressor grows with the number of layers, beside one layer with 500 inducing
points, for minibatches of 10000 rows and hidden layers of one output, as Table 3 of the DS-DGP paper.

    python benchmarks/speed.py orthogonal --output orthogonal.csv

``orthogonal``: steps of 1024 rows of sparse GPs with a Matérn-5/2 kernel and full covariances: SOLVEGPRegressor with
M + M orthogonal inducing points, SVGP (the same without orthogonal ones) with 2M, GPyTorch's SVGP; and how all
grow with the number of points, while the number of rows leaves a step as it is.

    python benchmarks/speed.py predict --output predict.csv

``predict``: what AVDGPRegressor with 32 quadrature points makes of 100 000 rows: a call each.

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

from skdgp import AVDGPRegressor, DSDGPRegressor, SOLVEGPRegressor
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
KEYS = ("work", "competitor", "repeat", "ms")


def make_rows(n_rows):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, N_FEATURES)).astype(np.float32)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n_rows)
    return X, y.astype(np.float32)


def our_steps(X, y, n_steps, estimator=DSDGPRegressor, **params):
    """A function that makes ``n_steps`` steps in the package's training loop, and their number."""
    model = estimator(max_iter=1, batch_size=len(X) // n_steps, random_state=0, **params)
    # The fit is for initial values alone.
    n_initial = max(3000, len(X) // n_steps)
    model.fit(X[:n_initial], y[:n_initial])
    member, settings = model.module_[0].float(), model._settings(len(X))
    for name, parameter in member.named_parameters():
        quadrature = params.get("propagation") == "quadrature"
        parameter.requires_grad_(quadrature or not name.startswith("propagation"))
    data = model._to_batch(X, y, np.ones(len(X)), dtype=np.float32)
    generator = torch.Generator().manual_seed(0)
    return lambda: train(member, data, None, settings, generator), n_steps


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
    return gpytorch_loop(model, objective, X, y, n_steps)


def gpytorch_svgp(X, y, n_steps, n_inducing):
    """The same of GPyTorch's documented sparse variational GP."""

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self):
            points = torch.from_numpy(X[:n_inducing]).clone()
            q = CholeskyVariationalDistribution(n_inducing)
            super().__init__(VariationalStrategy(self, points, q, learn_inducing_locations=True))
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.mean_module, self.covar_module = ZeroMean(), ScaleKernel(MaternKernel(2.5, ard_num_dims=N_FEATURES))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = SVGP()
    return gpytorch_loop(model, VariationalELBO(model.likelihood, model, len(X)), X, y, n_steps)


def gpytorch_loop(model, objective, X, y, n_steps):
    """A function that makes ``n_steps`` steps of a model of GPyTorch, and their number."""
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

    return run, n_steps


def step_competitors(*, quick):
    """The runs of all models, and how many steps each makes."""
    params = {"hidden_dims": HIDDEN_DIMS, "n_inducing": N_INDUCING, "kernel": "matern52"}
    dspp = {"propagation": "quadrature", "objective": "predictive", "n_samples": N_POINTS}
    n_steps = 3 if quick else 10
    X, y = make_rows(n_steps * BATCH_SIZE)
    full = {"covariance": "full"}
    return {
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
    return runs | {"1 layer, 500 inducing points": our_steps(X, y, 1, hidden_dims=(), n_inducing=500)}


def orthogonal_competitors(*, quick):
    """The same of ``orthogonal``."""
    batch, n_steps, sizes = (64, 1, (32,)) if quick else (1024, 3, (128, 256, 512, 1024))
    X, y = make_rows(batch * n_steps)
    runs = {}
    for size in sizes:
        for name, points in ((f"SOLVE {size} + {size}", (size, size)), (f"SVGP {2 * size}", (2 * size, 0))):
            points = dict(zip(("n_inducing", "n_orthogonal"), points, strict=True))
            runs[name] = our_steps(X, y, n_steps, SOLVEGPRegressor, method="svi", **points)
    for size in (64,) if quick else (512, 1024):
        runs[f"GPyTorch SVGP {size}"] = gpytorch_svgp(X, y, n_steps, size)
    for n_batches in (2, 4) if quick else (10, 100, 1000):
        points = {"n_inducing": sizes[0], "n_orthogonal": sizes[0], "method": "svi"}
        name = f"SOLVE {sizes[0]} + {sizes[0]}, {n_batches * batch:,} rows"
        runs[name] = our_steps(*make_rows(n_batches * batch), n_batches, SOLVEGPRegressor, **points)
    return runs


def predict_competitors(*, quick):
    """The same of ``predict``."""
    X, y = make_rows(1000 if quick else 100_000)
    model = AVDGPRegressor(n_samples=32, n_estimators=1, max_iter=1, random_state=0).fit(X[:1000], y[:1000])
    dist = model.predict_dist(X)
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])[:, None]
    return {
        "predict, return_std": (lambda: model.predict(X, return_std=True), 1),
        "predict_dist": (lambda: model.predict_dist(X), 1),
        "ppf of 5 quantiles": (lambda: dist.ppf(levels), 1),
        "crps": (lambda: dist.crps(y), 1),
        "log_score": (lambda: dist.log_score(y), 1),
    }


WORK = {
    "step": (step_competitors, ("GPyTorch DeepGP", "GPyTorch DSPP")),
    "depth": (depth_competitors, ("1 layer",)),
    "orthogonal": (orthogonal_competitors, ("SVGP 1024", "SVGP 2048", "GPyTorch SVGP 1024")),
    "predict": (predict_competitors, ()),
}


def interleaved(runs, repeats):
    """Milliseconds a step, (competitor, repeat), all taking turns; the first turn only warms up."""
    for repeat in range(repeats + 1):
        for name, (run, n_steps) in runs.items():
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
    runs = make(quick=args.quick)
    times = {name: [] for name in runs}
    with args.output.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(KEYS)
        for name, repeat, milliseconds in interleaved(runs, args.repeats):
            times[name].append(milliseconds)
            table.writerow((args.work, name, repeat, milliseconds))
    medians = {name: statistics.median(values) for name, values in times.items()}
    width, peers = max(map(len, runs)), [peer for peer in peers if peer in runs]
    unit = "ms a call" if args.work == "predict" else "ms a step"
    print(f"{args.threads} threads\n{'':<{width}}{unit:>12}" + "".join(f"{'× ' + peer:>22}" for peer in peers))
    for name, median in medians.items():
        ratios = (f"{median / medians[peer]:>22.3f}" for peer in peers)
        print(f"{name:<{width}}{median:>12.2f}" + "".join(ratios))
    print(f"\nSaved to {args.output}.")


if __name__ == "__main__":
    main()
