"""Parameters about the table."""

from numbers import Real

from ..._sklearn import HasMethods, Interval, StrOptions
from .option import DATA, Option

TARGET_TRANSFORM = Option(
    [
        StrOptions({"auto", "log", "logit", "yeo-johnson"}),
        HasMethods(["fit", "transform", "inverse_transform"]),
        None,
    ],
    '"auto", "log", "logit", "yeo-johnson", transformer or None',
    DATA,
    """
    Transformation of the targets before the model learns them: "log" for positive targets, "logit" for shares between 0
    and 1, "yeo-johnson" for a power that makes targets less skewed, or a transformer of scikit-learn such as
    ``QuantileTransformer()`` that is strictly monotone in each column. "auto" compares None, "yeo-johnson" and, if all
    targets are positive, "log": it takes what makes left-out rows clearly more likely, which ``target_transform_`` then
    names. Predictions are transformed back: means, densities, quantiles and draws are in the units of ``y``.
    ``lower_bound_`` and ``noise_variance_`` are those of the transformed targets. See :doc:`/targets`.
    """,
    shapes=True,
)

TREND = Option(
    [StrOptions({"auto"}), HasMethods(["fit", "predict", "get_params"]), None],
    '"auto", regressor or None',
    DATA,
    """
    Regressor of scikit-learn that explains the targets first, such as ``Ridge()`` or
    ``HistGradientBoostingRegressor()``. The model learns what it leaves over, and sees its predictions as one more
    feature. Ten copies of it each leave out a tenth of the rows, so that the model meets trends of rows that were not
    learnt from. The regressor sees numbers in the units of ``X``, and a column for each level of a category. "auto"
    fits models without a trend, with boosted trees and, up to 10 000 rows, with extremely randomised trees, and
    predicts a mixture of them; left-out rows decide the weights. On small tables it is often clearly better, and it
    takes about three times as long. There are no gradients with a trend. None is no trend. See :doc:`/choosing`.
    """,
    shapes=True,
)

CLASS_WEIGHT = Option(
    [dict, StrOptions({"balanced"}), None],
    'dict, "balanced" or None',
    DATA,
    """
    Weights of the classes, which multiply ``sample_weight``. A larger weight makes a class more probable.
    "balanced" gives each class a weight in inverse proportion to its number of rows, whatever ``sample_weight`` is;
    the mean weight of the rows is then one. A class of weight zero stays in ``classes_``, though no row speaks for
    it.
    """,
)

VALIDATION_FRACTION = Option(
    [Interval(Real, 0, 1, closed="neither")],
    "float",
    DATA,
    """
    Share of the rows that each member holds out with ``early_stopping``, and of the first chunk of ``partial_fit``
    (regressors). If SOLVEGPRegressor learns from minibatches without ``early_stopping``, it holds out this share,
    at most 1000 rows, only to judge its ``base`` and its neighbours. With Gaussian noise it does so up to 100 000
    rows, and only if the posterior has a closed form, which it does not have with ``covariance="diag"``, for
    example. A collapsed fit holds rows out for a member that learns densities (``objective``).
    """,
)

CATEGORICAL_FEATURES = Option(
    [StrOptions({"from_dtype"}), "array-like", None],
    '"from_dtype", array-like or None',
    DATA,
    """
    Which features are categories: a mask, or the numbers or names of columns. "from_dtype" takes columns of text
    and of dtype category, if ``X`` is a data frame of pandas or Polars. With None all features are numbers. Any two
    levels of a category are equally far from each other, and so is a level that ``fit`` has not seen. A category of
    more than 128 levels becomes a number; see :doc:`/tables`.
    """,
    shapes=True,
)

NORMALIZE_X = Option(
    ["boolean"],
    "bool",
    DATA,
    """
    Whether to standardise the features before the model sees them.
    """,
    shapes=True,
)

NORMALIZE_Y = Option(
    ["boolean"],
    "bool",
    DATA,
    """
    Whether to standardise the targets before the model sees them. Predictions are in the units of ``y`` either way.
    """,
    shapes=True,
)
