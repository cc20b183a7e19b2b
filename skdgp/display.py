"""Pictures of what models predict, how they learnt and what their layers do, in the manner of scikit-learn's displays.

A display holds the numbers that it draws. Its class methods compute them, from an estimator (pipelines and searches
too) or from predictions, and draw at once; :meth:`plot` draws them again, on other axes or in another style, and
leaves what it drew in attributes that end in an underscore. Only drawing needs matplotlib.
"""

from numbers import Integral

import numpy as np
import torch
from scipy.stats import binom
from sklearn.base import is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from .estimators._base import PREDICT_NUMBERS, BaseDeepGP
from .metrics import calibration_error, pit_values, predictive_distribution

__all__ = ["CalibrationDisplay", "LatentDisplay", "LearningCurveDisplay", "PredictiveIntervalDisplay"]

BLUE, PALE_BLUE, RED, ORANGE, GREY, DARK = "#0b5fa5", "#d3e2ef", "#b3261e", "#c8762b", "#8a8a8a", "#333333"

#: Rows that have an interval each, with gaps between; those of more rows merge, since thin lines and gaps flicker.
SEPARATE_ROWS = 80

#: Probability of the band around a calibrated model.
BAND_LEVEL = 0.9

#: Quantiles of a feature between which layers are shown.
FEATURE_RANGE = (0.025, 0.975)

#: Outputs of a layer that are told apart by colour.
MAX_OUTPUTS = 4


