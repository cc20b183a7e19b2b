"""Writes what the declarations of the parameters say: into docstrings, and the page of all parameters.

``python doc/_ext/parameters.py`` does it. A test checks that it would change nothing.
"""

import ast
import re
import textwrap
from dataclasses import fields
from itertools import groupby
from pathlib import Path

import skdgp
from skdgp.estimators._refusals import REFUSED
from skdgp.estimators._wishes import IDLE
from skdgp.methods.options import GROUPS, REMOVED, options_of

ROOT = Path(__file__).resolve().parents[2]

FAMILIES = ("AVDGP", "DSDGP", "SOLVEGP")

#: The estimators, in the order in which their parameters are listed.
ESTIMATORS = [getattr(skdgp, family + kind) for kind in ("Regressor", "Classifier") for family in FAMILIES]

#: Width of lines, and of the indentation of a parameter's text in the docstring of a class.
WIDTH, INDENT = 120, 8

PAGE = ROOT / "doc/parameters.rst"

HEAD = """\
..
   doc/_ext/parameters.py writes this page.

All parameters
==============

The tables have all parameters with their defaults, which are those of the regressor of each family. Where that of the
classifier is another one, it follows. A dash stands where there is no such parameter. The docstring of an estimator,
such as that of :class:`~skdgp.DSDGPRegressor`, says what each parameter does.
"""

REFUSED_HEAD = """\
What goes with what
-------------------

Some values do not go together. ``fit`` raises an error, which says what to do. Values that go together but do not suit
the table are errors, too; :doc:`/troubleshooting` has all messages.
"""

IDLE_HEAD = """\
Some parameters have no effect where others have certain values. If you give such a parameter a value, ``fit`` warns,
and the warning says what to do.
"""

REMOVED_HEAD = """\
Parameters of earlier versions
------------------------------

These parameters are none any more. Whoever gives them gets an error.
"""


def literal(value) -> str:
    """A default as the code of Python has it, with double quotes."""
    return repr(value).replace("'", '"')


def section(cls) -> str:
    """The section "Parameters" of a class's docstring, by groups."""
    options, lines = options_of(cls), []
    for group in GROUPS:
        for each in fields(cls):
            option = options[each.name]
            if option.group == group:
                lines.append(f"{(INDENT - 4) * ' '}{each.name} : {option.kind}, default={literal(each.default)}")
                lines.append(wrapped(option.text))
    return "\n".join(lines)


def wrapped(text: str) -> str:
    """Text in lines of a docstring."""
    indent = INDENT * " "
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def with_parameters(source: str) -> str:
    """The source of a file in which the docstrings of estimators have the declared parameters."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and hasattr(skdgp, node.name):
            start = source.index(f"\nclass {node.name}(")
            pattern = re.compile(r"(\n    Parameters\n    -{10}\n).*?(\n\n    Attributes\n)", re.DOTALL)
            text = section(getattr(skdgp, node.name))
            source = source[:start] + pattern.sub(lambda m, text=text: m[1] + text + m[2], source[start:], count=1)
    return source


def page() -> str:
    """The page of all parameters."""
    parts = [HEAD]
    for group, title in GROUPS.items():
        names = dict.fromkeys(
            each.name for cls in ESTIMATORS for each in fields(cls) if options_of(cls)[each.name].group == group
        )
        parts += [heading(title), table(list(names)), ""]
    groups = groupby(REFUSED, key=lambda line: (line.name, line.values, line.reason.partition(" ")[0], line.cure))
    refused = [refusals(list(lines)) for _, lines in groups]
    idle = [(", ".join(f"``{name}``" for name in line.names), plain(line.reason), line.cure) for line in IDLE]
    removed = [(f"``{name}``", cure) for name, cure in REMOVED.items()]
    parts += [REFUSED_HEAD, listed(("Parameter", "Reason", "What to do"), refused, "30 45 25"), ""]
    parts += [IDLE_HEAD, listed(("Parameters", "have no effect", "What to do"), idle, "30 45 25"), ""]
    parts += [REMOVED_HEAD, listed(("Parameter", "What to do"), removed, "25 75")]
    return "\n".join(parts) + "\n"


def listed(head: tuple[str, ...], rows: list[tuple[str, ...]], widths: str) -> str:
    """A table whose columns have these widths."""
    start = f".. list-table::\n   :header-rows: 1\n   :widths: {widths}\n\n"
    return start + "\n".join(row(cells) for cells in [head, *rows])


def refusals(lines) -> tuple[str, str, str]:
    """A row with refusals of the same values, whose reasons begin with the same word."""
    name, values, _, reason, cure = lines[0]
    refused = " " + ", ".join(f"``{literal(value)}``" for value in values) if values else ""
    verb, reasons = reason.partition(" ")[0], [plain(line.reason) for line in lines]
    return (
        f"``{name}``{refused}",
        ", ".join([reasons[0], *(each.removeprefix(f"{verb} ") for each in reasons[1:])]),
        cure,
    )


def plain(reason: str) -> str:
    """A reason without the values that it would name."""
    reason = re.sub(r", got (\w+=)?\{\w+!r\}$", "", reason)
    return re.sub(r"(\w+)=\{\w+!r\}", r"some values of ``\1``", reason)


def heading(title: str) -> str:
    """A heading of the page."""
    return f"{title}\n{len(title) * '-'}\n"


def table(names: list[str]) -> str:
    """A table of defaults."""
    lines = [".. list-table::\n   :header-rows: 1\n"]
    lines.append(row(["Parameter", *FAMILIES]))
    lines += [row([f"``{name}``", *(cell(family, name) for family in FAMILIES)]) for name in names]
    return "\n".join(lines)


def cell(family: str, name: str) -> str:
    """The defaults of a parameter in a family."""
    regressor, classifier = (default_of(getattr(skdgp, family + kind), name) for kind in ("Regressor", "Classifier"))
    if classifier is None:
        return "–" if regressor is None else f"{regressor} (regressor only)"
    if regressor is None:
        return f"{classifier} (classifier only)"
    return regressor if regressor == classifier else f"{regressor}; classifier: {classifier}"


def default_of(cls, name: str) -> str | None:
    """The default of a parameter; None if the class does not have it."""
    return next((f"``{literal(each.default)}``" for each in fields(cls) if each.name == name), None)


def row(cells) -> str:
    """A row of a table."""
    return "\n".join(f"   {'* -' if not place else '  -'} {cell}" for place, cell in enumerate(cells))


def written() -> dict[Path, str]:
    """All files that the declarations decide, with their text."""
    modules = sorted({ROOT / (cls.__module__.replace(".", "/") + ".py") for cls in ESTIMATORS})
    return {path: with_parameters(path.read_text(encoding="utf-8")) for path in modules} | {PAGE: page()}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
