"""Tables of measurements, made from the files that the benchmarks saved: ``.. measured:: uci.csv`` and options."""

import shlex
import sys
from pathlib import Path

from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import tables  # noqa: E402


class Measured(SphinxDirective):
    """Files in ``benchmarks/results``, and the options of ``benchmarks/tables.py``.

    A line ``cell: text`` of the content says what to show instead of a cell, such as a name.
    """

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = dict.fromkeys(
        ("rows", "values", "columns", "where", "statistic", "count", "ratio", "rank-over", "best-of", "best", "goal"),
        directives.unchanged_required,
    )

    def run(self):
        """The table."""
        files = [BENCHMARKS / "results" / name for name in self.arguments[0].split()]
        for file in files:
            self.env.note_dependency(str(file))
        command = [str(file) for file in files]
        for option, text in self.options.items():
            command += [f"--{option}", *shlex.split(text)]
        names = dict(line.split(": ", 1) for line in self.content if line.strip())
        try:
            titles, lines = tables.make(command)
        except (OSError, KeyError, ValueError, SystemExit) as error:
            raise self.error(f"No table of {self.arguments[0]}: {error!r}") from error
        titles, *lines = ([names.get(cell, cell) for cell in cells] for cells in (titles, *lines))
        return self.parse_text_to_nodes(tables.restructured_text(titles, lines))


def setup(app):
    """Sphinx calls this function."""
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True, "version": "1"}
