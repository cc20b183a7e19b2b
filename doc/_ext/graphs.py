"""Pictures of the guide: what depends on what, which estimator to take, what inducing points are.

In graphs observed variables are grey, what is learnt is a square, and plates repeat.
"""

import matplotlib.pyplot as plt
import numpy as np
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


QUESTIONS = [
    (
        "Do you predict far beyond\nthe training rows?",
        "No model here, unless\na kernel object says\nwhat happens there",
    ),
    ("Are the rows images?", "Small ones:\nkernels.Convolutional.\nLarge ones: features that\na neural network makes"),
    ("Do you need only a mean,\nand within a second?", "Boosted trees"),
    ("Is it one long series?", 'SOLVEGPRegressor\nwith inducing="fourier"'),
    ("Several values of y for\nthe same features?", "DSDGPRegressor\nwith latent_dims=1"),
    ("Up to 1000 rows? Smooth?\nOnly seconds?", "SOLVEGPRegressor"),
    ("Up to 10 000 rows?", "DSDGPRegressor"),
    ("Do they fit in memory?", "AVDGPRegressor"),
]
ADVICE = """With any of the estimators:
Classes? DSDGPClassifier; AVDGPClassifier if many rows.
Counts, positive targets, outliers? Set likelihood=.
Categories, missing cells? It takes them as they are."""


def choose():
    """Which estimator to take: questions on the left, from the top, and answers on the right."""
    left, right, gap, line, pad = (0.0, 2.12), (2.48, 4.6), 0.22, 0.185, 0.2  # inches
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "lw": 1.2}
    arrow = {"arrowstyle": "-|>", "mutation_scale": 11, "color": DARK, "shrinkA": 0, "shrinkB": 0}
    heights = [pad + line * (1 + max(q.count("\n"), a.count("\n"))) for q, a in QUESTIONS]
    final, last = pad + line * 2, pad + line * (1 + ADVICE.count("\n"))
    total = sum(heights) + len(heights) * gap + final + gap + last
    figure, ax = plt.subplots(figsize=(right[1] + 0.1, total + 0.1))
    figure.subplots_adjust(0, 0, 1, 1)
    ax.set(xlim=(-0.05, right[1] + 0.05), ylim=(-0.05, total + 0.05))
    ax.axis("off")

    def box(ends, top, height, text, colours):
        face, edge = colours
        ax.add_patch(FancyBboxPatch((ends[0], top - height), ends[1] - ends[0], height, fc=face, ec=edge, **style))
        ax.text(sum(ends) / 2, top - height / 2, text, ha="center", va="center", fontsize=10.5, color=DARK)

    top = total
    for (question, answer), height in zip(QUESTIONS, heights, strict=True):
        middle, low = top - height / 2, top - height
        box(left, top, height, question, ("white", DARK))
        box(right, top, height, answer, ("#e6f0f9", BLUE))
        ax.add_patch(FancyArrowPatch((left[1], middle), (right[0], middle), **arrow))
        ax.text((left[1] + right[0]) / 2 - 0.03, middle + 0.04, "yes", ha="center", va="bottom", fontsize=9.5)
        ax.add_patch(FancyArrowPatch((1.06, low), (1.06, low - gap), **arrow))
        ax.text(1.13, low - gap / 2, "no", va="center", fontsize=9.5)
        top = low - gap
    box(left, top, final, "AVDGPRegressor\nwith fit_chunks", ("#e6f0f9", BLUE))
    top -= final + gap
    box((left[0], right[1]), top, last, ADVICE, ("#fdf1e6", ORANGE))


def inducing():
    """A sparse GP of six inducing points beside the exact GP that it summarises."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(0, 5.4, 200), rng.uniform(7.6, 10, 100)])
    noise = 0.6
    y = np.sin(1.1 * x) + 0.25 * x + noise * rng.standard_normal(len(x))
    points = np.array([0.4, 2.2, 4.0, 6.0, 7.9, 9.6])
    grid = np.linspace(0, 10, 400)

    def k(a, b):  # an RBF kernel of variance 2 and lengthscale 1.6
        return 2.0 * np.exp(-0.5 * ((a[:, None] - b) / 1.6) ** 2)

    # The best Gaussian distribution of the function's values at the points (Titsias, 2009)
    K = k(points, points) + 1e-8 * np.eye(len(points))
    Kx, Kg = k(points, x), k(points, grid)
    inverse = np.linalg.inv(K + Kx @ Kx.T / noise**2)
    mean, covariance = K @ inverse @ Kx @ y / noise**2, K @ inverse @ K
    # What these values say about the function everywhere
    A = np.linalg.solve(K, Kg)
    sparse, variance = A.T @ mean, 2.0 - np.sum(A * (Kg - covariance @ A), axis=0)
    exact = k(grid, x) @ np.linalg.solve(k(x, x) + noise**2 * np.eye(len(x)), y)

    figure, ax = plt.subplots(figsize=(5.4, 4.3), layout="constrained")
    half = 1.96 * np.sqrt(variance)
    ax.plot(x, y, ".", color="#b5b5b5", ms=4, label="300 rows")
    ax.fill_between(grid, sparse - half, sparse + half, color=BLUE, alpha=0.2, lw=0, label="sparse GP, 95 % band")
    ax.plot(grid, sparse, color=BLUE, lw=2.2, label="sparse GP, mean")
    ax.plot(grid, exact, color=DARK, lw=1.0, ls="--", label="exact GP, mean")
    bars = {"fmt": "o", "color": ORANGE, "ms": 7, "capsize": 4, "lw": 1.8, "zorder": 5}
    ax.errorbar(points, mean, 1.96 * np.sqrt(np.diag(covariance)), label="inducing variables", **bars)
    ax.plot(points, np.full(len(points), ax.get_ylim()[0]), "^", color=ORANGE, ms=8, label="inducing points")
    ax.set(xlabel="feature", ylabel="target", xlim=(-0.1, 10.1))
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10)
