"""Sparse Gaussian processes with orthogonally decomposed inducing variables."""

import numpy as np

from ..gp.coregional import Mixed
from ..gp.global_layer import OrthogonalLayer
from ..inference.ensemble import Plan
from ..methods import SOLVEGP
from ..methods.inducing import shaping
from ..methods.solvegp import BETA, MINIBATCH_BETA
from ._classification import DeepGPClassifier
from ._parameters import AUTO, POSITIVE, RULES, estimator
from ._regression import DeepGPRegressor
from ._shell import fitted

#: Where other methods have other rules.
OWN_RULES = {"n_inducing": [POSITIVE, AUTO]} | {name: [*RULES[name], AUTO] for name in ("n_orthogonal", "beta")}


def _inducing_points(self):
    """Inducing points of the first set (n_estimators, M, Q)."""
    return np.stack([member.layers[0].Z.cpu().numpy() for member in self.module_])


def _orthogonal_points(self):
    """Inducing points of the second set (n_estimators, M, Q); M may be 0."""
    layers = [member.layers[0] for member in self.module_]
    layers = [layer.layer if isinstance(layer, Mixed) else layer for layer in layers]
    points = [layer.O if isinstance(layer, OrthogonalLayer) else layer.Z[:0] for layer in layers]
    return np.stack([each.cpu().numpy() for each in points])


