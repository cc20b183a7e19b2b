"""Tables of what the benchmarks saved, as the documentation shows them.

    python benchmarks/tables.py benchmarks/results/uci.csv --rows dataset estimator --values rmse nll --count split

A line for each combination of the columns ``--rows``, with means over what is left of the file and their standard
errors (where there is more than one value), or medians. ``--columns`` makes a column for each of its values instead
of putting all of them into one number; ``--ratio`` adds how many times that of another line a number is. The name of a
file, without its ending, is a column ``file``. ``--rank-over dataset`` gives the mean place of each line among the
others, 1 for the smallest mean of each data set. ``--best-of estimator`` puts the best of the estimators, with its
name, into each cell: the one with the smallest mean. ``--where "estimator=avdgp|hgb"`` keeps some rows of the file, and
``"estimator!=avdgp|hgb"`` all others. Lines and columns come in the order asked for by ``--where``, then in that of the
file.
"""

import argparse
import csv
import math
import operator
import re
import statistics
import sys
from pathlib import Path

import numpy as np

#: Numbers nearer to zero than this have an exponent, since their zeros would fill a column.
SMALL = 1e-3


def read(paths, where=None):
    """Rows of files, those whose cells are among the values wanted, in the order in which these are given.

    A column whose name ends in "!" has the values that are not wanted.
    """
    rows = []
    for path in paths:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows += [row | {"file": Path(path).stem} for row in csv.DictReader(file)]
    for column, wanted in reversed((where or {}).items()):
        if column.endswith("!"):
            rows = [row for row in rows if row[column[:-1]] not in wanted]
            continue
        if not {row[column] for row in rows} & set(wanted):
            raise ValueError(f"No row has {column}={' or '.join(wanted)}.")
        rows = sorted((row for row in rows if row[column] in wanted), key=lambda row: wanted.index(row[column]))
    return rows


def write(rows, path):
    """Save rows, dictionaries with the same keys, as a file."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, rows[0])
        lines.writeheader()
        lines.writerows(rows)


def save_each(rows, path, columns):
    """Yield rows, dictionaries with these keys. Each is saved at once: if a later fit fails, what is done stays."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, columns)
        lines.writeheader()
        for row in rows:
            lines.writerow(row)
            file.flush()
            yield row


