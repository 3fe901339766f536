"""The expected sibling objective against groups drawn one by one in numpy, and theory."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.estimation.sibling_objective import sibling_groups, sibling_objective
from tabular.paths import all_paths

FRESH = int(os.environ["FRESH_SEED"])
SIZE = (2, 2, 2)
PATHS = all_paths(*SIZE, early_end=True)


def by_hand(mdp, behavior, policy, episodes, turn, n, tails, clip):
    """Every ordered group of n continuations from every boundary state, Eq. 6 written out."""
    reached = np.asarray(tabular.occupancy(mdp, behavior))[turn]
    total = 0.0
    for state in range(SIZE[1]):
        for group in itertools.product(episodes(mdp, behavior, turn, state), repeat=n):
            returns = np.array([sum(step[3] for step in path) for _, path in group])
            chance = reached[state] * np.prod([p for p, _ in group])
            for (_, path), advantage in zip(group, returns - returns.mean(), strict=True):
                for h, s, a, _ in path if tails else path[:1]:
                    ratio = policy[h, s, a] / behavior[h, s, a]
                    inside = np.clip(ratio, 1 - clip, 1 + clip)
                    total += chance / n * min(ratio * advantage, inside * advantage)
    return total


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("turn", [0, 1])
def test_value_away_from_the_behaviour(turn, tails, draw, episodes):
    """Policies far enough apart that both bounds of the clip are active."""
    mdp, behavior = draw(FRESH, *SIZE)
    _, policy = draw(FRESH + 1, *SIZE)
    groups = sibling_groups(PATHS, turn, 2)
    found = sibling_objective(
        jnp.asarray(policy), mdp, behavior, PATHS, groups, turn, tails=tails, clip=0.15
    )
    expected = by_hand(mdp, behavior, policy, episodes, turn, 2, tails, 0.15)
    assert found == pytest.approx(expected, abs=1e-12), f"{FRESH=}"
    ratios = policy / behavior
    assert ratios.max() > 1.15 and ratios.min() < 0.85, f"{FRESH=}"


@pytest.mark.parametrize("n", [2, 3])
def test_gradient_at_the_behaviour_is_the_shrunken_policy_gradient(n, draw):
    mdp, behavior = draw(FRESH, *SIZE)
    logits = jnp.log(behavior)
    truth = (n - 1) / n * np.asarray(tabular.policy_gradient(mdp, behavior))
    forks = [sibling_groups(PATHS, turn, n) for turn in (0, 1)]

    @jax.jit
    def gradients(logits, forks):
        def loss(x, turn, tails):
            policy = jax.nn.softmax(x)
            return sibling_objective(policy, mdp, behavior, PATHS, forks[turn], turn, tails=tails)

        return [jax.grad(loss)(logits, *case) for case in ((0, False), (1, False), (0, True))]

    first, second, tails = map(np.asarray, gradients(logits, forks))
    np.testing.assert_allclose(first[0], truth[0], atol=1e-13, err_msg=f"{FRESH=}")
    np.testing.assert_allclose(second[1], truth[1], atol=1e-13, err_msg=f"{FRESH=}")
    np.testing.assert_array_equal(first[1], 0.0)
    np.testing.assert_array_equal(second[0], 0.0)
    np.testing.assert_allclose(tails, truth, atol=1e-13, err_msg=f"{FRESH=}")
    assert abs(truth).max() > 1e-3, f"{FRESH=}"


def test_groups_are_all_multisets_of_one_state():
    groups = sibling_groups(PATHS, 1, 3)
    states = PATHS.states[:, 1]
    assert PATHS.turn_mask[groups.members, 1].all()
    assert (states[groups.members] == states[groups.members[:, :1]]).all()
    assert groups.orders.sum() == 2 * 8**3


def test_impossible_groups_are_refused():
    with pytest.raises(ValueError, match="turn is 2"):
        sibling_groups(PATHS, 2, 2)
    with pytest.raises(ValueError, match="num_siblings is 1"):
        sibling_groups(PATHS, 0, 1)
    with pytest.raises(ValueError, match="limit is 10 but there are 110 groups"):
        sibling_groups(PATHS, 0, 2, limit=10)
