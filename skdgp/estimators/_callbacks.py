"""Support for scikit-learn's callbacks, which exist since its version 1.9."""

from collections.abc import Callable

from .._sklearn import is_watched


class FitTasks:
    """Tells callbacks when the tasks of a fit begin and end: the fit itself, and its epochs.

    The members of an ensemble share their epochs. A callback whose ``on_fit_task_end`` returns True at the end of an
    epoch ends the training.

    Parameters
    ----------
    estimator : CallbackSupportMixin
        The estimator that is being fitted.
    n_epochs : int
        Largest number of epochs.
    data : dict
        What callbacks may ask for: ``X``, ``y`` and ``metadata``.
    attributes : callable
        Returns the attributes that a fitted copy of the estimator would have now, or None if there is none yet.
    """

    def __init__(self, estimator, n_epochs: int, data: dict, attributes: Callable[[], dict | None]):
        self._estimator, self._data, self._attributes = estimator, data, attributes
        self._tasks: list = []
        self._epochs_left = n_epochs
        if is_watched(estimator):
            self._begin(estimator._init_callback_context(max_subtasks=n_epochs))
            self._begin(self._tasks[-1].subcontext("epoch"))

    def end_epoch(self) -> bool:
        """End an epoch, and begin the next one. Return whether a callback wants the training to end."""
        if not self._tasks:
            return False
        stop = self._end()
        self._epochs_left -= 1
        if not stop and self._epochs_left:
            self._begin(self._tasks[-1].subcontext("epoch"))
        return stop

    def close(self) -> None:
        """End all tasks, since the fit ends."""
        while self._tasks:
            self._end()

    def _begin(self, task) -> None:
        self._tasks.append(task)
        task.call_on_fit_task_begin(estimator=self._estimator, **self._data, reconstruction_attributes=self._attributes)

    def _end(self) -> bool:
        return self._tasks.pop().call_on_fit_task_end(
            estimator=self._estimator, **self._data, reconstruction_attributes=self._attributes
        )
