"""Pool statistics against explicit batches, with and without placeholders."""

import os

import numpy as np
import pytest

import tabular
from rtpo_jax import core
from tabular.orders.ragged import pool_normalised

FRESH = int(os.environ["FRESH_SEED"])


def batch(seed, rows=50):
    """Equal weights over sampled-looking rows: what a finite batch would hold."""
    rng = np.random.default_rng(seed)
    mask = np.arange(3)[None] < rng.integers(1, 4, size=rows)[:, None]
    zeros = np.zeros((rows, 3), int)
    advantages = rng.normal(0.5, 1.0, size=(rows, 3))
    return tabular.Paths(zeros, zeros, mask), np.full(rows, 1 / rows), advantages


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("placeholders", [True, False])
def test_statistics_are_those_of_the_rows(centre, placeholders):
    paths, weights, advantages = batch(FRESH)
    found = pool_normalised(paths, weights, advantages, centre=centre, placeholders=placeholders)
    for turn in range(3):
        mask = paths.turn_mask[:, turn]
        pool = np.where(mask, advantages[:, turn], 0.0)
        pool = pool if placeholders else pool[mask]
        shift = pool.mean() if centre else 0.0
        expected = np.where(mask, (advantages[:, turn] - shift) / pool.std(), 0.0)
        np.testing.assert_allclose(found[:, turn], expected, atol=1e-12, err_msg=f"{FRESH=}")


def test_equal_weights_are_the_whitening_of_the_core():
    paths, weights, advantages = batch(FRESH)
    found = pool_normalised(paths, weights, advantages, centre=True)
    for turn in range(3):
        expected = core.whiten(advantages[:, turn], paths.turn_mask[:, turn], ddof=0, epsilon=0.0)
        np.testing.assert_allclose(found[:, turn], expected, atol=1e-12, err_msg=f"{FRESH=}")


def test_by_hand_with_unequal_weights():
    # Turn 1 happens half the time: members 2 and 0 with shares 1/4 and 3/4 of the pool.
    mask = np.array([[True, True], [True, True], [True, False]])
    zeros = np.zeros((3, 2), int)
    paths, weights = tabular.Paths(zeros, zeros, mask), np.array([0.125, 0.375, 0.5])
    advantages = np.array([[1.0, 2.0], [1.0, 0.0], [1.0, 99.0]])
    alone = np.asarray(pool_normalised(paths, weights, advantages, centre=True))
    # Mean 1/2, mean square 1, variance 3/4.
    np.testing.assert_allclose(alone[:, 1], np.array([1.5, -0.5, 0.0]) / np.sqrt(0.75), atol=1e-15)
    np.testing.assert_array_equal(alone[:, 0], 0.0)
    counted = np.asarray(
        pool_normalised(paths, weights, advantages, centre=True, placeholders=True)
    )
    # Mean 1/4, mean square 1/2, variance 7/16.
    expected = np.array([1.75, -0.25, 0.0]) / np.sqrt(7 / 16)
    np.testing.assert_allclose(counted[:, 1], expected, atol=1e-15)


@pytest.mark.parametrize("level", [1e-6, 0.1, 0.7, 1e6])
@pytest.mark.parametrize("centre", [True, False])
def test_a_flat_pool_gets_nothing_whatever_its_level(centre, level):
    paths = tabular.all_paths(2, 2, 2, early_end=False)
    weights = np.random.default_rng(FRESH).dirichlet(np.ones(len(paths.states)))
    flat = np.full(paths.states.shape, level)
    found = pool_normalised(paths, weights, flat, centre=centre)
    np.testing.assert_array_equal(found, 0.0, err_msg=f"{FRESH=}")
    # A little variance is variance: scaled up by as much as it is small.
    some = level * (1.0 + 1e-6 * (paths.actions == 0))
    spread = np.asarray(pool_normalised(paths, weights, some, centre=True))
    np.testing.assert_allclose(weights @ spread**2, 1.0, rtol=1e-6, err_msg=f"{FRESH=}")
