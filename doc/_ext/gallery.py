"""What sphinx-gallery asks of this project: the order of the examples, and that they run without a warning."""

import warnings
from pathlib import Path

#: As they are read. An example that is not named here comes last.
STORIES = (
    "quickstart",
    "tables",
    "intervals",
    "totals",
    "dependence",
    "sensitivity",
    "bayesian_optimisation",
    "step_function",
    "depth",
    "letters",
    "neighbours",
    "noise",
    "counts",
    "modes",
    "kernels",
    "series",
    "outputs",
    "images",
    "orthogonal",
    "prior_collapse",
    "compositions",
    "choosing",
    "search",
    "conformal",
    "streaming",
    "cluster",
)


def story_order(filename):
    """Where an example stands."""
    name = Path(filename).stem.removeprefix("plot_")
    return STORIES.index(name) if name in STORIES else len(STORIES)


def turn_warnings_into_errors(gallery_conf, filename):
    """An example that warns fails. That pictures are not shown on a screen is as it should be."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
