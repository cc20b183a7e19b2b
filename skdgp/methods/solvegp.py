"""Sparse Gaussian processes with orthogonally decomposed inducing variables."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..gp.coregional import mixed
from ..gp.deep_gp import DeepGP
from ..gp.features import Features
from ..gp.images import ConvolutionalSum
from ..gp.kernels import Kernel
from ..gp.likelihoods import Likelihood
from ..gp.means import ZeroMean
from ..gp.propagation import make_propagation
from ..inference import collapsed, solved
from ..inference.plan import Plan
from ..tables import Table
from .budget import Budget, n_members, plan_minibatches
from .inducing import (
    AT_POINTS,
    COVARIANCES,
    FEATURES,
    Auto,
    cluster_centres,
    make_features,
    make_global_layer,
    size_of_first,
    warn_of_few_rows,
)
from .kernels import KernelLike, layer_kernel
from .options import computing, modelling, parameter, training

#: Number of inducing points in either set. If the noise is not Gaussian and there are fewer rows than ``FEW_ROWS``, it
#: is ``PER_FEATURE`` for each feature, but at least ``FEWEST`` and at most ``INDUCING``.
INDUCING = 256

#: Fewer rows than these are few.
FEW_ROWS = 2000

#: Number of inducing points for each feature then.
PER_FEATURE = 16

#: Smallest number of them.
FEWEST = 64

#: Number of functions with full posteriors of their own, such as those of classes, up to which this rule holds. The
#: time of a step is in proportion to their number and to the square of the number of inducing points. With more
#: functions there are fewer points, so that the time stays the same, but at least ``FEWEST``.
MANY_FUNCTIONS = 10

BUDGET = Budget(
    steps=(1000, 2000), epochs=(20, 400), member_rows=20_000, max_members=5, batch_sizes=(16, 250), large_batch=1024
)

#: The same if posteriors are computed in closed form every few epochs.
SOLVED = BUDGET._replace(steps=(500, 700))

#: The same if a base and neighbours correct it. More steps would make nothing better then: base and members start where
#: the evidence is highest, and neighbours add what they miss.
SOLVED_IF_CORRECTED = BUDGET._replace(steps=(100, 100), epochs=(12, 400))

#: Largest number of rows for which posteriors are computed so often. With more rows this would take longer than the
#: epochs in between.
SOLVED_ROWS = 100_000

#: Largest number of rows for which "auto" is a collapsed fit.
COLLAPSED_ROWS = 2000

#: Iterations that "auto" then stands for, and if a base and neighbours correct it.
COLLAPSED_ITERATIONS, COLLAPSED_IF_CORRECTED = 40, 12

#: What posteriors in closed form need. A collapsed fit also needs a penalty of weight ``BETA``.
CLOSED_NEEDS: dict[str, tuple] = {
    "covariance": ("full",),
    "objective": ("auto", "elbo"),
    "likelihood": ("gaussian", "lognormal"),
    "n_latent_outputs": (None,),
}

#: Value of "auto" for the weight of the penalty: that of the bound itself.
BETA = 1.0

#: Regression by minibatches takes less, which gained 0.01 to 0.1 nats per row on held-out rows of kin8nm, power-plant
#: and protein.
MINIBATCH_BETA = 0.1


@dataclass(eq=False, repr=False)
class SOLVEGPParameters:
    """Parameters of :class:`SOLVEGP`, which :class:`skdgp.SOLVEGPClassifier` describes."""

    n_inducing: int | Auto = parameter(modelling.N_INDUCING_SOLVEGP, "auto")
    n_orthogonal: int | Auto = parameter(modelling.N_ORTHOGONAL_SOLVEGP, "auto")
    _: KW_ONLY
    inducing: str = parameter(modelling.INDUCING_SOLVEGP, "points")
    kernel: KernelLike = parameter(modelling.KERNEL, "matern52")
    ard: bool = parameter(modelling.ARD, True)
    covariance: str = parameter(modelling.COVARIANCE, "full")
    objective: str = parameter(training.OBJECTIVE, "auto")
    n_estimators: int | Auto = parameter(training.N_ESTIMATORS, 1)
    beta: float | Auto = parameter(training.BETA_SOLVEGP, "auto")
    max_iter: int | Auto = parameter(training.MAX_ITER_SOLVEGP, "auto")
    batch_size: int | Auto = parameter(training.BATCH_SIZE_SOLVEGP, "auto")
    learning_rate: float = parameter(training.LEARNING_RATE, 0.06)
    early_stopping: bool = parameter(training.EARLY_STOPPING, False)
    n_iter_no_change: int = parameter(training.N_ITER_NO_CHANGE, 1000)
    dtype: str = parameter(computing.DTYPE, "auto")
    cuda_graphs: bool | str = parameter(computing.CUDA_GRAPHS, "auto")


class SOLVEGP(SOLVEGPParameters):
    """GPs of one layer, with two sets of inducing variables that all rows share."""

    has_points = True

    #: Number of functions that outputs share. A method whose outputs may share functions makes it a parameter.
    n_latent_outputs: ClassVar[int | None] = None

    @property
    def feature_kinds(self) -> tuple[str, ...]:
        """Kinds of the inducing features of both sets."""
        first, _, second = self.inducing.partition("+")
        return first, second or "points"

    def n_members(self, n_rows: int | None) -> int:
        """Number of members of an ensemble for so many rows, or for an unknown number of rows."""
        return n_members(self, BUDGET, n_rows)

    def plan(
        self,
        n_rows: int,
        n_chunk: int | None = None,
        *,
        held_out: bool = False,
        corrected: bool = False,
        beta: float = BETA,
    ) -> Plan:
        """How a member is trained by minibatches, as in other methods; ``beta`` is the value of "auto"."""
        return plan_minibatches(self, BUDGET, n_rows, n_chunk, beta if self.beta == "auto" else self.beta)

    def widths(self, n_inputs: int) -> tuple[int, ...]:
        """Widths of the hidden layers, of which there are none."""
        return ()

    def n_points(self, auto: int = INDUCING) -> dict[str, int]:
        """Number of inducing points that the user has asked for, by parameter."""
        others = auto if self.feature_kinds[0] == "points" else 0
        numbers = {"n_inducing": (self.n_inducing, auto), "n_orthogonal": (self.n_orthogonal, others)}
        return {name: int(default if number == "auto" else number) for name, (number, default) in numbers.items()}

    def build(
        self, X: Tensor, likelihood: Likelihood, generator: torch.Generator, table: Table | None = None
    ) -> DeepGP:
        """Build an untrained model; arguments are those of :meth:`.AVDGP.build`.

        It warns if there are fewer distinct rows than the inducing points that the user asked for.
        """
        auto = INDUCING if likelihood.conjugate else _few_enough(len(X), X.shape[1], likelihood.n_outputs)
        asked = self.n_points(auto)
        for name, kind in self._kinds().items():
            if getattr(self, name) == "auto":
                asked[name] = FEATURES[kind].instead_of(asked[name], X.shape[1]) if asked[name] else 0
        n_outputs = self.n_latent_outputs or likelihood.n_outputs
        shared = likelihood.alike and self.n_latent_outputs is None
        kernel = layer_kernel(self, 0, 1, X.shape[1], 1 if shared else n_outputs, table)
        if self.n_orthogonal == "auto" and isinstance(kernel, ConvolutionalSum):
            asked["n_orthogonal"] = 0
        Z, O = self._features(asked, kernel, X, generator)  # noqa: E741
        layer = make_global_layer(
            kernel,
            ZeroMean(n_outputs),
            Z,
            O,
            X.new_zeros(n_outputs, len(Z)),
            covariance=COVARIANCES[self.covariance],
        )
        layers = [layer] if self.n_latent_outputs is None else mixed([layer], likelihood, n_outputs)
        return DeepGP(layers, make_propagation("monte_carlo", (), 1, generator), likelihood)

    def _kinds(self) -> dict[str, str]:
        """Kind of the inducing features of each set, by the parameter that says how many there are."""
        return dict(zip(("n_inducing", "n_orthogonal"), self.feature_kinds, strict=True))

    def _features(
        self, asked: dict[str, int], kernel: Kernel, X: Tensor, generator: torch.Generator
    ) -> list[Tensor | Features]:
        """Inducing features of both sets.

        If there are too few rows, both sets get their share of them. But a set whose number is "auto" gets what the
        other one leaves.
        """
        located = {name: asked[name] for name, kind in self._kinds().items() if kind in AT_POINTS}
        total = sum(located.values())
        points = cluster_centres(kernel.places(X), total, generator) if total else X[:0]
        auto = [name for name in located if getattr(self, name) == "auto"]
        if len(auto) < len(located):
            fewest = {"n_inducing": 1, "n_orthogonal": 0}
            warn_of_few_rows({name: fewest[name] if name in auto else located[name] for name in located}, len(points))
        first = size_of_first(located, auto, len(points))
        parts = {"n_inducing": points[:first], "n_orthogonal": points[first:]}
        return [
            make_features(kind, kernel, X, parts[name], asked[name], generator) if asked[name] else X[:0]
            for name, kind in self._kinds().items()
        ]


@dataclass(eq=False, repr=False)
class SOLVEGPRegressionParameters(SOLVEGPParameters):
    """Parameters of :class:`SOLVEGPRegression`, which :class:`skdgp.SOLVEGPRegressor` describes."""

    _: KW_ONLY
    method: str = parameter(training.METHOD, "auto")
    n_restarts_optimizer: int = parameter(training.N_RESTARTS_OPTIMIZER, 0)
    n_latent_outputs: int | None = parameter(modelling.N_LATENT_OUTPUTS, None)


@dataclass(eq=False, repr=False)
class SOLVEGPRegression(SOLVEGPRegressionParameters, SOLVEGP):  # type: ignore[misc]
    """The same for numbers, whose posteriors may have a closed form."""

    _: KW_ONLY
    likelihood: Any = parameter(modelling.LIKELIHOOD, "gaussian")

    def plan(
        self,
        n_rows: int,
        n_chunk: int | None = None,
        *,
        held_out: bool = False,
        corrected: bool = False,
        beta: float = BETA,
    ) -> Plan:
        """How a member is trained: collapsed, or by minibatches of ``n_rows``, or of one chunk of these at a time."""
        gaussian = self.likelihood in CLOSED_NEEDS["likelihood"] and self.n_latent_outputs is None
        beta = MINIBATCH_BETA if gaussian else beta
        if n_chunk is None and self._chosen(n_rows, held_out=held_out) == "collapsed":
            return self._plan_collapsed(n_rows, corrected=corrected)
        if n_chunk is None:
            plan = self._plan_solved(n_rows, beta, corrected=corrected)
        else:
            plan = super().plan(n_rows, n_chunk, beta=beta)
        return plan._replace(hold_out=not gaussian)

    def _plan_solved(self, n_rows: int, beta: float, *, corrected: bool) -> Plan:
        """How a member is trained by minibatches. If possible, its posteriors are in closed form every few epochs."""
        solvable = n_rows <= SOLVED_ROWS and self._has_closed_form()
        budget = (SOLVED_IF_CORRECTED if corrected else SOLVED) if solvable else BUDGET
        plan = plan_minibatches(self, budget, n_rows, beta=beta if self.beta == "auto" else self.beta)
        if not solvable:
            return plan
        return plan._replace(trainer=solved.train, solve=solved.solve, closed=solved.predict_left_out)

    def _plan_collapsed(self, n_rows: int, *, corrected: bool) -> Plan:
        """How a member is trained in a collapsed fit, where posteriors are always in closed form."""
        settings = plan_minibatches(self, BUDGET, n_rows, beta=BETA).settings
        if self.max_iter == "auto":
            settings = replace(settings, max_iter=COLLAPSED_IF_CORRECTED if corrected else COLLAPSED_ITERATIONS)
        return Plan(
            collapsed.train,
            settings,
            torch.float64,
            "collapsed",
            left_out=collapsed.predict_left_out,
            solve_copy=collapsed.solve_copy,
            closed=collapsed.predict_left_out,
        )

    def _chosen(self, n_rows: int, *, held_out: bool) -> str:
        """The method in place of "auto"; ValueError if there is too little memory for it."""
        if self.method == "auto":
            # Sums over rows are computed once for Fourier features, and not in every iteration.
            many = n_rows > COLLAPSED_ROWS and not (self.inducing == "fourier" and self.n_points()["n_orthogonal"] == 0)
            closed = self._has_closed_form() and self.beta in ("auto", BETA)
            return "svi" if held_out or many or not closed else "collapsed"
        if self.method == "collapsed":
            n_points = min(n_rows, sum(self.n_points().values()))
            needed, free = collapsed.memory_needed(n_points), collapsed.free_memory()
            if needed > free:
                raise ValueError(
                    f"A collapsed fit with {n_points} inducing points needs about {needed / 2**30:.1f} GiB, and "
                    f"{free / 2**30:.1f} GiB are free: set method='svi', or use fewer inducing points."
                )
        return self.method

    def _has_closed_form(self) -> bool:
        """Whether the best posterior has a closed form."""
        return all(getattr(self, name) in needed for name, needed in CLOSED_NEEDS.items())


def _few_enough(n_rows: int, n_features: int, n_functions: int) -> int:
    """The number of inducing points in either set that "auto" stands for, if the noise is not Gaussian."""
    most = INDUCING if n_rows >= FEW_ROWS else min(INDUCING, PER_FEATURE * n_features)
    return max(FEWEST, int(most * min(1.0, MANY_FUNCTIONS / n_functions) ** 0.5))
