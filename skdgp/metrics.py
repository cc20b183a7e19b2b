"""Scores of predictive distributions, intervals and probabilities, and scorers for scikit-learn's searches.

The functions take observations and the predictions for them: a :class:`~skdgp.PredictiveDistribution`, the ends of
intervals, or the probabilities of classes. Scores that scikit-learn has, such as ``log_loss``, ``brier_score_loss`` and
``mean_pinball_loss``, are not repeated here.

The scorers take ``(estimator, X, y)``, as ``GridSearchCV(scoring=...)`` and ``cross_validate`` require. They are
greater for better predictions, so that losses have a minus sign. They work with every estimator that has
``predict_dist`` or ``predict(X, return_std=True)``, and also inside pipelines and searches.
"""

import warnings
from numbers import Integral

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch, check_array
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from ._sklearn import check_sample_weight, is_search, is_transformed_target
from .distributions import PredictiveDistribution, TransformedDistribution, central_levels
from .inference.callers import users_level
from .tables.bounds import bounds_of, exact_bounds
from .tables.cells import is_missing

#: Number of bins of :func:`expected_calibration_error`, and of its scorer.
N_BINS = 15

__all__ = [
    "calibration_error",
    "calibration_error_scorer",
    "concordance_index",
    "coverage",
    "coverage_by_group",
    "coverage_scorer",
    "crps",
    "crps_scorer",
    "expected_calibration_error",
    "expected_calibration_error_scorer",
    "interval_score",
    "interval_score_scorer",
    "log_density_scorer",
    "mean_standardized_log_loss",
    "negative_log_predictive_density",
    "pit_values",
    "predictive_distribution",
]


def negative_log_predictive_density(y_true, dist, *, sample_weight=None):
    """Mean negative logarithm of the predictive density, −log p(y), at the observations.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations. They may be bounds, or events and times, as :meth:`skdgp.SOLVEGPRegressor.fit` takes them. Then an
        interval counts by its probability in place of a density.
    dist : PredictiveDistribution
        Predictions for these observations.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        The score in nats; lower is better. It is the mean over all rows and outputs. It is infinite, with a
        ``UserWarning``, if the density of one of them is zero.

    Raises
    ------
    ValueError
        If shapes do not match, if ``y_true`` contains NaN or infinity, or if a weight is negative.

    References
    ----------
    .. [1] Good, I. J., "Rational Decisions", Journal of the Royal Statistical Society B, 1952.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.metrics import negative_log_predictive_density
    >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 1.0])
    >>> round(negative_log_predictive_density([0.0, 1.0], dist), 4)
    0.9189
    """
    bounds = bounds_of(y_true)
    scores = dist.log_score(_observations(y_true, dist)) if bounds is None else -_log_probability(bounds, dist)
    weight = _broadcast(sample_weight, scores)
    impossible, n_scores = int((np.isposinf(scores) & (weight > 0)).sum()), int((weight > 0).sum())
    if impossible:
        warnings.warn(
            f"{impossible} of {n_scores} observations have a predicted density of zero, so that their mean score is "
            "infinite: compare models by crps or crps_scorer, or take a target_transform that allows for them.",
            stacklevel=users_level(),
        )
    return _mean(scores, sample_weight)


