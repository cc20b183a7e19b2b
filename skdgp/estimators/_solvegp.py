"""Sparse Gaussian processes with orthogonally decomposed inducing variables."""

import math
import os
from dataclasses import replace
from numbers import Integral, Real
from typing import ClassVar, cast

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.kernels import PROFILES, StationaryKernel
from ..gp.layers import GlobalLayer, OrthogonalLayer
from ..gp.likelihoods import Likelihood
from ..gp.means import ZeroMean
from ..inference.collapsed import CHUNK_NUMBERS, train_collapsed
from ..inference.propagation import make_propagation
from ..inference.steps import Batch, Settings
from ..inference.training import History
from ._auto import Auto
from ._base import BaseDeepGP
from ._classification import DeepGPClassifier
from ._inducing import cluster_centres, make_global_layer, warn_of_few_rows
from ._regression import DeepGPRegressor

#: Inducing points of either set.
AUTO_INDUCING = 256

AUTO = Auto(
    steps=(1000, 2000), epochs=(20, 400), member_rows=20_000, max_members=5, batch_sizes=(16, 250), large_batch=1024
)

#: Most rows that "auto" collapses, and the iterations that "auto" then stands for.
COLLAPSED_ROWS, COLLAPSED_ITERATIONS = 2000, 200

#: Square matrices over all inducing points that a collapsed fit holds at a time, gradients included, and
#: whitened covariances of a chunk of rows.
COLLAPSED_MATRICES, COLLAPSED_CHUNKS = 25, 8

#: What a collapsed fit takes for granted.
COLLAPSED_NEEDS = {
    "covariance": "full",
    "orthogonal_covariance": "free",
    "whiten": True,
    "objective": "elbo",
    "beta": "auto",
}

#: What "auto" is for the weight of the penalty: the bound itself, and less for regression by minibatches, where it
#: gained 0.01 to 0.1 nats per row on held-out rows of kin8nm, power-plant and protein.
BETA, MINIBATCH_BETA = 1.0, 0.1


class BaseSOLVEGP(BaseDeepGP):
    """Which layer an orthogonally decomposed sparse GP has."""

    _structural_parameters: ClassVar[tuple[str, ...]] = (
        *BaseDeepGP._structural_parameters,
        "n_inducing",
        "n_orthogonal",
        "orthogonal_covariance",
        "kernel",
        "ard",
        "covariance",
        "whiten",
    )

    _parameter_constraints: ClassVar[dict] = {
        **BaseDeepGP._parameter_constraints,
        "beta": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "n_inducing": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_orthogonal": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "orthogonal_covariance": [StrOptions({"free", "prior"})],
        "kernel": [StrOptions(set(PROFILES))],
        "ard": ["boolean"],
        "covariance": [StrOptions({"diag", "full"})],
        "whiten": ["boolean"],
    }

    def __init__(
        self,
        n_inducing="auto",
        n_orthogonal="auto",
        *,
        orthogonal_covariance="free",
        objective="elbo",
        kernel="matern52",
        ard=True,
        covariance="full",
        whiten=True,
        n_estimators=1,
        beta="auto",
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.06,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=1000,
        tol=0.0,
        normalize_X=True,
        device="auto",
        dtype="auto",
        cuda_graphs=False,
        warm_start=False,
        random_state=None,
        verbose=0,
    ):
        self.n_inducing = n_inducing
        self.n_orthogonal = n_orthogonal
        self.orthogonal_covariance = orthogonal_covariance
        self.objective = objective
        self.kernel = kernel
        self.ard = ard
        self.covariance = covariance
        self.whiten = whiten
        self.n_estimators = n_estimators
        self.beta = beta
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.normalize_X = normalize_X
        self.device = device
        self.dtype = dtype
        self.cuda_graphs = cuda_graphs
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @property
    def _auto(self) -> Auto:
        return AUTO

    @property
    def inducing_points_(self):
        """Inducing points of f∥ (n_estimators, M, Q)."""
        return np.stack([layer.Z.cpu().numpy() for layer in self._layers()])

    @property
    def orthogonal_points_(self):
        """Inducing points of what those leave over (n_estimators, M, Q); M may be 0."""
        points = [layer.O if isinstance(layer, OrthogonalLayer) else layer.Z[:0] for layer in self._layers()]
        return np.stack([each.cpu().numpy() for each in points])

    @property
    def _beta(self) -> float:
        return BETA if self.beta == "auto" else self.beta

    def _layers(self) -> list[GlobalLayer]:
        """The members' layers."""
        return [cast(DeepGP, member).layers[0] for member in self.module_]

    def _n_points(self) -> dict[str, int]:
        """Inducing points asked for, by parameter."""
        numbers = {"n_inducing": self.n_inducing, "n_orthogonal": self.n_orthogonal}
        return {name: AUTO_INDUCING if number == "auto" else number for name, number in numbers.items()}

    def _make_model(self, X: Tensor, likelihood: Likelihood, generator: torch.Generator) -> DeepGP:
        asked = self._n_points()
        points = cluster_centres(X, sum(asked.values()), generator)
        if "auto" not in (self.n_inducing, self.n_orthogonal):
            warn_of_few_rows(asked, len(points))
        # Where rows are few both sets get their share of them.
        n_inducing = max(1, round(asked["n_inducing"] * min(1.0, len(points) / sum(asked.values()))))
        layer = make_global_layer(
            StationaryKernel(self.kernel, X.shape[1], ard=self.ard),
            ZeroMean(likelihood.n_outputs),
            points,
            torch.zeros(likelihood.n_outputs, n_inducing),
            covariance=self.covariance,
            orthogonal_covariance=self.orthogonal_covariance,
            whiten=self.whiten,
        )
        return DeepGP([layer], make_propagation("monte_carlo", (), 1, generator), likelihood)


