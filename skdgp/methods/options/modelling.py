"""Parameters that say what a model is."""

from numbers import Integral

from ..._sklearn import StrOptions
from ...gp.coupled import COUPLED
from ...gp.kernels import PROFILES
from ...gp.likelihoods import Regression
from ...gp.networks import INFERENCE_NETWORKS
from ..inducing import COVARIANCES, FEATURES
from ..likelihoods import LIKELIHOODS
from .option import AUTO, FIRST, MODEL, WHOLE, WHOLE_OR_ZERO, Option

HIDDEN_DIMS = Option(
    ["array-like", tuple, Integral, AUTO],
    '"auto" or sequence of int',
    FIRST,
    """
    Number of outputs of each hidden GP layer, from the first to the last. The length of the sequence is the number
    of hidden layers. "auto" is two layers as wide as ``X``, but no wider than 30. ``()`` has no hidden layer: the
    model is then a sparse variational GP (SVGP). More and wider layers take more time.
    """,
    shapes=True,
)

HIDDEN_DIMS_AVDGP = HIDDEN_DIMS.but(
    values=["array-like", tuple, Integral],
    kind="sequence of int",
    text="""
    Number of outputs of each hidden GP layer, from the first to the last. The length of the sequence is the number
    of hidden layers. ``()`` has no hidden layer: the model is then a shallow GP, called SGP-AVI in the paper. More
    and wider layers take more time.
    """,
)

N_INDUCING = Option(
    [WHOLE, AUTO, "array-like", tuple],
    '"auto", int or sequence of int',
    FIRST,
    """
    Number of inducing points, at which a layer summarises the function that it has learnt. One number is for all
    layers; a sequence has one number for each hidden layer and one for the last layer. "auto" is 64, 128 from 2000
    rows on, and 256 from 10 000 rows on. If ``layer_posterior`` is not "factorised", "auto" is always 64. More
    points follow more complicated functions, but time grows with their square and in the end with their cube. If a
    number is larger than the number of distinct rows, ``fit`` takes all of these, with a UserWarning.
    """,
    shapes=True,
)

N_INDUCING_AVDGP = N_INDUCING.but(
    text="""
    Number of inducing points of each row, at which the functions near the row are summarised. One number is for all
    layers; a sequence has one number for each hidden layer and one for the last layer. "auto" is 8 in the first
    layer and 4 in the others, which is nearly always enough. Twice as many points take up to five times as long.
    """,
)

N_INDUCING_SOLVEGP = N_INDUCING.but(
    values=[WHOLE, AUTO],
    kind='"auto" or int',
    text="""
    Number of inducing points in the first set. They summarise the function that the model has learnt. "auto" is
    256. If there are fewer than 2000 rows and the noise is not Gaussian, as for classes, "auto" is 16 for each
    feature, and for each level of a category, but at least 64 and at most 256. With K > 10 classes it is smaller by
    the factor √(10/K), but at least 64. More points of either set follow more complicated functions, but time grows
    with their square and in the end with their cube. If both numbers together are larger than the number of distinct
    rows, ``fit`` takes all of these. If one number is "auto", it is what the other one leaves, and there is a
    UserWarning only if rows are too few for the other one.
    """,
)

KERNEL = Option(
    [StrOptions(set(PROFILES)), callable, list, tuple],
    "str, kernel object, callable, or list with one for each layer",
    FIRST,
    """
    Covariance function of each layer: how smooth its functions are. "matern52" suits most tables, "rbf" is for very
    smooth functions, and "matern32" and "matern12" are for rougher ones. A kernel object of
    ``sklearn.gaussian_process.kernels`` may be a sum or a product of kernels. Its lengthscales are in the units of
    ``X``, its variances in units of standardised targets, and predictions have no ``base``. A ``WhiteKernel`` that is
    added to it says where the variance of Gaussian noise starts, and its bounds; see :doc:`/from_gpr`. A callable
    ``kernel(n_inputs, n_outputs, ard=ard)`` returns a ``skdgp.gp.kernels.Kernel``, and is called with
    ``n_outputs=1`` where outputs share the kernel; see :doc:`/contributing`. :doc:`/choosing` says which kernel
    suits which function.
    """,
    shapes=True,
)

