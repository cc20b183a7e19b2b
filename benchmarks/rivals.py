"""How often each method is best on a file of scores, and how far it is behind the best of the others.

    python benchmarks/rivals.py benchmarks/results/sets.csv benchmarks/results/rivals.csv

For each score: on how many data sets a method has the smallest mean, and the median over sets of how far it is from the
best of the three families: a difference for NLL, a ratio for CRPS and RMSE. Only splits that all methods have count.
"""

import argparse
import statistics

from tables import read

OURS = ("avdgp", "dsdgp", "solvegp")
SCORES = ("nll", "crps", "rmse")


def means(rows, score):
    """Mean scores by data set and estimator, over the splits that all estimators have."""
    cells = {}
    for row in rows:
        cells.setdefault((row["dataset"], row["split"]), {})[row["estimator"]] = float(row[score])
    names = {row["estimator"] for row in rows}
    lines = {}
    for (dataset, _), line in cells.items():
        if set(line) == names:
            for name, value in line.items():
                lines.setdefault(dataset, {}).setdefault(name, []).append(value)
    return {key: {name: statistics.fmean(v) for name, v in line.items()} for key, line in lines.items()}


def distance(score, line, name):
    """How far a method is behind the best of the three families, which is negative where it is ahead."""
    ours = min(line[key] for key in OURS if key in line)
    return line[name] - ours if score == "nll" else 100 * (line[name] / ours - 1)


def summary(rows):
    """Lines of text: a method, and for each score how often it is best and its median distance."""
    by_score = {score: means(rows, score) for score in SCORES}
    sets = len(by_score["nll"])
    yield f"{sets} data sets".ljust(16) + "".join(
        f"{score}: best".rjust(14) + "from ours".rjust(12) for score in SCORES
    )
    for name in dict.fromkeys(row["estimator"] for row in rows):
        cells = []
        for score, lines in by_score.items():
            best = sum(line[name] == min(line.values()) for line in lines.values())
            far = statistics.median(distance(score, line, name) for line in lines.values())
            cells += [f"{best}".rjust(14), (f"{far:+.3f}" if score == "nll" else f"{far:+.1f} %").rjust(12)]
        yield name.ljust(16) + "".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--split", help="one split only")
    args = parser.parse_args()
    rows = read(args.files, {"split": [args.split]} if args.split else None)
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
