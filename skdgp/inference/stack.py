"""Predictors that start from different trends, and predict together.

Predictor k has learnt what the trend m_k leaves over of the targets. So it predicts y = m_k(x) + r_k(x) + noise, and
all together predict the mixture Σ_k w_k p_k(y | x). The weights w make the rows most likely that predictors have not
learnt from (stacking of predictive distributions: Yao, Vehtari, Simpson and Gelman, Bayesian Analysis 2018).

Inputs are the columns of the features, and after them one column for each trend and output. In its units such a column
has variance one. A predictor sees the features and, if it is to, its own trend: where the trend errs, it can so be left
out again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor, nn

from ..gp.deep_gp import Marginals
from ..gp.likelihoods import Likelihood
from ..gp.waves import Streams
from .guide import Guide
from .predictor import Predictor
from .trusted import refuse

#: Number of rows that each weight counts as before rows are seen, so that few rows decide little.
PRIOR_ROWS = 0.5

#: Number of steps that find the weights.
STEPS = 500

#: Share of the golden ratio, times 2⁶⁴. Its multiples are spread evenly, whatever the seeds of functions are.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)

#: Rounding errors of weights.
ROUNDING = 1e-9


class View(NamedTuple):
    """What a predictor has of the inputs.

    Parameters
    ----------
    n_features : int
        Number of the features' columns, which come first.
    first : int or None
        The first column of its trend; None if it has no trend.
    slope : tuple of float
        For each target, by what the trend's column has to be multiplied in the predictor's units.
    sees : bool
        Whether its models see the trend.
    guide : Guide or None
        What makes features for its models from those of rows; see :mod:`.guide`.
    """

    n_features: int
    first: int | None = None
    slope: tuple[float, ...] = ()
    sees: bool = True
    guide: Guide | None = None

    def inputs(self, X: Tensor) -> Tensor:
        """What the models see of rows X (B, Q)."""
        features = X[:, : self.n_features]
        features = features if self.guide is None else self.guide(features)
        return torch.cat([features, self._columns(X)], dim=1) if self.first is not None and self.sees else features

    def trend(self, X: Tensor, n_outputs: int) -> Tensor:
        """The trend (B, D) in units of function values. It is zero for those that are not means of targets."""
        if self.first is None:
            return X.new_zeros(len(X), n_outputs)
        values = self._columns(X) * X.new_tensor(self.slope)
        return nn.functional.pad(values, (0, n_outputs - len(self.slope)))

    def alone(self, *, as_one: bool) -> "View":
        """A copy with a memory of its own; see :meth:`.Predictor.alone`."""
        return self if self.guide is None else self._replace(guide=self.guide.alone(as_one=as_one))

    def frozen(self, *, turned: bool, as_one: bool) -> "View":
        """A copy that is faster in many calls; see :meth:`.Predictor.frozen`."""
        return self if self.guide is None else self._replace(guide=self.guide.frozen(turned=turned, as_one=as_one))

    def _columns(self, X: Tensor) -> Tensor:
        start = 0 if self.first is None else self.first
        return X[:, start : start + len(self.slope)]


class Stack(Predictor):
    """Predictors of different trends as one; see the module's docstring.

    Its members are those of all predictors, one predictor after another.

    Parameters
    ----------
    predictors : sequence of Predictor
        At least one.
    views : sequence of View
        What each of them sees.
    shares : sequence of float
        Their weights, which add up to one.
    """

    def __init__(self, predictors: Sequence[Predictor], views: Sequence[View], shares: Sequence[float]):
        super().__init__([model for predictor in predictors for model in predictor.models])
        self.stacked = nn.ModuleList(predictors)
        self.views, self._shares = list(views), [float(share) for share in shares]

    @property
    def shares(self) -> list[float]:
        """Weights of the predictors, which add up to one."""
        return self._shares

    @property
    def predictors(self) -> list[Predictor]:
        """The predictors, with their type."""
        return [part for part in self.stacked if isinstance(part, Predictor)]

    def with_main(self, main: Predictor) -> "Stack":
        """See :meth:`.Predictor.with_main`."""
        predictors = self.predictors
        predictors[self._main] = main
        return Stack(predictors, self.views, self.shares)

    @property
    def main(self) -> Predictor:
        """The predictor of the largest weight; if some have a base, among these."""
        return self.predictors[self._main]

    @property
    def _main(self) -> int:
        blended = [predictor.blend is not None for predictor in self.predictors]
        return int(np.argmax(np.where(blended, self.shares, -1.0) if any(blended) else self.shares))

    @property
    def likelihoods(self) -> list[Likelihood]:
        """Likelihoods of the members as they predict. Each has units of its own."""
        return [likelihood for predictor in self.predictors for likelihood in predictor.likelihoods]

    @property
    def weights(self) -> np.ndarray:
        """Weights (E,) of the members."""
        return np.concatenate([share * part.weights for share, part in zip(self.shares, self.predictors, strict=True)])

    @property
    def base_weight(self) -> float:
        """Weight of the bases near the training rows."""
        return float(np.dot(self.shares, [predictor.base_weight for predictor in self.predictors]))

    # Copies.

    @torch.inference_mode(False)  # gradients cannot use tensors that were made in this mode
    def frozen(self, dtype: torch.dtype = torch.float64, *, turned: bool = False, as_one: bool = False) -> "Stack":
        """See :meth:`.Predictor.frozen`."""
        parts = [part.frozen(dtype, turned=turned, as_one=as_one) for part in self.predictors]
        views = [view.frozen(turned=turned, as_one=as_one) for view in self.views]
        return Stack(parts, views, self.shares)

    def alone(self, *numbers: int, as_one: bool = False) -> "Stack":
        """See :meth:`.Predictor.alone`. Members keep their order."""
        numbers = numbers or tuple(range(len(self)))
        kept = [
            (k, [own for number in numbers if (own := number - start) in range(len(part))])
            for k, (start, part) in enumerate(zip(self._starts, self.predictors, strict=True))
        ]
        kept = [(k, own) for k, own in kept if own]
        return Stack(
            [self.predictors[k].alone(*own, as_one=as_one) for k, own in kept],
            [self.views[k].alone(as_one=as_one) for k, _ in kept],
            [self.shares[k] for k, _ in kept],
        )

    # Predictions for rows (B, Q).

    def inputs(self, number: int, X: Tensor) -> Tensor:
        """What the member of this number sees of rows."""
        return self.views[self._place(number)[0]].inputs(X)

    def has_trend(self, number: int) -> bool:
        """Whether the member of this number has learnt what a trend leaves over."""
        return self.views[self._place(number)[0]].first is not None

    def marginals(self, X: Tensor) -> list[Marginals]:
        """Marginals of function values with their trends, one mixture for each member."""
        marginals = []
        for predictor, view in zip(self.predictors, self.views, strict=True):
            for member in predictor.marginals(view.inputs(X)):
                marginals.append(member._replace(mean=member.mean + view.trend(X, member.mean.shape[-1])))
        return marginals

    def joint(self, X: Tensor, *, joint: bool = True, observed: bool = False) -> tuple[Tensor, Tensor]:
        """See :meth:`.Predictor.joint`. Predictors of different trends have none, since their units differ."""
        if any(view.first is not None for view in self.views):
            raise NotImplementedError("Predictors of different trends have joint_response alone.")
        parts = zip(self.predictors, self.views, strict=True)
        means, spreads = zip(
            *(part.joint(view.inputs(X), joint=joint, observed=observed) for part, view in parts), strict=True
        )
        within = sum(share * spread for share, spread in zip(self.shares, spreads, strict=True))
        product = "kpi,kpj->pij" if joint else "kpi,kpi->pi"
        return _mixed(torch.stack(means), X.new_tensor(self.shares), within, product)

    def joint_response(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means (P, B) and covariances (P, B, B) of observations without noise, in the user's units."""
        means, within = [], X.new_zeros(())
        for predictor, view, share in zip(self.predictors, self.views, self.shares, strict=True):
            mean, covariance = predictor.joint_response(view.inputs(X))
            trend = view.trend(X, len(mean)) * X.new_tensor(predictor.likelihoods[0].units.scale)
            means.append(mean + trend.mT)
            within = within + share * covariance
        return _mixed(torch.stack(means), X.new_tensor(self.shares), within, "kpi,kpj->pij")

    def outputs(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means (B, P) and covariances (B, P, P) of function values, in the units of the first member."""
        means, within, units = [], X.new_zeros(()), self.likelihoods[0].units
        for predictor, view, share in zip(self.predictors, self.views, self.shares, strict=True):
            mean, covariance = predictor.outputs(view.inputs(X))
            own = predictor.likelihoods[0].units
            ratio = X.new_tensor(own.scale) / X.new_tensor(units.scale)
            shift = (X.new_tensor(own.shift) - X.new_tensor(units.shift)) / X.new_tensor(units.scale)
            means.append((mean + view.trend(X, mean.shape[1])) * ratio + shift)
            within = within + share * covariance * ratio[:, None] * ratio
        return _mixed(torch.stack(means), X.new_tensor(self.shares), within, "kbp,kbq->bpq")

    def draw(self, number: int, streams: Streams, *, of_rows: bool = False) -> Callable[[Tensor], Tensor]:
        """Functions of the member of this number with their trend; see :meth:`.Predictor.draw`."""
        k, own = self._place(number)
        function, view = self.predictors[k].draw(own, streams, of_rows=of_rows), self.views[k]

        def with_trend(X: Tensor) -> Tensor:
            values = function(view.inputs(X))
            return values + view.trend(X, values.shape[-1])

        return with_trend

    def members_of(self, seeds: np.ndarray) -> np.ndarray:
        """Numbers of the members that functions of these seeds belong to; as many as members have weight."""
        place = (np.asarray(seeds).astype(np.uint64) * GOLDEN) / 2.0**64  # modulo one, also of very large seeds
        k = np.searchsorted(np.cumsum(self.shares[:-1]), place, side="right")
        sizes = np.array([len(predictor) for predictor in self.predictors])
        return np.asarray(self._starts)[k] + seeds % sizes[k]

    def gradient_variance(self, X: Tensor) -> Tensor | None:
        """It is not known, since trends are not."""
        return None

    # How much there is to compute.

    def numbers_per_row(self) -> int:
        """See :meth:`.Predictor.numbers_per_row`."""
        return max(predictor.numbers_per_row() for predictor in self.predictors + self._guides)

    def numbers_per_draw(self) -> int:
        """See :meth:`.Predictor.numbers_per_draw`."""
        functions = [predictor.numbers_per_draw() for predictor in self.predictors]
        return max(functions + [guide.numbers_per_row() for guide in self._guides])  # one for all functions

    def products(self, n_rows: int) -> int:
        """See :meth:`.Predictor.products`."""
        return max(predictor.products(n_rows) for predictor in self.predictors + self._guides)

    @property
    def _guides(self) -> list[Predictor]:
        """What guides compute with."""
        return [view.guide.predictor for view in self.views if view.guide is not None]

    # Storage.

    def to_plain(self) -> dict:
        """The predictors as arrays, numbers and names."""
        return {
            "stack": [predictor.to_plain() for predictor in self.predictors],
            "views": [[view.n_features, view.first, list(view.slope), view.sees] for view in self.views],
            "shares": self.shares,
            "guides": [None if view.guide is None else view.guide.to_plain() for view in self.views],
        }

    @classmethod
    def from_plain(cls, state: dict) -> "Stack":
        """The stack, on the CPU, from the state that :meth:`to_plain` returned."""
        predictors = [Predictor.from_plain(part) for part in state["stack"]]
        stored = state.get("guides", len(state["views"]) * [None])  # files of earlier versions do not say
        guides = [None if guide is None else Guide.from_plain(guide) for guide in stored]
        if len(guides) != len(state["views"]):
            refuse("has guides of another number of predictors")
        views = [
            View(n, first, tuple(slope), sees, guide)
            for (n, first, slope, sees), guide in zip(state["views"], guides, strict=True)
        ]
        shares = np.asarray(state["shares"], dtype=np.float64)
        whole = shares.shape == (len(predictors),) and shares.min() >= 0 and abs(shares.sum() - 1) < ROUNDING
        if not predictors or len(views) != len(predictors) or not whole:
            refuse("has weights of another number of predictors")
        return cls(predictors, views, shares.tolist())

    @property
    def _starts(self) -> list[int]:
        """Number of the first member of each predictor."""
        return np.cumsum([0, *(len(predictor) for predictor in self.predictors)])[:-1].tolist()

    def _place(self, number: int) -> tuple[int, int]:
        """The predictor that a member belongs to, and the member's number in it."""
        k = int(np.searchsorted(self._starts, number, side="right")) - 1
        return k, number - self._starts[k]


def _mixed(means: Tensor, shares: Tensor, within: Tensor, product: str) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a mixture of parts with means (K, ...), by the law of total covariance.

    ``within`` is the mean of the parts' covariances.
    """
    shape = (-1, *(means.dim() - 1) * [1])
    mean = (shares.reshape(shape) * means).sum(0)
    centred = (means - mean) * shares.sqrt().reshape(shape)
    return mean, within + torch.einsum(product, centred, centred)


def stacking_weights(log_density: np.ndarray, row_weight: np.ndarray) -> np.ndarray:
    """Weights (K,) that make rows most likely, from log densities (n, K) of parts that have not learnt from the row.

    It is the maximum of Σ_n v_n log Σ_k w_k p_nk with a Dirichlet prior, by expectation maximisation.
    """
    n_parts = log_density.shape[1]
    weights = np.full(n_parts, 1 / n_parts)
    for _ in range(STEPS):
        joint = np.log(weights) + log_density
        counts = row_weight @ np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        weights = (counts + PRIOR_ROWS) / (row_weight.sum() + n_parts * PRIOR_ROWS)
    return weights
