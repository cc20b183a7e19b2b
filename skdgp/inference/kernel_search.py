"""The kernel of a base: the one that makes some hundred rows most likely, among those that compete.

A kernel is the sum of a smooth kernel of all distances together and a linear one. Two smooth kernels compete. Then the
better one is joined by a kernel of second-order interactions (:mod:`..gp.interactions`), which is kept if it makes rows
more likely. With it a function of many features, of which only two act together at a time, needs far fewer rows.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..gp.interactions import InteractionKernel
from ..gp.kernels import LinearKernel, StationaryKernel, SumKernel
from ..gp.likelihoods import Gaussian
from .batches import Batch
from .evidence import are_zero, most_likely

#: Kernels that compete.
PROFILES = ("matern52", "rbf")

#: Iterations of L-BFGS for the first comparison of kernels.
FIRST_ITERATIONS = 25

#: Iterations of L-BFGS for the kernels that are left.
ITERATIONS = 75

#: Largest number of further searches, if a function looked noisy at first and does not in the end.
MORE_SEARCHES = 3

#: Factor by which the noise's excess is smaller where they start.
LESS_NOISE = 100.0

#: Gain per row below which a search is the last one, and below which interactions are not worth their time.
GAIN = 0.01

#: Least gain of interactions from all rows together.
LEAST_GAIN = 2.0

#: Numbers of quantities that may interact. Two of them are all there are, and many take long.
INTERACTING = range(3, 51)

#: Kernels that are behind by this much per row or less stay in the competition: without noise a smooth kernel needs
#: more than twenty iterations to show that it is the better one.
MARGIN = 0.2

#: The same after a search by the rows of the first comparison, where there are more rows. Each kernel that is left then
#: needs a search by all of these, which takes much longer.
LATER_MARGIN = 0.02

#: Initial excess of the noise over its floor, as a share of the targets' variance.
EXCESS = 0.1

#: If all searches find that the noise is more than this share of the targets' variance, there is a second start.
NOTHING = 0.9

#: Kernel of the second start, its excess, and its share of the lengthscale: functions that change within a short
#: distance look like noise to a long lengthscale. It counts if it is better by ``MARGIN`` per row.
SECOND_START = ("rbf", 0.01, 0.25)

#: If a search starts from the kernel of almost the same rows without noise, and a lengthscale becomes this share of
#: what it was or less, rows contradict that start, and there is another search with noise.
MUCH_SHORTER = 0.2

#: Number of rows for the evidence in the first comparison. With noise, few rows are enough to find the better kernel.
FIRST_ROWS = 350

#: Noise above this share of the targets' variance is much.
NOISY = 1e-3

#: Number of rows for the evidence in the end, with much noise.
NOISY_ROWS = 600

#: The same with little noise.
ROWS = 1000

#: Largest product of the numbers of rows and of quantities in a search for interactions, from ``FIRST_ROWS`` on. The
#: time of a step grows with the quantities and the square of the rows. With up to 16 quantities there are 1000 rows.
ROWS_TIMES_QUANTITIES = 16_000

#: Numbers of quantities above this are many. Then linear functions of all of them explain any targets of a few rows. A
#: search that starts with them never finds the few quantities that decide. So it starts with this share of them.
WIDE, LITTLE_LINEAR = 61, 0.01

#: How far the logarithms of kernel and noise may move: from a noise of 0.1 to one of 1e-8 and beyond.
REACH = 16.0

#: Smallest noise variance, as a share of the targets' variance.
NOISE_FLOOR = 1e-10

#: How far linear functions continue beyond the data, as a share of each feature's range.
BEYOND = 0.1

#: Which inputs share a lengthscale: the number of each input's group, or None if no inputs share one.
Groups = Sequence[int] | None


class Candidate(NamedTuple):
    """A kernel with its noise, and the logarithm of evidence and prior per row that the first comparison has found."""

    score: float
    kernel: SumKernel
    likelihood: Gaussian

    @property
    def noise(self) -> float:
        """The smallest noise variance."""
        return self.likelihood.variance.min().item()

    def learn(self, rows: Batch) -> float:
        """Make rows most likely, starting from the present values; the score per row."""
        return most_likely(self.kernel, self.likelihood, rows, ITERATIONS, REACH, of_varying=True)

    def copy(self) -> "Candidate":
        """The same, of which another search may start."""
        return Candidate(self.score, deepcopy(self.kernel), deepcopy(self.likelihood))

    def take(self, other: "Candidate") -> None:
        """Take the values of another one with the same kernel."""
        self.kernel.load_state_dict(other.kernel.state_dict())
        self.likelihood.load_state_dict(other.likelihood.state_dict())


@dataclass
class KernelSearch:
    """The search for the kernel of some rows.

    Parameters
    ----------
    rows : Batch
        Rows of float64, in random order. The last of them decide.
    floor : Tensor of shape (P,) or (1,)
        Smallest noise variances, of each output or of all.
    groups : sequence of int or None
        Which inputs share a lengthscale.
    fixed : bool
        Whether the floor is what noise variances are.
    """

    rows: Batch
    floor: Tensor
    groups: Groups
    fixed: bool

    def __post_init__(self):
        # It is 1 if targets are standardised.
        weight, squares = self.rows.weight, self.rows.y.square()
        self.scale = max(((weight[:, None] * squares).mean() / weight.mean()).item(), NOISE_FLOOR)
        self.n_inputs = self.rows.X.shape[1]
        self.n_quantities = self.n_inputs if self.groups is None else max(self.groups) + 1

    def best(self) -> tuple[SumKernel, Gaussian]:
        """The most likely kernel, with its noise."""
        candidates = [self.candidate(profile, EXCESS) for profile in PROFILES]
        if all(candidate.noise > NOTHING * self.scale for candidate in candidates):
            again = self.candidate(*SECOND_START)
            if again.score > MARGIN + max(candidate.score for candidate in candidates):  # a few far targets gain less
                candidates.append(again)
        best = max(candidates, key=lambda candidate: candidate.score)
        if self.n_quantities in INTERACTING:
            joined = self.candidate(smooth_of(best.kernel).profile, EXCESS, interactions=True)
            if joined.score > best.score + max(GAIN, LEAST_GAIN / len(self.rows)):
                candidates, best = [*candidates, joined], joined
        noisy = best.noise > NOISY * self.scale
        if noisy and not self.fixed:  # given noise may differ from row to row, so that some rows tell the kernels apart
            self.learn(best, self._last(NOISY_ROWS, best))
            if best.noise <= NOISY * self.scale:
                _learn_with_less_noise(best, self._last(ROWS, best))
            return best.kernel, best.likelihood
        close = [candidate for candidate in candidates if candidate.score >= best.score - MARGIN]
        last = self._last(NOISY_ROWS if noisy else ROWS, *close)
        if len(close) > 1 and len(last) > FIRST_ROWS:
            scores = [self.learn(candidate, self._last(FIRST_ROWS)) for candidate in close]
            highest = max(scores)
            close = [one for one, score in zip(close, scores, strict=True) if score >= highest - LATER_MARGIN]
        best = close[int(np.argmax([self.learn(candidate, last) for candidate in close]))]
        return best.kernel, best.likelihood

    def best_near(self, kernel: SumKernel, likelihood: Gaussian) -> tuple[SumKernel, Gaussian]:
        """The same if the best kernel of almost the same rows is known, with its noise. The search starts there."""
        kernel, noise = deepcopy(kernel).requires_grad_(True), self._noise(EXCESS)
        with torch.no_grad():
            linear = linear_of(kernel)
            linear.low, linear.high = _box(self.rows.X, self.groups)
            if not self.fixed:
                noise.log_excess.copy_(likelihood.log_excess)
        candidate = Candidate(math.nan, kernel, noise)
        noisy, start = candidate.noise > NOISY * self.scale, candidate.copy()
        rows = self._last(NOISY_ROWS if noisy else ROWS, candidate)
        score = candidate.learn(rows)
        if not noisy and not self.fixed and _much_shorter(kernel, start.kernel):
            self._with_noise(start, candidate, score, rows)
        return kernel, noise

    def candidate(
        self, profile: str, excess: float, shorter: float = 1.0, *, interactions: bool = False, shared: bool = False
    ) -> Candidate:
        """The kernel of a profile after the first comparison, from this excess and this share of the lengthscale.

        If it is ``shared``, all inputs have the same lengthscale.
        """
        low, high = _box(self.rows.X, self.groups)
        ard = not shared if self.groups is None or shared else self.groups
        # Columns that stand for one feature together have variance one. Linear functions of them get the same variance.
        per_column = self.n_inputs / self.n_quantities
        long = math.sqrt(self.n_quantities)
        smooth = StationaryKernel(profile, self.n_inputs, ard=ard, lengthscale=long, variance=self.scale)
        if self.n_quantities > WIDE and not shared:
            per_column *= LITTLE_LINEAR
        parts = [smooth, LinearKernel(self.n_inputs, variance=self.scale * per_column, low=low, high=high)]
        if interactions:
            parts.append(InteractionKernel(profile, self.n_inputs, ard=ard, variance=self.scale))
        kernel = SumKernel(parts)
        likelihood = self._noise(excess * self.scale)
        kernel.to(self.rows.X.device, torch.float64)
        with torch.no_grad():
            smooth.log_lengthscale.add_(math.log(shorter))
        score = most_likely(kernel, likelihood, self._last(FIRST_ROWS), FIRST_ITERATIONS, REACH, of_varying=True)
        return Candidate(score, kernel, likelihood)

    def learn(self, candidate: Candidate, rows: Batch) -> float:
        """Make more rows most likely, starting from the present values; the score per row.

        If the first rows suggest hardly any noise, and the others contradict them, the first step may be so long that
        rows have nothing in common at its end. From there no gradient leads back. Then the search starts again, with
        noise.
        """
        start = candidate.copy()
        score = candidate.learn(rows)
        if self.fixed or score >= candidate.score - MARGIN:
            return score
        return self._with_noise(start, candidate, score, rows)

    def _with_noise(self, start: Candidate, candidate: Candidate, score: float, rows: Batch) -> float:
        """Search again from a start, with noise. The candidate has found a score, and takes what is better: its score.

        The start changes.
        """
        with torch.no_grad():
            start.likelihood.log_excess.copy_(self._noise(EXCESS * self.scale).log_excess)
        again = start.learn(rows)
        if again > score:
            candidate.take(start)
        return max(score, again)

    def _noise(self, excess: float) -> Gaussian:
        """Noise with this excess over the floor; or with the floor as its variance if it is fixed."""
        likelihood = Gaussian(len(self.floor), excess=excess, floor=self.floor.tolist())
        likelihood.to(self.rows.X.device, torch.float64)
        if len(self.floor) > 1:  # targets that are all the same do not tell their noise by the evidence
            with torch.no_grad():
                likelihood.log_excess[are_zero(self.rows.y)] = math.log(NOISE_FLOOR)
        if self.fixed:
            likelihood.fix(self.floor)
        return likelihood

    def _last(self, number: int, *candidates: Candidate) -> Batch:
        """The last rows: so many, or fewer if one of the candidates that learn from them has interactions."""
        if any(has_interactions(candidate.kernel) for candidate in candidates):
            number = min(number, max(FIRST_ROWS, ROWS_TIMES_QUANTITIES // self.n_quantities))
        return self.rows.rows(slice(-number, None))


def smooth_of(kernel: SumKernel) -> StationaryKernel:
    """The part of a base's kernel that sees all distances together."""
    return cast(StationaryKernel, kernel.kernels[0])


