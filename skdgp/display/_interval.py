"""A picture of predictive intervals."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..inspection._rows import as_table, find_feature, names_of
from ..metrics import predictive_distribution
from ..tables.frames import column
from ._axes import BLUE, DARK, PALE_BLUE, RED, import_pyplot, open_axes, styled
from ._models import one_output

#: Up to this many rows have separate intervals with gaps between them. Those of more rows touch each other.
SEPARATE_ROWS = 80


class PredictiveIntervalDisplay:
    """Predictive intervals of a regressor, with the observations inside and outside of them.

    With ``x`` the picture shows the mean as a line over ``x``, and the intervals as a band. Without ``x`` the rows
    stand side by side, sorted by their means, and each row has its own interval.

    Parameters
    ----------
    mean, lower, upper : array-like of shape (n,)
        Means, and lower and upper ends of the intervals.
    confidence_level : float, default=0.9
        Probability of the intervals.
    y : array-like of shape (n,), default=None
        Observations.
    x : array-like of shape (n,), default=None
        Positions of the rows on the horizontal axis, such as the values of a feature.
    x_name : str, default=None
        Name of ``x``.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        Axes of the picture, and their figure.
    line_ : matplotlib Line2D
        The means.
    interval_ : matplotlib PolyCollection or LineCollection
        The band, or one line for each interval.
    inside_, outside_ : matplotlib PathCollection or None
        Observations inside their intervals, and those outside. None if there are no observations.

    See Also
    --------
    CalibrationDisplay : Shows intervals of all probabilities at once.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.display import PredictiveIntervalDisplay
    >>> dist = PredictiveDistribution.gaussian([0.0, 1.0, 4.0], [1.0, 1.0, 1.0])
    >>> display = PredictiveIntervalDisplay.from_predictions(
    ...     dist, [0.5, 3.0, 3.0], x=[1.0, 2.0, 3.0]
    ... )
    >>> display.inside
    array([ True, False,  True])
    >>> display.ax_.get_title()
    '2 of 3 rows (66.7 %) lie inside their 90 % interval'
    """

    def __init__(self, *, mean, lower, upper, confidence_level=0.9, y=None, x=None, x_name=None):
        self.mean = mean
        self.lower = lower
        self.upper = upper
        self.confidence_level = confidence_level
        self.y = y
        self.x = x
        self.x_name = x_name

    @classmethod
    def from_estimator(
        cls, estimator, X, y=None, *, feature=None, confidence_level=0.9, output=None, ax=None, **kwargs
    ):
        """Predict rows with an estimator, and draw their intervals.

        Parameters
        ----------
        estimator : object
            Fitted regressor, pipeline or search with ``predict_dist`` or ``predict(X, return_std=True)``.
        X : array-like of shape (n, n_features)
            Rows to predict.
        y : array-like of shape (n,) or (n, P), default=None
            Observations of these rows.
        feature : int or str, default=None
            Number or name of the column of ``X`` for the horizontal axis. With None rows are sorted by their means,
            unless ``X`` has only one column.
        confidence_level : float, default=0.9
            Probability of the intervals, between 0 and 1.
        output : int, default=None
            Number of the output to draw, if there are several.
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        PredictiveIntervalDisplay
            The display, already drawn.

        Raises
        ------
        TypeError
            If the estimator predicts no distribution.
        ValueError
            If ``X`` has no such feature, if ``X`` and ``y`` do not match, if there are several outputs and none is
            chosen, or if ``confidence_level`` is not between 0 and 1.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import BayesianRidge
        >>> from skdgp.display import PredictiveIntervalDisplay
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = BayesianRidge().fit(X[:300], y[:300])
        >>> display = PredictiveIntervalDisplay.from_estimator(
        ...     model, X[300:], y[300:], confidence_level=0.8
        ... )
        >>> display.mean.shape, display.inside.shape
        ((142,), (142,))
        """
        import_pyplot(f"{cls.__name__}.from_estimator")
        check_is_fitted(estimator)
        dist = predictive_distribution(estimator, X)
        X = as_table(X)
        feature = 0 if feature is None and X.shape[1] == 1 else feature
        if feature is not None:
            j, name = find_feature(feature, names_of(X), X.shape[1])
            kwargs = {"x": column(X, j), "x_name": name} | kwargs
        return cls.from_predictions(dist, y, confidence_level=confidence_level, output=output, ax=ax, **kwargs)

    @classmethod
    def from_predictions(
        cls, dist, y=None, *, x=None, x_name=None, confidence_level=0.9, output=None, ax=None, **kwargs
    ):
        """Draw the intervals of predictions.

        Parameters
        ----------
        dist : PredictiveDistribution of shape (n,) or (n, P)
            Predictions.
        y : array-like of shape (n,) or (n, P), default=None
            Observations.
        x : array-like of shape (n,), default=None
            Positions of the rows on the horizontal axis. None sorts the rows by their means.
        x_name : str, default=None
            Name of ``x``.
        confidence_level : float, default=0.9
            Probability of the intervals, between 0 and 1.
        output : int, default=None
            Number of the output to draw, if there are several.
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        PredictiveIntervalDisplay
            The display, already drawn.

        Raises
        ------
        ValueError
            If shapes do not match, if there are several outputs and none is chosen, or if ``confidence_level`` is not
            between 0 and 1.
        """
        dist, y = one_output(dist, y, output)
        if x is not None and np.shape(x) != dist.shape:
            raise ValueError(f"x of shape {np.shape(x)} must have one value for each of the {len(dist)} predictions.")
        lower, upper = dist.interval(confidence_level)
        x = None if x is None else np.asarray(x)
        display = cls(
            mean=dist.mean, lower=lower, upper=upper, confidence_level=confidence_level, y=y, x=x, x_name=x_name
        )
        return display.plot(ax, **kwargs)

    @property
    def inside(self):
        """Mask (n,) of the observations that lie inside their intervals; None if there are no observations."""
        if self.y is None:
            return None
        y = np.asarray(self.y)
        return (np.asarray(self.lower) <= y) & (y <= np.asarray(self.upper))

    def plot(self, ax=None, *, line_kwargs=None, interval_kwargs=None, scatter_kwargs=None):
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        line_kwargs, interval_kwargs, scatter_kwargs : dict, default=None
            Style of the means, as keywords of matplotlib's ``plot``; of the intervals, as keywords of ``fill_between``
            or ``vlines``; and of the observations, as keywords of ``scatter``.

        Returns
        -------
        self : PredictiveIntervalDisplay
            The display, whose attributes hold what was drawn.
        """
        self.ax_ = ax = open_axes(f"{type(self).__name__}.plot", ax)
        self.figure_ = ax.figure
        order = np.argsort(self.mean if self.x is None else self.x, kind="stable")
        x = np.arange(1, len(order) + 1) if self.x is None else np.asarray(self.x)[order]
        lower, upper, mean = (np.asarray(values)[order] for values in (self.lower, self.upper, self.mean))
        level = f"{100 * self.confidence_level:g} % interval"
        style = {"color": PALE_BLUE, "linewidth": 0, "label": level}
        draw = ax.fill_between
        if self.x is None:
            style["linewidth"] = min(5, 240 / len(x)) if len(x) <= SEPARATE_ROWS else max(1, 520 / len(x))  # points
            draw = ax.vlines
        self.interval_ = draw(x, lower, upper, **styled(style, interval_kwargs))
        line = {"color": BLUE, "linewidth": 1.8, "label": "mean"}
        self.line_ = ax.plot(x, mean, **styled(line, line_kwargs))[0]
        self._plot_observations(x, order, scatter_kwargs)
        sorted_by_mean = "Rows, sorted by predicted mean"
        ax.set(xlabel=sorted_by_mean if self.x is None else self.x_name or "x", ylabel="y")
        ax.legend(loc="upper left" if self.x is None else "best", frameon=False)
        return self

    def _plot_observations(self, x, order, scatter_kwargs):
        """Draw observations in the order of ``x``; those outside are red."""
        self.inside_ = self.outside_ = None
        if self.y is None:
            return
        y, inside = np.asarray(self.y)[order], self.inside[order]
        for name, rows, color, size in (("inside", inside, DARK, 14), ("outside", ~inside, RED, 22)):
            style = {"color": color, "s": size, "linewidth": 0, "zorder": 3, "label": f"observed, {name}"}
            setattr(self, f"{name}_", self.ax_.scatter(x[rows], y[rows], **styled(style, scatter_kwargs)))
        share = f"{inside.sum()} of {len(y)} rows ({100 * inside.mean():.1f} %)"
        self.ax_.set_title(f"{share} lie inside their {100 * self.confidence_level:g} % interval")
