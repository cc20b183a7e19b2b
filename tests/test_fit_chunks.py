"""Estimators fitted to tables that do not fit into memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import AVDGP, CLASSIFIERS, REGRESSORS, Tiny, every_family, table_of, targets
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skdgp import AVDGPClassifier, DSDGPRegressor, SOLVEGPRegressor
from skdgp.streaming import _fit, _mixing, _sources, fit_chunks
from skdgp.streaming._blocks import together
from skdgp.streaming._layout import Layout

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
dataset = pytest.importorskip("pyarrow.dataset")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).resolve().parents[1]
REGRESSOR = REGRESSORS[1]
SMALL = {"hidden_dims": (), "n_inducing": 20, "n_estimators": 1, "batch_size": 100, "random_state": 0}


@pytest.fixture(scope="module")
def frame():
    """Sorted rows of a smooth function of two features, and of a third one that is text."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-2, 2, size=(600, 2)), columns=["a", "b"])
    X["kind"] = rng.choice(["left", "right"], size=600)
    y = np.sin(2 * X.a) + 0.5 * X.b + (X.kind == "left") + 0.1 * rng.standard_normal(600)
    return X.assign(y=y, weight=rng.integers(3, size=600) / 2).sort_values("a", ignore_index=True)


@pytest.fixture
def short(monkeypatch):
    """A first chunk of 60 rows, and pieces of 32."""
    for module, name, value in [(_mixing, "INITIAL_ROWS", 60), (_fit, "INITIAL_ROWS", 60), (_sources, "READ_ROWS", 32)]:
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def chunks_of(monkeypatch):
    """Chunks that an estimator has learnt from, with further arguments."""
    calls, learn = [], DSDGPRegressor.partial_fit

    def record(self, X, y, **options):
        calls.append((X, y, options))
        return learn(self, X, y, **options)

    monkeypatch.setattr(DSDGPRegressor, "partial_fit", record)
    return calls


def write(frame, path, rows_per_group=100):
    parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=rows_per_group)
    return path


def pieces(frame, n_rows=70):
    return [frame.iloc[start : start + n_rows] for start in range(0, len(frame), n_rows)]


def folder(frame, path):
    path.mkdir()
    for number, piece in enumerate(pieces(frame, 250)):
        write(piece, path / f"{number}.parquet")
    return path


def csv(frame, path):
    frame.to_csv(path, index=False)
    return path


#: Makes sources of a frame in a folder.
SOURCES = {
    "Parquet": lambda frame, path: write(frame, path / "table.parquet"),
    "folder": lambda frame, path: str(folder(frame, path / "tables")),
    "dataset": lambda frame, path: dataset.dataset(write(frame, path / "table.parquet")),
    "filter": lambda frame, path: dataset.dataset(pa.Table.from_pandas(frame)).filter(dataset.field("a") > -9),
    "CSV": lambda frame, path: csv(frame, path / "table.csv"),
    "compressed": lambda frame, path: csv(frame, path / "table.csv.gz"),
    "query": lambda frame, path: pl.scan_parquet(write(frame, path / "table.parquet")),
    "frames": lambda frame, path: pieces(frame),
    "tables": lambda frame, path: [pa.Table.from_pandas(piece) for piece in pieces(frame)],
    "Polars": lambda frame, path: [pl.from_pandas(piece) for piece in pieces(frame)],
    "function": lambda frame, path: lambda: iter(pieces(frame, 11)),
}