def linear_of(kernel: SumKernel) -> LinearKernel:
    """The linear part of a base's kernel."""
    return cast(LinearKernel, kernel.kernels[1])


def has_interactions(kernel: SumKernel) -> bool:
    """Whether a base's kernel has a part for interactions."""
    return any(isinstance(part, InteractionKernel) for part in kernel.kernels)


def _learn_with_less_noise(candidate: Candidate, rows: Batch) -> None:
    """Make rows most likely, starting again and again from less noise than that where a search has ended.

    Where noise turns out to be no noise, there may be several optima, and rounding errors decide which of them a search
    finds first.
    """
    score = candidate.learn(rows)
    for _ in range(MORE_SEARCHES):
        trial = candidate.copy()
        with torch.no_grad():
            trial.likelihood.log_excess.sub_(math.log(LESS_NOISE))
        again = trial.learn(rows)
        if again < score + GAIN:
            break
        score = again
        candidate.take(trial)


def _much_shorter(kernel: SumKernel, start: SumKernel) -> bool:
    """Whether a lengthscale of a kernel is much shorter than it was at the start."""
    pairs = zip(kernel.kernels, start.kernels, strict=True)
    changes = [
        part.log_lengthscale - before.log_lengthscale
        for part, before in pairs
        if isinstance(part, StationaryKernel) and isinstance(before, StationaryKernel)
    ]
    return any((change <= math.log(MUCH_SHORTER)).any().item() for change in changes)


def _box(X: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Opposite corners (Q,) of the box in which linear functions are linear.

    A column of a category may be the same in all rows, since none has its level. A new row that has it must not be
    moved to a point without any level: its effect would seem to be known. So such a column may move as far as the
    others that share its lengthscale.
    """
    low, high = X.amin(0), X.amax(0)
    width = high - low
    if groups is not None:
        number = torch.tensor(groups, device=X.device)
        widest = width.new_zeros(max(groups) + 1).scatter_reduce(0, number, width, "amax")
        width = torch.where(width > 0, BEYOND * width, widest[number])
    else:
        width = BEYOND * width
    return low - width, high + width
