"""Parameters that say where and how numbers are computed, and what is printed."""

from ..._sklearn import StrOptions
from .option import AUTO, COMPUTING, FIRST, Option

RANDOM_STATE = Option(
    ["random_state"],
    "int, RandomState instance or None",
    FIRST,
    """
    Source of all randomness, such as initial values, held-out rows and minibatches. An integer makes fits
    repeatable.
    """,
)

DEVICE = Option(
    [str],
    "str",
    COMPUTING,
    """
    PyTorch device such as "cpu" or "cuda:0". "auto" takes a GPU if CUDA is available, and the CPU otherwise; see
    :doc:`/scale`.
    """,
)

DTYPE = Option(
    [StrOptions({"auto", "float32", "float64"})],
    '{"auto", "float32", "float64"}',
    COMPUTING,
    """
    Precision of the computations. "auto" trains in float32, which is faster. It predicts in float32 if ``X`` is in
    float32, and in float64 otherwise; AVDGP also predicts 10 000 rows or more at once in float32. If ``covariance``
    is "diag_unwhitened" or "full_unwhitened", "auto" trains and predicts in float64. "float32" and "float64" are for
    both training and predictions. For these two, "float32" is too coarse if inducing points lie close together or
    lengthscales are long: means and deviations can then be far off.
    """,
)

CUDA_GRAPHS = Option(
    ["boolean", AUTO],
    'bool or "auto"',
    COMPUTING,
    """
    Whether to record a training step on a CUDA device and replay it, which launches all its operations at once.
    Steps then take a half to an eighth of the time. "auto" records if all parts of the model are of this package or
    of PyTorch: a likelihood or kernel of your own must not decide by numbers that it computes. On the CPU, and with
    several processes, nothing is recorded.
    """,
)

VERBOSE = Option(
    ["verbose"],
    "int",
    COMPUTING,
    """
    1 shows the progress of training on one line.
    """,
)
