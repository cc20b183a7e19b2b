"""A list of every error and warning of the package, read from its code: ``.. messages::``."""

import ast
import re
from pathlib import Path

from skdgp.estimators._refusals import REFUSED
from skdgp.estimators._wishes import IDLE

PACKAGE = Path(__file__).resolve().parents[2] / "skdgp"


def listed() -> list[str]:
    """The text of each message, with … for its values, in the order of the alphabet."""
    texts = {text_of(message) for message in raised()}
    texts |= {f"{rule.name}=… {rule.reason}: {rule.cure}." for rule in REFUSED}
    texts |= {f"{name}=… has no effect {line.reason}: {line.cure}." for line in IDLE for name in line.names}
    shown = {re.sub(r"\{.*?\}|…+", "…", text) for text in texts}
    return sorted(filter(says_something, shown), key=lambda text: re.sub(r"\W", "", text).lower())


def raised():
    """Syntax trees of the messages that the package raises or warns with."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if isinstance(node, ast.Raise) or ast.unparse(call.func) == "warnings.warn":
                yield call.args[0]


def text_of(message: ast.expr) -> str:
    """The text of a string, with … for its values."""
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts)


def says_something(text: str) -> bool:
    """Whether a text has more than values: others take their texts from tables, and are listed line by line."""
    return len(re.findall(r"\w+", text.replace("has no effect", ""))) > 2


def setup(app):
    """Sphinx calls this function. Tests read the list without Sphinx, which is imported here therefore."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Messages(SphinxDirective):
        """One item for each message."""

        def run(self):
            for path in PACKAGE.rglob("*.py"):
                self.env.note_dependency(str(path))
            items = [nodes.list_item("", nodes.paragraph("", "", nodes.literal(text, text))) for text in listed()]
            return [nodes.bullet_list("", *items)]

    app.add_directive("messages", Messages)
    return {"parallel_read_safe": True, "version": "1"}
