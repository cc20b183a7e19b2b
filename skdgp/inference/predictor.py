"""What predicts: members, which are blended with a base and corrected by the nearest rows."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Protocol, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..gp.blend import ALL, Blend
from ..gp.conditionals import with_variances
from ..gp.deep_gp import DeepGP, Marginals
from ..gp.devices import at_a_time
from ..gp.likelihoods import Likelihood
from ..gp.mixtures import Response
from ..gp.neighbours import Correction, corrected
from ..gp.waves import Streams
from .kept import Kept
from .memory import let_the_allocator_keep_pages
from .stacks import can_be_stacked, stack
from .state import from_plain, to_plain
from .threads import threads_for
from .trusted import refuse

#: Largest number of entries of a tensor in a batch of predictions on a processor: 8 MiB in float32, and half as many
#: entries in float64. Larger batches are not faster there, and the allocator would return their memory to the system
#: between batches.
PREDICT_NUMBERS = 2**21

#: Number of rows from which on models predict in float32, if they lose nothing by that.
COARSE_ROWS = 10_000

#: Number of rows up to which all members are computed as one model: so few that calls take longer than numbers.
FEW_ROWS = 64

#: Number of mixture components from which a joint covariance is computed, of all members together.
COMPONENTS = 32

#: The same for each member: at least so many.
MEMBER_COMPONENTS = 6

#: Precisions of predictions, by their names in files.
DTYPES = {"float32": torch.float32, "float64": torch.float64}

T = TypeVar("T")


class Rows(Protocol):
    """Rows in the user's units: an array, or something else of which a slice is some of the rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


