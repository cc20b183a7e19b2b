"""What "auto" stands for, by the number of rows."""

from typing import NamedTuple

import numpy as np


class Auto(NamedTuple):
    """Sizes of an ensemble and of its training that suit a method.

    Members: as many as see ``member_rows`` together, since small sets gain most from averaging and cost
    least. Minibatches: a share of the rows within bounds, and ``large_batch`` from ``large_rows`` on, as
    larger ones are faster per row. Epochs: small sets need more of them for the same number of steps.
    """

    steps: tuple[int, int]  # below and from ``large_rows``
    epochs: tuple[int, int]
    member_rows: int
    max_members: int
    batch_sizes: tuple[int, int]
    large_batch: int
    large_rows: int = 4000

    def n_estimators(self, n_rows: int) -> int:
        """Members of the ensemble."""
        return int(np.clip(self.member_rows // n_rows, 1, self.max_members))

    def batch_size(self, n_rows: int) -> int:
        """Rows of a minibatch."""
        return self.large_batch if n_rows >= self.large_rows else int(np.clip(n_rows // 4, *self.batch_sizes))

    def max_iter(self, n_rows: int, batch_size: int) -> int:
        """Passes over the data."""
        steps = self.steps[n_rows >= self.large_rows]
        return int(np.clip(steps * batch_size / n_rows, *self.epochs))
