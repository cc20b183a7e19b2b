"""Integrals over the logarithm of an uncertain rate, for one row and component at a time, and nodes of their scores.

All integrands are logarithmically concave. So a maximum, and a distance to either side of it, tell where they are not
negligible. Each side has Gauss-Legendre nodes of its own, which crowd at the maximum and at the end. There they are
needed, since one side may be a thousand times as wide as the other.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

#: Number of nodes on either side of the maximum.
SIDE_NODES = 32

#: Number of nodes on each interval of a score's integral.
PANEL_NODES = 10

#: An integrand counts as zero where its logarithm is this much below the maximum.
DROP = 34.0

#: Equally spaced nodes on a Gaussian: how many, and the largest number of its variances in a squared width of the other
#: factor. The step is then at most 0.9 deviations of the product of both, and the error about exp(−2π²/0.9²).
EVEN_NODES = ((16, 0.3), (32, 3.0), (64, 12.0))

#: How far they reach, in deviations of the Gaussian.
EVEN_REACH = 6.0

#: Largest variance for which they are used.
LARGEST_EVEN = 1.0

#: Steps of the search for the distance at which an integrand has dropped.
LIMIT_STEPS = 16

_x, _w = np.polynomial.legendre.leggauss(SIDE_NODES)
_PLACES = 0.5 * (1 + _x)[:, None, None]
_SHARES = 0.5 * _w[:, None, None]


def nodes_around(log_value: Callable, mode: np.ndarray, start: np.ndarray, bend: np.ndarray):
    """Nodes and weights, (K, ...), of the integral of exp(log_value) with a maximum at ``mode`` (...).

    The searches for the limits start at the distance ``start``. Newton's method for the logarithm of the drop as a
    function of the logarithm of the distance takes one step if the drop is a power of the distance. Another factor of
    the integrand falls or rises at ``bend``. So nodes crowd there, too.
    """
    top, limits = log_value(mode), []
    for sign in (-1.0, 1.0):
        distance = start
        for _ in range(LIMIT_STEPS):
            drop, further = (top - log_value(mode + sign * stretch * distance) for stretch in (1.0, 1.001))
            with np.errstate(divide="ignore", invalid="ignore"):
                change = -np.log(drop / DROP) / np.maximum(np.log(further / drop) / np.log(1.001), 1.0)
            distance = distance * np.exp(np.clip(np.where(np.isfinite(change), change, 2.0), -2.0, 2.0))
        limits.append(mode + sign * distance)
    inner = np.minimum(mode, bend), np.maximum(mode, bend)
    ends = [np.clip(place, *limits) for place in (limits[0], *inner, limits[1])]
    pairs = [(low, high - low) for low, high in pairwise(ends)]
    nodes, weights = zip(*((low + _PLACES * width, _SHARES * width) for low, width in pairs), strict=True)
    return np.concatenate(nodes), np.concatenate(weights)


def even_nodes(n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights, (K, 1), of the trapezoidal rule for N(0, 1)."""
    z = np.linspace(-EVEN_REACH, EVEN_REACH, n_nodes)[:, None]
    weight = np.exp(-0.5 * z**2)
    return z, weight / weight.sum()


def panels(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights of all intervals between ``ends``, which are sorted."""
    x, w = np.polynomial.legendre.leggauss(PANEL_NODES)
    start, width = ends[:-1, None], np.diff(ends)[:, None]
    return (start + 0.5 * (1 + x) * width).ravel(), (0.5 * w * width).ravel()
