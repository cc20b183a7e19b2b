"""Generated data sets: problems for which depth helps, and well-known computer experiments."""

from numbers import Integral, Real

import numpy as np
from sklearn.utils import check_random_state

from ._sklearn import Interval, StrOptions, validate_params

__all__ = ["make_banana", "make_experiment", "make_letters", "make_step", "make_waves"]

#: Left edges of the letters. The first leaves a margin of 0.05, and the gaps between letters are as wide.
_LEFT_OF_D = 0.05
_LEFT_OF_G = 0.37
_LEFT_OF_P = 0.69

#: Width of a letter. Three letters with their gaps nearly fill the unit square.
_WIDTH = 0.27

#: Lower and upper ends of the letters, with margins of 0.1.
_BOTTOM = 0.1
_TOP = 0.9

#: Width of a stroke, about a third of a letter's.
_STROKE = 0.08

#: Exponent of the round parts' outline |u|ᵖ + |v|ᵖ = 1: a little squarer than the ellipse's 2, as in bold type.
_ROUNDNESS = 2.5

#: Allowed values of standard deviations.
_DEVIATION = [Interval(Real, 0, None, closed="left")]


def _checking(**allowed):
    """A decorator that checks parameters: the number of rows, the source of randomness, and those of the names."""
    common = {"n_samples": [Interval(Integral, 1, None, closed="left")], "random_state": ["random_state"]}
    return validate_params(common | allowed, prefer_skip_nested_validation=True)


@_checking(noise=[Interval(Real, 0, 1, closed="both")])
def make_letters(n_samples=40000, *, noise=0.0, random_state=None):
    """Points of the unit square, and whether they lie inside one of the letters D, G and P.

    The letters have straight and curved edges, corners and holes. No single lengthscale of a stationary Gaussian
    process suits all of these. The problem is the toy example of [1]_, with other letter shapes.

    Parameters
    ----------
    n_samples : int, default=40000
        Number of points.
    noise : float, default=0.0
        Probability of each point to have the wrong label.
    random_state : int, RandomState instance or None, default=None
        Source of the points and of the wrong labels.

    Returns
    -------
    X : ndarray of shape (n_samples, 2)
        Points, uniform in [0, 1]².
    y : ndarray of shape (n_samples,)
        Labels: 1 inside the letters and 0 outside, except for the wrong labels that ``noise`` makes.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    See Also
    --------
    make_banana : Two classes with one smooth boundary.

    References
    ----------
    .. [1] Meng, Q. and Zhang, Y., "Amortized Variational Inference for Deep Gaussian Processes", 2024.

    Examples
    --------
    >>> from skdgp.datasets import make_letters
    >>> X, y = make_letters(1000, random_state=0)
    >>> X.shape, y.shape
    ((1000, 2), (1000,))
    """
    rng = check_random_state(random_state)
    X = rng.uniform(size=(n_samples, 2))
    wrong = rng.uniform(size=n_samples) < noise
    return X, (_in_letters(X) ^ wrong).astype(int)


@_checking(noise=_DEVIATION)
def make_step(n_samples=200, *, noise=0.05, random_state=None):
    """One feature and a target that jumps from 0 to 1 where the feature is 0.

    Stationary Gaussian processes either overshoot at the jump and oscillate beside it, or smooth it out.

    Parameters
    ----------
    n_samples : int, default=200
        Number of rows.
    noise : float, default=0.05
        Standard deviation of the Gaussian noise in the targets.
    random_state : int, RandomState instance or None, default=None
        Source of the feature and of the noise.

    Returns
    -------
    X : ndarray of shape (n_samples, 1)
        The feature, uniform in [-1, 1].
    y : ndarray of shape (n_samples,)
        Targets.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    Examples
    --------
    >>> from skdgp.datasets import make_step
    >>> X, y = make_step(5, noise=0.0, random_state=0)
    >>> X[:, 0].round(2), y
    (array([ 0.1 ,  0.43,  0.21,  0.09, -0.15]), array([1., 1., 1., 1., 0.]))
    """
    rng = check_random_state(random_state)
    X = rng.uniform(-1, 1, size=(n_samples, 1))
    return X, (X[:, 0] > 0) + noise * rng.standard_normal(n_samples)


