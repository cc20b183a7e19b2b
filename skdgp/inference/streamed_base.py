"""The base of a model that learns from chunks of rows.

A chunk is new to members and base when it comes. So it first judges both, as held-out rows do in a fit, and then the
base learns from it in closed form (:mod:`.conditioning`). The kernel, the noise and the inducing points of the base
come from the first chunk. While a stream still remembers all rows, they are chosen anew each time the number of rows
has doubled.
"""

import warnings
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch

from ..gp.blend import Blend
from ..gp.deep_gp import DeepGP
from ..gp.likelihoods import Likelihood
from .base import Base, base_for
from .batches import Batch
from .blending import OutOfSample, blend
from .calibration import MAX_ROWS, marginals_of
from .callers import users_level
from .conditioning import KINDS, learn_base
from .kept import Kept
from .kernel_search import Groups
from .outliers import PREDICT_ROWS
from .plan import Plan, Split
from .predictor import Predictor
from .streaming import REMEMBERED_ROWS, Stream
from .validation import Validation

#: Smallest number of rows of a later chunk that judge the base.
FEWEST_JUDGES = 50

#: A base that has learnt from so many rows learns from a smaller chunk, too, and keeps its weight.
FEWEST_LEARNT = 500


def suits(likelihood: Likelihood) -> bool:
    """Whether a base can learn from one chunk after another."""
    return likelihood.has_base and likelihood.base_kind in KINDS


def first_blend(models: Sequence[DeepGP], chunk: Batch, split: Split, plan: Plan, groups: Groups) -> Blend | None:
    """The blend of new members with a base of the first chunk, of which each holds rows out; None if none does."""
    like = next(models[0].parameters())
    validation = Validation(chunk, split, plan, like.device, like.dtype, Kept())
    foundation = validation.foundation(models[0].likelihood, groups)
    return None if foundation is None else validation.blend(models, foundation)[0]


def next_blend(predictor: Predictor, stream: Stream, chunk: Batch, groups: Groups) -> Blend | None:
    """The blend after one more chunk; None if nothing judges the base.

    A chunk that is too small to judge does not change the weight of a base that knows many rows. A base of few rows
    has no weight then.

    Parameters
    ----------
    predictor : Predictor
        Members and base before they have learnt from the chunk.
    stream : Stream
        A stream that has not learnt from the chunk, either.
    chunk : Batch
        The chunk.
    groups : sequence of int or None
        Which inputs share a lengthscale in a new base.
    """
    models, earlier, learnt = predictor.models, predictor.blend, stream.sample
    if len(chunk) < FEWEST_JUDGES:
        if earlier is None or not (stream.continues or stream.n_seen >= FEWEST_LEARNT):
            return None
        learn_base(kept := deepcopy(earlier), chunk.to(predictor.device, torch.float64))
        return kept
    if learnt is not None and (earlier is None or _has_doubled(stream, len(chunk))):
        rows = learnt.rows.to(predictor.device, torch.float64)
        try:
            base, earlier = base_for(models[0].likelihood, rows, groups)[0], None
        except np.linalg.LinAlgError:
            warnings.warn(
                "The base of the rows so far could not be computed, and the earlier one remains, if any: a covariance "
                "matrix has no Cholesky factor. The likely cause is features or targets with values far from all "
                "others: remove or transform these, or set base=None.",
                RuntimeWarning,
                stacklevel=users_level(),
            )
            if earlier is None:
                return None
            base = Base(earlier.base, earlier.n_alternatives)
    elif earlier is None:
        return None
    else:
        base = Base(earlier.base, earlier.n_alternatives)
    judges = chunk.spread(MAX_ROWS)
    out_of_sample = _out_of_sample(models, base, judges.to(predictor.device, predictor.dtype))
    of_classes = (judges.y, judges.weight) if learnt is None else (learnt.y, learnt.weight)
    best, _ = blend(base, models[0].likelihood, out_of_sample, of_classes, earlier=earlier)
    if earlier is not None:
        best.n_near, best.robust = earlier.n_near, earlier.robust
    learn_base(best, chunk.to(predictor.device, torch.float64))
    return best


def _has_doubled(stream: Stream, n_more: int) -> bool:
    """Whether the number of rows doubles with a chunk, and the stream remembers all rows before it."""
    n_rows = stream.n_seen
    doubles = n_rows.bit_length() < (n_rows + n_more).bit_length()
    return doubles and not stream.continues and 0 < n_rows <= REMEMBERED_ROWS


@torch.no_grad()
def _out_of_sample(models: Sequence[DeepGP], base: Base, rows: Batch) -> list[OutOfSample]:
    """What each member and the base predict for rows that are new to all of them."""
    exact = rows.to(rows.X.device, torch.float64)
    parts = [marginals_of(alone, exact, PREDICT_ROWS) for alone in base.alternatives()]
    mean, within = torch.stack([part.mean[0] for part in parts]), torch.stack([part.variance[0] for part in parts])
    of_base = mean.mean(0), within.mean(0), mean.var(0, correction=0)
    members = [marginals_of(model, rows, PREDICT_ROWS).moments() for model in models]
    return [OutOfSample(rows, own.double(), variance.double(), *of_base) for own, variance in members]