def free_memory() -> float:
    """Bytes of memory that no process uses; infinity where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS not these names
        return math.inf


class SOLVEGPRegressor(DeepGPRegressor, BaseSOLVEGP):
    """Sparse Gaussian process regression with orthogonally decomposed inducing variables.

    A Gaussian process whose inducing points come in two sets [1]_: the first summarises the function, the
    second, orthogonal to it, what the first leaves over. A step costs somewhat less than with one set of as many
    points, for posteriors have half the size, and predicts as well.

    Parameters
    ----------
    n_inducing, n_orthogonal : "auto" or int, default="auto"
        Inducing points of f∥, and of what those leave over; "auto" is 256 of each; more follow more complicated
        functions, at a cost that grows with their square and in the end their cube. ``n_orthogonal=0`` is
        a sparse variational GP (SVGP). Together never more than there are distinct rows.
    method : {"auto", "svi", "collapsed"}, default="auto"
        How it learns: "svi" by minibatches and Adam; "collapsed" with all rows, posteriors at their
        optimum in closed form and everything else by L-BFGS, in float64. "auto" is "collapsed" up to 2000 rows,
        unless rows are held out or another parameter speaks against it.
    orthogonal_covariance : {"free", "prior"}, default="free"
        Whether the posterior covariance of the second set is learnt, as ``covariance`` says, or stays the
        prior's (ODVGP).
    objective : {"elbo", "predictive"}, default="elbo"
        What minibatch training maximises: the evidence lower bound, or the log predictive density less
        the same penalty.
    kernel : {"matern52", "matern32", "matern12", "rbf"}, default="matern52"
        Covariance function, which all outputs share.
    ard : bool, default=True
        Whether every feature has its own lengthscale.
    covariance : {"diag", "full"}, default="full"
        Posterior covariance of inducing variables.
    whiten : bool, default=True
        Whether posteriors are of inducing variables relative to the Cholesky factors of their priors.
    n_estimators : "auto" or int, default=1
        Members of the ensemble; "auto" is 5 for up to 4000 rows, and falls to 1 above 10000.
    beta : "auto" or float, default="auto"
        Weight of the Kullback-Leibler penalty on inducing variables; 1 is the bound. "auto" is 1 for a collapsed fit,
        and 0.1 for minibatches, which lets many inducing points learn more of many rows.
    max_iter : "auto" or int, default="auto"
        Passes over the data for each member, or iterations of L-BFGS. "auto" takes about 1000 steps, 2000 from
        4000 rows on, in 20 to 400 passes, or 200 iterations.
    batch_size : "auto" or int, default="auto"
        Rows of a minibatch; "auto" is a quarter of the rows, within 16 and 250, or 1024 from 4000 rows
        on. Minibatches have equal sizes, up to this one.
    learning_rate : float, default=0.06
        Peak learning rate of Adam; the rate climbs to it in the first quarter of training and falls
        to nothing along a cosine.
    early_stopping : bool, default=False
        Whether every member holds out a part of the rows and keeps the
        parameters of the epoch with the best log predictive density there, and sets its noise variance by them.
    validation_fraction : float, default=0.1
        Share of the rows that a member then holds out.
    n_iter_no_change : int, default=1000
        Epochs without improvement after which a member stops.
    tol : float, default=0.0
        Improvement of the held-out log density that counts.
    normalize_X, normalize_y : bool, default=True
        Whether to standardise features and targets inside. Results are in the user's units anyway.
    device : str, default="auto"
        torch device such as "cpu" or "cuda:0"; "auto" prefers CUDA.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision. "auto" trains in float32, which is faster, and then predicts in that of ``X`` where
        it is a float; the others do both in theirs. Covariances of inducing variables are factorised
        in float64 anyway, and a collapsed fit is all in float64.
    cuda_graphs : bool, default=False
        Whether to record a step of minibatch training on a CUDA device and replay it, at one launch for all its
        operations. No effect on other devices.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last fit's parameters, keeping its scaling of the data.
    random_state : int, RandomState instance or None, default=None
        Source of initial values, held-out rows and minibatches.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP`` of one layer.
    n_iter_ : int
        Epochs, or iterations, of the member that ran longest.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row after each, mean over members still training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Held-out log density per row, mean over members; empty without held-out rows.
    best_iter_ : list of int
        For every member the epoch, counted from 1, whose parameters it has.
    lower_bound_ : float
        Evidence lower bound (with ``beta=1``) of the log density of the training targets, summed over rows; mean
        over members.
    length_scales_ : list of one ndarray of shape (n_estimators, 1, Q or 1)
        Lengthscales, in units of the standardised features.
    inducing_points_, orthogonal_points_ : ndarray of shape (n_estimators, M, Q)
        Inducing points of both sets, in the same units.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Variance of the observation noise in the user's units, mean over members.
    method_ : str
        "svi" or "collapsed", whichever the fit took.
    device_ : torch.device
        Where the members are.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where ``X`` had string names.

    Warns
    -----
    UserWarning
        If numbers of inducing points are given that are more than the distinct rows.

    See Also
    --------
    DSDGPRegressor : Deep, and with ``n_orthogonal`` of the same kind.
    sklearn.gaussian_process.GaussianProcessRegressor : Exact, for up to a few thousand rows.

    References
    ----------
    .. [1] J. Shi, M. Titsias and A. Mnih, "Sparse Orthogonal Variational Inference for Gaussian
       Processes", AISTATS 2020.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skdgp import SOLVEGPRegressor
    >>> X, y = make_friedman1(n_samples=200, noise=1.0, random_state=0)
    >>> model = SOLVEGPRegressor(20, 20, max_iter=50, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    method_: str

    _structural_parameters: ClassVar[tuple[str, ...]] = (*BaseSOLVEGP._structural_parameters, "normalize_y")
    _parameter_constraints: ClassVar[dict] = {
        **BaseSOLVEGP._parameter_constraints,
        "method": [StrOptions({"auto", "svi", "collapsed"})],
        "normalize_y": ["boolean"],
    }

    def __init__(
        self,
        n_inducing="auto",
        n_orthogonal="auto",
        *,
        method="auto",
        orthogonal_covariance="free",
        objective="elbo",
        kernel="matern52",
        ard=True,
        covariance="full",
        whiten=True,
        n_estimators=1,
        beta="auto",
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.06,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=1000,
        tol=0.0,
        normalize_X=True,
        normalize_y=True,
        device="auto",
        dtype="auto",
        cuda_graphs=False,
        warm_start=False,
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            n_inducing,
            n_orthogonal,
            orthogonal_covariance=orthogonal_covariance,
            objective=objective,
            kernel=kernel,
            ard=ard,
            covariance=covariance,
            whiten=whiten,
            n_estimators=n_estimators,
            beta=beta,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            normalize_X=normalize_X,
            device=device,
            dtype=dtype,
            cuda_graphs=cuda_graphs,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
        )
        self.method = method
        self.normalize_y = normalize_y

    def _fit_members(self, data: Batch, given: Batch | None, *others) -> None:
        self.method_ = self._choose_method(len(data), held_out=self.early_stopping or given is not None)
        super()._fit_members(data, given, *others)

    def _learn_chunk(self, *chunk) -> None:
        if self.method == "collapsed":
            raise ValueError("method='collapsed' needs all rows at once, got a chunk of them: set method='svi'.")
        self.method_ = "svi"
        super()._learn_chunk(*chunk)

    @property
    def _beta(self) -> float:
        return MINIBATCH_BETA if self.beta == "auto" and self.method_ == "svi" else super()._beta

    def _choose_method(self, n_rows: int, *, held_out: bool) -> str:
        """The method, with "auto" resolved; ValueError if it cannot be what was asked for."""
        asked = {name: getattr(self, name) for name in COLLAPSED_NEEDS}
        asked["beta"] = "auto" if asked["beta"] == BETA else asked["beta"]
        against = {name: value for name, value in asked.items() if value != COLLAPSED_NEEDS[name]}
        if self.method == "auto":
            return "svi" if against or held_out or n_rows > COLLAPSED_ROWS else "collapsed"
        if self.method == "collapsed":
            for name, value in against.items():
                raise ValueError(
                    f"method='collapsed' needs {name}={COLLAPSED_NEEDS[name]!r}, got {value!r}: change it, or set "
                    "method='svi'."
                )
            n_points = min(n_rows, sum(self._n_points().values()))
            needed, free = 8 * (COLLAPSED_MATRICES * n_points**2 + COLLAPSED_CHUNKS * CHUNK_NUMBERS), free_memory()
            if needed > free:
                raise ValueError(
                    f"A collapsed fit with {n_points} inducing points needs about {needed / 2**30:.1f} GiB, and "
                    f"{free / 2**30:.1f} GiB are free: set method='svi', or use fewer inducing points."
                )
        return self.method

    def _precision(self, data: Batch) -> torch.dtype:
        return torch.float64 if self.method_ == "collapsed" else super()._precision(data)

    def _settings(self, n_rows: int, n_chunk: int | None = None) -> Settings:
        settings = super()._settings(n_rows, n_chunk)
        if self.method_ == "collapsed" and self.max_iter == "auto":
            return replace(settings, max_iter=COLLAPSED_ITERATIONS)
        return settings

    def _train(self, model: DeepGP, rows: Batch, judge: Batch | None, settings: Settings, *others) -> History:
        if self.method_ == "svi":
            return super()._train(model, rows, judge, settings, *others)
        _, on_epoch = others
        return train_collapsed(model, rows, settings.max_iter, on_epoch)


class SOLVEGPClassifier(DeepGPClassifier, BaseSOLVEGP):
    """Sparse Gaussian process classification with orthogonally decomposed inducing variables.

    The process of :class:`SOLVEGPRegressor` [1]_ with the probit likelihood for two classes, and with the
    robust max likelihood, one function for each class, for more. It learns by minibatches.

    Parameters
    ----------
    n_inducing, n_orthogonal : "auto" or int, default="auto"
        Inducing points of f∥, and of what those leave over; "auto" is 256 of each; more follow more complicated
        functions, at a cost that grows with their square and in the end their cube. ``n_orthogonal=0`` is
        a sparse variational GP (SVGP). Together never more than there are distinct rows.
    orthogonal_covariance : {"free", "prior"}, default="free"
        Whether the posterior covariance of the second set is learnt, as ``covariance`` says, or stays the
        prior's (ODVGP).
    objective : {"elbo", "predictive"}, default="elbo"
        What minibatch training maximises: the evidence lower bound, or the log predictive density less
        the same penalty.
    kernel : {"matern52", "matern32", "matern12", "rbf"}, default="matern52"
        Covariance function, which all outputs share.
    ard : bool, default=True
        Whether every feature has its own lengthscale.
    covariance : {"diag", "full"}, default="full"
        Posterior covariance of inducing variables.
    whiten : bool, default=True
        Whether posteriors are of inducing variables relative to the Cholesky factors of their priors.
    n_estimators : "auto" or int, default=1
        Members of the ensemble; "auto" is 5 for up to 4000 rows, and falls to 1 above 10000.
    beta : "auto" or float, default="auto"
        Weight of the Kullback-Leibler penalty on inducing variables; 1 is the bound, and what "auto" stands for.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes' rows, times ``sample_weight``; "balanced" makes classes weigh the same.
    max_iter : "auto" or int, default="auto"
        Passes over the data for each member. "auto" takes about 1000 steps, 2000 from
        4000 rows on, in 20 to 400 passes.
    batch_size : "auto" or int, default="auto"
        Rows of a minibatch; "auto" is a quarter of the rows, within 16 and 250, or 1024 from 4000 rows
        on. Minibatches have equal sizes, up to this one.
    learning_rate : float, default=0.06
        Peak learning rate of Adam; the rate climbs to it in the first quarter of training and falls
        to nothing along a cosine.
    early_stopping : bool, default=False
        Whether every member holds out a part of the rows with every class in its share,
        and keeps the parameters of the epoch with the best log probability of the labels there.
    validation_fraction : float, default=0.1
        Share of the rows that a member then holds out.
    n_iter_no_change : int, default=1000
        Epochs without improvement after which a member stops.
    tol : float, default=0.0
        Improvement of the held-out log probability that counts.
    normalize_X : bool, default=True
        Whether to standardise features inside.
    device : str, default="auto"
        torch device such as "cpu" or "cuda:0"; "auto" prefers CUDA.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision. "auto" trains in float32, which is faster, and then predicts in that of ``X`` where
        it is a float; the others do both in theirs. Covariances of inducing variables are factorised
        in float64 anyway.
    cuda_graphs : bool, default=False
        Whether to record a step of minibatch training on a CUDA device and replay it, at one launch for all its
        operations. No effect on other devices.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last fit's parameters, keeping its scaling of the data and
        its classes.
    random_state : int, RandomState instance or None, default=None
        Source of initial values, held-out rows and minibatches.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP`` of one layer.
    n_iter_ : int
        Epochs of the member that ran longest.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row after each, mean over members still training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Held-out log probability per row, mean over members; empty without held-out rows.
    best_iter_ : list of int
        For every member the epoch, counted from 1, whose parameters it has.
    lower_bound_ : float
        Evidence lower bound (with ``beta=1``) of the log probability of the training labels, summed over rows; mean
        over members.
    length_scales_ : list of one ndarray of shape (n_estimators, 1, Q or 1)
        Lengthscales, in units of the standardised features.
    inducing_points_, orthogonal_points_ : ndarray of shape (n_estimators, M, Q)
        Inducing points of both sets, in the same units.
    device_ : torch.device
        Where the members are.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where ``X`` had string names.

    Warns
    -----
    UserWarning
        If numbers of inducing points are given that are more than the distinct rows.

    See Also
    --------
    DSDGPClassifier : Deep, and with ``n_orthogonal`` of the same kind.
    sklearn.gaussian_process.GaussianProcessClassifier : For up to a few thousand rows.

    References
    ----------
    .. [1] J. Shi, M. Titsias and A. Mnih, "Sparse Orthogonal Variational Inference for Gaussian
       Processes", AISTATS 2020.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skdgp import SOLVEGPClassifier
    >>> X, y = make_moons(n_samples=200, noise=0.2, random_state=0)
    >>> model = SOLVEGPClassifier(20, 20, max_iter=50, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseSOLVEGP._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        n_inducing="auto",
        n_orthogonal="auto",
        *,
        orthogonal_covariance="free",
        objective="elbo",
        kernel="matern52",
        ard=True,
        covariance="full",
        whiten=True,
        n_estimators=1,
        beta="auto",
        class_weight=None,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.06,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=1000,
        tol=0.0,
        normalize_X=True,
        device="auto",
        dtype="auto",
        cuda_graphs=False,
        warm_start=False,
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            n_inducing,
            n_orthogonal,
            orthogonal_covariance=orthogonal_covariance,
            objective=objective,
            kernel=kernel,
            ard=ard,
            covariance=covariance,
            whiten=whiten,
            n_estimators=n_estimators,
            beta=beta,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            normalize_X=normalize_X,
            device=device,
            dtype=dtype,
            cuda_graphs=cuda_graphs,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
