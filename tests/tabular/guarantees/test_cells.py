"""Updates of the table of guarantees against closed forms, plain numpy and theorems."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from experiments import numpy_reference
from tabular.guarantees import cells, toys
from tabular.guarantees.cells import Case, Estimator, Update

SHAPE = (3, 2, 2)
PATHS = tabular.all_paths(*SHAPE, early_end=True)
GROUP, STD = Estimator(group=True), Estimator(group=True, scale=True)


@pytest.fixture
def seed():
    return int(os.environ["FRESH_SEED"])


def random_case(seed, shape=SHAPE, hidden=False):
    rng = np.random.default_rng(seed)
    num_turns, num_states, num_actions = shape
    rows = rng.dirichlet(np.ones(num_states + 1), size=shape)[..., :-1]
    rows *= np.where(rng.random(shape) < 0.5, 1.0, 1.0 / rows.sum(-1))[..., None]
    mdp = tabular.TurnMDP(rows, rng.normal(size=shape), rng.dirichlet(np.ones(num_states)))
    contexts = (
        np.zeros(shape[:2], int) if hidden else np.tile(np.arange(num_states), (num_turns, 1))
    )
    policy = rng.dirichlet(np.ones(num_actions), size=shape[:2])
    policy = np.take_along_axis(policy, contexts[..., None], axis=1)
    features = toys.table_features(contexts, num_actions)
    return Case(mdp, policy, features, contexts, rng.normal(size=shape[:2]))


def an_update(
    stages=cells.all_at_once, *, fresh=False, gradient=False, mean=False, clip=0.2, step=0.5
):
    return Update(stages(SHAPE[0]), fresh, gradient, mean, clip, np.full(3, step))


@jax.jit
def at_once(case, how, update):
    return cells.maximise(PATHS, case, how, update)


@jax.jit
def estimates(case, how):
    return cells.estimates(case, case.policy, PATHS, how)


@jax.jit
def performance(case, policy):
    return tabular.performance(case.mdp, policy)


def change(case, found):
    return float(performance(case, found.policy) - performance(case, case.policy))


def brute_estimates(case, policy, how):
    """Advantages [M, H] by hand, one episode after the other."""
    mdp = case.mdp
    transitions, rewards = np.asarray(mdp.transitions), np.asarray(mdp.rewards)
    gamma, decay = how.discount, how.trace_decay
    num_turns, num_states, _ = rewards.shape
    values = np.zeros((num_turns + 1, num_states))
    for h in reversed(range(num_turns)):
        values[h] = (policy[h] * (rewards[h] + gamma * transitions[h] @ values[h + 1])).sum(-1)
    values[:-1] += how.noisy * case.noise
    probabilities = np.asarray(tabular.path_probabilities(mdp, policy, PATHS))
    returns, found = np.zeros(len(probabilities)), np.zeros(PATHS.states.shape)
    for m, (states, actions, mask) in enumerate(zip(*PATHS, strict=True)):
        following = 0.0
        for h in reversed(range(mask.sum())):
            s, a, last = states[h], actions[h], h + 1 == mask.sum()
            later = 0.0 if last else values[h + 1, states[h + 1]]
            error = rewards[h, s, a] + gamma * later - values[h, s]
            following = error + gamma * decay * following
            found[m, h] = following
            returns[m] += gamma**h * rewards[h, s, a]
    if not how.group:
        return found
    for s in range(num_states):
        here = PATHS.states[:, 0] == s
        weights = probabilities[here] / probabilities[here].sum()
        returns[here] -= weights @ returns[here]
        if how.scale:
            returns[here] /= np.sqrt(weights @ returns[here] ** 2)
    return np.where(PATHS.turn_mask, returns[:, None], 0.0)


@pytest.mark.parametrize(
    "how",
    [
        Estimator(noisy=0.7, trace_decay=0.4, discount=0.6),
        Estimator(group=True, discount=0.6),
        STD._replace(discount=0.6),
    ],
)
def test_estimates_against_episode_by_episode(how, seed):
    case = random_case(seed)
    found = estimates(case, jax.tree.map(jnp.asarray, how))
    expected = brute_estimates(case, case.policy, how)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11, err_msg=f"{seed=}")


def test_discounted_performance_by_hand(seed):
    case = random_case(seed)
    found = tabular.performance(cells.discounted(case.mdp, 0.6), case.policy)
    weights = np.asarray(tabular.path_probabilities(case.mdp, case.policy, PATHS))
    paid = np.asarray(tabular.path_rewards(case.mdp, PATHS)) @ 0.6 ** np.arange(SHAPE[0])
    assert found == pytest.approx(weights @ paid, abs=1e-12), f"{seed=}"


def test_monotone_gain_agrees_with_plain_numpy_and_is_never_negative(seed):
    keys = jax.random.split(jax.random.key(seed), 60)

    @jax.jit
    def both(keys):
        drawn = jax.vmap(lambda key: cells.proximal_case(key, 2, 3, 4))(keys)
        return drawn, cells.monotone_gain(*drawn)

    (mdps, policies), found = both(keys)
    arrays = (mdps.transitions, mdps.rewards, mdps.start, policies)
    expected = numpy_reference.gains(*(np.asarray(a) for a in arrays))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10, err_msg=f"{seed=}")
    assert found.min() > -1e-12 and found.mean() > 0.01, f"{seed=}"


@pytest.mark.parametrize("how", [GROUP, STD, Estimator(noisy=1.0), Estimator(trace_decay=0.3)])
@pytest.mark.parametrize("stages", [cells.all_at_once, cells.last_first])
def test_tables_are_monotone_with_any_harmless_baseline(how, stages, seed):
    if stages is cells.last_first and how.trace_decay != 1.0:
        pytest.skip("carried ratios need the whole return")
    how = jax.tree.map(jnp.asarray, how)
    changes = []
    for other in range(15):
        case = random_case([seed, other])
        changes.append(change(case, at_once(case, how, an_update(stages))))
    assert min(changes) > -1e-12 and max(changes) > 1e-3, f"{seed=}"


HIDDEN_WAYS = {
    "sequential": (an_update(cells.last_first, clip=1.0), GROUP),
    "siblings": (an_update(cells.last_first, fresh=True, clip=1.0), Estimator()),
    "at once": (an_update(clip=1.0), GROUP),
}


def hidden_change(case, way):
    update, how = HIDDEN_WAYS[way]
    found = at_once(case, jax.tree.map(jnp.asarray, how), update)
    alike = np.take_along_axis(np.asarray(found.policy), case.contexts[..., None], axis=1)
    np.testing.assert_allclose(found.policy, alike, atol=1e-9)
    return change(case, found)


@pytest.mark.parametrize("way", ["sequential", "siblings"])
def test_turn_after_turn_is_monotone_also_where_states_are_hidden(way, seed):
    changes = [hidden_change(random_case([seed, i], hidden=True), way) for i in range(30)]
    assert min(changes) > -1e-12 and max(changes) > 1e-3, f"{seed=}"


def test_hidden_first_action_by_hand():
    """Both turns choose 0 with 0.4 and must differ; ratios up to 2 give 0.8 or 0.2.

    At once: both go to 0.8, J = 2 x 0.8 x 0.2. Turn 1 first: it goes to 0.8, and turn 0, which now
    wants the other action, to 0: J = 0.8.
    """
    case = toys.padded(toys.named_cases()["toy_hidden_action"], *SHAPE[:2])
    assert hidden_change(case, "at once") == pytest.approx(0.32 - 0.48, abs=1e-12)
    assert hidden_change(case, "sequential") == pytest.approx(0.8 - 0.48, abs=1e-12)
    assert hidden_change(case, "siblings") == pytest.approx(0.8 - 0.48, abs=1e-12)


def test_hidden_first_action_falls_at_the_second_update_also_at_clip_02():
    """0.4 goes to 0.48 and to 0.576: J = 2 p (1 - p) rises to 0.4992 and falls to 0.488448."""
    case = toys.padded(toys.named_cases()["toy_hidden_action"], *SHAPE[:2])
    for expected in (0.4992, 0.488448):
        found = at_once(case, jax.tree.map(jnp.asarray, GROUP), an_update())
        case = case._replace(policy=found.policy)
        assert performance(case, case.policy) == pytest.approx(expected, abs=1e-12)


@jax.jit
def from_updates(case):
    """The same updates by `tabular.sequential` and `tabular.simultaneous`."""
    weights = tabular.path_probabilities(case.mdp, case.policy, PATHS)
    advantages = tabular.group_advantages(case.mdp, case.policy, PATHS)
    data = (jnp.asarray(case.policy), PATHS, weights, advantages)
    order = tabular.reverse_order(SHAPE[0])
    return tabular.sequential(*data, order, 0.2, 0.2), tabular.simultaneous(*data, 0.2, 0.2)


def test_stages_against_the_loop_over_turns(seed):
    """SeeUPO, Eqs. 6-8, from the last turn; and all turns at once, which is not the same."""
    how, apart = jax.tree.map(jnp.asarray, GROUP), 0.0
    for other in range(10):
        case = random_case([seed, other])
        in_turn, at_one_time = from_updates(case)
        found = at_once(case, how, an_update(cells.last_first)).policy
        np.testing.assert_allclose(found, in_turn, atol=1e-12, err_msg=f"{seed=} {other=}")
        plain = at_once(case, how, an_update()).policy
        np.testing.assert_allclose(plain, at_one_time, atol=1e-12, err_msg=f"{seed=} {other=}")
        apart = max(apart, abs(found - plain).max())
    assert apart > 1e-3, f"{seed=}"


def test_patience_by_hand():
    """0.9 now beats 0.8 later: action 0 goes from 0.5 to 0.6, and 0.95 becomes 0.94."""
    case = toys.padded(toys.named_cases()["toy_patience"], *SHAPE[:2])
    for discount, gain in ((0.8, -0.01), (1.0, 0.01)):
        how = jax.tree.map(jnp.asarray, GROUP._replace(discount=discount))
        assert change(case, at_once(case, how, an_update())) == pytest.approx(gain, abs=1e-12)


def test_fresh_stages_step_along_the_advantages_of_the_policy_as_it_stands(seed):
    """RTPO with one gradient step a turn: occupancy of the start, values of what has been updated."""
    case = random_case(seed)
    update = an_update(cells.last_first, fresh=True, gradient=True, step=2.0)
    found = at_once(case, jax.tree.map(jnp.asarray, Estimator()), update).policy
    current = np.array(case.policy)
    occupancy = np.asarray(tabular.occupancy(case.mdp, case.policy))
    for turn in reversed(range(SHAPE[0])):
        advantages = np.asarray(tabular.advantages(case.mdp, current))[turn]
        tilt = 3 * 2.0 * occupancy[turn][:, None] * current[turn] * advantages
        rows = current[turn] * np.exp(tilt)
        current[turn] = rows / rows.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, current, atol=1e-11, err_msg=f"{seed=}")
