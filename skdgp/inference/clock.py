"""The time that a fit takes, and the time that it may take."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Share of the time after which training ends: held-out rows decide in the rest.
TRAINED = 0.75


class Clock:
    """Starts with a fit, knows how long its parts took, and how much time is left.

    Parameters
    ----------
    max_time : float, default=no limit
        Seconds that the fit may take.

    Attributes
    ----------
    seconds : dict
        Seconds by part.
    left_out : list of str
        Parts for which there was no time.
    """

    def __init__(self, max_time: float | None = None):
        self.start, self.max_time = time.monotonic(), math.inf if max_time is None else max_time
        self.seconds: dict[str, float] = {}
        self.left_out: list[str] = []

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the time of what is inside to that of a part."""
        before = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - before

    def share(self, n_parts: int) -> "Clock":
        """A clock for the first of some parts, which have the time that is left together. It adds to these records."""
        clock = Clock(self.left / n_parts)
        clock.seconds, clock.left_out = self.seconds, self.left_out
        return clock

    @property
    def end_of_training(self) -> float:
        """When training has to end, on the monotonic clock; infinite if nothing limits it."""
        return self.start + TRAINED * self.max_time

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds until the fit should end."""
        return self.max_time - self.total
