"""A picture of how often intervals hold in groups of rows."""

import numpy as np

from ..metrics import coverage_by_group, predictive_distribution
from ._axes import BLUE, GREY, RED, import_pyplot, open_row, styled
from ._models import one_output, usual_shares

#: Height of a group, and of everything else, in inches.
GROUP_HEIGHT, OTHER_HEIGHT = 0.32, 1.3


class GroupCoverageDisplay:
    """How often intervals hold in each group of rows, and how wide they are there.

    Dots on the left are shares of observations inside their intervals. A grey bar has the shares that are usual for a
    calibrated model in a group of this size: 90 % of such shares lie there. Dots outside are red. Bars on the right are
    mean widths.

    Parameters
    ----------
    group : array-like of shape (G,)
        Names of the groups.
    n_rows : array-like of shape (G,)
        Their numbers of rows.
    coverage, width : array-like of shape (G,)
        Shares of observations inside their intervals, from 0 to 1, and mean widths of these.
    confidence_level : float, default=0.9
        Probability of the intervals.
    name : str, default=None
        What the groups are, such as the name of a column.

    Attributes
    ----------
    axes_ : ndarray of 2 matplotlib Axes
        Axes of coverage and of widths.
    figure_ : matplotlib Figure
        Their figure.
    dots_ : matplotlib PathCollection
        Coverages.
    band_ : matplotlib LineCollection
        Usual shares of a calibrated model.
    bars_ : matplotlib BarContainer
        Mean widths.

    See Also
    --------
    skdgp.metrics.coverage_by_group : The numbers alone.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.display import GroupCoverageDisplay
    >>> rng = np.random.default_rng(0)
    >>> noise = np.repeat(
    ...     [0.5, 2.0], 200
    ... )  # but the model takes it for one everywhere
    >>> dist = PredictiveDistribution.gaussian(np.zeros(400), np.ones(400))
    >>> groups = np.repeat(["calm", "wild"], 200)
    >>> display = GroupCoverageDisplay.from_predictions(
    ...     dist, noise * rng.standard_normal(400), groups=groups
    ... )
    >>> display.coverage.round(2)
    array([1.  , 0.58])
    """

    def __init__(self, *, group, n_rows, coverage, width, confidence_level=0.9, name=None):
        self.group, self.n_rows, self.coverage, self.width = group, n_rows, coverage, width
        self.confidence_level, self.name = confidence_level, name

    @classmethod
    def from_estimator(
        cls, estimator, X, y, *, groups, confidence_level=0.9, output=None, name=None, ax=None, **kwargs
    ):
        """Predict rows with an estimator, and draw how often their intervals hold.

        Parameters
        ----------
        estimator : object
            Fitted regressor, pipeline or search with ``predict_dist`` or ``predict(X, return_std=True)``.
        X : array-like of shape (n, n_features)
            Rows to predict.
        y : array-like of shape (n,) or (n, P)
            Observations of these rows.
        groups : str or array-like of shape (n,)
            The group of each row, or the name of a column of the frame ``X``.
        confidence_level : float, default=0.9
            Probability of the intervals, between 0 and 1.
        output : int, default=None
            Number of the output to draw, if there are several.
        name : str, default=None
            What the groups are; by default the name of the column.
        ax : array-like of 2 matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        GroupCoverageDisplay
            The display, already drawn.

        Raises
        ------
        TypeError
            If the estimator predicts no distribution.
        ValueError
            If ``X`` has no such column, if lengths do not match, or if there are several outputs and none is chosen.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import BayesianRidge
        >>> from skdgp.display import GroupCoverageDisplay
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> sex = X["sex"].gt(0).map({False: "women", True: "men"})
        >>> display = GroupCoverageDisplay.from_estimator(
        ...     BayesianRidge().fit(X, y), X, y, groups=sex, name="sex"
        ... )
        >>> display.group.tolist()
        ['men', 'women']
        """
        import_pyplot(f"{cls.__name__}.from_estimator")
        if isinstance(groups, str):
            if groups not in getattr(X, "columns", []):
                raise ValueError(
                    f"groups={groups!r} is no column of X: pass the name of one, or the group of each row."
                )
            groups, name = np.asarray(X[groups], dtype=object), name or groups
        options = {"groups": groups, "confidence_level": confidence_level, "output": output, "name": name, "ax": ax}
        return cls.from_predictions(predictive_distribution(estimator, X), y, **options, **kwargs)

    @classmethod
    def from_predictions(cls, dist, y, *, groups, confidence_level=0.9, output=None, name=None, ax=None, **kwargs):
        """Draw how often intervals of predictions hold.

        Parameters
        ----------
        dist : PredictiveDistribution of shape (n,) or (n, P)
            Predictions.
        y : array-like of shape (n,) or (n, P)
            Observations.
        groups : array-like of shape (n,)
            The group of each row.
        confidence_level : float, default=0.9
            Probability of the intervals, between 0 and 1.
        output : int, default=None
            Number of the output to draw, if there are several.
        name : str, default=None
            What the groups are.
        ax : array-like of 2 matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        GroupCoverageDisplay
            The display, already drawn.

        Raises
        ------
        ValueError
            If lengths do not match, or if there are several outputs and none is chosen.
        """
        dist, y = one_output(dist, y, output)
        by_group = coverage_by_group(y, *dist.interval(confidence_level), groups)
        return cls(**by_group, confidence_level=confidence_level, name=name).plot(ax, **kwargs)

    @property
    def usual(self):
        """Ends (G,) of the shares that are usual for a calibrated model in groups of these sizes."""
        return tuple(usual_shares(self.n_rows, self.confidence_level))

    def plot(self, ax=None, *, dot_kwargs=None, band_kwargs=None, bar_kwargs=None):
        """Draw the picture.

        Parameters
        ----------
        ax : array-like of 2 matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        dot_kwargs, band_kwargs, bar_kwargs : dict, default=None
            Style of the coverages, as keywords of matplotlib's ``scatter``; of the usual shares, as keywords of
            ``hlines``; and of the widths, as keywords of ``barh``.

        Returns
        -------
        self : GroupCoverageDisplay
            The display, whose attributes hold what was drawn.
        """
        self.axes_ = left, right = open_row(f"{type(self).__name__}.plot", ax, 2, sharey=True)
        self.figure_ = left.figure
        if ax is None:
            self.figure_.set_size_inches(7.6, OTHER_HEIGHT + GROUP_HEIGHT * len(self.group))
        place, (low, high) = np.arange(len(self.group)), self.usual
        share = np.asarray(self.coverage)
        band = {"color": GREY, "alpha": 0.35, "linewidth": 7, "label": "usual if calibrated"}
        self.band_ = left.hlines(place, 100 * low, 100 * high, **styled(band, band_kwargs))
        colors = np.where((share < low) | (share > high), RED, BLUE)
        dots = {"color": colors, "s": 40, "zorder": 3, "label": "inside their interval"}
        self.dots_ = left.scatter(100 * share, place, **styled(dots, dot_kwargs))
        left.axvline(100 * self.confidence_level, color=GREY, linewidth=1, linestyle="--", zorder=0)
        self.bars_ = right.barh(place, self.width, **({"color": BLUE, "height": 0.5} | (bar_kwargs or {})))
        names = ["missing" if name is None else name for name in self.group]
        labels = [f"{name}  ({number})" for name, number in zip(names, self.n_rows, strict=True)]
        left.set(yticks=place, yticklabels=labels, xlabel="rows inside their interval, %")
        left.set(ylabel=f"{self.name or 'group'} (rows)")
        right.set(xlabel=f"mean width of {100 * self.confidence_level:g} % intervals")
        left.invert_yaxis()
        if left.get_shared_y_axes().joined(left, right):
            right.tick_params(labelleft=False)
        else:
            right.set(yticks=place, yticklabels=labels)
            right.invert_yaxis()
        return self
