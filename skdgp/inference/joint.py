"""Several rows together: joint covariances of a predictor's function values, and functions drawn from it.

All is computed in float64, whatever the precision of predictions is. Covariances of neighbouring rows differ so little
that float32 would not do.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..gp.conditionals import with_variances
from ..gp.deep_gp import DeepGP, Marginals
from ..gp.likelihoods import Likelihood
from ..gp.waves import Streams
from .predictor import PREDICT_NUMBERS, Predictor
from .threads import threads_for

#: Functions are evaluated at a multiple of so many rows at a time. Products of matrices are computed in tiles, and at
#: the edge of a matrix in another order. 48 is a multiple of the tiles' sizes, so that there is no such edge: a row has
#: the same digits at any place, among any number of rows.
BLOCK_ROWS = 48

#: Largest number of such blocks at a time.
LARGEST_BLOCK = 20

#: Turns function values (S, B, D) of a member into the user's units, or into probabilities, (S, B, K).
Response = Callable[[Likelihood, Tensor], Tensor]

#: Means (B, P) of what a member predicts.
Mean = Callable[[Likelihood, Marginals], Tensor]


def joint_covariance(predictor: Predictor, X: np.ndarray) -> np.ndarray:
    """Covariances (P, n, n) between rows of observations without noise, in the square of the user's units."""
    frozen, rows = predictor.frozen(), torch.as_tensor(X, dtype=torch.float64, device=predictor.device)
    with torch.no_grad(), threads_for(frozen.products(len(rows))):
        _, covariance = frozen.joint_response(rows)
    return covariance.cpu().numpy()


