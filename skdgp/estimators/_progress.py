"""One updating line of text for ``verbose=1``."""

import sys
import time

from ..inference.settings import History


class ProgressLine:
    """Prints how far training is, on one line of standard output that is written over and over.

    Parameters
    ----------
    name : str
        What is trained.
    n_members, max_iter : int
        Members of the ensemble, and epochs of each at most.
    silent : bool, default=False
        Whether to print nothing.
    """

    def __init__(self, name: str, n_members: int, max_iter: int, *, silent: bool = False):
        self.name, self.n_members, self.max_iter, self.silent = name, n_members, max_iter, silent
        self.member = 0
        self.start = time.monotonic()
        self._last, self._width = -1.0, 0

    def epoch(self, history: History) -> None:
        """Show the last epoch of the current member, at most ten times a second."""
        if self.silent:
            return
        elapsed = time.monotonic() - self.start
        done = len(history.loss)
        if elapsed - self._last < 0.1 and done < self.max_iter:
            return
        self._last = elapsed
        share = (self.member + done / self.max_iter) / self.n_members
        score = f"  held-out log density {history.score[-1]:.3f}" if history.score else ""
        member = f"  member {self.member + 1}/{self.n_members}" if self.n_members > 1 else ""
        self._write(
            f"{self.name}{member}  epoch {done}/{self.max_iter}  loss {history.loss[-1]:.3f}{score}"
            f"  {elapsed:.0f} s, {elapsed * (1 - share) / share:.0f} s to go at most"
        )

    def next_member(self) -> None:
        """Go on to the next member of the ensemble."""
        self.member += 1

    def close(self) -> None:
        """Leave the line as it is, with the time it took."""
        if self.silent:
            return
        self._write(f"{self.name} fitted in {time.monotonic() - self.start:.1f} s")
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        sys.stdout.write("\r" + text.ljust(self._width))
        sys.stdout.flush()
        self._width = len(text)
