"""A picture of a model's training."""

import numpy as np

from ._axes import BLUE, GREY, ORANGE, open_axes, styled
from ._models import unwrap_deep_gp


class LearningCurveDisplay:
    """Training loss and validation score after each epoch.

    If the score gets lower while the loss still improves, the model overfits. scikit-learn's display of the same name
    shows something else: scores for different numbers of training rows.

    Parameters
    ----------
    loss : array-like of shape (n_epochs,)
        Negative objective per row, the mean over members and minibatches.
    scores : array-like of shape (n_epochs,), default=None
        Log predictive density of the held-out rows in nats, the mean over rows and members. A regressor's density is
        that of standardised targets, unless ``normalize_y=False``.
    best : int or array-like of shape (n_members,), default=None
        Epochs whose parameters the members keep. The first epoch is 1.

    Attributes
    ----------
    ax_, score_ax_, figure_ : matplotlib Axes, Axes or None, and Figure
        Axes of the loss, axes of the score, and their figure. ``score_ax_`` is None without scores.
    loss_line_, score_line_ : matplotlib Line2D, and Line2D or None
        The curves of loss and score. ``score_line_`` is None without scores.
    best_lines_ : list of matplotlib Line2D
        Marks at the best epochs.

    Examples
    --------
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> from skdgp.display import LearningCurveDisplay
    >>> X, y = make_waves(random_state=0)
    >>> model = DSDGPRegressor(
    ...     max_iter=5, n_estimators=1, n_inducing=5, random_state=0
    ... ).fit(X, y)
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
        """Draw the loss and the score that a fitted estimator has recorded.

        Parameters
        ----------
        estimator : object
            Fitted regressor or classifier of this package, or a pipeline or search that ends in one.
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        **kwargs
            Further arguments of :meth:`plot`.

        Returns
        -------
        LearningCurveDisplay
            The display, already drawn.

        Raises
        ------
        TypeError
            If the estimator is not one of this package.
        """
        model, _ = unwrap_deep_gp(estimator, cls)
        scored = len(model.validation_scores_) > 0
        # Without held-out rows the last epoch is best by definition.
        display = cls(model.loss_curve_, *((model.validation_scores_, model.best_iter_) if scored else ()))
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, loss_kwargs=None, score_kwargs=None, best_kwargs=None):
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. None makes a new figure.
        loss_kwargs, score_kwargs, best_kwargs : dict, default=None
            Style of the loss and the score, as keywords of matplotlib's ``plot``, and of the marks, as keywords of
            ``axvline``.

        Returns
        -------
        self : LearningCurveDisplay
            The display, whose attributes hold what was drawn.

        Raises
        ------
        ValueError
            If ``scores`` and ``loss`` differ in length, or if ``best`` is not one of their epochs.
        """
        n_epochs = len(self.loss)
        if self.scores is not None and len(self.scores) != n_epochs:
            raise ValueError(f"scores of {len(self.scores)} epochs and loss of {n_epochs} must have the same length.")
        best = np.array([], dtype=int) if self.best is None else np.atleast_1d(self.best)
        if ((best < 1) | (best > n_epochs)).any():
            raise ValueError(f"best={self.best} must hold epochs from 1 to {n_epochs}, as many as loss has.")
        self.ax_ = ax = open_axes(f"{type(self).__name__}.plot", ax)
        self.figure_ = ax.figure
        mark = {"color": GREY, "linewidth": 1, "linestyle": "--", "zorder": 0}
        self.best_lines_ = [ax.axvline(epoch, **styled(mark, best_kwargs)) for epoch in np.unique(best)]
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


def _plot_curve(ax, values, label, color, kwargs):
    """Draw a curve over epochs. Its axis has the same colour."""
    style = styled({"color": color, "linewidth": 1.8, "marker": "o" if len(values) == 1 else None}, kwargs)
    line = ax.plot(np.arange(1, len(values) + 1), values, **style)[0]
    ax.set_ylabel(label, color=line.get_color())
    ax.tick_params(axis="y", labelcolor=line.get_color())
    return line
