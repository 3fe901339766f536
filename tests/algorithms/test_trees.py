"""Tree-GRPO, GiGPO and VinePPO on a small forest built by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from rtpo_jax.algorithms import GRPO, Collected, GiGPO, Policy, Stage, TreeGRPO, VinePPO
from rtpo_jax.algorithms.tree_grpo import random_points
from rtpo_jax.models import SymbolTokenizer
from rtpo_jax.rollouts import Episode, EpisodeBatch, SymbolTemplate, Turn
from rtpo_jax.rollouts.packing import training_rows


def turn(context, reward=0.0):
    return Turn(None, (context,), (5,), np.full(1, -1.0, np.float32), "", reward, 0)


def episode(*turns, **fields):
    return Episode(None, fields.pop("group", 0), "", None, turns, True, **fields)


# Two trees of one task: a, forked at its second and third turn, and b, which stands alone.
A = (turn(1), turn(2), turn(3, 1.0))
FOREST = EpisodeBatch(
    (
        episode(*A, tree=0),
        episode(A[0], turn(2), turn(4), tree=0),
        episode(A[0], A[1], turn(3, 3.0), tree=0),
        episode(turn(1), turn(6, 4.0), tree=1),
    ),
    horizon=3,
)


class Fixed:
    """An engine that returns the forest, and given continuations from its boundaries."""

    num_turns = 3

    def __init__(self, continuations=()):
        self.continuations = continuations

    def rollout(self, policy, tasks, copies, key):
        del policy, tasks, copies, key
        return FOREST

    def continue_from(self, policy, trunks, turn, copies, key):
        del policy, trunks, copies, key
        return self.continuations[turn]

    def rows(self, trajectories, context="recorded", turns=None):
        template = SymbolTemplate(SymbolTokenizer("x"))
        return training_rows(
            trajectories, template, context, turns, length_buckets=(8,), action_buckets=(1,)
        )


def test_decisions_and_states_are_numbered():
    """Forks share the turns before them; states are the same where the contexts are."""
    node_ids = FOREST.node_ids[:4].tolist()
    assert node_ids == [[0, 1, 2], [0, 3, 4], [0, 1, 5], [6, 7, -1]]
    assert FOREST.state_ids[:4].tolist() == [[0, 1, 2], [0, 1, 3], [0, 1, 2], [0, 4, -1]]
    assert (FOREST.node_ids[4:] == -1).all() and not FOREST.turn_mask[4:].any()
    assert FOREST.tree_ids[:4].tolist() == [0, 0, 0, 1]
    other = EpisodeBatch((episode(turn(1), group=1),), horizon=3)
    assert EpisodeBatch((*FOREST.episodes, *other.episodes), 3).state_ids[4, 0] == 5


def test_joined_batches_keep_their_trees_apart():
    joined = FOREST.joined(FOREST)
    assert joined.tree_ids[:8].tolist() == [0, 0, 0, 1, 2, 2, 2, 3]
    forked = dataclasses.replace(FOREST.episodes[0], boundary=3)
    grown = FOREST.grown(EpisodeBatch((forked,), 3))
    assert grown.tree_ids[:5].tolist() == [0, 0, 0, 1, 0]
    assert (grown.sibling_ids == -1).all()


def test_tree_grpo_adds_the_advantage_within_the_tree():
    """Returns (1, 0, 3 | 4): tree mean 4/3 and deviation sqrt(7/3); task mean 2, sqrt(10/3)."""
    found = np.asarray(TreeGRPO().advantages(FOREST))[:4]
    returns = np.array([1, 0, 3, 4.0])
    within = np.append((returns[:3] - 4 / 3) / np.sqrt(7 / 3), 0)
    across = (returns - 2) / np.sqrt(10 / 3)
    np.testing.assert_allclose(found, within + across, rtol=1e-5)
    plain = np.asarray(TreeGRPO(scale=None).advantages(FOREST))[:4]
    np.testing.assert_allclose(plain, np.append(returns[:3] - 4 / 3, 0) + returns - 2, rtol=1e-6)


def test_tree_grpo_without_expansion_is_grpo():
    policy, key, stage = Policy(None), jax.random.key(0), Stage()
    alone = EpisodeBatch(
        tuple(dataclasses.replace(e, tree=i) for i, e in enumerate(FOREST.episodes)), 3
    )
    batches = [
        method.batch(Fixed(), policy, Collected(alone), stage, key, None)
        for method in (TreeGRPO(group_size=4, expansions=0), GRPO(group_size=4))
    ]
    for name in ("advantages", "weights"):
        np.testing.assert_array_equal(*(getattr(batch, name) for batch in batches))


def test_points_of_growth_are_uniform_over_the_decisions_of_a_tree():
    """Tree 0 holds six decisions, tree 1 two; a shared decision counts once."""
    points = random_points(FOREST, 6000, jax.random.key(0))
    nodes = np.array([FOREST.node_ids[leaf, turn] for leaf, turn in points])
    counts = np.bincount(nodes, minlength=8)
    np.testing.assert_allclose(counts[:6], 1000, atol=5 * np.sqrt(1000))
    np.testing.assert_allclose(counts[6:], 3000, atol=5 * np.sqrt(1500))


def test_gigpo_compares_turns_of_the_same_state():
    """State 0 holds all first turns, state 1 the second turns of tree 0, state 2 two last ones."""
    found = GiGPO(scale=None, step_scale=None, step_weight=0.5).advantages(FOREST)[:4]
    whole = np.array([-1, -2, 1, 2.0])[:, None]
    steps = np.array(
        [[-1, 1 - 4 / 3, -1], [-2, -4 / 3, 0], [1, 5 / 3, 1], [2, 0, 0]]
    )  # second turns: returns 1, 0, 3 against 4/3; last turns of context 3: 1 and 3 against 2
    np.testing.assert_allclose(found, whole + 0.5 * steps, atol=1e-6)
    scaled = GiGPO(scale=None).advantages(FOREST)[:4] - whole
    np.testing.assert_allclose(scaled[:, 2], [-np.sqrt(0.5), 0, np.sqrt(0.5), 0], rtol=1e-4)
    assert not (
        GiGPO(step_weight=0.0).advantages(FOREST) - GRPO().advantages(FOREST)[:, None]
    ).any()


def test_vineppo_takes_differences_of_monte_carlo_values():
    """Continuations at turn 2 exist for the three trunks that reached it."""

    def continuations(turn_index, returns):
        prefix = (turn(1), turn(2), turn(3))[:turn_index]
        return EpisodeBatch(
            tuple(
                episode(*prefix, turn(9, reward), boundary=boundary)
                for boundary, pair in enumerate(returns)
                for reward in pair
            ),
            3,
        )

    engine = Fixed(
        (
            continuations(0, [(0, 1), (1, 1), (2, 0), (0, 0)]),
            continuations(1, [(1, 2), (0, 0), (3, 1), (2, 2)]),
            continuations(2, [(1, 0), (0, 2), (4, 2)]),
        )
    )
    method = VinePPO(group_size=4, rollouts=2, whiten=False)
    collected = method.collect(engine, Policy(None), (), jax.random.key(0))
    values = method.values(collected)[:4]
    assert values.tolist() == [[0.5, 1.5, 0.5, 0], [1, 0, 1, 0], [1, 2, 3, 0], [0, 2, 0, 0]]
    batch = method.batch(engine, Policy(None), collected, Stage(), None, None)
    expected = {
        (0, 0): 1, (0, 1): -1, (0, 2): 0.5, (1, 0): -1, (1, 1): 1, (1, 2): -1,
        (2, 0): 1, (2, 1): 1, (2, 2): 0, (3, 0): 2, (3, 1): 2,
    }  # fmt: skip
    rows = batch.rows
    for n in np.flatnonzero(rows.trajectory_ids >= 0):
        place = int(rows.trajectory_ids[n]), int(rows.turn_ids[n, 0])
        assert batch.advantages[n, 0] == pytest.approx(expected.pop(place))
    assert not expected
    np.testing.assert_allclose(batch.weights.sum(), 1, rtol=1e-6)
    white = dataclasses.replace(method, whiten=True)
    batch = white.batch(engine, Policy(None), collected, Stage(), None, None)
    kept = batch.advantages[rows.action_mask]
    assert kept.mean() == pytest.approx(0, abs=1e-6) and kept.std(ddof=1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TreeGRPO(context="full_history"), "context='full_history'"),
        (lambda: TreeGRPO(expansions=-1), "expansions=-1"),
        (lambda: TreeGRPO(branches=0), "branches=0"),
        (lambda: VinePPO(rollouts=0), "rollouts=0"),
        (lambda: GiGPO(step_weight=-1.0), "step_weight=-1.0"),
        (lambda: GiGPO(step_scale="batch"), "step_scale='batch'"),
    ],
)
def test_refused_settings(make, text):
    with pytest.raises(ValueError, match=text):
        make()
