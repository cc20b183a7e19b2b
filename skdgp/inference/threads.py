"""Chooses the number of threads for a computation, and restores the old number afterwards.

Threads that share an operation wait for each other at its end. If each thread has a core of its own, this takes
microseconds. If another process uses one of the cores, the wait lasts until that process's turn ends. That takes
milliseconds, for an operation of microseconds. So small work has one thread. Large work has more, but never more than
torch had when the call began. joblib, ``OMP_NUM_THREADS`` or ``torch.set_num_threads`` may have lowered that number.

torch's own function sets the number of torch's threads, since threadpoolctl does not reach the copy of MKL inside
torch: once ``torch.set_num_threads`` has been called, or if ``MKL_NUM_THREADS`` is set, products of matrices would keep
all threads. threadpoolctl sets the number for the libraries of NumPy, SciPy and scikit-learn. They have one thread,
because clustering, L-BFGS and moments of predictions are small work.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import torch
from threadpoolctl import ThreadpoolController

#: Number of multiplications in a model's largest operation for each thread: there are two threads from 16 million on.
#: The table has milliseconds with one thread and with two, on two idle cores, for one model with 32 samples (medians of
#: five pairs of turns; torch 2.13). A stack of models has the multiplications of all its members.
#:
#: ============================================ ========= ======= ======= ====== =======
#: step                                         million   one     two     ratio  threads
#: ============================================ ========= ======= ======= ====== =======
#: AVDGP, 16 rows                                     0.7     6.6     7.8   1.13       1
#: AVDGP, 50 rows                                     2.0     7.8     8.8   1.10       1
#: AVDGP, 200 rows                                    8.2    15.1    12.2   0.90       1
#: AVDGP, 500 rows                                   20.5    28.2    20.8   0.71       2
#: AVDGP, 1000 rows                                  41.0    45.4    31.5   0.69       5
#: DSDGP, 128 inducing points, 100 rows               1.6    10.1    10.8   1.06       1
#: DSDGP, 128 inducing points, 500 rows               8.2    19.7    18.3   0.93       1
#: DSDGP, 128 inducing points, 1000 rows             16.4    23.4    20.1   0.80       2
#: DSDGP, 256 inducing points, 16 rows                5.6    25.6    25.7   1.01       1
#: DSDGP, 256 inducing points, 100 rows               6.6    26.3    20.2   0.88       1
#: DSDGP, 256 inducing points, 500 rows              32.8    34.5    24.9   0.79       4
#: DSDGP, quadrature, 128 points, 50 rows            26.2    25.2    20.4   0.86       3
#: DSDGP, quadrature, 128 points, 250 rows            131    74.0    47.9   0.65      16
#: SOLVEGP, 64 + 64 points, 250 rows                  4.1     4.6     4.3   1.00       1
#: SOLVEGP, 128 + 128 points, 250 rows               16.4     8.7     7.3   0.86       2
#: SOLVEGP, 256 + 256 points, 1024 rows               268    49.3    30.7   0.63      33
#: SOLVEGP, 512 + 512 points, 1024 rows              1074     200     118   0.59     134
#: collapsed, 50 + 50 points, 200 rows                2.0      54     120   2.04       1
#: collapsed, 256 + 256 points, 1000 rows             262     791     568   0.73      32
#: prediction, AVDGP, 100 rows                        4.1     4.8     4.6   1.05       1
#: prediction, AVDGP, 100 000 rows                   16.8    2225    1748   0.78       2
#: prediction, DSDGP, 10 000 rows                     537    1934    1226   0.66      67
#: prediction, SOLVEGP, 10 000 rows                  1074     198     132   0.68     134
#: ============================================ ========= ======= ======= ====== =======
PER_THREAD = 8_000_000


class _Here(threading.local):
    """State of the calls in progress in this thread."""

    allowed: int = 0  # threads that torch had when the outermost of them began; 0 outside of calls


class _Blas:
    """One thread for libraries of linear algebra, whose number of threads holds for the whole process.

    The first of several overlapping calls sets it to one, and the last one restores it.
    """

    def __init__(self) -> None:
        self._lock, self._n_calls = threading.Lock(), 0

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        with self._lock:
            if not self._n_calls:
                self._limit = _libraries().limit(limits=1, user_api="blas")
            self._n_calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_calls -= 1
                if not self._n_calls:
                    self._limit.restore_original_limits()


_here, _blas, _entrance = _Here(), _Blas(), threading.Lock()


@cache
def _libraries() -> ThreadpoolController:
    """All libraries that have threads. Finding them takes milliseconds, and so the result is cached."""
    return ThreadpoolController()


def worth(products: float) -> int:
    """Number of threads for a computation, given the multiplications of its largest operation."""
    return max(1, int(products / PER_THREAD))


@contextmanager
def threads_for(products: float = 0) -> Iterator[None]:
    """Compute with the number of threads that suits the work, and restore the old number, also after an error.

    A call inside another one chooses for its own work, within the number that the outer one has found. Calls in several
    threads of a program do not disturb each other. It can also decorate functions.

    Parameters
    ----------
    products : float, default=0
        Multiplications of the largest operation; see :meth:`.DeepGP.products`. Zero is small work.
    """
    outermost = not _here.allowed
    with ExitStack() as stack:
        with _entrance:
            before = torch.get_num_threads()
            if outermost:
                _here.allowed = before
                stack.callback(setattr, _here, "allowed", 0)
                stack.enter_context(_blas.one_thread())
                stack.enter_context(_libraries().limit(limits=1, user_api="openmp"))  # torch's, too
            number = min(_here.allowed, worth(products))
            if outermost or number != before:
                stack.callback(_set, before)
                _set(number)
        yield


def _set(number: int) -> None:
    """Give torch this number of threads for calls of this thread of the program, and for no other.

    A thread that calls torch for the first time gets the number that any thread has set last, and keeps it. So another
    thread sets it back to what it was.
    """
    torch.set_num_threads(number)
    if number != _here.allowed:
        setting_back = threading.Thread(target=torch.set_num_threads, args=(_here.allowed,))
        setting_back.start()
        setting_back.join()
