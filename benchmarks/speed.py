"""How fast the estimators are, and how much memory they need, beside peers.

    python benchmarks/speed.py all --output speed.csv

``step``: a training step in float32, of 100 and of 1000 rows with 8 features. Deep GPs have hidden layers of 16 and 4
outputs and a Matérn-5/2 kernel; DSDGPRegressor and GPyTorch's documented DeepGP and DSPP (32 quadrature points) have
256, 128 and 128 inducing points and a lengthscale per input, AVDGPRegressor what its defaults and its paper say (8 and
32 quadrature points). The latter is written in plain torch, too (``plain.py``).

``depth``: how the step of DSDGPRegressor grows with the number of layers, beside one layer with 500 inducing
points, for minibatches of 10000 rows and hidden layers of one output, as Table 3 of the DS-DGP paper.

``orthogonal``: steps of 1024 rows of sparse GPs with a Matérn-5/2 kernel and full covariances, all trained by plain
minibatches: SOLVE-GP with M + M orthogonal inducing points, SVGP (the same without orthogonal ones) with 2M, GPyTorch's
SVGP; and how all grow with the number of points, while the number of rows leaves a step as it is.

``fit``: seconds of a default fit to 8192 rows and its scores on 2048 others; then seconds of the smallest of the
budgets 1, 2, 4, ... and the default, in passes or trees, whose fit reaches the target NLL. Where the default does not
reach it, fewer passes are not tried, but trees up to 2048. GPyTorch's SVGP makes 2000 steps of 1024 rows, as our
sparse GP by plain minibatches would. The exact GP has the first 2000 rows and one budget; trees have a Gaussian around
them with the variance of a tenth of the rows, held out.

``curve``: default fits of all six estimators and of their peers to small tables, and fits with a sixteenth and a
quarter of their passes or trees: seconds, NLL (of labels the log loss), and RMSE or share of errors on other rows.
``--data`` adds published splits, which ``uci.py`` describes. The picture is of NLL over seconds.

``predict``: first the times of methods of AVDGPRegressor with 32 quadrature points, and of its distribution, for
100 000 rows, after one pass over 1000 rows. Then means and standard deviations of 100 000 and of a million rows, after
one pass over 10 000 rows; the predictions in ``memory`` have the same models. All are single members, once with all
defaults and once "alone", without base and neighbours. Trees have their default number, since a prediction takes time
for each of them. GPs of scikit-learn and GPyTorch take 4096 rows at a time, since they hold a matrix with a line for
each row.

``joint``: the joint covariance of 2000 rows, and ten functions drawn from the posterior with their values at 2000 and
100 000 rows. GPs of scikit-learn draw from a matrix of rows by rows, and stop at 2000. Models are those of ``predict``.

``memory``: the peak of resident memory beyond that after the imports, the table of rows included, of a fit of one pass
(or one tree) and of a prediction, in a new process each.

``import``: milliseconds of a new interpreter that imports something, and of one that fits a model of two epochs to 60
rows.

``growth``: how the step of AVDGPRegressor and DSDGPRegressor grows with one thing at a time. It times the first eleven
steps of the package's loop with the whole table in place, the first apart since it waits for the shuffled table, and
computes from these the time of a whole pass by row. "MiB beside the table" is the peak of these steps, "MiB a step"
that of later steps beyond what stays between them.

Every competitor lives in a process of its own. They take turns, only one works at a time, and medians are compared:
what slows the machine slows all of them. One that has worked for a minute has no further turn. Training steps of this
package are those of its own loop, whole. The CSV file has a row per measurement; a picture of them lies beside it.
"""

import argparse
import csv
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from competitors import WORKS, Work
from curves import curve_heats
from joblib import cpu_count

KEYS = ("work", "heat", "competitor", "size", "repeat", "measure", "value", "device", "threads")

#: Seconds after which a competitor has no further turn.
ENOUGH = 60


class Process:
    """A competitor in a process of its own, which works only while it is asked; EOFError if it has failed."""

    def __init__(self, competitor, device, *, fresh):
        # A server that has imported everything forks processes at once; where memory counts they import it themselves.
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods and not fresh else "spawn")
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(["competitors"])
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, competitor.make, device), daemon=True)
        self._process.start()
        other.close()  # else a process that dies would leave it open, and this one waiting
        self._pipe.recv()

    def turn(self, repeat):
        """Values by measure."""
        self._pipe.send(repeat)
        return self._pipe.recv()

    def end(self):
        """Let the process go."""
        self._pipe.send(None)
        self._process.join()


