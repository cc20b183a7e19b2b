"""Axes and styles of pictures."""

import numpy as np

#: The colours of the pictures: predictions are blue, with bands in a pale blue.
BLUE = "#0b5fa5"
PALE_BLUE = "#d3e2ef"

#: Observations outside of their intervals. Others are dark.
RED = "#b3261e"
DARK = "#333333"

#: A second curve, on an axis of its own.
ORANGE = "#c8762b"

#: What stands for comparison only, such as the line of a calibrated model.
GREY = "#8a8a8a"


def import_pyplot(caller):
    """``matplotlib.pyplot``, which is imported only here. If it is missing, the ImportError says what to install."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f'{caller} draws with matplotlib, which cannot be imported: install it with pip install "skdgp[plot]".'
        ) from error
    return plt


def open_axes(caller, ax):
    """``ax``, or the axes of a new figure if it is None."""
    return open_row(caller, ax, 1)[0]


def open_row(caller, ax, n_axes, *, n_columns=None, sharey=False):
    """Axes as an array (n_axes,); they belong to a new figure if ``ax`` is None, with ``n_columns`` in a row."""
    plt = import_pyplot(caller)
    if ax is None:
        n_columns = min(n_columns or n_axes, n_axes)
        shape = -(-n_axes // n_columns), n_columns
        size = None if n_axes == 1 else (3.8 * n_columns, 3.6 * shape[0])
        with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False}):
            axes = plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False, sharey=sharey)[1].ravel()
        for empty in axes[n_axes:]:
            empty.remove()
        return axes[:n_axes]
    axes = np.ravel(ax)
    if len(axes) != n_axes:
        raise ValueError(f"ax holds {len(axes)} axes, but {n_axes} are drawn on: give as many, or None.")
    return axes


def styled(default, given):
    """Keywords of a matplotlib function: the given ones replace defaults, also if they are aliases."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D

    return default | normalize_kwargs(normalize_kwargs(given, Line2D), Collection)