class PredictiveIntervalDisplay:
    """Predictive intervals of a regressor, and which observations they hold.

    With ``x`` the mean is a line and the intervals a band over it. Without, rows stand side by side, sorted by their
    means, each with an interval of its own.

    Parameters
    ----------
    mean, lower, upper : array-like of shape (n,)
        Means and ends of the intervals.
    confidence_level : float, default=0.9
        Probability of the intervals.
    y : array-like of shape (n,), default=None
        Observations.
    x : array-like of shape (n,), default=None
        Where rows stand, such as the values of a feature.
    x_name : str, default=None
        What ``x`` is called.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        What was drawn on.
    line_ : matplotlib Line2D
        The means.
    interval_ : matplotlib PolyCollection or LineCollection
        The band, or one line for each interval.
    inside_, outside_ : matplotlib PathCollection or None
        Observations within their intervals, and the others; None without observations.

    See Also
    --------
    CalibrationDisplay : Intervals of all probabilities at once.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.display import PredictiveIntervalDisplay
    >>> dist = PredictiveDistribution.gaussian([0.0, 1.0, 4.0], [1.0, 1.0, 1.0])
    >>> display = PredictiveIntervalDisplay.from_predictions(dist, [0.5, 3.0, 3.0], x=[1.0, 2.0, 3.0])
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
        """Predict and draw.

        Parameters
        ----------
        estimator : object
            Fitted regressor, pipeline or search, with ``predict_dist`` or ``predict(X, return_std=True)``.
        X : array-like of shape (n, n_features)
            Rows to predict.
        y : array-like of shape (n,) or (n, P), default=None
            Their observations.
        feature : int or str, default=None
            Number or name of the column of ``X`` to draw against. None sorts rows by their means, unless ``X`` has
            one column.
        confidence_level : float, default=0.9
            Probability of the intervals, between 0 and 1.
        output : int, default=None
            Which of P outputs to draw.
        ax : matplotlib Axes, default=None
            What to draw on; None makes a figure.
        **kwargs
            Of :meth:`plot`.

        Returns
        -------
        PredictiveIntervalDisplay
            Drawn already.

        Raises
        ------
        ValueError
            If ``X`` has no such feature, or if there are several outputs and none is chosen.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import BayesianRidge
        >>> from skdgp.display import PredictiveIntervalDisplay
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = BayesianRidge().fit(X[:300], y[:300])
        >>> display = PredictiveIntervalDisplay.from_estimator(model, X[300:], y[300:], confidence_level=0.8)
        >>> display.mean.shape, display.inside.shape
        ((142,), (142,))
        """
        _pyplot(f"{cls.__name__}.from_estimator")
        check_is_fitted(estimator)
        dist = predictive_distribution(estimator, X)
        feature = 0 if feature is None and np.shape(X)[1] == 1 else feature
        if feature is not None:
            column, name = _find_feature(feature, getattr(X, "columns", None), np.shape(X)[1])
            values = X[name] if hasattr(X, "columns") else np.asarray(X)[:, column]
            kwargs = {"x": values, "x_name": name} | kwargs
        return cls.from_predictions(dist, y, confidence_level=confidence_level, output=output, ax=ax, **kwargs)

    @classmethod
    def from_predictions(
        cls, dist, y=None, *, x=None, x_name=None, confidence_level=0.9, output=None, ax=None, **kwargs
    ):
        """Draw predictions.

        Parameters
        ----------
        dist : PredictiveDistribution of shape (n,) or (n, P)
            What was predicted.
        y : array-like of shape (n,) or (n, P), default=None
            Observations.
        x : array-like of shape (n,), default=None
            Where rows stand. None sorts them by their means.
        x_name : str, default=None
            What ``x`` is called.
        confidence_level : float, default=0.9
            Probability of the intervals, between 0 and 1.
        output : int, default=None
            Which of P outputs to draw.
        ax : matplotlib Axes, default=None
            What to draw on; None makes a figure.
        **kwargs
            Of :meth:`plot`.

        Returns
        -------
        PredictiveIntervalDisplay
            Drawn already.

        Raises
        ------
        ValueError
            If shapes do not match, or if there are several outputs and none is chosen.
        """
        dist, y = _one_output(dist, y, output)
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
        """Which observations lie within their intervals: bool of shape (n,), or None without observations."""
        if self.y is None:
            return None
        y = np.asarray(self.y)
        return (np.asarray(self.lower) <= y) & (y <= np.asarray(self.upper))

    def plot(self, ax=None, *, line_kwargs=None, interval_kwargs=None, scatter_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            What to draw on; None makes a figure.
        line_kwargs, interval_kwargs, scatter_kwargs : dict, default=None
            Style of the means, the intervals and the observations, as matplotlib's ``plot``, ``fill_between`` or
            ``vlines``, and ``scatter`` take it.

        Returns
        -------
        self : PredictiveIntervalDisplay
            The display, with what was drawn in its attributes.
        """
        self.ax_ = ax = _open(f"{type(self).__name__}.plot", ax)
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
        self.interval_ = draw(x, lower, upper, **_style(style, interval_kwargs))
        line = {"color": BLUE, "linewidth": 1.8, "label": "mean"}
        self.line_ = ax.plot(x, mean, **_style(line, line_kwargs))[0]
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
            setattr(self, f"{name}_", self.ax_.scatter(x[rows], y[rows], **_style(style, scatter_kwargs)))
        share = f"{inside.sum()} of {len(y)} rows ({100 * inside.mean():.1f} %)"
        self.ax_.set_title(f"{share} lie inside their {100 * self.confidence_level:g} % interval")


