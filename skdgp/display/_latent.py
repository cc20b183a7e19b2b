"""A picture of the outputs of a model's layers."""

import warnings
from numbers import Integral

import numpy as np
from sklearn.base import is_regressor
from sklearn.utils.validation import validate_data

from ..estimators._fitted import built_with, fitted
from ..inspection._rows import find_feature
from ._axes import open_row, styled
from ._models import unwrap_deep_gp

#: Quantiles of a feature at which the picture begins and ends.
FEATURE_RANGE = (0.025, 0.975)

#: Largest number of outputs of a layer that the picture shows, in different colours.
MAX_OUTPUTS = 4


class LatentDisplay:
    """Outputs of each layer of a deep GP as functions of one or two features.

    The chosen features move over a grid, while all others stay at their medians. Over one feature the picture shows the
    outputs of each layer as means ± 2 standard deviations, or as functions drawn from the posterior. If a layer has
    more than four outputs, it shows the four whose means vary most. Over two features it shows contours of the layer's
    mean. If a layer has several outputs, these are contours of the first principal component of their means.

    The inputs of a layer are uncertain, so that its output is a mixture; the picture shows the moments of the mixture,
    without observation noise. The inputs of the first layer are standardised features. The outputs of the last layer
    are standardised targets, unless ``normalize_y=False``. With counts, positive or transformed targets and for classes
    they are in other units: see ``predict_layers``.

    Parameters
    ----------
    grids : sequence of one or two ndarrays of shape (G,)
        Values of each chosen feature.
    means, stds : sequence of ndarray of shape (G, D) or (G, G, D)
        Means and standard deviations of the D outputs of each layer. The axes of two features are in the order of
        ``grids``.
    feature_names : sequence of str, default=None
        Names of the features.
    layer_names : sequence of str, default=None
        Names of the layers.
    draws : sequence of ndarray of shape (G, D, S), default=None
        Functions of each layer over one feature, which the picture shows instead of means and bands.

    Attributes
    ----------
    axes_ : ndarray of matplotlib Axes of shape (n_layers,)
        Axes of the picture, one for each layer.
    figure_ : matplotlib Figure
        Figure of these axes.
    outputs_ : list of ndarray
        For each layer, the numbers of the outputs in the picture.
    lines_, bands_ : list of list of matplotlib Line2D and PolyCollection
        Means and their bands, for each layer and each output in the picture; empty over two features. With ``draws``
        the lines are the functions, output by output, and there are no bands.
    contours_ : list of matplotlib QuadContourSet
        Contours of each layer; empty over one feature.

    Examples
    --------
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.display import LatentDisplay
    >>> X, y = make_waves(random_state=0)
    >>> model = DSDGPRegressor(
    ...     (2,), 5, max_iter=5, n_estimators=1, random_state=0
    ... ).fit(X, y)
    >>> display = LatentDisplay.from_estimator(model, X, grid_resolution=50)
    >>> [mean.shape for mean in display.means]
    [(50, 2), (50, 1)]
    """

    def __init__(self, grids, means, stds, *, feature_names=None, layer_names=None, draws=None):
        self.grids = grids
        self.means = means
        self.stds = stds
        self.feature_names = feature_names
        self.layer_names = layer_names
        self.draws = draws

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        *,
        features=(0,),
        grid_resolution=100,
        member=0,
        n_draws=0,
        random_state=None,
        ax=None,
        **kwargs,
    ):
        """Compute the layers' outputs on a grid, and draw them.

        Parameters
        ----------
        estimator : object
            Fitted regressor or classifier of this package, or a pipeline or search that ends in one.
        X : array-like of shape (n, n_features)
            Rows that decide the range of the grid, which reaches from the 2.5 % to the 97.5 % quantile of a feature.
            All their features must be numbers, and no cell may be missing.
        features : int, str or sequence of one or two of them, default=(0,)
            Numbers or names of one or two columns of ``X``. In a pipeline they are columns of the last step's input.
        grid_resolution : int, default=100
            Number G of grid points along each feature, at least 2.
        member : int, default=0
            Number of the ensemble's member.
        n_draws : int, default=0
            Number of functions of each layer to show over one feature. 0 shows means and bands instead.
        random_state : int, RandomState instance or None, default=None
            Source of randomness for these functions.
        ax : Axes or array-like of Axes of shape (n_layers,), default=None
            Axes to draw on. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        LatentDisplay
            The display, already drawn.

        Raises
        ------
        TypeError
            If the estimator is not one of this package.
        ValueError
            If there is no such feature or member, if the resolution is less than 2, if a feature is constant, if a
            cell of ``X`` is missing, if a feature of the model is a category, if ``n_draws`` is not a number from 0 on,
            or if it is set with two features.
        """
        model, before = unwrap_deep_gp(estimator, cls)
        features = [features] if isinstance(features, (str, Integral)) else list(features)
        if not (isinstance(grid_resolution, Integral) and grid_resolution >= 2):
            raise ValueError(f"grid_resolution={grid_resolution} makes no grid: give a whole number from 2 on.")
        X, names = _inputs_of_last_step(model, before, X)
        chosen = dict(find_feature(feature, names, X.shape[1]) for feature in features)
        columns, names = list(chosen), list(chosen.values())
        if len(features) not in (1, 2) or len(columns) < len(features):
            raise ValueError(f"features={features} must be one column of X, or two different ones.")
        if not (isinstance(n_draws, Integral) and n_draws >= 0):
            raise ValueError(f"n_draws={n_draws} must be the number of functions to show, or 0 for means and bands.")
        if n_draws and len(columns) > 1:
            raise ValueError(
                f"n_draws={n_draws} functions are lines over one feature, got features={features}: give one."
            )
        grids, rows = _make_grid(X, columns, names, grid_resolution)
        with warnings.catch_warnings():  # column names have been checked already
            warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
            moments = model.predict_layers(rows, member)
            draws = model.sample_layers(rows, n_draws, member, random_state) if n_draws else None
        shape = tuple(len(grid) for grid in grids)
        means, stds = ([layer.reshape(*shape, -1) for layer in layers] for layers in zip(*moments, strict=True))
        layer_names = [f"Hidden layer {i + 1}" for i in range(len(means) - 1)] + [_name_of_last_layer(model, member)]
        return cls(grids, means, stds, feature_names=names, layer_names=layer_names, draws=draws).plot(ax, **kwargs)

    def plot(self, ax=None, *, line_kwargs=None, band_kwargs=None, contour_kwargs=None):
        """Draw the picture.

        Parameters
        ----------
        ax : Axes or array-like of Axes of shape (n_layers,), default=None
            Axes to draw on. None makes a new figure.
        line_kwargs, band_kwargs : dict, default=None
            Style over one feature: of lines, as keywords of matplotlib's ``plot``, and of bands, as keywords of
            ``fill_between``.
        contour_kwargs : dict, default=None
            Style over two features, as keywords of matplotlib's ``contourf``.

        Returns
        -------
        self : LatentDisplay
            The display, whose attributes hold what was drawn.

        Raises
        ------
        ValueError
            If the numbers of axes and layers differ.
        """
        self.axes_ = open_row(f"{type(self).__name__}.plot", ax, len(self.means))
        self.figure_ = self.axes_[0].figure
        self.outputs_, self.lines_, self.bands_, self.contours_ = [], [], [], []
        names = self.feature_names or [f"Feature {i}" for i in range(len(self.grids))]
        for layer, axes in enumerate(self.axes_):
            if self.draws is not None:
                self._plot_draws(axes, layer, line_kwargs)
            elif len(self.grids) == 1:
                self._plot_outputs(axes, layer, line_kwargs, band_kwargs)
            else:
                self._plot_contours(axes, layer, contour_kwargs)
            axes.set_xlabel(names[0])
        value = "Mean ± 2 standard deviations" if self.draws is None else "Functions of the posterior"
        self.axes_[0].set_ylabel(value if len(self.grids) == 1 else names[1])
        return self

    def _title(self, layer, shown=None):
        """Title of a layer. It tells how many outputs are shown, if not all are."""
        title = f"Layer {layer + 1}" if self.layer_names is None else self.layer_names[layer]
        n_outputs = self.means[layer].shape[1]
        if shown is None or len(shown) == n_outputs:
            return title
        return f"{title}\n{len(shown)} of {n_outputs} outputs, which vary most"

    def _shown(self, layer):
        """Numbers of the outputs of a layer whose means vary most."""
        return np.sort(np.argsort(-np.ptp(self.means[layer], axis=0), kind="stable")[:MAX_OUTPUTS])

    def _plot_draws(self, axes, layer, line_kwargs):
        """Functions of one layer over one feature, with a colour for each output."""
        (grid,), shown, lines = self.grids, self._shown(layer), []
        for number, output in enumerate(shown):
            default = {"linewidth": 0.8, "alpha": 0.6, "color": f"C{number}"}
            lines += axes.plot(grid, self.draws[layer][:, output], **styled(default, line_kwargs))
        self.outputs_.append(shown)
        self.lines_.append(lines)
        self.bands_.append([])
        axes.set_title(self._title(layer, shown), fontsize="medium")

    def _plot_outputs(self, axes, layer, line_kwargs, band_kwargs):
        """Means and bands of one layer over one feature."""
        from matplotlib.colors import to_rgba

        (grid,), mean, std = self.grids, self.means[layer], self.stds[layer]
        n_outputs, shown = mean.shape[1], self._shown(layer)
        lines, bands = [], []
        for output in shown:
            m, s = mean[:, output], std[:, output]
            line = styled({"linewidth": 1.8, "label": f"output {output}"}, line_kwargs)
            lines.append(axes.plot(grid, m, **line)[0])
            # Bands of several outputs often overlap. So their faces are pale, and their edges tell them apart.
            face, edge = (to_rgba(lines[-1].get_color(), alpha) for alpha in (0.1, 0.5))
            band = styled({"facecolor": face, "edgecolor": edge, "linewidth": 0.7}, band_kwargs)
            bands.append(axes.fill_between(grid, m - 2 * s, m + 2 * s, **band))
        self.outputs_.append(shown)
        self.lines_.append(lines)
        self.bands_.append(bands)
        axes.set_title(self._title(layer, shown), fontsize="medium")
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


