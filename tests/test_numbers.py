"""Numbers in sentences of the README and the guide are those of the files of ``benchmarks/results``.

Each claim below is a sentence that a page must have, with numbers from the files in it. If a benchmark runs anew, a
test that fails shows what the page has to say now.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean, mean, median

import pytest

ROOT = Path(__file__).resolve().parents[1]

OURS = ("avdgp", "dsdgp", "solvegp")

#: The nine sets that most papers use.
NINE = {
    "bostonHousing",
    "concrete",
    "energy",
    "kin8nm",
    "naval",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
    "yacht",
}

WORDS = "none one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen".split()


def means(name, value, *keys, where=None):
    """Mean value over the rows of a file that are the same in some columns."""
    found = defaultdict(list)
    with (ROOT / f"benchmarks/results/{name}.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row[value] and (where is None or where(row)):
                found[tuple(row[key] for key in keys)].append(float(row[value]))
    return {key: mean(each) for key, each in found.items()}


def by_table(name, value, where=None):
    """Mean value by table and by estimator."""
    tables = defaultdict(dict)
    for (table, estimator), each in means(name, value, "dataset", "estimator", where=where).items():
        tables[table][estimator] = each
    return dict(tables)


def best(scores, names=OURS):
    return min(scores[name] for name in names)


def first_of_all(score):
    """Tables on which one of our families is the best of all."""
    return {table for table, scores in by_table("sets", score).items() if best(scores) == min(scores.values())}


def percent(share, digits=0):
    return f"{100 * share:.{digits}f}"


def ends(values, show="{:.2f}", word="to"):
    """Smallest and largest value."""
    low, high = show.format(min(values)), show.format(max(values))
    return low if low == high else f"{low} {word} {high}"


def twenty_tables():
    nll, rmse = by_table("sets", "nll"), by_table("sets", "rmse")
    trees = best(nll["machine"]) - nll["machine"]["hgb"]
    networks = 1 - rmse["autos"]["mlp-5"] / best(rmse["autos"])
    coverage = by_table("sets", "coverage")
    n_train = by_table("sets", "n_train")
    small = [shares for table, shares in coverage.items() if best(n_train[table]) < 200]
    narrow = [shares for shares in small if best(shares) < 0.88]
    ours = [percent(shares[name]) for shares in narrow for name in OURS]
    theirs = [percent(shares["hgb"]) for shares in narrow]
    mean_share = {percent(mean(shares[name] for shares in coverage.values())) for name in OURS}
    yield (
        f"One of the three has the lowest NLL on {len(first_of_all('nll'))} of the {len(nll)} tables, "
        f"and the lowest RMSE on {len(first_of_all('rmse'))}."
    )
    yield (
        f"boosted trees on machine by {trees:.2f}. On autos the RMSE of neural networks is {percent(networks)} % lower "
        "than that of our best."
    )
    yield (
        f"Intervals are too narrow on {WORDS[len(narrow)]} of the {WORDS[len(small)]} tables with fewer than 200 "
        f"training rows: they hold {min(ours)} to {max(ours)} %, where those of boosted trees hold {min(theirs)} to "
        f"{max(theirs)} %. The mean over all tables is {' or '.join(sorted(mean_share))} %."
    )


def nine_sets():
    assert first_of_all("rmse") >= NINE and NINE - first_of_all("nll") == {"wine-quality-red"}
    yield (
        "One of the three estimators has the best NLL on all nine, apart from a special case on wine-red, and the "
        "smallest RMSE on all nine."
    )


def classification():
    losses = by_table("classification", "log_loss")
    real = {"breast_cancer", "digits", "iris", "wine"}

    def ratio(name, tables):
        return geometric_mean(losses[each][name] / best(losses[each], ("gpc", "hgb", "logistic")) for each in tables)

    made = [ratio(name, losses.keys() - real) for name in OURS]
    yield (
        f"over the {WORDS[len(losses) - len(real)]} generated problems is {made[0]:.2f} times as large for AVDGP, "
        f"{made[1]:.2f} times for DSDGP and {made[2]:.2f} times for SOLVEGP."
    )
    below = [percent(1 - ratio(name, real)) for name in OURS]
    yield f"On the four real ones, AVDGP is {below[0]} %, DSDGP {below[1]} % and SOLVEGP {below[2]} % below it."

    def worse(tables, rival):
        return [100 * (losses[each][name] / losses[each][rival] - 1) for each in tables for name in OURS]

    checkerboard = dict(zip(OURS, worse(["checkerboard"], "hgb"), strict=True))
    linear, iris, others = (
        ends(worse(tables, "logistic"), "{:.0f}") for tables in (["linear"], ["iris"], ["blobs", "breast_cancer"])
    )
    yield (
        f"Logistic regression is better than all three by {others} % on blobs and breast cancer, by {iris} % on iris, "
        f'and by {linear} % on "linear", where it is the right model. AVDGP loses to '
        f"boosted trees on the checkerboard by {checkerboard['avdgp']:.0f} %, and SOLVEGP by "
        f"{checkerboard['solvegp']:.0f} %."
    )


def noise_that_varies():
    """Rows without neighbours, since this likelihood has none."""
    apart = {}
    for name in OURS:
        pairs = [each for each in by_table("varying", "nll").values() if {name, f"{name}-varying"} <= each.keys()]
        apart[name] = [each[f"{name}-varying"] - each[name] for each in pairs]
    counts = {name: f"{sum(each < 0 for each in apart[name])} of {len(apart[name])}" for name in OURS}
    losses = sorted(each for name in OURS for each in apart[name])
    yield (
        f"has a lower NLL than the default without neighbours on {counts['avdgp']} tables (AVDGP), {counts['dsdgp']} "
        f"(DSDGP) and {counts['solvegp']} (SOLVEGP), by up to {-losses[0]:.1f}. It loses {losses[-1]:.2f} on autos "
        f"with SOLVEGP, and {losses[-2]:.1f} at most elsewhere."
    )


def noise_that_varies_in_the_guide():
    nll, rmse = by_table("varying", "nll"), by_table("varying", "rmse")
    apart = [each["dsdgp-varying"] - each["dsdgp"] for each in nll.values() if "dsdgp" in each]
    errors = {table: each["dsdgp-varying"] / each["dsdgp"] - 1 for table, each in rmse.items() if "dsdgp" in each}
    assert len(apart) == 17 and errors["yacht"] > 0.5
    better, far = sum(each < 0 for each in apart), sum(each < -0.5 for each in apart)
    yield (
        f"On seventeen tables, without neighbours, the NLL of DSDGP was better on {WORDS[better]}, by more than half a "
        f"nat on {WORDS[far]}, and worse by at most {max(apart):.2f}."
    )
    yield (
        f"(the RMSE of DSDGP by up to {percent(sorted(errors.values())[-2])} % on some tables, and by more than half "
        "on yacht)"
    )


def outliers():
    error = means("noise", "rmse", "estimator", "likelihood", where=lambda row: row["problem"] == "outliers")
    grown = {
        likelihood: ends([100 * (error[name, likelihood] / error[name, "clean"] - 1) for name in OURS], "{:.0f}")
        for likelihood in ("gaussian", "student_t")
    }
    yield (
        f'the RMSE of the default is {grown["gaussian"]} % larger than without. With ``likelihood="student_t"`` it is '
        f"{grown['student_t']} % larger."
    )


def times():
    seconds = means(
        "predict", "value", "competitor", where=lambda row: row["size"] == "1000000" and row["measure"] == "ms a call"
    )
    seconds = {name: each / 1000 for (name,), each in seconds.items()}
    families = [f"{name.upper()}Regressor" for name in OURS]
    alone = [f"{seconds[f'{name}, alone']:.0f}" for name in families]
    yield (
        f"Predictions of a million rows take {ends([seconds[name] for name in families], '{:.0f}')} s with all "
        f"defaults. Boosted trees take {seconds['HGB']:.1f} s. Without base and neighbours SOLVEGP takes {alone[2]} s, "
        f"AVDGP {alone[0]} s and DSDGP {alone[1]} s."
    )
    steps = defaultdict(list)
    with (ROOT / "benchmarks/results/step.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            steps[row["competitor"], row["heat"]].append(float(row["value"]))
    heats = {heat for _, heat in steps}

    def share(name):
        return ends(
            [100 * median(steps[name, heat]) / median(steps["GPyTorch DeepGP", heat]) for heat in heats], "{:.0f}"
        )

    yield (
        f"A training step of DSDGP takes {share('DSDGP')} % of the time of GPyTorch's deep GP. With a kernel and full "
        "covariances for each output, as GPyTorch has them, it takes "
        f"{share('DSDGP, full covariance, kernel per output')} %."
    )


def shorter_fits():
    found = means("curve", "value", "heat", "competitor", "size", where=lambda row: row["measure"] == "NLL")
    epochs, losses = defaultdict(list), defaultdict(list)
    for heat, name, size in found:
        if name.startswith(("AVDGP", "DSDGP", "SOLVEGP")) and size:
            epochs[heat, name].append(int(size))
    for (heat, name), sizes in epochs.items():  # a quarter is the larger one of the smaller budgets
        loss = found[heat, name, str(max(sizes))] - found[heat, name, ""]
        losses[re.sub("Regressor|Classifier", "", name)].append(loss)
    most = {name: f"{max(each):.2f}" for name, each in losses.items()}
    assert max(losses["SOLVEGP"]) < 0.01
    yield (
        f"with a quarter of the epochs AVDGP loses {most['AVDGP']} at most, DSDGP {most['DSDGP']} and SOLVEGP less "
        "than 0.01."
    )


def chunks():
    nll, noise = (means("large", value, "estimator", "n_rows", "problem") for value in ("nll", "noise_nll"))
    ours = [nll[f"{name}-streamed", "1000000", "friedman"] for name in ("avdgp", "solvegp")]
    yield (
        f"A million rows of Friedman's first function in chunks have an NLL of {ours[0]:.3f} (AVDGP) and {ours[1]:.3f} "
        f"(SOLVEGP), where the noise alone has {noise['avdgp-streamed', '1000000', 'friedman']:.3f}."
    )


def pretrained_networks():
    nll = means("published", "nll", "dataset", "estimator")
    protein = [nll["protein-tertiary-structure", name] for name in ("TabPFN 2.5", "TabICL v2")]
    yield f"negative log densities of {ends(protein)} (arXiv 2603.26611)"


def coverage_of_nine():
    coverage = {table: shares for table, shares in by_table("sets", "coverage").items() if table in NINE}
    ours = ends([100 * shares[name] for shares in coverage.values() for name in OURS], "{:.0f}")
    trees = ends([100 * shares["hgb"] for shares in coverage.values()], "{:.0f}")
    yield (
        f"the 90 % intervals of the three families hold {ours} % of the test rows (:doc:`benchmarks`). Those of "
        f"boosted trees with a constant deviation hold {trees} %"
    )
    said = re.search(r"on (\w+) of the (\w+) .*? they hold (\d+ to \d+) %", list(twenty_tables())[-1])
    yield f"On {said[1]} of {said[2]} such tables, 90 % intervals held {said[3]} % of the test rows."


def trend():
    scores = {flag: {} for flag in (True, False)}
    for value in ("nll", "rmse", "fit_s"):
        for flag in scores:
            chosen = lambda row, flag=flag: (row["params"] != "{}") == flag  # noqa: E731
            scores[flag][value] = means("trend", value, "dataset", where=chosen)
    tables = [table for table in scores[True]["nll"] if table in scores[False]["nll"]]
    change = {table[0]: scores[True]["nll"][table] - scores[False]["nll"][table] for table in tables}
    return tables, change, scores


def trend_in_the_readme():
    tables, change, scores = trend()
    gains = sorted(change, key=change.get)
    longer = [scores[True]["fit_s"][table] / scores[False]["fit_s"][table] for table in tables]
    yield (
        f"takes the negative log density of {WORDS[len(tables)]} tables down by {-mean(change.values()):.2f} on "
        f"average. It gains most on {gains[0]} ({-change[gains[0]]:.2f}) and {gains[1]} ({-change[gains[1]]:.2f}), and "
        f"loses on {gains[-1]} ({change[gains[-1]]:.2f}). A fit then takes {WORDS[round(min(longer))]} to "
        f"{WORDS[round(max(longer))]} times as long."
    )


def trend_in_the_guide():
    tables, change, scores = trend()
    gains = sorted(change.values())
    some = [-gain for gain in gains[1:] if gain < -0.05]
    rmse = [scores[flag]["rmse"][("yacht",)] for flag in (False, True)]
    yield (
        f'On the {WORDS[len(tables)]} smaller tables of :doc:`benchmarks`, "auto" lowers the NLL of SOLVEGP by '
        f"{-mean(gains):.2f} on average: by {-change['yacht']:.2f} on yacht, by {ends(some)} on "
        f"{WORDS[len(some)]} others"
    )
    yield f"On autompg it is {change['autompg']:.2f} worse."
    yield f"On yacht the RMSE rises from {rmse[0]:.2f} to {rmse[1]:.2f}"


def which_family():
    nll, rows, seconds = (by_table("sets", value) for value in ("nll", "n_train", "fit_s"))
    middle = [table for table in nll if 1000 < rows[table]["dsdgp"] <= 10_000]
    ahead = [table for table in middle if best(nll[table]) == nll[table]["dsdgp"]]
    small = [table for table in nll if rows[table]["dsdgp"] <= 1000]
    assert 0.3 < mean(seconds[table]["solvegp"] / seconds[table]["dsdgp"] for table in small) < 0.37
    yield f"on {WORDS[len(small)]} tables of :doc:`benchmarks` it takes a third of DSDGP's time."
    yield (
        f"On {WORDS[len(ahead)]} of the {WORDS[len(middle)]} tables from there to 10 000 rows DSDGP has the best "
        f"density. On the {WORDS[len(nll) - len(small) - len(middle)]} larger ones AVDGP is the best one "
        "or about as good"
    )


def of_split_0(score):
    """Best score of ours on each table, and the scores of rivals, which have this split alone."""
    ours, theirs = (by_table(name, score, where=lambda row: row["split"] == "0") for name in ("sets", "rivals"))
    return {table: best(scores) for table, scores in ours.items()}, theirs


def behind_of(rival, score):
    """How far the best of ours is behind a rival, by table; ahead is negative."""
    ours, theirs = of_split_0(score)
    return {table: ours[table] - scores[rival] for table, scores in theirs.items() if rival in scores}


def rivals():
    """How many tables there are, and on which CatBoost is ahead of the best of ours."""
    apart = {score: behind_of("catboost", score) for score in ("nll", "rmse")}
    behind = {score: {table: each for table, each in apart[score].items() if each > 0} for score in apart}
    return len(apart["nll"]), behind


def rivals_in_the_benchmarks():
    _, behind = rivals()
    autos, machine = (behind["nll"][table] for table in ("autos", "machine"))
    yield f"CatBoost is ahead by {autos:.2f} nats on autos and {machine:.2f} on machine."
    apart = behind_of("gpboost", "nll")
    special, first, second, *_ = sorted(apart, key=apart.get, reverse=True)
    assert special == "wine-quality-red"
    ours, theirs = of_split_0("rmse")
    pendulum = percent(1 - theirs["pendulum"]["gpboost"] / ours["pendulum"])
    yield (
        f"Apart from wine-red, GPBoost is ahead by most on {first} ({apart[first]:.2f} nats) and {second} "
        f"({apart[second]:.2f}). Its RMSE is {pendulum} % lower on pendulum."
    )


def rivals_in_the_guide():
    total, behind = rivals()
    yield (
        f"On {total} tables CatBoost has a lower RMSE than the best of ours on {WORDS[len(behind['rmse'])]}, and a "
        f"lower NLL on {WORDS[len(behind['nll'])]} (:doc:`benchmarks`)."
    )


def rivals_in_the_readme():
    total, behind = rivals()
    names = " and ".join(f"{table} ({behind['nll'][table]:.2f})" for table in sorted(behind["nll"]))
    yield (
        "On the first splits of twenty tables the best of the three is ahead of it on "
        f"{total - len(behind['nll'])}, and behind on {names}."
    )


def outliers_in_the_readme():
    (sentence,) = outliers()
    yield f"With one wrong target in twenty, errors grow by {re.search(r'[0-9]+ to [0-9]+', sentence)[0]} %."


CLAIMS = [
    ("doc/benchmarks.rst", nine_sets),
    ("doc/benchmarks.rst", twenty_tables),
    ("doc/benchmarks.rst", noise_that_varies),
    ("doc/benchmarks.rst", outliers),
    ("doc/benchmarks.rst", classification),
    ("doc/benchmarks.rst", times),
    ("doc/benchmarks.rst", shorter_fits),
    ("doc/benchmarks.rst", rivals_in_the_benchmarks),
    ("doc/calibration.rst", coverage_of_nine),
    ("doc/choosing.rst", trend_in_the_guide),
    ("doc/choosing.rst", noise_that_varies_in_the_guide),
    ("doc/scale.rst", chunks),
    ("doc/which_estimator.rst", which_family),
    ("doc/why_not.rst", rivals_in_the_guide),
    ("doc/why_not.rst", pretrained_networks),
    ("README.rst", rivals_in_the_readme),
    ("README.rst", outliers_in_the_readme),
    ("README.rst", trend_in_the_readme),
]


@pytest.mark.parametrize(("page", "claim"), CLAIMS, ids=lambda each: getattr(each, "__name__", each))
def test_pages_say_what_files_have(page, claim):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for sentence in claim():
        assert sentence in text, f"{page} does not say: {sentence}"


#: Rows of the table of large tables, and their names in the file.
LARGE = {
    "AVDGP": "avdgp",
    "DSDGP": "dsdgp",
    "SOLVEGP": "solvegp",
    "CatBoost": "catboost",
    "LightGBM": "lightgbm",
    "Trees (scikit-learn)": "hgb",
    "Network": "mlp",
}


def test_table_of_large_tables_has_the_numbers_of_its_file():
    nll = means("large", "nll", "estimator", "n_rows", "problem")
    seconds = means("large", "fit_s", "estimator", "n_rows", "problem")
    page = (ROOT / "doc/scale.rst").read_text(encoding="utf-8").replace("**", "")
    lines = re.findall(r"^(\w[\w() -]*?) +(10 000|100 000|million) +(\d.*|not run.*)$", page, flags=re.MULTILINE)
    assert len(lines) == 15
    for name, rows, cells in lines:
        count = rows.replace(" ", "").replace("million", "1000000")
        problems = ("friedman", "rough", "jumps")
        *scores, time = re.split(" {1,}", cells.replace("not run", "none"))
        found = [nll.get((LARGE[name], count, problem)) for problem in problems]
        assert scores == ["none" if each is None else f"{each:.3f}" for each in found], (name, rows)
        took = [each for problem in problems if (each := seconds.get((LARGE[name], count, problem)))]
        said = [int(each) for each in time.split("–")]
        assert said[0] == pytest.approx(min(took), abs=0.51) and said[-1] == pytest.approx(max(took), abs=0.51)


def test_tables_of_gpus_have_the_numbers_of_their_file():
    page = (ROOT / "doc/scale.rst").read_text(encoding="utf-8")
    found = means("gpu", "value", "work", "estimator", "device", "batch_size", "rows", "cuda_graphs", "measure")
    steps = re.findall(r"^(\w+Regressor)(?:, \S+)? +(500|5000) +([\d.]+) +([\d.]+)$", page, flags=re.MULTILINE)
    assert len(steps) == 6
    for name, rows, *said in steps:
        for recorded, each in zip(("False", "True"), said, strict=True):
            key = ("step", name, "NVIDIA H200", rows, "20000", recorded, "ms a step")
            assert float(each) == pytest.approx(found[key], abs=0.051)
    fits = re.findall(
        r"^(\w+), (\d+)( 000)? rows +(GPU|16 cores) +([\d.]+) +([\d.]+) +([\d.]+)$", page, flags=re.MULTILINE
    )
    assert len(fits) == 5
    for name, count, thousands, device, *said in fits:
        machine = ("NVIDIA H200", "auto") if device == "GPU" else ("CPU, 16 threads", "auto")
        rows = count + thousands.strip()
        for measure, each in zip(("seconds", "NLL", "seconds of 100000 rows, float64"), said, strict=True):
            key = ("fit", f"{name}Regressor", *machine, rows, str(device == "GPU"), measure)
            assert float(each) == pytest.approx(found[key], rel=0.02)