def concordance_index(y_true, y_pred):
    """Harrell's concordance index: the share of comparable pairs of rows whose predictions are in the right order.

    Two rows are comparable if it is known which of them has the smaller target: the smaller one is exact, and the other
    one is exact or known to be at least its own bound, which is not smaller. Pairs with equal predictions count half.
    0.5 is as good as chance, and 1 is a perfect order.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Targets: numbers, or a structured array of events and times, or lower and upper bounds of which the upper one is
        infinite or equal to the lower one; see :meth:`skdgp.SOLVEGPRegressor.fit`.
    y_pred : array-like of shape (n,)
        Predictions that are greater for greater targets, such as predicted times. If you have risks, pass ``-risk``.

    Returns
    -------
    float
        The index, between 0 and 1; greater is better.

    Raises
    ------
    ValueError
        If there is another kind of interval, if no pair is comparable, or if shapes do not match.

    References
    ----------
    .. [1] Harrell, F. E., Califf, R. M., Pryor, D. B., Lee, K. L. and Rosati, R. A., "Evaluating the Yield of Medical
       Tests", Journal of the American Medical Association, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp.metrics import concordance_index
    >>> y = np.array(
    ...     [(True, 1.0), (False, 2.0), (True, 3.0)],
    ...     dtype=[("event", bool), ("time", float)],
    ... )
    >>> concordance_index(y, [1.5, 1.2, 4.0])
    0.5
    """
    bounds = bounds_of(y_true)
    low, high = (exact_bounds(y_true) if bounds is None else bounds).T
    event = low == high
    if not np.isposinf(high[~event]).all() or np.isneginf(low).any():
        raise ValueError(
            "concordance_index takes targets that are exact or have a lower bound only, but y_true has an upper bound: "
            "leave out such rows, or compare by negative_log_predictive_density."
        )
    y_pred = column_or_1d(y_pred).astype(np.float64)
    check_consistent_length(low, y_pred)
    if np.isnan(y_pred).any():
        raise ValueError("y_pred contains NaN: leave out such rows, from y_true too.")
    right, n_pairs = 0.0, 0
    for row in np.flatnonzero(event):
        later = (low > low[row]) | (~event & (low == low[row]))
        right += np.sum(y_pred[later] > y_pred[row]) + 0.5 * np.sum(y_pred[later] == y_pred[row])
        n_pairs += int(later.sum())
    if not n_pairs:
        raise ValueError(
            "concordance_index needs two rows whose order is known, and there are none: pass more rows with events."
        )
    return float(right / n_pairs)


def mean_standardized_log_loss(y_true, dist, y_train, *, sample_weight=None):
    """Negative log predictive density less that of a Gaussian with the mean and the variance of the training targets.

    It is zero for a model that has learnt nothing but these two numbers, and negative for better ones [1]_. It does not
    depend on the units of targets, so that numbers of several tables can be compared. It is also known as MSLL.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations.
    dist : PredictiveDistribution
        Predictions for these observations.
    y_train : array-like of shape (m,) or (m, P)
        Targets that the model has learnt from.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        In nats; lower is better. Within a table it differs from :func:`negative_log_predictive_density` by a constant,
        so that ``log_density_scorer`` ranks models alike.

    Raises
    ------
    ValueError
        If shapes do not match, if an array contains NaN or infinity, if training targets do not vary, or if a weight is
        negative.

    References
    ----------
    .. [1] Rasmussen, C. E. and Williams, C. K. I., "Gaussian Processes for Machine Learning", MIT Press 2006, Sec. 2.5.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.metrics import mean_standardized_log_loss
    >>> y_train = [0.0, 1.0, 2.0, 3.0]
    >>> dist = PredictiveDistribution.gaussian([0.5, 2.5], [0.5, 0.5])
    >>> round(mean_standardized_log_loss([0.6, 2.2], dist, y_train), 3)
    -0.965
    """
    y = _observations(y_true, dist)
    trained = check_array(y_train, ensure_2d=False, dtype=np.float64, input_name="y_train")
    trained = trained[:, 0] if trained.ndim == 2 and y.ndim == 1 and trained.shape[1] == 1 else trained
    if trained.shape[1:] != y.shape[1:]:
        raise ValueError(f"y_train of shape {trained.shape} has other outputs than y_true of shape {y.shape}.")
    mean, deviation = trained.mean(axis=0), trained.std(axis=0)
    if not (deviation > 0).all():
        raise ValueError("y_train does not vary, so that there is no Gaussian to compare with: pass other targets.")
    trivial = PredictiveDistribution.gaussian(*(np.broadcast_to(number, y.shape) for number in (mean, deviation)))
    losses = (negative_log_predictive_density(y, one, sample_weight=sample_weight) for one in (dist, trivial))
    return float(next(losses) - next(losses))


def crps(y_true, dist, *, sample_weight=None):
    """Mean continuous ranked probability score.

    It extends the absolute error to distributions. For a prediction without uncertainty it is the absolute error.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations.
    dist : PredictiveDistribution
        Predictions for these observations.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        The score in the units of ``y_true``; lower is better.

    Raises
    ------
    ValueError
        If shapes do not match, if ``y_true`` contains NaN or infinity, or if a weight is negative.

    References
    ----------
    .. [1] Gneiting, T. and Raftery, A. E., "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal of the
       American Statistical Association, 2007.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.metrics import crps
    >>> dist = PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 1.0])
    >>> round(crps([0.0, 1.0], dist), 4)
    0.2337
    """
    return _mean(dist.crps(_observations(y_true, dist)), sample_weight)


