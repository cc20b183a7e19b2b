"""What a fitted estimator has learnt, and errors if it has learnt nothing."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..gp.deep_gp import DeepGP
from ..inference.ensemble import Ensemble
from ..inference.predictor import Predictor
from ..tables import Table

#: Attributes that some fits have and others have not.
PERHAPS = ("feature_names_in_", "lower_bound_", "outliers_", "trend_")


@dataclass(frozen=True)
class Learnt:
    """What an estimator has learnt.

    Parameters
    ----------
    ensemble : Ensemble
        The models, and what their training has produced.
    table : Table
        How rows become those of the models.
    structure : dict
        The parameters that shaped the models, and those that they may not follow later, as they were.
    n_rows : int
        Number of rows that the models have seen.
    """

    ensemble: Ensemble
    table: Table
    structure: dict[str, Any]
    n_rows: int

    @property
    def predictor(self) -> Predictor:
        """The models as they predict."""
        return self.ensemble.predictor

    def attributes(self) -> dict[str, Any]:
        """Attributes of an estimator that has learnt it."""
        table = self.table
        names: dict[str, Any] = {} if table.names is None else {"feature_names_in_": table.names}
        names |= {"trend_": [trend.regressors for trend in table.trends]} if table.trends else {}
        counts: dict[str, Any] = {"n_features_in_": table.n_features, "is_categorical_": table.is_categorical}
        counts["date_features_"] = table.date_features
        scales = {"length_scales_": _length_scales(self.predictor)}
        return {"_learnt": self} | counts | names | table.targets.attributes() | scales


def keep(estimator, attributes: dict[str, Any]):
    """The estimator with the attributes of a fit in place of those of an earlier one."""
    for name in PERHAPS:
        vars(estimator).pop(name, None)
    vars(estimator).update(attributes)
    return estimator


def learnt(estimator) -> Learnt:
    """What an estimator has learnt. Without it there is a NotFittedError, which is an AttributeError, too."""
    if "_learnt" not in vars(estimator):  # every prediction asks several times, and scikit-learn's check takes its time
        check_is_fitted(estimator, "_learnt")
    return estimator._learnt


def fitted(estimator) -> Predictor:
    """What predicts for an estimator; errors are those of :func:`learnt`."""
    return learnt(estimator).predictor


def query(estimator, X) -> np.ndarray:
    """Rows to predict, checked; errors of an estimator without a fit are those of :func:`learnt`."""
    return learnt(estimator).table.query(estimator, X)


def built_with(estimator, name: str) -> Any:
    """The value that a parameter had when the model was built; the present one if the model is of version 0.1."""
    return learnt(estimator).structure.get(name, getattr(estimator, name))


def refuse_trend(estimator, what: str) -> None:
    """ValueError if a fitted estimator has a trend, of which ``what`` would need the derivatives."""
    if learnt(estimator).table.trends:
        raise ValueError(
            f"{what} needs the derivatives of the trend, and trend={built_with(estimator, 'trend')!r} has none: fit "
            "with trend=None, or take differences of predictions."
        )


def member_of(estimator, number: int) -> DeepGP:
    """The model of a number; ValueError if there is no such model."""
    models = fitted(estimator).models
    if not (isinstance(number, Integral) and 0 <= number < len(models)):
        raise ValueError(f"member={number} is none of the {len(models)} members: give 0 to {len(models) - 1}.")
    return models[number]


def _length_scales(predictor: Predictor) -> list[np.ndarray | None]:
    """Lengthscales of each layer for all members; None for a layer whose kernel has none."""
    scales = []
    for layers in zip(*(member.layers for member in predictor.main.models), strict=True):
        members = [layer.kernel.hyperparameters().get("lengthscale") for layer in layers]
        scales.append(None if members[0] is None else np.stack([scale.detach().cpu().numpy() for scale in members]))
    return scales
