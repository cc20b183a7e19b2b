"""Deep Gaussian processes with amortised inducing variables."""

from ..methods.avdgp import AVDGP, AVDGPParameters
from ..methods.options import parameter, training
from ._classification import DeepGPClassifier
from ._parameters import estimator
from ._regression import DeepGPRegressor


@estimator
class AVDGPRegressor(DeepGPRegressor, AVDGPParameters):
    """Deep Gaussian process regression with amortised inducing variables.

    This is the first choice for more than 10 000 rows. See :doc:`/which_estimator`.

    Every row has a few inducing variables of its own: function values at points near the row, which summarise the
    function there. Small networks compute them from the row itself and, in deeper layers, from the outputs of the layer
    before [1]_. A row then needs far fewer inducing points than a table whose rows share them, and minibatches may have
    any size. The estimator is an ensemble of such models, whose predictions are combined in one Gaussian mixture. Each
    member of the ensemble is judged by rows that it has not learnt from.

    Parameters
    ----------
    hidden_dims : sequence of int, default=(16, 4)
        Number of outputs of each hidden GP layer, from the first to the last. The length of the sequence is the number
        of hidden layers. ``()`` has no hidden layer: the model is then a shallow GP, called SGP-AVI in the paper. More
        and wider layers take more time.
    n_inducing : "auto", int or sequence of int, default="auto"
        Number of inducing points of each row, at which the functions near the row are summarised. One number is for all
        layers; a sequence has one number for each hidden layer and one for the last layer. "auto" is 8 in the first
        layer and 4 in the others, which is nearly always enough. Twice as many points take up to five times as long.
    kernel : str, kernel object, callable, or list with one for each layer, default="matern52"
        Covariance function of each layer: how smooth its functions are. "matern52" suits most tables, "rbf" is for very
        smooth functions, and "matern32" and "matern12" are for rougher ones. A kernel object of
        ``sklearn.gaussian_process.kernels`` may be a sum or a product of kernels. Its lengthscales are in the units of
        ``X``, its variances in units of standardised targets, and predictions have no ``base``. A ``WhiteKernel`` that
        is added to it says where the variance of Gaussian noise starts, and its bounds; see :doc:`/from_gpr`. A
        callable ``kernel(n_inputs, n_outputs, ard=ard)`` returns a ``skdgp.gp.kernels.Kernel``, and is called with
        ``n_outputs=1`` where outputs share the kernel; see :doc:`/contributing`. :doc:`/choosing` says which kernel
        suits which function.
    max_iter : "auto" or int, default="auto"
        Largest number of epochs, which are passes over the data, for each member. "auto" takes about 400 steps in 40 to
        300 epochs. From 20 000 rows on there are fewer epochs: 15 with 100 000 rows, and 4 with a million. Twice as
        many epochs take twice as long. They are the surest way to better predictions if there are more than 10 000
        rows.
    likelihood : str, likelihood or its class, default="gaussian"
        Distribution of the targets around the function. "gaussian" is Gaussian noise with the same variance for all
        rows; "lognormal" is the same for logarithms of positive targets. These two also take targets of which some are
        only known to lie in an interval. "heteroskedastic" is Gaussian noise whose variance depends on the row;
        "student_t" is for heavy tails; a few outliers need no other likelihood. "poisson" and "negative_binomial" are
        for counts, the latter for counts with more variance. "gamma" is for positive and skewed targets, and "beta" for
        shares between 0 and 1. "ordinal" is for grades, such as ratings from 1 to 5, of which only the order matters.
        You can also write one of your own; see :doc:`/targets` and :doc:`/contributing`. Neighbours correct only
        "gaussian", "lognormal" and additive noise of your own, with exact targets.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness, such as initial values, held-out rows and minibatches. An integer makes fits
        repeatable.
    rule : {"ar1", "ar2", "ar2p"}, default="ar2p"
        What a deeper layer computes a row's inducing variables from. "ar1" computes them from each Monte Carlo sample
        of the layer before, one set for each sample. "ar2" computes one set from the mean of the samples. "ar2p"
        computes one set from the mean over learnt quadrature points, so that training has no random samples.
    ard : bool, default=False
        Whether each input of a layer has a lengthscale of its own. With True, features that do not matter can drop out
        in the first layer, since their lengthscales become long. With False, all inputs of a layer share one
        lengthscale.
    mean : {"zero", "linear", "identity"}, default="zero"
        Mean functions of the hidden layers. "zero" is none. "identity" passes the inputs of a layer on; if the layer
        has fewer outputs than inputs, it passes their principal components on. "linear" starts like "identity" and is
        learnt. The last layer always has the mean zero.
    covariance : {"diag", "full", "diag_unwhitened", "full_unwhitened"}, default="diag"
        Covariance of the Gaussian posterior of the inducing variables. "full" learns how the inducing variables vary
        together. "diag" leaves their correlations out, which takes less time. Both are about whitened inducing
        variables, whose prior is the same whatever the kernel is. "diag_unwhitened" and "full_unwhitened" are about the
        inducing variables themselves, as in some papers. Their prior covariance has to be inverted, and so the model
        trains and predicts in float64, unless ``dtype`` says otherwise.
    inducing_map : {"affine", "mlp"}, default="affine"
        How networks compute the inducing variables of a row. "affine" computes the inducing points by affine maps, and
        the mean and the covariance of the inducing variables by one network each. "mlp" computes all three by one
        network, as in IDSGP [2]_.
    network_width : int, None, or sequence of these, default=128
        Number of units in the hidden layers of the inference networks, which compute the inducing variables. One number
        is for both of two hidden layers; a sequence has a number for each hidden layer, of which there are then as
        many. Wide networks predict better and take little more time. None is the smaller of a network's number of
        inputs and its number of outputs, the paper's choice.
    n_samples : int, default=8
        Number of Monte Carlo samples, or of quadrature points, for each row. Predictions use all of them. Training with
        ``objective="elbo"`` draws a single sample where one is enough: in DSDGP with ``propagation="monte_carlo"``, and
        in AVDGP with ``rule="ar1"``. Training with ``objective="predictive"`` uses all of them. More samples then bring
        the objective closer to the log density that it stands for.
    objective : {"auto", "elbo", "predictive"}, default="auto"
        What training maximises. "elbo", the safe choice, is the evidence lower bound; for AVDGP it is an approximation
        of that bound. "predictive" is the log predictive density of the targets, or the log probability of the labels,
        minus the same penalty on the inducing variables. It can make predicted densities better, but predicted means
        worse. "auto" is "elbo". A regressor with 1000 rows or more then also trains a member of AVDGP's kind by
        "predictive"; with 300 or more if targets are not distributed as the noise says. If held-out rows gain,
        predictions are a mixture with it. Its weight is limited, so that means stay about as good. This needs Gaussian
        noise, held-out rows, a base, and neither ``trend`` nor ``max_time``. DSDGP and SOLVEGP try it with up to 50 000
        rows. ``partial_fit`` goes on without the member.
    n_estimators : "auto" or int, default="auto"
        Number of models in the ensemble, its members. They differ in their random seeds and in the rows that they hold
        out, and predict together. "auto" is 5 up to about 4000 rows, and falls to 1 at about 10 000 rows. 1 takes least
        time; the papers train a single model.
    beta : float, default=100.0
        Weight of the Kullback-Leibler penalty, which keeps the inducing variables near their prior. Raise it if the
        model overfits, and lower it if the model underfits; 1, 10, 100 and 1000 are values to try. 1 is the paper's
        choice, with which small data sets overfit: the penalty of each row is divided by the number of rows. The
        default is 100 for regression and 30 for classes, since a label says less than a number.
    batch_size : "auto" or int, default="auto"
        Largest number of rows in a minibatch; all minibatches of a fit have about the same size. "auto" is a quarter of
        the rows, but at least 16 and at most 128, and 500 from 4000 rows on. Larger minibatches use a GPU better, but
        an epoch then has fewer steps.
    learning_rate : float, default=0.02
        Highest learning rate of Adam. In ``fit`` the rate climbs to it during the first quarter of training, and then
        falls to zero along a cosine. If an epoch ends in numbers that are not finite, training halves the rate and
        repeats the epoch.
    early_stopping : bool, default=True
        Whether each member holds out rows, the same share of each class, and keeps the parameters of the epoch that
        predicts them best. The score is the log predictive density of the targets, or the log probability of the
        labels. The held-out rows also set the noise variance of a regressor. With False, and without ``X_val`` in
        ``fit``, only SOLVEGPRegressor can have a ``base``. Models without one then keep the noise variance that
        training has found, and their intervals tend to be too wide or too narrow: check the coverage on held-out rows.
    n_iter_no_change : int, default=25
        Number of epochs without a better score on held-out rows after which training of a member stops. Late epochs are
        often the best ones, so a small number saves time but costs accuracy.
    base : {"auto", "gp"} or None, default="auto"
        Model that predictions are blended with. "gp" is a sparse GP in closed form, which takes seconds to fit.
        Held-out rows decide its weight, ``base_weight_``. Far from all rows the base takes over, and everywhere if
        there are too few rows to judge the trained model. With None that model predicts alone. "auto" is "gp" wherever
        a base is possible, and otherwise None. It is not possible with kernel objects, for example, or where no rows
        can judge it. "gp" warns there.
    n_neighbors : "auto" or int, default="auto"
        Number of nearest training rows whose residuals correct each prediction. A residual is what the model has left
        over of a row's target. "auto" is 24 if the correction improves the density of held-out rows by more than chance
        explains, and otherwise 0. 0 is no correction, and 1000 is the largest number. With a correction the estimator
        stores up to 50 000 training rows, and predictions take longer.
    warm_start : bool, default=False
        Whether ``fit`` continues from the parameters of the last fit. The scaling of the data, and the classes of a
        classifier, then stay those of the last fit.
    max_time : float or None, default=None
        Seconds that a ``fit`` may take, all of it counted. The base is computed first, since it brings most. The
        schedule of training then ends after three quarters of the time. Neighbours, and a second base without outliers,
        are left out if there is no time for them. A warning says what was cut. What cannot be divided may take longer:
        the first base, an epoch of a collapsed fit, the regressors of a ``trend``, and the judging after training.
        Results depend on the speed of the machine then. ``partial_fit`` has no limit.
    target_transform : "auto", "log", "logit", "yeo-johnson", transformer or None, default=None
        Transformation of the targets before the model learns them: "log" for positive targets, "logit" for shares
        between 0 and 1, "yeo-johnson" for a power that makes targets less skewed, or a transformer of scikit-learn such
        as ``QuantileTransformer()`` that is strictly monotone in each column. "auto" compares None, "yeo-johnson" and,
        if all targets are positive, "log": it takes what makes left-out rows clearly more likely, which
        ``target_transform_`` then names. Predictions are transformed back: means, densities, quantiles and draws are in
        the units of ``y``. ``lower_bound_`` and ``noise_variance_`` are those of the transformed targets. See
        :doc:`/targets`.
    trend : "auto", regressor or None, default=None
        Regressor of scikit-learn that explains the targets first, such as ``Ridge()`` or
        ``HistGradientBoostingRegressor()``. The model learns what it leaves over, and sees its predictions as one more
        feature. Ten copies of it each leave out a tenth of the rows, so that the model meets trends of rows that were
        not learnt from. The regressor sees numbers in the units of ``X``, and a column for each level of a category.
        "auto" fits models without a trend, with boosted trees and, up to 10 000 rows, with extremely randomised trees,
        and predicts a mixture of them; left-out rows decide the weights. On small tables it is often clearly better,
        and it takes about three times as long. There are no gradients with a trend. None is no trend. See
        :doc:`/choosing`.
    validation_fraction : float, default=0.1
        Share of the rows that each member holds out with ``early_stopping``, and of the first chunk of ``partial_fit``
        (regressors). If SOLVEGPRegressor learns from minibatches without ``early_stopping``, it holds out this share,
        at most 1000 rows, only to judge its ``base`` and its neighbours. With Gaussian noise it does so up to 100 000
        rows, and only if the posterior has a closed form, which it does not have with ``covariance="diag"``, for
        example. A collapsed fit holds rows out for a member that learns densities (``objective``).
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Which features are categories: a mask, or the numbers or names of columns. "from_dtype" takes columns of text
        and of dtype category, if ``X`` is a data frame of pandas or Polars. With None all features are numbers. Any two
        levels of a category are equally far from each other, and so is a level that ``fit`` has not seen. A category of
        more than 128 levels becomes a number; see :doc:`/tables`.
    normalize_X : bool, default=True
        Whether to standardise the features before the model sees them.
    normalize_y : bool, default=True
        Whether to standardise the targets before the model sees them. Predictions are in the units of ``y`` either way.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the computations. "auto" trains in float32, which is faster. It predicts in float32 if ``X`` is in
        float32, and in float64 otherwise; AVDGP also predicts 10 000 rows or more at once in float32. If ``covariance``
        is "diag_unwhitened" or "full_unwhitened", "auto" trains and predicts in float64. "float32" and "float64" are
        for both training and predictions. For these two, "float32" is too coarse if inducing points lie close together
        or lengthscales are long: means and deviations can then be far off.
    cuda_graphs : bool or "auto", default="auto"
        Whether to record a training step on a CUDA device and replay it, which launches all its operations at once.
        Steps then take a half to an eighth of the time. "auto" records if all parts of the model are of this package or
        of PyTorch: a likelihood or kernel of your own must not decide by numbers that it computes. On the CPU, and with
        several processes, nothing is recorded.
    device : str, default="auto"
        PyTorch device such as "cpu" or "cuda:0". "auto" takes a GPU if CUDA is available, and the CPU otherwise; see
        :doc:`/scale`.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP``.
    n_iter_ : int
        Number of iterations of the member that was trained longest, counted as in ``max_iter``. Each call of
        ``partial_fit`` counts as one iteration.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row in each iteration: the mean over the members that were still in training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Score of the held-out rows after each epoch: the log predictive density of standardised targets, or the log
        probability of the labels. It is the mean over rows and members, and empty if no rows were held out.
    best_iter_ : list of int
        For each member, the iteration whose parameters it keeps. The first iteration is 1.
    lower_bound_ : float
        The objective "elbo" with ``beta=1``, in the units of ``y``: the sum over rows, and the mean over members. In
        spite of its name it is not a lower bound of the log evidence, which is the log density of all targets. It may
        exceed the log evidence, because each row has inducing variables of its own but pays only 1 / n_rows of their
        penalty. Do not compare it with that of DSDGP or SOLVEGP; see :doc:`/methods`.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, 1 or Q)
        Lengthscales of each layer. The second axis has a row for each of the layer's D outputs, or one if they share a
        kernel. The last axis has a number for each of its Q inputs, or one if they share a lengthscale. Those of the
        first layer are in units of standardised features, and those of other layers in units of the layer's inputs. A
        layer has None if its kernel has no lengthscale.
    feature_importances_ : ndarray of shape (n_features,)
        How much predictions change with each feature; they sum to one. Computed anew at each access, by predicting rows
        in which one feature has been replaced. See :doc:`/functions`.
    kernel_ : kernel object or list of kernel objects
        Kernels that the first member has learnt, as kernel objects of scikit-learn. A model of one layer has one
        kernel, and a model with hidden layers a list with one for each layer. Where outputs have kernels of their own
        it is that of the first output. A callable's kernel has None in its place.
    base_weight_ : float
        Weight of the base in predictions near the training rows, between 0 and 1; 0 if there is no base.
    outliers_ : ndarray of int
        Numbers of the rows of ``fit`` whose targets are so far out that nothing has learnt from them, since all other
        rows are predicted better then. Noise has heavy tails that allow for such targets. With another ``likelihood``,
        with a ``target_transform`` or without a base there are none.
    neighbors_ : dict or None
        The correction by nearest rows, or None if there is none. ``"n_neighbors"`` is the number of rows.
        ``"length_scales"``, of shape ``(n_features_in_,)``, are in units of the features. ``"variance"``,
        ``"noise_variance"`` and ``"wide_noise_variance"`` are in the square of the units of ``y``. The noise of most
        rows has the second variance. That of a share of the rows, ``"wide_noise_share"``, has the third, since their
        neighbours say nothing about them. ``"gain"`` is how much the correction adds to the mean log density of
        held-out rows, and ``"standard_error"`` is the error of this number.
    target_transform_ : str, transformer or None
        ``target_transform``, or what rows have chosen in place of "auto".
    target_transformer_ : object or None
        The fitted ``target_transform_``, or None if there is none. If it is a transformer, its ``inverse_transform``
        stays within ten ranges of the training targets beyond their smallest and their largest value. "log" has no such
        limit.
    noise_variance_ : float or ndarray of shape (n_outputs,)
        Variance of the observation noise, mean over members, in the square of the units of ``y``. With
        ``target_transform`` it is in the square of the units of the transformed targets. It exists only if the noise is
        the same for all rows without missing cells.
    fit_times_ : dict of float
        Seconds that ``fit`` took for "gaps", "base", "training", "judging" by held-out rows, "neighbors" and
        "leave_one_out", as far as it had these parts, and in "total".
    device_ : torch.device
        Device on which the members are.
    n_features_in_ : int
        Number of features seen in ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if ``X`` had names that are strings.
    is_categorical_ : ndarray of shape (`n_features_in_`,) or None
        Mask of the features that are categories, or None if there are none.
    date_features_ : dict or None
        For each column of dates or durations a list of what the model sees of it: "days", and those of "year",
        "week" and "day" in which dates repeat. None if there is no such column.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessRegressor : Exact, for up to a few thousand rows.

    References
    ----------
    .. [1] Meng, Q. and Zhang, Y., "Amortized Variational Inference for Deep Gaussian Processes", 2024.
    .. [2] Jafrasteh, B. et al., "Input Dependent Sparse Gaussian Processes", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skdgp import AVDGPRegressor
    >>> X, y = make_friedman1(n_samples=200, noise=1.0, random_state=0)
    >>> model = AVDGPRegressor(max_iter=30, n_estimators=1, random_state=0).fit(
    ...     X, y
    ... )
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    >>> bool(model.score(X, y) > 0.7)
    True
    """

    _method_class = AVDGP