def pit_values(y_true, dist):
    """Probability integral transforms (PIT) of observations: the predicted probabilities F(y) of at most y.

    If predictions are calibrated, these values are distributed uniformly between 0 and 1.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations.
    dist : PredictiveDistribution
        Predictions for these observations.

    Returns
    -------
    ndarray of shape (n,) or (n, P)
        The transforms, between 0 and 1.

    Raises
    ------
    ValueError
        If shapes do not match, or if ``y_true`` contains NaN or infinity.

    References
    ----------
    .. [1] Dawid, A. P., "Statistical Theory: The Prequential Approach", Journal of the Royal Statistical
       Society A, 1984.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.metrics import pit_values
    >>> pit_values(
    ...     [0.0, 2.0], PredictiveDistribution.gaussian([0.0, 1.0], [1.0, 1.0])
    ... ).round(4)
    array([0.5   , 0.8413])
    """
    return dist.pit(_observations(y_true, dist))


def calibration_error(y_true, dist, *, sample_weight=None):
    """How far the probability integral transforms are from a uniform distribution.

    For each probability p, let Ĝ(p) be the share of observations below the predicted quantile p. The error is the mean
    distance ``∫₀¹ |Ĝ(p) − p| dp`` of the two, which is the area between the reliability curve and the diagonal. It is 0
    for calibrated predictions and 0.5 at most. With n rows, perfect predictions have an error of about 0.3/√n.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations.
    dist : PredictiveDistribution
        Predictions for these observations.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        From 0 to 0.5; lower is better. The error does not tell how narrow the predictions are, so look at :func:`crps`
        as well.

    Raises
    ------
    ValueError
        If shapes do not match, if ``y_true`` contains NaN or infinity, or if a weight is negative.

    References
    ----------
    .. [1] Kuleshov, V., Fenner, N. and Ermon, S., "Accurate Uncertainties for Deep Learning Using Calibrated
       Regression", ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.metrics import calibration_error
    >>> y = np.random.default_rng(0).standard_normal(1000)
    >>> round(
    ...     calibration_error(
    ...         y, PredictiveDistribution.gaussian(0 * y, 1 + 0 * y)
    ...     ),
    ...     2,
    ... )
    0.02
    >>> round(
    ...     calibration_error(
    ...         y, PredictiveDistribution.gaussian(0 * y, 3 + 0 * y)
    ...     ),
    ...     2,
    ... )
    0.15
    """
    pit = pit_values(y_true, dist)
    weight = _broadcast(sample_weight, pit)
    order = np.argsort(pit, axis=None)
    pit, weight = pit.ravel()[order], weight.ravel()[order]
    share = np.concatenate([[0.0], np.cumsum(weight) / weight.sum()])  # Ĝ between successive transforms
    ends = np.concatenate([[0.0], pit, [1.0]])
    return float(_area(share, ends[:-1], ends[1:]).sum())


def coverage(y_true, lower, upper, *, sample_weight=None):
    """Share of observations that lie within their intervals.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations.
    lower, upper : array-like of shape (n,) or (n, P)
        Ends of the intervals, in the units of ``y_true``. The ends belong to the intervals.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        The share. It should be close to the probability of the intervals.

    Raises
    ------
    ValueError
        If shapes differ, if an array contains NaN, or if a weight is negative.

    Examples
    --------
    >>> from skdgp.metrics import coverage
    >>> coverage([0.0, 1.0, 2.0, 3.0], [-1.0, 0.0, 1.0, 4.0], [1.0, 2.0, 3.0, 5.0])
    0.75
    """
    y, lower, upper = _intervals(y_true, lower, upper)
    return _mean((lower <= y) & (y <= upper), sample_weight)