@estimator(**OWN_RULES)
class SOLVEGPRegressor(DeepGPRegressor, SOLVEGP):
    """Sparse Gaussian process regression with orthogonally decomposed inducing variables.

    A Gaussian process whose inducing points come in two sets [1]_: the first summarises the function, the second,
    orthogonal to it, what the first leaves over. A step costs somewhat less than with one set of as many points, for
    posteriors have half the size, and predicts as well.

    Parameters
    ----------
    n_inducing : "auto" or int, default="auto"
        Inducing points of the first set; "auto" is 256, in classification of fewer than 2000 rows at most 16 for each
        feature, but at least 64. More points of either set follow more complicated functions, at
        a cost that grows with their square and in the end their cube. If both numbers together are beyond that of
        distinct rows, ``fit`` takes all of those, with a UserWarning unless one is "auto".
    n_orthogonal : "auto" or int, default="auto"
        Inducing points of the second set; "auto" as for the first, but none where that has no points; 0 makes a
        sparse variational GP (SVGP).
    method : {"auto", "svi", "collapsed"}, default="auto"
        How it learns. "svi": by minibatches and Adam; where there is a closed form for posteriors, and up to 100 000
        rows, they take it every few epochs. "collapsed": with all rows, posteriors always at their optimum, everything
        else by L-BFGS, in float64. "auto" is "collapsed" up to 2000 rows, unless rows are held out or another parameter
        speaks against it; with "fourier" features alone it is for any number of rows, which are summed over once.
    inducing : {"points", "fourier", "eigen", "derivatives"}, default="points"
        What inducing variables are. "points": values at points. "fourier": products with waves, for Matérn kernels of
        one input, or sums over inputs, which a kernel by name then is. "eigen": products with eigenfunctions, for
        ``kernel="rbf"`` and few inputs; of both there are ``n_inducing`` at most. "derivatives": values and slopes at
        points.
    orthogonal_inducing : {"points", "fourier", "eigen", "derivatives"}, default="points"
        The same of the second set. One of the two sets must be "points".
    n_latent_outputs : int or None, default=None
        Functions that outputs are sums of: the linear model of coregionalisation. Outputs are then correlated, and a
        row may lack some targets, which are NaN. There is no base then, and neighbours correct nothing. None: every
        output has its own function, and no target may be missing.
    orthogonal_covariance : {"free", "prior"}, default="free"
        Whether the second set's posterior covariance is learnt, as ``covariance`` says, or stays the prior's (ODVGP).
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound (in AVDGP its paper's approximation), or the log predictive
        density, or probability, less the same penalty. The latter can sharpen densities at the cost of means.
    kernel : str, kernel object, callable, or list with one for each layer, default="matern52"
        Covariance function of every layer: "matern52", "matern32", "matern12" or "rbf". Or a kernel object of
        ``sklearn.gaussian_process.kernels``, composed as one likes: its lengths are in the units of ``X``, its
        variances in those of standardised targets, and there is no base then. A callable makes one:
        ``kernel(n_inputs, n_outputs, ard=ard)`` returns a ``skdgp.gp.kernels.Kernel``, with ``n_outputs=1`` where
        outputs share it; see CONTRIBUTING.
    ard : bool, default=True
        Whether every input dimension of a layer has its own lengthscale.
    covariance : {"diag", "full"}, default="full"
        Posterior covariance of inducing variables. "diag" leaves out how they vary together, and takes less time.
    whiten : bool, default=True
        Whether posteriors are of inducing variables relative to the Cholesky factor of their prior covariance.
    n_estimators : "auto" or int, default=1
        Members of the ensemble; 1 is the model of the paper. "auto" is 5 up to some 4000 rows, and 1 from some 10000.
    beta : "auto" or float, default="auto"
        Weight of the Kullback-Leibler penalty on inducing variables. 1 is the bound. "auto" is 0.1 for regression by
        minibatches, where many inducing points then learn more of many rows, and 1 otherwise.
    max_iter : "auto" or int, default="auto"
        Passes over the data (epochs) of each member at most, or iterations of L-BFGS in a collapsed fit. "auto" takes
        about 1000 steps, 2000 from 4000 rows on, in 20 to 400 epochs; where posteriors take their closed form 500 and
        700; or 200 iterations.
    batch_size : "auto" or int, default="auto"
        Most rows of a minibatch; sizes are equal. "auto" is n_rows / 4 within 16 and 250, or 1024 from 4000 rows on.
    learning_rate : float, default=0.06
        Peak learning rate of Adam. It is reached after a quarter of training, and falls to nothing along a cosine.
    early_stopping : bool, default=False
        Whether every member holds out rows, of each class alike, and keeps the parameters of the epoch with the best
        log predictive density, or probability, there. Held-out rows then set a regressor's noise variance. False leaves
        the noise as training made it: intervals then tend to be too wide or too narrow, as a held-out coverage shows.
    likelihood : str, likelihood or its class, default="gaussian"
        Distribution of targets around the function. "gaussian"; "heteroskedastic", Gaussian with a variance of each
        row's own; "student_t", where some targets are far out; "poisson" and "negative_binomial", counts, the latter
        with more variance; "gamma", positive and skewed. Or one of your own; see CONTRIBUTING. Neighbours correct
        "gaussian" and your own additive noise.
    target_transform : "log", transformer or None, default=None
        What turns targets into those that the model learns, such as ``PowerTransformer()``: a transformer of
        scikit-learn that is strictly monotone in each of its columns. Predictions are in the units of ``y`` again, with
        densities, quantiles and draws to match. ``lower_bound_`` and ``noise_variance_`` are of transformed targets.
    base : {"gp"} or None, default="gp"
        What predictions are blended with: a sparse GP in closed form, which takes over where it predicts held-out rows
        better, and far from all rows. None leaves the model alone, and so does ``fit`` where no rows can judge.
    n_neighbors : "auto" or int, default="auto"
        Nearest training rows that correct each prediction by what was left over there. "auto" is 24 if held-out rows
        gain more than chance explains, and 0 otherwise; 0 is no correction, and 1000 are the most. With a correction
        the estimator keeps training rows.
    validation_fraction : float, default=0.1
        Share of the rows that a member holds out with ``early_stopping``.
    n_iter_no_change : int, default=1000
        Epochs without improvement after which a member stops. Late ones are often best: a small number costs accuracy.
    tol : float, default=0.0
        Improvement of the held-out score, as in ``validation_scores_``, that counts.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Which features are categories: a mask, numbers or names of columns. "from_dtype": columns of text and of
        categories, if ``X`` is a data frame of pandas or Polars. None: there are none. Two levels of a category are
        equally far from each other whichever they are, and so is a level that ``fit`` has not seen.
    normalize_X : bool, default=True
        Whether to standardise features inside.
    normalize_y : bool, default=True
        Whether to standardise targets inside. Results are in the user's units anyway.
    device : str, default="auto"
        torch device such as "cpu" or "cuda:0"; "auto" prefers CUDA.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision. "auto" trains in float32, which is faster, and predicts in float32 if ``X`` has it, otherwise in
        float64; with ``whiten=False`` both are in float64. The others do both in theirs. "float32" is too coarse for
        ``whiten=False`` where inducing points crowd or lengthscales are long: means and deviations can then be far off.
    cuda_graphs : bool, default=False
        Whether to record a minibatch's step on a CUDA device and replay it, which launches all its operations at once.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last fit's parameters, with its scaling of the data and a classifier's classes.
    random_state : int, RandomState instance or None, default=None
        Source of all that is random, such as initial values, held-out rows and minibatches.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP``.
    n_iter_ : int
        Iterations of the member that ran longest, as ``max_iter`` counts them.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row in each iteration, mean over members still training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Held-out log predictive density of standardised targets, or log probability of the labels, per row and epoch,
        mean over members; empty without held-out rows.
    best_iter_ : list of int
        For every member the iteration, counted from 1, whose parameters it has.
    lower_bound_ : float
        Evidence lower bound (with ``beta=1``) of the log density, or log probability, of the training targets, in the
        user's units, summed over rows; mean over members. Random samples or quadrature make it an estimate.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, 1 or Q)
        Lengthscales of every layer, of its D outputs or of all, in units of its Q inputs; those of the first layer are
        standardised features. None where a callable ``kernel`` has none.
    inducing_points_ : ndarray of shape (n_estimators, M, Q)
        Inducing points of the first set, in the same units.
    orthogonal_points_ : ndarray of shape (n_estimators, M, Q)
        Inducing points of the second set, in the same units; M may be 0.
    kernel_ : kernel object or list of kernel objects
        What ``fit`` has made of ``kernel``, in the first member, as kernel objects of scikit-learn: one, or with hidden
        layers one for each; of outputs with kernels of their own the first one's. None for a callable's.
    base_weight_ : float
        Weight of the base in predictions near the rows that were learnt from, between 0 and 1; 0 without one.
    neighbors_ : dict or None
        The correction by nearest rows: their number ``"n_neighbors"``; ``"length_scales"`` of shape (n_features_in_,),
        in units of the features; ``"variance"`` and ``"noise_variance"``, in the square of those of ``y``; and what the
        mean log density of held-out rows gains, ``"gain"``, with its ``"standard_error"``. None without one.
    target_transformer_ : object or None
        ``target_transform``, fitted, with ``transform`` and an ``inverse_transform`` that goes no farther beyond the
        targets of ``fit`` than ten of their ranges.
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
    is_categorical_ : ndarray of shape (`n_features_in_`,) or None
        Mask of the features that are categories; None where there are none.

    See Also
    --------
    DSDGPRegressor : Deep, and with ``n_orthogonal`` of the same kind.
    sklearn.gaussian_process.GaussianProcessRegressor : Exact, for up to a few thousand rows.

    References
    ----------
    .. [1] J. Shi et al., "Sparse Orthogonal Variational Inference for Gaussian Processes", AISTATS 2020.

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

    method: str = "auto"
    n_latent_outputs: int | None = shaping(None)  # type: ignore[misc]

    inducing_points_ = property(_inducing_points)
    orthogonal_points_ = property(_orthogonal_points)

    @property
    def method_(self):
        """How the last fit learnt."""
        return fitted(self).plan_name

    def plan(
        self, n_rows: int, n_chunk: int | None = None, *, held_out: bool = False, beta: float | None = None
    ) -> Plan:
        """How a member is trained: collapsed, or with ``n_rows`` of which a chunk is there at a time."""
        gaussian = self.likelihood == "gaussian" and self.n_latent_outputs is None
        beta = beta or (MINIBATCH_BETA if gaussian else BETA)
        if n_chunk is None and self.choose(self.method, n_rows, held_out=held_out) == "collapsed":
            return self.plan_collapsed(n_rows)
        if n_chunk is not None and self.method == "collapsed":
            raise ValueError("method='collapsed' needs all rows at once, got a chunk of them: set method='svi'.")
        plan = self.plan_solved(n_rows, beta) if n_chunk is None else super().plan(n_rows, n_chunk, beta=beta)
        return plan._replace(hold_out=not gaussian)


@estimator(**OWN_RULES)
class SOLVEGPClassifier(DeepGPClassifier, SOLVEGP):
    """Sparse Gaussian process classification with orthogonally decomposed inducing variables.

    The process of :class:`SOLVEGPRegressor` [1]_ with the probit likelihood for two classes, and with the robust max
    likelihood, one function for each class, for more. It learns by minibatches.

    Parameters
    ----------
    n_inducing : "auto" or int, default="auto"
        Inducing points of the first set; "auto" is 256, in classification of fewer than 2000 rows at most 16 for each
        feature, but at least 64. More points of either set follow more complicated functions, at
        a cost that grows with their square and in the end their cube. If both numbers together are beyond that of
        distinct rows, ``fit`` takes all of those, with a UserWarning unless one is "auto".
    n_orthogonal : "auto" or int, default="auto"
        Inducing points of the second set; "auto" as for the first, but none where that has no points; 0 makes a
        sparse variational GP (SVGP).
    inducing : {"points", "fourier", "eigen", "derivatives"}, default="points"
        What inducing variables are. "points": values at points. "fourier": products with waves, for Matérn kernels of
        one input, or sums over inputs, which a kernel by name then is. "eigen": products with eigenfunctions, for
        ``kernel="rbf"`` and few inputs; of both there are ``n_inducing`` at most. "derivatives": values and slopes at
        points.
    orthogonal_inducing : {"points", "fourier", "eigen", "derivatives"}, default="points"
        The same of the second set. One of the two sets must be "points".
    orthogonal_covariance : {"free", "prior"}, default="free"
        Whether the second set's posterior covariance is learnt, as ``covariance`` says, or stays the prior's (ODVGP).
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound (in AVDGP its paper's approximation), or the log predictive
        density, or probability, less the same penalty. The latter can sharpen densities at the cost of means.
    kernel : str, kernel object, callable, or list with one for each layer, default="matern52"
        Covariance function of every layer: "matern52", "matern32", "matern12" or "rbf". Or a kernel object of
        ``sklearn.gaussian_process.kernels``, composed as one likes: its lengths are in the units of ``X``, its
        variances in those of standardised targets, and there is no base then. A callable makes one:
        ``kernel(n_inputs, n_outputs, ard=ard)`` returns a ``skdgp.gp.kernels.Kernel``, with ``n_outputs=1`` where
        outputs share it; see CONTRIBUTING.
    ard : bool, default=True
        Whether every input dimension of a layer has its own lengthscale.
    covariance : {"diag", "full"}, default="full"
        Posterior covariance of inducing variables. "diag" leaves out how they vary together, and takes less time.
    whiten : bool, default=True
        Whether posteriors are of inducing variables relative to the Cholesky factor of their prior covariance.
    n_estimators : "auto" or int, default=1
        Members of the ensemble; 1 is the model of the paper. "auto" is 5 up to some 4000 rows, and 1 from some 10000.
    beta : "auto" or float, default="auto"
        Weight of the Kullback-Leibler penalty on inducing variables. 1 is the bound. "auto" is 0.1 for regression by
        minibatches, where many inducing points then learn more of many rows, and 1 otherwise.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, times ``sample_weight``. Heavier ones gain probability. "balanced" is one over a class's
        number of rows, whatever these weigh, times a factor that makes the mean over rows one.
    max_iter : "auto" or int, default="auto"
        Passes over the data (epochs) of each member at most, or iterations of L-BFGS in a collapsed fit. "auto" takes
        about 1000 steps, 2000 from 4000 rows on, in 20 to 400 epochs; where posteriors take their closed form 500 and
        700; or 200 iterations.
    batch_size : "auto" or int, default="auto"
        Most rows of a minibatch; sizes are equal. "auto" is n_rows / 4 within 16 and 250, or 1024 from 4000 rows on.
    learning_rate : float, default=0.06
        Peak learning rate of Adam. It is reached after a quarter of training, and falls to nothing along a cosine.
    early_stopping : bool, default=True
        Whether every member holds out rows, of each class alike, and keeps the parameters of the epoch with the best
        log predictive density, or probability, there. Held-out rows then set a regressor's noise variance. False leaves
        the noise as training made it: intervals then tend to be too wide or too narrow, as a held-out coverage shows.
    base : {"gp"} or None, default="gp"
        What predictions are blended with: a sparse GP in closed form, which takes over where it predicts held-out rows
        better, and far from all rows. None leaves the model alone, and so does ``fit`` where no rows can judge.
    validation_fraction : float, default=0.1
        Share of the rows that a member holds out with ``early_stopping``.
    n_iter_no_change : int, default=1000
        Epochs without improvement after which a member stops. Late ones are often best: a small number costs accuracy.
    tol : float, default=0.0
        Improvement of the held-out score, as in ``validation_scores_``, that counts.
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Which features are categories: a mask, numbers or names of columns. "from_dtype": columns of text and of
        categories, if ``X`` is a data frame of pandas or Polars. None: there are none. Two levels of a category are
        equally far from each other whichever they are, and so is a level that ``fit`` has not seen.
    normalize_X : bool, default=True
        Whether to standardise features inside.
    device : str, default="auto"
        torch device such as "cpu" or "cuda:0"; "auto" prefers CUDA.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision. "auto" trains in float32, which is faster, and predicts in float32 if ``X`` has it, otherwise in
        float64; with ``whiten=False`` both are in float64. The others do both in theirs. "float32" is too coarse for
        ``whiten=False`` where inducing points crowd or lengthscales are long: means and deviations can then be far off.
    cuda_graphs : bool, default=False
        Whether to record a minibatch's step on a CUDA device and replay it, which launches all its operations at once.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last fit's parameters, with its scaling of the data and a classifier's classes.
    random_state : int, RandomState instance or None, default=None
        Source of all that is random, such as initial values, held-out rows and minibatches.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP``.
    n_iter_ : int
        Iterations of the member that ran longest, as ``max_iter`` counts them.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row in each iteration, mean over members still training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Held-out log predictive density of standardised targets, or log probability of the labels, per row and epoch,
        mean over members; empty without held-out rows.
    best_iter_ : list of int
        For every member the iteration, counted from 1, whose parameters it has.
    lower_bound_ : float
        Evidence lower bound (with ``beta=1``) of the log density, or log probability, of the training targets, in the
        user's units, summed over rows; mean over members. Random samples or quadrature make it an estimate.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, 1 or Q)
        Lengthscales of every layer, of its D outputs or of all, in units of its Q inputs; those of the first layer are
        standardised features. None where a callable ``kernel`` has none.
    kernel_ : kernel object or list of kernel objects
        What ``fit`` has made of ``kernel``, in the first member, as kernel objects of scikit-learn: one, or with hidden
        layers one for each; of outputs with kernels of their own the first one's. None for a callable's.
    base_weight_ : float
        Weight of the base in predictions near the rows that were learnt from, between 0 and 1; 0 without one.
    inducing_points_ : ndarray of shape (n_estimators, M, Q)
        Inducing points of the first set, in the same units.
    orthogonal_points_ : ndarray of shape (n_estimators, M, Q)
        Inducing points of the second set, in the same units; M may be 0.
    device_ : torch.device
        Where the members are.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where ``X`` had string names.
    is_categorical_ : ndarray of shape (`n_features_in_`,) or None
        Mask of the features that are categories; None where there are none.

    See Also
    --------
    DSDGPClassifier : Deep, and with ``n_orthogonal`` of the same kind.
    sklearn.gaussian_process.GaussianProcessClassifier : For up to a few thousand rows.

    References
    ----------
    .. [1] J. Shi et al., "Sparse Orthogonal Variational Inference for Gaussian Processes", AISTATS 2020.

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

    inducing_points_ = property(_inducing_points)
    orthogonal_points_ = property(_orthogonal_points)

    early_stopping: bool = True
