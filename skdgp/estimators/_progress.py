"""One updating line of text for ``verbose=1``: of a fit, or of chunks of rows."""

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import fmean

from ..inference.settings import History


class Line:
    """One line of standard output, which is overwritten again and again; or nothing, if it is ``silent``."""

    def __init__(self, *, silent: bool) -> None:
        self._width, self._silent = 0, silent

    def write(self, text: str, *, last: bool = False) -> None:
        """Replace the text of the line. After the ``last`` one, others begin a new line."""
        if self._silent:
            return
        sys.stdout.write("\r" + text.ljust(self._width) + ("\n" if last else ""))
        sys.stdout.flush()
        self._width = len(text)


class RowsLine:
    """Prints how many rows of a long table a model has learnt from.

    Parameters
    ----------
    name : str
        Name of what is trained.
    n_rows : int or None
        Number of rows that come in all, if it is known.
    silent : bool
        Whether to print nothing.
    """

    def __init__(self, name: str, n_rows: int | None, *, silent: bool):
        self.name, self.n_rows = name, n_rows
        self.n_chunks = self.done = 0
        self.start = time.monotonic()
        self._line = Line(silent=silent)

    @property
    def _speed(self) -> float:
        """Rows per second."""
        return self.done / max(time.monotonic() - self.start, 1e-9)

    def chunk(self, n_rows: int, loss: float) -> None:
        """Show one more chunk, from which the model has learnt."""
        self.n_chunks, self.done = self.n_chunks + 1, self.done + n_rows
        of_all, to_go = "", ""
        if self.n_rows is not None:
            of_all = f"/{self.n_rows}"
            to_go = f", {(self.n_rows - self.done) / self._speed:.0f} s to go"
        self._line.write(
            f"{self.name}  chunk {self.n_chunks}  rows {self.done}{of_all}  loss {loss:.3f}"
            f"  {self._speed:.0f} rows/s  {time.monotonic() - self.start:.0f} s{to_go}"
        )

    def close(self) -> None:
        """Replace the line by the time that all chunks took."""
        seconds = time.monotonic() - self.start
        text = f"{self.name} fitted to {self.done} rows in {seconds:.1f} s: {self._speed:.0f} rows/s"
        self._line.write(text, last=True)


class ProgressLine:
    """Prints the progress of training on one line of standard output.

    Parameters
    ----------
    name : str
        Name of what is trained.
    n_epochs : int
        Largest number of epochs.
    silent : bool
        Whether to print nothing.
    """

    def __init__(self, name: str, n_epochs: int, *, silent: bool):
        self.name, self.n_epochs = name, n_epochs
        self.done = 0
        self.start = time.monotonic()
        self._last, self._line = -1.0, Line(silent=silent)

    def epoch(self, histories: Sequence[History]) -> None:
        """Show the last epoch, as the mean over the members that took part, at most ten times a second."""
        self.done += 1
        elapsed = time.monotonic() - self.start
        if elapsed - self._last < 0.1 and self.done < self.n_epochs:
            return
        self._last = elapsed
        fraction = self.done / self.n_epochs
        last = max(len(history.loss) for history in histories)
        learning = [history for history in histories if len(history.loss) == last]
        score = ""
        if learning[0].score:
            score = f"  held-out log density {fmean(history.score[-1] for history in learning):.3f}"
        members = f"  {len(learning)} of {len(histories)} members" if len(histories) > 1 else ""
        self._line.write(
            f"{self.name}{members}  epoch {self.done}/{self.n_epochs}"
            f"  loss {fmean(history.loss[-1] for history in learning):.3f}{score}"
            f"  {elapsed:.0f} s, {elapsed * (1 - fraction) / fraction:.0f} s to go at most"
        )

    def close(self, seconds: Mapping[str, float], n_outliers: int) -> None:
        """Replace the line by the time that the fit took, with its longer parts, and by the number of outliers."""
        parts = ", ".join(f"{part} {taken:.1f} s" for part, taken in seconds.items() if taken >= 0.05)
        text = f"{self.name} fitted in {time.monotonic() - self.start:.1f} s" + (f": {parts}" if parts else "")
        if n_outliers:
            text += f"; targets of {n_outliers} rows are far out (outliers_), and nothing learnt from them"
        self._line.write(text, last=True)
