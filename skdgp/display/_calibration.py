"""A picture of the calibration of predictive distributions."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..metrics import calibration_error, pit_values, predictive_distribution, unwrap
from ._axes import GREY, import_pyplot, open_axes, styled
from ._models import BAND_LEVEL, one_output, usual_shares


class CalibrationDisplay:
    """Calibration of a regressor: how well the predicted probabilities agree with the observations.

    For classifiers take scikit-learn's display of the same name, ``sklearn.calibration.CalibrationDisplay``.

    ``kind="reliability"`` draws a curve. For each probability p it shows the share of observations below the predicted
    quantile p, which is the empirical distribution function of the probability integral transforms (PIT). The curve of
    a calibrated model follows the diagonal. That of an overconfident model lies above the diagonal for small p and
    below it for large p. ``kind="pit"`` draws a histogram of the PIT. It is flat for a calibrated model, and high at
    both ends for an overconfident one [1]_. At each point, 90 % of calibrated models would lie in the grey band, given
    the same number of rows.

    Parameters
    ----------
    pit : array-like of shape (n,)
        Probability integral transforms of observations, as :func:`skdgp.metrics.pit_values` computes them.
    calibration_error : float, default=None
        Error that the legend shows; see :func:`skdgp.metrics.calibration_error`.
    name : str, default=None
        Name of the model in the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        Axes of the picture, and their figure.
    line_ : matplotlib Line2D or StepPatch
        The reliability curve or the histogram.
    reference_, band_ : matplotlib Line2D and PolyCollection, or None
        The line of a perfectly calibrated model and the grey band. None if another display has drawn them on these
        axes.

    References
    ----------
    .. [1] Gneiting, T., Balabdaoui, F. and Raftery, A. E., "Probabilistic Forecasts, Calibration and Sharpness",
       Journal of the Royal Statistical Society B, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.display import CalibrationDisplay
    >>> y = np.random.default_rng(0).standard_normal(100)
    >>> wide = PredictiveDistribution.gaussian(0 * y, 0 * y + 2)
    >>> display = CalibrationDisplay.from_predictions(y, wide, name="too wide")
    >>> display.line_.get_label()
    'too wide (calibration error 0.102)'
    >>> narrow = PredictiveDistribution.gaussian(0 * y, 0 * y + 0.5)
    >>> other = CalibrationDisplay.from_predictions(
    ...     y, narrow, name="too narrow", ax=display.ax_
    ... )
    """

    def __init__(self, pit, *, calibration_error=None, name=None):
        self.pit = pit
        self.calibration_error = calibration_error
        self.name = name

    @classmethod
    def from_estimator(cls, estimator, X, y, *, kind="reliability", output=None, name=None, ax=None, **kwargs):
        """Predict rows with an estimator, and draw its calibration.

        Parameters
        ----------
        estimator : object
            Fitted regressor, pipeline or search with ``predict_dist`` or ``predict(X, return_std=True)``.
        X : array-like of shape (n, n_features)
            Rows to predict. They should not be those of ``fit``.
        y : array-like of shape (n,) or (n, P)
            Observations of these rows.
        kind : {"reliability", "pit"}, default="reliability"
            Whether to draw the reliability curve or the histogram.
        output : int, default=None
            Number of the output to draw, if there are several.
        name : str, default=None
            Name of the model in the legend. None is the name of its class.
        ax : matplotlib Axes, default=None
            Axes to draw on, such as ``ax_`` of another model's display. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        CalibrationDisplay
            The display, already drawn.

        Raises
        ------
        TypeError
            If the estimator predicts no distribution.
        ValueError
            If ``X`` and ``y`` do not match, if there are several outputs and none is chosen, or if ``kind`` is unknown.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import BayesianRidge
        >>> from skdgp.display import CalibrationDisplay
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = BayesianRidge().fit(X[:300], y[:300])
        >>> display = CalibrationDisplay.from_estimator(
        ...     model, X[300:], y[300:], kind="pit"
        ... )
        >>> display.name, display.pit.shape
        ('BayesianRidge', (142,))
        """
        import_pyplot(f"{cls.__name__}.from_estimator")
        check_is_fitted(estimator)
        name = type(unwrap(estimator)[0]).__name__ if name is None else name
        dist = predictive_distribution(estimator, X)
        return cls.from_predictions(y, dist, kind=kind, output=output, name=name, ax=ax, **kwargs)

    @classmethod
    def from_predictions(cls, y_true, dist, *, kind="reliability", output=None, name=None, ax=None, **kwargs):
        """Draw the calibration of predictions.

        Parameters
        ----------
        y_true : array-like of shape (n,) or (n, P)
            Observations.
        dist : PredictiveDistribution of shape (n,) or (n, P)
            Predictions for these observations.
        kind : {"reliability", "pit"}, default="reliability"
            Whether to draw the reliability curve or the histogram.
        output : int, default=None
            Number of the output to draw, if there are several.
        name : str, default=None
            Name of the model in the legend.
        ax : matplotlib Axes, default=None
            Axes to draw on, such as ``ax_`` of another model's display. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        CalibrationDisplay
            The display, already drawn.

        Raises
        ------
        ValueError
            If shapes do not match, if there are several outputs and none is chosen, or if ``kind`` is unknown.
        """
        dist, y_true = one_output(dist, y_true, output)
        display = cls(pit_values(y_true, dist), calibration_error=calibration_error(y_true, dist), name=name)
        return display.plot(ax, kind=kind, **kwargs)

    def plot(self, ax=None, *, kind="reliability", n_bins=10, line_kwargs=None, band_kwargs=None):
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        kind : {"reliability", "pit"}, default="reliability"
            Whether to draw the reliability curve or the histogram.
        n_bins : int, default=10
            Number of bins of the histogram.
        line_kwargs, band_kwargs : dict, default=None
            Style of the curve or the histogram, as keywords of matplotlib's ``plot`` or ``stairs``; and style of the
            band, as keywords of ``fill_between``.

        Returns
        -------
        self : CalibrationDisplay
            The display, whose attributes hold what was drawn.

        Raises
        ------
        ValueError
            If ``kind`` is unknown.
        """
        if kind not in ("reliability", "pit"):
            raise ValueError(f'kind={kind!r} is not known: give "reliability" or "pit".')
        self.ax_ = ax = open_axes(f"{type(self).__name__}.plot", ax)
        self.figure_ = ax.figure
        style = styled({"linewidth": 1.8, "label": self._label()}, line_kwargs)
        if kind == "reliability":
            self._plot_reliability(style, band_kwargs)
        else:
            self._plot_histogram(n_bins, style, band_kwargs)
        ax.set_xlim(0, 1)
        ax.legend(loc="upper left" if kind == "reliability" else "best", frameon=False, fontsize="small")
        return self

    def _label(self):
        if self.calibration_error is None:
            return self.name
        error = f"calibration error {self.calibration_error:.3f}"
        return error if self.name is None else f"{self.name} ({error})"

    def _plot_reliability(self, style, band_kwargs):
        p = np.linspace(0, 1, 501)
        self._plot_ideal(p, p, usual_shares(len(self.pit), p), "", band_kwargs)
        reached = np.concatenate([[0], np.sort(self.pit), [1]])
        share = np.concatenate([[0], np.arange(1, len(self.pit) + 1) / len(self.pit), [1]])
        self.line_ = self.ax_.plot(reached, share, drawstyle="steps-post", **style)[0]
        self.ax_.set(ylim=(0, 1), xlabel="Probability p", ylabel="Share of observations below quantile p")

    def _plot_histogram(self, n_bins, style, band_kwargs):
        counts, edges = np.histogram(self.pit, bins=n_bins, range=(0, 1))
        band = n_bins * usual_shares(len(self.pit), np.full(2, 1 / n_bins))
        self._plot_ideal(np.array([0, 1]), np.ones(2), band, f", {n_bins} bins", band_kwargs)
        self.line_ = self.ax_.stairs(counts / len(self.pit) * n_bins, edges, baseline=None, **style)
        self.ax_.set(xlabel="Probability integral transform F(y)", ylabel="Density")
        highest = 1.1 * max(counts.max() / len(self.pit) * n_bins, band.max())
        self.ax_.set_ylim(0, max(highest, self.ax_.get_ylim()[1]))  # other models may be on the same axes

    def _plot_ideal(self, x, ideal, band, bins, band_kwargs):
        """Draw the line of a calibrated model and the band, unless they are there already."""
        self.reference_ = self.band_ = None
        label = f"calibrated, with {100 * BAND_LEVEL:g} % band of {len(self.pit)} rows{bins}"
        if label in self.ax_.get_legend_handles_labels()[1]:
            return
        style = {"color": GREY, "alpha": 0.22, "linewidth": 0, "label": label}
        self.band_ = self.ax_.fill_between(x, *band, **styled(style, band_kwargs))
        self.reference_ = self.ax_.plot(x, ideal, color=GREY, linewidth=1)[0]
