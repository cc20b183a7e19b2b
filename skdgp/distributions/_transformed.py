"""Distributions of targets which a monotone transformation turns into mixtures of Gaussians."""

import warnings
from functools import cached_property

import numpy as np
from scipy.special import expit

from ._gaussian import PredictiveDistribution
from ._mixture import Mixture, fixed

#: Moments are sums over nodes, since an inverse may have kinks, in steps of this many deviations of each component.
MOMENT_STEP = 1 / 16

#: Number of deviations on either side.
MOMENT_REACH = 12

#: Values z without a target count as impossible if all of them together are less probable than this.
TAIL = 1e-10

#: Half the distance of the differences that estimate slopes, in standard deviations of z.
STEP = 1e-4

#: They are at least this share of z, since rounding would hide a smaller one.
LEAST_STEP = 1e-10

#: Whether g increases is told by the means of components, by so many of their quantiles,
N_PLACES = 9

#: and so many deviations beyond them.
OWN_REACH = 3.0

#: The CRPS is integrated between nodes. They reach so many deviations from the mean of each component.
REACH = 9.0

#: Number of nodes for each component at first.
NODES_PER_COMPONENT = 16

#: Smallest number of nodes in all at first.
FEWEST_NODES = 512

#: Largest number of nodes in all at first.
MOST_NODES = 1024

#: Rounds in which the worst intervals are halved. They find narrow components that have lost their nodes.
N_ROUNDS = 12

#: Number of intervals that a round halves.
N_HALVED = 256

#: Largest number of entries of an array with which scores are computed.
SCORE_NUMBERS = 2**21

#: A number that transformers take and that stands for infinity.
FAR = 1e300


class Elementwise:
    """A transformer z of numbers y, whatever their shape is."""

    def transform(self, y):
        """Numbers z of y."""
        raise NotImplementedError

    def inverse_transform(self, z):
        """Numbers y of z."""
        raise NotImplementedError

    def slope(self, y):
        """The derivative dy/dz at y."""
        raise NotImplementedError


class Logarithm(Elementwise):
    """The natural logarithm as a transformer."""

    def transform(self, y):
        """Logarithms."""
        return np.log(y)

    def inverse_transform(self, z):
        """Exponentials."""
        return np.exp(z)

    def slope(self, y):
        """The exponential is its own derivative."""
        return y


class Logit(Elementwise):
    """The transformer z = log((y + c)/(1 + c − y)) of shares y in [0, 1].

    The inverse y = (1 + 2c)/(1 + exp(−z)) − c is limited to [0, 1]: all z below that of 0 belong to 0.

    Parameters
    ----------
    margin : float
        c. It is positive, so that 0 and 1 have a finite z.
    """

    def __init__(self, margin: float):
        self.margin = margin

    def transform(self, y):
        """Logits; NaN outside [0, 1]."""
        inside = np.where((y >= 0) & (y <= 1), y, np.nan)
        return np.log(inside + self.margin) - np.log(1 + self.margin - inside)

    def inverse_transform(self, z):
        """Shares."""
        return np.clip((1 + 2 * self.margin) * expit(z) - self.margin, 0.0, 1.0)

    def slope(self, y):
        """(y + c)(1 + c − y)/(1 + 2c), the derivative of the inverse before it is limited."""
        return (y + self.margin) * (1 + self.margin - y) / (1 + 2 * self.margin)


