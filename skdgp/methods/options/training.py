"""Parameters that say how a model is trained, and what its predictions are blended with."""

from numbers import Integral, Real

from ..._sklearn import Interval, StrOptions
from ...inference.objectives import OBJECTIVES
from .option import AUTO, FIRST, TRAINING, WHOLE, WHOLE_OR_ZERO, Option

MAX_ITER = Option(
    [WHOLE, AUTO],
    '"auto" or int',
    FIRST,
    """
    Largest number of epochs, which are passes over the data, for each member. "auto" takes about 1200 steps, or
    2200 from 4000 rows on, in 60 to 400 epochs. With ``propagation="quadrature"`` it takes about 1200 steps in 20
    to 300 epochs. From 20 000 rows on there are fewer epochs: 23 of 60 with 100 000 rows, and 6 with a million.
    Twice as many epochs take twice as long. They are the surest way to better predictions if there are more than
    10 000 rows.
    """,
)

MAX_ITER_AVDGP = MAX_ITER.but(
    text="""
    Largest number of epochs, which are passes over the data, for each member. "auto" takes about 400 steps in 40 to
    300 epochs. From 20 000 rows on there are fewer epochs: 15 with 100 000 rows, and 4 with a million. Twice as many
    epochs take twice as long. They are the surest way to better predictions if there are more than 10 000 rows.
    """,
)

MAX_ITER_SOLVEGP = MAX_ITER.but(
    text="""
    Largest number of epochs, which are passes over the data, for each member; in a collapsed fit, of iterations of
    L-BFGS. "auto" is at most 40 iterations in a collapsed fit, and 12 with a base, beside which more gain nothing. By
    minibatches it takes about 1000 steps, or 2000 from 4000 rows on, in 20 to 400 epochs. If the posterior is computed
    in closed form every few epochs, it takes 500 and 700 steps instead, and with a base 100, in 12 epochs at least.
    From 20 000 rows on there are fewer epochs: 8 with 100 000 rows, 5 of them with a base, and 2 with a million.
    """,
)

METHOD = Option(
    [StrOptions({"auto", "svi", "collapsed"})],
    '{"auto", "svi", "collapsed"}',
    TRAINING,
    """
    How the model learns. "svi" learns from minibatches with Adam. If the posterior has a closed form, "svi" also
    computes the best posterior every few epochs, up to 100 000 rows. "collapsed" learns from all rows at once in
    float64: the posterior is always the best one, and L-BFGS learns everything else. "auto" is "collapsed" up to
    2000 rows, and "svi" for more rows, for rows that are held out, or if another parameter rules "collapsed" out.
    With ``inducing="fourier"`` and no second set, "auto" is "collapsed" for any number of rows, since it sums over
    the rows only once.
    """,
)

OBJECTIVE = Option(
    [StrOptions({"auto", *OBJECTIVES})],
    '{"auto", "elbo", "predictive"}',
    TRAINING,
    """
    What training maximises. "elbo", the safe choice, is the evidence lower bound; for AVDGP it is an approximation
    of that bound. "predictive" is the log predictive density of the targets, or the log probability of the labels,
    minus the same penalty on the inducing variables. It can make predicted densities better, but predicted means
    worse. "auto" is "elbo". A regressor with 1000 rows or more then also trains a member of AVDGP's kind by
    "predictive"; with 300 or more if targets are not distributed as the noise says. If held-out rows gain, predictions
    are a mixture with it. Its weight is limited, so that means stay about as good. This needs Gaussian noise, held-out
    rows, a base, and neither ``trend`` nor ``max_time``. DSDGP and SOLVEGP try it with up to 50 000 rows.
    ``partial_fit`` goes on without the member.
    """,
)

MAX_TIME = Option(
    [Interval(Real, 0, None, closed="neither"), None],
    "float or None",
    TRAINING,
    """
    Seconds that a ``fit`` may take, all of it counted. The base is computed first, since it brings most. The schedule
    of training then ends after three quarters of the time. Neighbours, and a second base without outliers, are left out
    if there is no time for them. A warning says what was cut. What cannot be divided may take longer: the first base,
    an epoch of a collapsed fit, the regressors of a ``trend``, and the judging after training. Results depend on the
    speed of the machine then. ``partial_fit`` has no limit.
    """,
)

N_ESTIMATORS = Option(
    [WHOLE, AUTO],
    '"auto" or int',
    TRAINING,
    """
    Number of models in the ensemble, its members. They differ in their random seeds and in the rows that they hold
    out, and predict together. "auto" is 5 up to about 4000 rows, and falls to 1 at about 10 000 rows. 1 takes least
    time; the papers train a single model.
    """,
)

BETA = Option(
    [Interval(Real, 0, None, closed="left")],
    "float",
    TRAINING,
    """
    Weight of the Kullback-Leibler penalty, which keeps the posterior of the inducing variables near their prior.
    Raise it if the model overfits, and lower it if the model underfits; 0.01, 0.1 and 1 are values to try. With 1
    the objective is the evidence lower bound, which overestimates the noise if ``covariance="diag"``.
    """,
)

