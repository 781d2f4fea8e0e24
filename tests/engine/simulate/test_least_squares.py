"""Non-negative least squares against its definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.simulate.least_squares import non_negative


def test_a_solution_without_a_bound_is_found_exactly() -> None:
    rng = np.random.default_rng(0)
    columns, wanted = rng.random((40, 5)), np.array([3.0, 0.5, 1.0, 2.0, 4.0])
    found = non_negative(columns.T @ columns, columns.T @ (columns @ wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_a_negative_solution_becomes_zero_and_the_rest_makes_up_for_it() -> None:
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    target = np.array([3.0, 2.0, 1.0])  # falls: a slope of -1
    found = non_negative(columns.T @ columns, columns.T @ target)
    np.testing.assert_allclose(found, [2.0, 0.0], atol=1e-9)  # the mean


@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(1e-6, 1e6))
def test_no_coefficient_can_be_changed_to_advantage(seed: int, size: int, unit: float) -> None:
    """The conditions of Karush, Kuhn and Tucker, in any unit of the first column."""
    rng = np.random.default_rng(seed)
    columns, target = rng.normal(size=(30, size)), rng.normal(size=30)
    columns[:, 0] *= unit
    found = non_negative(columns.T @ columns, columns.T @ target)
    assert (found >= 0).all()
    gain = columns.T @ (target - columns @ found) / np.linalg.norm(columns, axis=0)
    assert (gain <= 1e-6).all()
    assert np.abs(gain[found > 0]).max(initial=0.0) <= 1e-6


def test_columns_that_say_the_same_share_one_solution() -> None:
    columns = np.ones((10, 3))
    found = non_negative(columns.T @ columns, columns.T @ np.full(10, 6.0))
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(), 6.0)
