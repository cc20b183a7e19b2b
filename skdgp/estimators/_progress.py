"""One updating line of text for ``verbose=1``."""

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import fmean

from ..inference.settings import History


class ProgressLine:
    """Prints the progress of training on one line of standard output, which it overwrites again and again.

    Parameters
    ----------
    name : str
        Name of what is trained.
    n_epochs : int
        Largest number of epochs.
    silent : bool, default=False
        Whether to print nothing.
    """

    def __init__(self, name: str, n_epochs: int, *, silent: bool = False):
        self.name, self.n_epochs, self.silent = name, n_epochs, silent
        self.done = 0
        self.start = time.monotonic()
        self._last, self._width = -1.0, 0

    def epoch(self, histories: Sequence[History]) -> None:
        """Show the last epoch, as the mean over the members that took part, at most ten times a second."""
        self.done += 1
        if self.silent:
            return
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
        self._write(
            f"{self.name}{members}  epoch {self.done}/{self.n_epochs}"
            f"  loss {fmean(history.loss[-1] for history in learning):.3f}{score}"
            f"  {elapsed:.0f} s, {elapsed * (1 - fraction) / fraction:.0f} s to go at most"
        )

    def close(self, seconds: Mapping[str, float]) -> None:
        """Replace the line by the time that the fit took, and its longer parts."""
        if self.silent:
            return
        parts = ", ".join(f"{part} {taken:.1f} s" for part, taken in seconds.items() if taken >= 0.05)
        self._write(f"{self.name} fitted in {time.monotonic() - self.start:.1f} s" + (f": {parts}" if parts else ""))
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        sys.stdout.write("\r" + text.ljust(self._width))
        sys.stdout.flush()
        self._width = len(text)
