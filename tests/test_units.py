"""Units against scikit-learn's scaler, and columns that have none."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from skdgp.gp.units import Units

RNG = np.random.default_rng(0)
COLUMNS = np.column_stack(
    [
        scale * RNG.standard_normal(1001) + shift
        for scale, shift in ((1, 0), (1e3, 5), (1e-8, 1e3), (1e-30, 0), (1e20, 0))
    ]
)


def test_equal_those_of_scikit_learn():
    units, scaler = Units.of(COLUMNS), StandardScaler().fit(COLUMNS)
    np.testing.assert_allclose(units.shift, scaler.mean_, rtol=1e-12)
    np.testing.assert_allclose(units.scale, scaler.scale_, rtol=1e-12)
    np.testing.assert_allclose(units.standardise(COLUMNS), scaler.transform(COLUMNS), rtol=1e-12)
    assert units.first_overflow(units.standardise(COLUMNS)) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keep_the_precision_and_the_values(dtype):
    columns = COLUMNS[:, :2].astype(dtype)
    before = columns.copy()
    standardised = Units.of(columns).standardise(columns)
    assert standardised.dtype == dtype and np.array_equal(columns, before)
    np.testing.assert_allclose([standardised.mean(0), standardised.std(0)], [[0, 0], [1, 1]], atol=1e-5)


def test_weights_are_repeated_rows():
    repeats = RNG.integers(0, 4, len(COLUMNS))
    weighted, repeated = Units.of(COLUMNS, repeats), Units.of(COLUMNS.repeat(repeats, axis=0))
    np.testing.assert_allclose(weighted.shift, repeated.shift, rtol=1e-12)
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-12)
    assert not np.allclose(weighted.scale, Units.of(COLUMNS).scale, rtol=1e-3)


def test_the_users_own():
    units = Units.of(COLUMNS, normalize=False)
    assert np.array_equal(units.standardise(COLUMNS), COLUMNS)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-30, 1e30, 1e-160])
def test_constant_columns_become_zero(value):
    column = np.full((1000, 1), value)
    standardised = Units.of(column).standardise(column)
    assert np.abs(standardised).max() < 1e-12


@pytest.mark.parametrize(("column", "value"), [(0, 1e200), (2, 1e308)])
def test_overflow_is_of_a_column(column, value):
    columns = COLUMNS[:, :3].copy()
    columns[::2, column] = value
    units = Units.of(columns)
    assert units.first_overflow(units.standardise(columns)) == column
    few = Units(3 * [0.0], 3 * [1e-10])
    assert few.first_overflow(few.standardise(columns)) in (None, column)


@pytest.mark.parametrize("scale", [1e-200, 1e-170, 1e-160, 1e-150, 1e160])
def test_squares_that_have_no_place_in_float64(scale):
    """From 1e-162 down they would be zero, and the column constant; a little above, they have lost their digits."""
    columns = COLUMNS[:, :2] * np.array([scale, 1.0])
    units = Units.of(columns)
    assert units.first_overflow(units.standardise(columns)) == 0


@pytest.mark.parametrize("scale", [1e-140, 1e-100, 1e-30, 1e-6, 1e6, 1e30, 1e100, 1e140])
def test_do_not_depend_on_the_users_units(scale):
    column = COLUMNS[:, :1]
    found = Units.of(scale * column).standardise(scale * column)
    np.testing.assert_allclose(found, Units.of(column).standardise(column), rtol=1e-9, atol=1e-12)
