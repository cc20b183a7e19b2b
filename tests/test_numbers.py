"""Numbers in sentences of the README and the guide are those of the files of ``benchmarks/results``.

Each claim below is a sentence that a page must have, with numbers from the files in it. If a benchmark runs anew, a
test that fails shows what the page has to say now.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean, mean, median, stdev

import pytest

from skdgp.methods.avdgp import BUDGET as AVDGP_BUDGET

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


def default_fits():
    """Seconds of default fits by table and family, and how many times as long five members take as one."""
    seconds = means("fits", "cpu_s", "table", "family", where=lambda row: row["members"] == "auto")
    alone = means("fits", "cpu_s", "table", "family", where=lambda row: row["members"] == "1")
    rest = {part: means("fits", f"{part}_s", "table", "family") for part in ("base", "neighbors")}
    both = [rest["base"][key] + rest["neighbors"][key] for key in rest["base"]]
    return seconds, [seconds[key] / each for key, each in alone.items()], both


def seconds_of_default_fits():
    _, ratios, both = default_fits()
    yield f"five took {ends(ratios, '{:.1f}')} times as long as one."
    yield f"**Base and neighbours** took {ends(both, '{:.0f}')} of these seconds."
    yield f"``n_estimators=1`` took {ends([100 / each for each in ratios], '{:.0f}')} % of the time."


def seconds_of_small_fits():
    seconds, _, _ = default_fits()
    small = [each for (_, family), each in seconds.items() if family == "SOLVEGP"]
    large = means("large", "fit_s", "problem", where=lambda row: (row["estimator"], row["n_rows"]) == TEN_THOUSAND)
    yield (
        f"Up to a thousand rows took {ends(small, '{:.0f}')} seconds of a slow thread (:doc:`speed`), and 10 000 rows "
        f"{ends(large.values(), '{:.0f}')}."
    )
    found = means("series", "fit_s", "model", "n_rows")
    yield f"It learnt from a million rows in {WORDS[round(found['fourier', '1000000'])]} seconds."


#: SOLVEGP's fits to ten thousand rows.
TEN_THOUSAND = ("solvegp", "10000")


def slow_steps():
    ratio = means("options", "ratio", "family", "option", "n_rows")

    def times(family, option, beside="default"):
        sizes = {rows for *_, rows in ratio}
        found = [ratio[family, option, rows] / ratio[family, beside, rows] for rows in sizes]
        return ends(found, "{:.2g}")

    yield f"4 layers instead of 2: {times('DSDGP', '4 layers')} times"
    more, most = (times("DSDGP", f"{factor} times the points") for factor in (4, 8))
    yield f"4 times as many: {more} times. 8 times as many: {most} times"
    more, most = times("AVDGP", "16 points", "8 points"), times("AVDGP", "32 points", "16 points")
    yield f"From 8 to 16: {more} times. From 16 to 32: {most} times"
    few, many = (times("DSDGP", f"quadrature, {count}") for count in (8, 32))
    yield f"{few} times with 8 points, the default; {many} times with 32"
    yield f"Each row has ``n_samples`` samples: {times('DSDGP', 'predictive')} times"
    yield f'``covariance="full"`` in DSDGP {times("DSDGP", "full")} times'
    yield f'{times("DSDGP", "full_unwhitened", "full")} times "full", since it trains in float64'


def twice_the_points():
    ratio = means("options", "ratio", "option", "n_rows", where=lambda row: row["family"] == "AVDGP")
    most = max(ratio[f"{2 * n} points", rows] / ratio[f"{n} points", rows] for n in (8, 16) for _, rows in ratio)
    yield f"Twice as many take up to {WORDS[round(most)]} times as long."


def slow_variants():
    whole = by_table("posteriors", "fit_s")
    longer = {
        name: median(each[f"dsdgp-{name}"] / each["dsdgp-factorised"] for each in whole.values())
        for name in ("joint", "locations", "chain")
    }
    joint, locations, chain = (f"{each:.0f}" for each in longer.values())
    yield f'{joint} ("joint"), {locations} ("locations") or {chain} times ("chain"); with many points more'
    latent = by_table("latents", "fit_s")
    longer = sorted(each["dsdgp-latent"] / each["dsdgp"] for each in latent.values() if "dsdgp-latent" in each)
    yield f"Up to {median(longer):.1f} times on half of the tables, up to {longer[-1]:.0f} times on others"


def seconds_of_predictions():
    chosen = lambda row: row["size"] == "100000" and row["measure"] == "ms a call"  # noqa: E731
    seconds = {name: each / 1000 for (name,), each in means("predict", "value", "competitor", where=chosen).items()}
    both = [seconds[f"{name.upper()}Regressor"] - seconds[f"{name.upper()}Regressor, alone"] for name in OURS]
    yield f"both together take {WORDS[round(min(both))]} to {WORDS[round(max(both))]} seconds for 100 000 rows."
    imported = means("import", "value", "competitor")
    assert imported["torch",] + imported["sklearn",] > 0.8 * imported["skdgp",] > 1000


def memory_of_fits():
    chosen = lambda row: row["heat"] == "training pass" and row["size"] == "1000000"  # noqa: E731
    memory = means("memory", "value", "competitor", where=chosen)
    ours = [memory[f"{name.upper()}Regressor",] for name in OURS]
    yield f"An epoch with a million rows of eight features took {ends(ours, '{:.0f}')} MiB, the table included"
    peak = means("large", "peak_mb", "problem", where=lambda row: (row["estimator"], row["n_rows"]) == A_MILLION)
    yield f"The million rows took AVDGP {mean(peak.values()) / 1024:.1f} GiB."


#: AVDGP's fits to a million rows.
A_MILLION = ("avdgp", "1000000")


def noise_of_large_tables():
    noise = means("large", "noise_nll", "estimator", "n_rows", "problem")
    problems = ("friedman", "rough", "jumps")
    few, many = (
        [f"{noise['avdgp', rows, each]:.{digits}f}" for each in problems]
        for rows, digits in (("10000", 2), ("1000000", 3))
    )
    yield (
        f"the functions themselves have an NLL of {few[0]}, {few[1]} and {few[2]}, and {many[0]}, {many[1]} and "
        f"{many[2]} on those of the million rows."
    )


def epochs_of_many_rows():
    epochs = [AVDGP_BUDGET.max_iter(n, AVDGP_BUDGET.batch_size(n), by_chunks=False) for n in (20_000, 100_000, 10**6)]
    yield f"{epochs[0]} of AVDGP for 20 000 rows, {epochs[1]} for 100 000, {epochs[2]} for a million."


def recorded_steps():
    steps = means("gpu", "value", "estimator", "batch_size", "cuda_graphs", where=lambda row: row["work"] == "step")
    shares = [each / steps[*key[:2], "False"] for key, each in steps.items() if key[2] == "True"]
    assert round(1 / max(shares)) == 2 and round(1 / min(shares)) == 8
    yield "which takes a half to an eighth of the time."


def first_of_nine():
    nll = by_table("sets", "nll")
    assert all(nll[name]["dsdgp"] < best(nll[name], ("hgb", "ngboost", "mlp-5")) for name in NINE)
    yield "On each of nine standard data sets,"


def ngboost():
    assert list(first_of_nine())
    yield "on each of the nine sets of our README its density is behind."
    nll = by_table("sets", "nll")
    yield f"SOLVEGP has {nll['protein-tertiary-structure']['solvegp']:.2f} with 41 000."


def data_frames():
    nll, error = (means("frames", value, "problem", "missing", "share", "columns", "estimator") for value in SCORES)
    for found in (nll, error):
        made = {key for key in found if key[3:] == ("frame", "solvegp")}
        assert len(made) == 10 and all(found[key] < found[*key[:4], "trees"] for key in made)
    yield "SOLVEGP is better than trees in every row, in NLL and in error."
    codes = {key[0]: each for key, each in nll.items() if key[3:] == ("category", "solvegp")}
    numbers = {key[0]: each for key, each in nll.items() if key[3:] == ("number", "solvegp")}
    worse = {name for name in codes if codes[name] > numbers[name] + 0.01}
    assert worse == {"autos", "servo", "solar"}
    yield "they are worse on autos, servo and solar."
    assert nll["machine", "none", "0.0", "number", "trees"] < numbers["machine"]
    yield "Trees are ahead on machine."


#: Columns of the file of data frames.
SCORES = ("nll", "error")


def many_outputs():
    error = means("outputs", "error", "problem", "estimator", "model")
    ratios = [error["many", name, "together"] / error["many", name, "alone"] for name in ("solvegp", "dsdgp")]
    assert all(0.45 < each < 0.55 for each in ratios)
    yield "fifty sums of five functions were predicted with half the error;"


def coupled_layers():
    nll = by_table("posteriors", "nll")
    said = {}
    for name in ("joint", "chain", "locations"):
        apart = [each[f"dsdgp-{name}"] - each["dsdgp-factorised"] for each in nll.values()]
        assert len(apart) == 15
        said[name] = f"{mean(apart):+.2f} ± {stdev(apart) / len(apart) ** 0.5:.2f}".replace("-", "−")
    yield (
        f'On fifteen tables the NLL changed by {said["joint"]} ("joint"), {said["chain"]} ("chain") and '
        f'{said["locations"]} ("locations")'
    )


def many_groups():
    found = {}
    for value in ("nll", "coverage"):
        found[value] = means("groups", value, "model", "rows", where=lambda row: row["problem"] == "many")
    nll, held = found["nll"], found["coverage"]
    yield (
        f"In a table of 300 groups with 3 rows, the negative log density was {nll['default', 'known']:.2f} for known "
        f"groups ({percent(held['default', 'known'])} % in 90 % intervals) and {nll['default', 'new']:.2f} for new "
        f"ones ({percent(held['default', 'new'])} %). The true kernel has {nll['truth', 'known']:.2f} and "
        f"{nll['truth', 'new']:.2f}."
    )


def insurance():
    deviance = {name: each for (name,), each in means("claims", "deviance", "model").items()}
    assert max(deviance["splines"], deviance["trees"]) < min(deviance["avdgp"], deviance["solvegp"])
    yield 'are ahead of ``likelihood="poisson"``.'


def quick_trees():
    seconds = means(
        "curve", "value", "heat", "size", where=lambda row: (row["competitor"], row["measure"]) == ("HGB", "s")
    )
    assert max(seconds.values()) < 0.25
    yield "Boosted trees take a quarter of a second at most."


CLAIMS = [
    ("doc/benchmarks.rst", nine_sets),
    ("doc/benchmarks.rst", twenty_tables),
    ("doc/benchmarks.rst", noise_that_varies),
    ("doc/benchmarks.rst", outliers),
    ("doc/benchmarks.rst", classification),
    ("doc/benchmarks.rst", times),
    ("doc/benchmarks.rst", shorter_fits),
    ("doc/benchmarks.rst", rivals_in_the_benchmarks),
    ("doc/benchmarks.rst", insurance),
    ("doc/benchmarks.rst", quick_trees),
    ("doc/calibration.rst", coverage_of_nine),
    ("doc/choosing.rst", trend_in_the_guide),
    ("doc/choosing.rst", noise_that_varies_in_the_guide),
    ("doc/choosing.rst", many_outputs),
    ("doc/choosing.rst", twice_the_points),
    ("doc/groups.rst", many_groups),
    ("doc/index.rst", first_of_nine),
    ("doc/methods.rst", coupled_layers),
    ("doc/scale.rst", chunks),
    ("doc/scale.rst", memory_of_fits),
    ("doc/scale.rst", noise_of_large_tables),
    ("doc/scale.rst", epochs_of_many_rows),
    ("doc/scale.rst", recorded_steps),
    ("doc/speed.rst", seconds_of_default_fits),
    ("doc/speed.rst", slow_steps),
    ("doc/speed.rst", slow_variants),
    ("doc/speed.rst", seconds_of_predictions),
    ("doc/tables.rst", data_frames),
    ("doc/which_estimator.rst", which_family),
    ("doc/which_estimator.rst", seconds_of_small_fits),
    ("doc/why_not.rst", rivals_in_the_guide),
    ("doc/why_not.rst", pretrained_networks),
    ("doc/why_not.rst", ngboost),
    ("README.rst", first_of_nine),
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