@estimator
class AVDGPClassifier(DeepGPClassifier, AVDGPParameters):
    """Deep Gaussian process classification with amortised inducing variables.

    This is the first choice for more than 10 000 rows. See :doc:`/which_estimator`.

    Every row has a few inducing variables of its own: function values at points near the row, which summarise the
    function there. Small networks compute them from the row itself and, in deeper layers, from the outputs of the layer
    before [1]_. With two classes the model has one function f and a probit link, p(y = 1 | f) = Φ(f). With more classes
    it has one function for each class. The label is then the class whose function is largest, but with a probability of
    0.001 it is another one (robust max [3]_). The estimator is an ensemble of such models, and averages their
    probabilities. Each member of the ensemble is judged by rows that it has not learnt from.

    Parameters
    ----------
    hidden_dims : sequence of int, default=(16, 4)
        Number of outputs of each hidden GP layer, from the first to the last. The length of the sequence is the number
        of hidden layers. ``()`` has no hidden layer: the model is then a shallow GP, called SGP-AVI in the paper. More
        and wider layers take more time.
    n_inducing : "auto", int or sequence of int, default="auto"
        Number of inducing points of each row, at which the functions near the row are summarised. One number is for all
        layers; a sequence has one number for each hidden layer and one for the last layer. "auto" is 8 in the first
        layer and 4 in the others, which is nearly always enough. Twice as many points take up to five times as long.
    kernel : str, kernel object, callable, or list with one for each layer, default="matern52"
        Covariance function of each layer: how smooth its functions are. "matern52" suits most tables, "rbf" is for very
        smooth functions, and "matern32" and "matern12" are for rougher ones. A kernel object of
        ``sklearn.gaussian_process.kernels`` may be a sum or a product of kernels. Its lengthscales are in the units of
        ``X``, its variances in units of standardised targets, and predictions have no ``base``. A ``WhiteKernel`` that
        is added to it says where the variance of Gaussian noise starts, and its bounds; see :doc:`/from_gpr`. A
        callable ``kernel(n_inputs, n_outputs, ard=ard)`` returns a ``skdgp.gp.kernels.Kernel``, and is called with
        ``n_outputs=1`` where outputs share the kernel; see :doc:`/contributing`. :doc:`/choosing` says which kernel
        suits which function.
    max_iter : "auto" or int, default="auto"
        Largest number of epochs, which are passes over the data, for each member. "auto" takes about 400 steps in 40 to
        300 epochs. From 20 000 rows on there are fewer epochs: 15 with 100 000 rows, and 4 with a million. Twice as
        many epochs take twice as long. They are the surest way to better predictions if there are more than 10 000
        rows.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness, such as initial values, held-out rows and minibatches. An integer makes fits
        repeatable.
    rule : {"ar1", "ar2", "ar2p"}, default="ar2p"
        What a deeper layer computes a row's inducing variables from. "ar1" computes them from each Monte Carlo sample
        of the layer before, one set for each sample. "ar2" computes one set from the mean of the samples. "ar2p"
        computes one set from the mean over learnt quadrature points, so that training has no random samples.
    ard : bool, default=False
        Whether each input of a layer has a lengthscale of its own. With True, features that do not matter can drop out
        in the first layer, since their lengthscales become long. With False, all inputs of a layer share one
        lengthscale.
    mean : {"zero", "linear", "identity"}, default="zero"
        Mean functions of the hidden layers. "zero" is none. "identity" passes the inputs of a layer on; if the layer
        has fewer outputs than inputs, it passes their principal components on. "linear" starts like "identity" and is
        learnt. The last layer always has the mean zero.
    covariance : {"diag", "full", "diag_unwhitened", "full_unwhitened"}, default="diag"
        Covariance of the Gaussian posterior of the inducing variables. "full" learns how the inducing variables vary
        together. "diag" leaves their correlations out, which takes less time. Both are about whitened inducing
        variables, whose prior is the same whatever the kernel is. "diag_unwhitened" and "full_unwhitened" are about the
        inducing variables themselves, as in some papers. Their prior covariance has to be inverted, and so the model
        trains and predicts in float64, unless ``dtype`` says otherwise.
    inducing_map : {"affine", "mlp"}, default="affine"
        How networks compute the inducing variables of a row. "affine" computes the inducing points by affine maps, and
        the mean and the covariance of the inducing variables by one network each. "mlp" computes all three by one
        network, as in IDSGP [2]_.
    network_width : int, None, or sequence of these, default=128
        Number of units in the hidden layers of the inference networks, which compute the inducing variables. One number
        is for both of two hidden layers; a sequence has a number for each hidden layer, of which there are then as
        many. Wide networks predict better and take little more time. None is the smaller of a network's number of
        inputs and its number of outputs, the paper's choice.
    n_samples : int, default=8
        Number of Monte Carlo samples, or of quadrature points, for each row. Predictions use all of them. Training with
        ``objective="elbo"`` draws a single sample where one is enough: in DSDGP with ``propagation="monte_carlo"``, and
        in AVDGP with ``rule="ar1"``. Training with ``objective="predictive"`` uses all of them. More samples then bring
        the objective closer to the log density that it stands for.
    objective : {"auto", "elbo", "predictive"}, default="auto"
        What training maximises. "elbo", the safe choice, is the evidence lower bound; for AVDGP it is an approximation
        of that bound. "predictive" is the log predictive density of the targets, or the log probability of the labels,
        minus the same penalty on the inducing variables. It can make predicted densities better, but predicted means
        worse. "auto" is "elbo". A regressor with 1000 rows or more then also trains a member of AVDGP's kind by
        "predictive"; with 300 or more if targets are not distributed as the noise says. If held-out rows gain,
        predictions are a mixture with it. Its weight is limited, so that means stay about as good. This needs Gaussian
        noise, held-out rows, a base, and neither ``trend`` nor ``max_time``. DSDGP and SOLVEGP try it with up to 50 000
        rows. ``partial_fit`` goes on without the member.
    n_estimators : "auto" or int, default="auto"
        Number of models in the ensemble, its members. They differ in their random seeds and in the rows that they hold
        out, and predict together. "auto" is 5 up to about 4000 rows, and falls to 1 at about 10 000 rows. 1 takes least
        time; the papers train a single model.
    beta : float, default=30.0
        Weight of the Kullback-Leibler penalty, which keeps the inducing variables near their prior. Raise it if the
        model overfits, and lower it if the model underfits; 1, 10, 100 and 1000 are values to try. 1 is the paper's
        choice, with which small data sets overfit: the penalty of each row is divided by the number of rows. The
        default is 100 for regression and 30 for classes, since a label says less than a number.
    batch_size : "auto" or int, default="auto"
        Largest number of rows in a minibatch; all minibatches of a fit have about the same size. "auto" is a quarter of
        the rows, but at least 16 and at most 128, and 500 from 4000 rows on. Larger minibatches use a GPU better, but
        an epoch then has fewer steps.
    learning_rate : float, default=0.02
        Highest learning rate of Adam. In ``fit`` the rate climbs to it during the first quarter of training, and then
        falls to zero along a cosine. If an epoch ends in numbers that are not finite, training halves the rate and
        repeats the epoch.
    early_stopping : bool, default=True
        Whether each member holds out rows, the same share of each class, and keeps the parameters of the epoch that
        predicts them best. The score is the log predictive density of the targets, or the log probability of the
        labels. The held-out rows also set the noise variance of a regressor. With False, and without ``X_val`` in
        ``fit``, only SOLVEGPRegressor can have a ``base``. Models without one then keep the noise variance that
        training has found, and their intervals tend to be too wide or too narrow: check the coverage on held-out rows.
    n_iter_no_change : int, default=25
        Number of epochs without a better score on held-out rows after which training of a member stops. Late epochs are
        often the best ones, so a small number saves time but costs accuracy.
    base : {"auto", "gp"} or None, default="auto"
        Model that predictions are blended with. "gp" is a sparse GP in closed form, which takes seconds to fit.
        Held-out rows decide its weight, ``base_weight_``. Far from all rows the base takes over, and everywhere if
        there are too few rows to judge the trained model. With None that model predicts alone. "auto" is "gp" wherever
        a base is possible, and otherwise None. It is not possible with kernel objects, for example, or where no rows
        can judge it. "gp" warns there.
    warm_start : bool, default=False
        Whether ``fit`` continues from the parameters of the last fit. The scaling of the data, and the classes of a
        classifier, then stay those of the last fit.
    max_time : float or None, default=None
        Seconds that a ``fit`` may take, all of it counted. The base is computed first, since it brings most. The
        schedule of training then ends after three quarters of the time. Neighbours, and a second base without outliers,
        are left out if there is no time for them. A warning says what was cut. What cannot be divided may take longer:
        the first base, an epoch of a collapsed fit, the regressors of a ``trend``, and the judging after training.
        Results depend on the speed of the machine then. ``partial_fit`` has no limit.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, which multiply ``sample_weight``. A larger weight makes a class more probable.
        "balanced" gives each class a weight in inverse proportion to its number of rows, whatever ``sample_weight`` is;
        the mean weight of the rows is then one. A class of weight zero stays in ``classes_``, though no row speaks for
        it.
    validation_fraction : float, default=0.1
        Share of the rows that each member holds out with ``early_stopping``, and of the first chunk of ``partial_fit``
        (regressors). If SOLVEGPRegressor learns from minibatches without ``early_stopping``, it holds out this share,
        at most 1000 rows, only to judge its ``base`` and its neighbours. With Gaussian noise it does so up to 100 000
        rows, and only if the posterior has a closed form, which it does not have with ``covariance="diag"``, for
        example. A collapsed fit holds rows out for a member that learns densities (``objective``).
    categorical_features : "from_dtype", array-like or None, default="from_dtype"
        Which features are categories: a mask, or the numbers or names of columns. "from_dtype" takes columns of text
        and of dtype category, if ``X`` is a data frame of pandas or Polars. With None all features are numbers. Any two
        levels of a category are equally far from each other, and so is a level that ``fit`` has not seen. A category of
        more than 128 levels becomes a number; see :doc:`/tables`.
    normalize_X : bool, default=True
        Whether to standardise the features before the model sees them.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the computations. "auto" trains in float32, which is faster. It predicts in float32 if ``X`` is in
        float32, and in float64 otherwise; AVDGP also predicts 10 000 rows or more at once in float32. If ``covariance``
        is "diag_unwhitened" or "full_unwhitened", "auto" trains and predicts in float64. "float32" and "float64" are
        for both training and predictions. For these two, "float32" is too coarse if inducing points lie close together
        or lengthscales are long: means and deviations can then be far off.
    cuda_graphs : bool or "auto", default="auto"
        Whether to record a training step on a CUDA device and replay it, which launches all its operations at once.
        Steps then take a half to an eighth of the time. "auto" records if all parts of the model are of this package or
        of PyTorch: a likelihood or kernel of your own must not decide by numbers that it computes. On the CPU, and with
        several processes, nothing is recorded.
    device : str, default="auto"
        PyTorch device such as "cpu" or "cuda:0". "auto" takes a GPU if CUDA is available, and the CPU otherwise; see
        :doc:`/scale`.
    verbose : int, default=0
        1 shows the progress of training on one line.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes, sorted.
    module_ : torch.nn.ModuleList
        The members of the ensemble, each a ``skdgp.gp.deep_gp.DeepGP``.
    n_iter_ : int
        Number of iterations of the member that was trained longest, counted as in ``max_iter``. Each call of
        ``partial_fit`` counts as one iteration.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Negative objective per row in each iteration: the mean over the members that were still in training.
    validation_scores_ : ndarray of shape (`n_iter_`,)
        Score of the held-out rows after each epoch: the log predictive density of standardised targets, or the log
        probability of the labels. It is the mean over rows and members, and empty if no rows were held out.
    best_iter_ : list of int
        For each member, the iteration whose parameters it keeps. The first iteration is 1.
    lower_bound_ : float
        The objective "elbo" with ``beta=1``, in the units of ``y``: the sum over rows, and the mean over members. In
        spite of its name it is not a lower bound of the log evidence, which is the log density of all targets. It may
        exceed the log evidence, because each row has inducing variables of its own but pays only 1 / n_rows of their
        penalty. Do not compare it with that of DSDGP or SOLVEGP; see :doc:`/methods`.
    length_scales_ : list of ndarray of shape (n_estimators, 1 or D, 1 or Q)
        Lengthscales of each layer. The second axis has a row for each of the layer's D outputs, or one if they share a
        kernel. The last axis has a number for each of its Q inputs, or one if they share a lengthscale. Those of the
        first layer are in units of standardised features, and those of other layers in units of the layer's inputs. A
        layer has None if its kernel has no lengthscale.
    feature_importances_ : ndarray of shape (n_features,)
        How much predictions change with each feature; they sum to one. Computed anew at each access, by predicting rows
        in which one feature has been replaced. See :doc:`/functions`.
    kernel_ : kernel object or list of kernel objects
        Kernels that the first member has learnt, as kernel objects of scikit-learn. A model of one layer has one
        kernel, and a model with hidden layers a list with one for each layer. Where outputs have kernels of their own
        it is that of the first output. A callable's kernel has None in its place.
    base_weight_ : float
        Weight of the base in predictions near the training rows, between 0 and 1; 0 if there is no base.
    fit_times_ : dict of float
        Seconds that ``fit`` took for "gaps", "base", "training", "judging" by held-out rows, "neighbors" and
        "leave_one_out", as far as it had these parts, and in "total".
    device_ : torch.device
        Device on which the members are.
    n_features_in_ : int
        Number of features seen in ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if ``X`` had names that are strings.
    is_categorical_ : ndarray of shape (`n_features_in_`,) or None
        Mask of the features that are categories, or None if there are none.
    date_features_ : dict or None
        For each column of dates or durations a list of what the model sees of it: "days", and those of "year",
        "week" and "day" in which dates repeat. None if there is no such column.

    See Also
    --------
    sklearn.gaussian_process.GaussianProcessClassifier : One layer, for up to a few thousand rows.

    References
    ----------
    .. [1] Meng, Q. and Zhang, Y., "Amortized Variational Inference for Deep Gaussian Processes", 2024.
    .. [2] Jafrasteh, B. et al., "Input Dependent Sparse Gaussian Processes", ICML 2022.
    .. [3] Hernández-Lobato, D. et al., "Robust Multi-Class Gaussian Process Classification", NeurIPS 2011.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from skdgp import AVDGPClassifier
    >>> X, y = make_moons(n_samples=200, noise=0.2, random_state=0)
    >>> model = AVDGPClassifier(max_iter=50, n_estimators=1, random_state=0).fit(
    ...     X, y
    ... )
    >>> model.predict_proba(X[:3]).shape
    (3, 2)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    beta: float = parameter(training.BETA_AVDGP, 30.0)

    _method_class = AVDGP
