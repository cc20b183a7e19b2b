"""Choices after training, by rows that members have not learnt from: the blend with a base, and the neighbours."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.blend import Blend, like_deep
from ..gp.deep_gp import DeepGP
from ..gp.global_layer import GlobalLayer
from ..gp.kernels import StationaryKernel, SumKernel
from ..gp.likelihoods import AdditiveNoise, Likelihood
from ..gp.neighbours import Correction
from ..gp.noise import Contaminated
from .base import Base, Moments
from .batches import Batch, Part, as_of_complete, in_least_squares
from .blending import Gain, OutOfSample, blend, gain_of_members
from .calibration import MAX_ROWS, marginals_of
from .callers import users_level
from .foundation import Foundation, learn_foundation, rows_of_posterior
from .judged import Judged
from .kept import Kept
from .locality import (
    ERRORS,
    LEAST_GAIN,
    MOST_ROWS,
    MOST_VALIDATION_ROWS,
    N_NEIGHBORS,
    SEARCH_ROWS,
    Predicted,
    best_correction,
)
from .objectives import log_mixture
from .outliers import PREDICT_ROWS
from .pairs import Pairs
from .plan import HeldOut, LeftOut, Plan, Split
from .predictor import Predictor
from .shape import misshapen
from .tails import Tails, best_tails, noise_of
from .twins import counting_once, distinct, merged, mostly_twins

#: Kinds of bases that average over kernels and noises.
AVERAGED = ("numbers", "grades", "tails", "varying", "censored")

#: Largest share of its own target that a row may have in the prediction of the base, so that residuals of neighbours
#: need not leave out the row that judges; see :meth:`Validation._change`.
MOST_OWN_SHARE = 0.05

#: Share of its weight with which an outlier is a neighbour of other rows.
OUTLIER = 1e-9

#: Fewest rows of which a base of another kind predicts alone, if rows are too few to judge members. With fewer it is
#: more certain than it should be, and members are better.
FEWEST_ALONE = 10


class Validation(NamedTuple):
    """Choices by rows of a fit that are predicted as if members had not learnt from them.

    These are rows that members hold out, rows that the user gave, or, if the plan has a ``left_out``, rows that members
    have learnt from. ``device`` and ``dtype`` are those of predictions. Outliers have no weight in ``data``, and do not
    decide about members and base. They do count for noise and neighbours. If there are any, ``weight`` (N,) has the
    weights of all rows. ``kept`` has what members predict for all rows, each left out.
    """

    data: Batch
    split: Split
    plan: Plan
    device: torch.device
    dtype: torch.dtype
    kept: Kept[Moments]
    weight: Tensor | None = None

    @property
    def possible(self) -> bool:
        """Whether there are such rows."""
        return bool(self.split.n_rows) or self.split.rows is not None or self.plan.left_out is not None

    def without(self, outliers: Tensor) -> "Validation":
        """The same where some of the rows (N,) are outliers."""
        data = Batch(self.data.X, self.data.y, self.data.weight * ~outliers)
        return self._replace(data=data, kept=Kept(), weight=self.data.weight)

    def foundation(
        self,
        likelihood: Likelihood,
        groups: Sequence[int] | None,
        *,
        robust: bool = False,
        like: DeepGP | None = None,
        in_time: Callable[[], bool] = lambda: True,
    ) -> Foundation | None:
        """The base; None if nothing judges the members. If it cannot be computed, it is None after a warning.

        A ``robust`` one does without outliers, if rows are more likely then and if it is ``in_time``. ``like`` is the
        base of almost the same rows, if there is one; see :func:`.fit_base`.
        """
        alone = self.split.unjudged and (likelihood.base_kind in AVERAGED or len(self.data) >= FEWEST_ALONE)
        if not likelihood.has_base or not (self.possible or alone):
            return None
        basis = rows_of_posterior(Batch(self.data.X, self._regressands(likelihood), self.data.weight), self.split.order)
        try:
            rows = Part(self.data, basis.index).rows().to(self.device, torch.float64)
            return learn_foundation(likelihood, rows, basis, groups, robust=robust, like=like, in_time=in_time)
        except np.linalg.LinAlgError:
            warnings.warn(
                "The base could not be computed, and members predict without it: a covariance matrix has no Cholesky "
                "factor. The likely cause is features or targets with values far from all others: remove or transform "
                "these, or set base=None.",
                RuntimeWarning,
                stacklevel=users_level(),
            )
            return None

    def _regressands(self, likelihood: Likelihood) -> Tensor:
        """Targets of least squares for all rows; the likelihood's parameters are on the device of training."""
        return likelihood.regressands(self.data.y.to(self.device)).to(self.data.y.device)

    def blend(
        self, models: Sequence[DeepGP], foundation: Foundation, *, with_members: bool = True
    ) -> tuple[Blend, HeldOut]:
        """The blend of members and base that makes held-out rows most likely; members may be left without weight.

        If members have no weight, or there are too few rows to judge them, all rows judge the base alone.
        """
        base, noise = foundation.base, foundation.noise
        judged, out_of_sample = with_members and self._judges(base), self._out_of_sample(models, foundation)
        some = bool(self.split.n_rows) and not self.split.unjudged
        best, score = blend(
            base,
            models[0].likelihood,
            out_of_sample,
            self._targets(),
            None if noise is None else noise.base.model,
            judged=judged,
            all_rows=partial(self._all_rows, foundation) if some else None,
        )
        if some and not best.weight.any():
            return best, HeldOut(score, len(self._all(foundation)))
        # Rows that the user gave judge every member. They are still the same rows.
        sizes = [len(predicted.rows) for predicted in out_of_sample]
        return best, HeldOut(score, sizes[0] if self.split.rows is not None else sum(sizes))

    def _judges(self, base: Base) -> bool:
        """Whether rows can judge members.

        Rows from which a member has learnt a lengthscale for each of many features cannot, even if they are left out
        of its posterior afterwards.
        """
        held_out = bool(self.split.n_rows) or self.split.rows is not None
        return not self.split.unjudged and (held_out or not base.wide)

    def gain_of_members(self, models: Sequence[DeepGP], foundation: Foundation) -> Gain:
        """What members add to the mean log density of held-out rows; zero if there are too few rows to judge them."""
        if self.split.unjudged:
            return Gain(0.0, 0.0, 1.0)
        out_of_sample = self._out_of_sample(models, foundation)
        all_rows = partial(self._all_rows, foundation) if self.split.n_rows else None
        return gain_of_members(foundation.base, models[0].likelihood, out_of_sample, self._targets(), all_rows)

    def _out_of_sample(self, models: Sequence[DeepGP], foundation: Foundation) -> list[OutOfSample]:
        """Predictions of members and base for rows that judge them; if there are none, of the base for all rows."""
        if self.split.unjudged:
            return [self._all_rows(foundation)]
        held_out = (self.split.of(self.data, index)[1] for index in range(len(models)))
        parts = [
            (Part(self.data, foundation.rows.index) if part is None else part).spread(MAX_ROWS) for part in held_out
        ]
        out_of_sample = []
        for model, part, of_base in zip(models, parts, foundation.left_out_moments(parts), strict=True):
            rows = part.rows().to(self.device, self.dtype)
            mean, variance = self._moments(model, part, rows)
            out_of_sample.append(OutOfSample(rows, mean.double(), variance.double(), *of_base))
        return out_of_sample

    def _all_rows(self, foundation: Foundation) -> OutOfSample:
        """Predictions of the base for all rows, each as if it had not learnt from the row; also in place of members."""
        part = self._all(foundation)
        [of_base] = foundation.left_out_moments([part])
        rows = part.rows().to(self.device, self.dtype)
        return OutOfSample(rows, of_base.mean.double(), of_base.variance.double(), *of_base)

    def _all(self, foundation: Foundation) -> Part:
        """All rows of the base, or as many as judge."""
        return Part(self.data, foundation.rows.index).spread(MAX_ROWS)

    def _targets(self) -> tuple[Tensor, Tensor]:
        """Targets and weights of rows that have the classes' shares where the model will predict.

        Held-out rows stand for all rows. Rows that the user gave have shares of their own, but a class that they lack
        has the share that it has in the fit.
        """
        y, weight = self.data.y, self.data.weight
        if self.split.rows is None:
            return y, weight
        given = self.split.rows
        lacking = ~torch.isin(y[:, 0], given.y[:, 0])
        size = given.weight.sum() / weight.sum()
        return torch.cat([given.y, y[lacking]]), torch.cat([given.weight, size * weight[lacking]])

    def tails(self, predictor: Predictor, foundation: Foundation, *, as_with_members: bool = False) -> Tails:
        """Noise of two Gaussians for a predictor without neighbours.

        If members have no weight, all rows decide; or ``as_with_members`` those that members have not learnt from.
        """
        likelihood = cast(AdditiveNoise, predictor.likelihoods[0])
        predicted, ratio = self._judging(predictor, foundation, likelihood, as_with_members=as_with_members)
        return best_tails(predicted.errors().in_units(ratio), noise_of(likelihood))

    def misshapen(self, predictor: Predictor, foundation: Foundation | None) -> bool:
        """Whether the targets of rows are distributed in another way than the noise says; see :mod:`.shape`.

        Neighbours do not count. The noise must be of one or two Gaussians.
        """
        if not self.possible:
            return False
        shared = predictor.models[0] if predictor.blend is None else predictor.blend
        likelihood = cast(AdditiveNoise, shared.likelihood)
        predicted, ratio = self._judging(predictor, foundation, likelihood)
        return misshapen(predicted.errors().in_units(ratio), likelihood, predicted.rows.X, predicted.mean)

    def _judging(
        self,
        predictor: Predictor,
        foundation: Foundation | None,
        likelihood: AdditiveNoise,
        *,
        as_with_members: bool = False,
    ) -> tuple[Predicted, Tensor]:
        """Predictions without neighbours of rows that judge, and how much more noise than others each has (n, 1)."""
        part = Part(self.data, torch.as_tensor(self.split.order, device=self.data.X.device))
        if self.split.rows is not None:
            part = Part(self.split.rows)
        part = part.spread(MAX_ROWS)
        predicted = self._predicted(predictor, foundation, part)
        rows = in_least_squares(likelihood, predicted.rows)
        ratio = (predicted.rows.weight / rows.weight / likelihood.plain_ratio)[:, None]
        rows = Batch(rows.X, rows.y, predicted.rows.weight)
        unseen = self._unseen_by(predictor, part).any(0) if as_with_members else predicted.unseen
        predicted, ratio = predicted._replace(rows=rows).at(unseen), ratio[unseen]
        first, _ = distinct(predicted.rows)
        weight = counting_once(merged(predicted.rows))
        predicted = predicted.at(first)
        return predicted._replace(rows=Batch(predicted.rows.X, predicted.rows.y, weight)), ratio[first]

    def correction(
        self,
        predictor: Predictor,
        foundation: Foundation | None,
        n_neighbors: int | None,
        tails: Contaminated | None = None,
    ) -> tuple[Correction, Judged] | None:
        """The correction of a predictor that has none, by nearest rows, and how likely rows are with it.

        It is None if no rows judge it.

        With ``n_neighbors=None`` it is also None if it does not gain, beyond what ``tails`` of the noise do. If it
        cannot be computed, it is None after a warning.
        """
        stored, weight, worth = self.stored()
        others = None
        if self.split.rows is not None:
            others = self._predicted(predictor, foundation, Part(self.split.rows).spread(MOST_VALIDATION_ROWS))
        scales = [torch.ones(self.data.X.shape[1], dtype=torch.float64, device=self.device)]
        if predictor.blend is not None:
            for kernel in cast(SumKernel, predictor.blend.base.layers[0].kernel).kernels:
                if isinstance(kernel, StationaryKernel):
                    length = kernel.lengthscale[0].double()
                    scales.append(length / length.log().mean().exp())
        predicted = self._predicted(predictor, foundation, stored)
        rows = Batch(predicted.rows.X, predicted.rows.y, weight.to(predicted.rows.weight))
        predicted = predicted._replace(rows=rows, worth=None if worth is None else worth.to(rows.weight))
        likelihood = cast(AdditiveNoise, predictor.likelihoods[0])
        predicted = predicted._replace(rows=as_of_complete(likelihood, predicted.rows))
        if others is not None:
            others = others._replace(rows=as_of_complete(likelihood, others.rows))
        change = None if others is not None else self._change(predictor, foundation, stored, predicted.rows.X)
        best = _best_correction(predicted, others, likelihood, scales, n_neighbors or N_NEIGHBORS, change, tails)
        if best is None:
            return None
        correction, judged = best
        if n_neighbors is None and correction.gain <= max(ERRORS * correction.error, LEAST_GAIN):
            return None
        if n_neighbors is None and self._leads_away(predictor, correction, stored.spread(SEARCH_ROWS)):
            return None
        source = stored if others is None else Part(cast(Batch, self.split.rows)).spread(MOST_VALIDATION_ROWS)
        number = judged.number if source.index is None else source.index.cpu().numpy()[judged.number]
        per_row = self._log_jacobian(correction.likelihood, predicted.rows.y)
        return correction, judged._replace(number=number, log_density=judged.log_density + per_row)

    @staticmethod
    def _log_jacobian(likelihood: Likelihood, y: Tensor) -> float:
        """What is added to the log density of a row, so that it is in the user's units."""
        return float(likelihood.log_jacobian(y[:1], torch.ones_like(y[:1, 0])))

    @torch.no_grad()
    def _change(
        self, predictor: Predictor, foundation: Foundation | None, stored: Part, X: Tensor
    ) -> Callable[[Tensor, Tensor], Tensor] | None:
        """What neighbours' residuals change by if nothing has learnt from the row that judges; None if it is little.

        The residual of a neighbour leaves out the neighbour. But the base has learnt from the row that judges, and so
        have members that hold no rows out. They go through this row, so that residuals around it are not what they are
        around a new row, and neighbours seem to be worth less. The share of its target in predictions is points over
        rows at most.
        """
        judged, of_members = [], X.new_ones(len(X), 1)
        if (blend := predictor.blend) is not None and foundation is not None:
            frozen = blend.frozen()
            of_members = torch.cat([frozen.share(some, frozen.of_base(some)) for some in X.split(PREDICT_ROWS)])
            judged.append((1.0 - of_members, [foundation.base], foundation.rows))
        if self._by_plan(stored) and predictor.with_members:
            judged.append((of_members, [Base(model) for model in predictor.models], Part(self.data)))
        if all(n_points(bases[0].model) <= MOST_OWN_SHARE * len(rows) for _, bases, rows in judged):
            return None
        pairs = [(share, Pairs.of(bases, stored, rows)) for share, bases, rows in judged]

        def change(first: Tensor, second: Tensor) -> Tensor:
            return torch.stack([share[second] * of.change(first, second) for share, of in pairs]).sum(0)

        return change

    @torch.no_grad()
    def _leads_away(self, predictor: Predictor, correction: Correction, part: Part) -> bool:
        """Whether rows that were learnt from are farther from predictions with the correction than these allow.

        Each of these rows is the nearest neighbour of itself. So the correction brings it nearer to its target, unless
        the model meets its rows, and residuals are only those of rows that are left out. Then the correction may be
        right for new rows, but these rows must still have deviations that cover their errors.
        """
        rows = as_of_complete(predictor.likelihoods[0], part.rows().to(self.device, self.dtype))
        moments = [marginals.moments() for marginals in predictor.marginals(rows.X)]
        means, variances = (torch.stack(column).double() for column in zip(*moments, strict=True))
        left, variance = rows.y.double() - means.mean(0), variances.mean(0) + means.var(0, correction=0)
        shift, added = correction.local.moments(rows.X.double())
        noise = correction.likelihood.noise_variance() / np.square(correction.likelihood.units.scale)
        total = variance + added + torch.from_numpy(noise).to(variance)
        weight = rows.weight.double()[:, None]
        farther = (weight * (left - shift).square()).sum() > (weight * left.square()).sum()
        z2 = (weight * (left - shift).square() / total).sum() / (weight.sum() * left.shape[1])
        return bool(farther and z2 > 1)

    @torch.no_grad()
    def judge(self, predictor: Predictor, foundation: Foundation | None, beside: Judged | None = None) -> Judged | None:
        """How likely rows are that members have not learnt from; None if there are none.

        They are those that judge another predictor ``beside`` this one, if there is one. Neighbours count by what they
        gain on average. Predictions count as Gaussian, even if they are mixtures, unless there are members alone.
        """
        if not self.possible:
            return None
        part = Part(self.data, torch.as_tensor(self.split.order, device=self.data.X.device))
        if self.split.rows is not None:
            part = Part(self.split.rows, torch.arange(len(self.split.rows), device=self.data.X.device))
        elif self.split.n_rows:
            held_out = [self.split.parts(index)[1] for index in range(len(predictor))]
            part = Part(self.data, torch.as_tensor(np.unique(np.concatenate(held_out)), device=self.data.X.device))
        if beside is None:
            part = part.spread(MAX_ROWS)
        else:
            part = Part(part.data, torch.as_tensor(beside.number, device=part.data.X.device))
        predicted, blend = self._predicted(predictor, foundation, part), predictor.blend
        likelihood = predictor.models[0].likelihood if blend is None else blend.likelihood
        y, weight = predicted.rows.y, counting_once(predicted.rows)
        if blend is None and predictor.correction is None and not self._by_plan(part):
            density = self._of_mixtures(predictor, part)
        else:
            density = likelihood.log_predictive(y, predicted.mean[None], predicted.variance[None])[0]
        density = density + self._log_jacobian(likelihood, y)
        if predictor.correction is not None:
            density = density + predictor.correction.gain
        columns = (cast(Tensor, part.index), density, weight, y - predicted.mean)
        return Judged(*(column[predicted.unseen.to(column.device)].cpu().numpy() for column in columns))

    def _of_mixtures(self, predictor: Predictor, part: Part) -> Tensor:
        """Log densities (n,) of rows by the members that have not learnt from them, in the models' units."""
        rows, size = part.rows().to(self.device, self.dtype), max(self.plan.settings.batch_size, PREDICT_ROWS)
        unseen = self._unseen_by(predictor, part)
        of_members = torch.stack(
            [log_mixture(marginals_of(model, rows, size), model.likelihood, rows.y) for model in predictor.models]
        ).double()
        counts = unseen | ~unseen.any(0)
        return of_members.masked_fill(~counts, -torch.inf).logsumexp(0) - counts.sum(0).double().log()

    def stored(self) -> tuple[Part, Tensor, Tensor | None]:
        """Rows that may become neighbours, with their weights, and shares of these with which they are neighbours.

        If some rows have twins, then new rows will, too, and a twin is the best of neighbours. But if most rows have
        twins, the table was made by repeating rows. New rows will not be copies, and a copy among the neighbours would
        only prove that there is no noise. So twins are one row then, and if the split says so.
        """
        order = torch.as_tensor(self.split.order[:MOST_ROWS], device=self.data.X.device)
        part = Part(self.data, order)
        rows = self._with_all_weights(part, part.rows())
        weight = rows.weight
        if mostly_twins(rows) or self.split.distinct:
            first, weight = distinct(rows)
            part = Part(self.data, order[first])
        outlier = part.rows().weight == 0
        return part, weight, torch.where(outlier, OUTLIER, 1.0) if outlier.any() else None

    def _with_all_weights(self, part: Part, rows: Batch) -> Batch:
        """The rows of a part with weights for outliers, too."""
        if self.weight is None or part.data is not self.data:
            return rows
        weight = self.weight if part.index is None else self.weight[part.index]
        return Batch(rows.X, rows.y, weight.to(rows.weight))

    @torch.no_grad()
    def _predicted(self, predictor: Predictor, foundation: Foundation | None, part: Part) -> Predicted:
        """Predictions of members and base for some rows, as if they had not learnt from the row, if that is known.

        If some members hold a row out, only these predict it. Members without weight predict nothing, so that only the
        base must not have learnt from a row.
        """
        rows = part.rows().to(self.device, self.dtype)
        exact = self._with_all_weights(part, rows.to(self.device, torch.float64))
        if not predictor.with_members:
            [of_base] = cast(Foundation, foundation).left_out_moments([part])
            whole = of_base.mean.new_zeros(len(part), predictor.likelihoods[0].n_outputs)
            mean, variance = (like_deep(values, whole) for values in (of_base.mean, of_base.variance))
            everything = torch.ones(len(part), dtype=torch.bool, device=self.device)
            return Predicted(exact, mean, variance, everything)
        moments = [self._moments(model, part, rows) for model in predictor.models]
        by_member = self._unseen_by(predictor, part)
        unseen = by_member.any(0)
        weight = (by_member | ~unseen).double()[..., None]
        weight = weight / weight.sum(0)
        means, variances = (torch.stack(column).double() for column in zip(*moments, strict=True))  # (E, n, P)
        mean = (weight * means).sum(0)
        variance = (weight * (variances + (means - mean).square())).sum(0)
        if (blend := predictor.blend) is not None:
            frozen = blend.frozen()
            t = torch.cat([frozen.share(X, frozen.of_base(X)) for X in exact.X.split(PREDICT_ROWS)])
            [of_base] = cast(Foundation, foundation).left_out_moments([part])  # its base is that of the blend
            base_mean, base_variance = (like_deep(values, mean) for values in (of_base.mean, of_base.variance))
            mean = t * mean + (1 - t) * base_mean
            variance = (t * variance.sqrt() + (1 - t) * base_variance.sqrt()).square()
        return Predicted(exact, mean, variance, unseen)

    def _by_plan(self, part: Part) -> bool:
        """Whether the plan predicts these rows without themselves: members have learnt from all of them."""
        return part.data is self.data and not self.split.n_rows and self.plan.left_out is not None

    def _moments(self, model: DeepGP, part: Part, rows: Batch) -> tuple[Tensor, Tensor]:
        """A member's means and variances (n, P) at these rows of a part."""
        settings = self.plan.settings
        if not self._by_plan(part):
            return marginals_of(model, rows, max(settings.batch_size, PREDICT_ROWS)).moments()
        left_out, data = cast(LeftOut, self.plan.left_out), self.data.to(self.device, self.dtype)
        if len(part) < len(data):
            return left_out(model, rows, data, settings)
        mean, variance = self.kept.copy(model, id(model), lambda: left_out(model, data, data, settings))
        index = part.at(torch.arange(len(part), device=self.data.X.device)).to(self.device)
        return mean[index], variance[index]

    def _unseen_by(self, predictor: Predictor, part: Part) -> Tensor:
        """For which rows of a part each member predicts as if it had not learnt from them, (E, n)."""
        return torch.stack([self._unseen(index, part) for index in range(len(predictor))]).to(self.device)

    def _unseen(self, index: int, part: Part) -> Tensor:
        """For which rows (n,) of a part the member of this number predicts as if it had not learnt from them."""
        own = part.data is self.data
        held_out = self.split.of(self.data, index)[1] if own else None
        if held_out is not None and held_out.index is not None:
            return torch.isin(cast(Tensor, part.index), held_out.index)
        return torch.full((len(part),), self._by_plan(part) or not own, device=self.data.X.device)


def n_points(model: DeepGP) -> int:
    """Number of inducing variables of a model of one layer."""
    return sum(cast(GlobalLayer, model.layers[0]).sizes)


def _best_correction(*arguments) -> tuple[Correction, Judged] | None:
    """The best correction; see :func:`.best_correction`. If it cannot be computed, it is None after a warning."""
    try:
        return best_correction(*arguments)
    except np.linalg.LinAlgError:
        warnings.warn(
            "The correction by nearest rows could not be computed, and predictions do without it: a covariance "
            "matrix has no Cholesky factor. The likely cause is features or targets with values far from all "
            "others: remove or transform these, or set n_neighbors=0.",
            RuntimeWarning,
            stacklevel=users_level(),
        )
        return None