class TestSources:
    @pytest.mark.slow
    @pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
    def test_of_all_kinds_make_one_model(self, frame, short, tmp_path, make, chunks_of):
        frame = frame.sort_index(axis=1)  # the order of the columns is that of the features
        model = fit_chunks(REGRESSOR(), make(frame, tmp_path), target="y", sample_weight="weight")
        expected = fit_chunks(REGRESSOR(), [frame], target="y", sample_weight="weight")
        assert model.feature_names_in_.tolist() == ["a", "b", "kind"] and model.n_iter_ == 2
        X = frame[["a", "b", "kind"]]
        np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-5)
        assert {options["total_size"] for *_, options in chunks_of} == {(frame.weight > 0).sum()}

    def test_of_tuples(self, wave, short):
        X, y = wave
        parts = [(X[:50], y[:50]), (X[50:], y[50:])]
        model = fit_chunks(REGRESSOR(), parts)
        expected = fit_chunks(REGRESSOR(), iter(parts))
        assert model.n_iter_ == expected.n_iter_ == 2 and model.predict(X).shape == (120,)
        weighted = fit_chunks(REGRESSOR(), [(X, y, np.arange(120) % 2)])
        assert weighted.n_iter_ == 1  # 60 rows have a weight

    def test_names_of_folders_are_columns(self, frame, tmp_path, short):
        for kind, rows in frame.groupby("kind"):
            (tmp_path / f"kind={kind}").mkdir()
            write(rows.drop(columns="kind"), tmp_path / f"kind={kind}" / "rows.parquet")
        model = fit_chunks(REGRESSOR(), tmp_path, target="y", features=["kind", "b"])
        assert sorted(table_of(model).columns.levels[0]) == ["left", "right"]
        assert model.feature_names_in_.tolist() == ["kind", "b"]

    def test_the_index_of_pandas_is_no_feature(self, frame, tmp_path):
        frame[["a", "y"]].set_index(np.arange(600) * 2.5).to_parquet(tmp_path / "table.parquet")
        assert fit_chunks(REGRESSOR(), tmp_path / "table.parquet", target="y").feature_names_in_.tolist() == ["a"]

    def test_text_in_a_part_of_a_csv_file_makes_all_of_the_column_text(self, frame, tmp_path, short):
        coded = frame.assign(kind=np.where(np.arange(600) < 500, "1", "x"))
        model = fit_chunks(REGRESSOR(), csv(coded, tmp_path / "table.csv"), target="y", sample_weight="weight")
        assert table_of(model).columns.levels == [None, None, ["1", "x"]]

    def test_several_targets(self, frame, tmp_path):
        path = write(frame[["a", "b", "y"]], tmp_path / "table.parquet")
        model = fit_chunks(REGRESSOR(), path, target=["b", "y"])
        assert model.predict(frame[["a"]]).shape == (600, 2)