class CalibrationDisplay:
    """How far a regressor's probabilities are those that observations show.

    ``kind="reliability"`` draws, against each probability p, the share of observations below the quantile that was
    predicted for p: the empirical distribution function of the probability integral transforms (PIT). A calibrated
    model follows the diagonal; an overconfident one lies above it for small p and below it for large p. ``"pit"``
    draws their histogram, flat for a calibrated model and high at both ends for an overconfident one [1]_. Grey is
    where 90 % of calibrated models would lie at each point, given as many rows: counts are binomial.

    Parameters
    ----------
    pit : array-like of shape (n,)
        Probability integral transforms of observations, as of :func:`skdgp.metrics.pit_values`.
    calibration_error : float, default=None
        Said in the legend; see :func:`skdgp.metrics.calibration_error`.
    name : str, default=None
        What the model is called in the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
        What was drawn on.
    line_ : matplotlib Line2D or StepPatch
        The reliability curve or the histogram.
    reference_, band_ : matplotlib Line2D and PolyCollection, or None
        The ideal, and where calibrated models lie; None where another display has drawn the same on these axes.

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
    >>> other = CalibrationDisplay.from_predictions(y, narrow, name="too narrow", ax=display.ax_)
    """

    def __init__(self, pit, *, calibration_error=None, name=None):
        self.pit = pit
        self.calibration_error = calibration_error
        self.name = name

    @classmethod
    def from_estimator(cls, estimator, X, y, *, kind="reliability", output=None, name=None, ax=None, **kwargs):
        """Predict and draw.

        Parameters
        ----------
        estimator : object
            Fitted regressor, pipeline or search, with ``predict_dist`` or ``predict(X, return_std=True)``.
        X : array-like of shape (n, n_features)
            Rows to predict, other than those of ``fit``.
        y : array-like of shape (n,) or (n, P)
            Their observations.
        kind : {"reliability", "pit"}, default="reliability"
            What to draw.
        output : int, default=None
            Which of P outputs to draw.
        name : str, default=None
            What the model is called in the legend; by default its class's name.
        ax : matplotlib Axes, default=None
            What to draw on, such as ``ax_`` of another model's display; None makes a figure.
        **kwargs
            Of :meth:`plot`.

        Returns
        -------
        CalibrationDisplay
            Drawn already.

        Raises
        ------
        ValueError
            If there are several outputs and none is chosen, or if there is no such kind.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import BayesianRidge
        >>> from skdgp.display import CalibrationDisplay
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = BayesianRidge().fit(X[:300], y[:300])
        >>> display = CalibrationDisplay.from_estimator(model, X[300:], y[300:], kind="pit")
        >>> display.name, display.pit.shape
        ('BayesianRidge', (142,))
        """
        _pyplot(f"{cls.__name__}.from_estimator")
        check_is_fitted(estimator)
        name = type(_unwrap(estimator)[0]).__name__ if name is None else name
        dist = predictive_distribution(estimator, X)
        return cls.from_predictions(y, dist, kind=kind, output=output, name=name, ax=ax, **kwargs)

    @classmethod
    def from_predictions(cls, y_true, dist, *, kind="reliability", output=None, name=None, ax=None, **kwargs):
        """Draw predictions.

        Parameters
        ----------
        y_true : array-like of shape (n,) or (n, P)
            Observations.
        dist : PredictiveDistribution of shape (n,) or (n, P)
            What was predicted for them.
        kind : {"reliability", "pit"}, default="reliability"
            What to draw.
        output : int, default=None
            Which of P outputs to draw.
        name : str, default=None
            What the model is called in the legend.
        ax : matplotlib Axes, default=None
            What to draw on, such as ``ax_`` of another model's display; None makes a figure.
        **kwargs
            Of :meth:`plot`.

        Returns
        -------
        CalibrationDisplay
            Drawn already.

        Raises
        ------
        ValueError
            If shapes do not match, if there are several outputs and none is chosen, or if there is no such kind.
        """
        dist, y_true = _one_output(dist, y_true, output)
        display = cls(pit_values(y_true, dist), calibration_error=calibration_error(y_true, dist), name=name)
        return display.plot(ax, kind=kind, **kwargs)

    def plot(self, ax=None, *, kind="reliability", n_bins=10, line_kwargs=None, band_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            What to draw on; None makes a figure.
        kind : {"reliability", "pit"}, default="reliability"
            What to draw.
        n_bins : int, default=10
            Number of bins of the histogram.
        line_kwargs, band_kwargs : dict, default=None
            Style of the curve or histogram and of the band, as matplotlib's ``plot`` or ``stairs``, and
            ``fill_between`` take it.

        Returns
        -------
        self : CalibrationDisplay
            The display, with what was drawn in its attributes.

        Raises
        ------
        ValueError
            If there is no such kind.
        """
        if kind not in ("reliability", "pit"):
            raise ValueError(f'kind={kind!r} is not known: give "reliability" or "pit".')
        self.ax_ = ax = _open(f"{type(self).__name__}.plot", ax)
        self.figure_ = ax.figure
        style = _style({"linewidth": 1.8, "label": self._label()}, line_kwargs)
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
        self._plot_ideal(p, p, _binomial_share(len(self.pit), p), "", band_kwargs)
        reached = np.concatenate([[0], np.sort(self.pit), [1]])
        share = np.concatenate([[0], np.arange(1, len(self.pit) + 1) / len(self.pit), [1]])
        self.line_ = self.ax_.plot(reached, share, drawstyle="steps-post", **style)[0]
        self.ax_.set(ylim=(0, 1), xlabel="Probability p", ylabel="Share of observations below quantile p")

    def _plot_histogram(self, n_bins, style, band_kwargs):
        counts, edges = np.histogram(self.pit, bins=n_bins, range=(0, 1))
        band = n_bins * _binomial_share(len(self.pit), np.full(2, 1 / n_bins))
        self._plot_ideal(np.array([0, 1]), np.ones(2), band, f", {n_bins} bins", band_kwargs)
        self.line_ = self.ax_.stairs(counts / len(self.pit) * n_bins, edges, baseline=None, **style)
        self.ax_.set(xlabel="Probability integral transform F(y)", ylabel="Density")
        highest = 1.1 * max(counts.max() / len(self.pit) * n_bins, band.max())
        self.ax_.set_ylim(0, max(highest, self.ax_.get_ylim()[1]))  # which may hold other models

    def _plot_ideal(self, x, ideal, band, bins, band_kwargs):
        """The ideal and the band, unless they are there already."""
        self.reference_ = self.band_ = None
        label = f"calibrated, with {100 * BAND_LEVEL:g} % band of {len(self.pit)} rows{bins}"
        if label in self.ax_.get_legend_handles_labels()[1]:
            return
        style = {"color": GREY, "alpha": 0.22, "linewidth": 0, "label": label}
        self.band_ = self.ax_.fill_between(x, *band, **_style(style, band_kwargs))
        self.reference_ = self.ax_.plot(x, ideal, color=GREY, linewidth=1)[0]


class LearningCurveDisplay:
    """Training loss and validation score of each epoch.

    Parameters
    ----------
    loss : array-like of shape (n_epochs,)
        Negative objective per row, mean over members and minibatches.
    scores : array-like of shape (n_epochs,), default=None
        Log predictive density per row of held-out rows, in nats, mean over members; of a regressor's targets as
        its members see them, which are standardised unless ``normalize_y=False``.
    best : int or array-like of shape (n_members,), default=None
        Epochs, counted from 1, whose parameters the members have in the end.

    Attributes
    ----------
    ax_, score_ax_, figure_ : matplotlib Axes, Axes or None, and Figure
        Axes of the loss and of the score, and their figure; None without scores.
    loss_line_, score_line_ : matplotlib Line2D, and Line2D or None
        The curves.
    best_lines_ : list of matplotlib Line2D
        A mark at each best epoch.

    Examples
    --------
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.display import LearningCurveDisplay
    >>> X, y = make_waves(random_state=0)
    >>> model = DSDGPRegressor(max_iter=5, n_estimators=1, n_inducing=5, random_state=0).fit(X, y)
    >>> display = LearningCurveDisplay.from_estimator(model)
    >>> display.loss.shape, display.scores.shape
    ((5,), (5,))
    """

    def __init__(self, loss, scores=None, best=None):
        self.loss = loss
        self.scores = scores
        self.best = best

    @classmethod
    def from_estimator(cls, estimator, *, ax=None, **kwargs):
        """Draw what a fitted estimator recorded.

        Parameters
        ----------
        estimator : object
            Fitted regressor or classifier of this package, or a pipeline or search that ends in one.
        ax : matplotlib Axes, default=None
            What to draw on; None makes a figure.
        **kwargs
            Of :meth:`plot`.

        Returns
        -------
        LearningCurveDisplay
            Drawn already.

        Raises
        ------
        TypeError
            If the estimator is not one of this package.
        """
        model, _ = _unwrap_deep_gp(estimator, cls)
        scored = len(model.validation_scores_) > 0
        # Without held-out rows the last epoch is best by definition.
        display = cls(model.loss_curve_, *((model.validation_scores_, model.best_iter_) if scored else ()))
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, loss_kwargs=None, score_kwargs=None, best_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            What to draw on; None makes a figure.
        loss_kwargs, score_kwargs, best_kwargs : dict, default=None
            Style of the loss, the score and the marks, as matplotlib's ``plot`` and ``axvline`` take it.

        Returns
        -------
        self : LearningCurveDisplay
            The display, with what was drawn in its attributes.

        Raises
        ------
        ValueError
            If ``scores`` and ``loss`` differ in length, or if ``best`` is no epoch of theirs.
        """
        n_epochs = len(self.loss)
        if self.scores is not None and len(self.scores) != n_epochs:
            raise ValueError(f"scores of {len(self.scores)} epochs and loss of {n_epochs} must have the same length.")
        best = np.array([], dtype=int) if self.best is None else np.atleast_1d(self.best)
        if ((best < 1) | (best > n_epochs)).any():
            raise ValueError(f"best={self.best} must hold epochs from 1 to {n_epochs}, as many as loss has.")
        self.ax_ = ax = _open(f"{type(self).__name__}.plot", ax)
        self.figure_ = ax.figure
        mark = {"color": GREY, "linewidth": 1, "linestyle": "--", "zorder": 0}
        self.best_lines_ = [ax.axvline(epoch, **_style(mark, best_kwargs)) for epoch in np.unique(best)]
        self.loss_line_ = _plot_curve(ax, self.loss, "Loss: negative objective per row", BLUE, loss_kwargs)
        ax.set_xlabel("Epoch")
        self.score_ax_ = self.score_line_ = None
        if self.scores is not None:
            self.score_ax_ = ax.twinx()
            self.score_ax_.spines["top"].set_visible(ax.spines["top"].get_visible())
            label = "Validation score: log density per row, nats"
            self.score_line_ = _plot_curve(self.score_ax_, self.scores, label, ORANGE, score_kwargs)
        if len(best):
            self.best_lines_[0].set_label("best epoch" if len(best) == 1 else f"best epochs of {len(best)} members")
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
        return self


class LatentDisplay:
    """What every layer of a deep GP makes of one or two features.

    The features move over a grid while the others stay at their medians. Over one feature, every layer's outputs
    are drawn as means ± 2 standard deviations, and of more than four outputs the four whose means vary most. Over
    two features, contours show the layer's mean, or the first principal component of its outputs' means where it
    has several.

    Moments of a layer are those of the mixture that its random inputs make, without the observations' noise.
    Layers speak of standardised inputs and, unless ``normalize_y=False``, of standardised targets.

    Parameters
    ----------
    grids : sequence of one or two ndarrays of shape (G,)
        Values of each feature.
    means, stds : sequence of ndarray of shape (G, D) or (G, G, D)
        Of the D outputs of each layer; axes of two features are in the order of ``grids``.
    feature_names : sequence of str, default=None
        What the features are called.
    layer_names : sequence of str, default=None
        What the layers are called.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes of shape (n_layers,)
        What was drawn on.
    figure_ : matplotlib Figure
        Their figure.
    outputs_ : list of ndarray
        Numbers of the outputs that were drawn of each layer.
    lines_, bands_ : list of list of matplotlib Line2D and PolyCollection
        Means and their bands, for each layer and output drawn; empty over two features.
    contours_ : list of matplotlib QuadContourSet
        Contours of each layer; empty over one feature.

    Examples
    --------
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.display import LatentDisplay
    >>> X, y = make_waves(random_state=0)
    >>> model = DSDGPRegressor((2,), 5, max_iter=5, n_estimators=1, random_state=0).fit(X, y)
    >>> display = LatentDisplay.from_estimator(model, X, grid_resolution=50)
    >>> [mean.shape for mean in display.means]
    [(50, 2), (50, 1)]
    """

    def __init__(self, grids, means, stds, *, feature_names=None, layer_names=None):
        self.grids = grids
        self.means = means
        self.stds = stds
        self.feature_names = feature_names
        self.layer_names = layer_names

    @classmethod
    def from_estimator(cls, estimator, X, *, features=(0,), grid_resolution=100, member=0, ax=None, **kwargs):
        """Follow a grid of inputs through the layers, and draw.

        Parameters
        ----------
        estimator : object
            Fitted regressor or classifier of this package, or a pipeline or search that ends in one.
        X : array-like of shape (n, n_features)
            Rows that say where features lie: grids reach from the 2.5 % to the 97.5 % quantile.
        features : int, str or sequence of one or two of them, default=(0,)
            Numbers or names of columns of ``X``, in a pipeline of what its last step is given.
        grid_resolution : int, default=100
            Number of values G of each feature, at least 2.
        member : int, default=0
            Which member of the ensemble.
        ax : Axes or array-like of Axes of shape (n_layers,), default=None
            What to draw on; None makes a figure.
        **kwargs
            Of :meth:`plot`.

        Returns
        -------
        LatentDisplay
            Drawn already.

        Raises
        ------
        TypeError
            If the estimator is not one of this package.
        ValueError
            If there is no such feature, member or resolution, or if a feature is constant.
        """
        model, before = _unwrap_deep_gp(estimator, cls)
        features = [features] if isinstance(features, (str, Integral)) else list(features)
        n_members = len(model.module_)
        if not 0 <= member < n_members:
            raise ValueError(f"member={member} is none of the {n_members} members: give 0 to {n_members - 1}.")
        if grid_resolution < 2:
            raise ValueError(f"grid_resolution={grid_resolution} makes no grid: give at least 2.")
        X, names = _inputs_of_last_step(model, before, X)
        found = [_find_feature(feature, names, X.shape[1]) for feature in features]
        columns, names = [column for column, _ in found], [name for _, name in found]
        if len(columns) not in (1, 2) or len({*columns}) < len(columns):
            raise ValueError(f"features={features} must be one column of X, or two different ones.")
        grids, rows = _make_grid(X, columns, names, grid_resolution)
        moments = _layer_moments(model, model.module_[member], rows)
        shape = tuple(len(grid) for grid in grids)
        means, stds = ([each.reshape(*shape, -1) for each in layers] for layers in zip(*moments, strict=True))
        layer_names = [f"Hidden layer {i + 1}" for i in range(len(means) - 1)] + [_name_of_last_layer(model)]
        return cls(grids, means, stds, feature_names=names, layer_names=layer_names).plot(ax, **kwargs)

    def plot(self, ax=None, *, line_kwargs=None, band_kwargs=None, contour_kwargs=None):
        """Draw.

        Parameters
        ----------
        ax : Axes or array-like of Axes of shape (n_layers,), default=None
            What to draw on; None makes a figure.
        line_kwargs, band_kwargs : dict, default=None
            Style over one feature, as matplotlib's ``plot`` and ``fill_between`` take it.
        contour_kwargs : dict, default=None
            Style over two features, as matplotlib's ``contourf`` takes it.

        Returns
        -------
        self : LatentDisplay
            The display, with what was drawn in its attributes.

        Raises
        ------
        ValueError
            If there are not as many axes as layers.
        """
        self.axes_ = _open_row(f"{type(self).__name__}.plot", ax, len(self.means))
        self.figure_ = self.axes_[0].figure
        self.outputs_, self.lines_, self.bands_, self.contours_ = [], [], [], []
        names = self.feature_names or [f"Feature {i}" for i in range(len(self.grids))]
        for layer, axes in enumerate(self.axes_):
            if len(self.grids) == 1:
                self._plot_outputs(axes, layer, line_kwargs, band_kwargs)
            else:
                self._plot_contours(axes, layer, contour_kwargs)
            axes.set_xlabel(names[0])
        self.axes_[0].set_ylabel("Mean ± 2 standard deviations" if len(self.grids) == 1 else names[1])
        return self

    def _title(self, layer):
        return f"Layer {layer + 1}" if self.layer_names is None else self.layer_names[layer]

    def _plot_outputs(self, axes, layer, line_kwargs, band_kwargs):
        """Means and bands of one layer over one feature."""
        from matplotlib.colors import to_rgba

        (grid,), mean, std = self.grids, self.means[layer], self.stds[layer]
        n_outputs = mean.shape[1]
        shown = np.sort(np.argsort(-np.ptp(mean, axis=0), kind="stable")[:MAX_OUTPUTS])
        lines, bands = [], []
        for output in shown:
            m, s = mean[:, output], std[:, output]
            line = _style({"linewidth": 1.8, "label": f"output {output}"}, line_kwargs)
            lines.append(axes.plot(grid, m, **line)[0])
            # Bands of several outputs often lie on one another: pale faces, told apart by their edges.
            face, edge = (to_rgba(lines[-1].get_color(), alpha) for alpha in (0.1, 0.5))
            band = _style({"facecolor": face, "edgecolor": edge, "linewidth": 0.7}, band_kwargs)
            bands.append(axes.fill_between(grid, m - 2 * s, m + 2 * s, **band))
        self.outputs_.append(shown)
        self.lines_.append(lines)
        self.bands_.append(bands)
        note = f"\n{len(shown)} of {n_outputs} outputs, which vary most" if len(shown) < n_outputs else ""
        axes.set_title(self._title(layer) + note, fontsize="medium")
        if n_outputs > 1:
            axes.legend(frameon=False, ncols=2, fontsize="small")

    def _plot_contours(self, axes, layer, contour_kwargs):
        """Contours of one layer's mean over two features."""
        mean = self.means[layer]
        value, note = mean[..., 0], ""
        if mean.shape[-1] > 1:
            value, share = _first_component(mean)
            note = f"\n1st component, {100 * share:.0f} % of variance"
        contours = axes.contourf(*self.grids, value.T, **{"levels": 20, **(contour_kwargs or {})})
        self.figure_.colorbar(contours, ax=axes)
        self.outputs_.append(np.arange(mean.shape[-1]))
        self.contours_.append(contours)
        axes.set_title(self._title(layer) + note, fontsize="medium")


def _pyplot(caller):
    """``matplotlib.pyplot``, imported here alone; ImportError with the cure where it is missing."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f'{caller} draws with matplotlib, which cannot be imported: install it with pip install "skdgp[plot]".'
        ) from error
    return plt


def _open(caller, ax):
    """``ax``, or axes of a new figure."""
    return _open_row(caller, ax, 1)[0]


def _open_row(caller, ax, n_axes):
    """Axes as an array (n_axes,); those of a new figure if ``ax`` is None."""
    plt = _pyplot(caller)
    if ax is None:
        size = None if n_axes == 1 else (3.8 * n_axes, 3.6)
        with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
            return plt.subplots(1, n_axes, figsize=size, layout="constrained", squeeze=False)[1][0]
    axes = np.ravel(ax)
    if len(axes) != n_axes:
        raise ValueError(f"ax holds {len(axes)} axes, but {n_axes} are drawn on: give as many, or None.")
    return axes


def _style(default, given):
    """Keywords of a matplotlib function, where those given win over the default, under any alias."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D

    return default | normalize_kwargs(normalize_kwargs(given, Line2D), Collection)


def _plot_curve(ax, values, label, color, kwargs):
    """A curve over epochs; its axis has its colour."""
    style = _style({"color": color, "linewidth": 1.8, "marker": "o" if len(values) == 1 else None}, kwargs)
    line = ax.plot(np.arange(1, len(values) + 1), values, **style)[0]
    ax.set_ylabel(label, color=line.get_color())
    ax.tick_params(axis="y", labelcolor=line.get_color())
    return line


def _one_output(dist, y, output):
    """Distributions (n,) and observations (n,) or None, of one output; ValueError unless it is clear which."""
    n_outputs = dist.shape[1] if len(dist.shape) == 2 else 1
    if output is None and n_outputs > 1:
        raise ValueError(
            f"One output is drawn, but dist of shape {dist.shape} has {n_outputs}: choose one, as output=0."
        )
    output = 0 if output is None else output
    if not 0 <= output < n_outputs:
        raise ValueError(f"output={output} is none of the {n_outputs} outputs: give 0 to {n_outputs - 1}, or None.")
    if y is not None:
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if y.shape not in ((len(dist),), (len(dist), n_outputs)):
            raise ValueError(
                f"y of shape {y.shape} does not match predictions of shape {dist.shape}: give as many rows."
            )
        y = y[:, output] if y.ndim == 2 else y
    if len(dist.shape) == 2:
        dist = dist[:, output]
    return dist, y


def _find_feature(feature, names, n_features):
    """Number and name of a column, given one of them; ``names`` may be None."""
    names = None if names is None else list(names)
    if isinstance(feature, Integral):
        if not 0 <= feature < n_features:
            raise ValueError(f"feature {feature} is none of the {n_features} columns: give 0 to {n_features - 1}.")
        return int(feature), f"X[:, {feature}]" if names is None else names[feature]
    if names is None:
        raise ValueError(f"feature {feature!r} is a name, but columns have none: give a number or a DataFrame.")
    if feature not in names:
        raise ValueError(f"feature {feature!r} is none of the columns {names}: give one of them, or its number.")
    return names.index(feature), feature


def _binomial_share(n, p):
    """Between which shares (2, ...) of n draws an event of probability p falls in ``BAND_LEVEL`` of all cases."""
    ends = (np.array([-1, 1]) * BAND_LEVEL + 1) / 2
    return np.stack([binom.ppf(end, n, p) for end in ends]) / n


def _unwrap(estimator):
    """The model inside searches and pipelines, and the pipelines of what comes before it."""
    before = []
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, Pipeline):
            before.append(estimator[:-1])
            estimator = estimator[-1]
        else:
            return estimator, [steps for steps in before if len(steps)]


