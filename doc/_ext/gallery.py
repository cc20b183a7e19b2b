"""What sphinx-gallery asks of this project: the order of the examples, their thumbnails, and that they do not warn."""

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
from sphinx_gallery.scrapers import matplotlib_scraper

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

#: Thumbnails of stories whose pictures have several panels: the number of the picture, and which of its panels is
#: shown. These stories have the line ``# sphinx_gallery_thumbnail_number = 0``, since the panel is saved as number 0.
THUMBNAILS = {
    "quickstart": (1, 0),
    "tables": (1, 0),
    "intervals": (1, 1),
    "totals": (1, 2),
    "dependence": (1, 0),
    "sensitivity": (1, 1),
    "bayesian_optimisation": (2, 0),
    "step_function": (1, -1),
    "depth": (2, 2),
    "letters": (1, 2),
    "neighbours": (1, 1),
    "noise": (1, 1),
    "modes": (1, 1),
    "kernels": (1, 0),
    "outputs": (1, 1),
    "orthogonal": (1, 2),
    "prior_collapse": (2, 0),
    "compositions": (1, 6),
    "choosing": (1, 2),
    "search": (1, 1),
    "conformal": (1, 0),
    "streaming": (1, 0),
    "cluster": (1, 1),
}


def story_order(filename):
    """Where an example stands."""
    name = Path(filename).stem.removeprefix("plot_")
    return STORIES.index(name) if name in STORIES else len(STORIES)


def turn_warnings_into_errors(gallery_conf, filename):
    """An example that warns fails. That pictures are not shown on a screen is as it should be."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")


def save_figures(block, block_vars, gallery_conf):
    """Save the pictures of a block of code, and the panel that is the thumbnail."""
    paths = block_vars["image_path_iterator"]
    wanted, panel = THUMBNAILS.get(Path(block_vars["src_file"]).stem.removeprefix("plot_"), (None, None))
    for number, figure in enumerate(map(plt.figure, plt.get_fignums()), start=len(paths) + 1):
        if number == wanted:
            figure.canvas.draw()  # sets where the panel is
            box = figure.axes[panel].get_tightbbox().transformed(figure.dpi_scale_trans.inverted()).padded(0.04)
            figure.savefig(paths.image_path.format(0), bbox_inches=box)
    return matplotlib_scraper(block, block_vars, gallery_conf)