class TransformedDistribution(Mixture):
    """Predictive distributions of targets y = g(z), where g is monotone and z is a mixture of Gaussians.

    ``predict_dist`` of regressors with ``target_transform`` returns it. So does ``predict_dist(X, latent=True)`` of
    regressors for counts and positive targets. Density, quantiles and draws follow from those of z by the change of
    variables. Mean and variance are those of y itself, and not g of the mean of z. The methods are those of
    :class:`~skdgp.PredictiveDistribution`.

    Parameters
    ----------
    dist : PredictiveDistribution
        Distribution of z.
    transform : "log" or transformer
        A fitted transformer with ``transform`` from y (n, P) to z, and with ``inverse_transform``. It is strictly
        monotone in each column.
    output : int or array-like of shape (P,), default=None
        Numbers of the transformer's columns that ``dist`` belongs to. None stands for all columns. It is needed if
        ``dist`` has some of them.

    Attributes
    ----------
    shape : tuple
        ``(n,)`` or ``(n, P)``.
    mean, var, std : ndarray of shape (n,) or (n, P)
        Means, variances and standard deviations of y.

    Raises
    ------
    TypeError
        If ``dist`` is not a mixture of Gaussians, or if ``transform`` is no such transformer.

    Examples
    --------
    >>> from skdgp import PredictiveDistribution
    >>> from skdgp.distributions import TransformedDistribution
    >>> dist = TransformedDistribution(
    ...     PredictiveDistribution.gaussian([0.0, 1.0], [0.5, 0.5]), "log"
    ... )
    >>> dist.mean.round(4), dist.ppf(0.5).round(4)  # a log-normal distribution
    (array([1.1331, 3.0802]), array([1.    , 2.7183]))
    >>> dist.pdf([-1.0, 3.0]).round(4)
    array([0.    , 0.2608])
    """

    ARRAYS = ("means", "variances")

    def __init__(self, dist, transform, output=None):
        if not isinstance(dist, PredictiveDistribution):
            raise TypeError(
                f"TransformedDistribution takes a mixture of Gaussians, got {type(dist).__name__}: leave out one of "
                "the two transformations, or choose a likelihood with Gaussian predictions."
            )
        if transform != "log" and not hasattr(transform, "inverse_transform"):
            raise TypeError(
                f'transform={transform!r} is neither "log" nor a fitted transformer with inverse_transform: take '
                "scikit-learn's FunctionTransformer for a function and its inverse."
            )
        self.dist, self.output = dist, output
        self.transform = Logarithm() if isinstance(transform, str) and transform == "log" else transform
        self.means, self.variances, self.weights = dist.means, dist.variances, dist.weights

    def __getitem__(self, index):
        output = self.output
        if isinstance(index, tuple) and len(index) > 1:
            output = np.atleast_1d(self._all if output is None else output)[index[1]]
        return TransformedDistribution(self.dist[index], self.transform, output)

    def _like(self, arrays, weights):
        means, variances = arrays
        return TransformedDistribution(PredictiveDistribution(means, variances, weights), self.transform, self.output)

    @property
    def _common(self) -> tuple:  # type: ignore[override]
        return self.transform, self.output

    @cached_property
    def mean(self):
        """Means of y: those of log-normal distributions, or by quadrature."""
        if isinstance(self.transform, Logarithm):
            return fixed(self._mixed(self._log_normal[0]))
        return fixed(self._expected(lambda y: y))

    @cached_property
    def var(self):
        """Variances of y, in the same way."""
        if isinstance(self.transform, Logarithm):
            mean, variance = self._log_normal
            with np.errstate(over="ignore"):
                return fixed(self._mixed(variance + (mean - self.mean) ** 2))
        return fixed(self._expected(lambda y: (y - self.mean) ** 2))

    def logpdf(self, y):
        """See :meth:`.Mixture.logpdf`: ``log p(z) − log |dy/dz|``; −inf for values that y cannot have."""
        y = self._broadcast(y)
        z = self._forward(y)
        inside = np.isfinite(z)
        z = np.where(inside, z, 0.0)
        log_density = self.dist.logpdf(z)
        inside &= log_density > -np.inf  # farther out, slopes are lost in rounding
        with np.errstate(divide="ignore", invalid="ignore"):
            log_density = log_density - np.log(self._slope(y, z))
        return np.where(inside, log_density, np.where(np.isnan(y), np.nan, -np.inf))

    def cdf(self, y):
        """See :meth:`.Mixture.cdf`; 0 below and 1 above all values that y can have.

        If g is constant between two z, its value there has a probability of its own, which belongs to the cdf at this
        value. The next number above it has the z at which g goes on.
        """
        return self._tail(y, self.dist.cdf, lambda z: 1 - self.dist.cdf(z), ends=(0.0, 1.0))

    def logsf(self, y):
        """See :meth:`.Mixture.logsf`. It does not underflow if the logarithms of z do not."""
        return self._tail(y, self.dist.logsf, self.dist.logcdf, ends=(0.0, -np.inf))

    def logcdf(self, y):
        """See :meth:`.Mixture.logcdf`. It does not underflow if the logarithms of z do not."""
        return self._tail(y, self.dist.logcdf, self.dist.logsf, ends=(-np.inf, 0.0))

    def _tail(self, y, rising, falling, *, ends):
        """A tail's probability at y, or its logarithm, by that of z if g is rising or falling; see :meth:`cdf`.

        ``ends`` are what it is below and above all values that y can have.
        """
        y = self._broadcast(y)
        with np.errstate(over="ignore"):
            after = np.where(np.isneginf(y), y, np.nextafter(y, np.inf))
        z = self._forward(after)
        inside, (low, high) = ~np.isnan(z), self._image
        z = np.where(inside, z, 0.0)
        values = rising(z) if self._rising.all() else falling(z)
        if self._rising.any() and not self._rising.all():  # outputs differ
            values = np.where(self._rising, rising(z), values)
        values = np.where(inside, values, ends[0])
        below = y <= low if isinstance(self.transform, Logarithm) else y < low  # others may have an atom there
        values = np.where(below, ends[0], np.where((y >= high) | np.isposinf(after), ends[1], values))
        return np.where(np.isnan(y), np.nan, values)

    def ppf(self, q):
        """See :meth:`.Mixture.ppf`."""
        q = np.asarray(q, dtype=np.float64)
        quantiles = self._backward(self.dist.ppf(np.where(self._rising, q, 1 - q)))
        low, high = self._image
        return _known(np.where(q == 0, low, np.where(q == 1, high, quantiles)))

    def _draw(self, components, rng):
        return _known(self._backward(self.dist._draw(components, rng)))

    def crps(self, y):
        """See :meth:`.Mixture.crps`: an integral over y, of which nothing but the inverse is needed."""
        given = self._broadcast(y)
        unknown = np.isnan(given)
        y = np.where(np.isfinite(given), given, self._at_all(0.0)).reshape(-1, *self.shape)
        scores = np.empty(y.shape)
        for output in np.ndindex(self.shape[1:]):
            one = self[(slice(None), *output)] if output else self
            scores[(..., *output)] = one._flat_crps(y[(..., *output)])
        scores = scores.reshape(given.shape)
        return np.where(unknown, np.nan, np.where(np.isinf(given), np.inf, scores))

    def _flat_crps(self, y):
        """Scores (k, n) of observations (k, n) of a single output."""
        nodes = MOST_NODES + N_ROUNDS * N_HALVED
        n_chunk = max(1, SCORE_NUMBERS // (nodes * len(self.weights)))
        scores = np.empty(y.shape)
        for start in range(0, len(self), n_chunk):
            rows = slice(start, start + n_chunk)
            for observed, out in zip(y, scores, strict=True):
                out[rows] = self[rows]._score(observed[rows])
        return scores

    def _score(self, y):
        """∫ (F(t) − 1{t ≥ y})² dt, as a sum over intervals (K, n) in which F is linear in y = g(z).

        F and g are monotone. So the sum that takes the smallest F of each interval and the sum that takes the largest
        enclose the integral, whatever g does between two nodes. Intervals in which they differ most are halved.
        """
        z = self._first_nodes(y)
        t, F = self._values(z)
        for _ in range(N_ROUNDS):
            worst = np.argpartition(-_uncertainty(t, F, y), N_HALVED, axis=0)[:N_HALVED]
            middle = 0.5 * (np.take_along_axis(z, worst, 0) + np.take_along_axis(z, worst + 1, 0))
            z, t, F = (np.concatenate(pair) for pair in zip((z, t, F), (middle, *self._values(middle)), strict=True))
            order = np.argsort(z if self._rising else -z, axis=0)
            z, t, F = (np.take_along_axis(column, order, 0) for column in (z, t, F))
        beyond = np.maximum(t[0] - y, 0) + np.maximum(y - t[-1], 0)
        return beyond + _piecewise_score(t, F, y)

    def _first_nodes(self, y):
        """Nodes z (K, n): quantiles of all components, and the z of the observations."""
        m, s = self.means, np.sqrt(self.variances)
        n_nodes = max(NODES_PER_COMPONENT, -(-FEWEST_NODES // len(m)))
        z = (m + np.linspace(-REACH, REACH, n_nodes)[:, None, None] * s).reshape(-1, m.shape[1])  # (K, n)
        if len(z) > MOST_NODES:
            z = np.sort(z, axis=0)[np.linspace(0, len(z) - 1, MOST_NODES).round().astype(int)]
        own = self._forward(y)
        own = np.clip(np.where(np.isnan(own), z[0], own), z.min(axis=0), z.max(axis=0))
        nodes = np.sort(np.concatenate([z, own[None]]), axis=0)
        return nodes if self._rising else nodes[::-1]

    def _values(self, z):
        """Targets t of nodes (K, n), in the order of the nodes, and probabilities F of at most t."""
        p, t = self.dist.cdf(z), self._backward(z)
        lost = ~np.isfinite(t)
        if lost.any():
            _refuse_if_likely(np.minimum(p, 1 - p)[lost].max())
            last, first = (np.where(lost, far, t) for far in (-np.inf, np.inf))
            t = np.where(lost, np.where((p > 0.5) == self._rising, last.max(axis=0), first.min(axis=0)), t)
        return t, np.where(self._rising, p, 1 - p)

    @cached_property
    def _rising(self) -> np.ndarray:
        """Whether g increases: (), or (P,) for several outputs.

        Places of the components say so. A transformer may have limits, beyond which g is constant. If all components
        are beyond them, other places say so.
        """
        falls, rises = self._steps((-1e3, -1.0, -1e-3, 1e-3, 1.0, 1e3))
        if self.means.size:
            reach = OWN_REACH * np.sqrt(self.variances)
            inside = np.quantile(self.means, np.linspace(0, 1, N_PLACES), axis=(0, 1))
            ends = (self.means - reach).min(axis=(0, 1)), (self.means + reach).max(axis=(0, 1))
            own_falls, own_rises = self._steps([ends[0], *inside, ends[1]])
            falls, rises = (
                np.where(own_falls == own_rises, *pair) for pair in ((falls, own_falls), (rises, own_rises))
            )
        return rises >= falls

    def _steps(self, places) -> tuple[np.ndarray, np.ndarray]:
        """How often g falls and rises from one place to the next: (), or (P,) for several outputs."""
        with np.errstate(invalid="ignore"):
            steps = np.diff([self._at_all(z) for z in places], axis=0)
        return (steps < 0).sum(axis=0), (steps > 0).sum(axis=0)  # NaN, where z has no target, is neither

    @cached_property
    def _image(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest value of g: (), or (P,) for several outputs; infinite if there is none."""
        sign = np.where(self._rising, 1.0, -1.0)
        low, high = (
            np.where(self._at_all(z) == self._at_all(z / 2), self._at_all(z), np.sign(z) * np.inf * sign)
            for z in (-FAR, FAR)
        )
        return np.minimum(low, high), np.maximum(low, high)

    def _at_all(self, z) -> np.ndarray:
        """g(z) for one number z, or for one of each output: (), or (P,) for several outputs."""
        return self._backward(np.broadcast_to(np.asarray(z, dtype=np.float64), (1, *self.shape[1:])))[0]

    @cached_property
    def _log_normal(self) -> tuple[np.ndarray, np.ndarray]:
        """Components' means exp(m + v/2) and variances exp(2m + v)(exp(v) − 1): only what is large overflows."""
        m, v = self.means, self.variances
        with np.errstate(over="ignore", divide="ignore"):
            return np.exp(m + 0.5 * v), np.exp(2 * (m + v) + np.log(-np.expm1(-v)))

    def _mixed(self, values: np.ndarray) -> np.ndarray:
        """Weighted sum of components' values; ValueError if it overflows."""
        total = np.tensordot(self.weights, values, axes=1)
        if (lost := ~np.isfinite(total)).any():
            mean, deviation = self.dist.mean[lost].max(), self.dist.std[lost].max()
            raise ValueError(
                f"The mean or the variance of {lost.sum()} of {total.size} predictions overflows: their logarithms "
                f"have means up to {mean:.3g} and deviations up to {deviation:.3g}. Leave out rows of X that are "
                "far from those of fit, or ask for quantiles."
            )
        return total

    def _expected(self, function):
        nodes = np.arange(-MOMENT_REACH, MOMENT_REACH + MOMENT_STEP, MOMENT_STEP)
        shares = np.exp(-0.5 * nodes**2)
        deviation, total, lost = np.sqrt(self.variances), np.zeros(self.shape), np.zeros(self.shape)
        for node, share in zip(nodes, shares / shares.sum(), strict=True):
            y = self._backward(self.means + node * deviation)
            known = np.isfinite(y)
            lost += share * np.tensordot(self.weights, ~known, axes=1)
            total += share * np.tensordot(self.weights, function(np.where(known, y, 0.0)) * known, axes=1)
        _refuse_if_likely(lost.max(initial=0.0))
        return total

    def _slope(self, y, z):
        """|dy/dz| at y = g(z), from differences of g: a step in z does not depend on the units of y."""
        if isinstance(self.transform, Elementwise):
            return np.maximum(self.transform.slope(y), 0.0)
        step = np.maximum(STEP * self.dist.std, LEAST_STEP * np.abs(z))
        above, below = self._backward(z + step), self._backward(z - step)
        sides = 2.0 - np.isnan(above) - np.isnan(below)
        rise = np.where(np.isnan(above), y, above) - np.where(np.isnan(below), y, below)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.abs(rise) / (sides * step)

    def _forward(self, y):
        """z of targets (..., n) or (..., n, P); NaN for targets that have none, and for infinity.

        A transformer never sees targets beyond all values of g, since it may refuse them.
        """
        low, high = self._image
        possible = np.isfinite(y) & (y >= low) & (y <= high)
        z = self._columns(self.transform.transform, np.where(possible, y, self._at_all(0.0)), self._middle)
        return np.where(possible, z, np.nan)

    @cached_property
    def _middle(self):
        """The row of targets whose z are all zero."""
        plain = isinstance(self.transform, Elementwise) or self.output is None
        return 0.0 if plain else np.asarray(self.transform.inverse_transform(np.zeros((1, len(self._all)))))

    def _backward(self, z):
        """Targets of z: the inverse of :meth:`_forward`."""
        return self._columns(self.transform.inverse_transform, np.clip(z, -FAR, FAR))

    def _columns(self, function, values, others=0.0):
        """``function`` of values (..., n) or (..., n, P). If some outputs lack, ``others`` fill the rest of the row."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"), warnings.catch_warnings():
            # PowerTransformer warns of NaN in any case. Here NaN is an error, unless it is too improbable to matter.
            warnings.filterwarnings("ignore", "invalid value encountered", RuntimeWarning)
            if isinstance(self.transform, Elementwise):
                return function(values)
            columns = np.atleast_1d(self._all if self.output is None else self.output)
            rows = values.reshape(-1, len(columns))
            table = np.zeros((len(rows), len(self._all))) + others
            table[:, columns] = rows
            return np.asarray(function(table))[:, columns].reshape(values.shape)

    @property
    def _all(self) -> np.ndarray:
        """Numbers of the transformer's columns."""
        n_outputs = self.shape[1] if len(self.shape) == 2 else 1
        return np.arange(getattr(self.transform, "n_features_in_", n_outputs))


def _refuse_if_likely(probability: float) -> None:
    """ValueError if values z for which there is no finite target have more than a negligible probability."""
    if probability > TAIL:
        raise ValueError(
            f"The inverse of the transformation is not finite where z has a probability of {probability:.2g}, so that "
            "there is no finite mean, score or draw: leave out rows of X that are far from those of fit, set "
            "target_transform of the regressor, which bounds predictions, or take another transformation."
        )


def _known(y: np.ndarray) -> np.ndarray:
    """Targets; ValueError if one of them is NaN because its z has no target."""
    _refuse_if_likely(float(np.isnan(y).mean()))
    return y


def _parts(t: np.ndarray, F: np.ndarray, y: np.ndarray):
    """Intervals between nodes (K, n): their widths below and above ``y``, and F at both ends."""
    split = np.clip(y, t[:-1], t[1:])
    return split - t[:-1], t[1:] - split, F[:-1], F[1:]


def _uncertainty(t: np.ndarray, F: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Difference (K − 1, n) of the largest and the smallest integral of (F − 1{t ≥ y})² over an interval."""
    below, above, start, end = _parts(t, F, y)
    return below * (end**2 - start**2) + above * ((1 - start) ** 2 - (1 - end) ** 2)


def _piecewise_score(t: np.ndarray, F: np.ndarray, y: np.ndarray) -> np.ndarray:
    """∫ (F − 1{t ≥ y})² dt (n,) of a function F that is linear between nodes t (K, n)."""
    below, above, start, end = _parts(t, F, y)
    width = below + above
    there = start + (end - start) * np.divide(below, width, out=np.zeros_like(width), where=width > 0)
    squares = below * (start**2 + start * there + there**2)
    squares += above * ((1 - there) ** 2 + (1 - there) * (1 - end) + (1 - end) ** 2)
    return squares.sum(axis=0) / 3