def mean_and_error(values, decimals):
    """Mean ± standard error of numbers, as text."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):.{decimals}f} ± {error:.{decimals}f}"


def table(rows, keys, values, *, columns=(), statistic="mean", count=None, ratio=None):
    """Header and lines of strings: ``keys``, how many ``count`` there are, and a number for each of ``values``.

    Parameters
    ----------
    rows : list of dict of str
        What was measured.
    keys, values, columns : sequence of str
        Names of columns: what a line is, what is averaged, and what has a column for each of its values.
    statistic : {"mean", "median"}, default="mean"
        The former comes with its standard error.
    count : str, default=None
        A column whose different values are counted for each line.
    ratio : str, default=None
        The line, by its first key, beside which the others are measured.
    """
    if columns and len(values) > 1:
        raise ValueError(f"A table has one of {', '.join(values)} where the values of other columns have columns.")
    groups, heads = {}, {}
    for row in rows:
        line = groups.setdefault(tuple(row[key] for key in keys), {"count": set()})
        line["count"].add(row.get(count))
        for value in values:
            head = title(row, columns, value)
            heads.setdefault(head, value)
            if row[value] != "":
                line.setdefault(head, []).append(row[value])
    base = next((line for key, line in groups.items() if key[0] == ratio), {})
    titles = [*keys, *([f"{count}s"] if count else [])]
    for head in heads:
        titles += [head, *([f"× {ratio}"] if ratio else [])]
    lines = []
    for key, line in groups.items():
        cells = [*key, *([str(len(line["count"]))] if count else [])]
        for head in heads:
            cells.append(show(line.get(head, []), statistic))
            if ratio:
                both = head in line and head in base
                cells.append(digits(median(line[head]) / median(base[head]), 2) if both else "")
        lines.append(cells)
    return titles, lines


def title(row, columns, value):
    """What stands above a number of this row."""
    return ", ".join(row[column] for column in columns) or value


def leaders(rows, keys, values, columns, over):
    """Who has the smallest mean of each cell, by its line and title, among those that ``over`` names."""
    cells = {}
    for row in rows:
        for value in values:
            if row[value] != "":
                cell = (tuple(row[key] for key in keys), title(row, columns, value))
                cells.setdefault(cell, {}).setdefault(row[over], []).append(float(row[value]))
    return {cell: min(numbers, key=lambda name: statistics.fmean(numbers[name])) for cell, numbers in cells.items()}


def table_of_leaders(rows, keys, values, *, columns=(), over, **options):
    """The table of the best in each cell, whose names follow the numbers."""
    names = leaders(rows, keys, values, columns, over)

    def own(row, value):
        return row[over] == names.get((tuple(row[key] for key in keys), title(row, columns, value)))

    kept = [row | {value: row[value] if own(row, value) else "" for value in values} for row in rows]
    titles, lines = table(kept, keys, values, columns=columns, **options)
    for cells in lines:
        for place, head in enumerate(titles):
            if cells[place] and (name := names.get((tuple(cells[: len(keys)]), head))):
                cells[place] += f" ({name})"
    return titles, lines


def ranks(rows, keys, values, over):
    """Rows of places instead of values: for each value of ``over``, every line's place by its mean; ties share one.

    Lines that are not in all groups are left out.
    """
    means = {}
    for row in rows:
        for value in values:
            group = means.setdefault((row[over], value), {})
            group.setdefault(tuple(row[key] for key in keys), []).append(float(row[value]))
    everywhere = set.intersection(*(set(group) for group in means.values()))
    places = {}
    for (where, value), group in means.items():
        line_means = {line: statistics.fmean(numbers) for line, numbers in group.items() if line in everywhere}
        for line, mean in line_means.items():
            below, equal = (
                sum(test(other, mean) for other in line_means.values()) for test in (operator.lt, operator.eq)
            )
            places.setdefault((where, line), {})[value] = str(below + (equal + 1) / 2)
    return [dict(zip(keys, line, strict=True)) | {over: where} | own for (where, line), own in places.items()]


def median(cells):
    """That of numbers that are text."""
    return statistics.median(map(float, cells))


def show(cells, statistic):
    """A number, or a mean and its standard error with two digits of the error; a number on its own gains no digits."""
    if not cells:
        return ""
    if len(cells) == 1 or statistic == "median":
        value = median(cells)
        own = cells if len(cells) == 1 and math.isfinite(value) else []
        return min([digits(value, 3), *own], key=len)
    values = [float(cell) for cell in cells]
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    if error == 0 or not math.isfinite(error):
        return digits(mean, 3)
    largest = max(abs(mean), error)  # a mean near zero may have a larger error
    exponent = math.floor(math.log10(largest)) if largest < SMALL else 0
    mean, error = mean / 10**exponent, error / 10**exponent
    places = max(0, 1 - math.floor(math.log10(error)))
    both = f"{mean:.{places}f} ± {error:.{places}f}"
    return f"({both})e{exponent}" if exponent else both


def digits(value, n):
    """``n`` digits at least, and none of an integer left out."""
    if math.isinf(value):
        return "not reached"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if abs(value) < SMALL:
        return f"{value / 10**exponent:.{n - 1}f}e{exponent}"
    return f"{value:.{max(0, n - 1 - exponent)}f}"


def emphasise(lines, best, goal=None, names=1):
    """Lines in which the best number of each is bold: the smallest, or that nearest to ``goal``; or of each column.

    The first columns, ``names`` of them, say what a line is, and are no scores.
    """

    def value(cell):
        number = re.match(r"\(?(-?[\d.]+)(?: ± [\d.]+\))?(e-?\d+)?", cell)
        return float(number[1] + (number[2] or "")) if number else math.inf

    def bold(cells):
        distances = [abs(value(cell) - goal) if goal is not None else value(cell) for cell in cells]
        least = min(distances)
        return [
            f"**{cell}**" if near == least < math.inf else cell for cell, near in zip(cells, distances, strict=True)
        ]

    if best == "line":
        return [[*cells[:names], *bold(cells[names:])] for cells in lines]
    columns = list(zip(*lines, strict=True))
    return [list(cells) for cells in zip(*columns[:names], *map(bold, columns[names:]), strict=True)]


def restructured_text(titles, lines):
    """A list-table."""
    text = [".. list-table::", "   :header-rows: 1", "   :class: measured", ""]
    for cells in (titles, *lines):
        text += [f"   {'  -' if place else '* -'} {cell}" for place, cell in enumerate(cells)]
    return "\n".join(text)


def parse_where(text):
    """``"a=b|c"`` is column a with values b and c, and ``"a!=b|c"`` all of a but these."""
    column, _, wanted = text.partition("=")
    return column, wanted.split("|")


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rows", nargs="+", required=True, help="columns of the file that name a line")
    parser.add_argument("--values", nargs="+", required=True, help="columns that hold numbers")
    parser.add_argument("--columns", nargs="+", default=(), help="columns whose values have columns of their own")
    parser.add_argument("--where", nargs="+", type=parse_where, default=[])
    parser.add_argument("--statistic", choices=("mean", "median"), default="mean")
    parser.add_argument("--count", help="column whose values are counted, such as split")
    parser.add_argument("--ratio", help="line to compare with")
    parser.add_argument("--rank-over", metavar="COLUMN", help="mean places of lines over this column's values")
    parser.add_argument("--best-of", metavar="COLUMN", help="name and number of the best of this column's values")
    parser.add_argument("--best", choices=("line", "column"), help="where the smallest number is bold")
    parser.add_argument("--goal", type=float, help="what the best number is nearest to, instead of the smallest")
    return parser


def make(command):
    """Header and lines for the options of the command."""
    args = make_parser().parse_args(command)
    rows = read(args.files, dict(args.where))
    if args.rank_over:
        rows = ranks(rows, args.rows, args.values, args.rank_over)
    options = {"columns": args.columns, "statistic": args.statistic, "count": args.count, "ratio": args.ratio}
    if args.best_of:
        titles, lines = table_of_leaders(rows, args.rows, args.values, over=args.best_of, **options)
    else:
        titles, lines = table(rows, args.rows, args.values, **options)
    names = len(args.rows) + (args.count is not None)
    return titles, emphasise(lines, args.best, args.goal, names) if args.best else lines


if __name__ == "__main__":
    print(restructured_text(*make(sys.argv[1:])))
