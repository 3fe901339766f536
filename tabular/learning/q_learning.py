"""The learner that RTPO's Theorem 1 is about: tabular Q-learning, one turn after the other.

At a stage of turn h every sample is one episode: the trunk policy reaches a boundary s, the turn tries
an action u, epsilon-greedily, the frozen policies of the other turns continue, and

    Q_h(s, u) <- (1 - alpha_i) Q_h(s, u) + alpha_i Y,   Y = r_h + ... + r_{H-1}

at the i-th visit of (s, u) (arXiv 2608.18682, Theorem 1, with discount 1 and outcomes of
`tabular.learning.sampling`). When the stage ends the turn is frozen to its greedy policy.

Frozen continuations make the Y of one (s, u) independent draws with mean Q~_h(s, u), whatever the
exploration does. After n visits the error is therefore known exactly (derived here; exploration that
looks at the table correlates visits with outcomes and adds terms of higher order):

    E[(Q - Q~)^2] = memory_n^2 (Q_start - Q~)^2 + noise_n Var(Y),
    memory_n = prod_i (1 - alpha_i),   noise_n = sum_i alpha_i^2 prod_{j > i} (1 - alpha_j)^2.

It vanishes if and only if both factors do: sum alpha = infinity for the first, and alpha_i -> 0, which
sum alpha^2 < infinity implies, for the second.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tabular.exact import occupancy, optimal_values, values
from tabular.instances import uniform_policy
from tabular.learning.restricted import pool
from tabular.learning.sampling import (
    check_outcomes,
    pick,
    pick_action,
    returns_from,
    trunk_states,
    uniform,
)
from tabular.mdp import TurnMDP, check_policy


class Steps(NamedTuple):
    """Step sizes alpha_i = scale / (i + shift)^power at the i-th visit, i = 1, 2, ...

    Robbins-Monro for 1/2 < power <= 1; power 0 is a constant step; power 2 has a finite sum. Every
    alpha has to lie in 0..1.
    """

    scale: float = 1.0
    power: float = 1.0
    shift: float = 0.0

    def size(self, visits: jax.Array) -> jax.Array:
        """alpha at the visit with this number, counted from 1."""
        return self.scale / (visits + self.shift) ** self.power


class StepMoments(NamedTuple):
    """What n visits leave of the start, [n], and of the noise, [n]: `memory` and `noise`."""

    memory: jax.Array
    noise: jax.Array


class Learned(NamedTuple):
    """What a learner ends with.

    Attributes:
      policy: [H, S, A] greedy policy, action probabilities.
      action_values: [H, S, A] tables, by context if contexts were given.
      visits: [H, S, A] number of updates in the last stage of each turn.
      errors: [L, N] after each sample of each stage, the largest |Q - Q~| over what can be visited,
        in units of reward; Q~ as `Q` of the frozen continuations, pooled over contexts.
    """

    policy: jax.Array
    action_values: jax.Array
    visits: jax.Array
    errors: jax.Array


def step_moments(steps: Steps, num_visits: int) -> StepMoments:
    """Exact `memory` and `noise` after 1, ..., `num_visits` visits; see the module docstring."""

    def visit(carry, number):
        memory, noise = carry
        step = steps.size(number)
        after = ((1.0 - step) * memory, (1.0 - step) ** 2 * noise + step**2)
        return after, after

    numbers = jnp.arange(1, num_visits + 1, dtype=jnp.float64)
    return StepMoments(*jax.lax.scan(visit, (jnp.ones(()), jnp.zeros(())), numbers)[1])


def turnwise(
    key: jax.Array,
    mdp: TurnMDP,
    trunk: jax.Array,
    order: jax.Array,
    contexts: jax.Array,
    steps: Steps,
    exploration: float,
    *,
    num_samples: int,
    fresh: bool | jax.Array = True,
) -> Learned:
    """Q-learning turn after turn with frozen continuations (RTPO, Theorem 1).

    Args:
      key: JAX random key.
      mdp: the MDP, rewards in 0..1.
      trunk: [H, S, A] policy that reaches the boundaries, and continues at turns not yet learned.
      order: [L] int turns of the stages: H-1, ..., 0 in the theorem. A turn that comes again starts
        from its table with its visits counted anew.
      contexts: [H, S] int in 0..S-1: what the table of a turn is indexed by.
      steps: step sizes.
      exploration: the m-th visit of a context tries a uniform action with probability
        m^-exploration, else the greedy one: without end for 0..1, GLIE above 0.
      num_samples: N, episodes of each stage.
      fresh: False continues with the trunk policy instead of the policies learned; may be traced.

    Returns:
      `Learned`. Raises ValueError on a malformed trunk or rewards outside 0..1.
    """
    trunk = check_policy(mdp, trunk)
    check_outcomes(mdp)
    return _turnwise(key, mdp, trunk, order, contexts, steps, exploration, fresh, num_samples)


def simultaneous(
    key: jax.Array, mdp: TurnMDP, steps: Steps, exploration: float, *, num_episodes: int
) -> Learned:
    """All turns learn from the same episodes, so continuations move while they are learned from.

    Every episode is played epsilon-greedily at every turn, and the return from each turn on updates
    the table of that turn: Monte-Carlo control. Assumption A5 of Theorem 1, frozen continuations, is
    what it lacks.

    Args:
      key: JAX random key.
      mdp: the MDP, rewards in 0..1.
      steps: step sizes.
      exploration: see `turnwise`.
      num_episodes: N; H N samples of `turnwise` take as many episodes as N H here.

    Returns:
      `Learned` with errors [1, N] against the optimal action values, over what a uniform policy
      visits. Raises ValueError on rewards outside 0..1.
    """
    check_outcomes(mdp)
    return _simultaneous(key, mdp, steps, exploration, num_episodes)


@partial(jax.jit, static_argnums=8)
def _turnwise(key, mdp, trunk, order, contexts, steps, exploration, fresh, num_samples):
    reached = occupancy(mdp, trunk)

    def stage(carry, inputs):
        policy, tables, visits = carry
        turn, draws = inputs
        continuation = jnp.where(fresh, policy, trunk)
        seen = contexts[turn]
        target = pool(reached[turn], values(mdp, continuation).Q[turn], seen)
        possible = pool(reached[turn], jnp.ones_like(target), seen) > 0
        samples = _samples(draws, mdp, trunk, continuation, turn, seen)
        table, counts, errors = _learn(tables[turn], samples, steps, exploration, target, possible)
        row = jax.nn.one_hot(table[seen].argmax(-1), mdp.num_actions, dtype=policy.dtype)
        after = (policy.at[turn].set(row), tables.at[turn].set(table), visits.at[turn].set(counts))
        return after, errors

    start = (trunk, jnp.zeros_like(trunk), jnp.zeros_like(trunk))
    draws = uniform(key, (order.shape[0], 5 * mdp.num_turns + 3, num_samples))
    (policy, tables, visits), errors = jax.lax.scan(stage, start, (order, draws))
    return Learned(policy, tables, visits, errors)


@partial(jax.jit, static_argnums=4)
def _simultaneous(key, mdp, steps, exploration, num_episodes):
    best = optimal_values(mdp)
    target = mdp.rewards + jnp.einsum("hsat,ht->hsa", mdp.transitions, best[1:])
    possible = (occupancy(mdp, uniform_policy(mdp)) > 0)[:, :, None]
    turns = jnp.arange(mdp.num_turns)

    def episode(carry, draws):
        tables, visits = carry
        states, actions, returns = _play(draws, mdp, tables, visits, exploration)
        running = states < mdp.num_states
        rows = jnp.where(running, states, 0)
        visits = visits.at[turns, rows, actions].add(running)
        alpha = steps.size(jnp.where(running, visits[turns, rows, actions], 1.0))
        change = jnp.where(running, alpha * (returns - tables[turns, rows, actions]), 0.0)
        tables = tables.at[turns, rows, actions].add(change)
        return (tables, visits), jnp.where(possible, jnp.abs(tables - target), 0.0).max()

    draws = uniform(key, (num_episodes, 4 * mdp.num_turns + 1))
    zeros = jnp.zeros_like(mdp.rewards)
    (tables, visits), errors = jax.lax.scan(episode, (zeros, zeros), draws)
    policy = jax.nn.one_hot(tables.argmax(-1), mdp.num_actions, dtype=tables.dtype)
    return Learned(policy, tables, visits, errors[None])


def _samples(draws, mdp, trunk, continuation, turn, seen):
    """Contexts [N] (S where ended), what each action would return [N, A], and two draws [N, 2]."""
    explore, reach, follow = jnp.split(draws, [2, 2 * mdp.num_turns + 3])
    states = trunk_states(reach, mdp, trunk)[:, turn]
    follow = follow.reshape(mdp.num_turns, 3, -1)

    def outcomes(action):
        return returns_from(follow, mdp, continuation, turn, states, jnp.full_like(states, action))

    # Only one action of a sample is ever looked at, so all may use the same draws.
    returns = jax.vmap(outcomes, out_axes=1)(jnp.arange(mdp.num_actions))
    running = states < mdp.num_states
    contexts = jnp.where(running, seen[jnp.where(running, states, 0)], mdp.num_states)
    return contexts, returns, explore.T


def _learn(table, samples, steps, exploration, target, possible):
    """Run the updates of one stage; (table [S, A], visits [S, A], errors [N])."""

    def visit(carry, sample):
        values_here, visits = carry
        context, returns, draws = sample
        running = context < target.shape[0]
        row = jnp.where(running, context, 0)
        action = _explore(values_here[row], visits[row], exploration, draws)
        visits = visits.at[row, action].add(running)
        alpha = steps.size(jnp.where(running, visits[row, action], 1.0))
        change = jnp.where(running, alpha * (returns[action] - values_here[row, action]), 0.0)
        values_here = values_here.at[row, action].add(change)
        error = jnp.where(possible, jnp.abs(values_here - target), 0.0).max()
        return (values_here, visits), error

    (learned, visits), errors = jax.lax.scan(visit, (table, jnp.zeros_like(table)), samples)
    return learned, visits, errors


def _explore(row, visits, exploration, draws):
    """Epsilon-greedy action of one context from two uniform draws."""
    epsilon = (visits.sum() + 1.0) ** -exploration
    tried = jnp.floor(draws[1] * row.shape[0]).astype(int)
    return jnp.where(draws[0] < epsilon, tried, row.argmax())


def _play(draws, mdp, tables, visits, exploration):
    """One epsilon-greedy episode: states [H] (S where ended), actions [H], returns from h on [H]."""
    first = pick_action(mdp.start, draws[-1])

    def step(here, turn):
        transitions, rewards, table, counts, four = turn
        running = here < mdp.num_states
        row = jnp.where(running, here, 0)
        action = _explore(table[row], counts[row], exploration, four[:2])
        paid = (running & (four[2] < rewards[row, action])).astype(rewards.dtype)
        following = jnp.where(running, pick(transitions[row, action], four[3]), here)
        return following, (here, action, paid)

    turns = (mdp.transitions, mdp.rewards, tables, visits, draws[:-1].reshape(-1, 4))
    states, actions, paid = jax.lax.scan(step, first, turns)[1]
    return states, actions, jnp.cumsum(paid[::-1])[::-1]
