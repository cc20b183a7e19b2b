"""Deep Gaussian processes with global inducing variables."""

from numbers import Integral
from typing import ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from ..gp.deep_gp import DeepGP
from ..gp.kernels import PROFILES, StationaryKernel
from ..gp.layers import GlobalLayer
from ..gp.likelihoods import Likelihood
from ..gp.means import ZeroMean, make_mean
from ..inference.propagation import make_propagation
from ._auto import Auto
from ._base import BaseDeepGP
from ._classification import DeepGPClassifier
from ._ensemble import INITIALISATION_ROWS
from ._inducing import (
    HIDDEN_DIMS,
    N_INDUCING,
    cluster_centres,
    inducing_per_layer,
    make_global_layer,
    positive_ints,
    warn_of_few_rows,
)
from ._regression import DeepGPRegressor

#: Inducing points of every layer, and as many as large data sets are worth.
AUTO_INDUCING, MANY_INDUCING = 128, 256

#: Chosen on held-out rows. With quadrature every row is as many inputs of a layer as there are points, so
#: that smaller minibatches keep the time and make more steps.
AUTO = {
    "monte_carlo": Auto(
        steps=(1000, 2200), epochs=(60, 400), member_rows=20_000, max_members=5, batch_sizes=(16, 250), large_batch=500
    ),
    "quadrature": Auto(
        steps=(1200, 1200), epochs=(20, 300), member_rows=20_000, max_members=5, batch_sizes=(16, 100), large_batch=250
    ),
}

#: Hidden layers that "auto" stands for, and the width they do not exceed (DS-DGP, Sec. 4).
AUTO_HIDDEN_LAYERS, MAX_AUTO_WIDTH = 2, 30

#: Covariances of hidden layers start at this share of the prior's, and white noise at this variance, so
#: that the model starts all but deterministic (DS-DGP, supplement).
HIDDEN_SHARE, HIDDEN_NOISE = 1e-5, 1e-5


