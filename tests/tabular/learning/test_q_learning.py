"""Turn-wise Q-learning against a plain loop, closed forms and exact values."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular.learning.q_learning import Steps, simultaneous, step_moments, turnwise
from tabular.learning.sampling import returns_from, trunk_states, uniform

H, S, A = 2, 2, 2
CLEAR = jnp.broadcast_to(jnp.arange(S), (H, S))
NUM = 16_384  # one size, so that all tests share one program


@pytest.fixture
def seed():
    return int(os.environ["FRESH_SEED"])


def learn(key, mdp, *, trunk=None, order=(1, 0), contexts=CLEAR, steps=None, explore=0.0, **more):
    trunk = tabular.uniform_policy(mdp) if trunk is None else trunk
    steps = Steps(*map(jnp.float64, Steps() if steps is None else steps))
    more = {"fresh": True, **more}
    return turnwise(key, mdp, trunk, jnp.array(order), contexts, steps, jnp.float64(explore),
                    num_samples=NUM, **more)  # fmt: skip


@pytest.mark.parametrize(
    "steps", [Steps(), Steps(power=0.6), Steps(0.3, 0.0), Steps(0.5, 1.5, 2.0)]
)
def test_step_moments_are_sums_over_the_weights_of_the_samples(steps):
    count = 40
    alpha = steps.scale / (np.arange(1, count + 1) + steps.shift) ** steps.power
    weights = [alpha[i] * np.prod(1 - alpha[i + 1 :]) for i in range(count)]
    found = step_moments(steps, count)
    assert abs(found.memory[-1] - np.prod(1 - alpha)) < 1e-14
    assert abs(found.noise[-1] - np.sum(np.square(weights))) < 1e-14
    assert abs(found.noise[0] - alpha[0] ** 2) < 1e-15


def test_step_moments_by_hand():
    """1/i is the mean: 0 and 1/n. Constant: (1-a)^n, a/(2-a). 1/(i+1)^2: (n+2)/(2n+2)."""
    mean, constant, short = (
        step_moments(steps, 400) for steps in (Steps(), Steps(0.2, 0.0), Steps(1.0, 2.0, 1.0))
    )
    assert mean.memory[-1] == 0 and abs(mean.noise[-1] - 1 / 400) < 1e-15
    assert abs(constant.memory[9] - 0.8**10) < 1e-15
    assert abs(constant.noise[-1] - 0.2 / 1.8) < 1e-12
    assert abs(short.memory[-1] - 402 / 802) < 1e-12


def plain_stage(table, visits, contexts, returns, explore, steps, exploration):
    """The updates of one stage as a loop over lists."""
    for context, outcome, (gate, tried) in zip(contexts, returns, explore, strict=True):
        if context == S:
            continue
        epsilon = (visits[context].sum() + 1) ** -exploration
        greedy = int(table[context].argmax())
        action = int(tried * A) if gate < epsilon else greedy
        visits[context, action] += 1
        alpha = steps.scale / (visits[context, action] + steps.shift) ** steps.power
        table[context, action] = (1 - alpha) * table[context, action] + alpha * outcome[action]
    return table, visits


@pytest.mark.parametrize("merged", [False, True])
def test_the_learner_is_the_loop(seed, merged):
    mdp = tabular.random_mdp(jax.random.key(seed), H, S, A, termination=0.5)
    contexts = CLEAR.at[1].set(0) if merged else CLEAR
    steps, exploration, num = Steps(0.9, 0.8, 0.5), 0.4, NUM
    key = jax.random.key(seed + 1)
    found = learn(key, mdp, contexts=contexts, steps=steps, explore=exploration)
    policy = np.array(tabular.uniform_policy(mdp))
    all_draws = uniform(key, (2, 5 * H + 3, num))
    for stage, turn in enumerate((1, 0)):
        explore, reach, follow = np.split(np.asarray(all_draws[stage]), [2, 2 * H + 3])
        states = np.asarray(trunk_states(reach, mdp, tabular.uniform_policy(mdp)))[:, turn]
        follow = follow.reshape(H, 3, num)
        returns = np.stack(
            [
                returns_from(follow, mdp, policy, turn, jnp.asarray(states), jnp.full(num, a))
                for a in range(A)
            ],
            axis=1,
        )
        seen = np.append(np.asarray(contexts[turn]), S)[states]
        table, visits = plain_stage(
            np.zeros((S, A)), np.zeros((S, A)), seen, returns, explore.T, steps, exploration
        )
        np.testing.assert_allclose(found.action_values[turn], table, atol=1e-13, err_msg=f"{seed=}")
        np.testing.assert_array_equal(found.visits[turn], visits, err_msg=f"{seed=}")
        policy[turn] = np.eye(A)[table.argmax(1)][np.asarray(contexts[turn])]
    np.testing.assert_array_equal(found.policy, policy, err_msg=f"{seed=}")


def test_errors_are_against_the_frozen_continuation(seed):
    """With 1/i and many samples the table is within 6 standard errors of Q of its own policy."""
    mdp = tabular.random_mdp(jax.random.key(seed), H, S, A)
    found = learn(jax.random.key(seed + 1), mdp)
    target = np.asarray(tabular.values(mdp, found.policy).Q)
    variance = tabular.return_moments(mdp, found.policy, mdp.rewards * (1 - mdp.rewards)).variance
    assert (np.asarray(found.visits).sum((1, 2)) == NUM).all(), f"{seed=}"
    error = np.abs(np.asarray(found.action_values) - target)
    allowed = 6 * np.sqrt(variance / np.maximum(found.visits, 1)) + 1e-12
    assert (error <= allowed).all(), f"{seed=}"
    for stage, turn in enumerate((1, 0)):
        assert abs(found.errors[stage, -1] - error[turn].max()) < 1e-12, f"{seed=}"
    assert found.errors[0, 10] > found.errors[0, -1], f"{seed=}"


def test_stale_continuations_learn_the_values_of_the_trunk(seed):
    instance = tabular.toy_reverse_order()
    stale = learn(jax.random.key(seed), instance.mdp, fresh=False)
    fresh = learn(jax.random.key(seed), instance.mdp)
    values = np.asarray(tabular.values(instance.mdp, instance.policy).Q)
    assert abs(np.asarray(stale.action_values[0, 0]) - values[0, 0]).max() < 0.03, f"{seed=}"
    assert float(tabular.performance(instance.mdp, stale.policy)) == 0.5, f"{seed=}"
    assert float(tabular.performance(instance.mdp, fresh.policy)) == 0.9, f"{seed=}"


def test_a_state_the_trunk_never_visits_keeps_its_table(seed):
    mdp = tabular.toy_reverse_order().mdp
    trunk = tabular.uniform_policy(mdp).at[0].set(jnp.array([1.0, 0.0]))
    order = tabular.reverse_order(H)
    found = turnwise(jax.random.key(seed), mdp, trunk, order, CLEAR, Steps(), 0.0, num_samples=2048)
    assert not found.visits[1, 1].any() and not found.action_values[1, 1].any()
    assert float(tabular.performance(mdp, found.policy)) == 0.5, f"{seed=}"


def test_a_turn_that_comes_again_starts_from_its_table(seed):
    """Small constant steps remember: after n visits (1 - alpha)^n of the start is left."""
    mdp, alpha = tabular.toy_reverse_order().mdp, 1e-4
    once = learn(jax.random.key(seed), mdp, order=(0, 1), steps=Steps(alpha, 0.0))
    twice = learn(jax.random.key(seed), mdp, order=(1, 1), steps=Steps(alpha, 0.0))
    for found, visits in ((once, NUM / 4), (twice, NUM / 2)):
        expected = 0.9 * (1 - (1 - alpha) ** visits)
        assert abs(found.action_values[1, 1, 1] - expected) < 0.04, f"{seed=}"
        assert float(found.visits[1].sum()) == NUM


def test_simultaneous_learning_finds_the_best_policy_of_the_lock(seed):
    mdp = tabular.lock(num_turns=2)
    found = simultaneous(jax.random.key(seed), mdp, Steps(), 0.3, num_episodes=4000)
    assert float(tabular.performance(mdp, found.policy)) == 1.0, f"{seed=}"
    # Returns of turn 1 in the live state are its rewards, whatever the other turn does.
    np.testing.assert_array_equal(found.action_values[1, 0], [1.0, 0.0], err_msg=f"{seed=}")
    assert float(found.visits[0].sum()) == 4000
    assert 0 < float(found.action_values[0, 0, 0]) <= 1
    assert abs(found.errors[0, -1] - (1 - found.action_values[0, 0, 0])) < 1e-12, f"{seed=}"


def test_bad_rewards_are_refused():
    mdp = tabular.lock(num_turns=2)
    wild = tabular.TurnMDP(mdp.transitions, 2 * mdp.rewards, mdp.start)
    with pytest.raises(ValueError, match="means from 0 to 1"):
        simultaneous(jax.random.key(0), wild, Steps(), 0.0, num_episodes=1)
    with pytest.raises(ValueError, match="means from 0 to 1"):
        learn(jax.random.key(0), wild)
