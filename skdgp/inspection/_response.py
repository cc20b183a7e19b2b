"""What an estimator predicts for rows, and functions that are drawn from it: one number for each row."""

from collections.abc import Callable

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from ..gp.waves import UndrawnError
from ..metrics import unwrap
from ..tables.columns import categorical_mask
from ..tables.frames import rows_at

#: Largest number of rows that are predicted at a time.
ROWS_AT_A_TIME = 20_000


def find_deep_gp(estimator, caller: str):
    """The fitted estimator of this package inside pipelines and searches, and the pipelines of the steps before it."""
    model, before = unwrap(estimator)
    check_is_fitted(model)
    if not hasattr(model, "predict_layers"):
        raise TypeError(
            f"{caller} takes estimators of skdgp, or pipelines and searches that end in one, got "
            f"{type(model).__name__}."
        )
    return model, before


def in_batches(function: Callable[..., np.ndarray], X) -> np.ndarray:
    """Values (n, ...) of a function at rows, so many at a time that memory stays small."""
    starts = range(0, len(X), ROWS_AT_A_TIME)
    parts = [function(rows_at(X, np.arange(start, min(start + ROWS_AT_A_TIME, len(X))))) for start in starts]
    return np.concatenate(parts)


class Response:
    """One output, or the probability of one class, of an estimator that may be a pipeline or a search.

    Parameters
    ----------
    estimator : object
        Fitted.
    X : table
        Rows, of which the first says how many outputs there are.
    target : int, str or None
        Number of an output, or label of a class; None if there is no choice.
    caller : str
        Name for error messages.
    """

    def __init__(self, estimator, X, target, caller: str):
        self.model, self.before = find_deep_gp(estimator, caller)
        self.is_probability = is_classifier(self.model)
        labels = self._labels(X)
        if target is None and len(labels) > 1 + self.is_probability:
            kind = "classes" if self.is_probability else "outputs"
            raise ValueError(
                f"The model has {len(labels)} {kind}, {labels}: choose one of them, such as target={labels[0]!r}."
            )
        target = labels[-1] if target is None else target
        if target not in labels:
            raise ValueError(f"target={target!r} is none of {labels}: give one of them.")
        self.target, self.number = target, labels.index(target)
        self.is_single = len(labels) == 1

    def _labels(self, X) -> list:
        if self.is_probability:
            return self.model.classes_.tolist()
        mean = self.model.predict(self._prepared(X))
        return list(range(mean.shape[1] if mean.ndim == 2 else 1))

    def _prepared(self, X):
        """Rows after the steps before the model."""
        for steps in self.before:
            X = steps.transform(X)
        return X

    def is_categorical(self, X) -> np.ndarray:
        """Mask of the columns of X that are categories. Those of a pipeline hold text or have the dtype category."""
        mask = categorical_mask(X, "from_dtype") if self.before else self.model.is_categorical_
        return np.zeros(X.shape[1], dtype=bool) if mask is None else mask

    def __call__(self, X) -> np.ndarray:
        """Means (n,) of function values, or probabilities."""
        X = self._prepared(X)
        values = self.model.predict_proba(X) if self.is_probability else self.model.predict(X, latent=True)
        return values[:, self.number] if values.ndim == 2 else values

    def functions(self, n_functions: int, random_state) -> Callable[..., np.ndarray]:
        """Functions, which return values (n, n_functions)."""
        latent_dims = getattr(self.model, "latent_dims", 0)
        if latent_dims:
            raise UndrawnError(
                f"latent_dims={latent_dims} gives each row latent variables of its own, and a drawn function holds "
                "them fixed, so that its mean over rows is no average effect: leave functions out, with n_draws=0 or "
                "band=False."
            )
        draws = self.model.sample_functions(n_functions, random_state)

        def values(X) -> np.ndarray:
            of_rows = draws(self._prepared(X))
            return of_rows[:, self.number] if of_rows.ndim == 3 else of_rows

        return values