def over_copies(covariance: np.ndarray, row: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Covariances (P, n, n) of n rows with known variances, of which some are several copies that could be the row.

    Which copy a row is has nothing to do with other rows. By the law of total covariance, the covariance of two rows is
    then the mean over all pairs of their copies.

    Parameters
    ----------
    covariance : ndarray of shape (P, N, N)
        Covariances of all copies.
    row : ndarray of shape (N,)
        The row of each copy.
    variance : ndarray of shape (n, P)
        Variances of the rows, which include the differences between copies.
    """
    total, index = torch.from_numpy(covariance), torch.from_numpy(row)
    weight = 1.0 / torch.bincount(index)
    for dim in (1, 2):
        shape = (*total.shape[:dim], len(weight), *total.shape[dim + 1 :])
        total = total.new_zeros(shape).index_add_(dim, index, total)
    mean = 0.5 * (total + total.mT) * weight[:, None] * weight
    return with_variances(mean, torch.tensor(variance, device="cpu").mT, most=1.0).numpy()


def output_moments(predictor: Predictor, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means (n, P) and covariances (n, P, P) of the function values of each row (n, Q), in the units of the models."""
    frozen, parts = predictor.frozen(), []
    for rows, block in _blocks(X, _block_size(frozen, 1), predictor.device):
        with torch.no_grad(), threads_for(frozen.products(len(block))):
            parts.append([values[: rows.stop - rows.start].cpu().numpy() for values in frozen.outputs(block)])
    mean, covariance = (np.concatenate(column) for column in zip(*parts, strict=True))
    return mean, covariance


@torch.inference_mode(False)
@torch.enable_grad()
def mean_gradient(
    predictor: Predictor, X: np.ndarray, mean: Mean, scale: Sequence[float] | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients (n, P, Q) of means with respect to rows (n, Q), and variances of the function's gradients.

    ``scale`` has P factors that bring function values into the units of the means. If there are none, variances are not
    computed, and None. They are None, too, if they have no closed form.
    """
    frozen, likelihoods, gradients, variances = predictor.frozen(), predictor.likelihoods, [], []
    for rows, block in _blocks(X, _block_size(frozen, 1), predictor.device):
        block.requires_grad_()
        used = slice(rows.stop - rows.start)
        with threads_for(frozen.products(len(block))):
            pairs = zip(likelihoods, frozen.marginals(block), strict=True)
            slopes = torch.stack([row_gradients(mean(*pair), block)[used] for pair in pairs])  # (E, B, P, Q)
        gradients.append(torch.einsum("e,ebpq->bpq", slopes.new_tensor(frozen.weights), slopes).cpu().numpy())
        within = None if scale is None else frozen.gradient_variance(block.detach()[used])
        if within is not None:
            within = within * block.new_tensor(scale).square()[:, None]
            variances.append((within + slopes.var(0, correction=0)).cpu().numpy())
    return np.concatenate(gradients), np.concatenate(variances) if variances else None


def layer_functions(member: DeepGP, X: np.ndarray, seeds: Sequence[int]) -> list[np.ndarray]:
    """Values (S, n, D) at rows (n, Q) of functions of all layers of a member, one for each seed."""
    model = deepcopy(member).double().frozen()
    device = next(model.buffers()).device
    parts: list[list[np.ndarray]] = []
    with torch.no_grad():
        draw = model.draw_layers(Streams(seeds, device))
        for rows, block in _blocks(X, _block_size(model, len(seeds)), device):
            with threads_for(model.products(len(block))):
                parts.append([values[:, : rows.stop - rows.start].cpu().numpy() for values in draw(block)])
    return [np.concatenate(layer, axis=1) for layer in zip(*parts, strict=True)]


class _Part(NamedTuple):
    """The functions that belong to one member."""

    predictor: Predictor  # which all parts share
    member: int  # number of the member in it
    places: np.ndarray  # of its functions among all functions
    draw: Callable[[Tensor], Tensor]

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of the member."""
        return self.predictor.likelihoods[self.member]

    def products(self, n_rows: int) -> int:
        """Multiplications of its largest operation; one cosine counts as sixteen of them."""
        return 16 * n_rows * len(self.places) * self.predictor.numbers_per_draw()

    def blocks(self, X: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
        """The rows in blocks of a size that suits the number of functions."""
        return _blocks(X, _block_size(self.predictor, len(self.places)), self.predictor.device)


class FunctionSet:
    """Functions, each drawn from one member.

    Parameters
    ----------
    predictor : Predictor
        The members. Later changes of their parameters do not change the functions.
    seeds : sequence of int
        One for each function. A function depends only on its own seed.
    response : callable
        Turns function values into the user's units, or into probabilities.
    of_rows : bool, default=False
        Whether each row has latent variables of its own, as for observations; see :meth:`.DeepGP.draw`.

    Attributes
    ----------
    members : ndarray of shape (n_functions,)
        Number of the member that each function belongs to.
    """

    def __init__(
        self, predictor: Predictor, seeds: Sequence[int] | np.ndarray, response: Response, *, of_rows: bool = False
    ):
        self.seeds, self.response, self.of_rows = np.asarray(seeds), response, of_rows
        self._predictor, self.members = predictor, predictor.members_of(self.seeds)

    @property
    def likelihoods(self) -> list[Likelihood]:
        """Likelihood of the member that each function belongs to."""
        likelihoods = self._predictor.likelihoods
        return [likelihoods[number] for number in self.members]

    def values(self, X: np.ndarray) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
        """Yield places of some functions, some rows of ``X`` (n, Q), and the functions' values (S', B, K) there."""
        for part in self._together:
            for rows, block in part.blocks(X):
                with torch.no_grad(), threads_for(part.products(len(block))):
                    values = self.response(part.likelihood, part.draw(block))[:, : rows.stop - rows.start]
                yield part.places, rows, values.cpu().numpy()

    @torch.inference_mode(False)
    @torch.enable_grad()
    def gradients(self, X: np.ndarray) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
        """Yield the same for gradients (S', B, K, Q) with respect to the rows, one function at a time."""
        for part in self._alone:
            for rows, block in part.blocks(X):
                block.requires_grad_()
                with threads_for(part.products(len(block))):
                    slopes = row_gradients(self.response(part.likelihood, part.draw(block))[0], block)
                yield part.places, rows, slopes[None, : rows.stop - rows.start].cpu().numpy()

    @cached_property
    @torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
    def _together(self) -> list[_Part]:
        """Functions of a member side by side, as many as a block of rows has room for."""
        parts, numbers = [], np.unique(self.members).tolist()
        predictor = self._predictor.alone(*numbers)  # with one base and one correction for all members
        most = max(1, PREDICT_NUMBERS // (BLOCK_ROWS * predictor.numbers_per_draw()))
        for member, number in enumerate(numbers):
            places = np.flatnonzero(self.members == number)
            split = np.array_split(places, -(-len(places) // most))
            parts += [self._part(predictor, member, some) for some in split]
        return parts

    @cached_property
    def _alone(self) -> list[_Part]:
        """Functions one by one."""
        if len(self.seeds) == 1:
            return self._together
        return [
            self._part(part.predictor, part.member, place[None]) for part in self._together for place in part.places
        ]

    def _part(self, predictor: Predictor, member: int, places: np.ndarray) -> _Part:
        with torch.no_grad():
            streams = Streams(self.seeds[places], predictor.device)
            draw = predictor.draw(member, streams, of_rows=self.of_rows)
            return _Part(predictor, member, places, draw)


def row_gradients(values: Tensor, X: Tensor) -> Tensor:
    """Gradients (B, K, Q) of values (B, K), each of which depends only on its own row of ``X`` (B, Q)."""
    if not values.requires_grad:  # constant wherever it has a gradient
        return X.new_zeros(*values.shape, X.shape[1])
    columns = values.sum(0).unbind()
    return torch.stack([torch.autograd.grad(column, X, retain_graph=True)[0] for column in columns], dim=1)


def _block_size(model: Predictor | DeepGP, n_functions: int) -> int:
    """Largest number of rows at which functions of a model are evaluated at a time."""
    numbers = BLOCK_ROWS * max(model.numbers_per_row(), n_functions * model.numbers_per_draw())
    return BLOCK_ROWS * int(np.clip(PREDICT_NUMBERS // numbers, 1, LARGEST_BLOCK))


def _blocks(X: np.ndarray, size: int, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of ``size`` rows. Copies of the last row fill up the last block."""
    for start in range(0, len(X), size):
        rows = slice(start, min(start + size, len(X)))
        missing = -(rows.stop - start) % BLOCK_ROWS
        block = np.concatenate([X[rows], X[-1:].repeat(missing, axis=0)]).astype(np.float64)
        yield rows, torch.as_tensor(block, device=device)
