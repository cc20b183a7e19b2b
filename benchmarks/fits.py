"""Processor time of default fits, beside fits of one member.

    OMP_NUM_THREADS=1 python benchmarks/fits.py --data DIR --output fits.csv

``DIR`` is that of ``uci.py``; the first split of each stored table is taken. Iris and two moons are classes. Seconds
are those of one thread that the process has worked ("cpu_s"), so that other processes do not count. Some of these are
of the base ("base_s") and of neighbours ("neighbors_s"). "members" is "auto" for the default, and 1 for a single
member, which AVDGP and DSDGP have on small tables by wish only.
"""

import argparse
import time
from pathlib import Path

import torch
from sklearn.datasets import load_iris, make_moons
from tables import save_each
from uci import stored_split

import skdgp

FAMILIES = ("AVDGP", "DSDGP", "SOLVEGP")
STORED = {"yacht": "yacht", "boston": "bostonHousing", "concrete": "concrete", "kin8nm": "kin8nm"}
TABLES = ("iris", "yacht", "boston", "two moons", "concrete", "kin8nm")
KEYS = ("table", "n_rows", "family", "members", "cpu_s", "base_s", "neighbors_s")

#: Tables of more rows have fewer than five members by default.
MOST_ROWS = 1000


def load(table, folder):
    """Rows and targets, and whether these are labels."""
    if table == "iris":
        return *load_iris(return_X_y=True), True
    if table == "two moons":
        return *make_moons(800, noise=0.3, random_state=0), True
    split = stored_split(folder / STORED[table], 0)
    return split.X, split.y, False


def measure(tables, families, folder):
    """Lines, one for each fit."""
    skdgp.SOLVEGPRegressor(random_state=0).fit(*load_iris(return_X_y=True))  # imports what fits import
    for table in tables:
        X, y, labels = load(table, folder)
        for family in families:
            kind = getattr(skdgp, f"{family}{'Classifier' if labels else 'Regressor'}")
            alone = family != "SOLVEGP" and len(X) <= MOST_ROWS
            for members in ("auto", 1) if alone else ("auto",):
                start = time.process_time()
                model = kind(random_state=0).set_params(**({} if members == "auto" else {"n_estimators": members}))
                model.fit(X, y)
                seconds = time.process_time() - start
                # These are seconds of the clock, of which other processes may have a part.
                share = seconds / model.fit_times_["total"]
                line = {"table": table, "n_rows": len(X), "family": family, "members": members}
                line["cpu_s"] = round(seconds, 3)
                for part in ("base", "neighbors"):
                    line[f"{part}_s"] = round(share * model.fit_times_.get(part, 0.0), 3)
                yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the stored tables")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in save_each(measure(options.tables, options.families, options.data), options.output, KEYS):
        print(*line.values(), flush=True)


if __name__ == "__main__":
    main()
