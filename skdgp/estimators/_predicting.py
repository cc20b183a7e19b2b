"""Predictions of an estimator: rows are brought into the models' units, and pass through them in batches."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from ..gp.deep_gp import Marginals
from ..gp.likelihoods import Likelihood
from ..inference.threads import threads_for
from ._encoding import N_DRAWS, has_missing
from ._fitted import fitted, member_of
from ._inputs import clipped, prepared
from ._rows import check_query

T = TypeVar("T")


def predict(estimator, X: np.ndarray, function: Callable[[list[Likelihood], list[Marginals]], T]):
    """Rows, and the values of ``function`` of likelihoods and marginals there, one batch after another.

    Marginals of rows with missing cells are mixtures over draws of these cells. If the model has learnt from rows that
    lack the same cells, the mean lies halfway between the mean over draws and the mean that the model has learnt for
    such rows. The mean over draws is right if cells are missing at random. The learnt mean is right if the fact that a
    cell is missing tells something about the target, but there may be few rows to learn it from. The square of half
    their difference is added to the variance.
    """
    ensemble, exact = estimator._ensemble, estimator.dtype == "float64"
    if not has_missing(X):
        return ensemble.predict(X, prepared(estimator), function, exact=exact)
    drawn = _Drawn(estimator)

    def over_draws(likelihoods: list[Likelihood], marginals: list[Marginals]) -> T:
        return function(likelihoods, [drawn.joined(each) for each in marginals])

    return ensemble.predict(X, drawn, over_draws, exact=exact, copies=N_DRAWS + 1)


class _Drawn:
    """Brings rows to predict into the units of the models. Rows with missing cells come once for each draw of these."""

    def __init__(self, estimator):
        self.estimator = estimator
        self.uncertain = np.asarray(estimator._encoding.uncertain)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        encoding, missing = self.estimator._encoding, np.isnan(X)
        complete, incomplete = (np.flatnonzero(each) for each in (~missing.any(axis=1), missing.any(axis=1)))
        learnt = incomplete[~missing[incomplete][:, ~self.uncertain].any(axis=1)]
        self.row = torch.from_numpy(np.append(complete, np.tile(incomplete, N_DRAWS)))
        self.learnt, self.n_rows = torch.from_numpy(learnt), len(X)
        drawn = encoding.encode_draws(X[incomplete]).reshape(-1, encoding.width)
        rows = np.concatenate([encoding.encode(X[complete]), drawn, encoding.encode(X[learnt])])
        return clipped(self.estimator, rows)

    def joined(self, marginals: Marginals) -> Marginals:
        """Marginals of the rows of the last call, from the marginals of the rows that the call returned."""
        n_drawn, learnt = len(self.row), self.learnt.to(marginals.mean.device)
        found = marginals.rows(slice(n_drawn)).over_rows(self.row.to(learnt.device), self.n_rows)
        half = 0.5 * (marginals.mean[:, n_drawn:] - found.mean[:, learnt])
        found.mean[:, learnt] += half
        found.variance[:, learnt] += half.square()
        return found


@threads_for()
def predict_layers(self, X, member=0):
    """Predict means and standard deviations of the outputs of each layer of a member.

    The inputs of a layer are uncertain, so that its output is a mixture; these are the moments of the mixture. The
    inputs of the first layer are standardised features. The outputs of the last layer are standardised targets in a
    regressor with ``normalize_y``. For counts and positive targets they are logarithms of the mean, up to a constant.
    With "heteroskedastic" there is a second output for each target, from which its noise follows. Observation noise is
    not included.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Rows, in the units of ``fit``.
    member : int, default=0
        Number of the ensemble's member.

    Returns
    -------
    list of tuple (mean, std) of ndarrays of shape (n_samples, n_outputs_of_the_layer)
        One pair for each layer, from the first to the last.

    Raises
    ------
    ValueError
        If there is no such member.

    Examples
    --------
    >>> from skdgp import DSDGPRegressor
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(60, random_state=0)
    >>> model = DSDGPRegressor((2,), 5, max_iter=2, n_estimators=1, random_state=0).fit(X, y)
    >>> [mean.shape for mean, std in model.predict_layers(X[:3])]
    [(3, 2), (3, 1)]
    """
    ensemble, X = fitted(self), check_query(self, X)
    model = member_of(self, member).frozen()

    def moments(batch: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        layers = [layer.moments() for layer in model.propagate(batch)]
        return [(mean.double().cpu().numpy(), variance.sqrt().double().cpu().numpy()) for mean, variance in layers]

    parts = [layers for _, layers in ensemble.batches(X, prepared(self), moments)]
    return [tuple(np.concatenate(column) for column in zip(*layer, strict=True)) for layer in zip(*parts, strict=True)]
