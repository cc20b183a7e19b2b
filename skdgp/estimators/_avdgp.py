"""Deep Gaussian processes with amortised inducing variables."""

from numbers import Integral
from typing import ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ..gp.deep_gp import DeepGP
from ..gp.kernels import PROFILES, StationaryKernel
from ..gp.layers import AmortisedLayer
from ..gp.likelihoods import Likelihood
from ..gp.means import Mean, ZeroMean, make_mean
from ..gp.networks import INFERENCE_NETWORKS
from ..inference.propagation import make_propagation
from ._auto import Auto
from ._base import BaseDeepGP
from ._classification import DeepGPClassifier
from ._inducing import HIDDEN_DIMS, N_INDUCING, inducing_per_layer, positive_ints
from ._regression import DeepGPRegressor

#: Inducing points of the first layer and of every later one (AVDGP, App. C.1).
AUTO_INDUCING = (8, 4)


#: Chosen on held-out rows, within half a minute for ten thousand rows on two cores.
AUTO = Auto(
    steps=(400, 400), epochs=(40, 300), member_rows=18_000, max_members=5, batch_sizes=(16, 200), large_batch=500
)


class BaseAVDGP(BaseDeepGP):
    """Which layers an amortised deep GP has."""

    _structural_parameters: ClassVar[tuple[str, ...]] = (
        *BaseDeepGP._structural_parameters,
        "hidden_dims",
        "n_inducing",
        "rule",
        "kernel",
        "ard",
        "mean",
        "covariance",
        "whiten",
        "inducing_map",
        "network_width",
        "network_depth",
        "n_samples",
    )

    _parameter_constraints: ClassVar[dict] = {
        **BaseDeepGP._parameter_constraints,
        "hidden_dims": HIDDEN_DIMS,
        "n_inducing": N_INDUCING,
        "rule": [StrOptions({"ar1", "ar2", "ar2p"})],
        "kernel": [StrOptions(set(PROFILES))],
        "ard": ["boolean"],
        "mean": [StrOptions({"zero", "linear", "identity"})],
        "covariance": [StrOptions({"diag", "full"})],
        "whiten": ["boolean"],
        "inducing_map": [StrOptions(set(INFERENCE_NETWORKS))],
        "network_width": [Interval(Integral, 1, None, closed="left"), None],
        "network_depth": [Interval(Integral, 1, None, closed="left")],
        "n_samples": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        hidden_dims=(16, 4),
        n_inducing="auto",
        *,
        rule="ar2p",
        objective="elbo",
        kernel="matern52",
        ard=False,
        mean="zero",
        covariance="diag",
        whiten=True,
        inducing_map="affine",
        network_width=128,
        network_depth=2,
        n_samples=32,
        n_estimators="auto",
        beta=100.0,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.02,
        early_stopping=True,
        validation_fraction=0.1,
        n_iter_no_change=40,
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
        self.rule = rule
        self.objective = objective
        self.kernel = kernel
        self.ard = ard
        self.mean = mean
        self.covariance = covariance
        self.whiten = whiten
        self.inducing_map = inducing_map
        self.network_width = network_width
        self.network_depth = network_depth
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
        return AUTO

    def _make_model(self, X: Tensor, likelihood: Likelihood, generator: torch.Generator) -> DeepGP:
        hidden_dims = positive_ints("hidden_dims", self.hidden_dims)
        widths = (X.shape[1], *hidden_dims, likelihood.n_outputs)
        layers, inputs = [], X
        for depth, n_inducing in enumerate(inducing_per_layer(self.n_inducing, hidden_dims, AUTO_INDUCING)):
            n_in, n_out = widths[depth], widths[depth + 1]
            hidden = depth < len(hidden_dims)
            mean = make_mean(self.mean, inputs, n_out) if hidden else ZeroMean(n_out)
            layers.append(self._make_layer(n_in, n_out, n_inducing, mean, generator))
            inputs = mean(inputs)
        propagation = make_propagation(self.rule, hidden_dims, self.n_samples, generator)
        return DeepGP(layers, propagation, likelihood)

    def _make_layer(
        self, n_inputs: int, n_outputs: int, n_inducing: int, mean: Mean, generator: torch.Generator
    ) -> AmortisedLayer:
        width = min(n_inputs, n_inducing * n_outputs) if self.network_width is None else self.network_width
        network = INFERENCE_NETWORKS[self.inducing_map](
            n_inputs,
            n_outputs,
            n_inducing,
            covariance=self.covariance,
            hidden=[width] * self.network_depth,
            generator=generator,
        )
        kernel = StationaryKernel(self.kernel, n_inputs, n_outputs, ard=self.ard)
        return AmortisedLayer(kernel, mean, network, whiten=self.whiten)


class AVDGPRegressor(DeepGPRegressor, BaseAVDGP):
    """Deep Gaussian process regression with amortised inducing variables.

    Every row has a few inducing variables of its own, which small networks compute from the row itself
    and, in deeper layers, from what the layer below makes of it [1]_. That needs far fewer inducing
    points than variables shared by all rows, and takes minibatches of any size. An ensemble of such
    models, each judged by rows that it has not learnt from, predicts as one Gaussian mixture.

    Parameters
    ----------
    hidden_dims : sequence of int, default=(16, 4)
        Widths of the hidden GP layers, first to last. ``()`` is a shallow GP: the paper's SGP-AVI and,
        with ``inducing_map="mlp"`` and ``covariance="full"``, IDSGP [2]_.
    n_inducing : "auto", int or sequence of int, default="auto"
        Inducing points of each row: one number for all layers or one for each, output layer included.
        "auto" is 8 for the first layer and 4 for the others.
    rule : {"ar1", "ar2", "ar2p"}, default="ar2p"
        What a deeper layer computes a row's inducing variables from, and how uncertainty gets there:
        "ar1" from every Monte Carlo sample, "ar2" from the samples' mean, "ar2p" from the mean over
        learnt quadrature points, without randomness.
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound, or the log predictive density less the same
        penalty. The latter, with "ar2p" the paper's AR2PP, can sharpen densities at the cost of means, and with a
        smaller ``beta`` follows noise that changes over inputs or has several modes; restarts differ more. With
        samples, as in "ar1" and "ar2", it is a lower bound that more samples tighten.
    kernel : {"matern52", "matern32", "matern12", "rbf"}, default="matern52"
        Covariance function of every layer.
    ard : bool, default=False
        Whether every input dimension of a layer has its own lengthscale.
    mean : {"zero", "linear", "identity"}, default="zero"
        Mean functions of the hidden layers: none, learnt linear, or fixed (the identity, or principal
        components where widths differ, of which "linear" starts too). The last layer's mean is zero.
    covariance : {"diag", "full"}, default="diag"
        Posterior covariance of a row's inducing variables.
    whiten : bool, default=True
        Whether the networks speak of inducing variables relative to the Cholesky factor of their prior.
    inducing_map : {"affine", "mlp"}, default="affine"
        Affine maps to the inducing points and two networks for the rest, or one network for all.
    network_width : int or None, default=128
        Units of each hidden layer of every inference network. None is the paper's choice, the
        smaller of a network's inputs and the inducing variables it speaks of; wider networks predict
        better at little cost, for the time goes into the kernels.
    network_depth : int, default=2
        Hidden layers of every inference network.
    n_samples : int, default=32
        Monte Carlo samples, or quadrature points, for each row.
    n_estimators : "auto" or int, default="auto"
        Members of the ensemble. 1 is the model of the paper; "auto" is 5 for up to 3600 rows, and
        falls to 1 above 9000.
    beta : float, default=100.0
        Weight of the Kullback-Leibler penalty on inducing variables. 1 is the paper's bound, which
        lets small data sets overfit: it divides the penalty of every row by the number of rows.
    max_iter : "auto" or int, default="auto"
        Passes over the data for each member. "auto" takes about 400 steps, in 40 to 300 passes.
    batch_size : "auto" or int, default="auto"
        Rows of a minibatch; "auto" is a quarter of the rows, within 16
        and 200, or 500 from 4000 rows on. Minibatches have equal sizes, up
        to this one.
    learning_rate : float, default=0.02
        Peak learning rate of Adam; the rate climbs to it in the first quarter of training and falls
        to nothing along a cosine.
    early_stopping : bool, default=True
        Whether every member holds out a part of the rows, keeps the parameters of the epoch with the
        best log predictive density there, and sets its noise variance by them. False leaves the noise as
        training made it: intervals tend to be too wide or too narrow then, which a held-out coverage shows.
    validation_fraction : float, default=0.1
        Share of the rows that a member holds out.
    n_iter_no_change : int, default=40
        Epochs without improvement after which a member stops.
    tol : float, default=0.0
        Improvement of the held-out log density that counts.
    normalize_X, normalize_y : bool, default=True
        Whether to standardise features and targets inside. Results are in the user's units anyway.
    device : str, default="auto"
        torch device such as "cpu" or "cuda:0"; "auto" prefers CUDA.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision. "auto" trains in float32, which is faster, and then predicts in that of ``X`` where
        it is a float; the others do both in theirs.
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
        Evidence lower bound of the log density of the training targets, in the user's units, summed
        over rows; mean over members.
    length_scales_ : list of ndarray of shape (n_estimators, D, Q) or (n_estimators, D, 1)
        Lengthscales of every layer, of its D outputs, in units of its standardised inputs.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Variance of the observation noise in the user's units, mean over members.
    device_ : torch.device
        Where the members are.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where ``X`` had string names.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessRegressor : Exact, for up to a few thousand rows.

    References
    ----------
    .. [1] Q. Meng and Y. Zhang, "Amortized Variational Inference for Deep Gaussian Processes", 2024.
    .. [2] B. Jafrasteh, C. Villacampa-Calvo and D. Hernández-Lobato, "Input Dependent Sparse Gaussian
       Processes", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skdgp import AVDGPRegressor
    >>> X, y = make_friedman1(n_samples=200, noise=1.0, random_state=0)
    >>> model = AVDGPRegressor(max_iter=30, n_estimators=1, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    >>> bool(model.score(X, y) > 0.7)
    True
    """

    _structural_parameters: ClassVar[tuple[str, ...]] = (*BaseAVDGP._structural_parameters, "normalize_y")
    _parameter_constraints: ClassVar[dict] = {**BaseAVDGP._parameter_constraints, "normalize_y": ["boolean"]}

    def __init__(
        self,
        hidden_dims=(16, 4),
        n_inducing="auto",
        *,
        rule="ar2p",
        objective="elbo",
        kernel="matern52",
        ard=False,
        mean="zero",
        covariance="diag",
        whiten=True,
        inducing_map="affine",
        network_width=128,
        network_depth=2,
        n_samples=32,
        n_estimators="auto",
        beta=100.0,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.02,
        early_stopping=True,
        validation_fraction=0.1,
        n_iter_no_change=40,
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
            rule=rule,
            objective=objective,
            kernel=kernel,
            ard=ard,
            mean=mean,
            covariance=covariance,
            whiten=whiten,
            inducing_map=inducing_map,
            network_width=network_width,
            network_depth=network_depth,
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


class AVDGPClassifier(DeepGPClassifier, BaseAVDGP):
    """Deep Gaussian process classification with amortised inducing variables.

    Every row has a few inducing variables of its own, which small networks compute from the row itself
    and, in deeper layers, from what the layer below makes of it [1]_. Two classes have a probit link
    p(y = 1 | f) = Φ(f), more a function each, of which the largest wins up to a slip of probability
    0.001 (robust max [2]_). An ensemble of such models, each judged by rows that it has not learnt
    from, averages its probabilities.

    Parameters
    ----------
    hidden_dims : sequence of int, default=(16, 4)
        Widths of the hidden GP layers, first to last. ``()`` is a shallow GP.
    n_inducing : "auto", int or sequence of int, default="auto"
        Inducing points of each row: one number for all layers or one for each, output layer included.
        "auto" is 8 for the first layer and 4 for the others.
    rule : {"ar1", "ar2", "ar2p"}, default="ar2p"
        What a deeper layer computes a row's inducing variables from, and how uncertainty gets there:
        "ar1" from every Monte Carlo sample, "ar2" from the samples' mean, "ar2p" from the mean over
        learnt quadrature points, without randomness.
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound, or the log probability of the labels less
        the same penalty.
    kernel : {"matern52", "matern32", "matern12", "rbf"}, default="matern52"
        Covariance function of every layer.
    ard : bool, default=False
        Whether every input dimension of a layer has its own lengthscale.
    mean : {"zero", "linear", "identity"}, default="zero"
        Mean functions of the hidden layers: none, learnt linear, or fixed (the identity, or principal
        components where widths differ, of which "linear" starts too). The last layer's mean is zero.
    covariance : {"diag", "full"}, default="diag"
        Posterior covariance of a row's inducing variables.
    whiten : bool, default=True
        Whether the networks speak of inducing variables relative to the Cholesky factor of their prior.
    inducing_map : {"affine", "mlp"}, default="affine"
        Affine maps to the inducing points and two networks for the rest, or one network for all.
    network_width : int or None, default=128
        Units of each hidden layer of every inference network. None is the paper's choice, the
        smaller of a network's inputs and the inducing variables it speaks of.
    network_depth : int, default=2
        Hidden layers of every inference network.
    n_samples : int, default=32
        Monte Carlo samples, or quadrature points, for each row.
    n_estimators : "auto" or int, default="auto"
        Members of the ensemble. 1 is the model of the paper; "auto" is 5 for up to 3600 rows, and
        falls to 1 above 9000.
    beta : float, default=30.0
        Weight of the Kullback-Leibler penalty on inducing variables. 1 is the paper's bound, which
        lets small data sets overfit: it divides the penalty of every row by the number of rows. A
        label says less than a number, so the default is smaller than the regressor's.
    class_weight : dict, "balanced" or None, default=None
        Factors of the weights of rows by their label, as in :mod:`sklearn.linear_model`; "balanced"
        makes all classes equally heavy. They shift probabilities towards the heavier classes.
    max_iter : "auto" or int, default="auto"
        Passes over the data for each member. "auto" takes about 400 steps, in 40 to 300 passes.
    batch_size : "auto" or int, default="auto"
        Rows of a minibatch; "auto" is a quarter of the rows, within 16
        and 200, or 500 from 4000 rows on. Minibatches have equal sizes, up
        to this one.
    learning_rate : float, default=0.02
        Peak learning rate of Adam; the rate climbs to it in the first quarter of training and falls
        to nothing along a cosine.
    early_stopping : bool, default=True
        Whether every member holds out a part of the rows, of each class alike, and keeps the
        parameters of the epoch with the best log loss there.
    validation_fraction : float, default=0.1
        Share of the rows that a member holds out.
    n_iter_no_change : int, default=40
        Epochs without improvement after which a member stops.
    tol : float, default=0.0
        Improvement of the held-out log probability that counts.
    normalize_X : bool, default=True
        Whether to standardise features inside.
    device : str, default="auto"
        torch device such as "cpu" or "cuda:0"; "auto" prefers CUDA.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision. "auto" trains in float32, which is faster, and then predicts in that of ``X`` where
        it is a float; the others do both in theirs.
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
        Held-out log probability of the labels per row and epoch, mean over members; empty without
        held-out rows.
    best_iter_ : list of int
        For every member the epoch, counted from 1, whose parameters it has.
    lower_bound_ : float
        Evidence lower bound of the log probability of the training labels, summed over rows; mean
        over members.
    length_scales_ : list of ndarray of shape (n_estimators, D, Q) or (n_estimators, D, 1)
        Lengthscales of every layer, of its D outputs, in units of its standardised inputs.
    device_ : torch.device
        Where the members are.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where ``X`` had string names.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessClassifier : One layer, for up to a few thousand rows.

    References
    ----------
    .. [1] Q. Meng and Y. Zhang, "Amortized Variational Inference for Deep Gaussian Processes", 2024.
    .. [2] D. Hernández-Lobato, J. M. Hernández-Lobato and P. Dupont, "Robust Multi-Class Gaussian
       Process Classification", NeurIPS 2011.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skdgp import AVDGPClassifier
    >>> X, y = make_moons(n_samples=200, noise=0.2, random_state=0)
    >>> model = AVDGPClassifier(max_iter=30, n_estimators=1, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseAVDGP._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        hidden_dims=(16, 4),
        n_inducing="auto",
        *,
        rule="ar2p",
        objective="elbo",
        kernel="matern52",
        ard=False,
        mean="zero",
        covariance="diag",
        whiten=True,
        inducing_map="affine",
        network_width=128,
        network_depth=2,
        n_samples=32,
        n_estimators="auto",
        beta=30.0,
        class_weight=None,
        max_iter="auto",
        batch_size="auto",
        learning_rate=0.02,
        early_stopping=True,
        validation_fraction=0.1,
        n_iter_no_change=40,
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
            rule=rule,
            objective=objective,
            kernel=kernel,
            ard=ard,
            mean=mean,
            covariance=covariance,
            whiten=whiten,
            inducing_map=inducing_map,
            network_width=network_width,
            network_depth=network_depth,
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