BETA_AVDGP = BETA.but(
    text="""
    Weight of the Kullback-Leibler penalty, which keeps the inducing variables near their prior. Raise it if the
    model overfits, and lower it if the model underfits; 1, 10, 100 and 1000 are values to try. 1 is the paper's
    choice, with which small data sets overfit: the penalty of each row is divided by the number of rows. The
    default is 100 for regression and 30 for classes, since a label says less than a number.
    """,
)

BETA_SOLVEGP = BETA.but(
    values=[Interval(Real, 0, None, closed="left"), AUTO],
    kind='"auto" or float',
    text="""
    Weight of the Kullback-Leibler penalty, which keeps the posterior of the inducing variables near their prior. 1
    is the evidence lower bound. "auto" is 0.1 for regression by minibatches with Gaussian noise and without
    ``n_latent_outputs``, since many inducing points then learn more from many rows; otherwise it is 1. Raise it if
    the model overfits.
    """,
)

N_RESTARTS_OPTIMIZER = Option(
    [WHOLE_OR_ZERO],
    "int",
    TRAINING,
    """
    Number of further searches for the hyperparameters of a kernel object. The first search starts at the values of
    the object, the others at values drawn between its bounds on a logarithmic scale. Those that make up to 500 rows
    most likely are where training starts. A ``fit`` that continues an earlier one searches no more. Other kernels,
    and other than Gaussian noise, take only 0.
    """,
)

BATCH_SIZE = Option(
    [WHOLE, AUTO],
    '"auto" or int',
    TRAINING,
    """
    Largest number of rows in a minibatch; all minibatches of a fit have about the same size. "auto" is a quarter of
    the rows, but at least 16 and at most 250, and 500 from 4000 rows on. With ``propagation="quadrature"`` it is at
    most 100, and 250 from 4000 rows on. Larger minibatches use a GPU better, but an epoch then has fewer steps.
    """,
)

BATCH_SIZE_AVDGP = BATCH_SIZE.but(
    text="""
    Largest number of rows in a minibatch; all minibatches of a fit have about the same size. "auto" is a quarter of
    the rows, but at least 16 and at most 128, and 500 from 4000 rows on. Larger minibatches use a GPU better, but
    an epoch then has fewer steps.
    """,
)

BATCH_SIZE_SOLVEGP = BATCH_SIZE.but(
    text="""
    Largest number of rows in a minibatch; all minibatches of a fit have about the same size. "auto" is a quarter of
    the rows, but at least 16 and at most 250, and 1024 from 4000 rows on. Larger minibatches use a GPU better, but
    an epoch then has fewer steps.
    """,
)

LEARNING_RATE = Option(
    [Interval(Real, 0, None, closed="neither")],
    "float",
    TRAINING,
    """
    Highest learning rate of Adam. In ``fit`` the rate climbs to it during the first quarter of training, and then
    falls to zero along a cosine. If an epoch ends in numbers that are not finite, training halves the rate and
    repeats the epoch.
    """,
)

EARLY_STOPPING = Option(
    ["boolean"],
    "bool",
    TRAINING,
    """
    Whether each member holds out rows, the same share of each class, and keeps the parameters of the epoch that
    predicts them best. The score is the log predictive density of the targets, or the log probability of the
    labels. The held-out rows also set the noise variance of a regressor. With False, and without ``X_val`` in
    ``fit``, only SOLVEGPRegressor can have a ``base``. Models without one then keep the noise variance that
    training has found, and their intervals tend to be too wide or too narrow: check the coverage on held-out rows.
    """,
)

N_ITER_NO_CHANGE = Option(
    [WHOLE],
    "int",
    TRAINING,
    """
    Number of epochs without a better score on held-out rows after which training of a member stops. Late epochs are
    often the best ones, so a small number saves time but costs accuracy.
    """,
)

BASE = Option(
    [StrOptions({"auto", "gp"}), None],
    '{"auto", "gp"} or None',
    TRAINING,
    """
    Model that predictions are blended with. "gp" is a sparse GP in closed form, which takes seconds to fit.
    Held-out rows decide its weight, ``base_weight_``. Far from all rows the base takes over, and everywhere if there
    are too few rows to judge the trained model. With None that model predicts alone. "auto" is "gp" wherever a base
    is possible, and otherwise None. It is not possible with kernel objects, for example, or where no rows can judge
    it. "gp" warns there.
    """,
)

N_NEIGHBORS = Option(
    [Interval(Integral, 0, 1000, closed="both"), AUTO],
    '"auto" or int',
    TRAINING,
    """
    Number of nearest training rows whose residuals correct each prediction. A residual is what the model has left
    over of a row's target. "auto" is 24 if the correction improves the density of held-out rows by more than chance
    explains, and otherwise 0. 0 is no correction, and 1000 is the largest number. With a correction the estimator
    stores up to 50 000 training rows, and predictions take longer.
    """,
)

WARM_START = Option(
    ["boolean"],
    "bool",
    TRAINING,
    """
    Whether ``fit`` continues from the parameters of the last fit. The scaling of the data, and the classes of a
    classifier, then stay those of the last fit.
    """,
)
