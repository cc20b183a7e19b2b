"""scikit-learn's callbacks, where there are any: they came with its version 1.9."""

from collections.abc import Callable


class FitTasks:
    """Tells callbacks which task of a fit begins and ends: the fit, its members, their epochs.

    The tree of tasks is fit > member > epoch, or fit > epoch for a single member. A callback whose
    ``on_fit_task_end`` returns True at the end of an epoch ends the training of its member, at the end of a member
    that of the ensemble.

    Parameters
    ----------
    estimator : CallbackSupportMixin
        Which is being fitted.
    n_members, max_iter : int
        Members, and epochs of each at most.
    data : dict
        What hooks may ask for: ``X``, ``y`` and ``metadata``.
    attributes : callable
        Returns the attributes that a fitted copy of the estimator would have now, or None if there is none yet.
    """

    def __init__(self, estimator, n_members: int, max_iter: int, data: dict, attributes: Callable[[], dict | None]):
        self._estimator, self._max_iter, self._data, self._attributes = estimator, max_iter, data, attributes
        self._nested = n_members > 1
        self._tasks: list = []
        if getattr(estimator, "_skl_callbacks", None) or hasattr(estimator, "_parent_callback_ctx"):
            root = estimator._init_callback_context(max_subtasks=n_members if self._nested else max_iter)
            self._begin(root)

    def begin_member(self) -> None:
        """A member begins, and its first epoch."""
        if self._tasks:
            if self._nested:
                self._begin(self._tasks[-1].subcontext("member", max_subtasks=self._max_iter))
            self._begin(self._tasks[-1].subcontext("epoch"))
            self._epoch = 1

    def end_epoch(self) -> bool:
        """An epoch ends, and the next one begins; whether a callback wants no more of them."""
        if not self._tasks:
            return False
        stop = self._end()
        self._epoch += 1
        if not stop and self._epoch <= self._max_iter:
            self._begin(self._tasks[-1].subcontext("epoch"))
        return stop

    def end_member(self) -> bool:
        """A member ends; whether a callback wants no more of them."""
        if not self._tasks:
            return False
        while len(self._tasks) > (2 if self._nested else 1):
            self._end()  # an epoch that early stopping left over
        return self._end() if self._nested else False

    def close(self) -> None:
        """The fit ends."""
        while self._tasks:
            self._end()

    def _begin(self, task) -> None:
        self._tasks.append(task)
        task.call_on_fit_task_begin(estimator=self._estimator, **self._data, reconstruction_attributes=self._attributes)

    def _end(self) -> bool:
        return self._tasks.pop().call_on_fit_task_end(
            estimator=self._estimator, **self._data, reconstruction_attributes=self._attributes
        )
