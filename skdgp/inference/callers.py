"""Which line of a program a warning names."""

import sys

#: Packages whose lines say nothing to users: this one, and those that lie between it and their lines.
INSIDE = {"skdgp", "sklearn", "torch", "contextlib"}


def users_level() -> int:
    """The ``stacklevel`` with which a warning of the caller names the user's line.

    That is the innermost line outside ``INSIDE``. A fixed number would have to change with each function or decorator
    in between.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INSIDE:
        frame, level = frame.f_back, level + 1
    return level