def _unwrap_deep_gp(estimator, display):
    """The same of a fitted deep GP of this package."""
    _pyplot(f"{display.__name__}.from_estimator")
    model, before = _unwrap(estimator)
    check_is_fitted(model)
    if not isinstance(model, BaseDeepGP):
        raise TypeError(
            f"{display.__name__} draws estimators of skdgp, or pipelines and searches that end in one, got "
            f"{type(model).__name__}."
        )
    return model, before


def _inputs_of_last_step(model, before, X):
    """Rows that the model is given after the steps before it, and names of their columns or None."""
    names = None
    for steps in before:
        X = steps.transform(X)
        try:
            names = steps.get_feature_names_out()
        except AttributeError:  # of a step that does not name its columns
            names = None
    names = getattr(model, "feature_names_in_", names)
    return validate_data(model, X, reset=False, dtype=[np.float64, np.float32]), names


def _make_grid(X, columns, names, resolution):
    """Values of each feature, and rows (G, n_features) or (G², n_features) where all others are at their medians."""
    grids = [np.linspace(*np.quantile(X[:, column], FEATURE_RANGE), resolution) for column in columns]
    for name, grid in zip(names, grids, strict=True):
        if not grid[0] < grid[-1]:
            raise ValueError(
                f"feature {name!r} is {grid[0]:.6g} at its 2.5 % quantile and at its 97.5 % quantile: choose one "
                "that varies."
            )
    rows = np.tile(np.median(X, axis=0), (resolution ** len(columns), 1))
    for column, values in zip(columns, np.meshgrid(*grids, indexing="ij"), strict=True):
        rows[:, column] = values.ravel()
    return grids, rows


