"""Helpers that look into estimators and predictions for the displays."""

import numpy as np
from scipy.stats import binom
from sklearn.utils import check_array

from ..inspection._response import find_deep_gp
from ._axes import import_pyplot

#: Probability of the bands in which calibrated models lie.
BAND_LEVEL = 0.9


def usual_shares(n_rows, p):
    """Ends (2, ...) of the shares of rows that are usual if each row is among them with probability ``p``."""
    return np.stack(binom.interval(BAND_LEVEL, n_rows, p)) / n_rows


def one_output(dist, y, output):
    """Distributions (n,), and observations (n,) or None, of one output; ValueError unless it is clear which one."""
    n_outputs = dist.shape[1] if len(dist.shape) == 2 else 1
    if output is None and n_outputs > 1:
        raise ValueError(
            f"One output is drawn, but dist of shape {dist.shape} has {n_outputs}: choose one, as output=0."
        )
    output = 0 if output is None else output
    if not 0 <= output < n_outputs:
        raise ValueError(f"output={output} is none of the {n_outputs} outputs: give 0 to {n_outputs - 1}, or None.")
    if y is not None:
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        if y.shape not in ((len(dist),), (len(dist), n_outputs)):
            raise ValueError(
                f"y of shape {y.shape} does not match predictions of shape {dist.shape}: give as many rows."
            )
        y = y[:, output] if y.ndim == 2 else y
    if len(dist.shape) == 2:
        dist = dist[:, output]
    return dist, y


def unwrap_deep_gp(estimator, display):
    """The fitted estimator of this package inside pipelines and searches, and the pipelines of the steps before it."""
    import_pyplot(f"{display.__name__}.from_estimator")
    return find_deep_gp(estimator, display.__name__)