def serve(pipe, make, device):
    """What a process does: prepare, say so, and answer until None is asked."""
    torch.manual_seed(0)
    turn = make(device)
    pipe.send("ready")
    for repeat in iter(pipe.recv, None):
        pipe.send(turn(repeat))


def race(heat, repeats, device):
    """(competitor, repeat, values by measure) of every turn, all taking turns; values are None where one fails."""
    spent, processes, failed = Counter(), {}, set()
    for repeat in range(1, repeats + 1):
        for competitor in heat.competitors:
            if spent[competitor] > ENOUGH or competitor in failed:
                continue
            try:
                if competitor not in processes:
                    processes[competitor] = Process(competitor, device, fresh=heat.fresh)
                start = time.perf_counter()
                values = processes[competitor].turn(repeat)
                spent[competitor] += time.perf_counter() - start
                if heat.fresh:
                    processes.pop(competitor).end()
            except (EOFError, ConnectionError):
                values = None
                failed.add(competitor)
            yield competitor, repeat, values
    for competitor in processes.keys() - failed:
        processes[competitor].end()


def works(data=None):
    """All works by name; ``data`` is a folder of published splits."""
    return WORKS | {"curve": Work(partial(curve_heats, data=data), 3)}


def measure(work, args, writer):
    """Run a work and write every value; yields its heats, each with the turns of competitors by name and size."""
    heats, repeats = works(args.data)[work]
    for heat in heats(args.quick):
        turns = {}
        for competitor, repeat, values in race(heat, args.repeats or repeats, args.device):
            key = (competitor.name, competitor.size)
            if values is None:
                print(f"{competitor.name} failed.", file=sys.stderr)
                continue
            turns.setdefault(key, []).append(values)
            for name, value in values.items():
                size = competitor.size or ""
                row = (work, heat.title, competitor.name, size, repeat, name, value, args.device, args.threads)
                writer.writerow(row)
        yield heat, turns