@torch.no_grad()
def _layer_moments(model, member, X):
    """For every layer of a member the means and standard deviations (n, D) of its outputs at rows ``X``."""
    dtype = next(member.parameters()).dtype
    batches = torch.as_tensor(model._scale_inputs(X), dtype=dtype, device=model.device_).split(
        max(1, PREDICT_NUMBERS // member.numbers_per_row())
    )
    parts = [_moments(member, batch) for batch in batches]
    layers = [[torch.cat(each) for each in zip(*layer, strict=True)] for layer in zip(*parts, strict=True)]
    return [[each.double().cpu().numpy() for each in layer] for layer in layers]


def _moments(member, X):
    """Means and standard deviations (B, D) of each layer's mixture."""
    layers, log_weight = member.propagate(X)
    weight = log_weight.exp()[:, None, None]
    moments = []
    for mean, variance, _ in layers:  # the first layer's are those of all samples
        centre = (weight * mean).sum(0)
        spread = (weight * (variance + (mean - centre).square())).sum(0)
        moments.append((centre, spread.sqrt()))
    return moments


def _name_of_last_layer(model):
    if not is_regressor(model):
        return "Last layer, latent"
    return f"Last layer, {'standardised ' if model.normalize_y else ''}y"


def _first_component(mean):
    """First principal component (G, G) of outputs' means (G, G, D), and its share of their variance."""
    centred = (mean - mean.mean(axis=(0, 1))).reshape(-1, mean.shape[-1])
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    direction = directions[0]
    direction = direction * np.sign(direction[np.abs(direction).argmax()])  # else its sign were arbitrary
    total = np.square(sizes).sum()
    return (centred @ direction).reshape(mean.shape[:-1]), sizes[0] ** 2 / total if total > 0 else 1.0
