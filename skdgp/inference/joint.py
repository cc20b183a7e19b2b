"""Several rows together: joint covariances of an ensemble's function values, and functions drawn from it.

All is computed in float64, whatever the precision of predictions is. Covariances of neighbouring rows differ so little
that float32 would not do.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.blend import Blended
from ..gp.conditionals import with_variances
from ..gp.deep_gp import DeepGP, Marginals
from ..gp.likelihoods import Likelihood
from ..gp.neighbours import Corrected
from ..gp.waves import Streams
from .ensemble import PREDICT_NUMBERS, Ensemble
from .threads import threads_for

#: Number of mixture components from which a joint covariance is computed: of all members together, and at least of each
#: member.
COMPONENTS, MEMBER_COMPONENTS = 32, 6

#: Functions are evaluated at a multiple of ``BLOCK_ROWS`` rows at a time, up to ``LARGEST_BLOCK`` times as many.
#: Products of matrices are computed in tiles, and at the edge of a matrix in another order. 48 is a multiple of the
#: tiles' sizes, so that there is no such edge: a row gets the same digits at any place, among any number of rows.
BLOCK_ROWS, LARGEST_BLOCK = 48, 20

#: A member as it predicts.
Predictor = DeepGP | Blended | Corrected

#: Turns function values (S, B, D) of a member into the user's units, or into probabilities, (S, B, K).
Response = Callable[[Likelihood, Tensor], Tensor]


#: Means (B, P) of what a member predicts.
Mean = Callable[[Likelihood, Marginals], Tensor]


def joint_covariance(ensemble: Ensemble, X: np.ndarray) -> np.ndarray:
    """Covariances (P, n, n) between rows of observations without noise, in the square of the user's units.

    Correlations are exact if the mixture has at most ``COMPONENTS`` components, which are all stored. Otherwise they
    are an average over this many components.
    """
    rows = torch.as_tensor(X, dtype=torch.float64, device=ensemble.device)
    models = exact_copies(ensemble)
    likelihood = models[0].likelihood
    with torch.no_grad(), threads_for(max(model.products(len(rows)) for model in models)):
        mean, covariance = joint_moments(models, rows, observed=not likelihood.linear)
        if likelihood.linear:
            _, covariance = likelihood.joint(mean, covariance)
    return covariance.cpu().numpy()


def joint_moments(
    models: Sequence[Predictor], rows: Tensor, *, joint: bool = True, observed: bool = False
) -> tuple[Tensor, Tensor]:
    """Means (P, n) and covariances (P, n, n) of the function values of the ensemble of these models at rows (n, Q).

    They can be differentiated. Without ``joint`` there are variances (P, n) instead of covariances. With ``observed``
    they are those of observations without noise, in the user's units.
    """
    n_components = max(MEMBER_COMPONENTS, -(-COMPONENTS // len(models)))
    local = models[0].local if isinstance(models[0], Corrected) else None  # the same for all members
    members = [model.model if isinstance(model, Corrected) else model for model in models]
    means, total = [], rows.new_zeros(())
    for model in members:
        response = model.likelihood.joint if observed else None
        mean, variance = (column.mT for column in model(rows).of(response).moments())  # (P, n)
        spread = variance
        if joint:
            streams = Streams(range(n_components), rows.device)
            spread = with_variances(model.covariance(rows, streams, response), variance)
            spread = 0.5 * (spread + spread.mT)
        means.append(mean)
        total = total + spread  # one matrix, however many members
    mean = torch.stack(means).mean(0)
    centred = torch.stack(means) - mean  # (E, P, n)
    between = torch.einsum("epi,epj->pij" if joint else "epi,epi->pi", centred, centred)
    found = (total + between) / len(models)
    if local is not None:  # independent of the members
        shift, variance = (column.mT for column in local.moments(rows))
        mean, found = mean + shift, found + (local.covariance(rows) if joint else variance)
    return mean, found


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
    found, index = torch.from_numpy(covariance), torch.from_numpy(row)
    share = 1.0 / torch.bincount(index)
    for dim in (1, 2):
        shape = (*found.shape[:dim], len(share), *found.shape[dim + 1 :])
        found = found.new_zeros(shape).index_add_(dim, index, found)
    found = 0.5 * (found + found.mT) * share[:, None] * share
    return with_variances(found, torch.tensor(variance, device="cpu").mT, most=1.0).numpy()


def exact_copies(ensemble: Ensemble, numbers: Iterable[int] | None = None) -> list[Predictor]:
    """Copies of members as they predict, in float64, for many calls. They share one base and one correction.

    With ``numbers`` there are copies of these members only.
    """
    wanted = list(ensemble.models) if numbers is None else [ensemble.models[number] for number in numbers]
    models, blend, correction = deepcopy((wanted, ensemble.blend, ensemble.correction))
    found: list[Predictor] = [model.double().frozen() for model in models]
    if blend is not None:
        blend = blend.double().frozen()
        found = [Blended(cast(DeepGP, model), blend) for model in found]
    if correction is not None:
        correction = correction.double().frozen()
        found = [Corrected(cast(DeepGP | Blended, model), correction) for model in found]
    return found


def output_moments(ensemble: Ensemble, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means (n, P) and covariances (n, P, P) of the function values of each row (n, Q), in the units of the models."""
    models = exact_copies(ensemble)
    parts = []
    for rows, block in _blocks(X, _block_size(models[0], 1), ensemble.device):
        with torch.no_grad(), threads_for(models[0].products(len(block))):
            means = torch.stack([model(block).moments()[0] for model in models])  # (E, B, P)
            own = torch.stack([_between_outputs(model, block) for model in models]).mean(0)
        centred = means - means.mean(0)
        found = own + torch.einsum("ebp,ebq->bpq", centred, centred) / len(models)
        parts.append([each[: rows.stop - rows.start].cpu().numpy() for each in (means.mean(0), found)])
    mean, covariance = (np.concatenate(column) for column in zip(*parts, strict=True))
    return mean, covariance


