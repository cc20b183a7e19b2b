"""Pages of classes: parameters of estimators by groups, and examples of methods with the class of the page."""

import ast
import inspect
import re

import skdgp
from skdgp.methods.options import GROUPS, options_of

ESTIMATORS = {
    family + kind: getattr(skdgp, family + kind)
    for family in ("AVDGP", "DSDGP", "SOLVEGP")
    for kind in ("Regressor", "Classifier")
}


def grouped(lines, cls):
    """Lines of a class's documentation, as numpydoc writes them, with a field for each group of parameters."""
    options = options_of(cls)
    result, present, inside = [], None, False
    for line in lines:
        if field := re.match(r":(\w[^:]*):", line):
            inside = field[1] == "Parameters"
        entry = re.match(r"    \*\*(\w+)\*\*", line)
        if inside and entry and entry[1] in options:
            group = options[entry[1]].group
            if present not in (None, group):
                result += ["", f":{GROUPS[group]}:", ""]
            present = group
        result.append(line)
    return result


def takes(cls, call):
    """Whether a class could be called as another one is: by names, which it has."""
    names = inspect.signature(cls).parameters
    return not call.args and all(keyword.arg in names for keyword in call.keywords)


def of_its_own(lines, cls):
    """Lines of a method's documentation whose example is of this class in place of another one of the same kind.

    The example stays as it is if it names more than one estimator, or gives parameters that the class does not have.
    """
    code = "\n".join(line.strip()[4:] for line in lines if line.strip().startswith((">>> ", "... ")))
    named = {name for name in ESTIMATORS if re.search(rf"\b{name}\b", code)}
    kind = "Regressor" if cls.__name__.endswith("Regressor") else "Classifier"
    if len(named) != 1 or not (other := named.pop()).endswith(kind):
        return lines
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    if not all(takes(cls, call) for call in calls if getattr(call.func, "id", None) == other):
        return lines
    return [
        re.sub(rf"\b{other}\b", cls.__name__, line) if line.strip().startswith((">>> ", "... ")) else line
        for line in lines
    ]


def process(app, what, name, obj, options, lines):
    """What Sphinx calls for every docstring, after numpydoc."""
    if what == "class" and obj.__name__ in ESTIMATORS:
        lines[:] = grouped(lines, obj)
    elif what == "method" and (owner := name.split(".")[-2]) in ESTIMATORS:
        lines[:] = of_its_own(lines, ESTIMATORS[owner])


def setup(app):
    """Sphinx calls this function."""
    app.connect("autodoc-process-docstring", process, priority=900)
    return {"parallel_read_safe": True, "version": "1"}