class BaseDSDGP(BaseDeepGP):
    """Which layers a doubly stochastic deep GP has."""

    _structural_parameters: ClassVar[tuple[str, ...]] = (
        *BaseDeepGP._structural_parameters,
        "hidden_dims",
        "n_inducing",
        "propagation",
        "kernel",
        "ard",
        "share_kernel",
        "mean",
        "covariance",
        "whiten",
        "n_orthogonal",
        "orthogonal_covariance",
        "n_samples",
    )

    _parameter_constraints: ClassVar[dict] = {
        **BaseDeepGP._parameter_constraints,
        "hidden_dims": [*HIDDEN_DIMS, StrOptions({"auto"})],
        "n_inducing": N_INDUCING,
        "propagation": [StrOptions({"monte_carlo", "quadrature"})],
        "kernel": [StrOptions(set(PROFILES))],
        "ard": ["boolean"],
        "share_kernel": ["boolean"],
        "mean": [StrOptions({"zero", "linear", "identity"})],
        "covariance": [StrOptions({"diag", "full"})],
        "whiten": ["boolean"],
        "n_orthogonal": [Interval(Integral, 0, None, closed="left")],
        "orthogonal_covariance": [StrOptions({"free", "prior"})],
        "n_samples": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        hidden_dims="auto",
        n_inducing="auto",
        *,
        propagation="monte_carlo",
        objective="elbo",
        kernel="matern52",
        ard=True,
        share_kernel=True,
        mean="identity",
        covariance="diag",
        whiten=True,
        n_orthogonal=0,
        orthogonal_covariance="free",
        n_samples=32,
        n_estimators="auto",
        beta=0.1,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.05,
        early_stopping=True,
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
        self.hidden_dims = hidden_dims
        self.n_inducing = n_inducing
        self.propagation = propagation
        self.objective = objective
        self.kernel = kernel
        self.ard = ard
        self.share_kernel = share_kernel
        self.mean = mean
        self.covariance = covariance
        self.whiten = whiten
        self.n_orthogonal = n_orthogonal
        self.orthogonal_covariance = orthogonal_covariance
        self.n_samples = n_samples
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
        return AUTO[self.propagation]

    @property
    def inducing_points_(self):
        """Inducing points of every layer, in units of its inputs, a list of arrays (n_estimators, M, Q)."""
        layers = zip(*(member.layers for member in self.module_), strict=True)
        return [np.stack([layer.Z.cpu().numpy() for layer in members]) for members in layers]

    def _make_model(self, X: Tensor, likelihood: Likelihood, generator: torch.Generator) -> DeepGP:
        hidden_dims = self._hidden_dims(X.shape[1])
        widths = (*hidden_dims, likelihood.n_outputs)
        auto = MANY_INDUCING if len(X) >= INITIALISATION_ROWS else AUTO_INDUCING
        numbers = inducing_per_layer(self.n_inducing, hidden_dims, (auto, auto))
        layers: list[GlobalLayer] = []
        inputs = X
        for depth, (n_outputs, n_inducing) in enumerate(zip(widths, numbers, strict=True)):
            points = cluster_centres(inputs, n_inducing + self.n_orthogonal, generator)
            if depth == 0 and not isinstance(self.n_inducing, str):
                warn_of_few_rows({"n_inducing": n_inducing, "n_orthogonal": self.n_orthogonal}, len(points))
            hidden = depth < len(hidden_dims)
            layers.append(self._make_layer(inputs, points, n_inducing, n_outputs, generator, hidden=hidden))
            with torch.no_grad():
                inputs = layers[-1](inputs[None], inputs)[0][0]  # as they reach the next layer
        propagation = make_propagation(self.propagation, hidden_dims, self.n_samples, generator)
        return DeepGP(layers, propagation, likelihood)

    def _hidden_dims(self, n_features: int) -> tuple[int, ...]:
        if isinstance(self.hidden_dims, str):
            return AUTO_HIDDEN_LAYERS * (min(MAX_AUTO_WIDTH, n_features),)
        return positive_ints("hidden_dims", self.hidden_dims)

    def _make_layer(
        self,
        inputs: Tensor,
        points: Tensor,
        n_inducing: int,
        n_outputs: int,
        generator: torch.Generator,
        *,
        hidden: bool,
    ) -> GlobalLayer:
        n_kernels = 1 if self.share_kernel else n_outputs
        kernel = StationaryKernel(self.kernel, inputs.shape[1], n_kernels, ard=self.ard)
        mean: nn.Module = make_mean(self.mean, inputs, n_outputs) if hidden else ZeroMean(n_outputs)
        v = torch.zeros(n_outputs, min(n_inducing, len(points)))
        if hidden and self.mean == "zero":
            # The next layer would see a single point, were this one to start at zero: it starts at a
            # function drawn from its prior.
            v.normal_(generator=generator)
        return make_global_layer(
            kernel,
            mean,
            points,
            v,
            covariance=self.covariance,
            orthogonal_covariance=self.orthogonal_covariance,
            whiten=self.whiten,
            scale=HIDDEN_SHARE**0.5 if hidden else 1.0,
            noise=HIDDEN_NOISE if hidden else None,
        )


class DSDGPRegressor(DeepGPRegressor, BaseDSDGP):
    """Deep Gaussian process regression with global inducing variables.

    A chain of sparse Gaussian processes, trained by doubly stochastic variational inference [1]_: every
    layer summarises what it knows in inducing variables that all rows share, and random samples, or
    learnt quadrature points, carry uncertainty from layer to layer. Layers start as the identity, so that
    a deep model begins as a shallow one and departs from it only where that helps. An ensemble of such
    models, each judged by rows that it has not learnt from, predicts as one Gaussian mixture.

    Parameters
    ----------
    hidden_dims : "auto" or sequence of int, default="auto"
        Widths of the hidden GP layers, first to last. "auto" is two layers as wide as ``X``, but at most
        30; ``()`` is a shallow sparse GP (SVGP).
    n_inducing : "auto", int or sequence of int, default="auto"
        Inducing points: one number for all layers or one for each, output layer included. "auto" is
        128, or 256 from 10000 rows on. Never more than there are distinct rows.
    propagation : {"monte_carlo", "quadrature"}, default="monte_carlo"
        How uncertainty travels between layers: by random samples, one for each row in training, or by
        learnt points and weights, without randomness. The latter with ``objective="predictive"`` is the
        deep sigma point process [2]_.
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound, or the log predictive density less the same
        penalty, which can sharpen densities at the cost of means.
    kernel : {"matern52", "matern32", "matern12", "rbf"}, default="matern52"
        Covariance function of every layer.
    ard : bool, default=True
        Whether every input dimension of a layer has its own lengthscale.
    share_kernel : bool, default=True
        Whether the outputs of a layer share one kernel. Otherwise each has its own, at the price of a
        factorisation and cross-covariances for each.
    mean : {"zero", "linear", "identity"}, default="identity"
        Mean functions of the hidden layers: none, learnt linear, or fixed (the identity, or principal
        components where widths differ, of which "linear" starts too). The last layer's mean is zero.
    covariance : {"diag", "full"}, default="diag"
        Posterior covariance of the inducing variables, of which "full" is the paper's. It costs about
        twice the time.
    whiten : bool, default=True
        Whether the posterior is of inducing variables relative to the Cholesky factor of their prior.
    n_orthogonal : int, default=0
        Inducing points of every layer beside those, for what those leave over (SOLVE-GP, Sec. 3).
    orthogonal_covariance : {"free", "prior"}, default="free"
        Whether their posterior covariance is learnt, as ``covariance`` says, or stays the prior's.
    n_samples : int, default=32
        Monte Carlo samples for each row in prediction (in training one is enough), or quadrature points
        in both.
    n_estimators : "auto" or int, default="auto"
        Members of the ensemble. 1 is the model of the paper; "auto" is 5 for up to 4000 rows, and
        falls to 1 above 10000.
    beta : float, default=0.1
        Weight of the Kullback-Leibler penalty on inducing variables. 1 is the paper's bound, which with
        diagonal covariances says more noise than there is.
    max_iter : "auto" or int, default="auto"
        Passes over the data for each member. "auto" takes about 1000 steps, 2200 from 4000 rows
        on, in 60 to 400 passes; with quadrature 1200, in 20 to 300.
    batch_size : "auto" or int, default="auto"
        Rows of a minibatch; "auto" is a quarter of the rows, within 16 and 250, or 500 from 4000 rows
        on; with quadrature within 16 and 100, or 250. Minibatches have equal sizes, up to this one.
    learning_rate : float, default=0.05
        Peak learning rate of Adam; the rate climbs to it in the first quarter of training and falls
        to nothing along a cosine.
    early_stopping : bool, default=True
        Whether every member holds out a part of the rows, keeps the parameters of the epoch with the
        best log predictive density there, and sets its noise variance by them. False leaves the noise as
        training made it: intervals tend to be too wide or too narrow then, which a held-out coverage shows.
    validation_fraction : float, default=0.1
        Share of the rows that a member holds out.
    n_iter_no_change : int, default=1000
        Epochs without improvement after which a member stops. The best epochs come last, when the
        learning rate has fallen: fewer save time and cost accuracy.
    tol : float, default=0.0
        Improvement of the held-out log density that counts.
    normalize_X, normalize_y : bool, default=True
        Whether to standardise features and targets inside. Results are in the user's units anyway.
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
        Whether ``fit`` goes on from the last fit's parameters, keeping its scaling of the data.
    random_state : int, RandomState instance or None, default=None
        Source of initial values, held-out rows, minibatches and samples.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP``.
    n_iter_ : int
        Epochs of the member that ran longest.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row and epoch, mean over members still training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Held-out log predictive density per row and epoch, of standardised targets, mean over members;
        empty without held-out rows.
    best_iter_ : list of int
        For every member the epoch, counted from 1, whose parameters it has.
    lower_bound_ : float
        Evidence lower bound (with ``beta=1``) of the log density of the training targets, in the user's units, summed
        over rows; mean over members.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, Q or 1)
        Lengthscales of every layer, in units of its inputs; those of the first are standardised.
    inducing_points_ : list of ndarray of shape (n_estimators, M, Q)
        Inducing points of every layer, in the same units.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Variance of the observation noise in the user's units, mean over members.
    device_ : torch.device
        Where the members are.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where ``X`` had string names.

    Warns
    -----
    UserWarning
        If ``n_inducing`` is a number beyond that of distinct rows, which is then taken instead.

    See Also
    --------
    AVDGPRegressor : Inducing variables that depend on the row.
    sklearn.gaussian_process.GaussianProcessRegressor : Exact, for up to a few thousand rows.

    References
    ----------
    .. [1] H. Salimbeni and M. P. Deisenroth, "Doubly Stochastic Variational Inference for Deep Gaussian
       Processes", NeurIPS 2017.
    .. [2] M. Jankowiak, G. Pleiss and J. R. Gardner, "Deep Sigma Point Processes", UAI 2020.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skdgp import DSDGPRegressor
    >>> X, y = make_friedman1(n_samples=200, noise=1.0, random_state=0)
    >>> model = DSDGPRegressor(max_iter=30, n_estimators=1, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    _structural_parameters: ClassVar[tuple[str, ...]] = (*BaseDSDGP._structural_parameters, "normalize_y")
    _parameter_constraints: ClassVar[dict] = {**BaseDSDGP._parameter_constraints, "normalize_y": ["boolean"]}

    def __init__(
        self,
        hidden_dims="auto",
        n_inducing="auto",
        *,
        propagation="monte_carlo",
        objective="elbo",
        kernel="matern52",
        ard=True,
        share_kernel=True,
        mean="identity",
        covariance="diag",
        whiten=True,
        n_orthogonal=0,
        orthogonal_covariance="free",
        n_samples=32,
        n_estimators="auto",
        beta=0.1,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.05,
        early_stopping=True,
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
            hidden_dims,
            n_inducing,
            propagation=propagation,
            objective=objective,
            kernel=kernel,
            ard=ard,
            share_kernel=share_kernel,
            mean=mean,
            covariance=covariance,
            whiten=whiten,
            n_orthogonal=n_orthogonal,
            orthogonal_covariance=orthogonal_covariance,
            n_samples=n_samples,
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
        self.normalize_y = normalize_y


class DSDGPClassifier(DeepGPClassifier, BaseDSDGP):
    """Deep Gaussian process classification with global inducing variables.

    The model of :class:`DSDGPRegressor` [1]_ with the probit likelihood for two classes, and with the
    robust max likelihood, one output for each class, for more [3]_. Labels may be of any kind.

    Parameters
    ----------
    hidden_dims : "auto" or sequence of int, default="auto"
        Widths of the hidden GP layers, first to last. "auto" is two layers as wide as ``X``, but at most
        30; ``()`` is a shallow sparse GP (SVGP).
    n_inducing : "auto", int or sequence of int, default="auto"
        Inducing points: one number for all layers or one for each, output layer included. "auto" is
        128, or 256 from 10000 rows on. Never more than there are distinct rows.
    propagation : {"monte_carlo", "quadrature"}, default="monte_carlo"
        How uncertainty travels between layers: by random samples, one for each row in training, or by
        learnt points and weights, without randomness. The latter with ``objective="predictive"`` is the
        deep sigma point process [2]_.
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound, or the log predictive density less the same
        penalty, which can sharpen densities at the cost of means.
    kernel : {"matern52", "matern32", "matern12", "rbf"}, default="matern52"
        Covariance function of every layer.
    ard : bool, default=True
        Whether every input dimension of a layer has its own lengthscale.
    share_kernel : bool, default=True
        Whether the outputs of a layer share one kernel. Otherwise each has its own, at the price of a
        factorisation and cross-covariances for each.
    mean : {"zero", "linear", "identity"}, default="identity"
        Mean functions of the hidden layers: none, learnt linear, or fixed (the identity, or principal
        components where widths differ, of which "linear" starts too). The last layer's mean is zero.
    covariance : {"diag", "full"}, default="diag"
        Posterior covariance of the inducing variables, of which "full" is the paper's. It costs about
        twice the time.
    whiten : bool, default=True
        Whether the posterior is of inducing variables relative to the Cholesky factor of their prior.
    n_orthogonal : int, default=0
        Inducing points of every layer beside those, for what those leave over (SOLVE-GP, Sec. 3).
    orthogonal_covariance : {"free", "prior"}, default="free"
        Whether their posterior covariance is learnt, as ``covariance`` says, or stays the prior's.
    n_samples : int, default=32
        Monte Carlo samples for each row in prediction (in training one is enough), or quadrature points
        in both.
    n_estimators : "auto" or int, default="auto"
        Members of the ensemble. 1 is the model of the paper; "auto" is 5 for up to 4000 rows, and
        falls to 1 above 10000.
    beta : float, default=0.1
        Weight of the Kullback-Leibler penalty on inducing variables. 1 is the paper's bound, which with
        diagonal covariances says more noise than there is.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes' rows, times ``sample_weight``; "balanced" makes classes weigh the same.
    max_iter : "auto" or int, default="auto"
        Passes over the data for each member. "auto" takes about 1000 steps, 2200 from 4000 rows
        on, in 60 to 400 passes; with quadrature 1200, in 20 to 300.
    batch_size : "auto" or int, default="auto"
        Rows of a minibatch; "auto" is a quarter of the rows, within 16 and 250, or 500 from 4000 rows
        on; with quadrature within 16 and 100, or 250. Minibatches have equal sizes, up to this one.
    learning_rate : float, default=0.05
        Peak learning rate of Adam; the rate climbs to it in the first quarter of training and falls
        to nothing along a cosine.
    early_stopping : bool, default=True
        Whether every member holds out a part of the rows, with every class in its share, and keeps the
        parameters of the epoch with the best log probability of the labels there.
    validation_fraction : float, default=0.1
        Share of the rows that a member holds out.
    n_iter_no_change : int, default=1000
        Epochs without improvement after which a member stops. The best epochs come last, when the
        learning rate has fallen: fewer save time and cost accuracy.
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
        Source of initial values, held-out rows, minibatches and samples.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP``.
    n_iter_ : int
        Epochs of the member that ran longest.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row and epoch, mean over members still training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Held-out log probability of the labels per row and epoch, mean over members;
        empty without held-out rows.
    best_iter_ : list of int
        For every member the epoch, counted from 1, whose parameters it has.
    lower_bound_ : float
        Evidence lower bound (with ``beta=1``) of the log probability of the training labels, summed
        over rows; mean over members.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, Q or 1)
        Lengthscales of every layer, in units of its inputs; those of the first are standardised.
    inducing_points_ : list of ndarray of shape (n_estimators, M, Q)
        Inducing points of every layer, in the same units.
    device_ : torch.device
        Where the members are.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where ``X`` had string names.

    Warns
    -----
    UserWarning
        If ``n_inducing`` is a number beyond that of distinct rows, which is then taken instead.

    See Also
    --------
    AVDGPClassifier : Inducing variables that depend on the row.
    sklearn.gaussian_process.GaussianProcessClassifier : One layer, for up to a few thousand rows.

    References
    ----------
    .. [1] H. Salimbeni and M. P. Deisenroth, "Doubly Stochastic Variational Inference for Deep Gaussian
       Processes", NeurIPS 2017.
    .. [2] M. Jankowiak, G. Pleiss and J. R. Gardner, "Deep Sigma Point Processes", UAI 2020.
    .. [3] D. Hernández-Lobato, J. M. Hernández-Lobato and P. Dupont, "Robust Multi-Class Gaussian
       Process Classification", NeurIPS 2011.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skdgp import DSDGPClassifier
    >>> X, y = make_moons(n_samples=200, noise=0.2, random_state=0)
    >>> model = DSDGPClassifier(max_iter=30, n_estimators=1, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseDSDGP._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        hidden_dims="auto",
        n_inducing="auto",
        *,
        propagation="monte_carlo",
        objective="elbo",
        kernel="matern52",
        ard=True,
        share_kernel=True,
        mean="identity",
        covariance="diag",
        whiten=True,
        n_orthogonal=0,
        orthogonal_covariance="free",
        n_samples=32,
        n_estimators="auto",
        beta=0.1,
        class_weight=None,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.05,
        early_stopping=True,
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
            hidden_dims,
            n_inducing,
            propagation=propagation,
            objective=objective,
            kernel=kernel,
            ard=ard,
            share_kernel=share_kernel,
            mean=mean,
            covariance=covariance,
            whiten=whiten,
            n_orthogonal=n_orthogonal,
            orthogonal_covariance=orthogonal_covariance,
            n_samples=n_samples,
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
