"""NLL over the seconds of a fit, for the tables and models of ``benchmarks/results/curve.csv``."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt

RESULTS = Path("../../benchmarks/results/curve.csv")  # from this folder, where the documentation runs it
SHORT = {"HGB": "Boosted trees", "GPR, 2000 rows": "Exact GP", "GPC": "Exact GP"}

values = defaultdict(lambda: {"s": [], "NLL": []})
with RESULTS.open(newline="") as file:
    for row in csv.DictReader(file):
        if row["measure"] in ("s", "NLL"):
            name = SHORT.get(row["competitor"], row["competitor"].removesuffix("Regressor").removesuffix("Classifier"))
            values[row["heat"], name, row["size"]][row["measure"]].append(float(row["value"]))

heats = list(dict.fromkeys(heat for heat, _, _ in values))
names = list(dict.fromkeys(name for _, name, _ in values))
figure, axes = plt.subplots(-(-len(heats) // 2), 2, figsize=(9, 2.6 * -(-len(heats) // 2)), layout="constrained")
for axis, heat in zip(axes.flat, heats, strict=False):
    for number, name in enumerate(names):
        points = {size: each for (other, model, size), each in values.items() if (other, model) == (heat, name)}
        places = {size: (median(each["s"]), median(each["NLL"])) for size, each in points.items()}
        if places:
            axis.plot(*zip(*sorted(places.values()), strict=True), "-", color=f"C{number}", lw=1)
            axis.plot(*places[""], "o", color=f"C{number}", label=name)
    axis.set(xscale="log", title=heat)
    axis.title.set_fontsize("medium")
for axis in axes.flat[len(heats) :]:
    axis.remove()
figure.supxlabel("Seconds of a fit")
figure.supylabel("Negative log density or probability per row")
axes.flat[0].legend(fontsize="small")
plt.show()
