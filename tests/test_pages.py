"""Every example of the documentation runs, as it is printed.

The examples of a page run in their order, and what one has made the next can use. A comment ``.. unprinted`` holds code
that runs there, too: it makes what the text takes for granted, such as a table. A comment ``.. not run:`` says why the
example after it does not run, such as for want of a cluster; its code has to be Python all the same. Fits have small
defaults here, since examples show how things are called and not how good they are. Most of a small fit is the base and
the correction by neighbours, which only pages about them have here; the README and three pages run with all defaults.
"""

import ast
import importlib.util
import inspect
import re
import textwrap
from pathlib import Path

import joblib
import matplotlib as mpl
import pytest

import skdgp

DOC = Path(__file__).resolve().parents[1] / "doc"

PAGES = sorted(
    path for path in DOC.glob("*.rst") if path.stem not in {"contributing", "changelog", "sg_execution_times"}
)

#: How blocks begin that are commands, files or output, and no Python.
NOT_PYTHON = ("pip ", "python ", "python3 ", "torchrun ", "#!/bin/bash", ".venv/", "OMP_NUM_THREADS=")

#: Packages that the tests do without where they are not installed.
OPTIONAL = {"botorch", "dask_jobqueue", "mapie", "onnxruntime", "optuna", "shap", "skops", "skpro"}

#: What fits are cut to, unless an example says otherwise, and what else where no example asks for ``OF_ALL_PARTS``.
SMALL = {"max_iter": 2, "n_estimators": 1}
ALONE = {"base": None, "n_neighbors": 0}

#: Methods of members, base and neighbours together, each of which has a part of its own in them.
OF_ALL_PARTS = re.compile(r"\.(leave_one_out|update)\(")


def examples_of(path):
    """Line, code and kind of the page's blocks of Python: "printed", "unprinted" or "not run"."""
    lines = path.read_text(encoding="utf-8").split("\n")
    after = None
    for number, line in enumerate(lines):
        if line.strip().startswith(".. not run:"):
            after = "not run"
        kind = "unprinted" if line.strip() == ".. unprinted" else after or "printed"
        starts = kind == "unprinted" or line.strip() == ".. code-block:: python"
        if not starts and not (line.rstrip().endswith("::") and not line.lstrip().startswith(".. ")):
            continue
        indent = len(line) - len(line.lstrip())
        body = []
        for inner in lines[number + 1 :]:
            if inner.strip() and len(inner) - len(inner.lstrip()) <= indent:
                break
            body.append(inner)
        code = textwrap.dedent("\n".join(body)).strip("\n")
        if not code.startswith(NOT_PYTHON):
            yield number + 2, code, kind
            after = None if kind != "unprinted" else after


def missing_packages(code):
    """Optional packages that the code imports, and that are not installed."""
    tree = ast.walk(ast.parse(code))
    names = {each.name for node in tree if isinstance(node, ast.Import) for each in node.names}
    names |= {node.module for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) and node.module}
    roots = {name.partition(".")[0] for name in names}
    return {root for root in roots & OPTIONAL if importlib.util.find_spec(root) is None}


@pytest.fixture
def small(path, monkeypatch, tmp_path):
    """Fits take moments, pictures need no screen, and files go to a folder of their own."""
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    asked = any(OF_ALL_PARTS.search(code) for _, code, kind in examples_of(path) if kind != "not run")
    values = SMALL if asked else SMALL | ALONE
    for name in skdgp.__all__:
        defaults = getattr(inspect.unwrap(getattr(skdgp, name).__init__), "__kwdefaults__", None) or {}
        for parameter in values.keys() & defaults.keys():
            monkeypatch.setitem(defaults, parameter, values[parameter])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_examples_of_pages_run(path, small):
    space = {"__name__": "page"}
    without = set()
    for line, code, kind in examples_of(path):
        parsed = compile("\n" * (line - 1) + code, str(path), "exec")
        if kind == "not run":
            continue
        without |= missing_packages(code)
        if without and kind == "printed" and missing_packages(code):
            continue
        with joblib.parallel_config(backend="threading"):  # other processes would not know of the small defaults
            exec(parsed, space)
    if without:
        pytest.skip(f"examples of these packages did not run: {', '.join(sorted(without))}")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_do_not_cut_code(path):
    """A window of 1300 pixels shows 79 columns of code."""
    code = [line for _, block, kind in examples_of(path) if kind != "unprinted" for line in block.splitlines()]
    prompts = re.findall(r"(?m)^(?:>>>|\.\.\.) .*$", path.read_text(encoding="utf-8"))
    long = [line for line in code + prompts if len(line) > 79]
    assert not long, f"{path} has long lines: {long}"


def test_docstrings_do_not_cut_code():
    """On the pages of classes and functions, at the same width."""
    for path in (DOC.parent / "skdgp").rglob("*.py"):
        prompts = re.findall(r"(?m)^ *((?:>>>|\.\.\.) .*)$", path.read_text(encoding="utf-8"))
        long = [line for line in prompts if len(line) > 79]
        assert not long, f"{path} has long lines: {long}"


def test_pages_have_examples():
    counts = {path.stem: sum(kind == "printed" for *_, kind in examples_of(path)) for path in PAGES}
    assert counts["targets"] >= 6 and counts["functions"] >= 6 and sum(counts.values()) > 40


def test_what_does_not_run_says_why():
    for path in PAGES:
        for reason in re.findall(r"^ *\.\. not run:(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            assert len(reason.split()) >= 3, path
