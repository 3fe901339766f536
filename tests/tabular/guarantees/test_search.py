"""Search for small instances, and the toys it starts from."""

import os

import jax
import numpy as np
import pytest

import tabular
from experiments.theory.guarantee_instances import random_cases
from tabular.guarantees import search, toys

SHAPE = (2, 4, 2)


@pytest.fixture
def seed():
    return int(os.environ["FRESH_SEED"])


def same(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return np.stack([(np.asarray(a) == np.asarray(b)).reshape(len(a), -1).all(1) for a, b in pairs])


def test_reachable_by_walking(seed, episodes):
    rng = np.random.default_rng(seed)
    stack = random_cases(rng, "multi-turn", SHAPE, "table", 8)
    sparse = np.where(rng.random(stack.mdp.transitions.shape) < 0.3, stack.mdp.transitions, 0.0)
    start = np.eye(4)[rng.integers(4, size=8)]
    structure = jax.tree.structure(stack.mdp)
    stack = stack._replace(mdp=jax.tree.unflatten(structure, [sparse, stack.mdp.rewards, start]))
    found = search.reachable(stack)
    for place in range(8):
        case = search.take(stack, place)
        expected = np.zeros(SHAPE[:2], bool)
        for _, path in episodes(tabular.TurnMDP(*jax.tree.leaves(case.mdp)), case.policy):
            for turn, state, *_ in path:
                expected[turn, state] = True
        np.testing.assert_array_equal(found[place], expected, err_msg=f"{seed=}")


@pytest.mark.parametrize("ties", ["table", "hidden", "shared", "linear"])
def test_moves_make_nothing_invalid_or_less_simple(ties, seed):
    rng = np.random.default_rng(seed)
    stack = random_cases(rng, "multi-turn", SHAPE, ties, 200)
    moved = search.simplify(rng, stack, ties)
    assert (search.complexity(moved) <= search.complexity(stack)).all(), f"{seed=}"
    assert (search.complexity(moved) < search.complexity(stack)).mean() > 0.3, f"{seed=}"
    assert same(moved, stack).all(0).any(), f"{seed=}: some cases are left as they are"
    for place in range(0, 200, 20):
        case = search.take(moved, place)
        mdp = tabular.TurnMDP(*jax.tree.leaves(case.mdp))
        tabular.check_policy(mdp, case.policy)
    if ties == "shared":
        assert (moved.policy == moved.policy[:, :1]).all()
    if ties == "hidden":
        alike = moved.contexts[:, :, :, None] == moved.contexts[:, :, None, :]
        rows = moved.policy[:, :, :, None] == moved.policy[:, :, None, :]
        assert rows[alike].all() and alike.mean() > 0.3, f"{seed=}"
    if ties == "linear":
        kept = (moved.policy == stack.policy).all((1, 2, 3))
        assert (kept | (moved.policy == 0.5).all((1, 2, 3))).all()


def test_token_trees_keep_their_transitions(seed):
    rng = np.random.default_rng(seed)
    stack = random_cases(rng, "single-turn", SHAPE, "table", 50)
    moved = search.simplify(rng, stack, keep_tree=True)
    np.testing.assert_array_equal(moved.mdp.transitions, stack.mdp.transitions)


def test_complexity_by_hand():
    case = toys.padded(toys.named_cases()["toy_reverse_order"], 2, 4)
    stack = jax.tree.map(lambda leaf: np.asarray(leaf)[None], case)
    # Three places; rewards .5, .5 and .9, of which .9 is not a multiple of 1/2; all else certain.
    assert search.complexity(stack)[0] == 3 + 3 + 1
    uneven = stack._replace(policy=stack.policy + np.array([0.01, -0.01]))
    assert search.complexity(uneven)[0] == 3 + 3 + 1 + 2 * 3


def test_shrinking_finds_the_one_number_that_matters(seed):
    """The claim is broken by the reward of (turn 1, state 2, action 0) alone, and by its owner."""
    rng = np.random.default_rng(seed)
    stack = random_cases(rng, "multi-turn", SHAPE, "table", 3)
    signs = np.array([1.0, 1.0, 0.0])

    def drops(case, owners):
        return signs[owners] * np.asarray(case.mdp.rewards)[:, 1, 2, 0]

    floors = 0.1 * drops(stack, np.arange(3))
    options = {"num_candidates": 40, "num_rounds": 40}
    found = search.shrink(rng, stack, drops, floors, **options)
    assert (drops(found, np.arange(3))[:2] > floors[:2]).all(), f"{seed=}"
    assert same(search.take(found, [2]), search.take(stack, [2])).all(), f"{seed=}"
    assert (search.complexity(found)[:2] <= 8).all(), f"{seed=} {search.complexity(found)}"
    assert (search.complexity(stack)[:2] > 20).all(), f"{seed=}"


def test_shrinking_stays_above_the_floor(seed):
    """A claim broken by one reward, which may not become smaller than it was."""
    rng = np.random.default_rng(seed)
    stack = random_cases(rng, "multi-turn", SHAPE, "table", 12)

    def drops(case, owners):
        del owners
        return np.asarray(case.mdp.rewards)[:, 1, 2, 0]

    floors = drops(stack, None) - 1e-9
    found = search.shrink(rng, stack, drops, floors, num_candidates=20, num_rounds=20)
    assert (drops(found, None) > floors).all(), f"{seed=}"
    assert (search.complexity(found) < search.complexity(stack)).all(), f"{seed=}"


@pytest.mark.parametrize("stops", [False, True])
def test_token_mdp_is_the_token_tree(stops, seed):
    """Performance of the tree's action probabilities against that of the MDP of tokens."""
    rng = np.random.default_rng(seed)
    tree = tabular.token_tree(1, 2, 2, 2)
    params = rng.normal(size=tree.shape)
    strings = rng.random((2, 4))
    start = rng.dirichlet(np.ones(2))
    mdp = toys.token_mdp(strings, start, 2, 2, stops)
    tokens = np.exp(params) / np.exp(params).sum(-1, keepdims=True)
    rows = np.full((2, 4, 2), 0.5)
    rows[0, :2] = tokens[0, :, 0]
    rows[1] = tokens[0, :, 1:].reshape(4, 2)
    actions = np.asarray(tree.policy(params))[0]
    if stops:  # strings 00 and 01 are both "stop", which pays as 00
        strings = np.stack([strings[:, 0], strings[:, 0], *strings[:, 2:].T], axis=1)
    expected = start @ (actions * strings).sum(-1)
    assert tabular.performance(mdp, rows) == pytest.approx(expected, abs=1e-12), f"{seed=}"
    lengths = tabular.occupancy(mdp, rows).sum()
    reached = 1.0 - stops * (start @ tokens[0, :, 0, 0])
    assert lengths == pytest.approx(1.0 + reached, abs=1e-12), f"{seed=}"


def test_stacks_of_token_mdps_are_those_one_by_one(seed):
    rng = np.random.default_rng(seed)
    strings, start = rng.random((3, 2, 4)), rng.dirichlet(np.ones(2), size=3)
    stops = np.array([True, False, True])
    stack = toys.token_mdp(strings, start, 2, 2, stops)
    for place in range(3):
        one = toys.token_mdp(strings[place], start[place], 2, 2, stops[place])
        for whole, part in zip(jax.tree.leaves(stack), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(whole[place], part)


def test_padding_changes_no_number_and_trimming_takes_it_off(seed):
    rng = np.random.default_rng(seed)
    case = search.take(random_cases(rng, "multi-turn", (2, 2, 3), "table", 1), 0)
    mdp = tabular.TurnMDP(*jax.tree.leaves(case.mdp))
    larger = toys.padded(case._replace(mdp=mdp), 3, 5)
    ended = mdp.transitions.at[-1].set(0.0)
    expected = float(tabular.performance(mdp, case.policy))
    assert tabular.performance(larger.mdp, larger.policy) == pytest.approx(expected, abs=1e-12)
    back = toys.trimmed(larger, np.arange(2))
    np.testing.assert_array_equal(back.mdp.transitions[:1], ended[:1])
    np.testing.assert_array_equal(back.policy[:2], case.policy)
    np.testing.assert_array_equal(back.contexts[:2], case.contexts)
    with pytest.raises(ValueError, match=r"num_turns, num_states = 3, 4: give \(3, 5\) or more"):
        toys.padded(larger, 3, 4)


def test_two_prompts_have_the_published_slopes():
    case = toys.two_prompts()
    second = case.policy[0, 1, 0]
    assert second * (1 - second) == pytest.approx(0.01, abs=1e-15)
    size = 1e-5

    def moved(theta, scale):
        rows = case.policy * np.exp(case.features[..., 0] * theta)
        rows /= rows.sum(-1, keepdims=True)
        deviations = np.sqrt(case.policy[0, :, 0] * case.policy[0, :, 1]) if scale else 1.0
        return (0.5 * rows[0, :, 0] / deviations).sum()

    for scale, slope in ((False, 0.075), (True, -0.25)):
        found = (moved(size, scale) - moved(-size, scale)) / (2 * size)
        assert found == pytest.approx(slope, abs=1e-8)