@_checking(noise=_DEVIATION)
def make_waves(n_samples=200, *, noise=0.3, random_state=None):
    """One feature and a wavy target, with a gap in the middle of the feature's range.

    The data resemble those that E. Snelson drew for sparse Gaussian processes.

    Parameters
    ----------
    n_samples : int, default=200
        Number of rows.
    noise : float, default=0.3
        Standard deviation of the Gaussian noise in the targets.
    random_state : int, RandomState instance or None, default=None
        Source of the feature and of the noise.

    Returns
    -------
    X : ndarray of shape (n_samples, 1)
        The feature, uniform in [0, 2.7] and [3.4, 6].
    y : ndarray of shape (n_samples,)
        Targets.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    Examples
    --------
    >>> from skdgp.datasets import make_waves
    >>> X, y = make_waves(5, noise=0.0, random_state=0)
    >>> X[:, 0].round(2), y.round(2)
    (array([3.61, 4.49, 3.89, 3.59, 2.25]), array([-0.71,  1.49, -0.28, -0.71, -0.25]))
    """
    rng = check_random_state(random_state)
    x = 5.3 * rng.uniform(size=n_samples)
    x = np.where(x > 2.7, x + 0.7, x)
    y = np.sin(3.0 * x) + 0.7 * np.sin(1.3 * x + 2.0)
    return x[:, None], y + noise * rng.standard_normal(n_samples)


@_checking(noise=_DEVIATION)
def make_banana(n_samples=400, *, noise=0.2, random_state=None):
    """Two classes in the plane. Each is a crescent, and they reach into each other.

    The crescents are half circles of radius 1. Each is the reflection of the other in the origin.

    Parameters
    ----------
    n_samples : int, default=400
        Number of points. Each point belongs to either class with probability 1/2.
    noise : float, default=0.2
        Standard deviation of the Gaussian noise in both coordinates. Above about 0.2 the classes overlap.
    random_state : int, RandomState instance or None, default=None
        Source of the classes, of the positions along the crescents and of the noise.

    Returns
    -------
    X : ndarray of shape (n_samples, 2)
        Points.
    y : ndarray of shape (n_samples,)
        0 for the crescent that opens downwards, 1 for the one that opens upwards.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    See Also
    --------
    make_letters : Two classes with corners and holes.

    Examples
    --------
    >>> from skdgp.datasets import make_banana
    >>> X, y = make_banana(200, random_state=0)
    >>> X.shape, y.shape
    ((200, 2), (200,))
    """
    rng = check_random_state(random_state)
    y = rng.randint(2, size=n_samples)
    angle = rng.uniform(0, np.pi, size=n_samples)
    crescent = np.column_stack([np.cos(angle) - 0.5, np.sin(angle) - 0.25])
    X = (1 - 2 * y)[:, None] * crescent
    return X + noise * rng.standard_normal(X.shape), y


def _in_letters(X):
    """Whether points (n, 2) lie inside the letters."""
    x, y = X.T
    return _in_d(x - _LEFT_OF_D, y) | _in_g(x - _LEFT_OF_G, y) | _in_p(x - _LEFT_OF_P, y)


def _in_d(x, y):
    return _in_bowl(x, y, _BOTTOM)


def _in_g(x, y):
    """A ring with a gap on the right, and a bar below the gap."""
    middle, bar_top, gap_top = _WIDTH / 2, 0.5, 0.7
    ring = _in_oval(x, y, middle, _BOTTOM) & ~_in_oval(x, y, middle, _BOTTOM, inset=_STROKE)
    gap = _in_box(x, y, (middle, _WIDTH), (bar_top, gap_top))
    bar = _in_box(x, y, (middle, _WIDTH), (bar_top - _STROKE, bar_top))
    return (ring & ~gap) | bar


def _in_p(x, y):
    return _in_box(x, y, (0, _STROKE), (_BOTTOM, _TOP)) | _in_bowl(x, y, 0.45)