def coverage_by_group(y_true, lower, upper, groups, *, sample_weight=None):
    """Share of observations that lie within their intervals, and mean width of these, for each group of rows.

    Intervals may hold as often as they say over all rows, and too seldom in some part of them. Groups are, for example,
    the values of a column, or bins of one.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations.
    lower, upper : array-like of shape (n,) or (n, P)
        Ends of the intervals, in the units of ``y_true``. The ends belong to the intervals.
    groups : array-like of shape (n,)
        The group of each row: numbers or strings. Missing ones (NaN, None) are a group of their own, the last one.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    sklearn.utils.Bunch
        Arrays with a number for each group, in the order of ``group``: ``group``, ``n_rows``, ``coverage``, which is
        between 0 and 1, and ``width``, in the units of ``y_true``. Several outputs count together.
        ``pandas.DataFrame`` makes a table of it.

    Raises
    ------
    ValueError
        If shapes differ, if an array of numbers contains NaN, if a weight is negative, or if the weights of a group are
        all zero.

    See Also
    --------
    skdgp.display.GroupCoverageDisplay : Draws these numbers.

    Examples
    --------
    >>> from skdgp.metrics import coverage_by_group
    >>> lower, upper = [-1.0, 0.0, 1.0, 4.0], [1.0, 2.0, 3.0, 5.0]
    >>> by_group = coverage_by_group(
    ...     [0.0, 1.0, 2.0, 3.0], lower, upper, ["a", "b", "b", "b"]
    ... )
    >>> for name, share, width in zip(
    ...     by_group.group, by_group.coverage, by_group.width
    ... ):
    ...     print(f"{name}: {share:.2f} of intervals that are {width:.2f} wide")
    a: 1.00 of intervals that are 2.00 wide
    b: 0.67 of intervals that are 1.67 wide
    """
    y, lower, upper = _intervals(y_true, lower, upper)
    groups = np.array(column_or_1d(np.asarray(groups, dtype=object)))
    check_consistent_length(y, groups)
    groups[[is_missing(group) for group in groups]] = None  # it is a copy
    names = [*_sorted({*groups} - {None}), *([None] if None in groups else [])]
    weight = _broadcast(sample_weight, y)
    inside, columns = (lower <= y) & (y <= upper), []
    for name in names:
        rows = groups == name
        if not weight[rows].sum() > 0:
            raise ValueError(f"All rows of the group {name!r} have the weight zero: leave these rows out.")
        averages = [_average(values[rows], weight[rows]) for values in (inside, upper - lower)]
        columns.append((int(rows.sum()), *averages))
    n_rows, shares, widths = map(np.array, zip(*columns, strict=True))
    return Bunch(group=np.array(names, dtype=object), n_rows=n_rows, coverage=shares, width=widths)


def interval_score(y_true, lower, upper, confidence_level=0.9, *, sample_weight=None):
    """Mean interval score: the width of the interval, plus a penalty for each observation outside.

    The score of one interval from l to u is (u − l) + 2/(1 − c) · (distance of y from [l, u]) [1]_. In expectation it
    is smallest for the central interval of probability c.

    Parameters
    ----------
    y_true : array-like of shape (n,) or (n, P)
        Observations.
    lower, upper : array-like of shape (n,) or (n, P)
        Ends of the intervals, in the units of ``y_true``.
    confidence_level : float, default=0.9
        Probability c of the intervals, between 0 and 1.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        The score in the units of ``y_true``; lower is better.

    Raises
    ------
    ValueError
        If shapes differ, if an array contains NaN, if ``confidence_level`` is not between 0 and 1, or if a weight is
        negative.

    References
    ----------
    .. [1] Gneiting, T. and Raftery, A. E., "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal of the
       American Statistical Association, 2007, Eq. 43.

    Examples
    --------
    >>> from skdgp.metrics import interval_score
    >>> round(
    ...     interval_score(
    ...         [0.0, 3.0], [-1.0, 1.0], [1.0, 2.0], confidence_level=0.8
    ...     ),
    ...     4,
    ... )
    6.5
    """
    central_levels(confidence_level)
    y, lower, upper = _intervals(y_true, lower, upper)
    outside = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
    return _mean(upper - lower + 2 / (1 - confidence_level) * outside, sample_weight)


