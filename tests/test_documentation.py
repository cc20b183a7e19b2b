"""What the documentation promises of the package."""

import ast
import doctest
import inspect
import re
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skdgp
from skdgp.estimators._refusals import REFUSED
from skdgp.estimators._wishes import IDLE
from skdgp.methods.options import options_of

ROOT = Path(__file__).resolve().parents[1]

#: The page of troubleshooting, and the messages that it lists at its end.
TROUBLESHOOTING = (ROOT / "doc/troubleshooting.rst").read_text(encoding="utf-8")
LISTED = run_path(str(ROOT / "doc/_ext/messages.py"))["listed"]()

#: Characters of a message that an entry about it must begin with, values aside.
OPENING = 40

#: Words of all pages of the guide together, at most. Whoever adds some looks for what another page says already.
LENGTH_OF_GUIDE = 35_000

ESTIMATORS = [each for each in vars(skdgp).values() if inspect.isclass(each) and issubclass(each, BaseEstimator)]

#: Where a method has a text of its own for what others document under the same name, and why.
OWN_TEXTS = {
    "AVDGP.hidden_dims": 'it has no "auto"',
    "AVDGP.n_inducing": "points are a row's own, and fewer",
    "SOLVEGP.n_inducing": "there is one layer, and a second set",
    "SOLVEGP.n_orthogonal": 'it has an "auto"',
    "AVDGP.covariance": "there is no second set",
    "SOLVEGP.inducing": "it may name the kind of a second set",
    "AVDGP.beta": "the penalty is that of a row",
    "SOLVEGP.beta": 'it has an "auto"',
    "AVDGP.max_iter": 'another "auto"',
    "SOLVEGP.max_iter": 'another "auto", and L-BFGS',
    "AVDGP.batch_size": 'another "auto"',
    "SOLVEGP.batch_size": 'another "auto"',
    "AVDGP.lower_bound_": "it is no bound",
    "SOLVEGP.inducing_points_": "an array, since there is one layer",
}


#: Methods of all estimators, and of each kind.
METHODS = {"fit", "partial_fit", "predict", "predict_layers", "sample_functions", "sample_layers"}
OF_CLASSIFIERS = {"predict_log_proba", "predict_proba"}
OF_REGRESSORS = {
    "leave_one_out",
    "predict_dist",
    "predict_gradient",
    "predict_interval",
    "predict_output_cov",
    "predict_quantiles",
    "sample_y",
    "update",
}

#: Methods that a class has besides.
OF_ITS_OWN = {"SOLVEGPRegressor": {"log_marginal_likelihood"}}


