"""Rows that an estimator learns from: from the user's table to batches in the units of the model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..gp.likelihoods import Likelihood
from ..inference.batches import Batch
from ..tables import Encoded, Table
from ..tables import learn as learn_table
from ._fitted import Learnt, learnt
from ._knowledge import check_before
from ._parameters import check_structure, structure_of
from ._transforms import best_transform
from ._warnings import warn_of_columns


def checker_of(estimator, before: Learnt | None):
    """Whose names and features scikit-learn's checks compare with: those of the last fit, or of none."""
    if before is not None:
        return estimator
    blank = object.__new__(type(estimator))
    vars(blank).update(estimator.get_params(deep=False))
    return blank


def class_weight_of(estimator):
    return getattr(estimator, "class_weight", None)  # only a classifier has it


def read(
    checker,
    before: Learnt | None,
    structure: dict,
    X,
    y,
    sample_weight,
    *,
    by_chunks: bool = False,
    classes=None,
    known: Mapping[str, Any] | None = None,
) -> tuple[Table, Encoded]:
    """The table, and its rows to learn from. They decide units and encoding, unless a model goes on learning.

    ``classes`` are those of all chunks together, if the rows are one chunk of them. ``known`` is what the user knows of
    the rows, by name.
    """
    class_weight = class_weight_of(checker)
    if before is not None:
        check_structure(structure, before.structure)
        options = {"class_weight": class_weight, "known": known, "learnt": not by_chunks}
        return before.table, before.table.read(checker, X, y, sample_weight, **options)
    options = {"normalize": checker.normalize_X, "categorical_features": checker.categorical_features}
    options |= {"class_weight": class_weight, "classes": classes, "known": known}
    targets = checker._kind_of_targets()
    table, rows = learn_table(checker, targets, X, y, sample_weight, **options)
    if table.targets.undecided:
        targets = replace(targets, target_transform=best_transform(rows))
        table, rows = learn_table(checker, targets, X, y, sample_weight, **options)
    chosen = isinstance(checker.categorical_features, str)
    warn_of_columns(table, rows.given.X, by_chunks=by_chunks, chosen=chosen)
    return table, rows


def more_rows(
    estimator, X, y, sample_weight, known: Mapping[str, Any] | None, *, by_chunks: bool = False
) -> tuple[Learnt, dict, Encoded]:
    """What a fitted estimator has learnt, its parameters as they are, and rows of its table.

    Without ``by_chunks`` they are the rows of ``fit``. It is an error if they lack what was known of those, or if the
    model is not that of the parameters.
    """
    before, structure = learnt(estimator), structure_of(estimator)
    _, rows = read(estimator, before, structure, X, y, sample_weight, by_chunks=by_chunks, known=known)
    likelihood = before.predictor.models[0].likelihood
    if likelihood.fixed or rows.given.known:  # what is known of others says nothing of noise, and they cannot learn
        check_before(estimator, likelihood, rows.given.known)
    return before, structure, rows


def to_batch(likelihood: Likelihood, rows: Encoded, dtype: np.dtype) -> Batch:
    """Rows in main memory, with targets in the units of the likelihood."""
    return Batch.of(rows.X, likelihood.encode_rows(rows.y, rows.given.known), rows.given.weight, dtype)