def expected_calibration_error(y_true, y_proba, *, n_bins=N_BINS, labels=None, sample_weight=None):
    """Mean distance between a classifier's confidence and its accuracy.

    The confidence of a row is the probability of its most probable class. Rows are sorted into bins of equal width by
    their confidence. The error is the mean of ``|accuracy − mean confidence|`` over the bins, each weighted by its
    share of the rows [1]_.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Labels.
    y_proba : array-like of shape (n, K)
        Class probabilities, as ``predict_proba`` returns them; rows sum to one.
    n_bins : int, default=15
        Number of bins.
    labels : array-like of shape (K,), default=None
        Labels of the classes in the order of the columns, such as ``classes_``. None takes the sorted labels of
        ``y_true``.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        From 0 to 1; lower is better.

    Raises
    ------
    ValueError
        If the numbers of labels and columns differ, or the numbers of observations and rows of probabilities; if
        ``y_true`` has a label that is none of ``labels``; if ``y_proba`` does not lie between 0 and 1; if a weight is
        negative; or if ``n_bins`` is less than one.

    References
    ----------
    .. [1] Guo, C., Pleiss, G., Sun, Y. and Weinberger, K. Q., "On Calibration of Modern Neural Networks", ICML 2017.

    Examples
    --------
    >>> from skdgp.metrics import expected_calibration_error
    >>> round(
    ...     expected_calibration_error(
    ...         ["a", "b"], [[0.9, 0.1], [0.8, 0.2]], n_bins=5
    ...     ),
    ...     4,
    ... )
    0.45
    """
    y_true = column_or_1d(y_true)
    y_proba = check_array(y_proba, ensure_2d=False, dtype=np.float64, input_name="y_proba")
    check_consistent_length(y_true, y_proba, sample_weight)
    labels = np.unique(y_true) if labels is None else np.asarray(labels)
    if y_proba.ndim != 2 or y_proba.shape[1] != len(labels):
        raise ValueError(
            f"y_proba needs a column for each of the {len(labels)} labels, got shape {y_proba.shape}: pass the "
            "classifier's classes_ as labels."
        )
    if not np.isin(y_true, labels).all():
        raise ValueError(f"y_true has labels that are none of {labels}: pass the classifier's classes_ as labels.")
    if not (isinstance(n_bins, Integral) and n_bins >= 1):
        raise ValueError(f"n_bins={n_bins} must be an integer of at least 1.")
    if not ((y_proba >= 0) & (y_proba <= 1)).all():
        raise ValueError(
            f"y_proba must lie between 0 and 1, got {y_proba.min()} to {y_proba.max()}: pass probabilities, and not "
            "their logarithms or a decision function."
        )
    return _calibration_of_classes(y_true, y_proba, labels, n_bins, sample_weight)


def _calibration_of_classes(y_true, y_proba, labels, n_bins, sample_weight):
    hit = labels[y_proba.argmax(axis=1)] == y_true
    confidence = y_proba.max(axis=1)
    weight = _broadcast(sample_weight, confidence)
    bins = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    return float(np.abs(np.bincount(bins, weight * (hit - confidence))).sum() / weight.sum())


