"""Predictions of an estimator: rows are brought into the models' units, and pass through them in batches."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

from ..gp.conditionals import with_variances
from ..gp.deep_gp import Marginals
from ..gp.likelihoods import Likelihood
from ..inference.joint import FunctionSet, output_moments
from ..inference.predictor import PREDICT_NUMBERS
from ..inference.threads import threads_for
from ..tables import Table
from ..tables.encoding import N_DRAWS, has_missing
from ..tables.known import Known
from ._fitted import Learnt, fitted, learnt, member_of, query

#: Largest number of rows, with all draws of missing cells, whose joint covariance is computed: a matrix of 128 MiB. If
#: there are more rows to predict, there is one draw for each.
MOST_ROWS = 4096

T = TypeVar("T")


class _Query:
    """Rows to predict, and what is known of them. Part of it is some of the rows."""

    def __init__(self, X: np.ndarray, known: Known):
        self.X, self.known = X, known

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: slice) -> "_Query":
        return _Query(self.X[rows], {name: values[rows] for name, values in self.known.items()})


def predict(
    model: Learnt,
    X: np.ndarray,
    function: Callable[[list[Likelihood], list[Marginals]], T],
    *,
    exact: bool,
    known: Known | None = None,
) -> Iterator[tuple[slice, T]]:
    """Rows, and the values of ``function`` of likelihoods and marginals there, one batch after another.

    Likelihoods are those of rows of which this is ``known``.

    Marginals of rows with missing cells are mixtures over draws of these cells. If the model has learnt from rows that
    lack the same cells, the mean lies halfway between the mean over draws and the mean that the model has learnt for
    such rows. The mean over draws is right if cells are missing at random. The learnt mean is right if the fact that a
    cell is missing tells something about the target, but there may be few rows to learn it from. The square of half
    their difference is added to the variance.
    """
    drawn = _Drawn(model.table) if has_missing(X) else None
    batch = _Query(X[:0], {})

    def prepared(rows: _Query) -> np.ndarray:
        nonlocal batch
        batch = rows
        return model.table.prepared(rows.X) if drawn is None else drawn(rows.X)

    def of_batch(likelihoods: list[Likelihood], marginals: list[Marginals]) -> T:
        there = [likelihood.at({**batch.known, **lacking(model.table, batch.X)}) for likelihood in likelihoods]
        return function(there, marginals if drawn is None else [drawn.joined(member) for member in marginals])

    query, copies = _Query(X, known or {}), 1 if drawn is None else N_DRAWS + 1
    return model.predictor.predict(query, prepared, of_batch, exact=exact, copies=copies)


def lacking(table: Table, X: np.ndarray) -> Known:
    """Which categories checked rows lack, as something that is known of them; nothing if no row of ``fit`` did."""
    return {"lacking": table.lacking(X)} if table.may_lack else {}


def drawn_rows(table: Table, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the units of the models, and the row of X that each of them is.

    Rows with missing cells come several times, with the draws of these cells that all predictions are averages over.
    There are fewer draws if all of them would be more than ``MOST_ROWS`` rows.
    """
    if not has_missing(X):
        return table.prepared(X), np.arange(len(X))
    drawn = _Drawn(table)
    rows, n_incomplete = drawn(X), int(np.isnan(X).any(axis=1).sum())
    n_complete = len(X) - n_incomplete
    used = slice(n_complete + n_incomplete * int(np.clip((MOST_ROWS - n_complete) // n_incomplete, 1, N_DRAWS)))
    return rows[used], drawn.row[used].numpy()


def with_drawn_cells(model: Learnt, functions: FunctionSet, X: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Values (n, D, S) of functions at rows whose missing cells are drawn for each function and row.

    So rows depend on each other by the functions alone, and have the moments of predictions.
    """
    size = max(1, PREDICT_NUMBERS // (N_DRAWS * len(functions.seeds)))
    if len(X) > size:
        batches = np.split(X, range(size, len(X), size))
        return np.concatenate([with_drawn_cells(model, functions, batch, rng) for batch in batches])
    drawn, predictor, n_rows = _Drawn(model.table), model.predictor, len(X)
    shifts = predictor.predict(
        X,
        drawn,
        lambda _, marginals: np.stack([drawn.shift(member).double().cpu().numpy() for member in marginals]),
        copies=N_DRAWS + 1,
    )
    shift = np.concatenate([batch for _, batch in shifts], axis=1)[functions.members]  # (S, n, D)
    rows = drawn(X)[: N_DRAWS * n_rows].astype(np.float64)
    values = gathered(functions.values(rows), len(rows), len(functions.seeds)).reshape(N_DRAWS, n_rows, -1, len(shift))
    chosen = rng.randint(N_DRAWS, size=(1, n_rows, 1, len(shift)))
    values = np.take_along_axis(values, chosen, axis=0)[0]  # (n, D, S)
    return values + np.moveaxis(shift, 0, -1) * (1.0 + rng.standard_normal((n_rows, 1, len(shift))))


def gathered(parts, n_rows: int, n_functions: int) -> np.ndarray:
    """Values (n, K, ..., S) of all rows and functions, from parts (S', B, K, ...) of them."""
    whole = np.empty(0)
    for places, rows, values in parts:
        if not whole.size:
            whole = np.empty((n_rows, *values.shape[2:], n_functions))
        whole[rows, ..., places] = np.moveaxis(values, 0, -1)
    return whole


def output_covariance(model: Learnt, X: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Covariances (n, P, P) between the function values of each row, whose variances (n, P) are known.

    All are in the units of the models. With missing cells they are the mean of the covariances over draws, plus the
    covariance of the means, as the variances are.
    """
    if not has_missing(X):
        return output_moments(model.predictor, model.table.prepared(X))[1]
    drawn = _Drawn(model.table)
    mean, covariance = map(torch.from_numpy, output_moments(model.predictor, drawn(X)))
    row, n_drawn = drawn.row, len(drawn.row)
    count = torch.bincount(row)[:, None]

    def averaged(values: torch.Tensor) -> torch.Tensor:  # over the draws of each row
        return values.new_zeros(len(X), values.shape[1]).index_add_(0, row, values) / count

    middle = averaged(mean[:n_drawn])
    centred, half = mean[:n_drawn] - middle[row], 0.5 * (mean[n_drawn:] - middle[drawn.learnt])
    total = covariance[:n_drawn] + centred[:, :, None] * centred[:, None]
    averages = averaged(total.flatten(1)).unflatten(1, total.shape[1:])
    averages[drawn.learnt] += half[:, :, None] * half[:, None]
    return with_variances(averages, torch.tensor(variance, device="cpu")).numpy()


class _Drawn:
    """Brings rows to predict into the units of the models. Rows with missing cells come once for each draw of these."""

    def __init__(self, table: Table):
        self.table = table
        self.uncertain = np.asarray(table.encoding.uncertain)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        encoding, missing = self.table.encoding, np.isnan(X)
        complete, incomplete = np.flatnonzero(~missing.any(axis=1)), np.flatnonzero(missing.any(axis=1))
        learnt = incomplete[~missing[incomplete][:, ~self.uncertain].any(axis=1)]
        self.row = torch.from_numpy(np.append(complete, np.tile(incomplete, N_DRAWS)))
        self.learnt, self.n_rows = torch.from_numpy(learnt), len(X)
        drawn = encoding.encode_draws(X[incomplete]).reshape(-1, encoding.width)
        rows = np.concatenate([encoding.encode(X[complete]), drawn, encoding.encode(X[learnt])])
        return self.table.clipped(rows)

    def joined(self, marginals: Marginals) -> Marginals:
        """Marginals of the rows of the last call, from the marginals of the rows that the call returned."""
        drawn = self._over_draws(marginals)
        half = self._half(marginals, drawn)
        return drawn._replace(mean=drawn.mean + half, variance=drawn.variance + half.square())

    def shift(self, marginals: Marginals) -> torch.Tensor:
        """What :meth:`joined` adds to the means (n, D) of the rows, averaged over the mixture."""
        drawn = self._over_draws(marginals)
        return (drawn.log_weight.exp()[..., None] * self._half(marginals, drawn)).sum(0)

    def _over_draws(self, marginals: Marginals) -> Marginals:
        return marginals.rows(slice(len(self.row))).over_rows(self.row.to(marginals.mean.device), self.n_rows)

    def _half(self, marginals: Marginals, over_draws: Marginals) -> torch.Tensor:
        """Halves of the differences (S, n, D) between learnt means and those over draws; 0 where none is learnt."""
        half, learnt = torch.zeros_like(over_draws.mean), self.learnt.to(marginals.mean.device)
        half[:, learnt] = 0.5 * (marginals.mean[:, len(self.row) :] - over_draws.mean[:, learnt])
        return half


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
    >>> model = DSDGPRegressor(
    ...     (2,), 5, max_iter=2, n_estimators=1, random_state=0
    ... ).fit(X, y)
    >>> [mean.shape for mean, std in model.predict_layers(X[:3])]
    [(3, 2), (3, 1)]
    """
    X, model, predictor = query(self, X), member_of(self, member).frozen(), fitted(self)

    def moments(batch: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        layers = [layer.moments() for layer in model.propagate(predictor.inputs(member, batch))]
        return [(mean.double().cpu().numpy(), variance.sqrt().double().cpu().numpy()) for mean, variance in layers]

    batches = [layers for _, layers in predictor.batches(X, learnt(self).table.prepared, moments)]
    layers = zip(*batches, strict=True)
    return [tuple(np.concatenate(column) for column in zip(*layer, strict=True)) for layer in layers]
