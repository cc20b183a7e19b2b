"""A picture of how predictions change with features."""

from numbers import Integral

import numpy as np
from sklearn.utils import check_random_state

from .._sklearn import check_sample_weight
from ..distributions import central_levels
from ..gp.waves import UndrawnError
from ..inspection._dependence import dependence_of, draw_functions, subsample_of
from ..inspection._response import Response
from ..inspection._rows import as_table
from ._axes import BLUE, GREY, PALE_BLUE, import_pyplot, open_row, styled

#: Number of pictures side by side.
N_COLUMNS = 3


class DependenceDisplay:
    """Partial dependence of predictions on features, with bands.

    For each feature, the picture shows the mean prediction over rows in which the feature has been set to each value of
    a grid. The band contains a share of functions drawn from the posterior, each averaged over rows in the same way. So
    it is the uncertainty of the average effect. For a category there is a point with a bar for each level. With
    ``kind="both"`` or "individual", pale lines or points show single rows (individual conditional expectation, ICE).
    Small ticks at the bottom are the deciles of the feature.

    Parameters
    ----------
    results : sequence of Bunch
        For each feature, what :func:`skdgp.inspection.dependence` returns.
    kind : {"average", "individual", "both"}, default="average"
        What is drawn.
    confidence_level : float, default=0.9
        Share of the functions in the band.
    value_name : str, default="prediction"
        What is predicted.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes of shape (n_features,)
        Axes of the picture, one for each feature.
    figure_ : matplotlib Figure
        Figure of these axes.
    lines_ : list of matplotlib Line2D or None
        Averages of each feature; for categories points without a line. None with ``kind="individual"``.
    bands_ : list of matplotlib PolyCollection, LineCollection or None
        Bands, and for categories bars; None where there is none.
    individual_lines_ : list of list of matplotlib Line2D
        Lines of single rows for each feature, and for categories one Line2D with the points of all rows. The list is
        empty with ``kind="average"``.
    rugs_ : list of matplotlib LineCollection or None
        Ticks at the deciles; None for categories.

    See Also
    --------
    skdgp.inspection.dependence : Computes the numbers.
    sklearn.inspection.PartialDependenceDisplay : Draws maps over two features, without bands.

    Examples
    --------
    >>> from skdgp import SOLVEGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.display import DependenceDisplay
    >>> X, y = make_waves(60, random_state=0)
    >>> model = SOLVEGPRegressor(10, 0, max_iter=20, random_state=0).fit(X, y)
    >>> display = DependenceDisplay.from_estimator(
    ...     model, X, [0], n_draws=20, random_state=0
    ... )
    >>> display.results[0].average.shape
    (25,)
    """

    def __init__(self, results, *, kind="average", confidence_level=0.9, value_name="prediction"):
        self.results = results
        self.kind = kind
        self.confidence_level = confidence_level
        self.value_name = value_name

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        features=None,
        *,
        kind="average",
        band="auto",
        target=None,
        sample_weight=None,
        n_draws=50,
        confidence_level=0.9,
        percentiles=(0.05, 0.95),
        grid_resolution=25,
        subsample=100,
        random_state=None,
        ax=None,
        **kwargs,
    ):
        """Compute partial dependences, and draw them.

        Parameters
        ----------
        estimator : object
            Fitted regressor or classifier of this package, or a pipeline or search that ends in one.
        X : array-like of shape (n, n_features)
            Rows to average over. Cells may be missing.
        features : int, str or sequence of them, default=None
            Numbers or names of columns of ``X``, each of which gets a picture. None stands for all columns.
        kind : {"average", "individual", "both"}, default="average"
            Whether to draw averages, single rows, or both.
        band : {"auto"} or bool, default="auto"
            Whether to draw bands around averages. "auto" leaves them out in two cases: if ``kind`` is "individual", and
            if functions cannot be drawn from the model. That is so with ``latent_dims``, and with a kernel, or a part
            of one, that has no method ``draw``. With True these cases are errors.
        target : int, str or None, default=None
            Which output of a regressor, by its number, or which class of a classifier, by its label. None stands for
            the only output, or for the second of two classes.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows in averages.
        n_draws : int, default=50
            Number of functions for the bands, at least 2.
        confidence_level : float, default=0.9
            Share of the functions in a band, between 0 and 1.
        percentiles : tuple of two floats, default=(0.05, 0.95)
            Quantiles of a feature between which it is drawn.
        grid_resolution : int, default=25
            Number of values of each feature, at least 2.
        subsample : int or None, default=100
            Largest number of rows that functions are averaged over, and that are drawn as single rows. They are chosen
            at random. None stands for all rows. Averages of predictions always use all rows.
        random_state : int, RandomState instance or None, default=None
            Source of randomness.
        ax : Axes or array-like of Axes of shape (n_features,), default=None
            Axes to draw on. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        DependenceDisplay
            The display, already drawn. Its ``results`` have the numbers.

        Raises
        ------
        TypeError
            If the estimator is not one of this package.
        ValueError
            If ``X`` has no such feature or a feature without different values, if there is no such target, if a
            parameter has an impossible value, or if ``band=True`` and there can be none.
        """
        import_pyplot(f"{cls.__name__}.from_estimator")
        X = as_table(X)
        response = Response(estimator, X, target, cls.__name__)
        features = range(X.shape[1]) if features is None else features
        features = [features] if isinstance(features, str | Integral) else list(features)
        rng = check_random_state(random_state)
        weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        functions = _functions(response, X, band, kind, n_draws, rng)
        settings = {"kind": kind, "percentiles": percentiles, "grid_resolution": grid_resolution}
        settings |= {"weight": weight, "rows": subsample_of(weight, subsample, rng)}
        settings |= {"ends": central_levels(confidence_level)}
        results = [dependence_of(response, X, feature, functions, **settings) for feature in features]
        value = "prediction" if response.is_single else f"prediction of output {response.target}"
        value = f"probability of {response.target}" if response.is_probability else value
        display = cls(results, kind=kind, confidence_level=confidence_level, value_name=value)
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, line_kwargs=None, band_kwargs=None, individual_kwargs=None):
        """Draw the picture.

        Parameters
        ----------
        ax : Axes or array-like of Axes of shape (n_features,), default=None
            Axes to draw on. None makes a new figure.
        line_kwargs, individual_kwargs : dict, default=None
            Style of averages and of single rows, as keywords of matplotlib's ``plot``.
        band_kwargs : dict, default=None
            Style of bands, as keywords of matplotlib's ``fill_between``, and of bars, as keywords of ``vlines``.

        Returns
        -------
        self : DependenceDisplay
            The display, whose attributes hold what was drawn.

        Raises
        ------
        ValueError
            If the numbers of axes and features differ.
        """
        caller = f"{type(self).__name__}.plot"
        self.axes_ = open_row(caller, ax, len(self.results), n_columns=N_COLUMNS, sharey=True)
        self.figure_ = self.axes_[0].figure
        self.lines_, self.bands_, self.individual_lines_, self.rugs_ = [], [], [], []
        for axes, result in zip(self.axes_, self.results, strict=True):
            x = np.arange(len(result.grid_values)) if result.is_categorical else np.asarray(result.grid_values)
            self.individual_lines_.append(self._plot_rows(axes, x, result, individual_kwargs))
            self.bands_.append(self._plot_band(axes, x, result, band_kwargs))
            self.lines_.append(self._plot_average(axes, x, result, line_kwargs))
            self.rugs_.append(_plot_rug(axes, result))
            axes.set_xlabel(result.feature_name)
            if result.is_categorical:
                _name_levels(axes, result.grid_values)
        name = self.value_name
        self.axes_[0].set_ylabel(name.capitalize() if self.kind == "individual" else f"Mean {name}")
        self.axes_[0].legend(frameon=False)
        return self

    def _plot_rows(self, axes, x, result, individual_kwargs):
        """Lines of single rows, or points if the feature is a category."""
        if self.kind == "average":
            return []
        values = result.individual[result.rows].T  # (G, n)
        style = {"color": GREY, "alpha": min(0.6, max(0.25, 12 / values.shape[1])), "zorder": 1}
        if result.is_categorical:
            shift = np.linspace(-0.25, 0.25, values.shape[1])
            style |= {"linestyle": "none", "marker": "o", "markersize": 2.5, "markeredgewidth": 0}
            lines = axes.plot((x[:, None] + shift).ravel(), values.ravel(), **styled(style, individual_kwargs))
        else:
            lines = axes.plot(x, values, **styled(style | {"linewidth": 0.8}, individual_kwargs))
        lines[0].set_label("single rows")
        return lines

    def _plot_band(self, axes, x, result, band_kwargs):
        """The band, or a bar for each level of a category."""
        if self.kind == "individual" or result.lower is None:
            return None
        style = {"color": PALE_BLUE, "linewidth": 0, "zorder": 2, "label": f"{100 * self.confidence_level:g} % band"}
        if self.kind == "both":
            style |= {"alpha": 0.85}
        if not result.is_categorical:
            return axes.fill_between(x, result.lower, result.upper, **styled(style, band_kwargs))
        return axes.vlines(x, result.lower, result.upper, **styled(style | {"linewidth": 7}, band_kwargs))

    def _plot_average(self, axes, x, result, line_kwargs):
        """The average over rows."""
        if self.kind == "individual":
            return None
        style = {"color": BLUE, "linewidth": 1.8, "zorder": 3, "label": "mean over rows"}
        if result.is_categorical:
            style |= {"linestyle": "none", "marker": "o", "markersize": 5}
        return axes.plot(x, result.average, **styled(style, line_kwargs))[0]