def messages():
    """The text of every error and warning of the package: syntax trees of strings, with where they are."""
    for path in sorted((ROOT / "skdgp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if isinstance(node, ast.Raise) or ast.unparse(call.func) == "warnings.warn":
                yield pytest.param(call.args[0], id=f"{path.relative_to(ROOT)}:{call.lineno}")


def pattern_of(text, length):
    """Regular expression of how a message begins, with anything where it has … for a value."""
    pattern, left = "", length
    for number, part in enumerate(text.split("…")):
        pattern += (".+" if number else "") + re.escape(part[:left])
        left -= len(part)
        if left <= 0:
            break
    return pattern


@pytest.mark.parametrize("message", list(messages()))
def test_troubleshooting_lists_every_message(message):
    """As a whole, and not only its beginning."""
    assert isinstance(message, ast.Constant | ast.JoinedStr), "write the message where it is raised"
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    text = re.sub("…+", "…", "".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts))
    assert any(re.fullmatch(pattern_of(text, len(text)), line) for line in LISTED), text
    assert "\n.. messages::\n" in TROUBLESHOOTING


@pytest.mark.parametrize("rule", [*REFUSED, *IDLE], ids=lambda rule: rule.reason)
def test_troubleshooting_lists_every_refusal_and_idle_value(rule):
    """Their messages are made from tables."""
    for name in [rule.name] if hasattr(rule, "name") else rule.names:
        ends = re.sub(r"\{.*?\}", "…", f"{rule.reason}: {rule.cure}.")
        assert any(line.startswith(f"{name}=… ") and line.endswith(f" {ends}") for line in LISTED), (name, ends)


OWN = TROUBLESHOOTING.partition("Messages of other packages\n---")[0]
OWN_ENTRIES = re.findall(r"^``(.+)``\n +\S", OWN, flags=re.M)


@pytest.mark.parametrize("entry", OWN_ENTRIES)
def test_entries_of_troubleshooting_are_about_messages(entry):
    """An entry begins as a message does, as far as the first ``OPENING`` characters that are not values."""
    found = any(re.match(pattern_of(line, OPENING), entry) for line in LISTED)
    assert found, "no message begins in this way: correct the entry, or move it to messages of other packages"


@pytest.mark.parametrize("name", ["README.rst", *sorted(f"doc/{path.name}" for path in (ROOT / "doc").glob("*.rst"))])
def test_pages_show_stored_pictures_only(name):
    """What the gallery draws is missing from a fresh clone, and from documentation built without the gallery."""
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for picture in re.findall(r"^ *\.\. (?:image|figure):: +(\S+)", text, flags=re.MULTILINE):
        path = (page.parent / picture).resolve().relative_to(ROOT)
        assert path.parts[:2] not in {("doc", "gallery"), ("doc", "generated")}, f"the gallery makes {path}"
        assert (ROOT / path).is_file(), f"{path} does not exist"


def test_guide_is_short_enough_to_read():
    """Without the gallery, and without the page that the gallery makes of its times."""
    pages = [path for path in (ROOT / "doc").glob("*.rst") if path.stem != "sg_execution_times"]
    words = {path.name: len(path.read_text(encoding="utf-8").split()) for path in pages}
    assert sum(words.values()) <= LENGTH_OF_GUIDE, f"say a thing once, and link to it: {words}"


def entries(cls, section):
    """What a section of a class's docstring says by name: type, default (None where there is none) and text."""
    body = re.search(rf"^{section}\n-+\n(.*?)(?:\n\n|\Z)", inspect.getdoc(cls), flags=re.MULTILINE | re.DOTALL)[1]
    assert re.fullmatch(r"(?:\S.* : \S.*\n(?: +\S.*\n)+)+", body + "\n"), "an entry is 'name : type' and a text"
    found = re.findall(r"^(\S.*?) : (.+?)(?:, default=(.+))?\n((?: .+\n)+)", body + "\n", flags=re.MULTILINE)
    return [
        (name, (kind, default or None, " ".join(text.split())))
        for names, kind, default, text in found
        for name in names.split(", ")
    ]


def texts_of(name, left_out=()):
    """Types and texts under a name, by method and class, but for some methods'."""
    found = {}
    for cls in ESTIMATORS:
        method = re.sub("Regressor|Classifier", "", cls.__name__)
        for section in ("Parameters", "Attributes"):
            for each, (kind, _, text) in entries(cls, section):
                if each == name and f"{method}.{name}" not in left_out:
                    found[method, cls.__name__] = kind, text
    return found


NAMES = sorted({name for cls in ESTIMATORS for part in ("Parameters", "Attributes") for name, _ in entries(cls, part)})


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_every_parameter_is_documented_with_its_default(cls):
    documented = entries(cls, "Parameters")
    defaults = {name: each.default for name, each in inspect.signature(cls).parameters.items()}
    assert sorted(name for name, _ in documented) == sorted(defaults)
    assert {name: ast.literal_eval(default) for name, (_, default, _) in documented} == defaults


def test_declarations_of_parameters_are_written():
    """Docstrings and the page of all parameters; ``python doc/_ext/parameters.py`` writes them."""
    for path, text in run_path(str(ROOT / "doc/_ext/parameters.py"))["written"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is not as declared: run doc/_ext/parameters.py"


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_estimators_show_only_what_users_call(cls):
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = cls(n_inducing=3, max_iter=1, n_estimators=1, base=None, random_state=0).fit(X, X[:, 0] > 0)
    attributes = {name for section in ("Parameters", "Attributes") for name, _ in entries(cls, section)}
    own = METHODS | (OF_CLASSIFIERS if is_classifier(model) else OF_REGRESSORS) | OF_ITS_OWN.get(cls.__name__, set())
    shown = {name for name in dir(model) if not name.startswith(("_", "set_"))} - vars(BaseEstimator).keys()
    assert shown - attributes - {"get_metadata_routing"} == own | {"score"}


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_diagrams_have_no_links(cls):
    """scikit-learn links its own estimators to its pages. Ours have no address yet, so there must be no link."""
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = cls(n_inducing=3, max_iter=1, n_estimators=1, base=None, random_state=0)
    diagrams = [model._repr_html_(), model.fit(X, X[:, 0] > 0)._repr_html_()]
    assert all(cls.__name__ in diagram and "href" not in diagram for diagram in diagrams)
    assert "href" in make_pipeline(StandardScaler(), model)._repr_html_()  # where scikit-learn's have theirs


@pytest.mark.parametrize("name", NAMES)
def test_what_has_one_name_has_one_text(name):
    texts = texts_of(name, left_out=OWN_TEXTS)
    assert len(set(texts.values())) <= 1, f"make these the same, or give a reason in OWN_TEXTS: {texts}"


@pytest.mark.parametrize("own", OWN_TEXTS)
def test_texts_of_its_own_are_needed(own):
    """A method that has one differs from the others, and its regressor and classifier share it."""
    method, name = own.split(".")
    texts = {text for (each, _), text in texts_of(name).items() if each == method}
    others = set(texts_of(name, left_out=OWN_TEXTS).values())
    assert len(texts) == 1 and others and not texts & others


CLASSES = run_path(str(ROOT / "doc/_ext/classes.py"))


def documented_methods(cls):
    """Name, lines in the code and on the class's page, of methods whose documentation has an example."""
    for name in dir(cls):
        method = getattr(cls, name)
        text = inspect.getdoc(method) if callable(method) and not name.startswith("_") else None
        if text and ">>>" in text:
            yield name, text.split("\n"), CLASSES["of_its_own"](text.split("\n"), cls)


@pytest.mark.slow
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_examples_of_methods_run_with_the_class_of_their_page(cls):
    """Those that are the same on the page and in the code run where pytest collects docstrings."""
    for name, written, lines in documented_methods(cls):
        if lines == written and getattr(cls, name).__module__.startswith("skdgp."):
            continue
        test = doctest.DocTestParser().get_doctest("\n".join(lines), {}, f"{cls.__name__}.{name}", None, None)
        report: list = []
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        assert not report, "".join(report)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_fit_shows_the_class_of_its_page(cls):
    shown = {name: lines for name, _, lines in documented_methods(cls)}
    for name in ("fit", "partial_fit"):
        assert any(f"{cls.__name__}(" in line for line in shown[name]), name


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_parameters_are_shown_by_groups(cls):
    names = [name for name, *_ in entries(cls, "Parameters")]
    lines = CLASSES["grouped"]([":Parameters:", "", *(f"    **{name}** : int" for name in names)], cls)
    heads = [line for line in lines if line.startswith(":")]
    assert heads == [":Parameters:", ":The model:", ":Training:", ":The table:", ":Computing:"]
    first = sum(option.group == "first" for option in options_of(cls).values())
    assert lines.index(":The model:") == 2 + first + 1
    assert [line[6:-8] for line in lines if line.startswith("    ")] == names


def test_lines_do_not_end_within_numbers():
    """``90 %``, ``10 000`` and ``2 ± 1`` keep their parts together, but code is copied as it is written."""
    core = pytest.importorskip("docutils.core")
    doctree = core.publish_doctree("Of 10 000 rows, 90 % have 2 ± 1 of 15 kinds, ``1 % 2``.")
    run_path(str(ROOT / "doc/conf.py"))["keep_numbers_whole"](None, doctree)
    assert doctree.astext() == "Of 10\xa0000 rows, 90\xa0% have 2\xa0±\xa01 of 15 kinds, 1 % 2."