def _in_bowl(x, y, bottom):
    """A straight stroke on the left with a round one from its upper to its lower end, around a hole."""
    shoulder = 0.4 * _WIDTH
    rounded = np.maximum(x, shoulder)  # left of the shoulder the outline consists of straight lines
    outline = (x >= 0) & _in_oval(rounded, y, shoulder, bottom)
    hole = (x >= _STROKE) & _in_oval(rounded, y, shoulder, bottom, inset=_STROKE)
    return outline & ~hole


def _in_oval(x, y, centre, bottom, inset=0.0):
    """Inside the oval around x = ``centre`` that touches the right, the top and ``bottom``, or ``inset`` from them."""
    u = (x - centre) / (_WIDTH - centre - inset)
    v = (y - (bottom + _TOP) / 2) / ((_TOP - bottom) / 2 - inset)
    return np.abs(u) ** _ROUNDNESS + np.abs(v) ** _ROUNDNESS <= 1


def _in_box(x, y, across, up):
    return (across[0] <= x) & (x <= across[1]) & (up[0] <= y) & (y <= up[1])


# Computer experiments: functions of all features, by their symbols.


def _borehole(*, r_w, r, T_u, H_u, T_l, H_l, L, K_w):
    logarithm = np.log(r / r_w)
    return 2 * np.pi * T_u * (H_u - H_l) / (logarithm * (1 + T_u / T_l) + 2 * L * T_u / (r_w**2 * K_w))


def _otl_circuit(*, R_b1, R_b2, R_f, R_c1, R_c2, beta):
    V_b1, load = 12 * R_b2 / (R_b1 + R_b2), beta * (R_c2 + 9)
    return ((V_b1 + 0.74) * load + 11.35 * R_f + 0.74 * R_f * load / R_c1) / (load + R_f)


def _piston(*, M, S, V_0, k, P_0, T_a, T_0):
    A = P_0 * S + 19.62 * M - k * V_0 / S
    heat = P_0 * V_0 * T_a / T_0
    V = S / (2 * k) * (np.sqrt(A**2 + 4 * k * heat) - A)
    return 2 * np.pi * np.sqrt(M / (k + S**2 * heat / V**2))


def _wing_weight(*, S_w, W_fw, A, sweep, q, taper, t_c, N_z, W_dg, W_p):
    cosine = np.cos(np.deg2rad(sweep))
    shape = (A / cosine**2) ** 0.6 * taper**0.04 * (100 * t_c / cosine) ** -0.3
    return 0.036 * S_w**0.758 * W_fw**0.0035 * q**0.006 * shape * (N_z * W_dg) ** 0.49 + S_w * W_p


_FORMULAS = {"borehole": _borehole, "otl_circuit": _otl_circuit, "piston": _piston, "wing_weight": _wing_weight}

#: Limits of the features of each experiment, by their symbols, in the order of the columns.
_LIMITS = {
    "borehole": {
        "r_w": (0.05, 0.15),
        "r": (100.0, 50_000.0),
        "T_u": (63_070.0, 115_600.0),
        "H_u": (990.0, 1110.0),
        "T_l": (63.1, 116.0),
        "H_l": (700.0, 820.0),
        "L": (1120.0, 1680.0),
        "K_w": (9855.0, 12_045.0),
    },
    "otl_circuit": {
        "R_b1": (50.0, 150.0),
        "R_b2": (25.0, 70.0),
        "R_f": (0.5, 3.0),
        "R_c1": (1.2, 2.5),
        "R_c2": (0.25, 1.2),
        "beta": (50.0, 300.0),
    },
    "piston": {
        "M": (30.0, 60.0),
        "S": (0.005, 0.02),
        "V_0": (0.002, 0.01),
        "k": (1000.0, 5000.0),
        "P_0": (90_000.0, 110_000.0),
        "T_a": (290.0, 296.0),
        "T_0": (340.0, 360.0),
    },
    "wing_weight": {
        "S_w": (150.0, 200.0),
        "W_fw": (220.0, 300.0),
        "A": (6.0, 10.0),
        "sweep": (-10.0, 10.0),
        "q": (16.0, 45.0),
        "taper": (0.5, 1.0),
        "t_c": (0.08, 0.18),
        "N_z": (2.5, 6.0),
        "W_dg": (1700.0, 2500.0),
        "W_p": (0.025, 0.08),
    },
}


