"""Where rows come from: files, datasets of Arrow, queries of Polars, and chunks.

A source yields frames, or tuples of arrays. It may say the names of its columns before it is read, and then reads only
the columns that are wanted.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

#: Most rows of a frame that a source reads at once.
READ_ROWS = 8192

#: Bytes that a reader of a Parquet file holds of each column, beside the page that it decodes.
BUFFER_BYTES = 2**16

#: Number of readers that read different parts of a long table in turns.
READERS = 10

#: The same where each reader holds a whole group of rows, as those of Polars and of Arrow's datasets do.
HEAVY_READERS = 4

#: A reader of a Parquet file holds about 3 MB of each column. All readers together hold so many columns, or three
#: times the columns of the table if that is more.
COLUMNS_IN_MEMORY = 80

#: How names of Parquet and CSV files end. The latter may be compressed.
PARQUET, CSV = (".parquet", ".pq"), (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst")


class Source(ABC):
    """Rows in an order of their own, which is the same each time."""

    #: Names of the columns; None if only chunks say it.
    names: Sequence | None = None

    #: How many readers may be open at once.
    n_readers = READERS

    @abstractmethod
    def read(self, columns: list | None, start: int = 0) -> Iterator[Any]:
        """Yield the rows from a number on, with these columns at least. None stands for all columns."""


class ParquetFiles(Source):
    """Parquet files: a reader goes straight to the group of rows in which it begins.

    Values of partitions, which only paths have, become columns.
    """

    def __init__(self, dataset):
        dataset_module = _imported("pyarrow.dataset", "Parquet files")
        self._parquet = _imported("pyarrow.parquet", "Parquet files")
        _imported("pandas", "Parquet files")
        self.names = _names(dataset.schema)
        keys = getattr(dataset_module, "get_partition_keys", None) or dataset_module._get_partition_keys
        self.n_readers = min(READERS, max(3, COLUMNS_IN_MEMORY // len(self.names)))
        self._fragments = [(fragment, keys(fragment.partition_expression)) for fragment in dataset.get_fragments()]

    def read(self, columns, start=0):
        """See :class:`Source`."""
        for fragment, of_path in self._fragments:
            of_file = [name for name in columns if name not in of_path]
            with fragment.open() as stream:
                file = self._parquet.ParquetFile(stream, pre_buffer=False, buffer_size=BUFFER_BYTES)
                for group in fragment.row_groups:
                    if start >= group.num_rows:
                        start -= group.num_rows
                        continue
                    batches = file.iter_batches(READ_ROWS, [group.id], of_file, use_threads=False)
                    for frame in _after(start, map(_frame, batches)):
                        for name in of_path.keys() & set(columns):
                            frame[name] = of_path[name]
                        yield frame
                    start = 0


class Dataset(Source):
    """Any dataset of Arrow."""

    n_readers = HEAVY_READERS

    def __init__(self, dataset):
        _imported("pandas", "datasets of Arrow")
        self._dataset, self.names = dataset, _names(dataset.schema)

    def read(self, columns, start=0):
        """See :class:`Source`."""
        options = {"batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
        batches = self._dataset.to_batches(columns=columns, batch_size=READ_ROWS, **options)
        yield from _after(start, map(_frame, batches))


class Query(Source):
    """A query of Polars, or what has the same ``collect_batches``."""

    n_readers = HEAVY_READERS

    def __init__(self, query):
        self._query = query
        if hasattr(query, "collect_schema"):
            self.names = query.collect_schema().names()

    def read(self, columns, start=0):
        """See :class:`Source`."""
        query = self._query if columns is None else self._query.select(columns)
        if hasattr(query, "slice"):
            yield from query.slice(start).collect_batches(chunk_size=READ_ROWS, maintain_order=True)
        else:
            yield from _after(start, query.collect_batches())


class CsvFile(Source):
    """A CSV file. A column with text in any part of the file is text in all parts."""

    def __init__(self, path: str):
        self._pandas = _imported("pandas", "CSV files")
        self._path = path
        self.names = list(self._pandas.read_csv(path, nrows=0).columns)
        self._types: dict[str, str] | None = None

    def read(self, columns, start=0):
        """See :class:`Source`."""
        if self._types is None:
            self._types = self._text()
        yield from _after(start, self._frames(columns, self._types))

    def _frames(self, columns, types):
        with self._pandas.read_csv(self._path, chunksize=READ_ROWS, usecols=columns, dtype=types) as frames:
            yield from frames

    def _text(self) -> dict[str, str]:
        """Types of the columns of text, which a pass over the file finds."""
        is_numeric, text = self._pandas.api.types.is_numeric_dtype, set()
        for frame in self._frames(None, None):
            text |= {name for name in frame.columns if not is_numeric(frame[name].dtype)}
        return dict.fromkeys(text, "str")


class Chunks(Source):
    """Chunks that an iterable yields, or that a function yields anew in each call."""

    n_readers = 1  # iterators of one object may share its state

    def __init__(self, chunks):
        self._chunks = chunks

    def read(self, columns, start=0):
        """See :class:`Source`."""
        yield from self._chunks() if callable(self._chunks) else self._chunks


def source_of(given) -> Source | Iterator:
    """The source of what the user gives, or the iterator itself, which can be read only once."""
    if isinstance(given, str | PathLike):
        return _of_path(fspath(given))
    if type(given).__module__.startswith("pyarrow.") and hasattr(given, "get_fragments"):
        return _of_dataset(given)
    if hasattr(given, "collect_batches"):
        return Query(given)
    if isinstance(given, Iterator):
        return given
    is_table = hasattr(given, "columns") or hasattr(given, "column_names") or hasattr(given, "__array__")
    if not is_table and (callable(given) or hasattr(given, "__iter__")) and not isinstance(given, bytes | dict):
        return Chunks(given)
    raise TypeError(
        f"fit_chunks cannot read rows from {type(given).__name__}: give the path of a file, a pyarrow Dataset, a "
        "Polars LazyFrame, an iterable of chunks, or a function that returns one. For a table in memory call fit."
    )


def _of_path(path: str) -> Source:
    remote = "://" in path
    if not remote and not Path(path).exists():
        raise FileNotFoundError(f"There is no file or folder {path!r}: check the path.")
    if path.lower().endswith(CSV):
        return CsvFile(path)
    if path.lower().endswith(PARQUET) or (not remote and Path(path).is_dir()):
        return _of_dataset(_imported("pyarrow.dataset", "Parquet files").dataset(path, partitioning="hive"))
    raise ValueError(
        f"fit_chunks does not know the format of {path!r}: give a folder of Parquet files, a file whose name ends in "
        f"{', '.join(PARQUET + CSV)}, or a function that returns an iterator of frames."
    )


def _of_dataset(dataset) -> Source:
    """Fragments of a dataset, or the dataset if it has a filter."""
    try:
        fragments = list(dataset.get_fragments())
    except ValueError:  # it has a filter
        return Dataset(dataset)
    whole = all(type(fragment).__name__ == "ParquetFileFragment" for fragment in fragments)
    return ParquetFiles(dataset) if whole and hasattr(dataset, "files") else Dataset(dataset)


def _imported(module: str, reader_of: str):
    """A module of an optional package. Without it, the ImportError says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"To read {reader_of}, fit_chunks needs {package}, which cannot be imported: install it with "
            f"pip install {package}."
        ) from error


def _names(schema) -> list[str]:
    """Names of the columns of Arrow's schema, without the index of pandas."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in schema.names if name not in index]


def _frame(batch):
    """A batch of Arrow as a frame of pandas."""
    return batch.to_pandas(ignore_metadata=True)


def _after(start: int, frames: Iterator) -> Iterator:
    """Frames without the first rows."""
    for frame in frames:
        if start < len(frame):
            yield (frame.iloc[start:] if hasattr(frame, "iloc") else frame[start:]) if start else frame
        start = max(0, start - len(frame))
