"""Generated data sets: shapes, seeds, noise, and where the letters are."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from skdgp.datasets import (
    _FORMULAS,
    _LIMITS,
    _in_letters,
    make_banana,
    make_experiment,
    make_letters,
    make_step,
    make_waves,
)

MAKERS = [make_letters, make_step, make_banana, make_waves, make_experiment]
MAKERS_AND_WIDTHS = list(zip(MAKERS, (2, 1, 2, 1, 8), strict=True))

INSIDE = {
    "stem of the D": (0.09, 0.5),
    "upper left corner of the D": (0.06, 0.89),
    "bowl of the D": (0.28, 0.5),
    "foot of the D": (0.15, 0.14),
    "left of the G": (0.41, 0.5),
    "top of the G": (0.505, 0.86),
    "upper end of the G": (0.59, 0.72),
    "bar of the G": (0.53, 0.46),
    "right of the G below the bar": (0.6, 0.35),
    "bottom of the G": (0.505, 0.14),
    "stem of the P": (0.73, 0.2),
    "bowl of the P": (0.92, 0.675),
    "lower edge of the P's bowl": (0.8, 0.49),
}

OUTSIDE = {
    "left margin": (0.02, 0.5),
    "right margin": (0.98, 0.5),
    "above": (0.5, 0.95),
    "below": (0.5, 0.05),
    "hole of the D": (0.18, 0.5),
    "beyond the D's upper right corner": (0.315, 0.88),
    "between D and G": (0.345, 0.5),
    "hollow of the G": (0.505, 0.6),
    "hollow of the G below the bar": (0.5, 0.35),
    "gap of the G": (0.6, 0.6),
    "between G and P": (0.665, 0.5),
    "hole of the P": (0.82, 0.675),
    "right of the P's stem": (0.85, 0.25),
}


@pytest.mark.parametrize("make", MAKERS)
def test_same_seed_same_data(make):
    first, second, other = make(50, random_state=3), make(50, random_state=3), make(50, random_state=4)
    for a, b, c in zip(first, second, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)


@pytest.mark.parametrize("make", MAKERS)
def test_a_random_state_is_used_up(make):
    random_state = np.random.RandomState(0)
    assert not np.array_equal(make(50, random_state=random_state)[0], make(50, random_state=random_state)[0])


@pytest.mark.parametrize(("make", "n_features"), MAKERS_AND_WIDTHS)
@pytest.mark.parametrize("n_samples", [1, 30])
def test_shapes(make, n_features, n_samples):
    X, y = make(n_samples, random_state=0)
    assert X.shape == (n_samples, n_features)
    assert y.shape == (n_samples,)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("name", "value"), [("n_samples", 0), ("n_samples", 2.5), ("noise", -0.1), ("noise", "some"), ("random_state", "a")]
)
def test_bad_parameters_are_named(make, name, value):
    with pytest.raises(ValueError, match=f"The '{name}' parameter of {make.__name__} must be"):
        make(**{name: value})


def test_noise_of_letters_is_a_probability():
    with pytest.raises(ValueError, match="The 'noise' parameter of make_letters must be"):
        make_letters(10, noise=1.1)


@pytest.mark.parametrize("point", INSIDE.values(), ids=INSIDE.keys())
def test_inside_the_letters(point):
    assert _in_letters(np.array([point])).tolist() == [True]


@pytest.mark.parametrize("point", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_outside_the_letters(point):
    assert _in_letters(np.array([point])).tolist() == [False]


@pytest.mark.parametrize(("height", "strokes"), [(0.15, 3), (0.3, 5), (0.46, 5), (0.6, 5), (0.75, 6)])
def test_strokes_across_the_letters(height, strokes):
    """A scan line meets D, G and P twice each, except where a letter is open, or a stroke runs along it."""
    x = np.linspace(0, 1, 2001)
    inside = _in_letters(np.column_stack([x, np.full_like(x, height)]))
    assert np.sum(np.diff(inside.astype(int)) == 1) == strokes


def test_points_of_letters_fill_the_square_evenly():
    X, _ = make_letters(20000, random_state=0)
    assert X.min() >= 0 and X.max() <= 1
    counts, _, _ = np.histogram2d(*X.T, bins=4, range=[(0, 1), (0, 1)])
    np.testing.assert_allclose(counts, 20000 / 16, atol=5 * np.sqrt(20000 / 16))


def test_a_third_of_the_square_is_letters():
    _, y = make_letters(random_state=0)
    assert y.shape == (40000,)
    assert set(y) == {0, 1}
    assert 0.34 < y.mean() < 0.37


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.5, 1.0])
def test_noise_flips_that_share_of_labels_in_both_classes(noise):
    X, y = make_letters(40000, noise=noise, random_state=0)
    truth = _in_letters(X)
    for label in (False, True):
        flipped = y[truth == label] != label
        assert abs(flipped.mean() - noise) <= 4 * np.sqrt(noise * (1 - noise) / len(flipped))


def test_noise_does_not_move_the_points():
    np.testing.assert_array_equal(make_letters(50, noise=0.2, random_state=0)[0], make_letters(50, random_state=0)[0])


def test_step_without_noise_is_the_step():
    X, y = make_step(100, noise=0.0, random_state=0)
    assert -1 <= X.min() < -0.9 and 0.9 < X.max() <= 1
    np.testing.assert_array_equal(y, X[:, 0] > 0)


def test_noise_of_the_step_has_the_standard_deviation():
    X, y = make_step(20000, noise=0.3, random_state=0)
    residual = y - (X[:, 0] > 0)
    assert abs(residual.mean()) < 4 * 0.3 / np.sqrt(20000)
    assert abs(residual.std() - 0.3) < 4 * 0.3 / np.sqrt(2 * 20000)


def test_waves_have_a_gap_and_noise_of_the_standard_deviation():
    X, clean = make_waves(20000, noise=0.0, random_state=0)
    assert 0 <= X.min() < 0.01 and 5.99 < X.max() <= 6
    assert not ((X > 2.7) & (X < 3.4)).any() and ((X > 2.6) & (X < 3.5)).any()
    residual = make_waves(20000, noise=0.2, random_state=0)[1] - clean
    assert abs(residual.std() - 0.2) < 4 * 0.2 / np.sqrt(2 * 20000)


def test_bananas_without_noise_are_half_circles():
    X, y = make_banana(1000, noise=0.0, random_state=0)
    assert 0.4 < y.mean() < 0.6
    for label, (centre, sign) in enumerate([((-0.5, -0.25), 1), ((0.5, 0.25), -1)]):
        from_centre = X[y == label] - centre
        np.testing.assert_allclose(np.linalg.norm(from_centre, axis=1), 1.0, rtol=1e-12)
        assert np.all(sign * from_centre[:, 1] >= 0)


def test_noise_of_the_bananas_has_the_standard_deviation():
    clean, y = make_banana(20000, noise=0.0, random_state=0)
    noisy, same = make_banana(20000, noise=0.3, random_state=0)
    np.testing.assert_array_equal(y, same)
    assert np.abs((noisy - clean).std(axis=0) - 0.3).max() < 4 * 0.3 / np.sqrt(2 * 20000)


def test_bananas_need_a_curved_boundary():
    X, y = make_banana(2000, random_state=0)
    linear = LogisticRegression().fit(X[:1000], y[:1000]).score(X[1000:], y[1000:])
    curved = KNeighborsClassifier(15).fit(X[:1000], y[:1000]).score(X[1000:], y[1000:])
    assert linear < 0.92 < 0.95 < curved


@pytest.mark.parametrize(
    ("experiment", "n_features", "mean", "deviation"),
    [
        ("borehole", 8, 77.6, 45.5),
        ("otl_circuit", 6, 5.44, 1.143),
        ("piston", 7, 0.4624, 0.1393),
        ("wing_weight", 10, 268.2, 48.1),
    ],
)
def test_experiments_have_the_moments_of_their_formulas(experiment, n_features, mean, deviation):
    """Those of 100 000 rows; 20 000 have standard errors below a hundredth of the deviation."""
    X, y = make_experiment(20_000, experiment=experiment, random_state=1)
    assert X.shape == (20_000, n_features)
    assert abs(y.mean() - mean) < 0.03 * deviation and abs(y.std() / deviation - 1) < 0.03


#: At a point inside the box: the values of the features, and the formula written out anew with numbers for symbols.
AT_A_POINT = {
    "borehole": (
        (0.1, 25_050, 90_000, 1050, 90, 760, 1400, 11_000),
        2 * np.pi * 90_000 * 290 / (np.log(250_500) * (1 + 1000) + 2 * 1400 * 90_000 / 110),
    ),
    "otl_circuit": (
        (100, 50, 2, 2, 1, 200),
        4.74 * 2000 / 2002 + 11.35 * 2 / 2002 + 0.74 * 2 * 2000 / (2002 * 2),
    ),
    "piston": (  # A = 1000 + 784.8 - 1000; V = (√(784.8² + 8000 · 500 · 5/6) − 784.8) / 400 000
        (40, 0.01, 0.005, 2000, 100_000, 300, 360),
        2
        * np.pi
        * np.sqrt(40 / (2000 + 1e-4 * 500 * 5 / 6 * (400_000 / (np.sqrt(784.8**2 + 4e6 * 5 / 6) - 784.8)) ** 2)),
    ),
    "wing_weight": (
        (175, 260, 8, 60, 30, 0.5, 0.1, 4, 2000, 0.05),  # the cosine of the sweep is a half
        0.036 * 175**0.758 * 260**0.0035 * 32**0.6 * 30**0.006 * 0.5**0.04 * 20**-0.3 * 8000**0.49 + 8.75,
    ),
}


@pytest.mark.parametrize("experiment", AT_A_POINT)
def test_formulas_at_a_point(experiment):
    function, limits = _FORMULAS[experiment], _LIMITS[experiment]
    features, expected = AT_A_POINT[experiment]
    assert function(**dict(zip(limits, features, strict=True))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("experiment", AT_A_POINT)
def test_useless_features_are_last_and_change_nothing(experiment):
    X, y = make_experiment(500, experiment=experiment, n_useless=20, random_state=0)
    function, limits = _FORMULAS[experiment], _LIMITS[experiment]
    low, high = np.transpose(list(limits.values()))
    assert X.shape == (500, len(limits) + 20)
    assert (low <= X[:, :-20]).all() and (X[:, :-20] <= high).all()
    assert (0 <= X[:, -20:]).all() and (X[:, -20:] <= 1).all() and (np.ptp(X[:, -20:], axis=0) > 0.97).all()
    np.testing.assert_array_equal(y, function(**dict(zip(limits, X.T, strict=False))))


def test_noise_of_experiments_has_the_standard_deviation():
    (_, y), (_, noisy) = (make_experiment(5000, noise=noise, random_state=0) for noise in (0.0, 30.0))
    assert abs((noisy - y).std() / 30 - 1) < 0.05


def test_an_unknown_experiment_is_named():
    with pytest.raises(ValueError, match="The 'experiment' parameter of make_experiment must be a str among"):
        make_experiment(experiment="well")