class _Scorer:
    """A scorer of this module. Its pickle is its name, so that pickles hold no code."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return f"skdgp.metrics.{self._name}"

    def __reduce__(self):
        return self._name


class _DistributionScorer(_Scorer):
    """A scorer that compares the distributions that an estimator predicts with observations.

    Parameters
    ----------
    name : str
        Name of the scorer in this module.
    loss : callable
        Takes observations, distributions and ``sample_weight``, and returns a number that is less for better
        predictions. The score is the same with a minus sign.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_val_score
    >>> from skdgp.metrics import crps_scorer
    >>> cross_val_score(
    ...     BayesianRidge(),
    ...     *load_diabetes(return_X_y=True),
    ...     scoring=crps_scorer,
    ...     cv=2,
    ... ).round(0)
    array([-32., -31.])
    """

    def __init__(self, name, loss):
        super().__init__(name)
        self._loss = loss

    def __call__(self, estimator, X, y, sample_weight=None, **known):
        """Score of ``estimator`` on rows ``X`` with observations ``y``.

        Parameters
        ----------
        estimator : object
            A fitted estimator that :func:`predictive_distribution` takes.
        X : array-like of shape (n, n_features)
            Rows.
        y : array-like of shape (n,) or (n, P)
            Observations of these rows.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows.
        **known
            What else is known of the rows, such as ``exposure``; see :func:`predictive_distribution`.

        Returns
        -------
        float
            The score; greater is better.
        """
        return -self._loss(y, predictive_distribution(estimator, X, **known), sample_weight=sample_weight)


def predictive_distribution(estimator, X, **known):
    """Distribution that a regressor, or a pipeline or search that ends in one, predicts for rows ``X``.

    For a ``TransformedTargetRegressor`` it is the distribution of the original targets. The transformation must then be
    monotone.

    Parameters
    ----------
    estimator : object
        A fitted estimator with ``predict_dist`` or ``predict(X, return_std=True)``.
    X : array-like of shape (n, n_features)
        Rows to predict, as ``predict`` takes them.
    **known
        What else is known of the rows: further arguments of ``predict_dist`` such as ``exposure``, or of ``predict``.

    Returns
    -------
    PredictiveDistribution
        Of shape ``(n,)`` or ``(n, P)``, in the units of the targets.

    Raises
    ------
    TypeError
        If the estimator has neither of the two methods.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skdgp.metrics import predictive_distribution
    >>> X = np.arange(10.0)[:, None]
    >>> pipeline = make_pipeline(StandardScaler(), BayesianRidge()).fit(
    ...     X, 2 * X[:, 0]
    ... )
    >>> predictive_distribution(pipeline, X[:3]).mean.round(2)
    array([0., 2., 4.])
    """
    estimator, before = unwrap(estimator)
    for steps in before:
        X = steps.transform(X)
    if hasattr(estimator, "predict_dist"):
        return estimator.predict_dist(X, **known)
    if is_transformed_target(estimator):
        check_is_fitted(estimator)
        inside = predictive_distribution(estimator.regressor_, X, **known)
        flat = len(inside.shape) == 1
        return TransformedDistribution(inside, estimator.transformer_, 0 if flat else None)
    predict = getattr(estimator, "predict", None)
    try:
        mean, std = predict(X, return_std=True, **known)  # calling None is a TypeError, too
    except TypeError as error:
        raise TypeError(
            f"{type(estimator).__name__} predicts no distribution: it has neither predict_dist(X) nor "
            "predict(X, return_std=True). Use a scorer of its predictions instead."
        ) from error
    return PredictiveDistribution.gaussian(mean, std)


def unwrap(estimator):
    """The model inside pipelines and searches, and the pipelines of the steps before it."""
    before = []
    while isinstance(estimator, Pipeline) or is_search(estimator):
        if isinstance(estimator, Pipeline):
            before += [estimator[:-1]] if len(estimator) > 1 else []
            estimator = estimator[-1]
        else:
            check_is_fitted(estimator, "best_estimator_")
            estimator = estimator.best_estimator_
    return estimator, before


def _interval_loss(y, dist, *, sample_weight=None):
    return interval_score(y, *dist.interval(), sample_weight=sample_weight)


def _coverage_loss(y, dist, *, sample_weight=None):
    return abs(coverage(y, *dist.interval(), sample_weight=sample_weight) - 0.9)


class _ProbabilityScorer(_Scorer):
    """A scorer of a classifier's probabilities."""

    def __call__(self, estimator, X, y, sample_weight=None):
        # A class that the training rows of a fold lack cannot be predicted: its rows are misses.
        y, y_proba = column_or_1d(y), estimator.predict_proba(X)
        return -_calibration_of_classes(y, y_proba, estimator.classes_, N_BINS, sample_weight)


#: Mean log predictive density: −:func:`negative_log_predictive_density`.
log_density_scorer = _DistributionScorer("log_density_scorer", negative_log_predictive_density)
#: Continuous ranked probability score with a minus sign: −:func:`crps`.
crps_scorer = _DistributionScorer("crps_scorer", crps)
#: Interval score of central 90 % intervals with a minus sign: −:func:`interval_score`.
interval_score_scorer = _DistributionScorer("interval_score_scorer", _interval_loss)
#: Distance of the coverage of central 90 % intervals from 0.9, with a minus sign: −|:func:`coverage` − 0.9|.
coverage_scorer = _DistributionScorer("coverage_scorer", _coverage_loss)
#: Calibration error of a regressor with a minus sign: −:func:`calibration_error`.
calibration_error_scorer = _DistributionScorer("calibration_error_scorer", calibration_error)
#: Calibration error of a classifier with a minus sign: −:func:`expected_calibration_error`.
expected_calibration_error_scorer = _ProbabilityScorer("expected_calibration_error_scorer")