def _inputs_of_last_step(model, before, X):
    """Rows after the steps before the model, and the names of their columns, or None."""
    names = None
    for steps in before:
        X = steps.transform(X)
        try:
            names = steps.get_feature_names_out()
        except AttributeError:  # a step that does not name its columns
            names = None
    names = getattr(model, "feature_names_in_", names)
    if model.is_categorical_ is not None:
        raise ValueError("LatentDisplay varies numbers, but this model has categories among its features.")
    if model.date_features_ is not None:
        raise ValueError("LatentDisplay varies numbers, but this model has dates or durations among its features.")
    X = validate_data(model, X, reset=False, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan")
    if np.isnan(X).any():
        raise ValueError("LatentDisplay needs rows without missing cells, and X has some: leave out these rows.")
    return X, names


def _make_grid(X, columns, names, resolution):
    """Grid of each feature, and rows (G, n_features) or (G², n_features) with all others at their medians."""
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


def _name_of_last_layer(model, member):
    if not is_regressor(model):
        return "Last layer, latent"
    if model.target_transformer_ is not None or not model.module_[0].likelihood.additive:
        return "Last layer, latent"  # its outputs are no targets
    name = "y less its trend" if fitted(model).has_trend(member) else "y"
    return f"Last layer, {'standardised ' if built_with(model, 'normalize_y') else ''}{name}"


def _first_component(mean):
    """First principal component (G, G) of outputs' means (G, G, D), and its share of their variance."""
    centred = (mean - mean.mean(axis=(0, 1))).reshape(-1, mean.shape[-1])
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    direction = directions[0]
    direction = direction * np.sign(direction[np.abs(direction).argmax()])  # otherwise its sign would be arbitrary
    total = np.square(sizes).sum()
    return (centred @ direction).reshape(mean.shape[:-1]), sizes[0] ** 2 / total if total > 0 else 1.0