class Predictor(nn.Module):
    """Models that predict together, each of which counts the same.

    Members are blended with the same base, if there is one, and the same correction is added to all of them. So the
    base and the correction are computed once for each row, however many members there are.

    Parameters
    ----------
    members : sequence of DeepGP
        At least one trained model. All have the same precision, which is that of predictions.
    blend : Blend, default=None
        The base, and its weight.
    correction : Correction, default=None
        Correction by the nearest rows.
    parts : sequence of slice, default=parts that together are all
        With which alternatives of the base each member is blended.
    """

    def __init__(
        self,
        members: Sequence[DeepGP],
        blend: Blend | None = None,
        correction: Correction | None = None,
        parts: Sequence[slice] | None = None,
    ):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.blend, self.correction = blend, correction
        self._given_parts = parts
        self._with_members: bool | None = None  # of a frozen one, which may become a program without branches
        self._as_one: DeepGP | None = None  # of a frozen one for few rows: a stack of its members
        self._kept = Kept[Predictor]()

    def __len__(self) -> int:
        return len(self.members)

    @property
    def parts(self) -> Sequence[slice]:
        """With which alternatives of the base each member is blended."""
        if self._given_parts is not None or self.blend is None:
            return self._given_parts or len(self) * [ALL]
        n_parts = min(len(self), self.blend.n_alternatives)
        return [slice(number % n_parts, None, n_parts) for number in range(len(self))]

    @property
    def with_members(self) -> bool:
        """Whether members have a weight in predictions."""
        if self._with_members is not None:
            return self._with_members
        return self.blend is None or bool(self.blend.weight.any())

    @property
    def models(self) -> Sequence[DeepGP]:
        """The members, with their type."""
        return cast(Sequence[DeepGP], self.members)

    @property
    def likelihoods(self) -> list[Likelihood]:
        """Likelihoods of the members as they predict."""
        shared = self.blend if self.correction is None else self.correction
        return (
            [model.likelihood for model in self.models] if shared is None else [shared.likelihood for _ in self.models]
        )

    @property
    def weights(self) -> np.ndarray:
        """Weights (E,) of the members in predictions."""
        return np.full(len(self), 1 / len(self))

    @property
    def shares(self) -> list[float]:
        """Weights of its parts in predictions; it is a single part."""
        return [1.0]

    @property
    def main(self) -> "Predictor":
        """The part of it whose base, neighbours and lengthscales are shown to users: itself."""
        return self

    def with_main(self, main: "Predictor") -> "Predictor":
        """The same with another main part."""
        return main

    @property
    def base_weight(self) -> float:
        """Weight of the base near the training rows; 0 if there is no base."""
        return 0.0 if self.blend is None else 1.0 - self.blend.weight.reshape(-1)[0].item()

    @property
    def device(self) -> torch.device:
        """Where the members are."""
        return next(self.members.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of predictions, unless there are many rows."""
        return next(self.members.parameters()).dtype

    # Copies.

    def continued(self, index: int, generator: torch.Generator) -> DeepGP:
        """A copy of a member to continue with; it serves as a ``Start`` of another training."""
        return deepcopy(self.models[index % len(self)]).requires_grad_(True)

    @torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
    def frozen(self, dtype: torch.dtype = torch.float64, *, turned: bool = False, as_one: bool = False) -> "Predictor":
        """A copy that is faster in many calls; see :meth:`.Layer.frozen`. It is kept until a parameter changes.

        Members have the given precision. Base and correction always compute in float64. With ``as_one`` the copy
        is for marginals of up to ``FEW_ROWS`` rows: it computes all members as one model, if their classes can.
        """

        def make() -> Predictor:
            with torch.no_grad(), threads_for(self.products(0)):
                members = [_in_precision(model, dtype) for model in self.models]
                together = as_one and len(members) > 1 and self.with_members and can_be_stacked(members)
                whole = stack(members).frozen(turned=turned) if together else None
                if not (together or (as_one and not self.with_members)):  # without weight, members predict nothing
                    members = [model.frozen(turned=turned) for model in members]
                blend = None if self.blend is None else self.blend.frozen(turned=turned)
                correction = None if self.correction is None else self.correction.frozen()
                frozen = Predictor(members, blend, correction, self.parts)
                frozen._with_members, frozen._as_one = self.with_members, whole
                return frozen

        return self._kept.copy(self, (dtype, turned, as_one), make)

    def alone(self, *numbers: int, as_one: bool = False) -> "Predictor":
        """A copy of the members of these numbers, or of all, with a memory of its own; see :meth:`frozen`."""
        numbers = numbers or tuple(range(len(self)))
        models, parts = [self.models[number] for number in numbers], [self.parts[number] for number in numbers]
        return deepcopy(Predictor(models, self.blend, self.correction, parts)).frozen(as_one=as_one)

    # Predictions for rows (B, Q) in the members' precision.

    def marginals(self, X: Tensor) -> list[Marginals]:
        """Marginals of function values, one mixture for each member."""
        marginals = self._blended(X)
        if self.correction is None:
            return marginals
        shift, variance = self.correction.local.moments(X.double())
        return [corrected(values, shift, variance) for values in marginals]

    def _blended(self, X: Tensor) -> list[Marginals]:
        """Marginals without the correction."""
        if self.blend is None:
            return self._of_members(X)
        base = self.blend.of_base(X.double())
        if not self.with_members:  # they may be anything, and they take most of the time
            return [self.blend.without_members(base, part, X.dtype) for part in self.parts]
        t = self.blend.share(X, base)
        pairs = zip(self._of_members(X), self.parts, strict=True)
        return [self.blend.joined(t, deep, base, part) for deep, part in pairs]

    def _of_members(self, X: Tensor) -> list[Marginals]:
        """Marginals of the members, without base and correction."""
        if self._as_one is None:
            return [model(X) for model in self.models]
        together = self._as_one(X.expand(len(self), -1, -1))
        return [together.of_member(number) for number in range(len(self))]

    def inputs(self, number: int, X: Tensor) -> Tensor:
        """What the member of this number sees of rows: all of it."""
        return X

    def has_trend(self, number: int) -> bool:
        """Whether the member of this number has learnt what a trend leaves over."""
        return False

    def joint_response(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means (P, B) and covariances (P, B, B) of observations without noise, in the user's units, in float64."""
        likelihood = self.likelihoods[0]
        if not likelihood.linear:
            return self.joint(X, observed=True)
        return likelihood.joint(*self.joint(X))

    def joint(self, X: Tensor, *, joint: bool = True, observed: bool = False) -> tuple[Tensor, Tensor]:
        """Means (P, B) and covariances (P, B, B) of function values, in float64. They can be differentiated.

        Without ``joint`` there are variances (P, B) instead of covariances. With ``observed`` they are those of
        observations without noise, in the user's units.

        Correlations are exact if the mixture has at most ``COMPONENTS`` components, which are all stored. Otherwise
        they are an average over this many components.
        """
        n_components = max(MEMBER_COMPONENTS, -(-COMPONENTS // len(self)))
        means, total = [], X.new_zeros(())
        for model, marginals, part in zip(self.models, self._blended(X), self.parts, strict=True):
            likelihood = model.likelihood if self.blend is None else self.blend.likelihood
            response = likelihood.joint if observed else None
            mean, spread = (column.mT for column in marginals.of(response).moments())  # (P, B)
            if joint:
                streams = Streams(range(n_components), X.device)
                spread = with_variances(self._covariance(model, part, X, streams, response), spread)
                spread = 0.5 * (spread + spread.mT)
            means.append(mean)
            total = total + spread  # one matrix, however many members
        mean = torch.stack(means).mean(0)
        centred = torch.stack(means) - mean  # (E, P, B)
        between = torch.einsum("epi,epj->pij" if joint else "epi,epi->pi", centred, centred)
        spread = (total + between) / len(self)
        if self.correction is not None:  # independent of the members
            local = self.correction.local
            shift, variance = (column.mT for column in local.moments(X))
            mean, spread = mean + shift, spread + (local.covariance(X) if joint else variance)
        return mean, spread

    def _covariance(self, model: DeepGP, part: slice, X: Tensor, streams: Streams, response: Response | None) -> Tensor:
        """Joint covariances (P, B, B) of a member without the correction."""
        if self.blend is None:
            return model.covariance(X, streams, response)
        return self.blend.covariance(model, X, streams, response, part)

    def outputs(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means (B, P) of function values, and covariances (B, P, P) between the outputs of each row."""
        marginals = self.marginals(X)
        if self.blend is None and self.correction is None:
            within = [model.output_covariance(X) for model in self.models]
        else:
            within = [values.output_covariance() for values in marginals]
        means = torch.stack([values.moments()[0] for values in marginals])  # (E, B, P)
        centred = means - means.mean(0)
        between = torch.einsum("ebp,ebq->bpq", centred, centred) / len(self)
        return means.mean(0), torch.stack(within).mean(0) + between

    def draw(self, number: int, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], Tensor]:
        """Functions of the member of this number, from rows to values (S, B, P); see :meth:`.DeepGP.draw`."""
        model = self.models[number]
        if self.blend is None:
            function = model.draw(streams, of_rows=of_rows)
        else:
            function = self.blend.draw(model, streams, self.parts[number], of_rows=of_rows)
        if self.correction is None:
            return function
        local = self.correction.local.draw(streams)
        return lambda X: function(X) + local(X.double()).to(X)

    def members_of(self, seeds: np.ndarray) -> np.ndarray:
        """Numbers of the members that functions of these seeds belong to."""
        return seeds % len(self)

    def gradient_variance(self, X: Tensor) -> Tensor | None:
        """Mean over members of :meth:`.DeepGP.gradient_variance`; None if that is not known.

        It is not known either with a base or a correction, whose weights have derivatives of their own.
        """
        if self.blend is not None or self.correction is not None:
            return None
        variances = [variance for model in self.models if (variance := model.gradient_variance(X)) is not None]
        return torch.stack(variances).mean(0) if variances else None

    # How much there is to compute.

    def numbers_per_row(self) -> int:
        """Size of the largest tensor that marginals need, for each row."""
        local = 0 if self.correction is None else self.correction.local.numbers_per_row()
        return max(local, *(model.numbers_per_row() for model in self._parts))

    def numbers_per_draw(self) -> int:
        """Number of entries of the tensors that one drawn function computes with, for each row."""
        local = 0 if self.correction is None else self.correction.local.n_neighbors
        return local + max(model.numbers_per_draw() for model in self._parts)

    def products(self, n_rows: int) -> int:
        """Multiplications of the largest operation for this many rows, roughly."""
        local = 0 if self.correction is None else n_rows * self.correction.local.numbers_per_row()
        return max(local, *(model.products(n_rows) for model in self._parts))

    @property
    def _parts(self) -> list[DeepGP]:
        """A member, since all have the same size, and all bases."""
        return [self.models[0], *([] if self.blend is None else self.blend.bases)]

    # Predictions for tables.

    def batches(
        self,
        X: Rows,
        prepare: Callable[[Any], np.ndarray],
        function: Callable[[Tensor], T],
        dtype: torch.dtype | None = None,
        copies: int = 1,
    ) -> Iterator[tuple[slice, T]]:
        """Values of ``function`` for one batch of rows after another.

        If a GPU has too little memory for a batch, the batch is halved.

        Parameters
        ----------
        X : Rows
            Rows in the user's units, such as an array (n, Q).
        prepare : callable
            Brings some of the rows into the units of the models.
        function : callable
            A function of a Tensor (B, Q) on the device.
        dtype : torch.dtype, default=that of the members
            Precision of this tensor.
        copies : int, default=1
            Largest number of rows that ``prepare`` makes of each row.

        Yields
        ------
        rows : slice
            Rows of the batch.
        value : what the function returned for them
            Value for these rows.
        """
        let_the_allocator_keep_pages()
        device, dtype = self.device, dtype or self.dtype
        numbers = at_a_time(PREDICT_NUMBERS, device) * torch.float32.itemsize // dtype.itemsize
        n_batch = max(1, numbers // copies // self.numbers_per_row())
        start = 0
        while start < len(X):
            rows = slice(start, min(start + n_batch, len(X)))
            try:
                batch = torch.as_tensor(prepare(X[rows]), dtype=dtype, device=device)
                with torch.no_grad(), threads_for(self.products(len(batch))):
                    value = function(batch)
            except torch.OutOfMemoryError:
                if n_batch == 1:
                    raise
                n_batch //= 2
                continue
            yield rows, value
            start = rows.stop

    def predict(
        self,
        X: Rows,
        prepare: Callable[[Any], np.ndarray],
        function: Callable[[list[Likelihood], list[Marginals]], T],
        *,
        exact: bool = False,
        copies: int = 1,
    ) -> Iterator[tuple[slice, T]]:
        """Values of ``function`` of the members' likelihoods and marginals, by batches as in :meth:`batches`.

        With ``exact`` predictions are in the members' precision, whatever the number of rows is.
        """
        coarse = not exact and len(X) >= COARSE_ROWS and all(model.coarse for model in self.models)
        dtype, likelihoods = torch.float32 if coarse else self.dtype, self.likelihoods
        frozen = self.frozen(dtype, turned=True, as_one=copies * len(X) <= FEW_ROWS)
        return self.batches(X, prepare, lambda batch: function(likelihoods, frozen.marginals(batch)), dtype, copies)

    # Storage.

    def to_plain(self) -> dict:
        """The predictor as arrays, numbers and names."""
        return {
            "members": to_plain(self.members),
            "dtype": str(self.dtype).removeprefix("torch."),
            "blend": None if self.blend is None else to_plain(self.blend),
            "correction": None if self.correction is None else to_plain(self.correction),
        }

    @classmethod
    def from_plain(cls, state: dict) -> Self:
        """The predictor, on the CPU, from the state that :meth:`to_plain` returned."""
        dtype = DTYPES.get(state["dtype"]) if isinstance(state["dtype"], str) else None
        if dtype is None:
            refuse(f"predicts in {state['dtype']!r}, which is none of {list(DTYPES)}")
        members = [member for member in from_plain(state["members"], nn.ModuleList) if isinstance(member, DeepGP)]
        if not members or len(members) < len(state["members"]["modules"]):
            refuse("has a member that is no DeepGP")
        blend, correction = state.get("blend"), state.get("correction")
        return cls(
            [member.to(dtype) for member in members],
            None if blend is None else from_plain(blend, Blend),
            None if correction is None else from_plain(correction, Correction),
        )


def _in_precision(member: DeepGP, dtype: torch.dtype) -> DeepGP:
    """The member, or a copy if it has another precision."""
    same = next(member.parameters()).dtype == dtype
    return member if same else deepcopy(member).to(dtype)