def _observations(y_true, dist):
    """Observations as an array; ValueError unless there is a finite one for each row and output."""
    y = _exact(y_true)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 and len(dist.shape) == 1 else y
    if y.shape != dist.shape:
        raise ValueError(f"y_true of shape {y.shape} and predictions of shape {dist.shape} do not match.")
    if not np.isfinite(y).all():
        raise ValueError("y_true contains NaN or infinity: leave out such rows, from the predictions too.")
    _check_not_empty(y)
    return y


def _exact(y_true):
    """Observations as an array; ValueError if some of them are intervals."""
    bounds = bounds_of(y_true)
    if bounds is None:
        return np.asarray(y_true, dtype=np.float64)
    if (bounds[:, 0] < bounds[:, 1]).any():
        raise ValueError(
            "This score needs exact observations, and y_true has intervals, or times without an event: take "
            "negative_log_predictive_density or log_density_scorer, or concordance_index."
        )
    return bounds[:, 0]


def _log_probability(bounds, dist):
    """Log densities of exact observations, and log probabilities of intervals, (n,) of bounds (n, 2)."""
    low, high = bounds.T
    if dist.shape != low.shape:
        raise ValueError(f"y_true of shape {low.shape} and predictions of shape {dist.shape} do not match.")
    _check_not_empty(low)
    exact = low == high
    density = dist.logpdf(np.where(exact, low, 0.0))
    open_below, open_above = np.isneginf(low), np.isposinf(high)
    first, last = (np.where(np.isfinite(bound), bound, 0.0) for bound in (low, high))
    above_first = np.where(open_below, 0.0, dist.logsf(first))
    below_last = np.where(open_above, 0.0, dist.logcdf(last))
    with np.errstate(divide="ignore", invalid="ignore"):
        # The difference of the two smaller numbers, which keeps most digits.
        upper = above_first + np.log1p(-np.exp(np.where(open_above, -np.inf, dist.logsf(last)) - above_first))
        lower = below_last + np.log1p(-np.exp(np.where(open_below, -np.inf, dist.logcdf(first)) - below_last))
    probability = np.where(open_below | (above_first > below_last), lower, upper)
    return np.where(exact, density, np.where(np.isnan(probability), -np.inf, probability))


def _intervals(y_true, lower, upper):
    """Observations and the ends of intervals as arrays; ValueError unless they have one shape, without NaN."""
    y, lower, upper = _exact(y_true), *(np.asarray(column, dtype=np.float64) for column in (lower, upper))
    if not y.shape == lower.shape == upper.shape:
        raise ValueError(f"y_true, lower and upper must have one shape, got {y.shape}, {lower.shape}, {upper.shape}.")
    for name, column in (("y_true", y), ("lower", lower), ("upper", upper)):
        if np.isnan(column).any():  # infinite ends are allowed: such an interval contains everything
            raise ValueError(f"{name} contains NaN: leave out such rows.")
    _check_not_empty(y)
    return y, lower, upper


def _sorted(names):
    """Names in ascending order, or in that of their texts if numbers and strings are mixed."""
    try:
        return sorted(names)
    except TypeError:
        return sorted(names, key=str)


def _check_not_empty(y):
    if not y.size:
        raise ValueError("y_true is empty: pass at least one row.")


def _broadcast(sample_weight, like):
    """Weights of rows, (n,) or None, in the shape (n,) or (n, P) of values."""
    if sample_weight is None:
        return np.ones(like.shape)
    weight = check_sample_weight(column_or_1d(sample_weight), like, dtype=np.float64, ensure_non_negative=True)
    return np.broadcast_to(weight.reshape(-1, *(1 for _ in like.shape[1:])), like.shape)


def _mean(values, sample_weight):
    return _average(values, _broadcast(sample_weight, values))


def _average(values, weight):
    """The mean of values with weights of the same shape, without those of weight zero, which may be infinite."""
    counted = weight > 0
    return float(np.average(values[counted], weights=weight[counted]))


def _area(share, start, end):
    """∫ |share − p| dp from start to end."""
    inside = (start < share) & (share < end)
    split = ((share - start) ** 2 + (end - share) ** 2) / 2
    return np.where(inside, split, np.abs(share - 0.5 * (start + end)) * (end - start))
