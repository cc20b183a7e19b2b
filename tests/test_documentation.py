"""What the documentation promises of the package."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Characters of a message that the page must begin an entry with, values aside.
OPENING = 40


def messages():
    """The text of every error and warning of the package: syntax trees of strings, with where they are."""
    for path in sorted((ROOT / "skdgp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if isinstance(node, ast.Raise) or ast.unparse(call.func) == "warnings.warn":
                yield pytest.param(call.args[0], id=f"{path.relative_to(ROOT)}:{call.lineno}")


def pattern_of(message):
    """Regular expression of how a message begins, with anything where its values go."""
    pattern, left = "", OPENING
    for part in message.values if isinstance(message, ast.JoinedStr) else [message]:
        text = part.value if isinstance(part, ast.Constant) else None
        pattern += ".+" if text is None else re.escape(text[:left])
        left -= len(text or "")
        if left <= 0:
            break
    return pattern


@pytest.mark.parametrize("message", list(messages()))
def test_troubleshooting_explains_every_message(message):
    assert isinstance(message, ast.Constant | ast.JoinedStr), "write the message where it is raised"
    page = (ROOT / "doc/troubleshooting.rst").read_text(encoding="utf-8")
    entries = re.findall(r"^``(.+)``\n +\S", page, flags=re.MULTILINE)
    found = any(re.match(pattern_of(message), entry) for entry in entries)
    assert found, f"doc/troubleshooting.rst has no entry for: {ast.unparse(message)}"


@pytest.mark.parametrize("name", ["README.rst", *sorted(f"doc/{path.name}" for path in (ROOT / "doc").glob("*.rst"))])
def test_pages_show_stored_pictures_only(name):
    """What the gallery draws is missing from a fresh clone, and from documentation built without the gallery."""
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for picture in re.findall(r"^ *\.\. (?:image|figure):: +(\S+)", text, flags=re.MULTILINE):
        path = (page.parent / picture).resolve().relative_to(ROOT)
        assert path.parts[:2] not in {("doc", "gallery"), ("doc", "generated")}, f"the gallery makes {path}"
        assert (ROOT / path).is_file(), f"{path} does not exist"
