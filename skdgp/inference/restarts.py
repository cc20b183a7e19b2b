"""Where kernels with bounds start: at the values that make some rows most likely, the best of one or several searches.

The density of the targets bends far more along a short period than along a variance. So the first steps of L-BFGS are
tiny, whether inducing points are learnt or not, and a loose tolerance ends the search where it began. The exact
evidence of some hundred rows is cheap enough for a tight one.
"""

from copy import deepcopy

import numpy as np
import torch
from torch import nn

from ..gp.composed import Positive
from ..gp.kernels import Kernel
from ..gp.likelihoods import Gaussian
from .batches import Batch
from .evidence import most_likely

#: Number of rows for the evidence, which takes their cube in time.
ROWS = 500

#: Largest number of iterations of each search, for those that would gain a little forever.
ITERATIONS = 500

#: Share of the logarithm per row that the last iteration gains. A sum of a trend and two periods ended 1.1 nats below
#: its optimum with 2e-9, and 0.02 nats with this number.
TOLERANCE = 1e-10


def start_from_evidence(
    kernel: Kernel, likelihood: Gaussian, rows: Batch, n_restarts: int, generator: torch.Generator
) -> None:
    """Give a kernel with bounds and a noise the values that are most probable given some rows.

    Parameters
    ----------
    kernel, likelihood, rows
        See :func:`.most_likely`. The rows are in random order.
    n_restarts : int
        Number of further searches. They start at values drawn between the bounds, on a logarithmic scale, and at the
        same noise as the first.
    generator : torch.Generator
        Source of these values.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the evidence cannot be computed at any of the starts.
    """
    sample = rows.rows(slice(-ROWS, None)).to("cpu", torch.float64)
    searches = list[tuple[float, Kernel, Gaussian]]()
    for turn in range(n_restarts + 1):
        pair = deepcopy(kernel).double(), deepcopy(likelihood).double()
        if turn:
            _scatter(pair[0], generator)
        try:
            searches.append((most_likely(*pair, sample, ITERATIONS, np.inf, TOLERANCE), *pair))
        except np.linalg.LinAlgError:  # this start is out of the question, unless it is the last hope
            if not searches and turn == n_restarts:
                raise
    _, *best = max(searches, key=lambda search: search[0])
    for module, source in zip((kernel, likelihood), best, strict=True):
        module.load_state_dict(source.state_dict())


@torch.no_grad()
def _scatter(kernel: nn.Module, generator: torch.Generator) -> None:
    """Draw numbers whose logarithms are uniform between their bounds."""
    for part in kernel.modules():
        if isinstance(part, Positive) and not part.fixed:
            part.set_share(torch.rand(part.place.shape, generator=generator, dtype=torch.float64))
