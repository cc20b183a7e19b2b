"""What rows say of a predictor that has not learnt from them, and the weight of one predictor beside another.

The mixture (1 − w) p₁(y | x) + w p₂(y | x) of two predictors has the weight that makes these rows most likely (stacking
of predictive distributions: Yao, Vehtari, Simpson and Gelman, Bayesian Analysis 2018), beside ``PRIOR_ROWS`` rows that
the second one does not explain. It may know the densities better and the means worse. With the errors e of the first,
and the differences d of both means, squared errors of the mixture's mean are

    Σ (e − w d)² = Σ e² − 2w Σ e d + w² Σ d²,

which are smallest at w = Σ e d / Σ d², and as large as those of the first at twice this. New rows have another optimum,
so that only A = ``CREDIT`` Σ e d − s is counted on, where s is a standard error of Σ e d. With A in place of Σ e d,
squared errors may grow by a share of ``GROWTH``. That is

    w ≤ (A + (A² + GROWTH Σ e² Σ d²)^½) / Σ d².
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

#: How much of what the second mean explains of the errors of the first one counts.
CREDIT = 0.75

#: By what share squared errors may grow. This decides where the second mean explains nothing, but is near the first.
#: The rows have decided about neighbours of the first one, so that its errors there are too small by about as much. And
#: A is rather too small, so that squared errors of new rows grow by less than this.
GROWTH = 0.07

#: So many rows count beforehand as rows to which the second one gives no probability. The same rows have also ended its
#: training, and thirty of them often ask for it alone. Its intervals then hold too few of the new rows.
PRIOR_ROWS = 2.0

#: How exact the weight is, as a share of the largest one.
TOLERANCE = 1e-4


class Judged(NamedTuple):
    """Rows (n,) that a predictor has not learnt from: numbers, log densities, weights, and errors (n, P) of the means.

    Log densities are in the user's units, and errors in those of the models.
    """

    number: np.ndarray
    log_density: np.ndarray
    weight: np.ndarray
    error: np.ndarray

    def of(self, number: np.ndarray) -> "Judged":
        """The rows of these numbers, which are among them."""
        order = self.number.argsort()
        rows = order[np.searchsorted(self.number, number, sorter=order)]
        return Judged(*(column[rows] for column in self))


class Share(NamedTuple):
    """The weight of a predictor in a mixture, and what all rows together gain by it, in nats."""

    weight: float
    gain: float


def share_beside(first: Judged, second: Judged) -> Share:
    """The weight that a second predictor has beside the first one."""
    number = np.intersect1d(first.number, second.number)
    first, second = first.of(number), second.of(number)
    if not first.weight.any():  # there are no such rows, or they are all outliers
        return Share(0.0, 0.0)
    weight, apart = first.weight, first.error - second.error
    of_rows = [product.sum(1) for product in (first.error**2, first.error * apart, apart**2)]
    own, common, size = (weight @ values for values in of_rows)
    error = np.sqrt(weight @ (of_rows[1] - common / weight.sum()) ** 2)  # a row of weight 2 is that row twice
    explained = CREDIT * common - error
    most = min((explained + np.sqrt(explained**2 + GROWTH * own * size)) / size, 1.0) if size > 0 else 1.0
    if not most > 0:
        return Share(0.0, 0.0)
    ratio = second.log_density - first.log_density

    def gain(share: float) -> float:
        return float(weight @ np.logaddexp(np.log1p(-share), np.log(share) + ratio))

    def loss(share: float) -> float:
        return -gain(share) - PRIOR_ROWS * np.log1p(-share)

    best = minimize_scalar(loss, bounds=(0.0, most), method="bounded", options={"xatol": TOLERANCE * most}).x
    return Share(float(best), gain(best))