@_checking(
    experiment=[StrOptions(set(_FORMULAS))], n_useless=[Interval(Integral, 0, None, closed="left")], noise=_DEVIATION
)
def make_experiment(n_samples=200, *, experiment="borehole", n_useless=0, noise=0.0, random_state=None):
    """One of four well-known computer experiments: smooth formulas of engineers, with six to ten features.

    A simulation program gives the same answer every time. So there is no noise, unless you set ``noise``, and the
    errors of a good model are tiny compared with the targets. The formulas are those of [1]_, [2]_, [3]_ and [4]_, in
    the order of the table.

    ============= ======================================================= ============================================
    Experiment    Target                                                  Features, in their order
    ============= ======================================================= ============================================
    borehole      flow of water between two aquifers, m³ a year           radii of the borehole and of influence (m);
                                                                          transmissivity (m² a year) and head (m) of
                                                                          the upper aquifer, and of the lower; length
                                                                          (m) and conductivity (m a year) of the
                                                                          borehole
    otl_circuit   midpoint voltage of a push-pull circuit, V              resistances b1, b2, f, c1, c2 (kΩ); gain
    piston        seconds of a cycle of a piston in a cylinder            weight (kg) and area (m²) of the piston;
                                                                          volume of the gas (m³); spring constant
                                                                          (N/m); pressure (Pa) and temperature (K)
                                                                          outside; temperature of the gas (K)
    wing_weight   weight of the wing of a light aircraft, lb              area (ft²); fuel (lb); aspect ratio; sweep
                                                                          (degrees); dynamic pressure (lb/ft²); taper;
                                                                          thickness over chord; load factor; design
                                                                          weight (lb); paint (lb/ft²)
    ============= ======================================================= ============================================

    Parameters
    ----------
    n_samples : int, default=200
        Number of rows.
    experiment : {"borehole", "otl_circuit", "piston", "wing_weight"}, default="borehole"
        Name of the experiment.
    n_useless : int, default=0
        Number of additional features, uniform in [0, 1], that do not affect the target. They come last.
    noise : float, default=0.0
        Standard deviation of the Gaussian noise in the targets, in the units of the targets.
    random_state : int, RandomState instance or None, default=None
        Source of the features and of the noise.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features + n_useless)
        Features, uniform between the limits that the publication gives.
    y : ndarray of shape (n_samples,)
        Targets.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    References
    ----------
    .. [1] Morris, M. D., Mitchell, T. J. and Ylvisaker, D., "Bayesian Design and Analysis of Computer Experiments: Use
       of Derivatives in Surface Prediction", Technometrics 1993.
    .. [2] Ben-Ari, E. N. and Steinberg, D. M., "Modeling Data from Computer Experiments: An Empirical Comparison of
       Kriging with MARS and Projection Pursuit Regression", Quality Engineering 2007.
    .. [3] Kenett, R. S. and Zacks, S., "Modern Industrial Statistics", Duxbury 1998.
    .. [4] Forrester, A., Sobester, A. and Keane, A., "Engineering Design via Surrogate Modelling", Wiley 2008.

    Examples
    --------
    >>> from skdgp.datasets import make_experiment
    >>> X, y = make_experiment(3, experiment="piston", random_state=0)
    >>> X.shape, y.round(2)
    ((3, 7), array([0.43, 0.33, 0.4 ]))
    """
    limits, rng = _LIMITS[experiment], check_random_state(random_state)
    low, high = np.transpose([*limits.values(), *n_useless * [(0.0, 1.0)]])
    X = low + (high - low) * rng.uniform(size=(n_samples, len(low)))
    columns = dict(zip(limits, X.T, strict=False))  # useless features have no symbol
    return X, _FORMULAS[experiment](**columns) + noise * rng.standard_normal(n_samples)