def table(heat, turns):
    """Lines of medians, of the ratios of the first to that of every baseline or of the least size, and of turns."""
    medians = {
        key: {name: statistics.median(turn[name] for turn in values) for name in values[0]}
        for key, values in turns.items()
    }
    measures = measures_of(turns)
    first = {key: values[measures[0]] for key, values in medians.items()}
    names = {name for name, _ in first}
    compared = [name for name in heat.baselines if name in names]
    sized = not compared and not heat.curve and any(size for _, size in first)
    titles = [*measures, *(f"× {name}" for name in compared), *(["× least"] if sized else []), "turns"]
    rows = [("", *titles)]
    for (name, size), values in medians.items():
        others = [(other, size) for other in compared]
        others += [min(key for key in first if key[0] == name)] if sized else []
        ratios = [show(first[name, size] / first[key]) if first.get(key) else "" for key in others]
        cells = [show(values[measure]) for measure in measures]
        rows.append((label(name, size), *cells, *ratios, str(len(turns[name, size]))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for head, *cells in rows:
        yield "  ".join([head.ljust(widths[0]), *(c.rjust(n) for c, n in zip(cells, widths[1:], strict=True))])


def measures_of(turns):
    return list(dict.fromkeys(name for values in turns.values() for name in values[0]))


def label(name, size):
    return f"{name}, {size:,}" if size else name


def show(value):
    """A number of four digits."""
    if math.isinf(value):
        return "not reached"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def save_picture(path, results):
    """A panel for every heat and measure: single values by competitor, or by what grows. False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    panels = [
        (f"{work}: {heat.title}", name, turns)
        for work, heat, turns in results
        for name in ([heat.curve] if heat.curve else measures_of(turns))
    ]
    n_columns = max(1, min(3, len(panels)))
    n_lines = max(1, -(-len(panels) // n_columns))
    figure = Figure(figsize=(8 * n_columns, 4 * n_lines), layout="constrained")
    axes = list(figure.subplots(n_lines, n_columns, squeeze=False).flat)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (title, name, turns) in zip(axes, panels, strict=False):
        axis.set_title(title)
        kinds = {draw_curve: isinstance(name, tuple), draw_growth: any(size for _, size in turns), draw_values: True}
        next(draw for draw, suits in kinds.items() if suits)(axis, name, turns)
    figure.savefig(path, dpi=80)
    return True


def draw_values(axis, name, turns):
    """Dots by competitor, those that are not finite left out."""
    for line, values in enumerate(turns.values()):
        dots = [turn[name] for turn in values if math.isfinite(turn[name])]
        axis.plot(dots, [line] * len(dots), "o", alpha=0.6)
    axis.set_yticks(range(len(turns)), [label(*key) for key in turns])
    axis.invert_yaxis()
    if ratios_matter(turns, name):
        use_logarithms(axis, "x")
    axis.set_xlabel(name)


def draw_growth(axis, name, turns):
    """A line through medians, and dots, for every competitor."""
    for competitor in dict.fromkeys(name for name, _ in turns):
        sizes = [size for other, size in turns if other == competitor]
        values = [[turn[name] for turn in turns[competitor, size]] for size in sizes]
        (line,) = axis.plot(sizes, [statistics.median(group) for group in values], label=competitor)
        for size, group in zip(sizes, values, strict=True):
            axis.plot([size] * len(group), group, "o", alpha=0.6, color=line.get_color())
    use_logarithms(axis, "x")
    if ratios_matter(turns, name):
        use_logarithms(axis, "y")
    axis.set_ylabel(name)
    axis.legend()


def draw_curve(axis, names, turns):
    """A line for every competitor through medians of two measures; that of the own budget has a larger dot."""
    for competitor in dict.fromkeys(name for name, _ in turns):
        medians = {
            size: [statistics.median(turn[name] for turn in values) for name in names]
            for (other, size), values in turns.items()
            if other == competitor
        }
        (line,) = axis.plot(*zip(*sorted(medians.values()), strict=True), "-o", markersize=4, label=competitor)
        if None in medians:
            axis.plot(*medians[None], "o", markersize=9, color=line.get_color())
    use_logarithms(axis, "x")
    axis.set_xlabel(names[0])
    axis.set_ylabel(names[1])
    axis.legend()


def use_logarithms(axis, direction):
    """A logarithmic axis with plain numbers, few enough to be read."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set(**{f"{direction}scale": "log"})
    line = axis.xaxis if direction == "x" else axis.yaxis
    low, high = line.get_data_interval()
    line.set_major_locator(LogLocator(subs=(1.0,) if high > 1000 * low else (1.0, 2.0, 5.0), numticks=8))
    line.set_major_formatter(StrMethodFormatter("{x:g}"))
    line.set_minor_formatter(NullFormatter())


def ratios_matter(turns, name):
    """Whether there are values, all of them positive."""
    values = [turn[name] for group in turns.values() for turn in group if math.isfinite(turn[name])]
    return bool(values) and min(values) > 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=[*works(), "all"])
    parser.add_argument("--repeats", type=int, help="turns of every competitor; default: by work, 1 to 7")
    parser.add_argument("--quick", action="store_true", help="measure too little, to see that the script runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    threads = int(os.environ.get("OMP_NUM_THREADS") or cpu_count(only_physical_cores=True))
    parser.add_argument("--threads", type=int, default=threads, help="of every competitor")
    parser.add_argument("--data", type=Path, help="folder of published splits, for curve")
    parser.add_argument("--output", type=Path, default=Path("speed.csv"))
    return parser.parse_args()


def set_environment(threads):
    """What processes find when they start."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    # The server that forks them does not look for modules beside the script.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")))
    )


def main():
    args = parse_arguments()
    set_environment(args.threads)
    print(f"{args.device}, {args.threads} threads")
    results = []
    with args.output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(KEYS)
        for work in works() if args.work == "all" else [args.work]:
            for heat, turns in measure(work, args, writer):
                file.flush()  # what is done stays, should a later heat fail
                print(f"\n{work}: {heat.title}", *table(heat, turns), sep="\n", flush=True)
                results.append((work, heat, turns))
    picture = args.output.with_suffix(".png")
    drawn = save_picture(picture, results)
    print(f"\nSaved to {args.output}" + (f" and {picture}." if drawn else "; install matplotlib for a picture."))
    if any(len({(c.name, c.size) for c in heat.competitors} - turns.keys()) for _, heat, turns in results):
        sys.exit("Some competitors failed; their errors are above.")


if __name__ == "__main__":
    main()