LIKELIHOOD = Option(
    [StrOptions(set(LIKELIHOODS)), Regression, callable],
    "str, likelihood or its class",
    FIRST,
    """
    Distribution of the targets around the function. "gaussian" is Gaussian noise with the same variance for all
    rows; "lognormal" is the same for logarithms of positive targets. These two also take targets of which some are
    only known to lie in an interval. "heteroskedastic" is Gaussian noise whose variance depends on the row; "student_t"
    is for heavy tails; a few outliers need no other likelihood. "poisson" and "negative_binomial" are for
    counts, the latter for counts with more variance. "gamma" is for positive and skewed targets, and "beta" for shares
    between 0 and 1. "ordinal" is for grades, such as ratings from 1 to 5, of which only the order matters. You can
    also write one of your own; see :doc:`/targets` and :doc:`/contributing`. Neighbours correct only "gaussian",
    "lognormal" and additive noise of your own, with exact
    targets.
    """,
    shapes=True,
)

N_ORTHOGONAL = Option(
    [WHOLE_OR_ZERO],
    "int",
    MODEL,
    """
    Number of inducing points in a second set, which each layer then has beside the first. The second set describes
    what the first leaves over (SOLVE-GP, Sec. 3). This takes about as long as putting them into the first set. 0 is
    no second set.
    """,
    shapes=True,
)

N_ORTHOGONAL_SOLVEGP = N_ORTHOGONAL.but(
    values=[WHOLE_OR_ZERO, AUTO],
    kind='"auto" or int',
    text="""
    Number of inducing points in the second set. "auto" follows the same rule as ``n_inducing``, but is 0 if
    ``inducing`` is not "points", or if ``kernel`` is a sum with a ``Convolutional``. 0 leaves the second set out:
    the model is then a sparse variational GP (SVGP).
    """,
)

INDUCING = Option(
    [StrOptions(set(FEATURES))],
    '{"points", "fourier", "eigen", "derivatives"}',
    MODEL,
    """
    What the inducing variables are. Leave it at "points", which are function values at the inducing points, except
    in three cases. "fourier" has inner products of the function with waves, for long series. It needs Matérn
    kernels of one input or sums of them, and turns a kernel by name into such a sum. "eigen" has inner products
    with the kernel's eigenfunctions, for ``kernel="rbf"`` and few inputs. For both, ``n_inducing`` is the largest
    number of these products. "derivatives" has function values and slopes at the points, for smooth functions. See
    :doc:`/choosing`.
    """,
    shapes=True,
)

INDUCING_SOLVEGP = INDUCING.but(
    values=[StrOptions({*FEATURES, *(f"points+{name}" for name in FEATURES if name != "points")})],
    kind='{"points", "fourier", "eigen", "derivatives", "points+fourier", ...}',
    text=INDUCING.text
    + """
    The second set is always of points, except with "points+fourier", "points+eigen" and "points+derivatives": these
    name what is in the first set and in the second.
    """,
)

N_LATENT_OUTPUTS = Option(
    [WHOLE, None],
    "int or None",
    MODEL,
    """
    Number of functions that all outputs share: each output is a weighted sum of them, the linear model of
    coregionalisation. Outputs are then correlated, and a row may lack some of its targets, which are NaN in ``y``.
    Predictions have no ``base`` then, and neighbours correct nothing. With None each output has a function of its
    own, and no target may be missing.
    """,
    shapes=True,
)

RULE = Option(
    [StrOptions({"ar1", "ar2", "ar2p"})],
    '{"ar1", "ar2", "ar2p"}',
    MODEL,
    """
    What a deeper layer computes a row's inducing variables from. "ar1" computes them from each Monte Carlo sample
    of the layer before, one set for each sample. "ar2" computes one set from the mean of the samples. "ar2p"
    computes one set from the mean over learnt quadrature points, so that training has no random samples.
    """,
    shapes=True,
)

PROPAGATION = Option(
    [StrOptions({"monte_carlo", "quadrature"})],
    '{"monte_carlo", "quadrature"}',
    MODEL,
    """
    How uncertainty travels from one layer to the next. "monte_carlo" draws random samples of the hidden layers.
    "quadrature" learns points and weights in place of samples, so that nothing is random. It takes several times as
    long if ``objective="elbo"``; with ``objective="predictive"`` it makes the model a deep sigma point process
    [2]_.
    """,
    shapes=True,
)

ARD = Option(
    ["boolean"],
    "bool",
    MODEL,
    """
    Whether each input of a layer has a lengthscale of its own. With True, features that do not matter can drop out
    in the first layer, since their lengthscales become long. With False, all inputs of a layer share one
    lengthscale.
    """,
    shapes=True,
)

