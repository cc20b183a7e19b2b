"""Pictures of what depends on what: observed variables are grey, what is learnt is a square, plates repeat."""

import matplotlib.pyplot as plt
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

BLUE, ORANGE, DARK, GREY = "#0b5fa5", "#c8762b", "#333333", "#8a8a8a"
RADIUS = 0.33


def draw(nodes, edges, plates=(), notes=()):
    """A directed graph.

    ``nodes`` maps a name to (x, y, text, kind), of which kinds are "variable", "observed", "inducing" and "parameter";
    ``edges`` are pairs of names; a plate is (left, bottom, right, top, text); a note (x, y, text).
    """
    xs, ys = [n[0] for n in nodes.values()], [n[1] for n in nodes.values()]
    left, right = min([*xs, *(p[0] for p in plates)]) - 0.6, max([*xs, *(p[2] for p in plates)]) + 0.6
    low, high = min([*ys, *(p[1] for p in plates)]) - 0.6, max([*ys, *(p[3] for p in plates)]) + 0.6
    figure, ax = plt.subplots(figsize=(0.95 * (right - left), 0.95 * (high - low)))
    ax.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    ax.axis("off")
    for x0, y0, x1, y1, text in plates:
        box = FancyBboxPatch((x0, y0), x1 - x0, y1 - y0, boxstyle="round,pad=0,rounding_size=0.15", fill=False, ec=GREY)
        ax.add_patch(box)
        ax.text(x1 - 0.08, y0 + 0.08, text, ha="right", va="bottom", color=GREY, fontsize=9)
    patches = {}
    for name, (x, y, text, kind) in nodes.items():
        patches[name] = shape(x, y, kind)
        ax.add_patch(patches[name])
        ax.text(x, y, text, ha="center", va="center", fontsize=9 if "\n" in text else 11, zorder=4, color=DARK)
    for start, end in edges:
        (x0, y0, *_), (x1, y1, *_) = nodes[start], nodes[end]
        arrow = {"arrowstyle": "-|>", "mutation_scale": 12, "color": DARK, "zorder": 1, "shrinkA": 0, "shrinkB": 1}
        ax.add_patch(FancyArrowPatch((x0, y0), (x1, y1), patchA=patches[start], patchB=patches[end], **arrow))
    for x, y, text in notes:
        ax.text(x, y, text, ha="center", va="center", fontsize=9, color=GREY)
    figure.subplots_adjust(0, 0, 1, 1)
    return figure


def shape(x, y, kind):
    """The outline of a node."""
    style = {"zorder": 3, "lw": 1.4}
    if kind == "parameter":
        side = 1.7 * RADIUS
        return Rectangle((x - side / 2, y - side / 2), side, side, fc="#fdf1e6", ec=ORANGE, **style)
    colours = {"variable": ("white", DARK), "observed": ("#dddddd", DARK), "inducing": ("#e6f0f9", BLUE)}
    face, edge = colours[kind]
    return Circle((x, y), RADIUS, fc=face, ec=edge, **style)


def deep():
    """A deep GP of two hidden layers."""
    nodes = {
        "x": (0, 0, "$x_n$", "observed"),
        "f1": (1.6, 0, r"$f^1_n$", "variable"),
        "f2": (3.2, 0, r"$f^2_n$", "variable"),
        "f3": (4.8, 0, r"$f^3_n$", "variable"),
        "y": (6.4, 0, "$y_n$", "observed"),
    }
    edges = [("x", "f1"), ("f1", "f2"), ("f2", "f3"), ("f3", "y")]
    notes = [(0.8, 0.32, "GP"), (2.4, 0.32, "GP"), (4.0, 0.32, "GP"), (5.6, 0.32, "noise")]
    draw(nodes, edges, [(-0.6, -0.75, 7.0, 0.65, "rows $n = 1 \\ldots N$")], notes)


def amortised():
    """Every row with inducing variables of its own, computed from the row."""
    nodes = {
        "x": (0, 0, "$x_n$", "observed"),
        "u1": (1.6, 1.4, "$Z^1_n$\n$u^1_n$", "inducing"),
        "f1": (3.2, 0, r"$f^1_n$", "variable"),
        "u2": (4.8, 1.4, "$Z^2_n$\n$u^2_n$", "inducing"),
        "f2": (6.4, 0, r"$f^2_n$", "variable"),
        "y": (8.0, 0, "$y_n$", "observed"),
        "g1": (1.6, 3.0, r"$g^1$", "parameter"),
        "g2": (4.8, 3.0, r"$g^2$", "parameter"),
    }
    edges = [("x", "u1"), ("u1", "f1"), ("x", "f1"), ("f1", "u2"), ("u2", "f2"), ("f1", "f2"), ("f2", "y")]
    edges += [("g1", "u1"), ("g2", "u2")]
    draw(nodes, edges, [(-0.6, -0.75, 8.6, 2.1, "rows $n = 1 \\ldots N$")])


def shared():
    """Inducing variables that all rows share."""
    nodes = {
        "x": (0, 0, "$x_n$", "observed"),
        "z1": (1.1, 2.1, r"$Z^1$", "parameter"),
        "u1": (2.1, 2.1, r"$u^1$", "inducing"),
        "f1": (1.6, 0, r"$f^1_n$", "variable"),
        "z2": (2.9, 2.1, r"$Z^2$", "parameter"),
        "u2": (3.9, 2.1, r"$u^2$", "inducing"),
        "f2": (3.4, 0, r"$f^2_n$", "variable"),
        "y": (5.0, 0, "$y_n$", "observed"),
    }
    edges = [("x", "f1"), ("z1", "f1"), ("u1", "f1"), ("f1", "f2"), ("z2", "f2"), ("u2", "f2"), ("f2", "y")]
    draw(nodes, edges, [(-0.6, -0.75, 5.6, 0.85, "rows $n = 1 \\ldots N$")])


def orthogonal():
    """Two independent parts of a function, with inducing variables each."""
    nodes = {
        "x": (0, 0, "$x_n$", "observed"),
        "a": (1.9, 0.9, r"$f_\parallel$", "variable"),
        "b": (1.9, -0.9, r"$f_\perp$", "variable"),
        "z": (1.4, 2.8, "$Z$", "parameter"),
        "u": (2.4, 2.8, "$u$", "inducing"),
        "o": (1.4, -2.8, "$O$", "parameter"),
        "v": (2.4, -2.8, "$v$", "inducing"),
        "f": (3.6, 0, "$f_n$", "variable"),
        "y": (5.2, 0, "$y_n$", "observed"),
    }
    edges = [
        ("x", "a"),
        ("x", "b"),
        ("z", "a"),
        ("u", "a"),
        ("o", "b"),
        ("v", "b"),
        ("a", "f"),
        ("b", "f"),
        ("f", "y"),
    ]
    draw(nodes, edges, [(-0.6, -1.6, 5.8, 1.6, "rows $n = 1 \\ldots N$")])