def _functions(response, X, band, kind, n_draws, rng):
    """Functions for bands; None if there are to be none, or if "auto" finds that there can be none."""
    if not (band == "auto" or isinstance(band, bool)):
        raise ValueError(f'band={band!r} must be "auto", True or False.')
    if band is True and kind == "individual":
        raise ValueError('band=True belongs to averages, which kind="individual" does not show: set kind="both".')
    if band is False or kind == "individual":
        return None
    try:
        functions = draw_functions(response, n_draws, rng)
        functions(X[:1])
    except UndrawnError:
        if band is True:
            raise
        return None
    return functions


def _plot_rug(axes, result):
    """Ticks at the deciles of a number."""
    if result.deciles is None:
        return None
    inside = (result.grid_values[0] <= result.deciles) & (result.deciles <= result.grid_values[-1])
    ends = axes.get_xaxis_transform()  # heights are shares of the axes
    return axes.vlines(result.deciles[inside], 0, 0.03, transform=ends, color=GREY, linewidth=0.8)


def _name_levels(axes, levels):
    """Names of levels below the points, at an angle if they are long."""
    names = ["missing" if level is None else str(level) for level in levels]
    long = sum(map(len, names)) > 25
    axes.set_xticks(
        range(len(names)), names, **({"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if long else {})
    )
    axes.set_xlim(-0.6, len(names) - 0.4)