MEAN = Option(
    [StrOptions({"zero", "linear", "identity"})],
    '{"zero", "linear", "identity"}',
    MODEL,
    """
    Mean functions of the hidden layers. "zero" is none. "identity" passes the inputs of a layer on; if the layer
    has fewer outputs than inputs, it passes their principal components on. "linear" starts like "identity" and is
    learnt. The last layer always has the mean zero.
    """,
    shapes=True,
)

COVARIANCE = Option(
    [StrOptions({*COVARIANCES})],
    '{"diag", "full", "diag_unwhitened", "full_unwhitened", "odvgp"}',
    MODEL,
    """
    Covariance of the Gaussian posterior of the inducing variables. "full" learns how the inducing variables vary
    together. "diag" leaves their correlations out, which takes less time. Both are about whitened inducing variables,
    whose prior is the same whatever the kernel is. "diag_unwhitened" and "full_unwhitened" are about the inducing
    variables themselves, as in some papers. Their prior covariance has to be inverted, and so the model trains and
    predicts in float64, unless ``dtype`` says otherwise. "odvgp" is "full" in the first set of inducing variables, and
    leaves the second as in the prior (ODVGP).
    """,
    shapes=True,
)

COVARIANCE_AVDGP = COVARIANCE.but(
    values=[StrOptions({name for name, each in COVARIANCES.items() if each.second != "prior"})],
    kind='{"diag", "full", "diag_unwhitened", "full_unwhitened"}',
    text=COVARIANCE.text.partition('"odvgp"')[0],
)

LAYER_POSTERIOR = Option(
    [StrOptions({"factorised", *COUPLED})],
    '{"factorised", "joint", "chain", "locations"}',
    MODEL,
    """
    Whether the posteriors of the layers depend on each other. In "factorised" they do not. "joint" is one Gaussian
    over the inducing variables of all layers. In "chain" each layer depends on the one before. In "locations" the
    values of one layer are the inducing points of the next [4]_. These three are for questions about the hidden
    layers themselves: they hardly improve predictions, and a fit takes two to six times as long.
    """,
    shapes=True,
)

LATENT_DIMS = Option(
    [WHOLE_OR_ZERO],
    "int",
    MODEL,
    """
    Number of latent variables that each row has in addition to its features. They stand for causes that the table
    does not contain. Use them if targets have several values at the same ``X``: predictions are then mixtures over
    the latent variables. Predictions have no ``base`` then, and neighbours correct nothing. With
    ``hidden_dims="auto"`` layers are wider by this number. See :doc:`/targets`.
    """,
    shapes=True,
)

N_SAMPLES = Option(
    [WHOLE],
    "int",
    MODEL,
    """
    Number of Monte Carlo samples, or of quadrature points, for each row. Predictions use all of them. Training with
    ``objective="elbo"`` draws a single sample where one is enough: in DSDGP with ``propagation="monte_carlo"``, and
    in AVDGP with ``rule="ar1"``. Training with ``objective="predictive"`` uses all of them. More samples then bring
    the objective closer to the log density that it stands for.
    """,
    shapes=True,
)

N_IMPORTANCE = Option(
    [WHOLE],
    "int",
    MODEL,
    """
    With ``latent_dims``, the number of values of a row's latent variables in each step of training [3]_. More
    values make the bound tighter, and take more time. 5 is a good choice.
    """,
    shapes=True,
)

INDUCING_MAP = Option(
    [StrOptions(set(INFERENCE_NETWORKS))],
    '{"affine", "mlp"}',
    MODEL,
    """
    How networks compute the inducing variables of a row. "affine" computes the inducing points by affine maps, and
    the mean and the covariance of the inducing variables by one network each. "mlp" computes all three by one
    network, as in IDSGP [2]_.
    """,
    shapes=True,
)

NETWORK_WIDTH = Option(
    [WHOLE, None, list, tuple],
    "int, None, or sequence of these",
    MODEL,
    """
    Number of units in the hidden layers of the inference networks, which compute the inducing variables. One number is
    for both of two hidden layers; a sequence has a number for each hidden layer, of which there are then as many. Wide
    networks predict better and take little more time. None is the smaller of a network's number of inputs and its
    number of outputs, the paper's choice.
    """,
    shapes=True,
)