class TestMixing:
    @pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
    def test_every_row_comes_once(self, frame, tmp_path, make, short):
        numbered = frame.assign(number=np.arange(600))
        source = _sources.source_of(make(numbered, tmp_path))
        layout = Layout("y", "weight", ["number"], source.names)
        rng = np.random.default_rng(0)
        known = _mixing.survey(source, layout, rng, labelled=False)
        first = _mixing.sample(source, layout, known)[0]
        expected = np.flatnonzero(frame.weight > 0)
        assert known.n_read == 600 and known.n_rows == len(expected) and len(first) == 60
        for without in (True, False):
            blocks = list(_mixing.mixed(source, layout, known, rng, 50, 100, without_sample=without))
            numbers = np.concatenate([np.asarray(block[0]).ravel() for block in blocks])
            if without:
                assert not set(numbers) & set(np.asarray(first).ravel())
                numbers = np.concatenate([numbers, np.asarray(first).ravel()])
            np.testing.assert_array_equal(np.sort(numbers), expected)
            assert all(30 <= len(block[0]) <= 80 for block in blocks)

    def test_the_sample_is_uniform(self):
        counts = np.zeros(300)
        for seed in range(200):
            rng = np.random.default_rng(seed)
            block = np.arange(300.0)[:, None], np.ones(300)
            known = _mixing.survey(_sources.Chunks([block]), Layout(None, None, None), rng, labelled=False)
            assert len(known.sample) == 300
            keys = _sampled(rng)
            counts[keys] += 1
        assert abs(counts - 40).max() < 5 * np.sqrt(40 * 0.8)  # 60 of 300 in each of 200 draws

    def test_chunks_of_files_have_rows_from_all_parts(self, frame, tmp_path, monkeypatch):
        monkeypatch.setattr(_sources, "READ_ROWS", 8)
        path = write(frame.assign(number=np.arange(600)), tmp_path / "table.parquet", 600)
        source = _sources.source_of(path)
        layout = Layout("y", None, ["number"], source.names)
        known = _mixing.Survey(600, 600, None, np.empty(0, dtype=int))
        blocks = list(_mixing.mixed(source, layout, known, np.random.default_rng(0), 50, 200, without_sample=False))
        assert all(set(range(10)) == set(block[0].number // 60) for block in blocks[:-4])

    def test_categories_whose_levels_differ_stay_categories(self):
        parts = [
            (pd.DataFrame({"c": pd.Categorical(values), "x": 0.0}), pd.Series([0.0, 1.0]), None)
            for values in ([1, 2], [2, 3])
        ]
        X, y, weight = together(parts)
        assert X.c.dtype == pd.CategoricalDtype([1, 2, 3]) and X.c.tolist() == [1, 2, 2, 3]
        assert len(y) == 4 and weight is None


def _sampled(rng):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_mixing, "INITIAL_ROWS", 60)
        block = np.arange(300.0)[:, None], np.ones(300)
        return _mixing.survey(_sources.Chunks([block]), Layout(None, None, None), rng, labelled=False).sample


class TestFits:
    @pytest.mark.slow
    @every_family
    def test_of_all_families_to_sorted_rows(self, tiny, wave, short, tmp_path):
        table = pd.DataFrame(wave[0], columns=["a", "b", "c"]).assign(y=targets(tiny, wave[1])).sort_values("y")
        model = fit_chunks(
            tiny.of_chunks(), write(table, tmp_path / "table.parquet"), target="y", n_passes=2, chunk_size=60
        )
        assert type(model) is tiny.estimator and model.n_iter_ == 4  # the sample, the others, and all in two chunks
        if tiny in CLASSIFIERS:
            assert model.classes_.tolist() == [0, 1, 2]

    @pytest.mark.slow
    def test_to_a_sorted_file_is_as_good_as_to_a_mixed_one(self, tmp_path, monkeypatch):
        monkeypatch.setattr(_mixing, "INITIAL_ROWS", 500)
        monkeypatch.setattr(_sources, "READ_ROWS", 100)
        rng = np.random.default_rng(0)
        table = pd.DataFrame(rng.uniform(-2, 2, size=(9000, 2)), columns=["a", "b"])
        table["y"] = np.sin(3 * table.a) + 0.5 * table.b + 0.1 * rng.standard_normal(9000)
        rows, new = table.iloc[:8000], table.iloc[8000:]
        scores = []
        for number, ordered in enumerate([rows, rows.sort_values("a"), rows.sort_values("y")]):
            path = write(ordered, tmp_path / f"{number}.parquet", 8000)
            estimator = DSDGPRegressor(**SMALL | {"max_iter": 5, "learning_rate": 0.05, "base": None})
            model = fit_chunks(estimator, path, target="y", chunk_size=500, buffer_size=1500)
            scores.append(model.predict_dist(new[["a", "b"]]).log_score(new.y).mean())
        assert scores[0] < -0.65  # negative log densities; that of the noise alone is -0.884
        assert max(scores[1:]) < scores[0] + 0.035, scores  # read from one end to the other it is 0.08 more

    def test_does_not_change_the_estimator_and_repeats_itself(self, frame):
        estimator = REGRESSOR()
        first, second = (fit_chunks(estimator, pieces(frame), target="y", features=["a"]) for _ in range(2))
        assert not hasattr(estimator, "n_iter_")
        np.testing.assert_array_equal(first.predict(frame[["a"]]), second.predict(frame[["a"]]))

    def test_of_labels_that_are_text(self, frame, tmp_path):
        table = frame.assign(y=np.where(frame.a > 0, "up", "down"))
        classifier = Tiny(AVDGPClassifier, **AVDGP)
        for source in (write(table, tmp_path / "table.parquet"), pl.from_pandas(table).lazy()):
            model = fit_chunks(classifier(), source, target="y", features=["a", "kind"])
            assert model.classes_.tolist() == ["down", "up"]
        model = fit_chunks(classifier(), iter(pieces(table)), target="y", classes=["down", "up", "sideways"])
        assert len(model.classes_) == 3

    def test_of_a_query_that_cannot_skip_rows(self, frame, short):
        """Only its batches are known: rows before the first wanted one are read, and left out."""
        table = pl.from_pandas(frame)

        class Batches:
            def __init__(self, query):
                self.query = query

            def collect_schema(self):
                return self.query.collect_schema()

            def select(self, columns):
                return Batches(self.query.select(columns))

            def collect_batches(self):
                return iter([*self.query.collect().iter_slices(70)])

        source = _sources.source_of(Batches(table.lazy()))
        for start in (0, 70, 75, 599, 600):
            blocks = list(source.read(["b", "y"], start))
            assert all(block.columns == ["b", "y"] and len(block) for block in blocks)
            assert [value for block in blocks for value in block["b"]] == frame.b[start:].tolist()
        given = {"target": "y", "features": ["a", "b"]}
        found, expected = (fit_chunks(REGRESSOR(), query, **given) for query in (Batches(table.lazy()), table.lazy()))
        np.testing.assert_array_equal(found.predict(frame[["a", "b"]]), expected.predict(frame[["a", "b"]]))

    def test_of_an_iterator_know_the_number_of_rows_if_all_are_in_the_buffer(self, frame, short, chunks_of):
        fit_chunks(REGRESSOR(), iter(pieces(frame)), target="y")
        fit_chunks(REGRESSOR(), iter(pieces(frame)), target="y", buffer_size=200, chunk_size=100)
        fit_chunks(REGRESSOR(), iter(pieces(frame)), target="y", buffer_size=200, chunk_size=300, total_size=600)
        sizes = [(len(X), options["total_size"]) for X, _, options in chunks_of]
        assert sizes[:2] == [(60, 600), (540, 600)]
        unknown = [n_rows for n_rows, size in sizes[2:] if size is None]
        told = [n_rows for n_rows, size in sizes[2:] if size == 600]
        assert unknown[0] == told[0] == 60 and sum(unknown) == sum(told) == 600
        assert max(unknown[1:]) <= 150 and len(unknown) + len(told) == len(sizes) - 2

    @pytest.mark.parametrize("again", [True, False], ids=["list", "iterator"])
    def test_print_their_progress(self, frame, short, capsys, again):
        source = pieces(frame) if again else iter(pieces(frame))
        fit_chunks(REGRESSOR(verbose=1), source, target="y", chunk_size=200, buffer_size=300)
        lines = capsys.readouterr().out.split("\r")
        assert "chunk 1  rows 60" + ("/600" if again else "  ") in lines[1] and "rows/s" in lines[1]
        assert ("s to go" in lines[1]) == again
        assert lines[-1].startswith("DSDGPRegressor fitted to 600 rows in ") and lines[-1].endswith("\n")


#: A fit to a long file, in a process of its own: what its memory has grown by, in megabytes.
GROWTH = """
import resource, sys
from skdgp import DSDGPRegressor
from skdgp.streaming import fit_chunks

def fit(path):
    options = {"hidden_dims": (), "n_inducing": 10, "n_estimators": 1, "base": None, "batch_size": 10_000}
    model = fit_chunks(DSDGPRegressor(max_iter=1, random_state=0, **options), path, target="y")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = fit(sys.argv[1])
print((fit(sys.argv[2]) - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak of the memory has other units")
def test_memory_is_bounded(tmp_path):
    rng, n_features = np.random.default_rng(0), 8
    schema = pa.schema([(f"x{i}", pa.float64()) for i in range(n_features)] + [("y", pa.float64())])
    sizes = {"short": 150_000, "long": 1_800_000}
    for name, n_rows in sizes.items():
        with parquet.ParquetWriter(tmp_path / name, schema) as file:
            for _ in range(0, n_rows, 150_000):
                columns = rng.standard_normal((n_features, 150_000))
                file.write_table(pa.table([*columns, columns[0]], schema=schema))
        (tmp_path / name).rename(tmp_path / f"{name}.parquet")
    bytes_of_table = sizes["long"] * (n_features + 1) * 8
    paths = [str(tmp_path / f"{name}.parquet") for name in sizes]
    run = subprocess.run([sys.executable, "-c", GROWTH, *paths], cwd=ROOT, check=True, capture_output=True, text=True)
    assert int(run.stdout) < bytes_of_table / 2**20 / 3  # megabytes


class TestRefused:
    def test_estimators_of_others(self, frame):
        with pytest.raises(TypeError, match=r"fit_chunks fits estimators of skdgp, got Pipeline.*last step"):
            fit_chunks(make_pipeline(StandardScaler(), REGRESSOR()), pieces(frame), target="y")
        with pytest.raises(TypeError, match="fit_chunks fits estimators of skdgp, got LinearRegression"):
            fit_chunks(LinearRegression(), pieces(frame), target="y")

    @pytest.mark.parametrize("source", [3, None, {"y": [1]}, b"table", np.ones((3, 2)), pd.DataFrame({"y": [1.0]})])
    def test_sources_of_other_types(self, source):
        with pytest.raises(TypeError, match=f"cannot read rows from {type(source).__name__}: give the path"):
            fit_chunks(REGRESSOR(), source, target="y")

    def test_paths(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"There is no file or folder .*check the path"):
            fit_chunks(REGRESSOR(), tmp_path / "none.parquet", target="y")
        (tmp_path / "table.xlsx").touch()
        with pytest.raises(ValueError, match=r"does not know the format of .*table.xlsx.*: give a folder"):
            fit_chunks(REGRESSOR(), tmp_path / "table.xlsx", target="y")

    @pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
    def test_columns_that_are_missing(self, frame, tmp_path, make):
        source = make(frame, tmp_path)
        for options in ({"target": "z"}, {"target": "y", "features": ["z"]}, {"target": "y", "sample_weight": "z"}):
            with pytest.raises(ValueError, match=r"The source has no column 'z': its columns are \['a', 'b', "):
                fit_chunks(REGRESSOR(), source, **options)

    @pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
    def test_sources_without_rows(self, frame, tmp_path, make):
        with pytest.raises(ValueError, match="The source has no rows of positive weight: check its path"):
            fit_chunks(REGRESSOR(), make(frame.assign(weight=0.0), tmp_path), target="y", sample_weight="weight")

    def test_files_and_iterators_without_rows(self, frame, tmp_path):
        for source in (write(frame[:0], tmp_path / "a.parquet"), csv(frame[:0], tmp_path / "a.csv"), []):
            with pytest.raises(ValueError, match="The source has no rows of positive weight"):
                fit_chunks(REGRESSOR(), source, target="y")
        with pytest.raises(ValueError, match="The iterator has no rows of positive weight, or had been read before"):
            fit_chunks(REGRESSOR(), iter([]), target="y")

    @pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
    def test_missing_targets(self, frame, tmp_path, make):
        with pytest.raises(ValueError, match="The target of row 77 is missing or infinite: leave out such rows"):
            fit_chunks(REGRESSOR(), make(frame.assign(y=frame.y.where(frame.index != 77)), tmp_path), target="y")
        labels = pd.Series(np.where(frame.y > 0, "up", "down")).where(frame.index != 77)
        with pytest.raises(ValueError, match="The target of row 77 is missing"):
            fit_chunks(CLASSIFIERS[0](), pieces(frame.assign(y=labels)), target="y")
        with pytest.raises(ValueError, match="The target of row 77 is missing"):
            fit_chunks(REGRESSOR(), iter(pieces(frame.assign(y=frame.y.where(frame.index != 77)))), target="y")

    @pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
    def test_weights(self, frame, wrong):
        table = frame.assign(weight=frame.weight.where(frame.index != 9, wrong))
        with pytest.raises(ValueError, match=r"The weight of row 9 is .*: weights must be finite and not negative"):
            fit_chunks(REGRESSOR(), [table], target="y", sample_weight="weight")

    def test_chunks_that_differ(self, frame, wave, tmp_path):
        first, second = frame[:300], frame[300:]
        with pytest.raises(ValueError, match=r"A later chunk lacks the columns \['b'\]: let all chunks have"):
            fit_chunks(REGRESSOR(), [first, second.drop(columns="b")], target="y")
        with pytest.raises(ValueError, match=r"A later chunk also has the columns \['c'\]"):
            fit_chunks(REGRESSOR(), [first, second.assign(c=1.0)], target="y")
        X, y = wave
        with pytest.raises(ValueError, match="The features of a later chunk differ"):
            fit_chunks(REGRESSOR(), [(X, y), (X[:, :2], y)])
        with pytest.raises(ValueError, match="A later chunk has weights, and the first one has none: let all chunks"):
            fit_chunks(REGRESSOR(), [(X, y), (X, y, np.ones(len(y)))])
        with pytest.raises(ValueError, match="A later chunk has no weights, and the first one has some: let all"):
            fit_chunks(REGRESSOR(), [(X, y, np.ones(len(y))), (X, y, None)])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            fit_chunks(REGRESSOR(), [(X, y[1:])])
        (tmp_path / "tables").mkdir()
        write(first, tmp_path / "tables" / "0.parquet")
        write(second.drop(columns="b"), tmp_path / "tables" / "1.parquet")
        with pytest.raises(ValueError, match=r"A later chunk lacks the columns \['b'\]"):
            fit_chunks(REGRESSOR(), tmp_path / "tables", target="y")

    def test_labels_of_several_types(self, frame):
        first, second = frame[:300].assign(y=frame.y[:300].round()), frame[300:].assign(y="high")
        with pytest.raises(ValueError, match="y holds labels of several types, float and str, which cannot be sorted"):
            fit_chunks(CLASSIFIERS[0](), [first, second], target="y")

    def test_columns_of_polars_may_differ_in_their_types(self, frame):
        """A column without fractions in one chunk may have some in another one, or nothing at all."""
        frame = frame[["a", "b", "y"]].assign(whole=1)
        types = frame[:300].assign(y=frame.y[:300].round().astype(int)), frame[300:].assign(whole=1.5)
        first, second = map(pl.from_pandas, types)
        tables = [first.with_columns(empty=pl.lit(None)), second.with_columns(empty=pl.lit(0.5))]
        model = SOLVEGPRegressor(20, 0, n_estimators=1, max_iter=1, random_state=0)
        found, X = fit_chunks(model, tables, target="y"), tables[1].drop("y").to_pandas()
        types = [part.assign(empty=empty) for part, empty in zip(types, (np.nan, 0.5), strict=True)]
        expected = fit_chunks(model, types, target="y")
        np.testing.assert_array_equal(found.predict(X), expected.predict(X))
        with pytest.raises(pl.exceptions.SchemaError, match="String"):
            fit_chunks(model, [tables[0], tables[1].with_columns(whole=pl.lit("1"))], target="y")

    def test_chunks_of_other_types(self, frame, wave):
        for chunks in (wave[0], ["a"]):
            with pytest.raises(TypeError, match=r"A chunk must be a data frame, or a tuple \(X, y\)"):
                fit_chunks(REGRESSOR(), list(chunks), target="y")
        with pytest.raises(ValueError, match=r"A chunk that is a tuple must be \(X, y\) .*got 1 parts"):
            fit_chunks(REGRESSOR(), [(wave[0],)])
        with pytest.raises(ValueError, match="target=None goes with chunks that are tuples"):
            fit_chunks(REGRESSOR(), [frame])
        with pytest.raises(ValueError, match="target='y' is the name of a column, but chunks are tuples"):
            fit_chunks(REGRESSOR(), [wave], target="y")

    def test_sources_that_change(self, frame):
        chunks = iter([[frame], [frame[:500]], []])
        with pytest.raises(ValueError, match="The source had 600 rows in a first pass, and has 500 in a later one"):
            fit_chunks(REGRESSOR(), lambda: next(chunks), target="y")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_passes": 0}, "n_passes=0 must be an integer of at least 1"),
            ({"chunk_size": 1.5}, "chunk_size=1.5 must be an integer of at least 1"),
            ({"buffer_size": -1}, "buffer_size=-1 must be an integer of at least 1"),
            ({"features": ["a", "y"]}, "features contains 'y', which is a target or the weight: leave it out"),
            ({"total_size": 9}, "total_size=9 goes with an iterator: leave it out"),
            ({"target": None, "sample_weight": "weight"}, "sample_weight and features are names of columns"),
            ({"features": []}, r"features=\[\] names no column: name some, or leave it out"),
        ],
    )
    def test_choices(self, frame, options, message):
        with pytest.raises(ValueError, match=message):
            fit_chunks(REGRESSOR(), [frame], **{"target": "y"} | options)

    def test_what_an_iterator_cannot_do(self, frame):
        with pytest.raises(ValueError, match="n_passes=2 needs a source that can be read again"):
            fit_chunks(REGRESSOR(), iter([frame]), target="y", n_passes=2)
        with pytest.raises(ValueError, match="The labels of an iterator are not known before it ends: give classes="):
            fit_chunks(CLASSIFIERS[0](), iter([frame]), target="kind")

    @pytest.mark.parametrize(
        ("name", "package"), [("a.parquet", "pyarrow.dataset"), ("a.parquet", "pandas"), ("a.csv", "pandas")]
    )
    def test_without_a_package(self, frame, tmp_path, monkeypatch, name, package):
        (write if name == "a.parquet" else csv)(frame, tmp_path / name)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=f"fit_chunks needs {package.split('.')[0]}, which cannot be imported"):
            fit_chunks(REGRESSOR(), tmp_path / name, target="y")
