"""Epochs that fail are undone, and repeated at half the learning rate."""

from collections.abc import Callable
from typing import TypeVar

from .steps import Failure, Stepper

T = TypeVar("T")

#: How often training of a member may go back to its last good epoch.
MAX_RETRIES = 10


def repeated(stepper: Stepper, epoch: Callable[[], T]) -> T:
    """The result of an epoch, which is repeated until it does not fail.

    The members that made it fail learn at half the rate from then on. The others take the same steps once more.

    Raises
    ------
    numpy.linalg.LinAlgError, FloatingPointError
        If one of these members has failed more than ``MAX_RETRIES`` times.
    KeyboardInterrupt
        If the user interrupts. The members are then as they were before the epoch.
    """
    before = stepper.state()
    while True:
        try:
            return epoch()
        except Failure as failure:
            stepper.restore(before, failure.members)
            if any(stepper.halvings[number] == MAX_RETRIES for number in failure.members):
                raise failure.error from None
            stepper.slow_down(failure.members)
        except BaseException:
            stepper.restore(before)
            raise
