"""Exact dynamic programming on a turn-boundary MDP.

Every function takes one MDP and, where it needs one, a policy [H, S, A] of action probabilities,
and works under `jit`, `vmap` and `grad`. All raise ValueError on a malformed policy (see
`check_policy`). Turns are h = 0..H-1, r_h is paid after action a_h, and there is no discount:
transition rows that sum to less than 1 carry it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tabular.mdp import TurnMDP, check_mdp, check_policy


class Values(NamedTuple):
    """Expected returns from a turn on, in units of reward.

    Attributes:
      V: [H+1, S] value of standing in s at turn h; V[H] = 0.
      Q: [H, S, A] value of choosing a in s at turn h.
    """

    V: jax.Array
    Q: jax.Array


def values(mdp: TurnMDP, policy: jax.Array) -> Values:
    """State and action values of a policy, by backward recursion.

        Q_h(s, a) = r_h(s, a) + sum_s' P_h(s' | s, a) V_{h+1}(s')
        V_h(s)    = sum_a pi_h(a | s) Q_h(s, a),      V_H = 0

    Values of unreachable states are defined the same way. The recursion is RTPO's action value
    (arXiv 2608.18682) at discount 1.

    Args:
      mdp: the MDP.
      policy: [H, S, A] action probabilities.

    Returns:
      `Values(V, Q)` of shapes [H+1, S] and [H, S, A].
    """
    return _values(mdp, check_policy(mdp, policy))


def advantages(mdp: TurnMDP, policy: jax.Array) -> jax.Array:
    """Advantages of a policy, [H, S, A]: A_h(s, a) = Q_h(s, a) - V_h(s).

    In every state their mean under the policy is 0.
    """
    return _advantages(mdp, check_policy(mdp, policy))


def occupancy(mdp: TurnMDP, policy: jax.Array) -> jax.Array:
    """Probability of standing in s at turn h with the episode still running, [H, S].

        d_0 = start,   d_{h+1}(s') = sum_{s, a} d_h(s) pi_h(a | s) P_h(s' | s, a)

    Termination is included: the sum over states at turn h is the probability that the episode
    reaches turn h, and the sum of all entries is the mean number of turns. With weights
    d_h(s) pi_h(a | s), `rtpo_jax.core.weighted_sum` is an exact expectation over episodes.
    """
    return _occupancy(mdp, check_policy(mdp, policy))


def performance(mdp: TurnMDP, policy: jax.Array) -> jax.Array:
    """Expected return of an episode, J = sum_s start(s) V_0(s), a scalar."""
    return mdp.start @ _values(mdp, check_policy(mdp, policy)).V[0]


def policy_gradient(mdp: TurnMDP, policy: jax.Array) -> jax.Array:
    """Gradient of performance with respect to the logits of a softmax in every state, [H, S, A].

        dJ / dlogit_h(s, a) = d_h(s) pi_h(a | s) A_h(s, a)

    Policy gradient theorem (Sutton et al., 2000) for a softmax policy with one free logit for each
    turn, state and action. Rows sum to 0: moving all logits of a row together changes nothing.
    """
    policy = check_policy(mdp, policy)
    return _occupancy(mdp, policy)[:, :, None] * policy * _advantages(mdp, policy)


def optimal_values(mdp: TurnMDP) -> jax.Array:
    """Values of the best policy, [H+1, S].

        V*_h(s) = max_a [ r_h(s, a) + sum_s' P_h(s' | s, a) V*_{h+1}(s') ],   V*_H = 0

    Best from every state at every turn, also from states an optimal episode never visits.
    """
    check_mdp(mdp)
    return _optimal(mdp).V


def optimal_policy(mdp: TurnMDP) -> jax.Array:
    """The deterministic optimal policy [H, S, A], one-hot; exact ties go to the lowest action."""
    check_mdp(mdp)
    best = _optimal(mdp).Q
    return jax.nn.one_hot(best.argmax(-1), mdp.num_actions, dtype=best.dtype)


@jax.jit
def _values(mdp, policy):
    def step(next_values, turn):
        transitions, rewards, probabilities = turn
        action_values = rewards + transitions @ next_values
        state_values = jnp.sum(probabilities * action_values, axis=-1)
        return state_values, (state_values, action_values)

    return _backward(step, mdp, (mdp.transitions, mdp.rewards, policy))


@jax.jit
def _optimal(mdp):
    def step(next_values, turn):
        transitions, rewards = turn
        action_values = rewards + transitions @ next_values
        state_values = action_values.max(-1)
        return state_values, (state_values, action_values)

    return _backward(step, mdp, (mdp.transitions, mdp.rewards))


def _backward(step, mdp, turns):
    last = jnp.zeros_like(mdp.start)
    _, (state_values, action_values) = jax.lax.scan(step, last, turns, reverse=True)
    return Values(jnp.concatenate([state_values, last[None]]), action_values)


def _advantages(mdp, policy):
    state_values, action_values = _values(mdp, policy)
    return action_values - state_values[:-1, :, None]


@jax.jit
def _occupancy(mdp, policy):
    def step(here, turn):
        transitions, probabilities = turn
        return jnp.einsum("s,sa,sat->t", here, probabilities, transitions), here

    return jax.lax.scan(step, mdp.start, (mdp.transitions, policy))[1]
