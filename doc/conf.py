"""How the documentation is built; see CONTRIBUTING.rst for the command."""

import re
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

import joblib  # noqa: E402
from docutils import nodes  # noqa: E402
from sklearn.experimental import enable_halving_search_cv  # noqa: E402, F401  - the gallery looks names up

import skdgp  # noqa: E402

project = "skdgp"
author = "The skdgp developers"
copyright = "the skdgp developers"
version = release = skdgp.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # pages show formulas without a network
    "matplotlib.sphinxext.plot_directive",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "measured",
    "messages",
    "classes",
]
templates_path = ["_templates"]
exclude_patterns = ["_ext"]
smartquotes_action = "De"  # most quotes are around values of parameters, which readers copy: they stay straight
nitpicky = True
# Types in numpydoc's entries are prose, and names of other packages cannot be looked up without a network.
nitpick_ignore_regex = [(r"py:.*", r"(?!skdgp)[\w.]+")]

html_theme = "pydata_sphinx_theme"
html_title = "skdgp"
html_static_path = ["_static"]
html_css_files = ["skdgp.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": f"skdgp {version}", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navigation_with_keys": False,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {name: [] for name in ("index", "getting_started", "benchmarks", "contributing", "changelog")}

autosummary_generate = True
toc_object_entries_show_parents = "hide"  # "predict()" fits beside the page, "DSDGPRegressor.predict()" does not
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = ["svg"]

# An empty inventory stands in for those that cannot be fetched: names are then shown without a link.
OFFLINE = HERE / "generated" / "offline.inv"
OFFLINE.parent.mkdir(exist_ok=True)
OFFLINE.write_bytes(
    b"# Sphinx inventory version 2\n# Project: none\n# Version: none\n# zlib-compressed\n" + zlib.compress(b"")
)
intersphinx_timeout = 5
intersphinx_mapping = {
    name: (url, (None, str(OFFLINE)))
    for name, url in {
        "python": "https://docs.python.org/3",
        "numpy": "https://numpy.org/doc/stable",
        "scipy": "https://docs.scipy.org/doc/scipy",
        "sklearn": "https://scikit-learn.org/stable",
        "torch": "https://docs.pytorch.org/docs/stable",
        "matplotlib": "https://matplotlib.org/stable",
    }.items()
}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "gallery.story_order",
    "filename_pattern": "/plot_",
    "image_scrapers": ("gallery.save_figures",),
    "reset_modules": ("matplotlib", "gallery.turn_warnings_into_errors"),
    "abort_on_example_error": True,
    "parallel": joblib.cpu_count(),  # examples at once, each with its share of the threads
    "doc_module": ("skdgp",),
    "reference_url": {"skdgp": None},
    "backreferences_dir": "generated/backreferences",
    "inspect_global_variables": False,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1,
    "write_computation_times": False,  # a page that searches would find for every word
}


def without_foreign_labels(app, what, name, obj, options, lines):
    """Methods that come from scikit-learn refer to places in its user guide: keep the text of such references."""
    if "sklearn" in (getattr(obj, "__module__", "") or ""):
        lines[:] = [re.sub(r":ref:`([^`<]*?)\s*(<[^`]*>)?`", r"\1", line) for line in lines]


#: What has text that readers copy, or that is no text.
CODE = (nodes.literal, nodes.FixedTextElement, nodes.math, nodes.raw, nodes.comment)


def keep_numbers_whole(app, doctree):
    """No line ends within "90 %", "10 000" or "2 ± 1": their spaces do not break. Code stays as it is."""
    for text in list(doctree.findall(nodes.Text)):
        whole = re.sub(r"(?<=\d) (?=[%±]|\d{3}\b)|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text)
        if whole != text and isinstance(text.parent, nodes.TextElement) and not isinstance(text.parent, CODE):
            text.parent.replace(text, nodes.Text(whole))


def setup(app):
    """Sphinx calls this function."""
    app.connect("autodoc-process-docstring", without_foreign_labels)
    app.connect("doctree-read", keep_numbers_whole)
