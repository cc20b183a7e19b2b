"""Deep Gaussian processes with amortised inducing variables."""

from ..methods import AVDGP
from ._classification import DeepGPClassifier
from ._parameters import estimator
from ._regression import DeepGPRegressor


@estimator()
class AVDGPRegressor(DeepGPRegressor, AVDGP):
    """Deep Gaussian process regression with amortised inducing variables.

    Every row has a few inducing variables of its own, which small networks compute from the row itself and, in deeper
    layers, from what the layer below makes of it [1]_. That needs far fewer inducing points than variables shared by
    all rows, and takes minibatches of any size. An ensemble of such models, each judged by rows that it has not learnt
    from, predicts as one Gaussian mixture.

    Parameters
    ----------
    hidden_dims : sequence of int, default=(16, 4)
        Widths of the hidden GP layers, first to last. ``()`` is a shallow GP, the paper's SGP-AVI.
    n_inducing : "auto", int or sequence of int, default="auto"
        Inducing points of each row: one number, or one for each layer and the output. "auto" is 8, in later layers 4.
    rule : {"ar1", "ar2", "ar2p"}, default="ar2p"
        What a deeper layer computes a row's inducing variables from: "ar1" from every Monte Carlo sample, "ar2" from
        the samples' mean, "ar2p" from the mean over learnt quadrature points, without randomness.
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound (in AVDGP its paper's approximation), or the log predictive
        density, or probability, less the same penalty. The latter can sharpen densities at the cost of means.
    kernel : str, kernel object, callable, or list with one for each layer, default="matern52"
        Covariance function of every layer: "matern52", "matern32", "matern12" or "rbf". Or a kernel object of
        ``sklearn.gaussian_process.kernels``, composed as one likes: its lengths are in the units of ``X``, its
        variances in those of standardised targets, and there is no base then. A callable makes one:
        ``kernel(n_inputs, n_outputs, ard=ard)`` returns a ``skdgp.gp.kernels.Kernel``, with ``n_outputs=1`` where
        outputs share it; see CONTRIBUTING.
    ard : bool, default=False
        Whether every input dimension of a layer has its own lengthscale.
    mean : {"zero", "linear", "identity"}, default="zero"
        Mean functions of the hidden layers: none, learnt linear, or fixed (the identity, or principal components where
        a layer narrows). "linear" starts at the fixed one. The last layer's mean is zero.
    covariance : {"diag", "full"}, default="diag"
        Posterior covariance of inducing variables. "diag" leaves out how they vary together, and takes less time.
    whiten : bool, default=True
        Whether posteriors are of inducing variables relative to the Cholesky factor of their prior covariance.
    inducing_map : {"affine", "mlp"}, default="affine"
        Affine maps to inducing points and two networks for the rest, or one network for all, as in IDSGP [2]_.
    network_width : int or None, default=128
        Units of each hidden layer of every inference network. Wide ones predict better at little cost. None is the
        smaller of a network's inputs and its outputs, the paper's choice.
    network_depth : int, default=2
        Hidden layers of every inference network.
    n_samples : int, default=8
        Monte Carlo samples, or quadrature points, for each row. With ``objective="elbo"`` training takes one sample
        where that is enough ("monte_carlo", "ar1"). With "predictive" it takes all, and more tighten it.
    n_estimators : "auto" or int, default="auto"
        Members of the ensemble; 1 is the model of the paper. "auto" is 5 up to some 4000 rows, and 1 from some 10000.
    beta : float, default=100.0
        Weight of the Kullback-Leibler penalty on inducing variables; 1 is the paper's choice. Small data sets overfit
        then: a row pays only 1 / n_rows of its penalty. A label says less than a number: for classes the default is 30.
    max_iter : "auto" or int, default="auto"
        Passes over the data (epochs) of each member at most. "auto" takes about 400 steps, in 40 to 300 epochs.
    batch_size : "auto" or int, default="auto"
        Most rows of a minibatch; sizes are equal. "auto" is n_rows / 4 within 16 and 128, or 500 from 4000 rows on.
    learning_rate : float, default=0.02
        Peak learning rate of Adam. It is reached after a quarter of training, and falls to nothing along a cosine.
    early_stopping : bool, default=True
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
    n_iter_no_change : int, default=25
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
        Objective "elbo" with ``beta=1`` in the user's units, summed over rows, mean over members. Each row has inducing
        variables of its own, but is charged only 1 / n_rows of their penalty. So this may exceed the log evidence, the
        log density of all targets: it is not a lower bound. Never compare it with that of other families.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, 1 or Q)
        Lengthscales of every layer, of its D outputs or of all, in units of its Q inputs; those of the first layer are
        standardised features. None where a callable ``kernel`` has none.
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
    sklearn.gaussian_process.GaussianProcessRegressor : Exact, for up to a few thousand rows.

    References
    ----------
    .. [1] Q. Meng and Y. Zhang, "Amortized Variational Inference for Deep Gaussian Processes", 2024.
    .. [2] B. Jafrasteh et al., "Input Dependent Sparse Gaussian Processes", ICML 2022.

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


@estimator()
class AVDGPClassifier(DeepGPClassifier, AVDGP):
    """Deep Gaussian process classification with amortised inducing variables.

    Every row has a few inducing variables of its own, which small networks compute from the row itself and, in deeper
    layers, from what the layer below makes of it [1]_. Two classes have a probit link p(y = 1 | f) = Φ(f), more a
    function each, of which the largest wins up to a slip of probability 0.001 (robust max [3]_). An ensemble of such
    models, each judged by rows that it has not learnt from, averages its probabilities.

    Parameters
    ----------
    hidden_dims : sequence of int, default=(16, 4)
        Widths of the hidden GP layers, first to last. ``()`` is a shallow GP, the paper's SGP-AVI.
    n_inducing : "auto", int or sequence of int, default="auto"
        Inducing points of each row: one number, or one for each layer and the output. "auto" is 8, in later layers 4.
    rule : {"ar1", "ar2", "ar2p"}, default="ar2p"
        What a deeper layer computes a row's inducing variables from: "ar1" from every Monte Carlo sample, "ar2" from
        the samples' mean, "ar2p" from the mean over learnt quadrature points, without randomness.
    objective : {"elbo", "predictive"}, default="elbo"
        What training maximises: the evidence lower bound (in AVDGP its paper's approximation), or the log predictive
        density, or probability, less the same penalty. The latter can sharpen densities at the cost of means.
    kernel : str, kernel object, callable, or list with one for each layer, default="matern52"
        Covariance function of every layer: "matern52", "matern32", "matern12" or "rbf". Or a kernel object of
        ``sklearn.gaussian_process.kernels``, composed as one likes: its lengths are in the units of ``X``, its
        variances in those of standardised targets, and there is no base then. A callable makes one:
        ``kernel(n_inputs, n_outputs, ard=ard)`` returns a ``skdgp.gp.kernels.Kernel``, with ``n_outputs=1`` where
        outputs share it; see CONTRIBUTING.
    ard : bool, default=False
        Whether every input dimension of a layer has its own lengthscale.
    mean : {"zero", "linear", "identity"}, default="zero"
        Mean functions of the hidden layers: none, learnt linear, or fixed (the identity, or principal components where
        a layer narrows). "linear" starts at the fixed one. The last layer's mean is zero.
    covariance : {"diag", "full"}, default="diag"
        Posterior covariance of inducing variables. "diag" leaves out how they vary together, and takes less time.
    whiten : bool, default=True
        Whether posteriors are of inducing variables relative to the Cholesky factor of their prior covariance.
    inducing_map : {"affine", "mlp"}, default="affine"
        Affine maps to inducing points and two networks for the rest, or one network for all, as in IDSGP [2]_.
    network_width : int or None, default=128
        Units of each hidden layer of every inference network. Wide ones predict better at little cost. None is the
        smaller of a network's inputs and its outputs, the paper's choice.
    network_depth : int, default=2
        Hidden layers of every inference network.
    n_samples : int, default=8
        Monte Carlo samples, or quadrature points, for each row. With ``objective="elbo"`` training takes one sample
        where that is enough ("monte_carlo", "ar1"). With "predictive" it takes all, and more tighten it.
    n_estimators : "auto" or int, default="auto"
        Members of the ensemble; 1 is the model of the paper. "auto" is 5 up to some 4000 rows, and 1 from some 10000.
    beta : float, default=30.0
        Weight of the Kullback-Leibler penalty on inducing variables; 1 is the paper's choice. Small data sets overfit
        then: a row pays only 1 / n_rows of its penalty. A label says less than a number: for classes the default is 30.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, times ``sample_weight``. Heavier ones gain probability. "balanced" is one over a class's
        number of rows, whatever these weigh, times a factor that makes the mean over rows one.
    max_iter : "auto" or int, default="auto"
        Passes over the data (epochs) of each member at most. "auto" takes about 400 steps, in 40 to 300 epochs.
    batch_size : "auto" or int, default="auto"
        Most rows of a minibatch; sizes are equal. "auto" is n_rows / 4 within 16 and 128, or 500 from 4000 rows on.
    learning_rate : float, default=0.02
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
    n_iter_no_change : int, default=25
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
        Objective "elbo" with ``beta=1`` in the user's units, summed over rows, mean over members. Each row has inducing
        variables of its own, but is charged only 1 / n_rows of their penalty. So this may exceed the log evidence, the
        log density of all targets: it is not a lower bound. Never compare it with that of other families.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, 1 or Q)
        Lengthscales of every layer, of its D outputs or of all, in units of its Q inputs; those of the first layer are
        standardised features. None where a callable ``kernel`` has none.
    kernel_ : kernel object or list of kernel objects
        What ``fit`` has made of ``kernel``, in the first member, as kernel objects of scikit-learn: one, or with hidden
        layers one for each; of outputs with kernels of their own the first one's. None for a callable's.
    base_weight_ : float
        Weight of the base in predictions near the rows that were learnt from, between 0 and 1; 0 without one.
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
    sklearn.gaussian_process.GaussianProcessClassifier : One layer, for up to a few thousand rows.

    References
    ----------
    .. [1] Q. Meng and Y. Zhang, "Amortized Variational Inference for Deep Gaussian Processes", 2024.
    .. [2] B. Jafrasteh et al., "Input Dependent Sparse Gaussian Processes", ICML 2022.
    .. [3] D. Hernández-Lobato et al., "Robust Multi-Class Gaussian Process Classification", NeurIPS 2011.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skdgp import AVDGPClassifier
    >>> X, y = make_moons(n_samples=200, noise=0.2, random_state=0)
    >>> model = AVDGPClassifier(max_iter=50, n_estimators=1, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    beta: float = 30.0