def _between_outputs(model: Predictor, rows: Tensor) -> Tensor:
    """Covariances (B, P, P) between the outputs of one member."""
    if isinstance(model, DeepGP):
        return model.output_covariance(rows)
    return model(rows).output_covariance()


@torch.inference_mode(False)
@torch.enable_grad()
def mean_gradient(
    ensemble: Ensemble, X: np.ndarray, mean: Mean, scale: Sequence[float] | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients (n, P, Q) of means with respect to rows (n, Q), and variances of the function's gradients.

    ``scale`` has P factors that bring function values into the units of the means. If there are none, variances are not
    computed, and None. They are None, too, if they have no closed form.
    """
    models = exact_copies(ensemble)
    gradients, variances = [], []
    for rows, block in _blocks(X, _block_size(models[0], 1), ensemble.device):
        block.requires_grad_()
        used = slice(rows.stop - rows.start)
        with threads_for(models[0].products(len(block))):
            each = torch.stack([row_gradients(mean(model.likelihood, model(block)), block)[used] for model in models])
        gradients.append(each.mean(0).cpu().numpy())
        known = [model.gradient_variance(block.detach()[used]) for model in models if scale is not None]
        own = [variance for variance in known if variance is not None]
        if own:
            within = torch.stack(own).mean(0) * block.new_tensor(scale).square()[:, None]
            variances.append((within + each.var(0, correction=0)).cpu().numpy())
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

    model: Predictor
    places: np.ndarray  # of its functions among all functions
    draw: Callable[[Tensor], Tensor]

    def products(self, n_rows: int) -> int:
        """Multiplications of its largest operation; one cosine counts as sixteen of them."""
        return 16 * n_rows * len(self.places) * self.model.numbers_per_draw()


class FunctionSet:
    """Functions, each drawn from one member of an ensemble.

    Parameters
    ----------
    ensemble : Ensemble
        The ensemble.
    seeds : sequence of int
        One for each function. A function depends only on its own seed.
    response : callable
        Turns function values into the user's units, or into probabilities.
    of_rows : bool, default=False
        Whether each row has latent variables of its own, as for observations; see :meth:`.DeepGP.draw`.
    """

    def __init__(
        self, ensemble: Ensemble, seeds: Sequence[int] | np.ndarray, response: Response, *, of_rows: bool = False
    ):
        self.seeds, self.response, self.device, self.of_rows = np.asarray(seeds), response, ensemble.device, of_rows
        self._ensemble, self._number = ensemble, self.seeds % len(ensemble)

    @property
    def likelihoods(self) -> list[Likelihood]:
        """Likelihood of the member that each function belongs to."""
        likelihoods = self._ensemble.likelihoods
        return [likelihoods[number] for number in self._number]

    def values(self, X: np.ndarray) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
        """Yield places of some functions, some rows of ``X`` (n, Q), and the functions' values (S', B, K) there."""
        for part in self._together:
            size = _block_size(part.model, len(part.places))
            for rows, block in _blocks(X, size, self.device):
                with torch.no_grad(), threads_for(part.products(len(block))):
                    found = self.response(part.model.likelihood, part.draw(block))[:, : rows.stop - rows.start]
                yield part.places, rows, found.cpu().numpy()

    @torch.inference_mode(False)
    @torch.enable_grad()
    def gradients(self, X: np.ndarray) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
        """Yield the same for gradients (S', B, K, Q) with respect to the rows, one function at a time."""
        for part in self._alone:
            for rows, block in _blocks(X, _block_size(part.model, 1), self.device):
                block.requires_grad_()
                with threads_for(part.products(len(block))):
                    found = row_gradients(self.response(part.model.likelihood, part.draw(block))[0], block)
                yield part.places, rows, found[None, : rows.stop - rows.start].cpu().numpy()

    @cached_property
    @torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
    def _together(self) -> list[_Part]:
        """Functions of a member side by side, as many as a block of rows has room for."""
        parts, numbers = [], np.unique(self._number).tolist()
        for number, model in zip(numbers, exact_copies(self._ensemble, numbers), strict=True):
            places = np.flatnonzero(self._number == number)
            most = max(1, PREDICT_NUMBERS // (BLOCK_ROWS * model.numbers_per_draw()))
            parts += [self._part(model, each) for each in np.array_split(places, -(-len(places) // most))]
        return parts

    @cached_property
    def _alone(self) -> list[_Part]:
        """Functions one by one."""
        if len(self.seeds) == 1:
            return self._together
        return [self._part(part.model, part.places[[i]]) for part in self._together for i in range(len(part.places))]

    def _part(self, model: Predictor, places: np.ndarray) -> _Part:
        with torch.no_grad():
            return _Part(model, places, model.draw(Streams(self.seeds[places], self.device), of_rows=self.of_rows))


def row_gradients(values: Tensor, X: Tensor) -> Tensor:
    """Gradients (B, K, Q) of values (B, K), each of which depends only on its own row of ``X`` (B, Q)."""
    if not values.requires_grad:  # constant wherever it has a gradient
        return X.new_zeros(*values.shape, X.shape[1])
    columns = values.sum(0).unbind()
    return torch.stack([torch.autograd.grad(each, X, retain_graph=True)[0] for each in columns], dim=1)


def _block_size(model: Predictor, n_functions: int) -> int:
    """Largest number of rows at which functions of a member are evaluated at a time."""
    numbers = BLOCK_ROWS * max(model.numbers_per_row(), n_functions * model.numbers_per_draw())
    return BLOCK_ROWS * int(np.clip(PREDICT_NUMBERS // numbers, 1, LARGEST_BLOCK))


def _blocks(X: np.ndarray, size: int, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of ``size`` rows. Copies of the last row fill up the last block."""
    for start in range(0, len(X), size):
        rows = slice(start, min(start + size, len(X)))
        missing = -(rows.stop - start) % BLOCK_ROWS
        block = np.concatenate([X[rows], X[-1:].repeat(missing, axis=0)]).astype(np.float64)
        yield rows, torch.as_tensor(block, device=device)
